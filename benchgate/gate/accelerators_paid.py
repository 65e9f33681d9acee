"""Are all accelerators paid for, and as what they are? A suite that says nothing of them pays for one, whatever the
servers tell, and a price of a file is that of the kind that the suite names."""

from __future__ import annotations

import math

from benchgate.gate.declared_change import FLAGS, models_in, told_accelerators
from benchgate.model.deployment import Deployment

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
    told, least = len(told_accelerators(candidate)), _by_flags(candidate)
    if max(told, least) > candidate.accelerators:
        counted, found = f"{candidate.name} is declared with {candidate.accelerators}", max(told, least)
        return f"{counted} of the accelerators by which it is divided, and its server tells of {found}"
    told = 0 if baseline is None else len(told_accelerators(baseline))
    if baseline is None or told == 0 or max(told, _by_flags(baseline)) >= baseline.accelerators:
        return None
    counted = f"{baseline.name} is declared with {baseline.accelerators}"
    return f"{counted} of the accelerators by which it is divided, and its server tells of {told}"


def not_of_what_ran(deployment: Deployment) -> str | None:
    """That its price is of fewer accelerators than its server tells of, or of another kind; as what follows a name."""
    other = _paid_as_another(deployment)
    if other is not None or deployment.price_usd_per_hour is None:
        return other
    least = max(len(told_accelerators(deployment)), _by_flags(deployment))
    return _counted(deployment, least) if least > deployment.accelerators else None


def overpaid(deployment: Deployment) -> str | None:
    """That it is paid for more accelerators than its server tells of, which may know no other machine than its own."""
    told = 0 if deployment.price_usd_per_hour is None else len(told_accelerators(deployment))
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
