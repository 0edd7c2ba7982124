"""JSON and arrays in rows of units: each engine reads of them what PostgreSQL does, and no value raises an error."""

import json
import random
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from dpsql.compiler.dialects.duckdb import DuckDB
from dpsql.compiler.ir.functions import JSON_DEPTH, MAX_TEXT
from dpsql.compiler.ir.nodes import Call, Literal
from dpsql.errors import (
    DatatypeMismatch,
    Error,
    InvalidParameter,
    InvalidText,
    LimitExceeded,
    UndefinedColumn,
    UndefinedFunction,
    UnsupportedQuery,
)
from dpsql.gateway.session import Session
from dpsql.sqltypes import SqlType
from tests.conftest import silent_engine
from tests.engines import Host
from tests.postgres import Connection, Server

POLICY = """
version = 1
[dataset]
name = "nested"
url = "{url}"
privacy_unit = "person"
budget = {{ epsilon = 10000, delta = 1e-3 }}
[roles.analyst]
budget = {{ epsilon = 10000, delta = 1e-3 }}
query = {{ epsilon = 1, delta = 1e-9, max_epsilon = 10 }}
[tables.visits]
unit_key = "person"
max_rows = 40
[tables.visits.columns]
person = {{ type = "integer" }}
day = {{ type = "integer", lower = 0, upper = 100 }}
codes = {{ type = "text[]" }}
marks = {{ type = "integer[]" }}
costs = {{ type = "numeric[]" }}
seen = {{ type = "timestamptz[]" }}
line = {{ type = "text" }}
data = {{ type = "json" }}
[tables.kinds]
public = true
[tables.kinds.columns]
kind = {{ type = "text" }}
words = {{ type = "text[]" }}
shape = {{ type = "json" }}
"""
TABLES = (
    "CREATE TABLE visits (person integer, day integer, codes text[], marks integer[], costs numeric(10, 2)[], "
    "seen timestamptz[], line text, data json)",
    "CREATE TABLE kinds (kind text, words text[], shape json)",
)
KINDS = """INSERT INTO kinds VALUES ('old', ARRAY['I10', 'b,"c'], '{"a": [1, {"b": 2.5}], "t": null}'),
    ('new', NULL, '[true, "x\\u00e9"]'),
    ('none', CAST(ARRAY[] AS text[]), '"text"')"""
VISITS = """INSERT INTO visits SELECT n % 7, n,
    CASE n % 4 WHEN 0 THEN ARRAY['I10', 'J' || (n % 3)] WHEN 1 THEN ARRAY['J1', NULL]
        WHEN 2 THEN CAST(ARRAY[] AS text[]) END,
    CASE WHEN n % 5 > 0 THEN ARRAY[n % 5, n % 3, 7] END,
    CASE WHEN n % 2 = 0 THEN ARRAY[1.50, n * 0.25] END,
    CASE WHEN n % 3 = 0 THEN ARRAY[TIMESTAMPTZ '2024-05-01 12:00:00+02', TIMESTAMPTZ '2024-05-02 00:00:00+00'] END,
    CASE n % 3 WHEN 0 THEN 'x,y,' || n % 2 WHEN 1 THEN '' END,
    CAST(CASE n % 5
        WHEN 0 THEN '{"a": {"b": [' || n || ', 2.50, "z"]}, "t": "x", "on": true, "": 1, "x.y": "dot", "0": "zero"}'
        WHEN 1 THEN '[1, "two", null, {"t": "y"}]' WHEN 2 THEN '{"t": null, "n": ' || n || '.0, "a": "text"}'
        WHEN 3 THEN '17' END AS json)
    FROM generate_series(0, 34) AS s(n)"""
