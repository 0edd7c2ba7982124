"""What a session is told beside queries, read word by word; what is wrong is said where it stands."""

import pytest

from dpsql.compiler.sql.parse import parse
from dpsql.compiler.sql.statements import (
    CloseStatement,
    CopyOptions,
    CopyStatement,
    DeclareStatement,
    ExecuteStatement,
    FetchStatement,
    ListenStatement,
    LockStatement,
    PrepareStatement,
    SetStatement,
)
from dpsql.errors import Error, InvalidParameter, InvalidSyntax, PolicyViolation, UnsupportedQuery
from dpsql.sqltypes import SqlType


@pytest.mark.parametrize(
    ("sql", "name", "hold", "scroll"),
    [
        ("DECLARE c CURSOR FOR SELECT 1", "c", False, None),
        ('declare "My C" no scroll cursor with hold for select 1', "My C", True, False),
        ("DECLARE C INSENSITIVE SCROLL CURSOR WITHOUT HOLD FOR WITH a AS (SELECT 1) SELECT * FROM a", "c", False, True),
        ("DECLARE c ASENSITIVE CURSOR FOR VALUES (1)", "c", False, None),
    ],
)
def test_declare(sql: str, name: str, hold: bool, scroll: bool | None) -> None:
    (read,) = parse(f"SET x = 1; {sql};")[1:]
    assert isinstance(read, DeclareStatement)
    assert (read.name, read.hold, read.scroll, read.sql) == (name, hold, scroll, sql)
    assert sql.endswith(read.query.sql)
    assert read.query.offset == len("SET x = 1; ") + sql.index(read.query.sql)


@pytest.mark.parametrize(
    ("sql", "direction", "count"),
    [
        ("FETCH c", "forward", 1),
        ("FETCH FROM c", "forward", 1),
        ("FETCH NEXT FROM c", "forward", 1),
        ("FETCH PRIOR IN c", "backward", 1),
        ("FETCH FIRST c", "absolute", 1),
        ("FETCH LAST FROM c", "absolute", -1),
        ("FETCH ABSOLUTE -3 FROM c", "absolute", -3),
        ("FETCH RELATIVE +2 FROM c", "relative", 2),
        ("FETCH 7 c", "forward", 7),
        ("FETCH -7 FROM c", "forward", -7),
        ("FETCH ALL FROM c", "forward", None),
        ("FETCH FORWARD c", "forward", 1),
        ("FETCH FORWARD 100 FROM c", "forward", 100),
        ("FETCH BACKWARD ALL FROM c", "backward", None),
        ("FETCH BACKWARD 2 IN c", "backward", 2),
    ],
)
def test_fetch_and_move(sql: str, direction: str, count: int | None) -> None:
    assert parse(sql) == (FetchStatement("c", direction, count, False, sql),)
    moved = sql.replace("FETCH", "MOVE", 1)
    assert parse(moved) == (FetchStatement("c", direction, count, True, moved),)


def test_close_and_listen() -> None:
    assert parse('CLOSE c; CLOSE "C"; CLOSE ALL') == (
        CloseStatement("c", "CLOSE c"),
        CloseStatement("C", 'CLOSE "C"'),
        CloseStatement(None, "CLOSE ALL"),
    )
    assert parse("LISTEN a; UNLISTEN *") == (
        ListenStatement("LISTEN", "LISTEN a"),
        ListenStatement("UNLISTEN", "UNLISTEN *"),
    )


def test_prepare_and_execute() -> None:
    (read,) = parse("PREPARE p (int, varchar(10), numeric(10, 2), unknown) AS SELECT $1")
    assert isinstance(read, PrepareStatement)
    assert read.types == (SqlType.INTEGER, SqlType.VARCHAR, SqlType.NUMERIC, None)
    assert (read.name, read.query.sql) == ("p", "SELECT $1")
    (bare,) = parse('PREPARE "P" AS VALUES (1)')
    assert isinstance(bare, PrepareStatement)
    assert (bare.name, bare.types) == ("P", ())
    sql = "EXECUTE p (1, 'a,)', f(2, 3), ARRAY[1, 2])"
    assert parse(sql) == (ExecuteStatement("p", ("1", "'a,)'", "f(2, 3)", "ARRAY[1, 2]"), sql),)
    assert parse("EXECUTE p") == (ExecuteStatement("p", (), "EXECUTE p"),)


