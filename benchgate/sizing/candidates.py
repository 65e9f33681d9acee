"""Table of candidates of stored runs: accuracy against cost, and the cheapest one that its verdict lets pass.

One row is one deployment as one run measured it. Where a number is unknown or does not count, a text gives the reason.
Nothing is decided here; each candidate's own verdict is only repeated.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import date
from typing import Any

import numpy as np

from benchgate.errors import EvidenceError, UsageError
from benchgate.gate.evidence.costs import PRICE_MISMATCH, price_list_mismatch, price_mismatch
from benchgate.gate.evidence.intervals import ALPHA
from benchgate.gate.evidence.items import cluster_labels_of_units
from benchgate.gate.guards.base import ALL_LOAD_KINDS
from benchgate.model.deployment import Arm, Deployment, hardware_label, sha256_of
from benchgate.model.run import MAX_PROMOTION_AGE_S, MetricRow, QualityObservation, Run, RunStatus, too_old_because
from benchgate.model.verdict import Outcome
from benchgate.sizing.frontier import (
    CheapestOption,
    ContestedCheapest,
    FrontierPosition,
    Option,
    cheapest_option,
    frontier_positions,
    saving,
)
from benchgate.sizing.operating_point import PricedLevel, cost_name, priced_level
from benchgate.stats.clusters import MIN_CLUSTERS, ClusterMean, cluster_mean, join_tasks, mean_share_limits, pool_means
from benchgate.stats.distributions import Limits
from benchgate.stats.meta import EstimateWithLimits, product, ratio, weighted_sum
from benchgate.suite.quality import stage_of_task
from benchgate.suite.schema import Suite, traffic_classes
from benchgate.units import show_percent, show_usd

_MACHINE = ("cpu", "machine", "cpus", "os")  # keys of a run's environment: the load generator's machine
_CANDIDATE_KEYS = ("candidate", "candidates")  # keys of a suite that may differ between candidates
_FEWEST_ITEMS = 30  # for a mean by Student's t
_MILLIONTH = 1e-6
OF_LOAD = ALL_LOAD_KINDS
OF_QUALITY = frozenset({"quality"})
AnsweredTasks = Mapping[str, int]  # observed tasks with right or wrong items, and their numbers of items


@dataclass(frozen=True, slots=True)
class NewerRun:
    """Newer complete run of the same candidate, and the outcome of its own verdict (None without one)."""

    short: str
    outcome: Outcome | None

    @property
    def description(self) -> str:
        """Format it: `nightly-7, which is BLOCK`."""
        return f"{self.short}, which {'has no verdict' if self.outcome is None else f'is {self.outcome}'}"


@dataclass(frozen=True, slots=True)
class WaivedCheck:
    """Waived required check, its outcome without the waiver, and the waiver's last valid day."""

    check: str
    outcome: str
    expires: date


@dataclass(frozen=True, slots=True, eq=False)
class StoredRun:
    """Stored run: its numbers, its own latest verdict, and its evals or the reason for their absence.

    `policy` is the suite whose gate replaced the run's own for the verdict. `newer` is the candidate's newest run if it
    is another one. `unchecked` says why the stored numbers cannot be recomputed, `withdrawn` why its promotion was
    withdrawn.
    """

    run: Run
    rows: Sequence[MetricRow]
    verdict: Mapping[str, Any] | None
    evals: Sequence[QualityObservation] | str
    policy: Suite | None = None
    newer: NewerRun | None = None
    unchecked: str | None = None
    withdrawn: str | None = None

    @property
    def outcome(self) -> Outcome | None:
        """Return the outcome of its own verdict; None without one."""
        return None if self.verdict is None else Outcome(str(self.verdict["outcome"]))

    @property
    def short(self) -> str:
        """Return its label, or its id prefix."""
        return self.run.label or self.run.id[:13]

    @property
    def judged_by(self) -> str:
        """Return the identity of the policy of its verdict, without SLOs: equal for runs judged alike."""
        own = Suite.from_stored(self.run.suite)
        gate = own.gate if self.policy is None else self.policy.gate
        budget = (None if self.policy is None else self.policy.error_budget) or own.error_budget
        judged = own.model_copy(update={"gate": gate, "error_budget": budget}).to_stored()
        return sha256_of([judged["gate"], judged.get("error_budget")])

    @property
    def waived(self) -> tuple[WaivedCheck, ...]:
        """Return the checks that pass by waivers alone."""
        checks = () if self.verdict is None else self.verdict["checks"]
        return tuple(
            WaivedCheck(str(one["id"]), str(one["waiver"]["outcome"]), date.fromisoformat(one["waiver"]["expires"]))
            for one in checks
            if one["required"] and "waiver" in one
        )

    def called(self, arm: Arm) -> str:
        """Return the suite's name of the deployment on this side."""
        found = self.run.arms.get(arm)
        return arm.value if found is None else found.name

    def level(self, arm: Arm, *, in_use: bool) -> PricedLevel | str:
        """Return the operating point with its token cost, or the reason for their absence."""
        deployment = self.run.arms.get(arm)
        if deployment is not None and (why := price_mismatch(deployment)) is not None:
            return f"{PRICE_MISMATCH}: it {why}"
        return priced_level(self.rows, Suite.from_stored(self.run.suite), arm, in_use=in_use)


