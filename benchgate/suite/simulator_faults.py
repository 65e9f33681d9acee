"""Catalogue of the faults of a simulated server, and their spelling.

A fault is written `NAME[:VALUE…][+NAME…][@SHARE]`: `error-after:3@10%`, `no-done+merged:4`. Those joined by `+` meet in
one answer. One request meets at most one of the faults given, so their shares add up to at most 100 %.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from benchgate.suite.types import share
from benchgate.units import parse_span_s

SHAPES = ("object", "string", "detail", "detail-list", "text")
"""The error bodies in use: `{"error": {…}}`, `{"error": "…"}`, `{"detail": "…"}`, `{"detail": […]}` and plain text."""


@dataclass(frozen=True, slots=True)
class FaultSpec:
    """Deviations of one answer; the default is a correct one. `name` is how the settings call it."""

    name: str = ""
    # instead of an answer
    status: int | None = None
    shape: str = "object"
    retry_after_s: float | None = None
    silent: bool = False
    # how it ends: see the catalogue
    ending: str | None = None
    after_tokens: int = 0
    stall_s: float | None = None
    endless: bool = False
    # metadata of the answer
    usage: str = "asked"  # or none, zero, late
    late_s: float = 0.0
    usage_factor: float = 1.0  # completion tokens are multiplied by it
    model: str | None = None  # the name of the model in the answer
    sends_done: bool = True
    # its text
    text: str | None = None  # or half, reasoning, blank, zero-width, repeated, call, second-choice
    repeated: str = ""
    above: int = 0  # `text` holds only with more requests than this in the system, this one included
    # its pace
    seen_factor: float = 1.0  # for a prompt that this process has seen before
    # how events are cut and written
    tokens_per_event: int | None = None
    events_per_write: int = 1


NO_FAULT = FaultSpec()
"""A correct answer."""


@dataclass(frozen=True, slots=True)
class Parameter:
    """A value after a fault's name, and the field of FaultSpec it sets."""

    field: str
    shown: str
    default: str
    parse: Callable[[str], object]


@dataclass(frozen=True, slots=True)
class FaultKind:
    """A fault of the catalogue: the fields of FaultSpec that it sets, and those that its parameters set."""

    name: str
    effect: str
    fields: Mapping[str, object] = field(default_factory=dict)
    parameters: tuple[Parameter, ...] = ()

    @property
    def usage(self) -> str:
        """Return its spelling with the default of each parameter: `stall-after[:TOKENS=3[:TIME=1s]]`."""
        shown = [f"[:{parameter.shown}={parameter.default}" for parameter in self.parameters]
        return self.name + "".join(shown) + "]" * len(shown)


def _count(text: str) -> int:
    if not text.isdecimal():
        raise ValueError(f'"{text}" is not a whole number')
    return int(text)


def _positive(text: str) -> int:
    if _count(text) == 0:
        raise ValueError("0 is too few; write 1 or more")
    return int(text)


def _factor(text: str) -> float:
    try:
        factor = float(text)
    except ValueError:
        factor = math.nan
    if not 0 < factor < math.inf:
        raise ValueError(f'"{text}" is no factor; write a number above 0')
    return factor


def _some_text(text: str) -> str:
    if not text:
        raise ValueError("the text is empty; write at least one character")
    return text


def _status(text: str) -> int:
    if _count(text) not in range(400, 600):
        raise ValueError(f"{text} is no status of an error; write one from 400 to 599")
    return int(text)


def _one_of(*words: str) -> Callable[[str], str]:
    def parse(text: str) -> str:
        if text not in words:
            raise ValueError(f'"{text}" is none of {", ".join(words)}')
        return text

    return parse


_AFTER = Parameter("after_tokens", "TOKENS", "3", _count)
_ABOVE = Parameter("above", "ABOVE", "0", _count)
_STALL = Parameter("stall_s", "TIME", "1s", parse_span_s)
_STATUS = Parameter("status", "STATUS", "500", _status)
_SHAPE = Parameter("shape", "SHAPE", "object", _one_of(*SHAPES))
_RETRY = Parameter("retry_after_s", "TIME", "1s", parse_span_s)
_LATE = Parameter("late_s", "TIME", "0s", parse_span_s)
_USAGE = Parameter("usage_factor", "FACTOR", "1.08", _factor)
_MODEL = Parameter("model", "NAME", "other", _some_text)
_REPEATED = Parameter("repeated", "TEXT", "!", _some_text)
_SPEED = Parameter("seen_factor", "FACTOR", "4", _factor)
_TOKENS = Parameter("tokens_per_event", "TOKENS", "4", _positive)
_EVENTS = Parameter("events_per_write", "EVENTS", "4", _positive)

