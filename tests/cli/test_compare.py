"""`dpsql budget show --compare` and `--plot`: reports beside the gate, in writing and drawn."""

import shutil
import sys
from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction
from importlib.resources import files
from pathlib import Path
from xml.etree import ElementTree

import pytest

from dpsql.cli import compare
from dpsql.cli.compare import BudgetHistory, comparison, drawing, read_histories
from dpsql.cli.plot import Curve, Drawing, draw
from dpsql.dbapi import connect
from dpsql.errors import LedgerUnavailable
from dpsql.ledger import BudgetStatus, open_ledger
from dpsql.policy import load_policy
from dpsql.privacy.accounting import Accountant, Spent, create_limit
from dpsql.privacy.cost import Event, Mechanism, Sensitivity
from dpsql.privacy.reports import ANALYSES
from tests.cli.conftest import Run

ONE_CELL = Sensitivity(1, 1, 1, 1)
LAPLACE = Event(Mechanism.LAPLACE, ONE_CELL, Fraction(10))
GAUSSIAN = Event(Mechanism.GAUSSIAN, ONE_CELL, Fraction(200))
MICRO, ZERO = Fraction(1, 10**6), Fraction(0)
PNG = b"\x89PNG\r\n\x1a\n"


@pytest.fixture(scope="module")
def asked(tmp_path_factory: pytest.TempPathFactory, generated: Path) -> Path:
    """Return a ledger in which ana has asked twice with Laplace noise, and ben once as auto likes it."""
    folder = tmp_path_factory.mktemp("asked")
    shutil.copy(generated, folder / "clinic.duckdb")
    (folder / "clinic.toml").write_text(files("dpsql.cli").joinpath("clinic.toml").read_text())
    by_hand = {"epsilon": "0.5", "mechanism": "laplace"}
    for user, age, options in (("ana", 20, by_hand), ("ana", 30, by_hand), ("ben", 40, {})):
        with connect(folder / "clinic.toml", user=user, **options) as connection:
            connection.cursor().execute(f"SELECT COUNT(*) FROM patients WHERE age > {age}")
    return folder / "dpsql-ledger.sqlite"


@pytest.fixture
def spent(policy: Path, asked: Path) -> Path:
    """Return the policy, with that ledger beside it."""
    shutil.copy(asked, policy.parent)
    return policy


def blocks(text: str) -> dict[str, dict[str, list[str]]]:
    """Return the reports by budget and analysis; the kind comes first in each row, the analysis is its key."""
    found = {}
    for block in text.split("\n\n")[2:]:
        heading, _, _, *rows = block.splitlines()
        cells = [[cell.strip() for cell in row.split("|")] for row in rows if "|" in row]
        found[heading.partition(",")[0]] = {name: [kind, *rest] for kind, name, *rest in cells}
    return found


def account(events: Sequence[Event], accountant: Accountant = Accountant.ZCDP) -> BudgetHistory:
    """Return a budget that was charged these, one by one."""
    limit = create_limit(accountant, Fraction(8), ZERO if accountant is Accountant.PURE else MICRO, ZERO)
    total = Spent.zero()
    for event in events:
        total = total.add([event])
    status = BudgetStatus(limit, total, None, None, len(events), None, 0)
    return BudgetHistory("ana", status, [[event] for event in events], limit.delta)


def rows(shown: BudgetHistory, units: int | None = None) -> dict[str, list[str]]:
    return blocks("\n\n\n\n" + "\n".join(comparison(shown, units)))["ana"]


def test_every_budget_is_compared_and_what_gates_is_said(run: Run, spent: Path) -> None:
    text = run("budget", "show", "--policy", spent, "--compare").stdout
    assert text.index("For comparison only") < text.index("ana, 2 queries, at delta = 1e-06:")
    assert "These values hold only if the queries were fixed in advance." in text
    assert "ben, 1 query, at delta = 1e-06:" in text
    found = blocks(text)
    assert list(found) == ["ana", "ben", "all users"]
    for table in found.values():
        kinds = {name: row[0] for name, row in table.items()}
        assert kinds == {"zcdp": "gate"} | {analysis.name: "report" for analysis in ANALYSES}
    assert found["ana"]["zcdp"][1:] == ["1", "refuses beyond 5"]
    assert found["all users"]["zcdp"][2] == "refuses beyond 20"
    assert found["ana"]["basic"] == ["report", "1", ""]
    assert found["ben"]["basic"] == ["report", "–", "this Gaussian noise has no epsilon of its own"]
    assert float(found["all users"]["zCDP"][1]) > float(found["ana"]["zCDP"][1])


