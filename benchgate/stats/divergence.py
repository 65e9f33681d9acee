"""How far one model's next-token probabilities lie from another's, from what both list.

A listing is ln p by token: the whole vocabulary, or the most probable tokens of it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

from benchgate.model.records import FloatArray

Listing = Mapping[str, float]

_LEAST_LN = -87.3
"""ln of the smallest float32 that is not denormal: what a server lists as less, or not at all, it computed as 0."""
_ROUNDING = 1e-6
"""Mass that listed probabilities, each rounded, may lack or have too much."""
_WHOLE = 0.999
"""Listings of less are not of a whole vocabulary."""


def exact_kld(baseline: Listing, candidate: Listing) -> float:
    """KL(baseline || candidate) in nats, of listings of one whole vocabulary: sum of p ln(p / q).

    Both are scaled to a sum of 1. A probability that a server rounds to 0, or leaves out for it, counts as the least
    that float32 can tell. Raises ValueError when one of them holds less than 99.9 %: then it is not the whole.
    """
    tokens = sorted(baseline.keys() | candidate.keys())
    p_ln, q_ln = _scaled(baseline, tokens), _scaled(candidate, tokens)
    return max(0.0, float(np.sum(np.exp(p_ln) * (p_ln - q_ln))))


def kld_bound(baseline: Listing, candidate: Listing, *, named: bool = True) -> float:
    """A lower bound of KL(baseline || candidate) in nats, of listings of the most probable tokens of each.

    Both are cut to the shorter one's length. With K the tokens listed by both, A those that only the baseline listed
    and P_L all that the baseline listed, it is

        sum over K of p ln(p/q) + min over q of [sum over A of p ln(p/q) + (1 - P_L) ln((1 - P_L) / (1 - Q_K - Q_A))]

    where no q of A may be above the least that the candidate listed: it would have been listed too. By the data
    processing inequality (the unlisted tokens taken as one) no distribution with these listings has less. Without the
    restriction on A it is sum over K of p ln(p/q) + (1 - P_K) ln((1 - P_K) / (1 - Q_K)), which is nothing at all where
    two models have no token in common: the broken candidate would be the one that looks best. That simpler bound is all
    there is where tokens are told by texts that may stand for several (`named` is false): one that is not seen in a
    list may still be in it. Raises ValueError for a listing in which nothing has any probability: a bound of nothing
    would be the best there is.
    """
    length = min(len(baseline), len(candidate))
    p, q = _most_probable(baseline, length), _most_probable(candidate, length)
    if not p or not q:
        raise ValueError("none of the tokens listed has any probability")
    shared = [token for token in p if token in q]
    known = sum(p[token] * math.log(p[token] / q[token]) for token in shared)
    only = sorted((value for token, value in p.items() if named and token not in q), reverse=True)
    unlisted = max(0.0, 1 - sum(p[token] for token in shared) - sum(only))
    left = max(_ROUNDING, 1 - sum(q[token] for token in shared))
    return max(0.0, known + _least(only, unlisted, left, min(q.values())))


def same_top1(baseline: Listing, candidate: Listing) -> bool:
    """Whether both hold the same token for the most probable; of several that are equally so, any counts."""
    return bool(_tops(baseline) & _tops(candidate))


def shared_tokens(baseline: Listing, candidate: Listing) -> int:
    """How many tokens both list."""
    return len(baseline.keys() & candidate.keys())


def _scaled(listing: Listing, tokens: Sequence[str]) -> FloatArray:
    """ln p in the order of the tokens, of probabilities that sum to 1."""
    ln = np.array([max(listing.get(token, _LEAST_LN), _LEAST_LN) for token in tokens], dtype=np.float64)
    mass = float(np.sum(np.exp(ln)))
    if mass < _WHOLE:
        raise ValueError(f"the tokens listed hold {mass:.4f} of the probability: they are not the whole vocabulary")
    return ln - math.log(mass)


def _most_probable(listing: Listing, length: int) -> dict[str, float]:
    """p by token of so many of the most probable ones that are not 0."""
    ordered = sorted(listing.items(), key=lambda entry: (-entry[1], entry[0]))[:length]
    return {token: math.exp(ln) for token, ln in ordered if ln > _LEAST_LN}


def _least(only: Sequence[float], unlisted: float, left: float, cap: float) -> float:
    """The least of Σ p ln(p/q) + unlisted ln(unlisted/r) over all q <= cap and r with Σ q + r <= left.

    At the minimum every q is the same multiple of its p, except those that would pass the cap, which stand at it; so
    the largest are put at it one after another. `only` is in falling order.
    """
    capped, spare, weight = 0, left, sum(only) + unlisted
    while capped < len(only) and weight > 0 and only[capped] * spare / weight > cap:
        weight -= only[capped]
        spare -= cap
        capped += 1
    at_cap = sum(p * math.log(p / cap) for p in only[:capped])
    rest = sum(only[capped:]) + unlisted
    if rest <= 0:
        return at_cap
    return at_cap + rest * math.log(rest / max(spare, _ROUNDING))


def _tops(listing: Listing) -> set[str]:
    most = max(listing.values())
    return {token for token, ln in listing.items() if ln == most}
