"""May costs be compared, and do they cover what ran?

Two stored runs have the prices of their own days. A price that moved in between is not the candidate's doing, so both
costs must come from one price list, as far as the suites tell. And a price may be of fewer accelerators than the server
reports, or of another kind.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

from pydantic import ValidationError

from benchgate.gate.comparison import Comparison, TiedRuns, UntiedRuns
from benchgate.gate.decision import invalid
from benchgate.gate.evidence.deployments import FLAGS, models_in, reported_accelerators
from benchgate.model.deployment import Arm, Deployment
from benchgate.model.run import Run
from benchgate.suite.deployment import DeploymentSpec

_TOGETHER = (
    "measure the two candidates at the prices of one day: beside each other (benchgate compare A B --suite SUITE), or "
    "by one suite whose prices of both did not change in between"
)


@dataclass(frozen=True, slots=True)
class _Price:
    """Price of a deployment, and the kind of accelerator that it is for, if the suite names one."""

    usd_per_hour: float | None
    usd_per_million: tuple[tuple[str, float], ...]
    accelerator: str | None = None
    is_readable: bool = True  # False if this version of benchgate cannot read the suite's entry

    @classmethod
    def of(cls, usd_per_hour: float | None, usd_per_million: Mapping[str, float]) -> _Price:
        return cls(usd_per_hour, tuple(sorted(usd_per_million.items())))

    @property
    def amounts(self) -> tuple[object, ...]:
        """Return the amounts of money."""
        return self.usd_per_hour, self.usd_per_million

    def agrees_with(self, other: _Price | None) -> bool:
        """Return True for equal amounts on accelerators that are not known to differ."""
        if other is None or self.amounts != other.amounts or not (self.is_readable and other.is_readable):
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
    if not isinstance(comparison, UntiedRuns) and len({_price_paid(run, Arm.BASELINE).amounts for run in runs}) > 1:
        reason = "the baseline that both runs had beside them did not have the same price in both"
        raise invalid(f"{reason}, so its cost ties nothing together", _TOGETHER)
    mismatch = price_list_mismatch(*runs)
    if mismatch is not None:
        raise invalid(mismatch, _TOGETHER)


def price_list_mismatch(judged: Run, reference: Run) -> str | None:
    """Return why the candidates' costs of two runs may not be compared; None if both have one price list."""
    if _same_price_list(judged, reference):
        return None
    runs = (reference, judged)
    prices = [_price_paid(run, Arm.CANDIDATE) for run in runs]
    if prices[0].amounts != prices[1].amounts:
        each = " and ".join(f"{price} on {run.day}" for price, run in zip(prices, runs, strict=True))
        reason = f"each candidate has the price of its own run's day ({each}), and these are of no one price list"
        return f"{reason}: what prices did in between would count as its change"
    unreadable = [run for price, run in zip(prices, runs, strict=True) if not price.is_readable]
    if unreadable:
        return (
            f"this version of benchgate cannot read the candidate's entry in the suite of the run on "
            f"{unreadable[0].day}, so the accelerators that it is paid for are not known"
        )
    for kind in (_priced_accelerator, _reported_accelerator):
        first, second = kind(reference), kind(judged)
        if first is not None and second is not None and first != second:
            each = f"{first} on {reference.day} and {second} on {judged.day}"
            reason = f"both candidates cost {prices[0]}, on accelerators that are not said to be the same ({each})"
            return f"{reason}: what their prices did in between is not known"
    return None


def _priced_accelerator(run: Run) -> str | None:
    return _price_paid(run, Arm.CANDIDATE).accelerator


def _reported_accelerator(run: Run) -> str | None:
    names = run.arms[Arm.CANDIDATE].facts.get("accelerator_names")
    return ", ".join(sorted({str(name) for name in names})) if isinstance(names, list) and names else None


def _same_price_list(judged: Run, reference: Run) -> bool:
    """Return True if both suites price both candidates, alike. Of one name they may be two deployments."""
    names = [run.arms[Arm.CANDIDATE].name for run in (judged, reference)]
    return names[0] != names[1] and all(
        _price_paid(own, Arm.CANDIDATE).agrees_with(_price_by_suite(other, name))
        for own, other, name in ((judged, reference, names[0]), (reference, judged, names[1]))
    )


