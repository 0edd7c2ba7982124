"""Keys of every type: people whose keys dpsql could read as one, or one of them as two, on any engine."""

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random
from typing import Protocol

import duckdb

from dpsql.backends import Cancellation, ExactCells, open_backend
from dpsql.compiler.plan.compile import compile_query
from dpsql.compiler.plan.query_plan import PlannedRelease
from dpsql.compiler.scope.tables import Catalog
from dpsql.compiler.sql.statements import QueryStatement
from dpsql.errors import Error
from dpsql.policy import load_policy
from tests.postgres import LOOSE, Server, url_of
from tests.strategies.distance import assert_neighbours
from tests.strategies.world import CONSTANTS, SETTINGS


@dataclass(frozen=True)
class Kind:
    """A type that a key may have.

    Attributes:
        column: The engine's name of it, as in CREATE TABLE.
        declared: The policy's name of it.
        values: What a key may be, each as SQL: the first two lie so close together that a coarse reader takes one for
            the other, or are one value to the engine and two to a fine reader.
        unit: Whether it may be the unit's key.
        way: Whether it may lead to the unit.
    """

    column: str
    declared: str
    values: tuple[str, ...]
    unit: bool = True
    way: bool = True

    @property
    def family(self) -> str:
        """What it may be compared with: types whose equal values stay equal in one of them."""
        return _FAMILIES.get(self.declared, self.column)


_FAMILIES = {
    **dict.fromkeys(("smallint", "integer", "bigint"), "whole numbers"),
    **dict.fromkeys(("text", "varchar", "char"), "texts"),
    "numeric": "numerics",  # of PostgreSQL alone: DuckDB would convert decimals
}


def _refused(column: str, declared: str, *values: str) -> Kind:
    return Kind(column, declared, values, unit=False, way=False)


_TEXTS = ("'ann'", "'Ann'", "'ann '", "''", "'é'")
_DAYS = ("'2024-01-01'", "'2024-01-02'", "'0001-01-01'", "'infinity'")
_MOMENTS = ("'2024-01-01 00:00:00.000001'", "'2024-01-01 00:00:00.000002'", "'2024-01-01 00:00:00'", "'infinity'")
_NANOS = ("'2024-01-01 00:00:00.000001001'", "'2024-01-01 00:00:00.000001002'", "'2024-01-01 00:00:00'")
_ZONED = ("'2024-01-01 00:00:00.000001+00'", "'2024-01-01 00:00:00.000002+00'", "'2024-01-01 00:00:00+01'")
_CLOCKS = ("'12:00:00.000001'", "'12:00:00.000002'", "'00:00:00'", "'24:00:00'")
_UUIDS = tuple(f"'00000000-0000-0000-0000-00000000000{digit}'" for digit in "abc")
_WORDS = ("'ann'", "'Ann'", "'ann '")
_FLOATS = ("'0'", "'-0'", "'NaN'", "'0.1'")
_FINE = ("'1.0000000000000001'", "'1.0000000000000002'", "'1'")

_BOTH = (
    Kind("SMALLINT", "smallint", ("'1'", "'2'", "'-32768'")),
    Kind("INTEGER", "integer", ("'1'", "'2'", "'2147483647'")),
    Kind("BIGINT", "bigint", ("'9007199254740993'", "'9007199254740992'", "'-9223372036854775808'")),
    Kind("UUID", "uuid", _UUIDS),
    Kind("DATE", "date", _DAYS),
    Kind("TIME", "time", _CLOCKS),
    Kind("TIMESTAMP", "timestamp", _MOMENTS),
    Kind("TIMESTAMPTZ", "timestamptz", _ZONED),
    Kind("BOOLEAN", "boolean", ("'true'", "'false'"), unit=False),
    _refused("INTERVAL", "interval", "'1 month'", "'30 days'"),
    _refused("JSON", "json", "'{}'", "'{ }'"),
    _refused("INTEGER[]", "integer[]", "'{1}'", "'{2}'"),
)
_NO_TYPE = ""
"""What a policy calls a type that it has no name for: it cannot list such a column."""

