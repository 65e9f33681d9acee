"""Harm that may be looked for after every item: evidence that keeps its error probability whenever one stops.

Betting (Waudby-Smith and Ramdas, "Estimating means of bounded random variables by betting", JRSS B 86, 2024): against
"the candidate loses at most `margin` an item" a stake λ turns each difference d, baseline less candidate, into a factor
1 + λ(d - margin). If the claim holds, none of the products can be expected to grow, nor can their mean over all stakes
from 0 to 1/(1 + margin); by Ville's inequality (1939) that mean ever reaches 1/alpha with probability alpha at most,
however often one looks. At margin 0 and for right or wrong it is the mixture of a sign test that has a closed form,
2^(m+1)·B(b+1, c+1)·(1 - I_½(b+1, c+1)), m = b + c.

Items must come in an order that has nothing to do with how hard they are, and those of one cluster must not count each:
of a cluster only its first item speaks.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence

import numpy as np

from benchgate.model.records import FloatArray

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
