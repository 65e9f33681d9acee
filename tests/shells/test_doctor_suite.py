"""`doctor SUITE`: what a suite's deployments and plan lack, each with its remedy, and no secret anywhere."""

from __future__ import annotations

import json
import os
import resource
import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, replace
from email.utils import formatdate
from pathlib import Path
from typing import Any

import pytest

from benchgate.doctor import machine
from benchgate.doctor import suite as suite_checks
from benchgate.doctor.machine import State, Symptom, examine_resources, examine_store_file
from benchgate.doctor.suite import examine_deployments
from benchgate.pipeline.forecast import preview_suite
from benchgate.store.repository import Store
from benchgate.suite.loader import parse_suite
from benchgate.suite.schema import Suite
from tests.e2e.command import here
from tests.fakes.certificates import CA, serving
from tests.fakes.scripted_server import (
    DONE,
    LAST_CHUNK,
    Received,
    ScriptedServer,
    Step,
    answering,
    event,
    finish,
    json_response,
    role_event,
    stream_head,
    token,
    usage,
)

KEY = "sk-0123456789abcdef"
TASKS = Path(__file__).parents[2] / "suites"
SUITE = """\
suite: looked-at
deployments:
  old: {{url: "{old}", model: scripted, engine: openai{more}}}
  new: {{sim: {{}}}}
baseline: old
candidate: new
load:
  workload: {{input: 8 tokens, output: 4 tokens}}
  sweep: [{{stage: c4, concurrency: {concurrency}, requests: 60}}]
gate: {{checks: [{{metric: error_rate, max: 10%}}]}}
"""
METRICS = b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%b"
PAGE = b'vllm:num_requests_running{model_name="scripted"} 0\n'


def suite_of(url: str, more: str = "", concurrency: int = 4) -> Suite:
    return parse_suite(SUITE.format(old=url, more=more, concurrency=concurrency), "suite.yaml")


def found_of(suite: Suite, environment: dict[str, str] | None = None) -> dict[str, Symptom]:
    symptoms = list(examine_deployments(suite, Path(), environment or {}, within_s=2))
    assert all((symptom.state is State.OK) == (symptom.remedy is None) for symptom in symptoms)
    assert not any(KEY in f"{symptom.found}{symptom.remedy}" for symptom in symptoms)
    return {symptom.name: symptom for symptom in symptoms}


def sound(received: Received) -> Iterator[Step]:
    """A server with a page of metrics beside its answers."""
    if received.path == "/metrics":
        yield METRICS % (len(PAGE), PAGE)
    else:
        yield from answering(lambda asked: "one two three four")(received)


def test_sound_deployment_is_asked_a_handful_of_times_and_one_of_ours_never() -> None:
    with ScriptedServer(sound) as server:
        found = found_of(suite_of(server.url))
    assert {name: symptom.state for name, symptom in found.items()} == dict.fromkeys(
        ("old chat", "old stream", "old metrics", "new"), State.OK
    )
    assert [received.method for received in server.requests].count("POST") == 2
    assert len(server.requests) <= 8
    assert "a run starts itself" in found["new"].found


def test_list_of_models_that_a_key_may_not_read_is_not_needed() -> None:
    def respond(received: Received) -> Iterator[Step]:
        if received.path == "/v1/models":
            yield json_response({"error": {"message": "missing scope model.read"}}, status=403)
        else:
            yield from sound(received)

    with ScriptedServer(respond) as server:
        found = found_of(suite_of(server.url))
    assert {symptom.state for symptom in found.values()} == {State.OK}, found


def test_another_models_name_in_the_answer_is_told_unless_it_is_declared() -> None:
    def named(name: str) -> Any:
        whole = {"model": name, "choices": [{"message": {"content": "a b"}, "finish_reason": "stop"}]}

        def respond(received: Received) -> Iterator[Step]:
            asked = received.body is not None and not received.body.get("stream")
            yield from [json_response({**whole, "usage": {"completion_tokens": 2}})] if asked else sound(received)

        return respond

    for name, more, state in (
        ("small", "", State.WARN),
        ("small", ", answers_as: [small]", State.OK),
        ("org/scripted", "", State.OK),
    ):
        with ScriptedServer(named(name)) as server:
            found = found_of(suite_of(server.url, more))["old chat"]
        assert found.state is state, found
        if state is State.WARN:
            assert "as small instead of scripted" in found.found
            assert '`answers_as: ["small"]`' in (found.remedy or "")


