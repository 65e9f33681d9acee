"""Inflation of a candidate's own output token counts against the baseline's.

A server that sends half of its text, or counts 8 % more tokens than it wrote, looks faster by its own usage. But then
characters per token fall and tokens per piece of the stream rise. A server that merges tokens shows only the second, a
model of another style only the first. docs/reference/metrics.md, "Text against usage".
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from benchgate.gate.comparison import paired_load
from benchgate.gate.decision import Estimate
from benchgate.gate.evidence.deployments import may_differ_in_vocabulary
from benchgate.model.deployment import Arm
from benchgate.model.records import ABSENT, BoolArray, FloatArray, IntArray, RequestColumns, TokenSource
from benchgate.model.request_metrics import succeeded
from benchgate.model.run import Evidence, LoadObservation
from benchgate.stats.distributions import Limits, t_ppf
from benchgate.suite.schema import Suite


def same_rows(baseline: LoadObservation, candidate: LoadObservation) -> tuple[IntArray, IntArray]:
    """Return the rows of the requests recorded on both arms, in the baseline and in the candidate."""
    index = baseline.requests.index
    if np.array_equal(index, candidate.requests.index) and (np.diff(index) > 0).all():
        every = np.arange(len(index), dtype=np.int64)
        return every, every
    _, first, second = np.intersect1d(baseline.requests.index, candidate.requests.index, return_indices=True)
    return first, second


LEAST_PAIRS = 10
CONTRADICTED = 1.02  # significantly larger inflation is removed from the candidate's token metrics
ROUNDING = 1e-9
_SURE = 0.1  # of alpha: there are several stages and two-sided estimates
_STREAMED = 3  # pieces: fewer do not show the tokens per piece


@dataclass(frozen=True, slots=True)
class LogRatio:
    """A log ratio of the candidate's to the baseline's ratio of sums, with one-sided limits over requests.

    `by_block` has one value for each block. Their mean is the estimate and their spread is its uncertainty.
    """

    estimate: float
    limits: Limits
    by_block: Mapping[int, float]

    def reversed(self) -> LogRatio:
        """Return the log ratio of baseline to candidate."""
        limits = Limits(-self.limits.upper, -self.limits.lower)
        return LogRatio(-self.estimate, limits, {block: -value for block, value in self.by_block.items()})


@dataclass(frozen=True, slots=True)
class TextRatios:
    """Ratios of text to usage over `pairs` paired requests, as logs of candidate over baseline.

    `chars_per_token`: visible characters per counted token. `tokens_per_piece`: counted tokens per piece of the
    stream; None if fewer than `LEAST_PAIRS` answers were streamed on both arms.
    """

    pairs: int
    chars_per_token: LogRatio
    tokens_per_piece: LogRatio | None

    def inflation(self, arm: Arm) -> LogRatio | None:
        """Estimate ln k: this arm's usage counts k times the tokens that its text shows, relative to the other arm.

        k is the smaller of the ratios of tokens per piece and of 1 / characters per token, because an inflated count
        raises both; its limits are the smaller ones too. None if the stream shows no pieces.
        """
        if self.tokens_per_piece is None:
            return None
        ratios = [self.tokens_per_piece, self.chars_per_token.reversed()]
        if arm is Arm.BASELINE:
            ratios = [ratio.reversed() for ratio in ratios]
        least = min(ratios, key=lambda ratio: ratio.estimate)
        lower, upper = (min(getattr(ratio.limits, side) for ratio in ratios) for side in ("lower", "upper"))
        return LogRatio(least.estimate, Limits(lower, upper), least.by_block)


def text_ratios(
    evidence: Evidence, stage: str, suite: Suite, source: TokenSource = TokenSource.USAGE
) -> TextRatios | None:
    """Compare text and tokens of the requests that both arms answered and counted by this source.

    None with fewer than `LEAST_PAIRS` such requests, without text on both arms, and if the vocabularies may differ,
    because their tokens hold different amounts of text.
    """
    arms = [evidence.run.arms.get(arm) for arm in Arm]
    if arms[0] is not None and arms[1] is not None and may_differ_in_vocabulary(arms[0], arms[1], suite):
        return None
    sides: tuple[list[FloatArray], list[FloatArray]] = ([], [])
    blocks: list[IntArray] = []
    for pair in paired_load(evidence, stage):
        rows = same_rows(*pair)
        counted = [_counted(execution, source)[at] for execution, at in zip(pair, rows, strict=True)]
        known = (counted[0][:, 1] > 0) & (counted[1][:, 1] > 0)
        for side, values in zip(sides, counted, strict=True):
            side.append(values[known])
        blocks.append(np.full(int(known.sum()), pair[0].block, dtype=np.int64))
    if sum(map(len, blocks)) < LEAST_PAIRS:
        return None
    baseline, candidate, block = np.concatenate(sides[0]), np.concatenate(sides[1]), np.concatenate(blocks)
    if baseline[:, 0].sum() + candidate[:, 0].sum() == 0:
        return None
    alpha = _SURE * suite.gate.alpha
    per_token = _log_ratio(candidate[:, 0], candidate[:, 1], baseline[:, 0], baseline[:, 1], block, alpha)
    streamed = (baseline[:, 2] >= _STREAMED) & (candidate[:, 2] >= _STREAMED)
    per_piece = None
    if np.count_nonzero(streamed) >= LEAST_PAIRS:
        candidate, baseline = candidate[streamed], baseline[streamed]
        per_piece = _log_ratio(candidate[:, 1], candidate[:, 2], baseline[:, 1], baseline[:, 2], block[streamed], alpha)
    return TextRatios(len(block), per_token, per_piece)


def demonstrated_inflation(evidence: Evidence, stage: str, suite: Suite) -> LogRatio | None:
    """Return ln k of the candidate if its usage is significantly inflated by more than 2 %; else None."""
    ratios = text_ratios(evidence, stage, suite)
    inflation = None if ratios is None else ratios.inflation(Arm.CANDIDATE)
    if inflation is None or not math.isfinite(inflation.estimate):
        return None
    return inflation if inflation.limits.lower > math.log(CONTRADICTED) + ROUNDING else None


def _counted(execution: LoadObservation, source: TokenSource) -> FloatArray:
    """Return a row per request: visible characters, tokens of the text sent, pieces of the stream.

    Reasoning that was counted and not sent is subtracted from the tokens. Tokens are 0 if any count is missing.
    """
    columns = execution.requests
    answer, reasoning = columns.answer_chars.astype(np.int64), columns.reasoning_chars.astype(np.int64)
    tokens = np.where(has_text_and_count(columns, source), columns.output_tokens - hidden_reasoning(columns), 0)
    return np.column_stack([answer + reasoning, tokens, np.diff(columns.chunk_start)]).astype(np.float64)


def has_recorded_text(columns: RequestColumns) -> BoolArray:
    """Return which requests were answered with a text whose length was recorded, be it empty."""
    known: BoolArray = succeeded(columns) & (columns.answer_chars != ABSENT) & (columns.reasoning_chars != ABSENT)
    return known


def has_text_and_count(columns: RequestColumns, source: TokenSource) -> BoolArray:
    """Return which requests have a recorded text and a count of its tokens from this source."""
    return has_recorded_text(columns) & columns.token_source.are((source,))


def hidden_reasoning(columns: RequestColumns) -> IntArray:
    """Return the reasoning tokens that each answer's usage counts without any text of them.

    A piece of the stream has a token at least, so no more are hidden than usage counts beyond the pieces: a server
    without a parser of reasoning sends it as the answer.
    """
    beyond = np.maximum(columns.output_tokens - np.diff(columns.chunk_start), 0)
    return np.where(columns.reasoning_chars == 0, np.clip(columns.reasoning_tokens, 0, beyond), 0)


def _log_ratio(
    candidate: FloatArray,
    per_candidate: FloatArray,
    baseline: FloatArray,
    per_baseline: FloatArray,
    block: IntArray,
    alpha: float,
) -> LogRatio:
    """Estimate ln of (sum candidate / sum per_candidate) / (sum baseline / sum per_baseline) over paired requests.

    Linearised: a request's influence is its share of each sum, so effects common to both arms cancel. Infinite if a sum
    is 0.
    """
    sums = [float(values.sum()) for values in (candidate, per_baseline, baseline, per_candidate)]
    numbers = sorted({int(one) for one in block})
    if min(sums) <= 0:
        infinite = -math.inf if sums[0] <= 0 else math.inf
        return LogRatio(infinite, Limits(infinite, infinite), dict.fromkeys(numbers, infinite))
    estimate = math.log(sums[0] / sums[3]) - math.log(sums[2] / sums[1])
    influence = candidate / sums[0] - per_candidate / sums[3] - baseline / sums[2] + per_baseline / sums[1]
    n = len(influence)
    reach = t_ppf(1 - alpha, n - 1) * math.sqrt(n / (n - 1) * float(np.square(influence).sum()))
    by_block = {number: estimate + len(numbers) * float(influence[block == number].sum()) for number in numbers}
    return LogRatio(estimate, Limits(estimate - reach, estimate + reach), by_block)


def note_inflation(estimate: Estimate, metric: str, inflation: LogRatio) -> None:
    """Note that the metric was computed from the tokens of the text, and warn."""
    times, least = math.exp(inflation.estimate), math.exp(inflation.limits.lower)
    counts = f"the candidate's usage counts {times:.2f} times the tokens that its text shows"
    estimate.notes.append(f"{counts} (at least {least:.2f}), so its {metric} was computed from the tokens of the text")
    estimate.warn(counts)
