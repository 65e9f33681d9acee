"""Results derived from runs: verdicts, metrics, promotions, noise profiles and client profiles.

All but metrics are only ever added. A verdict or a promotion dated ahead of the store's clock does not count until its
time has come: a clock that was wrong once would otherwise take precedence over every later record.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from sqlalchemy import ColumnElement, Connection, Select, delete, func, insert, select

from benchgate.errors import Command, EvidenceError, Remedy, StoreError, UsageError
from benchgate.model.deployment import Arm, sha256_of
from benchgate.model.history import Promotion, PromotionAction, baseline_series, current_promotions
from benchgate.model.noise import NoiseKey, NoiseProfile
from benchgate.model.run import MetricRow, RunStatus
from benchgate.model.verdict import Outcome
from benchgate.store import clock, rows, stored_run, tables
from benchgate.store.database import fetch
from benchgate.store.locks import SUITES, lock_name
from benchgate.store.rows import check_rows

_METRIC_COLUMNS = ("name", "statistic", "stage", "task", "value", "n", "lower", "upper")
_REACHED = func.coalesce(tables.verdict.c.decided_at, "")  # those of older schemas say no instant, and stand first


@dataclass(frozen=True, slots=True)
class StoredVerdict:
    """Verdict as stored first at `decided_at` (RFC 3339 UTC; None: by a schema without that column)."""

    run_id: str
    compared_run_id: str | None
    outcome: Outcome
    document: Mapping[str, object]
    sha256: str
    decided_at: str | None = None

    @property
    def of_the_run_itself(self) -> bool:
        """True unless it compares two runs or tries another policy."""
        return is_own(self.compared_run_id, self.document)


def is_own(compared_run_id: str | None, document: Mapping[str, object]) -> bool:
    """Return True for a verdict against the run's own baseline, by the policy it was measured under.

    A comparison with another run, or a trial of another policy, does not change the run's outcome.
    """
    return compared_run_id is None and document.get("policy_replaced") is not True


def save_verdict(
    connection: Connection,
    run_id: str,
    document: Mapping[str, object],
    compared_run_id: str | None,
    decided_at: str | None,
) -> StoredVerdict:
    """Add a verdict, or return the latest one of this comparison where that is equal.

    Raises EvidenceError where `decided_at` is in the future by the store's clock.
    """
    lock_name(connection, run_id)  # two who judge a run at once would give their verdicts one number
    clock.require_by_now(connection, run_id, [("verdict", decided_at)])
    outcome = _require_outcome(document)
    text = rows.to_json(dict(document), "the verdict")
    verdict = tables.verdict.c
    same = verdict.run_id == run_id, verdict.compared_run_id.is_not_distinct_from(compared_run_id)
    last = _REACHED.desc(), verdict.seq.desc()
    latest = fetch(connection, select(tables.verdict).where(*same, reached_by_now(connection)).order_by(*last).limit(1))
    if latest and latest[0]["document"] == text:
        return read_verdict(latest[0])
    if decided_at is not None and latest:  # by another clock, or one that was set back: the later verdict stays later
        decided_at = max(decided_at, latest[0]["decided_at"] or "")
    row = {"run_id": run_id, "compared_run_id": compared_run_id, "document": text, "decided_at": decided_at}
    sha256 = _verdict_sha256(row)
    stored = StoredVerdict(run_id, compared_run_id, outcome, dict(document), sha256, decided_at)
    next_seq = select(func.coalesce(func.max(verdict.seq), -1) + 1).where(verdict.run_id == run_id)
    known = {"outcome": outcome.value, "sha256": sha256, "own": int(stored.of_the_run_itself)}
    seq = connection.execute(
        insert(tables.verdict).values(**row, **known, seq=next_seq.scalar_subquery()).returning(verdict.seq)
    ).scalar_one()
    if checks := list(check_rows(run_id, seq, document)):
        connection.execute(insert(tables.check_result), checks)
    return stored


def _verdict_sha256(row: Mapping[str, Any]) -> str:
    """Hash the document; with an instant, hash it together with the runs and the instant.

    Older verdicts name the run they compare with in the document alone.
    """
    of_document = rows.text_sha256(row["document"])
    if row["decided_at"] is None:
        return of_document
    sealed = [row["run_id"], row["compared_run_id"], row["decided_at"], of_document]
    return rows.text_sha256(rows.to_json(sealed, "the verdict"))


def reached_by_now(connection: Connection) -> ColumnElement[bool]:
    """Return the condition that a verdict is not dated in the future, by the store's clock."""
    return clock.latest(connection) >= _REACHED


