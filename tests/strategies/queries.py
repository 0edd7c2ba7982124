"""Expressions of the accepted grammar: columns, constants and forms by the kind of their type."""

INT, FLOAT, NUMERIC, TEXT, BOOL, DATE, STAMP, ZONED, UUID, TIME, SPAN = (
    *("int", "float", "numeric", "text", "bool", "date", "stamp", "zoned", "uuid", "time", "span"),
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
    SPAN: ("INTERVAL '1 month 2 days 03:00'", "INTERVAL '-178956970 years'", "INTERVAL '2562047788 hours'"),
}

_ANY = (INT, FLOAT, NUMERIC, TEXT, BOOL, DATE, STAMP, ZONED, UUID, TIME)
_ORDERED = tuple(kind for kind in _ANY if kind != BOOL)

Form = tuple[str, tuple[str, ...]]
"""SQL with places {0}, {1} …, and the kinds that belong there."""


def _same(form: str, width: int, kinds: tuple[str, ...] = _ANY) -> tuple[Form, ...]:
    return tuple((form, (kind,) * width) for kind in kinds)


_PARTS = (
    *("year", "isoyear", "quarter", "month", "week", "day", "doy", "dow", "isodow"),
    *("decade", "century", "millennium"),
)
_CLOCK = ("hour", "minute", "microseconds")
_FRACTIONS = ("second", "milliseconds", "epoch")
_SPAN_PARTS = ("year", "month", "day", "hour", "minute", "microseconds", "century")
_UNITS = ("year", "quarter", "month", "week", "day", "hour")
_OTHER_UNITS = ("minute", "second", "milliseconds", "microseconds", "decade", "century", "millennium")
_WAVES = ("SIN", "COS", "TAN", "COT", "ASIN", "ACOS", "ATAN", "SINH", "COSH", "TANH", "ASINH", "ACOSH", "ATANH")
_INTERVALS = ("year", "month", "week", "day", "hour", "minute", "second")
_NUMBERS = (INT, FLOAT, NUMERIC)

