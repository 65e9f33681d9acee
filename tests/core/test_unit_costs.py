"""What a block's tokens cost, by numbers small enough to work out: 24 requests of 32 tokens in and 8 out, in 2.4 s."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from benchgate.gate.evidence.costs import (
    block_cost,
    cost_in_use,
    idle_cost_warning,
    input_tokens,
    output_tokens,
    total_tokens,
    unit_cost,
)
from benchgate.model.deployment import Arm, Deployment
from benchgate.model.records import ABSENT
from benchgate.model.run import LoadObservation
from benchgate.stats.distributions import Limits
from tests.fakes import evidence as fake

HOURLY = Deployment("b", "m", "vllm", None, price_usd_per_hour=1.8, accelerators=2)
HOSTED = replace(HOURLY, price_usd_per_hour=None, token_prices={"input": 1.0, "cached_input": 0.5, "output": 4.0})
UNPRICED = replace(HOURLY, price_usd_per_hour=None)
BLOCK = fake.load_observation("c1", Arm.BASELINE, 0, 0)
SILENT = fake.load_observation("c1", Arm.BASELINE, 1, 1, all_failed=True)


def uncounted(block: LoadObservation) -> LoadObservation:
    """Whose server never said how much it read."""
    return replace(block, requests=replace(block.requests, input_tokens=np.full(len(block.requests), ABSENT)))


def used(utilisation: float, overhead: float = 0.0) -> Deployment:
    return replace(HOURLY, price_terms={"overhead_ratio": overhead, "utilisation_ratio": utilisation})


def test_each_kind_of_token_has_its_own_cost_of_the_same_dollars() -> None:
    """$3.60 an hour are $0.0023631 in 2.3631 s; $1 x 768 and $4 x 192 are $0.001536 of ten million."""
    by_the_hour = [block_cost(HOURLY, BLOCK, counted) for counted in (output_tokens(), input_tokens, total_tokens)]
    assert by_the_hour == pytest.approx([2363.1 / 192, 2363.1 / 768, 2363.1 / 960])
    by_the_token = [block_cost(HOSTED, BLOCK, counted) for counted in (output_tokens(), input_tokens, total_tokens)]
    assert by_the_token == pytest.approx([1536 / 192, 1536 / 768, 1536 / 960])


def test_what_bought_no_token_costs_without_bound_and_has_no_mean() -> None:
    for deployment in (HOURLY, HOSTED):
        assert block_cost(deployment, SILENT, output_tokens()) == math.inf
        assert unit_cost(deployment, [SILENT, SILENT], output_tokens()) == (None, None)
    assert unit_cost(HOSTED, [BLOCK, SILENT], output_tokens()) == (None, None)


@pytest.mark.parametrize("block", [BLOCK, SILENT])
def test_without_a_price_no_block_has_a_cost(block: LoadObservation) -> None:
    assert block_cost(UNPRICED, block, output_tokens()) is None
    assert unit_cost(UNPRICED, [block, block], output_tokens()) == (None, None)


def test_a_block_without_a_length_has_no_pace_and_no_cost() -> None:
    assert block_cost(HOURLY, replace(BLOCK, window_s=0.0), output_tokens()) is None


def test_what_was_not_counted_is_not_billed_as_nothing() -> None:
    """Output alone would be half of the bill of a hosted model; by the hour it is the price of its tokens."""
    for counted in (input_tokens, total_tokens):
        assert block_cost(HOURLY, uncounted(BLOCK), counted) is None
    assert unit_cost(HOURLY, [BLOCK, uncounted(BLOCK)], input_tokens) == (None, None)
    assert block_cost(HOSTED, uncounted(BLOCK), output_tokens()) is None
    assert unit_cost(HOSTED, [BLOCK, uncounted(BLOCK)], output_tokens()) == (None, None)
    assert block_cost(HOURLY, uncounted(BLOCK), output_tokens()) == pytest.approx(2363.1 / 192)


def test_cost_as_used_is_dearer_by_what_idles_and_by_the_overhead_in_value_and_limits() -> None:
    """Half used, with a quarter on top: 2.5 times."""
    cost = (4.0, Limits(3.0, 6.0))
    assert cost_in_use(used(0.5, 0.25), cost) == (10.0, Limits(7.5, 15.0))
    assert cost_in_use(used(0.5, 0.25), (4.0, None)) == (10.0, None)
    assert cost_in_use(used(0.5), (None, None)) == (None, None)
    assert cost_in_use(HOURLY, cost) == (None, None)


@pytest.mark.parametrize(
    ("baseline", "candidate", "told"),
    [
        (used(0.5), used(0.45), True),  # a tenth more
        (used(0.5), used(0.5, 0.01), True),
        (HOURLY, used(0.9), True),  # who says nothing is taken at full use
        (HOURLY, used(1.0), False),
        (used(0.9), HOURLY, False),
        (used(0.5), used(0.6), False),
        (used(0.7, 0.05), used(0.8, 0.2), False),  # 1.05 / 0.7 and 1.2 / 0.8 are 1.5, and differ in the last bit
        (used(0.8, 0.2), used(0.7, 0.05), False),
    ],
)
def test_candidate_that_is_used_less_by_however_little_is_told(
    baseline: Deployment, candidate: Deployment, told: bool
) -> None:
    assert (idle_cost_warning(baseline, candidate) is not None) is told


def test_a_bill_that_is_the_same_in_every_block_is_known_and_a_pace_that_is_the_same_by_chance_is_not() -> None:
    assert unit_cost(HOSTED, [BLOCK, BLOCK], output_tokens()) == (8.0, Limits(8.0, 8.0))
    assert unit_cost(HOSTED, [BLOCK], output_tokens())[1] is None
    assert unit_cost(HOURLY, [BLOCK, BLOCK], output_tokens())[1] is None
