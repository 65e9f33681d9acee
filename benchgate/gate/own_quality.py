"""How well one arm of a run answers its evals, from stored numbers, and how many tokens a right answer takes."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

from benchgate.gate.metric_limits import ALPHA
from benchgate.model.deployment import Arm
from benchgate.model.run import MetricRow, QualityObservation
from benchgate.stats.clusters import FEWEST_CLUSTERS, ClusterMean, cluster_mean, pooled
from benchgate.stats.limits import Limits
from benchgate.stats.recovered import Figure, weighted_sum
from benchgate.suite.schema import Suite

_FEWEST_ITEMS = 30  # of a mean by Student's t
Asked = Mapping[str, int]
"""Tasks that are right or wrong as they were observed, with their items."""


def tasks_asked(rows: Sequence[MetricRow], arm: Arm) -> Asked:
    """What an arm answered whole."""
    return {row.task: row.n for row in rows if row.arm is arm and row.name == "accuracy_ratio" and row.task is not None}


def own_accuracy(rows: Sequence[MetricRow], suite: Suite, arm: Arm, asked: Asked) -> Figure | str:
    """The mean over the suite's tasks of the share that is right, each task with equal weight; else why there is none.

    As a check of `accuracy` that names no task has it: a group of lm-eval's is one task, of all its items. Tasks that
    are scored by degrees are in no share. `asked` is what every arm beside it must have answered as well.
    """
    if suite.quality is None:
        return "the suite has no evals"
    if not asked:
        return "no eval of the suite that is right or wrong was answered whole"
    own = {r.task: r for r in rows if r.arm is arm and r.name == "accuracy_ratio" and r.task is not None}
    for task, n in asked.items():
        if task not in own or own[task].n != n:
            return f"task {task} was not answered whole on the {arm.value}"
    scored = {row.task for row in rows if row.arm is arm and row.name == "score"}
    seen = {_unit(suite, task) for task in (*asked, *scored) if task is not None}
    missing = [name for name in suite.quality.names if name not in seen]
    if missing:
        return f"task {missing[0]} was not answered whole on the {arm.value}"
    units: dict[str, list[MetricRow]] = {}
    for task in asked:
        units.setdefault(_unit(suite, task), []).append(own[task])
    parts = [(row.n / sum(one.n for one in of) / len(units), _figure(row)) for of in units.values() for row in of]
    return weighted_sum(parts)


def tokens_per_correct(observed: Sequence[QualityObservation], suite: Suite, arm: Arm, asked: Asked) -> Figure | str:
    """Output tokens that the evals took for each right answer: mean tokens of an item over accuracy, tasks as there.

    A ratio R = T/A of two means over the same items: its error is that of the mean of t - R·c (the delta method), on
    the log scale divided by T. Counts what the evals generated and nothing else.
    """
    found = {one.task: one for one in observed if one.arm is arm and one.repeat == 0}
    units: dict[str, list[QualityObservation]] = {}
    for task, n in asked.items():
        if task not in found or len(found[task].items) != n:
            return f"the items of task {task} are not there"
        units.setdefault(_unit(suite, task), []).append(found[task])
    tokens, right = dict[str, list[float]](), dict[str, list[float]]()
    for name, of in units.items():
        items = [item for one in of for item in one.items]
        counts = [float(item.output_tokens) for item in items if item.output_tokens is not None]
        if len(counts) < len(items):
            return f"how many tokens were generated for {name} is not known of every item"
        tokens[name], right[name] = counts, [float(item.correct is True) for item in items]
    if not units:
        return "no eval of the suite that is right or wrong was answered whole"
    spent, share = (sum(sum(v) / len(v) for v in each.values()) / len(units) for each in (tokens, right))
    if spent <= 0 or share <= 0:
        return "nothing was generated" if spent <= 0 else "no answer is right"
    rest = {name: np.array(tokens[name]) - spent / share * np.array(right[name]) for name in units}
    means = [cluster_mean(rest[name], _clusters(of)) for name, of in units.items()]
    limits = _around(spent / share, means, [_clusters(of) is not None for of in units.values()], spent)
    return Figure(spent / share, limits)


def _around(
    value: float, means: Sequence[ClusterMean | None], clustered: Sequence[bool], spent: float
) -> Limits | None:
    """Limits on the log scale; None where items or clusters are too few to know how much they differ."""
    known = [
        mean
        for mean, together in zip(means, clustered, strict=True)
        if mean is not None and mean.clusters >= (FEWEST_CLUSTERS if together else _FEWEST_ITEMS)
    ]
    if len(known) < len(means):
        return None
    whole = pooled(known)
    if whole.error == 0:
        return None
    reach = (whole.limits(ALPHA).upper - whole.mean) / spent
    return Limits(value * math.exp(-reach), value * math.exp(reach))


def _unit(suite: Suite, task: str) -> str:
    entry = suite.quality.entry(task) if suite.quality is not None else None
    return entry.name if entry is not None else task


def _clusters(of: Sequence[QualityObservation]) -> list[str] | None:
    """Which items go together; None where none do."""
    items = [(one.task, item) for one in of for item in one.items]
    if all(item.cluster is None for _, item in items):
        return None
    return [f"{task}/{item.cluster or item.item_id}" for task, item in items]


def _figure(row: MetricRow) -> Figure:
    if row.lower is None or row.upper is None:
        return Figure(row.value, None)
    return Figure(row.value, Limits(row.lower, row.upper))
