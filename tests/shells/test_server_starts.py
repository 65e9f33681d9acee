"""Times of cold starts: from the command of the start to the first good answer."""

from __future__ import annotations

import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any, cast

from benchgate.model.run import ServerStart
from benchgate.pipeline.deployments import measure_starts
from benchgate.pipeline.progress import Progress
from benchgate.pipeline.work import Work
from benchgate.plan.schedule import make_plan
from benchgate.store.repository import RunWriter
from benchgate.suite.schema import Suite
from tests.fakes.scripted_server import Received, ScriptedServer, Step, json_response

GRACE_S = 1.5
ANSWER = {"choices": [{"message": {"role": "assistant", "content": "ok"}, "finish_reason": "stop"}]}


class Kept:
    """A run's writer that keeps the starts."""

    def __init__(self) -> None:
        self.starts: list[ServerStart] = []

    def add(self, start: ServerStart) -> None:
        self.starts.append(start)


def test_the_end_of_the_server_before_is_no_part_of_the_next_start(tmp_path: Path) -> None:
    """The stop command returns at once, and the old server answers for its grace period, as a pod does."""
    is_up, stopped = tmp_path / "up", tmp_path / "stopped"

    def respond(_: Received) -> Iterable[Step]:
        if stopped.exists() and time.time() - stopped.stat().st_mtime > GRACE_S:
            stopped.unlink()
            is_up.unlink(missing_ok=True)
        yield json_response(ANSWER) if is_up.exists() else json_response({}, status=503)

    with ScriptedServer(respond) as server:
        started: dict[str, Any] = {
            "url": server.url,
            "model": "m",
            "start": {
                "run": ["sh", "-c", f"touch {is_up}; exec sleep 600"],
                "stop": ["touch", str(stopped)],
                "within": "20s",
            },
        }
        suite = Suite.model_validate(
            {
                "suite": "starts",
                "deployments": {"one": started},
                "baseline": "one",
                "candidate": "one",
                "start": {"times": 3},
                "gate": {"checks": [{"metric": "cold_start", "max": "60s"}]},
            }
        )
        writer = Kept()
        work = Work(suite, tmp_path, make_plan(suite), tmp_path / "logs", tmp_path / "weights", Progress())
        measure_starts(work, cast(RunWriter, writer))
    times_s = [start.to_answer_s for start in writer.starts]
    assert len(times_s) == 3
    assert max(times_s) < GRACE_S, times_s
