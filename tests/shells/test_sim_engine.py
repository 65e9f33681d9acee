"""The models of time as pure claims: when tokens are due, who waits, and that none is lost or made up."""

from __future__ import annotations

import random
from collections import Counter
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchgate.sim.engine import ConstantPace, Due, Engine, Job, Model, block_names
from benchgate.sim.settings import sim_settings
from benchgate.suite.simulator import SimSettings

MS = 1_000_000
COSTS = sim_settings(prefill_s=0.001, decode_s=0.010, decode_per_sequence_s=0.001, batch=4, prefill_chunk_tokens=100)


def job(
    order: int, *, at_ms: int = 0, prompt: int = 10, output: int = 3, reserved: int | None = None, **more: Any
) -> Job:
    room = prompt + output if reserved is None else reserved
    return Job(order, at_ms * MS, prompt, output, room, lambda tokens, due_ns: None, **more)


def engine(costs: SimSettings = COSTS) -> Engine:
    return Engine(costs, random.Random(0))


def paced(ttft_ms: int = 50, itl_ms: int = 10, jitter: float = 0.0) -> ConstantPace:
    settings = sim_settings(ttft_s=ttft_ms / 1000, itl_s=itl_ms / 1000, jitter_ratio=jitter)
    return ConstantPace(settings, random.Random(0))


def run(model: Model, jobs: list[Job], until_ms: int = 1_000_000) -> list[Due]:
    """Everything that comes out when each job arrives at its instant and nobody is ever late."""
    out: list[Due] = []
    for arriving in sorted(jobs, key=lambda j: j.arrived_ns):
        while (due_ns := model.due_ns()) is not None and due_ns <= arriving.arrived_ns:
            out += model.take(due_ns)
        assert model.admit(arriving, arriving.arrived_ns)
    while (due_ns := model.due_ns()) is not None and due_ns <= until_ms * MS:
        out += model.take(due_ns)
    return out


def instants_ms(out: list[Due], of: Job) -> list[float]:
    return [due.at_ns / MS for due in out if due.job is of for _ in range(due.tokens)]


def test_paced_stream_keeps_its_pace() -> None:
    alone = job(0, at_ms=7, output=3)
    assert instants_ms(run(paced(), [alone]), alone) == [57, 67, 77]


def test_paced_streams_do_not_slow_each_other() -> None:
    jobs = [job(order, output=2) for order in range(100)]
    out = run(paced(), jobs)
    assert all(instants_ms(out, one) == [50, 60] for one in jobs)


def test_paced_stream_of_a_faster_job_keeps_a_pace_so_many_times_as_fast() -> None:
    fast, other = job(0, output=3, speed=5.0), job(1, output=3)
    out = run(paced(), [fast, other])
    assert (instants_ms(out, fast), instants_ms(out, other)) == ([10, 12, 14], [50, 60, 70])


def test_late_look_does_not_shift_the_schedule() -> None:
    model, alone = paced(), job(0, output=3)
    model.admit(alone, 0)
    assert [due.at_ns for due in model.take(500 * MS)] == [50 * MS, 60 * MS, 70 * MS]


def test_jitter_stays_within_its_share_and_follows_from_the_seed() -> None:
    gaps = []
    for _ in range(2):
        alone = job(0, output=200)
        at = instants_ms(run(paced(jitter=0.3), [alone]), alone)
        assert 35 <= at[0] <= 65
        gaps.append([late - early for early, late in pairwise(at)])
        assert all(7 <= gap <= 13 for gap in gaps[-1])
        assert max(gaps[-1]) - min(gaps[-1]) > 4
    assert gaps[0] == gaps[1]


def test_tokens_that_take_no_time_come_together() -> None:
    alone = job(0, output=5)
    assert [due.tokens for due in run(paced(itl_ms=0), [alone])] == [5]


def test_held_stream_goes_on_from_where_it_was() -> None:
    model, alone = paced(), job(0, output=3)
    model.admit(alone, 0)
    assert [due.at_ns for due in model.take(50 * MS)] == [50 * MS]
    model.hold(alone, 400 * MS)
    assert [due.at_ns for due in model.take(500 * MS)] == [400 * MS, 410 * MS]


@pytest.mark.parametrize("model", [paced(), engine()], ids=["paced", "engine"])
def test_dropped_job_gets_nothing_more(model: Model) -> None:
    gone, stays = job(0), job(1)
    for one in (gone, stays):
        model.admit(one, 0)
    model.drop(gone)
    model.drop(gone)
    assert model.running + model.waiting == 1
    assert {due.job.order for due in model.take(10_000 * MS)} == {1}


