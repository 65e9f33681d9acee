"""Which blocks are left out for the client's sake, at the bounds, and which observations are held against which."""

from __future__ import annotations

from dataclasses import replace

import pytest

from benchgate.gate.comparison import UntiedRuns, arms_of, compare, load_of, paired_load, quality_of
from benchgate.gate.evidence.client_strain import StrainedBlocks, left_out_notes, strained_blocks, usable
from benchgate.model.deployment import Arm
from benchgate.model.run import ClientUse, Evidence, LoadObservation
from benchgate.suite.load import TrafficClass
from benchgate.suite.schema import Suite, traffic_classes
from benchgate.suite.stages import Stage
from tests.fakes.drills import drill
from tests.fakes.measured import Effect, SuiteText, measured

TTFT: dict[str, object] = {"metric": "ttft", "margin": "10%"}
LATE = ClientUse(cpu_s=0.99, wall_s=1.0, workers=1)
SUITE = SuiteText([TTFT], requests=10).suite()  # 8 blocks
CALM = measured(SUITE)
FAILING = measured(SUITE, Effect(failed=2))
BOTH_FAILING = measured(SUITE, Effect(failed=2), Effect(failed=2))
BASELINE_FAILING = measured(SUITE, baseline=Effect(failed=2))


def late_in(evidence: Evidence, *blocks: int, arm: Arm = Arm.CANDIDATE, stage: str | None = None) -> Evidence:
    """The same with a load generator that was too busy in these blocks."""

    def at(one: LoadObservation) -> LoadObservation:
        late = one.block in blocks and one.arm is arm and stage in (None, one.stage)
        return replace(one, client=LATE) if late else one

    return replace(evidence, load=tuple(at(one) for one in evidence.load))


def strained(evidence: Evidence, suite: Suite = SUITE) -> StrainedBlocks:
    return strained_blocks(evidence, traffic_classes(suite)[0], suite)


def alone(evidence: Evidence) -> Evidence:
    """The candidate's part of it, as of a suite that measures one deployment."""
    stored = {**evidence.run.suite, "candidate": "baseline", "quality": None, "shadow": None}
    stored["gate"] = {"checks": [{"metric": "ttft", "max": "1s"}]}
    load = tuple(one for one in evidence.load if one.arm is Arm.CANDIDATE)
    return replace(evidence, run=replace(evidence.run, suite=stored), load=load)


@pytest.mark.parametrize(("count", "spoil"), [(0, False), (1, False), (2, False), (3, True), (8, True)])
def test_a_quarter_of_the_blocks_may_be_left_out_and_not_one_more(count: int, spoil: bool) -> None:
    found = strained(late_in(CALM, *range(count)))
    assert (found.blocks, found.of, found.invalidate) == (frozenset(range(count)), 8, spoil)
    assert found.left_out == (frozenset() if spoil else frozenset(range(count)))
    assert found.share == f"{count} of 8 blocks of stage c4"


@pytest.mark.parametrize("arm", Arm)
def test_a_block_is_strained_whichever_arm_it_was_on(arm: Arm) -> None:
    found = strained(late_in(CALM, 3, arm=arm))
    assert (found.blocks, found.hides_failures, found.doubtful) == (frozenset({3}), False, 0)
    assert found.why.startswith(f"block 4, {arm.value}: the client used 99.0 % of a core")


def test_the_blocks_of_both_arms_count_together() -> None:
    found = strained(late_in(late_in(late_in(CALM, 1), 4, arm=Arm.BASELINE), 6, arm=Arm.BASELINE))
    assert (found.blocks, found.invalidate) == (frozenset({1, 4, 6}), True)
    assert found.why.startswith("block 2, candidate")
    same = strained(late_in(late_in(CALM, 1), 1, arm=Arm.BASELINE))
    assert (same.blocks, same.invalidate) == (frozenset({1}), False)


def test_nothing_strained_says_nothing() -> None:
    assert strained(CALM) == StrainedBlocks("c4", frozenset(), 8)
    assert strained(replace(CALM, load=())) == StrainedBlocks("c4", frozenset(), 0)


@pytest.mark.parametrize(
    ("evidence", "hides"), [(CALM, False), (BOTH_FAILING, False), (BASELINE_FAILING, False), (FAILING, True)]
)
def test_a_block_in_which_the_candidate_failed_more_than_the_baseline_is_not_left_out(
    evidence: Evidence, hides: bool
) -> None:
    found = strained(late_in(evidence, 2))
    assert (found.hides_failures, found.invalidate) == (hides, hides)
    assert found.left_out == (frozenset() if hides else frozenset({2}))


