"""The register of clients: guesses are judged and counted in one step, and places are bounded."""

import pickle

import pytest

from dpsql.errors import AuthenticationFailed, TooManyConnections
from dpsql.wire.client_limits import ClientLimits
from dpsql.wire.client_register import FailedGuess, LocalRegister
from dpsql.wire.scram import PLAIN, ScramServer, Verifier, make_verifier
from dpsql.wire.tls import load_tls
from tests.wire.conftest import CERTIFICATE, KEY

AT_ONCE = 5


def wrong() -> bytes:
    raise AuthenticationFailed("password authentication failed")


def test_nothing_is_judged_while_too_many_failures_wait() -> None:
    register = LocalRegister()
    judged: list[str] = []

    def right() -> bytes:
        judged.append("right")
        return b"proof"

    failures = [register.judge("ana", "h", wrong) for _ in range(AT_ONCE)]
    assert all(isinstance(failure, FailedGuess) for failure in failures)
    with pytest.raises(TooManyConnections):
        register.judge("ana", "h", right)
    assert not judged
    assert register.judge("ana", "other", right) == register.judge("ben", "h", right) == b"proof"
    register.end_failure("ana", "h")
    assert register.judge("ana", "h", right) == b"proof"
    assert isinstance(register.judge("ana", "h", wrong), FailedGuess)
    with pytest.raises(TooManyConnections):
        register.judge("ana", "h", right)


def test_wrong_keys_count_as_wrong_passwords_do() -> None:
    register = LocalRegister()
    cancelled: list[int] = []
    register.on_cancel = cancelled.append
    seat = register.enter("ana")
    assert register.cancel(seat.process_id + 1, seat.secret_key, "h") is None
    for _ in range(AT_ONCE):
        assert isinstance(register.cancel(seat.process_id, b"0000", "h"), FailedGuess)
    for key in (b"0000", seat.secret_key):
        with pytest.raises(TooManyConnections):
            register.cancel(seat.process_id, key, "h")
    assert not cancelled
    register.end_failure("ana", "h")
    assert register.cancel(seat.process_id, seat.secret_key, "h") is None
    assert cancelled == [seat.process_id]
    register.leave(seat.process_id)
    assert register.cancel(seat.process_id, seat.secret_key, "h") is None
    assert cancelled == [seat.process_id]


def test_places_are_bounded() -> None:
    register = LocalRegister(ClientLimits(connections=3, user_connections=2))
    seats = [register.enter("ana") for _ in range(2)]
    with pytest.raises(TooManyConnections, match='for role "ana"'):
        register.enter("ana")
    register.enter("ben")
    with pytest.raises(TooManyConnections, match="too many clients already"):
        register.enter("cyd")
    register.leave(seats[0].process_id)
    assert register.enter("ana").process_id not in {seat.process_id for seat in seats}


def test_what_is_judged_elsewhere_is_the_same_there() -> None:
    """A worker sends an exchange to its parent, and the certificate's files come the other way."""
    scram = ScramServer(Verifier.parse(make_verifier("secret", iterations=4096)), nonce="server")
    scram.challenge(PLAIN, b"n,,n=,r=client")
    there = pickle.loads(pickle.dumps(scram))
    for judge in (scram, there):
        with pytest.raises(AuthenticationFailed):
            judge.verify(b"c=biws,r=clientserver,p=" + b"A" * 43 + b"=")
    tls = load_tls(CERTIFICATE, KEY)
    loaded = pickle.loads(pickle.dumps(tls))
    assert (loaded.channel_binding, loaded.expires) == (tls.channel_binding, tls.expires)
