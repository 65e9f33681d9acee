"""Where the guards of a shadow comparison begin to trip: at the bound they hold, just beyond it they do not."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from benchgate.model.records import AnswerFacts, ShadowItem
from benchgate.model.verdict import GuardResult
from tests.fakes.guards import SHADOW, of_run
from tests.fakes.shadow_rows import FACTS, JUDGE, N, different, evidence, item, items, range_of, suite

ASKED = suite(JUDGE)


def guards(rows: Sequence[ShadowItem]) -> dict[str, GuardResult]:
    return {guard.id: guard for guard in of_run(evidence(ASKED, rows), ASKED, *SHADOW)}


def trips(name: str, rows: Sequence[ShadowItem]) -> bool:
    """Whether it does; one that does invalidates all of the shadow comparison, and nothing else."""
    found = guards(rows)[name]
    assert found.invalidates == (("shadow",) if found.tripped else ())
    assert bool(found.remedy) is found.tripped
    return found.tripped


def took(ns: int, tokens: int | None = 50) -> AnswerFacts:
    return replace(FACTS, latency_ns=ns, tokens=tokens)


@pytest.mark.parametrize("side", ["primary", "candidate"])
def test_one_in_a_hundred_answers_may_be_empty_and_one_more_may_not(side: str) -> None:
    nothing = {side: None, f"{side}_facts": replace(FACTS, characters=0), "with_primary": None}
    assert not trips("shadow-not-empty", items(*range_of(item, 0, 3, **nothing)))
    assert trips("shadow-not-empty", items(*range_of(item, 0, 4, **nothing)))


@pytest.mark.parametrize("side", ["primary", "candidate"])
def test_calls_that_failed_are_no_empty_answers_and_do_not_thin_them_out(side: str) -> None:
    failed = {side: None, f"{side}_facts": None, "with_primary": None}
    nothing = {**failed, f"{side}_facts": replace(FACTS, characters=0)}
    assert not trips("shadow-not-empty", range_of(item, 0, 100, **failed) + range_of(item, 100, N))
    three_of_two_hundred = range_of(item, 0, 3, **nothing) + range_of(item, 3, 200)
    assert trips("shadow-not-empty", three_of_two_hundred + range_of(item, 200, N, **failed))


def test_empty_answers_that_were_cut_need_more_tokens_though_others_ended_by_themselves() -> None:
    nothing = {"candidate": None, "with_primary": None}
    rows = items(item(0, candidate_finish="length", **nothing), *range_of(item, 1, 9, **nothing))
    assert "raise `shadow.max_tokens`" in str(guards(rows)["shadow-not-empty"].remedy)


def test_half_of_the_prompts_may_be_refused_and_one_more_may_not() -> None:
    refusing = replace(FACTS, refusal=True)
    for refused, tripped in ((10, False), (11, True)):
        rows = range_of(item, 0, refused, primary_facts=refusing) + range_of(item, refused, 20)
        assert trips("shadow-not-refused", rows) is tripped
    assert not trips("shadow-not-refused", range_of(item, 0, 19, primary_facts=refusing))  # too few to see it
    assert not trips("shadow-not-refused", range_of(item, 0, 20, candidate_facts=refusing))  # its own loss


def test_a_baseline_of_which_nothing_is_known_has_refused_nothing() -> None:
    assert not trips("shadow-not-refused", range_of(item, 0, 20, primary_facts=None))


@pytest.mark.parametrize(
    ("count", "ns", "tokens", "tripped"),
    [
        (20, 2_499_999, 50, True),
        (20, 2_500_000, 50, False),  # 20,000 tokens per second
        (19, 2_499_999, 50, False),
        (20, 1_599_999, 32, True),
        (20, 1, 31, False),  # an answer of a few words is quick by itself
        (20, 1, None, False),
    ],
)
def test_answers_all_alike_that_came_quicker_than_any_engine_writes(
    count: int, ns: int, tokens: int | None, tripped: bool
) -> None:
    both = {"primary_facts": took(ns, tokens), "candidate_facts": took(ns, tokens)}
    assert trips("shadow-not-cached", range_of(item, 0, count, **both)) is tripped


def test_one_answer_of_its_own_was_made_by_somebody() -> None:
    both = {"primary_facts": took(1), "candidate_facts": took(1)}
    assert trips("shadow-not-cached", range_of(item, 0, 20, **both))
    assert not trips("shadow-not-cached", [*range_of(item, 0, 19, **both), different(19, **both)])
    assert not trips("shadow-not-cached", [*range_of(item, 0, 19, **both), item(19, **both, with_primary=None)])


def test_half_of_the_answers_as_slow_as_a_model_are_no_cache_and_one_of_them_unknown_is_not_either() -> None:
    quick = {"primary_facts": took(1), "candidate_facts": took(1)}
    slow = {"primary_facts": took(10**9), "candidate_facts": took(10**9)}
    assert not trips("shadow-not-cached", range_of(item, 0, 10, **quick) + range_of(item, 10, 20, **slow))
    untold = {"primary_facts": took(1), "candidate_facts": None}
    assert not trips("shadow-not-cached", [*range_of(item, 0, 19, **quick), item(19, **untold)])


@pytest.mark.parametrize("side", ["primary", "candidate"])
@pytest.mark.parametrize(
    ("quick_ns", "slow_ns", "tripped"),
    [
        (4_999_999, 100_000_000, True),
        (5_000_000, 900_000_000, False),
        (4_000_000, 80_000_000, False),  # just 20 times as quick
        (4_000_000, 80_000_020, True),
    ],
)
def test_one_side_of_equal_answers_that_needs_hardly_any_time(
    side: str, quick_ns: int, slow_ns: int, tripped: bool
) -> None:
    other = "candidate" if side == "primary" else "primary"
    facts = {f"{side}_facts": took(quick_ns, None), f"{other}_facts": took(slow_ns, None)}
    assert trips("shadow-not-cached", range_of(item, 0, 20, **facts)) is tripped


def test_one_side_is_as_quick_as_its_usual_answer_whichever_answers_those_are() -> None:
    both = {"primary_facts": took(1_000_000, None), "candidate_facts": took(1_000_000, None)}
    one = {**both, "candidate_facts": took(900_000_000, None)}
    slow = {"primary_facts": took(900_000_000, None), "candidate_facts": took(900_000_000, None)}
    rows = [*range_of(item, 0, 9, **both), *range_of(item, 9, 11, **one), *range_of(item, 11, 20, **slow)]
    assert trips("shadow-not-cached", rows)


@pytest.mark.parametrize(
    ("remembered", "of", "tripped"), [(9, 100, False), (10, 100, True), (15, N, False), (16, N, True)]
)
def test_a_twentieth_of_the_answers_may_be_remembered_and_ten_are_the_least_that_tell(
    remembered: int, of: int, tripped: bool
) -> None:
    rows = range_of(item, 0, remembered, candidate_facts=took(1_000_000, None)) + range_of(different, remembered, of)
    assert trips("shadow-not-cached", rows) is tripped


@pytest.mark.parametrize(
    "changed",
    [
        {"primary_facts": None},
        {"candidate_facts": None},
        {"primary_facts": took(1_000_000), "candidate_facts": took(1_000_000)},
        {"candidate_facts": took(5_000_000)},
        {"primary_facts": took(20_000_000), "candidate_facts": took(1_000_000)},
    ],
)
def test_what_is_not_known_or_not_that_much_quicker_is_not_remembered(changed: dict[str, object]) -> None:
    assert not trips("shadow-not-cached", range_of(item, 0, 16, **changed) + range_of(different, 16, N))


def test_other_answers_are_not_remembered_however_quick_they_came() -> None:
    assert not trips("shadow-not-cached", range_of(different, 0, N, candidate_facts=took(1_000_000)))


def test_without_a_fact_there_is_no_guard_and_with_one_all_of_them_look() -> None:
    untold = range_of(item, 0, N, primary_facts=None, candidate_facts=None)
    assert guards(untold) == {}
    names = ["shadow-not-empty", "shadow-not-refused", "shadow-not-cached"]
    for one in ({"primary_facts": None}, {"candidate_facts": None}):
        assert list(guards([item(0, **one), *untold[1:]])) == names
    assert of_run(replace(evidence(ASKED, untold), shadow=None), ASKED, *SHADOW) == []
