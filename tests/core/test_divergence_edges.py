"""Checks of fixed texts at their boundaries, and over readings that are whole in parts only."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from benchgate.gate.checks.divergence import measure_agreement
from benchgate.gate.comparison import compare
from benchgate.gate.decision import Estimate, Rule
from benchgate.gate.judge import judge
from benchgate.model.records import DivergenceItem
from benchgate.model.verdict import CheckResult, Outcome, Scale, Unit
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


@pytest.mark.parametrize(("count", "least", "most"), [(9, 7.8, 8.3), (10, 8.3, 8.8), (20, 14.0, 14.6)])
def test_no_spread_of_pieces_is_trusted_alone(count: int, least: float, most: float) -> None:
    """Of 20 in 200, one in every piece, t's upper limit is 10 %; Clopper-Pearson's of 183 effective ones is 14.4 %."""
    seen = disagreeing({n * EACH for n in range(count)})
    assert found(seen, at_most(least)).outcome is Outcome.INCONCLUSIVE
    assert found(seen, at_most(most)).outcome.promotes


def test_a_limit_of_a_share_is_never_below_nothing() -> None:
    """In one of ten pieces the arms agree throughout, in the others nowhere: t's limit lies at -8 %."""
    apart = [replace(item, same_top1=item.text_id == "t0") for item in in_pieces(items(), FEWEST)]
    check = found(apart, TOP1)
    assert (check.outcome, check.lower) == (Outcome.BLOCK, 0.0)
    assert check.harm == pytest.approx(0.1)


DESIGNS = [  # pieces, positions in each, share that differs, intra-class correlation, the baseline's own share
    (20, 10, 0.05, 0.1, 0.0),
    (20, 10, 0.05, 0.2, 0.0),
    (10, 20, 0.05, 0.1, 0.0),
    (40, 20, 0.05, 0.1, 0.0),
    (20, 10, 0.1, 0.2, 0.0),
    (20, 10, 0.05, 0.1, 0.03),
    (20, 10, 0.03, 0.1, 0.01),
]


def agreed_at_the_bound(design: tuple[int, int, float, float, float], runs: int) -> float:
    """How often a candidate passes that differs by a beta law over pieces, its true share being the bound."""
    pieces, each, share, correlation, own = design
    generator, template, passed = np.random.default_rng(0), items()[0], 0
    policy = suite({"metric": "same_top1", "min": f"{100 * (1 - share + own):g}%"} | REQUIRED)
    bound, spread = 1 - share + own, (1 - correlation) / correlation
    for _ in range(runs):
        differs, itself = (
            generator.random((pieces, each)) < generator.beta(mean * spread, (1 - mean) * spread, size=(pieces, 1))
            if mean
            else np.zeros((pieces, each), dtype=bool)
            for mean in (share, own)
        )
        seen = [
            replace(
                template,
                text_id=f"t{piece}",
                position=place,
                same_top1=not differs[piece, place],
                floor_same_top1=not itself[piece, place] if own else None,
                floor_kld=0.0 if own else None,
            )
            for piece in range(pieces)
            for place in range(each)
        ]
        estimate = Estimate(Rule(Unit.RATIO, Scale.ABSOLUTE, breach=True, lower_is_worse=True), bound)
        measure_agreement(estimate, compare(evidence(policy, observed(seen))), 0.05)
        assert estimate.limits is not None
        passed += estimate.limits.lower >= bound
    return passed / runs


@pytest.mark.slow
@pytest.mark.parametrize("design", DESIGNS)
def test_disagreements_that_lie_together_pass_at_the_bound_at_most_as_often_as_promised(
    design: tuple[int, int, float, float, float],
) -> None:
    assert agreed_at_the_bound(design, 150) <= 0.05 + 3 * (0.05 * 0.95 / 150) ** 0.5


@pytest.mark.slow
@pytest.mark.parametrize("design", DESIGNS)
def test_disagreements_that_lie_together_pass_at_the_bound_at_most_as_often_as_promised_in_many_runs(
    design: tuple[int, int, float, float, float],
) -> None:
    assert agreed_at_the_bound(design, 1500) <= 0.05 + 3 * (0.05 * 0.95 / 1500) ** 0.5


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
    half = disagreeing({n for n in range(PIECES * EACH) if n % 2})  # five of ten, in every piece
    assert found(half, at_most(62)).outcome is Outcome.WARN
    assert found(half, at_most(63)).outcome is Outcome.PASS
    assert found(half, at_most(57)).outcome is Outcome.WARN
    assert found(half, at_most(50)).outcome is Outcome.INCONCLUSIVE  # just at it
    assert found(half, at_most(43)).outcome is Outcome.BLOCK


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
