"""Bars of a release: what is drawn stands for the numbers and their intervals, and what cannot be drawn is refused."""

import sys
from collections.abc import Callable, Iterator
from io import BytesIO
from itertools import pairwise
from pathlib import Path

import matplotlib
import pytest
from matplotlib import pyplot
from matplotlib.axes import Axes
from matplotlib.figure import Figure

import dpsql
from dpsql.errors import InvalidParameter
from dpsql.gateway.confidence_intervals import NoisyRows

SEXES = "SELECT sex, COUNT(*) AS n, AVG(age) AS mean FROM patients WHERE sex IN ('F', 'M') GROUP BY sex"

Ask = Callable[[str], dpsql.Cursor]


@pytest.fixture(scope="module")
def connection(clinic_policy: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dpsql.Connection]:
    ledger = f"sqlite:///{tmp_path_factory.mktemp('plots') / 'ledger.sqlite'}"
    with dpsql.connect(clinic_policy, user="ana", ledger=ledger) as opened:
        yield opened


@pytest.fixture
def ask(connection: dpsql.Connection) -> Ask:
    connection.configure({"dpsql.intervals": "on"})
    return lambda sql: connection.cursor().execute(sql)


@pytest.fixture(autouse=True)
def figures() -> Iterator[None]:
    with matplotlib.rc_context():
        pyplot.switch_backend("Agg")
        yield
        pyplot.close("all")


def png(axes: Axes) -> bytes:
    """The picture, as a file has it; a label that cannot be written fails here."""
    file = BytesIO()
    figure = axes.figure
    assert isinstance(figure, Figure)
    figure.savefig(file)
    return file.getvalue()


def heights(axes: Axes) -> list[float]:
    return [bar.get_height() for bar in axes.patches]  # type: ignore[attr-defined]


def whiskers(axes: Axes) -> list[tuple[float, float]]:
    """The ends of the error bars."""
    return [(low, high) for lines in axes.collections for (_, low), (_, high) in lines.get_segments()]  # type: ignore[attr-defined]


def labels(axes: Axes) -> list[str]:
    return [label.get_text() for label in axes.get_xticklabels()]


def test_a_bar_for_each_row_with_its_interval(ask: Ask) -> None:
    cursor = ask(SEXES)
    axes = dpsql.plot(cursor, y="mean")
    release = cursor.release
    assert release is not None
    rows = NoisyRows.of_answer(release.answer).rows
    assert labels(axes) == ["F", "M"]
    assert heights(axes) == [row[2] for row in rows]
    assert whiskers(axes) == [pytest.approx(interval) for interval in release.intervals["mean"]]
    assert axes.get_title(loc="left") == "mean by sex, ε = 0.1"
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("sex", "mean")
    told = [text.get_text() for text in axes.texts]
    assert told[-1].startswith("Error bars: 95 %, noise only, mean ± ")
    assert all("±" in text for text in told[:2]) and len(told) == 3
    assert len(png(axes)) < 100_000


def test_a_release_an_answer_had_again_and_given_axes(ask: Ask) -> None:
    cursor = ask(SEXES)
    release = cursor.release
    assert release is not None and release.reused
    first, second = pyplot.subplots(1, 2)[1]
    assert dpsql.plot(release, y="n", ax=first) is first
    assert first.get_title(loc="left") == "n by sex, ε = 0.1"  # the price of the noise, not of having it again
    assert dpsql.plot(cursor, y="mean", ax=second) is second
    assert len(pyplot.get_fignums()) == 1


def test_bars_of_several_columns_stand_side_by_side(ask: Ask) -> None:
    cursor = ask("SELECT sex, COUNT(*) AS n, COUNT(*) FILTER (WHERE age > 50) AS _old FROM patients GROUP BY sex")
    axes = dpsql.plot(cursor)
    legend = axes.get_legend()
    assert legend is not None
    assert [text.get_text() for text in legend.get_texts()] == ["n", "_old"]
    edges = sorted((bar.get_x(), bar.get_x() + bar.get_width()) for bar in axes.patches)  # type: ignore[attr-defined]
    assert len(edges) == 8 and labels(axes) == ["F", "M", "X", "NULL"]
    assert all(end < start for (_, end), (start, _) in pairwise(edges))
    assert dpsql.plot(cursor, y=["_old"]).get_ylabel() == "_old"
    png(axes)


def test_keys_together_label_the_bars(ask: Ask) -> None:
    two = "SELECT sex, age > 50 AS old, COUNT(*) AS n FROM patients WHERE sex = 'F' GROUP BY sex, old"
    assert labels(dpsql.plot(ask(two))) == ["F, f", "F, t", "F, NULL"]
    assert labels(dpsql.plot(ask(two), x="old")) == ["f", "t", "NULL"]
    (alone,) = labels(dpsql.plot(ask("SELECT COUNT(*) AS n FROM patients")))
    assert alone == ""


