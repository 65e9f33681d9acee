"""Task files over rows of one's own: lm-eval's YAML and JSONL → planned tasks, or every problem with its place."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from difflib import get_close_matches
from os.path import normpath
from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import ValidationError

from benchgate.errors import Problem, SuiteError
from benchgate.plan.items import PlannedTask
from benchgate.quality.ignoring import exact_match_of
from benchgate.quality.judged import judged_task
from benchgate.quality.taskfile import (
    KEYS,
    TaskFile,
    contradictions,
    option_fault,
    options_of,
    target_fault,
    template_fault,
)
from benchgate.suite.formats import Row, parse_rows
from benchgate.suite.quality import Quality, TaskEntry
from benchgate.suite.yaml import Document, Fault, read_text
from benchgate.text_files import RECORDED_BYTES, text_of

if TYPE_CHECKING:
    from pydantic_core import ErrorDetails

_DATA_KEYS = frozenset({"dataset_path", "dataset_kwargs"})
_TEMPLATES = ("doc_to_text", "doc_to_target", "description")
_KNOWN_KEYS = f"the keys of a task are {', '.join(TaskFile.model_fields)}"
_SHOWN_CHARACTERS = 300


def read_file(path: Path, entry: TaskEntry, quality: Quality) -> tuple[list[PlannedTask], list[Problem]]:
    """The task of a file, unless something is wrong with it or its rows; and all that is."""
    text, faults = file_text(path, "a task of `quality.tasks`")
    if text is None:
        return [], faults
    try:
        document = read_text(text, str(path))
    except SuiteError as exc:
        return [], exc.problems
    if document.problems:
        return [], document.problems
    try:
        spec = TaskFile.model_validate(document.data)
    except ValidationError as exc:
        return [], [_from_pydantic(document, error) for error in exc.errors()]
    if faults := [document.problem(Fault(place, message)) for place, message in contradictions(spec)]:
        return [], faults
    task, faults = _with_rows(document, spec, path, entry, quality)
    return [] if task is None else [task], faults


def _with_rows(
    document: Document, spec: TaskFile, path: Path, entry: TaskEntry, quality: Quality
) -> tuple[PlannedTask | None, list[Problem]]:
    rows, problems = _rows(spec, spec.test_split, path)
    apart = spec.fewshot_split not in (None, spec.test_split)
    shots, faults = _rows(spec, str(spec.fewshot_split), path) if apart else ([], [])
    problems += faults
    mistaken = [
        fault
        for found in (rows, shots)
        if found
        for fault in _template_problems(document, spec, frozenset(found[0].values))
    ]
    if not rows or problems:
        return None, problems + mistaken
    if not mistaken:
        source = normpath(path.parent / spec.dataset_kwargs.data_files[spec.test_split])
        mistaken = _target_problems(rows, source, spec, entry.metric or spec.metric_list[0].metric)
    config = _config(document, spec, entry, quality)
    if (problem := _examples_problem(spec, config, len(shots) if apart else len(rows) - 1)) is not None:
        asked_here = entry.few_shot is None and quality.few_shot is None
        at_file = document.problem(Fault(("num_fewshot",), problem))
        mistaken.append(at_file if asked_here else _of_the_entry(problem, document, entry, quality))
    if mistaken:
        return None, mistaken
    # The suite names a task by its file; the name inside is lm-eval's own.
    made = judged_task(entry.name, config, tuple(row.values for row in rows), entry, quality)
    if isinstance(made, str):
        return None, [_of_the_entry(made, document, entry, quality)]
    chance = _chance(spec, rows) if spec.output_type == "multiple_choice" else None
    return replace(made, shots=tuple(row.values for row in shots), chance=chance), []


def _of_the_entry(message: str, document: Document, entry: TaskEntry, quality: Quality) -> Problem:
    """Where the suite says more of a task than its name, a mistake in how it is judged stands there."""
    if all(getattr(entry, key) is None for key in ("few_shot", "filter", "metric", "cluster", "scale")) and (
        quality.few_shot is None
    ):
        return document.problem(Fault((), message))
    number = quality.tasks.index(entry)
    return Problem("", None, None, f"quality.tasks[{number}]", f"{entry.task}: {message}")


def _config(document: Document, spec: TaskFile, entry: TaskEntry, quality: Quality) -> dict[str, object]:
    """The task as lm-eval takes it, with what the suite says of it; rows are handed over beside it."""
    config: dict[str, object] = {key: value for key, value in document.data.items() if key not in _DATA_KEYS}
    few_shot = quality.few_shot if entry.few_shot is None else entry.few_shot
    if few_shot is not None and few_shot != spec.num_fewshot:
        config["num_fewshot"] = few_shot
    if entry.max_tokens is not None and spec.generation_kwargs is not None:
        config["generation_kwargs"] = {**document.data["generation_kwargs"], "max_gen_toks": entry.max_tokens}  # type: ignore[dict-item]  # a mapping: it was read as one
    return config


def _examples_problem(spec: TaskFile, config: dict[str, object], there: int) -> str | None:
    """Why as many few-shot examples as are asked for cannot be shown."""
    asked = int(str(config.get("num_fewshot") or 0))
    samples = spec.fewshot_config.samples if spec.fewshot_config else None
    if asked == 0:
        return None
    if spec.fewshot_split is None and samples is None:
        return f"{asked} examples are asked for; say where from: `fewshot_split`, or `fewshot_config: {{samples: […]}}`"
    known = there if spec.fewshot_split is not None else len(samples or ())
    return f"{asked} examples are asked for, and there are {known}" if asked > known else None


def _rows(spec: TaskFile, split: str, path: Path) -> tuple[list[Row], list[Problem]]:
    data_path = Path(normpath(path.parent / spec.dataset_kwargs.data_files[split]))
    text, problems = file_text(data_path, f"the `data_files` of {path.name}")
    if text is None:
        return [], problems
    rows, problems = parse_rows(text, str(data_path))
    if not rows and all(problem.line is None for problem in problems):
        where = f"it is named as the `data_files` of {path.name}"
        problems = [replace(problem, message=f"{problem.message}; {where}") for problem in problems]
    if rows:
        problems += _shape_problems(rows, str(data_path))
    return rows, problems


def file_text(path: Path, what: str) -> tuple[str | None, list[Problem]]:
    """The text of a file, or why there is none; `what` says where it is named."""
    try:
        return text_of(path, RECORDED_BYTES), []
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


def _target_problems(rows: Sequence[Row], source: str, spec: TaskFile, judged: str) -> list[Problem]:
    target = spec.doc_to_target
    place = target if target in rows[0].values else "doc_to_target"
    if spec.output_type == "multiple_choice" and spec.doc_to_choice is not None:
        faults = [(row, option_fault(target, spec.doc_to_choice, row.values)) for row in rows]
    else:
        metric = exact_match_of(one.model_dump() for one in spec.metric_list if one.metric == judged)
        faults = [(row, target_fault(target, row.values, metric)) for row in rows]
    return [Problem(source, row.line, None, place, fault) for row, fault in faults if fault is not None]


def _chance(spec: TaskFile, rows: Sequence[Row]) -> float:
    """What guessing among the options scores on average."""
    options = [len(options_of(spec.doc_to_choice or [], row.values)) for row in rows]
    return sum(1 / number for number in options) / len(options)


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
    return document.problem(Fault(path, f"{_in_words(error)}{found}"[:_SHOWN_CHARACTERS]))


def _in_words(error: ErrorDetails) -> str:
    """The finding without the words that are only pydantic's own."""
    if error["type"] == "missing":
        return "is missing"
    if error["type"] == "literal_error":
        return f"expected {error['ctx']['expected']}"
    return error["msg"].removeprefix("Value error, ")
