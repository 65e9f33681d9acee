"""What `benchgate capacity` takes from a stored run: the best level of an arm, and what else the run saw of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any

from benchgate.errors import UsageError

if TYPE_CHECKING:
    from benchgate.gate.best_row import BestRow
    from benchgate.gate.cold_starts import ColdStarts
    from benchgate.model.deployment import Arm, Deployment
    from benchgate.model.run import Evidence, MetricRow, Run
    from benchgate.report.sizing_run import RunSeen
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
        """What was said, with the run's numbers in its gaps; `taken` names those."""
        gaps = [field.name for field in fields(said) if getattr(said, field.name) is None]
        found = {name: value for name in gaps if (value := getattr(self.numbers, name)) is not None}
        return replace(said, **found), replace(self.seen, taken=tuple(found))


def measured_run(run: str, arm: str, address: str) -> Measured:
    """A stored run by its best row. Raises UsageError where it has none, with the reason."""
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
        if (why := _unfit(stored, verdict)) is not None:
            raise UsageError(f"run {stored.id} {why}, so nothing is sized by it")
        if role not in stored.arms:
            raise UsageError(f"run {stored.id} has no {role.value}")
        rows = opened.metrics(stored.id)
        evidence = None if opened.removal(stored.id) is not None else opened.evidence(stored.id)
    try:
        seen = _seen(rows, Suite.from_stored(stored.suite), role, evidence)
    except UsageError as error:
        raise UsageError(f"run {stored.id}: {error}") from None
    outcome = "" if verdict is None else str(verdict["outcome"])
    return Measured(replace(seen, outcome=outcome), _numbers(stored.arms[role], seen.row, seen.starts))


def _seen(rows: list[MetricRow], suite: Suite, role: Arm, evidence: Evidence | None) -> RunSeen:
    from benchgate.gate.best_row import best_row, levels_of
    from benchgate.gate.cache_use import cache_use
    from benchgate.gate.cold_starts import cold_starts
    from benchgate.gate.scaling_signal import scaling_signals
    from benchgate.report.sizing_run import RunSeen

    row, levels = best_row(rows, suite, role), levels_of(rows, suite, role)
    if isinstance(row, str) or isinstance(levels, str):
        raise UsageError(str(row))
    if evidence is None:
        return RunSeen(row, cache_use="the run's raw records were removed")
    return RunSeen(
        row,
        signals=scaling_signals(evidence, levels, role),
        starts=cold_starts(evidence, role),
        cache_use=cache_use(evidence, row.stage, role),
    )


def _numbers(deployment: Deployment, row: BestRow, starts: ColdStarts | None) -> Numbers:
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


def _unfit(run: Run, verdict: Mapping[str, Any] | None) -> str | None:
    """Why nothing may be sized by a run: only what a verdict was reached on, with a load that no guard objects to."""
    from benchgate.gate.unfit import OF_LOAD, objection, unfit

    if verdict is not None and (doubt := objection(verdict, OF_LOAD)) is not None:
        return f"was measured so that its load says nothing: {doubt}"
    return unfit(run, verdict)
