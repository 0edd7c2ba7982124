"""rowsets: relations that differ from session to session (roles, databases, settings), as rows within the query."""

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from zoneinfo import ZoneInfo, available_timezones

from dpsql.catalog.casts import TranslationContext
from dpsql.catalog.kinds import Kind, kind_of
from dpsql.catalog.literals import null, quote, quote_name
from dpsql.catalog.relations import Relation, Row
from dpsql.catalog.session import CatalogSession


def session_rows(session: CatalogSession, key: str) -> Sequence[Row] | None:
    """The rows of a relation of the session; None for others."""
    match key:
        case "pg_catalog.pg_authid" | "pg_catalog.pg_roles":
            return [
                {"oid": oid, "rolname": name, "rolcanlogin": name == session.context.user}
                for oid, name in session.roles.items()
            ]
        case "pg_catalog.pg_user" | "pg_catalog.pg_shadow":
            return [{"usename": name, "usesysid": oid} for oid, name in session.roles.items()]
        case "pg_catalog.pg_database":
            return [{"oid": session.database_oid(name), "datname": name} for name in session.databases]
        case "pg_catalog.pg_settings":
            return [_setting(name, value) for name, value in session.settings.items()]
        case "pg_catalog.pg_timezone_names":
            return [_zone(name, session.context.now) for name in sorted(available_timezones())]
        case "information_schema.enabled_roles":
            return [{"role_name": session.context.user}]
        case "information_schema.information_schema_catalog_name":
            return [{"catalog_name": session.context.database}]
        case _:
            return None


def _zone(name: str, now: datetime) -> Row:
    there = now.astimezone(ZoneInfo(name))
    offset = (there.utcoffset() or timedelta()) // timedelta(seconds=1)
    return {"name": name, "abbrev": there.tzname(), "utc_offset": f"{offset} seconds", "is_dst": bool(there.dst())}


def _setting(name: str, value: str) -> Row:
    category = "dpsql" if name.startswith("dpsql.") else "Client Connection Defaults"
    return {
        "name": name,
        "category": category,
        "short_desc": "",
        **dict.fromkeys(("setting", "boot_val", "reset_val"), value),
    }


def rowset(statement: TranslationContext, relation: Relation, rows: Sequence[Row]) -> str:
    """Rows as a query; missing columns have their defaults."""
    columns = ", ".join(quote_name(one.name) for one in relation.attributes)
    shown = [_row(relation, row) for row in rows]
    if not shown:
        empty = ", ".join(f"{null(one.kind)} AS {quote_name(one.name)}" for one in relation.attributes)
        return f"(SELECT {empty} WHERE FALSE)"
    return f"(SELECT * FROM (VALUES {', '.join(shown)}) AS {statement.fresh('v')}({columns}))"


def _row(relation: Relation, row: Mapping[str, object]) -> str:
    return "(" + ", ".join(_value(row.get(one.name, one.default), one.kind) for one in relation.attributes) + ")"


def _value(value: object, kind: Kind) -> str:
    if value is None:
        shown = "NULL"
    elif isinstance(value, bool):
        shown = "TRUE" if value else "FALSE"
    elif isinstance(value, list):
        shown = "[" + ", ".join(_value(one, kind_of(kind.element)) for one in value) + "]"
    else:
        shown = str(value) if isinstance(value, int | float) else quote(str(value))
    return f"CAST({shown} AS {kind.storage})"
