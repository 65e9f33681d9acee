"""What a plan is told beside itself: the policy's checks made concrete, and what is known of the deployments before.

What a plan tells of one check.

What is taken for granted of deployments that were never calibrated: shown as assumed, it refuses nothing.

The spreads are of serving on a quiet machine of one's own; shared ones have more (Laaber, Scheuner and Leitner 2019 saw
0.03 % to more than 100 % in clouds).

What checks of the load can show: paired blocks, shares of requests, and SLOs, at the suite's looks.

Evals of which it is known before anything is asked that they cannot pass: too few items for the margin.

What checks of evals, recorded prompts and fixed texts can show, and those of which nothing can be foretold.

What can be seen of an error budget's burn: one more required check of the candidate's own failures.

What each check can show, before anything is sent: the smallest harm it sees, what its margin takes, and how often it
promotes a candidate that is the baseline's equal.

The arithmetic is that of the gate (`stats`), the checks are those that it will judge (`JudgedCheck`). How much the
deployments vary is known from a calibration or an earlier run; where it is not, it is assumed, and says so.

Checks that cannot carry their margins: which of them stand against a run, and which are only told.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Literal

import numpy as np

from benchgate.model.noise import NoiseProfile, Spread
from benchgate.plan.evals import PlannedTask
from benchgate.plan.schedule import Plan
from benchgate.stats.clusters import FEWEST_CLUSTERS
from benchgate.stats.distributions import norm_cdf, norm_ppf
from benchgate.stats.evals import ScorePairs, answers_harm
from benchgate.stats.power import (
    Ends,
    Looks,
    Rule,
    Seen,
    blocks_needed,
    chance_of_excess_pass,
    chance_of_pass,
    chance_within,
    detectable_difference,
    detectable_harm,
    drawn_course,
    ends,
    excess_sd,
    independent_items,
    items_needed,
    most_misses,
    seen,
    share_shown,
    values_needed,
    zero_misses_needed,
)
from benchgate.stats.quantiles import fewest_of_a_quantile, min_n_for_upper_limit
from benchgate.stats.sequential import look_tails
from benchgate.suite.error_budget import BURN, BURN_ALARM, ErrorBudget, worst_share
from benchgate.suite.metric_kinds import (
    COST_METRICS,
    KINDS,
    SHARE_METRICS,
    STAGE_METRICS,
    STATISTICS,
    TELEMETRY_METRICS,
    spread_of,
)
from benchgate.suite.rules.suite import burn_places
from benchgate.suite.schema import Check, DeploymentSpec, Suite
from benchgate.suite.shadow import Shadow
from benchgate.units import as_written, show_percent, show_points


@dataclass(frozen=True, slots=True)
class JudgedCheck:
    """One check as the gate will judge it, under the gate's own name for it.

    `stage` is the place of the load, `tasks` the names of the tasks that it judges together; `target_ratio` is what a
    goodput without a bound of its own is held to.
    """

    id: str
    check: Check
    statistic: str | None = None
    stage: str | None = None
    tasks: tuple[str, ...] = ()
    target_ratio: float | None = None


@dataclass(frozen=True, slots=True)
class Earlier:
    """A complete run of the same measurement: so many blocks of load, and how long all of it took."""

    run_id: str
    finished_at: str
    blocks: int
    took_s: float


@dataclass(frozen=True, slots=True)
class Known:
    """What the store tells of how much the baseline differs from itself, and of how long such a run takes.

    `noise` comes from a calibration, or from a `run` of both arms, whose pairs vary as the next one's will. Only a
    calibration that is not too old is proof enough to refuse anything.
    """

    noise: NoiseProfile | None = None
    noise_from: Literal["calibration", "stale calibration", "run"] = "calibration"
    earlier: Earlier | None = None

    @property
    def noise_source(self) -> str:
        """Where the spreads are from, for a person; empty without any."""
        if self.noise is None:
            return ""
        day = self.noise.measured_at[:10]
        if self.noise_from == "run":
            return f"run {self.noise.run_id} of {day}"
        return f"{'stale ' if self.noise_from == 'stale calibration' else ''}noise profile of {day}"

    @property
    def calibrated(self) -> bool:
        """Whether its spreads are those of a calibration that still holds."""
        return self.noise is not None and self.noise_from == "calibration"

    def spread(self, metric: str, statistic: str | None, stage: str | None) -> Spread | None:
        """The spread of one number of a block; None where nobody measured it."""
        return None if self.noise is None or stage is None else self.noise.spread(spread_of(metric), statistic, stage)


NOTHING_KNOWN = Known()


Measure = Literal["ratio", "difference", "share"]
_OF_MARGINS: Mapping[str | None, Measure] = MappingProxyType({"percent": "ratio", "points": "difference"})


@dataclass(frozen=True, slots=True)
class CheckPower:
    """One check: what it has, what it needs, and what it sees.

    `measure` says what `margin`, `sees_80` and `sees_95` are: a part of the baseline's value (or of the SLO), a
    difference of two shares, or a share of requests or items that miss. `sees_80` is the smallest true harm that is
    shown in 80 of 100 runs, with all that the suite measures (its last look). `has` and `needs` count `n_unit`; `needs`
    is for the margin with 95 %. `passes`: how often an equal candidate is promoted by this check alone, over all looks.

    `spread` is what these rest on: the deviation of the paired difference of a block, or the share of answers that
    differ between equals; `source` where it is from. `cannot` is why the check can never hold; None where it can.
    `short`: by what it cannot carry its margin. None everywhere stands for "not known before".
    """

    id: str
    metric: str
    required: bool
    allowed: bool  # by `allow_underpowered`
    margin: float | None = None
    measure: Measure | None = None
    n_unit: str | None = None
    has: int | None = None
    needs: int | None = None
    sees_80: float | None = None
    sees_95: float | None = None
    passes: float | None = None
    spread: float | None = None
    source: str | None = None
    measured: bool = False
    cannot: str | None = None
    remedy: str | None = None
    note: str | None = None

    @property
    def short(self) -> Literal["certain", "measured", "assumed"] | None:
        """By what the check is known not to carry its margin; None where nothing says so."""
        if self.cannot is not None:
            return "certain"
        if self.margin is None or self.sees_80 is None or self.sees_80 <= self.margin:
            return None
        return "measured" if self.measured else "assumed"


@dataclass(frozen=True, slots=True, eq=False)
class Row:
    """A check with what it would say of an equal candidate at each look, where that was drawn."""

    power: CheckPower
    seen: Seen | None = None


def bare_row(one: JudgedCheck, suite: Suite, note: str | None = None) -> CheckPower:
    """A check of which no more is known than that it is there."""
    return CheckPower(
        id=one.id,
        metric=one.check.metric,
        required=one.check.required,
        allowed=one.check.allow_underpowered or suite.gate.allow_underpowered,
        margin=one.check.margin,
        measure=_OF_MARGINS.get(KINDS[one.check.metric].margin) if one.check.margin is not None else None,
        note=note,
    )


RUN_CV: Mapping[str | None, float] = MappingProxyType(
    {None: 0.03, "mean": 0.03, "p50": 0.03, "p90": 0.06, "p95": 0.06, "p99": 0.10}
)
"""How much one arm's value varies from block to block, by statistic; None is a rate. The throughput of a quiet GPU
varies by 1 to 3 %; a p95 of some hundred requests by twice a median's spread, a p99 by three times and more."""

