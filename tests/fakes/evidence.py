"""A small run written out by hand: two stages, four blocks, two tasks, a shadow comparison. Same call, same value.

The candidate is slower at the higher level, loses a few answers and drops two requests; verdicts of every outcome over
it are given, not computed.
"""

from __future__ import annotations

import functools
import math
from dataclasses import replace

from benchgate.model.deployment import Arm, Deployment
from benchgate.model.records import ErrorClass, EvalItem, RequestColumns, RequestRecord, ShadowItem, TokenSource
from benchgate.model.run import (
    ClientUse,
    DeploymentFault,
    Evidence,
    LoadObservation,
    QualityObservation,
    Run,
    RunStatus,
    ShadowObservation,
)
from benchgate.model.verdict import CheckResult, GuardResult, Outcome, Scale, Unit, Verdict
from benchgate.suite.schema import Suite

MS = 1_000_000
BLOCKS = 4
REQUESTS = 24
TOKENS = 8
TASKS = {"tiny_add": (40, 3, 1), "tiny_sort": (40, 2, 0)}  # items, lost, gained

# Between two intended sends, in ms; and how long the stage lasts with each arm.
_EVERY = {"c1": 100, "c4": 30}
# First token and gap between tokens in ms, per stage and arm.
_PACE = {
    ("c1", Arm.BASELINE): (20, 5),
    ("c1", Arm.CANDIDATE): (21, 5),
    ("c4", Arm.BASELINE): (32, 8),
    ("c4", Arm.CANDIDATE): (47, 11),
}


@functools.cache
def suite() -> Suite:
    return Suite.model_validate(
        {
            "suite": "tiny-q4",
            "seed": 7,
            "deployments": {
                "f16": {"embedded": {"weights": "f16"}, "price": "$2/h"},
                "q4": {"embedded": {"weights": "q4_0"}, "price": "$1.50/h"},
            },
            "baseline": "f16",
            "candidate": "q4",
            "slo": {"ttft": "50ms", "tpot": "12ms", "target": "95%"},
            "load": {
                "workload": {"input": 32, "output": TOKENS},
                "sweep": [
                    {"stage": "c1", "concurrency": 1, "requests": REQUESTS},
                    {"stage": "c4", "concurrency": 4, "requests": REQUESTS},
                ],
                "blocks": BLOCKS,
            },
            "quality": {"tasks": ["tasks/add.yaml", "tasks/sort.yaml"]},
            "shadow": {"prompts": "data/shadow.jsonl", "store_text": True},
            "gate": {
                "checks": [
                    {"metric": "ttft", "margin": "10%"},
                    {"metric": "output_throughput", "margin": "10%"},
                    {"metric": "accuracy", "margin": "12 points"},
                    {"metric": "goodput"},
                    {"metric": "shadow_excess", "margin": "15 points"},
                ]
            },
        }
    )


def deployment(arm: Arm) -> Deployment:
    baseline = arm is Arm.BASELINE
    return Deployment(
        name="f16" if baseline else "q4",
        model="benchgate-tiny",
        engine="llamacpp",
        url=None,
        settings={"weights": "f16" if baseline else "q4_0", "slots": 8, "context_tokens": 256},
        facts={
            "engine_version": "b7000",
            "meta": {"n_params": 2_100_000, "size": 4_200_000 if baseline else 1_250_000},
        },
        price_usd_per_hour=2.0 if baseline else 1.5,
    )


def run(run_id: str = "0190b2c4-7d1e-7a3b-9c5f-2e8d6a4b1f03") -> Run:
    return Run(
        id=run_id,
        suite_name="tiny-q4",
        suite=suite().to_stored(),
        suite_sha256="5f" * 32,
        measurement_sha256="a3" * 32,
        plan_sha256="c7" * 32,
        seed=7,
        tool_version="0.1.0",
        label="nightly",
        status=RunStatus.COMPLETE,
        started_at="2026-01-02T03:04:05Z",
        finished_at="2026-01-02T03:06:40Z",
        environment={"python": "3.11.9", "machine": "x86_64", "cores": 2, "packages": {"lm_eval": "0.4.13"}},
        arms={arm: deployment(arm) for arm in Arm},
    )


def request(index: int, block: int, every_ms: int, first_ms: int, gap_ms: int) -> RequestRecord:
    """A good request: sent 50 µs late, its first token up to 8 ms later than the pace says."""
    intended = index * every_ms * MS
    first = intended + first_ms * MS + (index * 7 + block * 3) % 9 * MS
    chunks = tuple(first + token * gap_ms * MS for token in range(TOKENS))
    return RequestRecord(
        index=index,
        intended_ns=intended,
        sent_ns=intended + 50_000,
        chunk_ns=chunks,
        end_ns=chunks[-1] + 100_000,
        input_tokens=32,
        output_tokens=TOKENS,
        token_source=TokenSource.USAGE,
        finish_reason="length",
        http_status=200,
        error=None,
        error_detail=None,
    )


