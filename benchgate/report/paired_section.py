"""The differences that checks of the load rest on, block by block: one point each, as the change a reader sees."""

from __future__ import annotations

import math
from dataclasses import dataclass

from benchgate.gate.summary.figures import BlockDifferences, block_differences
from benchgate.model.run import Evidence
from benchgate.model.verdict import CheckResult, Outcome, Scale, Verdict
from benchgate.report import show
from benchgate.suite.schema import Suite

_MOST_DRAWN = 12
_OPEN = 4
_LARGEST_EXPONENT = 700.0  # exp() overflows a double just above


@dataclass(frozen=True, slots=True)
class PairedCheck:
    """One check with the change in each block, in per cent of the baseline's value or in points of a share.

    `changes` are None where the candidate alone has no finite value; `numbers` are their blocks' own, counted from 1
    (of groups their places), and `left_out` the other blocks' with why the check did without them. `mean`, `lower` and
    `upper` are the check's own, None where it has none; `allowed` is where the margin lies, `both` that it lies on the
    other side too.
    """

    id: str
    title: str
    unit: str
    changes: tuple[float | None, ...]
    together: int
    mean: float | None
    lower: float | None
    upper: float | None
    allowed: float
    both: bool
    worse_is_up: bool
    numbers: tuple[int, ...]
    left_out: tuple[tuple[int, str], ...]


@dataclass(frozen=True, slots=True)
class PairedSection:
    """`first` stands open and `rest` folded: what failed first, and the required before the advisory."""

    first: tuple[PairedCheck, ...]
    rest: tuple[PairedCheck, ...]
    left: int  # how many more there are, which are not drawn


def paired_section(evidence: Evidence, verdict: Verdict, suite: Suite) -> PairedSection | None:
    """None where no check compares blocks of one run; two stored runs have none that were paired."""
    found = {one.id: one for one in block_differences(suite, evidence)}
    passing = (check for check in verdict.checks if check.outcome is Outcome.PASS)
    ordered = [*verdict.failing(), *sorted(passing, key=lambda check: not check.required)]
    shown = [_paired(check, found[check.id]) for check in ordered if check.id in found and _comparable(check)]
    if not shown:
        return None
    drawn = shown[:_MOST_DRAWN]
    return PairedSection(tuple(drawn[:_OPEN]), tuple(drawn[_OPEN:]), len(shown) - len(drawn))


def _comparable(check: CheckResult) -> bool:
    return check.scale in (Scale.LOG_RATIO, Scale.DIFFERENCE)


def _paired(check: CheckResult, found: BlockDifferences) -> PairedCheck:
    rises = show.higher_is_better(check.metric)
    ends = sorted(one for one in (_change(check, end) for end in (check.lower, check.upper)) if one is not None)
    allowed = _change(check, check.margin)
    assert allowed is not None, "a margin is a number"
    return PairedCheck(
        id=found.id,
        title=check.title,
        unit="change, %" if check.scale is Scale.LOG_RATIO else "change, points",
        changes=tuple(_change(check, harm) for harm in found.regressions),
        together=found.together,
        mean=_change(check, check.harm),
        lower=ends[0] if len(ends) == 2 else None,
        upper=ends[1] if len(ends) == 2 else None,
        allowed=allowed,
        both=check.two_sided,
        worse_is_up=not rises,
        numbers=_numbers(found),
        left_out=tuple((block + 1, why) for block, why in found.left_out),
    )


def _numbers(found: BlockDifferences) -> tuple[int, ...]:
    if found.together > 1:
        return tuple(range(1, len(found.regressions) + 1))
    return tuple(block + 1 for block in found.blocks)


def _change(check: CheckResult, harm: float | None) -> float | None:
    """Harm as the value's own change: per cent of the baseline's, or points; None where it is not finite."""
    if harm is None or not math.isfinite(harm):
        return None
    moved = -harm if show.higher_is_better(check.metric) else harm
    if check.scale is Scale.DIFFERENCE:
        return moved * 100
    return math.expm1(moved) * 100 if moved < _LARGEST_EXPONENT else None
