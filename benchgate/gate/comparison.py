"""The three kinds of comparison, and the interim analysis that a verdict is made at.

A candidate is compared with the baseline measured live beside it, or with the candidate of a stored run. Two stored
runs are tied together if both measured a live baseline; if not, only a noise profile tells how far runs differ.

Load is measured in blocks: first a few, then more where those do not settle it. Several looks must allow less error at
each one, or chance gets as many tries (O'Brien-Fleming). Such limits hold whenever and for whatever reason the
measurement ended, so a stored run may be judged by another policy.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import ClassVar
from weakref import WeakKeyDictionary

import numpy as np

from benchgate.errors import EvidenceError
from benchgate.gate.decision import CannotJudge, Estimate, Look, inconclusive
from benchgate.model.columns import select_rows
from benchgate.model.deployment import Arm, describe_hardware, engine_version_of
from benchgate.model.metric import COST_METRICS, noise_metric
from benchgate.model.noise import NoiseProfile, NoiseSpread, format_age, noise_key, staleness_reasons
from benchgate.model.records import ABSENT, FloatArray, RequestColumns
from benchgate.model.run import Evidence, LoadObservation, QualityObservation
from benchgate.model.verdict import Outcome
from benchgate.stats.means import MeanTest, VarianceComponent, paired_t, two_sample_t
from benchgate.stats.sequential import look_alphas
from benchgate.stats.trace import Trace
from benchgate.suite.load import CAPACITY_STAGE, TrafficClass, level_of_stage
from benchgate.suite.schema import Suite, arms_of_stored, traffic_classes
from benchgate.suite.stages import region_name, split_region

MEASURE_TOGETHER = "measure baseline and candidate in one run"
_CALIBRATE = f"{MEASURE_TOGETHER}, or run `benchgate calibrate` with this suite before the first"


@dataclass(frozen=True, eq=False)
class Comparison:
    """A candidate and what it is compared with.

    `judged` is the run of the candidate that is judged, `reference` the run of which the candidate is compared with it;
    without one the comparison is with the baseline of the judged run.
    """

    judged: Evidence
    reference: Evidence | None = None
    baseline_arm: ClassVar[Arm] = Arm.BASELINE  # of `baseline_run`

    @property
    def baseline_run(self) -> Evidence:
        """Return the run whose observations the candidate's are compared with."""
        return self.judged if self.reference is None else self.reference

    @property
    def runs(self) -> tuple[Evidence, ...]:
        """Return the judged run, and the reference run if there is one."""
        return (self.judged,) if self.reference is None else (self.judged, self.reference)

    def mapped(self, change: Callable[[Evidence], Evidence]) -> Comparison:
        """Return the same comparison with every run changed."""
        reference = None if self.reference is None else change(self.reference)
        return replace(self, judged=change(self.judged), reference=reference)

    @property
    def named_runs(self) -> tuple[tuple[str, Evidence], ...]:
        """Return every run with the words that begin a note about it."""
        return tuple(zip(("", "of the reference run, "), self.runs, strict=False))

    @property
    def request_pairs(self) -> Evidence:
        """Return the run in which every request of the candidate has a counterpart on the other side."""
        return self.judged

    def baseline_quality(self, task: str, repeat: int = 0) -> QualityObservation | None:
        """Return the items that the candidate's are paired with; with `repeat`, those of the same arm queried again."""
        return quality_of(self.baseline_run, self.baseline_arm, task, repeat)

    def candidate_quality(self, task: str) -> QualityObservation | None:
        """Return the candidate's items."""
        return quality_of(self.judged, Arm.CANDIDATE, task)

    def mean_test(
        self,
        regressions: Sequence[FloatArray],
        alpha: float,
        *,
        margin: float = 0.0,
        shift: FloatArray | float = 0.0,
        sign: int = 1,
        trace: Trace | None = None,
    ) -> MeanTest | None:
        """Test the mean regression, less a shift of each block, against a margin; None without an answer.

        `regressions` has one value per block for each of `runs`: of one run its paired blocks are tested by Student's
        t, of two runs their difference by Welch's. With `sign` -1 improvements are tested.
        """
        if len(regressions) == 1:
            return paired_t(sign * regressions[0] - shift, alpha, margin=margin, trace=trace)
        judged, reference = regressions
        return two_sample_t(sign * reference + shift, sign * judged, alpha, margin=margin, trace=trace)


