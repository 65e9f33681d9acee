"""Policies at the gate: least changes that matter, changes either way, means over requests, tails of short blocks."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from benchgate.gate.comparison import Comparison
from benchgate.gate.decision import Estimate, decide
from benchgate.gate.judge import judge
from benchgate.model.deployment import Arm
from benchgate.model.run import Evidence, LoadObservation
from benchgate.model.verdict import CheckResult, Outcome, Verdict
from tests.fakes.blocks import block, compared, estimate_of
from tests.fakes.measured import SuiteText, measured

Line = dict[str, object]
BASE_S = 0.020
ALPHA = 0.05


def of_ratios(ratios: Sequence[float], *, base: Sequence[float] | None = None) -> Comparison:
    """One request a block: the candidate's time is so many times the baseline's."""
    pairs = zip(base if base is not None else [BASE_S] * len(ratios), ratios, strict=True)
    return compared([(block(Arm.BASELINE, i, [b]), block(Arm.CANDIDATE, i, [b * r])) for i, (b, r) in enumerate(pairs)])


WITHIN: Line = {"metric": "ttft", "margin": "5%"}
EITHER: Line = {"direction": "either"}
RATE: Line = {"metric": "request_throughput", "margin": "5%"}


def found(comparison: Comparison, line: Line) -> Estimate:
    return estimate_of(line, comparison)


def outcome(estimate: Estimate) -> Outcome:
    return decide(estimate, estimate.p_value, ALPHA, 0.8)


def with_least(least: str | None, line: Line = WITHIN, *, breach: bool = False) -> Line:
    """The line with this `min_abs`."""
    return line | ({} if least is None else {"min_abs": least}) | ({"block_when": "breach"} if breach else {})


def around(centre: float, spread: float = 0.002, n: int = 8) -> list[float]:
    """Ratios of this geometric mean, as far apart as a quiet machine leaves them."""
    steps = np.linspace(-1, 1, n)
    return [centre * math.exp(spread * step) for step in steps]


@pytest.mark.parametrize(
    ("ratio", "min_abs", "said"),
    [
        (1.04, None, Outcome.WARN),  # real harm inside the margin of 5 %
        (1.04, "1ms", Outcome.PASS),  # 0.8 ms of 20 ms: below the least change of 1 ms
        (1.045, "0.5ms", Outcome.WARN),  # 0.9 ms: above it, inside the margin
        (1.08, None, Outcome.BLOCK),
        (1.08, "2ms", Outcome.PASS),  # 1.6 ms, below a least change that is more than the margin
        (1.12, "2ms", Outcome.BLOCK),  # 2.4 ms: beyond both
        (0.90, "2ms", Outcome.PASS),
    ],
)
def test_a_change_below_the_least_that_matters_is_no_harm_whatever_its_ratio(
    ratio: float, min_abs: str | None, said: Outcome
) -> None:
    for breach in (False, True):
        estimate = found(of_ratios(around(ratio)), with_least(min_abs, breach=breach))
        assert outcome(estimate) is said


def of_rates(ratio: float, spread: float = 0.0) -> Comparison:
    """Ten requests in about a second."""
    pairs = [
        (
            block(Arm.BASELINE, i, [0.02] * 10, window_s=1 + spread * (-1) ** i),
            block(Arm.CANDIDATE, i, [0.02] * 10, window_s=(1 + spread * (-1) ** i) * step / ratio),
        )
        for i, step in enumerate(around(1.0))
    ]
    return compared(pairs)


def test_a_least_change_of_a_rate_is_one_fall_that_does_not_matter_and_never_all_of_it() -> None:
    assert outcome(found(of_rates(1.0), RATE)) is Outcome.PASS
    assert outcome(found(of_rates(0.93), RATE)) is Outcome.BLOCK
    assert outcome(found(of_rates(0.93), with_least("1/s", RATE))) is Outcome.PASS
    assert outcome(found(of_rates(0.88), with_least("1/s", RATE))) is Outcome.BLOCK
    all_of_it = found(of_rates(0.1), with_least("10/s", RATE))
    assert outcome(all_of_it) is Outcome.INVALID
    assert all_of_it.problem is not None
    assert "a `min_abs` of 10/s is no less than the baseline's own 10/s" in all_of_it.problem.reason
    of_some_blocks = found(of_rates(0.1, spread=0.2), with_least("9/s", RATE))
    assert outcome(of_some_blocks) is Outcome.INVALID  # 8.33/s in every other block


@pytest.mark.parametrize(
    ("margin", "min_abs", "refused"),
    [
        ("1%", "3600s", True),
        ("1%", "10.2ms", True),
        ("1%", "9.8ms", False),
        ("60%", "11.8ms", False),
        ("60%", "12.2ms", True),
    ],
)
def test_a_least_change_that_is_no_small_one_is_refused_whatever_was_measured(
    margin: str, min_abs: str, refused: bool
) -> None:
    """Half of 20 ms is 10 ms; a margin that is itself more may have one as large."""
    line = with_least(min_abs, {"metric": "ttft", "margin": margin})
    for ratio in (1.0, 3.0):
        estimate = found(of_ratios(around(ratio)), line)
        assert (outcome(estimate) is Outcome.INVALID) is refused
        assert estimate.problem is None or "which is no small change" in estimate.problem.reason
        assert estimate.problem is None or "as the `margin`" in estimate.problem.advice
    assert outcome(found(of_ratios(around(3.0)), line)) is not Outcome.PASS


def test_a_least_change_of_a_third_of_a_rate_is_refused() -> None:
    assert outcome(found(of_rates(1.0), with_least("3.4/s", RATE))) is Outcome.INVALID
    assert outcome(found(of_rates(0.2), with_least("9.5/s", RATE))) is Outcome.INVALID
    assert outcome(found(of_rates(1.0), with_least("3.3/s", RATE))) is Outcome.PASS


@pytest.mark.parametrize("breach", [False, True])
@pytest.mark.parametrize(
    ("ratio", "min_abs", "said"),
    [
        (1.20, "8ms", Outcome.WARN),  # 4 ms of 20 ms: four times the margin, let through by 8 ms alone
        (1.20, "6.1ms", Outcome.WARN),
        (1.12, "3.5ms", Outcome.WARN),  # three and a half times the margin
        (1.04, "8ms", Outcome.PASS),  # inside the margin: the least change is not what let it through
        (1.08, "2.9ms", Outcome.PASS),  # a least change of less than three times the margin
        (1.50, "8ms", Outcome.BLOCK),
    ],
)
def test_harm_beyond_the_margin_that_a_large_least_change_lets_through_is_told(
    ratio: float, min_abs: str, said: Outcome, breach: bool
) -> None:
    estimate = found(of_ratios(around(ratio)), with_least(min_abs, breach=breach))
    assert outcome(estimate) is said
    if said is Outcome.WARN:
        assert estimate.warning is not None
        assert "by `min_abs` alone" in estimate.warning
        assert "a regression beyond the margin of 5 % is shown" in estimate.warning


def test_a_rate_may_rise_by_no_more_than_it_may_fall_where_either_is_harm() -> None:
    """5 % either way is a ratio of 1.05 at most, not the 1 / 0.95 that a fall of 5 % would be turned over."""
    line = RATE | EITHER
    assert found(of_rates(1.0), line).margin == pytest.approx(math.log(1.05))
    assert outcome(found(of_rates(1.045), line)) is Outcome.WARN
    assert outcome(found(of_rates(1.051), line)) is Outcome.BLOCK
    assert outcome(found(of_rates(1 / 1.051), line)) is Outcome.BLOCK


@pytest.mark.parametrize(("base", "said"), [(0.020, "2 ms"), (0.080, "5 %"), (None, "now the one and now the other")])
def test_the_reason_says_which_of_the_two_is_more_in_these_blocks(base: float | None, said: str) -> None:
    bases = [0.020, 0.080] * 4 if base is None else [base] * 8
    estimate = found(of_ratios(around(1.0), base=bases), with_least("2ms"))
    assert estimate.margin_text == f"5 % or 2 ms, whichever is more (here {said})"
    assert estimate.margin == pytest.approx(np.mean([max(math.log(1.05), math.log1p(0.002 / b)) for b in bases]))


@pytest.mark.slow
def test_the_limits_of_a_least_change_hold_where_blocks_vary_more_than_pairs_do() -> None:
    """A candidate that is exactly 2 ms slower, beside blocks that vary by 30 %: promoted in 5 % of 250, not more."""
    line = with_least("2ms", {"metric": "ttft", "margin": "2%"})
    generator, seen = np.random.default_rng(5), Counter[Outcome]()
    for _ in range(250):
        base = BASE_S * np.exp(generator.normal(0, 0.3, 8))
        ours = (base + 0.002) * np.exp(generator.normal(0, 0.01, 8))
        seen[outcome(found(of_ratios((ours / base).tolist(), base=base.tolist()), line))] += 1
    promoted = seen[Outcome.PASS] + seen[Outcome.WARN]
    assert 3 <= promoted <= 24  # 12.5 expected, sd 3.4
    assert seen[Outcome.BLOCK] <= 24


@pytest.mark.parametrize(
    ("ratio", "said"),
    [(1.0, Outcome.PASS), (1.03, Outcome.WARN), (0.97, Outcome.WARN), (1.08, Outcome.BLOCK), (0.92, Outcome.BLOCK)],
)
def test_either_way_a_change_is_harm_and_the_margin_is_one_on_both_sides(ratio: float, said: Outcome) -> None:
    for breach in (False, True):
        estimate = found(of_ratios(around(ratio)), with_least(None, WITHIN | EITHER, breach=breach))
        assert outcome(estimate) is said


def test_either_way_a_wide_interval_on_the_good_side_does_not_pass() -> None:
    wide = of_ratios(around(0.98, spread=0.12))
    assert outcome(found(wide, WITHIN)) is not Outcome.BLOCK
    assert outcome(found(wide, WITHIN | EITHER)) is Outcome.INCONCLUSIVE


def test_either_way_the_p_value_is_of_a_change_in_both_directions() -> None:
    one = found(of_ratios(around(1.01, spread=0.02)), WITHIN).p_value
    faster = found(of_ratios(around(1 / 1.01, spread=0.02)), WITHIN | EITHER).p_value
    slower = found(of_ratios(around(1.01, spread=0.02)), WITHIN | EITHER).p_value
    assert one is not None
    assert faster == pytest.approx(2 * one)
    assert slower == pytest.approx(2 * one)


def test_a_candidate_that_fails_is_not_excused_by_a_least_change_or_by_looking_both_ways() -> None:
    pairs = [(block(Arm.BASELINE, i, [0.02]), block(Arm.CANDIDATE, i, [None])) for i in range(8)]
    for line in (with_least("5ms"), WITHIN | EITHER):
        assert outcome(found(compared(pairs), line)) is Outcome.BLOCK
    one = [*pairs[:1], *((block(Arm.BASELINE, i, [0.02]), block(Arm.CANDIDATE, i, [0.02])) for i in range(1, 8))]
    assert outcome(found(compared(one), with_least("5ms"))) is Outcome.INCONCLUSIVE


def test_a_candidate_that_answers_nothing_has_a_rate_of_0_and_no_least_change_excuses_it() -> None:
    pairs = [(block(Arm.BASELINE, i, [0.02] * 10), block(Arm.CANDIDATE, i, [None] * 10)) for i in range(8)]
    estimate = found(compared(pairs), with_least("0.1/s", RATE))
    assert (outcome(estimate), estimate.candidate) == (Outcome.BLOCK, 0.0)


def verdict_on(check: Line, candidate: float, *, reference: float | None = None) -> Verdict:
    """A whole verdict on blocks of sixty requests, of which the candidate's take so many times as long."""
    suite = SuiteText([check, {"metric": "error_rate", "margin": "5 points"}]).suite()
    before = None if reference is None else _evidence(suite_checks=[check], ratio=reference, run_id="run-0")
    return judge(suite, _evidence(suite_checks=[check], ratio=candidate, run_id="run-1"), before)


