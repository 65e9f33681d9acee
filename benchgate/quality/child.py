"""The eval process of one arm: `python -m benchgate.quality.child JOB SPOOL`, started by `arm` and by nobody else.

Standard input is its leash: every byte is the word to ask one round, and its end means that benchgate is gone and this
process must go too. lm-eval is imported here and nowhere else; its chatter goes to the log that standard output and
error are.
"""

from __future__ import annotations

import json
import os
import resource
import signal
import sys
import threading
from pathlib import Path
from typing import Any

from benchgate.plan.items import PlannedTask
from benchgate.quality.spool import CREDENTIALS_VARIABLE, Job, Ready, RoundDone, Scored, SpoolWriter, TaskDone


def main(job_path: str, spool_path: str) -> None:
    """Evaluate every task of the job, round by round, into the spool."""
    word = threading.Semaphore(0)
    threading.Thread(target=_hold_leash, args=(word,), name="leash", daemon=True).start()
    credentials = json.loads(os.environ.pop(CREDENTIALS_VARIABLE, "{}"))  # popped: nothing started here needs them
    job = Job.read(Path(job_path))
    if job.memory_bytes is not None and sys.platform == "linux":  # elsewhere no such limit is kept
        resource.setrlimit(resource.RLIMIT_AS, (job.memory_bytes, job.memory_bytes))
    with SpoolWriter(Path(spool_path)) as spool:
        _evaluate(job, credentials, spool, word)


def _evaluate(job: Job, credentials: dict[str, str], spool: SpoolWriter, word: threading.Semaphore) -> None:
    """Import lm-eval, say so, wait for the word, and evaluate; seeds are pinned and nothing is cached."""
    from lm_eval import __version__

    from benchgate.quality.lm import RecordedModel
    from benchgate.quality.lm_task import built_task

    model = RecordedModel(job, credentials, spool)
    spool.write(Ready(os.getpid(), __version__))
    built: dict[str, Any] = {}
    counted = dict.fromkeys((task.name for task in job.tasks), 0)
    for number, parts in enumerate(job.rounds()):
        word.acquire()
        for task, places in parts:
            if task.name not in built:
                built[task.name] = built_task(task)
            counted[task.name] += _asked(job, model, task, built[task.name], places, spool)
            if places.stop == len(task.rows):
                spool.write(TaskDone(task.name, counted[task.name]))
                spool.sync()
        spool.write(RoundDone(number))


def _asked(job: Job, model: Any, task: PlannedTask, built: Any, places: range, spool: SpoolWriter) -> int:
    """Ask and score the rows at some places of a task; how many lm-eval says it used.

    A task with `repeats` is asked as often, and the score of an item is the mean of its scores: askings of one item are
    not independent, and so count once.
    """
    from benchgate.quality.scoring import mean_scores

    times = int(task.config.get("repeats") or 1)  # type: ignore[call-overload]  # a number: the task was read as one
    scores: list[list[Scored]] = []
    used = 0
    for asking in range(times):
        model.begin(task, places, asking)
        asked, used = _asked_once(job, model, task, built, places)
        scores.append(asked)
    spool.write(*mean_scores(scores))
    return used


def _asked_once(job: Job, model: Any, task: PlannedTask, built: Any, places: range) -> tuple[list[Scored], int]:
    from lm_eval.evaluator import evaluate

    from benchgate.quality.scoring import scored

    result = evaluate(
        model,
        {"tasks": {task.name: built}},
        samples={task.name: places},  # ascending, so that lm-eval knows them by their own numbers
        bootstrap_iters=0,
        log_samples=True,
        system_instruction=task.system,
        apply_chat_template=job.endpoint == "chat",
        fewshot_as_multiturn=task.fewshot_as_turns,
        confirm_run_unsafe_code=task.unsafe,
    )
    samples = result["samples"][task.name]
    judged = [sample for sample in samples if sample["filter"] == task.filter]
    if not judged:
        known = ", ".join(sorted({str(sample["filter"]) for sample in samples}))
        raise ValueError(f"{task.name} has no filter {task.filter!r}; it has {known}")
    return scored(task, built, judged), int(result["n-samples"][task.name]["effective"])


def _hold_leash(word: threading.Semaphore) -> None:
    """Pass on every word to go on, then wait for the end of standard input, and then end this whole process group.

    Read without Python's buffering: its lock would be held at the interpreter's own end.
    """
    while got := os.read(0, 64):
        word.release(len(got))
    os.killpg(os.getpgrp(), signal.SIGKILL)


if __name__ == "__main__":
    main(*sys.argv[1:])
