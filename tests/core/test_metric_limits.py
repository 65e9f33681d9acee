"""The intervals of derived numbers: values from tables, seeded coverage, and None wherever there is nothing to say."""

from __future__ import annotations

import math

import numpy as np
import pytest

from benchgate.gate.evidence import intervals
from benchgate.gate.evidence.costs import hourly_cost
from benchgate.gate.evidence.shares import Counts
from benchgate.gate.summary.metric_rows import metric_rows
from benchgate.model.deployment import Arm, Deployment
from benchgate.model.metric import TREND_UNITS
from benchgate.stats.distributions import Limits
from tests.fakes.evals import Answers, evidence_of, suite_of
from tests.fakes.measured import Effect, SuiteText, measured

EVALS = suite_of([{"metric": "accuracy", "margin": "5 points"}], ["t"])


def ends(limits: Limits | None) -> tuple[float, float]:
    assert limits is not None
    return limits.lower, limits.upper


def test_mean_over_blocks_has_students_limits() -> None:
    # 11 ± t(0.975, 2)/√3 with a standard deviation of 1; t = 4.302653 (any table).
    assert ends(intervals.block_limits([10.0, 12.0, 11.0])) == pytest.approx((8.515862, 13.484138), abs=1e-6)


def test_a_rate_is_never_below_nothing() -> None:
    lower, upper = ends(intervals.block_limits([0.0, 2.0]))
    assert lower == 0
    assert upper == pytest.approx(1 + 12.706205)


@pytest.mark.parametrize("blocks", [[], [5.0], [5.0, 5.0], [5.0, None], [5.0, math.inf]], ids=str)
def test_blocks_that_tell_no_spread_give_no_interval(blocks: list[float | None]) -> None:
    assert intervals.block_limits(blocks) is None


def test_geometric_mean_has_students_limits_of_its_logarithms() -> None:
    e = math.e
    found = ends(intervals.log_block_limits(np.array([e**1.0, e**1.2, e**1.1])))
    assert found == pytest.approx((math.exp(1.1 - 0.2484138), math.exp(1.1 + 0.2484138)), rel=1e-6)
    for values in ([1.0, 0.0], [1.0, math.inf], [1.0], [2.0, 2.0]):
        assert intervals.log_block_limits(np.array(values)) is None


def test_price_rises_where_the_rate_falls_and_is_open_where_that_may_be_nothing() -> None:
    deployment = Deployment("a", "m", "vllm", "http://a.example", {}, {}, price_usd_per_hour=3.6)  # $1000 / (tokens/s)
    rates = [20.0, 21.0, 25.0]
    limits, found = intervals.block_limits(rates), hourly_cost(deployment, rates)[1]
    assert limits is not None and found is not None
    assert ends(found) == pytest.approx((1000 / limits.upper, 1000 / limits.lower))
    assert hourly_cost(deployment, [1.0, 25.0])[1] is None  # the throughput may be 0
    assert hourly_cost(deployment, [20.0]) == (50.0, None)


@pytest.mark.parametrize(("blocks", "cv"), [(5, 0.02), (5, 0.08), (20, 0.04)])
def test_interval_of_a_cost_covers_what_the_deployment_truly_costs(blocks: int, cv: float) -> None:
    deployment = Deployment("a", "m", "vllm", "http://a.example", {}, {}, price_usd_per_hour=4.0, accelerators=2)
    true_usd = 8.0 * 1e6 / (3600 * 1800)  # at 1,800 tokens/s
    generator, runs = np.random.default_rng(20261121), 3000
    covered = 0
    for rates in generator.normal(1800.0, cv * 1800.0, (runs, blocks)):
        cost, limits = hourly_cost(deployment, rates.tolist())
        lower, upper = ends(limits)
        assert cost is not None
        assert lower < cost < upper
        covered += lower <= true_usd <= upper
    assert abs(covered / runs - 0.95) <= 0.015


def test_share_of_requests_has_the_limits_that_checks_use() -> None:
    clean = Counts((0, 0), (150, 149))
    # 0 of 299 at 2.5 %: 1 - 0.025**(1/299).
    assert ends(intervals.miss_limits(clean)) == pytest.approx((0.0, 0.0122617), abs=1e-6)
    assert ends(intervals.kept_limits(clean)) == pytest.approx((0.9877383, 1.0), abs=1e-6)
    burst, spread = Counts((20, 0, 0, 0), (100,) * 4), Counts((5, 5, 5, 5), (100,) * 4)
    assert ends(intervals.miss_limits(burst))[1] > 2 * ends(intervals.miss_limits(spread))[1]
    assert intervals.miss_limits(Counts((1,), (100,))) is None
    assert intervals.kept_limits(Counts((1, 0), (100, 0))) is None


def test_a_median_of_requests_is_as_wide_as_its_order_statistics() -> None:
    blocks = [np.arange(first, 101, 20, dtype=np.float64) for first in range(1, 21)]
    ((value, limits),) = intervals.quantiles_with_limits(blocks, (0.5,), single=True)
    # Of 100 values, the 40th and the 61st (David and Nagaraja, Order Statistics, 7.1); those of t are inside.
    assert (value, ends(limits)) == (50.0, (40.0, 61.0))
    ((again, of_blocks),) = intervals.quantiles_with_limits(blocks, (0.5,), single=False)
    assert again == 50.0
    lower, upper = ends(of_blocks)
    assert 40.0 < lower <= 50.0 <= upper < 61.0


