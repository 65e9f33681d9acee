"""Does a load level meet its target? Looked at a few times while it is sampled, and said only when it is shown."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from benchgate.stats.attainment import effective_requests
from benchgate.stats.distributions import beta_cdf, beta_ppf, norm_sf
from benchgate.stats.limits import Limits, check_alpha

LOOK_SHARES = (1 / 16, 1 / 16, 1 / 8, 1 / 4, 1 / 2)
"""The fixed grid of looks: shares of a probe's requests, one look after the other."""
LOOK_ALPHAS = (1 / 8, 1 / 8, 1 / 8, 1 / 8, 1 / 2)
"""How a probe's error probability is spent over its looks: half of it on the last, which has most to go on."""

_DISPERSION = 4.0
_NOTHING = 1e-12
_SHORT_S, _SHORT_SHARE = 10.0, 0.1
_UNSTABLE_SHARE = 0.01  # of the requests that came: what may be left over without counting as a backlog that grows
RESIDENCES = 10  # times as long as a request stays: what a look lasts at least to speak of a steady server
_LEANING_SHARE = 0.05  # of the requests that came: what more in flight a third later leaves a level that may pass


class Standing(StrEnum):
    """What is known of a level. OPEN is unresolved with looks to come."""

    PASS = "pass"
    FAIL = "fail"
    OPEN = "open"
    UNRESOLVED = "unresolved"


@dataclass(frozen=True, slots=True)
class Backlog:
    """How many requests an open loop had in flight in the measured window.

    At its two ends, `before` and `after`; on average in its `middle` third and in its `last` one. `residence_s`: how
    long the requests that were due in the last third stayed, on average.
    """

    before: int
    after: int
    middle: float
    last: float
    residence_s: float


@dataclass(frozen=True, slots=True)
class LookCounts:
    """What one look saw in its measured window, requests by the instant they were due.

    `good` and `scheduled` are counts of consecutive stretches. Requests that the window's end or an interruption cut
    are among the scheduled and not among the good; `cut` says how many. `used` is, for each stretch, the mean share of
    its tightest bound that a request took (`window.used_share`), and `used_squares` the sum of squares over all of
    them. `backlog` is None for a closed loop, in which it cannot grow.
    """

    good: tuple[int, ...]
    scheduled: tuple[int, ...]
    cut: int
    used: tuple[float, ...]
    used_squares: float
    backlog: Backlog | None
    window_s: float = 0.0
    stage_s: float = 0.0  # with what came before the window and after it


@dataclass(frozen=True, slots=True)
class ProbeFinding:
    """All looks at one level together. `limits` are those of the share of good requests at the look's own alpha.

    `unstable` is set when the backlog is shown to grow, `unsteady` when a level would pass but for a look too short to
    tell whether it does, or for a backlog that seems to. `needs` is about how many more requests would resolve a level
    that is UNRESOLVED, were its share what it seems to be; None when no number of them would. `p_value` is that of
    "it is the other way round" over all looks, at most the alpha that was spent; None unless the level is resolved.
    """

    standing: Standing
    good: int
    scheduled: int
    cut: int
    limits: Limits | None
    unstable: bool
    unsteady: bool
    needs: int | None
    p_value: float | None
    window_s: float
    stage_s: float

    @property
    def short(self) -> bool:
        """Whether all windows together are too short to speak of a steady state: under 10 s, or 10 % of the stages."""
        return self.window_s < max(_SHORT_S, _SHORT_SHARE * self.stage_s)

    @property
    def share(self) -> float | None:
        """Good requests of those scheduled; None when there were none."""
        return self.good / self.scheduled if self.scheduled else None


