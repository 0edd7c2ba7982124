"""Imports run down the layers, without circles; I/O, randomness and released rows have their one place each."""

import ast
from collections.abc import Iterator, Mapping, Set
from dataclasses import dataclass
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent

# From the bottom up. A name is a file or a folder of dpsql; "" is dpsql/__init__.py.
# A file imports from layers below its own, and from its own folder.
LAYERS = (
    {"errors", "padding", "remembered", "sqltypes", "table"},
    {"textformat"},
    {"privacy"},
    {"policy"},
    {"compiler"},
    {"ledger", "backends", "elements"},
    {"prices", "release", "system"},
    {"engine", "suggesting"},
    {"results", "target"},
    {"browsing", "cursors", "explain", "noisyrows", "policytext", "prepared", "settings"},
    {"catalog", "question", "transactions"},
    {"session"},
    {"auditing", "dbapi", "wire"},
    {"console", "plots"},
    {"cli", "notebook"},
    {"", "__main__"},
    {"sqlalchemy"},
)

# The other files of dpsql/wire are bytes in, bytes out.
GATEWAY = {
    *("dpsql.wire.server", "dpsql.wire.connection", "dpsql.wire.login", "dpsql.wire.session", "dpsql.wire.portals"),
    *("dpsql.wire.databases", "dpsql.wire.gateway", "dpsql.wire.fair", "dpsql.wire.guesses", "dpsql.wire.rates"),
    *("dpsql.wire.metrics", "dpsql.wire.monitor"),
    *("dpsql.wire.oidtypes", "dpsql.wire.copyformat", "dpsql.wire.report", "dpsql.wire.tls"),
}

RANDOMNESS = {
    *("random", "secrets", "numpy.random", "os.urandom", "os.getrandom", "uuid.uuid1", "uuid.uuid4", "ssl.RAND_bytes"),
}
INPUT_AND_OUTPUT = {
    *("duckdb", "psycopg", "sqlite3", "socket", "ssl", "asyncio", "selectors", "threading", "subprocess", "urllib"),
    *("os", "io", "pathlib", "shutil", "tempfile", "time", "sys", "open", "input"),
}
DYNAMIC = {"importlib.import_module", "runpy", "__import__", "eval", "exec"}


@dataclass(frozen=True)
class Use:
    """One name that a file takes from elsewhere: an import, an attribute of one, or a call of a builtin."""

    file: str
    name: str
    line: int

    def __str__(self) -> str:
        return f"{self.file}:{self.line}: {self.name}"


def modules(root: Path) -> dict[str, Path]:
    """Return every module of the package by its dotted name."""
    found = {}
    for path in sorted((root / "dpsql").rglob("*.py")):
        parts = path.relative_to(root).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def uses(root: Path) -> list[Use]:
    """Return everything that each module uses, wherever in the file: at the top, in a function, for type checking."""
    known = modules(root)
    return [
        Use(name, used, line)
        for name, path in known.items()
        for used, line in names_used(path.read_text(encoding="utf-8"), name, path, frozenset(known))
    ]


@cache
def names_used(text: str, module: str, path: Path, known: Set[str]) -> tuple[tuple[str, int], ...]:
    return tuple(_names_used(ast.parse(text), module, path, known))


def _names_used(tree: ast.Module, module: str, path: Path, known: Set[str]) -> Iterator[tuple[str, int]]:
    aliases: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                aliases[alias.asname or alias.name.partition(".")[0]] = (
                    alias.name if alias.asname else alias.name.partition(".")[0]
                )
                yield alias.name, node.lineno
        elif isinstance(node, ast.ImportFrom):
            source = absolute(node, module, path)
            for alias in node.names:
                full = f"{source}.{alias.name}"
                aliases[alias.asname or alias.name] = full
                # `from package import module` uses the module, `from module import name` the module that has the name.
                yield (full if full in known or not within(source, {"dpsql"}) else source), node.lineno
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and (dotted := dotted_name(node, aliases)):
            yield dotted, node.lineno
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id not in aliases:
            yield node.func.id, node.lineno


