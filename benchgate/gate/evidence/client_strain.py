"""Was the client itself the bottleneck? Latencies of a saturated client are its own, not the server's.

Two kinds of finding. A *loss* is a request or a worker that the client's own machine lost: the load was not the one
that was planned, and no number of it holds. A *strain* is lateness: the times are the client's, while a server's
answer (a 500, say) is still the server's. Why the bounds are where they are: docs/decisions.md, "The client".

Which blocks of a stage tell the servers' times: those in which the load generator set the pace are left out.

Of both arms together, so that what remains is still paired. Why a quarter at most: docs/decisions.md, "The client".

Tails that are the client's own: blocks whose slowest reads took a good part of what they report as the slowest.

A median does not see a stall now and then; where the client is late throughout, or for very long, a guard says so for
the whole run. What a clouded block adds to one arm hides what the other costs, so it is left out of the check on that
tail as a strained block is. Why a quarter at most: docs/decisions.md, "The client".
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace
from itertools import product

import numpy as np

from benchgate.gate.comparison import Comparison, arms_of, load_of, paired_load
from benchgate.gate.decision import Problem
from benchgate.gate.evidence.blocks import LATENCIES, OWN_MACHINE, block_value
from benchgate.gate.evidence.shares import failures
from benchgate.model import records, request_metrics
from benchgate.model.deployment import Arm
from benchgate.model.records import BoolArray, ErrorClass, RequestColumns
from benchgate.model.run import ClientUse, Evidence, LoadObservation
from benchgate.model.verdict import Outcome
from benchgate.suite.load import TrafficClass
from benchgate.suite.schema import ClientBounds, Suite, traffic_classes
from benchgate.units import show_duration, show_number, show_percent

STRAINED_SHARE = 0.25  # of a stage's blocks: one disturbed block of a shared machine spoils no run

_LEAST_LATE = 2  # one late request alone is a hiccup, however few there are (unless it is very late)
_P99_LEAST_S = 2.0  # the canary looks 50 times a second, and the p99 of fewer than 100 looks is the worst of them
_CPU_WINDOW_S = 5.0  # `ClientUse.busiest_share` is the largest share over as long
_CPU_LEAST_S = 1.0  # in less, opening connections and encoding requests are most of what the client does
_UNRECORDED_CPU_SHARE = 0.85  # over a whole stage, of a client that did not measure its read delay
_SERVERS_OWN = frozenset({ErrorClass.CONNECT, ErrorClass.TLS})  # why a request may rightly never be sent


def saturation_reasons(
    use: ClientUse, columns: RequestColumns, offered_rps: float | None, bounds: ClientBounds | None = None
) -> tuple[str, ...]:
    """Why the numbers of this stage are the client's and not the server's; empty when they are the server's.

    `offered_rps` is the rate an open loop was meant to send at, None for a closed loop, which has none. Without
    `bounds` the usual ones hold.
    """
    return (*losses(use, columns), *strains(use, columns, offered_rps, bounds or ClientBounds()))


def losses(use: ClientUse, *columns: RequestColumns) -> tuple[str, ...]:
    """Return what the load generator lost: workers, requests never sent, requests that it failed itself."""
    return (*use.faults, *(lost for rows in columns for lost in _lost_requests(rows)))


def strains(
    use: ClientUse, columns: RequestColumns, offered_rps: float | None, bounds: ClientBounds
) -> tuple[str, ...]:
    """Signs that the client set the pace: late sends, late reads, a busy interpreter, a rate not reached."""
    looked_at = (
        _late(columns, bounds),
        _slow_to_read(use, bounds),
        _busy(use, bounds),
        _behind(columns, offered_rps, bounds),
    )
    return tuple(reason for found in looked_at for reason in found)


def doubtful_failures(columns: RequestColumns) -> int:
    """Failures that a client under strain may have caused itself: no answer in time, or no connection.

    Every other failure is something the server said or did.
    """
    return int(np.count_nonzero(columns.error.are((ErrorClass.TIMEOUT, *_SERVERS_OWN, ErrorClass.CLIENT))))


def _lost_requests(columns: RequestColumns) -> Iterator[str]:
    unsent = _undispatched(columns)
    count = int(np.count_nonzero(unsent))
    if count:
        yield f"{count} of {len(columns)} requests were never sent (allowed: none)"
    count = int(np.count_nonzero(columns.error.are((ErrorClass.CLIENT,)) & ~unsent))
    if count:
        what = f"{count} of {len(columns)} requests failed by a fault of the load generator's own machine"
        yield f"{what} (allowed: none)"


def _undispatched(columns: RequestColumns) -> BoolArray:
    """Requests that were due and never left, for no reason of the server's.

    That it takes no connection is its own, and so is an earlier turn of a conversation that it failed.
    """
    excused = ~columns.error.are((None, ErrorClass.CLIENT))
    never: BoolArray = columns.sent_ns == records.ABSENT
    return never & ~excused


def _late(columns: RequestColumns, bounds: ClientBounds) -> Iterator[str]:
    """Requests that were never sent are left out: for want of a connection is no lateness, and the rest is a loss.

    Nor is the time it takes to open one, which over TLS and a long way is several round trips.
    """
    lag_s = request_metrics.client_lag_s(columns)
    lag_s = lag_s[np.isfinite(lag_s)]
    if len(lag_s) == 0:
        return
    late, most_s = int(np.count_nonzero(lag_s > bounds.send_lag_p99_s)), float(lag_s.max())
    if late >= _LEAST_LATE and late > 0.01 * len(lag_s):
        p99_s = request_metrics.quantile(lag_s, 0.99)
        assert p99_s is not None, "there are requests"
        yield f"the p99 of the send lag is {show_duration(p99_s)} (bound {_ms(bounds.send_lag_p99_s)})"
    elif most_s > bounds.send_lag_max_s:
        yield f"a request was sent {show_duration(most_s)} late (bound {_ms(bounds.send_lag_max_s)})"


def _slow_to_read(use: ClientUse, bounds: ClientBounds) -> Iterator[str]:
    """In a stage too short for a p99 (it is the worst of a few looks) the median and the worst are bounded.

    A single stall of a shared machine moves no median. Tails of such a stage are judged apart, `clouded_tail`.
    """
    p50_s, p99_s, most_s = use.read_delay_p50_s, use.read_delay_p99_s, use.read_delay_max_s
    if p50_s is None or p99_s is None or most_s is None:
        if use.busiest_share is not None:  # a client that measures itself did not measure this
            yield "how late the client read what had arrived was not measured"
        return
    name, delay_s = ("p99", p99_s) if use.wall_s >= _P99_LEAST_S else ("median", p50_s)
    if delay_s > bounds.read_delay_p99_s:
        told = f"the {name} of how long what had arrived waited for the client is {show_duration(delay_s)}"
        yield f"{told} (bound {_ms(bounds.read_delay_p99_s)})"
    elif most_s > bounds.read_delay_max_s:
        yield f"what had arrived waited {show_duration(most_s)} for the client (bound {_ms(bounds.read_delay_max_s)})"


def _busy(use: ClientUse, bounds: ClientBounds) -> Iterator[str]:
    """Over 5 s where the stage was that long, else over the whole of it.

    A run that did not record its read delay (an older one) is judged by the CPU of the whole stage, at any length:
    something must always speak for the client.
    """
    if use.read_delay_p99_s is None and use.busiest_share is None:
        share, bound, over = use.cpu_share, _UNRECORDED_CPU_SHARE, "over the stage"
    elif use.busiest_share is not None:
        share, bound, over = use.busiest_share, bounds.cpu_share, f"over {_CPU_WINDOW_S:g} s"
    elif use.wall_s >= _CPU_LEAST_S or use.wall_s <= 0:
        share, bound, over = use.cpu_share, bounds.cpu_share, "over the stage"
    else:
        return
    if share > bound:
        yield f"the client used {show_percent(share)} of a core per worker {over} (bound {bound:.0%})"


def _behind(columns: RequestColumns, offered_rps: float | None, bounds: ClientBounds) -> Iterator[str]:
    """Compares the span of the sends with the span of the schedule: a random schedule is never exactly its rate.

    Of a short stage one per cent is less than the lateness any send may have, so that much is always allowed.
    """
    sent = columns.sent_ns != records.ABSENT
    if offered_rps is None or np.count_nonzero(sent) < 2:
        return
    ready_ns = columns.sent_ns - np.maximum(columns.connecting_ns, 0)  # what it waited for its connection is no pace
    planned_s, actual_s = (float(np.ptp(at[sent])) * 1e-9 for at in (columns.intended_ns, ready_ns))
    if actual_s <= planned_s / bounds.achieved_ratio + bounds.send_lag_p99_s:
        return
    achieved_rps = offered_rps * planned_s / actual_s
    what = f"the client sent {show_number(achieved_rps)} requests/s where {show_number(offered_rps)} were offered"
    yield f"{what} (bound {bounds.achieved_ratio:.0%})"


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:g} ms"


@dataclass(frozen=True, slots=True)
class StrainedBlocks:
    """The blocks of one stage in which an execution, on either arm, measured its client."""

    stage: str
    blocks: frozenset[int]
    of: int
    why: str = ""  # of the first strained execution
    doubtful: int = 0  # failures that the client may have caused
    hides: bool = False  # without one of these blocks, failures of the candidate alone would go unseen

    @property
    def spoil(self) -> bool:
        """Whether the stage cannot do without these blocks."""
        return self.hides or len(self.blocks) > STRAINED_SHARE * self.of

    @property
    def left_out(self) -> frozenset[int]:
        """What the checks on times and rates do without; a stage that is spoilt keeps its numbers as they are."""
        return frozenset() if self.spoil else self.blocks

    @property
    def place(self) -> str:
        """`2 of 8 blocks of stage c4`."""
        return f"{len(self.blocks)} of {self.of} blocks of stage {self.stage}"


def strained_blocks(evidence: Evidence, place: TrafficClass, suite: Suite) -> StrainedBlocks:
    """Every block of the stage in which the load generator passed one of the policy's bounds, on either arm."""
    arms = {arm: load_of(evidence, place.name, arm) for arm in Arm}
    found = [
        (arms[arm][block], reasons[0])
        for block, arm in product(sorted({block for executions in arms.values() for block in executions}), Arm)
        if block in arms[arm] and (reasons := _strains(arms[arm][block], place, suite))
    ]
    blocks = frozenset(execution.block for execution, _ in found)
    of = len({block for executions in arms.values() for block in executions})
    if not found:
        return StrainedBlocks(place.name, blocks, of)
    first, reason = found[0]
    return StrainedBlocks(
        place.name,
        blocks,
        of,
        why=f"block {first.block + 1}, {first.arm.value}: {reason}",
        doubtful=sum(doubtful_failures(rows) for execution, _ in found for rows in execution.with_ramp),
        hides=_hides(evidence, place.name, blocks),
    )


