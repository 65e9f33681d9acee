"""What passes between benchgate and an eval process, as files: the job it reads, the lines it appends.

Every item is a line of its own, written when it is answered, so that what was measured survives whatever ends the
process. No credential is in either: they go by the environment.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Self

from benchgate.model.request import Endpoint
from benchgate.plan.evals import PlannedTask
from benchgate.targets.address import Route

CREDENTIALS_VARIABLE = "BENCHGATE_EVAL_CREDENTIALS"
"""Environment variable of the eval process with the headers that nobody may see, as JSON; unset when there are none."""

REQUEST_SEED = 1234
"""Seed in every request body, the same in both arms (lm-eval's own default); asked again, the next one."""


_SMALL_ROUNDS = 6


@dataclass(frozen=True, slots=True)
class Job:
    """All that an eval process must know: whom to ask, how, and what. `headers` hold no secret."""

    url: str  # complete, with the path of the endpoint
    socket: str | None  # the Unix socket on which the server of `url` listens
    route: Route
    model: str
    endpoint: Endpoint
    headers: dict[str, str]
    extra: dict[str, object]  # fields of every request body, in the engine's dialect
    leave_out: list[str]  # fields that the server refuses
    max_tokens_field: str
    concurrency: int  # requests of this process in flight
    max_tokens: int  # where the task itself says nothing
    connect_s: float
    total_s: float
    tasks: tuple[PlannedTask, ...]
    engine: str = ""  # whose dialect the server speaks
    base_url: str = ""  # the address of the server as the suite has it
    chunk: int | None = None  # rows of each task in one of the first rounds; None: all tasks in one round
    memory_bytes: int | None = None  # that the process may use
    in_flight: int | None = None  # requests at the server from all processes that ask it; None: those of this one

    def write(self, path: Path) -> None:
        """Write the job as JSON."""
        path.write_text(json.dumps(asdict(self)), encoding="utf-8")

    @classmethod
    def read(cls, path: Path) -> Job:
        """The inverse of `write`."""
        data = json.loads(path.read_text(encoding="utf-8"))
        route = data.pop("route")
        tasks = tuple(_task(task) for task in data.pop("tasks"))
        return cls(**data, route=Route(**route), tasks=tasks)

    def rounds(self) -> Iterator[list[tuple[PlannedTask, range]]]:
        """What is asked between one word to go on and the next: each task's next rows, by their places.

        The first rounds have `chunk` rows of each task; each later one has twice as many as the one before, for what
        has not collapsed by then is mostly asked to its end, and every round has its price.
        """
        longest = max((len(task.rows) for task in self.tasks), default=0)
        start, size, number = 0, self.chunk or max(longest, 1), 1
        while start < longest:
            parts = [(task, range(len(task.rows))[start : start + size]) for task in self.tasks]
            yield [(task, places) for task, places in parts if places]
            start, number = start + size, number + 1
            size *= 1 if number <= _SMALL_ROUNDS else 2


def _task(data: dict[str, Any]) -> PlannedTask:
    lists = {name: tuple(data[name]) for name in ("rows", "ids", "shots") if data[name] is not None}
    return PlannedTask(**{**data, **lists})


@dataclass(frozen=True, slots=True)
class Ready:
    """The process has imported lm-eval and waits for the word to start."""

    pid: int
    lm_eval_version: str


@dataclass(frozen=True, slots=True)
class Answered:
    """One item came back, or failed for good. `answer` is "" when the server sent null; None with an `error`."""

    task: str
    item_id: str
    answer: str | None
    finish_reason: str | None
    output_tokens: int | None
    latency_ns: int | None
    error: str | None
    was_null: bool
    retries: int
    input_tokens: int | None = None
    tied: bool = False  # all options of the item got the same log-probability
    asking: int = 0  # for which time the item is asked, where it is asked several times


@dataclass(frozen=True, slots=True)
class Scored:
    """lm-eval's score and hashes of one item, and what its answer amounts to."""

    task: str
    item_id: str
    doc_hash: str
    prompt_hash: str
    target_hash: str
    score: float
    choice: str | None = None
    unread: int = 0  # of several askings, those in which nothing could be read


@dataclass(frozen=True, slots=True)
class TaskDone:
    """lm-eval has finished a task; `effective_n` is the number of items it says it used."""

    task: str
    effective_n: int


@dataclass(frozen=True, slots=True)
class RoundDone:
    """The process has asked and scored all of a round, counted from 0, and waits for the word to go on."""

    number: int


Line = Ready | Answered | Scored | TaskDone | RoundDone
_KINDS: dict[str, type[Line]] = {kind.__name__: kind for kind in (Ready, Answered, Scored, TaskDone, RoundDone)}


class SpoolWriter:
    """Appends lines; each is handed to the operating system at once and thereby survives the process."""

    def __init__(self, path: Path) -> None:
        self._file: IO[str] = path.open("a", encoding="utf-8")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None) -> None:
        self._file.close()

    def write(self, *lines: Line) -> None:
        """Append and flush."""
        for line in lines:
            self._file.write(json.dumps({"kind": type(line).__name__, **asdict(line)}) + "\n")
        self._file.flush()

    def sync(self) -> None:
        """Force what was written to the disk."""
        os.fsync(self._file.fileno())


class SpoolReader:
    """Follows a spool while it grows."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._read_bytes = 0

    def new_lines(self) -> Iterator[Line]:
        """The lines completed since the last one given; half a line waits for its end."""
        if not self._path.exists():
            return
        with self._path.open("rb") as file:
            file.seek(self._read_bytes)
            whole, _, _half = file.read().rpartition(b"\n")
        for raw in whole.split(b"\n") if whole else ():
            self._read_bytes += len(raw) + 1  # line by line: whoever is interrupted goes on where they stopped
            data = json.loads(raw)
            yield _KINDS[data.pop("kind")](**data)
