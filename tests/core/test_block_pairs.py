"""A stage block by block: which blocks go together, which have no value, and what one request makes of a mean."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from benchgate.gate.decision import CannotJudge
from benchgate.gate.evidence.blocks import (
    BlockPairs,
    Measure,
    PairedRequests,
    block_pairs,
    grouped,
    paired_lengths,
    paired_requests,
    pooling_note,
    require_pace,
    require_same_pieces,
)
from benchgate.gate.judge import judge
from benchgate.model.deployment import Arm
from benchgate.model.records import RequestColumns
from benchgate.model.run import LoadObservation
from benchgate.model.verdict import Outcome
from tests.fakes.blocks import Blocks, block, both, compared, record
from tests.fakes.estimates import refusal
from tests.fakes.measured import SuiteText, measured

P95, MEDIAN, MEAN = Measure("ttft", 0.95), Measure("ttft", 0.5), Measure("ttft", 0.5, "mean")
Asked = Sequence[tuple[float | None, int]]
"""Time to first token and output tokens of each request."""


def execution(arm: Arm, asked: Asked, number: int = 0) -> LoadObservation:
    records = [record(i, ttft_s, tokens) for i, (ttft_s, tokens) in enumerate(asked)]
    return replace(block(arm, number, [0.02]), requests=RequestColumns.pack(records))


def pair(theirs: Asked, ours: Asked, number: int = 0) -> tuple[LoadObservation, LoadObservation]:
    return execution(Arm.BASELINE, theirs, number), execution(Arm.CANDIDATE, ours, number)


def pairs(blocks: Blocks, measure: Measure) -> BlockPairs:
    return block_pairs(compared(blocks).judged, "c4", measure)


def problem(blocks: Blocks, measure: Measure, outcome: Outcome = Outcome.INVALID) -> str:
    told = refusal(lambda: pairs(blocks, measure))
    assert told is not None
    assert told.outcome is outcome
    return told.reason


# Blocks by themselves and together


def blocks_of(count: int, theirs: int, ours: int | None = None) -> list[tuple[LoadObservation, LoadObservation]]:
    """Blocks of so many requests, that take longer from one to the next."""
    return [
        both(
            k,
            [0.02 + i / 1e4 for i in range(theirs)],
            [0.03 + i / 1e4 for i in range(theirs if ours is None else ours)],
        )
        for k in range(count)
    ]


@pytest.mark.parametrize(
    ("measure", "count", "theirs", "ours", "sizes"),
    [
        (P95, 4, 59, 59, [1, 1, 1, 1]),  # a p95 has an upper limit from 59 requests on
        (P95, 4, 58, 59, [2, 2]),
        (P95, 4, 59, 58, [2, 2]),
        (P95, 7, 20, 20, [4, 3]),
        (P95, 2, 20, 20, [2]),
        (MEDIAN, 4, 2, 2, [1, 1, 1, 1]),
        (Measure("ttft", 0.95, "mean"), 4, 2, 2, [1, 1, 1, 1]),
        (Measure("request_throughput", 0.95), 4, 2, 2, [1, 1, 1, 1]),
        (Measure("output_length", 0.95), 4, 2, 2, [1, 1, 1, 1]),
        (Measure("itl", 0.95), 4, 9, 9, [1, 1, 1, 1]),  # seven gaps a request
        (Measure("itl", 0.95), 4, 8, 8, [2, 2]),
        (P95, 4, 0, 0, [4]),
        (P95, 60, 1, 1, [60]),
    ],
)
def test_blocks_are_taken_together_until_a_group_has_the_quantile(
    measure: Measure, count: int, theirs: int, ours: int, sizes: list[int]
) -> None:
    groups = grouped(blocks_of(count, theirs, ours), measure)
    assert [len(group) for group in groups] == sizes
    assert [one[0].block for group in groups for one in group] == list(range(count))


def test_one_short_block_is_short_for_all() -> None:
    few = [*blocks_of(5, 60), both(5, [0.02] * 30, [0.02] * 60)]
    assert [len(group) for group in grouped(few, P95)] == [2, 2, 2]


def test_a_quantile_of_blocks_together_is_that_of_all_their_requests() -> None:
    """Three blocks of twenty, each 10 ms slower than the one before: the 57th of their 60 is the 17th of the last."""
    blocks = [
        both(k, [0.02 + k % 3 / 100 + i / 1e4 for i in range(20)], [0.03 + k % 3 / 100 + i / 1e4 for i in range(20)])
        for k in range(6)
    ]
    told = pairs(blocks, P95)
    assert (len(told.harm), told.together) == (2, 3)
    assert told.baseline == pytest.approx([0.0416] * 2)
    assert told.candidate == pytest.approx([0.0516] * 2)
    assert told.harm == pytest.approx(np.log(told.candidate / told.baseline))
    assert pooling_note(P95, 6, 2) == "p95 needs at least 59 requests, so the 6 blocks were taken as 2 groups"
    assert pairs(blocks_of(6, 60), P95).together == 1


def answered(ttfts_s: Sequence[float | None], *, reasoning_alone: bool = False) -> RequestColumns:
    """Requests whose first token is of the answer, unless all they wrote was reasoning."""
    records = [record(i, ttft_s) for i, ttft_s in enumerate(ttfts_s)]
    firsts = [None if reasoning_alone or not one.chunk_ns else one.chunk_ns[0] for one in records]
    return RequestColumns.pack([replace(r, first_answer_ns=at) for r, at in zip(records, firsts, strict=True)])


def test_a_block_without_any_answer_stays_in_its_group() -> None:
    """A p90 takes four blocks of ten together, of which the candidate fails one, or only reasons in it."""
    measure, blocks = Measure("ttfot", 0.9), blocks_of(8, 10)
    well = [tuple(replace(one, requests=answered([0.02] * 10)) for one in pair) for pair in blocks]
    assert pairs([(theirs, ours) for theirs, ours in well], measure).harm == pytest.approx([0, 0])
    failed, silent = answered([None] * 10), answered([0.02] * 10, reasoning_alone=True)
    broken = [(theirs, replace(ours, requests=failed) if ours.block % 4 == 1 else ours) for theirs, ours in well]
    assert list(pairs(broken, measure).harm) == [math.inf, math.inf]
    broken[1] = (broken[1][0], replace(broken[1][1], requests=silent))
    assert "the candidate has no value for this metric" in problem(broken, measure)


def test_too_few_requests_for_two_groups_are_no_quantile_and_two_blocks_are_too_few_by_themselves() -> None:
    assert "p95 is not estimable from 3 blocks of 20 requests" in problem(blocks_of(3, 20), P95, Outcome.INCONCLUSIVE)
    assert len(pairs(blocks_of(2, 20), P95).harm) == 1  # of which nobody makes an interval
    assert len(pairs(blocks_of(4, 30), P95).harm) == 2


def test_what_takes_longer_and_what_is_done_less_often_are_both_harm() -> None:
    slow = [both(k, [0.02] * 5, [0.04] * 5) for k in range(3)]
    assert pairs(slow, MEDIAN).harm == pytest.approx([math.log(2)] * 3)
    few = [(block(Arm.BASELINE, k, [0.02] * 6), block(Arm.CANDIDATE, k, [0.02] * 3)) for k in range(3)]
    assert pairs(few, Measure("request_throughput", 0.5)).harm == pytest.approx([math.log(2)] * 3)
    less = [(block(Arm.BASELINE, k, [0.02]), block(Arm.CANDIDATE, k, [0.02], tokens=4)) for k in range(3)]
    assert pairs(less, Measure("output_throughput", 0.5)).harm == pytest.approx([math.log(2)] * 3)


def test_a_candidate_without_a_finite_value_is_endless_harm_and_a_baseline_without_one_no_baseline() -> None:
    sound = blocks_of(3, 5)
    told = pairs([*sound, both(9, [0.02] * 5, [None] * 5)], MEDIAN)
    assert np.isinf(told.harm).tolist() == [False, False, False, True]
    assert told.harm[-1] > 0
    assert "too many of the baseline's own requests failed" in problem(
        [*sound, both(9, [None] * 5, [0.02] * 5)], MEDIAN
    )
    idle = Measure("request_throughput", 0.5)
    assert math.isinf(pairs([*sound, both(9, [0.02], [None])], idle).harm[-1])
    assert "block 10: too many" in problem([*sound, both(9, [None], [0.02])], idle)


@pytest.mark.parametrize(("theirs", "ours"), [(0.0, 0.02), (0.02, 0.0), (0.0, 0.0)])
def test_a_time_of_nothing_is_no_pace_on_either_arm(theirs: float, ours: float) -> None:
    assert "is 0, which is no pace" in problem([*blocks_of(2, 5), both(9, [theirs], [ours])], MEDIAN)
    assert "of 0, which is no pace" in problem([*blocks_of(2, 5), both(9, [theirs, 0.02], [ours, 0.02])], MEAN)


def test_a_stage_that_one_arm_alone_has_is_not_measured() -> None:
    evidence = compared(blocks_of(3, 5)).judged
    for arm in Arm:
        lone = replace(evidence, load=tuple(o for o in evidence.load if o.arm is arm))
        with pytest.raises(CannotJudge, match="not measured on both arms"):
            block_pairs(lone, "c4", MEDIAN)
    with pytest.raises(CannotJudge, match="stage c9 was not measured"):
        block_pairs(evidence, "c9", MEDIAN)


# Requests one by one


def requests(theirs: Asked, ours: Asked, metric: str = "ttft") -> PairedRequests:
    return paired_requests(*pair(theirs, ours), metric)


def numbers(told: PairedRequests) -> list[float]:
    return [told.mean, told.n, told.baseline, told.candidate]


def test_the_mean_of_pairs_is_that_of_their_log_ratios_and_no_request_is_left_out() -> None:
    told = requests([(0.01, 8), (0.04, 8)], [(0.02, 8), (0.04, 8)])
    assert numbers(told) == pytest.approx([math.log(2) / 2, 2, 0.02, math.sqrt(0.0008)])
    failed = requests([(0.01, 8), (0.04, 8)], [(0.02, 8), (None, 8)])
    assert failed.mean == math.inf


@pytest.mark.parametrize(
    ("theirs", "ours", "metric", "says"),
    [
        ([(0.01, 8), (0.02, 8)], [(0.01, 8)], "ttft", "1 requests have a record on one arm alone"),
        ([(0.01, 8)], [(0.01, 8), (0.02, 8)], "ttft", "1 requests have a record on one arm alone"),
        ([(0.01, 8), (0.02, 8)], [(0.01, 8), (0.02, 1)], "tpot", "1 requests have a tpot on one arm alone"),
        ([(0.01, 8), (0.02, 1)], [(0.01, 8), (0.02, 8)], "tpot", "1 requests have a tpot on one arm alone"),
        ([(0.01, 1)], [(0.01, 1)], "tpot", "no request has a tpot"),
        ([(0.01, 8), (None, 8)], [(0.01, 8), (0.02, 8)], "ttft", "1 of the baseline's own requests failed"),
        ([(0.01, 8), (None, 8)], [(0.01, 8), (None, 8)], "ttft", "1 of the baseline's own requests failed"),
        ([(0.0, 8)], [(0.01, 8)], "ttft", "a ttft of 0"),
        ([(0.01, 8), (0.01, 8)], [(0.01, 8), (0.0, 8)], "ttft", "a ttft of 0"),
    ],
)
def test_a_request_without_its_pair_makes_no_mean(theirs: Asked, ours: Asked, metric: str, says: str) -> None:
    told = refusal(lambda: requests(theirs, ours, metric))
    assert told is not None
    assert (told.outcome, says in told.reason) == (Outcome.INVALID, True)


def test_a_request_that_has_no_such_value_on_either_arm_is_left_out_alone() -> None:
    told = requests([(0.01, 8), (0.02, 1)], [(0.01, 8), (0.02, 1)], "tpot")
    assert numbers(told) == pytest.approx([0.0, 1, 0.01, 0.01])


def test_lengths_are_of_the_answers_that_both_gave() -> None:
    told = paired_lengths(*pair([(0.01, 8), (0.01, 4), (None, 8)], [(0.01, 4), (0.01, 2), (0.01, 40)]))
    assert numbers(told) == pytest.approx([-math.log(2), 2, 6.0, 3.0])
    for theirs, ours in (([(None, 8)], [(0.01, 8)]), ([(0.01, 8)], [(None, 8)])):
        with pytest.raises(CannotJudge, match="no request that both arms answered"):
            paired_lengths(*pair(theirs, ours))
    with pytest.raises(CannotJudge, match="1 requests have a record on one arm alone"):
        paired_lengths(*pair([(0.01, 8), (0.01, 8)], [(0.01, 8)]))
    shorter = [pair([(0.01, 8)], [(0.01, 4)], k) for k in range(2)]
    assert pairs(shorter, Measure("output_length", 0.5)).harm == pytest.approx([-math.log(2)] * 2)


# Answers without a pace


def unpaced(metric: str, q: float, blocks: Sequence[LoadObservation]) -> bool:
    return refusal(lambda: require_pace(metric, q, "c4", blocks)) is not None


def other_pieces(theirs: LoadObservation, ours: LoadObservation) -> CannotJudge | None:
    return refusal(lambda: require_same_pieces(compared([(theirs, ours)]).judged, "c4"))


@pytest.mark.parametrize(
    ("metric", "q", "n", "without", "invalid"),
    [
        ("tpot", 0.5, 100, 5, False),
        ("tpot", 0.5, 100, 6, True),
        ("itl", 0.5, 100, 6, True),
        ("tpot", 0.95, 200, 1, False),
        ("tpot", 0.95, 200, 2, True),
        ("ttft", 0.5, 100, 100, False),
        ("e2e", 0.5, 100, 100, False),
    ],
)
@pytest.mark.parametrize("arm", Arm)
def test_a_pace_is_judged_where_hardly_an_answer_is_without_one(
    arm: Arm, metric: str, q: float, n: int, without: int, invalid: bool
) -> None:
    odd: Asked = [(0.02, 1)] * without + [(0.02, 8)] * (n - without)
    one = execution(arm, odd)
    assert unpaced(metric, q, [one]) is invalid
    other = execution(arm.other, [(0.02, 8)] * n)
    block_of_both = (one, other) if arm is Arm.BASELINE else (other, one)
    told = refusal(lambda: pairs([block_of_both], Measure(metric, q)))
    assert (told is not None and "have no pace" in told.reason) is invalid


def test_what_failed_has_no_pace_to_lose_and_no_share_in_it() -> None:
    failed: Asked = [(None, 8)] * 90
    assert not unpaced("tpot", 0.5, [execution(Arm.CANDIDATE, [*failed, *[(0.02, 8)] * 10])])
    assert unpaced("tpot", 0.5, [execution(Arm.CANDIDATE, [*failed, *[(0.02, 8)] * 9, (0.02, 1)])])
    assert not unpaced("tpot", 0.5, [execution(Arm.CANDIDATE, failed)])
    assert not unpaced("tpot", 0.5, [])


def held_back(tokens: int, pieces: int) -> LoadObservation:
    """Answers of so many tokens that came in so many pieces."""
    whole = block(Arm.CANDIDATE, 0, [0.02] * 20, tokens=pieces)
    return replace(whole, requests=replace(whole.requests, output_tokens=np.full(20, tokens, dtype=np.int64)))


@pytest.mark.parametrize(("tokens", "pieces", "none"), [(8, 2, True), (7, 2, False), (8, 3, False), (2, 2, False)])
def test_a_long_answer_in_two_pieces_was_not_streamed(tokens: int, pieces: int, none: bool) -> None:
    assert unpaced("tpot", 0.5, [held_back(tokens, pieces)]) is none


@pytest.mark.parametrize(
    ("theirs", "ours", "other"),
    [(8, 8, False), (90, 100, False), (100, 90, False), (89, 100, True), (100, 89, True), (8, 16, True)],
)
def test_answers_come_in_like_pieces_where_their_medians_are_a_tenth_apart(theirs: int, ours: int, other: bool) -> None:
    one, two = (
        replace(held_back(tokens, 8), arm=arm) for tokens, arm in ((theirs, Arm.BASELINE), (ours, Arm.CANDIDATE))
    )
    told = other_pieces(one, two)
    assert (told is not None and "in other pieces" in told.reason) is other


@pytest.mark.parametrize(
    ("theirs", "ours", "other"),
    [((8, 8), (16, 16), False), ((8, 8), (16, 4), True), ((16, 4), (8, 8), True), ((8, 8), (8, 4), True)],
)
def test_it_is_pieces_that_must_be_alike_and_not_lengths(
    theirs: tuple[int, int], ours: tuple[int, int], other: bool
) -> None:
    """Tokens of an answer, and the arrivals that they came in."""
    one, two = replace(held_back(*theirs), arm=Arm.BASELINE), held_back(*ours)
    assert (other_pieces(one, two) is not None) is other


@pytest.mark.parametrize(("more", "other"), [(0, False), (20, False), (21, True)])
@pytest.mark.parametrize("arm", Arm)
def test_a_fifth_more_of_one_arms_answers_may_come_in_larger_pieces(arm: Arm, more: int, other: bool) -> None:
    def seen(large: int, of: Arm) -> LoadObservation:
        whole = block(of, 0, [0.02] * 100, tokens=8)
        tokens = np.where(np.arange(100) < large, 16, 8).astype(np.int64)
        return replace(whole, requests=replace(whole.requests, output_tokens=tokens))

    shares = {arm: 10 + more, arm.other: 10}
    told = other_pieces(seen(shares[Arm.BASELINE], Arm.BASELINE), seen(shares[Arm.CANDIDATE], Arm.CANDIDATE))
    assert (told is not None) is other
    assert told is None or (told.outcome is Outcome.INVALID and "in larger pieces than usual" in told.reason)


def arriving(arm: Arm, gaps_ms: Sequence[float], answers: int = 20) -> LoadObservation:
    """Answers whose pieces, one token each, come so long after each other."""
    after_ns = np.concatenate([[0], np.cumsum(np.rint(np.array(gaps_ms) * 1e6))]).astype(np.int64)
    records = [record(i, 0.02) for i in range(answers)]
    records = [
        replace(one, chunk_ns=chunks, end_ns=chunks[-1], output_tokens=len(chunks))
        for one in records
        for chunks in [tuple((one.chunk_ns[0] + after_ns).tolist())]
    ]
    return replace(block(arm, 0, [0.02]), requests=RequestColumns.pack(records))


def test_answers_that_stand_still_and_are_replayed_at_the_end_are_not_promoted() -> None:
    """Events 50 us apart give a time between tokens of 0.05 ms instead of 10 ms."""
    suite = SuiteText([{"metric": "itl", "margin": "10%"}, {"metric": "error_rate", "max": "5%"}]).suite()
    sound = measured(suite)
    assert judge(suite, sound).outcome is Outcome.PASS

    def replayed(one: LoadObservation) -> LoadObservation:
        chunks = one.requests.chunk_ns.reshape(len(one.requests), -1).copy()
        chunks[:, 1:] = chunks[:, -1:] - 50_000 * np.arange(chunks.shape[1] - 1)[::-1]
        return replace(one, requests=replace(one.requests, chunk_ns=chunks.reshape(-1)))

    load = tuple(replayed(one) if one.arm is Arm.CANDIDATE else one for one in sound.load)
    verdict = judge(suite, replace(sound, load=load))
    assert verdict.outcome is Outcome.INVALID
    assert "480 of 480 answers of the candidate came in one or two pieces" in verdict.checks[0].reason


STEADY = [10.0] * 39


@pytest.mark.parametrize(
    ("gaps_ms", "merged"),
    [
        ([200.0, *[0.05] * 19] * 2, True),  # standing still twice
        ([200.0, *[0.05] * 19, *[10.0] * 20], True),
        ([20.0, 0.4] * 20, True),  # two events for each step of the model
        ([20.0, 0.6] * 20, False),  # more than a twentieth of 10 ms
        ([100.0, *[2.0] * 19] * 2, False),  # prompts of others were read in between
        ([4000.0, *[1.0] * 39], False),  # a preempted answer of a quick model
        ([4000.0, *[0.99] * 39], True),
    ],
)
@pytest.mark.parametrize("arm", Arm)
def test_pieces_that_follow_closely_came_together(arm: Arm, gaps_ms: Sequence[float], merged: bool) -> None:
    one, other = arriving(arm, gaps_ms), arriving(arm.other, STEADY)
    theirs, ours = (one, other) if arm is Arm.BASELINE else (other, one)
    assert (other_pieces(theirs, ours) is not None) is merged
    assert unpaced("itl", 0.5, [one]) is (merged and gaps_ms[0] == 4000)


@pytest.mark.parametrize("delay_ms", [0.5, 1.0, 2.0, 4.0])
def test_delays_of_a_busy_server_keep_the_pieces_apart(delay_ms: float) -> None:
    """Each token waits for the event loop, a few of them three times as long, and none overtakes another."""
    generator = np.random.default_rng(1)
    waits = generator.exponential(delay_ms, 2000) * np.where(generator.random(2000) < 0.05, 3, 1)
    arrivals = np.maximum.accumulate(np.arange(2000) * 10.0 + waits)
    late = arriving(Arm.CANDIDATE, np.diff(arrivals).tolist(), 1)
    assert other_pieces(arriving(Arm.BASELINE, [10.0] * 1999, 1), late) is None


def test_an_arm_that_answered_nothing_has_no_pieces() -> None:
    failed = [(None, 8)] * 5
    for theirs, ours in ((failed, [(0.02, 8)] * 5), ([(0.02, 8)] * 5, failed)):
        assert other_pieces(*pair(theirs, ours)) is None