def verdicts(connection: Connection, run_id: str) -> list[StoredVerdict]:
    """Return every verdict on a run by now, oldest first. Raises EvidenceError for a damaged one."""
    return list(read_verdicts(connection, tables.verdict.c.run_id == run_id, reached_by_now(connection)))


def read_verdicts(connection: Connection, *conditions: ColumnElement[bool]) -> Iterator[StoredVerdict]:
    """Yield the verdicts that meet all conditions, run by run and oldest first."""
    # By when they were reached, as every store agrees on: verdicts imported from another store have later numbers.
    query = select(tables.verdict).where(*conditions).order_by(tables.verdict.c.run_id, _REACHED, tables.verdict.c.seq)
    for row in connection.execute(query):
        yield read_verdict(row._asdict())


def read_verdict(row: rows.Row) -> StoredVerdict:
    """Return the verdict of a row. Raises EvidenceError where it does not hash, or its columns contradict it."""
    what, listed, compared = f"verdict {row['seq']} of run {row['run_id']}", row["outcome"], row["compared_run_id"]
    if _verdict_sha256(row) != row["sha256"]:
        raise EvidenceError(f"{what} does not hash to {row['sha256']}: the store is damaged")
    document = json.loads(row["document"])
    outcome = _require_outcome(document)
    if listed != outcome.value:
        raise EvidenceError(f"{what} says {outcome.value} and is listed as {listed}: the store is damaged")
    if "against" in document:  # the run that a comparison was with; None for a verdict on the run itself
        against = None if document["against"] is None else str(document["against"]["id"])
        if against != compared:
            kind, other = ("of the run itself" if id_ is None else f"against run {id_}" for id_ in (against, compared))
            raise EvidenceError(f"{what} says that it is {kind} and is listed as one {other}: the store is damaged")
    return StoredVerdict(row["run_id"], compared, outcome, document, row["sha256"], row["decided_at"])


def own_outcomes(connection: Connection, run_ids: Sequence[str] | Select[str]) -> dict[str, Outcome]:
    """Return the outcome of each run's latest own verdict; runs without one are missing."""
    known = read_verdicts(connection, tables.verdict.c.run_id.in_(run_ids), reached_by_now(connection))
    return {verdict.run_id: verdict.outcome for verdict in known if verdict.of_the_run_itself}  # the last one stays


def require_raw(connection: Connection, run_id: str) -> None:
    """Raise EvidenceError for a run whose raw records were removed: nothing can be recomputed from them."""
    gone = stored_run.removal(connection, run_id)
    if gone is None:
        return
    verdict = tables.verdict.c
    latest = select(verdict.outcome, verdict.decided_at).where(
        verdict.run_id == run_id, verdict.own == 1, reached_by_now(connection)
    )
    last = func.coalesce(verdict.decided_at, "").desc(), verdict.seq.desc()
    own = connection.execute(latest.order_by(*last).limit(1)).one_or_none()
    at = f" of {own.decided_at[:10]}" if own is not None and own.decided_at else ""
    stands = f"its own verdict{at}, {own.outcome}, stands" if own is not None else "it never got a verdict of its own"
    raise EvidenceError(
        f"run {run_id}: its raw records were removed on {gone.removed_at[:10]} by `{gone.reason}`, so it cannot be "
        f"judged again; {stands}, and `trend` and `compare` still show its numbers"
    )


def save_metrics(connection: Connection, run_id: str, metrics: Sequence[MetricRow]) -> None:
    """Replace the metrics of a run."""
    lock_name(connection, run_id)
    for metric in metrics:
        numbers = [number for number in (metric.value, metric.lower, metric.upper) if number is not None]
        if wrong := [number for number in numbers if not math.isfinite(number)]:
            name = " ".join(part for part in _metric_key(metric) if part is not None)
            raise StoreError(f"{name} is {wrong[0]}; leave out a value that is not finite")
    twice = [key for key, count in Counter(map(_metric_key, metrics)).items() if count > 1]
    if twice:
        raise StoreError(f"a run has one value of a metric in one place; {twice[0]} is there twice")
    connection.execute(delete(tables.metric).where(tables.metric.c.run_id == run_id))
    found = [asdict(one) | {"arm": one.arm.value, "run_id": run_id, "seq": seq} for seq, one in enumerate(metrics)]
    if found:
        connection.execute(insert(tables.metric), found)