@dataclass(frozen=True, slots=True, eq=False)
class CandidateRow:
    """Row of the table of candidates.

    `outcome` is that of the run; None for the baseline and without a verdict. `fault` says why the row does not count
    at all, `apart` why it is not comparable with the others, `held_back` why it does not pass in spite of its verdict.
    `quality` is a share, `usd` dollars per million tokens at `stage`, `share` the ratio of `usd` to the baseline of the
    same run, `usd_per_correct` dollars for the output tokens that the evals used per right answer, at that stage's
    price of output tokens. `judged_by` is the identity of its policy. `unchecked` says why the stored numbers cannot be
    recomputed.
    """

    name: str
    run: Run
    short: str
    arm: Arm
    outcome: Outcome | None
    fault: str | None
    stage: str | None
    quality: EstimateWithLimits | str
    usd: EstimateWithLimits | str
    usd_per_correct: EstimateWithLimits | str
    share: EstimateWithLimits | str = "it was not looked at"
    apart: str | None = None
    held_back: str | None = None
    waived: tuple[WaivedCheck, ...] = ()
    newer: NewerRun | None = None
    judged_by: str | None = None
    stand: FrontierPosition | None = None
    unchecked: str | None = None

    @property
    def passes(self) -> bool:
        """Return True if its verdict allows promotion and nothing has changed since."""
        fit = self.fault is None and self.held_back is None
        return fit and self.outcome is not None and self.outcome.promotes

    @property
    def option(self) -> Option:
        """Return the values that are compared with others."""
        if self.apart is not None:
            return Option(self.name, None, None, None, passes=False)
        quality, usd, share = (
            one if isinstance(one, EstimateWithLimits) else None for one in (self.quality, self.usd, self.share)
        )
        return Option(self.name, quality, usd, share, self.passes)


def candidate_row(
    one: StoredRun, name: str, baseline: CandidateRow, answered: AnsweredTasks, *, in_use: bool, as_of: date | None
) -> CandidateRow:
    """Build the row of a run's candidate under this name. `as_of` is the day for waivers; None if none counts."""
    found = _measured(one, Arm.CANDIDATE, name, answered, in_use=in_use)
    share = found.usd
    if isinstance(found.usd, EstimateWithLimits):
        if isinstance(baseline.usd, str):
            share = f"the baseline beside it has no cost: {baseline.usd}"
        else:  # measured in the same blocks: limits that assume independence are not too narrow
            share = ratio(found.usd, baseline.usd) or "the baseline beside it costs nothing"
    return replace(
        found,
        outcome=one.outcome,
        share=share,
        held_back=_held_back(one, as_of),
        waived=one.waived,
        newer=one.newer,
        judged_by=one.judged_by,
        unchecked=one.unchecked,
    )


