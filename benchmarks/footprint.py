"""How large dpsql is, and how many of its files one everyday query passes through.

    python -m benchmarks.footprint
    python -m benchmarks.footprint --functions

A file counts if one of its functions is called between the query and its rows, the import of dpsql and the opening of
the connection apart. Lines of code are those that are not blank, and no comments or docstrings. With `--functions`
each file is listed with the functions that are called, those with the fewest first.
"""

import ast
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import FrameType

import dpsql
from dpsql.cli.clinic import generate_clinic

QUERY = "SELECT sex, COUNT(*), AVG(age) FROM patients GROUP BY sex"
_PACKAGE = Path(dpsql.__file__).parent
_ASIDE = ("auditing", "console", "notebook")
"""Packages that answer no query."""


def functions_called(policy: Path) -> Mapping[Path, set[str]]:
    """Return the files of dpsql, and of each the functions that a fresh query calls in this thread."""
    called: defaultdict[Path, set[str]] = defaultdict(set)

    def note(frame: FrameType, event: str, _: object) -> None:
        if event == "call" and not frame.f_code.co_name.startswith("<"):
            called[Path(frame.f_code.co_filename)].add(frame.f_code.co_qualname)

    with dpsql.connect(
        policy, user="ana", role="analyst", ledger=f"sqlite:///{policy.parent}/ledger.sqlite"
    ) as connection:
        cursor = connection.cursor()
        sys.setprofile(note)
        try:
            cursor.execute(QUERY)
            cursor.fetchall()
        finally:
            sys.setprofile(None)
    return {path.relative_to(_PACKAGE): names for path, names in called.items() if path.is_relative_to(_PACKAGE)}


def lines(files: Iterable[Path]) -> int:
    """Return the lines of Python files."""
    return sum(path.read_text(encoding="utf-8").count("\n") for path in files)


def lines_of_code(files: Iterable[Path]) -> int:
    """Return the lines of Python files that are neither blank nor comments nor docstrings."""
    return sum(len(_code(path.read_text(encoding="utf-8"))) for path in files)


def _code(text: str) -> set[int]:
    told: set[int] = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            told |= set(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    numbered = enumerate(map(str.strip, text.splitlines()), 1)
    return {number for number, line in numbered if line and not line.startswith("#")} - told


def main() -> None:
    """Print the figures."""
    with tempfile.TemporaryDirectory() as folder:
        generate_clinic(Path(folder) / "clinic.duckdb", patients=1_000)
        policy = Path(folder) / "clinic.toml"
        policy.write_bytes((_PACKAGE / "cli" / "clinic.toml").read_bytes())
        called = functions_called(policy)
    everything = sorted(_PACKAGE.rglob("*.py"))
    answering = [path for path in everything if path.relative_to(_PACKAGE).parts[0] not in _ASIDE]
    print(f"{QUERY}\n  passes through {len(called)} files")
    print(f"dpsql/ has {lines(everything):,} lines of Python, {lines(answering):,} without {', '.join(_ASIDE)}")
    print(f"  {lines_of_code(answering):,} of these are neither blank nor comments nor docstrings")
    for package in sorted({path.parts[0] for path in called}):
        print(f"  {package:<16}{sum(path.parts[0] == package for path in called):>4} files called")
    if "--functions" in sys.argv[1:]:
        for path, names in sorted(called.items(), key=lambda each: (len(each[1]), each[0])):
            print(f"{len(names):>4} {path}: {', '.join(sorted(names))}")


if __name__ == "__main__":
    main()
