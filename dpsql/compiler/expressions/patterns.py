"""patterns: LIKE, SIMILAR TO and regular expressions, translated to RE2, whose time is linear in the text.

Rule 1: a pattern is a bounded constant and is parsed here; the engine gets the translation only.
Rule 2: only constructs that mean the same in PostgreSQL and RE2 are allowed: no look-around, no back references.
Rule 3: a function that returns the match, not only whether there is one, allows sequences of characters only. For
these, the greedy match is the longest: a longer match that first takes fewer characters crosses the greedy one at
some point, and from there the greedy match would have gone on the same way.
"""

from dataclasses import dataclass, replace
from itertools import groupby

from sqlglot import exp

from dpsql.compiler.expressions.calls import Arguments, Called, arguments
from dpsql.compiler.ir.conditions import negated
from dpsql.compiler.ir.nodes import Call, Cast, Expr, Literal
from dpsql.compiler.scope.lowering import Lowering, Method
from dpsql.compiler.sql.constant_folding import computed_text
from dpsql.errors import InvalidParameter, LimitExceeded, UnsupportedQuery
from dpsql.sqltypes import SqlType

MAX_PATTERN = 1_000
"""Characters of a pattern, and single characters that it matches at once when its counts are written out."""
MAX_WAYS = 30_000
"""Ways from one character of a pattern to the next that an engine may have to keep, at the most.

PostgreSQL takes a pattern apart when it comes to the first row that is compared with it. With many ways that takes
minutes, or more memory than it allows itself (REG_MAX_COMPILE_SPACE in its src/include/regex/regguts.h), and failing
would tell that there is such a row. Measured on PostgreSQL 18 at this limit: some tenths of a second, and no failure.
"""
MAX_DEPTH = 20
MAX_COUNT = 255
MAX_REPLACEMENT = 100

_SPECIAL = frozenset("\\.+*?()|[]{}^$")
_WORD = r"\pL\pN_"
_SPACE = r" \t\n\r\f\v"
_SHORTHANDS = {"d": "0-9", "w": _WORD, "s": _SPACE}
_CLASSES = {
    **{"alpha": r"\pL", "alnum": r"\pL\pN", "digit": "0-9", "space": _SPACE, "upper": r"\p{Lu}", "lower": r"\p{Ll}"},
    **{name: f"[:{name}:]" for name in ("blank", "punct", "xdigit", "cntrl", "graph", "print")},
}
_CONTROLS = {"n": r"\n", "t": r"\t", "r": r"\r", "f": r"\f", "v": r"\v"}


@dataclass(frozen=True)
class Pattern:
    """A part of a pattern, in RE2's words.

    Attributes:
        re2: Its text.
        size: Single characters it matches at once, when counts are written out.
        sets: Those of them that are sets of characters.
        joints: Places after which the next character may be one of many: what may be left out or come again, and
            alternatives.
        groups: Capturing groups.
        empty: True where it may match nothing.
        plain: True for a sequence of characters with greedy counts, and groups of these without counts.
    """

    re2: str
    size: int = 1
    sets: int = 0
    joints: int = 0
    groups: int = 0
    empty: bool = False
    plain: bool = True