def _measured(one: StoredRun, arm: Arm, name: str, answered: AnsweredTasks, *, in_use: bool) -> CandidateRow:
    """Build a row without the numbers that a guard objects to, and without any if the run is unfit."""
    fault = ineligible_because(one.run, one.verdict)
    if fault is not None or one.verdict is None:
        why = f"the run {fault}"
        return CandidateRow(name, one.run, one.short, arm, None, why, None, why, why, why)
    suite = Suite.from_stored(one.run.suite)
    doubt = guard_objection(one.verdict, OF_QUALITY)
    quality = doubt or own_accuracy(one.rows, suite, arm, answered, one.evals)
    level = guard_objection(one.verdict, OF_LOAD) or one.level(arm, in_use=in_use)
    if isinstance(level, str):
        return CandidateRow(name, one.run, one.short, arm, None, None, None, quality, level, level)
    correct = doubt or _per_correct(one, suite, arm, answered, level.usd_output)
    return CandidateRow(name, one.run, one.short, arm, None, None, level.stage, quality, level.usd, correct)


def _per_correct(
    one: StoredRun, suite: Suite, arm: Arm, answered: AnsweredTasks, usd_per_million: EstimateWithLimits
) -> EstimateWithLimits | str:
    """Return dollars per right answer; token counts and price come from different requests, so errors are independent.

    Both use the server's own count, so its scale cancels. If the count under load does not match the transferred text,
    a guard has already removed the cost.
    """
    if isinstance(one.evals, str):
        return one.evals
    tokens = tokens_per_correct(one.evals, suite, arm, answered)
    if isinstance(tokens, str):
        return tokens
    found = product(tokens, usd_per_million)
    return "its tokens cost nothing" if found is None else found.times(_MILLIONTH)


def _held_back(one: StoredRun, as_of: date | None) -> str | None:
    if one.outcome is None or not one.outcome.promotes:
        return None
    if one.run.scope is not None:
        return f"only a part of its suite was measured ({one.run.scope})"
    if one.withdrawn is not None:
        return f"its promotion was withdrawn ({one.withdrawn})"
    ended = [waived for waived in one.waived if as_of is None or waived.expires < as_of]
    if ended:
        first = min(ended, key=lambda waived: waived.expires)
        why = "waivers are not counted here" if as_of is None else f"its waiver held until {first.expires}"
        return f"its check {first.check} is {first.outcome}: {why}"
    newer = one.newer
    if newer is not None and (newer.outcome is None or not newer.outcome.promotes):
        return f"the same candidate was measured again in {newer.description}"
    return None


def ineligible_because(run: Run, verdict: Mapping[str, Any] | None) -> str | None:
    """Return why a run does not count, as text to follow its name; None if it does. `verdict` is its own latest one."""
    if run.status is not RunStatus.COMPLETE:
        return "is still running" if run.status is RunStatus.RUNNING else "was cut short"
    if run.calibrates:
        return "is a calibration: both of its arms are one deployment"
    if run.measured_by is not None:
        return f"has only the numbers of a file of {run.measured_by}'s, which were never judged"
    if verdict is None:
        return "has no verdict yet (`benchgate gate` gives it one)"
    return "is INVALID: its evidence is not usable" if verdict["outcome"] == "INVALID" else None


def guard_objection(verdict: Mapping[str, Any], kinds: frozenset[str]) -> str | None:
    """Return the reason of a tripped guard that invalidates numbers of these kinds; None without one."""
    for guard in verdict["guards"]:
        if guard["tripped"] and not kinds.isdisjoint(guard.get("spoils", kinds)):
            return str(guard["reason"])
    return None


def unreadable_because(run: Run) -> str | None:
    """Return why this version cannot read the suite of a run; None if it can."""
    try:
        Suite.from_stored(run.suite)
    except EvidenceError as error:
        return str(error)
    return None


def incomparable_because(one: Run, other: Run) -> str | None:
    """Return why two runs with readable suites are not comparable; None if they are."""
    if one.measurement_sha256 != other.measurement_sha256:
        return "their plans differ (load, tasks, prompts or seed)"
    slos, other_slos = (
        [(place.name, place.slo, place.target_ratio) for place in traffic_classes(Suite.from_stored(run.suite))]
        for run in (one, other)
    )
    return None if slos == other_slos else "their SLOs differ, and with them which tokens are good"


