"""engine: the catalog's own DuckDB, which holds one role's catalog and nothing else.

Rule 1: no data is attached, nothing outside can be reached, and the configuration is locked.
Rule 2: what it raises becomes an error of PostgreSQL's kind; it never ends a session.
"""

import base64
import hashlib
import logging
import re
from collections.abc import Callable, Mapping, Sequence
from inspect import Parameter, Signature
from typing import Any, Final

import duckdb
from duckdb.func import SPECIAL

from dpsql.backends import Cancellation
from dpsql.backends.duckdb_running import stoppable
from dpsql.catalog.formats import moment_text
from dpsql.catalog.kinds import Kind
from dpsql.catalog.literals import json_part, json_type, quote_name
from dpsql.catalog.memory_limit import MemoryLimit, quote_literal, size_of
from dpsql.catalog.relations import PG_CATALOG, Row, keyword_kinds, system_relations, typed_rows
from dpsql.catalog.snapshot import Snapshot, quote_identifier, split_name
from dpsql.errors import (
    CardinalityViolation,
    Error,
    InvalidParameter,
    InvalidText,
    QueryCanceled,
    UndefinedObject,
    UnsupportedQuery,
)
from dpsql.sqltypes import textformat, textinput

_LOG = logging.getLogger("dpsql.catalog")
MAX_ROWS: Final = 100_000
"""Rows that a catalog query gives."""
_FEW: Final = 16
"""Rows that are fetched at once."""
_SIZED: Final = frozenset({"BOOLEAN", "SMALLINT", "INTEGER", "BIGINT", "FLOAT", "DOUBLE", "DATE", "TIME", "TIMESTAMP"})
"""Types whose values take little, each as much as any other."""
STATEMENT_SECONDS: Final = 30.0
"""How long one may run."""
_CONFIG: Final[dict[str, str | bool | int | float | list[str]]] = {
    "allocator_background_threads": True,  # one for the whole process, as the instance opened last has it
    "threads": 1,
    "memory_limit": "512MB",
    "autoinstall_known_extensions": False,
    "autoload_known_extensions": False,
    "allow_community_extensions": False,
    "allow_unsigned_extensions": False,
    "python_enable_replacements": False,
}
_RAISED: Final = re.compile(r"CatalogFault: (\d+)")
_SIZES: Final = ("bytes", "kB", "MB", "GB", "TB")
_ALLOWED: Final = {
    **{"table": "SELECT", "schema": "USAGE", "function": "EXECUTE", "type": "USAGE", "database": "CONNECT"},
    "language": "USAGE",
}
"""The privilege that a user has on each kind of object; on others, none."""
_PRIVILEGES: Final = {
    *("SELECT", "INSERT", "UPDATE", "DELETE", "TRUNCATE", "REFERENCES", "TRIGGER", "USAGE", "CREATE", "CONNECT"),
    *("TEMPORARY", "TEMP", "EXECUTE", "SET", "ALTER SYSTEM"),
}


class CatalogFault(Exception):
    """Carries an error of dpsql through DuckDB, which keeps the text of an exception only."""