class _Reader:
    """Reads one pattern; `escape` is given for SIMILAR TO, whose special signs are others."""

    def __init__(self, text: str, escape: str | None, at: int | None) -> None:
        self._text = text
        self._escape = escape
        self._similar = escape is not None
        self._at = at
        self._next = 0

    def read(self) -> Pattern:
        found = self._alternatives(0)
        if self._next < len(self._text):
            raise self._refused("parentheses () not balanced")
        if found.size > MAX_PATTERN:
            raise LimitExceeded(f"a pattern may match at most {MAX_PATTERN:,} characters", position=self._at)
        # The size of a set is the number of characters that the pattern distinguishes.
        letters = len(set(self._text) - set("()[]{}|*+?,\\"))
        if (found.sets * letters + found.size) * (1 + found.joints) > MAX_WAYS:
            raise LimitExceeded(
                "the pattern is too ambiguous to match in bounded time",
                hint="Use * or + instead of counts such as {0,255}.",
                position=self._at,
            )
        return found

    def _refused(self, what: str) -> InvalidParameter:
        return InvalidParameter(
            f"invalid regular expression: {what}",
            hint="Supported: . [a-z] [^a-z] \\d \\w \\s ( ) (?: ) | * + ? {1,3} ^ $, and \\ before others.",
            position=self._at,
        )

    def _peek(self, length: int = 1) -> str:
        return self._text[self._next : self._next + length]

    def _take(self) -> str:
        self._next += 1
        return self._text[self._next - 1 : self._next]

    def _alternatives(self, depth: int) -> Pattern:
        if depth > MAX_DEPTH:
            raise self._refused("parentheses are nested too deeply")
        branches = [self._branch(depth)]
        while self._peek() == "|":
            self._take()
            branches.append(self._branch(depth))
        if len(branches) == 1:
            return branches[0]
        return Pattern(
            "|".join(branch.re2 for branch in branches),
            sum(branch.size for branch in branches),
            sum(branch.sets for branch in branches),
            sum(branch.joints for branch in branches) + len(branches),
            sum(branch.groups for branch in branches),
            any(branch.empty for branch in branches),
            False,
        )

    def _branch(self, depth: int) -> Pattern:
        parts: list[Pattern] = []
        while self._peek() not in ("", "|", ")"):
            parts.append(self._counted(depth))
        return Pattern(
            "".join(part.re2 for part in parts),
            sum(part.size for part in parts),
            sum(part.sets for part in parts),
            sum(part.joints for part in parts),
            sum(part.groups for part in parts),
            all(part.empty for part in parts),
            all(part.plain for part in parts),
        )

    def _counted(self, depth: int) -> Pattern:
        """An atom with the count behind it, if any."""
        anchor = not self._similar and self._peek() in ("^", "$")
        atom = self._atom(depth)
        low, high, text = self._count()
        if not text:
            return atom
        if anchor:
            raise self._refused("a quantifier follows ^ or $")
        lazy = not self._similar and self._peek() == "?"
        if lazy:
            text += self._take()
        if self._peek() in ("*", "+", "?", "{"):
            raise self._refused("two quantifiers follow each other")
        single = atom.size == 1 and atom.plain and not atom.re2.startswith("(")
        times = max(high, 1)
        # A fixed count adds no joint.
        joints = atom.joints * times if text == f"{{{high}}}" else (atom.size + atom.joints) * times
        counted = replace(atom, re2=atom.re2 + text, size=atom.size * times, sets=atom.sets * times, joints=joints)
        return replace(counted, empty=atom.empty or low == 0, plain=single and not lazy)

    def _count(self) -> tuple[int, int, str]:
        """The least and greatest number, and RE2's text; the greatest is what an endless count adds to the size."""
        sign = self._peek()
        if sign in ("*", "+", "?") and sign:
            self._take()
            return (1 if sign == "+" else 0), 1, sign
        if sign != "{":
            return 1, 1, ""
        end = self._text.find("}", self._next)
        inside = self._text[self._next + 1 : end] if end > 0 else ""
        low, comma, high = inside.partition(",")
        numbers = [int(part) if part.isdecimal() and part.isascii() and len(part) < 4 else -1 for part in (low, high)]
        least, most = numbers[0], numbers[1] if high else (MAX_COUNT if comma else numbers[0])
        if not 0 <= least <= most <= MAX_COUNT:
            raise self._refused(f"a quantifier must be {{n}}, {{n,}} or {{n,m}} with numbers up to {MAX_COUNT}")
        self._next = end + 1
        return least, most if high or not comma else max(least, 1), "{" + inside + "}"

    def _atom(self, depth: int) -> Pattern:
        if self._similar and self._peek() == self._escape:
            self._take()
            if not self._peek():
                raise self._refused("it ends with the escape character")
            return Pattern(escaped(self._take()))
        sign = self._take()
        match sign:
            case "(":
                return self._group(depth)
            case "[":
                return self._bracket()
            case "*" | "+" | "?" | "{":
                raise self._refused("quantifier operand invalid")
        if self._similar:
            if sign in "%_":
                return Pattern(".*" if sign == "%" else ".", sets=1, joints=int(sign == "%"), empty=sign == "%")
            return Pattern(escaped(sign))
        match sign:
            case "^" | "$":
                return Pattern(sign, 0, empty=True)
            case ".":
                return Pattern(".", sets=1)
            case "\\":
                return self._escaped()
        return Pattern(escaped(sign))

    def _group(self, depth: int) -> Pattern:
        captures = True
        if self._peek() == "?":
            if self._similar or self._peek(2) != "?:":
                raise self._refused("only (?: ) is supported of the groups that begin with (?")
            self._next += 2
            captures = False
        inner = self._alternatives(depth + 1)
        if self._take() != ")":
            raise self._refused("parentheses () not balanced")
        # SIMILAR TO captures nothing.
        captures &= not self._similar
        return replace(inner, re2=f"({'' if captures else '?:'}{inner.re2})", groups=inner.groups + captures)

    def _escaped(self) -> Pattern:
        sign = self._take()
        if sign in ("d", "w", "s"):
            return Pattern(f"[{_SHORTHANDS[sign]}]", sets=1)
        if sign in ("D", "W", "S"):
            return Pattern(f"[^{_SHORTHANDS[sign.lower()]}]", sets=1)
        if sign in _CONTROLS:
            return Pattern(_CONTROLS[sign])
        return Pattern(escaped(self._sign_itself(sign)))

    def _sign_itself(self, sign: str) -> str:
        """A character after a backslash, which then means itself."""
        if not sign or sign.isalnum():
            raise self._refused(f"escape \\{sign} is not supported")
        return sign

    def _bracket(self) -> Pattern:
        """A bracket expression; its first sign may be a closing bracket that closes nothing."""
        text = "["
        if self._peek() == "^":
            text += self._take()
        first = True
        while first or self._peek() != "]":
            text += self._bracket_item()
            first = False
        self._take()
        return Pattern(text + "]", sets=1)

    def _bracket_item(self) -> str:
        sign = self._take()
        if not sign:
            raise self._refused("brackets [] not balanced")
        if sign == "[" and self._peek() in (":", ".", "="):
            return self._class()
        if sign == "\\" and not self._similar and self._peek() in ("d", "w", "s"):
            return _SHORTHANDS[self._take()]
        low = self._bracket_character(sign)
        if self._peek() != "-" or self._peek(2) in ("-]", "-"):
            return low
        self._take()
        high_sign = self._take()
        if high_sign == "[" and self._peek() in (":", ".", "="):
            raise self._refused("a range must not end with a class")
        high = self._bracket_character(high_sign)
        if _plain_sign(low) > _plain_sign(high):
            raise self._refused("a range must not run backwards")
        return f"{low}-{high}"

    def _bracket_character(self, sign: str) -> str:
        if sign == "\\" and not self._similar:
            sign = self._take()
            if sign in _CONTROLS:
                return _CONTROLS[sign]
            sign = self._sign_itself(sign)
        return "\\" + sign if sign in "\\]^-[&~" else sign

    def _class(self) -> str:
        end = self._text.find(":]", self._next)
        name = self._text[self._next + 1 : end]
        if self._peek() != ":" or end < 0 or name not in _CLASSES:
            raise self._refused("supported classes are " + " ".join(f"[:{known}:]" for known in _CLASSES))
        self._next = end + 2
        return _CLASSES[name]


