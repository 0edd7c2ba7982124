"""The engines' SQL: one dialect a file, which says how each construct of the intermediate form is written."""

from dpsql.compiler.engines.dialect import Dialect
from dpsql.compiler.engines.duckdb import DuckDB
from dpsql.compiler.engines.postgres import Postgres
from dpsql.compiler.schema import Engine

POST_PROCESSING = DuckDB()
"""The SQL of post-processing, whatever engine holds the data."""

DIALECTS: dict[Engine, Dialect] = {Engine.DUCKDB: DuckDB(), Engine.POSTGRES: Postgres()}
"""The SQL of each engine that may hold the data."""
