"""How a check, its values and its margin are shown to a reader.

Why one check has its outcome, in words, and what to do next.

The one sentence of a verdict, for whoever must promote or not.

What a verdict says of the noise profile that was known when its run ended. It changes no outcome.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType

from benchgate import units
from benchgate.gate.comparison import Comparison
from benchgate.gate.decision import Finding, slo_share, too_soon
from benchgate.gate.guards.base import compared
from benchgate.gate.policy import CheckSpec
from benchgate.model.deployment import Arm
from benchgate.model.metric import METRICS, TASK_METRICS
from benchgate.model.noise import engine_version_of, format_age, staleness_reasons
from benchgate.model.run import Evidence
from benchgate.model.verdict import CheckResult, GuardResult, Outcome, Scale, Unit
from benchgate.stats.distributions import Limits, sample_size_for_width
from benchgate.suite.schema import Suite

_WRITTEN: Mapping[Unit, Callable[[float], str]] = MappingProxyType(
    {
        Unit.RATIO: units.show_percent,
        Unit.POINTS: units.show_points,
        Unit.MULTIPLE: units.show_multiple,
        Unit.COUNT: units.show_number,
        Unit.NATS: units.show_nats,
        Unit.PERPLEXITY: units.show_number,
        Unit.USD: units.show_usd,
    }
)
RATES = (
    Unit.TOKENS_PER_S, Unit.REQUESTS_PER_S, Unit.COUNT,
    Unit.TOKENS_PER_S_EACH, Unit.REQUESTS_PER_S_EACH, Unit.COUNT_EACH,
)  # fmt: skip


def check_title(spec: CheckSpec) -> str:
    """`Time to first token p95 at c4`, `Accuracy on tiny_add`, `Time per output token p50 at in-512 over in-128`."""
    check = spec.check
    title = METRICS[check.metric].title + (f" ({check.of})" if check.of else "")
    title += f" {spec.statistic}" if spec.statistic else ""
    title += f" per {check.per}" if check.per else ""
    if spec.stage:
        return f"{title} at {spec.stage}" + (f" over {check.over}" if check.over else "")
    if check.metric in TASK_METRICS:
        return f"{title} on {spec.task}" if spec.task and spec.task != "each" else f"{title} over all tasks"
    return title


def show_value(value: float | None, unit: Unit) -> str:
    """A measured value in the unit a reader expects; a dash when there is none."""
    if value is None:
        return "—"
    if math.isinf(value):
        return "∞" if value > 0 else "\N{MINUS SIGN}∞"
    if unit is Unit.SECONDS:
        return units.show_duration(value)
    if unit in _WRITTEN:
        return _WRITTEN[unit](value)
    return f"{units.show_number(value)} {unit.value}"


def show_margin(margin: float, scale: Scale, unit: Unit) -> str:
    """What is allowed, as its author would write it: the percentage by which a metric may move, points, or an SLO."""
    if scale is Scale.ABSOLUTE:
        shown = show_value(margin, unit)
    elif scale is Scale.LOG_RATIO:
        shown = units.show_percent(abs(relative_change(margin, unit)))
    else:
        shown = units.show_points(margin)
    return units.as_written(shown)


def show_numbers(check: CheckResult) -> str:
    """`+1.2 %, -3.0 % to +5.4 %, margin 5 %`; of an absolute check its value, limits and bound; else its reason."""
    if check.harm is None or check.lower is None or check.upper is None:
        return check.reason
    values = (check.harm, check.lower, check.upper)
    bound = "margin"
    if check.scale is Scale.ABSOLUTE:
        shown, bound = [show_value(value, check.unit) for value in values], "bound"
    elif check.scale is Scale.LOG_RATIO:
        shown = [_signed_percent(value, check.unit) for value in values]
    else:
        shown = [units.show_points(value, signed=True) for value in values]
    return f"{shown[0]}, {shown[1]} to {shown[2]}, {bound} {show_margin(check.margin, check.scale, check.unit)}"


def _signed_percent(harm: float, unit: Unit) -> str:
    return "∞" if math.isinf(harm) else units.show_percent(relative_change(harm, unit), signed=True)


def relative_change(harm: float, unit: Unit) -> float:
    """Harm as a log ratio → the relative change of the metric: up for latencies, down for rates."""
    return math.expm1(-harm if unit in RATES else harm)


def change_of(harm: float, scale: Scale, unit: Unit, *, falls: bool = False) -> str:
    """`rose by 4.2 %`, `fell by 2 points`, `is unchanged`: a harm in the direction in which the metric moved.

    `falls`: harm of a share shows as a fall.
    """
    if math.isinf(harm):
        return "has no bound"
    if scale is Scale.LOG_RATIO:
        moved, show = relative_change(harm, unit), units.show_percent
    else:
        moved, show = -harm if falls else harm, units.show_points
    if moved == 0:
        return "is unchanged"
    return f"{'fell' if moved < 0 else 'rose'} by {show(abs(moved))}"


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
    return sample_size_for_width(finding.n, width, room, alpha)


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


_OF_SPEED = (("load",), ("speed",), ("tokens",))
_OF_COMPARED = tuple(compared(*kinds) for kinds in _OF_SPEED)


def verdict_reason(
    outcome: Outcome, checks: tuple[CheckResult, ...], guards: tuple[GuardResult, ...], names: tuple[str | None, str]
) -> str:
    """The one sentence: what was decided about whom, and the number or the fault that decided it.

    `names` are baseline's and candidate's; no baseline where one deployment was measured alone and held to bounds.
    """
    baseline, candidate = names
    said = _SAID_OF_ONE if baseline is None else _SAID
    required = [check for check in checks if check.required]
    decisive = decisive_checks(outcome, checks)
    begin = f"{candidate} {said[outcome]}" if outcome in said else ""
    match outcome:
        case Outcome.BLOCK | Outcome.INCONCLUSIVE:
            return f"{begin}: {_told(decisive[0])}{_and_more(decisive)}."
        case Outcome.INVALID:
            tripped = [guard for guard in guards if guard.tripped]
            told = tripped[0].reason if tripped else _told(decisive[0]) if decisive else "no check is required"
            spoils = tripped[0].invalidates if tripped else ()
            what = "the speed of " if spoils in (*_OF_SPEED, *_OF_COMPARED) else ""
            beside = f" against {baseline}" if baseline is not None and spoils in _OF_COMPARED else ""
            return f"Nothing can be said about {what}{candidate}{beside}: {_short(told).rstrip('.')}."
        case Outcome.WARN:
            waived = [check for check in required if check.waiver is not None]
            if waived:
                begin = f"{candidate} {_ONLY_BECAUSE[baseline is None]} {_are_waived(len(waived))}"
            warning = [guard for guard in guards if guard.warns]
            if not decisive and warning:
                others = [f"; guard {guard.id} warns too" for guard in warning[1:]]
                return (
                    f"{begin}: guard {warning[0].id} warns: {_short(warning[0].reason).rstrip('.')}{''.join(others)}."
                )
            named = "".join(f"; guard {guard.id} warns" for guard in warning)
            return f"{begin}: {_told(decisive[0])}{_and_more(decisive)}{named}."
        case _:
            held = f"all {len(required)} required checks hold" if len(required) > 1 else "the required check holds"
            compared = baseline is not None and any(check.scale is not Scale.ABSOLUTE for check in required)
            against = f" against {baseline}" if compared else ""
            return f"{begin}: {held}{against}{_closest(required)}."


_SAID = MappingProxyType(
    {
        Outcome.PASS: "may be promoted",
        Outcome.WARN: "may be promoted, with care",
        Outcome.INCONCLUSIVE: "is not promoted, because the evidence does not carry it",
        Outcome.BLOCK: "must not be promoted",
    }
)
_SAID_OF_ONE = MappingProxyType(
    {
        Outcome.PASS: "keeps to its bounds",
        Outcome.WARN: "keeps to its bounds, with care",
        Outcome.INCONCLUSIVE: "is not shown to keep to its bounds",
        Outcome.BLOCK: "does not keep to its bounds",
    }
)

_ONLY_BECAUSE = ("may be promoted only because", "is let through only because")


def _are_waived(count: int) -> str:
    return "1 check is waived" if count == 1 else f"{count} checks are waived"


def decisive_checks(outcome: Outcome, checks: Sequence[CheckResult]) -> list[CheckResult]:
    """The checks that made the outcome, the one that says most first; empty where none did.

    Advisory ones decide nothing but a warning, and only where no required check warns. Of warnings those come first
    that would stop the promotion, were they not waived.
    """
    required = [check for check in checks if check.required and check.counted is outcome]
    if required or outcome is not Outcome.WARN:
        return sorted(required, key=lambda check: (check.waiver is None, *_by_harm(check)))
    advisory = [check for check in checks if not check.required and check.counted in _WARNING]
    return sorted(advisory, key=lambda check: (-check.counted.severity, *_by_harm(check)))


_WARNING = (Outcome.WARN, Outcome.BLOCK, Outcome.INVALID)  # of an advisory check


def _by_harm(check: CheckResult) -> tuple[float]:
    """Largest harm against its margin first; then those that have no such number, in the policy's order."""
    return (-_effect_size(check, check.harm) / check.margin if check.scale is not Scale.ABSOLUTE else 0.0,)


