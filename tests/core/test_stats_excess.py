"""Shadow disagreement net of the baseline's own."""

from __future__ import annotations

import math

import numpy as np
import pytest

from benchgate.model.records import FloatArray
from benchgate.stats.evals import (
    Excess,
    excess_change,
    excess_change_of_tasks,
    excess_disagreement,
    excess_of_tasks,
    excess_sampled,
)


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
    assert (found.estimate, found.p_value) == (0.0, 1.0)


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
    assert found.p_value == pytest.approx(3.0**-more)
    assert (found.p_value <= 0.05) == shown


def test_limits_and_margin_test_agree() -> None:
    for more in range(30):
        found = excess(more, 6, 200, margin=0.05)
        assert (found.limits.lower > 0.05) == (found.p_value < 0.05)


def wrong_share(n: int, share_more: float, share_fewer: float, *, margin: float) -> tuple[float, float]:
    """How often 20,000 simulated candidates are called within the margin, and called harmful."""
    drawn = np.random.default_rng(8).multinomial(
        n, [share_more, share_fewer, 1 - share_more - share_fewer], size=20_000
    )
    kinds, times = np.unique(drawn[:, :2], axis=0, return_counts=True)
    found = [excess(int(more), int(fewer), n) for more, fewer in kinds]
    within = np.array([one.limits.upper < margin for one in found])
    harmful = np.array([one.p_value <= 0.05 for one in found])
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
    assert found.p_value < 0.001
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
    assert shown.p_value >= 2**-4


def sampled_sizes(own: float, harm: float, *, margin: float, n: int = 400, part: int = 120) -> tuple[float, float]:
    """How often 2,000 simulated candidates are called within the margin, and called harmful, over a part asked twice.

    A prompt whose answers are a matter of chance has each of two answers, all three times anew; beside that the
    candidate differs of its own on a share of the prompts.
    """
    generator = np.random.default_rng(20)
    limits: dict[tuple[int, int], tuple[bool, bool]] = {}
    within = harmful = 0
    for _ in range(2_000):
        loose = generator.random(n) < 2 * own
        first, second, third = generator.random((3, n)) < 0.5
        differs = (loose & (first != third)) | (generator.random(n) < harm / (1 - own))
        itself = (loose & (first != second))[:part]
        seen = int(differs.sum()), int(itself.sum())
        if seen not in limits:
            found = excess_sampled(differs, itself, 0.05)
            assert found is not None
            limits[seen] = (found.limits.upper < margin, found.p_value <= 0.05)
        within, harmful = within + limits[seen][0], harmful + limits[seen][1]
    return within / 2_000, harmful / 2_000


@pytest.mark.parametrize("own", [0.0, 0.05, 0.3])
def test_asking_a_part_twice_keeps_both_error_rates(own: float) -> None:
    within, _ = sampled_sizes(own, 0.05, margin=0.05)
    _, harmful = sampled_sizes(own, 0.0, margin=0.05)
    assert within <= 0.057
    assert harmful <= 0.057


def test_excess_over_a_part_is_the_difference_of_two_shares() -> None:
    differs, itself = np.zeros(400, dtype=bool), np.zeros(100, dtype=bool)
    differs[:60], itself[:5] = True, True
    found = excess_sampled(differs, itself, 0.05)
    assert found is not None
    assert found.n == 400
    assert found.estimate == pytest.approx(0.10)
    # scipy.stats.binomtest(60, 400) and (5, 100).proportion_ci(0.90, method="wilson")
    (low, high), (own_low, own_high) = (0.122989440, 0.181713451), (0.024547363, 0.099161085)
    assert found.limits.lower == pytest.approx(0.10 - math.sqrt((0.15 - low) ** 2 + (own_high - 0.05) ** 2))
    assert found.limits.upper == pytest.approx(0.10 + math.sqrt((high - 0.15) ** 2 + (0.05 - own_low) ** 2))
    assert found.p_value < 0.01


def test_p_of_a_sampled_excess_and_its_lower_limit_agree() -> None:
    itself = np.zeros(90, dtype=bool)
    itself[:9] = True
    for more in range(20, 60):
        differs = np.arange(300) < more
        found = excess_sampled(differs, itself, 0.05, margin=0.02)
        assert found is not None
        assert (found.limits.lower > 0.02) == (found.p_value < 0.05)


def test_a_part_of_no_prompts_shows_nothing() -> None:
    assert excess_sampled(np.ones(10, dtype=bool), np.empty(0, dtype=bool), 0.05) is None


def test_tasks_of_one_size_are_one_set_of_prompts() -> None:
    x, y = disagreements(8, 4, 100)
    halves = excess_of_tasks([(x[:50], y[:50], None), (x[50:], y[50:], None)], 0.05)
    assert halves == excess(8, 4, 100)
    assert excess_of_tasks([], 0.05) is None


def test_tasks_of_unlike_sizes_count_alike() -> None:
    # 4 of 20 prompts in one, none of 100 in the other; where nothing exceeds, a third of those that differ are +1
    few, many = disagreements(4, 0, 20), disagreements(0, 1, 100)
    found = excess_of_tasks([(*few, None), (*many, None)], 0.05)
    assert found is not None
    assert found.estimate == pytest.approx((4 / 20 - 0.5 / 100) / 2)
    assert found.p_value == pytest.approx((1 / 3) ** 4)
    assert found.limits.lower > 0
    beyond = excess_of_tasks([(*few, None), (*many, None)], 0.05, margin=0.05)
    assert beyond is not None and beyond.p_value > found.p_value


def test_clusters_of_prompts_prove_less() -> None:
    x, y = disagreements(20, 0, 400)
    together = [f"c{i // 20}" for i in range(400)]
    alone, clustered = excess_of_tasks([(x, y, None)], 0.05), excess_of_tasks([(x, y, together)], 0.05)
    assert alone is not None and clustered is not None
    assert alone.p_value < 0.001 < 0.05 < clustered.p_value
    assert clustered.limits.upper > alone.limits.upper
    assert excess_of_tasks([(x, y, ["c"] * 400)], 0.05) is None


def test_tasks_of_two_runs_count_alike_and_their_clusters_claim_less() -> None:
    small, big = np.ones(50), np.zeros(2000)
    found = excess_change_of_tasks([(small, np.zeros(50), None), (big, np.zeros(2000), None)], 0.05)
    assert found is not None
    assert (found.estimate, found.n) == (0.5, 2050)
    assert found.limits.lower > 0.4
    alone = excess_change_of_tasks([(small, np.zeros(50), None)], 0.05)
    assert alone == excess_change(small, np.zeros(50), 0.05)
    judged = np.where(np.arange(2000) < 150, 1.0, 0.0)
    passages = [str(i // 100) for i in range(2000)]
    free, clustered = (excess_change_of_tasks([(judged, big, groups)], 0.05) for groups in (None, passages))
    assert free is not None and clustered is not None
    assert clustered.estimate == free.estimate == 0.075
    assert clustered.limits.upper > 0.15 > free.limits.upper
    assert clustered.p_value > free.p_value
    assert excess_change_of_tasks([], 0.05) is None
    assert excess_change_of_tasks([(small, small, ["one"] * 50)], 0.05) is None


def test_a_few_differing_prompts_of_several_tasks_leave_their_margin_open() -> None:
    few = np.where(np.arange(60) < 2, 1.0, 0.0)
    found = excess_change_of_tasks([(few, np.zeros(60), None), (np.zeros(60), np.zeros(60), None)], 0.05)
    assert found is not None
    assert found.limits.upper > 0.06  # t over all would end at 0.036
    assert found.p_value >= 0.25  # two of two
