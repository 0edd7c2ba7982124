"""What fuzzing starts from, and how one input becomes another: seeds, taken apart into pieces that mean something.

Bytes changed at random hardly ever get beyond the first check: a wrong length, a word that is no word. So pieces are
changed: words of SQL, lines of a policy, messages of the protocol with their lengths put right.
"""

import json
import os
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Final

from dpsql.wire.messages.frontend import (
    Bind,
    Close,
    Describe,
    Execute,
    Flush,
    GSSENCRequest,
    Parse,
    Query,
    SASLInitialResponse,
    SASLResponse,
    SSLRequest,
    StartupMessage,
    Sync,
)
from tests.fixtures.load import load
from tests.policy.test_policy_load import GROUPS, SMALL
from tests.shop import POLICY as CAPPED
from tests.strategies.world import POLICY
from tests.test_responses import POLICY as RESPONSES
from tests.wire.catalog.shops import SHOP
from tests.world import WIDE_POLICY

ROOT: Final = Path(__file__).parents[2]
CORPUS: Final = Path(__file__).parent / "corpus"
_FIXTURES: Final = ("accepted.sql", "rejected.sql", "expressions.sql", "rewrite.sql", "alike.sql", "unlike.sql")
_WORDS: Final = re.compile(rb"""\s+|'(?:[^']|'')*'|"(?:[^"]|"")*"|\w+|.""", re.DOTALL)
_POOL: Final = 20_000
"""So many pieces of seeds are remembered to put into others."""

Change = Callable[[bytes], bytes]
"""Changes one piece somehow."""


@dataclass(frozen=True)
class Form:
    """How inputs of a target are built.

    Attributes:
        seeds: What to start from.
        split: Takes an input apart; the pieces in a row are the input again.
        refit: Corrects a changed piece that states its own length.
    """

    seeds: Callable[[], list[bytes]]
    split: Callable[[bytes], list[bytes]]
    refit: Change = staticmethod(lambda piece: piece)  # noqa: RUF009


