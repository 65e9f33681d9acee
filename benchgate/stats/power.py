"""Power and sample sizes of the gate's tests, computed before a run.

The power of Student's t on paired blocks is exact, by the noncentral t law. Shares are fractions: 0.02 is two points.
`flips` is the share of items on which baseline and candidate differ, (b + c)/n.

Interim analyses ("looks") are simulated with the whole three-way rule. A look depends on its n normal differences only
through their mean and deviation, so these two are drawn once, standardised, then shifted and scaled for every spread,
effect and margin. Common draws make probabilities monotone and comparable.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from benchgate.model.records import BoolArray, FloatArray
from benchgate.stats.clusters import miss_share_limits
from benchgate.stats.distributions import (
    Limits,
    binom_cdf,
    binom_pmf,
    binom_sf,
    bisect,
    bisect_integers,
    check_alpha,
    norm_ppf,
    smallest_count,
    t_ppf,
)
from benchgate.stats.proportions import score_statistic, tango_noninferiority_p

_MOST = 1_000_000  # largest reported number of pairs, and largest effect in standard errors
_SHARE_HALVINGS = 50
_TAILS = 8  # standard deviations around the expected number of differing items that are summed over
_SELF_WEIGHT = 0.5  # weight of a prompt on which the baseline disagrees with itself, as in `stats.evals`
_MOST_ODD = 2 / 3  # share of prompts with one odd answer of three where the odd one is one of the baseline's two
SIMULATED_GATES = 20_000  # simulated gates; their standard error is 0.35 points at 50% and 0.12 at 97%


def paired_t_power(n: int, sd: float, harm: float, *, alpha: float = 0.05) -> float:
    """Return the power of a one-sided t-test over `n` paired differences of this deviation at a mean of `harm`.

    P(T > t(1-alpha, n-1)), T noncentral with shift harm·√n/sd (Johnson, Kotz and Balakrishnan 1995, chapter 31). By
    symmetry it is also the probability that an equal candidate's upper limit stays below a margin of `harm`. It is 0
    below two differences. Raises ValueError for a deviation that is not above 0.
    """
    from scipy.special import nctdtr

    check_alpha(alpha)
    if not sd > 0:
        raise ValueError(f"a standard deviation of {sd!r}; expected one above 0")
    if n < 2:
        return 0.0
    # 1 - cdf: the upper tail itself is not a number for some large shifts where the cdf is a clean 0.
    return float(1 - nctdtr(n - 1, harm * math.sqrt(n) / sd, t_ppf(1 - alpha, n - 1)))


def minimum_detectable_regression(
    n: int, sd: float, *, alpha: float = 0.05, power: float = 0.8, sd_at: Callable[[float], float] | None = None
) -> float | None:
    """Return the smallest mean regression that `n` paired differences show with this power; None below two.

    `sd_at` is the deviation at a regression, for differences that vary more the larger it is.
    """
    _check(alpha, power)
    if n < 2:
        return None

    def shown(harm: float) -> bool:
        return paired_t_power(n, sd if sd_at is None else sd_at(harm), harm, alpha=alpha) >= power

    error = sd / math.sqrt(n)
    high = error
    while not shown(high):
        high *= 2
        if high > _MOST * error:
            return None
    return bisect(shown, 0.0, high)


def blocks_for_power(sd: float, harm: float, *, alpha: float = 0.05, power: float = 0.95) -> int | None:
    """Return the paired differences that a t-test needs for this power at a mean of `harm`; None beyond a million."""
    _check(alpha, power)
    if not (sd > 0 and harm > 0):
        raise ValueError(f"deviation {sd!r} and harm {harm!r} must both be above 0")
    return smallest_count(lambda n: paired_t_power(n, sd, harm, alpha=alpha) >= power, most=_MOST)


def items_for_power(discordance_ratio: float, margin: float, *, alpha: float = 0.05, power: float = 0.95) -> int:
    """Return the paired items needed for a difference of `margin` at discordance f = (b+c)/n.

    n = ((z(1-alpha)·√f + z(power)·√(f - margin²)) / margin)² (Connor 1987, Biometrics 43), rounded up. Raises
    ValueError when the discordance is below the margin: then the difference cannot be that large.
    """
    _check(alpha, power)
    if not 0 < margin <= discordance_ratio <= 1:
        raise ValueError(f"margin {margin!r} and discordance {discordance_ratio!r}: expected 0 < margin <= f <= 1")
    spread = norm_ppf(1 - alpha) * math.sqrt(discordance_ratio)
    spread += norm_ppf(power) * math.sqrt(discordance_ratio - margin**2)
    return math.ceil((spread / margin) ** 2)


def minimum_detectable_difference(
    n: int, discordance_ratio: float, *, alpha: float = 0.05, power: float = 0.8
) -> float | None:
    """Return the smallest difference, at most 1, that `n` paired items show by the formula of `items_for_power`.

    Items that are lost differ, so the discordance is at least the difference itself. Return None when no difference is
    enough.
    """
    _check(alpha, power)
    if n < 1 or not 0 <= discordance_ratio <= 1:
        raise ValueError(f"{n} items, discordance {discordance_ratio!r}: expected items, and a share from 0 to 1")

    def enough(difference: float) -> bool:
        return items_for_power(max(discordance_ratio, difference), difference, alpha=alpha, power=power) <= n

    return bisect(enough, 0.0, 1.0) if enough(1.0) else None


def prompts_for_excess(itself: float, excess: float, *, alpha: float = 0.05, power: float = 0.95) -> int:
    """Return the prompts needed to show an excess disagreement, each answered twice by the baseline.

    n = ((z(1-alpha)·√v0 + z(power)·√v1) / excess)², rounded up, as in `items_for_power`. A prompt's x - y is -1/2 with
    probability `itself` and +1 with itself/2 + excess, so its variance is v1 = 3/4·itself + excess - excess². The test
    of no excess takes v0 = 3/4·itself + excess/2 from as many differing prompts.
    """
    _check(alpha, power)
    if not (itself >= 0 and 0 < excess <= 1):
        raise ValueError(f"itself={itself!r}, excess={excess!r}: expected itself of 0 or more, 0 < excess <= 1")
    known = 0.75 * itself
    spread = norm_ppf(1 - alpha) * math.sqrt(known + excess / 2)
    spread += norm_ppf(power) * math.sqrt(known + excess - excess**2)
    return math.ceil((spread / excess) ** 2)


def minimum_detectable_excess(n: int, itself: float, *, alpha: float = 0.05, power: float = 0.8) -> float | None:
    """Return the smallest excess that `n` prompts show by `prompts_for_excess`; None when none possible is enough."""

    def enough(excess: float) -> bool:
        return prompts_for_excess(itself, excess, alpha=alpha, power=power) <= n

    most = 1 - itself / _MOST_ODD  # the other prompts, on which the baseline agrees with itself
    return bisect(enough, 0.0, most) if most > 0 and enough(most) else None


def _check(alpha: float, power: float) -> None:
    check_alpha(alpha)
    if not 0 < power < 1:
        raise ValueError(f"power is {power!r}; expected a probability above 0 and below 1")


def zero_miss_sample_size(share: float, alpha: float = 0.05) -> int:
    """Return the requests without a miss that show a miss share below `share`: the least n with (1 - share)^n <= alpha.

    It is the Clopper-Pearson limit of 0 in n. At 5%: 299 for 1%, 598 for 0.5%, 2,995 for 0.1%.
    """
    check_alpha(alpha)
    if not 0 < share < 1:
        raise ValueError(f"a share of {share!r}; expected one above 0 and below 1")
    return math.ceil(math.log(alpha) / math.log1p(-share))


def max_misses_within(requests: Sequence[int], allowed: float, alpha: float = 0.05) -> int | None:
    """Return the largest number of even misses whose upper limit is at most `allowed`; None when even 0 is too many."""

    def exceeds(misses: int) -> bool:
        return _limits_of_even_misses(requests, misses, alpha).upper > allowed

    return None if exceeds(0) else bisect_integers(exceeds, 0, sum(requests) + 1) - 1


def min_misses_shown(requests: Sequence[int], allowed: float, alpha: float = 0.05) -> int | None:
    """Return the least number of even misses that shows a share above `allowed`; None when even all do not."""

    def shown(misses: int) -> bool:
        return _limits_of_even_misses(requests, misses, alpha).lower > allowed

    return bisect_integers(shown, 0, sum(requests) + 1) if shown(sum(requests)) else None


def minimum_detectable_share(
    requests: Sequence[int], allowed: float, *, alpha: float = 0.05, power: float = 0.8
) -> float | None:
    """Return the smallest true miss share shown to be above `allowed` with this power; None if there is none."""
    least = min_misses_shown(requests, allowed, alpha)
    if least is None:
        return None
    return bisect(
        lambda share: binom_sf(least - 1, sum(requests), share) >= power, allowed, 1.0, halvings=_SHARE_HALVINGS
    )


def share_noninferiority_power(requests: Sequence[int], allowed: float, share: float, alpha: float = 0.05) -> float:
    """Return the probability that the upper limit is at most `allowed` when the true miss share is `share`."""
    most = max_misses_within(requests, allowed, alpha)
    return 0.0 if most is None else binom_cdf(most, sum(requests), share)


def _limits_of_even_misses(requests: Sequence[int], misses: int, alpha: float) -> Limits:
    """Return limits of the miss share when misses fall on blocks as evenly as whole numbers can."""
    done, had, kept = 0, 0, []
    total = sum(requests)
    for count in requests:
        had += count
        upto = misses * had // total if total else 0
        kept.append(count - (upto - done))
        done = upto
    limits = miss_share_limits(kept, list(requests), alpha)
    if limits is None:
        raise ValueError(f"blocks of {list(requests)} requests have no limits; expected two blocks, each with requests")
    return limits


def tango_noninferiority_power(n: int, flips: float, margin: float, alpha: float = 0.05, *, harm: float = 0.0) -> float:
    """Return the probability that Tango's upper limit stays below the margin for a candidate that loses `harm`."""
    check_alpha(alpha)
    if n < 1 or not (abs(harm) <= flips < 1 or abs(harm) == flips == 1):
        raise ValueError(f"n={n}, flips={flips!r}, harm={harm!r}: expected items, and |harm| <= flips < 1")

    def shown(b: int, c: int) -> bool:
        return tango_noninferiority_p(b, c, n, margin) < alpha

    if flips in (0, 1) and flips == abs(harm):  # every item, or none, is lost (or gained)
        return float(shown(n if harm > 0 else 0, n if harm < 0 else 0))
    return _over_differing(n, flips, (flips + harm) / (2 * flips), shown)


