"""Settings of a practice server from what a suite declares of it."""

from __future__ import annotations

from benchgate.sim.faults import parse_faults
from benchgate.sim.settings import BatchingCosts, SimSettings
from benchgate.suite.practice import ENGINE, Practice


def settings_of(declared: Practice) -> SimSettings:
    """What is declared, and the rest as of `benchgate sim`. Raises UsageError for faults that there are not."""
    parse_faults(declared.faults)
    told = {name: value for name in Practice.model_fields if (value := getattr(declared, name)) is not None}
    costs = {name: told.pop(name) for name in ENGINE if name in told}
    return SimSettings(**told, batching=BatchingCosts(**costs) if costs else None)