COUNTED = (
    "data ->> 't' = 'x'",
    "(data -> 'a' -> 'b' ->> 1)::numeric = 2.5",
    "(data ->> 'n')::float8 > 10",
    "data ->> 'n' LIKE '1%'",
    "data -> 't' IS NULL",
    "data ->> 't' IS NULL",
    "data ->> 1 = 'two' AND data ->> -2 IS NULL AND data -> -1 ->> 't' = 'y'",
    "data #>> '{a,b,2}' = 'z' OR data #>> '{}' = '17'",
    "data #>> ARRAY['3', 't'] = 'y' OR data #>> '{0}' = 'zero'",
    "data ->> 'x.y' = 'dot' AND data ->> '' = '1' AND (data ->> 'on')::boolean",
    "json_typeof(data) = 'number'",
    "json_typeof(data -> 't') = 'null' OR json_typeof(data -> 0) = 'number'",
    "json_array_length(CASE WHEN json_typeof(data) = 'array' THEN data END) = 4",
    "json_extract_path_text(data, 'a', 'b', '0')::integer > 5",
    "json_extract_path(data, 'a', 'b') IS NOT NULL",
    "'I10' = ANY (codes)",
    "'J1' <> ALL (codes)",
    "NOT 'I10' = ANY (codes)",
    "(NULL = ANY (codes)) IS NULL",
    "3 = ANY (marks) OR day = ANY (marks)",
    "codes[1] = 'I10' AND codes[2] LIKE 'J%' AND codes[-1] IS NULL AND codes[9] IS NULL",
    "marks[2] + marks[3] > 7 AND costs[2] > 1.5",
    "seen[1] < TIMESTAMPTZ '2024-05-01 10:00:01+00'",
    "ARRAY_LENGTH(codes, 1) = 2 OR CARDINALITY(codes) = 0",
    "ARRAY_LENGTH(codes, 1) IS NULL",
    "CARDINALITY(marks[2:]) = 2 AND CARDINALITY(marks[:2]) = 2 AND (marks[2:3])[1] < 2",
    "CARDINALITY(marks[-5:1]) = 1 AND CARDINALITY(marks[3:2]) = 0",
    "'y' = ANY (STRING_TO_ARRAY(line, ',')) AND (STRING_TO_ARRAY(line, ','))[3] = '0'",
    "CARDINALITY(STRING_TO_ARRAY(line, ',')) = 0",
    'data::jsonb @> \'{"t": "x"}\' OR \'{"t": null}\' <@ data::jsonb',
    'data::jsonb @> \'{"a": {"b": [2.5, "z"]}, "on": true}\'',
    "data::jsonb @> '[null, 1]' AND data::jsonb @> '[{\"t\": \"y\"}]' AND data::jsonb @> '\"two\"'",
    "data::jsonb @> '17' OR data::jsonb -> 'a' @> '{\"b\": []}'",
    "NOT data::jsonb @> '{}'",
    f"NOT data::jsonb @> '[{', '.join(map(str, range(47)))}, [], {{}}]'",
    "data::jsonb @> '[[[[9]]]]' OR data::jsonb @> '{\"n\": 7, \"n\": 12}' OR data::jsonb @> '99999999999999999999999'"
    ' OR data::jsonb @> \'[[1], {"t": 1}]\' OR data::jsonb @> \'[{"t": "y"}, 1, "two"]\'',
    "data::jsonb ? 't' AND NOT data::jsonb ? 'n'",
    "data::jsonb ? 'two' OR data::jsonb -> 'a' ? 'b'",
    "data::jsonb ?| ARRAY['n', 'x.y'] AND data::jsonb ?& '{t,a}'",
    "COALESCE(data::jsonb, '{\"q\": 1}'::jsonb) ? 'q'",
    "CASE WHEN day > 10 THEN data ELSE '{\"t\": \"x\"}' END ->> 't' = 'x'",
    "('[' || day || ', \"' || line || '\"]')::json ->> 0 < '3'",
    "('{\"a\": \"' || line || '\"}')::jsonb @> '{\"a\": \"x,y,1\"}' AND JSON_TYPEOF('{}') = 'object'",
    "codes @> ARRAY['I10', 'J1'] OR codes @> '{NULL}'",
    "CARDINALITY(CASE WHEN day > 3 THEN codes ELSE '{}' END) = 0",
    "(COALESCE(codes, '{a,\"b c\",NULL}'))[2] = 'b c' AND 7 = ANY (COALESCE(marks, '{ 07 }'))",
    "codes && ARRAY['J1', 'J2']",
    "codes <@ ARRAY['I10', 'J1', 'J0']",
    "NOT codes <@ '{J1}'",
    "ARRAY[1, 7] <@ marks",
    "costs @> ARRAY[1.5] AND NOT costs && ARRAY[3.0, 4.0]",
    "STRING_TO_ARRAY(line, ',') <@ codes OR codes @> codes",
    "(codes && NULL) IS NULL AND codes @> '{}' AND (data::jsonb @> NULL) IS NULL AND (data::jsonb ? NULL) IS NULL",
    "3 < ANY (marks) AND day > ALL (marks)",
    "(day > ALL (marks)) IS NULL",
    "1.5 = ANY (costs) AND 2.5 <> ALL (costs)",
    "'J' < ALL (codes)",
    "EXISTS (SELECT 1 FROM UNNEST(codes) AS c WHERE c LIKE 'J%')",
    "'I10' IN (SELECT UNNEST(codes))",
    "(SELECT MAX(m) FROM UNNEST(marks) AS m) = 7",
    "(SELECT COUNT(*) FROM UNNEST(codes) AS c) = 2",
)
QUERIES = (
    "SELECT c, COUNT(*) FROM visits, UNNEST(codes) AS c GROUP BY c",
    "SELECT u.c, COUNT(*), COUNT(DISTINCT person) FROM visits v CROSS JOIN LATERAL UNNEST(v.codes) AS u (c) GROUP BY 1",
    "SELECT COUNT(*), COUNT(c) FROM visits LEFT JOIN LATERAL UNNEST(codes) AS c ON TRUE",
    "SELECT COUNT(*), COUNT(c) FROM visits LEFT JOIN UNNEST(codes) AS c ON c LIKE 'I%'",
    "SELECT m, SUM(LEAST(GREATEST(m, 0), 9)) FROM visits JOIN UNNEST(marks) m ON m > 1 WHERE m IN (2, 3, 7) GROUP BY 1",
    "SELECT COUNT(*) FROM visits, UNNEST(costs) AS c WHERE c >= 1.5",
    "SELECT COUNT(*) FROM visits, UNNEST(seen) AS s WHERE s = TIMESTAMPTZ '2024-05-01 10:00:00+00'",
    "SELECT COUNT(*) FROM visits, UNNEST(codes) AS c, UNNEST(marks[1:2]) AS m WHERE m > 1",
    "SELECT w, COUNT(*) FROM visits, UNNEST(STRING_TO_ARRAY(line, ',')) AS w GROUP BY w",
    "SELECT COUNT(*) FROM (SELECT person, UNNEST(codes) AS c FROM visits) AS t WHERE c = 'I10'",
    "SELECT COUNT(*) FROM (SELECT person, COUNT(*) AS n FROM visits, UNNEST(codes) AS c GROUP BY person) t WHERE n > 5",
    "SELECT COUNT(*) FROM kinds AS k JOIN visits AS v ON v.codes[1] = k.words[1], UNNEST(k.words) AS w",
    "SELECT COUNT(*) FROM visits v JOIN kinds k ON v.codes && k.words OR v.codes <@ k.words",
    "SELECT COUNT(*) FROM (SELECT '{\"t\": \"x\"}'::jsonb AS d) t, visits WHERE COALESCE(data::jsonb, d) ->> 't' = 'x'",
    'SELECT COUNT(*) FROM (SELECT data FROM visits UNION ALL SELECT \'{"t": "x"}\'::json FROM visits) t '
    "WHERE data ->> 't' = 'x'",
    "SELECT codes @> ARRAY['I10'], COUNT(*) FROM visits GROUP BY 1",
    "SELECT kind, shape::jsonb @> '{\"a\": [1]}', shape::jsonb ? 'a', words @> ARRAY['I10'], words <@ ARRAY['I10'], "
    "words && '{I10}', 'a' < ANY (words), CASE WHEN kind = 'old' THEN shape -> 'a' ELSE shape END ->> 0 FROM kinds",
    "SELECT COUNT(*) FROM visits v JOIN kinds k ON v.data ->> 't' = COALESCE(k.shape ->> 't', 'x') AND k.kind = 'old'",
    "SELECT data ->> 't', COUNT(*) FROM visits GROUP BY 1",
    "SELECT kind, words[1], words[1:1], 'I10' = ANY (words), CARDINALITY(words), shape ->> 1, shape -> 'a' ->> 0, "
    "shape #>> '{a,1,b}', json_typeof(shape) FROM kinds",
    "SELECT COUNT(*) FROM visits v JOIN (SELECT (ARRAY_AGG(kind ORDER BY kind))[1] FROM kinds) t (k) ON k < codes[1]",
    "SELECT COUNT(*) FROM visits JOIN (SELECT ARRAY_AGG(words[1]) FROM kinds) t (k) ON codes[1] = ANY (k)",
    "SELECT COUNT(*) FROM visits, (SELECT ARRAY_AGG(LENGTH(kind)) AS k FROM kinds) AS t, UNNEST(k) AS u WHERE u = day",
    "SELECT COUNT(*) FROM visits JOIN (SELECT JSON_AGG(words[1] ORDER BY kind) FROM kinds) t (k) ON codes[1] = k ->> 2",
    "SELECT kind, w FROM kinds, UNNEST(words) AS w",
    "SELECT c, COUNT(*) FROM visits, UNNEST(codes) WITH ORDINALITY AS u(c, n) WHERE n = 1 GROUP BY c",
    "SELECT COUNT(*), COUNT(c), COUNT(m) FROM visits, UNNEST(codes, marks) AS u(c, m)",
    "SELECT COUNT(*), COUNT(c), COUNT(m), COUNT(k) FROM visits CROSS JOIN LATERAL UNNEST(codes, marks, costs) "
    "WITH ORDINALITY AS u(c, m, k, n) WHERE n < 3",
    "SELECT COUNT(*) FROM visits LEFT JOIN LATERAL UNNEST(marks) WITH ORDINALITY AS u(m, n) ON m = n",
    "SELECT COUNT(*) FROM visits WHERE EXISTS (SELECT 1 FROM UNNEST(marks) WITH ORDINALITY AS u(m, n) WHERE m = n)",
    "SELECT SUM(LEAST(GREATEST(n, 0), 9)) FROM visits, UNNEST(marks) WITH ORDINALITY AS u(m, n)",
    "SELECT u.*, u.u FROM UNNEST(ARRAY['a', 'b']) WITH ORDINALITY AS u",
    "SELECT * FROM UNNEST(ARRAY['a', 'b'], ARRAY[1]) WITH ORDINALITY",
    "SELECT a, b FROM UNNEST('{}'::int[], ARRAY[1, 2]) AS u(a, b)",
    "SELECT * FROM UNNEST('{}'::int[]) WITH ORDINALITY AS u(a, b)",
    "SELECT u.*, kind FROM kinds LEFT JOIN UNNEST(words, STRING_TO_ARRAY(kind, 'l')) WITH ORDINALITY u(w, x) ON TRUE",
    "SELECT kind, UNNEST(words), UNNEST(STRING_TO_ARRAY(kind, 'l')) AS p FROM kinds",
    "SELECT UNNEST(ARRAY[1, 2, 3]), UNNEST(ARRAY['x']) || 'y'",
    "SELECT kind, a, b, n FROM kinds, UNNEST(ARRAY[kind, 'k'], ARRAY[1]) WITH ORDINALITY AS u(a, b, n)",
    "SELECT kind, u.unnest, ordinality FROM kinds, LATERAL UNNEST(ARRAY[kind], ARRAY['k', 'l']) WITH ORDINALITY u(a)",
    "SELECT kind, w FROM kinds LEFT JOIN LATERAL UNNEST(words) AS w ON TRUE",
    "SELECT kind, UNNEST(words) FROM kinds",
    "SELECT w FROM UNNEST(STRING_TO_ARRAY('a,b', ',')) AS w",
    "SELECT COUNT(*) FROM (SELECT day, data, ROW_NUMBER() OVER (PARTITION BY person ORDER BY day) AS r FROM visits) t "
    "WHERE r = 1 AND data ->> 't' = 'x'",
    "SELECT COUNT(*) FROM (SELECT LAG(codes) OVER (PARTITION BY person ORDER BY day) FROM visits) t (c), UNNEST(c) u",
    "SELECT COUNT(*) FROM (SELECT data FROM visits UNION ALL SELECT CASE WHEN day > 9 THEN data END FROM visits) AS t "
    "WHERE data ->> 't' = 'x'",
)


