"""Failed logins wait the longer, the more there were; memory stays bounded."""

import time

import psycopg
import pytest

from dpsql.errors import TooManyConnections, TooManyStatements
from dpsql.wire.guesses import Guesses
from dpsql.wire.rates import Rates
from dpsql.wire.server import Limits
from tests.wire.rawclient import RawClient
from tests.wire.test_server import Serve, eventually


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def wait(guesses: Guesses, user: str, address: str) -> float:
    with guesses.failed(user, address) as seconds:
        return seconds


def test_each_failure_of_a_user_waits_twice_as_long_from_wherever() -> None:
    guesses = Guesses(0.5, most=8)
    assert [wait(guesses, "ana", f"10.0.0.{number}") for number in range(6)] == [0.5, 1, 2, 4, 8, 8]
    assert wait(guesses, "ben", "10.1.0.1") == 0.5


def test_each_failure_of_an_address_waits_twice_as_long_for_whomever() -> None:
    guesses = Guesses(0.5, most=8)
    assert [wait(guesses, f"user {number}", "10.0.0.1") for number in range(40)] == [0.5, 1, 2, 4, *[8] * 36]


def test_failures_are_forgotten() -> None:
    clock = Clock()
    guesses = Guesses(1, clock=clock)
    assert [wait(guesses, "ana", "h"), wait(guesses, "ana", "h")] == [1, 2]
    clock.now += 901
    assert wait(guesses, "ana", "h") == 1


def test_what_is_remembered_is_bounded() -> None:
    guesses = Guesses(1)
    for number in range(12_000):
        wait(guesses, f"{number}".rjust(63, "x") + "y" * 1000, f"address {number}")
    assert len(guesses) == 10_000
    assert not any(len(key) > 63 for _, key in guesses._failures)
    # Those of old are forgotten first.
    assert ("address", "address 0") not in guesses._failures
    assert ("address", "address 11999") in guesses._failures


def test_no_number_of_failures_is_too_many_to_count() -> None:
    guesses = Guesses(0.5, most=8)
    assert {wait(guesses, "ana", "h") for _ in range(2_000)} == {0.5, 1, 2, 4, 8}


def test_an_address_with_many_failures_to_be_told_is_not_heard() -> None:
    guesses = Guesses(1, at_once=2)
    with guesses.failed("a", "h"):
        guesses.check("h")
        with guesses.failed("b", "h"):
            guesses.check("other")
            with pytest.raises(TooManyConnections):
                guesses.check("h")
        guesses.check("h")
    assert not guesses._waiting


def test_over_a_socket_a_right_password_never_waits(serve: Serve) -> None:
    server = serve(limits=Limits(failure_delay=0.05))
    waits = []
    for _ in range(3):
        begun = time.monotonic()
        with RawClient(server.port) as client:
            client.start()
            client.prove(password="wrong")
            assert client.fatal().sqlstate == "28P01"
        waits.append(time.monotonic() - begun)
    assert all(waited >= least for waited, least in zip(waits, (0.05, 0.1, 0.2), strict=True))
    assert (
        server.server._guesses._count(("user", "ana")) == server.server._guesses._count(("address", "127.0.0.1")) == 4
    )
    with psycopg.connect(server.dsn):
        assert server.server.sessions == 1


@pytest.mark.parametrize("user", ["ana", "nobody"])
def test_over_a_socket_a_failure_counts_whoever_exists(serve: Serve, user: str) -> None:
    server = serve()
    with RawClient(server.port) as client:
        client.start(user=user)
        client.prove(password="wrong")
        assert client.fatal().sqlstate == "28P01"
    assert server.server._guesses._count(("user", user)) == 2


def test_over_a_socket_an_address_that_guesses_is_refused_for_a_while(serve: Serve) -> None:
    server = serve(limits=Limits(failure_delay=0.5))
    server.server._guesses._at_once = 1
    with RawClient(server.port) as guesser:
        guesser.start()
        guesser.prove(password="wrong")
        assert eventually(lambda: bool(server.server._guesses._waiting))
        with RawClient(server.port) as next_one:
            assert next_one.fatal().sqlstate == "53300"
        assert guesser.fatal().sqlstate == "28P01"


def test_a_user_has_only_so_many_connections(serve: Serve) -> None:
    server = serve(limits=Limits(user_connections=1))
    with psycopg.connect(server.dsn), RawClient(server.port) as second:
        second.start()
        second.prove()
        refusal = second.fatal()
        assert (refusal.sqlstate, refusal.message) == ("53300", 'too many connections for role "ana"')
    assert eventually(lambda: server.server.sessions == 0)
    with psycopg.connect(server.dsn):
        assert server.server.sessions == 1


def test_a_user_has_only_so_many_statements_a_minute() -> None:
    clock = Clock()
    rates = Rates(3, clock)
    for _ in range(3):
        rates.take("ana")
    with pytest.raises(TooManyStatements, match="3 a minute") as refused:
        rates.take("ana")
    assert refused.value.hint == "Try again in 20.0 seconds."
    rates.take("ben")
    clock.now += 20
    rates.take("ana")
    with pytest.raises(TooManyStatements):
        rates.take("ana")
    clock.now += 3600
    for _ in range(3):
        rates.take("ana")
    with pytest.raises(TooManyStatements):
        rates.take("ana")


def test_no_rate_is_no_limit() -> None:
    rates = Rates(None)
    for _ in range(10_000):
        rates.take("ana")
