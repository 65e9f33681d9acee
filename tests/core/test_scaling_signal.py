"""By what a fleet may be scaled: only what was more by every block where the SLO failed, and enough to be its cause."""

from collections.abc import Mapping
from dataclasses import replace

import pytest

from benchgate.model.deployment import Arm
from benchgate.model.run import Evidence, MetricRow
from benchgate.model.telemetry import Gauge, TelemetryMetric, TelemetrySample, TelemetryWindow
from benchgate.model.telemetry import Replica as Part
from benchgate.report.sizing import RunSeen, sizing_document, sizing_text
from benchgate.sizing.fleet import OUTPUT_TOKENS, Demand, Replica, SizingInput, size_demand
from benchgate.sizing.operating_point import (
    LoadLevel,
    OperatingPoint,
    best_of_levels,
    choose_operating_point,
    known_levels,
    levels_of,
)
from benchgate.sizing.signals import ScalingSignal, SignalRange, deployment_replicas, scaling_signals
from tests.core.test_sizing import LEVELS, SUITE, a_suite, level
from tests.fakes.measured import SuiteText, measured

Blocks = tuple[float, ...]


def told(waiting: Mapping[str, Blocks], usage: Mapping[str, Blocks]) -> Evidence:
    """A run whose server told these at every look, by stage and block."""
    empty = measured(SuiteText([{"metric": "ttft", "margin": "5%"}], blocks=2, requests=2).suite())
    windows = []
    for stage, blocks in waiting.items():
        for block, depth in enumerate(blocks):
            at: dict[TelemetryMetric, float] = {Gauge.WAITING: depth, Gauge.RUNNING: 4.0}
            at |= {Gauge.KV_USAGE: usage[stage][block]} if stage in usage else {}
            looks = tuple(TelemetrySample(float(second), at) for second in range(4))
            windows.append(TelemetryWindow(stage, Arm.CANDIDATE, block, 0, "vllm", 3.0, True, looks))
    return replace(empty, telemetry=tuple(windows))


def signals(evidence: Evidence, rows: list[MetricRow] = LEVELS) -> tuple[ScalingSignal, ...]:
    """c8 is the best level of the usual ones, c16 the next one, which is not shown to hold."""
    levels = levels_of(rows, a_suite(), Arm.CANDIDATE)
    assert not isinstance(levels, str)
    best = best_of_levels(known_levels(levels), Arm.CANDIDATE)
    assert not isinstance(best, str)
    return scaling_signals(evidence, known_levels(levels), best, Arm.CANDIDATE)


def test_fleet_is_scaled_by_the_queue_where_it_tells_and_else_by_what_does() -> None:
    usage = {"c4": (0.2, 0.2), "c8": (0.4, 0.4), "c16": (0.45, 0.45)}
    queue, cache, tokens = signals(told({"c4": (0, 0), "c8": (0.5, 1.5), "c16": (5, 7)}, usage))
    assert (queue.name, queue.holds, queue.beyond) == (
        "waiting requests", SignalRange("c8", 1.0, 0.5, 1.5), SignalRange("c16", 6, 5, 7),
    )  # fmt: skip
    assert (queue.tells, cache.tells, tokens.tells) == (True, False, False)
    assert (queue.threshold, cache.threshold) == (1.5, None)
    first, *_ = signals(told({"c8": (0, 0), "c16": (0.1, 0.1)}, {"c8": (0.4, 0.3), "c16": (0.9, 0.8)}))
    assert (first.name, first.threshold) == ("KV cache in use", 0.5)
    (alone,) = signals(told({}, {}))
    assert (alone.name, alone.holds.mean, alone.tells) == ("output tokens/s", 700, False)


@pytest.mark.parametrize(
    ("before", "waiting", "usage"),
    [
        (0.0, (5, 0.5), (0.1, 0.1)),  # one block of two, where none waited
        (0.0, (0.9, 0.9), (0.1, 0.1)),  # not one, on the mean
        (0.0, (0, 0), (0.0123, 0.0123)),  # next to nothing of the cache
        (0.0, (0, 0), (0.49, 0.9)),  # half of it in one block alone
        (1.4, (2, 2), (0.1, 0.1)),  # less than 1.5 times as much
    ],
)
def test_next_to_nothing_and_chance_are_no_signal(before: float, waiting: Blocks, usage: Blocks) -> None:
    found = signals(told({"c8": (before, before), "c16": waiting}, {"c8": (0.001, 0.001), "c16": usage}))
    assert len(found) == 3
    assert [one.threshold for one in found] == [None, None, None]


