"""The docs build as a site whose pages load nothing from other machines."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent

LOADED = re.compile(
    r"""<(?:script|link|img|iframe)\b[^>]*?\b(?:src|href)=["']?(?:https?:)?//[^>]*>|url\(["']?https?:"""
)
"""What a browser fetches from elsewhere as soon as it shows a page or reads a style sheet."""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    built = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)],
        cwd=ROOT,
        env=os.environ | {"NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
    )
    assert built.returncode == 0, built.stderr
    return folder


def test_each_page_is_built(site: Path) -> None:
    built = {path.stem for path in site.glob("*.html")}
    assert {path.stem for path in (ROOT / "docs").glob("*.md")} <= built


def test_nothing_is_loaded_from_other_machines(site: Path) -> None:
    files = [*site.rglob("*.html"), *site.rglob("*.css")]
    assert len(files) > 20
    found = {match for file in files for match in LOADED.findall(file.read_text(encoding="utf-8"))}
    assert found == set()


def test_the_check_of_pages_finds_mistakes() -> None:
    for wrong in (
        '<script src="https://unpkg.com/x"></script>',
        "<link rel=stylesheet href=//fonts.example/css>",
        "@import url(https://fonts.example/css)",
    ):
        assert LOADED.search(wrong)
    assert not LOADED.search('<a href="https://nist.gov">, <script src="assets/x.js">')
