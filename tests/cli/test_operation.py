"""What the operator does to a running gateway: signals, probes, limits, the log."""

import json
import signal
import socket
import ssl
import tempfile
import urllib.error
import urllib.request
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path

import psycopg
import pytest
from psycopg import conninfo

import dpsql
from dpsql.cli.clinic_server import embedded_server
from dpsql.ledger import SqliteLedger
from dpsql.wire.messages.frontend import SSLRequest
from dpsql.wire.scram import make_verifier
from tests.cli.conftest import Program, Run
from tests.cli.test_serve import Start, connect
from tests.waiting import HANG_SECONDS

CERTIFICATES = Path(__file__).parent.parent / "wire"
COUNT = "SELECT COUNT(*) FROM patients"


@pytest.fixture
def ledger(run: Run, policy: Path) -> str:
    """Return a ledger in which ana has a password."""
    url = f"sqlite:///{policy.parent / 'ledger.sqlite'}"
    run("user", "add", "ana", "--role", "analyst", "--ledger", url, stdin="secret\n")
    return url


def change(policy: Path, before: str, after: str) -> None:
    text = policy.read_text()
    assert before in text
    policy.write_text(text.replace(before, after))


def reload(program: Program) -> str:
    """Return what the log says of a SIGHUP."""
    known = len(program.err)
    program.process.send_signal(signal.SIGHUP)
    with program._changed:
        said = ("policies were reloaded", "policies are unchanged")
        assert program._changed.wait_for(
            lambda: any(part in line for line in program.err[known:] for part in said), HANG_SECONDS
        )
    return next(line for line in program.err[known:] if "policies" in line)


def probe(program: Program, page: str) -> tuple[int, str]:
    base = program.wait_for(program.err, "metrics on").partition("metrics on ")[2].removesuffix("metrics")
    try:
        with urllib.request.urlopen(base + page, timeout=HANG_SECONDS) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


def test_policies_are_loaded_again_under_open_sessions(policy: Path, ledger: str, start: Start) -> None:
    program = start("serve", policy, "--port", 0, "--ledger", ledger, "--metrics-port", 0)
    by_sex = "SELECT sex, COUNT(*) FROM patients GROUP BY sex"
    with connect(program) as connection, connect(program) as transaction:
        connection.execute("SET dpsql.epsilon = 0.3")
        transaction.execute("BEGIN")
        transaction.execute("SET dpsql.epsilon = 0.28")
        for _ in range(2):
            connection.execute(by_sex, prepare=True)
        change(policy, "max_epsilon = 1.0", "max_epsilon = 0.25")
        change(policy, 'sex = { type = "text", values = ["F", "M"', 'sex = { type = "text", values = ["F", "M", "Z"')
        assert reload(program).endswith("INFO the policies were reloaded")

        with pytest.raises(psycopg.errors.InvalidParameterValue):
            connection.execute(by_sex, prepare=True)
        connection.execute("SET dpsql.epsilon = 0.2")
        assert {row[0] for row in connection.execute(by_sex, prepare=True)} >= {"F", "M", "Z"}
        with pytest.raises(psycopg.errors.InvalidParameterValue):
            connection.execute("SET dpsql.epsilon = 0.3")
        transaction.execute("COMMIT")
        with pytest.raises(psycopg.errors.InvalidParameterValue):
            transaction.execute(by_sex)
        domains = "SELECT * FROM dpsql.columns WHERE table_name = 'patients' AND column_name = 'sex'"
        assert "Z" in str(connection.execute(domains).fetchone())

        change(policy, "max_epsilon = 0.25", "max_epsilon = -1")
        assert "the policies are unchanged: " in reload(program)
        assert connection.execute("SET dpsql.epsilon = 0.2").statusmessage == "SET"
        change(policy, "max_epsilon = -1", "max_epsilon = 0.25")
        change(policy, 'name = "clinic" ', 'name = "other" ')
        assert "the policies are unchanged: the served databases have changed" in reload(program)
        assert connection.execute("SELECT 1").fetchone() == (1,)
    metrics = probe(program, "metrics")[1]
    assert 'dpsql_policy_reloads_total{outcome="00000"} 1.0\n' in metrics
    assert 'dpsql_policy_reloads_total{outcome="F0000"} 2.0\n' in metrics
    assert program.stop() == 0


