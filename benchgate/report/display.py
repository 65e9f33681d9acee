"""Values as people read them: units, signs, confidence levels, the mark of each outcome; and the glossary."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from functools import partial

from benchgate import units
from benchgate.model.metric import METRICS, TREND_UNITS
from benchgate.model.run import MetricRow
from benchgate.model.verdict import CheckResult, Outcome, Scale, Unit, Verdict
from benchgate.stats.distributions import Limits, expm1_or_inf

NOT_MEASURED = "not measured"
NOT_APPLICABLE = "\N{EN DASH}"
_MINUS = "\N{MINUS SIGN}"

MARKS = {
    Outcome.PASS: "●",
    Outcome.WARN: "▲",
    Outcome.BLOCK: "■",
    Outcome.INCONCLUSIVE: "◆",
    Outcome.INVALID: "✕",
}
"""A shape for every outcome, so that colour is never needed to tell them apart."""
WAIVED_MARK = "◇"

_HIGHER_IS_BETTER = frozenset(name for name, kind in METRICS.items() if kind.higher_is_better)


def mark(check: CheckResult) -> str:
    """Return the shape of a check's outcome, or of a waived check."""
    return MARKS[check.outcome] if check.waiver is None else WAIVED_MARK


def higher_is_better(metric: str) -> bool:
    """Return True if a fall of this metric is a regression."""
    return metric in _HIGHER_IS_BETTER


def minute(instant: str) -> str:
    """Shorten `2026-01-02T03:04:05Z` to `2026-01-02 03:04 UTC`; other texts stay as they are."""
    match = re.fullmatch(r"(\d{4}-\d\d-\d\d)T(\d\d:\d\d):\d\d(?:\.\d+)?(?:Z|\+00:00)", instant)
    return f"{match[1]} {match[2]} UTC" if match else instant


def count(number: int | None) -> str:
    """Show 12345 as `12,345`."""
    return NOT_MEASURED if number is None else f"{number:,}"


def duration(seconds: float | None) -> str:
    """Show 0.0534 as `53.4 ms`."""
    return NOT_MEASURED if seconds is None else units.show_duration(seconds)


def signed_duration(seconds: float | None) -> str:
    """Show a difference of two durations with its sign."""
    if seconds is None or not math.isfinite(seconds):
        return NOT_APPLICABLE
    return f"{'+' if seconds >= 0 else _MINUS}{units.show_duration(abs(seconds))}"


def percent(ratio: float | None) -> str:
    """Show 0.0512 as `5.12 %`."""
    return NOT_MEASURED if ratio is None else _percent(ratio)


def percent_beside(ratio: float | None, bound: float | None) -> str:
    """Show a ratio like `percent`, with the digits that keep it on its own side of a bound, if there is one."""
    return percent(ratio) if ratio is None or bound is None else units.beside(units.show_percent, ratio, bound)


def signed_percent(ratio: float | None, *, digits: int = units.DIGITS) -> str:
    """Show 0.0512 as `+5.12 %`."""
    if ratio is None:
        return NOT_MEASURED
    return _infinite(ratio) or _minus(units.show_percent(ratio, signed=True, digits=digits))


def limits(found: Limits | None, shown: Callable[[float], str]) -> str:
    """Show both limits with their common unit once; a dash without any."""
    return NOT_APPLICABLE if found is None else with_unit_once(shown(found.lower), shown(found.upper), " to ")


def with_unit_once(low: str, high: str, between: str) -> str:
    """Join two shown quantities: `36.0 → 51.0 ms`, with a common unit once."""
    unit = re.search(r"(?<=\d) \D+$", high)
    return f"{low.removesuffix(unit[0]) if unit else low}{between}{high}"


def points(ratio: float | None, *, digits: int = units.DIGITS) -> str:
    """Show 0.0212 as `+2.12 points`."""
    if ratio is None:
        return NOT_MEASURED
    return _infinite(ratio) or _minus(units.show_points(ratio, signed=True, digits=digits))


def number(value: float | None) -> str:
    """Show 5981.4 as `5,981`."""
    if value is None:
        return NOT_MEASURED
    return _infinite(value) or units.show_number(value)


def usd(value: float | None) -> str:
    """Show 12.3456 as `$12.3`."""
    if value is None:
        return NOT_MEASURED
    return f"${found}" if (found := _infinite(value)) else units.show_usd(value)


def value(quantity: float | None, unit: Unit, *, digits: int = units.DIGITS) -> str:
    """Show a check's value in its unit."""
    if quantity is None:
        return NOT_MEASURED
    if unit is Unit.SECONDS:
        return units.show_duration(quantity, digits=digits)
    if unit is Unit.RATIO:
        return _infinite(quantity) or _minus(units.show_percent(quantity, digits=digits))
    if unit is Unit.USD:
        return f"${found}" if (found := _infinite(quantity)) else units.show_usd(quantity, digits=digits)
    if unit in (Unit.POINTS, Unit.MULTIPLE, Unit.NATS):
        return _of_drills(quantity, unit, digits)
    shown = _infinite(quantity) or units.show_number(quantity, digits=digits)
    return shown if unit in (Unit.COUNT, Unit.PERPLEXITY) else f"{shown} {_PER_UNIT[unit]}"


