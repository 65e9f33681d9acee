"""A quick look, and a run of one part of its suite: a verdict that can block, and never promotes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from benchgate.errors import UsageError
from benchgate.gate.judge import judge
from benchgate.model.run import ONLY_PART, QUICK_LOOK, Evidence
from benchgate.model.verdict import Outcome
from benchgate.release.eligibility import measured_forms, purpose_obstacles
from benchgate.suite.loader import parse_suite
from benchgate.suite.rules.suite import quick_look
from benchgate.suite.schema import Suite
from tests.fakes.measured import HEALTHY, Effect, SuiteText, measured

SUITE = """
suite: chat
deployments:
  a: {url: "http://127.0.0.1:1", engine: vllm, model: m}
  b: {url: "http://127.0.0.1:2", engine: vllm, model: m}
baseline: a
candidate: b
slo: {ttft: 200ms}
load:
  workload: {input: 100, output: 50}
  sweep:
    - {stage: c8, concurrency: 8, requests: 400}
    - {stage: r4, rate: 4/s, for: 2m}
    - {stage: up, rate: 1/s, ramp_to: 9/s, for: 1m}
  looks: [5, 10, 20]
  limit: {time: 2h}
  capacity: {over: rate, from: 1/s, to: 50/s}
quality: {tasks: [gsm8k, {task: mmlu, limit: 20}]}
gate:
  checks:
    - {metric: error_rate, max: 1%}
    - {metric: ttft, margin: 10%}
    - {metric: capacity, margin: 10%}
    - {metric: accuracy, margin: 2 points}
"""


def test_a_quick_look_has_fewer_blocks_requests_and_items_and_no_search() -> None:
    quick = quick_look(parse_suite(SUITE, "chat.yaml"))
    assert quick.load is not None and quick.quality is not None
    assert (quick.load.blocks, quick.load.looks, quick.load.limit, quick.load.capacity) == (4, (), None, None)
    closed, level, ramp = quick.load.sweep
    assert (closed.requests, level.requests, ramp.requests) == (32, 15, 300)
    assert level.duration_s == 15 / 4
    assert (quick.quality.limit, [task.limit for task in quick.quality.tasks]) == (50, [None, 20])
    assert [check.metric for check in quick.gate.checks] == ["error_rate", "ttft", "accuracy"]
    assert Suite.from_stored(quick.to_stored()) == quick


def test_a_suite_of_starts_alone_has_no_quick_look() -> None:
    suite = parse_suite(SUITE, "chat.yaml")
    starts = suite.model_copy(update={"load": None, "quality": None})
    with pytest.raises(UsageError, match="nothing that could be shortened; leave --quick out"):
        quick_look(starts)


def quick(effect: Effect, part: str = QUICK_LOOK) -> tuple[Suite, Evidence]:
    suite = SuiteText([{"metric": "ttft", "margin": "10%"}], requests=20, blocks=4).suite()
    evidence = measured(suite, effect, items=20, prompts=20)
    environment = {**evidence.run.environment, ONLY_PART: part}
    return suite, replace(evidence, run=replace(evidence.run, environment=environment))


def test_a_quick_look_that_would_pass_is_inconclusive_and_one_that_blocks_blocks() -> None:
    found = judge(*quick(HEALTHY))
    assert (found.outcome, found.next_step) == (Outcome.INCONCLUSIVE, "run the whole suite, without --quick")
    assert found.reason.startswith("No required check failed in this quick look.")
    assert {check.outcome for check in found.checks} == {Outcome.PASS}
    assert judge(*quick(Effect(slowdown=2.0))).outcome is Outcome.BLOCK


def test_a_run_of_one_part_that_would_pass_is_inconclusive_and_one_that_blocks_blocks() -> None:
    found = judge(*quick(HEALTHY, "load"))
    assert (found.outcome, found.next_step) == (Outcome.INCONCLUSIVE, "run the whole suite, without --only")
    assert "Its other parts were not measured" in found.reason
    assert {check.outcome for check in found.checks} == {Outcome.PASS}
    assert judge(*quick(Effect(slowdown=2.0), "load")).outcome is Outcome.BLOCK


def test_a_quick_look_is_never_promoted_and_known_as_a_form_of_its_suite() -> None:
    suite, evidence = quick(HEALTHY)
    (obstacle,) = purpose_obstacles(evidence.run)
    assert "it is a quick look (`--quick`)" in obstacle.reason
    assert evidence.run.scope == "quick look"
    short = quick_look(suite)
    forms = measured_forms(suite, Path(), None, {})
    assert [form.is_only_part for form in forms if form.suite == short] == [True]
