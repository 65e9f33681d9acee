"""Promotions in the store: only ever added, and only where they fit what the store has of their run.

One that is ahead of the store's clock counts for nothing until its time has come: a clock that was wrong once would
else stand before every later promotion for good.
"""

from __future__ import annotations

import json

from sqlalchemy import Connection, select, text
from sqlalchemy import insert as insert_into

from benchgate.errors import EvidenceError, StoreError, UsageError
from benchgate.model.history import Promotion, PromotionAction, baseline_series, current_promotions
from benchgate.model.run import RunStatus
from benchgate.store import clock, results, rows, tables, tombstones
from benchgate.store.engine import fetch
from benchgate.store.locks import lock_run


def promotions(connection: Connection, suite: str | None = None, *, until: str | None = None) -> list[Promotion]:
    """The records of a suite, or of all, made by `until` (RFC 3339 UTC; else by now), in order of time.

    Raises EvidenceError for one that does not hash, or is listed as another than it says it is.
    """
    promotion = tables.promotion
    wanted = select(promotion).order_by(promotion.c.promoted_at, promotion.c.id)
    wanted = wanted.where(promotion.c.promoted_at <= (until or clock.latest(connection)))
    if suite is not None:
        wanted = wanted.where(promotion.c.suite_name == suite)
    return [read_promotion(row) for row in fetch(connection, wanted)]


def read_promotion(row: rows.Row) -> Promotion:
    """The record of a row. Raises EvidenceError where it does not hash, or its columns do not say what it says."""
    what = f"promotion {row['id']} of run {row['run_id']}"
    if rows.text_sha256(row["document"]) != row["sha256"]:
        raise EvidenceError(f"{what} does not hash to {row['sha256']}: the store is damaged")
    try:
        found = Promotion.from_json(json.loads(row["document"]))
    except (ValueError, KeyError, TypeError) as error:
        raise EvidenceError(f"{what} is none: {error}") from error
    if _row(found) != row:
        raise EvidenceError(f"{what} is listed as another than it says it is: the store is damaged")
    return found


def _row(promotion: Promotion) -> rows.Row:
    document = rows.to_json(promotion.to_json(), "the promotion")
    return {
        "id": promotion.id,
        "run_id": promotion.run_id,
        "promoted_at": promotion.promoted_at,
        "suite_name": promotion.suite,
        "in_series": int(promotion.in_series),
        "document": document,
        "sha256": rows.text_sha256(document),
    }


def save_promotion(connection: Connection, promotion: Promotion) -> Promotion:
    """Adds a record, or gives the one that stands where this one says no more than that.

    Raises UsageError for a withdrawal of what does not stand, EvidenceError for grounds that are not the store's, a run
    without its raw records and an instant that is to come, and StoreError for one that is not after the last: the order
    of the records is what they mean.
    """
    if connection.dialect.name != "sqlite":  # a writing transaction of SQLite is alone anyway
        lock = text("SELECT pg_advisory_xact_lock(hashtextextended(:suite, 1))")
        connection.execute(lock, {"suite": promotion.suite})
    lock_run(connection, promotion.run_id)
    clock.require_by_now(connection, promotion.run_id, [("promotion", promotion.promoted_at)])
    (run,) = fetch(connection, select(tables.run).where(tables.run.c.id == promotion.run_id))
    known = promotions(connection, run["suite_name"])
    stands = current_promotions(known).get(promotion.run_id)
    if promotion.deed is PromotionAction.WITHDRAWN:
        _require_withdrawable(promotion, stands)
    else:
        if stands is not None and promotion.weight <= stands.weight:
            return stands
        _require_imported_nowhere(connection, promotion)
        tombstones.require_raw(connection, promotion.run_id)
        require_grounds(promotion, run, _latest_verdict(connection, promotion.run_id))
    if known and promotion.promoted_at <= known[-1].promoted_at:
        raise StoreError(
            f"the newest promotion of {run['suite_name']} is of {known[-1].promoted_at}, and by this machine it is "
            f"{promotion.promoted_at}; set its clock, or try again in a moment"
        )
    connection.execute(insert_into(tables.promotion).values(_row(promotion)))
    return promotion


def _require_withdrawable(promotion: Promotion, stands: Promotion | None) -> None:
    if stands is None:
        raise UsageError(f"run {promotion.run_id} is not promoted, so there is nothing to withdraw")
    if not promotion.may_withdraw(stands):
        raise UsageError(
            f"run {promotion.run_id} is in the baseline series, which only a protected ref may change; withdraw it in "
            "a job on one, or by hand with --ref REF --protected"
        )


def _require_imported_nowhere(connection: Connection, promotion: Promotion) -> None:
    imported = tables.imported.c
    if connection.scalar(select(imported.id).where(imported.run_id == promotion.run_id).limit(1)) is not None:
        raise UsageError(f"run {promotion.run_id} was measured by another tool; promote one that benchgate measured")


def _latest_verdict(connection: Connection, run_id: str) -> tuple[results.StoredVerdict, ...]:
    return tuple(one for one in results.verdicts(connection, run_id) if one.of_the_run_itself)[-1:]


def require_grounds(promotion: Promotion, run: rows.Row, verdicts: tuple[results.StoredVerdict, ...]) -> None:
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
    """The id of the run that `@promoted` means: the newest in the baseline series of a suite.

    Raises UsageError where there is none, and without a suite where several have a series.
    """
    newest = {one.suite: one.run_id for one in baseline_series(promotions(connection, suite))}
    if not newest:
        of_suite = f" of suite {suite!r}" if suite is not None else ""
        raise UsageError(
            f"@promoted means nothing here: the store has no run{of_suite} that was promoted on a protected ref; "
            "`benchgate promote RUN --ref REF --protected` records one, or in CI a job on such a ref"
        )
    if len(newest) > 1:
        listed = ", ".join(f"{run_id} of {name!r}" for name, run_id in sorted(newest.items()))
        raise UsageError(f"@promoted means {len(newest)} runs, one of each suite; name one by its id: {listed}")
    (run_id,) = newest.values()
    return run_id
