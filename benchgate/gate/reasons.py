"""The words of a verdict: titles, values and margins, reasons and advice, the verdict's sentence, and its lines."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType

from benchgate import units
from benchgate.gate.comparison import Comparison, UntiedRuns
from benchgate.gate.decision import Estimate, allowed_by_estimate, too_soon, used_share_of_bound
from benchgate.gate.guards.base import compared
from benchgate.gate.policy import CheckSpec
from benchgate.model.deployment import Arm, engine_version_of
from benchgate.model.metric import METRICS, TASK_METRICS
from benchgate.model.noise import NoiseProfile, format_age, staleness_reasons
from benchgate.model.run import Run
from benchgate.model.verdict import CheckResult, GuardResult, Outcome, Scale, Unit
from benchgate.stats.distributions import Limits, LimitWidth, expm1_or_inf, sample_size_for_width
from benchgate.stats.sequential import look_alphas
from benchgate.stats.trace import Trace, digits
from benchgate.suite.schema import Gate, Suite

_SHOW: Mapping[Unit, units.Show] = MappingProxyType(
    {
        Unit.SECONDS: units.show_duration,
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
    """Return a title like `Time to first token p95 at c4` or `Time per output token p50 at in-512 over in-128`."""
    check = spec.check
    title = METRICS[check.metric].title + (f" ({check.of})" if check.of else "")
    title += f" {spec.statistic}" if spec.statistic else ""
    title += f" per {check.per}" if check.per else ""
    if spec.stage:
        return f"{title} at {spec.stage}" + (f" over {spec.over}" if spec.over else "")
    if check.metric in TASK_METRICS:
        if spec.task and spec.task != "each":
            return f"{title} on {spec.task}"
        return f"{title} over all tasks" + (f" at {check.stage}" if check.stage else "")
    return title


def show_value(value: float | None, unit: Unit, bound: float | None = None) -> str:
    """Format a measured value in its usual unit, not rounded across a `bound`; a dash if there is none."""
    if value is None:
        return "—"
    if math.isinf(value):
        return "∞" if value > 0 else "\N{MINUS SIGN}∞"
    show = _show(unit)
    return show(value) if bound is None else units.beside(show, value, bound)


def _show(unit: Unit) -> units.Show:
    def with_unit(value: float, /, *, digits: int = units.DIGITS) -> str:
        return f"{units.show_number(value, digits=digits)} {unit.value}"

    return _SHOW.get(unit, with_unit)


def show_margin(margin: float, scale: Scale, unit: Unit, *, two_sided: bool = False) -> str:
    """Format a margin as its author would write it: a percentage, points, or an SLO."""
    if scale is Scale.ABSOLUTE:
        return show_value(margin, unit) if math.isinf(margin) else units.as_written(_show(unit), margin)
    if scale is Scale.LOG_RATIO and two_sided:
        show = partial(units.show_percent, signed=True)
        return " to ".join(units.as_written(show, math.expm1(end)) for end in (-margin, margin))
    if scale is Scale.LOG_RATIO:
        return units.as_written(units.show_percent, abs(relative_change(margin, unit)))
    return units.as_written(units.show_points, margin)


def show_numbers(check: CheckResult) -> str:
    """Return `+1.2 %, -3.0 % to +5.4 %, margin 5 %` (value, limits, bound); without numbers the reason."""
    if check.harm is None or check.lower is None or check.upper is None:
        return check.reason
    values = (check.harm, check.lower, check.upper)
    bound, nearest = "margin", math.copysign(check.margin, check.harm) if check.two_sided else check.margin
    if check.scale is Scale.ABSOLUTE:
        shown, bound = [show_value(value, check.unit, check.margin) for value in values], "bound"
    elif check.scale is Scale.LOG_RATIO:
        show, margin = partial(units.show_percent, signed=True), relative_change(nearest, check.unit)
        changes = [math.inf if math.isinf(value) else relative_change(value, check.unit) for value in values]
        shown = ["∞" if math.isinf(one) else units.beside(show, one, margin) for one in changes]
    else:
        shown = [units.beside(partial(units.show_points, signed=True), value, nearest) for value in values]
    allowed = show_margin(check.margin, check.scale, check.unit, two_sided=check.two_sided)
    return f"{shown[0]}, {shown[1]} to {shown[2]}, {bound} {allowed}"


def relative_change(harm: float, unit: Unit) -> float:
    """Convert a log ratio into the relative change of the metric: up for latencies, down for rates."""
    return expm1_or_inf(-harm if unit in RATES else harm)


def change_of(harm: float, scale: Scale, unit: Unit, *, falls: bool = False) -> str:
    """Return `rose by 4.2 %`, `fell by 2 points`, `is unchanged`: a regression in the direction the metric moved.

    `falls`: a regression of a share shows as a fall.
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
_MOST_TIMES = 10_000  # of the number measured: a larger one is not named
_LOG_SCALE_UNITS = (  # whose limits are those of ln(value)
    Unit.SECONDS, Unit.TOKENS_PER_S, Unit.REQUESTS_PER_S, Unit.TOKENS_PER_S_EACH, Unit.REQUESTS_PER_S_EACH, Unit.USD,
)  # fmt: skip


