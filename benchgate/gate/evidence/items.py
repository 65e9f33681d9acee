"""Eval items of both arms, paired by id: the same items, every one scored.

Also counts answers that are empty, truncated or unreadable, which measure the harness and not the model.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from benchgate.gate.comparison import Comparison
from benchgate.gate.decision import inconclusive, invalid
from benchgate.model.deployment import Arm
from benchgate.model.records import INVALID_CHOICE, BoolArray, EvalItem, FloatArray
from benchgate.model.run import QualityObservation
from benchgate.stats.clusters import MIN_CLUSTERS
from benchgate.stats.evals import ScorePairs
from benchgate.suite.schema import Suite

FIX_HARNESS = "see the harness's log and the server's; nothing here speaks for or against the candidate"
MORE_TOKENS = (
    "write a larger `max_tokens` at the task in `quality.tasks`, which goes before the task's own limit and before "
    "`quality.max_tokens`, and measure again"
)


@dataclass(frozen=True, slots=True, eq=False)
class Pairs:
    """Items of one task, or of one group of tasks, in planned order; row i of every array is item i.

    `baseline_unclear` and `candidate_unclear` mark wrong answers that the token limit truncated, or without a readable
    answer: they say nothing about what the model knows, so they may neither make a loss nor offset one. `why_unclear`
    names which of the two occurred. `other_wrong` counts items that both got wrong with different answers; None if
    answers were not kept. `stopped`: the eval ended before its last item, because a regression was certain. `tasks` is
    the number of tasks, whose items follow each other.
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
        """Scores and clusters for the statistics."""
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
    """Map the task names of checks to observed tasks: a task to itself, an lm-eval group to all of its tasks."""
    units: dict[str, tuple[str, ...]] = {}
    for task in dict.fromkeys(o.task for o in comparison.judged.quality if o.repeat == 0):
        entry = suite.quality.entry(task) if suite.quality is not None else None
        name = entry.name if entry is not None else task
        units[name] = (*units.get(name, ()), task)
    return units


def is_continuous(observation: QualityObservation | None) -> bool:
    """Return True if the task's items have a numeric score instead of being right or wrong."""
    return observation is not None and observation.harness.get("scale") == "continuous"


def pair_unit(comparison: Comparison, name: str, tasks: tuple[str, ...]) -> Pairs:
    """Pair all items of the tasks by id. Raises CannotJudge if they are not the same or not all scored."""
    parts: list[Pairs] = []
    for task in tasks:
        baseline, candidate = comparison.baseline_quality(task), comparison.candidate_quality(task)
        if baseline is None or candidate is None:
            arm = "baseline" if baseline is None else "candidate"
            raise invalid(f"task {task} was not run on the {arm}", "see the faults of the targets")
        parts.append(pair_task(baseline, candidate))
    if not parts:
        raise invalid("no eval task was run", "see the faults of the targets and run the suite again")
    return parts[0] if len(parts) == 1 else _join(name, parts)


def pair_task(baseline: QualityObservation, candidate: QualityObservation) -> Pairs:
    """Pair one task's items of two observations, in the order of the baseline's. Raises CannotJudge as `pair_unit`."""
    task, stopped = baseline.task, all(one.harness.get("stopped_early") for one in (baseline, candidate))
    for observation in (baseline, candidate):
        arm = f"{observation.arm.value}{' asked again' if observation.repeat else ''}"
        if observation.fault is not None:
            raise invalid(f"task {task} failed on the {arm}: {observation.fault}", FIX_HARNESS)
        if len(observation.items) != observation.expected_n and not stopped:
            found = f"{len(observation.items)} of {observation.expected_n} items"
            raise invalid(f"task {task} has only {found} on the {arm}", FIX_HARNESS)
    rows = _match_items(task, baseline.items, candidate.items, stopped=stopped)
    continuous = is_continuous(baseline) or is_continuous(candidate)
    _require_scores(task, rows, continuous=continuous)
    clustered = any(b.cluster is not None for b, _ in rows)
    kept = not continuous and all(b.choice is not None and c.choice is not None for b, c in rows)
    return Pairs(
        name=task,
        continuous=continuous,
        baseline=np.array([b.score for b, _ in rows], dtype=np.float64),
        candidate=np.array([c.score for _, c in rows], dtype=np.float64),
        baseline_unclear=np.array([is_unclear(b) for b, _ in rows], dtype=np.bool_),
        candidate_unclear=np.array([is_unclear(c) for _, c in rows], dtype=np.bool_),
        why_unclear=" or ".join(_why_unclear(rows)),
        clusters=tuple(_cluster(task, b) for b, _ in rows) if clustered else None,
        other_wrong=sum(not b.correct and not c.correct and b.choice != c.choice for b, c in rows) if kept else None,
        stopped=stopped,
    )


def forgive_unclear_losses(one: Pairs) -> ScorePairs:
    """Return the scores as if every lost item with an unclear answer were right."""
    candidate = np.where(one.lost & one.candidate_unclear, one.baseline, one.candidate)
    return ScorePairs(one.baseline, candidate, one.clusters)