def test_step_costs_what_is_stated() -> None:
    alone = job(0, prompt=10, output=3)
    assert instants_ms(run(engine(), [alone]), alone) == [10, 21, 32]  # 10 x 1 ms prefill, then 10 + 1 ms a step


def test_more_sequences_make_every_step_slower() -> None:
    jobs = [job(order, prompt=1, output=2) for order in range(4)]
    out = run(engine(), jobs)
    # The first one's prompt is read alone; the others' while it decodes: 3 ms + 10 ms + 1 ms.
    assert instants_ms(out, jobs[0]) == [1, 15]
    assert instants_ms(out, jobs[3]) == [15, 28]  # three decode together: 10 + 3 x 1 ms


def test_full_batch_makes_the_next_one_wait_for_a_free_slot() -> None:
    jobs = [job(order, prompt=1, output=5) for order in range(5)]
    model = engine()
    for one in jobs:
        model.admit(one, 0)
    list(model.take(20 * MS))
    assert (model.running, model.waiting) == (4, 1)
    out = run(model, [])
    assert instants_ms(out, jobs[4])[0] > min(instants_ms(out, one)[-1] for one in jobs[:4])


def test_full_cache_makes_the_next_one_wait_and_nobody_overtakes() -> None:
    costs = sim_settings(prefill_s=0.001, decode_s=0.01, batch=32, kv_tokens=100)
    first, large, small = job(0, reserved=60), job(1, reserved=60), job(2, reserved=10)
    model = engine(costs)
    for one in (first, large, small):
        model.admit(one, 0)
    assert (model.running, model.waiting, model.kv_ratio) == (1, 2, 0.6)
    out = run(model, [])
    assert instants_ms(out, small)[0] > instants_ms(out, first)[-1]
    assert model.kv_ratio == 0


def test_long_prompt_is_read_in_pieces_and_slows_who_is_decoding() -> None:
    decoding, long = job(0, prompt=1, output=30), job(1, at_ms=60, prompt=250, output=1)
    out = run(engine(), [decoding, long])
    at = instants_ms(out, decoding)
    gaps = [round(late - early) for early, late in pairwise(at)]
    assert Counter(gaps) == {11: 26, 111: 2, 61: 1}  # 100, 100 and 50 prompt tokens beside a step of 11 ms
    assert at.index(instants_ms(out, long)[0]) > 0  # its first token comes with the step that read the last piece


def test_dropping_frees_slot_and_cache_at_once() -> None:
    model = engine(sim_settings(batch=1, kv_tokens=100))
    running, waiting = job(0, reserved=100), job(1, reserved=100)
    model.admit(running, 0)
    model.admit(waiting, 0)
    model.drop(running)
    assert (model.running, model.waiting, model.kv_ratio) == (0, 1, 0)
    assert [due.job for due in model.take(10_000 * MS)] == [waiting] * 3


def test_queue_refuses_beyond_its_length() -> None:
    model = engine(sim_settings(batch=1, queue=2))
    assert [model.admit(job(order), 0) for order in range(4)] == [True, True, True, False]


def test_queue_of_none_still_takes_what_can_run_at_once() -> None:
    model = engine(sim_settings(batch=1, queue=0))
    assert [model.admit(job(order), 0) for order in range(2)] == [True, False]


def test_held_sequence_keeps_its_slot_and_lets_the_others_go_on() -> None:
    held, other = job(0, prompt=1, output=2), job(1, prompt=1, output=2)
    model = engine()
    model.admit(held, 0)
    model.admit(other, 0)
    model.hold(held, 300 * MS)
    out = run(model, [])
    assert instants_ms(out, held)[0] >= 300
    assert instants_ms(out, other)[-1] < 100


def test_arrival_while_everybody_is_held_does_not_wait_for_them() -> None:
    model, held = engine(), job(0, prompt=1, output=1)
    model.admit(held, 0)
    model.hold(held, 900 * MS)
    list(model.take(100 * MS))
    late = job(1, at_ms=100, prompt=1, output=1)
    assert instants_ms(run(model, [late]), late) == [101]


def test_job_that_arrived_after_a_step_began_is_not_in_it_however_late_the_look() -> None:
    model, first = engine(), job(0, prompt=10, output=2)
    late = job(1, at_ms=5, prompt=10, output=1)
    model.admit(first, 0)
    model.admit(late, 5 * MS)
    out = list(model.take(1000 * MS))
    assert instants_ms(out, first) == [10, 31]  # 10 ms of the other's prompt beside 11 ms
    assert instants_ms(out, late) == [31]


