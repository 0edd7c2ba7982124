"""`python -m tests.console` makes the pictures of docs/console.md again, of an invented month at an invented clinic."""

import random
import sys
import tempfile
from contextlib import closing, suppress
from datetime import UTC, datetime, timedelta
from fractions import Fraction
from importlib.resources import files
from pathlib import Path

from dpsql.backends import open_backend
from dpsql.cli.clinic import generate_clinic
from dpsql.errors import BudgetExhausted
from dpsql.gateway.engine import Engine
from dpsql.gateway.owner_reads import make_profile
from dpsql.gateway.session import Session
from dpsql.ledger import BudgetScope, Holder, SqliteLedger
from dpsql.policy import load_policy
from tests.console.browser import Browser, opened
from tests.console.world import PASSWORD, Place, RunningConsole, site
from tests.ledger.world import Clock

IMAGES = Path(__file__).parent.parent.parent / "docs" / "images"
DAYS = 28
USERS = (("ana", None), ("ben", "team"), ("eva", "team"), ("kim", None))
QUERIES = (
    "SELECT sex, COUNT(*) AS n, AVG(age)\nFROM patients\nGROUP BY sex",
    "SELECT city, COUNT(*) AS patients\nFROM patients\nGROUP BY city\nORDER BY patients DESC",
    "SELECT AVG(cost) FROM visits WHERE visited_on >= '2024-01-01'",
    "SELECT icd, SUM(cost) FROM visits GROUP BY icd",
    "SELECT MEDIAN(age) FROM patients WHERE sex = 'F'",
    "SELECT drug, COUNT(*) FROM prescriptions GROUP BY drug",
    "SELECT p.city, p.sex, COUNT(*) AS visits, AVG(v.cost) AS mean_cost, SUM(v.cost) AS total_cost\n"
    "FROM patients p JOIN visits v ON v.patient_id = p.patient_id\n"
    "WHERE v.visited_on BETWEEN '2023-01-01' AND '2024-12-31' AND p.age BETWEEN 18 AND 80\n"
    "GROUP BY p.city, p.sex\nHAVING COUNT(*) > 10\nORDER BY total_cost DESC",
)


def month(folder: Path) -> Place:
    """Make the clinic, and a ledger of the questions of four weeks until now."""
    generate_clinic(folder / "clinic.duckdb", patients=3000)
    place = Place(folder / "clinic.toml", folder / "ledger.sqlite")
    text = files("dpsql.cli").joinpath("clinic.toml").read_text(encoding="utf-8")
    team = '[groups.team]\nbudget = { epsilon = 8, delta = 1e-6, window = "30 days" }\n'
    place.policy.write_text(f"{text}\n{team}", encoding="utf-8")
    policy, lots = load_policy(place.policy), random.Random(7)
    clock = Clock(datetime.now(UTC) - timedelta(days=DAYS - 1))
    with closing(SqliteLedger(place.ledger, clock=clock)) as ledger:
        for user, group in USERS:
            ledger.add_account(user, "analyst", group=group)
        backend = open_backend(policy)
        make_profile(policy, ledger, backend, Fraction(1, 5))
        with closing(Engine(policy, ledger, backend)) as engine:
            for day in range(DAYS):
                for user, _ in USERS[:3]:
                    if lots.random() < 0.5:
                        _ask(engine, user, lots, day)
                if day == 12:
                    ledger.grant(
                        Holder(BudgetScope.USER, "ana"), policy, Fraction(1), Fraction(0), "asked for one more table"
                    )
                if day == 25:
                    ledger.freeze(Holder(BudgetScope.USER, "kim"), "left the project")
                clock.move(days=1)
    return place


def _ask(engine: Engine, user: str, lots: random.Random, day: int) -> None:
    epsilon = lots.choice(("0.1", "0.2", "0.3"))
    own = f"SELECT COUNT(*) FROM visits WHERE cost > {100 + day}"
    with closing(Session(engine, user)) as session, suppress(BudgetExhausted):
        for query in (f"SET dpsql.epsilon = {epsilon}", own, *lots.sample(QUERIES, 2)):
            for statement in session.parse(query):
                session.execute(statement)


def shoot(browser: Browser, name: str, section: str, width: int, height: int, scheme: str) -> None:
    """Take a picture of the page with a section at its top."""
    browser.media(width, height, scheme)
    browser.script("document.getElementById(arguments[0]).scrollIntoView()", section)
    browser.shoot(IMAGES / f"console-{name}.png")


def main() -> int:
    """Make the pictures."""
    with tempfile.TemporaryDirectory() as folder:
        place = month(Path(folder))
        console = RunningConsole(site(place))
        try:
            with opened(Path(folder) / "profile") as browser:
                browser.open(console.origin)
                browser.type("#password", PASSWORD)
                browser.leave("button")
                browser.devtools("Emulation.setScrollbarsHidden", {"hidden": True})
                shoot(browser, "budgets", "overview", 1100, 900, "light")
                shoot(browser, "spending", "spending", 1100, 800, "light")
                shoot(browser, "queries", "queries", 1100, 900, "dark")
                shoot(browser, "bounds", "bounds", 1100, 700, "light")
                shoot(browser, "narrow", "overview", 400, 760, "light")
        finally:
            console.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
