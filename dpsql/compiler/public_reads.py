"""public_reads: engine SQL for rows of public tables, as texts."""

from dpsql.compiler.catalog import Catalog
from dpsql.compiler.engines import DIALECTS
from dpsql.compiler.ir import Relation
from dpsql.compiler.planned import PublicRead
from dpsql.compiler.render import Renderer


def public_read(relation: Relation, table: str, catalog: Catalog) -> PublicRead:
    """Return the query for a relation of public rows, which post-processing reads as `table`."""
    dialect = DIALECTS[catalog.schema.engine]
    renderer = Renderer(dialect, catalog.schema, catalog.policy, None)
    inner = renderer.relation(relation, frozenset(relation.fields))
    texts = [dialect.as_text(renderer.name(field), field.type) for field in relation.fields]
    casts = ", ".join(f"{text} AS v{i}" for i, text in enumerate(texts)) or "1 AS one"
    return PublicRead(table, f"SELECT {casts} FROM {dialect.derived(inner)}", len(relation.fields))
