"""Replies come at multiples of the quantum, and never before they are made."""

from hypothesis import given
from hypothesis import strategies as st

from dpsql.padding import held_back


@given(took=st.floats(0, 1000), quantum=st.integers(1, 60_000))
def test_a_reply_comes_at_a_multiple_of_the_quantum(took: float, quantum: int) -> None:
    wait = held_back(took, quantum)
    multiples = (took + wait) / (quantum / 1000)
    assert 0 < wait <= quantum / 1000
    assert abs(multiples - round(multiples)) < 1e-6 * max(multiples, 1)


@given(took=st.floats(0, 1000))
def test_without_a_quantum_nothing_is_held_back(took: float) -> None:
    assert held_back(took, 0) == 0


def test_what_took_longer_within_a_quantum_comes_no_later() -> None:
    assert {round(took + held_back(took, 100), 9) for took in (0, 0.001, 0.05, 0.0999)} == {0.1}
