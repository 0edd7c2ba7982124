"""Logging in: versions, options, encryption, passwords, and what a stranger can learn."""

from collections.abc import Callable

import psycopg
import pytest

from dpsql.errors import InvalidParameter
from dpsql.wire.client_limits import ClientLimits
from dpsql.wire.login import check_encoding, parse_options
from dpsql.wire.messages.backend import (
    AuthenticationSASL,
    AuthenticationSASLContinue,
    BackendKeyData,
    ErrorResponse,
    NegotiateProtocolVersion,
    ParameterStatus,
)
from dpsql.wire.messages.frontend import (
    GSSENCRequest,
    Query,
    SASLInitialResponse,
    SSLRequest,
    StartupMessage,
)
from dpsql.wire.scram import PLAIN, PLUS
from tests.waiting import HANG_SECONDS, wait_for
from tests.wire.conftest import CERTIFICATE, RunningServer
from tests.wire.rawclient import RawClient

Serve = Callable[..., RunningServer]
USER = (("user", "ana"), ("database", "clinic"))


def test_what_a_client_is_told_at_the_start(server: RunningServer) -> None:
    with RawClient(server.port) as client:
        replies = client.log_in(application_name="x", options="-c TimeZone=Europe/Oslo")
    told = {message.name: message.value for message in replies if isinstance(message, ParameterStatus)}
    assert told == {
        "server_version": "15.0 (dpsql 0.1.0)",
        "server_encoding": "UTF8",
        "client_encoding": "UTF8",
        "DateStyle": "ISO, MDY",
        "IntervalStyle": "postgres",
        "TimeZone": "Europe/Oslo",
        "integer_datetimes": "on",
        "standard_conforming_strings": "on",
        "is_superuser": "off",
        "session_authorization": "ana",
        "application_name": "x",
        "in_hot_standby": "off",
        "default_transaction_read_only": "on",
    }
    assert server.sessions[0].settings == {"TimeZone": "Europe/Oslo", "application_name": "x"}


def test_keys_differ(server: RunningServer) -> None:
    keys = set()
    for _ in range(3):
        with RawClient(server.port) as client:
            client.log_in()
            assert client.key is not None
            keys.add((client.key.process_id, client.key.secret_key))
    assert len({process_id for process_id, _ in keys}) == len({key for _, key in keys}) == 3
    assert {len(key) for _, key in keys} == {4}


@pytest.mark.parametrize(("user", "password"), [("ana", "wrong"), ("nobody", "secret"), ("nobody", "")])
def test_a_wrong_user_and_a_wrong_password_are_told_alike(server: RunningServer, user: str, password: str) -> None:
    with RawClient(server.port) as client:
        client.start(user=user)
        client.prove(password)
        assert client.fatal() == ErrorResponse("FATAL", "28P01", f'password authentication failed for user "{user}"')
    assert not server.sessions


def test_the_salt_of_an_unknown_user_stays_the_same(serve: Serve) -> None:
    def salt(server: RunningServer, user: str) -> str:
        with RawClient(server.port) as client:
            client.start(user=user)
            client.receive()
            client.send(SASLInitialResponse(PLAIN, b"n,,n=,r=abc"))
            challenge = client.receive()
            assert isinstance(challenge, AuthenticationSASLContinue)
            return challenge.data.decode().split(",", 1)[1]

    one, same, other = serve(decoy_secret=b"1"), serve(decoy_secret=b"1"), serve(decoy_secret=b"2")
    assert salt(one, "nobody") == salt(one, "nobody") == salt(same, "nobody")
    assert salt(one, "nobody") != salt(one, "somebody")
    assert salt(one, "nobody") != salt(other, "nobody")
    assert salt(one, "ana") == salt(other, "ana")
    assert len(salt(one, "ana")) == len(salt(one, "nobody"))


def test_a_database_that_is_not_served_shows_only_after_login(server: RunningServer) -> None:
    with RawClient(server.port) as client:
        client.start(database="nowhere")
        client.prove("wrong")
        assert client.fatal().sqlstate == "28P01"
    with RawClient(server.port) as client:
        client.start(database="nowhere")
        client.prove()
        assert client.fatal() == ErrorResponse("FATAL", "3D000", 'database "nowhere" does not exist')