def presented(program: Program) -> bytes:
    """The certificate that a client who comes now is shown; it must be the one that the channel is bound to."""
    port = program.port
    with socket.create_connection(("127.0.0.1", port), timeout=HANG_SECONDS) as plain:
        plain.sendall(SSLRequest().encode())
        assert plain.recv(1) == b"S"
        context = ssl.create_default_context()
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        with context.wrap_socket(plain) as secure:
            shown = secure.getpeercert(binary_form=True)
    with psycopg.connect(
        f"postgresql://ana:secret@127.0.0.1:{port}/clinic?sslmode=require&channel_binding=require"
    ) as bound:
        assert bound.execute("SELECT 1").fetchone() == (1,)
    assert shown is not None
    return shown


def test_the_certificate_is_loaded_again(policy: Path, ledger: str, start: Start) -> None:
    certificate, key = policy.parent / "server.crt", policy.parent / "server.key"

    def put(name: str) -> bytes:
        certificate.write_bytes((CERTIFICATES / f"{name}.crt").read_bytes())
        key.write_bytes((CERTIFICATES / f"{name}.key").read_bytes())
        return ssl.PEM_cert_to_DER_cert(certificate.read_text())

    old = put("server")
    program = start("serve", policy, "--port", 0, "--ledger", ledger, "--tls-cert", certificate, "--tls-key", key)
    assert presented(program) == old
    with connect(program, sslmode="require") as connection:
        new = put("renewed")
        assert presented(program) == old, "not before it is told"
        assert "were reloaded" in reload(program)
        assert presented(program) == new != old
        assert connection.execute("SELECT 1").fetchone() == (1,)
        key.write_bytes((CERTIFICATES / "server.key").read_bytes())  # not the certificate's own
        assert "the policies are unchanged: cannot load TLS certificate" in reload(program)
        change(policy, "max_epsilon = 1.0", "max_epsilon = -1")
        put("server")
        assert "the policies are unchanged" in reload(program)
        assert presented(program) == new, "all or nothing"
    assert program.stop() == 0


def test_a_prepared_statement_of_another_shape_is_refused_before_it_is_charged(
    policy: Path, ledger: str, start: Start
) -> None:
    program = start("serve", policy, "--port", 0, "--ledger", ledger)
    ages, weights = "SELECT SUM(age) FROM patients", "SELECT AVG(weight) FROM patients"
    with connect(program) as connection:
        for sql in (ages, weights):
            connection.execute(sql, prepare=True)
        spent = connection.execute("SELECT * FROM dpsql.budget").fetchall()
        change(policy, 'age = { type = "integer"', 'age = { type = "bigint"')
        change(policy, "weight = {", "# weight = {")
        assert "were reloaded" in reload(program)
        with pytest.raises(psycopg.errors.FeatureNotSupported, match="cached plan must not change result type"):
            connection.execute(ages, prepare=True)
        with pytest.raises(psycopg.errors.UndefinedColumn):
            connection.execute(weights, prepare=True)
        assert connection.execute("SELECT * FROM dpsql.budget").fetchall() == spent
        connection.execute("DEALLOCATE ALL")
    assert program.stop() == 0


def test_a_user_whose_role_is_gone_is_refused_and_keeps_the_session(policy: Path, ledger: str, start: Start) -> None:
    program = start("serve", policy, "--port", 0, "--ledger", ledger)
    with connect(program) as connection:
        change(policy, "[roles.analyst]", "[roles.guest]")
        reload(program)
        for sql in (COUNT, "SELECT 1"):
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                connection.execute(sql)
        change(policy, "[roles.guest]", "[roles.analyst]")
        reload(program)
        assert connection.execute("SELECT 1").fetchone() == (1,)
    assert program.stop() == 0


