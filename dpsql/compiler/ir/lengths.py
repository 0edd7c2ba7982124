"""lengths: how much of a text goes on, so that no value and no row outgrows an engine."""

from dpsql.compiler.ir.functions import FUNCTIONS, MAX_TEXT
from dpsql.compiler.ir.nodes import Call, Cast, Expr, Literal
from dpsql.sqltypes import SqlType


def beginning(text: Expr, characters: int) -> Expr:
    """So many characters of a text, `MAX_TEXT` or more; all of a text that has no more by itself.

    A constant is as long as a query may be.
    """
    if isinstance(text, Literal) or (isinstance(text, Cast) and not text.argument.type.is_text):
        return text
    longest = FUNCTIONS[text.function].longest if isinstance(text, Call) else None
    if longest is not None and longest <= characters:
        return text
    return Call("left", (text, Literal(characters, SqlType.BIGINT)), text.type)


def leaves_most(call: Call) -> bool:
    """True of a call that leaves all but very long texts as they are: bytes tell so, without counting characters."""
    count = call.arguments[-1]
    if call.function != "left" or not isinstance(count, Literal):
        return False
    return isinstance(count.value, int) and count.value >= MAX_TEXT
