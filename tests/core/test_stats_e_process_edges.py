"""Evidence after every item at its boundaries: exactly 1/alpha, exactly the margin, and what is no item of its own."""

from __future__ import annotations

import math

import numpy as np
import pytest

from benchgate.stats.sequential import anytime_p, e_values, independent_differences


def test_losses_alone_reach_exactly_what_the_closed_form_says() -> None:
    # The mean of (1 + x)^n over x from 0 to 1: (2^(n+1) - 1) / (n + 1)
    assert list(e_values(np.ones(6), 0.0)) == pytest.approx([(2 ** (n + 1) - 1) / (n + 1) for n in range(1, 7)])


def test_gains_alone_are_evidence_of_nothing() -> None:
    assert list(e_values(-np.ones(4), 0.0)) == pytest.approx([1 / (n + 1) for n in range(1, 5)])
    assert anytime_p(-np.ones(4), 0.0) == 1.0


def test_a_margin_takes_its_part_off_every_item() -> None:
    # Stakes from 0 to 1/1.25: the mean over x of (1 + x/1.25 · 0.75) = 1.3, and of no difference 1 - x/1.25 · 0.25: 0.9
    assert e_values(np.array([1.0]), 0.25)[0] == pytest.approx(1.3)
    assert e_values(np.array([0.0]), 0.25)[0] == pytest.approx(0.9)
    assert e_values(np.array([0.25]), 0.25)[0] == pytest.approx(1.0)


def test_the_most_evidence_ever_seen_counts_and_not_the_last() -> None:
    differences = np.array([1.0] * 5 + [-1.0] * 20)
    assert anytime_p(differences, 0.0) == pytest.approx(6 / 63)
    assert e_values(differences, 0.0)[-1] < 1


def test_losses_of_the_baseline_never_stop_a_candidate() -> None:
    ones, zeros = [1.0] * 50, [0.0] * 50
    assert anytime_p(independent_differences(ones, zeros), 0.05) <= 0.05
    assert anytime_p(independent_differences(zeros, ones), 0.05) > 0.05


def test_evidence_without_end_is_still_a_number() -> None:
    found = e_values(np.ones(5000), 0.0)
    assert np.isfinite(found).all()
    assert (np.diff(found) >= 0).all()
    assert found[-1] > 1e300


@pytest.mark.parametrize("margin", [-0.01, 1.0, math.nan, math.inf])
def test_margins_that_no_harm_can_pass_are_refused(margin: float) -> None:
    with pytest.raises(ValueError, match="margin"):
        e_values(np.array([0.5]), margin)


@pytest.mark.parametrize("difference", [1.0, -1.0, 0.0])
def test_differences_at_the_ends_of_their_range_are_differences(difference: float) -> None:
    assert np.isfinite(e_values(np.array([difference]), 0.9)).all()


@pytest.mark.parametrize("difference", [math.nextafter(1, 2), math.nextafter(-1, -2), math.inf, math.nan])
def test_one_difference_out_of_range_among_many_is_refused(difference: float) -> None:
    with pytest.raises(ValueError, match="from -1 to 1"):
        e_values(np.array([0.0, 0.5, difference]), 0.05)


@pytest.mark.parametrize("odd", [-0.001, 1.001, math.nan, math.inf, -math.inf])
def test_one_score_out_of_range_in_either_arm_leaves_nothing_to_look_at(odd: float) -> None:
    fine, broken = [1.0, 0.5, 0.0], [0.0, odd, 1.0]
    assert len(independent_differences(fine, broken)) == 0
    assert len(independent_differences(broken, fine)) == 0
    assert len(independent_differences([0.0, 1.0], [1.0, 0.0])) == 2


def test_of_a_cluster_only_the_first_item_speaks_wherever_the_others_stand() -> None:
    theirs, ours = [1.0, 1.0, 0.0, 1.0, 1.0, 0.5], [0.0, 1.0, 1.0, 0.0, 0.0, 0.0]
    found = independent_differences(theirs, ours, ["a", "b", "a", None, "b", None])
    assert list(found) == [1.0, 0.0, 1.0, 0.5]
    assert list(independent_differences(theirs, ours)) == [1.0, 0.0, -1.0, 1.0, 1.0, 0.5]
    assert list(independent_differences([], [], [])) == []
