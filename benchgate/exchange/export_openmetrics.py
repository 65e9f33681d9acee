"""Metrics of the newest runs as OpenMetrics text: for GitLab's metrics reports, or a file that Prometheus collects.

Values are rounded to 6 digits, as GitLab compares them as texts, and no label changes from run to run.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import Connection, select

from benchgate.errors import EvidenceError
from benchgate.model.verdict import Outcome
from benchgate.store import clock, tables
from benchgate.store.engine import fetch
from benchgate.store.results import own_outcomes
from benchgate.store.rows import Row

_UNITS = (
    ("_per_s", "_per_second", ""),
    ("_s", "_seconds", "seconds"),
    ("_ratio", "_ratio", "ratio"),
    ("_nats", "_nats", "nats"),
)
_NAME = re.compile(r"[a-z][a-z0-9_]*")


@dataclass(frozen=True, slots=True)
class _Family:
    """One metric: its name, its unit as the end of its name, what it means, and its samples."""

    name: str
    unit: str
    means: str
    samples: tuple[str, ...]

    def lines(self) -> Iterator[str]:
        """Its part of the text."""
        yield f"# TYPE {self.name} gauge"
        if self.unit:
            yield f"# UNIT {self.name} {self.unit}"
        yield f"# HELP {self.name} {self.means}"
        yield from self.samples


def open_metrics(connection: Connection, run_ids: Sequence[str]) -> str:
    """The text for the newest of these runs of each suite, without runs that calibrate and other tools' files."""
    newest = _newest(connection, run_ids)
    outcomes = own_outcomes(connection, [run["id"] for run in newest])
    families = [*_verdicts(newest, outcomes), *_metrics(connection, newest)]
    return "".join(f"{line}\n" for family in families for line in family.lines()) + "# EOF\n"


def _newest(connection: Connection, run_ids: Sequence[str]) -> list[Row]:
    run = tables.run
    wanted = select(run).where(~run.c.suite.contains('"calibration":true', autoescape=True), tables.measured_here())
    by_time = wanted.where(run.c.started_at <= clock.latest(connection)).order_by(run.c.started_at, run.c.id)
    chosen = set(run_ids)
    of_suite = {row["suite_name"]: row for row in fetch(connection, by_time) if row["id"] in chosen}
    return [of_suite[name] for name in sorted(of_suite)]


def _verdicts(newest: Sequence[Row], outcomes: dict[str, Outcome]) -> Iterator[_Family]:
    """What the newest run says of itself; of one that was not decided no outcome holds. And how old that is."""
    decided = [
        _sample(
            "benchgate_verdict",
            {"suite": run["suite_name"], "outcome": outcome.value},
            outcomes.get(run["id"]) is outcome,
        )
        for run in newest
        for outcome in Outcome
    ]
    yield _Family("benchgate_verdict", "", "1 for the outcome of the newest run of the suite.", tuple(decided))
    name = "benchgate_run_started_timestamp_seconds"
    begun = [_timestamp(name, run) for run in newest]
    yield _Family(name, "seconds", "When the newest run of the suite began.", tuple(begun))


def _timestamp(name: str, run: Row) -> str:
    return f"{name}{_labels({'suite': run['suite_name']})} {int(datetime.fromisoformat(run['started_at']).timestamp())}"


def _metrics(connection: Connection, newest: Sequence[Row]) -> Iterator[_Family]:
    suites = {run["id"]: run["suite_name"] for run in newest}
    metric = tables.metric
    found = fetch(connection, select(metric).where(metric.c.run_id.in_(suites)).order_by(metric.c.name))
    samples: dict[str, list[str]] = {}
    for row in found:
        labels = {name: row[name] for name in ("arm", "stage", "statistic", "task") if row[name] is not None}
        name, _ = _named(row["name"])
        line = _sample(name, labels | {"suite": suites[row["run_id"]]}, row["value"])
        samples.setdefault(row["name"], []).append(line)
    for said, lines in samples.items():
        name, unit = _named(said)
        yield _Family(name, unit, f"{said} of docs/metrics.md.", tuple(sorted(lines)))


def _named(metric: str) -> tuple[str, str]:
    """What a metric is called here, and its unit: in full, and as the end of the name, as OpenMetrics wants it."""
    if not _NAME.fullmatch(metric):
        raise EvidenceError(f"a metric is called {ascii(metric)[:60]}; expected small letters, digits and _")
    for ending, spelled, unit in _UNITS:
        if metric.endswith(ending):
            return f"benchgate_{metric.removesuffix(ending)}{spelled}", unit
    return f"benchgate_{metric}", ""


def _sample(name: str, labels: dict[str, str], value: float) -> str:
    return f"{name}{_labels(labels)} {value + 0.0:.6g}"


def _labels(labels: dict[str, str]) -> str:
    told = (f'{name}="{_escaped(labels[name])}"' for name in sorted(labels))
    return f"{{{','.join(told)}}}"


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"')