def _plain_sign(text: str) -> int:
    """The code of a character as a bracket holds it."""
    controls = {r"\n": 10, r"\t": 9, r"\r": 13, r"\f": 12, r"\v": 11}
    return controls.get(text, ord(text[-1]))


def escaped(text: str) -> str:
    """Return a pattern that matches exactly this text."""
    return "".join("\\" + character if character in _SPECIAL else character for character in text)


def read_pattern(text: str, at: int | None, escape: str | None = None) -> Pattern:
    """Read a regular expression, or with `escape` the pattern of SIMILAR TO.

    Raises:
        InvalidParameter: It is none, or means something else to PostgreSQL than to the engine.
        LimitExceeded: It is too long.
    """
    if len(text) > MAX_PATTERN:
        raise LimitExceeded(f"a pattern may have at most {MAX_PATTERN:,} characters", position=at)
    return _Reader(text, escape, at).read()


# LIKE and SIMILAR TO


@dataclass(frozen=True)
class _Matched:
    """The operands of LIKE or SIMILAR TO; the pattern is None if it is NULL or an unbound parameter."""

    subject: Expr
    pattern: str | None
    escape: str
    at: int | None


def _matched(lowering: Lowering, node: exp.Expr, escape: str) -> _Matched:
    lowering.only(node, "this", "expression", "negate")
    subject, pattern = lowering.text(node.this), lowering.text(node.expression)
    pattern = computed_text(pattern)
    if not isinstance(pattern, Literal):
        raise UnsupportedQuery("a pattern must be a constant", position=lowering.at(node))
    text = None if pattern.value is None else str(pattern.value)
    if text is not None and len(text) > MAX_PATTERN:
        raise LimitExceeded(f"a pattern may have at most {MAX_PATTERN:,} characters", position=lowering.at(node))
    return _Matched(subject, text, escape, lowering.at(node))


