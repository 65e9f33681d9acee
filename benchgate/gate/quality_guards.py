"""Are the evals evidence at all? What makes a score speak of the harness, the token limit or a cache, not of the model.

All look at what is judged: repeats, which only show how much a baseline differs from itself, are not scored by anybody.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from statistics import median

import numpy as np

from benchgate import units as shown
from benchgate.gate.comparison import Comparison
from benchgate.gate.guard import held, tripped
from benchgate.gate.quality_pairs import MORE_TOKENS, Pairs, is_continuous, pair_task, unclear
from benchgate.gate.rule import Problem
from benchgate.model.deployment import Arm
from benchgate.model.records import EvalItem
from benchgate.model.run import QualityObservation
from benchgate.model.verdict import GuardResult
from benchgate.stats.item_harm import answers_harm, scores_harm
from benchgate.stats.proportions import clopper_pearson
from benchgate.stats.recovery import ScorePairs
from benchgate.suite.schema import Suite

_GAP = 0.01
"""Arms whose rates of empty answers differ by more than a point did not do the same task."""
_IMPLAUSIBLE_GAIN = 0.05
_NO_MODEL_S = 0.001
"""No model answers over HTTP within this time; a cache does."""
_HARDLY_A_MODEL_S = 0.005
_MUCH_FASTER = 20
"""Within this time, and so many times faster than the other arm with the very same answers, is a cache too."""
_FEW = 30
"""Fewer answers may be all the same, or as many right as by guessing, by chance."""
_OF_ONE_ARM = frozenset({"null_answers", "retries", "stopped_early", "pid"})
_COUNTS = ("_s", "_bytes", "_count")
_BY_LOG_PROBABILITY = ("multiple_choice", "loglikelihood")
_SPOILS = ("quality",)

_Both = tuple[QualityObservation, QualityObservation]


def quality_guards(comparison: Comparison, suite: Suite) -> Iterator[GuardResult]:
    """Every guard of the evals with its finding, in a fixed order."""
    tasks = dict.fromkeys(o.task for o in comparison.judged.quality if o.repeat == 0)
    both = {
        task: (b, c)
        for task in tasks
        if (b := comparison.baseline_quality(task)) is not None
        and (c := comparison.candidate_quality(task)) is not None
    }
    allowed = suite.quality.max_empty_ratio if suite.quality else 0.0
    yield _answers_not_empty(both, allowed)
    yield _answers_readable(both, allowed)
    paired = {task: pair_task(*arms) for task, arms in both.items()}
    yield _same_items(paired)
    yield _same_harness(both)
    yield _baseline_can_do_it(both)
    yield _above_chance(both, suite)
    yield _not_guessing(both, suite)
    yield _as_known([o for o in comparison.judged.quality if o.arm is Arm.BASELINE and o.repeat == 0], suite)
    yield _not_cached(both)
    yield _gain_plausible(paired, suite)


def _answers_not_empty(both: Mapping[str, _Both], allowed: float) -> GuardResult:
    remedy = "raise `quality.max_tokens`, and see whether the server returns its answer in another field"
    for task, arms in both.items():
        shares = [_share(observation, _is_empty) for observation in arms]
        for observation, share in zip(arms, shares, strict=True):
            if share > allowed:
                what = f"{share:.1%} of the {observation.arm.value}'s answers to {task} are empty"
                return tripped("answers-not-empty", what, remedy, _SPOILS)
        if abs(shares[0] - shares[1]) > _GAP:
            what = f"the arms' rates of empty answers to {task} differ"
            return tripped("answers-not-empty", what, remedy, _SPOILS)
    return held("answers-not-empty", "the answers are not empty")


def _answers_readable(both: Mapping[str, _Both], allowed: float) -> GuardResult:
    """A baseline whose own answers are cut or unreadable measures the token limit, or the extraction.

    Of the candidate only what would decide is held against the evidence (`quality_checks`): a broken model rambles to
    the limit and answers what nobody can read, and that is its own doing. Scores by degrees have no "wrong", so there
    cut answers count in both arms, and so does a difference between them.
    """
    for task, arms in both.items():
        shares = [_share(observation, unclear) for observation in arms]
        what = f"{shares[0]:.1%} of the baseline's answers to {task} are wrong and cut short or unreadable"
        if is_continuous(arms[0]):
            ours = f"{shares[1]:.1%} of the candidate's answers to {task}"
            what = f"{shares[0]:.1%} of the baseline's and {ours} are cut short or unreadable"
        differ = is_continuous(arms[0]) and (shares[1] > allowed or abs(shares[0] - shares[1]) > _GAP)
        if shares[0] > allowed or differ:
            remedy = f"{MORE_TOKENS}; where answers are whole, see why nothing is read out of them"
            return tripped("answers-readable", what, remedy, _SPOILS)
    return held("answers-readable", "answers are whole and readable, as far as they are not right")


def _same_items(paired: Mapping[str, Pairs | Problem]) -> GuardResult:
    """Every task, whether or not a required check looks at it: a fault in one may be one in all."""
    for found in paired.values():
        if isinstance(found, Problem):
            return tripped("items-paired", found.reason, found.advice)
    return held("items-paired", "both arms answered the same items, and all were scored")


def _same_harness(both: Mapping[str, _Both]) -> GuardResult:
    """What lm-eval was told is the same on both arms, but for what it counted."""
    for task, (baseline, candidate) in both.items():
        theirs, ours = _settings(baseline), _settings(candidate)
        for name in sorted(theirs.keys() | ours.keys()):
            if theirs.get(name) != ours.get(name):
                values = (
                    f"{theirs.get(name, 'not told')} for the baseline, {ours.get(name, 'not told')} for the candidate"
                )
                what = f"the arms were not asked {task} in the same way: {name} ({values})"
                return tripped("same-harness", what, "measure both arms with one suite, in one run", _SPOILS)
    return held("same-harness", "both arms were asked in the same way")


def _settings(observation: QualityObservation) -> dict[str, object]:
    known = observation.harness.items()
    return {name: value for name, value in known if name not in _OF_ONE_ARM and not name.endswith(_COUNTS)}


def _baseline_can_do_it(both: Mapping[str, _Both]) -> GuardResult:
    """What gets nothing right, and is what the candidate is held against, measures the harness, not the model."""
    for task, (baseline, _) in both.items():
        if baseline.fault is None and baseline.items and not any(item.score for item in baseline.items):
            what = f"the baseline answers none of the {len(baseline.items)} items of {task} right"
            return tripped("baseline-able", what, "check the prompt, the chat template and the answer extraction")
    return held("baseline-able", "the baseline is able to do the tasks")


def _above_chance(both: Mapping[str, _Both], suite: Suite) -> GuardResult:
    """A baseline that may as well be guessing has nothing that a candidate could lose."""
    for task, (baseline, _) in both.items():
        chance, right, n = _chance(baseline), _right(baseline), len(baseline.items)
        if chance is None or n == 0 or is_continuous(baseline) or _stopped(baseline):
            continue
        if clopper_pearson(right, n, suite.gate.alpha).lower <= chance:
            what = (
                f"the baseline's {right} of {n} right answers to {task} are not more than guessing gives ({chance:.1%})"
            )
            remedy = "use a task that the baseline can do, more items of it, or mend how its answers are read"
            return tripped("above-chance", what, remedy)
    return held("above-chance", "the baseline does better than guessing, where one can guess")


def _not_guessing(both: Mapping[str, _Both], suite: Suite) -> GuardResult:
    """A candidate exactly at chance by log-probabilities, beside a baseline far above.

    Servers that return no real log-probabilities of a prompt give every option the same one, and score at chance
    without any error. A model that is broken altogether scores so too: the two look alike from here, and neither may be
    promoted. Answers in words do not come to chance by a fault of the server, and are judged.
    """
    for task, (baseline, candidate) in both.items():
        chance, n = _chance(candidate), len(candidate.items)
        if chance is None or n < _FEW or candidate.harness.get("output_type") not in _BY_LOG_PROBABILITY:
            continue
        error = float(np.sqrt(chance * (1 - chance) / n))
        far_above = (
            clopper_pearson(_right(baseline), max(len(baseline.items), 1), suite.gate.alpha).lower > chance + error
        )
        if far_above and abs(_right(candidate) / n - chance) <= error:
            what = f"the candidate gets as many items of {task} right as guessing does ({chance:.1%})"
            remedy = (
                "see whether its server returns real log-probabilities of prompts; if it does, the model is broken: "
                "ask it something in words"
            )
            return tripped("not-guessing", what, remedy, _SPOILS)
    return held("not-guessing", "no candidate scores just what guessing does")


def _as_known(baselines: Sequence[QualityObservation], suite: Suite) -> GuardResult:
    """A baseline that does not do what it is known to do was not asked what it was asked then."""
    for baseline in baselines:
        task = baseline.task
        entry = suite.quality.entry(task) if suite.quality is not None else None
        if entry is None or entry.expect is None or entry.name != task or not baseline.items or _stopped(baseline):
            continue
        if is_continuous(baseline):
            value = float(np.mean([item.score or 0.0 for item in baseline.items]))
            lower = upper = value
        else:
            limits = clopper_pearson(_right(baseline), len(baseline.items), suite.gate.alpha)
            value, lower, upper = _right(baseline) / len(baseline.items), limits.lower, limits.upper
        if upper < entry.expect.least or lower > entry.expect.most:
            band = f"{shown.show_percent(entry.expect.least)} to {shown.show_percent(entry.expect.most)}"
            what = f"the baseline scores {shown.show_percent(value)} on {task}, where it is known to score {band}"
            return tripped(
                "baseline-as-known", what, "see what was changed: prompt, template, few-shot, limit", _SPOILS
            )
    return held("baseline-as-known", "no baseline is outside of what is known of it")


def _not_cached(both: Mapping[str, _Both]) -> GuardResult:
    """The very same answers in no time are one arm's answers, given twice."""
    for task, (baseline, candidate) in both.items():
        theirs = {item.item_id: item.answer for item in baseline.items}
        if len(theirs) < _FEW or any(theirs.get(item.item_id) != item.answer for item in candidate.items):
            continue
        times = [_median_s(observation) for observation in (baseline, candidate)]
        known = [time for time in times if time is not None]
        if len(known) < len(times):
            continue
        much_faster = min(known) <= _HARDLY_A_MODEL_S and max(known) > _MUCH_FASTER * min(known)
        if min(known) <= _NO_MODEL_S or much_faster:
            arm = (baseline if times[0] == min(known) else candidate).arm.value
            came = f"the {arm}'s came within {shown.show_duration(min(known))}"
            what = f"all answers to {task} are the same on both arms, and {came}"
            remedy = "switch off the cache between benchgate and the servers, or give each arm an address of its own"
            return tripped("not-cached", what, remedy, _SPOILS)
    return held("not-cached", "answers took as long as a model takes")


