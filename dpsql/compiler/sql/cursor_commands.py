"""cursor_commands: DECLARE, FETCH, MOVE and CLOSE, as in the PostgreSQL manual."""

from dpsql.compiler.sql.statements import CloseStatement, DeclareStatement, FetchStatement
from dpsql.compiler.sql.tokens import Words
from dpsql.errors import UnsupportedQuery

_ONE = {"NEXT": ("forward", 1), "PRIOR": ("backward", 1), "FIRST": ("absolute", 1), "LAST": ("absolute", -1)}


def declare(words: Words) -> DeclareStatement:
    """Read DECLARE name [BINARY] [INSENSITIVE] [[NO] SCROLL] CURSOR [WITH|WITHOUT HOLD] FOR query."""
    words.example = "DECLARE c CURSOR FOR SELECT …"
    words.need("DECLARE")
    name = words.name()
    scroll: bool | None = None
    while not words.take("CURSOR"):
        if words.follows("BINARY"):
            raise UnsupportedQuery(
                "binary cursors are not supported",
                hint="Leave BINARY out.",
            )
        if words.take("NO", "SCROLL"):
            scroll = False
        elif words.take("SCROLL"):
            scroll = True
        elif words.choice("INSENSITIVE", "ASENSITIVE") is None:
            raise words.wrong()
    hold = words.take("WITH", "HOLD")
    if not hold:
        words.take("WITHOUT", "HOLD")
    words.need("FOR")
    return DeclareStatement(name, words.query(), hold, scroll, words.text)


def fetch(words: Words) -> FetchStatement:
    """Read FETCH or MOVE [direction] [FROM | IN] name."""
    words.example = "FETCH FORWARD 100 FROM c"
    move = words.choice("FETCH", "MOVE") == "MOVE"
    direction, count = _direction(words)
    words.choice("FROM", "IN")
    name = words.name()
    words.end()
    return FetchStatement(name, direction, count, move, words.text)


def _direction(words: Words) -> tuple[str, int | None]:
    one = words.choice(*_ONE)
    if one is not None:
        return _ONE[one]
    row = words.choice("ABSOLUTE", "RELATIVE")
    if row is not None:
        number = words.integer()
        if number is None:
            raise words.wrong()
        return row.lower(), number
    direction = (words.choice("FORWARD", "BACKWARD") or "FORWARD").lower()
    if words.take("ALL"):
        return direction, None
    count = words.integer()
    return direction, 1 if count is None else count


def close(words: Words) -> CloseStatement:
    """Read CLOSE name or CLOSE ALL."""
    words.example = "CLOSE c"
    words.need("CLOSE")
    name = None if words.take("ALL") else words.name()
    words.end()
    return CloseStatement(name, words.text)
