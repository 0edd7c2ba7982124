"""magics: %dpsql and %%dpsql of IPython: a connection, queries in cells, and errors without a traceback."""

import shlex
from argparse import ArgumentParser, Namespace
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any, NoReturn

from IPython.core.error import UsageError
from IPython.core.interactiveshell import InteractiveShell
from IPython.core.magic import Magics, line_cell_magic, magics_class, no_var_expand

from dpsql.compiler.sql.statements import QueryStatement
from dpsql.dbapi import Connection, connect
from dpsql.errors import Error, InterfaceError
from dpsql.gateway.explain import explanation_lines
from dpsql.notebook.answered import Answered
from dpsql.privacy.conversion import decimal_text

_BUDGET = (
    "SELECT scope, epsilon_limit, epsilon_spent, epsilon_remaining, delta_remaining, queries_that_fit, window_end "
    "FROM dpsql.budget"
)
_TABLES = "SELECT table_name, column_name, data_type, lower, upper, domain, description FROM dpsql.columns"
_WITH_INTERVALS = {"dpsql.intervals": "on", "dpsql.notices": "off"}
_SETTINGS = ("epsilon", "delta", "mechanism", "target_error")
_SETTINGS_USAGE = "[--epsilon E] [--delta D] [--mechanism M] [--target-error T]"
_WIDTH = 100


class _Options(ArgumentParser):
    """The options of a magic: what is wrong is told as a notebook tells it, and nothing is exited."""

    def __init__(self, usage: str) -> None:
        super().__init__(usage=usage.replace("%", "%%"), add_help=False)

    def of(self, line: str) -> Namespace:
        """Read the options of a line."""
        try:
            return self.parse_args(shlex.split(line))
        except ValueError as error:
            self.error(f"{error} in: {line}")

    def error(self, message: str) -> NoReturn:
        """Raise what IPython shows without a traceback."""
        raise UsageError(f"{message}\n{self.format_usage()}")


def _with_settings(parser: _Options) -> _Options:
    for setting in _SETTINGS:
        parser.add_argument(f"--{setting.replace('_', '-')}", dest=setting)
    return parser


def _connect_options() -> _Options:
    parser = _Options(f"%dpsql connect POLICY --user NAME [--role ROLE] [--ledger URL] {_SETTINGS_USAGE}")
    parser.add_argument("policy")
    for name in ("user", "role", "ledger"):
        parser.add_argument(f"--{name}")
    return _with_settings(parser)


def _cell_options() -> _Options:
    parser = _Options(f"%%dpsql [explain] [--name VARIABLE] {_SETTINGS_USAGE}")
    parser.add_argument("what", nargs="?", choices=["explain"])
    parser.add_argument("--name")
    return _with_settings(parser)


