"""Checks of fixed texts at their boundaries, and over readings that are whole in parts only."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import pytest

from benchgate.gate.judge import judge
from benchgate.model.records import DivergenceItem
from benchgate.model.verdict import CheckResult, Outcome
from tests.core.test_gate_divergence import (
    EACH,
    KLD,
    PIECES,
    PPL,
    REQUIRED,
    TOP1,
    Policy,
    evidence,
    items,
    near,
    observed,
    only,
    suite,
    verdict,
)

FEWEST = 10  # pieces of text


def found(seen: Sequence[DivergenceItem], check: Policy, **changes: object) -> CheckResult:
    return only(verdict(seen, check | REQUIRED, **changes))


def in_pieces(seen: Sequence[DivergenceItem], count: int) -> list[DivergenceItem]:
    return [replace(item, text_id=f"t{number % count}", position=number) for number, item in enumerate(seen)]


@pytest.mark.parametrize("check", [KLD, TOP1, PPL])
def test_ten_pieces_of_text_are_the_fewest_whose_spread_is_known(check: Policy) -> None:
    seen = near(0.0)
    assert found(in_pieces(seen, FEWEST), check).outcome is Outcome.PASS
    few = found(in_pieces(seen, FEWEST - 1), check)
    assert (few.outcome, "9 pieces of text" in few.reason) == (Outcome.INCONCLUSIVE, True)


def test_one_bound_among_exact_divergences_makes_all_of_them_one() -> None:
    seen = items(0.01)
    assert found(seen, KLD).outcome is Outcome.PASS
    seen[7] = replace(seen[7], bound=True)
    assert found(seen, KLD).outcome is Outcome.INCONCLUSIVE


def disagreeing(places: set[int]) -> list[DivergenceItem]:
    return [replace(item, same_top1=number not in places) for number, item in enumerate(items())]


def at_most(points: float) -> Policy:
    return {"metric": "same_top1", "min": f"{100 - points:g}%"}


def test_below_ten_disagreements_no_spread_of_pieces_is_trusted_alone() -> None:
    """Of 9 in 200 Clopper-Pearson's upper limit is 7.7 %; of 10, one in every other piece, t's is 7.0 %."""
    for count, outcome in ((9, Outcome.INCONCLUSIVE), (10, Outcome.PASS)):
        assert found(disagreeing({n * EACH for n in range(count)}), at_most(7.5)).outcome is outcome


def test_few_disagreements_that_lie_together_are_as_uncertain_as_the_pieces_are() -> None:
    """Nine in one piece of twenty: t's upper limit over pieces is 12 %, Clopper-Pearson's 7.7 %."""
    assert found(disagreeing(set(range(9))), at_most(10)).outcome is Outcome.INCONCLUSIVE
    assert found(disagreeing({n * EACH for n in range(9)}), at_most(10)).outcome is Outcome.PASS


def test_a_baseline_that_may_disagree_with_itself_as_often_as_a_broken_candidate_leaves_no_room() -> None:
    """At 88 % of the positions, and by the limits over pieces perhaps at 90.4 %."""
    each = [9] * 18 + [7] * 2
    noisy = disagreeing({piece * EACH + n for piece, count in enumerate(each) for n in range(count)})
    seen = [replace(item, floor_kld=0.001, floor_same_top1=item.same_top1) for item in noisy]
    assert found(seen, at_most(10)).outcome is Outcome.INVALID
    assert found(seen, at_most(8)).outcome is Outcome.PASS


def test_a_share_near_its_bound_warns() -> None:
    everywhere = disagreeing({n * EACH for n in range(PIECES)})  # one of ten, in every piece
    assert found(everywhere, at_most(12)).outcome is Outcome.WARN
    assert found(everywhere, at_most(13)).outcome is Outcome.PASS
    assert found(everywhere, at_most(10)).outcome is Outcome.WARN  # just at it
    assert found(everywhere, at_most(9)).outcome is Outcome.BLOCK


@pytest.mark.parametrize("side", ["baseline_ln", "candidate_ln"])
def test_one_probability_that_was_not_told_leaves_no_perplexity(side: str) -> None:
    seen = near(0.0)
    seen[7] = replace(seen[7], **{side: None})  # type: ignore[arg-type]  # by name
    check = found(seen, PPL)
    assert (check.outcome, "does not return the probability" in check.reason) == (Outcome.INVALID, True)


@pytest.mark.parametrize(("harm", "outcome"), [(-0.065, Outcome.INVALID), (-0.05, Outcome.PASS)])
def test_a_twentieth_below_the_baseline_is_as_good_as_a_candidate_may_be(harm: float, outcome: Outcome) -> None:
    assert found(near(harm), PPL).outcome is outcome


def test_a_long_tail_that_a_few_positions_make_raises_the_upper_limit() -> None:
    """One position in 200 is broken: Student's upper limit is 0.082 nats, the one with the skewness taken out more."""
    seen = [replace(item, kld=6.0 if number == 50 else 0.001) for number, item in enumerate(items())]
    check = found(seen, {"metric": "kld", "max": "0.1 nats"})
    assert check.outcome is Outcome.INCONCLUSIVE
    assert check.upper is not None and check.upper > 0.1
    harmful = [
        replace(item, candidate_ln=-8.0 if number == 50 else item.baseline_ln) for number, item in enumerate(seen)
    ]
    assert found(harmful, {"metric": "perplexity", "margin": "10%"}).outcome is Outcome.INCONCLUSIVE


