"""How errors, notices and our own bugs are told: to the client on the wire, to the operator in the log.

Rule 1: what is not one of dpsql's errors reaches the client as one fixed sentence.
Rule 2: the log has the type and the place of a bug, never its message: an exception's text may quote data.
"""

import logging
import traceback
from typing import Final

from dpsql.errors import Error
from dpsql.results import Notice
from dpsql.wire.backend import ErrorResponse, NoticeResponse

ERROR: Final = "ERROR"
BUG_SENTENCE: Final = "the gateway failed in answering this; the operator's log says where"
_BUG_STATE: Final = "XX000"

logger: Final = logging.getLogger("dpsql.wire")


def error_response(error: Exception, severity: str = ERROR) -> ErrorResponse:
    """Return what the client is told of an error; a bug is also logged."""
    if isinstance(error, Error):
        return ErrorResponse(severity, error.sqlstate, error.message, error.detail, error.hint, error.position)
    log_bug(error)
    return ErrorResponse(severity, _BUG_STATE, BUG_SENTENCE)


def notice_response(notice: Notice) -> NoticeResponse:
    """Return a notice as it goes over the wire."""
    return NoticeResponse(notice.severity, notice.sqlstate, notice.message, notice.detail, notice.hint)


def log_bug(error: Exception) -> None:
    """Write the type of an unexpected exception and where it was raised to the log."""
    frames = traceback.extract_tb(error.__traceback__)
    places = "; ".join(f"{frame.filename}:{frame.lineno} in {frame.name}" for frame in frames)
    logger.error("unexpected %s at %s", type(error).__qualname__, places)
