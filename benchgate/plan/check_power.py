"""Power of a single check: data model, known or assumed noise of a deployment, checks on items, prompts and texts."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Literal, NamedTuple

import numpy as np

from benchgate.model.metric import METRICS, noise_metric
from benchgate.model.noise import NoiseProfile, NoiseSpread
from benchgate.plan.items import PlannedTask
from benchgate.plan.schedule import Plan
from benchgate.stats.clusters import MIN_CLUSTERS, join_tasks, label_units
from benchgate.stats.distributions import bisect, norm_cdf, norm_ppf
from benchgate.stats.evals import ScorePairs, accuracy_regression
from benchgate.stats.power import (
    LookDecisions,
    effective_items,
    excess_noninferiority_power,
    items_for_power,
    minimum_detectable_difference,
    minimum_detectable_excess,
    prompts_for_excess,
    tango_noninferiority_power,
    zero_miss_sample_size,
)
from benchgate.stats.proportions import newcombe_difference
from benchgate.suite.checks import Check
from benchgate.suite.quality import stage_of_task, verified_name
from benchgate.suite.schema import Suite
from benchgate.units import show_percent, show_points

UNKNOWN_VALUE = "the deployment's own distance from the bound is not known"
Measure = Literal["ratio", "difference", "share"]
_MEASURES: Mapping[str | None, Measure] = MappingProxyType({"percent": "ratio", "points": "difference"})
ASSUMED_RUN_CV: Mapping[str | None, float] = MappingProxyType(
    {None: 0.03, "mean": 0.03, "p50": 0.03, "p90": 0.06, "p95": 0.06, "p99": 0.10}
)
"""Assumed variation between blocks by statistic, None for a rate. The throughput of a quiet GPU varies by 1 to 3%; a
p95 of some hundred requests by twice a median's spread, a p99 by three times and more. Shared machines vary more
(Laaber, Scheuner and Leitner 2019 saw 0.03% to more than 100% in clouds)."""
ASSUMED_FLIPS = 0.05  # assumed share of flipped items: greedy decoding flips 2 to 5% of its answers against itself
ASSUMED_FREE_TEXT_DIFFERENCES = 0.30
"""Assumed share of prompts whose free-form answers differ, word by word, when repeated."""
ASSUMED_FORM_DIFFERENCES = 0.05
"""Assumed share of prompts whose answers differ when compared by JSON, tool calls or structure."""
ASSUMED_JUDGE_DIFFERENCES = 0.136
"""Assumed share of equal pairs of which a judge prefers one; that share of verdicts changes when repeated."""
ASSUMED_CLUSTER_CORRELATION = 0.3  # assumed intra-class correlation of the differences of items in one cluster
ASSUMED_MISSES = 0.01  # assumed share of requests that fail or are not valid
_COMPARED_BY_FORM = ("json", "tool_calls", "structure")


@dataclass(frozen=True, slots=True)
class JudgedCheck:
    """Check as the gate will judge it, under the gate's own id."""

    id: str
    check: Check
    statistic: str | None = None
    stage: str | None = None  # stage or class of the load
    tasks: tuple[str, ...] = ()  # names of tasks judged together
    target_ratio: float | None = None  # bound of a goodput check without its own
    over: str | None = None  # stage or class that it is held over


@dataclass(frozen=True, slots=True)
class CheckPower:
    """Power of one check: what it has, needs and detects. None everywhere means "not known before the run"."""

    id: str
    metric: str
    required: bool
    allowed: bool  # by `allow_underpowered`
    margin: float | None = None
    measure: Measure | None = None  # kind of `margin`, `sees_80` and `sees_95`
    n_unit: str | None = None  # what `has` and `needs` count
    has: int | None = None
    needs: int | None = None  # for the margin at 95%
    sees_80: float | None = None  # smallest true regression shown in 80 of 100 whole measurements
    sees_95: float | None = None
    passes: float | None = None  # probability that it alone promotes an equal candidate, over all looks
    spread: float | None = None  # deviation of a block's paired difference, or share of differing answers
    source: str | None = None  # of the spread
    measured: bool = False
    cannot: str | None = None  # reason why the check can never pass
    remedy: str | None = None
    note: str | None = None

    @property
    def short(self) -> Literal["certain", "measured", "assumed"] | None:
        """Return the evidence that the check is underpowered; None without any."""
        if self.cannot is not None:
            return "certain"
        if self.margin is None or self.sees_80 is None or self.sees_80 <= self.margin:
            return None
        return "measured" if self.measured else "assumed"


