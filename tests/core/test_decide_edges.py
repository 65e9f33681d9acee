"""From findings to a verdict: which p-values share the error, whom a guard silences, and what is still to come."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from benchgate.gate import judge
from benchgate.gate.checks.evaluate import Measured
from benchgate.gate.comparison import Comparison
from benchgate.gate.decision import Finding, Look
from benchgate.gate.policy import CheckSpec, concrete_checks
from benchgate.model.verdict import CheckResult, GuardResult, Outcome, Scale, Unit
from benchgate.stats.distributions import Limits
from benchgate.suite.schema import Suite
from tests.fakes.measured import SuiteText, measured

Line = dict[str, object]
TTFT: Line = {"metric": "ttft", "margin": "10%"}
E2E: Line = {"metric": "e2e", "margin": "10%"}
ERRORS: Line = {"metric": "error_rate", "max": "2%"}
ACCURACY: Line = {"metric": "accuracy", "margin": "5 points"}
SHADOW: Line = {"metric": "shadow_excess", "margin": "5 points"}
NOTICED: Line = {"metric": "tpot", "margin": "10%", "required": False}

BEYOND = Finding(
    unit=Unit.SECONDS, scale=Scale.LOG_RATIO, margin=0.1, method="made up", n=5, n_unit="blocks",
    harm=0.15, limits=Limits(0.05, 0.2), p_value=0.02,
)  # fmt: skip
INSIDE = replace(BEYOND, harm=0.0, limits=Limits(-0.05, 0.05), p_value=0.5)


def judged(
    lines: list[Line],
    found: list[Finding | Measured],
    monkeypatch: pytest.MonkeyPatch,
    *,
    guards: tuple[GuardResult, ...] = (),
    untested: int | None = None,
) -> tuple[CheckResult, ...]:
    """The results of checks that found exactly this."""
    suite = SuiteText(lines).suite()
    evidence = measured(suite)
    specs = tuple(concrete_checks(suite, evidence))
    told = [one if isinstance(one, Measured) else Measured(one) for one in found]

    def find(specs: tuple[CheckSpec, ...], suite: Suite, comparison: Comparison) -> list[Measured]:
        return told

    monkeypatch.setattr(judge, "measured", find)
    if untested is None:
        return judge.check_results(specs, suite, Comparison(evidence), guards)
    return judge.check_results(specs, suite, Comparison(evidence), guards, untested=untested)


def outcomes(checks: tuple[CheckResult, ...]) -> list[Outcome]:
    return [check.outcome for check in checks]


def test_required_checks_share_one_error_and_advisory_ones_another(monkeypatch: pytest.MonkeyPatch) -> None:
    # Holm by hand over the required ones: 3 * 0.02, then max(that, 2 * 0.025), then max(that, 0.5)
    found = [BEYOND, replace(BEYOND, p_value=0.025), INSIDE, replace(BEYOND, p_value=0.03)]
    checks = judged([TTFT, E2E, ERRORS, NOTICED], [*found], monkeypatch)
    assert [check.p_holm for check in checks] == pytest.approx([0.06, 0.06, 0.5, 0.03])
    assert outcomes(checks) == [Outcome.INCONCLUSIVE, Outcome.INCONCLUSIVE, Outcome.PASS, Outcome.BLOCK]
    assert [check.p_value for check in checks] == [0.02, 0.025, 0.5, 0.03]


def test_a_check_without_a_p_value_takes_no_share_of_the_error_and_is_invalid(monkeypatch: pytest.MonkeyPatch) -> None:
    checks = judged([TTFT, E2E, ERRORS], [replace(BEYOND, p_value=None), BEYOND, INSIDE], monkeypatch)
    assert [check.p_holm for check in checks] == [None, pytest.approx(0.04), pytest.approx(0.5)]
    assert outcomes(checks) == [Outcome.INVALID, Outcome.BLOCK, Outcome.PASS]


def test_an_undefined_number_makes_its_check_invalid_and_takes_no_share_of_the_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    undefined = replace(INSIDE, harm=math.nan, p_value=math.nan)
    checks = judged([TTFT, E2E, ERRORS], [undefined, BEYOND, Measured(INSIDE, undefined)], monkeypatch)
    assert outcomes(checks) == [Outcome.INVALID, Outcome.BLOCK, Outcome.INCONCLUSIVE]
    assert [check.p_holm for check in checks] == [None, pytest.approx(0.04), pytest.approx(0.5)]
    assert [checks[0].harm, checks[0].upper, checks[0].p_value] == [None, None, None]
    assert checks[0].reason == "there is no estimate"


@pytest.mark.parametrize(("untested", "p_holm"), [(0, 0.02), (1, 0.04), (2, 0.06), (100, 1.0)])
def test_required_checks_still_to_come_count_as_if_they_showed_nothing(
    untested: int, p_holm: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    (check,) = judged([TTFT], [BEYOND], monkeypatch, untested=untested)
    assert check.p_holm == pytest.approx(p_holm)


def test_where_nothing_is_still_to_come_one_check_keeps_its_p_value(monkeypatch: pytest.MonkeyPatch) -> None:
    (check,) = judged([TTFT], [BEYOND], monkeypatch)
    assert (check.p_holm, check.outcome) == (0.02, Outcome.BLOCK)


@pytest.mark.parametrize("found", [[], [INSIDE], [INSIDE, INSIDE, INSIDE]])
def test_a_check_without_a_finding_of_its_own_is_no_verdict(
    found: list[Finding], monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ValueError, match="zip"):
        judged([TTFT, E2E], [*found], monkeypatch)


def test_what_is_still_to_come_is_no_part_of_the_advisory_checks(monkeypatch: pytest.MonkeyPatch) -> None:
    checks = judged([TTFT, NOTICED], [BEYOND, BEYOND], monkeypatch, untested=3)
    assert [check.p_holm for check in checks] == pytest.approx([0.08, 0.02])


@pytest.mark.parametrize(
    ("invalidates", "says"),
    [
        ((), [Outcome.PASS, Outcome.PASS, Outcome.PASS]),
        (("speed",), [Outcome.INVALID, Outcome.PASS, Outcome.PASS]),
        (("load",), [Outcome.INVALID, Outcome.INVALID, Outcome.PASS]),
        (("shadow",), [Outcome.PASS, Outcome.PASS, Outcome.INVALID]),
        (("shadow", "speed"), [Outcome.INVALID, Outcome.PASS, Outcome.INVALID]),
    ],
)
def test_a_guard_that_trips_silences_the_checks_of_its_kinds_and_no_others(
    invalidates: tuple[str, ...], says: list[Outcome], monkeypatch: pytest.MonkeyPatch
) -> None:
    lines, found = [TTFT, ERRORS, SHADOW], [INSIDE, INSIDE, INSIDE]
    tripped = GuardResult("g", tripped=True, reason="broken", remedy="mend it", invalidates=invalidates)
    assert outcomes(judged(lines, [*found], monkeypatch, guards=(tripped,))) == says
    checks = judged(lines, [*found], monkeypatch, guards=(replace(tripped, tripped=False),))
    assert outcomes(checks) == [Outcome.PASS] * 3


def test_a_silenced_check_says_why_and_what_to_do_and_keeps_its_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    quiet = GuardResult("quiet", tripped=False, reason="fine", remedy=None, invalidates=("load",))
    tripped = GuardResult("g", tripped=True, reason="broken", remedy="mend it", invalidates=("load",))
    (check,) = judged([TTFT], [BEYOND], monkeypatch, guards=(quiet, tripped))
    assert (check.outcome, check.reason, check.advice) == (Outcome.INVALID, "broken", "mend it")
    assert (check.harm, check.lower, check.upper) == (0.15, 0.05, 0.2)
    (bare,) = judged([TTFT], [BEYOND], monkeypatch, guards=(replace(tripped, remedy=None),))
    assert (bare.outcome, bare.advice) == (Outcome.INVALID, "")


def test_the_result_holds_what_was_found_and_by_which_rule(monkeypatch: pytest.MonkeyPatch) -> None:
    found = replace(INSIDE, notes=("a note",), two_sided=True, baseline=0.1, candidate=0.11)
    (check,) = judged([{**TTFT, "stage": "c4", "statistic": "p95"}], [found], monkeypatch)
    assert (check.id, check.family, check.metric, check.statistic, check.stage) == (
        "ttft-p95@c4", "load", "ttft", "p95", "c4",
    )  # fmt: skip
    assert (check.required, check.two_sided, check.notes) == (True, True, ("a note",))
    assert (check.baseline, check.candidate, check.harm, check.margin) == (0.1, 0.11, 0.0, 0.1)
    assert (check.lower, check.upper, check.p_value, check.p_holm) == (-0.05, 0.05, 0.5, 0.5)
    assert (check.n, check.n_unit, check.method, check.limits_alpha) == (5, "blocks", "made up", None)
    assert check.at_least is None
    (bound,) = judged([ERRORS], [replace(found, scale=Scale.ABSOLUTE, lower_is_worse=True)], monkeypatch)
    assert (bound.at_least, bound.scale) == (True, Scale.ABSOLUTE)
    look = Look(1, 2, 5, 10, 0.01, (0.5, 1.0))
    (early,) = judged([TTFT], [replace(found, look=look)], monkeypatch)
    assert early.limits_alpha == 0.01
    (bare,) = judged([ERRORS], [replace(found, limits=None)], monkeypatch)
    assert (bare.outcome, bare.lower, bare.upper) == (Outcome.INVALID, None, None)


# What was left out


def test_what_passes_only_without_some_blocks_is_not_promoted(monkeypatch: pytest.MonkeyPatch) -> None:
    (check,) = judged([TTFT], [Measured(INSIDE, BEYOND)], monkeypatch)
    assert check.outcome is Outcome.INCONCLUSIVE
    assert "holds only without the blocks in which the load generator was late" in check.reason
    assert "over all of them: rose by 16.2 %" in check.reason
    assert check.advice
    assert (check.p_value, check.p_holm) == (0.5, 0.5)


@pytest.mark.parametrize("p_value", [0.02, 0.9])
def test_what_does_not_pass_without_some_blocks_is_not_saved_by_them(
    p_value: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    (check,) = judged([TTFT], [Measured(replace(BEYOND, p_value=p_value), INSIDE)], monkeypatch)
    assert check.outcome is (Outcome.BLOCK if p_value == 0.02 else Outcome.INCONCLUSIVE)


def test_what_only_warns_over_all_blocks_warns_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    shown = replace(INSIDE, harm=0.04, limits=Limits(0.01, 0.08), p_value=0.01)
    (check,) = judged([TTFT], [Measured(INSIDE, shown)], monkeypatch)
    assert check.outcome is Outcome.WARN
    assert "over all blocks" in check.reason
    (both,) = judged([TTFT], [Measured(shown, shown)], monkeypatch)
    assert both.outcome is Outcome.WARN
    assert "over all blocks" not in both.reason
    (as_good,) = judged([TTFT], [Measured(INSIDE, INSIDE)], monkeypatch)
    assert as_good.outcome is Outcome.PASS


def test_what_is_near_its_bound_over_all_blocks_warns(monkeypatch: pytest.MonkeyPatch) -> None:
    far = replace(INSIDE, scale=Scale.ABSOLUTE, harm=0.02, limits=Limits(0.01, 0.03))
    near = replace(far, harm=0.09, limits=Limits(0.08, 0.1))  # of 0.1, and 80 % of it warns
    assert outcomes(judged([ERRORS], [Measured(far, far)], monkeypatch)) == [Outcome.PASS]
    (check,) = judged([ERRORS], [Measured(far, near)], monkeypatch)
    assert check.outcome is Outcome.WARN
    assert (
        "over all blocks" in judged([TTFT], [Measured(INSIDE, replace(INSIDE, warning="look"))], monkeypatch)[0].reason
    )
    (beyond,) = judged([ERRORS], [Measured(far, replace(near, limits=Limits(0.08, 0.101)))], monkeypatch)
    assert beyond.outcome is Outcome.INCONCLUSIVE


def test_all_blocks_are_judged_by_p_values_of_all_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    # Over all blocks the first check has 0.04 of two: by Holm 0.08, which warns of nothing.
    shown = replace(INSIDE, harm=0.04, limits=Limits(0.01, 0.08), p_value=0.04)
    checks = judged([TTFT, E2E], [Measured(INSIDE, shown), INSIDE], monkeypatch)
    assert outcomes(checks) == [Outcome.PASS, Outcome.PASS]
    # Beside one that is blocked anyhow it is the second step of Holm: 0.04, which does.
    sure = replace(BEYOND, p_value=0.001)
    checks = judged([TTFT, E2E], [Measured(INSIDE, shown), sure], monkeypatch)
    assert outcomes(checks) == [Outcome.WARN, Outcome.BLOCK]


def test_a_second_look_that_is_missing_a_number_promotes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    for missing in (replace(INSIDE, p_value=None), replace(INSIDE, limits=None), replace(INSIDE, harm=None)):
        (check,) = judged([TTFT], [Measured(INSIDE, missing)], monkeypatch)
        assert check.outcome is Outcome.INCONCLUSIVE


def test_a_guard_silences_what_a_second_look_would_only_doubt(monkeypatch: pytest.MonkeyPatch) -> None:
    tripped = GuardResult("g", tripped=True, reason="broken", remedy="mend it", invalidates=("load",))
    (check,) = judged([TTFT], [Measured(INSIDE, BEYOND)], monkeypatch, guards=(tripped,))
    assert (check.outcome, check.reason) == (Outcome.INVALID, "broken")
