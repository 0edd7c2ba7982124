"""That a gateway which stands still ends itself, and one that is busy, stopped or slow does not."""

import os
import signal
import subprocess
import sys
import time

import pytest

from tests.waiting import HANG_SECONDS

HEAD = "import asyncio, sqlglot, time; from dpsql.wire.watchdog import Watchdog; looks = []\n"
RUN = """
async def main():
    watch = asyncio.create_task(Watchdog(lambda: {waiting}, {ended}, {still}, {stuck}).run())
    await asyncio.sleep(0.1)
    print('on', flush=True)
    {body}
    watch.cancel()
    await asyncio.gather(watch, return_exceptions=True)
    {after}
asyncio.run(main())
"""


def start(
    body: str, *, waiting: int = 0, ended: str = "lambda: 0", still: float = 60, stuck: float = 60, after: str = "pass"
) -> "subprocess.Popen[str]":
    code = HEAD + RUN.format(body=body, waiting=waiting, ended=ended, still=still, stuck=stuck, after=after)
    return subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def test_compiled_code_that_holds_the_interpreters_lock_ends_the_process() -> None:
    program = start("sqlglot.parse_one('SELECT 1 FROM a' + ' JOIN a' * 60)", still=1)
    out, err = program.communicate(timeout=HANG_SECONDS)
    assert (out, program.returncode) == ("on\n", 1)
    assert "in parse_one" in err
    assert "SELECT" not in err


def test_a_loop_that_waits_for_a_lock_ends_the_process() -> None:
    program = start("import threading; lock = threading.Lock(); lock.acquire(); lock.acquire()", still=1)
    _, err = program.communicate(timeout=HANG_SECONDS)
    assert program.returncode == 1
    assert "in main" in err


def test_workers_of_which_none_ends_a_call_end_the_process() -> None:
    program = start("await asyncio.sleep(600)", waiting=3, stuck=2)
    _, err = program.communicate(timeout=HANG_SECONDS)
    assert program.returncode == 1
    assert "no call has finished for 2 seconds" in err
    assert "most recent call first" in err


@pytest.mark.parametrize(("waiting", "ended"), [(0, "looks.append(1) or 0"), (3, "looks.append(1) or len(looks)")])
def test_workers_that_are_idle_or_busy_do_not(waiting: int, ended: str) -> None:
    looked_for_longer = "while len(looks) < 9: await asyncio.sleep(0.01)"
    program = start(looked_for_longer, waiting=waiting, ended=f"lambda: {ended}", stuck=2)
    _, err = program.communicate(timeout=HANG_SECONDS)
    assert (program.returncode, err) == (0, "")


def test_nothing_is_watched_any_more_once_it_has_ended() -> None:
    program = start("pass", still=4, after="time.sleep(5)")
    _, err = program.communicate(timeout=HANG_SECONDS)
    assert (program.returncode, err) == (0, "")


def test_a_process_that_was_stopped_by_ctrl_z_goes_on() -> None:
    program = start("await asyncio.get_running_loop().run_in_executor(None, input)", still=4)
    assert program.stdout is not None
    assert program.stdout.readline() == "on\n"
    program.send_signal(signal.SIGTSTP)
    _, status = os.waitpid(program.pid, os.WUNTRACED)
    assert os.WIFSTOPPED(status)
    time.sleep(5)  # longer than the loop may stand still
    program.send_signal(signal.SIGCONT)
    _, err = program.communicate("\n", timeout=HANG_SECONDS)
    assert (program.returncode, err) == (0, "")
