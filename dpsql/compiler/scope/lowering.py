"""lowering: the context of lowering expressions, and the dispatch to the method of each kind of node.

Rule: every kind of node has a method or is refused by name. Every argument of a node is checked, so that no clause can
be dropped silently.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any

from sqlglot import exp

from dpsql.compiler.ir.functions import CALLS, example_calls
from dpsql.compiler.ir.nodes import AggregateCall, Expr, Field, Literal, Order, Protected, Relation, Status
from dpsql.compiler.ir.walk import Sizes
from dpsql.compiler.scope.coercion import Coercion
from dpsql.compiler.scope.resolve import FromItem, Scope, close_names
from dpsql.compiler.sql.literals import Parameters, number
from dpsql.compiler.sql.other_dialects import arguments_of, in_postgres, translated
from dpsql.compiler.sql.parse import position
from dpsql.compiler.sql.postgres_syntax import WRITTEN, print_sql
from dpsql.compiler.sql.rewriting import changed, in_having, of_groups, replaced
from dpsql.errors import (
    DatatypeMismatch,
    GroupingError,
    InvalidParameter,
    LimitExceeded,
    UndefinedFunction,
    UnsupportedQuery,
)
from dpsql.sqltypes import SqlType

MAX_PARAMETERS = 65535
"""As many as a message of the wire has."""
MAX_PARTS = 10_000
"""Parts of an expression, for stages after this one, and engines, go through all of them."""
_NUMBER = re.compile("[1-9][0-9]{0,11}")
_IN_AN_AGGREGATE = "in an aggregate"
"""The clause of an aggregate's arguments."""


@dataclass
class Fields:
    """Creates fields, each with a unique number within the query."""

    count: int = 0

    def new(self, sql_type: SqlType) -> Field:
        """Return a new field."""
        self.count += 1
        return Field(self.count, sql_type)


@dataclass(frozen=True)
class Constants:
    """The values of functions without arguments, fixed while a query is compiled.

    Attributes:
        clock: The time, with its zone.
        user: CURRENT_USER.
        database: CURRENT_DATABASE.
        version: VERSION().
        schemas: The search path; "public" is the dataset's own schema.
        asked: Contains "now" if the query uses the time; a query that does not is the same at any other time.
    """

    clock: datetime
    user: str
    database: str
    version: str
    schemas: tuple[str, ...] = ("public",)
    asked: set[str] = field(default_factory=set, compare=False)

    @property
    def now(self) -> datetime:
        """Return the value of NOW(), and note that the query uses it."""
        self.asked.add("now")
        return self.clock


@dataclass
class Aggregates:
    """The aggregate calls of one SELECT, each once."""

    fields: Fields
    calls: dict[AggregateCall, Field] = field(default_factory=dict)

    def field_of(self, call: AggregateCall) -> Field:
        """The field that holds the call's value."""
        if call not in self.calls:
            self.calls[call] = self.fields.new(call.type)
        return self.calls[call]


def placeholder(node: exp.Expr) -> int | None:
    """Return the 0-based index of a parameter: 0 for $1; None for a dollar sign without a number."""
    named = node.this if isinstance(node, exp.Parameter) else None
    if not isinstance(named, exp.Literal) or named.is_string or not _NUMBER.fullmatch(str(named.this)):
        return None
    return int(str(named.this)) - 1


def called(node: exp.Anonymous | exp.Func) -> str:
    """The name of a function, as the analyst wrote it."""
    name = str(node.this) if isinstance(node, exp.Anonymous) else str(node.meta.get(WRITTEN, node.sql_name()))
    return name[:63].lower()


_CONSTRUCTS: dict[type[exp.Expr], str] = {
    exp.Array: "an array",
    exp.Collate: "COLLATE",
    exp.Distinct: "DISTINCT in a function",
    exp.Dot: "a function with a schema",
    exp.Filter: "FILTER",
    exp.IgnoreNulls: "IGNORE NULLS",
    exp.Interval: "an interval of this form",
    exp.Kwarg: "a named argument",
    exp.JSONBPathExists: "operator @?",
    exp.Lambda: "a lambda",
    exp.MatchAgainst: "operator @@",
    exp.PropertyEQ: "operator :=",
    exp.RespectNulls: "RESPECT NULLS",
    exp.Slice: "an array slice",
    exp.Star: "* in a function",
    exp.Struct: "a struct",
    exp.Tuple: "a row constructor",
    exp.Unnest: "UNNEST",
}
"""What PostgreSQL calls the parts of a query that are not supported."""
_CLAUSES = {"sample": "TABLESAMPLE", "locks": "FOR UPDATE", "except_": "EXCLUDE"}
"""What a clause is called where the parser has another name for it."""


