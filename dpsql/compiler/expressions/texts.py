"""texts: functions of character strings."""

from sqlglot import exp

from dpsql.compiler.expressions.calls import Arguments, Called, arguments
from dpsql.compiler.expressions.casts import printed
from dpsql.compiler.expressions.patterns import substring_of_pattern
from dpsql.compiler.ir.conditions import is_null, negated
from dpsql.compiler.ir.functions import MAX_SCANNED, MAX_TEXT, beginning
from dpsql.compiler.ir.nodes import Call, Case, Cast, Expr, Literal
from dpsql.compiler.scope.lowering import Lowering, Method
from dpsql.compiler.sql.rewriting import replaced
from dpsql.errors import InvalidParameter, LimitExceeded, UndefinedFunction, UnsupportedQuery
from dpsql.sqltypes import SqlType

MAX_CONSTANT = 100
MAX_REPEATS = 10_000
MAX_PARTS = 1_000
_BLANK = Literal(" ", SqlType.TEXT)


def _seen(text: Expr, count: Expr) -> Expr:
    """Return the part of a text that LEFT, RIGHT and the like read: all of it if the count is a small constant."""
    is_few = isinstance(count, Literal) and isinstance(count.value, int) and 0 <= count.value <= MAX_SCANNED
    return text if is_few else beginning(text, MAX_SCANNED)


def _of_text(name: str, result: SqlType = SqlType.TEXT) -> Called:
    """A function of one text."""

    def lower(call: Arguments) -> Expr:
        found = Call(name, (call.text(0),), SqlType.BIGINT if result is SqlType.INTEGER else result)
        return Cast(found, result) if result is SqlType.INTEGER else found

    return lower


def _end(name: str) -> Called:
    """LEFT or RIGHT."""

    def lower(call: Arguments) -> Expr:
        text, count = call.text(0), call.integer(1)
        return Call(name, (_seen(text, count), count), SqlType.TEXT)

    return lower


def _substring(lowering: Lowering, node: exp.Substring) -> Expr:
    """SUBSTRING of places, or of a pattern where FROM has text."""
    lowering.only(node, "this", "start", "length")
    nodes = [node.args[name] for name in ("this", "start", "length") if node.args.get(name) is not None]
    call = arguments(lowering, node, "substring", nodes)
    if len(call) == 1:
        raise call.mismatch()
    if call.values[1].type is SqlType.UNKNOWN or call.values[1].type.is_text:
        return substring_of_pattern(call)
    return _places(call)


def _places(call: Arguments) -> Expr:
    """The characters from a place on, counted from 1; places before that are empty but count."""
    text, start = call.text(0), call.integer(1)
    if len(call) == 2:
        return Call("substring_from", (beginning(text, MAX_SCANNED), start), SqlType.TEXT)
    length = call.integer(2)
    if isinstance(length, Literal) and isinstance(length.value, int) and length.value < 0:
        raise InvalidParameter("negative substring length not allowed", position=call.at(2))
    return Call("substring_for", (_seen(text, length), start, length), SqlType.TEXT)


def _trim(lowering: Lowering, node: exp.Trim) -> Expr:
    lowering.only(node, "this", "position", "expression")
    names = {"LEADING": "ltrim", "TRAILING": "rtrim"}
    name = names.get(str(node.args.get("position") or "").upper(), "btrim")
    nodes = [node.args[part] for part in ("this", "expression") if node.args.get(part) is not None]
    return CALLED[name](arguments(lowering, node, name, nodes))


def _trimmed(name: str) -> Called:
    """BTRIM, LTRIM or RTRIM; PostgreSQL takes eight bytes for each byte of the characters."""

    def lower(call: Arguments) -> Expr:
        characters = beginning(call.text(1), MAX_SCANNED) if len(call) == 2 else _BLANK
        return Call(name, (call.text(0), characters), SqlType.TEXT)

    return lower


def _padded(name: str) -> Called:
    """LPAD or RPAD: a constant length, filled up with a constant text."""

    def lower(call: Arguments) -> Expr:
        text, length = call.text(0), call.whole(1, -MAX_TEXT, MAX_TEXT)
        filling = call.fixed(2) if len(call) == 3 else " "
        if length is None or filling is None:
            return Literal(None, SqlType.TEXT)
        size = Literal(max(length, 0), SqlType.INTEGER)
        if not filling:
            return Call("left", (text, size), SqlType.TEXT)
        return Call(name, (text, size, Literal(filling, SqlType.TEXT)), SqlType.TEXT)

    return lower