def test_nothing_is_compared_unless_asked(run: Run, spent: Path) -> None:
    assert "report" not in run("budget", "show", "--policy", spent).stdout.lower()


def test_one_user_is_compared_alone_and_at_another_delta(run: Run, spent: Path) -> None:
    arguments = ("budget", "show", "--policy", spent, "--user", "ana", "--compare")
    found = blocks(run(*arguments).stdout)
    assert list(found) == ["ana"]
    text = run(*arguments, "--delta", "1e-3").stdout
    assert "ana, 2 queries, at delta = 0.001:" in text
    less = blocks(text)["ana"]
    assert float(less["zCDP"][1]) < float(found["ana"]["zCDP"][1])
    assert less["zcdp"] == found["ana"]["zcdp"]


@pytest.mark.parametrize("delta", ["0", "1", "-1e-6", "nan", "x", "1e-400", "inf"])
def test_a_delta_that_is_none_is_refused(run: Run, spent: Path, delta: str) -> None:
    refused = run("budget", "show", "--policy", spent, "--compare", "--delta", delta, status=2)
    assert "is not a valid delta" in refused.stderr


def test_a_delta_without_a_comparison_is_refused(run: Run, spent: Path) -> None:
    assert "--compare" in run("budget", "show", "--policy", spent, "--delta", "1e-6", status=2).stderr


def test_groups_of_units_are_beside(run: Run, spent: Path) -> None:
    text = run("budget", "show", "--policy", spent, "--user", "ana", "--compare", "--group", "3").stdout
    assert "epsilon for 3" in text
    found = blocks(text)["ana"]
    assert found["basic"][1:3] == ["1", "3"]
    assert found["zcdp"][2] == ""
    assert float(found["zCDP"][2]) > 3 * float(found["zCDP"][1]) / 2


def test_a_budget_that_nobody_used_is_compared_too(run: Run, spent: Path) -> None:
    run("user", "add", "eve", "--role", "analyst", "--policy", spent, stdin="secret\n")
    found = blocks(run("budget", "show", "--policy", spent, "--compare").stdout)
    assert {row[1] for row in found["eve"].values()} == {"0"}


def test_reasons_are_said_once() -> None:
    shown = rows(account([GAUSSIAN]), 2)
    assert shown["basic"] == ["report", "–", "–", "this Gaussian noise has no epsilon of its own"]
    threshold = Event(Mechanism.THRESHOLD, ONE_CELL, ZERO, Fraction(1, 10**9))
    shown = rows(account([LAPLACE] * 99 + [threshold]), 50)
    assert shown["basic"] == ["report", "9.9", "–", "the delta of thresholds grows too fast with so many units"]


def test_a_gate_without_a_price_says_so() -> None:
    shown = rows(account([GAUSSIAN], Accountant.PURE))
    assert shown["pure"] == ["gate", "–", "some of the history has no price under pure"]
    assert shown["zCDP"] == ["report", "–", "needs a delta of 1e-30 at least"]


def test_numbers_are_shown_rounded_up() -> None:
    assert [compare.shown(Fraction(value)) for value in ("1", "4.77456759", "1000.01", "0.00012341", "123456")] == [
        *("1", "4.775", "1001", "0.0001235", "1.235e+05"),
    ]


def test_charges_made_after_the_budget_was_read_are_left_out(run: Run, spent: Path) -> None:
    ledger, rules = open_ledger(f"sqlite:///{spent.parent / 'dpsql-ledger.sqlite'}"), load_policy(spent)
    statuses = [("ana", ledger.budget("ana", rules)), ("all users", ledger.cap(rules))]
    run("query", spent, "SELECT COUNT(*) FROM patients", "--user", "ana")
    assert [len(account.charges) for account in read_histories(ledger, statuses, None)] == [2, 3]
    with pytest.raises(LedgerUnavailable, match='"ana" do not add up') as refusal:
        read_histories(ledger, [("ana", statuses[1][1]), ("ana", ledger.budget("ben", rules)), *wrong(statuses)], None)
    assert "ledger verify" in str(refusal.value.hint)
    ledger.close()


def wrong(statuses: list[tuple[str, BudgetStatus]]) -> list[tuple[str, BudgetStatus]]:
    """Return ana's total with the number of another budget."""
    (_, ana), (_, cap) = statuses
    return [("ana", replace(ana, charges=ana.charges + 1, numbers=cap.numbers))]


