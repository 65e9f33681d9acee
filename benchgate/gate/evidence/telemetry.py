"""What telemetry says of one stage of one arm: values per block for checks, and counts to hold against the client's.

A class of traffic is no window of its own: its server is that of its whole stage. What was not told is None.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from types import MappingProxyType

import numpy as np

from benchgate.model.deployment import Arm
from benchgate.model.records import ABSENT, RequestColumns, TokenSource
from benchgate.model.request_metrics import cached_ratio, succeeded
from benchgate.model.run import Evidence, LoadObservation
from benchgate.model.telemetry import Counter, Gauge, TelemetryWindow


def windows_of(evidence: Evidence, stage: str, arm: Arm) -> dict[int, TelemetryWindow]:
    """The windows of a stage, or of the stage of a class (`stage/class`), on one arm by block number."""
    whole = stage.partition("/")[0]
    return {window.block: window for window in evidence.telemetry if window.stage == whole and window.arm is arm}


def stage_mean(evidence: Evidence, stage: str, arm: Arm, gauge: Gauge) -> float | None:
    """Mean of a gauge over the looks of all blocks; None where any block was told of nothing."""
    means = [window.mean(gauge) for window in windows_of(evidence, stage, arm).values()]
    known = [mean for mean in means if mean is not None]
    return fmean(known) if known and len(known) == len(means) else None


def executions_of(evidence: Evidence, stage: str, arm: Arm) -> dict[int, list[LoadObservation]]:
    """What the client recorded in a stage on one arm by block number, all classes of it together."""
    found: dict[int, list[LoadObservation]] = {}
    for seen in evidence.load:
        if seen.arm is arm and seen.stage.partition("/")[0] == stage:
            found.setdefault(seen.block, []).append(seen)
    return found


def kv_usage_after(window: TelemetryWindow) -> float | None:
    """Share of the KV cache that is still held once the stage is over and the server idle."""
    return window.after(Gauge.KV_USAGE)


def prefix_hit_rate(window: TelemetryWindow) -> float | None:
    """Share of the prompt tokens looked up in the prefix cache that were there."""
    return window.prefix_hit_ratio


def preemptions(window: TelemetryWindow) -> float | None:
    """Requests that were thrown out of the KV cache during the stage and had to begin again."""
    return window.change(Counter.PREEMPTIONS)


def queue_depth(window: TelemetryWindow) -> float | None:
    """The most requests that any look found waiting."""
    return window.peak(Gauge.WAITING)


TELEMETRY_VALUES: Mapping[str, Callable[[TelemetryWindow], float | None]] = MappingProxyType(
    {
        "kv_usage_after": kv_usage_after,
        "prefix_hit_rate": prefix_hit_rate,
        "preemptions": preemptions,
        "queue_depth": queue_depth,
    }
)
"""Metrics of a policy that are read from telemetry, each of one window: one value a block."""


def block_telemetry(evidence: Evidence, metric: str, stage: str, arm: Arm) -> dict[int, float | None]:
    """One metric of TELEMETRY_VALUES by block, for every block in which the client has a record."""
    windows, value_of = windows_of(evidence, stage, arm), TELEMETRY_VALUES[metric]
    blocks = executions_of(evidence, stage.partition("/")[0], arm)
    return {block: value_of(windows[block]) if block in windows else None for block in sorted(blocks)}


@dataclass(frozen=True, slots=True)
class Counted:
    """What the server counted, and between what the client's own count lies: failures leave it some room."""

    what: str
    server: float
    least: float
    most: float

    @property
    def beyond_ratio(self) -> float:
        """How much more than all the client asked for, as a share of that."""
        return max(0.0, self.server - self.most) / max(self.most, 1.0)

    @property
    def short_ratio(self) -> float:
        """How much less than what the client certainly got, as a share of that."""
        return max(0.0, self.least - self.server) / self.least if self.least > 0 else 0.0

    def __add__(self, other: Counted) -> Counted:
        """Both together."""
        return Counted(self.what, self.server + other.server, self.least + other.least, self.most + other.most)


def counted(
    window: TelemetryWindow, seen: Sequence[LoadObservation], unrecorded: int, longest: int, *, generates: bool = True
) -> list[Counted]:
    """Requests, prompt and generated tokens of one stage on one arm in one block, as far as both ends tell them.

    `unrecorded` are requests that the client sent and cut without a record, `longest` the most tokens an answer has. A
    request that was sent again had met a connection already closed, so no server worked on it twice. Where nothing is
    generated (embeddings, reranking) a server may make several requests of one, so only prompt tokens are compared.
    """
    parts = [columns for o in seen for columns in o.parts]
    bounds = [("prompt tokens", Counter.PROMPT_TOKENS, _prompt_tokens(parts, unrecorded))]
    if generates:
        bounds.insert(0, ("requests", Counter.REQUESTS, _requests(parts, unrecorded)))
        bounds.append(("generated tokens", Counter.GENERATION_TOKENS, _generated_tokens(parts, unrecorded, longest)))
    return [
        Counted(what, server, *bound)
        for what, word, bound in bounds
        if bound is not None and (server := window.change(word)) is not None
    ]


_Bounds = tuple[float, float] | None
"""The least and the most that the client's own count allows; None where it knows too little to say."""


def _requests(parts: Sequence[RequestColumns], unrecorded: int) -> _Bounds:
    answered = sum(int(np.count_nonzero(succeeded(part))) for part in parts)
    sent = sum(int(np.count_nonzero(part.sent_ns != ABSENT)) for part in parts)
    return float(answered), float(sent + unrecorded)


def _prompt_tokens(parts: Sequence[RequestColumns], unrecorded: int) -> _Bounds:
    """A request whose prompt was not counted to the client has up to the longest prompt seen."""
    known = sum(int(part.input_tokens[part.input_tokens > 0].sum()) for part in parts)
    longest = max((int(part.input_tokens.max()) for part in parts if len(part)), default=0)
    unknown = sum(int(np.count_nonzero(part.input_tokens <= 0)) for part in parts) + unrecorded
    return (float(known), float(known + unknown * longest)) if longest > 0 else None


def _generated_tokens(parts: Sequence[RequestColumns], unrecorded: int, longest: int) -> _Bounds:
    """Only an answer that came whole with the server's own count is known; any other has up to the longest."""
    known, unknown = 0, unrecorded
    for part in parts:
        by_usage = part.token_source.are((TokenSource.USAGE,))
        whole = succeeded(part) & by_usage
        known += int(part.output_tokens[whole].sum())
        unknown += int(np.count_nonzero(~whole))
    return (float(known), float(known + unknown * longest)) if longest > 0 else None


def server_hit_ratio(evidence: Evidence, stage: str, arm: Arm) -> float | None:
    """Return prompt tokens found in the prefix cache over those looked up, by the server's counters over all blocks."""
    changes = [
        (window.change(Counter.PREFIX_HITS), window.change(Counter.PREFIX_QUERIES))
        for window in windows_of(evidence, stage, arm).values()
    ]
    known = [(hits, queries) for hits, queries in changes if hits is not None and queries is not None]
    queries = sum(queries for _, queries in known)
    return sum(hits for hits, _ in known) / queries if queries > 0 else None


def answer_hit_ratio(evidence: Evidence, names: Sequence[str], arm: Arm) -> float | None:
    """Return the same ratio by what the answers say of their own prompts, over the classes of these names."""
    return cached_ratio(*(o.requests for o in evidence.load if o.arm is arm and o.stage in names))
