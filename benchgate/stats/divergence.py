"""Kullback-Leibler divergence of two models' next-token distributions, from the log-probabilities they list.

A listing maps tokens to ln p: the whole vocabulary, or the most probable tokens.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

from benchgate.model.records import FloatArray

ListedLogProbs = Mapping[str, float]
_LEAST_LN = -87.3  # ln of the smallest normal float32. A server that lists less, or nothing, computed 0.
_ROUNDING = 1e-6  # rounding error of the sum of listed probabilities
_WHOLE = 0.999  # least sum of probabilities over a whole vocabulary


def exact_kld(baseline: ListedLogProbs, candidate: ListedLogProbs) -> float:
    """Return KL(baseline || candidate) in nats from listings of the whole vocabulary: sum of p ln(p / q).

    Both are normalised to 1. A probability that is left out or rounded to 0 counts as the smallest float32. Raises
    ValueError when a listing sums to less than 99.9%.
    """
    tokens = sorted(baseline.keys() | candidate.keys())
    p_ln, q_ln = _scaled(baseline, tokens), _scaled(candidate, tokens)
    return max(0.0, float(np.sum(np.exp(p_ln) * (p_ln - q_ln))))


def kld_lower_bound(baseline: ListedLogProbs, candidate: ListedLogProbs, *, named: bool = True) -> float:
    """Return a lower bound of KL(baseline || candidate) in nats from listings of the most probable tokens.

    Both are cut to the shorter one's length. With K the tokens listed by both, A those that only the baseline listed
    and P_L all that the baseline listed, the bound is

        sum over K of p ln(p/q) + min over q of [sum over A of p ln(p/q) + (1 - P_L) ln((1 - P_L) / (1 - Q_K - Q_A))]

    where no q of A is above the least that the candidate listed: it would have been listed too. By the data processing
    inequality (the unlisted tokens as one) no distribution with these listings has less. Without the restriction on A
    it is sum over K of p ln(p/q) + (1 - P_K) ln((1 - P_K) / (1 - Q_K)), which is 0 when two models share no token: a
    broken candidate would look best. That simpler bound is used when tokens are identified by texts that may stand for
    several tokens (`named` is false), because a text that is not listed may still be in the list. Raises ValueError
    when every listed probability is 0, whose bound of 0 would look best.
    """
    length = min(len(baseline), len(candidate))
    p, q = _most_probable(baseline, length), _most_probable(candidate, length)
    if not p or not q:
        raise ValueError("every listed token has probability 0")
    shared = [token for token in p if token in q]
    known = sum(p[token] * math.log(p[token] / q[token]) for token in shared)
    only = sorted((value for token, value in p.items() if named and token not in q), reverse=True)
    unlisted = max(0.0, 1 - sum(p[token] for token in shared) - sum(only))
    left = max(_ROUNDING, 1 - sum(q[token] for token in shared))
    return max(0.0, known + _least_remainder(only, unlisted, left, min(q.values())))


def same_top1(baseline: ListedLogProbs, candidate: ListedLogProbs) -> bool:
    """Return True if both have the same most probable token; any of several tied ones counts."""
    tops = []
    for listing in (baseline, candidate):
        most = max(listing.values())
        tops.append({token for token, ln in listing.items() if ln == most})
    return bool(tops[0] & tops[1])


def shared_tokens(baseline: ListedLogProbs, candidate: ListedLogProbs) -> int:
    """Return the number of tokens that both list."""
    return len(baseline.keys() & candidate.keys())


def _scaled(listing: ListedLogProbs, tokens: Sequence[str]) -> FloatArray:
    ln = np.array([max(listing.get(token, _LEAST_LN), _LEAST_LN) for token in tokens], dtype=np.float64)
    mass = float(np.sum(np.exp(ln)))
    if mass < _WHOLE:
        raise ValueError(f"the listed tokens sum to a probability of {mass:.4f}; expected a whole vocabulary")
    return ln - math.log(mass)


def _most_probable(listing: ListedLogProbs, length: int) -> dict[str, float]:
    """Return p by token for the `length` most probable tokens above 0."""
    ordered = sorted(listing.items(), key=lambda entry: (-entry[1], entry[0]))[:length]
    return {token: math.exp(ln) for token, ln in ordered if ln > _LEAST_LN}


def _least_remainder(only: Sequence[float], unlisted: float, left: float, cap: float) -> float:
    """Minimise Σ p ln(p/q) + unlisted ln(unlisted/r) over all q <= cap and r with Σ q + r <= left.

    At the minimum every q is the same multiple of its p, except those limited to the cap. So the largest are put at the
    cap one after another. `only` is in falling order.
    """
    capped, spare, weight = 0, left, sum(only) + unlisted
    while capped < len(only) and weight > 0 and only[capped] * spare / weight > cap:
        weight -= only[capped]
        spare -= cap
        capped += 1
    at_cap = sum(p * math.log(p / cap) for p in only[:capped])
    rest = sum(only[capped:]) + unlisted
    return at_cap if rest <= 0 else at_cap + rest * math.log(rest / max(spare, _ROUNDING))