def baseline_difference(
    one: StoredRun,
    first: StoredRun,
    qualities: tuple[EstimateWithLimits | str, EstimateWithLimits | str],
    *,
    in_use: bool,
) -> str | None:
    """Return why a run is not comparable with `first` because of different baselines; None if no difference shows.

    Both runs measured the same baseline. If it differs, more than the candidates differs. `qualities` is its accuracy
    in each run.
    """
    base, first_base = (run.run.arms.get(Arm.BASELINE) for run in (one, first))
    if base is None or first_base is None:
        return "one of the two has no baseline"
    if base.release != first_base.release:
        return f"its baseline is not served as that of {first.short}"
    if hardware_label(base, one.run.environment) != hardware_label(first_base, first.run.environment):
        return f"its baseline runs on other hardware than that of {first.short}"
    if _price_of(base, in_use=in_use) != _price_of(first_base, in_use=in_use):
        return f"its baseline is paid by another price than that of {first.short}"
    own, other = qualities
    if isinstance(own, EstimateWithLimits) and isinstance(other, EstimateWithLimits) and _differ(own, other):
        shares = f"{show_percent(own.value)} of its answers are right there, and {show_percent(other.value)}"
        return f"its baseline does not answer as that of {first.short}: {shares} here"
    return None


def _price_of(one: Deployment, *, in_use: bool) -> tuple[object, ...]:
    return one.price_usd_per_hour, one.accelerators, one.token_prices, one.in_use_factor if in_use else None


def _differ(one: EstimateWithLimits, other: EstimateWithLimits) -> bool:
    """Return True if two independent estimates differ at the level of their limits."""
    limits = weighted_sum([(1.0, one), (-1.0, other)]).limits
    return limits is not None and (limits.lower > 0 or limits.upper < 0)


def _notes(
    stored: Sequence[StoredRun],
    alike: Sequence[StoredRun],
    passing: Sequence[CandidateRow],
    *,
    in_use: bool,
    as_of: date | None,
) -> Iterator[str]:
    """Yield notes on other differences between runs than their candidates, and on passing candidates of long ago.

    `alike` are the runs that are comparable. A different cost of the baseline is a sign of different conditions.
    """
    newest = stored[0]
    suites = [
        sha256_of({key: value for key, value in one.run.suite.items() if key not in _CANDIDATE_KEYS}) for one in stored
    ]
    if others := [one for one, suite in zip(stored, suites, strict=True) if suite != suites[0]]:
        yield f"the suite of {list_runs(others)} is not that of {newest.short}: gate, prices or deployments may differ"
    machines = [[str(one.run.environment.get(key)) for key in _MACHINE] for one in stored]
    if others := [one for one, machine in zip(stored, machines, strict=True) if machine != machines[0]]:
        yield f"{list_runs(others)} was measured from another machine than {newest.short}"
    days = sorted({one.run.started_at[:10] for one in stored})
    if len(days) > 1:
        yield f"measured on {len(days)} days, {days[0]} to {days[-1]}: what differs between days is in no interval"
    levels = [(one.short, one.level(Arm.BASELINE, in_use=in_use)) for one in alike]
    for short, found in levels[1:]:
        first, level = levels[0]
        if not isinstance(level, str) and not isinstance(found, str) and _differ(level.usd, found.usd):
            yield (
                f"the baseline itself costs {show_usd(found.usd.value)} in {short} and"
                f" {show_usd(level.usd.value)} in {first}: dollars of these two do not compare by themselves"
            )
    longest_s = MAX_PROMOTION_AGE_S + _DAY_S  # by the end of that day
    old = [r.name for r in passing if as_of and too_old_because(r.run.finished_at, f"{as_of}T23:59:59Z", longest_s)]
    if old:
        most = round(MAX_PROMOTION_AGE_S / _DAY_S)
        yield f"{', '.join(old)} ended more than {most} days ago, and `benchgate promote` takes none that old by itself"


def list_runs(some: Sequence[StoredRun]) -> str:
    """Format the names of runs."""
    return ", ".join(one.short for one in some)


def answered_tasks(rows: Sequence[MetricRow], arm: Arm) -> AnsweredTasks:
    """Return the evals that one side answered completely."""
    own = [row for row in rows if row.arm is arm and row.name == "accuracy"]
    return {row.task: row.n for row in own if row.task is not None and stage_of_task(row.task) is None}


