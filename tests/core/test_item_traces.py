"""The arithmetic that estimators of eval items and prompts record ends in their own limits and p-values."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest

from benchgate.model.records import FloatArray
from benchgate.stats.evals import (
    Excess,
    ItemRegression,
    ScorePairs,
    accuracy_regression,
    excess_change,
    excess_change_of_tasks,
    excess_disagreement,
    excess_of_tasks,
    excess_sampled,
    score_regression,
)
from benchgate.stats.trace import Trace

ALPHA = 0.05
CLUSTERS = tuple(f"c{i // 5}" for i in range(100))


def answers(lost: int, gained: int, n: int, clusters: tuple[str, ...] | None = None) -> ScorePairs:
    """Items of which the first ones are lost and the last ones gained."""
    index = np.arange(n)
    baseline, candidate = index < n - gained, index >= lost
    return ScorePairs(baseline.astype(np.float64), candidate.astype(np.float64), clusters)


def scores(n: int, differing: int, clusters: tuple[str, ...] | None = None) -> ScorePairs:
    generator = np.random.default_rng(3)
    baseline = generator.uniform(0.4, 0.9, n)
    change = np.where(np.arange(n) < differing, generator.normal(-0.05, 0.1, n), 0.0)
    return ScorePairs(baseline, baseline + change, clusters)


def triple(more: int, fewer: int, n: int) -> tuple[FloatArray, FloatArray]:
    """x and y of prompts on which only the candidate differs, or only the baseline from itself."""
    index = np.arange(n)
    y = ((index >= more) & (index < more + fewer)).astype(np.float64)
    return (index < more).astype(np.float64) + 0.5 * y, y


def accuracy(tested: float, *tasks: ScorePairs) -> Callable[[Trace], ItemRegression]:
    return lambda trace: accuracy_regression(tasks, ALPHA, tested=tested, trace=trace)


def score(task: ScorePairs) -> Callable[[Trace], ItemRegression]:
    return lambda trace: score_regression(task, ALPHA, np.random.default_rng(1), trace=trace)


def change_of_tasks(*sizes: int) -> Callable[[Trace], Excess | None]:
    tasks = [(triple(6, 2, n)[0], np.zeros(n), None) for n in sizes]
    return lambda trace: excess_change_of_tasks(tasks, ALPHA, trace=trace)


SMALL, LARGE = (*triple(4, 2, 100), None), (*triple(9, 4, 300), None)
ESTIMATORS: dict[str, Callable[[Trace], ItemRegression | Excess | None]] = {
    "accuracy": accuracy(0.0, answers(9, 3, 100)),
    "accuracy beyond a margin": accuracy(0.02, answers(9, 3, 100)),
    "accuracy of two tasks": accuracy(0.0, answers(9, 3, 100), answers(2, 0, 60)),
    "accuracy of two tasks beyond a margin": accuracy(0.02, answers(9, 3, 100), answers(2, 0, 60)),
    "accuracy of clusters": accuracy(0.0, answers(20, 3, 100, CLUSTERS)),
    "score": score(scores(60, 60)),
    "score of few items": score(scores(20, 20)),
    "score of few that differ": score(scores(60, 5)),
    "score of clusters": score(scores(100, 100, CLUSTERS)),
    "excess": lambda trace: excess_disagreement(*triple(8, 3, 200), ALPHA, trace=trace),
    "excess beyond a margin": lambda trace: excess_disagreement(*triple(8, 3, 200), ALPHA, margin=0.02, trace=trace),
    "excess of two tasks": lambda trace: excess_of_tasks([SMALL, LARGE], ALPHA, trace=trace),
    "excess of two tasks beyond a margin": lambda trace: excess_of_tasks(
        [SMALL, LARGE], ALPHA, margin=0.01, trace=trace
    ),
    "excess of clusters": lambda trace: excess_of_tasks([(*triple(8, 3, 100), CLUSTERS)], ALPHA, trace=trace),
    "excess of a sample": lambda trace: excess_sampled(np.arange(90) < 20, np.arange(30) < 3, ALPHA, trace=trace),
    "change": lambda trace: excess_change(triple(30, 0, 90)[0], np.zeros(90), ALPHA, trace=trace),
    "change of few": lambda trace: excess_change(triple(3, 0, 90)[0], np.zeros(90), ALPHA, trace=trace),
    "change of two tasks": change_of_tasks(80, 120),
}


def recorded(trace: Trace) -> tuple[float, float, float]:
    """The last limits and p-value of a trace."""
    last = {step.what: step.value for step in trace.steps}
    if "limits and p-value" in last:
        ends, p_value = last["limits and p-value"].split("; p ")
        lower, upper = ends.split(" to ")
        return float(lower), float(upper), float(p_value)
    upper = last.get("upper limit for rare losses", last["upper limit"])
    p_value = next(step.value for step in reversed(trace.steps) if step.what.startswith("p-value"))
    return float(last["lower limit"]), max(float(last["upper limit"]), float(upper)), float(p_value)


@pytest.mark.parametrize("name", ESTIMATORS)
def test_the_last_step_has_the_limits_and_the_p_value_of_the_estimate(name: str) -> None:
    trace, silent = Trace(), Trace()
    found = ESTIMATORS[name](trace)
    assert found is not None and ESTIMATORS[name](silent) == found
    lower, upper, p_value = recorded(trace)
    assert (lower, upper) == pytest.approx((found.limits.lower, found.limits.upper), rel=1e-6)
    assert p_value == pytest.approx(found.p_value, rel=1e-6)


def test_nothing_is_estimated_otherwise_with_a_trace() -> None:
    task = scores(20, 20)
    generators = np.random.default_rng(1), np.random.default_rng(1)
    with_trace = score_regression(task, ALPHA, generators[0], trace=Trace())
    assert score_regression(task, ALPHA, generators[1]) == with_trace


def test_the_score_formula_of_either_weight_gives_the_limits_it_is_recorded_with() -> None:
    """The recorded formula, evaluated by itself at the recorded limit, is the normal quantile z."""
    for weight, estimate in (
        (1.0, ESTIMATORS["accuracy"]),
        (0.5, ESTIMATORS["excess"]),
    ):
        trace = Trace()
        estimate(trace)
        values = {step.what.split(":")[0]: float(step.value) for step in trace.steps}
        b, c, n, z = (values[name] for name in ("b", "c", "n", "z"))
        for name, quantile in (("lower limit", z), ("upper limit", -z)):
            step = next(step for step in trace.steps if step.what == name)
            x = float(step.value)
            scale = weight * (1 + weight)
            big_b, big_c = (1 + weight) * x * (n - b) - weight * (b + c) * (1 - x), -c * x * (1 - x)
            w = (math.sqrt(big_b**2 - 4 * scale * n * big_c) - big_b) / (2 * scale * n)
            reached = (b - weight * c - n * x) / math.sqrt(n * (scale * w + x * (1 - x)))
            assert reached == pytest.approx(quantile, abs=1e-5)
            for part in (f"(b - {weight:g}*c - n*x)", f"{scale:g}*w", f"A = {scale:g}*n", f"= {quantile:.8g}"):
                assert part in step.formula


def test_scores_in_clusters_record_the_error_over_their_clusters() -> None:
    """Deviations from the mean loss of 0.1 add up to -0.2, 0.1, 0.2 and -0.1: sqrt(4/3 * 0.1) / 6."""
    ours, theirs = np.array([0.5, 0.3] * 3), np.full(6, 0.5)
    trace = Trace()
    score_regression(
        ScorePairs(theirs, ours, ("a", "b", "a", "c", "d", "c")), ALPHA, np.random.default_rng(1), trace=trace
    )
    steps = {step.what: step.value for step in reversed(trace.steps)}
    assert float(steps["standard error of the mean"]) == pytest.approx(math.sqrt(4 / 3 * 0.1) / 6, rel=1e-5)
    assert trace.steps[0].what == "baseline's score minus the candidate's, of each item"