def _hides(evidence: Evidence, stage: str, blocks: frozenset[int]) -> bool:
    """Whether the candidate failed more in one of these blocks than the baseline; measured alone, than elsewhere."""
    if len(arms_of(evidence)) > 1:
        return any(failures(c) > failures(b) for b, c in paired_load(evidence, stage) if b.block in blocks)
    alone = load_of(evidence, stage, Arm.CANDIDATE)
    elsewhere = max((failures(o) for o in alone.values() if o.block not in blocks), default=0)
    return any(failures(o) > elsewhere for o in alone.values() if o.block in blocks)


def usable(comparison: Comparison, suite: Suite) -> Comparison:
    """The same runs without the blocks that must not speak of times and rates."""
    reference = comparison.reference
    return Comparison(_usable(comparison.judged, suite), None if reference is None else _usable(reference, suite))


def left_out_notes(comparison: Comparison, stage: str, suite: Suite) -> tuple[str, ...]:
    """What the checks of a stage did without, and why; a stored comparison may have left out blocks of either run."""
    runs = (("", comparison.judged), ("of the reference run, ", comparison.reference))
    found = [
        (run, strained_blocks(evidence, place, suite))
        for run, evidence in runs
        for place in traffic_classes(suite)
        if evidence is not None and place.name == stage
    ]
    return tuple(f"{run}{strained.place} were left out: {strained.why}" for run, strained in found if strained.left_out)