def test_the_database_defaults_to_the_users_name(server: RunningServer) -> None:
    with RawClient(server.port) as client:
        client.send(StartupMessage(3, 0, (("user", "ana"),)))
        client.prove()
        assert client.fatal().message == 'database "ana" does not exist'


def test_a_session_that_is_refused(server: RunningServer) -> None:
    with RawClient(server.port) as client:
        client.start(user="barred")
        client.prove()
        assert client.fatal() == ErrorResponse("FATAL", "42501", "barred")


def test_a_setting_that_is_refused_ends_the_login(server: RunningServer) -> None:
    with RawClient(server.port) as client:
        client.start(impossible="x")
        client.prove()
        assert client.fatal().sqlstate == "22023"
    assert server.sessions[0].closed.wait(HANG_SECONDS)


def test_a_query_instead_of_a_proof_is_refused(server: RunningServer) -> None:
    with RawClient(server.port) as client:
        client.start()
        assert isinstance(client.receive(), AuthenticationSASL)
        client.send(Query(b"select 1"))
        assert client.fatal().sqlstate == "08P01"
    assert not server.sessions


def test_a_query_sent_along_with_a_wrong_proof_is_not_run(server: RunningServer) -> None:
    with RawClient(server.port) as client:
        client.start()
        client.prove("wrong")
        client.send(Query(b"select 1"))
        assert client.fatal().sqlstate == "28P01"
    assert not server.sessions


@pytest.mark.parametrize(
    ("startup", "sqlstate"),
    [
        (StartupMessage(2, 0, ()), "0A000"),
        (StartupMessage(4, 1, ()), "0A000"),
        (StartupMessage(3, 0, (("database", "clinic"),)), "28P01"),
        (StartupMessage(3, 0, (*USER, ("replication", "database"))), "0A000"),
        (StartupMessage(3, 0, (*USER, ("client_encoding", "LATIN1"))), "22023"),
        (StartupMessage(3, 0, (*USER, ("options", "-c client_encoding=LATIN1"))), "22023"),
        (StartupMessage(3, 0, (*USER, ("options", "-d 5"))), "22023"),
    ],
)
def test_startups_that_are_refused(server: RunningServer, startup: StartupMessage, sqlstate: str) -> None:
    with RawClient(server.port) as client:
        client.send(startup)
        assert client.fatal().sqlstate == sqlstate


@pytest.mark.parametrize("data", [b"\0\0\0\3", b"\0\1\0\0", b"GET / HTTP/1.1\r\n\r\n", b"\0\0\0\x09\0\3\0\0x"])
def test_bytes_that_are_no_startup_are_refused(server: RunningServer, data: bytes) -> None:
    with RawClient(server.port) as client:
        client.send(data)
        assert client.fatal().sqlstate == "08P01"


def test_a_newer_protocol_is_negotiated_down(server: RunningServer) -> None:
    with RawClient(server.port) as client:
        client.send(StartupMessage(3, 2, (*USER, ("_pq_.future", "1"))))
        assert client.receive() == NegotiateProtocolVersion(3 << 16, ("_pq_.future",))
        client.prove()
        assert any(isinstance(message, BackendKeyData) for message in client.until_ready())
    assert server.sessions[0].settings == {}


def test_encryption_is_refused_where_there_is_none(server: RunningServer) -> None:
    with RawClient(server.port) as client:
        for request in (GSSENCRequest(), SSLRequest()):
            client.send(request)
            assert client.socket.recv(1) == b"N"
        client.log_in()


@pytest.mark.parametrize("spelling", ["UTF8", "utf-8", "'utf-8'", "Unicode"])
def test_spellings_of_utf8(spelling: str) -> None:
    check_encoding(spelling)


@pytest.mark.parametrize("spelling", ["", "LATIN1", "utf16", "SQL_ASCII"])
def test_other_encodings(spelling: str) -> None:
    with pytest.raises(InvalidParameter):
        check_encoding(spelling)