def test_failures_in_other_blocks_than_the_strained_ones_hide_nothing() -> None:
    elsewhere = measured(SUITE, Effect(failed=2, failed_block=5))
    assert strained(late_in(elsewhere, 2)).hides_failures is False
    assert strained(late_in(elsewhere, 5)).hides_failures is True
    assert strained(late_in(elsewhere, 2, 5)).hides_failures is True  # one of two is enough
    assert strained(alone(late_in(elsewhere, 2, 5))).hides_failures is True


@pytest.mark.parametrize(("failed", "hides"), [(0, False), (1, False), (2, True)])
def test_measured_alone_a_strained_block_may_have_failed_as_much_as_another_and_not_more(
    failed: int, hides: bool
) -> None:
    others = measured(SUITE, Effect(failed=1))
    own = load_of(measured(SUITE, Effect(failed=failed)), "c4", Arm.CANDIDATE)[2]
    mixed = tuple(own if (one.block, one.arm) == (2, Arm.CANDIDATE) else one for one in others.load)
    evidence = alone(late_in(replace(others, load=mixed), 2))
    assert arms_of(evidence) == (Arm.CANDIDATE,)
    assert strained(evidence).hides_failures is hides


def test_measured_alone_with_every_block_strained_any_failure_counts() -> None:
    everywhere = range(8)
    once = measured(SUITE, Effect(failed=1))
    assert strained(alone(late_in(once, *everywhere))).hides_failures is True
    assert strained(alone(late_in(CALM, *everywhere))).hides_failures is False


def test_failures_that_the_client_may_have_caused_are_counted_in_strained_blocks_alone() -> None:
    slow = measured(SUITE, Effect(timed_out=2))
    assert strained(late_in(slow, 2, 3)).doubtful == 4
    assert strained(late_in(FAILING, 2, 3)).doubtful == 0  # HTTP 500 is the server's own word


def test_usable_runs_lose_the_blocks_of_their_own_stage_on_both_arms() -> None:
    suite = drill(TTFT)
    here, there = late_in(measured(suite), 2, stage="short"), late_in(measured(suite), 5, stage="long")
    left = usable(compare(here, there), suite)
    for evidence, (stage, block) in zip(left.runs, (("short", 2), ("long", 5)), strict=True):
        for arm in Arm:
            other = "long" if stage == "short" else "short"
            assert sorted(load_of(evidence, stage, arm)) == [b for b in range(8) if b != block]
            assert sorted(load_of(evidence, other, arm)) == list(range(8))
    assert len(usable(compare(here), suite).runs) == 1


def test_a_stage_that_is_spoilt_keeps_all_its_blocks() -> None:
    spoilt = late_in(CALM, 1, 2, 3)
    assert usable(compare(spoilt), SUITE).judged.load == spoilt.load


def test_what_was_left_out_is_told_of_its_stage_and_run() -> None:
    suite = drill(TTFT)
    here, there = late_in(measured(suite), 2, stage="short"), late_in(measured(suite), 5, stage="short")
    told = left_out_notes(compare(here, there), "short", suite)
    assert [note.split(":")[0] for note in told] == [
        "1 of 8 blocks of stage short were left out",
        "of the reference run, 1 of 8 blocks of stage short were left out",
    ]
    assert left_out_notes(compare(here, there), "long", suite) == ()
    assert len(left_out_notes(compare(here), "short", suite)) == 1
    spoilt = late_in(measured(suite), 2, 3, 4, stage="short")
    assert left_out_notes(compare(spoilt), "short", suite) == ()


def test_a_stage_that_the_policy_does_not_know_is_left_as_it_is() -> None:
    stray = tuple(replace(one, stage="of old") for one in CALM.load if one.block == 2)
    left = usable(compare(replace(late_in(CALM, 2), load=(*late_in(CALM, 2).load, *stray))), SUITE)
    assert sum(one.stage == "of old" for one in left.judged.load) == 2
    assert all(one.block != 2 for one in left.judged.load if one.stage == "c4")


