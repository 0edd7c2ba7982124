"""What counts as enforced by a PostgreSQL server: only what holds for every row, at all times."""

from collections.abc import Collection, Iterator

import pytest

from dpsql.backends.backend import Cancellation
from dpsql.backends.postgres_connections import Connections
from dpsql.backends.postgres_facts import Facts, is_exact, read_facts
from dpsql.sqltypes import SqlType
from tests.postgres import OwnServer, url_of

TABLES = """
CREATE TABLE plain (id int PRIMARY KEY, a int NOT NULL, b int, UNIQUE (a, b), UNIQUE (b) DEFERRABLE, c int, d int);
CREATE UNIQUE INDEX ON plain (a) WHERE b > 0;
CREATE UNIQUE INDEX ON plain ((b + 1));
CREATE UNIQUE INDEX ON plain (c) INCLUDE (d);
CREATE INDEX ON plain (d);

CREATE TABLE parent (id int PRIMARY KEY, a int NOT NULL, b int);
CREATE TABLE heir (c int) INHERITS (parent);
CREATE TABLE lone (id int PRIMARY KEY, a int NOT NULL);

CREATE TABLE parts (id int, day date NOT NULL, note text NOT NULL, PRIMARY KEY (id, day)) PARTITION BY RANGE (day);
CREATE TABLE parts_old PARTITION OF parts FOR VALUES FROM (MINVALUE) TO ('2025-01-01');
CREATE TABLE parts_new PARTITION OF parts DEFAULT;

CREATE FOREIGN DATA WRAPPER nothing;
CREATE SERVER afar FOREIGN DATA WRAPPER nothing;
CREATE FOREIGN TABLE remote (id int NOT NULL, a int) SERVER afar;
CREATE TABLE mixed (id int NOT NULL, day date NOT NULL) PARTITION BY RANGE (day);
CREATE TABLE mixed_near PARTITION OF mixed DEFAULT;
CREATE FOREIGN TABLE mixed_afar PARTITION OF mixed FOR VALUES FROM ('2025-01-01') TO ('2026-01-01') SERVER afar;

CREATE VIEW seen AS SELECT id, a FROM plain;
CREATE MATERIALIZED VIEW stored AS SELECT id, a FROM plain;
CREATE UNIQUE INDEX ON stored (id);

CREATE TABLE guarded (id int PRIMARY KEY);
ALTER TABLE guarded ENABLE ROW LEVEL SECURITY;
ALTER TABLE guarded FORCE ROW LEVEL SECURITY;

CREATE FUNCTION same(int, int) RETURNS boolean LANGUAGE sql IMMUTABLE AS 'SELECT $1 = $2';
CREATE OPERATOR CLASS own FOR TYPE int USING btree AS
    OPERATOR 1 <, OPERATOR 2 <=, OPERATOR 3 =, OPERATOR 4 >=, OPERATOR 5 >, FUNCTION 1 btint4cmp(int, int);
CREATE TABLE strange (id int NOT NULL);
CREATE UNIQUE INDEX ON strange (id own);

CREATE TYPE mood AS ENUM ('sad', 'glad');
CREATE TYPE pair AS (a int, b int);
CREATE DOMAIN price AS numeric(10, 2) NOT NULL;
CREATE DOMAIN dear AS price CHECK (VALUE > 100);
CREATE TYPE citext;
CREATE FUNCTION citextin(cstring) RETURNS citext LANGUAGE internal IMMUTABLE STRICT AS 'textin';
CREATE FUNCTION citextout(citext) RETURNS cstring LANGUAGE internal IMMUTABLE STRICT AS 'textout';
CREATE TYPE citext (INPUT = citextin, OUTPUT = citextout, CATEGORY = 'S', COLLATABLE = true);
CREATE COLLATION loose FROM "C";
SET allow_system_table_mods = on;
UPDATE pg_collation SET collisdeterministic = false WHERE collname = 'loose';
CREATE SCHEMA own;
CREATE TYPE own.text AS (a int);
CREATE TABLE typed (
    a smallint, b int, c bigint, d numeric, e numeric(8, 3), f real, g double precision, h boolean, i text,
    j varchar(20), k char(4), l date, m time, n timestamp, o timestamptz, p interval, q uuid, r json, s jsonb,
    t bytea, u int[], v inet, w mood, x pair, y price, z dear, aa citext,
    ab name, ac int4range, ad timetz, ae text COLLATE loose, af "char",
    ag own.text, "Odd ""Name" text
);
"""


@pytest.fixture(scope="module")
def database(each_postgres: OwnServer) -> Iterator[tuple[OwnServer, str]]:
    with each_postgres.database(TABLES) as name:
        yield each_postgres, name