def check_reason(estimate: Estimate, outcome: Outcome, warn_fraction: float, alpha: float) -> str:
    """Return why a check has its outcome, with its decisive numbers."""
    if estimate.problem is not None:
        return estimate.problem.reason
    if estimate.limits is None:
        return "there is no estimate"
    rule, limits, margin = estimate.rule, estimate.limits, margin_text(estimate)
    if rule.scale is Scale.ABSOLUTE:
        return _bound_reason(estimate, limits, outcome, margin, warn_fraction, alpha)
    change, regression = _change(estimate), "change" if rule.two_sided else "regression"
    match outcome:
        case Outcome.PASS if limits.upper < 0 and not rule.two_sided:
            falls = rule.unit in RATES if rule.scale is Scale.LOG_RATIO else rule.falls
            return f"{change}: better; a {'fall' if falls else 'rise'} of {margin} is allowed"
        case Outcome.PASS:
            return f"{change}, inside the margin of {margin}"
        case Outcome.WARN if estimate.warning is not None:
            return f"{change}, inside the margin of {margin}, but {estimate.warning}"
        case Outcome.WARN if _by_test_alone(estimate, limits):
            return f"{change}: a {regression} by its test, though inside the margin of {margin}"
        case Outcome.WARN:
            return f"{change}: a real {regression}, though inside the margin of {margin}"
        case Outcome.BLOCK:
            return f"{change}{_beyond(estimate, limits, margin)}"
    blocks = blocks_measured_text(estimate)
    if rule.breach:
        return f"{change}: shown neither to be beyond the margin of {margin} nor to stay inside it{blocks}"
    by_limits = limits.lower > estimate.least or (rule.two_sided and limits.upper < 0)
    tested = estimate.p_value is not None and estimate.p_value <= alpha
    by_test = tested and not by_limits and _by_test_alone(estimate, limits)
    if by_limits or by_test:
        probably = f"probably a {regression}{' by its test' if by_test else ''}"
        if too_soon(estimate) or allowed_by_estimate(estimate):
            return f"{change}: {probably}, but not shown to be beyond the margin of {margin}{blocks}"
        return f"{change}: {probably}, but {_not_significant(estimate, alpha)}{blocks}; the margin is {margin}"
    return f"{change}: neither a {regression} nor staying inside the margin of {margin} is shown{blocks}"


def _not_significant(estimate: Estimate, alpha: float) -> str:
    """Return whether other checks or its own test leave open what the limits of a check show."""
    return f"not significant {'with all checks together' if (estimate.p_value or 0.0) <= alpha else 'by its test'}"


def _limits_miss_bound(estimate: Estimate, limits: Limits) -> bool:
    """Return True if the whole interval of an ABSOLUTE check lies beyond its bound."""
    margin = estimate.margin
    return limits.upper < margin if estimate.rule.lower_is_worse else limits.lower > margin


