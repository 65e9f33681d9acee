"""The three-way rule: an estimate of harm, its limits and its margin give an outcome.

The shape is non-inferiority with a harm test (docs/decisions.md): PASS needs proof that harm stays inside the margin,
BLOCK needs proof of harm, and everything between says so instead of guessing.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from benchgate.model.run import LoadEnd
from benchgate.model.verdict import ArithmeticStep, Outcome, Scale, Unit
from benchgate.stats.distributions import Limits, norm_ppf
from benchgate.stats.sequential import repeated_p
from benchgate.units import as_written, show_percent


@dataclass(frozen=True, slots=True)
class Look:
    """Look `number` (from 1) of `of`, after `blocks` of at most `most`. `alpha` is the tail that limits are taken at.

    `fractions` are those of all looks, of the most blocks there may be. `ended` is why the load ended here, where the
    run says so.
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
        """Whether there is none after it: what is not settled now will not be."""
        return self.number == self.of

    @property
    def told(self) -> str:
        """`look 2 of 3, after 10 of at most 20 blocks`."""
        return f"look {self.number} of {self.of}, after {self.blocks} of at most {self.most} blocks"


@dataclass(frozen=True, slots=True)
class Finding:
    """What one check measured, before any decision.

    `harm` and `limits` are on `scale`, positive = worse; for an absolute check they are the candidate's own value with
    its limits and `margin` is the SLO. `p_value` tests "no harm", or, where `breach` is set, "harm within the margin".
    Where `two_sided` is set harm has a sign, which says in which direction the value moved, and both count.
    `problem` is set when the evidence cannot carry the check: then there is no estimate and never a PASS.
    """

    unit: Unit
    scale: Scale
    margin: float
    method: str
    n: int
    n_unit: str
    baseline: float | None = None
    candidate: float | None = None
    harm: float | None = None
    limits: Limits | None = None
    p_value: float | None = None
    breach: bool = False
    lower_is_worse: bool = False  # absolute checks only: goodput, accuracy, throughput
    falls: bool = False  # harm of a share shows as a fall (accuracy, goodput), not as a rise (errors, disagreement)
    nears: bool = True  # absolute checks only: a value close to its bound warns
    warning: str | None = None  # turns a PASS into a WARN
    warning_advice: str | None = None  # what to do about that
    notes: tuple[str, ...] = ()
    problem: Problem | None = None
    by_estimate: bool = False  # harm counts only where the estimate itself is beyond the margin
    quiet: bool = False  # harm that is shown to stay inside the margin is no reason to warn
    two_sided: bool = False  # a change is harm whichever way it goes: the margin is one on both sides
    least: float = 0.0  # on `scale`: a change up to this is no harm; `p_value` is of harm beyond it
    margin_told: str | None = None  # how the margin is said, where its number alone does not
    look: Look | None = None  # which look at the load it is from, where the suite has several
    needs: int | None = None  # about how many of `n_unit` in all would settle it, where the check itself can say
    steps: tuple[ArithmeticStep, ...] = ()  # how the numbers came about, in order
    n_of: int | None = None  # how many of `n_unit` there were in all, where some were left out
    ended_by: tuple[str, ...] = ()  # titles of the required checks of the load that block
    required: bool = False  # by the policy that judges it here


@dataclass(frozen=True, slots=True)
class Problem:
    """Why a check has no usable estimate: INVALID (the evidence is broken) or INCONCLUSIVE (there is too little)."""

    outcome: Outcome
    reason: str
    advice: str


@dataclass(frozen=True, slots=True)
class Bound:
    """What an absolute check is held to, in base units: the least or the most that its value may be."""

    value: float
    at_least: bool


def at_look(finding: Finding, look: Look) -> Finding:
    """The same finding, made with limits at the look's own alpha: its p-value becomes the repeated one.

    That is compared with alpha itself, and goes through Holm, like the p-value of a check that is looked at once.
    """
    finding = replace(
        defined(finding), look=look, notes=(f"{look.told}; limits at {_tail(look.alpha)}", *finding.notes)
    )
    if finding.p_value is None:
        return finding
    sides = 2 if finding.two_sided else 1  # of two the p-value is twice that of the side that moved
    one_sided = finding.p_value / sides
    repeated = repeated_p(one_sided, look.number, look.fractions)
    p_value = min(1.0, sides * repeated)
    if not finding.steps:
        return replace(finding, p_value=p_value)
    formula = f"P(B(t) >= z * sqrt({look.fractions[look.number - 1]:g}) at any t of {_listed(look.fractions)})"
    if 0 < one_sided < 1:
        formula += f", where P(Z > z) = {one_sided:.8g}: z = {-norm_ppf(one_sided):.8g}"
    of = " of the likelier one" if sides == 2 else ""
    step = ArithmeticStep(f"p-value{of} over all looks, seen at {look.told}", formula, f"{repeated:.6g}")
    return replace(finding, p_value=p_value, steps=(*finding.steps, step))


