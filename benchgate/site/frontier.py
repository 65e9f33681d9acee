"""A suite's candidates on its page: quality against cost, where it has several and what they cost is known."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from benchgate.gate.right_sizing import RightSizing, right_sizing
from benchgate.lining_up import newest_of_each, read_stored
from benchgate.model.deployment import Arm
from benchgate.report.drawing import Figure
from benchgate.report.frontier import frontier_table, last_line, reasons, what_of
from benchgate.report.frontier_chart import frontier_svg
from benchgate.store.overview import Glance
from benchgate.store.repository import Store

MOST_CANDIDATES = 12
"""As many as can be told apart in a chart; the newest."""


@dataclass(frozen=True, slots=True)
class Frontier:
    """What the page shows; `lines` are sentences below the chart, the last of which names the cheapest that passes."""

    figure: Figure
    lines: tuple[str, ...]


def lined_up(store: Store, runs: Sequence[Glance]) -> RightSizing | None:
    """The candidates of a suite's `runs` (oldest first); None where not two of them have both quality and cost.

    Without the evals' tokens: for them all raw records of every run would be read again with every build.
    """
    picked = newest_of_each([glance.run for glance in reversed(runs)])
    if len(picked.runs) < 2:
        return None
    found = right_sizing([read_stored(store, run, evals=False) for run in picked.runs[:MOST_CANDIDATES]])
    found = replace(found, notes=(*picked.notes, *found.notes))
    options = [row.option for row in found.rows if row.arm is Arm.CANDIDATE]
    return found if sum(one.quality is not None and one.usd is not None for one in options) > 1 else None


def frontier(found: RightSizing | None) -> Frontier | None:
    """The section of a page; None where there is none."""
    if found is None:
        return None
    caption = f"Quality against dollars per 1M {what_of(found)}, of each candidate's newest whole run."
    figure = Figure("frontier-chart", caption, frontier_svg(found), frontier_table(found))
    notes = [f"Note: {note}." for note in found.notes]
    return Frontier(figure, (*reasons(found.rows, per_answer=False), *notes, last_line(found)))