def _match(lowering: Lowering, node: exp.Expr) -> Expr:
    return _with_escape(lowering, node, "\\")


def _escape(lowering: Lowering, node: exp.Escape) -> Expr:
    """LIKE, ILIKE or SIMILAR TO with its own escape character."""
    character = lowering.text(node.expression)
    value = character.value if isinstance(character, Literal) else None
    if not isinstance(value, str) or len(value) > 1 or not isinstance(node.this, exp.Like | exp.ILike | exp.SimilarTo):
        raise InvalidParameter(
            "invalid escape string: it must be one constant character or empty", position=lowering.at(node)
        )
    return _with_escape(lowering, node.this, value)


def _with_escape(lowering: Lowering, node: exp.Expr, escape: str) -> Expr:
    matched = _matched(lowering, node, escape)
    if matched.pattern is None:
        return Literal(None, SqlType.BOOLEAN)
    if isinstance(node, exp.SimilarTo):
        pattern = read_pattern(matched.pattern, matched.at, matched.escape or "\x00")
        found = _search("regexp_like", matched.subject, f"(?s)^(?:{pattern.re2})$")
    else:
        found = _like(matched, folded=isinstance(node, exp.ILike))
    return negated(found) if node.args.get("negate") else found


def _like(matched: _Matched, folded: bool) -> Expr:
    """Return the engine's LIKE if % is the only wildcard, which runs in linear time; else a regular expression."""
    pieces = _pieces(matched)
    plain = not folded and "_" not in pieces
    if plain and not any(sign in piece for piece in pieces if piece != "%" for sign in ("%_")):
        words = "".join(piece if piece == "%" else piece.removeprefix("\x00") for piece in pieces)
        return Call("like", (matched.subject, Literal(words, SqlType.TEXT)), SqlType.BOOLEAN)
    text = ""
    for is_wild, run in groupby(pieces, key=lambda piece: piece in ("%", "_")):
        several = list(run)
        # %_% is _%: so there are no two adjacent unbounded repetitions.
        wild = "." * several.count("_") + ".*" * ("%" in several)
        text += wild if is_wild else "".join(escaped(piece.removeprefix("\x00")) for piece in several)
    return _search("like_pattern", matched.subject, f"(?{'i' if folded else ''}s)^{text}$")


def _pieces(matched: _Matched) -> list[str]:
    """Return the wildcards % and _, and the literal characters, each of these with a mark before it."""
    pieces: list[str] = []
    text, index = matched.pattern or "", 0
    while index < len(text):
        sign = text[index]
        if sign == matched.escape:
            index += 1
            if index == len(text):
                raise InvalidParameter("LIKE pattern must not end with escape character", position=matched.at)
            pieces.append("\x00" + text[index])
        else:
            pieces.append(sign if sign in "%_" else "\x00" + sign)
        index += 1
    return pieces


def _search(name: str, subject: Expr, pattern: str) -> Expr:
    return Call(name, (subject, Literal(pattern, SqlType.TEXT)), SqlType.BOOLEAN)


# Regular expressions


def _regexp_operator(lowering: Lowering, node: exp.Binary) -> Expr:
    """The operators ~ and ~*."""
    lowering.only(node, "this", "expression")
    call = arguments(lowering, node, "regexp_like", [node.this, node.expression])
    return _found(call, "i" if isinstance(node, exp.RegexpILike) else "")


def _regexp_like(call: Arguments) -> Expr:
    flags = call.fixed(2) if len(call) == 3 else ""
    return Literal(None, SqlType.BOOLEAN) if flags is None else _found(call, _flags(call, 2, flags, "i"))


def _found(call: Arguments, flags: str) -> Expr:
    subject, text = call.text(0), call.fixed(1)
    if text is None:
        return Literal(None, SqlType.BOOLEAN)
    return _search("regexp_like", subject, f"(?{flags}s){read_pattern(text, call.at(1)).re2}")