def _evidence(suite_checks: list[Line], ratio: float, run_id: str) -> Evidence:
    suite = SuiteText([*suite_checks, {"metric": "error_rate", "margin": "5 points"}]).suite()
    generator = np.random.default_rng(8)
    load: list[LoadObservation] = []
    for i in range(8):
        for arm, factor in ((Arm.BASELINE, 1.0), (Arm.CANDIDATE, ratio)):
            times = BASE_S * factor * np.exp(generator.normal(0, 0.01, 60))
            one = block(arm, i, times.tolist(), tokens=10)
            load.append(replace(one, position=len(load), window_s=float(one.requests.end_ns.max()) / 1e9))
    return replace(measured(suite, run_id=run_id), load=tuple(load))


def first_check(verdict: Verdict) -> CheckResult:
    return verdict.checks[0]


@pytest.mark.parametrize(
    ("check", "ratio", "said", "reason"),
    [
        ({"min_abs": "2ms"}, 1.06, Outcome.PASS,
         "inside the margin of 5 % or 2 ms, whichever is more (here 2 ms)"),
        ({"min_abs": "0.5ms"}, 1.01, Outcome.PASS,
         "inside the margin of 5 % or 500 µs, whichever is more (here 5 %)"),
        ({"min_abs": "0.5ms"}, 1.10, Outcome.BLOCK,
         "beyond the margin of 5 % or 500 µs, whichever is more (here 5 %)"),
        ({"direction": "either"}, 1.0, Outcome.PASS, "inside the margin of -4.76 % to +5 %"),
        ({"direction": "either"}, 0.97, Outcome.WARN, "a real change, though inside the margin of -4.76 % to +5 %"),
        ({"direction": "either"}, 0.90, Outcome.BLOCK, "beyond the margin of -4.76 % to +5 %"),
        ({"statistic": "mean"}, 1.10, Outcome.BLOCK, "beyond the margin of 5 %"),
    ],
)  # fmt: skip
def test_the_reason_says_which_margin_bound(check: Line, ratio: float, said: Outcome, reason: str) -> None:
    result = first_check(verdict_on({"metric": "ttft", "margin": "5%", **check}, ratio))
    assert result.outcome is said, result.reason
    assert reason in result.reason
    assert result.two_sided is ("direction" in check)
    if said is Outcome.BLOCK:
        assert ("fell by" if ratio < 1 else "rose by") in result.reason


def test_two_stored_runs_are_held_to_the_same_terms() -> None:
    for check, ratio, said in (
        ({"min_abs": "2ms"}, 1.06, Outcome.PASS),
        ({}, 1.10, Outcome.BLOCK),
        ({"min_abs": "2ms"}, 1.20, Outcome.BLOCK),
        ({"direction": "either"}, 0.88, Outcome.BLOCK),
        ({"statistic": "mean"}, 1.10, Outcome.BLOCK),
    ):
        line: Line = {"metric": "ttft", "margin": "5%", **check}
        result = first_check(verdict_on(line, ratio, reference=1.0))
        assert result.outcome is said, (check, result.reason)
