"""The two sides of a report: within one run its two arms, between two stored runs the candidate of each."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from benchgate.model.deployment import Arm, Deployment
from benchgate.model.run import DeploymentFault, Evidence, LoadObservation, QualityObservation, Run
from benchgate.model.telemetry import TelemetryWindow
from benchgate.suite.load import level_of_stage
from benchgate.suite.schema import arms_of_stored


@dataclass(frozen=True, slots=True, eq=False)
class Side:
    """One side of the comparison: `role` is the part it plays here, which arm of its run it was does not matter.

    `load` and `telemetry` are of the sweep; what a capacity search looked at is a section of its own.
    """

    role: Arm
    run: Run
    deployment: Deployment
    load: tuple[LoadObservation, ...]
    quality: tuple[QualityObservation, ...]
    faults: tuple[DeploymentFault, ...]
    telemetry: tuple[TelemetryWindow, ...] = ()


@dataclass(frozen=True, slots=True, eq=False)
class Sides:
    """Baseline and candidate. `alone`: one deployment was measured once, for both of them."""

    baseline: Side
    candidate: Side
    alone: bool = False

    def __iter__(self) -> Iterator[Side]:
        if not self.alone:
            yield self.baseline
        yield self.candidate


def deployments(run: Run, against: Run | None) -> dict[Arm, tuple[Run, Deployment]]:
    """Who plays which part. `against` is the reference run; its candidate is then the baseline."""
    baseline = (run, run.arms[Arm.BASELINE]) if against is None else (against, against.arms[Arm.CANDIDATE])
    return {Arm.BASELINE: baseline, Arm.CANDIDATE: (run, run.arms[Arm.CANDIDATE])}


def sides(evidence: Evidence, against: Evidence | None) -> Sides:
    """Baseline and candidate of one run, or of two stored ones."""
    candidate = _side(Arm.CANDIDATE, evidence, Arm.CANDIDATE)
    if against is None:
        alone = len(arms_of_stored(evidence.run.suite)) == 1
        return Sides(_side(Arm.BASELINE, evidence, Arm.BASELINE), candidate, alone)
    return Sides(_side(Arm.BASELINE, against, Arm.CANDIDATE), candidate)


def _side(role: Arm, evidence: Evidence, arm: Arm) -> Side:
    return Side(
        role=role,
        run=evidence.run,
        deployment=evidence.run.arms[arm],
        load=tuple(o for o in evidence.load if o.arm is arm and level_of_stage(o.stage) is None),
        quality=tuple(o for o in evidence.quality if o.arm is arm),
        faults=tuple(f for f in evidence.target_faults if f.arm is arm),
        telemetry=tuple(w for w in evidence.telemetry if w.arm is arm and level_of_stage(w.stage) is None),
    )
