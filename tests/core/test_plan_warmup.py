"""How many requests a warm-up begins with, and that its later rounds ask what nothing else asks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from benchgate.errors import EvidenceError
from benchgate.model.arrivals import TracedRequest
from benchgate.plan.model import Material, PlannedStage, RecordedRequest
from benchgate.plan.schedule import Plan, make_plan, warmup_round
from benchgate.suite.load import Load
from benchgate.suite.schema import Suite

TALK = {"input": 4, "output": 4, "session": {"turns": 5}}


def suite(sweep: list[dict[str, Any]], workload: Mapping[str, Any] | None = None, **load: Any) -> Suite:
    return Suite.model_validate(
        {
            "suite": "s",
            "seed": 7,
            "deployments": {"a": {"url": "http://a:1", "model": "m", "engine": "vllm"}},
            "baseline": "a",
            "candidate": "a",
            "load": {"workload": workload or {"input": 9, "output": 4}, "sweep": sweep, "blocks": 2, **load},
            "gate": {"checks": [{"metric": "error_rate", "max": "1%"}]},
        }
    )


def declared(sweep: list[dict[str, Any]], **more: Any) -> tuple[Load, Plan]:
    found = suite(sweep, **{key: value for key, value in more.items() if key not in ("traces", "material")})
    assert found.load is not None
    return found.load, make_plan(found, **{k: v for k, v in more.items() if k in ("traces", "material")})


def prompts(*stages: PlannedStage) -> list[str]:
    return [str(request.ask.prompt) for stage in stages for request in stage.requests]


def measured(plan: Plan) -> list[PlannedStage]:
    return [stage for block in plan.blocks for stage in block.stages]


@pytest.mark.parametrize(
    ("stage", "workload", "requests"),
    [
        ({"concurrency": 1}, None, 8),
        ({"concurrency": 4}, None, 8),
        ({"concurrency": 5}, None, 10),
        ({"concurrency": 64}, None, 128),
        ({"rate": "50/s"}, None, 8),
        ({"concurrency": 64}, TALK, 320),  # a conversation for every slot
        ({"concurrency": 64}, {**TALK, "session": {"turns": 1}}, 128),
        ({"concurrency": 10}, {**TALK, "session": {"turns": {"uniform": [2, 5]}}}, 35),
        ({"concurrency": 10}, {**TALK, "session": {"turns": {"normal": {"mean": 4, "sd": 1}}}}, 40),
        ({"concurrency": 10}, {**TALK, "session": {"turns": {"lognormal": {"median": 2, "sigma": 0.1}}}}, 21),
    ],
)
def test_the_first_round_has_eight_requests_at_least_and_two_for_every_slot(
    stage: dict[str, Any], workload: Mapping[str, Any] | None, requests: int
) -> None:
    _, plan = declared([{"stage": "s", "requests": 20, **stage}], workload=workload)
    assert [len(one.requests) for one in plan.warmup] == [requests]


def test_classes_of_a_stage_begin_with_as_many_as_their_own_slots_need() -> None:
    classes = {
        "people": {"rate": "2/s", "requests": 9},
        "batch": {"concurrency": 20, "requests": 40},
        "long": {"concurrency": 30, "background": True},
    }
    _, plan = declared([{"stage": "s", "classes": classes}])
    assert {one.name: len(one.requests) for one in plan.warmup[0].classes} == {"people": 8, "batch": 40, "long": 60}


SWEEP = [{"stage": "c8", "concurrency": 8, "requests": 20}, {"stage": "r4", "rate": "4/s", "requests": 20}]


def test_a_later_round_has_prompts_of_its_own_and_as_many_as_it_is_told() -> None:
    load, plan = declared(SWEEP)
    rounds = [warmup_round(load, plan, name, number, {"": 30}) for name in ("c8", "r4") for number in (1, 2, 3)]
    assert [(one.name, len(one.requests)) for one in rounds] == [("c8", 30)] * 3 + [("r4", 30)] * 3
    sent = prompts(*rounds)
    assert len(set(sent)) == 180
    assert set(sent).isdisjoint(prompts(*plan.warmup, *measured(plan)))
    assert rounds[0] == warmup_round(load, plan, "c8", 1, {"": 30})  # and the same whenever it is made
    assert rounds[0].only.concurrency == 8
    assert rounds[3].only.rate_rps == 4
    offsets = [request.offset_ns for request in rounds[3].requests]
    assert all(offset is not None for offset in offsets)


def test_a_shared_beginning_is_the_same_in_every_round() -> None:
    shared = {"input": 20, "output": 4, "prefix": {"tokens": 10}}
    load, plan = declared(SWEEP[:1], workload=shared)
    rounds = [warmup_round(load, plan, "c8", number, {"": 8}) for number in (1, 2)]
    found = prompts(*plan.warmup, *measured(plan), *rounds)
    assert len({tuple(prompt.split()[:10]) for prompt in found}) == 1
    assert len(set(found)) == len(found)


def test_a_trace_warms_up_with_its_first_rows_and_each_round_with_other_texts() -> None:
    rows = tuple(TracedRequest(n * 10**8, 20 + n, 5, hash_ids=(1, 2)) for n in range(30))
    sweep = [{"stage": "t", "trace": "day.csv", "requests": 20, "block": 8}]
    load, plan = declared(sweep, traces={"t": rows})
    first, later = plan.warmup[0], [warmup_round(load, plan, "t", number, {"": 12}) for number in (1, 2)]
    assert [len(prompt.split()) for prompt in prompts(later[0])] == [20 + n for n in range(12)]
    assert [request.offset_ns for request in later[0].requests] == [n * 10**8 for n in range(12)]
    beginnings = [
        {" ".join(prompt.split()[:8]) for prompt in prompts(one)} for one in (first, *later, measured(plan)[0])
    ]
    assert [len(found) for found in beginnings] == [1] * 4  # what its rows share, they share
    assert len(set.union(*beginnings)) == 4
    assert len(warmup_round(load, plan, "t", 3, {"": 50}).requests) == 30  # it has no more rows


def chats(count: int) -> Material:
    return Material(
        prompts={
            "p.jsonl": [RecordedRequest(({"role": "user", "content": f"q{n}"},), line=n + 1) for n in range(count)]
        }
    )


@pytest.mark.parametrize(("rows", "fresh"), [(16 + 40 + 64, True), (16 + 40 + 31, False)])
def test_recorded_prompts_that_are_measured_are_in_no_later_round(rows: int, fresh: bool) -> None:
    load, plan = declared(SWEEP[:1], workload={"prompts": "p.jsonl", "output": 4}, material=chats(rows))
    rounds = [warmup_round(load, plan, "c8", number, {"": 32}) for number in (1, 2)]
    sent = prompts(*rounds)
    assert set(sent).isdisjoint(prompts(*measured(plan)))
    assert set(sent).isdisjoint(prompts(*plan.warmup)) is fresh  # where it has too few rows, those of the first round
    assert len(set(sent)) == (64 if fresh else 16)


def test_the_rounds_are_no_part_of_what_the_plan_is() -> None:
    assert declared(SWEEP)[1].sha256 == declared(SWEEP)[1].sha256
    rows = tuple(TracedRequest(n * 10**8, 20, 5) for n in range(40))
    sweep = [{"stage": "t", "trace": "day.csv", "requests": 20}]
    longer = declared(sweep, traces={"t": (*rows, TracedRequest(10**10, 20, 5))})[1]
    assert declared(sweep, traces={"t": rows})[1] == longer


@pytest.mark.parametrize("number", [0, 8, 10_000])
def test_a_number_is_stored_under_the_key_of_stored_runs_and_read_from_it(number: int) -> None:
    found = suite(SWEEP, warmup=number)
    stored = found.to_stored()
    assert stored["load"]["warmup_requests"] == number
    assert "warmup" not in stored["load"]
    assert Suite.from_stored(stored) == found
    assert Suite.from_stored(stored).to_stored() == stored


def test_auto_is_stored_and_read_back() -> None:
    stored = suite(SWEEP).to_stored()
    assert stored["load"]["warmup"] == "auto"
    assert "warmup_requests" not in stored["load"]
    assert Suite.from_stored(stored) == suite(SWEEP)
    with pytest.raises(EvidenceError):
        Suite.from_stored({**stored, "load": {**stored["load"], "warmup": "some"}})


@pytest.mark.parametrize("wrong", ["Auto", "8", -1, 10_001, 2.0, True, None, [8]])
def test_any_other_warm_up_is_refused(wrong: object) -> None:
    with pytest.raises(ValueError, match='write "auto", or a whole number from 0 to 10,000'):
        suite(SWEEP, warmup=wrong)


def test_the_key_of_stored_runs_is_none_of_a_suite() -> None:
    with pytest.raises(ValueError, match="warmup_requests"):
        suite(SWEEP, warmup_requests=8)
