"""All attacks on the naive gateway and on dpsql, and the audit, in one table: `python -m tests.attacks`."""

import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

from dpsql.auditing import Extent, audit
from tests.attacks.arena import Arena, Comparison, Verdict, open_arena, together
from tests.postgres import VERSIONS, own_server

ROUNDS = 200
WIDTHS = (25, 62, 76)


def comparisons(arena: Arena) -> Iterator[Comparison]:
    """Run every attack there is a file of."""
    for file in sorted(Path(__file__).parent.glob("test_*.py")):
        yield import_module(f"tests.attacks.{file.stem}").compare(arena)


def audited(arena: Arena) -> Verdict:
    """Let the audit try to refute what dpsql claims of the arena's policy, and a part of that on PostgreSQL."""
    policy = arena.engine(True).policy
    some = Extent(
        runs=12, mechanisms=("laplace",), only=("COUNT people", "SUM people", "selection", "reuse", "failure")
    )
    verdicts = {}
    for engine, extent, server in (
        ("duckdb", Extent(runs=12, single_runs=100), None),
        ("postgresql", some, arena.server.url),
    ):
        findings = audit(policy, extent, server=server).findings
        refuted = [finding for finding in findings if not finding.holds]
        shown = median(finding.share for finding in findings if finding.epsilon)
        told = f"{len(refuted)} of {len(findings)} claims refuted, {shown:.0%} of a claim shown in the median"
        verdicts[engine] = Verdict(told, bool(refuted))
    return together(verdicts)


def row(*cells: str) -> str:
    padded = (cell.ljust(width) for cell, width in zip(cells, WIDTHS, strict=True))
    return f"| {' | '.join(padded)} |"


def main() -> int:
    """Print a line for each attack; 1 where one that dpsql falls to."""
    print(row("attack", "against the naive gateway", "against dpsql"))
    print(row(*("-" * width for width in WIDTHS)), flush=True)
    fallen = False
    with (
        TemporaryDirectory() as folder,
        open_arena(Path(folder), lambda: own_server(VERSIONS[-1]), rounds=ROUNDS, thorough=True) as arena,
    ):
        for found in comparisons(arena):
            verdicts = (
                f"{verdict.text}{'' if verdict.succeeded else ': withstood'}" for verdict in (found.naive, found.dpsql)
            )
            print(row(found.attack, *verdicts), flush=True)
            fallen |= found.dpsql.succeeded or not found.naive.succeeded
        verdict = audited(arena)
        print(row("audit", "–", f"{verdict.text}{'' if verdict.succeeded else ': withstood'}"))
        fallen |= verdict.succeeded
    return int(fallen)


if __name__ == "__main__":
    sys.exit(main())
