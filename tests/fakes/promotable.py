"""Whole runs in a store as `benchgate run` leaves them, measured to have a stated outcome."""

from __future__ import annotations

import hashlib
import math
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

from sqlalchemy import insert

from benchgate.model.deployment import Arm
from benchgate.model.history import Promotion, PromotionAction, PromotionGrounds, PromotionOrigin
from benchgate.model.run import ONLY_PART, RunStatus
from benchgate.model.verdict import Outcome
from benchgate.pipeline.judge import decide_stored
from benchgate.release import promote as promotion
from benchgate.store import rows, tables
from benchgate.store.migrate import opened
from benchgate.store.repository import Store
from tests.fakes.measured import HEALTHY, Effect, SuiteText, measured

_PLAN = b'{"blocks":[]}'
CHECK: dict[str, object] = {"metric": "ttft", "margin": "10%"}
BLOCKED = Effect(slowdown=2.0)

promote = partial(promotion.promote, max_age_s=math.inf)
"""Of a run of any age, which the runs here are: their days are stated."""


def days_ago(days: int) -> str:
    """A day of late, by today's clock: the command line promotes nothing that is old."""
    return (datetime.now(UTC) - timedelta(days=days)).date().isoformat()


def begun(
    store: Store,
    effect: Effect = HEALTHY,
    *,
    day: str = "2026-01-01",
    checks: Sequence[dict[str, object]] = (CHECK,),
    status: RunStatus = RunStatus.COMPLETE,
    calibration: bool = False,
    label: str | None = None,
    candidate: Mapping[str, object] | None = None,
    adapter: str | None = None,
    only: str | None = None,
    run_id: str | None = None,
    extra: Mapping[str, object] | None = None,
) -> str:
    """A run that was measured on a day and judged by nobody; its id.

    `candidate` is what else is known of that, `adapter` what its load is asked of, `extra` fields of its requests.
    """
    asked = SuiteText(list(checks), requests=20, blocks=4).suite()
    evidence = measured(asked, effect, items=20, prompts=20, run_id=run_id or str(uuid.uuid4()))
    suite = {**evidence.run.suite, **({"calibration": True} if calibration else {})}
    if adapter is not None:
        load: Any = suite["load"]
        suite["load"] = {**load, "workload": {**load["workload"], "adapter": adapter}}
    if extra is not None:
        deployments: Any = suite["deployments"]
        suite["deployments"] = {name: {**one, "extra": extra} for name, one in deployments.items()}
    run = replace(evidence.run, status=RunStatus.RUNNING, finished_at=None, suite=suite, label=label)
    if only is not None:
        run = replace(run, environment={**run.environment, ONLY_PART: only})
    arms = {arm: replace(one, **_of(arm, candidate or {})) for arm, one in run.arms.items()}
    run = replace(run, arms=arms, plan_sha256=hashlib.sha256(_PLAN).hexdigest(), started_at=f"{day}T00:00:00.000Z")
    writer = store.begin_run(run, _PLAN)
    for seen in evidence.load:
        writer.add(seen)
    for items in evidence.quality:
        writer.add(items)
    assert evidence.shadow is not None
    writer.add(evidence.shadow)
    writer.finish(status, f"{day}T01:00:00.000Z")
    return run.id


def _of(arm: Arm, candidate: Mapping[str, object]) -> dict[str, Any]:
    return dict(candidate) if arm is Arm.CANDIDATE else {}


def judged(
    store: Store,
    effect: Effect = HEALTHY,
    *,
    day: str = "2026-01-01",
    checks: Sequence[dict[str, object]] = (CHECK,),
) -> tuple[str, Outcome]:
    """The same, judged: its id and what its verdict says."""
    run_id = begun(store, effect, day=day, checks=checks)
    return run_id, decide_stored(store, run_id).verdict.outcome


def write_record(address: str, run_id: str, at: str, suite: str = "made-up", **changes: Any) -> None:
    """A promotion into the series (or what `changes` make of it) that no command recorded: written to the database."""
    said: dict[str, Any] = {
        "deed": PromotionAction.PROMOTED,
        "origin": PromotionOrigin("anna", "main", protected=True),
        "grounds": PromotionGrounds(Outcome.PASS, "v", "e", "s", "p", "m", "r"),
    }
    record = Promotion(str(uuid.uuid4()), run_id, at, suite, **said | changes)
    document = rows.to_json(record.to_json(), "the record")
    row = {"id": record.id, "run_id": run_id, "promoted_at": at, "suite_name": suite}
    sealed = {"in_series": int(record.in_series), "document": document, "sha256": rows.text_sha256(document)}
    with opened(address, create=False) as database, database.writing() as connection:
        connection.execute(insert(tables.promotion).values(row | sealed))
