"""Checks as rows of the report, their waivers, and one check's arithmetic step by step."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from difflib import get_close_matches

from benchgate.errors import UsageError
from benchgate.escape import one_line
from benchgate.gate.error_budget import SPENT
from benchgate.model.verdict import CheckResult, Outcome, Scale, Unit, Verdict, WaiverUse
from benchgate.report import display
from benchgate.report.display import own_level
from benchgate.report.screen import PLAIN, STYLES, Screen
from benchgate.report.table import of_expected
from benchgate.stats.distributions import LARGEST_EXPONENT

# The strip beside a check runs from half the allowance on the good side to twice the allowance.
_STRIP_START, _STRIP_END = -0.5, 2.0
_STRIP_UNITS = 100.0
_MOST_DECIDING = 3
_MOST_USED = 999  # multiple of an allowance; more is shown as this bound
_FAR = 20.0  # allowances: an interval that reaches farther is cut


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
    used: str  # share of the allowance that the estimate uses, as a multiple


@dataclass(frozen=True, slots=True)
class DecidingCheck:
    """A check that decided the verdict, with its interval drawn against its margin on a scale of its own.

    Positions are per cent of the width, the worse to the right. The margin's name stands left or right of its mark.
    """

    row: CheckRow
    zero: float
    margin: float
    lower: float
    estimate: float
    upper: float
    name_before_margin: bool


@dataclass(frozen=True, slots=True)
class CheckRow:
    """A check ready for layout. `reason`, `advice` and `notes` may hold backticked suite words."""

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
    margin: str  # the same, short: `+5 %`, `≥ 95 %`
    n: str
    reason: str
    advice: str
    method: str
    notes: tuple[str, ...]
    strip: Strip | None

    def is_reason_in(self, sentence: str) -> bool:
        """Return True if a verdict's sentence gives this check's reason under its title."""
        return any(f"{self.title}{joint}{self.reason}" in sentence for joint in (" ", ": "))

    def advice_beside(self, sentence: str, todo: str) -> str:
        """Return the advice, or nothing where the verdict's `todo` has it.

        An open check keeps its advice unless the `sentence` is about it: what settles one need not settle the next.
        """
        open_beside = self.outcome == Outcome.INCONCLUSIVE.value and not self.is_reason_in(sentence)
        return self.advice if open_beside or self.advice not in todo else ""


@dataclass(frozen=True, slots=True)
class CheckRows:
    """All checks of a verdict: what needs a reader's attention, then what passed in the order of the suite."""

    failing: tuple[CheckRow, ...]
    passing: tuple[CheckRow, ...]
    deciding: tuple[DecidingCheck, ...]  # those that decided, of different families where possible

    @property
    def all(self) -> tuple[CheckRow, ...]:
        """Failing first."""
        return self.failing + self.passing


def check_rows(verdict: Verdict) -> CheckRows:
    """Return every check as a row with an anchor of its own."""
    failing = verdict.failing()
    passing = [check for check in verdict.checks if check.outcome is Outcome.PASS]
    anchors = _anchors([*failing, *passing])
    guards = {guard.reason: guard.id for guard in reversed(verdict.guards) if guard.tripped}
    rows = tuple(
        _row(check, anchor, guards, verdict.alpha) for check, anchor in zip([*failing, *passing], anchors, strict=True)
    )
    drawn = {check.id: row for check, row in zip([*failing, *passing], rows, strict=True) if row.strip is not None}
    counted = [check for check in failing if check.counted is verdict.outcome and check.id in drawn]
    deciding = [check for check in counted if check.required or verdict.outcome is Outcome.WARN]
    if verdict.outcome is Outcome.PASS:
        deciding = [check for check in passing if check.required and check.id in drawn]
        deciding.sort(key=lambda check: -max(_interval_shares(check)))
    elif verdict.outcome is Outcome.INVALID:
        deciding = []  # a guard decided
    in_family: Counter[str] = Counter()
    ranks = {}
    for check in deciding:
        ranks[check.id] = in_family[check.family]
        in_family[check.family] += 1
    deciding.sort(key=lambda check: (not drawn[check.id].is_reason_in(verdict.reason), ranks[check.id]))
    shown = tuple(_deciding(check, drawn[check.id]) for check in deciding[:_MOST_DECIDING])
    return CheckRows(rows[: len(failing)], rows[len(failing) :], shown)


