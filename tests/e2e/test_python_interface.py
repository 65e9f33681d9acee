"""The Python interface: the example of docs/python.md runs, and `import benchgate` loads nothing for it."""

from __future__ import annotations

import importlib
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import benchgate
from benchgate import api
from benchgate.errors import UsageError

pytestmark = pytest.mark.beside

DOC = Path(__file__).parents[2] / "docs" / "python.md"
SUITE = """
suite: suite
deployments:
  plain: {sim: {ttft: 5ms, itl: 1ms}}
  other: {sim: {ttft: 5ms, itl: 1ms}}
baseline: plain
candidate: other
load:
  workload: {input: 8 tokens, output: 2 tokens}
  blocks: 2
  warmup: 0
  sweep: [{stage: c1, concurrency: 1, requests: 4}]
gate:
  client: {send_lag_p99: 200ms, send_lag_max: 1s, read_delay_p99: 200ms, read_delay_max: 1s, cpu: 100%, achieved: 50%}
  checks:
    - {metric: error_rate, max: 95%}
    - {metric: ttft, margin: 95%, required: false}
"""


@pytest.mark.slow
def test_the_example_of_the_documentation_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("pandas")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "suite.yaml").write_text(SUITE)
    (code,) = re.findall(r"```python\n(.*?)```", DOC.read_text(encoding="utf-8"), re.DOTALL)
    names: dict[str, Any] = {}
    exec(code, names)
    assert list(names["checks"]["id"]) == [check.id for check in names["result"].checks]
    assert len(names["runs"]) == 1
    assert set(names["metrics"]["arm"]) == {"baseline", "candidate"}
    assert (tmp_path / "report.html").read_text(encoding="utf-8").startswith("<!doctype html>")


def test_the_package_imports_its_interface_only_when_it_is_used() -> None:
    code = "import sys, benchgate; print(len([name for name in sys.modules if name.startswith('benchgate.')]))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "0\n"
    assert benchgate.judge is api.judge
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        benchgate.nothing  # type: ignore[attr-defined]  # noqa: B018


def test_a_table_needs_a_library_of_data_frames(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> None:
        raise ModuleNotFoundError(name)

    monkeypatch.setattr(importlib, "import_module", missing)
    with pytest.raises(UsageError, match="needs pandas or polars"):
        api.Table([], ("id",)).to_frame()


def test_several_candidates_are_several_runs(tmp_path: Path) -> None:
    (tmp_path / "suite.yaml").write_text(SUITE.replace("candidate: other", "candidates: [other]"))
    with pytest.raises(UsageError, match="has several candidates; load it with one"):
        benchgate.run(tmp_path / "suite.yaml")
    assert benchgate.load_suite(tmp_path / "suite.yaml", candidate="other").suite.candidates == ()
