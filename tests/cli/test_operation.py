"""What the operator does to a running gateway: signals, probes, limits, the log."""

import asyncio
import json
import signal
import socket
import ssl
import urllib.error
import urllib.request
from pathlib import Path

import psycopg
import pytest

from dpsql.cli import serve as serve_module
from dpsql.ledger import open_ledger
from dpsql.session import Session
from dpsql.wire.frontend import SSLRequest
from dpsql.wire.server import GatewayServer
from tests.cli.conftest import Program, Run
from tests.cli.test_serve import Start, connect

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
        said = ("policies were loaded", "policies stay")
        assert program._changed.wait_for(lambda: any(part in line for line in program.err[known:] for part in said), 20)
    return next(line for line in program.err[known:] if "policies" in line)


def probe(program: Program, page: str) -> tuple[int, str]:
    base = program.wait_for(program.err, "metrics on").partition("metrics on ")[2].removesuffix("metrics")
    try:
        with urllib.request.urlopen(base + page, timeout=10) as answer:
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
        assert reload(program).endswith("INFO the policies were loaded again")

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
        assert "the policies stay as they were: " in reload(program)
        assert connection.execute("SET dpsql.epsilon = 0.2").statusmessage == "SET"
        change(policy, "max_epsilon = -1", "max_epsilon = 0.25")
        change(policy, 'name = "clinic" ', 'name = "other" ')
        assert "the policies stay as they were: the databases are not those of the start" in reload(program)
        assert connection.execute("SELECT 1").fetchone() == (1,)
    metrics = probe(program, "metrics")[1]
    assert 'dpsql_policy_reloads_total{outcome="00000"} 1\n' in metrics
    assert 'dpsql_policy_reloads_total{outcome="F0000"} 2\n' in metrics
    assert program.stop() == 0


def presented(program: Program) -> bytes:
    """The certificate that a client who comes now is shown; it must be the one that the channel is bound to."""
    port = program.port
    with socket.create_connection(("127.0.0.1", port), timeout=20) as plain:
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
        assert "were loaded again" in reload(program)
        assert presented(program) == new != old
        assert connection.execute("SELECT 1").fetchone() == (1,)
        key.write_bytes((CERTIFICATES / "server.key").read_bytes())  # not the certificate's own
        assert "the policies stay as they were: cannot load TLS certificate" in reload(program)
        change(policy, "max_epsilon = 1.0", "max_epsilon = -1")
        put("server")
        assert "the policies stay as they were" in reload(program)
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
        assert "were loaded again" in reload(program)
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
        "dpsql_sessions 1",
        "dpsql_accepting 1",
        'dpsql_logins_total{sqlstate="00000"} 1',
        'dpsql_logins_total{sqlstate="28P01"} 1',
        'dpsql_statements_total{database="clinic",kind="query"} 5',
        'dpsql_refusals_total{database="clinic",sqlstate="42P01"} 1',
        'dpsql_refusals_total{database="clinic",sqlstate="53000"} 1',
    ):
        assert line in lines
    assert program.stop() == 0


def test_not_ready_before_it_listens_while_it_stops_and_without_its_ledger(ledger: str) -> None:
    opened = open_ledger(ledger)

    async def scenario() -> list[bool]:
        server = GatewayServer(
            lookup=lambda user: None, open_session=lambda user, _: Session.__new__(Session), databases=[], port=0
        )
        told = [await serve_module._is_ready(server, opened)]
        await server.start()
        told.append(await serve_module._is_ready(server, opened))
        opened.close()
        told.append(await serve_module._is_ready(server, opened))
        again = open_ledger(ledger)
        await server.close()
        told.append(await serve_module._is_ready(server, again))
        again.close()
        return told

    assert asyncio.run(scenario()) == [False, True, False, False]


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
