"""The `shadow` of a suite: recorded prompts, how answers are compared, similarity service and judge."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import (
    AfterValidator,
    Strict,
    model_validator,
)

from benchgate.suite.deployment import Service
from benchgate.suite.formats import parse_path
from benchgate.suite.types import Expected, Flag, PositivePercent, Section, Text, Tokens, Whole, checked, key, optional


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
    """A model that decides which of two answers is better, asked in both positions."""

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
    store_text: Flag = key("Store prompts and answers, not only their digests", default=False)
    secondary_ratio: PositivePercent = optional(
        "Share of the prompts, drawn at random, that the baseline is asked twice", default=1.0, alias="secondary"
    )
    compare: Compare = optional("When two answers count as the same. Default: all defaults", default=Compare())
    similarity: Similarity | None = optional("An embeddings endpoint that rates how similar two texts are")
    judge: Judge | None = optional("A model that judges which of two answers is better")
