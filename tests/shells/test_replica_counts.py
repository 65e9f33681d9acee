"""Replicas counted by an address of each, by a command and by what a router reports; real processes and servers."""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from benchgate.doctor.machine import State, Symptom
from benchgate.doctor.suite import examine_deployments
from benchgate.errors import SuiteError, TargetError, UsageError
from benchgate.model.deployment import Arm
from benchgate.pipeline.deployments import Replicas
from benchgate.sim.process import Sim, serve_sim
from benchgate.sim.settings import sim_settings
from benchgate.suite.deployment import DeploymentSpec
from benchgate.suite.loader import parse_suite
from benchgate.suite.schema import Suite
from benchgate.targets.dialect import Target, dialect_of
from benchgate.telemetry import replicas as counting
from benchgate.telemetry.replicas import Counted, ReplicaCounter, replica_counter
from tests.fakes.scripted_server import Received, ScriptedServer, Step, json_response

QUICK = sim_settings(ttft_s=0.0, itl_s=0.0)


@pytest.fixture(scope="module")
def three() -> Iterator[Sim]:
    with serve_sim(sim_settings(ttft_s=0.0, itl_s=0.0, replicas=3)) as sim:
        yield sim


def counter(url: str, log: Path, environment: dict[str, str] | None = None, **ready: object) -> ReplicaCounter:
    spec = DeploymentSpec.model_validate({"url": url, "model": "sim", "ready": ready})
    target = Target(Arm.CANDIDATE, url, "sim", dialect_of(spec))
    found = replica_counter(spec, target, environment or {}, log)
    assert found is not None
    return found


def by_command(code: str, log: Path) -> Counted:
    command = f'{sys.executable} -c "{code}"'
    return counter("http://127.0.0.1:9", log, replicas=8, command=command).count()


def test_a_router_of_practice_servers_reports_how_many_are_up(three: Sim, tmp_path: Path) -> None:
    of_three = counter(three.url, tmp_path / "log", replicas=3)
    assert of_three.count() == Counted(3)
    three.kill(1)
    try:
        assert of_three.count() == Counted(2)
    finally:
        three.start(1)
    assert of_three.count() == Counted(3)


def test_an_address_counts_where_it_answers(tmp_path: Path) -> None:
    with ExitStack() as stack:
        first, second = (stack.enter_context(serve_sim(QUICK)) for _ in range(2))
        with serve_sim(QUICK) as third:
            addresses = [f"{one.url}/health" for one in (first, second)] + ["${env:THIRD}"]
            environment = {"THIRD": f"{third.url}/metrics"}
            found = counter(first.url, tmp_path / "log", environment, replicas=3, metrics=addresses)
            assert found.count() == Counted(3)
        assert found.count() == Counted(2)


def test_an_address_that_answers_with_a_failure_does_not_count(tmp_path: Path) -> None:
    def unready(received: Received) -> list[Step]:
        return [json_response({"status": "draining"}, 503)]

    with ScriptedServer(unready) as server:
        assert counter(server.url, tmp_path / "log", replicas=1, metrics=[f"{server.url}/health"]).count() == Counted(0)


def test_a_reference_of_an_address_that_is_not_set_is_told(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="NOWHERE"):
        counter("http://127.0.0.1:9", tmp_path / "log", replicas=1, metrics=["${env:NOWHERE}"])


def test_a_command_prints_the_number_and_its_words_are_kept(tmp_path: Path) -> None:
    log = tmp_path / "logs" / "replicas.log"
    told = by_command("import os, sys; print(6); print(os.environ['BENCHGATE_ARM'], '$HOME', file=sys.stderr)", log)
    assert told == Counted(6)
    assert log.read_text() == "candidate $HOME\n6\n"


@pytest.mark.parametrize(
    ("code", "problem"),
    [
        ("pass", "printed nothing"),
        ("print('6 of 8')", "printed no whole number"),
        ("print(-1)", "printed no whole number"),
        ("print(6); raise SystemExit(3)", "ended with status 3"),
    ],
)
def test_a_command_that_tells_no_number_gives_no_count(code: str, problem: str, tmp_path: Path) -> None:
    told = by_command(code, tmp_path / "replicas.log")
    assert told.count is None and told.problem is not None and problem in told.problem


