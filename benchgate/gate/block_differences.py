"""The paired difference of each block that a check of the load rests on: what its mean and its limits are made of.

It shows what the check was given and decides nothing. The blocks are those that the check itself looked at: without
those in which the load generator set the pace, or clouded the tail.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from benchgate.gate.block_pairs import block_pairs
from benchgate.gate.clouded import Cleared, Tail, cleared
from benchgate.gate.comparison import Comparison, paired_load
from benchgate.gate.guard import SPEED_METRICS
from benchgate.gate.rule import Problem
from benchgate.gate.shares import differences_of, tally_of
from benchgate.gate.specs import CheckSpec, concrete_checks
from benchgate.gate.token_inflation import RESTATED_METRICS, shown_inflation
from benchgate.gate.usable_blocks import usable
from benchgate.model.deployment import Arm
from benchgate.model.run import Evidence
from benchgate.suite.metric_kinds import KINDS, SHARE_METRICS
from benchgate.suite.schema import Suite


@dataclass(frozen=True, slots=True)
class BlockDifferences:
    """Of the check `id`: its harm in each block, or group of `together` blocks, in order; positive is worse.

    On the scale of the check: ln of a ratio, or a difference of two shares. +inf where the candidate alone has no
    finite value. `blocks` are the numbers, counted from 0, of those it looked at, `left_out` those of the others with
    why it did not.
    """

    id: str
    harms: tuple[float, ...]
    together: int = 1
    blocks: tuple[int, ...] = ()
    left_out: tuple[tuple[int, str], ...] = ()


def block_differences(suite: Suite, evidence: Evidence) -> tuple[BlockDifferences, ...]:
    """One for every check of the load against the live baseline, in the order of the policy; none without blocks.

    Two stored runs have no such blocks: their checks rest on two groups that were not paired.
    """
    comparison = Comparison(evidence)
    timed = usable(comparison, suite)
    found = (
        _of_check(spec, comparison, timed, suite)
        for spec in concrete_checks(suite, evidence)
        if spec.stage is not None and spec.check.margin is not None and KINDS[spec.check.metric].needs == "load"
    )
    return tuple(one for one in found if one is not None and one.harms)


def _of_check(spec: CheckSpec, comparison: Comparison, timed: Comparison, suite: Suite) -> BlockDifferences | None:
    assert spec.stage is not None, "only checks of a stage are asked for"
    metric = spec.check.metric
    looked_at = timed if metric in SPEED_METRICS else comparison
    clear = cleared(Cleared(looked_at), Tail(metric, spec.q, spec.stage), tuple(Arm))
    if clear.problem is not None:
        return None
    seen = clear.comparison.judged
    share = metric in SHARE_METRICS
    found = _of_shares(spec, spec.stage, seen) if share else _of_values(spec, spec.stage, seen, suite)
    return found and _numbered(found, spec.stage, comparison.judged, looked_at.judged, seen)


def _of_values(spec: CheckSpec, stage: str, judged: Evidence, suite: Suite) -> BlockDifferences | None:
    inflation = shown_inflation(judged, stage, suite) if spec.check.metric in RESTATED_METRICS else None
    pairs = block_pairs(
        judged, stage, spec.measure if inflation is None else replace(spec.measure, inflation=inflation.by_block)
    )
    return None if isinstance(pairs, Problem) else BlockDifferences(spec.id, tuple(pairs.harm.tolist()), pairs.together)


def _of_shares(spec: CheckSpec, stage: str, judged: Evidence) -> BlockDifferences | None:
    tally = tally_of(spec.check.metric, spec.slo, spec.check.of)
    pairs = paired_load(judged, stage)
    if any(tally(side)[1] == 0 for pair in pairs for side in pair):
        return None
    return BlockDifferences(spec.id, tuple(differences_of(pairs, tally).tolist()))


def _numbered(
    found: BlockDifferences, stage: str, measured: Evidence, timed: Evidence, seen: Evidence
) -> BlockDifferences:
    """With the blocks it looked at, `seen`, under their own numbers, and those that went before: `timed` lost some."""
    looked_at, in_time = _paired_blocks(seen, stage), _paired_blocks(timed, stage)
    every = {o.block for o in measured.load if o.stage == stage}
    reasons = {block: ONE_SIDED for block in every}
    reasons |= {block: OWN_PACE for block in _paired_blocks(measured, stage)}
    reasons |= {block: OWN_TAIL for block in in_time}
    left_out = tuple((block, reasons[block]) for block in sorted(every - set(looked_at)))
    return replace(found, blocks=looked_at, left_out=left_out)


def _paired_blocks(evidence: Evidence, stage: str) -> tuple[int, ...]:
    return tuple(baseline.block for baseline, _ in paired_load(evidence, stage))


OWN_PACE = "left out: the load generator set the pace"
OWN_TAIL = "left out: its slowest answers waited for the load generator"
ONE_SIDED = "left out: measured on one side only"
