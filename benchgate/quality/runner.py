"""Evals of both arms at the same time, each in an lm-eval process of its own.

The eval process of one arm seen from outside: started, followed, ended.
"""

from __future__ import annotations

import json
import math
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from types import TracebackType
from typing import Self

from benchgate.errors import UsageError, lacking
from benchgate.model.deployment import Arm
from benchgate.model.records import EvalItem
from benchgate.model.run import INTERRUPTED, QualityObservation
from benchgate.plan.evals import PlannedTask
from benchgate.quality.observations import TaskRecord, described_task
from benchgate.quality.protocol import (
    CREDENTIALS_VARIABLE,
    REQUEST_SEED,
    Answered,
    Job,
    Ready,
    RoundDone,
    Scored,
    SpoolReader,
    TaskDone,
)
from benchgate.quality.tasks.lm_eval_tasks import functions_in
from benchgate.suite.quality import Quality
from benchgate.suite.schema import Limits
from benchgate.targets.address import ServerAddress
from benchgate.targets.dialect import PATHS, Target
from benchgate.targets.refusals import one_line
from benchgate.units import show_duration, show_size

_POLL_S = 0.05
_START_LIMIT_S = 120.0
"""For importing lm-eval, which takes seconds on a busy machine; not counted as time of the eval."""

_ITEMS_A_LOOK = 10

Items = Mapping[str, tuple[Sequence[EvalItem], Sequence[EvalItem]]]
"""Task → the baseline's and the candidate's items so far, in the order of asking."""

Stop = Callable[[Items], str | None]
"""What is shown by the items so far, so that no more are asked; None while nothing is."""

OnProgress = Callable[[Arm, str, int], None]
"""Called with the arm, the task and how many of its items have been answered."""


def require_lm_eval() -> None:
    """UsageError when lm-eval cannot be imported; cheap, so that it can be asked before any request is sent."""
    if find_spec("lm_eval") is None or find_spec("aiohttp") is None:
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
    """Exactly one observation per task and arm, each as soon as it is complete.

    With `repeat_baseline` one more of each task on the baseline, as `repeat` 1. All processes begin together and run
    side by side, so that both servers see the same load. With `stop_early` they ask in rounds, and what `stop` says of
    the answers after one ends them all: their observations then hold what came until there, as `stopped_early` of their
    harness says, and no fault. Nothing else that happens to one arm touches the other. A server
    that fails, a process that dies and `settings.timeout_s`, which counts from the common start over all tasks, end as
    a `fault` beside the items answered until then; so does an interrupt, which is raised again once these observations
    are taken. Leaving the iteration at any point ends the processes. Files stay in `work_dir`; they hold prompts and
    answers, never a credential.
    """
    require_lm_eval()
    work_dir.mkdir(parents=True, exist_ok=True)
    with ExitStack() as stack:
        processes = []
        for asked in _askings(targets, settings):
            job = _job(asked, tasks, settings, limits or Limits())
            progress = partial(on_progress, asked.arm) if on_progress is not None and not asked.repeat else _ignore
            process = ArmProcess(asked.target, job, work_dir.resolve(), progress, asked.repeat)
            processes.append(stack.enter_context(process))
        try:
            yield from _until(lambda process: process.ready, processes, _START_LIMIT_S, "it did not start within {}")
            yield from _rounds(processes, settings.timeout_s, stop)
        except (KeyboardInterrupt, SystemExit):
            for process in processes:
                process.kill()
                yield from process.new_observations()
                yield from process.abandoned(INTERRUPTED)
            raise


@dataclass(frozen=True, slots=True)
class _Asking:
    """One process: whom it asks, for which time, and how many requests of it are in flight."""

    target: Target
    repeat: int
    concurrency: int

    @property
    def arm(self) -> Arm:
        return self.target.arm


