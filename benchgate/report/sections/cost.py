"""The cost section: what a million tokens cost at each level, at which level that counts, and what the change saves."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence

from benchgate import units
from benchgate.escape import one_line
from benchgate.gate.evidence.costs import PRICE_MISMATCH, overpaid, price_mismatch
from benchgate.gate.summary.figures import Estimate, StageFigures
from benchgate.model.deployment import TOKEN_KINDS, Arm, Deployment
from benchgate.report import display
from benchgate.report.section import Lines, Section, Style, notes, present
from benchgate.report.sections.stages import StageRow, stage_table
from benchgate.report.table import Column, Table, number_columns
from benchgate.sizing.frontier import saving
from benchgate.stats.meta import EstimateWithLimits, ratio

_COLUMNS = (
    Column("level", numeric=False),
    *number_columns("price", "$ per 1M output tokens", "95 % interval", "$ per 1M good output tokens"),
    *number_columns("95 % interval", "good tokens vs. baseline"),
)
_PART_OF_STAGE = (
    "traffic classes of one stage share a deployment: each class's row divides the whole price by its own tokens"
)
_NOTE = (
    "Cost = price of all accelerators / tokens per hour at the measured throughput, without overhead. In an open loop "
    "the deployment may idle, so full use costs less per token. A good token belongs to a request that met every SLO. "
    "The interval is that of the throughput."
)
_NO_TOKENS, _UNKNOWN = "no tokens", "unknown"
_NO_PRICE = "The cost is unknown: no deployment has a price. Add one to each in the suite, such as price: $2/h."


def cost_section(rows: Sequence[StageRow], unlike: str | None = None) -> Section | None:
    """Return the section; None when no load was measured. `unlike` is why the two sides' costs cannot be compared."""
    if not rows:
        return None
    table, lines = cost_table(rows, unlike), Lines(cost_lines(rows, unlike))
    if table is None:
        return Section("cost", "Cost", (Lines((_NO_PRICE,), Style.TEXT),))
    return Section("cost", "Cost", present(lines, table, notes(_NOTE)), summary=present(table, lines), rank=7)


def cost_table(rows: Sequence[StageRow], unlike: str | None = None) -> Table | None:
    """Return the cost at the throughput of each level; None without any price."""
    if not any(row.deployment.has_price for row in rows):
        return None
    baselines = {row.stage: row for row in rows if row.role is Arm.BASELINE and unlike is None}
    cells = [(row.level, *_cells(row, baselines.get(row.stage))) for row in rows]
    return stage_table("Cost at the throughput of each level", _COLUMNS, rows, cells)


def _cells(row: StageRow, baseline: StageRow | None) -> tuple[str, ...]:
    deployment, figures, none = row.deployment, row.figures, display.NOT_APPLICABLE
    if not deployment.has_price:
        return ("no price", *[none] * 5)
    price = price_text(deployment)
    if figures is None:
        return (price, display.NOT_MEASURED, none, display.NOT_MEASURED, none, none)
    lacking = _NO_TOKENS if _has_no_tokens(figures) else _UNKNOWN
    output = _with_limits(figures.usd_per_million_output, lacking)
    if figures.usd_per_million_output is not None:
        none_good = figures.goodput_ratio is not None and figures.goodput_ratio.value == 0
        lacking = _NO_TOKENS if none_good else _UNKNOWN
    good = (none, none) if row.slo is None else _with_limits(figures.usd_per_million_good, lacking)
    return (price, *output, *good, _change(row, baseline))


def _has_no_tokens(figures: StageFigures) -> bool:
    """Return True if no token came; False also where their number is unknown."""
    return figures.output_tokens_per_s is not None and figures.output_tokens_per_s.value == 0


def _with_limits(cost: Estimate | None, lacking: str) -> tuple[str, str]:
    if cost is None:
        return lacking, display.NOT_APPLICABLE
    return display.usd(cost.value), display.limits(cost.limits, display.usd)


def _change(row: StageRow, baseline: StageRow | None) -> str:
    """Return the change of the price of good tokens, or without an SLO of all output tokens."""
    if row.role is Arm.BASELINE or baseline is None or row.figures is None or baseline.figures is None:
        return display.NOT_APPLICABLE
    if row.slo is not None:
        ours, theirs = row.figures.usd_per_million_good, baseline.figures.usd_per_million_good
    else:
        ours, theirs = row.figures.usd_per_million_output, baseline.figures.usd_per_million_output
    if ours is None or theirs is None or theirs.value <= 0:
        return display.NOT_APPLICABLE
    return display.signed_percent(ours.value / theirs.value - 1)


