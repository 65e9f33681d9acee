"""The language of checks: classes, one stage over another, and what only a drill asks for."""

from __future__ import annotations

import pytest

from benchgate.errors import SuiteError
from benchgate.model.deployment import Arm
from benchgate.plan.schedule import make_plan
from benchgate.suite.loader import parse_suite
from benchgate.suite.schema import Suite, measured_arms

SUITE = """\
suite: drill
deployments:
  one: {embedded: {weights: q8_0}}
  far: {url: "http://two:8000", model: m, metrics: "off"}
baseline: one
candidate: one
slo: {ttft: 500ms}
load:
  workload: {input: 64 tokens, output: 32 tokens}
  sweep:
    - {stage: in, concurrency: 1, requests: 40, each: {input: [64, 128]}}
    - stage: mix
      classes:
        chat: {rate: 4/s, requests: 40, slo: {ttft: 200ms}}
        batch: {concurrency: 8, background: true}
gate:
  checks:
    - {metric: error_rate, max: 1%}
    - CHECK
"""


def suite_with(check: str) -> Suite:
    return parse_suite(SUITE.replace("CHECK", check), "s.yaml")


def problems_with(check: str) -> list[str]:
    with pytest.raises(SuiteError) as caught:
        suite_with(check)
    return [str(problem).removeprefix("s.yaml:") for problem in caught.value.problems]


@pytest.mark.parametrize(
    "check",
    [
        "{metric: ttft, stage: in-128, over: in-64, min: 1.5x}",
        "{metric: tpot, stage: mix, class: chat, over: in-64, max: 1.2x}",
        "{metric: tpot, stage: mix/chat, over: in-64, max: 1.2x}",
        "{metric: request_throughput, stage: in-128, over: in-64, max: 0.9x}",
        "{metric: error_rate, stage: in-128, over: in-64, max: 5 points}",
        "{metric: error_rate, of: timeout, stage: in-128, max: 1%}",
        "{metric: rejected, stage: in-64, min: 10%}",
        "{metric: rejected, stage: in-64, max: 10%}",
        "{metric: goodput, stage: mix, class: chat}",
        "{metric: goodput, class: chat}",
        "{metric: ttft, stage: mix/batch, max: 1s}",
        "{metric: error_rate, class: batch, max: 50%}",
        "{metric: preemptions, stage: mix, max: 0}",
        "{metric: kv_usage_after, stage: mix, max: 5%}",
        "{metric: prefix_hit_rate, stage: in-64, min: 40%}",
        "{metric: queue_depth, max: 8}",
        "{metric: ttfot, statistic: p90, stage: in-64, max: 1s}",
    ],
)
def test_a_drill_may_say(check: str) -> None:
    suite = suite_with(check)
    assert Suite.from_stored(suite.to_stored()) == suite
    assert measured_arms(suite) == (Arm.CANDIDATE,)


@pytest.mark.parametrize(
    ("check", "says"),
    [
        ("{metric: ttft, stage: in-128, over: in-46, min: 2x}",
         '19:43: gate.checks[1].over: no stage of the sweep is named "in-46"; did you mean `in-64`?'),
        ("{metric: ttft, stage: in-128, over: mix, min: 2x}",
         'gate.checks[1].over: no stage of the sweep is named "mix"'),
        ("{metric: ttft, stage: in-128, over: in-128, min: 2x}", '"in-128" would be held against itself'),
        ("{metric: ttft, over: in-64, min: 2x}", "`over: in-64` needs the `stage` that is held against it"),
        ("{metric: ttft, stage: in-128, over: in-64, margin: 5%}", "`over` holds the candidate against itself"),
        ("{metric: ttft, stage: in-128, over: in-64, min: 100ms}", '"100ms" is not a multiple; write it like "2x"'),
        ("{metric: error_rate, stage: in-128, over: in-64, max: 5%}", '"5%" is not a difference in points'),
        ("{metric: preemptions, over: in-64, max: 5}", "over: means nothing for preemptions; it belongs to ttft"),
        ("{metric: tpot, stage: mix, class: chatt, max: 1s}",
         'gate.checks[1].class: stage "mix" has no class "chatt"; did you mean `chat`?'),
        ("{metric: tpot, stage: in-64, class: chat, max: 1s}", 'has no class "chat"; it has no `classes` at all'),
        ("{metric: tpot, stage: mix/chat, class: chat, max: 1s}", "`class` is given twice"),
        ("{metric: ttft, of: timeout, max: 1s}", "of: means nothing for ttft; it belongs to error_rate"),
        ("{metric: error_rate, of: timeouts, stage: in-64, max: 1%}", 'found "timeouts"; did you mean `timeout`?'),
        ("{metric: validity, stage: in-64, min: 90%}", "validity is undefined for answers without `schema`"),
        ("{metric: preemptions, max: 1.5}", "expected"),
        ("{metric: preemptions, class: chat, max: 1}", "class: means nothing for preemptions"),
        ("{metric: preemptions, stage: mix/chat, max: 1}", 'no stage of the sweep is named "mix/chat"'),
        ("{metric: queue_depth, max: few}", '"few" is not a number of things; write a whole number, like 4'),
        ("{metric: kv_usage_after, min: 5%}", "kv_usage_after has no lower bound; use `max`"),
        ("{metric: preemptions, margin: 5%}", "means nothing for preemptions, which is held to `max`"),
        ("{metric: knee, min: 4}", "a knee is found over all closed-loop stages, two of which have as many"),
        ("{metric: cold_start, max: 10s}", "cold_start is measured by `start`, which this suite has not"),
        ("{metric: prefixhit_rate, min: 5%}", "did you mean `prefix_hit_rate`?"),
        ("{metric: error_rate, stage: mix/chat, max: 2%}", "is already judged by gate.checks[0]"),
    ],
)  # fmt: skip
def test_a_check_that_cannot_be_meant_is_refused(check: str, says: str) -> None:
    (problem,) = problems_with(check)
    assert says in problem


