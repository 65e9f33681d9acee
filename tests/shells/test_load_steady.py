"""Steady state: ramp requests fill a stage before the measured ones and keep it full until the last of them is over."""

from __future__ import annotations

import json
from array import array
from collections.abc import Iterable
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchgate.load.decode.body import RawBody
from benchgate.load.http.exchange import Response
from benchgate.load.http.parser import Head
from benchgate.load.results import ClassResult, StageResult, lost_worker, merged, read_class, read_result
from benchgate.load.scheduler import LEAD_UNITS, TAIL_UNITS, PreparedClass
from benchgate.load.shards import ClassShare, Level, PlannedRequests, Ramp, RepeatedRequests, stage_shard
from benchgate.load.spool import Phase, Spool, SpoolEntry
from benchgate.load.standalone.options import LoadOptions
from benchgate.load.standalone.run import stage_of
from benchgate.load.workers import Fleet, run_stage
from benchgate.model import request_metrics
from benchgate.model.records import ErrorClass, RequestColumns
from benchgate.model.run import ClientUse
from benchgate.plan.model import PlannedStage
from benchgate.plan.schedule import make_plan
from benchgate.plan.slot_share import SlotShare
from benchgate.suite.loader import parse_suite
from tests.fakes.blocks import record
from tests.fakes.scripted_server import Received, ScriptedServer, Step, answering, json_response
from tests.fakes.virtual_time import NS, Kept, ServiceTime, World, closed_class, send, tickets
from tests.shells.load_helpers import asking, limits, target_at

S = 0.1
RAMP = range(1_000, 100_000)


def fixed(number: int, at_s: float) -> float:
    return S


def of(kept: Kept, phase: Phase) -> list[SpoolEntry]:
    return sorted((one for one in kept.answers if one.phase is phase), key=lambda one: one.intended_ns)


def begins_s(kept: Kept, phase: Phase) -> list[float]:
    return [one.intended_ns / NS for one in of(kept, phase)]


def one_flow(
    monkeypatch: pytest.MonkeyPatch,
    slots: int,
    measured: int,
    *,
    service: ServiceTime = fixed,
    service_s: float | None = S,
    until_s: float | None = None,
    think_s: float = 0.0,
) -> tuple[Kept, World]:
    level = Level(slots, None, until_s, think_s=think_s)
    group, kept = closed_class(level, range(measured), RAMP, service_s)
    return kept, send(monkeypatch, service, [group])


def read(tmp_path: Path, kept: Kept, level: Level, measured: int) -> ClassResult:
    """The answers as they are read from their file."""
    with Spool(tmp_path / "answers") as spool:
        for answer in kept.answers:
            spool.append(answer)
    first = RAMP.start
    pool = tuple(asking(number, None) for number in range(100))
    planned = PlannedRequests(tuple(asking(number, None) for number in range(measured)))
    part = ClassShare("", planned, level, ramp=Ramp(RepeatedRequests(pool, len(pool), first=first), first))
    found = read_class(part, tmp_path / "answers", target_at("http://127.0.0.1:9"))
    (tmp_path / "answers").unlink()
    return found


def test_slots_begin_evenly_over_the_service_time(monkeypatch: pytest.MonkeyPatch) -> None:
    kept, _ = one_flow(monkeypatch, 4, 8)
    assert begins_s(kept, Phase.LEAD)[:4] == pytest.approx([0, S / 4, S / 2, 3 * S / 4])
    unknown, _ = one_flow(monkeypatch, 4, 8, service_s=None)
    assert begins_s(unknown, Phase.LEAD)[:4] == pytest.approx([0, 0.001, 0.002, 0.003])


@pytest.mark.parametrize("workers", [2, 3, 7])
def test_slots_begin_at_the_same_instants_for_any_number_of_workers(
    monkeypatch: pytest.MonkeyPatch, workers: int
) -> None:
    alone, _ = one_flow(monkeypatch, 7, 14)
    shares: list[tuple[PreparedClass, Kept]] = []
    for worker in range(workers):
        level = Level(7, None).share(worker, workers)
        share = SlotShare(worker, workers, 7)
        shares.append(closed_class(level, share.numbers(14), list(share.select(RAMP)), S))
    send(monkeypatch, fixed, *([group] for group, _ in shares))
    together = sorted(at_s for _, kept in shares for at_s in begins_s(kept, Phase.LEAD)[: kept_slots(kept)])
    assert together == pytest.approx(begins_s(alone, Phase.LEAD)[:7])


