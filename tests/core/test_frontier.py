"""Quality against cost: what intervals show of several deployments, against numbers worked out by hand."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from benchgate.model.deployment import Arm
from benchgate.model.records import EvalItem
from benchgate.model.run import MetricRow, QualityObservation
from benchgate.sizing.candidates import (
    OF_LOAD,
    OF_QUALITY,
    answered_tasks,
    guard_objection,
    own_accuracy,
    tokens_per_correct,
)
from benchgate.sizing.frontier import (
    CheapestOption,
    ContestedCheapest,
    FrontierPosition,
    FrontierStatus,
    Option,
    cheapest_option,
    frontier_positions,
    saving,
)
from benchgate.sizing.operating_point import GOOD, OUTPUT, cost_name, priced_level
from benchgate.stats.distributions import Limits
from benchgate.stats.meta import EstimateWithLimits, product, ratio, weighted_sum
from benchgate.suite.deployment import TokenPrices
from benchgate.suite.loader import parse_suite
from benchgate.suite.schema import Suite
from tests.core.test_sizing import LEVELS, SUITE

OURS = Arm.CANDIDATE


def figure(value: float, spread: float = 0.0) -> EstimateWithLimits:
    return EstimateWithLimits(value, Limits(value - spread, value + spread))


def option(name: str, quality: float, usd: float, *, passes: bool = True, spread: float = 0.01) -> Option:
    cost = figure(usd, 0.1 * usd)
    return Option(name, figure(quality, spread), cost, cost.times(0.5), passes)


CHEAP = figure(0.1), figure(0.05)
BIG, MIDDLE, SMALL = option("70b", 0.90, 4.0), option("13b", 0.80, 1.0), option("7b", 0.70, 0.5)


def test_each_step_down_in_quality_that_is_shown_to_save_is_on_the_frontier() -> None:
    assert {name: one.standing for name, one in frontier_positions([BIG, MIDDLE, SMALL]).items()} == {
        "70b": FrontierStatus.ON, "13b": FrontierStatus.ON, "7b": FrontierStatus.ON,
    }  # fmt: skip


def test_what_another_is_shown_to_beat_both_ways_is_off_the_frontier() -> None:
    assert frontier_positions([BIG, MIDDLE, option("old", 0.70, 2.0)])["old"] == FrontierPosition(
        FrontierStatus.OFF, ("13b",)
    )


@pytest.mark.parametrize(
    "other",
    [
        option("old", 0.79, 2.0),  # its quality overlaps
        option("old", 0.70, 1.1),  # its cost overlaps
        Option(
            "old", EstimateWithLimits(0.70, None), figure(2.0, 0.1), figure(1.0), True
        ),  # its quality has no interval
        Option("old", figure(0.70), EstimateWithLimits(2.0, None), figure(1.0), True),  # its cost has none
        Option("old", figure(0.70), figure(2.0), figure(0.55, 0.1), True),  # its share of the baseline's overlaps
        Option("old", figure(0.70), figure(2.0), None, True),  # nothing is known of the baseline beside it
    ],
    ids=["quality overlaps", "cost overlaps", "no interval of quality", "no interval of cost", "share", "no share"],
)
def test_where_intervals_overlap_or_are_missing_nothing_is_shown(other: Option) -> None:
    assert frontier_positions([MIDDLE, other])["old"] == FrontierPosition(FrontierStatus.NOT_SHOWN, ("13b",))


@pytest.mark.parametrize("missing", [Option("x", None, *CHEAP, True), Option("x", figure(0.99), None, None, True)])
def test_what_is_not_known_neither_stands_on_the_frontier_nor_pushes_others_off(missing: Option) -> None:
    found = frontier_positions([BIG, MIDDLE, missing])
    assert found["x"] == FrontierPosition(FrontierStatus.NOT_COUNTED)
    assert (found["70b"].standing, found["13b"].standing) == (FrontierStatus.ON, FrontierStatus.ON)


def test_two_of_the_same_quality_and_cost_do_not_beat_each_other() -> None:
    same = [Option(name, figure(0.8), figure(1.0), figure(0.5), True) for name in "ab"]
    assert {one.standing for one in frontier_positions(same).values()} == {FrontierStatus.ON}


def test_cheapest_is_of_those_that_pass_and_says_who_may_be_as_cheap() -> None:
    failed = option("3b", 0.5, 0.1, passes=False)
    free = Option("free", figure(0.9), None, None, True)
    near = option("8b", 0.71, 0.55)
    assert cheapest_option([failed, free, BIG, MIDDLE, SMALL]) == CheapestOption("7b", ())
    assert cheapest_option([BIG, near, SMALL]) == CheapestOption("7b", ("8b",))
    assert cheapest_option([failed, free]) is None


def test_no_option_is_cheapest_where_dollars_and_the_baseline_beside_each_name_two() -> None:
    """An hour in which the baseline took $1.40 instead of $1.00, and everything beside it as much more."""
    here = Option("here", figure(0.8), figure(0.80, 0.01), figure(0.80, 0.01), True)
    there = Option("there", figure(0.8), figure(0.98, 0.01), figure(0.70, 0.01), True)
    assert cheapest_option([here, there]) == ContestedCheapest("here", "there")
    assert {one.standing for one in frontier_positions([here, there]).values()} == {FrontierStatus.NOT_SHOWN}
    assert cheapest_option([here, there, Option("dear", None, figure(9.0), None, True)]) == ContestedCheapest(
        "here", "there"
    )
    assert cheapest_option([here, replace(there, share=None)]) == CheapestOption("here", ("there",))
    assert cheapest_option([here, replace(there, share=figure(0.98))]) == CheapestOption("here", ())


def test_saving_is_the_share_that_is_not_paid() -> None:
    assert saving(EstimateWithLimits(0.75, Limits(0.5, 1.25))) == EstimateWithLimits(0.25, Limits(-0.25, 0.5))
    assert saving(EstimateWithLimits(0.75, None)) == EstimateWithLimits(0.25, None)


def test_limits_of_a_sum_reach_as_far_as_the_root_of_the_squares() -> None:
    found = weighted_sum(
        [(0.5, EstimateWithLimits(0.8, Limits(0.74, 0.85))), (0.5, EstimateWithLimits(0.6, Limits(0.52, 0.72)))]
    )
    assert found.limits is not None
    assert found.value == pytest.approx(0.7)
    assert found.limits.lower == pytest.approx(0.7 - 0.05)  # 0.03² + 0.04²
    assert found.limits.upper == pytest.approx(0.7 + 0.065)  # 0.025² + 0.06²
    less = weighted_sum(
        [(1.0, EstimateWithLimits(5.0, Limits(2.0, 6.0))), (-1.0, EstimateWithLimits(1.0, Limits(0.0, 5.0)))]
    )
    assert less.limits == Limits(4 - 5.0, 4 + math.sqrt(2.0))  # 3 down with 4 up, 1 up with 1 down
    assert weighted_sum([(1.0, figure(1.0)), (1.0, EstimateWithLimits(1.0, None))]).limits is None
    with pytest.raises(ValueError, match="no estimate"):
        weighted_sum([])


def wilson(hits: int, n: int) -> EstimateWithLimits:
    z, share = 1.959964, hits / n
    middle, half = share + z**2 / (2 * n), z * math.sqrt(share * (1 - share) / n + z**2 / (4 * n**2))
    return EstimateWithLimits(share, Limits((middle - half) / (1 + z**2 / n), (middle + half) / (1 + z**2 / n)))


def test_difference_of_two_shares_has_newcombes_limits() -> None:
    """Statistics in Medicine 17, 1998, method 10 of table II: 56/70 - 48/80."""
    found = weighted_sum([(1.0, wilson(56, 70)), (-1.0, wilson(48, 80))]).limits
    assert found is not None
    assert (round(found.lower, 4), round(found.upper, 4)) == (0.0524, 0.3339)


def test_interval_of_a_product_covers_what_is_true() -> None:
    """Of two geometric means, each over five blocks, by Student's t."""
    draws = np.random.default_rng(5).normal(0.0, 0.1, (1500, 2, 5))
    reach = 2.776445 * draws.std(axis=2, ddof=1) / math.sqrt(5)
    covered = 0
    for means, ends in zip(draws.mean(axis=2), reach, strict=True):
        parts = [
            EstimateWithLimits(math.exp(m), Limits(math.exp(m - e), math.exp(m + e)))
            for m, e in zip(means, ends, strict=True)
        ]
        found = product(*parts)
        assert found is not None
        assert found.limits is not None
        covered += found.limits.lower <= 1 <= found.limits.upper
    assert 0.94 <= covered / 1500 <= 0.98


