"""Metrics of the newest runs as OpenMetrics text, for a file that Prometheus collects.

No label changes from run to run, so the series of a suite go on.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from sqlalchemy import Connection, select

from benchgate.report.openmetrics import Family, exposition, metric_families, sample, verdict_family
from benchgate.store import clock, tables
from benchgate.store.engine import fetch
from benchgate.store.results import metrics, own_outcomes
from benchgate.store.rows import Row


def open_metrics(connection: Connection, run_ids: Sequence[str]) -> str:
    """The text for the newest of these runs of each suite, without runs that calibrate and other tools' files."""
    newest = _newest(connection, run_ids)
    outcomes = own_outcomes(connection, [run["id"] for run in newest])
    verdicts = verdict_family({run["suite_name"]: outcomes.get(run["id"]) for run in newest})
    rows = [(run["suite_name"], row) for run in newest for row in metrics(connection, run["id"])]
    return exposition([verdicts, _begun(newest), *metric_families(rows)])


def _newest(connection: Connection, run_ids: Sequence[str]) -> list[Row]:
    run = tables.run
    wanted = select(run).where(~run.c.suite.contains('"calibration":true', autoescape=True), tables.measured_here())
    by_time = wanted.where(run.c.started_at <= clock.latest(connection)).order_by(run.c.started_at, run.c.id)
    chosen = set(run_ids)
    of_suite = {row["suite_name"]: row for row in fetch(connection, by_time) if row["id"] in chosen}
    return [of_suite[name] for name in sorted(of_suite)]


def _begun(newest: Sequence[Row]) -> Family:
    """How old what is told is."""
    name = "benchgate_run_started_timestamp_seconds"
    begun = [(run["suite_name"], int(datetime.fromisoformat(run["started_at"]).timestamp())) for run in newest]
    samples = tuple(sample(name, {"suite": suite}, at, digits=12) for suite, at in begun)
    return Family(name, "seconds", "When the newest run of the suite began.", samples)