def test_a_quantile_without_enough_requests_or_blocks_or_with_failures_at_it_has_no_interval() -> None:
    def of(*blocks: list[float], q: float = 0.5) -> tuple[float | None, Limits | None]:
        (found,) = intervals.quantiles_with_limits([np.array(block) for block in blocks], (q,), single=True)
        return found

    many = [float(value) for value in range(1, 51)]
    assert of(many, [value + 0.5 for value in many])[1] is not None
    assert of(many)[1] is None
    assert of(many, [value + 0.5 for value in many], q=0.99) == (50.0, None)
    assert of(many, [math.inf] * 50)[1] is None
    assert of(many, [math.nan] * 50)[1] is None
    assert of([math.nan], [math.nan]) == (None, None)


def test_interval_of_a_quantile_covers_it_although_blocks_have_moods() -> None:
    generator, covered, runs = np.random.default_rng(5), 0, 400
    for _ in range(runs):
        moods = generator.normal(0, 0.1, (8, 1))
        times = np.exp(moods + generator.normal(0, 0.3, (8, 60)))
        ((_, limits),) = intervals.quantiles_with_limits(list(times), (0.5,), single=True)
        lower, upper = ends(limits)
        covered += lower <= 1.0 <= upper
    assert covered / runs >= 0.93


def test_share_of_items_is_exact_and_a_mean_of_scores_is_students() -> None:
    # 9 of 10: Clopper and Pearson (1934), any table.
    assert ends(intervals.item_limits([1.0] * 9 + [0.0], share=True)) == pytest.approx((0.5550, 0.9975), abs=5e-5)
    assert ends(intervals.item_limits([0.0] * 10, share=True)) == pytest.approx((0.0, 0.3085), abs=5e-5)
    scores = [0.0, 10.0] * 15
    # sd 5.085476, t(0.975, 29) = 2.045230.
    assert ends(intervals.item_limits(scores, share=False)) == pytest.approx((3.101047, 6.898953), abs=1e-5)
    assert intervals.item_limits(scores[:28], share=False) is None
    assert intervals.item_limits([3.0] * 40, share=False) is None
    assert intervals.item_limits([], share=True) is None
    assert intervals.count_limits(0, 0) is None


def test_items_that_go_together_tell_as_much_as_their_clusters() -> None:
    values = [1.0] * 60 + [0.0] * 60
    apart = ends(intervals.item_limits(values, share=True))
    together = ends(intervals.item_limits(values, [f"c{k // 10}" for k in range(120)], share=True))
    assert together[0] < apart[0] - 0.1
    assert together[1] > apart[1] + 0.1
    assert intervals.item_limits(values, [f"c{k // 20}" for k in range(120)], share=True) is None
    mostly = [1.0] * 119 + [0.0]
    assert ends(intervals.item_limits(mostly, [f"c{k // 10}" for k in range(120)], share=True))[1] == 1.0


def test_a_run_of_load_keeps_the_interval_of_every_number_around_it() -> None:
    rows = metric_rows(measured(SuiteText([{"metric": "ttft", "margin": "10%"}]).suite(), Effect(slowdown=1.1)))
    with_interval = [row for row in rows if row.lower is not None and row.upper is not None]
    assert {"ttft", "e2e", "output_throughput", "error_rate"} <= {row.name for row in with_interval}
    for row in with_interval:
        assert row.lower is not None and row.upper is not None
        assert row.lower <= row.value <= row.upper, row
    assert {row.name for row in rows} <= set(TREND_UNITS)
    assert all((row.lower is None) == (row.upper is None) for row in rows)


def test_evals_keep_the_intervals_of_accuracy_flips_and_recovery() -> None:
    right, wrong = [1.0] * 90 + [0.0] * 10, [1.0] * 80 + [0.0] * 20
    evidence = evidence_of(EVALS, {"t": (Answers(right), Answers(wrong))}, again={"t": Answers(right)})
    rows = {(row.arm, row.name): row for row in metric_rows(evidence)}
    accuracy, flips = rows[Arm.CANDIDATE, "accuracy"], rows[Arm.CANDIDATE, "flips"]
    # 80 of 100 and 10 of 100, Clopper and Pearson.
    assert (accuracy.lower, accuracy.upper) == pytest.approx((0.7082, 0.8733), abs=5e-5)
    assert (flips.lower, flips.upper) == pytest.approx((0.0490, 0.1762), abs=5e-5)
    floor, recovery = rows[Arm.BASELINE, "flips"], rows[Arm.CANDIDATE, "recovery"]
    assert (floor.lower, floor.upper) == pytest.approx((0.0, 0.0362), abs=5e-5)
    assert recovery.lower is not None and recovery.upper is not None
    assert recovery.lower < recovery.value < recovery.upper < 1.0
