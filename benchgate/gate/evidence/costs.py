"""Costs: dollars per million tokens with 95 % limits, and costs that must not be compared.

A price that moved between the days of two runs is no change of a candidate, so both costs must be of one price list.
A suite that declares no accelerators pays for one, whatever the servers report.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from pydantic import ValidationError

from benchgate.gate.comparison import Comparison, TiedRuns, UntiedRuns
from benchgate.gate.decision import invalid
from benchgate.gate.evidence.deployments import accelerators_by_flags, models_in, reported_accelerators
from benchgate.gate.evidence.intervals import block_limits, block_mean
from benchgate.model import request_metrics
from benchgate.model.deployment import Arm, Deployment, usd_per_million_tokens
from benchgate.model.metric import Slo
from benchgate.model.records import RequestColumns
from benchgate.model.run import LoadObservation, Run
from benchgate.stats.distributions import Limits
from benchgate.suite.deployment import DeploymentSpec

Cost = tuple[float | None, Limits | None]  # dollars per million tokens, with 95 % limits

_ROUNDING = 1e-9

Counted = Callable[[LoadObservation], "float | None"]
"""Function that counts the tokens of a block over which its cost is spread; None if unknown."""


def unit_cost(deployment: Deployment, blocks: Sequence[LoadObservation], counted: Counted) -> Cost:
    """Return dollars per million counted tokens with 95 % limits.

    Hourly prices use the mean throughput of the blocks, token prices the mean of the blocks' costs. None without a
    price, without a count in every block, or without tokens. The price itself is taken as exact.
    """
    if deployment.token_prices:
        costs = [block_cost(deployment, block, counted) for block in blocks]
        known = [None if cost is None or math.isinf(cost) else cost for cost in costs]
        limits, first = block_limits(known), known[0]
        if limits is None and first is not None and len(known) > 1 and all(cost == first for cost in known):
            limits = Limits(first, first)  # tokens are counted exactly, so an equal cost has no spread
        return block_mean(known), limits
    return hourly_cost(deployment, [_pace(block, counted) for block in blocks])


def hourly_cost(deployment: Deployment, tokens_per_s: Sequence[float | None]) -> Cost:
    """Return the unit cost of a deployment paid by the hour at the mean throughput of its blocks.

    It has no limits if the throughput may be 0.
    """
    rates = block_limits(tokens_per_s)
    ends = (None, None) if rates is None else (rates.upper, rates.lower)
    lower, upper = (_hourly(deployment, rate) for rate in ends)
    limits = None if lower is None or upper is None else Limits(lower, upper)
    return _hourly(deployment, block_mean(tokens_per_s)), limits


def block_cost(deployment: Deployment, block: LoadObservation, counted: Counted) -> float | None:
    """Return the unit cost of one block; infinite if no token counts, None if unknown."""
    tokens = counted(block)
    if tokens is None or not deployment.has_price:
        return None
    if tokens == 0:
        return math.inf
    if not deployment.token_prices:
        return _hourly(deployment, _pace(block, counted))
    usd = billed_usd(deployment.token_prices, block.requests)
    return None if usd is None else usd * 1e6 / tokens


def billed_usd(prices: Mapping[str, float], requests: RequestColumns) -> float | None:
    """Return the cost of requests at prices per million tokens; None if the server reported no prompt tokens."""
    read = request_metrics.input_tokens(requests)
    if read is None:
        return None
    cached = request_metrics.cached_tokens(requests)
    paid = (read - cached) * prices["input"] + cached * prices["cached_input"]
    return (paid + request_metrics.output_tokens(requests) * prices["output"]) / 1e6


def output_tokens(slo: Slo | None = None) -> Counted:
    """Count output tokens of successful requests, or of those that meet an SLO."""
    return lambda block: request_metrics.output_tokens(block.requests, slo=slo)


def input_tokens(block: LoadObservation) -> float | None:
    """Count input tokens of successful requests."""
    return request_metrics.input_tokens(block.requests)


def total_tokens(block: LoadObservation) -> float | None:
    """Count input and output tokens of successful requests."""
    return request_metrics.total_tokens(block.requests)


def cost_in_use(deployment: Deployment, cost: Cost) -> Cost:
    """Return the cost including the deployment's declared overhead and idle time; None if undeclared."""
    factor, (value, limits) = deployment.in_use_factor, cost
    if factor is None or value is None:
        return None, None
    return value * factor, None if limits is None else limits.mapped(lambda usd: usd * factor)