def _flags(call: Arguments, index: int, flags: str, known: str) -> str:
    if not set(flags) <= set(known):
        raise InvalidParameter(
            f'invalid regular expression option: only "{known}" is supported', position=call.at(index)
        )
    return "i" if "i" in flags else ""


def _sequence(call: Arguments, index: int) -> Pattern | None:
    """Return a constant pattern whose match is returned."""
    text = call.fixed(index)
    if text is None:
        return None
    pattern = read_pattern(text, call.at(index))
    if not pattern.plain:
        raise UnsupportedQuery(
            "this function does not support patterns with |, *?, or counts after parentheses",
            hint="Operator ~ supports them.",
            position=call.at(index),
        )
    return pattern


def substring_of_pattern(call: Arguments) -> Expr:
    """SUBSTRING(text FROM pattern): what matches, or what its first group matches; NULL where nothing does."""
    if len(call) != 2:
        raise UnsupportedQuery(
            "SUBSTRING with ESCAPE is not supported",
            hint="Use SUBSTRING(text FROM pattern) with a regular expression.",
            position=call.lowering.at(call.node),
        )
    return _extracted(call, first_group=True)


def _regexp_substr(call: Arguments) -> Expr:
    return _extracted(call, first_group=False)


def _extracted(call: Arguments, first_group: bool) -> Expr:
    subject, pattern = call.text(0), _sequence(call, 1)
    if pattern is None:
        return Literal(None, SqlType.TEXT)
    group = Literal(1 if first_group and pattern.groups else 0, SqlType.INTEGER)
    return Call("regexp_substring", (subject, Literal(f"(?s){pattern.re2}", SqlType.TEXT), group), SqlType.TEXT)


def _regexp_count(call: Arguments) -> Expr:
    subject, pattern = call.text(0), _sequence(call, 1)
    if pattern is None:
        return Literal(None, SqlType.INTEGER)
    text = Literal(f"(?s){_never_empty(call, 1, pattern).re2}", SqlType.TEXT)
    return Cast(Call("regexp_count", (subject, text), SqlType.BIGINT), SqlType.INTEGER)


def _never_empty(call: Arguments, index: int, pattern: Pattern) -> Pattern:
    if pattern.empty:
        raise UnsupportedQuery("the pattern of this function must not match the empty string", position=call.at(index))
    return pattern


def _regexp_replace(call: Arguments) -> Expr:
    subject, pattern, new = call.text(0), _sequence(call, 1), call.fixed(2)
    flags = call.fixed(3) if len(call) == 4 else ""
    if pattern is None or new is None or flags is None:
        return Literal(None, SqlType.TEXT)
    folded = _flags(call, 3, flags, "gi") if flags else ""
    text = f"(?{folded}s){_never_empty(call, 1, pattern).re2}"
    constants = (text, _replacement(call, new, pattern.groups), "g" if "g" in flags else "")
    return Call("regexp_replace", (subject, *(Literal(each, SqlType.TEXT) for each in constants)), SqlType.TEXT)


def _replacement(call: Arguments, text: str, groups: int) -> str:
    r"""Return the replacement text for RE2: \1 is a group and \0 the whole match, which is \& in PostgreSQL."""
    if len(text) > MAX_REPLACEMENT:
        raise LimitExceeded(f"a replacement may have at most {MAX_REPLACEMENT} characters", position=call.at(2))
    found, index = "", 0
    while index < len(text):
        sign = text[index]
        index += 1
        if sign == "\\":
            sign = text[index : index + 1]
            index += 1
            if sign not in ("&", "\\") and not (sign.isdecimal() and 1 <= int(sign) <= groups):
                raise InvalidParameter(
                    "in a replacement, \\ must be followed by the number of a group, & or \\", position=call.at(2)
                )
            found += "\\0" if sign == "&" else "\\" + sign
        else:
            found += sign
    return found


METHODS: dict[type[exp.Expr], Method] = {
    exp.Like: _match,
    exp.ILike: _match,
    exp.SimilarTo: _match,
    exp.Escape: _escape,
    exp.RegexpLike: _regexp_operator,
    exp.RegexpILike: _regexp_operator,
}
CALLED: dict[str, Called] = {
    "regexp_like": _regexp_like,
    "regexp_count": _regexp_count,
    "regexp_substr": _regexp_substr,
    "regexp_replace": _regexp_replace,
}
