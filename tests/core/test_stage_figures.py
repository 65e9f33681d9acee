"""What the report's curves and its table of SLOs are made of."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from benchgate.gate.summary.figures import Estimate, attainment, stage_figures
from benchgate.gate.summary.metric_rows import metric_rows
from benchgate.model.deployment import Arm, Deployment
from benchgate.model.metric import Slo
from benchgate.model.run import LoadObservation, MetricRow
from tests.fakes import evidence as fake
from tests.fakes.blocks import block

FREE = Deployment(name="a", model="m", engine="vllm", url=None)


def test_the_curves_show_the_numbers_and_intervals_that_the_history_keeps() -> None:
    evidence = fake.evidence()
    kept = {(row.arm, row.name, row.statistic, row.stage): row for row in metric_rows(evidence)}
    slo = Slo(ttft_s=0.05, tpot_s=0.012)
    for arm in Arm:
        blocks = [o for o in evidence.load if (o.arm, o.stage) == (arm, "c4")]
        found = stage_figures(blocks, slo, evidence.run.arms[arm])
        assert found is not None
        shown = {
            ("ttft", "p50"): found.quantiles["ttft_p50"],
            ("ttft", "p95"): found.quantiles["ttft_p95"],
            ("tpot", "p95"): found.quantiles["tpot_p95"],
            ("output_throughput", None): found.output_tokens_per_s,
            ("goodput", None): found.goodput_ratio,
            ("usd_per_million_output_tokens", None): found.usd_per_million_output,
            ("usd_per_million_good_tokens", None): found.usd_per_million_good,
        }
        for (name, statistic), estimate in shown.items():
            _assert_same(estimate, kept[arm, name, statistic, "c4"])


def _assert_same(estimate: Estimate | None, row: MetricRow) -> None:
    assert estimate is not None
    ends = (None, None) if estimate.limits is None else (estimate.limits.lower, estimate.limits.upper)
    assert (estimate.value, *ends) == (row.value, row.lower, row.upper)


def both_blocks(*ttfts_s: float | None) -> list[LoadObservation]:
    return [block(Arm.CANDIDATE, number, ttfts_s) for number in range(2)]


def test_without_a_price_or_an_slo_there_is_no_cost_and_no_goodput() -> None:
    found = stage_figures(both_blocks(0.1, 0.2), None, FREE)
    assert found is not None
    assert (found.usd_per_million_output, found.usd_per_million_good, found.goodput_ratio) == (None, None, None)


def test_a_quantile_past_which_too_many_failed_is_infinite_and_has_no_interval() -> None:
    found = stage_figures(both_blocks(0.1, None), None, FREE)
    assert found is not None
    assert found.quantiles["ttft_p95"] == Estimate(math.inf, None)
    assert found.quantiles["ttft_p50"].value == 0.1


def test_answers_of_one_token_have_no_pace_and_so_no_point() -> None:
    found = stage_figures([block(Arm.CANDIDATE, 0, [0.1, 0.1], tokens=1)], None, FREE)
    assert found is not None
    assert set(found.quantiles) == {"ttft_p50", "ttft_p95"}


def test_a_stage_that_was_not_measured_has_no_figures() -> None:
    assert stage_figures([], None, FREE) is None
    assert attainment([], Slo(ttft_s=0.1)) is None


def test_what_failed_met_nothing_and_an_answer_counts_at_each_bound_that_it_is_past() -> None:
    found = attainment(both_blocks(0.05, 0.2, None, 0.05), Slo(ttft_s=0.1))
    assert found is not None
    assert (found.scheduled, found.good, found.share) == (8, 4, 0.5)
    assert found.missed == {"failed": 2, "ttft": 2}
    tight = attainment(both_blocks(0.05, 0.2, None, 0.05), Slo(ttft_s=0.1, tpot_s=0.005, e2e_s=10.0))
    assert tight is not None
    assert tight.missed == {"failed": 2, "ttft": 2, "tpot": 6, "e2e": 0}  # tokens come 10 ms apart
    assert (tight.good, tight.share) == (0, 0.0)


def test_a_bound_is_inclusive_and_one_on_what_does_not_apply_is_met() -> None:
    found = attainment([block(Arm.CANDIDATE, 0, [0.1], tokens=1)], Slo(ttft_s=0.1, tpot_s=0.001))
    assert found is not None
    assert (found.good, found.missed) == (1, {"failed": 0, "ttft": 0, "tpot": 0})


def test_the_interval_of_what_was_met_needs_two_blocks_and_holds_the_share() -> None:
    blocks = [block(Arm.CANDIDATE, number, [0.05] * 30 + [0.2] * (number % 3)) for number in range(6)]
    found = attainment(blocks, Slo(ttft_s=0.1))
    assert found is not None and found.limits is not None and found.share is not None
    assert found.limits.lower < found.share < found.limits.upper
    alone = attainment(blocks[:1], Slo(ttft_s=0.1))
    assert alone is not None and alone.limits is None


def test_nothing_scheduled_has_no_share() -> None:
    empty = attainment([block(Arm.CANDIDATE, 0, [])], Slo(ttft_s=0.1))
    assert empty is not None
    assert empty.share is None


@pytest.mark.parametrize("accelerators", [1, 4])
def test_the_cost_of_a_stage_is_of_all_its_accelerators(accelerators: int) -> None:
    """$2 an hour each over 16 tokens per second: 2 · 10⁶ / (3600 · 16) = $34.72."""
    paid = replace(FREE, price_usd_per_hour=2.0, accelerators=accelerators)
    found = stage_figures(both_blocks(0.1, 0.1), None, paid)
    assert found is not None and found.usd_per_million_output is not None
    assert found.usd_per_million_output.value == pytest.approx(34.7222 * accelerators, rel=1e-4)


def test_a_block_in_which_nothing_was_scheduled_has_no_number_at_all() -> None:
    found = stage_figures([block(Arm.CANDIDATE, 0, [], window_s=0.0)], Slo(ttft_s=0.1), FREE)
    assert found is not None
    assert (found.quantiles, found.output_tokens_per_s, found.goodput_ratio) == ({}, None, None)
    assert found.usd_per_million_output is None
