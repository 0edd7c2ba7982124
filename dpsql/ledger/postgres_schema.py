"""The tables of a ledger in PostgreSQL: those of a SQLite ledger (schema.py), in a schema of their own.

Rule 1: the columns and keys are made from the text that makes them in SQLite, so there is one layout.
Rule 2: `layout` has one row. Whoever writes locks it first, until the end of the transaction: so there is one writer.
Rule 3: `records` only grows; triggers refuse everything but an insert at its end. Their owner can drop them, as any
    owner can; the hash chain shows what is done then.
"""

import re
import sqlite3
from contextlib import closing
from functools import lru_cache
from typing import Final

from dpsql.ledger.postgres_connection import SCHEMA
from dpsql.ledger.schema import CONTENT, DERIVED, READS, RECORDS, VERSION
from dpsql.ledger.store import Store

LOCK: Final = "SELECT version, current_setting('fsync') FROM layout FOR UPDATE"
"""Waits until no other process writes."""

LOOK: Final = "SELECT version, current_setting('fsync') FROM layout"
"""The same without waiting, for who only reads."""

_FIRST: Final = 2
"""The first layout that PostgreSQL had."""

_TYPES: Final = {"INTEGER": "bigint", "TEXT": "text", "BLOB": "bytea"}

_KEEP: Final = "BEGIN RAISE EXCEPTION 'records are append-only'; END"
_FOLLOW: Final = (
    f"BEGIN IF NEW.seq <= (SELECT max(seq) FROM {SCHEMA}.records) "  # noqa: S608 - a constant
    "THEN RAISE EXCEPTION 'records are append-only'; END IF; RETURN NEW; END"
)
_TRIGGERS: Final = f"""
CREATE FUNCTION records_keep() RETURNS trigger LANGUAGE plpgsql AS $${_KEEP}$$;
CREATE TRIGGER records_keep BEFORE UPDATE OR DELETE OR TRUNCATE ON records
    FOR EACH STATEMENT EXECUTE FUNCTION records_keep();
CREATE FUNCTION records_follow() RETURNS trigger LANGUAGE plpgsql AS $${_FOLLOW}$$;
CREATE TRIGGER records_follow BEFORE INSERT ON records FOR EACH ROW EXECUTE FUNCTION records_follow();
"""
_LAYOUT: Final = f"CREATE TABLE layout (version INTEGER NOT NULL); INSERT INTO layout VALUES ({VERSION});"  # noqa: S608

_BROUGHT: Final = f"UPDATE layout SET version = {VERSION}"  # noqa: S608 - a constant

_KEEP_TYPE, _FOLLOW_TYPE = 2 + 8 + 16 + 32, 1 + 2 + 4
"""pg_trigger.tgtype: row 1, before 2, insert 4, delete 8, update 16, truncate 32."""

_RELATIONS = """
SELECT 'table', c.relname::text, c.relkind::text || c.relpersistence::text,
    (c.relrowsecurity OR c.relhasrules OR c.relhassubclass OR c.relispartition)::text
FROM pg_class c WHERE c.relnamespace = ?::regnamespace AND c.relkind NOT IN ('i', 't')
"""
_COLUMNS = """
SELECT 'column', c.relname || '.' || a.attname,
    format_type(a.atttypid, a.atttypmod) || coalesce(' ' || nullif(l.collname, 'C'), ''),
    CASE WHEN a.atthasdef OR a.attidentity <> '' THEN 'default' ELSE a.attnotnull::text END
FROM pg_class c JOIN pg_attribute a ON a.attrelid = c.oid LEFT JOIN pg_collation l ON l.oid = a.attcollation
WHERE c.relnamespace = ?::regnamespace AND c.relkind = 'r' AND a.attnum > 0 AND NOT a.attisdropped
"""
_KEYS = """
SELECT 'key', c.relname::text, (
    SELECT string_agg(a.attname, ' ' ORDER BY k.place) FROM unnest(i.indkey) WITH ORDINALITY AS k (attnum, place)
    LEFT JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = k.attnum
), (i.indisvalid AND i.indisready AND i.indimmediate AND i.indpred IS NULL AND i.indexprs IS NULL)::text
FROM pg_class c JOIN pg_index i ON i.indrelid = c.oid WHERE c.relnamespace = ?::regnamespace AND i.indisunique
"""
_GUARDS = """
SELECT 'trigger', t.tgname::text, c.relname || ' ' || t.tgtype || ' ' || t.tgenabled::text, f.prosrc
FROM pg_class c JOIN pg_trigger t ON t.tgrelid = c.oid JOIN pg_proc f ON f.oid = t.tgfoid
WHERE c.relnamespace = ?::regnamespace
"""
_CONSTRAINTS = """
SELECT 'constraint', n.conname::text, c.relname::text, n.contype::text
FROM pg_class c JOIN pg_constraint n ON n.conrelid = c.oid
WHERE c.relnamespace = ?::regnamespace AND n.contype NOT IN ('p', 'u', 'n')
"""
_OBJECTS = "UNION ALL".join([_RELATIONS, _COLUMNS, _KEYS, _GUARDS, _CONSTRAINTS])

