"""One derived number over all runs, for whoever follows it: read from indexes, whatever else the runs hold.

What became of each run is only shown here, so it is read from the columns that list its verdicts. Where a decision
rests on an outcome, the document is read and hashed instead (`results.own_outcomes`).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import cache
from typing import Any

from sqlalchemy import Connection, Select, and_, select

from benchgate.gate.evidence.costs import PRICE_MISMATCH, price_mismatch
from benchgate.model.deployment import Arm, Deployment, engine_label, hardware_label, model_label, reports_hardware
from benchgate.model.history import promotion_labels
from benchgate.model.run import TrendPoint
from benchgate.model.verdict import Outcome
from benchgate.store import promotions, results, tables

_Run = tuple[int, str, str | None, str]
_Served = tuple[str, str, str, str]
"""Name, model, engine and hardware of a deployment, as a point has them."""

_COST = "usd_"  # what the names of costs begin with
_AT_ONCE = 500  # runs in one query
_MOST_NUMBERS = 1 << 32  # of a run
_ARMS = {arm.value: arm for arm in Arm}
_OUTCOMES = {outcome.value: outcome for outcome in Outcome}


def trend(connection: Connection, name: str, suite: str | None, where: Mapping[str, str | None]) -> list[TrendPoint]:
    """One metric over the runs by time; `where` narrows by columns of the metric, None meaning any value."""
    # Plain tuples throughout: of tens of thousands of objects the collector's rounds take as long as the query.
    found = [tuple(row) for row in connection.execute(_numbers(name, where))]
    if not found:
        return []
    runs, outcomes = _runs(connection, suite), _own_outcomes(connection)
    promoted = promotion_labels(promotions.promotions(connection, suite))
    known = [row for row in found if row[0] in runs]
    known.sort(key=lambda row: runs[row[0]][0] * _MOST_NUMBERS + row[1])
    served = _served(connection, suite, known)
    doubts = {text: _doubt(text) for text in {row[2] for row in known}} if name.startswith(_COST) else {}
    points = []
    for run_id, _, deployment, arm, stage, task, value, n, lower, upper in known:
        _, at, label, of = runs[run_id]
        of_it = served(run_id, deployment)
        became, role, by = outcomes.get(run_id), _ARMS[arm], promoted.get(run_id)
        number, what = (value, n, lower, upper), (*of_it[1:], doubts.get(deployment))
        points.append(TrendPoint(run_id, at, label, of, of_it[0], became, role, stage, task, *number, by, *what))
    return points


def _doubt(deployment: str) -> str | None:
    """Why what its tokens cost is none of what ran."""
    why = price_mismatch(Deployment(**json.loads(deployment)))
    return None if why is None else f"{PRICE_MISMATCH}: it {why}"


def measurements(connection: Connection, run_ids: Collection[str]) -> dict[str, str]:
    """What each of these runs asked of both arms, by its hash: of two with the same one the numbers compare.

    It stands in a run's own row, which is large, so it is asked for by whoever shows a trend, and not with each.
    """
    run, found = tables.run.c, dict[str, str]()
    wanted = sorted(run_ids)
    for first in range(0, len(wanted), _AT_ONCE):
        some = select(run.id, run.measurement_sha256).where(run.id.in_(wanted[first : first + _AT_ONCE]))
        found |= {run_id: measurement for run_id, measurement in connection.execute(some)}
    return found


def _served(connection: Connection, suite: str | None, known: Iterable[Sequence[Any]]) -> Callable[[str, str], _Served]:
    """Gives what a run's deployment is known by, from its run and its text; each text is read once, in run after run.

    No database can be asked: Postgres takes no text with a NUL out of JSON. The machine of a run stands in its own row,
    which is large, so it is read only where benchgate itself served something.
    """
    read = {text: Deployment(**json.loads(text)) for text in {row[2] for row in known}}
    ours = {text for text, one in read.items() if one.url is None and not reports_hardware(one)}
    run = tables.run.c
    wanted = select(run.id, run.environment)
    rows = connection.execute(wanted if suite is None else wanted.where(run.suite_name == suite)) if ours else ()
    machines = {run_id: environment for run_id, environment in rows}

    @cache
    def told(text: str, machine: str) -> _Served:
        one = read[text]
        return one.name, model_label(one), engine_label(one), hardware_label(one, json.loads(machine))

    anywhere = {text: told(text, "{}") for text in read.keys() - ours}
    return lambda run_id, text: anywhere.get(text) or told(text, machines[run_id])


def _numbers(name: str, where: Mapping[str, str | None]) -> Select[*tuple[Any, ...]]:
    metric, arm = tables.metric.c, tables.arm.c
    of_metric = metric.arm, metric.stage, metric.task, metric.value, metric.n, metric.lower, metric.upper
    return (
        select(metric.run_id, metric.seq, arm.deployment, *of_metric)
        .join_from(tables.metric, tables.arm, and_(arm.run_id == metric.run_id, arm.role == metric.arm))
        .where(metric.name == name, *(metric[key] == value for key, value in where.items() if value is not None))
    )


def _runs(connection: Connection, suite: str | None) -> dict[str, _Run]:
    """Rank by time, start, label and suite of every run, or of those of one suite.

    From an index, in its order: a run's own row is large.
    """
    run = tables.run.c
    wanted = select(run.id, run.started_at, run.label, run.suite_name).order_by(run.started_at, run.id)
    rows = connection.execute(wanted if suite is None else wanted.where(run.suite_name == suite))
    return {run_id: (rank, at, label, of) for rank, (run_id, at, label, of) in enumerate(rows)}


def _own_outcomes(connection: Connection) -> dict[str, Outcome]:
    """What the latest verdict of each run itself is listed as; a run that never got one by now is not there."""
    verdict = tables.verdict.c
    reached = verdict.decided_at.asc().nulls_first()  # those of older schemas have none
    wanted = select(verdict.run_id, verdict.outcome).where(verdict.own == 1, results.by_now(connection))
    rows = connection.execute(wanted.order_by(verdict.run_id, reached, verdict.seq))
    return {run_id: _OUTCOMES[outcome] for run_id, outcome in rows}  # the last one stays