def test_metrics_tell_counts_and_nothing_of_queries(policy: Path, ledger: str, start: Start) -> None:
    program = start("serve", policy, "--port", 0, "--ledger", ledger, "--metrics-port", 0, "--user-rate", 4)
    with pytest.raises(psycopg.OperationalError):
        psycopg.connect(f"postgresql://canary:wrong@127.0.0.1:{program.port}/clinic")
    with connect(program) as connection:
        connection.execute(f"{COUNT} WHERE city = 'canary'")
        with pytest.raises(psycopg.errors.UndefinedTable):
            connection.execute("SELECT COUNT(*) FROM canary")
        connection.execute("SELECT 1")
        spent = connection.execute("SELECT * FROM dpsql.budget").fetchall()
        with pytest.raises(psycopg.errors.InsufficientResources, match="4 a minute"):
            connection.execute(COUNT)
        assert connection.execute("SHOW dpsql.epsilon").fetchone() == ("0.1",), "only queries are limited"
        status, text = probe(program, "metrics")
        assert probe(program, "healthz") == (200, "ok\n")
        assert probe(program, "readyz") == (200, "ready\n")
    assert spent
    assert status == 200
    assert "canary" not in text
    lines = text.splitlines()
    for line in (
        "dpsql_sessions 1.0",
        "dpsql_accepting 1.0",
        'dpsql_logins_total{sqlstate="00000"} 1.0',
        'dpsql_logins_total{sqlstate="28P01"} 1.0',
        'dpsql_statements_total{database="clinic",kind="query"} 5.0',
        'dpsql_refusals_total{database="clinic",sqlstate="42P01"} 1.0',
        'dpsql_refusals_total{database="clinic",sqlstate="53000"} 1.0',
    ):
        assert line in lines
    assert program.stop() == 0


def test_what_is_refused_before_it_is_executed_is_counted_once_and_logged(
    policy: Path, ledger: str, start: Start
) -> None:
    program = start("serve", policy, "--port", 0, "--ledger", ledger, "--metrics-port", 0)
    with connect(program) as connection:
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            connection.execute("SELECT * FROM patients WHERE age > %s", (3,))  # described first
        for values in (None, ()):
            with pytest.raises(psycopg.errors.FeatureNotSupported):
                connection.execute("CREATE TABLE canary (a int)", values)
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            connection.execute("SELECT * FROM patients")
        lines = probe(program, "metrics")[1].splitlines()
    for line in (
        'dpsql_statements_total{database="clinic",kind="query"} 2.0',
        'dpsql_statements_total{database="clinic",kind="text"} 2.0',
        'dpsql_refusals_total{database="clinic",sqlstate="42501"} 2.0',
        'dpsql_refusals_total{database="clinic",sqlstate="0A000"} 2.0',
    ):
        assert line in lines
    program.wait_for(program.err, "text of 'ana' on 'clinic': 0A000")
    assert program.stop() == 0


@pytest.mark.parametrize("act", ["disconnect", "passwd", "remove"])
def test_sessions_end_with_a_new_password_on_demand_and_with_the_user(
    policy: Path, ledger: str, run: Run, start: Start, act: str
) -> None:
    run("user", "add", "ben", "--role", "analyst", "--ledger", ledger, stdin="secret\n")
    program = start("serve", policy, "--port", 0, "--ledger", ledger)
    with connect(program) as connection, connect(program, user="ben") as other:
        connection.execute("SELECT 1")
        run("user", act, "ana", "--ledger", ledger, stdin="other\n" if act == "passwd" else None)
        program.wait_for(program.err, "session of 'ana' on 'clinic' from")
        program.wait_for(program.err, "57P01")
        with pytest.raises(psycopg.errors.AdminShutdown):
            connection.execute("SELECT 1")
        assert other.execute("SELECT 1").fetchone() == (1,)
    if act == "disconnect":
        with connect(program) as again:
            assert again.execute("SELECT 1").fetchone() == (1,)
    else:
        with pytest.raises(psycopg.OperationalError):
            connect(program)
    assert run("ledger", "verify", "--ledger", ledger)
    assert program.stop() == 0


def test_a_failing_ledger_is_told_to_the_operator_and_its_place_to_nobody_else(
    policy: Path, ledger: str, start: Start
) -> None:
    program = start("serve", policy, "--port", 0, "--ledger", ledger, "--metrics-port", 0)
    file = Path(ledger.removeprefix("sqlite:///"))
    with connect(program) as connection:
        assert probe(program, "readyz") == (200, "ready\n")
        file.rename(file.with_suffix(".away"))
        with pytest.raises(psycopg.errors.IoError) as failed:
            connection.execute(COUNT)
        told = str(failed.value) + str(failed.value.diag.message_detail)
        assert "the ledger is not available" in told
        assert str(policy.parent) not in told
        assert file.name not in told
        assert probe(program, "readyz") == (503, "not ready: ledger\n")
        metrics = probe(program, "metrics")[1].splitlines()
        for line in (
            "dpsql_ledger_up 0.0",
            "dpsql_ledger_failures_total 1.0",
            'dpsql_engine_up{database="clinic"} 1.0',
        ):
            assert line in metrics
        for cause in ("ERROR the ledger failed: ", "ERROR not ready: ledger: "):
            assert str(file) in program.wait_for(program.err, cause)
        file.with_suffix(".away").rename(file)
        assert probe(program, "readyz") == (200, "ready\n")
        program.wait_for(program.err, "INFO ledger works again")
    assert sum("not ready" in line for line in program.err) == 1, "once, however often it is asked"
    assert not any("unexpected" in line for line in program.err)
    assert program.stop() == 0


