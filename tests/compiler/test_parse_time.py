"""That the parser's time is bounded: by the shape of a text, by the nodes that it makes, and by a trial."""

import ast
import os
import signal
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sqlglot.errors import ParseError

from dpsql.compiler.sql import parse as parse_module
from dpsql.compiler.sql import postgres_syntax as syntax_module
from dpsql.compiler.sql.parse import check_shape, parse_catalog_query, parse_query
from dpsql.compiler.sql.postgres_syntax import TooManyNodes, read_both, read_tree, tokens_of
from dpsql.compiler.sql.statements import QueryStatement
from dpsql.errors import Error, InvalidSyntax, LimitExceeded
from dpsql.limits.trial import Trial

ROOT = Path(__file__).parent.parent.parent
NESTED = [
    ("ARRAY[", "]"),
    ("x[", "]"),
    ("STRUCT(", ")"),
    ("decimal(", ")"),
    ("CHAR(", ")"),
    ("{'a': ", "}"),
    ("f(ARRAY[", "])"),
    ("CAST(ARRAY[", "] AS int[])"),
]
FLAT = ["[1]", " JOIN patients", " LEFT JOIN patients", " FULL OUTER JOIN patients", " JOIN LATERAL patients"]
FREEZES = {
    "joins": "SELECT 1 FROM patients" + " JOIN patients" * 40,
    "joins in brackets": "SELECT 1 FROM (patients" + " LEFT JOIN patients" * 40 + ")",
    "joins with an ON before": "SELECT 1 FROM p JOIN p ON true" + " JOIN p" * 40,
    **{f"{a}…{b}": f"SELECT {a * 40}1{b * 40}" for a, b in NESTED},
    "subscripts": "SELECT x" + "[1]" * 3000,
    "brackets": "SELECT " + "(" * 200 + "1" + ")" * 200,
}


@pytest.mark.parametrize("sql", FREEZES.values(), ids=FREEZES)
def test_texts_that_froze_the_parser_are_refused_before_it_sees_them(sql: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def parser(*_: object) -> None:
        raise AssertionError("the parser was called")

    monkeypatch.setattr(parse_module, "read_tree", parser)
    monkeypatch.setattr(parse_module, "_try", parser)
    with pytest.raises(LimitExceeded) as refused:
        parse_query(QueryStatement(sql, 7))
    assert refused.value.position is not None
    assert 7 < refused.value.position <= len(sql) + 7
    monkeypatch.setattr(parse_module, "read_catalog_tree", parser)
    with pytest.raises(LimitExceeded):
        parse_catalog_query(sql)


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT 1 FROM a CROSS JOIN b CROSS JOIN c" + " CROSS JOIN d" * 20,
        "SELECT 1 FROM a" + " JOIN b USING (x)" * 60,
        "SELECT 1 FROM a" + " LEFT JOIN b ON a.x = b.x" * 60,
        "SELECT 1 FROM a LEFT JOIN (b JOIN (c JOIN d ON true) ON true) ON true",
        "SELECT 1 FROM a JOIN b JOIN c JOIN d ON 1 = 1 ON 1 = 1 ON 1 = 1",
        "SELECT ARRAY[ARRAY[ARRAY[1]]], x[1][2][3], CAST(y AS numeric(10, 2)), z::varchar(3)[]",
        "SELECT " + "(" * 90 + "1" + ")" * 90,
        "SELECT 1 FROM a WHERE " + " OR ".join(f"(x[{i}] = {i})" for i in range(300)),
    ],
)
def test_what_people_write_passes(sql: str) -> None:
    check_shape(tokens_of(sql))
    read_tree(sql)


def test_closing_brackets_without_opening_ones_are_the_parsers_to_refuse() -> None:
    check_shape(tokens_of("SELECT 1 )]} ON USING"))


def test_joins_that_hide_from_the_scan_make_too_many_nodes() -> None:
    """AS on is an alias to the parser, and a condition to the scan."""
    sql = "SELECT 1 FROM t" + " JOIN t AS on" * 40
    check_shape(tokens_of(sql))
    with pytest.raises(TooManyNodes):
        read_tree(sql)
    with pytest.raises(LimitExceeded, match="too long to parse"):
        parse_query(QueryStatement(sql))
    hidden = sql[: len("SELECT 1 FROM t") + 12 * len(" JOIN t AS on")]
    with pytest.raises(LimitExceeded, match="too long to parse"):
        parse_query(QueryStatement(hidden + " JOIN t" * 3 + " ON true" * 3))
    with pytest.raises(InvalidSyntax, match="a join needs ON or USING"):
        parse_query(QueryStatement(hidden + " JOIN t" * 3))


