"""Settings of a practice server from the options of a command line."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from benchgate import units
from benchgate.errors import UsageError
from benchgate.sim.faults import METRICS
from benchgate.sim.settings import BatchingCosts, QueueCosts, SimSettings
from benchgate.sim.units import parse_share
from benchgate.units import parse_span_s

_BOUNDS = re.compile(r"(\d{1,9}):(\d{1,9})")


def _as_it_is(value: Any) -> Any:
    return value


def _bounds(text: str) -> tuple[int, int]:
    match = _BOUNDS.fullmatch(text.strip())
    if match is None:
        raise ValueError(f"{units.show_found(text)} are no bounds; write the fewest and the most, like 16:128")
    return int(match[1]), int(match[2])


_Option = tuple[str, Callable[[Any], Any]]
"""The field of the settings that an option sets, and how its text is read."""

_PACE: Mapping[str, _Option] = {"ttft": ("ttft_s", parse_span_s), "itl": ("itl_s", parse_span_s)}
_ENGINE: Mapping[str, _Option] = {
    "prefill": ("prefill_s", parse_span_s),
    "decode": ("decode_s", parse_span_s),
    "decode_per_sequence": ("decode_per_sequence_s", parse_span_s),
    "batch": ("batch", _as_it_is),
    "kv_tokens": ("kv_tokens", _as_it_is),
    "prefill_chunk": ("prefill_chunk_tokens", _as_it_is),
    "queue": ("queue", _as_it_is),
    "queue_status": ("queue_status", _as_it_is),
    "shed_above": ("shed_above", _as_it_is),
    "shed_exempt": ("shed_exempt", _as_it_is),
    "adapter_cost": ("adapter_s", parse_span_s),
    "prefix_cache": ("prefix_blocks", _as_it_is),
    "prefix_block": ("block_tokens", _as_it_is),
    "preempt": ("preempts", _as_it_is),
    "leak_kv": ("leak_kv", _as_it_is),
}
_QUEUE: Mapping[str, _Option] = {
    "service": ("service_s", parse_span_s),
    "servers": ("servers", _as_it_is),
    "service_law": ("service_law", _as_it_is),
    "service_until": ("service_until", _as_it_is),
}
_SERVER: Mapping[str, _Option] = {
    "jitter": ("jitter_ratio", parse_share),
    "output_tokens": ("output_tokens", _bounds),
    "reasoning_tokens": ("reasoning_tokens", _bounds),
    "invalid_json": ("invalid_json_ratio", parse_share),
    "says": ("says_ratio", parse_share),
    "context": ("context_tokens", _as_it_is),
    "adapters": ("adapters", tuple),
    "faults": ("faults", tuple),
    "keep_alive": ("keep_alive_s", units.parse_duration_s),
    "ready_after": ("ready_after_s", parse_span_s),
    "load_time": ("load_time_s", parse_span_s),
    **{name: (name, _as_it_is) for name in ("chunk_tokens", "model", "image_tokens", "embedding_size", "seed")},
    **{name: (name, _as_it_is) for name in ("metrics_as", "replicas", "lose_replica_after", "affinity")},
    **{name: (name, _as_it_is) for name in ("host", "port", "uds", "cert", "key", "client_ca")},
}
_ALL = {**_PACE, **_ENGINE, **_QUEUE, **_SERVER}


def parse_settings(**given: Any) -> SimSettings:
    """Settings from the options of `benchgate sim`, by their names; what is None or False was not given.

    Any option of the batching engine selects it, and any of the queue selects that. Raises UsageError for options of
    two models of time.
    """
    told = {name: value for name, value in given.items() if value is not None and value is not False}
    pace, costs, queue = _fields(_PACE, told), _fields(_ENGINE, told), _fields(_QUEUE, told)
    if costs and pace:
        raise UsageError(
            "--ttft and --itl pace each stream by itself, and the other costs are those of an engine that batches; "
            "give the one or the other"
        )
    if costs and queue:
        raise UsageError(
            "--service and its kind are those of a queue, and the other costs those of an engine that "
            "batches; give the one or the other"
        )
    if queue and "ttft_s" in pace:
        raise UsageError("in a queue the first token follows from --service; leave out --ttft")
    if "itl_s" in pace and queue.get("service_until") == "last-token":
        raise UsageError("the tokens of a service until the last token come within --service; leave out --itl")
    server = _fields(_SERVER, told)
    try:
        return SimSettings(
            **pace,
            **server,
            batching=BatchingCosts(**costs) if costs else None,
            queueing=QueueCosts(**queue) if queue else None,
        )
    except UsageError as error:
        raise UsageError(_as_options(str(error))) from error


def _as_options(message: str) -> str:
    """What a setting is refused for, with the names that a command line has for them."""
    given = {field: f"--{name.replace('_', '-')}" for name, (field, _) in _ALL.items()}
    begun = re.sub(r"^\w+", lambda word: given.get(word[0], word[0]), message)
    return re.sub(r"`(\w+)`", lambda word: f"`{given[word[1]]}`" if word[1] in given else word[0], begun)


def list_faults() -> str:
    """Every fault, one line each, as it is written and what it does."""
    width = max(len(kind.usage) for kind in METRICS)
    return "".join(f"{kind.usage:{width}}  {kind.what}\n" for kind in METRICS)


def _fields(options: Mapping[str, _Option], told: Mapping[str, Any]) -> dict[str, Any]:
    unknown = set(told) - set(_ALL)
    if unknown:
        raise TypeError(f"there is no option {min(unknown)!r}")
    return {field: _parsed(name, parse, told[name]) for name, (field, parse) in options.items() if name in told}


def _parsed(name: str, parse: Callable[[Any], Any], value: Any) -> Any:
    try:
        return parse(value)
    except ValueError as error:
        raise UsageError(f"--{name.replace('_', '-')}: {error}") from None
