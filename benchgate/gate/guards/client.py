"""Guards over the load generator: all requests sent, on schedule, with consistent records."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import fields
from itertools import product

import numpy as np

from benchgate.gate.comparison import load_of
from benchgate.gate.evidence.client_saturation import losses
from benchgate.gate.evidence.client_strain import strained_blocks
from benchgate.gate.guards.base import A_LOAD, LOAD, SPEED, Passed, Violation, guard
from benchgate.model.deployment import Arm
from benchgate.model.records import ABSENT, RequestColumns
from benchgate.model.request_metrics import succeeded
from benchgate.model.run import Evidence, LoadObservation
from benchgate.suite.load import TrafficClass
from benchgate.suite.schema import Limits, Suite, all_traffic, traffic_classes
from benchgate.units import show_duration

FINISH_RUN = "run the suite again to its end"

_NS = 1_000_000_000
_EARLY_NS = 5_000_000  # a timer may be that early
_SPARE = 2.0  # times the limits of a request: it waited for its connection, and the client may have been late to end it
_ROUNDING_S = 1e-6  # windows are float seconds, summed over workers; instants are integer nanoseconds


def _executions(run: Evidence, places: Iterable[TrafficClass]) -> Iterator[tuple[str, TrafficClass, LoadObservation]]:
    """Yield every execution with its place, as a message begins and as the suite has it."""
    for place, arm in product(places, Arm):
        for execution in load_of(run, place.name, arm).values():
            yield f"stage {execution.stage}, block {execution.block + 1}, {arm.value}", place, execution


@guard("load-as-planned", "the load generator lost no request and no worker", invalidates=LOAD, needs=A_LOAD)
def load_as_planned(run: Evidence, suite: Suite) -> Violation | None:
    """Flag planned load that was never offered.

    A load generator process was lost or late, or a request was not sent or failed because of the load generator's
    machine.
    """
    for where, _, execution in _executions(run, traffic_classes(suite)):
        lost = losses(execution.client, *execution.with_ramp)
        if lost:
            remedy = f"see the error details in the report and the load generator's own machine; {FINISH_RUN}"
            return Violation(f"{where}: {lost[0]}", remedy)
    return None


@guard("times-possible", "the recorded times of requests and stages are possible", invalidates=LOAD, needs=A_LOAD)
def times_possible(run: Evidence, suite: Suite) -> Violation | None:
    """Flag records that contradict themselves, from a broken clock, a damaged store or a manual edit.

    A request has the number of another, was sent before it was due or answered before it was sent, has neither an error
    nor all that makes a success, or an error without its details; parts of an answer are out of order; a stage is
    shorter or longer than its requests; or a figure of the load generator is not finite.
    """
    for where, place, execution in _executions(run, all_traffic(suite)):
        contradiction = _contradiction(place, execution, suite.limits)
        if contradiction:
            remedy = "check the clocks of the load generator's machines, or measure again on others"
            return Violation(f"{where}: {contradiction}", remedy)
    return None


def _contradiction(place: TrafficClass, execution: LoadObservation, limits: Limits) -> str | None:
    """Describe the first impossible value of an execution; None if there is none.

    A window that is too short would raise every rate, one that is too long would lower the baseline's. It runs from the
    first intended send to the last end of the counted requests (`load.results`). In a closed loop with a ramp it is the
    time in which the requests began.
    """
    for columns in execution.parts:
        for count, what in _impossible_requests(columns):
            if count:
                return f"{count} of {len(columns)} requests {what}"
    for field in fields(execution.client):
        value = getattr(execution.client, field.name)
        if isinstance(value, int | float) and not 0 <= value < math.inf:
            return f"the load generator's own {field.name} is {value:g}; expected a finite number of at least 0"
    columns, window_s, took_s, what = execution.requests, execution.window_s, 0.0, "from the first send to the last end"
    ended = (columns.sent_ns != ABSENT) & (columns.end_ns != ABSENT)
    held_full = not place.is_open and len(execution.ramp) > 0
    if held_full:
        took_s, what = _shortest_start_span_s(execution, conversing=place.turns != 1), "to begin"
    elif ended.any():
        took_s = float(columns.end_ns[ended].max() - columns.sent_ns[ended].min()) * 1e-9
    if not math.isfinite(window_s) or window_s < took_s - _ROUNDING_S:
        return f"the stage is recorded as {window_s:g} s long, but its requests took {show_duration(took_s)} {what}"
    longest_s = _longest_window_s(execution.parts if held_full else (columns,), limits)
    if window_s > longest_s + _ROUNDING_S:
        return f"the stage is recorded as {window_s:g} s long, but its requests took at most {show_duration(longest_s)}"
    return None


def _impossible_requests(columns: RequestColumns) -> Iterator[tuple[int, str]]:
    """Yield how many requests contradict themselves in each way, and the way.

    A failed request keeps whatever came before it failed, and one that the client broke off ends anywhere.
    """
    yield len(columns) - len(np.unique(columns.index)), "have the number of another"
    sent, ended, kept = columns.sent_ns != ABSENT, columns.end_ns != ABSENT, columns.left != 1
    hasty = sent & kept & (columns.sent_ns < columns.intended_ns - _EARLY_NS)
    yield int(np.count_nonzero(hasty)), "were sent before they were due"
    chunks = np.diff(columns.chunk_start)
    first_ns, last_ns = (np.full(len(columns), ABSENT) for _ in range(2))
    streamed = chunks > 0
    first_ns[streamed] = columns.chunk_ns[columns.chunk_start[:-1][streamed]]
    last_ns[streamed] = columns.chunk_ns[columns.chunk_start[1:][streamed] - 1]
    early = sent & ((ended & (columns.end_ns < columns.sent_ns)) | (streamed & (first_ns < columns.sent_ns)))
    yield int(np.count_nonzero(early)), "were answered before they were sent"
    unharmed, plain = columns.error.are((None,)), columns.error_detail.are((None,))
    yield int(np.count_nonzero(unharmed & kept & ~succeeded(columns))), "have neither an error nor a whole answer"
    yield int(np.count_nonzero(unharmed != plain)), "have an error without its details, or details without an error"
    rows = np.repeat(np.arange(len(columns)), chunks)
    disordered = np.zeros(len(columns), dtype=np.bool_)
    disordered[rows[1:][(np.diff(columns.chunk_ns) < 0) & (np.diff(rows) == 0)]] = True
    answers_ns = columns.first_answer_ns
    disordered |= (answers_ns != ABSENT) & ((answers_ns < first_ns) | (answers_ns > last_ns))
    disordered |= unharmed & kept & ended & (last_ns > columns.end_ns)
    yield int(np.count_nonzero(disordered)), "have parts of their answers out of order"


def _longest_window_s(parts: Iterable[RequestColumns], limits: Limits) -> float:
    """Return an upper bound of the window of these requests; one that failed was over within the limits."""
    spare_ns = round(_SPARE * (limits.connect_s + limits.total_s) * _NS)
    begins_ns, ends_ns = [], []
    for part in parts:
        if len(part):
            whole = part.error.are((None,)) & (part.end_ns != ABSENT)
            over_ns = np.maximum(np.maximum(part.intended_ns, part.sent_ns), part.end_ns) + spare_ns
            begins_ns.append(int(part.intended_ns.min()))
            ends_ns.append(int(np.where(whole, np.maximum(part.intended_ns, part.end_ns), over_ns).max()))
    return (max(ends_ns) - min(begins_ns)) / _NS if ends_ns else math.inf  # nothing was counted, at no rate


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
