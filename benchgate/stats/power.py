"""How much evidence a margin needs, and how little harm so much evidence shows, before it is paid for.

Of paired blocks: the power of Student's t is exact, by the noncentral t law. What several looks at them make of it is
in `look_power`; shares of requests are in `share_power`, items of evals in `item_power`.

What so many requests can show of a share that misses: errors, answers that are late or not valid.

What so many items can show: chances of each outcome and sizes, before an eval is paid for.

Shares throughout: 0.02 is two points. `flips` is the share of items on which the arms differ, (b + c)/n.

What several looks at paired blocks decide, and how often: the whole three-way rule, over drawn differences.

What a look sees of n normal differences is their mean and their deviation, so those two are all that is drawn, once, on
a scale of 0 and 1; every spread, harm and margin is then the same draws moved and stretched. The same draws for all of
them make chances that rise and fall as they must, and no noise between two of them that are compared.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from benchgate.model.records import BoolArray, FloatArray
from benchgate.stats.distributions import Limits, binom_cdf, binom_pmf, binom_sf, check_alpha, norm_ppf, t_ppf
from benchgate.stats.overdispersed import attainment_limits
from benchgate.stats.proportions import score_statistic, tango_p_margin

_MOST = 1_000_000
"""Pairs, or standard deviations of harm, beyond which no number is told."""
_HALVINGS = 60


def chance_shown(n: int, sd: float, harm: float, *, alpha: float = 0.05) -> float:
    """The chance that a one-sided t-test over `n` paired differences with this deviation shows a mean of `harm`.

    P(T > t(1-alpha, n-1)), T noncentral with shift harm·√n/sd (Johnson, Kotz and Balakrishnan 1995, chapter 31). By
    symmetry it is also the chance that an equal candidate's upper limit stays below a margin of `harm`. 0 below two
    differences. ValueError for a deviation that is not above 0.
    """
    from scipy.special import nctdtr

    check_alpha(alpha)
    if not sd > 0:
        raise ValueError(f"a standard deviation of {sd!r}; expected one above 0")
    if n < 2:
        return 0.0
    # 1 - cdf: the upper tail itself is not a number for some large shifts where the cdf is a clean 0.
    return float(1 - nctdtr(n - 1, harm * math.sqrt(n) / sd, t_ppf(1 - alpha, n - 1)))


def detectable_harm(n: int, sd: float, *, alpha: float = 0.05, power: float = 0.8) -> float | None:
    """The smallest mean harm that `n` paired differences show with this chance. None below two of them."""
    _check(alpha, power)
    if n < 2:
        return None
    return _smallest(lambda harm: chance_shown(n, sd, harm, alpha=alpha) >= power, sd / math.sqrt(n))


def blocks_needed(sd: float, harm: float, *, alpha: float = 0.05, power: float = 0.95) -> int | None:
    """Paired differences for a t-test to show a mean of `harm` with the given power. None beyond a million."""
    _check(alpha, power)
    if not (sd > 0 and harm > 0):
        raise ValueError(f"deviation {sd!r} and harm {harm!r} must both be above 0")
    return fewest(lambda n: chance_shown(n, sd, harm, alpha=alpha) >= power, most=_MOST)


def items_needed(discordance_ratio: float, margin: float, *, alpha: float = 0.05, power: float = 0.95) -> int:
    """Paired items for a difference of `margin` (a share, 0.02 = 2 points) at discordance f = (b+c)/n.

    n = ((z(1-alpha)·√f + z(power)·√(f - margin²)) / margin)² (Connor 1987, Biometrics 43), rounded up. ValueError when
    the discordance is below the margin: then the difference cannot be that large.
    """
    _check(alpha, power)
    if not 0 < margin <= discordance_ratio <= 1:
        raise ValueError(f"margin {margin!r} and discordance {discordance_ratio!r}: expected 0 < margin <= f <= 1")
    spread = norm_ppf(1 - alpha) * math.sqrt(discordance_ratio)
    spread += norm_ppf(power) * math.sqrt(discordance_ratio - margin**2)
    return math.ceil((spread / margin) ** 2)


def detectable_difference(n: int, discordance_ratio: float, *, alpha: float = 0.05, power: float = 0.8) -> float | None:
    """The smallest difference that `n` paired items show, by the same formula: at most 1, or None.

    Items that lose differ, so a difference above the discordance is looked for at a discordance as large as itself.
    """
    _check(alpha, power)
    if n < 1 or not 0 <= discordance_ratio <= 1:
        raise ValueError(f"{n} items, discordance {discordance_ratio!r}: expected items, and a share from 0 to 1")

    def enough(difference: float) -> bool:
        return items_needed(max(discordance_ratio, difference), difference, alpha=alpha, power=power) <= n

    if not enough(1.0):
        return None
    low, high = 0.0, 1.0
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        low, high = (low, middle) if enough(middle) else (middle, high)
    return high


def values_needed(sd: float, difference: float, *, alpha: float = 0.05, power: float = 0.95) -> int:
    """Independent paired values whose mean shows a difference: n = ((z(1-alpha) + z(power))·sd/difference)².

    Of the excess disagreement of a shadow comparison, sd is that of x - y over prompts.
    """
    _check(alpha, power)
    if not (sd >= 0 and difference > 0):
        raise ValueError(f"sd {sd!r} and difference {difference!r}: expected sd of 0 or more, difference above 0")
    return max(1, math.ceil(((norm_ppf(1 - alpha) + norm_ppf(power)) * sd / difference) ** 2))


def fewest(enough: Callable[[int], bool], *, most: int) -> int | None:
    """The fewest of which a rising condition holds, from 1 on; None where `most` are not enough."""
    low, high = 0, 1
    while not enough(high):
        low, high = high, high * 2
        if low >= most:
            return None
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if enough(middle) else (middle, high)
    return high


def _smallest(enough: Callable[[float], bool], scale: float) -> float | None:
    """The smallest value of which a rising condition holds, by `scale`; None where a million times it is too small."""
    high = scale
    while not enough(high):
        high *= 2
        if high > _MOST * scale:
            return None
    low = 0.0
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        low, high = (low, middle) if enough(middle) else (middle, high)
    return high


def _check(alpha: float, power: float) -> None:
    check_alpha(alpha)
    if not 0 < power < 1:
        raise ValueError(f"power is {power!r}; expected a probability above 0 and below 1")


_SHARE_HALVINGS = 50


def zero_misses_needed(share: float, alpha: float = 0.05) -> int:
    """Requests of which none may miss to show that less than `share` do: the least n with (1 - share)^n <= alpha.

    Clopper and Pearson's limit of 0 in n. At 5 %: 299 for 1 %, 598 for 0.5 %, 2,995 for 0.1 %.
    """
    check_alpha(alpha)
    if not 0 < share < 1:
        raise ValueError(f"a share of {share!r}; expected one above 0 and below 1")
    return math.ceil(math.log(alpha) / math.log1p(-share))


def most_misses(requests: Sequence[int], allowed: float, alpha: float = 0.05) -> int | None:
    """How many of the requests of these blocks may miss for the upper limit of their share to be at most `allowed`.

    The misses are taken to fall evenly over the blocks, which is the kindest they can. None where not even none is few
    enough. ValueError for blocks of which there are no limits.
    """
    if _evenly(requests, 0, alpha).upper > allowed:
        return None
    return _last(lambda misses: _evenly(requests, misses, alpha).upper <= allowed, sum(requests))


def least_shown(requests: Sequence[int], allowed: float, alpha: float = 0.05) -> int | None:
    """How many must miss, evenly, for the share to be shown above `allowed`; None where not even all are enough."""
    if _evenly(requests, sum(requests), alpha).lower <= allowed:
        return None
    return _last(lambda misses: _evenly(requests, misses, alpha).lower <= allowed, sum(requests)) + 1


def share_shown(requests: Sequence[int], allowed: float, *, alpha: float = 0.05, power: float = 0.8) -> float | None:
    """The smallest true share that is shown to be above `allowed` with this chance; None where none is."""
    least = least_shown(requests, allowed, alpha)
    if least is None:
        return None
    low, high = allowed, 1.0
    for _ in range(_SHARE_HALVINGS):
        middle = (low + high) / 2
        low, high = (low, middle) if binom_sf(least - 1, sum(requests), middle) >= power else (middle, high)
    return high


def chance_within(requests: Sequence[int], allowed: float, share: float, alpha: float = 0.05) -> float:
    """The chance that the upper limit is at most `allowed`, when each request misses with probability `share`."""
    most = most_misses(requests, allowed, alpha)
    return 0.0 if most is None else binom_cdf(most, sum(requests), share)


def _evenly(requests: Sequence[int], misses: int, alpha: float) -> Limits:
    """Limits of the share that misses, when the misses fall on the blocks as evenly as whole numbers can."""
    done, had, kept = 0, 0, []
    total = sum(requests)
    for count in requests:
        had += count
        upto = misses * had // total if total else 0
        kept.append(count - (upto - done))
        done = upto
    limits = attainment_limits(kept, list(requests), alpha)
    if limits is None:
        raise ValueError(f"blocks of {list(requests)} requests have no limits; expected two blocks, each with requests")
    return limits


def _last(holds: Callable[[int], bool], most: int) -> int:
    """The last number up to which a condition that holds at 0 still does."""
    low, high = 0, most + 1
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if holds(middle) else (low, middle)
    return low


_TAILS = 8
"""Standard deviations of the number of differing items that are looked at."""
_SELF_WEIGHT = 0.5
"""What a prompt takes off the excess when the baseline differs from itself (`excess`)."""
_MOST_ODD = 2 / 3
"""Of prompts with an odd one among three answers, those where it is one of the baseline's two."""


