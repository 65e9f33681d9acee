"""What checks of the load can show: paired blocks, shares of requests, and SLOs, at the suite's looks."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from benchgate.plan.assumed import MISSES, cv_of
from benchgate.plan.judged import NOTHING_KNOWN, JudgedCheck, Known
from benchgate.plan.power_row import CheckPower, Row, bare_row
from benchgate.plan.schedule import Plan
from benchgate.stats.look_power import Looks, Rule, Seen, drawn_course, ends, seen
from benchgate.stats.power import blocks_needed, detectable_harm
from benchgate.stats.quantiles import fewest_of_a_quantile, min_n_for_upper_limit
from benchgate.stats.sequential import look_tails
from benchgate.stats.share_power import most_misses, share_shown, zero_misses_needed
from benchgate.suite.metric_kinds import COST_METRICS, KINDS, SHARE_METRICS, STATISTICS, TELEMETRY_METRICS
from benchgate.suite.schema import DeploymentSpec, Suite
from benchgate.units import show_percent, show_points

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
