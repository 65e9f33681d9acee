"""Runs and observations with every field set.

`tests/fixtures/store-0001.sqlite` holds some of them as they are here: add to them, do not change them.
"""

from __future__ import annotations

import hashlib
import itertools
import uuid
from typing import Any

import numpy as np

from benchgate.model.deployment import Arm, Deployment
from benchgate.model.noise import FalseBlocks, NoiseProfile, NoiseSpread, SelfDisagreement, noise_key
from benchgate.model.records import (
    DivergenceItem,
    DivergenceObservation,
    ErrorClass,
    EvalItem,
    RequestColumns,
    RequestRecord,
    ShadowItem,
    TokenSource,
)
from benchgate.model.run import (
    ClientUse,
    DeploymentFault,
    LoadObservation,
    QualityObservation,
    Run,
    RunStatus,
    ShadowObservation,
)
from benchgate.model.telemetry import Counter, Gauge, TelemetrySample, TelemetryWindow
from benchgate.store.repository import Store

PLAN = '{"blocks":[],"prompt":"caf\u00e9 \U0001f680"}'.encode()
DONE_AT = "2026-11-20T13:00:00Z"
NASTY = "NUL \0, half a pair \ud800, \u202e, \U0001f680, '; DROP TABLE run; --"

_numbers = itertools.count(1)


def make_run(run_id: str | None = None, **changes: Any) -> Run:
    """A running run with every field set; each call starts one second later than the one before."""
    number = next(_numbers)
    fields: dict[str, Any] = {
        "id": run_id or str(uuid.uuid4()),
        "suite_name": "smoke",
        "suite": {"suite": "smoke", "text": NASTY, "load": {"rate_rps": 0.1 + 0.2}},
        "suite_sha256": "a" * 64,
        "measurement_sha256": "b" * 64,
        "plan_sha256": hashlib.sha256(PLAN).hexdigest(),
        "seed": 2**63 - 1,
        "tool_version": "0.1.0",
        "label": None,
        "status": RunStatus.RUNNING,
        "started_at": f"2026-11-20T12:{number // 60 % 60:02d}:{number % 60:02d}Z",
        "finished_at": None,
        "environment": {"cpu": "2 cores", "pid": 42},
        "arms": {Arm.BASELINE: make_deployment("f16"), Arm.CANDIDATE: make_deployment("q8_0")},
    }
    return Run(**fields | changes)


def make_deployment(name: str) -> Deployment:
    return Deployment(
        name=name,
        model="tiny",
        engine="llamacpp",
        url=f"http://127.0.0.1/{name}",
        settings={"slots": 8, "extra": {"cache_prompt": False, "list": [1, 2.5, None]}},
        facts={"version": NASTY},
        price_usd_per_hour=0.1,
        accelerators=2,
    )


def make_requests(count: int = 5) -> RequestColumns:
    """Some whole answers, then one request that was never sent and one whose stream broke."""
    whole = [
        RequestRecord(
            index=index,
            intended_ns=index * 1_000,
            sent_ns=index * 1_000 + 7,
            chunk_ns=tuple(range(index * 1_000 + 100, index * 1_000 + 100 + 10 * index, 10)),
            end_ns=index * 1_000 + 900,
            input_tokens=40,
            output_tokens=index,
            token_source=TokenSource.USAGE,
            finish_reason="stop",
            http_status=200,
            error=None,
            error_detail=None,
            reconnects=index % 2,
        )
        for index in range(count)
    ]
    unsent = (count, 2**62, None, (), None, None, None, None, None, None, ErrorClass.CLIENT, NASTY)
    broken = (count + 1, 0, 0, (5,), None, 1, None, None, "abort", 200, ErrorClass.STREAM_BROKEN, "")
    return RequestColumns.pack([*whole, RequestRecord(*unsent), RequestRecord(*broken)])


def make_load(arm: Arm = Arm.BASELINE, *, block: int = 0, position: int = 0, count: int = 5) -> LoadObservation:
    return LoadObservation("c4", arm, block, position, make_requests(count), 0.1 + 0.2, ClientUse(1.25, 3.7, 2))


