"""Excess disagreement at its boundaries: nine and ten differing prompts, no margin and one, one task and several."""

from __future__ import annotations

import math

import numpy as np
import pytest

from benchgate.model.records import FloatArray
from benchgate.stats.clusters import cluster_mean, pool_means
from benchgate.stats.evals import (
    MAX_EXCESS_CHANGE,
    Excess,
    excess_change,
    excess_change_of_tasks,
    excess_disagreement,
    excess_of_tasks,
    excess_sampled,
)
from benchgate.stats.means import paired_t
from benchgate.stats.proportions import clopper_pearson, newcombe_difference, score_limits, score_statistic


def prompts(more: int, fewer: int, n: int) -> tuple[FloatArray, FloatArray]:
    """x and y of `more` prompts where only the candidate differs and `fewer` where only the baseline's runs do."""
    x, y = np.zeros(n), np.zeros(n)
    x[:more] = 1.0
    x[more : more + fewer], y[more : more + fewer] = 0.5, 1.0
    return x, y


def known(found: Excess | None) -> Excess:
    assert found is not None
    return found


def ones(count: int, n: int) -> FloatArray:
    return np.where(np.arange(n) < count, 1.0, 0.0)


def test_margin_is_none_unless_said() -> None:
    x, y = prompts(10, 2, 100)
    assert excess_disagreement(x, y, 0.05) == excess_disagreement(x, y, 0.05, margin=0.0)
    assert excess_of_tasks([(x, y, None)], 0.05) == excess_of_tasks([(x, y, None)], 0.05, margin=0.0)
    assert excess_sampled(x > 0, y > 0, 0.05) == excess_sampled(x > 0, y > 0, 0.05, margin=0.0)
    assert excess_change(x, y, 0.05) == excess_change(x, y, 0.05, margin=0.0)
    assert excess_change_of_tasks([(x, y, None), (y, x, None)], 0.05) == excess_change_of_tasks(
        [(x, y, None), (y, x, None)], 0.05, margin=0.0
    )


def test_differing_prompts_that_side_with_one_answer_prove_nothing_against_the_candidate() -> None:
    assert known(excess_disagreement(*prompts(0, 6, 50), 0.05)).p_value == 1.0
    # P(Bin(3, 1/3) >= 2) = 7/27
    assert known(excess_disagreement(*prompts(2, 1, 50), 0.05)).p_value == pytest.approx(7 / 27)


@pytest.mark.parametrize("margin", [0.001, 0.05])
def test_above_a_margin_the_score_statistic_decides(margin: float) -> None:
    found = known(excess_disagreement(*prompts(9, 2, 100), 0.05, margin=margin))
    assert found.limits == score_limits(9, 2, 100, 0.05, weight=0.5)
    z = score_statistic(9, 2, 100, margin, weight=0.5)
    assert found.p_value == pytest.approx(0.5 * math.erfc(z / math.sqrt(2)))


def test_one_task_without_prompts_leaves_all_of_them_open() -> None:
    full, empty = (*prompts(3, 0, 30), None), (np.empty(0), np.empty(0), None)
    assert excess_of_tasks([full, empty], 0.05) is None
    assert excess_of_tasks([empty], 0.05) is None


def test_tasks_of_unlike_sizes_are_tested_against_the_margin() -> None:
    tasks = [(*prompts(8, 0, 40), None), (*prompts(2, 1, 100), None)]
    none, some, all_of_it = (known(excess_of_tasks(tasks, 0.05, margin=margin)) for margin in (0.0, 0.05, 0.2))
    assert none.n == 140
    assert none.p_value < 0.005 < some.p_value < 0.5
    assert all_of_it.p_value == 1.0
    lower = none.limits.lower
    assert known(excess_of_tasks(tasks, 0.05, margin=lower)).p_value == pytest.approx(0.05, abs=1e-5)


def test_tasks_of_one_size_are_tested_against_the_margin() -> None:
    tasks = [(*prompts(8, 1, 100), None), (*prompts(4, 1, 100), None)]
    for margin in (0.02, 0.055, 0.1):
        whole = known(excess_disagreement(*prompts(12, 2, 200), 0.05, margin=margin))
        assert known(excess_of_tasks(tasks, 0.05, margin=margin)) == whole


def test_tasks_of_unlike_sizes_lie_inside_of_their_limits() -> None:
    found = known(excess_of_tasks([(*prompts(2, 16, 40), None), (*prompts(1, 30, 100), None)], 0.05))
    assert found.estimate == pytest.approx((-6 / 40 - 14 / 100) / 2)
    below, above = found.estimate - found.limits.lower, found.limits.upper - found.estimate
    assert 0.04 < below < 0.08 and 0.04 < above < 0.08


