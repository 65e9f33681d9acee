"""A candidate on one accelerator beside a baseline on eight: judged where the suite says so or compares nothing.

Both are practice servers; what tells of their accelerators is a page of an exporter for each.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.command import document, here
from tests.fakes.scripted_server import Received, ScriptedServer, Step

pytestmark = pytest.mark.beside  # what is declared decides, and no time

SUITE = """
suite: fewer
deployments:
  eight: {{sim: {{ttft: 5ms, itl: 1ms}}, gpu: "{eight}/metrics"{declared}}}
  one: {{sim: {{ttft: 5ms, itl: 1ms}}, gpu: "{one}/metrics"}}
baseline: eight
candidate: one
load:
  workload: {{input: 8 tokens, output: 8 tokens}}
  blocks: 2
  warmup: 0
  sweep: [{{stage: c2, concurrency: 2, requests: 12}}]
gate:
  allow_underpowered: true
  client: {{send_lag_p99: 1s, send_lag_max: 1s, read_delay_p99: 1s, read_delay_max: 1s, cpu: 100%, achieved: 1%}}
  checks:
    - {{metric: error_rate, max: 50%}}
    - {{metric: e2e, margin: 95%}}
"""


def exporter(count: int) -> ScriptedServer:
    """A page that tells of so many accelerators."""
    labels = 'gpu="{}",modelName="NVIDIA H200",DCGM_FI_DRIVER_VERSION="570.1"'
    lines = [f"DCGM_FI_DEV_SM_CLOCK{{{labels.format(number)}}} 1980" for number in range(count)]
    page = "\n".join([*lines, ""]).encode()

    def respond(received: Received) -> Iterable[Step]:
        return [b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % len(page) + page]

    return ScriptedServer(respond)


def run(folder: Path, text: str) -> dict[str, Any]:
    folder.mkdir()
    (folder / "suite.yaml").write_text(text)
    return document(here(folder, "run", "suite.yaml", "--format", "json"))


def guard(verdict: dict[str, Any]) -> dict[str, Any]:
    (found,) = [one for one in verdict["guards"] if one["id"] == "arms-alike"]
    return dict(found)


def test_eight_accelerators_to_one_is_judged_where_it_is_declared_or_not_compared(tmp_path: Path) -> None:
    with exporter(8) as eight, exporter(1) as one:
        addresses = {"eight": eight.url, "one": one.url}
        declared = run(tmp_path / "declared", SUITE.format(**addresses, declared=", accelerators: 8"))
        silent = run(tmp_path / "silent", SUITE.format(**addresses, declared=""))
    assert not guard(declared)["tripped"]
    assert "INVALID" not in [check["outcome"] for check in declared["checks"]]
    status = {
        found["what"]: (found["declared"], found["field"]) for found in declared["differences"] if "field" in found
    }
    assert status["the hardware"] == status["the number of accelerators"] == (True, "accelerators")

    assert silent["outcome"] == "INVALID"
    assert [check["outcome"] for check in silent["checks"]] == ["PASS", "INVALID"]
    assert "the hardware (8 x NVIDIA H200, driver 570.1 for the baseline, 1 x NVIDIA H200" in guard(silent)["reason"]
    assert "`deployments.eight.accelerators: 8`" in str(guard(silent)["remedy"])

    folder, bounds = tmp_path / "silent", SUITE.format(**addresses, declared="")
    (folder / "bounds.yaml").write_text(bounds.replace("margin: 95%", "max: 60s"))
    judged = document(here(folder, "gate", silent["run"]["id"], "--policy", "bounds.yaml", "--format", "json"))
    assert [check["outcome"] for check in judged["checks"]] == ["PASS", "PASS"]
    assert judged["outcome"] == "PASS"
    assert {found["what"]: found["declared"] for found in judged["differences"]}["the hardware"] is False
