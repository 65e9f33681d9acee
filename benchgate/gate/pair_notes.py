"""What stands beside a comparison of blocks: how much pairing helped, and what single requests say."""

from __future__ import annotations

import math

import numpy as np

from benchgate.gate.block_pairs import BlockPairs, Measure
from benchgate.gate.comparison import Comparison, paired_load
from benchgate.gate.request_pairs import PairedRequests, paired_requests
from benchgate.stats.paired import paired_t, sign_flip_p
from benchgate.units import show_multiple, show_percent

_EXACT_SIGN_FLIP_BLOCKS = 20  # 2^20 sign patterns are enumerated; beyond, the t-test alone is reported


def pair_notes(
    comparison: Comparison, stage: str, measure: Measure, pairs: BlockPairs, alpha: float
) -> tuple[str, ...]:
    """The paired beside the unpaired spread, the permutation test beside the t-test, the requests beside the blocks.

    Of two blocks and more, all of whose values are finite.
    """
    notes = list(_spreads(pairs))
    if not comparison.stored and len(pairs.harm) <= _EXACT_SIGN_FLIP_BLOCKS:
        notes.append(f"sign-flip permutation p = {sign_flip_p(pairs.harm):.3g}")
    by_request = _by_request(comparison, stage, measure, alpha)
    return (*notes, *([by_request] if by_request is not None else []))


def _spreads(pairs: BlockPairs) -> tuple[str, ...]:
    """sd of the paired difference, of the baseline, and of the difference that two arms of their own would have.

    Without pairing its variance is var(ln b) + var(ln c). The ratio of the two is how much pairing narrows or widens.
    """
    baseline, candidate = (float(np.std(np.log(values), ddof=1)) for values in (pairs.baseline, pairs.candidate))
    paired, unpaired = float(np.std(pairs.harm, ddof=1)), math.hypot(baseline, candidate)
    first = f"block-to-block spread of the paired difference {paired:.1%}, of the baseline alone {baseline:.1%}"
    if paired <= 0:
        return (first,)
    helps = unpaired >= paired
    times = show_multiple(unpaired / paired if helps else paired / unpaired)
    does = f"{'narrows' if helps else 'widens'} the interval {times}"
    return (first, f"unpaired it would be {unpaired:.1%}: pairing {does}")


def _by_request(comparison: Comparison, stage: str, measure: Measure, alpha: float) -> str | None:
    """The geometric mean change over pairs of requests, beside a quantile; None where one request has no pair."""
    usual = measure.is_latency and not measure.by_request and not measure.inflation
    if comparison.stored or not usual or measure.metric == "itl":
        return None
    found = [paired_requests(*pair, measure.metric) for pair in paired_load(comparison.judged, stage)]
    pairs = [one for one in found if isinstance(one, PairedRequests)]
    test = paired_t(np.array([one.mean for one in pairs]), alpha) if len(pairs) == len(found) else None
    if test is None:
        return None
    mean, lower, upper = (
        show_percent(math.expm1(value), signed=True) for value in (test.mean, test.limits.lower, test.limits.upper)
    )
    n = sum(one.n for one in pairs)
    return f"request by request {mean} ({lower} to {upper}), the geometric mean of {n:,} pairs"
