"""Figures of a stage under way, for a display.

They are read by the process that waits for the workers, from the spools that these write anyway. So a display costs
the measurement nothing, and shows what the result will show: answers are decoded as they are after the stage. That is
done with a few of them in each reading, and with each whose exchange or status failed; the rest is counted.
"""

from __future__ import annotations

import math
import time
from collections import Counter, deque
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from statistics import median
from typing import Self

import numpy as np

from benchgate.load.decode.record import decode
from benchgate.load.results import StageResult
from benchgate.load.shards import FindRequest, Shard
from benchgate.load.spool import SpoolTail
from benchgate.model import request_metrics
from benchgate.model.records import RequestColumns
from benchgate.model.request import ModelRequest
from benchgate.model.request_metrics import quantile
from benchgate.targets.dialect import Target

_NS = 1_000_000_000
_DECODING_S = 0.002  # in each reading, of which there is one a second
_RATE_WINDOW_S = 5.0
_REASONS = 3
_SAMPLE = 2_000  # latest decoded requests
_PLAIN = ModelRequest("chat", {}, None)


@dataclass(frozen=True, slots=True)
class LiveFigures:
    """A stage so far. Latencies are medians of its latest answers; None where there is none yet.

    `ended` counts requests of the ramp too. `failed` excludes whole answers that only decoding shows to be wrong, where
    there was no time for it. `reasons` are the commonest failures of a whole stage.
    """

    elapsed_s: float
    ended: int
    failed: int
    in_flight: int
    requests_per_s: float | None
    ttft_p50_s: float | None
    tpot_p50_s: float | None
    reasons: tuple[str, ...] = ()

    @classmethod
    def of(cls, result: StageResult, elapsed_s: float) -> Self:
        """Return the figures of a whole stage."""
        sent = [columns for group in result.classes for columns in (group.requests, group.ramp)]
        window_s = max(group.window_s for group in result.classes)
        measured = sum(len(group.requests) for group in result.classes)
        ttft_s, tpot_s = (
            quantile(np.concatenate([latency(group.requests) for group in result.classes]), 0.5)
            for latency in (request_metrics.ttft_s, request_metrics.tpot_s)
        )
        return cls(
            elapsed_s=elapsed_s,
            ended=sum(map(len, sent)),
            failed=sum(int(np.count_nonzero(~request_metrics.succeeded(columns))) for columns in sent),
            in_flight=0,
            requests_per_s=measured / window_s if window_s > 0 else None,
            ttft_p50_s=None if ttft_s is None or math.isinf(ttft_s) else ttft_s,
            tpot_p50_s=None if tpot_s is None or math.isinf(tpot_s) else tpot_s,
            reasons=tuple(f"{detail} ({count:,} times)" for (_, detail), count in failures(*sent)[:_REASONS]),
        )


def failures(*sent: RequestColumns) -> list[tuple[tuple[str, str], int]]:
    """Return class and detail of the failed requests, with their number, the commonest first."""
    found = Counter(
        (str(error), detail)
        for rows in sent
        for error, detail in zip(rows.error, rows.error_detail, strict=True)
        if error is not None and detail is not None
    )
    return found.most_common()


Watch = Callable[[LiveFigures], None]


class StageMonitor:
    """Reader of a running stage's spools. Use as a context manager; `in_flight` counts the requests under way."""

    def __init__(self, shards: Sequence[Shard], start_ns: int, in_flight: Callable[[], int], watch: Watch) -> None:
        self._shards = shards
        self._start_ns = start_ns
        self._in_flight = in_flight
        self._watch = watch
        self._stack = ExitStack()
        self._tails = deque[tuple[Target, FindRequest, SpoolTail]]()
        self._ended = self._failed = 0
        self._history = deque[tuple[float, int]]()
        self._ttft_s = deque[float](maxlen=_SAMPLE)
        self._tpot_s = deque[float](maxlen=_SAMPLE)

    def __enter__(self) -> Self:
        for shard in self._shards:
            if shard.spool is None:
                raise ValueError("only a stage whose spools have a place can be watched")
            for part, path in zip(shard.parts, shard.spools(shard.spool), strict=True):
                self._tails.append((shard.target, part.find(), self._stack.enter_context(SpoolTail(path))))
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def read(self) -> None:
        """Read what has ended since the last call, and pass the figures on."""
        until_s = time.monotonic() + _DECODING_S
        self._tails.rotate(-1)  # so that each has its turn to use up the time
        for target, find, tail in self._tails:
            for place in tail.new_places():
                self._ended += 1
                has_time = time.monotonic() < until_s
                entry = tail.entry(place) if has_time or tail.has_fault(place) else None
                if entry is None:
                    continue
                request = find(entry.number)
                ask = _PLAIN if request is None else request.ask
                number, due_ns, epoch_ns, response, _ = entry
                record, _ = decode(number, due_ns, epoch_ns, response, ask=ask, target=target)
                if record.error is not None:
                    self._failed += 1
                elif record.chunk_ns:
                    first_ns, last_ns = record.chunk_ns[0], record.chunk_ns[-1]
                    self._ttft_s.append((first_ns - record.intended_ns) / _NS)
                    if record.output_tokens is not None and record.output_tokens > 1:
                        self._tpot_s.append((last_ns - first_ns) / (record.output_tokens - 1) / _NS)
        now_s = max(0.0, (time.time_ns() - self._start_ns) / _NS)
        self._history.append((now_s, self._ended))
        while self._history[0][0] < now_s - _RATE_WINDOW_S:
            self._history.popleft()
        first_s, before = self._history[0]
        passed_s = now_s - first_s
        figures = LiveFigures(
            elapsed_s=now_s,
            ended=self._ended,
            failed=self._failed,
            in_flight=self._in_flight(),
            requests_per_s=(self._ended - before) / passed_s if passed_s > 0 else None,
            ttft_p50_s=median(self._ttft_s) if self._ttft_s else None,
            tpot_p50_s=median(self._tpot_s) if self._tpot_s else None,
        )
        self._watch(figures)
