"""Advice for the owner of a PostgreSQL database: privileges to revoke, facts not enforced, useful indexes."""

from collections.abc import Collection, Iterator
from typing import Final

from dpsql.backends.fit import TablePath, path_of
from dpsql.backends.postgres_connections import Transaction
from dpsql.backends.postgres_facts import Facts
from dpsql.compiler.dialects.postgres import Postgres
from dpsql.compiler.ir.schema import EngineColumn, EngineTable
from dpsql.policy import Policy, PolicyColumn, Table
from dpsql.sqltypes import SqlType

_ROLE: Final = b"""
SELECT rolname, rolsuper, rolcreaterole OR rolcreatedb, rolreplication,
    has_database_privilege(current_database(), 'CREATE'), current_database(),
    (SELECT json_agg(g.rolname ORDER BY g.rolname) FROM pg_roles AS g WHERE g.rolname LIKE 'pg\\_%'
        AND g.rolname <> 'pg_read_all_data' AND pg_has_role(r.oid, g.oid, 'MEMBER'))
FROM pg_roles AS r WHERE rolname = current_user
"""
_SCHEMAS: Final = (
    b"SELECT nspname FROM pg_namespace WHERE nspname = ANY($1::text[]) AND has_schema_privilege(oid, 'CREATE')"
)
_TABLES: Final = b"""
SELECT n.nspname, c.relname, pg_has_role(c.relowner, 'USAGE'), (
    SELECT json_agg(p) FROM unnest(ARRAY['INSERT', 'UPDATE', 'DELETE', 'TRUNCATE']) AS p
    WHERE has_table_privilege(c.oid, p) OR p IN ('INSERT', 'UPDATE') AND has_any_column_privilege(c.oid, p))
FROM unnest($1::text[], $2::text[]) AS w (schema, relation)
JOIN pg_namespace AS n ON n.nspname = w.schema JOIN pg_class AS c ON c.relnamespace = n.oid AND c.relname = w.relation
ORDER BY n.nspname, c.relname
"""
_INDEXES: Final = b"""
SELECT n.nspname, c.relname, i.indnkeyatts, (
    SELECT json_agg(a.attname ORDER BY k.place) FROM unnest(i.indkey) WITH ORDINALITY AS k (attnum, place)
    JOIN pg_attribute AS a ON a.attrelid = i.indrelid AND a.attnum = k.attnum)
FROM unnest($1::text[], $2::text[]) AS w (schema, relation)
JOIN pg_namespace AS n ON n.nspname = w.schema JOIN pg_class AS c ON c.relnamespace = n.oid AND c.relname = w.relation
JOIN pg_index AS i ON i.indrelid = c.oid
WHERE i.indisvalid AND i.indpred IS NULL AND i.indexprs IS NULL
"""
_TEXTS: Final = ("text", "character varying")


def excess_rights(transaction: Transaction, paths: Collection[TablePath]) -> Iterator[str]:
    """Privileges of the role beyond reading the tables, each with the statement that revokes it."""
    row = transaction.execute(_ROLE).fetchone()
    if row is None:
        raise TypeError("the current role is a role")
    role, is_super, makes_roles, replicates, creates, database, groups = row
    named = Postgres.quote_name(role)
    if is_super:
        yield f"the role {named} is a superuser: it may do everything. CREATE ROLE reader LOGIN PASSWORD '…'"
        return
    if makes_roles:
        yield f"the role {named} may make roles or databases. ALTER ROLE {named} NOCREATEROLE NOCREATEDB"
    if replicates:
        yield f"the role {named} may copy the whole server. ALTER ROLE {named} NOREPLICATION"
    for group in groups or ():
        yield f"the role {named} is a member of {group}. REVOKE {group} FROM {named}"
    if creates:
        place = Postgres.quote_name(database)
        yield f"the role {named} may make schemas. REVOKE CREATE ON DATABASE {place} FROM {named}, PUBLIC"
    for (schema,) in transaction.execute(_SCHEMAS, [sorted({path[0] for path in paths})]):
        place = Postgres.quote_name(schema)
        yield f"the role {named} may make tables. REVOKE CREATE ON SCHEMA {place} FROM {named}, PUBLIC"
    for schema, table, owns, rights in transaction.execute(_TABLES, _columns(paths)):
        place = f"{Postgres.quote_name(schema)}.{Postgres.quote_name(table)}"
        if owns:
            yield f"the role {named} owns {place}. ALTER TABLE {place} OWNER TO …"
        elif rights:
            listed = ", ".join(rights)
            yield f"the role {named} may {listed} on {place}. REVOKE {listed} ON {place} FROM {named}, PUBLIC"


