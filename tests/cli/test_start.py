"""What is not needed is not imported: `dpsql --help` and `import dpsql` start at once."""

import subprocess
import sys

import click
import pytest

import dpsql
from dpsql.cli import main
from dpsql.cli.main import SUMMARIES, command

HEAVY = {"duckdb", "numpy", "psycopg", "sqlglot", "starlette", "matplotlib", "IPython", "asyncio"}
BARE = {
    "import": "import dpsql",
    "names": "import dpsql; dir(dpsql); dpsql.__all__; dpsql.__doc__",
    "help": "import sys; sys.argv[1:] = ['--help']; from dpsql.cli import main; main(standalone_mode=False)",
    "version": "import sys; sys.argv[1:] = ['--version']; from dpsql.cli import main; main(standalone_mode=False)",
}


@pytest.mark.parametrize("program", BARE.values(), ids=BARE)
def test_heavy_packages_are_imported_late(program: str) -> None:
    assert (HEAVY | {"sqlite3"}) & imported(program) == set()


@pytest.mark.parametrize("name", SUMMARIES)
def test_the_help_of_a_command_imports_no_engine_parser_or_driver(name: str) -> None:
    help = f"import sys; sys.argv[1:] = {[name, '--help']}; from dpsql.cli import main; main(standalone_mode=False)"
    assert HEAVY & imported(help) == set()


def test_a_database_in_a_file_needs_no_driver_of_postgresql() -> None:
    modules = imported("import dpsql; dpsql.connect")
    assert "duckdb" in modules
    assert "psycopg" not in modules


def imported(program: str) -> set[str]:
    """Return the names of the modules that a program has imported in the end."""
    ended = subprocess.run(
        [sys.executable, "-c", f"{program}\nimport sys\nprint(*sys.modules, file=sys.stderr)"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert "dpsql" in ended.stderr.split()
    return set(ended.stderr.split())


def test_each_name_is_imported_when_it_is_used() -> None:
    for name in dpsql.__all__:
        assert getattr(dpsql, name) is not None
        assert name in dir(dpsql)
    with pytest.raises(AttributeError, match="module 'dpsql' has no attribute 'conect'"):
        dpsql.conect  # type: ignore[attr-defined]  # noqa: B018


@pytest.mark.parametrize("name", SUMMARIES)
def test_the_summary_of_a_command_is_the_beginning_of_its_help(name: str) -> None:
    found = command(name)
    assert found.name == name
    assert found.help is not None
    assert found.help.split()[:2] == SUMMARIES[name].split()[:2]
    assert len(SUMMARIES[name]) <= 66  # one line of 80 columns


def test_a_command_that_does_not_exist() -> None:
    with pytest.raises(KeyError):
        command("frobnicate")
    assert main.get_command(click.Context(main), "frobnicate") is None
