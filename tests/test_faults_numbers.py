"""An ε or δ that is none, at every door: a typed refusal, and nothing is charged, read or left behind."""

import json
import math
from collections.abc import Iterator
from decimal import Decimal
from fractions import Fraction
from itertools import product
from pathlib import Path
from typing import Any

import psycopg
import pytest
from click.testing import CliRunner

import dpsql
from dpsql.backends import DuckDBBackend
from dpsql.cli import main
from dpsql.errors import Error, InvalidPolicy
from dpsql.gateway.session import Session
from dpsql.ledger import BudgetScope, Holder, SqliteLedger
from dpsql.policy import load_policy
from dpsql.wire.messages.frontend import StartupMessage
from tests.conftest import MakeEngine
from tests.faults.forks import Forks
from tests.faults.reads import Notes, noting
from tests.faults.victims import connect, note_reads, port_of, serve
from tests.faults.world import PASSWORD, charges, new_ledger, question, write_policy
from tests.wire.rawclient import RawClient

NUMBERS = [
    *("-1", "-0.1", "-1e-9", "NaN", "-NaN", "sNaN", "nan123", "Infinity", "-Infinity", "inf", "1e308", "-1e308"),
    *("1e-400", "5e-324", "-5e-324", "2.2250738585072014e-308", "1e999999999", "-1e999999999", "1e-999999999"),
    *("1e99999999999999999999", "9" * 5000, f"0.{'9' * 5000}", f"0.{'0' * 5000}1", f"1{'0' * 40}", f"0.{'1' * 31}"),
    *("0x1p-3", "1/10", "0.1.1", "1e", "e1", "", " ", "0,1", "0.1%", "ten", "\x000.1"),
]
EPSILONS = [*NUMBERS, "0", "-0", "0.0", "0e9"]
"""A δ of 0 says that there are no private keys; an ε of 0 would be an answer for nothing."""

FEW = ["-1", "NaN", "Infinity", "1e308", "1e-400", "5e-324", "9" * 5000]
"""For doors behind which a database is opened each time."""

OBJECTS: list[Any] = [
    *(math.nan, math.inf, -0.1, 1e308, 5e-324, Decimal("sNaN"), Decimal("1e-400"), True, Fraction(1, 10), 10**5000, []),
]


@pytest.fixture
def policy(clinic_file: Path, tmp_path: Path) -> Path:
    return write_policy(tmp_path / "numbers.toml", clinic_file, answers=10)


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[SqliteLedger]:
    opened = new_ledger(tmp_path / "ledger.sqlite")
    yield opened
    opened.close()


@pytest.fixture
def notes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Notes:
    """What this process reads of private rows."""
    kept = Notes(tmp_path / "notes")
    monkeypatch.setattr(DuckDBBackend, "fetch", noting(DuckDBBackend.fetch, kept.add))
    return kept


@pytest.mark.parametrize("setting", ["epsilon", "delta"])
def test_set(make_engine: MakeEngine, policy: Path, setting: str, notes: Notes) -> None:
    engine = make_engine(policy, users=("ana",))
    session = Session(engine, "ana")
    run_one(session, "BEGIN")
    before = run_one(session, f"SHOW dpsql.{setting}")
    for number in EPSILONS if setting == "epsilon" else NUMBERS:
        written = number.replace("'", "''")
        for sql in (
            f"SET dpsql.{setting} = {number}",
            f"SET dpsql.{setting} = '{written}'",
            f"SET LOCAL dpsql.{setting} TO '{written}'",
            f"SET SESSION dpsql.{setting} TO {number}",
            f"SELECT set_config('dpsql.{setting}', '{written}', false)",
        ):
            with pytest.raises(Error):
                run_one(session, sql)
            assert run_one(Session(engine, "ana"), f"SHOW dpsql.{setting}") == before
        run_one(session, "ROLLBACK")
        assert run_one(session, f"SHOW dpsql.{setting}") == before
        run_one(session, "BEGIN")
    assert charges(engine.ledger, policy) == []
    assert notes.lines() == []
    run_one(session, question(0))  # at the price of the role
    assert charges(engine.ledger, policy) == [question(0)]