def test_a_ratio_or_product_of_what_may_be_nothing_is_not_known() -> None:
    nothing = EstimateWithLimits(1.0, Limits(0.0, 2.0))
    assert ratio(nothing, figure(2.0, 0.1)) == EstimateWithLimits(0.5, None)
    assert ratio(EstimateWithLimits(0.0, None), figure(2.0)) is None
    assert product(figure(2.0), EstimateWithLimits(0.0, None)) is None


def costs(stage: str, good: float, output: float, arm: Arm = OURS) -> list[MetricRow]:
    return [
        MetricRow(arm, name, None, stage, None, value, 5, value * 0.9, value * 1.2)
        for name, value in ((GOOD, good), (OUTPUT, output))
    ]


PRICED = [*LEVELS, *costs("c4", 3.0, 2.9), *costs("c8", 2.0, 1.9), *costs("c16", 1.0, 0.9)]
NO_SLO = SUITE.replace("slo: {ttft: 500ms, target: 95%}\n", "")


def test_price_counts_at_the_best_level_that_is_shown_to_hold_its_slo() -> None:
    found = priced_level(PRICED, parse_suite(SUITE, "s"), OURS)
    assert not isinstance(found, str)
    assert (found.stage, found.usd, found.usd_output) == (
        "c8", EstimateWithLimits(2.0, Limits(1.8, 2.4)), EstimateWithLimits(1.9, Limits(0.9 * 1.9, 1.2 * 1.9)),
    )  # fmt: skip


