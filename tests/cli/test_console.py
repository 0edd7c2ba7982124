"""`dpsql console`: the password from a file or standard input, loopback without TLS, a program that stops when told."""

import asyncio
import gc
import http.client
import os
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import urllib.parse
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from dpsql.cli import console_server
from dpsql.cli.console_server import check_ledger, look_at_engine
from dpsql.ledger import open_ledger
from dpsql.wire.metrics import Metrics
from dpsql.wire.monitor import monitor
from tests.cli.conftest import Program, Run
from tests.waiting import HANG_SECONDS, wait_for

CERTIFICATES = Path(__file__).parent.parent / "wire"


@pytest.fixture
def ledger(run: Run, policy: Path) -> str:
    """Return a ledger in which there is a user."""
    url = f"sqlite:///{policy.parent / 'ledger.sqlite'}"
    run("user", "add", "ana", "--role", "analyst", "--ledger", url, stdin="secret\n")
    return url


def refused(run: Run, *arguments: object, stdin: str = "secret\n") -> str:
    return run("console", *arguments, status=1, stdin=stdin).stderr


def test_without_the_extra_it_says_what_installs_it_and_all_else_runs(policy: Path) -> None:
    bare = "import sys; sys.modules |= {'starlette': None, 'jinja2': None}; from dpsql.cli import main; main()"
    console = subprocess.run([sys.executable, "-c", bare, "console", policy], capture_output=True, text=True)
    assert console.returncode == 1 and 'pip install "dpsql[console]"' in console.stderr
    assert "the console needs starlette, which is not installed" in console.stderr
    # `serve` has the probes.
    subprocess.run([sys.executable, "-c", bare, "serve", "--help"], capture_output=True, check=True)


def test_without_tls_it_listens_on_this_machine_alone(run: Run, policy: Path, ledger: str) -> None:
    for host in ("0.0.0.0", "::", "192.0.2.1", "example.org"):
        told = refused(run, policy, "--ledger", ledger, "--host", host)
        assert f"the console requires TLS on {host}" in told and "--tls-cert" in told


def test_it_needs_a_password_a_ledger_and_a_policy(run: Run, policy: Path, ledger: str, tmp_path: Path) -> None:
    assert "the password is empty" in refused(run, policy, "--ledger", ledger, stdin="\n")
    assert "there is no ledger" in refused(run, policy)
    assert not (policy.parent / "dpsql-ledger.sqlite").exists()
    assert "F0000" in refused(run, tmp_path / "none.toml")
    assert "must be given together" in run("console", policy, "--tls-cert", "x", status=2).stderr
    assert "No such file" in refused(run, policy, "--ledger", ledger, "--password-file", tmp_path / "none")


