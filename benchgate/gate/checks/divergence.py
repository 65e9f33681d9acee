"""Is the reading of the fixed texts usable? Anything short of all of it, in numbers that can be ones, is INVALID.

Fixed texts: how far the candidate's next-token probabilities lie from the baseline's, position by position.

`kld` and `same_top1` bound the candidate's distance from its own baseline; where the baseline was asked twice, what it
differs from itself is taken off, position by position. `perplexity` is compared: with the baseline read beside it, or
with the candidate of a stored run that read the same texts.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from benchgate import units
from benchgate.gate.checks.base import bound_of
from benchgate.gate.comparison import Comparison
from benchgate.gate.decision import Finding, Problem
from benchgate.gate.policy import CheckSpec
from benchgate.model.deployment import Arm
from benchgate.model.metric import names_of
from benchgate.model.records import DivergenceItem, DivergenceObservation, FloatArray
from benchgate.model.request_metrics import quantile
from benchgate.model.run import Evidence
from benchgate.model.verdict import Outcome, Scale, Unit
from benchgate.stats.clusters import MIN_CLUSTERS, PooledMean, cluster_mean, pool_means, skewness_adjusted_upper_limit
from benchgate.stats.distributions import Limits, binom_sf
from benchgate.stats.proportions import clopper_pearson
from benchgate.suite.schema import Suite

_STRANGERS = 0.1
"""Where texts are cut, the share of positions without a common token from which on tokenizers are taken to differ."""


def usable_reading(evidence: Evidence) -> DivergenceObservation | Problem:
    """What was read, when all of it can be used."""
    seen = evidence.divergence
    if seen is None:
        return invalid("the fixed texts were not read", _AGAIN)
    if seen.fault is not None:
        advice = _AGAIN if seen.way is not None else _NO_WAY
        return invalid(f"the fixed texts were not read as planned: {seen.fault}", advice)
    items = seen.items
    if len(items) != seen.expected_n or not items:
        return invalid(f"only {len(items)} of {seen.expected_n} positions were read", _AGAIN)
    if len({item.place for item in items}) < len(items):
        return invalid("a position was read twice", _AGAIN)
    if not all(map(_sound, items)):
        return invalid("a divergence or a probability is not a number that one can be", _AGAIN)
    if len({(item.floor_kld is None, item.floor_same_top1 is None) for item in items}) > 1:
        return invalid("the baseline was asked again at some positions only", _AGAIN)
    strangers = sum(item.shared == 0 for item in items)
    if seen.way == "cut" and strangers > _STRANGERS * len(items):
        reason = f"at {strangers} of {len(items)} positions the arms list no token in common"
        return invalid(f"{reason}: their tokenizers differ, or the candidate's answers are noise", _TOKENIZERS)
    return seen


def _sound(item: DivergenceItem) -> bool:
    """A divergence is finite and not negative; the logarithm of a probability is finite and not positive."""
    divergences = [item.kld, *([item.floor_kld] if item.floor_kld is not None else [])]
    logs = [ln for ln in (item.baseline_ln, item.candidate_ln) if ln is not None]
    known: Sequence[float | None] = [*divergences, *logs]
    if any(value is None or not math.isfinite(value) for value in known):
        return False
    return all(value >= 0 for value in divergences) and all(ln <= 0 for ln in logs)


def no_room_for_distance(seen: DivergenceObservation, bound: float) -> Problem | None:
    """A baseline as far from itself as the candidate may be from it: behind that, a broken one would be hidden."""
    floor = [item.floor_kld for item in seen.items if item.floor_kld is not None]
    if not floor or (mean := sum(floor) / len(floor)) < bound:
        return None
    reason = (
        f"the baseline lies {units.show_nats(mean)} from itself, and the candidate may lie {units.show_nats(bound)} "
        "beyond that: what is taken off hides as much as is looked for"
    )
    return invalid(reason, _NOISY)


def no_room_for_disagreement(share: float, upper: float, bound: float) -> Problem | None:
    """A baseline that disagrees with itself so often that a candidate that agrees nowhere could pass.

    `upper` is the upper limit of that share; a candidate can disagree at no more than the rest of the positions.
    """
    if upper < bound:
        return None
    reason = (
        f"the baseline disagrees with itself at {units.show_percent(share)} of the positions, so a candidate that "
        "agrees nowhere would pass"
    )
    return invalid(reason, _NOISY)


def invalid(reason: str, advice: str) -> Problem:
    """Evidence that says nothing for or against the candidate, and what to do."""
    return Problem(Outcome.INVALID, reason, advice)


_AGAIN = "see the servers' logs and measure again; nothing here speaks for or against the candidate"
_NOISY = "see why the baseline's probabilities change so much from one asking to the next, and measure again"
_NO_WAY = (
    "see what each way met: both arms need the completions endpoint, a context as long as `divergence.window`, and as "
    "many log-probabilities as `divergence.top`"
)
_TOKENIZERS = "see whether both serve the same tokenizer, and ask both arms a few prompts yourself"


_FEW = 10
"""Below so many positions that differ, what the clusters show of a share is not trusted alone."""


def divergence(comparison: Comparison, *, bound: float, alpha: float) -> Finding:
    """Mean KL(baseline || candidate) over the positions against a bound in nats, t limits over the pieces.

    Where only the most probable tokens are listed, each value is a lower bound: it can be shown to be too much, and
    never to be little enough.
    """
    finding = Finding(Unit.NATS, Scale.ABSOLUTE, bound, _METHOD, 0, "positions")
    seen = usable_reading(comparison.judged)
    if isinstance(seen, Problem):
        return replace(finding, problem=seen)
    values = _less_floor(seen.items, lambda item: item.kld, lambda item: item.floor_kld)
    spread = _over_pieces(values, seen.items)
    if isinstance(spread, Problem):
        return replace(finding, problem=spread)
    limits, p_value = _limits(spread, values, seen.items, alpha), spread.p_above(bound)
    # What the baseline differs from itself may be more; less than nothing is no distance.
    value, limits = max(0.0, spread.mean), Limits(max(0.0, limits.lower), max(0.0, limits.upper))
    finding = replace(finding, n=len(values), candidate=value, harm=value, notes=_own(comparison, seen))
    if p_value > alpha and (problem := no_room_for_distance(seen, bound)) is not None:
        return replace(finding, problem=problem)
    if not any(item.bound for item in seen.items):
        return replace(finding, limits=limits, p_value=p_value)
    finding = replace(finding, method=_METHOD_BOUND, limits=Limits(limits.lower, math.inf), p_value=p_value)
    return finding if p_value <= alpha else replace(finding, problem=_only_a_bound(seen, value, bound))


def agreement(comparison: Comparison, *, bound: float, alpha: float) -> Finding:
    """Share of positions at which both hold the same token for the most probable, against the least it may be.

    Limits over the pieces; with fewer than ten positions that differ also Clopper-Pearson's, whichever claim less.
    """
    finding = Finding(Unit.RATIO, Scale.ABSOLUTE, bound, _METHOD_SHARE, 0, "positions", lower_is_worse=True)
    seen = usable_reading(comparison.judged)
    if isinstance(seen, Problem):
        return replace(finding, problem=seen)
    differs = _less_floor(seen.items, lambda item: not item.same_top1, lambda item: _not(item.floor_same_top1))
    spread = _over_pieces(differs, seen.items)
    if isinstance(spread, Problem):
        return replace(finding, problem=spread)
    limits, p_value = spread.limits(alpha), spread.p_above(1 - bound)
    if np.count_nonzero(differs) < _FEW:
        limits, p_value = _widened(limits, p_value, differs, 1 - bound, alpha)
    value = min(1.0, 1 - spread.mean)
    own = _over_pieces(_disagreeing_with_itself(seen.items), seen.items)
    hidden = None if isinstance(own, Problem) else no_room_for_disagreement(own.mean, own.limits(alpha).upper, bound)
    return replace(
        finding,
        n=len(differs),
        candidate=value,
        harm=value,
        limits=Limits(1 - limits.upper, min(1.0, 1 - limits.lower)),
        p_value=p_value,
        problem=hidden if p_value > alpha else None,
        notes=_own(comparison, seen),
    )


def perplexity(comparison: Comparison, *, margin: float, breach: bool, alpha: float) -> Finding:
    """ln of the perplexities' ratio: the mean over positions of ln p(baseline) - ln p(candidate) of the text's token.

    t limits over the pieces, against ln(1 + margin). Against a stored run, its candidate stands for the baseline.
    """
    finding = Finding(
        Unit.PERPLEXITY, Scale.LOG_RATIO, math.log1p(margin), _METHOD_RATIO, 0, "positions", breach=breach
    )
    ours = usable_reading(comparison.judged)
    theirs = ours if comparison.reference is None else usable_reading(comparison.reference)
    if isinstance(ours, Problem) or isinstance(theirs, Problem):
        problem = ours if isinstance(ours, Problem) else theirs
        return replace(finding, problem=problem if isinstance(problem, Problem) else None)
    baseline = {one.place: one.candidate_ln if comparison.stored else one.baseline_ln for one in theirs.items}
    if baseline.keys() != {one.place for one in ours.items}:
        return replace(finding, problem=invalid("the two runs looked at other positions", _SAME_SUITE))
    read = [(baseline[one.place], one.candidate_ln) for one in ours.items]
    known = [(b, c) for b, c in read if b is not None and c is not None]
    if len(known) < len(read):
        return replace(finding, problem=invalid(_UNTOLD, _TELLING))
    b, c = np.array(known, dtype=np.float64).T
    spread = _over_pieces(b - c, ours.items)
    if isinstance(spread, Problem):
        return replace(finding, problem=spread)
    limits = _limits(spread, b - c, ours.items, alpha)
    return replace(
        finding,
        n=len(known),
        baseline=math.exp(-float(b.mean())),
        candidate=math.exp(-float(c.mean())),
        harm=spread.mean,
        limits=limits,
        p_value=spread.p_above(finding.margin if breach else 0.0),
        problem=invalid(_TOO_GOOD, _LOOK_AT_BASELINE) if limits.upper < -_IMPLAUSIBLE else None,
        notes=_notes(ours),
    )


def _less_floor(
    items: Sequence[DivergenceItem],
    value: Callable[[DivergenceItem], float],
    floor: Callable[[DivergenceItem], float | None],
) -> FloatArray:
    """The value at each position, less that of the baseline against itself where it was asked twice."""
    return np.array([float(value(item)) - float(floor(item) or 0.0) for item in items], dtype=np.float64)


def _disagreeing_with_itself(items: Sequence[DivergenceItem]) -> FloatArray:
    return np.array([item.floor_same_top1 is False for item in items], dtype=np.float64)


def _over_pieces(values: FloatArray, items: Sequence[DivergenceItem]) -> PooledMean | Problem:
    """The mean, and how sure it is: what is near in a text is alike, so only its pieces count as independent."""
    mean = cluster_mean(values, _pieces(items))
    if mean is None or mean.clusters < MIN_CLUSTERS:
        pieces = len({(item.text_id, item.piece) for item in items})
        reason = f"the positions lie in {pieces} pieces of text, and it takes {MIN_CLUSTERS} to know their spread"
        return Problem(Outcome.INCONCLUSIVE, reason, "give more texts, or a smaller `divergence.window`")
    return pool_means([mean])


def _limits(spread: PooledMean, values: FloatArray, items: Sequence[DivergenceItem], alpha: float) -> Limits:
    """Student's, with the upper one raised for the long tail that a few broken positions make."""
    limits, raised = spread.limits(alpha), skewness_adjusted_upper_limit(values, _pieces(items), alpha)
    return limits if raised is None else Limits(limits.lower, max(limits.upper, raised))


