"""Mistakes of several parts of a suite: what is told beside what, and what a load must have."""

from benchgate.suite.loader import parse_suite
from tests.core.test_suite_problems import CHECKS, LOAD, SUITE, problems_of


def test_goodput_without_load_and_without_slo_is_told_both() -> None:
    text = SUITE.replace(LOAD, "").replace("slo: {ttft: 500ms, target: 95%}\n", "")
    goodput = [line for line in problems_of(text) if "gate.checks[1].metric: goodput" in line]
    assert len(goodput) == 2


SEARCH = "  capacity: {over: rate, from: 1/s, to: 64/s}\n"

STAGES = LOAD[LOAD.index("  sweep:") :]


def test_capacity_is_not_searched_with_clients_that_leave() -> None:
    leaving = SUITE.replace("output: 32 tokens", "output: 32 tokens, leave: {share: 10%, after: 5 tokens}").replace(
        STAGES, SEARCH + STAGES
    )
    told = problems_of(leaving)
    assert len(told) == 1
    assert "load.capacity: a request whose client leaves is neither good nor bad" in told[0]


def test_load_that_only_searches_for_a_capacity_needs_no_sweep() -> None:
    checks = SUITE[SUITE.index("    - {metric: accuracy") :]
    alone = SUITE.replace(STAGES, SEARCH).replace(CHECKS, "    - {metric: capacity, min: 2/s}\n")
    assert parse_suite(alone, "s.yaml").load is not None
    told = problems_of(SUITE.replace(STAGES, SEARCH).replace(CHECKS, checks))
    assert len(told) == 1
    assert told[0].endswith("error_rate is measured in stages, and this load only has a `capacity`; add a `sweep`")


def test_load_with_neither_a_sweep_nor_a_capacity_sends_nothing() -> None:
    assert any(
        line.startswith("12:3 load: a load without a `sweep` sends nothing")
        for line in problems_of(SUITE.replace(STAGES, ""))
    )


def test_load_checks_on_medians_alone_are_told_what_to_add() -> None:
    speed = "    - {metric: ttft, margin: 5%}\n    - {metric: output_throughput, stage: c4, margin: 5%}\n"
    assert problems_of(SUITE.replace(CHECKS, speed)) == [
        '24:7 gate.checks[0]: requests of stage "c4" and "r8" could fail unjudged: no required check bounds '
        "`error_rate` or `goodput` there; add {metric: error_rate, max: 1%}"
    ]
    told = problems_of(SUITE.replace("    - {metric: error_rate, max: 1%}\n", ""))
    assert told[0].endswith("add {metric: error_rate, stage: c4, max: 1%}")


def test_load_checks_that_only_advise_need_no_other() -> None:
    advice = "    - {metric: ttft, margin: 5%, required: false}\n    - {metric: accuracy, margin: 2 points}\n"
    assert len(parse_suite(SUITE.replace(CHECKS, advice), "s.yaml").gate.checks) == 2


def test_time_per_token_of_one_token_answers_is_refused() -> None:
    text = SUITE.replace("output: 32", "output: 1").replace("{metric: goodput, stage: r8}", "{metric: tpot, max: 1s}")
    assert problems_of(text) == [
        "25:16 gate.checks[1].metric: tpot is undefined for answers of 1 token, "
        'as stage "c4" asks for; change the workload or the check'
    ]


def test_rules_are_told_although_another_part_of_the_suite_is_wrong() -> None:
    text = SUITE.replace("engine: vllm", "engine: vlm").replace("task: add", "task: subtract")
    assert [line.split(" ")[1] for line in problems_of(text)] == ["deployments.a.engine:", "gate.checks[2].task:"]
