"""Columns collected through randomized response: debiased where that is linear, refused elsewhere, honest about it."""

import math
from collections.abc import Iterator
from fractions import Fraction
from typing import Any

import duckdb
import numpy as np
import pytest
from numpy.typing import NDArray

from dpsql.backends import Cancellation, ExactCells, open_backend
from dpsql.compiler.aggregates.randomized_response import ResponseEstimate, ResponseGroupEstimate, debiased
from dpsql.compiler.plan.query_plan import CompiledQuery
from dpsql.errors import InvalidPolicy, PolicyViolation
from dpsql.gateway.explain import explanation_lines
from dpsql.gateway.release import PostProcessor, ReleasedCells, release
from dpsql.gateway.session import Session
from dpsql.policy import Policy, RandomizedResponse, load_policy
from tests.compiler.plans import Planner
from tests.conftest import MakeEngine

REPEATS = 20_000
POLICY = """
version = 1
[dataset]
name = "poll"
url = "duckdb:///poll.duckdb"
privacy_unit = "person"
budget = { epsilon = 100, delta = 1e-4 }
[roles.analyst]
budget = { epsilon = 100, delta = 1e-4 }
query = { epsilon = 1, delta = 1e-6, max_epsilon = 10 }
[tables.people]
unit_key = "id"
max_rows = 1
[tables.people.columns]
id = { type = "integer" }
slot = { type = "integer", lower = 0, upper = 999 }
town = { type = "text" }
ill = { type = "boolean", collected_by = { randomized_response = 0.75 } }
party = { type = "text", values = ["x", "y", "z"], collected_by = { randomized_response = 0.6 } }
[tables.visits]
unit_key = "id"
max_rows = 3
[tables.visits.columns]
glad = { type = "boolean", collected_by = { randomized_response = 0.9 } }
"""
DATA = """
CREATE TABLE people AS SELECT i::INTEGER AS id, i % 10 AS slot, 't' AS town,
    CASE WHEN i % 8 > 0 THEN i % 4 > 0 END AS ill,
    CASE WHEN i % 10 < 5 THEN 'x' WHEN i % 10 < 8 THEN 'y' ELSE 'z' END AS party FROM range(8000) r(i);
CREATE TABLE visits AS SELECT (i % 100)::INTEGER AS id, true AS glad FROM range(300) r(i);
"""


@pytest.fixture(scope="module")
def policy(tmp_path_factory: pytest.TempPathFactory) -> Policy:
    folder = tmp_path_factory.mktemp("poll")
    with duckdb.connect(str(folder / "poll.duckdb")) as connection:
        connection.execute(DATA)
    (folder / "poll.toml").write_text(POLICY, encoding="utf-8")
    return load_policy(folder / "poll.toml")


@pytest.fixture(scope="module")
def planner(policy: Policy) -> Planner:
    return Planner(policy)


@pytest.fixture(scope="module")
def post() -> Iterator[PostProcessor]:
    processor = PostProcessor("UTC")
    yield processor
    processor.close()


def exact_rows(planner: Planner, post: PostProcessor, sql: str) -> list[tuple[Any, ...]]:
    """The answer without noise."""
    query, backend = planner.compile(sql), open_backend(planner.policy)
    fetched = [backend.fetch({0: planned}, (), Cancellation()).releases[0] for planned in query.releases]
    backend.close()
    cells = [ReleasedCells(exact.keys, exact.cells) for exact in fetched]
    return list(post.run(query, cells, {}, {}, Cancellation()).rows)


# What is computed


def test_what_is_told_is_what_is_expected_to_be_true(planner: Planner, post: PostProcessor) -> None:
    """Of 7,000 who answered 6,000 said yes, each truly with probability 3/4: (6,000 - 1,750) / (1/2)."""
    (row,) = exact_rows(
        planner,
        post,
        "SELECT COUNT(*) FILTER (WHERE ill), COUNT(*) FILTER (WHERE NOT ill), SUM(ill::int), AVG(ill::int), "
        "COUNT(ill), COUNT(*), COUNT(DISTINCT id) FILTER (WHERE party = 'x'), "
        "SUM(CASE WHEN party = 'x' THEN 1 ELSE 0 END), "
        "COUNT(*) FILTER (WHERE ill AND slot = 1) FROM people",
    )
    # The share is at most 1; of 8,000 votes 4,000 name x: (4,000 - 1,600) / (2/5). In slot 1 all 800 say yes.
    assert row == (8500, -1500, 8500, 1.0, 7000, 8000, 6000, 6000, 1200)


