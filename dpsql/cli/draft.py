"""Drafts a policy from the outline of a database.

Rule 1: nothing but the schema is read: limits or domains taken from values would leak what they are to protect.
Rule 2: what a person must decide is left out, so that an unfinished draft is no valid policy; whom the rows are about
    is said by a person, and foreign keys lead from there.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from dpsql.backends import read_outline
from dpsql.backends.outline import ColumnOutline, ForeignKey, Outline, TableOutline
from dpsql.cli.toml_text import key_text, quoted_text, type_text
from dpsql.errors import InvalidParameter
from dpsql.sqltypes import SqlType

_HEAD = """\
# A draft from the schema of the database. Decide what is marked TODO, from common knowledge and never from the data;
# then run: dpsql policy check THIS_FILE
version = 1

[dataset]
name = {name}
url = {url}
schema = {schema}
privacy_unit = "person"            # TODO: whom the guarantee protects, in a word
adjacency = "add_remove"
data_version = "1"                 # change it whenever the data changes
budget = {{ epsilon = 20, delta = 1e-6 }}    # TODO: the cap over all users together; delta far below 1 / people

[roles.analyst]
budget = {{ epsilon = 5, delta = 1e-6 }}     # TODO: what one analyst may learn
# wide_share: the part of each price that tells how many rows bounds drop; leave it out if max_rows drops none.
query = {{ epsilon = 0.1, delta = 1e-9, max_epsilon = 1, wide_share = 0.1 }}
"""
_UNIT = """\
# TODO: whose row is it? One of:
#   unit_key = "…"                 the column that names the person
#   unit_via = { table = "…", on = { column_here = "column_there" } }
#   public = true                  the rows are about no person (then without max_rows)"""
_MAX_ROWS = "max_rows = 10                      # TODO: contribution bound: the rows of one person that count"


@dataclass(frozen=True)
class _Way:
    """How a table's rows lead to a person: by a column, or by another table."""

    unit_key: str | None
    via: ForeignKey | None

    @property
    def columns(self) -> frozenset[str]:
        """The columns that lead to the person."""
        here = [column for column, _ in self.via.on] if self.via is not None else []
        return frozenset([*here, *([self.unit_key] if self.unit_key is not None else [])])


@dataclass(frozen=True)
class _Draft:
    outline: Outline
    ways: Mapping[tuple[str, str], _Way]
    people: TableOutline | None

    def name(self, table: tuple[str, str]) -> str:
        """A table's name in the policy."""
        return table[1] if table[0] == self.outline.schema else f"{table[0]}.{table[1]}"

    def lines(self, table: TableOutline) -> Iterator[str]:
        """The section of one table."""
        key = key_text(self.name(table.path))
        way = self.ways.get(table.path)
        yield f"[tables.{key}]"
        if table.comment and table.comment.strip():
            yield f"description = {quoted_text(_line(table.comment))}"
        if table.hive:
            paths = f"paths = [{quoted_text(f'{table.name}/**/*.parquet')}]"
            hive = ", ".join(f'{key_text(name)} = "text"' for name in table.hive)
            yield f'files = {{ format = "parquet", {paths}, hive = {{ {hive} }} }}'
        yield from self._unfound(table) if way is None else self._found(table, way)
        yield f"\n[tables.{key}.columns]"
        yield "# A column that is removed here does not exist for analysts."
        for column in table.columns:
            if way is not None and column.name in way.columns:
                yield f"# {quoted_text(column.name)} refers to the person: analysts join and count by it unlisted."
            else:
                yield _column_line(column, self._domain(table, column))

    def _found(self, table: TableOutline, way: _Way) -> Iterator[str]:
        if way.via is not None:
            pairs = ", ".join(f"{key_text(here)} = {quoted_text(there)}" for here, there in way.via.on)
            yield f"unit_via = {{ table = {quoted_text(self.name(way.via.table))}, on = {{ {pairs} }} }}"
            return  # max_rows is that of the table it leads to, unless said otherwise
        yield f"unit_key = {quoted_text(way.unit_key or '')}"
        yield "max_rows = 1" if table is self.people else _MAX_ROWS

    def _unfound(self, table: TableOutline) -> Iterator[str]:
        yield _UNIT
        keys = "; ".join(", ".join(map(quoted_text, names)) for names in table.keys)
        yield f"# Unique according to the schema: {keys}." if keys else "# No column is unique according to the schema."
        if any(other.table == table.path for path in self.ways for other in self.outline.table(path).foreign_keys):
            yield "# Tables with persons refer to it, and it refers to no person: it is probably public."
        yield _MAX_ROWS

    def _domain(self, table: TableOutline, column: ColumnOutline) -> str | None:
        """The column elsewhere that a column's values are from, where that is about no person."""
        found = (key for key in table.foreign_keys if len(key.on) == 1 and key.on[0][0] == column.name)
        return next((f"{self.name(key.table)}.{key.on[0][1]}" for key in found if key.table not in self.ways), None)


