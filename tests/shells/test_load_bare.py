import contextlib
import json
import os
import signal
import socket
import tempfile
import threading
from collections.abc import Iterable, Sequence
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchgate.errors import TargetError, UsageError
from benchgate.load.requests import prepare_requests, queued_in_file
from benchgate.load.results import StageResult, merged
from benchgate.load.scheduler import LEAD_UNITS, TAIL_UNITS
from benchgate.load.shards import Shard
from benchgate.load.standalone.options import LoadOptions
from benchgate.load.standalone.run import SyntheticRequests, describe, run_load_test, schedule_blocks_ns
from benchgate.load.workers import Fleet
from benchgate.model.deployment import Arm
from benchgate.model.metric import Slo
from benchgate.model.records import RequestColumns, RequestRecord, TokenSource
from benchgate.model.request import text_request
from benchgate.model.run import ClientUse
from benchgate.plan.model import PlannedRequest
from benchgate.report.load_result import render_load
from benchgate.report.screen import PLAIN
from benchgate.targets.dialect import DIALECTS, Target
from tests.fakes import quick_command
from tests.fakes.blocks import record
from tests.fakes.scripted_server import (
    CLOSE,
    DONE,
    LAST_CHUNK,
    Received,
    ScriptedServer,
    Step,
    answering,
    finish,
    json_response,
    role_event,
    stream_head,
    token,
    usage,
)
from tests.shells.load_helpers import WHOLE

METRICS = ("ttft_s", "ttft_sent_s", "ttfot_s", "tpot_s", "itl_s", "e2e_s", "send_lag_s")


def counts(scheduled: int, ok: int, ramp: int, ramp_failed: int = 0, **failed: int) -> dict[str, Any]:
    return {
        "warmup": 0,
        "scheduled": scheduled,
        "ok": ok,
        "ramp": ramp,
        "ramp_failed": ramp_failed,
        "failed_by_class": failed,
    }


def bare(url: str, **options: Any) -> dict[str, Any]:
    options = {"url": url, "model": "scripted", "engine": "openai", "workers": "1", "warmup": "0", **options}
    document = run_load_test(LoadOptions.parse(**options))
    restored: dict[str, Any] = json.loads(json.dumps(document, allow_nan=False))
    return restored


@pytest.fixture
def punctual(monkeypatch: pytest.MonkeyPatch) -> None:
    """A client that is never the bottleneck, whatever else this machine is doing."""
    monkeypatch.setattr("benchgate.load.standalone.run.saturation_reasons", lambda use, columns, rate: ())


def test_document_holds_options_and_measurements() -> None:
    paced: list[Step] = [step for word in "abcd" for step in (token(word), 0.01)]
    steps = [stream_head() + role_event(), *paced, finish("length") + usage(7, 4) + DONE + LAST_CHUNK]
    with ScriptedServer(lambda received: steps) as server:
        document = bare(server.url, concurrency=3, requests=12, input_tokens=7, output_tokens=4)
        ramp = document["requests"]["ramp"]
        assert len({received.prompt for received in server.requests}) == len(server.requests) == 12 + ramp
        assert {len(received.prompt.split()) for received in server.requests} == {7}
    assert document["requests"] == counts(12, 12, ramp)
    assert 3 <= ramp <= 3 * (LEAD_UNITS + TAIL_UNITS + 1)
    assert document["output_tokens"] == 48
    assert document["goodput_ratio"] == 1
    assert document["throughput"]["output_tokens_per_s"] == pytest.approx(48 / document["window_s"])
    assert document["throughput"]["requests_per_s"] == pytest.approx(12 / document["window_s"])
    for metric in METRICS:
        assert set(document[metric]) == {"n", "failed", "mean", "p50", "p90", "p95", "p99", "max"}
        assert document[metric]["n"] == (36 if metric == "itl_s" else 12)
        assert 0 <= document[metric]["p50"] <= document[metric]["p99"] <= document[metric]["max"]
    of_client = {"cpu_s", "cpu_us_per_token", "workers", "read_delay_s", "start_uncertainty_s", "unasked"}
    of_client |= {"saturated", "reasons", "remedy", "reconnects", "closed_early", "addresses", "clock_offset_s"}
    assert set(document["client"]) == of_client
    assert "verdict" not in document


