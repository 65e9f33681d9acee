"""What a journal says was measured whole, and what had only begun when the run was cut short."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from benchgate.model.deployment import Arm
from benchgate.model.run import DeploymentFault, LoadObservation, QualityObservation, ServerStart
from benchgate.pipeline.checkpoint import Completed, Incomplete, read_checkpoint
from benchgate.plan.schedule import make_plan
from benchgate.store.evidence import JournalEntry, JournalEvent
from benchgate.suite.loader import parse_suite
from tests.shells.store_samples import make_divergence, make_load, make_quality, make_shadow, make_telemetry

SUITE = parse_suite(
    """
suite: done
start: {times: 3}
deployments: {a: {sim: {ttft: 5ms}}, b: {sim: {ttft: 6ms}}}
baseline: a
candidate: b
load:
  workload: {input: 8 tokens, output: 4 tokens}
  blocks: 3
  warmup: 0
  sweep: [{stage: c4, concurrency: 4, requests: 8}]
  capacity: {over: concurrency, from: 1, to: 8, probe: 64}
quality: {tasks: [tasks/reverse.yaml], repeat_baseline: true}
slo: {ttft: 1s}
gate: {allow_underpowered: true, checks: [{metric: ttft, margin: 10%}, {metric: error_rate, max: 1%}]}
""",
    "done.yaml",
)
PLAN = make_plan(SUITE)
BASE, CAND = Arm.BASELINE, Arm.CANDIDATE


def execution(position: int, arm: Arm, block: int, stage: str = "c4", *, marked: bool = True) -> list[object]:
    seen = replace(make_load(arm, block=block, position=position), stage=stage)
    mark = {"stage": stage, "arm": arm.value, "block": block, "position": position}
    return [seen, JournalEvent("measured", mark)] if marked else [seen]


def block(number: int, position: int) -> list[object]:
    return [*execution(position, BASE, number), *execution(position + 1, CAND, number)]


def journal(what: Sequence[object], aside: frozenset[int] = frozenset()) -> list[JournalEntry]:
    entries: Any = [JournalEntry(seq, one, seq in aside) for seq, one in enumerate(what)]  # type: ignore[arg-type]  # any of them
    return list(entries)


def done(what: Sequence[object], aside: frozenset[int] = frozenset()) -> Completed:
    return read_checkpoint(SUITE, PLAN, journal(what, aside))


def look(blocks: int, then: str) -> JournalEvent:
    data: Mapping[str, object] = {"blocks": blocks, "then": then}
    return JournalEvent("look", data)


def test_nothing_was_done() -> None:
    assert done([]) == Completed()


def test_whole_blocks_are_kept_and_the_one_that_was_begun_is_not() -> None:
    found = done([*block(0, 0), *execution(2, BASE, 1)])
    assert (found.load.blocks, found.position) == (1, 3)
    assert found.incomplete == (Incomplete("block 2", (4, 5)),)


def test_a_stage_that_is_all_stored_and_not_marked_was_only_begun() -> None:
    found = done([*block(0, 0), *execution(2, BASE, 1), *execution(3, CAND, 1, marked=False)])
    assert found.load.blocks == 1
    assert found.incomplete == (Incomplete("block 2", (4, 5, 6)),)


def test_telemetry_goes_with_its_execution() -> None:
    window = replace(make_telemetry(), position=2, block=1)
    found = done([*block(0, 0), *execution(2, BASE, 1), window])
    assert found.incomplete == (Incomplete("block 2", (4, 5, 6)),)


def test_what_was_set_aside_is_not_looked_at_again_but_its_number_and_time_count() -> None:
    begun_twice = [*execution(0, BASE, 0), *block(0, 1)]
    found = done(begun_twice, frozenset({0, 1}))
    assert (found.load.blocks, found.position, found.incomplete) == (1, 3, ())
    assert found.load.spent_s == 3 * 3.7


def test_looks_that_said_to_go_on_and_the_end_are_known() -> None:
    found = done([*block(0, 0), look(1, "on to 3"), *block(1, 2), look(2, "ended")])
    assert (found.load.continued_after, found.load.ended) == (frozenset({1}), False)
    assert done([*block(0, 0), look(1, "ended"), JournalEvent("load_ended", {})]).load.ended


def test_looks_of_a_search_are_kept_in_their_order_and_one_that_was_cut_is_not() -> None:
    blocks = [*block(0, 0), *block(1, 2), *block(2, 4)]
    looks = [*execution(6, BASE, 0, "capacity/1"), *execution(7, CAND, 0, "capacity/1")]
    found = done([*blocks, *looks, *execution(8, BASE, 0, "capacity/2", marked=False)])
    assert found.load.blocks == 3
    assert [(one.arm, one.stage) for one in found.load.searched] == [(BASE, "capacity/1"), (CAND, "capacity/1")]
    assert found.incomplete == (Incomplete("look 1 at capacity/2", (16,)),)


def test_a_task_is_whole_when_every_asking_came_to_its_end_be_it_with_a_fault() -> None:
    asked = [make_quality(BASE), make_quality(CAND), replace(make_quality(BASE), repeat=1)]
    found = done(asked)
    assert list(found.tasks) == ["reverse"]
    assert found.items()["reverse"] == (asked[0].items, asked[1].items)
    for cut in (asked[:2], [*asked[:2], replace(asked[2], fault="interrupted")]):
        begun = done(cut)
        assert (begun.tasks, begun.incomplete) == ({}, (Incomplete("task reverse", tuple(range(len(cut)))),))


def test_fixed_texts_and_prompts_are_there_unless_an_interrupt_ended_them() -> None:
    found = done([make_divergence(), make_shadow()])
    assert (found.divergence, found.shadow, found.incomplete) == (True, True, ())
    cut = done([replace(make_divergence(), fault="interrupted"), replace(make_shadow(), fault="interrupted")])
    assert (cut.divergence, cut.shadow) == (False, False)
    assert cut.incomplete == (Incomplete("the fixed texts", (0,)), Incomplete("the recorded prompts", (1,)))


def test_starts_are_kept_round_by_round() -> None:
    found = done([ServerStart(BASE, 0, 1.0), ServerStart(CAND, 0, 1.0), ServerStart(CAND, 1, 1.0)])
    assert (found.starts, found.incomplete) == (1, (Incomplete("start 2", (2,)),))


def test_a_deployment_that_was_not_there_is_told() -> None:
    fault = DeploymentFault(CAND, "after block 1", "refused")
    assert done([fault]).down == fault


def test_who_sent_the_load_is_known() -> None:
    seen = make_load()
    spread = replace(seen, client=replace(seen.client, workers=5, by_cluster=True))
    assert (done([seen]).load.workers, done([seen]).load.by_cluster) == (frozenset({2}), False)
    assert (done([spread]).load.workers, done([spread]).load.by_cluster) == (frozenset({5}), True)


def test_samples_are_what_they_are_taken_for() -> None:
    assert isinstance(make_load(), LoadObservation)
    assert isinstance(make_quality(), QualityObservation)
