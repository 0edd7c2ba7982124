"""labels: texts by which expressions and relations are put in order, whatever fields are numbered and aliases called.

Rule: a label decides about order and nothing else. Two things of one label stay as they are written: what is keyed is
what is run, so that costs a repetition and nothing more.
"""

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass, field

from dpsql.compiler.ir.nodes import (
    Aggregate,
    AggregateCall,
    Call,
    Case,
    Cast,
    Column,
    Distinct,
    Exists,
    Expr,
    Field,
    Filter,
    InList,
    InRelation,
    Join,
    Literal,
    Order,
    Project,
    Relation,
    Release,
    Scalar,
    Scan,
    Series,
    SetOperation,
    Sort,
    UnitScan,
    UnitWindows,
    Values,
    Window,
)

MAX_LABEL = 80
"""Characters of a field's label; what is longer is told by its digest."""


@dataclass
class Labels:
    """The label of each field, by where its values come from."""

    fields: dict[Field, str] = field(default_factory=dict)

    def give(self, new: Field, label: str) -> None:
        """Give a field its label."""
        is_long = len(label) > MAX_LABEL
        self.fields[new] = hashlib.blake2b(label.encode(), digest_size=16).hexdigest() if is_long else label

    def mark(self, fields: Iterable[Field], mark: str) -> None:
        """Tell fields of one label apart from those of another relation."""
        for each in fields:
            self.give(each, f"{self.fields[each]}#{mark}")

    def marked(self, marks: Iterable[tuple[Field, str]]) -> "Labels":
        """The same labels, with marks behind those of some fields."""
        changed = Labels(dict(self.fields))
        for each, mark in marks:
            changed.give(each, f"{self.fields[each]}#{mark}")
        return changed

    # Expressions

    def of(self, expression: Expr) -> str:
        """The label of an expression."""
        match expression:
            case Column():
                return self.fields[expression.field]
            case Literal():
                return f"{expression.value!r}::{expression.type.value}"
            case Call():
                return f"{expression.function}({self._each(expression.arguments)})"
            case Cast():
                return f"cast({self.of(expression.argument)}, {expression.type.value}, {expression.scale})"
            case Case():
                branches = (part for branch in expression.branches for part in branch)
                return f"case({self._each(branches)}, {self.of(expression.default)})"
            case InList():
                return f"in({self.of(expression.argument)}, {self._each(expression.items)})"
            case Exists():
                return f"exists({self.of_rows(expression.relation)})"
            case InRelation():
                return f"in({self.of(expression.argument)}, {self.of_rows(expression.relation)})"
            case Scalar():
                return f"scalar({self.of_rows(expression.relation)})"
            case _:
                return self._window(expression)

    def of_call(self, call: AggregateCall) -> str:
        """The label of an aggregate call."""
        parts = ("*" if part is None else self.of(part) for part in (call.argument, call.other, call.filter))
        numbers = " ".join(map(str, call.fractions))
        return f"{call.function}({call.distinct}, {', '.join(parts)}, {call.grid}, {numbers}, {call.type})"

    def _each(self, expressions: Iterable[Expr]) -> str:
        return ", ".join(map(self.of, expressions))

    def _ordered(self, terms: Iterable[Order]) -> str:
        return ", ".join(f"{self.of(term.expression)} {term.descending} {term.nulls_first}" for term in terms)

    def _window(self, window: Window) -> str:
        parts = (self._each(window.arguments), self._each(window.partition), self._ordered(window.order))
        return f"{window.function}({'; '.join(parts)}; {window.frame}; {window.grid})"

    # Relations

    def of_rows(self, relation: Relation) -> str:
        """The label of a relation."""
        match relation:
            case Scan() | UnitScan():
                return relation.table.name
            case Values():
                return f"values({'; '.join(map(self._each, relation.rows))})"
            case Series():
                return f"series({relation.start}, {relation.stop}, {relation.unit})"
            case Filter():
                return f"filter({self.of_rows(relation.input)}, {self.of(relation.condition)})"
            case Project():
                return f"project({self.of_rows(relation.input)}, {self._each(relation.expressions)})"
            case Aggregate():
                calls = ", ".join(map(self.of_call, relation.aggregates))
                return f"aggregate({self.of_rows(relation.input)}, {self._each(relation.keys)}, {calls})"
            case Release():
                picks, keys = relation.picks, relation.aggregate.key_fields
                lists = [place for place, key in enumerate(keys) if picks is not None and key in picks.within]
                picked = "" if picks is None else f", {picks.count} {picks.least} {lists}"
                return f"release({self.of_rows(relation.aggregate)}{picked})"
            case UnitWindows():
                return f"windows({self.of_rows(relation.input)}, {self._each(relation.windows)})"
            case Join():
                on = "" if relation.condition is None else self.of(relation.condition)
                return f"{relation.kind}({self.of_rows(relation.left)}, {self.of_rows(relation.right)}, {on})"
            case Distinct():
                return f"distinct({self.of_rows(relation.input)})"
            case SetOperation():
                sides = f"{self.of_rows(relation.left)}, {self.of_rows(relation.right)}"
                return f"{relation.kind}({relation.all}, {sides})"
            case Sort():
                cut = f"{self._ordered(relation.order)}, {relation.limit}, {relation.offset}"
                return f"sort({self.of_rows(relation.input)}, {cut})"
            case _:
                return relation.name