def excess_noninferiority_power(n: int, itself: float, margin: float, alpha: float = 0.05) -> float:
    """Return the probability that the excess disagreement of an equal candidate is shown to be below the margin.

    `itself` is the share of prompts on which the baseline disagrees with itself. Of three equal answers of which one
    differs, each is equally often the odd one. So the candidate disagrees with two equal answers on half as many
    prompts as `itself` (+1), and the baseline disagrees with itself on `itself` (-1/2). The limits are those of
    `excess_disagreement`.
    """
    check_alpha(alpha)
    if n < 1 or not 0 <= itself < _MOST_ODD or not 0 < margin < 1:
        raise ValueError(f"n={n}, itself={itself!r}, margin={margin!r}: expected prompts, itself < 2/3, 0 < margin < 1")
    z = norm_ppf(1 - alpha)

    def shown(b: int, c: int) -> bool:
        return score_statistic(b, c, n, margin, weight=_SELF_WEIGHT) < -z

    if itself == 0:
        return float(shown(0, 0))
    return _over_differing(n, itself / _MOST_ODD, 1 / 3, shown)


def effective_items(n: int, clusters: int, alike: float) -> int:
    """Return the effective number of n items in clusters (Kish 1965): n / (1 + (n/clusters - 1)·alike), at least 1.

    `alike` is the intra-class correlation of their differences, from 0 to 1.
    """
    if not (0 < clusters <= n and 0 <= alike <= 1):
        raise ValueError(f"n={n}, {clusters} clusters, alike={alike!r}: expected 0 < clusters <= n, 0 <= alike <= 1")
    return max(1, math.floor(n / (1 + (n / clusters - 1) * alike)))