def absolute(node: ast.ImportFrom, module: str, path: Path) -> str:
    if not node.level:
        return node.module or ""
    package = module.split(".") if path.stem == "__init__" else module.split(".")[:-1]
    above = package[: len(package) - node.level + 1]
    return ".".join([*above, *([node.module] if node.module else [])])


def dotted_name(node: ast.Attribute, aliases: Mapping[str, str]) -> str | None:
    """Return `numpy.random.x` for `np.random.x`, None for an attribute of what was not imported."""
    if isinstance(node.value, ast.Name):
        return f"{aliases[node.value.id]}.{node.attr}" if node.value.id in aliases else None
    inner = dotted_name(node.value, aliases) if isinstance(node.value, ast.Attribute) else None
    return f"{inner}.{node.attr}" if inner else None


def within(name: str, places: Set[str]) -> bool:
    """True if a dotted name is one of the places, or inside one."""
    return any(name == place or name.startswith(f"{place}.") for place in places)


def module_of(name: str, known: Mapping[str, Path]) -> str | None:
    """Return the module of the package that a dotted name is in."""
    while name and name not in known:
        name = name.rpartition(".")[0]
    return name or None


def unit_of(module: str) -> str:
    """Return the file or folder of dpsql that the layers speak of."""
    return [*module.split("."), ""][1]


def arrows(root: Path) -> list[tuple[Use, str]]:
    """Return the uses of one module of the package by another, each with the module used."""
    known = modules(root)
    found = []
    for use in uses(root):
        # `import dpsql` alone names the face; `import dpsql.x` binds dpsql too, but uses x.
        target = module_of(use.name, known) if within(use.name, {"dpsql"}) else None
        if target and target != use.file:
            found.append((use, target))
    return found


def layer_faults(root: Path) -> list[str]:
    layer_of = {unit: number for number, layer in enumerate(LAYERS) for unit in layer}
    faults = [f"{module}: in no layer" for module in modules(root) if unit_of(module) not in layer_of]
    for use, target in arrows(root):
        here, there = unit_of(use.file), unit_of(target)
        if here != there and layer_of.get(there, len(LAYERS)) >= layer_of.get(here, -1):
            faults.append(f"{use} is not below")
    return faults


def circle(root: Path) -> list[str]:
    """Return modules that import one another in a circle; none if there is no circle."""
    graph: dict[str, set[str]] = {module: set() for module in modules(root)}
    for use, target in arrows(root):
        graph[use.file].add(target)
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        return list(error.args[1])
    return []


def used_outside(root: Path, names: Set[str], places: Set[str]) -> list[str]:
    """Return the uses of names in files other than those of the places."""
    return [str(use) for use in uses(root) if within(use.name, names) and not within(use.file, places)]


def used_inside(root: Path, places: Set[str], names: Set[str], but: Set[str] = frozenset()) -> list[str]:
    """Return the uses of names in the files of the places, but for some of these names."""
    return [
        str(use)
        for use in uses(root)
        if within(use.file, places) and within(use.name, names) and not within(use.name, but)
    ]


def sans_io(root: Path) -> set[str]:
    """Return the files of dpsql/wire that only know bytes and messages."""
    wire = {"dpsql.wire"}
    return {module for module in modules(root) if within(module, wire) and not within(module, GATEWAY)} - wire


def makers_of_released_rows(root: Path) -> list[str]:
    return [
        f"{module}:{node.lineno}"
        for module, path in modules(root).items()
        if module != "dpsql.release"
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Call)
        and "ReleasedRows" in {getattr(node.func, "id", None), getattr(node.func, "attr", None)}
    ]


def test_imports_run_down_the_layers() -> None:
    assert "dpsql.errors" in modules(ROOT)
    assert layer_faults(ROOT) == []


def test_there_are_no_circles() -> None:
    assert circle(ROOT) == []


def test_there_are_no_imports_that_cannot_be_read() -> None:
    assert used_inside(ROOT, {"dpsql"}, DYNAMIC) == []


