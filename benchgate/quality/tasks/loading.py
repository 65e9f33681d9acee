"""Tasks of a suite, with their rows and every problem in them, and checks that cannot be judged on them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from difflib import get_close_matches
from pathlib import Path

from benchgate.errors import Problem, SuiteError
from benchgate.gate.policy import judged_by
from benchgate.plan.items import PlannedTask
from benchgate.quality.tasks.generated_tasks import GENERATED, generated_tasks
from benchgate.quality.tasks.lm_eval_tasks import read_lm_eval_tasks
from benchgate.quality.tasks.task_file import file_text, read_task_file
from benchgate.suite.quality import Quality
from benchgate.suite.schema import Suite

_FUNCTION_TAG = re.compile(r"^[^#\n]*?(!function)\b", re.MULTILINE)
_SCALE_MISFIT = {
    "accuracy": "are scored by degrees and are not simply right or wrong",
    "score": "are right or wrong, and have no score of another scale",
}


def load_tasks(
    suite_dir: Path, quality: Quality, *, fetch: bool = True, allow_code: bool = False
) -> tuple[PlannedTask, ...]:
    """Return the tasks of a suite in its order, with rows, groups as their tasks; paths are relative to the suite.

    Data of lm-eval's tasks is downloaded if it is not cached; without `fetch` such a task has `needs` instead of rows.
    So has a task with code that the suite allows and the caller does not (`allow_code`); with `fetch` that is a
    problem. Raises SuiteError with all problems of all tasks: unreadable files, keys and values outside the subset in
    `task_file`, templates that do not fit the rows, missing or duplicate `id`s, unknown names, code without consent.
    """
    from benchgate.quality.logprobs import endpoint_fault  # with the HTTP client, which reading tasks never needs

    tasks: list[PlannedTask] = []
    problems = [
        Problem("", None, None, f"quality.include[{number}]", f"there is no folder {folder}")
        for number, folder in enumerate(quality.include)
        if not (suite_dir / folder).is_dir()
    ]
    results = _read_entries(suite_dir, quality, fetch=fetch, allow_code=allow_code)
    for number, (entry, result) in enumerate(zip(quality.tasks, results, strict=True)):
        if isinstance(result, str):
            problems.append(Problem("", None, None, f"quality.tasks[{number}]", f"{entry.task}: {result}"))
            continue
        found, faults = result
        problems += faults
        for task in found:
            if task.name in {earlier.name for earlier in tasks}:
                message = f"another task file of the suite is called {task.name!r} too; give each its own name"
                problems.append(Problem(str(suite_dir / entry.task), None, None, "task", message))
        tasks += found
    if not problems and (fault := endpoint_fault(tasks, quality.endpoint)) is not None:
        problems.append(Problem("", None, None, "quality.endpoint", fault))
    if problems:
        raise SuiteError(problems)
    return tuple(tasks)


def _read_entries(
    suite_dir: Path, quality: Quality, *, fetch: bool, allow_code: bool
) -> Iterator[tuple[list[PlannedTask], list[Problem]] | str]:
    # lm-eval reads all of its entries in one process.
    coded = {entry: _code_problem(suite_dir / entry.task) for entry in quality.tasks if entry.is_file}
    by_lm_eval = [
        entry
        for entry in quality.tasks
        if (not entry.is_file and entry.name not in GENERATED)
        or (quality.allow_unsafe_code and coded.get(entry) is not None)
    ]
    read = iter(
        read_lm_eval_tasks(suite_dir, by_lm_eval, quality, fetch=fetch, allow_code=allow_code) if by_lm_eval else ()
    )
    for entry in quality.tasks:
        if entry in by_lm_eval:
            tasks = next(read)
            yield tasks if isinstance(tasks, str) else (tasks, [])
        elif not entry.is_file:
            tasks = generated_tasks(entry, quality)
            yield tasks if isinstance(tasks, str) else (tasks, [])
        elif (problem := coded[entry]) is not None:
            yield [], [problem]
        else:
            yield read_task_file(suite_dir / entry.task, entry, quality)


def _code_problem(path: Path) -> Problem | None:
    text, _ = file_text(path, "")
    found = _FUNCTION_TAG.search(text) if text is not None else None
    if text is None or found is None:
        return None
    line, column = text.count("\n", 0, found.start(1)) + 1, found.start(1) - text.rfind("\n", 0, found.start(1))
    message = "a function is code; read it, and set `quality.allow_unsafe_code: true` to let it run on this machine"
    return Problem(str(path), line, column, "", message)


def unknown_leaves(suite: Suite, tasks: Sequence[PlannedTask]) -> list[Problem]:
    """Return a problem for each check of a group's task, like `mmlu_pro/mmlu_pro_law`, that the group does not have."""
    problems = []
    for number, check in enumerate(suite.gate.checks):
        group, slash, _ = (check.task or "").partition("/")
        leaves = [task.name for task in tasks if task.name.startswith(f"{group}/")]
        if slash and check.task not in {task.name for task in tasks}:
            near = get_close_matches(str(check.task), leaves, n=1)
            example = f"it has {len(leaves)}, like {leaves[0]!r}" if leaves else "it is one task"
            hint = f"did you mean {near[0]!r}?" if near else example
            message = f"{group!r} has no task {check.task!r}; {hint}"
            problems.append(Problem("", None, None, f"gate.checks[{number}].task", message))
    return problems


def impossible_checks(suite: Suite, tasks: Sequence[PlannedTask]) -> Iterator[Problem]:
    """Yield a problem for each check whose metric does not fit the scale of its tasks, by the gate's own rule."""
    scales: dict[str, bool] = {}
    metrics: dict[str, str] = {}
    for task in tasks:
        name = suite.unit_name(task.name)
        scales[name] = scales.get(name, False) or task.scale == "continuous"
        scales[task.name] = task.scale == "continuous"
        metrics[name] = metrics[task.name] = task.metric
    units = {suite.unit_name(task.name): scales[suite.unit_name(task.name)] for task in tasks}
    for number, check in enumerate(suite.gate.checks):
        if check.metric not in _SCALE_MISFIT:
            continue
        own = check.task is not None and check.task != "each"
        judged = [str(check.task)] if own else judged_by(check, suite.gate.checks, units)
        misfits = [name for name in judged if name in scales and scales[name] != (check.metric == "score")]
        if misfits:
            name, other = misfits[0], "score" if check.metric == "accuracy" else "accuracy"
            what = f"the answers to {name} ({metrics[name]}) {_SCALE_MISFIT[check.metric]}"
            message = f"{what}; judge it by {{metric: {other}, task: {name}, margin: …}}"
            yield Problem("", None, None, f"gate.checks[{number}].metric", message)
