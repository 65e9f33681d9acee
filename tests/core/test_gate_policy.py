"""Policies at the gate: least changes that matter, changes either way, means over requests, tails of short blocks."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from benchgate.gate.allowance import Terms
from benchgate.gate.block_pairs import Measure
from benchgate.gate.comparison import Comparison
from benchgate.gate.decide import judge
from benchgate.gate.load_checks import relative
from benchgate.gate.rule import Finding, decide
from benchgate.model.deployment import Arm
from benchgate.model.records import RequestColumns
from benchgate.model.run import Evidence, LoadObservation
from benchgate.model.verdict import CheckResult, Outcome, Verdict
from tests.fakes.blocks import block, compared, record
from tests.fakes.measured import SuiteText, measured

Line = dict[str, object]
BASE_S = 0.020
ALPHA = 0.05


def of_ratios(ratios: Sequence[float], *, base: Sequence[float] | None = None) -> Comparison:
    """One request a block: the candidate's time is so many times the baseline's."""
    pairs = zip(base if base is not None else [BASE_S] * len(ratios), ratios, strict=True)
    return compared([(block(Arm.BASELINE, i, [b]), block(Arm.CANDIDATE, i, [b * r])) for i, (b, r) in enumerate(pairs)])


MEDIAN, MEAN = Measure("ttft", 0.5, "p50"), Measure("ttft", 0.5, "mean")


def found(comparison: Comparison, terms: Terms, measure: Measure = MEDIAN) -> Finding:
    return relative(comparison, "c4", measure, terms, alpha=ALPHA)


def outcome(finding: Finding) -> Outcome:
    return decide(finding, finding.p_value, ALPHA, 0.8)


def around(centre: float, spread: float = 0.002, n: int = 8) -> list[float]:
    """Ratios of this geometric mean, as far apart as a quiet machine leaves them."""
    steps = np.linspace(-1, 1, n)
    return [centre * math.exp(spread * step) for step in steps]


@pytest.mark.parametrize(
    ("ratio", "min_abs_s", "said"),
    [
        (1.04, None, Outcome.WARN),  # real harm inside the margin of 5 %
        (1.04, 0.001, Outcome.PASS),  # 0.8 ms of 20 ms: below the least change of 1 ms
        (1.045, 0.0005, Outcome.WARN),  # 0.9 ms: above it, inside the margin
        (1.08, None, Outcome.BLOCK),
        (1.08, 0.002, Outcome.PASS),  # 1.6 ms, below a least change that is more than the margin
        (1.12, 0.002, Outcome.BLOCK),  # 2.4 ms: beyond both
        (0.90, 0.002, Outcome.PASS),
    ],
)
def test_a_change_below_the_least_that_matters_is_no_harm_whatever_its_ratio(
    ratio: float, min_abs_s: float | None, said: Outcome
) -> None:
    for breach in (False, True):
        finding = found(of_ratios(around(ratio)), Terms(0.05, breach=breach, least_change=min_abs_s))
        assert outcome(finding) is said


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
    rate = Measure("request_throughput", 0.5)
    assert outcome(found(of_rates(1.0), Terms(0.05), rate)) is Outcome.PASS
    assert outcome(found(of_rates(0.93), Terms(0.05), rate)) is Outcome.BLOCK
    assert outcome(found(of_rates(0.93), Terms(0.05, least_change=1.0), rate)) is Outcome.PASS
    assert outcome(found(of_rates(0.88), Terms(0.05, least_change=1.0), rate)) is Outcome.BLOCK
    all_of_it = found(of_rates(0.1), Terms(0.05, least_change=10.0), rate)
    assert outcome(all_of_it) is Outcome.INVALID
    assert all_of_it.problem is not None
    assert "a `min_abs` of 10/s is no less than the baseline's own 10/s" in all_of_it.problem.reason
    of_some_blocks = found(of_rates(0.1, spread=0.2), Terms(0.05, least_change=9.0), rate)
    assert outcome(of_some_blocks) is Outcome.INVALID  # 8.33/s in every other block


@pytest.mark.parametrize(
    ("margin", "min_abs_s", "refused"),
    [(0.01, 3600.0, True), (0.01, 0.0102, True), (0.01, 0.0098, False), (0.60, 0.0118, False), (0.60, 0.0122, True)],
)
def test_a_least_change_that_is_no_small_one_is_refused_whatever_was_measured(
    margin: float, min_abs_s: float, refused: bool
) -> None:
    """Half of 20 ms is 10 ms; a margin that is itself more may have one as large."""
    for ratio in (1.0, 3.0):
        finding = found(of_ratios(around(ratio)), Terms(margin, least_change=min_abs_s))
        assert (outcome(finding) is Outcome.INVALID) is refused
        assert finding.problem is None or "that is no small change" in finding.problem.reason
        assert finding.problem is None or "as the `margin`" in finding.problem.advice
    assert outcome(found(of_ratios(around(3.0)), Terms(margin, least_change=min_abs_s))) is not Outcome.PASS


def test_a_least_change_of_a_third_of_a_rate_is_refused() -> None:
    rate = Measure("request_throughput", 0.5)  # ten a second
    assert outcome(found(of_rates(1.0), Terms(0.05, least_change=3.4), rate)) is Outcome.INVALID
    assert outcome(found(of_rates(0.2), Terms(0.05, least_change=9.5), rate)) is Outcome.INVALID
    assert outcome(found(of_rates(1.0), Terms(0.05, least_change=3.3), rate)) is Outcome.PASS


@pytest.mark.parametrize("breach", [False, True])
@pytest.mark.parametrize(
    ("ratio", "min_abs_s", "said"),
    [
        (1.20, 0.008, Outcome.WARN),  # 4 ms of 20 ms: four times the margin, let through by 8 ms alone
        (1.20, 0.0061, Outcome.WARN),
        (1.12, 0.0035, Outcome.WARN),  # three and a half times the margin
        (1.04, 0.008, Outcome.PASS),  # inside the margin: the least change is not what let it through
        (1.08, 0.0029, Outcome.PASS),  # a least change of less than three times the margin
        (1.50, 0.008, Outcome.BLOCK),
    ],
)
def test_harm_beyond_the_margin_that_a_large_least_change_lets_through_is_told(
    ratio: float, min_abs_s: float, said: Outcome, breach: bool
) -> None:
    finding = found(of_ratios(around(ratio)), Terms(0.05, breach=breach, least_change=min_abs_s))
    assert outcome(finding) is said
    if said is Outcome.WARN:
        assert finding.warning is not None
        assert "by `min_abs` alone" in finding.warning
        assert "harm beyond the margin of 5 % is shown" in finding.warning


def test_a_rate_may_rise_by_no_more_than_it_may_fall_where_either_is_harm() -> None:
    """5 % either way is a ratio of 1.05 at most, not the 1 / 0.95 that a fall of 5 % would be turned over."""
    rate, terms = Measure("request_throughput", 0.5), Terms(0.05, two_sided=True)
    assert found(of_rates(1.0), terms, rate).margin == pytest.approx(math.log(1.05))
    assert outcome(found(of_rates(1.045), terms, rate)) is Outcome.WARN
    assert outcome(found(of_rates(1.051), terms, rate)) is Outcome.BLOCK
    assert outcome(found(of_rates(1 / 1.051), terms, rate)) is Outcome.BLOCK


@pytest.mark.parametrize(("base", "said"), [(0.020, "2 ms"), (0.080, "5 %"), (None, "now the one and now the other")])
def test_the_reason_says_which_of_the_two_is_more_in_these_blocks(base: float | None, said: str) -> None:
    bases = [0.020, 0.080] * 4 if base is None else [base] * 8
    finding = found(of_ratios(around(1.0), base=bases), Terms(0.05, least_change=0.002))
    assert finding.margin_told == f"5 % or 2 ms, whichever is more (here {said})"
    assert finding.margin == pytest.approx(np.mean([max(math.log(1.05), math.log1p(0.002 / b)) for b in bases]))


def test_the_limits_of_a_least_change_hold_where_blocks_vary_more_than_pairs_do() -> None:
    """A candidate that is exactly 2 ms slower, beside blocks that vary by 30 %: promoted in 5 % of 250, not more."""
    generator, seen = np.random.default_rng(5), Counter[Outcome]()
    for _ in range(250):
        base = BASE_S * np.exp(generator.normal(0, 0.3, 8))
        ours = (base + 0.002) * np.exp(generator.normal(0, 0.01, 8))
        seen[
            outcome(found(of_ratios((ours / base).tolist(), base=base.tolist()), Terms(0.02, least_change=0.002)))
        ] += 1
    promoted = seen[Outcome.PASS] + seen[Outcome.WARN]
    assert 3 <= promoted <= 24  # 12.5 expected, sd 3.4
    assert seen[Outcome.BLOCK] <= 24


@pytest.mark.parametrize(
    ("ratio", "said"),
    [(1.0, Outcome.PASS), (1.03, Outcome.WARN), (0.97, Outcome.WARN), (1.08, Outcome.BLOCK), (0.92, Outcome.BLOCK)],
)
def test_either_way_a_change_is_harm_and_the_margin_is_one_on_both_sides(ratio: float, said: Outcome) -> None:
    for breach in (False, True):
        finding = found(of_ratios(around(ratio)), Terms(0.05, breach=breach, two_sided=True))
        assert outcome(finding) is said


def test_either_way_a_wide_interval_on_the_good_side_does_not_pass() -> None:
    wide = of_ratios(around(0.98, spread=0.12))
    assert outcome(found(wide, Terms(0.05))) is not Outcome.BLOCK
    assert outcome(found(wide, Terms(0.05, two_sided=True))) is Outcome.INCONCLUSIVE


def test_either_way_the_p_value_is_of_a_change_in_both_directions() -> None:
    one = found(of_ratios(around(1.01, spread=0.02)), Terms(0.05)).p_value
    faster = found(of_ratios(around(1 / 1.01, spread=0.02)), Terms(0.05, two_sided=True)).p_value
    slower = found(of_ratios(around(1.01, spread=0.02)), Terms(0.05, two_sided=True)).p_value
    assert one is not None
    assert faster == pytest.approx(2 * one)
    assert slower == pytest.approx(2 * one)


def test_a_candidate_that_fails_is_not_excused_by_a_least_change_or_by_looking_both_ways() -> None:
    pairs = [(block(Arm.BASELINE, i, [0.02]), block(Arm.CANDIDATE, i, [None])) for i in range(8)]
    for terms in (Terms(0.05, least_change=0.005), Terms(0.05, two_sided=True)):
        assert outcome(found(compared(pairs), terms)) is Outcome.BLOCK
    one = [*pairs[:1], *((block(Arm.BASELINE, i, [0.02]), block(Arm.CANDIDATE, i, [0.02])) for i in range(1, 8))]
    assert outcome(found(compared(one), Terms(0.05, least_change=0.005))) is Outcome.INCONCLUSIVE


def test_a_candidate_that_answers_nothing_has_a_rate_of_0_and_no_least_change_excuses_it() -> None:
    pairs = [(block(Arm.BASELINE, i, [0.02] * 10), block(Arm.CANDIDATE, i, [None] * 10)) for i in range(8)]
    finding = found(compared(pairs), Terms(0.05, least_change=0.1), Measure("request_throughput", 0.5))
    assert (outcome(finding), finding.candidate) == (Outcome.BLOCK, 0.0)


def test_a_mean_is_that_of_the_ratios_of_paired_requests() -> None:
    theirs = [0.010, 0.080, 0.300]  # ratios 1, 1.05 and 1.20: their geometric mean is 1.26 ** (1/3)
    pairs = [
        (
            block(Arm.BASELINE, i, [t * step for t in theirs]),
            block(Arm.CANDIDATE, i, [0.010 * step, 0.084 * step, 0.360 * step]),
        )
        for i, step in enumerate(around(1.0, spread=0.3))
    ]
    finding = found(compared(pairs), Terms(0.05), MEAN)
    assert finding.harm == pytest.approx(math.log(1.26) / 3)
    assert finding.baseline == pytest.approx((0.010 * 0.080 * 0.300) ** (1 / 3))
    assert finding.limits is not None
    assert finding.limits.upper - finding.limits.lower < 1e-6  # the blocks vary by 30 %, the pairs not at all


@pytest.mark.parametrize(
    ("theirs", "ours", "said", "reason"),
    [
        ([0.02, 0.02], [0.02, None], Outcome.INCONCLUSIVE, ""),  # a mean with an infinite one is infinite
        ([0.02, None], [0.02, 0.02], Outcome.INVALID, "1 of the baseline's own requests failed"),
        ([0.02, None], [0.02, None], Outcome.INVALID, "1 of the baseline's own requests failed"),
        ([0.02, 0.02], [0.02], Outcome.INVALID, "1 requests have a record on one arm alone"),
        ([0.02, 0.0], [0.02, 0.02], Outcome.INVALID, "a ttft of 0"),
        ([0.02, 0.02], [0.02, 0.0], Outcome.INVALID, "a ttft of 0"),
    ],
)
def test_no_request_leaves_a_mean(
    theirs: list[float | None], ours: list[float | None], said: Outcome, reason: str
) -> None:
    sound = [(block(Arm.BASELINE, i, [0.02, 0.02]), block(Arm.CANDIDATE, i, [0.02, 0.02])) for i in range(1, 8)]
    finding = found(
        compared([(block(Arm.BASELINE, 0, theirs), block(Arm.CANDIDATE, 0, ours)), *sound]), Terms(0.05), MEAN
    )
    assert outcome(finding) is said
    assert reason in (finding.problem.reason if finding.problem else "")


def test_a_value_on_one_arm_alone_makes_no_pair_and_on_neither_is_no_loss() -> None:
    def with_tokens(theirs: int, ours: int) -> Finding:
        pairs = []
        for i in range(8):
            b, c = (block(arm, i, [0.02] * 40) for arm in Arm)
            first = [block(arm, i, [0.02] * 40, tokens=n) for arm, n in ((Arm.BASELINE, theirs), (Arm.CANDIDATE, ours))]
            pairs.append((_with_first_of(b, first[0]), _with_first_of(c, first[1])))
        return found(compared(pairs), Terms(0.05), Measure("tpot", 0.5, "mean"))

    assert outcome(with_tokens(1, 1)) is Outcome.PASS
    alone = with_tokens(8, 1)
    assert alone.problem is not None
    assert "1 requests have a tpot on one arm alone" in alone.problem.reason
    assert outcome(with_tokens(1, 8)) is Outcome.INVALID


def _with_first_of(execution: LoadObservation, other: LoadObservation) -> LoadObservation:
    """The same execution with the first request of another one."""
    tokens = int(other.requests.output_tokens[0])
    records = [record(0, 0.02, tokens), *(record(i, 0.02, 8) for i in range(1, len(execution.requests)))]
    return replace(execution, requests=RequestColumns.pack(records))


def test_a_mean_of_values_that_no_request_has_is_invalid() -> None:
    pairs = [(block(Arm.BASELINE, i, [0.02], tokens=1), block(Arm.CANDIDATE, i, [0.02], tokens=1)) for i in range(4)]
    finding = found(compared(pairs), Terms(0.05), Measure("tpot", 0.5, "mean"))
    assert outcome(finding) is Outcome.INVALID


LENGTH = Measure("output_length", 0.5)


@pytest.mark.parametrize(
    ("tokens", "said"), [(100, Outcome.PASS), (96, Outcome.WARN), (85, Outcome.BLOCK), (115, Outcome.BLOCK)]
)
def test_answers_that_end_early_or_ramble_are_a_change(tokens: int, said: Outcome) -> None:
    pairs = [
        (
            block(Arm.BASELINE, i, [0.02] * 3, tokens=99 + 2 * (i % 2)),
            block(Arm.CANDIDATE, i, [0.02] * 3, tokens=tokens),
        )
        for i in range(8)
    ]
    finding = found(compared(pairs), Terms(0.10, two_sided=True), LENGTH)
    assert outcome(finding) is said
    assert finding.candidate == pytest.approx(tokens)
    assert finding.baseline == pytest.approx(100, abs=0.1)


def test_only_answers_that_both_arms_gave_have_lengths_to_compare() -> None:
    def lengths(theirs: list[float | None], ours: list[float | None]) -> Finding:
        pairs = [(block(Arm.BASELINE, i, theirs), block(Arm.CANDIDATE, i, ours)) for i in range(4)]
        return found(compared(pairs), Terms(0.10, two_sided=True), LENGTH)

    assert outcome(lengths([0.02, None, 0.02], [0.02, 0.02, None])) is Outcome.PASS
    nobody = lengths([0.02, None], [None, 0.02])
    assert nobody.problem is not None
    assert "there is no request that both arms answered" in nobody.problem.reason
    assert outcome(nobody) is Outcome.INVALID
    assert outcome(lengths([0.02, 0.02], [0.02])) is Outcome.INVALID


def tail(requests: int, blocks: int, slow: Sequence[int] = (), q: float = 0.95) -> Finding:
    """Of every block the requests at these places take three times as long on the candidate."""
    generator, pairs = np.random.default_rng(3), []
    for i in range(blocks):
        theirs = BASE_S * np.exp(generator.normal(0, 0.2, requests))
        factor = np.where(np.isin(np.arange(requests), slow), 3.0, 1.0)
        pairs.append((block(Arm.BASELINE, i, theirs.tolist()), block(Arm.CANDIDATE, i, (theirs * factor).tolist())))
    return found(compared(pairs), Terms(0.10), Measure("ttft", q, f"p{q * 100:g}"))


def test_the_tail_of_a_short_block_is_not_its_slowest_request() -> None:
    assert tail(59, 4).notes[0].startswith("block-to-block spread")
    together = tail(20, 16)
    assert together.notes[0] == "p95 needs at least 59 requests, so the 16 blocks were taken as 5 groups"
    assert together.n == 16
    few = tail(20, 5)
    assert outcome(few) is Outcome.INCONCLUSIVE
    assert few.problem is not None
    assert few.problem.reason == "p95 is not estimable from 5 blocks of 20 requests at stage c4"
    assert "at least 59 requests in every block" in few.problem.advice
    assert outcome(tail(298, 2, q=0.99)) is Outcome.INCONCLUSIVE
    assert tail(299, 2, q=0.99).problem is None
    assert tail(3, 4, q=0.5).problem is None  # a median of three is one


def test_a_tail_that_grew_beyond_the_margin_is_hardly_promoted_by_short_blocks() -> None:
    """The slowest 7 % take 15 % longer, so p95 does too; the second slowest of twenty is often none of them."""
    generator, promoted = np.random.default_rng(12), 0
    for _ in range(50):
        pairs = []
        for i in range(20):
            theirs, ours = generator.normal(0, 0.3, (2, 20))
            slower = np.where(ours > 0.3 * 1.4758, 1.15, 1.0)
            pairs.append(
                (
                    block(Arm.BASELINE, i, (BASE_S * np.exp(theirs)).tolist(), tokens=1),
                    block(Arm.CANDIDATE, i, (BASE_S * np.exp(ours) * slower).tolist(), tokens=1),
                )
            )
        promoted += outcome(found(compared(pairs), Terms(0.10), Measure("ttft", 0.95, "p95"))).promotes
    assert promoted <= 6  # 2.5 expected; about 10 where every block counts by itself


def test_one_block_alone_has_no_interval_whatever_its_length() -> None:
    one = tail(40, 1)
    assert one.problem is not None
    assert one.problem.reason == "1 blocks give no interval"


def test_a_tail_is_that_of_the_blocks_taken_together() -> None:
    """One request in forty is slow: beyond p95 of sixty requests, and in every fourth block of ten the slowest."""
    generator, pairs = np.random.default_rng(4), []
    for i in range(18):
        theirs = BASE_S * np.exp(generator.normal(0, 0.05, 10))
        factor = np.where((np.arange(10) == 3) & (i % 4 == 0), 3.0, 1.0)
        pairs.append((block(Arm.BASELINE, i, theirs.tolist()), block(Arm.CANDIDATE, i, (theirs * factor).tolist())))
    finding = found(compared(pairs), Terms(0.10), Measure("ttft", 0.95, "p95"))
    assert finding.harm is not None
    assert finding.harm < 0.10


def test_a_gap_between_chunks_has_many_values_a_request_so_that_short_blocks_have_a_tail() -> None:
    pairs = [
        (block(Arm.BASELINE, i, [0.02] * 7, tokens=10), block(Arm.CANDIDATE, i, [0.02] * 7, tokens=10))
        for i in range(4)
    ]
    finding = found(compared(pairs), Terms(0.10), Measure("itl", 0.95, "p95"))
    assert finding.problem is None
    assert not any("groups" in note for note in finding.notes)


def test_the_paired_and_the_unpaired_spread_and_the_requests_stand_beside_a_quantile() -> None:
    generator, pairs = np.random.default_rng(6), []
    for i in range(8):
        mood = math.exp(generator.normal(0, 0.10))
        theirs, ours = (mood * BASE_S * np.exp(generator.normal(0, 0.01, 30)) for _ in range(2))
        pairs.append((block(Arm.BASELINE, i, theirs.tolist()), block(Arm.CANDIDATE, i, (1.02 * ours).tolist())))
    spread, narrowed, _, by_request = found(compared(pairs), Terms(0.05)).notes
    assert spread.startswith("block-to-block spread of the paired difference 0.")
    times = float(narrowed.removesuffix("x").rpartition(" ")[2])
    assert narrowed.startswith("unpaired it would be 9")
    assert 20 < times < 100
    assert by_request.startswith("request by request +1.9")
    assert by_request.endswith("the geometric mean of 240 pairs")
    broken = [*pairs[:-1], (block(Arm.BASELINE, 7, [0.02, 0.02]), block(Arm.CANDIDATE, 7, [0.02, None]))]
    assert not any("request by request" in note for note in found(compared(broken), Terms(0.05)).notes)


def test_equal_pairs_have_no_spread_to_be_divided_by() -> None:
    finding = found(of_ratios([1.0] * 4), Terms(0.05))
    assert finding.notes[0] == "block-to-block spread of the paired difference 0.0%, of the baseline alone 0.0%"
    assert not any("unpaired" in note for note in finding.notes)


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
            load.append(replace(block(arm, i, times.tolist(), tokens=10), position=len(load), window_s=60.0))
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
        ({"direction": "either"}, 1.0, Outcome.PASS, "inside the margin of 5 % either way"),
        ({"direction": "either"}, 0.97, Outcome.WARN, "real change, though inside the margin of 5 % either way"),
        ({"direction": "either"}, 0.90, Outcome.BLOCK, "beyond the margin of 5 % either way"),
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
        assert not any("request by request" in note for note in result.notes)
