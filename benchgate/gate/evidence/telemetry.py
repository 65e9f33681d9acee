"""Telemetry of one stage on one arm: metrics per block for checks, and counts to compare with the client's.

Telemetry covers a whole stage; its traffic classes have no windows of their own. Unreported values are None.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np

from benchgate.gate.comparison import load_of
from benchgate.model.deployment import Arm
from benchgate.model.records import ABSENT, TokenSource
from benchgate.model.request_metrics import cached_tokens, reports_cached_tokens, succeeded
from benchgate.model.run import Evidence, LoadObservation
from benchgate.model.telemetry import Counter, Gauge, TelemetryWindow, ratio_of_changes
from benchgate.suite.load import CAPACITY_STAGE, level_of_stage
from benchgate.suite.stages import stage_part


def windows_of(evidence: Evidence, stage: str, arm: Arm) -> dict[int, TelemetryWindow]:
    """Return the windows of a stage, or of the stage of a class (`stage/class`), by block number.

    Windows of the capacity search are numbered by their position in the run.
    """
    own = [window for window in evidence.telemetry if window.arm is arm]
    if stage == CAPACITY_STAGE and (looks := [one for one in own if level_of_stage(one.stage) is not None]):
        return {window.position: window for window in looks}
    whole = stage_part(stage)
    return {window.block: window for window in own if window.stage == whole}


def executions_of(evidence: Evidence, stage: str, arm: Arm) -> dict[int, list[LoadObservation]]:
    """Return the client's records of a stage, with all its classes, by the numbers of `windows_of`."""
    found: dict[int, list[LoadObservation]] = {}
    for execution in evidence.load:
        if execution.arm is arm and stage_part(execution.stage) == stage:
            number = execution.block if level_of_stage(execution.stage) is None else execution.position
            found.setdefault(number, []).append(execution)
    return found


TELEMETRY_VALUES: Mapping[str, Callable[[TelemetryWindow], float | None]] = MappingProxyType(
    {
        "kv_usage_after": lambda window: window.after(Gauge.KV_USAGE),  # still held when the server is idle again
        "prefix_hit_rate": lambda window: window.prefix_hit_ratio,
        "preemptions": lambda window: window.change(Counter.PREEMPTIONS),
        "queue_depth": lambda window: window.peak(Gauge.WAITING),
        "queue_wait": lambda window: window.ratio(Counter.QUEUE_S, Counter.QUEUED),
        "kv_usage": lambda window: window.peak(Gauge.KV_USAGE),
        "speculation_acceptance": lambda window: window.acceptance_ratio,
    }
)
"""Metrics of checks that are read from telemetry, one value per block."""


def block_telemetry(evidence: Evidence, metric: str, stage: str, arm: Arm) -> dict[int, float | None]:
    """Return a metric of TELEMETRY_VALUES for every block with a record of the client."""
    windows, value_of = windows_of(evidence, stage, arm), TELEMETRY_VALUES[metric]
    blocks = executions_of(evidence, stage_part(stage), arm)
    return {block: value_of(windows[block]) if block in windows else None for block in sorted(blocks)}


def block_joules_per_token(
    evidence: Evidence, stage: str, arm: Arm, tokens_of: Callable[[LoadObservation], float]
) -> dict[int, float | None]:
    """Return the accelerators' energy over counted tokens for every block with a record of the client.

    None if either is unknown or 0: accelerators at work use energy, and nothing can be divided by no token.
    """
    windows = windows_of(evidence, stage, arm)
    found: dict[int, float | None] = {}
    for block, executions in sorted(executions_of(evidence, stage_part(stage), arm).items()):
        energy_j = windows[block].energy_j if block in windows else None
        tokens = sum(map(tokens_of, executions))
        found[block] = energy_j / tokens if energy_j and tokens else None
    return found


@dataclass(frozen=True, slots=True)
class Counted:
    """Count of the server, and the range that the client's count allows: failed requests leave it open."""

    what: str
    server: float
    least: float
    most: float

    @property
    def excess_ratio(self) -> float:
        """Return the server's excess over the most that the client requested, as a share of that."""
        return max(0.0, self.server - self.most) / max(self.most, 1.0)

    @property
    def shortfall_ratio(self) -> float:
        """Return the server's shortfall against the least that the client received, as a share of that."""
        return max(0.0, self.least - self.server) / self.least if self.least > 0 else 0.0

    def __add__(self, other: Counted) -> Counted:
        return Counted(self.what, self.server + other.server, self.least + other.least, self.most + other.most)


def compare_counts(
    window: TelemetryWindow,
    executions: Sequence[LoadObservation],
    unrecorded: int,
    longest: int,
    *,
    generates: bool = True,
) -> list[Counted]:
    """Return counts of requests, prompt and generated tokens of a stage in one block that server and client report.

    `unrecorded` is the number of requests that the client sent and cancelled without a record, `longest` the maximum
    length of an answer. Resent requests count once: the server had closed the connection before. Without generation
    (embeddings, reranking) a server may split requests, so only prompt tokens are compared.
    """
    answered = sent = prompts = longest_prompt = generated = 0
    unknown_prompts = unknown_answers = unrecorded
    for part in (columns for o in executions for columns in o.parts):
        ok, read = succeeded(part), part.input_tokens
        answered += int(np.count_nonzero(ok))
        sent += int(np.count_nonzero(part.sent_ns != ABSENT))
        # a prompt without a reported length has up to the longest reported one
        prompts += int(read[read > 0].sum())
        unknown_prompts += int(np.count_nonzero(read <= 0))
        longest_prompt = max(longest_prompt, int(read.max()) if len(part) else 0)
        # an answer that failed or has no usage has up to `longest` tokens
        whole = ok & part.token_source.are((TokenSource.USAGE,))
        generated += int(part.output_tokens[whole].sum())
        unknown_answers += int(np.count_nonzero(~whole))
    bounds = []
    if generates:
        bounds.append(("requests", Counter.REQUESTS, answered, sent + unrecorded))
    if longest_prompt > 0:
        bounds.append(("prompt tokens", Counter.PROMPT_TOKENS, prompts, prompts + unknown_prompts * longest_prompt))
    if generates and longest > 0:
        most = generated + unknown_answers * longest
        bounds.append(("generated tokens", Counter.GENERATION_TOKENS, generated, most))
    return [
        Counted(what, server, float(least), float(most))
        for what, counter, least, most in bounds
        if (server := window.change(counter)) is not None
    ]


def server_hit_ratio(evidence: Evidence, stage: str, arm: Arm) -> float | None:
    """Return the prefix cache hit ratio by the server's counters over all blocks."""
    windows = windows_of(evidence, stage, arm).values()
    return ratio_of_changes(windows, Counter.PREFIX_HITS, Counter.PREFIX_QUERIES)


def answer_hit_ratio(evidence: Evidence, names: Sequence[str], arm: Arm) -> float | None:
    """Return the least prefix cache hit ratio by the responses of these traffic classes; None if none reports it.

    Some servers leave out a count of 0, so what a response leaves out counts as 0.
    """
    parts = [o.requests for name in names for o in load_of(evidence, name, arm).values()]
    tokens = sum(float(np.maximum(part.input_tokens[succeeded(part)], 0).sum()) for part in parts)
    if tokens <= 0 or not any(map(reports_cached_tokens, parts)):
        return None
    return sum(map(cached_tokens, parts)) / tokens
