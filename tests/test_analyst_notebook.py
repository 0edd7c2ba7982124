"""examples/analyst.ipynb, run in a kernel from a clean folder: every cell, what is refused, what was spent, how near.

False alarms: a noisy number strays further than REACH times its 95 % margin with a probability below 1e-9 (Laplace
noise; Gaussian noise far less), and there are 37 numbers. That fewer than 60 % of them lie within their margins, as
each does with 95 %, has a probability below 1e-9, too.
"""

import base64
import json
import re
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import duckdb
import nbformat
import pytest
from nbclient import NotebookClient

from dpsql.ledger import open_ledger
from dpsql.policy import load_policy
from tests.waiting import HANG_SECONDS

NOTEBOOK = Path(__file__).parent.parent / "examples" / "analyst.ipynb"
REACH = 7
ANSWERS = """
import json
from dpsql.notebook.answered import Answered

def shown(answered):
    return [[[value, interval and [interval.low, interval.high]] for value, interval in zip(*row)]
            for row in zip(answered.noisy.rows, answered.noisy.intervals)]

print(json.dumps({name: shown(value) for name, value in dict(globals()).items()
                  if isinstance(value, Answered) and not name.startswith("_")}))
"""

REFUSALS = [
    (
        "PolicyViolation",
        "rows of protected tables are not shown",
        "HINT: Aggregate them. Write: SELECT COUNT(*) FROM rwm5yr",
    ),
    (
        "UndefinedColumn",
        "this key may only be used in joins, GROUP BY",
        "LINE 1: SELECT docvis FROM rwm5yr WHERE id",
    ),
    ("PolicyViolation", "groups of one person cannot be selected", "DETAIL: Each row here belongs to one person."),
    ("InvalidParameter", 'between 0.001 and 1, the limit of role "economist"', "HINT: Write: SET dpsql.epsilon = 0.2"),
    ("BudgetExhausted", 'the budget of "eva" does not cover this query', "HINT: Write: SET dpsql.epsilon = 0."),
    ("InvalidParameter", "cannot be met", "HINT: Write: SET dpsql.target_error = '1"),
]


@dataclass(frozen=True)
class Run:
    """The notebook after a run, the policy it ran over, and the answers it has in variables."""

    notebook: Any
    policy: Path
    answers: dict[str, list[list[list[Any]]]]


@pytest.fixture(scope="module")
def run(german_policy: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Run]:
    root = tmp_path_factory.mktemp("checkout")
    policies = shutil.copytree(german_policy.parent, root / "policies", ignore=shutil.ignore_patterns("*ledger*"))
    (root / "examples").mkdir()
    notebook = page()
    notebook.cells.append(nbformat.v4.new_code_cell(ANSWERS))  # type: ignore[no-untyped-call]
    with pytest.MonkeyPatch.context() as patch:
        for name in ("IPYTHONDIR", "JUPYTER_CONFIG_DIR", "JUPYTER_DATA_DIR", "JUPYTER_RUNTIME_DIR", "MPLCONFIGDIR"):
            patch.setenv(name, str(root / name.lower()))
        NotebookClient(
            notebook,
            timeout=HANG_SECONDS,
            record_timing=False,
            extra_arguments=["--log-level=ERROR"],
            resources={"metadata": {"path": str(root / "examples")}},
        ).execute()
    (printed,) = notebook.cells.pop().outputs
    yield Run(notebook, policies / german_policy.name, json.loads(printed.text))


def page() -> Any:
    """The notebook as it is committed."""
    return nbformat.read(NOTEBOOK, as_version=4)  # type: ignore[no-untyped-call]


def code(notebook: Any) -> list[Any]:
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def form(cell: Any) -> list[tuple[str, list[str]]]:
    """What a cell gave, but for what is in it."""
    return [(output.output_type, sorted(output.get("data", ()))) for output in cell.outputs]


def sentences(cell: Any) -> list[str]:
    """What a cell says, without numbers and tables, and without what depends on the noise."""
    texts = ["\n".join(part) for each in cell.outputs if (part := each.get("traceback"))]
    texts += [each.get("text") or each.get("data", {}).get("text/plain", "") for each in cell.outputs]
    lines = (line for text in texts for line in text.splitlines() if "|" not in line and "-+-" not in line)
    return [re.sub(r"-?\d[\d,.]*", "0", re.sub(r" \w+ is worse than [^;]*;", "", line)) for line in lines]


def queries(notebook: Any) -> dict[str, str]:
    """The SQL behind each variable."""
    heads = ((re.match(r"%%dpsql --name (\w+).*\n", cell.source), cell.source) for cell in code(notebook))
    return {head[1]: source[head.end() :] for head, source in heads if head}


