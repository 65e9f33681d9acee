"""Request by request: what one and the same prompt, asked at the same instant of the same block, took on each arm.

How one request differs from the next (its length, what else runs) cancels in such a pair, so their mean is a sharp
number. It is that of the ratio, the geometric mean: a quantile of the differences would be no difference of quantiles.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from weakref import WeakKeyDictionary

import numpy as np

from benchgate.gate.block_values import LATENCIES, LOOK_AT_ERRORS, NO_PACE
from benchgate.gate.rule import Problem
from benchgate.model.metrics import succeeded
from benchgate.model.run import LoadObservation
from benchgate.model.verdict import Outcome


@dataclass(frozen=True, slots=True)
class PairedRequests:
    """One block: the mean of ln(candidate/baseline) over `n` requests, +inf where the candidate failed one.

    `baseline` and `candidate` are the geometric means over the same requests, in seconds; of lengths the means in
    tokens.
    """

    mean: float
    n: int
    baseline: float
    candidate: float


def paired_requests(baseline: LoadObservation, candidate: LoadObservation, metric: str) -> PairedRequests | Problem:
    """The requests of a block, paired by their planned number; a Problem where one has no counterpart.

    No request is left out, except one that has no such value on either arm (TPOT of a one-token answer). One without a
    record, or without a value on one arm alone, could be the slow one. A baseline that failed one is infinite, and an
    infinite baseline would forgive everything.
    """
    known = _KNOWN.setdefault(candidate, WeakKeyDictionary()).setdefault(baseline, {})
    if metric not in known:
        known[metric] = _paired(baseline, candidate, metric)
    return known[metric]


_Known = WeakKeyDictionary[LoadObservation, dict[str, "PairedRequests | Problem"]]
_KNOWN: WeakKeyDictionary[LoadObservation, _Known] = WeakKeyDictionary()


def _paired(baseline: LoadObservation, candidate: LoadObservation, metric: str) -> PairedRequests | Problem:
    where = f"stage {baseline.stage}, block {baseline.block + 1}"
    if not np.array_equal(baseline.requests.index, candidate.requests.index):
        return _unpaired(baseline, candidate, where)
    theirs, ours = (LATENCIES[metric](one.requests) for one in (baseline, candidate))
    missing = np.isnan(theirs)
    if (missing != np.isnan(ours)).any():
        alone = int(np.count_nonzero(missing != np.isnan(ours)))
        reason = f"{where}: {alone} requests have a {metric} on one arm alone, so they have no pair"
        return Problem(Outcome.INVALID, reason, _WITHOUT_PAIRS)
    theirs, ours = theirs[~missing], ours[~missing]
    if len(theirs) == 0:
        return Problem(Outcome.INVALID, f"{where}: no request has a {metric}", LOOK_AT_ERRORS)
    if np.isinf(theirs).any():
        failed = int(np.count_nonzero(np.isinf(theirs)))
        reason = f"{where}: {failed} of the baseline's own requests failed, so its mean is infinite"
        return Problem(Outcome.INVALID, reason, _WITHOUT_PAIRS)
    if min(theirs.min(), ours.min()) <= 0:
        return Problem(Outcome.INVALID, f"{where}: a {metric} of 0, which is no pace", NO_PACE)
    logs = float(np.mean(np.log(theirs))), float(np.mean(np.log(ours)))
    return PairedRequests(logs[1] - logs[0], len(theirs), math.exp(logs[0]), math.exp(logs[1]))


def paired_lengths(baseline: LoadObservation, candidate: LoadObservation) -> PairedRequests | Problem:
    """Output tokens of the requests that both arms answered: ln of the ratio of their sums, and the means per answer.

    An answer that failed has no length; whether many fail is for `error_rate` to say, which a policy must have.
    """
    where = f"stage {baseline.stage}, block {baseline.block + 1}"
    if not np.array_equal(baseline.requests.index, candidate.requests.index):
        return _unpaired(baseline, candidate, where)
    both = succeeded(baseline.requests) & succeeded(candidate.requests)
    n = int(np.count_nonzero(both))
    theirs, ours = (int(one.requests.output_tokens[both].sum()) for one in (baseline, candidate))
    if min(theirs, ours) <= 0:
        return Problem(Outcome.INVALID, f"{where}: there is no request that both arms answered", LOOK_AT_ERRORS)
    return PairedRequests(math.log(ours / theirs), n, theirs / n, ours / n)


def _unpaired(baseline: LoadObservation, candidate: LoadObservation, where: str) -> Problem:
    lone = len(np.setxor1d(baseline.requests.index, candidate.requests.index))
    reason = f"{where}: {lone} requests have a record on one arm alone, so they have no pair"
    return Problem(Outcome.INVALID, reason, _WITH_ALL)


_WITH_ALL = "run the suite again to its end, or judge p50"
_WITHOUT_PAIRS = "judge p50, which does not take every request"