CSV = CopyOptions("csv", delimiter=",", null="")


@pytest.mark.parametrize(
    ("rest", "options"),
    [
        ("", CopyOptions()),
        (
            "WITH (FORMAT text, DELIMITER '|', NULL 'none', HEADER)",
            CopyOptions(delimiter="|", null="none", header=True),
        ),
        ("(FORMAT csv)", CSV),
        ("(format 'csv')", CSV),
        ("WITH CSV", CSV),
        ("CSV HEADER", CopyOptions("csv", True, ",", "")),
        ("(FORMAT csv, HEADER off, FORCE_QUOTE *)", CopyOptions("csv", False, ",", "", force_quote=None)),
        ("(FORMAT csv, HEADER true, FORCE_QUOTE (a, b))", CopyOptions("csv", True, ",", "", force_quote=("a", "b"))),
        ("CSV QUOTE '''' FORCE QUOTE a, b", CopyOptions("csv", False, ",", "", "'", "'", ("a", "b"))),
        ("CSV FORCE QUOTE *", CopyOptions("csv", False, ",", "", force_quote=None)),
        ("CSV DELIMITER AS ';' NULL AS 'x' QUOTE '!' ESCAPE '?'", CopyOptions("csv", False, ";", "x", "!", "?")),
        ("WITH BINARY", CopyOptions("binary")),
        ("(FORMAT binary, ENCODING 'utf-8')", CopyOptions("binary")),
    ],
)
def test_copy(rest: str, options: CopyOptions) -> None:
    (read,) = parse(f"COPY (SELECT (1), ')') TO STDOUT {rest}".rstrip())
    assert isinstance(read, CopyStatement)
    assert (read.query.sql, read.query.offset, read.options) == ("SELECT (1), ')'", 6, options)


def test_copy_reads_texts_with_escapes_as_pdo_sends_them() -> None:
    (read,) = parse("COPY doctors TO STDIN WITH DELIMITER E'\t' NULL AS E'\\\\N'")
    assert isinstance(read, CopyStatement)
    assert (read.options.delimiter, read.options.null) == ("\t", "\\N")


def test_copy_of_a_table_selects_from_it() -> None:
    queries = [
        read.query.sql
        for read in parse('COPY icd10 TO STDOUT; COPY main."Icd" ("a""b", c) TO STDOUT')
        if isinstance(read, CopyStatement)
    ]
    assert queries == ['SELECT * FROM "icd10"', 'SELECT "a""b", "c" FROM "main"."Icd"']


