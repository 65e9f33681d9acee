"""Warnings of `plan` about suites that are valid: where they stand, and what they say."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchgate.suite.loader import parse_suite
from benchgate.suite.rules.load import suite_warnings
from tests.e2e.command import here

pytestmark = pytest.mark.beside  # nothing is measured

SUITE = """suite: slots
deployments: {a: {url: "http://a:1", model: m, engine: vllm}}
baseline: a
candidate: a
load:
  workload: {input: 8, output: 8}
  blocks: 4
  sweep:
    - STAGE
gate: {checks: [{metric: error_rate, max: 50%}]}
"""


def warnings_of(stage: str) -> list[str]:
    text = SUITE.replace("STAGE", stage)
    return [str(one) for one in suite_warnings(parse_suite(text, "s.yaml"), text, "s.yaml")]


@pytest.mark.parametrize(
    ("stage", "told"),
    [
        (
            "{stage: c, concurrency: 64, requests: 64}",
            "9:45: warning: load.sweep[0].requests: concurrency 64 with 64 requests: each slot sends one request per "
            "block; write `requests`: 640 or more",
        ),
        (
            "{stage: c, concurrency: 64, requests: 639}",
            "9:45: warning: load.sweep[0].requests: concurrency 64 with 639 requests: each slot sends 9.98 requests "
            "per block; write `requests`: 640 or more",
        ),
        (
            "{stage: c, requests: 3, concurrency: 2}",
            "9:28: warning: load.sweep[0].requests: concurrency 2 with 3 requests: each slot sends 1.5 requests per "
            "block; write `requests`: 20 or more",
        ),
        (
            "{stage: c, concurrency: 4, requests: 8, each: {input: [4, 8]}}",  # two stages, told of once
            "9:44: warning: load.sweep[0].requests: concurrency 4 with 8 requests: each slot sends 2 requests per "
            "block; write `requests`: 40 or more",
        ),
        (
            "{stage: c, classes: {one: {concurrency: 1, requests: 3}, two: {concurrency: 5, requests: 9}}}",
            "9:96: warning: load.sweep[0].classes.two.requests: concurrency 5 with 9 requests: each slot sends 1.8 "
            "requests per block; write `requests`: 50 or more",
        ),
    ],
)
def test_closed_loops_whose_slots_send_few_requests_are_told_of_at_their_place(stage: str, told: str) -> None:
    assert warnings_of(stage) == [f"s.yaml:{told}"]


@pytest.mark.parametrize(
    "stage",
    [
        "{stage: c, concurrency: 64, requests: 640}",
        "{stage: c, concurrency: 1, requests: 3}",
        "{stage: r, rate: 64/s, requests: 64}",
        "{stage: c, classes: {one: {rate: 2/s, requests: 3}, two: {concurrency: 8, background: true}}}",
    ],
)
def test_others_are_not(stage: str) -> None:
    assert warnings_of(stage) == []


def test_a_suite_without_a_load_has_no_warning() -> None:
    text = SUITE.partition("load:")[0] + "start: {}\ngate: {checks: [{metric: cold_start, max: 60s}]}\n"
    text = text.replace('{url: "http://a:1", model: m, engine: vllm}', "{embedded: {}}")
    assert suite_warnings(parse_suite(text, "s.yaml"), text, "s.yaml") == []


def test_a_warning_is_on_stderr_and_changes_no_exit_code(tmp_path: Path) -> None:
    for name, requests in (("few.yaml", 8), ("many.yaml", 40)):
        stage = f"{{stage: c, concurrency: 4, requests: {requests}}}"
        (tmp_path / name).write_text(SUITE.replace("STAGE", stage))
    few, many = here(tmp_path, "plan", "few.yaml"), here(tmp_path, "plan", "many.yaml")
    assert (few.returncode, many.returncode) == (0, 0)
    (told,) = [line for line in few.stderr.splitlines() if "warning" in line]
    assert told.startswith("few.yaml:9:44: warning: load.sweep[0].requests: concurrency 4 with 8 requests")
    assert "warning" not in many.stderr + few.stdout
    assert "at least 16 of them warm-up" not in many.stdout  # one deployment is both arms: it is measured once
    assert "at least 8 of them warm-up" in many.stdout
