"""Tails that are the client's own: blocks whose slowest reads took a good part of what they report as the slowest.

A median does not see a stall now and then; where the client is late throughout, or for very long, a guard says so for
the whole run. What a clouded block adds to one arm hides what the other costs, so it is left out of the check on that
tail as a strained block is. Why a quarter at most: docs/decisions.md, "The client".
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace

from benchgate.gate.block_values import LATENCIES, OWN_MACHINE, block_value
from benchgate.gate.comparison import Comparison
from benchgate.gate.rule import Problem
from benchgate.gate.saturation import STRAINED_SHARE
from benchgate.model.deployment import Arm
from benchgate.model.run import Evidence, LoadObservation
from benchgate.model.verdict import Outcome
from benchgate.units import show_duration

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
