"""All attacks on the naive gateway and on dpsql, in one table: `python -m tests.attacks`."""

import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.attacks.arena import Arena, Comparison, open_arena

ROUNDS = 200
WIDTHS = (25, 62, 62)


def comparisons(arena: Arena) -> Iterator[Comparison]:
    """Run every attack there is a file of."""
    for file in sorted(Path(__file__).parent.glob("test_*.py")):
        yield import_module(f"tests.attacks.{file.stem}").compare(arena)


def row(*cells: str) -> str:
    padded = (cell.ljust(width) for cell, width in zip(cells, WIDTHS, strict=True))
    return f"| {' | '.join(padded)} |"


def main() -> int:
    """Print a line for each attack; 1 where one that dpsql falls to."""
    print(row("attack", "against the naive gateway", "against dpsql"))
    print(row(*("-" * width for width in WIDTHS)), flush=True)
    fallen = False
    with TemporaryDirectory() as folder, open_arena(Path(folder), rounds=ROUNDS, thorough=True) as arena:
        for found in comparisons(arena):
            verdicts = (
                f"{verdict.text}{'' if verdict.succeeded else ': withstood'}" for verdict in (found.naive, found.dpsql)
            )
            print(row(found.attack, *verdicts), flush=True)
            fallen |= found.dpsql.succeeded or not found.naive.succeeded
    return int(fallen)


if __name__ == "__main__":
    sys.exit(main())