def test_a_long_tail_of_gains_lowers_no_upper_limit() -> None:
    """Harm of 0.05 nats everywhere but at one position: the mean is 0.02 and Student's upper limit 0.072."""
    seen = [
        replace(item, baseline_ln=-6.5, candidate_ln=-0.5 if number == 50 else -6.55)
        for number, item in enumerate(items())
    ]
    check = found(seen, {"metric": "perplexity", "margin": "6%"})
    assert check.outcome is Outcome.INCONCLUSIVE
    assert check.upper is not None and check.upper == pytest.approx(0.072, abs=0.002)


def test_harm_that_is_shown_and_not_shown_to_be_beyond_the_margin_blocks_only_without_breach() -> None:
    seen = near(0.018, 0.06)
    assert found(seen, PPL).outcome is Outcome.BLOCK
    assert found(seen, {**PPL, "block_when": "breach"}).outcome is Outcome.INCONCLUSIVE
    assert found(near(0.08), {**PPL, "block_when": "breach"}).outcome is Outcome.BLOCK


def test_a_stored_run_that_read_nothing_is_nothing_to_be_held_against() -> None:
    policy = suite(PPL)
    judged = evidence(policy, observed(near(0.0)))
    for lacking in (None, observed(near(0.0), fault="interrupted")):
        assert judge(policy, judged, evidence(policy, lacking)).outcome is Outcome.INVALID
    assert judge(policy, judged, evidence(policy, observed(near(0.0)))).outcome is Outcome.PASS


@pytest.mark.parametrize(("strangers", "outcome"), [(20, Outcome.PASS), (21, Outcome.INVALID)])
def test_a_tenth_of_the_positions_may_have_no_token_in_common(strangers: int, outcome: Outcome) -> None:
    seen = [replace(item, shared=0 if number < strangers else 1, bound=True) for number, item in enumerate(items())]
    assert found(seen, TOP1, way="cut").outcome is outcome


@pytest.mark.parametrize("side", ["floor_kld", "floor_same_top1"])
def test_half_a_floor_at_one_position_is_no_floor(side: str) -> None:
    seen = [replace(item, floor_kld=0.001, floor_same_top1=True) for item in items()]
    assert found(seen, KLD).outcome is Outcome.PASS
    seen[7] = replace(seen[7], **{side: None})  # type: ignore[arg-type]  # by name
    assert found(seen, KLD).outcome is Outcome.INVALID


@pytest.mark.parametrize("wrong", [{"kld": 0.0}, {"candidate_ln": 0.0}, {"baseline_ln": 0.0}, {"floor_kld": 0.0}])
def test_what_is_just_possible_is_possible(wrong: dict[str, float]) -> None:
    seen = [replace(item, floor_kld=0.001, floor_same_top1=True) for item in items()]
    seen[7] = replace(seen[7], **wrong)  # type: ignore[arg-type]  # by name
    assert found(seen, KLD).outcome is Outcome.PASS


@pytest.mark.parametrize(
    "wrong",
    [
        {"floor_kld": math.nan},
        {"floor_kld": math.inf},
        {"floor_kld": -0.001},
        {"kld": -0.001},
        {"baseline_ln": 0.001},
        {"candidate_ln": 0.001},
        {"candidate_ln": -math.inf},
    ],
)
def test_a_number_that_cannot_be_excuses_nobody(wrong: dict[str, float]) -> None:
    """An endless distance from itself, at one position, would take any other off."""
    seen = [replace(item, floor_kld=0.001, floor_same_top1=True) for item in items()]
    seen[7] = replace(seen[7], **wrong)  # type: ignore[arg-type]  # by name
    check = found(seen, KLD)
    assert (check.outcome, "an impossible value" in check.reason) == (Outcome.INVALID, True)
