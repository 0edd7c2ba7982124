"""PEP 249 in process: connections, cursors, parameters, releases."""

import inspect
import threading
import traceback
from collections.abc import Iterator
from contextlib import closing, nullcontext
from datetime import datetime
from pathlib import Path
from types import FrameType, SimpleNamespace
from typing import Any

import pytest

import dpsql
from dpsql.backends import ExactRows
from dpsql.dbapi import connection as connection_module
from dpsql.dbapi.binding import bind
from dpsql.gateway.engine import Engine
from dpsql.ledger import SqliteLedger, default_ledger, open_ledger
from dpsql.policy import load_policy

COUNT = "SELECT COUNT(*) FROM patients"


@pytest.fixture
def ledger(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 'ledger.sqlite'}"


# The module


def test_globals() -> None:
    assert (dpsql.apilevel, dpsql.threadsafety, dpsql.paramstyle) == ("2.0", 2, "pyformat")


def test_the_error_tree_is_that_of_pep_249() -> None:
    assert issubclass(dpsql.Warning, Exception)
    assert not issubclass(dpsql.Warning, dpsql.Error)
    assert issubclass(dpsql.InterfaceError, dpsql.Error)
    assert not issubclass(dpsql.InterfaceError, dpsql.DatabaseError)
    for leaf in (
        *(dpsql.DataError, dpsql.OperationalError, dpsql.IntegrityError, dpsql.InternalError),
        *(dpsql.ProgrammingError, dpsql.NotSupportedError),
    ):
        assert issubclass(leaf, dpsql.DatabaseError)


def test_exported_names_are_complete() -> None:
    assert {"connect", "Connection", "Cursor", "ReleaseReport", "Error"} <= set(dpsql.__all__)


# A first query, as in the manual


def test_a_query_as_in_the_manual(clinic_policy: Path, ledger: str) -> None:
    with dpsql.connect(str(clinic_policy), user="ana", ledger=ledger, epsilon=0.1) as conn:
        cur = conn.cursor()
        cur.execute("SELECT sex, AVG(age) FROM patients WHERE age > %(a)s GROUP BY sex", {"a": 18})
        rows = cur.fetchall()
        assert [row[0] for row in rows] == ["F", "M", "X", None]
        assert all(row[1] is None or 18 <= row[1] <= 110 for row in rows)
        assert sum(row[1] is not None for row in rows) >= 2
        assert cur.release is not None
        assert cur.release.cost["epsilon"] == pytest.approx(0.1)
        assert cur.release.cost["rho"] == pytest.approx(0.005)
        assert cur.release.cost["delta"] == 0
        assert 4 < cur.release.remaining["epsilon"] < 5
        assert cur.release.error == {"avg": None}
        assert not cur.release.reused
        cur.execute("SELECT sex, AVG(age) FROM patients WHERE age > %s GROUP BY sex", [18])
        assert cur.fetchall() == rows
        assert cur.release.reused
        assert cur.release.cost == {"epsilon": 0.0, "delta": 0.0, "rho": 0.0}
    with pytest.raises(dpsql.InterfaceError):
        conn.cursor()


def test_error_is_the_standard_error_of_each_column(clinic_policy: Path, ledger: str) -> None:
    with dpsql.connect(clinic_policy, user="ana", ledger=ledger, mechanism="laplace", epsilon="0.5") as conn:
        cur = conn.cursor().execute("SELECT sex, COUNT(*) AS n FROM patients GROUP BY sex")
        assert cur.release is not None
        assert set(cur.release.error) == {"n"}
        assert cur.release.error["n"] == pytest.approx(2**0.5 * 2, rel=0.02)
        assert cur.notices[0].startswith("price: epsilon 0.5")
        cur.execute("SELECT COUNT(*) FROM doctors")
        assert cur.release is None
        assert cur.notices == []


# connect


def test_users_are_added_once(clinic_policy: Path, ledger: str) -> None:
    for _ in range(2):
        dpsql.connect(clinic_policy, user="ana", ledger=ledger).close()
    opened = open_ledger(ledger)
    assert [(account.name, account.role) for account in opened.accounts()] == [("ana", "analyst")]
    opened.close()