def refuse_other_arguments(node: exp.Expr, *known: str, offset: int = 0) -> None:
    """Refuse a node that carries anything but the arguments named.

    Raises:
        UnsupportedQuery: Some other argument is there.
    """
    for name, value in node.args.items():
        if name not in known and value not in (None, False, []):
            word = _CLAUSES.get(name, name.rstrip("_").replace("_", " ").upper())
            raise UnsupportedQuery(
                f"{word} is not supported here",
                hint=f"Leave {word} out.",
                position=position(node, offset),
                queries=changed(node, lambda copy, name=name: copy.set(name, None)),  # type: ignore[misc]
            )


@dataclass(frozen=True)
class Lowered:
    """A relation with its privacy status and its column names.

    Attributes:
        status: The relation.
        columns: Names and fields, in order; a name may repeat.
        hidden: Names and fields of keys that lead to the unit: names find them, but `*` omits them.
        unlisted: The fields, of `columns` and `hidden`, that the policy does not list as columns.
        limited: Places of the columns that are followed by the limits of their 95 % interval.
        invented: Whether the rows are invented from the policy's bounds and domains.
        withheld: Whether the query selects rows of protected tables, for which only the columns are shown.
        schemas: The schema names that may qualify a table under its own name; empty for other relations.
    """

    status: Status
    columns: tuple[tuple[str, Field], ...]
    hidden: tuple[tuple[str, Field], ...] = ()
    unlisted: frozenset[Field] = frozenset()
    limited: tuple[int, ...] = ()
    invented: bool = False
    withheld: bool = False
    schemas: frozenset[str] = frozenset()

    def source(self, alias: str) -> FromItem:
        """Return the relation as an entry of FROM."""
        return FromItem(alias, self.columns, self.hidden, self.unlisted, schemas=self.schemas)

    @property
    def relation(self) -> Relation:
        """The rows."""
        return self.status.relation


def moved(status: Protected, relation: Relation, renewed: Mapping[Field, Field]) -> Protected:
    """The status of a relation that hands the same rows on under new fields, as far as it hands them on."""
    handed_on = renewed.keys() | ({status.linked} if status.linked is not None else set())
    links = frozenset(
        replace(link, fields=tuple(renewed.get(field, field) for field in link.fields))
        for link in status.links
        if all(field in handed_on for field in link.fields)
    )
    absent = status.absent
    if absent is not None:
        absent = frozenset(renewed[field] for field in absent if field in renewed)
    return replace(status, relation=relation, unit=renewed.get(status.unit, status.unit), links=links, absent=absent)


Subquery = Callable[[exp.Expr, Scope], Lowered]
"""Lowers a query that stands in an expression of a scope."""

Method = Callable[["Lowering", Any], Expr]
"""Lowers the kind of node it is listed under."""