def _askings(targets: Mapping[Arm, Target], settings: Quality) -> Iterator[_Asking]:
    """Each arm once, and the baseline once more where its own noise is to be known.

    Both askings of the baseline go at the same time as the candidate's and share the requests in flight, so that every
    server has as many: answers differ by what they are batched with, and an idle server would show too little of it.
    """
    for arm, target in targets.items():
        if arm is Arm.BASELINE and settings.repeat_baseline:
            yield _Asking(target, 0, settings.concurrency - settings.concurrency // 2)
            yield _Asking(target, 1, settings.concurrency // 2)
        else:
            yield _Asking(target, 0, settings.concurrency)


def _rounds(processes: Sequence[ArmProcess], limit_s: float, stop: Stop | None) -> Iterator[QualityObservation]:
    """Let all arms ask round after round, each as soon as all are through with the one before, until it is enough."""
    deadline = time.monotonic() + limit_s
    number = 0
    while any(not process.finished for process in processes):
        for process in processes:
            process.start()
        number += 1
        through = partial(_is_through, number)
        left_s = max(deadline - time.monotonic(), 0.0)
        yield from _until(through, processes, left_s, f"timed out after {show_duration(limit_s)} with tasks unfinished")
        if stop is not None and (shown := stop(_pairs(processes))) is not None:
            for process in processes:
                yield from process.stopped(shown)


def _pairs(processes: Sequence[ArmProcess]) -> Items:
    """Each task's items so far, the baseline's and the candidate's; none where an arm is missing."""
    arms = {process.judged: process.items() for process in processes if process.judged is not None}
    if len(arms) < len(Arm):
        return {}
    return {task: (items, arms[Arm.CANDIDATE][task]) for task, items in arms[Arm.BASELINE].items()}


def _round_rows(tasks: Sequence[PlannedTask], settings: Quality) -> int | None:
    """Rows of each task between two looks at what was answered: some ten of all tasks together; None without looks."""
    if not settings.stop_early:
        return None
    return max(2, math.ceil(_ITEMS_A_LOOK / max(len(tasks), 1)))


def _is_through(number: int, process: ArmProcess) -> bool:
    return process.rounds >= number


def _until(
    enough: Callable[[ArmProcess], bool], processes: Sequence[ArmProcess], limit_s: float, late: str
) -> Iterator[QualityObservation]:
    """Follow the arms until each has had enough or all of its tasks are observed, if need be with a fault.

    An arm whose process ends, or which has not had enough within `limit_s`, gets the fault for all its open tasks.
    """
    deadline = time.monotonic() + limit_s
    while waiting := [process for process in processes if not process.finished and not enough(process)]:
        for process in waiting:
            ended = process.ended  # asked first: what was written before the end is then certainly read
            yield from process.new_observations()
            if ended:
                yield from process.abandoned(process.end_reason())
            elif time.monotonic() > deadline:
                process.kill()
                yield from process.new_observations()  # what was answered since the last look
                yield from process.abandoned(late.format(show_duration(limit_s)))
        time.sleep(_POLL_S)


def _ignore(task: str, answered: int) -> None:
    """Nobody wants to know."""


def _job(asked: _Asking, tasks: Sequence[PlannedTask], settings: Quality, limits: Limits) -> Job:
    target = asked.target
    server = ServerAddress.of(target.url)
    return Job(
        url=server.http_url + PATHS[settings.endpoint],
        socket=server.socket,
        route=target.route,
        model=target.model,
        endpoint=settings.endpoint,
        headers=target.plain_headers(),
        extra=dict(target.dialect.extra),
        leave_out=list(target.dialect.leave_out),
        max_tokens_field=target.dialect.max_tokens_field,
        concurrency=asked.concurrency,
        max_tokens=settings.max_tokens,
        connect_s=limits.connect_s,
        total_s=limits.total_s,
        tasks=tuple(tasks),
        engine=target.dialect.engine,
        base_url=target.url,
        memory_bytes=settings.memory_bytes,
        in_flight=settings.concurrency,
        chunk=_round_rows(tasks, settings),
    )


_THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
_SIGNS_OF_NO_MEMORY = (
    "MemoryError", "Unable to allocate", "Cannot allocate memory", "cannot allocate memory", "std::bad_alloc",
    "failed to map segment", "can't start new thread", "SystemError",
)  # fmt: skip


class ArmProcess:
    """One arm's eval process and what it has delivered. Leaving the context ends the process, whatever happened."""

    def __init__(
        self, target: Target, job: Job, work_dir: Path, on_progress: Callable[[str, int], None], repeat: int = 0
    ) -> None:
        self.ready = False
        self.rounds = 0  # that are through
        self._target = target
        self._repeat = repeat
        self._job = job
        self._on_progress = on_progress
        self._records = {task.name: TaskRecord(task) for task in job.tasks}
        self._open = list(self._records)  # tasks not yet observed, in order
        self._harness: dict[str, object] = {}
        self._folder = Path(
            tempfile.mkdtemp(prefix=f"quality-{target.arm.value}-{f'{repeat}-' if repeat else ''}", dir=work_dir)
        )  # mode 0700
        self._spool = SpoolReader(self._folder / "spool.jsonl")
        self._log = self._folder / "log.txt"
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        job_path, spool_path = self._folder / "job.json", self._folder / "spool.jsonl"
        self._job.write(job_path)
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", "benchgate.quality.worker", str(job_path), str(spool_path)],
                bufsize=0,
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=subprocess.STDOUT,
                cwd=self._folder,
                env=self._environment(),
                start_new_session=True,  # a group of its own, so that all of it can be ended at once
            )
        return self

    def __exit__(self, kind: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None) -> None:
        self.kill()
        if self._process is not None and self._process.stdin is not None:
            self._process.stdin.close()

    @property
    def judged(self) -> Arm | None:
        """The arm whose answers are judged by what this process asks; None where it asks an arm once more."""
        return self._target.arm if self._repeat == 0 else None

    @property
    def finished(self) -> bool:
        """True when every task has been observed."""
        return not self._open

    @property
    def ended(self) -> bool:
        """True when the process is gone, in peace or not."""
        return self._process is None or self._process.poll() is not None

    def start(self) -> None:
        """Give the word: the process asks its next round, which is all there is unless the job has a `chunk`."""
        if self._process is not None and self._process.stdin is not None and not self.ended:
            try:
                self._process.stdin.write(b"\n")
            except BrokenPipeError:
                return  # it ended just now: `ended` will say so, and its log why

    def kill(self) -> None:
        """End the process and all it started."""
        if self._process is not None and self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()

    def new_observations(self) -> Iterator[QualityObservation]:
        """Take in what the spool has new: an observation for each task that is now complete."""
        for line in self._spool.new_lines():
            match line:
                case Ready():
                    self.ready = True
                    self._harness = self._describe(line)
                case Answered():
                    record = self._records[line.task]
                    record.take_answer(line)
                    self._on_progress(line.task, len(record.answered))
                case Scored():
                    self._records[line.task].scored[line.item_id] = line
                case TaskDone():
                    self._open.remove(line.task)
                    record = self._records[line.task]
                    yield self._observed(record, record.fault(line))
                case RoundDone():
                    self.rounds = line.number + 1

    def abandoned(self, fault: str) -> Iterator[QualityObservation]:
        """An observation for every task that will not finish: the fault, and whatever items had come."""
        while self._open:
            yield self._observed(self._records[self._open.pop(0)], fault)

    def stopped(self, check: str) -> Iterator[QualityObservation]:
        """End the process in peace, for what it has answered shows enough: an observation of every open task."""
        self.kill()
        while self._open:
            record = self._records[self._open.pop(0)]
            seen = self._observed(record, None)
            yield replace(seen, harness={**seen.harness, "stopped_early": {"by": check, "items": len(seen.items)}})

    def items(self) -> dict[str, tuple[EvalItem, ...]]:
        """What has come of each task so far, in the order of asking; of the asking that is judged."""
        return {name: record.items() for name, record in self._records.items()}

    def end_reason(self) -> str:
        """Why the process ended, in one sentence: the signal, or the last line it said."""
        code = self._process.returncode if self._process is not None else None
        if code is not None and code < 0:
            return f"the eval process was ended by {signal.Signals(-code).name}"
        said = self._log.read_text(encoding="utf-8", errors="replace")
        last = next((line.strip() for line in reversed(said.split("\n")) if line.strip()), "it said nothing")
        words = one_line(last, secret=self._target.secrets)
        if self._job.memory_bytes is not None and any(sign in said for sign in _SIGNS_OF_NO_MEMORY):
            words += f" (it may use {show_size(self._job.memory_bytes)}, which `quality.memory` says)"
        return f"the eval process ended with exit code {code}: {words}"

    def _observed(self, record: TaskRecord, fault: str | None) -> QualityObservation:
        harness = {**self._harness, **described_task(record.task)} if self._harness else {}
        return record.observation(self._target.arm, fault, harness, self._repeat)

    def _describe(self, ready: Ready) -> dict[str, object]:
        return {
            "lm_eval": ready.lm_eval_version,
            "endpoint": self._job.endpoint,
            "chat_template": self._job.endpoint == "chat",
            "num_concurrent": self._job.in_flight or self._job.concurrency,
            "max_tokens": self._job.max_tokens,
            "request_seed": REQUEST_SEED,
        }

    def _environment(self) -> dict[str, str]:
        """Ours, with the same import path, everything offline, and credentials where only this process sees them."""
        environment = {name: value for name, value in os.environ.items() if name != CREDENTIALS_VARIABLE}
        caches = str(self._folder / "cache")
        environment |= {
            "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
            "PYTHONWARNINGS": "ignore",
            "HF_HUB_OFFLINE": "1",
            "HF_DATASETS_OFFLINE": "1",
            "TRANSFORMERS_OFFLINE": "1",
            "HF_HUB_DISABLE_TELEMETRY": "1",
            "HF_EVALUATE_OFFLINE": "1",
            "TQDM_DISABLE": "1",
            "LMEVAL_LOG_LEVEL": "WARNING",
            **dict.fromkeys(_THREADS, "1"),
        }
        if not any(next(functions_in(task.config), None) for task in self._job.tasks):
            environment |= {
                "HF_HOME": caches,
                "HF_DATASETS_CACHE": caches,
            }  # functions may need what was fetched before
        if any(task.unsafe for task in self._job.tasks):
            environment["HF_ALLOW_CODE_EVAL"] = "1"  # the suite's consent, passed on to this process alone
        if credentials := self._target.credentials():
            environment[CREDENTIALS_VARIABLE] = json.dumps(credentials)
        return environment