def test_requests_sent_again_and_connections_closed_soon_are_counted() -> None:
    def unread(received: Received) -> Iterable[Step]:
        return [WHOLE] if len(closes.requests) % 2 else [CLOSE]  # every second one, which comes over a kept connection

    with ScriptedServer(unread) as closes:
        told = bare(closes.url, concurrency=1, requests=3)
    assert (told["requests"]["ok"], told["client"]["reconnects"], told["client"]["closed_early"]) == (3, 3, 0)
    with ScriptedServer(lambda received: [WHOLE, CLOSE]) as impatient:
        told = bare(impatient.url, rate="4/s", arrival="constant", requests=3)
    assert (told["requests"]["ok"], told["client"]["reconnects"]) == (3, 0)
    assert told["client"]["closed_early"] >= 2


def test_failures_stay_in_every_denominator_and_quantile() -> None:
    def respond(received: Received) -> Iterable[Step]:
        return [WHOLE] if len(server.requests) % 4 else [json_response({"error": "busy"}, status=503)]

    with ScriptedServer(respond) as server:
        document = bare(server.url, concurrency=1, requests=20)
    assert document["requests"] == counts(20, 15, 1, http_5xx=5)
    assert document["failures"] == [{"count": 5, "class": "http_5xx", "detail": "HTTP 503: busy"}]
    assert document["goodput_ratio"] == 0.75
    ttft = document["ttft_s"]
    assert (ttft["n"], ttft["failed"], ttft["mean"]) == (20, 5, None)
    assert ttft["p50"] > 0
    assert (ttft["p90"], ttft["p99"], ttft["max"]) == (None, None, None)


def test_open_loop_for_a_time_schedules_by_its_rate() -> None:
    with ScriptedServer(answering(lambda received: "a b")) as server:
        document = bare(server.url, rate="100/s", arrival="constant", duration="200ms")
        assert len(server.requests) == 20
    assert document["requests"]["scheduled"] == 20
    assert document["load"]["rate_rps"] == 100


def test_closed_loop_for_a_time_counts_its_requests() -> None:
    with ScriptedServer(answering(lambda received: "a b")) as server:
        document = bare(server.url, concurrency=2, duration="200ms")
        assert document["requests"]["scheduled"] > 2
        assert document["requests"]["scheduled"] + document["requests"]["ramp"] == len(server.requests)
        assert len({received.prompt for received in server.requests}) == len(server.requests)
    assert document["requests"]["ok"] == document["requests"]["scheduled"]


def test_dead_server_is_refused_before_a_warm_up_is_sent() -> None:
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        with pytest.raises(TargetError, match="cannot be reached: Connection refused; start the server, or correct"):
            bare(f"http://127.0.0.1:{bound.getsockname()[1]}", concurrency=2, duration="60s", slo="ttft=1s")
    with pytest.raises(TargetError, match="cannot be reached: No such file or directory"):
        bare("unix:/nowhere/serving.sock", concurrency=2, duration="60s")


def test_closed_loop_for_a_time_against_a_server_that_hangs_up_ends() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        hanging = threading.Thread(target=_hang_up, args=(listening,), daemon=True)
        hanging.start()
        url = f"http://127.0.0.1:{listening.getsockname()[1]}"
        document = bare(url, concurrency=2, duration="1s", slo="ttft=1s", warmup="0")
    assert document["requests"]["ok"] == 0
    # Closed before the request is sent, there was no server; closed after it, the server failed.
    assert (document["verdict"]["outcome"], document["verdict"]["exit_code"]) in {("INVALID", 12), ("BLOCK", 10)}


