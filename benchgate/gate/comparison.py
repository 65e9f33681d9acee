"""What is compared with what: one run's candidate with its own baseline, or with the candidate of a stored run.

What lies between two runs that nothing live ties together, by the noise profile; or why nobody knows it.

Which look at the load a verdict is made from, and what error it may spend there.

Load is measured in blocks, first a few and then more where those do not settle it. Who may look several times must
allow less at each look, or chance gets as many tries: O'Brien-Fleming limits spend hardly anything on the first ones.
Such limits and p-values hold whenever and why ever the measuring ended: a stored run may be judged by another policy.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

from benchgate.gate.decision import CannotJudge, Estimate, Look, inconclusive
from benchgate.model.deployment import Arm
from benchgate.model.metric import COST_METRICS, noise_metric
from benchgate.model.noise import (
    NoiseProfile,
    NoiseSpread,
    describe_hardware,
    engine_version_of,
    format_age,
    staleness_reasons,
)
from benchgate.model.run import Evidence, LoadObservation, QualityObservation
from benchgate.model.verdict import Outcome
from benchgate.stats.means import VarianceComponent
from benchgate.stats.sequential import look_alphas
from benchgate.suite.schema import Suite, arms_of_stored, traffic_classes


@dataclass(frozen=True, slots=True, eq=False)
class Comparison:
    """The run whose candidate is judged, and for stored comparisons the run whose candidate it is judged against.

    Two runs were not interleaved, so their load is compared through the baseline each one measured live beside its
    candidate: what differs is candidate-over-baseline in one run against candidate-over-baseline in the other.
    """

    judged: Evidence
    reference: Evidence | None = None

    @property
    def stored(self) -> bool:
        """Whether two stored runs are compared."""
        return self.reference is not None

    @property
    def apart(self) -> bool:
        """Whether nothing ties two stored runs together: one of them measured its candidate without a live baseline."""
        reference = self.reference
        return reference is not None and 1 in (len(arms_of(self.judged)), len(arms_of(reference)))

    def baseline_name(self) -> str:
        """Name of what the candidate is held against."""
        if self.reference is not None:
            return self.reference.run.arms[Arm.CANDIDATE].name
        return self.judged.run.arms[Arm.BASELINE].name

    def candidate_name(self) -> str:
        """Name of the candidate judged."""
        return self.judged.run.arms[Arm.CANDIDATE].name

    def baseline_quality(self, task: str, repeat: int = 0) -> QualityObservation | None:
        """The items the candidate's are paired with; with `repeat`, those of the same arm asked once more."""
        if self.reference is not None:
            return quality_of(self.reference, Arm.CANDIDATE, task, repeat)
        return quality_of(self.judged, Arm.BASELINE, task, repeat)

    def candidate_quality(self, task: str) -> QualityObservation | None:
        """The candidate's items."""
        return quality_of(self.judged, Arm.CANDIDATE, task)


def arms_of(evidence: Evidence) -> tuple[Arm, ...]:
    """The arms that the run was to measure, by its own suite, whatever policy judges it now."""
    return arms_of_stored(evidence.run.suite)


def quality_of(evidence: Evidence, arm: Arm, task: str, repeat: int = 0) -> QualityObservation | None:
    """The observation of one task on one arm; None when it was never made."""
    found = (o for o in evidence.quality if o.arm is arm and o.task == task and o.repeat == repeat)
    return next(found, None)


def load_of(evidence: Evidence, stage: str, arm: Arm) -> dict[int, LoadObservation]:
    """The executions of one stage on one arm by block number."""
    return {o.block: o for o in evidence.load if o.stage == stage and o.arm is arm}


def measured_twice(evidence: Evidence) -> str | None:
    """What a run has more than once, of what it measures once; None where there is no such thing.

    One of two would silently stand for both, and which one that is must not depend on their order.
    """
    found = Counter(f"stage {o.stage}, block {o.block + 1}, {o.arm}" for o in evidence.load)
    found += Counter(f"task {o.task}{' again' * o.repeat} on the {o.arm}" for o in evidence.quality)
    found += Counter(f"telemetry of stage {o.stage}, block {o.block + 1}, {o.arm}" for o in evidence.telemetry)
    what, times = next(iter(found.most_common(1)), ("", 0))
    return f"{what} is there {times} times, and is measured once" if times > 1 else None


def paired_load(evidence: Evidence, stage: str) -> list[tuple[LoadObservation, LoadObservation]]:
    """(baseline, candidate) of every block that has both, in block order."""
    baseline, candidate = load_of(evidence, stage, Arm.BASELINE), load_of(evidence, stage, Arm.CANDIDATE)
    return [(baseline[block], candidate[block]) for block in sorted(baseline.keys() & candidate.keys())]


_CALIBRATE = "measure baseline and candidate in one run, or run `benchgate calibrate` with this suite before the first"
TOGETHER = "measure baseline and candidate in one run"


def beside(comparison: Comparison) -> Evidence:
    """The judged run with the reference run's candidate in the place of its baseline: same plan, so same prompts."""
    assert comparison.reference is not None, "two runs are compared"
    judged, theirs = comparison.judged, comparison.reference
    ours = [o for o in judged.load if o.arm is Arm.CANDIDATE]
    load = [replace(o, arm=Arm.BASELINE) for o in theirs.load if o.arm is Arm.CANDIDATE]
    arms = {Arm.BASELINE: theirs.run.arms[Arm.CANDIDATE], Arm.CANDIDATE: judged.run.arms[Arm.CANDIDATE]}
    faults = (*theirs.target_faults, *judged.target_faults)
    return replace(judged, load=(*load, *ours), run=replace(judged.run, arms=arms), target_faults=faults)