def judge_probe(looks: Sequence[LookCounts], target: float, alpha: float) -> ProbeFinding:
    """What the looks so far say of one level, each direction wrong with probability at most `alpha` over all looks.

    PASS when the lower limit of the share of good requests is at least the target, FAIL when the upper one is below it
    or the backlog is shown to grow: what grows without end meets no target for long. A look begins on an empty server,
    which answers well for a while whatever comes, so a level passes only when `_is_steady` too. Every look has its own
    part of alpha (`LOOK_ALPHAS`), so that looking again is no second chance.

    The limits are Clopper-Pearson's on an effective number of requests: Korn and Graubard's by how misses cluster in
    the stretches (`stats.attainment`), and at most the one by how latencies move together in them. Misses come in
    bursts, and a burst that was never seen has no spread of its own; but what makes a queue long for a while makes
    latencies rise together long before one of them breaks its bound.
    ValueError for an alpha or a target out of range.
    """
    check_alpha(alpha)
    if not 0 < target < 1:
        raise ValueError(f"target is {target!r}; expected a share above 0 and below 1")
    good, scheduled = sum(sum(look.good) for look in looks), sum(sum(look.scheduled) for look in looks)
    part = LOOK_ALPHAS[min(max(len(looks), 1), len(LOOK_ALPHAS)) - 1]
    spent = alpha * part
    trials, grows_p = _trials(looks, spent), growth_p(looks)
    limits = None if trials is None else _limits(good / scheduled, trials, spent)
    standing = _standing(limits, grows_p <= spent, target)
    unsteady = standing is Standing.PASS and not _is_steady(looks)
    if unsteady:
        standing = Standing.OPEN
    if standing is Standing.OPEN and len(looks) >= len(LOOK_SHARES):
        standing = Standing.UNRESOLVED
    return ProbeFinding(
        standing=standing,
        good=good,
        scheduled=scheduled,
        cut=sum(look.cut for look in looks),
        limits=limits,
        unstable=grows_p <= spent,
        unsteady=unsteady,
        needs=_needed(looks, limits, target, unsteady=unsteady) if standing is Standing.UNRESOLVED else None,
        p_value=_p_value(standing, good, scheduled, trials, grows_p, target, part),
        window_s=sum(look.window_s for look in looks),
        stage_s=sum(look.stage_s for look in looks),
    )


def _standing(limits: Limits | None, unstable: bool, target: float) -> Standing:
    if unstable:
        return Standing.FAIL
    if limits is None:
        return Standing.OPEN
    if limits.lower >= target:
        return Standing.PASS
    return Standing.FAIL if limits.upper < target else Standing.OPEN


def _trials(looks: Sequence[LookCounts], alpha: float) -> float | None:
    """How many independent requests tell as much as those of the looks; None without two stretches that hold one."""
    stretches = [(k, n) for look in looks for k, n in zip(look.good, look.scheduled, strict=True) if n]
    effective = effective_requests([k for k, _ in stretches], [n for _, n in stretches], alpha)
    if effective is None:
        return None
    return min(effective, sum(n for _, n in stretches) / _moving_together(looks))


def _moving_together(looks: Sequence[LookCounts]) -> float:
    """The design effect of latencies: the variance of the stretches' means against that of as many independent ones.

    G/(G-1) · Σ n_g²(m_g - m)² / Σ(x - m)², over all G stretches of all looks; at least 1, and 1 where nothing varies.
    """
    means = [mean for look in looks for mean in look.used]
    counts = [count for look in looks for count in look.scheduled]
    requests = sum(counts)
    mean = sum(n * m for n, m in zip(counts, means, strict=True)) / requests
    spread = sum(look.used_squares for look in looks) - requests * mean * mean
    between = sum((n * (m - mean)) ** 2 for n, m in zip(counts, means, strict=True))
    if spread <= _NOTHING * requests:
        return 1.0
    return max(1.0, between / spread * len(means) / (len(means) - 1))


def _limits(share: float, trials: float, alpha: float) -> Limits:
    """Clopper-Pearson of a share of so many trials, which need not be a whole number."""
    hits = share * trials
    return Limits(
        lower=beta_ppf(alpha, hits, trials - hits + 1) if share > 0 else 0.0,
        upper=beta_ppf(1 - alpha, hits + 1, trials - hits) if share < 1 else 1.0,
    )


