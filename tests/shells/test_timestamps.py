"""An instant of the clock of day is told by the monotonic one to what reading both costs, and never too early."""

from __future__ import annotations

import time
from time import monotonic_ns, time_ns

import pytest

from benchgate import timestamps
from benchgate.timestamps import monotonic_of

MS = 1_000_000
AWAY_S = 0.02


def set_aside(monkeypatch: pytest.MonkeyPatch, *, before: bool, times: int) -> None:
    """As if the process had to wait before or after it read the clock of day, `times` times."""
    left = [None] * times

    def read() -> int:
        away = bool(left) and left.pop() is None
        if away and before:
            time.sleep(AWAY_S)
        now_ns = time_ns()
        if away and not before:
            time.sleep(AWAY_S)
        return now_ns

    monkeypatch.setattr(timestamps, "time_ns", read)


@pytest.mark.parametrize("ago_ns", [0, 5 * MS, -1000 * MS])
def test_an_instant_is_as_long_ago_on_both_clocks(ago_ns: int) -> None:
    before_ns = monotonic_ns()
    day_ns = time_ns()
    after_ns = monotonic_ns()
    assert before_ns - MS <= monotonic_of(day_ns - ago_ns) + ago_ns <= after_ns + 20 * MS


@pytest.mark.parametrize("before", [True, False])
@pytest.mark.parametrize("times", [1, 4, 100])
def test_who_is_set_aside_between_the_clocks_is_told_nothing_too_early(
    monkeypatch: pytest.MonkeyPatch, before: bool, times: int
) -> None:
    set_aside(monkeypatch, before=before, times=times)
    before_ns = monotonic_ns()
    assert monotonic_of(time_ns()) >= before_ns - MS


@pytest.mark.parametrize("before", [True, False])
def test_who_was_set_aside_once_reads_them_again(monkeypatch: pytest.MonkeyPatch, before: bool) -> None:
    set_aside(monkeypatch, before=before, times=1)
    day_ns, at_ns = time_ns(), monotonic_ns()
    assert monotonic_of(day_ns) - at_ns < AWAY_S * 1e9
