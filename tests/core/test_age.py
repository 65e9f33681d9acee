"""How long ago a run ended: what is missing, unreadable or to come is too old."""

from __future__ import annotations

import math

import pytest

from benchgate.model.run import too_old_because

NOW, DAY_S = "2026-03-01T00:00:00.000Z", 86_400.0


@pytest.mark.parametrize(
    ("ended", "says"),
    [
        ("2026-01-29T00:00:00.000Z", "it ended 31.0 days ago, more than 30.0 days; measure it again"),
        (
            "2026-03-01T01:00:00.000Z",
            "it ended at 2026-03-01T01:00:00.000Z, which is in the future: check the clocks",
        ),
        (None, "its end time is unknown"),
        ("yesterday", "its end time is unknown"),
        ("2026-02-28T00:00:00.000", "its end time is unknown"),
    ],
)
def test_what_ended_long_ago_or_nobody_knows_when_is_too_old(ended: str | None, says: str) -> None:
    assert too_old_because(ended, NOW, 30 * DAY_S) == says


def test_what_ended_lately_is_not_and_another_clock_may_be_minutes_ahead() -> None:
    for ended in ("2026-01-30T00:00:00.000Z", "2026-03-01T00:04:00.000Z", "2026-03-01T01:00:00.000+01:00"):
        assert too_old_because(ended, NOW, 30 * DAY_S) is None


def test_no_bound_takes_any_age_but_none_that_is_not_known() -> None:
    assert too_old_because("2001-01-01T00:00:00.000Z", NOW, math.inf) is None
    assert too_old_because(None, NOW, math.inf) is not None
