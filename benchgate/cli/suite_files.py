"""Mistakes in the files that a suite names, told where the suite names them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from benchgate.cli.inputs import today
from benchgate.errors import BudgetError, Problem, SuiteError, UsageError

if TYPE_CHECKING:
    from benchgate.suite.schema import Suite
    from benchgate.suite.yaml import Document, Plain

_FILE_KEYS = frozenset({"prompts", "prompt", "texts", "trace", "file"})
_TASK_SUFFIXES = (".yaml", ".yml")
_VARIABLE = re.compile(r"the environment variable ([A-Za-z_][A-Za-z0-9_]*) ")
_SPENT = ("error_budget", "spent")


@contextmanager
def placed_in(suite: Path) -> Iterator[None]:
    """Gives problems without a line, and what is refused of a part of it, their place in the suite."""
    try:
        yield
    except BudgetError as error:
        raise BudgetError(f"{_place_of(suite, _SPENT)}{error}") from error
    except UsageError as error:
        named = _VARIABLE.search(str(error))
        where = _referring(suite, named[1]) if named is not None else ""
        raise UsageError(f"{where}{error}") from error
    except SuiteError as error:
        document = _document(suite)
        if document is None:
            raise
        raise SuiteError([_placed(problem, document, suite) for problem in error.problems]) from error


def _referring(suite: Path, variable: str) -> str:
    """`suite.yaml:12:10: `, where the suite first refers to a variable of the environment; empty where it does not."""
    document = _document(suite)
    texts = _texts(document.data, ()) if document is not None else ()
    path = next((path for path, text in texts if f"${{env:{variable}}}" in text), None)
    return "" if path is None else _place_of(suite, path)


def _place_of(suite: Path, path: tuple[str | int, ...]) -> str:
    from benchgate.suite.yaml import Fault

    document = _document(suite)
    if document is None:
        return ""
    found = document.problem(Fault(path, ""))
    return f"{found.source}:{found.line}:{found.column}: "


def missing_files(suite: Path) -> list[Problem]:
    """Files that a suite names and that are not there: told also of a suite that is no suite yet."""
    document = _document(suite)
    if document is None:
        return []
    return [
        _placed(Problem(str(suite.parent / name), None, None, "", "there is no such file"), document, suite)
        for path, name in _texts(document.data, ())
        if _names_a_file(path, name) and not (suite.parent / name).is_file()
    ]


def _document(suite: Path) -> Document | None:
    """The text of the suite; None where it is no YAML."""
    from benchgate.suite.yaml import read_text
    from benchgate.system import read_text_file

    try:
        return read_text(read_text_file(suite), str(suite))
    except (OSError, UnicodeDecodeError, SuiteError):
        return None


def _placed(problem: Problem, document: Document, suite: Path) -> Problem:
    from benchgate.suite.yaml import Fault, show_path

    if problem.line is not None:
        return problem
    if not problem.source:  # of the suite itself, in the part that it names
        begun = {show_path(path): path for path in document.values}
        there = begun.get(problem.path) or begun.get(problem.path.split(".")[0])
        return (
            replace(problem, source=document.source)
            if there is None
            else document.problem(Fault(there, problem.message))
        )
    if problem.source == document.source:
        # Of a part of the suite, which the message begins with.
        begun = {show_path(path): path for path in document.values}
        path = begun.get(problem.message.split(": ", 1)[0])
        place = document.problem(Fault(path, "")) if path else problem
        return replace(problem, line=place.line, column=place.column)
    for path, name in _texts(document.data, ()):
        if problem.source == str(suite.parent / name):
            inside = f"{problem.path}: " if problem.path else ""
            return document.problem(Fault(path, f"{problem.source}: {inside}{problem.message}"))
    return problem


def _texts(value: Plain, path: tuple[str | int, ...]) -> Iterator[tuple[tuple[str | int, ...], str]]:
    """Every text of a suite with its path."""
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from _texts(inner, (*path, key))
    elif isinstance(value, list):
        for position, inner in enumerate(value):
            yield from _texts(inner, (*path, position))
    elif isinstance(value, str):
        yield path, value


def _names_a_file(path: tuple[str | int, ...], name: str) -> bool:
    if path[:2] == ("quality", "tasks"):
        return name.endswith(_TASK_SUFFIXES)
    return path[-1] in _FILE_KEYS and path[0] in ("load", "shadow", "divergence")


def load_suite(path: Path, baseline: str | None = None, candidate: str | None = None) -> Suite:
    """Read and parse a suite file, with all that it takes from others: as a run would be that begins today.

    `baseline` and `candidate` are arms other than its own, which then need no price.
    """
    from benchgate.pipeline.suite_file import with_prices
    from benchgate.suite.rules.suite import with_arms

    suite = with_arms(read_suite(path), baseline, candidate)
    with placed_in(path):
        return with_prices(suite, path.parent, today())


def read_suite(path: Path) -> Suite:
    """The same without the prices that stand in a file: for whoever asks only who is judged, and by what."""
    from benchgate.suite.loader import parse_suite
    from benchgate.system import read_text_file

    try:
        text = read_text_file(path)
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"the suite {path} cannot be read: {error}") from error
    return parse_suite(text, str(path))
