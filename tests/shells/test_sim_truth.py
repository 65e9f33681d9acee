"""Durations in bins are the durations to within a microsecond, however many there are."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchgate.sim.ground_truth import CompletedRequest, Durations, GroundTruth, RequestLabels, spread

SECOND = 1_000_000_000
QUANTILES = {"p50": 0.5, "p90": 0.9, "p95": 0.95, "p99": 0.99}


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
    truth = GroundTruth()
    truth.refused(100, "mine")
    told = truth.document(tokens_under_way=0, with_requests=True)
    assert (told["requests"], told["failed"], told["in_flight"], told["span_s"]) == (1, 1, 0, None)
    assert told["e2e_s"] == told["ttft_s"] == spread([])
    assert told["rows"] == [
        {
            "id": "mine",
            "outcome": "failed",
            "fault": None,
            "endpoint": None,
            "model": None,
            "priority": None,
            "received_ns": 100,
            "first_ns": None,
            "last_ns": None,
            "input_tokens": 0,
            "cached_tokens": None,
            "started_ns": None,
            "service_ns": None,
            "output_tokens": 0,
        }
    ]


def served(first_s: int, priority: int = 0) -> GroundTruth:
    """Two requests: one answered after so many seconds, with gaps of a millisecond and of two seconds, and one cut."""
    truth = GroundTruth()
    for at_ns in (0, SECOND):
        truth.arrived(at_ns, "merged" if at_ns else "")
    truth.gaps.add(1_000_000)
    truth.gaps.add(2 * SECOND)
    asked = RequestLabels("chat", "sim", priority)
    truth.ended(CompletedRequest("finished", "a", "", 0, asked, first_s * SECOND, 9 * SECOND, 7, 20, 16))
    truth.ended(CompletedRequest("aborted", "b", "merged", SECOND, asked, tokens=2, input_tokens=5))
    return truth


def test_the_span_begins_with_the_request_that_came_first_in_whatever_order_they_are_served() -> None:
    truth = GroundTruth()
    for at_ns in (3 * SECOND, SECOND, 2 * SECOND):
        truth.arrived(at_ns, "")
    truth.ended(
        CompletedRequest(
            "finished", "a", "", 3 * SECOND, RequestLabels("chat", "sim", 0), 4 * SECOND, 9 * SECOND, 7, 20, 0
        )
    )
    assert truth.document(with_requests=False)["span_s"] == 8.0


def test_truth_of_several_servers_together_is_that_of_one_that_did_it_all() -> None:
    both = GroundTruth()
    for part in (served(2), served(4, priority=5)):
        both.absorb(json.loads(json.dumps(part.state(tokens_under_way=3, preempted=1))))
    told = both.document(with_requests=True)
    assert (told["requests"], told["finished"], told["aborted"], told["in_flight"]) == (4, 2, 2, 0)
    assert (told["output_tokens"], told["input_tokens"], told["cached_tokens"]) == (24, 50, 32)
    assert (told["preemptions"], told["faults"], told["span_s"]) == (2, {"merged": 2}, 9.0)
    ttft, itl = told["ttft_s"], told["itl_s"]
    assert isinstance(ttft, dict)
    assert isinstance(itl, dict)
    assert (ttft["n"], ttft["p50"], ttft["max"]) == (2, 3.0, 4.0)
    assert (itl["n"], itl["max"], itl["mean"]) == (4, 2.0, pytest.approx(1.0005))
    groups = told["by_priority"]
    assert isinstance(groups, dict)
    assert {value: (group["requests"], group["ttft_s"]["p50"]) for value, group in groups.items()} == {
        "0": (2, 2.0),
        "5": (2, 4.0),
    }
    rows = told["rows"]
    assert isinstance(rows, list)
    assert len(rows) == 4