def _repeat(call: Arguments) -> Expr:
    text, count = call.text(0), call.integer(1)
    if isinstance(count, Literal):
        times = call.whole(1, -MAX_REPEATS, MAX_REPEATS)
        if times is None:
            return Literal(None, SqlType.TEXT)
        return Call("repeat", (text, Literal(max(times, 0), SqlType.BIGINT)), SqlType.TEXT)
    none, most = Literal(0, SqlType.BIGINT), Literal(MAX_REPEATS, SqlType.BIGINT)
    bounded = Call("greatest", (Call("least", (count, most), SqlType.BIGINT), none), SqlType.BIGINT)
    repeated = Call("repeat", (text, bounded), SqlType.TEXT)
    return Case(((is_null(count), Literal(None, SqlType.TEXT)),), repeated, SqlType.TEXT)


def _short(call: Arguments, index: int) -> str | None:
    """A constant text of a few characters."""
    value = call.fixed(index)
    if value is not None and len(value) > MAX_CONSTANT:
        raise LimitExceeded(
            f"the constants of {call.name.upper()} may have at most {MAX_CONSTANT} characters", position=call.at(index)
        )
    return value


def _with_constants(name: str) -> Called:
    """REPLACE or TRANSLATE: its two constants must be short."""

    def lower(call: Arguments) -> Expr:
        constants = tuple(Literal(_short(call, index), SqlType.TEXT) for index in (1, 2))
        return Call(name, (call.text(0), *constants), SqlType.TEXT)

    return lower


def _position(lowering: Lowering, node: exp.StrPosition) -> Expr:
    lowering.only(node, "this", "substr")
    return _strpos(arguments(lowering, node, "position", [node.this, node.args["substr"]]))


def _strpos(call: Arguments) -> Expr:
    return Cast(Call("strpos", (call.text(0), call.text(1)), SqlType.BIGINT), SqlType.INTEGER)


def _starts_with(call: Arguments) -> Expr:
    return Call("starts_with", (call.text(0), call.text(1)), SqlType.BOOLEAN)


def _begins(lowering: Lowering, node: exp.StartsWith) -> Expr:
    """The operator ^@."""
    return _starts_with(arguments(lowering, node, "starts_with", [node.this, node.expression]))


def _split_part(call: Arguments) -> Expr:
    separator, part = _short(call, 1), call.whole(2, -MAX_PARTS, MAX_PARTS)
    if part == 0:
        raise InvalidParameter("field position must not be zero", position=call.at(2))
    if separator == "" and part is not None:
        text = call.text(0)
        return text if part in (1, -1) else Call("left", (text, Literal(0, SqlType.BIGINT)), SqlType.TEXT)
    constants = (Literal(separator, SqlType.TEXT), Literal(part, SqlType.INTEGER))
    return Call("split_part", (beginning(call.text(0), MAX_SCANNED), *constants), SqlType.TEXT)


def _overlay(lowering: Lowering, node: exp.Overlay) -> Expr:
    """OVERLAY: the text before the position, the new text, and the text after the replaced characters."""
    lowering.only(node, "this", "expression", "from_", "for_")
    names = [name for name in ("this", "expression", "from_", "for_") if node.args.get(name) is not None]
    call = arguments(lowering, node, "overlay", [node.args[name] for name in names])
    text, new, start = call.text(0), _short(call, 1), call.whole(2, 1, MAX_TEXT)
    count = call.whole(3, 0, MAX_TEXT) if len(call) == 4 else len(new or "")
    if new is None or start is None or count is None:
        return Literal(None, SqlType.TEXT)
    before = Call("left", (text, Literal(start - 1, SqlType.BIGINT)), SqlType.TEXT)
    behind = Call("substring_from", (text, Literal(start + count, SqlType.BIGINT)), SqlType.TEXT)
    front = _joined("concat_operator", (before, Literal(new, SqlType.TEXT)))
    return _joined("concat_operator", (front, behind))


def _ascii(call: Arguments) -> Expr:
    return Call("ascii", (call.text(0),), SqlType.INTEGER)


def _chr(call: Arguments) -> Expr:
    code = call.whole(0, 1, 0x10FFFF)
    if code is not None and 0xD800 <= code <= 0xDFFF:
        raise InvalidParameter("requested character not valid for encoding", position=call.at(0))
    return Literal(None if code is None else chr(code), SqlType.TEXT)


