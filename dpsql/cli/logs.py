"""The log on standard error, as text or as JSON, one line per message.

Rule: users, databases, addresses and what went wrong; never a row or an exception's text, and a query's text only where
    it was asked for.
"""

import json
import logging
import sys
import threading
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from dpsql.errors import log_bug

if TYPE_CHECKING:
    import asyncio


def log_to_stderr(log_format: str) -> None:
    """Write the log to standard error: messages of dpsql from INFO, and of libraries from WARNING."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonLines() if log_format == "json" else TextLines())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(logging.WARNING)
    logging.getLogger("dpsql").setLevel(logging.INFO)
    threading.excepthook = sys.unraisablehook = _log_uncaught


def log_unhandled(_loop: "asyncio.AbstractEventLoop", context: dict[str, Any]) -> None:
    """Log an exception that no task handled; asyncio would print its text and the task's data."""
    if isinstance(context.get("exception"), Exception):
        log_bug(context["exception"])


def _log_uncaught(caught: Any) -> None:
    """Log an exception of a thread or finalizer; Python would print its text, which may quote a row."""
    if isinstance(caught.exc_value, Exception):
        log_bug(caught.exc_value)


class TextLines(logging.Formatter):
    """Time, level and message in exactly one line; for an exception, its type only."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line."""
        text = " ".join(_fields(record).values())
        return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


class JsonLines(logging.Formatter):
    """One JSON object per line: time, level, message, and the event with its fields if there is one."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line."""
        return json.dumps(_fields(record) | getattr(record, "fields", {}), ensure_ascii=False)


def _fields(record: logging.LogRecord) -> dict[str, str]:
    moment = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
    fields = {"time": moment, "level": record.levelname, "message": record.getMessage()}
    if record.exc_info and record.exc_info[0] is not None:
        fields["exception"] = record.exc_info[0].__name__
    return fields
