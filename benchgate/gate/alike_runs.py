"""Runs that are set side by side: whether they can be, and what sets them apart beside their candidates."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from typing import Any

from benchgate.errors import EvidenceError
from benchgate.gate.accelerators_paid import NOT_OF_WHAT_RAN, not_of_what_ran
from benchgate.gate.places import places
from benchgate.gate.priced_between import of_no_one_list
from benchgate.gate.priced_level import PricedLevel, priced_level
from benchgate.model.deployment import Arm, Deployment, sha256_of
from benchgate.model.run import MetricRow, QualityObservation, Run
from benchgate.model.served import hardware_told
from benchgate.model.verdict import Outcome
from benchgate.stats.recovered import Figure, weighted_sum
from benchgate.suite.schema import Suite
from benchgate.units import show_percent, show_usd

_MACHINE = ("cpu", "machine", "cpus", "os")  # of a run's environment: what the load came from
_NAMED = ("candidate", "candidates")  # in a suite, what differs from candidate to candidate


@dataclass(frozen=True, slots=True)
class Newer:
    """A newer whole run of the same candidate, by what it is called, and what its own verdict says (None: nothing)."""

    short: str
    outcome: Outcome | None

    @property
    def told(self) -> str:
        """`nightly-7, which is BLOCK`."""
        return f"{self.short}, which {'has no verdict' if self.outcome is None else f'is {self.outcome}'}"


@dataclass(frozen=True, slots=True)
class WaivedCheck:
    """A required check that a waiver lets through, what it is without that, and the last day on which it holds."""

    check: str
    outcome: str
    expires: date


@dataclass(frozen=True, slots=True, eq=False)
class StoredRun:
    """What the store has of a run: its numbers, its own latest verdict, and its evals or why they are not there.

    `policy` is the suite by whose gate the verdict was given instead of the run's own; `newer` the candidate's newest
    run, where that is another one; `unchecked` says why the numbers are those that are stored, and nothing can check
    them; `withdrawn` why its promotion was taken back.
    """

    run: Run
    rows: Sequence[MetricRow]
    verdict: Mapping[str, Any] | None
    evals: Sequence[QualityObservation] | str
    policy: Suite | None = None
    newer: Newer | None = None
    unchecked: str | None = None
    withdrawn: str | None = None

    @property
    def outcome(self) -> Outcome | None:
        """What its own verdict says; None without one."""
        return None if self.verdict is None else Outcome(str(self.verdict["outcome"]))

    @property
    def short(self) -> str:
        """Its label, or the beginning of its id by which it can be named."""
        return self.run.label or self.run.id[:13]

    @property
    def judged_by(self) -> str:
        """Identity of all that its verdict holds a candidate to, beside the SLO: equal where two are judged alike."""
        own = Suite.from_stored(self.run.suite)
        gate = own.gate if self.policy is None else self.policy.gate
        budget = (None if self.policy is None else self.policy.error_budget) or own.error_budget
        judged = own.model_copy(update={"gate": gate, "error_budget": budget}).to_stored()
        return sha256_of([judged["gate"], judged.get("error_budget")])

    @property
    def waived(self) -> tuple[WaivedCheck, ...]:
        """What its verdict lets through by waivers alone."""
        checks = () if self.verdict is None else self.verdict["checks"]
        return tuple(
            WaivedCheck(str(one["id"]), str(one["waiver"]["outcome"]), date.fromisoformat(one["waiver"]["expires"]))
            for one in checks
            if one["required"] and "waiver" in one
        )

    def called(self, arm: Arm) -> str:
        """What the suite calls its deployment."""
        found = self.run.arms.get(arm)
        return arm.value if found is None else found.name

    def level(self, arm: Arm, *, in_use: bool) -> PricedLevel | str:
        """The level that counts, and what tokens cost there; else why there is none, or why its price is no cost."""
        deployment = self.run.arms.get(arm)
        if deployment is not None and (why := not_of_what_ran(deployment)) is not None:
            return f"{NOT_OF_WHAT_RAN}: it {why}"
        return priced_level(self.rows, Suite.from_stored(self.run.suite), arm, in_use=in_use)


def unreadable(run: Run) -> str | None:
    """Why the suite of a run says nothing to this version; None where it can be read."""
    try:
        Suite.from_stored(run.suite)
    except EvidenceError as error:
        return str(error)
    return None


def incomparable(one: Run, other: Run) -> str | None:
    """Why two runs, whose suites can be read, have no table in common; None where they do."""
    if one.measurement_sha256 != other.measurement_sha256:
        return "their plans differ (load, tasks, prompts or seed)"
    mine, theirs = (
        [(place.name, place.slo, place.target_ratio) for place in places(Suite.from_stored(run.suite))]
        for run in (one, other)
    )
    return None if mine == theirs else "their SLOs differ, and with them which tokens are good"


def other_prices(one: StoredRun, first: StoredRun) -> str | None:
    """Why the dollars of two candidates do not stand side by side; None where they are of one price list."""
    why = of_no_one_list(first.run, one.run)
    if why is None:
        return None
    return f"{why}; let one suite say what it and that of {first.short} cost, and measure both by it"


def other_baseline(
    one: StoredRun, first: StoredRun, qualities: tuple[Figure | str, Figure | str], *, in_use: bool
) -> str | None:
    """Why the numbers of a run do not stand beside those of `first`: the baseline of both was not one and the same.

    It is what both have measured, so where it differs, more differs than the candidates. `qualities` are how well it
    answered in each. None where nothing of that is seen.
    """
    mine, theirs = (run.run.arms.get(Arm.BASELINE) for run in (one, first))
    if mine is None or theirs is None:
        return "one of the two has no baseline"
    if mine.release != theirs.release:
        return f"its baseline is not served as that of {first.short}"
    if hardware_told(mine, one.run.environment) != hardware_told(theirs, first.run.environment):
        return f"its baseline runs on other hardware than that of {first.short}"
    if _paid(mine, in_use=in_use) != _paid(theirs, in_use=in_use):
        return f"its baseline is paid by another price than that of {first.short}"
    ours, other = qualities
    if isinstance(ours, Figure) and isinstance(other, Figure) and _differ(ours, other):
        shares = f"{show_percent(ours.value)} of its answers are right there, and {show_percent(other.value)}"
        return f"its baseline does not answer as that of {first.short}: {shares} here"
    return None


def _paid(one: Deployment, *, in_use: bool) -> tuple[object, ...]:
    """At full use the terms are in the price itself, as far as they count."""
    return one.price_usd_per_hour, one.accelerators, one.token_prices, one.in_use_factor if in_use else None


def _differ(one: Figure, other: Figure) -> bool:
    """Whether two are shown not to be equal, at the level of their limits, taken for independent."""
    limits = weighted_sum([(1.0, one), (-1.0, other)]).limits
    return limits is not None and (limits.lower > 0 or limits.upper < 0)


def told_apart(stored: Sequence[StoredRun], alike: Sequence[StoredRun], *, in_use: bool) -> Iterator[str]:
    """What else sets runs apart beside their candidates, in sentences without their ends.

    `alike` are those of them whose numbers count beside each other.
    """
    newest = stored[0]
    if others := [one for one in stored if _suite_of(one) != _suite_of(newest)]:
        yield f"the suite of {listed(others)} is not that of {newest.short}: gate, prices or deployments may differ"
    if others := [one for one in stored if _machine(one) != _machine(newest)]:
        yield f"{listed(others)} was measured from another machine than {newest.short}"
    days = sorted({one.run.started_at[:10] for one in stored})
    if len(days) > 1:
        yield f"measured on {len(days)} days, {days[0]} to {days[-1]}: what differs between days is in no interval"
    if alike:
        yield from _baselines(alike[0], alike[1:], in_use=in_use)


def _baselines(first: StoredRun, others: Sequence[StoredRun], *, in_use: bool) -> Iterator[str]:
    """What it costs tells how alike the hours were, in which it was measured."""
    level = first.level(Arm.BASELINE, in_use=in_use)
    for one in others:
        found = one.level(Arm.BASELINE, in_use=in_use)
        if not isinstance(level, str) and not isinstance(found, str) and _differ(level.usd, found.usd):
            yield (
                f"the baseline itself costs {show_usd(found.usd.value)} in {one.short} and"
                f" {show_usd(level.usd.value)} in {first.short}: dollars of these two do not compare by themselves"
            )


def _suite_of(one: StoredRun) -> str:
    return sha256_of({key: value for key, value in one.run.suite.items() if key not in _NAMED})


def _machine(one: StoredRun) -> tuple[str, ...]:
    return tuple(str(one.run.environment.get(key)) for key in _MACHINE)


def listed(some: Sequence[StoredRun]) -> str:
    """Runs by what they are called."""
    return ", ".join(one.short for one in some)