def unenforced(facts: Facts) -> Iterator[str]:
    """Tables whose properties the owner asserts and the server does not enforce."""
    kinds = {"v": "a view", "m": "a materialised view", "f": "a foreign table"}
    for path in sorted(facts.tables):
        name = ".".join(path)
        if facts.kinds[path] in kinds:
            yield (
                f"{name} is {kinds[facts.kinds[path]]}: each of its rows must be computed from rows of one unit only. "
                "Only its definition ensures that"
            )
        if path in facts.filtered:
            yield (
                f"row-level security filters the rows of {name}: it must decide on each row by that row only, "
                "because an effect of other rows is not bounded"
            )


def missing_indexes(transaction: Transaction, policy: Policy, facts: Facts) -> tuple[str, ...]:
    """Covering indexes that bounding is faster with: unit first, then a group key, then the values and the days.

    The rows then come unit by unit and group by group out of the index alone, and the table is not sorted. A day that
    is not in the index is fetched from the table, row by row in the index's order, which takes longer than a sort.
    """
    tables = {path_of(table, policy): table for table in policy.tables if table.unit_key is not None}
    stored = {path: table for path, table in tables.items() if facts.kinds[path] in ("r", "p", "m")}
    known = transaction.execute(_INDEXES, _columns(stored)).fetchall()
    advised = []
    for path, table in stored.items():
        there = [(names[:keys], frozenset(names)) for *place, keys, names in known if tuple(place) == path]
        for leading, values in _wanted(table, facts.tables[path]):
            if not any(names[:2] == leading and covered.issuperset(values) for names, covered in there):
                advised.append(_index(path, leading, values, facts.tables[path]))
    return tuple(advised)


def _wanted(table: Table, engine: EngineTable) -> Iterator[tuple[list[str], list[str]]]:
    """For each column that may well be a group key: unit and key, and the values and moments that come along."""
    unit = table.unit_key or ""
    if engine.is_unique(frozenset({unit})):
        return  # a unit has one row: there is nothing to bring together
    values = [
        column.name
        for column in table.columns
        if column.type.is_moment or (column.type.is_number and column.lower is not None)
    ]
    for column in table.columns:
        if column.name != unit and _is_key(column, engine.columns[column.name]):
            yield [unit, column.name], [name for name in values if name not in (unit, column.name)]


def _is_key(column: PolicyColumn, engine: EngineColumn) -> bool:
    """True where an index keeps the values in the order in which they are grouped, and they are likely to be."""
    if column.type in (SqlType.BOOLEAN, SqlType.UUID):
        return True
    # Private texts are grouped by their beginning, which no index has in order.
    is_public = column.values is not None or column.values_from is not None
    return is_public and (column.type.is_integer or engine.type_name.startswith(_TEXTS))


def _index(path: TablePath, leading: list[str], values: list[str], engine: EngineTable) -> str:
    # Texts are compared byte by byte, whatever the collation of their column.
    keys = [
        Postgres.quote_name(name) + (' COLLATE "C"' if engine.columns[name].type_name.startswith(_TEXTS) else "")
        for name in leading
    ]
    include = f" INCLUDE ({', '.join(map(Postgres.quote_name, values))})" if values else ""
    return f"CREATE INDEX CONCURRENTLY ON {'.'.join(map(Postgres.quote_name, path))} ({', '.join(keys)}){include};"


def _columns(paths: Collection[TablePath]) -> list[list[str]]:
    return [[path[0] for path in paths], [path[1] for path in paths]]