@dataclass(frozen=True, slots=True, eq=False)
class PowerRow:
    """Power of a check, with its simulated decisions for an equal candidate at each look, if simulated."""

    power: CheckPower
    seen: LookDecisions | None = None


def unknown_power(one: JudgedCheck, suite: Suite) -> CheckPower:
    """Return a check of which nothing else is known."""
    return CheckPower(
        id=one.id,
        metric=one.check.metric,
        required=one.check.required,
        allowed=one.check.allow_underpowered or suite.gate.allow_underpowered,
        margin=one.check.margin,
        measure=_MEASURES.get(METRICS[one.check.metric].margin) if one.check.margin is not None else None,
    )


@dataclass(frozen=True, slots=True)
class EarlierRun:
    """Complete earlier run of the same measurement: its blocks of load, its duration and that of these blocks."""

    run_id: str
    finished_at: str
    blocks: int
    took_s: float
    load_s: float | None = None  # None: all of it

    def seconds(self, blocks: int) -> float:
        """Estimate the duration of a run with this many blocks; everything but the load takes as long as before."""
        more = blocks / self.blocks - 1 if self.blocks else 0.0
        return self.took_s + more * (self.took_s if self.load_s is None else self.load_s)


@dataclass(frozen=True, slots=True)
class KnownNoise:
    """Known noise of the baseline and known duration of such a run."""

    noise: NoiseProfile | None = None  # from a calibration, or a `run` of both sides
    noise_from: Literal["calibration", "stale calibration", "run"] = "calibration"
    earlier: EarlierRun | None = None

    @property
    def noise_source(self) -> str:
        """Return the source of the spreads in words; empty without any."""
        if self.noise is None:
            return ""
        day = self.noise.measured_at[:10]
        if self.noise_from == "run":
            return f"run {self.noise.run_id} of {day}"
        return f"{'stale ' if self.noise_from == 'stale calibration' else ''}noise profile of {day}"

    @property
    def calibrated(self) -> bool:
        """Return True if the spreads come from a valid calibration."""
        return self.noise is not None and self.noise_from == "calibration"

    def spread(self, metric: str, statistic: str | None, stage: str | None) -> NoiseSpread | None:
        """Return the spread of a metric per block; None if it was never measured."""
        return (
            None if self.noise is None or stage is None else self.noise.spread(noise_metric(metric), statistic, stage)
        )


NO_KNOWN_NOISE = KnownNoise()


def assumed_cv(statistic: str | None) -> float:
    """Return the assumed variation of a statistic between blocks."""
    return ASSUMED_RUN_CV.get(statistic, ASSUMED_RUN_CV["p99"])


_NO_FORECAST = {
    "score": "the spread of score differences is not known",
    "capacity": "the levels of a search depend on its results",
    "knee": "the position of the knee is not known",
    "cold_start": "the spread of start times is not known",
}
_MOST_DIFFER = 0.999
_MOST_ITSELF = 0.66
_WIDER = "ask more items, or accept a wider margin"


def item_power(one: JudgedCheck, suite: Suite, plan: Plan, known: KnownNoise) -> CheckPower:
    """Return the power of a check that is not on load."""
    row, metric = unknown_power(one, suite), one.check.metric
    if metric in ("accuracy", "flips"):
        return _by_first_look(row, one, suite, plan, known)
    if metric in ("shadow_excess", "shadow_validity", "judge_loss"):
        return _prompts_power(row, one, suite, plan, known)
    if metric in ("kld", "same_top1", "perplexity"):
        row = replace(row, n_unit="positions", has=sum(piece.positions for piece in plan.pieces))
        if 0 < len(plan.pieces) < MIN_CLUSTERS:
            why = f"the positions lie in {len(plan.pieces)} pieces of text, and it takes {MIN_CLUSTERS}"
            remedy = "give more texts, or a smaller `divergence.window`"
            return _never_for_items(row, f"{why} to know their spread", remedy)
        if metric == "same_top1" and row.has:
            return _floor(row, one.check.slo_value or 0.0, suite.gate.alpha)
        return replace(row, note="no forecast: the divergence of the two models is not known")
    return replace(row, note=f"no forecast: {_NO_FORECAST.get(metric, 'nothing is known before the run')}")


