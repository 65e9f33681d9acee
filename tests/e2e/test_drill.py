"""A drill on the real engine: one deployment, measured once, held against itself, and its effect turned round."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchgate.model.deployment import Arm
from benchgate.units import parse_duration_s
from tests.e2e.command import document, here, latest_evidence

pytestmark = pytest.mark.beside  # a stream of 128 tokens is longer than one of 2 on any machine

DRILL = """
suite: decode
deployments:
  tiny: {embedded: {weights: q2_k, slots: 2}}
baseline: tiny
candidate: tiny
start: {times: 3}
load:
  workload: {input: 10 tokens, output: 2 tokens, text: letters}
  blocks: 5
  warmup: 1
  sweep:
    - {stage: out, concurrency: 1, requests: 6, each: {output: [2, 128]}}
gate:
  client: {send_lag_p99: 1s, send_lag_max: 1s, read_delay_p99: 1s, read_delay_max: 1s, cpu: 100%, achieved: 1%}
  checks:
    - {metric: e2e, stage: LONG, over: SHORT, min: 1.2x}
    - {metric: error_rate, max: 10%}
    - {metric: cold_start, max: 60s}
"""
WITH_EFFECT = DRILL.replace("LONG", "out-128").replace("SHORT", "out-2")
TURNED_ROUND = DRILL.replace("LONG", "out-2").replace("SHORT", "out-128")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with one measured drill in its store, and two policies."""
    folder = tmp_path_factory.mktemp("drill")
    (folder / "drill.yaml").write_text(WITH_EFFECT)
    (folder / "round.yaml").write_text(TURNED_ROUND)
    done = here(folder, "run", "drill.yaml", "--report", "r.html", "--format", "json")
    assert done.returncode in (0, 11), done.stderr
    return folder


def test_a_drill_measures_its_deployment_once_and_shows_its_effect(folder: Path) -> None:
    evidence = latest_evidence(folder)
    assert {o.arm for o in evidence.load} == {Arm.CANDIDATE}
    assert len(evidence.load) == 2 * 5
    said = document(here(folder, "gate", "@latest", "--format", "json"))
    effect = next(check for check in said["checks"] if check["over"] is not None)
    assert (effect["outcome"], effect["over"], effect["at_least"]) == ("PASS", "out-2", True)
    assert effect["candidate"] > 1.2


def test_a_drill_is_told_of_one_deployment_alone(folder: Path) -> None:
    assert "suite decode: tiny alone, run " in here(folder, "gate", "@latest").stdout


def test_every_start_is_timed_to_its_first_completion(folder: Path) -> None:
    evidence = latest_evidence(folder)
    assert [(start.arm, start.number) for start in evidence.starts] == [(Arm.CANDIDATE, n) for n in range(3)]
    assert all(0 < start.to_answer_s < parse_duration_s("60s") for start in evidence.starts)


def test_a_drill_whose_effect_is_absent_is_blocked(folder: Path) -> None:
    judged = here(folder, "gate", "@latest", "--policy", "round.yaml", "--format", "json")
    assert judged.returncode == 10
    assert "at out-2 over out-128" in document(judged)["reason"]


def test_the_report_of_a_drill_speaks_of_one_deployment(folder: Path) -> None:
    page = (folder / "r.html").read_text(encoding="utf-8")
    assert "One deployment was measured, once" in page
    assert "any difference is noise" not in page
    assert "<td>baseline</td>" not in page
