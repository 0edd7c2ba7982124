"""A console over the demo clinic and a ledger of a month of questions, served on a thread, and ways to ask it."""

import asyncio
import http.client
import json
import re
import shutil
import ssl
import threading
from collections.abc import Callable, Coroutine
from contextlib import closing
from dataclasses import dataclass
from datetime import UTC, datetime
from fractions import Fraction
from html.parser import HTMLParser
from pathlib import Path
from typing import Any, TypeVar

import duckdb

from dpsql.backends import Backend, open_backend
from dpsql.cli.console_server import check_ledger
from dpsql.console.background import Background
from dpsql.console.facts import Gatherer
from dpsql.console.health import EngineHealth, GatewayHealth
from dpsql.console.login import Password
from dpsql.console.site import Site, Sources
from dpsql.gateway.engine import Engine
from dpsql.gateway.session import Session
from dpsql.ledger import BudgetScope, Holder, SqliteLedger, open_ledger
from dpsql.policy import load_policy
from dpsql.wire.http import HttpBounds
from dpsql.wire.login_throttle import LoginThrottle
from tests.ledger.world import Clock
from tests.waiting import HANG_SECONDS

T = TypeVar("T")

PASSWORD = "the öwner's & secret"
EVIL = "<img src=x onerror=alert(1)>"
QUERIES = (
    "SELECT sex, COUNT(*) AS n FROM patients GROUP BY sex",
    "SELECT city, COUNT(*) FROM patients GROUP BY city",
    "SELECT COUNT(*) FROM patients WHERE city = '</code><script>alert(1)</script>'",
)
HOSTILE = """"'></title><script>ran=1</script><img src=x onerror=ran=1>"""
"""As long as a name may be; a browser runs it in a text, in an attribute and in a title."""
HOSTILE_POLICY = """
version = 1
[dataset]
name = {evil}
url = "duckdb:///hostile.duckdb"
schema = {evil}
privacy_unit = {evil}
data_version = {evil}
cap = {evil}
budget = {{ epsilon = 20, delta = 1e-6 }}
[roles.{evil}]
budget = {{ epsilon = 5, delta = 1e-6 }}
query = {{ epsilon = 0.1, delta = 1e-9, max_epsilon = 1 }}
[groups.{evil}]
budget = {{ epsilon = 8, delta = 1e-6 }}
description = {evil}
[tables.{evil}]
unit_key = {evil}
max_rows = 1
description = {evil}
[tables.{evil}.columns]
{evil} = {{ type = "text", values = [{evil}], description = {evil} }}
"""
NAMES = frozenset({"127.0.0.1", "localhost"})


@dataclass(frozen=True)
class Place:
    """Where the policy and the ledger are."""

    policy: Path
    ledger: Path

    @property
    def url(self) -> str:
        return f"sqlite:///{self.ledger}"


def fill(folder: Path, clinic_policy: Path, backend: Callable[[Path], Backend]) -> Place:
    """Make a policy with a group, and a ledger in which ana, ben and another ask on three days."""
    for file in (clinic_policy, clinic_policy.with_suffix(".duckdb")):
        shutil.copy(file, folder)
    place = Place(folder / clinic_policy.name, folder / "ledger.sqlite")
    groups = '\n[groups.team]\nbudget = { epsilon = 8, delta = 1e-6, window = "30 days" }\n'
    place.policy.write_text(place.policy.read_text() + groups)
    policy, clock = load_policy(place.policy), Clock(datetime(2026, 1, 15, 12, tzinfo=UTC))
    with closing(SqliteLedger(place.ledger, clock=clock)) as ledger:
        for user, group in (("ana", None), ("ben", "team"), (EVIL, None)):
            ledger.add_account(user, "analyst", group=group)
        engine = Engine(policy, ledger, backend(clinic_policy))
        for day in range(3):
            for user in ("ana", "ben", EVIL)[: day + 1]:
                with closing(Session(engine, user)) as session:
                    for query in (*QUERIES, f"SELECT COUNT(*) FROM visits WHERE cost > {day}"):
                        for statement in session.parse(query):
                            session.execute(statement)
            clock.move(days=1)
        ledger.grant(Holder(BudgetScope.USER, "ana"), policy, Fraction(1), Fraction(0), f"asked {EVIL}")
        ledger.freeze(Holder(BudgetScope.USER, "ben"), "left")
    return place


