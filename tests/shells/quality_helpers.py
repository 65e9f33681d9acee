"""What the tests of the eval processes share: tasks, targets, right answers, and what became of processes."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path

from benchgate.model.deployment import Arm
from benchgate.model.records import EvalItem
from benchgate.model.run import QualityObservation
from benchgate.plan.items import PlannedTask
from benchgate.quality.tasks.loading import load_tasks
from benchgate.suite.quality import Quality
from benchgate.targets.dialect import DIALECTS, Target
from tests.fakes.scripted_server import Received

FIXTURES = Path(__file__).parent.parent / "fixtures" / "tasks"


def tasks_of(folder: Path, *paths: str, **said: object) -> tuple[PlannedTask, ...]:
    """The tasks of a suite's `quality` section that names these."""
    return load_tasks(folder, Quality.model_validate({"tasks": list(paths), **said}))


TASKS = tasks_of(FIXTURES, "italian.yaml", "dates.yaml")
ITALIAN, DATES = TASKS
API_KEY = "key-7d1f0c"
TENANT_KEY = "tenant-0d22"
RIGHT = {
    "one": "uno", "two": "due", "three": "tre", "four": "quattro", "five": "cinque", "six": "sei",
    "2024-01-01": "2024-01-02", "2024-01-02": "2024-01-03", "2024-01-03": "2024-01-04", "2024-01-04": "2024-01-05",
    "2024-01-05": "2024-01-06",
}  # fmt: skip

PARTICULAR = replace(
    DIALECTS["llamacpp"],
    extra={**DIALECTS["llamacpp"].extra, "min_tokens": 1},
    leave_out=("seed", "temperature"),
    max_tokens_field="max_completion_tokens",
)

Observed = Mapping[tuple[Arm, str], QualityObservation]


def target(arm: Arm, url: str, api_key: str | None = None) -> Target:
    return Target(arm, url, "scripted", DIALECTS["llamacpp"], api_key)


def settings(timeout: str = "60s", endpoint: str = "chat") -> Quality:
    return Quality.model_validate({"tasks": ["any"], "concurrency": 4, "timeout": timeout, "endpoint": endpoint})


def subject(received: Received) -> str:
    """What a prompt of either task asks about: `one`, `2024-01-01`."""
    return next(word for word in received.prompt.replace("?", "").split() if word in RIGHT)


def right_answer(received: Received) -> str:
    return RIGHT[subject(received)]


def collect(observations: Iterator[QualityObservation]) -> Observed:
    seen: dict[tuple[Arm, str], QualityObservation] = {}
    for observation in observations:
        key = (observation.arm, observation.task)
        assert key not in seen, f"{key} was observed twice"
        seen[key] = observation
    return seen


def items(observation: QualityObservation) -> dict[str, EvalItem]:
    return {item.item_id: item for item in observation.items}


def child_pids(work_dir: Path) -> list[int]:
    spools = [path.read_text().splitlines() for path in work_dir.glob("*/spool.jsonl")]
    return [json.loads(lines[0])["pid"] for lines in spools if lines]


def is_running(pid: int) -> bool:
    """Alive and not merely waiting to be reaped by whoever inherited it."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state != "Z"


def wait_until(true: Callable[[], bool], limit_s: float = 60) -> None:
    deadline = time.monotonic() + limit_s
    while not true():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.02)


def only_baseline(url: str) -> dict[Arm, Target]:
    return {Arm.BASELINE: target(Arm.BASELINE, url)}