TO_JSONB = "ALTER TABLE visits ALTER COLUMN data TYPE jsonb"
POISON = (
    # More brackets than the stack might hold, characters that no text has, numbers that are no numeric, scalars
    *(
        f"'{text}'"
        for text in ('{"t": "\\u0000"}', '{"t": "\\ud83d"}', '{"t": 1e99999}', '{"t": 9' + 400 * "9" + "}", "1e5000")
    ),
    *(
        "repeat('[', 3000) || repeat(']', 3000)",
        "repeat('[{\"a\":', 900) || '1' || repeat('}]', 900)",
        "'null'",
        "'-0.0'",
    ),
    "'{\"t\": \"' || repeat('x', 2000000) || '\"}'",
)
ARRAYS = (
    ("codes", "CAST('[2147483644:2147483646]={a,b,I10}' AS text[])"),
    ("codes", "CAST('{{I10,b},{c,NULL}}' AS text[])"),
    ("codes", "array_fill(CAST(NULL AS text), ARRAY[100000])"),
    ("codes", "ARRAY[repeat('x', 1000000)]"),
    ("costs", "ARRAY[CAST('NaN' AS numeric), NULL]"),
    (
        "seen",
        "ARRAY[TIMESTAMPTZ 'infinity', TIMESTAMPTZ '4000-01-01 00:00:00+00 BC', TIMESTAMPTZ '20000-01-01 00:00:00+00']",
    ),
    ("line", "repeat(',', 100000)"),
)


