"""A candidate measured alone, against a stored run that was measured alone: nothing live ties the two together.

What a live baseline takes out (another day, another room, a restart) stays in the difference. So it counts against what
the runs' own blocks say twice the spread between runs that the noise profile tells, and where none does, nothing is
decided; of shares nothing ever is. Why so: docs/decisions.md, "Two stored runs".
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from benchgate.gate.allowance import Allowance, Terms, allowance, log_margin
from benchgate.gate.apart_steps import apart_steps
from benchgate.gate.between_runs import TOGETHER, apart_notes, beside, between_runs
from benchgate.gate.block_pairs import BlockPairs, Measure, block_pairs
from benchgate.gate.block_values import LATENCIES
from benchgate.gate.comparison import Comparison, load_of
from benchgate.gate.load_checks import Tested, tested, unit_of
from benchgate.gate.priced_between import repriced_between
from benchgate.gate.rule import Finding, Problem
from benchgate.gate.shares import Counts, Tally, unmeasured
from benchgate.model import metrics
from benchgate.model.deployment import Arm
from benchgate.model.records import FloatArray
from benchgate.model.run import Evidence
from benchgate.model.verdict import Outcome, Scale, Unit
from benchgate.stats.bootstrap import block_length, moving_block_error
from benchgate.stats.paired import Paired
from benchgate.stats.unpaired import Part, combined_t

METHOD = "difference of two runs without a live baseline: t with the spread between runs of the noise profile added"


@dataclass(frozen=True, slots=True)
class _Sides:
    """ln of each block's value in the stored and the judged run, turned so that more is worse.

    `within` is what requests show of a single block each; None where there are more blocks, which show it themselves.
    """

    theirs: FloatArray
    ours: FloatArray
    within: tuple[Part, ...] | None = None

    @property
    def harm(self) -> float:
        """How much worse the judged run is."""
        return float(np.mean(self.ours) - np.mean(self.theirs))

    def parts(self, shift: FloatArray | float = 0.0) -> tuple[Part, ...]:
        """What each run's own variance adds, where a shift is added to the stored one."""
        return self.within if self.within is not None else (_part(self.theirs + shift), _part(self.ours))


def log_ratio(comparison: Comparison, stage: str, measure: Measure, terms: Terms, *, alpha: float) -> Finding:
    """Latency and throughput: d = mean ln(candidate's blocks) - mean ln(stored blocks), turned so that harm is above 0.

    SE² is the sum of what each run's blocks show (of one block: its requests, by a moving-block bootstrap) and of the
    variance between runs, once for each run.
    """
    both = beside(comparison)
    pairs = block_pairs(both, stage, measure)
    if isinstance(pairs, Problem):
        return replace(_empty(measure, terms), problem=pairs)
    finding = replace(_empty(measure, terms), n=len(pairs.harm))
    if np.isinf(pairs.harm).any():
        return replace(finding, problem=_failed(stage, pairs))
    allowed = allowance(terms, measure, pairs.baseline)
    if isinstance(allowed, Problem):
        return replace(finding, problem=allowed)
    sides = _sides(both, stage, measure, pairs)
    finding = _with_values(finding, pairs, allowed)
    repriced = repriced_between(comparison, measure.metric)
    if repriced is not None:
        return replace(finding, problem=repriced)
    between = between_runs(comparison, measure.metric, measure.statistic, stage)
    if isinstance(between, Problem):
        return replace(finding, problem=between)
    found = None if sides is None else _tested(sides, between, allowed, terms, alpha)
    if sides is None or found is None:
        return replace(finding, problem=_too_few(stage))
    edge = allowed.margin if terms.breach else 0.0
    what = "-ln" if measure.rises else "ln"
    return replace(
        found.on(finding),
        notes=apart_notes(comparison, between),
        steps=apart_steps(what, sides.theirs, sides.ours, [*sides.parts(), *between], alpha, margin=edge),
    )


def _empty(measure: Measure, terms: Terms) -> Finding:
    return Finding(
        unit=unit_of(measure),
        scale=Scale.LOG_RATIO,
        margin=log_margin(terms, measure),
        method=METHOD,
        n=0,
        n_unit="blocks",
        breach=terms.breach,
        two_sided=terms.two_sided,
    )


def _with_values(finding: Finding, pairs: BlockPairs, allowed: Allowance) -> Finding:
    """Geometric means over blocks, the estimate, and what is allowed beside them."""
    return replace(
        finding,
        baseline=math.exp(float(np.mean(np.log(pairs.baseline)))),
        candidate=math.exp(float(np.mean(np.log(pairs.candidate)))),
        harm=float(np.mean(pairs.harm)),
        margin=allowed.margin,
        least=allowed.least,
        margin_told=allowed.told,
    )