DUCKDB = (
    *(kind if kind.column != "INTEGER[]" else replace(kind, values=("[1]", "[2]")) for kind in _BOTH),
    Kind("VARCHAR", "text", (*_TEXTS, "'ann' || chr(0)", "'e' || chr(769)")),
    Kind('VARCHAR COLLATE "C"', "text", _TEXTS),
    Kind("ENUM ('ann', 'Ann', 'ann ')", "text", _WORDS),
    Kind("UTINYINT", "smallint", ("'1'", "'2'", "'255'")),
    Kind("UINTEGER", "bigint", ("'4294967295'", "'4294967294'", "'0'")),
    Kind("UBIGINT", "decimal", ("'18446744073709551615'", "'18446744073709551614'", "'0'")),
    Kind(
        "HUGEINT", "decimal", ("'100000000000000000000000000000000000000'", "'100000000000000000000000000000000000001'")
    ),
    Kind(
        "UHUGEINT",
        "decimal",
        ("'340282366920938463463374607431768211455'", "'340282366920938463463374607431768211454'"),
    ),
    Kind("DECIMAL(10, 2)", "decimal", ("'1.01'", "'1.02'", "'-99999999.99'")),
    Kind("DECIMAL(38, 11)", "decimal", ("'1.00000000001'", "'1.00000000002'", "'1'")),
    Kind("DECIMAL(38, 0)", "decimal", ("'10000000000000000000000000000'", "'10000000000000000000000000001'")),
    Kind("TIMESTAMP_S", "timestamp", ("'2024-01-01 00:00:01'", "'2024-01-01 00:00:02'")),
    Kind("TIMESTAMP_MS", "timestamp", ("'2024-01-01 00:00:00.001'", "'2024-01-01 00:00:00.002'")),
    Kind("BLOB", "bytea", ("'\\x00'", "'\\x01'", "''"), unit=False),
    _refused("VARCHAR COLLATE NOCASE", "text", *_TEXTS),
    _refused("VARCHAR COLLATE NOACCENT", "text", "'e'", "'é'", "'ann'"),
    _refused("VARCHAR COLLATE NFC", "text", "'é'", "'e' || chr(769)", "'ann'"),
    _refused("TIMESTAMP_NS", "timestamp", *_NANOS),
    _refused("TIME_NS", _NO_TYPE, "'12:00:00.000001001'", "'12:00:00.000001002'"),
    _refused("TIMETZ", _NO_TYPE, "'12:00:00+00'", "'13:00:00+01'"),
    _refused("DOUBLE", "double", *_FLOATS),
    _refused("FLOAT", "real", *_FLOATS),
    _refused("BIT", _NO_TYPE, "'1'", "'01'"),
    _refused("STRUCT(a INTEGER)", _NO_TYPE, "{'a': 1}", "{'a': 2}"),
)

_LOST = ("HUGEINT", "UHUGEINT")
IN_PARQUET = tuple(
    replace(kind, unit=False, way=False) if kind.column in _LOST else kind
    for kind in DUCKDB
    # Files have no collations, by which the tests' own SQL would tell people apart, and bits are texts there.
    if "COLLATE N" not in kind.column and kind.column != "BIT"
)
"""Parquet has no hugeints: DuckDB writes doubles."""

POSTGRES = (
    *_BOTH,
    Kind("text", "text", (*_TEXTS, "'e' || chr(769)")),
    Kind('text COLLATE "C"', "text", _TEXTS),
    Kind("varchar(20)", "varchar", _TEXTS),
    Kind("char(5)", "char", ("'ann'", "'ann '", "'Ann'")),
    Kind("name", "text", _TEXTS),
    Kind("keys.mood", "text", _WORDS),
    Kind("keys.price", "numeric", ("'1.01'", "'1.02'")),
    Kind("numeric(20, 4)", "numeric", ("'1.0001'", "'1.0002'", "'1'", "'NaN'")),
    Kind("numeric(38, 0)", "numeric", ("'10000000000000000000000000000'", "'10000000000000000000000000001'", "'0'")),
    Kind("numeric(38, 38)", "numeric", ("'1e-38'", "'2e-38'", "'0'")),
    Kind("timestamp(3)", "timestamp", ("'2024-01-01 00:00:00.001'", "'2024-01-01 00:00:00.002'")),
    Kind("bytea", "bytea", ("'\\x00'", "'\\x01'", "''"), unit=False),
    _refused("numeric", "numeric", *_FINE),
    _refused("numeric(50, 20)", "numeric", *_FINE),
    _refused("numeric(39, 0)", "numeric", "'100000000000000000000000000000'", "'100000000000000000000000000001'"),
    _refused("float8", "double", *_FLOATS),
    _refused("float4", "real", *_FLOATS),
    _refused("timetz", _NO_TYPE, "'12:00:00+00'", "'13:00:00+01'"),
    _refused('"char"', "text", "'a'", "'b'"),
    _refused("bit(2)", _NO_TYPE, "'01'", "'10'"),
    _refused("inet", _NO_TYPE, "'10.0.0.1'", "'10.0.0.2'"),
    _refused("money", _NO_TYPE, "'1.00'", "'2.00'"),
)
# Of servers that have them, which must be asked.
_CITEXT = _refused("citext", "text", *_TEXTS)
_LOOSE = _refused("text COLLATE keys.loose", "text", *_TEXTS)
_HUNDREDS = _refused("numeric(5, -2)", "numeric", "'100'", "'200'")
POSTGRES_WITH_MORE = (_CITEXT, _LOOSE, _HUNDREDS)

