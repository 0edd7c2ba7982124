"""Hostile text: answered in little memory, with a typed error or the right answer."""

import inspect
import resource
import sys
from pathlib import Path
from typing import Any

import pytest

from dpsql.compiler.relations import clauses
from dpsql.compiler.sql.parse import position
from dpsql.errors import Error, LimitExceeded
from dpsql.gateway.engine import Engine
from dpsql.gateway.session import Session, Statement

MEGABYTES = 300

COUNT = "SELECT COUNT(*) FROM patients WHERE "


def nested(form: str, times: int, innermost: str) -> str:
    """A form in whose place {} stands itself, and so on."""
    for _ in range(times):
        innermost = form.replace("{}", innermost)
    return innermost


def counted(*expressions: str) -> str:
    return f"SELECT {', '.join(f'COUNT({each})' for each in expressions)} FROM patients"


_OF_YEAR = "TO_CHAR(TO_DATE({}, 'YYYY'), '%s')"
_OF_NUMBER = "TO_CHAR(CAST({} AS float8), '999,990.00')"
_YEAR = "TO_CHAR(age, '000')"

TRUTHS = ",".join(["TRUE", "FALSE"] * 300)

REFUSED = {
    "a megabyte of parentheses": ("54001", "SELECT " + "(" * 500_000 + "1" + ")" * 500_000),
    "parentheses within the limit of length": ("54001", "SELECT " + "(" * 9_000 + "1" + ")" * 9_000),
    "parentheses of queries": ("54001", "(" * 5_000 + "SELECT 1" + ")" * 5_000),
    "open parentheses": ("54001", "SELECT " + "(" * 9_000),
    "ten thousand OR terms": ("54001", COUNT + " OR ".join(f"age = {i}" for i in range(10_000))),
    "more terms than a condition may have": ("54001", COUNT + " OR ".join(f"age > {i}" for i in range(1_001))),
    "a deep chain of NOT": ("54001", COUNT + "NOT " * 5_000 + "TRUE"),
    "a deep chain of minus": ("54001", "SELECT " + "- " * 9_000 + "1"),
    "a deep chain of CASE": ("54001", "SELECT " + "CASE WHEN TRUE THEN " * 2_000 + "1" + " END" * 2_000),
    "a deep chain of casts": ("54001", "SELECT 1" + "::int" * 3_000),
    "a deep chain of additions": ("54001", "SELECT " + "+".join("1" * 5_000)),
    "a deep chain of concatenations": ("54001", "SELECT " + "||".join(["'x'"] * 5_000)),
    "a deep chain of functions": ("54001", "SELECT " + "abs(" * 3_000 + "1" + ")" * 3_000),
    "a deep chain of subqueries": (
        "54001",
        "SELECT * FROM (" * 2_000 + "SELECT 1 AS x" + "".join(f") AS t{i}" for i in range(2_000)),
    ),
    "a deep chain of UNION": ("0A000", " UNION ALL ".join(["SELECT 1"] * 2_000)),
    "many subqueries side by side": (
        "0A000",
        "SELECT 1 FROM " + ", ".join(f"(SELECT 1 AS x) AS t{i}" for i in range(200)),
    ),
    "many subqueries in expressions": (
        "0A000",
        "SELECT " + ", ".join("(SELECT COUNT(*) FROM doctors)" for _ in range(65)),
    ),
    "joins that WITH doubles": (
        "0A000",
        "WITH t AS (SELECT 1 FROM doctors AS d"
        + "".join(f" JOIN doctors AS d{i} ON TRUE" for i in range(33))
        + ") SELECT 1 FROM t AS a JOIN t AS b ON TRUE",
    ),
    "lists within lists": (
        "54001",
        COUNT + "(age > ANY (ARRAY[" + ",".join(["12"] * 300) + "])) > ANY (ARRAY[" + TRUTHS + "])",
    ),
    "ALL within ALL": (
        "0A000",
        nested("SELECT doctor_id FROM doctors WHERE doctor_id > ALL ({})", 12, "SELECT doctor_id FROM doctors"),
    ),
    "many joins": ("0A000", "SELECT 1 FROM doctors d" + "".join(f" JOIN doctors d{i} ON TRUE" for i in range(100))),
    "many joins in a release": (
        "0A000",
        "SELECT n FROM (SELECT COUNT(*) AS n FROM patients p"
        + "".join(f" JOIN patients p{i} ON p{i}.patient_id = p.patient_id" for i in range(65))
        + ") AS t",
    ),
    "a recursive query that branches": (
        "54001",
        "WITH RECURSIVE t (n) AS (SELECT 1 UNION ALL (SELECT n FROM t"
        + " UNION ALL SELECT n FROM t" * 60
        + ")) TABLE t",
    ),
    "a recursive query of long rows": (
        "54001",
        f"WITH RECURSIVE t (a{', a'.join(map(str, range(300)))}) AS (SELECT {', '.join('1' * 300)} UNION ALL "
        f"SELECT {', '.join(f'a{i} + 1' for i in range(300))} FROM t WHERE a0 < 2000) SELECT 1 FROM t",
    ),
    "many CTEs": ("0A000", "WITH " + ", ".join(f"t{i} AS (SELECT 1 AS x)" for i in range(300)) + " SELECT * FROM t1"),
    "CTEs that double": (
        "0A000",
        "WITH t0 AS (SELECT 1 AS x), "
        + ", ".join(f"t{i} AS (SELECT a.x FROM t{i - 1} a, t{i - 1} b)" for i in range(1, 30))
        + " SELECT COUNT(*) FROM t29",
    ),
    "many statements": ("54001", "SELECT 1;" * 200),
    "many statements that do nothing": ("54001", "BEGIN;" * 5_000),
    "a result of millions of rows": ("54001", "SELECT 1 FROM doctors AS a, doctors AS b, doctors AS c"),
    "a long replacement": ("54001", "SELECT replace('a', 'a', '" + "x" * 101 + "')"),
    "many computed VALUES": ("0A000", "VALUES " + ", ".join(["(1 + 1)"] * 200)),
    "many words": ("54001", "SELECT " + "1," * 10_500 + "1"),
    "a list that many relations repeat": (
        "54001",
        "WITH t AS (SELECT doctor_id AS d FROM doctors WHERE doctor_id IN ("
        + ", ".join(map(str, range(4_500)))
        + ")) SELECT COUNT(*) FROM "
        + ", ".join(f"t AS t{i}" for i in range(20)),
    ),
    "many aggregates": ("54001", "SELECT " + ", ".join(f"SUM(age + {i})" for i in range(200)) + " FROM patients"),
    "expressions that outgrow their text": (
        "54001",
        "SELECT " + "/".join(["x"] * 60) + " FROM (SELECT 1.5 AS x) AS t",
    ),
    "a long format": ("54001", counted(nested(_OF_YEAR % ("pm" * 50), 1, _YEAR))),
    "a long format of ordinals": ("54001", counted(nested(_OF_YEAR % ("DTH" * 33), 1, _YEAR))),
    "formats within formats": ("54001", counted(nested(_OF_YEAR % ("YYYY" * 25), 6, _YEAR))),
    "formats of numbers within formats": ("54001", counted(nested(_OF_NUMBER, 8, "age"))),
    "an argument that is doubled, and doubled": (
        "54001",
        counted(nested("CAST(5 BETWEEN SYMMETRIC {} AND 7 AS integer)", 30, "age")),
    ),
    "arguments that are doubled, side by side": (
        "54001",
        counted(*(nested(f"OVERLAY({{}} PLACING '{text}' FROM 2)", 9, "city") for text in "xy")),
    ),
    "a long text": ("54001", "SELECT '" + "x" * 200_000 + "'"),
    "a NUL": ("42601", "SELECT '\x00'"),
    "a NUL between statements": ("42601", "SELECT 1;\x00SELECT 2"),
    "an unterminated string": ("42601", "SELECT '" + "x" * 50_000),
    "an unterminated dollar quote": ("42601", "SELECT $a$" + "x" * 50_000),
    "unterminated comments": ("42601", "SELECT 1 " + "/*" * 20_000),
    "a backslash before the closing quote hides nothing": ("42501", "SELECT age FROM patients WHERE city = 'x\\'"),
    "a lone surrogate": ("42601", "SELECT '\ud800'"),
    "long numbers": ("22003", "SELECT " + "9" * 90_000),
    "long exponents": ("22003", "SELECT 1e" + "9" * 50),
    "small exponents": ("22003", "SELECT 1e-" + "9" * 50),
    "a quoted number without end": ("22003", "SELECT COUNT(*) FROM patients WHERE weight = '1e99999'"),
    "a long column": ("42703", "SELECT " + "x" * 90_000),
    "a long table": ("42P01", "SELECT 1 FROM " + "x" * 90_000),
    "a long function": ("42883", "SELECT " + "x" * 90_000 + "(1)"),
    "a word that looks like a keyword in another alphabet": ("42601", "ＳＥＬＥＣＴ 1"),
    "a byte order mark": ("42601", "\ufeff\ufeffSELECT 1"),
    "a great OFFSET": ("22023", "SELECT 1 OFFSET 99999999999999999999"),
    "a great placeholder": ("0A000", "SELECT $99999999999"),
}

