"""What `store check --figures` looks at too: are the numbers kept of each run those that its records make?"""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Iterator, Sequence

from sqlalchemy import Connection, select, union

from benchgate.errors import BenchgateError
from benchgate.gate.summary.metric_rows import RowMismatch, metric_rows, mismatched_rows, missing_rows
from benchgate.model.run import MetricRow
from benchgate.store import results, tables, tombstones
from benchgate.store.engine import fetch
from benchgate.store.evidence import known_beside, read_evidence, rows_of
from benchgate.store.finding import Finding

HELD = "metrics held against their records"
_MOST_NAMED = 4


def figure_findings(connection: Connection, told: Container[str | None], looked: Counter[str]) -> Iterator[Finding]:
    """Of every run that has numbers or a verdict, and records, and of which nothing was `told` yet."""
    looked[HELD] += 0
    for run_id in _judged(connection):
        if run_id in told or tombstones.removal(connection, run_id) is not None:
            continue
        (row,) = fetch(connection, select(tables.run).where(tables.run.c.id == run_id))
        found = rows_of(connection, row)
        run = found.as_run()
        if run.measured_by is not None:
            continue
        kept = results.metrics(connection, run_id)
        looked[HELD] += len(kept)
        try:
            made = metric_rows(read_evidence(found, known_beside(connection, run)))
        except (BenchgateError, ValueError) as error:
            yield Finding(run_id, "its numbers", f"they cannot be made again: {error}")
            continue
        for one in mismatched_rows(kept, made):
            yield Finding(run_id, f"metric {_named(one.stored)}", _problem(one))
        if rows := missing_rows(kept, made):
            yield Finding(run_id, "its numbers", _lacks(rows))


def _judged(connection: Connection) -> list[str]:
    """Whoever judges a run keeps its numbers, so one with a verdict has some, unless somebody removed them."""
    runs = union(*(select(table.c.run_id) for table in (tables.metric, tables.verdict)))
    return sorted(connection.scalars(runs))


def _named(row: MetricRow) -> str:
    return " ".join(part for part in (row.arm.value, row.name, row.statistic, row.stage, row.task) if part is not None)


def _problem(one: RowMismatch) -> str:
    stored, made = _shown(one.stored), "nothing" if one.recomputed is None else _shown(one.recomputed)
    return (
        f"it is kept as {stored}, and its records make {made}: it was altered, or another benchgate made it;"
        " `benchgate gate` of this run keeps it anew"
    )


def _lacks(rows: Sequence[MetricRow]) -> str:
    more = f" and {len(rows) - _MOST_NAMED} more" if len(rows) > _MOST_NAMED else ""
    return (
        f"it lacks {', '.join(map(_named, rows[:_MOST_NAMED]))}{more}, which its records make: removed, or another"
        " benchgate made none; `benchgate gate` of this run keeps them anew"
    )


def _shown(row: MetricRow) -> str:
    limits = "" if row.lower is None else f" ({row.lower!r} to {row.upper!r})"
    return f"{row.value!r}{limits}, n {row.n}"
