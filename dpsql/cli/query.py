"""`dpsql query` and `dpsql explain`: one statement, in this process."""

import csv
import io
import json
from contextlib import closing
from decimal import Decimal
from pathlib import Path
from typing import Any

import click

from dpsql.cli.command import Command
from dpsql.cli.options import ledger_option, policy_argument
from dpsql.cli.table import table_lines
from dpsql.dbapi import Connection, connect
from dpsql.errors import InvalidSyntax
from dpsql.explain import explanation_json, explanation_lines, price_json, remaining_json
from dpsql.privacy.accounting import Spent
from dpsql.results import Result
from dpsql.session import Statement
from dpsql.sqltypes import SqlType
from dpsql.wire.pgtypes import TEXT, of_type

_user = click.option("--user", required=True, metavar="NAME", help="Who asks, and whose budget pays.")
_role = click.option("--role", metavar="ROLE", help="The role of a user that the ledger does not know yet.")
_epsilon = click.option("--epsilon", metavar="E", help="The query's price, instead of the role's.")
_delta = click.option("--delta", metavar="D", help="δ for private group keys, instead of the role's.")
_mechanism = click.option("--mechanism", metavar="M", help="auto, laplace or gaussian.")
_settings = click.option(
    "--set", "settings", multiple=True, metavar="NAME=VALUE", help="Another setting, as in dpsql.intervals=on."
)


@click.command(cls=Command)
@policy_argument
@click.argument("sql")
@_user
@_role
@_epsilon
@_delta
@_mechanism
@_settings
@ledger_option
@click.option("--format", type=click.Choice(["table", "csv", "json"]), default="table", show_default=True)
def query(sql: str, format: str, **options: Any) -> None:
    """Answer one query, and charge it to a user's budget.

    The rows go to standard output; what they cost and how exact they are goes to standard error.

    Example:
      dpsql query clinic.toml "SELECT sex, COUNT(*) FROM patients GROUP BY sex" --user ana
    """
    with closing(_connect(**options)) as connection:
        result = connection.session.execute(_statement(connection, sql))
        if format == "json":
            click.echo(json.dumps(_result_json(connection, result), ensure_ascii=False))
            return
        click.echo("\n".join(_table(result) if format == "table" else _csv(result)))
        for notice in result.notices:
            click.echo(f"{notice.severity}: {notice.message}", err=True)
            if notice.detail is not None:
                click.echo(f"DETAIL: {notice.detail}", err=True)


@click.command(cls=Command)
@policy_argument
@click.argument("sql")
@_user
@_role
@_epsilon
@_delta
@_mechanism
@_settings
@ledger_option
@click.option("--format", type=click.Choice(["text", "json"]), default="text", show_default=True)
def explain(sql: str, format: str, **options: Any) -> None:
    """Tell what a query would cost, how exact it would be and what it would run; nothing is read or spent.

    Example:
      dpsql explain clinic.toml "SELECT city, COUNT(*) FROM patients GROUP BY city" --user ana
    """
    with closing(_connect(**options)) as connection:
        explanation = connection.session.explain(_statement(connection, sql))
        if format == "json":
            click.echo(json.dumps(explanation_json(explanation), ensure_ascii=False))
        else:
            click.echo("\n".join(explanation_lines(explanation)))


def _connect(
    policy: Path,
    user: str,
    role: str | None,
    epsilon: str | None,
    delta: str | None,
    mechanism: str | None,
    settings: tuple[str, ...],
    ledger: str | None,
) -> Connection:
    pairs = [setting.partition("=") for setting in settings]
    if not all(equals for _, equals, _ in pairs):
        raise click.UsageError("--set takes NAME=VALUE")
    connection = connect(policy, user=user, role=role, ledger=ledger, epsilon=epsilon, delta=delta, mechanism=mechanism)
    try:
        connection.configure({name.strip(): value for name, _, value in pairs})
    except BaseException:
        connection.close()
        raise
    return connection


def _statement(connection: Connection, sql: str) -> Statement:
    statements = connection.session.parse(sql)
    if len(statements) != 1:
        raise InvalidSyntax("this takes one statement", hint="Settings go into options: --epsilon E, --set NAME=VALUE")
    return statements[0]


def _table(result: Result) -> list[str]:
    if result.columns is None:
        return [result.tag]
    numbers = [index for index, column in enumerate(result.columns) if column.type.is_number]
    lines = list(table_lines([column.name for column in result.columns], _texts(result), right=numbers))
    return [*lines, "(1 row)" if len(result.rows) == 1 else f"({len(result.rows)} rows)"]


def _csv(result: Result) -> list[str]:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    if result.columns is not None:
        writer.writerow([column.name for column in result.columns])
        writer.writerows(_texts(result))
    return text.getvalue().removesuffix("\n").split("\n")


def _texts(result: Result) -> list[list[str | None]]:
    columns = result.columns or ()
    return [[_text(column.type, value) for column, value in zip(columns, row, strict=True)] for row in result.rows]


def _text(sql_type: SqlType, value: object) -> str | None:
    return None if value is None else of_type(sql_type).write[TEXT](value).decode()


def _result_json(connection: Connection, result: Result) -> dict[str, Any]:
    """The shape of `dpsql query --format json`."""
    answer, columns = result.answer, result.columns or ()
    charge = answer.charge if answer is not None else None
    errors = [column.error for column in answer.columns] if answer is not None else [None] * len(columns)
    if answer is not None and charge is not None:
        cost = price_json(None if charge.free else answer.query.price, charge.price)
        left = charge.remaining
    else:
        cost = price_json(None, Spent.zero())
        engine = connection.engine
        left = engine.ledger.budget(connection.session.user, engine.policy).remaining
    return {
        "columns": [
            {"name": column.name, "type": column.type.value, "stderr": error.stderr if error is not None else None}
            for column, error in zip(columns, errors, strict=True)
        ],
        "rows": [[_json(c.type, value) for c, value in zip(columns, row, strict=True)] for row in result.rows],
        "cost": cost,
        "remaining": remaining_json(left),
        "reused": answer.reused if answer is not None else False,
        "notices": [notice.message for notice in result.notices],
    }


def _json(sql_type: SqlType, value: object) -> object:
    if isinstance(value, Decimal):
        return int(value) if value == value.to_integral_value() else float(value)
    return value if value is None or isinstance(value, bool | int | float | str) else _text(sql_type, value)
