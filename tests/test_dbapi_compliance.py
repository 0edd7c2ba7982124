"""The PyPI suite dbapi-compliance, over a source that is only read.

Its tables are the owner's, public and filled beforehand; where the suite makes them, there is a statement that has no
result.
What needs rows to be written is put in other words here, and NOT_AS_WRITTEN says why.
"""

from pathlib import Path
from typing import Any, ClassVar

import dbapi20
import duckdb
import pytest

import dpsql

NOT_AS_WRITTEN = {
    "test_callproc": "stored procedures are not supported: NotSupportedError, as PEP 249 says of what is optional",
    "test_cursor_isolation": "inserts: what one cursor sets is seen by the other, and nothing else is there to be seen",
    "test_executemany": "inserts: of statements without a result only, for others would be charged and not be seen",
    "test_fetchone": "inserts into an empty table: of two tables, one empty and one with a row",
    "test_nextset": "the suite has none: drivers are to bring their own",
    "test_non_idempotent_close": "the suite calls it disputed: a second close does no harm, any other use is refused",
    "test_None": "inserts: NULL comes from a public table",
    "test_rowcount": "inserts: the rows of a query, and -1 after what has none",
    "test_setoutputsize": "the suite has none: drivers are to bring their own",
}

POLICY = """
version = 1

[dataset]
name = "bar"
url = "duckdb:///bar.duckdb"
privacy_unit = "guest"
budget = { epsilon = 10, delta = 1e-6 }

[roles.analyst]
budget = { epsilon = 5, delta = 1e-6 }
query = { epsilon = 0.1 }

[tables.guests]
unit_key = "guest_id"
max_rows = 1
[tables.guests.columns]
age = { type = "integer", lower = 0, upper = 110 }
"""
TABLE = """
[tables.{name}]
public = true
[tables.{name}.columns]
{columns}
"""
TABLES = {
    "dbapi20test_booze": ("name",),
    "dbapi20test_barflys": ("name", "drink"),
    "one_beer": ("name",),
    "no_drink": ("name", "drink"),
}


