"""Bounded copies in PostgreSQL: made by one role and read by another, and never read once they are of other data."""

from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
from psycopg.conninfo import conninfo_to_dict

from dpsql.backends import Cancellation, open_backend, prepare_tables
from dpsql.backends.postgres import PostgresBackend
from dpsql.backends.postgres_prepared import STALE, copy_name
from dpsql.compiler.ir.schema import PreparedTable
from dpsql.compiler.plan.compile import compile_query
from dpsql.compiler.plan.query_plan import PlannedRelease
from dpsql.compiler.scope.tables import Catalog
from dpsql.compiler.sql.statements import QueryStatement
from dpsql.errors import BackendFailure, DatabaseUnavailable, InvalidPolicy
from dpsql.policy import load_policy
from tests.cli.conftest import Run, run  # noqa: F401  # a fixture
from tests.postgres import Server, served_clinic, url_of
from tests.strategies.world import CONSTANTS, SETTINGS

TOTAL = "SELECT COUNT(*), SUM(cost), COUNT(DISTINCT patient_id) FROM visits"


@pytest.fixture
def clinic(postgres_server: Server, clinic_file: Path, tmp_path: Path) -> Iterator[Path]:
    """A policy that names a schema for copies, of which there are none yet."""
    with served_clinic(postgres_server, clinic_file, tmp_path) as path:
        text = path.read_text(encoding="utf-8")
        path.write_text(text.replace('schema = "public"', 'schema = "public"\nprepared_schema = "The copies"'))
        yield path


@pytest.fixture
def owner(postgres_server: Server, clinic: Path) -> str:
    """The URL of a role that may write."""
    name = conninfo_to_dict(load_policy(clinic).dataset.url)["dbname"]
    return url_of(postgres_server.url, dbname=str(name))


def owners(owner: str, sql: str) -> None:
    """Run a statement of the owner's."""
    Server(owner).run(sql, database=str(conninfo_to_dict(owner)["dbname"]))


def prepared_of(policy: Path) -> dict[str, PreparedTable | str]:
    with closing(open_backend(load_policy(policy))) as backend:
        return dict(backend.schema.copies)


def planned(policy: Path, backend: PostgresBackend, sql: str = TOTAL) -> PlannedRelease:
    loaded = load_policy(policy)
    catalog = Catalog(loaded, backend.schema, loaded.roles[0])
    settings = replace(SETTINGS, epsilon=loaded.roles[0].query.epsilon)
    (release,) = compile_query(QueryStatement(sql), catalog, settings, CONSTANTS).releases
    return release


def opened(policy: Path) -> PostgresBackend:
    backend = open_backend(load_policy(policy))
    assert isinstance(backend, PostgresBackend)
    return backend


def test_a_role_that_writes_makes_them_and_one_that_reads_uses_them(clinic: Path, owner: str, run: Run) -> None:  # noqa: F811
    assert prepared_of(clinic) == {}
    assert "prepared tables: none" in run("policy", "check", clinic).stdout
    told = run("prepare", clinic, "--url", owner).stdout
    assert "visits: " in told and "written to schema The copies" in told
    assert "prepared table of visits: fresh, with 50 rows" in run("policy", "check", clinic).stdout
    with closing(opened(clinic)) as backend:
        release = planned(clinic, backend)
        assert release.contribution.copied
        backend.check((release,), (), Cancellation())
        from_copy = backend.fetch({0: release}, (), Cancellation()).releases[0]
    owners(owner, 'DROP SCHEMA "The copies" CASCADE')
    with closing(opened(clinic)) as backend:
        plain = backend.fetch({0: planned(clinic, backend)}, (), Cancellation()).releases[0]
    count, other = (int(each.cells[0][0]) for each in (from_copy, plain))
    assert count == other > 0


def test_they_are_made_anew_while_they_are_read(clinic: Path, owner: str) -> None:
    prepare_tables(load_policy(clinic), owner)
    with closing(opened(clinic)) as backend:
        release = planned(clinic, backend)
        before = backend.fetch({0: release}, (), Cancellation()).releases[0]
        prepare_tables(load_policy(clinic), owner)
        after = backend.fetch({0: release}, (), Cancellation()).releases[0]
    assert [cell.tolist() for cell in before.cells] == [cell.tolist() for cell in after.cells]


