"""Evals of both arms at the same time, each in an lm-eval process of its own, and their observations.

An observation of a task is made from the events of its process, strictly: anything missing is a fault.
"""

from __future__ import annotations

import hashlib
import json
import math
import signal
import subprocess
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Self

from benchgate import child_process
from benchgate.errors import UsageError
from benchgate.model.deployment import Arm
from benchgate.model.records import EvalItem, finite_score
from benchgate.model.run import INTERRUPTED, QualityObservation
from benchgate.plan.items import PlannedTask
from benchgate.quality.protocol import (
    CREDENTIALS_VARIABLE,
    REQUEST_SEED,
    ItemAnswered,
    ItemPrompt,
    ItemScored,
    Job,
    Ready,
    RoundDone,
    SpoolReader,
    TaskDone,
)
from benchgate.quality.tasks.gated_metric import LOCAL_METRICS
from benchgate.quality.tasks.lm_eval_tasks import functions_in, lm_eval_environment
from benchgate.suite.quality import Quality
from benchgate.suite.schema import Limits
from benchgate.system import lacking
from benchgate.targets.dialect import Target
from benchgate.targets.error_messages import one_line
from benchgate.units import show_duration, show_size


def task_metadata(task: PlannedTask) -> dict[str, object]:
    """Return how a task is prompted and scored: stored with a run, and compared between the arms."""
    metadata = task.config.get("metadata")
    found: dict[str, object] = {
        "metric": task.metric,
        "filter": task.filter,
        "scale": task.scale,
        "output_type": task.output_type,
        "num_fewshot": task.config.get("num_fewshot") or 0,
        "fewshot_as_multiturn": task.fewshot_as_turns,
        "repeats": _repeats(task),
        "system_sha256": hashlib.sha256(task.system.encode()).hexdigest() if task.system else None,
        "task_version": metadata.get("version") if isinstance(metadata, dict) else None,
        "chance": task.chance,
        "leaves": task.leaves,
    }
    return {name: value for name, value in found.items() if value is not None}


def _repeats(task: PlannedTask) -> int:
    return int(str(task.config.get("repeats") or 1))


@dataclass(slots=True)
class TaskRecord:
    """Events of one task so far, by item id: the order of completion does not matter."""

    task: PlannedTask
    answered: dict[str, ItemAnswered] = field(default_factory=dict)
    scored: dict[str, ItemScored] = field(default_factory=dict)
    _empty: Counter[str] = field(default_factory=Counter)
    _cut: dict[str, set[int]] = field(default_factory=dict)  # numbers of the repetitions that were truncated

    def take_answer(self, line: ItemAnswered) -> None:
        """Add an answer. Of several repetitions the first is shown, and a failure of any counts."""
        self._empty[line.item_id] += not (line.answer or "").strip()
        if line.finish_reason == "length":
            self._cut.setdefault(line.item_id, set()).add(line.repetition)
        first = self.answered.get(line.item_id)
        if first is None or line.repetition == 0:
            self.answered[line.item_id] = line
        else:
            self.answered[line.item_id] = replace(
                first,
                error=first.error or line.error,
                was_null=first.was_null or line.was_null,
                retries=first.retries + line.retries,
            )

    def fault(self, done: TaskDone) -> str | None:
        """Return why the finished task cannot be used, or None if every row was answered, scored and counted."""
        expected = set(self.task.item_ids)
        if done.effective_n != len(expected) or self.answered.keys() != expected or self.scored.keys() != expected:
            found = f"answered {len(self.answered)}, scored {len(self.scored)}, counted {done.effective_n}"
            return f"lm-eval did not use exactly the {len(expected)} rows of the task: {found}"
        failed = [line for line in self.answered.values() if line.error is not None]
        if failed:
            return f"{len(failed)} of {len(expected)} items failed, the first with: {failed[0].error}"
        for scored in self.scored.values():
            if finite_score(scored.score) is None:
                return f"the score of {scored.item_id} is {scored.score}"
            if self.task.scale == "binary" and scored.score not in (0.0, 1.0):
                found = f"the score of {scored.item_id} is {scored.score:g}, neither 0 nor 1"
                return f"{found}; write `scale: continuous` for the task, and judge it by `score`"
        return None

    def _tie_fault(self) -> str | None:
        """Return a fault of a server that gave most items one log-probability for all options: it did not read them."""
        tied = sum(line.tied for line in self.answered.values())
        if tied * 2 > len(self.answered):
            what = f"{tied} of {len(self.answered)} items got the same log-probability for all their options"
            return f"{what}: the server does not score the texts it is given"
        return None

    def observation(
        self, arm: Arm, fault: str | None, harness: Mapping[str, object], repeat: int = 0
    ) -> QualityObservation:
        """Return the observation with the items so far, in the order of the rows; a fault of the server counts too."""
        answered = self.answered.values()
        counts = {
            "null_answers": sum(line.was_null for line in answered),
            "retries": sum(line.retries for line in answered),
        }
        if tied := sum(line.tied for line in answered):
            counts["tied_count"] = tied
        if (times := _repeats(self.task)) > 1:
            complete = [item for item in self.items() if item.error is None]
            unclear = [
                len({*self._cut.get(item.item_id, ()), *self.scored[item.item_id].unread})
                for item in complete
                if not item.correct
            ]
            counts |= {
                "askings_count": times * len(complete),
                "empty_count": sum(self._empty[item.item_id] for item in complete),
                "unclear_count": sum(unclear),
            }
        return QualityObservation(
            task=self.task.name,
            arm=arm,
            items=self.items(),
            expected_n=len(self.task.rows),
            fault=fault or self._tie_fault(),
            harness={**harness, **counts},
            repeat=repeat,
        )

    def items(self) -> tuple[EvalItem, ...]:
        """Return the items so far, in the order of the rows."""
        ids, key, clusters = self.task.item_ids, self.task.cluster_key, dict[str, str]()
        if key is not None:  # a row without a cluster is its own
            named = [(item, row[key]) for item, row in zip(ids, self.task.rows, strict=True)]
            clusters = {item: str(value) for item, value in named if value is not None}
        return tuple(_item(self.answered[i], self.scored.get(i), clusters.get(i)) for i in ids if i in self.answered)


