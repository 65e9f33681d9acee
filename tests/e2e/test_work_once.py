"""A run does its costly steps once: parse the suite, price it, build the report's view, read the evidence of a look."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from functools import cached_property, wraps
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from benchgate.pipeline import suite_file
from benchgate.report.view import Report
from benchgate.store.writer import RunWriter
from benchgate.suite.loader import parse_suite
from tests.fakes import quick_command

pytestmark = pytest.mark.beside

SUITE = """
suite: counted
deployments:
  plain: {sim: {ttft: 5ms, itl: 1ms}, accelerator: H100}
  other: {sim: {ttft: 5ms, itl: 1ms}, accelerator: H100}
baseline: plain
candidates: [CANDIDATES]
prices: prices.yaml
load:
  workload: {input: 8 tokens, output: 2 tokens}
  looks: [2, 4]
  warmup: 0
  sweep: [{stage: c1, concurrency: 1, requests: 4}]
gate:
  client: {send_lag_p99: 200ms, send_lag_max: 1s, read_delay_p99: 200ms, read_delay_max: 1s, cpu: 100%, achieved: 50%}
  checks:
    - {metric: error_rate, max: 50%}
    - {metric: ttft, margin: 5%, required: false}
"""
PRICES = "prices:\n  - {accelerator: H100, price: $2/h, from: 2020-01-01}\n"


@pytest.fixture
def counts(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    counted: Counter[str] = Counter()

    def counting(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            counted[name] += 1
            return function(*args, **kwargs)

        return call

    monkeypatch.setattr(YAML, "compose", counting("YAML files", YAML.compose))
    monkeypatch.setattr(suite_file, "parse_suite", counting("suites", parse_suite))
    monkeypatch.setattr(suite_file, "read_prices", counting("prices", suite_file.read_prices))
    monkeypatch.setattr(RunWriter, "evidence", counting("evidence", RunWriter.evidence))
    view = Report.__dict__["view"]
    assert isinstance(view, cached_property)
    counted_view = cached_property(counting("views", view.func))
    counted_view.__set_name__(Report, "view")
    monkeypatch.setattr(Report, "view", counted_view)
    return counted


@pytest.mark.parametrize("candidates", [pytest.param("other", marks=pytest.mark.slow), "other, plain2"])
def test_a_run_reads_its_suite_once_and_the_evidence_once_a_look(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, counts: Counter[str], candidates: str
) -> None:
    monkeypatch.chdir(tmp_path)
    text = SUITE.replace("CANDIDATES", candidates)
    if "plain2" in candidates:
        text = text.replace("baseline:", "  plain2: {sim: {ttft: 5ms, itl: 1ms}, accelerator: H100}\nbaseline:")
    (tmp_path / "suite.yaml").write_text(text)
    (tmp_path / "prices.yaml").write_text(PRICES)
    ended = quick_command.told("run", "suite.yaml", "--report", "report.html")
    assert ended.exit_code in (0, 10, 11, 12), ended.output
    runs = len(candidates.split(","))
    looks = ended.stderr.count(" blocks: ")
    assert looks >= runs
    assert counts == {"YAML files": 2, "suites": 1, "prices": 1, "views": runs, "evidence": looks + runs}
