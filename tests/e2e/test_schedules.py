"""Every course of the load, from the suite's text to the store: what was planned is what was due on both arms."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from benchgate.errors import SuiteError
from benchgate.model.deployment import Arm
from benchgate.model.run import Evidence
from benchgate.pipeline.forecast import read_plan
from benchgate.plan.schedule import Plan
from benchgate.suite.loader import parse_suite
from tests.e2e.command import document, here, latest_evidence
from tests.fakes.scripted_server import ScriptedServer, answering

pytestmark = pytest.mark.beside  # when requests are due is judged, and not when they were sent

SUITE = """
suite: courses
deployments:
  baseline: {{url: "{baseline}", model: m}}
  candidate: {{url: "{candidate}", model: m}}
load:
  workload: {{input: 8 tokens, output: 8 tokens}}
  blocks: 2
  warmup: 1
  sweep:
    - {{stage: closed, concurrency: 2, requests: 10}}
    - {{stage: clusters, rate: 40/s, arrival: "gamma:2", for: 250ms}}
    - {{stage: climb, rate: 20/s, ramp_to: 60/s, for: 500ms}}
    - {{stage: stairs, steps: [{{rate: 20/s, for: 200ms}}, {{rate: 40/s, for: 200ms}}], arrival: constant}}
    - {{stage: spikes, rate: 20/s, bursts: {{factors: [1, 5], every: 200ms, for: 50ms}}, for: 400ms}}
    - {{stage: replay, trace: day.csv, speed: 10, requests: 8}}
gate:
  checks:
    - {{metric: error_rate, max: 20%}}
"""
TRACE = "TIMESTAMP,ContextTokens,GeneratedTokens\n" + "".join(
    f"2023-11-16 18:17:0{n // 4}.{n % 4 * 2}500000,{3 + n},{n % 4 + 2}\n" for n in range(12)
)
COUNTS = {"closed": 10, "clusters": 10, "climb": 20, "stairs": 12, "spikes": 12, "replay": 8}

healthy = answering(lambda received: "one two three four five six seven eight", after_s=0.005)


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> tuple[Plan, Evidence, dict[str, object]]:
    folder: Path = tmp_path_factory.mktemp("courses")
    (folder / "day.csv").write_text(TRACE)
    with ScriptedServer(healthy) as baseline, ScriptedServer(healthy) as candidate:
        text = SUITE.format(baseline=baseline.url, candidate=candidate.url)
        (folder / "suite.yaml").write_text(text)
        result = here(folder, "run", "suite.yaml", "--format", "json")
    plan = read_plan(parse_suite(text, "suite.yaml"), folder)
    return plan, latest_evidence(folder), document(result)


def test_every_course_has_its_requests_in_every_block_on_both_arms(
    measured: tuple[Plan, Evidence, dict[str, object]],
) -> None:
    _, evidence, _ = measured
    found = {(o.stage, o.arm, o.block): len(o.requests) for o in evidence.load}
    assert found == {(stage, arm, block): n for stage, n in COUNTS.items() for arm in Arm for block in (0, 1)}


def test_requests_were_due_when_the_plan_says(measured: tuple[Plan, Evidence, dict[str, object]]) -> None:
    plan, evidence, _ = measured
    for observation in evidence.load:
        (planned,) = (s for s in plan.blocks[observation.block].stages if s.name == observation.stage)
        if planned.only.concurrency is None:
            due = dict(zip(observation.requests.index.tolist(), observation.requests.intended_ns.tolist(), strict=True))
            asked = {request.index: request.offset_ns or 0 for request in planned.requests}
            lead_ns = due[0] - asked[0]
            assert due == {index: offset_ns + lead_ns for index, offset_ns in asked.items()}
            assert (lead_ns > 0) is (planned.only.ramp is not None)  # what keeps its edges begins at once


def test_stored_suite_says_as_many_requests_as_were_measured(
    measured: tuple[Plan, Evidence, dict[str, object]],
) -> None:
    _, evidence, verdict = measured
    sweep = evidence.run.suite["load"]["sweep"]  # type: ignore[index]  # a suite, by its own test
    assert {stage["name"]: stage["requests"] for stage in sweep} == COUNTS
    guards = {guard["id"]: guard["tripped"] for guard in verdict["guards"]}  # type: ignore[attr-defined]  # JSON
    assert guards["all-measured"] is False


def test_trace_that_is_not_there_is_found_before_anything_is_sent(tmp_path: Path) -> None:
    suite = parse_suite(SUITE.format(baseline="http://one:1", candidate="http://two:1"), "suite.yaml")
    with pytest.raises(SuiteError, match=rf"day\.csv: the trace cannot be read \(\[Errno 2\] {os.strerror(2)}"):
        read_plan(suite, tmp_path)
