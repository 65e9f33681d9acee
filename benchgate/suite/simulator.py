"""The `sim` of a deployment: a simulated server that benchgate starts. Keys are the options of `benchgate sim`."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import AfterValidator, Field, model_validator

from benchgate.suite.types import Duration, Expected, Flag, Name, Percent, Section, Span, Text, Whole, key, optional

_Least0 = Annotated[Whole, Field(ge=0)]
_Least1 = Annotated[Whole, Field(ge=1)]


def _bounds(found: tuple[int, int]) -> tuple[int, int]:
    if not 0 <= found[0] <= found[1]:
        raise ValueError(f"{list(found)} are no bounds; write the fewest and the most, like [16, 128]")
    return found


Bounds = Annotated[tuple[Whole, Whole], AfterValidator(_bounds), Expected("the fewest and the most, like [16, 128]")]

MOST_REPLICAS = 16


class SimServer(Section):
    """A simulated server: it runs no model, and its answers have the configured times and lengths."""

    ttft_s: Span | None = optional("Paced: from the whole request to the first token", alias="ttft")
    itl_s: Span | None = optional(
        "Paced, and a queue with a service until the first token: from token to token", alias="itl"
    )
    prefill_s: Span | None = optional("Engine: cost of a prompt token", alias="prefill")
    decode_s: Span | None = optional("Engine: cost of a step that decodes", alias="decode")
    decode_per_sequence_s: Span | None = optional(
        "Engine: added for every sequence that decodes in it", alias="decode_per_sequence"
    )
    batch: _Least1 | None = optional("Engine: most sequences at once")
    kv_tokens: _Least1 | None = optional("Engine: tokens the KV cache has room for")
    prefill_chunk_tokens: _Least1 | None = optional("Engine: most prompt tokens in a step", alias="prefill_chunk")
    queue: _Least0 | None = optional("Engine: refuse a request if this many are waiting")
    queue_status: Annotated[Whole, Field(ge=400, le=599)] | None = optional("Engine: status of such a refusal")
    shed_above: _Least0 | None = optional("Engine: answer 429 if this many are waiting")
    shed_exempt: Whole | None = optional("Engine: requests of this priority number and lower ones are never shed")
    prefix_blocks: _Least0 | None = optional("Engine: number of prefix blocks that are kept", alias="prefix_cache")
    block_tokens: _Least1 | None = optional("Engine: tokens in a block", alias="prefix_block")
    adapter_s: Span | None = optional(
        "Engine: added to a step for every sequence in it that runs with an adapter", alias="adapter_cost"
    )
    preempts: Flag | None = optional(
        "Engine: take KV room token by token, and evict the least urgent sequence when it is full", alias="preempt"
    )
    leak_kv: Flag | None = optional("Engine: never free the KV room of a client that disconnects")
    service_s: Span | None = optional("Queue: time a server works on a request", alias="service")
    servers: _Least1 | None = optional("Queue: servers, each for one request at a time")
    service_law: Literal["constant", "exponential"] | None = optional(
        "Queue: constant service times, or exponential ones with this mean"
    )
    service_until: Literal["first-token", "last-token"] | None = optional("Queue: the token with which a service ends")
    jitter_ratio: Annotated[Percent, Field(lt=1)] | None = optional(
        "Spreads every one of these times, or every step, evenly over ± this share", alias="jitter"
    )
    chunk_tokens: _Least1 | None = optional("Tokens per event")
    adapters: tuple[Name, ...] = key("LoRA adapters, requested in place of the model", default=())
    context_tokens: _Least1 = key("Context length: prompt and answer together", default=131_072, alias="context")
    output_tokens: Bounds | None = optional("Answers end by themselves within these bounds")
    reasoning_tokens: Bounds | None = optional("Answers begin with this many tokens of reasoning")
    invalid_json_ratio: Percent | None = optional(
        "Share of the answers to a schema that are invalid JSON", alias="invalid_json"
    )
    says_ratio: Percent | None = optional(
        "Of the prompts that end with a line `say: TEXT`, the share answered with that text; the others get another "
        "last word",
        alias="says",
    )
    image_tokens: _Least1 | None = optional("Tokens that an image costs")
    embedding_size: _Least1 | None = optional("Dimensions of an embedding")
    faults: tuple[Text, ...] = key("Faults of the answers", default=())
    keep_alive_s: Duration | None = optional("Close connections that were idle for this long", alias="keep_alive")
    ready_after_s: Span | None = optional("Refuse connections for this long after the start", alias="ready_after")
    load_time_s: Span | None = optional(
        "Time in which the first request loads the model, while every other one waits", alias="load_time"
    )
    replicas: Whole = key("Number of processes behind a router", default=1, ge=1, le=MOST_REPLICAS)
    lose_replica_after: _Least1 | None = optional("The router kills its last replica after this many requests")
    affinity: Text | None = optional("What requests to one replica have in common")
    seed: _Least0 | None = optional("Seed of answers, jitter and faults")

    @model_validator(mode="after")
    def _one_kind(self) -> Self:
        pace, costs, queue = (
            [name for name in names if getattr(self, name) is not None] for names in (PACE, ENGINE, QUEUE)
        )
        if pace and costs:
            one, other = (_spelt(names[0]) for names in (pace, costs))
            raise ValueError(
                f"`{one}` paces each stream by itself, and `{other}` is of an engine that batches; keep one of them"
            )
        if queue and costs:
            one, other = (_spelt(names[0]) for names in (queue, costs))
            raise ValueError(f"`{one}` is of a queue, and `{other}` is of an engine that batches; keep one of them")
        if queue and self.ttft_s is not None:
            raise ValueError("in a queue the first token follows from `service`; remove `ttft`")
        if self.itl_s is not None and self.service_until == "last-token":
            raise ValueError("tokens come within the `service` where it ends with the last token; remove `itl`")
        if self.service_s == 0:
            raise ValueError("a `service` takes longer than 0")
        if self.lose_replica_after is not None and self.replicas == 1:
            raise ValueError(
                "`lose_replica_after` kills one of several replicas, and there is one; say `replicas` as well"
            )
        if self.affinity is not None and self.replicas == 1:
            raise ValueError("`affinity` chooses among several replicas, and there is one; say `replicas` as well")
        if self.output_tokens is not None and self.output_tokens[0] < 1:
            raise ValueError("`output_tokens` begin at 1: an answer has at least one token")
        if (self.decode_s == 0 and self.decode_per_sequence_s == 0) or self.prefill_s == 0:
            raise ValueError("an engine whose steps take no time has no schedule; give `prefill` and `decode` a cost")
        if "sim" in self.adapters or len(set(self.adapters)) < len(self.adapters):
            raise ValueError("each of `adapters` needs a name of its own, and `sim` is the model's")
        return self


PACE = ("ttft_s", "itl_s")
ENGINE = (
    "prefill_s", "decode_s", "decode_per_sequence_s", "batch", "kv_tokens", "prefill_chunk_tokens", "queue",
    "queue_status", "shed_above", "shed_exempt", "prefix_blocks", "block_tokens", "adapter_s", "preempts", "leak_kv",
)  # fmt: skip
"""Any of them makes it an engine that batches."""
QUEUE = ("service_s", "servers", "service_law", "service_until")
"""Any of them makes it a queue. Without these and those of the engine, each stream is paced by itself."""


def _spelt(name: str) -> str:
    return SimServer.model_fields[name].alias or name
