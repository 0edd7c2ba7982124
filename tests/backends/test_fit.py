"""Which keys a policy may name: those by which dpsql and the database tell the same units apart."""

import re
from pathlib import Path

import duckdb
import pytest

from dpsql.backends import Cancellation, open_backend
from dpsql.compiler.ir.schema import EngineTable
from dpsql.compiler.plan.compile import compile_query
from dpsql.compiler.plan.query_plan import PlannedRelease
from dpsql.compiler.scope.tables import Catalog
from dpsql.compiler.sql.statements import QueryStatement
from dpsql.errors import InvalidPolicy
from dpsql.policy import load_policy
from tests.strategies.distance import TooFar, assert_neighbours
from tests.strategies.keys import DUCKDB, DuckDBPlace, Keys
from tests.strategies.world import CONSTANTS, SETTINGS

KINDS = {kind.column: kind for kind in DUCKDB}
TINY, INT, BIG, DEC, NANO, TEXT = (
    KINDS[name]
    for name in ("UTINYINT", "INTEGER", "BIGINT", "DECIMAL(10, 2)", "TIMESTAMP_NS", "VARCHAR COLLATE NOCASE")
)


BILLS = """
version = 1
[dataset]
name = "shop"
url = "duckdb:///shop.duckdb"
privacy_unit = "buyer"
budget = {{ epsilon = 1, delta = 1e-6 }}
[roles.analyst]
budget = {{ epsilon = 1, delta = 1e-6 }}
query = {{ epsilon = 0.1, delta = 1e-9 }}
[tables.bills]
unit_key = "buyer"
max_rows = 5
[tables.bills.columns]
price = {{ type = "decimal", {domain} }}
[tables.prices]
public = true
[tables.prices.columns]
price = {{ type = "decimal" }}
"""


def opened(folder: Path, keys: Keys, **changes: str) -> None:
    place = DuckDBPlace(folder)
    place.fresh()
    place.run(*keys.statements())
    text = keys.policy(place.url)
    for before, after in changes.items():
        text = re.sub(rf"^{before} = .*$", f"{before} = {after}", text, flags=re.MULTILINE)
    path = folder / "policy.toml"
    path.write_text(text, encoding="utf-8")
    open_backend(load_policy(path)).close()


@pytest.mark.parametrize(
    ("keys", "changes", "told", "hint"),
    [
        (
            Keys(NANO, INT, INT),
            {},
            'tables.people.unit_key: "unit" of "people" is TIMESTAMP_NS: with this type or its collation, dpsql and '
            "the database compare values differently; two persons could count as one, or one as two",
            "Store epoch_ns(unit) in a column of type BIGINT, and name that.",
        ),
        (Keys(INT, TEXT, TEXT), {}, 'tables.lines.unit_via.on.way: "way" of "lines" is VARCHAR: with', 'COLLATE "C"'),
        (Keys(INT, INT, NANO), {}, 'tables.lines.unit_via.on.way: "way" of "lines" is TIMESTAMP_NS', "epoch_ns(way)"),
        (Keys(INT, NANO, INT), {}, 'tables.lines.unit_via.on.way: "way" of "visits" is TIMESTAMP_NS', "epoch_ns(way)"),
        (Keys(KINDS["DOUBLE"], INT, INT), {}, '"unit" of "people" is DOUBLE', "Name an integer, text, uuid, numeric"),
        (Keys(KINDS["BOOLEAN"], INT, INT), {}, "tables.people.unit_key: a BOOLEAN cannot be the unit", "an integer"),
        (
            Keys(BIG, INT, INT, listed=True),
            {"unit": '{ type = "integer" }'},
            "tables.people.unit_key: a BIGINT cannot be the unit as integer",
            "declared with its own type: bigint here",
        ),
        (
            Keys(INT, DEC, DEC, listed=True),
            {"way": '{ type = "integer" }'},
            "tables.lines.unit_via.on.way: a DECIMAL(10,2) cannot be a key as integer",
            "declared with its own type: numeric here",
        ),
        (
            Keys(INT, DEC, INT),
            {},
            'tables.lines.unit_via.on.way: INTEGER, where "way" of "visits" is DECIMAL(10,2)',
            "Store both as DECIMAL(10,2).",
        ),
        (
            Keys(INT, DEC, INT, listed=True),
            {},
            'tables.lines.unit_via.on.way: "way" and "way" are integer and numeric',
            "join on columns of one type",
        ),
        # To compare these would fail, or not, by the greatest value there is.
        (
            Keys(INT, DEC, KINDS["HUGEINT"]),
            {},
            'tables.lines.unit_via.on.way: HUGEINT, where "way" of "visits" is DECIMAL(10,2)',
            "Store both as DECIMAL(10,2).",
        ),
    ],
)
def test_what_cannot_be_a_key(tmp_path: Path, keys: Keys, changes: dict[str, str], told: str, hint: str) -> None:
    with pytest.raises(InvalidPolicy) as caught:
        opened(tmp_path, keys, **changes)
    assert told in str(caught.value)
    assert hint in (caught.value.hint or "")