def with_events(*steps: Step) -> Any:
    def respond(received: Received) -> Iterator[Step]:
        if received.body is not None and received.body.get("stream"):
            yield from (stream_head(), role_event(), *steps)
        else:
            yield from sound(received)

    return respond


ONE_PIECE = event({"choices": [{"delta": {"content": "one two three four"}, "finish_reason": None}]})


@pytest.mark.parametrize(
    ("steps", "state", "says"),
    [
        ([ONE_PIECE, finish("stop"), usage(3, 4), DONE, LAST_CHUNK], State.WARN, "4 tokens came in one piece"),
        ([token("a"), token("b"), finish("stop"), DONE, LAST_CHUNK], State.WARN, "without `usage`"),
        ([token("a"), token("b"), usage(3, 2), DONE, LAST_CHUNK], State.FAIL, "without a finish reason"),
        ([DONE, LAST_CHUNK], State.FAIL, "without any output"),
    ],
)
def test_stream_that_would_spoil_a_run_is_told(steps: list[Step], state: State, says: str) -> None:
    with ScriptedServer(with_events(*steps)) as server:
        found = found_of(suite_of(server.url))["old stream"]
    assert (found.state, says in found.found) == (state, True), found


@pytest.mark.parametrize(
    ("status", "body", "says", "remedy"),
    [
        (401, {"error": f"bad key {KEY}"}, "HTTP 401: bad key [redacted]", "api_key"),
        (404, {"error": {"message": "no such model"}}, "it serves another", "correct `model`"),
        (422, {"detail": "seed is not allowed"}, "seed is not allowed", "leave_out"),
        (200, {"choices": [{"message": {"content": "hi"}}]}, "without a finish reason", "counts as failed"),
    ],
)
def test_answer_that_is_none_fails_with_what_to_do(status: int, body: object, says: str, remedy: str) -> None:
    def respond(received: Received) -> Iterator[Step]:
        if received.path == "/v1/models":
            yield json_response({"data": [{"id": "another"}]})
        else:
            yield json_response(body, status=status)

    with ScriptedServer(respond) as server:
        found = found_of(suite_of(server.url, ', api_key: "${env:OLD_KEY}"'), {"OLD_KEY": KEY})
    assert found["old chat"].state is State.FAIL
    assert says in found["old chat"].found and remedy in (found["old chat"].remedy or "")
    assert "old stream" not in found
    assert [received.method for received in server.requests].count("POST") == 1


def test_clock_that_is_off_and_another_engine_than_the_suite_says_are_told() -> None:
    def respond(received: Received) -> Iterator[Step]:
        if received.path == "/v1/models":
            head, _, body = json_response({"data": [{"id": "scripted", "owned_by": "sglang"}]}).partition(b"\r\n\r\n")
            yield head + f"\r\nDate: {formatdate(time.time() - 60, usegmt=True)}\r\n\r\n".encode() + body
        else:
            yield from sound(received)

    with ScriptedServer(respond) as server:
        found = found_of(suite_of(server.url, ", metrics: off"))
    assert found["old clock"].state is State.WARN and "behind ours" in found["old clock"].found
    assert found["old engine"].state is State.WARN and "`engine: sglang`" in (found["old engine"].remedy or "")
    assert "old metrics" not in found


def test_certificate_is_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    with ScriptedServer(sound, tls=serving()) as server:
        url = f"https://localhost:{server.port}"
        good = found_of(suite_of(url, f', tls: {{ca: "{CA}"}}'))["old tls"]
        monkeypatch.setattr(suite_checks, "CERTIFICATE_DAYS", 1e6)
        ends = found_of(suite_of(url, f', tls: {{ca: "{CA}"}}'))["old tls"]
        strange = found_of(suite_of(url))["old"]
    assert (good.state, ends.state, strange.state) == (State.OK, State.WARN, State.FAIL)
    assert "renew it" in (ends.remedy or "") and "tls: {ca: FILE}" in (strange.remedy or "")


def test_page_of_metrics_that_is_none_is_warned_of_and_a_variable_that_is_not_set_fails() -> None:
    with ScriptedServer(answering(lambda asked: "one two")) as server:
        assert "metrics: off" in (found_of(suite_of(server.url))["old metrics"].remedy or "")
        unset = found_of(suite_of(server.url, ', api_key: "${env:OLD_KEY}"'))["old"]
    assert unset.state is State.FAIL and "OLD_KEY is not set" in unset.found


