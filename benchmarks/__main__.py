"""All benchmarks, one after another: `python -m benchmarks`."""

import sys

from benchmarks import accounting, engines, ledger, noise, prepared, queries


def main() -> None:
    """Run each with its defaults."""
    for benchmark in (noise, queries, engines, prepared, ledger, accounting):
        print(f"\n{benchmark.__name__}", flush=True)
        sys.argv[1:] = []
        benchmark.main()


if __name__ == "__main__":
    main()
