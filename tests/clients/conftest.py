"""A gateway over the demo clinic for every client there is, and what they all are to read from it."""

import shutil
from collections.abc import Iterator
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from pathlib import Path
from uuid import UUID

import pytest

from dpsql.catalog.catalog import Catalogs
from dpsql.gateway.engine import Engine
from dpsql.gateway.session import Session
from tests.clients.machine import missing
from tests.conftest import open_engine
from tests.wire.conftest import RunningServer

collect_ignore = sorted(missing())

COUNTS = "SELECT sex, COUNT(*) AS n FROM patients GROUP BY sex ORDER BY sex"
ELDERS = "SELECT COUNT(*) AS n FROM patients WHERE age > 60 AND sex = 'F'"
ROWS = "SELECT * FROM patients"
HINT = "Aggregate them. Write: SELECT COUNT(*) FROM patients"
CODES = "SELECT code FROM icd10 ORDER BY code"
VALUES = """
    SELECT true AS bool, 1::smallint AS int2, 42 AS int4, 5000000000 AS int8, 1.50 AS numeric, 0.5::real AS float4,
        1e20::double precision AS float8, 'naïve' AS text, 'v'::varchar AS varchar, date '2024-02-29' AS date,
        time '12:30:01.5' AS time, timestamp '2024-02-29 12:30:00.5' AS timestamp,
        timestamptz '2024-02-29 12:30:00+02' AS timestamptz, interval '1 day 02:03:04' AS interval,
        '00000000-0000-0000-0000-000000000007'::uuid AS uuid, NULL::integer AS nothing
"""
ROW = (
    *(
        True,
        1,
        42,
        5_000_000_000,
        Decimal("1.50"),
        0.5,
        1e20,
        "naïve",
        "v",
        date(2024, 2, 29),
        time(12, 30, 1, 500_000),
    ),
    *(datetime(2024, 2, 29, 12, 30, 0, 500_000), datetime(2024, 2, 29, 10, 30, tzinfo=UTC)),
    *(timedelta(days=1, hours=2, minutes=3, seconds=4), UUID(int=7), None),
)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say which clients were not run: their tests are not skipped, there is nothing to run them with."""
    if lacking := missing():
        terminalreporter.write_line(f"clients that are not on this machine, not run: {', '.join(lacking.values())}")


@pytest.fixture(scope="session")
def clinic(clinic_policy: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    """An engine over a copy of the clinic; its one ledger answers one client again what it has answered another."""
    folder = tmp_path_factory.mktemp("clients")
    shutil.copy(clinic_policy.with_suffix(".duckdb"), folder)
    engine = open_engine(Path(shutil.copy(clinic_policy, folder)), folder / "ledger.sqlite")
    yield engine
    engine.close()
    engine.ledger.close()


@pytest.fixture(scope="session")
def gateway(clinic: Engine) -> Iterator[RunningServer]:
    """A running gateway: user ana, password secret, database clinic."""
    catalogs = Catalogs({"clinic": clinic})
    server = RunningServer(open_session=lambda user, database: Session(clinic, user, catalogs.provider(database, user)))
    yield server
    server.close()
    catalogs.close()


def released(engine: Engine, sql: str) -> list[tuple[object, ...]]:
    """What user ana is given in answer to a query."""
    session = Session(engine, "ana")
    (statement,) = session.parse(sql)
    return [tuple(row) for row in session.execute(statement).rows]


@pytest.fixture(scope="session")
def counts(clinic: Engine) -> list[tuple[object, ...]]:
    """What every client must be answered to COUNTS: one release, given again."""
    return released(clinic, COUNTS)


@pytest.fixture(scope="session")
def elders(clinic: Engine) -> int:
    """The same of ELDERS."""
    ((count,),) = released(clinic, ELDERS)
    assert isinstance(count, int)
    return count


@pytest.fixture(scope="session")
def codes(clinic: Engine) -> list[str]:
    """The rows of a public table, as CODES reads them."""
    return [str(code) for (code,) in released(clinic, CODES)]