def test_the_compiler_does_no_input_or_output_and_draws_nothing() -> None:
    assert used_inside(ROOT, {"dpsql.compiler"}, INPUT_AND_OUTPUT | RANDOMNESS) == []


def test_privacy_knows_no_sql() -> None:
    outside = {"dpsql", "sqlglot", "duckdb", "psycopg", "sqlite3"}
    assert used_inside(ROOT, {"dpsql.privacy"}, outside, but={"dpsql.privacy", "dpsql.errors"}) == []


def test_the_protocol_knows_no_sockets_no_sql_and_no_privacy() -> None:
    protocol = sans_io(ROOT) | {"dpsql.textformat"}
    assert used_inside(ROOT, protocol, INPUT_AND_OUTPUT) == []
    assert used_inside(ROOT, protocol, {"dpsql", "sqlglot"}, but=protocol | {"dpsql.errors", "dpsql.sqltypes"}) == []


def test_the_catalog_asks_neither_ledger_nor_data() -> None:
    catalog = {"dpsql.catalog"}
    forbidden = {"dpsql.ledger", "dpsql.release", "dpsql.system", "psycopg", "sqlite3", "socket"}
    assert used_inside(ROOT, catalog, forbidden) == []
    assert used_inside(ROOT, catalog, {"dpsql.backends"}, but={"dpsql.backends.backend", "dpsql.backends"}) == []
    assert used_outside(ROOT, {"dpsql.catalog"}, {"dpsql.catalog", "dpsql.dbapi", "dpsql.wire.databases"}) == []


def test_the_console_reads_no_rows_and_sends_no_cells() -> None:
    readers = {"dpsql.backends", "dpsql.engine", "dpsql.session", "dpsql.dbapi", "dpsql.release", "duckdb", "psycopg"}
    assert used_inside(ROOT, {"dpsql.console"}, readers) == []


def test_noise_is_drawn_in_one_file() -> None:
    keys_and_passwords = {"dpsql.wire.scram", "dpsql.wire.server", "dpsql.console.login", "dpsql.cli"}
    assert used_outside(ROOT, RANDOMNESS - {"numpy.random"}, {"dpsql.privacy.sampling", *keys_and_passwords}) == []
    assert used_outside(ROOT, {"numpy.random"}, {"dpsql.cli.clinic"}) == []
    assert used_inside(ROOT, {"dpsql"}, {"random"}) == []


def test_released_rows_are_made_in_one_file() -> None:
    assert makers_of_released_rows(ROOT) == []


def tree(root: Path, files: Mapping[str, str]) -> Path:
    for name, text in files.items():
        path = root / "dpsql" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return root


UPWARD = {
    "import": "import dpsql.engine",
    "import as": "import dpsql.engine as engine",
    "from module": "from dpsql.engine import Engine",
    "from package": "from dpsql import engine",
    "relative": "from .. import engine",
    "relative module": "from ..engine import Engine",
    "for type checking": "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from dpsql.engine import Engine",
    "in a function": "def late() -> None:\n    import dpsql.engine",
    "through the face": "from dpsql import connect",
    "attribute of the face": "import dpsql.errors\nx = dpsql.engine",
}


@pytest.mark.parametrize("text", UPWARD.values(), ids=UPWARD)
def test_an_upward_import_is_found(tmp_path: Path, text: str) -> None:
    files = {"__init__.py": "def connect(): ...", "engine.py": "class Engine: ...", "errors.py": ""}
    assert layer_faults(tree(tmp_path, files)) == []
    assert layer_faults(tree(tmp_path, {"privacy/cost.py": text})) != []


def test_a_downward_import_is_allowed_in_every_form(tmp_path: Path) -> None:
    text = "import dpsql.privacy.cost\nfrom dpsql import errors\nfrom . import privacy\nx = dpsql.privacy.cost.y"
    files = {
        "__init__.py": "",
        "errors.py": "",
        "privacy/__init__.py": "",
        "privacy/cost.py": "y = 1",
        "engine.py": text,
    }
    assert layer_faults(tree(tmp_path, files)) == []
    assert circle(tmp_path) == []


