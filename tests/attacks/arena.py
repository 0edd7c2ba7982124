"""Where attacks take place: two databases that differ in one person, a naive gateway and dpsql over each.

The attacker knows all of the database but whether the target is in it. Under (ε, δ) a guess is right with a probability
of at most (e^ε + δ) / (1 + e^ε) if a coin decided (Kairouz, Oh & Viswanath 2015): whoever is right more often than
that has broken the promise. A game is long enough for that to show beyond doubt, and no longer.
"""

import math
import random
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Final, TypeVar

import duckdb

from dpsql.backends import open_backend
from dpsql.errors import Error
from dpsql.gateway.engine import Engine
from dpsql.gateway.session import Session
from dpsql.ledger import open_ledger
from dpsql.policy import load_policy
from tests.attacks.naive import Ask, NaiveGateway, Refused, Rows
from tests.engines import HOSTS, Host, SparkHost
from tests.faults.forks import Forks
from tests.postgres import Server
from tests.spark import adapted_policy

T = TypeVar("T")

OTHERS: Final = 1000
TARGET: Final = "age = 108 AND city = 'Nowhere'"
"""What is true of the target alone."""
SECRET: Final = "Nowhere"
EPSILON: Final = 0.5
BOUND: Final = (math.exp(EPSILON) + 1e-6) / (1 + math.exp(EPSILON))
"""How often a guess is right at most."""
DOUBT: Final = 1e-6
"""The chance that a gateway which keeps its promise is said to have broken it."""
ROUNDS: Final = 30
"""Whoever is right in all of them has broken the promise: 0.6225^30 < 1e-6."""

_PEOPLE: Final = """
    CREATE TABLE people AS SELECT i AS person, 20 + i * 7 % 60 AS age, 'town ' || i % 9 AS city,
        hash(i) % 2 = 0 AS sick, i * 7919 % 100003 AS pay FROM range(1000) r (i);
    CREATE TABLE visits AS SELECT i % 1000 AS person, CAST(i * 31 % 100 AS INTEGER) AS cost, i % 50 AS n,
        CAST(i % 50 AS DOUBLE) AS f, CAST(i % 50 AS DECIMAL(18, 2)) AS m, 'note ' || i % 50 AS note,
        DATE '2024-01-01' + CAST(i % 300 AS INTEGER) AS day, TIMESTAMP '2024-01-01 10:00:00' AS met
        FROM range(3000) r (i);
"""
_TARGET: Final = """
    INSERT INTO people VALUES (1000, 108, 'Nowhere', true, 100001);
    INSERT INTO visits SELECT 1000, 100, 0, 0, 0, 'Nowhere', DATE '2024-01-01', TIMESTAMP '2024-01-01' FROM range(400);
    INSERT INTO visits SELECT NULL, 77, 0, 0, 0, 'of nobody', '2024-01-01', '2024-01-01' FROM range(400);
    INSERT INTO visits VALUES
        (1000, 2147483647, 9223372036854775807, 'Infinity', 9999999999999999.99, 'é' || chr(0), '9999-12-31', NULL),
        (1000, -2147483648, -9223372036854775808, '-Infinity', -9999999999999999.99, '', '0001-01-01', '-infinity'),
        (1000, 0, 0, 'NaN', 0, '1e999', 'infinity', '0001-01-01'), (1000, -1, -1, -1e308, -0.01, '-1', NULL, NULL),
        (1000, NULL, NULL, NULL, NULL, NULL, NULL, NULL);
"""

