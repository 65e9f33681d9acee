"""Runs and load tests on servers that are slow at first: how long they are warmed up, and what is learned from it."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from benchgate.load.results import StageResult
from benchgate.load.shards import Shard
from benchgate.load.standalone.options import LoadOptions
from benchgate.load.standalone.run import run_load_test
from benchgate.load.standalone.search import SearchOptions, run_search
from benchgate.load.warmup import MOST_ROUNDS, mean_service_s
from benchgate.load.workers import Fleet
from benchgate.model.deployment import Arm
from benchgate.pipeline.judge import Decision
from benchgate.pipeline.progress import Progress
from benchgate.pipeline.run import RunOptions, run_suite
from benchgate.sim.process import Sim, serve_sim
from benchgate.sim.settings import sim_settings
from benchgate.suite.loader import parse_suite
from tests.fakes.scripted_server import Received, ScriptedServer, Step, answering, json_response

pytestmark = pytest.mark.beside  # its client may be late: what is asked of it is no time

SUITE = """
suite: warm
deployments:
  plain: {url: "PLAIN", model: sim}
  other: {url: "OTHER", model: sim}
baseline: plain
candidate: other
load:
  workload: {input: 8 tokens, output: 4 tokens}
  blocks: 2
  WARMUP
  SWEEP
slo: {ttft: 5s, target: 50%}
gate:
  allow_underpowered: true
  client: {send_lag_p99: 200ms, send_lag_max: 1s, read_delay_p99: 200ms, read_delay_max: 1s, cpu: 100%, achieved: 50%}
  checks: [{metric: error_rate, max: 50%}]
"""
C6 = "sweep: [{stage: c6, concurrency: 6, requests: 12}]"
QUICK = sim_settings(ttft_s=0.01, itl_s=0.002)
SLOW = sim_settings(ttft_s=0.02, itl_s=0.01)


@pytest.fixture(scope="module")
def quick() -> Iterator[tuple[Sim, Sim]]:
    """Two equal servers for all of these tests."""
    with serve_sim(QUICK) as plain, serve_sim(QUICK) as other:
        yield plain, other


class Told(Progress):
    """Watches a run."""

    def __init__(self) -> None:
        self.notes: list[str] = []
        self.steps: list[str] = []

    def step(self, done: str) -> None:
        """One step is done."""
        self.steps.append(done)

    def note(self, line: str) -> None:
        """Something is said."""
        self.notes.append(line)


Sent = tuple[Arm, int, list[float | None], StageResult]


@contextmanager
def fleets_watched(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Sent]]:
    """All that fleets send: to which arm, how many requests, by which service times, and what came back."""
    seen: list[Sent] = []
    run = Fleet.run

    def watched(fleet: Fleet, stage: Shard, *more: Any) -> StageResult:
        result = run(fleet, stage, *more)
        requests = sum(group.recorded for group in result.classes)
        seen.append((stage.target.arm, requests, [part.service_s for part in stage.parts], result))
        return result

    with monkeypatch.context() as patched:
        patched.setattr(Fleet, "run", watched)
        yield seen


def measured(
    folder: Path, monkeypatch: pytest.MonkeyPatch, plain: str, other: str, warmup: str = "auto", sweep: str = C6
) -> tuple[Decision, Told, list[Sent]]:
    text = SUITE.replace("PLAIN", plain).replace("OTHER", other)
    text = text.replace("WARMUP", f"warmup: {warmup}").replace("SWEEP", sweep)
    if "sweep" not in sweep:
        text = text.replace("metric: error_rate, max: 50%", "metric: capacity, margin: 60%")
    told = Told()
    options = RunOptions(store=str(folder / "warm.db"), work_dir=folder / "work")
    with fleets_watched(monkeypatch) as sent:
        decision = run_suite(parse_suite(text, "warm.yaml"), folder, options, told)
    return decision, told, sent


def warmup_of(sent: list[Sent], arm: Arm, measured_stages: int = 2) -> list[Sent]:
    """The rounds of one arm: all that was sent to it before its blocks."""
    return [one for one in sent if one[0] is arm][:-measured_stages]


def test_a_run_warms_each_arm_up_by_its_own_answers_and_learns_its_service_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The candidate is slow for its first 8 requests: after the first round of 12 its TTFT still fell."""
    answered = 0

    def warming(received: Received) -> Iterable[Step]:
        nonlocal answered
        answered += bool((received.body or {}).get("stream"))
        return answering(lambda _: "one two three four", after_s=0.5 if answered <= 8 else 0.01)(received)

    with (
        ScriptedServer(answering(lambda _: "one two three four", after_s=0.01)) as plain,
        ScriptedServer(warming) as other,
    ):
        decision, told, sent = measured(tmp_path, monkeypatch, plain.url, other.url)
    rounds = {arm: warmup_of(sent, arm) for arm in Arm}
    assert all(requests == 12 for one in rounds.values() for _, requests, _, _ in one)
    assert len(rounds[Arm.CANDIDATE]) >= 2
    for arm, of_arm in rounds.items():
        assert of_arm[0][2] == [None]
        learned = [mean_service_s(result.requests) for *_, result in of_arm]
        first_block = [one for one in sent if one[0] is arm][len(of_arm)]
        assert first_block[2] == [learned[-1]]  # of the last round
        second_block = [one for one in sent if one[0] is arm][-1]
        assert second_block[2] == [mean_service_s(first_block[3].requests)]  # refreshed by what was measured
    assert [one for one in told.steps if one.startswith("warm-up")] == [
        "warm-up c6 on baseline", "warm-up c6 on candidate",
    ]  # fmt: skip
    assert {len(one.requests) for one in decision.evidence.load} == {12}
    assert len(decision.evidence.load) == 4  # nothing of the warm-up is stored


