"""operations: the operators on each pair of types, and the common type of both sides.

Rule: an operator without an entry does not exist, as in PostgreSQL.
"""

import re
from collections.abc import Sequence
from typing import Final

from sqlglot import exp

from dpsql.catalog.casts import Casts, Typed
from dpsql.catalog.kinds import (
    BOOL,
    FLOAT8,
    INTEGERS,
    NUMBERS,
    OID,
    OID_TYPES,
    TEXT,
    UNKNOWN,
    Kind,
    common_kind,
    comparable,
    kind_of,
    named,
)
from dpsql.catalog.literals import quote
from dpsql.catalog.reading import place
from dpsql.errors import UndefinedFunction

_COMPARISONS: Final = frozenset({"=", "<>", "<", ">", "<=", ">="})
_ARITHMETIC: Final = frozenset({"+", "-", "*", "/", "%", "^"})
_BITS: Final = {
    "&": "({0} & {1})",
    "|": "({0} | {1})",
    "#": "xor({0}, {1})",
    "<<": "({0} << {1})",
    ">>": "({0} >> {1})",
}
_MATCHES: Final = {
    "~": "regexp_matches({0}, {1})",
    "~*": "regexp_matches({0}, {1}, 'i')",
    "~~": "like_escape({0}, {1}, {2})",
    "~~*": "ilike_escape({0}, {1}, {2})",
    "^@": "starts_with({0}, {1})",
}
"""Of texts; ! before one negates it, and LIKE has its escape behind its sides."""
_ARRAY_TESTS: Final = {"@>": "list_has_all({0}, {1})", "<@": "list_has_all({1}, {0})", "&&": "list_has_any({0}, {1})"}
_PREFIXES: Final = {"-": "(-{0})", "~": "(~{0})", "@": "abs({0})"}
_SHORT: Final = re.compile(r"'[^']{0,100}'")
HINT: Final = "matches the given name and argument types. You might need to add explicit type casts."