def _deciding(check: CheckResult, row: CheckRow) -> DecidingCheck:
    """Return a check on a scale that holds no change, its margin and its whole interval."""
    lower, upper = _interval_shares(check)
    estimate = _share_of_allowance(check, check.harm or 0.0)
    start = max(min(0.0, lower), -_FAR)
    end = min(max(1.0, upper), max(_FAR, 1.5 * estimate if math.isfinite(estimate) else 0.0))
    room = 0.06 * (end - start)

    def position(share: float) -> float:
        inside = min(max(share, start - room), end + room)
        return round((inside - start + room) / (end - start + 2 * room) * 100, 2)

    margin = position(1.0)
    return DecidingCheck(
        row, position(0.0), margin, position(lower), position(estimate), position(upper), name_before_margin=margin > 50
    )


def _interval_shares(check: CheckResult) -> tuple[float, float]:
    """Return both ends of a check's interval as shares of its allowance."""
    assert check.lower is not None and check.upper is not None, "only checks with an interval are drawn"
    ends = _share_of_allowance(check, check.lower), _share_of_allowance(check, check.upper)
    return min(ends), max(ends)


def _row(check: CheckResult, anchor: str, guards: Mapping[str, str], alpha: float) -> CheckRow:
    """Return a check's row; a tripped guard (`guards`: reason to id) is named instead of repeating its reason."""
    absolute = check.scale is Scale.ABSOLUTE
    guard = guards.get(check.reason) if check.outcome is Outcome.INVALID else None
    return CheckRow(
        anchor=anchor,
        id=check.id,
        title=check.title,
        outcome=check.shown,
        mark=display.mark(check),
        required=check.required,
        baseline=display.NOT_APPLICABLE if absolute else display.value(check.baseline, check.unit),
        candidate=("production: " if check.metric == SPENT and check.candidate is not None else "")
        + display.candidate(check, check.candidate),
        change=display.NOT_APPLICABLE if absolute or check.harm is None else display.change(check, check.harm),
        direction=display.direction(check),
        interval=display.interval(check),
        level=own_level(check, alpha),
        allowed=display.allowed(check),
        margin=display.margin(check),
        n=f"{of_expected(check.n, check.n if check.n_of is None else check.n_of)} {check.n_unit}",
        reason=check.reason if guard is None else f"see the guard {guard}",
        advice=(check.advice or "") if guard is None else "",
        method=check.method,
        notes=check.notes,
        strip=_strip(check),
    )


def _anchors(checks: list[CheckResult]) -> list[str]:
    """Return `check-<id>` in letters that need no escaping in a link, numbered where two would be equal."""
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
    ends = _interval_shares(check)
    return Strip(
        width=(_STRIP_END - _STRIP_START) * _STRIP_UNITS,
        zero=_position(0.0),
        limit=_position(1.0),
        lower=_position(ends[0]),
        estimate=_position(estimate),
        upper=_position(ends[1]),
        beyond=(estimate > _STRIP_END) - (estimate < _STRIP_START),
        used=_multiple(estimate),
    )


def _share_of_allowance(check: CheckResult, harm: float) -> float:
    """Return the used share of the allowance: 0 is no regression, 1 the margin or SLO.

    For a share that must be high, misses are used up; a rate that must be high is inverted. A ratio counts by the
    percentages that are shown; with a margin on both sides by logarithms, so that both sides are alike.
    """
    used, allowed = harm, check.margin
    if check.scale is Scale.LOG_RATIO and not check.two_sided:
        sign = -1 if display.higher_is_better(check.metric) else 1
        used, allowed = (sign * math.expm1(min(sign * end, LARGEST_EXPONENT)) for end in (harm, check.margin))
    elif check.two_sided and check.harm is not None and check.harm < 0:
        used = -harm  # the strip has one side of allowance: that towards which the value moved
    at_least = display.higher_is_better(check.metric) if check.at_least is None else check.at_least
    if check.scale is Scale.ABSOLUTE and at_least:
        used, allowed = (1 - harm, 1 - check.margin) if check.unit is Unit.RATIO else (check.margin, harm)
    if allowed <= 0:
        return 0.0 if used <= 0 else math.inf
    return used / allowed


