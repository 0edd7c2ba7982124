"""descriptions: describes by digests what a release adds up, so that two releases can be compared.

The rows of a release are inner joins of relations under conditions. The relations, with everything that must be equal
before two releases are comparable, form the family. Conditions, keys and cells are described separately.

Rule 1: equal digests mean equal computations: the digested text leaves out only the names of fields, which are numbered
in the order of the relations.
Rule 2: releases that cannot be added up over groups have no description: those with private groups, with selected or
picked groups, or with dropped groups of a unit.
"""

import hashlib
import json
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from datetime import date, datetime
from enum import Enum
from fractions import Fraction
from functools import cache, cached_property
from typing import Any

from dpsql.compiler.ir.conditions import FALSE, TRUE, compared, conjuncts, constants
from dpsql.compiler.ir.nodes import Case, Column, Expr, Field, Filter, Join, Literal, Relation, Release, Scan, UnitScan
from dpsql.compiler.ir.primitives import Contribution, Primitive
from dpsql.compiler.ir.walk import fields_in, free_fields, is_plain
from dpsql.policy import PolicyColumn, Table
from dpsql.sqltypes import SqlType

_DIGITS = 32
_UNKNOWN = -1
"""The number of no field: a key that reads more than fields is a function of it."""


@dataclass(frozen=True)
class DescribedKey:
    """A group key.

    Attributes:
        text: Its digest.
        type: Its type.
        fields: The numbers of the fields that it is a function of.
        merged: The digests of a condition and of another key, if this key is NULL where the condition is true, and
            equals the other key elsewhere; else None.
    """

    text: str
    type: SqlType
    fields: tuple[int, ...]
    merged: tuple[str, str] | None = None


@dataclass(frozen=True)
class DescribedCell:
    """A cell: the expression that it adds up, and the conditions on its rows beyond those of all rows."""

    text: str
    terms: frozenset[str]


@dataclass(frozen=True)
class ReleaseDescription:
    """The stored description of a release, in the order of its keys and cells.

    Attributes:
        family: The digest of everything that two releases must have in common.
        terms: The conditions on its rows.
        keys: Its keys.
        cells: Its cells.
        rows: The bound of one unit's rows in all groups together; None if a unit has one row.
        per_group: The bound of one unit's rows in one group.
        one_group: True where all rows of a unit are in one group.
        bias: The square of the number of rows that bounds are expected to drop, with its uncertainty; None without a
        profile.
    """

    family: str
    terms: frozenset[str]
    keys: tuple[DescribedKey, ...]
    cells: tuple[DescribedCell, ...]
    rows: int | None
    per_group: int
    one_group: bool
    bias: Fraction | None

    @cached_property
    def cell_texts(self) -> frozenset[str]:
        """What its cells add up."""
        return frozenset(cell.text for cell in self.cells)

    @cached_property
    def merges_groups(self) -> bool:
        """Whether one of its groups is made of several."""
        return any(key.merged is not None for key in self.keys)

    def to_json(self) -> dict[str, Any]:
        """The form in which it is stored."""
        return {
            "family": self.family,
            "terms": sorted(self.terms),
            "keys": [[key.text, key.type.value, list(key.fields), *(key.merged or ())] for key in self.keys],
            "cells": [[cell.text, sorted(cell.terms)] for cell in self.cells],
            "bounds": [self.rows, self.per_group, self.one_group],
            "bias": None if self.bias is None else str(self.bias),
        }

    @classmethod
    def from_json(cls, stored: Mapping[str, Any]) -> "ReleaseDescription":
        """Read the output of to_json; other input raises ValueError, KeyError or TypeError."""
        rows, per_group, one_group = stored["bounds"]
        bias = stored["bias"]
        return cls(
            stored["family"],
            frozenset(stored["terms"]),
            tuple(
                DescribedKey(text, SqlType(kind), tuple(used), (merged[0], merged[1]) if merged else None)
                for text, kind, used, *merged in stored["keys"]
            ),
            tuple(DescribedCell(text, frozenset(terms)) for text, terms in stored["cells"]),
            rows,
            per_group,
            one_group,
            None if bias is None else Fraction(bias),
        )


