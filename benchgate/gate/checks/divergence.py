"""Distance of the candidate's next-token probabilities from the baseline's, at each position of fixed texts.

`kld` and `same_top1` bound the candidate's distance from its own baseline. Where the baseline was queried twice, its
distance from itself is subtracted at each position. `perplexity` is compared with the baseline measured beside it, or
with the candidate of a stored run on the same texts. A reading that is incomplete or impossible is INVALID.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np

from benchgate import units
from benchgate.gate.comparison import Comparison, TiedRuns
from benchgate.gate.decision import Estimate, inconclusive, invalid
from benchgate.gate.policy import CheckSpec
from benchgate.model.deployment import Arm
from benchgate.model.metric import names_of
from benchgate.model.records import DivergenceItem, DivergenceObservation, FloatArray
from benchgate.model.request_metrics import quantile
from benchgate.model.run import Evidence
from benchgate.stats.clusters import (
    MIN_CLUSTERS,
    PooledMean,
    cluster_mean,
    cluster_sums,
    miss_share_limits,
    miss_share_p,
    pool_means,
    skewness_adjusted_upper_limit,
)
from benchgate.stats.distributions import Limits, exp_or_inf
from benchgate.stats.meta import EstimateWithLimits, weighted_sum
from benchgate.suite.schema import Suite

_MOST_WITHOUT_COMMON_TOKEN = 0.1
"""Share of positions without a common token above which the tokenizers are taken to differ, if texts are cut."""
_FEW_DIFFER = 10  # below this number of differing positions, those of the baseline itself are not subtracted
_IMPLAUSIBLE_GAIN = 0.05  # fall of ln(perplexity) below the baseline's that is not credible

_MEASURE_AGAIN = "see the servers' logs and measure again; this says nothing for or against the candidate"
_NOISY = "see why the baseline's probabilities change so much from one request to the next, and measure again"
_NO_METHOD = (
    "see why each method failed: both arms need the completions endpoint, a context as long as `divergence.window`, "
    "and as many log-probabilities as `divergence.top`"
)
_TOKENIZERS = "see whether both serve the same tokenizer, and send both arms a few prompts yourself"
_SAME_SUITE = "measure both with the same suite, seed and texts"
_NO_TOKEN_PROBABILITY = "the server does not return the probability of the text's own tokens with a completion (`cut`)"
_ECHO = "use a server that can echo a prompt with its log-probabilities, or remove the check"
_ONLY_A_BOUND = "leave the check advisory and require `same_top1` or `perplexity`, which the listed tokens give exactly"
_TOO_GOOD = (
    "it is so far below the baseline's that the baseline may be broken, or the candidate reports wrong probabilities"
)
_CHECK_BASELINE = (
    "send both arms a few of the texts yourself: a server that reports p = 1 for every token scores best; if the gain "
    "is real, make the check advisory"
)


def usable_reading(evidence: Evidence) -> DivergenceObservation:
    """Return the reading of the fixed texts. Raises CannotJudge unless it is complete and possible."""
    reading = evidence.divergence
    if reading is None:
        raise invalid("the fixed texts were not read", _MEASURE_AGAIN)
    if reading.fault is not None:
        advice = _MEASURE_AGAIN if reading.way is not None else _NO_METHOD
        raise invalid(f"the fixed texts were not read as planned: {reading.fault}", advice)
    items = reading.items
    if len(items) != reading.expected_n or not items:
        raise invalid(f"only {len(items)} of {reading.expected_n} positions were read", _MEASURE_AGAIN)
    if len({item.place for item in items}) < len(items):
        raise invalid("a position was read twice", _MEASURE_AGAIN)
    divergences: list[float | None] = [item.kld for item in items]
    divergences += [item.floor_kld for item in items if item.floor_kld is not None]
    logs = [ln for item in items for ln in (item.baseline_ln, item.candidate_ln) if ln is not None]
    possible = all(value is not None and 0 <= value < math.inf for value in divergences)
    if not possible or not all(-math.inf < ln <= 0 for ln in logs):
        raise invalid("a divergence or a probability has an impossible value", _MEASURE_AGAIN)
    if len({(item.floor_kld is None, item.floor_same_top1 is None) for item in items}) > 1:
        raise invalid("the baseline was queried a second time at some positions only", _MEASURE_AGAIN)
    without = sum(item.shared == 0 for item in items)
    if reading.way == "cut" and without > _MOST_WITHOUT_COMMON_TOKEN * len(items):
        reason = f"at {without} of {len(items)} positions the arms list no token in common"
        raise invalid(f"{reason}: their tokenizers differ, or the candidate's answers are noise", _TOKENIZERS)
    return reading


class Divergence:
    """Distance of the candidate's token probabilities on fixed texts."""

    metrics = names_of(lambda metric: metric.family == "divergence")

    def measure(
        self, estimate: Estimate, spec: CheckSpec, suite: Suite, comparison: Comparison, *, alpha: float
    ) -> None:
        """Measure one check over the pieces of the texts."""
        estimate.n_unit = "positions"
        by_metric = {"kld": measure_divergence, "same_top1": measure_agreement, "perplexity": measure_perplexity}
        by_metric[spec.check.metric](estimate, comparison, alpha)