def cost_lines(rows: Sequence[StageRow], unlike: str | None = None) -> tuple[str, ...]:
    """Return, without full stops, which level's price counts and what the candidate changes there.

    That level has most output tokens among those at which the candidate's goodput is shown to reach its target: the
    fullest use, and the one that `benchgate frontier` compares at. Where rates were offered, the highest at which
    that is shown is named too. Returns nothing without a price.
    """
    return tuple(_lines(rows, unlike)) if any(row.deployment.has_price for row in rows) else ()


def _lines(rows: Sequence[StageRow], unlike: str | None) -> Iterator[str]:
    whole = [row for row in rows if not row.part_of_stage]
    ours = [row for row in whole if row.role is Arm.CANDIDATE]
    theirs = [row for row in whole if row.role is Arm.BASELINE]
    name = "candidate" if any(row.role is Arm.BASELINE for row in rows) else "deployment"
    held = [row for row in ours if _holds(row)]
    best = max(held, key=_tokens_per_s, default=None)
    if best is not None:
        yield from _counting_level(best, next((row for row in theirs if row.stage == best.stage), None), name)
        if unlike is None:
            yield from _saved(best, theirs, name)
        offered = max((row for row in held if not row.closed_loop), key=_tokens_per_s, default=best)
        if offered.stage != best.stage:
            yield (
                f"the highest rate at which the SLO is shown to hold is that of {offered.stage} ({offered.level}); "
                "`benchgate capacity` sizes a fleet by a rate at which no requests pile up either"
            )
    elif any(row.slo is None for row in ours):
        yield "no single price: the suite has no SLO with a target, so compare level by level"
    elif ours:
        yield f"no single price: the SLO is not shown to hold at any level on the {name}"
    if unlike is not None:
        yield f"no saving is known: {unlike}"
    if len(whole) < len(rows):
        yield _PART_OF_STAGE
    for row in whole:
        factor, figures = row.deployment.in_use_factor, row.figures
        counts = best is not None and row.stage == best.stage
        if counts and factor is not None and figures is not None and figures.usd_per_million_output:
            usd = figures.usd_per_million_output.value * factor
            who = "baseline" if row.role is Arm.BASELINE else name
            yield f"at the actual use of the {who}, {use_text(row.deployment)}: {display.usd(usd)} per 1M output tokens"
    for role in Arm:
        deployment = next((row.deployment for row in rows if row.role is role), None)
        source = None if deployment is None else price_source(deployment)
        if source is not None:
            yield f"price of the {name if role is Arm.CANDIDATE else role.value}: that {source}"


def _counting_level(best: StageRow, other: StageRow | None, name: str) -> Iterator[str]:
    prices = [f"the {name} {_price(best)}", *([f"the baseline {_price(other)}"] if other is not None else [])]
    where = f"{best.stage} ({best.level})" if best.level else best.stage
    yield (
        f"at {where}, the level with the highest throughput at which the SLO is shown to hold on the {name}: "
        f"{', '.join(prices)}"
    )
    if best.deployment.token_prices:
        yield f"the {name} is paid by the token, so the cost follows from the lengths of prompts and answers"
    elif best.closed_loop:
        yield f"this assumes {best.level} at any time"
    else:
        yield "at an offered rate the deployment may idle; full use costs less per token"


def _saved(best: StageRow, theirs: Sequence[StageRow], name: str) -> Iterator[str]:
    """Compare the bills of a million tokens, as `benchgate frontier` does.

    Each side counts at its own best level: at the candidate's the baseline may carry less, or miss its SLO.
    """
    if not any(row.deployment.has_price for row in theirs):
        return
    held = [row for row in theirs if _holds(row)]
    if not held:
        yield "no saving is known: the SLO is not shown to hold at any level on the baseline"
        return
    other = max(held, key=_tokens_per_s)
    for who, row in ((name, best), ("baseline", other)):
        if (why := price_mismatch(row.deployment)) is not None:
            yield f"no saving is known, for {PRICE_MISMATCH}: the {who} {why}"
            return
    ours, its = (_good(row) for row in (best, other))
    share = None if ours is None or its is None else ratio(ours, its)
    if its is None or share is None or not math.isfinite(share.value):
        return
    elsewhere = ""
    if other.stage != best.stage:
        elsewhere = f"; the baseline's best level is {other.stage}, {display.usd(its.value)}"
    yield f"1M good tokens on the {name} cost {saving_text(saving(share))}{elsewhere}"
    if (more := overpaid(other.deployment)) is not None:
        yield f"the baseline {more}, so the {name} may look cheaper than it is"
    yield from _saved_in_use(best.deployment, other.deployment, share)


def _good(row: StageRow) -> EstimateWithLimits | None:
    found = None if row.figures is None else row.figures.usd_per_million_good
    return None if found is None else EstimateWithLimits(found.value, found.limits)


