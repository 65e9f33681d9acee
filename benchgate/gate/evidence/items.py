"""Eval items and shadow prompts, paired by id, and those whose answers cannot be compared.

Answers that are empty, truncated or unreadable measure the harness and not the model. Where answers are compared by
embeddings, the similarity of some may be missing: they differ in letters, and perhaps not in meaning. Counted as
different, they would make the baseline look noisy, which hides a broken candidate, or make an equal candidate look
broken. So they are left out, and the result must hold even if all of them had differed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from benchgate.gate.comparison import Comparison, TiedRuns
from benchgate.gate.decision import inconclusive, invalid
from benchgate.model.deployment import Arm
from benchgate.model.records import (
    INVALID_CHOICE,
    AnswerAgreement,
    BoolArray,
    EvalItem,
    FloatArray,
    PairFacts,
    ShadowItem,
    finite_score,
)
from benchgate.model.run import Evidence, QualityObservation
from benchgate.stats.clusters import MIN_CLUSTERS, label_units
from benchgate.stats.evals import Excess, ScorePairs
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
    names which of the two occurred. `chance` is the mean score of guessing, 0 where it is unknown. `other_wrong` counts
    items that both got wrong with different answers; None if answers were not kept. `stopped`: the eval ended before
    its last item, because a regression was certain. `items` are the baseline's; `tasks` is the number of tasks, whose
    items follow each other.
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
    chance: float
    items: tuple[EvalItem, ...]
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
        name = suite.unit_name(task)
        units[name] = (*units.get(name, ()), task)
    return units


def is_continuous(observation: QualityObservation | None) -> bool:
    """Return True if the task's items have a numeric score instead of being right or wrong."""
    return observation is not None and observation.harness.get("scale") == "continuous"


def chance_of(observation: QualityObservation) -> float | None:
    """Return the mean score of guessing among the options of a task's items; None if it is unknown."""
    chance = observation.harness.get("chance")
    return float(chance) if isinstance(chance, int | float) and 0 < chance < 1 else None


def pair_unit(comparison: Comparison, name: str, tasks: tuple[str, ...]) -> Pairs:
    """Pair all items of the tasks by id. Raises CannotJudge if they are not the same or not all scored."""
    return _join(name, _pair_tasks(comparison, tasks))


def pair_units(comparison: Comparison, units: Mapping[str, tuple[str, ...]]) -> list[Pairs]:
    """Pair the items of every unit. Documents that several units ask make clusters that these have in common.

    Raises CannotJudge as `pair_unit`, and for a unit without items that was not stopped.
    """
    if not units:
        raise invalid("no eval task of this kind was run", "see the faults of the targets and run the suite again")
    parts = [_pair_tasks(comparison, tasks) for tasks in units.values()]
    labels = cluster_labels_of_units([[part.items for part in of] for of in parts])
    paired = []
    for name, of, clusters in zip(units, parts, labels, strict=True):
        one = replace(_join(name, of), clusters=clusters)
        if len(one) == 0 and not one.stopped:
            raise invalid(f"there are no items in {name}", "give the task rows, or raise `limit`")
        paired.append(one)
    return paired


def _pair_tasks(comparison: Comparison, tasks: Sequence[str]) -> list[Pairs]:
    parts: list[Pairs] = []
    for task in tasks:
        baseline, candidate = comparison.baseline_quality(task), comparison.candidate_quality(task)
        if baseline is None or candidate is None:
            arm = "baseline" if baseline is None else "candidate"
            raise invalid(f"task {task} was not run on the {arm}", "see the faults of the targets")
        parts.append(pair_task(baseline, candidate))
    return parts


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
    unclear = [item for pair in rows for item in pair if is_unclear(item)]
    why = []
    if any(item.finish_reason == "length" for item in unclear):
        why.append("cut short by the token limit")
    if any(item.finish_reason != "length" for item in unclear):
        why.append("without anything that could be read as an answer")
    items = tuple(b for b, _ in rows)
    kept = not continuous and all(b.choice is not None and c.choice is not None for b, c in rows)
    return Pairs(
        name=task,
        continuous=continuous,
        baseline=np.array([b.score for b, _ in rows], dtype=np.float64),
        candidate=np.array([c.score for _, c in rows], dtype=np.float64),
        baseline_unclear=np.array([is_unclear(b) for b, _ in rows], dtype=np.bool_),
        candidate_unclear=np.array([is_unclear(c) for _, c in rows], dtype=np.bool_),
        why_unclear=" or ".join(why),
        clusters=cluster_labels([items]),
        other_wrong=sum(not b.correct and not c.correct and b.choice != c.choice for b, c in rows) if kept else None,
        stopped=stopped,
        chance=chance_of(baseline) or 0.0,
        items=items,
    )


