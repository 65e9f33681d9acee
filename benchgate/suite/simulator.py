"""A practice server that benchgate starts for a run: what it costs, what it holds, how it fails.

The keys are the options of `benchgate sim`; what is not said is as there.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, Field, SerializerFunctionWrapHandler, model_serializer, model_validator

from benchgate.suite.types import Duration, Expected, Flag, Name, Percent, Span, StrictSection, Text, Whole

_Least0 = Annotated[Whole, Field(ge=0)]
_Least1 = Annotated[Whole, Field(ge=1)]


def _bounds(found: tuple[int, int]) -> tuple[int, int]:
    if not 0 <= found[0] <= found[1]:
        raise ValueError(f"{list(found)} are no bounds; write the fewest and the most, like [16, 128]")
    return found


Bounds = Annotated[tuple[Whole, Whole], AfterValidator(_bounds), Expected("the fewest and the most, like [16, 128]")]

MOST_REPLICAS = 16


class Practice(StrictSection):
    """A practice server: it runs no model, and its answers come at the times and in the numbers that are said here."""

    ttft_s: Span | None = Field(default=None, alias="ttft")
    itl_s: Span | None = Field(default=None, alias="itl")
    prefill_s: Span | None = Field(default=None, alias="prefill")
    decode_s: Span | None = Field(default=None, alias="decode")
    decode_per_sequence_s: Span | None = Field(default=None, alias="decode_per_sequence")
    batch: _Least1 | None = None
    kv_tokens: _Least1 | None = None
    prefill_chunk_tokens: _Least1 | None = Field(default=None, alias="prefill_chunk")
    queue: _Least0 | None = None
    queue_status: Annotated[Whole, Field(ge=400, le=599)] | None = None
    shed_above: _Least0 | None = None
    shed_exempt: Whole | None = None
    prefix_blocks: _Least0 | None = Field(default=None, alias="prefix_cache")
    block_tokens: _Least1 | None = Field(default=None, alias="prefix_block")
    adapter_s: Span | None = Field(default=None, alias="adapter_cost")
    preempts: Flag | None = Field(default=None, alias="preempt")
    leak_kv: Flag | None = None
    service_s: Span | None = Field(default=None, alias="service")
    servers: _Least1 | None = None
    service_law: Literal["constant", "exponential"] | None = None
    service_until: Literal["first-token", "last-token"] | None = None
    jitter_ratio: Annotated[Percent, Field(lt=1)] | None = Field(default=None, alias="jitter")
    chunk_tokens: _Least1 | None = None
    adapters: tuple[Name, ...] = ()
    context_tokens: _Least1 = Field(default=131_072, alias="context")
    output_tokens: Bounds | None = None
    reasoning_tokens: Bounds | None = None
    invalid_json_ratio: Percent | None = Field(default=None, alias="invalid_json")
    says_ratio: Percent | None = Field(default=None, alias="says")
    image_tokens: _Least1 | None = None
    embedding_size: _Least1 | None = None
    faults: tuple[Text, ...] = ()
    keep_alive_s: Duration | None = Field(default=None, alias="keep_alive")
    ready_after_s: Span | None = Field(default=None, alias="ready_after")
    load_time_s: Span | None = Field(default=None, alias="load_time")
    replicas: Whole = Field(default=1, ge=1, le=MOST_REPLICAS)
    lose_replica_after: _Least1 | None = None
    affinity: Text | None = None
    seed: _Least0 | None = None

    @model_serializer(mode="wrap")
    def _what_is_said(self, serialise: SerializerFunctionWrapHandler) -> dict[str, Any]:
        written: dict[str, Any] = serialise(self)
        return {key: value for key, value in written.items() if value is not None}

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
    return Practice.model_fields[name].alias or name
