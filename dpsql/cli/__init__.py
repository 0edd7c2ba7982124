"""The command line: `dpsql`, or `python -m dpsql`."""

from dpsql.cli.main import main

__all__ = ["main"]
