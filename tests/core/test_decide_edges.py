"""From findings to a verdict: which p-values share the error, whom a guard silences, and what is still to come."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import pytest

from benchgate.gate import judge
from benchgate.gate.checks import evaluate
from benchgate.gate.checks.evaluate import Judgement
from benchgate.gate.checks.timing import Timing
from benchgate.gate.comparison import Comparison, compare
from benchgate.gate.decision import Estimate, Look
from benchgate.gate.policy import CheckSpec, concrete_checks
from benchgate.model.verdict import CheckResult, GuardResult, Outcome, Scale, Unit
from benchgate.stats.distributions import Limits
from benchgate.suite.schema import Suite
from tests.fakes.estimates import changed, estimate
from tests.fakes.measured import Noise, SuiteText, measured

Line = dict[str, object]
TTFT: Line = {"metric": "ttft", "margin": "10%"}
E2E: Line = {"metric": "e2e", "margin": "10%"}
ERRORS: Line = {"metric": "error_rate", "max": "2%"}
ACCURACY: Line = {"metric": "accuracy", "margin": "5 points"}
SHADOW: Line = {"metric": "shadow_excess", "margin": "5 points"}
NOTICED: Line = {"metric": "tpot", "margin": "10%", "required": False}

BEYOND = estimate(
    Unit.SECONDS, Scale.LOG_RATIO, 0.1, method="made up", n=5, value=0.15, limits=Limits(0.05, 0.2), p_value=0.02,
)  # fmt: skip
INSIDE = changed(BEYOND, value=0.0, limits=Limits(-0.05, 0.05), p_value=0.5)


def judged(
    lines: list[Line],
    found: Sequence[Estimate | tuple[Estimate, Estimate]],
    monkeypatch: pytest.MonkeyPatch,
    *,
    guards: tuple[GuardResult, ...] = (),
    untested: int | None = None,
) -> tuple[CheckResult, ...]:
    """The results of checks with exactly these estimates, or pairs of one and its estimate over all blocks."""
    suite = SuiteText(lines).suite()
    evidence = measured(suite)
    specs = tuple(concrete_checks(suite, evidence))
    pairs = [one if isinstance(one, tuple) else (one, None) for one in found]

    def find(specs: tuple[CheckSpec, ...], suite: Suite, comparison: Comparison) -> list[Judgement]:
        return [
            Judgement(spec, changed(own), None if over_all is None else changed(over_all))
            for spec, (own, over_all) in zip(specs, pairs, strict=True)
        ]

    monkeypatch.setattr(judge, "evaluate", find)
    if untested is None:
        return judge.check_results(specs, suite, compare(evidence), guards)
    return judge.check_results(specs, suite, compare(evidence), guards, untested=untested)


def outcomes(checks: tuple[CheckResult, ...]) -> list[Outcome]:
    return [check.outcome for check in checks]


def test_required_checks_share_one_error_and_advisory_ones_another(monkeypatch: pytest.MonkeyPatch) -> None:
    # Holm by hand over the required ones: 3 * 0.02, then max(that, 2 * 0.025), then max(that, 0.5)
    found = [BEYOND, changed(BEYOND, p_value=0.025), INSIDE, changed(BEYOND, p_value=0.03)]
    checks = judged([TTFT, E2E, ERRORS, NOTICED], found, monkeypatch)
    assert [check.p_holm for check in checks] == pytest.approx([0.06, 0.06, 0.5, 0.03])
    assert outcomes(checks) == [Outcome.INCONCLUSIVE, Outcome.INCONCLUSIVE, Outcome.PASS, Outcome.BLOCK]
    assert [check.p_value for check in checks] == [0.02, 0.025, 0.5, 0.03]


def test_a_check_without_a_p_value_takes_no_share_of_the_error_and_is_invalid(monkeypatch: pytest.MonkeyPatch) -> None:
    checks = judged([TTFT, E2E, ERRORS], [changed(BEYOND, p_value=None), BEYOND, INSIDE], monkeypatch)
    assert [check.p_holm for check in checks] == [None, pytest.approx(0.04), pytest.approx(0.5)]
    assert outcomes(checks) == [Outcome.INVALID, Outcome.BLOCK, Outcome.PASS]


class Undefined(Timing):
    """A check family whose arithmetic went wrong."""

    def measure(
        self, estimate: Estimate, spec: CheckSpec, suite: Suite, comparison: Comparison, *, alpha: float
    ) -> None:
        super().measure(estimate, spec, suite, comparison, alpha=alpha)
        estimate.value = estimate.p_value = math.nan


def test_an_undefined_number_makes_its_check_invalid_and_takes_no_share_of_the_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    suite = SuiteText([TTFT, E2E]).suite()
    evidence = measured(suite, noise=Noise(seed=4))
    specs = tuple(concrete_checks(suite, evidence))
    monkeypatch.setattr(evaluate, "FAMILIES", {**evaluate.FAMILIES, "ttft": Undefined()})
    undefined, other = judge.check_results(specs, suite, compare(evidence), ())
    assert (undefined.outcome, undefined.reason) == (Outcome.INVALID, "there is no estimate")
    assert [undefined.harm, undefined.upper, undefined.p_value, undefined.p_holm] == [None] * 4
    assert other.p_holm == other.p_value


@pytest.mark.parametrize(("untested", "p_holm"), [(0, 0.02), (1, 0.04), (2, 0.06), (100, 1.0)])
def test_required_checks_still_to_come_count_as_if_they_showed_nothing(
    untested: int, p_holm: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    (check,) = judged([TTFT], [BEYOND], monkeypatch, untested=untested)
    assert check.p_holm == pytest.approx(p_holm)


def test_where_nothing_is_still_to_come_one_check_keeps_its_p_value(monkeypatch: pytest.MonkeyPatch) -> None:
    (check,) = judged([TTFT], [BEYOND], monkeypatch)
    assert (check.p_holm, check.outcome) == (0.02, Outcome.BLOCK)


def test_what_is_still_to_come_is_no_part_of_the_advisory_checks(monkeypatch: pytest.MonkeyPatch) -> None:
    checks = judged([TTFT, NOTICED], [BEYOND, BEYOND], monkeypatch, untested=3)
    assert [check.p_holm for check in checks] == pytest.approx([0.08, 0.02])


@pytest.mark.parametrize(
    ("spoils", "says"),
    [
        ((), [Outcome.PASS, Outcome.PASS, Outcome.PASS]),
        (("speed",), [Outcome.INVALID, Outcome.PASS, Outcome.PASS]),
        (("load",), [Outcome.INVALID, Outcome.INVALID, Outcome.PASS]),
        (("shadow",), [Outcome.PASS, Outcome.PASS, Outcome.INVALID]),
        (("shadow", "speed"), [Outcome.INVALID, Outcome.PASS, Outcome.INVALID]),
    ],
)
def test_a_guard_that_trips_silences_the_checks_of_its_kinds_and_no_others(
    spoils: tuple[str, ...], says: list[Outcome], monkeypatch: pytest.MonkeyPatch
) -> None:
    lines, found = [TTFT, ERRORS, SHADOW], [INSIDE, INSIDE, INSIDE]
    tripped = GuardResult("g", tripped=True, reason="broken", remedy="mend it", invalidates=spoils)
    assert outcomes(judged(lines, found, monkeypatch, guards=(tripped,))) == says
    checks = judged(lines, found, monkeypatch, guards=(replace(tripped, tripped=False),))
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
    found = changed(INSIDE, notes=["a note"], two_sided=True, baseline=0.1, candidate=0.11)
    (check,) = judged([{**TTFT, "stage": "c4", "statistic": "p95"}], [found], monkeypatch)
    assert (check.id, check.family, check.metric, check.statistic, check.stage) == (
        "ttft-p95@c4", "load", "ttft", "p95", "c4",
    )  # fmt: skip
    assert (check.required, check.two_sided, check.notes) == (True, True, ("a note",))
    assert (check.baseline, check.candidate, check.harm, check.margin) == (0.1, 0.11, 0.0, 0.1)
    assert (check.lower, check.upper, check.p_value, check.p_holm) == (-0.05, 0.05, 0.5, 0.5)
    assert (check.n, check.n_unit, check.method, check.limits_alpha) == (5, "blocks", "made up", None)
    assert check.at_least is None
    (bound,) = judged([ERRORS], [changed(found, scale=Scale.ABSOLUTE, lower_is_worse=True)], monkeypatch)
    assert (bound.at_least, bound.scale) == (True, Scale.ABSOLUTE)
    look = Look(1, 2, 5, 10, 0.01, (0.5, 1.0))
    (early,) = judged([TTFT], [changed(found, look=look)], monkeypatch)
    assert early.limits_alpha == 0.01
    (bare,) = judged([ERRORS], [changed(found, limits=None)], monkeypatch)
    assert (bare.outcome, bare.lower, bare.upper) == (Outcome.INVALID, None, None)


# What was left out


def test_what_passes_only_without_some_blocks_is_not_promoted(monkeypatch: pytest.MonkeyPatch) -> None:
    (check,) = judged([TTFT], [(INSIDE, BEYOND)], monkeypatch)
    assert check.outcome is Outcome.INCONCLUSIVE
    assert "holds only without the blocks in which the load generator was late" in check.reason
    assert "over all of them: rose by 16.2 %" in check.reason
    assert check.advice
    assert (check.p_value, check.p_holm) == (0.5, 0.5)


@pytest.mark.parametrize("p_value", [0.02, 0.9])
def test_what_does_not_pass_without_some_blocks_is_not_saved_by_them(
    p_value: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    (check,) = judged([TTFT], [(changed(BEYOND, p_value=p_value), INSIDE)], monkeypatch)
    assert check.outcome is (Outcome.BLOCK if p_value == 0.02 else Outcome.INCONCLUSIVE)


def test_what_only_warns_over_all_blocks_warns_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    shown = changed(INSIDE, value=0.04, limits=Limits(0.01, 0.08), p_value=0.01)
    (check,) = judged([TTFT], [(INSIDE, shown)], monkeypatch)
    assert check.outcome is Outcome.WARN
    assert "over all blocks" in check.reason
    (both,) = judged([TTFT], [(shown, shown)], monkeypatch)
    assert both.outcome is Outcome.WARN
    assert "over all blocks" not in both.reason
    (as_good,) = judged([TTFT], [(INSIDE, INSIDE)], monkeypatch)
    assert as_good.outcome is Outcome.PASS


def test_what_is_near_its_bound_over_all_blocks_warns(monkeypatch: pytest.MonkeyPatch) -> None:
    far = changed(INSIDE, scale=Scale.ABSOLUTE, value=0.02, limits=Limits(0.01, 0.03))
    near = changed(far, value=0.09, limits=Limits(0.08, 0.1))  # of 0.1, and 80 % of it warns
    assert outcomes(judged([ERRORS], [(far, far)], monkeypatch)) == [Outcome.PASS]
    (check,) = judged([ERRORS], [(far, near)], monkeypatch)
    assert check.outcome is Outcome.WARN
    assert "over all blocks" in judged([TTFT], [(INSIDE, changed(INSIDE, warning="look"))], monkeypatch)[0].reason
    (beyond,) = judged([ERRORS], [(far, changed(near, limits=Limits(0.08, 0.101)))], monkeypatch)
    assert beyond.outcome is Outcome.INCONCLUSIVE


def test_all_blocks_are_judged_by_p_values_of_all_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    # Over all blocks the first check has 0.04 of two: by Holm 0.08, which warns of nothing.
    shown = changed(INSIDE, value=0.04, limits=Limits(0.01, 0.08), p_value=0.04)
    checks = judged([TTFT, E2E], [(INSIDE, shown), INSIDE], monkeypatch)
    assert outcomes(checks) == [Outcome.PASS, Outcome.PASS]
    # Beside one that is blocked anyhow it is the second step of Holm: 0.04, which does.
    sure = changed(BEYOND, p_value=0.001)
    checks = judged([TTFT, E2E], [(INSIDE, shown), sure], monkeypatch)
    assert outcomes(checks) == [Outcome.WARN, Outcome.BLOCK]


def test_a_second_look_that_is_missing_a_number_promotes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    for missing in (changed(INSIDE, p_value=None), changed(INSIDE, limits=None), changed(INSIDE, value=None)):
        (check,) = judged([TTFT], [(INSIDE, missing)], monkeypatch)
        assert check.outcome is Outcome.INCONCLUSIVE


def test_a_guard_silences_what_a_second_look_would_only_doubt(monkeypatch: pytest.MonkeyPatch) -> None:
    tripped = GuardResult("g", tripped=True, reason="broken", remedy="mend it", invalidates=("load",))
    (check,) = judged([TTFT], [(INSIDE, BEYOND)], monkeypatch, guards=(tripped,))
    assert (check.outcome, check.reason) == (Outcome.INVALID, "broken")