def facts(server: OwnServer, name: str, *tables: str, user: str = "postgres") -> Facts:
    connections = Connections(url_of(server.url, dbname=name, user=user), "UTC")
    with connections.transaction(Cancellation(), 10) as transaction:
        found = read_facts(transaction, [("public", table) for table in tables])
    connections.close()
    return found


def keys(found: Facts, table: str) -> set[frozenset[str]]:
    return set(found.tables["public", table].unique_keys)


def not_null(found: Facts, table: str) -> set[str]:
    return {name for name, column in found.tables["public", table].columns.items() if column.not_null}


def sets(*keys: Collection[str]) -> set[frozenset[str]]:
    return {frozenset(key) for key in keys}


def test_of_a_table_what_holds_for_all_rows_at_all_times(database: tuple[OwnServer, str]) -> None:
    found = facts(*database, "plain", "nowhere")
    assert set(found.tables) == {("public", "plain")}
    assert list(found.tables["public", "plain"].columns) == ["id", "a", "b", "c", "d"]
    assert keys(found, "plain") == sets(["id"], ["a", "b"], ["c"])
    assert not_null(found, "plain") == {"id", "a"}
    assert found.tables["public", "plain"].is_unique(frozenset({"id"}))
    assert not found.tables["public", "plain"].is_unique(frozenset({"a", "b"}))


def test_an_index_that_is_not_valid_proves_nothing(database: tuple[OwnServer, str]) -> None:
    server, name = database
    server.run("CREATE TABLE doubled (id int NOT NULL)", "INSERT INTO doubled VALUES (1), (1)", database=name)
    with pytest.raises(Exception, match="could not create unique index"):
        server.run("CREATE UNIQUE INDEX CONCURRENTLY ON doubled (id)", database=name)
    assert keys(facts(server, name, "doubled"), "doubled") == set()
    server.run("DELETE FROM doubled", "REINDEX TABLE doubled", database=name)
    assert keys(facts(server, name, "doubled"), "doubled") == sets(["id"])


def test_a_key_of_a_parent_does_not_bind_its_heirs(database: tuple[OwnServer, str]) -> None:
    found = facts(*database, "parent", "heir", "lone")
    assert keys(found, "parent") == set()
    assert keys(found, "lone") == sets(["id"])
    assert not_null(found, "parent") >= {"a"}
    assert not_null(found, "heir") >= {"a"}
    server, name = database
    if server.run("SHOW server_version_num")[0][0] < "180000":  # PostgreSQL 18 keeps heirs from it
        server.run("ALTER TABLE heir ALTER a DROP NOT NULL", database=name)
        assert "a" not in not_null(facts(server, name, "parent"), "parent")


def test_a_key_of_a_partitioned_table_binds_all_of_it(database: tuple[OwnServer, str]) -> None:
    found = facts(*database, "parts", "parts_old")
    assert keys(found, "parts") == keys(found, "parts_old") == sets(["id", "day"])
    assert not_null(found, "parts") == {"id", "day", "note"}


def test_of_foreign_rows_nothing_is_enforced(database: tuple[OwnServer, str]) -> None:
    found = facts(*database, "remote", "mixed", "mixed_near")
    assert not_null(found, "remote") == not_null(found, "mixed") == set()
    assert not_null(found, "mixed_near") == {"id", "day"}


def test_of_views_nothing_is_enforced(database: tuple[OwnServer, str]) -> None:
    found = facts(*database, "seen", "stored")
    assert found.kinds == {("public", "seen"): "v", ("public", "stored"): "m"}
    assert keys(found, "seen") == keys(found, "stored") == set()
    assert not_null(found, "seen") == not_null(found, "stored") == set()


def test_each_read_finds_the_same_rows_where_the_server_keeps_all_of_them(database: tuple[OwnServer, str]) -> None:
    names = ("plain", "parent", "heir", "parts", "parts_old", "stored", "seen", "remote", "mixed", "mixed_near")
    found = facts(*database, *names)
    kept = {name for (_, name), table in found.tables.items() if table.is_stored}
    assert kept == set(names) - {"seen", "remote", "mixed"}
    narrowed = found.narrowed({("public", name): frozenset({"id"}) for name in names})
    assert {name for (_, name), table in narrowed.tables.items() if table.is_stored} == kept


def test_an_equality_of_somebodys_own_proves_nothing(database: tuple[OwnServer, str]) -> None:
    assert keys(facts(*database, "strange"), "strange") == set()


def test_not_null_for_future_rows_alone_proves_nothing(database: tuple[OwnServer, str]) -> None:
    server, name = database
    if server.run("SHOW server_version_num")[0][0] < "180000":
        return
    server.run("CREATE TABLE late (a int, b int, during daterange, spot int4range)", database=name)
    server.run("INSERT INTO late VALUES (NULL, NULL)", "ALTER TABLE late ADD NOT NULL a NOT VALID", database=name)
    assert not_null(facts(server, name, "late"), "late") == set()
    server.run("UPDATE late SET a = 1", "ALTER TABLE late VALIDATE CONSTRAINT late_a_not_null", database=name)
    assert not_null(facts(server, name, "late"), "late") == {"a"}
    server.run("ALTER TABLE late ADD UNIQUE (spot, during WITHOUT OVERLAPS)", database=name)
    assert keys(facts(server, name, "late"), "late") == set()