@pytest.fixture(scope="module")
def truth(postgres_server: Server) -> Iterator[Connection]:
    temporary = (statement.replace("CREATE", "CREATE TEMPORARY") for statement in TABLES)
    with postgres_server.connect() as connection:
        for statement in ("SET TimeZone = 'UTC'", *temporary, KINDS, VISITS):
            connection.execute(statement.encode())
        yield connection


@contextmanager
def opened(host: Host, folder: Path, *statements: str) -> Iterator[Session]:
    """A session of an engine over the tables, in which statements were run, without noise."""
    with host.make(*TABLES, *statements) as url:
        path = folder / "nested.toml"
        path.write_text(POLICY.format(url=url), encoding="utf-8")
        with silent_engine(path, folder) as engine:
            yield Session(engine, "ana")


def rows(session: Session, sql: str) -> list[tuple[Any, ...]]:
    (statement,) = session.parse(sql)
    return list(session.execute(statement).rows)


def expected(truth: Connection, sql: str) -> list[tuple[Any, ...]]:
    return truth.execute(sql.encode()).fetchall()


@pytest.mark.parametrize(
    ("name", "changes"), [("duckdb", ()), ("parquet", ()), ("postgresql", ()), ("postgresql", (TO_JSONB,))]
)
def test_as_in_postgresql(
    hosts: Mapping[str, Host], truth: Connection, tmp_path: Path, name: str, changes: tuple[str, ...]
) -> None:
    counted = [f"SELECT COUNT(*) FROM visits WHERE {condition}" for condition in COUNTED]
    with opened(hosts[name], tmp_path, KINDS, VISITS, *changes) as session:
        for sql in (*counted, *QUERIES):
            found, known = rows(session, sql), expected(truth, sql)
            assert sorted(map(repr, found)) == sorted(map(repr, known)), sql
        assert [sql for sql in counted if not 0 < expected(truth, sql)[0][0] < 35] == []


@pytest.mark.parametrize(
    ("condition", "kind", "values"),
    [
        ("data::jsonb @> {}", SqlType.JSONB, ('{"t": "x"}', "[]", None)),
        ("{} <@ data::jsonb", SqlType.JSONB, ('{"t": "x"}',)),
        ("data::jsonb ? {}", SqlType.TEXT, ("t", None)),
        ("data::jsonb ?| {}", SqlType.ARRAY, (["n", "x.y"],)),
        ("codes @> {}", SqlType.ARRAY, (["I10"], [], [None])),
        ("codes && {}", SqlType.ARRAY, (["J1", "J2"],)),
        ("day > ANY ({})", SqlType.ARRAY, ([9, 30],)),
        ("COALESCE(data, {}) ->> 't' = 'x'", SqlType.JSON, ('{"t": "x"}',)),
    ],
)
def test_placeholders(
    hosts: Mapping[str, Host],
    truth: Connection,
    tmp_path: Path,
    condition: str,
    kind: SqlType,
    values: tuple[object, ...],
) -> None:
    with opened(hosts["duckdb"], tmp_path, KINDS, VISITS) as session:
        (statement,) = session.parse(f"SELECT COUNT(*) FROM visits WHERE {condition.format('$1')}")
        assert session.describe(statement).parameters == (kind,)
        for value in values:
            sql = f"SELECT COUNT(*) FROM visits WHERE {condition.format('%s')}"
            assert list(session.execute(statement, (value,)).rows) == truth.execute(sql.encode(), (value,)).fetchall()