def test_without_an_slo_output_tokens_count_at_the_fullest_level() -> None:
    suite = parse_suite(NO_SLO, "s")
    found = priced_level(PRICED, suite, OURS)
    assert not isinstance(found, str)
    assert (cost_name(suite), found.stage, found.usd.value) == (OUTPUT, "c16", 0.9)


@pytest.mark.parametrize(
    ("rows", "says"),
    [
        (LEVELS, "stage c8 has no cost: no price"),
        ([], "no load metrics"),
        ([row for row in PRICED if row.stage == "c16"], "no stage is shown to hold its SLO"),
    ],
)
def test_no_price_and_no_level_are_no_cost(rows: Sequence[MetricRow], says: str) -> None:
    found = priced_level(rows, parse_suite(SUITE, "s"), OURS)
    assert isinstance(found, str)
    assert says in found
    unused = priced_level(PRICED, parse_suite(SUITE, "s"), OURS, in_use=True)
    assert unused == "stage c8 has no cost: its deployment has no `price_terms`, which say how it is used"


def test_a_bill_that_is_unknown_is_not_called_unpriced() -> None:
    paid_by_token = SUITE.replace("model: m}", "model: m, token_prices: {input: $1/M, output: $2/M}}")
    found = priced_level(LEVELS, parse_suite(paid_by_token, "s"), OURS)
    assert isinstance(found, str)
    assert "did not report all those that are paid for" in found and "no price" not in found


CLASSES = """
suite: classes
deployments:
  a: {engine: openai, url: http://a.example, model: m}
  b: {engine: openai, url: http://b.example, model: m}
baseline: a
candidate: b
load:
  workloads: {short: {input: 10, output: 5}, long: {input: 100, output: 50}}
  workload: {input: 10, output: 5}
  sweep:
    - stage: both
      classes:
        chat: {workload: short, rate: 4/s, requests: 100}
        batch: {workload: long, rate: 1/s, requests: 100}
gate: {checks: [{metric: error_rate, max: 10%}]}
"""


def test_classes_share_their_price() -> None:
    """$6 an hour over 1M tokens of one class and 2M of the other are $2 a million."""
    suite = parse_suite(CLASSES, "s")
    rows = [
        MetricRow(OURS, name, None, f"both/{of}", None, value, 5, value * 0.9, value * 1.2)
        for of, pace, usd in (("chat", 100.0, 6.0), ("batch", 200.0, 3.0))
        for name, value in (("output_throughput", pace), (OUTPUT, usd))
    ]
    found = priced_level(rows, suite, OURS)
    assert not isinstance(found, str)
    assert found.usd.value == pytest.approx(2.0)
    assert found.usd.limits is not None
    assert found.usd.limits.upper == pytest.approx(2.4)
    assert isinstance(priced_level(rows[:3], suite, OURS), str)  # one class has no price
    prices = TokenPrices.model_validate({"input": "$1/M", "output": "$4/M"})
    hosted = suite.deployments[suite.candidate].model_copy(update={"price": None, "token_prices": prices})
    by_token = suite.model_copy(update={"deployments": {**suite.deployments, suite.candidate: hosted}})
    own_bills = priced_level(rows, by_token, OURS)
    assert isinstance(own_bills, str)
    assert "each class has a bill of its own" in own_bills


def evals(*names: str) -> Suite:
    text = f"{SUITE}quality: {{tasks: [{', '.join(names)}]}}\n"
    return parse_suite(text.replace("[{metric: error_rate, max: 10%}]", "[{metric: accuracy, margin: 5 points}]"), "s")


def accuracy(task: str, share: float, n: int, arm: Arm = OURS) -> MetricRow:
    return MetricRow(arm, "accuracy", None, None, task, share, n, share - 0.03, share + 0.04)


