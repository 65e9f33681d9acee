"""Guards over evals and shadow answers: same requests to both arms, usable answers, and a sound baseline.

They find scores that measure the harness, the token limit or a broken baseline instead of the candidate. A second
asking of the baseline is examined by `gate.checks.flips`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from benchgate.gate.comparison import Comparison
from benchgate.gate.decision import CannotJudge
from benchgate.gate.evidence.items import (
    MORE_TOKENS,
    Arms,
    Pairs,
    Units,
    chance_of,
    cluster_labels,
    is_continuous,
    is_empty,
    is_unclear,
    pair_task,
    too_many,
)
from benchgate.gate.guards.base import EVALS, QUALITY, SHADOW, Need, NotApplicable, Passed, Violation, guard
from benchgate.model.deployment import Arm
from benchgate.model.records import EvalItem
from benchgate.model.run import Evidence, QualityObservation
from benchgate.model.verdict import Unit
from benchgate.stats.clusters import MIN_CLUSTERS, mean_share_limits
from benchgate.stats.distributions import Limits
from benchgate.stats.evals import ScorePairs, accuracy_regression, score_regression
from benchgate.stats.proportions import clopper_pearson
from benchgate.suite.quality import TaskEntry
from benchgate.suite.schema import Suite
from benchgate.units import show_percent

_MIN_ITEMS = 30  # with fewer items, a share of right answers tells little about guessing


@dataclass(frozen=True, eq=False)
class Evals:
    """Eval answers of both arms: `arms` by observed task, `units` by the task names of checks (a task or a group)."""

    judged: Evidence
    arms: Mapping[str, Arms]
    units: Units

    @classmethod
    def of(cls, comparison: Comparison, suite: Suite) -> Evals:
        """Return the first answers of both sides to each task that both answered."""
        arms: dict[str, Arms] = {}
        units: dict[str, list[Arms]] = {}
        for task in dict.fromkeys(o.task for o in comparison.judged.quality if o.repeat == 0):
            baseline, candidate = comparison.baseline_quality(task), comparison.candidate_quality(task)
            if baseline is not None and candidate is not None:
                arms[task] = (baseline, candidate)
                units.setdefault(suite.unit_name(task), []).append(arms[task])
        return cls(comparison.judged, arms, units)

    @cached_property
    def paired(self) -> Mapping[str, Pairs | CannotJudge]:
        """Items of each task, or why they cannot be paired."""
        paired: dict[str, Pairs | CannotJudge] = {}
        for task, arms in self.arms.items():
            try:
                paired[task] = pair_task(*arms)
            except CannotJudge as cannot:
                paired[task] = cannot
        return paired


# --- Empty and unreadable answers -------------------------------------------------------------------------------------

_MOST_RATE_GAP = 0.01  # arms whose rates of empty answers differ by more than a point did not do the same task
_MOST_COUNT_GAP = 2  # a difference of two answers is no evidence: of 50 items a single one is 2 %


@guard("answers-not-empty", "the answers are not empty", invalidates=QUALITY, needs=EVALS)
def answers_not_empty(evals: Evals, suite: Suite) -> Violation | None:
    """Flag empty answers of either arm.

    More than `max_empty_ratio` and more than two of an arm's answers to a task or group are empty (if the ratio is 0 %,
    any), or the arms' rates differ by more than a point and their counts by more than two.
    """
    remedy = f"{MORE_TOKENS}; see whether the server returns its answer in another field"
    allowed = suite.quality.max_empty_ratio if suite.quality else 0.0
    for name, tasks in evals.units.items():
        counts = _count_on_both(tasks, is_empty)
        for (faulty, n), arm in zip(counts, Arm, strict=True):
            if too_many(faulty, n, allowed):
                return Violation(f"{faulty / n:.1%} of the {arm.value}'s answers to {name} are empty", remedy)
        if _differ(counts):
            return Violation(f"the arms' rates of empty answers to {name} differ", remedy)
    return None


@guard("answers-readable", "answers that are not right are whole and readable", invalidates=QUALITY, needs=EVALS)
def answers_readable(evals: Evals, suite: Suite) -> Violation | Passed | None:
    """Flag a baseline whose answers are truncated or unreadable: it measures the token limit or the extraction.

    More than `max_empty_ratio` and more than two of the baseline's answers to a task or group are wrong, and truncated
    by the token limit or without a readable answer (`[invalid]`). A candidate that rambles to the limit is broken
    itself, and is judged. A task scored by degrees has no wrong answers: truncated answers of either arm count, and the
    arms must not differ, as for `answers-not-empty`.
    """
    allowed = suite.quality.max_empty_ratio if suite.quality else 0.0
    for name, tasks in evals.units.items():
        counts = _count_on_both(tasks, is_unclear)
        theirs, ours = (faulty / n if n else 0.0 for faulty, n in counts)
        by_degrees = any(is_continuous(baseline) for baseline, _ in tasks)
        if too_many(*counts[0], allowed) or (by_degrees and (too_many(*counts[1], allowed) or _differ(counts))):
            reason = f"{theirs:.1%} of the baseline's answers to {name} are wrong and cut short or unreadable"
            if by_degrees:
                both = f"{theirs:.1%} of the baseline's and {ours:.1%} of the candidate's answers to {name}"
                reason = f"{both} are cut short or unreadable"
            return Violation(reason, f"{MORE_TOKENS}; where answers are whole, see why nothing is read out of them")
    imported = (one for arms in evals.arms.values() for one in arms if one.harness.get("imported"))
    if any(item.finish_reason is None for one in imported for item in one.items):
        return Passed("answers that are not right are readable; whether any was cut is not known")
    return None


def _count_on_both(tasks: Sequence[Arms], is_faulty: Callable[[EvalItem], bool]) -> list[tuple[float, int]]:
    """Count, for each arm, the faulty answers and the answers that came; `items-paired` reports failed requests.

    An item that was requested several times counts as a fraction for each.
    """
    counts: list[tuple[float, int]] = []
    for side in (0, 1):
        faulty, n = 0.0, 0
        for observation in (arms[side] for arms in tasks):
            answered = [item for item in observation.items if item.error is None]
            counted = observation.harness.get("empty_count" if is_faulty is is_empty else "unclear_count")
            askings = observation.harness.get("askings_count")
            if isinstance(counted, int) and isinstance(askings, int) and askings > 0:
                faulty += counted * len(answered) / askings
            else:
                faulty += sum(map(is_faulty, answered))
            n += len(answered)
        counts.append((faulty, n))
    return counts


def _differ(counts: Sequence[tuple[float, int]]) -> bool:
    (theirs, n), (ours, m) = counts
    gap = abs(theirs - ours)
    return n > 0 and m > 0 and abs(theirs / n - ours / m) > _MOST_RATE_GAP and gap > _MOST_COUNT_GAP


# --- The same questions -----------------------------------------------------------------------------------------------

_ARM_SETTINGS = frozenset({"null_answers", "retries", "stopped_early", "pid"})
_COUNTS = ("_s", "_bytes", "_count")


@guard("items-paired", "both arms answered the same items, and all were scored", needs=EVALS)
def items_paired(evals: Evals, suite: Suite) -> Violation | None:
    """Flag items that cannot be paired, in any task: a fault in one task may be one in all.

    An item was not scored on both arms, or its document, prompt, target or cluster is not the same.
    """
    cannot = next((found for found in evals.paired.values() if isinstance(found, CannotJudge)), None)
    return None if cannot is None else Violation(cannot.reason, cannot.advice)


@guard("same-harness", "both arms were asked in the same way", invalidates=QUALITY, needs=EVALS)
def same_harness(evals: Evals, suite: Suite) -> Violation | None:
    """Flag arms with different lm-eval settings: few-shot, template, system prompt, filter, version, …"""
    for task, arms in evals.arms.items():
        theirs, ours = (
            {key: value for key, value in one.harness.items() if key not in _ARM_SETTINGS and not key.endswith(_COUNTS)}
            for one in arms
        )
        for name in sorted(theirs.keys() | ours.keys()):
            if theirs.get(name) != ours.get(name):
                values = (
                    f"{theirs.get(name, 'not set')} for the baseline, {ours.get(name, 'not set')} for the candidate"
                )
                reason = f"the arms were not asked {task} in the same way: {name} ({values})"
                return Violation(reason, "measure both arms with one suite, in one run")
    return None


# --- A sound baseline -------------------------------------------------------------------------------------------------


@guard("baseline-able", "the baseline can do the tasks", needs=EVALS)
def baseline_able(evals: Evals, suite: Suite) -> Violation | None:
    """Flag a task that the baseline cannot do at all: it measures the harness, not the model.

    The baseline (of two stored runs, the reference candidate) gets no item right of a task or group, or of one of a
    group's tasks with at least 30 items.
    """
    for name, tasks in evals.units.items():
        large = [(b.task, [b]) for b, _ in tasks if len(b.items) >= _MIN_ITEMS]
        for part, baselines in ((name, [b for b, _ in tasks]), *large):
            items = [item for one in baselines for item in one.items]
            if items and all(one.fault is None for one in baselines) and not any(item.score for item in items):
                reason = f"the baseline answers none of the {len(items)} items of {part} right"
                return Violation(reason, "check the prompt, the chat template and the answer extraction")
    return None


@guard("above-chance", "the baseline does better than guessing, where one can guess", needs=EVALS)
def above_chance(evals: Evals, suite: Suite) -> Violation | NotApplicable | None:
    """Flag a baseline that may be guessing: a candidate has nothing to lose against it.

    The lower limit of the baseline's accuracy is not above the chance level, over all items of a task or group.
    """
    applies = False
    for name, tasks in evals.units.items():
        guessed = [(b, chance) for b, _ in tasks if (chance := chance_of(b)) is not None and not is_continuous(b)]
        n, right = sum(len(b.items) for b, _ in guessed), sum(_count_right(b) for b, _ in guessed)
        if n == 0 or any(b.harness.get("stopped_early") for b, _ in guessed):
            continue
        applies = True
        chance = sum(one * len(b.items) for b, one in guessed) / n
        if _accuracy_limits([b for b, _ in guessed], suite.gate.alpha).lower <= chance:
            right_of = f"the baseline's {right} of {n} right answers to {name}"
            remedy = "use a task that the baseline can do, more items of it, or mend how its answers are read"
            return Violation(f"{right_of} are not more than guessing gives ({chance:.1%})", remedy)
    return None if applies else NotApplicable("no task has a known chance level")


_BY_LOG_PROBABILITY = ("multiple_choice", "loglikelihood")


@guard("not-guessing", "the candidate does not score just at chance", invalidates=QUALITY, needs=EVALS)
def not_guessing(evals: Evals, suite: Suite) -> Violation | NotApplicable | None:
    """Flag a candidate within one standard error of chance by log-probabilities, with a baseline far above it.

    Tasks and groups of at least 30 items are examined. Servers that return no real log-probabilities of a prompt give
    every option the same one, and score at chance without any error. A broken model scores the same, so neither may be
    promoted. Answers in words do not come to chance by a fault of the server, and are judged.
    """
    applies = False
    parts: Units = {**{task: [arms] for task, arms in evals.arms.items()}, **evals.units}
    for name, tasks in parts.items():
        by_options = [ours for _, ours in tasks if ours.harness.get("output_type") in _BY_LOG_PROBABILITY]
        guessed = [(chance, len(ours.items)) for ours in by_options if (chance := chance_of(ours)) is not None]
        n = sum(size for _, size in guessed)
        if len(guessed) < len(tasks) or n < _MIN_ITEMS:
            continue
        applies = True
        chance = sum(one * size for one, size in guessed) / n
        error = math.sqrt(sum(one * (1 - one) * size for one, size in guessed)) / n
        theirs, ours = (sum(_count_right(arms[side]) for arms in tasks) for side in (0, 1))
        asked = sum(len(baseline.items) for baseline, _ in tasks)
        lower = clopper_pearson(theirs, max(asked, 1), suite.gate.alpha).lower
        if lower > chance + error and abs(ours / n - chance) <= error:
            remedy = (
                "see whether its server returns real log-probabilities of prompts; if it does, the model is broken: "
                "ask it something in words"
            )
            reason = f"the candidate gets as many items of {name} right as guessing does ({chance:.1%})"
            return Violation(reason, remedy)
    if applies:
        return None
    return NotApplicable("no task is judged by log-probabilities of options, with enough items to tell")


def _count_right(observation: QualityObservation) -> int:
    return sum(item.correct is True for item in observation.items)


_OWN_BAND = 0.05


@guard("baseline-as-known", "every baseline scores what is known of it", invalidates=QUALITY, needs=EVALS)
def baseline_as_known(evals: Evals, suite: Suite) -> Violation | NotApplicable | None:
    """Flag a baseline that does not reproduce its known score: its requests have changed.

    The confidence interval of its accuracy on a task or group that was run to its end lies outside of the task's
    `expect`; without one, outside of 5 points around the mean score of the same deployment in earlier promoting runs of
    the same measurement.
    """
    applies = False
    for entry in suite.quality.tasks if suite.quality is not None else ():
        own = [o for o in evals.judged.quality if o.arm is Arm.BASELINE and o.repeat == 0]
        own = [o for o in own if suite.unit_name(o.task) == entry.name]
        if not any(one.items for one in own) or any(one.harness.get("stopped_early") for one in own):
            continue
        band = _band(entry, evals.judged, suite, own)
        if band is None:
            continue
        applies, (least, most, source) = True, band
        value, limits = _score(own, suite.gate.alpha)
        if limits.upper < least or limits.lower > most:
            expected = f"{source} {show_percent(least)} to {show_percent(most)}"
            reason = f"the baseline scores {show_percent(value)} on {entry.name}, {expected}"
            return Violation(reason, "see what was changed: prompt, template, few-shot, limit")
    if applies:
        return None
    return NotApplicable("neither `expect` nor an earlier run says what a task that was run to its end should score")


def _band(
    entry: TaskEntry, run: Evidence, suite: Suite, own: Sequence[QualityObservation]
) -> tuple[float, float, str] | None:
    """Return the suite's `expect`, else a band around earlier scores, and its source; None if neither is known."""
    if entry.expect is not None:
        return entry.expect.least, entry.expect.most, "where it is known to score"
    if any(map(is_continuous, own)) or Arm.BASELINE not in run.run.arms:
        return None  # without the arm it was measured in another run, whose release is not this one's
    alone = suite.quality is not None and len(suite.quality.tasks) == 1
    ids = [f"accuracy@{entry.name}", *(["accuracy"] if alone else [])]
    release = run.run.arms[Arm.BASELINE].release
    runs = [past for past in run.history if past.baseline.release == release]
    found = [next((past.checks[one] for one in ids if one in past.checks), None) for past in runs]
    earlier = [check.baseline for check in found if check is not None and check.unit is Unit.RATIO]
    if not earlier:
        return None
    usual = float(np.mean(earlier))
    source = f"where in {len(earlier)} earlier {'run' if len(earlier) == 1 else 'runs'} it scored about"
    return max(0.0, usual - _OWN_BAND), min(1.0, usual + _OWN_BAND), source


