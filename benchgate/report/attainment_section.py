"""How many requests met their SLO, by stage and class of traffic, and which bound the others missed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from benchgate.gate.summary.figures import FAILED, Attainment, attainment
from benchgate.model.request_metrics import Slo
from benchgate.report import show
from benchgate.report.stage_rows import Executions, StageRow

_REASONS = {FAILED: "failed", "ttft": "TTFT", "tpot": "TPOT", "e2e": "E2E"}
BAR_WIDTH = 100.0


@dataclass(frozen=True, slots=True)
class AttainmentRow:
    """One stage or class on one side: finished texts, and the bar. `missed` has one text for every reason.

    `width` (None where nothing was measured) and `target` are in hundredths of the bar.
    """

    stage: str
    arm: str
    met: str
    interval: str
    of: str
    width: float | None
    target: float
    missed: tuple[str, ...]
    starts: bool


@dataclass(frozen=True, slots=True)
class AttainmentSection:
    """`reasons` are the titles of the columns of `missed`; only those that some stage is held to."""

    reasons: tuple[str, ...]
    rows: tuple[AttainmentRow, ...]


def attainment_section(rows: Sequence[StageRow], seen: Executions) -> AttainmentSection | None:
    """None without an SLO, and where nothing was measured."""
    held = [(row, row.slo, row.target_ratio) for row in rows if row.slo is not None and row.target_ratio is not None]
    found = [(row, slo, target, attainment(seen.get((row.stage, row.role), ()), slo)) for row, slo, target in held]
    if not any(met is not None for _, _, _, met in found):
        return None
    asked = {name for _, slo, _, _ in found for name in _asked(slo)}
    names = [name for name in _REASONS if name in asked]
    shown = []
    for i, (row, _, target, met) in enumerate(found):
        starts = i > 0 and row.stage != found[i - 1][0].stage
        shown.append(_row(row, target, met, names, starts=starts))
    return AttainmentSection(tuple(_REASONS[name] for name in names), tuple(shown))


def _asked(slo: Slo) -> list[str]:
    bounds = {"ttft": slo.ttft_s, "tpot": slo.tpot_s, "e2e": slo.e2e_s}
    return [FAILED, *(name for name, bound in bounds.items() if bound is not None)]


def _row(row: StageRow, target: float, seen: Attainment | None, names: Sequence[str], *, starts: bool) -> AttainmentRow:
    share = None if seen is None else seen.share
    return AttainmentRow(
        stage=row.stage,
        arm=row.role.value,
        met=show.percent(share),
        interval=show.limits(None if seen is None else seen.limits, show.percent),
        of=show.NOT_APPLICABLE if seen is None else f"{seen.good:,} of {seen.scheduled:,}",
        width=None if share is None else round(share * BAR_WIDTH, 2),
        target=round(target * BAR_WIDTH, 2),
        missed=tuple(_missed(seen, name) for name in names),
        starts=starts,
    )


def _missed(seen: Attainment | None, name: str) -> str:
    """How many missed for a reason, and which share of those scheduled; a dash where its bound is not in the SLO."""
    if seen is None or name not in seen.missed or not seen.scheduled:
        return show.NOT_APPLICABLE
    count = seen.missed[name]
    return "0" if count == 0 else f"{count:,} ({show.percent(count / seen.scheduled)})"
