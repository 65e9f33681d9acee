"""Sections that compare answers: `quality` (lm-eval), `divergence` (fixed texts), `shadow` (recorded prompts)."""

from __future__ import annotations

from pathlib import PurePosixPath
from typing import Annotated, Any, Literal, Self

from pydantic import (
    AfterValidator,
    SerializerFunctionWrapHandler,
    Strict,
    model_serializer,
    model_validator,
)

from benchgate import units
from benchgate.suite.deployment import Service
from benchgate.suite.formats import parse_path
from benchgate.suite.types import (
    Duration,
    Expected,
    Flag,
    Percent,
    PositivePercent,
    Section,
    Size,
    Text,
    Tokens,
    Whole,
    Written,
    checked,
    key,
    optional,
    text,
)

GIB = 1024**3

_AT = "@"  # between a task and a stage
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
        "name; a task of a group `group/task`, like `mmlu_pro/mmlu_pro_law`"
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
        "and are judged as one group"
    )
    max_tokens: Tokens | None = optional(
        "Longest answer; overrides the task's own `max_gen_toks` and `quality.max_tokens`. Default: what the task sets",
        ge=1,
    )
    expect: Band | None = optional(
        "Known range of the baseline's score on the task or group, from a model card or from earlier runs. It also "
        "permits a candidate that is far better"
    )

    @model_validator(mode="before")
    @classmethod
    def _from_name(cls, found: Any) -> Any:
        if isinstance(found, str):
            return {"task": found}
        if isinstance(found, dict | TaskEntry):
            return found
        raise ValueError(f"found {units.show_found(found)}; expected {_ENTRY}")

    @model_validator(mode="after")
    def _has_no_stage(self) -> Self:
        if _AT in self.name:
            raise ValueError(f"the name {self.name} has an `{_AT}`, which stands between a task and a stage; rename it")
        return self

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


Task = Annotated[TaskEntry, Expected(_ENTRY), Written(text())]


def verified_name(task: str, stage: str) -> str:
    """Return the name of a task whose items were sent among the requests of a stage: `add@c16`."""
    return f"{task}{_AT}{stage}"


def stage_of_task(task: str) -> str | None:
    """Return the stage among whose requests a task's items were sent; None for an eval of its own."""
    return task.partition(_AT)[2] or None


def is_verifiable(output_type: object, scale: object, repeats: object) -> bool:
    """Return True if a task's items can be sent among a load: one generated answer each, right or wrong."""
    return (output_type, scale, repeats) == ("generate_until", "binary", 1)