KINDS = {"duckdb": DUCKDB, "parquet": IN_PARQUET, "postgresql": (*POSTGRES, *POSTGRES_WITH_MORE)}
"""By engine, the types that some version of it has."""

QUERIES = (
    *(f"SELECT COUNT(*) FROM {table}" for table in ("people", "visits", "lines")),
    *(f"SELECT kind, COUNT(*), SUM(n) FROM {table} GROUP BY kind" for table in ("people", "visits", "lines")),
    "SELECT COUNT(DISTINCT kind), AVG(n) FROM visits",
    "SELECT COUNT(*) FROM people p JOIN visits v ON p.unit = v.unit",
    "SELECT v.kind, COUNT(*) FROM visits v JOIN lines l ON v.way = l.way GROUP BY v.kind",
    "SELECT COUNT(*) FROM (SELECT unit FROM visits GROUP BY unit HAVING COUNT(*) > 1) AS s",
)

_POLICY = """
version = 1
[dataset]
name = "keys"
url = "{url}"
schema = "keys"
privacy_unit = "person"
budget = {{ epsilon = 1e4, delta = 1e-2 }}
[roles.analyst]
budget = {{ epsilon = 1e4, delta = 1e-2 }}
query = {{ epsilon = 1, delta = 1e-6, max_epsilon = 10 }}
[tables.people]
unit_key = "unit"
max_rows = 1
[tables.people.columns]
{unit}{columns}
[tables.visits]
unit_key = "unit"
{limits}
[tables.visits.columns]
{unit}{there}{columns}
[tables.lines]
unit_via = {{ table = "visits", on = {{ way = "way" }} }}
{limits}
[tables.lines.columns]
{here}{columns}
"""
_LIMITS = "max_rows = 4\nmax_groups = 2\nmax_rows_per_group = 2"
_COLUMNS = """kind = { type = "integer", values = [0, 1, 2, 3] }
n = { type = "integer", lower = 0, upper = 5 }
"""


class Place(Protocol):
    """Where tables are made anew, in a schema named keys."""

    url: str

    @property
    def kinds(self) -> tuple[Kind, ...]:
        """The types that the engine has."""

    def fresh(self) -> None:
        """Make the schema anew."""

    def run(self, *statements: str) -> None:
        """Run statements of the owner's."""


class DuckDBPlace:
    """A DuckDB file."""

    def __init__(self, folder: Path) -> None:
        self._file = folder / "data.duckdb"
        self.url = f"duckdb:///{self._file}"
        self.kinds = DUCKDB

    def fresh(self) -> None:
        """Make the schema anew."""
        self._file.unlink(missing_ok=True)
        self.run("CREATE SCHEMA keys")

    def run(self, *statements: str) -> None:
        """Run statements while no backend has the file open."""
        with duckdb.connect(str(self._file)) as connection:
            connection.execute("; ".join(statements))


class PostgresPlace:
    """A database of a server; it has what types the server can have."""

    def __init__(self, server: Server, name: str) -> None:
        self._server, self._name = server, name
        self.url = url_of(server.url, dbname=name)
        if server.has_citext:
            server.run("CREATE EXTENSION citext SCHEMA public", database=name)

    def fresh(self) -> None:
        """Make the schema anew, and in it types and a collation."""
        self.run("DROP SCHEMA IF EXISTS keys CASCADE", "CREATE SCHEMA keys")
        self.run("CREATE TYPE keys.mood AS ENUM ('ann', 'Ann', 'ann ')", "CREATE DOMAIN keys.price AS numeric(10, 2)")
        if self._server.has_icu:
            self.run(LOOSE.format("keys.loose"))

    def run(self, *statements: str) -> None:
        """Run statements."""
        self._server.run(*statements, database=self._name)

    @property
    def kinds(self) -> tuple[Kind, ...]:
        """The types that the server has."""
        has = {_CITEXT: self._server.has_citext, _LOOSE: self._server.has_icu, _HUNDREDS: self._server.version >= 15}
        return (*POSTGRES, *(kind for kind in POSTGRES_WITH_MORE if has[kind]))


@contextmanager
def postgres_place(server: Server) -> Iterator[PostgresPlace]:
    """A database of its own."""
    with server.database() as name:
        yield PostgresPlace(server, name)


