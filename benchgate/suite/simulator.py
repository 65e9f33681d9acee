"""Settings of a simulated server: the `sim` of a deployment, and the file of `benchgate sim`."""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, Field, SerializerFunctionWrapHandler, model_serializer, model_validator

from benchgate.suite.simulator_faults import parse_fault
from benchgate.suite.types import Duration, Expected, Flag, Percent, Section, Span, Text, Whole, key

_Least0 = Annotated[Whole, Field(ge=0)]
_Least1 = Annotated[Whole, Field(ge=1)]


def _bounds(found: tuple[int, int]) -> tuple[int, int]:
    if not 0 <= found[0] <= found[1]:
        raise ValueError(f"{list(found)} are no bounds; write the fewest and the most, like [16, 128]")
    return found


def _fault(text: str) -> str:
    parse_fault(text)
    return text


Bounds = Annotated[tuple[Whole, Whole], AfterValidator(_bounds), Expected("the fewest and the most, like [16, 128]")]
FaultText = Annotated[Text, AfterValidator(_fault), Expected('a fault like "error-after:3@10%"')]

MOST_REPLICAS = 16


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
    block_tokens: _Least1 = key("Engine: tokens in a block", default=16, alias="prefix_block")
    adapter_s: Span = key(
        "Engine: added to a step for every sequence in it that runs with an adapter", default=0.0, alias="adapter_cost"
    )
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
    def _one_kind(self) -> Self:
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
        return self

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.lose_replica_after is not None and self.replicas == 1:
            raise ValueError(
                "`lose_replica_after` kills one of several replicas, and there is one; say `replicas` as well"
            )
        if self.affinity is not None and self.replicas == 1:
            raise ValueError("`affinity` chooses among several replicas, and there is one; say `replicas` as well")
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

    def identity(self) -> dict[str, object]:
        """Return everything that distinguishes its answers and times from another server's, as plain JSON values."""
        others = {*(() if self.is_engine else ENGINE), *(() if self.is_queue else QUEUE)}
        others |= set(PACE) if self.is_engine else {"ttft_s"} if self.is_queue else set()
        values = ((name, getattr(self, name)) for name in SimSettings.model_fields if name not in {"model", *others})
        return {name: list(v) if isinstance(v, tuple) else v for name, v in values if v is not None}


PACE = ("ttft_s", "itl_s")
ENGINE = (
    "prefill_s", "decode_s", "decode_per_sequence_s", "batch", "kv_tokens", "prefill_chunk_tokens", "queue",
    "queue_status", "shed_above", "shed_exempt", "prefix_blocks", "block_tokens", "adapter_s", "preempts", "leak_kv",
)  # fmt: skip
QUEUE = ("service_s", "servers", "service_law", "service_until")
_ALWAYS = frozenset({"adapters", "context_tokens", "faults", "replicas"})


def _spelt(name: str) -> str:
    return SimSettings.model_fields[name].alias or name