def test_pages_of_replicas_and_a_prometheus_are_looked_at() -> None:
    def respond(received: Received) -> Iterator[Step]:
        if received.path.startswith("/api/v1/query"):
            labels = ({"__name__": "vllm:num_requests_running", "instance": name} for name in "ab")
            is_range = "5B90s%5D" in received.path
            found = {"values": [[988.0, "0"]]} if is_range else {"value": [1000.0, "0"]}
            result = [{"metric": one, **found} for one in labels]
            kind = "matrix" if is_range else "vector"
            yield json_response({"status": "success", "data": {"resultType": kind, "result": result}})
        elif received.path == "/second":
            yield json_response({"detail": "Not Found"}, 404)
        else:
            yield from sound(received)

    with ScriptedServer(respond) as server:
        pages = found_of(suite_of(server.url, f", metrics: [{server.url}/metrics, {server.url}/second]"))
        source = f"{{prometheus: {server.url}, selector: '{{job=\"v\"}}'}}"
        scraped = found_of(suite_of(server.url, f", metrics: {source}"))["old metrics"]
    host = server.url.removeprefix("http://")
    assert pages[f"old metrics {host} #1"].state is State.OK
    assert "HTTP 404" in pages[f"old metrics {host} #2"].found
    assert scraped.found == "series of 2 replicas by the label `instance`, scraped 12.0 s ago"


def test_judge_and_similarity_of_a_shadow_comparison_are_asked_once_each() -> None:
    def respond(received: Received) -> Iterator[Step]:
        if received.path == "/v1/embeddings":
            yield json_response({"error": {"message": "no such model"}}, status=404)
        else:
            yield from sound(received)

    with ScriptedServer(respond) as server:
        shadow = f"""shadow:
  prompts: p.jsonl
  judge: {{url: "{server.url}/j", model: scripted, send_text: true, api_key: "${{env:JUDGE_KEY}}"}}
  similarity: {{url: "{server.url}", model: e, send_text: true}}
gate:"""
        text = SUITE.format(old="http://127.0.0.1:9", more="", concurrency=4).replace("gate:", shadow)
        suite = parse_suite(text.replace("10%}", "10%}, {metric: judge_loss, margin: 5 points}"), "suite.yaml")
        found = found_of(suite, {"JUDGE_KEY": KEY})
        unset = found_of(suite)
    assert found["judge"].state is State.FAIL  # there is nothing below /j
    assert found["similarity"].state is State.FAIL and "no such model" in found["similarity"].found
    assert "JUDGE_KEY is not set" in unset["judge"].found
    assert [received.path for received in server.requests] == [
        "/j/v1/chat/completions",
        "/v1/embeddings",
        "/v1/embeddings",
    ]


SEARCHED = """\
suite: searched
deployments: {old: {sim: {}}, new: {sim: {}}}
baseline: old
candidate: new
slo: {ttft: 1s}
load:
  workload: {input: 8 tokens, output: 4 tokens}
  capacity: {over: concurrency, from: 1, to: 5000, target: 95%}
gate: {checks: [{metric: capacity, margin: 20%}]}
"""


def plan_symptoms(suite: Suite, tmp_path: Path) -> dict[str, Symptom]:
    found = preview_suite(suite, tmp_path, str(tmp_path / "none.db"))
    return {symptom.name: symptom for symptom in suite_checks.examine_plan(suite, found)}


@pytest.mark.slow
def test_plan_that_needs_more_files_or_packages_than_there_are_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    suite = suite_of("http://a:1", concurrency=5000)
    monkeypatch.setattr(resource, "getrlimit", lambda which: (1024, 5300))
    assert plan_symptoms(suite, tmp_path)["files for streams"].state is State.OK
    monkeypatch.setattr(resource, "getrlimit", lambda which: (1024, 5200))
    assert plan_symptoms(suite, tmp_path)["files for streams"].state is State.FAIL
    text = SUITE.format(old="http://a:1", more="", concurrency=5000)
    shared = parse_suite(text.replace("load:\n", "load:\n  workers: 2\n"), "s")
    assert plan_symptoms(shared, tmp_path)["files for streams"].state is State.OK  # 2,500 streams each
    searched = parse_suite(SEARCHED, "s")
    assert plan_symptoms(searched, tmp_path)["files for streams"].state is State.FAIL
    embedded = parse_suite(SUITE.format(old="http://a:1", more="", concurrency=4).replace("sim", "embedded"), "s")
    assert plan_symptoms(embedded, tmp_path)["demo"].state is State.OK
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    lacks = plan_symptoms(embedded, tmp_path)["demo"]
    assert lacks.state is State.FAIL and "[demo]" in (lacks.remedy or "")


