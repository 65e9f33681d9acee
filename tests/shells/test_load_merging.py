"""What several workers measured of themselves, as one: nobody hides behind a worker that was better off."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from benchgate.load.results import StageResult, merged, no_rows
from benchgate.model.run import ClientUse

AT_EASE = ClientUse(
    cpu_s=1.0,
    wall_s=10.0,
    workers=1,
    busiest_share=0.2,
    read_delay_p50_s=0.001,
    read_delay_p99_s=0.002,
    read_delay_max_s=0.003,
    read_delay_by="kernel",
)


def together(uses: Sequence[ClientUse]) -> ClientUse:
    return merged([StageResult.of(no_rows(), 0.0, use) for use in uses]).client


def with_another(**other: Any) -> ClientUse:
    """The first worker at ease and this one, which come to the same in any order."""
    uses = AT_EASE, replace(AT_EASE, **other)
    whole = together(uses)
    assert together(uses[::-1]) == whole
    return whole


WORST = ["busiest_share", "read_delay_p50_s", "read_delay_p99_s", "read_delay_max_s"]


@pytest.mark.parametrize("what", WORST)
def test_a_worker_that_is_worse_off_is_the_one_that_is_told_of(what: str) -> None:
    worse: dict[str, Any] = {what: 0.9}
    assert with_another(**worse) == replace(AT_EASE, cpu_s=2.0, workers=2, **worse)


@pytest.mark.parametrize("what", WORST)
def test_a_worker_that_measured_nothing_hides_no_other(what: str) -> None:
    unmeasured: dict[str, Any] = {what: None}
    assert with_another(**unmeasured) == replace(AT_EASE, cpu_s=2.0, workers=2)
    nobody = replace(AT_EASE, **unmeasured)
    assert getattr(together([nobody, nobody]), what) is None


def test_each_figure_is_that_of_the_worker_that_was_worst_off_in_it() -> None:
    late_at_times = {"busiest_share": 0.1, "read_delay_p50_s": 0.0005, "read_delay_p99_s": 0.2, "read_delay_max_s": 0.3}
    whole = with_another(**late_at_times)
    assert [getattr(whole, what) for what in WORST] == [0.2, 0.001, 0.2, 0.3]


@pytest.mark.parametrize(("by", "told"), [("kernel", "kernel"), ("canary", "canary"), (None, "kernel")])
def test_delays_are_the_kernels_where_no_worker_has_any_other(by: str | None, told: str) -> None:
    assert with_another(read_delay_by=by).read_delay_by == told


def test_what_workers_met_is_counted_together_and_the_longest_of_them_is_how_long_it_took() -> None:
    whole = with_another(cpu_s=4.0, wall_s=12.0, unasked=3, closed_early=2)
    assert (whole.cpu_s, whole.wall_s, whole.workers, whole.unasked, whole.closed_early) == (5.0, 12.0, 2, 3, 2)
    late = [replace(AT_EASE, faults=(f"worker {number} was late",)) for number in (1, 2)]
    assert together(late).faults == ("worker 1 was late", "worker 2 was late")
