"""`[tables.NAME]`: whose rows a table holds, how many of one unit count, and its columns."""

import re
from dataclasses import replace
from zoneinfo import ZoneInfo

from dpsql.errors import InvalidPolicy
from dpsql.policy.columns import read_columns
from dpsql.policy.engines import EngineKind
from dpsql.policy.files import read_files
from dpsql.policy.model import PolicyColumn, RowsOf, Table, UnitVia, can_be_key
from dpsql.policy.node import Node, Shape, did_you_mean
from dpsql.policy.source import quoted
from dpsql.sqltypes import SqlType

MAX_COUNT = 10**9
MAX_CHAIN = 16
MAX_WAYS = 64
"""Ways of one table to the unit, those of the tables between counted."""

_TABLE: Shape = {
    "public": "public = true",
    "unit_key": 'unit_key = "patient_id"',
    "unit_via": 'unit_via = { table = "visits", on = { visit_id = "visit_id" } }',
    "within_unit": 'within_unit = ["visit_id"]',
    "description": 'description = "One row per patient"',
    "max_rows": "max_rows = 50",
    "max_groups": "max_groups = 10",
    "max_rows_per_group": "max_rows_per_group = 50",
    "min_units": "min_units = 10",
    "files": 'files = { format = "parquet", paths = ["visits/*.parquet"] }',
    "columns": 'columns = { age = { type = "integer", lower = 0, upper = 110 } }',
}
_UNIT_VIA: Shape = {
    "table": 'table = "visits"',
    "on": 'on = { visit_id = "visit_id" }',
    "where": """where = "domain = 'visit'\"""",
}
_CONSTANT = r"'(?:[^']|'')*'|-?\d{1,18}"
_LIST = rf"\s*(?:{_CONSTANT})\s*(?:,\s*(?:{_CONSTANT})\s*)*"
_WHERE = re.compile(
    rf"\s*(?P<column>[a-z_]\w*)\s*(?:=\s*(?P<one>{_CONSTANT})|\bIN\s*\((?P<some>{_LIST})\))\s*",
    re.ASCII | re.IGNORECASE,
)
_COUNTS = ("max_rows", "max_groups", "max_rows_per_group", "min_units")
_OF_A_UNIT = ("unit_key", "unit_via", "within_unit", *_COUNTS)
_RESERVED_SCHEMAS = frozenset({"dpsql", "pg_catalog", "information_schema"})


def read_tables(node: Node, default_schema: str, timezone: ZoneInfo, engine: EngineKind) -> tuple[Table, ...]:
    """Return the tables, each protected one with its way to the unit proved and its three bounds filled in."""
    nodes = node.members("table")
    declared = {name: _table(name, member, timezone, engine) for name, member in nodes.items()}
    _check_relations(nodes, declared, default_schema)
    if all(table.public for table in declared.values()):
        raise node.wrong("no table is protected: all are public", 'write in one: unit_key = "COLUMN" and max_rows')
    for name, table in declared.items():
        _check_key(nodes[name], table)
        _check_domains(nodes[name], table, declared)
    return tuple(_with_bounds(nodes[name], table, declared) for name, table in declared.items())


def _table(name: str, node: Node, timezone: ZoneInfo, engine: EngineKind) -> Table:
    keys = node.fields(_TABLE)
    public = "public" in keys and keys["public"].flag()
    if public:
        for key in _OF_A_UNIT:
            if key in keys:
                hint = f"remove {key}, or remove public = true if the rows are about units"
                raise keys[key].wrong("a public table has no unit", hint)
    elif "unit_key" in keys and "unit_via" in keys:
        hint = "keep unit_key if this table has the column, else unit_via"
        raise keys["unit_via"].wrong("unit_key and unit_via cannot be used together", hint)
    elif "unit_key" not in keys and "unit_via" not in keys:
        hint = 'write: unit_key = "COLUMN", the column that names the person; or public = true'
        raise node.wrong("a protected table needs unit_key or unit_via", hint)
    elif "unit_key" in keys and "max_rows" not in keys:
        raise _no_max_rows(node)
    counts = {key: keys[key].count(MAX_COUNT) for key in _COUNTS if key in keys}
    return Table(
        name=name,
        schema=_schema(name, node),
        public=public,
        unit_key=keys["unit_key"].name("column") if "unit_key" in keys else None,
        unit_via=_ways(keys["unit_via"]) if "unit_via" in keys else (),
        description=keys["description"].text() if "description" in keys else None,
        rows_per_unit=counts.get("max_rows"),
        groups_per_unit=counts.get("max_groups"),
        rows_per_group=counts.get("max_rows_per_group"),
        columns=read_columns(keys["columns"], timezone) if "columns" in keys else (),
        min_units=counts.get("min_units", 1),
        within_unit=_names(keys["within_unit"]) if "within_unit" in keys else (),
        files=read_files(keys, node, name, engine),
    )