def test_load_beyond_this_client_and_data_that_is_not_here_are_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    suite = suite_of("http://a:1")
    found = preview_suite(suite, tmp_path, str(tmp_path / "none.db"))
    beyond = replace(found, problems=("c4 asks for more",), to_fetch=("gsm8k",), refused=("c4 cannot pass",))
    for variable in ("HF_HUB_OFFLINE", "HF_DATASETS_OFFLINE"):
        monkeypatch.delenv(variable, raising=False)
    states = {symptom.name: symptom.state for symptom in suite_checks.examine_plan(suite, beyond)}
    assert (states["offered load"], states["data sets"], states["checks"]) == (State.FAIL, State.WARN, State.FAIL)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    untried = replace(found, unknowns=("beyond what was tried",), to_fetch=("gsm8k",))
    states = {symptom.name: symptom.state for symptom in suite_checks.examine_plan(suite, untried)}
    assert (states["offered load"], states["data sets"]) == (State.WARN, State.FAIL)
    within = replace(found, client_measured_at="2026-01-01T00:00:00.000Z")
    assert {symptom.name: symptom.state for symptom in suite_checks.examine_plan(suite, within)}[
        "offered load"
    ] is State.OK


def test_server_that_cannot_score_the_texts_of_a_task_fails() -> None:
    with ScriptedServer(sound) as server:
        text = SUITE.format(old=server.url, more="", concurrency=4).replace(
            "new: {sim: {}}", f'new: {{url: "{server.url}/b", model: scripted, engine: openai}}'
        )
        evals = "quality: {tasks: [tasks/add_choice.yaml], endpoint: completions}\ngate:"
        suite = parse_suite(text.replace("gate:", evals), "suite.yaml")
        found = list(suite_checks.examine_scoring(suite, TASKS, {}))
    assert [(symptom.name, symptom.state) for symptom in found] == [
        ("old log-probs", State.FAIL),
        ("new log-probs", State.FAIL),
    ]
    assert "add_choice" in found[0].found


def test_server_that_the_suite_starts_is_not_asked_to_score_before_it_runs() -> None:
    text = SUITE.format(old="http://127.0.0.1:9", more=", start: {run: [serve]}", concurrency=4)
    evals = "quality: {tasks: [tasks/add_choice.yaml], endpoint: completions}\ngate:"
    text = text.replace("new: {sim: {}}", 'new: {url: "http://127.0.0.1:9/b", model: scripted}')
    suite = parse_suite(text.replace("gate:", evals), "suite.yaml")
    assert suite.deployments["old"].is_started
    assert list(suite_checks.examine_scoring(suite, TASKS, {})) == []


@dataclass(frozen=True, slots=True)
class Free:
    free: int