def require_clusters(paired: Sequence[Pairs]) -> None:
    """Raise CannotJudge if a task has too few clusters, or a single item beside a clustered task."""
    if all(one.clusters is None for one in paired):
        return
    for one in paired:
        found, fewest = (len(one), 2) if one.clusters is None else (len(set(one.clusters)), MIN_CLUSTERS)
        if found < fewest:
            reason = f"the items of {one.name} come in only {found} clusters, too few to know how much clusters differ"
            raise inconclusive(reason, f"use items of at least {fewest} clusters")


def is_unclear(item: EvalItem) -> bool:
    """Return True if the answer is wrong, and truncated by the token limit or without a readable answer."""
    return not item.correct and (item.finish_reason == "length" or item.choice == INVALID_CHOICE)


_Rows = list[tuple[EvalItem, EvalItem]]


def _match_items(task: str, baseline: tuple[EvalItem, ...], candidate: tuple[EvalItem, ...], *, stopped: bool) -> _Rows:
    """Match both arms' answers by id; of a task that was stopped, those to items that both had answered by then."""
    theirs, ours = ({item.item_id: item for item in items} for items in (baseline, candidate))
    same = stopped or theirs.keys() == ours.keys()
    if len(theirs) != len(baseline) or len(ours) != len(candidate) or not same:
        raise invalid(f"task {task}: the arms did not answer the same items", "give every row its own `id`")
    rows = [(item, ours[item.item_id]) for item in baseline if item.item_id in ours]
    for b, c in rows:
        if (b.doc_hash, b.prompt_hash, b.target_hash) != (c.doc_hash, c.prompt_hash, c.target_hash):
            raise invalid(f"task {task}, item {b.item_id}: the arms got different prompts", FIX_HARNESS)
        if b.cluster != c.cluster:
            raise invalid(f"task {task}, item {b.item_id}: the arms put it into different clusters", FIX_HARNESS)
    return rows


def _require_scores(task: str, rows: _Rows, *, continuous: bool) -> None:
    """Raise CannotJudge for an item without a finite score, or one that should be right or wrong and is neither."""
    for place, arm in enumerate(Arm):
        for row in rows:
            item = row[place]
            if item.score is None or item.error is not None or not math.isfinite(item.score):
                where = f"task {task}, item {item.item_id} was not scored on the {arm.value}"
                raise invalid(f"{where}: {item.error or 'it has no score'}", FIX_HARNESS)
            if not continuous and item.correct is None:
                where = f"task {task}, item {item.item_id}"
                reason = f"{where}: the {arm.value}'s score {item.score:g} is neither right nor wrong"
                raise invalid(reason, "judge the task with the metric `score`, and give it `scale: continuous`")


def _why_unclear(rows: _Rows) -> Iterator[str]:
    items = [item for pair in rows for item in pair if is_unclear(item)]
    if any(item.finish_reason == "length" for item in items):
        yield "cut short by the token limit"
    if any(item.finish_reason != "length" for item in items):
        yield "without anything that could be read as an answer"


def _cluster(task: str, item: EvalItem) -> str:
    """Return the cluster's unique name; an item without a cluster is its own."""
    return f"{task}/c/{item.cluster}" if item.cluster is not None else f"{task}/i/{item.item_id}"


def _join(name: str, parts: list[Pairs]) -> Pairs:
    """Concatenate a group's tasks: every item counts the same, as in the group's own score."""
    clustered = any(part.clusters is not None for part in parts)
    wrong = [part.other_wrong for part in parts]
    known = [count for count in wrong if count is not None]

    def joined(column: str) -> FloatArray:
        return np.concatenate([getattr(part, column) for part in parts])

    def labels(part: Pairs) -> tuple[str, ...]:
        return part.clusters if part.clusters is not None else tuple(f"{part.name}/i/{i}" for i in range(len(part)))

    return Pairs(
        name=name,
        continuous=any(part.continuous for part in parts),
        baseline=joined("baseline"),
        candidate=joined("candidate"),
        baseline_unclear=joined("baseline_unclear") == 1,
        candidate_unclear=joined("candidate_unclear") == 1,
        why_unclear=" or ".join(dict.fromkeys(part.why_unclear for part in parts if part.why_unclear)),
        clusters=tuple(label for part in parts for label in labels(part)) if clustered else None,
        other_wrong=sum(known) if len(known) == len(wrong) else None,
        stopped=any(part.stopped for part in parts),
        tasks=len(parts),
    )


_FEW_FAULTY = 2
"""Number of faulty answers that is never too many: of 50 items a single one is 2 %."""

Arms = tuple[QualityObservation, QualityObservation]
Units = Mapping[str, Sequence[Arms]]
"""Task names of checks → the observed tasks of each, on both arms."""


def too_many(faulty: float, n: int, allowed: float) -> bool:
    """Return True if over the allowed share of n answers is faulty, and over two; if none is allowed, any."""
    return faulty > (max(_FEW_FAULTY, allowed * n) if allowed > 0 else 0)


def is_empty(item: EvalItem) -> bool:
    """Return True if the answer has nothing but white space."""
    return not (item.answer or "").strip()