def test_groups_are_debiased_among_those_who_answered(planner: Planner, post: PostProcessor) -> None:
    assert exact_rows(planner, post, "SELECT ill, COUNT(*) FROM people GROUP BY ill ORDER BY 1") == [
        (False, -1500),
        (True, 8500),
        (None, 1000),
    ]
    # Within each group of the other keys: all 800 of slot 0 say x: (800 - 160) / (2/5), and -160 / (2/5) of the others.
    found = exact_rows(planner, post, "SELECT slot, party, COUNT(*) FROM people WHERE slot = 0 GROUP BY slot, party")
    assert {(party, n) for slot, party, n in found if slot == 0 and party} == {("x", 1600), ("y", -400), ("z", -400)}


@pytest.mark.parametrize("truth", ["0.75", "0.1", "1"])
def test_shares_are_right_whichever_answer_is_the_likelier(truth: str, post: PostProcessor) -> None:
    """Also where most answers are lies; an answer that is always true is left as it is."""
    response = RandomizedResponse(Fraction(truth), 2)
    said = 300 * Fraction(truth) + 700 * response.lie
    found = debiased(ResponseEstimate(0, 1, response, is_share=True), "s", [3.0, 2.0], 0)
    named = "".join(f", {text} AS {name}" for name, text in found.columns.items())
    cells = f"(SELECT {int(said)} AS p0, 1000 AS p1)"
    with duckdb.connect() as connection:
        sql = f"SELECT {found.value}, {', '.join(found.limits)} FROM (SELECT *{named} FROM {cells})"
        value, low, high = connection.execute(sql).fetchall()[0]
    assert value == pytest.approx(0.3, abs=1e-3)
    assert low < value < high


# What is announced


def held(query: CompiledQuery, exact: ExactCells, post: PostProcessor, true: NDArray[Any], place: int) -> float:
    """In what share of the repeats an interval holds the truth; each row is one."""
    (planned,) = query.releases
    rows = post.run(query, [release(planned, exact)], {}, {}, Cancellation()).rows
    values = np.array([[row[place + 1], row[place + 2]] for row in rows], dtype=float)
    return float(np.mean((values[:, 0] <= true) & (true <= values[:, 1])))


LEAST = 0.94 - 7 * math.sqrt(0.94 * 0.06 / REPEATS)
MOST = 0.97 + 7 * math.sqrt(0.97 * 0.03 / REPEATS)


@pytest.mark.parametrize("column", ["COUNT(*) FILTER (WHERE ill)", "SUM(ill::int)", "AVG(ill::int)"])
@pytest.mark.parametrize(("people", "truth"), [(2000, 600), (200, 20), (100_000, 1000)])
def test_the_interval_is_of_the_noise_and_of_the_answers(
    planner: Planner, post: PostProcessor, column: str, people: int, truth: int
) -> None:
    """The answers are drawn anew in each repeat, and so is the noise: both are what keeps one from the truth."""
    query = planner.compile(f"SELECT {column} AS n FROM people", intervals="on", epsilon="0.3")
    draw = np.random.default_rng(5)
    said = draw.binomial(truth, 0.75, REPEATS) + draw.binomial(people - truth, 0.25, REPEATS)
    all_of_them = np.full(REPEATS, people)
    exact = ExactCells((), all_of_them, (said, all_of_them))
    wanted = truth / people if "AVG" in column else truth
    assert LEAST < held(query, exact, post, np.full(REPEATS, wanted), 0) < MOST