@pytest.mark.parametrize("keys", [Keys(TINY, TINY, BIG), Keys(DEC, DEC, DEC, listed=True), Keys(INT, INT, INT)])
def test_what_can_be_a_key(tmp_path: Path, keys: Keys) -> None:
    opened(tmp_path, keys)


def test_units_of_all_tables_are_numbers_of_one_type(tmp_path: Path) -> None:
    keys = Keys(DEC, INT, INT)
    place = DuckDBPlace(tmp_path)
    place.fresh()
    place.run(*keys.statements(), "ALTER TABLE keys.visits ALTER unit TYPE HUGEINT")
    path = tmp_path / "policy.toml"
    path.write_text(keys.policy(place.url), encoding="utf-8")
    with pytest.raises(InvalidPolicy, match=r"visits\.unit_key: HUGEINT, where the key of another table is DECIMAL"):
        open_backend(load_policy(path))


@pytest.mark.parametrize(
    ("kind", "domain", "is_fit"),
    [
        ("DECIMAL(10, 1)", "values = [1.5, 2]", True),
        ("DECIMAL(38, 0)", "values = [1.5, 2]", False),
        ("HUGEINT", "values = [1, 2]", False),
        ("DECIMAL(10, 1)", 'values_from = "prices.price"', True),
        ("DECIMAL(38, 0)", 'values_from = "prices.price"', False),
    ],
)
def test_a_domain_has_the_digits_of_its_column(tmp_path: Path, kind: str, domain: str, is_fit: bool) -> None:
    """Else the engine converts both where it compares them, and one large number fails the query."""
    with duckdb.connect(str(tmp_path / "shop.duckdb")) as database:
        database.execute(f"CREATE TABLE bills (buyer INTEGER, price {kind})")
        database.execute("CREATE TABLE prices (price DECIMAL(10, 1) PRIMARY KEY)")
    path = tmp_path / "policy.toml"
    path.write_text(BILLS.format(domain=domain), encoding="utf-8")
    if is_fit:
        open_backend(load_policy(path)).close()
        return
    with pytest.raises(
        InvalidPolicy, match=r"policy\.toml:15: tables\.bills\.columns\.price: its domain has other digits than"
    ):
        open_backend(load_policy(path))


def test_what_the_database_lacks_has_a_line(tmp_path: Path) -> None:
    path = tmp_path / "policy.toml"
    path.write_text(BILLS.format(domain="lower = 0, upper = 10"), encoding="utf-8")
    told = []
    for made in (
        "other (x INTEGER)",
        "bills (x INTEGER)",
        "bills (buyer INTEGER)",
        "bills (buyer INTEGER, price TEXT)",
    ):
        with duckdb.connect(str(tmp_path / "shop.duckdb")) as database:
            database.execute("DROP TABLE IF EXISTS bills")
            database.execute(f"CREATE TABLE {made}")
        with pytest.raises(InvalidPolicy) as refused:
            open_backend(load_policy(path))
        told.append(refused.value.message.removeprefix(f"{path}:"))
    assert told == [
        '11: tables.bills: the database has no table "main.bills"',
        '12: tables.bills.unit_key: the database\'s table has no column "buyer"',
        '15: tables.bills.columns.price: the database\'s table has no column "price"',
        "15: tables.bills.columns.price: the database's type is VARCHAR, not numeric",
    ]


