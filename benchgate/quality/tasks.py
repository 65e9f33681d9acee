"""Task files and their rows: lm-eval's YAML and JSONL → planned tasks, or every problem with its place, all at once."""

from __future__ import annotations

from collections.abc import Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import ValidationError

from benchgate.errors import Problem, SuiteError
from benchgate.plan.schedule import PlannedTask
from benchgate.quality.taskfile import KEYS, TaskFile, target_fault, template_fault
from benchgate.suite.jsonl import Row, parse_rows
from benchgate.suite.text import Document, Fault, read_text

if TYPE_CHECKING:
    from pydantic_core import ErrorDetails

_DATA_KEYS = frozenset({"dataset_path", "dataset_kwargs"})
_TEMPLATES = ("doc_to_text", "doc_to_target", "description")
_KNOWN_KEYS = f"the keys of a task are {', '.join(TaskFile.model_fields)}"
_SHOWN_CHARACTERS = 300


def load_tasks(suite_path_dir: Path, paths: Sequence[str]) -> tuple[PlannedTask, ...]:
    """The tasks of a suite, in its order, with all their rows; paths are relative to the folder of the suite.

    Raises SuiteError with every problem of every file at once: a file that cannot be read, a key or value outside the
    part of lm-eval's language that `taskfile` describes, a template that does not fit the rows, a row without a unique
    `id`, rows of different shapes, two files of one name.
    """
    tasks: list[PlannedTask] = []
    problems: list[Problem] = []
    for path in paths:
        task, faults = _load_task(suite_path_dir / path)
        problems += faults
        if task is None:
            continue
        if task.name in {earlier.name for earlier in tasks}:
            message = f"another task file of the suite is called {task.name!r} too; give each its own name"
            problems.append(Problem(str(suite_path_dir / path), None, None, "task", message))
        tasks.append(task)
    if problems:
        raise SuiteError(problems)
    return tuple(tasks)


def _load_task(path: Path) -> tuple[PlannedTask | None, list[Problem]]:
    text, faults = _read(path, "a task of `quality.tasks`")
    if text is None:
        return None, faults
    try:
        document = read_text(text, str(path))
    except SuiteError as exc:
        return None, exc.problems
    if document.problems:
        return None, document.problems
    try:
        spec = TaskFile.model_validate(document.data)
    except ValidationError as exc:
        return None, [_from_pydantic(document, error) for error in exc.errors()]
    return _with_rows(document, spec, path)


def _with_rows(document: Document, spec: TaskFile, path: Path) -> tuple[PlannedTask | None, list[Problem]]:
    [(split, data_file)] = spec.dataset_kwargs.data_files.items()
    if split != spec.test_split:
        message = f"`data_files` is for split {split!r}, but `test_split` is {spec.test_split!r}; use one name"
        return None, [document.problem(Fault(("test_split",), message))]
    data_path = path.parent / data_file
    text, problems = _read(data_path, f"the `data_files` of {path.name}")
    if text is None:
        return None, problems
    rows, problems = parse_rows(text, str(data_path))
    if rows:
        misshapen = _shape_problems(rows, str(data_path))
        mistaken = _template_problems(document, spec, frozenset(rows[0].values))
        problems += misshapen + mistaken
        if not misshapen and not mistaken:
            problems += _target_problems(rows, str(data_path), spec.doc_to_target)
    config: dict[str, object] = {key: value for key, value in document.data.items() if key not in _DATA_KEYS}
    # The suite names a task by its file; the name inside is lm-eval's own.
    return PlannedTask(path.stem, config, tuple(row.values for row in rows)), problems


def _read(path: Path, what: str) -> tuple[str | None, list[Problem]]:
    try:
        return path.read_text(encoding="utf-8"), []
    except (OSError, UnicodeDecodeError) as exc:
        reason = exc.strerror if isinstance(exc, OSError) else str(exc)
        return None, [Problem(str(path), None, None, "", f"cannot be read ({reason}); it is named as {what}")]


def _shape_problems(rows: Sequence[Row], source: str) -> list[Problem]:
    """Rows must look like the first one: same keys, same types."""
    shape = {key: type(value) for key, value in rows[0].values.items()}
    problems = []
    for row in rows:
        for key in shape.keys() ^ row.values.keys():
            has, lacks = ("the first row", "this one") if key in shape else ("this row", "the first")
            problems.append(Problem(source, row.line, None, key, f"{has} has this key and {lacks} has not"))
        for key, value in row.values.items():
            if key in shape and type(value) is not shape[key]:
                expected, found = shape[key].__name__, type(value).__name__
                problems.append(Problem(source, row.line, None, key, f"is {found}, but {expected} in the first row"))
    return problems


def _target_problems(rows: Sequence[Row], source: str, target: str) -> list[Problem]:
    place = target if target in rows[0].values else "doc_to_target"
    faults = [(row, target_fault(target, row.values)) for row in rows]
    return [Problem(source, row.line, None, place, fault) for row, fault in faults if fault is not None]


def _template_problems(document: Document, spec: TaskFile, columns: frozenset[str]) -> list[Problem]:
    texts = [(key, getattr(spec, key)) for key in _TEMPLATES if key != "description" or "{" in spec.description]
    faults = [(key, template_fault(text, columns)) for key, text in texts]
    return [document.problem(Fault((key,), fault)) for key, fault in faults if fault is not None]


def _from_pydantic(document: Document, error: ErrorDetails) -> Problem:
    """pydantic's finding at its place in the file; an unknown key comes with the nearest known one."""
    path = error["loc"]
    if error["type"] == "extra_forbidden":
        near = get_close_matches(str(path[-1]), KEYS, n=1)
        hint = f"did you mean {near[0]!r}?" if near else _KNOWN_KEYS
        return document.problem(Fault(path, f"unknown key; {hint}", at_key=True))
    found = "" if error["type"] == "missing" else f", found {error['input']!r}"
    return document.problem(Fault(path, f"{error['msg']}{found}"[:_SHOWN_CHARACTERS]))