FAULTS: tuple[FaultKind, ...] = (
    FaultKind("error-after", "an error event and [DONE] after TOKENS tokens, under status 200, as vLLM does",
              {"ending": "error"}, (_AFTER,)),
    FaultKind("error-first", "an error as the first event, and [DONE]", {"ending": "error"}),
    FaultKind("cut-after", "an orderly end without finish reason and [DONE]", {"ending": "cut"}, (_AFTER,)),
    FaultKind("reset-after", "a TCP reset in the middle of an event", {"ending": "reset"}, (_AFTER,)),
    FaultKind("abort-after", "finish reason `abort`, then all the rest as if it were well",
              {"ending": "abort"}, (_AFTER,)),
    FaultKind("hang-after", "silence for ever", {"ending": "hang"}, (_AFTER,)),
    FaultKind("stall-after", "silence for TIME, then on as if nothing had been", {"ending": "stall"}, (_AFTER, _STALL)),
    FaultKind("empty-answer", "a finish event without any output before it", {"ending": "empty-answer"}),
    FaultKind("empty-body", "status 200 and an empty body", {"ending": "empty-body"}),
    FaultKind("endless", "tokens for as long as the client stays, whatever max_tokens says", {"endless": True}),
    FaultKind("http-error", "a status instead of an answer; SHAPE is one of " + ", ".join(SHAPES),
              {}, (_STATUS, _SHAPE)),
    FaultKind("rate-limited", "status 429 with Retry-After", {"status": 429}, (_RETRY,)),
    FaultKind("no-answer", "the request is read and never answered", {"silent": True}),
    FaultKind("no-usage", "no usage, although it was asked for", {"usage": "none"}),
    FaultKind("zero-usage", "usage of all zeros, as litgpt sends it", {"usage": "zero"}),
    FaultKind("late-usage", "the usage after [DONE], TIME later", {"usage": "late"}, (_LATE,)),
    FaultKind("no-done", "everything but [DONE]", {"sends_done": False}),
    FaultKind("usage-times", "FACTOR times as many completion tokens in the usage as were sent", {}, (_USAGE,)),
    FaultKind("other-model", "NAME as the model's name in the answer", {}, (_MODEL,)),
    FaultKind("half-text", "every second token without text; usage and finish reason are as if it had been sent",
              {"text": "half"}, (_ABOVE,)),
    FaultKind("reasoning-only", "every token is reasoning, and there is no answer", {"text": "reasoning"}, (_ABOVE,)),
    FaultKind("blank-text", "blanks and line ends instead of words", {"text": "blank"}, (_ABOVE,)),
    FaultKind("zero-width-text", "zero-width spaces (U+200B) instead of words", {"text": "zero-width"}, (_ABOVE,)),
    FaultKind("repeated-text", "TEXT as every token instead of words", {"text": "repeated"}, (_REPEATED, _ABOVE)),
    FaultKind("unasked-call", "a call of a tool, with the finish reason `tool_calls`, where no tools were offered",
              {"text": "call"}, (_ABOVE,)),
    FaultKind("second-choice", "the second half of the answer in the choice with index 1",
              {"text": "second-choice"}, (_ABOVE,)),
    FaultKind("fast-when-seen", "FACTOR times as fast, first token and all others, for a prompt that came before",
              {}, (_SPEED,)),
    FaultKind("multi-token", "TOKENS tokens in every event", {}, (_TOKENS,)),
    FaultKind("merged", "EVENTS events in every write and chunk", {}, (_EVENTS,)),
)  # fmt: skip

_BY_NAME = {kind.name: kind for kind in FAULTS}


@dataclass(frozen=True, slots=True)
class Fault:
    """An entry of the settings: a fault, and the share of the requests that meet it."""

    spec: FaultSpec
    share_ratio: float


def parse_fault(text: str) -> Fault:
    """Return a fault of the settings. Raises ValueError: what was found, what was expected."""
    names, at, share_text = text.partition("@")
    ratio = share(share_text) if at else 1.0
    spec = FaultSpec(name=names)
    for part in names.split("+"):
        spec = replace(spec, **_fields(part))
    return Fault(spec, ratio)


def _fields(part: str) -> dict[str, Any]:
    """Return the fields of FaultSpec that one name with its parameters sets."""
    name, *texts = part.split(":")
    kind = _BY_NAME.get(name)
    if kind is None:
        near = difflib.get_close_matches(name, _BY_NAME, n=1)
        hint = f"did you mean {near[0]}?" if near else "benchgate sim --list-faults shows them all"
        raise ValueError(f"there is no fault {name!r}; {hint}")
    if len(texts) > len(kind.parameters):
        raise ValueError(f"{part!r} has too many values; write it as {kind.usage}")
    fields = dict(kind.fields)
    for at, parameter in enumerate(kind.parameters):
        try:
            fields[parameter.field] = parameter.parse(texts[at] if at < len(texts) else parameter.default)
        except ValueError as error:
            raise ValueError(f"{error}; write it as {kind.usage}") from None
    return fields


def list_faults() -> str:
    """Return every fault, one line each: its spelling and its effect."""
    width = max(len(kind.usage) for kind in FAULTS)
    return "".join(f"{kind.usage:{width}}  {kind.effect}\n" for kind in FAULTS)