def failed_request(index: int, detail: str = "out of memory") -> RequestRecord:
    intended = index * 30 * MS
    return RequestRecord(
        index=index,
        intended_ns=intended,
        sent_ns=intended + 50_000,
        chunk_ns=(),
        end_ns=None,
        input_tokens=None,
        output_tokens=None,
        token_source=None,
        finish_reason=None,
        http_status=500,
        error=ErrorClass.HTTP_5XX,
        error_detail=detail,
    )


def load_observation(stage: str, arm: Arm, block: int, position: int, *, all_failed: bool = False) -> LoadObservation:
    records = [request(i, block, _EVERY.get(stage, 100), *_PACE.get((stage, arm), (20, 5))) for i in range(REQUESTS)]
    if stage == "c4" and arm is Arm.CANDIDATE and block == 2:
        records[5], records[6] = failed_request(5), failed_request(6)
    if all_failed:
        records = [failed_request(i) for i in range(REQUESTS)]
    return LoadObservation(
        stage=stage,
        arm=arm,
        block=block,
        position=position,
        requests=RequestColumns.pack(records),
        window_s=max(max(one.intended_ns, one.end_ns or 0) for one in records) / 1e9,
        client=ClientUse(cpu_s=0.11 + 0.01 * block, wall_s=2.6, workers=1),
    )


@functools.cache
def load(stages: tuple[str, ...] = ("c1", "c4"), *, failing_arm: Arm | None = None) -> tuple[LoadObservation, ...]:
    observations: list[LoadObservation] = []
    for block in range(BLOCKS):
        order = (Arm.BASELINE, Arm.CANDIDATE) if block % 2 == 0 else (Arm.CANDIDATE, Arm.BASELINE)
        for stage in stages:
            for arm in order:
                failed = arm is failing_arm
                observations.append(load_observation(stage, arm, block, len(observations), all_failed=failed))
    return tuple(observations)


@functools.cache
def quality() -> tuple[QualityObservation, ...]:
    """The last item is wrong on both arms; `lost` items are wrong on the candidate only, `gained` on the baseline."""
    observations = []
    for task, (count, lost, gained) in TASKS.items():
        for arm in Arm:
            wrong = range(lost) if arm is Arm.CANDIDATE else range(lost, lost + gained)
            items = tuple(_eval_item(task, i, i in wrong or i == count - 1) for i in range(count))
            observations.append(QualityObservation(task, arm, items, count, None, {"lm_eval": "0.4.13"}))
    return tuple(observations)


def _eval_item(task: str, index: int, wrong: bool) -> EvalItem:
    return EvalItem(
        item_id=f"{task}-{index:04}",
        doc_hash=f"{task}-d{index}",
        prompt_hash=f"p{index}",
        target_hash=f"t{index}",
        score=0.0 if wrong else 1.0,
        answer="7" if wrong else "12",
        finish_reason="stop",
        output_tokens=2,
        latency_ns=30 * MS,
        error=None,
    )


def shadow(*, texts: bool = True) -> ShadowObservation:
    """20 prompts: on two the candidate alone differs, on one the baseline differs from itself."""
    return ShadowObservation(tuple(_shadow_item(i, texts) for i in range(20)), expected_n=20, fault=None)


def _shadow_item(index: int, texts: bool) -> ShadowItem:
    primary = f"answer {index}"
    secondary = "another answer" if index == 11 else primary
    candidate = "a different answer" if index in (3, 9) else primary
    return ShadowItem(
        prompt_id=f"prompt-{index:03}",
        prompt_sha256="e1" * 32,
        primary=primary,
        secondary=secondary,
        candidate=candidate,
        primary_finish="stop",
        secondary_finish="stop",
        candidate_finish="stop",
        error=None,
        prompt_text=f"what is {index} + {index}?" if texts else None,
        primary_text=primary if texts else None,
        secondary_text=secondary if texts else None,
        candidate_text=candidate if texts else None,
    )


def evidence(run_id: str = "0190b2c4-7d1e-7a3b-9c5f-2e8d6a4b1f03") -> Evidence:
    return Evidence(run=run(run_id), load=load(), quality=quality(), shadow=shadow(), target_faults=())


def faults_only() -> Evidence:
    """The candidate was never there: nothing was measured."""
    fault = DeploymentFault(Arm.CANDIDATE, "at the start", "connection refused")
    return Evidence(replace(run(), status=RunStatus.PARTIAL), (), (), None, (fault,))


