"""Queries from the accepted grammar, and some that only look as if they were."""

from dataclasses import dataclass, replace

from hypothesis import strategies as st

from dpsql.compiler.settings import QuerySettings
from tests.strategies.world import SETTINGS

INT, FLOAT, NUMERIC, TEXT, BOOL, DATE, STAMP, ZONED, UUID, TIME = (
    *("int", "float", "numeric", "text", "bool", "date", "stamp", "zoned", "uuid", "time"),
)

Columns = dict[str, tuple[str, ...]]
"""Names of columns by kind of type."""

COLUMNS: dict[str, Columns] = {
    "people": {
        INT: ("age", "debt"),
        FLOAT: ("weight",),
        TEXT: ("sex", "city"),
        DATE: ("born",),
        BOOL: ("member",),
        STAMP: ("seen",),
    },
    "visits": {
        INT: ("n", "kind"),
        FLOAT: ("ratio", "f"),
        NUMERIC: ("cost", "huge", "grade"),
        TEXT: ("note",),
        BOOL: ("flag",),
        DATE: ("day",),
        STAMP: ("met",),
        ZONED: ("zoned",),
        UUID: ("tag",),
        TIME: ("clock",),
    },
    "lines": {INT: ("boxes",), FLOAT: ("dose",), TEXT: ("drug",)},
    "stays": {INT: ("nights",), TEXT: ("ward",)},
    "meals": {NUMERIC: ("price",), TEXT: ("dish",)},
    "cards": {INT: ("points",), TEXT: ("level",)},
    "letters": {INT: ("words",), TEXT: ("topic",)},
}
UNIT = {table: "who" if table == "letters" else "pid" for table in COLUMNS}

CONSTANTS: dict[str, tuple[str, ...]] = {
    INT: ("0", "1", "-1", "3", "7", "100", "2147483647", "9223372036854775807", "NULL::integer"),
    FLOAT: ("0.5::float8", "-1.5::float8", "CAST('1e300' AS float8)", "0::float8"),
    NUMERIC: ("0.25", "-3.10", "1000000.000001", "0.7"),
    TEXT: ("'soup'", "''", "'F'", "'Soup '", "'12'", "NULL::text"),
    BOOL: ("TRUE", "FALSE", "NULL::boolean"),
    DATE: ("DATE '2024-01-02'", "DATE '9999-12-31'", "DATE '2000-02-01'"),
    STAMP: ("TIMESTAMP '2024-01-01 10:00:00'", "TIMESTAMP '0001-01-01 00:00:00'"),
    ZONED: ("TIMESTAMPTZ '2024-01-01 10:00:00+00'",),
    UUID: ("UUID '00000000-0000-0000-0000-00000000000a'",),
    TIME: ("TIME '12:00:00'",),
}

_ANY = (INT, FLOAT, NUMERIC, TEXT, BOOL, DATE, STAMP, ZONED, UUID, TIME)
_ORDERED = tuple(kind for kind in _ANY if kind != BOOL)

Form = tuple[str, tuple[str, ...]]
"""SQL with places {0}, {1} …, and the kinds that belong there."""


def _same(form: str, width: int, kinds: tuple[str, ...] = _ANY) -> tuple[Form, ...]:
    return tuple((form, (kind,) * width) for kind in kinds)


_PARTS = ("year", "isoyear", "quarter", "month", "week", "day", "doy", "dow", "isodow")
_UNITS = ("year", "quarter", "month", "week", "day", "hour")
_INTERVALS = ("year", "month", "week", "day", "hour", "minute", "second")
_NUMBERS = (INT, FLOAT, NUMERIC)