def test_a_command_that_is_not_there_gives_no_count(tmp_path: Path) -> None:
    command = str(tmp_path / "nothing")
    told = counter("http://127.0.0.1:9", tmp_path / "log", replicas=8, command=command).count()
    assert told.problem == f"{command} could not be run: No such file or directory"


def test_a_command_that_takes_too_long_is_ended_with_all_that_it_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(counting, "COMMAND_LIMIT_S", 0.2)
    told = by_command("import time; time.sleep(600)", tmp_path / "log")
    assert told.count is None and told.problem is not None and "took longer than 0.2 s" in told.problem


def reporting(pages: dict[str, Any]) -> ScriptedServer:
    """A server with these pages: JSON, or a text of metrics."""

    def answer(received: Received) -> list[Step]:
        page = pages.get(received.path)
        if page is None:
            return [json_response({"detail": "Not Found"}, 404)]
        if not isinstance(page, str):
            return [json_response(page)]
        body = page.encode()
        return [b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%b" % (len(body), body)]

    return ScriptedServer(answer)


WORKERS = [{"url": "a", "is_healthy": True}, {"url": "b", "is_healthy": False}, {"url": "c", "is_healthy": True}]
HEALTHY_PODS = 'vllm:healthy_pods_total{server="a"} 1.0\nvllm:healthy_pods_total{server="b"} 0.0\n'


@pytest.mark.parametrize(
    ("path", "page", "count"),
    [
        ("/workers", {"workers": WORKERS, "total": 3}, 2),
        ("/metrics", HEALTHY_PODS, 1),
        ("/metrics", 'inference_pool_ready_pods{name="pool"} 8\n', 8),
    ],
)
def test_a_router_s_own_page_is_read(path: str, page: Any, count: int, tmp_path: Path) -> None:
    pages = {path: page}
    with reporting(pages) as server:
        found = counter(server.url, tmp_path / "log", replicas=8)
        assert found.count() == Counted(count)
        del pages[path]
        pages["/sim/replicas"] = {"replicas": [{"state": "up"}]}  # another way to count is another count
        told = found.count()
    assert told.count is None and told.problem is not None and "did not report them" in told.problem


@pytest.mark.parametrize(
    "pages",
    [{}, {"/workers": {"workers": [{"url": "a"}]}}, {"/workers": ["a"]}, {"/metrics": "vllm:num_requests_running 1\n"}],
)
def test_where_nothing_reports_a_number_the_error_says_what_to_write(pages: dict[str, Any], tmp_path: Path) -> None:
    with (
        reporting(pages) as server,
        pytest.raises(TargetError, match=r"its replicas cannot be counted.*`metrics: .*`command"),
    ):
        counter(server.url, tmp_path / "log", replicas=8).count()


def test_a_run_waits_until_all_are_there_and_notes_how_many_are(three: Sim, tmp_path: Path) -> None:
    noted: list[str] = []

    def note(line: str) -> None:
        noted.append(line)
        if len(noted) == 1:
            threading.Thread(target=three.start, args=(2,)).start()

    spec = DeploymentSpec.model_validate({"url": three.url, "model": "sim", "ready": {"replicas": 3}})
    replicas = Replicas(tmp_path / "log", note)
    replicas.add(spec, Target(Arm.CANDIDATE, three.url, "sim", dialect_of(spec)))
    three.kill(2)
    replicas.require_all(Arm.CANDIDATE, 60)
    assert noted[0] == "the candidate has 2 of 3 replicas after 0 s of 60"


@pytest.mark.parametrize(("wanted", "told"), [(4, "3 of 4"), (2, "3 of 2")])
def test_too_few_or_too_many_at_the_start_are_told(three: Sim, tmp_path: Path, wanted: int, told: str) -> None:
    spec = DeploymentSpec.model_validate({"url": three.url, "model": "sim", "ready": {"replicas": wanted}})
    replicas = Replicas(tmp_path / "log", lambda line: None)
    replicas.add(spec, Target(Arm.CANDIDATE, three.url, "sim", dialect_of(spec)))
    with pytest.raises(TargetError, match=f"{told} replicas were ready after 0.5 s"):
        replicas.require_all(Arm.CANDIDATE, 0.5)


SUITE = """
suite: counted
deployments:
  old: {OLD}
  new: {url: "http://127.0.0.1:9", model: m}
baseline: old
candidate: new
load: {workload: {input: 8 tokens, output: 4 tokens}, sweep: [{stage: c4, concurrency: 4, requests: 60}]}
gate: {checks: [{metric: error_rate, max: 10%}]}
"""


def suite_of(old: str) -> Suite:
    return parse_suite(SUITE.replace("{OLD}", old), "counted.yaml")


@pytest.mark.parametrize(
    ("old", "problem"),
    [
        ("{embedded: {}, ready: {replicas: 2}}", "means nothing for an embedded deployment"),
        ("{sim: {}, ready: {replicas: 1}}", "this practice server has one"),
        ("{sim: {replicas: 3}, ready: {replicas: 2}}", "this practice server has 3 replicas"),
        ("{sim: {replicas: 1, lose_replica_after: 3}}", "kills one of several replicas"),
        ("{url: 'http://h', model: m, ready: {replicas: 0}}", "replicas"),
        ("{url: 'http://h', model: m, ready: {replica: 2}}", "did you mean `replicas`"),
        ("{url: 'http://h', model: m, ready: {replicas: 2, metrics: ['http://a/']}}", "names 1 addresses"),
        ("{url: 'http://h', model: m, ready: {replicas: 2, metrics: ['http://a/', 'http://a/']}}", "an address twice"),
        ("{url: 'http://h', model: m, ready: {replicas: 1, metrics: ['http://a/'], command: x}}", "keep one of them"),
        ("{url: 'http://h', model: m, ready: {replicas: 1, command: \"kubectl 'get\"}}", "is no command"),
        ("{url: 'http://h', model: m, ready: {replicas: 1, metrics: ['http://u:p@a/']}}", "credentials"),
    ],
)
def test_what_cannot_be_counted_is_told_with_the_suite(old: str, problem: str) -> None:
    with pytest.raises(SuiteError) as told:
        suite_of(old)
    assert problem in str(told.value)


def test_a_suite_reads_back_what_it_stored_and_says_nothing_where_nothing_is_declared() -> None:
    declared = suite_of("{sim: {replicas: 2}, ready: {replicas: 2}}")
    stored = json.loads(json.dumps(declared.to_stored()))
    assert stored["deployments"]["old"]["ready"] == {"replicas": 2}
    assert "ready" not in stored["deployments"]["new"]
    assert Suite.from_stored(stored) == declared


def examined(ready: str, url: str, folder: Path, *, log: Path | None = None) -> Symptom:
    suite = suite_of(f"{{url: '{url}', model: sim, engine: vllm, ready: {ready}}}")
    found = {symptom.name: symptom for symptom in examine_deployments(suite, folder, {}, within_s=5, replica_log=log)}
    return found["old replicas"]


@pytest.mark.slow
def test_doctor_reports_the_number_of_replicas(three: Sim, tmp_path: Path) -> None:
    assert examined("{replicas: 3}", three.url, tmp_path).state is State.OK
    few = examined("{replicas: 4}", three.url, tmp_path)
    assert (few.state, few.found) == (State.FAIL, "3 of 4 replicas")


@pytest.mark.slow
def test_doctor_runs_a_command_only_where_it_is_allowed(three: Sim, tmp_path: Path) -> None:
    printed = tmp_path / "printed"
    command = f"{{replicas: 3, command: 'tee {printed}'}}"  # prints what it reads, which is nothing
    unasked = examined(command, three.url, tmp_path)
    assert unasked.state is State.WARN and "--allow-actions" in (unasked.remedy or "")
    assert not printed.exists()
    asked = examined(command, three.url, tmp_path, log=tmp_path / "replicas.log")
    assert printed.exists()
    assert asked.state is State.FAIL and "printed nothing" in asked.found