_RIGHTS = """
SELECT c.relname::text, p.name FROM pg_class c CROSS JOIN unnest(ARRAY['SELECT', 'INSERT', 'UPDATE', 'DELETE'])
    AS p (name)
WHERE c.relnamespace = ?::regnamespace AND c.relkind = 'r' AND NOT has_table_privilege(c.oid, p.name)
    AND NOT (c.relname = 'layout' AND p.name IN ('INSERT', 'DELETE'))
    AND NOT (c.relname = 'records' AND p.name IN ('UPDATE', 'DELETE'))
ORDER BY 1, 2
"""

Fact = tuple[str, str, str, str]


def tables() -> str:
    """Return the statements that make a new ledger in an empty schema."""
    return "".join(_in_postgres(statement) for statement in (*_table_statements(), _LAYOUT)) + _TRIGGERS


def migration(version: int) -> str | None:
    """Return the statements that bring the tables of an older layout to this one; None if that is not known."""
    return _in_postgres(READS) + _BROUGHT if version == _FIRST else None


def altered(store: Store) -> list[str]:
    """Return the tables, columns, keys and triggers that are not as dpsql makes them, one sentence each."""
    facts = set(store.execute(_OBJECTS, [SCHEMA] * 5).fetchall()) ^ _expected()
    found = sorted({(kind, name) for kind, name, *_ in facts})
    return [f"the {kind} {name} was altered, added or removed" for kind, name in found]


def missing_rights(store: Store) -> list[tuple[str, str]]:
    """Return the tables on which this role lacks a right that a gateway needs, and the right."""
    return store.execute(_RIGHTS, [SCHEMA]).fetchall()


def _table_statements() -> list[str]:
    """Return what makes the tables in SQLite."""
    statements = [text for text in re.split(r"(?<=;)\n", RECORDS + DERIVED + CONTENT) if text.strip()]
    return [text for text in statements if not re.match(r"\s*(CREATE TRIGGER|BEGIN|WHEN)", text)]


def _in_postgres(statement: str) -> str:
    """Return a statement for SQLite as PostgreSQL has it."""
    typed = re.sub("|".join(_TYPES), lambda found: _TYPES[found[0]], statement.replace(" WITHOUT ROWID", ""))
    # Text is compared by its bytes, as in SQLite; `user` is a word of SQL there.
    collated = re.sub(r"\btext\b", 'text COLLATE "C"', typed)
    return re.sub(r"(?<![_\w])user(?= text|,)", '"user"', collated)


@lru_cache(maxsize=1)
def _expected() -> frozenset[Fact]:
    """Return the facts of a new ledger, read from the tables as SQLite has them."""
    facts: set[Fact] = {
        ("trigger", "records_keep", f"records {_KEEP_TYPE} O", _KEEP),
        ("trigger", "records_follow", f"records {_FOLLOW_TYPE} O", _FOLLOW),
    }
    with closing(sqlite3.connect(":memory:")) as fresh:
        fresh.executescript("".join(_table_statements()) + _LAYOUT)
        for (table,) in fresh.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall():
            facts.add(("table", table, "rp", "false"))
            columns = fresh.execute(f"PRAGMA table_info({table})").fetchall()
            for _, name, kind, not_null, _, key in columns:
                facts.add(("column", f"{table}.{name}", _TYPES[kind], "true" if not_null or key else "false"))
            keys = [[name for *_, key, name in sorted((each[5], each[1]) for each in columns) if key]]
            for _, index, unique, *_ in fresh.execute(f"PRAGMA index_list({table})").fetchall():
                keys += [[name for *_, name in fresh.execute(f"PRAGMA index_info({index})")]] if unique else []
            facts |= {("key", table, " ".join(names), "true") for names in keys if names}
    return frozenset(facts)
