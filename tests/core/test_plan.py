"""The plan follows from the suite, its seed and the data alone, and is fair to both arms."""

import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from benchgate.model.arrivals import TracedRequest
from benchgate.model.deployment import Arm
from benchgate.plan.items import PlannedTask, ShadowPrompt
from benchgate.plan.model import PlannedRequest
from benchgate.plan.schedule import Plan, make_plan, measurement_sha256
from benchgate.plan.vocabulary import VOCABULARIES, random_text
from benchgate.suite.schema import Suite

TASK = PlannedTask(
    "add", {"output_type": "generate_until"}, tuple({"id": f"add-{n}", "prompt": "1+1"} for n in range(5))
)
PROMPTS = tuple(ShadowPrompt(f"p{n}", f"text {n}") for n in range(5))


def suite(**changes: Any) -> Suite:
    """A small suite with all three measurements; `changes` replace whole sections."""
    sections: dict[str, Any] = {
        "suite": "small",
        "seed": 7,
        "deployments": {"a": {"embedded": {}}, "b": {"embedded": {"weights": "q8_0"}}},
        "baseline": "a",
        "candidate": "b",
        "load": load(),
        "quality": {"tasks": ["add.yaml"], "limit": 3},
        "shadow": {"prompts": "p.jsonl", "limit": 2},
        "gate": {"checks": [{"metric": "ttft", "margin": "5%"}]},
    }
    return Suite.model_validate(sections | changes)


def load(**changes: Any) -> dict[str, Any]:
    return {
        "workload": {"input": 4, "output": 8},
        "blocks": 4,
        "warmup": 2,
        "sweep": [
            {"stage": "c2", "concurrency": 2, "requests": 3},
            {"stage": "r8", "rate": "8/s", "requests": 6},
        ],
    } | changes


def words(request: PlannedRequest) -> int:
    return len((request.ask.prompt or "").split())


def plan(**changes: Any) -> Plan:
    return make_plan(suite(**changes), [TASK], PROMPTS)


def test_same_suite_and_seed_give_the_same_plan_and_another_seed_another() -> None:
    assert plan().sha256 == plan().sha256
    assert plan(seed=8).sha256 != plan().sha256


def test_plan_of_a_known_suite_has_not_changed() -> None:
    # Whoever changes this on purpose makes every stored run incomparable with new ones: say so in the changelog.
    assert plan().sha256 == "c8a2bd91aafc0ee5d3db3cde2ec4ec620cc0404994544a33ac35b24192fd433c"


def test_blocks_alternate_so_that_each_arm_is_first_equally_often() -> None:
    a, b = Arm.BASELINE, Arm.CANDIDATE
    assert [block.order for block in plan().blocks] == [(a, b), (b, a), (a, b), (b, a)]


def test_both_arms_of_a_block_share_one_list_of_requests() -> None:
    block = plan().blocks[0]
    assert set(block.order) == set(Arm)
    assert [stage.name for stage in block.stages] == ["c2", "r8"]
    assert [len(stage.requests) for stage in block.stages] == [3, 6]


def test_no_two_requests_of_a_run_have_the_same_prompt() -> None:
    measured = [stage for block in plan().blocks for stage in block.stages]
    prompts = [request.ask.prompt for stage in [*plan().warmup, *measured] for request in stage.requests]
    assert len(prompts) == 2 * 2 + 4 * (3 + 6)
    assert len(set(prompts)) == len(prompts)


def test_blocks_have_other_instants_and_seeds() -> None:
    first, second = (block.stages[1].requests for block in plan().blocks[:2])
    assert {request.offset_ns for request in first}.isdisjoint(request.offset_ns for request in second)
    assert {request.seed for request in first}.isdisjoint(request.seed for request in second)


def test_closed_loop_has_no_instants_and_an_open_one_has_ascending_ones() -> None:
    closed, opened = plan().blocks[0].stages
    assert (closed.only.concurrency, closed.only.rate_rps) == (2, None)
    assert {request.offset_ns for request in closed.requests} == {None}
    assert (opened.only.concurrency, opened.only.rate_rps) == (None, 8.0)
    offsets = [request.offset_ns for request in opened.requests if request.offset_ns is not None]
    assert len(offsets) == 6
    assert min(offsets) > 0
    assert offsets == sorted(set(offsets))


