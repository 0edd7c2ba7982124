"""Imports run down the layers, without circles; I/O, randomness and released rows have their one place each."""

import ast
import re
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent

# From the bottom up. A name is a file or a folder of dpsql; "" is dpsql/__init__.py.
# A file imports from layers below its own, and from its own folder.
LAYERS = (
    {"errors"},
    {"sqltypes"},
    {"limits"},
    {"privacy"},
    {"policy"},
    {"compiler"},
    {"ledger", "backends"},
    {"gateway"},
    {"catalog"},
    {"auditing", "dbapi", "wire"},
    {"console", "notebook"},
    {"cli"},
    {"", "__main__"},
    {"sqlalchemy"},
)

# The packages of dpsql/compiler, one a stage. A package imports from those above it, and from itself.
STAGES = (
    *("ir", "dialects", "sql", "scope", "expressions", "values", "aggregates"),
    *("relations", "canonical", "bounding", "plan", "derivation"),
)
MOST_MODULES = 4
"""Modules beside the packages of dpsql."""
LEAST_LINES = 60
"""Of a file that one other file imports, or none; a shorter one belongs there."""
SHORT = {
    "dpsql.__main__": "python -m dpsql",
    "dpsql.backends": "a file of an engine",
}
"""Files and packages that may have short files, and why."""
LISTS = {"dpsql.compiler.aggregates.registry", "dpsql.cli.main", "dpsql.cli.policy"}
"""Files that list others, of which each is a thing of its own: an aggregate, a command."""

