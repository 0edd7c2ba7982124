"""The outline of a PostgreSQL database: the tables that the role may read."""

from typing import Final
from urllib.parse import quote, urlencode

import psycopg
from psycopg.conninfo import conninfo_to_dict

from dpsql.backends.backend import Cancellation, Unreachable
from dpsql.backends.outline import ColumnOutline, ForeignKey, Outline, TableOutline, default_schema
from dpsql.backends.postgres_connections import Connections
from dpsql.backends.postgres_facts import read_facts
from dpsql.errors import InvalidParameter, InvalidPolicy

_SECONDS: Final = 60.0
# Partitions are part of their table. contype: p PRIMARY KEY, u UNIQUE, f FOREIGN KEY.
_TABLES: Final = b"""
SELECT n.nspname, c.relname, obj_description(c.oid, 'pg_class'), (
    SELECT json_agg(json_build_array(a.attname, col_description(c.oid, a.attnum)) ORDER BY a.attnum)
    FROM pg_attribute AS a
    WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped AND has_column_privilege(c.oid, a.attnum, 'SELECT')
), (
    SELECT json_agg(json_build_array(k.contype, m.nspname, o.relname, (
        SELECT json_agg(json_build_array(a.attname, b.attname) ORDER BY p.place)
        FROM unnest(k.conkey) WITH ORDINALITY AS p (attnum, place)
        JOIN pg_attribute AS a ON a.attrelid = k.conrelid AND a.attnum = p.attnum
        LEFT JOIN pg_attribute AS b ON b.attrelid = k.confrelid AND b.attnum = k.confkey[p.place]
    )) ORDER BY k.contype <> 'p', k.conname)
    FROM pg_constraint AS k LEFT JOIN pg_class AS o ON o.oid = k.confrelid
    LEFT JOIN pg_namespace AS m ON m.oid = o.relnamespace
    WHERE k.conrelid = c.oid AND k.contype IN ('p', 'u', 'f')
)
FROM pg_class AS c JOIN pg_namespace AS n ON n.oid = c.relnamespace
WHERE c.relkind IN ('r', 'p', 'v', 'm', 'f') AND NOT c.relispartition AND has_schema_privilege(n.oid, 'USAGE')
    AND n.nspname NOT IN ('information_schema', 'dpsql') AND n.nspname NOT LIKE 'pg\\_%'
    AND has_any_column_privilege(c.oid, 'SELECT')
ORDER BY n.nspname, c.relname
"""


def outline_of_postgres(url: str) -> Outline:
    """Read the outline of a database.

    Raises:
        InvalidParameter: It cannot be reached or read.
    """
    try:
        connections = Connections(url, "UTC")
        try:
            with connections.transaction(Cancellation(), _SECONDS) as transaction:
                rows = transaction.execute(_TABLES).fetchall()
                facts = read_facts(transaction, [(schema, table) for schema, table, *_ in rows])
                name = transaction.info.dbname
        finally:
            connections.close()
    except InvalidPolicy:
        raise InvalidParameter("libpq cannot read the URL", hint="postgresql://reader@host:5432/database") from None
    except Unreachable as error:
        raise InvalidParameter(error.what, hint=error.hint) from None
    except psycopg.Error as error:
        raise InvalidParameter(f"the server's catalog cannot be read: {type(error).__name__}") from None
    tables = []
    for schema, table, comment, columns, constraints in rows:
        kinds = facts.tables[schema, table].columns
        listed = [(column, kinds[column], told) for column, told in columns]
        keys = [([tuple(pair) for pair in pairs], other) for _, *other, pairs in constraints or ()]
        tables.append(
            TableOutline(
                schema,
                table,
                comment,
                tuple(ColumnOutline(column, kind.sql_type, kind.type_name, told) for column, kind, told in listed),
                tuple(tuple(here for here, _ in pairs) for pairs, other in keys if other[1] is None),
                tuple(ForeignKey((other[0], other[1]), tuple(pairs)) for pairs, other in keys if other[1] is not None),
            )
        )
    return Outline(name, _without_password(url), default_schema(tables, "public"), tuple(tables))


def _without_password(url: str) -> str:
    """The URL with ${PGPASSWORD} in the place of a password."""
    known = {name: str(value) for name, value in conninfo_to_dict(url).items() if value is not None}
    user, password = quote(known.pop("user", ""), safe=""), known.pop("password", None)
    host, port = known.pop("host", ""), known.pop("port", "")
    if host.startswith("/"):
        known, host = {"host": host} | known, ""
    login = f"{user}:${{PGPASSWORD}}@" if password else f"{user}@" if user else ""
    place = f"{quote(host, safe=',')}{':' if port else ''}{port}/{quote(known.pop('dbname', ''), safe='')}"
    return f"postgresql://{login}{place}" + (f"?{urlencode(known, quote_via=quote)}" if known else "")
