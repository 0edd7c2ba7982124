"""The engines that may hold the data, as a policy's url names them; `dpsql.backends.registry` opens each."""

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True)
class EngineKind:
    """An engine, as policies describe it.

    Attributes:
        name: Its product name.
        schemes: The prefixes of its urls; the first one is preferred.
        example: A url of it.
        default_schema: The schema of tables without a schema.
        is_file: True if a url is the scheme, `:///` and the path of data that this process opens: such an engine has
            the memory and the threads that the policy says, reads files, and keeps prepared tables next to them.
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
        """Return whether a url with a scheme of the engine is complete."""
        return not self.is_file or (url.startswith(self.start) and url != self.start)

    def location(self, url: str) -> str:
        """Return the path of a url, or the whole url of a server."""
        return url.removeprefix(self.start) if self.is_file else url


DUCKDB: Final = EngineKind("DuckDB", ("duckdb",), "duckdb:///clinic.duckdb", "main", is_file=True)
PARQUET: Final = EngineKind("Parquet", ("parquet",), "parquet:///data", "main", is_file=True)
"""DuckDB over a folder of files, which are its tables."""
POSTGRES: Final = EngineKind("PostgreSQL", ("postgresql", "postgres"), "postgresql://reader@host/db", "public")

ENGINES: Final = {scheme: engine for engine in (DUCKDB, PARQUET, POSTGRES) for scheme in engine.schemes}
"""The engines by scheme."""


class UnknownEngine(Exception):
    """No engine has such urls; the message lists the prefixes of urls, and `hint` gives examples."""

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