@dataclass(frozen=True)
class DescribedRelease:
    """A planned release that can be described.

    Attributes:
        release: The release in canonical form.
        relations: The joined relations, in the order in which their fields are numbered.
        terms: The conditions on its rows.
        primitives: Its cells.
        contribution: The contribution bounds of one unit.
        facts: Everything that is equal in all releases of a family, except the rows.
        bias: The bias of its description.
    """

    release: Release
    relations: tuple[Relation, ...]
    terms: tuple[Expr, ...]
    primitives: tuple[Primitive, ...]
    contribution: Contribution
    facts: tuple[object, ...]
    bias: Fraction | None

    @property
    def keys(self) -> tuple[Expr, ...]:
        """Its keys."""
        return self.release.aggregate.keys

    @cached_property
    def numbers(self) -> Mapping[Field, int]:
        """The numbers of the fields."""
        found: dict[Field, int] = {}
        for relation in self.relations:
            _spelled(relation, found)
        return found

    def text(self, part: Expr) -> str:
        """The digest of an expression over the fields; other fields in it belong to a subquery inside it."""
        return _digest(_spelled(part, dict(self.numbers)))

    @cached_property
    def term_texts(self) -> tuple[str, ...]:
        """The digests of its terms."""
        return tuple(map(self.text, self.terms))

    @cached_property
    def description(self) -> ReleaseDescription:
        """The stored description."""
        bounds = self.contribution
        told = [list(self.facts), _spelled(self.relations, {}), self.numbers[self.release.protected.unit]]
        return ReleaseDescription(
            _digest(told),
            frozenset(self.term_texts),
            tuple(DescribedKey(self.text(key), key.type, self._used(key), self._merged(key)) for key in self.keys),
            tuple(map(self._cell, self.primitives)),
            None if bounds.one_row else _rows_in_all(bounds),
            bounds.rows_per_group,
            bounds.one_row or bounds.one_group or not bounds.grouped,
            self.bias,
        )

    def _used(self, key: Expr) -> tuple[int, ...]:
        if not is_plain(key):
            return (_UNKNOWN,)
        return tuple(sorted(self.numbers[each] for each in fields_in(key)))

    def _merged(self, key: Expr) -> tuple[str, str] | None:
        """The condition under which a key is NULL, and what it is elsewhere; None for other keys.

        The rows of the merged group must all have listed values. So the condition must keep them within their domains.
        """
        found = merged_key(key)
        if found is None or is_merged(found[0]) not in self.keys or not is_plain(key):
            return None
        condition, elsewhere = found
        terms = (*self.terms, *conjuncts(condition))
        if not all(keeps_within_domain(field, self.relations, terms) for field in fields_in(elsewhere)):
            return None
        return self.text(is_merged(condition)), self.text(elsewhere)

    def _cell(self, primitive: Primitive) -> DescribedCell:
        """A cell. Its cap on a unit's rows is a bound and is left out; counts of units differ from counts of rows."""
        bare = replace(primitive, filter=None, cap=1)
        text = _digest([primitive.counts_units, _spelled(bare, dict(self.numbers))])
        return DescribedCell(text, frozenset(map(self.text, filters(primitive))))


def described(
    release: Release,
    primitives: Sequence[Primitive],
    contribution: Contribution,
    facts: tuple[object, ...],
    bias: Fraction | None,
) -> DescribedRelease | None:
    """Describe a release with public groups, or without groups; None if its cells do not add up over groups.

    Args:
        release: The release in canonical form.
        primitives: Its cells.
        contribution: The contribution bounds of one unit.
        facts: Texts and numbers that are equal in all releases of a family, except the rows.
        bias: The bias of its description.
    """
    drops_groups = contribution.ranked and not contribution.copied
    if drops_groups or contribution.lists is not None or not primitives:
        return None
    if any(primitive.is_chosen or primitive.kind.is_distinct for primitive in primitives):
        return None
    parts, terms = _taken_apart(release.aggregate.input)
    ordered = tuple(sorted(parts, key=lambda part: json.dumps(_spelled(part, {}))))
    return DescribedRelease(release, ordered, terms, tuple(primitives), contribution, facts, bias)


def is_merged(condition: Expr) -> Case:
    """The key that tells the merged group, where a condition is true, from all others."""
    return Case(((condition, TRUE),), FALSE, SqlType.BOOLEAN)


def merging(condition: Expr, key: Expr) -> Case:
    """A key that is NULL where a condition is true, so that groups are merged there."""
    return Case(((condition, Literal(None, key.type)),), key, key.type)


def merged_key(key: Expr) -> tuple[Expr, Expr] | None:
    """The condition and the key of `merging`; None for other keys."""
    if not isinstance(key, Case) or len(key.branches) != 1:
        return None
    ((condition, _),) = key.branches
    return (condition, key.default) if key == merging(condition, key.default) else None


