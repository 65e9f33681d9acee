"""Looking at data before all of it is there, without raising the chance of an error: group-sequential boundaries.

At look k the fraction t_k of all data is there. Under H0 the running sum of what was seen behaves as a Brownian motion
B(t) at the instants t_k, whatever the tests are (the canonical joint distribution; Jennison and Turnbull, Group
Sequential Methods with Applications to Clinical Trials, 2000, chapter 3).

Harm that may be looked for after every item: evidence that keeps its error probability whenever one stops.

Betting (Waudby-Smith and Ramdas, "Estimating means of bounded random variables by betting", JRSS B 86, 2024): against
"the candidate loses at most `margin` an item" a stake λ turns each difference d, baseline less candidate, into a factor
1 + λ(d - margin). If the claim holds, none of the products can be expected to grow, nor can their mean over all stakes
from 0 to 1/(1 + margin); by Ville's inequality (1939) that mean ever reaches 1/alpha with probability alpha at most,
however often one looks. At margin 0 and for right or wrong it is the mixture of a sign test that has a closed form,
2^(m+1)·B(b+1, c+1)·(1 - I_½(b+1, c+1)), m = b + c.

Items must come in an order that has nothing to do with how hard they are, and those of one cluster must not count each:
of a cluster only its first item speaks.

Many checks, one error probability.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from functools import lru_cache
from itertools import pairwise

import numpy as np
from scipy.special import ndtr

from benchgate.model.records import FloatArray
from benchgate.stats.distributions import check_alpha, norm_ppf, norm_sf

_FAR_SD = 8.5
"""What B may be below: a path further down than so many standard deviations is not followed (1e-17 of them)."""
_NODES_PER_SD = 4
"""Gauss-Legendre nodes over one standard deviation of the shortest step: enough for all digits that count."""
_NODES_AT_ONCE = 48
_HALVINGS = 60


def obrien_fleming(fractions: Sequence[float], alpha: float) -> tuple[float, ...]:
    """One-sided z at each look, C/√t_k, with C so that the chance of crossing any of them under H0 is `alpha`.

    O'Brien and Fleming (Biometrics 35, 1979), for looks at any fractions of the data. `fractions` rise to 1: looks
    after 5, 10 and 20 of 20 blocks are (0.25, 0.5, 1). ValueError for others, and for an alpha outside (0, 0.5).
    """
    check_alpha(alpha)
    return _boundary(_checked(fractions), alpha)


def look_tails(fractions: Sequence[float], alpha: float) -> tuple[float, ...]:
    """The same as error probabilities, P(Z > z) at each look: what limits and tests of that look are taken at.

    A t statistic takes the quantile of its own law with this tail. ValueError as there.
    """
    return tuple(norm_sf(z) for z in obrien_fleming(fractions, alpha))


def repeated_p(p_value: float, look: int, fractions: Sequence[float]) -> float:
    """The repeated p-value of a one-sided test whose own p-value at look number `look` (from 1) is `p_value`.

    The smallest alpha whose O'Brien-Fleming boundary the statistic reaches at this look, which is
    P(B(t_k) >= z·√t_look at any k), z = Φ⁻¹(1 - p) (Jennison and Turnbull, J. R. Statist. Soc. B 51, 1989). At most
    alpha exactly where `p_value` is at most this look's tail, and valid whenever and why ever one stopped. ValueError
    for what is no p-value, a look there is not, and fractions that do not rise to 1.
    """
    steps = _checked(fractions)
    if not 0 <= p_value <= 1:
        raise ValueError(f"{p_value!r} is not a p-value; expected a number from 0 to 1")
    if not 1 <= look <= len(steps):
        raise ValueError(f"look {look} of {len(steps)}; expected a number from 1 to {len(steps)}")
    if p_value in (0.0, 1.0):
        return float(p_value)
    if len(steps) == 1:
        return p_value
    return min(1.0, max(p_value, _crossing(-norm_ppf(p_value) * math.sqrt(steps[look - 1]), steps)))


def _checked(fractions: Sequence[float]) -> tuple[float, ...]:
    steps = tuple(float(fraction) for fraction in fractions)
    rising = all(before < after for before, after in pairwise((0.0, *steps)))
    if not steps or not rising or steps[-1] != 1:
        raise ValueError(f"looks at the fractions {list(steps)}; expected fractions that rise from above 0 to 1")
    return steps


@lru_cache(maxsize=256)
def _boundary(steps: tuple[float, ...], alpha: float) -> tuple[float, ...]:
    """By bisection: the chance of crossing falls in C, is above alpha at 0 and below it at Bonferroni's bound."""
    if len(steps) == 1:
        return (-norm_ppf(alpha),)
    low, high = 0.0, -norm_ppf(alpha / len(steps))
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        low, high = (middle, high) if _crossing(middle, steps) > alpha else (low, middle)
    return tuple(high / math.sqrt(step) for step in steps)


