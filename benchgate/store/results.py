"""What was concluded from runs: verdicts, which are only ever added, and derived numbers, which can be replaced.

A verdict that is ahead of the store's clock is nobody's latest until its time has come.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import ColumnElement, Connection, Select, delete, func, insert, select

from benchgate.errors import EvidenceError, StoreError
from benchgate.model.deployment import Arm
from benchgate.model.run import MetricRow
from benchgate.model.verdict import Outcome
from benchgate.store import clock, rows, tables
from benchgate.store.check_rows import check_rows
from benchgate.store.engine import fetch

_REACHED = func.coalesce(tables.verdict.c.decided_at, "")  # those of older schemas say no instant, and stand first


@dataclass(frozen=True, slots=True)
class StoredVerdict:
    """A decision as it was stored first at `decided_at` (RFC 3339 UTC; None: by a schema that kept no instant)."""

    run_id: str
    compared_run_id: str | None
    outcome: Outcome
    document: Mapping[str, object]
    sha256: str
    decided_at: str | None = None

    @property
    def of_the_run_itself(self) -> bool:
        """Whether it judges the run against its own baseline and by the policy it was measured under.

        A comparison with another run, or a trial of another policy, does not change what became of the run.
        """
        return is_own(self.compared_run_id, self.document)


def is_own(compared_run_id: str | None, document: Mapping[str, object]) -> bool:
    """Whether a verdict judges its run against the run's own baseline, by the policy it was measured under."""
    return compared_run_id is None and document.get("policy_replaced") is not True


def save_verdict(
    connection: Connection,
    run_id: str,
    document: Mapping[str, object],
    compared_run_id: str | None,
    decided_at: str | None,
) -> StoredVerdict:
    """Adds a decision, or gives the latest one of this comparison where that says the same.

    EvidenceError where `decided_at` is to come by the store's clock.
    """
    clock.require_by_now(connection, run_id, [("verdict", decided_at)])
    outcome = _outcome_of(document)
    text = rows.to_json(dict(document), "the verdict")
    verdict = tables.verdict.c
    same = verdict.run_id == run_id, verdict.compared_run_id.is_not_distinct_from(compared_run_id)
    last = _REACHED.desc(), verdict.seq.desc()
    latest = fetch(connection, select(tables.verdict).where(*same, by_now(connection)).order_by(*last).limit(1))
    if latest and latest[0]["document"] == text:
        return read_verdict(latest[0])
    row = {"run_id": run_id, "compared_run_id": compared_run_id, "document": text, "decided_at": decided_at}
    sha256 = _sha256(row)
    stored = StoredVerdict(run_id, compared_run_id, outcome, dict(document), sha256, decided_at)
    next_seq = select(func.coalesce(func.max(verdict.seq), -1) + 1).where(verdict.run_id == run_id)
    known = {"outcome": outcome.value, "sha256": sha256, "own": int(stored.of_the_run_itself)}
    seq = connection.execute(
        insert(tables.verdict).values(**row, **known, seq=next_seq.scalar_subquery()).returning(verdict.seq)
    ).scalar_one()
    if checks := list(check_rows(run_id, seq, document)):
        connection.execute(insert(tables.check_result), checks)
    return stored


def _sha256(row: Mapping[str, Any]) -> str:
    """Of a verdict's row: over its document, and where it has an instant, over that and over what it was held against.

    Of an older one its document alone says what it was held against (`_held_against`).
    """
    of_document = rows.text_sha256(row["document"])
    if row["decided_at"] is None:
        return of_document
    sealed = [row["run_id"], row["compared_run_id"], row["decided_at"], of_document]
    return rows.text_sha256(rows.to_json(sealed, "the verdict"))


def by_now(connection: Connection) -> ColumnElement[bool]:
    """That a verdict was reached by now, by the store's clock."""
    return clock.latest(connection) >= _REACHED


def verdicts(connection: Connection, run_id: str) -> list[StoredVerdict]:
    """Every decision made from a run by now, oldest first.

    EvidenceError where one does not hash, or is listed as another.
    """
    return list(_read(connection, tables.verdict.c.run_id == run_id, by_now(connection)))