def test_a_failing_database_is_told_to_the_operator(
    ledger: str, run: Run, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("READER_PASSWORD", "s3cret")
    # Not under pytest's directory, which locks the server's user out.
    with tempfile.TemporaryDirectory(prefix="dpsql-") as name, embedded_server(Path(name) / "postgres") as server:
        run("demo", "--dir", name, "--patients", 50, "--no-serve", "--server", server)
        url = conninfo.make_conninfo(server, dbname="clinic")
        served = Path(name) / "clinic-postgres.toml"
        program = start("serve", served, "--port", 0, "--ledger", ledger, "--metrics-port", 0)
        with connect(program) as connection:
            assert probe(program, "readyz") == (200, "ready\n")
            with psycopg.connect(url, autocommit=True) as owner:
                owner.execute("ALTER TABLE doctors RENAME TO physicians")
                assert probe(program, "readyz") == (503, "not ready: database clinic\n")
                assert 'dpsql_engine_up{database="clinic"} 0.0' in probe(program, "metrics")[1]
                with pytest.raises(psycopg.errors.CannotConnectNow):
                    connection.execute(COUNT)
                assert 'dpsql_engine_failures_total{database="clinic"} 1.0' in probe(program, "metrics")[1]
                program.wait_for(program.err, "ERROR the database's tables have changed")
                owner.execute("ALTER TABLE physicians RENAME TO doctors")
            assert probe(program, "readyz") == (200, "ready\n")
        assert program.stop() == 0


def test_the_text_of_queries_is_logged_where_it_is_asked_for(policy: Path, ledger: str, start: Start) -> None:
    asked = ("--log-format", "json", "--log-queries")
    program = start("serve", policy, "--port", 0, "--ledger", ledger, *asked)
    with connect(program) as connection:
        connection.execute(f"{COUNT} WHERE city = 'canary\n'")
    assert program.stop() == 0
    lines = [json.loads(line) for line in program.err]
    (statement,) = (line for line in lines if line.get("event") == "statement")
    assert statement["sql"] == f"{COUNT} WHERE city = 'canary\n'"
    assert (statement["user"], statement["kind"], statement["sqlstate"]) == ("ana", "query", "00000")
    assert isinstance(statement["ms"], float)


def test_wrong_limits_are_wrong_usage(run: Run, policy: Path) -> None:
    for option in ("--max-connections", "--user-connections", "--user-rate"):
        run("serve", policy, option, 0, status=2)
    run("serve", policy, "--grace", -1, status=2)


def test_a_clock_that_is_not_believed_is_told_while_queries_go_on(
    policy: Path, run: Run, start: Start, caplog: pytest.LogCaptureFixture
) -> None:
    place = policy.parent / "ledger.sqlite"
    url = f"sqlite:///{place}"
    then = datetime.now(UTC) - timedelta(days=32)
    with closing(SqliteLedger(place, clock=lambda: then)) as ledger:
        ledger.add_account("ana", "analyst", make_verifier("secret"))
    program = start("serve", policy, "--port", 0, "--ledger", url, "--metrics-port", 0)
    program.wait_for(program.err, "WARNING the clock of this machine is more than 31 days ahead")
    with connect(program) as connection:
        assert connection.execute(COUNT).fetchone()
    assert probe(program, "readyz")[0] == 200
    assert "dpsql_ledger_clock_held 1.0" in probe(program, "metrics")[1]
    with closing(dpsql.connect(policy, user="ana", ledger=url)) as embedded:
        embedded.cursor().execute(COUNT)
    assert [record.name for record in caplog.records if "not trusted" in record.getMessage()] == ["dpsql.ledger"]
    run("ledger", "clock", "--reason", "a long holiday", "--ledger", url)
    assert "dpsql_ledger_clock_held 0.0" in probe(program, "metrics")[1]
    assert sum("not trusted" in line for line in program.err) == 1, "once, however often it is asked"
    assert program.stop() == 0