def run_one(session: Session, sql: str) -> list[tuple[object, ...]]:
    (statement,) = session.parse(sql)
    return list(session.execute(statement).rows)


@pytest.mark.parametrize("setting", ["epsilon", "delta"])
def test_connect(policy: Path, ledger: SqliteLedger, tmp_path: Path, setting: str, notes: Notes) -> None:
    url = f"sqlite:///{tmp_path / 'ledger.sqlite'}"
    for value in [*OBJECTS, "NaN", *([0, -0.0, "0"] if setting == "epsilon" else [])]:
        with pytest.raises(dpsql.Error) as refusal:
            dpsql.connect(policy, user="ana", ledger=url, **{setting: value})
        assert refusal.value.args
        assert len(str(refusal.value)) < 300
    assert charges(ledger, policy) == []
    assert notes.lines() == []


@pytest.mark.parametrize("command", ["query", "explain"])
def test_command(policy: Path, ledger: SqliteLedger, tmp_path: Path, command: str, notes: Notes) -> None:
    runner = CliRunner()
    url = f"sqlite:///{tmp_path / 'ledger.sqlite'}"
    given = [("--epsilon", number) for number in ["0", "", *FEW]] + [("--delta", number) for number in FEW[::2]]
    given += [("--set", f"dpsql.epsilon={number}") for number in FEW[1::2]]
    for option, number in given:
        arguments = [command, str(policy), question(0), "--user", "ana", "--ledger", url, "--format", "json"]
        result = runner.invoke(main, [*arguments, option, number])
        assert result.exit_code == 1, (option, number)
        assert json.loads(result.stdout)["error"]["sqlstate"] == "22023"
        assert "Traceback" not in result.output
    assert charges(ledger, policy) == []
    assert notes.lines() == []


@pytest.mark.parametrize("command", ["grant", "lower"])
def test_owner(policy: Path, ledger: SqliteLedger, tmp_path: Path, command: str) -> None:
    """What the owner gives or takes: a budget is not moved by what is no number."""
    before = list(ledger.export())
    common = ["budget", command, "--user", "ana", "--policy", str(policy), "--reason", "why"]
    common += ["--ledger", f"sqlite:///{tmp_path / 'ledger.sqlite'}"]
    given = [("--epsilon", number) for number in EPSILONS] + [("--delta", number) for number in NUMBERS]
    for option, number in given:
        result = CliRunner().invoke(
            main, [*common, *(["--epsilon", "0.1"] if option == "--delta" else []), option, number]
        )
        assert result.exit_code == 1, (option, number)
        assert "(22023)" in result.output
        assert "Traceback" not in result.output
    change = ledger.grant if command == "grant" else ledger.lower
    inexact = [value for value in OBJECTS if not isinstance(value, Fraction)]
    for amounts in [(Fraction(0), Fraction(0)), *product(inexact, [Fraction(0)]), *product([Fraction(1, 10)], inexact)]:
        with pytest.raises(Error):
            change(Holder(BudgetScope.USER, "ana"), load_policy(policy), *amounts, "why")
    assert list(ledger.export()) == before


@pytest.mark.parametrize("number", ["0", "-1", "nan", "1e3", "9" * 5000, "1000001", ""])
def test_a_group_of_no_size(policy: Path, ledger: SqliteLedger, tmp_path: Path, number: str) -> None:
    url = f"sqlite:///{tmp_path / 'ledger.sqlite'}"
    result = CliRunner().invoke(main, ["budget", "show", "--policy", str(policy), "--ledger", url, "--group", number])
    assert result.exit_code == 2
    assert "Traceback" not in result.output


def serve_noting(policy: str, ledger: str, notes: str) -> None:
    """Be `dpsql serve`, and note what it reads."""
    note_reads(notes)
    serve(policy, ledger)