# The other files of dpsql/wire are bytes in, bytes out.
GATEWAY = {
    *("dpsql.wire.server", "dpsql.wire.connection", "dpsql.wire.login", "dpsql.wire.session", "dpsql.wire.portals"),
    *(
        "dpsql.wire.databases",
        "dpsql.wire.gateway_sessions",
        "dpsql.wire.fair_pool",
        "dpsql.wire.client_register",
        "dpsql.wire.login_throttle",
        "dpsql.wire.rate_limit",
    ),
    *("dpsql.wire.metrics", "dpsql.wire.monitor", "dpsql.wire.watchdog", "dpsql.wire.http"),
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
    return [
        use
        for name, path in modules(root).items()
        for use in uses_of(path.read_text(encoding="utf-8"), name, path.stem == "__init__")
    ]


@cache
def nodes(text: str) -> tuple[ast.AST, ...]:
    """Return the nodes of a file; it is parsed and walked once for all rules."""
    return tuple(ast.walk(ast.parse(text)))


@cache
def uses_of(text: str, module: str, is_package: bool) -> tuple[Use, ...]:
    return tuple(Use(module, name, line) for name, line in _names_used(nodes(text), module, is_package))


def _names_used(nodes: Sequence[ast.AST], module: str, is_package: bool) -> Iterator[tuple[str, int]]:
    aliases: dict[str, str] = {}
    for node in nodes:
        if isinstance(node, ast.Import):
            for alias in node.names:
                aliases[alias.asname or alias.name.partition(".")[0]] = (
                    alias.name if alias.asname else alias.name.partition(".")[0]
                )
                yield alias.name, node.lineno
        elif isinstance(node, ast.ImportFrom):
            source = absolute(node, module, is_package)
            for alias in node.names:
                full = f"{source}.{alias.name}"
                aliases[alias.asname or alias.name] = full
                yield full, node.lineno
    for node in nodes:
        if isinstance(node, ast.Attribute) and (dotted := dotted_name(node, aliases)):
            yield dotted, node.lineno
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id not in aliases:
            yield node.func.id, node.lineno


def absolute(node: ast.ImportFrom, module: str, is_package: bool) -> str:
    if not node.level:
        return node.module or ""
    package = module.split(".") if is_package else module.split(".")[:-1]
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
    return not places.isdisjoint(beginnings(name))


@cache
def beginnings(name: str) -> tuple[str, ...]:
    """Return a dotted name and all that it is in."""
    parts = name.split(".")
    return tuple(".".join(parts[:length]) for length in range(1, len(parts) + 1))


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


def stage_of(module: str) -> str:
    """Return the package of dpsql/compiler that a module is in, "" for one that is in none."""
    return [*module.split("."), "", ""][2]


def stage_faults(root: Path) -> list[str]:
    compiler = {"dpsql.compiler"}
    inside = [module for module in modules(root) if within(module, compiler) and module != "dpsql.compiler"]
    faults = [f"{module}: in no stage" for module in inside if stage_of(module) not in STAGES]
    for use, target in arrows(root):
        if within(use.file, compiler) and within(target, compiler) and not faults:
            here, there = stage_of(use.file), stage_of(target)
            if not here or not there or STAGES.index(there) > STAGES.index(here):
                faults.append(f"{use} is a later stage")
    return faults


def top_faults(root: Path) -> list[str]:
    found = sorted(path.name for path in (root / "dpsql").glob("*.py"))
    return found if len(found) > MOST_MODULES else []


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


MADE_IN = {
    "dpsql.gateway.release": {"ReleasedCells", "ReleasedRows"},
    "dpsql.compiler.bounding.printer": {"PrintedQuery"},
    "dpsql.compiler.plan.bounded_releases": {"PublicRead"},
}
"""Classes that one file alone makes: what has noise, and SQL beside the tree that it was printed of."""


def other_makers(root: Path) -> list[str]:
    """Return the calls of a class outside its file, under whatever name it was imported."""
    return [
        f"{module}:{line}"
        for maker, made in MADE_IN.items()
        for module, path in modules(root).items()
        if module != maker
        for line in makers(path.read_text(encoding="utf-8"), frozenset(made))
    ]


@cache
def makers(text: str, made: frozenset[str]) -> tuple[int, ...]:
    if not any(name in text for name in made):
        return ()
    aliases = [alias for node in nodes(text) if isinstance(node, ast.ImportFrom) for alias in node.names]
    names = made | {alias.asname for alias in aliases if alias.name in made and alias.asname}
    calls = [node for node in nodes(text) if isinstance(node, ast.Call)]
    return tuple(
        call.lineno
        for call in calls
        if getattr(call.func, "id", None) in names or getattr(call.func, "attr", None) in made
    )


PROTOCOL_MAY_USE = {"dpsql.errors", "dpsql.sqltypes"}


def protocol_faults(root: Path) -> list[str]:
    protocol = sans_io(root) | {"dpsql.sqltypes"}
    return used_inside(root, protocol, INPUT_AND_OUTPUT) + used_inside(
        root, protocol, {"dpsql", "sqlglot"}, but=protocol | PROTOCOL_MAY_USE
    )


def catalog_faults(root: Path) -> list[str]:
    catalog = {"dpsql.catalog"}
    forbidden = {
        "dpsql.ledger",
        "dpsql.gateway.release",
        "dpsql.gateway.system_relations",
        "psycopg",
        "sqlite3",
        "socket",
    }
    # Each name by itself: beneath dpsql.backends lies what reads private rows.
    cancels = {
        "dpsql.backends.Cancellation",
        "dpsql.backends.backend.Cancellation",
        "dpsql.backends.duckdb_running.stoppable",
    }
    return (
        used_inside(root, catalog, forbidden)
        + used_inside(root, catalog, {"dpsql.backends"}, but=cancels)
        + used_outside(root, catalog, {"dpsql.catalog", "dpsql.dbapi", "dpsql.wire.databases", "dpsql.wire.oidtypes"})
    )


def console_faults(root: Path) -> list[str]:
    readers = {
        "dpsql.backends",
        "dpsql.gateway.engine",
        "dpsql.gateway.reading",
        "dpsql.gateway.session",
        "dpsql.dbapi",
        "dpsql.gateway.release",
        "duckdb",
        "psycopg",
    }
    return used_inside(root, {"dpsql.console"}, readers)


def randomness_faults(root: Path) -> list[str]:
    keys_and_passwords = {
        "dpsql.wire.scram",
        "dpsql.wire.server",
        "dpsql.wire.client_register",
        "dpsql.console.login",
        "dpsql.cli",
    }
    return (
        used_outside(root, RANDOMNESS - {"numpy.random"}, {"dpsql.privacy.sampling", *keys_and_passwords})
        + used_outside(root, {"numpy.random"}, {"dpsql.cli.clinic"})
        + used_inside(root, {"dpsql"}, {"random"})
    )


def checking_faults(root: Path) -> list[str]:
    checks = {"dpsql.compiler.plan.verify", "dpsql.compiler.plan.tree_bounds"}
    makers = {
        "re",
        "dpsql.compiler.bounding",
        "dpsql.compiler.dialects",
        "dpsql.compiler.plan.pricing",
        "dpsql.compiler.plan.bounded_releases",
    }
    shapes = {
        "dpsql.compiler.bounding.steps",
        "dpsql.compiler.dialects.render.Leaf",
        "dpsql.compiler.plan.pricing.PlannedPrimitive",
    }
    conditions = "dpsql.compiler.ir.conditions"
    proved_again = {"dpsql.compiler.relations", "dpsql.compiler.values", conditions}
    return used_inside(root, checks, makers, but=shapes) + used_inside(
        root,
        {"dpsql.compiler.plan.agreement", "dpsql.compiler.plan.belonging"},
        proved_again,
        but={f"{conditions}.all_of", f"{conditions}.conjuncts"},
    )


def privacy_faults(root: Path) -> list[str]:
    outside = {"dpsql", "sqlglot", "duckdb", "psycopg", "sqlite3"}
    return used_inside(root, {"dpsql.privacy"}, outside, but={"dpsql.privacy", "dpsql.errors"})


def kind_faults(root: Path) -> list[str]:
    """Whoever asks what kind a primitive or an aggregate is has to be told of every new one.

    Bounding writes the SQL of each kind, and `verify` computes anew what each may add.
    """
    stages = {"dpsql.compiler.aggregates", "dpsql.compiler.bounding", "dpsql.compiler.plan.verify"}
    aggregates = {"dpsql.compiler.aggregates"}
    may_use = {
        "dpsql.compiler.aggregates.base",
        "dpsql.compiler.aggregates.registry",
        "dpsql.compiler.aggregates.release_leaf",
        "dpsql.compiler.aggregates.error_propagation",
        "dpsql.compiler.aggregates.wide_totals",
        "dpsql.compiler.aggregates.calibration",
        "dpsql.compiler.aggregates.mode.picked_groups",
        "dpsql.compiler.aggregates.top_k.picked",
        "dpsql.compiler.aggregates.randomized_response.Responses",
    }
    families = [
        str(use)
        for use in uses(root)
        if within(use.name, aggregates) and not within(use.file, aggregates) and not within(use.name, may_use)
    ]
    kinds = used_outside(
        root, {"dpsql.compiler.ir.primitives.PrimitiveKind"}, stages | {"dpsql.compiler.ir.primitives"}
    )
    return families + kinds


def short_faults(root: Path) -> list[str]:
    """A concept that takes a few lines, and that one file needs, stands in that file."""
    importers: dict[str, set[str]] = {module: set() for module in modules(root)}
    for use, target in arrows(root):
        importers[target].add(use.file)
    return [
        f"{module}: short, and for {', '.join(importers[module]) or 'nobody'} alone"
        for module, path in modules(root).items()
        if path.name != "__init__.py" and path.read_text(encoding="utf-8").count("\n") < LEAST_LINES
        if len(importers[module]) <= 1 and not importers[module] & LISTS and not within(module, set(SHORT))
    ]


def names_twice(root: Path) -> list[str]:
    """A public class name means one thing."""
    places: dict[str, list[str]] = {}
    for module, path in modules(root).items():
        for name in class_names(path.read_text(encoding="utf-8")):
            places.setdefault(name, []).append(module)
    return [f"{name}: {', '.join(found)}" for name, found in sorted(places.items()) if len(found) > 1]


@cache
def class_names(text: str) -> tuple[str, ...]:
    found = (node.name for node in nodes(text) if isinstance(node, ast.ClassDef))
    return tuple(name for name in found if not name.startswith("_"))


@dataclass(frozen=True)
class Rule:
    """A law of the code.

    Attributes:
        faults: Finds what breaks it.
        plants: Lines that break it, each at the end of a file that there is.
        files: New files that break it, each with its text.
    """

    faults: Callable[[Path], list[str]]
    plants: tuple[tuple[str, str], ...] = ()
    files: tuple[tuple[str, str], ...] = ()


RULES = {
    "imports run down the layers": Rule(
        layer_faults,
        (
            ("privacy/cost.py", "import dpsql.gateway.engine"),
            ("compiler/plan/compile.py", "from dpsql.ledger import Ledger"),
            ("ledger/store.py", "import dpsql.backends"),
        ),
    ),
    "the compiler is packages, one a stage": Rule(
        stage_faults,
        (
            ("compiler/ir/walk.py", "from dpsql.compiler.sql import parse"),
            ("compiler/sql/parse.py", "import dpsql.compiler.scope.tables"),
            ("compiler/scope/tables.py", "from dpsql.compiler.expressions.casts import METHODS"),
            ("compiler/bounding/rewrite.py", "from dpsql.compiler.plan.pricing import PlannedPrimitive"),
        ),
        (("compiler/helpers.py", "x = 1"),),
    ),
    "the top of dpsql holds packages": Rule(top_faults, files=(("helpers.py", "x = 1"),)),
    "there are no circles": Rule(circle, (("ledger/model.py", "from dpsql.ledger import stored"),)),
    "imports can be read": Rule(
        lambda root: used_inside(root, {"dpsql"}, DYNAMIC),
        (
            ("policy/__init__.py", "import importlib\nimportlib.import_module('dpsql.gateway.engine')"),
            ("compiler/plan/compile.py", "__import__('os')"),
            ("gateway/engine.py", "eval('1')"),
        ),
    ),
    "the compiler does no input or output and draws nothing": Rule(
        lambda root: used_inside(root, {"dpsql.compiler"}, INPUT_AND_OUTPUT | RANDOMNESS),
        (
            ("compiler/plan/verify.py", "import os"),
            ("compiler/dialects/postgres.py", "import psycopg"),
            ("compiler/plan/compile.py", "from numpy import random"),
            ("compiler/values/bounds.py", "open('rows')"),
        ),
    ),
    "a plan is checked on trees, by code that did not make it": Rule(
        checking_faults,
        (
            ("compiler/plan/verify.py", "import re"),
            ("compiler/plan/verify.py", "from dpsql.compiler.plan.pricing import Pricing"),
            ("compiler/plan/tree_bounds.py", "from dpsql.compiler.bounding.rewrite import Bounding"),
            ("compiler/plan/tree_bounds.py", "from dpsql.compiler.bounding import printer"),
            ("compiler/plan/tree_bounds.py", "from dpsql.compiler.dialects.render import Renderer"),
            ("compiler/plan/belonging.py", "from dpsql.compiler.ir.conditions import equation"),
            ("compiler/plan/agreement.py", "from dpsql.compiler.values.dependencies import Dependencies"),
        ),
    ),
    "privacy knows no SQL": Rule(
        privacy_faults,
        (("privacy/cost.py", "import sqlglot"), ("privacy/cost.py", "from dpsql.sqltypes import SqlType")),
    ),
    "the protocol knows no sockets, no SQL and no privacy": Rule(
        protocol_faults,
        (
            ("wire/protocol.py", "import socket"),
            ("wire/scram.py", "from dpsql.privacy import cost"),
            ("wire/messages/frontend.py", "import sqlglot"),
            ("sqltypes/textformat.py", "from dpsql.privacy.cost import Accountant"),
        ),
    ),
    "the catalog asks neither ledger nor data": Rule(
        catalog_faults,
        (
            ("catalog/catalog.py", "from dpsql.backends import DuckDBBackend"),
            ("catalog/catalog.py", "from dpsql.backends.duckdb import DuckDBBackend"),
            ("catalog/catalog.py", "from dpsql.backends import duckdb as engines"),
            ("catalog/catalog.py", "import dpsql.backends as engines\nengines.open_backend"),
            ("catalog/engine.py", "from dpsql.backends.backend import ExactRows"),
            ("catalog/snapshot.py", "from dpsql.ledger import open_ledger"),
            ("catalog/engine.py", "import psycopg"),
            ("gateway/engine.py", "from dpsql.catalog import catalog"),
        ),
    ),
    "the console reads no rows and sends no cells": Rule(
        console_faults,
        (
            ("console/pages.py", "import duckdb"),
            ("console/facts.py", "from dpsql.gateway.release import ReleasedCells"),
        ),
    ),
    "aggregates alone know the kinds of primitives": Rule(
        kind_faults,
        (
            ("compiler/plan/pricing.py", "from dpsql.compiler.ir.primitives import PrimitiveKind\nPrimitiveKind.SUM"),
            ("gateway/release.py", "from dpsql.compiler.ir import primitives\nprimitives.PrimitiveKind.SUM"),
            ("compiler/plan/compile.py", "from dpsql.compiler.aggregates.count import CountEstimate"),
        ),
    ),
    "no short file is for one other alone": Rule(
        short_faults,
        files=(("gateway/few.py", "x = 1"), ("policy/few.py", "x = 1\n" * 30)),
    ),
    "a public class name means one thing": Rule(
        names_twice,
        (("gateway/session.py", "class ExactRows: ..."),),
        (("wire/fair.py", "class Policy: ..."),),
    ),
    "noise is drawn in one file": Rule(
        randomness_faults,
        (
            ("gateway/release.py", "import os\nos.urandom(8)"),
            ("privacy/selection.py", "from secrets import randbits"),
            ("privacy/sampling.py", "import numpy as np\nnp.random.default_rng()"),
            ("privacy/sampling.py", "import random"),
        ),
    ),
    "released rows, and SQL of a tree, are made in one file each": Rule(
        other_makers,
        (
            ("compiler/plan/pricing.py", "x = PrintedQuery(tree, sql)"),
            ("compiler/plan/compile.py", "x = query_plan.PublicRead(table, relation, sql, 1)"),
            ("gateway/engine.py", "x = ReleasedRows(())"),
            ("gateway/session.py", "x = release.ReleasedRows(())"),
            ("auditing/stack.py", "from dpsql.gateway.release import ReleasedRows as Rows\nx = Rows(())"),
            ("gateway/engine.py", "x = ReleasedCells((), ())"),
        ),
    ),
}


@pytest.mark.parametrize("rule", RULES.values(), ids=RULES)
def test_the_rule_is_kept(rule: Rule) -> None:
    assert "dpsql.errors" in modules(ROOT)
    assert rule.faults(ROOT) == []


def test_the_page_has_each_package_once_and_in_order() -> None:
    page = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (`dpsql/.*?) \|", page, re.MULTILINE)
    named = [name.strip("`/").removesuffix(".py").removeprefix("dpsql/") for row in rows for name in row.split(", ")]
    assert tuple(name.removeprefix("compiler/") for name in named if name.startswith("compiler/")) == STAGES
    assert len(named) == len(set(named))
    tops = list(dict.fromkeys(name.partition("/")[0].replace("__init__", "") for name in named))
    places = [next(number for number, layer in enumerate(LAYERS) if top in layer) for top in tops]
    assert places == sorted(places)
    assert set(tops) == set().union(*LAYERS)


def test_the_page_has_each_file_of_the_gateway_once() -> None:
    page = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    (table,) = re.findall(r"The files of `dpsql/gateway/`:\n\n((?:\|.*\n)+)", page)
    named = [name for row in table.splitlines() for name in re.findall(r"`(\w+\.py)`", row.split("|")[1])]
    assert sorted(["__init__.py", *named]) == sorted(path.name for path in (ROOT / "dpsql" / "gateway").glob("*.py"))


@pytest.fixture(scope="module")
def copied(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The program's own files, in which faults are planted."""
    root = tmp_path_factory.mktemp("program")
    shutil.copytree(ROOT / "dpsql", root / "dpsql", ignore=shutil.ignore_patterns("__pycache__"))
    return root


PLANTS = [(name, file, text) for name, rule in RULES.items() for file, text in (*rule.plants, *rule.files)]


@pytest.mark.parametrize(("name", "file", "text"), PLANTS, ids=[f"{name}: {text}" for name, _, text in PLANTS])
def test_a_fault_that_is_planted_is_found(copied: Path, name: str, file: str, text: str) -> None:
    path = copied / "dpsql" / file
    assert path.exists() == ((file, text) in RULES[name].plants)
    whole = path.read_text(encoding="utf-8") if path.exists() else None
    path.write_text(f"{whole or ''}\n{text}\n", encoding="utf-8")
    try:
        assert RULES[name].faults(copied) != []
    finally:
        path.unlink() if whole is None else path.write_text(whole, encoding="utf-8")


def test_the_rules_name_what_there_is() -> None:
    """A rule about a file that is gone would hold of nothing."""
    this = Path(__file__).read_text(encoding="utf-8")
    texts = {node.value for node in nodes(this) if isinstance(node, ast.Constant) and isinstance(node.value, str)}
    known = modules(ROOT)
    named = {text for text in texts if re.fullmatch(r"dpsql(\.\w+)+", text)} - known.keys()
    parts = {name: (known.get(name.rpartition(".")[0]), name.rpartition(".")[2]) for name in named}
    assert len(named) < len(texts & known.keys())
    assert [
        name
        for name, (path, part) in parts.items()
        if path is None or not re.search(rf"\b{part}\b", path.read_text(encoding="utf-8"))
    ] == []


def tree(root: Path, files: Mapping[str, str]) -> Path:
    for name, text in files.items():
        path = root / "dpsql" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return root


UPWARD = {
    "import": "import dpsql.gateway",
    "import as": "import dpsql.gateway as gateway",
    "from module": "from dpsql.gateway import Engine",
    "from package": "from dpsql import gateway",
    "relative": "from .. import gateway",
    "relative module": "from ..gateway import Engine",
    "for type checking": "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from dpsql.gateway import Engine",
    "in a function": "def late() -> None:\n    import dpsql.gateway",
    "through the face": "from dpsql import connect",
    "attribute of the face": "import dpsql.errors\nx = dpsql.gateway",
}


@pytest.mark.parametrize("text", UPWARD.values(), ids=UPWARD)
def test_an_upward_import_is_found(tmp_path: Path, text: str) -> None:
    files = {"__init__.py": "def connect(): ...", "gateway.py": "class Engine: ...", "errors.py": ""}
    assert layer_faults(tree(tmp_path, files)) == []
    assert layer_faults(tree(tmp_path, {"privacy/cost.py": text})) != []


def test_a_downward_import_is_allowed_in_every_form(tmp_path: Path) -> None:
    text = "import dpsql.privacy.cost\nfrom dpsql import errors\nfrom . import privacy\nx = dpsql.privacy.cost.y"
    files = {
        "__init__.py": "",
        "errors.py": "",
        "privacy/__init__.py": "",
        "privacy/cost.py": "y = 1",
        "gateway.py": text,
    }
    assert layer_faults(tree(tmp_path, files)) == []
    assert circle(tmp_path) == []


def test_an_import_beside_is_found(tmp_path: Path) -> None:
    files = {"ledger/__init__.py": "import dpsql.backends", "backends/__init__.py": ""}
    assert layer_faults(tree(tmp_path, files)) == ["dpsql.ledger:1: dpsql.backends is not below"]


def test_a_file_in_no_layer_is_found(tmp_path: Path) -> None:
    assert layer_faults(tree(tmp_path, {"helpers.py": ""})) == ["dpsql.helpers: in no layer"]


def test_a_circle_is_found(tmp_path: Path) -> None:
    files = {"wire/tls.py": "from dpsql.wire import proxy", "wire/proxy.py": "def late():\n    from .tls import x"}
    assert set(circle(tree(tmp_path, files))) == {"dpsql.wire.tls", "dpsql.wire.proxy"}


OUT_OF_PLACE = {
    "open": "text = open('x').read()",
    "from os": "from os import urandom",
    "os": "import os as system\nsystem.urandom(8)",
    "path": "from pathlib import Path",
}


@pytest.mark.parametrize("text", OUT_OF_PLACE.values(), ids=OUT_OF_PLACE)
def test_input_and_output_are_found(tmp_path: Path, text: str) -> None:
    assert used_inside(tree(tmp_path, {"compiler/plan/compile.py": text}), {"dpsql.compiler"}, INPUT_AND_OUTPUT) != []


def test_what_is_allowed_is_not_found(tmp_path: Path) -> None:
    text = "from dpsql import errors\nfrom dpsql.privacy import cost\nimport dpsql.gateway"
    root = tree(tmp_path, {"errors.py": "", "privacy/cost.py": text, "gateway.py": "", "privacy/__init__.py": ""})
    found = used_inside(root, {"dpsql.privacy"}, {"dpsql"}, but={"dpsql.privacy", "dpsql.errors"})
    assert found == ["dpsql.privacy.cost:3: dpsql.gateway"]


DYNAMIC_IMPORTS = {
    "importlib": "import importlib\nimportlib.import_module('dpsql.gateway')",
    "from importlib": "from importlib import import_module",
    "builtin": "__import__('dpsql.gateway')",
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
    assert used_outside(tree(tmp_path, {"gateway.py": text}), RANDOMNESS, {"dpsql.privacy.sampling"}) != []


@pytest.mark.parametrize("call", ["ReleasedRows(rows)", "release.ReleasedRows(rows)"])
def test_released_rows_made_elsewhere_are_found(tmp_path: Path, call: str) -> None:
    assert other_makers(tree(tmp_path, {"gateway.py": f"x = {call}", "gateway/release.py": f"x = {call}"})) == [
        "dpsql.gateway:1"
    ]
