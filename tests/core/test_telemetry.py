"""What a window of telemetry says: counters by their change, states while something ran, silence as silence."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from benchgate.model.deployment import Arm
from benchgate.model.telemetry import Counter, Gauge, TelemetryMetric, TelemetrySample, TelemetryWindow


def window(*readings: TelemetrySample, ended_s: float = 10.0, drained: bool = True) -> TelemetryWindow:
    return TelemetryWindow("c4", Arm.BASELINE, 0, 0, "vllm", ended_s, drained, readings)


def at(at_s: float, values: Mapping[TelemetryMetric, float], marker: str | None = "born") -> TelemetrySample:
    return TelemetrySample(at_s, values, marker)


def test_a_counter_is_its_change_from_before_the_stage_to_after_it() -> None:
    seen = window(
        at(0, {Counter.GENERATION_TOKENS: 100.0}),
        at(5, {Counter.GENERATION_TOKENS: 150.0}),
        at(10, {Counter.GENERATION_TOKENS: 180.0}),
    )
    assert seen.change(Counter.GENERATION_TOKENS) == 80.0
    assert seen.change(Counter.PROMPT_TOKENS) is None


@pytest.mark.parametrize("missing", [0, 2])
def test_a_counter_that_was_not_told_at_one_end_has_no_change(missing: int) -> None:
    values: list[dict[TelemetryMetric, float]] = [
        {Counter.REQUESTS: 1.0},
        {Counter.REQUESTS: 2.0},
        {Counter.REQUESTS: 3.0},
    ]
    values[missing] = {}
    assert window(*(at(float(i), told) for i, told in enumerate(values))).change(Counter.REQUESTS) is None


def test_a_state_is_what_was_seen_between_the_first_and_the_last_request() -> None:
    seen = window(
        at(0, {Gauge.RUNNING: 0.0, Gauge.KV_USAGE: 0.0}),
        at(1, {Gauge.RUNNING: 0.0, Gauge.KV_USAGE: 0.0}),  # connections are being opened
        at(2, {Gauge.RUNNING: 2.0, Gauge.KV_USAGE: 0.2}),
        at(3, {Gauge.RUNNING: 0.0, Gauge.KV_USAGE: 0.0}),  # a gap between two sends
        at(4, {Gauge.RUNNING: 4.0, Gauge.KV_USAGE: 0.4}),
        at(5, {Gauge.RUNNING: 0.0, Gauge.KV_USAGE: 0.0}),  # the answers are being read
        at(6, {Gauge.RUNNING: 0.0, Gauge.KV_USAGE: 0.1}),
        ended_s=5.5,
    )
    assert seen.mean(Gauge.RUNNING) == 2.0
    assert seen.peak(Gauge.KV_USAGE) == 0.4
    assert seen.after(Gauge.KV_USAGE) == 0.1


def test_a_stage_too_short_to_look_at_has_no_state_and_no_zero() -> None:
    seen = window(at(0, {Gauge.RUNNING: 0.0}), at(0.2, {Gauge.RUNNING: 0.0}), ended_s=0.2)
    assert seen.mean(Gauge.RUNNING) is None
    assert seen.peak(Gauge.RUNNING) is None


def test_nothing_is_known_of_the_rest_of_a_server_that_never_became_idle() -> None:
    looks = at(0, {Gauge.KV_USAGE: 0.0}), at(12, {Gauge.KV_USAGE: 0.7})
    assert window(*looks, drained=False).after(Gauge.KV_USAGE) is None
    assert window(*looks).after(Gauge.KV_USAGE) == 0.7


def test_a_restart_leaves_no_change() -> None:
    fell = window(at(0, {Counter.REQUESTS: 5.0}, None), at(1, {Counter.REQUESTS: 1.0}, None))
    other = window(at(0, {Counter.REQUESTS: 5.0}, "a"), at(1, {Counter.REQUESTS: 9.0}, "b"))
    for seen in (fell, other):
        assert seen.restarted
        assert seen.change(Counter.REQUESTS) is None


def test_a_restart_is_seen_although_the_server_was_down_at_the_samples_in_between() -> None:
    counted = (2000.0, 2000.0, None, None, 0.0, 1060.0)
    samples = (at(i, {} if n is None else {Counter.REQUESTS: n}, None) for i, n in enumerate(counted))
    seen = window(*samples)
    assert seen.restarted
    assert seen.change(Counter.REQUESTS) is None


def test_energy_that_falls_is_no_restart_of_the_server() -> None:
    assert not window(at(0, {Counter.GPU_ENERGY_J: 5.0}), at(1, {Counter.GPU_ENERGY_J: 1.0})).restarted


def test_ratios_of_nothing_are_not_told() -> None:
    idle: dict[TelemetryMetric, float] = {
        Counter.PREFIX_QUERIES: 7.0,
        Counter.PREFIX_HITS: 7.0,
        Counter.DRAFTED: 0.0,
        Counter.ACCEPTED: 0.0,
    }
    busy: dict[TelemetryMetric, float] = {
        Counter.PREFIX_QUERIES: 17.0,
        Counter.PREFIX_HITS: 12.0,
    }
    assert window(at(0, idle), at(1, idle)).prefix_hit_ratio is None
    assert window(at(0, idle), at(1, busy)).prefix_hit_ratio == 0.5


def test_energy_is_counted_by_the_accelerators_or_else_power_times_time() -> None:
    counted: list[dict[TelemetryMetric, float]] = [
        {Counter.GPU_ENERGY_J: 100.0},
        {Gauge.GPU_POWER: 300.0},
        {Counter.GPU_ENERGY_J: 1600.0},
    ]
    assert window(*(at(float(i), told) for i, told in enumerate(counted)), ended_s=2).energy_j == 1500.0
    assert window(at(0, {}), at(1, {Gauge.GPU_POWER: 300.0}), at(2, {}), ended_s=2).energy_j == 600.0
    stands_still: dict[TelemetryMetric, float] = {Counter.GPU_ENERGY_J: 100.0}
    drawing = {**stands_still, Gauge.GPU_POWER: 300.0}
    assert window(at(0, stands_still), at(1, drawing), at(2, stands_still), ended_s=2).energy_j == 600.0
    assert window(at(0, stands_still), at(2, stands_still), ended_s=2).energy_j is None
    assert window(at(0, {}), at(1, {}), at(2, {}), ended_s=2).energy_j is None
