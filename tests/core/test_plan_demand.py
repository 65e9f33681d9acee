"""What a plan asks of the load generator, held against the curve of a machine. Curves and schedules by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest

from benchgate.model.client import ClientProfile, ClientStep
from benchgate.model.deployment import Arm
from benchgate.model.request import ModelRequest, text_request
from benchgate.plan.client_demand import (
    StageDemand,
    chosen_workers,
    client_overload,
    client_uncertainty,
    default_workers,
    max_workers,
    stage_demands,
    workers_needed,
    workers_to_start,
)
from benchgate.plan.model import PlannedBlock, PlannedRequest, PlannedStage
from benchgate.plan.preview import preview
from benchgate.plan.schedule import Plan, make_plan
from benchgate.suite.load import Capacity
from tests.fakes.measured import SuiteText

NS = 1_000_000_000


def step(streams: int | None, tokens_per_s: float, rps: float, *, bound: bool = False) -> ClientStep:
    return ClientStep(
        streams=streams,
        offered_rps=rps,
        offered_tokens_per_s=tokens_per_s,
        delivered_ratio=1.0,
        cpu_us_per_token=10.0,
        read_delay_p99_s=0.001,
        ttft_error_p99_s=0.0,
        client_bound=("too busy",) if bound else (),
    )


# One worker: 20,000 tokens/s in 400 streams, 1,000 requests/s; beyond each it was the bottleneck.
CURVE = ClientProfile(
    "2026-11-20T12:00:00.000Z",
    {"cpus": 2},
    (step(50, 2_500, 25), step(400, 20_000, 200), step(700, 35_000, 350, bound=True),
     step(None, 500, 500), step(None, 1_000, 1_000), step(None, 2_000, 2_000, bound=True)),
)  # fmt: skip
NOTHING_SOUND = replace(CURVE, steps=(step(50, 2_500, 25, bound=True), step(None, 500, 500, bound=True)))


def open_stage(offsets_s: list[float], tokens: int) -> PlannedStage:
    requests = tuple(
        PlannedRequest(index=i, offset_ns=int(at * NS), ask=text_request("chat", "a", tokens), seed=i)
        for i, at in enumerate(offsets_s)
    )
    return PlannedStage.of("r", None, 1.0, requests)


def demand(stage: PlannedStage) -> StageDemand:
    blocks = (PlannedBlock(0, (Arm.BASELINE, Arm.CANDIDATE), (stage,)),)
    (found,) = stage_demands(Plan(seed=0, warmup=(), blocks=blocks, tasks=(), shadow=()))
    return found


def closed(streams: int) -> StageDemand:
    return StageDemand("c", streams, streams, None, None, None, None)


def opened(rps: float, tokens: int) -> StageDemand:
    return StageDemand("r", 100, None, rps, rps, rps * tokens, 10.0)


def test_a_curve_says_the_largest_load_that_was_sound_of_each_kind() -> None:
    assert (CURVE.streams, CURVE.tokens_per_s, CURVE.requests_per_s) == (400, 20_000, 1_000)
    nothing = NOTHING_SOUND
    assert (nothing.streams, nothing.tokens_per_s, nothing.requests_per_s) == (None, None, None)


def test_a_step_during_which_the_practice_server_was_late_is_not_sound() -> None:
    late = replace(step(700, 35_000, 350), server_late="the practice server was 9 ms late itself")
    assert replace(CURVE, steps=(*CURVE.steps[:2], late)).streams == 400


def test_the_rates_of_an_open_loop_are_those_of_its_schedule() -> None:
    # 10 requests in the first second, then one a second up to 20 s.
    found = demand(open_stage([0.1 * i for i in range(10)] + [float(s) for s in range(1, 21)], tokens=8))
    assert found.duration_s == 20.0
    assert found.offered_rps == 1.0  # as stated
    assert found.peak_rps == (10 + 4) / 5  # in the busiest 5 s: 0 to 5 s, the end not included
    assert found.peak_tokens_per_s == 8 * (10 + 4) / 5


def test_a_stage_shorter_than_a_second_is_no_rate_per_instant() -> None:
    found = demand(open_stage([0.0, 0.01, 0.02], tokens=100))
    assert found.peak_rps == 3.0
    assert found.peak_tokens_per_s == 300.0


def test_the_rates_of_a_closed_loop_are_the_servers_to_say() -> None:
    suite = SuiteText([{"metric": "error_rate", "max": "1%"}]).suite()
    (found,) = stage_demands(make_plan(suite))
    assert (found.concurrency, found.peak_rps, found.peak_tokens_per_s, found.duration_s) == (4, None, None, None)


@pytest.mark.parametrize(
    ("asked", "workers"),
    [
        (closed(1), 1),
        (closed(400), 1),
        (closed(401), 2),
        (opened(10, 128), 1),
        (opened(100, 180), 1),  # 0.9 of a worker by tokens and 0.1 by requests
        (opened(100, 190), 2),
        (opened(500, 20), 1),  # half and half
        (opened(1000, 40), 3),
    ],
)
def test_tokens_and_requests_take_their_parts_of_a_worker(asked: StageDemand, workers: int) -> None:
    assert workers_needed(asked, CURVE) == workers
    assert client_overload(asked, CURVE, workers) is None
    if workers > 1:
        assert client_overload(asked, CURVE, workers - 1) is not None


def test_a_refusal_says_what_is_asked_what_can_be_had_and_what_to_do() -> None:
    message = client_overload(opened(900, 128), CURVE, 1)
    assert message is not None
    assert "stage r asks for up to 115,200 tokens/s in 900 requests/s" in message
    assert "1 load generator process on this machine can deliver 20,000 tokens/s, or 1,000 requests/s" in message
    assert "(measured 2026-11-20)" in message
    for way_out in ("benchgate doctor --client", "`load.workers`", "`--cluster`"):
        assert way_out in message
    streams = client_overload(closed(1000), CURVE, 2)
    assert streams is not None
    assert "1,000 streams in flight" in streams
    assert "2 load generator processes on this machine can deliver 800 streams, beyond which" in streams


def test_a_curve_without_a_sound_step_carries_nothing() -> None:
    assert workers_needed(closed(1), NOTHING_SOUND) is None
    assert client_overload(closed(1), NOTHING_SOUND, 4) is not None
    assert client_overload(opened(1, 1), NOTHING_SOUND, 4) is not None


LATE = replace(step(700, 35_000, 350), server_late="the practice server was 9 ms late itself")
LATE_WITH_RATES = replace(CURVE, steps=(*CURVE.steps[:2], LATE, *CURVE.steps[3:]))


@pytest.mark.parametrize(
    "curve",
    [
        replace(CURVE, steps=(*CURVE.steps[:2], *CURVE.steps[3:])),
        LATE_WITH_RATES,
        replace(CURVE, steps=(replace(LATE, client_bound=("too busy",)), *CURVE.steps[3:])),
    ],
    ids=["all steps were sound", "the practice server was late", "nothing was sound, and the server late"],
)
def test_a_load_beyond_a_limit_that_was_not_found_is_unknown_and_not_refused(curve: ClientProfile) -> None:
    for asked in (closed(1000), opened(900, 128)):
        assert client_overload(asked, curve, 1) is None
        unknown = client_uncertainty(asked, curve, 1)
        assert unknown is not None
        assert "is not known" in unknown
    assert client_overload(opened(1001, 1), curve, 1) is not None  # of requests the limit was found
    assert client_uncertainty(opened(1001, 1), curve, 1) is None


def test_what_takes_more_cores_than_the_processes_have_is_refused_though_no_limit_was_found() -> None:
    """10 µs a token were measured, and 2.5 would do for no more than 400,000 of them on a core."""
    never_late = replace(CURVE, steps=(*CURVE.steps[:2], *CURVE.steps[3:5]))
    for workers in (1, 2):
        assert client_overload(opened(400 * workers, 1_000), never_late, workers) is None
        refused = client_overload(opened(401 * workers, 1_000), never_late, workers) or ""
        assert "requests/s: a token took 10.0 µs of processor time at least (measured 2026-11-20)" in refused
        assert f"the work of {4.01 * workers:.2f} cores, and {workers} load generator process" in refused
        assert f"on this machine can have {workers}; lower the load" in refused
        assert client_uncertainty(opened(401 * workers, 1_000), never_late, workers) is None
    costly = replace(never_late, steps=(never_late.steps[0], replace(never_late.steps[2], cpu_us_per_token=500.0)))
    assert client_overload(opened(8_000, 1), costly, 1) is None
    answers = client_overload(opened(8_100, 1), costly, 1)
    assert answers is not None
    assert "an answer of one token took 500 µs" in answers
    unmeasured = tuple(replace(one, cpu_us_per_token=None) for one in never_late.steps)
    assert client_overload(opened(10_000, 1_000), replace(never_late, steps=unmeasured), 1) is None


def test_what_comes_in_one_piece_costs_as_a_token_does() -> None:
    requests = tuple(
        PlannedRequest(index, int(index * NS / 100), ModelRequest("chat", {}, 2_000, stream=False), index)
        for index in range(300)
    )
    asked = demand(PlannedStage.of("documents", None, 100.0, requests))
    assert asked.peak_tokens_per_s == asked.peak_rps
    assert workers_needed(asked, CURVE) == 1


def test_a_search_that_may_come_to_more_than_can_be_delivered_is_told_and_not_refused() -> None:
    sweeping = SuiteText([{"metric": "error_rate", "max": "1%"}]).suite()
    asked = Capacity.model_validate({"over": "rate", "from": "1/s", "to": "5000/s"})
    assert sweeping.load is not None
    suite = sweeping.model_copy(update={"load": sweeping.load.model_copy(update={"capacity": asked})})
    found = preview(suite, make_plan(suite), CURVE, cpus=2)
    assert found.problems == ()
    (unknown,) = [line for line in found.unknowns if "capacity" in line]
    assert unknown.startswith("stage capacity asks for up to 50,000 tokens/s in 5,000 requests/s")
    assert "beyond which the client was the bottleneck" in unknown


def test_an_unknown_says_what_was_tried() -> None:
    assert client_uncertainty(closed(400), LATE_WITH_RATES, 1) is None
    unknown = client_uncertainty(closed(1000), LATE_WITH_RATES, 2)
    assert unknown is not None
    assert "2 load generator processes on this machine can deliver is not known beyond 800 streams" in unknown
    suite = SuiteText([{"metric": "error_rate", "max": "1%"}]).suite()
    (said,) = preview(suite, make_plan(suite), replace(CURVE, steps=(step(1, 50, 1),)), cpus=2).unknowns
    assert said.startswith("stage c4 asks for 4 streams in flight")


def test_a_preview_counts_both_arms_all_blocks_and_the_warm_up() -> None:
    suite = SuiteText([{"metric": "error_rate", "max": "1%"}], blocks=3, requests=20).suite()
    found = preview(suite, make_plan(suite), None, cpus=2)
    assert found.warmup_requests == 16
    assert found.load_requests == 2 * 3 * 20 + 16
    assert found.ramp_requests == 2 * 3 * 4 * 4  # arms, blocks, slots, requests for each of them
    assert found.input_tokens == (found.load_requests + found.ramp_requests) * 8
    assert found.output_tokens == (found.load_requests + found.ramp_requests) * 10
    assert (found.load_s, found.load_s_known) == (0.0, False)
    assert (found.client_measured_at, found.problems) == (None, ())
    (stage,) = found.stages
    assert stage.workers is None


def test_a_preview_holds_every_stage_against_the_curve() -> None:
    suite = SuiteText([{"metric": "error_rate", "max": "1%"}]).suite()
    assert preview(suite, make_plan(suite), CURVE, cpus=2).problems == ()
    (problem,) = preview(suite, make_plan(suite), NOTHING_SOUND, cpus=64).problems
    assert problem.startswith("stage c4 asks for 4 streams in flight")


def test_as_many_processes_are_started_as_the_most_demanding_stage_needs_or_the_suite_says() -> None:
    suite = SuiteText([{"metric": "error_rate", "max": "1%"}]).suite()
    assert suite.load is not None
    plan = make_plan(suite)
    one_stream_each = replace(CURVE, steps=(step(1, 50, 1), step(None, 1_000, 1_000)))
    assert chosen_workers(suite, plan, CURVE, cpus=16) == 1
    assert chosen_workers(suite, plan, one_stream_each, cpus=16) == 4
    assert chosen_workers(suite, plan, one_stream_each, cpus=4) == 2  # half the cores; `run` refuses such a plan before
    stated = suite.model_copy(update={"load": suite.load.model_copy(update={"workers": 3})})
    assert chosen_workers(stated, plan, one_stream_each, cpus=4) == 3
    assert max_workers(stated, cpus=4) == 3
    assert (chosen_workers(stated, plan, one_stream_each, cpus=2), max_workers(stated, cpus=2)) == (3, 2)


@pytest.mark.parametrize(
    ("asked", "curve", "cpus", "workers"),
    [
        (opened(200, 120), None, 8, 2),  # 0.96 of a usual worker by tokens and 0.2 by requests
        (opened(100, 200), None, 8, 1),
        (opened(400, 120), CURVE, 16, 3),
        (opened(10_000, 100_000), None, 8, 4),  # half the cores and no more
        (closed(1000), None, 64, 4),
        (closed(1000), None, 2, 1),
        (closed(1000), None, 1, 1),
        (closed(1), NOTHING_SOUND, 8, 4),  # as many as may be: no number of them is known to do
    ],
)
def test_workers_follow_from_the_load_and_leave_half_the_cores(
    asked: StageDemand, curve: ClientProfile | None, cpus: int, workers: int
) -> None:
    assert workers_to_start([closed(1), asked], curve, default_workers(cpus)) == workers


def test_more_processes_than_cores_carry_no_more_than_the_cores() -> None:
    suite = SuiteText([{"metric": "error_rate", "max": "1%"}]).suite()
    assert suite.load is not None
    stated = suite.model_copy(update={"load": suite.load.model_copy(update={"workers": 64})})
    one_stream_each = replace(CURVE, steps=(step(1, 50, 1), step(2, 100, 2, bound=True)))
    (problem,) = preview(stated, make_plan(stated), one_stream_each, cpus=2).problems
    assert "2 load generator processes on this machine can deliver 2 streams" in problem
