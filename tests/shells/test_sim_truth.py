"""Durations in bins are the durations to within a microsecond, however many there are."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchgate.sim.truth import Durations, Truth, spread

SECOND = 1_000_000_000
QUANTILES = {"p50": 0.5, "p90": 0.9, "p95": 0.95, "p99": 0.99}


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(0, 3 * SECOND), min_size=1, max_size=60))
def test_binned_durations_have_the_quantiles_of_the_durations(values: list[int]) -> None:
    durations = Durations()
    for value in values:
        durations.add(value)
    told = durations.spread()
    for name, q in QUANTILES.items():
        exact_s = float(np.quantile(values, q, method="inverted_cdf")) / SECOND
        assert told[name] == pytest.approx(exact_s, abs=1.1e-6)
    assert (told["n"], told["max"]) == (len(values), max(values) / SECOND)
    assert told["mean"] == pytest.approx(float(np.mean(values)) / SECOND)


def test_spread_of_few_values_is_numpys() -> None:
    values = [50, 10, 40, 20]
    told = spread(values)
    assert [told[name] for name in QUANTILES] == pytest.approx(
        [float(np.quantile(values, q)) / SECOND for q in QUANTILES.values()]
    )
    assert (told["n"], told["mean"], told["max"]) == (4, 30 / SECOND, 50 / SECOND)


def test_nothing_has_no_spread() -> None:
    assert Durations().spread() == spread([])
    assert set(spread([]).values()) == {0, None}


def test_refused_request_counts_as_failed_and_has_no_latency() -> None:
    truth = Truth()
    truth.refused(100, "mine")
    told = truth.document(tokens_under_way=0, with_requests=True)
    assert (told["requests"], told["failed"], told["in_flight"], told["span_s"]) == (1, 1, 0, None)
    assert told["e2e_s"] == told["ttft_s"] == spread([])
    assert told["rows"] == [
        {
            "id": "mine",
            "outcome": "failed",
            "fault": None,
            "received_ns": 100,
            "first_ns": None,
            "last_ns": None,
            "output_tokens": 0,
        }
    ]
