"""key_values: rewrites expressions over rows as expressions over the keys of a release, where the keys determine them.

Rule 1: an expression can be rewritten if it contains the key itself, or if the key is finer: a month determines the
year, ten years of age determine twenty, three letters determine two.
Rule 2: keys are used directly, or in expressions that post-processing computes exactly as every engine does. This
excludes numerics, whose released keys have other digits, and functions that depend on a database's locale.
Rule 3: a comparison with a constant is rewritten only if the constant is the start of a unit of time or of a quotient.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import date, datetime, time, timedelta

from dpsql.compiler.canonical.descriptions import DescribedRelease
from dpsql.compiler.ir.conditions import compared
from dpsql.compiler.ir.nodes import Call, Cast, Column, Expr, Field, Literal
from dpsql.compiler.ir.walk import fields_in, is_plain, operands, rewrite_expression
from dpsql.compiler.values.calendar_units import UNITS, instant, truncated, unit_of
from dpsql.compiler.values.grids import is_whole
from dpsql.sqltypes import SqlType

_MOST_PARTS = 100
"""How many finer keys are looked for: by letters, or by divisors."""
_LOCAL = (
    *("lower", "upper", "initcap", "ilike", "regexp"),
    *("exp", "power", "ln", "log", "cbrt", "degrees", "radians"),
    *("sin", "cos", "tan", "cot", "asin", "acos", "atan"),
)
"""What the names of functions begin with whose values follow the locale, or the digits of the engine's arithmetic."""
_MOMENTS = (SqlType.DATE, SqlType.TIMESTAMP)
_DAY = timedelta(days=1)


@dataclass(frozen=True)
class KeyValues:
    """Writes expressions over the keys of a release.

    Attributes:
        asked: The release whose expressions are written.
        keys: The fields of the other release's keys, by their digests.
        texts: The digests of expressions that are known.
    """

    asked: DescribedRelease
    keys: Mapping[str, Field]
    texts: dict[Expr, str]

    def over(self, expression: Expr) -> Expr | None:
        """An expression over key values; None if they do not determine it."""
        if not is_plain(expression):
            return None
        written = rewrite_expression(expression, self._known)
        if not fields_in(written) <= frozenset(self.keys.values()):
            return None
        return written if isinstance(written, Column) or _is_the_same_anywhere(written) else None

    def _known(self, part: Expr) -> Expr | None:
        """A part of an expression over key values; None where its own parts are to be looked at."""
        key = self._number(part)
        if key is not None:
            return key
        return self._of_unit(part) or self._comparison(part) or self._band(part) or self._of_part(part)

    def _key(self, part: Expr) -> Column | None:
        if isinstance(part, Literal):
            return None
        if part not in self.texts:
            self.texts[part] = self.asked.text(part)
        found = self.keys.get(self.texts[part])
        return Column(found) if found is not None and found.type is part.type else None

    def _number(self, part: Expr) -> Column | Cast | None:
        """A key, or a whole number of which the key is the same in double precision, as FLOOR(age / 10) is."""
        key = self._key(part)
        if key is not None or part.type not in (SqlType.SMALLINT, SqlType.INTEGER):
            return key
        same = self._key(Cast(part, SqlType.DOUBLE))
        return None if same is None else Cast(same, part.type)

    # Moments

    def _units(self, moment: Field, coarsest: str) -> Iterator[tuple[str, Expr]]:
        """The keys that are the first instants of units no coarser than one, as timestamps, the coarsest first."""
        for unit in reversed(UNITS[: UNITS.index(coarsest) + 1]):
            first: Expr = Call(f"date_trunc_{unit}", (Column(moment),), SqlType.TIMESTAMP)
            if moment.type is SqlType.DATE:
                first = Cast(first, SqlType.TIMESTAMPTZ)
            key = self._key(first)
            if key is not None:
                yield unit, key if key.type is SqlType.TIMESTAMP else Cast(key, SqlType.TIMESTAMP)

    def _of_unit(self, part: Expr) -> Expr | None:
        """A function of a moment, of the first instant of its unit, which has the same value."""
        found = unit_of(part)
        if found is None or isinstance(part, Column) or found[0].type not in _MOMENTS:
            return None
        moment, needed = found
        key = next((key for _, key in self._units(moment, needed)), None)
        if key is None:
            return None
        first = key if moment.type is SqlType.TIMESTAMP else Cast(key, moment.type)
        return rewrite_expression(part, lambda each: first if each == Column(moment) else None)

    def _comparison(self, part: Expr) -> Expr | None:
        """A comparison of a moment with the first instant of a unit, or with the last day before one."""
        function, moment, values = compared(part) or ("", None, ())
        if moment is None or moment.type not in _MOMENTS or len(values) != 1 or not isinstance(values[0], date):
            return None
        end = instant(values[0])
        if moment.type is SqlType.DATE and end.time() != time.min:
            return None
        if moment.type is SqlType.DATE and function in ("gt", "le"):
            if end.date() == date.max:
                return None
            end, function = end + _DAY, "ge" if function == "gt" else "lt"
        if function not in ("ge", "lt"):
            return None
        for unit, key in self._units(moment, "year"):
            if truncated(end, unit) == end:
                return Call(function, (key, Literal(_at(end), SqlType.TIMESTAMP)), SqlType.BOOLEAN)
        return None

    # Numbers and texts

    def _band(self, part: Expr) -> Expr | None:
        """A comparison of a whole number with the first one of a quotient above 0: below, quotients are cut upwards."""
        function, number, values = compared(part) or ("", None, ())
        if number is None or not number.type.is_integer or len(values) != 1 or not isinstance(values[0], int):
            return None
        end = values[0]
        if function in ("gt", "le"):
            end, function = end + 1, "ge" if function == "gt" else "lt"
        if function not in ("ge", "lt") or end < 1:
            return None
        for divisor in (each for each in range(min(end, _MOST_PARTS), 1, -1) if end % each == 0):
            key = self._number(Call("int_divide", (Column(number), Literal(divisor, number.type)), number.type))
            if key is not None:
                return Call(function, (key, Literal(end // divisor, number.type)), SqlType.BOOLEAN)
        return None

    def _of_part(self, part: Expr) -> Expr | None:
        """The beginning of a longer beginning; a quotient of a quotient by a divisor of the divisor."""
        if not isinstance(part, Call) or part.function not in ("left", "int_divide"):
            return None
        whole, literal = part.arguments
        number = literal.value if isinstance(literal, Literal) else None
        if not isinstance(number, int) or number < 1:
            return None
        if part.function == "left":
            finer = [(longer, number) for longer in range(number + 1, number + _MOST_PARTS)]
        else:
            finer = [
                (each, number // each) for each in range(min(number - 1, _MOST_PARTS), 1, -1) if number % each == 0
            ]
        for other, rest in finer:
            key = self._number(Call(part.function, (whole, Literal(other, literal.type)), part.type))
            if key is not None:
                return Call(part.function, (key, Literal(rest, literal.type)), part.type)
        return None


def _is_the_same_anywhere(expression: Expr) -> bool:
    """True for expressions that engines compute alike from key values in text form."""
    is_local = isinstance(expression, Call) and expression.function.startswith(_LOCAL)
    is_known = expression.type is not SqlType.NUMERIC or isinstance(expression, Literal) or is_whole(expression)
    if is_local or not is_known:
        return False
    return all(map(_is_the_same_anywhere, operands(expression)))


def _at(moment: datetime) -> datetime:
    return moment.replace(tzinfo=None)