def test_adding_a_stage_leaves_the_requests_of_the_earlier_ones_alone() -> None:
    longer = load()
    longer["sweep"] = [*longer["sweep"], {"stage": "c4", "concurrency": 4, "requests": 2}]
    for ours, theirs in zip(plan().blocks, plan(load=longer).blocks, strict=True):
        assert ours.stages == theirs.stages[:2]


TRACE = tuple(TracedRequest(n * n * 100_000_000, 10 + n, None if n % 2 else 20 + n) for n in range(8))


def replayed(requests: int, **stage: Any) -> Plan:
    """The plan of four blocks of one stage that replays TRACE."""
    sweep = [{"stage": "day", "trace": "day.csv", "requests": requests, **stage}]
    return make_plan(suite(load=load(sweep=sweep)), [TASK], PROMPTS, {"day": TRACE})


def test_trace_is_replayed_at_its_instants_divided_by_the_speed() -> None:
    (stage,) = replayed(4, speed=2).blocks[0].stages
    assert [request.offset_ns for request in stage.requests] == [0, 50_000_000, 200_000_000, 450_000_000]
    assert (stage.only.concurrency, stage.only.rate_rps) == (None, 4.0)


def test_replayed_requests_have_the_lengths_of_their_rows_or_the_workloads() -> None:
    (stage,) = replayed(4).blocks[0].stages
    assert [words(request) for request in stage.requests] == [10, 11, 12, 13]
    assert [request.ask.output_tokens for request in stage.requests] == [20, 8, 22, 8]


def test_blocks_replay_a_stretch_each_where_the_trace_is_long_enough() -> None:
    stages = [block.stages[0] for block in replayed(2).blocks]
    assert [words(stage.requests[0]) for stage in stages] == [10, 12, 14, 16]
    assert [[request.offset_ns for request in stage.requests] for stage in stages] == [
        [0, 100_000_000], [0, 500_000_000], [0, 900_000_000], [0, 1_300_000_000],
    ]  # fmt: skip


def test_blocks_replay_the_same_rows_with_other_prompts_where_it_is_not() -> None:
    stages = [block.stages[0] for block in replayed(3).blocks]
    assert {tuple(request.offset_ns for request in stage.requests) for stage in stages} == {
        (0, 100_000_000, 400_000_000)
    }
    assert len({request.ask.prompt for stage in stages for request in stage.requests}) == 4 * 3


def test_plan_is_another_when_the_trace_is() -> None:
    sweep = [{"stage": "day", "trace": "day.csv", "requests": 3}]
    asked = suite(load=load(sweep=sweep))
    moved = (*TRACE[:2], TracedRequest(399_000_000, 12, 22), *TRACE[3:])
    ours, theirs = (make_plan(asked, [TASK], PROMPTS, {"day": trace}) for trace in (TRACE, moved))
    assert ours.sha256 != theirs.sha256
    assert measurement_sha256(asked, ours) != measurement_sha256(asked, theirs)


def test_trace_too_short_for_a_block_is_never_filled_up() -> None:
    with pytest.raises(ValueError, match="the trace has 8 rows and a block sends 9"):
        replayed(9)


@pytest.mark.parametrize(
    ("stage", "requests", "mean_rps"),
    [
        ({"rate": "8/s", "for": "3s"}, 24, 8),
        ({"rate": "2/s", "ramp_to": "10/s", "for": "5s", "arrival": "constant"}, 30, 6),
        ({"steps": [{"rate": "2/s", "for": "2s"}, {"rate": "8/s", "for": "2s"}], "arrival": "gamma:2"}, 20, 5),
        ({"rate": "4/s", "bursts": {"factors": [5], "every": "5s", "for": "1s"}, "for": "5s"}, 36, 7.2),
    ],
)
def test_every_block_of_a_course_has_as_many_requests_as_the_stage_says(
    stage: dict[str, Any], requests: int, mean_rps: float
) -> None:
    made = plan(load=load(sweep=[{"stage": "s", **stage}]))
    stages = [block.stages[0] for block in made.blocks]
    assert [len(planned.requests) for planned in stages] == [requests] * 4
    assert [planned.only.rate_rps for planned in stages] == [pytest.approx(mean_rps)] * 4
    instants = {tuple(request.offset_ns for request in planned.requests) for planned in stages}
    assert len(instants) == (1 if stage.get("arrival") == "constant" else 4)
    assert [len(planned.requests) for planned in made.warmup] == [2]


