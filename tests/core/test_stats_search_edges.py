"""What a search may send, and what levels that contradict each other, or saw nothing, leave open."""

from __future__ import annotations

import math

import pytest

from benchgate.stats.capacity_search import (
    LOOK_SHARES,
    Backlog,
    FinishedLook,
    LevelStatus,
    LookCounts,
    PlannedLook,
    SearchSettings,
    evaluate_probe,
    search_result,
)
from benchgate.stats.divergence import kld_lower_bound

STILL = Backlog(1, 1, 1.0, 1.0, residence_s=1.0)
GROWS = Backlog(0, 3000, 100.0, 2000.0, residence_s=10.0)


def counts(good: int, scheduled: int, *, stretches: int = 5, backlog: Backlog | None = STILL) -> LookCounts:
    each, hits = scheduled // stretches, good // stretches
    return LookCounts(
        (hits,) * stretches, (each,) * stretches, 0, (0.5,) * stretches, 0.26 * scheduled, backlog, window_s=60.0
    )


def settings(budget_requests: int | None = None) -> SearchSettings:
    return SearchSettings("rate", 1.0, 64.0, 0.9, 0.1, probe_requests=1600, budget_requests=budget_requests)


@pytest.mark.parametrize("budget", [None, 1, 10**9])
def test_a_search_sends_every_look_of_every_probe_at_most_and_never_more_than_its_budget(budget: int | None) -> None:
    asked = settings(budget)
    every = asked.most_probes * 1600  # the looks of one probe, by their shares of it
    assert asked.most_requests == (every if budget is None else min(every, budget))


def test_concurrencies_send_enough_to_fill_and_empty_them() -> None:
    asked = SearchSettings("concurrency", 1, 1000, 0.9, 0.1, probe_requests=1600)
    assert asked.most_requests == asked.most_probes * len(LOOK_SHARES) * 4000


def test_a_fit_that_crosses_outside_of_the_bracket_is_no_estimate() -> None:
    """The backlog of 4 grows though its requests are good, so the capacity is below 4; the shares fall beyond it."""
    looks = [
        FinishedLook(2.0, 2000, counts(2000, 2000)),
        FinishedLook(4.0, 2000, counts(2000, 2000, backlog=GROWS)),
        FinishedLook(8.0, 2000, counts(200, 2000)),
    ]
    found = search_result(settings(), looks)
    assert (found.lower, found.upper, found.estimate) == (2.0, 4.0, None)
    assert found.fit is not None and (found.fit.crossing(0.9) or 0.0) > 4.0


def test_a_backlog_that_grows_fails_a_level_of_which_nothing_else_is_known() -> None:
    found = evaluate_probe([counts(100, 100, stretches=1, backlog=GROWS)], 0.95, 0.05)
    assert (found.standing, found.unstable, found.limits) == (LevelStatus.FAIL, True, None)
    assert found.p_value is not None and found.p_value < 1e-6


def test_looks_that_saw_nothing_need_no_number_of_requests() -> None:
    found = evaluate_probe([counts(0, 0)] * len(LOOK_SHARES), 0.95, 0.05)
    assert (found.standing, found.share, found.needs, found.p_value) == (LevelStatus.UNRESOLVED, None, None, None)


@pytest.mark.parametrize("nothing", [{}, {"a": -87.3, "b": -200.0}, {"a": -math.inf}])
def test_a_listing_without_any_probability_is_no_nearness(nothing: dict[str, float]) -> None:
    fine = {"a": math.log(0.6), "b": math.log(0.2)}
    for baseline, candidate in ((fine, nothing), (nothing, fine)):
        with pytest.raises(ValueError, match="probability 0"):
            kld_lower_bound(baseline, candidate)


@pytest.mark.parametrize(("level", "name"), [(2.5, "2.5"), (64.0, "64"), (0.1 + 0.2, "0.3")])
def test_a_level_is_named_as_a_person_would_write_it(level: float, name: str) -> None:
    assert PlannedLook(level, 0, 100).name == name
    assert float(name) == pytest.approx(level)
