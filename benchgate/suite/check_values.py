"""What stands behind the keys of a check: margins, bounds and least changes, each in its metric's own unit."""

from __future__ import annotations

from typing import Annotated

from pydantic import AfterValidator, BeforeValidator, Field, ValidationInfo

from benchgate import units
from benchgate.suite.fields import Expected, is_stored, positive_share, share
from benchgate.suite.metric_kinds import KINDS, LATENCY_METRICS, LEAST_CHANGE_METRICS, RATIO_METRICS, SHARE_METRICS
from benchgate.suite.written import WHOLE, Written, text


def _margin(found: object, info: ValidationInfo) -> object:
    """`5%` of a latency or throughput, `2 points` of a share: each metric has one meaning of harm, so one unit."""
    if is_stored(info):
        return found
    metric = info.data.get("metric")
    if metric is None:  # it is wrong itself, and so is the check, whatever its margin
        return 0.5
    if KINDS[metric].margin is None:
        raise ValueError(f"means nothing for {metric}, which is held to `{'` or `'.join(KINDS[metric].sides)}`")
    in_percent = metric in RATIO_METRICS
    try:
        margin = units.parse_percent_ratio(found) if in_percent else units.parse_points_ratio(found)
    except ValueError as error:
        meaning = "a part of the baseline's value" if in_percent else "a difference between two shares"
        raise ValueError(f"{error}: the margin of {metric} is {meaning}") from None
    if not (0 < margin < 1 or (margin > 0 and metric == "score")):  # a score may go to 100, or to any number
        raise ValueError(f"{units.show_found(found)} is not a usable margin; it must be above 0 and below 100")
    return margin


def _place(name: str) -> str:
    if name.count("/") > 1 or not all(name.split("/")):
        raise ValueError(f'{units.show_found(name)} is no stage; write a stage, or a class of one as "stage/class"')
    return name


def _as_text(value: object) -> object:
    """A bound may be a whole number, and is kept as it is written."""
    return str(value) if isinstance(value, int) and not isinstance(value, bool) else value


Margin = Annotated[
    float, BeforeValidator(_margin), Expected('a margin like "5%" or "2 points"'), Field(gt=0),
    Written.of(*(text(units.PATTERNS[parse]) for parse in (units.parse_percent_ratio, units.parse_points_ratio))),
]  # fmt: skip
PlaceName = Annotated[str, AfterValidator(_place), Expected('the name of a stage, or "stage/class"')]
Bound = Annotated[
    str, BeforeValidator(_as_text), Expected('a bound like "500ms", "1%", "8/s" or 4', quantity=True),
    Written.of(text(), WHOLE),
]  # fmt: skip
LeastChange = Annotated[
    str, BeforeValidator(_as_text), Expected('a change like "2ms", or "0.5/s" of a throughput', quantity=True),
    Written.of(*(text(units.PATTERNS[parse]) for parse in (units.parse_duration_s, units.parse_rate_rps))),
]  # fmt: skip


def least_change(metric: str, written: str) -> float:
    """A `min_abs` in seconds or per second; ValueError where the metric has no such thing, or it does not fit."""
    if metric in LEAST_CHANGE_METRICS:
        return units.parse_duration_s(written) if metric in LATENCY_METRICS else units.parse_rate_rps(written)
    if metric in SHARE_METRICS:
        raise ValueError(f"means nothing for {metric}, whose margin is a difference in points already; write that")
    raise ValueError(f"means nothing for {metric}; it belongs to {', '.join(LEAST_CHANGE_METRICS)}; remove it")


def bound_value(metric: str, side: str, written: str, *, over: bool) -> float:
    """A `max` or `min` in the metric's own unit, as a base unit; ValueError when it bounds nothing or does not fit."""
    kind = KINDS[metric]
    if over:
        return units.parse_multiple(written) if kind.margin == "percent" else units.parse_points_ratio(written)
    if side not in kind.sides:
        raise ValueError(f"{metric} has no {_sideless(metric, side)}")
    if kind.bound == "duration":
        return units.parse_duration_s(written)
    if kind.bound == "level":  # a rate, or a number in flight: whichever was searched over
        return units.parse_rate_rps(written) if "/" in written else float(units.parse_count(written))
    if kind.bound == "rate":
        return units.parse_rate_rps(written)
    if kind.bound == "money":
        return units.parse_usd(written)
    if kind.bound == "nats":
        return units.parse_nats(written)
    if kind.bound == "whole number":
        return float(units.parse_count(written))
    if side == "min":
        return positive_share(written)
    bound = share(written)
    if bound == 1:
        raise ValueError(f"{units.show_found(written)} is met by every deployment; write less than 100%")
    return bound


def _sideless(metric: str, side: str) -> str:
    """Which bound a metric has not, and what to use."""
    kind = KINDS[metric]
    missing, other = ("upper", "min") if side == "max" else ("lower", "max")
    offered = [f"`{name}`" for name in (other, "margin") if name in kind.sides or (name == "margin" and kind.margin)]
    return f"{missing} bound; use {' or '.join(offered)}"