_POLICY: Final = """
version = 1
[dataset]
name = "arena"
url = "{url}"
schema = "main"
privacy_unit = "person"
data_version = "1"
reply_quantum = "{quantum} ms"
budget = {{ epsilon = 1000, delta = 0.09 }}
[roles.analyst]
budget = {{ epsilon = {epsilon}, delta = {delta}, accountant = "{accountant}" }}
query = {{ epsilon = {query}, delta = {query_delta}, max_epsilon = {epsilon} }}
[tables.people]
unit_key = "person"
max_rows = 1
[tables.people.columns]
age = {{ type = "integer", lower = 0, upper = 110 }}
city = {{ type = "text" }}
sick = {{ type = "boolean" }}
pay = {{ type = "bigint", lower = 0, upper = 100000 }}
[tables.visits]
unit_key = "person"
max_rows = 5
max_groups = 3
max_rows_per_group = 2
[tables.visits.columns]
cost = {{ type = "integer", lower = 0, upper = 100 }}
n = {{ type = "bigint", lower = 0, upper = 50 }}
f = {{ type = "double", lower = 0, upper = 50, step = 0.5 }}
m = {{ type = "decimal", lower = 0, upper = 50 }}
note = {{ type = "text" }}
day = {{ type = "date", lower = 2024-01-01, upper = 2024-12-31 }}
met = {{ type = "timestamp", lower = 2024-01-01T00:00:00, upper = 2024-12-31T00:00:00 }}
"""
_TERMS: Final = {
    **{"epsilon": EPSILON, "delta": 1e-6, "query": EPSILON, "query_delta": 1e-9, "accountant": "basic"},
    **{"quantum": 0, "data": "", "engine": "duckdb"},
}
"""What a policy says, unless an attack needs it otherwise; `data` names databases that `Arena.add` has made, and
`engine` says where they are held."""


StartServer = Callable[[], AbstractContextManager[Server]]


@dataclass(frozen=True)
class Verdict:
    """What an attack came to, in words, and whether it succeeded."""

    text: str
    succeeded: bool


def together(verdicts: Mapping[str, Verdict]) -> Verdict:
    """An attack on dpsql over several engines: it succeeds where it does over one."""
    told = (f"{engine}: {verdict.text}" for engine, verdict in verdicts.items())
    return Verdict("; ".join(told), any(verdict.succeeded for verdict in verdicts.values()))


@dataclass(frozen=True)
class Comparison:
    """One line of the table."""

    attack: str
    naive: Verdict
    dpsql: Verdict

    def check(self) -> None:
        """The attack is one, and dpsql withstands it."""
        assert self.naive.succeeded, f"{self.attack}: the naive gateway withstands: {self.naive.text}"
        assert not self.dpsql.succeeded, f"{self.attack}: dpsql falls: {self.dpsql.text}"


def beats(right: int, rounds: int, chance: float) -> bool:
    """Whether so many right guesses are more than chance explains, but for one time in a million."""

    def logarithm(n: int) -> float:
        ways = math.lgamma(rounds + 1) - math.lgamma(n + 1) - math.lgamma(rounds - n + 1)
        return ways + n * math.log(chance) + (rounds - n) * math.log1p(-chance)

    return sum(math.exp(logarithm(n)) for n in range(right, rounds + 1)) < DOUBT