def _reverse(call: Arguments) -> Expr:
    return Call("reverse", (beginning(call.text(0), MAX_TEXT),), SqlType.TEXT)


def _joined(name: str, parts: tuple[Expr, ...]) -> Expr:
    """Texts that are put together, each cut before: together they might have more than a text can hold."""
    return Call(name, tuple(beginning(part, MAX_TEXT) for part in parts), SqlType.TEXT)


def _concat(call: Arguments) -> Expr:
    return _joined("concat", tuple(_said(call, index) for index in range(len(call))))


def _concat_ws(call: Arguments) -> Expr:
    parts = tuple(_said(call, index) for index in range(1, len(call)))
    return _joined("concat_ws", (call.text(0), *parts))


def _adjacent(lowering: Lowering, node: exp.Concat) -> Expr:
    """Quoted constants one after the other, which are one constant."""
    lowering.only(node, "expressions", "safe", "coalesce")
    return Literal("".join(str(part.this) for part in node.expressions), SqlType.UNKNOWN)


def _said(call: Arguments, index: int) -> Expr:
    """An argument as CONCAT prints it: booleans are t and f."""
    value = call.values[index]
    if value.type is not SqlType.BOOLEAN:
        return printed(call.lowering, value, call.nodes[index])
    letters = ((value, Literal("t", SqlType.TEXT)), (negated(value), Literal("f", SqlType.TEXT)))
    return Case(letters, Literal(None, SqlType.TEXT), SqlType.TEXT)


def _format(call: Arguments) -> Expr:
    """FORMAT with %s, one after the other."""
    form = call.fixed(0)
    if form is None:
        return Literal(None, SqlType.TEXT)
    pieces = form.replace("%%", "\x00").split("%")
    if any(not piece.startswith("s") for piece in pieces[1:]):
        raise UnsupportedQuery("FORMAT supports only %s and %%", position=call.at(0))
    if len(pieces) > len(call):
        raise InvalidParameter("too few arguments for format()", position=call.at(0))
    parts: list[Expr] = [Literal(pieces[0].replace("\x00", "%"), SqlType.TEXT)]
    for index, piece in enumerate(pieces[1:], 1):
        parts += [_said(call, index), Literal(piece[1:].replace("\x00", "%"), SqlType.TEXT)]
    return _joined("concat", tuple(parts))


def _concat_operator(lowering: Lowering, node: exp.DPipe) -> Expr:
    lowering.only(node, "this", "expression", "safe")
    nodes = (node.this, node.expression)
    sides = [lowering.value(each) for each in nodes]
    if not any(side.type.is_text for side in sides):
        raise UndefinedFunction(
            f"operator {sides[0].type.value} || {sides[1].type.value} does not exist",
            hint="One side of || must be text.",
            position=lowering.at(node),
            queries=replaced(node.this, "CAST({} AS text)"),
        )
    texts = tuple(printed(lowering, side, each) for side, each in zip(sides, nodes, strict=True))
    return _joined("concat_operator", texts)


METHODS: dict[type[exp.Expr], Method] = {
    exp.Substring: _substring,
    exp.Trim: _trim,
    exp.StrPosition: _position,
    exp.StartsWith: _begins,
    exp.Overlay: _overlay,
    exp.Concat: _adjacent,
    exp.DPipe: _concat_operator,
}
CALLED: dict[str, Called] = {
    "lower": _of_text("lower"),
    "upper": _of_text("upper"),
    "initcap": _of_text("initcap"),
    "reverse": _reverse,
    "md5": _of_text("md5"),
    "length": _of_text("length", SqlType.INTEGER),
    "char_length": _of_text("length", SqlType.INTEGER),
    "character_length": _of_text("length", SqlType.INTEGER),
    "octet_length": _of_text("octet_length", SqlType.INTEGER),
    "bit_length": _of_text("bit_length", SqlType.INTEGER),
    "left": _end("left"),
    "right": _end("right"),
    "substr": _places,
    "btrim": _trimmed("trim"),
    "ltrim": _trimmed("ltrim"),
    "rtrim": _trimmed("rtrim"),
    "lpad": _padded("lpad"),
    "rpad": _padded("rpad"),
    "repeat": _repeat,
    "replace": _with_constants("replace"),
    "translate": _with_constants("translate"),
    "strpos": _strpos,
    "starts_with": _starts_with,
    "split_part": _split_part,
    "ascii": _ascii,
    "chr": _chr,
    "concat": _concat,
    "concat_ws": _concat_ws,
    "format": _format,
}