def test_lower_priority_number_goes_first_and_equal_ones_as_they_came() -> None:
    model = engine(sim_settings(batch=1))
    running, later, urgent, last = job(0), job(1), job(2, priority=-1), job(3)
    for one in (running, later, urgent, last):
        model.admit(one, 0)
    out = run(model, [])
    assert sorted((instants_ms(out, one)[0], one.order) for one in (running, later, urgent, last)) == [
        (instants_ms(out, one)[0], one.order) for one in (running, urgent, later, last)
    ]


def test_urgent_job_that_is_not_there_yet_holds_nobody_up() -> None:
    model = engine(sim_settings(batch=1, prefill_s=0.001, decode_s=0.01))
    first, waiting, urgent = job(0, output=1), job(1, output=1), job(2, at_ms=50, output=1, priority=-1)
    model.admit(first, 0)
    model.admit(waiting, 1 * MS)
    model.admit(urgent, 50 * MS)  # seen before the first step was looked at
    out = run(model, [])
    assert instants_ms(out, waiting) == [20]


def test_job_is_shed_when_too_many_wait_unless_it_is_exempt_or_can_run_at_once() -> None:
    model = engine(sim_settings(batch=1, shed_above=1, shed_exempt=-5))
    assert not model.sheds(job(0))
    for order in range(2):
        model.admit(job(order), 0)
    assert [model.sheds(job(2, priority=priority)) for priority in (0, -4, -5, -9)] == [True, True, False, False]
    model = engine(sim_settings(batch=3, shed_above=0))
    for order in range(3):  # the last two enter with the next step
        assert not model.sheds(job(order))
        model.admit(job(order), 0)
    assert model.sheds(job(3))


def test_sequences_with_an_adapter_make_their_steps_longer_and_no_others() -> None:
    costs = sim_settings(prefill_s=0.001, decode_s=0.010, decode_per_sequence_s=0.001, adapter_s=0.005)
    base, adapted = job(0, prompt=10, output=4), job(1, prompt=10, output=2, adapter="a")
    assert instants_ms(run(engine(costs), [adapted]), adapted) == [15, 31]
    out = run(engine(costs), [job(2, prompt=10, output=2)])
    assert [due.at_ns / MS for due in out] == [10, 21]
    adapted = job(1, prompt=10, output=2, adapter="a")
    assert instants_ms(run(engine(costs), [base, adapted]), base) == [10, 36, 53, 64]


def test_adapter_that_is_not_in_memory_makes_the_first_step_longer() -> None:
    costs = sim_settings(prefill_s=0.001, decode_s=0.010, adapter_slots=2, adapter_swap_s=0.050)
    model, found = engine(costs), []
    for order, name in enumerate("aabacbca"):  # with room for two, the least recently used one goes
        one = job(order, at_ms=1000 * order, prompt=10, output=1, adapter=name)
        found.append(instants_ms(run(model, [one]), one)[0] - 1000 * order)
    assert found == [60, 10, 60, 10, 60, 60, 10, 60]


CACHE = sim_settings(prefill_s=0.001, decode_s=0.01, prefix_blocks=8, block_tokens=4, batch=2)


def names(words: str) -> tuple[int, ...]:
    return block_names(words.split(), 4, "")


def test_prompt_that_begins_as_an_earlier_one_is_read_only_from_there_on() -> None:
    model = engine(CACHE)
    first = job(0, prompt=10, output=1, blocks=names("a b c d e f g h i j"))
    second = job(1, at_ms=100, prompt=10, output=1, blocks=names("a b c d e f g h x y"))
    out = run(model, [first, second])
    assert instants_ms(out, first) == [10]
    assert instants_ms(out, second) == [102]
    assert (second.cached_tokens, model.tally.prefix_hit_tokens, model.tally.prefix_queried_tokens) == (8, 8, 20)


def test_prompt_that_is_cached_whole_is_still_read_to_its_last_block() -> None:
    jobs = [job(at, at_ms=100 * at, prompt=8, output=1, blocks=names("a b c d e f g h")) for at in range(2)]
    assert instants_ms(run(engine(CACHE), jobs), jobs[1]) == [104]


def test_neighbours_in_one_step_share_and_the_answer_is_shared_by_the_next_turn() -> None:
    turn = "a b c d e f g h i j k l"
    first, twin = (job(at, prompt=8, output=4, blocks=names(turn)) for at in range(2))
    after = job(2, at_ms=500, prompt=14, output=1, blocks=names(f"{turn} m n"))
    model = engine(CACHE)
    run(model, [first, twin, after])
    assert (first.cached_tokens, twin.cached_tokens, after.cached_tokens) == (0, 4, 12)