def idle_cost_warning(baseline: Deployment, candidate: Deployment) -> str | None:
    """Return a warning if overhead and idle time are a larger share of the candidate's cost; None if not.

    A deployment that declares no use counts as fully used.
    """
    baseline_factor, factor = (1.0 if one.in_use_factor is None else one.in_use_factor for one in (baseline, candidate))
    if factor <= baseline_factor * (1 + _ROUNDING):
        return None
    factors = (
        f"{factor:.3g} times the cost at full use for the candidate and {baseline_factor:.3g} times for the baseline"
    )
    return f"idle time and overhead raise the cost to {factors}; the check compares at full use"


def _pace(block: LoadObservation, counted: Counted) -> float | None:
    tokens = counted(block)
    return None if tokens is None or block.window_s <= 0 else tokens / block.window_s


def _hourly(deployment: Deployment, tokens_per_s: float | None) -> float | None:
    if deployment.price_usd_per_hour is None or tokens_per_s is None:
        return None
    return usd_per_million_tokens(deployment.price_usd_per_hour, deployment.accelerators, tokens_per_s)


_TOGETHER = (
    "measure the two candidates at the prices of one day: beside each other (`benchgate run SUITE`), or by one "
    "suite whose prices of both did not change in between"
)


@dataclass(frozen=True, slots=True)
class _Price:
    """Price of a deployment and kind of accelerator by its suite; `is_readable` is False for an invalid entry."""

    usd_per_hour: float | None
    usd_per_million: tuple[tuple[str, float], ...] = ()
    accelerator: str | None = None
    is_readable: bool = True

    @property
    def sums(self) -> tuple[object, ...]:
        return self.usd_per_hour, self.usd_per_million

    def agrees_with(self, other: _Price | None) -> bool:
        if other is None or self.sums != other.sums or not (self.is_readable and other.is_readable):
            return False
        return None in (self.accelerator, other.accelerator) or self.accelerator == other.accelerator

    def __str__(self) -> str:
        if self.usd_per_million:
            return ", ".join(f"${usd:g}/M of {kind.replace('_', ' ')}" for kind, usd in self.usd_per_million)
        return "no price" if self.usd_per_hour is None else f"${self.usd_per_hour:g}/h"


def require_one_price_list(comparison: Comparison) -> None:
    """Raise CannotJudge if costs of two runs would be compared at two price lists.

    The baseline that ties two runs together must have had one price in both. Two candidates of one price on like
    accelerators are paid alike; any others must each have had one price by both runs' suites.
    """
    if not isinstance(comparison, TiedRuns):
        return
    runs = (comparison.judged.run, comparison.reference.run)
    if not isinstance(comparison, UntiedRuns) and len({_paid(run, Arm.BASELINE).sums for run in runs}) > 1:
        reason = "the baseline that both runs had beside them did not have the same price in both"
        raise invalid(f"{reason}, so its cost ties nothing together", _TOGETHER)
    why = price_list_mismatch(*runs)
    if why is not None:
        raise invalid(why, _TOGETHER)


def price_list_mismatch(judged: Run, reference: Run) -> str | None:
    """Return why the costs of two runs' candidates may not be compared; None if both are of one price list."""
    runs = (reference, judged)
    prices, names = [_paid(run, Arm.CANDIDATE) for run in runs], [run.arms[Arm.CANDIDATE].name for run in runs]
    in_other_suite = (_declared_price(judged, names[0]), _declared_price(reference, names[1]))
    if names[0] != names[1] and all(map(_Price.agrees_with, prices, in_other_suite)):
        return None
    if prices[0].sums != prices[1].sums:
        both = " and ".join(f"{price} on {run.day}" for price, run in zip(prices, runs, strict=True))
        reason = f"each candidate has the price of its own run's day ({both}), and these are of no one price list"
        return f"{reason}: what prices did in between would count as its change"
    closed = [run for price, run in zip(prices, runs, strict=True) if not price.is_readable]
    if closed:
        return (
            f"this version of benchgate cannot read the candidate's entry in the suite of the run on {closed[0].day}, "
            "so the accelerators that it is paid for are not known"
        )
    reported = [", ".join(sorted(set(reported_accelerators(run.arms[Arm.CANDIDATE])))) or None for run in runs]
    kinds = [(price.accelerator, names) for price, names in zip(prices, reported, strict=True)]
    unlike = next((pair for pair in zip(*kinds, strict=True) if None not in pair and pair[0] != pair[1]), None)
    if unlike is None:
        return None
    both = " and ".join(f"{kind} on {run.day}" for kind, run in zip(unlike, runs, strict=True))
    return (
        f"both candidates cost {prices[0]}, on accelerators that are not said to be the same ({both}): what their"
        " prices did in between is not known"
    )


