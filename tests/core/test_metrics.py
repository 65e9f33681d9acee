"""The metrics on timelines small enough to check by hand."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchgate.model import request_metrics
from benchgate.model.metric import METRIC_NAMES, Slo
from benchgate.model.records import ACCEPTED_FINISH, ErrorClass, FloatArray, RequestColumns, RequestRecord, TokenSource

NS = 1e-9

# Meant for 90, sent at 100, output at 110, 130 and 150, finished at 155.
ANSWERED = RequestRecord(
    index=0,
    intended_ns=90,
    sent_ns=100,
    chunk_ns=(110, 130, 150),
    end_ns=155,
    input_tokens=7,
    output_tokens=3,
    token_source=TokenSource.USAGE,
    finish_reason="length",
    http_status=200,
    error=None,
    error_detail=None,
)
# Broke off after two chunks.
BROKEN = replace(
    ANSWERED,
    index=1,
    chunk_ns=(111, 112),
    end_ns=None,
    output_tokens=2,
    token_source=TokenSource.CHUNKS,
    finish_reason=None,
    error=ErrorClass.STREAM_BROKEN,
    error_detail="the stream ended without a finish reason",
)
# The connection was refused: nothing was sent, nothing came.
REFUSED = replace(
    BROKEN,
    index=2,
    sent_ns=None,
    chunk_ns=(),
    output_tokens=None,
    token_source=None,
    http_status=None,
    error=ErrorClass.CONNECT,
    error_detail="connection refused",
)


def columns(*records: RequestRecord) -> RequestColumns:
    return RequestColumns.pack([replace(record, index=i) for i, record in enumerate(records)])


def only(record: RequestRecord) -> RequestColumns:
    return columns(record)


def test_ttft_counts_from_the_intended_send() -> None:
    assert request_metrics.ttft_s(only(ANSWERED)) == pytest.approx([20 * NS])


def test_ttft_sent_leaves_out_the_clients_own_delay() -> None:
    assert request_metrics.ttft_sent_s(only(ANSWERED)) == pytest.approx([10 * NS])
    assert request_metrics.send_lag_s(only(ANSWERED)) == pytest.approx([10 * NS])


def test_tpot_divides_by_tokens_after_the_first_not_by_chunks() -> None:
    assert request_metrics.tpot_s(only(ANSWERED)) == pytest.approx([20 * NS])
    assert request_metrics.tpot_s(only(replace(ANSWERED, output_tokens=5))) == pytest.approx([10 * NS])


def test_e2e_ends_at_the_finish_event() -> None:
    assert request_metrics.e2e_s(only(ANSWERED)) == pytest.approx([65 * NS])


def test_itl_is_every_gap_inside_a_request() -> None:
    assert request_metrics.itl_s(only(replace(ANSWERED, chunk_ns=(110, 130, 135, 150)))) == pytest.approx(
        [20 * NS, 5 * NS, 15 * NS]
    )


def test_itl_does_not_bridge_two_requests() -> None:
    later = replace(ANSWERED, chunk_ns=(1000, 1007))
    assert request_metrics.itl_s(columns(ANSWERED, later)) == pytest.approx([20 * NS, 20 * NS, 7 * NS])
    silent = replace(ANSWERED, chunk_ns=())  # no chunk, so a failure, at the start, between and at the end
    gaps = request_metrics.itl_s(columns(silent, ANSWERED, silent, silent, later, silent))
    assert gaps[:3] == pytest.approx([20 * NS, 20 * NS, 7 * NS])
    assert list(gaps[3:]) == [math.inf] * 4


def test_gap_in_which_a_request_failed_never_ended() -> None:
    gaps = request_metrics.itl_s(columns(ANSWERED, BROKEN, REFUSED))
    assert gaps[:3] == pytest.approx([20 * NS, 20 * NS, 1 * NS])
    assert list(gaps[3:]) == [math.inf, math.inf]


@pytest.mark.parametrize(
    "metric", [request_metrics.ttft_s, request_metrics.ttft_sent_s, request_metrics.tpot_s, request_metrics.e2e_s]
)
def test_failed_requests_are_infinitely_late_and_stay(metric: Callable[[RequestColumns], FloatArray]) -> None:
    values = metric(columns(BROKEN, ANSWERED, REFUSED))
    assert list(np.isinf(values)) == [True, False, True]
    assert (values > 0).all()


def test_request_never_sent_is_infinitely_late() -> None:
    assert request_metrics.send_lag_s(columns(ANSWERED, REFUSED))[1] == math.inf


@pytest.mark.parametrize(
    "flaw",
    [
        {"error": ErrorClass.TIMEOUT},
        {"output_tokens": 0},
        {"output_tokens": None},
        {"chunk_ns": ()},
        {"finish_reason": "abort"},
        {"finish_reason": None},
        {"http_status": 500},
        {"http_status": None},
        {"end_ns": None},
        {"sent_ns": None},
    ],
)
def test_one_flaw_makes_a_request_a_failure(flaw: dict[str, object]) -> None:
    flawed = replace(ANSWERED, **flaw)  # type: ignore[arg-type]  # one valid field at a time, see the table
    both = columns(ANSWERED, flawed)
    assert list(request_metrics.succeeded(both)) == [True, False]
    assert list(request_metrics.meets_slo(both, Slo())) == [True, False]
    for metric in (request_metrics.ttft_s, request_metrics.tpot_s, request_metrics.e2e_s):
        assert metric(both)[1] == math.inf


@pytest.mark.parametrize("finish", ["stop", "length", "tool_calls"])
def test_every_accepted_finish_is_a_success(finish: str) -> None:
    assert request_metrics.succeeded(only(replace(ANSWERED, finish_reason=finish))).all()


def test_tpot_of_one_token_does_not_apply() -> None:
    one = replace(ANSWERED, chunk_ns=(110,), output_tokens=1)
    assert np.isnan(request_metrics.tpot_s(only(one))).all()
    assert request_metrics.meets_slo(only(one), Slo(tpot_s=1 * NS)).all()


def test_whole_answer_in_one_chunk_shows_no_pace() -> None:
    held_back = replace(ANSWERED, chunk_ns=(150,), output_tokens=100)
    assert np.isnan(request_metrics.tpot_s(only(held_back))).all()
    assert not request_metrics.meets_slo(only(held_back), Slo(tpot_s=1 * NS, ttft_s=50 * NS)).any()


@pytest.mark.parametrize(
    ("slo", "is_good"),
    [
        (Slo(), True),
        (Slo(ttft_s=20 * NS), True),
        (Slo(ttft_s=19 * NS), False),
        (Slo(tpot_s=20 * NS), True),
        (Slo(tpot_s=19 * NS), False),
        (Slo(e2e_s=65 * NS), True),
        (Slo(e2e_s=64 * NS), False),
        (Slo(ttft_s=20 * NS, tpot_s=20 * NS, e2e_s=64 * NS), False),
    ],
)
def test_good_meets_every_bound_at_once(slo: Slo, is_good: bool) -> None:
    # Bounds are inclusive; a nanosecond's rounding must not decide, so they are compared a hair above.
    roomy = Slo(*(None if bound is None else bound * (1 + 1e-12) for bound in (slo.ttft_s, slo.tpot_s, slo.e2e_s)))
    assert request_metrics.meets_slo(only(ANSWERED), roomy).all() == is_good


def test_timed_out_request_is_not_good() -> None:
    timed_out = replace(ANSWERED, error=ErrorClass.TIMEOUT, finish_reason=None)
    both = columns(ANSWERED, timed_out)
    assert request_metrics.goodput_ratio(both, Slo(ttft_s=1.0)) == 0.5


def test_goodput_divides_by_what_was_scheduled() -> None:
    assert request_metrics.goodput_ratio(columns(ANSWERED, BROKEN, REFUSED, REFUSED), Slo()) == 0.25
    assert request_metrics.goodput_ratio(columns(), Slo()) is None


def test_throughput_counts_successful_requests_only() -> None:
    served = columns(ANSWERED, replace(ANSWERED, output_tokens=5), BROKEN, REFUSED)
    assert request_metrics.output_tokens_per_s(served, 2.0) == 4.0
    assert request_metrics.requests_per_s(served, 2.0) == 1.0


def test_input_and_total_throughput_need_the_input_of_every_success() -> None:
    unknown = replace(BROKEN, input_tokens=None)
    served = columns(ANSWERED, replace(ANSWERED, input_tokens=4), unknown, REFUSED)
    assert request_metrics.input_tokens_per_s(served, 2.0) == 5.5  # (7 + 4) / 2
    assert request_metrics.total_tokens_per_s(served, 2.0) == 8.5  # and two answers of 3
    silent = columns(ANSWERED, replace(ANSWERED, input_tokens=None))
    for rate in (request_metrics.input_tokens_per_s, request_metrics.total_tokens_per_s):
        assert rate(silent, 2.0) is None
        assert rate(served, 0.0) is None


def test_good_throughput_leaves_out_what_came_too_late() -> None:
    late = replace(ANSWERED, chunk_ns=(1110, 1130, 1150), end_ns=1155)
    served, slo = columns(ANSWERED, late), Slo(ttft_s=100 * NS)
    assert request_metrics.output_tokens(served, slo=slo) == 3.0
    assert request_metrics.requests_per_s(served, 1.0, slo=slo) == 1.0


@pytest.mark.parametrize("window_s", [0.0, -1.0, math.nan])
def test_no_window_has_no_rate(window_s: float) -> None:
    assert request_metrics.output_tokens_per_s(only(ANSWERED), window_s) is None
    assert request_metrics.requests_per_s(only(ANSWERED), window_s) is None


def test_empty_columns_have_no_values() -> None:
    nothing = columns()
    for metric in (
        request_metrics.ttft_s,
        request_metrics.ttft_sent_s,
        request_metrics.tpot_s,
        request_metrics.e2e_s,
        request_metrics.itl_s,
    ):
        assert len(metric(nothing)) == 0
        assert request_metrics.quantile(metric(nothing), 0.5) is None
    assert len(request_metrics.meets_slo(nothing, Slo(ttft_s=1.0))) == 0


def test_columns_without_a_single_chunk_are_all_failures() -> None:
    dead = columns(REFUSED, REFUSED)
    assert not request_metrics.succeeded(dead).any()
    assert list(request_metrics.ttft_s(dead)) == [math.inf, math.inf]
    assert list(request_metrics.itl_s(dead)) == [math.inf, math.inf]
    assert request_metrics.quantile(request_metrics.ttft_s(dead), 0.5) == math.inf


REASONED = replace(ANSWERED, first_answer_ns=130, reasoning_tokens=1, cached_tokens=0)


def test_ttfot_leaves_out_the_reasoning_that_came_first() -> None:
    assert request_metrics.ttfot_s(only(REASONED)) == pytest.approx([40 * NS])


def test_answer_that_never_began_is_infinitely_late_beside_ones_that_did() -> None:
    thinking = replace(REASONED, first_answer_ns=None)
    values = request_metrics.ttfot_s(columns(REASONED, thinking, BROKEN))
    assert (values[0], list(values[1:])) == (pytest.approx(40 * NS), [math.inf, math.inf])


def test_ttfot_is_infinite_where_every_request_failed() -> None:
    assert list(request_metrics.ttfot_s(columns(BROKEN, BROKEN))) == [math.inf, math.inf]


def test_ttfot_is_unknown_where_nobody_kept_it() -> None:
    values = request_metrics.ttfot_s(columns(ANSWERED, BROKEN))
    assert np.isnan(values).all()
    assert request_metrics.quantile(values, 0.5) is None


EMBEDDED = replace(
    ANSWERED, chunk_ns=(150,), end_ns=150, output_tokens=0, token_source=None, finish_reason=None, tokenless=True
)


def test_embedding_succeeds_without_tokens_or_a_finish_reason() -> None:
    served = columns(EMBEDDED, replace(EMBEDDED, error=ErrorClass.PROTOCOL), replace(EMBEDDED, tokenless=False))
    assert list(request_metrics.succeeded(served)) == [True, False, False]
    assert request_metrics.e2e_s(only(EMBEDDED)) == pytest.approx([60 * NS])
    assert np.isnan(request_metrics.tpot_s(only(EMBEDDED))).all()
    assert request_metrics.output_tokens_per_s(served, 1.0) == 0.0


def test_validity_is_a_share_of_what_was_asked_to_be_valid() -> None:
    judged = [replace(ANSWERED, valid=True), replace(ANSWERED, valid=False), replace(BROKEN, valid=False)]
    assert request_metrics.validity_ratio(columns(*judged, replace(ANSWERED, valid=True), ANSWERED)) == 0.5
    assert request_metrics.validity_ratio(only(ANSWERED)) is None
    offered = columns(replace(ANSWERED, valid=True), BROKEN, ANSWERED)  # tools: words are not judged, nor is a failure
    assert request_metrics.validity_ratio(offered) == 0.5
    assert request_metrics.validity_ratio(columns(BROKEN, ANSWERED)) is None


def test_shares_of_tokens_are_unknown_unless_every_answer_tells_them() -> None:
    told = replace(REASONED, reasoning_tokens=2, cached_tokens=7)
    assert request_metrics.reasoning_ratio(columns(REASONED, told, BROKEN)) == 0.5
    assert request_metrics.reasoning_ratio(columns(REASONED, ANSWERED)) is None


@pytest.mark.parametrize(("q", "expected"), [(0.5, 2.0), (0.75, 3.0), (0.76, math.inf), (0.99, math.inf), (0.01, 1.0)])
def test_quantile_is_an_observation_even_beside_a_failure(q: float, expected: float) -> None:
    assert request_metrics.quantile(np.array([3.0, math.inf, 1.0, 2.0]), q) == expected


def test_quantile_drops_what_does_not_apply() -> None:
    assert request_metrics.quantile(np.array([math.nan, 1.0, math.nan, 2.0]), 0.5) == 1.0
    assert request_metrics.quantile(np.array([math.nan]), 0.5) is None


@given(st.lists(st.integers(0, 50), min_size=1, max_size=60), st.sampled_from([0.5, 0.9, 0.95, 0.99]))
def test_quantile_is_the_smallest_value_with_its_share_at_or_below(values: list[int], q: float) -> None:
    found = request_metrics.quantile(np.array(values, dtype=np.float64), q)
    percent = round(q * 100)
    enough = [v for v in values if 100 * sum(other <= v for other in values) >= percent * len(values)]
    assert found == min(enough)


def test_every_metric_class_and_source_is_documented() -> None:
    page = (Path(__file__).parents[2] / "docs" / "reference" / "metrics.md").read_text(encoding="utf-8")
    for name in (*METRIC_NAMES, *ErrorClass, *TokenSource, *ACCEPTED_FINISH):
        assert f"`{name}`" in page, f"docs/reference/metrics.md does not define {name}"


def test_decoding_at_once_is_the_time_between_first_and_last_chunk_over_the_window() -> None:
    """Two spans of 40 ns in a window of 50 ns; what failed was served to nobody."""
    assert request_metrics.mean_decoding_requests(
        columns(ANSWERED, ANSWERED, BROKEN, REFUSED), 50 * NS
    ) == pytest.approx(1.6)


@pytest.mark.parametrize("rows", [(), (REFUSED,), (replace(ANSWERED, chunk_ns=(110,)),)])
def test_answers_in_one_piece_do_not_say_how_many_were_decoded_at_once(rows: tuple[RequestRecord, ...]) -> None:
    assert request_metrics.mean_decoding_requests(columns(*rows), 50 * NS) is None
    assert request_metrics.mean_decoding_requests(columns(ANSWERED), 0.0) is None
