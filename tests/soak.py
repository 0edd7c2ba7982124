"""Hours of mixed load with accidents, by hand: `python -m tests.soak --minutes 120`; it ends in a table.

Three gateways share one ledger: one is killed again and again, at times after its disk has failed; two live on, one of
them with TLS, and show how memory and descriptors grow. Meanwhile data are swapped and policies are loaded again.
An answer further from the truth than 40 times the scale of its noise is wrong, or of a version that was current no
more when it was asked: noise alone does that with a chance below e⁻³⁹.
"""

import argparse
import errno
import json
import os
import random
import resource
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import psycopg

import dpsql
from dpsql.cli import main
from dpsql.errors import Error, InvalidParameter
from dpsql.ledger import BudgetScope, ChargeRecord, Holder, SqliteLedger
from dpsql.policy import load_policy
from dpsql.privacy.accounting import Spent
from dpsql.wire.scram import make_verifier
from tests.faults.calls import DURABLE, WRITING, fail
from tests.faults.forks import Fork, Forks

WIRE = Path(__file__).parent / "wire"
PASSWORD = "secret"
PRICE = 0.1
NARROW = 40
"""So many answers a narrow budget pays."""
CLIENTS = 6
BASES = 6
"""Sets of data that take turns."""
SHARE = 0.45
"""Of one processor, for gateways and clients together."""
SETTLED = 600
"""Seconds after which growth is measured."""
EVERY = 30
"""Seconds between two samples."""

POLICY = f"""
version = 1

[dataset]
name = "soak"
url = "duckdb:///soak.duckdb"
privacy_unit = "patient"
data_version = "VERSION"
budget = {{ epsilon = 1e4, accountant = "pure" }}

[roles.wide]
budget = {{ epsilon = 1e4, accountant = "pure" }}
query = {{ epsilon = {PRICE}, max_epsilon = {PRICE} }}

[roles.narrow]
budget = {{ epsilon = {NARROW * PRICE:g}, accountant = "pure" }}
query = {{ epsilon = {PRICE}, max_epsilon = {PRICE} }}

[tables.patients]
unit_key = "patient_id"
max_rows = 1
[tables.patients.columns]
code = {{ type = "integer", lower = 0, upper = 1000000 }}
age = {{ type = "integer", lower = 0, upper = 110 }}
sex = {{ type = "text", values = ["F", "M"] }}

[tables.visits]
unit_key = "patient_id"
max_rows = 3
[tables.visits.columns]
cost = {{ type = "integer", lower = 0, upper = 100 }}

[tables.doctors]
public = true
[tables.doctors.columns]
doctor_id = {{ type = "integer" }}
"""

CATALOG = (
    "SELECT n.nspname, c.relname, c.relkind FROM pg_catalog.pg_class c "
    "LEFT JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace WHERE c.relkind IN ('r', 'v') ORDER BY 1, 2",
    "SELECT a.attname, pg_catalog.format_type(a.atttypid, a.atttypmod), a.attnotnull FROM pg_catalog.pg_attribute a "
    "WHERE a.attrelid = 'patients'::regclass AND a.attnum > 0 AND NOT a.attisdropped ORDER BY a.attnum",
    "SELECT table_name, column_name, data_type FROM information_schema.columns ORDER BY 1, ordinal_position",
    "SELECT oid, typname, typelem FROM pg_catalog.pg_type WHERE typname IN ('int4', 'text', '_int4')",
    "SELECT conname, contype FROM pg_catalog.pg_constraint",
    "SELECT datname FROM pg_catalog.pg_database",
    "SELECT current_user, current_database(), version()",
    "SHOW server_version",
    "SELECT * FROM dpsql.budget",
)
REFUSED = (
    "SELECT * FROM patients",
    "SELECT nothing FROM patients",
    "SELECT COUNT(*) FROM strangers",
    "SELEC 1",
    "DELETE FROM patients",
    "SELECT 1 FROM patients" + " JOIN patients" * 40,
)
WITH_VALUES = "SELECT COUNT(*) FROM patients WHERE age > "
"""How the queries begin, and no others, that come with values."""
BIG = b"SELECT repeat('x', 10000) FROM doctors, generate_series(1, 200)"
CLOSED = {None, "57P01", "57P03", "08006"}
"""How a connection ends whose gateway is killed."""
AFTER_FAILURES = {"42501", "53300", "58000", "58030", "53000"}
"""What a user is told after a read that failed or was lost, until the owner allows more."""


