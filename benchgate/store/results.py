"""What was concluded from runs: verdicts, which are only ever added, and derived numbers, which can be replaced."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from sqlalchemy import Connection, Select, and_, delete, func, insert, select

from benchgate.errors import EvidenceError, StoreError
from benchgate.model.deployment import Arm
from benchgate.model.run import MetricRow, TrendPoint
from benchgate.model.verdict import Outcome
from benchgate.store import rows, tables


@dataclass(frozen=True, slots=True)
class StoredVerdict:
    """A decision as it was stored; `sha256` is over the canonical JSON of `document`."""

    run_id: str
    compared_run_id: str | None
    outcome: Outcome
    document: Mapping[str, object]
    sha256: str

    @property
    def of_the_run_itself(self) -> bool:
        """Whether it judges the run against its own baseline and by the policy it was measured under.

        A comparison with another run, or a trial of another policy, does not change what became of the run.
        """
        return self.compared_run_id is None and self.document.get("policy_replaced") is not True


def save_verdict(
    connection: Connection, run_id: str, document: Mapping[str, object], compared_run_id: str | None
) -> StoredVerdict:
    """Adds a decision unless it is the latest one of this comparison already."""
    outcome = _outcome_of(document)
    text = rows.to_json(dict(document), "the verdict")
    stored = StoredVerdict(run_id, compared_run_id, outcome, dict(document), rows.text_sha256(text))
    verdict = tables.verdict.c
    same = verdict.run_id == run_id, verdict.compared_run_id.is_not_distinct_from(compared_run_id)
    latest = connection.scalar(select(verdict.sha256).where(*same).order_by(verdict.seq.desc()).limit(1))
    if latest != stored.sha256:
        next_seq = select(func.coalesce(func.max(verdict.seq), -1) + 1).where(verdict.run_id == run_id)
        connection.execute(
            insert(tables.verdict).values(
                run_id=run_id,
                seq=next_seq.scalar_subquery(),
                compared_run_id=compared_run_id,
                outcome=outcome.value,
                document=text,
                sha256=stored.sha256,
            )
        )
    return stored


def verdicts(connection: Connection, run_id: str) -> list[StoredVerdict]:
    """Every decision made from a run, oldest first. EvidenceError where one does not hash, or is listed as another."""
    return verdicts_of(connection, [run_id])


def verdicts_of(connection: Connection, run_ids: Sequence[str]) -> list[StoredVerdict]:
    """The same of several runs, run by run."""
    return list(_read(connection, run_ids))


def _read(connection: Connection, run_ids: Sequence[str] | Select[str]) -> Iterator[StoredVerdict]:
    verdict = tables.verdict
    wanted = select(verdict).where(verdict.c.run_id.in_(run_ids)).order_by(verdict.c.run_id, verdict.c.seq)
    for row in connection.execute(wanted):
        if rows.text_sha256(row.document) != row.sha256:
            raise EvidenceError(
                f"verdict {row.seq} of run {row.run_id} does not hash to {row.sha256}: the store is damaged"
            )
        document = json.loads(row.document)
        outcome = _outcome_of(document)
        if row.outcome != outcome.value:
            raise EvidenceError(
                f"verdict {row.seq} of run {row.run_id} says {outcome.value} and is listed as {row.outcome}: "
                "the store is damaged"
            )
        yield StoredVerdict(row.run_id, row.compared_run_id, outcome, document, row.sha256)


def own_outcomes(connection: Connection, run_ids: Sequence[str] | Select[str]) -> dict[str, Outcome]:
    """What the latest verdict of each run itself says; a run that never got one is not there."""
    known = _read(connection, run_ids)
    return {verdict.run_id: verdict.outcome for verdict in known if verdict.of_the_run_itself}  # the last one stays


def save_metrics(connection: Connection, run_id: str, metrics: Sequence[MetricRow]) -> None:
    """Keeps the derived numbers of a run in place of those it had."""
    for metric in metrics:
        if not math.isfinite(metric.value):
            raise StoreError(f"{_name_of(metric)} is {metric.value}; leave out a value that is not finite")
    twice = [key for key, count in Counter(map(_key, metrics)).items() if count > 1]
    if twice:
        raise StoreError(f"a run has one value of a metric in one place; {twice[0]} is there twice")
    connection.execute(delete(tables.metric).where(tables.metric.c.run_id == run_id))
    if metrics:
        connection.execute(
            insert(tables.metric),
            [{"run_id": run_id, "seq": seq, **_metric_row(metric)} for seq, metric in enumerate(metrics)],
        )


def trend(connection: Connection, name: str, suite: str | None, where: Mapping[str, str | None]) -> list[TrendPoint]:
    """One metric over the runs by time; `where` narrows by columns of the metric, None meaning any value."""
    run, metric, arm = tables.run.c, tables.metric.c, tables.arm.c
    of_run = (run.id, run.started_at, run.label, run.suite_name, arm.deployment)
    wanted = (
        select(*of_run, metric.arm, metric.stage, metric.task, metric.value, metric.n)
        .join_from(tables.metric, tables.run)
        .join(tables.arm, and_(arm.run_id == run.id, arm.role == metric.arm))
        .where(metric.name == name, *(metric[column] == value for column, value in where.items() if value is not None))
        .order_by(run.started_at, run.id, metric.seq)
    )
    if suite is not None:
        wanted = wanted.where(run.suite_name == suite)
    found = connection.execute(wanted).all()
    outcomes = own_outcomes(connection, select(wanted.subquery().c.id))
    return [
        TrendPoint(id_, at, label, of, json.loads(said)["name"], outcomes.get(id_), Arm(role), stage, task, value, n)
        for id_, at, label, of, said, role, stage, task, value, n in found
    ]


def _outcome_of(document: Mapping[str, object]) -> Outcome:
    said = document.get("outcome")
    if not isinstance(said, str) or said not in set(Outcome):
        raise StoreError(f"a verdict with the outcome {said!r} cannot be stored; expected one of {', '.join(Outcome)}")
    return Outcome(said)


def _metric_row(metric: MetricRow) -> rows.Row:
    return {
        "arm": metric.arm.value,
        "name": metric.name,
        "statistic": metric.statistic,
        "stage": metric.stage,
        "task": metric.task,
        "value": metric.value,
        "n": metric.n,
    }


def _key(metric: MetricRow) -> tuple[str | None, ...]:
    return metric.arm, metric.name, metric.statistic, metric.stage, metric.task


def _name_of(metric: MetricRow) -> str:
    return " ".join(part for part in _key(metric) if part is not None)
