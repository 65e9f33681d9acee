"""The two sides of a report, whether their comparison is fair, and which numbers guards invalidate."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from benchgate.gate.evidence.client_strain import strained_blocks
from benchgate.gate.guards.base import ALL_LOAD_KINDS, OWN_LOAD_KINDS, compared
from benchgate.model.deployment import Arm, Deployment, flatten_json
from benchgate.model.run import DeploymentFault, Evidence, LoadObservation, QualityObservation, Run
from benchgate.model.telemetry import TelemetryWindow
from benchgate.model.verdict import Difference, GuardResult, Outcome, Verdict
from benchgate.report import display
from benchgate.suite.load import level_of_stage
from benchgate.suite.schema import Suite, arms_of_stored, traffic_classes


@dataclass(frozen=True, slots=True, eq=False)
class Side:
    """A side of the comparison: `role` is its part here, whichever arm of its run it was.

    `load` and `telemetry` are those of the sweep; a capacity search has a section of its own.
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
    """Return the run and deployment of each side. The candidate of `against` is then the baseline."""
    baseline = (run, run.arms[Arm.BASELINE]) if against is None else (against, against.arms[Arm.CANDIDATE])
    return {Arm.BASELINE: baseline, Arm.CANDIDATE: (run, run.arms[Arm.CANDIDATE])}


def sides(evidence: Evidence, against: Evidence | None) -> Sides:
    """Return baseline and candidate of one run, or of two stored ones."""
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


_UNSOUND = "The measurement is unsound"
_REGRESSION_COUNTS = "The measurement cannot promote anything, but the regressions that it shows count"


@dataclass(frozen=True, slots=True)
class Row:
    """A setting or server fact that differs between the sides.

    `status` says whether it is part of the change; empty where the gate did not check that.
    """

    name: str
    baseline: str
    candidate: str
    status: str = ""


@dataclass(frozen=True, slots=True)
class Fairness:
    """`equal` counts what was compared and found the same. `faults` name a side that was not there.

    `unsound` says what guards that object come to, as a sentence without its end. `change` is what the suite says in
    words that the candidate is.
    """

    tripped: tuple[GuardResult, ...]
    warned: tuple[GuardResult, ...]
    held: tuple[GuardResult, ...]
    unknown: tuple[GuardResult, ...]  # had nothing to look at
    faults: tuple[str, ...]
    cautions: tuple[str, ...]
    differences: tuple[Row, ...]
    equal: int
    unsound: str
    change: str = ""

    @property
    def fair(self) -> bool:
        """True when nothing speaks against the checks as they stand."""
        return not (self.tripped or self.warned or self.faults or self.cautions)


def fairness(sides: Sides, verdict: Verdict, notices: Sequence[str] = ()) -> Fairness:
    """Collect guards, target faults and differences between the deployments.

    `notices` are further cautions, which trip no guard.
    """
    ours, theirs = _described(sides.baseline.deployment), _described(sides.candidate.deployment)
    names = sorted(ours.keys() | theirs.keys())
    differing = [name for name in names if ours.get(name) != theirs.get(name)]
    rows = [Row(one.what, one.baseline, one.candidate, status_of(one)) for one in verdict.differences]
    rows = rows or [
        Row(n, ours.get(n, display.NOT_APPLICABLE), theirs.get(n, display.NOT_APPLICABLE)) for n in differing
    ]
    return Fairness(
        tripped=tuple(g for g in verdict.guards if g.tripped),
        warned=tuple(g for g in verdict.guards if g.warns),
        held=tuple(g for g in verdict.guards if g.known and not (g.tripped or g.warns)),
        unknown=tuple(g for g in verdict.guards if not g.known and not g.tripped),
        faults=tuple(_faults(sides, verdict)),
        cautions=(*_cautions(sides), *notices),
        differences=tuple(rows),
        equal=len(names) - len(differing),
        unsound=_REGRESSION_COUNTS if verdict.outcome is Outcome.BLOCK else _UNSOUND,
        change=str(sides.candidate.run.suite.get("change") or ""),
    )


def status_of(difference: Difference) -> str:
    """Return whether a difference is part of the judged change, and the word that declares it."""
    if difference.field is None:
        return "the change itself" if difference.declared else "observed"
    return f"declared: {difference.field}" if difference.declared else f"not declared: {difference.field}"


