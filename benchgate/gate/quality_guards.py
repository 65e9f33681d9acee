"""Are the evals evidence at all? What makes a score speak of the harness, the token limit or a cache, not of the model.

All look at what is judged; a second asking of the baseline is a floor for flips, and `quality_floor` looks at it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np

from benchgate.gate.comparison import Comparison
from benchgate.gate.guard import held, looked_at, tripped, unknown
from benchgate.gate.quality_answers import Arms, Units, answers_not_empty, answers_readable
from benchgate.gate.quality_cache import answers_not_cached
from benchgate.gate.quality_known import baseline_as_known
from benchgate.gate.quality_pairs import Pairs, is_continuous, pair_task
from benchgate.gate.rule import Problem
from benchgate.gate.specs import unit_name
from benchgate.model.run import QualityObservation
from benchgate.model.verdict import GuardResult
from benchgate.stats.item_harm import answers_harm, scores_harm
from benchgate.stats.proportions import clopper_pearson
from benchgate.stats.recovery import ScorePairs
from benchgate.suite.schema import Suite

_IMPLAUSIBLE_GAIN = 0.05
_FEW = 30
"""Of fewer answers as many may be right as by guessing, by chance."""
_OF_ONE_ARM = frozenset({"null_answers", "retries", "stopped_early", "pid"})
_COUNTS = ("_s", "_bytes", "_count")
_BY_LOG_PROBABILITY = ("multiple_choice", "loglikelihood")
_SPOILS = ("quality",)


def quality_guards(comparison: Comparison, suite: Suite) -> list[GuardResult]:
    """Every guard of the evals with its finding, in a fixed order; without evals none of them knows anything."""
    return looked_at(_guards(comparison, suite), None if comparison.judged.quality else "no eval was run")


def _guards(comparison: Comparison, suite: Suite) -> Iterator[GuardResult]:
    tasks = dict.fromkeys(o.task for o in comparison.judged.quality if o.repeat == 0)
    both = {
        task: (b, c)
        for task in tasks
        if (b := comparison.baseline_quality(task)) is not None
        and (c := comparison.candidate_quality(task)) is not None
    }
    units: dict[str, list[Arms]] = {}
    for task, arms in both.items():
        units.setdefault(unit_name(suite, task), []).append(arms)
    allowed = suite.quality.max_empty_ratio if suite.quality else 0.0
    yield answers_not_empty(units, allowed)
    yield answers_readable(units, allowed)
    paired = {task: pair_task(*arms) for task, arms in both.items()}
    yield _same_items(paired)
    yield _same_harness(both)
    yield _baseline_can_do_it(units)
    yield _above_chance(units, suite)
    yield _not_guessing(both, suite)
    yield baseline_as_known(comparison.judged, suite)
    yield answers_not_cached(both)
    yield _gain_plausible(paired, suite)


def _same_items(paired: Mapping[str, Pairs | Problem]) -> GuardResult:
    """Every task, whether or not a required check looks at it: a fault in one may be one in all."""
    for found in paired.values():
        if isinstance(found, Problem):
            return tripped("items-paired", found.reason, found.advice)
    return held("items-paired", "both arms answered the same items, and all were scored")


def _same_harness(both: Mapping[str, Arms]) -> GuardResult:
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


def _baseline_can_do_it(units: Units) -> GuardResult:
    """What gets nothing right, and is what the candidate is held against, measures the harness, not the model.

    A group as a whole, and each of its tasks that has enough items to tell.
    """
    for name, tasks in units.items():
        large = [(b.task, [b]) for b, _ in tasks if len(b.items) >= _FEW]
        for what, baselines in ((name, [b for b, _ in tasks]), *large):
            items = [item for one in baselines for item in one.items]
            if items and all(one.fault is None for one in baselines) and not any(item.score for item in items):
                told = f"the baseline answers none of the {len(items)} items of {what} right"
                return tripped("baseline-able", told, "check the prompt, the chat template and the answer extraction")
    return held("baseline-able", "the baseline is able to do the tasks")


def _above_chance(units: Units, suite: Suite) -> GuardResult:
    """A baseline that may as well be guessing has nothing that a candidate could lose: of a group, all of it."""
    looked = False
    for name, tasks in units.items():
        guessed = [(b, chance) for b, _ in tasks if (chance := _chance(b)) is not None and not is_continuous(b)]
        n, right = sum(len(b.items) for b, _ in guessed), sum(_right(b) for b, _ in guessed)
        if n == 0 or any(_stopped(b) for b, _ in guessed):
            continue
        looked = True
        chance = sum(one * len(b.items) for b, one in guessed) / n
        if clopper_pearson(right, n, suite.gate.alpha).lower <= chance:
            what = (
                f"the baseline's {right} of {n} right answers to {name} are not more than guessing gives ({chance:.1%})"
            )
            remedy = "use a task that the baseline can do, more items of it, or mend how its answers are read"
            return tripped("above-chance", what, remedy)
    if not looked:
        return unknown("above-chance", "of no task is it known what guessing gives")
    return held("above-chance", "the baseline does better than guessing, where one can guess")


def _not_guessing(both: Mapping[str, Arms], suite: Suite) -> GuardResult:
    """A candidate exactly at chance by log-probabilities, beside a baseline far above.

    Servers that return no real log-probabilities of a prompt give every option the same one, and score at chance
    without any error. A model that is broken altogether scores so too: the two look alike from here, and neither may be
    promoted. Answers in words do not come to chance by a fault of the server, and are judged.
    """
    looked = False
    for task, (baseline, candidate) in both.items():
        chance, n = _chance(candidate), len(candidate.items)
        if chance is None or n < _FEW or candidate.harness.get("output_type") not in _BY_LOG_PROBABILITY:
            continue
        looked = True
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
    if not looked:
        return unknown("not-guessing", "no task is judged by log-probabilities of options, with items enough to tell")
    return held("not-guessing", "no candidate scores just what guessing does")


def _gain_plausible(paired: Mapping[str, Pairs | Problem], suite: Suite) -> GuardResult:
    """A candidate far better than its own baseline more likely shows a broken baseline than a better candidate.

    Of a score by degrees, 5 points of 1 or of whatever is the most that was scored. A baseline that scores what it is
    known to score (`expect`) is not broken, and then any gain is one.
    """
    for task, found in paired.items():
        if isinstance(found, Problem) or len(found) < 2 or _known_to_score(task, paired, suite):
            continue
        turned, most = ScorePairs(found.candidate, found.baseline), 1.0
        if found.continuous:
            most = max(1.0, float(np.max(np.abs([found.baseline, found.candidate]))))
            gain = scores_harm(turned, suite.gate.alpha, np.random.default_rng(suite.seed))
        else:
            gain = answers_harm([turned], suite.gate.alpha)
        if gain.limits.lower > _IMPLAUSIBLE_GAIN * most:
            what = f"the candidate is better than the baseline by more than 5 points on {task}, which is not plausible"
            return tripped(
                "gain-plausible",
                what,
                "look for truncated, cached or mis-templated baseline "
                "answers; where there are none, say in `expect` where the baseline is known to score",
            )
    return held("gain-plausible", "no implausible gain")


def _known_to_score(task: str, paired: Mapping[str, Pairs | Problem], suite: Suite) -> bool:
    """Whether what the candidate is held against scores within its task's or group's known band."""
    entry = suite.quality.entry(task) if suite.quality is not None else None
    if entry is None or entry.expect is None:
        return False
    own = [one for name, one in paired.items() if unit_name(suite, name) == entry.name]
    scores = [one.baseline for one in own if not isinstance(one, Problem)]
    return len(scores) == len(own) and entry.expect.least <= float(np.mean(np.concatenate(scores))) <= entry.expect.most


def _right(observation: QualityObservation) -> int:
    return sum(item.correct is True for item in observation.items)


def _chance(observation: QualityObservation) -> float | None:
    chance = observation.harness.get("chance")
    return float(chance) if isinstance(chance, int | float) and 0 < chance < 1 else None


def _stopped(observation: QualityObservation) -> bool:
    return bool(observation.harness.get("stopped_early"))
