"""Nothing in the package writes to a terminal or a log but `benchgate.cli.saying`, which escapes it: held by reading
every module."""

from __future__ import annotations

import ast
import functools
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[2] / "benchgate"

# Who may, and why.
ALLOWED = {
    "cli/saying.py": "the one way out",
    "escaped_streams.py": "it escapes what libraries write",
    "pipeline/server_commands.py": "its standard error is the log of a server",
    "load/data_set_rows.py": "its standard output is a pipe to the process that started it",
}
PRINTERS = frozenset({
    "print", "builtins.print", "breakpoint", "typer.echo", "typer.secho", "typer.launch", "click.echo", "click.secho",
    "rich.print", "rich.print_json", "rich.get_console", "rich.inspect", "traceback.print_exc",
    "traceback.print_exception", "traceback.print_stack", "traceback.print_tb", "warnings.warn", "warnings.showwarning",
    "faulthandler.enable", "pprint.pprint", "pprint.pp", "logging.basicConfig", "logging.StreamHandler",
    "logging.debug", "logging.info", "logging.warning", "logging.error", "logging.critical", "logging.exception",
    "logging.lastResort", "getpass.getpass", "input",
})  # fmt: skip
STREAMS = frozenset({"sys.stdout", "sys.stderr", "sys.__stdout__", "sys.__stderr__"})
HARMLESS = frozenset({"isatty", "fileno", "encoding"})
"""What may be asked of a stream that is not written to."""
CONSOLES = ("rich.console", "rich.pretty")
STARTERS = frozenset({
    "subprocess.Popen", "subprocess.run", "subprocess.call", "subprocess.check_call", "subprocess.check_output",
    "os.system",
})  # fmt: skip
TEXT_PRINTERS = frozenset({"say", "say_markdown", "log", "log_text"})


def names_of(nodes: list[ast.AST]) -> dict[str, str]:
    """Where each name of a module comes from: `Console` → `rich.console.Console`."""
    known: dict[str, str] = {}
    for node in nodes:
        if isinstance(node, ast.Import):
            known |= {alias.asname: alias.name for alias in node.names if alias.asname}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            known |= {alias.asname or alias.name: f"{node.module}.{alias.name}" for alias in node.names}
    return known


def dotted(node: ast.AST, known: dict[str, str]) -> str:
    """`sys.stderr` of an expression, with what imports renamed under its own name; empty where it is no such chain."""
    if isinstance(node, ast.Name):
        return known.get(node.id, node.id)
    if isinstance(node, ast.Attribute):
        of = dotted(node.value, known)
        return f"{of}.{node.attr}" if of else ""
    return ""


@dataclass(frozen=True, slots=True)
class Found:
    """Every way past `benchgate.cli.saying` in a module, with its line; and if a child may inherit its streams."""

    writes: list[tuple[int, str]]
    shares_streams: bool


def found_in(source: str) -> Found:
    nodes = list(ast.walk(ast.parse(source)))
    known = names_of(nodes)
    calls = [node for node in nodes if isinstance(node, ast.Call) and dotted(node.func, known) in STARTERS]
    return Found(list(writes(nodes, known)), not all(map(goes_to_files, calls)))


def goes_to_files(call: ast.Call) -> bool:
    given = {word.arg: ast.unparse(word.value) for word in call.keywords}
    return given.get("stdout") == "log" and given.get("stderr") in ("log", "subprocess.STDOUT")


