"""Derived numbers as people read them: the unit is what the metric's name says."""

from __future__ import annotations

from benchgate.model.run import MetricRow
from benchgate.units import show_duration, show_nats, show_number, show_percent, show_usd

_UNITS = (("_per_s", "1/s"), ("_nats", "nats"), ("_ratio", "ratio"), ("_s", "s"))


def in_its_unit(metric: str, value: float) -> str:
    """Dollars, a rate, nats, a share, seconds, or a number."""
    if metric.startswith("usd_"):
        return show_usd(value)
    if metric.endswith("_per_s"):
        return f"{show_number(value)}/s"
    if metric.endswith("_nats"):
        return show_nats(value)
    if metric.endswith("_ratio"):
        return show_percent(value)
    return show_duration(value) if metric.endswith("_s") else show_number(value)


def unit_of(metric: str) -> str | None:
    """The unit of a metric's values as they are stored; None for a number without one, like a score."""
    if metric.startswith("usd_"):
        return "USD"
    return next((unit for ending, unit in _UNITS if metric.endswith(ending)), None)


def with_limits(row: MetricRow | None) -> str:
    """A number with its 95 % interval, where it has one; a dash where it is not there."""
    return "-" if row is None else value_with_limits(row.name, row.value, row.lower, row.upper)


def value_with_limits(metric: str, value: float, lower: float | None, upper: float | None) -> str:
    """A value in its unit, and in brackets its limits where it has both."""
    shown = in_its_unit(metric, value)
    if lower is None or upper is None:
        return shown
    return f"{shown} ({in_its_unit(metric, lower)} to {in_its_unit(metric, upper)})"
