"""Why one check has its outcome, in words, and what to do next."""

from __future__ import annotations

import math
from collections.abc import Mapping
from types import MappingProxyType

from benchgate import units
from benchgate.gate.rule import Finding, slo_share, too_soon
from benchgate.gate.showing import RATES, relative_change, show_margin, show_value
from benchgate.model.verdict import Outcome, Scale, Unit
from benchgate.stats.limits import Limits
from benchgate.stats.needed import observations_needed

_LEAST_ROOM = 4  # times in the margin: with less room than that beside the estimate, no number of blocks is named
_LOGARITHMIC = (  # whose limits are those of ln(value)
    Unit.SECONDS, Unit.TOKENS_PER_S, Unit.REQUESTS_PER_S, Unit.TOKENS_PER_S_EACH, Unit.REQUESTS_PER_S_EACH, Unit.USD,
)  # fmt: skip


def check_reason(finding: Finding, outcome: Outcome, warn_fraction: float, alpha: float) -> str:
    """Why this check has this outcome, with its decisive numbers."""
    if finding.problem is not None:
        return finding.problem.reason
    if finding.limits is None:
        return "there is no estimate"
    margin = told_margin(finding)
    if finding.scale is Scale.ABSOLUTE:
        lower, upper = (show_value(value, finding.unit) for value in (finding.limits.lower, finding.limits.upper))
        estimate = f"{show_value(finding.harm, finding.unit)} ({lower} to {upper})"
        return _slo_reason(finding, outcome, estimate, margin, warn_fraction)
    change, harm = _change(finding), "change" if finding.two_sided else "harm"
    match outcome:
        case Outcome.PASS if finding.limits.upper < 0 and not finding.two_sided:
            way = "fall" if _falls(finding) else "rise"
            return f"{change}: better; a {way} of {margin} is allowed"
        case Outcome.PASS:
            return f"{change}, inside the margin of {margin}"
        case Outcome.WARN if finding.warning is not None:
            return f"{change}, inside the margin of {margin}, but {finding.warning}"
        case Outcome.WARN:
            return f"{change}: real {harm}, though inside the margin of {margin}"
        case Outcome.BLOCK:
            return f"{change}{_beyond(finding, margin)}"
        case _ if finding.breach:
            return f"{change}: shown neither to be beyond the margin of {margin} nor to stay inside it{so_far(finding)}"
        case _ if finding.limits.lower > finding.least or (finding.two_sided and finding.limits.upper < 0):
            if too_soon(finding):
                return f"{change}: likely {harm}, but not shown to be beyond the margin of {margin}{so_far(finding)}"
            sure = _why_not_sure(finding, alpha)
            return f"{change}: likely {harm}, but not sure enough {sure}{so_far(finding)}; the margin is {margin}"
        case _:
            return (
                f"{change}: neither shown to be {harm} nor shown to stay inside the margin of {margin}{so_far(finding)}"
            )


def told_margin(finding: Finding) -> str:
    """The margin or the bound as a sentence about the finding says it."""
    return finding.margin_told or show_margin(finding.margin, finding.scale, finding.unit)


def check_advice(finding: Finding, outcome: Outcome, alpha: float) -> str | None:
    """What to do about a check that is not PASS."""
    if finding.problem is not None:
        return finding.problem.advice
    if outcome is Outcome.INCONCLUSIVE:
        if _ended_by_another(finding):
            return f"this was left open: the load ended because {_blocking(finding)} blocked; mend that first"
        needed = _needed(finding, alpha)
        no_number = "" if needed is not None else f"; {_no_number(finding)}"
        return _more(finding, needed) + _by_more_looks(finding) + no_number
    if outcome is Outcome.BLOCK:
        return "look at the candidate; do not widen the margin after the fact"
    if outcome is Outcome.WARN and finding.warning is not None:
        return finding.warning_advice
    if outcome is Outcome.WARN:
        if finding.scale is not Scale.ABSOLUTE:
            return _WEIGH
        return _NEAR_OF_LOAD if finding.n_unit in ("requests", "blocks") else _NEAR
    return None


_NEAR = "the bound is near: the next loss of this size may break it"
_NEAR_OF_LOAD = "the bound is near: give the deployment more capacity, or less traffic, before its load grows"
_WEIGH = "weigh the loss against what the candidate gains: the next ones add to it"


