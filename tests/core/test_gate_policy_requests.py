"""What a check looks at in a block: means over pairs, lengths of answers, tails of short blocks, and their spread."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from benchgate.gate.decision import Estimate
from benchgate.model.deployment import Arm
from benchgate.model.records import RequestColumns
from benchgate.model.run import LoadObservation
from benchgate.model.verdict import Outcome
from tests.core.test_gate_policy import BASE_S, WITHIN, Line, around, found, outcome
from tests.fakes.blocks import block, compared, record

MEAN: Line = WITHIN | {"statistic": "mean"}
TAIL: Line = {"metric": "ttft", "margin": "10%", "statistic": "p95"}


def test_a_mean_is_that_of_the_ratios_of_paired_requests() -> None:
    theirs = [0.010, 0.080, 0.300]  # ratios 1, 1.05 and 1.20: their geometric mean is 1.26 ** (1/3)
    pairs = [
        (
            block(Arm.BASELINE, i, [t * step for t in theirs]),
            block(Arm.CANDIDATE, i, [0.010 * step, 0.084 * step, 0.360 * step]),
        )
        for i, step in enumerate(around(1.0, spread=0.3))
    ]
    estimate = found(compared(pairs), MEAN)
    assert estimate.value == pytest.approx(math.log(1.26) / 3)
    assert estimate.baseline == pytest.approx((0.010 * 0.080 * 0.300) ** (1 / 3))
    assert estimate.limits is not None
    assert estimate.limits.upper - estimate.limits.lower < 1e-6  # the blocks vary by 30 %, the pairs not at all


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
    estimate = found(compared([(block(Arm.BASELINE, 0, theirs), block(Arm.CANDIDATE, 0, ours)), *sound]), MEAN)
    assert outcome(estimate) is said
    assert reason in (estimate.problem.reason if estimate.problem else "")


def test_a_value_on_one_arm_alone_makes_no_pair_and_on_neither_is_no_loss() -> None:
    def with_tokens(theirs: int, ours: int) -> Estimate:
        pairs = []
        for i in range(8):
            b, c = (block(arm, i, [0.02] * 40) for arm in Arm)
            first = [block(arm, i, [0.02] * 40, tokens=n) for arm, n in ((Arm.BASELINE, theirs), (Arm.CANDIDATE, ours))]
            pairs.append((_with_first_of(b, first[0]), _with_first_of(c, first[1])))
        return found(compared(pairs), MEAN | {"metric": "tpot"})

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
    estimate = found(compared(pairs), MEAN | {"metric": "tpot"})
    assert outcome(estimate) is Outcome.INVALID


LENGTH: Line = {"metric": "output_length", "margin": "10%"}


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
    estimate = found(compared(pairs), LENGTH)
    assert outcome(estimate) is said
    assert estimate.candidate == pytest.approx(tokens)
    assert estimate.baseline == pytest.approx(100, abs=0.1)


def test_only_answers_that_both_arms_gave_have_lengths_to_compare() -> None:
    def lengths(theirs: list[float | None], ours: list[float | None]) -> Estimate:
        pairs = [(block(Arm.BASELINE, i, theirs), block(Arm.CANDIDATE, i, ours)) for i in range(4)]
        return found(compared(pairs), LENGTH)

    assert outcome(lengths([0.02, None, 0.02], [0.02, 0.02, None])) is Outcome.PASS
    nobody = lengths([0.02, None], [None, 0.02])
    assert nobody.problem is not None
    assert "there is no request that both arms answered" in nobody.problem.reason
    assert outcome(nobody) is Outcome.INVALID
    assert outcome(lengths([0.02, 0.02], [0.02])) is Outcome.INVALID


def tail(requests: int, blocks: int, slow: Sequence[int] = (), q: float = 0.95) -> Estimate:
    """Of every block the requests at these places take three times as long on the candidate."""
    generator, pairs = np.random.default_rng(3), []
    for i in range(blocks):
        theirs = BASE_S * np.exp(generator.normal(0, 0.2, requests))
        factor = np.where(np.isin(np.arange(requests), slow), 3.0, 1.0)
        pairs.append((block(Arm.BASELINE, i, theirs.tolist()), block(Arm.CANDIDATE, i, (theirs * factor).tolist())))
    return found(compared(pairs), {"metric": "ttft", "margin": "10%", "statistic": f"p{q * 100:g}"})


def test_the_tail_of_a_short_block_is_not_its_slowest_request() -> None:
    assert tail(59, 4).notes == []
    together = tail(20, 16)
    assert together.notes[0] == "p95 needs at least 59 requests, so the 16 blocks were taken as 5 groups"
    assert together.n == 16
    for blocks in (2, 5):
        few = tail(20, blocks)
        assert outcome(few) is Outcome.INCONCLUSIVE
        assert few.problem is not None
        assert few.problem.reason == f"p95 is not estimable from {blocks} blocks of 20 requests at stage c4"
        assert "at least 59 requests in every block" in few.problem.advice
    assert outcome(tail(298, 2, q=0.99)) is Outcome.INCONCLUSIVE
    assert tail(299, 2, q=0.99).problem is None
    assert tail(3, 4, q=0.5).problem is None  # a median of three is one


@pytest.mark.slow
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
        promoted += outcome(found(compared(pairs), TAIL)).promotes
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
    estimate = found(compared(pairs), TAIL)
    assert estimate.value is not None
    assert estimate.value < 0.10


def test_a_gap_between_chunks_has_many_values_a_request_so_that_short_blocks_have_a_tail() -> None:
    pairs = [
        (block(Arm.BASELINE, i, [0.02] * 7, tokens=10), block(Arm.CANDIDATE, i, [0.02] * 7, tokens=10))
        for i in range(4)
    ]
    estimate = found(compared(pairs), TAIL | {"metric": "itl"})
    assert estimate.problem is None
    assert not any("groups" in note for note in estimate.notes)
