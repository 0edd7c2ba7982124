import asyncio
import json
import logging
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing, suppress
from pathlib import Path

import psycopg
import pytest

from dpsql.cli import serving
from dpsql.cli.logs import JsonLines, TextLines, log_unhandled
from dpsql.ledger import check_anchor, open_ledger
from tests.cli.conftest import Program, Run
from tests.cli.test_demo import psql
from tests.waiting import HANG_SECONDS

WIRE = Path(__file__).parent.parent / "wire"
Start = Callable[..., Program]


@pytest.fixture
def ledger(run: Run, policy: Path) -> str:
    """Return a ledger in which ana has a password."""
    url = f"sqlite:///{policy.parent / 'ledger.sqlite'}"
    run("user", "add", "ana", "--role", "analyst", "--ledger", url, stdin="secret\n")
    return url


def connect(
    program: Program, database: str = "clinic", sslmode: str = "prefer", user: str = "ana"
) -> "psycopg.Connection[tuple[object, ...]]":
    url = f"postgresql://{user}:secret@127.0.0.1:{program.port}/{database}?sslmode={sslmode}"
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
    for database in ("clinic", "other", "postgres"):  # the last is the first that ana may open
        with connect(program, database) as connection:
            (count,) = connection.execute("SELECT COUNT(*) FROM patients").fetchone() or ()
            assert isinstance(count, int)
    with pytest.raises(psycopg.OperationalError, match="does not exist"):
        connect(program, "third")
    environment = {**os.environ, "PGPASSWORD": "secret"}
    options = ["-X", "-A", "-t", "-l", "-h", "127.0.0.1", "-p", str(program.port), "-U", "ana"]
    listed = subprocess.run(
        [psql(), *options], capture_output=True, text=True, timeout=HANG_SECONDS, check=False, env=environment
    )
    assert ([line.split("|")[0] for line in listed.stdout.splitlines()], listed.stderr) == (["clinic", "other"], "")
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
        with pytest.raises(psycopg.errors.InvalidParameterValue, match="cannot be met"):
            connection.execute(sql)
        connection.execute("SET dpsql.target_error = '1 %'")
        connection.execute(f"{sql} HAVING COUNT(*) > 1000000")
        assert str(notices[-1]).startswith("target 1 % of the median size missed: count without a value; price: ")
        connection.execute("RESET dpsql.target_error")
        connection.execute("SET dpsql.reuse = exact")  # the rounds were more exact, and answer it
        (plan,) = connection.execute(f"EXPLAIN (FORMAT JSON) {sql}").fetchone() or ()
        assert isinstance(plan, dict) and plan["price"]["rho"] == 0.005
        cursor = connection.execute(f"EXPLAIN {sql}; EXPLAIN {sql}; EXPLAIN SELECT COUNT(*) FROM patients".encode())
        while cursor.nextset():
            pass
        lines = [str(line) for (line,) in cursor.fetchall()]
        assert lines[lines.index("SQL of release 1:") - 2].startswith(
            "All 3 statements together: epsilon 0.141421 (rho 0.01), within the budget"
        )
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
    program = start("serve", policy, "--port", 0, "--host", "0.0.0.0", "--init-ledger")
    program.wait_for(program.err, "WARNING without TLS on 0.0.0.0")
    program.wait_for(program.err, "WARNING no user can connect")
    program.wait_for(program.err, "listening on")
    assert program.stop() == 0


def test_a_ledger_is_made_only_where_that_is_asked_for(policy: Path, run: Run, start: Start) -> None:
    ledger, anchor = policy.with_name("dpsql-ledger.sqlite"), policy.with_name("ledger.anchor")
    said = run("serve", policy, "--port", 0, status=1).stderr
    assert f'there is no ledger "{ledger}"' in said
    assert f"dpsql ledger init --ledger sqlite:///{ledger}" in said
    assert not ledger.exists()
    served = ("serve", policy, "--port", 0, "--anchor", anchor)
    program = start(*served, "--init-ledger")
    program.wait_for(program.err, "listening on")
    for name in ("ana", "ben"):
        added = run("user", "add", name, "--role", "analyst", "--policy", policy, stdin="secret\n")
    assert "is new" not in added.stderr
    assert program.stop() == 0
    printed = run("ledger", "verify", "--policy", policy).stdout
    records, head = anchor.read_text().split()
    assert int(records) > 0
    assert f"{records} records, whole; the last has hash {head}" in printed

    ledger.unlink()
    for noted in (anchor.read_text(), f"0 {'0' * 64}\n"):
        anchor.write_text(noted)
        assert "there is no ledger" in run(*served, "--init-ledger", status=1).stderr
        assert not ledger.exists()
    anchor.write_text(f"{records} {head}\n")
    made = run("user", "add", "ana", "--role", "analyst", "--policy", policy, stdin="secret\n")
    assert made.stderr.endswith("the ledger is new: nothing has been spent\n")
    for more in ((), ("--init-ledger",)):
        assert "records were truncated or replaced" in run(*served, *more, status=1).stderr


