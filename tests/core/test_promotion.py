"""What stands of promotions: the newest word on each run, and which runs are the baseline series."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from benchgate.model.history import (
    Promotion,
    PromotionAction,
    PromotionGrounds,
    PromotionOrigin,
    baseline_series,
    current_promotions,
    promotion_labels,
)
from benchgate.model.verdict import Outcome

GROUNDS = PromotionGrounds(Outcome.PASS, "v", "e", "s", "p", "m", "r")
MAIN = PromotionOrigin("anna", "main", "c0ffee", protected=True)


def promoted(run: str, at: int, **changes: Any) -> Promotion:
    fields: dict[str, Any] = {"deed": PromotionAction.PROMOTED, "origin": MAIN, "grounds": GROUNDS} | changes
    return Promotion(f"id-{run}-{at}", run, f"2026-01-01T00:00:{at:02d}.000Z", "smoke", **fields)


def withdrawn(run: str, at: int, **changes: Any) -> Promotion:
    return promoted(run, at, **{"deed": PromotionAction.WITHDRAWN, "grounds": None, "reason": "it leaks"} | changes)


def names(found: tuple[Promotion, ...]) -> list[str]:
    return [one.run_id for one in found]


def test_series_is_what_passed_on_a_protected_ref_and_was_not_withdrawn() -> None:
    said = [
        promoted("a", 1),
        promoted("pull", 2, origin=PromotionOrigin("mallory", "refs/pull/1/merge")),
        promoted(
            "forced", 3, deed=PromotionAction.OVERRIDDEN, grounds=replace(GROUNDS, outcome=Outcome.BLOCK), reason="fire"
        ),
        promoted("b", 4),
        withdrawn("b", 5),
        promoted("c", 6),
    ]
    assert names(baseline_series(said)) == ["a", "c"]
    assert set(current_promotions(said)) == {"a", "pull", "forced", "c"}


def test_run_that_comes_back_is_the_newest_and_one_said_twice_moves_nowhere() -> None:
    back = [promoted("a", 1), promoted("b", 2), withdrawn("a", 3), promoted("a", 4)]
    assert names(baseline_series(back)) == ["b", "a"]
    assert names(baseline_series([promoted("a", 1), promoted("b", 2), promoted("a", 3)])) == ["a", "b"]


def test_lesser_word_on_a_run_takes_nothing_from_a_greater_one() -> None:
    outside = promoted("a", 2, origin=PromotionOrigin("mallory"))
    assert names(baseline_series([promoted("a", 1), outside])) == ["a"]
    assert baseline_series([promoted("a", 1), outside])[0].promoted_at.endswith("01.000Z")
    assert names(baseline_series([replace(outside, promoted_at="2026-01-01T00:00:00.000Z"), promoted("a", 1)])) == ["a"]


def test_only_a_protected_ref_takes_a_run_out_of_the_series_wherever_the_record_came_from() -> None:
    anybody = PromotionOrigin("mallory", "main")
    assert names(baseline_series([promoted("a", 1), withdrawn("a", 2, origin=anybody)])) == ["a"]
    assert names(baseline_series([promoted("a", 1), withdrawn("a", 2, origin=anybody), withdrawn("a", 3)])) == []
    outside = [promoted("a", 1, origin=anybody), withdrawn("a", 2, origin=anybody)]
    assert current_promotions(outside) == {}
    assert names(baseline_series([*outside, promoted("a", 3)])) == ["a"]


def test_reader_is_told_what_stands_of_each_run_or_that_it_was_withdrawn() -> None:
    said = [
        promoted("a", 1),
        promoted("b", 2),
        withdrawn("b", 3),
        promoted("c", 4),
        withdrawn("c", 5, origin=PromotionOrigin("mallory")),
        promoted("d", 6, origin=PromotionOrigin("mallory")),
        withdrawn("a", 7),
        promoted("a", 8),
    ]
    in_series = "promoted, in the baseline series"
    assert promotion_labels(said) == {"a": in_series, "b": "withdrawn", "c": in_series, "d": "promoted"}


def test_record_is_read_again_as_it_was_written() -> None:
    in_ci = promoted("a", 3, origin=PromotionOrigin("anna", "main", ci="GitHub Actions for ben"))
    for one in (promoted("a", 1), withdrawn("a", 2), in_ci):
        assert Promotion.from_json(one.to_json()) == one
    assert promoted("a", 1).to_json()["origin"] == {"by": "anna", "ref": "main", "commit": "c0ffee", "protected": True}


@pytest.mark.parametrize(
    "changes",
    [
        {"deed": "withdrawn"},
        {"grounds": None},
        {"deed": "kept"},
        {"grounds": {**promoted("a", 1).to_json()["grounds"], "outcome": "BLOCK"}},  # type: ignore[dict-item]  # JSON
        {"origin": {"by": "anna", "protected": 1}},
        {"origin": {"by": "anna", "protected": "false"}},
        {"more": 1},
    ],
)
def test_what_no_command_would_record_is_no_promotion(changes: dict[str, object]) -> None:
    with pytest.raises((KeyError, TypeError, ValueError)):
        Promotion.from_json({**promoted("a", 1).to_json(), **changes})
