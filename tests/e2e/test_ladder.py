"""The rung of the ladder that only pairs tell from F16, judged by the real road on all 2,400 prompts.

What each rung gets right is known (benchgate/embedded/tiny/MODEL_CARD.md), so the gate is held to a truth.
`benchmarks/ladder.py` does so for all of them; that F16 passes against itself and Q2_K is blocked by name is also in
`test_road`.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

from benchgate.stats.proportions import clopper_pearson
from scripts.tiny_model.ladder import write_tasks
from tests.e2e.command import document, here

pytestmark = [pytest.mark.beside, pytest.mark.slow]


ROOT = Path(__file__).parents[2]
SUITE = """
suite: ladder
deployments:
  f16: {{embedded: {{weights: f16}}}}
  q3_k: {{embedded: {{weights: q3_k}}}}
baseline: f16
candidate: q3_k
quality:
  tasks: [{tasks}]
  max_tokens: 48
gate:
  checks:
    - {{metric: accuracy, margin: 2 points}}
    - {{metric: accuracy, task: each, margin: 10 points}}
"""
TASKS = ("add", "reverse", "sort", "json", "fact")


def checks(document: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {check["id"]: check for check in document["checks"]}


@pytest.fixture(scope="module")
def long(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Q3_K on all 2,400 prompts."""
    folder = tmp_path_factory.mktemp("long")
    tasks = ", ".join(map(str, write_tasks(folder / "tasks")))
    (folder / "ladder.yaml").write_text(SUITE.format(tasks=tasks))
    return document(here(folder, "run", "ladder.yaml", "--format", "json"))


def test_a_loss_of_about_a_point_is_shown_by_pairs_where_two_accuracies_overlap(long: dict[str, Any]) -> None:
    pooled = checks(long)["accuracy"]
    assert pooled["n"] == 2400
    assert 0 < pooled["harm"] < 0.015  # 0.009 on x86-64 with AVX2
    assert pooled["p_value"] < 0.01
    right = [round(pooled[arm] * pooled["n"]) for arm in ("baseline", "candidate")]
    alone = [clopper_pearson(count, pooled["n"], 0.05) for count in right]
    assert alone[1].upper > alone[0].lower  # each accuracy by itself shows nothing


def test_accuracy_of_f16_and_q3_k_is_that_of_the_models_card(long: dict[str, Any]) -> None:
    card = (ROOT / "benchgate" / "embedded" / "tiny" / "MODEL_CARD.md").read_text(encoding="utf-8")
    table = card.partition("2,400")[2]
    for name, arm in (("f16", "baseline"), ("q3_k", "candidate")):
        row = next(line for line in table.splitlines() if line.startswith(f"| {name} |"))
        said = dict(zip(TASKS, map(float, row.split("|")[2:7]), strict=True))
        found = {task: checks(long)[f"accuracy@{task}"][arm] for task in TASKS}
        assert all(math.isclose(found[task], said[task], abs_tol=0.01) for task in TASKS), (name, found, said)
