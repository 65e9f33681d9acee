"""The page of a run of which no report can be made: why not, and what the store still has of it."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from benchgate.escape import one_line
from benchgate.model.deployment import Arm
from benchgate.model.run import MetricRow, RunStatus
from benchgate.model.verdict import Unit
from benchgate.report import display
from benchgate.report.display import with_limits
from benchgate.report.table import Column, Table
from benchgate.site.names import run_file
from benchgate.site.shelf import Entry
from benchgate.store.queries import RunSummary
from benchgate.store.repository import Store, StoredVerdict

_LONGEST = 120


@dataclass(frozen=True, slots=True)
class NumbersPage:
    """What the page says. `why` is a sentence without its end; `decided` when the stored verdict was reached."""

    file: str
    why: str
    decided: str
    checks: Table | None
    numbers: Table | None


def reason_without_report(glance: RunSummary) -> str | None:
    """Why a run has no report; None where it has one."""
    run = glance.run
    if run.measured_by is not None:
        return (
            f"This run is a file of {one_line(run.measured_by, _LONGEST)}: it has numbers and no records, so nothing "
            "can be judged of it"
        )
    if run.status is RunStatus.RUNNING:
        return "This run is not over: nothing is judged of it before it is"
    if glance.removed is not None:
        return (
            f"The raw records of this run were removed on {glance.removed.removed_at[:10]} by "
            f"{one_line(glance.removed.reason, _LONGEST)}, so it cannot be judged again; what was concluded from them "
            "is what stands here"
        )
    return None


def numbers_page(store: Store, glance: RunSummary, entry: Entry) -> NumbersPage:
    """The page of such a run, or of one whose report could not be made, which `entry` says."""
    why = reason_without_report(glance) or f"No report can be made of this run: {entry.fault or 'it is damaged'}"
    own = [said for said in store.verdicts(glance.run.id) if said.of_the_run_itself]
    return NumbersPage(
        file=run_file(glance.run.id),
        why=why,
        decided=display.minute(own[-1].decided_at or "") if own else "",
        checks=_checks(own[-1]) if own else None,
        numbers=_numbers(store.metrics(glance.run.id)),
    )


def _checks(verdict: StoredVerdict) -> Table | None:
    said: Any = verdict.document.get("checks")
    rows = [tuple(_check_cells(check)) for check in said] if isinstance(said, list) else []
    titles = ("check", "outcome", "baseline", "candidate", "why")
    columns = tuple(Column(title, numeric=title in ("baseline", "candidate")) for title in titles)
    return Table("Checks, as they were decided", columns, tuple(rows)) if rows else None


def _check_cells(check: Mapping[str, Any]) -> Iterator[str]:
    yield str(check.get("title", check.get("id", "")))
    yield str(check.get("outcome", ""))
    for side in ("baseline", "candidate"):
        yield _value(check.get(side), check.get("unit"))
    yield str(check.get("reason") or "")


def _value(value: object, unit: object) -> str:
    """A document spells what is infinite as text, and what was not measured as null."""
    number = {"inf": math.inf, "-inf": -math.inf}.get(value) if isinstance(value, str) else value
    if not isinstance(number, int | float) or unit not in set(Unit):
        return display.NOT_MEASURED
    return display.value(float(number), Unit(str(unit)))


def _numbers(rows: Sequence[MetricRow]) -> Table | None:
    by_key: dict[tuple[str, ...], dict[Arm, MetricRow]] = {}
    for row in rows:
        key = tuple(part or "" for part in (row.name, row.statistic, row.stage or row.task))
        by_key.setdefault(key, {})[row.arm] = row
    columns = ("number", "statistic", "stage or task"), tuple(arm.value for arm in Arm)
    titles = (*(Column(name, numeric=False) for name in columns[0]), *map(Column, columns[1]))
    cells = tuple((*key, *(with_limits(both.get(arm)) for arm in Arm)) for key, both in by_key.items())
    return Table("Numbers of this run, with 95 % intervals", titles, cells) if cells else None
