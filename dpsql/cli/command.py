"""What every command shares: a refusal becomes a message and an exit status, never a traceback.

Rule 1: status 0 is done, 1 refused or failed, 2 wrong usage.
Rule 2: dpsql's own errors are told whole; of any other only its kind and place, for its text may quote data.
"""

import errno
import json
import re
import traceback
from typing import Any

import click

from dpsql.errors import Error, InternalError, OperationalError


class FileTrouble(OperationalError, code="58030"):
    """The operating system refused to read or write."""


class OutOfMemory(OperationalError, code="53200"):
    """The operating system gave no more memory, or no more threads."""

    def __init__(self) -> None:
        super().__init__(
            "out of memory, or no more threads are allowed",
            hint="Raise the limits of the container or of ulimit -v and -u, or stop other programs.",
        )


class Command(click.Command):
    """A command that tells errors on standard error, or as JSON on standard output under `--format json`."""

    def __init__(self, name: str | None, *, help: str | None = None, **attributes: Any) -> None:
        super().__init__(name, help=_with_example(help), **attributes)

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command; what it raises ends the program with status 1."""
        try:
            return super().invoke(ctx)
        except (click.ClickException, click.Abort, click.exceptions.Exit, BrokenPipeError):
            raise
        except Error as error:
            refusal = error
        except OSError as error:
            refusal = (
                OutOfMemory()
                if error.errno == errno.ENOMEM
                else FileTrouble(": ".join(str(part) for part in (error.filename, error.strerror or error) if part))
            )
        except Exception as error:
            refusal = OutOfMemory() if _is_of_memory(error) else _bug(error)
        _tell(refusal, as_json=ctx.params.get("format") == "json")
        ctx.exit(1)


class Group(click.Group):
    """A group whose commands are `Command`s."""

    command_class = Command

    def __init__(self, name: str | None, *, help: str | None = None, **attributes: Any) -> None:
        super().__init__(name, help=_with_example(help), **attributes)


def _with_example(help: str | None) -> str | None:
    """Return a help text whose example keeps its lines: click fills paragraphs unless they begin with a backspace."""
    return help and re.sub(r"^( *)Example:", "\\1\b\n\\1Example:", help, flags=re.MULTILINE)


def _is_of_memory(error: Exception) -> bool:
    if isinstance(error, MemoryError) or str(error) == "can't start new thread":
        return True
    import duckdb  # `dpsql --help` does without

    return isinstance(error, duckdb.OutOfMemoryException)


def _bug(error: Exception) -> Error:
    places = [f"{frame.filename}:{frame.lineno}" for frame in traceback.extract_tb(error.__traceback__)]
    return InternalError(
        f"dpsql itself failed: {type(error).__name__}", detail=f"At {places[-1]}.", hint="Please report it."
    )


def _tell(error: Error, *, as_json: bool) -> None:
    if as_json:
        names = ("sqlstate", "message", "detail", "hint", "position")
        click.echo(json.dumps({"error": {name: getattr(error, name) for name in names}}, ensure_ascii=False))
        return
    where = f", at character {error.position}" if error.position is not None else ""
    click.echo(f"error: {error.message} ({error.sqlstate}{where})", err=True)
    for name, text in (("detail", error.detail), ("hint", error.hint)):
        if text is not None:
            click.echo(f"{name}: {text}", err=True)
