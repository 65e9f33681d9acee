"""Checks as rows of the report: failing ones first, every value in the units of its reader."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass

from benchgate.gate.error_budget import SPENT
from benchgate.model.verdict import CheckResult, Outcome, Scale, Unit, Verdict
from benchgate.report import show
from benchgate.report.levels import own_level
from benchgate.report.tables import of_expected

# The strip beside a check runs from half the allowance on the good side to twice the allowance.
_STRIP_START, _STRIP_END = -0.5, 2.0
_STRIP_UNITS = 100.0


@dataclass(frozen=True, slots=True)
class Strip:
    """A check drawn on the scale all checks share: 0 is no harm, 1 the most that is allowed.

    Positions are in hundredths of the allowance from the strip's left end, cut to it; `beyond` is -1 or 1 when the
    estimate itself lies past its left or right end, else 0. `label` says it in words.
    """

    width: float
    zero: float
    limit: float
    lower: float
    estimate: float
    upper: float
    beyond: int
    label: str


@dataclass(frozen=True, slots=True)
class CheckRow:
    """One check, ready to be laid out. Texts of the gate's own stand in `reason`, `advice` and `notes`."""

    anchor: str
    id: str  # as `--explain` and `waive` take it
    title: str
    outcome: str  # an Outcome, or WAIVED
    mark: str
    required: bool
    baseline: str
    candidate: str
    change: str
    direction: str
    interval: str
    level: str  # of its limits, where that is not the level of all others; else empty
    allowed: str
    n: str
    reason: str
    advice: str
    method: str
    notes: tuple[str, ...]
    strip: Strip | None

    def told_in(self, sentence: str) -> bool:
        """Whether a verdict's sentence gives this check's reason: under its title, for others may have the same one."""
        return any(f"{self.title}{joint}{self.reason}" in sentence for joint in (" ", ": "))

    def advice_beside(self, sentence: str, todo: str) -> str:
        """What to do about it, where the verdict's `todo` does not say that already; empty where it does.

        A check that is still open says it all the same, unless the `sentence` is about it: what settles one need not
        settle the next.
        """
        open_beside = self.outcome == Outcome.INCONCLUSIVE.value and not self.told_in(sentence)
        return self.advice if open_beside or self.advice not in todo else ""


@dataclass(frozen=True, slots=True)
class CheckRows:
    """All checks of a verdict: what needs a reader's attention, then what passed in the order of the suite."""

    failing: tuple[CheckRow, ...]
    passing: tuple[CheckRow, ...]

    @property
    def all(self) -> tuple[CheckRow, ...]:
        """Failing first."""
        return self.failing + self.passing


def check_rows(verdict: Verdict) -> CheckRows:
    """Every check as a row with an anchor of its own."""
    failing = verdict.failing()
    passing = [check for check in verdict.checks if check.outcome is Outcome.PASS]
    anchors = _anchors([*failing, *passing])
    guards = {guard.reason: guard.id for guard in reversed(verdict.guards) if guard.tripped}
    rows = tuple(
        _row(check, anchor, guards, verdict.alpha) for check, anchor in zip([*failing, *passing], anchors, strict=True)
    )
    return CheckRows(rows[: len(failing)], rows[len(failing) :])


def _row(check: CheckResult, anchor: str, guards: Mapping[str, str], alpha: float) -> CheckRow:
    """What a tripped guard (`guards`: reason to id) says of many checks is said once, with the guard."""
    absolute = check.scale is Scale.ABSOLUTE
    guard = guards.get(check.reason) if check.outcome is Outcome.INVALID else None
    return CheckRow(
        anchor=anchor,
        id=check.id,
        title=check.title,
        outcome=check.shown,
        mark=show.mark(check),
        required=check.required,
        baseline=show.NOT_APPLICABLE if absolute else show.value(check.baseline, check.unit),
        candidate=_whose(check) + show.value(check.candidate, check.unit),
        change=show.NOT_APPLICABLE if absolute or check.harm is None else show.change(check, check.harm),
        direction=show.direction(check),
        interval=show.interval(check),
        level=own_level(check, alpha),
        allowed=show.allowed(check),
        n=f"{of_expected(check.n, check.n if check.n_of is None else check.n_of)} {check.n_unit}",
        reason=check.reason if guard is None else f"see the guard {guard}",
        advice=(check.advice or "") if guard is None else "",
        method=check.method,
        notes=check.notes,
        strip=_strip(check),
    )


def _whose(check: CheckResult) -> str:
    """What stands before a value that is not the candidate's own: what is spent is spent by what serves now."""
    return "production: " if check.metric == SPENT and check.candidate is not None else ""


def _anchors(checks: list[CheckResult]) -> list[str]:
    """`check-<id>` in letters that need no escaping in a link; a number is added where two would be equal."""
    seen: dict[str, int] = {}
    anchors = []
    for check in checks:
        anchor = "check-" + (re.sub(r"[^A-Za-z0-9.-]+", "-", check.id).strip("-") or "unnamed")[:80]
        seen[anchor] = seen.get(anchor, 0) + 1
        anchors.append(anchor if seen[anchor] == 1 else f"{anchor}_{seen[anchor]}")
    return anchors


def _strip(check: CheckResult) -> Strip | None:
    if check.harm is None or check.lower is None or check.upper is None:
        return None
    estimate = _share_of_allowance(check, check.harm)
    ends = sorted((_share_of_allowance(check, check.lower), _share_of_allowance(check, check.upper)))
    return Strip(
        width=(_STRIP_END - _STRIP_START) * _STRIP_UNITS,
        zero=_position(0.0),
        limit=_position(1.0),
        lower=_position(ends[0]),
        estimate=_position(estimate),
        upper=_position(ends[1]),
        beyond=(estimate > _STRIP_END) - (estimate < _STRIP_START),
        label=f"{show.percent(estimate)} of what is allowed",
    )


def _share_of_allowance(check: CheckResult, harm: float) -> float:
    """0 is no harm, 1 the margin or the SLO itself.

    A share that must be high allows misses, so misses count; a rate that must be high is turned over.
    """
    used, allowed = harm, check.margin
    if check.two_sided and check.harm is not None and check.harm < 0:
        used = -harm  # the strip has one side of allowance: that towards which the value moved
    at_least = show.higher_is_better(check.metric) if check.at_least is None else check.at_least
    if check.scale is Scale.ABSOLUTE and at_least:
        used, allowed = (1 - harm, 1 - check.margin) if check.unit is Unit.RATIO else (check.margin, harm)
    if allowed <= 0:
        return 0.0 if used <= 0 else math.inf
    return used / allowed


def _position(share: float) -> float:
    return round((min(max(share, _STRIP_START), _STRIP_END) - _STRIP_START) * _STRIP_UNITS, 1)
