"""What the verdict says in words: one sentence a release manager understands, and what to do next."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from types import MappingProxyType

from benchgate import units
from benchgate.gate.rule import Finding, slo_share
from benchgate.gate.specs import CheckSpec
from benchgate.model.verdict import CheckResult, GuardResult, Outcome, Scale, Unit
from benchgate.stats.limits import Limits
from benchgate.stats.needed import observations_needed
from benchgate.suite.metric_kinds import TASK_METRICS

_METRIC_TITLES = {
    "ttft": "Time to first token",
    "ttfot": "Time to first answer token",
    "tpot": "Time per output token",
    "itl": "Inter-token latency",
    "e2e": "End-to-end latency",
    "output_throughput": "Output tokens per second",
    "request_throughput": "Requests per second",
    "goodput": "Goodput",
    "error_rate": "Error rate",
    "rejected": "Requests rejected",
    "validity": "Valid answers",
    "capacity": "Capacity",
    "knee": "Requests in flight at the knee",
    "kv_usage_after": "KV cache held afterwards",
    "prefix_hit_rate": "Prefix cache hit rate",
    "preemptions": "Preemptions",
    "queue_depth": "Requests waiting at most",
    "cold_start": "From start-up to the first good completion",
    "accuracy": "Accuracy",
    "score": "Score",
    "flips": "Answers flipped beyond the baseline's own",
    "kld": "Divergence from the baseline (mean KLD)",
    "same_top1": "Same most probable token",
    "perplexity": "Perplexity",
    "shadow_excess": "Shadow disagreement beyond the baseline's own",
    "shadow_validity": "Shadow answers in the form asked for",
    "judge_loss": "Shadow answers that a judge finds worse",
}


_OF_SPEED = (("load",), ("speed",), ("tokens",))
_WRITTEN: Mapping[Unit, Callable[[float], str]] = MappingProxyType(
    {
        Unit.RATIO: units.show_percent,
        Unit.POINTS: units.show_points,
        Unit.MULTIPLE: units.show_multiple,
        Unit.COUNT: units.show_number,
        Unit.NATS: units.show_nats,
        Unit.PERPLEXITY: units.show_number,
    }
)
_LOGARITHMIC = (Unit.SECONDS, Unit.TOKENS_PER_S, Unit.REQUESTS_PER_S)  # whose limits are those of ln(value)
RATES = (Unit.TOKENS_PER_S, Unit.REQUESTS_PER_S, Unit.COUNT)


def check_title(spec: CheckSpec) -> str:
    """`Time to first token p95 at c4`, `Accuracy on tiny_add`, `Time per output token p50 at in-512 over in-128`."""
    check = spec.check
    title = _METRIC_TITLES[check.metric] + (f" ({check.of})" if check.of else "")
    title += f" {spec.statistic}" if spec.statistic else ""
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


def relative_change(harm: float, unit: Unit) -> float:
    """Harm as a log ratio → the relative change of the metric: up for latencies, down for rates."""
    return math.expm1(-harm if unit in RATES else harm)


def check_reason(finding: Finding, outcome: Outcome, warn_fraction: float, alpha: float) -> str:
    """Why this check has this outcome, with its decisive numbers."""
    if finding.problem is not None:
        return finding.problem.reason
    if finding.limits is None:
        return "there is no estimate"
    margin = show_margin(finding.margin, finding.scale, finding.unit)
    if finding.scale is Scale.ABSOLUTE:
        lower, upper = (show_value(value, finding.unit) for value in (finding.limits.lower, finding.limits.upper))
        estimate = f"{show_value(finding.harm, finding.unit)} ({lower} to {upper})"
        return _slo_reason(finding, outcome, estimate, margin, warn_fraction)
    change = _change(finding)
    match outcome:
        case Outcome.PASS:
            return f"{change}, inside the margin of {margin}"
        case Outcome.WARN if finding.warning is not None:
            return f"{change}, inside the margin of {margin}, but {finding.warning}"
        case Outcome.WARN:
            return f"{change}: real harm, though inside the margin of {margin}"
        case Outcome.BLOCK:
            return f"{change}{_beyond(finding, margin)}"
        case _ if finding.breach:
            return f"{change}: shown neither to be beyond the margin of {margin} nor to stay inside it"
        case _ if finding.limits.lower > 0:
            sure = "with all checks together" if _sure_alone(finding, alpha) else "by its test"
            return f"{change}: likely harm, but not sure enough {sure}; the margin is {margin}"
        case _:
            return f"{change}: neither shown to be harm nor shown to stay inside the margin of {margin}"


def check_advice(finding: Finding, outcome: Outcome, alpha: float) -> str | None:
    """What to do about a check that is not PASS."""
    if finding.problem is not None:
        return finding.problem.advice
    if outcome is Outcome.INCONCLUSIVE:
        needed = _needed(finding, alpha)
        return f"measure more {finding.n_unit}" + (f": about {needed:,} would settle it" if needed else "")
    if outcome is Outcome.BLOCK:
        return "look at the candidate; do not widen the margin after the fact"
    return None


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
    room, width = finding.margin - finding.harm, finding.limits.upper - finding.harm
    if not math.isfinite(width) or room < finding.margin / 4:
        return None
    return math.ceil(finding.n * (width / room) ** 2)


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


def verdict_reason(
    outcome: Outcome, checks: tuple[CheckResult, ...], guards: tuple[GuardResult, ...], names: tuple[str | None, str]
) -> str:
    """The one sentence: what was decided about whom, and the number or the fault that decided it.

    `names` are baseline's and candidate's; no baseline where one deployment was measured alone and held to bounds.
    """
    baseline, candidate = names
    said = _SAID_OF_ONE if baseline is None else _SAID
    required = [check for check in checks if check.required]
    decisive = [check for check in required if check.outcome is outcome]
    begin = f"{candidate} {said[outcome]}" if outcome in said else ""
    match outcome:
        case Outcome.BLOCK | Outcome.INCONCLUSIVE:
            return f"{begin}: {_told(_worst(decisive))}{_and_more(decisive)}."
        case Outcome.INVALID:
            tripped = [guard for guard in guards if guard.tripped]
            told = tripped[0].reason if tripped else _told(decisive[0]) if decisive else "no check is required"
            what = "the speed of " if tripped and tripped[0].spoils in _OF_SPEED else ""
            return f"Nothing can be said about {what}{candidate}: {_short(told).rstrip('.')}."
        case Outcome.WARN:
            warned = decisive or [check for check in checks if check.outcome is not Outcome.PASS]
            return f"{begin}: {_told(warned[0])}{_and_more(warned)}."
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


def _change(finding: Finding) -> str:
    """`rose by 4.2 % (3.1 to 5.3)`: the harm and its one-sided limits in the direction the metric moved.

    An interval that crosses zero stands beside it in the table; a sentence with both signs in it confuses.
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
    if low <= 0:
        return f"{shown} (at most {show(high)}, and perhaps not at all)" if low < 0 and moved[0] else shown
    return f"{shown} ({show(low).split()[0]} to {show(high).split()[0]})"


