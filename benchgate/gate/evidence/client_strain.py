"""Blocks that the load generator strained: excluded on both arms, so that what remains is still paired.

A median does not see a stall now and then, but a tail may consist of it: a block whose slowest reads took a good part
of its slowest reported times is excluded from the check on that tail. At most a quarter of a stage's blocks may be
excluded (docs/adr/09-client-bound-blocks.md).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import product

import numpy as np

from benchgate.gate.comparison import Comparison, arms_of, load_of, paired_load
from benchgate.gate.decision import CannotJudge, invalid
from benchgate.gate.evidence.blocks import OWN_MACHINE, block_value
from benchgate.gate.evidence.client_saturation import doubtful_failures, strains
from benchgate.model.deployment import Arm
from benchgate.model.request_metrics import LATENCIES, count_failed
from benchgate.model.run import Evidence, LoadObservation
from benchgate.suite.load import TrafficClass
from benchgate.suite.schema import Suite, traffic_classes
from benchgate.units import show_duration

STRAINED_SHARE = 0.25  # of a stage's blocks: one disturbed block of a shared machine spoils no run


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
