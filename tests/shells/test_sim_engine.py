"""The models of time as pure claims: when tokens are due, who waits, and that none is lost or made up."""

from __future__ import annotations

import random
from collections import Counter
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchgate.errors import UsageError
from benchgate.sim.engine import Engine
from benchgate.sim.jobs import Due, Job, Model
from benchgate.sim.paced import Paced
from benchgate.sim.settings import BatchingCosts, SimSettings

MS = 1_000_000
COSTS = BatchingCosts(prefill_s=0.001, decode_s=0.010, decode_per_sequence_s=0.001, batch=4, prefill_chunk_tokens=100)


def job(order: int, *, at_ms: int = 0, prompt: int = 10, output: int = 3, reserved: int | None = None) -> Job:
    room = prompt + output if reserved is None else reserved
    return Job(order, at_ms * MS, prompt, output, room, lambda tokens, due_ns: None)


def engine(costs: BatchingCosts = COSTS) -> Engine:
    return Engine(costs, 0.0, random.Random(0))


def paced(ttft_ms: int = 50, itl_ms: int = 10, jitter: float = 0.0) -> Paced:
    return Paced(ttft_ms * MS, itl_ms * MS, jitter, random.Random(0))


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
    costs = BatchingCosts(prefill_s=0.001, decode_s=0.01, batch=32, kv_tokens=100)
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
    model = engine(BatchingCosts(batch=1, kv_tokens=100))
    running, waiting = job(0, reserved=100), job(1, reserved=100)
    model.admit(running, 0)
    model.admit(waiting, 0)
    model.drop(running)
    assert (model.running, model.waiting, model.kv_ratio) == (0, 1, 0)
    assert [due.job for due in model.take(10_000 * MS)] == [waiting] * 3


def test_queue_refuses_beyond_its_length() -> None:
    model = engine(BatchingCosts(batch=1, queue=2))
    assert [model.admit(job(order), 0) for order in range(4)] == [True, True, True, False]


def test_queue_of_none_still_takes_what_can_run_at_once() -> None:
    model = engine(BatchingCosts(batch=1, queue=0))
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


@settings(max_examples=60, deadline=None)
@given(
    shapes=st.lists(st.tuples(st.integers(0, 400), st.integers(0, 300), st.integers(1, 20)), min_size=1, max_size=25),
    batch=st.integers(1, 5),
)
def test_every_token_comes_out_once_in_order_of_time(shapes: list[tuple[int, int, int]], batch: int) -> None:
    costs = BatchingCosts(batch=batch, kv_tokens=400, prefill_chunk_tokens=64)
    jobs = [job(order, at_ms=at, prompt=prompt, output=out) for order, (at, prompt, out) in enumerate(shapes)]
    model = engine(costs)
    out = run(model, jobs)
    assert [due.at_ns for due in out] == sorted(due.at_ns for due in out)
    for one in jobs:
        assert len(instants_ms(out, one)) == one.output_tokens
        assert instants_ms(out, one)[0] * MS > one.arrived_ns
    assert (model.running, model.waiting, model.kv_ratio) == (0, 0, 0)


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"ttft_s": -1}, "ttft_s is -1"),
        ({"jitter_ratio": 1.0}, "jitter_ratio is 1"),
        ({"chunk_tokens": 0}, "chunk_tokens is 0"),
        ({"output_tokens": (5, 2)}, "5:2"),
        ({"port": 70_000}, "port is 70000"),
        ({"model": ""}, "no name"),
        ({"cert": "a.pem"}, "both a certificate and its key"),
        ({"client_ca": "a.pem"}, "a matter of TLS"),
        ({"uds": "/s", "cert": "a.pem", "key": "a.key"}, "over a Unix socket"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_settings_out_of_range_are_refused(wrong: dict[str, object], says: str) -> None:
    with pytest.raises(UsageError, match=says):
        SimSettings(**wrong)  # type: ignore[arg-type]  # wrong on purpose


@pytest.mark.parametrize("wrong", [{"batch": 0}, {"prefill_s": 0}, {"queue": -1}, {"queue_status": 200}])
def test_costs_out_of_range_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(UsageError):
        BatchingCosts(**wrong)  # type: ignore[arg-type]  # wrong on purpose


def test_settings_survive_the_way_to_another_process() -> None:
    whole = SimSettings(batching=BatchingCosts(queue=3), output_tokens=(1, 5), faults=("crlf@10%",), keep_alive_s=5)
    assert SimSettings.from_json(whole.to_json()) == whole
    assert SimSettings.from_json(SimSettings().to_json()) == SimSettings()