@dataclass
class Tally:
    """What was seen; threads add to it."""

    seen: Counter[str] = field(default_factory=Counter)
    examples: dict[str, str] = field(default_factory=dict)
    longest: dict[str, float] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def add(self, what: str, example: object = None) -> None:
        with self._lock:
            self.seen[what] += 1
            if example is not None and self.seen[what] <= 20:
                self.examples.setdefault(what, str(example)[:600])
                print(f"{what}: {str(example)[:600]}", flush=True)

    def took(self, what: str, seconds: float) -> None:
        with self._lock:
            self.longest[what] = max(self.longest.get(what, 0), seconds)

    def sum(self, *beginnings: str) -> int:
        with self._lock:
            return sum(count for what, count in self.seen.items() if what.startswith(beginnings))


@dataclass(frozen=True)
class Question:
    """A query, and how far from the truth its numbers may be."""

    sql: str
    tolerance: float
    values: tuple[int, ...] = ()


def make_question(number: int) -> Question:
    """A query that nobody has asked: the number stands in it."""
    age, kind = number % 60, number % 7
    where = f"WHERE code >= {number}"
    return (
        Question(f"SELECT COUNT(*) FROM patients {where} AND age > {age}", 420),
        Question(f"SELECT SUM(age) FROM patients {where}", 45_000),
        Question(f"SELECT sex, COUNT(*) FROM patients {where} GROUP BY sex ORDER BY sex", 420),
        Question(
            "SELECT COUNT(*) FROM visits v JOIN patients p ON v.patient_id = p.patient_id "
            f"WHERE p.code >= {number} AND v.cost > 50",
            1260,
        ),
        Question(f"SELECT AVG(age) FROM patients {where}", 6),
        Question(f"SELECT COUNT(*) FROM patients {where} AND age IN ({', '.join(map(str, range(0, 110, 2)))})", 420),
        Question(f"{WITH_VALUES}%s AND code >= %s", 420, (age, number)),
    )[kind]


