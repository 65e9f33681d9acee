"""What a deployment costs and how it is used, in words, by the terms that its run keeps."""

from __future__ import annotations

from benchgate import units
from benchgate.model.deployment import Deployment
from benchgate.report import show


def price_told(deployment: Deployment) -> str:
    """`2 accelerators at $5.00/h ($4.00/h, spot)`, or what a hosted model asks for a million tokens of each kind."""
    if deployment.token_prices:
        each = ", ".join(f"{kind.replace('_', ' ')} {show.usd(usd)}" for kind, usd in deployment.token_prices.items())
        return f"per 1M tokens: {each}"
    told = f"{show.usd(deployment.price_usd_per_hour)}/h"
    if deployment.accelerators > 1:
        told = f"{deployment.accelerators} accelerators at {told}"
    terms = deployment.price_terms
    if not terms:
        return told
    listed, bought = terms.get("list_usd_per_hour"), str(terms.get("commitment", "")).replace("_", " ")
    beside = [f"{show.usd(listed)}/h"] if isinstance(listed, float | int) else []
    return f"{told} ({', '.join([*beside, bought])})"


def used_told(deployment: Deployment) -> str:
    """`at 50 % of its paid time and with 25 % of overhead`."""
    terms = deployment.price_terms
    used, beside = (float(str(terms[name])) for name in ("utilisation_ratio", "overhead_ratio"))
    share, overhead = (units.as_written(units.show_percent(ratio)) for ratio in (used, beside))
    return f"at {share} of its paid time and with {overhead} of overhead"
