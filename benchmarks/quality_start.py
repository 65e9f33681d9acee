"""What does lm-eval add to a run before the first eval question is asked?

Each repetition starts what a run starts, one process after the other on an otherwise idle machine: Python with a bare
`import lm_eval`; Python with the part of lm-eval that an eval needs; and an eval process of benchgate's, once until it
is ready to ask and once through a task of one question against a server on the loopback that answers at once. With
`--named` also the process that reads a task of lm-eval's by its name, without its data.

Prints the median and the largest wall time of each, and the CPU time of all its processes together.

.venv/bin/python -m benchmarks.quality_start [--times 5] [--named gsm8k]
"""

from __future__ import annotations

import argparse
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

from benchgate.model.deployment import Arm
from benchgate.plan.evals import PlannedTask
from benchgate.quality.arm import ArmProcess
from benchgate.quality.harness import evaluate
from benchgate.quality.named import read_named
from benchgate.quality.spool import Job
from benchgate.suite.quality import Quality, TaskEntry
from benchgate.targets.address import Route
from benchgate.targets.dialect import DIALECTS, Target
from tests.fakes.scripted_server import ScriptedServer, answering

_TASK = PlannedTask(
    "one",
    {
        "test_split": "test",
        "output_type": "generate_until",
        "doc_to_text": "{{question}}",
        "doc_to_target": "answer",
        "generation_kwargs": {"temperature": 0.0, "until": ["\n"]},
        "metric_list": [{"metric": "exact_match", "aggregation": "mean", "higher_is_better": True}],
    },
    ({"id": "q", "question": "one?", "answer": "uno"},),
)


def main() -> None:
    """Time every way, `--times` times each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--times", type=int, default=5)
    parser.add_argument("--named", default="", help="a task of lm-eval's to look up too, like gsm8k")
    options = parser.parse_args()
    ways: dict[str, Callable[[], object]] = {
        "import lm_eval": lambda: _python("import lm_eval"),
        "lm-eval's evaluator": lambda: _python("from lm_eval.evaluator import evaluate"),
        "eval process until ready": _until_ready,
        "eval of one question": _one_question,
    }
    if options.named:
        ways[f"reading {options.named} by name"] = lambda: read_named(
            Path(),
            [TaskEntry(task=options.named)],
            Quality(tasks=(TaskEntry(task=options.named),)),
            fetch=False,
            allow_code=False,
        )
    print(f"{'':28}  median s   most s   CPU s")
    for name, way in ways.items():
        way()  # once for the disk's and the interpreter's caches
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        walls = [_wall(way) for _ in range(options.times)]
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        cpu = (after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime) / options.times
        print(f"{name:28}  {median(walls):8.2f} {max(walls):8.2f} {cpu:7.2f}")


def _wall(way: Callable[[], object]) -> float:
    started = time.perf_counter()
    way()
    return time.perf_counter() - started


def _python(code: str) -> None:
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)


def _until_ready() -> None:
    dialect = DIALECTS["openai"]
    job = Job(
        url="http://127.0.0.1:9/v1/chat/completions", socket=None, route=Route(), model="m", endpoint="chat",
        headers={}, extra={}, leave_out=[], max_tokens_field="max_tokens", concurrency=2, max_tokens=8,
        connect_s=1.0, total_s=1.0, tasks=(_TASK,), engine=dialect.engine, base_url="http://127.0.0.1:9",
    )  # fmt: skip
    target = Target(Arm.BASELINE, "http://127.0.0.1:9", "m", dialect, None)
    with (
        tempfile.TemporaryDirectory() as folder,
        ArmProcess(target, job, Path(folder), lambda task, answered: None) as process,
    ):
        while not process.ready:
            list(process.new_observations())
            time.sleep(0.005)


def _one_question() -> None:
    with tempfile.TemporaryDirectory() as folder, ScriptedServer(answering(lambda received: "uno")) as server:
        targets = {Arm.BASELINE: Target(Arm.BASELINE, server.url, "m", DIALECTS["openai"], None)}
        [observed] = evaluate(targets, [_TASK], Quality(tasks=(TaskEntry(task="one.yaml"),)), Path(folder))
        assert observed.fault is None, observed.fault


if __name__ == "__main__":
    main()