def own_accuracy(
    rows: Sequence[MetricRow],
    suite: Suite,
    arm: Arm,
    answered: AnsweredTasks,
    observed: Sequence[QualityObservation] | str,
) -> EstimateWithLimits | str:
    """Return the mean accuracy over the suite's tasks with equal weight, or the reason for its absence.

    It is that of an `accuracy` check without a task: a group of lm-eval is one task of all its items. Tasks with
    partial scores are not included. `answered` are the tasks that every compared side must have answered completely.
    By the items `observed`, the limits are widened where tasks ask the same documents. Without the items that is not
    known, and the limits hold whatever tasks have in common.
    """
    if suite.quality is None:
        return "the suite has no evals"
    if not answered:
        return "no eval of the suite that is right or wrong was answered whole"
    own = {r.task: r for r in rows if r.arm is arm and r.name == "accuracy" and r.task is not None}
    for task, n in answered.items():
        if task not in own or own[task].n != n:
            return f"task {task} was not answered whole on the {arm.value}"
    scored = {row.task for row in rows if row.arm is arm and row.name == "score"}
    seen = {suite.unit_name(task) for task in (*answered, *scored) if task is not None}
    missing = [name for name in suite.quality.names if name not in seen]
    if missing:
        return f"task {missing[0]} was not answered whole on the {arm.value}"
    units: dict[str, list[MetricRow]] = {}
    for task in answered:
        units.setdefault(suite.unit_name(task), []).append(own[task])
    parts = []
    for of_unit in units.values():
        for row in of_unit:
            limits = None if row.lower is None or row.upper is None else Limits(row.lower, row.upper)
            parts.append((row.n / sum(one.n for one in of_unit) / len(units), EstimateWithLimits(row.value, limits)))
    mean = weighted_sum(parts)
    if len(answered) == 1 or mean.limits is None:
        return mean
    items = observed if isinstance(observed, str) else _items_by_unit(observed, suite, arm, answered)
    if isinstance(items, str):
        sides = [(weight * one.limits.lower, weight * one.limits.upper) for weight, one in parts if one.limits]
        return EstimateWithLimits(mean.value, Limits(sum(low for low, _ in sides), sum(high for _, high in sides)))
    labels = cluster_labels_of_units([[one.items for one in of] for of in items.values()])
    if all(of is None for of in labels):
        return mean
    right = [np.array([float(i.correct is True) for one in of for i in one.items]) for of in items.values()]
    clustered = mean_share_limits(right, labels, ALPHA)
    return EstimateWithLimits(mean.value, None if clustered is None else mean.limits.widened(clustered[0]))


def _items_by_unit(
    observed: Sequence[QualityObservation], suite: Suite, arm: Arm, answered: AnsweredTasks
) -> dict[str, list[QualityObservation]] | str:
    """Return the observed tasks of each task name of the suite, or which one's items are not there."""
    found = {one.task: one for one in observed if one.arm is arm and one.repeat == 0}
    units: dict[str, list[QualityObservation]] = {}
    for task, n in answered.items():
        if task not in found or len(found[task].items) != n:
            return f"the items of task {task} are not there"
        units.setdefault(suite.unit_name(task), []).append(found[task])
    return units


def tokens_per_correct(
    observed: Sequence[QualityObservation], suite: Suite, arm: Arm, answered: AnsweredTasks
) -> EstimateWithLimits | str:
    """Return output tokens of the evals per right answer: mean tokens of an item over accuracy.

    For a ratio R = T/A of two means over the same items, the error is that of the mean of t - R·c (the delta method),
    on the log scale divided by T. Only tokens generated by the evals count.
    """
    units = _items_by_unit(observed, suite, arm, answered)
    if isinstance(units, str):
        return units
    tokens, right = dict[str, list[float]](), dict[str, list[float]]()
    for name, of in units.items():
        items = [item for one in of for item in one.items]
        counts = [float(item.output_tokens) for item in items if item.output_tokens is not None]
        if len(counts) < len(items):
            return f"how many tokens were generated for {name} is not known of every item"
        tokens[name], right[name] = counts, [float(item.correct is True) for item in items]
    if not units:
        return "no eval of the suite that is right or wrong was answered whole"
    spent, share = (sum(sum(v) / len(v) for v in each.values()) / len(units) for each in (tokens, right))
    if spent <= 0 or share <= 0:
        return "nothing was generated" if spent <= 0 else "no answer is right"
    rest = [np.array(tokens[name]) - spent / share * np.array(right[name]) for name in units]
    labels = cluster_labels_of_units([[one.items for one in of] for of in units.values()])
    clustered = [groups is not None for groups in labels]
    means = [cluster_mean(values, groups) for values, groups in zip(rest, labels, strict=True)]
    joined = join_tasks([len(values) for values in rest], labels)
    if joined is not None:
        means, clustered = [joined.mean(rest)], [True]
    limits = _ratio_limits(spent / share, means, clustered, spent)
    return EstimateWithLimits(spent / share, limits)


