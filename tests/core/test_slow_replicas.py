"""A replica slower than the others is named, and no replica among equal ones."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from benchgate.gate.summary.slow_replicas import slow_replica_notes, slow_replicas
from benchgate.model.deployment import Arm
from benchgate.model.run import Evidence
from benchgate.model.telemetry import Counter, Replica, Role, TelemetryMetric, TelemetrySample, TelemetryWindow
from tests.fakes import evidence as fakes


def measured(paces: dict[str, float], *, blocks: int = 6, role: Role | None = None, seed: int = 1) -> Evidence:
    """Every replica serves 1,000 tokens a block, at its pace give or take 5 %."""
    rng = np.random.default_rng(seed)
    windows = []
    for block in range(blocks):
        replicas = []
        for name, pace_s in paces.items():
            used_s = pace_s * 1000 * rng.normal(1, 0.05)
            after: dict[TelemetryMetric, float] = {Counter.DECODE_S: used_s, Counter.GENERATION_TOKENS: 1000.0}
            readings = (TelemetrySample(0, dict.fromkeys(after, 0.0)), TelemetrySample(2, after))
            replicas.append(Replica(name, role, readings))
        windows.append(
            TelemetryWindow("c4", Arm.CANDIDATE, block, block, "vllm", 2, True, (), replicas=tuple(replicas))
        )
    return replace(fakes.evidence(), telemetry=tuple(windows))


def test_the_slow_one_of_three_is_named() -> None:
    found = slow_replicas(measured({"a": 0.01, "b": 0.021, "c": 0.01}, role=Role.DECODE))
    assert [(one.replica, one.others) for one in found] == [("b", 2)]
    assert found[0].factor == pytest.approx(2.1, rel=0.1) and 1.25 < found[0].least_factor < found[0].factor
    (note,) = slow_replica_notes(measured({"a": 0.01, "b": 0.02, "c": 0.01}, role=Role.DECODE))
    assert note.startswith("stage c4, candidate: decode replica b takes 2.0")


@pytest.mark.slow
def test_replicas_alike_are_not_named_in_a_thousand_runs() -> None:
    equal = {"a": 0.01, "b": 0.01, "c": 0.01}
    assert not any(slow_replicas(measured(equal, blocks=3, seed=seed)) for seed in range(1000))
    assert not any(slow_replicas(measured(equal | {"b": 0.0125}, blocks=6, seed=seed)) for seed in range(200))


def test_two_blocks_show_nothing() -> None:
    assert slow_replicas(measured({"a": 0.01, "b": 0.03}, blocks=2)) == ()


def test_a_replica_alone_in_its_role_or_without_traffic_is_compared_with_nobody() -> None:
    assert slow_replicas(measured({"a": 0.01})) == ()
    assert slow_replicas(measured({"a": 0.01, "b": 0.0, "c": 0.04})) == ()


def test_a_replica_that_reads_prompts_is_compared_by_its_prompts() -> None:
    run = measured({"a": 0.01, "b": 0.02}, role=Role.PREFILL)
    assert slow_replicas(run) == ()  # nothing of their prompts is known
    names = {Counter.DECODE_S: Counter.PREFILL_S, Counter.GENERATION_TOKENS: Counter.PREFILLED}

    def of_prompts(replica: Replica) -> Replica:
        samples = (
            replace(one, values={names[Counter(metric)]: value for metric, value in one.values.items()})
            for one in replica.readings
        )
        return replace(replica, readings=tuple(samples))

    windows = (replace(one, replicas=tuple(map(of_prompts, one.replicas))) for one in run.telemetry)
    (note,) = slow_replica_notes(replace(run, telemetry=tuple(windows)))
    assert "prefill replica b takes" in note and "the time per prompt of the other one" in note
