"""The eval process of one arm: `python -m benchgate.quality.worker JOB SPOOL`, started by `arm` and by nobody else.

Standard input is its leash: every byte is the word to ask one round, and its end means that benchgate is gone and this
process must go too. lm-eval is imported here and nowhere else; its chatter goes to the log that standard output and
error are.


From what lm-eval logs of an item to its score and to what its answer amounts to. Used only in an eval process.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import resource
import signal
import sys
import threading
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchgate.model.records import INVALID_CHOICE
from benchgate.plan.evals import PlannedTask
from benchgate.quality.protocol import CREDENTIALS_VARIABLE, Job, Ready, RoundDone, Scored, SpoolWriter, TaskDone


def main(job_path: str, spool_path: str) -> None:
    """Evaluate every task of the job, round by round, into the spool."""
    word = threading.Semaphore(0)
    threading.Thread(target=_hold_leash, args=(word,), name="leash", daemon=True).start()
    credentials = json.loads(os.environ.pop(CREDENTIALS_VARIABLE, "{}"))  # popped: nothing started here needs them
    job = Job.read(Path(job_path))
    if job.memory_bytes is not None and sys.platform == "linux":  # elsewhere no such limit is kept
        resource.setrlimit(resource.RLIMIT_AS, (job.memory_bytes, job.memory_bytes))
    with SpoolWriter(Path(spool_path)) as spool:
        _run_rounds(job, credentials, spool, word)


def _run_rounds(job: Job, credentials: dict[str, str], spool: SpoolWriter, word: threading.Semaphore) -> None:
    """Import lm-eval, say so, wait for the word, and evaluate; seeds are pinned and nothing is cached."""
    from lm_eval import __version__

    from benchgate.quality.lm_eval_internals import built_task
    from benchgate.quality.recorded_model import RecordedModel

    model = RecordedModel(job, credentials, spool)
    spool.write(Ready(os.getpid(), __version__))
    built: dict[str, Any] = {}
    counted = dict.fromkeys((task.name for task in job.tasks), 0)
    for number, parts in enumerate(job.rounds()):
        word.acquire()
        for task, places in parts:
            if task.name not in built:
                built[task.name] = built_task(task)
            counted[task.name] += _evaluate_rows(job, model, task, built[task.name], places, spool)
            if places.stop == len(task.rows):
                spool.write(TaskDone(task.name, counted[task.name]))
                spool.sync()
        spool.write(RoundDone(number))


def _evaluate_rows(job: Job, model: Any, task: PlannedTask, built: Any, places: range, spool: SpoolWriter) -> int:
    """Ask and score the rows at some places of a task; how many lm-eval says it used.

    A task with `repeats` is asked as often, and the score of an item is the mean of its scores: askings of one item are
    not independent, and so count once.
    """

    times = int(task.config.get("repeats") or 1)  # type: ignore[call-overload]  # a number: the task was read as one
    scores: list[list[Scored]] = []
    used = 0
    for asking in range(times):
        model.begin(task, places, asking)
        asked, used = _evaluate_once(job, model, task, built, places)
        scores.append(asked)
    spool.write(*mean_scores(scores))
    return used


def _evaluate_once(job: Job, model: Any, task: PlannedTask, built: Any, places: range) -> tuple[list[Scored], int]:
    from lm_eval.evaluator import evaluate

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
    return scored_items(task, built, judged), int(result["n-samples"][task.name]["effective"])


def _hold_leash(word: threading.Semaphore) -> None:
    """Pass on every word to go on, then wait for the end of standard input, and then end this whole process group.

    Read without Python's buffering: its lock would be held at the interpreter's own end.
    """
    while got := os.read(0, 64):
        word.release(len(got))
    os.killpg(os.getpgrp(), signal.SIGKILL)


_OF_A_HUNDRED = frozenset({"bleu", "chrf", "chrf++"})
_LONGEST_CHOICE = 200


def scored_items(task: PlannedTask, built: Any, samples: Iterable[Mapping[str, Any]]) -> list[Scored]:
    """The scores of items; ValueError when the task gives none of one, or none that is a number."""
    ids = task.item_ids
    return [_scored_item(task, built, sample, ids[sample["doc_id"]]) for sample in samples]


def _scored_item(task: PlannedTask, built: Any, sample: Mapping[str, Any], item: str) -> Scored:
    doc, prompt, target = (str(sample[name]) for name in ("doc_hash", "prompt_hash", "target_hash"))
    return Scored(task.name, item, doc, prompt, target, _item_score(task, built, sample), _choice(task, built, sample))


def mean_scores(askings: Sequence[Sequence[Scored]]) -> list[Scored]:
    """One line an item: the mean of what it scored each time it was asked; hashes and choice of the first time."""
    if len(askings) == 1:
        return list(askings[0])
    by_id = [{line.item_id: line for line in asking} for asking in askings]
    return [_mean([asking[line.item_id] for asking in by_id]) for line in askings[0]]


def _mean(lines: Sequence[Scored]) -> Scored:
    unread = sum(line.choice == INVALID_CHOICE for line in lines)
    return replace(lines[0], score=sum(line.score for line in lines) / len(lines), unread=unread)


def _item_score(task: PlannedTask, built: Any, sample: Mapping[str, Any]) -> float:
    """Between 0 and 1 where the metric is a share; more is better.

    A metric of all items together (BLEU, or a list of instructions kept) is taken of this item alone.
    """
    names: Sequence[str] = sample["metrics"]
    name = task.metric if task.metric in names else names[0] if len(names) == 1 else None
    if name is None:
        raise ValueError(f"{task.name} gives no metric {task.metric!r}; it gives {', '.join(names)}")
    value = sample[name]
    if isinstance(value, list | tuple):
        value = built.aggregation()[name]([value])
    try:
        score = float(value) / (100 if name in _OF_A_HUNDRED else 1)
    except (TypeError, ValueError):
        raise ValueError(f"{task.name}: its metric {name} is {str(value)[:60]!r}, which is no number") from None
    if not math.isfinite(score):
        raise ValueError(f"{task.name}: its metric {name} is {score}, which is no score")
    return score


def _choice(task: PlannedTask, built: Any, sample: Mapping[str, Any]) -> str | None:
    """The option chosen, or what the filter read out of the answer; a long one by its digest."""
    filtered = sample["filtered_resps"]
    if task.output_type == "multiple_choice":
        return str(chosen(task.metric, built.doc_to_choice(sample["doc"]), [one[0] for one in filtered]))
    found = filtered[0] if filtered else None
    if isinstance(found, list | tuple) and len(found) == 1:
        found = found[0]
    if not isinstance(found, str):
        return None
    if len(found) <= _LONGEST_CHOICE:
        return found
    return f"sha256:{hashlib.sha256(found.encode('utf-8', 'surrogatepass')).hexdigest()}"


def chosen(metric: str, options: Sequence[str], logprobs: Sequence[float]) -> str:
    """The option that lm-eval takes for the answer: by its log-probability, for some metrics per character or byte."""
    if metric == "acc_norm":
        weighed = [value / max(len(option), 1) for value, option in zip(logprobs, options, strict=False)]
    elif metric == "acc_bytes":
        weighed = [value / max(len(option.encode()), 1) for value, option in zip(logprobs, options, strict=False)]
    elif metric == "acc_mutual_info":
        alone = logprobs[len(options) :]
        weighed = [value - other for value, other in zip(logprobs, alone, strict=False)]
    else:
        weighed = list(logprobs[: len(options)])
    return options[weighed.index(max(weighed))]


if __name__ == "__main__":
    main(*sys.argv[1:])
