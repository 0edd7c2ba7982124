"""public_reads: engine SQL for rows of public tables, as texts."""

from dpsql.compiler.dialects import DIALECTS
from dpsql.compiler.dialects.render import Renderer
from dpsql.compiler.ir.nodes import Relation
from dpsql.compiler.plan.query_plan import PublicRead
from dpsql.compiler.scope.catalog import Catalog


def public_read(relation: Relation, table: str, catalog: Catalog) -> PublicRead:
    """Return the query for a relation of public rows, which post-processing reads as `table`."""
    dialect = DIALECTS[catalog.schema.engine]
    renderer = Renderer(dialect, catalog.schema, catalog.policy, None)
    inner = renderer.relation(relation, frozenset(relation.fields))
    texts = [dialect.as_text(renderer.name(field), field.type) for field in relation.fields]
    casts = ", ".join(f"{text} AS v{i}" for i, text in enumerate(texts)) or "1 AS one"
    return PublicRead(table, relation, f"SELECT {casts} FROM {dialect.derived(inner)}", len(relation.fields))
