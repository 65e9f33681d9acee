"""How a check, its values and its margin are shown to a reader."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from types import MappingProxyType

from benchgate import units
from benchgate.gate.specs import CheckSpec
from benchgate.model.verdict import CheckResult, Scale, Unit
from benchgate.suite.metric_kinds import TASK_METRICS

_METRIC_TITLES = {
    "ttft": "Time to first token",
    "ttfot": "Time to first answer token",
    "tpot": "Time per output token",
    "itl": "Inter-token latency",
    "e2e": "End-to-end latency",
    "output_throughput": "Output tokens per second",
    "request_throughput": "Requests per second",
    "output_length": "Tokens per answer",
    "usd_per_million_output_tokens": "$ per million output tokens",
    "usd_per_million_good_tokens": "$ per million good tokens",
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
    title = _METRIC_TITLES[check.metric] + (f" ({check.of})" if check.of else "")
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