class World:
    """Data, policy and ledger, and what is true of them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.policy = folder / "soak.toml"
        self.ledger_path = folder / "ledger.sqlite"
        self.on_disk = threading.Lock()
        """Held while data and policy do not belong together."""
        self.written = 0
        self._bases = [_make_data(folder / f"base{number}.duckdb", number) for number in range(BASES)]
        self._truths = [duckdb.connect(str(path), read_only=True) for path in self._bases]
        self._asking = threading.Lock()
        self._put(0)
        self.ledger = SqliteLedger(self.ledger_path)
        self._narrow = 0
        for user in ("mortal", "plain", "tls", "api"):
            self.ledger.add_account(user, "wide", make_verifier(PASSWORD))
        self.next_narrow(None)

    @property
    def url(self) -> str:
        return f"sqlite:///{self.ledger_path}"

    @property
    def narrow(self) -> str:
        """The user whose budget is being spent."""
        return f"narrow{self._narrow}"

    def next_narrow(self, spent: str | None) -> None:
        """Have a user with a new budget, unless there is one already."""
        with self._asking:
            if spent in (None, self.narrow):
                self.ledger.add_account(f"narrow{self._narrow + 1}", "narrow", make_verifier(PASSWORD))
                self._narrow += 1

    def forgive(self) -> None:
        """The owner lets everybody ask again of whom reads have failed or were lost."""
        for user in ("mortal", "plain", "tls", "api", self.narrow):
            with suppress(InvalidParameter):  # nothing has failed
                self.ledger.unfreeze(Holder(BudgetScope.USER, user), "the soak")

    def swap(self) -> None:
        """Put other data in the place of those that are there, and say so in the policy."""
        with self.on_disk:
            self._put(self.written + 1)
            self.written += 1

    def _put(self, version: int) -> None:
        new = self.folder / "new.duckdb"
        shutil.copy(self._bases[version % BASES], new)
        new.replace(self.folder / "soak.duckdb")
        draft = self.folder / "soak.toml.new"
        draft.write_text(POLICY.replace("VERSION", str(version)), encoding="utf-8")
        draft.replace(self.policy)

    def is_true(self, question: Question, rows: Sequence[Sequence[Any]], versions: range) -> bool:
        """Whether rows answer a question about one of the versions."""
        if len(rows) > 1:
            rows = [row for row in rows if row[0] is not None]  # of nobody
        return any(_near(rows, truth, question.tolerance) for truth in map(partial(self._truth, question), versions))

    def _truth(self, question: Question, version: int) -> list[tuple[Any, ...]]:
        with self._asking:
            sql = question.sql.replace("%s", "?")
            return self._truths[version % BASES].execute(sql, list(question.values)).fetchall()


def _near(rows: Sequence[Sequence[Any]], truth: Sequence[Sequence[Any]], tolerance: float) -> bool:
    def same(got: Any, true: Any) -> bool:
        return got == true if isinstance(true, str) else got is not None and abs(float(got) - float(true)) <= tolerance

    return len(rows) == len(truth) and all(
        same(*pair) for row, true in zip(rows, truth, strict=True) for pair in zip(row, true, strict=True)
    )


def _make_data(path: Path, base: int) -> Path:
    people = 20_000 + 10_000 * base
    rng = np.random.default_rng(base)
    with duckdb.connect(str(path)) as database:
        database.execute("CREATE TABLE patients (patient_id INTEGER, code INTEGER, age INTEGER, sex VARCHAR)")
        database.execute(
            "INSERT INTO patients SELECT unnest(?), unnest(?), unnest(?), unnest(?)",
            [
                list(range(people)),
                rng.integers(500_000, 1_000_000, people).tolist(),
                rng.integers(0, 110, people).tolist(),
                rng.choice(["F", "M"], people).tolist(),
            ],
        )
        database.execute(
            "CREATE TABLE visits AS SELECT patient_id, (patient_id * 37 + n * 11) % 101 AS cost "
            "FROM patients, generate_series(1, 3) AS s(n)"
        )
        database.execute("CREATE TABLE doctors AS SELECT n::INTEGER AS doctor_id FROM generate_series(1, 20) AS s(n)")
    return path


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


@dataclass
class Served:
    """A gateway.

    Attributes:
        name: Of the gateway, and of the user who asks it alone.
        tls: Whether clients come with TLS; of the mortal one, every second life has it.
        port: Where it listens.
        monitor: Where its metrics are.
        pid: Its process; 0 where there is none.
        version: The one that it is known to have loaded.
        life: How many times it was started.
        samples: When, resident MB and descriptors, of the present life.
    """

    name: str
    tls: bool
    port: int = field(default_factory=_free_port)
    monitor: int = field(default_factory=_free_port)
    pid: int = 0
    version: int = 0
    life: int = 0
    samples: list[tuple[float, float, int]] = field(default_factory=list)
    processor: float = 0

    def arguments(self, world: World) -> list[str]:
        given = ["serve", world.policy, "--ledger", world.url, "--port", self.port, "--metrics-port", self.monitor]
        if self.tls:
            given += ["--tls-cert", WIRE / "server.crt", "--tls-key", WIRE / "server.key"]
        return list(map(str, given))

    def connect(self, user: str, password: str = PASSWORD) -> psycopg.Connection[tuple[Any, ...]]:
        mode = "require" if self.tls else "disable"
        url = f"postgresql://{user}:{password}@127.0.0.1:{self.port}/soak?sslmode={mode}&connect_timeout=20"
        return psycopg.connect(url, autocommit=True)

    def ask_monitor(self, page: str) -> str:
        with urllib.request.urlopen(f"http://127.0.0.1:{self.monitor}/{page}", timeout=20) as answer:
            return str(answer.read().decode())

    def wait_ready(self) -> None:
        for _ in range(600):
            with suppress(OSError):
                self.ask_monitor("readyz")
                return
            time.sleep(0.1)
        raise TimeoutError(f"{self.name} did not get ready")

    def reloads(self) -> int:
        lines = self.ask_monitor("metrics").splitlines()
        counts = (float(line.split()[-1]) for line in lines if line.startswith("dpsql_policy_reloads_total{"))
        return int(sum(counts))

    def reload(self, written: int) -> bool:
        """Let it load its policy again; True once it has."""
        before = self.reloads()
        os.kill(self.pid, signal.SIGHUP)
        for _ in range(300):
            if self.reloads() > before:
                self.version = written
                return True
            time.sleep(0.1)
        return False

    def sample(self) -> float:
        """Note memory and descriptors; return the seconds of processor it has taken since the last time."""
        status = Path(f"/proc/{self.pid}/status").read_text()
        resident = next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmRSS"))
        opened = len(os.listdir(f"/proc/{self.pid}/fd"))
        self.samples.append((time.monotonic(), resident / 1024, opened))
        fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        before, self.processor = self.processor, sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")
        return max(0.0, self.processor - before)


def be_mortal(log: str, breaks_after: float, *arguments: str) -> None:
    """Be a gateway whose disk fails after some seconds; never, if after none."""
    file = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    os.dup2(file, 1)
    os.dup2(file, 2)
    if breaks_after:
        calls, error = random.choice([(WRITING, errno.ENOSPC), (DURABLE, errno.EIO)])
        timer = threading.Timer(breaks_after, fail, (error, *calls))
        timer.daemon = True
        timer.start()
    main(list(arguments))


class Client:
    """Does one thing after another, with connections that come and go."""

    def __init__(self, soak: "Soak", number: int) -> None:
        self.soak, self.world, self.tally = soak, soak.world, soak.tally
        self.random = random.Random(number)
        self.asked: deque[tuple[str, Question, range, list[tuple[Any, ...]]]] = deque(maxlen=200)
        self._open: dict[tuple[str, str], psycopg.Connection[tuple[Any, ...]]] = {}
        self._silent: deque[tuple[float, psycopg.Connection[tuple[Any, ...]]]] = deque()
        self.since: float | None = None
        self.deed = ""
        self.deeds: dict[Callable[[Served], None], int] = {
            self.ask: 40,
            self.ask_again: 25,
            self.browse: 15,
            self.be_refused: 8,
            self.explain: 4,
            self.copy: 4,
            self.cancel: 4,
            self.guess: 3,
            self.be_a_stranger: 3,
            self.fall_silent: 1,
            self.ask_in_process: 1,
        }

    def run(self) -> None:
        while not self.soak.over.wait(self.soak.pause * self.random.uniform(0.5, 1.5)):
            (deed,) = self.random.choices(list(self.deeds), list(self.deeds.values()))
            served = self.random.choice(self.soak.gateways)
            life, self.since = served.life, time.monotonic()
            what = self.deed = deed.__name__
            try:
                deed(served)
                self.tally.add(f"done {what}")
            except (psycopg.Error, Error, OSError) as error:
                self._drop(served)
                self._judge(what, served, life, error)
            except Exception as error:
                self._drop(served)
                self.tally.add(f"unexpected {what} {type(error).__name__}", repr(error))
            finally:
                self.tally.took(what, time.monotonic() - self.since)
                self.since = None
            while self._silent and self._silent[0][0] < time.monotonic():
                self._silent.popleft()[1].close()

    def _judge(self, what: str, served: Served, life: int, error: Exception) -> None:
        sqlstate = getattr(error, "sqlstate", None)
        shaken = served.name == "mortal" or self.soak.shaken
        told = f"{what} {served.name} {sqlstate or type(error).__name__}: {error}"
        if served.name == "mortal" and (sqlstate in CLOSED or isinstance(error, OSError) or life != served.life):
            self.tally.add("lost with its gateway")
        elif shaken and sqlstate in AFTER_FAILURES:
            self.tally.add(f"refused after a failure {sqlstate}")
        else:
            self.tally.add(f"unexpected {what} {sqlstate or type(error).__name__}", told)

    def _connection(self, served: Served, user: str) -> psycopg.Connection[tuple[Any, ...]]:
        key = (served.name, user)
        if key in self._open and self.random.random() < 0.1:
            self._open.pop(key).close()
        if key not in self._open:
            self._open[key] = served.connect(user)
        return self._open[key]

    def _drop(self, served: Served) -> None:
        for key in [key for key in self._open if key[0] == served.name]:
            self._open.pop(key).close()

    def _fetch(self, connection: psycopg.Connection[tuple[Any, ...]], question: Question) -> list[tuple[Any, ...]]:
        style = self.random.randrange(3)
        if style == 0:  # simple: constants are written into the text
            return psycopg.ClientCursor(connection).execute(question.sql.encode(), question.values).fetchall()
        binary, prepare = style == 1, self.random.random() < 0.3
        with connection.cursor(binary=binary) as cursor:
            return cursor.execute(question.sql.encode(), question.values or None, prepare=prepare).fetchall()

    def _ask(self, served: Served, user: str, question: Question) -> tuple[range, list[tuple[Any, ...]]]:
        earliest = served.version
        rows = self._fetch(self._connection(served, user), question)
        versions = range(earliest, self.world.written + 1)
        self.soak.told(user, question)
        if not self.world.is_true(question, rows, versions):
            self.tally.add("wrong answers", f"{served.name} {question} {rows} {versions}")
        return versions, rows

    def ask(self, served: Served) -> None:
        user = self.random.choice([served.name, served.name, self.world.narrow])
        question = make_question(next(self.soak.numbers))
        try:
            versions, rows = self._ask(served, user, question)
        except psycopg.errors.ConfigurationLimitExceeded:
            if user == served.name:
                raise
            self.world.next_narrow(user)
            self.tally.add("budgets spent")
            return
        self.asked.append((user, question, versions, rows))

    def ask_again(self, served: Served) -> None:
        known = [each for each in self.asked if each[0] == served.name]
        if not known:
            return
        user, question, then, before = self.random.choice(known)
        versions, rows = self._ask(served, user, question)
        same = len(then) == 1 and versions == then
        if same and [tuple(map(str, row)) for row in rows] != [tuple(map(str, row)) for row in before]:
            self.tally.add("wrong answers", f"another answer to {question}: {before}, then {rows}")

    def browse(self, served: Served) -> None:
        self._connection(served, served.name).execute(self.random.choice(CATALOG).encode()).fetchall()

    def be_refused(self, served: Served) -> None:
        connection = self._connection(served, served.name)
        try:
            connection.execute(self.random.choice(REFUSED).encode())
        except psycopg.Error as error:
            if error.sqlstate is None or not error.sqlstate.startswith(("42", "0A", "54", "25")):
                raise
        else:
            self.tally.add("unexpected be_refused", "what is to be refused was answered")

    def explain(self, served: Served) -> None:
        sql = make_question(7 * self.random.randrange(10**5)).sql
        self._connection(served, served.name).execute(f"EXPLAIN {sql}".encode()).fetchall()

    def copy(self, served: Served) -> None:
        connection = self._connection(served, served.name)
        with connection.cursor() as cursor, cursor.copy(b"COPY (SELECT doctor_id FROM doctors) TO STDOUT") as copied:
            rows = sum(bytes(data).count(b"\n") for data in copied)
        if rows != 20:
            self.tally.add("wrong answers", f"{rows} rows of 20")

    def cancel(self, served: Served) -> None:
        connection = self._connection(served, served.name)
        timer = threading.Timer(self.random.uniform(0, 0.1), connection.cancel)
        timer.start()
        try:
            connection.execute(make_question(7 * next(self.soak.numbers)).sql.encode())
        except psycopg.errors.QueryCanceled:
            self.tally.add("cancelled")
        finally:
            timer.join()
            self._drop(served)  # a cancel that comes late would meet the next statement

    def guess(self, served: Served) -> None:
        """Log in with a wrong password or as nobody; the users are nobody's, so that none is kept out."""
        try:
            served.connect(self.random.choice(["nobody", "guessed"]), "wrong").close()
        except psycopg.OperationalError as error:
            if "authentication failed" not in str(error) and "too many" not in str(error):
                raise
        else:
            self.tally.add("unexpected guess", "a wrong password was let in")

    def be_a_stranger(self, served: Served) -> None:
        """Connect, and send nothing, or what is no login, or half of a TLS greeting."""
        noise = self.random.choice([b"", b"GET / HTTP/1.0\r\n\r\n", b"\0\0\0\x08\x04\xd2\x16\x2f" + b"\x16\x03\x01"])
        with socket.create_connection(("127.0.0.1", served.port), 5) as stranger:
            stranger.sendall(noise)
            stranger.settimeout(0.2)
            with suppress(TimeoutError, ConnectionError):
                stranger.recv(100)

    def fall_silent(self, served: Served) -> None:
        """Ask for much, and read nothing of it for a while."""
        connection = served.connect(served.name)
        connection.pgconn.send_query(BIG)
        self._silent.append((time.monotonic() + self.random.uniform(5, 90), connection))

    def ask_in_process(self, served: Served) -> None:
        question = make_question(7 * next(self.soak.numbers))  # a kind without values
        with self.world.on_disk:
            version = self.world.written
            with closing(dpsql.connect(self.world.policy, user="api", ledger=self.world.url)) as connection:
                cursor = connection.cursor()
                cursor.execute(question.sql)
                rows = cursor.fetchall()
        self.soak.told("api", question)
        if not self.world.is_true(question, rows, range(version, version + 1)):
            self.tally.add("wrong answers", f"in process {question} {rows} {version}")


