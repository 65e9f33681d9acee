"""The eval process of one arm seen from outside: started, followed, ended."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Self

from benchgate.model.deployment import Arm
from benchgate.model.records import EvalItem
from benchgate.model.run import QualityObservation
from benchgate.quality.functions import functions_in
from benchgate.quality.observe import TaskRecord, described_task
from benchgate.quality.spool import (
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
from benchgate.targets.dialect import Target
from benchgate.targets.error_messages import one_line
from benchgate.units import show_size

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
                [sys.executable, "-P", "-m", "benchgate.quality.child", str(job_path), str(spool_path)],
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
