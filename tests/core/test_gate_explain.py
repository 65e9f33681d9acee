"""`gate --explain`: the printed numbers, done again by other means; names that are none; nothing in the document."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import optimize
from scipy import stats as scipy_stats

from benchgate.errors import UsageError
from benchgate.gate.judge import judge
from benchgate.model.verdict import ArithmeticStep, CheckResult
from benchgate.report.checks import find_check, render_explanation, with_steps
from benchgate.report.document import Terms, verdict_document
from benchgate.report.screen import Screen
from tests.fakes.measured import Effect, SuiteText, measured

CHECKS: list[dict[str, object]] = [
    {"metric": "ttft", "margin": "10%"},
    {"metric": "error_rate", "margin": "5 points"},
    {"metric": "accuracy", "margin": "5 points"},
    {"metric": "goodput"},
]
EVIDENCE = measured(
    SuiteText(CHECKS).suite(), Effect(slowdown=1.03, failed=2, wrong=(1, 2, 3)), Effect(failed=1, wrong=(5,))
)
VERDICT = judge(SuiteText(CHECKS).suite(), EVIDENCE)


def check_of(metric: str) -> CheckResult:
    return next(check for check in VERDICT.checks if check.metric == metric)


def steps_of(metric: str) -> list[ArithmeticStep]:
    return list(check_of(metric).steps)


def numbers(metric: str, what: str) -> list[float]:
    """The numbers of the first step with this name; of `a/b`, a."""
    step = next(step for step in steps_of(metric) if step.what.startswith(what))
    return [float(part.split("/")[0]) for part in step.value.split(", ")]


def number(metric: str, what: str) -> float:
    return numbers(metric, what)[0]


def test_latency_from_its_blocks_to_its_p_value() -> None:
    theirs, ours = (np.array(numbers("ttft", f"{arm}, one value")) for arm in ("baseline", "candidate"))
    ratios = np.log(ours / theirs)
    t = scipy_stats.ttest_1samp(ratios, 0.0, alternative="greater")
    interval = scipy_stats.ttest_1samp(ratios, 0.0).confidence_interval(0.9)
    assert numbers("ttft", "regression in each block") == pytest.approx(ratios, rel=1e-5)
    assert number("ttft", "their mean") == pytest.approx(float(np.mean(ratios)), rel=1e-6)
    assert (number("ttft", "lower limit"), number("ttft", "upper limit")) == pytest.approx(interval, rel=1e-5)
    assert number("ttft", "p-value") == pytest.approx(float(t.pvalue), rel=1e-5)
    p_values = [check.p_value or 0.0 for check in VERDICT.checks]
    ordered = sorted(p_values)
    place = ordered.index(check_of("ttft").p_value or 0.0)
    largest = max((len(ordered) - k) * ordered[k] for k in range(place + 1))
    assert number("ttft", "p-value among all checks") == pytest.approx(min(1.0, largest), rel=1e-6)


def test_share_from_its_counts_to_its_limits() -> None:
    missed = [int(sum(numbers("error_rate", f"{arm}: misses of requests"))) for arm in ("candidate", "baseline")]
    shares = [one / 480 for one in missed]
    z = float(scipy_stats.norm.ppf(0.95))
    wilson = [scipy_stats.binomtest(one, 480).proportion_ci(0.9, method="wilson") for one in missed]
    assert number("error_rate", "regression") == pytest.approx(shares[0] - shares[1], rel=1e-6)
    lower = shares[0] - shares[1] - math.hypot(shares[0] - wilson[0].low, wilson[1].high - shares[1])
    limits = [step for step in steps_of("error_rate") if step.what == "lower limit"]
    assert z > 0 and float(limits[1].value) == pytest.approx(lower, rel=1e-5)
    assert number("error_rate", "lower limit that is judged") == min(float(step.value) for step in limits)
    chance = scipy_stats.binom.sf(missed[0] - 1, sum(missed), 0.5)
    assert number("error_rate", "p-value of misses") == pytest.approx(float(chance), rel=1e-6)


def test_accuracy_from_its_items_to_tangos_limits() -> None:
    b, c, n = (int(number("accuracy", what)) for what in ("b:", "c:", "n:"))
    assert (b, c, n) == (6, 2, 600)  # three items of each of two tasks lost, one of each won

    def score(x: float) -> float:
        """The score statistic with the restricted estimate found by maximising the likelihood itself."""

        def unlikely(q: float) -> float:
            return -(b * math.log(q + x) + c * math.log(q) + (n - b - c) * math.log(1 - 2 * q - x))

        low, high = max(0.0, -x) + 1e-12, (1 - x) / 2 - 1e-12
        q = float(optimize.minimize_scalar(unlikely, bounds=(low, high), options={"xatol": 1e-12}).x)
        return (b - c - n * x) / math.sqrt(n * (2 * q + x * (1 - x)))

    z = float(scipy_stats.norm.ppf(0.95))
    assert score(number("accuracy", "lower limit")) == pytest.approx(z, abs=1e-3)
    assert score(number("accuracy", "upper limit")) == pytest.approx(-z, abs=1e-3)
    assert number("accuracy", "p-value of no regression") == pytest.approx(
        float(scipy_stats.binomtest(b, b + c, 0.5, alternative="greater").pvalue), rel=1e-6
    )


def test_slo_from_its_misses_to_its_limits() -> None:
    missed = sum(numbers("goodput", "candidate: misses"))
    effective = number("goodput", "effective number")
    reach = scipy_stats.t.ppf(0.95, 479) / scipy_stats.t.ppf(0.95, 7)
    assert effective == pytest.approx(480 * reach**2, rel=1e-6)  # no spread between blocks: a design effect of 1
    m = effective * missed / 480
    least, most = scipy_stats.beta.ppf(0.05, m, effective - m + 1), scipy_stats.beta.ppf(0.95, m + 1, effective - m)
    for side, missing in (("lower", least), ("upper", most)):
        assert number("goodput", f"{side} limit of the miss share") == pytest.approx(float(missing), rel=1e-6)
    for side, missing in (("lower", most), ("upper", least)):
        assert number("goodput", f"{side} limit that is judged") == pytest.approx(1 - float(missing), rel=1e-6)


@pytest.mark.parametrize("metric", [str(check["metric"]) for check in CHECKS])
def test_steps_end_in_the_numbers_and_the_outcome_of_the_verdict(metric: str) -> None:
    check = check_of(metric)
    names = ("value" if metric == "goodput" else "regression", "lower limit", "upper limit")
    said = [number(metric, f"{name} that is judged") for name in names]
    assert said == pytest.approx([check.harm, check.lower, check.upper], rel=1e-6)
    assert (check.steps[-1].what, check.steps[-1].value) == ("outcome", check.outcome.value)
    assert all(f"{step.what}" in render_explanation(VERDICT, check) for step in check.steps)


def test_unknown_check_is_refused_with_the_nearest_ids() -> None:
    with pytest.raises(UsageError, match=r"no check 'acuracy'; did you mean accuracy"):
        find_check(VERDICT, "acuracy")


def test_steps_are_in_the_document_only_when_asked_for() -> None:
    document = verdict_document(EVIDENCE.run, VERDICT, against=None, terms=Terms())
    assert "steps" not in str(document)
    told = with_steps(document, check_of("ttft"))["checks"]
    assert isinstance(told, list)
    assert [one["id"] for one in told if "steps" in one] == [check_of("ttft").id]


@pytest.mark.parametrize("columns", [80, 120])
def test_steps_on_a_terminal_fit_it_and_no_number_is_broken(columns: int) -> None:
    check = check_of("ttft")
    lines = render_explanation(VERDICT, check, Screen(columns)).splitlines()
    assert max(map(len, lines)) <= columns
    whole = render_explanation(VERDICT, check)
    assert " ".join(" ".join(lines).split()) == " ".join(whole.split())
