"""The items of both arms side by side: the same ones, every one scored, or why nothing can be said of them.

Answers with nothing in them, cut short or unreadable: how many of them make an eval say nothing of a model.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from benchgate.gate.comparison import Comparison
from benchgate.gate.decision import Problem
from benchgate.model.deployment import Arm
from benchgate.model.records import INVALID_CHOICE, BoolArray, EvalItem, FloatArray
from benchgate.model.run import QualityObservation
from benchgate.model.verdict import Outcome
from benchgate.stats.clusters import MIN_CLUSTERS
from benchgate.stats.evals import ScorePairs
from benchgate.suite.schema import Suite

MEND_HARNESS = "see the harness's log and the server's; nothing here speaks for or against the candidate"
MORE_TOKENS = (
    "write a larger `max_tokens` at the task in `quality.tasks`, which goes before the task's own limit and before "
    "`quality.max_tokens`, and measure again"
)


@dataclass(frozen=True, slots=True, eq=False)
class Pairs:
    """One task, or one group of tasks, item by item in planned order; row i of every array is item i.

    `unclear` are wrong answers that the token limit cut short, or in which nothing was found that could be an answer:
    they say nothing about what the model knows, so they may neither make a loss nor pay for one; `why_unclear` says
    which of it there was. `other_wrong` counts the items that both got wrong with different answers; None where
    answers were not kept. `stopped` says that the eval ended before its last item, because harm was already certain.
    `tasks` is of how many tasks the items are, one after the other.
    """

    name: str
    continuous: bool
    baseline: FloatArray
    candidate: FloatArray
    baseline_unclear: BoolArray
    candidate_unclear: BoolArray
    why_unclear: str
    clusters: tuple[str, ...] | None
    other_wrong: int | None
    stopped: bool
    tasks: int = 1

    def __len__(self) -> int:
        return len(self.baseline)

    @property
    def scores(self) -> ScorePairs:
        """The scores alone, as statistics take them."""
        return ScorePairs(self.baseline, self.candidate, self.clusters)

    @property
    def lost(self) -> BoolArray:
        """Items that only the baseline got right."""
        lost: BoolArray = (self.baseline == 1) & (self.candidate != 1)
        return lost

    @property
    def gained(self) -> BoolArray:
        """Items that only the candidate got right."""
        gained: BoolArray = (self.candidate == 1) & (self.baseline != 1)
        return gained


def units_of(suite: Suite, comparison: Comparison) -> Mapping[str, tuple[str, ...]]:
    """What checks call a task → the observed tasks that it consists of: itself, or all of a group of lm-eval's."""
    units: dict[str, tuple[str, ...]] = {}
    for task in dict.fromkeys(o.task for o in comparison.judged.quality if o.repeat == 0):
        entry = suite.quality.entry(task) if suite.quality is not None else None
        name = entry.name if entry is not None else task
        units[name] = (*units.get(name, ()), task)
    return units


def is_continuous(observation: QualityObservation | None) -> bool:
    """Whether the task's items have a score of some scale rather than being right or wrong."""
    return observation is not None and observation.harness.get("scale") == "continuous"


def pair_unit(comparison: Comparison, name: str, tasks: tuple[str, ...]) -> Pairs | Problem:
    """All items of the tasks, paired by their own ids; a Problem when they are not the same or not all scored."""
    parts: list[Pairs] = []
    for task in tasks:
        baseline, candidate = comparison.baseline_quality(task), comparison.candidate_quality(task)
        if baseline is None or candidate is None:
            arm = "baseline" if baseline is None else "candidate"
            return invalid(f"task {task} was not run on the {arm}", "see the faults of the targets")
        paired = pair_task(baseline, candidate)
        if isinstance(paired, Problem):
            return paired
        parts.append(paired)
    if not parts:
        return invalid("no eval task was run", "see the faults of the targets and run the suite again")
    return parts[0] if len(parts) == 1 else _joined(name, parts)


