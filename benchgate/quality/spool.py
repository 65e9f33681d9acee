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
from typing import IO, Self

from benchgate.model.ask import Endpoint
from benchgate.plan.schedule import PlannedTask
from benchgate.targets.route import Route

CREDENTIALS_VARIABLE = "BENCHGATE_EVAL_CREDENTIALS"
"""Environment variable of the eval process with the headers that nobody may see, as JSON; unset when there are none."""


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
    concurrency: int
    max_tokens: int  # where the task itself says nothing
    connect_s: float
    total_s: float
    tasks: tuple[PlannedTask, ...]

    def write(self, path: Path) -> None:
        """Write the job as JSON."""
        path.write_text(json.dumps(asdict(self)), encoding="utf-8")

    @classmethod
    def read(cls, path: Path) -> Job:
        """The inverse of `write`."""
        data = json.loads(path.read_text(encoding="utf-8"))
        route = data.pop("route")
        tasks = tuple(PlannedTask(t["name"], t["config"], tuple(t["rows"])) for t in data.pop("tasks"))
        return cls(**data, route=Route(**route), tasks=tasks)


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


@dataclass(frozen=True, slots=True)
class Scored:
    """lm-eval's score and hashes of one item."""

    task: str
    item_id: str
    doc_hash: str
    prompt_hash: str
    target_hash: str
    score: float


@dataclass(frozen=True, slots=True)
class TaskDone:
    """lm-eval has finished a task; `effective_n` is the number of items it says it used."""

    task: str
    effective_n: int


Line = Ready | Answered | Scored | TaskDone
_KINDS: dict[str, type[Line]] = {kind.__name__: kind for kind in (Ready, Answered, Scored, TaskDone)}


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