def test_both_arms_of_an_open_loop_are_given_the_larger_service_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, quick: tuple[Sim, Sim]
) -> None:
    with serve_sim(SLOW) as slow:
        rates = "sweep: [{stage: r80, rate: 80/s, requests: 12}, {stage: c2, concurrency: 2, requests: 8}]"
        *_, sent = measured(tmp_path, monkeypatch, quick[0].url, slow.url, "12", rates)
    by_stage = {"r80": [sent[0], sent[1], sent[4], sent[5]], "c2": [sent[2], sent[3], sent[6], sent[7]]}
    for stage, (baseline, candidate, first, second) in by_stage.items():
        learned = {one[0]: mean_service_s(one[3].requests) or 0.0 for one in (baseline, candidate)}
        assert min(learned.values()) > 0
        most = max(learned[Arm.BASELINE], learned[Arm.CANDIDATE])
        assert most == learned[Arm.CANDIDATE]
        for arm, _, given, _ in (first, second):
            assert given == [most if stage == "r80" else learned[arm]], (stage, arm)


def test_open_class_begins_on_both_arms_when_the_slower_arm_has_filled_the_closed_class_beside_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, quick: tuple[Sim, Sim]
) -> None:
    classes = "{people: {rate: 80/s, requests: 12, ramp: 0}, batch: {concurrency: 2, requests: 8}}"
    with serve_sim(SLOW) as slow:
        stage = f"sweep: [{{stage: mix, classes: {classes}}}]"
        *_, sent = measured(tmp_path, monkeypatch, quick[0].url, slow.url, "12", stage)
    by_class = [{group.name: group.requests for group in result.classes} for *_, result in sent[:4]]
    served_s = [mean_service_s(groups["batch"]) or 0.0 for groups in by_class[:2]]
    begins_s = [(groups["people"].intended_ns * 1e-9).tolist() for groups in by_class[2:]]
    assert served_s[0] < served_s[1]
    assert begins_s[0] == begins_s[1]
    assert begins_s[0][0] >= 2 * served_s[1]


def test_a_warm_up_of_a_number_is_sent_once_and_none_learns_from_the_blocks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, quick: tuple[Sim, Sim]
) -> None:
    plain, other = quick
    *_, sent = measured(tmp_path, monkeypatch, plain.url, other.url, "3")
    assert [requests for _, requests, _, _ in sent[:2]] == [3, 3]
    assert [requests >= 12 for _, requests, _, _ in sent[2:]] == [True] * 4  # the ramp beside the measured ones
    *_, sent = measured(tmp_path, monkeypatch, plain.url, other.url, "0")
    assert [requests >= 12 for _, requests, _, _ in sent] == [True] * 4
    assert [given for _, _, given, _ in sent[:2]] == [[None], [None]]
    assert all(given != [None] for _, _, given, _ in sent[2:])


def test_a_search_without_a_sweep_warms_up_at_the_level_of_its_first_look(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, quick: tuple[Sim, Sim]
) -> None:
    search = "capacity: {over: concurrency, from: 6, to: 8, resolution: 50%, probe: 40 requests}"
    plain, other = quick
    decision, told, sent = measured(tmp_path, monkeypatch, plain.url, other.url, "auto", search)
    assert [one for one in told.steps if one.startswith("warm-up")] == [
        "warm-up capacity on baseline", "warm-up capacity on candidate",
    ]  # fmt: skip
    assert sent[0][1:3] == (12, [None])
    looked = [given for _, _, given, _ in sent[-len(decision.evidence.load) :]]
    assert [None] not in looked
    prompts_seen = sum(requests for _, requests, _, _ in sent)
    assert prompts_seen > sum(len(one.requests) for one in decision.evidence.load)


def bare(url: str, **more: Any) -> tuple[dict[str, Any], list[str]]:
    told: list[str] = []
    asked = {"url": url, "model": "sim", "engine": "openai", "workers": "1", "output_tokens": 4, **more}
    document = run_load_test(LoadOptions.parse(**asked), told.append)
    return json.loads(json.dumps(document)), told