def fill_hostile(folder: Path) -> Place:
    """Make a policy and a ledger in which every text that somebody may choose is hostile."""
    place, name = Place(folder / "hostile.toml", folder / "ledger.sqlite"), '"' + HOSTILE.replace('"', '""') + '"'
    with duckdb.connect(str(folder / "hostile.duckdb")) as database:
        database.execute(f"CREATE SCHEMA {name}; CREATE TABLE {name}.{name} ({name} VARCHAR)")
    place.policy.write_text(HOSTILE_POLICY.format(evil=json.dumps(HOSTILE)), encoding="utf-8")
    policy = load_policy(place.policy)
    with closing(SqliteLedger(place.ledger)) as ledger, closing(Engine(policy, ledger, open_backend(policy))) as engine:
        ledger.add_account(HOSTILE, HOSTILE, group=HOSTILE)
        with closing(Session(engine, HOSTILE)) as session:
            for statement in session.parse(f"SELECT COUNT({name}) AS {name} FROM {name}.{name} -- {HOSTILE}"):
                session.execute(statement)
        ledger.grant(Holder(BudgetScope.USER, HOSTILE), policy, Fraction(1), Fraction(0), HOSTILE)
        ledger.freeze(Holder(BudgetScope.USER, HOSTILE), HOSTILE)
    return place


def hostile_engine() -> EngineHealth:
    return EngineHealth(HOSTILE, ((HOSTILE, HOSTILE),), (HOSTILE,), datetime(2026, 1, 18, tzinfo=UTC))


def healthy_engine() -> EngineHealth:
    return EngineHealth(None, (("visits", "fresh"),), (), datetime(2026, 1, 18, tzinfo=UTC))


async def busy_gateway(dataset: str) -> GatewayHealth:
    return GatewayHealth("127.0.0.1:9187", True, 2, 12, {"42501": 3, "42P01": 1})


def site(
    place: Place,
    *,
    names: frozenset[str] = NAMES,
    secure: bool = False,
    throttle: LoginThrottle | None = None,
    engine: Callable[[], EngineHealth] = healthy_engine,
) -> Site:
    """The console's answers about a place, without the server around them."""
    policy = load_policy(place.policy)
    sources = Sources(
        Gatherer(lambda: load_policy(place.policy), policy, lambda: open_ledger(place.url, make=False)),
        Background(lambda: check_ledger(place.url), 600),
        Background(engine, 600),
        busy_gateway,
    )
    return Site(
        sources,
        Password(PASSWORD),
        names,
        secure=secure,
        throttle=LoginThrottle(0.01, most=0.02) if throttle is None else throttle,
    )


class RunningConsole:
    """A server on a loop of its own."""

    def __init__(self, answers: Site, tls: ssl.SSLContext | None = None, bounds: HttpBounds | None = None) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever)
        self._thread.start()
        self.server = answers.server("127.0.0.1", 0, tls, bounds)
        self.run(self.server.start())

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(HANG_SECONDS)

    @property
    def port(self) -> int:
        return self.server.port

    @property
    def origin(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def close(self) -> None:
        self.run(self.server.close())
        self.run(self._end())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _end(self) -> None:
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._loop.shutdown_default_executor()


@dataclass(frozen=True)
class Answer:
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def text(self) -> str:
        return self.body.decode()

    @property
    def cookie(self) -> str:
        return self.headers["set-cookie"].partition(";")[0]


def ask(console: RunningConsole, method: str, path: str, body: str | None = None, **headers: str | None) -> Answer:
    """Send a request as a browser does, but for the headers given; None leaves one out."""
    told: dict[str, str | None] = {"Host": f"127.0.0.1:{console.port}"}
    if method == "POST":
        told |= {"Origin": console.origin, "Content-Type": "application/x-www-form-urlencoded"}
    told |= {name.replace("_", "-"): value for name, value in headers.items()}
    client = http.client.HTTPConnection("127.0.0.1", console.port, timeout=HANG_SECONDS)
    client.putrequest(method, path, skip_host=True, skip_accept_encoding=True)
    data = None if body is None else body.encode()
    for name, value in told.items():
        if value is not None:
            client.putheader(name, value)
    if data is not None:
        client.putheader("Content-Length", str(len(data)))
    client.endheaders(data)
    with client.getresponse() as response:
        answer = Answer(response.status, {k.lower(): v for k, v in response.getheaders()}, response.read())
    client.close()
    return answer


def logged_in(console: RunningConsole) -> str:
    """Log in; return the cookie."""
    answer = ask(console, "POST", "/login", "password=the+%C3%B6wner%27s+%26+secret")
    assert (answer.status, answer.headers["location"]) == (303, "/")
    return answer.cookie


class Outline(HTMLParser):
    """The tags of a page with their attributes' names, and its texts."""

    def __init__(self, page: str) -> None:
        super().__init__(convert_charrefs=True)
        self.tags: list[tuple[str, ...]] = []
        self.texts: list[str] = []
        self.feed(page)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, *(name for name, _ in attrs)))

    def handle_data(self, data: str) -> None:
        self.texts.append(data)


def words(page: str) -> str:
    """The text of a page on one line."""
    return re.sub(r"\s+", " ", " ".join(Outline(page).texts))