def _multiple(share: float) -> str:
    if share >= _MOST_USED:
        return f">{_MOST_USED}\N{MULTIPLICATION SIGN}"
    whole = math.isclose(share, 1.0, rel_tol=1e-9)
    texts = (f"{share:.{digits}g}" for digits in range(2, 12))  # enough that only the whole allowance is shown as 1
    near = next((text for text in texts if whole or text != "1"), "1")
    shown = "0" if share <= 0 else f"{share:,.0f}" if share >= 10 else near
    return f"{shown}\N{MULTIPLICATION SIGN}"


def _position(share: float) -> float:
    return round((min(max(share, _STRIP_START), _STRIP_END) - _STRIP_START) * _STRIP_UNITS, 1)


_LONGEST = 20_000  # of a list of numbers: who adds them up wants all of them


def find_check(verdict: Verdict, name: str) -> CheckResult:
    """Return the check with this id. Raises UsageError naming the nearest ids."""
    checks = {check.id: check for check in verdict.checks}
    if name in checks:
        return checks[name]
    near = get_close_matches(name, checks, n=3, cutoff=0.4)
    hint = f"did you mean {' or '.join(near)}?" if near else f"there are {', '.join(checks) or 'none'}"
    raise UsageError(f"this verdict has no check {name!r}; {hint}")


def render_explanation(verdict: Verdict, check: CheckResult, screen: Screen = PLAIN) -> str:
    """Render what the check found in a sentence, then its numbered steps as `what = formula = value`."""
    joint = " " if check.reason.startswith(("rose by ", "fell by ", "is unchanged")) else ": "
    found = f"{check.title}{joint}{one_line(check.reason, 1000)}"
    advice = [("what to do: ", one_line(check.advice, 1000))] if check.advice else []
    of = f"{'' if check.required else ' (advisory)'}, allowed {display.allowed(check)}, by {check.method}"
    lines = [
        (f"{display.mark(check)} ", f"{check.shown}: {found}"),
        *advice,
        ("", ""),
        ("", f"{check.id}{of}"),
        *_steps(check),
        ("", ""),
        (f"{display.MARKS[verdict.outcome]} ", f"the verdict is {verdict.outcome}: {one_line(verdict.reason, 1000)}"),
    ]
    styles = {0: STYLES[check.counted], len(lines) - 1: STYLES[verdict.outcome]}
    whole = [
        line
        for at, (first, text) in enumerate(lines)
        for line in list(screen.wrapped(text, " " * min(len(first), 7) or "  ", styles.get(at), first=first)) or [""]
    ]
    return "".join(f"{line.rstrip()}\n" for line in whole)


def with_steps(document: dict[str, object], check: CheckResult) -> dict[str, object]:
    """Add this check's `steps` to the verdict document."""
    steps = [{"what": step.what, "formula": step.formula, "value": step.value} for step in check.steps]
    checks = document["checks"]
    assert isinstance(checks, list), "a verdict document lists its checks"
    explained = [{**one, "steps": steps} if one["id"] == check.id else one for one in checks]
    return {**document, "checks": explained}


def _steps(check: CheckResult) -> Iterator[tuple[str, str]]:
    width = len(str(len(check.steps)))
    for number, step in enumerate(check.steps, start=1):
        formula = f" = {one_line(step.formula, _LONGEST)}" if step.formula else ""
        yield f"  {number:>{width}}. ", f"{one_line(step.what)}{formula} = {one_line(step.value, _LONGEST)}"


def waiver_lines(verdict: Verdict) -> Iterator[str]:
    """Yield a line for each waiver that was not used, names no release, or ends soon."""
    for state in verdict.waivers:
        waiver = state.waiver
        of = f"the waiver of {waiver.check} ({waiver.issue}, {waiver.owner})"
        if state.use is not WaiverUse.USED or waiver.release is None:
            yield f"{of} is {state.use}: {state.why}"
        if state.expires_soon:
            yield f"{of} {_ends(state.days_left)}: it holds to the end of {waiver.expires}, UTC"


def _ends(days_left: int) -> str:
    if days_left == 0:
        return "ends today"
    return f"ends in {days_left} day{'s' if days_left > 1 else ''}"
