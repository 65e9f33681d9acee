"""The shadow comparison, as a suite says it: recorded prompts, what counts as the same, and who else is asked."""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import (
    AfterValidator,
    Field,
    SerializerFunctionWrapHandler,
    Strict,
    model_serializer,
    model_validator,
)

from benchgate.suite.connection import Address, Headers, Reference, refuse_two_authorizations
from benchgate.suite.formats import parse_path
from benchgate.suite.types import Expected, Flag, PositivePercent, StrictSection, Text, Tokens, Whole


def _path(text: str) -> str:
    parse_path(text)
    return text


def _sent(allowed: bool) -> bool:
    """Whoever writes the suite says so, or it does not happen."""
    if not allowed:
        raise ValueError(
            "must be true: recorded prompts and the answers to them are sent to this address too; "
            "write `send_text: true` if they may be, or remove the section"
        )
    return allowed


JsonPath = Annotated[str, AfterValidator(_path), Expected('a path into JSON like "$.id" or "$.items[*].ts"')]
SendText = Annotated[bool, Strict(), AfterValidator(_sent)]


class Compare(StrictSection):
    """When two answers count as the same."""

    by: Literal["auto", "normalised", "exact", "json", "tool_calls", "structure"] = "auto"
    ignore_paths: tuple[JsonPath, ...] = ()  # of JSON answers, and of the arguments of calls
    tolerance: Annotated[float, Strict()] = Field(default=0.0, ge=0, lt=1)  # of numbers in JSON, as a share
    case: Flag = True  # whether upper and lower case differ
    refusals: tuple[Text, ...] = ()  # more phrases that a refusal begins with

    @model_validator(mode="after")
    def _rules_apply(self) -> Self:
        for name in ("ignore_paths", "tolerance"):
            if self.by in ("exact", "normalised") and getattr(self, name):
                raise ValueError(f"`{name}` means nothing with `by: {self.by}`; write `by: auto` or remove it")
        if self.by == "exact" and not self.case:
            raise ValueError("`case: false` means nothing with `by: exact`; write `by: auto` or remove it")
        return self


class Similarity(StrictSection):
    """An embeddings endpoint that tells how near two texts are."""

    url: Address
    model: Text
    api_key: Reference | None = None
    headers: Headers = Field(default_factory=dict)
    same_above: Annotated[float, Strict()] = Field(default=0.95, gt=0, le=1)  # cosine from which two texts are one
    send_text: SendText

    @model_validator(mode="after")
    def _one_authorization(self) -> Self:
        refuse_two_authorizations(self.api_key, self.headers)
        return self


class Judge(StrictSection):
    """A model that says which of two answers is better, asked in both positions."""

    url: Address
    model: Text
    api_key: Reference | None = None
    headers: Headers = Field(default_factory=dict)
    prompt: Text | None = None  # a file with {prompt}, {answer_a} and {answer_b} in it; a built-in one unless said
    max_tokens: Tokens = Field(default=64, ge=1)
    send_text: SendText

    @model_validator(mode="after")
    def _one_authorization(self) -> Self:
        refuse_two_authorizations(self.api_key, self.headers)
        return self


class Shadow(StrictSection):
    """Recorded prompts (JSONL) sent to the baseline twice and to the candidate once."""

    prompts: Text
    limit: Whole | None = Field(default=None, ge=1)
    concurrency: Whole = Field(default=8, ge=1, le=1024)
    max_tokens: Tokens = Field(default=128, ge=1)
    store_text: Flag = False  # keep the answers themselves, not only their digests
    secondary_ratio: PositivePercent = Field(default=1.0, alias="secondary")  # of the prompts asked twice
    compare: Compare = Compare()
    similarity: Similarity | None = None
    judge: Judge | None = None

    @model_serializer(mode="wrap")
    def _as_before(self, serialise: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """What came after 0.1.0 is written only where it is used: suites without it keep their bytes."""
        written: dict[str, Any] = serialise(self)
        usual = {"secondary_ratio": 1.0, "compare": Compare(), "similarity": None, "judge": None}
        unsaid = {key for key, value in usual.items() if getattr(self, key) == value}
        return {key: value for key, value in written.items() if key not in unsaid and (key != "secondary" or value < 1)}
