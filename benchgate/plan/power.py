"""Power of a planned run's checks: what each can detect, how often an equal candidate passes, and refusals.

The arithmetic is that of the gate (`stats`), the checks are those that it will judge (`JudgedCheck`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from benchgate.model.metric import (
    COST_METRICS,
    METRICS,
    POINTS_METRICS,
    QUANTILES,
    SESSION_METRICS,
    STAGE_METRICS,
    TELEMETRY_METRICS,
)
from benchgate.plan.check_power import (
    ASSUMED_MISSES,
    NO_KNOWN_NOISE,
    UNKNOWN_VALUE,
    CheckPower,
    JudgedCheck,
    KnownNoise,
    PowerRow,
    assumed_cv,
    item_power,
    unknown_power,
)
from benchgate.plan.schedule import Plan
from benchgate.stats.power import (
    DecisionRule,
    LookDecisions,
    LookSchedule,
    StoppingRates,
    blocks_for_power,
    decide_looks,
    max_misses_within,
    minimum_detectable_regression,
    minimum_detectable_share,
    share_noninferiority_power,
    simulate_looks,
    stopping_rates,
    zero_miss_sample_size,
)
from benchgate.stats.quantiles import min_n_for_quantile, min_n_for_upper_limit
from benchgate.stats.sequential import look_alphas
from benchgate.suite.error_budget import BURN, BURN_ALARM, ErrorBudget, worst_share
from benchgate.suite.schema import Suite, budget_classes
from benchgate.suite.stages import region_name
from benchgate.units import as_written, show_percent, show_points

_NAMED = 3
_ALLOW = "write `allow_underpowered: true` at the check, or in `gate`, to measure all the same"
_ENOUGH_PAIRS = 8
"""Least pairs of a spread that may refuse a plan: 8 give it within a factor of 2, two within one of 32 (95% limits)."""
_SEED = 0x706C616E  # fixed seed of the simulation, so that a plan reports the same everywhere
_FEWEST = 2
_LEAST_SD = 1e-6  # smaller spreads count as none: two sides that agree to the last digit


@dataclass(frozen=True, slots=True)
class PromotionChance:
    """Probability that all required checks with a forecast promote an equal candidate, taken as independent."""

    chance: float | None  # rather low: latencies of the same requests pass together more often
    checks: int  # with a forecast
    of: int  # all required ones
    blocks: float | None  # mean number used; None without simulated checks at several looks


@dataclass(frozen=True, slots=True)
class PowerForecast:
    """Power of every check in the order of the policy, with added ones, and of all together."""

    checks: tuple[CheckPower, ...] = ()
    promotion: PromotionChance | None = None


def forecast_power(suite: Suite, plan: Plan, judged: Sequence[JudgedCheck], known: KnownNoise) -> PowerForecast:
    """Compute the power of a planned run's checks, and of its error budget. Empty without checks."""
    if not judged:
        return PowerForecast()
    blocks = planned_load(suite, plan)
    rows = [
        load_power(number, one, suite, blocks, known)
        if one.check.metric in STAGE_METRICS and blocks is not None
        else PowerRow(item_power(one, suite, plan, known))
        for number, one in enumerate(judged)
    ]
    rows += budget_power(suite, blocks)
    required = [row for row in rows if row.power.required]
    simulated = [row.seen for row in required if row.seen is not None]
    together: StoppingRates | None = None
    if simulated and blocks is not None:
        together = stopping_rates(simulated, blocks.looks)
    alone = [row.power.passes for row in required if row.seen is None and row.power.passes is not None]
    counted = len(simulated) + len(alone)
    chance = math.prod(alone) * (together.promoted if together is not None else 1.0)
    several = blocks is not None and len(blocks.looks.blocks) > 1
    promotion = PromotionChance(
        chance=chance if counted else None,
        checks=counted,
        of=len(required),
        blocks=together.mean_blocks if together is not None and several else None,
    )
    return PowerForecast(tuple(row.power for row in rows), promotion)


