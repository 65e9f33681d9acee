"""What several looks decide, and how often: the published table of simulated gates, and the shipped rule itself."""

from __future__ import annotations

import math

import numpy as np
import pytest

from benchgate.gate.decision import Look, decide
from benchgate.model.verdict import Outcome, Scale, Unit
from benchgate.stats.distributions import norm_sf
from benchgate.stats.means import paired_t
from benchgate.stats.power import (
    SIMULATED_GATES,
    DecisionRule,
    LookDecisions,
    LookSchedule,
    SimulatedLooks,
    decide_looks,
    paired_t_power,
    simulate_looks,
    stopping_rates,
)
from benchgate.stats.sequential import look_alphas
from tests.fakes.estimates import estimate

MARGIN = math.log1p(0.05)
USUAL = LookSchedule((5, 10, 20), look_alphas((0.25, 0.5, 1.0), 0.05))
# The table was made with the cut-offs of looks that are equally far apart.
TO_20 = LookSchedule((5, 10, 20), tuple(map(norm_sf, (2.967, 2.098, 1.713))))
TO_40 = LookSchedule((5, 10, 20, 40), tuple(map(norm_sf, (3.462, 2.448, 1.999, 1.731))))


@pytest.mark.parametrize(
    ("looks", "cv", "slower", "promoted", "blocked", "blocks"),
    [
        (TO_20, 0.02, 0.0, 1.0, 0.0, 9.1),
        (TO_20, 0.02, 0.025, 0.972, 0.029, 13.7),
        (TO_20, 0.03, 0.0, 0.999, 0.001, 11.0),
        (TO_20, 0.03, 0.025, 0.769, 0.230, 16.4),
        (TO_20, 0.04, 0.0, 0.976, 0.016, 13.6),
        (TO_20, 0.04, 0.025, 0.561, 0.396, 17.3),
        (TO_20, 0.04, 0.05, 0.056, 0.937, 15.0),
        (TO_20, 0.04, 0.10, 0.0, 1.0, 9.2),
        (TO_40, 0.04, 0.025, 0.800, 0.200, 28.4),
        (TO_40, 0.08, 0.0, 0.832, 0.053, 29.6),
        (TO_40, 0.08, 0.05, 0.057, 0.835, 29.9),
    ],
)
def test_gates_end_as_often_as_simulated_before(
    looks: LookSchedule, cv: float, slower: float, promoted: float, blocked: float, blocks: float
) -> None:
    found = decide_looks(
        simulate_looks(looks.blocks, np.random.default_rng(5)),
        looks,
        DecisionRule(MARGIN),
        sd=math.sqrt(2) * cv,
        harm=math.log1p(slower),
    )
    end = stopping_rates([found], looks)
    # 20,000 gates there and here: three standard errors of their difference are 1.5 points near a half
    assert end.promoted == pytest.approx(promoted, abs=0.015)
    assert end.blocked == pytest.approx(blocked, abs=0.015)
    assert end.mean_blocks == pytest.approx(blocks, abs=0.2)


@pytest.mark.parametrize(
    ("cv", "pairs", "slower", "promoted", "blocked"),
    [
        (0.02, 3, 0.0, 0.62, 0.02),
        (0.02, 3, 0.025, 0.27, 0.19),
        (0.02, 3, 0.05, 0.05, 0.58),
        (0.02, 5, 0.0, 0.93, 0.01),
        (0.02, 10, 0.025, 0.80, 0.20),
        (0.03, 5, 0.0, 0.69, 0.04),
        (0.03, 10, 0.05, 0.05, 0.93),
        (0.03, 24, 0.025, 0.85, 0.15),
        (0.05, 10, 0.0, 0.64, 0.05),
        (0.05, 24, 0.025, 0.48, 0.43),
        (0.05, 24, 0.10, 0.0, 1.0),
    ],
)
def test_a_single_look_ends_as_often_as_simulated_before(
    cv: float, pairs: int, slower: float, promoted: float, blocked: float
) -> None:
    looks, course = LookSchedule((pairs,), (0.05,)), simulate_looks((pairs,), np.random.default_rng(9))
    found = decide_looks(course, looks, DecisionRule(MARGIN), sd=math.sqrt(2) * cv, harm=math.log1p(slower))
    end = stopping_rates([found], looks)
    assert end.promoted == pytest.approx(promoted, abs=0.02)  # the table has two digits
    assert end.blocked == pytest.approx(blocked, abs=0.02)


def test_one_look_is_the_t_test_itself() -> None:
    looks = LookSchedule((10,), (0.05,))
    end = stopping_rates(
        [decide_looks(simulate_looks(looks.blocks, np.random.default_rng(3)), looks, DecisionRule(0.05), sd=0.06)],
        looks,
    )
    assert end.promoted == pytest.approx(paired_t_power(10, 0.06, 0.05), abs=4 * 0.5 / math.sqrt(SIMULATED_GATES))
    assert end.mean_blocks == 10


@pytest.mark.parametrize(("harm", "breach"), [(0.0, False), (0.03, False), (0.05, False), (0.06, True)])
def test_it_says_what_the_gate_says_of_the_same_differences(harm: float, breach: bool) -> None:
    draws = np.random.default_rng(11).normal(harm, 0.06, size=(300, 20))
    wrong = []
    for row in draws:
        course = _course(row)
        said = decide_looks(course, USUAL, DecisionRule(MARGIN, breach), sd=1.0)
        for number, blocks in enumerate(USUAL.blocks):
            expected = _decided(row[:blocks], number, breach)
            ours = (bool(said.promoted[0, number]), bool(said.blocked[0, number]))
            if ours != (expected in (Outcome.PASS, Outcome.WARN), expected is Outcome.BLOCK):
                wrong.append((blocks, expected, ours))
    assert wrong == []


