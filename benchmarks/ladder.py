"""The ladder at full length: every quantisation of the embedded model against F16 on 2,400 prompts, by the real road.

    .venv/bin/python -m benchmarks.ladder [--repeats 10] [RUNG ...]

F16 against itself is judged REPEATS times and must PASS each time without one answer changed; every other rung once.
Prints per rung the accuracy of each task, what was lost and gained, the p-value of the paired test and the verdict.
Exits 1 when a verdict is not the expected one.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchgate.model.deployment import Arm
from benchgate.store.repository import Store
from scripts.tiny_model.ladder import write_tasks
from scripts.tiny_model.tasks import TASKS

EXPECTED = {
    "f16": {"PASS"},
    "q8_0": {"PASS", "WARN"},
    "q6_k": {"PASS", "WARN"},
    "q5_0": {"PASS", "WARN"},
    "q4_0": {"PASS", "WARN"},
    "q3_k": {"WARN"},
    "q2_k_mix": {"BLOCK"},
    "q2_k": {"BLOCK"},
}
Document = dict[str, Any]


def suite(tasks: list[Path]) -> str:
    """Every rung as a deployment; 2 points for all tasks together, 5 for each."""
    return json.dumps(
        {
            "suite": "ladder",
            "deployments": {rung: {"embedded": {"weights": rung}} for rung in EXPECTED},
            "baseline": "f16",
            "candidate": "q8_0",
            "quality": {"tasks": [str(task) for task in tasks], "max_tokens": 48},
            "gate": {
                "checks": [
                    {"metric": "accuracy", "margin": "2 points"},
                    {"metric": "accuracy", "task": "each", "margin": "5 points"},
                ]
            },
        }
    )


def main() -> int:
    """Run and tabulate."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("rungs", nargs="*", default=list(EXPECTED))
    parser.add_argument("--repeats", type=int, default=10)
    options = parser.parse_args()
    print(f"| weights | {' | '.join(TASKS)} | all | lost | gained | p | verdict | blocked tasks | took |")
    print("|---|" + "---|" * (len(TASKS) + 7))
    surprises = 0
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        (folder / "ladder.yaml").write_text(suite(write_tasks(folder / "tasks")), encoding="utf-8")
        for rung in options.rungs:
            for _ in range(options.repeats if rung == "f16" else 1):
                surprises += judge(rung, folder)
    print(f"{surprises} not as expected")
    return int(surprises > 0)


def judge(rung: str, folder: Path) -> bool:
    """One run and its row; whether it is a surprise."""
    began_s = time.monotonic()
    command = [sys.executable, "-m", "benchgate", "run", "ladder.yaml", "--candidate", rung, "--format", "json"]
    result = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    if not result.stdout:
        sys.exit(f"benchgate ended with status {result.returncode} and no verdict:\n{result.stderr}")
    took_s = time.monotonic() - began_s
    document: Document = json.loads(result.stdout)
    by_task = {check["task"]: check for check in document["checks"]}
    pooled, changed = by_task[None], answers_changed(folder)
    blocked = [task for task in TASKS if by_task[task]["outcome"] == "BLOCK"]
    lost, gained = lost_and_gained(folder)
    cells = [f"{by_task[task]['candidate']:.3f}" for task in TASKS]
    cells += [f"{pooled['candidate']:.3f}", str(lost), str(gained), f"{pooled['p_value']:.2g}", document["outcome"]]
    print(f"| {rung} | {' | '.join(cells)} | {', '.join(blocked) or 'none'} | {took_s:.0f} s |", flush=True)
    return document["outcome"] not in EXPECTED[rung] or (rung == "f16" and changed > 0)


def answers(folder: Path) -> dict[Arm, dict[str, tuple[str | None, float | None]]]:
    """What each arm of the newest run said to each item, and its score."""
    with Store.open(str(folder / ".benchgate" / "benchgate.db"), create=False) as store:
        evidence = store.evidence(store.resolve("@latest"))
    return {
        arm: {
            item.item_id: (item.answer, item.score)
            for seen in evidence.quality
            if seen.arm is arm
            for item in seen.items
        }
        for arm in Arm
    }


def answers_changed(folder: Path) -> int:
    """How many items got another text from the candidate than from the baseline."""
    said = answers(folder)
    return sum(said[Arm.BASELINE][item][0] != text for item, (text, _) in said[Arm.CANDIDATE].items())


def lost_and_gained(folder: Path) -> tuple[int, int]:
    """Items that only the baseline, and that only the candidate got right."""
    said = answers(folder)
    pairs = [(said[Arm.BASELINE][item][1], score) for item, (_, score) in said[Arm.CANDIDATE].items()]
    return pairs.count((1.0, 0.0)), pairs.count((0.0, 1.0))


if __name__ == "__main__":
    sys.exit(main())
