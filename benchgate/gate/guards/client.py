"""Guards over the load generator: all requests sent, on schedule, with consistent records."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import fields
from itertools import product

import numpy as np

from benchgate.gate.comparison import load_of
from benchgate.gate.evidence.client_strain import losses, strained_blocks
from benchgate.gate.guards.base import A_LOAD, LOAD, SPEED, Passed, Violation, guard
from benchgate.model.deployment import Arm
from benchgate.model.records import ABSENT
from benchgate.model.run import Evidence, LoadObservation
from benchgate.suite.load import TrafficClass
from benchgate.suite.schema import Suite, traffic_classes
from benchgate.units import show_duration

FINISH_RUN = "run the suite again to its end"

_ROUNDING_S = 1e-6  # windows are float seconds, summed over workers; instants are integer nanoseconds


def _executions(run: Evidence, suite: Suite) -> Iterator[tuple[str, TrafficClass, LoadObservation]]:
    """Yield every execution with its place, as a message begins and as the suite has it."""
    for place, arm in product(traffic_classes(suite), Arm):
        for block, execution in load_of(run, place.name, arm).items():
            yield f"stage {place.name}, block {block + 1}, {arm.value}", place, execution


@guard("load-as-planned", "the load generator lost no request and no worker", invalidates=LOAD, needs=A_LOAD)
def load_as_planned(run: Evidence, suite: Suite) -> Violation | None:
    """Flag planned load that was never offered.

    A load generator process was lost or late, or a request was not sent or failed because of the load generator's
    machine.
    """
    for where, _, execution in _executions(run, suite):
        lost = losses(execution.client, *execution.with_ramp)
        if lost:
            remedy = f"see the error details in the report and the load generator's own machine; {FINISH_RUN}"
            return Violation(f"{where}: {lost[0]}", remedy)
    return None


@guard("times-possible", "the recorded times of requests and stages are possible", invalidates=LOAD, needs=A_LOAD)
def times_possible(run: Evidence, suite: Suite) -> Violation | None:
    """Flag records that contradict themselves, from a broken clock or a manual edit.

    A request was answered before it was sent, a stage is shorter than its requests, or a figure of the load generator
    is not finite.
    """
    for where, place, execution in _executions(run, suite):
        contradiction = _contradiction(place, execution)
        if contradiction:
            remedy = "check the clocks of the load generator's machines, or measure again on others"
            return Violation(f"{where}: {contradiction}", remedy)
    return None


def _contradiction(place: TrafficClass, execution: LoadObservation) -> str | None:
    """Describe the first impossible value of an execution; None if there is none.

    A window that is too short would raise every rate. It runs from the first intended send to the last end of the
    counted requests (`load.result`), so it covers the time from the first send to the last end. In a closed loop with a
    ramp it is the time in which the requests began.
    """
    columns = execution.requests
    sent = columns.sent_ns != ABSENT
    early = sent & (columns.end_ns != ABSENT) & (columns.end_ns < columns.sent_ns)
    streamed = np.diff(columns.chunk_start) > 0
    if streamed.any():
        first = columns.chunk_ns[np.clip(columns.chunk_start[:-1], 0, len(columns.chunk_ns) - 1)]
        early |= sent & streamed & (first < columns.sent_ns)
    if early.any():
        return f"{np.count_nonzero(early)} of {len(columns)} requests were answered before they were sent"
    for field in fields(execution.client):
        value = getattr(execution.client, field.name)
        if isinstance(value, int | float) and not 0 <= value < math.inf:
            return f"the load generator's own {field.name} is {value:g}; expected a finite number of at least 0"
    window_s, took_s, what = execution.window_s, 0.0, "from the first send to the last end"
    ended = sent & (columns.end_ns != ABSENT)
    if not place.is_open and len(execution.ramp) > 0:
        took_s, what = _shortest_start_span_s(execution, conversing=place.turns != 1), "to begin"
    elif ended.any():
        took_s = float(columns.end_ns[ended].max() - columns.sent_ns[ended].min()) * 1e-9
    if not math.isfinite(window_s) or window_s < took_s - _ROUNDING_S:
        return f"the stage is recorded as {window_s:g} s long, but its requests took {show_duration(took_s)} {what}"
    return None


def _shortest_start_span_s(execution: LoadObservation, *, conversing: bool) -> float:
    """Return a lower bound of the time in which the requests of one worker began.

    The worker of a request is not recorded, so take the shortest time in which as many requests began as each worker
    sent. Conversations give no bound: they are not split evenly, and their later turns begin after the window.
    """
    begins_ns = np.sort(execution.requests.intended_ns)
    each = len(begins_ns) // max(1, execution.client.workers)
    if conversing or each < 2:
        return 0.0
    return float((begins_ns[each - 1 :] - begins_ns[: len(begins_ns) - each + 1]).min()) * 1e-9


@guard("client-keeps-up", "the load generator kept up with its schedule", invalidates=SPEED, needs=A_LOAD)
def client_keeps_up(run: Evidence, suite: Suite) -> Violation | Passed:
    """Flag a load generator that was the bottleneck, on either arm.

    It was the bottleneck in more than a quarter of a stage's blocks, or in a block in which the candidate failed more
    requests than the baseline. A server that fails at once keeps a closed-loop client busy; those failures are the
    server's own and stay judged. If requests also failed in a way that the client may have caused (no connection, no
    response in time), the guard invalidates all of the load.
    """
    stages = [strained_blocks(run, place, suite) for place in traffic_classes(suite)]
    unusable = [stage for stage in stages if stage.invalidate]
    if unusable:
        first = unusable[0]
        reason = f"the load generator was the bottleneck in {first.share}: {first.why}"
        if first.hides_failures:
            reason += "; the candidate failed more requests there, so these blocks cannot be left out"
        remedy = "lower the load, or give the load generator more machine, cores or workers (`benchgate doctor`)"
        return Violation(reason, remedy, invalidates=(LOAD,) if any(stage.doubtful for stage in unusable) else None)
    reason = "the load generator kept up with its schedule"
    if unusual := suite.gate.client.unusual():
        reason = f"the load generator kept up within the policy's own bounds: {unusual}"
    left_out = ", ".join(f"{stage.share} ({stage.why})" for stage in stages if stage.left_out)
    return Passed(f"{reason}; times and rates exclude the blocks where it did not: {left_out}" if left_out else reason)


@guard("one-client", "each stage was sent by one number of load generator processes", invalidates=SPEED, needs=A_LOAD)
def one_client(run: Evidence, suite: Suite) -> Violation | None:
    """Flag a stage whose executions were sent by different numbers of load generator processes.

    The number of processes changes the schedule and the reuse of connections.
    """
    for place in traffic_classes(suite):
        numbers = {arm: {o.client.workers for o in load_of(run, place.name, arm).values()} for arm in Arm}
        if len(set().union(*numbers.values())) > 1:
            names = {arm: " and ".join(map(str, sorted(numbers[arm]))) or "none" for arm in Arm}
            numbered = ", ".join(f"{names[arm]} for the {arm.value}" for arm in Arm)
            reason = f"stage {place.name} was sent by different numbers of load generator processes ({numbered})"
            return Violation(reason, "send the whole run from the same machine or cluster")
    return None
