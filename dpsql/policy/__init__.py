"""Policies: what an analyst may see of which database, at what price. One TOML file in, one frozen Policy out."""

from dpsql.policy.load import load_policy
from dpsql.policy.model import (
    Bound,
    Budget,
    Column,
    Dataset,
    MechanismChoice,
    Policy,
    QueryDefaults,
    RandomizedResponse,
    Role,
    Table,
    UnitVia,
    UserGroup,
    Value,
    Window,
    can_be_key,
)

__all__ = [
    "Bound",
    "Budget",
    "Column",
    "Dataset",
    "MechanismChoice",
    "Policy",
    "QueryDefaults",
    "RandomizedResponse",
    "Role",
    "Table",
    "UnitVia",
    "UserGroup",
    "Value",
    "Window",
    "can_be_key",
    "load_policy",
]
