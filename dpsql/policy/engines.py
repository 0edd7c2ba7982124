"""The engines that may hold the data, as a policy's url names them; `dpsql.backends.registry` opens each."""

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True)
class EngineKind:
    """An engine, as far as a policy must know it.

    Attributes:
        name: What people call it.
        schemes: What its urls begin with; the first is the one to write.
        example: A url of it.
        default_schema: The schema of tables that name none.
        is_file: True where a url is the scheme, `:///` and the path of what is opened in this process: such an engine
            has the memory and the threads that the policy says, reads files, and keeps prepared tables next to them.
    """

    name: str
    schemes: tuple[str, ...]
    example: str
    default_schema: str
    is_file: bool = False

    def __str__(self) -> str:
        """Its name."""
        return self.name

    @property
    def start(self) -> str:
        """What its urls begin with."""
        return f"{self.schemes[0]}:{'///' if self.is_file else '//'}"

    def has_location(self, url: str) -> bool:
        """Whether a url that begins with a scheme of the engine goes on as it should."""
        return not self.is_file or (url.startswith(self.start) and url != self.start)

    def location(self, url: str) -> str:
        """The path that a url names, or the url of a server as it is."""
        return url.removeprefix(self.start) if self.is_file else url


DUCKDB: Final = EngineKind("DuckDB", ("duckdb",), "duckdb:///clinic.duckdb", "main", is_file=True)
PARQUET: Final = EngineKind("Parquet", ("parquet",), "parquet:///data", "main", is_file=True)
"""DuckDB over a folder of files, which are its tables."""
POSTGRES: Final = EngineKind("PostgreSQL", ("postgresql", "postgres"), "postgresql://reader@host/db", "public")
SPARK: Final = EngineKind("Spark", ("spark",), "spark://localhost:15002/spark_catalog", "default")

ENGINES: Final = {scheme: engine for engine in (DUCKDB, PARQUET, POSTGRES, SPARK) for scheme in engine.schemes}
"""The engines by scheme."""


class UnknownEngine(Exception):
    """No engine has such urls; the message says what urls begin with, and `hint` which they could be."""

    def __init__(self) -> None:
        engines = list(dict.fromkeys(ENGINES.values()))
        *most, last = (engine.start for engine in engines)
        super().__init__(f"the url must start with {', '.join(most)} or {last}")
        self.hint = " or ".join(f'"{engine.example}"' for engine in engines)


def engine_of(url: str) -> EngineKind:
    """The engine that a url names.

    Raises:
        UnknownEngine: There is none.
    """
    scheme, separator, _ = url.partition("://")
    if not separator or scheme not in ENGINES:
        raise UnknownEngine
    return ENGINES[scheme]
