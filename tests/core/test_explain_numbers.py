"""`gate --explain`: every step has its number, in the order in which it was reckoned, and names what it rests on."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats as scipy_stats

from benchgate.gate.judge import judge
from benchgate.gate.reasons import Line as ResultLine
from benchgate.gate.reasons import check_line
from benchgate.model.verdict import ArithmeticStep, CheckResult, Outcome, Scale, Unit
from benchgate.stats.clusters import miss_share_limits
from benchgate.stats.distributions import Limits
from benchgate.stats.trace import Trace
from benchgate.suite.schema import Suite
from tests.fakes.apart import alone, check_of, known
from tests.fakes.estimates import estimate
from tests.fakes.measured import Effect, Noise, SuiteText, measured

Line = dict[str, object]
EFFECTIVE = "effective number of requests (n*, Korn and Graubard)"
ERRORS: Line = {"metric": "error_rate", "margin": "5 points"}
EITHER: Line = {"metric": "ttft", "margin": "10%", "direction": "either"}


def suite_of(*lines: Line, blocks: int = 8, requests: int = 60, looks: tuple[int, ...] = ()) -> Suite:
    suite = SuiteText(list(lines), blocks=blocks, requests=requests).suite()
    assert suite.load is not None
    return suite.model_copy(update={"load": suite.load.model_copy(update={"looks": looks})})


def judged(suite: Suite, effect: Effect | None = None, other: Effect | None = None) -> tuple[CheckResult, ...]:
    return judge(suite, measured(suite, effect or Effect(), other or Effect(), noise=Noise(cv=0.02))).checks


def step_of(check: CheckResult, what: str) -> ArithmeticStep:
    """The first step whose name begins so."""
    return next(step for step in check.steps if step.what.startswith(what))


def number(check: CheckResult, what: str) -> float:
    return float(step_of(check, what).value)


def listed(check: CheckResult, what: str) -> list[float]:
    return [float(one.split("/")[0]) for one in step_of(check, what).value.split(", ")]


@pytest.mark.parametrize("slowdown", [1.01, 0.97])
@pytest.mark.parametrize("line", [EITHER, {**EITHER, "block_when": "breach"}])
def test_a_change_either_way_has_two_p_values_and_twice_the_smaller_one_counts(slowdown: float, line: Line) -> None:
    (check, _) = judged(suite_of(line, ERRORS), Effect(slowdown=slowdown))
    harms = np.array(listed(check, "regression in each block"))
    beyond = math.log(1.1) if "block_when" in line else 0.0
    both = [float(scipy_stats.ttest_1samp(sign * harms, beyond, alternative="greater").pvalue) for sign in (1, -1)]
    told = [number(check, what) for what in ("p-value", "p-value of the opposite change")]
    assert told == pytest.approx(both, rel=1e-4)
    assert number(check, "p-value of the likelier one") == pytest.approx(min(both), rel=1e-4)
    last = [step for step in check.steps if step.what == "p-value"][-1]
    assert float(last.value) == pytest.approx(min(1.0, 2 * min(both)), rel=1e-4)
    assert last.formula.startswith("2 * ")
    assert (check.p_value or 0.0) == pytest.approx(float(last.value), rel=1e-6)


def test_at_a_look_the_smaller_p_value_is_repeated_first_and_doubled_then() -> None:
    (check, _) = judged(suite_of(EITHER, ERRORS, blocks=20, looks=(5, 10, 20)), Effect(slowdown=1.01))
    names = [step.what for step in check.steps]
    order = [
        names.index("p-value of the likelier one"),
        next(at for at, name in enumerate(names) if name.startswith("p-value of the likelier one over all looks")),
        len(names) - 1 - names[::-1].index("p-value"),
    ]
    assert order == sorted(order)
    one_sided = number(check, "p-value of the likelier one")
    repeated = step_of(check, "p-value of the likelier one over all looks")
    assert f"P(Z > z) = {one_sided:.8g}" in repeated.formula
    # The last of three O'Brien-Fleming looks: more than the p-value of one look, and less than three times that.
    assert one_sided < float(repeated.value) < 3 * one_sided
    assert check.p_value == pytest.approx(2 * float(repeated.value), rel=1e-4)


def test_holm_names_all_checks_by_size_and_the_one_that_decides() -> None:
    lines: tuple[Line, ...] = (
        {"metric": "ttft", "margin": "10%"}, {"metric": "tpot", "margin": "10%"}, ERRORS, {"metric": "goodput"},
        {"metric": "accuracy", "margin": "5 points"}, {"metric": "e2e", "margin": "10%", "required": False},
    )  # fmt: skip
    checks = judged(suite_of(*lines), Effect(slowdown=1.001, failed=2), Effect(failed=1))
    required = [check for check in checks if check.required]
    ordered = sorted((check.p_value or 0.0, check.id) for check in required)
    for check in required:
        told = step_of(check, "p-value among all checks (Holm)")
        places = [told.formula.index(f" {name}") for _, name in ordered if f" {name}" in told.formula]
        assert len(places) == len(required)
        by_size = told.formula.split("; by size: ")[1].split("; ")
        assert [float(one.split()[1]) for one in by_size] == pytest.approx([p for p, _ in ordered], rel=1e-6)
        assert "e2e" not in told.formula
        upto = [k for k, (p_value, _) in enumerate(ordered) if p_value <= (check.p_value or 0.0)]
        products = [min(1.0, (len(ordered) - k) * ordered[k][0]) for k in upto]
        deciding = ordered[products.index(max(products))][1]
        assert f", of {deciding}; by size: " in told.formula
        assert float(told.value) == pytest.approx(max(products), rel=1e-6)
    advisory = next(check for check in checks if not check.required)
    assert "ttft" not in step_of(advisory, "p-value among all checks (Holm)").formula


def test_a_share_says_on_how_many_effective_requests_it_rests() -> None:
    suite = suite_of(ERRORS, {"metric": "goodput"})
    errors, goodput = judged(suite, Effect(failed=4, failed_block=3))
    # Korn and Graubard: 480 / deff * (t(0.95, 479) / t(0.95, 7))^2, deff of 4 misses in one of eight blocks
    missed, share = np.array([0, 0, 0, 4, 0, 0, 0, 0]), 4 / 480
    spread = 8 / 7 * float(np.sum((missed - share * 60) ** 2))
    reach = float(scipy_stats.t.ppf(0.95, 479) / scipy_stats.t.ppf(0.95, 7))
    effective = 480 / (spread / (480 * share * (1 - share))) * reach**2
    ours, theirs = (step_of(errors, f"{EFFECTIVE} of the {arm}") for arm in ("candidate", "baseline"))
    assert float(ours.value) == pytest.approx(effective, rel=1e-6)
    assert "design effect" in ours.formula
    assert (theirs.formula, theirs.value) == ("all of them: none missed", "480")
    assert number(goodput, EFFECTIVE) == pytest.approx(effective, rel=1e-6)


def test_limits_of_a_good_share_are_those_of_the_misses_turned_round() -> None:
    (goodput,) = judged(suite_of({"metric": "goodput"}), Effect(failed=4, failed_block=3))
    ends = [number(goodput, f"{side} limit of the miss share") for side in ("lower", "upper")]
    assert (goodput.lower, goodput.upper) == pytest.approx((1 - ends[1], 1 - ends[0]))
    told = {step.what: step.value for step in goodput.steps}
    assert [float(told[f"{side} limit"]) for side in ("lower", "upper")] == pytest.approx([1 - ends[1], 1 - ends[0]])


def test_two_runs_that_nothing_ties_together_show_every_part_of_their_standard_error() -> None:
    check = check_of(alone(Effect(slowdown=1.1), seed=2), known(alone(seed=3)))
    parts = [
        number(check, what)
        for what in ("variance of the stored run", "variance of the judged run", "variance between runs")
    ]
    blocks = [np.array(listed(check, f"{run} run: ln of each block")) for run in ("stored", "judged")]
    assert parts[:2] == pytest.approx([float(np.var(one, ddof=1)) / len(one) for one in blocks], rel=1e-5)
    assert number(check, "standard error") == pytest.approx(math.sqrt(sum(parts)), rel=1e-6)
    assert number(check, "regression: ") == pytest.approx(float(blocks[1].mean() - blocks[0].mean()), rel=1e-6)
    assert step_of(check, "margin").formula == "ln(1 + 0.1)"


def test_blocks_that_were_taken_together_are_called_groups() -> None:
    line: Line = {"metric": "ttft", "statistic": "p95", "margin": "20%"}
    (check, _) = judged(suite_of(line, ERRORS, blocks=18, requests=30))
    for what in ("baseline, one value", "candidate, one value", "regression in each"):
        assert "each group of at least 2 blocks" in step_of(check, what).what
        assert len(listed(check, what)) == 9
    (single, _) = judged(suite_of(line, ERRORS, blocks=8, requests=60))
    assert step_of(single, "baseline, one value").what == "baseline, one value for each block"


@pytest.mark.parametrize(
    "line",
    [
        {"metric": "ttft", "margin": "1%", "min_abs": "3ms"},
        EITHER,
        ERRORS,
        {"metric": "ttft", "max": "200ms"},
        {"metric": "output_throughput", "min": "10/s"},
        {"metric": "output_throughput", "margin": "10%", "min_abs": "1/s"},
    ],
)
def test_no_step_sends_the_reader_elsewhere_and_the_last_limits_are_the_verdicts(line: Line) -> None:
    lines = [line] if line is ERRORS else [line, ERRORS]
    check = judged(suite_of(*lines), Effect(slowdown=1.02, failed=1), Effect())[0]
    assert all("below" not in step.value for step in check.steps)
    told = {step.what: step.value for step in check.steps}
    wanted = (check.lower or 0.0, check.upper or 0.0)
    if "limits and p-value" in told:
        ends, p_value = told["limits and p-value"].split("; p ")
        assert [float(one) for one in ends.split(" to ")] == pytest.approx(wanted, rel=1e-6)
        assert float(p_value) == pytest.approx(check.p_value, rel=1e-6)
    if "upper limit of the regression" in told:
        both = [float(told[f"{side} limit of the regression"]) for side in ("lower", "upper")]
        assert both == pytest.approx(wanted, rel=1e-6)
    if line["metric"] == "output_throughput" and "min" in line:
        assert float(told["the rate"]) == pytest.approx(check.candidate, rel=1e-6)
        assert [float(told[f"{side} limit"]) for side in ("lower", "upper")] == pytest.approx(wanted, rel=1e-6)


def test_where_nothing_or_everything_missed_all_requests_count() -> None:
    for kept, formula in (((0, 0), "all of them: each missed"), ((60, 60), "all of them: none missed")):
        trace = Trace()
        assert miss_share_limits(kept, (60, 60), 0.05, trace) is not None
        assert (trace.steps[0].formula, trace.steps[0].value) == (formula, "120")
    trace = Trace()
    assert miss_share_limits((59,), (60,), 0.05, trace) is None
    assert trace.steps == []


def test_twice_a_p_value_above_one_half_is_one() -> None:
    line = ResultLine("ttft", "Time to first token", "load", "ttft", required=True)
    for p_value, formula in ((1.0, "2 * that of the likelier one, at most 1"), (0.5, "2 * 0.25")):
        unclear = estimate(
            Unit.SECONDS, Scale.LOG_RATIO, 0.1, value=0.0, limits=Limits(-0.05, 0.05), p_value=p_value, two_sided=True
        )
        gate = suite_of(ERRORS).gate
        check = check_line(line, unclear, Outcome.PASS, p_value, gate, advice=None, p_values=[p_value])
        assert [step.formula for step in check.steps if step.what == "p-value"] == [formula]


def test_two_stored_runs_have_both_p_values_too() -> None:
    suite = suite_of(EITHER, ERRORS)
    judged_run = measured(suite, Effect(slowdown=1.01), noise=Noise(cv=0.02))
    check = judge(suite, judged_run, measured(suite, noise=Noise(cv=0.02, seed=5), run_id="reference")).checks[0]
    theirs, ours = (listed(check, what) for what in ("the same in the reference run", "regression in each block"))
    worse = scipy_stats.ttest_ind(ours, theirs, equal_var=False, alternative="greater")
    better = scipy_stats.ttest_ind(ours, theirs, equal_var=False, alternative="less")
    assert number(check, "p-value") == pytest.approx(float(worse.pvalue), rel=1e-5)
    assert number(check, "p-value of the opposite change") == pytest.approx(float(better.pvalue), rel=1e-5)
    assert number(check, "p-value of the likelier one") == pytest.approx(
        min(float(worse.pvalue), float(better.pvalue)), rel=1e-5
    )
