"""`dpsql policy`: draft a policy, check it against its database, and show it with its defaults."""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import click

from dpsql.cli.command import Group
from dpsql.cli.exact import EXACT_WARNING
from dpsql.cli.options import existing_ledger, given_url, ledger_option, named_ledger, opened_ledger, policy_argument
from dpsql.cli.profile import drop_lines, profile
from dpsql.cli.suggest import suggest
from dpsql.gateway.policy_summary import budget_text, keys_text, limits_text
from dpsql.gateway.text_table import table_lines
from dpsql.ledger import is_file, ledger_file
from dpsql.ledger.profiles import newest_profile
from dpsql.policy import Dataset, Policy, Role, Table, load_policy
from dpsql.privacy.conversion import decimal_text

if TYPE_CHECKING:
    from dpsql.backends import Backend
    from dpsql.cli.survey import TableSurvey
    from dpsql.compiler.ir.schema import EngineSchema


@click.group(cls=Group, commands=[suggest, profile])
def policy() -> None:
    """Draft, check and show policies, suggest bounds for them, and profile what their bounds drop.

    Example:
      dpsql policy check clinic.toml
    """


@policy.command()
@click.argument("database_url")
@click.option("--unit", metavar="TABLE", help="The table with one row per person, to which foreign keys lead.")
def init(database_url: str, unit: str | None) -> None:
    """Draft a policy from the schema of a database, for you to finish.

    The command reads the schema and never the values: bounds and domains taken from the data would reveal facts about
    people. Every table is protected, and unknown settings are marked TODO. Give a password by PGPASSWORD or a password
    file, and a token of Spark as ${SPARK_TOKEN}: other users of the machine can see what is in the URL.

    Example:
      dpsql policy init duckdb:///clinic.duckdb > clinic.toml
      dpsql policy init postgresql://reader@host/clinic --unit patients > clinic.toml
      dpsql policy init 'spark://localhost:15002/spark_catalog?token=${SPARK_TOKEN}' > clinic.toml
    """
    from dpsql.cli.draft import draft_policy

    click.echo(draft_policy(given_url(database_url), unit), nl=False)


@policy.command()
@policy_argument
@click.option("--advise", is_flag=True, help="List indexes that would make queries faster.")
@click.option("--exact", is_flag=True, help="Count without noise; the ledger records that no guarantee covers it.")
@ledger_option
def check(policy: Path, advise: bool, exact: bool, ledger: str | None) -> None:
    """Check a policy, and compare it with its database.

    The database must have the tables and columns that the policy names. The newest profile (dpsql policy profile)
    tells what the policy's bounds drop; no row is read for it. With --exact the command counts rows without noise.
    These counts are for the data owner only: a bound chosen by them reveals facts about people.

    Example:
      dpsql policy check clinic.toml --advise
      dpsql policy check clinic.toml --exact
      dpsql policy check demo/clinic.toml --ledger sqlite:///demo/ledger.sqlite
    """
    from dpsql.backends import open_backend

    loaded = load_policy(policy)
    backend = open_backend(loaded)
    try:
        protected = sum(not table.public for table in loaded.tables)
        counted = f"{protected} protected and {len(loaded.tables) - protected} public tables"
        click.echo(f'{policy}: valid; dataset "{loaded.dataset.name}" has {counted}')
        for warning in backend.warnings():
            click.echo(f"warning: {warning}")
        for line in _copies(backend.schema, policy):
            click.echo(line)
        for line in _exactly(loaded, backend, ledger) if exact else _profiled(loaded, ledger):
            click.echo(line)
        if advise:
            click.echo("\n".join(["", *(backend.advice() or ["no index would make queries faster"])]))
    finally:
        backend.close()


def _exactly(loaded: Policy, backend: "Backend", ledger: str | None) -> Iterator[str]:
    """The counts without noise; the ledger records first that they are read."""
    from dpsql.cli.survey import survey
    from dpsql.gateway.owner_reads import exact_profile

    click.echo(EXACT_WARNING, err=True)
    with opened_ledger(ledger, loaded.path) as opened:
        tables = exact_profile(loaded, opened, backend)
    for found in survey(loaded, backend):
        can_have_key = backend.schema.engine.enforces_keys and found.table.files is None
        yield from _surveyed(found, loaded.dataset.privacy_unit, can_have_key=can_have_key)
    yield from drop_lines(tables)


def _profiled(loaded: Policy, ledger: str | None) -> Iterator[str]:
    """The newest profile of the policy's tables."""
    url = named_ledger(ledger, loaded.path)
    found = None
    if not is_file(url) or ledger_file(url).exists():
        with existing_ledger(ledger, loaded.path) as opened:
            found = newest_profile(opened, loaded)
    if found is None:
        where = ledger_file(url) if is_file(url) else "the ledger"
        made = f"dpsql policy profile {loaded.path} --epsilon 0.2 makes one"
        yield f"profile: none in {where} ({made}; --ledger names another ledger)"
        return
    yield f"profile {found.id}:"
    yield from drop_lines([each for table in loaded.tables if (each := found.of(loaded, table)) is not None])


