"""Coverage-guided fuzzing of one target: python -m tests.fuzz TARGET [--seconds 900] [--corpus DIR] [libFuzzer options]

Needs atheris (pip install "dpsql[fuzz]"). What is found is written into the working directory as crash-*, timeout-* or
oom-*; it belongs into tests/fuzz/corpus/TARGET/ with a name that says what it is, and the fault is fixed.
"""

import argparse
import logging
import sys
import tempfile
from pathlib import Path

import atheris

with atheris.instrument_imports(include=["dpsql"]):
    from tests.fuzz.inputs import FORMS, Mutator, found
    from tests.fuzz.targets import Target
    from tests.fuzz.worlds import WORLDS

SECONDS_OF_ONE = 25
"""An input that takes longer is a finding."""


def main() -> None:
    """Fuzz until the time is over or something is found."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz")
    parser.add_argument("target", choices=sorted(FORMS))
    parser.add_argument("--seconds", type=int, default=900)
    parser.add_argument("--corpus", type=Path, help="where inputs of new coverage are kept and taken up again")
    options, more = parser.parse_known_args()
    logging.disable()
    with tempfile.TemporaryDirectory(prefix="dpsql-fuzz-") as folder, WORLDS[options.target](Path(folder)) as target:
        fuzz(options.target, target, options.corpus or Path(folder, "corpus"), options.seconds, more)


def fuzz(name: str, target: Target, corpus: Path, seconds: int, more: list[str]) -> None:
    """Run libFuzzer on a target; it ends the process."""
    form = FORMS[name]
    corpus.mkdir(parents=True, exist_ok=True)
    for number, seed in enumerate([*form.seeds(), *(path.read_bytes() for path in found(name))]):
        (corpus / f"seed-{number}").write_bytes(seed)
    mutate = Mutator(form).mutate

    def changed(data: bytes, max_size: int, seed: int) -> bytes:
        if seed % 8 == 0:
            return bytes(atheris.Mutate(data, max_size))
        return mutate(data, seed, lambda piece: bytes(atheris.Mutate(piece, len(piece) + 20)))[:max_size]

    limits = [f"-max_total_time={seconds}", f"-timeout={SECONDS_OF_ONE}", "-rss_limit_mb=3000", "-max_len=20000"]
    atheris.Setup([sys.argv[0], *limits, *more, str(corpus)], target, custom_mutator=changed)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
