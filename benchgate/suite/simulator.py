"""Settings of a simulated server: the `sim` of a deployment, and the file of `benchgate sim`. Catalogue of its faults.

A fault is written `NAME[:VALUE…][+NAME…][@SHARE]`: `error-after:3@10%`, `no-done+merged:4`. Those joined by `+` meet in
one answer. One request meets at most one of the faults given, so their shares add up to at most 100 %.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal, Self

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    SerializerFunctionWrapHandler,
    ValidationInfo,
    model_serializer,
    model_validator,
)

from benchgate.suite.types import (
    Duration,
    Expected,
    Flag,
    Percent,
    Section,
    Span,
    Text,
    Whole,
    Written,
    checked,
    is_stored,
    key,
    share,
)
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
    usage: str = "requested"  # or none, zero, late
    late_s: float = 0.0
    usage_factor: float = 1.0  # completion tokens are multiplied by it
    model: str | None = None  # the name of the model in the answer
    sends_done: bool = True
    # its text
    text: str | None = None  # or half, wrong, reasoning, blank, zero-width, repeated, other-script, call, second-choice
    repeated: str = ""
    above: int = 0  # `text` holds only with more requests than this in the system, this one included
    # its pace
    seen_factor: float = 1.0  # for a prompt that this process has seen before
    # how events are cut and written
    tokens_per_event: int | None = None
    events_per_write: int = 1


NO_FAULT = FaultSpec()  # a correct answer


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


def _whole(complaint: str = "", least: int = 0, most: float = math.inf) -> Callable[[str], int]:
    """Return the parser of a whole number between bounds; `complaint` is about any other number."""

    def parse(text: str) -> int:
        if not text.isdecimal():
            raise ValueError(f'"{text}" is not a whole number')
        if not least <= int(text) <= most:
            raise ValueError(f"{text} {complaint}")
        return int(text)

    return parse


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


def _shape(text: str) -> str:
    if text not in SHAPES:
        raise ValueError(f'"{text}" is none of {", ".join(SHAPES)}')
    return text


_POSITIVE = _whole("is too few; write 1 or more", least=1)
_AFTER = Parameter("after_tokens", "TOKENS", "3", _whole())
_ABOVE = Parameter("above", "ABOVE", "0", _whole())
_STALL = Parameter("stall_s", "TIME", "1s", parse_span_s)
_STATUS = Parameter(
    "status", "STATUS", "500", _whole("is no status of an error; write one from 400 to 599", least=400, most=599)
)
_SHAPE = Parameter("shape", "SHAPE", "object", _shape)
_RETRY = Parameter("retry_after_s", "TIME", "1s", parse_span_s)
_LATE = Parameter("late_s", "TIME", "0s", parse_span_s)
_USAGE = Parameter("usage_factor", "FACTOR", "1.08", _factor)
_MODEL = Parameter("model", "NAME", "other", _some_text)
_REPEATED = Parameter("repeated", "TEXT", "!", _some_text)
_SPEED = Parameter("seen_factor", "FACTOR", "4", _factor)
_TOKENS = Parameter("tokens_per_event", "TOKENS", "4", _POSITIVE)
_EVENTS = Parameter("events_per_write", "EVENTS", "4", _POSITIVE)

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
    FaultKind("no-usage", "no usage, although it was requested", {"usage": "none"}),
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
    FaultKind("wrong-answer", "another last word; length, usage and finish reason stay", {"text": "wrong"}, (_ABOVE,)),
    FaultKind("other-script", "Cyrillic letters instead of Latin ones", {"text": "other-script"}, (_ABOVE,)),
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
    names, has_share, share_text = text.partition("@")
    ratio = share(share_text) if has_share else 1.0
    fields: dict[str, Any] = {"name": names}
    for part in names.split("+"):
        name, *texts = part.split(":")
        kind = _BY_NAME.get(name)
        if kind is None:
            near = difflib.get_close_matches(name, _BY_NAME, n=1)
            hint = f"did you mean {near[0]}?" if near else "benchgate sim --list-faults shows them all"
            raise ValueError(f"there is no fault {name!r}; {hint}")
        if len(texts) > len(kind.parameters):
            raise ValueError(f"{part!r} has too many values; write it as {kind.usage}")
        fields |= kind.fields
        for at, parameter in enumerate(kind.parameters):
            try:
                fields[parameter.field] = parameter.parse(texts[at] if at < len(texts) else parameter.default)
            except ValueError as error:
                raise ValueError(f"{error}; write it as {kind.usage}") from None
    return Fault(FaultSpec(**fields), ratio)


def list_faults() -> str:
    """Return every fault, one line each: its spelling and its effect."""
    width = max(len(kind.usage) for kind in FAULTS)
    return "".join(f"{kind.usage:{width}}  {kind.effect}\n" for kind in FAULTS)


_Least0 = Annotated[Whole, Field(ge=0)]
_Least1 = Annotated[Whole, Field(ge=1)]


def _bounds(found: tuple[int, int]) -> tuple[int, int]:
    if not 0 <= found[0] <= found[1]:
        raise ValueError(f"{list(found)} are no bounds; write the fewest and the most, like [16, 128]")
    return found


Bounds = Annotated[tuple[Whole, Whole], AfterValidator(_bounds), Expected("the fewest and the most, like [16, 128]")]
FaultText = Annotated[Text, checked(parse_fault), Expected('a fault like "error-after:3@10%"')]

MOST_REPLICAS = 16


def _unlike(found: object, info: ValidationInfo) -> object:
    """Parse the settings of each replica; in base units they are those of a stored suite already."""
    if not isinstance(found, Mapping) or not all(isinstance(change, Mapping) for change in found.values()):
        return found
    parsed = {}
    for number, change in found.items():
        if forbidden := sorted(OF_THE_ROUTER & {*change}):
            raise ValueError(f"`{forbidden[0]}` is not of one replica; remove it")
        if is_stored(info):
            parsed[str(number)] = dict(change)
            continue
        one = SimSettings.model_validate(dict(change))
        parsed[str(number)] = {name: getattr(one, name) for name in sorted(one.model_fields_set)}
    return parsed


Unlike = Annotated[
    dict[str, dict[str, Any]],
    BeforeValidator(_unlike),
    Expected("the numbers of replicas and the settings in which they differ, like {1: {itl: 30ms}}"),
    Written({"type": "object"}),
]


class SimSettings(Section):
    """A simulated server: it runs no model, and its answers have the configured times and lengths.

    Any key marked "Engine" selects an engine that batches, any marked "Queue" a queue; otherwise each stream is paced
    by itself. A file of `benchgate sim` has the same keys.
    """

    ttft_s: Span = key("Paced: from the whole request to the first token", default=0.05, alias="ttft")
    itl_s: Span = key(
        "Paced, and a queue with a service until the first token: from token to token; `0ms` sends the answer at once",
        default=0.01, alias="itl",
    )  # fmt: skip
    prefill_s: Span = key("Engine: cost of a prompt token", default=0.0002, alias="prefill")
    decode_s: Span = key("Engine: cost of a step that decodes", default=0.008, alias="decode")
    decode_per_sequence_s: Span = key(
        "Engine: added for every sequence that decodes in it", default=0.0003, alias="decode_per_sequence"
    )
    batch: _Least1 = key("Engine: most sequences at once", default=32)
    kv_tokens: _Least1 = key("Engine: tokens the KV cache has room for", default=65_536)
    prefill_chunk_tokens: _Least1 = key("Engine: most prompt tokens in a step", default=512, alias="prefill_chunk")
    queue: _Least0 | None = key("Engine: refuse a request if this many are waiting. Default: no limit", default=None)
    queue_status: Annotated[Whole, Field(ge=400, le=599)] | None = key(
        "Engine: status of such a refusal; 429 comes with Retry-After. vLLM answers 503, and to a stream 200 "
        "with an error inside. Default: as vLLM", default=None,
    )  # fmt: skip
    shed_above: _Least0 | None = key("Engine: answer 429 if this many are waiting. Default: never", default=None)
    shed_exempt: Whole = key("Engine: requests of this priority number and lower ones are never shed", default=-1)
    prefix_blocks: _Least0 = key(
        "Engine: number of blocks of prompts and answers that are kept, beside the KV room of running requests; the "
        "least recently used goes first", default=0, alias="prefix_cache",
    )  # fmt: skip
    flush_every: _Least1 | None = key(
        "Engine: empty the prefix cache after every so many requests, all at once. Default: never", default=None
    )
    block_tokens: _Least1 = key("Engine: tokens in a block", default=16, alias="prefix_block")
    adapter_s: Span = key(
        "Engine: added to a step for every sequence in it that runs with an adapter", default=0.0, alias="adapter_cost"
    )
    adapter_slots: _Least1 | None = key(
        "Engine: adapters in memory; the least recently used goes first. Default: all", default=None
    )
    adapter_swap_s: Span = key(
        "Engine: added to a step for every sequence that begins in it with an adapter that is not in memory",
        default=0.0, alias="adapter_swap",
    )  # fmt: skip
    preempts: Flag = key(
        "Engine: take KV room token by token, and evict the least urgent sequence when it is full",
        default=False, alias="preempt",
    )  # fmt: skip
    leak_kv: Flag = key("Engine: never free the KV room of a client that disconnects", default=False)
    service_s: Span = key("Queue: time a server works on a request", default=0.06, alias="service")
    servers: _Least1 = key("Queue: servers, each for one request at a time", default=1)
    service_law: Literal["constant", "exponential"] = key(
        "Queue: constant service times, or exponential ones with this mean", default="constant"
    )
    service_until: Literal["first-token", "last-token"] = key(
        "Queue: the token with which a service ends", default="first-token"
    )
    jitter_ratio: Annotated[Percent, Field(lt=1)] = key(
        "Spreads every one of these times, or every step, evenly over ± this share", default=0.0, alias="jitter"
    )
    chunk_tokens: _Least1 = key("Tokens per event, after the first", default=1)
    model: Text = key("Name of the model; a request for another one is a 404", default="sim")
    adapters: tuple[Text, ...] = key("LoRA adapters, requested in place of the model", default=())
    context_tokens: _Least1 = key("Context length: prompt and answer together", default=131_072, alias="context")
    output_tokens: Bounds | None = key(
        "Answers end by themselves within these bounds, with finish reason `stop`. Default: as requested", default=None
    )
    reasoning_tokens: Bounds | None = key("Answers begin with this many tokens of reasoning", default=None)
    invalid_json_ratio: Percent = key(
        "Share of the answers to a schema that are invalid JSON", default=0.0, alias="invalid_json"
    )
    says_ratio: Percent | None = key(
        "Of the prompts that end with a line `say: TEXT`, the share answered with that text; the others get another "
        "last word", default=None, alias="says",
    )  # fmt: skip
    image_tokens: _Least1 | None = key("Tokens that an image costs. Default: images are refused", default=None)
    audio_tokens: _Least1 | None = key(
        "Tokens that a second of audio costs. Default: 50 for transcriptions; in a chat, audio is refused", default=None
    )
    video_tokens: _Least1 | None = key("Tokens that a video costs. Default: videos are refused", default=None)
    embedding_size: _Least1 = key("Dimensions of an embedding", default=64)
    faults: tuple[FaultText, ...] = key("Faults of the answers; `benchgate sim --list-faults` lists them", default=())
    keep_alive_s: Duration | None = key(
        "Close connections that were idle for this long. Default: never", default=None, alias="keep_alive"
    )
    ready_after_s: Span = key("Refuse connections for this long after the start", default=0.0, alias="ready_after")
    load_time_s: Span = key(
        "Time in which the first request loads the model, while every other one waits", default=0.0, alias="load_time"
    )
    replicas: Whole = key("Number of processes behind a router", default=1, ge=1, le=MOST_REPLICAS)
    lose_replica_after: _Least1 | None = key(
        "The router kills its last replica after this many requests. Default: never", default=None
    )
    affinity: Text | None = key(
        "What requests to one replica have in common: `prefix`, `session` or the header of this name. "
        "Default: round robin",
        default=None,
    )
    weights: tuple[_Least1, ...] | None = key(
        "How many of so many requests in turn go to each replica: [3, 1] sends a quarter to the second. Default: equal",
        default=None,
    )
    unlike: Unlike | None = key(
        "Settings in which one replica differs, by its number: `{1: {itl: 30ms}}` is a gray replica", default=None
    )
    prefill_replicas: _Least1 | None = key(
        "Engine: so many replicas, the first ones, read the prompts, and the others make the answers. "
        "Default: each does both", default=None,
    )  # fmt: skip
    transfer_s: Span | None = key(
        "Engine: with `prefill_replicas`, time in which the KV cache of a prompt token gets to the other replica. "
        "Default: 0ms", default=None, alias="transfer",
    )  # fmt: skip
    seed: _Least0 = key("Seed of answers, jitter and faults", default=0)

    @property
    def is_engine(self) -> bool:
        """Return True for an engine that batches."""
        return not self.model_fields_set.isdisjoint(ENGINE)

    @property
    def is_queue(self) -> bool:
        """Return True for a queue."""
        return not self.model_fields_set.isdisjoint(QUEUE)

    @model_validator(mode="after")
    def _keys_fit_together(self) -> Self:
        pace, costs, queue = (
            [name for name in names if name in self.model_fields_set] for names in (PACE, ENGINE, QUEUE)
        )
        if pace and costs:
            one, other = (_spelt(names[0]) for names in (pace, costs))
            raise ValueError(
                f"`{one}` paces each stream by itself, and `{other}` is of an engine that batches; keep one of them"
            )
        if queue and costs:
            one, other = (_spelt(names[0]) for names in (queue, costs))
            raise ValueError(f"`{one}` is of a queue, and `{other}` is of an engine that batches; keep one of them")
        if queue and "ttft_s" in pace:
            raise ValueError("in a queue the first token follows from `service`; remove `ttft`")
        if "itl_s" in pace and self.service_until == "last-token":
            raise ValueError("tokens come within the `service` where it ends with the last token; remove `itl`")
        if self.service_s == 0:
            raise ValueError("a `service` takes longer than 0")
        if (self.decode_s == 0 and self.decode_per_sequence_s == 0) or self.prefill_s == 0:
            raise ValueError("an engine whose steps take no time has no schedule; give `prefill` and `decode` a cost")
        if self.lose_replica_after is not None and self.replicas == 1:
            raise ValueError(
                "`lose_replica_after` kills one of several replicas, and there is one; say `replicas` as well"
            )
        if self.affinity is not None and self.replicas == 1:
            raise ValueError("`affinity` chooses among several replicas, and there is one; say `replicas` as well")
        if self.weights and len(self.weights) != self.replicas:
            raise ValueError(f"`weights` has {len(self.weights)} numbers, and there are {self.replicas} `replicas`")
        if self.affinity is not None and (self.weights or self.prefill_replicas):
            other = "weights" if self.weights else "prefill_replicas"
            raise ValueError(f"`affinity` and `{other}` both choose the replica; keep one of them")
        if self.prefill_replicas is not None and self.prefill_replicas >= self.replicas:
            raise ValueError(
                f"{self.prefill_replicas} of {self.replicas} `replicas` read prompts, and none is left for the answers"
            )
        if self.transfer_s is not None and self.replicas > 1 and self.prefill_replicas is None:
            raise ValueError("`transfer` is between replicas that read prompts and others; add `prefill_replicas`")
        for number in self.unlike or ():
            if number not in map(str, range(self.replicas)) or self.replicas == 1:
                raise ValueError(f"`unlike` names replica {number}, and the numbers are 0 to {self.replicas - 1}")
            self.of_replica(int(number))
        if self.output_tokens is not None and self.output_tokens[0] < 1:
            raise ValueError("`output_tokens` begin at 1: an answer has at least one token")
        if self.model in self.adapters or len(set(self.adapters)) < len(self.adapters):
            raise ValueError(f"each of `adapters` needs a name of its own, and `{self.model}` is the model's")
        faults = [parse_fault(text) for text in self.faults]
        total = sum(fault.share_ratio for fault in faults)
        if total > 1 + 1e-9:
            raise ValueError(
                f"the shares of the faults add up to {total * 100:g}%; a request meets at most one, so they must not "
                "pass 100%. Join with + the faults of one answer"
            )
        if self.is_engine and any(fault.spec.seen_factor != 1 for fault in faults):
            raise ValueError(
                "the fault fast-when-seen is for a paced server or a queue: the steps of an engine are shared"
            )
        return self

    @model_serializer(mode="wrap")
    def _as_given(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Leave out the keys that were not given, except those of every server: a default selects no kind of server."""
        written: dict[str, Any] = handler(self)
        return {name: value for name, value in written.items() if name in self.model_fields_set or name in _ALWAYS}

    def of_replica(self, number: int) -> SimSettings:
        """Return the settings of one replica by itself. Raises ValueError for those that do not fit together."""
        given = {name: getattr(self, name) for name in self.model_fields_set - OF_THE_ROUTER}
        if self.is_engine:
            given["batch"] = self.batch  # the keys of the router alone may have made it an engine
        return SimSettings.model_validate(
            {**given, **(self.unlike or {}).get(str(number), {})},
            by_name=True,
            by_alias=False,
            context={"stored": True},
        )

    def identity(self) -> dict[str, object]:
        """Return everything that distinguishes its answers and times from another server's, as plain JSON values."""
        others = {*(() if self.is_engine else ENGINE), *(() if self.is_queue else QUEUE)}
        others |= set(PACE) if self.is_engine else {"ttft_s"} if self.is_queue else set()
        values = ((name, getattr(self, name)) for name in SimSettings.model_fields if name not in {"model", *others})
        return {name: list(v) if isinstance(v, tuple) else v for name, v in values if v is not None}


PACE = ("ttft_s", "itl_s")
ENGINE = (
    "prefill_s", "decode_s", "decode_per_sequence_s", "batch", "kv_tokens", "prefill_chunk_tokens", "queue",
    "queue_status", "shed_above", "shed_exempt", "prefix_blocks", "flush_every", "block_tokens", "adapter_s",
    "adapter_slots", "adapter_swap_s", "preempts", "leak_kv", "prefill_replicas", "transfer_s",
)  # fmt: skip
OF_THE_ROUTER = frozenset(
    {"replicas", "lose_replica_after", "affinity", "weights", "unlike", "prefill_replicas", "ready_after_s",
     "keep_alive_s"}
)  # fmt: skip
QUEUE = ("service_s", "servers", "service_law", "service_until")
_ALWAYS = frozenset({"adapters", "context_tokens", "faults", "replicas"})


def _spelt(name: str) -> str:
    return SimSettings.model_fields[name].alias or name
