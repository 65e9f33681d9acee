"""Numbers of the measured tables: one summary per stage and shadow comparison, straight from the observations.

Quantiles are taken over the requests of all blocks together; rates are means over blocks, each over its own window.
Nothing here decides anything: the checks carry their own statistics.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from benchgate.model import request_metrics
from benchgate.model.records import ABSENT, BoolArray, FloatArray, IntArray, RequestColumns, ShadowItem
from benchgate.model.request_metrics import Slo
from benchgate.model.run import LoadObservation, ShadowObservation


@dataclass(frozen=True, slots=True)
class StageSummary:
    """One stage of one arm over all its blocks. None means it was not measured or does not apply; +inf that it failed.

    `good_*` and `goodput_ratio` are None when the suite has no SLO. `failed` counts requests by error class, those of
    the ramp too. Not among those scheduled are `ramp`, which brought the stage into steady state, and `left`, whose
    clients went away on purpose.
    `client_cpu_share` and `read_delay_p99_s` are those of the worst block.
    """

    blocks: int
    scheduled: int
    succeeded: int
    failed: Mapping[str, int]
    output_tokens_per_s: float | None
    requests_per_s: float | None
    good_tokens_per_s: float | None
    goodput_ratio: float | None
    ttft_p50_s: float | None
    ttft_p95_s: float | None
    tpot_p50_s: float | None
    e2e_p50_s: float | None
    input_tokens: int | None
    output_tokens: int
    token_sources: Mapping[str, int]
    decoding_at_once: float | None
    client_cpu_share: float
    send_lag_p99_s: float | None
    read_delay_p99_s: float | None
    left: int
    ramp: int
    reasoning_ratio: float | None
    validity_ratio: float | None


def summarise_stage(observations: Sequence[LoadObservation], slo: Slo | None) -> StageSummary | None:
    """The blocks of one stage on one arm as one row; None when there are none."""
    if not observations:
        return None
    columns = [o.requests for o in observations]
    succeeded = [request_metrics.succeeded(c) for c in columns]
    good = None if slo is None else [request_metrics.meets_slo(c, slo) for c in columns]
    scheduled = sum(len(c) for c in columns)
    ttft = _pooled(request_metrics.ttft_s, columns)
    return StageSummary(
        blocks=len(observations),
        scheduled=scheduled,
        succeeded=_total(succeeded),
        failed=_failures([rows for o in observations for rows in o.with_ramp]),
        output_tokens_per_s=_mean([request_metrics.output_tokens_per_s(o.requests, o.window_s) for o in observations]),
        requests_per_s=_mean([request_metrics.requests_per_s(o.requests, o.window_s) for o in observations]),
        good_tokens_per_s=None
        if slo is None
        else _mean([request_metrics.output_tokens_per_s(o.requests, o.window_s, slo=slo) for o in observations]),
        goodput_ratio=None if good is None or scheduled == 0 else _total(good) / scheduled,
        ttft_p50_s=request_metrics.quantile(ttft, 0.5),
        ttft_p95_s=request_metrics.quantile(ttft, 0.95),
        tpot_p50_s=request_metrics.quantile(_pooled(request_metrics.tpot_s, columns), 0.5),
        e2e_p50_s=request_metrics.quantile(_pooled(request_metrics.e2e_s, columns), 0.5),
        input_tokens=_known_sum([c.input_tokens for c in columns]),
        output_tokens=sum(_tokens(c, s) for c, s in zip(columns, succeeded, strict=True)),
        token_sources=_token_sources(columns, succeeded),
        decoding_at_once=_mean([request_metrics.mean_decoding_requests(o.requests, o.window_s) for o in observations]),
        client_cpu_share=max(o.client.cpu_share for o in observations),
        send_lag_p99_s=request_metrics.quantile(_pooled(request_metrics.client_lag_s, columns), 0.99),
        read_delay_p99_s=_worst([o.client.read_delay_p99_s for o in observations]),
        left=sum(len(o.left) for o in observations),
        ramp=sum(len(o.ramp) for o in observations),
        reasoning_ratio=request_metrics.reasoning_ratio(*columns),
        validity_ratio=request_metrics.validity_ratio(*columns),
    )


@dataclass(frozen=True, slots=True)
class ShadowSummary:
    """The shadow comparison over the prompts that the baseline answered as often as it was asked.

    `candidate_ratio` is the mean over prompts of the share of the baseline's two answers that the candidate's differs
    from (0, ½ or 1; a candidate that failed differs from both); `itself_ratio` is how often those two differ. Where
    some prompts were asked once, the former looks at the first answer alone, and the latter at the other prompts.
    """

    expected: int
    usable: int
    failed: int
    empty: int
    candidate_ratio: float | None
    itself_ratio: float | None
    fault: str | None
    differing: tuple[ShadowItem, ...]

    @property
    def excess_ratio(self) -> float | None:
        """Disagreement that the baseline's own noise does not explain."""
        if self.candidate_ratio is None or self.itself_ratio is None:
            return None
        return self.candidate_ratio - self.itself_ratio