class Soak:
    """Gateways, clients and accidents."""

    def __init__(self, world: World, forks: Forks, minutes: float) -> None:
        self.world, self.tally = world, Tally()
        self.mortal = Served("mortal", tls=False)
        self.gateways = [self.mortal, Served("plain", tls=False), Served("tls", tls=True)]
        self.over = threading.Event()
        self.pause = 0.5
        self.numbers: Iterator[int] = iter(range(1, 10**9))
        self._told: dict[tuple[str, str], set[tuple[int, ...]]] = {}
        self._telling = threading.Lock()
        self._forks = forks
        self._fork: Fork | None = None
        self._living: dict[str, subprocess.Popen[bytes]] = {}
        self._random = random.Random(0)
        self._begun = time.monotonic()
        self._until = self._begun + 60 * minutes
        self._failed = 0.0
        self._mortal_peaks: list[float] = []
        self._used = (time.monotonic(), 0.0)
        self._clients = [Client(self, number) for number in range(CLIENTS)]

    @property
    def shaken(self) -> bool:
        """Whether reads were lost so lately that users may not ask again yet."""
        return time.monotonic() - self._failed < 60

    def told(self, user: str, question: Question) -> None:
        """Note that a user has an answer."""
        with self._telling:
            self._told.setdefault((user, _begin(question.sql)), set()).add(question.values)

    def run(self) -> bool:
        """Run to the end; True if nothing was wrong."""
        for served in self.gateways[1:]:
            self._start(served)
        self._start_mortal()
        threads = [threading.Thread(target=client.run) for client in self._clients]
        for thread in threads:
            thread.start()
        try:
            self._have_accidents()
        finally:
            self.over.set()
            for thread in threads:
                thread.join(90)
            for process in self._living.values():
                process.terminate()
                process.wait(60)
            if self._fork is not None:
                self._fork.stop()
        return self.report(last=True)

    def _start(self, served: Served) -> None:
        with (self.world.folder / f"{served.name}.log").open("ab") as log:
            command = [sys.executable, "-m", "dpsql", *served.arguments(self.world)]
            process = subprocess.Popen(command, stdout=log, stderr=log)
        self._living[served.name] = process
        served.version, served.samples, served.processor = self.world.written, [], 0
        served.pid = process.pid
        served.wait_ready()
        served.life += 1

    def _start_mortal(self, breaks_after: float = 0) -> None:
        served = self.mortal
        served.tls = not served.tls
        served.version, served.samples, served.processor = self.world.written, [], 0
        log = self.world.folder / "mortal.log"
        self._fork = self._forks.start("tests.soak:be_mortal", log, breaks_after, *served.arguments(self.world))
        served.pid = self._fork.pid
        served.wait_ready()
        served.life += 1

    def _kill(self) -> None:
        self.mortal.life += 1
        assert self._fork is not None
        self._fork.stop()
        self._failed = time.monotonic()
        self._mortal_peaks.append(max((mb for _, mb, _ in self.mortal.samples), default=0))
        self.tally.add("kills")

    def _have_accidents(self) -> None:
        reported = sampled = time.monotonic()
        accident = time.monotonic() + 20
        while time.monotonic() < self._until:
            time.sleep(1)
            now = time.monotonic()
            if now - sampled > EVERY:
                sampled = now
                self._sample()
            if now - reported > 600:
                reported = now
                self.report(last=False)
            if now > accident:
                self._have_accident()
                accident = time.monotonic() + self._random.uniform(10, 70)

    def _have_accident(self) -> None:
        kind = self._random.choices(["kill", "break", "swap", "reload"], [5, 2, 3, 2])[0]
        try:
            if kind == "kill":
                self._kill()
                self._start_mortal()
            elif kind == "break":
                self._kill()
                self._start_mortal(breaks_after=self._random.uniform(5, 20))
                time.sleep(30)
                self.tally.add("broken disks")
                self._kill()
                self._start_mortal()
            elif kind == "swap":
                self.world.swap()
                self.tally.add("data swaps")
                if self._random.random() < 0.3:
                    self._kill()
                    self._start_mortal()
                self._reload()
            else:
                self._reload()
            self.world.forgive()
        except Exception as error:
            self.tally.add(f"unexpected accident {kind} {type(error).__name__}", repr(error))
            self._kill()
            self._start_mortal()

    def _reload(self) -> None:
        for served in self.gateways:
            self.tally.add("reloads")
            if not served.reload(self.world.written):
                self.tally.add("unexpected reload", f"{served.name} did not load its policy again")

    def _sample(self) -> None:
        for served in self.gateways[1:]:
            if self._living[served.name].poll() is not None:
                self.tally.add("unexpected end", f"{served.name} ended by itself")
                self._start(served)
        used = 0.0
        for served in self.gateways:
            with suppress(OSError):
                used += served.sample()
        own = resource.getrusage(resource.RUSAGE_SELF)
        (then, before), now = self._used, (time.monotonic(), own.ru_utime + own.ru_stime)
        self._used = now
        share = (used + now[1] - before) / (now[0] - then)
        self.pause = min(5.0, max(0.05, self.pause * min(1.3, max(0.8, share / SHARE))))
        for client in self._clients:
            if client.since is not None and time.monotonic() - client.since > 120:
                self.tally.add("hangs", f"for 120 s: {client.deed}")

    def _lost(self, charges: Sequence[ChargeRecord]) -> int:
        """How many answers were told of which the ledger has no charge."""
        charged = Counter((record.user, _begin(record.sql)) for record in charges)
        return sum(max(0, len(values) - charged[key]) for key, values in self._told.items())

    def _overspends(self, charges: Sequence[ChargeRecord]) -> int:
        """How many users have spent more than they may, or another sum than that of their charges."""
        policy = load_policy(self.world.policy)
        totals: dict[str, Spent] = {}
        for record in charges:
            totals[record.user] = totals.get(record.user, Spent.zero()).add(record.price)
        wrong = 0
        for user, total in totals.items():
            status = self.world.ledger.budget(user, policy)
            assert status.spent.pure_epsilon is not None
            # While gateways run, more may have been charged since the history was read.
            wrong += status.spent.pure_epsilon > status.limit.epsilon or (self.over.is_set() and status.spent != total)
        return wrong

    def report(self, *, last: bool) -> bool:
        """Print the table; True if nothing is wrong in it."""
        verified = self.world.ledger.verify()
        with self._telling:  # what was told was charged before
            charges = self.world.ledger.history()
            lost, overspends = self._lost(charges), self._overspends(charges)
        seen = self.tally
        hours = (time.monotonic() - self._begun) / 3600
        asked = seen.sum("done ask")
        rows = [
            ("time", f"{60 * hours:.0f} min, at most {SHARE} of a processor"),
            ("statements and visits", f"{seen.sum('done '):,}"),
            ("queries answered and compared with the truth", f"{asked:,}"),
            ("charges", f"{len(charges):,}"),
            ("budgets spent to the end", f"{seen.seen['budgets spent']:,}"),
            ("kill -9; disks that failed first", f"{seen.seen['kills']:,}; {seen.seen['broken disks']:,}"),
            ("data swaps; reloads", f"{seen.seen['data swaps']:,}; {seen.seen['reloads']:,}"),
            ("lost with its gateway; refused after that", self._refusals()),
            ("overspends", f"{overspends}"),
            ("lost charges", f"{lost}"),
            ("wrong or stale answers", f"{seen.seen['wrong answers']}"),
            ("ledger", "whole" if verified.ok else f"{verified.problems}"),
            ("hangs; unexpected errors", f"{seen.seen['hangs']}; {seen.sum('unexpected')}"),
            ("largest resident of a killed one", f"{max(self._mortal_peaks, default=0):.0f} MB"),
        ]
        for served in self.gateways[1:]:
            rows.append((f"{served.name}: resident, descriptors", _growth(served.samples)))
        print(f"\n{'end' if last else 'so far'}\n| what | seen |\n|---|---|")
        print("\n".join(f"| {name} | {value} |" for name, value in rows))
        longest = {what: round(seconds, 1) for what, seconds in seen.longest.items()}
        print(json.dumps({"longest": longest, "seen": dict(seen.seen)}), flush=True)
        for served in self.gateways[1:]:
            every = [f"{when - self._begun:.0f}:{mb:.0f}:{files}" for when, mb, files in served.samples[::10]]
            print(f"{served.name} seconds:MB:descriptors {' '.join(every)}", flush=True)
        return verified.ok and not (lost or overspends or seen.sum("wrong", "hangs", "unexpected"))

    def _refusals(self) -> str:
        return f"{self.tally.seen['lost with its gateway']:,}; {self.tally.sum('refused after'):,}"