def metrics(connection: Connection, run_id: str) -> list[MetricRow]:
    """Return the metrics of a run, in the order in which they were given."""
    metric = tables.metric
    found = fetch(connection, select(metric).where(metric.c.run_id == run_id).order_by(metric.c.seq))
    return [MetricRow(arm=Arm(row["arm"]), **{name: row[name] for name in _METRIC_COLUMNS}) for row in found]


def _require_outcome(document: Mapping[str, object]) -> Outcome:
    outcome = document.get("outcome")
    if not isinstance(outcome, str) or outcome not in set(Outcome):
        listed = ", ".join(Outcome)
        raise StoreError(f"a verdict with the outcome {outcome!r} cannot be stored; expected one of {listed}")
    return Outcome(outcome)


def _metric_key(metric: MetricRow) -> tuple[str | None, ...]:
    return metric.arm, metric.name, metric.statistic, metric.stage, metric.task


def promotions(connection: Connection, suite: str | None = None, *, until: str | None = None) -> list[Promotion]:
    """Return the promotions and withdrawals made by `until` (RFC 3339 UTC; None: now), in order of time.

    Raises EvidenceError for a damaged one.
    """
    promotion = tables.promotion
    query = select(promotion).order_by(promotion.c.promoted_at, promotion.c.id)
    query = query.where(promotion.c.promoted_at <= (until or clock.latest(connection)))
    if suite is not None:
        query = query.where(promotion.c.suite_name == suite)
    return [read_promotion(row) for row in fetch(connection, query)]


def read_promotion(row: rows.Row) -> Promotion:
    """Return the record of a row. Raises EvidenceError where it does not hash, or its columns contradict it."""
    what = f"promotion {row['id']} of run {row['run_id']}"
    try:
        found = Promotion.from_json(read_document(row, what))
    except rows.UNREADABLE as error:
        raise EvidenceError(f"{what} is none: {error}") from error
    if _promotion_row(found) != row:
        raise EvidenceError(f"{what} is listed as another than it says it is: the store is damaged")
    return found


def _promotion_row(promotion: Promotion) -> rows.Row:
    return {
        "id": promotion.id,
        "run_id": promotion.run_id,
        "promoted_at": promotion.promoted_at,
        "suite_name": promotion.suite,
        "in_series": int(promotion.in_series),
        **document_columns(promotion.to_json(), "the promotion"),
    }


def save_promotion(connection: Connection, promotion: Promotion) -> Promotion:
    """Add a promotion or a withdrawal; return the current promotion instead where a new one adds nothing.

    Raises UsageError for withdrawing what is not promoted, EvidenceError for grounds that differ from the store's, a
    run without raw records and an instant in the future, and StoreError for one that is not later than the last record:
    their order decides which one counts.
    """
    run_id, imported = promotion.run_id, tables.imported.c
    lock_name(connection, promotion.suite, space=SUITES)
    lock_name(connection, run_id)
    clock.require_by_now(connection, run_id, [("promotion", promotion.promoted_at)])
    (run,) = fetch(connection, select(tables.run).where(tables.run.c.id == run_id))
    known = promotions(connection, run["suite_name"])
    current = current_promotions(known).get(run_id)
    if promotion.deed is PromotionAction.WITHDRAWN:
        if current is None:
            raise UsageError(f"run {run_id} is not promoted, so there is nothing to withdraw")
        if not promotion.may_withdraw(current):
            raise UsageError(
                f"run {run_id} is in the baseline series, which only a protected ref may change; withdraw it in a job "
                "on one, or by hand with --ref REF --protected"
            )
    else:
        if current is not None and promotion.weight <= current.weight:
            return current
        if connection.scalar(select(imported.id).where(imported.run_id == run_id).limit(1)) is not None:
            raise UsageError(f"run {run_id} was measured by another tool; promote one that benchgate measured")
        require_raw(connection, run_id)
        own = [verdict for verdict in verdicts(connection, run_id) if verdict.of_the_run_itself]
        require_grounds(promotion, run, own[-1:])
    if known and promotion.promoted_at <= known[-1].promoted_at:
        raise StoreError(
            f"the newest promotion of {run['suite_name']} is of {known[-1].promoted_at}, and by this machine it is "
            f"{promotion.promoted_at}; set its clock, or try again in a moment"
        )
    connection.execute(insert(tables.promotion).values(_promotion_row(promotion)))
    return promotion


