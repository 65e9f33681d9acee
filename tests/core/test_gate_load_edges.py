"""Checks of the load where there is little or nothing to judge: what is missing is never good, and says what it is."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from benchgate.gate.checks.shares import widened
from benchgate.gate.checks.timing import length_warning
from benchgate.gate.comparison import compare
from benchgate.gate.decision import Estimate, decide
from benchgate.gate.evidence.shares import Counts, tally_of
from benchgate.model.deployment import Arm
from benchgate.model.verdict import Outcome
from benchgate.stats.clusters import miss_share_limits
from benchgate.stats.distributions import Limits
from tests.fakes.blocks import Blocks, block, both, compared, estimate_of
from tests.fakes.drills import drill

ALPHA = 0.05


def outcome(estimate: Estimate) -> Outcome:
    return decide(estimate, estimate.p_value, ALPHA, 0.8)


def said(estimate: Estimate) -> str:
    assert estimate.problem is not None
    assert estimate.value is None
    return estimate.problem.reason


def against_baseline(blocks: Blocks, metric: str = "ttft", reference: Blocks | None = None) -> Estimate:
    return estimate_of({"metric": metric, "margin": "5%"}, compared(blocks, reference))


SOUND = [both(i, [0.02, 0.021], [0.02, 0.021]) for i in range(1, 8)]


@pytest.mark.parametrize(
    ("odd", "reason"),
    [
        (both(0, [], [0.02]), "the baseline has no value"),
        (both(0, [0.02], []), "the candidate has no value"),
        (both(0, [0.02], [0.0]), "the median of ttft is 0"),
        (both(0, [None], [0.02]), "too many of the baseline's own requests failed"),
    ],
)
def test_a_block_without_a_value_on_one_arm_makes_the_check_invalid(odd: Blocks, reason: str) -> None:
    estimate = against_baseline([odd, *SOUND])  # type: ignore[list-item]  # one pair
    assert outcome(estimate) is Outcome.INVALID
    assert reason in said(estimate)


def test_a_reference_that_cannot_be_held_against_is_invalid_and_shows_the_candidates_own_value() -> None:
    broken = against_baseline(SOUND, reference=[both(0, [], [0.02]), *SOUND])
    assert outcome(broken) is Outcome.INVALID
    assert broken.candidate == pytest.approx(0.02)
    failed = against_baseline(SOUND, reference=[both(0, [0.02], [None]), *SOUND])
    assert "in the reference run the candidate's own requests failed" in said(failed)
    assert outcome(against_baseline([], reference=SOUND)) is Outcome.INVALID
    assert outcome(against_baseline(SOUND, reference=SOUND[:1])) is Outcome.INCONCLUSIVE


@pytest.mark.parametrize(("failing", "says"), [(1, Outcome.INCONCLUSIVE), (8, Outcome.BLOCK)])
def test_failed_blocks_are_held_against_the_other_candidate_and_not_against_the_baseline(
    failing: int, says: Outcome
) -> None:
    """Both candidates are slower than their baseline alike, and only the second one fails blocks."""
    slower = [both(i, [0.02], [0.03]) for i in range(8)]
    found = against_baseline([*slower[failing:], *[both(i, [0.02], [None]) for i in range(failing)]], reference=slower)
    assert outcome(found) is says


def test_a_stage_whose_requests_have_no_such_value_has_no_mean() -> None:
    blocks = [(block(Arm.BASELINE, i, []), block(Arm.CANDIDATE, i, [])) for i in range(4)]
    estimate = estimate_of({"metric": "ttft", "margin": "5%", "statistic": "mean"}, compared(blocks))
    assert "no request has a ttft" in said(estimate)


def slo(blocks: Blocks, metric: str = "ttft", q: float = 0.5, bound: str = "50ms") -> Estimate:
    return estimate_of({"metric": metric, "statistic": f"p{q * 100:g}", "max": bound}, compared(blocks))


def spread_s(centre_s: float, requests: int, seed: int) -> list[float]:
    values: list[float] = (centre_s * np.exp(np.random.default_rng(seed).normal(0, 0.1, requests))).tolist()
    return values


@pytest.mark.parametrize(
    ("centre_s", "outcome_is"), [(0.03, Outcome.PASS), (0.045, Outcome.WARN), (0.08, Outcome.BLOCK)]
)
def test_an_slo_of_a_latency_is_held_nearly_held_or_broken(centre_s: float, outcome_is: Outcome) -> None:
    blocks = [both(i, [0.02], spread_s(centre_s, 40, i)) for i in range(8)]
    assert outcome(slo(blocks)) is outcome_is


@pytest.mark.parametrize(("q", "requests"), [(0.5, 4), (0.9, 28), (0.95, 58), (0.99, 200), (0.99, 298)])
def test_a_quantile_of_too_few_requests_is_never_a_number(q: float, requests: int) -> None:
    """5, 29, 59 and 299 requests are the fewest that have an upper limit (Wilks 1941)."""
    few = slo([both(i, [0.02], [0.02] * (requests // 2)) for i in range(2)], q=q)
    assert outcome(few) is Outcome.INCONCLUSIVE
    assert said(few) == f"p{q * 100:g} has no upper limit from {requests} requests"
    assert few.limits is None
    enough = slo([both(i, [0.02], spread_s(0.02, requests, i)) for i in range(2)], q=q)
    assert outcome(enough) is Outcome.PASS


def test_an_slo_without_blocks_or_with_one_or_with_failures_does_not_pass() -> None:
    assert "was not measured in every block" in said(slo([]))
    assert "was not measured in every block" in said(slo([both(0, [0.02], []), *SOUND]))
    assert "1 blocks give no interval" in said(slo([both(0, [0.02], spread_s(0.02, 40, 1))]))
    failing = slo([both(i, [0.02], [*spread_s(0.02, 8, i), *[None] * 32]) for i in range(8)])
    assert outcome(failing) is Outcome.BLOCK


def test_an_slo_is_held_by_requests_and_by_blocks_and_the_wider_limit_counts() -> None:
    """Of 160 requests hardly more than a quarter is slow, and all in one block of four; and the other way round."""
    restless = [both(i, [0.02], spread_s(0.08 if i == 3 else 0.02, 40, i)) for i in range(4)]
    assert outcome(slo(restless)) is Outcome.INCONCLUSIVE
    steady = [both(i, [0.02], [0.02, 0.02, 0.02, 0.09, 0.09]) for i in range(2)]
    assert outcome(slo(steady)) is Outcome.INCONCLUSIVE
    assert outcome(slo([both(i, [0.02], [0.02] * 5) for i in range(2)])) is Outcome.PASS


def test_a_block_whose_quantile_has_no_logarithm_hides_no_breach_and_makes_no_pass() -> None:
    failing = [both(i, [0.02], [0.09] * 20 if i else [None] * 20) for i in range(4)]
    assert outcome(slo(failing)) is Outcome.BLOCK
    at_once = [both(i, [0.02], [0.02 if i else 0.0] * 20) for i in range(4)]
    assert outcome(slo(at_once)) is Outcome.INCONCLUSIVE


def test_failures_of_one_block_alone_show_no_more_of_an_slo_than_its_slow_answers() -> None:
    """A tenth of the requests is beyond an SLO of the p95, all in one block of ten: that may not happen again."""
    fine = [both(i, [0.02], spread_s(0.02, 40, i)) for i in range(9)]
    for bad in (0.09, None):
        found = slo([*fine, both(9, [0.02], [bad] * 40)], q=0.95)
        assert outcome(found) is Outcome.INCONCLUSIVE
        assert found.limits is not None and found.limits.lower <= 0.05
    assert "1 blocks give no interval" in said(slo([both(0, [0.02], [None] * 40)]))
    often = [both(i, [0.02], [*spread_s(0.02, 30, i), *[None] * 10]) for i in range(10)]
    assert outcome(slo(often, q=0.95)) is Outcome.BLOCK


@pytest.mark.parametrize(("at_slo", "says"), [(0.05, Outcome.PASS), (0.0501, Outcome.INCONCLUSIVE)])
def test_a_request_just_at_its_slo_is_within_it(at_slo: float, says: Outcome) -> None:
    blocks = [both(i, [0.02], [0.03, 0.03, 0.03, at_slo, at_slo]) for i in range(2)]
    assert outcome(slo(blocks)) is says


def test_the_p_value_of_an_slo_is_that_of_as_many_requests_beyond_it() -> None:
    """12 of 20 beyond a median: P(X >= 12) of Bin(20, 1/2) is 0.2517; one just at the SLO is not beyond it."""
    estimate = slo([both(i, [0.02], [0.02, 0.05, 0.06, 0.06, 0.06]) for i in range(4)])
    assert estimate.p_value == pytest.approx(0.2517, abs=1e-4)


def gaps(tokens: int, failing: bool = False) -> Estimate:
    """Answers whose tokens come 10 ms apart, against an SLO of 15 ms for the gap between two."""
    times: list[float | None] = [0.02] * 20
    if failing:
        times[:18] = [None] * 18
    blocks = [(block(Arm.BASELINE, i, times), block(Arm.CANDIDATE, i, times, tokens=tokens)) for i in range(4)]
    return slo(blocks, "itl", bound="15ms")


def test_of_the_gaps_of_a_request_one_counts_and_a_failure_is_endless() -> None:
    held = gaps(8)
    assert outcome(held) is Outcome.PASS
    assert held.n == 80  # requests, not gaps
    assert held.candidate == pytest.approx(0.010)
    assert outcome(gaps(8, failing=True)) is Outcome.BLOCK
    assert outcome(gaps(1)) is Outcome.INVALID  # no gap at all


def rates(per_s: list[float | None]) -> Estimate:
    blocks = [
        (
            block(Arm.BASELINE, i, [0.02]),
            block(Arm.CANDIDATE, i, [0.02] * 10 if rate else [None], window_s=10 / rate if rate else 1.0),
        )
        for i, rate in enumerate(per_s)
    ]
    return estimate_of({"metric": "request_throughput", "min": "5/s"}, compared(blocks))


def test_an_slo_of_a_rate_is_held_broken_or_has_no_rate_to_judge() -> None:
    assert outcome(rates([10.0, 10.1, 10.2, 9.9])) is Outcome.PASS
    assert outcome(rates([3.0, 3.1, 3.2, 2.9])) is Outcome.BLOCK
    assert outcome(rates([5.8, 4.8, 5.7, 4.9])) is Outcome.INCONCLUSIVE  # 5.3, and perhaps 4.7
    assert outcome(rates([10.0])) is Outcome.INCONCLUSIVE
    assert "in at least one block no request was answered" in said(rates([10.0, None, 10.0]))


def test_an_slo_of_a_pace_that_answers_do_not_have_is_invalid() -> None:
    blocks = [(block(Arm.BASELINE, i, [0.02]), block(Arm.CANDIDATE, i, [0.02] * 4, tokens=1)) for i in range(4)]
    assert "have no pace" in said(slo(blocks, "tpot"))


def test_goodput_without_an_slo_is_no_tally() -> None:
    with pytest.raises(ValueError, match="goodput needs an slo"):
        tally_of("goodput", None)


def test_a_share_of_one_block_has_no_interval_against_a_baseline() -> None:
    one = estimate_of({"metric": "error_rate", "margin": "1 points"}, compared(SOUND[:1]))
    assert "was not measured in two blocks" in said(one)
    assert outcome(one) is Outcome.INVALID


NOTHING_MISSED = Counts((0,) * 8, (10**6,) * 8)
STEADY, BURST = Counts((2,) * 8, (60,) * 8), Counts((16, *[0] * 7), (60,) * 8)
POINT = Limits(1 / 30, 1 / 30)  # of blocks that all have 2 misses of 60


def limits_of(limits: Limits, ours: Counts, theirs: Counts) -> Limits:
    found = widened(limits, ours, theirs, ALPHA)
    assert found is not None
    return found[0]


def test_the_difference_of_two_shares_is_as_wide_as_the_widest_of_its_limits() -> None:
    assert limits_of(Limits(-0.5, 0.5), STEADY, NOTHING_MISSED) == Limits(-0.5, 0.5)
    for ours in (STEADY, BURST):
        own = miss_share_limits(ours.kept, ours.totals, ALPHA)
        assert own is not None
        found = limits_of(POINT, ours, NOTHING_MISSED)
        assert (found.lower, found.upper) == pytest.approx((own.lower, own.upper), abs=1e-5)
    burst, steady = (limits_of(POINT, ours, STEADY) for ours in (BURST, STEADY))
    assert burst.lower < steady.lower and burst.upper > steady.upper + 0.05


def test_the_difference_of_two_shares_the_other_way_round_is_its_opposite() -> None:
    one, other = limits_of(POINT, BURST, STEADY), limits_of(Limits(-1 / 30, -1 / 30), STEADY, BURST)
    assert (one.lower, one.upper) == pytest.approx((-other.upper, -other.lower))


def test_a_block_that_has_nothing_to_count_empties_the_whole_side() -> None:
    assert [side.empty for side in (Counts((), ()), Counts((0, 0), (60, 0)), STEADY)] == [True, True, False]


def test_a_side_of_one_block_has_no_limits_of_its_share() -> None:
    one = Counts((2,), (60,))
    assert widened(POINT, one, STEADY, ALPHA) is None
    assert widened(POINT, STEADY, one, ALPHA) is None


def over(blocks: int, line: dict[str, str], tokens: int = 8) -> Estimate:
    """The estimate of a check of the candidate's stage `long` over its stage `short`."""
    load = [
        block(Arm.CANDIDATE, i, [0.02, 0.021], stage=stage, tokens=tokens)
        for i in range(blocks)
        for stage in ("short", "long")
    ]
    whole: dict[str, object] = {"stage": "long", "over": "short", **line}
    return estimate_of(whole, compare(replace(compared([]).judged, load=tuple(load))), drill(whole))


