"""Prepared tables in a PostgreSQL database: in a schema that the policy names, created by a role that may write.

Rule 1: a prepared table is used only if the schema's list of fingerprints names this very plan, and the catalog has the
    constraints that bound a unit's rows.
Rule 2: prepared tables are created and replaced in one transaction: either all are new or none.
Rule 3: only the role that creates the tables may own the schema and create tables in it. A table of another role could
    have triggers, which run with the privileges of the role that writes, and rows that the owner did not insert.
"""

import hashlib
from collections.abc import Mapping, Sequence
from typing import Final

import psycopg

from dpsql.backends.backend import Cancellation, Unreachable
from dpsql.backends.postgres_connections import Connections, Transaction
from dpsql.compiler.bounding.prepared_tables import ROW, UNIT, PreparedTablePlan
from dpsql.compiler.dialects.postgres import Postgres
from dpsql.compiler.ir.schema import PreparedTable
from dpsql.errors import DatabaseUnavailable

STALE: Final = "it was made for another policy or data_version, or cannot be read (dpsql prepare makes a new one)"
_MADE_BY: Final = "dpsql.copies"
_NAME_BYTES: Final = 63
_INTEGERS: Final = 2**31
SECONDS: Final = 6 * 3600.0
"""How long making the copies may take."""

_ALONE: Final = """
NOT EXISTS (SELECT FROM aclexplode(n.nspacl) AS a WHERE a.privilege_type = 'CREATE' AND a.grantee <> n.nspowner)
AND NOT EXISTS (SELECT FROM pg_class AS other WHERE other.relnamespace = n.oid AND other.relowner <> n.nspowner)
"""
_MINE: Final = f"""
SELECT pg_get_userbyid(n.nspowner) = current_user AND {_ALONE} FROM pg_namespace AS n WHERE n.nspname = $1
"""
_THERE: Final = f"""
SELECT has_schema_privilege(n.oid, 'USAGE') AND has_table_privilege(c.oid, 'SELECT') AND {_ALONE} FROM pg_namespace AS n
JOIN pg_class AS c ON c.relnamespace = n.oid AND c.relkind = 'r' WHERE n.nspname = $1 AND c.relname = $2
""".encode()
# A heir's rows are rows of the table too, and its constraints are not those of the heir.
_DECLARED: Final = b"""
SELECT c.relname, array_agg(pg_get_constraintdef(k.oid) ORDER BY k.contype, pg_get_constraintdef(k.oid) COLLATE "C")
FROM pg_namespace AS n JOIN pg_class AS c ON c.relnamespace = n.oid AND c.relkind = 'r'
JOIN pg_constraint AS k ON k.conrelid = c.oid AND k.contype IN ('p', 'c') AND k.convalidated AND NOT k.condeferrable
WHERE n.nspname = $1 AND has_table_privilege(c.oid, 'SELECT') AND NOT row_security_active(c.oid)
    AND NOT EXISTS (SELECT FROM pg_inherits AS i WHERE c.oid IN (i.inhparent, i.inhrelid))
GROUP BY c.relname
"""


def copy_name(table: str) -> str:
    """What engine SQL and the database call the copy of a table: unlike any table that somebody else would make."""
    name = f"dpsql.copy.{table}"
    fits = len(name.encode()) <= _NAME_BYTES
    return name if fits else f"dpsql.copy.{hashlib.sha256(table.encode()).hexdigest()[:32]}"


def copy_path(table: str, schema: str) -> str:
    """The copy of a table in its schema."""
    return f"{Postgres.quote_name(schema)}.{Postgres.quote_name(copy_name(table))}"


def read_prepared(
    transaction: Transaction, schema: str | None, plans: Sequence[PreparedTablePlan]
) -> dict[str, PreparedTable | str]:
    """The copies that may be read, and why others may not; none where none was ever prepared, or may be looked at."""
    if schema is None:
        return {}
    may_read = transaction.execute(_THERE, [schema, _MADE_BY]).fetchone()
    if may_read is None:
        return {}
    made: dict[str, str] = {}
    if may_read[0]:
        listed = f"SELECT name, fingerprint FROM {Postgres.quote_name(schema)}.{Postgres.quote_name(_MADE_BY)}"
        made = dict(transaction.execute(listed.encode()).fetchall())
    declared: dict[str, list[str]] = dict(transaction.execute(_DECLARED, [schema]).fetchall())
    return {
        plan.table: PreparedTable((copy_name(plan.table),), plan.rows_per_unit, plan.grids)
        if made.get(plan.table) == plan.fingerprint and declared.get(copy_name(plan.table)) == _constraints(plan)
        else STALE
        for plan in plans
    }


