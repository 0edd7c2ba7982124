"""render: relations and expressions into an engine's SQL; text is made from the closed form, never spliced.

Rule 1: a column is named by the order in which it is rendered, so equal relations give equal text.
Rule 2: values leave a table canonical for their type: finite numbers, years 1 to 9999, binary collation.
Rule 3: only the columns that are needed are rendered.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction

from dpsql.compiler.dialects.dialect import Dialect
from dpsql.compiler.ir.functions import COLLECTED, MAX_SCANNED, PAIRS, SPREADS, beginning
from dpsql.compiler.ir.intervals import constant
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
    Frame,
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
    SystemScan,
    UnitScan,
    UnitWindows,
    Unnest,
    Values,
    Window,
)
from dpsql.compiler.ir.schema import EngineColumn, EngineSchema, InputTable, PreparedSource
from dpsql.compiler.ir.walk import fields_in, free_fields, in_double, relations_in
from dpsql.errors import LimitExceeded
from dpsql.policy import Policy, PolicyColumn, Table, UnitVia
from dpsql.sqltypes import Span, SqlType

MAX_SQL = 1_000_000
"""Characters of generated SQL; guards repeat what they guard, so text may outgrow the query."""
MAX_CALLS = 8_000
"""Functions and operators in one statement, for engines plan a text in more time than it is long."""


class CopiedText(str):
    """SQL that reads a key or a cell of a release and at most adds a number: rows can be made of it without an engine.

    Attributes:
        place: Of the key among the keys, or of the cell among the cells.
        is_key: Whether it is a key.
        added: What is added to the cell, in double precision; None where it is shown as it is.
    """

    place: int
    is_key: bool
    added: float | None

    @classmethod
    def of_key(cls, text: str, place: int) -> "CopiedText":
        """A key, by the SQL that reads it."""
        return cls._of(text, place, True, None)

    @classmethod
    def of_cell(cls, place: int, added: float | None = None) -> "CopiedText":
        """A cell."""
        shifted = f"CAST(p{place} AS DOUBLE) + CAST('{added!r}' AS DOUBLE)"
        return cls._of(f"p{place}" if added is None else shifted, place, False, added)

    @classmethod
    def _of(cls, text: str, place: int, is_key: bool, added: float | None) -> "CopiedText":
        made = cls(text)
        made.place, made.is_key, made.added = place, is_key, added
        return made


@dataclass(frozen=True)
class Leaf:
    """A relation that is handed to the engine ready made.

    Attributes:
        table: What it is read from: in post-processing, SQL of a table.
        columns: SQL for each of its fields.
    """

    table: InputTable | PreparedSource | str
    columns: tuple[str, ...]


class Renderer:
    """Renders one query.

    Attributes:
        dialect: The SQL it is rendered in.
    """

    def __init__(
        self,
        dialect: Dialect,
        schema: EngineSchema,
        policy: Policy,
        leaves: Mapping[Relation, Leaf] | None = None,
        *,
        shows_rows: bool = False,
    ) -> None:
        """Begin a query.

        Args:
            dialect: The SQL it is rendered in.
            schema: The tables.
            policy: What they are to the query.
            leaves: The relations that are there ready made.
            shows_rows: Whether rows of public tables are shown, and so whole.
        """
        self._shows_rows = shows_rows
        self.dialect = dialect.where_shown() if shows_rows else dialect
        self._schema = schema
        self._policy = policy
        self._leaves = leaves or {}
        self._names: dict[Field, str] = {}
        self._calls = 0

    def name(self, field: Field) -> str:
        """The column name of a field, given at its first use."""
        return self._names.setdefault(field, f"c{len(self._names)}")

    # Expressions

    def expression(self, expression: Expr) -> str:
        """SQL that is total: NaN, infinite and far values have become NULL."""
        text = self._raw(expression)
        if len(text) > MAX_SQL:
            raise LimitExceeded("the query's expressions are too large")
        return self.dialect.guarded(text, expression.type) if self.dialect.is_raw(expression) else text

    def _raw(self, expression: Expr) -> str:
        match expression:
            case Column():
                return self.name(expression.field)
            case Literal():
                return self.dialect.constant(expression.value, expression.type)
            case Call():
                return self._call(expression)
            case Cast():
                inner = self.expression(expression.argument)
                return self.dialect.cast(inner, expression.argument.type, expression.type, expression.scale)
            case Case():
                branches = " ".join(
                    f"WHEN {self.expression(condition)} THEN {self.expression(value)}"
                    for condition, value in expression.branches
                )
                return f"CASE {branches} ELSE {self.expression(expression.default)} END"
            case InList():
                items = ", ".join(self.expression(item) for item in expression.items)
                return f"({self.expression(expression.argument)} IN ({items}))"
            case Exists():
                self.dialect.check_subquery(expression)
                return f"EXISTS ({self.relation(self._beneath_projections(expression.relation), frozenset())})"
            case InRelation():
                self.dialect.check_subquery(expression)
                rows = self.relation(expression.relation, frozenset(expression.relation.fields))
                return f"({self.expression(expression.argument)} IN ({rows}))"
            case Scalar():
                self.dialect.check_subquery(expression)
                return f"({self.relation(expression.relation, frozenset(expression.relation.fields))})"
            case _:
                return self._window(expression, ())

    def _beneath_projections(self, relation: Relation) -> Relation:
        """Return the relation beneath projections; PostgreSQL can plan its condition as a join."""
        while isinstance(relation, Project) and relation not in self._leaves:
            relation = relation.input
        return relation

    def _call(self, call: Call) -> str:
        self._calls += 1
        if self._calls > MAX_CALLS:
            raise LimitExceeded(
                f"the query has more than {MAX_CALLS:,} functions and operators after expansion",
                hint="Split it into several queries. TO_CHAR counts once for each pattern of its format.",
            )
        call = self.dialect.adapted(call)
        spelling = self.dialect.spelling(call)
        render = self._raw if spelling.passes_raw else self.expression
        arguments = [render(argument) for argument in call.arguments]
        # The names are the same everywhere: arguments contain none of them free, and equal calls become equal texts.
        names = {place: f"t{place}" for place in sorted(self.dialect.named_arguments(call))}
        if not names:
            return spelling.sql(arguments)
        given = [f"{arguments[place]} AS {name}" for place, name in names.items()]
        text = spelling.sql([names.get(place, argument) for place, argument in enumerate(arguments)])
        return self.dialect.with_names(text, given)

    def _window(self, window: Window, ties: tuple[Field, ...]) -> str:
        """A window function; `ties` are the fields that decide what its own order leaves open."""
        self.dialect.check_call(window)
        arguments = [self.expression(argument) for argument in window.arguments]
        parts = []
        if window.partition:
            parts.append("PARTITION BY " + ", ".join(self.expression(part) for part in window.partition))
        by_place = window.function in _BY_PLACE or (window.frame is not None and window.frame.mode == "ROWS")
        order = [self.order(window.order)] if window.order else []
        order += [self._decisive(field) for field in ties] if by_place else []
        if order:
            parts.append("ORDER BY " + ", ".join(order))
        if window.frame is not None:
            parts.append(self._frame(window.frame))
        over = f" OVER ({' '.join(parts)})"
        if window.function == "count_rows":
            return f"count(*){over}"
        if window.function in PAIRS:
            return self.dialect.pairs(window.function, arguments[0], arguments[1], over)
        if window.function in COLLECTED:
            return self.dialect.collected(window.function, ", ".join(arguments), over)
        if window.function not in _AGGREGATES:
            return f"{window.function}({', '.join(arguments)}){over}"
        return self._aggregated(window, window.arguments[0], over)

    def _frame(self, frame: Frame) -> str:
        return f"{frame.mode} BETWEEN {self._end(frame.start, 'PRECEDING')} AND {self._end(frame.end, 'FOLLOWING')}"

    def _end(self, offset: int | Decimal | Span | None, unbounded: str) -> str:
        if offset is None:
            return f"UNBOUNDED {unbounded}"
        if offset == 0:
            return "CURRENT ROW"
        if isinstance(offset, int | Decimal):
            return f"{abs(offset):f} {'PRECEDING' if offset < 0 else 'FOLLOWING'}"
        parts = (offset.months, offset.days, offset.microseconds)
        size = self.dialect.constant(constant(Span(*map(abs, parts))), SqlType.INTERVAL)
        return f"{size} {'PRECEDING' if min(parts) < 0 else unbounded if not any(parts) else 'FOLLOWING'}"

    def _aggregated(self, call: AggregateCall | Window, argument: Expr, behind: str) -> str:
        """An aggregate, of grid values where it must be exact; of texts, it is one that is held, and so bounded."""
        is_held = argument.type.is_text and call.function in ("min", "max")
        argument = in_double(argument) if call.grid is not None else argument
        text = self.expression(beginning(argument, MAX_SCANNED) if is_held else argument)
        if call.grid is not None:
            text = self.dialect.on_grid(text, argument.type, call.grid)
        if call.function in SPREADS or call.function == "percentile_cont":
            text = f"CAST({text} AS {self.dialect.types[SqlType.DOUBLE]})"
        if isinstance(call, AggregateCall) and call.distinct:
            text = f"DISTINCT {text}"
        if isinstance(call, AggregateCall) and call.function in COLLECTED:
            between = [self.expression(call.other)] if call.other is not None else []
            order = f" ORDER BY {self.order(call.order)}" if call.order else ""
            return self.dialect.collected(call.function, f"{', '.join([text, *between])}{order}", behind)
        if isinstance(call, AggregateCall) and call.fractions:
            fractions = ", ".join(self.dialect.double(Fraction(each)) for each in call.fractions)
            if call.type.is_array:
                return self.dialect.array(f"{call.function}(ARRAY[{fractions}]) WITHIN GROUP (ORDER BY {text}){behind}")
            return f"{call.function}({fractions}) WITHIN GROUP (ORDER BY {text}){behind}"
        if call.function == "mode":
            return f"mode() WITHIN GROUP (ORDER BY {text}){behind}"
        if isinstance(call, AggregateCall) and call.other is not None:
            return self.dialect.pairs(call.function, text, self.expression(call.other), behind)
        return self.dialect.aggregate(call, text, behind)

    def _decisive(self, field: Field) -> str:
        """The text that distinguishes values of a field: a month and 30 days are equal, but not the same."""
        name = self.name(field)
        return self.dialect.as_text(name, field.type) if field.type is SqlType.INTERVAL else name

    def order(self, terms: tuple[Order, ...]) -> str:
        """ORDER BY terms with their directions written out."""
        return ", ".join(
            f"{self.expression(term.expression)} {'DESC' if term.descending else 'ASC'} "
            f"NULLS {'FIRST' if term.nulls_first else 'LAST'}"
            for term in terms
        )

    # Relations

    def relation(self, relation: Relation, needed: frozenset[Field]) -> str:
        """A SELECT that gives the needed fields of a relation, and at least one column."""
        text = self._relation(relation, needed)
        if len(text) > MAX_SQL:
            raise LimitExceeded("the query is too large")
        return text

    def _relation(self, relation: Relation, needed: frozenset[Field]) -> str:
        if self._leaves and relation in self._leaves:
            leaf = self._leaves[relation]
            pairs = zip(leaf.columns, relation.fields, strict=True)
            items = [f"{text} AS {self.name(field)}" for text, field in pairs if field in needed]
            return f"SELECT {', '.join(items) or '1 AS one'} FROM {self._made(leaf.table)}"
        if isinstance(relation, Release | SystemScan):
            raise TypeError("a leaf must be given to the renderer by name")
        match relation:
            case Scan():
                return self._scan(relation, needed)
            case UnitScan():
                return self._unit_scan(relation, needed)
            case Values():
                return self._values(relation)
            case Series():
                return self._series(relation)
            case Unnest():
                elements = self.dialect.elements(list(map(self.expression, relation.arrays)), relation.numbered)
                columns = [f"e{place}" for place, _ in enumerate(relation.arrays)] + ["n"] * relation.numbered
                pairs = zip(columns, relation.fields, strict=True)
                return f"SELECT {', '.join(f'{each} AS {self.name(field)}' for each, field in pairs)} FROM {elements}"
            case Filter():
                inner = self.relation(relation.input, needed | fields_in(relation.condition))
                kept = self._columns(_kept(relation, needed))
                return f"SELECT {kept} FROM {self.dialect.derived(inner)} WHERE {self.expression(relation.condition)}"
            case Project():
                return self._project(relation, needed)
            case Aggregate():
                return self._aggregate(relation, needed)
            case UnitWindows():
                return self._unit_windows(relation, needed)
            case Join():
                return self._join(relation, needed)
            case Distinct():
                inner = self.relation(relation.input, frozenset(relation.fields))
                return f"SELECT DISTINCT {self._columns(relation.fields)} FROM {self.dialect.derived(inner)}"
            case SetOperation():
                return self._set_operation(relation)
            case _:
                return self._sort(relation, needed)

    def _made(self, table: InputTable | PreparedSource | str) -> str:
        if isinstance(table, InputTable):
            return self.dialect.input_table(table)
        return self.dialect.quote_path(table.path) if isinstance(table, PreparedSource) else table

    def _columns(self, fields: tuple[Field, ...]) -> str:
        return ", ".join(self.name(field) for field in fields) or "1 AS one"

    def _as(self, expression: Expr, field: Field) -> str:
        return f"{self.expression(expression)} AS {self.name(field)}"

    def _project(self, relation: Project, needed: frozenset[Field]) -> str:
        pairs = [
            (field, expression)
            for field, expression in zip(relation.fields, relation.expressions, strict=True)
            if field in needed
        ]
        used = frozenset[Field]().union(*(fields_in(expression) for _, expression in pairs))
        inner = self.relation(relation.input, used)
        items = ", ".join(self._as(expression, field) for field, expression in pairs) or "1 AS one"
        return f"SELECT {items} FROM {self.dialect.derived(inner)}"

    def _aggregate(self, relation: Aggregate, needed: frozenset[Field]) -> str:
        calls = [
            (field, call)
            for field, call in zip(relation.aggregate_fields, relation.aggregates, strict=True)
            if field in needed
        ]
        used = frozenset[Field]().union(
            *(fields_in(key) for key in relation.keys),
            *(fields_in(part) for _, call in calls for part in call.operands),
        )
        inner = self.relation(relation.input, used)
        keys = [self._as(key, field) for key, field in zip(relation.keys, relation.key_fields, strict=True)]
        items = keys + [f"{self._aggregate_call(call)} AS {self.name(field)}" for field, call in calls]
        places = ", ".join(str(place) for place in range(1, len(relation.keys) + 1))
        grouping = f" GROUP BY {places}" if places else ""
        return f"SELECT {', '.join(items) or 'count(*) AS one'} FROM {self.dialect.derived(inner)}{grouping}"

    def _aggregate_call(self, call: AggregateCall) -> str:
        self.dialect.check_call(call)
        behind = f" FILTER (WHERE {self.expression(call.filter)})" if call.filter is not None else ""
        return f"count(*){behind}" if call.argument is None else self._aggregated(call, call.argument, behind)

    def _unit_windows(self, relation: UnitWindows, needed: frozenset[Field]) -> str:
        pairs = [(f, w) for f, w in zip(relation.window_fields, relation.windows, strict=True) if f in needed]
        used = needed.union(*(fields_in(window) for _, window in pairs))
        inner = self.relation(relation.input, used)
        # Rows that agree on every field used are alike: whichever comes first, the answer is the same.
        ties = _kept(relation.input, used)
        items = [self.name(field) for field in _kept(relation.input, needed)]
        items += [f"{self._window(window, ties)} AS {self.name(field)}" for field, window in pairs]
        return f"SELECT {', '.join(items) or '1 AS one'} FROM {self.dialect.derived(inner)}"

    def _join(self, relation: Join, needed: frozenset[Field]) -> str:
        self.dialect.check_join(relation)
        free = free_fields(relation.right)
        used = needed | (fields_in(relation.condition) if relation.condition is not None else frozenset())
        used |= free  # LATERAL
        left = self.dialect.derived(self.relation(relation.left, used & frozenset(relation.left.fields)), "l")
        right = self.relation(relation.right, used & frozenset(relation.right.fields))
        lateral = not free.isdisjoint(relation.left.fields)
        right = self.dialect.derived(right, "r", lateral=lateral)
        kept = self._columns(_kept(relation, needed))
        if relation.condition is None:
            return f"SELECT {kept} FROM {left} CROSS JOIN {right}"
        condition = self.expression(relation.condition)
        kind = "INNER" if relation.kind == "matched" else relation.kind.upper()
        if lateral and kind == "INNER" and relations_in(relation.condition):
            # DuckDB has no subqueries in the condition of a LATERAL join.
            return f"SELECT {kept} FROM {left} CROSS JOIN {right} WHERE {condition}"
        return f"SELECT {kept} FROM {left} {kind} JOIN {right} ON {condition}"

    def _set_operation(self, relation: SetOperation) -> str:
        left = self.relation(relation.left, frozenset(relation.left.fields))
        right = self.relation(relation.right, frozenset(relation.right.fields))
        operator = relation.kind.upper() + (" ALL" if relation.all else "")
        names = self._columns(relation.fields)
        return f"SELECT {names} FROM (({left}) {operator} ({right})) AS u({names})"

    def _sort(self, relation: Sort, needed: frozenset[Field]) -> str:
        used = needed.union(*(fields_in(term.expression) for term in relation.order))
        inner = self.relation(relation.input, used)
        text = f"SELECT {self._columns(_kept(relation, needed))} FROM {self.dialect.derived(inner)}"
        if relation.order:
            text += f" ORDER BY {self.order(relation.order)}"
        if relation.limit is not None:
            text += f" LIMIT {relation.limit}"
        if relation.offset:
            text += f" OFFSET {relation.offset}"
        return text

    def _values(self, relation: Values) -> str:
        if not relation.fields:
            return "SELECT 1 AS one"
        rows = ", ".join(f"({', '.join(self.expression(cell) for cell in row)})" for row in relation.rows)
        names = self._columns(relation.fields)
        return f"SELECT {names} FROM (VALUES {rows}) AS v({names})"

    def _series(self, relation: Series) -> str:
        (field,) = relation.fields
        table = self.dialect.series(relation.start, relation.stop, relation.unit)
        return f"SELECT CAST(s AS {self.dialect.types[field.type]}) AS {self.name(field)} FROM {table}"

    # Tables

    def _scan(self, relation: Scan, needed: frozenset[Field]) -> str:
        items = self._scanned(relation.table, relation.columns, relation.fields, needed)
        return f"SELECT {', '.join(items) or '1 AS one'} FROM {self._table_name(relation.table)}"

    def _scanned(
        self,
        table: Table,
        columns: tuple[PolicyColumn, ...],
        fields: tuple[Field, ...],
        needed: frozenset[Field],
        prefix: str = "",
    ) -> list[str]:
        engine = self._schema.tables[table.name].columns
        pairs = [(column.name, field) for column, field in zip(columns, fields, strict=True) if field in needed]
        return [
            f"{self._value(prefix + self.dialect.quote_name(name), engine[name], field)} AS {self.name(field)}"
            for name, field in pairs
        ]

    def _value(self, column: str, engine: EngineColumn, field: Field) -> str:
        """Return a column's canonical value; JSON and arrays that meet protected rows are limited.

        They may be huge when they are printed, and an error would tell which rows meet them.
        A field of the type unknown has only whether the column is NULL: some stored values have no canonical one.
        """
        if field.type is SqlType.UNKNOWN:
            return self.dialect.presence(column)
        if self._shows_rows or not (field.type.is_array or field.type is SqlType.JSON):
            return self.dialect.canonical(column, engine, field.type)
        return self.dialect.limited(column, engine, field.type)

    def _unit_scan(self, relation: UnitScan, needed: frozenset[Field]) -> str:
        table, unit_type = relation.table, relation.unit_field.type
        unit = self.name(relation.unit_field)
        engine = self._schema.tables[table.name]
        if table.unit_key is not None:
            key, present = self._unit_key(table.unit_key, engine.columns[table.unit_key], unit_type)
            items = ", ".join(
                [f"{key} AS {unit}", *self._scanned(table, relation.columns, relation.column_fields, needed)]
            )
            return f"SELECT {items} FROM {self._table_name(table)}{present}"
        items = ", ".join(
            [f"p.unit AS {unit}", *self._scanned(table, relation.columns, relation.column_fields, needed, "t.")]
        )
        ways = self._ways(table, unit_type)
        return " UNION ALL ".join(f"SELECT {items} FROM {joined}" for joined in ways)

    def _table_name(self, table: Table) -> str:
        return self.dialect.quote_path(self._schema.tables[table.name].path)

    def _unit_key(self, name: str, column: EngineColumn, unit_type: SqlType) -> tuple[str, str]:
        """Return a table's unit, and the condition that it is not NULL, unless the engine enforces NOT NULL.

        A canonical value may be NULL although the column is not, so the column must be canonical itself.
        """
        own = self.dialect.quote_name(name)
        key = self.dialect.canonical(own, column, unit_type)
        return key, "" if column.not_null and key == own else f" WHERE {key} IS NOT NULL"

    def _ways(self, table: Table, unit_type: SqlType) -> list[str]:
        """The rows of a table t that follow each of its ways, with their units p.unit; a row follows at most one."""
        return [
            f"{self._table_name(table)} AS t JOIN ({self._pairs(table, via, unit_type)}) AS p ON {self._on(table, via)}"
            for via in table.unit_via
        ]

    def _on(self, table: Table, via: UnitVia) -> str:
        """The condition that the keys of a way are equal and that the row follows it."""
        own, there = self._schema.tables[table.name].columns, self._schema.tables[via.table].columns
        quoted = self.dialect.quote_name
        terms = [
            f"{self.dialect.canonical(f't.{quoted(column)}', own[column], there[key].sql_type)} = p.k{index}"
            for index, (column, key) in enumerate(via.on)
        ]
        if via.where is not None:
            column = own[via.where.column]
            kind = SqlType.TEXT if column.sql_type.is_text else SqlType.BIGINT
            values = ", ".join(self.dialect.constant(value, kind) for value in via.where.values)
            terms.append(f"{self.dialect.canonical(f't.{quoted(via.where.column)}', column, kind)} IN ({values})")
        return " AND ".join(terms)

    def _pairs(self, table: Table, via: UnitVia, unit_type: SqlType) -> str:
        """The (parent key, unit) pairs of one way of a table, each pair once."""
        parent = self._policy.table(via.table)
        if parent is None:
            raise TypeError("unit path does not end at a unit key")
        engine, quoted = self._schema.tables[parent.name], self.dialect.quote_name
        keys = [
            self.dialect.canonical(
                f"{'t.' if parent.unit_via else ''}{quoted(there)}",
                engine.columns[there],
                engine.columns[there].sql_type,
            )
            for _, there in via.on
        ]
        columns = ", ".join(f"{key} AS k{index}" for index, key in enumerate(keys))
        distinct = "" if engine.is_unique(frozenset(there for _, there in via.on)) else "DISTINCT "
        present = " AND ".join(f"{key} IS NOT NULL" for key in keys)
        if parent.unit_key is not None:
            unit = self.dialect.canonical(quoted(parent.unit_key), engine.columns[parent.unit_key], unit_type)
            source = self._table_name(parent)
            return f"SELECT {distinct}{columns}, {unit} AS unit FROM {source} WHERE {unit} IS NOT NULL AND {present}"
        # Rows that go two ways have one key only where the key is not unique: UNION makes one pair of two.
        union = " UNION " if distinct else " UNION ALL "
        return union.join(
            f"SELECT {distinct}{columns}, p.unit AS unit FROM {joined} WHERE {present}"
            for joined in self._ways(parent, unit_type)
        )


_AGGREGATES = frozenset({"count", "sum", "avg", "min", "max"}) | SPREADS
_BY_PLACE = frozenset({"row_number", "ntile", "lag", "lead", "first_value", "last_value", "nth_value"})
"""Window functions whose value depends on the order of rows that the analyst's order does not tell apart."""


def _kept(relation: Relation, needed: frozenset[Field]) -> tuple[Field, ...]:
    return tuple(field for field in relation.fields if field in needed)
