"""Sessions end by themselves, when the owner logs out, and when there are too many."""

import pytest

from dpsql.console.login import Password, Sessions
from tests.wire.test_login_throttle import Clock


def test_the_password_and_nothing_else_is_it() -> None:
    password = Password("the öwner's & secret")
    assert password.is_it("the öwner's & secret")
    assert not any(map(password.is_it, ("", "the", "the öwner's & secret ", "THE ÖWNER'S & SECRET", "\0", "x" * 4000)))
    assert "secret" not in repr(vars(password))


def test_an_empty_password_is_none() -> None:
    with pytest.raises(ValueError, match="empty"):
        Password("")


def test_a_session_goes_on_while_it_is_used_and_ends_at_last() -> None:
    clock = Clock()
    sessions = Sessions(clock)
    token = sessions.begin()
    assert not sessions.is_open(None) and not sessions.is_open("") and not sessions.is_open(token[:-1])
    for _ in range(16):
        clock.now += 1795
        assert sessions.is_open(token)
    clock.now += 100  # more than eight hours, though it was used a moment ago
    assert not sessions.is_open(token) and len(sessions) == 0


def test_a_session_that_is_not_used_ends() -> None:
    clock = Clock()
    sessions = Sessions(clock)
    token = sessions.begin()
    clock.now += 1801
    assert not sessions.is_open(token)


def test_a_session_ends_when_the_owner_says_so() -> None:
    sessions = Sessions()
    token, other = sessions.begin(), sessions.begin()
    sessions.end(token)
    sessions.end("another")
    sessions.end(None)
    assert (sessions.is_open(token), sessions.is_open(other)) == (False, True)
    assert token not in repr(vars(sessions))


def test_there_are_only_so_many_and_the_least_used_one_gives_way() -> None:
    clock = Clock()
    sessions = Sessions(clock)
    tokens = []
    for _ in range(20):
        clock.now += 1
        tokens.append(sessions.begin())
    clock.now += 1
    assert sessions.is_open(tokens[0])
    tokens.append(sessions.begin())
    assert len(sessions) == 20
    assert [sessions.is_open(token) for token in tokens[:3]] == [True, False, True]