class CatalogEngine:
    """Runs translated queries over one role's snapshot."""

    def __init__(self, snapshot: Snapshot) -> None:
        self._snapshot = snapshot
        self._faults: dict[int, Error] = {}
        self._memory = MemoryLimit()
        self._database = duckdb.connect(":memory:", config=_CONFIG)
        for name, rows in snapshot.rows.items():
            attributes = system_relations()[PG_CATALOG, name].attributes
            self._load(f"{PG_CATALOG}.{name}", {one.name: one.kind for one in attributes}, rows)
        self._load("keywords", keyword_kinds(), typed_rows("keywords"))
        for name, (function, arguments, result) in self._functions().items():
            guarded = self._guarded(function, len(arguments))
            self._database.create_function(name, guarded, list[Any](arguments), result, null_handling=SPECIAL)
        self._database.execute("SET temp_directory = ''")
        self._database.execute("SET enable_external_access = false")
        self._database.execute("SET lock_configuration = true")

    def close(self) -> None:
        """Free the memory."""
        self._database.close()

    def run(self, sql: str, values: Mapping[str, object], cancellation: Cancellation) -> list[tuple[Any, ...]]:
        """Return the rows of a translated query.

        Raises:
            QueryCanceled: The query was canceled.
            LimitExceeded: The query needs more memory for text than the limit.
            Error: The query failed with an error that PostgreSQL has, too, or with an unknown one.
        """
        cursor = self._database.cursor()
        try:
            with stoppable(cursor, cancellation, STATEMENT_SECONDS):
                self._memory.open()
                cursor.execute(sql, dict(values) or None)
                return self._fetched(cursor)
        except duckdb.Error as error:
            if cancellation.is_cancelled:
                raise QueryCanceled("canceling statement due to user request or time limit") from None
            raise self._error(error) from None
        finally:
            cursor.close()

    def _fetched(self, cursor: duckdb.DuckDBPyConnection) -> list[tuple[Any, ...]]:
        """Return the rows, a few at a time: Python copies a text for each row that DuckDB stores once."""
        rows: list[tuple[Any, ...]] = []
        # All other types have values of a fixed size.
        long = [place for place, (_, kind, *_) in enumerate(cursor.description or ()) if str(kind) not in _SIZED]
        while len(rows) < MAX_ROWS and (some := cursor.fetchmany(min(_FEW, MAX_ROWS - len(rows)))):
            self._memory.take(sum(size_of(row[place]) for place in long for row in some))
            rows += some
        return rows

    def _error(self, error: duckdb.Error) -> Error:
        text = str(error)
        raised = _RAISED.search(text)
        if raised is not None and int(raised[1]) in self._faults:
            return self._faults.pop(int(raised[1]))
        if "More than one row returned" in text:
            return CardinalityViolation()
        if isinstance(error, duckdb.ConversionException):
            return InvalidText("invalid input syntax: " + text.partition("\n")[0].removeprefix("Conversion Error: "))
        # The engine's own text may quote the query: only its kind is logged.
        _LOG.warning("a catalog query failed: %s", type(error).__name__)
        return UnsupportedQuery("this catalog query is not supported", hint="SELECT * FROM dpsql.columns")

    # Loading

    def _load(self, name: str, columns: Mapping[str, Kind], rows: Sequence[Row]) -> None:
        listed = ", ".join(f"{quote_name(column)} {kind.storage}" for column, kind in columns.items())
        self._database.execute(f"CREATE TABLE {quote_name(name)} ({listed})")
        if rows:
            kinds = enumerate(columns.values(), 1)
            parts = ", ".join(f"unnest(CAST(${place} AS {kind.storage}[]))" for place, kind in kinds)
            values = [[row[column] for row in rows] for column in columns]
            self._database.execute(f"INSERT INTO {quote_name(name)} SELECT {parts}", values)

    # Functions in Python

    def _guarded(self, function: Callable[..., object], arity: int) -> Callable[..., Any]:
        """Return a function with this number of arguments, whose errors pass through DuckDB unchanged."""

        def call(*args: object) -> Any:
            try:
                result = function(*args)
                self._memory.take(size_of(result))
                return result
            except Error as error:
                number = id(error)
                if len(self._faults) > 100:
                    self._faults.clear()
                self._faults[number] = error
                raise CatalogFault(str(number)) from None

        # DuckDB counts the parameters.
        names = [Parameter(f"a{place}", Parameter.POSITIONAL_ONLY) for place in range(arity)]
        call.__signature__ = Signature(names)  # type: ignore[attr-defined]
        return call

    def _functions(self) -> Mapping[str, tuple[Callable[..., object], tuple[str, ...], str]]:
        text, number, truth, texts, big = "VARCHAR", "INTEGER", "BOOLEAN", "VARCHAR[]", "BIGINT"
        snapshot, memory = self._snapshot, self._memory
        return {
            "catalog_fits": (_strict(memory.fits), (big,), truth),
            "catalog_text": (_strict(str), (text,), text),
            "catalog_concat": (_strict(memory.concat), (text, text), text),
            "catalog_repeat": (_strict(memory.repeat), (text, number), text),
            "catalog_replace": (_strict(memory.replace), (text, text, text), text),
            "catalog_replaceable": (_strict(memory.replaceable), (text, text), text),
            "catalog_oid": (_strict(snapshot.oid_of), (text, text, text), big),
            "catalog_look_up": (_strict(snapshot.look_up), (text, text, text), big),
            "catalog_name": (snapshot.name_of, (text, big, text), text),
            "catalog_format_type": (snapshot.format_type, (big, number, text), text),
            "catalog_constraint": (snapshot.constraint_definition, (big, text), text),
            "catalog_index": (snapshot.index_definition, (big, number, text), text),
            "catalog_view": (snapshot.view_definition, (big, text), text),
            "catalog_function_result": (snapshot.function_result, (big, text), text),
            "catalog_function_arguments": (snapshot.function_arguments, (big, text), text),
            "catalog_description": (snapshot.description, (big, number, text), text),
            "catalog_visible": (snapshot.is_visible, (text, big, text), truth),
            "catalog_privilege": (self._privilege, (text, big, text), truth),
            "catalog_is_role": (_strict(_is_role), (text, text, text), truth),
            "catalog_encoding": (_encoding_name, (number,), text),
            "catalog_encoding_number": (_strict(_encoding_number), (text,), number),
            "catalog_no_setting": (_no_setting, (text,), text),
            "catalog_no_change": (_no_change, (text,), text),
            "catalog_infinite": (_infinite, (text,), text),
            "catalog_quote_ident": (_strict(quote_identifier), (text,), text),
            "catalog_quote_literal": (_strict(quote_literal), (text,), text),
            "catalog_parse_ident": (_strict(lambda name: list(split_name(name))), (text,), texts),
            "catalog_array_in": (_strict(textinput.array_elements), (text,), texts),
            "catalog_float4": (_strict(textformat.real), ("FLOAT",), text),
            "catalog_float8": (_strict(textformat.double), ("DOUBLE",), text),
            "catalog_array_out": (_strict(textformat.array), (texts,), text),
            "catalog_vector_out": (_strict(lambda parts: " ".join(map(str, parts))), (texts,), text),
            "catalog_join": (memory.join, (texts, text, text), text),
            "catalog_split": (memory.split, (text, text), texts),
            "catalog_format": (memory.format, (text, texts), text),
            "catalog_substring": (_substring, (text, number, number), text),
            "catalog_series": (_strict(_series), (big, big, big), "BIGINT[]"),
            "catalog_size": (_strict(_size), (big,), text),
            "catalog_encode": (_strict(_encode), ("BLOB", text), text),
            "catalog_decode": (_strict(_decode), (text, text), "BLOB"),
            "catalog_md5": (_strict(lambda raw: hashlib.md5(raw, usedforsecurity=False).hexdigest()), ("BLOB",), text),
            "catalog_json_type": (_strict(json_type), (text,), text),
            "catalog_json_part": (_strict(json_part), (text, text, text, truth), text),
            "catalog_moment": (_strict(moment_text), ("TIMESTAMP", text, text), text),
            "catalog_describe": (_strict(snapshot.object_description), (big, text), text),
            "catalog_types": (_strict(snapshot.type_names), ("BIGINT[]", text), text),
            "catalog_json_object": (_json_object, (texts,), text),
        }

    def _privilege(self, what: str, oid: int | None, privileges: str | None) -> bool | None:
        if oid is None or privileges is None:
            return None
        known: Mapping[int, object] = self._snapshot.schemas if what == "schema" else self._snapshot.named(what)
        if what in ("table", "schema", "type", "function") and oid not in known:
            return None
        asked = [part.strip().upper() for part in privileges.split(",")]
        for one in asked:
            if one.removesuffix(" WITH GRANT OPTION") not in _PRIVILEGES:
                raise InvalidParameter(f'unrecognized privilege type: "{one}"')
        return _ALLOWED.get(what) in asked


