"""The charge is durable before a private row is read: another process sees it, at the moment of the read."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from dpsql.backends import DuckDBBackend
from dpsql.gateway.engine import Engine
from dpsql.gateway.session import Session
from dpsql.ledger import SqliteLedger
from dpsql.privacy.accounting import Spent
from tests.conftest import MakeEngine
from tests.faults.forks import Forks
from tests.faults.reads import noting

QUERIES = {
    "one release": "SELECT COUNT(*) FROM patients",
    "private keys": "SELECT city, COUNT(*) FROM patients GROUP BY city",
    "two releases": "SELECT (SELECT COUNT(*) FROM patients) - (SELECT COUNT(*) FROM visits)",
    "one that is made of another": "SELECT COUNT(*) FROM patients WHERE age > (SELECT AVG(age) FROM patients)",
}


def seen(ledger: str) -> list[tuple[str, str, str]]:
    """Return who was charged for what, and how much."""
    opened = SqliteLedger(Path(ledger))
    charges = [(record.user, record.sql, str(Spent.zero().add(record.price).rho)) for record in opened.history()]
    opened.close()
    return charges


@pytest.fixture
def engine(make_engine: MakeEngine, clinic_policy: Path, tmp_path: Path) -> Iterator[Engine]:
    yield make_engine(clinic_policy, ledger=tmp_path / "ledger.sqlite")


@pytest.mark.parametrize("sql", QUERIES.values(), ids=QUERIES)
def test_another_process_sees_the_charge_when_private_rows_are_read(
    forks: Forks, engine: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sql: str
) -> None:
    at_reads: list[list[list[str]]] = []

    def look(_key: str) -> None:
        at_reads.append(forks.run("tests.test_faults_order:seen", tmp_path / "ledger.sqlite"))

    monkeypatch.setattr(DuckDBBackend, "fetch", noting(DuckDBBackend.fetch, look))
    for reuse in ("on", "off"):  # fresh the second time too
        session = Session(engine, "ana")
        session.configure("dpsql.reuse", reuse)
        (statement,) = session.parse(sql)
        before = seen(str(tmp_path / "ledger.sqlite"))
        at_reads.clear()
        answer = session.execute(statement).answer
        assert answer is not None
        assert answer.charge is not None
        assert len(at_reads) == len(answer.query.releases)
        assert all(read == [*map(list, before), ["ana", sql, str(answer.charge.price.rho)]] for read in at_reads), (
            at_reads
        )
