"""Limits and tests of shares whose trials are not independent, on an effective sample size.

Requests of one block share its bad moments, and eval items of one cluster move together. Clopper-Pearson limits are
taken on the number of independent trials with the same variance.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from benchgate.model.records import FloatArray
from benchgate.stats.clusters import cluster_mean
from benchgate.stats.distributions import Limits, beta_ppf, check_alpha, smallest_count, t_ppf
from benchgate.stats.proportions import clopper_pearson, share_above_p, share_below_p
from benchgate.stats.trace import Trace, digits

_AT_TARGET = 1e-9
_MOST_NEEDED = 2**29
_EFFECTIVE = "effective number of requests (n*, Korn and Graubard)"


def effective_sample_size(
    good: Sequence[int], scheduled: Sequence[int], alpha: float, trace: Trace | None = None
) -> float | None:
    """Return the number of independent requests whose miss share has the same variance (Korn and Graubard).

    n* = n / max(1, deff) · (t(1-alpha, n-1) / t(1-alpha, G-1))², G blocks, and the design effect deff = G/(G-1) ·
    Σ(missed_g - p·scheduled_g)² / (n·p·(1-p)), which grows as misses come in bursts (Survey Methodology 24, 1998). It
    is n when no request missed or all did.

    Return None with fewer than two blocks, or when a block scheduled nothing: its share is undefined. Raises ValueError
    when the sequences differ in length or a count is impossible.
    """
    check_alpha(alpha)
    if len(good) != len(scheduled):
        raise ValueError(f"{len(good)} counts of good requests for {len(scheduled)} blocks; expected one per block")
    if any(not 0 <= kept <= total for kept, total in zip(good, scheduled, strict=True)):
        raise ValueError(f"good requests {list(good)} of {list(scheduled)}; expected 0 <= good <= scheduled in each")
    if len(good) < 2 or min(scheduled) == 0:
        return None
    requests, missed = sum(scheduled), sum(scheduled) - sum(good)
    if missed in (0, requests):
        if trace is not None:
            trace.made(_EFFECTIVE, f"all of them: {'each' if missed else 'none'} missed", requests)
        return float(requests)
    misses, counts = np.subtract(scheduled, good), np.asarray(scheduled)
    blocks, share = len(counts), misses.sum() / requests
    spread = float(((misses - share * counts) ** 2).sum()) * blocks / (blocks - 1)
    design_effect = max(1.0, spread / (requests * share * (1 - share)))
    few_blocks = t_ppf(1 - alpha, requests - 1) / t_ppf(1 - alpha, blocks - 1)
    effective = min(float(requests), float(requests / design_effect * few_blocks**2))
    if trace is not None:
        quantiles = f"(t({digits(1 - alpha)}, {requests - 1}) / t({digits(1 - alpha)}, {blocks - 1}))^2"
        squares = f"{blocks} / {blocks - 1} * sum over blocks of (misses - share * requests)^2"
        design = f"the design effect {squares} / ({requests} * share * (1 - share))"
        formula = f"{requests} / max(1, {design}) * {quantiles}, at most {requests}"
        trace.made(_EFFECTIVE, formula, effective)
    return effective


def miss_share_limits(
    good: Sequence[int], scheduled: Sequence[int], alpha: float, trace: Trace | None = None
) -> Limits | None:
    """Return limits of the miss share 1 - Σgood/Σscheduled, Clopper-Pearson on `effective_sample_size` requests.

    They are never narrower than Clopper-Pearson limits on all requests, and equal to them when none or all missed:
    0 of 299 shows less than 1%. Student's t limits over the blocks' shares are far too narrow for rare misses
    (docs/metrics.md, goodput). Return None and raise ValueError as `effective_sample_size` does.
    """
    effective = effective_sample_size(good, scheduled, alpha, trace)
    if effective is None:
        return None
    requests, missed = sum(scheduled), sum(scheduled) - sum(good)
    limits = clopper_pearson(missed, requests, alpha)
    if missed not in (0, requests):
        limits = clopper_pearson(effective * missed / requests, effective, alpha).widened(limits)
    if trace is not None:
        law = f"Beta({{}}) with n* requests, of which n* * {missed} / {requests} missed, its {{}} quantile"
        lower = law.format("missed, kept + 1", digits(alpha))
        trace.limits(limits, lower, law.format("missed + 1, kept", digits(1 - alpha)), " of the miss share")
    return limits


def miss_share_p(good: Sequence[int], scheduled: Sequence[int], allowed: float, alpha: float) -> float | None:
    """Return the p-value of "the true miss share is at most `allowed`", the test that `miss_share_limits` inverts.

    It is below alpha exactly when the lower limit is above `allowed`; `alpha` enters the effective sample size. Return
    None and raise ValueError as `effective_sample_size` does.
    """
    effective = effective_sample_size(good, scheduled, alpha)
    if effective is None:
        return None
    missed, requests = sum(scheduled) - sum(good), sum(scheduled)
    if missed == 0 or allowed >= 1:
        return 1.0
    exact = share_above_p(missed, requests, allowed)
    if missed == requests:
        return exact
    return max(exact, share_above_p(effective * missed / requests, effective, allowed))


def sample_size_to_decide(good: Sequence[int], scheduled: Sequence[int], target: float, alpha: float) -> int | None:
    """Estimate the number of requests that would show on which side of `target` the share of good ones lies.

    It is the least number at which a Clopper-Pearson limit reaches the target, if the share and the design effect stay
    as they are. Return None where nothing was scheduled, where the share equals the target, and from 2**29 requests on.
    Raises ValueError for a target that is no share.
    """
    check_alpha(alpha)
    if not 0 <= target <= 1:
        raise ValueError(f"target is {target!r}; expected a share from 0 to 1")
    requests, missed = sum(scheduled), sum(scheduled) - sum(good)
    allowed = 1 - target
    if requests == 0 or abs(missed / requests - allowed) < _AT_TARGET:
        return None
    effective = effective_sample_size(good, scheduled, alpha)
    worth = 1.0 if effective is None else effective / requests

    def shown(n: int) -> bool:
        trials = n * worth
        hits = trials * missed / requests
        if missed / requests < allowed:
            return beta_ppf(1 - alpha, hits + 1, trials - hits) <= allowed
        return beta_ppf(alpha, hits, trials - hits + 1) > allowed

    return smallest_count(shown, most=_MOST_NEEDED)


def mean_share_limits(
    tasks: Sequence[FloatArray], clusters: Sequence[Sequence[str] | None], alpha: float
) -> tuple[Limits, float] | None:
    """Return limits of the mean over tasks of the share of items that are 1, with the effective number of items.

    Clopper-Pearson on n* items (Korn and Graubard, Survey Methodology 24, 1998): n* = p(1-p)/variance of the mean with
    cluster-robust variances, but at most the number of equally weighted items with the same variance, K² / Σ 1/n_k.
    Return None when a task has fewer than two items or clusters.
    """
    check_alpha(alpha)
    means = [cluster_mean(values, groups) for values, groups in zip(tasks, clusters, strict=True)]
    known = [mean for mean in means if mean is not None]
    if not known or len(known) < len(means):
        return None
    share = sum(mean.mean for mean in known) / len(known)
    most = len(known) ** 2 / sum(1 / mean.n for mean in known)
    variance = sum(mean.error**2 for mean in known) / len(known) ** 2
    effective = min(most, share * (1 - share) / variance) if variance > 0 and 0 < share < 1 else most
    return clopper_pearson(share * effective, effective, alpha), effective


def share_at_least_p(share: float, effective: float, floor: float) -> float:
    """Return the p-value of "the true share is at least `floor`", on an effective number of items."""
    return share_below_p(share * effective, effective, floor) if share < 1 else 1.0
