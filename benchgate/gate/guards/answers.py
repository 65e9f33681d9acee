"""Does the baseline score what it is known to score? What does not was not asked what it was asked then.

What is known: the band that a task's `expect` gives, else what the same deployment scored in earlier promoting runs of
the same measurement, give or take 5 points.

Are the evals evidence at all? What makes a score speak of the harness, the token limit or a cache, not of the model.

All look at what is judged; a second asking of the baseline is a floor for flips, and `quality_floor` looks at it.

Are the answers of a shadow comparison answers at all? Where they are not, it says nothing of the candidate.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from benchgate import units as shown
from benchgate.gate.comparison import Comparison
from benchgate.gate.decision import Problem
from benchgate.gate.evidence.items import (
    Arms,
    Pairs,
    Units,
    answers_not_empty,
    answers_readable,
    is_continuous,
    pair_task,
    too_many,
)
from benchgate.gate.guards.base import held, looked_at, tripped, unknown
from benchgate.gate.guards.caches import answers_not_cached
from benchgate.gate.policy import unit_name
from benchgate.model.deployment import Arm
from benchgate.model.records import AnswerFacts, Label, ShadowItem
from benchgate.model.run import Evidence, QualityObservation
from benchgate.model.verdict import GuardResult, Unit
from benchgate.stats.distributions import Limits
from benchgate.stats.evals import ScorePairs, answers_harm, scores_harm
from benchgate.stats.proportions import clopper_pearson
from benchgate.suite.quality import TaskEntry
from benchgate.suite.schema import Suite

_NAME = "baseline-as-known"
_OWN_BAND = 0.05
_REMEDY = "see what was changed: prompt, template, few-shot, limit"


@dataclass(frozen=True, slots=True)
class _Band:
    """What a score is known to lie in, and whose word that is."""

    least: float
    most: float
    known: str


def baseline_as_known(evidence: Evidence, suite: Suite) -> GuardResult:
    """The baseline's score on each task, or on all of a group, that was run to its end."""
    looked = False
    for entry in suite.quality.tasks if suite.quality is not None else ():
        own = [o for o in _baselines(evidence) if unit_name(suite, o.task) == entry.name]
        if not any(one.items for one in own) or any(one.harness.get("stopped_early") for one in own):
            continue
        for band in _bands(entry, evidence, suite, own):
            looked = True
            value, limits = _score(own, suite.gate.alpha)
            if limits.upper < band.least or limits.lower > band.most:
                told = f"{shown.show_percent(band.least)} to {shown.show_percent(band.most)}"
                what = f"the baseline scores {shown.show_percent(value)} on {entry.name}, {band.known} {told}"
                return tripped(_NAME, what, _REMEDY, ("quality",))
    if not looked:
        told = "of no task that was run to its end does `expect`, or an earlier run, say what is known of it"
        return unknown(_NAME, told)
    return held(_NAME, "no baseline is outside of what is known of it")


def _baselines(evidence: Evidence) -> list[QualityObservation]:
    return [o for o in evidence.quality if o.arm is Arm.BASELINE and o.repeat == 0]


def _bands(entry: TaskEntry, evidence: Evidence, suite: Suite, own: Sequence[QualityObservation]) -> Iterator[_Band]:
    """At most one: the suite's word counts before what was seen."""
    if entry.expect is not None:
        yield _Band(entry.expect.least, entry.expect.most, "where it is known to score")
        return
    earlier = [] if any(map(is_continuous, own)) else _earlier(entry.name, evidence, suite)
    if earlier:
        usual = float(np.mean(earlier))
        known = f"where in {len(earlier)} earlier {'run' if len(earlier) == 1 else 'runs'} it scored about"
        yield _Band(max(0.0, usual - _OWN_BAND), min(1.0, usual + _OWN_BAND), known)


def _earlier(name: str, evidence: Evidence, suite: Suite) -> list[float]:
    """What the same deployment scored on it as the baseline of earlier runs."""
    if Arm.BASELINE not in evidence.run.arms:
        return []  # it was measured in another run, whose release is not this one's
    alone = suite.quality is not None and len(suite.quality.tasks) == 1
    ids = [f"accuracy@{name}", *(["accuracy"] if alone else [])]
    release = evidence.run.arms[Arm.BASELINE].release
    runs = [run for run in evidence.history if run.baseline.release == release]
    found = [next((run.checks[one] for one in ids if one in run.checks), None) for run in runs]
    return [check.baseline for check in found if check is not None and check.unit is Unit.RATIO]


def _score(own: Sequence[QualityObservation], alpha: float) -> tuple[float, Limits]:
    """Its value over all items, and its limits; of scores by degrees the value alone."""
    items = [item for one in own for item in one.items]
    if any(map(is_continuous, own)):
        value = float(np.mean([item.score or 0.0 for item in items]))
        return value, Limits(value, value)
    right = sum(item.correct is True for item in items)
    return right / len(items), clopper_pearson(right, len(items), alpha)


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


MOST_EMPTY = 0.01
"""Of a side's answers, that may say nothing; of few answers two may."""
_NAMED = 3
_FEWEST = 20  # prompts, to see a pattern in all of them
_FEWEST_TOKENS = 32  # of a usual answer: a shorter one is quick by itself
_QUICKEST_NS_PER_TOKEN = 50_000
"""20,000 tokens per second of one stream, ten times as many as the quickest engines: such an answer was not made."""

