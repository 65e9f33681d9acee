"""The queue model as pure claims: who waits how long, when tokens come, and that it is M/D/c and M/M/c."""

from __future__ import annotations

import random
from itertools import accumulate
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchgate.errors import SuiteError
from benchgate.sim.engine import Due, Job, Queue
from benchgate.sim.process import serve_sim
from benchgate.sim.settings import sim_settings
from benchgate.suite.loader import parse_suite
from benchgate.suite.simulator import SimSettings
from benchmarks.queueing import erlang_c_wait_s
from benchmarks.queueing_truth import SERVERS, waits_s
from tests.shells.sim_client import asking, request_bytes, talk

MS = 1_000_000
NS = 1_000_000_000


def job(order: int, *, at_ms: float = 0, output: int = 1, **more: Any) -> Job:
    return Job(order, round(at_ms * MS), 10, output, 10 + output, lambda tokens, due_ns: None, **more)


def queue(*, itl_ms: int = 10, jitter: float = 0.0, seed: int = 0, **costs: Any) -> Queue:
    pace = {} if costs.get("service_until") == "last-token" else {"itl_s": itl_ms / 1000}
    return Queue(sim_settings(**{"service_s": 0.06, "jitter_ratio": jitter, **pace, **costs}), random.Random(seed))


def run(model: Queue, jobs: list[Job]) -> list[Due]:
    """Everything that comes out when each job arrives at its instant and nobody is ever late."""
    out: list[Due] = []
    for arriving in jobs:
        while (due_ns := model.due_ns()) is not None and due_ns <= arriving.arrived_ns:
            out += model.take(due_ns)
        assert model.admit(arriving, arriving.arrived_ns)
    while (due_ns := model.due_ns()) is not None:
        out += model.take(due_ns)
    return out


def instants_ms(out: list[Due], of: Job) -> list[float]:
    return [due.at_ns / MS for due in out if due.job is of for _ in range(due.tokens)]


def test_prompts_are_read_one_after_the_other_and_decoding_slows_nobody() -> None:
    jobs = [job(order, output=3) for order in range(3)]
    out = run(queue(), jobs)
    assert [instants_ms(out, one) for one in jobs] == [[60, 70, 80], [120, 130, 140], [180, 190, 200]]
    assert [one.admitted_ns for one in jobs] == [0, 60 * MS, 120 * MS]


def test_several_servers_read_as_many_prompts_at_a_time() -> None:
    jobs = [job(order, at_ms=order) for order in range(4)]
    out = run(queue(servers=2), jobs)
    assert [instants_ms(out, one) for one in jobs] == [[60], [61], [120], [121]]


def test_service_until_the_last_token_spreads_the_tokens_evenly_over_it() -> None:
    jobs = [job(order, output=4) for order in range(2)]
    out = run(queue(service_until="last-token"), jobs)
    assert [instants_ms(out, one) for one in jobs] == [[15, 30, 45, 60], [75, 90, 105, 120]]


