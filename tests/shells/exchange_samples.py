"""A run of which every table of a store has rows, and bundles with one thing changed."""

from __future__ import annotations

import base64
import dataclasses
import hashlib
import json
import uuid
from collections.abc import Mapping
from typing import Any

import numpy as np
from sqlalchemy import Connection, insert, select

from benchgate.model.deployment import Arm
from benchgate.model.history import Promotion, PromotionAction, PromotionGrounds, PromotionOrigin
from benchgate.model.records import TextColumn
from benchgate.model.run import LOAD_ENDED, BudgetReading, MetricRow, Run, RunStatus, ServerStart
from benchgate.store import results, rows, tables
from benchgate.store.bundle import write_bundle
from benchgate.store.database import Database
from benchgate.store.migrate import opened
from benchgate.store.repository import Store
from benchgate.store.rows import TELEMETRY_SEALED
from benchgate.store.stored_run import WholeRun, read_whole
from tests.shells.store_samples import (
    DONE_AT,
    NASTY,
    PLAN,
    make_divergence,
    make_fault,
    make_load,
    make_noise,
    make_quality,
    make_requests,
    make_run,
    make_shadow,
    make_telemetry,
)

LONG_AGO = "2020-01-01T00:00:00Z"  # a promotion that is still to come is refused, whatever day it is
DECIDED_AT = ("2026-11-20T13:00:01.000Z", "2026-11-20T13:00:02.000Z", "2026-11-20T13:00:03.000Z")


def check(check_id: str, harm: float | str | None = 0.25) -> dict[str, object]:
    """A check of a verdict's document, with what the rows of checks need."""
    return {"id": check_id, "outcome": "PASS", "required": True, "harm": harm, "margin": 0.05, "n": 8, "unit": "s"}


def verdict(outcome: str, run: Run, **more: object) -> dict[str, object]:
    return {"outcome": outcome, "run": {"id": run.id}, "checks": [check("ttft p95", "inf"), check("=1+1")], **more}


def write_observations(store: Store, run: Run) -> None:
    """One of each kind, with requests that were left, of which it is known what they said."""
    left = make_requests(3)
    left = dataclasses.replace(
        left,
        index=left.index * 10 + 1,
        left=np.ones(len(left), dtype=np.int64),
        answer_chars=np.full(len(left), 12, dtype=np.int32),
        answer_model=TextColumn.of([NASTY] * len(left)),
    )
    writer = store.begin_run(run, PLAN)
    writer.add(dataclasses.replace(make_load(), left=left))
    writer.add(make_telemetry())
    writer.event(LOAD_ENDED, {"blocks": 2, "of": 4, "why": "decided"})
    writer.add(make_load(Arm.CANDIDATE, position=1, count=0))
    writer.add(make_quality())
    writer.add(make_divergence(asked_again=True))
    writer.add(make_shadow())
    writer.add(make_fault())
    writer.add(ServerStart(Arm.CANDIDATE, 0, 1.25))
    writer.add(BudgetReading(0.4, "prometheus", DONE_AT))
    writer.finish(RunStatus.COMPLETE, DONE_AT)


def write_everything(address: str, **changes: Any) -> Run:
    """A finished run with rows in every table that belongs to a run, but for tombstones."""
    run = make_run(**({"label": "nightly"} | changes))
    with Store.open(address) as store:
        write_observations(store, run)
        store.save_verdict(run.id, verdict("PASS", run), decided_at=DECIDED_AT[0])
        store.save_verdict(run.id, verdict("WARN", run, policy_replaced=True), decided_at=DECIDED_AT[1])
        metrics = [
            MetricRow(Arm.CANDIDATE, "ttft", "p95", "c4", None, 0.1 + 0.2, 8, 0.25, 0.5),
            MetricRow(Arm.BASELINE, "ttft", "p95", "c4", None, 1234567.891, 8),
            MetricRow(Arm.CANDIDATE, "output_throughput", None, "c4", None, 0.0, 8),
            MetricRow(Arm.CANDIDATE, "score", None, None, "summary", 0.5, 100),
            MetricRow(Arm.CANDIDATE, "accuracy", None, None, 'task "x"\\', 0.5, 100),
        ]
        store.save_metrics(run.id, metrics)
        store.save_noise_profile(make_noise(run))
    with opened(address, create=False) as database:
        for table in (tables.promotion, tables.imported):
            add_document(database, table, run)
    return run


def add_document(database: Database, table: Any, run: Run, at: str = LONG_AGO) -> str:
    """A promotion of a run, or a note of an import; its key."""
    key = str(uuid.uuid4())
    with database.writing() as connection:
        if table is tables.promotion:
            document: object = _promotion(connection, run, key, at).to_json()
            row: rows.Row = {"promoted_at": at, "suite_name": run.suite_name, "in_series": 1}
        else:
            document = {"by": NASTY, "at": at, "sha256": "c" * 64}
            row = {"imported_at": at, "source": "vllm", "source_sha256": "c" * 64}
        text = rows.to_json(document, "a document")
        row |= {"id": key, "run_id": run.id, "document": text, "sha256": rows.text_sha256(text)}
        connection.execute(insert(table), row)
    return key


def _promotion(connection: Connection, run: Run, key: str, at: str) -> Promotion:
    """One that rests on what the store has of the run."""
    own = [one for one in results.verdicts(connection, run.id) if one.of_the_run_itself and one.outcome.promotes]
    sealed = connection.scalar(select(tables.run.c.evidence_sha256).where(tables.run.c.id == run.id))
    hashes = run.suite_sha256, "e" * 64, run.measurement_sha256, "f" * 64
    grounds = PromotionGrounds(own[-1].outcome, own[-1].sha256, str(sealed), *hashes)
    return Promotion(
        key, run.id, at, run.suite_name, PromotionAction.PROMOTED, PromotionOrigin(NASTY, protected=True), grounds
    )


def whole_of(address: str, run_id: str) -> WholeRun:
    with opened(address, create=False) as database, database.reading() as connection:
        return read_whole(connection, run_id)


def bundle_of(address: str, run_id: str) -> bytes:
    return write_bundle(whole_of(address, run_id))


def ids_in(address: str) -> list[str]:
    with Store.open(address) as store:
        return sorted(run.id for run in store.runs())


def signed(document: Mapping[str, Any]) -> bytes:
    """A bundle of this document with the hash that belongs to it: what somebody who means harm would write."""
    rest = {name: value for name, value in document.items() if name != "sha256"}
    text = json.dumps(rest, sort_keys=True, separators=(",", ":"))
    return json.dumps(rest | {"sha256": hashlib.sha256(text.encode()).hexdigest()}).encode()


def resealed(document: dict[str, Any]) -> dict[str, Any]:
    """The same with the hashes of its blobs and of its evidence made to fit what it says now."""
    run_id = document["run"]["id"]
    for table in ("observation", "telemetry"):
        for row in document[table]:
            row["sha256"] = hashlib.sha256(base64.b64decode(row["data"])).hexdigest()
    arms = [{"run_id": run_id, **row} for row in document["arm"]]
    telemetry = [[row[name] for name in TELEMETRY_SEALED] for row in document["telemetry"]]
    sealed = rows.evidence_sha256(document["run"], arms, document["observation"], telemetry)
    document["run"]["evidence_sha256"] = sealed
    return document