def _begin(sql: str) -> str:
    """A query without its values, which it may have beside it or in it."""
    return WITH_VALUES if sql.startswith(WITH_VALUES) else sql


def _growth(samples: Sequence[tuple[float, float, int]]) -> str:
    if not samples:
        return "not measured"
    begun = samples[0][0]
    settled = [each for each in samples if each[0] - begun > SETTLED]
    text = f"{samples[0][1]:.0f} to {samples[-1][1]:.0f} MB, {samples[-1][2]}"
    if len(settled) < 10:
        return text
    hours, megabytes, files = np.array(settled).T / np.array([[3600], [1], [1]])
    return (
        f"{text}; {np.polyfit(hours, megabytes, 1)[0]:+.1f} MB/h, {np.polyfit(hours, files, 1)[0]:+.1f} descriptors/h "
        f"after {SETTLED // 60} min"
    )


def begin() -> int:
    """Read the command, run, and return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=120)
    parser.add_argument("--folder", type=Path, required=True, help="a new one; logs, data and the ledger stay there")
    given = parser.parse_args()
    given.folder.mkdir(parents=True)
    with Forks() as forks:
        return 0 if Soak(World(given.folder.resolve()), forks, given.minutes).run() else 1


if __name__ == "__main__":
    sys.exit(begin())
