"""Client saturation: was the load generator the bottleneck, and which blocks are excluded for it?

A *loss* is a request or a worker that the client's own machine lost: the planned load was not sent, and no number of it
holds. A *strain* is lateness: the times are the client's, while a server's answer (a 500, say) is still the server's.
A strained block is excluded on both arms, so that what remains is still paired.

A median does not see a stall now and then, but a tail may consist of it: a block whose slowest reads took a good part
of its slowest reported times is excluded from the check on that tail. At most a quarter of a stage's blocks may be
excluded (docs/adr/09-client-bound-blocks.md).
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import product

import numpy as np

from benchgate.gate.comparison import Comparison, arms_of, load_of, paired_load
from benchgate.gate.decision import CannotJudge, invalid
from benchgate.gate.evidence.blocks import OWN_MACHINE, block_value
from benchgate.model import records, request_metrics
from benchgate.model.deployment import Arm
from benchgate.model.records import ErrorClass, RequestColumns
from benchgate.model.request_metrics import LATENCIES, count_failed
from benchgate.model.run import ClientUse, Evidence, LoadObservation
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
    """Return why the numbers of this stage are the client's and not the server's; empty if they are the server's.

    `offered_rps` is the rate an open loop was to send at, None for a closed loop. Without `bounds` the defaults hold. A
    strain that a fault of the client already names, of one shard, is not repeated.
    """
    found = strains(use, columns, offered_rps, bounds or ClientBounds())
    return (*losses(use, columns), *(one for one in found if not any(fault.endswith(one) for fault in use.faults)))


def losses(use: ClientUse, *columns: RequestColumns) -> tuple[str, ...]:
    """Return what the load generator lost: workers, requests never sent, requests that it failed itself."""
    lost = list(use.faults)
    for rows in columns:
        # due and never sent, unless the server refused a connection or failed an earlier turn
        unsent = (rows.sent_ns == records.ABSENT) & rows.error.are((None, ErrorClass.CLIENT))
        count = int(np.count_nonzero(unsent))
        if count:
            lost.append(f"{count} of {len(rows)} requests were never sent (allowed: none)")
        count = int(np.count_nonzero(rows.error.are((ErrorClass.CLIENT,)) & ~unsent))
        if count:
            failed = f"{count} of {len(rows)} requests failed by a fault of the load generator's own machine"
            lost.append(f"{failed} (allowed: none)")
    return tuple(lost)


def strains(
    use: ClientUse, columns: RequestColumns, offered_rps: float | None, bounds: ClientBounds
) -> tuple[str, ...]:
    """Return the signs that the client set the pace: late sends, late reads, a busy interpreter, a rate not reached."""
    late = (*_late_sends(columns, bounds), *_late_reads(use, bounds))
    return (*late, *_busy(use, bounds), *_behind(columns, offered_rps, bounds))


def doubtful_failures(columns: RequestColumns) -> int:
    """Count failures that a strained client may have caused itself: no answer in time, or no connection."""
    return int(np.count_nonzero(columns.error.are((ErrorClass.TIMEOUT, *_SERVERS_OWN, ErrorClass.CLIENT))))


def _late_sends(columns: RequestColumns, bounds: ClientBounds) -> Iterator[str]:
    """Yield send lag beyond the bounds. Opening a connection is no lag, and requests never sent are a loss."""
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


def _late_reads(use: ClientUse, bounds: ClientBounds) -> Iterator[str]:
    """Yield read delay beyond the bounds: the p99, or the median of a stage whose p99 is the worst of a few samples.

    A single stall of a shared machine moves no median. Tails of such a stage are judged by `without_clouded_blocks`.
    """
    p50_s, p99_s, most_s = use.read_delay_p50_s, use.read_delay_p99_s, use.read_delay_max_s
    if p50_s is None or p99_s is None or most_s is None:
        if use.busiest_share is not None:  # a client that measures itself did not measure this
            yield "how late the client read what had arrived was not measured"
        return
    name, delay_s = ("p99", p99_s) if use.wall_s >= _P99_LEAST_S else ("median", p50_s)
    if delay_s > bounds.read_delay_p99_s:
        delay = f"the {name} of how long what had arrived waited for the client is {show_duration(delay_s)}"
        yield f"{delay} (bound {_ms(bounds.read_delay_p99_s)})"
    elif most_s > bounds.read_delay_max_s:
        yield f"what had arrived waited {show_duration(most_s)} for the client (bound {_ms(bounds.read_delay_max_s)})"


def _busy(use: ClientUse, bounds: ClientBounds) -> Iterator[str]:
    """Yield CPU use beyond the bound: over 5 s if the stage was that long, else over all of it.

    A run without a recorded read delay is judged by the CPU of the whole stage, at any length: something must always
    vouch for the client.
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
    """Yield a rate below the schedule's, by the spans of sends and schedule: a random schedule never has its rate.

    In a short stage one per cent is less than the lag any send may have, so that much is always allowed.
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
    """Blocks of one stage in which the load generator was late, on either arm."""

    stage: str
    blocks: frozenset[int]
    of: int
    why: str = ""  # of the first strained execution
    doubtful: int = 0  # failures that the client may have caused
    hides_failures: bool = False  # in one of them the candidate failed more than the baseline, or alone than elsewhere

    @property
    def invalidate(self) -> bool:
        """Return True if the stage cannot do without these blocks."""
        return self.hides_failures or len(self.blocks) > STRAINED_SHARE * self.of

    @property
    def left_out(self) -> frozenset[int]:
        """Return the blocks that checks on times and rates exclude; none if the stage is invalidated anyway."""
        return frozenset() if self.invalidate else self.blocks

    @property
    def share(self) -> str:
        """Return `2 of 8 blocks of stage c4`."""
        return f"{len(self.blocks)} of {self.of} blocks of stage {self.stage}"


def strained_blocks(evidence: Evidence, place: TrafficClass, suite: Suite) -> StrainedBlocks:
    """Return the blocks of a stage in which the load generator passed a bound of the policy, on either arm."""
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
    if len(arms_of(evidence)) > 1:
        pairs = paired_load(evidence, place.name)
        hides = any(count_failed(*c.with_ramp) > count_failed(*b.with_ramp) for b, c in pairs if b.block in blocks)
    else:
        alone = arms[Arm.CANDIDATE].values()
        elsewhere = max((count_failed(*o.with_ramp) for o in alone if o.block not in blocks), default=0)
        hides = any(count_failed(*o.with_ramp) > elsewhere for o in alone if o.block in blocks)
    first, reason = found[0]
    return StrainedBlocks(
        place.name,
        blocks,
        of,
        why=f"block {first.block + 1}, {first.arm.value}: {reason}",
        doubtful=sum(doubtful_failures(rows) for execution, _ in found for rows in execution.with_ramp),
        hides_failures=hides,
    )


def usable(comparison: Comparison, suite: Suite) -> Comparison:
    """Return the runs without the blocks that are excluded from times and rates."""

    def cleared(evidence: Evidence) -> Evidence:
        left_out = {place.name: strained_blocks(evidence, place, suite).left_out for place in traffic_classes(suite)}
        return replace(evidence, load=tuple(o for o in evidence.load if o.block not in left_out.get(o.stage, ())))

    return comparison.mapped(cleared)


def left_out_notes(comparison: Comparison, stage: str, suite: Suite) -> tuple[str, ...]:
    """Return notes on the excluded blocks of a stage, of either run, and why."""
    found = [
        (run, strained_blocks(evidence, place, suite))
        for run, evidence in comparison.named_runs
        for place in traffic_classes(suite)
        if place.name == stage
    ]
    return tuple(f"{run}{strained.share} were left out: {strained.why}" for run, strained in found if strained.left_out)


def paced_by_client(suite: Suite, *runs: Evidence) -> frozenset[tuple[str, int]]:
    """Return stage (of a class its whole stage) and number of every block in which the load generator was late."""
    found = (
        (place.stage, strained_blocks(run, place, suite).blocks) for run in runs for place in traffic_classes(suite)
    )
    return frozenset((stage, block) for stage, blocks in found for block in blocks)


def _strains(execution: LoadObservation, place: TrafficClass, suite: Suite) -> tuple[str, ...]:
    """Return the strains of an execution. An open loop is held to its rate; a trace has that of its schedule."""
    offered_rps = place.mean_rps if place.is_open else None
    if place.is_open and not offered_rps:
        intended_ns = execution.requests.intended_ns
        span_s = float(np.ptp(intended_ns)) * 1e-9 if len(intended_ns) else 0.0
        offered_rps = (len(intended_ns) - 1) / span_s if span_s > 0 else None
    return strains(execution.client, execution.requests, offered_rps, suite.gate.client)


_CLOUDS_S = 0.005  # a read delay below it is what any scheduler may cost
_CLOUDED_OF_TAIL = 0.25


@dataclass(frozen=True, slots=True)
class ClearedRuns:
    """Runs without the clouded blocks of a tail. With a `problem` more than a quarter of them are clouded."""

    comparison: Comparison
    notes: tuple[str, ...] = ()
    problem: CannotJudge | None = None


def without_clouded_blocks(
    comparison: Comparison, metric: str, q: float, stages: Sequence[str], arms: Collection[Arm]
) -> ClearedRuns:
    """Exclude blocks of these arms whose read delay made the tail `q` of a latency, on both arms."""
    notes: list[str] = []
    if q <= 0.5 or metric not in LATENCIES:
        return ClearedRuns(comparison)
    for stage in stages:
        found: list[str] = []
        excluded: dict[Evidence, set[int]] = {}
        for of_run, evidence in comparison.named_runs:
            executions = [o for o in evidence.load if o.stage == stage and o.arm in arms]
            clouded, worst_s = [], 0.0
            for execution in executions:
                delay_s, reported_s = execution.client.read_delay_p99_s, block_value(execution, metric, q)
                if delay_s is None or reported_s is None:
                    continue
                if delay_s > max(_CLOUDS_S, _CLOUDED_OF_TAIL * reported_s):  # a failure's latency is infinite
                    clouded.append(execution)
                    worst_s = max(worst_s, delay_s)
            if not clouded:
                continue
            blocks, of = {o.block for o in clouded}, len({o.block for o in executions})
            both = " and ".join(dict.fromkeys(o.arm.value for o in clouded))
            bound = f"(bound {show_duration(_CLOUDS_S)}, or {_CLOUDED_OF_TAIL:.0%} of the tail)"
            waited = f"what had arrived waited for the client, up to {show_duration(worst_s)} {bound}"
            reason = f"stage {stage}: in {len(blocks)} of {of} blocks, on the {both}, {waited}, so the tail is its own"
            if len(blocks) > STRAINED_SHARE * of:
                return ClearedRuns(comparison, tuple(notes), invalid(f"{of_run}{reason}", OWN_MACHINE))
            found.append(f"{of_run}left out: {reason}")
            excluded[evidence] = blocks
        if excluded:
            comparison = comparison.mapped(partial(_without, stage, excluded))
        notes += found
    return ClearedRuns(comparison, tuple(notes))


def _without(stage: str, excluded: Mapping[Evidence, set[int]], run: Evidence) -> Evidence:
    blocks = excluded.get(run, set())
    return replace(run, load=tuple(o for o in run.load if o.stage != stage or o.block not in blocks))
