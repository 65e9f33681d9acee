"""Two stored runs have the prices of their own days: whether a cost may be compared at all between them.

A price that moved from one day to the other is nothing that either candidate did. So what each of the two costs must
have been the same in both runs, as far as anybody says: then the costs are those of one price list.

Are all accelerators paid for, and as what they are? A suite that says nothing of them pays for one, whatever the
servers tell, and a price of a file is that of the kind that the suite names.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from pydantic import ValidationError

from benchgate.gate.comparison import Comparison, TiedRuns, UntiedRuns
from benchgate.gate.decision import invalid
from benchgate.gate.evidence.deployments import FLAGS, models_in, reported_accelerators
from benchgate.model.deployment import Arm, Deployment
from benchgate.model.metric import COST_METRICS
from benchgate.model.run import Run
from benchgate.suite.deployment import DeploymentSpec

_TOGETHER = (
    "measure the two candidates at the prices of one day: beside each other (benchgate compare A B --suite SUITE), or "
    "by one suite whose prices of both did not change in between"
)


@dataclass(frozen=True, slots=True)
class _Price:
    """What is paid, and for which kind of accelerator where the suite says that; `is_read` where that can be read."""

    usd_per_hour: float | None
    usd_per_million: tuple[tuple[str, float], ...]
    accelerator: str | None
    is_read: bool = True

    @property
    def sums(self) -> tuple[object, ...]:
        """What is paid alone."""
        return self.usd_per_hour, self.usd_per_million

    def agrees_with(self, said: _Price | None) -> bool:
        """Whether the same is said to be paid, and nothing of the accelerator that differs."""
        if said is None or self.sums != said.sums or not (self.is_read and said.is_read):
            return False
        return None in (self.accelerator, said.accelerator) or self.accelerator == said.accelerator

    @property
    def told(self) -> str:
        if self.usd_per_million:
            return ", ".join(f"${usd:g}/M of {kind.replace('_', ' ')}" for kind, usd in self.usd_per_million)
        return "no price" if self.usd_per_hour is None else f"${self.usd_per_hour:g}/h"


def require_one_price_list(comparison: Comparison, metric: str) -> None:
    """Raise CannotJudge if costs of two runs would be compared at two price lists. Other metrics may.

    The baseline that ties two runs together must have had one price in both. Two candidates of one price on like
    accelerators are paid alike; any others must each have had one price by both runs' suites.
    """
    if metric not in COST_METRICS or not isinstance(comparison, TiedRuns):
        return
    runs = (comparison.judged.run, comparison.reference.run)
    if not isinstance(comparison, UntiedRuns) and len({_paid(run, Arm.BASELINE).sums for run in runs}) > 1:
        reason = "the baseline that both runs had beside them did not have the same price in both"
        raise invalid(f"{reason}, so its cost ties nothing together", _TOGETHER)
    why = of_no_one_list(*runs)
    if why is not None:
        raise invalid(why, _TOGETHER)


def of_no_one_list(judged: Run, reference: Run) -> str | None:
    """Why what the candidates of two runs cost may not be compared; None where both are of one price list."""
    if _of_one_list(judged, reference):
        return None
    runs = (reference, judged)
    prices = [_paid(run, Arm.CANDIDATE) for run in runs]
    if prices[0].sums != prices[1].sums:
        told = " and ".join(f"{price.told} on {run.day}" for price, run in zip(prices, runs, strict=True))
        reason = f"each candidate has the price of its own run's day ({told}), and these are of no one price list"
        return f"{reason}: what prices did in between would count as its change"
    closed = [run for price, run in zip(prices, runs, strict=True) if not price.is_read]
    if closed:
        return (
            f"what the suite of the run on {closed[0].day} says of its candidate cannot be read by this benchgate, so"
            " on which accelerators it is paid for is not known"
        )
    kinds = _unlike_accelerators(*runs)
    if kinds is None:
        return None
    told = " and ".join(f"{kind} on {run.day}" for kind, run in zip(kinds, runs, strict=True))
    return (
        f"both candidates cost {prices[0].told}, on accelerators that are not said to be the same ({told}): what their"
        " prices did in between is not known"
    )


def _unlike_accelerators(one: Run, other: Run) -> tuple[str, str] | None:
    """What two candidates are said to run on, where that differs; None where nothing is said that does."""
    for kind in (_bought, _served_by):
        first, second = kind(one), kind(other)
        if first is not None and second is not None and first != second:
            return first, second
    return None


def _bought(run: Run) -> str | None:
    """As the suite of its run calls the accelerator."""
    return _paid(run, Arm.CANDIDATE).accelerator


def _served_by(run: Run) -> str | None:
    """As its server tells."""
    names = run.arms[Arm.CANDIDATE].facts.get("accelerator_names")
    return ", ".join(sorted({str(name) for name in names})) if isinstance(names, list) and names else None


def _of_one_list(judged: Run, reference: Run) -> bool:
    """Whether both runs say of both candidates what they cost, and say the same. Of one name they may be two things."""
    names = [run.arms[Arm.CANDIDATE].name for run in (judged, reference)]
    return names[0] != names[1] and all(
        _paid(own, Arm.CANDIDATE).agrees_with(_said(other, name))
        for own, other, name in ((judged, reference, names[0]), (reference, judged, names[1]))
    )


def _paid(run: Run, arm: Arm) -> _Price:
    """What was paid for an arm; of nobody where the run has no such arm."""
    deployment = run.arms.get(arm)
    if deployment is None:
        return _price(None, {})
    said = _said(run, deployment.name)
    paid = _price(deployment.price_usd_per_hour, deployment.token_prices)
    return paid if said is None else replace(paid, accelerator=said.accelerator, is_read=said.is_read)


def _said(run: Run, name: str) -> _Price | None:
    """What the suite of a run says that a deployment of this name costs; None where it does not know it."""
    deployments = run.suite.get("deployments")
    kept = deployments.get(name) if isinstance(deployments, dict) else None
    if kept is None:
        return None
    try:
        spec = DeploymentSpec.model_validate(kept, by_name=True, by_alias=False, context={"stored": True})
    except ValidationError:
        return replace(_price(None, {}), is_read=False)
    by_token = {} if spec.token_prices is None else spec.token_prices.remembered()
    return replace(_price(spec.usd_per_hour, by_token), accelerator=spec.accelerator)


def _price(usd_per_hour: float | None, usd_per_million: dict[str, float]) -> _Price:
    return _Price(usd_per_hour, tuple(sorted(usd_per_million.items())), None)


NOT_OF_WHAT_RAN = "its price is not of what ran"

_PARALLEL = ("tp_size", "pp_size")  # of SGLang: each of their product is an accelerator of its own


def unpaid(baseline: Deployment | None, candidate: Deployment) -> str | None:
    """That a cost is of fewer accelerators than the candidate's server tells of, or of more than the baseline's does.

    Either makes the candidate seem cheaper than it is. So may a price of other accelerators than a server tells of.
    None where nobody tells, and of what is paid by the token.
    """
    ours = not_of_what_ran(candidate)
    if ours is not None or baseline is None:
        return None if ours is None else f"the candidate {ours}"
    theirs = _paid_as_another(baseline) or overpaid(baseline)
    return None if theirs is None else f"the baseline {theirs}"


def miscounted(baseline: Deployment | None, candidate: Deployment) -> str | None:
    """Say that an arm's accelerators are miscounted so that the candidate seems to do more with each; else None.

    The candidate's server tells of more than the suite declares, or the baseline's of fewer.
    """
    told, least = len(reported_accelerators(candidate)), _by_flags(candidate)
    if max(told, least) > candidate.accelerators:
        counted, found = f"{candidate.name} is declared with {candidate.accelerators}", max(told, least)
        return f"{counted} of the accelerators by which it is divided, and its server tells of {found}"
    told = 0 if baseline is None else len(reported_accelerators(baseline))
    if baseline is None or told == 0 or max(told, _by_flags(baseline)) >= baseline.accelerators:
        return None
    counted = f"{baseline.name} is declared with {baseline.accelerators}"
    return f"{counted} of the accelerators by which it is divided, and its server tells of {told}"


def not_of_what_ran(deployment: Deployment) -> str | None:
    """That its price is of fewer accelerators than its server tells of, or of another kind; as what follows a name."""
    other = _paid_as_another(deployment)
    if other is not None or deployment.price_usd_per_hour is None:
        return other
    least = max(len(reported_accelerators(deployment)), _by_flags(deployment))
    return _counted(deployment, least) if least > deployment.accelerators else None


def overpaid(deployment: Deployment) -> str | None:
    """That it is paid for more accelerators than its server tells of, which may know no other machine than its own."""
    told = 0 if deployment.price_usd_per_hour is None else len(reported_accelerators(deployment))
    if told == 0 or max(told, _by_flags(deployment)) >= deployment.accelerators:
        return None
    return _counted(deployment, told)


def _counted(deployment: Deployment, told: int) -> str:
    paid = deployment.accelerators
    return f"is paid for {paid} accelerator{'' if paid == 1 else 's'}, and its server tells of {told}"


def _paid_as_another(deployment: Deployment) -> str | None:
    """That its price is that of another kind of accelerator than its server tells of; None where neither says so."""
    paid, told = deployment.price_entry.get("accelerator"), deployment.facts.get("accelerator_names")
    if not isinstance(paid, str) or not isinstance(told, list):
        return None
    bought = models_in(paid)
    unlike = [str(name) for name in told if bought and (seen := models_in(str(name))) and not seen & bought]
    return f"has the price of accelerator {paid}, and its server tells of {unlike[0]}" if unlike else None


def _by_flags(deployment: Deployment) -> int:
    """At least so many, by how the engine was started; 1 where it does not say."""
    flags = deployment.facts.get(FLAGS)
    sizes = [flags.get(name, 1) for name in _PARALLEL] if isinstance(flags, dict) else []
    return math.prod(size for size in sizes if isinstance(size, int) and size >= 1)