class Mutator:
    """Makes inputs of other inputs, the same ones for the same seed.

    Args:
        form: How they are built.
    """

    def __init__(self, form: Form) -> None:
        self._form = form
        pieces = {piece for seed in form.seeds() for piece in form.split(seed)}
        self._pool = sorted(pieces)[:: max(1, len(pieces) // _POOL)] or [b""]

    def mutate(self, data: bytes, seed: int, change: Change | None = None) -> bytes:
        """Change a few pieces of an input.

        Args:
            data: The input.
            seed: What chance depends on.
            change: Changes one piece; without it, pieces are only moved about.
        """
        chance = Random(seed)
        pieces = self._form.split(data) or [b""]
        for _ in range(1 + int(chance.expovariate(0.7))):
            at = chance.randrange(len(pieces))
            match chance.randrange(7):
                case 0 if len(pieces) > 1:
                    del pieces[at : at + 1 + int(chance.expovariate(0.5))]
                    pieces = pieces or [b""]
                case 1:
                    pieces.insert(at, chance.choice(self._pool))
                case 2:
                    pieces[at] = chance.choice(pieces)
                case 3:
                    end = at + 1 + int(chance.expovariate(0.3))
                    to = chance.randrange(len(pieces))
                    pieces[to:to] = pieces[at:end]
                case 4 if change is not None:
                    pieces[at] = self._form.refit(change(pieces[at]))
                case _:
                    pieces[at] = chance.choice(self._pool)
        return b"".join(pieces)


# SQL


def sql_texts() -> Iterator[str]:
    """The SQL of the fixtures, and what clients were recorded to send."""
    for name in _FIXTURES:
        yield from (case.sql for case in load(name))
    browsing = (ROOT / "tests" / "wire" / "catalog" / "browsing.sql").read_text(encoding="utf-8")
    yield from (text.strip() for text in browsing.split(";\n"))
    if folder := os.environ.get("DPSQL_CLIENT_RECORDINGS"):
        for path in sorted(Path(folder).glob("*.jsonl")):
            for line in path.read_text(encoding="utf-8").splitlines():
                recorded = json.loads(line)
                yield recorded.get("sql_run") or recorded["sql"]


def _sql_seeds() -> list[bytes]:
    return sorted({text.encode() for text in sql_texts()})


_REPEATED: Final = (
    *(("SELECT 1 FROM p", " JOIN p", ""), ("SELECT 1 FROM p", " JOIN p AS on", ""), ("SELECT x", "[1]", "")),
    *(("SELECT ", "(", "1"), ("SELECT ", "ARRAY[", "1"), ("SELECT ", "CASE WHEN ", "1"), ("SELECT 1", "::int[]", "")),
    *(("SELECT ", "NOT ", "1"), ("SELECT 1", " UNION SELECT 1", ""), ("SELECT ", "CAST(ARRAY[", "1")),
)


def _parse_seeds() -> list[bytes]:
    """What people and clients write, and pieces in a row, with which a parser's time may grow too fast."""
    rows = [f"{before}{piece * times}{after}" for before, piece, after in _REPEATED for times in (12, 40)]
    return [*_sql_seeds(), *(row.encode() for row in rows)]


# Policies


def _policies() -> list[bytes]:
    """The policies of the repository and of some tests: with groups of users, randomized answers, schemas."""
    files = [*ROOT.glob("policies/*.toml"), *ROOT.glob("dpsql/cli/*.toml")]
    survey = POLICY.format(file="survey.duckdb", adjacency="substitute")
    texts = (WIDE_POLICY, SHOP, SMALL, SMALL + GROUPS, RESPONSES, CAPPED, survey)
    return [*(path.read_bytes() for path in files), *(text.encode() for text in texts)]


def _lines(data: bytes) -> list[bytes]:
    """Lines, and the words of lines with a key."""
    return [
        piece
        for line in data.splitlines(keepends=True)
        for piece in (re.findall(rb"\s+|[\w.-]+|\"[^\"]*\"|.", line, re.DOTALL) if b"=" in line else [line])
    ]


# The wire


def frames(data: bytes) -> list[bytes]:
    """Messages with a type byte, as far as their lengths make sense; what is left is one piece."""
    found = []
    while len(data) >= 5:
        end = 1 + int.from_bytes(data[1:5], "big")
        if not 5 <= end <= len(data):
            break
        found.append(data[:end])
        data = data[end:]
    return [*found, data] if data else found


def _right_length(frame: bytes) -> bytes:
    return frame if len(frame) < 5 else frame[:1] + (len(frame) - 1).to_bytes(4, "big") + frame[5:]


def _startups(data: bytes) -> list[bytes]:
    """The first packets, which have no type byte, and the messages behind them."""
    found: list[bytes] = []
    while len(data) >= 8 and data[:1] == b"\0":
        end = max(8, int.from_bytes(data[:4], "big"))
        found.append(data[:end])
        data = data[end:]
    return [*found, *frames(data)]


def _right_startup(packet: bytes) -> bytes:
    if packet[:1] == b"\0" and len(packet) >= 8:
        return len(packet).to_bytes(4, "big") + packet[4:]
    return _right_length(packet)


def _openings() -> list[bytes]:
    ana = (("user", "ana"), ("database", "clinic"))
    startups = [
        StartupMessage(3, 0, ana),
        StartupMessage(3, 0, (*ana, ("options", "-c dpsql.epsilon=0.2 --search-path=public"), ("replication", "on"))),
        StartupMessage(3, 2, (*ana, ("_pq_.x", "1"), ("client_encoding", "UTF8"))),
        StartupMessage(3, 0, (("user", "nobody"),)),
    ]
    answers = [
        SASLInitialResponse("SCRAM-SHA-256", b"n,,n=,r=fyko+d2lbbFgONRv9qkxdawL").encode(),
        SASLResponse(b"c=biws,r=fyko+d2lbbFgONRv9qkxdawL,p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ=").encode(),
    ]
    encryption = (b"", SSLRequest().encode(), GSSENCRequest().encode() + SSLRequest().encode())
    return [first + startup.encode() + b"".join(answers) for first in encryption for startup in startups]


_VALUES: Final = (b"7", b"1.5", b"2024-02-29", b"{1,2}", b"t", b"\x00\x00\x00\x07", b"\0" * 8, b"\x01", None)


def _conversations() -> list[bytes]:
    """A text by the simple protocol, or by the extended one with every format of a value."""
    found = []
    for number, sql in enumerate(_sql_seeds()):
        count = len(set(re.findall(rb"\$\d+", sql)))
        values = tuple(_VALUES[(number + place) % len(_VALUES)] for place in range(count))
        messages = (
            Parse(b"s", sql, (0, 23, 25, 1700)[: number % 5]),
            Describe(b"S", b"s"),
            Bind(b"p", b"s", (number % 2,), values, (number // 2 % 2,)),
            Execute(b"p", number % 3),
            Close(b"P", b"p"),
            Flush(),
            Sync(),
        )
        if count or number % 2:
            found.append(b"".join(message.encode() for message in messages))
        else:
            found.append(Query(sql).encode())
    for texts in (SESSION, CURSORS, COPIES):
        found.append(b"".join(Query(text).encode() for text in texts))
    return found


SESSION: Final = (
    *(b"BEGIN", b"SAVEPOINT a", b"SET LOCAL dpsql.epsilon = 0.1", b"SHOW ALL", b"ROLLBACK TO a", b"COMMIT"),
    *(b"SHOW dpsql.epsilon", b"RESET ALL", b"DISCARD ALL", b"SET TIME ZONE 'Europe/Berlin'", b"LISTEN x"),
    *(b"SELECT * FROM dpsql.budget", b"SELECT * FROM dpsql.columns", b"SELECT count(*) FROM dpsql.releases"),
    *(b"EXPLAIN (FORMAT JSON) SELECT COUNT(*) FROM visits", b"SET dpsql.intervals = on; SET dpsql.reuse = off"),
    *(b"SET dpsql.target_error = '5 %'", b"SELECT set_config('dpsql.notices', 'off', true)", b"SET DateStyle = 'SQL'"),
)
CURSORS: Final = (
    *(b"BEGIN", b"DECLARE c SCROLL CURSOR FOR SELECT sex, COUNT(*) FROM patients GROUP BY sex", b"FETCH 2 FROM c"),
    *(b"MOVE BACKWARD ALL IN c", b"FETCH ABSOLUTE -1 FROM c", b"FETCH RELATIVE 1 FROM c", b"CLOSE c", b"COMMIT"),
    *(b"PREPARE p (integer) AS SELECT COUNT(*) FROM patients WHERE age > $1", b"EXECUTE p (40)", b"DEALLOCATE p"),
)
COPIES: Final = (
    *(b"COPY (SELECT sex, COUNT(*) FROM patients GROUP BY sex) TO STDOUT", b"COPY (SELECT 1, 'a\tb') TO STDOUT CSV"),
    b"COPY (SELECT code, title FROM icd10) TO STDOUT (FORMAT csv, HEADER, FORCE_QUOTE (title), DELIMITER ';')",
    b"COPY (SELECT 1.5, DATE '2024-02-29', NULL, ARRAY[1, 2]) TO STDOUT (FORMAT binary)",
)


FORMS: Final = {
    "compile": Form(_sql_seeds, _WORDS.findall),
    "parse": Form(_parse_seeds, _WORDS.findall),
    "policy": Form(_policies, _lines),
    "login": Form(_openings, _startups, _right_startup),
    "session": Form(_conversations, frames, _right_length),
}


def found(target: str) -> list[Path]:
    """The inputs that fuzzing has found for a target: each was a fault once."""
    return sorted(path for path in (CORPUS / target).glob("*") if path.is_file())
