import asyncio
import json
import logging
import re
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import psycopg
import pytest

from dpsql.cli import serve as serve_module
from dpsql.cli.logs import JsonLines, TextLines
from tests.cli.conftest import Program, Run
from tests.cli.test_demo import psql

WIRE = Path(__file__).parent.parent / "wire"
Start = Callable[..., Program]


@pytest.fixture
def ledger(run: Run, policy: Path) -> str:
    """Return a ledger in which ana has a password."""
    url = f"sqlite:///{policy.parent / 'ledger.sqlite'}"
    run("user", "add", "ana", "--role", "analyst", "--ledger", url, stdin="secret\n")
    return url


def connect(
    program: Program, database: str = "clinic", sslmode: str = "prefer"
) -> "psycopg.Connection[tuple[object, ...]]":
    url = f"postgresql://ana:secret@127.0.0.1:{program.port}/{database}?sslmode={sslmode}"
    return psycopg.connect(url, autocommit=True)


def second_policy(policy: Path, directory: Path) -> Path:
    """Return a policy over the same people in another database."""
    shutil.copy(policy.parent / "clinic.duckdb", directory / "other.duckdb")
    text = policy.read_text().replace('name = "clinic" ', 'name = "other" ')
    copy = directory / "other.toml"
    copy.write_text(text.replace("/clinic.duckdb", "/other.duckdb"))
    return copy


def test_two_policies_are_served_from_one_ledger_until_told_to_stop(policy: Path, ledger: str, start: Start) -> None:
    program = start("serve", policy, second_policy(policy, policy.parent), "--port", 0, "--ledger", ledger)
    for database in ("clinic", "other"):
        with connect(program, database) as connection:
            (count,) = connection.execute("SELECT COUNT(*) FROM patients").fetchone() or ()
            assert isinstance(count, int)
    with pytest.raises(psycopg.OperationalError, match="does not exist"):
        connect(program, "third")
    assert program.stop() == 0
    assert program.out == []
    assert program.err[-1].endswith("INFO stopped")


def test_json_lines_have_neither_queries_nor_data(policy: Path, ledger: str, start: Start) -> None:
    program = start("serve", policy, "--port", 0, "--ledger", ledger, "--log-format", "json")
    with connect(program) as connection:
        rows = connection.execute("SELECT COUNT(*) FROM patients WHERE city = 'canary'").fetchall()
        with pytest.raises(psycopg.errors.UndefinedColumn):
            connection.execute("SELECT COUNT(*) FROM patients WHERE canary = 1")
    assert rows
    assert program.stop(signal.SIGINT) == 0
    lines = [json.loads(line) for line in program.err]
    assert all({"time", "level", "message"} <= set(line) for line in lines)
    asked = {"user": "ana", "database": "clinic", "kind": "query"}
    told = [{key: line.get(key) for key in (*asked, "event", "sqlstate")} for line in lines]
    assert {"event": "statement", "sqlstate": "00000"} | asked in told
    assert {"event": "statement", "sqlstate": "42703"} | asked in told
    assert [line["event"] for line in lines if "peer" in line] == ["login", "logout"]
    assert "canary" not in "".join(program.err)


def test_a_target_over_the_network(policy: Path, ledger: str, start: Start) -> None:
    program = start("serve", policy, "--port", 0, "--ledger", ledger)
    sql = "SELECT sex, COUNT(*) FROM patients GROUP BY sex"
    notices: list[str | None] = []
    with connect(program) as connection:
        connection.add_notice_handler(lambda notice: notices.append(notice.message_primary))
        connection.execute("SET dpsql.target_error = '30 %'")
        assert connection.execute("SHOW dpsql.target_error").fetchone() == ("30 %",)
        first = connection.execute(sql).fetchall()
        assert (
            notices[-1] is not None
            and " rounds; " in notices[-1]
            and "; target 30 % of the median size met: count ± " in notices[-1]
        )
        # By the extended protocol, prepared, in binary: the same rounds are free.
        for _ in range(2):
            again = connection.execute(f"{sql} HAVING %s", (True,), prepare=True, binary=True).fetchall()
            assert again == first
            assert notices[-1] is not None and notices[-1].startswith("price: free, your earlier release for ")
        with pytest.raises(psycopg.errors.InvalidParameterValue):
            connection.execute("SET dpsql.target_error = '-1'")
        connection.execute("SET dpsql.target_error = '0.5'")
        with pytest.raises(psycopg.errors.InvalidParameterValue, match="no answer is as exact"):
            connection.execute(sql)
        connection.execute("SET dpsql.target_error = '1 %'")
        connection.execute(f"{sql} HAVING COUNT(*) > 1000000")
        assert notices[-1] == "target 1 % of the median size missed: count without a value"
        connection.execute("RESET dpsql.target_error")
        (plan,) = connection.execute(f"EXPLAIN (FORMAT JSON) {sql}").fetchone() or ()
        assert isinstance(plan, dict) and plan["price"]["rho"] == 0.005
        cursor = connection.execute(f"EXPLAIN {sql}; EXPLAIN {sql}; EXPLAIN SELECT COUNT(*) FROM patients".encode())
        while cursor.nextset():
            pass
        lines = [str(line) for (line,) in cursor.fetchall()]
        assert lines[-2].startswith("All 3 statements together: epsilon 0.141421 (rho 0.01), which the budget ")
    assert program.stop() == 0