def test_clusters_of_one_task_are_heard_beside_another_without_any() -> None:
    labels = [f"c{i // 20}" for i in range(400)]
    plain = known(excess_of_tasks([(*prompts(40, 0, 400), None), (*prompts(4, 2, 400), None)], 0.05))
    found = known(excess_of_tasks([(*prompts(4, 2, 400), None), (*prompts(40, 0, 400), labels)], 0.05))
    assert (found.estimate, found.n) == (plain.estimate, 800)
    assert found.limits.lower < plain.limits.lower
    assert found.limits.upper > plain.limits.upper
    assert found.p_value > plain.p_value
    beyond = known(excess_of_tasks([(*prompts(40, 0, 400), labels)], 0.05, margin=0.2))
    assert beyond.p_value > 0.9


def test_clusters_that_balance_never_claim_more_than_the_prompts_alone() -> None:
    # One +1 and two -1/2 in each cluster: over clusters nothing varies.
    gap = np.tile([1.0, -0.5, -0.5, 0.0], 30)
    x, y = np.where(gap == 1, 1.0, np.where(gap < 0, 0.5, 0.0)), np.where(gap < 0, 1.0, 0.0)
    labels = [f"c{i // 4}" for i in range(120)]
    alone, clustered = (known(excess_of_tasks([(x, y, of)], 0.05)) for of in (None, labels))
    assert clustered.limits == alone.limits
    assert clustered.p_value == 1.0  # its mean is none, without any spread


def test_one_cluster_in_any_task_leaves_all_open() -> None:
    fine, one = (*prompts(3, 0, 30), None), (*prompts(3, 0, 30), ["c"] * 30)
    assert excess_of_tasks([fine, one], 0.05) is None
    assert excess_change_of_tasks([fine, one], 0.05) is None


@pytest.mark.parametrize(("n", "m"), [(0, 5), (5, 0), (0, 0)])
def test_no_prompt_on_either_side_shows_nothing(n: int, m: int) -> None:
    assert excess_sampled(np.ones(n, dtype=bool), np.ones(m, dtype=bool), 0.05) is None
    assert excess_sampled(np.ones(1, dtype=bool), np.ones(1, dtype=bool), 0.05) is not None


def test_p_over_a_part_is_the_error_rate_at_which_the_limit_is_the_margin() -> None:
    differs, itself = np.arange(300) < 45, np.arange(90) < 5
    for margin in (0.0, 0.03, 0.09):
        p_value = known(excess_sampled(differs, itself, 0.05, margin=margin)).p_value
        assert 0 < p_value < 0.5
        assert newcombe_difference(45, 300, 5, 90, p_value).lower == pytest.approx(margin, abs=1e-9)


@pytest.mark.parametrize("margin", [0.1, 0.2, 1.0])
def test_over_a_part_what_is_at_the_margin_or_below_is_no_harm(margin: float) -> None:
    assert known(excess_sampled(np.arange(200) < 30, np.arange(100) < 5, 0.05, margin=margin)).p_value == 1.0


def test_over_a_part_the_margin_itself_is_no_harm() -> None:
    assert known(excess_sampled(np.arange(128) < 32, np.arange(64) < 8, 0.05, margin=0.125)).p_value == 1.0


def test_overwhelming_excess_over_a_part_is_told_as_the_least_p() -> None:
    found = known(excess_sampled(np.ones(5000, dtype=bool), np.zeros(5000, dtype=bool), 0.05))
    assert 0 < found.p_value <= 1.1e-12


@pytest.mark.parametrize(("differing", "few"), [(9, True), (10, False), (11, False)])
def test_below_ten_differing_prompts_the_share_that_differs_is_limited_as_well(differing: int, few: bool) -> None:
    found, student = (
        known(excess_change(ones(differing, 300), np.zeros(300), 0.05)),
        paired_t(ones(differing, 300), 0.05),
    )
    assert student is not None
    exact, none = clopper_pearson(differing, 300, 0.05).upper, 1 - 0.05 ** (1 / 300)
    upper, lower = max(student.limits.upper, 1.5 * exact), min(student.limits.lower, -1.5 * none)
    assert found.limits.upper == pytest.approx(upper if few else student.limits.upper)
    assert found.limits.lower == pytest.approx(lower if few else student.limits.lower)
    assert found.p_value == pytest.approx(max(student.p_value, 2.0**-differing) if few else student.p_value)


def test_prompts_that_differ_either_way_are_few_together() -> None:
    gap = np.zeros(300)
    gap[:5], gap[5:9] = 1.0, -1.0
    found = known(excess_change(gap, np.zeros(300), 0.05))
    assert found.limits.upper == pytest.approx(1.5 * clopper_pearson(5, 300, 0.05).upper)
    assert found.limits.lower == pytest.approx(-1.5 * clopper_pearson(4, 300, 0.05).upper)
    gap[9] = -1.0
    student = paired_t(gap, 0.05)
    assert student is not None
    assert known(excess_change(gap, np.zeros(300), 0.05)).limits == student.limits