def _constraints(plan: PreparedTablePlan) -> list[str]:
    """What bounds a copy and its values, as PostgreSQL words it: the checks, then the key."""
    limits = [(ROW, 1, plan.rows_per_unit), *((each.name, each.grid.lower, each.grid.upper) for each in plan.grids)]
    checks = (
        "CHECK ((({0} >= {1}) AND ({0} <= {2})))".format(Postgres.quote_name(name), _worded(lower), _worded(upper))
        for name, lower, upper in limits
    )
    return [*sorted(checks), f"PRIMARY KEY ({Postgres.quote_name(UNIT)}, {Postgres.quote_name(ROW)})"]


def _worded(limit: int) -> str:
    if 0 <= limit < _INTEGERS:
        return str(limit)
    return f"'{limit}'::{'integer' if -_INTEGERS <= limit < _INTEGERS else 'bigint'}"


def write_prepared(
    url: str, timezone: str, schema: str, plans: Sequence[PreparedTablePlan], sources: Mapping[str, str], reader: str
) -> dict[str, int]:
    """Make the copies, in the place of those there were, and let a role read them.

    Args:
        url: Of the database, as a role that may make tables in the schema, or the schema.
        timezone: Of the dataset.
        schema: Where they are to be.
        plans: Which they are.
        sources: SQL of each table that the plans name.
        reader: The role that answers queries.

    Returns:
        For each table, the number of rows kept, for the data owner alone.

    Raises:
        DatabaseUnavailable: They cannot be made; those there were still stand.
    """
    connections = Connections(url, timezone)
    try:
        with connections.transaction(Cancellation(), SECONDS, writes=True) as transaction:
            return _written(transaction, schema, plans, sources, reader)
    except Unreachable as error:
        raise DatabaseUnavailable(f"the prepared tables could not be made: {error.args[0]}", hint=error.hint) from None
    except psycopg.Error as error:
        raise DatabaseUnavailable(
            f"the prepared tables could not be made: {type(error).__name__}; the old ones are unchanged",
            hint="--url names a role that may make tables in prepared_schema, and read those of the policy.",
        ) from None
    finally:
        connections.close()


def _written(
    transaction: Transaction, schema: str, plans: Sequence[PreparedTablePlan], sources: Mapping[str, str], reader: str
) -> dict[str, int]:
    place, rows = Postgres.quote_name(schema), {}

    def run(sql: str) -> int:
        return transaction.execute(sql.encode()).rowcount

    run(f"CREATE SCHEMA IF NOT EXISTS {place}")
    if transaction.execute(_MINE.encode(), [schema]).fetchone() != (True,):
        raise DatabaseUnavailable(
            f'the schema "{schema}" is not owned by the role that makes the tables, or others may create tables in it',
            hint="Name a new schema in prepared_schema, which dpsql creates. Or check its owner, its tables' "
            f"owners, and REVOKE CREATE ON SCHEMA {place} FROM PUBLIC",
        )
    for index, plan in enumerate(plans):
        named = ", ".join(f"{name} AS NOT MATERIALIZED ({source})" for name, source in sources.items())
        made = f'{place}."dpsql.made.{index}"'
        run(f"CREATE TABLE {made} ({plan.columns})")
        rows[plan.table] = run(f"INSERT INTO {made} WITH {named} {plan.rows}")
        run(f"ANALYZE {made}")
    listed = f"{place}.{Postgres.quote_name(_MADE_BY)}"
    run(f"CREATE TABLE IF NOT EXISTS {listed} (name text PRIMARY KEY, fingerprint text NOT NULL)")
    old = {name for (name,) in transaction.execute(f"SELECT name FROM {listed}".encode())}
    # The old ones are locked last, for as short as can be; their list is not, for who reads a copy reads it too.
    run(f"DELETE FROM {listed}")
    for table in sorted(old | rows.keys()):
        run(f"DROP TABLE IF EXISTS {copy_path(table, schema)}")
    for index, plan in enumerate(plans):
        run(f'ALTER TABLE {place}."dpsql.made.{index}" RENAME TO {Postgres.quote_name(copy_name(plan.table))}')
        run(f"GRANT SELECT ON {copy_path(plan.table, schema)} TO {Postgres.quote_name(reader)}")
        run(f"INSERT INTO {listed} VALUES ({Postgres.quote_text(plan.table)}, {Postgres.quote_text(plan.fingerprint)})")
    run(f"GRANT USAGE ON SCHEMA {place} TO {Postgres.quote_name(reader)}")
    run(f"GRANT SELECT ON {listed} TO {Postgres.quote_name(reader)}")
    return rows