def test_no_value_raises_an_error(hosts: Mapping[str, Host], tmp_path: Path) -> None:
    """What PostgreSQL would raise an error for is NULL, and does not hinder the values of other rows."""
    poison = [f"INSERT INTO visits (person, day, data) VALUES (1, 1, CAST({text} AS json))" for text in POISON]
    poison += [f"INSERT INTO visits (person, day, {column}) VALUES (1, 1, {text})" for column, text in ARRAYS]
    with opened(hosts["postgresql"], tmp_path, KINDS, VISITS, *poison) as session:
        for sql in (*(f"SELECT COUNT(*) FROM visits WHERE {each}" for each in COUNTED), *QUERIES):
            rows(session, sql)
        read = "SELECT COUNT(data), COUNT(*) FROM visits WHERE day = 1 AND person = 1"
        assert rows(session, read) == [(3, 1 + len(poison))]  # of poison: null and -0.0


def test_no_public_value_raises_an_error_where_protected_rows_meet_it(
    hosts: Mapping[str, Host], tmp_path: Path
) -> None:
    """An error would tell that a row meets it."""
    poison = [f"INSERT INTO kinds VALUES ('J1', ARRAY['I10'], CAST({text} AS json))" for text in POISON]
    conditions = ("k.shape ->> 't' = 'x'", "CASE WHEN day > 3 THEN shape ELSE data END ->> 't' = 'x'")
    with opened(hosts["postgresql"], tmp_path, KINDS, VISITS, *poison) as session:
        for each in conditions:
            rows(session, f"SELECT COUNT(*) FROM visits JOIN kinds k ON kind = codes[1] WHERE {each}")


@pytest.mark.parametrize("text", ['{"t": "\\u0000"}', "1e99999"])
def test_no_json_that_is_made_raises_an_error_where_protected_rows_meet_it(
    hosts: Mapping[str, Host], tmp_path: Path, text: str
) -> None:
    poison = f"INSERT INTO kinds VALUES ('J1', ARRAY['I10'], '{text}')"
    of_all = "(SELECT JSON_AGG(shape) AS all_shapes FROM kinds) AS k"
    with opened(hosts["postgresql"], tmp_path, KINDS, VISITS, poison) as session:
        rows(session, f"SELECT COUNT(*) FROM visits, {of_all} WHERE CASE WHEN day > 3 THEN all_shapes ->> 0 END = line")


def test_what_duckdb_holds_as_json_raises_no_error(hosts: Mapping[str, Host], tmp_path: Path) -> None:
    texts = ('{"t": 1e999}', '{"t": "' + 1000 * "x" + '"}', 2000 * "[" + 2000 * "]", "null", "-0.0", '"text"')
    poison = [f"INSERT INTO visits (person, day, data) VALUES (1, 1, '{text}')" for text in texts]
    poison.append(
        "INSERT INTO visits (person, day, codes, line) SELECT 1, 1, list_resize([NULL], 100000), repeat(',', 100000)"
    )
    with opened(hosts["duckdb"], tmp_path, KINDS, VISITS, *poison) as session:
        for sql in (*(f"SELECT COUNT(*) FROM visits WHERE {each}" for each in COUNTED), *QUERIES):
            rows(session, sql)


def json_like(source: random.Random) -> str:
    """JSON of random values, blanks and depth, one character of which is often another one."""

    def value(depth: int) -> str:
        blank = source.choice(("", "", " ", "\n\t"))
        match source.randrange(7 if depth < 5 else 4):
            case 0:
                return blank + source.choice(("true", "false", "null", "0", "-0", "10", "1.50", "-2e3", "1E-2", "0.0"))
            case 1 | 2:
                return blank + source.choice(
                    ('""', '"a"', '"\\""', '"[{,:"', '"\\u00e9\\n"', '"é 😀"', '"\\\\"', '"1 "')
                )
            case 3:
                return blank + str(source.randrange(-99, 10**6))
            case 4 | 5:
                return f"{blank}[{','.join(value(depth + 1) + blank for _ in range(source.randrange(4)))}]"
            case _:
                members = (f'{blank}"k{n}"{blank}:{value(depth + 1)}' for n in range(source.randrange(4)))
                return f"{blank}{{{','.join(members)}{blank}}}"

    text = value(0)
    if source.random() < 0.6 and text:
        place = source.randrange(len(text))
        new = source.choice(
            ("", "", "0", '"', ",", ":", "[", "]", "{", "}", "\\", " ", "e", "-", ".", "\x01", "\n", "u")
        )
        text = text[:place] + new + text[place + source.randrange(2) :]
    return text


def is_json(text: str) -> bool:
    """Whether a text is JSON, of no number with so great an exponent that it may be no numeric."""

    def refuse(word: str) -> None:
        raise ValueError(word)

    try:
        json.loads(text, parse_constant=refuse)
    except ValueError:
        return False
    return not re.search("[eE][+-]?[0-9]{4}", text)