FLIPS = 0.05
"""Items on which two equal arms differ: greedy decoding flips 2 to 5 % of its answers against itself."""

FREE_TEXT_DIFFERS = 0.30
"""Prompts whose free-form answers differ between two askings of one deployment, word by word."""

FORM_DIFFERS = 0.05
"""The same of answers that are compared by their JSON, calls or structure."""

JUDGE_DIFFERS = 0.136
"""Pairs about which a judge of equal answers prefers one: so many verdicts change when it is asked again."""

ALIKE_IN_CLUSTERS = 0.3
"""Intra-class correlation of the differences of items in one cluster."""

MISSES = 0.01
"""Requests that fail, or are not valid, where nobody knows."""

_BY_FORM = ("json", "tool_calls", "structure")


def cv_of(statistic: str | None) -> float:
    """The run-to-run spread that is assumed of a statistic."""
    return RUN_CV.get(statistic, RUN_CV["p99"])


def shadow_differs(shadow: Shadow) -> float:
    """How often one deployment's answers are taken to differ when it is asked twice."""
    return FORM_DIFFERS if shadow.compare.by in _BY_FORM else FREE_TEXT_DIFFERS


_ENOUGH_PAIRS = 8
"""A spread of fewer refuses nothing: 8 know it within a factor of 2, two within one of 32 (chi-square limits, 95 %)."""
_SEED = 0x706C616E
"""Of the draws; the same for everybody, so that a plan says the same of the same suite wherever it is made."""
_FEWEST = 2
_LUMP = 0.5**0.5
"""By how many misses exact limits of two shares lie further out than the normal law's: 1 / n of one of the two, as a
part of the root of their sum of squares (the gate's `shares.widened`)."""
_LEAST_SD = 1e-6
"""A spread below this was no spread: two arms that agreed to the last digit."""


@dataclass(frozen=True, slots=True)
class Blocks:
    """The looks at the load, and how many requests of each place count in each block."""

    looks: Looks
    requests: Mapping[str, tuple[int, ...]]

    @property
    def most(self) -> int:
        """Blocks at the last look."""
        return self.looks.blocks[-1]

    @property
    def last_tail(self) -> float:
        """The error that limits of the last look are taken at."""
        return self.looks.tails[-1]


