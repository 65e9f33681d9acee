"""Multiple choice on servers that cannot score a given text: refused, with the reason, before anything is measured."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.e2e.command import document, here, latest_evidence
from tests.fakes.echoing import Echoing
from tests.fakes.scripted_server import ScriptedServer, answering

pytestmark = pytest.mark.beside  # refused before anything is measured

SUITES = Path(__file__).parents[2] / "suites"
SUITE = """
suite: choice
deployments:
  baseline: {{url: "{baseline}", model: m}}
  candidate: {{url: "{candidate}", model: m}}
load:
  workload: {{input: 8 tokens, output: 8 tokens, endpoint: completions}}
  warmup: 0
  blocks: 2
  sweep: [{{stage: c1, concurrency: 1, requests: 10}}]
quality: {{tasks: [tasks/add_choice.yaml], endpoint: {endpoint}}}
gate: {{checks: [{{metric: accuracy, task: add_choice, margin: 5 points}}]}}
"""


def write_suite(folder: Path, baseline: str, candidate: str, endpoint: str) -> None:
    (folder / "suite.yaml").write_text(SUITE.format(baseline=baseline, candidate=candidate, endpoint=endpoint))
    for part in ("tasks", "data"):
        shutil.copytree(SUITES / part, folder / part)


def test_a_candidate_that_ignores_echo_is_found_out_before_any_load(tmp_path: Path) -> None:
    with (
        ScriptedServer(Echoing({" four": -0.25, ",": -0.75})) as able,
        ScriptedServer(answering(lambda received: "one two three")) as unable,
    ):
        write_suite(tmp_path, able.url, unable.url, "completions")
        result = here(tmp_path, "run", "suite.yaml", "--format", "json")
    assert (document(result)["outcome"], result.returncode) == ("INVALID", 12)
    assert "cannot score the given texts of add_choice" in document(result)["reason"]
    assert "it seems to ignore `echo`" in document(result)["reason"]
    assert (latest_evidence(tmp_path).load, latest_evidence(tmp_path).quality) == ((), ())


def test_multiple_choice_at_a_chat_endpoint_is_a_mistake_of_the_suite(tmp_path: Path) -> None:
    write_suite(tmp_path, "http://127.0.0.1:9", "http://127.0.0.1:10", "chat")
    result = here(tmp_path, "plan", "suite.yaml")
    assert result.returncode == 2
    assert "add_choice scores given texts" in result.stderr
    assert "say `endpoint: completions`" in result.stderr