def test_a_connection_that_is_refused_adds_no_user(clinic_policy: Path, ledger: str) -> None:
    for settings in ({"epsilon": 7}, {"epsilon": "much"}, {"mechanism": "magic"}, {"target_error": "-1"}):
        with pytest.raises(dpsql.Error):
            dpsql.connect(clinic_policy, user="ana", ledger=ledger, **settings)
    with closing(open_ledger(ledger)) as opened:
        assert list(opened.export()) == []


def test_a_new_user_of_many_roles_says_which(clinic_policy: Path, ledger: str) -> None:
    text = clinic_policy.read_text(encoding="utf-8")
    role = text[text.index("[roles.analyst]") : text.index("[tables.patients]")]
    two = clinic_policy.with_name("two.toml")
    two.write_text(text + role.replace("analyst", "guest").replace("epsilon = 5", "epsilon = 2"), encoding="utf-8")
    with pytest.raises(dpsql.ProgrammingError) as caught:
        dpsql.connect(two, user="ana", ledger=ledger)
    assert caught.value.hint == "connect(…, role=…), or --role in a shell, with one of: analyst, guest"
    with dpsql.connect(two, user="ana", role="guest", ledger=ledger) as conn:
        assert conn.cursor().execute("SELECT epsilon_limit FROM dpsql.budget").fetchone() == (2.0,)
    with dpsql.connect(two, user="ana", ledger=ledger) as conn:
        assert conn.cursor().execute("SELECT epsilon_limit FROM dpsql.budget").fetchone() == (2.0,)


def test_the_ledger_is_beside_the_policy_unless_told(clinic_policy: Path, tmp_path: Path) -> None:
    policy = tmp_path / "clinic.toml"
    text = clinic_policy.read_text(encoding="utf-8")
    policy.write_text(
        text.replace("duckdb:///clinic.duckdb", f"duckdb:///{clinic_policy.with_suffix('.duckdb')}"), encoding="utf-8"
    )
    assert default_ledger(load_policy(policy)) == f"sqlite:///{tmp_path / 'dpsql-ledger.sqlite'}"
    dpsql.connect(policy, user="ana").close()
    assert (tmp_path / "dpsql-ledger.sqlite").exists()


def test_what_cannot_be_opened(clinic_policy: Path, ledger: str, tmp_path: Path) -> None:
    with pytest.raises(dpsql.OperationalError) as caught:
        dpsql.connect(tmp_path / "missing.toml", user="ana", ledger=ledger)
    assert isinstance(caught.value, dpsql.Error)
    with pytest.raises(dpsql.DataError):
        dpsql.connect(clinic_policy, user="ana", ledger="nonsense://x")
    text = clinic_policy.read_text(encoding="utf-8")
    for url in ("duckdb:///missing.duckdb", "duckdb:///broken.toml"):
        broken = tmp_path / "broken.toml"
        broken.write_text(text.replace("duckdb:///clinic.duckdb", url), encoding="utf-8")
        with pytest.raises(dpsql.OperationalError):
            dpsql.connect(broken, user="ana", ledger=ledger)
    with pytest.raises(dpsql.DataError):
        dpsql.connect(clinic_policy, user="ana", ledger=ledger, epsilon=50)
    with pytest.raises(dpsql.DataError):
        dpsql.connect(clinic_policy, user="ana", ledger=ledger, mechanism="none")
    dpsql.connect(clinic_policy, user="ana", ledger=ledger, epsilon=0.3, delta="1e-10", mechanism="gaussian").close()


# Connections and cursors


def test_a_connection(clinic_policy: Path, ledger: str) -> None:
    conn = dpsql.connect(clinic_policy, user="ana", ledger=ledger)
    cur = conn.cursor()
    conn.commit()
    conn.rollback()
    cur.execute("BEGIN")
    cur.execute("SET dpsql.epsilon = 0.3")
    conn.rollback()
    assert cur.execute("SHOW dpsql.epsilon").fetchone() == ("0.1",)
    cur.execute("BEGIN")
    cur.execute("SET dpsql.epsilon = 0.3")
    conn.commit()
    assert cur.execute("SHOW dpsql.epsilon").fetchone() == ("0.3",)
    conn.close()
    conn.close()
    for use in (conn.cursor, conn.commit, conn.rollback, lambda: cur.execute("SELECT 1"), cur.fetchall):
        with pytest.raises(dpsql.InterfaceError):
            use()