def _sides(both: Evidence, stage: str, measure: Measure, pairs: BlockPairs) -> _Sides | None:
    """None where one block is all there is and its requests do not show how far it may be off."""
    theirs, ours = np.log(pairs.baseline), np.log(pairs.candidate)
    if measure.rises:
        theirs, ours = -theirs, -ours
    if len(pairs.harm) > 1:
        return _Sides(theirs, ours)
    within = _within(both, stage, measure)
    return None if within is None else _Sides(theirs, ours, within)


def _tested(sides: _Sides, between: Sequence[Part], allowed: Allowance, terms: Terms, alpha: float) -> Tested | None:
    def test(shift: FloatArray | float, margin: float, sign: int) -> Paired | None:
        harm = sign * sides.harm - float(np.mean(shift))
        found = combined_t(harm, [*sides.parts(sign * np.asarray(shift)), *between], alpha, margin=margin)
        return None if found is None else Paired(harm, found.error, found.limits, found.p_harm, len(sides.ours))

    return tested(test, allowed, terms)


def share_difference(
    comparison: Comparison, name: str, tally: Tally, stage: str, margin: float, *, breach: bool, falls: bool
) -> Finding:
    """Goodput, errors and what else is a share: the difference in points, which decides nothing.

    How far a share differs from run to run depends on where it lies and on what is missed by it: near none or all it
    hardly moves, and half-way it moves most. A calibration saw it at one level, by one SLO, and knows no other.
    """
    both = beside(comparison)
    theirs, ours = (Counts.of(load_of(both, stage, arm).values(), tally) for arm in Arm)
    finding = Finding(
        unit=Unit.RATIO,
        scale=Scale.DIFFERENCE,
        margin=margin,
        method="difference of two runs without a live baseline",
        n=ours.scheduled,
        n_unit="requests",
        breach=breach,
        falls=falls,
    )
    if theirs.empty or ours.empty:
        return replace(finding, problem=unmeasured(name, stage, theirs, ours))
    baseline, candidate = (1 - side.share if falls else side.share for side in (theirs, ours))
    reason = (
        f"without a live baseline, nobody knows how far {name} at {stage} differs between runs: that depends on its "
        "level and on what counts as a miss, and a noise profile has seen one of each"
    )
    problem = Problem(Outcome.INCONCLUSIVE, reason, TOGETHER)
    return replace(finding, harm=ours.share - theirs.share, baseline=baseline, candidate=candidate, problem=problem)


def _part(values: FloatArray) -> Part:
    """What the blocks of one run, two at least, show of how far their mean may be off."""
    return Part(float(np.var(values, ddof=1)) / len(values), len(values) - 1)


def _within(both: Evidence, stage: str, measure: Measure) -> tuple[Part, ...] | None:
    """The same of one block of each run, from its requests in the order they were due; None where none is known.

    Gaps between tokens are of one request and go together; what a rate counts of requests does not tell its window.
    """
    if not measure.is_latency or measure.by_request or measure.metric == "itl":
        return None
    parts = []
    for arm in Arm:
        block = next(iter(load_of(both, stage, arm).values()))
        values = LATENCIES[measure.metric](block.requests)
        values = values[~np.isnan(values)]
        generator = np.random.default_rng([both.run.seed, block.block, arm is Arm.CANDIDATE])
        error = moving_block_error(values, lambda drawn: _log_quantile(drawn, measure.q), generator)
        if error is None:
            return None
        parts.append(Part(error**2, max(1, len(values) // block_length(len(values)) - 1)))
    return tuple(parts)


def _log_quantile(values: FloatArray, q: float) -> float:
    found = metrics.quantile(values, q)
    return math.log(found) if found is not None and found > 0 else math.nan


def _too_few(stage: str) -> Problem:
    reason = f"stage {stage}: what there is tells nothing of how much this varies within a run"
    return Problem(Outcome.INCONCLUSIVE, reason, "measure two blocks at least, of a server whose times vary")


def _failed(stage: str, pairs: BlockPairs) -> Problem:
    failed = int(np.isinf(pairs.harm).sum())
    reason = f"stage {stage}: in {failed} of {len(pairs.harm)} blocks the candidate has no finite value"
    advice = "see the errors by class in the load table; a live baseline would tell whose they are"
    return Problem(Outcome.INCONCLUSIVE, f"{reason}, because its requests failed", advice)
