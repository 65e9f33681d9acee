"""At which level of load a price per token counts, and what it is the price of, in sentences without their ends."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from benchgate.gate.evidence.costs import PRICE_MISMATCH, overpaid, price_mismatch
from benchgate.gate.summary.figures import Estimate
from benchgate.model.deployment import Arm, Deployment
from benchgate.report import show
from benchgate.report.price_words import price_source_told, saving_told, used_told
from benchgate.report.stage_rows import StageRow
from benchgate.sizing.frontier import saving
from benchgate.stats.meta import EstimateWithLimits, ratio

_OF_CLASSES = (
    "a class of traffic shares its deployment with the others of its stage: its row is the whole price over its own "
    "tokens alone"
)


def cost_lines(rows: Sequence[StageRow]) -> tuple[str, ...]:
    """The level that counts, and what the change to the candidate does to the price there; nothing without a price.

    Of the levels at which the candidate's goodput is shown to reach its target, that with most output tokens: the
    fullest use, and the one that `benchgate frontier` compares at. A fleet is sized by another one where rates were
    offered, for it must withstand arrivals; which that is, is told.
    """
    if not any(row.deployment.has_price for row in rows):
        return ()
    return tuple(_lines(rows))


def _lines(rows: Sequence[StageRow]) -> Iterator[str]:
    whole = [row for row in rows if not row.of_stage]
    ours = [row for row in whole if row.role is Arm.CANDIDATE]
    name = "candidate" if any(row.role is Arm.BASELINE for row in rows) else "deployment"
    held = [row for row in ours if _holds(row)]
    if held:
        best = max(held, key=_tokens_per_s)
        theirs = [row for row in whole if row.role is Arm.BASELINE]
        yield from _of_level(best, next((row for row in theirs if row.stage == best.stage), None), name)
        yield from _saved(best, theirs, name)
        yield from _sized_by(held, best)
    elif any(row.slo is None for row in ours):
        yield "no one price is the answer, for the suite has no SLO with a target: read each with its level"
    elif ours:
        yield f"no one price is the answer, for the SLO is shown to hold at no level on the {name}: see each level"
    if len(whole) < len(rows):
        yield _OF_CLASSES
    yield from _in_use(held, whole, name)
    yield from _sources(rows, name)


def _sources(rows: Sequence[StageRow], name: str) -> Iterator[str]:
    """Of which file each arm's price is, and as what it stands there."""
    for role in Arm:
        deployment = next((row.deployment for row in rows if row.role is role), None)
        source = None if deployment is None else price_source_told(deployment)
        if source is not None:
            yield f"the price of the {name if role is Arm.CANDIDATE else role.value} is that {source}"


def _of_level(best: StageRow, other: StageRow | None, name: str) -> Iterator[str]:
    beside = [f"the {name} {_price(best)}", *([f"the baseline {_price(other)}"] if other is not None else [])]
    where = f"{best.stage} ({best.level})" if best.level else best.stage
    yield (
        f"the level that counts is {where}, which has most output tokens per second of those at which the SLO is shown "
        f"to hold on the {name}: {', '.join(beside)}"
    )
    if best.deployment.token_prices:
        yield f"the {name} is paid by the token: what a level costs follows from the lengths of its prompts and answers"
    elif best.closed_loop:
        yield f"that is with {best.level} at any time: full use by so many requests at once, and by no more"
    else:
        yield "that is of a rate which was offered, and need not be full use: a fuller deployment costs less a token"