def test_types(database: tuple[OwnServer, str]) -> None:
    found = facts(*database, "typed")
    columns = found.tables["public", "typed"].columns
    types = {name: column.sql_type for name, column in columns.items()}
    expected = {
        SqlType.SMALLINT: "a",
        SqlType.INTEGER: "b",
        SqlType.BIGINT: "c",
        SqlType.NUMERIC: "d e y z",
        SqlType.REAL: "f",
        SqlType.DOUBLE: "g",
        SqlType.BOOLEAN: "h",
        SqlType.TEXT: "i w aa ab ae af",
        SqlType.VARCHAR: "j",
        SqlType.CHAR: "k",
        SqlType.DATE: "l",
        SqlType.TIME: "m",
        SqlType.TIMESTAMP: "n",
        SqlType.TIMESTAMPTZ: "o",
        SqlType.INTERVAL: "p",
        SqlType.UUID: "q",
        SqlType.JSON: "r s",
        SqlType.BYTEA: "t",
        SqlType.INTEGER_ARRAY: "u",
        SqlType.ARRAY: "v x ac ad ag",
    }
    by_name = {name: kind for kind, names in expected.items() for name in names.split()}
    assert types == by_name | {'Odd "Name': SqlType.TEXT}
    names = {name: column.type_name for name, column in columns.items()}
    assert names["d"] == "numeric"
    assert names["e"] == "numeric(8,3)"
    # Domains are told by what they are made of, and are no promise of NOT NULL.
    assert names["y"] == names["z"] == "numeric(10,2)"
    assert not_null(found, "typed") == set()
    assert names["k"] == "character(4)"
    assert names["w"] == "public.mood"
    assert names["aa"] == "citext"


def test_columns_whose_values_are_equal_just_where_canonical_ones_are(database: tuple[OwnServer, str]) -> None:
    columns = facts(*database, "typed").tables["public", "typed"].columns
    inexact = {name for name, column in columns.items() if not column.exact}
    assert inexact == set("dfgprsuvx") | {"aa", "ac", "ad", "ae", "af", "ag"}


def test_a_unique_key_of_a_type_that_is_read_more_coarsely_is_none(database: tuple[OwnServer, str]) -> None:
    server, name = database
    server.run("CREATE TABLE fine (a numeric PRIMARY KEY, b numeric(9, 2) NOT NULL UNIQUE)", database=name)
    table = facts(server, name, "fine").tables["public", "fine"]
    assert set(table.unique_keys) == sets(["a"], ["b"])
    assert [table.is_unique(frozenset(key)) for key in ("a", "b", "ab")] == [False, True, True]


def test_a_type_of_somebodys_own_is_exact_only_if_it_is_an_enumeration() -> None:
    assert is_exact("mood", "e", is_built_in=False)
    assert not is_exact("citext", "e", is_built_in=False)  # it is read as the extension's type of that name
    assert not is_exact("text", "c", is_built_in=False)  # so called where search_path has its schema first
    assert not is_exact("oid", "b", is_built_in=True)


def test_what_a_role_may_not_read_and_what_is_hidden_from_it(database: tuple[OwnServer, str]) -> None:
    server, name = database
    assert facts(*database, "plain", "guarded").unreadable == frozenset()
    server.run("CREATE ROLE peeper LOGIN")
    try:
        server.run("GRANT SELECT (id, a) ON plain TO peeper", "GRANT SELECT ON guarded TO peeper", database=name)
        found = facts(server, name, "plain", "guarded", user="peeper")
        assert {column for _, column in found.unreadable} == {"b", "c", "d"}
        assert found.filtered == {("public", "guarded")}
        assert [found.tables["public", name].is_stored for name in ("plain", "guarded")] == [True, False]
        server.run("REVOKE USAGE ON SCHEMA public FROM public", database=name)
        found = facts(server, name, "plain", user="peeper")
        assert {column for _, column in found.unreadable} == {"id", "a", "b", "c", "d"}
    finally:
        server.run("GRANT USAGE ON SCHEMA public TO public", "DROP OWNED BY peeper", "DROP ROLE peeper", database=name)


def test_narrowed_to_what_is_needed(database: tuple[OwnServer, str]) -> None:
    found = facts(*database, "plain", "typed")
    path = ("public", "plain")
    narrow = found.narrowed({path: frozenset({"a", "id"})})
    assert set(narrow.tables[path].columns) == {"a", "id"}
    assert narrow.tables[path].unique_keys == sets(["id"])
    assert set(narrow.kinds) == {path}
