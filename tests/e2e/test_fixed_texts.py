"""Fixed texts on the whole road: planned, read by two engines, judged, shown, and judged again from the store."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchgate.store.repository import Store
from tests.e2e.command import STORE, document, here

pytestmark = pytest.mark.beside


ROOT = Path(__file__).parents[2]
SUITE = """
suite: texts
seed: 5
deployments:
  f16: {embedded: {weights: f16}}
  q2_k: {embedded: {weights: q2_k}}
baseline: f16
candidate: q2_k
divergence: {texts: texts.jsonl, positions: 30, window: 200}
gate:
  checks:
    - {metric: kld, max: 0.05 nats, required: true}
    - {metric: same_top1, min: 50%}
    - {metric: perplexity, margin: 2%, required: false}
"""
JSON = ("--format", "json")
CANARY = "capital of canaryville"


@pytest.mark.slow
def test_broken_weights_are_blocked_and_the_store_gives_the_same_verdict_without_the_texts(tmp_path: Path) -> None:
    rows = (ROOT / "suites" / "data" / "texts.jsonl").read_text(encoding="utf-8").splitlines()[::5]
    canary = json.dumps({"id": "canary", "text": f"<|user|>{CANARY}<|assistant|>nowhere<|end|>"})
    (tmp_path / "texts.jsonl").write_text("\n".join([canary, *rows]) + "\n", encoding="utf-8")
    (tmp_path / "texts.yaml").write_text(SUITE, encoding="utf-8")
    planned = here(tmp_path, "plan", "texts.yaml")
    assert "texts    30 positions on both arms" in planned.stdout
    run = here(tmp_path, "run", "texts.yaml", "--report", "report.html", *JSON)
    verdict = document(run)
    assert (run.returncode, verdict["outcome"]) == (10, "BLOCK"), run.stdout
    assert verdict["reason"].startswith("q2_k must not be promoted: Divergence from the baseline (mean KLD): 0.")
    outcomes = {check["id"]: check["outcome"] for check in verdict["checks"]}
    assert outcomes["kld:slo"] == "BLOCK" and outcomes["same_top1:slo"] in ("PASS", "WARN")
    again = here(tmp_path, "gate", verdict["run"]["id"], *JSON)
    assert again.stdout == run.stdout
    page = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert "all 264 tokens of its vocabulary" in page
    assert "nats" in here(tmp_path, "trend", "kld").stdout
    with Store.open(str(tmp_path / STORE), create=False) as store:
        plan, evidence = store.plan(verdict["run"]["id"]), store.evidence(verdict["run"]["id"])
    assert b"canary" in plan and b"canaryville" not in plan  # its id, and not what it says
    assert "canaryville" not in page and "canaryville" not in repr(evidence.divergence)
