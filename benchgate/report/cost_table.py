"""What a million tokens cost at the measured throughput, arm beside arm, with the limits of that throughput."""

from __future__ import annotations

from collections.abc import Sequence

from benchgate.gate.summary.figures import Estimate
from benchgate.model.deployment import Arm
from benchgate.report import show
from benchgate.report.price_words import price_told
from benchgate.report.stage_rows import StageRow, stage_table
from benchgate.report.tables import Column, Table

_COLUMNS = (
    *(Column("level", numeric=False), Column("price")),
    *(Column("$ per 1M output tokens"), Column("95 % interval")),
    *(Column("$ per 1M good output tokens"), Column("95 % interval")),
    Column("good tokens, against the baseline"),
)
_NO_TOKENS = "no tokens"


def cost_table(rows: Sequence[StageRow]) -> Table | None:
    """Only when the suite knows a price; an arm without one says so."""
    if not any(row.deployment.has_price for row in rows):
        return None
    baselines = {row.stage: row for row in rows if row.role is Arm.BASELINE}
    cells = [(row.level, *_cells(row, baselines.get(row.stage))) for row in rows]
    return stage_table("Cost at the throughput of each level", _COLUMNS, rows, cells)


def _cells(row: StageRow, baseline: StageRow | None) -> tuple[str, ...]:
    deployment, figures = row.deployment, row.figures
    if not deployment.has_price:
        return ("no price", *[show.NOT_APPLICABLE] * 5)
    price = price_told(deployment)
    if figures is None:
        return (price, show.NOT_MEASURED, show.NOT_APPLICABLE, show.NOT_MEASURED, *[show.NOT_APPLICABLE] * 2)
    output = _with_limits(figures.usd_per_million_output)
    good = (show.NOT_APPLICABLE,) * 2 if row.slo is None else _with_limits(figures.usd_per_million_good)
    return (price, *output, *good, _change(row, baseline))


def _with_limits(cost: Estimate | None) -> tuple[str, str]:
    """The cost and its interval; without a token there is no cost of one."""
    if cost is None:
        return _NO_TOKENS, show.NOT_APPLICABLE
    return show.usd(cost.value), show.limits(cost.limits, show.usd)


def _change(row: StageRow, baseline: StageRow | None) -> str:
    """How much more or less the candidate's good tokens cost, or without an SLO all of its output tokens."""
    if row.role is Arm.BASELINE or baseline is None or row.figures is None or baseline.figures is None:
        return show.NOT_APPLICABLE
    pairs = (
        (row.figures.usd_per_million_good, baseline.figures.usd_per_million_good),
        (row.figures.usd_per_million_output, baseline.figures.usd_per_million_output),
    )
    ours, theirs = pairs[0 if row.slo is not None else 1]
    if ours is None or theirs is None or theirs.value <= 0:
        return show.NOT_APPLICABLE
    return show.signed_percent(ours.value / theirs.value - 1)