def margin_text(estimate: Estimate) -> str:
    """Return the margin or the bound as a sentence about the check has it."""
    rule = estimate.rule
    return estimate.margin_text or show_margin(estimate.margin, rule.scale, rule.unit, two_sided=rule.two_sided)


def check_advice(estimate: Estimate, outcome: Outcome, alpha: float) -> str | None:
    """Return what to do about a check that is not PASS."""
    if estimate.problem is not None:
        return estimate.problem.advice
    if outcome is Outcome.BLOCK:
        return "look at the candidate; do not widen the margin after the fact"
    if outcome is Outcome.INCONCLUSIVE:
        return _measure_more(estimate, alpha)
    if outcome is not Outcome.WARN:
        return None
    if estimate.warning is not None:
        return estimate.warning_advice
    if estimate.rule.scale is not Scale.ABSOLUTE:
        return "weigh the loss against what the candidate gains: the next ones add to it"
    if estimate.n_unit in ("requests", "blocks"):
        return "the bound is near: give the deployment more capacity, or less traffic, before its load grows"
    return "the bound is near: the next loss of this size may break it"


def _measure_more(estimate: Estimate, alpha: float) -> str:
    """Return how much more to measure: the number that would settle the check, if one can be named."""
    items = estimate.n_unit == "items"
    advice = "use a bigger set" if items else f"measure more {estimate.n_unit}"
    needed, look = _needed(estimate, alpha), estimate.look
    if needed is not None:
        advice += f": about {needed:,}{' items' if items else ''} in all would settle it"
    if look is not None and look.last:
        advice += " (one more look in `load.looks`)"
    elif look is not None and look.ended is not None and look.ended.why in ("time", "cost"):
        advice += f" (a higher `load.limit.{look.ended.why}`)"
    elif look is not None and look.ended is not None and look.ended.why == "decided":
        advice += "; the load ended once the required checks were decided: fix any that blocked, or require this one"
    elif look is not None:
        advice += " (a check that is `required` is measured until it is settled)"
    if needed is None and estimate.value is not None:
        advice += "; no number is sure to settle it"
        room = estimate.margin - _size(estimate, estimate.value)
        if estimate.rule.scale is not Scale.ABSOLUTE and room < estimate.margin / _LEAST_ROOM:
            advice += ": the estimate is near the margin or beyond it"
    return advice


def _needed(estimate: Estimate, alpha: float) -> int | None:
    """Return how many blocks, items or prompts would settle the check if the estimate were true.

    After an early look it is the number at the first later look that would settle it, or more than the last one has.
    None if the estimate is not well inside: more would rather show a regression. None too if the limits miss a bound
    already: how many more the p-value takes depends on the other checks.
    """
    look, limits = estimate.look, estimate.limits
    if estimate.rule.scale is Scale.ABSOLUTE and limits is not None and _limits_miss_bound(estimate, limits):
        return None
    needed_at = estimate.needed_at or _needed_for_width(estimate, alpha if look is None else look.alpha)
    if needed_at is None or look is None:
        return None if needed_at is None else needed_at(alpha)
    tails, now = look_alphas(look.fractions, alpha), look.fractions[look.number - 1]
    for fraction, tail in zip(look.fractions[look.number :], tails[look.number :], strict=True):
        there, needed = math.ceil(estimate.n * fraction / now), needed_at(tail)
        if needed is not None and needed <= there:
            return there
    return needed_at(tails[-1])