def test_pace_tells_where_its_limits_are_far_apart() -> None:
    fast = [*LEVELS[:6], *level("c16", 1400, (0.9, 0.8))]
    (pace,) = signals(told({}, {}), fast)
    assert pace.threshold == pytest.approx(770)  # 1,260 at least against 770 at most
    bare = [replace(row, lower=None, upper=None) if row.name == "output_throughput" else row for row in fast]
    assert signals(told({}, {}), bare) == ()


def test_no_level_beyond_the_best_one_is_no_threshold() -> None:
    found = signals(told({"c4": (0, 0), "c8": (0.5, 0.5), "c16": (6, 6)}, {}), LEVELS[:6])
    assert [(one.beyond, one.tells) for one in found] == [(None, False)] * 2


@pytest.mark.parametrize(
    ("beyond_s", "stage"),
    [
        (0.011, "r130"),  # 0.5 and 1.43 inside on the mean, one as well as the other when they are rounded
        (0.0038, "r130"),  # as many inside, for what can be told
        (0.003, None),
    ],
)
def test_levels_with_hardly_anything_in_flight_are_ordered_by_their_load(beyond_s: float, stage: str | None) -> None:
    held = LoadLevel("r50", 500, 490, 50, 49, 0.98, 0.95, 0.010, is_open=True, tokens_upper=510)
    missed = LoadLevel("r130", 1300, 1270, 130, 127, 0.2, 0.95, beyond_s, is_open=True, tokens_upper=1330)
    assert held.in_flight == missed.in_flight == 1
    (pace,) = scaling_signals(told({}, {}), [held, missed], held, Arm.CANDIDATE)
    assert (pace.beyond and pace.beyond.stage) == stage
    choice = choose_operating_point({row.stage: row for row in (held, missed)}, Arm.CANDIDATE)
    assert isinstance(choice, OperatingPoint)
    assert choice.left_out[0].why.endswith("though it has less load than this one") is (stage is None)


def test_level_of_more_load_stands_before_one_of_as_much() -> None:
    held = LoadLevel("c8", 800, 780, 80, 78, 0.98, 0.95, 0.1, tokens_upper=820)
    alike, more = (
        replace(held, stage=stage, goodput_lower=0.5, e2e_mean_s=s) for stage, s in (("b8", 0.101), ("c9", 0.12))
    )
    for levels, stage in (((held, alike, more), "c9"), ((held, alike), "b8")):
        (pace,) = scaling_signals(told({}, {}), levels, held, Arm.CANDIDATE)
        assert pace.beyond is not None
        assert pace.beyond.stage == stage


def test_level_of_other_requests_is_not_beyond() -> None:
    held = LoadLevel("r8", 800, 780, 80, 78, 0.98, 0.95, 0.1, is_open=True, offered_load=8.0, tokens_upper=820)
    other = replace(held, stage="long", goodput_lower=0.5, offered_load=16.0, kind=1)
    (pace,) = scaling_signals(told({}, {}), [held, other], held, Arm.CANDIDATE)
    assert pace.beyond is None


def test_queue_of_which_a_block_is_missing_or_there_is_but_one_is_not_known() -> None:
    evidence = told({"c8": (0.5, 0.5), "c16": (6, 6)}, {})
    first = replace(evidence.telemetry[0], readings=())
    for telemetry in ((first, *evidence.telemetry[1:]), evidence.telemetry[1:]):
        assert [one.name for one in signals(replace(evidence, telemetry=telemetry))] == ["output tokens/s"]
    load = tuple(replace(one, stage="c8", block=2) for one in evidence.load[:2])  # a block that nobody looked at
    assert [one.name for one in signals(replace(evidence, load=load))] == ["output tokens/s"]


def test_cache_that_is_more_than_full_is_not_known() -> None:
    percents = told({"c8": (0, 0), "c16": (6, 6)}, {"c8": (40.0, 40.0), "c16": (90.0, 90.0)})
    assert [one.name for one in signals(percents)] == ["waiting requests", "output tokens/s"]


