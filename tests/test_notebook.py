"""%dpsql and %%dpsql in a shell of IPython: answers, prices, errors in words, and nothing of the data as markup."""

import re
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import duckdb
import pytest
from IPython.core.error import UsageError
from IPython.core.interactiveshell import InteractiveShell
from matplotlib import pyplot
from traitlets.config import Config

import dpsql
from dpsql.errors import BudgetExhausted, InvalidPolicy, PolicyViolation, UndefinedColumn, UnsupportedQuery
from dpsql.notebook.answered import Answered

PAGE = Path(__file__).parent.parent / "docs" / "python.md"
SCRIPT = "<script>alert('1')</script>"
POLICY = f"""
version = 1
[dataset]
name = "towns"
url = "duckdb:///towns.duckdb"
privacy_unit = "person"
budget = {{ epsilon = 20, delta = 1e-6 }}
[roles.analyst]
budget = {{ epsilon = 8, delta = 1e-6 }}
query = {{ epsilon = 0.1, delta = 1e-9, max_epsilon = 1 }}
[tables.people]
unit_key = "id"
max_rows = 1
[tables.people.columns]
age = {{ type = "integer", lower = 0, upper = 100 }}
town = {{ type = "text", values = ["Bern", "{SCRIPT}"], nullable = false, description = "<b>where</b>" }}
street = {{ type = "text" }}
"""
COUNTS = "SELECT town, COUNT(*) AS n, AVG(age) AS mean FROM people GROUP BY town"
HTML = re.compile("<(script|b>|img)")

Run = Callable[[str], Any]


@pytest.fixture(scope="module")
def policy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("towns")
    with duckdb.connect(str(folder / "towns.duckdb")) as database:
        database.execute("CREATE TABLE people (id INTEGER PRIMARY KEY, age INTEGER, town VARCHAR, street VARCHAR)")
        database.execute(
            "INSERT INTO people SELECT i, 20 + i % 60, CASE WHEN i % 2 = 0 THEN 'Bern' ELSE $1 END, "
            "'street ' || i % 3 || chr(10) || $1 FROM range(3000) r(i)",
            [SCRIPT],
        )
    (folder / "towns.toml").write_text(POLICY, encoding="utf-8")
    return folder / "towns.toml"


@pytest.fixture
def shell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[InteractiveShell]:
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    made: Any = InteractiveShell(config=Config({"HistoryManager": {"enabled": False}}))  # type: ignore[no-untyped-call]
    made.extension_manager.load_extension("dpsql")
    yield made
    made.run_line_magic("dpsql", "close")
    made.restore_sys_module_state()
    for name in ("last_exc", "last_type", "last_value", "last_traceback"):
        vars(sys).pop(name, None)


@pytest.fixture
def run(shell: InteractiveShell) -> Run:
    """What runs a cell, and returns its value or raises its error, which the shell shows."""

    def ran(cell: str) -> Any:
        head, _, body = cell.partition("\n")
        try:
            # As run_cell would call them; it keeps more alive than DuckDB likes to see when the process ends.
            if head.startswith("%%dpsql"):
                return shell.run_cell_magic("dpsql", head.removeprefix("%%dpsql"), body)  # type: ignore[no-untyped-call]
            if head.startswith("%dpsql"):
                return shell.run_line_magic("dpsql", head.removeprefix("%dpsql"))
        except Exception:
            shell.showtraceback()
            raise
        done = shell.run_cell(cell)  # type: ignore[no-untyped-call]
        done.raise_error()
        return done.result

    return ran


@pytest.fixture
def asked(run: Run, policy: Path, tmp_path: Path) -> Run:
    """The same with a connection."""
    run(f"%dpsql connect {policy} --user ana --ledger sqlite:///{tmp_path / 'ledger.sqlite'}")
    return run


def left(run: Run) -> float:
    ((remaining,),) = run("%dpsql SELECT epsilon_remaining FROM dpsql.budget").rows
    return float(remaining)


# Connections