def _gain_plausible(paired: Mapping[str, Pairs | Problem], suite: Suite) -> GuardResult:
    """A candidate far better than its own baseline more likely shows a broken baseline than a better candidate.

    Of a score by degrees, 5 points of 1 or of whatever is the most that was scored.
    """
    for task, found in paired.items():
        if isinstance(found, Problem) or len(found) < 2:
            continue
        scores, most = ScorePairs(found.baseline, found.candidate), 1.0
        if found.continuous:
            most = max(1.0, float(np.max(np.abs([found.baseline, found.candidate]))))
            harm = scores_harm(scores, suite.gate.alpha, np.random.default_rng(suite.seed))
        else:
            harm = answers_harm([scores], suite.gate.alpha)
        if harm.limits.upper < -_IMPLAUSIBLE_GAIN * most:
            what = f"the candidate is better than the baseline by more than 5 points on {task}, which is not plausible"
            return tripped("gain-plausible", what, "look for truncated, cached or mis-templated baseline answers")
    return held("gain-plausible", "no implausible gain")


def _share(observation: QualityObservation, of: Callable[[EvalItem], bool]) -> float:
    """Of the items that came back; a failed one is reported by `items-paired`."""
    answered = [item for item in observation.items if item.error is None]
    return sum(map(of, answered)) / len(answered) if answered else 0.0


def _is_empty(item: EvalItem) -> bool:
    return not (item.answer or "").strip()


def _right(observation: QualityObservation) -> int:
    return sum(item.correct is True for item in observation.items)


def _chance(observation: QualityObservation) -> float | None:
    chance = observation.harness.get("chance")
    return float(chance) if isinstance(chance, int | float) and 0 < chance < 1 else None


def _stopped(observation: QualityObservation) -> bool:
    return bool(observation.harness.get("stopped_early"))


def _median_s(observation: QualityObservation) -> float | None:
    times = [item.latency_ns for item in observation.items if item.latency_ns is not None]
    return median(times) * 1e-9 if len(times) == len(observation.items) else None
