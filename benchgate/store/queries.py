"""Read-only queries over many runs: the overview of a store, and one metric over time.

Trends are read from indexes alone, outcomes from the columns that list verdicts. Where a decision rests on an outcome,
the document is read and hashed instead (`results.own_outcomes`).
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from sqlalchemy import Connection, and_, func, select

from benchgate.model.deployment import Arm, engine_label, hardware_label, model_label, reports_hardware
from benchgate.model.history import Promotion, promotion_labels
from benchgate.model.run import MetricRow, Run, TrendPoint
from benchgate.model.verdict import Outcome
from benchgate.store import clock, raw_records, results, rows, tables
from benchgate.store.database import fetch
from benchgate.store.evidence import MEASURED
from benchgate.store.rows import Row
from benchgate.store.stored_run import ORDERED_TABLES, Removal, read_runs

_DeploymentLabels = tuple[str, str, str, str]  # name, model, engine and hardware of a deployment, as a point has them
NewestRun = tuple[str, str, Outcome | None, list[MetricRow]]
"""Suite, start (RFC 3339 UTC), own outcome and metrics of a run."""
_COST = "usd_"  # what the names of costs begin with
_MOST_NUMBERS = 1 << 32  # of a run
_AT_ONCE = 500  # runs in one query
_ARMS = {arm.value: arm for arm in Arm}
_OUTCOMES = {outcome.value: outcome for outcome in Outcome}


@dataclass(frozen=True, slots=True)
class StoredOutcome:
    """Own verdict of a run; `decided_at` is None where an older schema kept no instant."""

    outcome: Outcome
    reason: str
    sha256: str
    decided_at: str | None


@dataclass(frozen=True, slots=True, eq=False)
class RunSummary:
    """Summary of a run. `outcomes` are its own verdicts, oldest first; `removed` is the removal of its raw records.

    `evidence_sha256` is None while the run is not over; then `n_kept` counts its rows (0 for every other run) and
    `measured` is True where anything was measured (True for every other run). `noise_sha256` identifies the noise
    profile of a calibration.
    """

    run: Run
    outcomes: tuple[StoredOutcome, ...]
    evidence_sha256: str | None
    n_kept: int
    measured: bool
    removed: Removal | None
    noise_sha256: str | None


@dataclass(frozen=True, slots=True, eq=False)
class Overview:
    """All runs and promotions, oldest first, and the instant and SHA-256 of each noise profile."""

    runs: tuple[RunSummary, ...]
    promotions: tuple[Promotion, ...]
    noise: tuple[tuple[str, str], ...]


def overview(connection: Connection) -> Overview:
    """Read the overview of a whole store. Raises EvidenceError for a damaged verdict or promotion."""
    profile = tables.noise_profile.c
    found = fetch(connection, select(tables.run).order_by(tables.run.c.started_at, tables.run.c.id))
    runs = read_runs(connection, found)
    outcomes: dict[str, list[StoredOutcome]] = {run.id: [] for run in runs}
    for one in results.read_verdicts(connection, results.reached_by_now(connection)):
        if one.of_the_run_itself:
            reason = str(one.document.get("reason", ""))
            outcomes[one.run_id].append(StoredOutcome(one.outcome, reason, one.sha256, one.decided_at))
    profiles = connection.execute(select(profile.run_id, profile.measured_at, profile.sha256)).all()
    stone, seen = tables.tombstone.c, tables.observation.c
    counted = func.max(stone.removed_at), func.max(stone.reason), func.count(), func.sum(stone.n_bytes)
    removals = connection.execute(select(stone.run_id, *counted).group_by(stone.run_id))
    removed = {run_id: Removal(at, why, n_rows, int(n_bytes)) for run_id, at, why, n_rows, n_bytes in removals}
    unfinished = select(tables.run.c.id).where(tables.run.c.evidence_sha256.is_(None))
    kept: Counter[str] = Counter()
    for table in ORDERED_TABLES:
        n_rows = select(table.c.run_id, func.count()).where(table.c.run_id.in_(unfinished)).group_by(table.c.run_id)
        kept.update({run_id: int(count) for run_id, count in connection.execute(n_rows)})
    in_progress = select(seen.run_id).where(seen.run_id.in_(unfinished), seen.kind.in_(MEASURED))
    measured = set(connection.scalars(in_progress.distinct()))
    noise = {run_id: sha256 for run_id, _, sha256 in profiles}
    return Overview(
        runs=tuple(
            RunSummary(
                run=run,
                outcomes=tuple(outcomes[run.id]),
                evidence_sha256=row["evidence_sha256"],
                n_kept=kept[run.id],
                measured=row["evidence_sha256"] is not None or run.id in measured,
                removed=removed.get(run.id),
                noise_sha256=noise.get(run.id),
            )
            for run, row in zip(runs, found, strict=True)
        ),
        promotions=tuple(results.promotions(connection)),
        noise=tuple(sorted((measured_at, sha256) for _, measured_at, sha256 in profiles)),
    )


@dataclass(frozen=True, slots=True)
class RunFilter:
    """Conditions on runs; None is any. `*` in `label` is any text; `since` is a day or second of RFC 3339, in UTC."""

    suite: str | None = None
    label: str | None = None
    outcome: Outcome | None = None
    since: str | None = None
    limit: int | None = None


@dataclass(frozen=True, slots=True, eq=False)
class ListedRun:
    """A run of a list, its latest own outcome by the column that lists it, and the label of its promotion."""

    run: Run
    outcome: Outcome | None
    promotion: str | None


def list_runs(connection: Connection, chosen: RunFilter) -> list[ListedRun]:
    """Return the runs that pass the filter, newest first."""
    run = tables.run.c
    by_time = select(run.id, run.label).order_by(run.started_at.desc(), run.id.desc())
    if chosen.since is not None:
        by_time = by_time.where(run.started_at >= chosen.since)
    outcomes = _own_outcomes(connection)
    of_label = None if chosen.label is None else re.compile(".*".join(map(re.escape, chosen.label.split("*"))))
    ids = [
        run_id
        for run_id, label in connection.execute(tables.of_suite(by_time, chosen.suite))
        if (of_label is None or (label is not None and of_label.fullmatch(label)))
        and (chosen.outcome is None or outcomes.get(run_id) is chosen.outcome)
    ][: chosen.limit]
    rows: dict[str, Row] = {}
    for first in range(0, len(ids), _AT_ONCE):
        some = select(tables.run).where(run.id.in_(ids[first : first + _AT_ONCE]))
        rows |= {row["id"]: row for row in fetch(connection, some)}
    promoted = promotion_labels(results.promotions(connection, chosen.suite))
    found = read_runs(connection, [rows[run_id] for run_id in ids])
    return [ListedRun(one, outcomes.get(one.id), promoted.get(one.id)) for one in found]


@dataclass(frozen=True, slots=True)
class Contents:
    """Stored observations of one kind (`load`, `quality` and so on) in one stage or task, of both arms."""

    kind: str
    place: str | None  # stage or task
    blocks: int
    n_rows: int
    n_bytes: int


def contents(connection: Connection, run_id: str) -> list[Contents]:
    """Return the rows and bytes of a run's observations, in the order in which they were first measured."""
    seen = tables.observation.c
    place = func.coalesce(seen.stage, seen.task)
    n_bytes = func.sum(raw_records.n_bytes(connection, seen.data))
    counted = func.count(seen.block.distinct()), func.sum(seen.n_rows), n_bytes
    query = select(seen.kind, place, *counted).where(seen.run_id == run_id, seen.kind.in_(MEASURED))
    rows = connection.execute(query.group_by(seen.kind, place).order_by(func.min(seen.seq)))
    return [Contents(kind, where, blocks, int(n), int(size)) for kind, where, blocks, n, size in rows]


