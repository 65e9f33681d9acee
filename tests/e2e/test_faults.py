"""Servers that are not there, die, fail or say nothing: never PASS, the true reason, and all that was seen kept."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
import time
from collections.abc import Iterable
from pathlib import Path

import pytest

from benchgate.model.run import RunStatus
from tests.e2e.command import command_line, document, here, latest_evidence
from tests.fakes.scripted_server import (
    LAST_CHUNK,
    Received,
    Respond,
    ScriptedServer,
    Step,
    answering,
    json_response,
    role_event,
    stream_head,
    token,
)

pytestmark = pytest.mark.beside  # errors are counted and processes end: no time decides


SUITE = """
suite: faults
deployments:
  baseline: {{url: "{baseline}", model: m}}
  candidate: {{url: "{candidate}", model: m}}
limits: {{connect: 1s, first_token: 5s, stall: 2s, total: 10s, ready: {ready}}}
load:
  workload: {{input: 8 tokens, output: 8 tokens}}
  blocks: {blocks}
  warmup: 0
  sweep: [{{stage: c2, concurrency: 2, requests: 20}}]
gate:
  allow_underpowered: true
  checks:
    - {{metric: error_rate, max: 2%}}
    - {{metric: ttft, margin: 95%}}
"""
THINKS_S = 0.005
healthy = answering(lambda received: "one two three four five six seven eight", after_s=THINKS_S)
empty = answering(lambda received: "", after_s=THINKS_S)


def failing_when_streamed(received: Received) -> Iterable[Step]:
    """Answers the readiness check and fails every load request."""
    if received.body is not None and received.body.get("stream"):
        return [THINKS_S, json_response({"error": {"message": "CUDA out of memory"}}, status=500)]
    return healthy(received)


def empty_when_streamed(received: Received) -> Iterable[Step]:
    """Answers the readiness check and says nothing to every load request."""
    return empty(received) if received.body is not None and received.body.get("stream") else healthy(received)


def broken(received: Received) -> Iterable[Step]:
    """Fails at everything."""
    return [json_response({"error": "no"}, status=500)]


def write_suite(folder: Path, baseline: str, candidate: str, blocks: int = 2, ready: str = "2s") -> None:
    text = SUITE.format(baseline=baseline, candidate=candidate, blocks=blocks, ready=ready)
    (folder / "suite.yaml").write_text(text)


def breaking_off() -> Respond:
    """Answers the readiness check; from the first load request on, every stream and every answer breaks off."""
    loaded = threading.Event()

    def respond(received: Received) -> Iterable[Step]:
        if received.body is not None and received.body.get("stream"):
            loaded.set()
            return [THINKS_S, stream_head(), role_event(), token("one"), token(" two"), LAST_CHUNK]
        return [json_response({"choices": []})] if loaded.is_set() else healthy(received)

    return respond


@pytest.mark.parametrize(
    "respond",
    [failing_when_streamed, empty_when_streamed, breaking_off()],
    ids=["500", "empty answers", "broken-off answers"],
)
def test_a_candidate_that_fails_under_load_is_blocked(tmp_path: Path, respond: Respond) -> None:
    with ScriptedServer(healthy) as baseline, ScriptedServer(respond) as candidate:
        write_suite(tmp_path, baseline.url, candidate.url)
        result = here(tmp_path, "run", "suite.yaml", "--format", "json")
    assert (document(result)["outcome"], result.returncode) == ("BLOCK", 10), result.stdout
    assert "Error rate" in document(result)["reason"]


@pytest.mark.parametrize("respond", [empty, broken], ids=["empty answers always", "500 always"])
def test_a_candidate_that_fails_at_the_start_is_not_measured(tmp_path: Path, respond: Respond) -> None:
    with ScriptedServer(healthy) as baseline, ScriptedServer(respond) as candidate:
        write_suite(tmp_path, baseline.url, candidate.url, ready="500ms")
        result = here(tmp_path, "run", "suite.yaml", "--format", "json")
    assert (document(result)["outcome"], result.returncode) == ("INVALID", 12), result.stdout
    assert "did not answer at the start" in document(result)["reason"]


def test_a_baseline_that_fails_makes_the_evidence_invalid(tmp_path: Path) -> None:
    with ScriptedServer(failing_when_streamed) as baseline, ScriptedServer(healthy) as candidate:
        write_suite(tmp_path, baseline.url, candidate.url)
        result = here(tmp_path, "run", "suite.yaml", "--format", "json")
    assert (document(result)["outcome"], result.returncode) == ("INVALID", 12)
    stored = latest_evidence(tmp_path)
    assert {error for o in stored.load if o.arm == "baseline" for error in o.requests.error} == {"http_5xx"}
    assert any("CUDA out of memory" in (detail or "") for detail in stored.load[0].requests.error_detail)


def test_a_baseline_that_breaks_off_every_answer_is_not_measured_on(tmp_path: Path) -> None:
    """Its errors would excuse those of the candidate."""
    with ScriptedServer(breaking_off()) as baseline, ScriptedServer(healthy) as candidate:
        write_suite(tmp_path, baseline.url, candidate.url)
        result = here(tmp_path, "run", "suite.yaml", "--format", "json")
    assert (document(result)["outcome"], result.returncode) == ("INVALID", 12)
    assert [fault.arm.value for fault in latest_evidence(tmp_path).target_faults] == ["baseline"]


def test_two_servers_that_are_down_are_both_named(tmp_path: Path) -> None:
    with ScriptedServer(healthy) as one, ScriptedServer(healthy) as other:
        addresses = (one.url, other.url)
    write_suite(tmp_path, *addresses, ready="500ms")
    result = here(tmp_path, "run", "suite.yaml")
    assert result.returncode == 12
    told, *others = result.stdout.splitlines()
    assert "  guard targets-up: see the first sentence" in others
    assert "next: benchgate doctor suite.yaml" in others
    assert "the baseline baseline did not answer at the start" in told
    assert "and neither did the candidate candidate: could not connect" in told
    assert [fault.arm.value for fault in latest_evidence(tmp_path).target_faults] == ["baseline", "candidate"]


def test_a_server_that_is_down_at_the_start_is_named(tmp_path: Path) -> None:
    with ScriptedServer(healthy) as baseline:
        write_suite(tmp_path, baseline.url, "http://127.0.0.1:9", ready="500ms")
        result = here(tmp_path, "run", "suite.yaml", "--format", "json")
    assert (document(result)["outcome"], result.returncode) == ("INVALID", 12)
    assert "the candidate candidate did not answer at the start" in document(result)["reason"]
    assert latest_evidence(tmp_path).run.status is RunStatus.PARTIAL


def test_a_run_on_a_port_without_a_server_does_not_wait_for_one(tmp_path: Path) -> None:
    write_suite(tmp_path, "http://127.0.0.1:9", "http://127.0.0.1:9/other")
    path = tmp_path / "suite.yaml"
    path.write_text(path.read_text().replace(", ready: 2s", ""))
    result = here(tmp_path, "run", "suite.yaml", "--format", "json")
    assert (document(result)["outcome"], result.returncode) == ("INVALID", 12)
    assert "the baseline at http://127.0.0.1:9 cannot be reached: could not connect" in document(result)["reason"]


def test_one_server_under_two_names_is_noticed_before_any_load(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_suite(tmp_path, "${env:FIRST_URL}", "${env:SECOND_URL}")
    with ScriptedServer(healthy) as server:
        monkeypatch.setenv("FIRST_URL", server.url)
        monkeypatch.setenv("SECOND_URL", server.url.replace("127.0.0.1", "localhost") + "/")
        result = here(tmp_path, "run", "suite.yaml", "--format", "json")
    assert (document(result)["outcome"], result.returncode) == ("INVALID", 12)
    assert "both arms are served by the same endpoint and model" in document(result)["reason"]
    assert latest_evidence(tmp_path).load == ()


def test_a_deployment_measured_against_itself_on_purpose_is_measured(tmp_path: Path) -> None:
    with ScriptedServer(healthy) as server:
        write_suite(tmp_path, server.url, f"{server.url}/other")
        result = here(tmp_path, "run", "suite.yaml", "--candidate", "baseline", "--format", "json")
    assert "same endpoint" not in document(result)["reason"]
    assert len(latest_evidence(tmp_path).load) == 4


@pytest.mark.slow
def test_an_interrupted_shadow_comparison_keeps_what_was_answered(tmp_path: Path) -> None:
    """The prompts beyond the first ten are never answered, so the interrupt comes in the middle."""
    last = threading.Event()

    def slowing(received: Received) -> Iterable[Step]:
        if "prompt 10" in received.prompt:
            last.set()
            return [60.0]
        return healthy(received)

    (tmp_path / "prompts.jsonl").write_text("".join(f'{{"id": "{n}", "prompt": "prompt {n}"}}\n' for n in range(20)))
    with ScriptedServer(healthy) as baseline, ScriptedServer(slowing) as candidate:
        (tmp_path / "suite.yaml").write_text(
            "suite: shadow\n"
            "deployments:\n"
            f"  baseline: {{url: '{baseline.url}', model: m}}\n"
            f"  candidate: {{url: '{candidate.url}', model: m}}\n"
            "shadow: {prompts: prompts.jsonl, concurrency: 1}\n"
            "gate: {allow_underpowered: true, checks: [{metric: shadow_excess, margin: 5 points}]}\n"
        )
        process = subprocess.Popen(
            command_line("run", "suite.yaml"), cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        assert last.wait(60)
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=30)
    assert process.returncode == 130, errors
    stored = latest_evidence(tmp_path)
    assert stored.run.status is RunStatus.PARTIAL
    assert stored.shadow is not None
    assert (stored.shadow.fault, len(stored.shadow.items), stored.shadow.expected_n) == ("interrupted", 10, 20)


@pytest.mark.slow
def test_a_server_killed_in_the_middle_is_named_and_its_measurements_are_kept(tmp_path: Path) -> None:
    with ScriptedServer(healthy) as baseline:
        candidate = ScriptedServer(healthy)
        candidate.__enter__()
        write_suite(tmp_path, baseline.url, candidate.url, blocks=40)
        killer = threading.Thread(target=_stop_after, args=(candidate, 30))
        killer.start()
        result = here(tmp_path, "run", "suite.yaml", "--format", "json")
        killer.join()
    assert document(result)["outcome"] in ("INVALID", "BLOCK"), result.stdout
    assert result.returncode in (10, 12)
    stored = latest_evidence(tmp_path)
    assert stored.target_faults and stored.target_faults[0].arm == "candidate"
    assert 0 < len(stored.load) < 80
    assert len(stored.load[0].requests) == 20


def _stop_after(server: ScriptedServer, requests: int) -> None:
    while len(server.requests) < requests:
        time.sleep(0.01)
    server.__exit__(None, None, None)


@pytest.mark.parametrize(
    ("sent", "code"),
    [
        (signal.SIGINT, 130),
        pytest.param(signal.SIGTERM, 143, marks=pytest.mark.slow),
        pytest.param(signal.SIGKILL, -9, marks=pytest.mark.slow),
    ],
)
def test_an_interrupted_run_keeps_what_it_measured_and_never_passes(
    tmp_path: Path, sent: signal.Signals, code: int
) -> None:
    with ScriptedServer(healthy) as baseline, ScriptedServer(healthy) as candidate:
        write_suite(tmp_path, baseline.url, candidate.url, blocks=60)
        # Started as a shell starts a command in the background: with SIGINT ignored.
        process = subprocess.Popen(
            ["bash", "-c", 'trap "" INT; exec "$@"', "bash", *command_line("run", "suite.yaml")],
            cwd=tmp_path,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        while len(candidate.requests) < 50 and process.poll() is None:
            time.sleep(0.01)
        process.send_signal(sent)
        _, errors = process.communicate(timeout=30)
    assert process.returncode == code, errors
    stored = latest_evidence(tmp_path)
    assert stored.run.status is (RunStatus.RUNNING if sent == signal.SIGKILL else RunStatus.PARTIAL)
    assert 0 < len(stored.load) < 120
    judged = here(tmp_path, "gate", stored.run.id)
    assert judged.returncode == 12, judged.stdout


@pytest.mark.slow
def test_a_killed_benchgate_leaves_no_engine_behind(tmp_path: Path) -> None:
    (tmp_path / "suite.yaml").write_text(
        "suite: orphans\n"
        "deployments: {baseline: {embedded: {}}, candidate: {embedded: {weights: q8_0}}}\n"
        "load: {workload: {input: 20 tokens, output: 64 tokens, text: letters}, blocks: 100,\n"
        "       sweep: [{stage: c2, concurrency: 2, requests: 50}]}\n"
        "gate: {checks: [{metric: ttft, margin: 50%}, {metric: error_rate, max: 1%}]}\n"
    )
    process = subprocess.Popen(
        command_line("run", "suite.yaml"), cwd=tmp_path, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    )
    assert process.stderr is not None
    while "load" not in (line := process.stderr.readline()):
        assert line, "the run ended before its load began"
    engines = children_of(process.pid)
    assert len(engines) >= 2
    process.kill()
    process.wait(timeout=10)
    deadline = time.monotonic() + 20
    while any(map(is_running, engines)) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert [pid for pid in engines if is_running(pid)] == []
    process.stderr.close()


def children_of(pid: int) -> list[int]:
    """Process ids of the direct children."""
    listed = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return [int(child) for child in listed]


def is_running(pid: int) -> bool:
    """Whether the process exists and is not a zombie."""
    try:
        os.kill(pid, 0)
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except (ProcessLookupError, FileNotFoundError):
        return False


def test_a_missing_variable_is_a_mistake_found_before_there_is_a_run(tmp_path: Path) -> None:
    write_suite(tmp_path, "${env:NO_SUCH_ADDRESS}", "http://127.0.0.1:9")
    result = here(tmp_path, "run", "suite.yaml")
    assert (result.returncode, "NO_SUCH_ADDRESS" in result.stderr) == (2, True)
    assert not (tmp_path / ".benchgate").exists()