def _pieces(items: Sequence[DivergenceItem]) -> list[str]:
    return [f"{item.text_id}\n{item.piece}" for item in items]


def _widened(limits: Limits, p_value: float, differs: FloatArray, most: float, alpha: float) -> tuple[Limits, float]:
    """The limits and the p-value of "the share is at most `most`" with what so few positions alone can show."""
    n, above, below = len(differs), int(np.count_nonzero(differs > 0)), int(np.count_nonzero(differs < 0))
    alone = clopper_pearson(above, n, alpha)
    lowest = -clopper_pearson(below, n, alpha).upper if below else alone.lower
    widened = Limits(min(limits.lower, lowest), max(limits.upper, alone.upper))
    return widened, max(p_value, binom_sf(above - 1, n, most))


def _own(comparison: Comparison, seen: DivergenceObservation) -> tuple[str, ...]:
    """The notes on a distance, which is always from the baseline that was read beside the candidate."""
    name = comparison.judged.run.arms[Arm.BASELINE].name
    return (*_notes(seen), *([f"from {name}, the baseline of its own run"] if comparison.stored else []))


def _notes(seen: DivergenceObservation) -> tuple[str, ...]:
    """The tail, the baseline's own, and by what means."""
    values = np.array([item.kld for item in seen.items], dtype=np.float64)
    at_least = "at least " if any(item.bound for item in seen.items) else ""
    tail = [
        f"{name} at most {at_least}{units.show_nats(value)}"
        for name, q, fewest in (("99 %", 0.99, 100), ("99.9 %", 0.999, 1000))
        if len(values) >= fewest and (value := quantile(values, q)) is not None
    ]
    notes = [
        f"KLD of the positions: {', '.join([*tail, f'the largest {at_least}{units.show_nats(float(values.max()))}'])}"
    ]
    floor = [item.floor_kld for item in seen.items if item.floor_kld is not None]
    if floor:
        mean = sum(floor) / len(floor)
        notes.append(f"the baseline lies {at_least}{units.show_nats(mean)} from itself, which is taken off")
    listed = f"all {seen.top} tokens of the vocabulary" if seen.whole else f"the {seen.top} most probable tokens"
    return (*notes, f"each arm told {listed} at every position ({seen.way})")


