"""The candidate against itself: its value at one stage over its value at another, block by block.

What a drill teaches is a ratio: a long prompt makes the first token so many times later, and must not make the others
slower. Blocks are paired, because both stages of a block met the same mood of the machine.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from benchgate.gate.block_pairs import Measure, Pair, grouped, no_quantile, taken_together, value_of
from benchgate.gate.block_values import LOOK_AT_ERRORS, too_few, unpaced
from benchgate.gate.comparison import load_of
from benchgate.gate.rule import Finding, Problem
from benchgate.gate.shares import Counts, Tally, differences_of, unmeasured, widened
from benchgate.model.deployment import Arm
from benchgate.model.records import FloatArray
from benchgate.model.run import Evidence, LoadObservation
from benchgate.model.verdict import Outcome, Scale, Unit
from benchgate.stats.limits import Limits
from benchgate.stats.paired import Paired, paired_t
from benchgate.suite.metric_kinds import KINDS
from benchgate.units import show_duration

_FAR = 10  # a bound so many times nearer than the limits reach would take a hundred times the blocks, or more


@dataclass(frozen=True, slots=True)
class Span:
    """`stage` is held over `over`; `bound` is the least (`at_least`) or the most that it may come to."""

    stage: str
    over: str
    bound: float
    at_least: bool


def ratio(evidence: Evidence, metric: str, span: Span, q: float, *, alpha: float) -> Finding:
    """Geometric mean over blocks of value at the stage / value at the other one; t-limits on the log scale."""
    pairs = _pairs(evidence, span)
    finding = _finding(span, Unit.MULTIPLE, "t-limits over blocks of ln(value at one stage / value at the other)")
    finding = replace(finding, n=len(pairs), n_unit="blocks")
    measure = Measure(metric, q)
    groups = grouped(pairs, measure) if pairs else []
    ratios = _log_ratios(groups, measure, span)
    if isinstance(ratios, Problem):
        return replace(finding, problem=ratios)
    if len(groups) < 2 < len(pairs):
        return replace(finding, problem=no_quantile(span.stage, measure, pairs))
    sign = -1 if span.at_least else 1  # what is tested is that it passes the bound on its wrong side
    test = paired_t(sign * ratios, alpha, margin=sign * math.log(span.bound))
    if test is None:
        return replace(finding, problem=too_few(len(ratios)))
    ends = sorted((math.exp(sign * test.limits.lower), math.exp(sign * test.limits.upper)))
    value = math.exp(sign * test.mean)
    return replace(
        finding,
        candidate=value,
        harm=value,
        limits=Limits(*ends),
        p_value=test.p_harm,
        notes=_told(groups, measure, span, len(pairs)),
        needs=_needed(test, sign * math.log(span.bound), len(pairs)),
    )


def difference(evidence: Evidence, metric: str, span: Span, tally: Tally, *, alpha: float) -> Finding:
    """Share at the stage minus share at the other one, in points; limits as against a baseline."""
    pairs = _pairs(evidence, span)
    theirs, ours = (Counts.of((pair[at] for pair in pairs), tally) for at in (0, 1))
    finding = _finding(span, Unit.POINTS, "difference of shares: t over blocks, widened to Newcombe over requests")
    finding = replace(finding, n=ours.scheduled, n_unit="requests")
    if theirs.empty or ours.empty:
        return replace(finding, problem=unmeasured(metric, f"{span.over} or {span.stage}", theirs, ours))
    turn = -1 if span.at_least else 1  # what is tested is that the difference passes the bound on its wrong side
    sign = -turn if KINDS[metric].rises else turn  # and what was counted is misses
    test = paired_t(sign * differences_of(pairs, tally), alpha, margin=turn * span.bound)
    sides = (ours, theirs) if sign > 0 else (theirs, ours)
    found = widened(test.limits, *sides, alpha) if test is not None else None
    if test is None or found is None:
        return replace(finding, problem=too_few(len(pairs)))
    limits, pooled = found
    value = turn * (sides[0].share - sides[1].share)
    ends = sorted((turn * limits.lower, turn * limits.upper))
    p_value = max(test.p_harm, float(pooled.lower <= turn * span.bound))
    return replace(finding, candidate=value, harm=value, limits=Limits(*ends), p_value=p_value)


def _needed(test: Paired, bound: float, blocks: int) -> int | None:
    """About how many blocks would show on which side of the bound the ratio is: limits narrow with the root of n."""
    room = abs(bound - test.mean)
    width = test.limits.upper - test.mean
    return math.ceil(blocks * (width / room) ** 2) if room > width / _FAR else None


def _finding(span: Span, unit: Unit, method: str) -> Finding:
    return Finding(
        unit=unit,
        scale=Scale.ABSOLUTE,
        margin=span.bound,
        method=method,
        n=0,
        n_unit="blocks",
        breach=True,
        lower_is_worse=span.at_least,
        nears=False,
    )


def _pairs(evidence: Evidence, span: Span) -> list[tuple[LoadObservation, LoadObservation]]:
    """(at the other stage, at the stage) of every block that has both."""
    theirs, ours = (load_of(evidence, stage, Arm.CANDIDATE) for stage in (span.over, span.stage))
    return [(theirs[block], ours[block]) for block in sorted(theirs.keys() & ours.keys())]


def _log_ratios(groups: list[list[Pair]], measure: Measure, span: Span) -> FloatArray | Problem:
    """One per group of blocks. Failures make no ratio: an effect that comes from them is none of the load's."""
    if not groups:
        reason = f"no block has both stage {span.stage} and stage {span.over}"
        return Problem(Outcome.INVALID, reason, "see the faults of the targets")
    for at, stage in ((0, span.over), (1, span.stage)):
        problem = unpaced(measure.metric, measure.q, stage, [pair[at] for group in groups for pair in group])
        if problem is not None:
            return problem
    ratios = []
    for group in groups:
        logs = []
        for at in (0, 1):
            found = value_of([pair[at] for pair in group], measure)
            if found is None or not 0 < found < math.inf:
                where = f"stage {group[0][at].stage}, block {group[0][at].block + 1}"
                reason = f"{where}: {measure.metric} has no value there, or too many of the candidate's requests failed"
                return Problem(Outcome.INVALID, reason, LOOK_AT_ERRORS)
            logs.append(math.log(found))
        ratios.append(logs[1] - logs[0])
    return np.array(ratios, dtype=np.float64)


def _told(groups: list[list[Pair]], measure: Measure, span: Span, blocks: int) -> tuple[str, ...]:
    """The two values that the ratio is of, and how many blocks made one."""
    if not measure.is_latency:
        return ()
    values = [[value_of([pair[at] for pair in group], measure) or math.nan for group in groups] for at in (1, 0)]
    means = [show_duration(math.exp(float(np.mean(np.log(of_stage))))) for of_stage in values]
    told = f"{means[0]} at {span.stage}, {means[1]} at {span.over}"
    return (told,) if len(groups) == blocks else (told, taken_together(measure, blocks, len(groups)))