@pytest.mark.parametrize("name", ["duckdb", "postgresql"])
def test_text_is_json_where_it_is_read_as_such(hosts: Mapping[str, Host], tmp_path: Path, name: str) -> None:
    source = random.Random(7)
    texts = [json_like(source) for _ in range(3000)]
    expected = [(text, is_json(text)) for text in (*texts, "", " ", "NaN", "[1,]", "Infinity", "'a'", "01", "[" * 9)]
    assert 0.3 < sum(known for _, known in expected) / len(expected) < 0.7
    deep = [("[" * depth + "]" * depth, depth <= JSON_DEPTH) for depth in (JSON_DEPTH, JSON_DEPTH + 1, 2000)]
    long = [('"' + "x" * length + '"', length < MAX_TEXT - 1) for length in (MAX_TEXT - 2, MAX_TEXT - 1, 10**6)]
    unreadable = [
        (text, False)
        for text in (
            *('"\\u0000"', '"\\ud83d"', '"\\ude00\\ud83d"', '"\\ud83d\\n"', '"\\\\\\u0000"', '["\\ud83d", "a"]'),
            *("1e99999", "-1.5E+1000", "[1e0001]", '"\\"' * 3000 + '\\q""'),
        )
    ]
    readable = [
        (text, True)
        for text in (
            *('"\\ud83d\\ude00"', '{"\\uD83D\\uDE00\\u0001": "\\u0010\\u0100\\ud7ff\\ue000"}', '"C:\\\\u0000"'),
            *('"[1e1000, \\\\ud83d]"', '{"a": "x, 1e1000"}', "1e999", "9" * 300, "-1." + "9" * 9000 + "e-999"),
        )
    ]
    rows_ = ", ".join(
        f"({n}, {int(known)}, '{text.replace(chr(39), chr(39) * 2)}')"
        for n, (text, known) in enumerate((*expected, *deep, *long, *unreadable, *readable))
    )
    with opened(hosts[name], tmp_path, f"INSERT INTO visits (person, day, line) VALUES {rows_}") as session:
        wrong = "(line::json IS NOT NULL) <> (day = 1) OR (JSONB_TYPEOF(line::jsonb) IS NOT NULL) <> (day = 1)"
        assert rows(session, f"SELECT COUNT(*) FROM visits WHERE {wrong}") == [(0,)]
        assert rows(session, "SELECT COUNT(*) FROM visits WHERE line::json ->> 0 = '0'")[0][0] > 0


LONG_ARRAY = {
    "postgresql": "ARRAY(SELECT 'c' || i FROM generate_series(1, 1500) AS s(i))",
    "duckdb": "list_transform(range(1, 1501), lambda i: 'c' || i)",
}
"""An array of 1,500 texts, in the engine's own words."""


@pytest.mark.parametrize("name", LONG_ARRAY)
def test_bounds_are_those_of_the_rows_after_unnest(hosts: Mapping[str, Host], tmp_path: Path, name: str) -> None:
    """Each unit has one row of 1,500 elements: 1,000 of them are read, and 40 of these count."""
    filled = f"INSERT INTO visits (person, codes) SELECT p, {LONG_ARRAY[name]} FROM generate_series(1, 2) AS s(p)"
    with opened(hosts[name], tmp_path, filled) as session:
        assert rows(session, "SELECT COUNT(*) FROM visits, UNNEST(codes) AS c") == [(80,)]
        side_by_side = "UNNEST(codes, codes) WITH ORDINALITY AS u(c, d, n)"
        assert rows(session, f"SELECT COUNT(*) FROM visits, {side_by_side} WHERE c = d AND c = 'c' || n") == [(80,)]
        assert rows(session, "SELECT COUNT(*) FROM visits WHERE CARDINALITY(codes) = 1000") == [(2,)]
        assert len(rows(session, "SELECT c, COUNT(*) FROM visits, UNNEST(codes) AS c GROUP BY c")) <= 80


WIDE_ARRAY = {
    "postgresql": "ARRAY(SELECT repeat('c', 200) FROM generate_series(1, 1000))",
    "duckdb": "list_resize([CAST(NULL AS VARCHAR)], 1000, repeat('c', 200))",
}


@pytest.mark.parametrize("name", WIDE_ARRAY)
def test_what_unnest_may_copy_is_limited(hosts: Mapping[str, Host], tmp_path: Path, name: str) -> None:
    """Else one row could need all memory."""
    data = "CAST('[' || repeat('1,', 50000) || '1]' AS json)"
    filled = f"INSERT INTO visits (person, codes, line, data) VALUES (1, {WIDE_ARRAY[name]}, repeat(',', 9000), {data})"
    with opened(hosts[name], tmp_path, filled) as session:
        assert rows(session, "SELECT COUNT(*), COUNT(codes), COUNT(data) FROM visits") == [(1, 0, 0)]
        split = "CARDINALITY(STRING_TO_ARRAY(line, ','))"
        assert rows(session, f"SELECT COUNT(*) FROM visits WHERE {split} = 1000") == [(1,)]
        with pytest.raises(LimitExceeded, match="UNNEST produce more than"):
            rows(session, "SELECT COUNT(*) FROM visits, UNNEST(codes) a, UNNEST(codes) b, UNNEST(codes) c")