def _item(answered: ItemAnswered, scored: ItemScored | None, cluster: str | None) -> EvalItem:
    # A failed item has no score, although lm-eval scored its placeholder; an item never scored has no hashes.
    error = answered.error
    if error is None and scored is None:
        error = "answered, but the eval ended before it was scored"
    valid = scored if error is None else None
    return EvalItem(
        item_id=answered.item_id,
        doc_hash=scored.doc_hash if scored else "",
        prompt_hash=scored.prompt_hash if scored else "",
        target_hash=scored.target_hash if scored else "",
        score=finite_score(valid.score) if valid else None,
        answer=answered.answer,
        finish_reason=answered.finish_reason,
        output_tokens=answered.output_tokens,
        latency_ns=answered.latency_ns,
        error=error,
        choice=valid.choice if valid else None,
        cluster=cluster,
        input_tokens=answered.input_tokens,
    )


_POLL_S = 0.05
# Time limit for importing lm-eval, which takes seconds on a busy machine. Not part of the eval's time limit.
START_LIMIT_S = 120.0
_ITEMS_PER_INTERIM_ANALYSIS = 10
_THREAD_COUNTS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
_OUT_OF_MEMORY_SIGNS = (
    "MemoryError", "Unable to allocate", "Cannot allocate memory", "cannot allocate memory", "std::bad_alloc",
    "failed to map segment", "can't start new thread", "SystemError",
)  # fmt: skip

# Task → the baseline's and the candidate's items so far, in the order of the rows.
Items = Mapping[str, tuple[Sequence[EvalItem], Sequence[EvalItem]]]

# Interim analysis: returns the check that the items so far decide, or None to go on.
Stop = Callable[[Items], str | None]

OnProgress = Callable[[Arm, str, int], None]  # called with the arm, the task and its number of answered items


def require_lm_eval() -> None:
    """Raise UsageError if lm-eval is not installed. Does not import it, so it is cheap before a run."""
    if find_spec("lm_eval") is None:
        raise UsageError(lacking("quality needs lm-eval, which is not installed", "eval"))


def evaluate(
    targets: Mapping[Arm, Target],
    tasks: Sequence[PlannedTask],
    settings: Quality,
    work_dir: Path,
    *,
    limits: Limits | None = None,
    on_progress: OnProgress | None = None,
    stop: Stop | None = None,
) -> Iterator[QualityObservation]:
    """Yield exactly one observation per task and arm, each as soon as it is complete.

    With `repeat_baseline`, each task has one more observation of the baseline, with `repeat` 1. All processes run side
    by side, so that the servers have equal load. With `stop_early` they run in rounds, and `stop` may end the eval
    after each; observations then have no fault, and `stopped_early` in their harness. Arms do not affect each other
    otherwise: a failing server, a process that dies and `settings.timeout_s` (over all tasks, from the common start)
    become a `fault` next to the items so far. So does an interrupt, raised again after these observations. Leaving
    the iteration ends the processes. Files stay in `work_dir`, with prompts and answers but without credentials.
    """
    require_lm_eval()
    work_dir.mkdir(parents=True, exist_ok=True)
    with ExitStack() as stack:
        processes = []
        for target, repeat, concurrency in _process_plan(targets, settings):
            job = make_job(target, concurrency, tasks, settings, limits or Limits())
            progress = partial(on_progress, target.arm) if on_progress is not None and not repeat else None
            processes.append(stack.enter_context(EvalProcess(job, work_dir.resolve(), progress, repeat)))
        try:
            yield from follow(processes, 0, START_LIMIT_S, "it did not start within {}")
            yield from _rounds(processes, settings.timeout_s, stop)
        except (KeyboardInterrupt, SystemExit):
            for process in processes:
                process.kill()
                yield from process.new_observations()
                yield from process.abandon(INTERRUPTED)
            raise


