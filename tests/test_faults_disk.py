"""A disk that is full, broken or read-only: the query is refused, and nothing is read that was not durably charged."""

import errno
import resource
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psycopg
import pytest

from dpsql.backends import DuckDBBackend
from dpsql.cli import main
from dpsql.errors import LedgerUnavailable
from dpsql.ledger import SqliteLedger
from dpsql.session import Session
from tests.conftest import open_engine
from tests.faults import calls
from tests.faults.forks import SECONDS, Forks
from tests.faults.reads import Notes, noting
from tests.faults.world import charges, connect, new_ledger, question, write_policy

SESSIONS = 8
FAULTS = {
    "full": (errno.ENOSPC, calls.WRITING),
    "over its quota": (errno.EDQUOT, calls.WRITING),
    "read-only": (errno.EROFS, calls.WRITING),
    "broken where it is written": (errno.EIO, calls.WRITING),
    "broken where it is synced": (errno.EIO, calls.DURABLE),
}