def chance_of_pass(n: int, flips: float, margin: float, alpha: float = 0.05, *, harm: float = 0.0) -> float:
    """How often Tango's upper limit stays below the margin: of an equal candidate, or of one that loses `harm`."""
    _check_items(n, flips, harm, alpha)

    def shown(b: int, c: int) -> bool:
        return tango_p_margin(b, c, n, margin) < alpha

    if flips in (0, 1) and flips == abs(harm):  # every item, or none, is lost (or gained)
        return float(shown(n if harm > 0 else 0, n if harm < 0 else 0))
    return _over_differing(n, flips, (flips + harm) / (2 * flips), shown)


def chance_of_excess_pass(n: int, itself: float, margin: float, alpha: float = 0.05) -> float:
    """How often the excess disagreement of an equal candidate is shown to be below the margin.

    `itself` is the share of prompts on which the baseline differs from itself. Of three answers of equals that differ
    at all, each is the odd one as often: half as many prompts as `itself` are a candidate against two that agree (+1),
    `itself` a baseline at odds with itself (-1/2), and the limits are those of `excess_disagreement`.
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


def excess_sd(itself: float) -> float:
    """Deviation of one prompt's excess x - y for an equal candidate: √(itself/2 + itself/4), by the same law."""
    return math.sqrt(0.75 * itself)