@pytest.mark.parametrize(
    ("options", "settings"),
    [
        ("", ()),
        ("-c a=b", (("a", "b"),)),
        ("-ca=b  --c-d=e", (("a", "b"), ("c_d", "e"))),
        (r"-c a=b\ c\\d", (("a", "b c\\d"),)),
        ("-c dpsql.epsilon=0.2", (("dpsql.epsilon", "0.2"),)),
        ("-c a=", (("a", ""),)),
        ("-c a=b=c", (("a", "b=c"),)),
    ],
)
def test_options(options: str, settings: tuple[tuple[str, str], ...]) -> None:
    assert parse_options(options) == settings


@pytest.mark.parametrize("options", ["-c", "-c a", "-c =b", "--", "a=b", "-f x", "-"])
def test_options_that_are_refused(options: str) -> None:
    with pytest.raises(InvalidParameter):
        parse_options(options)


def test_a_login_that_takes_too_long_is_ended(serve: Serve) -> None:
    server = serve(limits=ClientLimits(login_seconds=3))
    with RawClient(server.port) as client:
        client.start()
        client.receive()
        assert client.fatal() == ErrorResponse("FATAL", "57014", "canceling authentication due to timeout")


def test_a_failed_login_waits_and_others_do_not(serve: Serve) -> None:
    server = serve(limits=ClientLimits(failure_delay=600))
    with RawClient(server.port) as guesser, RawClient(server.port) as other:
        guesser.start()
        guesser.prove("wrong")
        wait_for(lambda: bool(server.register.throttle._waiting))
        other.log_in()
        assert server.register.throttle._waiting, "and it is told nothing yet"


def test_psycopg_with_tls_binds_the_channel(serve: Serve) -> None:
    server = serve(tls=True, require_tls=True)
    with psycopg.connect(server.dsn + "?sslmode=require&channel_binding=require") as connection:
        assert connection.execute("select 1").fetchall() == [(1,)]
    with psycopg.connect(server.dsn + "?sslmode=require&channel_binding=disable") as connection:
        assert connection.pgconn.ssl_in_use


def test_psycopg_verifies_the_certificate(serve: Serve) -> None:
    server = serve(tls=True)
    with psycopg.connect(server.dsn + f"?sslmode=verify-full&sslrootcert={CERTIFICATE}") as connection:
        assert connection.execute("select 1").fetchall() == [(1,)]


def test_a_clear_connection_where_tls_is_required(serve: Serve) -> None:
    server = serve(tls=True, require_tls=True)
    with pytest.raises(psycopg.OperationalError, match="requires TLS\nHINT:  Connect with sslmode=require"):
        psycopg.connect(server.dsn + "?sslmode=disable")
    assert not server.sessions


def test_bytes_behind_the_tls_request_are_refused(serve: Serve) -> None:
    with RawClient(serve(tls=True).port) as client:
        client.send(SSLRequest(), StartupMessage(3, 0, USER))
        assert client.fatal().message == "received unencrypted data after SSL request"


def test_a_broken_handshake_is_quiet(serve: Serve, caplog: pytest.LogCaptureFixture) -> None:
    server = serve(tls=True)
    with RawClient(server.port) as client:
        client.send(SSLRequest())
        assert client.socket.recv(1) == b"S"
        client.send(b"this is not a handshake")
        assert client.socket.recv(100) is not None
    with psycopg.connect(server.dsn) as connection:
        assert connection.execute("select 1").fetchall() == [(1,)]
    assert not [record for record in caplog.records if record.levelname == "ERROR"]


def test_the_plus_mechanism_is_offered_under_tls_only(server: RunningServer) -> None:
    with RawClient(server.port) as client:
        client.start()
        assert client.receive() == AuthenticationSASL((PLAIN,))
        client.send(SASLInitialResponse(PLUS, b"p=tls-server-end-point,,n=,r=abc"))
        assert client.fatal().sqlstate == "08P01"