def writes(nodes: list[ast.AST], known: dict[str, str]) -> Iterator[tuple[int, str]]:
    harmless = {id(node.value) for node in nodes if isinstance(node, ast.Attribute) and node.attr in HARMLESS}
    type_checking = {
        id(inner)
        for node in nodes
        if isinstance(node, ast.If) and dotted(node.test, known).endswith("TYPE_CHECKING")
        for inner in ast.walk(node)
    }
    for node in nodes:
        if isinstance(node, ast.Attribute | ast.Name):
            name = dotted(node, known)
            if name in PRINTERS or (name in STREAMS and id(node) not in harmless):
                yield node.lineno, name
        elif isinstance(node, ast.ImportFrom):
            if (node.module or "").startswith(CONSOLES) and id(node) not in type_checking:
                yield node.lineno, f"{node.module}"
        elif isinstance(node, ast.Call):
            called = dotted(node.func, known)
            if called == "os.write" and ast.unparse(node.args[0]) in ("1", "2"):
                yield node.lineno, "os.write to a standard stream"
            if called in ("getattr", "vars") and dotted(node.args[0], known) == "sys":
                yield node.lineno, "an attribute of sys whose name is made up"
            if called.rpartition(".")[2] in TEXT_PRINTERS and "json.dumps(" in ast.unparse(node):
                yield node.lineno, "JSON printed as text, whose values the escaping would change"


@functools.cache
def package() -> dict[str, Found]:
    """What is found in every module of the package, which are read once for all tests."""
    paths = PACKAGE.rglob("*.py")
    return {str(path.relative_to(PACKAGE)): found_in(path.read_text(encoding="utf-8")) for path in paths}


def test_only_one_module_writes_to_the_standard_streams() -> None:
    found = {
        f"benchgate/{name}:{line}: {what}"
        for name, module in package().items()
        if name not in ALLOWED
        for line, what in module.writes
    }
    assert found == set(), "print through benchgate.cli.saying (say, say_json, log), which escapes what others wrote"


def test_every_exception_is_one() -> None:
    for name in ALLOWED:
        assert package()[name].writes, f"{name} writes nothing: take it off the list"


def test_a_child_inherits_the_streams_only_where_that_is_known() -> None:
    """Child processes whose output would stand in the log beside ours, unescaped."""
    allowed = {
        "cli/action.py": "the child is benchgate itself, which escapes what it prints; git's output is captured",
        "pipeline/server_commands.py": "the supervisor of these commands writes into the log of their server",
        "release/promote.py": "a command of the user: its output is theirs, and it may speak to their CI",
        "load/clocks.py": "the output of chronyc is captured",
        "load/prompt_sets.py": "standard output is a pipe, and standard error a file that is read",
        "telemetry/smi.py": "standard output is a pipe; standard error is dropped or captured",
        "telemetry/replicas.py": "its standard output is a file that is read, and its standard error goes to a log",
    }
    assert {name for name, module in package().items() if module.shares_streams} == set(allowed)


@pytest.mark.parametrize(
    "source",
    [
        "print('x')",
        "import sys\nsys.stderr.write('x')",
        "import sys as s\nprint_to = s.stdout\nprint_to.write('x')",
        "from sys import stderr\nstderr.write('x')",
        "import typer\ntyper.echo('x')",
        "from typer import echo as e\ne('x')",
        "from rich.console import Console\nConsole().print('x')",
        "from rich import print as p\np('x')",
        "import os\nos.write(2, b'x')",
        "import traceback\ntraceback.print_exc()",
        "import logging\nlogging.warning('x')",
        "import warnings\nwarnings.warn('x')",
        "import json\nfrom benchgate.cli.saying import say\nsay(json.dumps({}) + '\\n')",
        "import sys\nsys.__stderr__.write('x')",
        "import sys\ngetattr(sys, 'std' + 'err').write('x')",
    ],
)
def test_every_way_past_it_is_found(source: str) -> None:
    assert found_in(source).writes


@pytest.mark.parametrize(
    "source",
    [
        "import sys\nsys.stderr.isatty()",
        "from benchgate.cli.saying import say, log\nsay('x')\nlog('y')",
        "import os\nos.write(handle, b'x')",
        "text = 'print'\nobject.print = text",
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from rich.console import Console\n",
    ],
)
def test_what_writes_nothing_is_let_through(source: str) -> None:
    assert not found_in(source).writes