@dataclass(frozen=True)
class Lowering:
    """Lowers the expressions of one clause.

    Attributes:
        scope: The meaning of names.
        coercion: Implicit conversions, which also infer types of parameters.
        constants: The values of now(), CURRENT_USER and the like.
        fields: The source of fields.
        subquery: Lowers a query inside an expression.
        methods: How each kind of node is lowered.
        aggregates: Collects aggregate calls; None if they are not allowed.
        windows: True if window functions are allowed.
        named: The windows of the WINDOW clause.
        clause: The clause of the expressions, for messages.
        sizes: The sizes of expressions when they are written out.
    """

    scope: Scope
    coercion: Coercion
    constants: Constants
    fields: Fields
    subquery: Subquery
    methods: Mapping[type[exp.Expr], Method]
    aggregates: Aggregates | None = None
    windows: bool = False
    named: Mapping[str, exp.Window] = field(default_factory=dict)
    clause: str = "here"
    sizes: Sizes = field(default_factory=Sizes)

    def only(self, node: exp.Expr, *known: str) -> None:
        """Refuse a node that carries anything but the arguments named."""
        refuse_other_arguments(node, *known, offset=self.scope.offset)

    def collected(self, node: exp.Expr) -> Aggregates:
        """Return the aggregates of this clause.

        Raises:
            GroupingError: Aggregates are not allowed here.
        """
        if self.aggregates is None and self.clause == _IN_AN_AGGREGATE:
            raise GroupingError(
                "aggregate function calls cannot be nested",
                hint="Aggregate the groups of a subquery.",
                position=self.at(node),
                queries=of_groups(node),
            )
        if self.aggregates is None:
            moved = in_having(node)
            raise GroupingError(
                f"aggregate functions are not allowed {self.clause}",
                hint="HAVING has the conditions on aggregates." if moved else None,
                position=self.at(node),
                queries=moved,
            )
        return self.aggregates

    def inside_aggregate(self) -> "Lowering":
        """Return a lowering for the arguments of an aggregate, in which aggregates and windows are not allowed."""
        return replace(self, aggregates=None, windows=False, clause=_IN_AN_AGGREGATE)

    @property
    def parameters(self) -> Parameters:
        """The query's placeholders."""
        return self.coercion.parameters

    def lower(self, node: exp.Expr) -> Expr:
        """Lower one expression.

        Raises:
            Error: The expression is refused; the error has its position.
        """
        method = self.methods.get(type(node))
        if method is None:
            raise self.refusal(node)
        lowered = method(self, node)
        if self.sizes.of(lowered) > MAX_PARTS:
            raise LimitExceeded(
                f"the expression has more than {MAX_PARTS:,} parts after expansion",
                hint="Simplify the arguments of BETWEEN SYMMETRIC, OVERLAY and similar functions: they are repeated.",
                position=self.at(node),
            )
        return lowered

    def condition(self, node: exp.Expr) -> Expr:
        """Lower an expression that must be boolean."""
        lowered = self.lower(node)
        if lowered.type is not SqlType.BOOLEAN:
            try:
                return self.coercion.to(lowered, SqlType.BOOLEAN, self.at(node))
            except DatatypeMismatch as error:
                error.hint = "Use a comparison."
                error.queries = replaced(node, "{} > 0", "{} IS NOT NULL")
                raise
        return lowered

    def value(self, node: exp.Expr) -> Expr:
        """Lower an expression that is shown or grouped: a quoted constant is text."""
        lowered = self.lower(node)
        if lowered.type is SqlType.UNKNOWN:
            return self.coercion.to(lowered, SqlType.TEXT, self.at(node))
        return lowered

    def at(self, node: exp.Expr) -> int | None:
        """The position of a node in the analyst's text."""
        return position(node, self.scope.offset)

    def refusal(self, node: exp.Expr) -> Exception:
        """The error for a node that no method lowers."""
        is_operator = isinstance(node, exp.Binary) and WRITTEN not in node.meta
        if isinstance(node, exp.Anonymous | exp.Func) and type(node) not in _CONSTRUCTS and not is_operator:
            name = called(node)
            form = in_postgres(node)
            # The parser knows an aggregate by its whole name, so it is not misspelt.
            close = () if isinstance(node, exp.AggFunc) or form else close_names(name, CALLS, 0.8)
            given = [print_sql(argument) for argument in arguments_of(node)]
            calls = dict.fromkeys(call for each in close for call in example_calls(CALLS[each], given))
            return UndefinedFunction(
                f"function {name} does not exist or is not supported",
                hint="Use another function, or leave it out." if form is None else f"PostgreSQL has {form} instead.",
                position=self.at(node),
                queries=translated(node) if form else replaced(node, *calls),
            )
        what = _CONSTRUCTS.get(type(node), "this operator" if is_operator else node.key.upper())
        return UnsupportedQuery(f"{what} is not supported", position=self.at(node))

    def number(self, node: exp.Expr) -> Expr:
        """Lower an expression that must be a number."""
        lowered = self.lower(node)
        if lowered.type is SqlType.UNKNOWN:
            lowered = self.coercion.to(lowered, SqlType.DOUBLE, self.at(node))
        if not lowered.type.is_number:
            raise DatatypeMismatch(f"this must be a number, not type {lowered.type.value}", position=self.at(node))
        return lowered

    def double(self, node: exp.Expr) -> Expr:
        """Lower a number, in double precision."""
        return self.coercion.to(self.number(node), SqlType.DOUBLE, self.at(node))

    def text(self, node: exp.Expr) -> Expr:
        """Lower an expression that must be text."""
        lowered = self.lower(node)
        if lowered.type.is_text:
            return lowered
        try:
            return self.coercion.to(lowered, SqlType.TEXT, self.at(node))
        except DatatypeMismatch as error:
            error.queries = replaced(node, "CAST({} AS text)")
            raise

    def need_comparable(self, sql_type: SqlType, node: exp.Expr) -> None:
        """Refuse values of a type without an order."""
        if sql_type.is_array or sql_type.is_json or sql_type in (SqlType.BYTEA, SqlType.INTERVAL):
            raise DatatypeMismatch(f"values of type {sql_type.value} cannot be compared", position=self.at(node))

    def whole(self, node: exp.Expr, what: str, low: int, high: int) -> Literal:
        """A constant integer between `low` and `high`."""
        lowered = self.coercion.to(self.lower(node), SqlType.INTEGER, self.at(node))
        if not isinstance(lowered, Literal):
            raise UnsupportedQuery(f"this argument of {what} must be a constant", position=self.at(node))
        value = lowered.value
        if value is not None and (not isinstance(value, int) or not low <= value <= high):
            raise InvalidParameter(f"{what} takes an integer from {low} to {high} here", position=self.at(node))
        return lowered

    def order(self, node: exp.Expr) -> Order:
        """Lower one ORDER BY term."""
        self.only(node, "this", "desc", "nulls_first")
        return Order(self.value(node.this), bool(node.args.get("desc")), bool(node.args.get("nulls_first")))