def measure_divergence(estimate: Estimate, comparison: Comparison, alpha: float) -> None:
    """Estimate the mean KL(baseline || candidate) over positions in nats, with t limits over the pieces.

    Where only the most probable tokens are listed, each value is a lower bound: it can prove that the divergence is too
    large, never that it is small enough.
    """
    estimate.method = "mean over positions, t limits over pieces of text, the upper one raised for skewness"
    reading, bound = usable_reading(comparison.judged), estimate.margin
    values = _less_floor(reading.items, lambda item: item.kld, lambda item: item.floor_kld)
    spread = _mean_over_pieces(values, reading.items)
    limits, p_value = _skewness_adjusted(spread, values, reading.items, alpha), spread.p_above(bound)
    # The baseline's distance from itself may be the larger one, and a distance below 0 means none.
    value = max(0.0, spread.mean)
    estimate.n, estimate.candidate, estimate.value = len(values), value, value
    estimate.notes = _distance_notes(comparison, reading)
    floor = _mean_floor(reading)
    if p_value > alpha and floor is not None and floor >= bound:  # a broken baseline could let anything pass
        reason = (
            f"the baseline lies {units.show_nats(floor)} from itself, and the candidate may lie "
            f"{units.show_nats(bound)} beyond that: the subtracted noise could hide a broken candidate"
        )
        raise invalid(reason, _NOISY)
    estimate.limits, estimate.p_value = Limits(max(0.0, limits.lower), max(0.0, limits.upper)), p_value
    if any(item.bound for item in reading.items):
        estimate.method = "mean of lower bounds over positions, lower t limit over pieces of text"
        estimate.limits = Limits(estimate.limits.lower, math.inf)
        if p_value > alpha:
            reason = (
                f"at least {units.show_nats(value)} by the {reading.top} most probable tokens, which is not shown to "
                f"be above {units.show_nats(bound)}; that it is below takes the whole vocabulary"
            )
            raise inconclusive(reason, _ONLY_A_BOUND)


