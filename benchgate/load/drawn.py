"""The requests of a bare load test, drawn one by one as they are needed."""

from __future__ import annotations

import itertools
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

import numpy as np

from benchgate.load.options import BareOptions
from benchgate.load.shard import Find
from benchgate.model.ask import text_ask
from benchgate.plan.arrivals import arrival_offsets_ns
from benchgate.plan.replay import TracedRequest
from benchgate.plan.salt import salted_vocabulary
from benchgate.plan.schedule import PlannedRequest
from benchgate.plan.texts import Texts
from benchgate.plan.workloads import VOCABULARIES, keyed_text

_NS = 1_000_000_000


@dataclass(frozen=True, slots=True)
class Drawn:
    """Every `workers`-th request, beginning with the `worker`-th: together the same ones for any number of workers."""

    options: BareOptions
    worker: int = 0
    workers: int = 1

    @property
    def endless(self) -> bool:
        """A closed loop for a time asks as much as it can."""
        return self.options.requests is None and self.options.concurrency is not None

    def __iter__(self) -> Iterator[PlannedRequest]:
        options = self.options
        offsets: Iterable[int | None] = itertools.repeat(None)
        if not self.endless:
            offsets = itertools.repeat(None, options.requests or 0)
        lengths: Iterable[TracedRequest] = itertools.repeat(TracedRequest(0, None, None))
        if options.replay is not None:
            offsets, lengths = options.replay.offsets_ns, options.replay.rows
        elif options.rate_rps is not None:
            offsets = schedule_ns(options, options.rate_rps)
        texts = Texts(options.seed, 0, salted_vocabulary(VOCABULARIES["words"], options.salt), prefix=None)
        planned = enumerate(zip(offsets, lengths, strict=False))
        for index, (offset_ns, row) in itertools.islice(planned, self.worker, None, self.workers):
            yield PlannedRequest(
                index=index,
                offset_ns=offset_ns,
                ask=text_ask(
                    options.endpoint,
                    _prompt(texts, options, row, index),
                    row.output_tokens or options.output_tokens,
                ),
                seed=zlib.crc32(b"%d/%d" % (options.seed, index)) >> 1,
            )

    def share(self, worker: int, workers: int) -> Drawn:
        """Those of one worker; of a whole only."""
        return replace(self, worker=worker, workers=workers)

    def find(self) -> Find:
        """They are all alike in what their answers are read by, and none is more than a request."""
        if self.options.endpoint in ("chat", "completions"):
            return lambda number: None
        alike = text_ask(self.options.endpoint, "", self.options.output_tokens)
        return lambda number: PlannedRequest(number, None, alike, 0)


def _prompt(texts: Texts, options: BareOptions, row: TracedRequest, index: int) -> str:
    tokens = row.input_tokens or options.input_tokens
    if row.hash_ids:
        return texts.hashed(row.hash_ids, tokens, np.random.default_rng([options.seed, 1, index]))
    return keyed_text(texts.vocabulary, tokens, f"{options.seed}/{index}")


def schedule_ns(options: BareOptions, rate_rps: float) -> tuple[int, ...]:
    """The intended sends of an open loop: so many, or as many as fall within the duration."""
    arrival = options.arrival

    def offsets(count: int) -> tuple[int, ...]:
        generator = np.random.default_rng([options.seed, 0])
        return arrival_offsets_ns(arrival.process, rate_rps, count, generator, cv=arrival.cv)

    if options.duration_s is None:
        return offsets(options.requests or 0)
    end_ns = int(options.duration_s * _NS)
    count = 16 + int(2 * rate_rps * options.duration_s)
    while (planned := offsets(count))[-1] <= end_ns:
        count *= 2
    return tuple(ns for ns in planned if ns <= end_ns)
