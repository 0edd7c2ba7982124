"""Options that several commands take, and the ledger that they name."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from decimal import Decimal, InvalidOperation
from fractions import Fraction
from pathlib import Path
from typing import Any, TypeVar

import click

from dpsql.errors import InvalidParameter
from dpsql.ledger import Ledger, default_ledger, ledger_file, open_ledger
from dpsql.policy import Policy, load_policy
from dpsql.policy.environment import NotFilledIn, filled_in

F = TypeVar("F", bound=Callable[..., Any])

_MAX_EXPONENT = 30
_MAX_DIGITS = 30

policy_argument = click.argument("policy", type=click.Path(path_type=Path))

ledger_option = click.option(
    "--ledger",
    metavar="URL",
    envvar="DPSQL_LEDGER",
    show_envvar=True,
    help="sqlite:///PATH or postgresql://…; by default dpsql-ledger.sqlite next to the policy.",
)

policy_option = click.option(
    "--policy",
    metavar="POLICY",
    type=click.Path(path_type=Path),
    help="Use the default ledger next to this policy.",
)


def finding_ledger(command: F) -> F:
    """Give a command the options --ledger and --policy, one of which is required."""
    return ledger_option(policy_option(command))


def ledger_url(ledger: str | None, policies: Sequence[Policy]) -> str:
    """Return the ledger's URL: the given one, or else the one next to the policies.

    Raises:
        click.UsageError: Neither determines the ledger.
    """
    urls = {ledger} if ledger else {default_ledger(policy) for policy in policies}
    if not urls:
        raise click.UsageError("no ledger is named: give --ledger URL, or --policy POLICY for the one next to it.")
    if len(urls) > 1:
        raise click.UsageError("the policies are in several directories: name their ledger with --ledger URL")
    return urls.pop()


@contextmanager
def opened_ledger(ledger: str | None, policy: Path | None, *, make: bool = True) -> Iterator[Ledger]:
    """Open the ledger of the options; it is created, with a message, if it does not exist."""
    opened = open_ledger(named_ledger(ledger, policy), make=make)
    try:
        if make and opened.head().records == 0:
            click.echo("the ledger is new: nothing has been spent", err=True)
        yield opened
    finally:
        opened.close()


@contextmanager
def existing_ledger(ledger: str | None, policy: Path | None) -> Iterator[Ledger]:
    """Open the existing ledger of the options; a new, empty one would show no spending."""
    with opened_ledger(ledger, policy, make=False) as opened:
        yield opened


def existing_file(ledger: str | None, policy: Path | None) -> Path:
    """Return the file of the ledger that the options name."""
    return ledger_file(named_ledger(ledger, policy), make=False)


def named_ledger(ledger: str | None, policy: Path | None) -> str:
    """Return the URL of the ledger that the options name."""
    return ledger_url(ledger, [] if ledger or policy is None else [load_policy(policy)])


def given_url(text: str) -> str:
    """Return the URL of an argument, in which `${NAME}` has the place of a secret.

    Raises:
        InvalidParameter: A secret is neither in the environment nor in a file that the environment names.
    """
    try:
        return filled_in(text)
    except NotFilledIn as error:
        raise InvalidParameter(error.what, hint=error.hint) from None


def exact_number(name: str, text: str) -> Fraction:
    """Return the exact number of an option.

    Raises:
        InvalidParameter: It is not a number.
    """
    try:
        value = Decimal(text.strip())
    except InvalidOperation:
        value = Decimal("NaN")
    # The exponent is checked first: Fraction(Decimal("1e999999")) would compute a million digits.
    if not value.is_finite() or abs(value.adjusted()) > _MAX_EXPONENT or len(value.as_tuple().digits) > _MAX_DIGITS:
        raise InvalidParameter(f'"{text[:40]}" is not a valid {name}', hint=f"--{name} 0.5, for example")
    return Fraction(value)