def mean_over_tasks(scores: Sequence[FloatArray]) -> float:
    """Return the mean over tasks of their means: each has equal weight."""
    return sum(float(np.mean(one)) for one in scores) / len(scores)


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


def cluster_labels(tasks: Sequence[Sequence[EvalItem]]) -> tuple[str, ...] | None:
    """Return the cluster of each item of a task, or of a group's tasks; None if every item is its own."""
    return cluster_labels_of_units([tasks])[0]


def cluster_labels_of_units(units: Sequence[Sequence[Sequence[EvalItem]]]) -> list[tuple[str, ...] | None]:
    """Return the cluster of each item of tasks and groups that are averaged; units that ask one document share it."""
    return label_units([[[(item.cluster, item.doc_hash) for item in items] for items in tasks] for tasks in units])


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
    for place, arm in enumerate(Arm):
        for row in rows:
            item = row[place]
            if item.error is not None or finite_score(item.score) is None:
                where = f"task {task}, item {item.item_id} was not scored on the {arm.value}"
                found = "it has no score" if item.score is None else f"{item.score:g} is no score"
                raise invalid(f"{where}: {item.error or found}", FIX_HARNESS)
            if not continuous and item.correct is None:
                where = f"task {task}, item {item.item_id}"
                reason = f"{where}: the {arm.value}'s score {item.score:g} is neither right nor wrong"
                raise invalid(reason, "judge the task with the metric `score`, and give it `scale: continuous`")


def _join(name: str, parts: list[Pairs]) -> Pairs:
    """Concatenate a group's tasks: every item counts the same, as in the group's own score. One task is itself."""
    if len(parts) == 1:
        return parts[0]
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
        clusters=cluster_labels([part.items for part in parts]),
        other_wrong=sum(known) if len(known) == len(wrong) else None,
        stopped=any(part.stopped for part in parts),
        chance=sum(part.chance * len(part) for part in parts) / max(sum(map(len, parts)), 1),
        items=tuple(item for part in parts for item in part.items),
        tasks=len(parts),
    )


_FEW_FAULTY = 2  # number of faulty answers that is never too many: of 50 items a single one is 2 %

Arms = tuple[QualityObservation, QualityObservation]
Units = Mapping[str, Sequence[Arms]]  # task names of checks → the observed tasks of each, on both arms


def too_many(faulty: float, n: int, allowed: float) -> bool:
    """Return True if over the allowed share of n answers is faulty, and over two; if none is allowed, any."""
    return faulty > (max(_FEW_FAULTY, allowed * n) if allowed > 0 else 0)


def is_empty(item: EvalItem) -> bool:
    """Return True if the answer has nothing but white space."""
    return not (item.answer or "").strip()


MAX_UNANSWERED = 0.01
"""Share of prompts that the baseline may leave unanswered; they are left out. Of few prompts, two may be."""

MAX_WITHOUT_SIMILARITY = 0.05  # share of prompts whose similarity may be missing; one prompt always may

MEASURE_AGAIN = "see the server's log and measure again"
_CHECK_EMBEDDINGS = "see what the embeddings endpoint replies to texts like these, and measure again"

DIFFERENT = PairFacts(AnswerAgreement.DIFFERENT, differs=True, exact=False, normalised=False)
_IDENTICAL = PairFacts(AnswerAgreement.EXACT, differs=False, exact=True, normalised=True)

RowPairs = tuple[tuple[ShadowItem, ShadowItem], ...]
"""The judged run's rows, each with that of the run it is compared with."""


