"""A small clinic, and the command in this process and as a program."""

import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from importlib.resources import files
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from dpsql.cli import main
from dpsql.cli.clinic import generate_clinic
from tests.waiting import HANG_SECONDS

Run = Callable[..., Result]


@pytest.fixture(autouse=True, scope="package")
def _no_ledger_of_the_environment() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("DPSQL_LEDGER", raising=False)
        yield


@pytest.fixture(scope="session")
def generated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("clinic") / "clinic.duckdb"
    generate_clinic(path, patients=300)
    return path


def write_demo(folder: Path, generated: Path) -> Path:
    """Write the demo's policy, with its data beside it."""
    shutil.copy(generated, folder / "clinic.duckdb")
    path = folder / "clinic.toml"
    path.write_text(files("dpsql.cli").joinpath("clinic.toml").read_text())
    return path


@pytest.fixture
def policy(tmp_path: Path, generated: Path) -> Path:
    """Return the demo's policy, with its data beside it."""
    return write_demo(tmp_path, generated)


@pytest.fixture(scope="session")
def run() -> Run:
    """Return a function that runs `dpsql` and checks its exit status and that no traceback is shown."""
    runner = CliRunner()

    def invoke(*arguments: object, status: int = 0, stdin: str | None = None) -> Result:
        result = runner.invoke(main, [str(argument) for argument in arguments], input=stdin)
        assert result.exit_code == status, result.output
        assert "Traceback" not in result.output
        return result

    return invoke


@dataclass
class Program:
    """A running `dpsql`, with what it has written so far."""

    process: subprocess.Popen[str]
    out: list[str] = field(default_factory=list)
    err: list[str] = field(default_factory=list)
    _changed: threading.Condition = field(default_factory=threading.Condition)
    _readers: list[threading.Thread] = field(default_factory=list)

    def listen(self) -> None:
        for stream, lines in ((self.process.stdout, self.out), (self.process.stderr, self.err)):
            assert stream is not None
            reader = threading.Thread(target=self._read, args=(stream, lines))
            reader.start()
            self._readers.append(reader)

    def _read(self, stream: Iterator[str], lines: list[str]) -> None:
        for line in stream:
            with self._changed:
                lines.append(line.rstrip("\n"))
                self._changed.notify_all()

    def wait_for(self, lines: list[str], part: str) -> str:
        """Return the first line that has the part."""
        with self._changed:
            found = self._changed.wait_for(lambda: any(part in line for line in lines), timeout=HANG_SECONDS)
            assert found, (part, self.out, self.err)
            return next(line for line in lines if part in line)

    @property
    def port(self) -> int:
        return int(self.wait_for(self.err, "listening on").rstrip('"}').rpartition(":")[2])

    def stop(self, number: int = signal.SIGTERM) -> int:
        """Return the exit status after a signal."""
        self.process.send_signal(number)
        return self.end()

    def end(self) -> int:
        status = self.process.wait(HANG_SECONDS)
        for reader in self._readers:
            reader.join()
        for stream in (self.process.stdout, self.process.stderr):
            assert stream is not None
            stream.close()
        return status


@pytest.fixture
def start() -> Iterator[Callable[..., Program]]:
    """Return a function that starts `dpsql` as a program of its own."""
    programs: list[Program] = []

    def begin(*arguments: object) -> Program:
        process = subprocess.Popen(
            [sys.executable, "-m", "dpsql", *map(str, arguments)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        program = Program(process)
        program.listen()
        programs.append(program)
        return program

    yield begin
    for program in programs:
        if program.process.returncode is None:
            program.process.kill()
            program.end()