def _hang_up(listening: socket.socket) -> None:
    with contextlib.suppress(OSError):  # the test is over
        while True:
            listening.accept()[0].close()


def test_two_workers_send_the_same_requests_as_one() -> None:
    prompts = []
    for workers in ("1", "2"):
        with ScriptedServer(answering(lambda received: "a b c")) as server:
            document = bare(server.url, concurrency=4, requests=10, workers=workers, salt=8)
            prompts.append({received.prompt for received in server.requests})
        ramp = document["requests"]["ramp"]
        assert document["requests"] == counts(10, 10, ramp)
        assert len(prompts[-1]) == 10 + ramp
        assert document["client"]["workers"] == int(workers)
    planned = LoadOptions.parse(url="http://a", model="m", engine="openai", concurrency=4, requests=10, salt=8)
    measured = {request.ask.prompt for request in SyntheticRequests(planned)}
    assert [measured <= sent for sent in prompts] == [True, True]


def verdict_of(good: Sequence[bool]) -> Any:
    """Return the verdict on a load with these outcomes of its requests, in the order they were sent."""
    options = LoadOptions.parse(
        url="http://a", model="m", engine="openai", concurrency=1, requests=len(good), slo="e2e=60s"
    )
    columns = RequestColumns.pack([record(index, 0.01 if fine else None) for index, fine in enumerate(good)])
    result = StageResult.of(columns, float(len(good)), ClientUse(cpu_s=0.05, wall_s=len(good), workers=1))
    return describe(options, "openai", result, partial=False, warmup=0)["verdict"]


