"""visitor: what a catalog query knows of its session."""

import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime

from dpsql.catalog.objects import OWNER, OWNER_OID
from dpsql.catalog.snapshot import Snapshot

ChangeSetting = Callable[[str, str, bool], str]


@dataclass(frozen=True)
class Visitor:
    """The session of a catalog query.

    Attributes:
        user: Whose it is.
        database: The database it is connected to.
        databases: Those that the user may open.
        schemas: Where names without a schema are looked for, one after another.
        settings: Every setting with its value.
        now: The time.
        version: What version() says.
        change: Changes a setting as set_config does and returns its value: name, value, whether for the transaction.
    """

    user: str
    database: str
    databases: tuple[str, ...]
    schemas: tuple[str, ...]
    settings: Mapping[str, str]
    now: datetime
    version: str
    change: ChangeSetting

    def setting(self, name: str) -> str | None:
        """The value of a setting; None where there is none."""
        folded = {known.lower(): value for known, value in self.settings.items()}
        return folded.get(name.lower())

    def named_schemas(self, snapshot: Snapshot) -> list[str]:
        """The schemas of search_path that there are."""
        there = set(snapshot.schemas.values())
        return [name for name in self.schemas if name in there]

    def path(self, snapshot: Snapshot) -> list[str]:
        """The schemas that names are looked for in: pg_catalog first, unless the path names it."""
        named = self.named_schemas(snapshot)
        return named if "pg_catalog" in named else ["pg_catalog", *named]

    def path_text(self, snapshot: Snapshot) -> str:
        """The path with commas between, as the engine's functions take it."""
        return ",".join(self.path(snapshot))

    @property
    def role_oid(self) -> int:
        """The OID of the user's role."""
        return 16384 + zlib.crc32(f"role {self.user}".encode()) % 2**30

    def database_oid(self, name: str) -> int:
        """The OID of a database."""
        return 16384 + zlib.crc32(f"database {name}".encode()) % 2**30

    @property
    def roles(self) -> Mapping[int, str]:
        """The roles there are: the owner of everything, and the user."""
        return {OWNER_OID: OWNER, self.role_oid: self.user}