def pair_task(baseline: QualityObservation, candidate: QualityObservation) -> Pairs | Problem:
    """One task's items of two observations, in the order of the baseline's."""
    task, stopped = baseline.task, all(_stopped(o) for o in (baseline, candidate))
    for observation in (baseline, candidate):
        if observation.fault is not None:
            return invalid(f"task {task} failed on the {_arm(observation)}: {observation.fault}", MEND_HARNESS)
        if len(observation.items) != observation.expected_n and not stopped:
            found = f"{len(observation.items)} of {observation.expected_n} items"
            return invalid(f"task {task} has only {found} on the {_arm(observation)}", MEND_HARNESS)
    rows = _same_items(task, baseline.items, candidate.items, stopped=stopped)
    if isinstance(rows, Problem):
        return rows
    continuous = is_continuous(baseline) or is_continuous(candidate)
    problem = next(_unscored(task, rows, continuous=continuous), None)
    return problem if problem is not None else _pairs(task, rows, continuous=continuous, stopped=stopped)


def forgiven_losses(one: Pairs) -> ScorePairs:
    """The scores, were every lost item right of which the answer says nothing about the model."""
    candidate = np.where(one.lost & one.candidate_unclear, one.baseline, one.candidate)
    return ScorePairs(one.baseline, candidate, one.clusters)


def few_clusters(paired: Sequence[Pairs]) -> Problem | None:
    """Too few clusters to know how much they differ, or, beside a clustered task, one with a single item."""
    if all(one.clusters is None for one in paired):
        return None
    for one in paired:
        found, fewest = (len(one), 2) if one.clusters is None else (len(set(one.clusters)), MIN_CLUSTERS)
        if found < fewest:
            reason = f"the items of {one.name} come in only {found} clusters, too few to know how much clusters differ"
            return Problem(Outcome.INCONCLUSIVE, reason, f"use items of at least {fewest} clusters")
    return None


def unclear(item: EvalItem) -> bool:
    """Wrong, and cut short by the token limit or without anything that could be read as an answer."""
    return not item.correct and (item.finish_reason == "length" or item.choice == INVALID_CHOICE)


def _arm(observation: QualityObservation) -> str:
    again = " asked again" if observation.repeat else ""
    return f"{observation.arm.value}{again}"


def _stopped(observation: QualityObservation) -> bool:
    return bool(observation.harness.get("stopped_early"))


_Rows = list[tuple[EvalItem, EvalItem]]


def _same_items(
    task: str, baseline: tuple[EvalItem, ...], candidate: tuple[EvalItem, ...], *, stopped: bool
) -> _Rows | Problem:
    """Both arms' answers to each item; of a task that was stopped, of each item that both had answered by then."""
    theirs, ours = ({item.item_id: item for item in items} for items in (baseline, candidate))
    same = stopped or theirs.keys() == ours.keys()
    if len(theirs) != len(baseline) or len(ours) != len(candidate) or not same:
        return invalid(f"task {task}: the arms did not answer the same items", "give every row its own `id`")
    rows = [(item, ours[item.item_id]) for item in baseline if item.item_id in ours]
    for b, c in rows:
        if (b.doc_hash, b.prompt_hash, b.target_hash) != (c.doc_hash, c.prompt_hash, c.target_hash):
            return invalid(f"task {task}, item {b.item_id}: the arms got different prompts", MEND_HARNESS)
        if b.cluster != c.cluster:
            return invalid(f"task {task}, item {b.item_id}: the arms put it into different clusters", MEND_HARNESS)
    return rows


def _unscored(task: str, rows: _Rows, *, continuous: bool) -> Iterator[Problem]:
    """Items without a score that can be judged; what is not a finite number is none."""
    for place, arm in enumerate(Arm):
        for row in rows:
            item = row[place]
            if item.score is None or item.error is not None or not math.isfinite(item.score):
                where = f"task {task}, item {item.item_id} was not scored on the {arm.value}"
                yield invalid(f"{where}: {item.error or 'it has no score'}", MEND_HARNESS)
            elif not continuous and item.correct is None:
                where = f"task {task}, item {item.item_id}"
                what = f"{where}: the {arm.value}'s score {item.score:g} is neither right nor wrong"
                yield invalid(what, "judge the task with the metric `score`, and say `scale: continuous` of it")


