"""Eval process of one arm: `python -m benchgate.quality.worker JOB SPOOL`, started by `runner` alone.

Each byte on standard input starts one round. Its end means that benchgate is gone, and this process exits too.
lm-eval is imported here and in no process of benchgate's own. Its output goes to the log.
"""

from __future__ import annotations

import json
import math
import os
import resource
import signal
import sys
import threading
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchgate import credentials
from benchgate.model.records import INVALID_CHOICE, finite_score
from benchgate.plan.items import PlannedTask
from benchgate.quality.choices import chosen_option, extracted_choice
from benchgate.quality.protocol import CREDENTIALS_VARIABLE, ItemScored, Job, Ready, RoundDone, SpoolWriter, TaskDone
from benchgate.quality.tasks.gated_metric import measured_metric, unit_score


def main(job_path: str, spool_path: str) -> None:
    """Evaluate every task of the job, round by round, into the spool."""
    start_signals = threading.Semaphore(0)
    threading.Thread(target=_read_stdin, args=(start_signals,), name="stdin", daemon=True).start()
    own = json.loads(os.environ.pop(CREDENTIALS_VARIABLE, "{}"))  # popped: nothing started here needs them
    credentials.register_environment(os.environ)
    job = Job.read(Path(job_path), own)
    if job.memory_bytes is not None and sys.platform == "linux":  # other systems ignore the limit
        resource.setrlimit(resource.RLIMIT_AS, (job.memory_bytes, job.memory_bytes))
    with SpoolWriter(Path(spool_path)) as spool:
        _run_rounds(job, spool, start_signals)


def _read_stdin(start_signals: threading.Semaphore) -> None:
    # Not by Python's buffered reader: its lock would be held when the interpreter exits.
    while signals := os.read(0, 64):
        start_signals.release(len(signals))
    os.killpg(os.getpgrp(), signal.SIGKILL)


def _run_rounds(job: Job, spool: SpoolWriter, start_signals: threading.Semaphore) -> None:
    # Imported after the memory limit is set and while the end of standard input is watched.
    from lm_eval import __version__

    from benchgate.quality.lm_eval_internals import build_task
    from benchgate.quality.recorded_model import RecordedModel

    model = RecordedModel(job, spool)
    spool.write(Ready(os.getpid(), __version__))
    built: dict[str, Any] = {}
    used = dict.fromkeys((task.name for task in job.tasks), 0)
    for number, parts in enumerate(job.rounds()):
        start_signals.acquire()
        for task, rows in parts:
            if task.name not in built:
                built[task.name] = build_task(task)
            used[task.name] += _evaluate_rows(job, model, task, built[task.name], rows, spool)
            if rows.stop == len(task.rows):
                spool.write(TaskDone(task.name, used[task.name]))
                spool.sync()
        spool.write(RoundDone(number))


def _evaluate_rows(job: Job, model: Any, task: PlannedTask, built: Any, rows: range, spool: SpoolWriter) -> int:
    """Evaluate rows, repeated ones by their mean (not independent), and return how many items lm-eval used."""
    from lm_eval.evaluator import evaluate

    from benchgate.quality.lm_eval_internals import unread_items

    scores: list[list[ItemScored]] = []
    used = 0
    draws = built.sampler.rnd if hasattr(built, "sampler") else None
    before = None if draws is None else draws.getstate()
    for repetition in range(int(str(task.config.get("repeats") or 1))):
        if draws is not None:
            draws.setstate(before)  # the same few-shot examples each time, as in lm-eval
        model.begin(task, rows, repetition)
        result = evaluate(
            model,
            {"tasks": {task.name: built}},
            samples={task.name: rows},  # ascending, so that lm-eval numbers them as the plan does
            bootstrap_iters=0,
            log_samples=True,
            system_instruction=task.system,
            apply_chat_template=job.endpoint == "chat",
            fewshot_as_multiturn=task.fewshot_as_turns,
            confirm_run_unsafe_code=task.unsafe,
        )
        samples = result["samples"][task.name]
        filtered = [sample for sample in samples if sample["filter"] == task.filter]
        if not filtered:
            known = ", ".join(sorted({str(sample["filter"]) for sample in samples}))
            raise ValueError(f"{task.name} has no filter {task.filter!r}; it has {known}")
        used = int(result["n-samples"][task.name]["effective"])
        if job.recorded is not None:
            answered, ids = job.recorded.get(task.name, {}), task.item_ids
            used -= len([sample for sample in filtered if ids[sample["doc_id"]] not in answered])
            filtered = [sample for sample in filtered if ids[sample["doc_id"]] in answered]
        unread = unread_items(built, task.filter, filtered) if task.output_type == "generate_until" else ()
        scores.append(score_items(task, built, filtered, unread))
    spool.write(*mean_scores(scores))
    return used