def test_an_anchor_stays_where_the_ledger_has_lost_its_record(
    ledger: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    anchor = tmp_path / "ledger.anchor"
    with closing(open_ledger(ledger)) as opened:
        check_anchor(anchor, opened, make=True)
        anchor.write_text(f"7{anchor.read_text()}")
        before = anchor.read_text()
        serving._anchor(anchor, opened)
    assert anchor.read_text() == before
    assert "the anchor is unchanged: last known record is missing" in caplog.text


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
    assert 'dataset.name: "clinic" is served already' in program.err[-2]
    # Under another name without its cap, a policy over the same people would get a cap of its own.
    assert program.err[-1] == 'hint: Write: name = "clinic_2"; and, for the same people, cap = "clinic-people"'


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
    tls = ("--tls-cert", WIRE / "server.crt", "--tls-key", tmp_path / "no.key")
    assert f"detail: There is no file {tmp_path / 'no.key'}." in run("serve", policy, *tls, status=1).stderr
    assert "Write: sqlite:///ledger.sqlite" in run("serve", policy, "--ledger", "ledger.sqlite", status=1).stderr


def test_an_idle_client_does_not_hold_up_the_end(policy: Path, ledger: str, start: Start) -> None:
    program = start("serve", policy, "--port", 0, "--ledger", ledger)
    with connect(program) as connection:
        program.process.send_signal(signal.SIGTERM)
        assert program.process.wait(HANG_SECONDS) == 0
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
            program.process.wait(HANG_SECONDS)
        except subprocess.TimeoutExpired:
            pytest.fail("the second signal did not end the program")
    assert program.end() in (-signal.SIGTERM, 0)


def test_the_log_has_the_kind_of_an_exception_and_not_its_text(caplog: pytest.LogCaptureFixture) -> None:
    with asyncio.Runner() as runner:
        try:
            raise KeyError("canary")
        except KeyError as error:
            record = logging.LogRecord("dpsql", logging.ERROR, "", 0, "it failed", None, sys.exc_info())
            log_unhandled(runner.get_loop(), {"message": "canary", "exception": error})
    for formatter in (TextLines(), JsonLines()):
        line = formatter.format(record)
        assert "KeyError" in line
        assert "canary" not in line
    assert "unexpected KeyError" in caplog.text
    assert "canary" not in caplog.text


UNCAUGHT = """
import threading
from dpsql.cli.logs import log_to_stderr

class Closed:
    def __del__(self):
        raise ValueError("canary")

def fail():
    raise LookupError("canary")

log_to_stderr("text")
Closed()
thread = threading.Thread(target=fail)
thread.start()
thread.join()
"""


def test_the_log_has_the_kind_of_what_nobody_caught() -> None:
    """Python prints a traceback with the text of an exception that leaves a thread, or comes from a finalizer."""
    ended = subprocess.run([sys.executable, "-c", UNCAUGHT], capture_output=True, text=True, check=True)
    lines = ended.stderr.splitlines()
    assert [re.findall("unexpected ([A-Za-z]+) at", line) for line in lines] == [["ValueError"], ["LookupError"]]
    assert "canary" not in ended.stderr


def test_a_text_begins_no_line_of_the_log() -> None:
    told = "it failed\n2026-01-01 INFO all is well\r\x1b[2K"
    line = TextLines().format(logging.LogRecord("dpsql", logging.ERROR, "", 0, told, None, None))
    assert line.endswith(r"it failed\n2026-01-01 INFO all is well\r\x1b[2K")


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


FREEZES = ["SELECT 1 FROM patients" + " JOIN patients" * 40, "SELECT 1 FROM patients" + " JOIN patients AS on" * 40]


@pytest.mark.parametrize("sql", FREEZES)
def test_a_statement_that_would_parse_for_ever_is_refused(policy: Path, ledger: str, start: Start, sql: str) -> None:
    program = start("serve", policy, "--port", 0, "--ledger", ledger)
    with connect(program) as connection, connect(program) as other:
        with pytest.raises(psycopg.errors.StatementTooComplex):
            connection.execute(sql)
        with pytest.raises(psycopg.errors.StatementTooComplex):
            connection.execute(f"PREPARE p AS {sql}")
        assert other.execute("SELECT COUNT(*) FROM doctors").fetchone()
    assert program.stop() == 0


def test_the_process_of_trials_is_there_before_the_first_query(policy: Path, ledger: str, start: Start) -> None:
    program = start("serve", policy, "--port", 0, "--ledger", ledger)
    with connect(program) as connection:
        started = trials(program.process.pid)
        assert len(started) == 1
        ages = " AND ".join(f"age <> {number}" for number in range(1000, 1050))
        assert connection.execute(f"SELECT COUNT(*) FROM patients WHERE {ages}").fetchone()
        assert trials(program.process.pid) == started
    assert program.stop() == 0


def trials(parent: int) -> list[int]:
    """The processes of trials that a process has started."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # it has ended meanwhile
            mine = f"PPid:\t{parent}\n" in (folder / "status").read_text()
            if mine and b"dpsql.limits.trial" in (folder / "cmdline").read_bytes():
                found.append(int(folder.name))
    return found


FROZEN = """
import signal, sys, sqlglot
from dpsql.cli import main
from dpsql.wire.watchdog import Watchdog
Watchdog.__init__.__defaults__ = (3.0, 900.0)
put_off = Watchdog._put_off
def put_off_and_tell(self):
    put_off(self)
    signal.signal(signal.SIGUSR1, lambda *_: sqlglot.parse_one("SELECT 1 FROM a" + " JOIN a" * 60))
    print("armed", file=sys.stderr, flush=True)
    Watchdog._put_off = put_off
Watchdog._put_off = put_off_and_tell
main(sys.argv[1:])
"""


def test_a_gateway_that_stands_still_ends_itself(policy: Path, ledger: str) -> None:
    arguments = ["serve", str(policy), "--port", "0", "--ledger", ledger]
    process = subprocess.Popen([sys.executable, "-c", FROZEN, *arguments], stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    try:
        while "armed" not in (line := process.stderr.readline()):
            assert line
        process.send_signal(signal.SIGUSR1)
        _, err = process.communicate(timeout=HANG_SECONDS)
    finally:
        process.kill()
    assert process.returncode == 1
    assert "in parse_one" in err
