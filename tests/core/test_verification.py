"""Eval items among the requests of a stage: drawn by the seed, each once, judged by accuracy at that stage alone."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import pytest

from benchgate.errors import SuiteError
from benchgate.gate.checks.accuracy import certain_regression
from benchgate.gate.judge import judge
from benchgate.model.deployment import Arm
from benchgate.model.run import Evidence
from benchgate.model.verdict import Outcome, Verdict
from benchgate.plan.items import PlannedTask
from benchgate.plan.model import PlannedRequest
from benchgate.plan.schedule import Plan, make_plan
from benchgate.plan.verification import verifiable_tasks, with_prompts
from benchgate.suite.loader import parse_suite
from benchgate.suite.schema import Suite
from tests.fakes.evals import Answers, observation, right_but
from tests.fakes.measured import measured

CONFIG: dict[str, object] = {"output_type": "generate_until", "generation_kwargs": {"max_gen_toks": 12}}
ADD = PlannedTask("add", CONFIG, tuple({"id": f"add-{n}", "prompt": "1+1"} for n in range(40)))
SORT = PlannedTask("sort", CONFIG, tuple({"id": f"sort-{n}", "prompt": "b a"} for n in range(12)))
CHOSEN = replace(ADD, name="chosen", output_type="multiple_choice")
STAGES = (
    {"stage": "c4", "concurrency": 4, "requests": 40, "verify": "10%"},
    {"stage": "r8", "rate": "8/s", "requests": 30, "verify": "20%"},
    {"stage": "c8", "concurrency": 8, "requests": 40},
)
LOAD = {"workload": {"input": 4, "output": 8}, "blocks": 4, "warmup": 0, "sweep": list(STAGES)}
CHECKS = [
    {"metric": "accuracy", "margin": "5 points"},
    {"metric": "accuracy", "stage": "c4", "margin": "5 points"},
    {"metric": "accuracy", "stage": "r8", "margin": "5 points"},
]


def suite(**changes: Any) -> Suite:
    sections: dict[str, Any] = {
        "suite": "verified",
        "seed": 7,
        "deployments": {"a": {"url": "http://a", "model": "m"}, "b": {"url": "http://b", "model": "m"}},
        "baseline": "a",
        "candidate": "b",
        "load": LOAD,
        "quality": {"tasks": ["add.yaml", "sort.yaml"]},
        "gate": {"checks": CHECKS},
    }
    return Suite.model_validate(sections | changes)


def plan(seed: int = 7, tasks: tuple[PlannedTask, ...] = (ADD, SORT)) -> Plan:
    return make_plan(suite(seed=seed), list(tasks), ())


def requests_of(found: Plan, stage: str) -> list[list[PlannedRequest]]:
    return [list(one.requests) for block in found.blocks for one in block.stages if one.name == stage]


def test_each_item_is_sent_once_in_a_stage_and_as_many_in_every_block() -> None:
    for stage, per_block in (("c4", 4), ("r8", 6)):
        blocks = requests_of(plan(), stage)
        items = [request.item for requests in blocks for request in requests if request.item is not None]
        assert len(items) == len(set(items)) == 4 * per_block
        assert [sum(r.item is not None for r in requests) for requests in blocks] == [per_block] * 4
        counts = Counter(item.task for item in items)
        assert counts["add"] >= counts["sort"] >= min(12, 2 * per_block)  # as many of each task, while it has any left
        assert all(len({r.index for r in requests}) == len(requests) for requests in blocks)
    assert not any(r.item for requests in requests_of(plan(), "c8") for r in requests)
    assert plan().verified == {"add@c4": 8, "sort@c4": 8, "add@r8": 12, "sort@r8": 12}


def test_items_and_places_follow_from_the_seed() -> None:
    def places(found: Plan) -> list[tuple[int, str]]:
        requests = [r for requests in requests_of(found, "c4") for r in requests]
        return [(at, r.item.item_id) for at, r in enumerate(requests) if r.item is not None]

    assert places(plan()) == places(plan())
    assert places(plan(seed=8)) != places(plan())


def test_the_other_requests_and_their_instants_stay() -> None:
    sweep = [{key: value for key, value in stage.items() if key != "verify"} for stage in STAGES]
    plain = make_plan(suite(load={**LOAD, "sweep": sweep}, gate={"checks": CHECKS[:1]}), [ADD, SORT], ())
    for stage in ("c4", "r8"):
        found = [[r for r in requests if r.item is None] for requests in requests_of(plan(), stage)]
        assert found == requests_of(plain, stage)
    for requests in requests_of(plan(), "r8"):
        offsets = [r.offset_ns for r in requests if r.offset_ns is not None]
        assert len(offsets) == len(requests) and offsets == sorted(offsets)


def test_only_generated_answers_that_are_right_or_wrong_can_be_sent_among_a_load() -> None:
    by_degrees = replace(SORT, scale="continuous")
    repeated = replace(SORT, config={**CONFIG, "repeats": 4})
    assert verifiable_tasks([ADD, CHOSEN, by_degrees, repeated]) == (ADD,)


def test_a_stage_gets_the_prompts_that_lm_eval_makes() -> None:
    (stage, *_) = [one for block in plan().blocks for one in block.stages if one.name == "c4"]
    items = [request.item for request in stage.requests if request.item is not None]
    asks = {item: replace(stage.requests[0].ask, output_tokens=100 + at) for at, item in enumerate(items)}
    filled = with_prompts(stage, asks)
    assert [r.ask for r in filled.requests if r.item is not None] == [asks[item] for item in items]
    assert [r for r in filled.requests if r.item is None] == [r for r in stage.requests if r.item is None]


TEXT = """
suite: verified
deployments: {a: {url: "http://a", model: m}, b: {url: "http://b", model: m}}
baseline: a
candidate: b
load:
  workload: {input: 4 tokens, output: 8 tokens}
  sweep:
    - {stage: c4, concurrency: 4, requests: 40, verify: 10%}
    - {stage: c8, concurrency: 8, requests: 40}
