"""Every way in which an answer can go wrong or just be odd, by name, and which request meets which.

A fault is written `NAME[:VALUE…][+NAME…][@SHARE]`: `error-after:3@10%`, `crlf+merged:4`. Those joined by `+` meet in
one answer. One request meets at most one of the faults given, so their shares add up to at most 100 %.
"""

from __future__ import annotations

import difflib
import math
import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from benchgate.errors import UsageError
from benchgate.sim.units import parse_share
from benchgate.units import parse_span_s

SHAPES = ("object", "string", "detail", "detail-list", "text")
"""The error bodies in use: `{"error": {…}}`, `{"error": "…"}`, `{"detail": "…"}`, `{"detail": […]}` and plain text."""


@dataclass(frozen=True, slots=True)
class Behaviour:
    """How one answer deviates; the default is a sound one. `spec` is what it was called in the settings."""

    spec: str = ""
    # instead of an answer
    status: int | None = None
    shape: str = "object"
    retry_after_s: float | None = None
    redirects: bool = False
    silent: bool = False
    # how it ends: see the names that set it
    ending: str | None = None
    after_tokens: int = 0
    stall_s: float | None = None
    endless: bool = False
    # what it says of itself
    usage: str = "asked"  # or none, zero, late, finish
    usage_factor: float = 1.0  # completion tokens are multiplied by it
    late_s: float = 0.0
    model: str | None = None  # the name of the model in the answer
    says_done: bool = True
    # what it says: see `false_answers`
    text: str | None = None  # or half, reasoning, blank, zero-width, repeated, call, second-choice
    repeated: str = ""
    above: int = 0  # `text` holds only with more requests than this in the system, this one included
    # how fast it comes
    seen_factor: float = 1.0  # for a prompt that this process has seen before
    # how events are cut and written
    tokens_per_event: int | None = None
    events_per_write: int = 1
    bytewise: bool = False
    drip_s: float | None = None
    crlf: bool = False
    early_head: bool = False
    early_role: bool = False
    # bytes that should not be there
    spoiled: str | None = None  # utf8, json or line; of numbers: few or nan
    line_bytes: int = 0
    header_bytes: int = 0
    length: str | None = None  # more or less: a wrong content-length
    gzip: bool = False
    http10: bool = False


SOUND = Behaviour()
"""An answer as it should be."""


@dataclass(frozen=True, slots=True)
class Value:
    """One value after a fault's name, and the field of Behaviour it sets."""

    field: str
    shown: str
    default: str
    parse: Callable[[str], object]


@dataclass(frozen=True, slots=True)
class Kind:
    """One fault: its name, its values, what the answer does, and the fields of Behaviour that make it so."""

    name: str
    what: str
    fields: Mapping[str, object] = field(default_factory=dict)
    values: tuple[Value, ...] = ()

    @property
    def usage(self) -> str:
        """As it is written, with the values that hold when none are given: `stall-after[:TOKENS=3[:TIME=1s]]`."""
        shown = [f"[:{value.shown}={value.default}" for value in self.values]
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


_AFTER = Value("after_tokens", "TOKENS", "3", _count)
_ABOVE = Value("above", "ABOVE", "0", _count)