def _ratio_limits(
    value: float, means: Sequence[ClusterMean | None], clustered: Sequence[bool], spent: float
) -> Limits | None:
    known = [
        mean
        for mean, together in zip(means, clustered, strict=True)
        if mean is not None and mean.clusters >= (MIN_CLUSTERS if together else _FEWEST_ITEMS)
    ]
    if len(known) < len(means):
        return None
    whole = pool_means(known)
    if whole.error == 0:
        return None
    reach = (whole.limits(ALPHA).upper - whole.mean) / spent
    return Limits(value * math.exp(-reach), value * math.exp(reach))


_DAY_S = 86_400.0


@dataclass(frozen=True, slots=True, eq=False)
class CandidateTable:
    """Table of candidates: the baseline first, then the candidates, cheapest first.

    `cost` is the metric of `usd`, `tasks` those of the accuracy. `saving` is the share of the baseline's cost that the
    cheapest passing candidate saves, or why it is unknown. It is None if none is named, and then `why_none` says why.
    `notes` are sentences without a period.
    """

    suite: str
    cost: str
    tasks: tuple[str, ...]
    rows: tuple[CandidateRow, ...]
    cheapest: CheapestOption | None
    saving: EstimateWithLimits | str | None
    why_none: str | None
    notes: tuple[str, ...]

    @property
    def some_apart(self) -> bool:
        """Return True if a candidate is not comparable with the others."""
        return any(row.apart is not None for row in self.rows)


def compare_candidates(
    stored: Sequence[StoredRun], *, in_use: bool = False, as_of: date | None = None
) -> CandidateTable:
    """Compare the candidates of at least one run, newest first. Raises UsageError if they are not comparable.

    `as_of` is the day for waivers; None if none counts.
    """
    newest = stored[0]
    for one in stored[1:]:
        if (why := incomparable_because(one.run, newest.run)) is not None:
            raise UsageError(
                f"runs {one.run.id} and {newest.run.id} cannot stand in one table: {why}; measure both candidates by"
                " the same suite"
            )
    answered = {task: n for one in stored for arm in Arm for task, n in answered_tasks(one.rows, arm).items()}
    bases = {}
    for one in stored:
        name = f"{one.called(Arm.BASELINE)} (baseline)"
        row = _measured(one, Arm.BASELINE, name, answered, in_use=in_use)
        own_share = EstimateWithLimits(1.0, Limits(1.0, 1.0)) if isinstance(row.usd, EstimateWithLimits) else row.usd
        bases[one.run.id] = replace(row, share=own_share, unchecked=one.unchecked)
    fit = [one for one in stored if ineligible_because(one.run, one.verdict) is None]
    first = next((one for one in fit if isinstance(bases[one.run.id].usd, EstimateWithLimits)), fit[0] if fit else None)
    often, found = Counter(one.called(Arm.CANDIDATE) for one in stored), {}
    for one in stored:
        called = one.called(Arm.CANDIDATE)
        name = f"{called} ({one.short})" if often[called] > 1 else called
        base = bases[one.run.id]
        found[one.run.id] = candidate_row(one, name, base, answered, in_use=in_use, as_of=as_of)
    apart = _apart(fit, first, bases, in_use=in_use)
    # Candidates with a cost must share a price list with the first of them.
    priced = [one for one in fit if apart[one.run.id] is None and isinstance(found[one.run.id].usd, EstimateWithLimits)]
    for one in priced[1:]:
        why, short = price_list_mismatch(priced[0].run, one.run), priced[0].short
        mend = f"let one suite say what it and that of {short} cost, and measure both by it"
        apart[one.run.id] = None if why is None else f"{why}; {mend}"
    alike = [one for one in fit if apart[one.run.id] is None]
    candidates = [replace(row, apart=apart.get(at)) for at, row in found.items()]
    rows = candidates if first is None else [bases[first.run.id], *candidates]
    standing = frontier_positions([row.option for row in rows])
    best = _cheapest(candidates, alike, bases)
    share = next((row.share for row in candidates if isinstance(best, CheapestOption) and row.name == best.name), None)
    return CandidateTable(
        suite=newest.run.suite_name,
        cost=cost_name(Suite.from_stored(newest.run.suite), in_use=in_use),
        tasks=tuple(answered),
        rows=tuple(sorted((replace(row, stand=standing[row.name]) for row in rows), key=_order)),
        cheapest=best if isinstance(best, CheapestOption) else None,
        saving=saving(share) if isinstance(share, EstimateWithLimits) else share,
        why_none=best if isinstance(best, str) else None,
        notes=tuple(_notes(stored, alike, [row for row in candidates if row.passes], in_use=in_use, as_of=as_of)),
    )


