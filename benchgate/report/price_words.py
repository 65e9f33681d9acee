"""What a deployment costs and how it is used, in words, by the terms that its run keeps."""

from __future__ import annotations

from collections.abc import Mapping

from benchgate import units
from benchgate.model.deployment import Deployment
from benchgate.report import show
from benchgate.report.untrusted import one_line
from benchgate.stats.meta import EstimateWithLimits

_KINDS = ("input", "cached_input", "output")  # of tokens, in the order in which they are paid for


def price_told(deployment: Deployment) -> str:
    """`2 accelerators at $5.00/h ($4.00/h, spot)`, or what a hosted model asks for a million tokens of each kind."""
    if deployment.token_prices:
        asked = {kind: deployment.token_prices[kind] for kind in _KINDS if kind in deployment.token_prices}
        each = ", ".join(f"{kind.replace('_', ' ')} {show.usd(usd)}" for kind, usd in asked.items())
        return f"per 1M tokens: {each}"
    told = f"{show.usd(deployment.price_usd_per_hour)}/h"
    if deployment.accelerators > 1:
        told = f"{deployment.accelerators} accelerators at {told}"
    terms = deployment.price_terms
    if not terms:
        return told
    listed, bought = terms.get("list_usd_per_hour"), str(terms.get("commitment", "")).replace("_", " ")
    sums = [show.usd(listed)] if isinstance(listed, float | int) else []
    beside = [f"{usd}/h" for usd in sums if usd != show.usd(deployment.price_usd_per_hour)]
    return f"{told} ({', '.join([*beside, bought])})"


def price_and_use_told(deployment: Deployment) -> str:
    """The price, and how what it buys is used where that makes a token dearer."""
    price = price_told(deployment)
    return price if deployment.in_use_factor in (None, 1) else f"{price}, used {used_told(deployment)}"


def used_told(deployment: Deployment) -> str:
    """`at 50 % of its paid time and with 25 % of overhead`."""
    terms = deployment.price_terms
    used, beside = (float(str(terms[name])) for name in ("utilisation_ratio", "overhead_ratio"))
    share, overhead = (units.as_written(units.show_percent(ratio)) for ratio in (used, beside))
    return f"at {share} of its paid time and with {overhead} of overhead"


def price_source_told(deployment: Deployment) -> str | None:
    """`of accelerator H100 in prices.yaml from 2026-07-01: $3.50/h`; None where its suite says it."""
    entry = deployment.price_entry
    if not entry:
        return None
    called = f'"{entry["deployment"]}"' if "deployment" in entry else f"accelerator {entry.get('accelerator')}"
    days = "".join(f" {word} {entry[word]}" for word in ("from", "until") if word in entry)
    sums = entry.get("token_prices")
    by_token = sums.items() if isinstance(sums, Mapping) else ()
    written = ", ".join(f"{str(kind).replace('_', ' ')} {text}" for kind, text in by_token) or str(entry.get("price"))
    return one_line(f"of {called} in {entry.get('file')}{days}: {written}")


def saving_told(saving: EstimateWithLimits) -> str:
    """`12.0 % less than the baseline beside it (8.00 % to 16.0 %)`; that nothing is shown where it may be none."""
    less, limits = saving.value >= 0, saving.limits
    word = "less" if less else "more"
    told = f"{units.show_percent(abs(saving.value))} {word} than the baseline beside it"
    if limits is None:
        return f"{told} (no interval, so not shown)"
    low, high = (limits.lower, limits.upper) if less else (-limits.upper, -limits.lower)
    told = f"{told} ({units.show_percent(low)} to {units.show_percent(high)})"
    return told if low > 0 else f"{told}, which is not shown to be {word} at all"