@pytest.fixture(scope="module")
def bar(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The policy of a bar: guests, who are protected, and what is on the menu."""
    folder = tmp_path_factory.mktemp("bar")
    with duckdb.connect(str(folder / "bar.duckdb")) as database:
        database.execute("CREATE TABLE guests (guest_id INTEGER PRIMARY KEY, age INTEGER)")
        for name, columns in TABLES.items():
            database.execute(f"CREATE TABLE {name} ({', '.join(f'{column} VARCHAR' for column in columns)})")
        samples = [(name,) for name in dbapi20.DatabaseAPI20Test.samples]
        database.executemany("INSERT INTO dbapi20test_booze VALUES (?)", samples)
        database.execute("INSERT INTO one_beer VALUES ('Victoria Bitter')")
        database.execute("INSERT INTO no_drink VALUES ('a', NULL)")
    tables = [
        TABLE.format(name=name, columns="\n".join(f'{column} = {{ type = "text" }}' for column in columns))
        for name, columns in TABLES.items()
    ]
    policy = folder / "bar.toml"
    policy.write_text(POLICY + "".join(tables), encoding="utf-8")
    return policy


class TestCompliance(dbapi20.DatabaseAPI20Test):  # type: ignore[misc]  # the suite has no types
    driver = dpsql
    connect_args: ClassVar[tuple[Path, ...]] = ()
    connect_kw_args: ClassVar[dict[str, Any]] = {"user": "ana"}

    @pytest.fixture(autouse=True)
    def _in_the_bar(self, bar: Path) -> None:
        self.connect_args = (bar,)  # type: ignore[misc]

    def tearDown(self) -> None:
        """Leave the tables; there is nothing to drop."""

    def executeDDL1(self, cursor: dpsql.Cursor) -> None:
        """A statement without a result, as CREATE TABLE is."""
        cursor.execute("SET dpsql.notices = on")

    executeDDL2 = executeDDL1

    def _populate(self) -> list[str]:
        """The owner has filled the tables."""
        return []

    def _paraminsert(self, cur: dpsql.Cursor) -> None:
        """Parameters, beside percent signs that are none and are taken as they are without parameters."""
        cur.execute("SELECT 'Victoria Bitter', 'thi%s :may ca%(u)se? troub:1e'")
        self.assertEqual(cur.fetchall(), [("Victoria Bitter", "thi%s :may ca%(u)se? troub:1e")])
        cur.execute("SELECT %(beer)s, 'thi%%s :may ca%%(u)se? troub:1e'", {"beer": "Cooper's"})
        self.assertEqual(cur.fetchall(), [("Cooper's", "thi%s :may ca%(u)se? troub:1e")])
        self.assertEqual(cur.rowcount, 1)

    def test_rowcount(self) -> None:
        with self._connect() as con:
            cur = con.cursor()
            self.assertEqual(cur.rowcount, -1)
            self.executeDDL1(cur)
            self.assertEqual(cur.rowcount, -1)
            cur.execute("SELECT name FROM one_beer")
            self.assertEqual(cur.rowcount, 1)
            cur.execute("SELECT name FROM dbapi20test_booze")
            self.assertEqual(cur.rowcount, len(self.samples))
            self.executeDDL2(cur)
            self.assertEqual(cur.rowcount, -1)

    def test_cursor_isolation(self) -> None:
        with self._connect() as con:
            cur1, cur2 = con.cursor(), con.cursor()
            cur1.execute("SET dpsql.epsilon = 0.2")
            self.assertEqual(cur2.execute("SHOW dpsql.epsilon").fetchall(), [("0.2",)])
            cur1.execute("SELECT name FROM one_beer")
            cur2.execute("SELECT name FROM dbapi20test_booze")
            self.assertEqual(cur1.fetchall(), [("Victoria Bitter",)])
            self.assertEqual(len(cur2.fetchall()), len(self.samples))

    def test_executemany(self) -> None:
        with self._connect() as con:
            cur = con.cursor()
            cur.executemany("SET dpsql.epsilon = 0.3", [(), {}])
            self.assertEqual(cur.execute("SHOW dpsql.epsilon").fetchone(), ("0.3",))
            with self.assertRaises(dpsql.NotSupportedError):
                cur.executemany("SELECT %(beer)s", [{"beer": "Boag's"}, {"beer": "Cooper's"}])
            self.assertRaises(dpsql.Error, cur.fetchone)

    def test_fetchone(self) -> None:
        with self._connect() as con:
            cur = con.cursor()
            self.assertRaises(dpsql.Error, cur.fetchone)
            self.executeDDL1(cur)
            self.assertRaises(dpsql.Error, cur.fetchone)
            cur.execute("SELECT name FROM dbapi20test_barflys")
            self.assertIsNone(cur.fetchone())
            self.assertEqual(cur.rowcount, 0)
            cur.execute("SELECT name FROM one_beer")
            self.assertEqual(cur.fetchone(), ("Victoria Bitter",))
            self.assertIsNone(cur.fetchone())
            self.assertEqual(cur.rowcount, 1)

    def test_None(self) -> None:
        with self._connect() as con:
            cur = con.cursor()
            cur.execute("SELECT drink FROM no_drink")
            self.assertEqual(cur.fetchall(), [(None,)])
            cur.execute("SELECT %s", [None])
            self.assertEqual(cur.fetchall(), [(None,)])

    def test_callproc(self) -> None:
        with self._connect() as con:
            self.assertRaises(dpsql.NotSupportedError, con.cursor().callproc, "lower", ("FOO",))

    def test_nextset(self) -> None:
        with self._connect() as con:
            cur = con.cursor()
            self.assertRaises(dpsql.Error, cur.nextset)
            cur.execute("SELECT name FROM dbapi20test_booze")
            self.assertIsNone(cur.nextset())
            self.assertEqual(cur.fetchall(), [])

    def test_non_idempotent_close(self) -> None:
        con = self._connect()
        con.close()
        con.close()
        for use in (con.cursor, con.commit, con.rollback):
            self.assertRaises(dpsql.InterfaceError, use)

    def test_setoutputsize(self) -> None:
        with self._connect() as con:
            cur = con.cursor()
            cur.setoutputsize(1)
            cur.setoutputsize(1, 0)
            cur.execute("SELECT %s", ["longer than that"])
            self.assertEqual(cur.fetchone(), ("longer than that",))


def test_the_other_tests_are_run_as_the_suite_has_them() -> None:
    written_anew = {name for name in vars(TestCompliance) if name.startswith("test_")}
    assert written_anew == set(NOT_AS_WRITTEN)
    as_written = {name for name in dir(dbapi20.DatabaseAPI20Test) if name.startswith("test_")} - written_anew
    assert {"test_description", "test_execute", "test_fetchall", "test_fetchmany", "test_mixedfetch"} <= as_written
    assert len(as_written) >= 25