def _over_differing(n: int, differ: float, loss: float, shown: Callable[[int, int], bool]) -> float:
    """Return the probability of `shown(losses, gains)` when items differ with `differ`, as losses with `loss`."""
    spread = _TAILS * math.sqrt(n * differ * (1 - differ)) + 1
    numbers = np.arange(max(0, math.floor(n * differ - spread)), min(n, math.ceil(n * differ + spread)) + 1)
    total = 0.0
    for m, weight in zip(numbers.tolist(), binom_pmf(numbers, n, differ), strict=True):
        edge = bisect_left(range(m + 1), True, key=lambda losses: not shown(losses, m - losses))
        total += weight * (binom_cdf(edge - 1, m, loss) if loss < 1 else float(m <= edge - 1))
    return float(min(1.0, max(0.0, total)))


@dataclass(frozen=True, slots=True)
class LookSchedule:
    """Schedule of interim analyses: cumulative blocks, from 2 rising, and the one-sided error of each look."""

    blocks: tuple[int, ...]
    tails: tuple[float, ...]

    def __post_init__(self) -> None:
        rising = all(before < after for before, after in zip((1, *self.blocks), self.blocks, strict=False))
        if not self.blocks or not rising or len(self.tails) != len(self.blocks):
            found = f"looks after {self.blocks} blocks at {self.tails}"
            raise ValueError(f"{found}; expected rising numbers from 2, a tail each")


@dataclass(frozen=True, slots=True, eq=False)
class SimulatedLooks:
    """Mean and deviation of standard normal differences at each look; rows are simulated gates, columns looks."""

    counts: tuple[int, ...]  # differences at each look; below two there are no limits
    means: FloatArray
    deviations: FloatArray