def blocks_of(suite: Suite, plan: Plan) -> Blocks | None:
    """The blocks of a plan; None where it has none. Requests whose clients leave are in no share and no latency."""
    if suite.load is None or not plan.blocks:
        return None
    looks = suite.load.looks or (len(plan.blocks),)
    counts: dict[str, list[int]] = {}
    for block in plan.blocks:
        for stage in block.stages:
            for group in stage.classes:
                if not group.background:
                    stays = sum(request.leave is None for request in group.requests)
                    counts.setdefault(stage.observed_as(group), []).append(stays)
    tails = look_tails([look / looks[-1] for look in looks], suite.gate.alpha)
    return Blocks(Looks(looks, tails), {name: tuple(found) for name, found in counts.items()})


def load_power(number: int, one: JudgedCheck, suite: Suite, blocks: Blocks, known: Known) -> Row:
    """One check at a place of the load; `number` is its own, for draws that are independent of the others'."""
    check, row = one.check, bare_row(one, suite)
    if check.metric in TELEMETRY_METRICS:
        return Row(replace(row, note="not foretold: what a server says of itself is the server's"))
    if check.over is not None:
        return Row(_over(replace(row, n_unit="blocks", has=blocks.most), one, blocks))
    if check.metric in SHARE_METRICS:
        requests = blocks.requests.get(one.stage or "")
        if not requests or min(requests) == 0:
            return Row(replace(row, note="not foretold: how many requests there will be is not known"))
        if check.margin is None:
            return Row(_share_bound(row, one, requests, blocks))
        return _share_margin(row, one, requests, blocks, known, number)
    if check.metric in COST_METRICS and any(spec.token_prices for spec in _measured(suite)):
        known = NOTHING_KNOWN  # a pace does not tell how far what is paid by the token differs
    if check.margin is None:
        return Row(_slo(row, one, blocks, known))
    return _paired(row, one, blocks, known, number)


def _measured(suite: Suite) -> tuple[DeploymentSpec, ...]:
    return suite.deployments[suite.baseline], suite.deployments[suite.candidate]


