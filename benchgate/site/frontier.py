"""A suite's candidates on its page: quality against cost, where it has several and what they cost is known."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from benchgate.model.deployment import Arm
from benchgate.pipeline.compare_runs import newest_of_each, read_stored
from benchgate.report.charts import Figure
from benchgate.report.frontier import cost_subject, frontier_figure, frontier_table, last_line, reasons
from benchgate.sizing.candidates import CandidateRow, CandidateTable, compare_candidates
from benchgate.store.queries import RunSummary
from benchgate.store.repository import Store

_STORED = "stored figures, which no page holds against raw records; `benchgate frontier` makes its own of them"
MOST_DRAWN = 12
"""As many candidates as can be told apart in a chart: the newest. All of them count, and stand in the table."""


@dataclass(frozen=True, slots=True)
class Frontier:
    """What the page shows; `lines` are sentences below the chart, the last of which names the cheapest that passes."""

    figure: Figure
    lines: tuple[str, ...]


def lined_up(store: Store, runs: Sequence[RunSummary]) -> CandidateTable | None:
    """The candidates of a suite's `runs` (oldest first); None where not two of them have both quality and cost.

    By the figures that are stored: else all raw records of every run would be read again with every build.
    """
    picked = newest_of_each([glance.run for glance in reversed(runs)])
    if len(picked.runs) < 2:
        return None
    found = compare_candidates([read_stored(store, run, from_records=False) for run in picked.runs])
    found = replace(found, notes=(*picked.notes, *found.notes, _STORED))
    return found if len([row for row in _drawable(found) if row.arm is Arm.CANDIDATE]) > 1 else None


def frontier(found: CandidateTable | None) -> Frontier | None:
    """The section of a page; None where there is none."""
    if found is None:
        return None
    drawable, drawn = _drawable(found), _drawn(found)
    caption = f"Quality against dollars per 1M {cost_subject(found)}, of each candidate's newest whole run."
    if len(drawn) < len(drawable):
        caption += (
            f" The chart has {len(drawn)} of {len(drawable)} deployments; all of them count, and are in the table."
        )
    figure = frontier_figure(replace(found, rows=drawn), "frontier-chart", caption, frontier_table(found))
    notes = [f"Note: {note}." for note in found.notes]
    return Frontier(figure, (*reasons(found.rows, per_answer=False), *notes, last_line(found)))


def _drawable(found: CandidateTable) -> list[CandidateRow]:
    return [row for row in found.rows if not isinstance(row.quality, str) and not isinstance(row.usd, str)]


def _drawn(found: CandidateTable) -> tuple[CandidateRow, ...]:
    """The baseline, the newest candidates, and the cheapest that passes, however old."""
    rows = _drawable(found)
    newest = sorted(rows, key=lambda row: (row.arm is Arm.CANDIDATE, row.run.started_at, row.run.id), reverse=True)
    best = None if found.cheapest is None else found.cheapest.name
    kept = {row.name for row in newest[:MOST_DRAWN]}
    return tuple(row for row in rows if row.arm is Arm.BASELINE or row.name in kept or row.name == best)
