"""Policies: which parts of a database analysts may query, and at what price. A TOML file becomes a frozen Policy."""

import os
from pathlib import Path

from dpsql.policy.budgets import read_groups, read_roles
from dpsql.policy.dataset import dataset_fields, read_dataset, read_engine, read_schema, read_timezone
from dpsql.policy.model import (
    Bound,
    Budget,
    Dataset,
    FileColumn,
    FileFormat,
    Files,
    MechanismChoice,
    Policy,
    PolicyColumn,
    QueryDefaults,
    RandomizedResponse,
    RenewalWindow,
    Role,
    RowsOf,
    Table,
    UnitVia,
    UserGroup,
    Value,
    can_be_key,
)
from dpsql.policy.node import Node, Shape
from dpsql.policy.source import read_source
from dpsql.policy.tables import read_tables

__all__ = [
    "Bound",
    "Budget",
    "Dataset",
    "FileColumn",
    "FileFormat",
    "Files",
    "MechanismChoice",
    "Policy",
    "PolicyColumn",
    "QueryDefaults",
    "RandomizedResponse",
    "RenewalWindow",
    "Role",
    "RowsOf",
    "Table",
    "UnitVia",
    "UserGroup",
    "Value",
    "can_be_key",
    "load_policy",
]


VERSION = 1

_POLICY: Shape = {
    "version": f"version = {VERSION}",
    "dataset": "[dataset] with name, url, privacy_unit and budget",
    "roles": "[roles.analyst] with budget and query",
    "groups": "[groups.team] with budget",
    "tables": "[tables.patients] with unit_key and max_rows",
}
_REQUIRED = ("version", "dataset", "roles", "tables")


def load_policy(path: str | os.PathLike[str]) -> Policy:
    """Return the validated policy of a TOML file.

    A relative DuckDB path starts from the folder of the path given here (a symlink's own folder, not its
    target's); ${VAR} in the url is taken from the environment.

    Args:
        path: The file.

    Raises:
        InvalidPolicy: If it is not a policy: "FILE:LINE: dotted.key: what is wrong", with a hint.
    """
    file = Path(path)
    source = read_source(file)
    root = Node(source, (), source.data, "")
    _check_version(root)
    keys = root.fields(_POLICY, required=_REQUIRED)
    dataset_keys = dataset_fields(keys["dataset"])
    engine = read_engine(dataset_keys["url"])
    tables = read_tables(keys["tables"], read_schema(dataset_keys), read_timezone(dataset_keys), engine)
    dataset = read_dataset(dataset_keys, tables, file.absolute().parent)
    roles = read_roles(keys["roles"], tables, dataset.budget)
    groups = read_groups(keys["groups"], tables, roles, dataset.budget) if "groups" in keys else ()
    return Policy(dataset, roles, tables, file, groups, source.text)


def _check_version(root: Node) -> None:
    # First of all: a later version may have keys that are unknown here.
    version = root.source.data.get("version", VERSION)
    if not isinstance(version, int) or isinstance(version, bool) or version != VERSION:
        node = Node(root.source, ("version",), version, _POLICY["version"])
        is_newer = type(version) is int and version > VERSION
        raise node.wrong(
            f"this dpsql reads policies of version {VERSION}",
            "This policy needs a newer dpsql: pip install --upgrade dpsql" if is_newer else None,
        )