def test_a_condition_is_about_texts_of_one_spelling(tmp_path: Path) -> None:
    with duckdb.connect(str(tmp_path / "shop.duckdb")) as database:
        database.execute("CREATE TABLE bills (buyer INTEGER, price DECIMAL(10, 1))")
        database.execute("CREATE TABLE prices (price DECIMAL(10, 1))")
        database.execute("CREATE TABLE notes (kind VARCHAR COLLATE NOCASE, number INTEGER)")
    path = tmp_path / "policy.toml"
    ways = ", ".join(
        f"""{{ table = "bills", on = {{ number = "buyer" }}, where = "kind = '{kind}'" }}"""
        for kind in ("Bill", "Debt")
    )
    text = BILLS.format(domain="lower = 0, upper = 9")
    path.write_text(f"{text}[tables.notes]\nunit_via = [{ways}]\nmax_rows = 3\n", encoding="utf-8")
    with pytest.raises(InvalidPolicy, match='where: "kind" is VARCHAR: with this type or its collation, one value'):
        open_backend(load_policy(path))


def test_a_view_of_a_table_that_is_gone_has_no_exact_text(tmp_path: Path) -> None:
    place = DuckDBPlace(tmp_path)
    place.fresh()
    keys = Keys(KINDS["VARCHAR"], INT, INT)
    place.run(*keys.statements(), "CREATE VIEW keys.gone AS SELECT * FROM keys.people", "DROP TABLE keys.people")
    path = tmp_path / "policy.toml"
    path.write_text(keys.policy(place.url).replace("[tables.people", "[tables.gone"), encoding="utf-8")
    with pytest.raises(InvalidPolicy, match=r"gone\.unit_key: \"unit\" of \"gone\" is VARCHAR"):
        open_backend(load_policy(path))


# Unique keys

MOMENTS = """
[tables.people.columns.met]
type = "timestamp"
[tables.moments]
public = true
[tables.moments.columns]
met = { type = "timestamp" }
"""


def claimed_and_moved(folder: Path, kind: str) -> PlannedRelease:
    """A person at a moment that stands in a public table, and alone in it as the database tells moments apart."""
    place = DuckDBPlace(folder)
    place.fresh()
    place.run(
        f"CREATE TABLE keys.people (unit INTEGER PRIMARY KEY, met {kind})",
        f"CREATE TABLE keys.moments (met {kind} NOT NULL UNIQUE)",
        "INSERT INTO keys.people VALUES (1, '2024-01-01 00:00:00.000001')",
        "INSERT INTO keys.moments VALUES ('2024-01-01 00:00:00.000001001'), ('2024-01-01 00:00:00.000002002')"
        + (", ('2024-01-01 00:00:00.000001002')" if kind == "TIMESTAMP_NS" else ""),
    )
    text = Keys(INT, INT, INT).policy(place.url)
    text = text[: text.index("[tables.people.columns]")] + MOMENTS
    path = folder / "policy.toml"
    path.write_text(text, encoding="utf-8")
    policy = load_policy(path)
    cells = []
    for _ in range(2):
        backend = open_backend(policy)
        sql = "SELECT COUNT(*) FROM people AS p JOIN moments AS m ON p.met = m.met"
        catalog = Catalog(policy, backend.schema, policy.roles[0])
        (release,) = compile_query(QueryStatement(sql), catalog, SETTINGS, CONSTANTS).releases
        cells.append(backend.fetch({0: release}, (), Cancellation()).releases[0])
        backend.close()
        place.run("DELETE FROM keys.people")
    before, after = cells
    assert_neighbours(release, before, after)
    return release


def test_a_row_matches_once_where_canonical_values_are_unique(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert claimed_and_moved(tmp_path, "TIMESTAMP").contribution.one_row
    assert not claimed_and_moved(tmp_path, "TIMESTAMP_NS").contribution.one_row
    monkeypatch.setattr(EngineTable, "is_unique", lambda table, names: any(key <= names for key in table.unique_keys))
    with pytest.raises(TooFar):
        claimed_and_moved(tmp_path, "TIMESTAMP_NS")