def test_a_connection_tells_what_is_left(
    run: Run, policy: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run(f"%dpsql connect {policy} --user ana --ledger sqlite:///{tmp_path / 'ledger.sqlite'}")
    assert capsys.readouterr().out == "towns, as ana; remaining: epsilon 8 of 8\n"


def test_a_connection_of_a_variable_is_used_and_left_open(
    shell: InteractiveShell, run: Run, policy: Path, tmp_path: Path
) -> None:
    with dpsql.connect(policy, user="ben", ledger=f"sqlite:///{tmp_path / 'l.sqlite'}", epsilon=0.5) as connection:
        shell.user_ns["mine"] = connection
        run("%dpsql connect mine")
        answered = run(f"%dpsql {COUNTS}")
        assert answered.release.cost["epsilon"] == 0.5
        cursor = connection.cursor().execute(COUNTS)
        assert cursor.release is not None and cursor.release.reused
        run("%dpsql close")
        assert connection.run("SHOW dpsql.intervals").rows == [("off",)]
        with pytest.raises(UsageError, match="a connection already"):
            run("%dpsql connect mine --epsilon 1")
    with pytest.raises(dpsql.Error, match="closed"):
        run("%dpsql connect mine")


def test_a_connection_that_was_opened_here_is_closed_when_another_comes(
    shell: InteractiveShell, asked: Run, policy: Path, tmp_path: Path
) -> None:
    magics = shell.magics_manager.registry["DpsqlMagics"]
    first = magics._own
    asked(f"%dpsql connect {policy} --user ben --ledger sqlite:///{tmp_path / 'ledger.sqlite'} --epsilon 0.3")
    with pytest.raises(dpsql.InterfaceError, match="closed"):
        first.cursor()
    assert asked(f"%dpsql {COUNTS}").release.cost["epsilon"] == pytest.approx(0.3)


def test_without_a_connection_the_line_that_makes_one_is_told(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(dpsql.InterfaceError, match="no connection"):
        run("%dpsql budget")
    assert "HINT: %dpsql connect POLICY --user NAME" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("%dpsql", "%dpsql connect POLICY"),
        ("%dpsql connect", "required: policy"),
        ("%dpsql connect towns.toml", "connect towns.toml --user NAME"),
        ("%dpsql connect towns.toml --frob 3 --user ana", "unrecognized arguments: --frob"),
        ("%dpsql connect towns.toml --user 'ana", "No closing quotation"),
        ("%%dpsql --name 1x\nSELECT 1", "no name of a variable"),
        ("%%dpsql frobnicate\nSELECT 1", "invalid choice: 'frobnicate'"),
        ("%%dpsql explain --name x\nSELECT 1", "explain gives no result"),
        ("%%dpsql --epsilon 0.5\nSET dpsql.delta = 0", "options are for a query"),
    ],
)
def test_wrong_options_are_told_in_one_line(
    asked: Run, line: str, told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(UsageError, match=re.escape(told)):
        asked(line)
    printed = capsys.readouterr()
    assert told in printed.err
    assert "Traceback" not in printed.out + printed.err


# Answers


def test_a_cell_shows_rows_with_intervals_the_price_and_what_is_left(asked: Run) -> None:
    answered = asked(f"%%dpsql --name found --epsilon 0.5\n{COUNTS};\n")
    assert isinstance(answered, Answered)
    assert asked("found") is answered
    assert answered.columns == ["town", "n", "mean"]
    assert {row[0] for row in answered} == {"Bern", SCRIPT} and len(answered) == 2
    lines = repr(answered).splitlines()
    assert re.fullmatch(r" *town +\| +n +\| +mean", lines[0])
    assert re.fullmatch(
        r"Bern +\| +1,[45]\d\d ± \d+ \| +\d+\.\d+ ± [\d.]+", max(lines[2:4], key=lambda line: line.startswith("Bern"))
    )
    assert lines[4].startswith("price: epsilon 0.5 (rho 0.125); remaining: epsilon ")
    assert lines[5] == "± is 95 %, noise only; bounding: values are clamped to their declared bounds"
    assert "NOTICE" not in repr(answered)
    assert answered.release is not None
    assert f"remaining: epsilon {answered.release.remaining['epsilon']:.4g} of 8" in lines[4]
    assert answered.release.remaining["epsilon"] == pytest.approx(left(asked), rel=1e-4)


def test_the_same_again_is_free(asked: Run) -> None:
    first = asked(f"%%dpsql\n{COUNTS}")
    before = left(asked)
    again = asked(f"%dpsql {COUNTS}")
    assert again.rows == first.rows
    assert again.release.reused and not first.release.reused
    assert "price: free, your earlier release; remaining" in again._repr_html_()
    assert left(asked) == before < 8


def test_options_are_for_their_cell_alone(asked: Run) -> None:
    asked(f"%%dpsql --epsilon 0.5 --mechanism gaussian\n{COUNTS}")
    shown = {name: asked(f"%dpsql SHOW dpsql.{name}").rows for name in ("epsilon", "mechanism", "intervals", "notices")}
    assert shown == {"epsilon": [("0.1",)], "mechanism": [("auto",)], "intervals": [("off",)], "notices": [("on",)]}
    with pytest.raises(UndefinedColumn):
        asked("%%dpsql --epsilon 0.5\nSELECT AVG(height) FROM people")
    assert asked("%dpsql SHOW dpsql.epsilon").rows == [("0.1",)]


def test_set_stays(asked: Run, capsys: pytest.CaptureFixture[str]) -> None:
    assert asked("%%dpsql\nSET dpsql.epsilon = 0.7") is None
    assert capsys.readouterr().out.endswith("SET\n")
    assert asked(f"%dpsql {COUNTS}").release.cost["epsilon"] == pytest.approx(0.7)


def test_dollars_and_braces_of_sql_are_not_pythons(asked: Run) -> None:
    asked("town = 'x'")
    assert asked("%dpsql SELECT '{town} $town' AS t").rows == [("{town} $town",)]


def test_a_target_that_is_missed_is_told(asked: Run) -> None:
    missed = asked("%%dpsql --target-error 0.1%\nSELECT AVG(age) FROM people WHERE street = 'none'")
    assert "WARNING: target 0.1 % of the median size missed: avg ± " in missed._repr_html_()


def test_rows_that_are_made_up_are_told(run: Run, policy: Path, tmp_path: Path) -> None:
    text = policy.read_text(encoding="utf-8").replace("towns.duckdb", str(policy.with_name("towns.duckdb")))
    synthetic = tmp_path / "synthetic.toml"
    synthetic.write_text(text.replace("[dataset]", '[dataset]\npreview = "synthetic"'), encoding="utf-8")
    run(f"%dpsql connect {synthetic} --user ana")
    invented = run("%dpsql SELECT age FROM people LIMIT 2")
    assert invented.release is None
    assert "NOTICE: these rows are synthetic" in invented._repr_html_()


def test_values_that_were_chosen_have_ranks(asked: Run) -> None:
    answered = asked("%dpsql SELECT MEDIAN(age) FROM people")
    assert re.search(r"median ± \d+ ranks \(95 %\); bounding", repr(answered))
    assert "± is 95 %" not in repr(answered)


def test_a_long_answer_is_cut_where_it_is_shown_only(asked: Run) -> None:
    numbers = ", ".join(f"({number})" for number in range(103))
    answered = asked(f"%dpsql SELECT * FROM (VALUES {numbers}) AS v(number)")
    assert len(answered.rows) == 103
    for text, rows in ((repr(answered), repr(answered).count("\n") - 2), (answered._repr_html_(), None)):
        assert "… 3 more rows" in text
        assert rows in (100, None)
    assert answered._repr_html_().count("<tr>") == 101


def test_a_budget_and_tables_are_shown(asked: Run) -> None:
    assert asked("%dpsql budget").columns[:3] == ["scope", "epsilon_limit", "epsilon_spent"]
    tables = asked("%dpsql tables")
    assert ("people", "age", "integer", "0", "100", None, None) in tables.rows
    assert "NULL" in repr(tables)


def test_frames_have_the_ends_of_intervals(asked: Run) -> None:
    answered = asked(f"%dpsql {COUNTS}")
    frame = answered.df()
    assert list(frame.columns) == ["town", "n", "n_low", "n_high", "mean", "mean_low", "mean_high"]
    assert [tuple(row) for row in frame[answered.columns].itertuples(index=False)] == answered.rows
    assert ((frame["n_low"] < frame["n"]) & (frame["n"] < frame["n_high"])).all()
    twice = asked("%dpsql SELECT MEDIAN(age), MEDIAN(age + 1) FROM people").df()
    assert list(twice.columns) == ["median", "median"]


def test_a_frame_without_pandas_is_refused_in_words(asked: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    answered = asked("%dpsql SELECT 1 AS one")
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(UnsupportedQuery, match="pandas") as refused:
        answered.df()
    assert refused.value.hint == "pip install pandas"


# What comes from data


def test_nothing_becomes_markup(asked: Run) -> None:
    found = [
        asked(f"%%dpsql\n{COUNTS}"),
        asked('%dpsql SELECT COUNT(*) AS "<img src=x onerror=alert(2)>" FROM people'),
        asked("%%dpsql --epsilon 1 --delta 1e-7\nSELECT street, COUNT(*) AS n FROM people GROUP BY street"),
        asked("%dpsql tables"),
        asked("%dpsql SELECT '<b>constant</b>' AS t"),
        asked("%%dpsql --target-error 0.1%\nSELECT AVG(age) AS \"<b>\" FROM people WHERE street = 'none'"),
    ]
    assert [len(answered) for answered in found[:3]] == [2, 1, 3]
    for answered in found:
        assert HTML.search(answered._repr_html_()) is None
        assert "&lt;" in answered._repr_html_()


def test_a_value_does_not_break_lines(asked: Run) -> None:
    answered = asked("%%dpsql --epsilon 1 --delta 1e-7\nSELECT street, COUNT(*) AS n FROM people GROUP BY street")
    assert len(repr(answered).splitlines()) == 2 + 3 + 2


# Refusals


def test_a_refusal_is_told_in_words_and_raised_as_it_is(asked: Run, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(PolicyViolation):
        asked("%%dpsql\nSELECT\n  street, id\nFROM people")
    printed = capsys.readouterr().out
    assert "Traceback" not in printed and "File " not in printed
    told = printed[printed.index("PolicyViolation: ") :].splitlines()
    assert told[0].endswith("(42501)")
    number, line = re.fullmatch(r"LINE (\d): (.*)", told[1]).groups()  # type: ignore[union-attr]
    assert line == ["SELECT", "  street, id"][int(number) - 1]
    assert told[2].strip() == "^"
    assert told[-1].startswith("HINT: ")


def test_the_caret_stands_below_what_is_meant(asked: Run, capsys: pytest.CaptureFixture[str]) -> None:
    long = " + ".join(["age"] * 60)
    for cell in ("SELECT\n\tAVG(height) FROM people", f"SELECT AVG({long} + height) FROM people"):
        with pytest.raises(UndefinedColumn):
            asked(f"%%dpsql\n{cell}")
        told = capsys.readouterr().out.splitlines()
        (line,) = [place for place, text in enumerate(told) if text.startswith("LINE ")]
        assert told[line][told[line + 1].index("^") :].startswith("height")
        assert len(told[line]) < 120


def test_a_budget_that_does_not_cover_a_query_is_told(asked: Run, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(BudgetExhausted):
        for low in range(99):
            asked(f"%%dpsql --epsilon 1\nSELECT COUNT(*) FROM people WHERE age > {low}")
    assert "BudgetExhausted: " in capsys.readouterr().out
    with pytest.raises(InvalidPolicy):
        asked("%dpsql connect nowhere.toml --user ana")
    assert "HINT: " in capsys.readouterr().out


# Explanations


def test_explain_tells_and_spends_nothing(asked: Run, capsys: pytest.CaptureFixture[str]) -> None:
    assert asked(f"%dpsql explain {COUNTS}") is None
    line = capsys.readouterr().out
    assert asked(f"%%dpsql explain --epsilon 0.5\n{COUNTS}") is None
    cell = capsys.readouterr().out
    assert "Price: epsilon 0.1 (rho 0.005)\n" in line
    assert "Price: epsilon 0.5 (rho 0.125)\n" in cell
    for told in (line, cell):
        assert re.search(r"Column n \(bigint\): ± \d+ at 95 %", told)
        assert "SQL:" not in told
    assert left(asked) == 8
    assert any("engine SQL" in row[0] for row in asked(f"%dpsql EXPLAIN {COUNTS}").rows)


# The page


def test_the_cells_of_the_page_run(
    run: Run, clinic_policy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(clinic_policy.parent, tmp_path / "demo", ignore=shutil.ignore_patterns("*ledger*"))
    monkeypatch.chdir(tmp_path)
    pyplot.switch_backend("Agg")
    cells = re.findall(r"^```ipython\n(.*?)^```$", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    assert len(cells) == 3
    for cell in [*cells[0].splitlines(), *cells[1:]]:
        run(cell)
    assert "price: epsilon 0.2 (rho 0.02); remaining: epsilon 4.774 of 5\n" in repr(run("visits"))
    pyplot.close("all")
