"""How many load generator processes a load needs."""

from __future__ import annotations

import os
from math import ceil

from benchgate.plan.schedule import PlannedStage

TOKENS_PER_S_PER_WORKER = 25_000.0  # about half of what one process takes before its own delays show
STREAMS_PER_WORKER = 256


def workers_for(
    *,
    streams: int | None = None,
    tokens_per_s: float = 0.0,
    cost: float = TOKENS_PER_S_PER_WORKER,
    streams_each: int = STREAMS_PER_WORKER,
    cores: int | None = None,
) -> int:
    """Processes for an offered rate of streamed tokens, or for so many streams at once, whose rate nobody knows before.

    `cost` is how many tokens per second one process takes, `streams_each` how many streams. At most half the cores are
    used: the server may live on the others. At least 1.
    """
    needed = ceil(streams / streams_each) if streams is not None else ceil(tokens_per_s / cost)
    return max(1, min(needed, (cores or os.cpu_count() or 1) // 2))


def workers_for_stage(stage: PlannedStage, *, cost: float = TOKENS_PER_S_PER_WORKER, cores: int | None = None) -> int:
    """As `workers_for`, of a planned stage at its fastest."""
    longest = max((request.output_tokens for request in stage.requests), default=0)
    offered = (stage.peak_rps or 0.0) * longest
    return workers_for(streams=stage.concurrency, tokens_per_s=offered, cost=cost, cores=cores)
