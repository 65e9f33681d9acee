"""The import rules of ARCHITECTURE.md, held by reading every import: one way, no cycles, a core without I/O."""

from __future__ import annotations

import ast
import functools
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[2] / "benchgate"

# From the bottom up. A layer is a list of tiers: packages of one tier do not import each other, but for SHARED.
LAYERS: dict[str, tuple[str, ...]] = {
    "base": ("credentials", "errors escape units system timestamps timers child_process", "escaped_streams"),
    "core": ("model", "stats suite", "plan gate", "sizing"),
    "adapters": ("load quality shadow telemetry embedded sim targets store importers integrations report",),
    "pipeline": ("pipeline",),
    "use cases": ("release site doctor init api",),
    "interface": ("cli", "__main__"),
}
TIERS = tuple(frozenset(tier.split()) for tiers in LAYERS.values() for tier in tiers)
SHARED = "targets"
"""The adapter that the other adapters may use: how to reach a deployment."""

CORE = frozenset({"credentials", "errors", "escape", "units", *" ".join(LAYERS["core"]).split()})

# fmt: off
OUTSIDE_WORLD = frozenset({
    "aiohttp", "alembic", "asyncio", "glob", "http", "httpx2", "importlib", "io", "jinja2", "lm_eval", "logging",
    "multiprocessing", "os", "pathlib", "prometheus_client", "psycopg", "random", "requests", "rich", "secrets",
    "select", "shutil", "signal", "socket", "sqlalchemy", "sqlite3", "ssl", "structlog", "subprocess", "tempfile",
    "threading", "time", "typer", "urllib", "uvloop", "vl_convert", "xllamacpp",
})
# fmt: on
PURE_PARTS = ("urllib.parse.", "pathlib.PurePath", "pathlib.PurePosixPath")  # text in, text out
CLOCKS_AND_CHANCE = frozenset({"now", "utcnow", "today", "uuid1", "uuid4", "uuid6", "uuid7"})
SEEDED_NUMPY = frozenset({"BitGenerator", "Generator", "PCG64", "Philox", "SeedSequence", "default_rng"})

# The modules that may load a heavy library when imported. They run in processes of their own, or only when a cluster
# is asked for, so nothing else may import them except inside a function.
CHILD_ONLY: dict[str, frozenset[str]] = {
    "lm_eval": frozenset(
        f"benchgate.quality.{name}"
        for name in ("recorded_model", "lm_eval_internals", "worker", "tasks.lm_eval_resolver")
    ),
    "datasets": frozenset({"benchgate.load.data_set_rows", "benchgate.quality.tasks.lm_eval_resolver"}),
    "evaluate": frozenset({"benchgate.quality.tasks.lm_eval_resolver"}),
    "xllamacpp": frozenset(),
    "distributed": frozenset(),
}
HEAVY_AT_START_UP = ("distributed", "lm_eval", "scipy", "sqlalchemy", "vl_convert", "xllamacpp")
MAX_LINES = 1_000  # a module holds one concept whole; 200 to 600 lines are usual


@dataclass(frozen=True, slots=True)
class Import:
    """One name brought in: by which module, at which line, and whether only when a function runs."""

    importer: str
    target: str
    line: int
    deferred: bool

    def __str__(self) -> str:
        return f"{self.importer}:{self.line} imports {self.target}"


def imports_of(importer: str, source: str, *, is_package: bool = False) -> Iterator[Import]:
    """Every import of a module, those inside functions and under TYPE_CHECKING included."""

    def visit(node: ast.AST, deferred: bool) -> Iterator[Import]:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.Import):
                yield from (Import(importer, alias.name, child.lineno, deferred) for alias in child.names)
            elif isinstance(child, ast.ImportFrom):
                base = absolute(child)
                yield from (Import(importer, f"{base}.{a.name}", child.lineno, deferred) for a in child.names)
            else:
                yield from visit(child, deferred or runs_later(child))

    def absolute(node: ast.ImportFrom) -> str:
        if node.level == 0:
            return node.module or ""
        up = node.level - 1 if is_package else node.level
        parents = importer.split(".")[: len(importer.split(".")) - up]
        return ".".join([*parents, *([node.module] if node.module else [])])

    yield from visit(ast.parse(source), deferred=False)


