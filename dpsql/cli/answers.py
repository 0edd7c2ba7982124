"""answers: what `dpsql query` and `dpsql explain` print, from an engine in this process."""

import csv
import io
import json
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from decimal import Decimal
from pathlib import Path
from typing import Any

import click

from dpsql.dbapi import Connection
from dpsql.dbapi.opening import open_connection
from dpsql.errors import InvalidSyntax
from dpsql.gateway.answers import Explanation
from dpsql.gateway.explain import (
    cost_json,
    explanation_json,
    explanation_lines,
    group_json,
    joint_json,
    joint_lines,
    remaining_json,
    sql_lines,
)
from dpsql.gateway.prices import Quotation
from dpsql.gateway.query_run import Result
from dpsql.gateway.session import Statement
from dpsql.gateway.text_table import table_lines
from dpsql.privacy.conversion import decimal_text
from dpsql.sqltypes import SqlType
from dpsql.wire.pgtypes import text_of


def answer(sql: str, format: str, **options: Any) -> None:
    """Answer one query, and print its rows, its price and its error."""
    with _connected(**options) as connection:
        result = connection.session.execute(_statement(connection, sql))
        if format == "json":
            click.echo(json.dumps(_result_json(connection, result), ensure_ascii=False))
            return
        click.echo("\n".join(_table(result) if format == "table" else _csv(result)))
        for notice in result.notices:
            click.echo(f"{notice.severity}: {notice.message}", err=True)
            if notice.detail is not None:
                click.echo(f"DETAIL: {notice.detail}", err=True)


def tell(sql: str, format: str, **options: Any) -> None:
    """Print the price, the error and the engine SQL of each query; nothing is read or charged."""
    with _connected(**options) as connection:
        session = connection.session
        explanations = [session.explain(statement) for statement in session.parse(sql)]
        joint = session.quote(explanations) if len(explanations) > 1 else None
        if format == "json":
            click.echo(json.dumps(_explained_json(explanations, joint), ensure_ascii=False))
        else:
            click.echo("\n".join(_explained_lines(explanations, joint)))


@contextmanager
def _connected(
    policy: Path, user: str, role: str | None, ledger: str | None, settings: tuple[str, ...], **own: str | None
) -> Iterator[Connection]:
    pairs = [setting.partition("=") for setting in settings]
    if not all(equals for _, equals, _ in pairs):
        raise click.UsageError("--set takes NAME=VALUE")
    values = {f"dpsql.{name}": value for name, value in own.items()} | {name.strip(): value for name, _, value in pairs}
    with closing(open_connection(policy, user, role, ledger, values)) as connection:
        if connection.new_user:
            limit = connection.session.quote([]).status.limit
            budget = f"epsilon {decimal_text(limit.epsilon)}, delta {decimal_text(limit.delta)}"
            click.echo(f"{user} is a new user: the first query that is charged adds it, with budget {budget}", err=True)
        yield connection


def _explained_json(explanations: Sequence[Explanation], joint: Quotation | None) -> dict[str, Any]:
    """The shape of `dpsql explain --format json`, of one query or of several."""
    statements = [explanation_json(explanation) for explanation in explanations]
    return statements[0] if joint is None else {"statements": statements, "joint": joint_json(joint)}


def _explained_lines(explanations: Sequence[Explanation], joint: Quotation | None) -> list[str]:
    plans = [explanation_lines(explanation) + sql_lines(explanation.query) for explanation in explanations]
    if joint is None:
        return plans[0]
    lines: list[str] = []
    for number, (explanation, plan) in enumerate(zip(explanations, plans, strict=True), 1):
        lines += [f"Statement {number}: {' '.join(explanation.query.sql.split())}", *plan, ""]
    return lines + joint_lines(explanations, joint)


def _statement(connection: Connection, sql: str) -> Statement:
    statements = connection.session.parse(sql)
    if len(statements) != 1:
        raise InvalidSyntax(
            "exactly one statement is expected", hint="Set options instead: --epsilon E, --set NAME=VALUE"
        )
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
    return [[text_of(column.type, value) for column, value in zip(columns, row, strict=True)] for row in result.rows]


def _result_json(connection: Connection, result: Result) -> dict[str, Any]:
    """The shape of `dpsql query --format json`."""
    answer, columns = result.answer, result.columns or ()
    charge = answer.charge if answer is not None else None
    errors = [column.error for column in answer.columns] if answer is not None else [None] * len(columns)
    if charge is not None:
        left, shared = charge.remaining, charge.shared
    else:
        quotation = connection.session.quote([])
        left, shared = quotation.remaining, quotation.shared
    return {
        "columns": [
            {"name": column.name, "type": column.type.value, "stderr": error.stderr if error is not None else None}
            for column, error in zip(columns, errors, strict=True)
        ],
        "rows": [[_json(c.type, value) for c, value in zip(columns, row, strict=True)] for row in result.rows],
        "cost": cost_json(answer.cost if answer is not None else None),
        "remaining": remaining_json(left),
        **group_json(shared),
        "reused": answer.reused if answer is not None else False,
        "derived_from": list(answer.derived_from) if answer is not None else [],
        "consistent_with": list(answer.consistent_with) if answer is not None else [],
        "notices": [notice.text for notice in result.notices],
    }


def _json(sql_type: SqlType, value: object) -> object:
    if isinstance(value, Decimal):
        return int(value) if value == value.to_integral_value() else float(value)
    return value if value is None or isinstance(value, bool | int | float | str) else text_of(sql_type, value)