def test_a_cursor(clinic_policy: Path, ledger: str) -> None:
    with dpsql.connect(clinic_policy, user="ana", ledger=ledger) as conn, conn.cursor() as cur:
        assert cur.connection is conn
        assert (cur.description, cur.rowcount, cur.rownumber, cur.arraysize) == (None, -1, None, 1)
        assert cur.release is None
        assert cur.notices == []
        for fetch in (cur.fetchone, cur.fetchmany, cur.fetchall):
            with pytest.raises(dpsql.InterfaceError):
                fetch()
        assert cur.execute("SELECT * FROM (VALUES (1, 'a'), (2, 'b'), (3, 'c'), (4, NULL)) AS t (n, s)") is cur
        assert cur.description == [
            ("n", "integer", None, 4, 10, 0, None),
            ("s", "text", None, None, None, None, None),
        ]
        assert (cur.rowcount, cur.rownumber) == (4, 0)
        assert cur.fetchone() == (1, "a")
        assert cur.rownumber == 1
        assert cur.fetchmany() == [(2, "b")]
        cur.arraysize = 2
        assert cur.fetchmany() == [(3, "c"), (4, None)]
        assert cur.fetchmany(5) == []
        assert cur.fetchone() is None
        assert cur.fetchall() == []
        assert list(cur.execute("VALUES (1), (2)")) == [(1,), (2,)]
        assert next(iter(cur.execute("VALUES (1), (2)"))) == (1,)
        assert cur.fetchall() == [(2,)]
        cur.setinputsizes([10])
        cur.setoutputsize(10)
        cur.setoutputsize(10, 1)
        cur.execute("SET dpsql.epsilon = 0.2")
        assert cur.description is None
        assert (cur.rowcount, cur.rownumber) == (-1, None)
        with pytest.raises(dpsql.InterfaceError):
            cur.fetchone()
        with pytest.raises(dpsql.NotSupportedError):
            cur.executemany("SELECT %s + 1", [[1], [2]])
        with pytest.raises(dpsql.InterfaceError):
            cur.fetchone()
        # A statement that fails leaves no old rows behind.
        cur.execute("SELECT 1")
        with pytest.raises(dpsql.ProgrammingError):
            cur.execute("SELECT nothing")
        with pytest.raises(dpsql.InterfaceError):
            cur.fetchone()
    with pytest.raises(dpsql.InterfaceError):
        cur.execute("SELECT 1")


@pytest.mark.parametrize("sql", ["", ";", "SELECT 1; SELECT 2", "BEGIN; COMMIT"])
def test_one_statement_at_a_time(clinic_policy: Path, ledger: str, sql: str) -> None:
    with dpsql.connect(clinic_policy, user="ana", ledger=ledger) as conn:
        cur = conn.cursor()
        if sql.strip("; "):
            with pytest.raises(dpsql.ProgrammingError, match="one statement"):
                cur.execute(sql)
        else:
            assert cur.execute(sql).rowcount == -1


def test_errors_carry_their_sqlstate(clinic_policy: Path, ledger: str) -> None:
    with dpsql.connect(clinic_policy, user="ana", ledger=ledger) as conn:
        with pytest.raises(dpsql.NotSupportedError) as caught:
            conn.cursor().execute("DROP TABLE patients")
        assert caught.value.sqlstate == "0A000"
        with pytest.raises(dpsql.ProgrammingError) as refused:
            conn.cursor().execute("SELECT age FROM patients")
        assert refused.value.sqlstate == "42501"
        assert refused.value.hint == "Aggregate them. Write: SELECT age, COUNT(*) FROM patients GROUP BY age"