def summarise_shadow(shadow: ShadowObservation) -> ShadowSummary:
    """Disagreement of the candidate, and of the baseline with itself; `differing` only where the latter is none."""
    usable = [item for item in shadow.items if item.primary is not None and (item.secondary is not None or item.once)]
    sampled = any(item.once for item in usable)
    ours = [
        (i.differs_from_primary + (i.differs_from_primary if sampled else i.differs_from_secondary)) / 2 for i in usable
    ]
    itself = [float(i.differs_itself) for i in usable if not i.once]
    return ShadowSummary(
        expected=shadow.expected_n,
        usable=len(usable),
        failed=sum(item.error is not None and not _all_came(item) for item in shadow.items),
        empty=sum(item.error is not None and _all_came(item) for item in shadow.items),
        candidate_ratio=sum(ours) / len(ours) if ours else None,
        itself_ratio=sum(itself) / len(itself) if itself else None,
        fault=shadow.fault,
        differing=tuple(i for i in usable if i.candidate is not None and i.differs_from_primary and not _noisy(i)),
    )


def _all_came(item: ShadowItem) -> bool:
    """Whether every call came to an answer, be it an empty one."""
    facts = (item.primary_facts, item.candidate_facts, *(() if item.once else (item.secondary_facts,)))
    return all(one is not None for one in facts)


def _noisy(item: ShadowItem) -> bool:
    return not item.once and item.differs_itself


def _pooled(metric: Callable[[RequestColumns], FloatArray], columns: Sequence[RequestColumns]) -> FloatArray:
    return np.concatenate([metric(c) for c in columns])


def _total(masks: Iterable[BoolArray]) -> int:
    return sum(int(mask.sum()) for mask in masks)


def _tokens(columns: RequestColumns, which: BoolArray) -> int:
    return int(columns.output_tokens[which].sum())


def _worst(delays_s: Sequence[float | None]) -> float | None:
    """The largest; None when one of them was not measured."""
    known = [delay_s for delay_s in delays_s if delay_s is not None]
    return max(known) if known and len(known) == len(delays_s) else None


def _mean(rates: Sequence[float | None]) -> float | None:
    """Mean over blocks; None when one of them has no rate."""
    known = [rate for rate in rates if rate is not None]
    return sum(known) / len(known) if known and len(known) == len(rates) else None


def _failures(columns: Sequence[RequestColumns]) -> dict[str, int]:
    """Requests that did not succeed by class, most frequent first; without a class it is how they ended."""
    counts: Counter[str] = Counter()
    for c in columns:
        failed = np.flatnonzero(~request_metrics.succeeded(c))
        for error, finish in zip(c.error.take(failed), c.finish_reason.take(failed), strict=True):
            counts[error or f"finish {finish or 'missing'}"] += 1
    return dict(sorted(counts.items(), key=lambda item: (-item[1], item[0])))


def _token_sources(columns: Sequence[RequestColumns], succeeded: Sequence[BoolArray]) -> dict[str, int]:
    counts = Counter(
        source or "unknown"
        for c, s in zip(columns, succeeded, strict=True)
        for source in c.token_source.take(np.flatnonzero(s & (c.tokenless != 1)))
    )
    return dict(sorted(counts.items(), key=lambda item: (-item[1], item[0])))


def _known_sum(arrays: Sequence[IntArray]) -> int | None:
    known = [a[a != ABSENT] for a in arrays]
    return sum(int(a.sum()) for a in known) if any(len(a) for a in known) else None
