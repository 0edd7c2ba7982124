"""How errors, notices and bugs are reported: to the client on the wire, to the operator in the log.

Rule 1: an exception that is not one of dpsql's errors reaches the client as one fixed sentence. So does a failure of
    the ledger; only the operator gets its cause and place.
Rule 2: the log has the type and the place of a bug, never its message: an exception's text may quote data.
"""

import asyncio
import logging
from collections import Counter
from typing import Final

from dpsql.errors import Error, LedgerUnavailable, log_bug
from dpsql.gateway.query_run import Notice
from dpsql.wire.messages.backend import ErrorResponse, NoticeResponse

ERROR: Final = "ERROR"
BUG_SENTENCE: Final = "internal error"
_BUG_DETAIL: Final = "The gateway's log has the cause."
LEDGER_SENTENCE: Final = "the ledger is not available, and no query is answered without it"
_LEDGER_HINT: Final = (
    "Try again later; the operator's log has the cause. SELECT * FROM dpsql.budget tells what was charged."
)
_BUG_STATE: Final = "XX000"

logger: Final = logging.getLogger("dpsql.wire")


def error_response(error: Exception, severity: str = ERROR) -> ErrorResponse:
    """Return the client's message for an error; bugs and failures of the ledger are also logged."""
    if isinstance(error, LedgerUnavailable):
        fields = {"event": "ledger", "sqlstate": error.sqlstate, "hint": error.hint}
        logger.error("the ledger failed: %s", error.message, extra={"fields": fields})
        return ErrorResponse(severity, error.sqlstate, LEDGER_SENTENCE, None, _LEDGER_HINT)
    if isinstance(error, Error):
        return ErrorResponse(severity, error.sqlstate, error.message, error.detail, error.hint, error.position)
    log_bug(error)
    return ErrorResponse(severity, _BUG_STATE, BUG_SENTENCE, _BUG_DETAIL)


def notice_response(notice: Notice) -> NoticeResponse:
    """Return a notice as it goes over the wire."""
    return NoticeResponse(notice.severity, notice.sqlstate, notice.message, notice.detail, notice.hint)


_ADDRESSES: Final = 1000


class Endings:
    """Logs how connections end: a few lines, then one that sums up the rest; to be used from one event loop.

    Rule: whoever connects and is refused, however often, cannot fill the log.

    Args:
        lines: Connections that have a line of their own, in each span of time.
        seconds: The span.
    """

    def __init__(self, lines: int = 20, seconds: float = 60.0) -> None:
        self._lines = lines
        self._seconds = seconds
        self._timer: asyncio.TimerHandle | None = None
        self._count = 0
        self._states: Counter[str] = Counter()
        self._addresses: Counter[str] = Counter()

    def add(self, peer: str, address: str, error: Error) -> None:
        """Log the end of a connection, or count it."""
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(self._seconds, self.sum_up)
        self._count += 1
        if self._count <= self._lines:
            told = {"event": "disconnect", "peer": peer, "sqlstate": error.sqlstate}
            message = "connection from %s ended: %s %a"
            logger.info(message, peer, error.sqlstate, error.message, extra={"fields": told})
            return
        self._states[error.sqlstate] += 1
        if address in self._addresses or len(self._addresses) < _ADDRESSES:
            self._addresses[address] += 1

    def sum_up(self) -> None:
        """Log the counts, and reset them."""
        if self._timer is not None:
            self._timer.cancel()
        self._timer = None
        if self._states:
            count, ((most, times),) = self._states.total(), self._addresses.most_common(1)
            states = ", ".join(f"{state} {number}" for state, number in self._states.most_common())
            told = {"event": "disconnects", "count": count, "sqlstates": dict(self._states), "peer": most}
            message = "%d more connections ended within %g s: %s; %d of them from %s"
            logger.warning(message, count, self._seconds, states, times, most, extra={"fields": told})
        self._count = 0
        self._states.clear()
        self._addresses.clear()