def trend(connection: Connection, name: str, suite: str | None, where: Mapping[str, str | None]) -> list[TrendPoint]:
    """Return one metric over the runs by time; `where` narrows by columns of the metric, None meaning any value."""
    metric, arm, run = tables.metric.c, tables.arm.c, tables.run.c
    of_metric = metric.arm, metric.stage, metric.task, metric.value, metric.n, metric.lower, metric.upper
    points_query = (
        select(metric.run_id, metric.seq, arm.deployment, *of_metric)
        .join_from(tables.metric, tables.arm, and_(arm.run_id == metric.run_id, arm.role == metric.arm))
        .where(metric.name == name, *(metric[key] == value for key, value in where.items() if value is not None))
    )
    # Plain tuples throughout: of tens of thousands of objects the collector's rounds take as long as the query.
    found = [tuple(row) for row in connection.execute(points_query)]
    if not found:
        return []
    # Rank by time, start, label and suite of each run, from an index alone.
    by_time = select(run.id, run.started_at, run.label, run.suite_name).order_by(run.started_at, run.id)
    listed = connection.execute(tables.of_suite(by_time, suite))
    runs = {run_id: (rank, at, label, of) for rank, (run_id, at, label, of) in enumerate(listed)}
    outcomes = _own_outcomes(connection)
    promoted = promotion_labels(results.promotions(connection, suite))
    known = [row for row in found if row[0] in runs]
    known.sort(key=lambda row: runs[row[0]][0] * _MOST_NUMBERS + row[1])
    served = _deployment_reader(connection, suite, known)
    doubts: dict[str, str | None] = {}  # why a token price does not belong to a deployment
    if name.startswith(_COST):
        from benchgate.gate.evidence.costs import PRICE_MISMATCH, price_mismatch  # slow to import

        for text in {row[2] for row in known}:
            reason = price_mismatch(rows.read_deployment(text))
            doubts[text] = None if reason is None else f"{PRICE_MISMATCH}: it {reason}"
    points = []
    for run_id, _, deployment, role, stage, task, value, n, lower, upper in known:
        _, at, label, of = runs[run_id]
        labels = served(run_id, deployment)
        outcome, by = outcomes.get(run_id), promoted.get(run_id)
        number, described = (value, n, lower, upper), (*labels[1:], doubts.get(deployment))
        points.append(
            TrendPoint(run_id, at, label, of, labels[0], outcome, _ARMS[role], stage, task, *number, by, *described)
        )
    return points


