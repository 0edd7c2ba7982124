"""grouping: GROUP BY: keys by expression, place or alias, and the sets that ROLLUP, CUBE and GROUPING SETS make."""

from dataclasses import dataclass
from itertools import combinations, product

from sqlglot import exp

from dpsql.compiler.ir.nodes import Call, Expr, Field
from dpsql.compiler.ir.walk import fields_in, windows_in
from dpsql.compiler.relations.clauses import Clauses
from dpsql.compiler.relations.output import Item
from dpsql.compiler.scope.lowering import refuse_other_arguments
from dpsql.compiler.scope.resolve import Scope, identifier
from dpsql.errors import GroupingError, InvalidSyntax, QueryTooComplex, UnsupportedQuery

MAX_SETS = 64

Keys = tuple[Expr, ...]


@dataclass(frozen=True)
class Grouping:
    """What GROUP BY says.

    Attributes:
        keys: Every key, in the order in which they are written.
        sets: The keys of each grouping; one set, of all keys, where there is no ROLLUP and the like.
    """

    keys: Keys
    sets: tuple[Keys, ...]

    def mask(self, call: Call, chosen: Keys) -> int:
        """What GROUPING(…) is in one of the sets: a bit for each argument, set where it is not grouped by."""
        value = 0
        for argument in call.arguments:
            value = 2 * value + (argument not in chosen)
        return value


@dataclass(frozen=True)
class GroupBy:
    """Reads a GROUP BY; `outputs` are the SELECT list's expressions, which keys may name."""

    clauses: Clauses
    scope: Scope
    items: tuple[Item, ...]
    outputs: tuple[Expr, ...]

    def read(self, node: exp.Select) -> Grouping:
        """The keys and sets of a SELECT's GROUP BY.

        Raises:
            Error: A typed refusal.
        """
        clauses, group = self.clauses, node.args["group"]
        refuse_other_arguments(group, "expressions", offset=clauses.offset)
        if not group.expressions:
            raise InvalidSyntax(
                "GROUP BY must be followed by a list", hint="Name the group keys.", position=clauses.at(node)
            )
        alternatives = [self._alternatives(element) for element in group.expressions]
        count = 1
        for each in alternatives:
            count *= len(each)
            if count > MAX_SETS:
                raise QueryTooComplex(f"GROUP BY has more than {MAX_SETS} grouping sets", position=clauses.at(node))
        sets = tuple(tuple(dict.fromkeys(key for part in chosen for key in part)) for chosen in product(*alternatives))
        return Grouping(tuple(dict.fromkeys(key for chosen in sets for key in chosen)), sets)

    def _alternatives(self, node: exp.Expr) -> list[Keys]:
        """The groupings that one element of GROUP BY stands for."""
        if isinstance(node, exp.Rollup):
            parts = [self._keys(part) for part in node.expressions]
            return [_joined(parts[:count]) for count in range(len(parts), -1, -1)]
        if isinstance(node, exp.Cube):
            parts = [self._keys(part) for part in node.expressions]
            if len(parts) > MAX_SETS.bit_length():
                raise QueryTooComplex("CUBE has too many columns", position=self.clauses.at(node))
            sizes = range(len(parts), -1, -1)
            return [_joined(list(chosen)) for size in sizes for chosen in combinations(parts, size)]
        if isinstance(node, exp.GroupingSets):
            return [keys for part in node.expressions for keys in self._alternatives(part)]
        return [self._keys(node)]

    def _keys(self, node: exp.Expr) -> Keys:
        if isinstance(node, exp.Tuple):
            return _joined([self._keys(part) for part in node.expressions])
        if isinstance(node, exp.Paren):
            return self._keys(node.this)
        lowerer = self.clauses.expressions(self.scope, "in GROUP BY")
        ordinal = self.clauses.ordinal(node, len(self.items))
        index = ordinal if ordinal is not None else self._alias(node)
        if index is None:
            return (lowerer.value(node),)
        if not fields_in(self.outputs[index]) <= self._fields():
            raise GroupingError("aggregate functions are not allowed in GROUP BY", position=self.clauses.at(node))
        if windows_in(self.outputs[index]):
            raise UnsupportedQuery("window functions are not allowed in GROUP BY", position=self.clauses.at(node))
        return (self.outputs[index],)

    def _fields(self) -> frozenset[Field]:
        """The columns that may be named."""
        sources = [source for scope in (self.scope, *self.scope.around()) for source in scope.sources]
        return frozenset(field for source in sources for _, field in (*source.columns, *source.hidden))

    def _alias(self, node: exp.Expr) -> int | None:
        """The output a bare name means: in GROUP BY an input column of that name comes first."""
        if not isinstance(node, exp.Column) or node.args.get("table") is not None:
            return None
        name = identifier(node.this)
        if any(source.named(name, qualified=False) for source in self.scope.sources):
            return None
        found = [index for index, item in enumerate(self.items) if item.name == name]
        return found[0] if found else None


def _joined(parts: list[Keys]) -> Keys:
    return tuple(key for part in parts for key in part)
