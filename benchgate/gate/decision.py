"""The three-way rule: an estimate, its confidence limits and its margin give an outcome.

The shape is non-inferiority with a test for a regression (docs/reference/verdict.md). PASS needs proof that the
regression stays inside the margin, BLOCK needs proof of a regression, and everything between is INCONCLUSIVE.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from benchgate.model.run import LoadEnd
from benchgate.model.verdict import Outcome, Scale, Unit
from benchgate.stats.distributions import Limits, norm_ppf
from benchgate.stats.sequential import repeated_p
from benchgate.stats.trace import Trace
from benchgate.units import as_written, show_percent


@dataclass(frozen=True, slots=True)
class Look:
    """Interim analysis `number` (from 1) of `of`, after `blocks` of at most `most`.

    `alpha` is the one-sided error of its limits. `fractions` are those of all looks, of the most blocks there may be.
    `ended` is why the load ended here, if the run recorded it.
    """

    number: int
    of: int
    blocks: int
    most: int
    alpha: float
    fractions: tuple[float, ...]
    ended: LoadEnd | None = None

    @property
    def last(self) -> bool:
        """Return True if no look follows: what is not settled now will not be."""
        return self.number == self.of

    @property
    def description(self) -> str:
        """Return `look 2 of 3, after 10 of at most 20 blocks`."""
        return f"look {self.number} of {self.of}, after {self.blocks} of at most {self.most} blocks"


class CannotJudge(Exception):
    """Evidence that cannot carry a check: INVALID (it is broken) or INCONCLUSIVE (there is too little).

    Checks and evidence raise it; `Estimate.keeping_problems` catches it.
    """

    def __init__(self, outcome: Outcome, reason: str, advice: str) -> None:
        super().__init__(reason)
        self.outcome = outcome
        self.reason = reason
        self.advice = advice


def invalid(reason: str, advice: str) -> CannotJudge:
    """Return the refusal of broken evidence, to be raised."""
    return CannotJudge(Outcome.INVALID, reason, advice)


def inconclusive(reason: str, advice: str) -> CannotJudge:
    """Return the refusal of too little evidence, to be raised."""
    return CannotJudge(Outcome.INCONCLUSIVE, reason, advice)


@dataclass(frozen=True, slots=True)
class Rule:
    """Rule by which the numbers of a check decide it.

    On `scale` above 0 is worse, except that an ABSOLUTE check has the candidate's own value, and its bound as margin.
    The p-value tests "no regression", or with `breach` "the regression is within the margin".
    """

    unit: Unit
    scale: Scale
    breach: bool = False
    lower_is_worse: bool = False  # of an ABSOLUTE check: goodput, accuracy, throughput
    falls: bool = False  # a regression of a share shows as a fall (accuracy, goodput), not as a rise (errors)
    nears: bool = True  # an ABSOLUTE value close to its bound warns
    by_estimate: bool = False  # a regression blocks only if the estimate itself is beyond the margin
    quiet: bool = False  # a regression shown to stay inside the margin does not warn
    two_sided: bool = False  # a change in either direction is a regression; the margin is on both sides of 0


@dataclass(slots=True)
class Estimate:
    """Measurement of one check, filled in step by step before any decision.

    `value` with `limits` is the regression on the rule's scale, or the candidate's own value of an ABSOLUTE check.
    `least` is the smallest change that counts; `p_value` is of a regression beyond it. With a `problem` the numbers are
    those known before it, and decide nothing.
    """

    rule: Rule
    margin: float
    method: str = "none"
    n: int = 0
    n_unit: str = "blocks"
    n_of: int | None = None  # total of `n_unit`, if some were excluded
    needed_at: Callable[[float], int | None] | None = None  # of `n_unit`, about how many settle it at an alpha
    baseline: float | None = None
    candidate: float | None = None
    value: float | None = None
    limits: Limits | None = None
    freedom: float | None = None  # degrees of freedom of the limits; None for n - 1
    freedom_by_side: tuple[float | None, float | None] = (None, None)  # of the lower and of the upper limit alone
    p_value: float | None = None
    least: float = 0.0
    margin_text: str | None = None  # the margin in words, where its number alone does not say it
    warning: str | None = None  # turns a PASS into a WARN
    warning_advice: str | None = None
    notes: list[str] = field(default_factory=list)
    look: Look | None = None  # interim analysis that it is from
    problem: CannotJudge | None = None
    trace: Trace = field(default_factory=Trace)

    @contextmanager
    def keeping_problems(self) -> Iterator[None]:
        """Catch CannotJudge and keep it, unless there is an earlier problem."""
        try:
            yield
        except CannotJudge as cannot:
            self.problem = self.problem or cannot

    def warn(self, warning: str | None) -> None:
        """Let a PASS warn; the first warning counts."""
        self.warning = self.warning or warning

    def clear_undefined(self) -> None:
        """Clear value, limits and p-value if one of these numbers is NaN.

        NaN is neither above a margin nor below it: whatever compares it would let it through one way or the other.
        """
        numbers = [self.value, self.p_value]
        if self.limits is not None:
            numbers += [self.limits.lower, self.limits.upper]
        if any(number is not None and math.isnan(number) for number in numbers):
            self.value = self.limits = self.p_value = None


def log_margin(margin: float, *, falling: bool) -> float:
    """Return a margin as a log ratio: 5 % of a latency is ln 1.05 more; of a rate, which may fall, -ln 0.95."""
    return -math.log1p(-margin) if falling else math.log1p(margin)


def adjust_for_looks(estimate: Estimate, look: Look) -> None:
    """Replace the p-value of an estimate whose limits are at the look's own alpha by the repeated one.

    That is compared with alpha itself, and goes through Holm, like the p-value of a check without interim looks.
    """
    estimate.clear_undefined()
    estimate.look = look
    estimate.notes.insert(0, f"{look.description}; limits at {as_written(show_percent, look.alpha)}")
    if estimate.p_value is None:
        return
    sides = 2 if estimate.rule.two_sided else 1  # a two-sided p-value is twice that of the side that moved
    one_sided = estimate.p_value / sides
    repeated = repeated_p(one_sided, look.number, look.fractions)
    estimate.p_value = min(1.0, sides * repeated)
    if estimate.trace.steps:
        fractions = ", ".join(f"{fraction:g}" for fraction in look.fractions)
        formula = f"P(B(t) >= z * sqrt({look.fractions[look.number - 1]:g}) at any t of {fractions})"
        if 0 < one_sided < 1:
            formula += f", where P(Z > z) = {one_sided:.8g}: z = {-norm_ppf(one_sided):.8g}"
        of = " of the likelier one" if sides == 2 else ""
        estimate.trace.text(f"p-value{of} over all looks, seen at {look.description}", formula, f"{repeated:.6g}")


def decide(estimate: Estimate, p_holm: float | None, alpha: float, warn_fraction: float) -> Outcome:
    """Decide one check. `p_holm` is its p-value after Holm over the checks of its kind.

    WARN, too, goes by the adjusted p-value: of ten checks on equal deployments at 5 %, four in ten runs would
    otherwise carry a warning about nothing.
    """
    if estimate.problem is not None:
        return estimate.problem.outcome
    estimate.clear_undefined()
    rule, value, limits = estimate.rule, estimate.value, estimate.limits
    if limits is None or value is None or estimate.p_value is None:
        return Outcome.INVALID
    if p_holm is None or math.isnan(p_holm):
        return Outcome.INVALID
    if not _within(estimate, limits):
        blocked = p_holm <= alpha and not (allowed_by_estimate(estimate) or too_soon(estimate))
        return Outcome.BLOCK if blocked else Outcome.INCONCLUSIVE
    if estimate.warning is not None:
        return Outcome.WARN
    regressed = p_holm <= alpha  # inside the margin
    if rule.breach:
        regressed = limits.lower > estimate.least or (rule.two_sided and limits.upper < 0)
    if regressed and not (rule.scale is Scale.ABSOLUTE or rule.by_estimate or rule.quiet):
        return Outcome.WARN
    if rule.scale is Scale.ABSOLUTE and rule.nears and used_share_of_bound(estimate) > warn_fraction:
        return Outcome.WARN
    return Outcome.PASS


def allowed_by_estimate(estimate: Estimate) -> bool:
    """Return True if a regression that is shown never blocks, because its estimate is not beyond the margin (flips)."""
    return estimate.rule.by_estimate and estimate.value is not None and estimate.value <= estimate.margin


def too_soon(estimate: Estimate) -> bool:
    """Return True if a regression is shown whose estimate lies inside the margin, and a look is still to come.

    Such a regression blocks at the last look only. Earlier it is shown before non-inferiority can be, and many a
    candidate that the margin allows would be blocked for it.
    """
    rule, look, value = estimate.rule, estimate.look, estimate.value
    if look is None or look.last or rule.scale is Scale.ABSOLUTE or value is None:
        return False
    return (abs(value) if rule.two_sided else value) < estimate.margin


def used_share_of_bound(estimate: Estimate) -> float:
    """Return how much of its bound a value uses up; above 1 the bound is missed.

    A least share (goodput at least 95 %) allows misses, so it is misses over allowed misses. For a least quantity it is
    bound over value, for a highest one value over bound.
    """
    value, bound = estimate.value, estimate.margin
    if value is None:
        return math.inf
    if not estimate.rule.lower_is_worse:
        used, allowed = value, bound
    elif estimate.rule.unit is Unit.RATIO:
        used, allowed = 1 - value, 1 - bound
    else:
        used, allowed = bound, value
    if allowed <= 0:
        return 0.0 if used <= 0 else math.inf
    return used / allowed


def _within(estimate: Estimate, limits: Limits) -> bool:
    """Return True if the unfavourable limit stays inside the margin (an ABSOLUTE one may reach its bound)."""
    margin, rule = estimate.margin, estimate.rule
    if rule.two_sided:
        return -margin < limits.lower and limits.upper < margin
    if rule.scale is not Scale.ABSOLUTE:
        return limits.upper < margin
    return limits.lower >= margin if rule.lower_is_worse else limits.upper <= margin