def test_the_interval_of_a_group(planner: Planner, post: PostProcessor) -> None:
    """Three answers; the other key tells the repeats apart, of which there are a thousand."""
    query = planner.compile("SELECT slot, party, COUNT(*) AS n FROM people GROUP BY slot, party", intervals="on")
    truth, draw, slots = {"x": 1000, "y": 300, "z": 0}, np.random.default_rng(6), 1000
    names = list(truth)
    said = sum(
        draw.multinomial(count, [0.6 if name == other else 0.2 for other in names], slots)
        for name, count in truth.items()
    )
    # The keys come in the order of the release's own form.
    keys = np.tile(np.array(names, dtype=object), slots), np.repeat(np.arange(slots).astype(str).astype(object), 3)
    cells = np.asarray(said).reshape(-1)
    order = [column.name for column in query.columns]
    exact = ExactCells(keys, cells, (cells,))
    found = held(query, exact, post, np.tile(list(truth.values()), slots), order.index("n"))
    assert 0.94 - 0.025 < found < 0.97 + 0.02  # seven standard deviations of 1,000 slots


def test_a_group_of_who_said_nothing_is_as_exact_as_any_count(planner: Planner, post: PostProcessor) -> None:
    query = planner.compile("SELECT ill, COUNT(*) AS n FROM people GROUP BY ill", intervals="on")
    exact = ExactCells((np.array(["false", "true", None], dtype=object),), np.array([9, 9, 9]), (np.array([9, 9, 9]),))
    (planned,) = query.releases
    rows = post.run(query, [release(planned, exact)], {}, {}, Cancellation()).rows
    width = planned.primitives[0].noise.half_width()  # type: ignore[union-attr]
    assert [row[3] - row[2] == 2 * width for row in rows] == [False, False, True]


def test_the_two_formulas_have_the_noise_of_their_cells() -> None:
    response = RandomizedResponse(Fraction(3, 5), 3)
    of_group = debiased(ResponseGroupEstimate(0, 1, response), "s", [2.0], 2)
    assert any("PARTITION BY k0" in text for text in of_group.columns.values())
    assert debiased(ResponseGroupEstimate(0, 0, response), "s", None, 1).limits == ("CAST(NULL AS DOUBLE)",) * 2
    assert (
        debiased(ResponseEstimate(0, 1, response, is_share=True), "s", None, 0).limits == ("CAST(NULL AS DOUBLE)",) * 2
    )


# What is refused


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT COUNT(*) FROM people WHERE ill",
        "SELECT party FROM people GROUP BY party ORDER BY COUNT(*) DESC LIMIT 1",
        "SELECT MODE() WITHIN GROUP (ORDER BY party) FROM people",
        "SELECT COUNT(*) FILTER (WHERE ill OR slot > 3) FROM people",
        "SELECT COUNT(*) FILTER (WHERE ill AND party = 'x') FROM people",
        "SELECT COUNT(*) FILTER (WHERE lower(party) = 'x') FROM people",
        "SELECT COUNT(*) FILTER (WHERE party = 'q') FROM people",
        "SELECT COUNT(*) FILTER (WHERE party IN ('x', 'y')) FROM people",
        "SELECT COUNT(slot) FILTER (WHERE ill), COUNT(DISTINCT slot) FILTER (WHERE ill) FROM people",
        "SELECT COUNT(party) FILTER (WHERE ill) FROM people",
        "SELECT COUNT(DISTINCT party) FROM people",
        "SELECT BOOL_OR(ill) FROM people",
        "SELECT SUM(slot) FILTER (WHERE ill) FROM people",
        "SELECT SUM(CASE WHEN ill THEN slot ELSE 0 END) FROM people",
        "SELECT AVG(CASE WHEN ill THEN 1 ELSE 0 END) FROM people",
        "SELECT AVG(DISTINCT ill::int) FROM people",
        "SELECT AVG(ill::int) FILTER (WHERE party = 'x') FROM people",
        "SELECT party, AVG(slot) FROM people GROUP BY party",
        "SELECT party, COUNT(DISTINCT slot) FROM people GROUP BY party",
        "SELECT party, COUNT(*) FILTER (WHERE ill) FROM people GROUP BY party",
        "SELECT party, ill, COUNT(*) FROM people GROUP BY party, ill",
        "SELECT town, party, COUNT(*) FROM people GROUP BY town, party",
        "SELECT UPPER(party), COUNT(*) FROM people GROUP BY UPPER(party)",
        "SELECT glad, COUNT(*) FROM visits GROUP BY glad",
        "SELECT COUNT(*) FROM visits v WHERE EXISTS (SELECT 1 FROM people p WHERE p.id = v.id AND p.ill)",
        "SELECT n, COUNT(*) FROM (SELECT id, COUNT(*) AS n FROM people WHERE ill GROUP BY id) t GROUP BY n",
        "SELECT ill, COUNT(*) FROM (SELECT id, ill FROM people UNION ALL SELECT id, ill FROM people) t GROUP BY ill",
    ],
)
def test_what_is_not_linear_is_refused_with_a_query_that_works(planner: Planner, sql: str) -> None:
    with pytest.raises(PolicyViolation, match="randomized") as caught:
        planner.compile(sql)
    assert caught.value.hint


