"""Checks of evals that could never be judged: of another kind of score than that of the tasks they look at."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from benchgate.errors import Problem
from benchgate.gate.policy import judged_by
from benchgate.plan.items import PlannedTask
from benchgate.suite.schema import Suite

_OF = {
    "accuracy": "are scored by degrees and are not simply right or wrong",
    "score": "are right or wrong, and have no score of another scale",
}


def unfit_checks(suite: Suite, tasks: Sequence[PlannedTask]) -> Iterator[Problem]:
    """One problem for each such check; known before anything is asked, and by the rule that the gate goes by."""
    scales: dict[str, bool] = {}
    metrics: dict[str, str] = {}
    for task in tasks:
        name = suite.unit_name(task.name)
        scales[name] = scales.get(name, False) or task.scale == "continuous"
        scales[task.name] = task.scale == "continuous"
        metrics[name] = metrics[task.name] = task.metric
    units = {suite.unit_name(task.name): scales[suite.unit_name(task.name)] for task in tasks}
    for number, check in enumerate(suite.gate.checks):
        if check.metric not in _OF:
            continue
        own = check.task is not None and check.task != "each"
        judged = [str(check.task)] if own else judged_by(check, suite.gate.checks, units)
        unfit = [name for name in judged if name in scales and scales[name] != (check.metric == "score")]
        if unfit:
            name, other = unfit[0], "score" if check.metric == "accuracy" else "accuracy"
            what = f"the answers to {name} ({metrics[name]}) {_OF[check.metric]}"
            message = f"{what}; judge it by {{metric: {other}, task: {name}, margin: …}}"
            yield Problem("", None, None, f"gate.checks[{number}].metric", message)