def late_at_the_end(one: LoadObservation) -> LoadObservation:
    """Ten requests over 0.72 s, of which the last one alone is sent late: 20 ms, where 14 are allowed in all."""
    sent_ns = one.requests.sent_ns.copy()
    sent_ns[-1] += 20_000_000
    return replace(one, requests=replace(one.requests, sent_ns=sent_ns))


BEHIND = replace(CALM, load=tuple(late_at_the_end(one) if one.block == 2 else one for one in CALM.load))
CLOSED = traffic_classes(SUITE)[0]


def open_loop(mean_rps: float | None) -> TrafficClass:
    keys = {"trace": "day.csv"} if mean_rps is None else {"rate": f"{mean_rps}/s"}
    return replace(CLOSED, schedule=Stage.model_validate({"stage": "c4", "requests": 10, **keys}))


@pytest.mark.parametrize(("mean_rps", "told"), [(12.5, "12.5"), (None, "9.92")])  # a trace says its rate by its rows
def test_an_open_loop_that_fell_behind_its_rate_is_strained_and_a_closed_one_has_none(
    mean_rps: float | None, told: str
) -> None:
    found = strained_blocks(BEHIND, open_loop(mean_rps), SUITE)
    assert found.blocks == frozenset({2})
    assert f"requests/s where {told} were offered" in found.why
    assert strained_blocks(CALM, open_loop(mean_rps), SUITE).blocks == frozenset()
    assert strained_blocks(BEHIND, CLOSED, SUITE).blocks == frozenset()


@pytest.mark.parametrize("count", [0, 1])
def test_an_open_loop_without_a_span_has_no_rate_to_reach(count: int) -> None:
    few = measured(SuiteText([TTFT], requests=max(1, count)).suite(), Effect(drop_last=count == 0))
    assert min(len(one.requests) for one in few.load) == count
    assert strained_blocks(few, open_loop(None), SUITE).blocks == frozenset()


# What is held against what


def test_blocks_are_paired_by_number_in_order_and_only_where_both_arms_have_them() -> None:
    load = tuple(one for one in CALM.load if (one.block, one.arm) not in ((2, Arm.BASELINE), (5, Arm.CANDIDATE)))
    pairs = paired_load(replace(CALM, load=tuple(reversed(load))), "c4")
    assert [(b.block, c.block) for b, c in pairs] == [(n, n) for n in (0, 1, 3, 4, 6, 7)]
    assert {(b.arm, c.arm) for b, c in pairs} == {(Arm.BASELINE, Arm.CANDIDATE)}
    assert paired_load(CALM, "another") == []


def test_items_are_those_of_the_arm_task_and_repeat_that_were_asked_for() -> None:
    again = replace(CALM.quality[0], repeat=1)
    evidence = replace(CALM, quality=(again, *CALM.quality))
    task = again.task
    assert quality_of(evidence, Arm.BASELINE, task) is CALM.quality[0]
    assert quality_of(evidence, Arm.BASELINE, task, 1) is again
    assert quality_of(evidence, Arm.CANDIDATE, task, 1) is None
    assert quality_of(evidence, Arm.CANDIDATE, "another") is None
    candidates = quality_of(evidence, Arm.CANDIDATE, task)
    assert candidates is not None and (candidates.arm, candidates.repeat) == (Arm.CANDIDATE, 0)


def test_a_stored_comparison_holds_the_candidates_of_both_runs_against_each_other() -> None:
    task = CALM.quality[0].task
    live, stored = compare(CALM), compare(CALM, FAILING)
    assert (live.runs, stored.runs) == ((CALM,), (CALM, FAILING))
    assert (live.baseline_arm, stored.baseline_arm) == (Arm.BASELINE, Arm.CANDIDATE)
    assert live.baseline_quality(task) is quality_of(CALM, Arm.BASELINE, task)
    assert stored.baseline_quality(task) is quality_of(FAILING, Arm.CANDIDATE, task)
    assert stored.candidate_quality(task) is quality_of(CALM, Arm.CANDIDATE, task)
    assert live.baseline_quality(task, 1) is stored.baseline_quality(task, 1) is None


def test_runs_are_untied_where_either_lacks_a_live_baseline() -> None:
    single = alone(CALM)
    for judged, reference in ((CALM, single), (single, CALM), (single, single)):
        assert isinstance(compare(judged, reference), UntiedRuns)
    assert not isinstance(compare(CALM, FAILING), UntiedRuns)
    assert not isinstance(compare(single), UntiedRuns)