def _price_paid(run: Run, arm: Arm) -> _Price:
    deployment = run.arms.get(arm)
    if deployment is None:
        return _Price.of(None, {})
    paid = _Price.of(deployment.price_usd_per_hour, deployment.token_prices)
    by_suite = _price_by_suite(run, deployment.name)
    if by_suite is None:
        return paid
    return replace(paid, accelerator=by_suite.accelerator, is_readable=by_suite.is_readable)


def _price_by_suite(run: Run, name: str) -> _Price | None:
    """Return the price of the deployment of this name in a run's suite; None if it does not know it."""
    deployments = run.suite.get("deployments")
    kept = deployments.get(name) if isinstance(deployments, dict) else None
    if kept is None:
        return None
    try:
        spec = DeploymentSpec.model_validate(kept, by_name=True, by_alias=False, context={"stored": True})
    except ValidationError:
        return _Price(None, (), is_readable=False)
    by_token = {} if spec.token_prices is None else spec.token_prices.to_stored()
    return replace(_Price.of(spec.usd_per_hour, by_token), accelerator=spec.accelerator)


PRICE_MISMATCH = "its price is not of what ran"

_PARALLEL = ("tp_size", "pp_size")  # of SGLang: each of their product is an accelerator of its own


def cost_coverage_warning(baseline: Deployment | None, candidate: Deployment) -> str | None:
    """Warn if prices make the candidate seem cheaper than it is; None for prices per token and silent servers.

    It has a price of fewer accelerators than its server reports, the baseline of more, or one of another kind.
    """
    of_candidate = price_mismatch(candidate)
    if of_candidate is not None or baseline is None:
        return None if of_candidate is None else f"the candidate {of_candidate}"
    of_baseline = _other_kind(baseline) or overpaid(baseline)
    return None if of_baseline is None else f"the baseline {of_baseline}"


def accelerator_count_warning(baseline: Deployment | None, candidate: Deployment) -> str | None:
    """Warn if declared numbers of accelerators make the candidate seem to do more with each.

    The candidate's server reports more than the suite declares, or the baseline's fewer.
    """
    found = max(len(reported_accelerators(candidate)), _accelerators_by_flags(candidate))
    if found > candidate.accelerators:
        return _count_warning(candidate, found)
    found = 0 if baseline is None else len(reported_accelerators(baseline))
    if baseline is None or found == 0 or max(found, _accelerators_by_flags(baseline)) >= baseline.accelerators:
        return None
    return _count_warning(baseline, found)


def _count_warning(deployment: Deployment, found: int) -> str:
    declared = f"{deployment.name} is declared with {deployment.accelerators}"
    return f"{declared} of the accelerators by which it is divided, and its server reports {found}"


def price_mismatch(deployment: Deployment) -> str | None:
    """Describe a price of fewer accelerators than the server reports, or of another kind, as what follows a name."""
    other = _other_kind(deployment)
    if other is not None or deployment.price_usd_per_hour is None:
        return other
    least = max(len(reported_accelerators(deployment)), _accelerators_by_flags(deployment))
    return _paid_for(deployment, least) if least > deployment.accelerators else None


def overpaid(deployment: Deployment) -> str | None:
    """Describe a price of more accelerators than the server reports, which may know no machine but its own."""
    reported = 0 if deployment.price_usd_per_hour is None else len(reported_accelerators(deployment))
    if reported == 0 or max(reported, _accelerators_by_flags(deployment)) >= deployment.accelerators:
        return None
    return _paid_for(deployment, reported)


def _paid_for(deployment: Deployment, reported: int) -> str:
    paid = deployment.accelerators
    return f"is paid for {paid} accelerator{'' if paid == 1 else 's'}, and its server reports {reported}"


def _other_kind(deployment: Deployment) -> str | None:
    """Describe a price of another kind of accelerator than the server reports; None if either is not known."""
    paid, reported = deployment.price_entry.get("accelerator"), deployment.facts.get("accelerator_names")
    if not isinstance(paid, str) or not isinstance(reported, list):
        return None
    models = models_in(paid)
    unlike = [str(name) for name in reported if models and (own := models_in(str(name))) and not own & models]
    return f"has the price of accelerator {paid}, and its server reports {unlike[0]}" if unlike else None


def _accelerators_by_flags(deployment: Deployment) -> int:
    """Return the fewest accelerators by the engine's start-up flags; 1 if it has none."""
    flags = deployment.facts.get(FLAGS)
    sizes = [flags.get(name, 1) for name in _PARALLEL] if isinstance(flags, dict) else []
    return math.prod(size for size in sizes if isinstance(size, int) and size >= 1)