ANSWERED = {
    "a conversion in a list": COUNT + "age IN (1.5::int, 3)",
    "two lists in one condition": COUNT + "age <> 1 AND age <> 2 AND sex <> 'F' AND age > 3",
    "a thousand OR terms": COUNT + " OR ".join(f"age = {i}" for i in range(1_000)),
    "a thousand AND terms": COUNT + " AND ".join(f"age <> {i}" for i in range(1_000)),
    "a long IN list": COUNT + "age IN (" + ", ".join(map(str, range(4_500))) + ")",
    "a format of a date that is read": counted(
        "TO_CHAR(TO_DATE(city, 'YYYY-MM-DD'), 'FMDay DDth Mon YYYY IYYY-IW HH12:MI:SS.US pm MONTH')"
    ),
    **{
        f"a text of many blanks that is read as {form}": f"SELECT TO_DATE('2024{(' ' * 1_000 + '05') * 5}x', '{form}')"
        for form in ("YYYYMMDDHH24MISS", "YYYY-MM-DD HH24:MI:SS", "YYYY -- MM - - DD   HH24  -MI-  SS")
    },
    "many quotes": COUNT + "city = '" + "''" * 40_000 + "'",
    "many comments": "SELECT COUNT(*)" + " /* c */" * 5_000 + " FROM patients",
    "nested comments": "SELECT COUNT(*)" + " /*" * 50 + " */" * 50 + " FROM patients",
    "many semicolons": ";" * 4_000 + "SELECT COUNT(*) FROM patients" + ";" * 4_000,
    "many VALUES": "SELECT COUNT(*) FROM (VALUES " + ", ".join(f"({i})" for i in range(2_400)) + ") AS t (x)",
    "many columns": "SELECT " + ", ".join(f"1 AS c{i}" for i in range(2_000)),
    "a UNION of many": " UNION ALL ".join(["SELECT 1"] * 200),
    "a UNION of people": f"SELECT COUNT(*) FROM ({' UNION ALL '.join(['SELECT age FROM patients'] * 100)}) AS t",
    "a query of WITH that is named often": "WITH t AS (SELECT v.cost FROM visits v JOIN patients p USING (patient_id) "
    "JOIN doctors d USING (doctor_id) JOIN icd10 i ON i.code = v.icd JOIN prescriptions r USING (visit_id)) "
    + " UNION ALL ".join(f"SELECT COUNT(*) FROM t WHERE cost > {i}" for i in range(60)),
    "a name that is SQL": 'SELECT COUNT(*) AS "x"" FROM patients; DROP TABLE patients; --" FROM patients',
    "a constant that is SQL": COUNT + "city = '''; DROP TABLE patients; --'",
}