def _copies(schema: "EngineSchema", path: Path) -> Iterator[str]:
    """The tables with a prepared table, and whether it is read."""
    from dpsql.backends import has_prepared_tables

    if not schema.copies and has_prepared_tables(schema.engine):
        yield f"prepared tables: none (dpsql prepare {path} makes them)"
    for table, state in copy_states(schema):
        yield f"prepared table of {table}: {state}"


def copy_states(schema: "EngineSchema") -> Iterator[tuple[str, str]]:
    """Yield each table with a prepared table, and what can be read from that."""
    for table, copy in schema.copies.items():
        yield table, copy if isinstance(copy, str) else f"fresh, with {copy.rows_per_unit} rows per unit at most"


def _surveyed(found: "TableSurvey", unit: str, *, can_have_key: bool) -> Iterator[str]:
    table = found.table
    key = f"PRIMARY KEY or UNIQUE NOT NULL ({table.unit_key})"
    bounds = f"max_rows = {table.rows_per_unit} is enforced in SQL"
    if found.one_row:
        bounds = f"{key} allows one row each, so bounding is not needed"
    elif table.rows_per_unit == 1 and table.unit_key is not None and can_have_key:
        bounds += f"; {key} would make it unnecessary"
    yield f"\n{table.name}: {found.rows:,} rows, {found.units:,} units ({unit}); {bounds}"
    for finding in found.findings:
        yield f"  {f'{finding.column}: ' if finding.column is not None else ''}{finding.what}: {finding.count:,}"


@policy.command()
@policy_argument
def show(policy: Path) -> None:
    """Show a policy with every default filled in.

    Example:
      dpsql policy show clinic.toml
    """
    click.echo("\n".join(_lines(load_policy(policy))))


def _lines(policy: Policy) -> Iterator[str]:
    dataset = policy.dataset
    unit = dataset.privacy_unit
    changes = "is present or absent" if dataset.adjacency.value == "add_remove" else "has these data or any other"
    yield f'dataset "{dataset.name}", schema {dataset.schema}, data version {dataset.data_version}, {dataset.timezone}'
    yield f"protects: whether one {unit} {changes} ({dataset.adjacency.value}), in all protected tables together"
    yield ", ".join(_settings(dataset))
    yield f'all users together, under cap "{dataset.cap}": {budget_text(dataset.budget)}'
    for role in policy.roles:
        yield from ("", *_role(role, policy))
    for group in policy.groups:
        described = f": {group.description}" if group.description is not None else ""
        yield from ("", f'group "{group.name}", shared by its members: {budget_text(group.budget)}{described}')
    for table in policy.tables:
        yield from ("", *_table(table, unit))


def _settings(dataset: Dataset) -> Iterator[str]:
    yield f"reply_quantum {dataset.reply_quantum} ms"
    yield f"preview {dataset.preview}"
    yield f"max_error_ratio {decimal_text(dataset.max_error_ratio)}"
    for name, value in (
        ("prepared_schema", dataset.prepared_schema),
        ("memory", dataset.memory and f"{dataset.memory // 10**6} MB"),
        ("threads", dataset.threads),
        ("spill", dataset.spill),
    ):
        if value is not None:
            yield f"{name} {value}"


def _role(role: Role, policy: Policy) -> Iterator[str]:
    query = role.query
    yield f'role "{role.name}": {budget_text(role.budget)}'
    yield (
        f"  one query: epsilon {decimal_text(query.epsilon)}, at most {decimal_text(query.max_epsilon)}; "
        f"delta {decimal_text(query.delta)} with private keys; {query.mechanism} noise"
        + (f"; {decimal_text(query.wide_share)} of it for wide totals" if query.wide_share else "")
    )
    yield "  tables: " + ", ".join(table.name for table in policy.tables if table.name in role.tables)


def _table(table: Table, unit: str) -> Iterator[str]:
    if table.public:
        yield f'table "{table.name}", public'
    else:
        way = table.unit_key or f"by way of {' or '.join(via.table for via in table.unit_via)}"
        yield (
            f'table "{table.name}", rows of one {unit} ({way}) that count: {table.rows_per_unit}; '
            f"in GROUP BY: {table.rows_per_group} in each group, "
            f"and {table.groups_per_unit} groups where {unit}s are counted"
            + (f"; groups of fewer than {table.min_units} {unit}s are not shown" if table.min_units > 1 else "")
        )
    rows = [(column.name, column.type.value, limits_text(column), keys_text(column, table)) for column in table.columns]
    yield from (f"  {line}" for line in table_lines(("column", "type", "limits", "as a group key"), rows) if rows)
