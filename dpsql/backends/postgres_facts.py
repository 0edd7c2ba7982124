"""Constraints that a PostgreSQL server enforces, read from its catalog and never from rows.

Rule 1: a constraint counts only if the server enforces it for every row that a query of the table reads, also in
    partitions and child tables. It enforces none for views and foreign tables.
Rule 2: a constraint counts only if it always holds: not if it is NOT VALID, deferrable or partial, and not with a
    custom equality operator.
"""

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Final

from dpsql.backends.fit import TablePath
from dpsql.backends.postgres_connections import Transaction
from dpsql.compiler.dialects.postgres import Postgres
from dpsql.compiler.ir.schema import EngineColumn, EngineTable
from dpsql.sqltypes import SqlType

_BUILT_IN: Final = {
    "bool": SqlType.BOOLEAN,
    "int2": SqlType.SMALLINT,
    "int4": SqlType.INTEGER,
    "int8": SqlType.BIGINT,
    "numeric": SqlType.NUMERIC,
    "float4": SqlType.REAL,
    "float8": SqlType.DOUBLE,
    "text": SqlType.TEXT,
    "varchar": SqlType.VARCHAR,
    "bpchar": SqlType.CHAR,
    "name": SqlType.TEXT,
    "char": SqlType.TEXT,
    "date": SqlType.DATE,
    "time": SqlType.TIME,
    "timestamp": SqlType.TIMESTAMP,
    "timestamptz": SqlType.TIMESTAMPTZ,
    "interval": SqlType.INTERVAL,
    "uuid": SqlType.UUID,
    "json": SqlType.JSON,
    "jsonb": SqlType.JSON,
    "bytea": SqlType.BYTEA,
}
_LENGTH: Final = re.compile(r"\(\d+\)")
# An array's type is named as that of its elements, behind a line.
_TYPES: Final = _BUILT_IN | {f"_{name}": element.array for name, element in _BUILT_IN.items()}

# relkind: r a table, p a partitioned one, v a view, m a materialised view, f a foreign table.
# contype n: NOT NULL, which from PostgreSQL 18 on may be declared for future rows alone.
_FACTS: Final = b"""
WITH RECURSIVE wanted AS (
    SELECT n.nspname, c.relname, c.oid, c.relkind, row_security_active(c.oid) AS is_filtered,
        has_schema_privilege(n.oid, 'USAGE') AS is_visible
    FROM unnest($1::text[], $2::text[]) AS w (schema, relation)
    JOIN pg_namespace AS n ON n.nspname = w.schema
    JOIN pg_class AS c ON c.relnamespace = n.oid AND c.relname = w.relation AND c.relkind IN ('r', 'p', 'v', 'm', 'f')
), tree (root, oid) AS (
    SELECT oid, oid FROM wanted
    UNION SELECT tree.root, i.inhrelid FROM tree JOIN pg_inherits AS i ON i.inhparent = tree.oid
), bases (declared, oid, modifier) AS (
    SELECT a.atttypid, a.atttypid, NULL::int FROM wanted JOIN pg_attribute AS a ON a.attrelid = wanted.oid
    UNION SELECT b.declared, t.typbasetype, t.typtypmod FROM bases AS b
    JOIN pg_type AS t ON t.oid = b.oid AND t.typtype = 'd'
), not_null AS (
    SELECT tree.root, a.attname FROM tree JOIN pg_class AS c ON c.oid = tree.oid
    JOIN pg_attribute AS a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
    GROUP BY tree.root, a.attname
    HAVING count(*) = (SELECT count(*) FROM tree AS all_of WHERE all_of.root = tree.root)
        AND bool_and(c.relkind IN ('r', 'p') AND a.attnotnull AND NOT EXISTS (SELECT FROM pg_constraint AS k
            WHERE k.conrelid = c.oid AND k.contype = 'n' AND k.conkey[1] = a.attnum AND NOT k.convalidated))
), columns AS (
    SELECT w.oid, json_agg(json_build_array(a.attname, format_type(t.oid, coalesce(b.modifier, a.atttypmod)),
        t.typname, t.typtype, t.typnamespace = 'pg_catalog'::regnamespace,
        (w.oid, a.attname) IN (SELECT * FROM not_null), coalesce(l.collisdeterministic, true),
        w.is_visible AND has_column_privilege(w.oid, a.attnum, 'SELECT'))
        ORDER BY a.attnum) AS listed
    FROM wanted AS w JOIN pg_attribute AS a ON a.attrelid = w.oid AND a.attnum > 0 AND NOT a.attisdropped
    JOIN bases AS b ON b.declared = a.atttypid JOIN pg_type AS t ON t.oid = b.oid AND t.typtype <> 'd'
    LEFT JOIN pg_collation AS l ON l.oid = a.attcollation
    GROUP BY w.oid
), keys AS (
    SELECT w.oid, json_agg((SELECT json_agg(a.attname) FROM unnest(i.indkey) WITH ORDINALITY AS k (attnum, place)
        JOIN pg_attribute AS a ON a.attrelid = w.oid AND a.attnum = k.attnum WHERE k.place <= i.indnkeyatts)) AS listed
    FROM wanted AS w JOIN pg_index AS i ON i.indrelid = w.oid JOIN pg_class AS c ON c.oid = i.indexrelid
    JOIN pg_am AS m ON m.oid = c.relam
    WHERE i.indisunique AND i.indisvalid AND i.indisready AND i.indimmediate AND m.amname = 'btree'
        AND i.indpred IS NULL AND i.indexprs IS NULL
        AND NOT EXISTS (SELECT FROM unnest(i.indclass) AS o (oid) JOIN pg_opclass AS p ON p.oid = o.oid
            WHERE p.opcnamespace <> 'pg_catalog'::regnamespace)
        AND (w.relkind = 'p' OR w.relkind = 'r' AND NOT EXISTS (SELECT FROM pg_inherits WHERE inhparent = w.oid))
    GROUP BY w.oid
)
SELECT w.nspname, w.relname, w.relkind, w.is_filtered, columns.listed, keys.listed,
    NOT w.is_filtered AND NOT EXISTS (SELECT FROM tree JOIN pg_class AS c ON c.oid = tree.oid
        WHERE tree.root = w.oid AND c.relkind NOT IN ('r', 'p', 'm'))
FROM wanted AS w LEFT JOIN columns ON columns.oid = w.oid LEFT JOIN keys ON keys.oid = w.oid
"""


