"""Shadow disagreement net of the baseline's own."""

from __future__ import annotations

import numpy as np
import pytest

from benchgate.model.records import FloatArray
from benchgate.stats.excess import Excess, excess_change, excess_disagreement


def disagreements(more: int, fewer: int, n: int) -> tuple[FloatArray, FloatArray]:
    """x and y of `more` prompts where only the candidate differs and `fewer` where only the baseline's runs do."""
    x, y = np.zeros(n), np.zeros(n)
    x[:more] = 1.0
    x[more : more + fewer], y[more : more + fewer] = 0.5, 1.0
    return x, y


def excess(more: int, fewer: int, n: int, margin: float = 0.0) -> Excess:
    found = excess_disagreement(*disagreements(more, fewer, n), 0.05, margin=margin)
    assert found is not None
    return found


def test_a_prompt_on_which_all_three_differ_shows_no_excess() -> None:
    found = excess_disagreement(np.ones(50), np.ones(50), 0.05)
    assert found is not None
    assert (found.estimate, found.p_harm) == (0.0, 1.0)


def test_estimate_takes_half_off_for_siding_with_one_baseline_answer() -> None:
    assert excess(10, 8, 100).estimate == pytest.approx(0.06)


def test_no_disagreement_at_all_still_leaves_room_for_some() -> None:
    found = excess(0, 0, 100)
    assert found.estimate == 0.0
    assert 0.02 < found.limits.upper < 0.03
    assert excess(0, 0, 1000).limits.upper < 0.003


@pytest.mark.parametrize(("more", "shown"), [(1, False), (2, False), (3, True)])
def test_one_or_two_differing_prompts_never_show_harm(more: int, shown: bool) -> None:
    # Under "no excess" a differing prompt is the candidate's alone one time in three: (1/3)^more.
    found = excess(more, 0, 300)
    assert found.p_harm == pytest.approx(3.0**-more)
    assert (found.p_harm <= 0.05) == shown


def test_limits_and_margin_test_agree() -> None:
    for more in range(30):
        found = excess(more, 6, 200, margin=0.05)
        assert (found.limits.lower > 0.05) == (found.p_harm < 0.05)


def wrong_share(n: int, share_more: float, share_fewer: float, *, margin: float) -> tuple[float, float]:
    """How often 20,000 simulated candidates are called within the margin, and called harmful."""
    drawn = np.random.default_rng(8).multinomial(
        n, [share_more, share_fewer, 1 - share_more - share_fewer], size=20_000
    )
    kinds, times = np.unique(drawn[:, :2], axis=0, return_counts=True)
    found = [excess(int(more), int(fewer), n) for more, fewer in kinds]
    within = np.array([one.limits.upper < margin for one in found])
    harmful = np.array([one.p_harm <= 0.05 for one in found])
    return float(times[within].sum() / 20_000), float(times[harmful].sum() / 20_000)


@pytest.mark.parametrize("own", [0.0, 0.01, 0.1])
def test_a_candidate_at_the_margin_is_seldom_called_within_it(own: float) -> None:
    within, _ = wrong_share(300, 0.05 + own / 2, own, margin=0.05)
    assert within <= 0.052


@pytest.mark.parametrize("own", [0.01, 0.1])
def test_a_candidate_as_noisy_as_its_baseline_is_seldom_called_harmful(own: float) -> None:
    _, harmful = wrong_share(300, own / 2, own, margin=0.05)
    assert 0.01 <= harmful <= 0.05


def test_no_prompts_have_no_excess() -> None:
    assert excess_disagreement(np.empty(0), np.empty(0), 0.05) is None


def test_answers_of_different_prompts_are_refused() -> None:
    with pytest.raises(ValueError, match="same prompts"):
        excess_disagreement(np.zeros(3), np.zeros(4), 0.05)
    for x, y in ((0.0, 1.0), (0.5, 0.0), (np.nan, 0.0)):  # none can come from comparing three answers
        with pytest.raises(ValueError, match="three answers"):
            excess_disagreement(np.array([x]), np.array([y]), 0.05)


def test_excesses_of_two_runs_are_compared_prompt_by_prompt() -> None:
    judged, reference = np.zeros(200), np.zeros(200)
    judged[:30], reference[20:40] = 1.0, -0.5
    found = excess_change(judged, reference, 0.05)
    assert found is not None
    assert found.estimate == pytest.approx((30 + 10) / 200)
    assert found.p_harm < 0.001
    # scipy.stats.ttest_1samp(judged - reference, 0).confidence_interval(0.90)
    assert [found.limits.lower, found.limits.upper] == pytest.approx([0.14961362908468356, 0.25038637091531646])


def test_change_with_few_differing_prompts_is_not_taken_from_its_spread_alone() -> None:
    found = excess_change(np.zeros(100), np.zeros(100), 0.05)
    assert found is not None
    assert found.limits.upper == pytest.approx(1.5 * (1 - 0.05 ** (1 / 100)))
    four = np.zeros(100)
    four[:4] = 1.0
    shown = excess_change(four, np.zeros(100), 0.05)
    assert shown is not None
    assert shown.p_harm >= 2**-4
