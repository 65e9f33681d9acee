"""What turns a shadow comparison that agrees into a warning: lengths, refusals and cuts, each at its bound."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from benchgate.gate.checks.shadow import behaviour_warnings
from benchgate.model.records import ShadowItem
from tests.fakes.shadow_rows import FACTS, N, item, items, range_of

ALPHA = 0.05
REFUSING = replace(FACTS, refusal=True)


def told(rows: Sequence[ShadowItem]) -> list[str]:
    return list(behaviour_warnings(rows, ALPHA))


@pytest.mark.parametrize(("tokens", "warns"), [(44, True), (45, False), (50, False), (55, False), (56, True)])
@pytest.mark.parametrize("unit", ["tokens", "characters"])
def test_answers_a_tenth_shorter_or_longer_than_fifty_are_the_models_own_way(
    tokens: int, warns: bool, unit: str
) -> None:
    def side(length: int) -> dict[str, object]:
        return {"characters": length, "tokens": length if unit == "tokens" else None}

    theirs, ours = replace(FACTS, **side(50)), replace(FACTS, **side(tokens))  # type: ignore[arg-type]  # by name
    found = told(range_of(item, 0, N, primary_facts=theirs, candidate_facts=ours))
    assert len(found) == warns
    assert not warns or f"{tokens / 50:.2f} times as long" in found[0]


@pytest.mark.parametrize(("more", "fewer", "warns"), [(9, 1, True), (14, 4, False), (4, 14, False), (0, 9, False)])
def test_refusals_share_the_error_rate_with_three_other_warnings(more: int, fewer: int, warns: bool) -> None:
    """P(X >= 9) of 10 is 1.07 % and P(X >= 14) of 18 is 1.54 %, where a quarter of 5 % is 1.25 %."""
    ours = range_of(item, 0, more, candidate_facts=REFUSING)
    theirs = range_of(item, more, more + fewer, primary_facts=REFUSING)
    assert len(told(items(*ours, *theirs))) == warns


@pytest.mark.parametrize(("more", "fewer", "warns"), [(9, 1, True), (14, 4, False), (4, 14, False), (6, 0, False)])
def test_so_do_answers_that_were_cut(more: int, fewer: int, warns: bool) -> None:
    ours = range_of(item, 0, more, candidate_finish="length")
    theirs = range_of(item, more, more + fewer, primary_finish="length")
    found = told(items(*ours, *theirs))
    assert len(found) == warns
    assert not warns or f"{more} answers of the candidate were cut" in found[0]


def test_of_many_prompts_a_hundredth_more_may_be_cut() -> None:
    for cut, warns in ((20, False), (21, True)):
        rows = [*range_of(item, 0, cut, candidate_finish="length"), *range_of(item, cut, 2000)]
        assert len(told(rows)) == warns


def test_answers_of_which_one_side_is_not_known_warn_of_nothing() -> None:
    unknown = range_of(item, 0, N, primary_facts=None, candidate_facts=REFUSING)
    assert told(unknown) == []


@pytest.mark.parametrize(("more", "fewer", "warns"), [(9, 1, True), (1, 1, False)])
def test_what_both_sides_do_alike_is_on_neither_side(more: int, fewer: int, warns: bool) -> None:
    ours = range_of(item, 0, more, candidate_facts=REFUSING, candidate_finish="length")
    theirs = range_of(item, more, more + fewer, primary_facts=REFUSING, primary_finish="length")
    alike = {"candidate_facts": REFUSING, "primary_facts": REFUSING, "candidate_finish": "length"}
    both = range_of(item, 100, 200, **alike, primary_finish="length")
    assert len(told(items(*ours, *theirs, *both))) == 2 * warns
