"""session: the session of a catalog query."""

import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Final

from dpsql.catalog.objects import OWNER, OWNER_OID
from dpsql.catalog.snapshot import Snapshot
from dpsql.gateway.catalog_provider import CatalogContext

_FACTS: Final = {
    "block_size": "8192",
    "default_table_access_method": "heap",
    "max_index_keys": "32",
    "max_identifier_length": "63",
    "session_replication_role": "origin",
    "wal_level": "replica",
}
"""Settings of PostgreSQL that clients read and that have no effect here."""


@dataclass(frozen=True)
class CatalogSession:
    """The session of a catalog query.

    Attributes:
        context: The values that the session provides.
        databases: The databases that the user may connect to.
        snapshot: The catalog of its role.
    """

    context: CatalogContext
    databases: tuple[str, ...]
    snapshot: Snapshot

    @cached_property
    def settings(self) -> Mapping[str, str]:
        """Every setting with its value."""
        return {**_FACTS, **self.context.settings()}

    @cached_property
    def named_schemas(self) -> list[str]:
        """The schemas of search_path that there are."""
        there = set(self.snapshot.schemas.values())
        return [name for name in self.context.schemas if name in there]

    @cached_property
    def path(self) -> list[str]:
        """Return the schemas that are searched: pg_catalog first, unless the path names it."""
        return self.named_schemas if "pg_catalog" in self.named_schemas else ["pg_catalog", *self.named_schemas]

    @property
    def path_text(self) -> str:
        """The path with commas between, as the engine's functions take it."""
        return ",".join(self.path)

    @property
    def role_oid(self) -> int:
        """The OID of the user's role."""
        return _oid(f"role {self.context.user}")

    def database_oid(self, name: str) -> int:
        """The OID of a database."""
        return _oid(f"database {name}")

    @property
    def roles(self) -> Mapping[int, str]:
        """The roles there are: the owner of everything, and the user."""
        return {OWNER_OID: OWNER, self.role_oid: self.context.user}


def _oid(name: str) -> int:
    return 16384 + zlib.crc32(name.encode()) % 2**30