def test_a_value_that_is_missing_has_no_bar(ask: Ask) -> None:
    axes = dpsql.plot(ask("SELECT sex, CASE WHEN sex = 'F' THEN COUNT(*) END AS n FROM patients GROUP BY sex"))
    assert len(heights(axes)) == 1 and len(labels(axes)) == 4
    nothing = dpsql.plot(ask("SELECT sex, COUNT(*) + NULL AS n FROM patients GROUP BY sex"), y="n")
    assert heights(nothing) == []
    png(nothing)


def test_text_is_drawn_as_it_is(ask: Ask) -> None:
    odd = "'$\\frac{$' || sex || chr(10) || 'and so on and so on and so on'"
    axes = dpsql.plot(ask(f"SELECT {odd} AS k, COUNT(*) AS \"$n_{{1$\" FROM patients WHERE sex = 'F' GROUP BY k"))
    assert labels(axes) == ["$\\frac{$F and so on and…"]
    alike = "SELECT 'a very long name for a ' || sex AS k, COUNT(*) AS n FROM patients WHERE sex > 'F' GROUP BY k"
    assert labels(dpsql.plot(ask(alike.replace("a very", "a very, very")))) == [
        "a very, very long name for a M",
        "a very, very long name for a X",
    ]
    both = ask('SELECT sex, COUNT(*) AS "$a_{$", COUNT(*) FILTER (WHERE age > 9) AS "$b_{$" FROM patients GROUP BY sex')
    assert len(png(axes)) > 0 < len(png(dpsql.plot(both)))


@pytest.mark.parametrize(
    ("sql", "options", "message", "hint"),
    [
        (SEXES, {}, 'cannot mix column types in one plot: "n" is a count, "mean" is a mean', 'y="mean"'),
        (SEXES, {"y": "age"}, 'no column "age"', "sex, n, mean"),
        (SEXES, {"x": "age"}, 'no column "age"', "sex, n, mean"),
        (SEXES, {"y": []}, "no column to draw", "Leave y out"),
        (SEXES, {"y": "sex"}, 'the error of "sex" is not known', "dpsql.intervals"),
        (
            "SELECT sex, COUNT(*) AS n, COUNT(*) AS n FROM patients GROUP BY sex",
            {"y": "n"},
            "several columns",
            "sex, n",
        ),
        ("SELECT sex, age > 50 AS o, COUNT(*) AS n FROM patients GROUP BY sex, o", {"x": "o"}, "same label", "sex, o"),
        ("SELECT MEDIAN(age) AS m FROM patients", {}, '"m" is chosen', "counts, sums, means"),
        ("SELECT sex, COUNT(*) FROM patients GROUP BY sex HAVING COUNT(*) > 10000", {}, "0 rows", "groups"),
        ("SELECT age, COUNT(*) FROM patients GROUP BY age", {}, "112 rows", "LIMIT 50"),
        ("SELECT * FROM dpsql.budget", {}, "no release", "GROUP BY"),
        ("SELECT sex FROM (SELECT sex, COUNT(*) AS n FROM patients GROUP BY sex) t", {}, "no column has error", "SET"),
    ],
)
def test_what_cannot_be_drawn_is_refused(
    ask: Ask, sql: str, options: dict[str, object], message: str, hint: str
) -> None:
    with pytest.raises(InvalidParameter) as refused:
        dpsql.plot(ask(sql), **options)  # type: ignore[arg-type]
    assert message in refused.value.message
    assert refused.value.hint is not None and hint in refused.value.hint
    assert pyplot.get_fignums() == []


def test_no_bar_is_without_its_error(ask: Ask, connection: dpsql.Connection, no_noise: None) -> None:
    with pytest.raises(InvalidParameter, match="without an interval"):
        dpsql.plot(ask("SELECT 1 / (SUM(age) + 0.5) AS r FROM patients WHERE city = 'Nowhere'"))
    connection.configure({"dpsql.intervals": "off"})
    assert len(whiskers(dpsql.plot(connection.cursor().execute(SEXES), y="mean"))) == 2
    assert len(whiskers(dpsql.plot(connection.cursor().execute(SEXES), y="n"))) == 2


def test_without_matplotlib_the_line_that_installs_it_is_told(ask: Ask, monkeypatch: pytest.MonkeyPatch) -> None:
    cursor = ask(SEXES)
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(InvalidParameter, match="matplotlib") as refused:
        dpsql.plot(cursor, y="n")
    assert refused.value.hint == 'pip install "dpsql[plots]"'
