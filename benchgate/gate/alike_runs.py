"""Runs that are set side by side: whether they can be, and what sets them apart beside their candidates."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from benchgate.gate.places import places
from benchgate.gate.priced_level import PricedLevel, priced_level
from benchgate.model.deployment import Arm, sha256_of
from benchgate.model.run import MetricRow, QualityObservation, Run
from benchgate.model.verdict import Outcome
from benchgate.stats.recovered import Figure
from benchgate.suite.schema import Suite

_MACHINE = ("cpu", "machine", "cpus", "os")  # of a run's environment: what the load came from
_NAMED = ("candidate", "candidates")  # in a suite, what differs from candidate to candidate


@dataclass(frozen=True, slots=True, eq=False)
class StoredRun:
    """What the store has of a run: its numbers, its own latest verdict, and its evals or why they are not there."""

    run: Run
    rows: Sequence[MetricRow]
    verdict: Mapping[str, Any] | None
    evals: Sequence[QualityObservation] | str

    @property
    def outcome(self) -> Outcome | None:
        """What its own verdict says; None without one."""
        return None if self.verdict is None else Outcome(str(self.verdict["outcome"]))

    @property
    def short(self) -> str:
        """Its label, or the beginning of its id by which it can be named."""
        return self.run.label or self.run.id[:13]

    def called(self, arm: Arm) -> str:
        """What the suite calls its deployment."""
        found = self.run.arms.get(arm)
        return arm.value if found is None else found.name

    def level(self, arm: Arm, *, in_use: bool) -> PricedLevel | str:
        """The level that counts, and what tokens cost there; else why there is none."""
        return priced_level(self.rows, Suite.from_stored(self.run.suite), arm, in_use=in_use)


def incomparable(one: Run, other: Run) -> str | None:
    """Why two runs have no table in common; None where they do."""
    if one.measurement_sha256 != other.measurement_sha256:
        return "their plans differ (load, tasks, prompts or seed)"
    mine, theirs = (
        [(place.name, place.slo, place.target_ratio) for place in places(Suite.from_stored(run.suite))]
        for run in (one, other)
    )
    return None if mine == theirs else "their SLOs differ, and with them which tokens are good"


def set_apart(stored: Sequence[StoredRun], fit: Sequence[StoredRun], *, in_use: bool) -> Iterator[str]:
    """In sentences without their ends. `fit` are those of them that may be counted on."""
    newest = stored[0]
    if others := [one for one in stored if _suite_of(one) != _suite_of(newest)]:
        yield f"the suite of {_listed(others)} is not that of {newest.short}: gate, prices or deployments may differ"
    if others := [one for one in stored if _machine(one) != _machine(newest)]:
        yield f"{_listed(others)} was measured from another machine than {newest.short}"
    days = sorted({one.run.started_at[:10] for one in stored})
    if len(days) > 1:
        yield f"measured on {len(days)} days, {days[0]} to {days[-1]}: what differs between days is in no interval"
    if fit:
        yield from _baselines(fit[0], fit[1:], in_use=in_use)


def _baselines(first: StoredRun, others: Sequence[StoredRun], *, in_use: bool) -> Iterator[str]:
    """The one deployment that every run has measured tells whether they are alike."""
    if changed := [one for one in others if _release(one) != _release(first)]:
        yield f"the baseline of {_listed(changed)} is not served as that of {first.short}"
    level = first.level(Arm.BASELINE, in_use=in_use)
    for one in others:
        found = one.level(Arm.BASELINE, in_use=in_use)
        if not isinstance(level, str) and not isinstance(found, str) and _apart(level.usd, found.usd):
            yield (
                f"the baseline itself does not cost the same in {one.short} as in {first.short}: more differs between"
                " these runs than their candidates"
            )


def _apart(one: Figure, other: Figure) -> bool:
    mine, theirs = one.limits, other.limits
    return mine is not None and theirs is not None and (mine.upper < theirs.lower or theirs.upper < mine.lower)


def _release(one: StoredRun) -> str | None:
    found = one.run.arms.get(Arm.BASELINE)
    return None if found is None else found.release


def _suite_of(one: StoredRun) -> str:
    return sha256_of({key: value for key, value in one.run.suite.items() if key not in _NAMED})


def _machine(one: StoredRun) -> tuple[str, ...]:
    return tuple(str(one.run.environment.get(key)) for key in _MACHINE)


def _listed(some: Sequence[StoredRun]) -> str:
    return ", ".join(one.short for one in some)