def _score(own: Sequence[QualityObservation], alpha: float) -> tuple[float, Limits]:
    """Return the score over all items and its limits, which scores by degrees do not have: then the value itself."""
    items = [item for one in own for item in one.items]
    if any(map(is_continuous, own)):
        value = float(np.mean([item.score or 0.0 for item in items]))
        return value, Limits(value, value)
    return sum(map(_count_right, own)) / len(items), _accuracy_limits(own, alpha)


def _accuracy_limits(own: Sequence[QualityObservation], alpha: float) -> Limits:
    """Return the limits of the share of right answers over all items, widened where items come in clusters."""
    limits = clopper_pearson(sum(map(_count_right, own)), sum(len(one.items) for one in own), alpha)
    clusters = cluster_labels([one.items for one in own])
    if clusters is None:
        return limits
    scores = np.array([item.correct is True for one in own for item in one.items], dtype=np.float64)
    over_clusters = mean_share_limits([scores], [clusters], alpha)
    return limits if over_clusters is None else limits.widened(over_clusters[0])


_IMPLAUSIBLE_GAIN = 0.05


@guard("gain-plausible", "no implausible gain", needs=EVALS)
def gain_plausible(evals: Evals, suite: Suite) -> Violation | None:
    """Flag a gain that more likely shows a broken baseline than a better candidate.

    The candidate is shown (Bonferroni) to be more than 5 points better than its baseline on a task or group, and no
    `expect` confirms the baseline's score. For scores by degrees, 5 points are 5 % of 1, or of the largest score if
    that is above 1.
    """
    parts = {task: [found] for task, found in evals.paired.items() if not isinstance(found, CannotJudge)}
    parts = {task: found for task, found in parts.items() if not _scores_as_expected(task, evals.paired, suite)}
    groups: dict[str, list[Pairs]] = {}
    for task, found in parts.items():
        groups.setdefault(suite.unit_name(task), []).extend(found)
    parts |= {name: found for name, found in groups.items() if len({one.continuous for one in found}) == 1}
    tested = {name: found for name, found in parts.items() if sum(map(len, found)) >= 2}
    alpha = suite.gate.alpha / max(1, len(tested))  # one of many small tasks gains as much by chance
    for name, found in tested.items():
        theirs, ours = (np.concatenate([getattr(one, side) for one in found]) for side in ("baseline", "candidate"))
        clusters = cluster_labels([one.items for one in found])
        if clusters is not None and len(set(clusters)) < MIN_CLUSTERS:  # few clusters: test item by item
            clusters = None
        turned, most = ScorePairs(ours, theirs, clusters), 1.0
        if found[0].continuous:
            most = max(1.0, float(np.max(np.abs([theirs, ours]))))
            gain = score_regression(turned, alpha, np.random.default_rng(suite.seed))
        else:
            gain = accuracy_regression([turned], alpha)
        if gain.limits.lower > _IMPLAUSIBLE_GAIN * most:
            remedy = (
                "look for truncated, cached or mis-templated baseline answers; where there are none, say in `expect` "
                "where the baseline is known to score"
            )
            better = f"the candidate is better than the baseline by more than 5 points on {name}"
            return Violation(f"{better}, which is not plausible", remedy)
    return None


