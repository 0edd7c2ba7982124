"""Queries over the whole grammar: joins, nesting, windows, unions, subqueries, aggregates per person; and leaks."""

from dataclasses import dataclass, replace

from hypothesis import strategies as st

from dpsql.compiler.scope.settings import QuerySettings
from tests.strategies.queries import (
    BOOL,
    COLUMNS,
    CONSTANTS,
    DATE,
    FLOAT,
    FORMS,
    INT,
    NUMERIC,
    STAMP,
    TEXT,
    UNIT,
    ZONED,
    Columns,
)
from tests.strategies.world import SETTINGS

_NUMBERS = (INT, FLOAT, NUMERIC)
_OUTER = (INT, INT, FLOAT, NUMERIC, TEXT, BOOL, DATE, STAMP)

# Over rows of units none of these may stand: were one let through, the neighbours would tell.
_LEAKS = (
    *("ROW_NUMBER() OVER (ORDER BY {0})", "RANK() OVER (ORDER BY {0})", "COUNT(*) OVER ()", "SUM({0}) OVER ()"),
    *("LAG({0}) OVER (ORDER BY {0})", "MAX({0}) OVER ()", "COUNT(*) OVER (PARTITION BY {0})"),
    *("(SELECT COUNT(*) FROM visits zz WHERE zz.n = {0})", "(SELECT MAX(zz.cost) FROM visits zz)"),
    *("{0} IN (SELECT zz.n FROM visits zz)", "EXISTS (SELECT 1 FROM visits zz WHERE zz.n = {0})"),
)

_WINDOWS = (
    *("ROW_NUMBER() OVER ({w})", "RANK() OVER ({w})", "DENSE_RANK() OVER ({w})", "NTILE(3) OVER ({w})"),
    *("COUNT(*) OVER ({w})", "COUNT({x}) OVER ({w})", "SUM({x}) OVER ({w})", "AVG({x}) OVER ({w})"),
    *("COUNT(*) FILTER (WHERE {x} > 1) OVER ({w})", "SUM({x}) FILTER (WHERE {x} > 1) OVER ({w})"),
    *("MIN({x}) OVER ({w})", "MAX({x}) OVER ({w})", "LAG({x}) OVER ({w})", "LEAD({x}, 2, 5) OVER ({w})"),
    *("FIRST_VALUE({x}) OVER ({w})", "NTH_VALUE({x}, 2) OVER ({w})"),
    "SUM({x}) OVER ({w} ROWS BETWEEN 1 PRECEDING AND 2 FOLLOWING)",
    "LAST_VALUE({x}) OVER ({w} ROWS BETWEEN UNBOUNDED PRECEDING AND UNBOUNDED FOLLOWING)",
)
_AGGREGATES = (
    *("COUNT(*)", "COUNT({x})", "COUNT(DISTINCT {x})", "SUM({x})", "AVG({x})", "MIN({x})", "MAX({x})"),
    *("SUM({x}) FILTER (WHERE {c})", "COUNT(*) FILTER (WHERE {c})"),
)

# How two tables of units meet, with the places {a} and {b} for their names.
_LINKED = (
    ("visits", "people", "{a}.pid = {b}.pid"),
    ("people", "visits", "{a}.pid = {b}.pid"),
    ("visits", "visits", "{a}.pid = {b}.pid"),
    ("visits", "visits", "{a}.pid = {b}.pid AND {a}.visit_id < {b}.visit_id"),
    ("cards", "people", "{a}.pid = {b}.pid"),
    ("stays", "cards", "{a}.pid = {b}.pid"),
    ("visits", "lines", "{a}.visit_id = {b}.visit_id"),
    ("lines", "visits", "{a}.visit_id = {b}.visit_id"),
    ("lines", "lines", "{a}.visit_id = {b}.visit_id"),
    ("stays", "meals", "{a}.stay_id = {b}.stay_id"),
    ("letters", "letters", "{a}.who = {b}.who"),
)
_KEYS = {"visits": "visit_id", "lines": "visit_id", "stays": "stay_id", "meals": "stay_id"}
"""Keys that lead to the unit, and that the policy does not list."""
_NOT_LINKED = (
    ("visits", "people", "{a}.n = {b}.age"),
    ("visits", "letters", "TRUE"),
    ("stays", "cards", "{a}.pid >= {b}.pid"),
)
_PUBLIC: tuple[tuple[str, str, Columns], ...] = (
    ("kinds", "{a}.kind = {b}.code", {INT: ("code",), TEXT: ("title",)}),
    ("kinds", "{a}.n > {b}.code", {INT: ("code",), TEXT: ("title",)}),
    ("grades", "{a}.grade = {b}.value", {NUMERIC: ("value",)}),
    ("(VALUES (1, 'x'), (2, 'y'), (NULL, 'z'))", "{a}.n = {b}.code", {INT: ("code",), TEXT: ("title",)}),
)