class Operations(Casts):
    """Translates operators over translated operands; `node` is where errors point to."""

    def _operation(self, operator: str, operands: Sequence[Typed], node: exp.Expr) -> Typed:
        if len(operands) == 1:
            if operator not in _PREFIXES or operands[0].kind.name not in NUMBERS:
                raise self._no_operator(operator, operands, node)
            return Typed(_PREFIXES[operator].format(operands[0].sql), operands[0].kind)
        left, right = operands[:2]
        positive = operator.removeprefix("!")
        if operator == "IS DISTINCT FROM":
            one, other = self._alike(left, right, "=", node)
            return Typed(f"({one.sql} IS DISTINCT FROM {other.sql})", BOOL)
        if operator in _COMPARISONS:
            return self._compare(operator, left, right, node)
        if positive in _MATCHES:
            matched = _MATCHES[positive].format(*map(self.text, operands), quote("\\"))
            return Typed(matched if operator == positive else f"(NOT {matched})", BOOL)
        if operator == "||":
            return self._concatenate(left, right, node)
        if operator in ("->", "->>") and left.kind.name in ("json", "jsonb"):
            kind = TEXT if operator == "->>" else left.kind
            sql = f"catalog_json_part({left.sql}, {self.text(right)}, {quote(left.kind.name)}, {operator == '->>'})"
            return Typed(sql, kind)
        if operator in _ARITHMETIC:
            return self._arithmetic(operator, left, right, node)
        if operator in _BITS:
            return self._bits(operator, left, right)
        if operator in _ARRAY_TESTS and (left.kind.is_array or right.kind.is_array):
            kind = left.kind if left.kind.is_array else right.kind
            return Typed(_ARRAY_TESTS[operator].format(*(self.coerced(one, kind).sql for one in operands)), BOOL)
        raise self._no_operator(operator, operands, node)

    def _no_operator(self, operator: str, operands: Sequence[Typed], node: exp.Expr) -> UndefinedFunction:
        sides = [one.kind.shown for one in operands]
        text = f"{sides[0]} {operator} {sides[1]}" if len(sides) == 2 else f"{operator} {sides[0]}"
        return UndefinedFunction(f"operator does not exist: {text}", hint=f"No operator {HINT}", position=place(node))

    def _compare(self, operator: str, left: Typed, right: Typed, node: exp.Expr) -> Typed:
        if left.kind.fields and right.kind.fields:
            return Typed(f"({left.sql} {operator} {right.sql})", BOOL)
        a, b = self._alike(left, right, operator, node)
        # With IN and CASE, one side is repeated for each of many others.
        return self.statement.counted(Typed(f"({a.sql} {operator} {b.sql})", BOOL))

    def _alike(self, left: Typed, right: Typed, operator: str, node: exp.Expr) -> tuple[Typed, Typed]:
        """Both sides with one type, as a comparison takes them."""
        kinds = {left.kind, right.kind} - {UNKNOWN}
        if len(kinds) == 2 and not comparable(left.kind, right.kind):
            raise self._no_operator(operator, [left, right], node)
        kind = common_kind([left.kind, right.kind], operator)
        if kind.name in OID_TYPES and (len(kinds) == 2 or kind.name != "regclass"):
            kind = OID
        elif kind.is_text and UNKNOWN not in (left.kind, right.kind):
            kind = TEXT
        return self.coerced(left, kind), self.coerced(right, kind)

    def _concatenate(self, left: Typed, right: Typed, node: exp.Expr) -> Typed:
        if left.kind.is_array or right.kind.is_array:
            return self._concatenate_arrays(left, right)
        if not any(one.kind.is_text for one in (left, right)):
            raise self._no_operator("||", [left, right], node)
        if _is_short(left) and _is_short(right):
            return Typed(f"({self.text(left)} || {self.text(right)})", TEXT)
        return Typed(f"catalog_concat({self.text(left)}, {self.text(right)})", TEXT)

    def _concatenate_arrays(self, left: Typed, right: Typed) -> Typed:
        kind = left.kind if left.kind.is_array else right.kind
        whole = [one.kind.is_array or one.kind == UNKNOWN for one in (left, right)]
        a, b = (
            self.coerced(one, kind if is_whole else kind_of(kind.element)).sql
            for one, is_whole in zip((left, right), whole, strict=True)
        )
        if all(whole):
            # Each side is written once: in a chain of them, two would make four, and so on.
            sides = f"[struct_pack(a := {a}, b := {b})]"
            known = "CASE WHEN s.a IS NULL THEN s.b WHEN s.b IS NULL THEN s.a"
            both = f"{known} WHEN catalog_fits(len(s.a) + len(s.b)) THEN list_concat(s.a, s.b) END"
            return Typed(f"list_transform({sides}, lambda s: {both})[1]", kind)
        return Typed(f"list_append({a}, {b})" if whole[0] else f"list_prepend({a}, {b})", kind)

    def _bits(self, operator: str, left: Typed, right: Typed) -> Typed:
        kind = common_kind([left.kind, right.kind], operator)
        sides = [self.coerced(side, kind).sql for side in (left, right)]
        if kind.name == "bit":
            sides = [f"CAST({side} AS BIT)" for side in sides]
        return Typed(f"CAST({_BITS[operator].format(*sides)} AS {kind.storage})", kind)

    def _arithmetic(self, operator: str, left: Typed, right: Typed, node: exp.Expr) -> Typed:
        if operator in ("*", "/") and "interval" in (left.kind.name, right.kind.name):
            return self._scaled(operator, left, right, node)
        if {left.kind.category, right.kind.category} & {"D", "T"}:
            return self._moments(operator, left, right, node)
        kinds = {left.kind, right.kind} - {UNKNOWN}
        if not kinds or any(kind.name not in (*NUMBERS, "oid") for kind in kinds):
            raise self._no_operator(operator, [left, right], node)
        kind = common_kind([left.kind, right.kind], operator)
        a, b = (self.coerced(one, kind).sql for one in (left, right))
        if operator == "^":
            return Typed(f"pow({a}, {b})", FLOAT8)
        kind = FLOAT8 if kind.name == "float4" else kind
        sign = "//" if operator == "/" and kind.name in INTEGERS else operator
        # The wider type avoids an overflow in the engine; the result is cast back to its own type.
        return Typed(f"CAST(({a} {sign} {b}) AS {kind.storage})", kind)

    def _scaled(self, operator: str, left: Typed, right: Typed, node: exp.Expr) -> Typed:
        """An interval times or through a number."""
        one, factor = (right, left) if operator == "*" and left.kind.name != "interval" else (left, right)
        if one.kind.name != "interval" or factor.kind.name not in NUMBERS:
            raise self._no_operator(operator, [left, right], node)
        return Typed(f"({one.sql} {operator} {self.coerced(factor, FLOAT8).sql})", named("interval"))

    def _moments(self, operator: str, left: Typed, right: Typed, node: exp.Expr) -> Typed:
        """Differences of moments, and moments or intervals with something added or taken away."""
        left, right = (
            self.coerced(one, other.kind) if one.kind == UNKNOWN else one
            for one, other in ((left, right), (right, left))
        )
        kind = _kind_of_moments(operator, left.kind, right.kind)
        if kind is None:
            raise self._no_operator(operator, [left, right], node)
        return Typed(f"CAST(({left.sql} {operator} {right.sql}) AS {kind.storage})", kind)


def _kind_of_moments(operator: str, left: Kind, right: Kind) -> Kind | None:
    """Return the type of a sum or difference with a moment or an interval; None if there is no such operator."""
    if operator == "-" and left.category == right.category == "D":
        return named("int4" if left.name == right.name == "date" else "interval")
    if operator == "+" and left.category != "D":
        left, right = right, left
    if left.name == "date" and right.name in ("int2", "int4"):
        return left
    if operator not in ("+", "-") or right.name != "interval":
        return None
    return named("timestamp") if left.name == "date" else left


def _is_short(one: Typed) -> bool:
    """True for numbers and short constants: results of two of these need not be counted first."""
    return (one.kind.name in NUMBERS and one.kind.name != "numeric") or (
        one.kind == UNKNOWN and _SHORT.fullmatch(one.sql) is not None
    )