def _only_a_bound(seen: DivergenceObservation, value: float, bound: float) -> Problem:
    """A lower bound below what is allowed shows nothing: the divergence itself may be above."""
    reason = (
        f"at least {units.show_nats(value)} by the {seen.top} most probable tokens, which is not shown to be above "
        f"{units.show_nats(bound)}; that it is below cannot be shown without the whole vocabulary"
    )
    return Problem(Outcome.INCONCLUSIVE, reason, _BOUND_ADVICE)


def _not(known: bool | None) -> bool | None:
    return None if known is None else not known


_METHOD = "mean over positions, t limits over pieces of text, the upper one raised for skewness"
_METHOD_BOUND = "mean of lower bounds over positions, lower t limit over pieces of text"
_METHOD_SHARE = "share of positions, t limits over pieces of text"
_METHOD_RATIO = (
    "mean of ln p(baseline) - ln p(candidate) over positions, t limits over pieces of text, the upper one raised for "
    "skewness"
)
_SAME_SUITE = "measure both with the same suite, seed and texts"
_UNTOLD = "the server does not tell the probability of the text's own tokens where it is asked for a completion (`cut`)"
_TELLING = "use a server that can echo a prompt with its log-probabilities, or remove the check"
_BOUND_ADVICE = (
    "leave the check advisory, and require `same_top1` or `perplexity`, which the listed tokens tell exactly"
)
_IMPLAUSIBLE = 0.05
_TOO_GOOD = "it is so much below the baseline's that the baseline may be broken, or the candidate tells what is not so"
_LOOK_AT_BASELINE = (
    "ask both arms a few of the texts yourself, for a server that tells p = 1 for every token scores best; where the "
    "gain is real, make the check advisory"
)


class Divergence:
    """Distance of the candidate's token probabilities on fixed texts."""

    metrics = names_of(lambda metric: metric.family == "divergence")

    def estimate(self, spec: CheckSpec, suite: Suite, comparison: Comparison) -> Finding:
        """Measure one check over the pieces of the texts."""
        check, alpha = spec.check, suite.gate.alpha
        if check.margin is not None:
            return perplexity(comparison, margin=check.margin, breach=check.block_when == "breach", alpha=alpha)
        judged = divergence if check.metric == "kld" else agreement
        return judged(comparison, bound=bound_of(spec).value, alpha=alpha)
