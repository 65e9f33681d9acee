"""The points of the report's charts of paired blocks are what the checks themselves rest on."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from statistics import fmean

import pytest

from benchgate.gate.judge import judge
from benchgate.gate.summary.figures import BlockDifferences, block_differences
from benchgate.model.deployment import Arm
from benchgate.model.run import ClientUse, Evidence
from benchgate.model.verdict import CheckResult
from benchgate.suite.schema import Suite
from tests.fakes.measured import Effect, SuiteText, measured

TTFT: dict[str, object] = {"metric": "ttft", "margin": "10%"}


def pairs(suite: Suite, evidence: Evidence) -> list[tuple[BlockDifferences, CheckResult]]:
    checks = {check.id: check for check in judge(suite, evidence).checks}
    return [(one, checks[one.id]) for one in block_differences(suite, evidence)]


@pytest.mark.parametrize(
    "checks",
    [
        [TTFT, {"metric": "output_throughput", "margin": "10%"}],
        [{"metric": "ttft", "statistic": "mean", "margin": "10%"}],
        [{"metric": "error_rate", "margin": "5 points"}, {"metric": "goodput", "margin": "5 points"}],
    ],
)
def test_their_mean_is_the_harm_of_the_check(checks: list[dict[str, object]]) -> None:
    suite = SuiteText(checks).suite()
    failing = 0 if any(check.get("statistic") for check in checks) else 1
    found = pairs(suite, measured(suite, Effect(slowdown=1.2, failed=failing), Effect(failed=0)))
    assert len(found) == len(checks)
    for one, check in found:
        assert len(one.regressions) == 8
        assert fmean(one.regressions) == pytest.approx(check.harm, rel=1e-9)


def test_only_checks_of_the_load_against_the_baseline_have_them() -> None:
    checks: list[dict[str, object]] = [
        {"metric": "ttft", "max": "300ms"},
        {"metric": "accuracy", "margin": "5 points"},
        TTFT,
    ]
    suite = SuiteText(checks).suite()
    assert [one.id for one, _ in pairs(suite, measured(suite))] == ["ttft-p50@c4"]


def test_a_block_that_the_check_left_out_is_no_point() -> None:
    suite = SuiteText([TTFT]).suite()
    evidence = measured(suite)
    busy = ClientUse(cpu_s=2.0, wall_s=1.0, workers=1)
    load = [replace(o, client=busy) if (o.block, o.arm) == (3, Arm.CANDIDATE) else o for o in evidence.load]
    (found, check), *_ = pairs(suite, replace(evidence, load=tuple(load)))
    assert (len(found.regressions), check.n) == (7, 7)
    assert found.blocks == (0, 1, 2, 4, 5, 6, 7)
    assert found.left_out == ((3, "excluded: the load generator was the bottleneck"),)


def test_a_block_that_one_side_alone_has_is_told_apart() -> None:
    suite = SuiteText([TTFT]).suite()
    evidence = measured(suite)
    load = tuple(o for o in evidence.load if (o.block, o.arm) != (1, Arm.BASELINE))
    (found,) = block_differences(suite, replace(evidence, load=load))
    assert (found.blocks[:2], found.left_out) == ((0, 2), ((1, "excluded: measured on one arm only"),))


def test_blocks_that_were_taken_together_are_one_point() -> None:
    suite = SuiteText([{"metric": "ttft", "statistic": "p95", "margin": "10%"}], requests=30).suite()
    (found, _), *_ = pairs(suite, measured(suite))
    assert (len(found.regressions), found.together) == (4, 2)


def test_a_block_in_which_the_candidate_failed_is_infinitely_worse() -> None:
    suite = SuiteText([TTFT]).suite()
    (found, _), *_ = pairs(suite, measured(suite, Effect(failed=60, failed_block=2)))
    assert [math.isinf(harm) for harm in found.regressions] == [i == 2 for i in range(8)]


def without(evidence: Evidence, arm: Arm) -> Evidence:
    return replace(evidence, load=tuple(o for o in evidence.load if o.arm is not arm))


@pytest.mark.parametrize("metric", ["ttft", "goodput"])
def test_an_arm_that_was_not_measured_leaves_nothing_to_pair(metric: str) -> None:
    suite = SuiteText([{"metric": metric, "margin": "10%" if metric == "ttft" else "5 points"}]).suite()
    assert block_differences(suite, without(measured(suite), Arm.BASELINE)) == ()


def clouded(evidence: Evidence, blocks: Sequence[int]) -> Evidence:
    late = ClientUse(
        cpu_s=0.05,
        wall_s=1.0,
        workers=1,
        read_delay_p50_s=0.0001,
        read_delay_p99_s=0.04,
        read_delay_max_s=0.04,
        read_delay_by="canary",
    )
    return replace(evidence, load=tuple(replace(o, client=late) if o.block in blocks else o for o in evidence.load))


def test_a_tail_that_is_the_clients_own_in_too_many_blocks_has_no_points() -> None:
    suite = SuiteText([{"metric": "ttft", "statistic": "p95", "margin": "10%"}, TTFT]).suite()
    found = block_differences(suite, clouded(measured(suite), range(4)))
    assert [one.id for one in found] == ["ttft-p50@c4"]


def test_a_block_whose_tail_alone_is_the_clients_is_left_out_of_the_tail_alone() -> None:
    suite = SuiteText([{"metric": "ttft", "statistic": "p95", "margin": "10%"}, TTFT]).suite()
    tail, median = block_differences(suite, clouded(measured(suite), [2]))
    assert tail.left_out == ((2, "excluded: its slowest answers waited for the load generator"),)
    assert (median.left_out, median.blocks) == ((), tuple(range(8)))


def test_a_block_in_which_nothing_was_scheduled_has_no_share() -> None:
    suite = SuiteText([{"metric": "error_rate", "margin": "5 points"}]).suite()
    evidence = measured(suite)
    first = evidence.load[0]
    empty = replace(first, requests=type(first.requests).pack([]))
    assert block_differences(suite, replace(evidence, load=(empty, *evidence.load[1:]))) == ()
