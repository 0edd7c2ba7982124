"""Outside: files, settings, extensions, other databases, the environment, and functions that are not of the data."""

import shutil
from contextlib import closing
from pathlib import Path

import duckdb
import pytest

from dpsql.backends import DuckDBBackend
from dpsql.catalog.catalog import Catalogs
from tests.attacks.arena import Arena, Comparison, Verdict
from tests.attacks.naive import Ask, Refused, Rows

CANARY = "canary-5c0ffee"
"""What stands in a file, and in the environment."""
READING = (
    "SELECT MAX(content) FROM read_text('{folder}/secret.txt')",
    "SELECT MAX(column0) FROM read_csv('{folder}/secret.txt', header = false)",
    "SELECT MAX(column0) FROM '{folder}/secret.csv'",
    "SELECT MAX(content), COUNT(*) FROM people, read_blob('{folder}/secret.txt')",
    "SELECT MAX(file) FROM glob('{folder}/*')",
    "SELECT MAX(pg_read_file('{folder}/secret.txt'))",
    "SELECT MAX(getenv('DPSQL_CANARY'))",
    "SELECT MAX(current_setting('temp_directory')) || '{canary}'",
    "SELECT COUNT(*), MAX(path) || '{canary}' FROM duckdb_databases()",
    "SELECT MAX(value) || '{canary}' FROM duckdb_settings()",
    "SELECT MAX(lo_import('{folder}/secret.txt'))",
)
WRITING = (
    "COPY (SELECT COUNT(*) FROM people) TO '{folder}/written'",
    "COPY (SELECT SUM(age) FROM people) TO PROGRAM 'touch {folder}/written'",
    "ATTACH '{folder}/written' /* COUNT( */",
    "EXPORT DATABASE '{folder}/written' /* COUNT( */",
    "SELECT COUNT(*) FROM people; COPY people TO '{folder}/written'",
    "SELECT COUNT(*) FROM (COPY people TO '{folder}/written')",
    "DO $$ BEGIN EXECUTE 'COPY people TO ''{folder}/written'''; END $$ /* COUNT( */",
)
CHANGING = (
    "SET threads = 1; SELECT COUNT(*) FROM people",
    "SET memory_limit = '1GB' /* COUNT( */",
    "PRAGMA enable_profiling /* COUNT( */",
    "LOAD json /* COUNT( */",
    "INSTALL httpfs /* COUNT( */",
    "CREATE TEMP TABLE t AS SELECT COUNT(*) FROM people",
    "CREATE TEMP MACRO leak() AS (SELECT COUNT(*) FROM people)",
    "USE memory /* COUNT( */",
    "CHECKPOINT /* COUNT( */",
    "SELECT COUNT(*), setseed(0.5) FROM people",
    "SELECT COUNT(*) FROM people WHERE random() < 0.5",
    "SELECT SUM(nextval('s')) FROM people",
    "SELECT COUNT(gen_random_uuid()) FROM people",
    "SELECT COUNT(pg_sleep(0)) FROM people",
    "SELECT COUNT(*) FROM people TABLESAMPLE 50 PERCENT",
    "SELECT COUNT(*) FROM people USING SAMPLE 10",
    "SELECT COUNT(*) FROM query('SELECT * FROM people')",
    "SELECT COUNT(*) FROM query_table('people')",
)


def reached(ask: Ask, folder: Path) -> list[str]:
    """The texts that read or wrote what is outside, or that were run although they are no question about the data."""
    folder.mkdir()
    for name in ("secret.txt", "secret.csv"):
        (folder / name).write_text(CANARY, encoding="utf-8")
    found = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DPSQL_CANARY", CANARY)
        for text in (*READING, *WRITING, *CHANGING):
            try:
                answer = str(ask(text.format(folder=folder, canary=CANARY)))
            except Refused:
                continue
            finally:
                written = _take_away(folder / "written")
            found += [text] if CANARY in answer or written or text in CHANGING else []
    return found


def _take_away(path: Path) -> bool:
    """Whether there was anything."""
    if path.is_dir():
        shutil.rmtree(path)
    elif path.exists():
        path.unlink()
    else:
        return False
    return True


def verdict(ask: Ask, folder: Path) -> Verdict:
    tried = len(READING) + len(WRITING) + len(CHANGING)
    found = reached(ask, folder)
    return Verdict(f"{len(found)} of {tried} texts reach outside", bool(found))


def compare(arena: Arena) -> Comparison:
    return Comparison(
        "files, settings, volatile",
        verdict(arena.naive(True).ask, arena.folder / "outside-naive"),
        verdict(arena.dpsql(True, epsilon=900), arena.folder / "outside-dpsql"),
    )


def test_outside(arena: Arena) -> None:
    compare(arena).check()


LOCKED = {
    "enable_external_access": "false",
    "lock_configuration": "true",
    "autoinstall_known_extensions": "false",
    "autoload_known_extensions": "false",
    "allow_community_extensions": "false",
    "allow_unsigned_extensions": "false",
    "python_enable_replacements": "false",
    "temp_directory": "",
}
"""What every engine says of itself: each is a door of its own, and one that is shut twice stays shut."""
FEW = {"threads": "1"}
MOST_BYTES = 2_000_000_000
"""What an engine that holds no data may take."""


def settings(database: duckdb.DuckDBPyConnection) -> dict[str, str]:
    return dict(database.execute("SELECT name, value FROM duckdb_settings()").fetchall())


def memory(database: duckdb.DuckDBPyConnection) -> float:
    """Bytes that it may take."""
    number, unit = settings(database)["memory_limit"].split()
    return float(number) * {"MiB": 2**20, "GiB": 2**30}[unit]


def test_every_engine_is_locked_down(arena: Arena) -> None:
    engine = arena.engine(True)
    backend = engine._backend
    assert isinstance(backend, DuckDBBackend)
    with closing(Catalogs({"arena": engine})) as catalogs:
        catalog = catalogs.provider("arena", arena.session(True).user)._role.engine._database
        for database in (backend._database, backend._shadow, engine._post._database, catalog):
            assert settings(database).items() >= LOCKED.items()
        for database in (backend._shadow, engine._post._database, catalog):
            assert settings(database).items() >= FEW.items()
            assert memory(database) <= MOST_BYTES
    found = settings(backend._database)
    attached = backend._database.execute("SELECT DISTINCT readonly FROM duckdb_databases() WHERE path IS NOT NULL")
    assert attached.fetchall() == [(True,)]
    assert found["disabled_optimizers"].split(",") == ["statistics_propagation", "compressed_materialization"]
    with duckdb.connect() as free:  # which takes 80 % of the machine's memory
        assert memory(backend._database) == pytest.approx(memory(free) * 5 / 8, rel=0.1)


def test_the_engine_itself_reaches_nothing(arena: Arena) -> None:
    """Were any of it to come through the compiler, the engine would refuse it, and no setting of it can be changed."""
    backend = arena.engine(True)._backend
    assert isinstance(backend, DuckDBBackend)

    def ask(sql: str) -> Rows:
        try:
            return backend._database.cursor().execute(sql).fetchall()
        except duckdb.Error as error:
            raise Refused(str(error)) from None

    known = {*CHANGING, *(text for text in READING if "duckdb_" in text or "current_setting" in text)}
    assert {*reached(ask, arena.folder / "outside-engine")} <= known
    for setting in ("enable_external_access = true", "lock_configuration = false", "temp_directory = '/tmp'"):
        with pytest.raises(Refused, match="lock"):
            ask(f"SET {setting}")
