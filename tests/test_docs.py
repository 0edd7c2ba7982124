"""The docs say what the program does: commands parse, examples run, tables and links are up to date."""

import ast
import dataclasses
import importlib
import inspect
import itertools
import pkgutil
import re
import shlex
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest
import yaml  # type: ignore[import-untyped]
from click.testing import CliRunner

import dpsql
from benchmarks import accounting
from dpsql.cli import main
from dpsql.compiler.ir.functions import FUNCTIONS
from dpsql.dbapi import connect
from dpsql.errors import Error
from dpsql.gateway.settings import Settings
from dpsql.policy import load_policy
from dpsql.privacy import mechanisms, selection
from tests import generated
from tests.conftest import COVERS, NEIGHBOURS, SLOW

ROOT = Path(__file__).parent.parent
PAGES = ["README.md", *(f"docs/{path.name}" for path in sorted((ROOT / "docs").glob("*.md")))]


def text(page: str) -> str:
    return (ROOT / page).read_text(encoding="utf-8")


def blocks(page: str, language: str) -> list[str]:
    """Return the contents of a page's fenced blocks in one language."""
    return re.findall(rf"^```{language}\n(.*?)^```$", text(page), re.MULTILINE | re.DOTALL)


def commands(shell: str) -> Iterator[list[str]]:
    """Yield the words of each `dpsql` command in lines of shell, without what it is piped to or from."""
    for line in shell.replace("\\\n", " ").splitlines():
        words = shlex.shlex(line, posix=True, punctuation_chars=True)
        words.whitespace_split = True
        for is_end, part in itertools.groupby(words, lambda word: set(word) <= set("|>;&")):
            command = list(part)
            if not is_end and command[0] == "dpsql":
                yield command


def parse(words: list[str]) -> None:
    """Parse a command line as click does, down to the last subcommand; nothing is run."""
    command: click.Command = main
    context, rest = None, words[1:]
    while True:
        context = command.make_context(command.name, rest, parent=context)
        if not isinstance(command, click.Group):
            return
        _, subcommand, rest = command.resolve_command(context, [*context._protected_args, *context.args])
        assert subcommand is not None
        command = subcommand


def tree(command: click.Command, path: tuple[str, ...] = ("dpsql",)) -> Iterator[tuple[str, click.Command]]:
    yield " ".join(path), command
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            subcommand = command.get_command(context, name)
            assert subcommand is not None
            yield from tree(subcommand, (*path, name))


COMMANDS = dict(tree(main))


@pytest.mark.parametrize("page", PAGES)
def test_the_commands_of_a_page_exist(page: str) -> None:
    for block in blocks(page, "sh"):
        for words in commands(block):
            parse(words)


def test_the_check_of_commands_finds_mistakes() -> None:
    assert list(commands("x | dpsql user \\\n  list > f # c\nexport A=b\n")) == [["dpsql", "user", "list"]]
    for wrong in ("dpsql frobnicate", "dpsql serve", "dpsql query a.toml 'SELECT 1'", "dpsql user list --all"):
        with pytest.raises(click.UsageError):
            parse(shlex.split(wrong))


@pytest.mark.parametrize("page", PAGES)
def test_the_targets_of_make_exist(page: str) -> None:
    targets = set(re.findall(r"^([a-z-]+):", text("Makefile"), re.MULTILINE))
    assert set(re.findall(r"^make ([a-z-]+)", "\n".join(blocks(page, "sh")), re.MULTILINE)) <= targets


