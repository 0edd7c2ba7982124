"""The engines' SQL: one dialect in each file, which prints every construct of the intermediate form."""

from dpsql.compiler.dialects.dialect import Dialect
from dpsql.compiler.dialects.duckdb import PostProcessing
from dpsql.policy.engines import EngineKind

POST_PROCESSING = PostProcessing()
"""The SQL of post-processing, whatever engine holds the data."""

DIALECTS: dict[EngineKind, Dialect] = {}
"""The SQL of each engine that may hold the data, as `dpsql.backends.registry` enters it."""
