"""What a practice server is: its costs, its limits, its faults. Plain values, which another process can be given."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Any, Self

from benchgate.errors import UsageError

NS = 1_000_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchingCosts:
    """A continuous-batching engine: what one step costs, and what fits into it.

    One step takes `prefill_s` for every prompt token in it, and, when it decodes, `decode_s` plus
    `decode_per_sequence_s` for every sequence that gets a token. A request reserves KV room for its prompt and all of
    its `max_tokens`, and waits first come, first served.
    """

    prefill_s: float = 0.0002
    decode_s: float = 0.008
    decode_per_sequence_s: float = 0.0003
    batch: int = 32  # most sequences in a step
    kv_tokens: int = 65_536
    prefill_chunk_tokens: int = 512  # most prompt tokens in a step
    queue: int | None = None  # most requests waiting; None: any number
    queue_status: int | None = None  # HTTP status of a refusal; None: as vLLM, 503 or an error inside the stream

    def __post_init__(self) -> None:
        for name in ("prefill_s", "decode_s", "decode_per_sequence_s"):
            _at_least(0, name, getattr(self, name))
        for name in ("batch", "kv_tokens", "prefill_chunk_tokens"):
            _at_least(1, name, getattr(self, name))
        if self.prefill_s <= 0 or self.decode_s + self.decode_per_sequence_s <= 0:
            raise UsageError("an engine whose steps take no time has no schedule; give prefill and decode a cost")
        if self.queue is not None:
            _at_least(0, "queue", self.queue)
        if self.queue_status is not None and not 400 <= self.queue_status <= 599:
            raise UsageError(f"queue_status is {self.queue_status}; a refusal has a status from 400 to 599")


@dataclass(frozen=True, slots=True, kw_only=True)
class SimSettings:
    """One practice server. With `batching` its tokens come from a batching engine, without it each stream is paced.

    Paced: the first token `ttft_s` after the whole request was read, then one every `itl_s`. `jitter_ratio` spreads
    each of these times, or each step of the engine, evenly over ±that share.
    Raises UsageError when a value is out of its range.
    """

    ttft_s: float = 0.05
    itl_s: float = 0.01
    jitter_ratio: float = 0.0
    batching: BatchingCosts | None = None
    chunk_tokens: int = 1  # tokens in an event, but for the first, which comes alone
    output_tokens: tuple[int, int] | None = None  # bounds, both inclusive, of answers that end by themselves
    model: str = "sim"
    context_tokens: int = 131_072
    seed: int = 0
    faults: tuple[str, ...] = ()  # as `faults.parse_faults` reads them
    keep_alive_s: float | None = None  # how long an idle connection stays open; None: for ever
    ready_after_s: float = 0.0  # connections are refused before
    host: str = "127.0.0.1"
    port: int = 0  # 0: any free one
    uds: str | None = None  # path of a Unix socket, instead of host and port
    cert: str | None = None  # file with the certificate chain; with `key`, TLS
    key: str | None = None
    client_ca: str | None = None  # clients must show a certificate of this authority

    def __post_init__(self) -> None:
        for name in ("ttft_s", "itl_s", "ready_after_s", "seed"):
            _at_least(0, name, getattr(self, name))
        for name in ("chunk_tokens", "context_tokens"):
            _at_least(1, name, getattr(self, name))
        if not 0 <= self.jitter_ratio < 1:
            raise UsageError(f"jitter_ratio is {self.jitter_ratio:g}; it must be from 0 up to, not including, 1")
        if self.output_tokens is not None and not 1 <= self.output_tokens[0] <= self.output_tokens[1]:
            low, high = self.output_tokens
            raise UsageError(f"output_tokens is {low}:{high}; write the fewest (at least 1) and the most, like 16:128")
        if not 0 <= self.port <= 65_535:
            raise UsageError(f"port is {self.port}; it must be from 0 (any free one) to 65535")
        if not self.model:
            raise UsageError("the model has no name; give it one")
        self._check_tls()

    def _check_tls(self) -> None:
        if (self.cert is None) != (self.key is None):
            raise UsageError("TLS needs both a certificate and its key; give `cert` and `key`, or neither")
        if self.uds is not None and self.cert is not None:
            raise UsageError("TLS over a Unix socket is not served; leave out `uds`, or `cert` and `key`")
        if self.client_ca is not None and self.cert is None:
            raise UsageError("client certificates are a matter of TLS; give `cert` and `key` as well")

    def to_json(self) -> str:
        """All of it as JSON text."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Self:
        """The inverse of `to_json`."""
        values: dict[str, Any] = json.loads(text)
        batching, bounds = values.pop("batching"), values.pop("output_tokens")
        return cls(
            **{**values, "faults": tuple(values["faults"])},
            batching=None if batching is None else BatchingCosts(**batching),
            output_tokens=None if bounds is None else (bounds[0], bounds[1]),
        )


def _at_least(least: int, name: str, value: float) -> None:
    if not value >= least:
        raise UsageError(f"{name} is {value:g}; it must be at least {least}")