def test_a_trial_that_does_not_end_is_a_refusal(monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[str] = []

    def trial(text: str) -> bool:
        tried.append(text)
        return False

    monkeypatch.setattr(parse_module, "_trial", trial)
    small = "SELECT COUNT(*) FROM patients"
    parse_query(QueryStatement(small))
    assert tried == []
    large = small + " WHERE " + " AND ".join(f"age > {number}" for number in range(1000, 1050))
    with pytest.raises(LimitExceeded, match="too long to parse"):
        parse_query(QueryStatement(large))
    assert tried == [large]
    monkeypatch.setattr(parse_module, "_trial", lambda _: True)
    parse_query(QueryStatement(large))


def test_a_trial_reads_a_text_in_both_ways(monkeypatch: pytest.MonkeyPatch) -> None:
    """And memory that runs out in the first is not forgotten in the second."""
    read: list[str] = []
    monkeypatch.setattr(syntax_module, "read_catalog_tree", read.append)
    read_both("SELECT FROM FROM")
    assert read == ["SELECT FROM FROM"]

    def exhausted(_: str) -> None:
        raise MemoryError

    monkeypatch.setattr(syntax_module, "read_tree", exhausted)
    with pytest.raises(MemoryError):
        read_both("SELECT 1")


def test_nothing_else_reads_text_with_the_parser() -> None:
    """One path: whatever parses goes through _bounded, and with it through the three bounds."""
    users = {
        path.relative_to(ROOT).as_posix()
        for path in (ROOT / "dpsql").rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Attribute | ast.Name)
        and (node.attr if isinstance(node, ast.Attribute) else node.id)
        in {
            *("parse_one", "maybe_parse", "read_tree", "read_catalog_tree", "read_both", "transpile", "condition_from"),
            *("PlainPostgres", "CatalogPostgres"),
        }
    }
    assert users == {"dpsql/compiler/sql/postgres_syntax.py", "dpsql/compiler/sql/parse.py"}


FRAGMENTS = [
    *NESTED,
    *(("", text) for text in FLAT),
    *(
        ("", text)
        for text in (" AND 1", "::int", "::int[]", " IS NULL", " UNION SELECT 1", " , t", " JOIN t ON 1", " AS on")
    ),
    *(
        (text, "")
        for text in ("NOT ", "- ", "x -> ", "(x, y) -> ", "1 BETWEEN 1 AND ", "INTERVAL ", "SELECT ", "CASE ")
    ),
    *(("(", ")"), ("f(", ")"), ("CASE WHEN ", " THEN 1 END"), ("CAST(", " AS int)"), ("(SELECT ", ")")),
    *(("(SELECT 1 FROM ", ") t"), ("(t JOIN ", " ON 1)"), ("EXISTS (SELECT ", ")"), ("ROW(", ")"), ("MAP {", ":1}")),
]
FRAMES = ["SELECT {}", "SELECT 1 FROM {}", "SELECT 1 FROM t WHERE {}", "SELECT 1::{}", "{}"]


@settings(max_examples=150, database=None)
@given(
    st.lists(st.sampled_from(FRAGMENTS), min_size=1, max_size=3),
    st.sampled_from([8, 20, 60]),
    st.sampled_from(FRAMES),
    st.sampled_from(["1", "t", "SELECT 1", ""]),
)
def test_whatever_repeats_is_parsed_in_time_or_refused(
    parts: list[tuple[str, str]], times: int, frame: str, core: str
) -> None:
    """The kernel ends this process's trial after a second of processor time: no such text passes the other bounds."""
    chosen = [parts[number % len(parts)] for number in range(times)]
    sql = frame.format("".join(a for a, _ in chosen) + core + "".join(b for _, b in reversed(chosen)))
    try:
        check_shape(tokens_of(sql))
    except (Error, ValueError):
        return
    assert parse_module._trial(sql), sql


# Trials


def forever(text: str) -> int:
    """Take processor time without end; compiled code would not even give the lock back."""
    while True:
        text = text[::-1]


def killed(text: str) -> None:
    os.kill(os.getpid(), signal.SIGSEGV)


def stops(text: str) -> None:
    os.kill(os.getpid(), signal.SIGSTOP)


def hungry(text: str) -> bytes:
    return bytes(64 << 30)


def raises(text: str) -> None:
    raise ParseError(text)


@pytest.mark.parametrize("function", [forever, killed, hungry])
def test_a_process_that_dies_is_no_end_and_another_takes_its_place(function: object) -> None:
    trial = Trial(function, 0.2, bytes_of_memory=8 << 30)  # type: ignore[arg-type]
    assert not trial("a")
    assert not trial("b")
    assert trial._idle == []


def test_a_process_that_stands_still_is_killed() -> None:
    trial = Trial(stops, 5, patience=6)
    assert not trial("a")


def test_an_error_is_an_end_and_a_process_is_used_again() -> None:
    trial = Trial(raises, 5)
    assert trial("é\ud800")
    first = trial._idle[0].pid
    assert trial("")
    assert [process.pid for process in trial._idle] == [first]
    os.kill(first, signal.SIGKILL)
    trial._idle[0].wait()
    assert trial("c")
    assert trial._idle[0].pid != first
    trial.close()
    assert trial._idle == []


def test_a_call_takes_the_process_that_was_started_before() -> None:
    trial = Trial(raises, 5)
    trial.start()
    (process,) = trial._idle
    assert trial("a")
    assert trial._idle == [process]
    trial.start()
    assert trial._idle == [process]
    trial.close()


def test_the_parsers_trial_is_started_on_demand(monkeypatch: pytest.MonkeyPatch) -> None:
    trial = Trial(raises, 5)
    monkeypatch.setattr(parse_module, "_trial", trial)
    parse_module.start_trial()
    assert len(trial._idle) == 1
    trial.close()


def test_a_process_that_cannot_start_lets_nothing_through(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.executable", "/nowhere/python")
    Trial(raises, 5).start()
    assert not Trial(raises, 5)("a")
    monkeypatch.setattr("sys.executable", "/bin/false")
    assert not Trial(raises, 5)("a")


def test_a_fork_has_processes_of_its_own() -> None:
    trial = Trial(raises, 5)
    assert trial("a")
    child = os.fork()
    if child == 0:
        os._exit(0 if trial._idle == [] and trial("b") and len(trial._idle) == 1 else 1)
    assert os.waitpid(child, 0)[1] == 0
    assert trial("c")
    trial.close()
