"""Guard and note over the memory roofline: token rates that the declared model cannot have, and poor ones."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from benchgate.gate.comparison import load_of
from benchgate.gate.evidence.roofline import Roofline, roofline_of
from benchgate.gate.guards.base import LOAD, Need, NotApplicable, Violation, guard, most_serious
from benchgate.model.deployment import Arm
from benchgate.model.records import FloatArray, RequestColumns
from benchgate.model.request_metrics import quantile, succeeded, tpot_s
from benchgate.model.run import Evidence
from benchgate.suite.schema import Suite, traffic_classes
from benchgate.units import show_percent

_SAFETY = 1.25  # caches of the chip hold some weights, and a token reads no input embeddings but its own
_SHARE = 0.01  # of an arm's answers in a stage
_LEAST_TOKENS = 16
_POOR = 0.1  # of the rate that bandwidth allows
_FEW_STREAMS = 4  # with more in flight a step is slower, because it also computes

WEIGHTS = Need(
    "`active_weights` and `accelerator`",
    lambda run, _: bool(run.load) and any(roofline_of(run, arm) is not None for arm in Arm),
)


@guard(
    "pace-possible", "no stream was faster than memory bandwidth allows", invalidates=LOAD, by_arm=True, needs=WEIGHTS
)
def pace_possible(run: Evidence, suite: Suite) -> Violation | NotApplicable | None:
    """Flag streams that are faster than their accelerators can read the declared weights: another model answers.

    Every token, or with speculative decoding every 1 + `draft_tokens` tokens, needs a step that reads `active_weights`
    from memory once. In more than 1 % of an arm's answers of 16 tokens or more, tokens / (end - send) exceed 1.25 *
    bandwidth * accelerators / `active_weights` * tokens of a step. All accelerators of the deployment count, and
    without `draft_tokens` 16 tokens a step, unless the server reports fewer. Without a known accelerator not
    applicable.
    """
    unknown: list[str] = []
    found: list[Violation] = []
    for arm in Arm:
        bound = roofline_of(run, arm)
        if isinstance(bound, str):
            unknown.append(bound)
        elif bound is not None:
            found += _too_fast(run, arm, bound)
    worst = most_serious(found)
    return worst if worst is not None or not unknown else NotApplicable("; ".join(unknown))


def _too_fast(run: Evidence, arm: Arm, bound: Roofline) -> Iterator[Violation]:
    limit = _SAFETY * bound.most_tokens_per_s
    for stage in dict.fromkeys(execution.stage for execution in run.load if execution.arm is arm):
        rates = np.concatenate([_rates(one.requests) for one in load_of(run, stage, arm).values()])
        fast = rates[rates > limit]
        if len(fast) > _SHARE * len(rates):
            what = f"{len(fast)} of {len(rates)} answers of the {arm.value} came at more than {limit:,.3g} tokens/s"
            median = f"median {float(np.median(rates)):,.3g}"
            step = f", {bound.step_tokens} tokens a step" if bound.step_tokens > 1 else ""
            why = f"{bound.accelerators} x {_memory(bound)} read {bound.step_bytes / 1e9:,.4g} GB no faster{step}"
            keys = "`active_weights`, `accelerator`, `accelerators` or `draft_tokens`"
            yield Violation(
                f"stage {stage}: {what} ({median}): {why}",
                f"find out what answered (another model, a cache, a wrong count of tokens), or correct {keys} of "
                f"deployments.{bound.deployment}",
                arm,
            )


def _rates(columns: RequestColumns) -> FloatArray:
    """Return tokens per second of each long answer, from its send to its end: no buffer on the way makes it faster."""
    long = succeeded(columns) & (columns.tokenless != 1) & (columns.output_tokens >= _LEAST_TOKENS)
    took_s = (columns.end_ns - columns.sent_ns)[long].astype(np.float64) * 1e-9
    rates: FloatArray = columns.output_tokens[long] / np.maximum(took_s, 1e-9)
    return rates


def slow_stream_notes(run: Evidence, suite: Suite) -> tuple[str, ...]:
    """Return a note for each arm whose best stage of few streams reaches less than 10% of the roofline."""
    notes = []
    few = [
        place.name
        for place in traffic_classes(suite)
        if place.schedule.concurrency is not None and place.schedule.concurrency <= _FEW_STREAMS
    ]
    for arm in Arm:
        bound = roofline_of(run, arm)
        times = {stage: [tpot_s(o.requests) for o in load_of(run, stage, arm).values()] for stage in few}
        medians = {stage: quantile(np.concatenate(each), 0.5) for stage, each in times.items() if each}
        known = {stage: median for stage, median in medians.items() if median is not None and median < np.inf}
        if not isinstance(bound, Roofline) or not known:
            continue
        stage = min(known, key=lambda name: known[name])
        pace = 1 / known[stage]
        share = pace / bound.plain_tokens_per_s
        if share < _POOR:
            of = f"{show_percent(share)} of the {bound.plain_tokens_per_s:,.3g} that {_memory(bound)} allows"
            notes.append(
                f"stage {stage}, {arm.value}: a stream gets {pace:,.3g} tokens/s, {of}: look for weights in the host's "
                "memory, a slow connection between accelerators, or another accelerator than declared"
            )
    return tuple(notes)


def _memory(bound: Roofline) -> str:
    return f"{bound.bandwidth.name} ({bound.bandwidth.gb_per_s / 1e3:,.3g} TB/s)"