def test_with_a_certificate_tls_is_required(policy: Path, ledger: str, start: Start) -> None:
    tls = ("--tls-cert", WIRE / "server.crt", "--tls-key", WIRE / "server.key")
    program = start("serve", policy, "--port", 0, "--ledger", ledger, *tls)
    with connect(program, sslmode="require") as connection:
        assert connection.execute("SELECT 1").fetchone() == (1,)
    with pytest.raises(psycopg.OperationalError):
        connect(program, sslmode="disable")
    assert program.stop() == 0


def test_a_gateway_that_others_can_reach_without_tls_says_so(policy: Path, start: Start) -> None:
    program = start("serve", policy, "--port", 0, "--host", "0.0.0.0")
    program.wait_for(program.err, "WARNING without TLS on 0.0.0.0")
    program.wait_for(program.err, "WARNING nobody can connect yet")
    program.wait_for(program.err, "listening on")
    assert program.stop() == 0


def test_a_port_in_use_is_told(policy: Path, ledger: str, start: Start) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        program = start("serve", policy, "--port", port, "--ledger", ledger)
        assert program.end() == 1
    assert program.err[-2] == f"error: cannot listen on 127.0.0.1:{port}: address already in use (22023)"
    assert program.err[-1].startswith("hint: --port N")


def test_two_policies_of_one_name_are_refused(policy: Path, ledger: str, start: Start) -> None:
    program = start("serve", policy, policy, "--port", 0, "--ledger", ledger)
    assert program.end() == 1
    assert 'dataset.name: "clinic" is served already' in "\n".join(program.err)


def test_wrong_usage(run: Run, policy: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    run("serve", status=2)
    run("serve", policy, "--tls-cert", WIRE / "server.crt", status=2)
    run("serve", policy, "--port", "99999", status=2)
    elsewhere = second_policy(policy, tmp_path_factory.mktemp("elsewhere"))
    assert "several directories" in run("serve", policy, elsewhere, status=2).stderr


def test_what_cannot_be_loaded_is_status_1(run: Run, policy: Path, tmp_path: Path) -> None:
    assert "no such file" in run("serve", tmp_path / "no.toml", status=1).stderr
    tls = ("--tls-cert", WIRE / "server.key", "--tls-key", WIRE / "server.crt")
    assert "cannot load TLS certificate" in run("serve", policy, *tls, status=1).stderr


def test_an_idle_client_does_not_hold_up_the_end(policy: Path, ledger: str, start: Start) -> None:
    program = start("serve", policy, "--port", 0, "--ledger", ledger)
    with connect(program) as connection:
        program.process.send_signal(signal.SIGTERM)
        assert program.process.wait(5) == 0
        with pytest.raises(psycopg.OperationalError):
            connection.execute("SELECT 1")
    program.end()


def test_a_second_signal_ends_at_once(policy: Path, ledger: str, start: Start) -> None:
    program = start("serve", policy, "--port", 0, "--ledger", ledger)
    with socket.create_connection(("127.0.0.1", program.port)):
        program.process.send_signal(signal.SIGTERM)
        program.wait_for(program.err, "stopping")
        program.process.send_signal(signal.SIGTERM)
        try:
            program.process.wait(5)
        except subprocess.TimeoutExpired:
            pytest.fail("the second signal did not end the program")
    assert program.end() in (-signal.SIGTERM, 0)


def test_the_log_has_the_kind_of_an_exception_and_not_its_text(caplog: pytest.LogCaptureFixture) -> None:
    with asyncio.Runner() as runner:
        try:
            raise KeyError("canary")
        except KeyError as error:
            record = logging.LogRecord("dpsql", logging.ERROR, "", 0, "it failed", None, sys.exc_info())
            serve_module._log_unhandled(runner.get_loop(), {"message": "canary", "exception": error})
    for formatter in (TextLines(), JsonLines()):
        line = formatter.format(record)
        assert "KeyError" in line
        assert "canary" not in line
    assert "unexpected KeyError" in caplog.text
    assert "canary" not in caplog.text


def test_past_releases_are_shown_to_psycopg_and_psql(policy: Path, ledger: str, start: Start) -> None:
    program = start("serve", policy, "--port", 0, "--ledger", ledger)
    with connect(program) as connection:
        for sql in ("SELECT COUNT(*) FROM patients WHERE age > 3", "SELECT COUNT(1) FROM patients WHERE 3.0 < age"):
            connection.execute(sql)
        shown = connection.execute("SELECT query, price, kept, reused FROM dpsql.releases").fetchall()
    assert shown == [("SELECT COUNT(*) FROM patients WHERE age > 3", "epsilon 0.1", True, 1)]
    url = f"postgresql://ana:secret@127.0.0.1:{program.port}/clinic"
    printed = subprocess.run(
        [psql(), "-X", url, "-At", "-c", "SELECT * FROM dpsql.releases"], capture_output=True, text=True, check=True
    )
    assert re.fullmatch(
        r"1\|2\d{3}-[^|]+\|SELECT COUNT\(\*\) FROM patients WHERE age > 3\|[^|]*\|0\.005\|0\|1\|epsilon 0\.1\|t\n",
        printed.stdout,
    )
    assert program.stop() == 0