class LiveBaseline(Comparison):
    """A run whose candidate is compared with the baseline that was measured beside it."""


@dataclass(frozen=True, eq=False)
class TiedRuns(Comparison):
    """Two runs, each with its own live baseline, which ties their machines and moments together.

    They were not interleaved. Their load is compared through the baselines: candidate over baseline in one run against
    candidate over baseline in the other.
    """

    judged: Evidence
    reference: Evidence
    baseline_arm = Arm.CANDIDATE


@dataclass(frozen=True, eq=False)
class UntiedRuns(TiedRuns):
    """Two runs of which at least one measured its candidate alone: nothing live ties them together."""

    @cached_property
    def interleaved(self) -> Evidence:
        """Return the judged run with the reference run's candidate as its baseline: same plan, so same prompts."""
        judged, reference = self.judged, self.reference
        ours = [o for o in judged.load if o.arm is Arm.CANDIDATE]
        theirs = [replace(o, arm=Arm.BASELINE) for o in reference.load if o.arm is Arm.CANDIDATE]
        arms = {Arm.BASELINE: reference.run.arms[Arm.CANDIDATE], Arm.CANDIDATE: judged.run.arms[Arm.CANDIDATE]}
        faults = (*reference.target_faults, *judged.target_faults)
        run, resumed = replace(judged.run, arms=arms), (*reference.resumptions, *judged.resumptions)
        return replace(judged, load=(*theirs, *ours), run=run, target_faults=faults, resumptions=resumed)

    @property
    def request_pairs(self) -> Evidence:
        """Return the two candidates' requests as those of one run."""
        return self.interleaved

    @property
    def noise_profiles(self) -> tuple[NoiseProfile, ...]:
        """Return the profiles of the reference run's deployment and of the judged run's; one if only one is known."""
        known = (_noise_of_candidate(run) for run in (self.reference, self.judged))
        return tuple({one.run_id: one for one in known if one is not None}.values())

    def hold_to_noise_profile(self, estimate: Estimate, suite: Suite) -> None:
        """Remove limits and p-value of an estimate that no noise profile supports."""
        if estimate.problem is not None and estimate.problem.outcome is Outcome.INVALID:
            return
        try:
            self._require_noise_profile(suite.gate.noise_max_age_s)
        except CannotJudge as cannot:
            estimate.limits = estimate.p_value = None
            estimate.problem = cannot

    def _require_noise_profile(self, max_age_s: float) -> None:
        hardware = [describe_hardware(run.run.arms[Arm.CANDIDATE], run.run.environment) for run in self.runs]
        if hardware[0] != hardware[1]:
            reason = "without a live baseline, runs on what is not known to be the same hardware cannot be compared"
            raise inconclusive(f"{reason}: {' and '.join(hardware)}", MEASURE_TOGETHER)
        if not self.noise_profiles:
            reason = "there is no live baseline and no noise profile, so the difference between two runs is not known"
            raise inconclusive(reason, _CALIBRATE)
        at = self.judged.run.finished_at or self.judged.run.started_at
        versions = {  # of a profile that both runs have: the reference run's
            one.run_id: engine_version_of(run.run.arms[Arm.CANDIDATE])
            for run in (self.judged, self.reference)
            if (one := _noise_of_candidate(run)) is not None
        }
        for profile in self.noise_profiles:
            stale = staleness_reasons(profile, at=at, engine_version=versions[profile.run_id], max_age_s=max_age_s)
            if stale:
                reason = f"the noise profile that would stand in for a live baseline is stale: {'; '.join(stale)}"
                raise inconclusive(reason, "run `benchgate calibrate` with this suite again")

    def variance_between_runs(self, metric: str, statistic: str | None, stage: str) -> tuple[VarianceComponent, ...]:
        """Return the variance between runs, once for each run: of its own deployment if that was calibrated.

        Raises CannotJudge if no noise profile has it.
        """
        if metric in COST_METRICS and any(run.run.arms[Arm.CANDIDATE].token_prices for run in self.runs):
            # A pace does not tell how much input is cached, or how long answers are, on another day.
            reason = f"no noise profile tells how much {metric} differs between runs where tokens are paid for"
            raise inconclusive(reason, MEASURE_TOGETHER)
        spreads = [profile.spread(noise_metric(metric), statistic, stage) for profile in self.noise_profiles]
        if not spreads or any(spread is None or spread.n < 2 for spread in spreads):
            reason = f"no noise profile tells how much {metric} at {stage} differs between runs without a live baseline"
            raise inconclusive(reason, _CALIBRATE)
        known: Sequence[NoiseSpread] = [spread for spread in spreads if spread is not None]
        return tuple(VarianceComponent(2 / len(known) * spread.cv_run**2, spread.n - 1) for spread in known)

    def variance_note(self, between: Sequence[VarianceComponent]) -> str:
        """Return a note on what was added in place of a live baseline."""
        added = math.sqrt(sum(part.variance for part in between))
        at = self.judged.run.finished_at or self.judged.run.started_at
        ages = " and ".join(f"{one.run_id[:13]}, {format_age(one.age_at(at))} old" for one in self.noise_profiles)
        return f"no live baseline: the spread between two runs, {added:.1%}, is added from the noise profile ({ages})"