@magics_class
class DpsqlMagics(Magics):
    """The magics; one connection at a time."""

    def __init__(self, shell: InteractiveShell) -> None:
        """Start without a connection."""
        super().__init__(shell)
        self._variables: dict[str, Any] = shell.user_ns
        self._connection: Connection | None = None
        self._own: Connection | None = None

    @no_var_expand
    @line_cell_magic
    def dpsql(self, line: str, cell: str | None = None) -> Answered | None:
        """Ask for differentially private answers.

        %dpsql connect POLICY --user NAME [--role R] [--ledger URL] [--epsilon E] [--delta D] [--mechanism M]
        %dpsql connect VARIABLE            a connection that there is
        %dpsql budget                      what is left
        %dpsql tables                      tables, columns, limits and domains
        %dpsql explain SELECT …            price and error, before anything is spent; EXPLAIN SELECT … tells more
        %dpsql SELECT …                    the answer
        %dpsql close

        %%dpsql [explain] [--name VARIABLE] [--epsilon E] [--delta D] [--mechanism M] [--target-error T]
        SELECT …
        """
        if cell is not None:
            return self._cell(line, cell)
        word, _, rest = line.strip().partition(" ")
        match word:
            case "connect":
                self._connect(rest)
            case "explain":
                self._explain(rest, {})
            case "close" if not rest:
                self._use(None, None)
            case "budget" | "tables" if not rest:
                return self._ask(_BUDGET if word == "budget" else _TABLES, {})
            case "":
                raise UsageError("%dpsql connect POLICY --user NAME; %dpsql? tells what else there is")
            case _:
                return self._ask(line.strip(), {})
        return None

    def _connect(self, line: str) -> None:
        asked = _connect_options().of(line)
        settings = _settings(asked)
        there = self._variables.get(asked.policy)
        with _clean(""):
            if isinstance(there, Connection):
                if settings or asked.user or asked.role or asked.ledger:
                    raise UsageError(f"{asked.policy} is a connection already; options are for a policy file")
                self._use(there, None)
            elif asked.user is None:
                raise UsageError(f"--user is required: %dpsql connect {asked.policy} --user NAME")
            else:
                made = connect(asked.policy, user=asked.user, role=asked.role, ledger=asked.ledger, **settings)
                self._use(made, made)

    def _use(self, connection: Connection | None, own: Connection | None) -> None:
        """Ask over a connection from now on; one that was opened here and is not used any more is closed."""
        if self._own is not None:
            self._own.close()
        self._connection, self._own = connection, own
        if connection is not None:
            dataset, told = connection.engine.policy.dataset, connection.session.quote([])
            left, limit = decimal_text(told.remaining.epsilon, 4), decimal_text(told.status.limit.epsilon)
            print(f"{dataset.name}, as {connection.session.user}; remaining: epsilon {left} of {limit}")

    def _cell(self, line: str, cell: str) -> Answered | None:
        asked = _cell_options().of(line)
        settings = {f"dpsql.{name}": value for name, value in _settings(asked).items()}
        if asked.what == "explain":
            if asked.name is not None:
                raise UsageError("explain gives no result that --name could hold")
            self._explain(cell, settings)
            return None
        if asked.name is not None and not asked.name.isidentifier():
            raise UsageError(f"--name {asked.name} is no name of a variable")
        answered = self._ask(cell, settings)
        if asked.name is not None:
            self._variables[asked.name] = answered
        return answered

    def _ask(self, sql: str, settings: Mapping[str, str]) -> Answered | None:
        with _clean(sql):
            connection = self._open()
            if any(isinstance(one.parsed, QueryStatement) for one in connection.session.parse(sql)):
                settings = {**settings, **_WITH_INTERVALS}
            elif settings:
                raise UsageError("options are for a query; %%dpsql explain takes them, too")
            result = connection.run(sql, settings=settings)
        if result.columns is None:
            print("\n".join([result.tag, *(f"{notice.severity}: {notice.message}" for notice in result.notices)]))
            return None
        return Answered(result, connection.zone)

    def _explain(self, sql: str, settings: Mapping[str, str]) -> None:
        with _clean(sql):
            explained = self._open().explain(sql, settings=settings)
        print("\n".join(explanation_lines(explained)))

    def _open(self) -> Connection:
        if self._connection is None:
            raise InterfaceError("there is no connection", hint="%dpsql connect POLICY --user NAME")
        return self._connection


def _settings(asked: Namespace) -> dict[str, str]:
    """The settings that a line gives, by their names."""
    return {name: value for name in _SETTINGS if (value := getattr(asked, name)) is not None}


@contextmanager
def _clean(sql: str) -> Iterator[None]:
    """What dpsql refuses inside is shown in words; it is raised as it is, so that programs find their error."""
    try:
        yield
    except Error as error:
        # IPython asks an exception that has this for what it shows in place of the traceback.
        vars(error)["_render_traceback_"] = partial(error_lines, error, sql)
        raise


def error_lines(error: Error, sql: str) -> list[str]:
    """An error for people: what was wrong, where, and what would work."""
    lines = [f"{type(error).__name__}: {error.message} ({error.sqlstate})"]
    if error.position is not None:
        lines += _pointed(sql, error.position - 1)
    for name, text in (("DETAIL", error.detail), ("HINT", error.hint)):
        lines += [f"{name}: {text}"] if text is not None else []
    return lines


def _pointed(sql: str, at: int) -> list[str]:
    """The line of a query with the place that is meant, and a caret below it."""
    begins = sql.rfind("\n", 0, at) + 1
    line, column = sql[begins:].partition("\n")[0], at - begins
    cut = max(0, column - _WIDTH // 2)
    shown = "".join(sign if sign.isprintable() else " " for sign in line[cut : cut + _WIDTH])
    head = f"LINE {sql.count(chr(10), 0, at) + 1}: {'…' if cut else ''}"
    return [head + shown, " " * (len(head) + column - cut) + "^"]