def independent_items(n: int, clusters: int, alike: float) -> int:
    """How many independent items tell as much as n in so many clusters (Kish 1965): n / (1 + (n/clusters - 1)·alike).

    `alike` is the intra-class correlation of their differences, from 0 to 1. At least 1.
    """
    if not (0 < clusters <= n and 0 <= alike <= 1):
        raise ValueError(f"n={n}, {clusters} clusters, alike={alike!r}: expected 0 < clusters <= n, 0 <= alike <= 1")
    return max(1, math.floor(n / (1 + (n / clusters - 1) * alike)))


def _over_differing(n: int, differ: float, loss: float, shown: Callable[[int, int], bool]) -> float:
    """Return the chance of what is shown up to some number of losses.

    Each of `n` items differs with the probability `differ`, and is then a loss with the probability `loss`.
    """
    spread = _TAILS * math.sqrt(n * differ * (1 - differ)) + 1
    numbers = np.arange(max(0, math.floor(n * differ - spread)), min(n, math.ceil(n * differ + spread)) + 1)
    total = 0.0
    for m, weight in zip(numbers.tolist(), binom_pmf(numbers, n, differ), strict=True):
        edge = _first_not_shown(m, shown)
        total += weight * (binom_cdf(edge - 1, m, loss) if loss < 1 else float(m <= edge - 1))
    return float(min(1.0, max(0.0, total)))


def _first_not_shown(m: int, shown: Callable[[int, int], bool]) -> int:
    """Return the fewest losses among m of which the claim is no longer shown."""
    low, high = 0, m + 1
    while low < high:
        middle = (low + high) // 2
        if shown(middle, m - middle):
            low = middle + 1
        else:
            high = middle
    return low


def _check_items(n: int, flips: float, harm: float, alpha: float) -> None:
    check_alpha(alpha)
    if n < 1 or not (abs(harm) <= flips < 1 or abs(harm) == flips == 1):
        raise ValueError(f"n={n}, flips={flips!r}, harm={harm!r}: expected items, and |harm| <= flips < 1")


DRAWS = 20_000
"""Gates that are drawn; a chance of one half is then known to 0.35 points, one of 97 % to 0.12."""