def paced_by_client(suite: Suite, *runs: Evidence) -> frozenset[tuple[str, int]]:
    """Stage (of a class its whole stage) and number of every block in which the load generator set the pace."""
    found = (
        (place.stage, strained_blocks(run, place, suite).blocks) for run in runs for place in traffic_classes(suite)
    )
    return frozenset((stage, block) for stage, blocks in found for block in blocks)


def _usable(evidence: Evidence, suite: Suite) -> Evidence:
    left_out = {place.name: strained_blocks(evidence, place, suite).left_out for place in traffic_classes(suite)}
    return replace(evidence, load=tuple(o for o in evidence.load if o.block not in left_out.get(o.stage, ())))


def _strains(execution: LoadObservation, place: TrafficClass, suite: Suite) -> tuple[str, ...]:
    return strains(execution.client, execution.requests, _offered_rps(place, execution), suite.gate.client)


def _offered_rps(place: TrafficClass, execution: LoadObservation) -> float | None:
    """The rate an open loop was meant to send at, over the span of its schedule; None for a closed loop."""
    if not place.is_open:
        return None
    intended_ns = execution.requests.intended_ns
    span_s = float(np.ptp(intended_ns)) * 1e-9 if len(intended_ns) else 0.0
    return place.mean_rps or ((len(intended_ns) - 1) / span_s if span_s > 0 else None)  # a trace has no stated rate


