"""Failed logins wait the longer, the more there were; memory stays bounded."""

import time

import psycopg
import pytest

from dpsql.errors import TooManyConnections, TooManyStatements
from dpsql.wire.client_limits import ClientLimits
from dpsql.wire.login_throttle import LoginThrottle
from dpsql.wire.rate_limit import RateLimit
from tests.waiting import wait_for
from tests.wire.rawclient import RawClient
from tests.wire.test_server import Serve


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def wait(throttle: LoginThrottle, user: str, address: str) -> float:
    with throttle.failed(user, address) as seconds:
        return seconds


def test_each_failure_of_a_user_waits_twice_as_long_from_wherever() -> None:
    throttle = LoginThrottle(0.5, most=8)
    assert [wait(throttle, "ana", f"10.0.0.{number}") for number in range(6)] == [0.5, 1, 2, 4, 8, 8]
    assert wait(throttle, "ben", "10.1.0.1") == 0.5


def test_each_failure_of_an_address_waits_twice_as_long_for_whomever() -> None:
    throttle = LoginThrottle(0.5, most=8)
    assert [wait(throttle, f"user {number}", "10.0.0.1") for number in range(40)] == [0.5, 1, 2, 4, *[8] * 36]


def test_failures_are_forgotten() -> None:
    clock = Clock()
    throttle = LoginThrottle(1, clock=clock)
    assert [wait(throttle, "ana", "h"), wait(throttle, "ana", "h")] == [1, 2]
    clock.now += 901
    assert wait(throttle, "ana", "h") == 1


def test_what_is_remembered_is_bounded() -> None:
    throttle = LoginThrottle(1)
    for number in range(12_000):
        wait(throttle, f"{number}".rjust(63, "x") + "y" * 1000, f"address {number}")
    assert len(throttle) == 10_000
    assert not any(len(key) > 63 for _, key in throttle._failures)
    # Those of old are forgotten first.
    assert ("address", "address 0") not in throttle._failures
    assert ("address", "address 11999") in throttle._failures


def test_no_number_of_failures_is_too_many_to_count() -> None:
    throttle = LoginThrottle(0.5, most=8)
    assert {wait(throttle, "ana", "h") for _ in range(2_000)} == {0.5, 1, 2, 4, 8}


def test_a_user_with_many_failures_to_be_told_is_not_heard_from_that_address() -> None:
    throttle = LoginThrottle(1, at_once=2)
    with throttle.failed("a", "h"):
        throttle.check("a", "h")
        with throttle.failed("a", "h"):
            throttle.check("a", "other")
            throttle.check("b", "h")
            with pytest.raises(TooManyConnections):
                throttle.check("a", "h")
        throttle.check("a", "h")
    assert not throttle._waiting


def test_over_a_socket_a_right_password_never_waits(serve: Serve) -> None:
    server = serve(limits=ClientLimits(failure_delay=0.05))
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
        server.register.throttle._count(("user", "ana"))
        == server.register.throttle._count(("address", "127.0.0.1"))
        == 4
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
    assert server.register.throttle._count(("user", user)) == 2


def test_over_a_socket_who_guesses_at_a_user_is_refused_for_a_while_and_no_other_user_is(serve: Serve) -> None:
    server = serve(limits=ClientLimits(failure_delay=0.5))
    server.register.throttle._at_once = 1
    with RawClient(server.port) as guesser:
        guesser.start()
        guesser.prove(password="wrong")
        wait_for(lambda: bool(server.register.throttle._waiting))
        with RawClient(server.port) as next_one:
            next_one.start()
            assert next_one.fatal().sqlstate == "53300"
        with psycopg.connect(server.dsn.replace("ana", "ben")) as other:
            assert other.execute("select 1").fetchall() == [(1,)]
        assert guesser.fatal().sqlstate == "28P01"


def test_a_user_has_only_so_many_connections(serve: Serve) -> None:
    server = serve(limits=ClientLimits(user_connections=1))
    with psycopg.connect(server.dsn), RawClient(server.port) as second:
        second.start()
        second.prove()
        refusal = second.fatal()
        assert (refusal.sqlstate, refusal.message) == ("53300", 'too many connections for role "ana"')
    wait_for(lambda: server.server.sessions == 0)
    with psycopg.connect(server.dsn):
        assert server.server.sessions == 1


def test_a_user_has_only_so_many_statements_a_minute() -> None:
    clock = Clock()
    rate_limit = RateLimit(3, clock)
    for _ in range(3):
        rate_limit.take("ana")
    with pytest.raises(TooManyStatements, match="3 a minute") as refused:
        rate_limit.take("ana")
    assert refused.value.hint == "Try again in 20.0 seconds."
    rate_limit.take("ben")
    clock.now += 20
    rate_limit.take("ana")
    with pytest.raises(TooManyStatements):
        rate_limit.take("ana")
    clock.now += 3600
    for _ in range(3):
        rate_limit.take("ana")
    with pytest.raises(TooManyStatements):
        rate_limit.take("ana")


def test_no_rate_is_no_limit() -> None:
    rate_limit = RateLimit(None)
    for _ in range(10_000):
        rate_limit.take("ana")
