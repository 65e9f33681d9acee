"""Evidence with known effects, for tests of the gate: what was measured is made up, how it is judged is not."""

from __future__ import annotations

import functools
from dataclasses import dataclass, field, replace

import numpy as np

from benchgate.model.deployment import Arm, Deployment
from benchgate.model.records import ErrorClass, EvalItem, RequestColumns, RequestRecord, ShadowItem, TokenSource
from benchgate.model.run import (
    ClientUse,
    Evidence,
    LoadObservation,
    QualityObservation,
    Run,
    RunStatus,
    ShadowObservation,
)
from benchgate.suite.schema import Suite

_MS = 1_000_000


@dataclass(frozen=True)
class Effect:
    """What an arm does to the requests it gets; the defaults are a healthy server."""

    slowdown: float = 1.0  # of every latency
    failed: int = 0  # requests failed per block and stage
    failed_block: int | None = None  # only in this block
    tokens: int = 10
    token_source: TokenSource = TokenSource.USAGE
    wrong: tuple[int, ...] = ()  # positions of eval items answered wrong
    cut: tuple[int, ...] = ()  # positions of eval items cut short by the token limit (and wrong)
    empty: tuple[int, ...] = ()
    differs: tuple[int, ...] = ()  # positions of shadow prompts answered differently
    drop_last: bool = False  # the last request of every stage has no record
    unanswered: tuple[int, ...] = ()  # positions of shadow prompts that failed
    at_once: int = 0  # answers per stage whose chunks all arrive at one instant
    own_faults: int = 0  # requests per stage that fail by a fault of the client's machine
    lag_ms: int = 0  # lateness of every send, inside the latency
    late: int = 0  # requests per stage that were sent 60 ms late
    cpu_share: float = 0.05
    client: ClientUse | None = None  # what the load generator recorded of itself; CPU alone unless given
    usage: int | None = None  # output tokens by the server's count; `tokens` unless given
    unsent: int = 0  # requests per stage that the client never sent
    timed_out: int = 0  # requests per stage that had no answer in time
    facts: dict[str, object] = field(default_factory=dict, hash=False)  # what the server says of itself
    accelerators: int = 1
    finish: str = "length"  # how its answers end


@dataclass(frozen=True)
class Noise:
    """Block-to-block spread of the latencies, drawn apart for each arm, and a drift over the session."""

    cv: float = 0.02
    drift: float = 0.0
    seed: int = 1


HEALTHY = Effect()


def measured(
    suite: Suite,
    candidate: Effect = HEALTHY,
    baseline: Effect = HEALTHY,
    *,
    noise: Noise = Noise(),
    items: int = 300,
    prompts: int = 200,
    self_differs: tuple[int, ...] = (),
    run_id: str = "run-1",
) -> Evidence:
    """All that `suite` asks for, measured on two arms with these effects."""
    effects = {Arm.BASELINE: baseline, Arm.CANDIDATE: candidate}
    return Evidence(
        run=_run(suite, run_id, effects),
        load=_load(suite, effects, noise),
        quality=_quality(suite, effects, items),
        shadow=_shadow(suite, candidate, prompts, self_differs),
        target_faults=(),
    )


def with_status(evidence: Evidence, status: RunStatus) -> Evidence:
    """The same evidence in a run that came this far."""
    return replace(evidence, run=replace(evidence.run, status=status))


def _run(suite: Suite, run_id: str, effects: dict[Arm, Effect]) -> Run:
    return Run(
        id=run_id,
        suite_name=suite.suite,
        suite=suite.to_stored(),
        suite_sha256="s" * 64,
        measurement_sha256="m" * 64,
        plan_sha256="p" * 64,
        seed=suite.seed,
        tool_version="0",
        label=None,
        status=RunStatus.COMPLETE,
        started_at="2026-01-01T00:00:00.000Z",
        finished_at="2026-01-01T00:01:00.000Z",
        environment={},
        arms={
            arm: Deployment(
                name=name,
                model="m",
                engine="vllm",
                url=f"http://{arm}",
                facts=effects[arm].facts,
                price_usd_per_hour=2.0,
                accelerators=effects[arm].accelerators,
            )
            for arm, name in ((Arm.BASELINE, suite.baseline), (Arm.CANDIDATE, suite.candidate))
        },
    )


def _load(suite: Suite, effects: dict[Arm, Effect], noise: Noise) -> tuple[LoadObservation, ...]:
    if suite.load is None:
        return ()
    generator = np.random.default_rng(noise.seed)
    observations: list[LoadObservation] = []
    executions = suite.load.blocks * len(suite.load.sweep) * 2
    for block in range(suite.load.blocks):
        order = (Arm.BASELINE, Arm.CANDIDATE) if block % 2 == 0 else (Arm.CANDIDATE, Arm.BASELINE)
        for stage in suite.load.sweep:
            for arm in order:
                at = len(observations)
                scale = float(np.exp(generator.normal(0, noise.cv))) * (1 + noise.drift * at / executions)
                observations.append(_execution(stage.name, stage.requests, arm, block, at, effects[arm], scale))
    return tuple(observations)


def _execution(
    stage: str, requests: int, arm: Arm, block: int, position: int, effect: Effect, scale: float
) -> LoadObservation:
    fails = effect.failed if effect.failed_block in (None, block) else 0
    columns, window_s = _answered(requests, effect.slowdown * scale, effect, fails)
    sent_ns = np.where(columns.sent_ns >= 0, columns.sent_ns + position, columns.sent_ns)  # never twice at one instant
    return LoadObservation(
        stage=stage,
        arm=arm,
        block=block,
        position=position,
        requests=replace(columns, sent_ns=sent_ns),
        window_s=window_s,
        client=effect.client or ClientUse(cpu_s=effect.cpu_share, wall_s=1.0, workers=1),
    )