def _needed_for_width(estimate: Estimate, limits_alpha: float) -> Callable[[float], int | None] | None:
    """Return the number whose limits at an alpha would be narrow enough; None if no number is sure to be."""
    value, limits, rule, bound = estimate.value, estimate.limits, estimate.rule, estimate.margin
    if limits is None or value is None:
        return None
    if rule.unit in RATES and estimate.n_unit == "requests":
        return None  # a capacity: a bracket of levels, and no mean that more of them would narrow
    freedom = estimate.n - 1 if estimate.freedom is None else estimate.freedom
    if rule.scale is not Scale.ABSOLUTE:
        width, room = limits.upper - value, estimate.margin - _size(estimate, value)
        if room < estimate.margin / _LEAST_ROOM:
            return None
        measured = LimitWidth(estimate.n, width, limits_alpha, freedom)
        return partial(sample_size_for_width, measured, room, most_times=_MOST_TIMES)
    ends = (value, limits.upper if bound > value else limits.lower, bound)
    # Limits of ratios and of measured times are those of ln(value); seconds that a server reports have linear ones.
    if rule.unit is Unit.MULTIPLE or (rule.unit in _LOG_SCALE_UNITS and rule.nears):
        if min(ends) <= 0:
            return None
        ends = (math.log(ends[0]), math.log(ends[1]), math.log(ends[2]))
    measured = LimitWidth(estimate.n, abs(ends[1] - ends[0]), limits_alpha, freedom)
    return partial(sample_size_for_width, measured, abs(ends[2] - ends[0]))


def _size(estimate: Estimate, value: float) -> float:
    return abs(value) if estimate.rule.two_sided else value


def _change(estimate: Estimate) -> str:
    """Return `rose by 4.2 % (3.1 to 5.3)`: the regression and its limits in the direction the metric moved.

    An interval that contains zero has both ends named: `fell by 1 % (between 4 % better and 2 % worse)`.
    """
    if estimate.value is None or estimate.limits is None or math.isinf(estimate.value):
        return "without bound, because requests failed"
    rule, values = estimate.rule, (estimate.value, estimate.limits.lower, estimate.limits.upper)
    margin = -estimate.margin if rule.two_sided and estimate.value < 0 else estimate.margin
    if rule.scale is Scale.LOG_RATIO:
        *moved, bound = (relative_change(value, rule.unit) for value in (*values, margin))
        of: units.Show = units.show_percent
    else:
        *moved, bound = (-value if rule.falls else value for value in (*values, margin))
        of = units.show_points
    verb, sign = ("fell by", -1) if moved[0] < 0 else ("rose by", 1)

    def show(size: float) -> str:
        return units.beside(of, size, sign * bound)

    low, high = sorted((sign * moved[1], sign * moved[2]))
    shown = f"{verb} {show(sign * moved[0])}" if moved[0] else "is unchanged"
    if low < 0 < high:
        names = ("lower", "higher") if rule.two_sided else ("better", "worse")
        ends = zip(sorted(moved[1:]) if rule.two_sided else moved[1:], names, strict=True)
        return f"{shown} (between {' and '.join(f'{show(abs(end))} {name}' for end, name in ends)})"
    if low <= 0:
        return shown
    return f"{shown} ({show(low).split()[0]} to {show(high).split()[0]})"


def blocks_measured_text(estimate: Estimate) -> str:
    """Return ` after 10 of at most 20 blocks` and why the load ended; nothing if the number of blocks is fixed."""
    look = estimate.look
    if look is None:
        return ""
    if look.last:
        return f" after all {look.blocks} blocks"
    why = _ENDED.get(look.ended.why, "") if look.ended is not None else ""
    return f" after {look.blocks} of at most {look.most} blocks{why}"


_ENDED: Mapping[str, str] = MappingProxyType(
    {
        "decided": ", where the load ended because the required checks were decided",
        "invalid": ", where more blocks would not have made INVALID evidence sound",
        "time": ", where the suite's `load.limit.time` ended the load",
        "cost": ", where the suite's `load.limit.cost` ended the load",
    }
)


def _beyond(estimate: Estimate, limits: Limits, margin: str) -> str:
    """Return why a regression blocks: it is shown to be beyond the margin, or not shown to stay inside it."""
    if estimate.value is None or _least_change(estimate, limits) > estimate.margin:
        return f", beyond the margin of {margin}"
    shown = "a change" if estimate.rule.two_sided else "a regression"
    by = " by its test" if _by_test_alone(estimate, limits) else ""
    return f": {shown}{by}, and not shown to stay inside the margin of {margin}"


