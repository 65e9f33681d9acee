"""Metrics and checks of many runs as two tables, as CSV that a spreadsheet may open or as Parquet."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from sqlalchemy import Connection, func, select

from benchgate.store import tables

Row = tuple[Any, ...]

METRIC_COLUMNS = {
    "run_id": str, "suite": str, "label": str, "started_at": str, "arm": str, "metric": str, "statistic": str,
    "stage": str, "task": str, "value": float, "lower": float, "upper": float, "n": int,
}  # fmt: skip
CHECK_COLUMNS = {
    "run_id": str, "suite": str, "label": str, "started_at": str, "verdict": int, "compared_run_id": str,
    "decided_at": str, "run_outcome": str, "check": str, "outcome": str, "required": int, "baseline": float,
    "candidate": float, "harm": float, "lower": float, "upper": float, "n": int, "policy": str,
}  # fmt: skip
"""What the columns of each table are called, and of which type they are; any may be missing."""

_FORMULA = ("=", "+", "-", "@", "\t", "\r", "\n", "\uff1d", "\uff0b", "\uff0d", "\uff20")
_AT_ONCE = 500  # runs in one query


def metric_table(connection: Connection, run_ids: Sequence[str]) -> Iterator[Row]:
    """The derived numbers of runs, in the units of their names, with 95 % limits where there are any."""
    run, metric = tables.run.c, tables.metric.c
    of_run = run.id, run.suite_name, run.label, run.started_at
    numbers = metric.value, metric.lower, metric.upper, metric.n
    wanted = (
        select(*of_run, metric.arm, metric.name, metric.statistic, metric.stage, metric.task, *numbers)
        .join_from(tables.metric, tables.run)
        .order_by(run.started_at, run.id, metric.seq)
    )
    for some in _parts(run_ids):
        yield from (tuple(row) for row in connection.execute(wanted.where(run.id.in_(some))))


def check_table(connection: Connection, run_ids: Sequence[str]) -> Iterator[Row]:
    """Every check of every verdict on the runs. What is infinite or was not measured is missing."""
    run, verdict, check = tables.run.c, tables.verdict.c, tables.check_result.c
    of_run = run.id, run.suite_name, run.label, run.started_at
    of_verdict = verdict.seq, verdict.compared_run_id, verdict.decided_at, verdict.outcome
    numbers = check.baseline, check.candidate, check.harm, check.lower, check.upper, check.n
    wanted = (
        select(*of_run, *of_verdict, check.check_id, check.outcome, check.required, *numbers, check.policy)
        .select_from(tables.check_result)
        .join(tables.verdict, (verdict.run_id == check.run_id) & (verdict.seq == check.verdict_seq))
        .join(tables.run, run.id == check.run_id)
        .order_by(run.started_at, run.id, func.coalesce(verdict.decided_at, ""), verdict.seq, check.seq)
    )
    for some in _parts(run_ids):
        yield from (tuple(row) for row in connection.execute(wanted.where(run.id.in_(some))))


def to_csv(columns: Iterable[str], found: Iterable[Row], *, raw: bool = False) -> str:
    """CSV with a header: texts in quotes, numbers bare, what is missing empty.

    A spreadsheet takes a text that begins like a formula for one, and runs it: it gets a leading ' unless `raw`. So
    does a CI's log with a line that begins like a command: a text stays on one line then.
    """
    out = io.StringIO()
    writer = csv.writer(out, quoting=csv.QUOTE_NONNUMERIC, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows(row if raw else [_harmless(value) for value in row] for row in found)
    return out.getvalue()


def _harmless(value: Any) -> Any:
    if not isinstance(value, str):
        return value
    line = " ".join(value.splitlines())
    return f"'{line}" if value.startswith(_FORMULA) or line.lstrip().startswith(_FORMULA) else line


def _parts(run_ids: Sequence[str]) -> Iterator[Sequence[str]]:
    for first in range(0, len(run_ids), _AT_ONCE):
        yield run_ids[first : first + _AT_ONCE]
