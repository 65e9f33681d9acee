"""The evals of a suite: which tasks of lm-eval's, or task files of one's own, and how both arms are asked."""

from __future__ import annotations

from pathlib import PurePosixPath
from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, Field, SerializerFunctionWrapHandler, model_serializer, model_validator

from benchgate import units
from benchgate.suite.types import (
    Duration,
    Expected,
    Flag,
    Percent,
    Size,
    StrictSection,
    Text,
    Tokens,
    Whole,
    Written,
    text,
)

GIB = 1024**3

_ENTRY = 'a task file like "tasks/add.yaml", a task or group of lm-eval\'s own like "gsm8k", or a mapping with `task`'


class Band(StrictSection):
    """Between what values something is known to lie."""

    least: Percent = Field(alias="min")
    most: Percent = Field(alias="max")

    @model_validator(mode="after")
    def _has_room(self) -> Self:
        if self.least > self.most:
            lowest, highest = (units.show_percent(end) for end in (self.least, self.most))
            raise ValueError(f"nothing lies between a `min` of {lowest} and a `max` of {highest}; exchange them")
        return self


class TaskEntry(StrictSection):
    """One task, or one group of lm-eval's, and what is said of it here alone; without more, just its name."""

    task: Text
    few_shot: Whole | None = Field(default=None, ge=0, le=64)  # examples before the question; else what the task says
    limit: Whole | None = Field(default=None, ge=1)  # items, the first ones; else `quality.limit`
    filter: Text | None = None  # which of the task's filters is judged; its first unless said
    metric: Text | None = None  # which of its metrics is judged; its first unless said
    scale: Literal["binary", "continuous"] | None = None  # of a metric that benchgate does not know
    cluster: Text | None = None  # the column that says which items are not independent
    max_tokens: Tokens | None = Field(default=None, ge=1)  # longest answer; else what the task says
    expect: Band | None = None  # where the baseline's score is known to lie

    @model_serializer(mode="wrap")
    def _only_what_is_said(self, serialise: SerializerFunctionWrapHandler) -> Any:
        """A task of which nothing more is said is written as the text it is: suites without more keep their bytes."""
        written: dict[str, Any] = serialise(self)
        said = {key: value for key, value in written.items() if value is not None}
        return self.task if len(said) == 1 else said

    @property
    def is_file(self) -> bool:
        """Whether it is a task file rather than a name that lm-eval knows."""
        return self.task.endswith((".yaml", ".yml"))

    @property
    def name(self) -> str:
        """What checks and reports call it: `tasks/add.yaml` → `add`; a name of lm-eval's stays as it is."""
        return PurePosixPath(self.task).stem if self.is_file else self.task


def _entry(found: object) -> object:
    """The short form: a text is the task itself."""
    if isinstance(found, str):
        return {"task": found}
    if isinstance(found, dict | TaskEntry):
        return found
    raise ValueError(f"found {units.show_found(found)}; expected {_ENTRY}")


Task = Annotated[TaskEntry, BeforeValidator(_entry), Expected(_ENTRY), Written.of(text())]

_LATER: dict[str, object] = {
    "include": (), "few_shot": None, "system": None, "fewshot_as_turns": True, "allow_unsafe_code": False,
    "memory_bytes": 8 * GIB, "repeat_baseline": False, "stop_early": False,
}  # fmt: skip


class Quality(StrictSection):
    """Evals by lm-eval; paths are relative to the suite."""

    tasks: tuple[Task, ...] = Field(min_length=1)
    include: tuple[Text, ...] = ()  # folders with more of lm-eval's task YAML, found by name
    endpoint: Literal["chat", "completions"] = "chat"
    few_shot: Whole | None = Field(default=None, ge=0, le=64)  # of every task; else what each says
    system: Text | None = None  # a system prompt before everything
    fewshot_as_turns: Flag = True  # examples as turns of the chat; else all in one message
    allow_unsafe_code: Flag = False  # let tasks run code: their own, and what the model writes
    limit: Whole | None = Field(default=None, ge=1)  # items per task, the first ones by file order
    concurrency: Whole = Field(default=8, ge=2, le=1024)  # never 1: lm-eval then takes another code path
    max_tokens: Tokens = Field(default=256, ge=1)
    max_empty_ratio: Percent = 0.01  # empty answers above this make the evidence INVALID
    timeout_s: Duration = Field(default=900.0, alias="timeout")
    memory_bytes: Size = Field(default=8 * GIB, alias="memory")  # of each eval process
    repeat_baseline: Flag = False  # ask the baseline once more at the same time: how much it differs from itself
    stop_early: Flag = False  # end as soon as harm is certain

    @model_serializer(mode="wrap")
    def _as_before(self, serialise: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """What came after 0.1.0 is written only where it is used: suites without it keep their bytes."""
        written: dict[str, Any] = serialise(self)
        return {k: v for k, v in written.items() if k not in _LATER or getattr(self, k) != _LATER[k]}

    @property
    def names(self) -> tuple[str, ...]:
        """What checks and reports call the tasks and groups, in order."""
        return tuple(entry.name for entry in self.tasks)

    def entry(self, task: str) -> TaskEntry | None:
        """What the suite says of an observed task: `mmlu_pro/mmlu_pro_law` belongs to the group `mmlu_pro`."""
        return next((entry for entry in self.tasks if task == entry.name or task.startswith(f"{entry.name}/")), None)