def runs_later(node: ast.AST) -> bool:
    """True for a body that importing the module does not execute."""
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
        return True
    return isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test)


def package_of(module: str) -> str | None:
    """Return the package or single module of benchgate that a module belongs to; None for other libraries."""
    parts = module.split(".")
    return parts[1] if parts[0] == "benchgate" and len(parts) > 1 and parts[1] != "__version__" else None


def tier_of(package: str) -> int:
    """Return the height of a package; one that no tier names must be given a place before it can be judged."""
    for height, tier in enumerate(TIERS):
        if package in tier:
            return height
    raise AssertionError(f"benchgate/{package} has no layer; place it in LAYERS here and in ARCHITECTURE.md")


def wrong_way(found: Import) -> bool:
    """Return True if an import points up, or sideways into another package of the same tier."""
    source, target = package_of(found.importer), package_of(found.target)
    if source is None or target is None or source == target:
        return source is None and target is not None
    if tier_of(target) == tier_of(source):
        return target != SHARED
    return tier_of(target) > tier_of(source)


def reaches_outside(found: Import) -> bool:
    """True when a module of the core imports something that does I/O, reads a clock or draws unseeded numbers."""
    outside = found.target.split(".")[0] in OUTSIDE_WORLD and not found.target.startswith(PURE_PARTS)
    return outside and package_of(found.importer) in CORE


def too_early(found: Import) -> bool:
    """True when importing a module that is not a child process's own would load a heavy library."""
    if found.deferred:
        return False
    for library, children in CHILD_ONLY.items():
        loads = found.target.split(".")[0] == library or any(f"{found.target}.".startswith(f"{c}.") for c in children)
        if loads and found.importer not in children:
            return True
    return False