def test_every_task_has_equal_weight_and_a_group_is_one_task() -> None:
    rows = [accuracy("mmlu/law", 0.9, 100), accuracy("mmlu/art", 0.5, 300), accuracy("gsm8k", 0.8, 50)]
    suite, asked = evals("mmlu", "gsm8k"), answered_tasks(rows, OURS)
    items = [answered(row.task or "", [True] * row.n, [1] * row.n) for row in rows]
    found = own_accuracy(rows, suite, OURS, asked, items)
    assert isinstance(found, EstimateWithLimits)
    assert found.value == pytest.approx((0.6 + 0.8) / 2)
    assert found.limits is not None
    without = own_accuracy(rows, suite, OURS, asked, "the run keeps no evals")
    assert isinstance(without, EstimateWithLimits) and without.limits is not None
    assert without.limits.lower == pytest.approx(0.7 - 0.03)  # they may all ask the same documents
    assert found.limits.lower == pytest.approx(0.7 - 0.03 * math.sqrt(0.125**2 + 0.375**2 + 0.5**2))


@pytest.mark.parametrize(
    ("rows", "asked", "says"),
    [
        ([], {"gsm8k": 50}, "task gsm8k was not answered whole on the candidate"),
        ([accuracy("gsm8k", 0.8, 40)], {"gsm8k": 50}, "task gsm8k was not answered whole"),
        ([accuracy("gsm8k", 0.8, 50)], {"gsm8k": 50}, "task arc was not answered whole"),
        ([], {}, "no eval of the suite"),
    ],
)
def test_a_task_that_was_not_answered_whole_leaves_no_quality(
    rows: list[MetricRow], asked: dict[str, int], says: str
) -> None:
    found = own_accuracy(rows, evals("gsm8k", "arc"), OURS, asked, [])
    assert isinstance(found, str)
    assert says in found


def answered(task: str, right: Sequence[bool], tokens: Sequence[int | None]) -> QualityObservation:
    items = tuple(
        EvalItem(f"{task}-{i}", f"{task}-d{i}", "p", "t", float(ok), "a", "stop", n, 1, None)
        for i, (ok, n) in enumerate(zip(right, tokens, strict=True))
    )
    return QualityObservation(task, OURS, items, len(items), None)


def test_a_right_answer_takes_the_tokens_of_the_wrong_ones_too() -> None:
    half = answered("gsm8k", [True, False] * 20, [10, 30] * 20)
    found = tokens_per_correct([half], evals("gsm8k"), OURS, {"gsm8k": 40})
    assert isinstance(found, EstimateWithLimits)
    assert found.value == pytest.approx(40.0)  # 20 tokens an item, half of them right
    assert found.limits is not None
    # residuals t - 40c are ±30 around 0: error 30/√39, over T = 20, times t(39) at 97.5 %: 2.0227
    assert math.log(found.limits.upper / 40) == pytest.approx(2.0227 * 30 / math.sqrt(39) / 20, rel=1e-4)
    assert found.limits.lower * found.limits.upper == pytest.approx(40.0**2)


def test_tokens_that_are_not_known_are_no_cost_of_a_right_answer() -> None:
    suite, asked = evals("gsm8k"), {"gsm8k": 2}
    for one, says in (
        (answered("gsm8k", [True, True], [3, None]), "not known of every item"),
        (answered("gsm8k", [False, False], [3, 3]), "no answer is right"),
        (answered("gsm8k", [True], [3]), "are not there"),
    ):
        found = tokens_per_correct([one], suite, OURS, asked)
        assert isinstance(found, str)
        assert says in found
    few = tokens_per_correct([answered("gsm8k", [True, False], [3, 4])], suite, OURS, asked)
    assert few == EstimateWithLimits(7.0, None)


def test_interval_of_tokens_per_right_answer_covers_what_is_true() -> None:
    """Right answers are shorter, as they are: T/A = (0.7·20 + 0.3·60) / 0.7."""
    generator, suite, covered, rounds = np.random.default_rng(3), evals("gsm8k"), 0, 300
    for _ in range(rounds):
        right = generator.random(120) < 0.7
        tokens = generator.poisson(np.where(right, 20, 60))
        found = tokens_per_correct(
            [answered("gsm8k", list(right), [int(n) for n in tokens])], suite, OURS, {"gsm8k": 120}
        )
        assert isinstance(found, EstimateWithLimits)
        assert found.limits is not None
        covered += found.limits.lower <= 32 / 0.7 <= found.limits.upper
    assert 0.92 <= covered / rounds <= 0.98


def test_a_guard_takes_away_only_what_it_spoils() -> None:
    verdict = {"outcome": "BLOCK", "guards": [{"tripped": True, "spoils": ["speed"], "reason": "late"}]}
    assert (guard_objection(verdict, OF_LOAD), guard_objection(verdict, OF_QUALITY)) == ("late", None)
    untold = {"guards": [{"tripped": True, "reason": "old"}]}  # it does not say what it spoils: everything
    assert guard_objection(untold, OF_QUALITY) == "old"