def draft_policy(url: str, people: str | None = None) -> str:
    """Return the TOML text of a policy for a database, to be finished by hand.

    Args:
        url: Of the database.
        people: The table that has one row a person, if somebody said which.

    Raises:
        InvalidParameter: The URL names no database that can be read, or people no table with a key of one column.
    """
    outline = read_outline(url)
    table = _people(outline, people) if people is not None else None
    draft = _Draft(outline, _ways(outline, table) if table is not None else {}, table)
    head = _HEAD.format(
        name=quoted_text(outline.name), url=quoted_text(outline.url), schema=quoted_text(outline.schema)
    )
    if table is None and (roots := _referred(outline)):
        named = ", ".join(draft.name(path) for path in roots)
        head += f"\n# Foreign keys refer to: {named}.\n"
        head += "# If one of these has one row per person, run again with --unit TABLE to derive unit_via from them.\n"
    return "\n".join([head, *("\n".join(draft.lines(each)) + "\n" for each in outline.tables)])


def _people(outline: Outline, name: str) -> TableOutline:
    schema, _, relation = name.rpartition(".")
    path = (schema or outline.schema, relation)
    table = next((table for table in outline.tables if table.path == path), None)
    if table is None:
        raise InvalidParameter(
            f'there is no table "{name}"', hint="It has: " + ", ".join(t.name for t in outline.tables)
        )
    if not any(len(key) == 1 for key in table.keys):
        raise InvalidParameter(
            f'"{name}" has no single-column key',
            hint="Name the table with one row per person. If tables have no keys, leave out --unit.",
        )
    return table


def _ways(outline: Outline, people: TableOutline) -> dict[tuple[str, str], _Way]:
    """The shortest path of each table to the person along foreign keys."""
    unit = next(key[0] for key in people.keys if len(key) == 1)
    ways = {people.path: _Way(unit, None)}
    for table in outline.tables:
        named = (key.on[0][0] for key in table.foreign_keys if key.table == people.path and key.on[0][1:] == (unit,))
        if table is not people and (column := next(named, None)) is not None:
            ways[table.path] = _Way(column, None)
    reached = set[tuple[str, str]]()
    while reached != ways.keys():
        reached = set(ways)
        for table in outline.tables:
            via = next((key for key in table.foreign_keys if key.table in reached), None)
            if table.path not in ways and via is not None:
                ways[table.path] = _Way(None, via)
    return ways


def _referred(outline: Outline) -> list[tuple[str, str]]:
    """Tables that others refer to."""
    return sorted({key.table for table in outline.tables for key in table.foreign_keys})


def _column_line(column: ColumnOutline, domain: str | None) -> str:
    if column.type in (SqlType.ARRAY, SqlType.UNKNOWN):
        return f"# {quoted_text(column.name)}: type {quoted_text(column.type_name)} is not supported"
    name = type_text(column.type)
    told = f", description = {quoted_text(_line(column.comment))}" if column.comment and column.comment.strip() else ""
    return f"{key_text(column.name)} = {{ type = {quoted_text(name)}{told} }}{_todo(column.type, domain)}"


def _todo(kind: SqlType, domain: str | None) -> str:
    if domain is not None:
        return f"    # TODO: values_from = {quoted_text(domain)} if that table is public"
    if kind.is_integer or kind.is_moment:
        return "    # TODO: lower = …, upper = …"
    if kind.is_number:
        return "    # TODO: lower = …, upper = …, step = …"
    return '    # TODO: values = ["…"] if the domain is public knowledge' if kind.is_text else ""


def _line(comment: str) -> str:
    return " ".join(comment.split())