def _process_plan(targets: Mapping[Arm, Target], settings: Quality) -> Iterator[tuple[Target, int, int]]:
    """Yield target, repeat number and concurrency of each process.

    A repeated baseline shares its concurrency, so that every server has as many requests in flight: answers depend on
    what they are batched with, and on an idle server they would differ too little.
    """
    for arm, target in targets.items():
        if arm is Arm.BASELINE and settings.repeat_baseline:
            yield target, 0, settings.concurrency - settings.concurrency // 2
            yield target, 1, settings.concurrency // 2
        else:
            yield target, 0, settings.concurrency


def make_job(target: Target, concurrency: int, tasks: Sequence[PlannedTask], settings: Quality, limits: Limits) -> Job:
    """Return the job of one eval process."""
    round_rows = max(2, math.ceil(_ITEMS_PER_INTERIM_ANALYSIS / max(len(tasks), 1)))
    return Job(
        target=target,
        endpoint=settings.endpoint,
        concurrency=concurrency,
        max_tokens=settings.max_tokens,
        connect_s=limits.connect_s,
        total_s=limits.total_s,
        tasks=tuple(tasks),
        round_rows=round_rows if settings.stop_early else None,
        memory_bytes=settings.memory_bytes,
        in_flight=settings.concurrency,
    )


def _rounds(processes: Sequence[EvalProcess], limit_s: float, stop: Stop | None) -> Iterator[QualityObservation]:
    """Run round after round, each once all arms finished the one before, until all tasks are observed."""
    deadline = time.monotonic() + limit_s
    number = 0
    while any(not process.finished for process in processes):
        for process in processes:
            process.start_round()
        number += 1
        left_s = max(deadline - time.monotonic(), 0.0)
        late = f"timed out after {show_duration(limit_s)} with tasks unfinished"
        yield from follow(processes, number, left_s, late)
        if stop is None:
            continue
        arms = {process.arm: process.items() for process in processes if process.repeat == 0}
        pairs: Items = {}
        if len(arms) == len(Arm):
            pairs = {task: (items, arms[Arm.CANDIDATE][task]) for task, items in arms[Arm.BASELINE].items()}
        if (check := stop(pairs)) is not None:
            for process in processes:
                yield from process.stop_early(check)


def follow(processes: Sequence[EvalProcess], rounds: int, limit_s: float, late: str) -> Iterator[QualityObservation]:
    """Yield observations until each process is ready and has done `rounds`. Late or ended ones get a fault."""
    deadline = time.monotonic() + limit_s
    while waiting := [one for one in processes if not (one.finished or (one.ready and one.rounds >= rounds))]:
        for process in waiting:
            ended = process.ended  # checked first: everything written before the end is then certainly read
            yield from process.new_observations()
            if ended:
                yield from process.abandon(process.end_reason())
            elif time.monotonic() > deadline:
                process.kill()
                yield from process.new_observations()  # answers since the last poll
                yield from process.abandon(late.format(show_duration(limit_s)))
        time.sleep(_POLL_S)


def _may_need_cache(task: PlannedTask) -> bool:
    """Return True for a task with functions or a metric of the hub: they may need what was fetched before the run.

    All other tasks have everything in the job.
    """
    metrics: Any = task.config.get("metric_list") or ()
    local = LOCAL_METRICS[task.output_type]
    return any(functions_in(task.config)) or any(
        one.get("hf_evaluate") or one.get("metric") not in local for one in metrics
    )


