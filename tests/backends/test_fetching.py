"""Whose failure it is: before the engine has a query, the infrastructure's; after that, one on private rows."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from dpsql.backends.backend import Cancellation, Unreachable, fetching
from dpsql.errors import BackendFailure, CardinalityViolation, DatabaseUnavailable, Error, QueryCanceled


class Failing(Exception):
    """What an engine raises."""


def told(error: Exception, *, handed_over: bool = False, cancelled: bool = False) -> type[Error]:
    """What becomes of an error."""
    cancellation = Cancellation()
    with pytest.raises(Error) as caught, fetching(cancellation, Failing) as hand_over:
        if handed_over:
            hand_over()
        if cancelled:
            cancellation.cancel()
        raise error
    assert caught.value.__cause__ is None and (caught.value is error or caught.value.__suppress_context__)
    return caught.type


def test_an_engine_that_is_not_reached_is_nobodys_failure() -> None:
    assert told(Unreachable("connection refused", "start it")) is DatabaseUnavailable


@pytest.mark.parametrize("handed_over", [False, True])
@pytest.mark.parametrize(
    "error", [Failing, ValueError, TypeError, MemoryError, RuntimeError, lambda: DatabaseUnavailable("so it says")]
)
def test_all_else_may_be_of_private_rows(error: Callable[[], Exception], handed_over: bool) -> None:
    assert told(error(), handed_over=handed_over) is BackendFailure


def test_once_the_engine_has_a_query_a_connection_that_is_lost_is_a_failure() -> None:
    assert told(Unreachable("connection refused", "start it"), handed_over=True) is BackendFailure


def test_an_engine_that_is_stopped_fails_in_no_way_and_an_answer_that_cannot_be_read_does() -> None:
    assert told(Failing(), handed_over=True, cancelled=True) is QueryCanceled
    assert told(ValueError(), handed_over=True, cancelled=True) is BackendFailure


class CutAfterFirst(Cancellation):
    """Cuts the engine off as soon as the first query is over, before the second can begin."""

    def __init__(self, cut: Callable[[], object]) -> None:
        super().__init__()
        self.cut = cut

    @contextmanager
    def stopping(self, stop: Callable[[], object]) -> Iterator[None]:
        with super().stopping(stop):
            yield
        self.cut()


def test_what_is_told_of_public_tables_stays() -> None:
    assert told(CardinalityViolation(), handed_over=True) is CardinalityViolation
