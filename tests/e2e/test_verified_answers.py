"""Eval items among the requests of a stage, in whole runs: answers that break under load alone block a promotion."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.e2e.command import benchgate, document, latest_evidence

pytestmark = [pytest.mark.beside, pytest.mark.slow]  # answers are judged, and no time

DRILLS = Path(__file__).parents[2] / "suites" / "drills"


@pytest.mark.parametrize(("faults", "outcome"), [([], "PASS"), (["wrong-answer:15@50%"], "BLOCK")])
def test_answers_that_are_wrong_under_load_alone_block_by_accuracy_at_the_stage(
    tmp_path: Path, faults: list[str], outcome: str
) -> None:
    shutil.copytree(DRILLS / "tasks", tmp_path / "tasks")
    shutil.copytree(DRILLS / "data", tmp_path / "data")
    text = (DRILLS / "verified-answers.yaml").read_text()
    for drill, test in [
        ("requests: 160, verify: 10%", "requests: 60, verify: 25%"),
        ("blocks: 6", "blocks: 4"),
        ("decode: 10ms}} # right", f"decode: 10ms, faults: {faults}}}}} # right"),
        ("stage: c16, margin: 5 points", "stage: c16, margin: 15 points"),
        ("gate:\n", "gate:\n  allow_underpowered: true\n"),
    ]:
        assert drill in text
        text = text.replace(drill, test)
    (tmp_path / "suite.yaml").write_text(text)
    result = benchgate(tmp_path, "run", "suite.yaml", "--format", "json")
    found = {check["id"]: check for check in document(result)["checks"]}
    assert found["accuracy@c16"]["outcome"] == outcome, result.stdout + result.stderr
    assert found["accuracy@c16"]["n"] == 60  # 15 items of each of four blocks, each sent once
    assert found["accuracy"]["outcome"] == "PASS"  # alone, every answer is right
    evidence = latest_evidence(tmp_path)
    sent = [one for one in evidence.quality if one.task == "say@c16"]
    assert [len(one.items) for one in sent] == [60, 60]
    assert {item.item_id for item in sent[0].items} == {item.item_id for item in sent[1].items}
    # They are among those of the ramp, and no part of the load's figures.
    measured = [execution.requests for execution in evidence.load if execution.stage == "c16"]
    assert sum(len(columns) for columns in measured) == 8 * 60
