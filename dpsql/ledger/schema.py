"""The tables of a ledger in SQLite; postgres_schema.py derives those of PostgreSQL from them.

Rule 1: `records` is authoritative and append-only; triggers refuse everything except an insert at its end.
Rule 2: every other table is derived from the records (derived_tables.py), except `verifiers` and `payloads`, whose
digests are in the records.
"""

APPLICATION_ID = 0x6470736C
"""Marks a SQLite file as a dpsql ledger ("dpsl")."""

VERSION = 3
"""Layout of the tables; an older file is migrated (sqlite_migration.py), a newer one is refused."""

RECORDS = """
CREATE TABLE records (
    seq INTEGER PRIMARY KEY,
    at TEXT NOT NULL,
    kind TEXT NOT NULL,
    body TEXT NOT NULL,
    previous TEXT NOT NULL,
    hash TEXT NOT NULL
);
CREATE TRIGGER records_keep_updates BEFORE UPDATE ON records
    BEGIN SELECT RAISE(ABORT, 'records are append-only'); END;
CREATE TRIGGER records_keep_deletes BEFORE DELETE ON records
    BEGIN SELECT RAISE(ABORT, 'records are append-only'); END;
CREATE TRIGGER records_keep_replaces BEFORE INSERT ON records
    WHEN NEW.seq <= (SELECT max(seq) FROM records)
    BEGIN SELECT RAISE(ABORT, 'records are append-only'); END;
"""

READS = """
CREATE TABLE reads (
    charge INTEGER PRIMARY KEY,
    reader TEXT NOT NULL,
    gateway TEXT NOT NULL,
    until TEXT NOT NULL
);
"""
"""What layout 3 has and layout 2 had not: the records of layout 2 say nothing of it."""

DERIVED = (
    READS
    + """
CREATE TABLE accounts (
    name TEXT PRIMARY KEY,
    role TEXT NOT NULL,
    verifier_digest TEXT,
    created TEXT NOT NULL,
    removed INTEGER NOT NULL,
    failures INTEGER NOT NULL,
    user_group TEXT
) WITHOUT ROWID;
CREATE TABLE freezes (
    scope TEXT NOT NULL,
    holder TEXT NOT NULL,
    cause TEXT NOT NULL,
    PRIMARY KEY (scope, holder)
) WITHOUT ROWID;
CREATE TABLE budgets (
    id INTEGER PRIMARY KEY,
    scope TEXT NOT NULL,
    holder TEXT,
    dataset TEXT,
    anchor TEXT NOT NULL,
    window_start TEXT NOT NULL,
    spent TEXT NOT NULL,
    charges INTEGER NOT NULL,
    last_charge INTEGER,
    resets INTEGER NOT NULL,
    granted_epsilon TEXT NOT NULL,
    granted_delta TEXT NOT NULL,
    UNIQUE (scope, holder, dataset)
);
CREATE TABLE terms (
    budget INTEGER NOT NULL,
    dataset TEXT NOT NULL,
    terms TEXT NOT NULL,
    fixed TEXT NOT NULL,
    PRIMARY KEY (budget, dataset)
) WITHOUT ROWID;
CREATE TABLE shared (
    budget INTEGER NOT NULL,
    origin INTEGER NOT NULL,
    PRIMARY KEY (budget, origin)
) WITHOUT ROWID;
CREATE TABLE caps (
    name TEXT PRIMARY KEY,
    budget INTEGER NOT NULL,
    adjacency TEXT NOT NULL
) WITHOUT ROWID;
CREATE TABLE datasets (
    name TEXT PRIMARY KEY,
    cap TEXT NOT NULL
) WITHOUT ROWID;
CREATE TABLE releases (
    id INTEGER PRIMARY KEY,
    charge INTEGER NOT NULL,
    user TEXT NOT NULL,
    origin INTEGER NOT NULL,
    dataset TEXT NOT NULL,
    key TEXT NOT NULL,
    price TEXT NOT NULL,
    reused INTEGER NOT NULL
);
CREATE UNIQUE INDEX releases_held ON releases (user, origin);
CREATE TABLE stored (
    position INTEGER PRIMARY KEY,
    release INTEGER NOT NULL UNIQUE,
    dataset TEXT NOT NULL,
    key TEXT NOT NULL,
    price TEXT NOT NULL,
    digest TEXT NOT NULL,
    size INTEGER NOT NULL,
    UNIQUE (dataset, key, price)
);
CREATE TABLE quarantine (
    key TEXT PRIMARY KEY
) WITHOUT ROWID;
CREATE TABLE totals (
    stored_bytes INTEGER NOT NULL
);
INSERT INTO totals VALUES (0);
"""
)

CONTENT = """
CREATE TABLE verifiers (
    name TEXT PRIMARY KEY,
    verifier TEXT NOT NULL
) WITHOUT ROWID;
CREATE TABLE payloads (
    release INTEGER PRIMARY KEY,
    payload BLOB NOT NULL
);
"""

TABLES = RECORDS + DERIVED + CONTENT
"""The whole of a new ledger."""

KEPT_TABLES = ("records", "verifiers", "payloads")
"""What a migration keeps; it derives the others again."""

DERIVED_TABLES = (
    "accounts",
    "freezes",
    "budgets",
    "terms",
    "shared",
    "caps",
    "datasets",
    "releases",
    "stored",
    "quarantine",
    "reads",
    "totals",
)
"""What `verify` rebuilds from the records and compares."""