def _saved(best: StageRow, theirs: Sequence[StageRow], name: str) -> Iterator[str]:
    """What the change does to the bill of a million tokens, with its interval, as `benchgate frontier` has it.

    Each at its own best level: at the candidate's the baseline may carry less than it could, or miss its SLO.
    """
    if not any(row.deployment.has_price for row in theirs):
        return
    held = [row for row in theirs if _holds(row)]
    if not held:
        yield "what that changes of the bill is not known: the SLO is shown to hold at no level on the baseline"
        return
    other = max(held, key=_tokens_per_s)
    for who, row in ((name, best), ("baseline", other)):
        if (why := price_mismatch(row.deployment)) is not None:
            yield f"what that changes of the bill is not known, for {PRICE_MISMATCH}: the {who} {why}"
            return
    ours, its = (_good(row) for row in (best, other))
    share = None if ours is None or its is None else ratio(ours, its)
    if its is None or share is None or not math.isfinite(share.value):
        return
    told = f"on the {name} 1M good tokens cost {saving_told(saving(share))}"
    if other.stage != best.stage:
        told += f"; the baseline's own best level is {other.stage}, at {show.usd(its.value)}"
    yield told
    if (more := overpaid(other.deployment)) is not None:
        yield f"the baseline {more}, so that the {name} may seem cheaper beside it"
    yield from _saved_in_use(best.deployment, other.deployment, share)


def _good(row: StageRow) -> EstimateWithLimits | None:
    found = None if row.figures is None else row.figures.usd_per_million_good
    return None if found is None else EstimateWithLimits(found.value, found.limits)


def _saved_in_use(ours: Deployment, theirs: Deployment, share: EstimateWithLimits) -> Iterator[str]:
    """The same as both are used, where that is another share; tokens that are paid one by one are all used."""
    factor, beside = (1.0 if one.token_prices else one.in_use_factor for one in (ours, theirs))
    if factor is None or beside is None:
        if factor is not beside:
            whose = "candidate" if factor is None else "baseline"
            yield f"as both are used nothing is known of that: no `price_terms` say how the {whose} is"
    elif not math.isclose(factor, beside):
        yield f"as both are used, 1M good tokens cost {saving_told(saving(share.times(factor / beside)))}"


def _sized_by(held: Sequence[StageRow], best: StageRow) -> Iterator[str]:
    offered = max((row for row in held if not row.closed_loop), key=_tokens_per_s, default=best)
    if offered.stage != best.stage:
        yield (
            f"`benchgate capacity` sizes a fleet by {offered.stage} ({offered.level}), the fastest rate of arrivals"
            f" that is shown to hold: what a token costs there is in the row of {offered.stage}"
        )


def _in_use(held: Sequence[StageRow], whole: Sequence[StageRow], name: str) -> Iterator[str]:
    """What the level that counts costs as the deployments are used, where the suite says how they are."""
    if not held:
        return
    stage = max(held, key=_tokens_per_s).stage
    for row in whole:
        factor, figures = row.deployment.in_use_factor, row.figures
        if row.stage == stage and factor is not None and figures is not None and figures.usd_per_million_output:
            usd = figures.usd_per_million_output.value * factor
            who = "baseline" if row.role is Arm.BASELINE else name
            yield f"as the {who} is used, {used_told(row.deployment)}, that is {show.usd(usd)} per 1M output tokens"


def _price(row: StageRow) -> str:
    """`$1.21 per 1M output tokens ($1.12 to $1.32), $1.21 per 1M good ones`."""
    if row.figures is None or row.figures.usd_per_million_output is None:
        return "has no tokens to price" if row.deployment.has_price else "has no price"
    output, good = row.figures.usd_per_million_output, row.figures.usd_per_million_good
    told = f"{show.usd(output.value)} per 1M output tokens{_limits(output)}"
    return told if good is None else f"{told}, {show.usd(good.value)} per 1M good ones"


def _limits(cost: Estimate) -> str:
    return "" if cost.limits is None else f" ({show.limits(cost.limits, show.usd)})"


def _holds(row: StageRow) -> bool:
    goodput = row.figures.goodput_ratio if row.figures is not None else None
    if goodput is None or goodput.limits is None or row.target_ratio is None or _tokens_per_s(row) <= 0:
        return False
    return goodput.limits.lower >= row.target_ratio


def _tokens_per_s(row: StageRow) -> float:
    found = row.figures.output_tokens_per_s if row.figures is not None else None
    return 0.0 if found is None else found.value