def _scores_as_expected(task: str, paired: Mapping[str, Pairs | CannotJudge], suite: Suite) -> bool:
    entry = suite.quality.entry(task) if suite.quality is not None else None
    if entry is None or entry.expect is None:
        return False
    own = [one for name, one in paired.items() if suite.unit_name(name) == suite.unit_name(task)]
    scores = [one.baseline for one in own if not isinstance(one, CannotJudge)]
    return len(scores) == len(own) and entry.expect.least <= float(np.mean(np.concatenate(scores))) <= entry.expect.most


# --- Shadow answers ---------------------------------------------------------------------------------------------------

MOST_EMPTY = 0.01  # share of an arm's answers that may be empty; two always may
_MOST_NAMED_PROMPTS = 3
_MIN_PROMPTS = 20


SHADOW_ANSWERS = Need(
    "facts about shadow answers",
    lambda run, _: (
        run.shadow is not None
        and any(item.primary_facts is not None or item.candidate_facts is not None for item in run.shadow.items)
    ),
)


@guard("shadow-not-empty", "the answers to recorded prompts are not empty", invalidates=SHADOW, needs=SHADOW_ANSWERS)
def shadow_not_empty(run: Evidence, suite: Suite) -> Violation | None:
    """Flag empty answers to recorded prompts: more than 1 % of an arm's, and more than two."""
    items = run.shadow.items if run.shadow is not None else ()
    # without facts the request failed, and has no answer that could be empty
    theirs = [(item.prompt_id, item.primary, item.primary_finish) for item in items if item.primary_facts is not None]
    ours = [
        (item.prompt_id, item.candidate, item.candidate_finish) for item in items if item.candidate_facts is not None
    ]
    for arm, came in zip(Arm, (theirs, ours), strict=True):
        empty = [(prompt, finish) for prompt, digest, finish in came if digest is None]
        if too_many(len(empty), len(came), MOST_EMPTY):
            named = ", ".join(prompt for prompt, _ in empty[:_MOST_NAMED_PROMPTS])
            named += f" and {len(empty) - _MOST_NAMED_PROMPTS} more" if len(empty) > _MOST_NAMED_PROMPTS else ""
            remedy = (
                "see whether the answer is in another field; leave out prompts to which the model has nothing to say"
            )
            if any(finish == "length" for _, finish in empty):  # more tokens help only an answer that was cut
                remedy = "raise `shadow.max_tokens`, and see whether the answer is in another field"
            reason = f"{len(empty) / len(came):.1%} of the {arm.value}'s answers to recorded prompts are empty"
            return Violation(f"{reason}: {named}", remedy)
    return None


@guard("shadow-not-refused", "the baseline answers most recorded prompts", invalidates=SHADOW, needs=SHADOW_ANSWERS)
def shadow_not_refused(run: Evidence, suite: Suite) -> Violation | None:
    """Flag a baseline that refuses more than half of the recorded prompts (of 20 at least).

    Two deployments behind one content filter agree on everything that it refuses.
    """
    items = run.shadow.items if run.shadow is not None else ()
    refused = sum(item.primary_facts is not None and item.primary_facts.refusal for item in items)
    if len(items) >= _MIN_PROMPTS and 2 * refused > len(items):
        reason = f"the baseline refuses {refused} of {len(items)} recorded prompts, so there is little to compare"
        return Violation(reason, "see what filters its answers, or record prompts that it answers")
    return None