def usable_rows(evidence: Evidence) -> tuple[ShadowItem, ...]:
    """Return the prompts that the baseline answered, by id. Raises CannotJudge for an incomplete shadow comparison.

    A prompt that the candidate left unanswered stays and counts against it.
    """
    shadow = evidence.shadow
    if shadow is None:
        raise invalid("the shadow comparison was not made", MEASURE_AGAIN)
    if shadow.fault is not None:
        raise invalid(f"the shadow comparison failed: {shadow.fault}", MEASURE_AGAIN)
    if len(shadow.items) != shadow.expected_n or shadow.expected_n == 0:
        raise invalid(f"only {len(shadow.items)} of {shadow.expected_n} prompts were shadowed", MEASURE_AGAIN)
    if len({item.prompt_id for item in shadow.items}) != len(shadow.items):
        raise invalid("some prompts of the shadow comparison have the same id", MEASURE_AGAIN)
    answered: list[ShadowItem] = []
    missing: list[ShadowItem] = []
    for item in shadow.items:
        complete = item.primary is not None and (item.secondary is not None or bool(item.once))
        (answered if complete else missing).append(item)
    if too_many(len(missing), len(shadow.items), MAX_UNANSWERED):
        first = f"first {missing[0].prompt_id}: {missing[0].error}"
        raise invalid(f"the baseline itself failed on {len(missing)} prompts, {first}", MEASURE_AGAIN)
    return tuple(sorted(answered, key=lambda item: item.prompt_id))


def paired_rows(comparison: Comparison) -> RowPairs:
    """Pair the judged run's rows with those of the reference run by prompt; without a reference, with themselves.

    Raises CannotJudge if either run is unusable or they shadowed different prompts.
    """
    judged = usable_rows(comparison.judged)
    if not isinstance(comparison, TiedRuns):
        return tuple((row, row) for row in judged)
    reference = {row.prompt_id: row for row in usable_rows(comparison.reference)}
    prompts = [
        {item.prompt_id: (item.prompt_sha256, bool(item.once)) for item in run.shadow.items}
        for run in comparison.runs
        if run.shadow is not None
    ]
    if prompts[0] != prompts[1]:
        raise invalid("the two runs shadowed different prompts", MEASURE_AGAIN)
    return tuple((row, reference[row.prompt_id]) for row in judged if row.prompt_id in reference)


def unanswered_notes(comparison: Comparison, used: int) -> list[str]:
    """Return a note on the prompts left out because the baseline did not answer them."""
    shadow = comparison.judged.shadow
    missing = 0 if shadow is None else len(shadow.items) - used
    return [f"{missing} of {used + missing} prompts left out: the baseline did not answer them"] if missing else []


def lacks_similarity(row: ShadowItem) -> bool:
    """Return True if answers could not be compared. A candidate without an answer differs in any case."""
    return row.similarity_error is not None and row.candidate is not None


def require_similarity(rows: tuple[ShadowItem, ...]) -> None:
    """Raise CannotJudge if the similarity of too many prompts is missing."""
    missing = [row for row in rows if lacks_similarity(row)]
    if missing and not len(rows) > len(missing) <= max(1.0, MAX_WITHOUT_SIMILARITY * len(rows)):
        reason = f"the answers to {len(missing)} of {len(rows)} prompts could not be compared by their embeddings"
        raise invalid(f"{reason}: {missing[0].similarity_error}", _CHECK_EMBEDDINGS)


def pairs_with_similarity(pairs: RowPairs) -> RowPairs:
    """Return the pairs whose answers were compared in both runs."""
    return tuple(pair for pair in pairs if not any(map(lacks_similarity, pair)))


def require_pass_at_worst(
    excess: Excess, pairs: RowPairs, margin: float, measure: Callable[[RowPairs], Excess | None]
) -> None:
    """Raise CannotJudge if a PASS would not hold, had all candidate answers without a similarity been different."""
    missing = len(pairs) - len(pairs_with_similarity(pairs))
    if not missing or excess.limits.upper >= margin:
        return
    worst = measure(tuple((_compared_as(ours, DIFFERENT), _compared_as(theirs, _IDENTICAL)) for ours, theirs in pairs))
    if worst is None or worst.limits.upper >= margin:
        reason = f"depends on {missing} prompts whose similarity is missing: "
        raise inconclusive(f"{reason}if those answers were different, the margin would not be held", _CHECK_EMBEDDINGS)


def _compared_as(row: ShadowItem, candidate: PairFacts) -> ShadowItem:
    """Fill in a missing similarity: the candidate's as given, and a baseline that agrees with itself."""
    if not lacks_similarity(row):
        return row
    return replace(row, with_primary=candidate, with_secondary=candidate, own=_IDENTICAL)