def test_gateway(forks: Forks, policy: Path, ledger: SqliteLedger, tmp_path: Path, notes: Notes) -> None:
    gateway = forks.start("tests.test_faults_numbers:serve_noting", policy, tmp_path / "ledger.sqlite", notes.path)
    port = port_of(gateway)
    url = f"postgresql://ana:{PASSWORD}@127.0.0.1:{port}/clinic"
    for setting, numbers in (("epsilon", EPSILONS), ("delta", NUMBERS)):
        for number in numbers[::4]:
            if "\x00" in number:
                continue
            escaped = number.replace("\\", "\\\\").replace(" ", "\\ ")
            with pytest.raises(
                psycopg.OperationalError, match=r"parameter|must be between|must be 0|requires name=value"
            ):
                psycopg.connect(url, options=f"-c dpsql.{setting}={escaped}")
            with RawClient(port) as client:
                pairs = {"user": "ana", "database": "clinic", f"dpsql.{setting}": number}
                client.send(StartupMessage(3, 0, tuple(pairs.items())))
                client.prove()
                assert client.fatal().sqlstate == "22023"
        with connect(port) as connection:
            for number in numbers:
                if "\x00" in number:
                    continue
                with pytest.raises(psycopg.Error) as refusal:
                    connection.execute(f"SET dpsql.{setting} = '{number}'")
                assert refusal.value.sqlstate == "22023"
    assert charges(ledger, policy) == []
    with connect(port) as connection:
        connection.execute(question(0))
    assert gateway.stop() < 0
    assert len(notes.lines()) == 1
    assert charges(ledger, policy) == [question(0)]


PLACES = {
    "the cap": ("budget = { epsilon = 1000.0, accountant", "budget = {{ epsilon = {}, accountant"),
    "the budget of a role": ("budget = { epsilon = 1.0, accountant", "budget = {{ epsilon = {}, accountant"),
    "the price of a query": ("{ epsilon = 0.1,", "{{ epsilon = {},"),
    "the limit of a query": ("max_epsilon = 1 ", "max_epsilon = {} "),
}
WRITTEN = [
    *("0", "0.0", "-0.0", "-1", "-0.1", "nan", "+nan", "-nan", "inf", "-inf", "+inf", "1e308", "-1e308", "1e-400"),
    *("5e-324", "1e999999999", "1e-999999999", "9" * 5000, f"0.{'9' * 5000}", f"0x{'f' * 500}", "true", '"0.1"', "[]"),
]


@pytest.mark.parametrize("place", PLACES)
def test_policy(policy: Path, place: str) -> None:
    old, new = PLACES[place]
    text = policy.read_text(encoding="utf-8")
    assert text.count(old) == 1
    for number in WRITTEN:
        policy.write_text(text.replace(old, new.format(number)), encoding="utf-8")
        with pytest.raises(InvalidPolicy) as refusal:
            load_policy(policy)
        assert refusal.value.hint
        assert len(refusal.value.message) < 500


@pytest.mark.parametrize("field", ["delta", "selection_share"])
@pytest.mark.parametrize("place", ["the cap", "the budget of a role"])
def test_policy_of_zcdp(policy: Path, place: str, field: str) -> None:
    old, new = PLACES[place]
    text = policy.read_text(encoding="utf-8").replace('accountant = "pure"', "delta = 1e-6, selection_share = 0.5")
    old, new = (each.replace("accountant", "delta = 1e-6, selection_share = 0.5") for each in (old, new))
    assert text.count(old) == 1
    load_policy(policy)
    for number in WRITTEN:
        if field == "selection_share" and number in ("0", "0.0", "-0.0"):  # none for private keys
            continue
        line = new.format("1").replace(f"{field} = {'1e-6' if field == 'delta' else '0.5'}", f"{field} = {number}")
        policy.write_text(text.replace(old, line), encoding="utf-8")
        with pytest.raises(InvalidPolicy) as refusal:
            load_policy(policy)
        assert refusal.value.hint


def test_policy_of_a_query(policy: Path) -> None:
    text = policy.read_text(encoding="utf-8").replace('accountant = "pure"', "delta = 1e-6")
    for number in WRITTEN[3:]:
        policy.write_text(text.replace("max_epsilon = 1 ", f"delta = {number} "), encoding="utf-8")
        with pytest.raises(InvalidPolicy) as refusal:
            load_policy(policy)
        assert refusal.value.hint