def _by_first_look(row: CheckPower, one: JudgedCheck, suite: Suite, plan: Plan, known: KnownNoise) -> CheckPower:
    """Return the power for the items that a load has sent by its first look, where it may end.

    A check is certain to fail only if the items of all blocks are too few. Items that are not sent under load do not
    depend on looks.
    """
    looks = suite.load.looks if suite.load is not None else ()
    full = _items_power(row, one, suite, plan, known, len(plan.blocks))
    if full.has is None or not looks or looks[0] == len(plan.blocks) or not any(map(stage_of_task, one.tasks)):
        return full
    first = _items_power(row, one, suite, plan, known, looks[0])
    ends = f"if the load ends at its first look: all {len(plan.blocks)} blocks have {full.has:,} items"
    note = "; ".join(filter(None, (first.note, None if full.cannot else first.cannot, ends)))
    return replace(first, cannot=full.cannot, remedy=full.remedy, note=note)


def _items_power(
    row: CheckPower, one: JudgedCheck, suite: Suite, plan: Plan, known: KnownNoise, blocks: int
) -> CheckPower:
    alpha, margin = suite.gate.alpha, one.check.margin
    parts = [_planned_items(name, suite, plan, blocks) for name in one.tasks]
    if not parts or any(task.needs is not None for of in parts for task in of):
        return replace(row, note="no forecast: data of its tasks was not read")
    counts = [sum(len(task.rows) for task in of) for of in parts]  # of each task or group
    if 0 in counts:
        return replace(row, note="no forecast: data of its tasks was not read")
    labels = label_units([[_clusters_of(task) for task in of] for of in parts])
    joined = join_tasks(counts, labels)
    numbers = [None if of is None else len(set(of)) for of in labels]
    samples = zip(counts, numbers, strict=True) if joined is None else [(sum(counts), joined.worth)]
    clusters, worths = [number for number in numbers if number is not None], list[int]()
    for n, number in samples:
        worths.append(n if number is None else effective_items(n, number, ASSUMED_CLUSTER_CORRELATION))
    # The effective number of items as independent items of one task.
    worth = math.floor(len(worths) ** 2 / sum(1 / effective for effective in worths))
    row = replace(row, n_unit="items", has=sum(counts))
    if clusters and min(clusters) < MIN_CLUSTERS:
        why = f"its items come in {min(clusters)} clusters, too few to know how much clusters differ"
        return _never_for_items(row, why, f"use items of at least {MIN_CLUSTERS} clusters")
    if clusters:
        within = f"for an assumed correlation of {ASSUMED_CLUSTER_CORRELATION:g} within them"
        row = replace(row, note=f"its clusters are worth {worth:,} independent items, {within}")
    if margin is None:
        floor = one.check.slo_value or 0.0
        unsampled = _unsampled(clusters, len(counts), None if joined is None else joined.worth, alpha)
        lowest = 1 - unsampled.share
        if lowest < floor:
            why = f"even where all are right, {unsampled.what} may lower the share to {show_percent(lowest)}"
            return _never_for_items(replace(row, measure="share"), why, "use more clusters, or a lower bound")
        effective = len(counts) ** 2 / sum(1 / count for count in counts) / sum(counts)
        return _floor(row, floor, alpha, round(effective, 9))
    row = _with_spread(row, _self_disagreement(known, "task", one.tasks), ASSUMED_FLIPS, known)
    unsampled = _unsampled(clusters, len(counts), None if joined is None else len(set(joined.clusters)), alpha)
    if one.check.metric == "flips":
        if unsampled.share >= margin:
            why = f"even where no answer flips, {unsampled.what} may add {show_points(unsampled.share)}"
            return _never_for_items(replace(row, measure="difference"), why, "use more clusters, or a wider margin")
        return _excess(row, margin, worth, alpha)
    why_not = underpowered_certain(counts, margin, alpha)
    row = _paired_items(row, margin, worth, alpha)
    if why_not is not None:
        return _never_for_items(row, why_not, _WIDER)
    if unsampled.share >= margin:  # times the baseline's share of right answers, which the plan does not know
        most = show_percent(margin / unsampled.share)
        why = f"a baseline with over {most} right answers cannot pass, because {unsampled.what} may lose their answers"
        return replace(row, passes=None, note="; ".join(filter(None, (row.note, why))))
    return row


