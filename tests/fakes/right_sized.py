"""Candidates of one suite in a store: each a small run written out by hand, with a price and a verdict of its own."""

from __future__ import annotations

import hashlib
import uuid
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from benchgate.gate.summary.metric_rows import metric_rows
from benchgate.model.deployment import Arm
from benchgate.model.run import Evidence, QualityObservation, Run, RunStatus
from benchgate.model.verdict import GuardResult, Outcome
from benchgate.report.document import verdict_document
from benchgate.store.repository import Store
from tests.fakes import evidence as fake

_PLAN = b'{"blocks":[]}'


def candidate(
    name: str,
    *,
    price: float | None = 1.5,
    lost: int = 0,
    listed: Mapping[str, float] | None = None,
    **changes: Any,
) -> Evidence:
    """The fake run with a candidate of this name and price; `changes` are of the run.

    By its suite other candidates cost what is `listed`. It gets `lost` more items of each task wrong. Blocks differ a
    little, so that costs have intervals.
    """
    found = fake.evidence(str(uuid.uuid4()))
    load = tuple(replace(one, window_s=one.window_s * (1 + 0.01 * (one.block - 1.5))) for one in found.load)
    quality = tuple(_answered(one, lost if one.arm is Arm.CANDIDATE else 0) for one in found.quality)
    found = replace(found, load=load, quality=quality)
    arms = {
        **found.run.arms,
        Arm.CANDIDATE: replace(fake.deployment(Arm.CANDIDATE), name=name, price_usd_per_hour=price),
    }
    run = replace(found.run, arms=arms, label=None, suite={**found.run.suite, "candidate": name})
    prices = {**(listed or {}), **({} if price is None else {name: price})}
    run = replace(run, suite={**run.suite, "deployments": _listing(run, prices)})
    return replace(found, run=replace(run, plan_sha256=hashlib.sha256(_PLAN).hexdigest(), **changes))


def _answered(one: QualityObservation, lost: int) -> QualityObservation:
    """By the name that the suite has for the task; the items after the fifth are lost."""
    wrong = {item.item_id for item in one.items[5 : 5 + lost]}
    items = tuple(replace(item, score=0.0) if item.item_id in wrong else item for item in one.items)
    return replace(one, task=one.task.removeprefix("tiny_"), items=items)


def one_list(*some: Run) -> tuple[Run, ...]:
    """Runs whose suites all say what each of their candidates costs: of two of one name the price of the first."""
    prices: dict[str, float] = {}
    for run in some:
        ours = run.arms[Arm.CANDIDATE]
        if ours.price_usd_per_hour is not None:
            prices.setdefault(ours.name, ours.price_usd_per_hour)
    return tuple(replace(run, suite={**run.suite, "deployments": _listing(run, prices)}) for run in some)


def _listing(run: Run, prices: Mapping[str, float]) -> dict[str, Any]:
    said: Mapping[str, Any] = run.suite
    known: dict[str, Any] = said["deployments"]
    like = known.get("q4", next(iter(known.values())))
    return known | {
        name: {**known.get(name, like), "price": price, "token_prices": None} for name, price in prices.items()
    }


def write(
    store: Store,
    found: Evidence,
    outcome: str | None = "PASS",
    *,
    status: RunStatus = RunStatus.COMPLETE,
    guards: tuple[GuardResult, ...] = (),
) -> str:
    """The run in the store with the numbers that follow from it and a given verdict; its id."""
    writer = store.begin_run(replace(found.run, status=RunStatus.RUNNING, finished_at=None), _PLAN)
    for seen in found.load:
        writer.add(seen)
    for items in found.quality:
        writer.add(items)
    writer.finish(status, "2026-01-02T03:06:40Z")
    store.save_metrics(found.run.id, metric_rows(replace(found, shadow=None)))  # which is not written
    if outcome is not None:
        verdict = replace(fake.verdict(Outcome(outcome)), guards=guards)
        store.save_verdict(found.run.id, verdict_document(found.run, verdict), decided_at="2026-01-04T00:00:00Z")
    return found.run.id