def _no_max_rows(node: Node) -> InvalidPolicy:
    hint = "write: max_rows = N, the contribution bound: the rows of one unit that count"
    return node.wrong("max_rows is missing", hint)


def _names(node: Node) -> tuple[str, ...]:
    return tuple(each.name("column") for each in node.elements())


def _schema(name: str, node: Node) -> str | None:
    schema, dot, relation = name.rpartition(".")
    if "." in schema or (dot and not (schema.strip() and relation.strip())):
        raise node.wrong(
            f"{quoted(name)} is not a table name, with or without a schema", 'write: [tables."sales.orders"]'
        )
    return check_schema(node, schema) if dot else None


def check_schema(node: Node, schema: str) -> str:
    """Return the schema unless it is one that the gateway itself answers for."""
    if schema.casefold() in _RESERVED_SCHEMAS:
        raise node.wrong(f"the schema {quoted(schema)} is reserved for the gateway", "keep the data in another schema")
    return schema


def _ways(node: Node) -> tuple[UnitVia, ...]:
    """Return the ways to the unit; with several, the values of one column decide which of them a row follows.

    Guarantee: no row goes two ways: no value is in two conditions, and rows with none of the values go nowhere.
    Assumes: the database compares the column with constants byte by byte, or as whole numbers.
    Reference: Wilson et al. 2020, section 3: each row is owned by one user.
    """
    if not isinstance(node.value, list):
        return (_unit_via(node),)
    nodes = node.elements()
    ways = tuple(map(_unit_via, nodes))
    taken = set[str | int]()
    for each, way in zip(nodes, ways, strict=True):
        if way.where is None:
            raise each.wrong("one of several ways needs a condition", f"write in it: {_UNIT_VIA['where']}")
        first = ways[0].where
        if first is None or way.where.column != first.column or type(way.where.values[0]) is not type(first.values[0]):
            hint = "compare one column with texts, or with whole numbers, in all of them"
            raise _at(each, "where").wrong("the conditions must be about the values of one column", hint)
        for value in way.where.values:
            if value in taken:
                raise _at(each, "where").wrong(f"{value!r} is in two conditions", "let each value go one way")
            taken.add(value)
    return ways


def _where(node: Node) -> RowsOf:
    found = _WHERE.fullmatch(node.text())
    if found is None:
        hint = f"""write: {_UNIT_VIA["where"]}, or: where = "domain IN ('visit', 'call')\""""
        raise node.wrong("a condition compares a column with texts, or with whole numbers", hint)
    written = re.findall(_CONSTANT, found["one"] or found["some"])
    texts = tuple(each[1:-1].replace("''", "'") for each in written if each.startswith("'"))
    numbers = tuple(int(each) for each in written if not each.startswith("'"))
    if texts and numbers:
        raise node.wrong("texts and numbers are compared with one column", "write texts, or whole numbers")
    return RowsOf(node.check_name(found["column"], "column"), texts or numbers)


def _unit_via(node: Node) -> UnitVia:
    keys = node.fields(_UNIT_VIA, required=("table", "on"))
    pairs = keys["on"].members("column")
    if not pairs:
        raise keys["on"].wrong("on must name at least one column")
    ways = tuple((here, replace(there, example=f'{here} = "{here}"').name("column")) for here, there in pairs.items())
    return UnitVia(keys["table"].text(), ways, _where(keys["where"]) if "where" in keys else None)


def _check_relations(nodes: dict[str, Node], tables: dict[str, Table], default_schema: str) -> None:
    # One relation under two names could be protected under one and public under the other.
    seen: dict[tuple[str, str], str] = {}
    for name, table in tables.items():
        relation = ((table.schema or default_schema).casefold(), table.relation.casefold())
        other = seen.setdefault(relation, name)
        if other != name:
            raise nodes[name].wrong(f"the same table as {quoted(other)}", "keep one of the two")


def _check_key(node: Node, table: Table) -> None:
    column = _listed(table, table.unit_key) if table.unit_key else None
    if column and not can_be_key(column.type):
        what = f"{quoted(column.name)} is {column.type.value}, whose values have no canonical form"
        raise _at(node, "unit_key").wrong(what, "name a column of integer, text or uuid type")


def _listed(table: Table, name: str) -> PolicyColumn | None:
    # As the database looks names up, so that a key does not slip through by its case.
    return next((column for column in table.columns if column.name.casefold() == name.casefold()), None)


