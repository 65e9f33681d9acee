"""What the ramp of a stage is made of: fresh prompts, the same every time, and no part of the plan."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from benchgate.model.arrivals import ArrivalProcess
from benchgate.plan.arrivals import ramp_offsets_ns
from benchgate.plan.model import Material, PlannedClass, RampSource, RecordedRequest
from benchgate.plan.requests import POOL_UNITS
from benchgate.plan.schedule import Plan, look_stage, make_plan, warmup_round
from benchgate.stats.capacity_search import PlannedLook
from tests.core.test_workload_plan import planned, suite

S = 1_000_000_000
RATE = {"concurrency": None, "rate": "10/s"}
WORDS = {"input": 8, "output": 4}


def ramp_of(group: PlannedClass) -> RampSource:
    assert group.ramp is not None
    return group.ramp


def only(plan: Plan, block: int = 0) -> PlannedClass:
    return plan.blocks[block].stages[0].only


def prompts(rows: Any) -> list[str]:
    return [row.ask.prompt for row in rows]


def contents(rows: Any) -> list[str]:
    return [str(row.ask.content) for row in rows]


def test_pool_of_a_closed_loop_has_fresh_prompts_for_every_slot() -> None:
    plan = planned(WORDS)
    pools = [prompts(ramp_of(only(plan, block)).pool()) for block in (0, 1)]
    assert [len(pool) for pool in pools] == [2 * POOL_UNITS] * 2 == [ramp_of(only(plan)).size] * 2
    measured = [prompt for block in (0, 1) for prompt in prompts(only(plan, block).requests)]
    everything = [*pools[0], *pools[1], *measured, *prompts(plan.warmup[0].requests)]
    assert len(set(everything)) == len(everything)


def test_ramp_is_the_same_every_time_and_no_part_of_the_plan() -> None:
    plan, again = planned(WORDS), planned(WORDS)
    pool = ramp_of(only(plan)).pool()
    assert pool == ramp_of(only(plan)).pool() == ramp_of(only(again)).pool()
    assert (plan.sha256, only(plan)) == (again.sha256, only(again))
    other = planned(WORDS, {**RATE, "requests": 40}).sha256
    assert other == planned(WORDS, {**RATE, "requests": 40, "ramp": 2}).sha256


def test_warm_up_has_no_ramp() -> None:
    assert [group.ramp for stage in planned(WORDS).warmup for group in stage.classes] == [None]


@pytest.mark.parametrize(
    "stage",
    [
        {**RATE, "ramp_to": "20/s", "for": "10s", "requests": None},
        {**RATE, "bursts": {"factors": [2], "every": "4s", "for": "1s"}, "for": "10s", "requests": None},
        {"concurrency": None, "steps": [{"rate": "4/s", "for": "5s"}], "requests": None},
        {**RATE, "ramp": 0},
        {"actions": [{"at": "1s", "run": ["true"]}]},
    ],
    ids=["ramp_to", "bursts", "steps", "none", "actions"],
)
def test_stage_whose_edges_are_the_question_has_no_ramp(stage: dict[str, Any]) -> None:
    assert only(planned(WORDS, stage)).ramp is None


def test_class_in_the_background_has_no_ramp_of_its_own() -> None:
    classes = {"chat": {"rate": "5/s", "requests": 8, "ramp": 2}, "batch": {"concurrency": 2, "background": True}}
    stage = {"concurrency": None, "requests": None, "classes": classes}
    chat, batch = planned(WORDS, stage).blocks[0].stages[0].classes
    assert batch.ramp is None
    assert ramp_of(chat).service_times == 2


def test_conversations_of_a_ramp_are_whole() -> None:
    talk = {**WORDS, "session": {"turns": 3, "think": "1s"}}
    pool = ramp_of(only(planned(talk))).pool()
    assert [row.turn.turn for row in pool if row.turn is not None] == [0, 1, 2] * 8
    assert ramp_of(only(planned(talk))).size == len(pool) == 24


def test_clients_leave_in_the_ramp_as_often_as_among_the_measured() -> None:
    leaving = {**WORDS, "leave": {"share": "25%", "after": "2 tokens"}}
    pool = ramp_of(only(planned(leaving))).pool()
    assert sum(row.leave is not None for row in pool) == len(pool) // 4


def recorded(count: int) -> Material:
    rows = [RecordedRequest(({"role": "user", "content": f"row {line}"},), line=line) for line in range(1, count + 1)]
    return Material(prompts={"file": rows})


def of_file(count: int, requests: int) -> list[tuple[set[str], list[str]]]:
    """Of each block the measured prompts and those of its ramp."""
    plan = planned({"prompts": "file", "output": 4}, {"requests": requests}, material=recorded(count))
    groups = [only(plan, block) for block in (0, 1)]
    return [(set(contents(g.requests)), contents(ramp_of(g).pool())) for g in groups]


def test_ramp_sends_recorded_prompts_that_nobody_measures_where_there_are_enough() -> None:
    (first, lead), (second, other) = of_file(61, 20)  # 5 to warm up, 20 in each of two blocks, 16 are left
    assert not (set(lead) | set(other)) & (first | second)
    assert len(set(lead)) == len(set(other)) == 8
    assert not set(lead) & set(other)


def test_ramp_of_a_short_file_sends_what_this_block_does_not() -> None:
    for measured, ramp in of_file(30, 20):
        assert len(set(ramp)) == 8
        assert not set(ramp) & measured


def test_ramp_of_a_file_that_one_block_sends_as_a_whole_sends_it_too() -> None:
    ((measured, ramp), _) = of_file(20, 20)
    assert set(ramp) <= measured
    assert len(ramp) == 8


@pytest.mark.parametrize(("rows", "all_apart"), [(600, True), (165, False)])
def test_looks_of_a_search_measure_rows_of_a_file_that_nothing_else_has_sent(rows: int, all_apart: bool) -> None:
    material, search = recorded(rows), {"over": "concurrency", "from": 1, "to": 64}
    asked = suite({"prompts": "file", "output": 4}, {"requests": 20}, capacity=search)
    load = asked.load
    assert load is not None and load.capacity is not None
    plan = make_plan(asked, material=material)
    blocks = [contents(only(plan, block).requests) for block in (0, 1)]
    sent = [
        look_stage(load, load.capacity, PlannedLook(4.0, number, 40), [asked.seed, number], material, used=40 * number)
        for number in range(3)
    ]
    measured, ramps = (
        [contents(one.only.requests) for one in sent],
        [contents(ramp_of(one.only).pool()) for one in sent],
    )
    everything = [prompt for part in (*blocks, *measured) for prompt in part]
    assert len(set(everything)) == len(everything) == 160
    assert not any(set(ramp) & set(look) for ramp, look in zip(ramps, measured, strict=True))
    beside = {prompt for block in (0, 1) for prompt in contents(ramp_of(only(plan, block)).pool())}
    again = warmup_round(load, plan, load.sweep[0].name, 1, {"": 20}).only.requests
    aside = {
        *beside,
        *contents(again),
        *contents(plan.warmup[0].only.requests),
        *(one for ramp in ramps for one in ramp),
    }
    assert (not aside & {one for look in measured for one in look}) is all_apart


@pytest.mark.parametrize("process", ["constant", "poisson", "gamma"])
def test_ramp_of_an_open_loop_continues_its_process(process: Any) -> None:
    gaps, counts = [], []
    for seed in range(200):
        at_ns = ramp_offsets_ns(ArrivalProcess(process, 2.0), 50.0, 1.0, 0.4, 3 * S, [seed])
        lead, tail = [ns for ns in at_ns if ns <= S], [ns for ns in at_ns if ns > S]
        assert list(at_ns) == sorted(at_ns)
        assert (lead[-1], lead[0] >= 0) == (S, True)  # the measured schedule begins one gap after an arrival
        assert all(4 * S <= ns <= 4.4 * S for ns in tail)
        gaps += np.diff(lead).tolist()
        counts.append(len(tail))
    if process == "constant":
        assert set(gaps) == {S // 50}
        assert set(counts) == {20}
    assert np.mean(counts) == pytest.approx(20, rel=0.15)


def test_arrivals_before_and_after_have_prompts_of_their_own() -> None:
    group = only(planned(WORDS, {**RATE, "ramp": 3, "arrival": "constant"}))
    last_ns = max(row.offset_ns or 0 for row in group.requests)
    rows = ramp_of(group).arrivals(0.6, 0.2, last_ns, 0.0)
    assert [row.index for row in rows] == list(range(len(rows)))
    assert [row.offset_ns for row in rows][:7] == [k * S // 10 for k in range(7)]
    # Three service times are 0.6 s, and after the last measured one it goes on for five of them at least.
    assert max(row.offset_ns or 0 for row in rows) == 6 * S // 10 + last_ns + S
    assert len(set(prompts(rows)) | set(prompts(group.requests))) == len(rows) + 40


def test_looks_of_a_capacity_search_have_a_ramp() -> None:
    asked = suite(WORDS, capacity={"over": "concurrency", "from": 1, "to": 64})
    load = asked.load
    assert load is not None and load.capacity is not None
    looks = [look_stage(load, load.capacity, PlannedLook(8.0, number, 40), [7, number]) for number in (0, 1)]
    pools = [prompts(ramp_of(look.only).pool()) for look in looks]
    assert [len(pool) for pool in pools] == [32, 32]
    everything = [*pools[0], *pools[1], *(prompt for look in looks for prompt in prompts(look.requests))]
    assert len(set(everything)) == len(everything)
