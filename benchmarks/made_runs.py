"""Runs with stated noise and effects, for benchmarks of the decision: measurements are drawn, judging is benchgate's.

A block's value is what the gate makes of its requests: the median of their times to first token, or tokens over the
measured window. The requests are made so that it comes out as drawn.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache

import numpy as np

from benchgate.gate.interim import ContinueLoad, next_step
from benchgate.gate.judge import judge
from benchgate.model.deployment import Arm, Deployment
from benchgate.model.records import EvalItem, FloatArray, IntArray, RequestColumns, RequestRecord, TokenSource
from benchgate.model.run import ClientUse, Evidence, LoadEnd, LoadObservation, QualityObservation, Run, RunStatus
from benchgate.model.verdict import Outcome
from benchgate.suite.schema import Suite

REQUESTS = 5
"""Of an execution whose value is all that matters."""

_MS = 1_000_000
_TOKENS = 3
_SPREAD: FloatArray = np.exp(np.linspace(-0.2, 0.2, REQUESTS))
"""One request to the next inside an execution, around a median of 1."""
_CLIENT = ClientUse(cpu_s=0.01, wall_s=2.0, workers=1)
_NONE_LEFT = RequestColumns.pack([])
_DEPLOYMENTS = {"base": "http://base.invalid", "new": "http://new.invalid"}

Load = Callable[[int], tuple[LoadObservation, ...]]
"""The executions of the first so many blocks."""


@dataclass(frozen=True, slots=True)
class Judged:
    """How a made run ended, and after how many blocks of load."""

    outcome: Outcome
    blocks: int = 0


def load_suite(
    checks: Sequence[dict[str, object]], stages: Sequence[str], looks: Sequence[int], requests: int = REQUESTS
) -> Suite:
    """A suite of load alone, looked at after so many blocks."""
    sweep = [{"stage": stage, "concurrency": 2, "requests": requests} for stage in stages]
    workload = {"input": 32, "output": _TOKENS}
    return _suite(checks, load={"workload": workload, "sweep": sweep, "looks": list(looks)})


def eval_suite(checks: Sequence[dict[str, object]], *, told: bool) -> Suite:
    """A suite of one task, whose items share passages, whether or not it is told of them."""
    return _suite(checks, quality={"tasks": [{"task": "passages.yaml", **({"cluster": "passage"} if told else {})}]})


def _suite(checks: Sequence[dict[str, object]], **measured: object) -> Suite:
    return Suite.model_validate(
        {
            "suite": "made",
            "deployments": {name: {"url": url, "model": "m"} for name, url in _DEPLOYMENTS.items()},
            "baseline": "base",
            "candidate": "new",
            "gate": {"checks": list(checks)},
            **measured,
        }
    )


def run_of(suite: Suite) -> Run:
    """A complete run of the suite."""
    arms = dict(zip(Arm, _DEPLOYMENTS.items(), strict=True))
    return Run(
        id="0190b2c4-7d1e-7a3b-9c5f-2e8d6a4b1f03",
        suite_name=suite.suite,
        suite=suite.to_stored(),
        suite_sha256="s" * 64,
        measurement_sha256="m" * 64,
        plan_sha256="p" * 64,
        seed=suite.seed,
        tool_version="0",
        label=None,
        status=RunStatus.COMPLETE,
        started_at="2026-01-01T00:00:00Z",
        finished_at="2026-01-01T01:00:00Z",
        environment={},
        arms={arm: Deployment(name=name, model="m", engine="vllm", url=url) for arm, (name, url) in arms.items()},
    )


def abba(blocks: int) -> IntArray:
    """When each execution has its turn, by block and arm: baseline first, candidate first, candidate first, ..."""
    turns: IntArray = np.arange(2 * blocks).reshape(blocks, 2)
    turns[1::2] = turns[1::2, ::-1]
    return turns


def one_after_the_other(blocks: int) -> IntArray:
    """The same where all of the baseline is measured before any of the candidate."""
    return np.arange(2 * blocks).reshape(2, blocks).T


def executions(stage: str, values: FloatArray, *, rate: bool = False) -> list[LoadObservation]:
    """Of one stage, by block and arm in values of shape (blocks, 2).

    A value is the median time to first token in seconds, or (`rate`) output tokens per second. With a third axis it
    is the time to first token of every request.
    """
    return [
        _execution(stage, arm, block, turn, value, rate=rate)
        for block, (both, turns) in enumerate(zip(values, abba(len(values)), strict=True))
        for arm, value, turn in zip(Arm, both, turns.tolist(), strict=True)
    ]


def _execution(stage: str, arm: Arm, block: int, position: int, value: FloatArray, *, rate: bool) -> LoadObservation:
    each = np.ndim(value) == 1
    ttft_s = value if each else _SPREAD * (0.1 if rate else value)
    columns = _template(len(ttft_s))
    first_ns = columns.intended_ns + np.rint(ttft_s * 1e9).astype(np.int64)
    chunk_ns = (first_ns[:, None] + np.arange(_TOKENS) * 10 * _MS).ravel()
    end_ns = first_ns + _TOKENS * 10 * _MS
    if rate:  # the last answer ends with the window that makes it
        end_ns[-1] = round(_TOKENS * len(ttft_s) / float(value) * 1e9)
    sent_ns = columns.sent_ns + position  # no two executions are sent at the same nanoseconds
    requests = replace(columns, sent_ns=sent_ns, chunk_ns=chunk_ns, end_ns=end_ns, first_answer_ns=first_ns)
    window_s = float(end_ns.max()) * 1e-9
    return LoadObservation(stage, arm, block, position, requests, window_s, _CLIENT, _NONE_LEFT)


@cache
def _template(requests: int) -> RequestColumns:
    """Good requests, of which only the instants of the answer are still to be said."""
    return RequestColumns.pack(
        [
            RequestRecord(
                index=index,
                intended_ns=index * _MS,
                sent_ns=index * _MS + 50_000,
                chunk_ns=(0,) * _TOKENS,
                end_ns=0,
                input_tokens=32,
                output_tokens=_TOKENS,
                token_source=TokenSource.USAGE,
                finish_reason="length",
                http_status=200,
                error=None,
                error_detail=None,
            )
            for index in range(requests)
        ]
    )


def answers(arm: Arm, right: Sequence[bool], passage: Sequence[int] | None) -> QualityObservation:
    """One arm's answers to a task, and which passage each item is of, where that is told."""
    items = tuple(
        EvalItem(
            item_id=f"item-{at}",
            doc_hash=f"d{at}",
            prompt_hash=f"p{at}",
            target_hash=f"t{at}",
            score=float(ok),
            answer=f"answer {at}" if ok else f"another of the {arm}",
            finish_reason="stop",
            output_tokens=4,
            latency_ns=30 * _MS,
            error=None,
            cluster=None if passage is None else f"passage-{passage[at]}",
        )
        for at, ok in enumerate(right)
    )
    return QualityObservation("passages", arm, items, len(items), None)


def decided(suite: Suite, run: Run, load: Load) -> Judged:
    """As a run does: measure up to a look, go on while the gate says so, and judge what there is."""
    assert suite.load is not None, "a suite of load"
    blocks = suite.load.looks[0] if suite.load.looks else suite.load.blocks
    evidence = Evidence(run, load(blocks), (), None, ())
    while isinstance(step := next_step(suite, evidence), ContinueLoad):
        blocks = step.blocks
        evidence = replace(evidence, load=load(blocks))
    if step is not None:
        evidence = replace(evidence, ended=LoadEnd(blocks, suite.load.blocks, step.reason))
    return Judged(judge(suite, evidence).outcome, blocks)