def _strict(function: Callable[..., object]) -> Callable[..., object]:
    """The function, NULL where an argument is."""
    return lambda *args: None if None in args else function(*args)


def _is_role(role: str, user: str, oid: str) -> bool:
    return role in (user, oid, "USAGE", "MEMBER")


def _encoding_name(number: int | None) -> str:
    return next((str(row["name"]) for row in typed_rows("encodings") if row["encoding"] == number), "")


def _encoding_number(name: str) -> int:
    folded = name.upper().replace("-", "").replace("_", "")
    names = {str(row["name"]).replace("_", ""): row["encoding"] for row in typed_rows("encodings")}
    found = names.get(folded, -1)
    return found if isinstance(found, int) else -1


def _no_setting(name: str | None) -> None:
    if name is not None:
        raise UndefinedObject(f'unrecognized configuration parameter "{name}"')


def _no_change(name: str | None) -> None:
    """Refuse set_config for a row; a query without rows, as pg_dump sends it, changes nothing and is allowed."""
    raise UnsupportedQuery("set_config takes constants", hint=f"SELECT set_config('{name}', '…', false)")


def _infinite(name: str) -> None:
    raise UnsupportedQuery(f"an infinite {name} cannot be shown", hint=f"Show it as text: 'infinity'::{name}::text")


def _encode(raw: bytes, form: str) -> str:
    if form == "hex":
        return raw.hex()
    if form == "base64":
        return base64.encodebytes(raw).decode().rstrip("\n")
    raise InvalidParameter(f'unrecognized encoding: "{form[:64]}"', hint="hex, base64")


def _decode(text: str, form: str) -> bytes:
    readers: Mapping[str, Callable[[str], bytes]] = {"hex": bytes.fromhex, "base64": base64.b64decode}
    if form not in readers:
        raise InvalidParameter(f'unrecognized encoding: "{form[:64]}"', hint="hex, base64")
    try:
        return readers[form](text)
    except ValueError:
        raise InvalidParameter(f"invalid {form} data") from None


def _substring(text: str | None, start: int | None, length: int | None) -> str | None:
    if text is None or start is None:
        return None
    end = len(text) + 1 if length is None else start + length
    return text[max(start, 1) - 1 : max(end, 1) - 1]


def _series(first: int, last: int, step: int) -> list[int]:
    if step == 0:
        raise InvalidParameter("step size cannot equal zero")
    if abs(last - first) // abs(step) > MAX_ROWS:
        raise InvalidParameter(f"generate_series may return at most {MAX_ROWS:,} rows here")
    return list(range(first, last + (1 if step > 0 else -1), step))


def _size(size: int) -> str:
    number, unit = size, 0
    while abs(number) >= 10 * 1024 and unit < len(_SIZES) - 1:
        number, unit = (number + 512) // 1024, unit + 1
    return f"{number} {_SIZES[unit]}"


def _json_object(parts: Sequence[str | None]) -> str:
    pairs = zip(parts[::2], parts[1::2], strict=True)
    return "{" + ", ".join(f'"{name}" : {"null" if value is None else value}' for name, value in pairs) + "}"