@functools.lru_cache(maxsize=1024)  # the noise is the same each time, so most tests ask for the same ones
def _answered(requests: int, slow: float, effect: Effect, fails: int) -> tuple[RequestColumns, float]:
    """The requests of one execution, and how long it took."""
    count = requests - effect.drop_last
    records = [_record(i, slow, effect, failed=i < fails) for i in range(count)]
    own = [
        replace(r, error=ErrorClass.CLIENT, error_detail="too many open files") for r in records[: effect.own_faults]
    ]
    records[: effect.own_faults] = own
    records[: effect.unsent] = [_without_answer(r, ErrorClass.CLIENT, sent=False) for r in records[: effect.unsent]]
    late = records[: effect.timed_out]
    records[: effect.timed_out] = [_without_answer(r, ErrorClass.TIMEOUT, sent=True) for r in late]
    return RequestColumns.pack(records), _last_s(records)


def _last_s(records: list[RequestRecord]) -> float:
    """When the last of them was over or due, after the first was due."""
    return max((max(r.intended_ns, r.end_ns or 0) for r in records), default=0) / 1e9


def _without_answer(record: RequestRecord, error: ErrorClass, *, sent: bool) -> RequestRecord:
    return replace(
        record,
        sent_ns=record.sent_ns if sent else None,
        chunk_ns=(),
        end_ns=None,
        output_tokens=None,
        token_source=None,
        finish_reason=None,
        http_status=None,
        error=error,
        error_detail="made up",
    )


def _record(index: int, slow: float, effect: Effect, *, failed: bool) -> RequestRecord:
    """One request every 99 ms, so that ten take about a second.

    TTFT 50 ms plus 0.1 ms per position, then 10 ms a token, all times the slowdown.
    """
    intended = int(index * 99 * _MS * slow)
    sent = intended + (60 if index < effect.late else effect.lag_ms) * _MS
    if failed:
        return RequestRecord(
            index, intended, sent, (), None, None, None, None, None, 500, ErrorClass.HTTP_5XX, "internal error"
        )
    first = sent + int((50 + index * 0.1) * _MS * slow)
    gap = 0 if index < effect.at_once else 10 * _MS * slow
    chunks = tuple(first + int(k * gap) for k in range(effect.tokens))
    usage = effect.tokens if effect.usage is None else effect.usage
    return RequestRecord(
        index, intended, sent, chunks, chunks[-1], 8, usage, effect.token_source, effect.finish, 200, None, None
    )


def _quality(suite: Suite, effects: dict[Arm, Effect], n: int) -> tuple[QualityObservation, ...]:
    if suite.quality is None:
        return ()
    return tuple(
        QualityObservation(task, arm, tuple(_item(task, i, effects[arm]) for i in range(n)), n, None)
        for task in suite.quality.names
        for arm in Arm
    )


def _item(task: str, i: int, effect: Effect) -> EvalItem:
    cut, empty = i in effect.cut, i in effect.empty
    return _scored(task, i, cut or empty or i in effect.wrong, cut, empty)


@functools.lru_cache(maxsize=8192)
def _scored(task: str, i: int, wrong: bool, cut: bool, empty: bool) -> EvalItem:
    return EvalItem(
        item_id=f"{task}-{i}",
        doc_hash=f"{task}-d{i}",
        prompt_hash=f"p{i}",
        target_hash=f"t{i}",
        score=0.0 if wrong else 1.0,
        answer="" if empty else "wrong" if wrong else "right",
        finish_reason="length" if cut else "stop",
        output_tokens=4,
        latency_ns=30_000_000,
        error=None,
    )


def _shadow(suite: Suite, candidate: Effect, n: int, self_differs: tuple[int, ...]) -> ShadowObservation | None:
    if suite.shadow is None:
        return None
    items = tuple(
        ShadowItem(
            prompt_id=f"{i:04}",
            prompt_sha256=f"{i}",
            primary="same",
            secondary="noise" if i in self_differs else "same",
            candidate=None if i in candidate.unanswered else "other" if i in candidate.differs else "same",
            primary_finish="stop",
            secondary_finish="stop",
            candidate_finish="stop",
            error="candidate: HTTP 500" if i in candidate.unanswered else None,
        )
        for i in range(n)
    )
    return ShadowObservation(items, n, None)


@dataclass(frozen=True)
class SuiteText:
    """A suite as its author would write it, in pieces, so that a test can change one."""

    checks: list[dict[str, object]] = field(default_factory=list)
    blocks: int = 8
    requests: int = 60
    gate: dict[str, object] = field(default_factory=dict)

    def suite(self) -> Suite:
        """The suite itself."""
        return Suite.model_validate(
            {
                "suite": "made-up",
                "deployments": {
                    "baseline": {"url": "http://b", "model": "m"},
                    "candidate": {"url": "http://c", "model": "m"},
                },
                "slo": {"ttft": "200ms", "tpot": "50ms", "target": "95%"},
                "load": {
                    "workload": {"input": "8 tokens", "output": "10 tokens"},
                    "blocks": self.blocks,
                    "sweep": [{"stage": "c4", "concurrency": 4, "requests": self.requests}],
                },
                "quality": {"tasks": ["add.yaml", "sort.yaml"]},
                "shadow": {"prompts": "p.jsonl"},
                "gate": {**self.gate, "checks": self.checks},
            }
        )