def test_one_stage_over_another_takes_two_blocks_and_a_pace() -> None:
    ttft, errors = {"metric": "ttft", "max": "1.2x"}, {"metric": "error_rate", "max": "5 points"}
    assert "1 blocks give no interval" in said(over(1, ttft))
    assert "no block has both stage long and stage short" in said(over(0, ttft))
    assert "have no pace" in said(over(4, {**ttft, "metric": "tpot"}, tokens=1))
    assert "1 blocks give no interval" in said(over(1, errors))
    nothing = over(0, errors)
    assert outcome(nothing) is Outcome.INVALID
    assert nothing.margin == pytest.approx(0.05)


@pytest.mark.parametrize(("tokens", "warns"), [(89, True), (90, False), (100, False), (110, False), (111, True)])
def test_answers_a_tenth_shorter_or_longer_are_the_models_own_way(tokens: int, warns: bool) -> None:
    pairs = [(block(Arm.BASELINE, i, [0.02] * 3, tokens=100), block(Arm.CANDIDATE, i, [0.02] * 3, tokens=tokens))
             for i in range(2)]  # fmt: skip
    told = length_warning(compared(pairs).judged, "c4")
    assert (told is not None) is warns
    assert told is None or f"{tokens / 100:.2f} times as long as the baseline's" in told


def test_lengths_are_those_of_requests_that_both_arms_answered_and_have_a_record_of() -> None:
    for theirs, ours in (([0.02, None], [0.02, 0.02]), ([0.02, 0.02], [0.02, None])):
        failed = [(block(Arm.BASELINE, i, theirs, tokens=10), block(Arm.CANDIDATE, i, ours, tokens=10))
                  for i in range(2)]  # fmt: skip
        assert length_warning(compared(failed).judged, "c4") is None
    assert length_warning(compared([both(0, [None], [0.02])]).judged, "c4") is None
    lacking = (block(Arm.BASELINE, 0, [0.02] * 2, tokens=10), block(Arm.CANDIDATE, 0, [0.02], tokens=99))
    longer = (block(Arm.BASELINE, 1, [0.02], tokens=10), block(Arm.CANDIDATE, 1, [0.02], tokens=20))
    assert length_warning(compared([lacking]).judged, "c4") is None
    assert "2.00 times" in (length_warning(compared([lacking, longer]).judged, "c4") or "")