def require_grounds(promotion: Promotion, run: rows.Row, verdicts: Sequence[StoredVerdict]) -> None:
    """Raise EvidenceError unless a promotion rests on this run, finished, and on one of these verdicts of it."""
    grounds, what = promotion.grounds, f"the promotion of run {promotion.run_id}"
    if grounds is None:
        return
    if promotion.suite != run["suite_name"]:
        raise EvidenceError(f"{what} is of suite {promotion.suite!r}, and the run of {run['suite_name']!r}")
    if run["status"] != RunStatus.COMPLETE.value:
        raise EvidenceError(f"{what} is of a run that is {run['status']}, not complete")
    for name in ("evidence_sha256", "suite_sha256", "measurement_sha256"):
        if getattr(grounds, name) != run[name]:
            raise EvidenceError(f"{what} has another {name} than the run: {getattr(grounds, name)}, not {run[name]}")
    found = next((one for one in verdicts if one.sha256 == grounds.verdict_sha256), None)
    if found is None or found.outcome is not grounds.outcome:
        raise EvidenceError(f"{what} rests on another verdict than the store has of it; judge the run again")


def promoted_run(connection: Connection, suite: str | None) -> str:
    """Return the id of the run that `@promoted` means: the newest in the baseline series of a suite.

    Raises UsageError where there is none, and without a suite where several have a series.
    """
    newest = {one.suite: one.run_id for one in baseline_series(promotions(connection, suite))}
    if not newest:
        of_suite = f" of suite {suite!r}" if suite is not None else ""
        raise UsageError(
            f"@promoted means nothing here: the store has no run{of_suite} that was promoted on a protected ref",
            remedies=(Remedy("promote one from a CI job on such a ref", Command.PROMOTE),),
        )
    if len(newest) > 1:
        listed = ", ".join(f"{run_id} of {name!r}" for name, run_id in sorted(newest.items()))
        raise UsageError(f"@promoted means {len(newest)} runs, one of each suite; name one by its id: {listed}")
    (run_id,) = newest.values()
    return run_id


def noise_profile(connection: Connection, key: NoiseKey, *, before: str | None = None) -> NoiseProfile | None:
    """Return the newest profile of a key that was measured by `before` (RFC 3339 UTC; None: now), or None.

    A calibration of one part (`--only`) replaces no other part: the newest one with load counts, with the newest
    disagreements of each kind.
    """
    profile = tables.noise_profile.c
    known = select(tables.noise_profile).where(profile.key_sha256 == sha256_of(asdict(key)))
    known = known.where(profile.measured_at <= (before or clock.latest(connection)))
    rows_found = fetch(connection, known.order_by(profile.measured_at.desc(), profile.run_id.desc()))
    found = [NoiseProfile.from_json(_read_profile(row)) for row in rows_found]
    if not found:
        return None
    newest = {one.kind: at.disagreement for at in reversed(found) for one in at.disagreement}
    kept = tuple(one for kind, of_kind in newest.items() for one in of_kind if one.kind == kind)
    return replace(next((one for one in found if one.blocks), found[0]), disagreement=kept)


# Tables of documents: JSON text beside its SHA-256


def document_columns(value: object, what: str) -> rows.Row:
    """Return the columns `document` and `sha256` of a JSON value; StoreError, which names `what`, where it is none."""
    document = rows.to_json(value, what)
    return {"document": document, "sha256": rows.text_sha256(document)}


def read_document(row: rows.Row, what: str) -> Any:
    """Return the document of a row. Raises EvidenceError, which names `what`, where it does not hash."""
    if rows.text_sha256(row["document"]) != row["sha256"]:
        raise EvidenceError(f"{what} does not hash to {row['sha256']}: the store is damaged")
    return json.loads(row["document"])


def first_document(connection: Connection, query: Select[*tuple[Any, ...]]) -> Any | None:
    """Return the document of a query's first row; None where it has no rows."""
    found = fetch(connection, query.limit(1))
    return _read_profile(found[0]) if found else None


def _read_profile(row: rows.Row) -> Any:
    return read_document(row, f"the profile of {row['measured_at']}")