def machine_symptoms(tmp_path: Path, **files: str) -> dict[str, Symptom]:
    for name, text in {"proc__self__cgroup": "0::/job\n", **files}.items():
        path = tmp_path / name.replace("__", "/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    (tmp_path / "cgroup/job").mkdir(parents=True, exist_ok=True)
    found = examine_resources(
        {"work folder": tmp_path / "not" / "yet"}, proc=tmp_path / "proc", cgroup=tmp_path / "cgroup"
    )
    return {symptom.name: symptom for symptom in found}


def test_what_is_left_of_memory_is_the_least_of_machine_and_container(tmp_path: Path) -> None:
    free = machine_symptoms(tmp_path, proc__meminfo="MemTotal: 9000000 kB\nMemAvailable: 8000000 kB\n")["memory"]
    assert (free.state, free.found) == (State.OK, "7.63 GiB free")
    held = machine_symptoms(
        tmp_path, **{"cgroup__job__memory.max": "2000000000\n", "cgroup__job__memory.current": "1900000000\n"}
    )
    assert held["memory"].state is State.WARN and "95.4 MiB free" in held["memory"].found
    cached = machine_symptoms(tmp_path, **{"cgroup__job__memory.stat": "anon 1\ninactive_file 1600000000\n"})["memory"]
    assert (cached.state, cached.found) == (State.OK, "1.58 GiB free")  # the kernel gives up pages of files first


def test_ports_and_tracked_connections_bound_the_streams_of_a_machine(tmp_path: Path) -> None:
    usual = {"proc__sys__net__ipv4__ip_local_port_range": "32768\t60999\n"}
    found = machine_symptoms(tmp_path, **usual)["connections"]
    assert found.state is State.OK and found.found.endswith("; all workers together 28,232 to one server address")
    few = machine_symptoms(tmp_path, **usual, proc__sys__net__netfilter__nf_conntrack_max="4000\n")["connections"]
    assert few.state is State.WARN and "28,232 to one server address and 4,000 through NAT" in few.found


def test_container_that_may_use_less_than_its_cores_or_was_stopped_is_warned_of(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(machine, "usable_cpus", lambda: 4)
    unknown = machine_symptoms(tmp_path)["cpu quota"]
    unlimited = machine_symptoms(tmp_path, **{"cgroup__job__cpu.max": "max 100000\n"})["cpu quota"]
    assert unlimited.state is unknown.state is State.OK and "does not show" in unknown.found
    assert unlimited.found == "none that takes time away"
    quota = machine_symptoms(tmp_path, **{"cgroup__cpu.max": "150000 100000\n"})["cpu quota"]
    assert quota.state is State.WARN and "1.5 of 4 cores" in quota.found
    stopped = machine_symptoms(tmp_path, **{"cgroup__job__cpu.stat": "nr_periods 200\nnr_throttled 10\n"})["cpu quota"]
    assert stopped.state is State.WARN and "5.00 %" in stopped.found


def test_time_that_others_take_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "_STEAL_WINDOW_S", 0.0)
    one_tick = [0] * 8, [39, 0, 0, 0, 0, 0, 0, 1]  # of two processors in 0.2 s: nothing finer can be told
    looks = iter([[0] * 8, [80, 0, 0, 0, 0, 0, 0, 20], *one_tick, [0] * 8, [100, 0, 0, 0, 0, 0, 0, 0], [], []])
    monkeypatch.setattr(machine, "_cpu_times", lambda proc: next(looks))
    states = [machine_symptoms(tmp_path)["steal"].state for _ in range(4)]
    assert states == [State.WARN, State.OK, State.OK, State.OK]


def test_disk_that_is_full_or_may_not_be_written_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert machine_symptoms(tmp_path)["work folder"].state is State.OK
    for free, state in ((2 * 1024**3, State.OK), (500 * 1024**2, State.WARN), (10 * 1024**2, State.FAIL)):
        monkeypatch.setattr("shutil.disk_usage", lambda place, free=free: Free(free))
        assert machine_symptoms(tmp_path)["work folder"].state is state
    monkeypatch.setattr(os, "access", lambda place, mode: False)
    assert "may not be written" in machine_symptoms(tmp_path)["work folder"].found


def test_store_that_everybody_may_write_or_that_is_being_written_is_told(tmp_path: Path) -> None:
    path = tmp_path / "benchgate.db"
    assert list(examine_store_file(str(path))) == []
    Store.open(str(path)).close()
    before = path.read_bytes()
    assert [symptom.state for symptom in examine_store_file(str(path))] == [State.OK, State.OK]
    with closing(sqlite3.connect(path, isolation_level=None)) as writer:
        writer.execute("BEGIN IMMEDIATE")
        access, lock = examine_store_file(str(path))
        writer.execute("ROLLBACK")
    assert (access.state, lock.state) == (State.OK, State.WARN)
    path.chmod(0o666)
    access, _ = examine_store_file(str(path))
    assert access.state is State.WARN and "chmod o-w" in (access.remedy or "")
    assert path.read_bytes() == before


def test_command_tells_all_of_a_suite_and_fails_with_it(tmp_path: Path) -> None:
    with ScriptedServer(sound) as server:
        url = server.url
        (tmp_path / "suite.yaml").write_text(SUITE.format(old=url, more="", concurrency=4))
        well = here(tmp_path, "doctor", "suite.yaml", "--format", "json")
    assert well.returncode == 0, well.stdout
    names = [symptom["name"] for symptom in json.loads(well.stdout)]
    assert {"python", "memory", "work folder", "old chat", "old stream", "new", "files for streams"} <= set(names)
    down = here(tmp_path, "doctor", "suite.yaml")
    assert down.returncode == 2
    (line,) = (line for line in down.stdout.splitlines()[1:] if line.startswith("FAIL"))
    assert down.stdout.startswith("FAIL: ") and "1 failure, " in down.stdout
    assert url in line and "refused" in line
    assert not (tmp_path / ".benchgate").exists()