def _clusters_of(task: PlannedTask) -> list[tuple[str | None, str]]:
    """Return the declared cluster and the document of each item of a task."""
    values = [None if task.cluster_key is None else row.get(task.cluster_key) for row in task.rows]
    declared = [None if value is None else str(value) for value in values]
    return list(zip(declared, (json.dumps(row, sort_keys=True) for row in task.rows), strict=True))


def _planned_items(name: str, suite: Suite, plan: Plan, blocks: int) -> list[PlannedTask]:
    """Return the tasks of a name in checks; under load (`add@c16`) with the items sent in the first `blocks` blocks."""
    stage = stage_of_task(name)
    if stage is None:
        return [task for task in plan.tasks if name in (task.name, suite.unit_name(task.name))]
    stages = [one for block in plan.blocks[:blocks] for one in block.stages if one.name == stage]
    planned = [request.item for one in stages for request in one.requests]
    sent = {(item.task, item.item_id) for item in planned if item is not None}
    named = [(verified_name(task.name, stage), task) for task in plan.tasks]
    tasks = [task for known, task in named if name in (known, suite.unit_name(known))]
    return [task.only({item for owner, item in sent if owner == task.name}) for task in tasks]


def _prompts_power(row: CheckPower, one: JudgedCheck, suite: Suite, plan: Plan, known: KnownNoise) -> CheckPower:
    check, alpha = one.check, suite.gate.alpha
    n = sum(check.metric != "shadow_validity" or prompt.requests_form for prompt in plan.shadow)
    row = replace(row, n_unit="prompts", has=n)
    if suite.shadow is None or n == 0:
        return replace(row, note="no forecast: there are no prompts for it")
    if check.margin is None:
        return _floor(row, check.slo_value or 0.0, alpha)
    if check.metric != "shadow_excess":
        assumed = ASSUMED_FLIPS if check.metric == "shadow_validity" else ASSUMED_JUDGE_DIFFERENCES
        row = _with_spread(row, None, assumed, known)
        why_not = underpowered_certain([n], check.margin, alpha)
        row = _paired_items(row, check.margin, n, alpha)
        if why_not is None:
            return row
        return _never_for_items(row, why_not.replace("items", "prompts", 1), "send more prompts")
    by_form = suite.shadow.compare.by in _COMPARED_BY_FORM
    assumed = ASSUMED_FORM_DIFFERENCES if by_form else ASSUMED_FREE_TEXT_DIFFERENCES
    row = _with_spread(row, _self_disagreement(known, "shadow", ()), assumed, known)
    twice = sum(not prompt.once for prompt in plan.shadow)
    return _excess(row, check.margin, n, alpha) if twice == n else _excess_sampled(row, check.margin, n, twice, alpha)


def underpowered_certain(counts: Sequence[int], margin: float, alpha: float) -> str | None:
    """Explain why an accuracy check stays undecided even if no answer changes; None if it need not.

    `counts` are the items of each task judged together. They are taken as independent. Clustered items carry less, so a
    check reported here can never pass. Raises ValueError without items.
    """
    least = accuracy_regression([ScorePairs(np.ones(count), np.ones(count)) for count in counts], alpha).limits.upper
    if least < margin:
        return None
    return (
        f"with {sum(counts):,} items, even where no answer changes, a loss of up to {show_points(least)} cannot be "
        f"ruled out, and the margin is {show_points(margin)}"
    )


class _Unsampled(NamedTuple):
    share: float  # of all items
    what: str


def _unsampled(clusters: Sequence[int], tasks: int, joined: int | None, alpha: float) -> _Unsampled:
    """Return the share that may be lost in clusters that were not sampled, even if none of the sampled ones shows it.

    `clusters` has the number of clusters of each task that has any, of all `tasks`; `joined` is that of tasks which
    share clusters, taken as one sample. With G clusters of one task it is 1 - alpha^(1/G).
    """
    of_task = max((1 - alpha ** (1 / count) for count in clusters), default=0.0) / tasks
    of_all = 0.0 if joined is None else 1 - alpha ** (1 / joined)
    if of_all > of_task:
        return _Unsampled(of_all, f"clusters that were not sampled beside the {joined} that its tasks share")
    return _Unsampled(of_task, f"clusters that were not sampled of a task with {min(clusters, default=0)} of them")