def _noise_of_candidate(run: Evidence) -> NoiseProfile | None:
    """Return the noise profile of a run if it holds for its candidate: it is that of the baseline, if both ran."""
    if len(arms_of(run)) > 1:
        keys = {noise_key(one, run.run.environment, run.run.measurement_sha256) for one in run.run.arms.values()}
        return run.noise if len(keys) == 1 else None
    return run.noise


def compare(judged: Evidence, reference: Evidence | None = None) -> Comparison:
    """Return the comparison of a run's candidate with its own baseline, or with the candidate of a stored run."""
    if reference is None:
        return LiveBaseline(judged)
    untied = 1 in (len(arms_of(judged)), len(arms_of(reference)))
    return UntiedRuns(judged, reference) if untied else TiedRuns(judged, reference)


def require_arms(*runs: Evidence) -> None:
    """Raise EvidenceError for a run without the deployment of an arm that it was to measure: its row was lost."""
    for run in runs:
        for arm in arms_of(run):
            if arm not in run.run.arms:
                raise EvidenceError(f"run {run.run.id}: the row of its {arm} is missing")


def arms_of(evidence: Evidence) -> tuple[Arm, ...]:
    """Return the arms that the run was to measure by its own suite, whatever policy judges it now."""
    return arms_of_stored(evidence.run.suite)


def quality_of(evidence: Evidence, arm: Arm, task: str, repeat: int = 0) -> QualityObservation | None:
    """Return the observation of one task on one arm; None if there is none."""
    found = (o for o in evidence.quality if o.arm is arm and o.task == task and o.repeat == repeat)
    return next(found, None)


def load_of(evidence: Evidence, stage: str, arm: Arm) -> dict[int, LoadObservation]:
    """Return the executions of one stage on one arm by block number; of a region's name its part of them.

    For the capacity search these are its looks, numbered so that one number means the same requests on both arms: a
    resumed search draws other ones.
    """
    place, region = split_region(stage)
    looks = [o for o in evidence.load if level_of_stage(o.stage) is not None] if place == CAPACITY_STAGE else []
    if looks:
        drawn = [(o.stage, o.block, o.session, o.recorded_planned) for o in looks]  # requests depend on their number
        numbers = {look: number for number, look in enumerate(sorted(set(drawn)))}
        return {numbers[look]: o for look, o in zip(drawn, looks, strict=True) if o.arm is arm}
    found = {o.block: o for o in evidence.load if o.stage == place and o.arm is arm}
    return found if region is None else {block: in_region(o, region) for block, o in found.items()}


_REGIONS: WeakKeyDictionary[LoadObservation, dict[str, LoadObservation]] = WeakKeyDictionary()


def in_region(observation: LoadObservation, region: str) -> LoadObservation:
    """Return the part of an execution that was sent from a region, made once. Client and window are those of all."""
    known = _REGIONS.setdefault(observation, {})
    if region not in known:
        uses = (observation.requests, observation.left, observation.ramp)
        requests, left, ramp = (select_rows(rows, rows.region.are((region,))) for rows in uses)
        name = region_name(observation.stage, region)
        known[region] = replace(observation, stage=name, requests=requests, left=left, ramp=ramp)
    return known[region]


