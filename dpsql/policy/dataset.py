"""`[dataset]`: where the data is, whom it is about, and the cap over all users."""

import difflib
import re
import zoneinfo
from collections.abc import Mapping
from fractions import Fraction
from functools import cache
from pathlib import Path
from zoneinfo import ZoneInfo

from dpsql.policy.budgets import read_cap
from dpsql.policy.engines import PARQUET, EngineKind, UnknownEngine, engine_of
from dpsql.policy.environment import NotFilledIn, filled_in
from dpsql.policy.model import Dataset, Table
from dpsql.policy.node import Node, Shape
from dpsql.policy.source import quoted
from dpsql.policy.tables import check_schema
from dpsql.privacy.cost import Adjacency

MAX_QUANTUM_MS = 60_000
MIN_MEMORY = 100_000_000
MAX_THREADS = 1024
PREVIEWS = ("refuse", "synthetic")

_DATASET: Shape = {
    "name": 'name = "clinic"',
    "url": 'url = "duckdb:///clinic.duckdb"',
    "schema": 'schema = "main"',
    "privacy_unit": 'privacy_unit = "patient"',
    "adjacency": 'adjacency = "add_remove"',
    "data_version": 'data_version = "2026-11"',
    "budget": "budget = { epsilon = 20, delta = 1e-6 }",
    "cap": 'cap = "clinic-people"',
    "reply_quantum": 'reply_quantum = "0 ms"',
    "timezone": 'timezone = "UTC"',
    "preview": 'preview = "synthetic"',
    "prepared_schema": 'prepared_schema = "dpsql_copies"',
    "max_error_ratio": "max_error_ratio = 1.5",
    "memory": 'memory = "8GB"',
    "threads": "threads = 4",
    "spill": 'spill = "/var/tmp/dpsql"',
}
_NOT_ZONES = {"localtime", "Factory"}
"""In the database of zones, but no names that another machine or engine would read alike."""


def dataset_fields(node: Node) -> dict[str, Node]:
    """Return the keys of `[dataset]`: the tables are read between two of them."""
    return node.fields(_DATASET, required=("name", "url", "privacy_unit", "budget"))


def read_schema(keys: Mapping[str, Node]) -> str:
    """Return the schema of tables that name none."""
    if "schema" not in keys:
        return read_engine(keys["url"]).default_schema
    return check_schema(keys["schema"], keys["schema"].name("schema"))


def read_timezone(keys: Mapping[str, Node]) -> ZoneInfo:
    """Return the time zone, UTC by default."""
    if "timezone" not in keys:
        return ZoneInfo("UTC")
    node = keys["timezone"]
    name = node.text()
    known = _zones()
    if name not in known:
        folded = {zone.casefold(): zone for zone in known}
        near = difflib.get_close_matches(name.casefold(), folded, n=1)
        hint = f'did you mean "{folded[near[0]]}"?' if near else 'write: timezone = "UTC", or "Europe/Berlin"'
        raise node.wrong(f"{quoted(name)} is not an IANA time zone", hint)
    return ZoneInfo(name)


@cache
def _zones() -> frozenset[str]:
    """The names of time zones; they are files, some six hundred, so they are listed once."""
    return frozenset(zoneinfo.available_timezones() - _NOT_ZONES)