@pytest.mark.parametrize(
    ("sql", "error", "says"),
    [
        ("DECLARE c BINARY CURSOR FOR SELECT 1", UnsupportedQuery, "binary cursors"),
        ("DECLARE c CURSOR FOR DELETE FROM t", InvalidSyntax, 'at or near "DELETE"'),
        ("DECLARE c CURSOR FOR", InvalidSyntax, "at end of input"),
        ("DECLARE c FOR SELECT 1", InvalidSyntax, 'at or near "FOR"'),
        ("DECLARE 'c' CURSOR FOR SELECT 1", InvalidSyntax, "at or near \"'c'\""),
        ("FETCH", InvalidSyntax, "at end of input"),
        ("FETCH ABSOLUTE FROM c", InvalidSyntax, 'at or near "FROM"'),
        ("FETCH 1.5 FROM c", InvalidSyntax, 'at or near "1.5"'),
        ("FETCH 99999999999999999999 FROM c", InvalidSyntax, "at or near"),
        ("FETCH 1 FROM c c", InvalidSyntax, 'at or near "c"'),
        ("CLOSE", InvalidSyntax, "at end of input"),
        ("PREPARE p (int", InvalidSyntax, "at end of input"),
        ("PREPARE p () AS SELECT 1", InvalidSyntax, 'at or near ")"'),
        ("PREPARE p (money) AS SELECT 1", UnsupportedQuery, '"money"'),
        ("PREPARE p SELECT 1", InvalidSyntax, 'at or near "SELECT"'),
        ("EXECUTE p (1,)", InvalidSyntax, 'at or near ")"'),
        ("EXECUTE p (1) x", InvalidSyntax, 'at or near "x"'),
        ("LISTEN", InvalidSyntax, "at end of input"),
        ("UNLISTEN a b", InvalidSyntax, 'at or near "b"'),
        ("COPY t FROM STDIN", PolicyViolation, "read-only"),
        ("COPY t TO '/etc/passwd'", PolicyViolation, "file or program"),
        ("COPY t TO PROGRAM 'sh'", PolicyViolation, "file or program"),
        ("COPY (DELETE FROM t) TO STDOUT", InvalidSyntax, 'at or near "DELETE"'),
        ("COPY t TO STDOUT (FORMAT xml)", InvalidParameter, '"xml" not recognized'),
        ("COPY t TO STDOUT (FORMAT csv, FORMAT csv)", InvalidParameter, "specified more than once"),
        ("COPY t TO STDOUT (FREEZE)", InvalidParameter, 'no option "freeze"'),
        ("COPY t TO STDOUT (HEADER maybe)", InvalidSyntax, 'at or near "maybe"'),
        ("COPY t TO STDOUT (DELIMITER x)", InvalidSyntax, 'at or near "x"'),
        ("COPY t TO STDOUT CSV FREEZE", InvalidSyntax, 'at or near "FREEZE"'),
        ("COPY t TO STDOUT (ENCODING 'LATIN1')", InvalidParameter, "LATIN1"),
        ("COPY t TO STDOUT (FORMAT binary, HEADER)", InvalidParameter, "BINARY mode"),
        ("COPY t TO STDOUT (QUOTE '!')", InvalidParameter, "requires CSV"),
        ("COPY t TO STDOUT (FORCE_QUOTE *)", InvalidParameter, "FORCE QUOTE requires CSV"),
        ("COPY t TO STDOUT (DELIMITER 'ab')", InvalidParameter, "single one-byte"),
        ("COPY t TO STDOUT (DELIMITER 'é')", InvalidParameter, "single one-byte"),
        ("COPY t TO STDOUT (DELIMITER 'a')", InvalidParameter, 'cannot be "a"'),
        ("COPY t TO STDOUT (NULL 'a\nb')", InvalidParameter, "newline"),
        ("COPY t TO STDOUT (DELIMITER '|', NULL 'a|')", InvalidParameter, "must not appear"),
        ("COPY t TO STDOUT (FORMAT csv, QUOTE ',')", InvalidParameter, "quote must differ"),
        ("COPY t TO STDOUT (FORMAT csv, NULL '\"')", InvalidParameter, "quote must differ"),
    ],
)
def test_what_is_wrong_is_said(sql: str, error: type[Error], says: str) -> None:
    with pytest.raises(error) as refusal:
        parse(sql)
    assert says in refusal.value.message
    if error is InvalidSyntax:
        assert refusal.value.position is not None
        assert 1 <= refusal.value.position <= len(sql) + 1
        assert refusal.value.hint or sql.startswith(("LISTEN", "UNLISTEN"))


@pytest.mark.parametrize(
    "sql",
    [
        "LOCK t IN ACCESS SHARE MODE",
        "lock table only a, s.b in access share mode nowait",
        "LOCK a IN ACCESS SHARE MODE",
    ],
)
def test_a_lock_that_readers_share(sql: str) -> None:
    assert parse(sql) == (LockStatement(sql),)


def test_other_locks_are_refused() -> None:
    with pytest.raises(InvalidSyntax):
        parse("LOCK TABLE t IN EXCLUSIVE MODE")


def test_time_zones_that_are_set_in_the_words_of_the_standard() -> None:
    assert parse("SET TIME ZONE LOCAL") == (SetStatement("timezone", None, "SET TIME ZONE LOCAL"),)
    sql = "SET TIME ZONE INTERVAL '+05:30' HOUR TO MINUTE"
    assert parse(sql) == (SetStatement("timezone", "INTERVAL '+05:30' HOUR TO MINUTE", sql),)