def test_the_background_of_a_stage_that_is_looked_at_is_not_left_to_fail() -> None:
    text = SUITE.replace("{metric: error_rate, max: 1%}", "{metric: goodput}").replace("    - CHECK\n", "")
    with pytest.raises(SuiteError) as caught:
        parse_suite(text, "s.yaml")
    (problem,) = caught.value.problems
    assert 'requests of stage "mix/batch" could fail unjudged' in str(problem)
    assert "add {metric: error_rate, stage: mix/batch, max: 1%}" in str(problem)
    with_its_own = text.replace("background: true", "background: true, slo: {ttft: 2s}")
    assert parse_suite(with_its_own, "s.yaml").gate.checks[0].metric == "goodput"


def test_goodput_needs_an_slo_of_what_it_judges_and_of_nothing_else() -> None:
    of_suite, of_chat = "slo: {ttft: 500ms}\n", ", slo: {ttft: 200ms}"
    check = "{metric: goodput, stage: mix, class: batch}"
    only_chat = SUITE.replace(of_suite, "").replace("CHECK", check)
    with pytest.raises(SuiteError) as caught:
        parse_suite(only_chat, "s.yaml")
    assert [str(p).endswith('which this suite has not, nor class "mix/batch"; add it')
            for p in caught.value.problems] == [True]  # fmt: skip
    only_batch = only_chat.replace(of_chat, "").replace("background: true", "background: true, slo: {ttft: 2s}")
    assert parse_suite(only_batch, "s.yaml").slo is None


def test_one_kind_of_failure_does_not_stand_for_all_of_them() -> None:
    text = SUITE.replace("{metric: error_rate, max: 1%}", "{metric: error_rate, of: timeout, max: 1%}")
    with pytest.raises(SuiteError, match="could fail unjudged"):
        parse_suite(text.replace("CHECK", "{metric: ttft, max: 1s}"), "s.yaml")


def test_what_the_server_says_is_not_judged_where_nobody_asks_it() -> None:
    text = SUITE.replace("candidate: one", "candidate: far").replace("CHECK", "{metric: preemptions, max: 0}")
    with pytest.raises(SuiteError, match='"far" has `metrics: off`'):
        parse_suite(text, "s.yaml")


def test_only_what_is_started_here_can_be_started_over_and_over() -> None:
    text = SUITE.replace("load:", "start: {times: 3}\nload:", 1).replace("CHECK", "{metric: cold_start, max: 10s}")
    assert parse_suite(text, "s.yaml").start is not None
    with pytest.raises(SuiteError, match='the candidate "far" is not started by benchgate'):
        parse_suite(text.replace("candidate: one", "candidate: far"), "s.yaml")


@pytest.mark.parametrize(
    ("found", "written"),
    [
        ("CHECK", "{metric: ttft, margin: 5%}"),
        ("candidate: one", "candidate: far"),
        ("gate:", "shadow: {prompts: p.jsonl}\ngate:"),
    ],
)
def test_both_arms_are_measured_where_anything_is_compared(found: str, written: str) -> None:
    text = SUITE.replace(found, written, 1).replace("CHECK", "{metric: ttft, max: 1s}")
    suite = parse_suite(text, "s.yaml")
    assert measured_arms(suite) == (Arm.BASELINE, Arm.CANDIDATE)
    assert {block.order for block in make_plan(suite).blocks} == {tuple(Arm), tuple(reversed(Arm))}


def test_a_plan_of_one_deployment_asks_it_once() -> None:
    plan = make_plan(suite_with("{metric: ttft, max: 1s}"))
    assert {block.order for block in plan.blocks} == {(Arm.CANDIDATE,)}


def test_a_policy_without_the_new_words_keeps_its_bytes() -> None:
    stored = suite_with("{metric: ttft, max: 1s}").to_stored()
    assert set(stored["gate"]["checks"][1]) == {
        "metric", "statistic", "stage", "task", "margin", "max", "min", "required", "block_when",
    }  # fmt: skip
    assert "start" not in stored
