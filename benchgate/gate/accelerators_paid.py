"""Are all accelerators paid for? A suite that says nothing of them pays for one, whatever the servers tell."""

from __future__ import annotations

import math

from benchgate.gate.differences import FLAGS
from benchgate.model.deployment import Deployment

_PARALLEL = ("tp_size", "pp_size")  # of SGLang: each of their product is an accelerator of its own


def unpaid(baseline: Deployment | None, candidate: Deployment) -> str | None:
    """That a cost is of fewer accelerators than the candidate's server tells of, or of more than the baseline's does.

    Either makes the candidate seem cheaper than it is. None where nobody tells, and of what is paid by the token.
    """
    told = _named(candidate) or 0
    least = max(told, _by_flags(candidate))
    if candidate.price_usd_per_hour is not None and least > candidate.accelerators:
        return f"the candidate is paid for {candidate.accelerators} accelerators, and its server tells of {least}"
    theirs = None if baseline is None or baseline.price_usd_per_hour is None else _named(baseline)
    if baseline is None or theirs is None or max(theirs, _by_flags(baseline)) >= baseline.accelerators:
        return None
    return f"the baseline is paid for {baseline.accelerators} accelerators, and its server tells of {theirs}"


def _named(deployment: Deployment) -> int | None:
    """How many accelerators serve it, as what its `gpu` names told: those of `gpu_devices`, or all there are."""
    names = deployment.facts.get("accelerator_names")
    return len(names) if isinstance(names, list) and names else None


def _by_flags(deployment: Deployment) -> int:
    """At least so many, by how the engine was started; 1 where it does not say."""
    flags = deployment.facts.get(FLAGS)
    sizes = [flags.get(name, 1) for name in _PARALLEL] if isinstance(flags, dict) else []
    return math.prod(size for size in sizes if isinstance(size, int) and size >= 1)