def test_the_widest_difference_of_a_prompt_is_one_and_a_half_unless_said() -> None:
    assert MAX_EXCESS_CHANGE == 1.5
    narrow = known(excess_change(np.zeros(100), np.zeros(100), 0.05, widest=0.5))
    assert narrow.limits.upper == pytest.approx(0.5 * (1 - 0.05 ** (1 / 100)))
    assert narrow.limits.lower == pytest.approx(-narrow.limits.upper)


def test_change_is_what_the_judged_run_adds_and_is_tested_against_the_margin() -> None:
    judged, reference = ones(30, 200), np.zeros(200)
    assert known(excess_change(judged, reference, 0.05)).estimate == 0.15
    assert known(excess_change(reference, judged, 0.05)).estimate == -0.15
    assert known(excess_change(reference, judged, 0.05)).p_value > 0.99
    assert known(excess_change(judged, reference, 0.05, margin=0.15)).p_value == pytest.approx(0.5)


@pytest.mark.parametrize("values", [[], [0.5], [0.5, math.nan], [0.5, math.inf]])
def test_too_few_or_broken_prompts_show_no_change(values: list[float]) -> None:
    judged, reference = np.array(values), np.zeros(len(values))
    assert excess_change(judged, reference, 0.05) is None
    fine = (ones(5, 20), np.zeros(20), None)
    assert excess_change_of_tasks([(judged, reference, None)], 0.05) is None
    assert excess_change_of_tasks([fine, (judged, reference, None)], 0.05) is None


def test_tasks_of_two_runs_are_no_surer_than_their_own_limits_together() -> None:
    tasks = [(ones(3, 60), np.zeros(60), None), (ones(4, 90), np.zeros(90), None)]
    first, second = (known(excess_change(judged, reference, 0.05)) for judged, reference, _ in tasks)
    found = known(excess_change_of_tasks(tasks, 0.05))
    below = math.hypot(first.estimate - first.limits.lower, second.estimate - second.limits.lower) / 2
    above = math.hypot(first.limits.upper - first.estimate, second.limits.upper - second.estimate) / 2
    assert found.estimate == pytest.approx((3 / 60 + 4 / 90) / 2)
    assert found.limits.lower == pytest.approx(found.estimate - below)
    assert found.limits.upper == pytest.approx(found.estimate + above)
    assert found.n == 150


@pytest.mark.parametrize(("differing", "few"), [(4, True), (5, False)])
def test_below_ten_differing_prompts_of_all_tasks_their_signs_are_asked(differing: int, few: bool) -> None:
    # As many in each of two tasks: 8 or 10 losses in all, whose signs alone are 2^-8 and 2^-10.
    judged = ones(differing, 2000)
    found = known(excess_change_of_tasks([(judged, np.zeros(2000), None)] * 2, 0.05))
    mean = cluster_mean(judged)
    assert mean is not None
    students = pool_means([mean, mean]).p_above(0.0)
    assert found.p_value == pytest.approx(max(students, 2.0**-8) if few else students)
    assert (found.p_value > students) == few


def test_tasks_of_two_runs_are_tested_against_the_margin() -> None:
    tasks = [(ones(30, 200), np.zeros(200), None)] * 2
    assert known(excess_change_of_tasks(tasks, 0.05)).p_value < 1e-6
    assert known(excess_change_of_tasks(tasks, 0.05, margin=0.15)).p_value == pytest.approx(0.5)
    assert known(excess_change_of_tasks(tasks, 0.05, margin=0.3)).p_value > 0.99


def test_clusters_of_two_runs_never_claim_more_than_the_prompts_alone() -> None:
    judged, labels = np.tile([1.0, -0.5], 20), [f"c{i // 2}" for i in range(40)]
    reference = np.zeros(40)
    alone, balanced = (known(excess_change_of_tasks([(judged, reference, of)], 0.05)) for of in (None, labels))
    assert balanced.limits == alone.limits
    assert balanced.p_value == pytest.approx(alone.p_value)
    assert 0.01 < alone.p_value < 0.05


def test_what_the_reference_run_differed_by_is_taken_off_in_every_task() -> None:
    tasks = [(ones(40, 200), ones(30, 200), None), (ones(30, 300), ones(30, 300), None)]
    found = known(excess_change_of_tasks(tasks, 0.05))
    assert found.estimate == pytest.approx(0.025)
    assert 0.0 < found.limits.lower < 0.02 and 0.03 < found.limits.upper < 0.05
    equal = known(excess_change_of_tasks([(ones(30, 300), ones(30, 300), None)] * 2, 0.05))
    assert equal.p_value == 1.0
