"""How much more a candidate disagrees with its baseline than the baseline disagrees with itself."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from benchgate.model.records import FloatArray
from benchgate.stats.distributions import binom_sf, norm_sf
from benchgate.stats.limits import Limits
from benchgate.stats.paired import paired_t, sign_p
from benchgate.stats.proportions import clopper_pearson, score_limits, score_statistic

_SELF_WEIGHT = 0.5
"""What a prompt takes off the excess when the baseline differs from itself and the candidate sides with one answer."""
_FEW = 10
"""Below this many differing prompts a t interval is not trusted alone."""
_WIDEST = 1.5
"""The largest difference of two excesses of one prompt: +1 in one run, -1/2 in the other."""


@dataclass(frozen=True, slots=True)
class Excess:
    """Excess disagreement over n prompts (a share), its one-sided limits, and the p-value of "at most the margin"."""

    estimate: float
    limits: Limits
    p_harm: float
    n: int


def excess_disagreement(x: FloatArray, y: FloatArray, alpha: float, *, margin: float = 0.0) -> Excess | None:
    """Mean of x - y over independent prompts, each answered by the baseline twice (P, S) and the candidate once (C).

    x = ½(1[C≠P] + 1[C≠S]), y = 1[P≠S] per prompt. Then x - y is one of three values: +1 (P = S, C differs), -½ (P ≠ S,
    C sides with one), 0. So the limits are Tango's score limits with weight ½ (`score_statistic`), and p_harm of
    H0 "excess <= 0" is exact: given m prompts that are not 0, the +1 are at most Bin(m, ⅓) under H0. For a margin above
    0 it is 1 - Φ(T).

    t limits are too narrow where few prompts differ (no spread at all when none does): at 100 prompts, a margin of
    5 points and 1 % self-disagreement they accept a candidate at the margin 9.5 % of the time where 5 % is promised,
    the score limits 4.3 % (40,000 simulations). One or two differing prompts never show harm at alpha 5 %.

    None without prompts. ValueError when x and y differ in length or x - y takes any other value: the equality of three
    answers cannot give one, so the answers were not those of one prompt.
    """
    first, second = np.asarray(x, dtype=np.float64), np.asarray(y, dtype=np.float64)
    if first.shape != second.shape:
        raise ValueError(f"x has {first.size} prompts and y {second.size}; expected the same prompts in both")
    gap, n = first - second, len(first)
    more, fewer = int(np.count_nonzero(gap == 1)), int(np.count_nonzero(gap == -_SELF_WEIGHT))
    if more + fewer + int(np.count_nonzero(gap == 0)) != n:
        raise ValueError("x - y must be 1, -½ or 0 for every prompt; expected x and y of the same three answers")
    if n == 0:
        return None
    limits = score_limits(more, fewer, n, alpha, weight=_SELF_WEIGHT)
    if margin == 0:
        p_harm = binom_sf(more - 1, more + fewer, _SELF_WEIGHT / (1 + _SELF_WEIGHT))
    else:
        p_harm = norm_sf(score_statistic(more, fewer, n, margin, weight=_SELF_WEIGHT))
    return Excess((more - _SELF_WEIGHT * fewer) / n, limits, p_harm, n)


def excess_change(judged: FloatArray, reference: FloatArray, alpha: float, *, margin: float = 0.0) -> Excess | None:
    """Mean of judged - reference: what one run's candidate adds to another's, prompt by prompt.

    Both are the x - y of `excess_disagreement`, over the same prompts in the same order. t limits and p; below ten
    differing prompts also Clopper-Pearson limits on the share that differs, times the largest difference, and the sign
    test, whichever claims less. None below two prompts or when a value is not finite.
    """
    gap = np.asarray(judged, dtype=np.float64) - np.asarray(reference, dtype=np.float64)
    test, sign = paired_t(gap, alpha, margin=margin), sign_p(gap)
    if test is None or sign is None:
        return None
    limits, p_harm, n = test.limits, test.p_harm, len(gap)
    above, below = int(np.count_nonzero(gap > 0)), int(np.count_nonzero(gap < 0))
    if above + below < _FEW:
        upper = _WIDEST * clopper_pearson(above, n, alpha).upper
        lower = -_WIDEST * clopper_pearson(below, n, alpha).upper
        limits, p_harm = Limits(min(limits.lower, lower), max(limits.upper, upper)), max(p_harm, sign)
    return Excess(test.mean, limits, p_harm, n)
