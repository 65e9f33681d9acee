"""Sequential and multiple tests: O'Brien-Fleming boundaries, e-values and Holm's adjustment.

Group-sequential boundaries (interim analyses, "looks"): at look k a fraction t_k of all data is there. Under H0 the
running sum of the data behaves as a Brownian motion B(t) at the instants t_k, whatever the test (the canonical joint
distribution; Jennison and Turnbull, Group Sequential Methods with Applications to Clinical Trials, 2000, chapter 3).

E-values (betting; Waudby-Smith and Ramdas, "Estimating means of bounded random variables by betting", JRSS B 86, 2024)
test "the candidate loses at most `margin` per item" after every item. A stake λ turns each difference d, baseline less
candidate, into a factor 1 + λ(d - margin). Under the claim neither the products nor their mean over all stakes from 0
to 1/(1 + margin) are expected to grow. By Ville's inequality (1939) that mean ever reaches 1/alpha with probability at
most alpha. At margin 0 and for right or wrong items it is the mixture of a sign test, 2^(m+1)·B(b+1, c+1)·(1 - I_½(b+1,
c+1)), m = b + c. The order of items must not depend on their difficulty, and each cluster counts by its first item
only.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from itertools import pairwise

import numpy as np
import scipy

from benchgate.model.records import FloatArray
from benchgate.stats.distributions import bisect, check_alpha, norm_ppf, norm_sf

_FAR_SD = 8.5  # standard deviations below which paths of B are dropped (a share of 1e-17)
_NODES_PER_SD = 4  # Gauss-Legendre nodes per standard deviation of the shortest step, enough for full precision
_NODES_AT_ONCE = 48
_STAKES = 64  # Gauss-Legendre nodes over stakes. Any fixed set is valid; 64 integrate exactly up to 127 items.
_MOST_LOG = 700.0


def holm(p_values: Sequence[float]) -> tuple[float, ...]:
    """Return Holm's step-down adjusted p-values (1979) in the given order: max over j <= i of (m-j+1)·p(j), at most 1.

    Rejecting where the result is <= alpha keeps the family-wise error rate at alpha under any dependence. Empty in,
    empty out. Raises ValueError for a p-value outside [0, 1], NaN included.
    """
    for p_value in p_values:
        if not 0 <= p_value <= 1:
            raise ValueError(f"{p_value!r} is not a p-value; expected a number from 0 to 1")
    adjusted = [1.0] * len(p_values)
    running = 0.0
    for step, place in enumerate(sorted(range(len(p_values)), key=p_values.__getitem__)):
        running = max(running, min(1.0, (len(p_values) - step) * p_values[place]))
        adjusted[place] = running
    return tuple(adjusted)


def obrien_fleming(fractions: Sequence[float], alpha: float) -> tuple[float, ...]:
    """Return the one-sided z boundary C/√t_k of each look, with C so that H0 crosses any with probability `alpha`.

    O'Brien and Fleming (Biometrics 35, 1979), for looks at any fractions of the data. `fractions` rise to 1: looks
    after 5, 10 and 20 of 20 blocks are (0.25, 0.5, 1). Raises ValueError for others, and for an alpha outside (0, 0.5).
    """
    check_alpha(alpha)
    return _boundary(_checked_fractions(fractions), alpha)


def look_alphas(fractions: Sequence[float], alpha: float) -> tuple[float, ...]:
    """Return the error probability P(Z > z) of each look, at which its limits and tests are computed."""
    return tuple(norm_sf(z) for z in obrien_fleming(fractions, alpha))


def repeated_p(p_value: float, look: int, fractions: Sequence[float]) -> float:
    """Return the repeated p-value of a one-sided test that has the p-value `p_value` at look number `look` (from 1).

    It is the smallest alpha whose O'Brien-Fleming boundary the statistic reaches at this look: P(B(t_k) >= z·√t_look at
    any k), z = Φ⁻¹(1 - p) (Jennison and Turnbull, J. R. Statist. Soc. B 51, 1989). It is at most alpha exactly when
    `p_value` is at most this look's tail, and valid whatever the reason to stop. Raises ValueError for an invalid
    p-value, an invalid look, and fractions that do not rise to 1.
    """
    steps = _checked_fractions(fractions)
    if not 0 <= p_value <= 1:
        raise ValueError(f"{p_value!r} is not a p-value; expected a number from 0 to 1")
    if not 1 <= look <= len(steps):
        raise ValueError(f"look {look} of {len(steps)}; expected a number from 1 to {len(steps)}")
    if p_value in (0.0, 1.0):
        return float(p_value)
    if len(steps) == 1:
        return p_value
    return min(1.0, max(p_value, _crossing(-norm_ppf(p_value) * math.sqrt(steps[look - 1]), steps)))


def _checked_fractions(fractions: Sequence[float]) -> tuple[float, ...]:
    steps = tuple(float(fraction) for fraction in fractions)
    rising = all(before < after for before, after in pairwise((0.0, *steps)))
    if not steps or not rising or steps[-1] != 1:
        raise ValueError(f"looks at the fractions {list(steps)}; expected fractions that rise from above 0 to 1")
    return steps


@lru_cache(maxsize=256)
def _boundary(steps: tuple[float, ...], alpha: float) -> tuple[float, ...]:
    if len(steps) == 1:
        return (-norm_ppf(alpha),)
    # The probability of crossing falls in C, is above alpha at 0 and below it at Bonferroni's bound.
    scale = bisect(lambda bound: _crossing(bound, steps) <= alpha, 0.0, -norm_ppf(alpha / len(steps)))
    return tuple(scale / math.sqrt(step) for step in steps)


@lru_cache(maxsize=4096)
def _crossing(bound: float, steps: tuple[float, ...]) -> float:
    """Return P(B(t_k) >= bound at any of the steps t_k) by the recursion of Armitage, McPherson and Rowe (1969).

    f_k is the density of B(t_k) on the paths that stayed below so far: f_1 normal, f_k(y) = ∫ f_{k-1}(x)·φ(step) dx
    over x < bound, by Gauss-Legendre quadrature. A path at x crosses next with probability P(Z >= (bound - x)/√(t_{k+1}
    - t_k)).
    """
    if bound <= -_FAR_SD * math.sqrt(steps[0]):
        return 1.0
    shortest = math.sqrt(min(after - before for before, after in pairwise((0.0, *steps))))
    positions, weights = _nodes(bound, steps[0], shortest)
    density = _normal_density(positions, math.sqrt(steps[0]))
    crossed = norm_sf(bound / math.sqrt(steps[0]))
    for before, after in pairwise(steps):
        step = math.sqrt(after - before)
        crossed += float(np.sum(weights * density * scipy.special.ndtr((positions - bound) / step)))
        reached, widths = _nodes(bound, after, shortest)
        density = (weights * density) @ _normal_density(reached[None, :] - positions[:, None], step)
        positions, weights = reached, widths
    return crossed


def _nodes(bound: float, at: float, sd: float) -> tuple[FloatArray, FloatArray]:
    """Return Gauss-Legendre nodes and weights of B(at) below the bound, dense enough for a step of deviation `sd`."""
    far = _FAR_SD * math.sqrt(at)
    lowest, highest = -far, min(bound, far)
    times = math.ceil(_NODES_PER_SD * (highest - lowest) / sd / _NODES_AT_ONCE)
    positions, weights = _legendre(_NODES_AT_ONCE * times)
    half = (highest - lowest) / 2
    return lowest + half * (positions + 1), half * weights


@lru_cache(maxsize=64)
def _legendre(count: int) -> tuple[FloatArray, FloatArray]:
    positions, weights = np.polynomial.legendre.leggauss(count)
    return positions, weights


def _normal_density(values: FloatArray, sd: float) -> FloatArray:
    density: FloatArray = np.exp(-0.5 * (values / sd) ** 2) / (sd * math.sqrt(2 * math.pi))
    return density


def e_values(differences: FloatArray, margin: float) -> FloatArray:
    """Return the e-value against "regression <= margin" after each item; element i covers items 0 to i.

    `differences` are baseline less candidate, each in [-1, 1]. Raises ValueError for others, NaN included, and for a
    margin outside [0, 1).
    """
    if not 0 <= margin < 1:
        raise ValueError(f"margin is {margin!r}; expected a harm of at least 0 and below 1")
    values = np.asarray(differences, dtype=np.float64)
    if not (np.abs(values) <= 1).all():
        raise ValueError("differences must lie from -1 to 1: of scores from 0 to 1")
    positions, widths = _legendre(_STAKES)
    nodes, weights = (positions + 1) / 2, widths / 2  # from 0 to 1; the weights sum to 1
    stakes = nodes / (1 + margin)  # the largest for which no product can fall below 0
    logs = np.cumsum(np.log1p(stakes * (values[:, None] - margin)), axis=0)
    evidence: FloatArray = (np.exp(np.minimum(logs, _MOST_LOG)) * weights).sum(axis=1)  # no overflow
    return evidence


def anytime_p(differences: FloatArray, margin: float) -> float:
    """Return a p-value of "regression <= margin" that is valid whatever the reason to stop: 1 / the largest e-value."""
    if len(differences) == 0:
        return 1.0
    return float(min(1.0, 1 / e_values(differences, margin).max()))


def independent_differences(
    baseline_scores: Sequence[float], candidate_scores: Sequence[float], clusters: Sequence[str | None] | None = None
) -> FloatArray:
    """Return baseline less candidate of each cluster's first item; empty if any score is not from 0 to 1.

    A cluster of None is the item's own. Raises ValueError when the lengths differ.
    """
    baseline, candidate = np.asarray(baseline_scores, dtype=np.float64), np.asarray(candidate_scores, dtype=np.float64)
    if baseline.shape != candidate.shape:
        sizes = f"{baseline.size} baseline scores and {candidate.size} candidate scores"
        raise ValueError(f"{sizes}; expected equal numbers")
    if not all(((scores >= 0) & (scores <= 1)).all() for scores in (baseline, candidate)):
        return np.zeros(0)
    differences: FloatArray = baseline - candidate
    if clusters is None:
        return differences
    if len(clusters) != len(differences):
        raise ValueError(f"{len(clusters)} clusters for {len(differences)} items; expected one for each")
    seen: set[str | None] = set()
    first = []
    for cluster in clusters:
        first.append(cluster is None or cluster not in seen)
        seen.add(cluster)
    return differences[np.array(first, dtype=np.bool_)]