def _described(deployment: Deployment) -> dict[str, str]:
    fixed = {"engine": deployment.engine, "model": deployment.model, "accelerators": str(deployment.accelerators)}
    if deployment.url is not None:
        fixed["url"] = deployment.url
    declared = {f"declared: {name}": text for name, text in flatten_json(deployment.settings)}
    probed = {f"reported: {name}": text for name, text in flatten_json(deployment.facts)}
    return fixed | declared | probed


def _faults(sides: Sides, verdict: Verdict) -> Iterator[str]:
    """Yield target faults that no tripped guard reports already."""
    reported = " ".join(guard.reason for guard in verdict.guards if guard.tripped)
    for side in sides:
        for fault in side.faults:
            if f"{fault.when}: {fault.reason}" not in reported:
                yield f"{side.role.value} {side.deployment.name} was unreachable {fault.when}: {fault.reason}"


def _cautions(sides: Sides) -> Iterator[str]:
    baseline, candidate = sides.baseline, sides.candidate
    if baseline.run.id != candidate.run.id:
        yield (
            "the arms come from different runs and were not interleaved; speed is compared through the baseline of "
            "each run"
        )
    elif baseline.deployment.fingerprint == candidate.deployment.fingerprint and not sides.alone:
        yield "both arms are the same deployment: any difference is noise"


@dataclass(frozen=True, slots=True)
class Unusable:
    """Guards that invalidate each part's numbers, as a list in words; empty where none does."""

    load: str
    quality: str
    divergence: str
    shadow: str
    only_speed: bool  # of the load how fast it was, not what failed
    only_compared: bool  # of the load what is held against the baseline, not the candidate's own values

    @property
    def parts(self) -> tuple[str, ...]:
        """The parts in words, as far as their numbers are not to be used."""
        load = "speed under load" if self.only_speed else "load"
        load += " against the baseline" if self.only_compared else ""
        named = ((load, self.load), ("evals", self.quality), ("fixed texts", self.divergence))
        return tuple(name for name, guards in (*named, ("the shadow comparison", self.shadow)) if guards)


def unusable(verdict: Verdict) -> Unusable:
    """Return which numbers tripped guards invalidate; a guard that names no kind of check invalidates all.

    If a regression is shown all the same, such a guard only prevents promotion, and the numbers count.
    """
    blocked = verdict.outcome is Outcome.BLOCK
    tripped = [guard for guard in verdict.guards if guard.tripped and (guard.invalidates or not blocked)]
    only_compared = not _against(tripped, OWN_LOAD_KINDS)
    load = _against(tripped, ALL_LOAD_KINDS)
    return Unusable(
        load=f"{load}, where they are compared," if load and only_compared else load,
        quality=_against(tripped, frozenset({"quality"})),
        divergence=_against(tripped, frozenset({"divergence"})),
        shadow=_against(tripped, frozenset({"shadow"})),
        only_speed=not _against(tripped, frozenset({"load", *compared("load")})),
        only_compared=only_compared,
    )


def _against(tripped: list[GuardResult], kinds: frozenset[str]) -> str:
    return ", ".join(guard.id for guard in tripped if not guard.invalidates or not kinds.isdisjoint(guard.invalidates))


def widened_line(suite: Suite) -> str | None:
    """Return a warning naming the client's bounds that the policy widens; None where it widens none."""
    widened = suite.gate.client.widened()
    return (
        f"the policy widens the load generator's bounds, so latencies may include its delays: {widened}"
        if widened
        else None
    )


def client_care(suite: Suite, run: Evidence, reference: Evidence | None = None) -> tuple[str, ...]:
    """Return a warning with the excluded blocks if the policy widens a bound of the client and load was measured."""
    line = widened_line(suite)
    runs = [(run, ""), *([(reference, " of the reference run")] if reference is not None else [])]
    if line is None or not any(one.load for one, _ in runs):
        return ()
    seen = [(strained_blocks(one, place, suite), whose) for one, whose in runs for place in traffic_classes(suite)]
    left_out = [f"{found.share}{whose}" for found, whose in seen if found.left_out]
    excluded = f"; excluded all the same: {' and '.join(left_out)}" if left_out else ""
    return (f"{line}{excluded}",)