def measure_agreement(estimate: Estimate, comparison: Comparison, alpha: float) -> None:
    """Estimate the share of positions at which both arms have the same most probable token.

    Student's t over the pieces and Clopper-Pearson on the effective number of positions; the weaker claim holds. The
    upper limit of the share that differs is raised for skewness.

    In 20 pieces of 10, a candidate that differs at its bound, 5%, passes 5.6% of the time where the intra-class
    correlation is 0.2, by Student's limits alone 15%. At a correlation of 0.5 it is 11%: pieces that differ throughout
    may not be among those read (tests/core/test_divergence_edges.py).
    """
    estimate.method = (
        "share of positions, t limits over pieces of text, the worse one raised for skewness, and Clopper-Pearson "
        "limits on the effective number of positions"
    )
    reading, most = usable_reading(comparison.judged), 1 - estimate.margin
    items = reading.items
    differs = _less_floor(items, lambda item: not item.same_top1, lambda item: item.floor_same_top1 is False)
    spread, n = _mean_over_pieces(differs, items), len(differs)
    exact_limits, exact_p = _exact_test_over_pieces(differs, items, most, alpha)
    limits = _skewness_adjusted(spread, differs, items, alpha).widened(exact_limits)
    p_value = max(spread.p_above(most), exact_p)
    value = min(1.0, 1 - spread.mean)
    estimate.n, estimate.candidate, estimate.value = n, value, value
    estimate.limits, estimate.p_value = Limits(max(0.0, 1 - limits.upper), min(1.0, 1 - limits.lower)), p_value
    estimate.notes = _distance_notes(comparison, reading)
    if p_value > alpha:
        own = _mean_over_pieces(np.array([item.floor_same_top1 is False for item in items], dtype=np.float64), items)
        # A candidate can disagree at no more than the rest of the positions.
        if own.limits(alpha).upper >= estimate.margin:
            reason = f"the baseline disagrees with itself at {units.show_percent(own.mean)} of the positions"
            raise invalid(f"{reason}, so a candidate that agrees nowhere would pass", _NOISY)


def measure_perplexity(estimate: Estimate, comparison: Comparison, alpha: float) -> None:
    """Estimate ln of the ratio of perplexities: the mean over positions of ln p(baseline) - ln p(candidate).

    The probabilities are those of the text's own tokens. Against a stored run, its candidate is the baseline.
    """
    estimate.method = (
        "mean of ln p(baseline) - ln p(candidate) over positions, t limits over pieces of text, the upper one raised "
        "for skewness"
    )
    judged = usable_reading(comparison.judged)
    logs = {one.place: one.baseline_ln for one in judged.items}
    if isinstance(comparison, TiedRuns):
        logs = {one.place: one.candidate_ln for one in usable_reading(comparison.reference).items}
    if logs.keys() != {one.place for one in judged.items}:
        raise invalid("the two runs read different positions", _SAME_SUITE)
    pairs = [(logs[one.place], one.candidate_ln) for one in judged.items]
    known = [(baseline, candidate) for baseline, candidate in pairs if baseline is not None and candidate is not None]
    if len(known) < len(pairs):
        raise invalid(_NO_TOKEN_PROBABILITY, _ECHO)
    baseline, candidate = np.array(known, dtype=np.float64).T
    spread = _mean_over_pieces(baseline - candidate, judged.items)
    limits = _skewness_adjusted(spread, baseline - candidate, judged.items, alpha)
    estimate.n, estimate.notes = len(known), _notes(judged)
    estimate.baseline, estimate.candidate = (exp_or_inf(-float(side.mean())) for side in (baseline, candidate))
    estimate.value, estimate.limits = spread.mean, limits
    estimate.p_value = spread.p_above(estimate.margin if estimate.rule.breach else 0.0)
    if limits.upper < -_IMPLAUSIBLE_GAIN:
        raise invalid(_TOO_GOOD, _CHECK_BASELINE)


def _less_floor(
    items: Sequence[DivergenceItem],
    value: Callable[[DivergenceItem], float],
    floor: Callable[[DivergenceItem], float | None],
) -> FloatArray:
    return np.array([float(value(item)) - float(floor(item) or 0.0) for item in items], dtype=np.float64)