class Quality(Section):
    """Evals by lm-eval; paths are relative to the suite."""

    tasks: tuple[Task, ...] = key(
        "Your own task files (a path that ends in `.yaml`), names of lm-eval's tasks and groups, or generated tasks: "
        "`recall` (`recall_1k` to `recall_32k`), `stop_strings`, `round_trip`; each a text, or a mapping with further "
        "keys",
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

    def stated_max_tokens(self, entry: TaskEntry) -> int | None:
        """Return the limit the suite states for a task's answers, its own first; None where only defaults apply."""
        if entry.max_tokens is not None or "max_tokens" not in self.model_fields_set:
            return entry.max_tokens
        return self.max_tokens

    def entry(self, task: str) -> TaskEntry | None:
        """Return the entry of an observed task: `mmlu_pro/mmlu_pro_law@c16` belongs to the group `mmlu_pro`."""
        task = task.partition(_AT)[0]
        return next((entry for entry in self.tasks if task == entry.name or task.startswith(f"{entry.name}/")), None)


class Divergence(Section):
    """Fixed texts (JSONL: `id`, `text`) that both arms read: given, not generated. Paths are relative to the suite."""

    texts: Text = key(
        "JSON Lines with a unique `id` and a `text` in each row. The plan and the store keep only their digests; an "
        "error message of a server may quote a few words"
    )
    positions: Whole = key(
        "Number of positions compared, spread evenly over the pieces of all texts and drawn by the seed; each needs "
        "16 characters of text",
        default=200,
        ge=10,
        le=100_000,
    )
    top: Whole = key(
        "Number of most probable tokens requested per position; servers have limits (vLLM 20 unless `--max-logprobs` "
        "is higher, OpenAI 5)",
        default=20,
        ge=2,
        le=10_000,
    )
    way: Literal["auto", "n_probs", "echo", "cut"] = key(
        "How servers return log-probabilities: `n_probs` (llama.cpp), `echo` (vLLM, SGLang), or `cut` (any "
        "completions endpoint with `logprobs`; no perplexity). `auto` takes the first that a probe shows to work "
        "on both arms",
        default="auto",
    )
    window: Whole = key(
        "Characters per piece of text. Only its second half counts; a piece must fit the servers' context",
        default=2048,
        ge=32,
        le=1_000_000,
    )
    repeat_baseline: Flag = key(
        "Ask the baseline a second time, at the same time; its divergence from itself is subtracted", default=False
    )
    concurrency: Whole = key("Pieces read at once", default=8, ge=1, le=1024)


def _sent(allowed: bool) -> bool:
    if not allowed:
        raise ValueError(
            "must be true: recorded prompts and the answers to them are sent to this address too; "
            "write `send_text: true` if they may be, or remove the section"
        )
    return allowed


JsonPath = Annotated[str, checked(parse_path), Expected('a path into JSON like "$.id" or "$.items[*].ts"')]
SendText = Annotated[bool, Strict(), AfterValidator(_sent)]


class Compare(Section):
    """Method by which two answers are compared."""

    by: Literal["auto", "normalised", "exact", "json", "tool_calls", "structure"] = key(
        "Method that decides whether two answers differ", default="auto"
    )
    ignore_paths: tuple[JsonPath, ...] = key(
        "Paths that are ignored in JSON answers and in arguments of tool calls", default=()
    )
    tolerance: Annotated[float, Strict()] = key(
        "Relative tolerance of numbers in JSON: equal if they differ by at most this share of the larger",
        default=0.0,
        ge=0,
        lt=1,
    )
    case: Flag = key("Compare upper and lower case", default=True)
    refusals: tuple[Text, ...] = key(
        "Further phrases with which a refusal begins, in other languages or specific to a service", default=()
    )

    @model_validator(mode="after")
    def _rules_apply(self) -> Self:
        for name in ("ignore_paths", "tolerance"):
            if self.by in ("exact", "normalised") and getattr(self, name):
                raise ValueError(f"`{name}` means nothing with `by: {self.by}`; write `by: auto` or remove it")
        if self.by == "exact" and not self.case:
            raise ValueError("`case: false` means nothing with `by: exact`; write `by: auto` or remove it")
        return self


class Similarity(Service):
    """An embeddings endpoint that rates the similarity of two texts."""

    model: Text = key("Name of the model at this server")
    same_above: Annotated[float, Strict()] = key(
        "Cosine similarity from which two texts count as the same", default=0.95, gt=0, le=1
    )
    send_text: SendText = key("Permission to send answers there; required, and must be `true`")


class Judge(Service):
    """A model that decides which of two answers is better, in both positions."""

    model: Text = key("Name of the model at this server")
    prompt: Text | None = key(
        "File with the judge's prompt, with `{prompt}`, `{answer_a}` and `{answer_b}` in it. Default: the built-"
        "in prompt",
        default=None,
    )
    max_tokens: Tokens = key("Longest verdict", default=64, ge=1)
    send_text: SendText = key("Permission to send prompts and answers there; required, and must be `true`")


class Shadow(Section):
    """Recorded prompts (JSONL) sent to the baseline twice and to the candidate once."""

    prompts: Text = key("JSON Lines with a unique `id`, and a `prompt` or `messages`, in each row")
    limit: Whole | None = key("Number of rows, the first ones of the file. Default: all", default=None, ge=1)
    concurrency: Whole = key("Requests in flight", default=8, ge=1, le=1024)
    max_tokens: Tokens = key("Longest answer of a prompt without its own limit", default=128, ge=1)
    store_text: Flag = key(
        "Store prompts and answers, not only their digests; reports then show up to ten", default=False
    )
    secondary_ratio: PositivePercent = optional(
        "Share of the prompts, drawn at random, that the baseline gets twice", default=1.0, alias="secondary"
    )
    compare: Compare = optional("When two answers count as the same. Default: all defaults", default=Compare())
    similarity: Similarity | None = optional("An embeddings endpoint that rates how similar two texts are")
    judge: Judge | None = optional("A model that judges which of two answers is better")