def _effect_size(check: CheckResult, harm: float | None) -> float:
    """How much of a harm counts: where a change either way is harm, without its sign."""
    if harm is None:
        return 0.0
    return abs(harm) if check.two_sided else harm


def _closest(checks: list[CheckResult]) -> str:
    """Which passing check has used most of its margin, in its own words."""
    relative = [c for c in checks if c.scale is not Scale.ABSOLUTE and c.upper is not None]
    if not relative:
        return ""
    closest = max(relative, key=lambda c: max(_effect_size(c, c.upper), _effect_size(c, c.lower)) / c.margin)
    return f". Closest to its margin: {_told(closest)}"


def _told(check: CheckResult) -> str:
    values = ""
    if check.baseline is not None and check.candidate is not None:
        shown = f"{show_value(check.baseline, check.unit)} → {show_value(check.candidate, check.unit)}"
        values = f" ({shown}, {check.n:,} {check.n_unit})"
    joint = " " if check.reason.startswith(_MOVED) else ": "
    advisory = "" if check.required else ", which is advisory"
    return f"{check.title}{joint}{_short(check.reason)}{values}{advisory}"


_MOVED = ("rose by ", "fell by ", "is unchanged", "without bound")
"""How a reason begins that has the check's title for its subject."""
_LONGEST = 280