_QUICK_NS, _MANY_TIMES = 5_000_000, 20  # as for evals
_REMEMBERED, _LEAST_REMEMBERED = 0.05, 10  # of the prompts, and at least so many
_NO_CACHE = "take the cache out of the way to both"
_SPOILT = ("shadow",)


def shadow_guards(evidence: Evidence) -> Iterator[GuardResult]:
    """Every guard of the shadow comparison; none where there are no facts about its answers."""
    items = evidence.shadow.items if evidence.shadow is not None else ()
    if not any(item.primary_facts is not None or item.candidate_facts is not None for item in items):
        return
    yield _not_empty(items)
    yield _not_refused(items)
    yield _not_cached(items)


def _not_empty(items: Sequence[ShadowItem]) -> GuardResult:
    name = "shadow-not-empty"
    for who, sides in {
        "baseline": [(item, item.primary_facts, item.primary, item.primary_finish) for item in items],
        "candidate": [(item, item.candidate_facts, item.candidate, item.candidate_finish) for item in items],
    }.items():
        # a call that failed came to no answer at all
        came = [(item.prompt_id, digest, finish) for item, facts, digest, finish in sides if facts is not None]
        empty = [(prompt, finish) for prompt, digest, finish in came if digest is None]
        if too_many(len(empty), len(came), MOST_EMPTY):
            told = f"{len(empty) / len(came):.1%} of the {who}'s answers to recorded prompts are empty"
            return tripped(name, f"{told}: {_named([prompt for prompt, _ in empty])}", _of_empty(empty), _SPOILT)
    return held(name, "the answers to recorded prompts are not empty")


def _not_refused(items: Sequence[ShadowItem]) -> GuardResult:
    """Two deployments behind one filter agree on everything that it takes away."""
    name, refused = (
        "shadow-not-refused",
        [item.primary_facts is not None and item.primary_facts.refusal for item in items],
    )
    if len(items) >= _FEWEST and 2 * sum(refused) > len(items):
        what = f"the baseline refuses {sum(refused)} of {len(items)} recorded prompts, so there is little to compare"
        return tripped(name, what, "see what filters its answers, or record prompts that it answers", _SPOILT)
    return held(name, "the baseline answers most recorded prompts")


def _not_cached(items: Sequence[ShadowItem]) -> GuardResult:
    """All answers the same, and in no time: something in between has answered in the candidate's place."""
    name = "shadow-not-cached"
    alike = [item.with_primary is not None and item.with_primary.label is Label.EXACT for item in items]
    if len(items) >= _FEWEST and all(alike) and (_all_quick(items) or _one_side_quick(items)):
        what = "every answer of the candidate is the baseline's own, and came sooner than any engine makes one"
        return tripped(name, f"{what}: from a cache", _NO_CACHE, _SPOILT)
    count = sum(map(_is_remembered, items))
    if count >= _LEAST_REMEMBERED and count > _REMEMBERED * len(items):
        what = (
            f"{count} of {len(items)} answers of the candidate are the baseline's own, and came within 5 ms on one arm"
        )
        told = f"{what}, a twentieth of the other's time (bound {_REMEMBERED:.0%}): from a cache"
        return tripped(name, told, _NO_CACHE, _SPOILT)
    return held(name, "the answers to recorded prompts were made for them")


def _is_remembered(item: ShadowItem) -> bool:
    """One answer of both, for which one of them needed hardly any time and the other a model's."""
    alike = item.with_primary is not None and item.with_primary.label is Label.EXACT
    if not alike or item.primary_facts is None or item.candidate_facts is None:
        return False
    quick, slow = sorted((item.primary_facts.latency_ns, item.candidate_facts.latency_ns))
    return quick < _QUICK_NS and quick < slow / _MANY_TIMES


def _of_empty(empty: Sequence[tuple[str, str | None]]) -> str:
    """More tokens help only an answer that was cut before it began."""
    if any(finish == "length" for _, finish in empty):
        return "raise `shadow.max_tokens`, and see whether the answer is in another field"
    return "see whether the answer is in another field; leave out prompts to which the model has nothing to say"


def _named(prompts: Sequence[str]) -> str:
    more = f" and {len(prompts) - _NAMED} more" if len(prompts) > _NAMED else ""
    return f"{', '.join(prompts[:_NAMED])}{more}"


def _all_quick(items: Sequence[ShadowItem]) -> bool:
    paces = [pace for item in items if (pace := _ns_per_token(item.candidate_facts)) is not None]
    return len(paces) == len(items) and float(np.median(paces)) < _QUICKEST_NS_PER_TOKEN


def _one_side_quick(items: Sequence[ShadowItem]) -> bool:
    """Of two deployments that answer alike, one needs nearly no time beside the other."""
    pairs = [(item.primary_facts, item.candidate_facts) for item in items]
    times = [(theirs.latency_ns, ours.latency_ns) for theirs, ours in pairs if theirs is not None and ours is not None]
    if not times:
        return False
    quick, slow = sorted(float(np.median(side)) for side in zip(*times, strict=True))
    return quick < _QUICK_NS and quick < slow / _MANY_TIMES


def _ns_per_token(facts: AnswerFacts | None) -> float | None:
    if facts is None or facts.tokens is None or facts.tokens < _FEWEST_TOKENS:
        return None
    return facts.latency_ns / facts.tokens
