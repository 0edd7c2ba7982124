"""What clients send when they browse: answered without an error, with the columns of a real PostgreSQL, and its rows.

Where the two must differ, a line before the statement says why; then no error is asked for, and no more.
"""

import re
from pathlib import Path
from typing import Any

import psycopg
import pytest

from dpsql.catalog.catalog import catalog_query
from tests.wire.catalog.shops import Visitors
from tests.wire.catalog.test_differential import ours, postgres, theirs

__all__ = ["postgres"]  # the fixture: a PostgreSQL that holds the shop

TEXT = Path(__file__).with_name("browsing.sql").read_text(encoding="utf-8")


def statements() -> list[tuple[str, str, bool]]:
    """Who sends a statement, the statement, and whether it may differ."""
    client, differs, found = "", False, list[tuple[str, str, bool]]()
    for line in TEXT.splitlines()[1:]:
        if line.startswith("-- differs: "):
            differs = True
        elif line.startswith("-- "):
            client = line.removeprefix("-- ")
        else:
            found.append((client, line.removesuffix(";"), differs))
            differs = False
    return found


@pytest.mark.parametrize("client", sorted({client for client, _, _ in statements()}))
def test_a_client_browses(shop: Visitors, postgres: psycopg.Connection[tuple[Any, ...]], client: str) -> None:
    wrong = []
    for sender, sql, differs in statements():
        if sender != client:
            continue
        assert catalog_query(sql, frozenset()) is not None, sql
        answer, expected = ours(shop, sql), theirs(postgres, sql)
        if answer != expected and not (differs and not isinstance(answer, str)):
            wrong.append((re.sub(r"\s+", " ", sql)[:200], answer, expected))
    assert wrong == []