@dataclass(frozen=True, slots=True)
class Shortfalls:
    """Messages on underpowered checks."""

    certain: tuple[str, ...] = ()  # refuse to measure at all
    likely: tuple[str, ...] = ()  # refuse the plan, by known noise
    warnings: tuple[str, ...] = ()

    @property
    def refused(self) -> tuple[str, ...]:
        """Return all reasons that refuse a plan, with the way to allow it."""
        return tuple(f"{line}; {_ALLOW}" for line in (*self.certain, *self.likely))


def shortfalls(checks: Sequence[CheckPower]) -> Shortfalls:
    """Refuse required checks that can never pass, or that measured noise leaves underpowered, unless allowed.

    With assumed noise, or that of a single run, they only warn, except allowed ones; so do advisory checks that can
    never pass.
    """
    certain, likely, warned = list[str](), list[str](), list[str]()
    for check in checks:
        if check.short not in ("certain", "measured"):
            continue
        line = f"{check.id} cannot pass: {check.cannot}; {check.remedy}"
        if check.short == "measured":
            needs = f" (it takes {check.needs:,} for 95 %)" if check.needs is not None else ""
            line = (
                f"{check.id} is underpowered for its margin of {_format(check, check.margin)}: by the {check.source}, "
                f"{check.has or 0:,} {check.n_unit} show a regression of {_format(check, check.sees_80)} or more in "
                f"80 of 100 runs{needs}; measure more, accept a wider margin, or make it advisory"
            )
        if check.required and not check.allowed:
            (certain if check.short == "certain" else likely).append(line)
        elif check.required or check.short == "certain":
            warned.append(line)
    # One line per source of assumed spreads; the table has the details.
    assumed = [check for check in checks if check.short == "assumed" and check.required and not check.allowed]
    for source in dict.fromkeys(check.source for check in assumed):
        named = [check.id for check in assumed if check.source == source]
        more = f" and {len(named) - _NAMED} more" if len(named) > _NAMED else ""
        by = "assumed spreads" if source == "assumed" else f"the {source}"
        warned.append(
            f"by {by}, the measurement is too small for the margin of {', '.join(named[:_NAMED])}{more}; "
            f"`benchgate plan` shows the size needed, `benchgate calibrate` measures the spreads"
        )
    return Shortfalls(tuple(certain), tuple(likely), tuple(warned))


def _format(check: CheckPower, value: float | None) -> str:
    if value is None:
        return "?"
    return as_written(show_points if check.measure == "difference" else show_percent, value)


@dataclass(frozen=True, slots=True)
class PlannedLoad:
    """Interim looks of the load, and the requests that count in each block, by stage or class."""

    looks: LookSchedule
    requests: Mapping[str, tuple[int, ...]]
    may_fail: Mapping[str, tuple[int, ...]]  # with eval items and ramps of closed loops: failures count in all of them
    sessions: Mapping[str, tuple[int, ...]]  # conversations and agent sessions; 0 without any
    forms: Mapping[str, tuple[int, ...]]  # requests of an answer form, which alone have a validity

    @property
    def most(self) -> int:
        """Return the blocks at the last look."""
        return self.looks.blocks[-1]

    @property
    def last_tail(self) -> float:
        """Return the error of limits at the last look."""
        return self.looks.tails[-1]