def kept_slots(kept: Kept) -> int:
    """How many slots had begun before the first answer of the flow was over."""
    first_over_ns = min(one.response.over_ns for one in kept.answers)
    return sum(one.intended_ns < first_over_ns for one in kept.answers)


def test_nothing_is_measured_before_every_slot_has_completed_a_request(monkeypatch: pytest.MonkeyPatch) -> None:
    kept, _ = one_flow(monkeypatch, 5, 20, service=lambda number, at_s: S * (1 + number % 3))
    lead, measured = of(kept, Phase.LEAD), of(kept, Phase.MEASURED)
    over_ns = sorted(one.response.over_ns for one in lead)
    assert measured[0].intended_ns >= over_ns[4]
    assert [one.number for one in measured] == list(range(20))


def test_every_slot_is_busy_until_the_last_measured_request_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    kept, _ = one_flow(monkeypatch, 5, 20, service=lambda number, at_s: S * (1 + number % 3))
    measured = of(kept, Phase.MEASURED)
    for at_ns in range(measured[0].intended_ns, max(one.response.over_ns for one in measured), 1_000_000):
        in_flight = sum(one.intended_ns <= at_ns < one.response.over_ns for one in kept.answers)
        assert in_flight == 5


@pytest.mark.parametrize("turns", [2, 2.5, 4, 10])
def test_rate_of_a_closed_loop_is_its_slots_over_the_service_time(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, turns: float
) -> None:
    count = int(16 * turns)
    kept, _ = one_flow(monkeypatch, 16, count)
    found = read(tmp_path, kept, Level(16, None), count)
    assert len(found.requests) == count
    assert count / found.window_s == pytest.approx(16 / S, rel=0.02)


@pytest.mark.parametrize("slots", [1, 2, 5])
@pytest.mark.parametrize("until_s", [None, 20.0])
def test_pauses_of_a_closed_loop_belong_to_its_window(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, slots: int, until_s: float | None
) -> None:
    think_s, most = 0.9, 900 if until_s else 10 * slots
    kept, _ = one_flow(monkeypatch, slots, most, service_s=S + think_s, until_s=until_s, think_s=think_s)
    found = read(tmp_path, kept, Level(slots, None, until_s, think_s=think_s), most)
    assert len(found.requests) in (10 * slots, 20 * slots, 20 * slots + 1)
    assert len(found.requests) / found.window_s == pytest.approx(slots / (S + think_s), rel=0.02)


