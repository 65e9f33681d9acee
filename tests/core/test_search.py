"""The search as a pure machine: where it looks, when it stops, what it says, and what it never says."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import pytest

from benchgate.stats.capacity_search import (
    Backlog,
    FinishedLook,
    LevelStatus,
    LookCounts,
    PlannedLook,
    SearchResult,
    SearchSettings,
    StopReason,
    next_look,
    search_result,
)

Server = Callable[[float], float]


def settings(**changed: object) -> SearchSettings:
    values: dict[str, object] = {
        "over": "rate",
        "lowest": 1.0,
        "highest": 64.0,
        "target_ratio": 0.9,
        "resolution_ratio": 0.1,
        "probe_requests": 2000,
    }
    return SearchSettings(**{**values, **changed})  # type: ignore[arg-type]  # by name


def seen(share: float, requests: int, level: float, ramp: int = 0) -> FinishedLook:
    """A look at a server that answers exactly this share well, evenly spread."""
    good = tuple(round(share * requests / 5) for _ in range(5))
    each = tuple(round(requests / 5) for _ in range(5))
    still = Backlog(1, 1, 1.0, 1.0, residence_s=1.0)
    counts = LookCounts(good, each, 0, (0.5,) * 5, 0.26 * sum(each), still, window_s=60.0)
    return FinishedLook(level, requests + ramp, counts, ramp)


def searched(server: Server, asked: SearchSettings) -> tuple[SearchResult, list[float]]:
    """The result, and the levels in the order they were looked at."""
    looks: list[FinishedLook] = []
    while not isinstance(step := next_look(asked, looks), StopReason):
        assert isinstance(step, PlannedLook)
        looks.append(seen(server(step.level), step.requests, step.level))
    levels = [look.level for look in looks]
    return search_result(asked, looks), list(dict.fromkeys(levels))


def cliff_at(capacity: float) -> Server:
    return lambda level: 1.0 if level <= capacity else 0.2


@pytest.mark.parametrize("capacity", [1.0, 1.05, 2.0, 7.3, 23.0, 63.9])
def test_bracket_closes_around_the_capacity(capacity: float) -> None:
    result, _ = searched(cliff_at(capacity), settings())
    assert result.stop is StopReason.CONVERGED
    assert result.lower is not None
    assert result.upper is not None
    assert result.lower <= capacity < result.upper
    assert result.upper / result.lower <= 1.1011
    assert result.lower <= (result.estimate or 0.0) <= result.upper


def test_search_doubles_to_a_breach_and_halves_what_is_left() -> None:
    _, levels = searched(cliff_at(10.0), settings())
    assert levels[:5] == [1, 2, 4, 8, 16]
    assert levels[5] == pytest.approx(math.sqrt(8 * 16), rel=1e-3)


def test_far_levels_cost_few_requests_and_only_near_ones_many() -> None:
    result, _ = searched(lambda level: 1.0 if level < 9 else 0.92 if level < 12 else 0.3, settings())
    sent = {probe.level: probe.sent for probe in result.probes}
    assert sent[1.0] == sent[2.0] == 125
    assert sent[16.0] <= 125


def test_concurrencies_are_whole_numbers_and_neighbours_are_as_near_as_it_gets() -> None:
    result, levels = searched(cliff_at(5), settings(over="concurrency", highest=64.0))
    assert (result.stop, result.lower, result.upper) == (StopReason.CONVERGED, 5, 6)
    assert all(level % 1 == 0 for level in levels)


def test_look_at_a_concurrency_sends_several_times_as_many_requests() -> None:
    looked = settings(over="concurrency", lowest=64.0, highest=128.0, probe_requests=160)
    step = next_look(looked, [])
    assert isinstance(step, PlannedLook)
    assert step.requests == 4 * 64


def test_target_missed_at_the_lowest_level_is_said() -> None:
    result, levels = searched(cliff_at(0.5), settings())
    assert (result.stop, result.lower, result.upper, levels) == (StopReason.UNMET_AT_MINIMUM, None, 1.0, [1.0])


def test_target_met_at_the_highest_level_is_said() -> None:
    result, levels = searched(cliff_at(100.0), settings(highest=48.0))
    assert (result.stop, result.lower, result.upper, levels[-1]) == (StopReason.NEVER_BREACHED, 48.0, None, 48.0)


def test_level_on_the_target_itself_stays_unresolved_and_is_no_end_of_the_bracket() -> None:
    result, _ = searched(lambda level: 1.0 if level < 7 else 0.9 if level < 12 else 0.3, settings())
    assert result.stop is StopReason.UNRESOLVED
    unresolved = [probe.level for probe in result.probes if probe.finding.standing is LevelStatus.UNRESOLVED]
    assert unresolved
    assert result.lower is not None
    assert result.upper is not None
    assert result.lower < min(unresolved) <= max(unresolved) < result.upper
    assert min(unresolved) / result.lower <= 1.1011 or result.upper / max(unresolved) <= 1.1011


def test_unresolved_search_says_how_many_more_requests_it_needs() -> None:
    result, _ = searched(lambda level: 1.0 if level < 7 else 0.92 if level < 12 else 0.3, settings(probe_requests=400))
    assert result.stop is StopReason.UNRESOLVED
    assert result.needs is not None
    assert result.needs > 100


def test_budget_stops_a_search_before_it_is_passed() -> None:
    result, _ = searched(cliff_at(10.0), settings(budget_requests=500))
    assert result.stop is StopReason.BUDGET_EXHAUSTED
    assert result.sent <= 500
    assert (result.lower, result.upper) == (8.0, None)


def test_budget_has_room_for_a_ramp_as_large_as_those_before_it() -> None:
    asked, looks = settings(budget_requests=700), list[FinishedLook]()
    while isinstance(step := next_look(asked, looks), PlannedLook):
        looks.append(seen(1.0, step.requests, step.level, ramp=10 * int(step.level)))
    assert step is StopReason.BUDGET_EXHAUSTED
    result = search_result(asked, looks)
    # 125 measured at each of 1, 2, 4 and 8, and the ramps: at 16 they would be 125 + 160 more.
    assert [probe.level for probe in result.probes] == [1, 2, 4, 8]
    assert (result.sent, result.measured) == (4 * 125 + 150, 4 * 125)
    assert next_look(asked, [replace(looks[0], sent=701, ramp=576)]) is StopReason.BUDGET_EXHAUSTED


def test_looks_that_do_not_count_spend_the_budget_and_show_nothing() -> None:
    asked, looks = settings(budget_requests=500), list[FinishedLook]()
    while isinstance(step := next_look(asked, looks), PlannedLook):
        assert (step.level, step.number) == (1.0, 0)
        looks.append(FinishedLook(step.level, step.requests, None))
    result = search_result(asked, looks)
    assert (step, len(looks)) == (StopReason.BUDGET_EXHAUSTED, 4)
    assert (result.sent, result.measured, result.probes) == (500, 0, ())


def test_every_search_ends_within_its_probes() -> None:
    asked = settings(resolution_ratio=0.01)
    result, levels = searched(lambda level: 0.9 if 3 < level < 40 else float(level <= 3), asked)
    assert len(levels) <= asked.most_probes
    assert result.stop in (StopReason.UNRESOLVED, StopReason.PROBES_EXHAUSTED)


def test_cliff_between_neighbouring_levels_is_named() -> None:
    result, _ = searched(cliff_at(10.0), settings())
    assert result.cliff is not None
    assert result.cliff == (result.lower, result.upper)
    gentle, _ = searched(lambda level: max(0.0, 1 - level / 40), settings())
    assert gentle.cliff is None


def test_search_under_way_has_no_stop_and_nothing_looked_at_has_no_bracket() -> None:
    asked = settings()
    first = search_result(asked, [])
    assert (first.stop, first.lower, first.upper, first.fit) == (None, None, None, None)
    under_way = search_result(asked, [seen(1.0, 125, 1.0)])
    assert (under_way.stop, under_way.lower, under_way.upper) == (None, 1.0, None)


def test_levels_that_contradict_each_other_lie_inside_the_bracket() -> None:
    looks = [seen(share, 400, level) for level, share in ((1.0, 1.0), (2.0, 0.2), (4.0, 1.0), (8.0, 0.2))]
    result = search_result(settings(), looks)
    assert (result.lower, result.upper) == (1.0, 8.0)
    assert result.stop is not StopReason.CONVERGED


def test_fit_never_rises_although_shares_do() -> None:
    asked = settings()
    looks = [seen(share, 400, level) for level, share in ((1.0, 1.0), (2.0, 0.95), (4.0, 1.0), (8.0, 0.2))]
    fit = search_result(asked, looks).fit
    assert fit is not None
    assert list(fit.shares) == sorted(fit.shares, reverse=True)
    assert fit.shares[1] == fit.shares[2]


@pytest.mark.parametrize(
    "wrong",
    [{"lowest": 0.0}, {"lowest": 65.0}, {"over": "concurrency", "lowest": 1.5}, {"resolution_ratio": 0.0}],
    ids=str,
)
def test_settings_that_cannot_be_searched_are_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=r"expected|whole"):
        settings(**wrong)
