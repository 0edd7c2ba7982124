"""transaction_commands: BEGIN, COMMIT, ROLLBACK, savepoints and what is said of transactions, as in the manual."""

from collections.abc import Callable
from typing import Final

from dpsql.compiler.sql.statements import CharacteristicsStatement, Modes, TransactionStatement
from dpsql.compiler.sql.tokens import Words
from dpsql.errors import UnsupportedQuery

_MODES: Final = {
    "ISOLATION LEVEL SERIALIZABLE": ("isolation", "serializable"),
    "ISOLATION LEVEL REPEATABLE READ": ("isolation", "repeatable read"),
    "ISOLATION LEVEL READ COMMITTED": ("isolation", "read committed"),
    "ISOLATION LEVEL READ UNCOMMITTED": ("isolation", "read uncommitted"),
    "READ ONLY": ("read_only", "on"),
    "READ WRITE": ("read_only", "off"),
    "DEFERRABLE": ("deferrable", "on"),
    "NOT DEFERRABLE": ("deferrable", "off"),
}


def begin(words: Words) -> TransactionStatement:
    """Read BEGIN [WORK | TRANSACTION] [modes] and START TRANSACTION [modes]."""
    words.example = "BEGIN ISOLATION LEVEL SERIALIZABLE READ ONLY"
    starts = words.take("START")
    if starts:
        words.need("TRANSACTION")
    else:
        words.need("BEGIN")
        words.choice("WORK", "TRANSACTION")
    modes = () if words.ended else _modes(words)
    return TransactionStatement("start transaction" if starts else "begin", words.text, modes=modes)


def commit(words: Words) -> TransactionStatement:
    """Read COMMIT and END."""
    words.example = "COMMIT"
    words.choice("COMMIT", "END")
    _refuse_prepared(words)
    words.choice("WORK", "TRANSACTION")
    return TransactionStatement("commit", words.text, chain=_chain(words))


def rollback(words: Words) -> TransactionStatement:
    """Read ROLLBACK, ABORT and ROLLBACK TO [SAVEPOINT] name."""
    words.example = "ROLLBACK TO SAVEPOINT s"
    aborts = words.choice("ROLLBACK", "ABORT") == "ABORT"
    _refuse_prepared(words)
    words.choice("WORK", "TRANSACTION")
    if not aborts and words.take("TO"):
        return _savepoint(words, "rollback to")
    return TransactionStatement("rollback", words.text, chain=_chain(words))


def savepoint(words: Words) -> TransactionStatement:
    """Read SAVEPOINT name."""
    words.example = "SAVEPOINT s"
    return _savepoint(words, "savepoint")


def release(words: Words) -> TransactionStatement:
    """Read RELEASE [SAVEPOINT] name."""
    words.example = "RELEASE SAVEPOINT s"
    words.need("RELEASE")
    return _savepoint(words, "release")


def characteristics(words: Words) -> CharacteristicsStatement | None:
    """Read SET [LOCAL] TRANSACTION modes and SET SESSION CHARACTERISTICS AS TRANSACTION modes; None for another SET."""
    words.example = "SET TRANSACTION ISOLATION LEVEL SERIALIZABLE"
    session = words.take("SET", "SESSION", "CHARACTERISTICS", "AS", "TRANSACTION")
    if not session and not words.take("SET", "TRANSACTION") and not words.take("SET", "LOCAL", "TRANSACTION"):
        return None
    if words.follows("SNAPSHOT"):
        raise UnsupportedQuery("snapshots are not shared between transactions")
    return CharacteristicsStatement(_modes(words), session, words.text)


def _savepoint(words: Words, action: str) -> TransactionStatement:
    words.take("SAVEPOINT")
    name = words.name()
    words.end()
    return TransactionStatement(action, words.text, name)


def _modes(words: Words) -> Modes:
    """Take modes, with commas between them or without, up to the end; there must be one."""
    modes = [_mode(words)]
    while not words.ended:
        words.take(",")
        modes.append(_mode(words))
    return tuple(modes)


def _mode(words: Words) -> tuple[str, str]:
    for spelled, mode in _MODES.items():
        if words.take(*spelled.split()):
            return mode
    raise words.wrong()


def _chain(words: Words) -> bool:
    chained = words.take("AND", "CHAIN")
    if not chained:
        words.take("AND", "NO", "CHAIN")
    words.end()
    return chained


def _refuse_prepared(words: Words) -> None:
    if words.follows("PREPARED"):
        raise UnsupportedQuery("prepared transactions are not supported: dpsql is read-only", hint="Write: COMMIT")


READERS: Final[dict[str, Callable[[Words], TransactionStatement]]] = {
    "BEGIN": begin,
    "START": begin,
    "COMMIT": commit,
    "END": commit,
    "ROLLBACK": rollback,
    "ABORT": rollback,
    "SAVEPOINT": savepoint,
    "RELEASE": release,
}
"""What reads each command, by its first word."""
