"""The `quality` of a suite: evals by lm-eval, from its own tasks or from task files."""

from __future__ import annotations

from pathlib import PurePosixPath
from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, SerializerFunctionWrapHandler, model_serializer, model_validator

from benchgate import units
from benchgate.suite.types import (
    Duration,
    Expected,
    Flag,
    Percent,
    Section,
    Size,
    Text,
    Tokens,
    Whole,
    Written,
    key,
    optional,
    text,
)

GIB = 1024**3

_ENTRY = 'a task file like "tasks/add.yaml", a task or group of lm-eval\'s own like "gsm8k", or a mapping with `task`'


class Band(Section):
    """A known range of values."""

    least: Percent = key(
        "A baseline below it makes the evidence INVALID: the harness is more likely wrong than the model", alias="min"
    )
    most: Percent = key("A baseline above it makes the evidence INVALID; not below `min`", alias="max")

    @model_validator(mode="after")
    def _has_room(self) -> Self:
        if self.least > self.most:
            lowest, highest = (units.show_percent(end) for end in (self.least, self.most))
            raise ValueError(f"nothing lies between a `min` of {lowest} and a `max` of {highest}; exchange them")
        return self


class TaskEntry(Section):
    """A task, or a group of lm-eval tasks, with its own settings; without any, just its name."""

    task: Text = key(
        "Name or file of the task. A check calls `tasks/add.yaml` by its stem, `add`; a task of lm-eval's by its "
        "name; a task of a group `group/task`, like `mmlu_pro/mmlu_pro_law`",
    )
    few_shot: Whole | None = optional(
        "Number of examples before every question. Default: `quality.few_shot`", ge=0, le=64
    )
    limit: Whole | None = optional(
        "Number of items, the first ones; for a group, of each of its tasks. Default: `quality.limit`", ge=1
    )
    filter: Text | None = optional("Filter of the task whose answers are judged. Default: the task's first")
    metric: Text | None = optional("Metric of the task that is judged. Default: the task's first")
    scale: Literal["binary", "continuous"] | None = optional(
        "Right or wrong, or a score in between; required for a metric that benchgate does not know. Default: "
        "known from the metric"
    )
    cluster: Text | None = optional(
        "Column that groups items: items with the same value (a passage, a template, a person) are not independent, "
        "and are judged as one group",
    )
    max_tokens: Tokens | None = optional(
        "Longest answer; overrides the task's own `max_gen_toks` and `quality.max_tokens`. Default: what the task sets",
        ge=1,
    )
    expect: Band | None = optional(
        "Known range of the baseline's score on the task or group, from a model card or from earlier runs. It also "
        "permits a candidate that is far better",
    )

    @model_serializer(mode="wrap")
    def _short(self, serialise: SerializerFunctionWrapHandler) -> Any:
        written: dict[str, Any] = serialise(self)
        return self.task if len(written) == 1 else written

    @property
    def is_file(self) -> bool:
        """True for a task file, false for a name that lm-eval knows."""
        return self.task.endswith((".yaml", ".yml"))

    @property
    def name(self) -> str:
        """Name in checks and reports: `tasks/add.yaml` → `add`; a name of lm-eval stays as it is."""
        return PurePosixPath(self.task).stem if self.is_file else self.task


def _entry(found: object) -> object:
    if isinstance(found, str):
        return {"task": found}
    if isinstance(found, dict | TaskEntry):
        return found
    raise ValueError(f"found {units.show_found(found)}; expected {_ENTRY}")


Task = Annotated[TaskEntry, BeforeValidator(_entry), Expected(_ENTRY), Written(text())]


class Quality(Section):
    """Evals by lm-eval; paths are relative to the suite."""

    tasks: tuple[Task, ...] = key(
        "Your own task files (a path that ends in `.yaml`), or names of lm-eval's tasks and groups; each a text, or a "
        "mapping with further keys",
        min_length=1,
    )
    include: tuple[Text, ...] = optional(
        "Folders with further lm-eval task YAML, found by name; they override lm-eval's own tasks of the same name",
        default=(),
    )
    endpoint: Literal["chat", "completions"] = key(
        "`/v1/chat/completions`, where the server applies its chat template, or `/v1/completions`, where there is "
        "none. It changes scores by many points",
        default="chat",
    )
    few_shot: Whole | None = optional(
        "Number of examples before every question, for every task. Default: what each task sets", ge=0, le=64
    )
    system: Text | None = optional("System prompt before everything")
    fewshot_as_turns: Flag = optional("Send examples as turns of the chat instead of in one user message", default=True)
    allow_unsafe_code: Flag = optional(
        "Let tasks run code on this machine: functions of your own task files, and code written by the model "
        "(HumanEval); only together with `--allow-code` on the command line",
        default=False,
    )
    limit: Whole | None = key("Items per task, the first ones of the file. Default: all", default=None, ge=1)
    concurrency: Whole = key("Requests in flight at each server", default=8, ge=2, le=1024)
    max_tokens: Tokens = key("Longest answer if the task sets no limit", default=256, ge=1)
    max_empty_ratio: Percent = key(
        "More empty answers than this, and more than two, make the evidence INVALID. The same holds for wrong "
        "answers of the baseline that were truncated by the token limit or could not be parsed; `0%` allows none",
        default=0.01,
    )
    timeout_s: Duration = key("Time limit for all tasks of one arm", default=900.0, alias="timeout")
    memory_bytes: Size = optional(
        "Address space of each eval process, on Linux; a process that needs more ends, and its tasks are INVALID",
        default=8 * GIB,
        alias="memory",
    )
    repeat_baseline: Flag = optional(
        "Ask the baseline a second time, at the same time, to measure how far it differs from itself; `flips` needs "
        "it. Both passes share `concurrency`, so that each server has as many requests in flight",
        default=False,
    )
    stop_early: Flag = optional(
        "Ask in rounds, in an order drawn by the seed, and end as soon as a regression is certain; it never ends "
        "early to let a candidate pass",
        default=False,
    )

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the tasks and groups in checks and reports, in order."""
        return tuple(entry.name for entry in self.tasks)

    def entry(self, task: str) -> TaskEntry | None:
        """Return the entry of an observed task: `mmlu_pro/mmlu_pro_law` belongs to the group `mmlu_pro`."""
        return next((entry for entry in self.tasks if task == entry.name or task.startswith(f"{entry.name}/")), None)