def _paid(run: Run, arm: Arm) -> _Price:
    deployment = run.arms.get(arm)
    if deployment is None:
        return _Price(None)
    declared = _declared_price(run, deployment.name) or _Price(None)
    by_token = tuple(sorted(deployment.token_prices.items()))
    return replace(declared, usd_per_hour=deployment.price_usd_per_hour, usd_per_million=by_token)


def _declared_price(run: Run, name: str) -> _Price | None:
    deployments = run.suite.get("deployments")
    kept = deployments.get(name) if isinstance(deployments, dict) else None
    if kept is None:
        return None
    try:
        spec = DeploymentSpec.model_validate(kept, by_name=True, by_alias=False, context={"stored": True})
    except ValidationError:
        return _Price(None, is_readable=False)
    by_token = {} if spec.token_prices is None else spec.token_prices.to_stored()
    return _Price(spec.usd_per_hour, tuple(sorted(by_token.items())), spec.accelerator)


PRICE_MISMATCH = "its price is not of what ran"


def cost_coverage_warning(baseline: Deployment | None, candidate: Deployment) -> str | None:
    """Return a warning if the accelerators paid for make the candidate seem cheaper than it is; else None.

    The candidate's server reports more of them than are paid for, the baseline's fewer, or either another kind. None if
    no server reports any, and for what is paid by the token.
    """
    candidate_fault = price_mismatch(candidate)
    if candidate_fault is not None or baseline is None:
        return None if candidate_fault is None else f"the candidate {candidate_fault}"
    baseline_fault = _paid_as_another(baseline) or overpaid(baseline)
    return None if baseline_fault is None else f"the baseline {baseline_fault}"


def accelerator_count_warning(baseline: Deployment | None, candidate: Deployment) -> str | None:
    """Return a warning if miscounted accelerators make the candidate seem to do more with each; else None.

    The candidate's server reports more than the suite declares, or the baseline's fewer.
    """
    deployment, found = candidate, _fewest_accelerators(candidate)
    if found <= candidate.accelerators:
        found = 0 if baseline is None else len(reported_accelerators(baseline))
        if baseline is None or not found or _fewest_accelerators(baseline) >= baseline.accelerators:
            return None
        deployment = baseline
    return (
        f"{deployment.name} is declared with {deployment.accelerators} of the accelerators by which it is divided, "
        f"and its server reports {found}"
    )


def price_mismatch(deployment: Deployment) -> str | None:
    """Return why a price is of fewer or other accelerators than the server reports, as what follows a name."""
    other = _paid_as_another(deployment)
    if other is not None or deployment.price_usd_per_hour is None:
        return other
    least = _fewest_accelerators(deployment)
    return _counted(deployment, least) if least > deployment.accelerators else None


def overpaid(deployment: Deployment) -> str | None:
    """Return a warning if it is paid for more accelerators than its server reports, which may know one machine only."""
    reported, least = len(reported_accelerators(deployment)), _fewest_accelerators(deployment)
    if deployment.price_usd_per_hour is None or not reported or least >= deployment.accelerators:
        return None
    return _counted(deployment, reported)


def _fewest_accelerators(deployment: Deployment) -> int:
    """Return the least number that the server has, by its report and by how the engine was started."""
    return max(len(reported_accelerators(deployment)), accelerators_by_flags(deployment))


def _counted(deployment: Deployment, reported: int) -> str:
    paid = deployment.accelerators
    return f"is paid for {paid} accelerator{'' if paid == 1 else 's'}, and its server reports {reported}"


def _paid_as_another(deployment: Deployment) -> str | None:
    paid, reported = deployment.price_entry.get("accelerator"), deployment.facts.get("accelerator_names")
    if not isinstance(paid, str) or not isinstance(reported, list):
        return None
    bought = models_in(paid)
    unlike = [str(name) for name in reported if bought and (seen := models_in(str(name))) and not seen & bought]
    return f"has the price of accelerator {paid}, and its server reports {unlike[0]}" if unlike else None
