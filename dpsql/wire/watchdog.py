"""watchdog: ends a gateway that does not respond, so that its supervisor starts it again.

Code that holds the interpreter's lock and does not return stops every thread, signal handler and health check. The
alarm is a thread of the interpreter (`faulthandler`) that does not need this lock. The event loop resets it
periodically. If it no longer does, the stacks of all threads go to standard error, and the process exits with status 1.

Rule 1: the stacks contain names of files and functions, but no values.
Rule 2: only the event loop's own turns are measured, so a busy machine or engine causes no alarm. The clock does not
    run while a machine sleeps, and Ctrl-Z stops the alarm with the process.
"""

import asyncio
import faulthandler
import os
import signal
from collections.abc import Callable
from typing import Final

from dpsql.wire.report import logger

STILL_SECONDS: Final = 30.0
"""How long the event loop may be blocked."""
STUCK_SECONDS: Final = 900
"""How long calls may wait for workers none of which ends its call: three times what one engine query may take."""
_TICK: Final = 1.0
_STDERR: Final = 2


class Watchdog:
    """Watches the event loop that it runs in, and the workers.

    Args:
        waiting: How many calls wait for a worker.
        ended: How many calls workers have ended so far.
        still_seconds: How long the loop may stand still.
        stuck_seconds: How long the workers may.
    """

    def __init__(
        self,
        waiting: Callable[[], int],
        ended: Callable[[], int],
        still_seconds: float = STILL_SECONDS,
        stuck_seconds: float = STUCK_SECONDS,
    ) -> None:
        self._waiting = waiting
        self._ended = ended
        self._still_seconds = still_seconds
        self._stuck_seconds = stuck_seconds

    async def run(self) -> None:
        """Watch until cancelled."""
        self._put_off()
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGTSTP, self._stop)
        stuck, known = 0.0, self._ended()
        try:
            while True:
                self._put_off()
                await asyncio.sleep(_TICK)
                stuck = stuck + _TICK if self._waiting() and self._ended() == known else 0.0
                known = self._ended()
                if stuck >= self._stuck_seconds:
                    logger.critical("no call has finished for %d seconds: the gateway exits", stuck)
                    faulthandler.dump_traceback(_STDERR)
                    os._exit(1)
        finally:
            faulthandler.cancel_dump_traceback_later()
            loop.remove_signal_handler(signal.SIGTSTP)

    def _put_off(self) -> None:
        faulthandler.dump_traceback_later(self._still_seconds, exit=True, file=_STDERR)

    def _stop(self) -> None:
        """Stop as Ctrl-Z asks, without an alarm on going on."""
        faulthandler.cancel_dump_traceback_later()
        os.kill(os.getpid(), signal.SIGSTOP)
        self._put_off()
