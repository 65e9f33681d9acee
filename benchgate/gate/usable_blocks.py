"""Which blocks of a stage tell the servers' times: those in which the load generator set the pace are left out.

Of both arms together, so that what remains is still paired. Why a quarter at most: docs/decisions.md, "The client".
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import product

import numpy as np

from benchgate.gate.comparison import Comparison, arms_of, load_of, paired_load
from benchgate.gate.places import Place, places
from benchgate.gate.saturation import STRAINED_SHARE, doubtful_failures, strains
from benchgate.gate.shares import failures
from benchgate.model.deployment import Arm
from benchgate.model.run import Evidence, LoadObservation
from benchgate.suite.schema import Suite


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


def strained_blocks(evidence: Evidence, place: Place, suite: Suite) -> StrainedBlocks:
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
        for place in places(suite)
        if evidence is not None and place.name == stage
    ]
    return tuple(f"{run}{strained.place} were left out: {strained.why}" for run, strained in found if strained.left_out)


def paced_by_client(suite: Suite, *runs: Evidence) -> frozenset[tuple[str, int]]:
    """Stage (of a class its whole stage) and number of every block in which the load generator set the pace."""
    found = ((place.stage, strained_blocks(run, place, suite).blocks) for run in runs for place in places(suite))
    return frozenset((stage, block) for stage, blocks in found for block in blocks)


def _usable(evidence: Evidence, suite: Suite) -> Evidence:
    left_out = {place.name: strained_blocks(evidence, place, suite).left_out for place in places(suite)}
    return replace(evidence, load=tuple(o for o in evidence.load if o.block not in left_out.get(o.stage, ())))


def _strains(execution: LoadObservation, place: Place, suite: Suite) -> tuple[str, ...]:
    return strains(execution.client, execution.requests, _offered_rps(place, execution), suite.gate.client)


def _offered_rps(place: Place, execution: LoadObservation) -> float | None:
    """The rate an open loop was meant to send at, over the span of its schedule; None for a closed loop."""
    if not place.is_open:
        return None
    intended_ns = execution.requests.intended_ns
    span_s = float(np.ptp(intended_ns)) * 1e-9 if len(intended_ns) else 0.0
    return place.mean_rps or ((len(intended_ns) - 1) / span_s if span_s > 0 else None)  # a trace has no stated rate
