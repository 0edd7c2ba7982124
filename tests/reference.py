"""The reference pages that are made of the program's own tables: policy keys, settings and commands.

Keys, examples, what is required, and defaults come from the code. Only what a key means is written here; a key that
has no meaning here, and a meaning without a key, is an error.
"""

import inspect
import re
import tempfile
import tomllib
from collections.abc import Iterator, Mapping
from enum import Enum
from fractions import Fraction
from pathlib import Path

import click

import dpsql.backends  # noqa: F401  # the engines that a policy's url may name
from dpsql.cli import main
from dpsql.errors import InvalidPolicy
from dpsql.gateway import settings
from dpsql.policy import Policy, budgets, columns, dataset, files, load_policy, tables
from dpsql.policy.node import Shape
from dpsql.privacy.conversion import exact_text

SMALLEST = """
version = 1

[dataset]
name = "clinic"
url = "duckdb:///clinic.duckdb"
privacy_unit = "patient"
budget = { epsilon = 20, delta = 1e-6 }

[roles.analyst]
budget = { epsilon = 5, delta = 1e-6 }
query = { epsilon = 0.1 }

[groups.team]
budget = { epsilon = 8, delta = 1e-6 }

[tables.patients]
unit_key = "patient_id"
max_rows = 50

[tables.patients.columns.age]
type = "integer"
"""
"""A policy of required keys alone; the defaults of all others are read off it."""


def policy_from(text: str) -> Policy:
    """Load a policy from its text."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "policy.toml"
        path.write_text(text, encoding="utf-8")
        return load_policy(path)


def without(text: str, section: str, key: str) -> str | None:
    """Return a policy's text without one key of a section, or None if the section does not have it."""
    head, begin, rest = text.partition(f"[{section}]\n")
    body, end, tail = rest.partition("\n\n")
    if key not in tomllib.loads(body):
        return None
    lines = [line for line in body.splitlines() if not re.match(rf"{key} *=", line)]
    return head + begin + "\n".join(lines) + end + tail


def is_required(section: str, key: str) -> bool:
    """Tell whether a policy without this key is refused."""
    less = without(SMALLEST, section, key)
    if less is None:
        return False
    try:
        policy_from(less)
    except InvalidPolicy:
        return True
    return False


def shown(value: object) -> str:
    """Return a default as the reference shows it; an empty text where nothing is the default."""
    match value:
        case None | ():
            return ""
        case bool():
            return f"`{str(value).lower()}`"
        case Enum():
            return f'`"{value.value}"`'
        case Fraction():
            return f"`{exact_text(value) if value == 0 or value >= Fraction(1, 1000) else f'{float(value):g}'}`"
        case str():
            return f'`"{value}"`'
        case _:
            return f"`{value}`"