@dataclass(frozen=True)
class Facts:
    """What the server enforces.

    Attributes:
        tables: Tables by schema and name.
        kinds: For each of them, the letter that pg_class has for its kind.
        filtered: Those of which row-level security may hide rows from this role.
        unreadable: Columns that this role may not read.
    """

    tables: Mapping[TablePath, EngineTable]
    kinds: Mapping[TablePath, str]
    filtered: frozenset[TablePath]
    unreadable: frozenset[tuple[TablePath, str]]

    def narrowed(self, needed: Mapping[TablePath, frozenset[str]]) -> "Facts":
        """The same of some columns of some tables; a key counts that has no other columns."""
        return Facts(
            {path: _narrowed(self.tables[path], names) for path, names in needed.items() if path in self.tables},
            {path: kind for path, kind in self.kinds.items() if path in needed},
            self.filtered.intersection(needed),
            frozenset((path, name) for path, name in self.unreadable if name in needed.get(path, ())),
        )


def read_facts(transaction: Transaction, paths: Collection[TablePath]) -> Facts:
    """Read the constraints that the server enforces on the existing tables."""
    schemas, relations = [path[0] for path in paths], [path[1] for path in paths]
    tables: dict[TablePath, EngineTable] = {}
    kinds: dict[TablePath, str] = {}
    filtered, unreadable = set[TablePath](), set[tuple[TablePath, str]]()
    for schema, relation, kind, is_filtered, columns, keys, is_stored in transaction.execute(
        _FACTS, [schemas, relations]
    ):
        path = (schema, relation)
        kinds[path] = kind
        filtered |= {path} if is_filtered else set()
        listed = {}
        for name, declared, base, sort, is_built_in, not_null, is_binary, is_readable in columns or ():
            spelled = base if base == "citext" else declared
            exact = is_binary and is_exact(spelled, sort, is_built_in=is_built_in)
            listed[name] = EngineColumn(spelled, sql_type(base, sort, is_built_in), not_null, exact)
            unreadable |= set() if is_readable else {(path, name)}
        tables[path] = EngineTable(path, listed, frozenset(map(frozenset, keys or ())), is_stored)
    return Facts(tables, kinds, frozenset(filtered), frozenset(unreadable))


def sql_type(type_name: str, kind: str, is_built_in: bool) -> SqlType:
    """The type of a column by its base type's entry in pg_type; ARRAY for whatever nests otherwise, or is not known."""
    if kind == "e" or type_name == "citext":
        return SqlType.TEXT
    return _TYPES.get(type_name, SqlType.ARRAY) if is_built_in else SqlType.ARRAY


def is_exact(spelled: str, kind: str, *, is_built_in: bool) -> bool:
    """True for a type whose values are equal just where their canonical values are, but for collations."""
    if kind == "e":
        return spelled != "citext"
    return is_built_in and _LENGTH.sub("", spelled) in Postgres.exact_types


def _narrowed(table: EngineTable, names: frozenset[str]) -> EngineTable:
    columns = {name: column for name, column in table.columns.items() if name in names}
    keys = frozenset(key for key in table.unique_keys if key <= names)
    return EngineTable(table.path, columns, keys, table.is_stored)