def _apart(
    fit: Sequence[StoredRun], first: StoredRun | None, bases: Mapping[str, CandidateRow], *, in_use: bool
) -> dict[str, str | None]:
    """Return why each run is not comparable with the first, whose baseline is in the table; None if it is."""
    if first is None:
        return {}
    here = bases[first.run.id].quality
    return {
        one.run.id: None
        if one is first
        else baseline_difference(one, first, (bases[one.run.id].quality, here), in_use=in_use)
        for one in fit
    }


def _order(row: CandidateRow) -> tuple[bool, bool, float, str]:
    usd = row.usd.value if isinstance(row.usd, EstimateWithLimits) else None
    return row.arm is Arm.CANDIDATE, usd is None, usd or 0.0, row.name


def _cheapest(
    candidates: Sequence[CandidateRow], alike: Sequence[StoredRun], bases: Mapping[str, CandidateRow]
) -> CheapestOption | str:
    counted = [row for row in candidates if row.apart is None]
    best = cheapest_option([row.option for row in counted])
    if best is None:
        return _why_none(counted, [row.name for row in candidates if row.apart is not None and row.passes])
    policies = dict[str, list[StoredRun]]()
    for one in alike:
        policies.setdefault(one.judged_by, []).append(one)
    if len(policies) > 1:
        groups = "; ".join(list_runs(some) for some in policies.values())
        return f"they were judged by {len(policies)} policies ({groups}); `--policy SUITE` judges them all by one"
    if isinstance(best, ContestedCheapest):
        return _contested(best, candidates, bases)
    if len(alike) == 1 and len(counted) < len(candidates):
        return f"{best.name} passes, and nothing can be compared with it"
    return best


def _contested(
    between: ContestedCheapest, candidates: Sequence[CandidateRow], bases: Mapping[str, CandidateRow]
) -> str:
    named = {row.name: row for row in candidates}
    costs = [bases[named[name].run.id].usd for name in (between.by_usd, between.by_share)]
    here, there = (show_usd(one.value) if isinstance(one, EstimateWithLimits) else "an unknown amount" for one in costs)
    return (
        f"by dollars it is {between.by_usd}, and against the baseline beside each {between.by_share}, for the baseline "
        f"itself costs {here} beside the one and {there} beside the other; measure both again, one after the other"
    )


def _why_none(candidates: Sequence[CandidateRow], passing_apart: Sequence[str]) -> str:
    passing = [row for row in candidates if row.passes]
    if passing:
        return f"of what passes nothing has a cost; {passing[0].name}: {passing[0].usd}"
    judged = Counter("without a verdict" if row.outcome is None else row.outcome.value for row in candidates)
    let_through = [row for row in candidates if row.outcome is not None and row.outcome.promotes]
    unfinished = sum(row.fault is not None for row in let_through)
    held = len(let_through) - unfinished
    more = f", {unfinished} of them not fit to be counted" if unfinished else ""
    more += f", {held} of them held back" if held else ""
    more += f"; what passes cannot be compared with them: {', '.join(passing_apart)}" if passing_apart else ""
    none = "no candidate passes by its own verdict" if not passing_apart else "none that can be compared passes"
    return f"{none}: {', '.join(f'{n} {word}' for word, n in judged.items())}{more}"