def read_dataset(keys: Mapping[str, Node], tables: tuple[Table, ...], folder: Path) -> Dataset:
    """Return the dataset; folder is what a relative DuckDB path starts from."""
    name = keys["name"].name("dataset")
    adjacency = Adjacency.ADD_REMOVE
    if "adjacency" in keys:
        adjacency = Adjacency(keys["adjacency"].choice(known.value for known in Adjacency))
    return Dataset(
        name=name,
        url=_url(keys["url"], folder),
        schema=read_schema(keys),
        privacy_unit=keys["privacy_unit"].text(),
        adjacency=adjacency,
        data_version=keys["data_version"].text() if "data_version" in keys else "1",
        budget=read_cap(keys["budget"], tables),
        cap=keys["cap"].name("cap") if "cap" in keys else name,
        reply_quantum=_milliseconds(keys["reply_quantum"]) if "reply_quantum" in keys else 0,
        timezone=read_timezone(keys).key,
        preview=keys["preview"].choice(PREVIEWS) if "preview" in keys else PREVIEWS[0],
        prepared_schema=_prepared_schema(keys),
        max_error_ratio=keys["max_error_ratio"].number_between("0", "1000")
        if "max_error_ratio" in keys
        else Fraction(1),
        memory=_memory(_of_file(keys, "memory")) if "memory" in keys else None,
        threads=_of_file(keys, "threads").count(MAX_THREADS) if "threads" in keys else None,
        spill=_spill(_of_file(keys, "spill"), keys["url"], folder) if "spill" in keys else None,
    )


def _of_file(keys: Mapping[str, Node], name: str) -> Node:
    """Return a key that is for an engine in this process."""
    if not read_engine(keys["url"]).is_embedded:
        raise keys[name].wrong(
            "this is for DuckDB, which runs in the gateway's process; a server has its own limits", f"remove {name}"
        )
    return keys[name]


def _memory(node: Node) -> int:
    text = node.text()
    found = re.fullmatch(r"([1-9][0-9]{0,5}) ?([MG]B)", text)
    size = int(found[1]) * {"MB": 10**6, "GB": 10**9}[found[2]] if found is not None else 0
    if size < MIN_MEMORY:
        raise node.wrong(f'{quoted(text)} is not "N MB" or "N GB" of at least 100 MB', 'write: memory = "8GB"')
    return size


def _spill(node: Node, url: Node, folder: Path) -> str:
    """Return a directory outside the data, because files in the data's directory would be read as data."""
    engine, spill = read_engine(url), _resolved(node, node.text(), folder)
    if engine is PARQUET and spill.is_relative_to(_resolved(url, engine.location(_expanded(url)), folder)):
        raise node.wrong("the spill directory must not be in the folder of the data", _DATASET["spill"])
    return str(spill)


def _resolved(node: Node, path: str, folder: Path) -> Path:
    try:
        return (folder / path).resolve()
    except (OSError, RuntimeError):
        raise node.wrong("the path cannot be resolved") from None


def _prepared_schema(keys: Mapping[str, Node]) -> str | None:
    if "prepared_schema" not in keys:
        return None
    node = keys["prepared_schema"]
    engine = read_engine(keys["url"])
    if engine.is_embedded:
        what = f"prepared tables of {engine} are in a file"
        raise node.wrong(what, "remove prepared_schema")
    return check_schema(node, node.name("schema"))


def _url(node: Node, folder: Path) -> str:
    url, engine = _expanded(node), read_engine(node)
    if engine.is_embedded and (not engine.has_location(url) or "?" in url):
        raise node.wrong(f"a url of {engine} is {engine.start} and a path, without parameters")
    if not engine.is_file:
        return url
    return f"{engine.start}{_resolved(node, engine.location(url), folder)}"


def _expanded(node: Node) -> str:
    """Return the url with the values of environment variables; no message may show any of it."""
    try:
        url = filled_in(node.text())
    except NotFilledIn as error:
        raise node.wrong(error.what, error.hint) from None
    if not url.isprintable() or " " in url:
        raise node.wrong("a url must not contain spaces or control characters", "write them percent-encoded: %20")
    return url


def read_engine(node: Node) -> EngineKind:
    """Return the engine that a url names."""
    try:
        return engine_of(_expanded(node))
    except UnknownEngine as error:
        raise node.wrong(str(error), f"write: url = {error.hint}") from None


def _milliseconds(node: Node) -> int:
    text = node.text()
    found = re.fullmatch(r"([0-9]{1,6}) ?ms", text)
    if found is None or int(found[1]) > MAX_QUANTUM_MS:
        what = f'{quoted(text)} is not "N ms" with N up to {MAX_QUANTUM_MS}'
        raise node.wrong(what, 'write: reply_quantum = "100 ms"')
    return int(found[1])