METRICS: tuple[Kind, ...] = (
    Kind("error-after", "an error event and [DONE] after TOKENS tokens, under status 200, as vLLM does",
         {"ending": "error"}, (_AFTER,)),
    Kind("error-first", "an error as the first event, and [DONE]", {"ending": "error"}),
    Kind("error-text-after", "an error event that is a plain string, and no [DONE], as transformers serve does",
         {"ending": "error-text"}, (_AFTER,)),
    Kind("cut-after", "an orderly end without finish reason and [DONE]", {"ending": "cut"}, (_AFTER,)),
    Kind("reset-after", "a TCP reset in the middle of an event", {"ending": "reset"}, (_AFTER,)),
    Kind("abort-after", "finish reason `abort`, then all the rest as if it were well", {"ending": "abort"}, (_AFTER,)),
    Kind("hang-after", "silence for ever", {"ending": "hang"}, (_AFTER,)),
    Kind("stall-after", "silence for TIME, then on as if nothing had been",
         {"ending": "stall"}, (_AFTER, Value("stall_s", "TIME", "1s", parse_span_s))),
    Kind("empty-answer", "a finish event without any output before it", {"ending": "empty-answer"}),
    Kind("done-only", "[DONE] and nothing else", {"ending": "done-only"}),
    Kind("empty-body", "status 200 and an empty body", {"ending": "empty-body"}),
    Kind("endless", "tokens for as long as the client stays, whatever max_tokens says", {"endless": True}),
    Kind("http-error", "a status instead of an answer; SHAPE is one of " + ", ".join(SHAPES), {},
         (Value("status", "STATUS", "500", _status), Value("shape", "SHAPE", "object", _one_of(*SHAPES)))),
    Kind("rate-limited", "status 429 with Retry-After", {"status": 429},
         (Value("retry_after_s", "TIME", "1s", parse_span_s),)),
    Kind("redirect", "status 307 to another path", {"redirects": True}),
    Kind("no-answer", "the request is read and never answered", {"silent": True}),
    Kind("no-usage", "no usage, although it was asked for", {"usage": "none"}),
    Kind("zero-usage", "usage of all zeros, as litgpt tells it", {"usage": "zero"}),
    Kind("late-usage", "the usage after [DONE], TIME later",
         {"usage": "late"}, (Value("late_s", "TIME", "0s", parse_span_s),)),
    Kind("usage-in-finish", "usage in the finish event, asked for or not, as transformers serve tells it",
         {"usage": "finish"}),
    Kind("no-done", "everything but [DONE]", {"says_done": False}),
    Kind("usage-times", "FACTOR times as many completion tokens in the usage as were sent", {},
         (Value("usage_factor", "FACTOR", "1.08", _factor),)),
    Kind("other-model", "NAME as the model's name in the answer", {}, (Value("model", "NAME", "other", _some_text),)),
    Kind("half-text", "the text of every second token is left out; usage and finish reason are as if it had been sent",
         {"text": "half"}, (_ABOVE,)),
    Kind("reasoning-only", "every token is reasoning, and there is no answer", {"text": "reasoning"}, (_ABOVE,)),
    Kind("blank-text", "blanks and line ends instead of words", {"text": "blank"}, (_ABOVE,)),
    Kind("zero-width-text", "zero-width spaces (U+200B) instead of words", {"text": "zero-width"}, (_ABOVE,)),
    Kind("repeated-text", "TEXT as every token instead of words",
         {"text": "repeated"}, (Value("repeated", "TEXT", "!", _some_text), _ABOVE)),
    Kind("unasked-call", "a call of a tool, with the finish reason `tool_calls`, where no tools were offered",
         {"text": "call"}, (_ABOVE,)),
    Kind("second-choice", "the second half of the answer in the choice with index 1",
         {"text": "second-choice"}, (_ABOVE,)),
    Kind("fast-when-seen", "FACTOR times as fast, first token and all others, for a prompt that came before",
         {}, (Value("seen_factor", "FACTOR", "4", _factor),)),
    Kind("multi-token", "TOKENS tokens in every event", {}, (Value("tokens_per_event", "TOKENS", "4", _positive),)),
    Kind("merged", "EVENTS events in every write and chunk", {},
         (Value("events_per_write", "EVENTS", "4", _positive),)),
    Kind("split", "every byte in a write of its own", {"bytewise": True}),
    Kind("drip", "every byte in a write of its own, TIME apart", {}, (Value("drip_s", "TIME", "1ms", parse_span_s),)),
    Kind("crlf", "CRLF line ends, with comments between the events", {"crlf": True}),
    Kind("early-head", "the response head at once, long before the first token", {"early_head": True}),
    Kind("early-role", "head and role event at once, before the prompt is read, as transformers serve does",
         {"early_head": True, "early_role": True}),
    Kind("bad-utf8", "bytes that are no UTF-8 inside a token", {"spoiled": "utf8"}),
    Kind("bad-json", "an event that is no JSON", {"spoiled": "json"}),
    Kind("too-few", "embeddings and rankings: one item less than was asked for", {"spoiled": "few"}),
    Kind("not-a-number", "embeddings and rankings: a NaN among the numbers", {"spoiled": "nan"}),
    Kind("huge-line", "one event of BYTES bytes", {"spoiled": "line"},
         (Value("line_bytes", "BYTES", "1000000", _positive),)),
    Kind("huge-header", "a response header of BYTES bytes", {}, (Value("header_bytes", "BYTES", "100000", _positive),)),
    Kind("wrong-length", "a content-length of far more, or far less, than there is", {},
         (Value("length", "HOW", "more", _one_of("more", "less")),)),
    Kind("gzip", "a compressed body, although only identity was accepted", {"gzip": True}),
    Kind("http10", "HTTP/1.0, the body ends with the connection", {"http10": True}),
)  # fmt: skip

_BY_NAME = {kind.name: kind for kind in METRICS}


@dataclass(frozen=True, slots=True)
class Fault:
    """One entry of the settings: what its requests meet, and how large their share is."""

    behaviour: Behaviour
    share_ratio: float


class Faults:
    """Draws what each request meets, in order of arrival, from a seed."""

    def __init__(self, faults: Sequence[Fault], rng: random.Random) -> None:
        self._faults = faults
        self._draw = rng.random

    def next(self) -> Behaviour:
        """Of the next request."""
        if not self._faults:
            return SOUND
        drawn = self._draw()
        for fault in self._faults:
            if drawn < fault.share_ratio:
                return fault.behaviour
            drawn -= fault.share_ratio
        return SOUND


def parse_faults(specs: Iterable[str]) -> tuple[Fault, ...]:
    """The faults of the settings. Raises UsageError: where, what was found, what was expected."""
    faults = tuple(_fault(spec) for spec in specs)
    total = sum(fault.share_ratio for fault in faults)
    if total > 1 + 1e-9:
        raise UsageError(
            f"the shares of the faults add up to {total * 100:g}%; a request meets at most one, so they must not pass "
            "100%. Join with + what one answer should have"
        )
    return faults


def _fault(spec: str) -> Fault:
    names, at, share = spec.partition("@")
    try:
        ratio = parse_share(share) if at else 1.0
    except ValueError as error:
        raise UsageError(f"--fault {spec}: {error}") from None
    behaviour = Behaviour(spec=names)
    for part in names.split("+"):
        behaviour = replace(behaviour, **_fields(spec, part))
    return Fault(behaviour, ratio)


def _fields(spec: str, part: str) -> dict[str, Any]:
    """The fields of Behaviour that one name with its values sets."""
    name, *texts = part.split(":")
    kind = _BY_NAME.get(name)
    if kind is None:
        near = difflib.get_close_matches(name, _BY_NAME, n=1)
        hint = f"did you mean {near[0]}?" if near else "benchgate sim --list-faults shows them all"
        raise UsageError(f"--fault {spec}: there is no fault {name!r}; {hint}")
    if len(texts) > len(kind.values):
        raise UsageError(f"--fault {spec}: too many values; write it as {kind.usage}")
    fields = dict(kind.fields)
    for at, value in enumerate(kind.values):
        try:
            fields[value.field] = value.parse(texts[at] if at < len(texts) else value.default)
        except ValueError as error:
            raise UsageError(f"--fault {spec}: {error}; write it as {kind.usage}") from None
    return fields