def _least_change(estimate: Estimate, limits: Limits) -> float:
    """Return the limit that is nearer to no change, of a regression or of a change in either direction."""
    falls = estimate.rule.two_sided and estimate.value is not None and estimate.value < 0
    return -limits.upper if falls else limits.lower


def _by_test_alone(estimate: Estimate, limits: Limits) -> bool:
    """Return True if the interval leaves open what the test shows: that of rare bursts of failures is wider."""
    return -math.inf < _least_change(estimate, limits) <= estimate.least


def _bound_reason(
    estimate: Estimate, limits: Limits, outcome: Outcome, bound: str, warn_fraction: float, alpha: float
) -> str:
    rule = estimate.rule
    values = (estimate.value, limits.lower, limits.upper)
    shown, lower, upper = (show_value(value, rule.unit, estimate.margin) for value in values)
    value = f"{shown} ({lower} to {upper})"
    name = "bound" if rule.unit in (Unit.MULTIPLE, Unit.POINTS, Unit.COUNT, Unit.COUNT_EACH, Unit.NATS) else "SLO"
    bound = f"the {name} of {'at least' if rule.lower_is_worse else 'at most'} {bound}"
    match outcome:
        case Outcome.PASS:
            return f"{value} holds {bound}"
        case Outcome.WARN if estimate.warning is not None:
            return f"{value} holds {bound}, but {estimate.warning}"
        case Outcome.WARN:
            used = units.beside(units.show_percent, used_share_of_bound(estimate), warn_fraction)
            past = f"{used} of what it allows is used, past the warning at"
            return f"{value} holds {bound}, but {past} {units.as_written(units.show_percent, warn_fraction)}"
        case Outcome.BLOCK:
            return f"{value} breaks {bound}"
        case _ if _limits_miss_bound(estimate, limits):
            left_open = _not_significant(estimate, alpha)
            return f"{value} probably breaks {bound}, but {left_open}{blocks_measured_text(estimate)}"
        case _:
            return f"{value} neither breaks nor surely holds {bound}{blocks_measured_text(estimate)}"


_OF_SPEED = (("load",), ("speed",), ("tokens",))
_OF_COMPARED = tuple(compared(*kinds) for kinds in _OF_SPEED)


def verdict_reason(
    outcome: Outcome, checks: tuple[CheckResult, ...], guards: tuple[GuardResult, ...], names: tuple[str | None, str]
) -> str:
    """Return the verdict's sentence: the decision, the candidate, and the number or fault that decided it.

    `names` are baseline's and candidate's; the baseline's is None if one deployment was measured alone.
    """
    baseline, candidate = names
    decisions = _DECISION_ALONE if baseline is None else _DECISION
    required = [check for check in checks if check.required]
    decisive = decisive_checks(outcome, checks)
    begin = f"{candidate} {decisions[outcome]}" if outcome in decisions else ""
    match outcome:
        case Outcome.BLOCK | Outcome.INCONCLUSIVE:
            return f"{begin}: {_summary(decisive[0], more=len(decisive) - 1)}."
        case Outcome.INVALID:
            tripped = [guard for guard in guards if guard.tripped]
            fault = tripped[0].reason if tripped else _summary(decisive[0]) if decisive else "no check is required"
            spoils = tripped[0].invalidates if tripped else ()
            what = "the speed of " if spoils in (*_OF_SPEED, *_OF_COMPARED) else ""
            beside = f" against {baseline}" if baseline is not None and spoils in _OF_COMPARED else ""
            return f"Nothing can be said about {what}{candidate}{beside}: {_short(fault).rstrip('.')}."
        case Outcome.WARN:
            waived = [check for check in required if check.waiver is not None]
            if waived:
                count = "1 check is" if len(waived) == 1 else f"{len(waived)} checks are"
                begin = f"{candidate} {_ONLY_BECAUSE[baseline is None]} {count} waived"
            warning = [guard for guard in guards if guard.warns]
            if not decisive and warning:
                others = [f"; guard {guard.id} warns too" for guard in warning[1:]]
                return (
                    f"{begin}: guard {warning[0].id} warns: {_short(warning[0].reason).rstrip('.')}{''.join(others)}."
                )
            named = "".join(f"; guard {guard.id} warns" for guard in warning)
            return f"{begin}: {_summary(decisive[0], more=len(decisive) - 1)}{named}."
        case _:
            held = f"all {len(required)} required checks hold" if len(required) > 1 else "the required check holds"
            compared = baseline is not None and any(check.scale is not Scale.ABSOLUTE for check in required)
            against = f" against {baseline}" if compared else ""
            relative = [c for c in required if c.scale is not Scale.ABSOLUTE and c.upper is not None]
            if not relative:
                return f"{begin}: {held}{against}."
            closest = max(relative, key=lambda c: max(_effect_size(c, c.upper), _effect_size(c, c.lower)) / c.margin)
            return f"{begin}: {held}{against}. Closest to its margin: {_summary(closest)}."