@pytest.mark.parametrize(
    ("good_of_200", "outcome", "exit_code"),
    [(200, "PASS", 0), (190, "INCONCLUSIVE", 11), (150, "BLOCK", 10), (0, "BLOCK", 10)],
)
def test_verdict_follows_from_the_share_of_good_requests(good_of_200: int, outcome: str, exit_code: int) -> None:
    # the bad ones are spread evenly
    verdict = verdict_of([(i + 1) * good_of_200 // 200 > i * good_of_200 // 200 for i in range(200)])
    assert verdict["method"] == "korn_graubard over 10 blocks"
    assert (verdict["outcome"], verdict["exit_code"]) == (outcome, exit_code)
    assert f"{good_of_200} of 200" in verdict["reason"]
    assert verdict["goodput_lower"] <= good_of_200 / 200 <= verdict["goodput_upper"]


def test_one_bad_moment_shows_less_than_as_many_misses_spread_over_the_window() -> None:
    """30 of 200 are bad: enough for a breach if they were independent, but they came in one burst."""
    verdict = verdict_of([not 40 <= number < 70 for number in range(200)])
    assert "170 of 200" in verdict["reason"]
    assert verdict["outcome"] == "INCONCLUSIVE"
    assert verdict["goodput_upper"] > 0.95
    assert verdict["requests_needed"] > 200


@pytest.mark.parametrize(
    ("requests", "method"),
    [(9, "clopper_pearson"), (10, "korn_graubard over 2 blocks"), (70, "korn_graubard over 10 blocks")],
)
def test_verdict_names_its_method(requests: int, method: str) -> None:
    verdict = verdict_of([True] * requests)
    assert verdict["method"] == method
    assert verdict["goodput_lower"] == pytest.approx(0.05 ** (1 / requests))  # none missed: nothing depends
    assert verdict["requests_needed"] == (None if requests == 70 else 59)  # 0.95 ** 59 is the first power below 5 %
    assert verdict["reason"].endswith("about 59 in all would do") == (requests < 59)


@pytest.mark.usefixtures("punctual")
def test_enough_good_answers_pass() -> None:
    with ScriptedServer(lambda received: [WHOLE]) as server:
        document = bare(server.url, concurrency=1, requests=70, slo="e2e=60s")
    assert (document["verdict"]["outcome"], document["verdict"]["exit_code"]) == ("PASS", 0)
    assert "70 of 70" in document["verdict"]["reason"]


@pytest.mark.parametrize("load", [{"concurrency": 2}, {"rate": "50/s", "arrival": "constant"}])
@pytest.mark.usefixtures("punctual")
def test_server_that_dies_half_way_gives_no_verdict(load: dict[str, Any]) -> None:
    def respond(received: Received) -> Iterable[Step]:
        if len(server.requests) == 50:
            server.stop()
        return [0.01, WHOLE]

    with ScriptedServer(respond) as server:
        document = bare(server.url, **load, duration="3s", slo="e2e=60s")
    assert document["requests"]["ok"] > 0
    assert 0 < document["down_after_s"] < 3
    verdict = document["verdict"]
    assert (verdict["outcome"], verdict["exit_code"]) == ("INVALID", 12)
    assert "the server stopped accepting connections after" in verdict["reason"]
    assert verdict["reason"].endswith("of 3.00 s")
    assert (verdict["goodput_lower"], verdict["goodput_upper"], verdict["method"]) == (None, None, None)


@pytest.mark.usefixtures("punctual")
def test_slow_answers_are_not_good() -> None:
    with ScriptedServer(lambda received: [0.05, WHOLE]) as server:
        document = bare(server.url, concurrency=8, requests=80, slo="ttft=10ms")
    assert document["requests"]["ok"] == 80
    assert document["goodput_ratio"] == 0
    assert document["verdict"]["outcome"] == "BLOCK"


def test_saturated_client_gives_no_verdict_on_the_server(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("benchgate.load.standalone.run.saturation_reasons", lambda use, columns, rate: ("too busy",))
    with ScriptedServer(lambda received: [WHOLE]) as server:
        document = bare(server.url, concurrency=1, requests=10, slo="ttft=60s")
    assert (document["client"]["saturated"], document["client"]["reasons"]) == (True, ["too busy"])
    assert document["verdict"]["outcome"] == "INVALID"
    assert "too busy; lower the load" in document["verdict"]["reason"]


@pytest.mark.parametrize(("answered", "options"), [(5, {}), (0, {"slo": "ttft=60s"}), (5, {"workers": "2"})])
def test_interrupted_load_keeps_answered_requests(answered: int, options: dict[str, Any]) -> None:
    order = count()

    def respond(received: Received) -> Iterable[Step]:
        number = next(order)  # two requests may come at once
        if number < answered:
            return [WHOLE]
        if number == answered:  # once: a second one would be a person who does not want to wait
            os.kill(os.getpid(), signal.SIGINT)
        return [30.0]

    with ScriptedServer(respond) as server:
        document = bare(server.url, concurrency=2, requests=10, **options)
    assert (document["partial"], document["client"]["cpu_s"]) == (True, None)
    good = document["requests"]["ok"] + document["requests"]["ramp"] - document["requests"]["ramp_failed"]
    assert good in range(max(0, answered - 1), answered + 1)
    assert set(document["requests"]["failed_by_class"]) == set()
    client = document["client"]
    assert (client["saturated"], client["reasons"], client["remedy"]) == (None, [], None)
    shown = "client      not known to keep up" in render_load(document, PLAIN)
    assert shown == (document["requests"]["scheduled"] > 0)
    assert "slo" not in options or document["verdict"]["reason"] == "the load was interrupted"


def test_interrupted_load_prints_its_document_and_exits_with_130(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def interrupt(fleet: Fleet, stage: Shard) -> StageResult:
        raise KeyboardInterrupt

    monkeypatch.setattr(Fleet, "run", interrupt)
    with ScriptedServer(lambda received: [WHOLE]) as server:
        said = ["load", server.url, "--model", "m", "--engine", "openai", "--concurrency", "1", "--requests", "2"]
        result = quick_command.told(*said, "--workers", "1", "--json", str(tmp_path / "kept.json"), "--format", "json")
    assert result.exit_code == 130
    assert json.loads(result.stdout)["partial"] is True
    assert json.loads((tmp_path / "kept.json").read_text())["requests"]["scheduled"] == 0


@pytest.mark.usefixtures("punctual")
@pytest.mark.parametrize(("found", "code"), [([{"index": 0, "embedding": [0.5]}], 0), ([], 12)])
def test_answers_in_numbers_are_successes_without_a_token(found: list[object], code: int) -> None:
    with ScriptedServer(lambda received: [json_response({"object": "list", "data": found})]) as server:
        said = ["load", server.url, "--model", "scripted", "--engine", "openai", "--endpoint", "embeddings"]
        result = quick_command.told(
            *said, "--concurrency", "1", "--requests", "2", "--workers", "1", "--format", "json"
        )
    assert result.exit_code == code, result.stderr
    assert (f"no request to {server.url}/v1/embeddings succeeded: " in result.stderr) == (code != 0)
    document = json.loads(result.stdout)
    assert document["throughput"]["output_tokens_per_s"] is document["load"]["output_tokens"] is None
    assert "output_throughput" not in {row["name"] for row in document["metrics"]}
    assert "2 requests; 100 tokens in\n" in render_load(document, PLAIN)


@pytest.mark.parametrize("slo", [[], ["--slo", "ttft=60s"]], ids=["no bound", "slo"])
def test_saturated_client_is_reported_and_is_no_success(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, slo: list[str]
) -> None:
    monkeypatch.setattr("benchgate.load.standalone.run.saturation_reasons", lambda use, columns, rate: ("too busy",))
    kept = tmp_path / "result.json"
    with ScriptedServer(lambda received: [WHOLE]) as server:
        said = ["load", server.url, "--model", "scripted", "--engine", "openai", "--concurrency", "1"]
        said += ["--requests", "2", "--workers", "1", "--json", str(kept), "--format", "json"]
        result = quick_command.told(*said, *slo)
    assert result.exit_code == 12
    assert "the client was the bottleneck: too busy; lower the load, or give" in result.stderr
    assert "benchgate doctor" in result.stderr
    assert json.loads(result.stdout) == json.loads(kept.read_text())


def test_key_never_comes_to_the_disk(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    kept = tmp_path / "tickets"
    monkeypatch.setattr(tempfile, "TemporaryFile", lambda **_: kept.open("w+b"))
    target = Target(Arm.CANDIDATE, "http://127.0.0.1:9", "m", DIALECTS["openai"], "sk-very-secret")
    planned = [PlannedRequest(i, i * 10 or None, text_request("chat", "hello " * i, 4), 1) for i in range(12)]
    tickets = list(prepare_requests(target, planned))
    assert all(b"sk-very-secret" in ticket.wire for ticket in tickets)
    with queued_in_file(tmp_path, tickets) as given_back:
        assert list(given_back) == tickets
        written = kept.read_bytes()
    assert b"hello hello" in written
    assert b"sk-very-secret" not in written


def test_engine_is_detected_by_the_owner_of_the_model() -> None:
    def respond(received: Received) -> Iterable[Step]:
        if received.method == "GET":
            return [json_response({"data": [{"id": "m", "owned_by": "llamacpp"}]})]
        return [WHOLE]

    with ScriptedServer(respond) as server:
        document = bare(server.url, engine="auto", concurrency=1, requests=1)
        assert server.requests[-1].body is not None
        assert server.requests[-1].body["ignore_eos"] is True
    assert document["engine"] == "llamacpp"


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"rate": "8/s"}, "exactly one of --concurrency"),
        ({"concurrency": None}, "exactly one of --concurrency"),
        ({"duration": "1s"}, "exactly one of --requests"),
        ({"requests": 0}, "--requests is 0"),
        ({"concurrency": None, "rate": "fast"}, "--rate"),
        ({"duration": "5", "requests": None}, "--duration"),
        ({"concurrency": None, "rate": "8/s", "arrival": "posson"}, "--arrival: 'posson' is not an arrival process"),
        ({"concurrency": None, "rate": "8/s", "arrival": "gamma:-1"}, "--arrival: 'gamma:-1' is not an arrival"),
        ({"arrival": "poisson"}, "--arrival means nothing without --rate"),
        ({"speed": 2.0}, "--speed means nothing without --trace"),
        (
            {
                "concurrency": None,
                "rate": "1/s",
                "requests": None,
                "duration": "5s",
                "ramp_to": "8/s",
                "service_time": "1s",
            },
            "--ramp-to has none; leave it out",
        ),
        ({"engine": "vlm"}, "did you mean 'vllm'"),
        ({"endpoint": "chats"}, "did you mean 'chat'"),
        ({"slo": "tftt=1s"}, "did you mean 'ttft'"),
        ({"slo": "ttft=1"}, "--slo"),
        ({"slo": "ttft=1s,ttft=2s"}, "--slo"),
        ({"slo": "tpot=1ms", "endpoint": "embeddings"}, "embeddings answers whole; write ttft or e2e"),
        ({"workers": "many"}, "--workers"),
        ({"seed": -1}, "--seed"),
        ({"url": "localhost"}, "not the address of a server"),
    ],
)
def test_wrong_options_are_refused_with_a_remedy(wrong: dict[str, Any], said: str) -> None:
    options = {"url": "http://127.0.0.1:1", "model": "m", "concurrency": 2, "requests": 4, **wrong}
    with pytest.raises(UsageError, match=said):
        LoadOptions.parse(**options)


def test_options_are_read_in_human_units() -> None:
    options = LoadOptions.parse(
        url="http://h:1/", model="m", rate="30/m", arrival="gamma:2.5", duration="2m", slo="ttft=500ms, tpot=80ms"
    )
    assert (options.url, options.rate_rps, options.duration_s) == ("http://h:1", 0.5, 120)
    assert (options.arrival.process, options.arrival.cv) == ("gamma", 2.5)
    assert options.slo == Slo(ttft_s=0.5, tpot_s=0.08)
    assert LoadOptions.parse(url="http://h", model="m", rate="8", requests=1).rate_rps == 8


def test_schedule_fills_the_duration_and_no_more() -> None:
    options = LoadOptions.parse(url="http://h", model="m", rate="50/s", arrival="gamma:4", duration="20s")
    offsets = np.concatenate(list(schedule_blocks_ns(options, 50.0)))
    assert (np.diff(offsets) >= 0).all()
    assert offsets[-1] <= 20e9
    assert 500 < len(offsets) < 1700  # 1000 expected, and bursty


def test_merged_workers_are_one_stage() -> None:
    def part(*indexes: int, window_s: float, down_after_s: float | None = None) -> StageResult:
        records = [
            RequestRecord(i, i, i, tuple(range(i, 2 * i)), 2 * i, 1, i, TokenSource.USAGE, "stop", 200, None, None)
            for i in indexes
        ]
        client = ClientUse(cpu_s=1, wall_s=window_s, workers=1)
        return StageResult.of(RequestColumns.pack(records), window_s, client, down_after_s)

    whole = merged([part(1, 3, window_s=2), part(2, window_s=3, down_after_s=2.5), part(window_s=0, down_after_s=1.5)])
    assert whole.requests.index.tolist() == [1, 2, 3]
    assert whole.requests.chunk_start.tolist() == [0, 1, 3, 6]
    assert whole.requests.chunk_ns.tolist() == [1, 2, 3, 3, 4, 5]
    assert whole.window_s == pytest.approx(3.000000001)
    assert whole.client == ClientUse(cpu_s=3, wall_s=3, workers=3)
    assert whole.down_after_s == 1.5
    assert merged([part(1, window_s=1)]).down_after_s is None