def _mean_over_pieces(values: FloatArray, items: Sequence[DivergenceItem]) -> PooledMean:
    """Return the mean with its error over pieces: nearby positions of a text are alike, so pieces are the clusters."""
    mean = cluster_mean(values, _pieces(items))
    if mean is None or mean.clusters < MIN_CLUSTERS:
        count = len({(item.text_id, item.piece) for item in items})
        reason = f"the positions lie in {count} pieces of text, and {MIN_CLUSTERS} are needed to know their spread"
        raise inconclusive(reason, "give more texts, or a smaller `divergence.window`")
    return pool_means([mean])


def _skewness_adjusted(spread: PooledMean, values: FloatArray, items: Sequence[DivergenceItem], alpha: float) -> Limits:
    """Return t limits, with the upper one raised for the long tail that a few broken positions make."""
    limits, raised = spread.limits(alpha), skewness_adjusted_upper_limit(values, _pieces(items), alpha)
    return limits if raised is None else Limits(limits.lower, max(limits.upper, raised))


def _exact_test_over_pieces(
    differs: FloatArray, items: Sequence[DivergenceItem], most: float, alpha: float
) -> tuple[Limits, float]:
    """Return limits of the mean of values that are 1, 0 or -1, and the p-value of "the share that is 1 is at most".

    Clopper-Pearson on the effective number of positions, of the share that is 1 less the share that is -1. With fewer
    than ten of both, neither share may take anything off the other one's limit.
    """
    pieces = _pieces(items)
    of = cluster_sums(np.ones(len(differs)), pieces).astype(int)
    more, less = (cluster_sums((differs == value).astype(np.float64), pieces).astype(int) for value in (1, -1))
    above, below = (miss_share_limits((of - marked).tolist(), of.tolist(), alpha) for marked in (more, less))
    p_value = miss_share_p((of - more).tolist(), of.tolist(), most, alpha)
    assert above is not None and below is not None and p_value is not None, "several pieces, each with a position"
    shares = [float(marked.sum() / of.sum()) for marked in (more, less)]
    parts = [EstimateWithLimits(share, ends) for share, ends in zip(shares, (above, below), strict=True)]
    limits = weighted_sum([(1.0, parts[0]), (-1.0, parts[1])]).limits
    assert limits is not None, "both shares have limits"
    if more.sum() + less.sum() < _FEW_DIFFER:
        limits = limits.widened(Limits(-below.upper if less.any() else above.lower, above.upper))
    return limits, p_value


def _pieces(items: Sequence[DivergenceItem]) -> list[str]:
    return [f"{item.text_id}\n{item.piece}" for item in items]


def _mean_floor(reading: DivergenceObservation) -> float | None:
    floor = [item.floor_kld for item in reading.items if item.floor_kld is not None]
    return sum(floor) / len(floor) if floor else None


def _distance_notes(comparison: Comparison, reading: DivergenceObservation) -> list[str]:
    name = comparison.judged.run.arms[Arm.BASELINE].name
    return [
        *_notes(reading),
        *([f"from {name}, the baseline of its own run"] if isinstance(comparison, TiedRuns) else []),
    ]


def _notes(reading: DivergenceObservation) -> list[str]:
    values = np.array([item.kld for item in reading.items], dtype=np.float64)
    at_least = "at least " if any(item.bound for item in reading.items) else ""
    tail = [
        f"{name} at most {at_least}{units.show_nats(value)}"
        for name, q, fewest in (("99 %", 0.99, 100), ("99.9 %", 0.999, 1000))
        if len(values) >= fewest and (value := quantile(values, q)) is not None
    ]
    tail.append(f"the largest {at_least}{units.show_nats(float(values.max()))}")
    notes, mean = [f"KLD of the positions: {', '.join(tail)}"], _mean_floor(reading)
    if mean is not None:
        notes.append(f"the baseline lies {at_least}{units.show_nats(mean)} from itself, which is subtracted")
    listed = f"all {reading.top} tokens of the vocabulary"
    if not reading.whole:
        listed = f"the {reading.top} most probable tokens"
    return [*notes, f"each arm listed {listed} at every position ({reading.way})"]
