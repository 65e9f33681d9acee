"""What a suite may say of a practice server that benchgate starts, and of what is done to one during a stage."""

from __future__ import annotations

import json

import pytest

from benchgate.errors import SuiteError
from benchgate.suite.loader import parse_suite
from benchgate.suite.schema import Suite

STAGE = "{stage: s, concurrency: 2, requests: 9}"


def suite(sim: str = "{}", more: str = "", stage: str = STAGE, top: str = "") -> Suite:
    text = f"""
suite: s
{top}
deployments:
  a:
    sim: {sim}
    {more}
baseline: a
candidate: a
load:
  workload: {{input: 8, output: 8}}
  sweep: [{stage}]
gate:
  checks: [{{metric: error_rate, max: 50%}}]
"""
    return parse_suite(text, "s.yaml")


def problem(**parts: str) -> str:
    with pytest.raises(SuiteError) as raised:
        suite(**parts)
    (found,) = raised.value.problems
    assert found.line is not None
    return f"{found.path}: {found.message}"


def test_costs_are_kept_in_base_units_and_what_is_not_said_is_not_written() -> None:
    read = suite("{prefill: 0.2ms, decode: 8ms, ready_after: 0s, jitter: 10%, replicas: 3, affinity: session}")
    assert read.to_stored()["deployments"]["a"]["sim"] == {
        "prefill_s": pytest.approx(0.0002),
        "decode_s": pytest.approx(0.008),
        "jitter_ratio": 0.1,
        "ready_after_s": 0.0,
        "adapters": [],
        "context_tokens": 131_072,
        "faults": [],
        "replicas": 3,
        "affinity": "session",
    }
    assert read.deployments["a"].engine == "vllm"


def test_suite_with_a_practice_server_and_actions_comes_back_from_the_store_as_it_was() -> None:
    stage = "{stage: s, rate: 9/s, for: 9s, actions: [{at: 2s, kill: 1}, {at: 0s, run: [echo, hi]}]}"
    read = suite("{replicas: 2, output_tokens: [4, 9], faults: ['no-done@5%'], adapters: [x]}", stage=stage)
    again = Suite.from_stored(json.loads(json.dumps(read.to_stored())))
    assert again == read
    assert again.load is not None
    shown = [action.shown for action in again.load.sweep[0].actions or ()]
    assert shown == ["kill replica 1 at 2 s", "run echo hi at 0 s"]


def test_suite_without_either_says_nothing_of_them() -> None:
    text = """
suite: s
deployments: {a: {url: "http://a:1", model: m}, b: {url: "http://b:1", model: m}}
baseline: a
candidate: b
load: {workload: {input: 8, output: 8}, sweep: [{stage: s, concurrency: 2, requests: 9}]}
gate: {checks: [{metric: error_rate, max: 50%}]}
"""
    stored = parse_suite(text, "s.yaml").to_stored()
    assert "sim" not in stored["deployments"]["a"]
    assert "actions" not in stored["load"]["sweep"][0]


@pytest.mark.parametrize(
    ("parts", "said"),
    [
        ({"sim": "{prefil: 1ms}"}, "deployments.a.sim.prefil: unknown key; did you mean `prefill`?"),
        ({"sim": "{prefill: 1}"}, "deployments.a.sim.prefill: 1 is not a duration"),
        ({"sim": "{ttft: 1ms, batch: 4}"}, "deployments.a.sim: `ttft` paces each stream by itself, and `batch` is of"),
        ({"sim": "{affinity: session}"}, "deployments.a.sim: `affinity` chooses among several replicas"),
        ({"sim": "{prefill: 0ms}"}, "deployments.a.sim: an engine whose steps take no time has no schedule"),
        ({"sim": "{output_tokens: [9, 4]}"}, "deployments.a.sim.output_tokens: [9, 4] are no bounds"),
        ({"sim": "{adapters: [sim]}"}, "deployments.a.sim: each of `adapters` needs a name of its own"),
        ({"more": "embedded: {}"}, "deployments.a: a deployment needs exactly one of `url`, `embedded` and `sim`"),
        ({"more": "model: m"}, "deployments.a.model: means nothing for a practice server; remove it"),
        ({"more": "engine: tgi"}, "deployments.a.engine: the practice server speaks as vllm, not tgi; remove it"),
        ({"stage": STAGE[:-1] + ", actions: [{at: 1s}]}"}, "load.sweep[0].actions[0]: an action is exactly one of"),
        ({"stage": STAGE[:-1] + ", actions: [{kill: 1}]}"}, "load.sweep[0].actions[0].at: is required and missing"),
        (
            {"stage": STAGE[:-1] + ", actions: [{at: 1s, kill: 0}]}"},
            'load.sweep[0].actions[0].kill: the baseline "a" has no replicas; give a `sim` some `replicas`, or `run`',
        ),
        (
            {"sim": "{replicas: 2}", "stage": STAGE[:-1] + ", actions: [{at: 1s, start: 2}]}"},
            'load.sweep[0].actions[0].start: the baseline "a" has the replicas 0 to 1; name one of them',
        ),
        ({"sim": "{context: 15}"}, "load.workload.input: asks for up to 8 tokens in and 8 out"),
    ],
)
def test_each_mistake_is_the_only_problem_and_is_told_in_its_place(parts: dict[str, str], said: str) -> None:
    assert problem(**parts).startswith(said)


def test_practice_server_can_be_started_over_and_over() -> None:
    started = suite(top="start: {times: 3}").start
    assert started is not None and started.times == 3


def test_goodput_of_a_class_with_an_slo_of_its_own_needs_no_other() -> None:
    text = """
suite: s
deployments: {a: {sim: {}}}
baseline: a
candidate: a
load:
  workload: {input: 8, output: 8}
  sweep: [{stage: s, classes: {p: {rate: 9/s, requests: 99, slo: {ttft: 1s}}, q: {rate: 9/s, requests: 99}}}]
gate: {checks: [{metric: goodput, stage: s, class: %s}]}
"""
    parse_suite(text % "p", "s.yaml")
    with pytest.raises(SuiteError, match="which this suite has not"):
        parse_suite(text % "q", "s.yaml")