def _p_value(
    standing: Standing, good: int, scheduled: int, trials: float | None, grows_p: float, target: float, part: float
) -> float | None:
    """P(as good or better | at the target) of a level that passed, P(as bad or worse) of one that failed.

    Over the look's part of alpha (Bonferroni's with weights), so that it holds for all looks together.
    """
    if standing not in (Standing.PASS, Standing.FAIL):
        return None
    p_value = grows_p if standing is Standing.FAIL else 1.0
    if trials is not None:
        hits = trials * good / scheduled
        if standing is Standing.PASS:
            p_value = beta_cdf(target, hits, trials - hits + 1) if hits > 0 else 1.0
        elif trials > hits:
            p_value = min(p_value, 1 - beta_cdf(target, hits + 1, trials - hits))
    return min(1.0, p_value / part)


def growth_p(looks: Sequence[LookCounts]) -> float:
    """p-value of "no more than 1 % of the requests that came are left over": whether a backlog grows beyond noise.

    Numbers in flight vary like Poisson counts where no request slows another, and with up to four times that variance
    in a batching engine below its capacity; a difference of two has the variance of their sum. At capacity itself a
    backlog wanders like the root of time and no slope shows it, but the share of good requests does; this finds the
    loads whose SLO is too loose to notice within a window. 1 for a closed loop, which has no backlog.
    """
    backlogs = [look.backlog for look in looks if look.backlog is not None]
    if not backlogs:
        return 1.0
    before, after = sum(backlog.before for backlog in backlogs), sum(backlog.after for backlog in backlogs)
    came = sum(sum(look.scheduled) for look in looks)
    noise = math.sqrt(_DISPERSION * max(1, after + before))
    return norm_sf((after - before - _UNSTABLE_SHARE * came) / noise)


def _is_steady(looks: Sequence[LookCounts]) -> bool:
    """Whether what was seen of an open loop may stand for a load that goes on; a closed loop always may.

    Of a server that is sent f times what it can do, requests stay ever longer: after t seconds (f - 1)t. So the last
    look must have lasted ten times as long as its last requests stayed, which no look does from f = 1.1 on, however
    long it lasts. And what was in flight may not have risen from the middle third of the windows to the last one by
    more than 5 % of what came between them, which f = 1.05 exceeds; one third follows another, so that the empty
    server at the start of a look is no part of it.
    """
    open_looks = [(look, look.backlog) for look in looks if look.backlog is not None]
    if not open_looks:
        return True
    if _lasted(looks[-1]) < 1:
        return False
    risen = sum(backlog.last - backlog.middle for _, backlog in open_looks)
    return risen <= _LEANING_SHARE * sum(sum(look.scheduled) for look, _ in open_looks) / 3


def _lasted(look: LookCounts) -> float:
    """The window over the shortest that may speak of a steady server."""
    stayed_s = look.backlog.residence_s if look.backlog is not None else 0.0
    return look.window_s / (RESIDENCES * stayed_s) if stayed_s > 0 else math.inf


def _needed(looks: Sequence[LookCounts], limits: Limits | None, target: float, *, unsteady: bool) -> int | None:
    """More requests until the nearer limit reaches the target (limits narrow with the root of n), or looks are long."""
    good, scheduled = sum(sum(look.good) for look in looks), sum(sum(look.scheduled) for look in looks)
    if limits is None or scheduled == 0:
        return None
    if unsteady:
        lasted = _lasted(looks[-1])
        return math.ceil(scheduled * (1 / lasted - 1)) if 0 < lasted < 1 else None
    share = good / scheduled
    distance = abs(share - target)
    width = share - limits.lower if share >= target else limits.upper - share
    if distance <= 1e-9:
        return None
    return max(1, math.ceil(scheduled * ((width / distance) ** 2 - 1)))