class Arena:
    """The databases with and without the target, and the gateways over them.

    Args:
        folder: Where their files are made.
        start: Starts a PostgreSQL server, which runs as long as there are attacks on it.
        rounds: How many rounds a game has.
        thorough: Whether attacks may take their time.
        spark: Spark, where attacks are to be on it, too.
    """

    def __init__(
        self,
        folder: Path,
        start: StartServer,
        *,
        rounds: int = ROUNDS,
        thorough: bool = False,
        spark: SparkHost | None = None,
    ) -> None:
        self.rounds, self.thorough = rounds, thorough
        self._start = start
        self.folder = folder
        self._engines: dict[tuple[object, ...], Engine] = {}
        self._users = 0
        self._held = ExitStack()
        self.hosts: dict[str, Host | SparkHost] = {name: make(lambda: self.server) for name, make in HOSTS.items()}
        if spark is not None:
            self.hosts["spark"] = spark
        self.add("", "")

    def close(self) -> None:
        """Close whatever was opened."""
        self._held.close()

    def add(self, data: str, sql: str) -> None:
        """Make databases of a name; SQL adds to what the target has."""
        for present in (True, False):
            for gateway in ("naive", "dpsql"):  # DuckDB opens a file in one process with one configuration only
                with duckdb.connect(str(self.file(gateway, present, data))) as connection:
                    connection.execute(_PEOPLE + (_TARGET + sql if present else ""))

    @cached_property
    def forks(self) -> Forks:
        """Where gateways are forked from that are to die."""
        return self._held.enter_context(Forks())

    @cached_property
    def server(self) -> Server:
        """A PostgreSQL server."""
        return self.held(self._start())

    def held(self, context: AbstractContextManager[T]) -> T:
        """What a context gives; it is left when the arena is closed."""
        return self._held.enter_context(context)

    def naive(self, present: bool, data: str = "", /, **options: int) -> NaiveGateway:
        """A new naive gateway."""
        gateway = NaiveGateway(self.file("naive", present, data), **options)
        self._held.callback(gateway.database.close)
        return gateway

    def engine(self, present: bool, **terms: object) -> Engine:
        """An engine with a ledger of its own; the same for the same terms."""
        key = present, *sorted(terms.items())
        if key not in self._engines:
            self._engines[key] = self._open(present, terms)
        return self._engines[key]

    def session(self, present: bool, **terms: object) -> Session:
        """A session of a new user, who has spent nothing."""
        engine = self.engine(present, **terms)
        self._users += 1
        engine.ledger.add_account(f"user{self._users}", "analyst")
        return Session(engine, f"user{self._users}")

    def dpsql(self, present: bool, **terms: object) -> Ask:
        """What a new user of dpsql asks; each has noise of their own, as long as they ask for it."""
        ask = asking(self.session(present, **terms))
        ask("SET dpsql.reuse = off")
        return ask

    def game(
        self, attack: str, guess: Callable[[Ask], bool], *, naive: Mapping[str, int], **terms: object
    ) -> Comparison:
        """Let an attacker guess again and again whether the target is there, a coin deciding each time."""
        coin = random.Random(7)
        right = {"naive": 0, "dpsql": 0}
        for _ in range(self.rounds):
            present = coin.random() < 0.5
            right["naive"] += guess(self.naive(present, str(terms.get("data", "")), **naive).ask) == present
            right["dpsql"] += guess(self.dpsql(present, **terms)) == present
        verdicts = {
            gateway: Verdict(f"right: {count / self.rounds:.0%}", beats(count, self.rounds, BOUND))
            for gateway, count in right.items()
        }
        told = Verdict(f"{verdicts['dpsql'].text} (bound {BOUND:.0%})", verdicts["dpsql"].succeeded)
        return Comparison(attack, verdicts["naive"], told)

    def _open(self, present: bool, terms: Mapping[str, object]) -> Engine:
        name = f"arena{len(self._engines)}"
        policy = self.folder / f"{name}.toml"
        values = {**_TERMS, **terms}
        file = self.file("dpsql", present, values["data"])
        values["url"] = self.held(self.hosts[str(values["engine"])].serve(file))
        text, engine = _POLICY.format_map(values), values["engine"]
        policy.write_text(adapted_policy(text, str(values["url"])) if engine == "spark" else text, encoding="utf-8")
        loaded = load_policy(policy)
        ledger = open_ledger(f"sqlite:///{self.folder / name}.sqlite")
        self._held.callback(ledger.close)
        engine = Engine(loaded, ledger, open_backend(loaded))
        self._held.callback(engine.close)
        return engine

    def file(self, gateway: str, present: bool, data: object = "") -> Path:
        """Where a gateway's database is."""
        return self.folder / f"{gateway}{data}-{'with' if present else 'without'}.duckdb"


def asking(session: Session) -> Ask:
    """What a session is asked; of a refusal the attacker sees every word."""

    def ask(sql: str) -> Rows:
        rows: Rows = ()
        try:
            for statement in session.parse(sql):
                rows = session.execute(statement).rows
        except Error as error:
            told = error.sqlstate, error.message, error.detail, error.hint, error.position
            raise Refused(" | ".join(map(str, told)).replace(f'"{session.user}"', "you")) from None
        return rows

    return ask


def number(ask: Ask, sql: str) -> float:
    """The one number that is the answer, NaN where it is hidden.

    Raises:
        Refused: There is no answer.
    """
    ((value,),) = ask(sql)
    return math.nan if value is None else float(str(value))


@contextmanager
def open_arena(
    folder: Path,
    start: StartServer,
    *,
    rounds: int = ROUNDS,
    thorough: bool = False,
    spark: SparkHost | None = None,
) -> Iterator[Arena]:
    """An arena, closed at the end."""
    arena = Arena(folder, start, rounds=rounds, thorough=thorough, spark=spark)
    try:
        yield arena
    finally:
        arena.close()