def test_load_goes_on_until_a_model_that_loads_is_loaded_and_no_figure_knows_of_it() -> None:
    loading = sim_settings(ttft_s=0.01, itl_s=0.001, load_time_s=1.0)
    with serve_sim(loading) as server:
        document, told = bare(server.url, concurrency=6, requests=20)
        seen = server.truth()["requests"]
    assert told == []
    sent = document["requests"]["warmup"]
    assert sent >= 24  # of the first 12 the first six waited for the model
    assert sent % 12 == 0
    assert (document["requests"]["scheduled"], document["requests"]["ok"], document["ttft_s"]["n"]) == (20, 20, 20)
    assert seen == sent + document["requests"]["ramp"] + 20
    assert document["ttft_s"]["max"] < 1


def test_load_fills_a_batch_twice_before_it_measures_and_sends_fresh_prompts() -> None:
    with ScriptedServer(answering(lambda received: "one two", after_s=0.02)) as server:
        document, _ = bare(server.url, concurrency=16, requests=16)
        prompts = [received.prompt for received in server.requests]
    assert document["requests"]["warmup"] >= 32
    counts = document["requests"]
    assert len(set(prompts)) == len(prompts) == counts["warmup"] + counts["ramp"] + 16


@pytest.mark.parametrize("warmup", ["0", "5"])
def test_load_sends_the_number_that_is_asked_for(warmup: str) -> None:
    with ScriptedServer(answering(lambda received: "one two")) as server:
        document, _ = bare(server.url, concurrency=2, requests=4, warmup=warmup)
        assert len(server.requests) == int(warmup) + document["requests"]["ramp"] + 4
    assert document["requests"]["warmup"] == int(warmup)


def test_load_asks_a_server_that_refuses_one_round_and_says_so() -> None:
    with ScriptedServer(lambda _: [json_response({}, status=503)]) as server:
        document, told = bare(server.url, concurrency=4, requests=4)
    assert told == [f"warm-up: no request of the last round succeeded ({document['requests']['warmup']} sent)"]
    assert document["requests"]["warmup"] <= 8
    assert document["requests"]["ok"] == 0


def test_load_is_warmed_up_five_rounds_at_most() -> None:
    """Every request is answered sooner than the one before, for longer than any warm-up."""
    count = 0

    def hastening(received: Received) -> Iterable[Step]:
        nonlocal count
        count += 1
        return answering(lambda _: "one two", after_s=0.15 * 0.95**count)(received)

    with ScriptedServer(hastening) as server:
        document, told = bare(server.url, concurrency=1, requests=4)
    sent = MOST_ROUNDS * 8
    assert document["requests"]["warmup"] == sent
    assert told == [f"warm-up: TTFT still fell after {MOST_ROUNDS} rounds ({sent} requests); the measurement begins"]


def test_load_warms_a_trace_up_with_its_first_rows(tmp_path: Path) -> None:
    trace = tmp_path / "day.jsonl"
    trace.write_text(
        "".join(json.dumps({"timestamp": n / 50, "input_length": 3, "output_length": 4}) + "\n" for n in range(20))
    )
    with ScriptedServer(answering(lambda received: "one two three four")) as server:
        document, _ = bare(server.url, trace=str(trace), requests=20)
        assert len(server.requests) == 20 + document["requests"]["warmup"]
    assert 8 <= document["requests"]["warmup"] <= 8 * MOST_ROUNDS


def test_a_search_is_warmed_up_once_at_its_first_level(monkeypatch: pytest.MonkeyPatch) -> None:
    slots = sim_settings(prefill_s=0.0001, decode_s=0.001, batch=4)
    given: dict[str, Any] = {"target": "50%", "resolution": "50%", "probe": 40, "budget": None, "least": None}
    with serve_sim(slots) as server, fleets_watched(monkeypatch) as sent:
        load: dict[str, Any] = {"url": server.url, "model": "sim", "engine": "openai", "slo": "ttft=5s", "workers": "1"}
        load |= {"input_tokens": 8, "output_tokens": 8}
        asked = SearchOptions.parse(over="concurrency", lowest="6", highest="8", load=load, **given)
        document: Any = run_search(asked)
        seen = server.truth()["requests"]
    rounds = document["requests_warmup"] // 12
    assert rounds >= 1
    assert [requests for _, requests, _, _ in sent[:rounds]] == [12] * rounds
    assert seen == sum(requests for _, requests, _, _ in sent) > document["requests_warmup"]
    assert sent[0][1:3] == (12, [None])
    assert sent[-1][2] != [None]


def test_a_warm_up_that_is_interrupted_leaves_no_figure() -> None:
    def respond(received: Received) -> Iterable[Step]:
        if len(server.requests) == 5:
            os.kill(os.getpid(), signal.SIGINT)
        return [30.0] if len(server.requests) >= 5 else answering(lambda _: "one two")(received)

    with ScriptedServer(respond) as server:
        document, _ = bare(server.url, concurrency=2, requests=10)
    assert document["partial"] is True
    nothing = {"scheduled": 0, "ok": 0, "ramp": 0, "ramp_failed": 0, "failed_by_class": {}}
    assert document["requests"] == {"warmup": None, **nothing}
    assert (document["ttft_s"]["n"], document["goodput_ratio"], document["output_tokens"]) == (0, None, 0)