def _deployment_reader(
    connection: Connection, suite: str | None, known: Iterable[Sequence[Any]]
) -> Callable[[str, str], _DeploymentLabels]:
    """Return a function from a run and its deployment's JSON to labels; each JSON text is parsed once.

    The database cannot parse them: Postgres rejects a NUL in JSON. A run's machine is in its own row, which is large,
    so it is read only for deployments that benchgate served itself.
    """
    read = {text: rows.read_deployment(text) for text in {row[2] for row in known}}
    ours = {text for text, one in read.items() if one.url is None and not reports_hardware(one)}
    run = tables.run.c
    query = select(run.id, run.environment)
    found = connection.execute(tables.of_suite(query, suite)) if ours else ()
    machines = {run_id: environment for run_id, environment in found}

    @cache
    def labels(text: str, machine: str) -> _DeploymentLabels:
        one = read[text]
        return one.name, model_label(one), engine_label(one), hardware_label(one, json.loads(machine))

    anywhere = {text: labels(text, "{}") for text in read.keys() - ours}
    return lambda run_id, text: anywhere.get(text) or labels(text, machines[run_id])


def _own_outcomes(connection: Connection) -> dict[str, Outcome]:
    """Return the listed outcome of each run's latest own verdict; runs without one are missing."""
    verdict = tables.verdict.c
    reached = verdict.decided_at.asc().nulls_first()  # those of older schemas have none
    query = select(verdict.run_id, verdict.outcome).where(verdict.own == 1, results.reached_by_now(connection))
    rows = connection.execute(query.order_by(verdict.run_id, reached, verdict.seq))
    return {run_id: _OUTCOMES[outcome] for run_id, outcome in rows}  # the last one stays


def newest_runs(connection: Connection, run_ids: Collection[str]) -> list[NewestRun]:
    """Return the newest of these runs of each suite that judges a candidate by the whole suite."""
    run, chosen = tables.run, set(run_ids)
    begun = select(run).where(run.c.started_at <= clock.latest(connection))
    by_time = fetch(connection, begun.order_by(run.c.started_at, run.c.id))
    found = read_runs(connection, [row for row in by_time if row["id"] in chosen])
    newest = {one.suite_name: one for one in found if one.judges_whole_suite}
    outcomes = results.own_outcomes(connection, [one.id for one in newest.values()])
    return [
        (suite, one.started_at, outcomes.get(one.id), results.metrics(connection, one.id))
        for suite, one in sorted(newest.items())
    ]
