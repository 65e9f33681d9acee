"""What is compared with what: one run's candidate with its own baseline, or with the candidate of a stored run."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from benchgate.model.deployment import Arm
from benchgate.model.run import Evidence, LoadObservation, QualityObservation
from benchgate.suite.arms import arms_of_stored


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
