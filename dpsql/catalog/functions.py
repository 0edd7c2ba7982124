"""functions: the functions that catalog queries may call: argument types, result, and their SQL in DuckDB.

The table is functions.tsv. In a template, {0} is the first argument and {path} the search path; the template = stands
for that of compiler/dialects, which use the same engine; aggregates and window functions have DuckDB's names. `any`,
`anyarray` and `anyelement` are polymorphic as in PostgreSQL, `any0` is the type of the first argument, `...` repeats
the type before it, and `setof` marks a list that is unnested into rows. Values that depend on data (sizes, statistics)
are always NULL.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Final

from dpsql.catalog.kinds import UNKNOWN, Kind, array_of, implicit, kind_of, named, record
from dpsql.compiler.dialects.duckdb import DuckDB

RELATION_FUNCTIONS: Final[Mapping[str, str]] = {
    "pg_show_all_settings": "pg_settings",
    "pg_timezone_names": "pg_timezone_names",
    "pg_timezone_abbrevs": "pg_timezone_abbrevs",
}
"""Functions that give the rows of a relation of pg_catalog."""
_LINE: Final = re.compile(r"(\w+)\(([^)]*)\)\t(?:(setof|aggregate|window) )?(\w+|\(.*\))\t(.*)")


@dataclass(frozen=True)
class CatalogFunction:
    """A function for certain argument types.

    Attributes:
        name: Its name.
        args: The names of its arguments' types; any, anyarray and anyelement are polymorphic.
        result: The name of the result's type, or a polymorphic one, or the fields of a record in parentheses.
        sql: The template.
        repeats: True where the last argument may come several times.
        manner: setof where it gives rows; aggregate; window.
    """

    name: str
    args: tuple[str, ...]
    result: str
    sql: str
    repeats: bool = False
    manner: str | None = None

    def wanted(self, count: int) -> Sequence[str]:
        """Return the argument types for this number of arguments; fewer or more if the function does not take it."""
        return (*self.args, *self.args[-1:] * (count - len(self.args))) if self.repeats else self.args

    def takes(self, kinds: Sequence[Kind]) -> bool:
        """True if it can be called with arguments of these types."""
        wanted = self.wanted(len(kinds))
        return len(wanted) == len(kinds) and all(map(_takes, kinds, wanted))

    def fit(self, kinds: Sequence[Kind]) -> tuple[int, int]:
        """How many arguments have the very types; how many without a type are taken as text."""
        pairs = list(zip(kinds, self.args, strict=False))
        texts = sum(kind == UNKNOWN and name == "text" for kind, name in pairs)
        return sum(kind.name == name for kind, name in pairs), texts


def _takes(kind: Kind, name: str) -> bool:
    if name in ("any", "anyelement"):
        return True
    return kind.is_array or kind == UNKNOWN if name == "anyarray" else implicit(kind, named(name))


@cache
def functions() -> Mapping[str, tuple[CatalogFunction, ...]]:
    """The table by name."""
    found: dict[str, tuple[CatalogFunction, ...]] = {}
    lines = files("dpsql.catalog").joinpath("functions.tsv").read_text(encoding="utf-8").splitlines()
    for line in lines[1:]:
        match = _LINE.fullmatch(line)
        if match is None:
            raise TypeError(f"not a function: {line}")
        name, listed, manner, result, sql = match.groups()
        args = tuple(part.removesuffix("...") for part in listed.split(", ") if part)
        if sql == "=":
            sql = DuckDB.functions[name].sql([f"{{{place}}}" for place in range(len(args))])
        function = CatalogFunction(name, args, result, sql, listed.endswith("..."), manner)
        found[name] = (*found.get(name, ()), function)
    return found


def chosen(candidates: Sequence[CatalogFunction], kinds: Sequence[Kind]) -> CatalogFunction | None:
    """Return the function that matches arguments of these types; None if none matches.

    If several match equally, one that takes an untyped constant as text is preferred.
    """
    return max((one for one in candidates if one.takes(kinds)), key=lambda one: one.fit(kinds), default=None)


def result_kind(function: CatalogFunction, kinds: Sequence[Kind]) -> Kind:
    """The type of a call's result."""
    if function.result.startswith("("):
        fields = (field.split() for field in function.result[1:-1].split(", "))
        return record(*((name, _result(kind, kinds)) for name, kind in fields))
    return _result(function.result, kinds)


def _result(name: str, kinds: Sequence[Kind]) -> Kind:
    match name:
        case "anyelement":
            return kind_of(_array(kinds).element)
        case "anyarray":
            return _array(kinds)
        case "any0":  # names have no least of their own: it is a text
            return named("text") if kinds[0].name in ("name", "varchar", "char", "unknown") else kinds[0]
        case "anyarray0":
            return array_of(kinds[0])
        case _:
            return named(name)


def _array(kinds: Sequence[Kind]) -> Kind:
    found = next(kind for kind in kinds if kind.is_array)
    return array_of(kind_of(found.element)) if found.is_vector else found


def argument_kinds(function: CatalogFunction, kinds: Sequence[Kind]) -> list[Kind]:
    """The types that a call's arguments are cast to."""
    arrays = [kind for kind in kinds if kind.is_array]
    found = []
    for kind, name in zip(kinds, function.wanted(len(kinds)), strict=True):
        if name == "anyarray":
            found.append(kind if kind.is_array else named("_text"))
        elif name == "anyelement":
            found.append(kind_of(arrays[0].element) if arrays else kind)
        elif name == "any":
            found.append(named("text") if kind == UNKNOWN else kind)
        else:
            found.append(named(name))
    return found