def test_rate_has_no_bias_where_answers_take_random_times(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Over the time to the last end it would be too low by about slots over requests: here a quarter."""
    rates, to_the_end = [], []
    for seed in range(60):
        generator = np.random.default_rng(seed)
        kept, _ = one_flow(monkeypatch, 8, 32, service=lambda *_, draw=generator: draw.exponential(S))
        rates.append(32 / read(tmp_path, kept, Level(8, None), 32).window_s)
        measured = of(kept, Phase.MEASURED)
        last_ns = max(one.response.over_ns for one in measured)
        to_the_end.append(32 * NS / (last_ns - measured[0].intended_ns))
    error = float(np.std(rates, ddof=1)) / len(rates) ** 0.5
    assert abs(float(np.mean(rates)) - 8 / S) < 3 * error + 0.03 * 8 / S
    assert float(np.mean(to_the_end)) < 0.75 * 8 / S


def test_rate_of_several_workers_is_the_sum_of_theirs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    results = []
    for worker, slots in enumerate((3, 3, 2)):
        level = Level(8, None).share(worker, 3)
        assert level.concurrency == slots
        share = SlotShare(worker, 3, 8)
        group, kept = closed_class(level, share.numbers(48), list(share.select(RAMP)), S)
        send(monkeypatch, fixed, [group])
        found = succeeding(read(tmp_path, kept, level, 48))
        results.append(StageResult((found,), ClientUse(cpu_s=0.1, wall_s=1.0, workers=1)))
    whole = merged(results).only
    assert len(whole.requests) == 48
    assert 48 / whole.window_s == pytest.approx(sum(len(one.requests) / one.window_s for one in results))
    assert 48 / whole.window_s == pytest.approx(8 / S, rel=0.02)


@pytest.mark.parametrize(("slots", "workers"), [(3, 2), (5, 4), (9, 8)])
def test_several_workers_keep_the_stated_concurrency_to_the_end(
    monkeypatch: pytest.MonkeyPatch, slots: int, workers: int
) -> None:
    """Workers with two slots have twice as much to send as those with one."""
    stage = planned(f"{{stage: c{slots}, concurrency: {slots}, requests: {20 * slots}}}")
    whole = stage_shard(target_at("http://127.0.0.1:1"), stage, limits=limits(), service_s={"": S})
    shares: list[tuple[PreparedClass, Kept]] = []
    for shard in whole.split(workers):
        (part,) = shard.parts
        ramp = [] if part.ramp is None else [one.index for one in islice(part.ramp.requests, 1_000)]
        shares.append(closed_class(part.level, [one.index for one in part.requests], ramp, S))
    send(monkeypatch, fixed, *([group] for group, _ in shares))
    sent = [one for _, kept in shares for one in kept.answers]
    measured_ns = [one.intended_ns for one in sent if one.phase is Phase.MEASURED]
    assert len(measured_ns) == 20 * slots
    for at_ns in np.linspace(min(measured_ns), max(measured_ns), 101)[1:-1]:
        assert sum(one.intended_ns <= at_ns < one.response.over_ns for one in sent) == slots


def succeeding(share: ClassResult) -> ClassResult:
    numbers, due = share.requests.index.tolist(), share.requests.intended_ns.tolist()
    records = [replace(record(number, S), intended_ns=at) for number, at in zip(numbers, due, strict=True)]
    return replace(share, requests=RequestColumns.pack(records))


def test_rate_of_a_worker_whose_requests_fail_at_once_is_not_added() -> None:
    slow = RequestColumns.pack([record(index, 0.5) for index in range(10)])  # one a second
    broken = RequestColumns.pack([replace(record(100 + index, None), intended_ns=0) for index in range(1_000)])
    use = ClientUse(cpu_s=0.1, wall_s=1.0, workers=1)
    shares = [ClassResult("", slow, 10.0, in_steady_state=True), ClassResult("", broken, 0.5, in_steady_state=True)]
    whole = merged([StageResult((share,), use) for share in shares])
    assert request_metrics.requests_per_s(whole.requests, whole.window_s) == pytest.approx(1.0)


@pytest.mark.parametrize(("until", "recorded"), [({"requests": 200}, 200), ({"duration": "10s"}, 110)])
def test_rate_of_a_lost_worker_is_not_added(tmp_path: Path, until: dict[str, Any], recorded: int) -> None:
    """Both answer ten requests a second; one is lost after the first of ten seconds."""
    options = LoadOptions.parse(url="http://127.0.0.1:9", model="m", engine="openai", concurrency=2, **until)
    whole = stage_of(options, target_at(options.url), None)
    event = {"choices": [{"index": 0, "delta": {"content": "a"}, "finish_reason": "stop"}]}
    said = f"data: {json.dumps(event)}\n\ndata: [DONE]\n\n".encode()
    shards = [replace(shard, spool=tmp_path / str(worker)) for worker, shard in enumerate(whole.split(2))]
    for shard, answered in zip(shards, (100, 10), strict=True):
        (path,) = shard.spools(tmp_path / str(shards.index(shard)))
        with Spool(path) as spool:
            for turn, request in enumerate(islice(shard.parts[0].requests, answered)):
                sent_ns = turn * NS // 10
                body = RawBody(said, array("q", [sent_ns + NS // 10, len(said)]))
                response = Response(sent_ns, sent_ns + NS // 10, Head("HTTP/1.1", 200, {}), body, whole=True)
                spool.append(SpoolEntry(request.index, sent_ns, 0, response))
    use = ClientUse(cpu_s=0.1, wall_s=10.0, workers=1)
    assert shards[0].spool is not None
    found = merged([read_result(shards[0], shards[0].spool, use), lost_worker(shards[1])])
    assert np.count_nonzero(request_metrics.succeeded(found.requests)) == 110
    assert len(found.requests) == recorded
    assert request_metrics.requests_per_s(found.requests, found.window_s) == pytest.approx(11.0)


def test_slot_that_hangs_ends_neither_the_lead_nor_the_tail_late(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first request of the ramp and a measured one hang until a limit ends them, long after all others."""
    kept, world = one_flow(monkeypatch, 4, 40, service=lambda number, at_s: 100.0 if number in (1_000, 39) else S)
    measured, lead, tail = (of(kept, phase) for phase in (Phase.MEASURED, Phase.LEAD, Phase.TAIL))
    assert len(measured) == 40
    assert measured[0].intended_ns < 10 * NS
    assert len(lead) <= 4 * (LEAD_UNITS + 1)
    assert len(tail) <= 4 * TAIL_UNITS
    assert world.loop.time() < 102


def test_slot_that_hangs_before_all_have_begun_does_not_end_the_lead_early(monkeypatch: pytest.MonkeyPatch) -> None:
    """Answers take a twentieth of what the warm-up showed: many are over before the last slot begins."""
    kept, _ = one_flow(monkeypatch, 16, 16, service=lambda number, at_s: S / 20)
    assert begins_s(kept, Phase.MEASURED)[0] >= 15 * S / 16


def test_one_slot_needs_one_request_before_and_none_after(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    kept, world = one_flow(monkeypatch, 1, 5)
    assert world.asked == [1_000, 0, 1, 2, 3, 4]
    assert read(tmp_path, kept, Level(1, None), 5).window_s == pytest.approx(5 * S)


def test_load_for_a_time_is_measured_for_that_time(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    kept, _ = one_flow(monkeypatch, 4, 900, until_s=2.0)
    found = read(tmp_path, kept, Level(4, None, 2.0), 900)
    assert found.window_s == pytest.approx(2.0, abs=S / 4)
    assert len(found.requests) / found.window_s == pytest.approx(4 / S, rel=0.02)
    assert len(found.ramp) == len(of(kept, Phase.LEAD)) + len(of(kept, Phase.TAIL)) > 4


def test_closed_loop_without_a_ramp_begins_with_what_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    group, kept = closed_class(Level(4, None), range(8), None)
    send(monkeypatch, fixed, [group])
    assert [one.phase for one in kept.answers] == [Phase.MEASURED] * 8
    assert begins_s(kept, Phase.MEASURED)[0] == 0


def test_target_that_is_given_up_ends_the_stage(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every planned request has its record all the same."""
    world = World(lambda number, at_s: 0.0)
    world.given_up = True
    group, kept = closed_class(Level(4, None), range(30), RAMP, S)
    send(monkeypatch, fixed, [group], world=world)
    assert [one.number for one in of(kept, Phase.MEASURED)] == list(range(30))
    assert of(kept, Phase.LEAD) == of(kept, Phase.TAIL) == []


def open_class(measured_ns: list[int], ramp_ns: list[int], lead_ns: int) -> tuple[PreparedClass, Kept]:
    kept = Kept()
    return (
        PreparedClass(
            Level(None, 10.0),
            tickets(range(len(measured_ns)), measured_ns),
            kept,  # type: ignore[arg-type]  # all that a flow asks of a writer
            ramp=tickets(RAMP, ramp_ns) if ramp_ns else None,
            lead_ns=lead_ns,
        ),
        kept,
    )


def test_open_loop_is_measured_between_its_lead_and_its_tail(monkeypatch: pytest.MonkeyPatch) -> None:
    gap = NS // 10
    group, kept = open_class([gap, 2 * gap, 3 * gap], [0, gap, 2 * gap, *(gap * k for k in range(6, 40))], 2 * gap)
    world = send(monkeypatch, lambda number, at_s: 0.35, [group])
    assert begins_s(kept, Phase.LEAD) == pytest.approx([0, 0.1, 0.2])
    assert begins_s(kept, Phase.MEASURED) == pytest.approx([0.3, 0.4, 0.5])
    assert begins_s(kept, Phase.TAIL) == pytest.approx([0.6, 0.7, 0.8])  # the last measured one was over at 0.85
    assert world.loop.time() == pytest.approx(0.8 + 0.35)


def test_tail_does_not_wait_for_an_arrival_that_is_not_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    group, kept = open_class([NS], [0, 900 * NS], NS)
    world = send(monkeypatch, fixed, [group])
    assert (len(of(kept, Phase.MEASURED)), len(of(kept, Phase.TAIL))) == (1, 0)
    assert world.loop.time() < 3


def test_classes_side_by_side_are_measured_from_one_moment(monkeypatch: pytest.MonkeyPatch) -> None:
    """A closed loop that is full after two service times waits for the lead of the open one beside it."""
    lead_ns = 3 * NS
    chat, of_chat = open_class([NS // 10, NS // 5], [0, NS, 2 * NS, 3 * NS], lead_ns)
    batch, of_batch = closed_class(Level(2, None), range(40), RAMP, S)
    send(monkeypatch, fixed, [chat, batch])
    assert begins_s(of_batch, Phase.MEASURED)[0] == pytest.approx(3.0, abs=2 * S)
    assert begins_s(of_batch, Phase.MEASURED)[0] >= 3.0
    assert begins_s(of_chat, Phase.MEASURED) == pytest.approx([3.1, 3.2])


MIXED = """
suite: steady
deployments:
  baseline: {url: "http://127.0.0.1:1", model: m}
  candidate: {url: "http://127.0.0.1:2", model: m}
load:
  workload: {input: 6, output: 4%s}
  blocks: 2
  warmup: 0
  sweep: [%s]
gate: {checks: [{metric: error_rate, max: 1%%}]}
"""


def planned(stage: str, workload: str = "") -> PlannedStage:
    return make_plan(parse_suite(MIXED % (workload, stage), "steady.yaml")).blocks[0].stages[0]


@pytest.mark.parametrize("workers", [1, 2])
def test_both_arms_get_the_same_measured_requests_whatever_the_ramp_takes(workers: int) -> None:
    stage = planned("{stage: c4, concurrency: 4, requests: 12}")
    measured = {request.ask.prompt for request in stage.requests}
    with Fleet(workers) as fleet:
        for pause_s in (0.01, 0.03):
            with ScriptedServer(answering(lambda received: "a b c d", after_s=pause_s)) as server:
                shard = stage_shard(target_at(server.url), stage, limits=limits(), service_s={"": pause_s})
                found = fleet.run(shard).only
                sent = [received.prompt for received in server.requests]
            assert found.requests.index.tolist() == list(range(12))
            assert set(found.requests.error) == {None}
            assert sum(prompt in measured for prompt in sent) == 12
            assert len(sent) == 12 + len(found.ramp)
            assert found.ramp.index.min() >= 12
            assert len(set(found.ramp.index.tolist())) == len(found.ramp) >= 4
            assert found.ramp.ramp.all()
            assert not found.requests.ramp.any()


@pytest.mark.parametrize("arrival", ["", ", ramp: 0"])
@pytest.mark.parametrize("batches_s", [(20.0, 30.0), (1.0, 2.0)])
def test_open_class_is_measured_beside_a_full_closed_one_on_both_arms(
    monkeypatch: pytest.MonkeyPatch, arrival: str, batches_s: tuple[float, float]
) -> None:
    """Else the slower arm's closed loop is still filling while its open class is measured, or the faster one over."""
    of_people, of_batch = f"{{rate: 2/s, requests: 60{arrival}}}", "{concurrency: 16, requests: 160}"
    stage = planned(f"{{stage: mix, classes: {{people: {of_people}, batch: {of_batch}}}}}")
    slowest_s = {"people": 1.0, "batch": max(batches_s)}
    schedules = list[list[float]]()
    for batch_s in batches_s:
        service_s = {"people": 1.0, "batch": batch_s}
        shard = stage_shard(target_at("http://a"), stage, limits=limits(), service_s=service_s, longest_s=slowest_s)
        people, batch = shard.parts
        ramp_ns = [] if people.ramp is None else [request.offset_ns or 0 for request in people.ramp.requests]
        measured_ns = [request.offset_ns or 0 for request in people.requests]
        first, of_first = open_class(measured_ns, ramp_ns, people.lead_ns)
        second, of_second = closed_class(batch.level, range(10**6, 10**6 + 160), range(10**7, 10**8), batch.service_s)

        def service(number: int, at_s: float, batch_s: float = batch_s) -> float:
            return batch_s * (0.7 + 0.1 * (number % 7)) if number >= 10**6 else 1.0

        send(monkeypatch, service, [first, second])
        schedules.append(begins_s(of_first, Phase.MEASURED))
        assert len(schedules[-1]) == 60
        for at_s in schedules[-1]:
            in_flight = sum(one.intended_ns <= at_s * NS < one.response.over_ns for one in of_second.answers)
            assert in_flight == 16
        over_ns = sorted(one.response.over_ns for one in of(of_second, Phase.LEAD))
        assert schedules[-1][0] * NS >= over_ns[15]
        assert schedules[-1][0] <= begins_s(of_second, Phase.MEASURED)[0] + batch_s
    assert schedules[0] == schedules[1]


def test_closed_class_is_measured_beside_an_open_one_until_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """The open class is over after 10 s, and the closed one after 20 times 2 s."""
    stage = planned("{stage: mix, classes: {people: {rate: 4/s, requests: 40}, batch: {concurrency: 4, requests: 80}}}")
    service_s = {"people": 0.5, "batch": 2.0}
    shard = stage_shard(target_at("http://a"), stage, limits=limits(), service_s=service_s)
    people, batch = shard.parts
    assert people.ramp is not None
    ramp_ns = [request.offset_ns or 0 for request in people.ramp.requests]
    measured_ns = [request.offset_ns or 0 for request in people.requests]
    first, of_first = open_class(measured_ns, ramp_ns, people.lead_ns)
    second, of_second = closed_class(batch.level, range(10**6, 10**6 + 80), range(10**7, 10**8), batch.service_s)
    send(monkeypatch, lambda number, at_s: 2.0 if number >= 10**6 else 0.5, [first, second])
    last_s = max(one.response.over_ns for one in of(of_second, Phase.MEASURED)) / NS
    sent_s = [at_s for at_s in begins_s(of_first, Phase.TAIL) if at_s < last_s]
    beside_s = last_s - begins_s(of_first, Phase.MEASURED)[-1]
    assert beside_s > 25.0
    assert len(sent_s) > 0.6 * 4 * beside_s
    assert max(begins_s(of_first, Phase.TAIL)) < last_s + 1.0  # and no longer


def test_failures_of_the_ramp_are_in_its_rows_and_nowhere_else() -> None:
    stage = planned("{stage: c4, concurrency: 4, requests: 12}")
    measured = {request.ask.prompt for request in stage.requests}

    def respond(received: Received) -> Iterable[Step]:
        good = answering(lambda _: "a b c d", after_s=0.01)
        return good(received) if received.prompt in measured else [json_response({"error": "busy"}, status=503)]

    with ScriptedServer(respond) as server:
        found = run_stage(target_at(server.url), stage, limits=limits(), service_s={"": 0.01}).only
    assert set(found.requests.error) == {None}
    assert set(found.ramp.error) == {ErrorClass.HTTP_5XX}
    assert request_metrics.requests_per_s(found.requests, found.window_s) == pytest.approx(12 / found.window_s)


def test_open_loop_has_the_same_schedule_after_its_lead() -> None:
    stage = planned("{stage: r50, rate: 50/s, arrival: constant, requests: 10, ramp: 4}")
    with ScriptedServer(answering(lambda received: "a b c d", after_s=0.03)) as server:
        found = run_stage(target_at(server.url), stage, limits=limits(), service_s={"": 0.05}).only
        prompts = [received.prompt for received in server.requests]
    offsets_ns = [request.offset_ns or 0 for request in stage.requests]
    assert found.requests.intended_ns.tolist() == [NS // 5 + offset_ns for offset_ns in offsets_ns]
    lead = found.ramp.intended_ns <= NS // 5
    assert found.ramp.intended_ns[lead].tolist() == [k * NS // 50 for k in range(11)]
    assert len(prompts) == len(set(prompts)) == 10 + len(found.ramp)


def test_open_loop_without_a_service_time_or_with_no_ramp_keeps_its_edges() -> None:
    for ramp, service_s in ((0, {"": 0.05}), (3, None)):
        stage = planned(f"{{stage: r50, rate: 50/s, arrival: constant, requests: 5, ramp: {ramp}}}")
        with ScriptedServer(answering(lambda received: "a b c d")) as server:
            found = run_stage(target_at(server.url), stage, limits=limits(), service_s=service_s).only
        assert found.requests.intended_ns.tolist() == [request.offset_ns for request in stage.requests]
        assert len(found.ramp) == 0


def test_conversations_lead_and_end_as_wholes() -> None:
    stage = planned("{stage: c2, concurrency: 2, requests: 12}", ", session: {turns: 3, think: 10ms}")
    with ScriptedServer(answering(lambda received: "a b", after_s=0.01)) as server:
        found = run_stage(target_at(server.url), stage, limits=limits(), service_s={"": 0.01}).only
    assert found.requests.index.tolist() == list(range(12))
    assert len(found.ramp) % 3 == 0
    assert len(found.ramp) >= 2 * 3
    lead = found.ramp.intended_ns < found.requests.intended_ns.min()
    assert int(lead.sum()) >= 2 * 3


def test_background_is_measured_when_the_rest_is() -> None:
    stage = planned(
        "{stage: mix, classes: {chat: {concurrency: 2, requests: 8}, batch: {concurrency: 2, background: true}}}"
    )
    with ScriptedServer(answering(lambda received: "a b", after_s=0.02)) as server:
        chat, batch = run_stage(target_at(server.url), stage, limits=limits(), service_s={"chat": 0.02}).classes
    assert (len(chat.requests), batch.requests.index.min() > 0) == (8, True)
    assert batch.requests.intended_ns.min() >= chat.requests.intended_ns.min() - 5_000_000
    assert len(batch.ramp) >= 2
    assert not set(batch.ramp.index.tolist()) & set(batch.requests.index.tolist())


def test_hanging_server_ends_the_stage_by_its_limits() -> None:
    stage = planned("{stage: c2, concurrency: 2, requests: 4}")
    with ScriptedServer(lambda received: [60.0]) as server:
        found = run_stage(target_at(server.url), stage, limits=limits(first_token_s=0.1, total_s=0.2)).only
    assert set(found.requests.error) == {ErrorClass.TIMEOUT}
    assert len(found.requests) == 4
    assert 2 <= len(found.ramp) <= 2 * (LEAD_UNITS + 1 + TAIL_UNITS)


def test_class_with_fewer_slots_than_workers_sends_all_its_requests() -> None:
    stage = planned("{stage: mix, classes: {chat: {rate: 50/s, requests: 6}, batch: {concurrency: 1, requests: 9}}}")
    with ScriptedServer(answering(lambda received: "a b")) as server, Fleet(2) as fleet:
        chat, batch = fleet.run(stage_shard(target_at(server.url), stage, limits=limits())).classes
    assert chat.requests.index.tolist() == list(range(6))
    assert batch.requests.index.tolist() == list(range(9))


@pytest.mark.parametrize("requests", [64, 160, 480])
def test_goodput_of_one_prefill_at_a_time_does_not_depend_on_the_number_of_requests(
    monkeypatch: pytest.MonkeyPatch, requests: int
) -> None:
    """Prefills of 60 ms one after the other, then a second of decoding: begun at once, the last of 16 waits 900 ms."""
    free_s = 0.0
    waits_s: dict[int, float] = {}

    def prefill(number: int, at_s: float) -> float:
        nonlocal free_s
        waits_s[number] = max(0.0, free_s - at_s)
        free_s = max(free_s, at_s) + 0.06
        return free_s - at_s + 1.0

    group, kept = closed_class(Level(16, None), range(requests), RAMP, 1.06)
    send(monkeypatch, prefill, [group])
    first_token_s = [waits_s[one.number] + 0.06 for one in of(kept, Phase.MEASURED)]
    assert len(first_token_s) == requests
    assert float(np.quantile(first_token_s, 0.95)) == pytest.approx(0.06, rel=0.05)
    waits_s.clear()
    free_s = 0.0
    group, kept = closed_class(Level(16, None), range(requests), None)
    send(monkeypatch, prefill, [group])
    burst_s = [waits_s[one.number] + 0.06 for one in of(kept, Phase.MEASURED)]
    assert float(np.quantile(burst_s, 0.95)) > 0.4 or requests > 160
