"""Warnings about exact values that the data owner read without noise, from the ledger's records."""

from collections.abc import Iterator

from dpsql.ledger import Ledger
from dpsql.ledger.owner_records import EXACT_VALUES

EXACT_WARNING = """\
WARNING: these numbers are EXACT. They were taken from the data without noise, and they reveal facts about people.
WARNING: NO GUARANTEE covers them: the ledger has it on record, and `dpsql budget show` will say so from now on."""


def exact_lines(ledger: Ledger, dataset: str | None = None) -> Iterator[str]:
    """Yield a warning for each read of exact values, of one dataset or of all."""
    for record in ledger.owner_history():
        if record.kind == EXACT_VALUES and dataset in (None, record.dataset):
            when = record.at.isoformat(sep=" ", timespec="seconds")
            yield (
                f'warning: record {record.id}, {when}: values of "{record.dataset}" were taken from the data '
                f"{record.reason}. No budget covers what they reveal about a person."
            )