_PER_UNIT = {
    Unit.TOKENS_PER_S: "tok/s",
    Unit.REQUESTS_PER_S: "req/s",
    Unit.TOKENS: "tokens",
    Unit.JOULES: "J",
    Unit.TOKENS_PER_S_EACH: "tok/s per accelerator",
    Unit.REQUESTS_PER_S_EACH: "req/s per accelerator",
    Unit.COUNT_EACH: "per accelerator",
}


def _of_drills(quantity: float, unit: Unit, digits: int) -> str:
    if unit is Unit.NATS:
        return _minus(units.show_nats(quantity, digits=digits))
    if unit is Unit.POINTS:
        return points(quantity, digits=digits)
    return _infinite(quantity) or units.show_multiple(quantity, digits=digits)


def candidate(check: CheckResult, found: float | None) -> str:
    """Show a candidate's value of a check; that of an absolute one keeps the digits that tell it from its bound."""
    if found is None or check.scale is not Scale.ABSOLUTE:
        return value(found, check.unit)
    return units.beside(_show(check), found, check.margin)


def change(check: CheckResult, harm: float) -> str:
    """Show a regression as the candidate's change, with the change's own sign.

    LOG_RATIO is a percentage of the baseline, DIFFERENCE are points, ABSOLUTE is the candidate's value itself. It has
    the digits that keep it on its own side of the margin.
    """
    margin = math.copysign(check.margin, harm) if check.two_sided else check.margin
    return units.beside(_show(check), _moved(check, harm), _moved(check, margin))


def _moved(check: CheckResult, harm: float) -> float:
    if check.scale is Scale.ABSOLUTE:
        return harm
    moved = -harm if higher_is_better(check.metric) else harm
    if check.scale is Scale.DIFFERENCE:
        return moved
    return expm1_or_inf(moved)


def _show(check: CheckResult) -> units.Show:
    if check.scale is Scale.ABSOLUTE:
        return partial(value, unit=check.unit)
    return points if check.scale is Scale.DIFFERENCE else signed_percent


def _written_margin(check: CheckResult) -> str:
    return units.as_written(_show(check), _moved(check, check.margin))


def _written_margins(check: CheckResult) -> str:
    """Return the margins of both sides, `-4.76 to +5 %`: equal logarithms are no equal percentages."""
    ends = sorted(_moved(check, end) for end in (-check.margin, check.margin))
    low, high = (units.as_written(_show(check), end) for end in ends)
    return with_unit_once(low, high, " to ")


def interval(check: CheckResult) -> str:
    """Show both one-sided bounds, the smaller value first; a dash without any."""
    if check.lower is None or check.upper is None:
        return NOT_APPLICABLE
    ends = (check.lower, check.upper)
    if check.scale is not Scale.ABSOLUTE and higher_is_better(check.metric):
        ends = (check.upper, check.lower)  # a fall of the value is harm: the largest harm is the smallest value
    return with_unit_once(change(check, ends[0]), change(check, ends[1]), " to ")


def allowed(check: CheckResult) -> str:
    """Show the margin in words: `a rise of at most 5 %`, `a fall of at most 2 points`, `at least 95 %`."""
    rises = not (higher_is_better(check.metric) if check.at_least is None else check.at_least)
    bound = _written_margin(check)
    if check.scale is Scale.ABSOLUTE:
        return f"{'at most' if rises else 'at least'} {bound}"
    if check.two_sided:
        return f"a change of {_written_margins(check)}"
    return f"a {'rise' if rises else 'fall'} of at most {bound.lstrip('+' + _MINUS)}"


def margin(check: CheckResult) -> str:
    """Show the margin as the largest allowed change, or the bound: `+5 %`, `-4.76 to +5 %`, `≥ 95 %`."""
    bound = _written_margin(check)
    if check.scale is Scale.ABSOLUTE:
        at_least = higher_is_better(check.metric) if check.at_least is None else check.at_least
        return f"{'≥' if at_least else '≤'} {bound}"
    return _written_margins(check) if check.two_sided else bound


def direction(check: CheckResult) -> str:
    """Return `worse`, `better` or `equal`; empty for SLOs, which compare nothing.

    `perhaps` precedes it when the bounds have both signs. A two-sided check is `higher` or `lower`.
    """
    if check.harm is None or check.scale is Scale.ABSOLUTE:
        return ""
    if check.harm == 0:
        return "equal"
    if check.two_sided:
        word = "higher" if (check.harm > 0) is not higher_is_better(check.metric) else "lower"
    else:
        word = "worse" if check.harm > 0 else "better"
    unsure = check.lower is not None and check.upper is not None and check.lower <= 0 <= check.upper
    return f"perhaps {word}" if unsure else word