def _check_domains(node: Node, table: Table, tables: dict[str, Table]) -> None:
    for column in table.columns:
        if column.values_from is not None:
            _check_domain(_at(node, "columns", column.name, "values_from"), table, column, column.values_from, tables)


def _check_domain(
    node: Node, table: Table, column: PolicyColumn, way: tuple[str, str], tables: dict[str, Table]
) -> None:
    if table.public:
        raise node.wrong("the rows of a public table are its domain", "remove values_from")
    domain = tables.get(way[0])
    if domain is None or not domain.public:
        fault = "is not a table of this policy" if domain is None else "is not public, so its values cannot be a domain"
        public = [name for name, known in tables.items() if known.public]
        raise node.wrong(f"{quoted(way[0])} {fault}", did_you_mean(way[0], public))
    source = domain.column(way[1])
    if source is None:
        names = [known.name for known in domain.columns]
        raise node.wrong(f"{quoted(way[0])} lists no column {quoted(way[1])}", did_you_mean(way[1], names))
    if not _comparable(source.type, column.type):
        what = f"{column.type.value} here, but {source.type.value} in {quoted('.'.join(way))}"
        raise node.wrong(what, "give both columns one type")


def _comparable(one: SqlType, other: SqlType) -> bool:
    if not (can_be_key(one) and can_be_key(other)):
        return False
    return one is other or (one.is_number and other.is_number) or (one.is_text and other.is_text)


def _with_bounds(node: Node, table: Table, tables: dict[str, Table]) -> Table:
    if table.public:
        return table
    chains = _chains(node, [table], tables)
    if len(chains) > MAX_WAYS:
        raise _at(node, "unit_via").wrong(f"more than {MAX_WAYS} ways to the unit", "give this table a unit_key")
    if len(table.unit_via) > 1 and table.rows_per_unit is None:
        raise _no_max_rows(node)
    max_rows = next(link.rows_per_unit for link in chains[0] if link.rows_per_unit is not None)
    return replace(
        table,
        rows_per_unit=max_rows,
        groups_per_unit=min(table.groups_per_unit or max_rows, max_rows),
        rows_per_group=min(table.rows_per_group or max_rows, max_rows),
        min_units=max(link.min_units for chain in chains for link in chain),
    )


def _chains(node: Node, chain: list[Table], tables: dict[str, Table]) -> list[list[Table]]:
    """Return each chain of tables from the first one to one that has the unit's column, which also has max_rows."""
    link, found = chain[-1], list[list[Table]]()
    for place, via in enumerate(link.unit_via):
        at = _at(_table_node(node, link), "unit_via", *([place] if len(link.unit_via) > 1 else []))
        parent = tables.get(via.table)
        if parent is None or parent.public:
            fault = "is not a table of this policy" if parent is None else "is public, so it has no unit"
            protected = [name for name, known in tables.items() if not known.public and known is not link]
            raise _at(at, "table").wrong(f"{quoted(via.table)} {fault}", did_you_mean(via.table, protected))
        if parent in chain:
            names = " → ".join(quoted(step.name) for step in [*chain, parent])
            raise _at(at, "table").wrong(f"forms a circle: {names}", "one table of the circle needs a unit_key")
        _check_join(at, link, parent, via)
        if len(chain) == MAX_CHAIN:
            raise _at(at, "table").wrong(f"more than {MAX_CHAIN} tables to the unit", "give this table a unit_key")
        found += _chains(node, [*chain, parent], tables)
        if len(found) > MAX_WAYS:
            break
    return found or [chain]


def _check_join(node: Node, table: Table, parent: Table, via: UnitVia) -> None:
    condition = _listed(table, via.where.column) if via.where is not None else None
    if via.where is not None and condition is not None:
        is_text = isinstance(via.where.values[0], str)
        if not (condition.type.is_text if is_text else condition.type.is_integer):
            what = f"{quoted(condition.name)} is {condition.type.value}, and is compared with "
            what += "texts" if is_text else "whole numbers"
            raise _at(node, "where").wrong(
                what, "compare a column of texts with texts, or one of integers with integers"
            )
    for here, there in via.on:
        ends = [column.type for column in (_listed(table, here), _listed(parent, there)) if column]
        if ends and not (can_be_key(ends[0]) and can_be_key(ends[-1]) and ends[0].is_alike(ends[-1])):
            what = f"{quoted(here)} and {quoted(there)} are {' and '.join(end.value for end in ends)}"
            raise _at(node, "on", here).wrong(what, "join on columns of one type: integer, text or uuid")


def _table_node(node: Node, table: Table) -> Node:
    return replace(node, key=(*node.key[:-1], table.name))


def _at(node: Node, *names: str | int) -> Node:
    return replace(node, key=(*node.key, *names))
