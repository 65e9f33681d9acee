"""Settings of a practice server from the texts of a command line."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import TypeVar

from benchgate import units
from benchgate.errors import UsageError
from benchgate.sim.faults import KINDS, parse_faults
from benchgate.sim.settings import BatchingCosts, SimSettings
from benchgate.sim.units import parse_share, parse_span_s

_T = TypeVar("_T")
_BOUNDS = re.compile(r"(\d{1,9}):(\d{1,9})")


def parse_settings(
    *,
    ttft: str | None = None,
    itl: str | None = None,
    jitter: str = "0%",
    chunk_tokens: int = 1,
    prefill: str | None = None,
    decode: str | None = None,
    decode_per_sequence: str | None = None,
    batch: int | None = None,
    kv_tokens: int | None = None,
    prefill_chunk: int | None = None,
    queue: int | None = None,
    queue_status: int | None = None,
    output_tokens: str | None = None,
    model: str = "sim",
    context: int = 131_072,
    seed: int = 0,
    faults: Sequence[str] = (),
    keep_alive: str | None = None,
    ready_after: str = "0s",
    host: str = "127.0.0.1",
    port: int = 0,
    uds: str | None = None,
    cert: str | None = None,
    key: str | None = None,
    client_ca: str | None = None,
) -> SimSettings:
    """Any option of the batching engine selects it, and then those of the pace have no meaning. Raises UsageError."""
    costs = {
        "prefill_s": _span("--prefill", prefill),
        "decode_s": _span("--decode", decode),
        "decode_per_sequence_s": _span("--decode-per-sequence", decode_per_sequence),
        "batch": batch,
        "kv_tokens": kv_tokens,
        "prefill_chunk_tokens": prefill_chunk,
        "queue": queue,
        "queue_status": queue_status,
    }
    pace = {"ttft_s": _span("--ttft", ttft), "itl_s": _span("--itl", itl)}
    given = {name: value for name, value in costs.items() if value is not None}
    paced = {name: value for name, value in pace.items() if value is not None}
    if given and paced:
        raise UsageError(
            "--ttft and --itl pace each stream by itself, and the other costs are those of an engine that batches; "
            "give the one or the other"
        )
    parse_faults(faults)
    return SimSettings(
        **paced,
        batching=BatchingCosts(**given) if given else None,  # type: ignore[arg-type]  # names and types are those above
        jitter_ratio=_parsed("--jitter", parse_share, jitter),
        chunk_tokens=chunk_tokens,
        output_tokens=None if output_tokens is None else _parsed("--output-tokens", _bounds, output_tokens),
        model=model,
        context_tokens=context,
        seed=seed,
        faults=tuple(faults),
        keep_alive_s=None if keep_alive is None else _parsed("--keep-alive", units.parse_duration_s, keep_alive),
        ready_after_s=_parsed("--ready-after", parse_span_s, ready_after),
        host=host,
        port=port,
        uds=uds,
        cert=cert,
        key=key,
        client_ca=client_ca,
    )


def list_faults() -> str:
    """Every fault, one line each, as it is written and what it does."""
    width = max(len(kind.usage) for kind in KINDS)
    return "".join(f"{kind.usage:{width}}  {kind.what}\n" for kind in KINDS)


def _span(option: str, text: str | None) -> float | None:
    return None if text is None else _parsed(option, parse_span_s, text)


def _parsed(option: str, parse: Callable[[str], _T], text: str) -> _T:
    try:
        return parse(text)
    except ValueError as error:
        raise UsageError(f"{option}: {error}") from None


def _bounds(text: str) -> tuple[int, int]:
    match = _BOUNDS.fullmatch(text.strip())
    if match is None:
        raise ValueError(f"{units.show_found(text)} are no bounds; write the fewest and the most, like 16:128")
    return int(match[1]), int(match[2])
