"""The error tree: one SQLSTATE for each leaf, and the PEP 249 base that psycopg gives the same SQLSTATE."""

import inspect
import re
from fractions import Fraction

import psycopg
import pytest

from dpsql import errors

# PEP 249's own tree: name and parent.
PEP_249 = {
    "Warning": "Exception",
    "Error": "Exception",
    "InterfaceError": "Error",
    "DatabaseError": "Error",
    "DataError": "DatabaseError",
    "OperationalError": "DatabaseError",
    "IntegrityError": "DatabaseError",
    "InternalError": "DatabaseError",
    "ProgrammingError": "DatabaseError",
    "NotSupportedError": "DatabaseError",
}
LEAVES = [
    member
    for name, member in vars(errors).items()
    if inspect.isclass(member) and issubclass(member, errors.Error) and name not in PEP_249
]


def base(error: type[BaseException]) -> str:
    """Return the name of the nearest PEP 249 class at or above an error."""
    return next(above.__name__ for above in error.__mro__ if above.__name__ in PEP_249)


@pytest.mark.parametrize(("name", "parent"), PEP_249.items())
def test_pep_249_tree(name: str, parent: str) -> None:
    assert [above.__name__ for above in getattr(errors, name).__bases__] == [parent]


def test_there_are_leaves() -> None:
    assert len(LEAVES) >= 25


@pytest.mark.parametrize("leaf", LEAVES)
def test_a_leaf_declares_its_own_sqlstate(leaf: type[errors.Error]) -> None:
    assert re.fullmatch("[0-9A-Z]{5}", vars(leaf)["sqlstate"])
    assert not leaf.__subclasses__()


def test_sqlstates_are_unique() -> None:
    assert len({leaf.sqlstate for leaf in LEAVES}) == len(LEAVES)


@pytest.mark.parametrize("leaf", LEAVES)
def test_a_leaf_has_the_base_that_psycopg_gives_its_sqlstate(leaf: type[errors.Error]) -> None:
    if leaf.sqlstate.startswith("HY"):  # of call-level interfaces; PostgreSQL sends none of these
        assert base(leaf) == "InterfaceError"
        return
    assert base(leaf) == base(psycopg.errors.lookup(leaf.sqlstate))


@pytest.mark.parametrize("leaf", LEAVES)
def test_the_drawing_at_the_head_has_every_leaf_under_its_base(leaf: type[errors.Error]) -> None:
    drawing = errors.__doc__ or ""
    before, found, _ = drawing.partition(f"{leaf.__name__} {leaf.sqlstate}")
    assert found
    assert re.findall("─ ([A-Za-z]+Error)", before)[-1] == base(leaf)


def test_the_drawing_has_nothing_else() -> None:
    drawn = re.findall(r"\b([A-Z][A-Za-z]+) ([0-9A-Z]{5})\b", errors.__doc__ or "")
    assert sorted(drawn) == sorted((leaf.__name__, leaf.sqlstate) for leaf in LEAVES)


def test_an_error_carries_what_a_client_shows() -> None:
    error = errors.UndefinedColumn("no column agee", detail="patients has age", hint="SELECT AVG(age) …", position=12)
    assert str(error) == error.message == "no column agee"
    assert (error.detail, error.hint, error.position) == ("patients has age", "SELECT AVG(age) …", 12)


def test_an_exhausted_budget_carries_the_numbers() -> None:
    error = errors.BudgetExhausted("too dear", requested=Fraction(1, 2), remaining=None, hint="SET dpsql.epsilon = 0.1")
    assert (error.requested, error.remaining, error.hint) == (Fraction(1, 2), None, "SET dpsql.epsilon = 0.1")


def test_a_backend_failure_says_one_fixed_sentence() -> None:
    error = errors.BackendFailure()
    assert str(error) == errors.BackendFailure.SENTENCE
    assert (error.detail, error.hint, error.position) == (None, None, None)
    assert str(errors.BackendFailure(charged=False)) == errors.BackendFailure.UNCHARGED
    assert list(inspect.signature(errors.BackendFailure).parameters) == ["charged"]
