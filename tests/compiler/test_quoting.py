"""Any text survives the way to an engine and back, as a constant and as a name; what SQL cannot hold is refused."""

import ast
import json
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpsql.compiler.dialects import DIALECTS
from dpsql.compiler.dialects.dialect import Dialect
from dpsql.errors import InvalidText
from dpsql.policy.engines import ENGINES
from dpsql.sqltypes import SqlType
from tests.engines import HOSTS, Host, Run
from tests.examples import profile

ROOT = Path(__file__).parents[2]
NAME_BYTES = 63
"""PostgreSQL cuts longer names."""

AWKWARD = "'\"\\`$%;:-/*?{}[]()\n\r\t\b\x01\x1f\x7f\x80\u2028\ufeffé😀Ab0 "
PIECES = ("'", '"', "\\", "''", '""', "\\'", '\\"', "--", "/*", "*/", "$$", "; SELECT 1", "%s", "\r\n")
CHARACTERS = st.one_of(
    st.sampled_from(AWKWARD),
    st.characters(exclude_categories=["Cs"], exclude_characters="\0"),
    st.characters(max_codepoint=0x7F, exclude_characters="\0"),
)
TEXTS = st.one_of(st.text(CHARACTERS), st.lists(st.sampled_from(PIECES)).map("".join))
NAMES = TEXTS.filter(lambda text: 0 < len(text.encode()) <= NAME_BYTES)


@pytest.fixture(scope="module", params=HOSTS)
def engine(request: pytest.FixtureRequest, hosts: Mapping[str, Host]) -> Iterator[tuple[Dialect, Run]]:
    with hosts[request.param].session() as run:
        yield DIALECTS[ENGINES[request.param]], run


@profile(150)
@given(texts=st.lists(TEXTS, min_size=1, max_size=4))
def test_a_text_comes_back_as_it_was(engine: tuple[Dialect, Run], texts: list[str]) -> None:
    dialect, run = engine
    quoted = [dialect.quote_text(text) for text in texts]
    typed = [dialect.constant(text, SqlType.TEXT) for text in texts]
    assert run(f"SELECT {', '.join(quoted + typed)}") == [(*texts, *texts)]


@profile(150)
@given(names=st.lists(NAMES, min_size=1, max_size=3, unique_by=str.casefold), table=NAMES)
def test_a_name_comes_back_as_it_was(engine: tuple[Dialect, Run], names: list[str], table: str) -> None:
    """Names of columns, read by the names of their tables; the engine says what it calls them."""
    dialect, run = engine
    made = ", ".join(f"{number} AS {dialect.quote_name(name)}" for number, name in enumerate(names))
    read = ", ".join(dialect.quote_path((table, name)) for name in names)
    listed = f"SELECT {read} FROM (SELECT {made}) AS {dialect.quote_name(table)}"
    ((found,),) = run(f"SELECT CAST(to_json(t) AS text) FROM ({listed}) AS t")
    assert json.loads(found) == {name: number for number, name in enumerate(names)}


@pytest.mark.parametrize("dialect", DIALECTS.values(), ids=lambda dialect: type(dialect).__name__)
@pytest.mark.parametrize("text", ["\0", "a\0b", "\ud800", "a\udfffb", "\udc00\ud800"])
def test_what_sql_cannot_hold_is_refused(dialect: Dialect, text: str) -> None:
    for quote in (dialect.quote_name, dialect.quote_text):
        with pytest.raises(InvalidText, match="cannot hold"):
            quote(text)


def test_dialects_alone_say_how_their_engines_quote() -> None:
    """An engine may quote otherwise than the standard; so nobody else quotes by it, but for people."""
    found = {
        str(path.relative_to(ROOT / "dpsql"))
        for path in (ROOT / "dpsql").rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.ImportFrom) and node.module == "dpsql.compiler.dialects.dialect"
        for name in node.names
        if name.name.startswith("standard_")
    }
    dialects = {f"compiler/dialects/{name}.py" for name in ("duckdb", "postgres")}
    assert found == dialects | {"compiler/plan/profiled_bounds.py"}  # which tells columns' names in EXPLAIN