def test_what_does_not_look_at_the_answers_is_answered_as_ever(planner: Planner) -> None:
    for sql in (
        "SELECT slot, COUNT(*), AVG(slot) FROM people GROUP BY slot",
        "SELECT slot FROM (SELECT * FROM people UNION ALL SELECT * FROM people) t GROUP BY slot",
        "SELECT COUNT(ill) FROM people",
        "SELECT COUNT(*) FROM visits",
    ):
        assert planner.compile(sql).releases


def test_answers_that_are_all_true_are_asked_as_any(policy: Policy) -> None:
    """Nothing is taken off the count; the noise of those who answered is not seen, but has a share all the same."""
    text = policy.path.read_text(encoding="utf-8")
    other = policy.path.with_name("true.toml")
    other.write_text(text.replace("randomized_response = 0.75", "randomized_response = 1"), encoding="utf-8")
    (planned,) = Planner(load_policy(other)).compile("SELECT COUNT(*) FILTER (WHERE ill) FROM people").releases
    named, answered = (primitive.noise.event.scale for primitive in planned.primitives)
    assert named < answered


# What is said of it


def test_the_plan_and_the_columns_say_so(policy: Policy, make_engine: MakeEngine) -> None:
    session = Session(make_engine(policy), "ana")
    (statement,) = session.parse("SELECT COUNT(*) FILTER (WHERE ill) AS n FROM people")
    lines = explanation_lines(session.explain(statement))
    assert any("counts of randomized answers" in line for line in lines)
    (statement,) = session.parse("SELECT description FROM dpsql.columns WHERE column_name = 'ill'")
    assert list(session.execute(statement).rows) == [("randomized response, true with probability 0.75",)]


def test_how_answers_were_given_is_part_of_what_a_release_is_reused_by(policy: Policy) -> None:
    text = policy.path.read_text(encoding="utf-8")
    other = policy.path.with_name("other.toml")
    other.write_text(text.replace("randomized_response = 0.75", "randomized_response = 0.8"), encoding="utf-8")
    assert load_policy(other).fingerprint != policy.fingerprint


@pytest.mark.parametrize(
    ("before", "after", "said"),
    [
        ("= 0.75", "= 0.5", "carries no information"),
        ("= 0.75", "= 0", "not the probability"),
        ("= 0.75", "= 1.5", "not the probability"),
        ("randomized_response = 0.75", "coin = 0.75", "unknown key"),
        ("{ randomized_response = 0.75 }", "{}", "randomized_response is missing"),
        ('"text", values = ["x", "y", "z"]', '"text"', "a boolean column, or a domain"),
        ('"text", values = ["x", "y", "z"]', '"date"', "a boolean column, or a domain"),
        ('values = ["x", "y", "z"]', 'values = ["x"]', "at least two values"),
        ('values = ["x", "y", "z"], collected_by = { randomized_response = 0.6', 'values = ["x", "y", "z", "a", "b"], '
         "collected_by = { randomized_response = 0.2", "carries no information"),
    ],
)  # fmt: skip
def test_answers_that_say_nothing_are_no_policy(policy: Policy, before: str, after: str, said: str) -> None:
    text = policy.path.read_text(encoding="utf-8")
    assert before in text
    wrong = policy.path.with_name("wrong.toml")
    wrong.write_text(text.replace(before, after, 1), encoding="utf-8")
    with pytest.raises(InvalidPolicy, match=said):
        load_policy(wrong)