def _pairs(task: str, rows: _Rows, *, continuous: bool, stopped: bool) -> Pairs:
    clustered = any(b.cluster is not None for b, _ in rows)
    kept = not continuous and all(b.choice is not None and c.choice is not None for b, c in rows)
    return Pairs(
        name=task,
        continuous=continuous,
        baseline=_column(rows, lambda b, c: b.score),
        candidate=_column(rows, lambda b, c: c.score),
        baseline_unclear=_column(rows, lambda b, c: unclear(b)) == 1,
        candidate_unclear=_column(rows, lambda b, c: unclear(c)) == 1,
        why_unclear=" or ".join(_why_unclear(rows)),
        clusters=tuple(_cluster(task, b) for b, _ in rows) if clustered else None,
        other_wrong=sum(not b.correct and not c.correct and b.choice != c.choice for b, c in rows) if kept else None,
        stopped=stopped,
    )


def _why_unclear(rows: _Rows) -> Iterator[str]:
    items = [item for pair in rows for item in pair if unclear(item)]
    if any(item.finish_reason == "length" for item in items):
        yield "cut short by the token limit"
    if any(item.finish_reason != "length" for item in items):
        yield "without anything that could be read as an answer"


def _column(rows: _Rows, value_of: Callable[[EvalItem, EvalItem], float | None]) -> FloatArray:
    return np.array([value_of(b, c) for b, c in rows], dtype=np.float64)


def _cluster(task: str, item: EvalItem) -> str:
    """Its cluster; an item without one is its own, and no other can have its name."""
    return f"{task}/c/{item.cluster}" if item.cluster is not None else f"{task}/i/{item.item_id}"


def _joined(name: str, parts: list[Pairs]) -> Pairs:
    """A group's tasks one after the other: every item counts the same, as in the group's own score."""
    clustered = any(part.clusters is not None for part in parts)
    wrong = [part.other_wrong for part in parts]
    known = [count for count in wrong if count is not None]

    def joined(column: str) -> FloatArray:
        return np.concatenate([getattr(part, column) for part in parts])

    return Pairs(
        name=name,
        continuous=any(part.continuous for part in parts),
        baseline=joined("baseline"),
        candidate=joined("candidate"),
        baseline_unclear=joined("baseline_unclear") == 1,
        candidate_unclear=joined("candidate_unclear") == 1,
        why_unclear=" or ".join(dict.fromkeys(part.why_unclear for part in parts if part.why_unclear)),
        clusters=tuple(label for part in parts for label in _labels(part)) if clustered else None,
        other_wrong=sum(known) if len(known) == len(wrong) else None,
        stopped=any(part.stopped for part in parts),
        tasks=len(parts),
    )


def _labels(part: Pairs) -> tuple[str, ...]:
    return part.clusters if part.clusters is not None else tuple(f"{part.name}/i/{i}" for i in range(len(part)))


def invalid(reason: str, advice: str) -> Problem:
    """The evidence is not usable."""
    return Problem(Outcome.INVALID, reason, advice)


_ODD = 2
"""So many odd answers say nothing, however few there are in all: of 50 items a single one is 2 %."""

Arms = tuple[QualityObservation, QualityObservation]
Units = Mapping[str, Sequence[Arms]]
"""What checks call a task → the observed tasks that it consists of, on both arms."""


def too_many(odd: float, n: int, allowed: float) -> bool:
    """Whether more of n answers are odd than the allowed share, and than two; where none is allowed, any."""
    return odd > (max(_ODD, allowed * n) if allowed > 0 else 0)


def is_empty(item: EvalItem) -> bool:
    """Nothing in it but spaces."""
    return not (item.answer or "").strip()
