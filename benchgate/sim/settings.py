"""What a practice server is: its costs, its limits, its faults. Plain values, which another process can be given."""

from __future__ import annotations

import difflib
import json
from dataclasses import asdict, dataclass
from typing import Any, Self

from benchgate.errors import UsageError
from benchgate.sim.faults import parse_faults

NS = 1_000_000_000
METRICS_AS = ("vllm", "sglang", "tgi", "llamacpp")
"""The engines in whose names /metrics can speak."""
SERVICE_LAWS = ("constant", "exponential")
SERVICE_ENDS = ("first-token", "last-token")


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchingCosts:
    """A continuous-batching engine: what one step costs, and what fits into it.

    One step takes `prefill_s` for every prompt token in it, and, when it decodes, `decode_s` plus
    `decode_per_sequence_s` for every sequence that gets a token, and `adapter_s` for every sequence in it that runs
    with an adapter. Requests of a lower `priority` number go first, and equal ones first come, first served. A request
    reserves KV room for its prompt and all of its `max_tokens`, or, with `preempts`, only for the tokens there are.
    """

    prefill_s: float = 0.0002
    decode_s: float = 0.008
    decode_per_sequence_s: float = 0.0003
    batch: int = 32  # most sequences in a step
    kv_tokens: int = 65_536
    prefill_chunk_tokens: int = 512  # most prompt tokens in a step
    queue: int | None = None  # most requests waiting; None: any number
    queue_status: int | None = None  # HTTP status of a refusal; None: as vLLM, 503 or an error inside the stream
    shed_above: int | None = None  # 429 when so many wait already; None: never
    shed_exempt: int = -1  # requests of this priority number and lower ones are never shed
    adapter_s: float = 0.0
    prefix_blocks: int = 0  # room of the prefix cache, beside the KV room of running requests; 0: none
    block_tokens: int = 16
    preempts: bool = False  # a full KV cache throws the least urgent sequence back into the queue
    leak_kv: bool = False  # the room of a client that leaves is never given back

    def __post_init__(self) -> None:
        for name in ("prefill_s", "decode_s", "decode_per_sequence_s", "adapter_s", "prefix_blocks"):
            _at_least(0, name, getattr(self, name))
        for name in ("batch", "kv_tokens", "prefill_chunk_tokens", "block_tokens"):
            _at_least(1, name, getattr(self, name))
        if self.prefill_s <= 0 or self.decode_s + self.decode_per_sequence_s <= 0:
            raise UsageError("an engine whose steps take no time has no schedule; give prefill and decode a cost")
        for name in ("queue", "shed_above"):
            if getattr(self, name) is not None:
                _at_least(0, name, getattr(self, name))
        if self.queue_status is not None and not 400 <= self.queue_status <= 599:
            raise UsageError(f"queue_status is {self.queue_status}; a refusal has a status from 400 to 599")


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueCosts:
    """Servers that take requests first come, first served, and work on one at a time.

    A service takes `service_s`, or an exponential time of that mean. It ends with the first token, and the others
    follow one every `itl_s`; or with the last, and the tokens come evenly through the service.
    """

    service_s: float = 0.06
    servers: int = 1
    service_law: str = "constant"
    service_until: str = "first-token"

    def __post_init__(self) -> None:
        _at_least(1, "servers", self.servers)
        if not self.service_s > 0:
            raise UsageError(f"service_s is {self.service_s:g}; a service takes longer than 0")
        _one_of("service_law", self.service_law, SERVICE_LAWS)
        _one_of("service_until", self.service_until, SERVICE_ENDS)


