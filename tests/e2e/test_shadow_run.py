"""`benchgate run --only shadow`: the shadow part of a suite, by the command, with a judge and forms of answers."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchgate.shadow.assessors import BUILT_IN_PROMPT
from tests.e2e.command import STORE, document, here, latest_evidence
from tests.fakes.scripted_server import Received, Respond, ScriptedServer, Step, answering, json_response

pytestmark = pytest.mark.beside


SUITE = """
suite: shadowed
deployments:
  baseline: {{url: "{baseline}", model: m}}
  candidate: {{url: "{candidate}", model: m}}
limits: {{connect: 2s, first_token: 5s, stall: 2s, total: 10s, ready: 5s}}
load:
  workload: {{input: 8 tokens, output: 8 tokens}}
  sweep: [{{stage: c2, concurrency: 2, requests: 20}}]
shadow:
  prompts: prompts.jsonl
  secondary: 50%
  judge: {{url: "{judge}", model: j, api_key: "${{env:JUDGE_KEY}}", prompt: judge.txt, send_text: true}}
gate:
  checks:
    - {{metric: error_rate, max: 5%}}
    - {{metric: shadow_excess, margin: 10 points}}
    - {{metric: shadow_validity, margin: 10 points}}
    - {{metric: judge_loss, margin: 10 points}}
"""
CANARY = "canary-51d0"
KEY = "judge-s3cr3t-key"


def talking(*, broken: bool) -> Respond:
    """Answers in JSON where that is asked for, and in words that repeat the question elsewhere."""

    def text(received: Received) -> str:
        asked = (received.body or {}).get("response_format")
        if asked is None:
            return f"about {received.prompt}" + (" and more" if broken else "")
        return "no JSON" if broken else json.dumps({"about": received.prompt})

    return answering(text)


def shortest(received: Received) -> Iterator[Step]:
    """A judge that prefers fewer words."""
    found = re.search(r"\[(.*?)\]\[(.*?)\]$", received.prompt, re.DOTALL)
    lengths = [len(one.split()) for one in found.groups()] if found else [0, 0]
    verdict = "tie" if lengths[0] == lengths[1] else "A" if lengths[0] < lengths[1] else "B"
    yield json_response(
        {"choices": [{"message": {"content": json.dumps({"verdict": verdict})}, "finish_reason": "stop"}]}
    )


def run(folder: Path, *, broken: bool, judge: Respond = shortest) -> subprocess.CompletedProcess[str]:
    rows: list[dict[str, object]] = [
        {"id": f"p{n}", "messages": [{"role": "user", "content": f"{CANARY} number {n}"}], "stratum": "chat"}
        for n in range(60)
    ]
    for row in rows[:40]:
        row["response_format"] = {"type": "json_object"}
    (folder / "prompts.jsonl").write_text("\n".join(map(json.dumps, rows)))
    (folder / "judge.txt").write_text("{prompt} which one? [{answer_a}][{answer_b}]")
    with (
        ScriptedServer(talking(broken=False)) as ours,
        ScriptedServer(talking(broken=broken)) as theirs,
        ScriptedServer(judge) as third,
    ):
        text = SUITE.format(baseline=ours.url, candidate=theirs.url, judge=third.url)
        (folder / "suite.yaml").write_text(text)
        ended = here(folder, "run", "suite.yaml", "--only", "shadow", "--report", "report.html", "--format", "json")
        asked = len(third.requests)
        assert all(request.headers["authorization"] == f"Bearer {KEY}" for request in third.requests)
    assert (asked > 0) == broken  # of answers that are one nobody is asked
    return ended


@pytest.fixture(autouse=True)
def key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JUDGE_KEY", KEY)


def everything(folder: Path) -> bytes:
    """All that the run has left behind, but for what the user wrote."""
    mine = {"prompts.jsonl", "judge.txt", "suite.yaml"}
    return b"".join(path.read_bytes() for path in folder.rglob("*") if path.is_file() and path.name not in mine)


def test_of_equal_deployments_every_shadow_check_passes_and_the_part_alone_promotes_nothing(tmp_path: Path) -> None:
    ended = run(tmp_path, broken=False)
    evidence = latest_evidence(tmp_path)
    assert ended.returncode == 11, ended.stderr
    assert {check["outcome"] for check in document(ended)["checks"]} == {"PASS"}
    assert (evidence.load, evidence.quality) == ((), ())
    assert evidence.shadow is not None
    assert sum(item.once or False for item in evidence.shadow.items) == 30
    assert {check["metric"] for check in document(ended)["checks"]} == {
        "shadow_excess",
        "shadow_validity",
        "judge_loss",
    }
    assert document(ended)["run"]["only"] == "shadow"
    refused = here(tmp_path, "promote", evidence.run.id)
    assert refused.returncode == 2 and "only its `shadow` was measured" in refused.stderr


def test_a_broken_candidate_is_blocked_by_every_check_and_nothing_it_said_is_kept(tmp_path: Path) -> None:
    ended = run(tmp_path, broken=True)
    assert ended.returncode == 10, ended.stderr
    outcomes = {check["metric"]: check["outcome"] for check in document(ended)["checks"]}
    assert outcomes["shadow_excess"] == outcomes["shadow_validity"] == "BLOCK"
    left = everything(tmp_path) + (ended.stdout + ended.stderr).encode()
    assert CANARY.encode() not in left
    assert KEY.encode() not in left
    again = here(tmp_path, "gate", "--format", "json")
    assert document(again)["checks"] == document(ended)["checks"]


def test_what_the_judge_lacks_is_told_before_anything_is_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("JUDGE_KEY")
    (tmp_path / "prompts.jsonl").write_text('{"id": "a", "prompt": "b"}')
    (tmp_path / "judge.txt").write_text(BUILT_IN_PROMPT.replace("{answer_b}", ""))
    addresses = {name: f"http://{name}" for name in ("baseline", "candidate", "judge")}
    (tmp_path / "suite.yaml").write_text(SUITE.format(**addresses))
    ended = here(tmp_path, "run", "suite.yaml", "--only", "shadow")
    assert (ended.returncode, "JUDGE_KEY is not set" in ended.stderr) == (2, True)
    monkeypatch.setenv("JUDGE_KEY", KEY)
    ended = here(tmp_path, "run", "suite.yaml", "--only", "shadow")
    assert (ended.returncode, "no place for {answer_b}" in ended.stderr) == (2, True)
    assert not (tmp_path / STORE).exists()
