"""Are all accelerators paid for, and as what they are? A suite that says nothing of them pays for one, whatever the
servers tell, and a price of a file is that of the kind that the suite names."""

from __future__ import annotations

import math
import re

from benchgate.gate.differences import FLAGS
from benchgate.model.deployment import Deployment

NOT_OF_WHAT_RAN = "its price is not of what ran"

_PARALLEL = ("tp_size", "pp_size")  # of SGLang: each of their product is an accelerator of its own
_MODEL = re.compile(r"(?:A|B|H|L|V|GB|GH|MI|RTX)[0-9]{2,4}[A-Z]{0,2}|[LT]4", re.IGNORECASE)
"""A word by which accelerators are sold, like A100, L40S, GB200 or MI300X; names of machines are none of them."""


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


def not_of_what_ran(deployment: Deployment) -> str | None:
    """That its price is of fewer accelerators than its server tells of, or of another kind; as what follows a name."""
    other = _paid_as_another(deployment)
    if other is not None or deployment.price_usd_per_hour is None:
        return other
    least = max(_named(deployment) or 0, _by_flags(deployment))
    return _counted(deployment, least) if least > deployment.accelerators else None


def overpaid(deployment: Deployment) -> str | None:
    """That it is paid for more accelerators than its server tells of, which may know no other machine than its own."""
    told = None if deployment.price_usd_per_hour is None else _named(deployment)
    if told is None or max(told, _by_flags(deployment)) >= deployment.accelerators:
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
    bought = _models(paid)
    unlike = [str(name) for name in told if bought and (seen := _models(str(name))) and not seen & bought]
    return f"has the price of accelerator {paid}, and its server tells of {unlike[0]}" if unlike else None


def _models(name: str) -> set[str]:
    return {word.upper() for word in re.split("[^A-Za-z0-9]+", name) if _MODEL.fullmatch(word)}


def _named(deployment: Deployment) -> int | None:
    """How many accelerators serve it, as what its `gpu` names told: those of `gpu_devices`, or all there are."""
    names = deployment.facts.get("accelerator_names")
    return len(names) if isinstance(names, list) and names else None


def _by_flags(deployment: Deployment) -> int:
    """At least so many, by how the engine was started; 1 where it does not say."""
    flags = deployment.facts.get(FLAGS)
    sizes = [flags.get(name, 1) for name in _PARALLEL] if isinstance(flags, dict) else []
    return math.prod(size for size in sizes if isinstance(size, int) and size >= 1)