def printed(cell: Any) -> str:
    (output,) = cell.outputs
    return str(output.data["text/plain"])


def test_every_cell_ran_and_gave_what_the_page_shows(run: Run) -> None:
    nbformat.validate(page())
    cells = code(run.notebook)
    assert [cell.execution_count for cell in code(page())] == list(range(1, len(cells) + 1))
    assert [cell.execution_count for cell in cells] == list(range(1, len(cells) + 1))
    assert [form(cell) for cell in cells] == [form(cell) for cell in code(page())]
    for cell, shown in zip(cells, code(page()), strict=True):
        assert sentences(cell) == sentences(shown), "run it again: jupyter execute --inplace examples/analyst.ipynb"


def test_the_page_is_small_and_says_nothing_of_the_machine_it_was_made_on(run: Run) -> None:
    text = NOTEBOOK.read_text(encoding="utf-8")
    assert re.search(r"/(tmp|home|root|Users)\b", re.sub(r'"image/png": ".*?"', "", text)) is None
    for notebook in (run.notebook, page()):
        outputs = (output for cell in code(notebook) for output in cell.outputs)
        pictures = [base64.b64decode(data) for each in outputs if (data := each.get("data", {}).get("image/png"))]
        assert len(pictures) == 2
        assert all(picture.startswith(b"\x89PNG") and len(picture) < 100_000 for picture in pictures)


def test_what_is_refused_is_told_in_words(run: Run) -> None:
    refused = [cell for cell in code(run.notebook) if any(each.output_type == "error" for each in cell.outputs)]
    assert refused == [cell for cell in code(run.notebook) if "raises-exception" in cell.metadata.get("tags", ())]
    for cell, (name, message, told) in zip(refused, REFUSALS, strict=True):
        (output,) = cell.outputs
        assert output.ename == name
        assert message in output.evalue
        lines = "\n".join(output.traceback)
        assert told in lines
        assert "Traceback" not in lines and "File " not in lines


def test_the_spend_that_is_printed_is_the_ledgers(run: Run) -> None:
    (budget,) = [cell for cell in code(run.notebook) if cell.source == "%dpsql budget"]
    heads, _, values = (line.split(" | ") for line in printed(budget).splitlines())
    shown = dict(zip(map(str.strip, heads), values, strict=False))
    policy = load_policy(run.policy)
    ledger = open_ledger(f"sqlite:///{run.policy.with_name('dpsql-ledger.sqlite')}")
    try:
        status = ledger.budget("eva", policy)
    finally:
        ledger.close()
    assert float(shown["epsilon_remaining"]) == pytest.approx(float(status.remaining.epsilon), rel=1e-5)
    assert float(shown["epsilon_spent"]) == pytest.approx(5 - float(status.remaining.epsilon), rel=1e-5)
    paid = [text for cell in code(run.notebook) if "price: epsilon" in (text := str(cell.outputs))]
    last = re.search(r"remaining: epsilon ([\d.]+) of 5", paid[-1])
    assert last is not None and float(last[1]) == pytest.approx(float(status.remaining.epsilon), rel=1e-3)
    assert status.charges == len(paid)


def test_the_same_again_is_free(run: Run) -> None:
    assert run.answers["again"] == run.answers["by_sex"]
    (cell,) = [cell for cell in code(run.notebook) if cell.source.startswith("again.rows")]
    assert printed(cell) == "(True, 0.0)"


def test_the_numbers_are_as_near_as_their_margins_say(run: Run) -> None:
    distances = []
    with duckdb.connect(str(run.policy.with_suffix(".duckdb")), read_only=True) as database:
        for name, sql in queries(run.notebook).items():
            if name == "incomes":  # are chosen, near the middle in ranks
                assert all(0 <= row[1][0] <= 20 for row in run.answers[name])
                continue
            if name == "again":
                continue
            # What the policy's limits cut is not noise: the truth is cut alike.
            rows = database.execute(sql.replace("AVG(docvis)", "AVG(LEAST(docvis, 52))")).fetchall()
            keys = sum(interval is None for _, interval in run.answers[name][0])
            true = {row[:keys]: row[keys:] for row in rows}
            answered = {tuple(value for value, _ in row[:keys]): row[keys:] for row in run.answers[name]}
            assert answered.keys() == true.keys()
            for key, row in answered.items():
                for (value, (low, high)), expected in zip(row, true[key], strict=True):
                    distances.append(abs(value - expected) / max(high - value, value - low))
    assert len(distances) == 37
    assert max(distances) < REACH
    assert sum(distance <= 1 for distance in distances) > 0.6 * len(distances)
    assert max(distances) > 0.01  # without noise they would all be 0