@dataclass(frozen=True, slots=True, kw_only=True)
class SimSettings:
    """One practice server. Its tokens come from a batching engine, from a queue, or each stream is paced by itself.

    Paced: the first token `ttft_s` after the whole request was read, then one every `itl_s`. `jitter_ratio` spreads
    each of these times, each service, or each step of the engine, evenly over ±that share. Bounds are both inclusive.
    Raises UsageError when a value is out of its range.
    """

    ttft_s: float = 0.05
    itl_s: float = 0.01
    jitter_ratio: float = 0.0
    batching: BatchingCosts | None = None
    queueing: QueueCosts | None = None  # then `ttft_s` has no meaning
    chunk_tokens: int = 1  # tokens in an event, but for the first, which comes alone
    output_tokens: tuple[int, int] | None = None  # bounds of answers that end by themselves
    reasoning_tokens: tuple[int, int] | None = None  # bounds of what is thought before the answer
    invalid_json_ratio: float = 0.0  # share of the answers to a schema that are no JSON
    says_ratio: float | None = None  # share of the prompts `say: TEXT` that get TEXT; None: they are prompts as others
    model: str = "sim"
    adapters: tuple[str, ...] = ()  # names of models that are the model with an adapter
    context_tokens: int = 131_072
    image_tokens: int | None = None  # what an image costs; None: images are refused
    embedding_size: int = 64  # numbers in an embedding
    seed: int = 0
    faults: tuple[str, ...] = ()  # as `faults.parse_faults` reads them
    metrics_as: str = "vllm"
    keep_alive_s: float | None = None  # how long an idle connection stays open; None: for ever
    ready_after_s: float = 0.0  # connections are refused before
    load_time_s: float = 0.0  # the first request loads the model, and everybody waits for it
    replicas: int = 1  # more than one: so many processes behind a router
    lose_replica_after: int | None = None  # requests, after which the last replica is killed; None: never
    affinity: str | None = None  # what equal requests must have in common: prefix, session, or the name of a header
    host: str = "127.0.0.1"
    port: int = 0  # 0: any free one
    uds: str | None = None  # path of a Unix socket, instead of host and port
    cert: str | None = None  # file with the certificate chain; with `key`, TLS
    key: str | None = None
    client_ca: str | None = None  # clients must show a certificate of this authority

    def __post_init__(self) -> None:
        for name in ("ttft_s", "itl_s", "ready_after_s", "load_time_s", "seed"):
            _at_least(0, name, getattr(self, name))
        for name in ("chunk_tokens", "context_tokens", "embedding_size", "replicas"):
            _at_least(1, name, getattr(self, name))
        if not 0 <= self.jitter_ratio < 1:
            raise UsageError(f"jitter_ratio is {self.jitter_ratio:g}; it must be from 0 up to, not including, 1")
        if not 0 <= self.invalid_json_ratio <= 1:
            raise UsageError(f"invalid_json_ratio is {self.invalid_json_ratio:g}; it must be from 0 to 1")
        if self.says_ratio is not None and not 0 <= self.says_ratio <= 1:
            raise UsageError(f"says_ratio is {self.says_ratio:g}; it must be from 0 to 1")
        _check_bounds("output_tokens", self.output_tokens, 1)
        _check_bounds("reasoning_tokens", self.reasoning_tokens, 0)
        if self.image_tokens is not None:
            _at_least(1, "image_tokens", self.image_tokens)
        if self.batching is not None and self.queueing is not None:
            raise UsageError("a server is an engine that batches or a queue; give `batching` or `queueing`, not both")
        for fault in parse_faults(self.faults):
            if self.batching is not None and fault.behaviour.seen_factor != 1:
                raise UsageError(
                    "the fault fast-when-seen is for a paced server or a queue: the steps of an engine are shared"
                )
        self._check_names()
        self._check_place()

    def _check_names(self) -> None:
        if not self.model:
            raise UsageError("the model has no name; give it one")
        names = [self.model, *self.adapters]
        if "" in names or len(set(names)) < len(names):
            raise UsageError(f"the model and its adapters are {', '.join(names)}; each needs a name of its own")
        _one_of("metrics_as", self.metrics_as, METRICS_AS)
        if self.lose_replica_after is not None:
            _at_least(1, "lose_replica_after", self.lose_replica_after)
            if self.replicas == 1:
                raise UsageError(
                    "lose_replica_after kills one of several replicas, and there is one; give `replicas` as well"
                )
        if self.affinity is not None and self.replicas == 1:
            raise UsageError("affinity chooses among several replicas, and there is one; give `replicas` as well")

    def _check_place(self) -> None:
        if not 0 <= self.port <= 65_535:
            raise UsageError(f"port is {self.port}; it must be from 0 (any free one) to 65535")
        if (self.cert is None) != (self.key is None):
            raise UsageError("TLS needs both a certificate and its key; give `cert` and `key`, or neither")
        if self.uds is not None and self.cert is not None:
            raise UsageError("TLS over a Unix socket is not served; leave out `uds`, or `cert` and `key`")
        if self.client_ca is not None and self.cert is None:
            raise UsageError("client certificates are a matter of TLS; give `cert` and `key` as well")

    def identity(self) -> dict[str, object]:
        """What makes two of them alike, as plain JSON values: all but where they listen."""
        place = ("host", "port", "uds", "cert", "key", "client_ca", "model")
        kept = {name: value for name, value in asdict(self).items() if name not in place and value is not None}
        plain: dict[str, object] = json.loads(json.dumps(kept))
        return plain

    def to_json(self) -> str:
        """All of it as JSON text."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Self:
        """The inverse of `to_json`."""
        read: dict[str, Any] = json.loads(text)
        batching, queueing = read.pop("batching"), read.pop("queueing")
        values: dict[str, Any] = {name: tuple(v) if isinstance(v, list) else v for name, v in read.items()}
        return cls(
            **values,
            batching=None if batching is None else BatchingCosts(**batching),
            queueing=None if queueing is None else QueueCosts(**queueing),
        )


def _one_of(name: str, value: str, words: tuple[str, ...]) -> None:
    if value not in words:
        near = difflib.get_close_matches(value, words, n=1)
        hint = f"did you mean {near[0]}? " if near else ""
        raise UsageError(f"{name} is {value!r}; {hint}it is one of {', '.join(words)}")


def _at_least(least: int, name: str, value: float) -> None:
    if not value >= least:
        raise UsageError(f"{name} is {value:g}; it must be at least {least}")


def _check_bounds(name: str, bounds: tuple[int, int] | None, least: int) -> None:
    if bounds is not None and not least <= bounds[0] <= bounds[1]:
        low, high = bounds
        raise UsageError(f"{name} is {low}:{high}; write the fewest (at least {least}) and the most, like 16:128")
