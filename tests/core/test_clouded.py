"""Tails that are the client's own: at which read delay, in how many blocks, and of which arm, stage and run."""

from __future__ import annotations

from dataclasses import replace

import pytest

from benchgate.gate.comparison import compare
from benchgate.gate.evidence.client_strain import ClearedRuns, without_clouded_blocks
from benchgate.model.deployment import Arm
from benchgate.model.run import ClientUse, Evidence
from benchgate.model.verdict import Outcome
from tests.fakes.drills import drill
from tests.fakes.measured import Effect, SuiteText, measured

Line = dict[str, object]
TTFT: Line = {"metric": "ttft", "margin": "10%"}
SUITE = SuiteText([TTFT], requests=10).suite()  # 8 blocks, times to first token of 50 ms and a little more
CALM, QUICK = measured(SUITE), measured(SUITE, Effect(slowdown=0.2), Effect(slowdown=0.2))


def delayed(evidence: Evidence, by_s: float | None, *blocks: int, arm: Arm = Arm.CANDIDATE) -> Evidence:
    """The client was so late to read, in its slowest hundredth, in these blocks of an arm."""
    use = ClientUse(cpu_s=0.05, wall_s=1.0, workers=1, read_delay_p50_s=1e-4, read_delay_p99_s=by_s)
    load = tuple(replace(o, client=use) if o.block in blocks and o.arm is arm else o for o in evidence.load)
    return replace(evidence, load=load)


def left(found: ClearedRuns, evidence: Evidence | None = None) -> list[int]:
    """The blocks that remain, the same ones of both arms."""
    load = (found.comparison.judged if evidence is None else evidence).load
    theirs, ours = (sorted({o.block for o in load if o.arm is arm and o.stage in ("c4", "long")}) for arm in Arm)
    assert theirs == ours
    return ours


def after(
    evidence: Evidence,
    reference: Evidence | None = None,
    *,
    metric: str = "ttft",
    q: float = 0.95,
    stages: tuple[str, ...] = ("c4",),
    arms: tuple[Arm, ...] = tuple(Arm),
) -> ClearedRuns:
    return without_clouded_blocks(compare(evidence, reference), metric, q, stages, arms)


@pytest.mark.parametrize(
    ("evidence", "by_s", "clouds"),
    [
        (CALM, 0.010, False),  # of tails of 48 ms at least a quarter is 12
        (CALM, 0.016, True),
        (QUICK, 0.005, False),  # of a tail of 10 ms a quarter is 2.5, and 5 ms is what any scheduler may cost
        (QUICK, 0.0051, True),
        (CALM, None, False),
    ],
)
@pytest.mark.parametrize("arm", Arm)
def test_a_quarter_of_the_tail_and_more_than_a_scheduler_may_cost(
    evidence: Evidence, by_s: float | None, clouds: bool, arm: Arm
) -> None:
    found = after(delayed(evidence, by_s, 2, arm=arm))
    assert found.problem is None
    assert left(found) == [block for block in range(8) if block != 2 or not clouds]
    assert len(found.notes) == clouds
    assert not clouds or f"left out: stage c4: in 1 of 8 blocks, on the {arm.value}," in found.notes[0]


def test_a_quarter_of_the_blocks_may_be_left_out_and_one_more_makes_the_tail_invalid() -> None:
    both = delayed(delayed(CALM, 0.03, 1), 0.03, 6, arm=Arm.BASELINE)
    assert left(after(both)) == [0, 2, 3, 4, 5, 7]
    assert left(after(delayed(both, 0.03, 6))) == [0, 2, 3, 4, 5, 7]  # the same block on both arms is one
    more = after(delayed(both, 0.03, 3))
    assert more.problem is not None and more.problem.outcome is Outcome.INVALID
    assert "in 3 of 8 blocks" in more.problem.reason and "so the tail is its own" in more.problem.reason
    assert left(more) == list(range(8))


@pytest.mark.parametrize(
    ("metric", "q", "stage"), [("ttft", 0.5, "c4"), ("output_throughput", 0.95, "c4"), ("ttft", 0.95, "c8")]
)
def test_neither_a_median_nor_a_rate_nor_another_stage_is_clouded(metric: str, q: float, stage: str) -> None:
    late = delayed(CALM, 0.03, *range(8))
    found = after(late, metric=metric, q=q, stages=(stage,))
    assert (found.comparison.judged.load, found.problem) == (late.load, None)


@pytest.mark.parametrize("q", [0.6, 0.9])
def test_whatever_lies_above_the_median_is_a_tail(q: float) -> None:
    assert after(delayed(CALM, 0.03, *range(8)), q=q).problem is not None


def test_only_the_arms_that_a_check_looks_at_are_asked() -> None:
    late = delayed(CALM, 0.03, 2, arm=Arm.BASELINE)
    assert left(after(late, arms=(Arm.CANDIDATE,))) == list(range(8))
    assert left(after(late, arms=(Arm.BASELINE,))) == [0, 1, 3, 4, 5, 6, 7]


def test_other_stages_keep_their_blocks() -> None:
    late = delayed(measured(drill(TTFT)), 0.03, 2)
    found = after(late, stages=("long",))
    assert sum(o.block == 2 for o in found.comparison.judged.load) == 2
    assert all(o.stage == "short" for o in found.comparison.judged.load if o.block == 2)


def test_a_failure_is_endless_and_no_delay_matters_to_it() -> None:
    failing = measured(SUITE, Effect(failed=10), Effect(failed=10))
    assert after(delayed(failing, 9.0, *range(8))).problem is None


def test_a_reference_loses_its_own_blocks_and_spoils_the_comparison_by_itself() -> None:
    reference = delayed(CALM, 0.03, 5)
    found = after(CALM, reference)
    assert left(found) == list(range(8))
    assert left(found, found.comparison.baseline_run) == [0, 1, 2, 3, 4, 6, 7]
    assert found.notes[0].startswith("of the reference run, left out: stage c4: in 1 of 8 blocks")
    spoilt = after(delayed(CALM, 0.03, 2), delayed(reference, 0.03, 1, 2))
    assert spoilt.problem is not None and spoilt.problem.reason.startswith("of the reference run, stage c4")
    assert (left(spoilt), spoilt.notes) == (list(range(8)), ())


def test_each_stage_of_a_check_is_cleared() -> None:
    late = delayed(measured(drill(TTFT)), 0.03, 2)
    found = after(late, stages=("short", "long"))
    assert [note.split(":")[1] for note in found.notes] == [" stage short", " stage long"]
    assert not any(o.block == 2 for o in found.comparison.judged.load)
