"""A command's password: from a file, a prompt or standard input, never from the command line."""

import sys
from pathlib import Path

import click

from dpsql.errors import InvalidParameter

MOST_BYTES = 1_000
"""So long may a password be: libpq's own tools ask for no longer one."""

password_file_option = click.option(
    "--password-file",
    metavar="FILE",
    type=click.Path(path_type=Path),
    help="Read the password from the first line of a file.",
)


def read_password(password_file: Path | None, *, confirm: bool = True) -> str:
    """Return the first line of the file, the input at a prompt, or the first line of standard input.

    Args:
        password_file: The file; None for a prompt or standard input.
        confirm: Whether the user must type it twice.

    Raises:
        InvalidParameter: The password is empty, or longer than clients can send.
    """
    if password_file is not None:
        password = password_file.read_text(encoding="utf-8").partition("\n")[0].rstrip("\r")
    elif sys.stdin.isatty():
        password = click.prompt("Password", hide_input=True, confirmation_prompt=confirm, err=True)
    else:
        password = sys.stdin.readline().rstrip("\r\n")
    if not password:
        raise InvalidParameter(
            "the password is empty",
            hint="The password is the first line of standard input, or of a file: --password-file FILE",
        )
    if len(password.encode()) > MOST_BYTES:
        raise InvalidParameter(
            f"the password is longer than {MOST_BYTES:,} bytes", hint="Some clients cut it off there."
        )
    return password