def _saved_in_use(ours: Deployment, theirs: Deployment, share: EstimateWithLimits) -> Iterator[str]:
    """Compare the bills at actual use, where that differs; tokens that are paid one by one are all used."""
    factor, other = (1.0 if one.token_prices else one.in_use_factor for one in (ours, theirs))
    if factor is None or other is None:
        if factor is not other:
            whose = "candidate" if factor is None else "baseline"
            yield f"no saving at actual use is known: the {whose} has no `price_terms`"
    elif not math.isclose(factor, other):
        yield f"at actual use, 1M good tokens cost {saving_text(saving(share.times(factor / other)))}"


def _price(row: StageRow) -> str:
    """`$1.21 per 1M output tokens ($1.12 to $1.32), $1.21 per 1M good ones`."""
    if not row.deployment.has_price:
        return "has no price"
    if row.figures is None or row.figures.usd_per_million_output is None:
        return (
            "has no tokens to price" if row.figures is not None and _has_no_tokens(row.figures) else "has no known cost"
        )
    output, good = row.figures.usd_per_million_output, row.figures.usd_per_million_good
    limits = "" if output.limits is None else f" ({display.limits(output.limits, display.usd)})"
    price = f"{display.usd(output.value)} per 1M output tokens{limits}"
    return price if good is None else f"{price}, {display.usd(good.value)} per 1M good ones"


def _holds(row: StageRow) -> bool:
    """Return True if goodput is shown to reach its target."""
    goodput = row.figures.goodput_ratio if row.figures is not None else None
    if goodput is None or goodput.limits is None or row.target_ratio is None or _tokens_per_s(row) <= 0:
        return False
    return goodput.limits.lower >= row.target_ratio


def _tokens_per_s(row: StageRow) -> float:
    found = row.figures.output_tokens_per_s if row.figures is not None else None
    return 0.0 if found is None else found.value


def price_text(deployment: Deployment) -> str:
    """`2 accelerators at $5.00/h ($4.00/h, spot)`, or the prices of a hosted model per million tokens."""
    if deployment.token_prices:
        prices = deployment.token_prices
        each = ", ".join(f"{kind.replace('_', ' ')} {display.usd(prices[kind])}" for kind in TOKEN_KINDS)
        return f"per 1M tokens: {each}"
    price = f"{display.usd(deployment.price_usd_per_hour)}/h"
    if deployment.accelerators > 1:
        price = f"{deployment.accelerators} accelerators at {price}"
    terms = deployment.price_terms
    if not terms:
        return price
    listed, commitment = terms.get("list_usd_per_hour"), str(terms.get("commitment", "")).replace("_", " ")
    sums = [display.usd(listed)] if isinstance(listed, float | int) else []
    others = [f"{usd}/h" for usd in sums if usd != display.usd(deployment.price_usd_per_hour)]
    return f"{price} ({', '.join([*others, commitment])})"


def price_and_use(deployment: Deployment) -> str:
    """Return the price, and its use where that makes a token dearer."""
    price = price_text(deployment)
    return price if deployment.in_use_factor in (None, 1) else f"{price}, used {use_text(deployment)}"


def use_text(deployment: Deployment) -> str:
    """`at 50 % of its paid time and with 25 % of overhead`."""
    terms = deployment.price_terms
    ratios = (float(str(terms[name])) for name in ("utilisation_ratio", "overhead_ratio"))
    share, overhead = (units.as_written(units.show_percent, one) for one in ratios)
    return f"at {share} of its paid time and with {overhead} of overhead"


def price_source(deployment: Deployment) -> str | None:
    """`of accelerator H100 in prices.yaml from 2026-07-01: $3.50/h`; None for a price in the suite itself."""
    entry = deployment.price_entry
    if not entry:
        return None
    subject = f'"{entry["deployment"]}"' if "deployment" in entry else f"accelerator {entry.get('accelerator')}"
    days = "".join(f" {word} {entry[word]}" for word in ("from", "until") if word in entry)
    sums = entry.get("token_prices")
    by_token = sums.items() if isinstance(sums, Mapping) else ()
    written = ", ".join(f"{str(kind).replace('_', ' ')} {text}" for kind, text in by_token) or str(entry.get("price"))
    return one_line(f"of {subject} in {entry.get('file')}{days}: {written}")


def saving_text(saving: EstimateWithLimits) -> str:
    """`12.0 % less than the baseline beside it (8.00 % to 16.0 %)`, or that no saving is shown."""
    less, limits = saving.value >= 0, saving.limits
    word = "less" if less else "more"
    amount = f"{units.show_percent(abs(saving.value))} {word} than on the baseline"
    if limits is None:
        return f"{amount} (no interval, so not shown)"
    low, high = (limits.lower, limits.upper) if less else (-limits.upper, -limits.lower)
    amount = f"{amount} ({units.show_percent(low)} to {units.show_percent(high)})"
    return amount if low > 0 else f"{amount}, which includes no change"
