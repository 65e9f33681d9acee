"""The eval process of one arm: `python -m benchgate.quality.child JOB SPOOL`, started by `arm` and by nobody else.

Standard input is its leash: one line says start, and its end means that benchgate is gone and this process must go
too. lm-eval is imported here and nowhere else; its chatter goes to the log that standard output and error are.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
from pathlib import Path
from typing import Any

from benchgate.plan.schedule import PlannedTask
from benchgate.quality.spool import CREDENTIALS_VARIABLE, Job, Ready, Scored, SpoolWriter, TaskDone


def main(job_path: str, spool_path: str) -> None:
    """Evaluate every task of the job, one after the other, into the spool."""
    start = threading.Event()
    threading.Thread(target=_hold_leash, args=(start,), name="leash", daemon=True).start()
    credentials = json.loads(os.environ.pop(CREDENTIALS_VARIABLE, "{}"))  # popped: nothing started here needs them
    with SpoolWriter(Path(spool_path)) as spool:
        _evaluate(Job.read(Path(job_path)), credentials, spool, start)


def _evaluate(job: Job, credentials: dict[str, str], spool: SpoolWriter, start: threading.Event) -> None:
    """Import lm-eval, say so, wait for the word, and evaluate; seeds are pinned and nothing is cached."""
    from lm_eval import __version__, simple_evaluate
    from lm_eval.tasks import TaskManager

    from benchgate.quality.lm import RecordedModel

    model = RecordedModel(job, credentials, spool)
    manager = TaskManager(include_defaults=False)
    spool.write(Ready(os.getpid(), __version__))
    start.wait()
    for task in job.tasks:
        result = simple_evaluate(
            model=model,
            tasks=[_config(task)],
            task_manager=manager,
            apply_chat_template=job.endpoint == "chat",
            log_samples=True,
            bootstrap_iters=0,
            use_cache=None,
            random_seed=0,
            numpy_random_seed=0,
            torch_random_seed=0,
            fewshot_random_seed=0,
        )
        _write_scores(task.name, result, spool)


def _config(task: PlannedTask) -> dict[str, object]:
    """The task as lm-eval takes it, its rows handed over in memory.

    Through a file they would pass the JSON reader of `datasets`, which takes a column of texts that look like dates
    for dates, and so changes the prompts.
    """
    import datasets  # type: ignore[import-untyped]  # ships no type information

    split = str(task.config["test_split"])

    def rows(**_metadata: object) -> dict[str, Any]:
        return {split: datasets.Dataset.from_list([dict(row) for row in task.rows])}

    return {**task.config, "task": task.name, "custom_dataset": rows}


def _write_scores(task: str, result: dict[str, Any], spool: SpoolWriter) -> None:
    for sample in result["samples"][task]:
        hashes = {name: sample[name] for name in ("doc_hash", "prompt_hash", "target_hash")}
        spool.write(Scored(task, sample["doc"]["id"], score=float(sample["exact_match"]), **hashes))
    spool.write(TaskDone(task, int(result["n-samples"][task]["effective"])))
    spool.sync()


def _hold_leash(start: threading.Event) -> None:
    """Wait for the word to start, then for the end of standard input, and then end this whole process group.

    Read without Python's buffering: its lock would be held at the interpreter's own end.
    """
    if os.read(0, 1):
        start.set()
        while os.read(0, 1):
            pass
    os.killpg(os.getpgrp(), signal.SIGKILL)


if __name__ == "__main__":
    main(*sys.argv[1:])
