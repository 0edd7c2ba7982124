"""How large dpsql is, and how many of its files one everyday query passes through.

    python -m benchmarks.footprint

A file counts if one of its functions is called between the query and its rows, the import of dpsql and the opening of
the connection apart.
"""

import sys
import tempfile
from pathlib import Path
from types import FrameType

import dpsql
from dpsql.cli.clinic import generate_clinic

QUERY = "SELECT sex, COUNT(*), AVG(age) FROM patients GROUP BY sex"
_PACKAGE = Path(dpsql.__file__).parent
_ASIDE = ("auditing", "console", "notebook")
"""Packages that answer no query."""


def files_called(policy: Path) -> set[Path]:
    """Return the files of dpsql whose functions a fresh query calls, in this thread."""
    called: set[Path] = set()

    def note(frame: FrameType, event: str, _: object) -> None:
        if event == "call":
            called.add(Path(frame.f_code.co_filename))

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
    return {path for path in called if path.is_relative_to(_PACKAGE)}


def lines(folder: Path) -> int:
    """Return the lines of the Python files beneath a folder."""
    return sum(path.read_text(encoding="utf-8").count("\n") for path in folder.rglob("*.py"))


def main() -> None:
    """Print the figures."""
    with tempfile.TemporaryDirectory() as folder:
        generate_clinic(Path(folder) / "clinic.duckdb", patients=1_000)
        policy = Path(folder) / "clinic.toml"
        policy.write_bytes((_PACKAGE / "cli" / "clinic.toml").read_bytes())
        called = files_called(policy)
    everything = lines(_PACKAGE)
    aside = sum(lines(_PACKAGE / name) for name in _ASIDE)
    print(f"{QUERY}\n  passes through {len(called)} files")
    print(f"dpsql/ has {everything:,} lines of Python, {everything - aside:,} without {', '.join(_ASIDE)}")
    for package in sorted({path.relative_to(_PACKAGE).parts[0] for path in called}):
        count = sum(path.relative_to(_PACKAGE).parts[0] == package for path in called)
        print(f"  {package:<16}{count:>4} files called")


if __name__ == "__main__":
    main()
