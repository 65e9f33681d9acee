"""Which requests of a load count, and what is counted of them."""

from __future__ import annotations

import pytest

from benchgate.model.metric import Slo
from benchgate.model.records import ErrorClass, RequestColumns, RequestRecord, TokenSource
from benchgate.stats.capacity_search import Backlog, evaluate_probe, look_counts, steady_window

S = 1_000_000_000
SLO = Slo(e2e_s=5.0)


def row(index: int, due_s: float, end_s: float | None) -> RequestRecord:
    """A request that ended well, or failed at once."""
    due_ns, end_ns = round(due_s * S), None if end_s is None else round(end_s * S)
    return RequestRecord(
        index=index,
        intended_ns=due_ns,
        sent_ns=due_ns,
        chunk_ns=() if end_ns is None else (end_ns - 1, end_ns),
        end_ns=end_ns,
        input_tokens=1,
        output_tokens=None if end_ns is None else 2,
        token_source=TokenSource.USAGE,
        finish_reason=None if end_ns is None else "stop",
        http_status=200,
        error=None if end_ns is not None else ErrorClass.HTTP_5XX,
        error_detail=None,
    )


def steady(count: int, takes_s: float, every_s: float = 1.0) -> RequestColumns:
    return RequestColumns.pack([row(i, i * every_s, i * every_s + takes_s) for i in range(count)])


def test_open_loop_leaves_out_its_first_fifth_and_its_last_tenth() -> None:
    window = steady_window(steady(100, 3.0), None)
    assert window is not None
    assert (window.start_ns, window.end_ns) == (20 * S, 89 * S)
    counts = look_counts(steady(100, 3.0), SLO, None, 100, stretches=7)
    assert counts is not None
    assert (counts.good, counts.scheduled) == ((10,) * 7, (10,) * 7)
    assert counts.used == pytest.approx((0.6,) * 7)  # 3 s of 5 s
    assert counts.used_squares == pytest.approx(70 * 0.36)
    assert counts.backlog == Backlog(3, 3, middle=3.0, last=3.0, residence_s=3.0)


def test_answers_that_are_ever_later_leave_a_backlog() -> None:
    columns = RequestColumns.pack([row(i, i, i + 0.5 + i / 2) for i in range(100)])
    counts = look_counts(columns, Slo(e2e_s=1000.0), None, 100)
    assert counts is not None
    assert counts.backlog is not None
    assert counts.backlog.after - counts.backlog.before == 23  # of 69 that came, 46 were finished
    # One of three that came is left: a third of the window later there are a third of those 23 more.
    assert counts.backlog.last - counts.backlog.middle == pytest.approx(23 / 3, abs=0.1)
    assert counts.backlog.residence_s == pytest.approx(0.5 + (66 + 89) / 2 / 2)
    assert sum(counts.good) == 70


def test_slow_start_and_fast_end_do_not_count() -> None:
    late = [row(i, i, i + 9) for i in range(20)] + [row(i, i, i + 1) for i in range(20, 100)]
    counts = look_counts(RequestColumns.pack(late), SLO, None, 100)
    assert counts is not None
    assert sum(counts.good) == sum(counts.scheduled) == 70


def test_failed_requests_are_misses_and_no_backlog() -> None:
    counts = look_counts(RequestColumns.pack([row(i, i, None) for i in range(100)]), SLO, None, 100)
    assert counts is not None
    assert (sum(counts.good), sum(counts.scheduled)) == (0, 70)
    assert counts.backlog == Backlog(0, 0, 0.0, 0.0, 0.0)
    assert set(counts.used) == {2.0}


def test_requests_without_a_record_were_cut_and_count_as_scheduled() -> None:
    counts = look_counts(steady(100, 1.0), SLO, None, 130)
    assert counts is not None
    assert (counts.cut, sum(counts.scheduled), sum(counts.good)) == (30, 100, 70)


def test_closed_loop_counts_from_its_level_reached_to_its_level_lost() -> None:
    """Four at a time, each 1 s; the first four leave in one burst, the last four are answered alone."""
    waves = [row(4 * wave + slot, wave, wave + 1.0) for wave in range(10) for slot in range(4)]
    window = steady_window(RequestColumns.pack(waves), 4)
    assert window is not None
    assert (window.start_ns, window.end_ns) == (1 * S, 9 * S)
    counts = look_counts(RequestColumns.pack(waves), SLO, 4, 40)
    assert counts is not None
    assert sum(counts.scheduled) == 36
    assert counts.backlog is None


def test_closed_loop_that_never_came_to_its_level_has_no_window() -> None:
    one_by_one = RequestColumns.pack([row(i, i, i + 0.9) for i in range(50)])
    assert steady_window(one_by_one, 4) is None
    assert look_counts(one_by_one, SLO, 4, 50) is None


def test_nothing_has_no_window() -> None:
    assert steady_window(RequestColumns.pack([]), None) is None
    assert look_counts(RequestColumns.pack([]), SLO, None, 10) is None


@pytest.mark.parametrize(("every_s", "short"), [(0.1, True), (1.0, False)])
def test_level_watched_for_less_than_ten_seconds_is_called_so(every_s: float, *, short: bool) -> None:
    counts = look_counts(steady(100, 0.5, every_s), SLO, None, 100)
    assert counts is not None
    assert counts.window_s == pytest.approx(69 * every_s)
    assert evaluate_probe([counts], 0.5, 0.05).short is short


def with_ramp(takes_s: float) -> tuple[RequestColumns, RequestColumns]:
    """One request a second: 20 of the ramp, 60 that are measured and 10 of the ramp."""
    rows = [row(i, i, i + takes_s) for i in range(90)]
    return RequestColumns.pack(rows[20:80]), RequestColumns.pack([*rows[:20], *rows[80:]])


def test_measured_requests_are_the_window_of_a_load_with_a_ramp() -> None:
    measured, ramp = with_ramp(3.5)
    counts = look_counts(measured, SLO, None, 60, ramp=ramp)
    assert counts is not None
    assert (sum(counts.good), sum(counts.scheduled), counts.cut) == (60, 60, 0)
    assert (counts.window_s, counts.stage_s) == pytest.approx((59.0, 92.5))
    # What was in flight at the first measured request is of the ramp: a full server is no backlog that grew.
    assert counts.backlog is not None
    assert (counts.backlog.before, counts.backlog.after) == (4, 4)
    assert evaluate_probe([counts], 0.9, 0.05).unstable is False


def test_closed_loop_with_a_ramp_counts_all_that_is_measured() -> None:
    measured, ramp = with_ramp(3.5)
    counts = look_counts(measured, SLO, 4, 60, ramp=ramp)
    assert counts is not None
    assert (sum(counts.scheduled), counts.backlog) == (60, None)


def test_backlog_that_grows_is_seen_beside_a_ramp() -> None:
    rows = [row(i, i, i + 0.5 + i / 2) for i in range(90)]
    counts = look_counts(
        RequestColumns.pack(rows[20:80]), Slo(e2e_s=1000.0), None, 60, ramp=RequestColumns.pack(rows[:20] + rows[80:])
    )
    assert counts is not None and counts.backlog is not None
    assert counts.backlog.after - counts.backlog.before == pytest.approx(20, abs=1)