def _paired(row: CheckPower, one: JudgedCheck, blocks: Blocks, known: Known, number: int) -> Row:
    """A margin of a latency or a rate: log ratios over paired blocks."""
    check = one.check
    slower = not KINDS[check.metric].rises or check.direction == "either"
    assert check.margin is not None, "an SLO went another way"
    margin = math.log1p(check.margin) if slower else -math.log1p(-check.margin)
    spread = known.spread(check.metric, one.statistic, one.stage)
    sd = math.sqrt(2) * cv_of(one.statistic) if spread is None else max(spread.sd_paired, _LEAST_SD)
    together = _together(one, blocks)
    counts = [max(look // together, 1) for look in blocks.looks.blocks]
    if counts[-1] < _FEWEST:
        fewest = _FEWEST * _for_quantile(one)
        why = f"its {blocks.most} blocks have fewer than the {fewest:,} requests that it takes for {_FEWEST} values"
        return Row(_never(row, why, None, "send more, or judge a lower statistic"))
    row, looked = _by_blocks(row, blocks, counts, sd, margin, _rule(one, margin), number)
    row = replace(
        row,
        n_unit="blocks" if together == 1 else "groups",
        sees_80=_as_ratio(row.sees_80, slower=slower),
        sees_95=_as_ratio(row.sees_95, slower=slower),
        source="assumed" if spread is None else known.noise_source,
        measured=spread is not None and known.calibrated and spread.n >= _ENOUGH_PAIRS,
        note="`min_abs` may allow more than the margin" if check.min_abs is not None else None,
    )
    return Row(row, looked)


def _together(one: JudgedCheck, blocks: Blocks) -> int:
    """How many blocks make one high quantile: of too few requests it would be the slowest of them."""
    requests = blocks.requests.get(one.stage or "")
    if one.check.metric == "itl" or not requests:  # has many values a request
        return 1
    return math.ceil(_for_quantile(one) / max(min(requests), 1))


def _for_quantile(one: JudgedCheck) -> int:
    """Of how many requests the gate takes a high quantile; a median, a mean and a rate are of any number."""
    q = STATISTICS.get(one.statistic or "", 0.5)
    return fewest_of_a_quantile(q) if q > 0.5 else 1


def _by_blocks(
    row: CheckPower, blocks: Blocks, counts: Sequence[int], sd: float, margin: float, rule: Rule, number: int
) -> tuple[CheckPower, Seen]:
    """What so many paired blocks (or groups of them) of this spread show of a margin, on the scale of differences."""
    course = drawn_course(counts, np.random.default_rng([_SEED, number]))
    looked = seen(course, blocks.looks, rule, sd=sd)
    tail = blocks.last_tail
    sides = 2 if rule.two_sided else 1  # each of which may err half as often
    row = replace(
        row,
        has=counts[-1],
        needs=blocks_needed(sd, margin, alpha=tail, power=1 - 0.05 / sides),
        sees_80=detectable_harm(counts[-1], sd, alpha=tail / sides, power=0.8),
        sees_95=detectable_harm(counts[-1], sd, alpha=tail / sides, power=0.95),
        passes=ends([looked], blocks.looks).promoted,
        spread=sd,
    )
    return row, looked


def _share_margin(
    row: CheckPower, one: JudgedCheck, requests: Sequence[int], blocks: Blocks, known: Known, number: int
) -> Row:
    """A margin of a share: its difference over blocks is never less uncertain than that of so many requests."""
    margin, total, tail = one.check.margin or 0.0, sum(requests), blocks.last_tail
    row = replace(row, measure="difference", n_unit="requests", has=total)
    least = 1 - tail ** (1 / total)
    if least >= margin:
        shown = (
            f"even where none of {total:,} requests misses, a loss of up to {show_points(least)} cannot be ruled out"
        )
        return Row(_never(row, f"{shown}, and the margin is {show_points(margin)}", zero_misses_needed(margin, tail)))
    spread = known.spread(one.check.metric, None, one.stage) if one.check.of is None else None
    if spread is not None and spread.sd_paired < _LEAST_SD:
        spread = None  # that nothing was missed there does not say that nothing will be: requests alone vary
    misses = max(MISSES, 1 - one.target_ratio if one.check.metric == "goodput" and one.target_ratio else MISSES)
    by_chance = math.sqrt(2 * misses * (1 - misses) / min(requests))
    sd = by_chance if spread is None else max(spread.sd_paired, _LEAST_SD)
    limit_sd = by_chance * math.sqrt(_by_chance_uneven(blocks.most))
    least_sd = limit_sd if spread is None else min(sd, limit_sd)
    rule = _rule(one, margin, least_sd=least_sd, lump=_LUMP / min(requests))
    row, looked = _by_blocks(row, blocks, blocks.looks.blocks, sd, margin, rule, number)
    row = replace(
        row,
        n_unit="requests",
        has=total,
        needs=None if row.needs is None else row.needs * min(requests),
        source="assumed" if spread is None else known.noise_source,
        measured=spread is not None and known.calibrated and spread.n >= _ENOUGH_PAIRS,
        note=f"as if {show_percent(misses)} of the baseline's requests missed" if spread is None else None,
    )
    return Row(row, looked)


def _by_chance_uneven(blocks: int) -> float:
    """The mean design effect of misses that fall evenly but for chance: about normal, and never taken for below 1."""
    return 1 + math.sqrt(2 / (blocks - 1)) / math.sqrt(2 * math.pi)


def _share_bound(row: CheckPower, one: JudgedCheck, requests: Sequence[int], blocks: Blocks) -> CheckPower:
    """A bound of a share: how many requests may miss, and which true share is shown to be beyond it."""
    check, total, tail = one.check, sum(requests), blocks.last_tail
    bound = check.slo_value if check.slo_value is not None else one.target_ratio
    rises, at_least = KINDS[check.metric].rises, check.max is None
    row = replace(row, measure="share", n_unit="requests", has=total)
    if bound is None or rises != at_least:
        return replace(row, note="not foretold: how large the share is by itself is not known")
    allowed = 1 - bound if rises else bound
    most = most_misses(requests, allowed, tail)
    if most is None:
        needs = zero_misses_needed(allowed, tail) if allowed > 0 else None
        least = 1 - tail ** (1 / total)
        why = f"even where none of {total:,} requests misses, up to {show_percent(least)} may"
        return _never(row, f"{why}, and {show_percent(allowed)} are allowed", needs)
    return replace(
        row,
        needs=zero_misses_needed(allowed, tail),
        sees_80=share_shown(requests, allowed, alpha=tail, power=0.8),
        sees_95=share_shown(requests, allowed, alpha=tail, power=0.95),
        note=f"holds with {_at_most(most)} in {total:,}; how many there are by themselves is not known",
    )


def _slo(row: CheckPower, one: JudgedCheck, blocks: Blocks, known: Known) -> CheckPower:
    """An SLO of a latency or a rate: how far beyond it is seen, and whether its quantile has an upper limit at all."""
    check, slower, tail = one.check, not KINDS[one.check.metric].rises, blocks.last_tail
    row = replace(row, n_unit="blocks", has=blocks.most, measure="ratio")
    requests = blocks.requests.get(one.stage or "")
    if one.statistic in STATISTICS and requests is not None:
        needs = min_n_for_upper_limit(STATISTICS[one.statistic], tail)
        row = replace(row, n_unit="requests", has=sum(requests), needs=needs)
        if sum(requests) < needs:
            return _never(row, f"the {one.statistic} of {sum(requests):,} requests has no upper limit", needs)
    spread = known.spread(check.metric, one.statistic, one.stage)
    cv = cv_of(one.statistic) if spread is None else max(spread.cv_run, _LEAST_SD)
    return replace(
        row,
        sees_80=_as_ratio(detectable_harm(blocks.most, cv, alpha=tail, power=0.8), slower=slower),
        sees_95=_as_ratio(detectable_harm(blocks.most, cv, alpha=tail, power=0.95), slower=slower),
        spread=cv,
        source="assumed" if spread is None else known.noise_source,
        measured=spread is not None and known.calibrated and spread.n >= _ENOUGH_PAIRS,
        note="how far from its bound the deployment is by itself is not known",
    )


def _over(row: CheckPower, one: JudgedCheck, blocks: Blocks) -> CheckPower:
    """One stage over another: of ratios, how far beyond the bound is seen."""
    note = "how far from its bound the deployment is by itself is not known"
    if one.check.metric in SHARE_METRICS:
        return replace(row, note=note)
    sd, slower, tail = math.sqrt(2) * cv_of(one.statistic), one.check.max is not None, blocks.last_tail
    return replace(
        row,
        measure="ratio",
        sees_80=_as_ratio(detectable_harm(blocks.most, sd, alpha=tail, power=0.8), slower=slower),
        sees_95=_as_ratio(detectable_harm(blocks.most, sd, alpha=tail, power=0.95), slower=slower),
        spread=sd,
        source="assumed",
        note=note,
    )


def _rule(one: JudgedCheck, margin: float, *, least_sd: float = 0.0, lump: float = 0.0) -> Rule:
    check = one.check
    return Rule(margin, check.block_when == "breach", least_sd, lump, two_sided=check.direction == "either")


def _never(row: CheckPower, why: str, needs: int | None, remedy: str | None = None) -> CheckPower:
    """A check that cannot hold with so few requests."""
    wider = "accept a wider bound" if needs is None else f"send at least {needs:,}, or accept a wider bound"
    return replace(row, needs=needs, passes=0.0, cannot=why, remedy=remedy or wider)


def _at_most(misses: int) -> str:
    if misses == 0:
        return "no miss"
    return f"at most {misses:,} miss{'es' if misses > 1 else ''}"


def _as_ratio(harm: float | None, *, slower: bool) -> float | None:
    """A harm in logarithms as a part of the value it is held against; None beyond what a float holds."""
    if harm is None or harm > 700:
        return None
    return math.expm1(harm) if slower else -math.expm1(-harm)


def foregone(counts: Sequence[int], margin: float, alpha: float) -> str | None:
    """Why a check of accuracy stays open even where the candidate answers as the baseline does; None where it may not.

    `counts` are the items of each task that it judges together. They are taken for independent: in clusters they carry
    less, so a check named here cannot pass in any case. ValueError without items.
    """
    least = answers_harm([ScorePairs(np.ones(count), np.ones(count)) for count in counts], alpha).limits.upper
    if least < margin:
        return None
    return (
        f"with {sum(counts):,} items, even where no answer changes, a loss of up to {show_points(least)} cannot be "
        f"ruled out, and the margin is {show_points(margin)}"
    )


_NOT_FORETOLD = {
    "score": "how far the scores of two answers lie apart is not known",
    "capacity": "a search goes where its answers lead",
    "knee": "where a curve bends is not known",
    "cold_start": "how much the starts differ is not known",
}
_TWO_MODELS = "how far two models lie apart at a position is not known"
_MOST_DIFFER = 0.999
_WIDER = "ask more items, or accept a wider margin"


@dataclass(frozen=True, slots=True)
class _Items:
    """The items of the tasks that a check judges together. `worth`: as how many independent ones of one task.

    `fewest_clusters` is of the task with the fewest; None where no items are of one cluster.
    """

    counts: tuple[int, ...]
    worth: int
    fewest_clusters: int | None

    @property
    def n(self) -> int:
        """All of them."""
        return sum(self.counts)


def item_power(one: JudgedCheck, suite: Suite, plan: Plan, known: Known) -> CheckPower:
    """One check that is not of the load."""
    row, metric = bare_row(one, suite), one.check.metric
    if metric in ("accuracy", "flips"):
        items = _items(suite, one.tasks, plan.tasks)
        if items is None:
            return replace(row, note="not foretold: data of its tasks was not read")
        return _of_items(row, one, items, suite.gate.alpha, known)
    if metric in ("shadow_excess", "shadow_validity", "judge_loss"):
        return _of_prompts(row, one, suite, plan, known)
    if metric in ("kld", "same_top1", "perplexity"):
        return _of_texts(row, one, plan, suite.gate.alpha)
    return replace(row, note=f"not foretold: {_NOT_FORETOLD.get(metric, 'nothing is known of it before')}")


def _of_items(row: CheckPower, one: JudgedCheck, items: _Items, alpha: float, known: Known) -> CheckPower:
    """Right or wrong, item by item."""
    row, margin = replace(row, n_unit="items", has=items.n), one.check.margin
    if items.fewest_clusters is not None and items.fewest_clusters < FEWEST_CLUSTERS:
        why = f"its items come in {items.fewest_clusters} clusters, too few to know how much clusters differ"
        return _never_for_items(row, why, f"use items of at least {FEWEST_CLUSTERS} clusters")
    if items.fewest_clusters is not None:
        worth = f"its clusters are worth {items.worth:,} independent items"
        row = replace(row, note=f"{worth}, were their items {ALIKE_IN_CLUSTERS:g} alike")
    if margin is None:
        return _floor(row, one.check.slo_value or 0.0, alpha)
    share = _differing(known, "task", one.tasks)
    row = _resting_on(row, share, FLIPS, known)
    if one.check.metric == "flips":
        return _excess(row, margin, items.worth, alpha)
    why_not = foregone(items.counts, margin, alpha)
    row = _paired_items(row, margin, items.worth, alpha)
    return row if why_not is None else _never_for_items(row, why_not, _WIDER)


def _of_prompts(row: CheckPower, one: JudgedCheck, suite: Suite, plan: Plan, known: Known) -> CheckPower:
    """Recorded prompts: how often answers differ, are valid, or are found worse."""
    check, alpha, n = one.check, suite.gate.alpha, len(plan.shadow)
    row = replace(row, n_unit="prompts", has=n)
    if suite.shadow is None or n == 0:
        return replace(row, note="not foretold: there are no prompts")
    if check.margin is None:
        return _floor(row, check.slo_value or 0.0, alpha)
    if check.metric != "shadow_excess":
        row = _resting_on(row, None, FLIPS if check.metric == "shadow_validity" else JUDGE_DIFFERS, known)
        why_not = foregone([n], check.margin, alpha)
        row = _paired_items(row, check.margin, n, alpha)
        return (
            row
            if why_not is None
            else _never_for_items(row, why_not.replace("items", "prompts", 1), "send more prompts")
        )
    row = _resting_on(row, _differing(known, "shadow", ()), shadow_differs(suite.shadow), known)
    twice = sum(not prompt.once for prompt in plan.shadow)
    return _excess(row, check.margin, n, alpha) if twice == n else _excess_sampled(row, check.margin, n, twice, alpha)


def _of_texts(row: CheckPower, one: JudgedCheck, plan: Plan, alpha: float) -> CheckPower:
    """Fixed texts, whose positions go together within a piece."""
    row = replace(row, n_unit="positions", has=sum(piece.positions for piece in plan.pieces))
    if 0 < len(plan.pieces) < FEWEST_CLUSTERS:
        why = f"the positions lie in {len(plan.pieces)} pieces of text, and it takes {FEWEST_CLUSTERS}"
        return _never_for_items(row, f"{why} to know their spread", "give more texts, or a smaller `divergence.window`")
    if one.check.metric == "same_top1" and row.has:
        return _floor(row, one.check.slo_value or 0.0, alpha)
    return replace(row, note=f"not foretold: {_TWO_MODELS}")


def _paired_items(row: CheckPower, margin: float, n: int, alpha: float) -> CheckPower:
    """Items paired with themselves, of which the row's share differs between equals."""
    differ = min(row.spread or 0.0, _MOST_DIFFER)
    return replace(
        row,
        measure="difference",
        needs=items_needed(max(differ, margin), margin, alpha=alpha),
        sees_80=detectable_difference(n, differ, alpha=alpha, power=0.8),
        sees_95=detectable_difference(n, differ, alpha=alpha, power=0.95),
        passes=chance_of_pass(n, differ, margin, alpha),
    )


def _excess(row: CheckPower, margin: float, n: int, alpha: float) -> CheckPower:
    """Disagreement beyond the baseline's own: nothing is shown of a baseline that differs from itself too often."""
    itself = row.spread or 0.0
    if chance_of_excess_pass(n, 0.0, margin, alpha) == 0:
        why = f"with {n:,} {row.n_unit}, even where no answer differs, as much as the margin cannot be ruled out"
        return _never_for_items(replace(row, measure="difference"), why, _WIDER)
    sd, reach = excess_sd(itself), norm_ppf(1 - alpha)
    return replace(
        row,
        measure="difference",
        needs=values_needed(sd, margin, alpha=alpha),
        sees_80=(reach + norm_ppf(0.8)) * sd / math.sqrt(n),
        sees_95=(reach + norm_ppf(0.95)) * sd / math.sqrt(n),
        passes=chance_of_excess_pass(n, min(itself, 0.66), margin, alpha),
    )


def _excess_sampled(row: CheckPower, margin: float, n: int, twice: int, alpha: float) -> CheckPower:
    """The same where the baseline is asked twice on a part of the prompts: two shares, by the normal law."""
    if twice == 0:
        return _never_for_items(row, "no prompt is asked of the baseline twice", "raise `shadow.secondary`")
    itself, reach = row.spread or 0.0, norm_ppf(1 - alpha)
    error = math.sqrt(itself * (1 - itself) * (1 / n + 1 / twice))
    return replace(
        row,
        measure="difference",
        sees_80=(reach + norm_ppf(0.8)) * error,
        sees_95=(reach + norm_ppf(0.95)) * error,
        passes=norm_cdf(margin / error - reach) if error > 0 else None,
        note=f"the baseline is asked {twice:,} of the {n:,} prompts twice",
    )


def _floor(row: CheckPower, floor: float, alpha: float) -> CheckPower:
    """A least share of the candidate's own: shown only of so many items that even all of them right would show it."""
    n = row.has or 0
    row = replace(row, measure="share", needs=zero_misses_needed(1 - floor, alpha) if floor < 1 else None)
    lowest = alpha ** (1 / n) if n else 0.0
    if lowest < floor:
        why = f"even where all {n:,} {row.n_unit} are right, the share may be as low as {show_percent(lowest)}"
        needs = "a lower bound" if row.needs is None else f"at least {row.needs:,} {row.n_unit}, or a lower bound"
        return _never_for_items(row, why, f"give it {needs}")
    return replace(row, note="how far from its bound the deployment is by itself is not known")


def _items(suite: Suite, names: Sequence[str], tasks: Sequence[PlannedTask]) -> _Items | None:
    """The items of these tasks and groups of tasks; None where there are none, or where their data was not read."""
    counts, clusters, worths = list[int](), list[int](), list[int]()
    for name in names:
        parts = [task for task in tasks if _is_of(suite, task, name)]
        n, groups = sum(len(task.rows) for task in parts), sum(map(_clusters, parts))
        if n == 0 or any(task.needs is not None for task in parts):
            return None
        clustered = any(task.cluster_key is not None for task in parts)
        counts.append(n)
        clusters += [groups] if clustered else []
        worths.append(independent_items(n, groups, ALIKE_IN_CLUSTERS) if clustered else n)
    if not counts:
        return None
    worth = math.floor(len(worths) ** 2 / sum(1 / one for one in worths))
    return _Items(tuple(counts), worth, min(clusters, default=None))


def _is_of(suite: Suite, task: PlannedTask, name: str) -> bool:
    """Whether a planned task is what a check calls so, or is of the group that it calls so."""
    entry = suite.quality.entry(task.name) if suite.quality is not None else None
    return name in (task.name, entry.name if entry is not None else task.name)


def _clusters(task: PlannedTask) -> int:
    """How many clusters its rows come in; a row that names none is one of its own."""
    if task.cluster_key is None:
        return len(task.rows)
    named = [row.get(task.cluster_key) for row in task.rows]
    return len({str(name) for name in named if name is not None}) + sum(name is None for name in named)


def _differing(known: Known, kind: str, names: Sequence[str]) -> float | None:
    """How often the baseline was seen to differ from itself there: over all items of these names; None if never."""
    seen = [
        one
        for one in (known.noise.disagreement if known.noise is not None else ())
        if one.kind == kind and (not names or one.name in names or one.name.split("/")[0] in names)
    ]
    n = sum(one.n for one in seen)
    return sum(one.share * one.n for one in seen) / n if n else None


def _resting_on(row: CheckPower, measured: float | None, assumed: float, known: Known) -> CheckPower:
    share = assumed if measured is None else measured
    source = "assumed" if measured is None else known.noise_source
    return replace(row, spread=share, source=source, measured=measured is not None and known.calibrated)


def _never_for_items(row: CheckPower, why: str, remedy: str) -> CheckPower:
    return replace(row, passes=0.0, cannot=why, remedy=remedy)


def budget_power(suite: Suite, blocks: Blocks | None) -> Iterator[Row]:
    """A row for each line on the burn that the gate will write; none for a suite without a budget."""
    budget = suite.error_budget
    if budget is None or blocks is None:
        return
    for place in burn_places(suite):
        row = CheckPower(
            id=f"{BURN}@{place.name}",
            metric=BURN,
            required=True,
            allowed=suite.gate.allow_underpowered,
            measure="share",
            n_unit="requests",
        )
        requests = blocks.requests.get(place.name)
        if place.background or not requests or min(requests) == 0:
            yield Row(replace(row, note="not foretold: how many requests there will be is not known"))
        else:
            yield Row(_foretold(row, budget, requests, blocks.last_tail))


def _foretold(row: CheckPower, budget: ErrorBudget, requests: Sequence[int], tail: float) -> CheckPower:
    """With all blocks: how many may fail, and how often a candidate passes of which as many fail as the objective lets.

    Such a one burns at 1x, which warns now and then and promotes: a baseline that keeps its objective fails no more.
    """
    worst, total, allowed = worst_share(budget.objective_ratio), sum(requests), 1 - budget.objective_ratio
    most = most_misses(requests, worst, tail)
    needs = zero_misses_needed(worst, tail) if worst < 1 else None
    if most is None:
        why = f"even where none of {total:,} requests fails, a burn above {BURN_ALARM}x cannot be ruled out"
        remedy = "send more" if needs is None else f"send at least {needs:,}"
        return replace(row, has=total, needs=needs, passes=0.0, cannot=why, remedy=remedy)
    failed = "failed" if budget.metric == "error_rate" else "were not good"
    return replace(
        row,
        has=total,
        needs=needs,
        sees_80=share_shown(requests, worst, alpha=tail, power=0.8),
        sees_95=share_shown(requests, worst, alpha=tail, power=0.95),
        passes=chance_within(requests, worst, allowed, tail),
        note=f"rules out a burn of {BURN_ALARM}x with at most {most:,} of {total:,} that {failed}; passes as if "
        f"{show_percent(allowed)} did, as many as the objective lets",
    )


@dataclass(frozen=True, slots=True)
class Promotion:
    """How often an equal candidate is promoted by all required checks of which that can be foretold, `checks` of `of`.

    They are taken for independent, which latencies of the same requests are not: together they hold more often, so the
    chance is a guide on the low side. `blocks`: how many it takes on average; None without checks at several looks.
    """

    chance: float | None
    checks: int
    of: int
    blocks: float | None


@dataclass(frozen=True, slots=True)
class Foretold:
    """Every check in the order of the policy, what is added to them, and all of them together."""

    checks: tuple[CheckPower, ...] = ()
    promotion: Promotion | None = None


def foretell(suite: Suite, plan: Plan, judged: Sequence[JudgedCheck], known: Known) -> Foretold:
    """What a planned run's checks can show, and the burn of an error budget. Empty where no check is told."""
    if not judged:
        return Foretold()
    blocks = blocks_of(suite, plan)
    rows = [_row(number, one, suite, plan, blocks, known) for number, one in enumerate(judged)]
    rows += budget_power(suite, blocks)
    return Foretold(tuple(row.power for row in rows), _promotion(rows, blocks))


def _row(number: int, one: JudgedCheck, suite: Suite, plan: Plan, blocks: Blocks | None, known: Known) -> Row:
    if one.check.metric in STAGE_METRICS and blocks is not None:
        return load_power(number, one, suite, blocks, known)
    return Row(item_power(one, suite, plan, known))


def _promotion(rows: Sequence[Row], blocks: Blocks | None) -> Promotion:
    required = [row for row in rows if row.power.required]
    seen = [row.seen for row in required if row.seen is not None]
    together: Ends | None = ends(seen, blocks.looks) if seen and blocks is not None else None
    alone = [row.power.passes for row in required if row.seen is None and row.power.passes is not None]
    counted = len(seen) + len(alone)
    chance = math.prod(alone) * (together.promoted if together is not None else 1.0)
    several = blocks is not None and len(blocks.looks.blocks) > 1
    return Promotion(
        chance=chance if counted else None,
        checks=counted,
        of=len(required),
        blocks=together.mean_blocks if together is not None and several else None,
    )


_NAMED = 3
_LET_IT = "write `allow_underpowered: true` at the check, or in `gate`, to measure all the same"


@dataclass(frozen=True, slots=True)
class Shortfalls:
    """What is said of underpowered checks.

    `certain` stands against measuring at all, `likely` against the plan: by what is known of the noise. `told` stands
    against nothing.
    """

    certain: tuple[str, ...] = ()
    likely: tuple[str, ...] = ()
    told: tuple[str, ...] = ()

    @property
    def refused(self) -> tuple[str, ...]:
        """All that a plan is refused for, and how to have it all the same."""
        return tuple(f"{line}; {_LET_IT}" for line in (*self.certain, *self.likely))


def shortfalls(checks: Sequence[CheckPower]) -> Shortfalls:
    """Required checks that cannot hold, or by measured noise do not carry their margin, are refused unless allowed.

    Where noise is assumed, or that of a single run, they are only told, for nobody knows (and not where they are
    allowed to be so); and so are advisory ones that cannot hold.
    """
    certain, likely, told = list[str](), list[str](), list[str]()
    for check in checks:
        if check.short not in ("certain", "measured"):
            continue
        line = _cannot(check) if check.short == "certain" else _not_likely(check)
        if check.required and not check.allowed:
            (certain if check.short == "certain" else likely).append(line)
        elif check.required or check.short == "certain":
            told.append(line)
    return Shortfalls(tuple(certain), tuple(likely), (*told, *_by_assumption(checks)))


def _cannot(check: CheckPower) -> str:
    return f"{check.id} cannot pass: {check.cannot}; {check.remedy}"


def _not_likely(check: CheckPower) -> str:
    needs = f" (it takes {check.needs:,} for 95 %)" if check.needs is not None else ""
    return (
        f"{check.id} is not likely to carry its margin of {_shown(check, check.margin)}: by the {check.source}, "
        f"{check.has or 0:,} {check.n_unit} show a harm of {_shown(check, check.sees_80)} or more in 80 of 100 "
        f"runs{needs}; measure more, accept a wider margin, or make it advisory"
    )


def _by_assumption(checks: Sequence[CheckPower]) -> Iterator[str]:
    """One line for all of them: the table says the rest."""
    short = [check for check in checks if check.short == "assumed" and check.required and not check.allowed]
    for source in dict.fromkeys(check.source for check in short):
        named = [check.id for check in short if check.source == source]
        more = f" and {len(named) - _NAMED} more" if len(named) > _NAMED else ""
        by = "assumed spreads" if source == "assumed" else f"the {source}"
        yield (
            f"by {by}, so little is measured that {', '.join(named[:_NAMED])}{more} may not carry the margin; "
            f"`benchgate plan` tells how much it takes, and `benchgate calibrate` measures the spreads"
        )


def _shown(check: CheckPower, value: float | None) -> str:
    if value is None:
        return "?"
    return as_written(show_points(value) if check.measure == "difference" else show_percent(value))