quality: {tasks: [add.yaml]}
gate:
  checks:
    - {metric: accuracy, margin: 5 points}
    - {metric: accuracy, stage: c4, margin: 5 points}
    - {metric: error_rate, max: 1%}
"""


@pytest.mark.parametrize(
    ("old", "new", "problem"),
    [
        ("quality: {tasks: [add.yaml]}\n", "", "which this suite has not"),
        ("    - {metric: accuracy, stage: c4, margin: 5 points}\n", "", "nothing judges its answers"),
        ("accuracy, stage: c4", "accuracy, stage: c8", "give it `verify"),
        ("verify: 10%", "verify: 60%", "at most 50%"),
        ("output: 8 tokens}", "output: 8 tokens, session: {turns: 3}}", "among single requests"),
        ("[add.yaml]", "[{task: add.yaml, name: add@c4}]", "unknown key"),
    ],
)
def test_what_cannot_be_verified_is_refused(old: str, new: str, problem: str) -> None:
    assert old in TEXT
    parse_suite(TEXT, "s.yaml")
    with pytest.raises(SuiteError) as error:
        parse_suite(TEXT.replace(old, new), "s.yaml")
    assert problem in str(error.value)


KNOWN = {"output_type": "generate_until", "scale": "binary", "repeats": 1}


def evidence(under_load: dict[str, tuple[Answers, Answers]]) -> Evidence:
    alone = {name: RIGHT for name in ("add", "sort")}
    observations = [
        observation(task, arm, answers)
        for task, both in (alone | under_load).items()
        for arm, answers in zip(Arm, both, strict=True)
    ]
    return replace(measured(suite(), items=0), quality=tuple(observations))


def verdict(under_load: dict[str, tuple[Answers, Answers]]) -> Verdict:
    return judge(suite(), evidence(under_load))


RIGHT = (Answers(right_but(100), harness=KNOWN), Answers(right_but(100), harness=KNOWN))
ALL = {f"{task}@{stage}": RIGHT for task in ("add", "sort") for stage in ("c4", "r8")}


def outcomes(found: Verdict) -> dict[str, Outcome]:
    return {check.id: check.outcome for check in found.checks if check.metric == "accuracy"}


def test_answers_that_break_under_load_alone_block_by_the_accuracy_of_that_stage() -> None:
    assert set(outcomes(verdict(ALL)).values()) == {Outcome.PASS}
    broken = {f"{task}@c4": (RIGHT[0], Answers(right_but(100, *range(25)), harness=KNOWN)) for task in ("add", "sort")}
    found = verdict(ALL | broken)
    assert found.outcome is Outcome.BLOCK
    assert outcomes(found) == {
        "accuracy": Outcome.PASS, "accuracy@c4": Outcome.BLOCK, "accuracy@r8": Outcome.PASS,
    }  # fmt: skip


@pytest.mark.parametrize("missing", ["add@c4", "sort@r8"])
def test_items_that_were_not_sent_or_lost_promote_nobody(missing: str) -> None:
    for kept in (
        {name: both for name, both in ALL.items() if name != missing},
        ALL | {missing: (RIGHT[0], Answers([None] * 100, harness=KNOWN))},
        ALL | {missing: (RIGHT[0], Answers(right_but(100)[:60], expected_n=100, harness=KNOWN))},
    ):
        assert verdict(kept).outcome in (Outcome.INVALID, Outcome.BLOCK)


def test_every_task_that_was_sent_among_a_stage_needs_a_check_of_it() -> None:
    of_add, of_sort = ({**CHECKS[1], "task": task} for task in ("add", "sort"))
    broken = (RIGHT[0], Answers(right_but(100, *range(25)), harness=KNOWN))
    verdict = judge(suite(gate={"checks": [CHECKS[0], of_add, CHECKS[2]]}), evidence(ALL | {"sort@c4": broken}))
    assert verdict.outcome is Outcome.INVALID
    assert any("no check judges the answers to sort@c4" in guard.reason for guard in verdict.guards)
    both = suite(gate={"checks": [CHECKS[0], of_add, of_sort, CHECKS[2]]})
    for name, outcome in (("add@c4", Outcome.BLOCK), ("sort@c4", Outcome.PASS)):
        found = outcomes(judge(both, evidence(ALL | {name: broken})))
        assert found["accuracy@add@c4"] is outcome
        assert judge(both, evidence(ALL | {name: broken})).outcome is Outcome.BLOCK


@pytest.mark.parametrize(("lost", "stops"), [(11, False), (12, True)])
def test_evals_stop_early_only_for_what_blocks_beside_the_checks_of_items_sent_among_a_load(
    lost: int, stops: bool
) -> None:
    each = suite(gate={"checks": [{**check, "task": "each"} for check in CHECKS]})
    early = {**KNOWN, "stopped_early": {"items": 30}}
    theirs, broken = (
        Answers(right_but(30, *wrong), expected_n=100, harness=early) for wrong in ((), range(30 - lost, 30))
    )
    found = evidence({"add": (theirs, broken), "sort": (theirs, theirs)} | ALL)
    items = {found.quality[at].task: (found.quality[at].items, found.quality[at + 1].items) for at in (0, 2)}
    assert certain_regression(each, items) == ("accuracy@add" if stops else None)
    assert (outcomes(judge(each, found))["accuracy@add"] is Outcome.BLOCK) is stops


def test_stage_that_sent_no_eval_item_promotes_nobody_where_no_task_can_be_sent() -> None:
    chosen = Answers(right_but(100), harness={**KNOWN, "output_type": "multiple_choice"})
    found = verdict({"add": (chosen, chosen), "sort": (chosen, chosen)})
    measured_all = next(guard for guard in found.guards if guard.id == "all-measured")
    assert found.outcome is Outcome.INVALID
    assert measured_all.tripped and measured_all.reason == "no eval items were sent among the requests of stage c4"