_DECISION = MappingProxyType(
    {
        Outcome.PASS: "may be promoted",
        Outcome.WARN: "may be promoted, with care",
        Outcome.INCONCLUSIVE: "is not promoted, because the evidence does not carry it",
        Outcome.BLOCK: "must not be promoted",
    }
)
_DECISION_ALONE = MappingProxyType(
    {
        Outcome.PASS: "keeps to its bounds",
        Outcome.WARN: "keeps to its bounds, with care",
        Outcome.INCONCLUSIVE: "is not shown to keep to its bounds",
        Outcome.BLOCK: "does not keep to its bounds",
    }
)

_ONLY_BECAUSE = ("may be promoted only because", "is let through only because")


def decisive_checks(outcome: Outcome, checks: Sequence[CheckResult]) -> list[CheckResult]:
    """Return the checks that made the outcome, the most significant first; empty if none did.

    Advisory ones decide only a warning, if no required check warns. Waived ones come first.
    """
    required = [check for check in checks if check.required and check.counted is outcome]
    if required or outcome is not Outcome.WARN:
        return sorted(required, key=lambda check: (check.waiver is None, *_by_harm(check)))
    advisory = [check for check in checks if not check.required and check.counted in ADVISORY_WARNINGS]
    return sorted(advisory, key=lambda check: (-check.counted.severity, *_by_harm(check)))


ADVISORY_WARNINGS = (Outcome.WARN, Outcome.BLOCK, Outcome.INVALID)  # of an advisory check


def _by_harm(check: CheckResult) -> tuple[float]:
    """Sort by the largest harm against its margin; those without such a number keep the policy's order."""
    return (-_effect_size(check, check.harm) / check.margin if check.scale is not Scale.ABSOLUTE else 0.0,)


def _effect_size(check: CheckResult, harm: float | None) -> float:
    if harm is None:
        return 0.0
    return abs(harm) if check.two_sided else harm


def _summary(check: CheckResult, more: int = 0) -> str:
    values = ""
    if check.baseline is not None and check.candidate is not None:
        shown = f"{show_value(check.baseline, check.unit)} → {show_value(check.candidate, check.unit)}"
        values = f" ({shown}, {check.n:,} {check.n_unit})"
    joint = " " if check.reason.startswith(_MOVED) else ": "
    advisory = "" if check.required else ", which is advisory"
    others = f"; and {more} more check{'s' if more > 1 else ''}" if more > 0 else ""
    return f"{check.title}{joint}{_short(check.reason)}{values}{advisory}{others}"


_MOVED = ("rose by ", "fell by ", "is unchanged", "without bound")
"""First words of a reason whose subject is the title of the check."""
_LONGEST = 280


def _short(reason: str) -> str:
    return reason if len(reason) <= _LONGEST else f"{reason[:_LONGEST].rsplit(' ', 1)[0].rstrip(',;:')} …"