def _percent(ratio: float) -> str:
    return _infinite(ratio) or _minus(units.show_percent(ratio))


def _infinite(number: float) -> str:
    """Return an infinity as text: the formats of `units` know only finite numbers."""
    if not math.isinf(number):
        return ""
    return "+∞" if number > 0 else "\N{MINUS SIGN}∞"


def _minus(text: str) -> str:
    return text.replace("-", _MINUS)


def level(alpha: float) -> str:
    """Show 0.05 as `95 %` and 0.00052 as `99.948 %`: two digits of the error, so nothing rounds up to 100 %."""
    decimals = max(0, 1 - math.floor(math.log10(alpha * 100)))
    return units.without_zeros(f"{100 * (1 - alpha):.{decimals}f} %")


def own_level(check: CheckResult, alpha: float) -> str:
    """Return the level of a check's bounds where it differs from the suite's."""
    if check.lower is None or check.limits_alpha is None or check.limits_alpha == alpha:
        return ""
    return level(check.limits_alpha)


def limits_sentence(verdict: Verdict) -> str:
    """Return a sentence, without its full stop, on the level of all bounds."""
    own = {shown for check in verdict.checks if (shown := own_level(check, verdict.alpha))}
    if not own:
        return f"Confidence bounds are one-sided at {level(verdict.alpha)}"
    return (
        f"Confidence bounds are one-sided, at the level beside them ({', '.join(sorted(own))}: interim analyses) or at "
        f"{level(verdict.alpha)}"
    )


def in_its_unit(metric: str, quantity: float, *, digits: int = units.DIGITS) -> str:
    """Show a stored value of a metric in the metric's unit."""
    unit = TREND_UNITS.get(metric)
    return value(quantity, Unit.COUNT if unit is None else unit, digits=digits)


def with_limits(row: MetricRow | None) -> str:
    """Show a number with its 95 % interval, if any; a dash for None."""
    return "-" if row is None else value_with_limits(row.name, row.value, row.lower, row.upper)


def value_with_limits(metric: str, value: float, lower: float | None, upper: float | None) -> str:
    """Show a value in its unit with its limits in brackets."""
    shown = in_its_unit(metric, value)
    if lower is None or upper is None:
        return shown
    ends = (in_its_unit(metric, lower), in_its_unit(metric, upper))
    unit = TREND_UNITS.get(metric)
    suffix = f" {_PER_UNIT[unit]}" if unit in _PER_UNIT else ""
    return f"{shown} ({' to '.join(end.removesuffix(suffix) for end in ends)})"


GLOSSARY = (
    ("baseline, candidate", "the deployment in service and the one that may replace it: the two arms of a comparison"),
    ("stage", "one level of load; a sweep is a series of stages"),
    ("block", "one pass over all stages with both arms, one right after the other; checks compare block by block"),
    ("check", "one rule of the policy with its result; an advisory check can warn but never block"),
    ("margin", "the largest regression that a check allows, fixed before the run"),
    ("guard", "a check of the measurement itself; if one fails, the numbers it guards do not count"),
    ("interval", "confidence interval of the true value; a check passes only if its worse end is inside the margin"),
    ("in flight", "sent and not yet answered; a closed loop keeps this number constant"),
    ("open loop", "requests are sent on a fixed schedule at an offered rate, however slow the server is"),
    ("TTFT", "time to first token: from the scheduled send to the first chunk with output, so queueing counts"),
    ("TPOT", "time per output token: from the first to the last output chunk over (output tokens less one)"),
    ("ITL", "inter-token latency: the gap between two output chunks of an answer"),
    ("E2E", "end-to-end latency: from the scheduled send to the end of the answer"),
    ("p50, p95", "percentiles: 50 (95) of 100 requests are at or below this value; p50 is the median"),
    ("success", "HTTP 200, at least one output token, finish reason stop, length or tool_calls, no error in any event"),
    ("failures", "failed requests count as infinitely slow and as misses of every SLO"),
    ("throughput", "output tokens (or requests) per second of successful requests, mean of the blocks"),
    ("SLO", "service level objective: latency bounds of a request, and the share of requests that must meet them"),
    ("goodput", "share of scheduled requests that succeed and meet every SLO"),
    ("capacity", "the highest load at which the SLO is shown to hold"),
    ("knee", "the concurrency above which throughput stops growing and requests queue"),
    ("flips", "share of items that only one arm answered right: lost or gained by the candidate"),
    ("recovery", "candidate's score divided by the baseline's on the same items"),
    ("excess", "the candidate's disagreement with the baseline minus the baseline's with itself"),
)  # fmt: skip
"""Short forms of docs/reference/metrics.md and docs/reference/verdict.md, in the order in which a page needs them."""
