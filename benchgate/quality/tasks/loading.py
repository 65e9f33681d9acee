"""The tasks of a suite → planned tasks, or every problem with its place, all at once.

Task files over rows of one's own are read in `task_files`, and in `named` what lm-eval itself must read.


Checks of evals that could never be judged: of another kind of score than that of the tasks they look at.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from difflib import get_close_matches
from functools import partial
from pathlib import Path

from benchgate.errors import Problem, SuiteError
from benchgate.gate.policy import judged_by, unit_name
from benchgate.plan.evals import PlannedTask
from benchgate.quality.tasks.lm_eval_tasks import read_named
from benchgate.quality.tasks.task_file import file_text, read_file
from benchgate.suite.quality import Quality, TaskEntry
from benchgate.suite.schema import Suite

_CODE = re.compile(r"^[^#\n]*?(!function)\b", re.MULTILINE)


def load_tasks(
    suite_dir: Path, quality: Quality, *, fetch: bool = True, allow_code: bool = False
) -> tuple[PlannedTask, ...]:
    """The tasks of a suite, in its order, groups as their tasks, with all their rows; paths are relative to the suite.

    Data of lm-eval's own tasks is fetched where it is not kept on this machine; without `fetch` such a task `needs`
    it, and has no rows. Nor has one that runs code where only the suite lets it and not the caller (`allow_code`); with
    `fetch` that is a problem. Raises SuiteError with every problem of every task at once: a file that cannot be read, a
    key or value outside the part of lm-eval's language that `taskfile` describes, a template that does not fit the
    rows, a row without a unique `id`, a name that lm-eval does not know, code without consent.
    """
    from benchgate.quality.loglikelihood import endpoint_fault  # with what it takes to ask a server

    read: list[tuple[TaskEntry, list[PlannedTask]]] = []
    problems = [
        Problem("", None, None, f"quality.include[{number}]", f"there is no folder {folder}")
        for number, folder in enumerate(quality.include)
        if not (suite_dir / folder).is_dir()
    ]
    found_of = _read_all(suite_dir, quality, fetch=fetch, allow_code=allow_code)
    for number, (entry, found) in enumerate(zip(quality.tasks, found_of, strict=True)):
        if isinstance(found, str):
            problems.append(Problem("", None, None, f"quality.tasks[{number}]", f"{entry.task}: {found}"))
            continue
        tasks, faults = found
        problems += faults
        for task in tasks:
            if task.name in {earlier.name for _, others in read for earlier in others}:
                message = f"another task file of the suite is called {task.name!r} too; give each its own name"
                problems.append(Problem(str(suite_dir / entry.task), None, None, "task", message))
        read.append((entry, tasks))
    loaded = tuple(task for _, tasks in read for task in tasks)
    if not problems and (fault := endpoint_fault(loaded, quality.endpoint)) is not None:
        problems.append(Problem("", None, None, "quality.endpoint", fault))
    if problems:
        raise SuiteError(problems)
    return loaded


def unknown_leaves(suite: Suite, tasks: Sequence[PlannedTask]) -> list[Problem]:
    """Checks of a task of a group, like `mmlu_pro/mmlu_pro_law`, that the group has not."""
    problems = []
    for number, check in enumerate(suite.gate.checks):
        group, slash, _ = (check.task or "").partition("/")
        leaves = [task.name for task in tasks if task.name.startswith(f"{group}/")]
        if slash and check.task not in {task.name for task in tasks}:
            near = get_close_matches(str(check.task), leaves, n=1)
            hint = (
                f"did you mean {near[0]!r}?"
                if near
                else f"it has {len(leaves)}, like {leaves[0]!r}"
                if leaves
                else "it is one task"
            )
            message = f"{group!r} has no task {check.task!r}; {hint}"
            problems.append(Problem("", None, None, f"gate.checks[{number}].task", message))
    return problems


_Read = tuple[list[PlannedTask], list[Problem]]


def _read_all(suite_dir: Path, quality: Quality, *, fetch: bool, allow_code: bool) -> Iterator[_Read | str]:
    """What each entry comes to; all that lm-eval must read is read in one go."""
    refused = {entry: _code_problem(suite_dir / entry.task) for entry in quality.tasks if entry.is_file}
    coded = {entry for entry, problem in refused.items() if problem is not None}
    allowed = coded if quality.allow_unsafe_code else set()
    for_lm_eval = [entry for entry in quality.tasks if not entry.is_file or entry in allowed]
    read = partial(read_named, suite_dir, quality=quality, fetch=fetch, allow_code=allow_code)
    named = iter(read(for_lm_eval) if for_lm_eval else ())
    for entry in quality.tasks:
        problem = refused.get(entry)
        if not entry.is_file or entry in allowed:
            tasks = next(named)
            yield tasks if isinstance(tasks, str) else (tasks, [])
        elif problem is not None:
            yield [], [problem]
        else:
            yield read_file(suite_dir / entry.task, entry, quality)


def _code_problem(path: Path) -> Problem | None:
    """What is said of a task file that names functions, unless the suite lets it; None where it names none."""
    text, _ = file_text(path, "")
    found = _CODE.search(text) if text is not None else None
    if text is None or found is None:
        return None
    line, column = text.count("\n", 0, found.start(1)) + 1, found.start(1) - text.rfind("\n", 0, found.start(1))
    message = "a function is code; read it, and set `quality.allow_unsafe_code: true` to let it run on this machine"
    return Problem(str(path), line, column, "", message)


_METRIC_MISFIT = {
    "accuracy": "are scored by degrees and are not simply right or wrong",
    "score": "are right or wrong, and have no score of another scale",
}


def unfit_checks(suite: Suite, tasks: Sequence[PlannedTask]) -> Iterator[Problem]:
    """One problem for each such check; known before anything is asked, and by the rule that the gate goes by."""
    scales: dict[str, bool] = {}
    metrics: dict[str, str] = {}
    for task in tasks:
        name = unit_name(suite, task.name)
        scales[name] = scales.get(name, False) or task.scale == "continuous"
        scales[task.name] = task.scale == "continuous"
        metrics[name] = metrics[task.name] = task.metric
    units = {unit_name(suite, task.name): scales[unit_name(suite, task.name)] for task in tasks}
    for number, check in enumerate(suite.gate.checks):
        if check.metric not in _METRIC_MISFIT:
            continue
        own = check.task is not None and check.task != "each"
        judged = [str(check.task)] if own else judged_by(check, suite.gate.checks, units)
        unfit = [name for name in judged if name in scales and scales[name] != (check.metric == "score")]
        if unfit:
            name, other = unfit[0], "score" if check.metric == "accuracy" else "accuracy"
            what = f"the answers to {name} ({metrics[name]}) {_METRIC_MISFIT[check.metric]}"
            message = f"{what}; judge it by {{metric: {other}, task: {name}, margin: …}}"
            yield Problem("", None, None, f"gate.checks[{number}].metric", message)
