"""The engines that may hold the data, as a policy's url names them; `dpsql.backends.registry` opens each."""

import re
from dataclasses import dataclass
from typing import Final

_IN_BUCKET: Final = re.compile(r"s3://[a-z0-9][a-z0-9.-]+(/(?!\.{1,2}(/|$))[\w.=+-]+)*", re.ASCII)
"""A bucket, and folders in it whose names no pattern or protocol reads otherwise."""


@dataclass(frozen=True)
class EngineKind:
    """An engine, as policies describe it.

    Attributes:
        name: Its product name.
        schemes: The prefixes of its urls; the first one is preferred.
        example: A url of it.
        default_schema: The schema of tables without a schema.
        is_file: True if a url is the scheme, `:///` and a path on this machine.
        is_folder: True if the data are files, each table some of them, and there is no database.
        enforces_keys: True if a table can have a key that the engine enforces.
    """

    name: str
    schemes: tuple[str, ...]
    example: str
    default_schema: str
    is_file: bool = False
    is_folder: bool = False
    enforces_keys: bool = True

    def __str__(self) -> str:
        """Its name."""
        return self.name

    @property
    def is_embedded(self) -> bool:
        """True if the engine runs in this process: it has the memory and the threads of the policy, and reads files."""
        return self.is_file or self.is_folder

    @property
    def start(self) -> str:
        """What its urls begin with."""
        return f"{self.schemes[0]}:{'///' if self.is_file else '//'}"

    def has_location(self, url: str) -> bool:
        """Return whether a url with a scheme of the engine is complete."""
        if not self.is_file:
            return not self.is_folder or _IN_BUCKET.fullmatch(url) is not None
        return url.startswith(self.start) and url != self.start

    def location(self, url: str) -> str:
        """Return the path of a url, or the whole url of a server."""
        return url.removeprefix(self.start) if self.is_file else url


DUCKDB: Final = EngineKind("DuckDB", ("duckdb",), "duckdb:///clinic.duckdb", "main", is_file=True)
PARQUET: Final = EngineKind(
    "Parquet", ("parquet",), "parquet:///data", "main", is_file=True, is_folder=True, enforces_keys=False
)
"""DuckDB over a folder of files, which are its tables."""
S3: Final = EngineKind("S3", ("s3",), "s3://bucket/clinic", "main", is_folder=True, enforces_keys=False)
"""DuckDB over the objects of a bucket, which are its tables."""
POSTGRES: Final = EngineKind("PostgreSQL", ("postgresql", "postgres"), "postgresql://reader@host/db", "public")
SPARK: Final = EngineKind("Spark", ("spark",), "spark://localhost:15002/spark_catalog", "default", enforces_keys=False)

ENGINES: Final = {scheme: engine for engine in (DUCKDB, PARQUET, S3, POSTGRES, SPARK) for scheme in engine.schemes}
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
