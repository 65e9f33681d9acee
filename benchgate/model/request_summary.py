"""Mergeable summary of the requests of a class of traffic: exact counts, histograms of times, a sample of records.

It stands in for records that are too many to hold. Summaries of parts add up to that of the whole, however the requests
were divided.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from benchgate.model import request_metrics
from benchgate.model.columns import concatenate_columns, select_rows
from benchgate.model.histogram import TimeHistogram
from benchgate.model.metric import Slo
from benchgate.model.records import ABSENT, IntArray, RequestColumns

SAMPLED_RECORDS = 100_000
TIMES = MappingProxyType(
    {
        **{name: latency for name, latency in request_metrics.LATENCIES.items() if name != "session_e2e"},
        "ttft_sent": request_metrics.ttft_sent_s,
        "send_lag": request_metrics.send_lag_s,
        "ttfot": request_metrics.ttfot_of_some_s,  # records are added in parts
    }
)
"""Times of a request that a summary has. `session_e2e` needs all records of a session at once."""
_TOKENS = ("output_tokens", "input_tokens", "reasoning_tokens", "cached_tokens")
_MOST_REASONS = 1_000  # distinct failures, of which the rest are counted by class
_NS = 1_000_000_000
_OTHER = "further failures"


class Stretch(NamedTuple):
    """Counts of requests that were due in consecutive seconds, of which the first is `begin_s`."""

    begin_s: int
    scheduled: int
    succeeded: int
    good: int
    output_tokens: int


class TimeCounts:
    """Counts in each second since the start of the stage: scheduled, succeeded and good requests, output tokens."""

    def __init__(self) -> None:
        self._counts = np.zeros((4, 0), dtype=np.int64)

    def add(self, second: IntArray, *weights: npt.NDArray[np.int64 | np.bool_]) -> None:
        """Count requests by the second in which they were due."""
        if not len(second):
            return
        found = [np.bincount(second)]
        found += [np.bincount(second, weights=weight).astype(np.int64) for weight in weights]
        self._grow(np.array(found))

    def merge(self, other: TimeCounts) -> None:
        """Add other counts."""
        self._grow(other._counts)

    def stretches(self, most: int) -> list[Stretch]:
        """Return the counts of at most so many consecutive parts of about equal numbers of requests."""
        scheduled = np.cumsum(self._counts[0])
        if not len(scheduled):
            return []
        targets = scheduled[-1] * np.arange(1, most) / most
        borders = np.unique(np.searchsorted(scheduled, targets) + 1)
        begins = [int(np.argmax(scheduled > 0)), *borders[borders < len(scheduled)].tolist()]
        parts = [self._counts[:, a:b] for a, b in zip(begins, [*begins[1:], len(scheduled)], strict=True)]
        return [Stretch(begin, *part.sum(axis=1).tolist()) for begin, part in zip(begins, parts, strict=True)]

    def _grow(self, counts: IntArray) -> None:
        missing = counts.shape[1] - self._counts.shape[1]
        if missing > 0:
            self._counts = np.pad(self._counts, ((0, 0), (0, missing)))
        self._counts[:, : counts.shape[1]] += counts


class RecordSample:
    """Uniform sample of records: those whose numbers hash lowest, so it does not depend on how they were divided."""

    def __init__(self, seed: int, size: int = SAMPLED_RECORDS) -> None:
        self._seed, self._size = np.uint64(seed & (2**64 - 1)), size
        self._parts: list[RequestColumns] = []
        self._hashes: list[npt.NDArray[np.uint64]] = []
        self._below = np.uint64(2**64 - 1)  # higher hashes are in no sample

    def add(self, columns: RequestColumns) -> None:
        """Offer records. Each has a number of its own in the class of traffic."""
        hashes = _hashed(columns.index, self._seed)
        within = hashes <= self._below
        if within.any():
            self._parts.append(select_rows(columns, within))
            self._hashes.append(hashes[within])
            if sum(map(len, self._hashes)) > 2 * self._size:
                self._cut()

    def merge(self, other: RecordSample) -> None:
        """Offer the records of another sample with the same seed and size."""
        for part in other._parts:
            self.add(part)

    def columns(self) -> RequestColumns:
        """Return the sampled records in order of their numbers."""
        self._cut()
        return concatenate_columns(self._parts)

    def _cut(self) -> None:
        hashes = np.concatenate([np.empty(0, dtype=np.uint64), *self._hashes])
        if len(hashes) <= self._size:
            return
        self._below = np.partition(hashes, self._size - 1)[self._size - 1]
        kept = concatenate_columns(
            [select_rows(p, h <= self._below) for p, h in zip(self._parts, self._hashes, strict=True)]
        )
        self._parts, self._hashes = [kept], [_hashed(kept.index, self._seed)]


def _hashed(numbers: IntArray, seed: np.uint64) -> npt.NDArray[np.uint64]:
    """Return the SplitMix64 output of each number (Steele, Lea and Flood, OOPSLA 2014)."""
    state = (numbers.astype(np.uint64) + seed) * np.uint64(0x9E3779B97F4A7C15)
    state = (state ^ (state >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    state = (state ^ (state >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return state ^ (state >> np.uint64(31))


@dataclass(slots=True, eq=False)
class RequestSummary:
    """Summary of requests. `good` ones succeeded and met the SLO; without one, those that succeeded."""

    slo: Slo = field(default_factory=Slo)
    seed: int = 0
    scheduled: int = 0
    succeeded: int = 0
    good: int = 0
    reconnects: int = 0
    failures: Counter[tuple[str, str]] = field(default_factory=Counter)  # by class and detail
    token_sources: Counter[str] = field(default_factory=Counter)  # of successful requests
    tokens: Counter[str] = field(default_factory=Counter)  # of successful requests, by the name of the column
    unknown_tokens: Counter[str] = field(default_factory=Counter)  # successful requests without a count
    times: Mapping[str, TimeHistogram] = field(default_factory=lambda: {name: TimeHistogram() for name in TIMES})
    by_second: TimeCounts = field(default_factory=TimeCounts)
    sample: RecordSample = field(init=False)

    def __post_init__(self) -> None:
        self.sample = RecordSample(self.seed)

    def __len__(self) -> int:
        return self.scheduled

    def add(self, columns: RequestColumns) -> None:
        """Summarise records."""
        if not len(columns):
            return
        ok, good = request_metrics.succeeded(columns), request_metrics.meets_slo(columns, self.slo)
        self.scheduled += len(columns)
        self.succeeded += int(np.count_nonzero(ok))
        self.good += int(np.count_nonzero(good))
        self.reconnects += int(columns.reconnects.sum())
        self._count_failures(columns)
        sources = columns.token_source.take(np.flatnonzero(ok))
        self.token_sources.update({name: n for name, n in sources.counts().items() if name is not None})
        for name in _TOKENS:
            counts: IntArray = getattr(columns, name)[ok]
            known = counts != ABSENT
            self.tokens[name] += int(counts[known].sum())
            self.unknown_tokens[name] += int(np.count_nonzero(~known))
        for name, histogram in self.times.items():
            histogram.add(TIMES[name](columns))
        output_tokens = np.where(ok, columns.output_tokens, 0)
        self.by_second.add(np.maximum(columns.intended_ns, 0) // _NS, ok, good, output_tokens)
        self.sample.add(columns)

    def merge(self, other: RequestSummary) -> None:
        """Add the summary of other requests. Raises ValueError for one of another SLO or seed."""
        if (self.slo, self.seed) != (other.slo, other.seed):
            raise ValueError(f"a summary with {other.slo} and seed {other.seed} has no place among {self.slo}")
        self.scheduled += other.scheduled
        self.succeeded += other.succeeded
        self.good += other.good
        self.reconnects += other.reconnects
        for name in ("failures", "token_sources", "tokens", "unknown_tokens"):
            getattr(self, name).update(getattr(other, name))
        for name, histogram in self.times.items():
            histogram.merge(other.times[name])
        self.by_second.merge(other.by_second)
        self.sample.merge(other.sample)

    @property
    def known_times(self) -> dict[str, TimeHistogram]:
        """Return the histograms; that of TTFOT is empty if requests succeeded and none has an answer chunk."""
        no_answers = self.succeeded > 0 and self.times["ttfot"].finite == 0
        return {name: TimeHistogram() if name == "ttfot" and no_answers else one for name, one in self.times.items()}

    def token_ratio(self, part: str, whole: str) -> float | None:
        """Return the share of one column's tokens in another's; None unless both are known for every success."""
        if self.unknown_tokens[part] or self.unknown_tokens[whole] or not self.tokens[whole]:
            return None
        return self.tokens[part] / self.tokens[whole]

    def _count_failures(self, columns: RequestColumns) -> None:
        if columns.error.words == (None,):
            return
        details = columns.error_detail.words
        codes = columns.error.codes.astype(np.int64) * len(details) + columns.error_detail.codes
        counts = np.bincount(codes)
        for code in np.flatnonzero(counts).tolist():
            error, detail = columns.error.words[code // len(details)], details[code % len(details)]
            if error is not None:
                key = (error, detail or "")
                if key not in self.failures and len(self.failures) >= _MOST_REASONS:
                    key = (error, _OTHER)
                self.failures[key] += int(counts[code])