FOUND = size_demand(SizingInput(unit=OUTPUT_TOKENS, demand=Demand(5000), replica=Replica(700)))
ROW = LoadLevel("c8", 700.0, 630.0, 14.0, 12.0, 0.955, 0.95, 2.0)


def said(*seen: ScalingSignal, from_records: bool = True) -> str:
    return sizing_text(FOUND, RunSeen(OperatingPoint(ROW), signals=seen, from_records=from_records))


def test_sizing_says_by_what_to_scale_and_what_was_seen() -> None:
    seen = signals(told({"c8": (0.5, 0.5), "c16": (6, 6)}, {"c8": (0.4, 0.4), "c16": (0.45, 0.45)}))
    assert "Scale up by waiting requests of a replica, above 1.00. Seen in the run:" in said(*seen)
    assert "  KV cache in use: 40.0 % at c8, which held, 45.0 % at c16, which was not shown to hold" in said(*seen)
    missed = [replace(one, beyond_misses=True) for one in seen]
    assert "45.0 % at c16, which did not" in said(*missed)
    assert "cale" not in sizing_text(FOUND)
    document = sizing_document(FOUND, RunSeen(OperatingPoint(ROW), signals=seen))
    told_of = [(one["tells"], one["threshold"]) for one in document["signals"]]  # type: ignore[attr-defined]  # JSON
    assert told_of == [(True, 1.0), (False, None), (False, None)]


def test_replicas_of_a_deployment_are_those_declared_or_those_that_its_telemetry_tells_apart() -> None:
    bare, alone = a_suite(), told({"c8": (0.5, 0.5)}, {})
    declared = a_suite(SUITE.replace("http://b.example,", "http://b.example, ready: {replicas: 8, command: count},"))
    two = tuple(
        replace(one, replicas=tuple(Part(name, None, one.readings) for name in "ab")) for one in alone.telemetry
    )
    apart = replace(alone, telemetry=two)
    assert deployment_replicas(None, bare, Arm.CANDIDATE) is None
    assert deployment_replicas(alone, bare, Arm.CANDIDATE) is None
    assert deployment_replicas(None, declared, Arm.CANDIDATE) == 8
    assert deployment_replicas(None, declared, Arm.BASELINE) is None
    assert deployment_replicas(apart, bare, Arm.CANDIDATE) == 2
    assert deployment_replicas(apart, bare, Arm.BASELINE) is None
    assert deployment_replicas(apart, declared, Arm.CANDIDATE) == 8


def test_sizing_by_a_deployment_of_several_replicas_says_that_all_of_them_are_the_unit() -> None:
    seen = signals(told({"c8": (0.5, 0.5), "c16": (6, 6)}, {"c8": (0.4, 0.4), "c16": (0.9, 0.9)}))
    for first, whose in ((seen, "waiting requests of all 8"), (seen[1:], "KV cache in use of the fullest of its 8")):
        run = RunSeen(OperatingPoint(ROW), signals=first, deployment_replicas=8)
        text = sizing_text(FOUND, run)
        assert "the whole deployment of the run, with 8 replicas" in text
        assert f"Scale up by {whose} replicas, above" in text
        assert sizing_document(FOUND, run)["deployment_replicas"] == 8
    single = RunSeen(OperatingPoint(ROW), signals=seen)
    assert "the whole deployment" not in sizing_text(FOUND, single)
    assert sizing_document(FOUND, single)["deployment_replicas"] is None
    assert sizing_document(FOUND)["deployment_replicas"] is None


def test_sizing_says_what_would_show_a_signal_where_there_is_none() -> None:
    seen = signals(told({"c8": (0.5, 0.5), "c16": (6, 6)}, {"c8": (0.4, 0.4), "c16": (0.45, 0.45)}))
    assert "No autoscaling signal found: at c16, which is not shown to hold the SLO, no metric" in said(*seen[1:])
    assert "Measure a higher level at which requests queue." in said(*seen[1:])
    none = signals(told({"c8": (0, 0)}, {}), LEVELS[:6])
    assert "no level beyond c8 is known to miss its SLO. Measure one at which requests queue." in said(*none)
    assert "No autoscaling signal: no two blocks of that level have" in said()
    assert "No autoscaling signal: the raw records were removed." in said(from_records=False)