_CLOUDS_S = 0.005  # a read delay below it is what any scheduler may cost
_CLOUDED_OF_TAIL = 0.25


@dataclass(frozen=True, slots=True)
class Tail:
    """A latency's tail at one place: the quantile `q`, above a median, of `metric`."""

    metric: str
    q: float
    stage: str

    @property
    def may_be_clouded(self) -> bool:
        """Whether it is a tail at all."""
        return self.q > 0.5 and self.metric in LATENCIES


@dataclass(frozen=True, slots=True)
class Cleared:
    """The same runs without the clouded blocks of one tail, what was left out, and whether too much would be."""

    comparison: Comparison
    notes: tuple[str, ...] = ()
    problem: Problem | None = None


def cleared(so_far: Cleared, tail: Tail, arms: Collection[Arm]) -> Cleared:
    """Leave the clouded blocks of these arms out, of both arms; with a problem where they are more than a quarter."""
    if not tail.may_be_clouded or so_far.problem is not None:
        return so_far
    comparison = so_far.comparison
    runs: list[Evidence | None] = []
    notes = list(so_far.notes)
    for told, evidence in (("", comparison.judged), ("of the reference run, ", comparison.reference)):
        clouded = [] if evidence is None else [o for o in _executions(evidence, tail, arms) if _clouds(o, tail)]
        if evidence is None or not clouded:
            runs.append(evidence)
            continue
        blocks = {o.block for o in clouded}
        of = len({o.block for o in _executions(evidence, tail, arms)})
        what = _told(tail, clouded, f"{len(blocks)} of {of}")
        if len(blocks) > STRAINED_SHARE * of:
            return replace(so_far, problem=Problem(Outcome.INVALID, f"{told}{what}", OWN_MACHINE))
        notes.append(f"{told}left out: {what}")
        runs.append(_without(evidence, tail.stage, blocks))
    judged, reference = runs
    assert judged is not None, "a comparison has a run that is judged"
    return Cleared(Comparison(judged, reference), tuple(notes))


def _executions(evidence: Evidence, tail: Tail, arms: Collection[Arm]) -> list[LoadObservation]:
    return [o for o in evidence.load if o.stage == tail.stage and o.arm in arms]


def _without(evidence: Evidence, stage: str, blocks: set[int]) -> Evidence:
    return replace(evidence, load=tuple(o for o in evidence.load if o.stage != stage or o.block not in blocks))


def _told(tail: Tail, clouded: list[LoadObservation], share: str) -> str:
    worst_s = max(o.client.read_delay_p99_s or 0.0 for o in clouded)
    arms = " and ".join(dict.fromkeys(o.arm.value for o in clouded))
    where = f"stage {tail.stage}: in {share} blocks, on the {arms},"
    bound = f"(bound {show_duration(_CLOUDS_S)}, or {_CLOUDED_OF_TAIL:.0%} of the tail)"
    waited = f"what had arrived waited for the client, up to {show_duration(worst_s)} {bound}"
    return f"{where} {waited}, so the tail is its own"


def _clouds(execution: LoadObservation, tail: Tail) -> bool:
    """Whether a read delay is too much beside a reported latency; a failure's is infinite, and no delay matters."""
    delay_s, reported_s = execution.client.read_delay_p99_s, block_value(tail.metric, tail.q)(execution)
    if delay_s is None or reported_s is None:
        return False
    return delay_s > max(_CLOUDS_S, _CLOUDED_OF_TAIL * reported_s)
