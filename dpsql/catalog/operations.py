"""operations: what operators do with values of their types, and the types that both sides take.

Rule: an operator that has no entry does not exist, as PostgreSQL says it.
"""

import re
from collections.abc import Sequence
from typing import Final

from dpsql.catalog.literals import quote
from dpsql.catalog.relations import (
    BOOL,
    FLOAT8,
    OID,
    OID_TYPES,
    TEXT,
    UNKNOWN,
    Kind,
    kind_of,
    named,
)
from dpsql.catalog.typed import (
    TranslationContext,
    Typed,
    coerced,
    common_kind,
    is_text,
    settled,
)
from dpsql.errors import (
    UndefinedFunction,
)

_COMPARISONS: Final = frozenset({"=", "<>", "<", ">", "<=", ">="})
_ARITHMETIC: Final = frozenset({"+", "-", "*", "/", "%", "^"})
_BITS: Final = {"&": "&", "|": "|", "#": "xor", "<<": "<<", ">>": ">>"}
_PATTERNS: Final = {"~": (False, False), "~*": (True, False), "!~": (False, True), "!~*": (True, True)}
_LIKES: Final = {"~~": (False, False), "~~*": (True, False), "!~~": (False, True), "!~~*": (True, True)}
_NUMBERS: Final = ("int2", "int4", "int8", "numeric", "float4", "float8")
_SHORT: Final = re.compile(r"'[^']{0,100}'")
_LONG: Final = {
    **{"int2": "smallint", "int4": "integer", "int8": "bigint", "bool": "boolean", "varchar": "character varying"},
    **{"bpchar": "character", "float8": "double precision", "char": '"char"', "float4": "real"},
}
HINT: Final = "matches the given name and argument types. You might need to add explicit type casts."


def shown_kind(kind: Kind) -> str:
    """The name of a type as messages have it."""
    if kind.is_array and kind.name.startswith("_"):
        return shown_kind(kind_of(kind.element)) + "[]"
    return _LONG.get(kind.name, kind.name)


