"""What several looks at paired blocks decide, and how often: the whole three-way rule, over drawn differences.

What a look sees of n normal differences is their mean and their deviation, so those two are all that is drawn, once, on
a scale of 0 and 1; every spread, harm and margin is then the same draws moved and stretched. The same draws for all of
them make chances that rise and fall as they must, and no noise between two of them that are compared.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from benchgate.model.records import BoolArray, FloatArray
from benchgate.stats.distributions import t_ppf

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