def test_late_look_shifts_no_service() -> None:
    model, jobs = queue(), [job(0), job(1), job(2, at_ms=200)]
    for one in jobs:
        model.admit(one, 500 * MS)
    assert [due.at_ns // MS for due in model.take(500 * MS)] == [60, 120, 260]


def test_client_that_leaves_the_queue_makes_room_and_one_in_service_does_not() -> None:
    model, jobs = queue(), [job(order) for order in range(4)]
    for one in jobs:
        model.admit(one, 0)
    assert (model.running, model.waiting) == (1, 3)
    model.abandon(jobs[0])
    model.abandon(jobs[1])
    model.drop(jobs[1])
    assert (model.running, model.waiting) == (0, 2)
    out = run(model, [])
    assert [(due.job.order, due.at_ns // MS) for due in out] == [(2, 120), (3, 180)]
    assert (model.running, model.waiting) == (0, 0)


def test_job_that_arrives_later_than_it_is_admitted_waits_for_its_arrival() -> None:
    late = job(0, at_ms=900)  # as when a model is loaded first
    model = queue()
    model.admit(late, 0)
    assert (model.due_ns(), model.waiting) == (900 * MS, 1)
    assert instants_ms(run(model, []), late) == [960]


def test_endless_answer_has_a_pace_in_a_service_until_the_last_token() -> None:
    model = queue(service_until="last-token")
    model.admit(job(0, output=1 << 62), 0)
    assert 10 < len(list(model.take(100 * MS))) < 10_000


def test_jitter_and_speed_change_the_service_that_is_stated() -> None:
    jobs = [job(order) for order in range(100)]
    run(queue(jitter=0.5), jobs)
    services_ms = [(one.service_ns or 0) / MS for one in jobs]
    assert 30 <= min(services_ms) < 40 < 80 < max(services_ms) <= 90
    fast = job(0, speed=4.0)
    assert instants_ms(run(queue(), [fast]), fast) == [15]


@given(
    gaps_ms=st.lists(st.integers(0, 90), min_size=1, max_size=60),
    servers=st.integers(1, 4),
    law=st.sampled_from(["constant", "exponential"]),
)
def test_every_start_is_the_one_of_kiefer_and_wolfowitz(gaps_ms: list[int], servers: int, law: str) -> None:
    arrivals = list(accumulate(gaps_ms))
    jobs = [job(order, at_ms=at, output=2) for order, at in enumerate(arrivals)]
    out = run(queue(servers=servers, service_law=law), jobs)
    work_ns = [0] * servers  # what each server has left when a request comes, in order
    before_ns = 0
    for one in jobs:
        work_ns = sorted(max(0, left - (one.arrived_ns - before_ns)) for left in work_ns)
        before_ns = one.arrived_ns
        assert one.admitted_ns == one.arrived_ns + work_ns[0]
        assert one.service_ns is not None
        assert next(due.at_ns for due in out if due.job is one) == one.admitted_ns + one.service_ns
        work_ns[0] += one.service_ns
    assert [due.at_ns for due in out] == sorted(due.at_ns for due in out)


@pytest.mark.slow
def test_mean_wait_of_exponential_services_is_erlangs() -> None:
    rng, at_ms, jobs = random.Random(8), 0.0, []
    for order in range(60_000):
        at_ms += rng.expovariate(0.8 * 3 / 60)
        jobs.append(job(order, at_ms=at_ms))
    run(queue(servers=3, service_law="exponential"), jobs)
    waits_s = [((one.admitted_ns or 0) - one.arrived_ns) / NS for one in jobs[2_000:]]
    assert sum(waits_s) / len(waits_s) == pytest.approx(erlang_c_wait_s(0.8 * 3 / 0.06, 1 / 0.06, 3), rel=0.06)


@pytest.mark.parametrize("law", ["constant", "exponential"])
def test_recursion_of_the_benchmark_gives_the_waits_of_the_model(law: str) -> None:
    rng, at_ms, jobs = random.Random(3), 0.0, []
    for order in range(500):
        at_ms += rng.expovariate(0.9 * SERVERS / 60)
        jobs.append(job(order, at_ms=at_ms))
    run(queue(servers=SERVERS, service_law=law), jobs)
    arrived_s = np.array([one.arrived_ns / NS for one in jobs])
    services_s = np.array([[(one.service_ns or 0) / NS] for one in jobs])
    gaps_s = np.diff(arrived_s, prepend=arrived_s[0])[:, None]
    found_s = np.concatenate([*waits_s(gaps_s, services_s, np.zeros((1, SERVERS)))])
    assert found_s == pytest.approx([((one.admitted_ns or 0) - one.arrived_ns) / NS for one in jobs], abs=1e-6)
    assert found_s.max() > 0.06


def test_truth_states_start_and_service_of_every_request() -> None:
    with serve_sim(sim_settings(service_s=0.03, itl_s=0.001)) as sim:
        for _ in range(2):
            talk(sim.port, request_bytes(body=asking(2)))
        rows = sim.truth(with_requests=True)["rows"]
    for row in rows:
        assert row["service_ns"] == 30 * MS
        assert row["started_ns"] == row["received_ns"]
        assert row["first_ns"] >= row["started_ns"] + row["service_ns"]


def test_keys_of_the_queue_select_it() -> None:
    assert SimSettings.model_validate({"service": "40ms", "itl": "1ms"}).is_queue
    assert SimSettings.model_validate({"servers": 1}).is_queue
    assert not SimSettings.model_validate({"itl": "1ms"}).is_queue


SUITE = """
suite: s
deployments: {a: {sim: %s}}
baseline: a
candidate: a
load: {workload: {input: 8, output: 8}, sweep: [{stage: s, concurrency: 2, requests: 9}]}
gate: {checks: [{metric: error_rate, max: 50%%}]}
"""


def test_suite_can_have_a_queue_and_says_nothing_of_it_where_there_is_none() -> None:
    suite = parse_suite(SUITE % "{service: 40ms, servers: 2}", "s.yaml")
    declared = suite.deployments["a"].sim
    assert declared is not None
    assert declared == sim_settings(service_s=0.04, servers=2)
    assert declared.is_queue
    plain = parse_suite(SUITE % "{ttft: 40ms}", "s.yaml").to_stored()["deployments"]["a"]["sim"]
    assert not {"service_s", "servers", "service_law", "service_until"} & set(plain)


@pytest.mark.parametrize(
    ("sim", "says"),
    [
        ("{service: 1ms, batch: 4}", "`service` is of a queue, and `batch` is of an engine that batches"),
        ("{servers: 2, ttft: 1ms}", "remove `ttft`"),
        ("{service_until: last-token, itl: 1ms}", "remove `itl`"),
        ("{service: 0ms}", "takes longer than 0"),
        ("{service_law: poisson}", "service_law"),
    ],
)
def test_suite_that_contradicts_itself_about_the_queue_is_refused(sim: str, says: str) -> None:
    with pytest.raises(SuiteError, match=says):
        parse_suite(SUITE % sim, "s.yaml")
