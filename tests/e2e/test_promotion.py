"""quality-promotion on a machine that has none of its data: it is looked up, and what a run would fetch is said."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.e2e.command import here

DATA_SETS = {
    "TIGER-Lab/MMLU-Pro",
    "openai/gsm8k main",
    "openai/openai_humaneval",
    "google/IFEval",
    "Xnhyacinth/LongBench multifieldqa_en",
}


@pytest.fixture
def nothing_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine without a cache of data sets, and without a network to fill it from."""
    for name in ("HF_HOME", "HF_DATASETS_CACHE", "HF_HUB_CACHE"):
        monkeypatch.setenv(name, str(tmp_path / "cache"))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    return tmp_path


def test_plan_names_the_data_that_a_run_would_fetch_and_fetches_none(nothing_kept: Path) -> None:
    result = here(nothing_kept, "plan", "quality-promotion", "--format", "json")
    assert result.returncode == 0, result.stderr
    plan = json.loads(result.stdout)
    assert {needed.partition(" (with ")[0] for needed in plan["to_fetch"]} == DATA_SETS  # some need packages too
    assert (plan["eval_items"], plan["text_positions"]) == (0, 2000)