@pytest.mark.parametrize("name", ["budget.png", "budget.svg"])
def test_a_budget_is_drawn(run: Run, spent: Path, tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    text = run("budget", "show", "--policy", spent, "--user", "ana", "--plot", path).stdout
    assert f"drawn: {path}" in text
    assert "analysis" not in text
    content = path.read_bytes()
    if name.endswith("png"):
        assert content.startswith(PNG)
    else:
        assert ElementTree.fromstring(content).tag.endswith("svg")
        for words in ("Gate", "Report only", "number of queries", "ana: "):
            assert words.encode() in content


def test_without_a_user_all_users_are_drawn(run: Run, spent: Path, tmp_path: Path) -> None:
    path = tmp_path / "all.svg"
    run("budget", "show", "--policy", spent, "--compare", "--plot", path)
    assert b"all users: " in path.read_bytes()


@pytest.mark.parametrize("name", ["budget.jpg", "budget", "png", ".svg"])
def test_what_is_no_picture_is_refused(run: Run, spent: Path, name: str) -> None:
    refused = run("budget", "show", "--policy", spent, "--plot", name, status=1).stderr
    assert f'"{name}" is not the name of a .png or .svg file (22023)' in refused
    assert "hint: --plot budget.png" in refused


def test_a_place_that_cannot_be_written_is_said(run: Run, spent: Path, tmp_path: Path) -> None:
    path = tmp_path / "nowhere" / "budget.png"
    refused = run("budget", "show", "--policy", spent, "--plot", path, status=1).stderr
    assert "No such file or directory (58030)" in refused
    assert str(path) in refused


def test_without_matplotlib_its_extra_is_named(run: Run, spent: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    refused = run("budget", "show", "--policy", spent, "--plot", "budget.png", status=1).stderr
    assert "needs matplotlib" in refused
    assert 'hint: pip install "dpsql[plots]"' in refused


def test_nothing_asked_is_not_drawn(run: Run, spent: Path) -> None:
    run("user", "add", "eve", "--role", "analyst", "--policy", spent, stdin="secret\n")
    refused = run("budget", "show", "--policy", spent, "--user", "eve", "--plot", "eve.png", status=1).stderr
    assert "nothing to draw" in refused


def test_curves_end_where_the_tables_are() -> None:
    ana = account([LAPLACE, GAUSSIAN] * 60)
    drawn = drawing(ana)
    curves = {curve.name: curve.points for curve in drawn.reports}
    assert drawn.gate.name == "zcdp"
    assert drawn.limit == 8
    assert [place for place, _ in drawn.gate.points] == [0, 1, *range(3, 121, 3)]
    for name, points in (("zcdp", drawn.gate.points), ("zCDP", curves["zCDP"]), ("PLD", curves["PLD"])):
        assert points[0] == (0, 0)
        assert compare.shown(Fraction(points[-1][1])) == rows(ana)[name][1]
        heights = [height for _, height in points]
        assert heights == sorted(heights)
    basic = dict(curves["basic"])
    assert basic[1] == 0.1
    assert basic[3] != basic[3]  # from the first Gaussian on there is no number


def picture(limit: float, gate: Sequence[float], *reports: Sequence[float], title: str = "ana") -> Drawing:
    curves = [Curve(f"report {place}", list(enumerate(heights))) for place, heights in enumerate((gate, *reports))]
    return Drawing(title, "height", "note", limit, curves[0], curves[1:])


@pytest.mark.parametrize(
    ("drawn", "above"),
    [
        (picture(8, [0, 4, 7], [0, 9, 100]), False),
        (picture(20, [0, 1, 2], [0, 1, 3]), True),
        (picture(20, [0, 0], [0, 0]), False),
        (picture(5, [0, float("nan")], [0, float("nan")], [0, 4]), False),
        (picture(5, [0, 4], *[[0, part] for part in range(1, 12)], title="$\\broken{ 患者"), False),
    ],
    ids=["a far report", "a far limit", "nothing lost", "no numbers", "many curves, odd name"],
)
def test_drawings_of_every_shape(tmp_path: Path, drawn: Drawing, above: bool) -> None:
    path = tmp_path / "any.svg"
    draw(drawn, path)
    text = path.read_text(encoding="utf-8")
    assert ("(above)" in text) == above
    for place, curve in enumerate(drawn.reports, start=1):
        assert (f"report {place} " in text) == bool(curve.highest)