def _column(lowering: Lowering, node: exp.Column) -> Expr:
    if isinstance(node.this, exp.Star):
        raise UnsupportedQuery("* is not allowed in an expression", position=lowering.at(node))
    lowering.only(node, "this", "table", "db")
    return lowering.scope.column(node)


def _literal(lowering: Lowering, node: exp.Literal) -> Expr:
    if node.is_string:
        return Literal(str(node.this), SqlType.UNKNOWN)
    return number(str(node.this), lowering.at(node))


def _raw_string(lowering: Lowering, node: exp.RawString | exp.Heredoc | exp.ByteString) -> Expr:
    return Literal(str(node.this), SqlType.UNKNOWN)


def _boolean(lowering: Lowering, node: exp.Boolean) -> Expr:
    return Literal(bool(node.this), SqlType.BOOLEAN)


def _null(lowering: Lowering, _node: exp.Null) -> Expr:
    return Literal(None, SqlType.UNKNOWN)


def _parameter(lowering: Lowering, node: exp.Parameter) -> Expr:
    index = placeholder(node)
    if index is None or (index >= MAX_PARAMETERS and not lowering.parameters.is_element(index)):
        raise UnsupportedQuery("placeholders must be written $1, $2, …", position=lowering.at(node))
    return lowering.parameters.literal(index, lowering.at(node))


def _placeholder(lowering: Lowering, node: exp.Placeholder) -> Expr:
    raise UnsupportedQuery("placeholders must be written $1, $2, …", position=lowering.at(node))


def _now(lowering: Lowering, node: exp.Expr) -> Expr:
    lowering.only(node)
    return Literal(lowering.constants.now, SqlType.TIMESTAMPTZ)


def _today(lowering: Lowering, _node: exp.Expr) -> Expr:
    return Literal(lowering.constants.now.date(), SqlType.DATE)


def _localtimestamp(lowering: Lowering, _node: exp.Expr) -> Expr:
    return Literal(lowering.constants.now.replace(tzinfo=None), SqlType.TIMESTAMP)


def _session_word(lowering: Lowering, node: exp.Expr) -> Expr:
    words: dict[type[exp.Expr], str] = {
        exp.CurrentUser: lowering.constants.user,
        exp.SessionUser: lowering.constants.user,
        exp.CurrentDatabase: lowering.constants.database,
        exp.CurrentCatalog: lowering.constants.database,
        exp.CurrentSchema: "public",
        exp.CurrentVersion: lowering.constants.version,
    }
    lowering.only(node)
    return Literal(words[type(node)], SqlType.TEXT)


NAME_METHODS: dict[type[exp.Expr], Method] = {
    exp.Column: _column,
    exp.Literal: _literal,
    exp.RawString: _raw_string,
    exp.ByteString: _raw_string,
    exp.Heredoc: _raw_string,
    exp.Boolean: _boolean,
    exp.Null: _null,
    exp.Parameter: _parameter,
    exp.Placeholder: _placeholder,
    exp.CurrentTimestamp: _now,
    exp.CurrentDate: _today,
    exp.Localtimestamp: _localtimestamp,
    exp.CurrentUser: _session_word,
    exp.SessionUser: _session_word,
    exp.CurrentDatabase: _session_word,
    exp.CurrentCatalog: _session_word,
    exp.CurrentSchema: _session_word,
    exp.CurrentVersion: _session_word,
}