def test_an_import_beside_is_found(tmp_path: Path) -> None:
    files = {"ledger/__init__.py": "import dpsql.backends", "backends/__init__.py": ""}
    assert layer_faults(tree(tmp_path, files)) == ["dpsql.ledger:1: dpsql.backends is not below"]


def test_a_file_in_no_layer_is_found(tmp_path: Path) -> None:
    assert layer_faults(tree(tmp_path, {"helpers.py": ""})) == ["dpsql.helpers: in no layer"]


def test_a_circle_is_found(tmp_path: Path) -> None:
    files = {"wire/a.py": "from dpsql.wire import b", "wire/b.py": "def late():\n    from .a import x"}
    assert set(circle(tree(tmp_path, files))) == {"dpsql.wire.a", "dpsql.wire.b"}


OUT_OF_PLACE = {
    "open": "text = open('x').read()",
    "from os": "from os import urandom",
    "os": "import os as system\nsystem.urandom(8)",
    "path": "from pathlib import Path",
}


@pytest.mark.parametrize("text", OUT_OF_PLACE.values(), ids=OUT_OF_PLACE)
def test_input_and_output_are_found(tmp_path: Path, text: str) -> None:
    assert used_inside(tree(tmp_path, {"compiler/plan.py": text}), {"dpsql.compiler"}, INPUT_AND_OUTPUT) != []


def test_what_is_allowed_is_not_found(tmp_path: Path) -> None:
    text = "from dpsql import errors\nfrom dpsql.privacy import cost\nimport dpsql.engine"
    root = tree(tmp_path, {"errors.py": "", "privacy/cost.py": text, "engine.py": "", "privacy/__init__.py": ""})
    found = used_inside(root, {"dpsql.privacy"}, {"dpsql"}, but={"dpsql.privacy", "dpsql.errors"})
    assert found == ["dpsql.privacy.cost:3: dpsql.engine"]


DYNAMIC_IMPORTS = {
    "importlib": "import importlib\nimportlib.import_module('dpsql.engine')",
    "from importlib": "from importlib import import_module",
    "builtin": "__import__('dpsql.engine')",
}


@pytest.mark.parametrize("text", DYNAMIC_IMPORTS.values(), ids=DYNAMIC_IMPORTS)
def test_a_dynamic_import_is_found(tmp_path: Path, text: str) -> None:
    assert used_inside(tree(tmp_path, {"policy.py": text}), {"dpsql"}, DYNAMIC) != []


def test_wire_files_are_without_sockets_unless_listed(tmp_path: Path) -> None:
    files = dict.fromkeys(("wire/__init__.py", "wire/server.py", "wire/messages.py"), "")
    assert sans_io(tree(tmp_path, files)) == {"dpsql.wire.messages"}


RANDOM = {
    "numpy alias": "import numpy as np\nnp.random.default_rng()",
    "numpy from": "from numpy.random import default_rng",
    "numpy module": "from numpy import random",
    "os": "import os\nos.urandom(8)",
    "secrets": "from secrets import token_bytes",
    "random": "import random",
    "uuid": "import uuid\nuuid.uuid4()",
}


@pytest.mark.parametrize("text", RANDOM.values(), ids=RANDOM)
def test_randomness_is_found(tmp_path: Path, text: str) -> None:
    assert used_outside(tree(tmp_path, {"engine.py": text}), RANDOMNESS, {"dpsql.privacy.sampling"}) != []


@pytest.mark.parametrize("call", ["ReleasedRows(rows)", "release.ReleasedRows(rows)"])
def test_released_rows_made_elsewhere_are_found(tmp_path: Path, call: str) -> None:
    assert makers_of_released_rows(tree(tmp_path, {"engine.py": f"x = {call}", "release.py": f"x = {call}"})) == [
        "dpsql.engine:1"
    ]
