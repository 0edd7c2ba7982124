"""What a client sends at once is one transaction, beside a real PostgreSQL: results, SQLSTATEs, and what stays set."""

import select
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import psycopg
import pytest
from psycopg.pq import DiagnosticField, ExecStatus, TransactionStatus
from psycopg.pq.abc import PGconn, PGresult

from dpsql.catalog.catalog import Catalogs
from dpsql.gateway.session import Session
from tests.conftest import silent_engine
from tests.postgres import Connection, Server
from tests.wire.conftest import RunningServer

_SETTINGS = ("DateStyle", "IntervalStyle", "extra_float_digits", "application_name", "transaction_isolation")
_TOLD = ("DateStyle", "IntervalStyle", "application_name")
_DMY, _YMD = "SET DateStyle = 'SQL, DMY'", "SET DateStyle = 'German'"
TEXTS = [
    f"{_DMY}; SELECT nosuch",
    f"{_DMY}; SET nosuch = 1; {_YMD}",
    f"{_DMY}; SELECT 1; {_YMD}",
    f"{_DMY}; COMMIT; {_YMD}; SELECT nosuch",
    f"{_DMY}; ROLLBACK; SET IntervalStyle = 'iso_8601'",
    f"{_DMY}; ROLLBACK; {_YMD}; SELECT nosuch",
    f"{_DMY}; BEGIN; {_YMD}; SELECT nosuch; COMMIT",
    f"{_DMY}; BEGIN; {_YMD}",
    f"{_DMY}; BEGIN; {_YMD}; ROLLBACK",
    "BEGIN; SET LOCAL DateStyle = 'German'",
    f"{_DMY}; BEGIN; COMMIT; SET extra_float_digits = 0; SELECT nosuch",
    "SET LOCAL DateStyle = 'German'; SELECT current_setting('DateStyle')",
    "SET LOCAL DateStyle = 'German'",
    "SELECT set_config('application_name', 'kept', false); SELECT nosuch",
    "SELECT set_config('DateStyle', 'German', true); SELECT current_setting('DateStyle')",
    "SET TRANSACTION ISOLATION LEVEL SERIALIZABLE; SHOW transaction_isolation",
    "DECLARE c CURSOR FOR VALUES (1), (2); FETCH ALL FROM c; CLOSE c",
    "DECLARE c CURSOR FOR VALUES (1), (2); FETCH 1 FROM c",
    "DECLARE c CURSOR WITH HOLD FOR VALUES (1), (2); FETCH 1 FROM c; SELECT nosuch",
    "DECLARE c CURSOR FOR VALUES (1)",
    "FETCH ALL FROM c",
    f"{_DMY}; SAVEPOINT a",
    f"{_DMY}; COMMIT AND CHAIN",
    f"{_DMY}; ROLLBACK AND CHAIN",
    f"{_DMY}; RELEASE a",
    f"BEGIN; SAVEPOINT a; {_DMY}; ROLLBACK TO a; SELECT 1",
    f"{_DMY}; RESET ALL; SELECT nosuch",
    f"BEGIN; {_DMY}; COMMIT; BEGIN; {_YMD}; ROLLBACK; SELECT nosuch",
]
PIPELINES = [
    [_DMY, "SELECT nosuch"],
    [_DMY, "SELECT 1", _YMD],
    [_DMY, "BEGIN", _YMD, "ROLLBACK"],
    [_DMY, "COMMIT", _YMD, "SELECT nosuch"],
    [_DMY, "BEGIN", "COMMIT", _YMD, "SELECT nosuch"],
]


@pytest.fixture(scope="module")
def gateway(clinic_policy: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    with silent_engine(clinic_policy, tmp_path_factory.mktemp("ledger")) as engine:
        catalogs = Catalogs({"clinic": engine})
        server = RunningServer(open_session=lambda user, name: Session(engine, user, catalogs.provider(name, user)))
        yield server
        server.close()
        catalogs.close()


def told(result: PGresult) -> tuple[object, ...]:
    """The tag or the SQLSTATE, and the rows."""
    rows = [[result.get_value(row, at) for at in range(result.nfields)] for row in range(result.ntuples)]
    return result.command_status, result.error_field(DiagnosticField.SQLSTATE), rows


def next_result(connection: Connection) -> PGresult | None:
    """The next result; None after the last of a query. libpq's own waiting would hold up the gateway's thread."""
    pg = connection.pgconn
    pg.flush()
    while pg.is_busy():
        assert select.select([pg.socket], [], [], 30)[0]
        pg.consume_input()
    return pg.get_result()


def answers(url: str, send: Callable[[PGconn], None]) -> list[object]:
    """What a server answers, what it notices, and how it leaves the session."""
    notices: list[str | None] = []
    with psycopg.connect(url, autocommit=True, application_name="test") as connection:
        connection.add_notice_handler(lambda notice: notices.append(notice.sqlstate))
        send(connection.pgconn)
        results, nothing = list[object](), 0
        while nothing < 2 and results[-1:] != ["sync"]:
            result = next_result(connection)
            nothing = 0 if result is not None else nothing + 1
            if result is not None:
                results.append("sync" if result.status == ExecStatus.PIPELINE_SYNC else told(result))
        if connection.pgconn.pipeline_status:
            connection.pgconn.exit_pipeline_mode()
        status = connection.info.transaction_status
        connection.execute("ROLLBACK" if status == TransactionStatus.INERROR else "SELECT 1")
        shown = [connection.execute(f"SHOW {name}").fetchone() for name in _SETTINGS]
        return [results, notices, status, shown, [connection.info.parameter_status(name) for name in _TOLD]]


@pytest.mark.parametrize("text", TEXTS)
def test_a_text_is_one_transaction(gateway: RunningServer, postgres_server: Server, text: str) -> None:
    def send(connection: PGconn) -> None:
        connection.send_query(text.encode())

    assert answers(gateway.dsn, send) == answers(postgres_server.url, send)


@pytest.mark.parametrize("statements", PIPELINES)
def test_a_pipeline_is_one_transaction(
    gateway: RunningServer, postgres_server: Server, statements: Sequence[str]
) -> None:
    def send(connection: PGconn) -> None:
        connection.enter_pipeline_mode()
        for statement in statements:
            connection.send_query_params(statement.encode(), [])
        connection.pipeline_sync()

    assert answers(gateway.dsn, send) == answers(postgres_server.url, send)