@dataclass(frozen=True)
class Source:
    """What stands in FROM, its columns by kind, and how its unit and a key that the policy does not list are named."""

    sql: str
    columns: Columns
    unit: str
    key: str | None = None


def qualified(alias: str, columns: Columns) -> Columns:
    """The columns under an alias."""
    return {kind: tuple(f"{alias}.{name}" for name in names) for kind, names in columns.items()}


def merged(left: Columns, right: Columns) -> Columns:
    """The columns of both."""
    return {kind: left.get(kind, ()) + right.get(kind, ()) for kind in (*left, *right)}


class Writer:
    """Writes one query, asking hypothesis at each turn."""

    def __init__(self, draw: st.DrawFn) -> None:
        self._draw = draw

    def one(self, *options: str) -> str:
        return self._draw(st.sampled_from(options))

    def chance(self, percent: int) -> bool:
        return self._draw(st.integers(0, 99)) >= 100 - percent

    def number_of(self, most: int) -> int:
        return self._draw(st.integers(1, most))

    # Expressions

    def expression(self, columns: Columns, kind: str, depth: int) -> str:
        """An expression of a kind."""
        named = columns.get(kind, ())
        if depth == 0 or (named and self.chance(30)):
            return self.one(*named * 6, *CONSTANTS[kind])
        form, kinds = self._draw(st.sampled_from(FORMS[kind]))
        return form.format(*(self.expression(columns, inner, depth - 1) for inner in kinds))

    def condition(self, source: Source) -> str:
        if self.chance(12):
            return self.subquery(source)
        return self.expression(source.columns, BOOL, 1 if self.chance(70) else 2)

    def subquery(self, source: Source) -> str:
        """A condition that holds a subquery: about the unit, public, or released."""
        inner = self.table()
        alias = self.one("za", "zb", "zc")
        table, columns, unit = f"{inner.sql} {alias}", qualified(alias, inner.columns), f"{alias}.{inner.unit}"
        where = self.expression(columns, BOOL, 1)
        form = self.one(
            "exists", "exists", "in", "in", "count", "first", "public", "public", "scalar", "released", "keys"
        )
        match form:
            case "exists":
                negated = self.one("", "NOT ")
                return f"{negated}EXISTS (SELECT 1 FROM {table} WHERE {unit} = {source.unit} AND {where})"
            case "in":
                negated = self.one("", "NOT ")
                return f"{source.unit} {negated}IN (SELECT {unit} FROM {table} WHERE {where})"
            case "count":
                number = self.key_column(columns)
                call = self.one(*_AGGREGATES[:4]).format(x=number)
                return f"(SELECT {call} FROM {table} WHERE {unit} = {source.unit}) > {self.one('0', '1', '3')}"
            case "first":
                chosen = self.key_column(columns)
                order = f"ORDER BY {self.key_column(columns)} LIMIT 1"
                return f"(SELECT {chosen} FROM {table} WHERE {unit} = {source.unit} {order}) IS NULL"
            case "public":
                number = self.expression(source.columns, INT, 1)
                return (
                    f"{number} {self.one('', 'NOT ')}IN (SELECT code FROM kinds WHERE code > {self.one('0', '1', '3')})"
                )
            case "scalar":
                number = self.expression(source.columns, INT, 0)
                return f"(SELECT k.title FROM kinds k WHERE k.code = {number}) = 'b'"
            case "released":
                return f"{self.number(source)} > (SELECT AVG(n) FROM visits)"
            case _:
                text = self.expression(source.columns, TEXT, 0)
                return f"{text} IN (SELECT note FROM visits GROUP BY note)"

    def key_column(self, columns: Columns) -> str:
        named = [name for kind, names in columns.items() if kind != FLOAT for name in names]
        return self.one(*named) if named else "1"

    def order(self, source: Source) -> str:
        """What the rows of a unit are ordered by."""
        return source.key if source.key and self.chance(25) else self.key_column(source.columns)

    def key(self, source: Source) -> str:
        """A group key: a column more often than not."""
        named = [name for kind, names in source.columns.items() if kind != FLOAT for name in names]
        if named and self.chance(70):
            return self.one(*named)
        kind = self.one(INT, NUMERIC, TEXT, BOOL, DATE, STAMP, ZONED)
        return self.expression(source.columns, kind, 2)

    def number(self, source: Source) -> str:
        """A number to add up, with limits of the policy's or of the query's own."""
        if self.chance(40):
            named = [name for each in _NUMBERS for name in source.columns.get(each, ())]
            return self.one(*named) if named else "1"
        text = self.expression(source.columns, self.one(INT, FLOAT, NUMERIC), 2)
        low, high = self.one("-10, 10", "0, 5", "2, 7", "-9, -4", "0.001, 0.002", "-1000000, 0").split(", ")
        return f"LEAST(GREATEST({text}, {low}), {high})"

    def aggregate(self, source: Source) -> str:
        kind = self.one(
            "rows", "rows", "values", "units", "distinct", *["sum", "avg"] * 2, "spread", "pair", "truth", "rank"
        )
        match kind:
            case "rows":
                text = "COUNT(*)"
            case "units":
                text = f"COUNT(DISTINCT {source.unit})"
            case "values":
                text = f"COUNT({self.key(source)})"
            case "distinct":
                text = f"COUNT(DISTINCT {source.key if source.key and self.chance(25) else self.key(source)})"
            case "spread":
                text = f"{self.one('VAR_POP', 'STDDEV', 'SUM(DISTINCT', 'AVG(DISTINCT')}({self.number(source)})"
                text += ")" * text.count("DISTINCT")
            case "pair":
                text = f"{self.one('CORR', 'REGR_SXX', 'COVAR_POP')}({self.number(source)}, {self.number(source)})"
            case "rank":
                text = self.one(
                    "MIN({x})", "MAX({x})", "MEDIAN({x})", "PERCENTILE_DISC(0.9) WITHIN GROUP (ORDER BY {x})"
                )
                dates = source.columns.get(DATE, ())
                is_date = dates and text[3] == "(" and self.chance(25)
                text = text.format(x=self.one(*dates) if is_date else self.number(source))
            case "truth":
                text = f"{self.one('BOOL_AND', 'BOOL_OR')}({self.condition(source)})"
            case _:
                text = f"{kind.upper()}({self.number(source)})"
        return f"{text} FILTER (WHERE {self.condition(source)})" if self.chance(15) else text

    # Relations

    def table(self) -> Source:
        name = self.one("people", "visits", "visits", "visits", "lines", "stays", "meals", "cards", "letters")
        return Source(name, COLUMNS[name], UNIT[name], _KEYS.get(name))

    def source(self) -> Source:
        kind = self.one(*["table"] * 5, *["units"] * 3, "public", "public", "lateral", "union", "leak")
        match kind:
            case "units":
                return self.joined(*self._draw(st.sampled_from(_LINKED)))
            case "leak" if self.chance(50):
                return self.joined(*self._draw(st.sampled_from(_NOT_LINKED)))
            case "public":
                return self.with_public()
            case "lateral":
                return self.lateral()
            case "union":
                return self.union()
            case _:
                found = self.table()
                return replace(found, sql=f"(SELECT * FROM {found.sql}) AS s") if self.chance(10) else found

    def joined(self, left: str, right: str, link: str) -> Source:
        """Two protected tables, joined on what leads to the unit."""
        on = link.format(a="a", b="b")
        columns = merged(qualified("a", COLUMNS[left]), qualified("b", COLUMNS[right]))
        unit = f"a.{UNIT[left]}"
        kind = self.one("JOIN", "JOIN", "LEFT JOIN", "RIGHT JOIN", "FULL JOIN")
        if kind == "RIGHT JOIN":
            unit = f"b.{UNIT[right]}"
        if self.chance(40):
            on += f" AND {self.expression(columns, BOOL, 1)}"
        if self.chance(15) and on == "a.pid = b.pid":
            return Source(f"{left} a {kind} {right} b USING (pid)", columns, unit)
        found = Source(f"{left} a {kind} {right} b ON {on}", columns, unit)
        if self.chance(20):
            third = self.one("people", "stays", "cards")
            found = Source(
                f"{found.sql} {self.one('', 'LEFT ')}JOIN {third} c ON c.pid = {unit}",
                merged(columns, qualified("c", COLUMNS[third])),
                unit,
            )
        return found

    def with_public(self) -> Source:
        table, on, columns = self._draw(st.sampled_from(_PUBLIC))
        name = f"{table} b" if "(" not in table else f"{table} b (code, title)"
        both = merged(qualified("a", COLUMNS["visits"]), qualified("b", columns))
        condition = on.format(a="a", b="b")
        if self.chance(30):
            condition += f" AND {self.expression(both, BOOL, 1)}"
        kind = self.one("JOIN", "JOIN", "LEFT JOIN", "RIGHT JOIN", "FULL JOIN", "CROSS JOIN")
        if kind == "CROSS JOIN":
            return Source(f"visits a CROSS JOIN {name}", both, "a.pid")
        return Source(f"visits a {kind} {name} ON {condition}", both, "a.pid")

    def lateral(self) -> Source:
        body = self.one(
            "SELECT COUNT(*) AS e0, MAX(v.n) AS e1 FROM visits v WHERE v.pid = a.pid",
            "SELECT v.kind AS e0, v.n AS e1 FROM visits v WHERE v.pid = a.pid ORDER BY v.note, v.n LIMIT 2",
            "SELECT v.kind AS e0, COUNT(*) AS e1 FROM visits v WHERE v.pid = a.pid GROUP BY v.kind",
        )
        columns = merged(qualified("a", COLUMNS["people"]), {INT: ("b.e0", "b.e1")})
        head, tail = self._draw(st.sampled_from([("CROSS JOIN", ""), ("JOIN", " ON TRUE"), ("LEFT JOIN", " ON TRUE")]))
        return Source(f"people a {head} LATERAL ({body}) b{tail}", columns, "a.pid")

    def union(self) -> Source:
        left, right = self.table(), self.table()
        kinds = [self.one(INT, INT, NUMERIC, TEXT, BOOL) for _ in range(self.number_of(2))]
        arms = [
            ", ".join([side.unit, *(f"{self.expression(side.columns, k, 1)} AS e{i}" for i, k in enumerate(kinds))])
            + f" FROM {side.sql}"
            for side in (left, right)
        ]
        operator = self.one("UNION ALL", "UNION ALL", "UNION", "EXCEPT", "INTERSECT ALL")
        columns: Columns = {}
        for index, kind in enumerate(kinds):
            columns[kind] = (*columns.get(kind, ()), f"e{index}")
        return Source(f"(SELECT {arms[0]} {operator} SELECT {arms[1]}) AS u", columns, left.unit)

    def nested(self, source: Source) -> Source:
        """A subquery that hands rows on: filtered, numbered, or aggregated person by person."""
        unit = source.unit.rpartition(".")[2]
        kind = self.one("rows", "rows", "windows", "windows", "groups", "groups", "groups", "distinct", "first")
        columns: Columns = {}
        items = [source.unit]
        for index in range(self.number_of(3)):
            of, text = self._nested_item(source, kind)
            items.append(f"{text} AS e{index}")
            columns[of] = (*columns.get(of, ()), f"e{index}")
        where = f" WHERE {self.condition(source)}" if self.chance(25) else ""
        tail = self.one(" ORDER BY 2 LIMIT 3", " OFFSET 1", " GROUP BY 1") if self.chance(2) else ""
        head = "DISTINCT " if kind == "distinct" or self.chance(1) else ""
        if kind == "first":
            head = f"DISTINCT ON ({source.unit}) "
            tail = f" ORDER BY {source.unit}, {self.order(source)}"
        if kind == "groups":
            keys = [source.unit]
            if self.chance(40):
                keys.append(self.key_column(source.columns))
                items.append(f"{keys[-1]} AS k")
            if source.key and self.chance(25):
                keys.append(source.key)
            having = f" HAVING {self.one('COUNT(*) > 1', 'COUNT(*) < 4', 'MIN(1) IS NULL')}" if self.chance(25) else ""
            tail = f" GROUP BY {', '.join(keys)}{having}"
        return Source(f"(SELECT {head}{', '.join(items)} FROM {source.sql}{where}{tail}) AS s", columns, unit)

    def _nested_item(self, source: Source, kind: str) -> tuple[str, str]:
        """An output column, its kind first."""
        if self.chance(2):
            return INT, self.one(*_LEAKS).format(self.key_column(source.columns))
        if kind == "windows" and self.chance(70):
            partition = self.one(source.unit, f"{source.unit}, {self.key_column(source.columns)}")
            order = self.one("", f" ORDER BY {self.order(source)}", " ORDER BY 1")
            text = self.one(*_WINDOWS).format(w=f"PARTITION BY {partition}{order}", x=self.number(source))
            return self.one(INT, FLOAT), text
        if kind == "groups":
            text = self.one(*_AGGREGATES).format(x=self.number(source), c=self.condition(source))
            return (INT if text.startswith("COUNT") else FLOAT), text
        of = self.one(*_OUTER)
        return of, self.expression(source.columns, of, 2)

    # The query

    def query(self) -> str:
        source = self.source()
        for _ in range(self._draw(st.sampled_from([0, 0, 0, 1, 1, 2]))):
            source = self.nested(source)
        keys = [self.key(source) for _ in range(self._draw(st.sampled_from([0, 1, 1, 1, 2, 3])))]
        calls = [self.aggregate(source) for _ in range(self.number_of(3))]
        where = f" WHERE {self.condition(source)}" if self.chance(20) else ""
        if keys and self.chance(8):
            return f"SELECT DISTINCT {', '.join(keys)} FROM {source.sql}{where}"
        if self.chance(8):
            return self.first_keys(source, where)
        if keys and self.chance(3):
            keys[0] = self.one(*_LEAKS).format(keys[0])
        places = ", ".join(str(index + 1) for index in range(len(keys)))
        group = self.one("{0}", "{0}", "{0}", "ROLLUP ({0})", "CUBE ({0})").format(places)
        tail = f" GROUP BY {group}" if keys else ""
        return f"SELECT {', '.join(keys + calls)} FROM {source.sql}{where}{tail}"

    def first_keys(self, source: Source, where: str) -> str:
        """The first keys by a score that is not shown; most have values that the policy knows."""
        public = [name for kind in (BOOL, DATE, INT) for name in source.columns.get(kind, ())]
        public += [name for name in source.columns.get(TEXT, ()) if name.endswith(("sex", "dish"))]
        keys = [self.one(*public) if public else self.key(source) for _ in range(self.number_of(2))]
        scores = ("COUNT(*)", "COUNT(*)", f"COUNT(DISTINCT {source.unit})", "SUM({x})", "COUNT(DISTINCT {k})")
        score = self.one(*scores).format(x=self.number(source), k=self.key(source))
        if self.chance(20):
            score += f" FILTER (WHERE {self.condition(source)})"
        listed, direction = ", ".join(keys), self.one("DESC", "ASC")
        rows = f"LIMIT {self.one('1', '2', '3')}"
        return f"SELECT {listed} FROM {source.sql}{where} GROUP BY {listed} ORDER BY {score} {direction} {rows}"


@st.composite
def queries(draw: st.DrawFn) -> str:
    """One aggregate query over protected rows."""
    return Writer(draw).query()


def _narrowed(rows: int | None, groups: int | None, per_group: int | None, mechanism: str) -> QuerySettings:
    return replace(SETTINGS, max_rows=rows, max_groups=groups, max_rows_per_group=per_group, mechanism=mechanism)


SETTINGS_STRATEGY = st.builds(
    _narrowed,
    st.sampled_from([None, None, 1, 2, 5]),
    st.sampled_from([None, None, 1, 2, 3]),
    st.sampled_from([None, None, 1, 2]),
    st.sampled_from(["auto", "laplace", "gaussian"]),
)
"""What an analyst may set."""