def _more(finding: Finding, needed: int | None) -> str:
    todo, unit = ("use a bigger set", " items") if finding.n_unit == "items" else (f"measure more {finding.n_unit}", "")
    return todo if needed is None else f"{todo}: about {needed:,}{unit} in all would settle it"


def _no_number(finding: Finding) -> str:
    """Why none of `_needed` can be named: what more of them may do all the same."""
    if finding.limits is None or finding.harm is None or not math.isfinite(finding.harm):
        return "how many would settle it is not to be told, for there is no estimate"
    near = finding.scale is not Scale.ABSOLUTE and _room(finding) < finding.margin / _LEAST_ROOM
    if near and _room(finding) > 0:
        return "no number is sure to settle it, for the estimate itself is near the margin: more may show harm"
    if near:
        return "no number is likely to settle it in its favour, for the estimate itself is past the margin"
    return "no number that could be measured is likely to settle it"


def _needed(finding: Finding, alpha: float) -> int | None:
    """How many blocks, items or prompts would settle it, were the estimate true.

    Limits narrow with the root of n. None where the estimate itself is not well inside: more would rather show harm.
    """
    if finding.needs is not None:
        return finding.needs
    if finding.limits is None or finding.harm is None:
        return None
    if finding.scale is Scale.ABSOLUTE:
        return _needed_for_bound(finding, finding.harm, finding.limits, alpha)
    room, width = _room(finding), finding.limits.upper - finding.harm
    if not math.isfinite(width) or room < finding.margin / _LEAST_ROOM:
        return None
    return math.ceil(finding.n * (width / room) ** 2)


def _room(finding: Finding) -> float:
    """How much harm the estimate leaves of the margin."""
    return finding.margin - _size(finding, finding.harm or 0.0)


def _needed_for_bound(finding: Finding, value: float, limits: Limits, alpha: float) -> int | None:
    """The same for a value and a bound, on whichever side of it the value lies."""
    if finding.unit in RATES and finding.n_unit == "requests":
        return None  # a capacity: a bracket of levels, and no mean that more of them would narrow
    towards = limits.upper if finding.margin > value else limits.lower
    ends = (value, towards, finding.margin)
    if finding.unit in _LOGARITHMIC:
        if min(ends) <= 0:
            return None
        ends = (math.log(ends[0]), math.log(ends[1]), math.log(ends[2]))
    width, room = abs(ends[1] - ends[0]), abs(ends[2] - ends[0])
    return observations_needed(finding.n, width, room, alpha)


def _change(finding: Finding) -> str:
    """`rose by 4.2 % (3.1 to 5.3)`: the harm and its one-sided limits in the direction the metric moved.

    Of an interval that crosses zero both ends, each by its name: `fell by 1 % (between 4 % better and 2 % worse)`.
    """
    if finding.harm is None or finding.limits is None or math.isinf(finding.harm):
        return "without bound, because requests failed"
    values = (finding.harm, finding.limits.lower, finding.limits.upper)
    if finding.scale is Scale.LOG_RATIO:
        moved = [relative_change(value, finding.unit) for value in values]
        show = units.show_percent
    else:
        moved = [-value if finding.falls else value for value in values]
        show = units.show_points
    verb, sign = ("fell by", -1) if moved[0] < 0 else ("rose by", 1)
    low, high = sorted((sign * moved[1], sign * moved[2]))
    shown = f"{verb} {show(sign * moved[0])}" if moved[0] else "is unchanged"
    if low < 0 < high:
        names = ("lower", "higher") if finding.two_sided else ("better", "worse")
        ends = zip(sorted(moved[1:]) if finding.two_sided else moved[1:], names, strict=True)
        return f"{shown} (between {' and '.join(f'{show(abs(end))} {name}' for end, name in ends)})"
    if low <= 0:
        return shown
    return f"{shown} ({show(low).split()[0]} to {show(high).split()[0]})"


def _falls(finding: Finding) -> bool:
    """Whether the metric is worse the lower it is."""
    return finding.unit in RATES if finding.scale is Scale.LOG_RATIO else finding.falls


def so_far(finding: Finding) -> str:
    """` after 10 of at most 20 blocks`, and why there are no more; nothing where their number is fixed."""
    look = finding.look
    if look is None:
        return ""
    if look.last:
        return f" after all {look.blocks} blocks"
    why = _ENDED.get(look.ended.why, "") if look.ended is not None else ""
    if _ended_by_another(finding):
        why = ", where another check ended the load"
    elif _ended_by_another_policy(finding):
        why = f"{why}, though not by this policy"
    return f" after {look.blocks} of at most {look.most} blocks{why}"