def check(check_id: str = "ttft-p50@c4", outcome: Outcome = Outcome.PASS) -> CheckResult:
    """A latency check whose numbers fit its outcome; INVALID and INCONCLUSIVE have what evidence leaves them."""
    numbers: dict[Outcome, tuple[float | None, ...]] = {
        Outcome.PASS: (0.036, 0.0363, 0.009, -0.021, 0.039, 0.31),
        Outcome.WARN: (0.036, 0.0378, 0.048, 0.021, 0.075, 0.004),
        Outcome.BLOCK: (0.036, 0.051, 0.348, 0.31, 0.386, 0.0001),
        Outcome.INCONCLUSIVE: (0.036, 0.0389, 0.077, -0.05, 0.204, 0.12),
        Outcome.INVALID: (0.036, None, None, None, None, None),
    }
    reasons = {
        Outcome.PASS: "slower by less than the margin",
        Outcome.WARN: "slower, though by less than the margin",
        Outcome.BLOCK: "slower by more than the margin",
        Outcome.INCONCLUSIVE: "4 blocks cannot tell",
        Outcome.INVALID: "the candidate has no value for this metric",
    }
    baseline, candidate, harm, lower, upper, p_value = numbers[outcome]
    return CheckResult(
        id=check_id,
        title="TTFT p50 at c4",
        family="load",
        metric="ttft",
        statistic="p50",
        stage="c4",
        task=None,
        required=True,
        outcome=outcome,
        reason=reasons[outcome],
        advice=None if outcome is Outcome.PASS else "look at the queue at this level, or allow a larger margin",
        unit=Unit.SECONDS,
        scale=Scale.LOG_RATIO,
        baseline=baseline,
        candidate=candidate,
        harm=harm,
        lower=lower,
        upper=upper,
        margin=math.log1p(0.10),
        p_value=p_value,
        p_holm=p_value,
        n=BLOCKS,
        n_unit="blocks",
        method="paired t over interleaved blocks of the log ratio",
        notes=("p50 needs at least 5 requests, so the 8 blocks were taken as 4 groups",),
    )


def other_checks() -> tuple[CheckResult, ...]:
    """One passing check of every other kind."""
    throughput = replace(
        check("output_throughput@c1"),
        title="Output tokens per second at c1",
        stage="c1",
        metric="output_throughput",
        statistic=None,
        reason="no fewer tokens per second than allowed",
        unit=Unit.TOKENS_PER_S,
        baseline=80.0,
        candidate=76.8,
        harm=0.0408,
        lower=0.012,
        upper=0.07,
        margin=-math.log1p(-0.10),
    )
    accuracy = replace(
        check("accuracy"),
        title="Accuracy over all tasks",
        family="quality",
        metric="accuracy",
        statistic=None,
        stage=None,
        reason="fewer answers lost than allowed",
        unit=Unit.RATIO,
        scale=Scale.DIFFERENCE,
        baseline=0.9625,
        candidate=0.9125,
        harm=0.05,
        lower=0.013,
        upper=0.108,
        margin=0.12,
        n=80,
        n_unit="items",
        method="Tango's score limits and exact McNemar, items paired by id",
        notes=(),
    )
    goodput = replace(
        accuracy,
        id="goodput-c1",
        title="Goodput at c1",
        family="load",
        metric="goodput",
        stage="c1",
        reason="the target is met",
        scale=Scale.ABSOLUTE,
        baseline=None,
        candidate=1.0,
        harm=1.0,
        lower=0.969,
        upper=1.0,
        margin=0.95,
        n=96,
        n_unit="requests",
        method="t-limits over blocks of the misses",
    )
    excess = replace(
        accuracy,
        id="shadow-excess",
        title="Shadow disagreement beyond the baseline's own",
        family="shadow",
        metric="shadow_excess",
        required=False,
        reason="hardly more than the baseline's own noise",
        baseline=0.05,
        candidate=0.125,
        harm=0.075,
        lower=-0.01,
        upper=0.128,
        margin=0.15,
        n=20,
        n_unit="prompts",
        method="paired excess over the baseline's disagreement with itself",
    )
    return (throughput, accuracy, goodput, excess)


def verdict(outcome: Outcome = Outcome.BLOCK) -> Verdict:
    """A verdict of the given outcome, for the reason of its first check."""
    reasons = {
        Outcome.PASS: "all 5 required checks hold",
        Outcome.WARN: "TTFT p50 at c4 rose by 4.92 %, inside the margin of 10 %",
        Outcome.BLOCK: "TTFT p50 at c4 rose by 41.6 %, the margin is 10 %",
        Outcome.INCONCLUSIVE: "TTFT p50 at c4 cannot be told from 4 blocks",
        Outcome.INVALID: "TTFT p50 at c4 has no value for the candidate",
    }
    guards = (
        GuardResult("client-saturated", False, "the client kept its schedule in every stage", None),
        GuardResult("same-fingerprint", False, "the two arms are different deployments", None),
    )
    return Verdict(outcome, reasons[outcome], (*other_checks(), check(outcome=outcome)), guards, alpha=0.05)
