"""What `benchgate capacity` takes from a stored run: a level of an arm that holds, and what else the run saw of it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any

from benchgate.errors import UsageError

if TYPE_CHECKING:
    from benchgate.model.deployment import Arm, Deployment
    from benchgate.model.run import Evidence, MetricRow, Run
    from benchgate.report.sizing import NamedRun, RunSeen
    from benchgate.sizing.operating_point import LoadLevel
    from benchgate.sizing.signals import ColdStarts
    from benchgate.suite.schema import Suite


@dataclass(frozen=True, slots=True)
class Numbers:
    """Of a whole replica and of its requests on the mean, each None where it was not said."""

    usd_per_hour: float | None
    overhead_ratio: float | None
    residence_s: float | None
    tokens_per_request: float | None
    cold_start_s: float | None
    places: int | None

    @property
    def paid_usd_per_hour(self) -> float | None:
        """With the overhead, where one is known."""
        return None if self.usd_per_hour is None else self.usd_per_hour * (1 + (self.overhead_ratio or 0.0))


@dataclass(frozen=True, slots=True)
class Measured:
    """What the run showed, and its numbers for what nobody says."""

    seen: RunSeen
    numbers: Numbers

    def beside(self, said: Numbers) -> tuple[Numbers, RunSeen]:
        """What was said, with the run's numbers in its gaps: `taken` names those, `said_instead` has the others.

        What the run's price is of matters only where that is taken.
        """
        ours = {field.name: getattr(self.numbers, field.name) for field in fields(said)}
        given = {field.name: getattr(said, field.name) for field in fields(said)}
        found = {name: value for name, value in ours.items() if value is not None and given[name] is None}
        pairs = {name: (given[name], ours[name]) for name in given if None not in (given[name], ours[name])}
        other = {name: both for name, both in pairs.items() if not math.isclose(*both)}
        unpaid = self.seen.unpaid if "usd_per_hour" in found else None
        seen = replace(self.seen, taken=tuple(found), said_instead=other, unpaid=unpaid)
        return replace(said, **found), seen


def measured_run(run: str, arm: str, stage: str | None, address: str) -> Measured:
    """A stored run by the level that counts. Raises UsageError where it has none, with the reason."""
    from benchgate.gate.summary.metric_rows import metric_rows
    from benchgate.model.deployment import Arm
    from benchgate.store.repository import Store
    from benchgate.suite.schema import Suite

    if arm not in [one.value for one in Arm]:
        raise UsageError(f"--arm is {arm!r}; expected {' or '.join(one.value for one in Arm)}")
    role = Arm(arm)
    with Store.open(address, create=False) as opened:
        stored = opened.run(opened.resolve(run))
        judged = [one.document for one in opened.verdicts(stored.id) if one.of_the_run_itself]
        verdict = judged[-1] if judged else None
        if (why := _unfit(stored, verdict)) is not None or verdict is None:
            judged_so = verdict is not None and not stored.calibrates
            next_step = f"; `benchgate report {stored.id}` says why: mend that and measure again" if judged_so else ""
            raise UsageError(f"run {stored.id} {why}, so nothing is sized by it{next_step}")
        if role not in stored.arms:
            raise UsageError(f"run {stored.id} has no {role.value}")
        kept = opened.metrics(stored.id)
        evidence = None if opened.removal(stored.id) is not None else opened.evidence(stored.id)
    made = kept if evidence is None else metric_rows(evidence)
    try:
        seen = _seen(made, kept, Suite.from_stored(stored.suite), role, stage, evidence)
    except UsageError as error:
        raise UsageError(f"run {stored.id}: {error}") from None
    deployment = stored.arms[role]
    seen = replace(
        seen,
        run=_named(stored, role, verdict),
        accelerators=deployment.accelerators,
        unpaid=_unpaid(deployment, role),
    )
    return Measured(seen, _numbers(deployment, seen.choice.row, seen.starts))


def _seen(
    rows: Sequence[MetricRow],
    kept: Sequence[MetricRow],
    suite: Suite,
    role: Arm,
    stage: str | None,
    evidence: Evidence | None,
) -> RunSeen:
    """By `rows`; `kept` are those that the store has of it, which are held against them where both are known."""
    from benchgate.gate.checks.capacity import unused_search_note
    from benchgate.gate.summary.metric_rows import mismatches
    from benchgate.report.comparability import client_care, widened_line
    from benchgate.report.sizing import RunSeen
    from benchgate.sizing.operating_point import (
        choose_operating_point,
        known_levels,
        levels_of,
        mean_residence_s,
        queue_trends,
    )
    from benchgate.sizing.signals import cache_use, cold_starts, scaling_signals

    stays_s = {} if evidence is None else mean_residence_s(evidence, role)
    watched = {} if evidence is None else queue_trends(evidence, suite, role)
    piling_up = [stage for stage, seen in watched.items() if seen.piles_up]
    levels = levels_of(rows, suite, role, stays_s, piling_up)
    choice = levels if isinstance(levels, str) else choose_operating_point(levels, role, stage)
    searched = None if evidence is None else unused_search_note(evidence, suite, role)
    if isinstance(choice, str) or isinstance(levels, str):
        raise UsageError(str(choice) if searched is None else f"{choice}. {searched}")
    if evidence is None:
        care = tuple(filter(None, [widened_line(suite)]))
        return RunSeen(choice, cache_use="the run's raw records were removed", from_records=False, care=care)
    return RunSeen(
        choice,
        signals=scaling_signals(evidence, known_levels(levels), choice.row, role),
        starts=cold_starts(evidence, role),
        cache_use=cache_use(evidence, choice.row.stage, role),
        care=client_care(suite, evidence),
        unlike=len(mismatches(kept, rows)),
        searched=searched,
        watched=watched.get(choice.row.stage),
    )


def _named(run: Run, role: Arm, verdict: Mapping[str, Any]) -> NamedRun:
    from benchgate.report.sizing import NamedRun

    return NamedRun(
        id=run.id,
        label=run.label,
        suite=run.suite_name,
        day=run.day.isoformat(),
        deployment=run.arms[role].name,
        arm=role.value,
        outcome=str(verdict["outcome"]),
    )


def _numbers(deployment: Deployment, row: LoadLevel, starts: ColdStarts | None) -> Numbers:
    """The worst start is planned with: an autoscaler that counts on the usual one is late half of the time."""
    price = deployment.price_usd_per_hour
    return Numbers(
        usd_per_hour=None if price is None else price * deployment.accelerators,
        overhead_ratio=deployment.overhead_ratio,
        residence_s=row.e2e_mean_s,
        tokens_per_request=row.tokens_per_request,
        cold_start_s=None if starts is None else starts.worst_s,
        places=row.in_flight,
    )


def _unpaid(deployment: Deployment, role: Arm) -> str | None:
    from benchgate.gate.evidence.costs import price_mismatch

    said = price_mismatch(deployment)
    return None if said is None else f"the {role.value} {said}"


def _unfit(run: Run, verdict: Mapping[str, Any] | None) -> str | None:
    """Why nothing may be sized by a run: only what a verdict was reached on, with a load that no guard objects to."""
    from benchgate.sizing.candidates import OF_LOAD, guard_objection, ineligible_because

    if verdict is not None and (doubt := guard_objection(verdict, OF_LOAD)) is not None:
        return f"was measured so that its load says nothing: {doubt}"
    return ineligible_because(run, verdict)