def _ended_by_another(finding: Finding) -> bool:
    """Whether the load ended before its last look because another check blocked, which left this one open."""
    look = finding.look
    ended = look is not None and not look.last and look.ended is not None and look.ended.why == "decided"
    return ended and bool(finding.ended_by)


def _ended_by_another_policy(finding: Finding) -> bool:
    """Whether the load ended as settled while this check, which is required here, was open: not by this policy."""
    look = finding.look
    ended = look.ended if look is not None and not look.last else None
    return finding.required and ended is not None and ended.why in ("decided", "invalid")


def _blocking(finding: Finding) -> str:
    """`Time to first token p50 at c4 and 2 more checks`."""
    first, more = finding.ended_by[0], len(finding.ended_by) - 1
    return first if not more else f"{first} and {more} more check{'s' if more > 1 else ''}"


def _by_more_looks(finding: Finding) -> str:
    """What in the suite lets the load go on; nothing where the number of blocks is fixed."""
    if finding.look is None:
        return ""
    if finding.look.last:
        return " (one more look in `load.looks`)"
    ended = finding.look.ended
    if ended is not None and ended.why in ("time", "cost"):
        return f" (a higher `load.limit.{ended.why}`)"
    if _ended_by_another_policy(finding):
        return ": the load ended by another policy, or with waivers; run the suite again under this one"
    return " (a check that is `required` is measured until it is settled)"


_ENDED: Mapping[str, str] = MappingProxyType(
    {
        "decided": ", where what had to be was settled",
        "invalid": ", where more would not have made what is INVALID sound",
        "time": ", where the suite's `load.limit.time` ended the load",
        "cost": ", where the suite's `load.limit.cost` ended the load",
    }
)


def _beyond(finding: Finding, margin: str) -> str:
    """Why shown harm blocks: because of its estimate, or, where that is inside the margin, of what it may be."""
    if finding.limits is None or finding.harm is None or _size(finding, finding.harm) > finding.margin:
        return f", beyond the margin of {margin}"
    fell = finding.two_sided and finding.harm < 0
    most, worst = "without bound", finding.limits.lower if fell else finding.limits.upper
    if math.isfinite(worst):
        most = show_margin(worst, finding.scale, finding.unit)
    harm = "a change" if finding.two_sided else "harm"
    return f": {harm} is shown, and it may be {most}, beyond the margin of {margin}"


def _size(finding: Finding, harm: float) -> float:
    """How much of it counts: where a change either way is harm, without its sign."""
    return abs(harm) if finding.two_sided else harm


def _why_not_sure(finding: Finding, alpha: float) -> str:
    """What the error is shared between: other checks, later looks, or nothing but the test itself."""
    beside = _sure_alone(finding, alpha)
    if finding.look is not None and not finding.look.last:
        return f"for it is seen early{' and beside several checks' if beside else ''}"
    return "with all checks together" if beside else "by its test"


def _sure_alone(finding: Finding, alpha: float) -> bool:
    """Whether the check alone would have shown harm."""
    return finding.p_value is not None and finding.p_value <= alpha


def _slo_reason(finding: Finding, outcome: Outcome, estimate: str, slo: str, warn_fraction: float) -> str:
    name = "bound" if finding.unit in (Unit.MULTIPLE, Unit.POINTS, Unit.COUNT, Unit.COUNT_EACH, Unit.NATS) else "SLO"
    bound = f"the {name} of {'at least' if finding.lower_is_worse else 'at most'} {slo}"
    match outcome:
        case Outcome.PASS:
            return f"{estimate} holds {bound}"
        case Outcome.WARN if finding.warning is not None:
            return f"{estimate} holds {bound}, but {finding.warning}"
        case Outcome.WARN:
            used = f"{slo_share(finding):.0%} of what it allows is used, past the warning at {warn_fraction:.0%}"
            return f"{estimate} holds {bound}, but {used}"
        case Outcome.BLOCK:
            return f"{estimate} breaks {bound}"
        case _:
            return f"{estimate} neither breaks nor surely holds {bound}{so_far(finding)}"