def _paired_items(row: CheckPower, margin: float, n: int, alpha: float) -> CheckPower:
    """Return the power for paired items, of which a share differs between equals."""
    differ = min(row.spread or 0.0, _MOST_DIFFER)
    return replace(
        row,
        measure="difference",
        needs=items_for_power(max(differ, margin), margin, alpha=alpha),
        sees_80=minimum_detectable_difference(n, differ, alpha=alpha, power=0.8),
        sees_95=minimum_detectable_difference(n, differ, alpha=alpha, power=0.95),
        passes=tango_noninferiority_power(n, differ, margin, alpha),
    )


def _excess(row: CheckPower, margin: float, n: int, alpha: float) -> CheckPower:
    itself = min(row.spread or 0.0, _MOST_ITSELF)
    if excess_noninferiority_power(n, 0.0, margin, alpha) == 0:
        why = f"with {n:,} {row.n_unit}, even where no answer differs, as much as the margin cannot be ruled out"
        return _never_for_items(replace(row, measure="difference"), why, _WIDER)
    return replace(
        row,
        measure="difference",
        needs=prompts_for_excess(itself, margin, alpha=alpha),
        sees_80=minimum_detectable_excess(n, itself, alpha=alpha, power=0.8),
        sees_95=minimum_detectable_excess(n, itself, alpha=alpha, power=0.95),
        passes=excess_noninferiority_power(n, itself, margin, alpha),
    )


def _excess_sampled(row: CheckPower, margin: float, n: int, twice: int, alpha: float) -> CheckPower:
    """Return the power when the baseline answers only some prompts twice: two shares, by the normal law."""
    if twice == 0:
        return _never_for_items(row, "no prompt is sent to the baseline twice", "raise `shadow.secondary`")
    itself, reach = row.spread or 0.0, norm_ppf(1 - alpha)
    least = reach / (twice + reach**2)  # error that Wilson's upper limit has even where the baseline never differs

    def error(excess: float) -> float:
        differs = itself + excess
        return math.hypot(math.sqrt(differs * (1 - differs) / n), max(math.sqrt(itself * (1 - itself) / twice), least))

    def sees(power: float) -> float | None:
        distance, most = reach + norm_ppf(power), 1 - itself
        shown = most > distance * error(most)
        return bisect(lambda excess: excess >= distance * error(excess), 0.0, most) if shown else None

    return replace(
        row,
        measure="difference",
        sees_80=sees(0.8),
        sees_95=sees(0.95),
        passes=norm_cdf(margin / error(0.0) - reach)
        if itself > 0
        else float(newcombe_difference(0, n, 0, twice, alpha).upper < margin),
        note=f"the baseline gets {twice:,} of the {n:,} prompts twice",
    )


def _floor(row: CheckPower, floor: float, alpha: float, effective_ratio: float = 1.0) -> CheckPower:
    """Return the power of a lower bound of the candidate's own share.

    `effective_ratio` is the effective number of items over their number, below 1 for tasks of unequal size and equal
    weight.
    """
    n = row.has or 0
    least = math.ceil(zero_miss_sample_size(1 - floor, alpha) / effective_ratio) if floor < 1 else None
    row = replace(row, measure="share", needs=least)
    lowest = alpha ** (1 / (n * effective_ratio)) if n else 0.0
    if lowest < floor:
        why = f"even where all {n:,} {row.n_unit} are right, the share may be as low as {show_percent(lowest)}"
        needs = "a lower bound" if row.needs is None else f"at least {row.needs:,} {row.n_unit}, or a lower bound"
        return _never_for_items(row, why, f"give it {needs}")
    return replace(row, note=UNKNOWN_VALUE)


def _self_disagreement(known: KnownNoise, kind: str, names: Sequence[str]) -> float | None:
    """Return the measured share on which the baseline differs from itself; None if never measured."""
    known_shares = [one for one in (known.noise.disagreement if known.noise is not None else ()) if one.kind == kind]
    if names:
        known_shares = [one for one in known_shares if one.name in names or one.name.split("/")[0] in names]
    n = sum(one.n for one in known_shares)
    return sum(one.share * one.n for one in known_shares) / n if n else None


def _with_spread(row: CheckPower, measured: float | None, assumed: float, known: KnownNoise) -> CheckPower:
    share = assumed if measured is None else measured
    source = "assumed" if measured is None else known.noise_source
    return replace(row, spread=share, source=source, measured=measured is not None and known.calibrated)


def _never_for_items(row: CheckPower, why: str, remedy: str) -> CheckPower:
    return replace(row, passes=0.0, cannot=why, remedy=remedy)