@lru_cache(maxsize=4096)
def _crossing(bound: float, steps: tuple[float, ...]) -> float:
    """P(B(t_k) >= bound at any of the steps t_k), by the recursion of Armitage, McPherson and Rowe (1969).

    f_k is the density of B(t_k) on the paths that stayed below so far: f_1 normal, f_k(y) = ∫ f_{k-1}(x)·φ(step) dx
    over x < bound, by Gauss-Legendre quadrature; a path at x crosses next with P(Z >= (bound - x)/√(t_{k+1} - t_k)).
    """
    if bound <= -_FAR_SD * math.sqrt(steps[0]):
        return 1.0
    shortest = math.sqrt(min(after - before for before, after in pairwise((0.0, *steps))))
    places, weights = _nodes(bound, steps[0], shortest)
    density = _normal(places, math.sqrt(steps[0]))
    crossed = norm_sf(bound / math.sqrt(steps[0]))
    for before, after in pairwise(steps):
        step = math.sqrt(after - before)
        crossed += float(np.sum(weights * density * ndtr((places - bound) / step)))
        reached, widths = _nodes(bound, after, shortest)
        density = (weights * density) @ _normal(reached[None, :] - places[:, None], step)
        places, weights = reached, widths
    return crossed


def _nodes(bound: float, at: float, sd: float) -> tuple[FloatArray, FloatArray]:
    """Gauss-Legendre places and weights of B(at) below the bound, close enough for a step of this deviation."""
    far = _FAR_SD * math.sqrt(at)
    lowest, highest = -far, min(bound, far)
    times = math.ceil(_NODES_PER_SD * (highest - lowest) / sd / _NODES_AT_ONCE)
    places, weights = _legendre(_NODES_AT_ONCE * times)
    half = (highest - lowest) / 2
    return lowest + half * (places + 1), half * weights


@lru_cache(maxsize=64)
def _legendre(count: int) -> tuple[FloatArray, FloatArray]:
    places, weights = np.polynomial.legendre.leggauss(count)
    return places, weights


def _normal(values: FloatArray, sd: float) -> FloatArray:
    density: FloatArray = np.exp(-0.5 * (values / sd) ** 2) / (sd * math.sqrt(2 * math.pi))
    return density


_STAKES = 64
"""Nodes of a Gauss-Legendre rule: any fixed set of stakes is valid; these give the integral itself up to 127 items."""
_MOST = 700.0


def e_values(differences: FloatArray, margin: float) -> FloatArray:
    """The evidence against "harm <= margin" after each item; element i has seen items 0 to i.

    `differences` are baseline less candidate, each in [-1, 1]. ValueError for others, NaN included, and for a margin
    outside [0, 1).
    """
    if not 0 <= margin < 1:
        raise ValueError(f"margin is {margin!r}; expected a harm of at least 0 and below 1")
    values = np.asarray(differences, dtype=np.float64)
    if not (np.abs(values) <= 1).all():
        raise ValueError("differences must lie from -1 to 1: of scores from 0 to 1")
    nodes, weights = _rule()
    stakes = nodes / (1 + margin)  # up to there no product can fall below 0
    logs = np.cumsum(np.log1p(stakes * (values[:, None] - margin)), axis=0)
    # Far beyond any use the evidence would be larger than a number can be.
    evidence: FloatArray = (np.exp(np.minimum(logs, _MOST)) * weights).sum(axis=1)
    return evidence


@functools.cache
def _rule() -> tuple[FloatArray, FloatArray]:
    """Stakes from 0 to 1 and their weights, which sum to 1."""
    nodes, weights = np.polynomial.legendre.leggauss(_STAKES)
    return (nodes + 1) / 2, weights / 2


def anytime_p(differences: FloatArray, margin: float) -> float:
    """p-value of "harm <= margin" that holds however the number of items was arrived at: 1 / the most evidence seen."""
    if len(differences) == 0:
        return 1.0
    return float(min(1.0, 1 / e_values(differences, margin).max()))


def independent_differences(
    baseline_scores: Sequence[float], candidate_scores: Sequence[float], clusters: Sequence[str | None] | None = None
) -> FloatArray:
    """Baseline less candidate of the first item of each cluster; none at all where a score is not from 0 to 1.

    A cluster of None is the item's own.
    """
    theirs, ours = np.asarray(baseline_scores, dtype=np.float64), np.asarray(candidate_scores, dtype=np.float64)
    if theirs.shape != ours.shape:
        raise ValueError(f"{theirs.size} scores of the baseline and {ours.size} of the candidate; expected as many")
    if not all(((scores >= 0) & (scores <= 1)).all() for scores in (theirs, ours)):
        return np.zeros(0)
    differences: FloatArray = theirs - ours
    if clusters is None:
        return differences
    if len(clusters) != len(differences):
        raise ValueError(f"{len(clusters)} clusters for {len(differences)} items; expected one for each")
    seen: set[str] = set()
    first = []
    for cluster in clusters:
        first.append(cluster is None or cluster not in seen)
        seen.update(() if cluster is None else (cluster,))
    return differences[np.array(first, dtype=np.bool_)]


def holm(p_values: Sequence[float]) -> tuple[float, ...]:
    """Holm's step-down adjusted p-values (1979), in the order given: max over j <= i of (m-j+1)·p(j), at most 1.

    Rejecting where the result is <= alpha keeps the chance of any false rejection at alpha, whatever the dependence.
    Empty in, empty out. ValueError for a p-value outside [0, 1], NaN included: undefined is no evidence either way.
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