@pytest.fixture
def each_clinic(clinic_policy: Path) -> Path:
    """One will do: what is refused here is refused whatever the engine."""
    return clinic_policy


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name: str, engine: Engine, session: Session) -> None:
    code, sql = REFUSED[name]
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(Error) as caught:
        for statement in session.parse(sql):
            session.execute(statement)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - memory < MEGABYTES * 1024
    assert (caught.value.sqlstate, caught.value.message[:300]) == (code, caught.value.message[:300])
    # What was sent is not sent back whole.
    assert len(f"{caught.value.message}{caught.value.hint}{caught.value.detail}") < 1_000
    assert engine.ledger.history("ana") == []


@pytest.mark.parametrize("name", ANSWERED)
def test_answered(name: str, session: Session) -> None:
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    (statement,) = session.parse(ANSWERED[name])
    session.execute(statement)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - memory < MEGABYTES * 1024


def test_a_caller_deep_in_its_own_stack_gets_a_typed_error(session: Session) -> None:
    """What recursion the compiler needs may not be left: at no depth of the caller does that end otherwise."""
    refused = 0

    def down(depth: int, statement: Statement) -> None:
        if depth:
            down(depth - 1, statement)
        else:
            session.describe(statement)
            session.execute(statement)

    here = len(inspect.stack(0))
    for depth in range(sys.getrecursionlimit() - here - 500, sys.getrecursionlimit() - here - 20, 8):
        # Each of its own, for what was compiled once is remembered.
        nested = f"SELECT {'(' * 60}{'abs(' * 25}{depth}{')' * 85} FROM (SELECT COUNT(*) FROM patients) AS t"
        (statement,) = session.parse(nested)
        try:
            down(depth, statement)
        except LimitExceeded:
            refused += 1
        except RecursionError:
            break  # nothing of the compiler was reached
    assert refused