def test_block_that_was_not_used_for_longest_makes_room() -> None:
    model = engine(CACHE.model_copy(update={"prefix_blocks": 2}))
    texts = ("a a a a x", "b b b b x", "a a a a y", "c c c c x", "b b b b y", "a a a a z")
    jobs = [job(at, at_ms=100 * at, prompt=5, output=1, blocks=names(text)) for at, text in enumerate(texts)]
    run(model, jobs)
    assert [one.cached_tokens for one in jobs] == [0, 0, 4, 0, 0, 0]


def test_large_cache_finds_all_that_earlier_prompts_have_in_common_with_a_later_one() -> None:
    rng, seen, jobs, shared_tokens = random.Random(4), set[tuple[int, ...]](), [], 0
    for order in range(80):
        blocks = [rng.randrange(2) for _ in range(rng.randrange(1, 9))]  # each of 4 tokens, and then 2 of its own
        shared_tokens += 4 * sum(tuple(blocks[: at + 1]) in seen for at in range(len(blocks)))
        seen |= {tuple(blocks[: at + 1]) for at in range(len(blocks))}
        words = [f"{block}.{index}" for block in blocks for index in range(4)] + [f"own {order}", "too"]
        named = block_names(words, 4, "")
        jobs.append(job(order, at_ms=order * rng.randrange(3), prompt=len(words), output=2, blocks=named))
    model = engine(CACHE.model_copy(update={"prefix_blocks": 10_000, "batch": 6, "prefill_chunk_tokens": 9}))
    run(model, jobs)
    assert model.tally.prefix_hit_tokens == shared_tokens > 500
    assert model.tally.prefix_queried_tokens == sum(one.input_tokens for one in jobs)


def test_without_a_cache_nothing_is_found_or_counted() -> None:
    model = engine()
    jobs = [job(at, at_ms=100 * at, prompt=8, output=1, blocks=names("a b c d e f g h")) for at in range(2)]
    run(model, jobs)
    assert (model.tally.prefix_queried_tokens, jobs[1].cached_tokens) == (0, None)


def test_full_cache_preempts_the_least_urgent_which_then_reads_all_of_it_again() -> None:
    costs = sim_settings(prefill_s=0.001, decode_s=0.010, decode_per_sequence_s=0, kv_tokens=30, preempts=True)
    urgent, other = job(0, prompt=10, output=9), job(1, prompt=10, output=9)
    model = engine(costs)
    out = run(model, [urgent, other])
    assert model.tally.preemptions == 1
    assert [len(instants_ms(out, one)) for one in (urgent, other)] == [9, 9]
    gaps = [round(late - early) for early, late in pairwise(instants_ms(out, other))]
    assert max(gaps) > 10 + 14  # it waited for the other's room, and read its prompt and its own words once more
    assert max(round(late - early) for early, late in pairwise(instants_ms(out, urgent))) <= 20
    assert model.kv_ratio == 0


def test_room_of_a_client_that_left_comes_back_unless_the_engine_leaks() -> None:
    for leaks, left_ratio in ((False, 0.0), (True, 0.25)):
        model = engine(sim_settings(kv_tokens=80, leak_kv=leaks))
        gone, waits = job(0, reserved=20), job(1, at_ms=5, reserved=70)
        model.admit(gone, 0)
        model.admit(waits, 5 * MS)
        model.abandon(gone)
        model.abandon(gone)
        assert model.kv_ratio == left_ratio
        out = list(model.take(10_000 * MS))
        assert [due.job for due in out] == ([] if leaks else [waits] * 3)
    finished = job(2, reserved=20)
    model = engine(sim_settings(kv_tokens=80, leak_kv=True))
    run(model, [finished])
    assert model.kv_ratio == 0


@given(
    shapes=st.lists(st.tuples(st.integers(0, 400), st.integers(0, 300), st.integers(1, 20)), min_size=1, max_size=25),
    batch=st.integers(1, 5),
    preempts=st.booleans(),
    blocks=st.integers(0, 9),
)
def test_every_token_comes_out_once_in_order_of_time(
    shapes: list[tuple[int, int, int]], batch: int, preempts: bool, blocks: int
) -> None:
    costs = sim_settings(
        batch=batch, kv_tokens=400, prefill_chunk_tokens=64, preempts=preempts, prefix_blocks=blocks, block_tokens=32
    )
    jobs = [
        job(order, at_ms=at, prompt=prompt, output=out, priority=out % 3, blocks=tuple(range((prompt + out) // 32)))
        for order, (at, prompt, out) in enumerate(shapes)
    ]
    model = engine(costs)
    out = run(model, jobs)
    assert [due.at_ns for due in out] == sorted(due.at_ns for due in out)
    for one in jobs:
        assert len(instants_ms(out, one)) == one.output_tokens
        assert instants_ms(out, one)[0] * MS > one.arrived_ns
    assert (model.running, model.waiting, model.kv_ratio) == (0, 0, 0)