@dataclass(frozen=True, slots=True)
class Looks:
    """After how many blocks is looked (ascending, each 2 or more), and the one-sided error that each look may spend."""

    blocks: tuple[int, ...]
    tails: tuple[float, ...]

    def __post_init__(self) -> None:
        rising = all(before < after for before, after in zip((1, *self.blocks), self.blocks, strict=False))
        if not self.blocks or not rising or len(self.tails) != len(self.blocks):
            raise ValueError(
                f"looks after {self.blocks} blocks at {self.tails}: expected rising numbers from 2, a tail each"
            )


@dataclass(frozen=True, slots=True, eq=False)
class Course:
    """Mean and deviation of standard normal differences at each look: rows are gates, columns looks.

    `counts` are how many differences each look has; fewer than two have no deviation, and no limits.
    """

    counts: tuple[int, ...]
    means: FloatArray
    deviations: FloatArray


@dataclass(frozen=True, slots=True)
class Rule:
    """How one check judges its mean harm. `breach`: harm is tested against the margin and not against none.

    `least_sd`: what its limits are never narrower than, whatever the blocks' own spread, and `lump` over the number of
    blocks is what those are wider by, because what is counted comes in wholes. `two_sided`: a gain beyond the
    margin is no equality either.
    """

    margin: float
    breach: bool = False
    least_sd: float = 0.0
    lump: float = 0.0
    two_sided: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class Seen:
    """What a check would say at each look: may be promoted, is blocked, or (neither) is still open."""

    promoted: BoolArray
    blocked: BoolArray


@dataclass(frozen=True, slots=True)
class Ends:
    """How gates end: shares of them, and the mean number of blocks that they took."""

    promoted: float
    blocked: float
    mean_blocks: float


def drawn_course(counts: Sequence[int], generator: np.random.Generator, draws: int = DRAWS) -> Course:
    """Mean and deviation of so many standard normals at each look, of so many gates.

    Batch by batch: the mean of m more is normal with variance 1/m, the sum of their squares about it chi-squared with
    m - 1 degrees of freedom, and the two are put to what was there before (Chan, Golub and LeVeque 1983). ValueError
    for counts that fall, or are not above 0.
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
    return Course(tuple(counts), np.column_stack(means), np.column_stack(deviations))


def seen(course: Course, looks: Looks, rule: Rule, *, sd: float, harm: float = 0.0) -> Seen:
    """What the rule says at each look of differences with this deviation about this mean harm.

    Within the margin: promoted. Harm shown: blocked, at a look before the last only where the estimate itself is the
    margin or more.
    """
    reach, far = _reach(course, looks, rule, sd), _reach(course, looks, rule, sd, 2 if rule.two_sided else 1)
    estimate = harm + sd * course.means
    within = estimate + reach < rule.margin
    if rule.two_sided:
        within &= estimate - reach > -rule.margin
    shown = estimate - far > (rule.margin if rule.breach else 0.0)
    if rule.two_sided:
        shown |= estimate + far < (-rule.margin if rule.breach else 0.0)
    size = np.abs(estimate) if rule.two_sided else estimate
    grave = size >= rule.margin
    grave[:, -1] = True
    return Seen(within, shown & grave & ~within)


def ends(checks: Sequence[Seen], looks: Looks) -> Ends:
    """How gates over all these checks end: at the first look that promotes all of them, or blocks one.

    ValueError without a check.
    """
    if not checks:
        raise ValueError("gates without a check; expected at least one")
    promoted = np.logical_and.reduce([one.promoted for one in checks])
    blocked = np.logical_or.reduce([one.blocked for one in checks])
    settled = promoted | blocked
    settled[:, -1] = True
    at = settled.argmax(axis=1)
    rows = np.arange(len(at))
    return Ends(
        promoted=float(promoted[rows, at].mean()),
        blocked=float(blocked[rows, at].mean()),
        mean_blocks=float(np.asarray(looks.blocks)[at].mean()),
    )


def _reach(course: Course, looks: Looks, rule: Rule, sd: float, sides: int = 1) -> FloatArray:
    """How far the limits lie from the estimate at each look; of two sides each may err half as often."""
    quantiles = [
        t_ppf(1 - tail / sides, max(count - 1, 1)) for count, tail in zip(course.counts, looks.tails, strict=True)
    ]
    counts = np.asarray(course.counts)
    scale = np.array(quantiles) / np.sqrt(counts)
    reach: FloatArray = np.maximum(sd * course.deviations * scale, rule.least_sd * scale + rule.lump / counts)
    reach[:, counts < 2] = np.inf
    return reach