def noise_notes(comparison: Comparison, suite: Suite) -> tuple[str, ...]:
    """Return notes on the noise profile: its age when the run ended, why it is stale, and what it stands in for."""
    notes, run, profile = [], comparison.judged.run, comparison.judged.noise
    if isinstance(comparison, UntiedRuns):
        notes.append("no live baseline: two runs are compared across whatever lay between them")
        profile = next(iter(comparison.noise_profiles), None)
    if profile is None or Arm.BASELINE not in run.arms:
        return tuple(notes)
    note = f"noise profile of run {profile.run_id}, {format_age(profile.age_at(run.finished_at or run.started_at))} old"
    if profile.false_block is not None:
        found = profile.false_block
        note += f": of the unchanged baseline the policy it was made with {found.shares}, of {found.of:,} draws from it"
    stale = stale_noise(suite, run, profile)
    return (*notes, note, *(f"the noise profile is stale: {why}; run `benchgate calibrate` again" for why in stale))


def stale_noise(suite: Suite, run: Run, profile: NoiseProfile) -> tuple[str, ...]:
    """Return the reasons why a noise profile of the run's baseline was stale at the end of the run."""
    at, version = run.finished_at or run.started_at, engine_version_of(run.arms[Arm.BASELINE])
    return staleness_reasons(profile, at=at, engine_version=version, max_age_s=suite.gate.noise_max_age_s)


@dataclass(frozen=True, slots=True)
class Line:
    """Identity of a line of the verdict: what is judged, and its title."""

    id: str
    title: str
    family: str
    metric: str
    required: bool
    statistic: str | None = None
    stage: str | None = None
    task: str | None = None
    over: str | None = None  # stage whose value the candidate's is compared with


def check_line(
    line: Line,
    estimate: Estimate,
    outcome: Outcome,
    p_holm: float | None,
    gate: Gate,
    *,
    advice: str | None,
    p_values: Sequence[float],
    ids: Sequence[str] = (),
) -> CheckResult:
    """Return the line with the estimate's numbers. `p_values` and `ids` are of all lines that share its error."""
    rule, limits = estimate.rule, estimate.limits
    return CheckResult(
        id=line.id,
        title=line.title,
        family=line.family,
        metric=line.metric,
        statistic=line.statistic,
        stage=line.stage,
        task=line.task,
        required=line.required,
        outcome=outcome,
        reason=check_reason(estimate, outcome, gate.warn_fraction, gate.alpha),
        advice=advice,
        unit=rule.unit,
        scale=rule.scale,
        baseline=estimate.baseline,
        candidate=estimate.candidate,
        harm=estimate.value,
        lower=limits.lower if limits else None,
        upper=limits.upper if limits else None,
        margin=estimate.margin,
        p_value=estimate.p_value,
        p_holm=p_holm,
        n=estimate.n,
        n_unit=estimate.n_unit,
        n_of=estimate.n_of,
        method=estimate.method,
        notes=tuple(estimate.notes),
        over=line.over,
        at_least=rule.lower_is_worse if rule.scale is Scale.ABSOLUTE else None,
        two_sided=rule.two_sided,
        steps=tuple(_trace(estimate, outcome, p_values, p_holm, gate.alpha, ids).steps),
        limits_alpha=estimate.look.alpha if estimate.look is not None else None,
        freedom=estimate.freedom_by_side,
    )