MEANINGS: dict[str, tuple[str, Shape, Mapping[str, str]]] = {
    "dataset": (
        "the data, the people in it, and the cap over all users",
        dataset._DATASET,
        {
            "name": "The database that clients connect to.",
            "url": "The data: a DuckDB file or a folder of files (relative to the policy), a folder of an S3 bucket, "
            "a PostgreSQL database, or a catalog in Spark. `${NAME}` is taken from the environment.",
            "schema": "The schema of tables that name none.",
            "privacy_unit": "Whom the guarantee protects, in one word. Messages use it.",
            "adjacency": '`"add_remove"` hides whether a unit is in the data. `"substitute"` hides what its rows say.',
            "data_version": "Change it with the data. Answers are reused within one version.",
            "budget": "The cap: what all users together may ever learn about one unit. It never renews.",
            "cap": "Policies over the same people must name the same cap. The default is the dataset's name.",
            "reply_quantum": "Replies take a multiple of this time, so that their time tells less.",
            "timezone": "Days and months of timestamps are cut in this zone.",
            "preview": '`"synthetic"` answers `SELECT *` with rows made up from the policy. `"refuse"` refuses it.',
            "prepared_schema": "PostgreSQL only: the schema of prepared tables.",
            "max_error_ratio": "How many times as large the error of derived answers, and of prepared tables, may be.",
            "memory": "DuckDB only: the memory that the engine may take. The default is half of the machine's.",
            "spill": "DuckDB only: the directory where the engine may write what memory does not hold, encrypted. "
            "Without it, such a query fails.",
            "threads": "DuckDB only: the threads that the engine may use. The default is one for each processor.",
        },
    ),
    "dataset.budget": (
        "the cap",
        budgets._CAP,
        {
            "epsilon": "The ε of everything together.",
            "delta": 'The δ of everything together, far below 1 / (number of units). Only `"pure"` does without.',
            "accountant": "How queries add up: `zcdp`, `rdp`, `advanced`, `basic` or `pure`.",
            "selection_share": "The part of δ that pays for groups with private keys. The default is 0 where no "
            "column is a private key.",
        },
    ),
    "roles.NAME": (
        "a kind of user",
        budgets._ROLE,
        {
            "budget": "What each user of the role may spend.",
            "query": "What one query costs.",
            "tables": "The tables that the role sees. The default is all of them.",
        },
    ),
    "roles.NAME.budget": (
        "what one user may spend; the same keys are in `[groups.NAME] budget`",
        budgets._BUDGET,
        {
            "epsilon": "The ε of everything that one user is shown.",
            "delta": "The δ of everything that one user is shown.",
            "accountant": "How queries add up. The cap must be able to account for it.",
            "selection_share": "The part of δ that pays for groups with private keys.",
            "window": 'The budget renews: `"30 days"` or `"calendar month"`. Without it, it never does.',
        },
    ),
    "roles.NAME.query": (
        "what one query costs",
        budgets._QUERY,
        {
            "epsilon": "The price of a query that sets none.",
            "delta": "The δ of a query whose group keys are private. The default is 1/1000 of what the budget "
            "has for them.",
            "mechanism": '`"laplace"`, `"gaussian"`, or `"auto"`: the one with less error.',
            "max_epsilon": "The most that one query may cost. The default is the whole budget.",
            "wide_share": "The part of each price that measures how many rows the bounds drop.",
            "bias_share": "An older name of `wide_share`.",
            "derives": "False: no answer is [derived](mechanisms.md#answers-from-answers) from earlier ones.",
        },
    ),
    "groups.NAME": (
        "users who share a budget",
        budgets._GROUP,
        {"budget": "What the users of the group may spend together.", "description": "A text for people."},
    ),
    "tables.NAME": (
        "one table; a table that is not listed does not exist for analysts",
        tables._TABLE,
        {
            "public": "The rows are about no person: analysts may read them unchanged.",
            "unit_key": "The column that says whose row it is. A protected table has `unit_key` or `unit_via`.",
            "unit_via": "For a table without such a column: the table that leads to the unit, and the columns "
            "to join on; or an array of several such ways, each with a condition.",
            "description": "A text for analysts.",
            "max_rows": "Contribution bound: the rows of one unit that count. Required beside `unit_key`; the default "
            "beside `unit_via` is that of the table it leads to; several ways need it.",
            "max_groups": "Contribution bound: the groups in which one unit counts where units are counted. The "
            "default is `max_rows`.",
            "max_rows_per_group": "Contribution bound: the rows of one unit that count in one group. The default "
            "is `max_rows`.",
            "within_unit": "Keys whose rows are all of one unit. A join on them, of tables that both name them, "
            "compares the units, too: it is sound for any rows.",
            "min_units": "Minimum frequency: groups of fewer units are not shown. It costs δ, also for public groups.",
            "files": "DuckDB only: the files that are the table, in place of a table of the database.",
            "columns": "The columns that analysts may use.",
        },
    ),
    "tables.NAME.unit_via": (
        "the way to the unit",
        tables._UNIT_VIA,
        {
            "table": "A protected table of this policy.",
            "on": "Columns here, and the columns there that they equal.",
            "where": "The rows that go this way: a column and the texts or whole numbers, one or `IN` several, that it "
            "has in them. Several ways need it, of one column, and no value is in two of them; rows with other values "
            "are of no unit, and do not count.",
        },
    ),
    "tables.NAME.files": (
        "files that are a table; a `parquet:///` url reads `NAME.parquet`, and all of the folder `NAME`, without this",
        files.FILES,
        {
            "format": "`parquet`; `csv`, with commas and a header; `json`, one object a line; `delta`; or `iceberg`.",
            "paths": "Where the files are, from the folder of the url: `*` is any name, `**` any folders. "
            "The folder of a Delta table, or the metadata file of an Iceberg table.",
            "columns": "The types of columns. CSV and JSON are read as these: a text that is none of the type is NULL. "
            "Parquet files must have them.",
            "hive": "Columns that are in folders' names, such as `year=2024`, and their types.",
        },
    ),
    "tables.NAME.columns.NAME": (
        "one column; a column that is not listed does not exist for analysts",
        columns._COLUMN,
        {
            "type": f"One of {', '.join(f'`{name}`' for name in columns._TYPE_NAMES)}.",
            "lower": "Values below are clamped to it. `SUM`, `AVG` and the like need both bounds.",
            "upper": "Values above are clamped to it.",
            "step": "Values are rounded to a multiple of it, so that sums are exact.",
            "values": "The public domain: all groups are shown, empty ones too, and cost no δ.",
            "values_from": "The public domain is a column of a public table.",
            "description": "A text for analysts.",
            "nullable": "`false`: the catalog says NOT NULL.",
            "collected_by": "The answers were randomized when they were collected.",
        },
    ),
    "tables.NAME.columns.NAME.collected_by": (
        "randomized answers",
        columns._COLLECTED_BY,
        {"randomized_response": "The probability that an answer is the true one. Counts and shares are corrected."},
    ),
}
"""By section: what it is about, its keys with an example of each, and what each key means."""