FORMS: dict[str, tuple[Form, ...]] = {
    INT: (
        *((f"({{0}} {sign} {{1}})", (INT, INT)) for sign in "+-*/%"),
        ("(-{0})", (INT,)),
        ("ABS({0})", (INT,)),
        *((f"EXTRACT({part} FROM {{0}})", (kind,)) for part in _PARTS for kind in (DATE, STAMP, ZONED)),
        *((f"EXTRACT({part} FROM {{0}})", (kind,)) for part in ("hour", "minute") for kind in (STAMP, ZONED)),
        ("LENGTH({0})", (TEXT,)),
        ("STRPOS({0}, {1})", (TEXT, TEXT)),
        ("({0} - {1})", (DATE, DATE)),
        ("CAST(FLOOR({0}) AS integer)", (FLOAT,)),
        ("CAST({0} AS smallint)", (INT,)),
        *(("CAST({0} AS integer)", (kind,)) for kind in (INT, FLOAT, NUMERIC, TEXT, BOOL)),
        ("CAST({0} AS bigint)", (TEXT,)),
        ("CASE WHEN {0} THEN {1} END", (BOOL, INT)),
    ),
    FLOAT: (
        *((f"({{0}} {sign} {{1}})", (FLOAT, kind)) for sign in "+-*/%" for kind in _NUMBERS),
        *(
            (f"{name}({{0}})", (FLOAT,))
            for name in ("SQRT", "EXP", "LN", "LOG", "SIGN", "ABS", "FLOOR", "CEIL", "ROUND")
        ),
        *((f"{name}({{0}})", (NUMERIC,)) for name in ("ROUND", "TRUNC", "CEIL", "ABS")),
        ("(-{0})", (FLOAT,)),
        ("POWER({0}, {1})", (FLOAT, FLOAT)),
        *(("CAST({0} AS float8)", (kind,)) for kind in (INT, NUMERIC, TEXT)),
        ("CAST({0} AS real)", (FLOAT,)),
    ),
    NUMERIC: (
        *(("ROUND({0}, 2)", (kind,)) for kind in _NUMBERS),
        ("ROUND({0}, 15)", (FLOAT,)),
        *(("CAST({0} AS numeric(10, 2))", (kind,)) for kind in (INT, FLOAT, NUMERIC, TEXT)),
        ("CAST({0} AS numeric(38, 0))", (NUMERIC,)),
    ),
    TEXT: (
        *((f"{name}({{0}})", (TEXT,)) for name in ("LOWER", "UPPER", "REVERSE", "TRIM", "LTRIM", "RTRIM")),
        ("TRIM(LEADING {1} FROM {0})", (TEXT, TEXT)),
        ("TRIM(BOTH 'so' FROM {0})", (TEXT,)),
        ("LEFT({0}, 2)", (TEXT,)),
        ("LEFT({0}, -1)", (TEXT,)),
        ("RIGHT({0}, 3)", (TEXT,)),
        ("SUBSTRING({0} FROM 2 FOR 3)", (TEXT,)),
        ("REPLACE({0}, 'o', '00')", (TEXT,)),
        ("REPLACE({0}, '', 'x')", (TEXT,)),
        *(("CONCAT({0}, {1})", (TEXT, kind)) for kind in (TEXT, INT, DATE, BOOL)),
        ("({0} || '-' || {1})", (TEXT, TEXT)),
        *(("CAST({0} AS text)", (kind,)) for kind in (INT, NUMERIC, BOOL, DATE, STAMP, UUID, TIME)),
        ("CASE WHEN {0} THEN 'yes' WHEN {1} THEN 'no' ELSE {2} END", (BOOL, BOOL, TEXT)),
        ("CASE WHEN {0} THEN 'yes' ELSE 'no' END", (BOOL,)),
        ("CASE {0} WHEN 'soup' THEN 'food' WHEN {1} THEN 'other' END", (TEXT, TEXT)),
    ),
    BOOL: (
        *(form for sign in ("=", "<>", "<", ">=", "IS DISTINCT FROM") for form in _same(f"({{0}} {sign} {{1}})", 2)),
        *(("({0} <= {1})", pair) for pair in ((INT, FLOAT), (NUMERIC, INT), (DATE, STAMP), (STAMP, ZONED))),
        ("({0} > {1})", (NUMERIC, FLOAT)),
        *_same("({0} IS NULL)", 1),
        *_same("({0} IS NOT DISTINCT FROM {1})", 2),
        *_same("({0} BETWEEN {1} AND {2})", 3, _ORDERED),
        *_same("({0} IN ({1}, {2}))", 3),
        ("({0} IN (1, 3, NULL))", (INT,)),
        ("({0} NOT IN ('soup', 'fish'))", (TEXT,)),
        ("({0} AND {1})", (BOOL, BOOL)),
        ("({0} OR {1})", (BOOL, BOOL)),
        ("(NOT {0})", (BOOL,)),
        ("({0} IS TRUE)", (BOOL,)),
        ("({0} IS NOT FALSE)", (BOOL,)),
        ("({0} LIKE '%o_p')", (TEXT,)),
        ("({0} NOT LIKE '100\\%')", (TEXT,)),
        ("({0} LIKE '_\\\\%')", (TEXT,)),
        ("({0} ILIKE 's%')", (TEXT,)),
        ("STARTS_WITH({0}, {1})", (TEXT, TEXT)),
        ("CAST({0} AS boolean)", (TEXT,)),
        ("CAST(CAST({0} AS integer) AS boolean)", (INT,)),
    ),
    DATE: (
        ("({0} + {1})", (DATE, INT)),
        ("({0} - {1})", (DATE, INT)),
        *(("CAST({0} AS date)", (kind,)) for kind in (STAMP, ZONED, TEXT)),
        *((f"CAST(DATE_TRUNC('{unit}', {{0}}) AS date)", (STAMP,)) for unit in _UNITS),
    ),
    STAMP: (
        *((f"DATE_TRUNC('{unit}', {{0}})", (kind,)) for unit in _UNITS for kind in (DATE, STAMP)),
        *((f"({{0}} + INTERVAL '40 {unit}s')", (kind,)) for unit in _INTERVALS for kind in (DATE, STAMP)),
        ("({0} - INTERVAL '9999999 years')", (STAMP,)),
        *(("CAST({0} AS timestamp)", (kind,)) for kind in (DATE, ZONED, TEXT)),
    ),
    ZONED: (
        *((f"DATE_TRUNC('{unit}', {{0}})", (ZONED,)) for unit in _UNITS),
        *((f"({{0}} - INTERVAL '3 {unit}s')", (ZONED,)) for unit in _INTERVALS),
        *(("CAST({0} AS timestamptz)", (kind,)) for kind in (DATE, STAMP)),
    ),
    UUID: (("CAST({0} AS uuid)", (TEXT,)),),
    TIME: (("CAST({0} AS time)", (TEXT,)),),
}
for _kind in _ANY:
    FORMS[_kind] += (
        ("COALESCE({0}, {1})", (_kind, _kind)),
        ("NULLIF({0}, {1})", (_kind, _kind)),
        ("GREATEST({0}, {1})", (_kind, _kind)),
        ("LEAST({0}, {1}, {2})", (_kind, _kind, _kind)),
        ("CASE WHEN {0} THEN {1} ELSE {2} END", (BOOL, _kind, _kind)),
    )