def test_duckdb_makes_no_list_of_an_array_for_each_value_that_is_looked_for() -> None:
    """Else one long array could need all memory."""
    array, wanted = Literal(None, SqlType.JSONB), Literal("[1, [2, 3], 4]", SqlType.JSONB)
    contains = Call("json_contains", (array, wanted), SqlType.BOOLEAN)
    assert DuckDB().spelling(contains).template.count("JSON[]") == 2  # one for each array of the constant
    has = Call("array_has", (array, Literal("x", SqlType.TEXT)), SqlType.BOOLEAN)
    assert "list" not in DuckDB().spelling(has).template.lower()


@pytest.mark.parametrize("name", ["duckdb", "postgresql"])
def test_elements_of_several_dimensions_follow_each_other(hosts: Mapping[str, Host], tmp_path: Path, name: str) -> None:
    nested = "ALTER TABLE visits ALTER COLUMN marks TYPE integer[][]"
    filled = "INSERT INTO visits (person, marks) VALUES (1, ARRAY[ARRAY[1, 2], ARRAY[3, NULL]])"
    with opened(hosts[name], tmp_path, nested, filled) as session:
        assert rows(session, "SELECT COUNT(*), COUNT(m) FROM visits, UNNEST(marks) AS m") == [(4, 3)]
        assert rows(session, "SELECT COUNT(*) FROM visits WHERE 3 = ANY (marks) AND marks[3] = 3") == [(1,)]


@pytest.mark.parametrize("column", ["data", "codes"])
def test_rows_that_differ_in_nested_values_alone_have_an_order(host: Host, tmp_path: Path, column: str) -> None:
    """Else the physical order of one unit's rows would decide which of them counts."""
    values = {"data": ('\'{"t": "x"}\'', '\'{"t": "y"}\''), "codes": ("ARRAY['x']", "ARRAY['y']")}[column]
    read = {"data": "data ->> 't' = 'x'", "codes": "codes[1] = 'x'"}[column]
    first = f"SELECT {column}, ROW_NUMBER() OVER (PARTITION BY person ORDER BY day) AS r FROM visits"
    found = []
    for order in (values, values[::-1]):
        inserted = [
            f"INSERT INTO visits (person, day, {column}) SELECT p, 1, {value} FROM generate_series(1, 20) AS s(p)"
            for value in order
        ]
        with opened(host, tmp_path, *inserted) as session:
            found.append(rows(session, f"SELECT COUNT(*) FROM ({first}) AS t WHERE r = 1 AND {read}"))
    assert found[0] == found[1] and found[0][0][0] in (0, 20)