def verdicts_of(connection: Connection, run_ids: Sequence[str]) -> list[StoredVerdict]:
    """The same of several runs, run by run, with those that are still to come: the caller says by when it counts."""
    return list(_read(connection, tables.verdict.c.run_id.in_(run_ids)))


def all_verdicts(connection: Connection) -> Iterator[StoredVerdict]:
    """Every decision made from any run by now, one at a time, run by run and oldest first."""
    return _read(connection, by_now(connection))


def _read(connection: Connection, *which: ColumnElement[bool]) -> Iterator[StoredVerdict]:
    # By when they were reached, as every store agrees on: verdicts taken in from another store have later numbers.
    wanted = select(tables.verdict).where(*which).order_by(tables.verdict.c.run_id, _REACHED, tables.verdict.c.seq)
    for row in connection.execute(wanted):
        yield read_verdict(row._asdict())


def read_verdict(row: rows.Row) -> StoredVerdict:
    """The verdict of a row. EvidenceError where it does not hash, or is listed as another than it says it is."""
    what, listed, compared = f"verdict {row['seq']} of run {row['run_id']}", row["outcome"], row["compared_run_id"]
    if _sha256(row) != row["sha256"]:
        raise EvidenceError(f"{what} does not hash to {row['sha256']}: the store is damaged")
    document = json.loads(row["document"])
    outcome = _outcome_of(document)
    if listed != outcome.value:
        raise EvidenceError(f"{what} says {outcome.value} and is listed as {listed}: the store is damaged")
    if "against" in document and _held_against(document) != compared:
        said, other = (_kind(one) for one in (_held_against(document), compared))
        raise EvidenceError(f"{what} says that it is {said} and is listed as one {other}: the store is damaged")
    return StoredVerdict(row["run_id"], compared, outcome, document, row["sha256"], row["decided_at"])


def _kind(compared_run_id: str | None) -> str:
    return "of the run itself" if compared_run_id is None else f"against run {compared_run_id}"


def _held_against(document: Mapping[str, Any]) -> str | None:
    """The id of the run that a comparison was with; None for a verdict of the run itself."""
    against = document["against"]
    return None if against is None else str(against["id"])


def own_outcomes(connection: Connection, run_ids: Sequence[str] | Select[str]) -> dict[str, Outcome]:
    """What the latest verdict of each run itself says; a run that never got one by now is not there."""
    known = _read(connection, tables.verdict.c.run_id.in_(run_ids), by_now(connection))
    return {verdict.run_id: verdict.outcome for verdict in known if verdict.of_the_run_itself}  # the last one stays


def save_metrics(connection: Connection, run_id: str, metrics: Sequence[MetricRow]) -> None:
    """Keeps the derived numbers of a run in place of those it had."""
    for metric in metrics:
        numbers = [number for number in (metric.value, metric.lower, metric.upper) if number is not None]
        if wrong := [number for number in numbers if not math.isfinite(number)]:
            raise StoreError(f"{_name_of(metric)} is {wrong[0]}; leave out a value that is not finite")
    twice = [key for key, count in Counter(map(_key, metrics)).items() if count > 1]
    if twice:
        raise StoreError(f"a run has one value of a metric in one place; {twice[0]} is there twice")
    connection.execute(delete(tables.metric).where(tables.metric.c.run_id == run_id))
    if metrics:
        connection.execute(
            insert(tables.metric),
            [{"run_id": run_id, "seq": seq, **_metric_row(metric)} for seq, metric in enumerate(metrics)],
        )


def metrics(connection: Connection, run_id: str) -> list[MetricRow]:
    """The derived numbers of a run, in the order in which they were given."""
    metric = tables.metric
    return [
        MetricRow(
            arm=Arm(row.arm),
            name=row.name,
            statistic=row.statistic,
            stage=row.stage,
            task=row.task,
            value=row.value,
            n=row.n,
            lower=row.lower,
            upper=row.upper,
        )
        for row in connection.execute(select(metric).where(metric.c.run_id == run_id).order_by(metric.c.seq))
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
        "lower": metric.lower,
        "upper": metric.upper,
    }


def _key(metric: MetricRow) -> tuple[str | None, ...]:
    return metric.arm, metric.name, metric.statistic, metric.stage, metric.task


def _name_of(metric: MetricRow) -> str:
    return " ".join(part for part in _key(metric) if part is not None)