# Over rows of units none of these may stand: were one let through, the neighbours would tell.
_LEAKS = (
    *("ROW_NUMBER() OVER (ORDER BY {0})", "RANK() OVER (ORDER BY {0})", "COUNT(*) OVER ()", "SUM({0}) OVER ()"),
    *("LAG({0}) OVER (ORDER BY {0})", "MAX({0}) OVER ()"),
)


@dataclass(frozen=True)
class Source:
    """What stands in FROM, and its columns."""

    sql: str
    columns: Columns
    unit: str


class Writer:
    """Writes one query, asking hypothesis at each turn."""

    def __init__(self, draw: st.DrawFn) -> None:
        self._draw = draw

    def one(self, *options: str) -> str:
        return self._draw(st.sampled_from(options))

    def chance(self, percent: int) -> bool:
        return self._draw(st.integers(0, 99)) >= 100 - percent

    def expression(self, columns: Columns, kind: str, depth: int) -> str:
        """An expression of a kind."""
        named = columns.get(kind, ())
        if depth == 0 or (named and self.chance(30)):
            return self.one(*named * 6, *CONSTANTS[kind])
        form, kinds = self._draw(st.sampled_from(FORMS[kind]))
        return form.format(*(self.expression(columns, inner, depth - 1) for inner in kinds))

    def condition(self, columns: Columns) -> str:
        return self.expression(columns, BOOL, 1 if self.chance(70) else 2)

    def key(self, source: Source) -> str:
        """A group key: a column more often than not."""
        named = [name for kind, names in source.columns.items() if kind != FLOAT for name in names]
        if named and self.chance(70):
            return self.one(*named)
        kind = self.one(INT, NUMERIC, TEXT, BOOL, DATE, STAMP, ZONED)
        return self.expression(source.columns, kind, 2)

    def number(self, source: Source) -> str:
        """A number to add up, with limits of the policy's or of the query's own."""
        kind = self.one(INT, FLOAT, NUMERIC)
        if self.chance(40):
            named = [name for each in _NUMBERS for name in source.columns.get(each, ())]
            return self.one(*named) if named else "1"
        text = self.expression(source.columns, kind, 2)
        low, high = self.one("-10, 10", "0, 5", "2, 7", "-9, -4", "0.001, 0.002", "-1000000, 0").split(", ")
        return f"LEAST(GREATEST({text}, {low}), {high})"

    def aggregate(self, source: Source) -> str:
        kind = self.one("rows", "rows", "values", "units", "distinct", "sum", "sum", "sum", "avg", "avg")
        match kind:
            case "rows":
                text = "COUNT(*)"
            case "units":
                text = f"COUNT(DISTINCT {source.unit})"
            case "values":
                text = f"COUNT({self.key(source)})"
            case "distinct":
                text = f"COUNT(DISTINCT {self.key(source)})"
            case _:
                text = f"{kind.upper()}({self.number(source)})"
        return f"{text} FILTER (WHERE {self.condition(source.columns)})" if self.chance(15) else text

    def table(self) -> Source:
        name = self.one("people", "visits", "visits", "visits", "lines", "stays", "meals", "cards", "letters")
        return Source(name, COLUMNS[name], UNIT[name])

    def nested(self, source: Source) -> Source:
        """A subquery that hands rows on: filtered, and with columns of its own."""
        columns: Columns = {}
        items = [source.unit]
        for index in range(self._draw(st.integers(1, 4))):
            kind = self.one(INT, INT, FLOAT, NUMERIC, TEXT, BOOL, DATE, STAMP)
            text = self.expression(source.columns, kind, 2)
            if self.chance(3):
                kind, text = INT, self.one(*_LEAKS).format(text)
            items.append(f"{text} AS e{index}")
            columns[kind] = (*columns.get(kind, ()), f"e{index}")
        where = f" WHERE {self.condition(source.columns)}" if self.chance(20) else ""
        tail = self.one(" ORDER BY 2 LIMIT 3", " OFFSET 1", " GROUP BY 1") if self.chance(2) else ""
        distinct = "DISTINCT " if self.chance(2) else ""
        return Source(
            f"(SELECT {distinct}{', '.join(items)} FROM {source.sql}{where}{tail}) AS s", columns, source.unit
        )

    def query(self) -> str:
        source = self.table()
        for _ in range(self._draw(st.sampled_from([0, 0, 0, 0, 1, 2]))):
            source = self.nested(source)
        keys = [self.key(source) for _ in range(self._draw(st.sampled_from([0, 1, 1, 1, 2, 3])))]
        calls = [self.aggregate(source) for _ in range(self._draw(st.integers(1, 3)))]
        where = f" WHERE {self.condition(source.columns)}" if self.chance(20) else ""
        if keys and self.chance(8):
            return f"SELECT DISTINCT {', '.join(keys)} FROM {source.sql}{where}"
        if keys and self.chance(3):
            keys[0] = self.one(*_LEAKS).format(keys[0])
        group = " GROUP BY " + ", ".join(str(index + 1) for index in range(len(keys))) if keys else ""
        return f"SELECT {', '.join(keys + calls)} FROM {source.sql}{where}{group}"


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