FORMS: dict[str, tuple[Form, ...]] = {
    INT: (
        *((f"({{0}} {sign} {{1}})", (INT, INT)) for sign in "+-*/%"),
        ("(-{0})", (INT,)),
        ("ABS({0})", (INT,)),
        *((f"EXTRACT({part} FROM {{0}})", (kind,)) for part in _PARTS for kind in (DATE, STAMP, ZONED)),
        *((f"EXTRACT({part} FROM {{0}})", (kind,)) for part in _CLOCK for kind in (STAMP, ZONED, TIME)),
        *((f"EXTRACT({part} FROM {{0}})", (SPAN,)) for part in _SPAN_PARTS),
        *((f"({{0}} {sign} {{1}})", (INT, INT)) for sign in "&|#"),
        *((f"{name}({{0}}, {{1}})", (INT, INT)) for name in ("GCD", "LCM", "MOD", "NUM_NULLS")),
        ("(~{0})", (INT,)),
        ("({0} << 5)", (INT,)),
        ("({0} >> 5)", (INT,)),
        ("WIDTH_BUCKET({0}, 0, 10, 5)", (FLOAT,)),
        ("WIDTH_BUCKET({0}, CAST('1e300' AS float8), -1000, 100000)", (FLOAT,)),
        ("WIDTH_BUCKET({0}, 10.5, -10, 7)", (NUMERIC,)),
        *((f"{name}({{0}})", (TEXT,)) for name in ("LENGTH", "OCTET_LENGTH", "BIT_LENGTH", "ASCII")),
        ("STRPOS({0}, {1})", (TEXT, TEXT)),
        ("REGEXP_COUNT({0}, '[a-z]o?')", (TEXT,)),
        ("({0} - {1})", (DATE, DATE)),
        ("CAST(FLOOR({0}) AS integer)", (FLOAT,)),
        ("CAST({0} AS smallint)", (INT,)),
        *(("CAST({0} AS integer)", (kind,)) for kind in (INT, FLOAT, NUMERIC, TEXT, BOOL)),
        ("CAST({0} AS bigint)", (TEXT,)),
        ("CASE WHEN {0} THEN {1} END", (BOOL, INT)),
        ("CARDINALITY((STRING_TO_ARRAY({0}, 'a'))[:3])", (TEXT,)),
        ("(SELECT COUNT(*) FROM UNNEST(STRING_TO_ARRAY({0}, 'a')) AS u WHERE u <> '')::integer", (TEXT,)),
    ),
    FLOAT: (
        *((f"({{0}} {sign} {{1}})", (FLOAT, kind)) for sign in "+-*/%" for kind in _NUMBERS),
        *(
            (f"{name}({{0}})", (FLOAT,))
            for name in ("SQRT", "EXP", "LN", "LOG", "SIGN", "ABS", "FLOOR", "CEIL", "ROUND")
        ),
        *((f"{name}({{0}})", (FLOAT,)) for name in (*_WAVES, "CBRT", "TRUNC", "DEGREES", "RADIANS")),
        *((f"{name}({{0}})", (NUMERIC,)) for name in ("ROUND", "TRUNC", "CEIL", "ABS")),
        ("(-{0})", (FLOAT,)),
        *((f"{name}({{0}}, {{1}})", (FLOAT, FLOAT)) for name in ("POWER", "LOG", "ATAN2", "MOD", "DIV")),
        *((f"EXTRACT({part} FROM {{0}})", (kind,)) for part in _FRACTIONS for kind in (STAMP, ZONED, TIME, SPAN)),
        *(("CAST({0} AS float8)", (kind,)) for kind in (INT, NUMERIC, TEXT)),
        ("CAST({0} AS real)", (FLOAT,)),
    ),
    NUMERIC: (
        *(("ROUND({0}, 2)", (kind,)) for kind in _NUMBERS),
        ("ROUND({0}, 15)", (FLOAT,)),
        *(
            (f"{name}({{0}}, {digits})", (kind,))
            for name in ("ROUND", "TRUNC")
            for digits in (-3, 1)
            for kind in _NUMBERS
        ),
        ("DIV({0}, {1})", (INT, INT)),
        *(("CAST({0} AS numeric(10, 2))", (kind,)) for kind in (INT, FLOAT, NUMERIC, TEXT)),
        ("CAST({0} AS numeric(38, 0))", (NUMERIC,)),
        ("({0} % {1})", (NUMERIC, NUMERIC)),
    ),
    TEXT: (
        *((f"{name}({{0}})", (TEXT,)) for name in ("LOWER", "UPPER", "REVERSE", "TRIM", "LTRIM", "RTRIM")),
        *((f"{name}({{0}})", (TEXT,)) for name in ("INITCAP", "MD5")),
        ("TRIM(LEADING {1} FROM {0})", (TEXT, TEXT)),
        ("TRIM(BOTH 'so' FROM {0})", (TEXT,)),
        ("LEFT({0}, 2)", (TEXT,)),
        ("(STRING_TO_ARRAY({0}, ' '))[2]", (TEXT,)),
        ("LEFT({0}, -1)", (TEXT,)),
        ("RIGHT({0}, 3)", (TEXT,)),
        ("SUBSTRING({0} FROM 2 FOR 3)", (TEXT,)),
        ("SUBSTRING({0} FROM -5)", (TEXT,)),
        ("SUBSTRING({0}, CAST({1} AS integer), CAST({2} AS integer))", (TEXT, INT, INT)),
        ("LEFT({0}, CAST({1} AS integer))", (TEXT, INT)),
        ("LPAD({0}, 5, 'xy')", (TEXT,)),
        ("RPAD({0}, 20)", (TEXT,)),
        ("REPEAT({0}, 3)", (TEXT,)),
        ("REPEAT({0}, 10000)", (TEXT,)),
        ("REPEAT({0}, CAST({1} AS integer))", (TEXT, INT)),
        ("TRANSLATE({0}, 'so', 'x')", (TEXT,)),
        ("SPLIT_PART({0}, 'o', -1)", (TEXT,)),
        ("OVERLAY({0} PLACING 'é' FROM 2 FOR 1)", (TEXT,)),
        ("CONCAT_WS({0}, {1}, {2})", (TEXT, TEXT, INT)),
        ("FORMAT('%s %s', {0}, {1})", (TEXT, BOOL)),
        ("SUBSTRING({0} FROM '[a-z](.)')", (TEXT,)),
        ("REGEXP_SUBSTR({0}, 'o*p')", (TEXT,)),
        ("REGEXP_REPLACE({0}, '([a-z])o', '\\1', 'gi')", (TEXT,)),
        *(
            (f"TO_CHAR({{0}}, 'FMDay DDth Mon YYYY IYYY-IW HH12:MI:SS.US pm {each}')", (kind,))
            for each, kind in (("MONTH", DATE), ("DY", STAMP), ("WW", ZONED))
        ),
        *((f"TO_CHAR({{0}}, '{form}')", (kind,)) for form in ("FM9,990.09", "S999", "9990.0PR") for kind in _NUMBERS),
        ("REPLACE({0}, 'o', '00')", (TEXT,)),
        ("REPLACE({0}, '', 'x')", (TEXT,)),
        *(("CONCAT({0}, {1})", (TEXT, kind)) for kind in (TEXT, INT, DATE, BOOL)),
        ("({0} || '-' || {1})", (TEXT, TEXT)),
        *(("CAST({0} AS text)", (kind,)) for kind in (INT, NUMERIC, BOOL, DATE, STAMP, ZONED, UUID, TIME)),
        ("CAST(CAST({0} AS float8) AS text)", (FLOAT,)),
        *(("CAST({0} AS varchar(3))", (kind,)) for kind in (TEXT, INT, STAMP)),
        ("CAST({0} AS char(3))", (TEXT,)),
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
        ("({0} LIKE '%s%')", (TEXT,)),
        ("({0} ILIKE 's%')", (TEXT,)),
        ("({0} SIMILAR TO '(s|f)_%')", (TEXT,)),
        ("({0} ~ '^s(o|a+){{1,2}}p? ?$')", (TEXT,)),
        ("({0} !~* '[[:space:]ß]')", (TEXT,)),
        ("({0} BETWEEN SYMMETRIC {1} AND {2})", (INT, INT, INT)),
        ("ISFINITE({0})", (STAMP,)),
        *((f"({{0}} {sign} {{1}})", (SPAN, SPAN)) for sign in ("=", "<", "IS DISTINCT FROM")),
        ("STARTS_WITH({0}, {1})", (TEXT, TEXT)),
        ("({0} = ANY (STRING_TO_ARRAY({1}, 'o')))", (TEXT, TEXT)),
        ("CAST({0} AS boolean)", (TEXT,)),
        ("CAST(CAST({0} AS integer) AS boolean)", (INT,)),
    ),
    DATE: (
        ("({0} + {1})", (DATE, INT)),
        ("({0} - {1})", (DATE, INT)),
        *(("CAST({0} AS date)", (kind,)) for kind in (STAMP, ZONED, TEXT)),
        ("MAKE_DATE(CAST({0} AS integer), CAST({1} AS integer), 3)", (INT, INT)),
        ("TO_DATE({0}, 'YYYY-MM-DD')", (TEXT,)),
        *((f"CAST(DATE_TRUNC('{unit}', {{0}}) AS date)", (STAMP,)) for unit in _UNITS),
    ),
    STAMP: (
        *((f"DATE_TRUNC('{unit}', {{0}})", (kind,)) for unit in _UNITS for kind in (DATE, STAMP)),
        *((f"({{0}} + INTERVAL '40 {unit}s')", (kind,)) for unit in _INTERVALS for kind in (DATE, STAMP)),
        ("({0} - INTERVAL '9999999 years')", (STAMP,)),
        *(("({0} + {1})", (kind, SPAN)) for kind in (DATE, STAMP)),
        *((f"DATE_TRUNC('{unit}', {{0}})", (kind,)) for unit in _OTHER_UNITS for kind in (DATE, STAMP)),
        ("({0} + {1})", (DATE, TIME)),
        ("MAKE_TIMESTAMP(2024, CAST({0} AS integer), 3, 4, 5, {1})", (INT, FLOAT)),
        ("({0} AT TIME ZONE 'America/New_York')", (ZONED,)),
        ("DATE_BIN('7 minutes', {0}, TIMESTAMP '2001-01-01')", (STAMP,)),
        *(("CAST({0} AS timestamp)", (kind,)) for kind in (DATE, ZONED, TEXT)),
    ),
    ZONED: (
        *((f"DATE_TRUNC('{unit}', {{0}})", (ZONED,)) for unit in _UNITS),
        *((f"({{0}} - INTERVAL '3 {unit}s')", (ZONED,)) for unit in _INTERVALS),
        *((f"DATE_TRUNC('{unit}', {{0}})", (ZONED,)) for unit in _OTHER_UNITS),
        ("({0} - {1})", (ZONED, SPAN)),
        ("TO_TIMESTAMP({0})", (FLOAT,)),
        ("TO_TIMESTAMP({0}, 'YYYY-MM-DD HH24:MI:SS')", (TEXT,)),
        *(("({0} AT TIME ZONE 'Asia/Kolkata')", (kind,)) for kind in (STAMP, DATE)),
        *(("CAST({0} AS timestamptz)", (kind,)) for kind in (DATE, STAMP)),
    ),
    UUID: (("CAST({0} AS uuid)", (TEXT,)),),
    TIME: (
        *(("CAST({0} AS time)", (kind,)) for kind in (TEXT, STAMP, ZONED)),
        ("({0} + {1})", (TIME, SPAN)),
        ("({0} - {1})", (TIME, SPAN)),
        ("MAKE_TIME(CAST({0} AS integer), 5, {1})", (INT, FLOAT)),
    ),
    SPAN: (
        *(("({0} - {1})", (kind, kind)) for kind in (STAMP, ZONED, TIME)),
        *(("AGE({0}, {1})", (kind, kind)) for kind in (DATE, STAMP, ZONED)),
        ("AGE({0})", (STAMP,)),
        *((f"({{0}} {sign} {{1}})", (SPAN, SPAN)) for sign in "+-"),
        *((f"({{0}} {sign} {{1}})", (SPAN, kind)) for sign in "*/" for kind in _NUMBERS),
        ("(-{0})", (SPAN,)),
        *((f"JUSTIFY_{what}({{0}})", (SPAN,)) for what in ("DAYS", "HOURS", "INTERVAL")),
        ("CAST({0} AS interval)", (TIME,)),
    ),
}
for _kind in (*_ANY, SPAN):
    FORMS[_kind] += (
        ("COALESCE({0}, {1})", (_kind, _kind)),
        ("NULLIF({0}, {1})", (_kind, _kind)),
        ("GREATEST({0}, {1})", (_kind, _kind)),
        ("LEAST({0}, {1}, {2})", (_kind, _kind, _kind)),
        ("CASE WHEN {0} THEN {1} ELSE {2} END", (BOOL, _kind, _kind)),
    )