def by_adapter(observation: LoadObservation, traffic: TrafficClass, seed: int) -> dict[str, LoadObservation]:
    """Split an execution by the adapters that its requests were for, without those of the ramp, in the suite's order.

    `seed` is that of the measured suite.
    """
    drawn = {
        use: np.array([traffic.adapter_of(seed, observation.block, index) for index in columns.index.tolist()], object)
        for use, columns in (("requests", observation.requests), ("left", observation.left))
    }
    found = {}
    for adapter in traffic.workload.adapters:
        requests, left = (select_rows(getattr(observation, use), names == adapter) for use, names in drawn.items())
        if len(requests) or len(left):
            found[adapter] = replace(observation, requests=requests, left=left, ramp=RequestColumns.pack([]))
    return found


def measured_twice(evidence: Evidence) -> str | None:
    """Describe an observation that a run has more than once, or under two places; None if there is none.

    One of two would silently stand for both, and which one must not depend on their order. No two executions were sent
    and answered at the same nanoseconds: one of them is a copy, unless blocks were drawn anew on purpose.
    """
    places = [(f"stage {o.stage}, block {o.block + 1}, {o.arm}", o.requests) for o in evidence.load]
    found = Counter(where for where, _ in places)
    found += Counter(f"task {o.task}{' again' * o.repeat} on the {o.arm}" for o in evidence.quality)
    found += Counter(f"telemetry of stage {o.stage}, block {o.block + 1}, {o.arm}" for o in evidence.telemetry)
    what, times = next(iter(found.most_common(1)), ("", 0))
    if times > 1:
        return f"{what} is there {times} times, and is measured once"
    seen: dict[tuple[bytes, bytes], str] = {}
    for where, columns in places:
        first = seen.setdefault((columns.sent_ns.tobytes(), columns.end_ns.tobytes()), where)
        if first != where and not evidence.redrawn and bool(np.any(columns.sent_ns != ABSENT)):
            return f"{where} has the times of {first}, to the nanosecond: one of them was not measured"
    return None


def paired_load(evidence: Evidence, stage: str) -> list[tuple[LoadObservation, LoadObservation]]:
    """Return (baseline, candidate) of every block that has both, in block order."""
    baseline, candidate = load_of(evidence, stage, Arm.BASELINE), load_of(evidence, stage, Arm.CANDIDATE)
    return [(baseline[block], candidate[block]) for block in sorted(baseline.keys() & candidate.keys())]


def look_of(suite: Suite, evidence: Evidence) -> Look | None:
    """Return the look that a run's blocks have reached; None if the suite has a fixed number of blocks.

    Between two looks it is the earlier one, whose limits are wider than such data would allow. Before the first look it
    is the first, which allows least.
    """
    if suite.load is None or not suite.load.looks:
        return None
    looks = suite.load.looks
    measured = blocks_measured(suite, evidence)
    number = max(1, sum(measured >= blocks for blocks in looks))
    fractions = tuple(blocks / looks[-1] for blocks in looks)  # as planned, whatever was excluded for the client's sake
    tails = look_alphas(fractions, suite.gate.alpha)
    return Look(number, len(looks), looks[number - 1], looks[-1], tails[number - 1], fractions, evidence.ended)


def stricter_look(suite: Suite, comparison: Comparison) -> Look | None:
    """Return the look; of two stored runs the one that allows less, because each ended by what it showed itself."""
    looks = [look_of(suite, comparison.judged)]
    if isinstance(comparison, TiedRuns):
        own = Suite.from_stored(comparison.reference.run.suite)
        looks.append(look_of(own.model_copy(update={"gate": suite.gate}), comparison.reference))
    return min((look for look in looks if look is not None), key=lambda look: look.alpha, default=None)


def blocks_measured(suite: Suite, evidence: Evidence) -> int:
    """Count the blocks that were measured at every class of traffic on every arm. A capacity search has none."""
    measured = [
        set(load_of(evidence, place.name, arm)) for place in traffic_classes(suite) for arm in arms_of(evidence)
    ]
    return len(set.intersection(*measured)) if measured else 0