def impurities_of(source: str) -> Iterator[str]:
    """Reads of files, clocks and global randomness that need no import of their own."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in {"open", "input"}:
            yield f"line {node.lineno}: {node.func.id}()"
        if isinstance(node, ast.ImportFrom):
            yield from (f"line {node.lineno}: {a.name}" for a in node.names if a.name in CLOCKS_AND_CHANCE)
        if isinstance(node, ast.Attribute):
            dotted = ast.unparse(node)
            if node.attr in CLOCKS_AND_CHANCE:
                yield f"line {node.lineno}: {dotted}"
            if dotted.startswith(("np.random.", "numpy.random.")) and node.attr not in SEEDED_NUMPY:
                yield f"line {node.lineno}: {dotted}"


def module_name(path: Path) -> str:
    """Dotted name of a file of the package."""
    parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {module_name(path): path for path in sorted(PACKAGE.rglob("*.py"))}


@functools.cache
def all_imports() -> tuple[Import, ...]:
    """Every import of the package."""
    return tuple(
        found
        for name, path in MODULES.items()
        for found in imports_of(name, path.read_text(encoding="utf-8"), is_package=path.name == "__init__.py")
    )


def test_every_import_points_down() -> None:
    assert [str(found) for found in all_imports() if wrong_way(found)] == []


def test_the_core_imports_nothing_that_touches_the_outside_world() -> None:
    assert [str(found) for found in all_imports() if reaches_outside(found)] == []


def test_the_core_reads_no_file_clock_or_global_randomness() -> None:
    core = {name: path for name, path in MODULES.items() if package_of(name) in CORE}
    found = {name: list(impurities_of(path.read_text(encoding="utf-8"))) for name, path in core.items()}
    assert {name: lines for name, lines in found.items() if lines} == {}
    assert len(core) > len(CORE)  # the walk saw the core


def test_heavy_libraries_load_only_where_they_run() -> None:
    assert [str(found) for found in all_imports() if too_early(found)] == []


def test_no_module_is_longer_than_its_limit() -> None:
    lengths = {name: len(path.read_text(encoding="utf-8").splitlines()) for name, path in MODULES.items()}
    assert {name: lines for name, lines in lengths.items() if lines > MAX_LINES} == {}


def test_the_command_line_starts_without_heavy_libraries() -> None:
    script = f"import sys, benchgate.cli.app; print(*(n for n in {HEAVY_AT_START_UP} if n in sys.modules))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout.strip()) == (0, ""), done.stderr


@pytest.mark.parametrize(
    ("importer", "line"),
    [
        ("benchgate.stats.means", "from benchgate.gate.judge import decide"),  # up
        ("benchgate.load.workers", "from benchgate.store.repository import Repository"),  # sideways
        ("benchgate.model.run", "from benchgate import cli"),  # up, by the package
        ("benchgate.model.run", "def late():\n    import benchgate.pipeline.run"),  # hidden in a function
        ("benchgate.model.run", "if TYPE_CHECKING:\n    from benchgate.store import tables"),  # for a type only
        ("benchgate.gate.judge", "from ..report import html"),  # relative
        ("benchgate", "from benchgate.model import run"),  # the package itself imports nothing
    ],
)
def test_an_import_pointing_the_wrong_way_is_seen(importer: str, line: str) -> None:
    assert [wrong_way(found) for found in imports_of(importer, line, is_package=importer == "benchgate")] == [True]


@pytest.mark.parametrize(
    ("importer", "line"),
    [
        ("benchgate.pipeline.run", "from benchgate.store import repository"),
        ("benchgate.load.workers", "from benchgate.targets.dialect import Dialect"),
        ("benchgate.gate.judge", "from . import rule"),
        ("benchgate.gate.judge", "from benchgate.gate.decision import Rule"),
        ("benchgate.report.html", "from benchgate import __version__"),
        ("benchgate.model.codec", "import numpy as np"),
    ],
)
def test_an_import_pointing_down_is_let_through(importer: str, line: str) -> None:
    assert [wrong_way(found) for found in imports_of(importer, line)] == [False]


def test_a_package_without_a_layer_is_an_error() -> None:
    (found,) = imports_of("benchgate.cli.app", "import benchgate.attic")
    with pytest.raises(AssertionError, match="attic has no layer"):
        wrong_way(found)


def test_the_other_checks_see_what_they_look_for() -> None:
    (clock,) = imports_of("benchgate.gate.judge", "from time import monotonic")
    (early,) = imports_of("benchgate.quality.runner", "import lm_eval.api")
    (late,) = imports_of("benchgate.quality.runner", "def f():\n    import lm_eval")
    (through,) = imports_of("benchgate.quality.runner", "from benchgate.quality.recorded_model import RecordedModel")
    (pure,) = imports_of("benchgate.suite.schema", "from urllib.parse import urlsplit")
    assert reaches_outside(clock)
    assert not reaches_outside(pure)
    assert too_early(early)
    assert too_early(through)
    assert not too_early(late)
    assert list(impurities_of("from uuid import uuid4; open('f'); datetime.now(); np.random.rand(3)")) == [
        "line 1: uuid4",
        "line 1: open()",
        "line 1: datetime.now",
        "line 1: np.random.rand",
    ]
    assert list(impurities_of("np.random.default_rng(1)")) == []


def cycles() -> list[list[str]]:
    """Return the import cycles among modules, lazy imports included."""
    known = set(MODULES)
    graph: dict[str, set[str]] = {name: set() for name in known}
    for found in all_imports():
        target = found.target if found.target in known else found.target.rpartition(".")[0]
        if target in known and target != found.importer and MODULES[target].name != "__init__.py":
            graph[found.importer].add(target)
    remaining = dict(graph)
    while free := [name for name, targets in remaining.items() if not targets & set(remaining)]:
        for name in free:
            del remaining[name]
    # What is left lies on a cycle or leads to one; walking it always ends on one.
    result = []
    while remaining:
        path = [min(remaining)]
        while (following := min(remaining[path[-1]] & set(remaining))) not in path:
            path.append(following)
        result.append(path[path.index(following) :])
        for name in result[-1]:
            del remaining[name]
        while free := [name for name, targets in remaining.items() if not targets & set(remaining)]:
            for name in free:
                del remaining[name]
    return result


def test_there_are_no_import_cycles() -> None:
    assert cycles() == []