def make_quality(arm: Arm = Arm.BASELINE) -> QualityObservation:
    items = (
        EvalItem("reverse-0", "d0", "p0", "t0", 1.0, NASTY, "stop", 5, 1_234_567, None),
        EvalItem("reverse-1", "d1", "p1", "t1", 0.0, "", "length", 0, 0, None),
        EvalItem("reverse-2", "d2", "p2", "t2", None, None, None, None, None, "timeout"),
    )
    return QualityObservation("reverse", arm, items, 4, "the server went away", {"lm_eval": "0.4.13", "n": [1, 2]})


def make_shadow() -> ShadowObservation:
    full = ShadowItem("s0", "h0", "a", "a", "b", "stop", "stop", "length", None, "Hi?", NASTY, "", "x")
    bare = ShadowItem("s1", "h1", None, None, None, None, None, None, "candidate: timeout")
    return ShadowObservation((full, bare), 3, None)


def make_divergence(*, asked_again: bool = False) -> DivergenceObservation:
    own = (1e-7, True) if asked_again else (None, None)
    items = (
        DivergenceItem(NASTY, 0, 31, 0.1 + 0.2, True, False, 264, -0.0, -1.25e-7, *own),
        DivergenceItem("t1", 4, 2**40, 0.0, False, True, 0, None, None, *own),
    )
    return DivergenceObservation(items, 3, "the server went away", "echo", 20, False, ("n_probs: baseline: HTTP 404",))


def make_telemetry() -> TelemetryWindow:
    readings = (
        TelemetrySample(0.0, {Counter.REQUESTS: 5.0, Gauge.KV_USAGE: 0.0}, "1795181646.56"),
        TelemetrySample(2.5, {Counter.REQUESTS: 9.0, Gauge.GPU_POWER: 301.25}, NASTY),
    )
    return TelemetryWindow("c4", Arm.BASELINE, 0, 0, "vllm", 0.1 + 0.2, True, readings, (NASTY,))


def make_noise(run: Run, measured_at: str = DONE_AT) -> NoiseProfile:
    return NoiseProfile(
        key=noise_key(run.arms[Arm.BASELINE], run.environment, run.measurement_sha256),
        measured_at=measured_at,
        run_id=run.id,
        blocks=12,
        spreads=(
            NoiseSpread("ttft", "p95", "c4", 0.1 + 0.2, 0.01, 12),
            NoiseSpread("error_rate", None, "c4", 0.0, 0.0, 12),
        ),
        disagreement=(SelfDisagreement("task", NASTY.replace("\0", ""), 0.035, 200),),
        false_block=FalseBlocks(200, 3, 1, 0),
        engine_version="0.11.0",
    )


def make_fault() -> DeploymentFault:
    return DeploymentFault(Arm.CANDIDATE, "after block 2 of 6, stage c4", NASTY)


def write_run(store: Store, **changes: Any) -> Run:
    """A whole run with one observation of each kind, both arms in the load."""
    run = make_run(**changes)
    writer = store.begin_run(run, PLAN)
    writer.add(make_load(Arm.BASELINE, block=0, position=0))
    writer.add(make_fault())
    writer.add(make_load(Arm.CANDIDATE, block=0, position=1, count=0))
    writer.add(make_quality(Arm.CANDIDATE))
    writer.add(make_quality(Arm.BASELINE))
    writer.add(make_shadow())
    writer.finish(RunStatus.COMPLETE, DONE_AT)
    return run


def assert_same_requests(left: RequestColumns, right: RequestColumns) -> None:
    expected = right.to_columns()
    for name, column in left.to_columns().items():
        if isinstance(column, np.ndarray):
            other = expected[name]
            assert isinstance(other, np.ndarray)
            assert column.dtype == other.dtype, name
            np.testing.assert_array_equal(column, other, err_msg=name)
        else:
            assert column == expected[name], name


def frozen_run() -> Run:
    """The run of `tests/fixtures/store-0001.sqlite`."""
    return make_run(
        "019aa1bb-5480-7000-8000-000000000001",
        label="frozen",
        started_at="2026-11-20T12:00:00Z",
        arms={Arm.BASELINE: make_deployment("f16"), Arm.CANDIDATE: make_deployment("q8_0")},
    )
