"""The Python of docs/tutorial.md, over the network, and its notebook, in the process."""

import os
import re
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest
from click.testing import CliRunner
from nbclient import NotebookClient

from dpsql.cli import main
from tests.conftest import ROOT
from tests.waiting import HANG_SECONDS
from tests.wire.conftest import RunningServer

PAGE = (ROOT / "docs" / "tutorial.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)


def test_its_program_prints_a_frame_and_the_price(gateway: RunningServer) -> None:
    (program,) = blocks("python")
    environment = {
        **{"PGHOST": "127.0.0.1", "PGPORT": str(gateway.port), "PGDATABASE": "clinic"},
        **{"PGUSER": "ana", "PGPASSWORD": "secret", "PYTHONIOENCODING": "utf-8"},
    }
    done = subprocess.run(
        [sys.executable, "-c", program],
        env=os.environ | environment,
        capture_output=True,
        encoding="utf-8",
        timeout=HANG_SECONDS,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("price: ")
    assert re.search(r"^\d +F +-?\d+$", done.stdout, re.MULTILINE)


def test_its_notebook_shows_margins_and_a_plot(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = CliRunner().invoke(main, ["demo", "--dir", str(tmp_path / "demo"), "--patients", "500", "--no-serve"])
    assert made.exit_code == 0, made.output
    cells = [nbformat.v4.new_code_cell(block) for block in blocks("ipython")]  # type: ignore[no-untyped-call]
    notebook = nbformat.v4.new_notebook(cells=cells)  # type: ignore[no-untyped-call]
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path))
    NotebookClient(notebook, timeout=HANG_SECONDS, resources={"metadata": {"path": str(tmp_path)}}).execute()
    connected, answered, plotted = (cell.outputs for cell in notebook.cells)
    assert "clinic, as ana" in connected[-1].text
    assert re.search(r"\d ± \d", answered[-1].data["text/plain"])
    assert "image/png" in plotted[-1].data