def hold_to_noise_profile(estimate: Estimate, suite: Suite, comparison: Comparison) -> None:
    """Remove limits and p-value of a comparison of two untied runs that no noise profile supports."""
    if estimate.problem is not None and estimate.problem.outcome is Outcome.INVALID:
        return
    try:
        _require_noise_profile(comparison, suite.gate.noise_max_age_s)
    except CannotJudge as cannot:
        estimate.limits = estimate.p_value = None
        estimate.problem = cannot


def _require_noise_profile(comparison: Comparison, max_age_s: float) -> None:
    """Raise CannotJudge unless both runs had the same hardware and there is a fresh noise profile."""
    assert comparison.reference is not None, "two runs are compared"
    runs = (comparison.judged, comparison.reference)
    places = [describe_hardware(one.run.arms[Arm.CANDIDATE], one.run.environment) for one in runs]
    if places[0] != places[1]:
        reason = (
            f"without a live baseline, runs on what is not known to be the same say nothing: {' and '.join(places)}"
        )
        raise inconclusive(reason, TOGETHER)
    known = _profiles(comparison)
    if not known:
        reason = "without a live baseline and without a noise profile, nobody knows what lies between two runs"
        raise inconclusive(reason, _CALIBRATE)
    judged_at = comparison.judged.run.finished_at or comparison.judged.run.started_at
    for profile in known:
        version = engine_version_of(comparison.reference.run.arms[Arm.CANDIDATE])
        stale = staleness_reasons(profile, at=judged_at, engine_version=version, max_age_s=max_age_s)
        if stale:
            reason = f"the noise profile that would stand in for a live baseline is stale: {'; '.join(stale)}"
            raise inconclusive(reason, "run `benchgate calibrate` with this suite again")


def variance_between_runs(
    comparison: Comparison, metric: str, statistic: str | None, stage: str
) -> tuple[VarianceComponent, ...]:
    """Return the variance between runs, once for each run: of its own deployment if that was calibrated.

    Raises CannotJudge if no noise profile has it.
    """
    runs = (comparison.judged, comparison.reference)
    if metric in COST_METRICS and any(run is not None and run.run.arms[Arm.CANDIDATE].token_prices for run in runs):
        # A pace does not tell how much input is cached, or how long answers are, on another day.
        reason = f"no noise profile says how much {metric} differs between runs where tokens are what is paid for"
        raise inconclusive(reason, TOGETHER)
    spreads = [profile.spread(noise_metric(metric), statistic, stage) for profile in _profiles(comparison)]
    if not spreads or any(spread is None or spread.n < 2 for spread in spreads):
        reason = f"no noise profile says how much {metric} at {stage} differs between runs without a live baseline"
        raise inconclusive(reason, _CALIBRATE)
    known: Sequence[NoiseSpread] = [spread for spread in spreads if spread is not None]
    return tuple(VarianceComponent(2 / len(known) * spread.cv_run**2, spread.n - 1) for spread in known)


def noise_profile_note(comparison: Comparison, between: Sequence[VarianceComponent]) -> str:
    """Return a note that there was no live baseline, and of what was added in its place."""
    added = math.sqrt(sum(part.variance for part in between))
    judged_at = comparison.judged.run.finished_at or comparison.judged.run.started_at
    ages = " and ".join(f"{one.run_id[:13]}, {format_age(one.age_at(judged_at))} old" for one in _profiles(comparison))
    return f"no live baseline: the spread between two runs, {added:.1%}, is added from the noise profile ({ages})"


def _profiles(comparison: Comparison) -> tuple[NoiseProfile, ...]:
    """Those of the reference run's deployment and of the judged run's; one where only one is known."""
    runs = (comparison.reference, comparison.judged)
    found = {run.noise.run_id: run.noise for run in runs if run is not None and run.noise is not None}
    return tuple(found.values())


def look_of(suite: Suite, evidence: Evidence) -> Look | None:
    """The look that so many blocks are; None where the suite has a fixed number of them.

    Between two looks it is the one before: its limits are wider than such data would allow. Before the first one it is
    the first: nothing is allowed less.
    """
    if suite.load is None or not suite.load.looks:
        return None
    looks = suite.load.looks
    measured = blocks_measured(suite, evidence)
    number = max(1, sum(measured >= blocks for blocks in looks))
    fractions = fractions_of(looks)
    tails = look_alphas(fractions, suite.gate.alpha)
    return Look(number, len(looks), looks[number - 1], looks[-1], tails[number - 1], fractions, evidence.ended)


def stricter_look(suite: Suite, comparison: Comparison) -> Look | None:
    """Of two stored runs the look that allows less: each was ended by what it showed itself."""
    looks = [look_of(suite, comparison.judged)]
    if comparison.reference is not None:
        own = Suite.from_stored(comparison.reference.run.suite)
        looks.append(look_of(own.model_copy(update={"gate": suite.gate}), comparison.reference))
    return min((look for look in looks if look is not None), key=lambda look: look.alpha, default=None)


def fractions_of(looks: tuple[int, ...]) -> tuple[float, ...]:
    """What share of the most blocks each look has. The planned ones: a block left out for the client's sake is not seen
    here, which changes what limits cover by less than can be simulated (docs/decisions.md)."""
    return tuple(blocks / looks[-1] for blocks in looks)


def blocks_measured(suite: Suite, evidence: Evidence) -> int:
    """How many blocks are whole: measured at every place of the sweep on every arm. A capacity search has none."""
    seen = [set(load_of(evidence, place.name, arm)) for place in traffic_classes(suite) for arm in arms_of(evidence)]
    return len(set.intersection(*seen)) if seen else 0