def _trace(
    estimate: Estimate,
    outcome: Outcome,
    p_values: Sequence[float],
    p_holm: float | None,
    alpha: float,
    ids: Sequence[str],
) -> Trace:
    """Return the arithmetic from the measured numbers to the outcome.

    With a problem (a guard that tripped, say) it ends at the numbers that the verdict shows, and they decide nothing.
    """
    rule, limits = estimate.rule, estimate.limits
    trace = Trace(list(estimate.trace.steps))
    if not trace.steps and estimate.problem is None:
        trace.text("method", "", estimate.method)
        trace.count(estimate.n_unit, estimate.n)
        for what, value in (("baseline", estimate.baseline), ("candidate", estimate.candidate)):
            if value is not None:
                trace.made(what, "", value)
    formula = "a value that is missing is never good"
    value, p_value = estimate.value, estimate.p_value
    complete = value is not None and limits is not None and p_value is not None and p_holm is not None
    if complete and (trace.steps or estimate.problem is None):
        assert value is not None and limits is not None and p_value is not None and p_holm is not None
        own_margin = any(step.what.startswith("margin") for step in trace.steps)
        absolute = rule.scale is Scale.ABSOLUTE
        trace.made("value that is judged" if absolute else "regression that is judged", "", value)
        trace.limits(limits, "", "", " that is judged")
        if not own_margin:
            trace.made("bound" if absolute else "margin", "", estimate.margin)
        doubled = f"2 * {digits(p_value / 2)}" if p_value < 1 else "2 * that of the likelier one, at most 1"
        trace.made("p-value", doubled if rule.two_sided else "", p_value)
        trace.made("p-value among all checks (Holm)", _holm_formula(p_value, p_values, ids), p_holm)
        formula = _rule_formula(estimate, outcome, p_holm, alpha)
    if estimate.problem is not None:
        formula = f"no numbers decide: {estimate.problem.reason}"
    trace.text("outcome", formula, outcome.value)
    return trace


def _holm_formula(p_value: float, p_values: Sequence[float], ids: Sequence[str]) -> str:
    """Return the product that is largest among this p-value and the smaller ones: its p-value after Holm.

    With ids, all p-values are listed by size, so that a reader sees whose decides.
    """
    order = sorted(range(len(p_values)), key=p_values.__getitem__)
    ordered = [p_values[place] for place in order]
    last, m = max(at for at, other in enumerate(ordered) if other == p_value), len(ordered)
    at = max(range(last + 1), key=lambda at: min(1.0, (m - at) * ordered[at]))
    largest = f"{m - at} * {digits(ordered[at])}"
    formula = f"number {last + 1} of {m} by size: the largest of (m - j + 1) * p(j) up to it, at most 1: {largest}"
    if not ids:
        return formula
    by_size = "; ".join(f"p({j + 1}) {digits(ordered[j])} {ids[place]}" for j, place in enumerate(order))
    return f"{formula}, of {ids[order[at]]}; by size: {by_size}"


def _rule_formula(estimate: Estimate, outcome: Outcome, p_holm: float, alpha: float) -> str:
    assert estimate.limits is not None and estimate.value is not None, "only what has limits is judged by them"
    rule, margin = estimate.rule, digits(estimate.margin)
    lower, upper, inside = estimate.limits.lower, estimate.limits.upper, outcome.promotes
    if rule.scale is not Scale.ABSOLUTE:
        edge = max(upper, -lower) if rule.two_sided else upper
        parts = [f"{digits(edge)} {'<' if inside else '>='} margin {margin}"]
    elif rule.lower_is_worse:
        parts = [f"lower limit {digits(lower)} {'>=' if inside else '<'} {margin}"]
    else:
        parts = [f"upper limit {digits(upper)} {'<=' if inside else '>'} {margin}"]
    if rule.scale is not Scale.ABSOLUTE or not inside:
        parts.append(f"p {digits(p_holm)} {'<=' if p_holm <= alpha else '>'} {digits(alpha)}")
    if not inside and too_soon(estimate):
        parts.append(f"regression {digits(estimate.value)} < margin, which blocks at the last look only")
    elif not inside and allowed_by_estimate(estimate):
        parts.append(f"regression {digits(estimate.value)} <= margin, which never blocks")
    if estimate.warning is not None and inside:
        parts.append(estimate.warning)
    elif outcome is Outcome.WARN and rule.scale is Scale.ABSOLUTE:
        parts.append(f"{digits(used_share_of_bound(estimate))} of what is allowed is used")
    return ", and ".join(parts)