def test_json_and_arrays_are_kept(clinic: Path, owner: str) -> None:
    owners(owner, "CREATE TABLE notes (patient_id integer, body json, tags integer[])")
    owners(owner, "INSERT INTO notes SELECT 1, '{\"a\": 1}', ARRAY[i] FROM generate_series(1, 9) AS s(i)")
    reader = conninfo_to_dict(load_policy(clinic).dataset.url)["user"]
    owners(owner, f'GRANT SELECT ON notes TO "{reader}"')
    notes = """[tables.notes]
unit_key = "patient_id"
max_rows = 4
[tables.notes.columns]
body = { type = "json" }
tags = { type = "integer[]" }

[tables.doctors]"""
    clinic.write_text(clinic.read_text(encoding="utf-8").replace("[tables.doctors]", notes, 1), encoding="utf-8")
    prepare_tables(load_policy(clinic), owner)
    with closing(opened(clinic)) as backend:
        release = planned(
            clinic, backend, "SELECT COUNT(*) FROM notes WHERE body ->> 'a' = '1' AND CARDINALITY(tags) = 1"
        )
        assert release.contribution.copied
        found = backend.fetch({0: release}, (), Cancellation()).releases[0]
    assert [cell.tolist() for cell in found.cells] == [[4]]


@pytest.mark.parametrize(
    "change",
    [
        'ALTER TABLE "The copies"."dpsql.copy.visits" DROP CONSTRAINT "dpsql.made.0_pkey"',
        'ALTER TABLE "The copies"."dpsql.copy.visits" DROP CONSTRAINT "dpsql.made.0_dpsql.row_check"',
        'ALTER TABLE "The copies"."dpsql.copy.visits" DROP CONSTRAINT "dpsql.made.0_dpsql.grid.0_check"',
        'CREATE TABLE "The copies".heir () INHERITS ("The copies"."dpsql.copy.visits")',
        'DELETE FROM "The copies"."dpsql.copies"',
        'GRANT CREATE ON SCHEMA "The copies" TO PUBLIC',
        'ALTER TABLE "The copies"."dpsql.copies" OWNER TO {reader}',
        'UPDATE "The copies"."dpsql.copies" SET fingerprint = \'\'',
        'REVOKE SELECT ON "The copies"."dpsql.copies" FROM {reader}',
        'REVOKE SELECT ON "The copies"."dpsql.copy.visits" FROM {reader}',
        'ALTER TABLE "The copies"."dpsql.copies" RENAME fingerprint TO f',
        'DROP TABLE "The copies"."dpsql.copy.visits"',
    ],
)
def test_a_copy_that_was_changed_is_not_read(clinic: Path, owner: str, change: str) -> None:
    prepare_tables(load_policy(clinic), owner)
    reader = conninfo_to_dict(load_policy(clinic).dataset.url)["user"]
    with closing(opened(clinic)) as backend:
        release, other = planned(clinic, backend), planned(clinic, backend, "SELECT COUNT(*) FROM patients")
        backend.check((release, other), (), Cancellation())
        owners(owner, change.format(reader=reader))
        with pytest.raises(BackendFailure):
            backend.fetch({0: release}, (), Cancellation())
        # From then on it is refused before it is charged; others are answered.
        for _ in range(2):
            with pytest.raises(DatabaseUnavailable, match="have changed"):
                backend.check((release,), (), Cancellation())
            backend.check((other,), (), Cancellation())
        backend.fetch({0: other}, (), Cancellation())
    assert prepared_of(clinic)["visits"] == STALE


@pytest.mark.parametrize("limits", [(-5, 7), (-(10**10), 10**10), (2**31, 2**31 + 1), (-(2**31), 2**31 - 1)])
def test_limits_of_values_are_checked_as_the_server_words_them(
    clinic: Path, owner: str, limits: tuple[int, int]
) -> None:
    text, cost = clinic.read_text(encoding="utf-8"), "lower = 0, upper = 5000, step = 0.01"
    assert cost in text
    clinic.write_text(text.replace(cost, f"lower = {limits[0]}, upper = {limits[1]}, step = 1"), encoding="utf-8")
    prepare_tables(load_policy(clinic), owner)
    copy = prepared_of(clinic)["visits"]
    assert isinstance(copy, PreparedTable)
    assert (copy.grids[0].grid.lower, copy.grids[0].grid.upper) == limits


