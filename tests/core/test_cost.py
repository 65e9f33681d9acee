"""Dollars per million tokens."""

from __future__ import annotations

import math

import pytest

from benchgate.model.deployment import usd_per_million_tokens


def test_a_thousand_tokens_per_second_at_36_dollars_an_hour_cost_ten_dollars_a_million() -> None:
    # 3.6 million tokens an hour for $36.
    assert usd_per_million_tokens(36.0, 1, 1000.0) == pytest.approx(10.0)


def test_price_is_per_accelerator() -> None:
    assert usd_per_million_tokens(4.5, 8, 1000.0) == pytest.approx(10.0)


def test_good_tokens_cost_more_when_some_are_late() -> None:
    # Half of the tokens belong to requests that met their bounds.
    assert usd_per_million_tokens(36.0, 1, 500.0) == pytest.approx(20.0)


@pytest.mark.parametrize("tokens_per_s", [0.0, -1.0, math.nan, math.inf])
def test_no_tokens_have_no_price(tokens_per_s: float) -> None:
    assert usd_per_million_tokens(36.0, 1, tokens_per_s) is None


def test_a_free_accelerator_gives_free_tokens() -> None:
    assert usd_per_million_tokens(0.0, 1, 1000.0) == 0.0


@pytest.mark.parametrize("price", [-1.0, math.nan, math.inf])
def test_a_price_that_cannot_be_is_refused(price: float) -> None:
    with pytest.raises(ValueError, match="price_usd_per_hour"):
        usd_per_million_tokens(price, 1, 1000.0)


def test_a_deployment_without_accelerators_is_refused() -> None:
    with pytest.raises(ValueError, match="accelerators"):
        usd_per_million_tokens(1.0, 0, 1000.0)