ALONE: dict[str, tuple[str, ...]] = {
    "tables.NAME": (),
    "tables.NAME.unit_via": ("table", "on"),
    "tables.NAME.files": ("format", "paths"),
    "tables.NAME.columns.NAME.collected_by": ("randomized_response",),
}
"""Sections whose required keys do not follow from the smallest policy, with these keys."""
DERIVED = {
    "cap",
    "max_epsilon",
    "unit_key",
    *("max_rows", "max_groups", "max_rows_per_group"),
    "delta",
    "tables",
    "columns",
}
"""Keys whose default depends on others; their meaning says how."""


def defaults(policy: Policy) -> dict[str, object]:
    """Return what holds the defaults of each section."""
    role, table = policy.roles[0], policy.tables[0]
    return {
        "dataset": policy.dataset,
        "dataset.budget": policy.dataset.budget,
        "roles.NAME": role,
        "roles.NAME.budget": role.budget,
        "roles.NAME.query": role.query,
        "groups.NAME": policy.groups[0],
        "tables.NAME": table,
        "tables.NAME.columns.NAME": table.columns[0],
    }


def default_of(section: str, key: str, owner: object) -> str:
    """Return a key's default; an empty text if there is none, or if its meaning says it."""
    if key in DERIVED or owner is None:
        return ""
    value = getattr(owner, key, None)
    return '`"0 ms"`' if key == "reply_quantum" and value == 0 else shown(value)


def policy_keys() -> Iterator[str]:
    """Yield the lines of the tables of policy keys."""
    owners = defaults(policy_from(SMALLEST))
    names = {"roles.NAME": "roles.analyst", "groups.NAME": "groups.team", "tables.NAME": "tables.patients"}
    for section, (about, shape, meanings) in MEANINGS.items():
        if set(meanings) != set(shape):
            raise LookupError(f"say in tests/reference.py what it means: [{section}] {set(meanings) ^ set(shape)}")
        yield f"### `[{section}]`"
        yield ""
        yield f"{about[0].upper()}{about[1:]}."
        yield ""
        yield "| key | example | default | meaning |"
        yield "|---|---|---|---|"
        place = names.get(section, section).replace("tables.NAME.columns.NAME", "tables.patients.columns.age")
        for key, example in shape.items():
            inline = section.endswith((".budget", ".query"))
            if section in ALONE:
                required = key in ALONE[section]
            else:
                required = f"{key} = " in _inline(section) if inline else is_required(place, key)
            default = "required" if required else default_of(section, key, owners.get(section))
            yield f"| `{key}` | `{example}` | {default} | {meanings[key]} |"
        yield ""


def _inline(section: str) -> str:
    """Return the line of the smallest policy in which a section stands as a value."""
    name, _, key = section.replace("NAME", "analyst").rpartition(".")
    body = SMALLEST.partition(f"[{name}]\n")[2].partition("\n\n")[0]
    return next(line.partition("{")[2] for line in body.splitlines() if line.startswith(f"{key} = "))