def _beyond(finding: Finding, margin: str) -> str:
    """Why shown harm blocks: because of its estimate, or, where that is inside the margin, of what it may be."""
    if finding.limits is None or finding.harm is None or finding.harm > finding.margin:
        return f", beyond the margin of {margin}"
    most = "without bound"
    if math.isfinite(finding.limits.upper):
        most = show_margin(finding.limits.upper, finding.scale, finding.unit)
    return f": harm is shown, and it may be {most}, beyond the margin of {margin}"


def _sure_alone(finding: Finding, alpha: float) -> bool:
    """Whether the check alone would have shown harm."""
    return finding.p_value is not None and finding.p_value <= alpha


def _slo_reason(finding: Finding, outcome: Outcome, estimate: str, slo: str, warn_fraction: float) -> str:
    name = "bound" if finding.unit in (Unit.MULTIPLE, Unit.POINTS, Unit.COUNT, Unit.NATS) else "SLO"
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
            return f"{estimate} neither breaks nor surely holds {bound}"


def _worst(checks: list[CheckResult]) -> CheckResult:
    """The check whose harm is largest against its margin; those without a number come last."""
    return max(checks, key=lambda c: c.harm / c.margin if c.harm is not None and c.scale is not Scale.ABSOLUTE else 0.0)


def _closest(checks: list[CheckResult]) -> str:
    """Which passing check has used most of its margin, in its own words."""
    relative = [c for c in checks if c.scale is not Scale.ABSOLUTE and c.upper is not None]
    if not relative:
        return ""
    closest = max(relative, key=lambda c: c.upper / c.margin if c.upper is not None else 0.0)
    return f". Closest to its margin: {_told(closest)}"


def _told(check: CheckResult) -> str:
    values = ""
    if check.baseline is not None and check.candidate is not None:
        shown = f"{show_value(check.baseline, check.unit)} → {show_value(check.candidate, check.unit)}"
        values = f" ({shown}, {check.n:,} {check.n_unit})"
    joint = " " if check.reason.startswith(_MOVED) else ": "
    return f"{check.title}{joint}{_short(check.reason)}{values}"


_MOVED = ("rose by ", "fell by ", "is unchanged", "without bound")
"""How a reason begins that has the check's title for its subject."""
_LONGEST = 280


def _short(reason: str) -> str:
    """A reason that fits into one sentence; the whole of it stands beside its check or guard."""
    return reason if len(reason) <= _LONGEST else f"{reason[:_LONGEST].rsplit(' ', 1)[0].rstrip(',;:')} …"


def _and_more(checks: list[CheckResult]) -> str:
    more = len(checks) - 1
    return "" if more <= 0 else f"; and {more} more check{'s' if more > 1 else ''}"