@pytest.mark.parametrize("depth", range(1, 130, 8))
def test_depth_is_refused_or_answered_at_every_size(session: Session, depth: int) -> None:
    """No depth slips between the limits into a crash."""
    texts = [
        "SELECT " + "(" * depth + "1" + ")" * depth,
        "SELECT " + "- " * depth + "1",
        COUNT + "NOT " * depth + "age > 5",
        "SELECT " + "CASE WHEN TRUE THEN " * depth + "1" + " END" * depth,
        "SELECT * FROM (" * depth + "SELECT 1 AS x" + "".join(f") AS t{i}" for i in range(depth)),
        "SELECT " + "+".join(["1.5"] * depth),
        "SELECT " + "/".join(["1.5"] * depth),
        " UNION ALL ".join(["SELECT 1"] * depth),
        "SELECT " + "coalesce(" * depth + "1" + ")" * depth,
    ]
    for sql in texts:
        try:
            session.execute(session.parse(sql)[0])
        except Error as error:
            assert error.sqlstate in ("54001", "0A000"), sql[:60]


def test_the_text_is_not_walked_again_for_each_aggregate(session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    """To tell where an error is takes a walk over all of it: a thousand aggregates would take a thousand walks."""
    walks: list[int] = []

    def counted(node: Any, offset: int = 0) -> int | None:
        walks[-1] += sum(1 for _ in node.walk()) > 50
        return position(node, offset)

    monkeypatch.setattr(clauses, "position", counted)
    for count in (20, 40):
        walks.append(0)
        sums = ", ".join(f"SUM(CASE WHEN age > {number} THEN 1 ELSE 0 END)" for number in range(count))
        (statement,) = session.parse(f"EXPLAIN SELECT {sums} FROM patients")
        session.execute(statement)
    assert walks[0] == walks[1]


@pytest.mark.parametrize(("fault", "code"), [(KeyError("Erna"), "0A000"), (RecursionError(), "54001")])
def test_what_no_rule_expected_is_refused(
    session: Session, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, fault: Exception, code: str
) -> None:
    def broken(*_arguments: object) -> object:
        raise fault

    (statement,) = session.parse("SELECT COUNT(*) FROM patients WHERE age > 17")
    with monkeypatch.context() as patch, pytest.raises(Error) as caught:
        patch.setattr("dpsql.compiler.plan.compile.lower", broken)
        session.execute(statement)
    assert caught.value.sqlstate == code
    assert "Erna" not in caught.value.message + caplog.text
    assert ("unexpected KeyError at" in caplog.text) is isinstance(fault, KeyError)


def test_an_in_list_has_at_most_a_thousand_rows(session: Session) -> None:
    rows = ", ".join(f"('F', {age})" for age in range(1001))
    (statement,) = session.parse(f"EXPLAIN SELECT COUNT(*) FROM patients WHERE (sex, age) IN ({rows})")
    with pytest.raises(LimitExceeded, match="at most 1,000 rows"):
        session.execute(statement)