SETTINGS: Mapping[str, tuple[str, str]] = {
    "dpsql.epsilon": ("0.001 to the role's `max_epsilon`", "The price of a query."),
    "dpsql.delta": ("0, or 1e-30 to 0.001", "The δ of a query whose group keys are private."),
    "dpsql.mechanism": ("`laplace`, `gaussian`, `auto`", "The noise; `auto` takes the one with less error."),
    "dpsql.target_error": ("`off`, `'50'`, `'5 %'`", "The error that you want, instead of a price."),
    "dpsql.max_error_ratio": (
        "0 to 1000",
        "How many times as large the error of derived answers, and of prepared tables, may be.",
    ),
    "dpsql.intervals": ("`on`, `off`", "Adds `<column>_low` and `<column>_high`: a 95 % interval."),
    "dpsql.reuse": (
        "`derived`, `exact`, `off`",
        "`exact` gives the same query its answer again. `derived` also adds up and combines earlier ones, and buys "
        "only what is missing. `off` buys a fresh answer.",
    ),
    "dpsql.consistent": (
        "`on`, `off`",
        "`on` makes an answer add up with all your releases under the same conditions. A repeated query may change.",
    ),
    "dpsql.notices": ("`on`, `off`", "`off` sends rows without the notice."),
    "dpsql.calibrate": ("`on`, `off`", "`off` leaves values as they were released, although bounds drop rows."),
    "dpsql.max_rows": ("a whole number", "Narrows the contribution bound: rows of one unit."),
    "dpsql.max_groups": ("a whole number", "Narrows the contribution bound: groups of one unit."),
    "dpsql.max_rows_per_group": ("a whole number", "Narrows the contribution bound: rows of one unit in one group."),
}
"""By dpsql's own settings: the values that it takes, and what it does."""

FROM_PROFILE = {"dpsql.max_rows", "dpsql.max_groups", "dpsql.max_rows_per_group"}
"""Settings whose default is chosen by the newest profile, if there is one."""
FROM_POLICY = {"dpsql.epsilon", "dpsql.delta", "dpsql.mechanism", "dpsql.max_error_ratio"}
"""Settings whose default is a key of the policy."""


def settings_tables() -> Iterator[str]:
    """Yield the lines of the tables of settings."""
    policy = policy_from(SMALLEST)
    known = settings.Settings(policy, policy.roles[0])
    own = [name for name in known.names() if name.startswith("dpsql.")]
    if set(own) != set(SETTINGS):
        raise LookupError(f"say in tests/reference.py what it does: {set(own) ^ set(SETTINGS)}")
    yield "| setting | values | default | meaning |"
    yield "|---|---|---|---|"
    for name, (values, meaning) in SETTINGS.items():
        default = "from the policy" if name in FROM_POLICY else f"`{known.show(name)}`"
        default = "chosen by the profile, else from the policy" if name in FROM_PROFILE else default
        yield f"| `{name}` | {values} | {default} | {meaning} |"
    yield ""
    yield "These settings of PostgreSQL exist as well:"
    yield ""
    yield "| setting | default | |"
    yield "|---|---|---|"
    for name in known.names():
        if name not in SETTINGS:
            fixed = "cannot be changed" if name in settings._FIXED else ""
            value = known.show(name) or "''"
            yield f"| `{name}` | `{value}` | {fixed} |"


def commands() -> Iterator[str]:
    """Yield the reference of every command."""
    yield from _command(main, click.Context(main, info_name="dpsql"))


def _command(command: click.Command, context: click.Context) -> Iterator[str]:
    text, _, example = inspect.cleandoc(command.help or "").partition("\b\nExample:\n")
    path = context.command_path
    yield f"## `{path}`"
    yield ""
    yield from re.sub(r"(\S)\n(?=\S)", r"\1 ", text.strip()).splitlines()
    yield ""
    if not isinstance(command, click.Group):
        words = [
            parameter.make_metavar(context) for parameter in command.params if isinstance(parameter, click.Argument)
        ]
        yield "```text"
        yield " ".join([path, "[OPTIONS]", *words])
        yield "```"
        yield ""
    yield "```sh"
    yield from inspect.cleandoc(example).splitlines()
    yield "```"
    yield ""
    options = [parameter for parameter in command.params if isinstance(parameter, click.Option)]
    if options:
        yield "| option | meaning |"
        yield "|---|---|"
        yield from (_option(option) for option in options)
        yield ""
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            member = command.get_command(context, name)
            if member is not None:
                yield from _command(member, click.Context(member, info_name=name, parent=context))


def _option(option: click.Option) -> str:
    names = " / ".join(f"`{name}`" for name in (*option.opts, *option.secondary_opts))
    if isinstance(option.type, click.Choice):
        names += f" {', '.join(map(str, option.type.choices))}"
    elif option.metavar and not option.is_flag:
        names += f" {option.metavar}"
    said = [option.help or ""]
    if isinstance(option.default, str | int) and not isinstance(option.default, bool) and option.show_default:
        said.append(f"Default: `{option.default}`.")
    if option.required:
        said.append("Required.")
    if isinstance(option.envvar, str):
        said.append(f"Environment: `{option.envvar}`.")
    return f"| {names} | {' '.join(filter(None, said)).replace('|', chr(92) + '|')} |"