@pytest.mark.parametrize(
    ("sql", "error", "says"),
    [
        ("SELECT data ->> ('a' || 'b') FROM kinds", UndefinedColumn, "data"),
        ("SELECT shape ->> ('a' || 'b') FROM kinds", UnsupportedQuery, "must be a constant"),
        ("SELECT shape -> 3000000000 FROM kinds", UnsupportedQuery, "must be a constant"),
        ("SELECT shape ->> 'a' || 'b' FROM kinds", UnsupportedQuery, "parentheses"),
        ("SELECT shape ->> 'a\"b' FROM kinds", UnsupportedQuery, "keys with"),
        ("SELECT shape #>> ARRAY['a\"b'] FROM kinds", UnsupportedQuery, "keys with"),
        ("SELECT shape #>> 'a' FROM kinds", InvalidText, "malformed path"),
        ("SELECT shape #>> kind FROM kinds", UnsupportedQuery, "a path into JSON must be a constant"),
        ("SELECT json_extract_path(shape, kind) FROM kinds", UnsupportedQuery, "must be a constant"),
        ("SELECT json_extract_path(shape, NULL) FROM kinds", UnsupportedQuery, "must be a constant"),
        ("SELECT kind @> '{}' FROM kinds", UndefinedFunction, "operator does not exist: text @> unknown"),
        ("SELECT kind OPERATOR(@>) '{}' FROM kinds", UndefinedFunction, "operator does not exist: text @> unknown"),
        ("SELECT shape && '{}' FROM kinds", UndefinedFunction, "operator does not exist: json && unknown"),
        ("SELECT words ? 'a' FROM kinds", UndefinedFunction, "operator does not exist: text[] ? unknown"),
        ("SELECT shape @> words FROM kinds", UndefinedFunction, "operator does not exist: json @> text[]"),
        ("SELECT shape @> shape FROM kinds", UnsupportedQuery, "must be a constant"),
        (f"SELECT shape @> '[{'1, ' * 49}1]' FROM kinds", LimitExceeded, "at most 50 values"),
        ('SELECT shape @> \'{"a": [[[{"b": [[]]}]]]}\' FROM kinds', LimitExceeded, "4 arrays within each other"),
        ("SELECT '[{\"a\": -1e23}]' <@ shape FROM kinds", LimitExceeded, "numbers below 10^23"),
        *(
            (f"SELECT COUNT(*) FROM visits, {made}", LimitExceeded, "UNNEST produce more than")
            for made in (
                "UNNEST(codes) c WHERE STRING_TO_ARRAY(c, 'c') <@ codes",
                "UNNEST(codes) c, UNNEST(STRING_TO_ARRAY(c, 'c')) d WHERE d = ANY (codes)",
                "UNNEST(codes) c WHERE c = ANY (STRING_TO_ARRAY(line, ','))",
                "UNNEST(codes) c WHERE c = ANY (codes[1:2])",
                "UNNEST(codes) c, generate_series(1, 2) s WHERE s = 1 OR data::jsonb ? c",
                "UNNEST(codes) c, generate_series(1, 2) s WHERE s = CARDINALITY(marks[2:])",
                "generate_series(1, 1001) s WHERE s = 1 OR data::jsonb @> '[1]'",
                "generate_series(1, 1001) s WHERE (s = 1) IN (SELECT 'a' = ANY (codes))",
            )
        ),
        ("SELECT COALESCE(words, '{a') FROM kinds", InvalidText, "malformed array literal"),
        ("SELECT COUNT(*) FROM visits WHERE (COALESCE(marks, '{a}'))[1] = 1", InvalidText, "for type integer"),
        (
            "SELECT COUNT(*) FROM visits WHERE (COALESCE(costs, '{1.5}'))[1] = 1",
            DatatypeMismatch,
            "only supported after ANY",
        ),
        ("SELECT shape OPERATOR(@@) '$.a' FROM kinds", UnsupportedQuery, "operator @@ is not supported"),
        ("SELECT shape @? '$.a' FROM kinds", UnsupportedQuery, "operator @? is not supported"),
        ("SELECT shape @> '{a}' FROM kinds", InvalidText, "invalid input syntax for type jsonb"),
        ("SELECT shape ?| words FROM kinds", UnsupportedQuery, "?| takes an array of keys"),
        ("SELECT '[1,]'::json", InvalidText, 'invalid input syntax for type json: "[1,]"'),
        ("SELECT 'NaN'::jsonb", InvalidText, "invalid input syntax for type jsonb"),
        ("SELECT '\"\\u0000\"'::jsonb", InvalidText, "unsupported escape sequence"),
        (f"SELECT '{'[' * 101}{']' * 101}'::json", InvalidText, "deeper than 100 levels"),
        ("SELECT JSON_TYPEOF(kind) FROM kinds", UndefinedFunction, "function json_typeof(text) does not exist"),
        ("SELECT kind -> 'a' FROM kinds", DatatypeMismatch, "operator -> needs json, not text"),
        ("SELECT words[3000000000] FROM kinds", InvalidParameter, "integer out of range"),
        ("SELECT words[-3000000000:] FROM kinds", InvalidParameter, "integer out of range"),
        ("SELECT (ARRAY_AGG(shape))[1] FROM kinds", DatatypeMismatch, "cannot be read from its array"),
        ("SELECT words[kind] FROM kinds", UnsupportedQuery, "a subscript must be a whole number"),
        ("SELECT shape[0] FROM kinds", UnsupportedQuery, "a subscript must be a whole number"),
        ("SELECT CARDINALITY(kind) FROM kinds", UndefinedFunction, "does not exist"),
        ("SELECT ARRAY_LENGTH(words, 2) FROM kinds", InvalidParameter, "from 1 to 1"),
        ("SELECT STRING_TO_ARRAY(kind, '') FROM kinds", UnsupportedQuery, "a separator that is not empty"),
        ("SELECT 1.5 = ANY (words) FROM kinds", DatatypeMismatch, "cannot be"),
        ("SELECT 1 < ANY (words) FROM kinds", DatatypeMismatch, "cannot be matched"),
        ("SELECT kind LIKE ANY (words) FROM kinds", UnsupportedQuery, "UNNEST the array in FROM"),
        ("SELECT 1 FROM kinds, UNNEST(kind) AS u", UnsupportedQuery, "UNNEST takes arrays"),
        ("SELECT 1 FROM kinds, UNNEST(words, ARRAY[1]) AS u", UnsupportedQuery, "UNNEST takes arrays"),
        ("SELECT UNNEST(words), generate_series(1, 2) FROM kinds", UnsupportedQuery, "must stand alone"),
        ("SELECT COUNT(*) FROM generate_series(1, 2) WITH ORDINALITY AS u", UnsupportedQuery, "ORDINALITY"),
        ("SELECT 1 FROM kinds RIGHT JOIN UNNEST(words) AS u ON TRUE", UnsupportedQuery, "LATERAL is only supported"),
        ("SELECT CONCAT(data) FROM visits LIMIT 0", DatatypeMismatch, "cannot cast"),
        ("SELECT data::text FROM visits LIMIT 0", DatatypeMismatch, "cannot cast"),
        ("SELECT codes::text FROM visits LIMIT 0", DatatypeMismatch, "cannot cast"),
        ("SELECT COUNT(DISTINCT data) FROM visits", DatatypeMismatch, "cannot be counted as distinct"),
        (
            "SELECT COUNT(*) FROM visits WHERE JSON_BUILD_OBJECT('a', day) ->> 'a' = '1'",
            UnsupportedQuery,
            "JSON is not",
        ),
    ],
)
def test_refused(hosts: Mapping[str, Host], tmp_path: Path, sql: str, error: type[Error], says: str) -> None:
    with opened(hosts["duckdb"], tmp_path) as session, pytest.raises(error) as raised:
        rows(session, sql)
    assert says in f"{raised.value} {raised.value.hint}"
