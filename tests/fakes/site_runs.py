"""Runs of every kind that a site must have a page for, in a store."""

from __future__ import annotations

import hashlib
import uuid
from dataclasses import replace

from benchgate.gate.summary.metric_rows import metric_rows
from benchgate.model.deployment import Arm
from benchgate.model.history import Promotion, PromotionAction, PromotionGrounds, PromotionOrigin
from benchgate.model.run import Evidence, RunStatus
from benchgate.pipeline.judge import decide_stored
from benchgate.store.repository import Store
from tests.fakes.measured import HEALTHY, Effect, Noise, SuiteText, measured

PLAN = b'{"blocks":[]}'
_SLOW, _WRONG = Effect(slowdown=2.0), Effect(wrong=tuple(range(25)))
MAIN = PromotionOrigin("anna", "refs/heads/main", "c0ffee", protected=True)
_LATENCY: dict[str, object] = {"metric": "ttft", "margin": "10%"}
_ACCURACY: dict[str, object] = {"metric": "accuracy", "margin": "12 points"}


def add(
    store: Store,
    day: str,
    *,
    blocked: bool = False,
    whole: bool = False,
    label: str | None = None,
    suite: str = "made-up",
    names: str | None = None,
    status: RunStatus | None = RunStatus.COMPLETE,
    judged: bool = True,
    calibration: bool = False,
    run_id: str | None = None,
    measurement: str = "m" * 64,
) -> str:
    """A run measured on a day and judged an hour later; its id. Of evals alone, `whole` of everything there is.

    `names` are both deployments', status None goes on.
    """
    evidence = _measured(_SLOW if blocked and whole else _WRONG if blocked else HEALTHY, day, run_id, whole=whole)
    stored = {**evidence.run.suite, **({"calibration": True} if calibration else {})}
    arms = {arm: replace(of, name=names or of.name) for arm, of in evidence.run.arms.items()}
    run = replace(evidence.run, status=RunStatus.RUNNING, finished_at=None, suite=stored, label=label, arms=arms)
    run = replace(run, suite_name=suite, measurement_sha256=measurement)  # an import may say anything here
    run = replace(run, plan_sha256=hashlib.sha256(PLAN).hexdigest(), started_at=f"{day}T00:00:00.000Z")
    writer = store.begin_run(run, PLAN)
    for seen in evidence.load:
        writer.add(seen)
    for items in evidence.quality:
        writer.add(items)
    if evidence.shadow is not None:
        writer.add(evidence.shadow)
    if status is not None:
        writer.finish(status, f"{day}T01:00:00.000Z")
        if judged:
            decision = decide_stored(store, run.id, keep=False)
            store.save_verdict(run.id, decision.document, decided_at=f"{day}T01:30:00.000Z")
            store.save_metrics(run.id, metric_rows(decision.evidence))
    return run.id


def _measured(effect: Effect, day: str, run_id: str | None, *, whole: bool) -> Evidence:
    asked = SuiteText([_LATENCY if whole else _ACCURACY], requests=12, blocks=4).suite()
    noise = Noise(seed=int.from_bytes(hashlib.sha256(day.encode()).digest()[:4], "big"))
    evidence = measured(asked, effect, items=40, prompts=40, noise=noise, run_id=run_id or str(uuid.uuid4()))
    if whole:
        return evidence
    light = asked.model_copy(update={"load": None, "shadow": None, "slo": None})
    return replace(evidence, run=replace(evidence.run, suite=light.to_stored()), load=(), shadow=None)


def promote(store: Store, run_id: str, at: str, origin: PromotionOrigin = MAIN) -> None:
    """Records that the run was promoted, on what the store has of it."""
    run, verdict = store.run(run_id), store.verdicts(run_id)[-1]
    grounds = PromotionGrounds(
        outcome=verdict.outcome,
        verdict_sha256=verdict.sha256,
        evidence_sha256=store.evidence_sha256(run_id) or "",
        suite_sha256=run.suite_sha256,
        policy_sha256="p" * 64,
        measurement_sha256=run.measurement_sha256,
        report_sha256="r" * 64,
    )
    deed = PromotionAction.PROMOTED if verdict.outcome.promotes else PromotionAction.OVERRIDDEN
    reason = None if deed is PromotionAction.PROMOTED else "=because <b>we</b> want to"
    store.save_promotion(Promotion(str(uuid.uuid4()), run_id, at, run.suite_name, deed, origin, grounds, reason))


def add_import(store: Store, day: str) -> str:
    """A file of another tool: numbers alone."""
    evidence = measured(SuiteText([_LATENCY], requests=12, blocks=4).suite(), run_id=str(uuid.uuid4()))
    run = replace(
        evidence.run,
        suite_name="vendor",
        started_at=f"{day}T00:00:00.000Z",
        finished_at=None,
        status=RunStatus.RUNNING,
        environment={"measured_by": "vllm bench <b>serve</b>"},
        arms={Arm.CANDIDATE: evidence.run.arms[Arm.CANDIDATE]},
        plan_sha256=hashlib.sha256(PLAN).hexdigest(),
    )
    rows = [row for row in metric_rows(evidence) if row.arm is Arm.CANDIDATE]
    return store.save_import(run, PLAN, rows, {"sha256": "5" * 64}, source="bench.json", at=f"{day}T00:00:00.000Z")