def _short(reason: str) -> str:
    """A reason that fits into one sentence; the whole of it stands beside its check or guard."""
    return reason if len(reason) <= _LONGEST else f"{reason[:_LONGEST].rsplit(' ', 1)[0].rstrip(',;:')} …"


def _and_more(checks: list[CheckResult]) -> str:
    more = len(checks) - 1
    return "" if more <= 0 else f"; and {more} more check{'s' if more > 1 else ''}"


def noise_notes(comparison: Comparison, suite: Suite) -> tuple[str, ...]:
    """That there was no live baseline; which profile there is, how old it was when the run ended, and why it is stale.

    Nothing without a profile, where there was a live baseline.
    """
    evidence = comparison.judged
    if not comparison.apart:
        return _of_profile(evidence, suite)
    apart = "no live baseline: two runs are compared across whatever lay between them"
    profile = evidence.noise or (comparison.reference.noise if comparison.reference is not None else None)
    return (apart, *_of_profile(replace(evidence, noise=profile), suite))


def _of_profile(evidence: Evidence, suite: Suite) -> tuple[str, ...]:
    profile, run = evidence.noise, evidence.run
    if profile is None or Arm.BASELINE not in run.arms:
        return ()
    at = run.finished_at or run.started_at
    told = f"noise profile of run {profile.run_id}, {format_age(profile.age_at(at))} old"
    if profile.false_block is not None:
        found = profile.false_block
        told += f": of the unchanged baseline the policy it was made with {found.shares}, of {found.of:,} draws from it"
    stale = staleness_reasons(
        profile, at=at, engine_version=engine_version_of(run.arms[Arm.BASELINE]), max_age_s=suite.gate.noise_max_age_s
    )
    return (told, *(f"the noise profile is stale: {why}; run `benchgate calibrate` again" for why in stale))
