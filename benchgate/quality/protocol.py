"""Protocol between benchgate and an eval process: the job as a file, events as lines of a spool.

Each item is a line, flushed as soon as it is answered, so that it survives the process. Credentials go through the
environment and are in neither file.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import IO, Any, Self

from benchgate.model.deployment import Arm
from benchgate.model.records import VerifiedAnswer
from benchgate.model.request import Endpoint
from benchgate.plan.items import PlannedTask
from benchgate.targets.address import Route
from benchgate.targets.dialect import Dialect, Target

# Environment variable of the eval process: secret headers, and the address where that is secret, as JSON.
CREDENTIALS_VARIABLE = "BENCHGATE_EVAL_CREDENTIALS"

# Seed of requests in both arms, lm-eval's own default. Each repetition adds 1.
REQUEST_SEED = 1234
GIVE_UP_AFTER = 5  # failed items after which the eval process sends no more requests of a task
_EQUAL_ROUNDS = 6  # rounds before they begin to double


@dataclass(frozen=True, slots=True)
class Job:
    """Everything an eval process needs."""

    target: Target
    endpoint: Endpoint
    concurrency: int  # requests of this process in flight
    max_tokens: int  # for tasks without a limit
    connect_s: float
    total_s: float
    tasks: tuple[PlannedTask, ...]
    round_rows: int | None = None  # rows of each task in one of the first rounds; None: one round
    memory_bytes: int | None = None  # memory limit of the process
    in_flight: int | None = None  # requests at the server from all processes, if there are several
    # Answers by task and item id that are scored in place of sending requests; prompts of other items are written.
    recorded: Mapping[str, Mapping[str, VerifiedAnswer]] | None = None

    def write(self, path: Path) -> None:
        """Write the job as JSON, without credentials."""
        url = "" if self.target.hides_url else self.target.url
        public = replace(self, target=replace(self.target, url=url, api_key=None, secret_headers={}))
        path.write_text(json.dumps(asdict(public)), encoding="utf-8")

    def credentials(self) -> dict[str, Any]:
        """Return what `write` leaves out."""
        url = {"url": self.target.url} if self.target.hides_url else {}
        return {"secret_headers": self.target.credentials(), **url}

    @classmethod
    def read(cls, path: Path, credentials: Mapping[str, Any]) -> Job:
        """Read what `write` wrote, and add the credentials."""
        data = json.loads(path.read_text(encoding="utf-8"))
        target, tasks = data.pop("target"), []
        for task in data.pop("tasks"):
            lists = {name: tuple(task[name]) for name in ("rows", "ids", "shots", "guesses") if task[name] is not None}
            tasks.append(PlannedTask(**{**task, **lists}))
        target |= {
            "arm": Arm(target["arm"]),
            "dialect": Dialect(**target["dialect"]),
            "route": Route(**target["route"]),
            **credentials,
        }
        if (recorded := data.pop("recorded")) is not None:
            recorded = {
                task: {item: VerifiedAnswer(**answer) for item, answer in answers.items()}
                for task, answers in recorded.items()
            }
        return cls(target=Target(**target), tasks=tuple(tasks), recorded=recorded, **data)

    def judged(self, task: PlannedTask) -> PlannedTask:
        """Return a task with the items that are scored."""
        return task if self.recorded is None else task.only(self.recorded.get(task.name, {}).keys())

    def rounds(self) -> Iterator[list[tuple[PlannedTask, range]]]:
        """Yield the rows of each task that are evaluated before the process waits for the next start signal.

        The first rounds have `round_rows` rows of each task. Later ones double: a model that has not collapsed by then
        is mostly evaluated to the end, and each round has a cost.
        """
        longest = max((len(task.rows) for task in self.tasks), default=0)
        start, size, number = 0, self.round_rows or max(longest, 1), 1
        while start < longest:
            parts = [(task, range(len(task.rows))[start : start + size]) for task in self.tasks]
            yield [(task, rows) for task, rows in parts if rows]
            start, number = start + size, number + 1
            size *= 1 if number <= _EQUAL_ROUNDS else 2


@dataclass(frozen=True, slots=True)
class Ready:
    """The process has imported lm-eval and waits for the start signal."""

    pid: int
    lm_eval_version: str


@dataclass(frozen=True, slots=True)
class ItemAnswered:
    """Answer of an item, or its final failure. `answer` is "" for a null answer and None with an `error`."""

    task: str
    item_id: str
    answer: str | None = None
    finish_reason: str | None = None
    output_tokens: int | None = None
    latency_ns: int | None = None
    error: str | None = None
    was_null: bool = False
    retries: int = 0
    input_tokens: int | None = None
    tied: bool = False  # all options got the same log-probability
    repetition: int = 0


@dataclass(frozen=True, slots=True)
class ItemPrompt:
    """Request of an item: endpoint, messages or prompt, most output tokens, and further fields of the body."""

    task: str
    item_id: str
    endpoint: Endpoint
    content: Mapping[str, object]
    max_tokens: int
    fields: Mapping[str, object]


@dataclass(frozen=True, slots=True)
class ItemScored:
    """lm-eval's score and hashes of one item, and the choice read from its answer."""

    task: str
    item_id: str
    doc_hash: str
    prompt_hash: str
    target_hash: str
    score: float
    choice: str | None = None
    unread: list[int] = field(default_factory=list)  # numbers of the repetitions, if several


@dataclass(frozen=True, slots=True)
class TaskDone:
    """lm-eval finished a task; it reports to have used `effective_n` items."""

    task: str
    effective_n: int


@dataclass(frozen=True, slots=True)
class RoundDone:
    """The process finished a round, counted from 0, and waits for the next start signal."""

    number: int


Event = Ready | ItemPrompt | ItemAnswered | ItemScored | TaskDone | RoundDone
_KINDS: dict[str, type[Event]] = {
    kind.__name__: kind for kind in (Ready, ItemPrompt, ItemAnswered, ItemScored, TaskDone, RoundDone)
}


class SpoolWriter:
    """Appends events, each flushed to the operating system at once so that it survives the process."""

    def __init__(self, path: Path) -> None:
        self._file: IO[str] = path.open("a", encoding="utf-8")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def write(self, *events: Event) -> None:
        """Append and flush."""
        for event in events:
            self._file.write(json.dumps({"kind": type(event).__name__, **asdict(event)}) + "\n")
        self._file.flush()

    def sync(self) -> None:
        """Force the file to disk."""
        os.fsync(self._file.fileno())


class SpoolReader:
    """Follows a spool while it grows."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._read_bytes = 0

    def new_events(self) -> Iterator[Event]:
        """Yield the events of complete lines since the last call."""
        if not self._path.exists():
            return
        with self._path.open("rb") as file:
            file.seek(self._read_bytes)
            whole, _, _half = file.read().rpartition(b"\n")
        for raw in whole.split(b"\n") if whole else ():
            self._read_bytes += len(raw) + 1  # line by line: an interrupted caller continues after the last event
            data = json.loads(raw)
            yield _KINDS[data.pop("kind")](**data)
