"""What is not ready is named, once in the log, and a check that hangs is neither waited for nor begun again."""

import asyncio
import threading

import pytest

from dpsql.errors import DatabaseUnavailable, LedgerUnavailable
from dpsql.wire.monitor import Readiness


def test_what_fails_is_named_and_its_cause_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "dpsql.wire")
    failing: dict[str, Exception] = {}

    def check(name: str) -> None:
        if name in failing:
            raise failing[name]

    readiness = Readiness({"ledger": lambda: check("ledger"), "database a": lambda: check("database a")})

    async def scenario() -> None:
        assert await readiness.failures() == frozenset()
        failing["ledger"] = LedgerUnavailable("the disk is full")
        failing["database a"] = ValueError("a row that nobody may see")
        for _ in range(3):
            assert await readiness.failures() == {"ledger", "database a"}
        del failing["ledger"]
        failing["database a"] = DatabaseUnavailable("gone")
        for failing_now in await asyncio.gather(readiness.failures(), readiness.failures()):
            assert failing_now == {"database a"}

    asyncio.run(scenario())
    assert sorted(record.getMessage() for record in caplog.records) == [
        "ledger works again",
        "not ready: database a: ValueError",
        "not ready: ledger: the disk is full",
    ]


def test_a_check_that_hangs_is_a_failure_and_is_not_begun_again(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "dpsql.wire")
    begun, go_on = [0], threading.Event()

    def hang() -> None:
        begun[0] += 1
        go_on.wait()

    readiness = Readiness({"ledger": hang}, seconds=0.01)

    async def scenario() -> None:
        for _ in range(5):
            assert await readiness.failures() == {"ledger"}
        assert begun == [1]
        go_on.set()
        while await readiness.failures():
            await asyncio.sleep(0)

    asyncio.run(scenario())
    assert [record.getMessage() for record in caplog.records] == [
        "not ready: ledger: no answer within 0.01 seconds",
        "ledger works again",
    ]
