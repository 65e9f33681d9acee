"""Settings of a practice server from what a suite declares of it."""

from __future__ import annotations

from benchgate.sim.settings import BatchingCosts, QueueCosts, SimSettings
from benchgate.suite.simulator import ENGINE, QUEUE, SimServer


def settings_of(declared: SimServer) -> SimSettings:
    """Return what is declared, and the rest as of `benchgate sim`. Raises UsageError for faults that do not exist."""
    told = {name: value for name in SimServer.model_fields if (value := getattr(declared, name)) is not None}
    costs = {name: told.pop(name) for name in ENGINE if name in told}
    queue = {name: told.pop(name) for name in QUEUE if name in told}
    return SimSettings(
        **told,
        batching=BatchingCosts(**costs) if costs else None,
        queueing=QueueCosts(**queue) if queue else None,
    )