def _course(row: np.ndarray) -> SimulatedLooks:
    firsts = [row[:blocks] for blocks in USUAL.blocks]
    return SimulatedLooks(
        USUAL.blocks, np.array([[one.mean() for one in firsts]]), np.array([[one.std(ddof=1) for one in firsts]])
    )


def _decided(differences: np.ndarray, number: int, breach: bool) -> Outcome:
    tail = USUAL.tails[number]
    test = paired_t(differences, tail, margin=MARGIN if breach else 0.0)
    assert test is not None
    look = Look(number + 1, 3, len(differences), 20, tail, (0.25, 0.5, 1.0))
    one = estimate(Unit.SECONDS, Scale.LOG_RATIO, MARGIN, breach=breach, look=look)
    one.value, one.limits, one.p_value = test.mean, test.limits, test.p_value
    # shown at this look's tail is shown at alpha after what looking several times costs
    return decide(one, 0.05 * test.p_value / tail, 0.05, 0.8)


def test_limits_are_never_narrower_than_chance_allows() -> None:
    looks = LookSchedule((5,), (0.05,))
    course = simulate_looks(looks.blocks, np.random.default_rng(1))
    alone = stopping_rates([decide_looks(course, looks, DecisionRule(0.05), sd=0.01)], looks).promoted
    held = stopping_rates([decide_looks(course, looks, DecisionRule(0.05, least_sd=0.2), sd=0.01)], looks).promoted
    assert alone == pytest.approx(1.0, abs=0.01)
    assert held == 0
    lumped = stopping_rates(
        [decide_looks(course, looks, DecisionRule(0.05, lump=0.155), sd=0.01)], looks
    ).promoted  # 0.052 over five blocks that are worth three, (1.64 / 2.13)² of them
    assert lumped == pytest.approx(0.3, abs=0.05)


def test_a_gain_beyond_the_margin_is_no_equality() -> None:
    looks = LookSchedule((5, 20), look_alphas((0.25, 1.0), 0.05))
    course = simulate_looks(looks.blocks, np.random.default_rng(1))
    both = decide_looks(course, looks, DecisionRule(MARGIN, two_sided=True), sd=0.02, harm=-0.2)
    assert stopping_rates([both], looks).blocked == pytest.approx(1.0)
    assert stopping_rates(
        [decide_looks(course, looks, DecisionRule(MARGIN), sd=0.02, harm=-0.2)], looks
    ).promoted == pytest.approx(1.0)
    breached = decide_looks(course, looks, DecisionRule(MARGIN, breach=True, two_sided=True), sd=0.02, harm=-0.2)
    assert stopping_rates([breached], looks).blocked == pytest.approx(1.0)


def test_all_checks_must_hold_at_one_look_and_any_may_end_it() -> None:
    looks = LookSchedule((5, 10), (0.05, 0.05))
    yes, no = [[True, True]], [[False, False]]
    late = LookDecisions(np.array([[False, True]]), np.array(no))
    early = LookDecisions(np.array(yes), np.array(no))
    bad = LookDecisions(np.array(no), np.array([[True, True]]))
    never = LookDecisions(np.array(no), np.array(no))
    assert [
        stopping_rates(checks, looks).mean_blocks for checks in ([early], [early, late], [early, bad], [never])
    ] == [
        5,
        10,
        5,
        10,
    ]
    assert (stopping_rates([early, bad], looks).promoted, stopping_rates([early, bad], looks).blocked) == (0.0, 1.0)
    assert (stopping_rates([never], looks).promoted, stopping_rates([never], looks).blocked) == (0.0, 0.0)


def test_looks_that_cannot_be_are_refused() -> None:
    for blocks, tails in (((), ()), ((5, 5), (0.01, 0.05)), ((1, 5), (0.01, 0.05)), ((5, 10), (0.05,))):
        with pytest.raises(ValueError, match="expected rising"):
            LookSchedule(blocks, tails)
    with pytest.raises(ValueError, match="without a check"):
        stopping_rates([], USUAL)


def test_looks_one_block_apart_are_drawn_as_any_other() -> None:
    looks = LookSchedule((2, 3), (0.05, 0.05))
    course = simulate_looks(looks.blocks, np.random.default_rng(1))
    assert np.mean(course.deviations**2, axis=0) == pytest.approx([1.0, 1.0], abs=0.05)
    assert np.var(course.means, axis=0) == pytest.approx([1 / 2, 1 / 3], abs=0.02)


def test_one_difference_settles_nothing_and_no_more_of_them_nothing_new() -> None:
    looks = LookSchedule((5, 10, 20), (0.04, 0.04, 0.05))
    course = simulate_looks((1, 2, 2), np.random.default_rng(1), 500)
    found = decide_looks(course, looks, DecisionRule(1e6), sd=1.0)
    assert found.promoted.mean(axis=0).tolist() == [0.0, 1.0, 1.0]
    assert not found.blocked.any()
    assert np.array_equal(course.means[:, 1], course.means[:, 2])
    for counts in ((), (0, 5), (5, 4)):
        with pytest.raises(ValueError, match="do not fall"):
            simulate_looks(counts, np.random.default_rng(1))