def test_peak_of_a_stage_is_the_most_requests_due_within_a_second() -> None:
    constant = {"stage": "s", "rate": "2/s", "arrival": "constant"}
    (level,) = plan(load=load(sweep=[{**constant, "requests": 9}])).blocks[0].stages
    assert level.only.peak_rps == 2
    bursts = {"bursts": {"factors": [5], "every": "10s", "for": "2s"}, "for": "10s"}
    (spiky,) = plan(load=load(sweep=[{**constant, **bursts}])).blocks[0].stages
    assert spiky.only.peak_rps == 10
    closed = plan().blocks[0].stages[0]
    assert closed.only.peak_rps is None


def test_warmup_is_as_long_as_said_and_may_be_none() -> None:
    assert [len(stage.requests) for stage in plan().warmup] == [2, 2]
    assert plan(load=load(warmup=0)).warmup == ()


def test_tasks_and_prompts_are_cut_to_the_limit_from_the_front() -> None:
    assert [row["id"] for row in plan().tasks[0].rows] == ["add-0", "add-1", "add-2"]
    assert [prompt.id for prompt in plan().shadow] == ["p0", "p1"]


def test_sections_that_are_not_there_plan_nothing() -> None:
    empty = plan(load=None, quality=None, shadow=None)
    assert (empty.warmup, empty.blocks, empty.tasks, empty.shadow) == ((), (), (), ())


def test_all_that_is_sent_with_a_shadow_prompt_is_part_of_what_the_plan_is() -> None:
    bare = ShadowPrompt("p0", "text")
    others = [
        replace(bare, fields={"stop": ["x"]}),
        replace(bare, fields={"stop": ["y"]}),
        replace(bare, endpoint="completions"),
        replace(bare, max_tokens=7),
    ]
    plans = {make_plan(suite(), [TASK], [prompt]).sha256 for prompt in (bare, *others)}
    assert len(plans) == 5
    assert make_plan(suite(), [TASK], [replace(bare, stratum="chat/0-127")]).sha256 in plans


def test_stored_plan_knows_shadow_prompts_by_digest_only() -> None:
    assert b"text 0" not in plan().canonical
    changed = make_plan(suite(), [TASK], [ShadowPrompt("p0", "another text"), *PROMPTS[1:]])
    assert changed.sha256 != make_plan(suite(), [TASK], PROMPTS).sha256


def test_canonical_plan_is_json_that_holds_every_request() -> None:
    read = json.loads(plan().canonical)
    assert read["blocks"][1]["order"] == ["candidate", "baseline"]
    assert read["blocks"][0]["stages"][0]["requests"][2]["index"] == 2


@pytest.mark.parametrize(
    "changes",
    [
        {"deployments": {"a": {"embedded": {}}, "b": {"url": "http://h", "model": "m"}}},
        {"candidate": "a"},
        {"gate": {"checks": [{"metric": "tpot", "margin": "10%"}]}},
        {"slo": {"ttft": "1s"}},
        {"suite": "renamed"},
    ],
)
def test_measurement_is_the_same_whoever_is_asked_and_whatever_is_allowed(changes: dict[str, Any]) -> None:
    assert _measurement(**changes) == _measurement()


@pytest.mark.parametrize(
    "changes",
    [
        {"seed": 8},
        {"load": load(workload={"input": 5, "output": 8})},
        {"load": load(workload={"input": 4, "output": 8, "endpoint": "completions"})},
        {"load": load(blocks=6)},
        {"limits": {"total": "1s"}},
        {"quality": {"tasks": ["add.yaml"], "limit": 4}},
        {"quality": {"tasks": ["add.yaml"], "limit": 3, "max_tokens": 9}},
        {"shadow": None},
    ],
)
def test_measurement_is_another_when_another_thing_is_asked(changes: dict[str, Any]) -> None:
    assert _measurement(**changes) != _measurement()


def test_measurement_is_another_when_the_data_files_changed() -> None:
    changed = replace(TASK, rows=({"id": "add-0", "prompt": "2+2"}, *TASK.rows[1:]))
    assert measurement_sha256(suite(), make_plan(suite(), [changed], PROMPTS)) != _measurement()


def _measurement(**changes: Any) -> str:
    return measurement_sha256(suite(**changes), plan(**changes))


def test_prompt_has_as_many_words_or_letters_as_tokens() -> None:
    generator = np.random.default_rng(1)
    assert len(random_text(VOCABULARIES["words"], 12, generator).split(" ")) == 12
    letters = random_text(VOCABULARIES["letters"], 12, generator)
    assert len(letters) == 12
    assert letters.isascii()
    assert letters.islower()