def planned_load(suite: Suite, plan: Plan) -> PlannedLoad | None:
    """Return the blocks of a plan; None without any.

    Requests cancelled on purpose count nowhere, eval items and ramps only in shares of failed requests. How many an
    open loop's ramp sends depends on the servers, and counts as none.
    """
    if suite.load is None or not plan.blocks:
        return None
    looks = suite.load.looks or (len(plan.blocks),)
    found: list[dict[str, list[int]]] = [{}, {}, {}, {}]
    for block in plan.blocks:
        for stage in block.stages:
            for group in stage.classes:
                if group.background:
                    continue
                stay = [request for request in group.sample if request.leave is None]
                kept = [request for request in stay if request.item is None]
                begun = sum(request.turn is not None and request.turn.turn == 0 for request in group.sample)
                ramp = 0 if group.ramp is None else group.ramp.lead_size
                sampled = len(kept), len(stay), begun, sum(request.ask.requests_form for request in kept)
                numbers = [round(number * group.per_sampled) for number in sampled]
                numbers[1] += ramp
                for each, number in zip(found, numbers, strict=True):
                    each.setdefault(stage.observed_as(group), []).append(number)
    tails = look_alphas([look / looks[-1] for look in looks], suite.gate.alpha)
    for each in found:  # of the region with the fewest
        each |= {
            region_name(name, region): [count // len(suite.regions) for count in counts]
            for name, counts in tuple(each.items())
            for region in suite.regions
        }
    by_name = ({name: tuple(counts) for name, counts in each.items()} for each in found)
    return PlannedLoad(LookSchedule(looks, tails), *by_name)


def load_power(number: int, one: JudgedCheck, suite: Suite, blocks: PlannedLoad, known: KnownNoise) -> PowerRow:
    """Return the power of a check on load; `number` selects its own random stream."""
    if one.check.metric == "validity":
        blocks = replace(blocks, requests=blocks.forms)
    if one.check.metric in ("error_rate", "rejected"):
        blocks = replace(blocks, requests=blocks.may_fail)
    if one.check.metric not in SESSION_METRICS:
        return _load_power(number, one, suite, blocks, known)
    found = _load_power(number, one, suite, replace(blocks, requests=blocks.sessions), known)  # one value each
    row, cannot = found.power, found.power.cannot
    unit = "sessions" if row.n_unit == "requests" else row.n_unit
    return replace(found, power=replace(row, n_unit=unit, cannot=cannot and cannot.replace("requests", "sessions")))


def _load_power(number: int, one: JudgedCheck, suite: Suite, blocks: PlannedLoad, known: KnownNoise) -> PowerRow:
    check, row = one.check, unknown_power(one, suite)
    if check.metric in TELEMETRY_METRICS:
        return PowerRow(replace(row, note="no forecast: it depends on the server's own reports"))
    if check.over is not None:
        return PowerRow(_over_power(row, one, blocks))
    if check.metric in POINTS_METRICS:
        requests = blocks.requests.get(one.stage or "")
        if not requests or min(requests) == 0:
            return PowerRow(replace(row, note="no forecast: the number of requests is not known"))
        if check.margin is None:
            return PowerRow(_share_bound_power(row, one, requests, blocks))
        return _share_margin_power(row, one, requests, blocks, known, number)
    deployments = (suite.deployments[suite.baseline], suite.deployments[suite.candidate])
    if check.metric in COST_METRICS and any(spec.token_prices for spec in deployments):
        known = NO_KNOWN_NOISE  # the noise of a rate is not that of a price per token
    if check.margin is None:
        return PowerRow(_slo_power(row, one, blocks, known))
    return _paired_power(row, one, blocks, known, number)


def _paired_power(row: CheckPower, one: JudgedCheck, blocks: PlannedLoad, known: KnownNoise, number: int) -> PowerRow:
    """Return the power of a margin of a latency or a rate: log ratios over paired blocks."""
    check = one.check
    slower = not METRICS[check.metric].higher_is_better or check.direction == "either"
    assert check.margin is not None, "SLOs are handled elsewhere"
    margin = math.log1p(check.margin) if slower else -math.log1p(-check.margin)
    spread = known.spread(check.metric, one.statistic, one.stage)
    sd = math.sqrt(2) * assumed_cv(one.statistic) if spread is None else max(spread.sd_paired, _LEAST_SD)
    together = _blocks_per_value(one, blocks)
    counts = [max(look // together, 1) for look in blocks.looks.blocks]
    if counts[-1] < _FEWEST:
        return PowerRow(_too_few_values(row, one, blocks))
    row, looked = _by_blocks(row, blocks, counts, sd, margin, _rule(one, margin), number)
    row = replace(
        row,
        n_unit="blocks" if together == 1 else "groups",
        sees_80=_to_ratio(row.sees_80, slower=slower),
        sees_95=_to_ratio(row.sees_95, slower=slower),
        source="assumed" if spread is None else known.noise_source,
        measured=spread is not None and known.calibrated and spread.n >= _ENOUGH_PAIRS,
        note="`min_abs` may allow more than the margin" if check.min_abs is not None else None,
    )
    return PowerRow(row, looked)


def _blocks_per_value(one: JudgedCheck, blocks: PlannedLoad) -> int:
    """Return how many blocks are pooled for a value of a high quantile: a single one may have too few requests."""
    q = QUANTILES.get(one.statistic or "", 0.5)
    requests = [count for stage in (one.stage, one.over) for count in blocks.requests.get(stage or "", ())]
    if not requests or q <= 0.5 or one.check.metric == "itl":  # itl has many values a request
        return 1
    return math.ceil(min_n_for_quantile(q) / max(min(requests), 1))


def _too_few_values(row: CheckPower, one: JudgedCheck, blocks: PlannedLoad) -> CheckPower:
    """Mark a check of a high quantile whose blocks together have too few requests for an interval."""
    fewest = _FEWEST * min_n_for_quantile(QUANTILES[one.statistic or ""])
    why = f"its {blocks.most} blocks have fewer than the {fewest:,} requests that it takes for {_FEWEST} values"
    return _never(row, why, None, "send more, or judge a lower statistic")


def _by_blocks(
    row: CheckPower,
    blocks: PlannedLoad,
    counts: Sequence[int],
    sd: float,
    margin: float,
    rule: DecisionRule,
    number: int,
    sd_at: Callable[[float], float] | None = None,
) -> tuple[CheckPower, LookDecisions]:
    """Return the power of paired blocks (or groups of them) of this spread, on the scale of differences.

    `sd_at` is their spread at a regression, where that grows with it.
    """
    course = simulate_looks(counts, np.random.default_rng([_SEED, number]))
    looked = decide_looks(course, blocks.looks, rule, sd=sd)
    tail = blocks.last_tail
    sides = 2 if rule.two_sided else 1  # each of which may err half as often
    at_margin = sd if sd_at is None else sd_at(margin)
    row = replace(
        row,
        has=counts[-1],
        needs=blocks_for_power(at_margin, margin, alpha=tail, power=1 - 0.05 / sides),
        sees_80=minimum_detectable_regression(counts[-1], sd, alpha=tail / sides, power=0.8, sd_at=sd_at),
        sees_95=minimum_detectable_regression(counts[-1], sd, alpha=tail / sides, power=0.95, sd_at=sd_at),
        passes=stopping_rates([looked], blocks.looks).promoted,
        spread=sd,
    )
    return row, looked


def _share_margin_power(
    row: CheckPower, one: JudgedCheck, requests: Sequence[int], blocks: PlannedLoad, known: KnownNoise, number: int
) -> PowerRow:
    """Return the power of a margin of a share, whose difference is at least as uncertain as that of its requests."""
    margin, total, tail = one.check.margin or 0.0, sum(requests), blocks.last_tail
    row = replace(row, measure="difference", n_unit="requests", has=total)
    least = 1 - tail ** (1 / total)
    if least >= margin:
        loss = f"a loss of up to {show_points(least)} cannot be ruled out, and the margin is {show_points(margin)}"
        why = f"even where none of {total:,} requests misses, {loss}"
        return PowerRow(_never(row, why, zero_miss_sample_size(margin, tail)))
    spread = known.spread(one.check.metric, None, one.stage) if one.check.of is None else None
    if spread is not None and spread.sd_paired < _LEAST_SD:
        spread = None  # no miss then does not exclude misses now: requests alone vary
    misses = ASSUMED_MISSES
    if one.check.metric == "goodput" and one.target_ratio:
        misses = max(ASSUMED_MISSES, 1 - one.target_ratio)
    by_chance = math.sqrt(2 * misses * (1 - misses) / min(requests))
    sd = by_chance if spread is None else max(spread.sd_paired, _LEAST_SD)
    # Mean design effect of misses that cluster only by chance: about normal, and never taken as below 1.
    design_effect = 1 + math.sqrt(2 / (blocks.most - 1)) / math.sqrt(2 * math.pi)
    limit_sd = by_chance * math.sqrt(design_effect)
    least_sd = limit_sd if spread is None else min(sd, limit_sd)
    rule = _rule(one, margin, least_sd=least_sd, lump=design_effect / min(requests))

    def sd_at(harm: float) -> float:  # the more misses, the more they vary
        return math.sqrt(sd**2 + max(0.0, harm * (1 - 2 * misses - harm)) / min(requests))

    row, looked = _by_blocks(row, blocks, blocks.looks.blocks, sd, margin, rule, number, sd_at)
    row = replace(
        row,
        n_unit="requests",
        has=total,
        needs=None if row.needs is None else row.needs * min(requests),
        source="assumed" if spread is None else known.noise_source,
        measured=spread is not None and known.calibrated and spread.n >= _ENOUGH_PAIRS,
        note=f"assuming that {show_percent(misses)} of the baseline's requests miss" if spread is None else None,
    )
    return PowerRow(row, looked)


def _share_bound_power(row: CheckPower, one: JudgedCheck, requests: Sequence[int], blocks: PlannedLoad) -> CheckPower:
    """Return the power of a bound of a share: the misses allowed, and the true share that is shown to exceed it."""
    check, total, tail = one.check, sum(requests), blocks.last_tail
    bound = check.slo_value if check.slo_value is not None else one.target_ratio
    rises, at_least = METRICS[check.metric].higher_is_better, check.max is None
    row = replace(row, measure="share", n_unit="requests", has=total)
    if bound is None or rises != at_least:
        return replace(row, note="no forecast: the share itself is not known")
    allowed = 1 - bound if rises else bound
    most = max_misses_within(requests, allowed, tail)
    if most is None:
        needs = zero_miss_sample_size(allowed, tail) if allowed > 0 else None
        least = 1 - tail ** (1 / total)
        why = f"even where none of {total:,} requests misses, up to {show_percent(least)} may"
        return _never(row, f"{why}, and {show_percent(allowed)} are allowed", needs)
    few = "no miss" if most == 0 else f"at most {most:,} miss{'es' if most > 1 else ''}"
    return replace(
        row,
        needs=zero_miss_sample_size(allowed, tail),
        sees_80=minimum_detectable_share(requests, allowed, alpha=tail, power=0.8),
        sees_95=minimum_detectable_share(requests, allowed, alpha=tail, power=0.95),
        note=f"holds with {few} in {total:,}; the actual number is not known",
    )


def _slo_power(row: CheckPower, one: JudgedCheck, blocks: PlannedLoad, known: KnownNoise) -> CheckPower:
    """Return the power of an SLO of a latency or a rate, and check that its quantile can have an upper limit."""
    check, slower, tail = one.check, not METRICS[one.check.metric].higher_is_better, blocks.last_tail
    row = replace(row, n_unit="blocks", has=blocks.most, measure="ratio")
    values = max(blocks.most // _blocks_per_value(one, blocks), 1)  # as many as the spread's own
    requests = blocks.requests.get(one.stage or "")
    if one.statistic in QUANTILES and requests is not None:
        needs = min_n_for_upper_limit(QUANTILES[one.statistic], tail)
        row = replace(row, n_unit="requests", has=sum(requests), needs=needs)
        if sum(requests) < needs:
            return _never(row, f"the {one.statistic} of {sum(requests):,} requests has no upper limit", needs)
    spread = known.spread(check.metric, one.statistic, one.stage)
    cv = assumed_cv(one.statistic) if spread is None else max(spread.cv_run, _LEAST_SD)
    return replace(
        row,
        sees_80=_to_ratio(minimum_detectable_regression(values, cv, alpha=tail, power=0.8), slower=slower),
        sees_95=_to_ratio(minimum_detectable_regression(values, cv, alpha=tail, power=0.95), slower=slower),
        spread=cv,
        source="assumed" if spread is None else known.noise_source,
        measured=spread is not None and known.calibrated and spread.n >= _ENOUGH_PAIRS,
        note=UNKNOWN_VALUE,
    )


def _over_power(row: CheckPower, one: JudgedCheck, blocks: PlannedLoad) -> CheckPower:
    """Return the power of one stage over another, for ratios."""
    row = replace(row, n_unit="blocks", has=blocks.most)
    if one.check.metric in POINTS_METRICS:
        return replace(row, note=UNKNOWN_VALUE)
    together = _blocks_per_value(one, blocks)
    values = blocks.most // together
    if values < _FEWEST:
        return _too_few_values(row, one, blocks)
    sd, slower, tail = math.sqrt(2) * assumed_cv(one.statistic), one.check.max is not None, blocks.last_tail
    return replace(
        row,
        n_unit="blocks" if together == 1 else "groups",
        has=values,
        measure="ratio",
        sees_80=_to_ratio(minimum_detectable_regression(values, sd, alpha=tail, power=0.8), slower=slower),
        sees_95=_to_ratio(minimum_detectable_regression(values, sd, alpha=tail, power=0.95), slower=slower),
        spread=sd,
        source="assumed",
        note=UNKNOWN_VALUE,
    )


def _rule(one: JudgedCheck, margin: float, *, least_sd: float = 0.0, lump: float = 0.0) -> DecisionRule:
    check = one.check
    return DecisionRule(margin, check.block_when == "breach", least_sd, lump, two_sided=check.direction == "either")


def _never(row: CheckPower, why: str, needs: int | None, remedy: str | None = None) -> CheckPower:
    """Mark a check that can never pass with its number of requests."""
    wider = "accept a wider bound" if needs is None else f"send at least {needs:,}, or accept a wider bound"
    return replace(row, needs=needs, passes=0.0, cannot=why, remedy=remedy or wider)


def _to_ratio(harm: float | None, *, slower: bool) -> float | None:
    """Convert a regression on the log scale to a ratio of the reference value; None if too large for a float."""
    if harm is None or harm > 700:
        return None
    return math.expm1(harm) if slower else -math.expm1(-harm)


def budget_power(suite: Suite, blocks: PlannedLoad | None) -> Iterator[PowerRow]:
    """Yield the power of each burn check that the gate will add; none without a budget."""
    budget = suite.error_budget
    if budget is None or blocks is None:
        return
    for place in budget_classes(suite):
        row = CheckPower(
            id=f"{BURN}@{place.name}",
            metric=BURN,
            required=True,
            allowed=suite.gate.allow_underpowered,
            measure="share",
            n_unit="requests",
        )
        requests = (blocks.may_fail if budget.metric == "error_rate" else blocks.requests).get(place.name)
        if place.is_background or not requests or min(requests) == 0:
            yield PowerRow(replace(row, note="no forecast: the number of requests is not known"))
        else:
            yield PowerRow(_burn_power(row, budget, requests, blocks.last_tail))


def _burn_power(row: CheckPower, budget: ErrorBudget, requests: Sequence[int], tail: float) -> CheckPower:
    """Return the power with all blocks; `passes` is for a candidate whose failures just meet the objective."""
    worst, total, allowed = worst_share(budget.objective_ratio), sum(requests), 1 - budget.objective_ratio
    most = max_misses_within(requests, worst, tail)
    needs = zero_miss_sample_size(worst, tail) if worst < 1 else None
    if most is None:
        why = f"even where none of {total:,} requests fails, a burn above {BURN_ALARM}x cannot be ruled out"
        remedy = "send more" if needs is None else f"send at least {needs:,}"
        return replace(row, has=total, needs=needs, passes=0.0, cannot=why, remedy=remedy)
    failed = "failed" if budget.metric == "error_rate" else "were not good"
    return replace(
        row,
        has=total,
        needs=needs,
        sees_80=minimum_detectable_share(requests, worst, alpha=tail, power=0.8),
        sees_95=minimum_detectable_share(requests, worst, alpha=tail, power=0.95),
        passes=share_noninferiority_power(requests, worst, allowed, tail),
        note=f"rules out a burn of {BURN_ALARM}x with at most {most:,} of {total:,} that {failed}; assuming "
        f"{show_percent(allowed)}, as the objective allows",
    )
