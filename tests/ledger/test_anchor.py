"""The anchor: the last record, noted in another place, must be there at each start."""

from pathlib import Path

import pytest

from dpsql.errors import LedgerUnavailable
from dpsql.ledger import SqliteLedger, check_anchor
from dpsql.ledger.ledger import Ledger
from tests.ledger.world import SQL, charge_only, policy, requests

POLICY = policy()


@pytest.fixture
def anchor(tmp_path: Path) -> Path:
    (tmp_path / "elsewhere").mkdir()
    return tmp_path / "elsewhere" / "ledger.anchor"


def refusal(anchor: Path, ledger: Ledger, *, make: bool = True) -> str:
    before = anchor.read_bytes() if anchor.exists() else None
    with pytest.raises(LedgerUnavailable) as error:
        check_anchor(anchor, ledger, make=make)
    assert (anchor.read_bytes() if anchor.exists() else None) == before
    return f"{error.value.message}; {error.value.hint}"


def test_the_last_record_is_noted_and_must_be_there(ledger: Ledger, anchor: Path) -> None:
    assert "--init-ledger" in refusal(anchor, ledger, make=False)
    check_anchor(anchor, ledger, make=True)
    report = ledger.verify()
    assert anchor.read_text() == f"{report.records} {report.head}\n"
    charge_only(ledger, "ana", POLICY, requests("a"), sql=SQL)
    check_anchor(anchor, ledger, make=False)
    report = ledger.verify()
    assert anchor.read_text() == f"{report.records} {report.head}\n"
    assert [file.name for file in anchor.parent.iterdir()] == [anchor.name]


def test_a_ledger_without_the_record_is_refused(ledger: Ledger, anchor: Path) -> None:
    head = ledger.head()
    assert head.records is not None
    for noted in (f"{head.records + 1} {head.head}\n", f"{head.records} {'a' * 64}\n", f"0 {head.head}\n"):
        anchor.write_text(noted)
        assert "records were truncated or replaced" in refusal(anchor, ledger)
    anchor.write_text(f"0 {'0' * 64}\n")
    check_anchor(anchor, ledger, make=False)
    assert anchor.read_text() == f"{head.records} {head.head}\n"


@pytest.mark.parametrize("content", [b"", b"12\n", b"12 abc\n", b"\xff", b"x" * 100])
def test_what_is_no_anchor_is_refused(ledger: Ledger, anchor: Path, content: bytes) -> None:
    anchor.write_bytes(content)
    assert "is no anchor" in refusal(anchor, ledger)


def test_an_empty_ledger_has_a_head(tmp_path: Path, anchor: Path) -> None:
    made = SqliteLedger(tmp_path / "empty.sqlite")
    check_anchor(anchor, made, make=True)
    assert anchor.read_text() == f"0 {'0' * 64}\n"
    check_anchor(anchor, made, make=False)
    made.close()