def test_a_copy_of_another_data_version_is_stale(clinic: Path, owner: str) -> None:
    prepare_tables(load_policy(clinic), owner)
    text = clinic.read_text(encoding="utf-8")
    clinic.write_text(text.replace('data_version = "2026-11"', 'data_version = "2026-12"'), encoding="utf-8")
    assert set(prepared_of(clinic).values()) == {STALE}


def test_what_is_missing_is_said(clinic: Path, owner: str) -> None:
    with pytest.raises(DatabaseUnavailable, match="InsufficientPrivilege; the old ones are unchanged"):
        prepare_tables(load_policy(clinic))
    with pytest.raises(DatabaseUnavailable, match="could not be made: the server has no such database"):
        prepare_tables(load_policy(clinic), url_of(owner, dbname="nowhere"))
    clinic.write_text(clinic.read_text(encoding="utf-8").replace('prepared_schema = "The copies"', ""))
    with pytest.raises(InvalidPolicy, match="prepared_schema is missing"):
        prepare_tables(load_policy(clinic), owner)


def test_a_server_that_is_away_is_said_to_be(clinic: Path, owner: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with closing(opened(clinic)) as backend:
        backend.close()
        monkeypatch.setattr(backend._connections, "_target", "host=127.0.0.1 port=1")
        with pytest.raises(DatabaseUnavailable):
            backend.prepare(owner)


def test_a_copy_that_no_table_needs_any_more_goes(clinic: Path, owner: str) -> None:
    prepare_tables(load_policy(clinic), owner)
    text = clinic.read_text(encoding="utf-8")
    start, end = text.index("[tables.prescriptions]"), text.index("[tables.doctors]")
    clinic.write_text(text[:start] + text[end:], encoding="utf-8")
    _, rows = prepare_tables(load_policy(clinic), owner)
    assert set(rows) == {"visits"} == set(prepared_of(clinic))
    left = "SELECT count(*) FROM pg_tables WHERE schemaname = 'The copies' AND tablename LIKE 'dpsql.copy.%'"
    assert Server(owner).run(left, database=str(conninfo_to_dict(owner)["dbname"])) == [(1,)]


def test_names_of_copies_are_their_own() -> None:
    names = {copy_name(table) for table in ("visits", "x" * 63, "x" * 62 + "y", "a.b")}
    assert len(names) == 4 and all(len(name.encode()) <= 63 for name in names)


_TRAP = """
CREATE TABLE "The copies"."dpsql.copies" (name text PRIMARY KEY, fingerprint text NOT NULL);
CREATE FUNCTION "The copies".trap() RETURNS trigger LANGUAGE plpgsql AS
    $$ BEGIN CREATE TABLE IF NOT EXISTS public.caught (); RETURN NEW; END $$;
CREATE TRIGGER trap BEFORE INSERT ON "The copies"."dpsql.copies" EXECUTE FUNCTION "The copies".trap()
"""


@pytest.mark.parametrize(
    "shared",
    [
        'CREATE SCHEMA "The copies" AUTHORIZATION {reader}; SET ROLE {reader};' + _TRAP,
        'CREATE SCHEMA "The copies"; GRANT ALL ON SCHEMA "The copies" TO PUBLIC; SET ROLE {reader};' + _TRAP,
        'CREATE SCHEMA "The copies"; GRANT ALL ON SCHEMA "The copies" TO {reader}; SET ROLE {reader};'
        + _TRAP
        + '; RESET ROLE; REVOKE CREATE ON SCHEMA "The copies" FROM {reader}',
    ],
)
def test_nothing_is_written_where_others_may_have_laid_traps(clinic: Path, owner: str, shared: str) -> None:
    reader = conninfo_to_dict(load_policy(clinic).dataset.url)["user"]
    owners(owner, shared.replace("{reader}", str(reader)))
    with pytest.raises(DatabaseUnavailable, match="others may create tables in it"):
        prepare_tables(load_policy(clinic), owner)
    owners(owner, "CREATE TABLE public.caught ()")  # nobody has made it