def defined(finding: Finding) -> Finding:
    """The finding as it is; without harm, limits and p-value where one of these numbers is undefined (NaN).

    NaN is neither above a margin nor below it: whatever compares it would let it through one way or the other.
    """
    numbers = [finding.harm, finding.p_value]
    if finding.limits is not None:
        numbers += [finding.limits.lower, finding.limits.upper]
    if not any(number is not None and math.isnan(number) for number in numbers):
        return finding
    return replace(finding, harm=None, limits=None, p_value=None)


def decide(finding: Finding, p_holm: float | None, alpha: float, warn_fraction: float) -> Outcome:
    """The outcome of one check. `p_holm` is its p-value after Holm over the checks of its kind.

    WARN, too, goes by the adjusted p-value: of ten checks on equal deployments at 5 %, four in ten runs would
    otherwise carry a warning about nothing.
    """
    if finding.problem is not None:
        return finding.problem.outcome
    finding = defined(finding)
    if finding.limits is None or finding.harm is None or finding.p_value is None:
        return Outcome.INVALID
    if p_holm is None or math.isnan(p_holm):
        return Outcome.INVALID
    blocked = p_holm <= alpha and not (finding.by_estimate and finding.harm <= finding.margin) and not too_soon(finding)
    if not _within(finding, finding.limits):
        return Outcome.BLOCK if blocked else Outcome.INCONCLUSIVE
    if finding.warning is not None or _real_harm(finding, finding.limits, p_holm, alpha):
        return Outcome.WARN
    if finding.scale is Scale.ABSOLUTE and finding.nears and slo_share(finding) > warn_fraction:
        return Outcome.WARN
    return Outcome.PASS


def too_soon(finding: Finding) -> bool:
    """Harm that by its own estimate stays inside the margin blocks at the last look only.

    At an earlier one it is shown before non-inferiority can be, and many a candidate that the margin allows would be
    blocked for it.
    """
    if finding.look is None or finding.look.last or finding.scale is Scale.ABSOLUTE or finding.harm is None:
        return False
    return (abs(finding.harm) if finding.two_sided else finding.harm) < finding.margin


def slo_share(finding: Finding) -> float:
    """How much of what an SLO allows is used up; above 1 it is missed.

    A share target (goodput at least 95 %) allows misses, so it is misses over allowed misses; a minimum of a quantity
    is minimum over value; a maximum is value over maximum.
    """
    value, slo = finding.harm, finding.margin
    if value is None:
        return float("inf")
    if finding.lower_is_worse and finding.unit is Unit.RATIO:
        used, allowed = 1 - value, 1 - slo
    elif finding.lower_is_worse:
        used, allowed = slo, value
    else:
        used, allowed = value, slo
    if allowed <= 0:
        return 0.0 if used <= 0 else float("inf")
    return used / allowed


def _within(finding: Finding, limits: Limits) -> bool:
    """The unfavourable limit stays inside the margin (or, for an SLO, does not pass it)."""
    if finding.two_sided:
        return -finding.margin < limits.lower and limits.upper < finding.margin
    if finding.scale is not Scale.ABSOLUTE:
        return limits.upper < finding.margin
    return limits.lower >= finding.margin if finding.lower_is_worse else limits.upper <= finding.margin


def _real_harm(finding: Finding, limits: Limits, p_holm: float, alpha: float) -> bool:
    """Harm is shown although it stays inside the margin."""
    if finding.scale is Scale.ABSOLUTE or finding.by_estimate or finding.quiet:
        return False
    if not finding.breach:
        return p_holm <= alpha
    return limits.lower > finding.least or (finding.two_sided and limits.upper < 0)


def _tail(alpha: float) -> str:
    return as_written(show_percent(alpha))


def _listed(fractions: tuple[float, ...]) -> str:
    return ", ".join(f"{fraction:g}" for fraction in fractions)