def test_threads_share_a_connection(clinic_policy: Path, ledger: str) -> None:
    found: list[object] = []
    with dpsql.connect(clinic_policy, user="ana", ledger=ledger) as conn:

        def ask(number: int) -> None:
            found.append(conn.cursor().execute("SELECT %s::int, COUNT(*) FROM doctors", [number]).fetchone())

        threads = [threading.Thread(target=ask, args=(number,)) for number in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert sorted(found, key=str) == [(number, 200) for number in range(8)]


def test_cancel(clinic_policy: Path, ledger: str) -> None:
    with dpsql.connect(clinic_policy, user="ana", ledger=ledger) as conn:
        conn.cancel()
        timer = threading.Timer(0.3, conn.cancel)
        timer.start()
        pairs = ", ".join(f"doctors AS d{i}" for i in range(6))
        with pytest.raises(dpsql.OperationalError) as caught:
            conn.cursor().execute(f"SELECT COUNT(*) FROM {pairs} WHERE d1.doctor_id + d5.doctor_id = d3.doctor_id")
        assert caught.value.sqlstate == "57014"
        timer.join()


# Types


def test_type_codes_are_names_and_equal_to_type_objects(clinic_policy: Path, ledger: str) -> None:
    objects = (dpsql.STRING, dpsql.BINARY, dpsql.NUMBER, dpsql.DATETIME, dpsql.ROWID)
    with dpsql.connect(clinic_policy, user="ana", ledger=ledger) as conn:
        cur = conn.cursor()
        for sql, name, expected in (
            ("1::smallint", "smallint", dpsql.NUMBER),
            ("1.5", "numeric", dpsql.NUMBER),
            ("2.5::float8", "double precision", dpsql.NUMBER),
            ("'x'", "text", dpsql.STRING),
            ("DATE '2026-01-01'", "date", dpsql.DATETIME),
            ("TIMESTAMPTZ '2026-01-01'", "timestamp with time zone", dpsql.DATETIME),
            ("INTERVAL '1 day'", "interval", dpsql.DATETIME),
            ("TRUE", "boolean", None),
        ):
            (code,) = [column[1] for column in cur.execute(f"SELECT {sql}").description or ()]
            assert code == name
            assert [kind for kind in objects if kind == code] == ([expected] if expected is not None else [])
            assert [kind for kind in objects if code != kind] == [kind for kind in objects if kind is not expected]
    assert [kind == kind for kind in objects] == [True] * 5
    assert dpsql.NUMBER != dpsql.STRING
    assert repr(dpsql.ROWID) == "dpsql.ROWID"
    with pytest.raises(TypeError):
        hash(dpsql.NUMBER)


def test_descriptions_have_the_sizes_that_are_known(clinic_policy: Path, ledger: str) -> None:
    with dpsql.connect(clinic_policy, user="ana", ledger=ledger) as conn:
        cur = conn.cursor().execute("SELECT 1::bigint, 'x', 1.5::float8, COUNT(*) FROM patients")
        assert [column[2:] for column in cur.description or ()] == [
            (None, 8, 19, 0, None),
            (None, None, None, None, None),
            (None, 8, None, None, None),
            (None, 8, 19, 0, None),
        ]


def test_constructors(clinic_policy: Path, ledger: str) -> None:
    ticks = datetime(2026, 2, 3, 4, 5, 6).timestamp()
    assert dpsql.DateFromTicks(ticks) == dpsql.Date(2026, 2, 3)
    assert dpsql.TimeFromTicks(ticks) == dpsql.Time(4, 5, 6)
    assert dpsql.TimestampFromTicks(ticks) == dpsql.Timestamp(2026, 2, 3, 4, 5, 6)
    assert dpsql.Binary(b"a\0b") == b"a\0b"
    for made in (dpsql.DateFromTicks, dpsql.TimeFromTicks, dpsql.TimestampFromTicks):
        for wrong in (1e300, -1e300, float("nan"), float("inf")):
            with pytest.raises(dpsql.DataError) as caught:
                made(wrong)
            assert caught.value.sqlstate == "22003"
    with dpsql.connect(clinic_policy, user="ana", ledger=ledger) as conn:
        values = [dpsql.Date(2026, 2, 3), dpsql.Time(4, 5, 6), dpsql.Timestamp(2026, 2, 3, 4, 5, 6)]
        assert conn.cursor().execute("SELECT %s, %s, %s", values).fetchone() == tuple(values)


# Fetching


def test_scroll(clinic_policy: Path, ledger: str) -> None:
    with dpsql.connect(clinic_policy, user="ana", ledger=ledger) as conn:
        cur = conn.cursor()
        with pytest.raises(dpsql.InterfaceError):
            cur.scroll(0)
        cur.execute("VALUES (0), (1), (2), (3)")
        cur.scroll(2)
        assert (cur.rownumber, cur.fetchone()) == (2, (2,))
        cur.scroll(-3)
        assert cur.fetchone() == (0,)
        cur.scroll(3, "absolute")
        assert cur.fetchall() == [(3,)]
        for wrong in ((1, "relative"), (-5, "relative"), (4, "absolute"), (-1, "absolute")):
            with pytest.raises(IndexError) as caught:
                cur.scroll(*wrong)
            assert isinstance(caught.value, dpsql.InterfaceError)
            assert caught.value.sqlstate == "HY107"
            assert cur.rownumber == 4
        for mode, place in (("sideways", 1), ("relative", "1"), ("absolute", 1.0)):
            with pytest.raises(dpsql.InterfaceError) as refused:
                cur.scroll(place, mode)  # type: ignore[arg-type]
            assert refused.value.sqlstate == "HY000"


def test_iteration_goes_on_where_fetching_was(clinic_policy: Path, ledger: str) -> None:
    with dpsql.connect(clinic_policy, user="ana", ledger=ledger) as conn:
        cur = conn.cursor().execute("VALUES (1), (2), (3)")
        assert iter(cur) is cur
        assert (next(cur), cur.fetchone(), list(cur)) == ((1,), (2,), [(3,)])
        with pytest.raises(StopIteration):
            next(cur)
        assert cur.fetchmany(0) == []
        assert cur.lastrowid is None


def test_messages_are_those_of_the_last_statement(clinic_policy: Path, ledger: str) -> None:
    with dpsql.connect(clinic_policy, user="ana", ledger=ledger) as conn:
        cur = conn.cursor()
        cur.execute(COUNT)
        ((kind, message),) = cur.messages
        assert (kind, str(message)) == (dpsql.Warning, cur.notices[0])
        cur.fetchall()
        assert cur.messages
        del cur.messages[:]
        cur.execute("SELECT 1")
        assert cur.messages == []
        cur.execute("COMMIT")
        assert [str(message) for _, message in cur.messages] == ["there is no transaction in progress"]
        with pytest.raises(dpsql.ProgrammingError):
            cur.execute("SELECT nothing")
        assert cur.messages == []


def test_executemany_charges_for_nothing_that_is_not_seen(clinic_policy: Path, ledger: str) -> None:
    with dpsql.connect(clinic_policy, user="ana", ledger=ledger) as conn:
        cur = conn.cursor()
        for sql in (COUNT, f"DECLARE c CURSOR WITH HOLD FOR {COUNT}", f"COPY ({COUNT}) TO STDOUT", f"EXPLAIN {COUNT}"):
            with pytest.raises(dpsql.NotSupportedError) as caught:
                cur.executemany(sql, [[], []])
            assert caught.value.sqlstate == "0A000"
        cur.executemany(COUNT, [])
        cur.executemany("SET dpsql.epsilon = 0.25", [[], {}])
        assert cur.execute("SHOW dpsql.epsilon").fetchall() == [("0.25",)]
        assert cur.execute("SELECT COUNT(*) FROM dpsql.releases").fetchall() == [(0,)]


def test_what_is_closed_is_not_used(clinic_policy: Path, ledger: str) -> None:
    conn = dpsql.connect(clinic_policy, user="ana", ledger=ledger)
    uses = ("fetchone", "fetchmany", "fetchall", "nextset", "fetch_df", "fetch_arrow_table", "fetchnumpy", "__next__")
    closed, orphan = conn.cursor().execute("SELECT 1"), conn.cursor().execute("SELECT 1")
    closed.close()
    closed.close()
    assert not conn.closed
    conn.close()
    assert conn.closed
    calls: list[tuple[str, tuple[Any, ...]]] = [(name, ()) for name in uses]
    calls += [("execute", ("SELECT 1",)), ("executemany", ("SELECT 1", [[]])), ("explain", ("SELECT 1",))]
    calls += [("scroll", (0,)), ("callproc", ("lower",)), ("setinputsizes", ([1],)), ("setoutputsize", (1,))]
    for cur in (closed, orphan):
        for name, arguments in calls:
            with pytest.raises(dpsql.InterfaceError, match="closed") as caught:
                getattr(cur, name)(*arguments)
            assert caught.value.sqlstate == "HY000"
    for use in (conn.cursor, conn.commit, conn.rollback, lambda: conn.configure({})):
        with pytest.raises(dpsql.InterfaceError):
            use()
    conn.cancel()


# What it costs


def test_explain_tells_what_execute_charges(clinic_policy: Path, ledger: str) -> None:
    sql, parameters = "SELECT sex, COUNT(*) AS n, AVG(age) FROM patients WHERE age > %s GROUP BY sex", [30]
    with dpsql.connect(clinic_policy, user="ana", ledger=ledger) as conn:
        cur = conn.cursor().execute("VALUES (1), (2)")
        estimate = cur.explain(sql, parameters)
        assert cur.fetchall() == [(1,), (2,)]
        assert cur.execute("SELECT COUNT(*) FROM dpsql.releases").fetchall() == [(0,)]
        release = cur.execute(sql, parameters).release
        assert release is not None
        assert estimate.price == estimate.most == release.cost
        assert (estimate.columns, estimate.error) == (release.columns, release.error)
        assert estimate.plus_minus_95 == release.plus_minus_95
        assert [column.mechanism is None for column in estimate.columns] == [True, False, False]
        assert estimate.error["n"] is not None
        assert estimate.error["avg"] is None
        assert (estimate.fits, estimate.free, estimate.reused) == (True, False, False)
        assert (release.reused, release.rounds, release.intervals, release.group) == (False, 1, {}, None)
        again = cur.explain(sql, parameters)
        assert (again.free, again.reused, again.price) == (True, True, {"epsilon": 0.0, "delta": 0.0, "rho": 0.0})
        assert again.remaining == release.remaining
        assert list(again.plan) == [line for (line,) in cur.execute(f"EXPLAIN {sql}", parameters).fetchall()]
        assert str(again) == "\n".join(again.plan)
        for wrong, sqlstate in (("SET dpsql.epsilon = 1", "0A000"), ("SELECT age FROM patients", "42501")):
            with pytest.raises(dpsql.DatabaseError) as caught:
                cur.explain(wrong)
            assert caught.value.sqlstate == sqlstate


def test_explain_tells_what_the_budget_does_not_cover(clinic_policy: Path, ledger: str) -> None:
    with dpsql.connect(clinic_policy, user="ana", ledger=ledger, epsilon=1) as conn:
        cur = conn.cursor()
        for age in range(50):
            if not cur.explain(f"{COUNT} WHERE age > %s", [age]).fits:
                break
            cur.execute(f"{COUNT} WHERE age > %s", [age])
        with pytest.raises(dpsql.OperationalError) as caught:
            cur.execute(f"{COUNT} WHERE age > %s", [age])
        assert caught.value.sqlstate == "53400"
        assert cur.release is None


def test_intervals_row_by_row(clinic_policy: Path, ledger: str) -> None:
    with dpsql.connect(clinic_policy, user="ana", ledger=ledger) as conn:
        conn.configure({"dpsql.intervals": "on"})
        cur = conn.cursor().execute("SELECT sex, COUNT(*) AS n, AVG(age) AS age FROM patients GROUP BY sex")
        rows = cur.fetchall()
        assert cur.release is not None
        assert cur.release.intervals == {
            "n": tuple((row[2], row[3]) for row in rows),
            "age": tuple((row[5], row[6]) if row[5] is not None else None for row in rows),
        }


def test_a_target_takes_rounds(clinic_policy: Path, ledger: str) -> None:
    with dpsql.connect(clinic_policy, user="ana", ledger=ledger, target_error="20 %") as conn:
        cur = conn.cursor()
        estimate = cur.explain(COUNT)
        release = cur.execute(COUNT).release
        assert release is not None
        assert release.rounds >= 1 and release.intervals == {}
        assert (estimate.most["rho"] or 0) >= (release.cost["rho"] or 0) >= (estimate.price["rho"] or 0)
        assert estimate.most != estimate.price


def test_the_budget_of_a_group_is_told(clinic_policy: Path, ledger: str, tmp_path: Path) -> None:
    policy = clinic_policy.with_name("grouped.toml")
    text = clinic_policy.read_text(encoding="utf-8")
    shared = "[groups.team]\nbudget = { epsilon = 8, delta = 1e-6 }\n"
    policy.write_text(text.replace("[tables.patients]", f"{shared}\n[tables.patients]", 1), encoding="utf-8")
    with dpsql.connect(policy, user="ana", ledger=ledger) as conn:
        conn.engine.ledger.set_group("ana", "team")
        cur = conn.cursor()
        estimate = cur.explain(COUNT)
        assert estimate.group is not None
        assert estimate.group["name"] == "team"
        release = cur.execute(COUNT).release
        assert release is not None
        assert release.group is not None
        assert release.group["remaining"]["epsilon"] < estimate.group["remaining"]["epsilon"]


# Faults of dpsql's own


def test_a_fault_is_an_internal_error_without_its_text(
    clinic_policy: Path, ledger: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(*_arguments: object, **_named: object) -> object:
        raise ValueError("Erna Meier, 44")

    with dpsql.connect(clinic_policy, user="ana", ledger=ledger) as conn:
        cur = conn.cursor().execute("BEGIN")
        with monkeypatch.context() as patch, pytest.raises(dpsql.InternalError) as caught:
            patch.setattr(type(conn.engine), "execute", broken)
            cur.execute(COUNT)
        assert (caught.value.sqlstate, caught.value.__cause__) == ("XX000", None)
        assert caught.value.__suppress_context__
        told = f"{caught.value.message} {caught.value.detail} {caught.value.hint} {caplog.text}"
        assert "ValueError" in told
        assert "Meier" not in told
        with pytest.raises(dpsql.InternalError, match="aborted"):
            cur.execute("SELECT 1")
        conn.rollback()
        assert cur.execute("SELECT 1").fetchone() == (1,)


def reachable(error: BaseException | None, own: FrameType | None) -> Iterator[object]:
    """What a debugger or a page for errors would show: the exceptions, and the variables of their frames."""
    while error is not None:
        yield error
        for frame, _ in traceback.walk_tb(error.__traceback__):
            if frame is not own:
                yield from frame.f_locals.values()
        error = error.__cause__ or error.__context__


@pytest.mark.parametrize("place", ["dpsql.gateway.reading.release", "dpsql.dbapi.connection.Session.execute"])
def test_no_exact_value_hangs_on_an_exception(
    clinic_policy: Path, ledger: str, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    class Exact:
        """What the engine counted."""

    def broken(*_arguments: object, **_named: object) -> object:
        counted = Exact()
        raise KeyError("Erna Meier", counted)

    with dpsql.connect(clinic_policy, user="ana", ledger=ledger) as conn:
        cur = conn.cursor()
        with monkeypatch.context() as patch, pytest.raises(dpsql.Error) as caught:
            patch.setattr(place, broken)
            cur.execute(COUNT)
        found = list(reachable(caught.value, inspect.currentframe()))
        assert not [each for each in found if isinstance(each, Exact | ExactRows)]
        assert "Meier" not in str(found)


@pytest.mark.parametrize(
    ("given", "opened"),
    [({"epsilon": 50}, ["Engine", "SqliteLedger"]), ({"role": "none"}, ["SqliteLedger"])],
)
def test_what_was_opened_is_closed_where_connect_fails(
    clinic_policy: Path, ledger: str, monkeypatch: pytest.MonkeyPatch, given: dict[str, Any], opened: list[str]
) -> None:
    closed = list[str]()

    def noting(close: Any) -> Any:
        def noted(self: object) -> None:
            closed.append(type(self).__name__)
            close(self)

        return noted

    for kind in (Engine, SqliteLedger):
        monkeypatch.setattr(kind, "close", noting(kind.close))
    with pytest.raises(dpsql.DatabaseError):
        dpsql.connect(clinic_policy, user="eve", ledger=ledger, **given)
    assert closed == opened


def test_a_role_that_the_policy_does_not_know_adds_nobody(clinic_policy: Path, ledger: str) -> None:
    with pytest.raises(dpsql.ProgrammingError) as caught:
        dpsql.connect(clinic_policy, user="eve", role="none", ledger=ledger)
    assert caught.value.hint == "connect(…, role=…), or --role in a shell, with one of: analyst"
    opened = open_ledger(ledger)
    assert opened.account("eve") is None
    opened.close()


# Placeholders


@pytest.mark.parametrize(
    ("operation", "parameters", "sql", "values"),
    [
        ("SELECT '%s %(x)s %%'", None, "SELECT '%s %(x)s %%'", ()),
        ("SELECT 5 %% 2", [], "SELECT 5 % 2", ()),
        ("SELECT %s, %s", [1, None], "SELECT $1, $2", (1, None)),
        ("SELECT %s, %s", (1, 1), "SELECT $1, $2", (1, 1)),
        ("SELECT %(a)s, %(b)s, %(a)s", {"a": 1, "b": 2}, "SELECT $1, $2, $1", (1, 2)),
        ("SELECT %(a)s", {"a": 1, "unused": 2}, "SELECT $1", (1,)),
        ("SELECT %(größe)s", {"größe": 1}, "SELECT $1", (1,)),
        ("%%%s%%", ["x"], "%$1%", ("x",)),
    ],
)
def test_bind(operation: str, parameters: Any, sql: str, values: tuple[object, ...]) -> None:
    assert bind(operation, parameters) == (sql, values)


@pytest.mark.parametrize(
    ("operation", "parameters"),
    [
        ("SELECT %s", []),
        ("SELECT %s", [1, 2]),
        ("SELECT %s", {"a": 1}),
        ("SELECT %(a)s", [1]),
        ("SELECT %(a)s", {"b": 1}),
        ("SELECT %d", [1]),
        ("SELECT 5 % 2", [1]),
        ("SELECT %(a)d", {"a": 1}),
        ("SELECT 5 %", []),
    ],
)
def test_placeholders_that_do_not_fit(operation: str, parameters: Any) -> None:
    with pytest.raises(dpsql.ProgrammingError):
        bind(operation, parameters)


def test_values_are_bound_never_written(clinic_policy: Path, ledger: str) -> None:
    with dpsql.connect(clinic_policy, user="ana", ledger=ledger) as conn:
        cur = conn.cursor()
        for value in ("'; DROP TABLE patients; --", "%s", "$1", "\\", "'", '"'):
            assert cur.execute("SELECT %s", [value]).fetchone() == (value,)
            assert cur.execute("SELECT %(v)s", {"v": value}).fetchone() == (value,)


def test_replies_are_padded_to_the_quantum(clinic_policy: Path, ledger: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever a statement took, and however it ended: the reply comes at a multiple."""
    with dpsql.connect(clinic_policy, user="ana", ledger=ledger) as conn:
        monkeypatch.setattr(type(conn.session), "reply_quantum", 100)
        for took, sql in ((0.03, COUNT), (0.03, "SELECT 1"), (0.74, "SELECT age FROM patients")):
            waited: list[float] = []
            clock = iter([1000.0, 1000.0 + took])
            monkeypatch.setattr(
                connection_module, "time", SimpleNamespace(monotonic=clock.__next__, sleep=waited.append)
            )
            with nullcontext() if took < 0.1 else pytest.raises(dpsql.ProgrammingError):
                conn.cursor().execute(sql)
            (wait,) = waited
            assert took + wait == pytest.approx(0.1 if took < 0.1 else 0.8)