class EvalProcess:
    """An eval process and its events. Leaving the context ends the process."""

    def __init__(
        self, job: Job, work_dir: Path, on_progress: Callable[[str, int], None] | None, repeat: int = 0
    ) -> None:
        self.arm = job.target.arm
        self.repeat = repeat
        self.ready = False
        self.rounds = 0  # finished ones
        self.prompts: list[ItemPrompt] = []  # of items that were not sent
        self._job = job
        self._on_progress = on_progress
        self._records = {task.name: TaskRecord(job.judged(task)) for task in job.tasks}
        self._open = list(self._records)  # tasks not yet observed, in order
        self._harness: dict[str, object] = {}
        name = f"quality-{self.arm.value}-{f'{repeat}-' if repeat else ''}"
        self._folder = Path(tempfile.mkdtemp(prefix=name, dir=work_dir))  # mode 0700
        self._spool = SpoolReader(self._folder / "spool.jsonl")
        self._log = self._folder / "log.txt"
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        arguments = [str(self._folder / name) for name in ("job.json", "spool.jsonl")]
        self._job.write(Path(arguments[0]))
        with self._log.open("wb") as log:
            unsafe = any(task.unsafe for task in self._job.tasks)
            environment = lm_eval_environment(offline=True, allow_code=unsafe) | dict.fromkeys(_THREAD_COUNTS, "1")
            if not any(map(_may_need_cache, self._job.tasks)):
                environment |= dict.fromkeys(("HF_HOME", "HF_DATASETS_CACHE"), str(self._folder / "cache"))
            environment[CREDENTIALS_VARIABLE] = json.dumps(self._job.credentials())
            self._process = child_process.spawn(
                "benchgate.quality.worker", arguments, log, cwd=self._folder, env=environment
            )
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()
        if self._process is not None and self._process.stdin is not None:
            self._process.stdin.close()

    @property
    def finished(self) -> bool:
        """True when every task has been observed."""
        return not self._open

    @property
    def ended(self) -> bool:
        """True when the process is gone."""
        return self._process is None or self._process.poll() is not None

    def start_round(self) -> None:
        """Signal the process to evaluate its next round."""
        if self._process is not None and self._process.stdin is not None and not self.ended:
            try:
                self._process.stdin.write(b"\n")
            except BrokenPipeError:
                return  # it ended just now: `ended` reports it, and its log the reason

    def kill(self) -> None:
        """End the process and everything it started."""
        if self._process is not None and self._process.poll() is None:
            child_process.kill_session(self._process)

    def new_observations(self) -> Iterator[QualityObservation]:
        """Read new events of the spool and yield an observation for each task that is now complete."""
        for event in self._spool.new_events():
            match event:
                case Ready():
                    self.ready = True
                    self._harness = {
                        "lm_eval": event.lm_eval_version,
                        "endpoint": self._job.endpoint,
                        "chat_template": self._job.endpoint == "chat",
                        "num_concurrent": self._job.in_flight or self._job.concurrency,
                        "max_tokens": self._job.max_tokens,
                        "request_seed": REQUEST_SEED,
                    }
                case ItemPrompt():
                    self.prompts.append(event)
                case ItemAnswered():
                    record = self._records[event.task]
                    record.take_answer(event)
                    if self._on_progress is not None:
                        self._on_progress(event.task, len(record.answered))
                case ItemScored():
                    self._records[event.task].scored[event.item_id] = event
                case TaskDone():
                    self._open.remove(event.task)
                    record = self._records[event.task]
                    yield self._observe(record, record.fault(event))
                case RoundDone():
                    self.rounds = event.number + 1

    def abandon(self, fault: str | None) -> Iterator[QualityObservation]:
        """Yield an observation with the fault, and the items so far, for every unfinished task."""
        while self._open:
            yield self._observe(self._records[self._open.pop(0)], fault)

    def stop_early(self, check: str) -> Iterator[QualityObservation]:
        """End the process because its answers decide `check`; yield an observation of every unfinished task."""
        self.kill()
        for observed in self.abandon(None):
            early = {"by": check, "items": len(observed.items)}
            yield replace(observed, harness={**observed.harness, "stopped_early": early})

    def items(self) -> dict[str, tuple[EvalItem, ...]]:
        """Return each task's items so far, in the order of the rows."""
        return {name: record.items() for name, record in self._records.items()}

    def end_reason(self) -> str:
        """Return why the process ended: the signal, or its exit code and the last line of its log."""
        code = self._process.returncode if self._process is not None else None
        if code is not None and code < 0:
            return f"the eval process was ended by {signal.Signals(-code).name}"
        log = self._log.read_text(encoding="utf-8", errors="replace")
        last = next((line.strip() for line in reversed(log.split("\n")) if line.strip()), "its log is empty")
        reason = one_line(last, secret=self._job.target.secrets)
        if self._job.memory_bytes is not None and any(sign in log for sign in _OUT_OF_MEMORY_SIGNS):
            reason += f" (`quality.memory` limits it to {show_size(self._job.memory_bytes)})"
        return f"the eval process ended with exit code {code}: {reason}"

    def _observe(self, record: TaskRecord, fault: str | None) -> QualityObservation:
        harness = {**self._harness, **task_metadata(record.task)} if self._harness else {}
        return record.observation(self.arm, fault, harness, self.repeat)