def score_items(
    task: PlannedTask, built: Any, samples: Iterable[Mapping[str, Any]], unread: Collection[int] = ()
) -> list[ItemScored]:
    """Read scores and choices from lm-eval's logged samples.

    Those whose `doc_id` is in `unread` score 0: the text of a fallback may match the target, but is no answer. Raises
    ValueError for an item without a numeric score.
    """
    ids = task.item_ids
    items = []
    for sample in samples:
        score, choice = _score(task, built, sample), _choice(task, built, sample)
        if sample["doc_id"] in unread:
            score, choice = min(score, 0.0), INVALID_CHOICE
        items.append(
            ItemScored(
                task=task.name,
                item_id=ids[sample["doc_id"]],
                doc_hash=str(sample["doc_hash"]),
                prompt_hash=str(sample["prompt_hash"]),
                target_hash=str(sample["target_hash"]),
                score=score,
                choice=choice,
            )
        )
    return items


def mean_scores(repetitions: Sequence[Sequence[ItemScored]]) -> list[ItemScored]:
    """Average each item's scores over the repetitions; hashes and choice are those of the first one."""
    if len(repetitions) == 1:
        return list(repetitions[0])
    by_id = [{item.item_id: item for item in repetition} for repetition in repetitions]
    means = []
    for first in repetitions[0]:
        items = [repetition[first.item_id] for repetition in by_id]
        unread = [number for number, item in enumerate(items) if item.choice == INVALID_CHOICE]
        means.append(replace(first, score=sum(item.score for item in items) / len(items), unread=unread))
    return means


def _score(task: PlannedTask, built: Any, sample: Mapping[str, Any]) -> float:
    """Return the item's score, more is better; a corpus metric such as BLEU is computed over this item alone.

    NaN where the task gives none, as some do for an empty answer.
    """
    names: Sequence[str] = sample["metrics"]
    name = measured_metric(task.config, task.metric, names)
    if name is None:
        raise ValueError(f"{task.name} gives no metric {task.metric!r}; it gives {', '.join(names) or 'none'}")
    value = sample[name]
    of_corpus = isinstance(value, list | tuple)
    if of_corpus:
        value = built.aggregation()[name]([value])
    try:
        score = finite_score(float(value))
    except (TypeError, ValueError):
        raise ValueError(f"{task.name}: its metric {name} is {str(value)[:60]!r}, which is no number") from None
    return math.nan if score is None else unit_score(name, score, of_corpus=of_corpus)


def _choice(task: PlannedTask, built: Any, sample: Mapping[str, Any]) -> str | None:
    """Return the chosen option, or what the filter read from the answer."""
    filtered = sample["filtered_resps"]
    if task.output_type == "multiple_choice":
        options = built.doc_to_choice(sample["doc"])
        return extracted_choice(str(options[chosen_option(task.metric, options, [one[0] for one in filtered])]))
    found = filtered[0] if filtered else None
    if isinstance(found, list | tuple) and len(found) == 1:
        found = found[0]
    if not isinstance(found, str):
        return None
    return extracted_choice(found)


if __name__ == "__main__":
    main(*sys.argv[1:])