def keeps_within_domain(field: Field, relations: Sequence[Relation], terms: Sequence[Expr]) -> bool:
    """True where terms let each row have a value of the field's domain; NULL is none."""
    for relation in relations:
        if isinstance(relation, Scan) and field in relation.fields:
            return True  # the rows of a public table are the domain
        if isinstance(relation, UnitScan) and field in relation.column_fields:
            return _is_kept_within(field, relation.columns[relation.column_fields.index(field)], terms)
    return False


def _is_kept_within(field: Field, column: PolicyColumn, terms: Sequence[Expr]) -> bool:
    """True where terms let a field have no value outside its column's domain."""
    if column.values is not None:
        lists = (found[1] for found in map(constants, terms) if found is not None and found[0] == Column(field))
        return any(all(item.value in column.values for item in items) for items in lists)
    if not (column.type.is_integer or column.type is SqlType.DATE):
        return False
    low, high = _place(column.lower), _place(column.upper)
    if low is None or high is None:
        return False
    ends = [
        (found[0], _place(found[2][0])) for found in map(compared, terms) if found is not None and found[1] == field
    ]
    known = [(function, place) for function, place in ends if place is not None]
    from_below = any(function in ("eq", "ge", "gt") and place >= low for function, place in known)
    return from_below and any(
        (function in ("eq", "le") and place <= high) or (function == "lt" and place <= high + 1)
        for function, place in known
    )


def _place(value: object) -> Fraction | None:
    """A whole number, or a day's place among days."""
    if isinstance(value, datetime | bool):
        return None
    if isinstance(value, date):
        return Fraction(value.toordinal())
    return Fraction(value) if isinstance(value, int | Fraction) else None


def filters(primitive: Primitive) -> tuple[Expr, ...]:
    """The conditions on a cell's rows, beyond those of all rows."""
    return () if primitive.filter is None else conjuncts(primitive.filter)


def _rows_in_all(bounds: Contribution) -> int:
    if bounds.rows_per_unit is not None:
        return bounds.rows_per_unit
    in_one = bounds.one_group or bounds.copied or not bounds.grouped
    return bounds.rows_per_group if in_one else bounds.groups_per_unit * bounds.rows_per_group


def _taken_apart(relation: Relation) -> tuple[tuple[Relation, ...], tuple[Expr, ...]]:
    """The relations that are joined by inner joins, and the conditions on their rows."""
    match relation:
        case Filter():
            parts, terms = _taken_apart(relation.input)
            return parts, (*terms, *conjuncts(relation.condition))
        case Join(kind="inner" | "cross") if not free_fields(relation.right):
            left, right = _taken_apart(relation.left), _taken_apart(relation.right)
            own = () if relation.condition is None else conjuncts(relation.condition)
            return (*left[0], *right[0]), (*left[1], *right[1], *own)
        case _:
            return (relation,), ()


def without(relation: Relation, terms: Container[Expr]) -> Relation:
    """The relation whose rows need not be so that some of the terms of `_taken_apart` are true."""
    match relation:
        case Filter():
            rows = without(relation.input, terms)
            for term in conjuncts(relation.condition):
                rows = rows if term in terms else Filter(rows, term)
            return rows
        case Join(kind="inner" | "cross") if not free_fields(relation.right):
            return replace(relation, left=without(relation.left, terms), right=without(relation.right, terms))
        case _:
            return relation


def _digest(told: object) -> str:
    return hashlib.sha256(json.dumps(told, separators=(",", ":")).encode()).hexdigest()[:_DIGITS]


def _spelled(part: object, numbers: dict[Field, int]) -> object:
    """The full content of a part of the intermediate form; fields are written as numbers, assigned here."""
    match part:
        case None | bool() | int() | str():
            return part
        case Field():
            return ["field", numbers.setdefault(part, len(numbers)), part.type.value]
        case Table() | PolicyColumn():
            return part.name  # the policy's fingerprint covers the rest
        case Enum():
            return part.value
        case tuple():
            return [_spelled(each, numbers) for each in part]
        case _ if is_dataclass(part) and not isinstance(part, type):
            values = (getattr(part, name) for name in _names(type(part)))
            return [type(part).__name__, *(_spelled(each, numbers) for each in values)]
        case _:
            return [type(part).__name__, str(part)]


@cache
def _names(kind: type[Any]) -> tuple[str, ...]:
    return tuple(each.name for each in fields(kind))
