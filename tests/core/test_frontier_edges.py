"""Who beats whom where two are exactly alike in one thing, or nothing is known of the baseline beside one of them."""

from __future__ import annotations

from dataclasses import replace

from benchgate.sizing.frontier import (
    CheapestOption,
    ContestedCheapest,
    FrontierPosition,
    FrontierStatus,
    Option,
    cheapest_option,
    frontier_positions,
)
from benchgate.stats.meta import EstimateWithLimits
from tests.core.test_frontier import figure, option


def exact(name: str, quality: float, usd: float, share: float) -> Option:
    return Option(name, figure(quality), figure(usd), figure(share), True)


def test_what_is_exactly_as_good_and_cheaper_beats_the_other() -> None:
    found = frontier_positions([exact("dear", 0.8, 2.0, 0.8), exact("cheap", 0.8, 1.0, 0.4)])
    assert found == {
        "dear": FrontierPosition(FrontierStatus.OFF, ("cheap",)),
        "cheap": FrontierPosition(FrontierStatus.ON),
    }


def test_what_is_better_for_exactly_the_same_money_beats_nobody() -> None:
    found = frontier_positions([exact("good", 0.9, 1.0, 0.4), exact("poor", 0.8, 1.0, 0.4)])
    assert {one.standing for one in found.values()} == {FrontierStatus.ON}


def test_of_two_of_one_price_that_of_the_lower_share_is_the_cheapest() -> None:
    one, other = exact("one", 0.8, 1.0, 0.5), exact("other", 0.8, 1.0, 0.4)
    for some in ([one, other], [other, one]):
        assert cheapest_option(some) == CheapestOption("other", ("one",))
    unknown = replace(one, share=None)
    for some in ([unknown, other], [other, unknown]):
        assert cheapest_option(some) == CheapestOption("other", ("one",))  # what is not known is no lower share


def test_what_does_not_pass_or_has_no_cost_contests_nobody() -> None:
    here = exact("here", 0.8, 1.0, 0.5)
    failed = replace(exact("failed", 0.8, 2.0, 0.1), passes=False)
    unpriced = Option("unpriced", figure(0.8), None, None, True)
    assert cheapest_option([here, failed, unpriced]) == CheapestOption("here", ())
    assert cheapest_option([here, replace(failed, passes=True)]) == ContestedCheapest("here", "failed")


def test_an_estimate_without_an_interval_is_never_shown_to_be_dearer() -> None:
    here, there = option("here", 0.8, 1.0), replace(option("there", 0.8, 9.0), share=EstimateWithLimits(4.5, None))
    assert cheapest_option([here, there]) == CheapestOption("here", ("there",))
