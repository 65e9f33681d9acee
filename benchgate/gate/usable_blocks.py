"""Which blocks of a stage tell the servers' times: those in which the load generator set the pace are left out.

Of both arms together, so that what remains is still paired. Why a quarter at most: docs/decisions.md, "The client".
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import product

import numpy as np

from benchgate.gate.comparison import Comparison, load_of, paired_load
from benchgate.gate.saturation import STRAINED_SHARE, doubtful_failures, strains
from benchgate.model.deployment import Arm
from benchgate.model.metrics import succeeded
from benchgate.model.run import Evidence, LoadObservation
from benchgate.suite.schema import Stage, Suite


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


def strained_blocks(evidence: Evidence, stage: Stage, suite: Suite) -> StrainedBlocks:
    """Every block of the stage in which the load generator passed one of the policy's bounds, on either arm."""
    arms = {arm: load_of(evidence, stage.name, arm) for arm in Arm}
    found = [
        (arms[arm][block], reasons[0])
        for block, arm in product(sorted({block for executions in arms.values() for block in executions}), Arm)
        if block in arms[arm] and (reasons := _strains(arms[arm][block], stage, suite))
    ]
    blocks = frozenset(execution.block for execution, _ in found)
    of = len({block for executions in arms.values() for block in executions})
    if not found:
        return StrainedBlocks(stage.name, blocks, of)
    first, reason = found[0]
    return StrainedBlocks(
        stage.name,
        blocks,
        of,
        why=f"block {first.block + 1}, {first.arm.value}: {reason}",
        doubtful=sum(doubtful_failures(execution.requests) for execution, _ in found),
        hides=any(_failed(c) > _failed(b) for b, c in paired_load(evidence, stage.name) if b.block in blocks),
    )


def usable(comparison: Comparison, suite: Suite) -> Comparison:
    """The same runs without the blocks that must not speak of times and rates."""
    reference = comparison.reference
    return Comparison(_usable(comparison.judged, suite), None if reference is None else _usable(reference, suite))


def left_out_notes(comparison: Comparison, stage: str, suite: Suite) -> tuple[str, ...]:
    """What the checks of a stage did without, and why; a stored comparison may have left out blocks of either run."""
    runs = (("", comparison.judged), ("of the reference run, ", comparison.reference))
    found = [
        (run, strained_blocks(evidence, planned, suite))
        for run, evidence in runs
        for planned in (suite.load.sweep if suite.load else ())
        if evidence is not None and planned.name == stage
    ]
    return tuple(f"{run}{strained.place} were left out: {strained.why}" for run, strained in found if strained.left_out)


def _usable(evidence: Evidence, suite: Suite) -> Evidence:
    stages = suite.load.sweep if suite.load else ()
    left_out = {stage.name: strained_blocks(evidence, stage, suite).left_out for stage in stages}
    return replace(evidence, load=tuple(o for o in evidence.load if o.block not in left_out.get(o.stage, ())))


def _strains(execution: LoadObservation, stage: Stage, suite: Suite) -> tuple[str, ...]:
    return strains(execution.client, execution.requests, _offered_rps(stage, execution), suite.gate.client)


def _offered_rps(stage: Stage, execution: LoadObservation) -> float | None:
    """The rate an open loop was meant to send at, over the span of its schedule; None for a closed loop."""
    if not stage.is_open:
        return None
    intended_ns = execution.requests.intended_ns
    span_s = float(np.ptp(intended_ns)) * 1e-9 if len(intended_ns) else 0.0
    return stage.mean_rps or ((len(intended_ns) - 1) / span_s if span_s > 0 else None)  # a trace has no stated rate


def _failed(execution: LoadObservation) -> int:
    return int(np.count_nonzero(~succeeded(execution.requests)))