class Operations:
    """Translates operators.

    Args:
        statement: What the translation is about.
    """

    def __init__(self, statement: TranslationContext) -> None:
        self.statement = statement

    def text(self, typed: Typed) -> str:
        """The SQL of an expression as text."""
        return coerced(self.statement, typed, TEXT).sql

    def _operation(self, operator: str, operands: Sequence[Typed], at: int) -> Typed:
        if len(operands) == 1:
            return self._prefix(operator, operands[0], at)
        if operator in _LIKES:
            return self._like(operands, *_LIKES[operator])
        left, right = operands
        if operator == "IS DISTINCT FROM":
            one, other = self._alike(left, right, "=", at)
            return Typed(f"({one.sql} IS DISTINCT FROM {other.sql})", BOOL)
        if operator in _COMPARISONS:
            return self._compare(operator, left, right, at)
        if operator in _PATTERNS:
            ignore_case, negated = _PATTERNS[operator]
            options = ", 'i'" if ignore_case else ""
            matched = f"regexp_matches({self.text(left)}, {self.text(right)}{options})"
            return Typed(f"(NOT {matched})" if negated else matched, BOOL)
        if operator == "||":
            return self._concatenate(left, right, at)
        if operator == "^@":
            return Typed(f"starts_with({self.text(left)}, {self.text(right)})", BOOL)
        if operator in ("->", "->>") and left.kind.name in ("json", "jsonb"):
            kind = TEXT if operator == "->>" else left.kind
            sql = f"catalog_json_part({left.sql}, {self.text(right)}, {quote(left.kind.name)}, {operator == '->>'})"
            return Typed(sql, kind)
        if operator in _ARITHMETIC:
            return self._arithmetic(operator, left, right, at)
        if operator in _BITS:
            kind = common_kind([left.kind, right.kind], operator)
            a, b = (coerced(self.statement, side, kind).sql for side in (left, right))
            if kind.name == "bit":
                a, b = f"CAST({a} AS BIT)", f"CAST({b} AS BIT)"
            sql = f"xor({a}, {b})" if operator == "#" else f"({a} {_BITS[operator]} {b})"
            return Typed(f"CAST({sql} AS {kind.storage})", kind)
        if operator in ("@>", "<@", "&&") and (left.kind.is_array or right.kind.is_array):
            return self._array_test(operator, left, right)
        raise self._no_operator(operator, operands, at)

    def _prefix(self, operator: str, operand: Typed, at: int) -> Typed:
        if operator not in ("-", "~", "@") or operand.kind.name not in _NUMBERS:
            raise self._no_operator(operator, [operand], at)
        return Typed(
            {"-": f"(-{operand.sql})", "~": f"(~{operand.sql})", "@": f"abs({operand.sql})"}[operator], operand.kind
        )

    def _no_operator(self, operator: str, operands: Sequence[Typed], at: int) -> UndefinedFunction:
        sides = [shown_kind(one.kind) for one in operands]
        text = f"{sides[0]} {operator} {sides[1]}" if len(sides) == 2 else f"{operator} {sides[0]}"
        return UndefinedFunction(
            f"operator does not exist: {text}",
            hint=f"No operator {HINT}",
            position=at + 1,
        )

    def _compare(self, operator: str, left: Typed, right: Typed, at: int) -> Typed:
        if left.kind.fields and right.kind.fields:
            return Typed(f"({left.sql} {operator} {right.sql})", BOOL)
        a, b = self._alike(left, right, operator, at)
        # One side stands here for each of many others, in IN and CASE.
        return self.statement.counted(Typed(f"({a.sql} {operator} {b.sql})", BOOL))

    def _alike(self, left: Typed, right: Typed, operator: str, at: int) -> tuple[Typed, Typed]:
        """Both sides with one type, as a comparison takes them."""
        if left.kind == UNKNOWN and right.kind == UNKNOWN:
            kind = TEXT
        elif UNKNOWN in (left.kind, right.kind):
            kind = right.kind if left.kind == UNKNOWN else left.kind
            kind = OID if kind.name in OID_TYPES and kind.name != "regclass" else kind
        elif not self._comparable(left.kind, right.kind):
            raise self._no_operator(operator, [left, right], at)
        else:
            kind = common_kind([left.kind, right.kind], operator)
            if kind.name in OID_TYPES:
                kind = OID
            elif is_text(kind):
                kind = TEXT
        return coerced(self.statement, left, kind), coerced(self.statement, right, kind)

    def _comparable(self, left: Kind, right: Kind) -> bool:
        if left == right or (is_text(left) and is_text(right)):
            return True
        groups = (_NUMBERS, (*OID_TYPES, "int2", "int4", "int8"), ("date", "timestamp", "timestamptz"))
        if any(left.name in group and right.name in group for group in groups):
            return True
        if "regclass" in (left.name, right.name) and (is_text(left) or is_text(right)):
            return True
        return left.is_array and right.is_array and self._comparable(kind_of(left.element), kind_of(right.element))

    def _concatenate(self, left: Typed, right: Typed, at: int) -> Typed:
        if left.kind.is_array or right.kind.is_array:
            return self._concatenate_arrays(left, right)
        if not any(is_text(one.kind) or one.kind == UNKNOWN for one in (left, right)):
            raise self._no_operator("||", [left, right], at)
        if _is_short(left) and _is_short(right):
            return Typed(f"({self.text(left)} || {self.text(right)})", TEXT)
        return Typed(f"catalog_concat({self.text(left)}, {self.text(right)})", TEXT)

    def _concatenate_arrays(self, left: Typed, right: Typed) -> Typed:
        kind = left.kind if left.kind.is_array else right.kind
        whole = [one.kind.is_array or one.kind == UNKNOWN for one in (left, right)]
        element = kind_of(kind.element)
        a, b = (
            coerced(self.statement, one, kind if is_whole else element).sql
            for one, is_whole in zip((left, right), whole, strict=True)
        )
        if all(whole):
            # Each side is written once: in a chain of them, two would make four, and so on.
            sides = f"[struct_pack(a := {a}, b := {b})]"
            known = "CASE WHEN s.a IS NULL THEN s.b WHEN s.b IS NULL THEN s.a"
            both = f"{known} WHEN catalog_fits(len(s.a) + len(s.b)) THEN list_concat(s.a, s.b) END"
            return Typed(f"list_transform({sides}, lambda s: {both})[1]", kind)
        return Typed(f"list_append({a}, {b})" if whole[0] else f"list_prepend({a}, {b})", kind)

    def _array_test(self, operator: str, left: Typed, right: Typed) -> Typed:
        kind = left.kind if left.kind.is_array else right.kind
        a, b = (coerced(self.statement, one, kind).sql for one in (left, right))
        name = {"@>": f"list_has_all({a}, {b})", "<@": f"list_has_all({b}, {a})", "&&": f"list_has_any({a}, {b})"}
        return Typed(name[operator], BOOL)

    def _arithmetic(self, operator: str, left: Typed, right: Typed, at: int) -> Typed:
        if operator in ("*", "/") and "interval" in (left.kind.name, right.kind.name):
            return self._scaled(operator, left, right, at)
        if {left.kind.category, right.kind.category} & {"D", "T"}:
            return self._moments(operator, left, right, at)
        kinds = [
            kind if kind != UNKNOWN else other for kind, other in ((left.kind, right.kind), (right.kind, left.kind))
        ]
        if any(kind.name not in (*_NUMBERS, "oid") for kind in kinds) or UNKNOWN in kinds:
            raise self._no_operator(operator, [left, right], at)
        kind = common_kind(kinds, operator)
        a, b = (coerced(self.statement, one, kind).sql for one in (left, right))
        if kind.name == "float4" or operator == "^":
            kind = FLOAT8
        if operator == "^":
            return Typed(f"pow({a}, {b})", FLOAT8)
        sign = "//" if operator == "/" and kind.name in ("int2", "int4", "int8") else operator
        # The wider type, so that an overflow is none of the engine's; the result is cut back to its own.
        return Typed(f"CAST(({a} {sign} {b}) AS {kind.storage})", kind)

    def _scaled(self, operator: str, left: Typed, right: Typed, at: int) -> Typed:
        """An interval times or through a number."""
        one, factor = (right, left) if operator == "*" and left.kind.name != "interval" else (left, right)
        if one.kind.name != "interval" or factor.kind.name not in _NUMBERS:
            raise self._no_operator(operator, [left, right], at)
        return Typed(f"({one.sql} {operator} {coerced(self.statement, factor, FLOAT8).sql})", named("interval"))

    def _moments(self, operator: str, left: Typed, right: Typed, at: int) -> Typed:
        """Differences of moments, and moments or intervals with something added or taken away."""
        left, right = (
            coerced(self.statement, one, other.kind) if one.kind == UNKNOWN else one
            for one, other in ((left, right), (right, left))
        )
        kind = _kind_of_moments(operator, left.kind, right.kind)
        if kind is None:
            raise self._no_operator(operator, [left, right], at)
        a, b = (settled(self.statement, one).sql for one in (left, right))
        return Typed(f"CAST(({a} {operator} {b}) AS {kind.storage})", kind)

    def _like(self, operands: Sequence[Typed], ignore_case: bool, negated: bool) -> Typed:
        left, right, *escape = map(self.text, operands)
        sign = escape[0] if escape else quote("\\")
        sql = f"{'ilike' if ignore_case else 'like'}_escape({left}, {right}, {sign})"
        return Typed(f"(NOT {sql})" if negated else sql, BOOL)


def _kind_of_moments(operator: str, left: Kind, right: Kind) -> Kind | None:
    """The type of a sum or difference with a moment or an interval; None where there is no such operator."""
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
    """True of numbers, and of constants as short as their texts: what is made of two such need not be counted first."""
    return (one.kind.name in _NUMBERS and one.kind.name != "numeric") or (
        one.kind == UNKNOWN and _SHORT.fullmatch(one.sql) is not None
    )