def test_the_quickest_tests_exist() -> None:
    """Those of `make check`; pytest runs none at all where one is missing."""
    shown = subprocess.run(["make", "-n", "check"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    named = re.findall(r"\btests/\S+", shown)
    assert len(named) > 10
    assert [name for name in named if not (ROOT / name).exists()] == []


def test_the_tables_of_tests_name_tests() -> None:
    files = list((ROOT / "tests").rglob("*.py"))
    known = {path.stem for path in files} | {path.parent.name for path in files}
    named = COVERS | SLOW | NEIGHBOURS
    assert {name for name in named if name.partition("::")[0].rpartition("/")[2] not in known} == set()


@pytest.mark.parametrize("path", COMMANDS)
def test_every_command_is_documented_and_has_help_with_an_example(path: str) -> None:
    command = COMMANDS[path]
    assert command.help
    example = command.help.partition("\b\n")[2]
    found = list(commands(inspect.cleandoc(example)))
    assert found, f"{path} has no example"
    for words in found:
        parse(words)
    if not isinstance(command, click.Group):
        assert " ".join(found[-1]).startswith(path)
        assert any(path in text(page) for page in PAGES), f"{path} is in no page"
    for parameter in command.params:
        if isinstance(parameter, click.Option) and not isinstance(parameter.type, click.Choice):
            assert parameter.help or parameter.show_default, f"{path} {parameter.opts}"


@pytest.mark.parametrize("page", generated.PARTS)
def test_generated_tables_are_up_to_date(page: str) -> None:
    assert generated.updated(page) == text(page), "python -m tests.generated"


def test_the_figures_of_accounting_are_those_of_the_code() -> None:
    for table in (accounting.queries_that_fit, accounting.what_queries_amount_to):
        assert "\n\n" + "\n".join(table()) + "\n\n" in text("docs/accounting.md"), "python -m benchmarks.accounting"


def test_every_function_is_in_the_table() -> None:
    assert set(generated.SPELLINGS) == set(FUNCTIONS)


ROWS = (
    "(VALUES (3, 2, 1)) AS v(a, b, c)",
    "(VALUES (3.5::float8, 2.5::float8, 1.5::float8)) AS v(a, b, c)",
    "(VALUES ('xyz', 'y', 'z')) AS v(a, b, c)",
    "(VALUES (TRUE, FALSE, TRUE)) AS v(a, b, c)",
    "(VALUES (DATE '2026-01-02', DATE '2026-01-01', DATE '2026-01-03')) AS v(a, b, c)",
    "(VALUES (TIMESTAMP '2026-01-02 10:00:00', TIMESTAMP '2026-01-01 00:00:00')) AS v(a, b)",
    "(SELECT JSON_BUILD_ARRAY(1) AS a) AS v",
    "(SELECT STRING_TO_ARRAY('x,y', ',') AS a, 'x' AS b) AS v",
)
PLACES = {
    "date - date": "a - b",
    "date ": "a ",
    ", …": "",
    "(…)": "(b)",
    "INTERVAL …": "INTERVAL '1 day'",
    "(part ": "(year ",
    "'unit'": "'month'",
}


def spellings() -> Iterator[str]:
    for spelling in generated.SPELLINGS.values():
        for span in re.findall("`([^`]+)`", spelling or ""):
            for place, example in PLACES.items():
                span = span.replace(place, example)
            yield span


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a directory with a small demo in it."""
    folder = tmp_path_factory.mktemp("docs")
    made = CliRunner().invoke(main, ["demo", "--dir", str(folder / "demo"), "--patients", "100", "--no-serve"])
    assert made.exit_code == 0, made.output
    return folder


def test_every_spelling_of_the_table_gives_a_value(demo: Path) -> None:
    with connect(demo / "demo" / "clinic.toml", user="ana") as connection:
        cursor = connection.cursor()

        def works(span: str, rows: str) -> bool:
            try:
                cursor.execute(f"SELECT {span} FROM {rows}")
            except Error:
                return False
            return True

        assert [span for span in spellings() if not any(works(span, rows) for rows in ROWS)] == []


def test_the_sql_of_the_pages_runs(demo: Path) -> None:
    with connect(demo / "demo" / "clinic.toml", user="ben") as connection:
        for block in (block for page in PAGES for block in blocks(page, "sql")):
            for statement in connection.session.parse(block):
                connection.session.execute(statement)


def test_the_settings_of_the_pages_exist(demo: Path) -> None:
    policy = load_policy(demo / "demo" / "clinic.toml")
    known = set(Settings(policy, policy.roles[0]).names()) | {"dpsql.budget", "dpsql.releases", "dpsql.columns"}
    named = {name for page in PAGES for name in re.findall(r"\bdpsql\.[a-z_]+\b(?![./(])", text(page))}
    assert named - {"dpsql.connect", "dpsql.plot", "dpsql.git"} <= known
    assert {name for name in known if name.startswith("dpsql.")} <= named


def test_the_python_of_the_readme_runs(
    demo: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(demo)
    for block in blocks("README.md", "python"):
        exec(block, {})
    assert "'epsilon': 0.2" in capsys.readouterr().out


def test_the_python_of_its_page_runs_from_top_to_bottom(
    demo: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(demo)
    names: dict[str, Any] = {}
    for block in blocks("docs/python.md", "python"):
        exec(block, names)
    names["connection"].close()
    shown = capsys.readouterr().out
    assert "{'epsilon': 0.2, 'delta': 1e-09, 'rho': 0.02}" in shown
    assert "42501 rows of protected tables are not shown" in shown


def test_the_number_of_queries_is_that_of_a_fresh_analyst(demo: Path) -> None:
    with connect(demo / "demo" / "clinic.toml", user="new") as connection:
        cursor = connection.cursor()
        (fit,) = cursor.execute("SELECT queries_that_fit FROM dpsql.budget").fetchone() or ()
        assert f"says {fit} at ε = 0.1" in text("docs/guarantee.md")
        assert f"so {fit} such queries" in text("README.md")
        cursor.execute("SET dpsql.epsilon = 1")
        with pytest.raises(Error, match=r"at most 0\.939 is left for one query"):
            cursor.execute("SELECT COUNT(*) FROM visits")
    assert "0.939 of a fresh analyst's 5" in text("docs/guarantee.md")


def test_the_policy_of_the_readme_is_one(demo: Path, tmp_path: Path) -> None:
    shutil.copy(demo / "demo" / "clinic.duckdb", tmp_path)
    path = tmp_path / "clinic.toml"
    for block in blocks("README.md", "toml"):
        path.write_text(block)
        checked = CliRunner().invoke(main, ["policy", "check", str(path)])
        assert checked.exit_code == 0, checked.output


def test_the_guide_for_data_owners_works_from_top_to_bottom(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The library is made, and asked under the policy of the page; commands that serve or prompt are not run."""
    monkeypatch.chdir(tmp_path)
    for block in blocks("docs/owners.md", "python"):
        exec(block, {})
    (policy,) = blocks("docs/owners.md", "toml")
    (tmp_path / "library.toml").write_text(policy)
    run = [words for block in blocks("docs/owners.md", "sh") for words in commands(block)]
    asked = [words for words in run if words[1] not in ("serve", "user")]
    assert len(asked) >= 8
    for words in asked:
        done = CliRunner().invoke(main, words[1:])
        assert done.exit_code == 0, (words, done.output)


@pytest.mark.parametrize("page", PAGES)
def test_links_resolve(page: str) -> None:
    folder = (ROOT / page).parent
    for link in re.findall(r"\]\(([^)\s]+)\)", text(page)):
        target, _, anchor = link.partition("#")
        if "://" in target:
            continue
        path = folder / target if target else ROOT / page
        assert path.exists(), link
        assert folder == ROOT or folder in path.resolve().parents, f"{link} is not on the site"
        if anchor:
            headings = re.findall(r"^#+ (.+)$", path.read_text(encoding="utf-8"), re.MULTILINE)
            assert anchor in {re.sub(r"[^\w-]", "", heading.lower().replace(" ", "-")) for heading in headings}, link


def pages_of(nav: Any) -> Iterator[str]:
    """Yield the pages of mkdocs' navigation."""
    match nav:
        case str():
            yield nav
        case list():
            for entry in nav:
                yield from pages_of(entry)
        case dict():
            for entry in nav.values():
                yield from pages_of(entry)


def test_the_site_has_each_page_once() -> None:
    site = yaml.safe_load(text("mkdocs.yml"))
    assert sorted(f"docs/{page}" for page in pages_of(site["nav"])) == sorted(set(PAGES) - {"README.md"})


@pytest.mark.parametrize("page", PAGES)
def test_lists_and_tables_begin_after_a_blank_line(page: str) -> None:
    """GitHub does not ask for it; the site shows them as one paragraph with the line above."""
    prose = re.sub(r"^```.*?^```$", "", text(page), flags=re.MULTILINE | re.DOTALL)
    joined = re.compile(r"^(?![-|#>\s*]|\d{1,2}\. |<!--).+\n(?:[-*] |\d{1,2}\. |\|).*", re.MULTILINE)
    assert joined.findall(prose) == []


NAMED = re.compile(r"`((?:dpsql|tests|benchmarks|examples|policies|docs|docker)/[\w./-]*)(?:::(\w+))?`")
"""A file or folder of the repository, and perhaps a test in it."""


def missing(named: str) -> list[str]:
    """The files, and the tests in them, that a text names and that are not there."""
    found = []
    for path, test in NAMED.findall(named):
        file = ROOT / path
        there = file.exists() and (not test or f"def {test}(" in file.read_text(encoding="utf-8"))
        found += [] if there else [f"{path}::{test}" if test else path]
    return found


@pytest.mark.parametrize("page", [*PAGES, "CHANGELOG.md"])
def test_the_files_and_tests_that_a_page_names_exist(page: str) -> None:
    assert missing(text(page)) == []


def test_the_check_of_names_finds_mistakes() -> None:
    assert missing("`dpsql/gateway/engine.py` and `tests/test_docs.py::missing`, `dpsql/privacy/`") == []
    wrong = ["dpsql/engines.py", "tests/test_docs.py::test_of_nothing", "docs/none/"]
    assert missing(" ".join(f"`{name}`" for name in wrong)) == wrong


def told(source: str) -> Iterator[str]:
    """Yield the texts of a Python source that are no docstrings."""
    syntax = ast.parse(source)
    docs = {id(node.value) for node in ast.walk(syntax) if isinstance(node, ast.Expr)}
    for node in ast.walk(syntax):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docs:
            yield node.value


def test_no_message_points_to_a_page() -> None:
    """Whoever reads a message has dpsql, and perhaps not its repository."""
    page = re.compile(r"\b(?:docs|examples)/\w|\bREADME\b|\.md\b")
    sources = [path.read_text(encoding="utf-8") for path in (ROOT / "dpsql").rglob("*.py")]
    assert [text for source in sources for text in told(source) if page.search(text)] == []
    assert [text for text in told('"""docs/a.md"""\nx = f"see docs/b.md, {y}"') if page.search(text)] == [
        "see docs/b.md, "
    ]


def modules() -> list[str]:
    return sorted(info.name for info in pkgutil.walk_packages(dpsql.__path__, "dpsql.") if "__main__" not in info.name)


@pytest.mark.parametrize("name", ["dpsql", *modules()])
def test_exports_are_sorted_and_exist(name: str) -> None:
    module = importlib.import_module(name)
    exported = getattr(module, "__all__", [])
    assert exported == sorted(exported, key=lambda name: (not name.isupper(), not name[0].isupper(), name))
    assert all(hasattr(module, member) for member in exported)


def test_the_face_exports_what_it_imports() -> None:
    public = {name for name in dir(dpsql) if not name.startswith("_") and not inspect.ismodule(getattr(dpsql, name))}
    assert public - {"TYPE_CHECKING"} == set(dpsql.__all__)


def mechanisms_and_selections() -> Iterator[tuple[str, object]]:
    """Yield what draws noise or keeps groups, and what makes such things."""
    classes: set[str] = {"Threshold"}
    for module in (mechanisms, selection):
        for name, kind in inspect.getmembers(module, inspect.isclass):
            draws = callable(getattr(kind, "sample", None)) or callable(getattr(kind, "keep", None))
            if draws and dataclasses.is_dataclass(kind) and kind.__module__ == module.__name__:
                classes.add(name)
                yield name, kind
    for module in (mechanisms, selection):
        for name, function in inspect.getmembers(module, callable):  # a cached function is none to inspect
            if inspect.isclass(function) or name.startswith("_") or function.__module__ != module.__name__:
                continue
            made = str(inspect.signature(function).return_annotation)
            if any(re.search(rf"\b{kind}\b", made) for kind in classes):
                yield name, function


STATED = dict(mechanisms_and_selections())


def test_the_known_mechanisms_are_found() -> None:
    assert {"DiscreteLaplace", "DiscreteGaussian", "TruncatedGeometric", "laplace", "select", "threshold_for"} <= set(
        STATED
    )


@pytest.mark.parametrize("name", STATED)
def test_mechanisms_state_their_guarantee(name: str) -> None:
    doc = inspect.getdoc(STATED[name]) or ""
    for heading in ("Guarantee:", "Assumes:", "Reference:"):
        assert re.search(rf"^{heading}", doc, re.MULTILINE), f"{name} lacks {heading}"