def test_a_port_that_is_taken_is_said_to_be(run: Run, policy: Path, ledger: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        told = refused(run, policy, "--ledger", ledger, "--port", other.getsockname()[1])
    assert "cannot listen on 127.0.0.1" in told


def test_it_shows_what_there_is_and_writes_nothing(policy: Path, ledger: str, start: Callable[..., Program]) -> None:
    secret = policy.parent / "owner.txt"
    secret.write_text("a secret of the owner\nwith a second line\n")
    with closing(open_ledger(ledger)) as opened:
        before = list(opened.export())
    certificate, key = (shutil.copy(CERTIFICATES / f"server.{end}", policy.parent) for end in ("crt", "key"))
    tls = ("--tls-cert", certificate, "--tls-key", key, "--metrics-port", 1)
    names = ("--host", "0.0.0.0", "--name", "Console.example.org", "--port", 0, "--password-file", secret)
    program = start("console", policy, "--ledger", ledger, *names, *tls)
    url = program.wait_for(program.out, "console on").partition("console on ")[2]
    assert url.startswith("https://Console.example.org:")
    port = int(url.rstrip("/").rpartition(":")[2])
    name = f"console.example.org:{port}"
    page = posted(port, name, "a secret of the owner")
    assert page.status == 303
    cookie = str(page.getheader("Set-Cookie")).partition(";")[0]
    told = asked(port, "GET", "/", {"Host": name, "Cookie": cookie}).read().decode()
    assert "user <bdi>ana</bdi>" in told and "does not answer at 127.0.0.1:1" in told
    assert asked(port, "GET", "/login", {"Host": "evil.example"}).status == 421
    with closing(open_ledger(ledger)) as opened:
        assert list(opened.export()) == before
    assert posted(port, name, "x").status == 403
    program.wait_for(program.err, "wrong password from 127.0.0.1")
    former = presented(port)
    program.process.send_signal(signal.SIGHUP)
    program.wait_for(program.err, "the certificate was reloaded")
    Path(certificate).write_text("none")
    program.process.send_signal(signal.SIGHUP)
    program.wait_for(program.err, "the certificate is unchanged: cannot load TLS certificate")
    assert presented(port) == former
    for new, old in (("renewed.crt", certificate), ("renewed.key", key)):
        shutil.copy(CERTIFICATES / new, old)
    program.process.send_signal(signal.SIGHUP)
    wait_for(lambda: presented(port) != former)
    assert "secret" not in "\n".join([*program.out, *program.err])
    assert program.stop() == 0 and "Traceback" not in "\n".join(program.err)


def presented(port: int) -> str:
    """The certificate that a client who comes now is shown."""
    return ssl.get_server_certificate(("127.0.0.1", port), timeout=HANG_SECONDS)


def posted(port: int, name: str, password: str) -> http.client.HTTPResponse:
    headers = {"Host": name, "Origin": f"https://{name}", "Content-Type": "application/x-www-form-urlencoded"}
    return asked(port, "POST", "/login", headers, urllib.parse.urlencode({"password": password}))


def asked(
    port: int, method: str, path: str, headers: dict[str, str], body: str | None = None
) -> http.client.HTTPResponse:
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    client = http.client.HTTPSConnection("127.0.0.1", port, timeout=HANG_SECONDS, context=context)
    client.request(method, path, body, headers)
    response = client.getresponse()
    return response


def test_the_ledger_and_the_database_are_looked_at(policy: Path, ledger: str, run: Run) -> None:
    health = check_ledger(ledger)
    assert health.report is not None and health.report.ok and health.report.records == 1
    assert health.place.endswith("ledger.sqlite") and (health.size or 0) > 4096
    gone = check_ledger(f"sqlite:///{policy.parent / 'none.sqlite'}")
    assert gone.report is None and "there is no ledger" in str(gone.trouble)
    away = check_ledger("postgresql://somebody:password@127.0.0.1:1/ledger")
    assert (away.place, away.size) == ("in PostgreSQL", None) and "password" not in str(away)

    assert look_at_engine(policy).trouble is None and look_at_engine(policy).copies == ()
    run("prepare", policy)
    assert dict(look_at_engine(policy).copies)["visits"].startswith("fresh")
    shutil.move(policy.with_suffix(".duckdb"), policy.with_suffix(".moved"))
    assert "there is no file" in str(look_at_engine(policy).trouble)
    policy.unlink()
    assert "no such file" in str(look_at_engine(policy).trouble)


def test_what_no_task_handled_is_logged_by_its_kind(caplog: pytest.LogCaptureFixture) -> None:
    """The task that asyncio would print holds what is on the page."""

    async def fail() -> None:
        raise LookupError("canary")

    async def nothing() -> frozenset[str]:
        return frozenset()

    async def visit() -> None:
        served = asyncio.create_task(
            console_server._run(monitor(Metrics().text, nothing, "127.0.0.1", 0), None, "http://x")
        )
        await asyncio.sleep(0)
        task = asyncio.create_task(fail())
        await asyncio.wait([task])
        del task
        gc.collect()
        os.kill(os.getpid(), signal.SIGTERM)
        await served

    asyncio.run(visit())
    assert "unexpected LookupError" in caplog.text
    assert "canary" not in caplog.text