@dataclass(frozen=True, slots=True)
class DecisionRule:
    """Decision rule of one check on its mean regression."""

    margin: float
    breach: bool = False  # tests against the margin and not against 0
    least_sd: float = 0.0  # least deviation that limits are computed with
    lump: float = 0.0  # share of one miss in a block; exact limits are wider by it over the effective number of blocks
    two_sided: bool = False  # a gain beyond the margin is a difference too


@dataclass(frozen=True, slots=True, eq=False)
class LookDecisions:
    """Decisions of a check at each look: promoted, blocked, or neither."""

    promoted: BoolArray
    blocked: BoolArray


@dataclass(frozen=True, slots=True)
class StoppingRates:
    """Shares of gates that promote and block, and the mean number of blocks used."""

    promoted: float
    blocked: float
    mean_blocks: float


def simulate_looks(
    counts: Sequence[int], generator: np.random.Generator, draws: int = SIMULATED_GATES
) -> SimulatedLooks:
    """Draw the mean and deviation of `counts` standard normals at each look, for `draws` gates.

    Batches are added one by one: the mean of m more is normal with variance 1/m, the sum of their squares about it
    chi-squared with m - 1 degrees of freedom (update of Chan, Golub and LeVeque 1983). Raises ValueError for counts
    that fall or are not above 0.
    """
    if not counts or any(before > after for before, after in zip((1, *counts), counts, strict=False)):
        raise ValueError(f"{list(counts)} differences at the looks; expected numbers from 1 that do not fall")
    mean, squares, had = np.zeros(draws), np.zeros(draws), 0
    means, deviations = [], []
    for count in counts:
        more = count - had
        if more:
            batch = generator.standard_normal(draws) / math.sqrt(more)
            own = generator.chisquare(more - 1, draws) if more > 1 else np.zeros(draws)
            gap = batch - mean
            squares = squares + own + gap**2 * (had * more / count)
            mean = mean + gap * (more / count)
        had = count
        means.append(mean)
        deviations.append(np.sqrt(squares / max(count - 1, 1)))
    return SimulatedLooks(tuple(counts), np.column_stack(means), np.column_stack(deviations))


def decide_looks(
    course: SimulatedLooks, looks: LookSchedule, rule: DecisionRule, *, sd: float, harm: float = 0.0
) -> LookDecisions:
    """Decide at each look for differences of deviation `sd` about a mean of `harm`.

    Within the margin: promoted. Regression shown: blocked, before the last look only if the estimate itself reaches the
    margin.
    """
    reach = _half_widths(course, looks, rule, sd)
    wide = _half_widths(course, looks, rule, sd, sides=2) if rule.two_sided else reach
    estimate = harm + sd * course.means
    within = estimate + reach < rule.margin
    if rule.two_sided:
        within &= estimate - reach > -rule.margin
    shown = estimate - wide > (rule.margin if rule.breach else 0.0)
    if rule.two_sided:
        shown |= estimate + wide < (-rule.margin if rule.breach else 0.0)
    size = np.abs(estimate) if rule.two_sided else estimate
    large = size >= rule.margin
    large[:, -1] = True
    return LookDecisions(within, shown & large & ~within)


def stopping_rates(checks: Sequence[LookDecisions], looks: LookSchedule) -> StoppingRates:
    """End each gate at the first look that promotes all checks or blocks one. Raises ValueError without a check."""
    if not checks:
        raise ValueError("gates without a check; expected at least one")
    promoted = np.logical_and.reduce([one.promoted for one in checks])
    blocked = np.logical_or.reduce([one.blocked for one in checks])
    settled = promoted | blocked
    settled[:, -1] = True
    at = settled.argmax(axis=1)
    rows = np.arange(len(at))
    return StoppingRates(
        promoted=float(promoted[rows, at].mean()),
        blocked=float(blocked[rows, at].mean()),
        mean_blocks=float(np.asarray(looks.blocks)[at].mean()),
    )


def _half_widths(
    course: SimulatedLooks, looks: LookSchedule, rule: DecisionRule, sd: float, sides: int = 1
) -> FloatArray:
    """Return the half-widths of the limits at each look; of two sides, each has half the error.

    The effective number of blocks is that of `stats.clusters.effective_sample_size`, smaller by (t/z)² for few blocks.
    """
    pairs = [(count, tail / sides) for count, tail in zip(course.counts, looks.tails, strict=True)]
    quantiles = np.array([t_ppf(1 - tail, max(count - 1, 1)) for count, tail in pairs])
    counts, normal = np.asarray(course.counts), np.array([norm_ppf(1 - tail) for _, tail in pairs])
    scale, lump = quantiles / np.sqrt(counts), rule.lump * (quantiles / normal) ** 2 / counts
    reach: FloatArray = np.maximum(sd * course.deviations * scale, rule.least_sd * scale + lump)
    reach[:, counts < 2] = np.inf
    return reach