@dataclass(frozen=True)
class Keys:
    """Tables whose keys are of some types, and their rows.

    Attributes:
        unit: The type of the unit's key.
        there: The type of the key of visits.
        here: The type of the column of lines that equals it.
        listed: Whether the policy lists the keys.
        seed: Decides the rows.
    """

    unit: Kind
    there: Kind
    here: Kind
    listed: bool = False
    seed: int = 0

    @property
    def is_accepted(self) -> bool:
        """Whether the policy is to be loaded."""
        return self.unit.unit and self.there.way and self.here.way and self.there.family == self.here.family

    @property
    def person(self) -> str:
        """Who leaves."""
        return self.unit.values[self.seed % 2]

    def policy(self, url: str) -> str:
        """The policy's text."""
        keys = {"unit": ("unit", self.unit), "there": ("way", self.there), "here": ("way", self.here)}
        lines = {
            place: f'{name} = {{ type = "{kind.declared}" }}\n' if self.listed and kind.declared else ""
            for place, (name, kind) in keys.items()
        }
        return _POLICY.format(url=url, columns=_COLUMNS, limits=_LIMITS, **lines)

    def statements(self) -> list[str]:
        """The tables with their rows: everybody has many, and some have keys in common."""
        chosen = Random(self.seed)
        ends = (self.unit.column, self.there.column, self.here.column)
        made = [
            f"CREATE TABLE keys.people (unit {ends[0]}, kind INTEGER, n INTEGER)",
            f"CREATE TABLE keys.visits (unit {ends[0]}, way {ends[1]}, kind INTEGER, n INTEGER)",
            f"CREATE TABLE keys.lines (way {ends[2]}, kind INTEGER, n INTEGER)",
        ]
        rows: dict[str, list[tuple[str, ...]]] = {"people": [], "visits": [], "lines": []}

        def row(table: str, *keys: str) -> None:
            rows[table].append((*keys, str(chosen.randrange(4)), str(chosen.randrange(7))))

        for place, unit in enumerate((*self.unit.values, "NULL")):
            row("people", unit)
            own = self.there.values[place % len(self.there.values)]
            for _ in range(chosen.choice((1, 2, 6))):
                row("visits", unit, own if chosen.random() < 0.8 else chosen.choice((*self.there.values, "NULL")))
        for way in (*self.here.values, "NULL"):
            for _ in range(chosen.choice((0, 5, 9))):
                row("lines", way)
        filled = {name: ", ".join(f"({', '.join(each)})" for each in given) for name, given in rows.items() if given}
        return made + [f"INSERT INTO keys.{name} VALUES {values}" for name, values in filled.items()]

    def leaves(self) -> list[str]:
        """What takes a person away, as the engine tells people apart: with rows that lead to nobody else."""
        leads = "EXISTS (SELECT 1 FROM keys.visits AS v WHERE v.way = lines.way AND v.unit {} {})"
        return [
            f"DELETE FROM keys.lines WHERE {leads.format('=', self.person)} AND NOT {leads.format('<>', self.person)}",
            f"DELETE FROM keys.visits WHERE unit = {self.person}",
            f"DELETE FROM keys.people WHERE unit = {self.person}",
        ]


def judge(place: Place, keys: Keys, folder: Path) -> int:
    """Compare a database with that which a person has left; returns how many releases were compared.

    Raises:
        InvalidPolicy: The keys' types are refused.
        TooFar: The person moves more than was claimed.
    """
    place.fresh()
    place.run(*keys.statements())
    path = folder / "keys.toml"
    path.write_text(keys.policy(place.url), encoding="utf-8")
    planned, before = _cells(path, None)
    place.run(*keys.leaves())
    _, after = _cells(path, planned)
    for release, left, right in zip(planned, before, after, strict=True):
        assert_neighbours(release, left, right)
    return len(planned)


def _cells(path: Path, planned: list[PlannedRelease] | None) -> tuple[list[PlannedRelease], list[ExactCells]]:
    policy = load_policy(path)
    backend = open_backend(policy)
    try:
        if planned is None:
            catalog = Catalog(policy, backend.schema, policy.roles[0])
            planned = []
            for sql in QUERIES:
                with suppress(Error):  # of keys that the policy does not list, not all may be compared
                    planned += compile_query(QueryStatement(sql), catalog, SETTINGS, CONSTANTS).releases
            backend.check(tuple(planned), (), Cancellation())
        found = backend.fetch(dict(enumerate(planned)), (), Cancellation()).releases
        return planned, [found[index] for index in range(len(planned))]
    finally:
        backend.close()
