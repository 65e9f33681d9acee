"""Requests of `benchgate load`, drawn one by one as they are needed."""

from __future__ import annotations

import itertools
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

import numpy as np

from benchgate.load.shards import FindRequest, Ramp
from benchgate.load.standalone.options import LoadOptions
from benchgate.model.arrivals import TracedRequest, arrival_offsets_ns, arrival_offsets_within_ns, ramp_offsets_ns
from benchgate.model.request import text_request
from benchgate.plan.model import PlannedRequest
from benchgate.plan.prompts import SyntheticTexts
from benchgate.plan.salt import salted_vocabulary
from benchgate.plan.vocabulary import VOCABULARIES, keyed_text
from benchgate.suite.stages import RAMP_SERVICE_TIMES

_NS = 1_000_000_000
_AFTER_ALL = 2**40
"""First number of the ramp where the number of measured requests is not known before."""


@dataclass(frozen=True, slots=True)
class SyntheticRequests:
    """Every `workers`-th request, beginning with the `worker`-th: together the same ones for any number of workers.

    Numbers begin at `first`. `at_ns` are the instants of a ramp's requests; without them a ramp is endless.
    """

    options: LoadOptions
    worker: int = 0
    workers: int = 1
    first: int = 0
    at_ns: tuple[int, ...] = ()

    @property
    def endless(self) -> bool:
        """Return True if a closed loop sends as many as there is time for."""
        return self.options.concurrency is not None and (self.options.requests is None or self.first > 0)

    def __iter__(self) -> Iterator[PlannedRequest]:
        options = self.options
        offsets: Iterable[int | None] = itertools.repeat(None)
        if not self.endless:
            offsets = itertools.repeat(None, options.requests or 0)
        lengths: Iterable[TracedRequest] = itertools.repeat(TracedRequest(0, None, None))
        if self.at_ns:
            offsets = self.at_ns
        elif options.replay is not None:
            offsets, lengths = options.replay.offsets_ns, options.replay.rows
        elif options.rate_rps is not None:
            offsets = schedule_ns(options, options.rate_rps)
        texts = SyntheticTexts(options.seed, 0, salted_vocabulary(VOCABULARIES["words"], options.salt), prefix=None)
        planned = enumerate(zip(offsets, lengths, strict=False), start=self.first)
        for index, (offset_ns, row) in itertools.islice(planned, self.worker, None, self.workers):
            yield PlannedRequest(
                index=index,
                offset_ns=offset_ns,
                ask=text_request(
                    options.endpoint,
                    _prompt(texts, options, row, index),
                    row.output_tokens or options.output_tokens,
                ),
                seed=zlib.crc32(b"%d/%d" % (options.seed, index)) >> 1,
            )

    def share(self, worker: int, workers: int) -> SyntheticRequests:
        """Return the share of one worker; of a whole only."""
        return replace(self, worker=worker, workers=workers)

    def find(self) -> FindRequest:
        """They are all alike in what their answers are read by, and none is more than a request."""
        if self.options.endpoint in ("chat", "completions"):
            return lambda number: None
        alike = text_request(self.options.endpoint, "", self.options.output_tokens)
        return lambda number: PlannedRequest(number, None, alike, 0)


def ramp_of(options: LoadOptions, service_s: float | None) -> tuple[Ramp | None, int]:
    """Return the ramp of a load and the instant in ns at which its measured schedule begins.

    `service_s` is the mean time in seconds that a request takes; None when it is not known. A trace has no ramp, nor
    has an open loop whose service time is not known.
    """
    if options.concurrency is not None:
        first = _AFTER_ALL if options.requests is None else options.requests
        return Ramp(SyntheticRequests(options, first=first), first), 0
    if options.rate_rps is None or options.replay is not None or service_s is None:
        return None, 0
    planned_ns, ramp_s = schedule_ns(options, options.rate_rps), RAMP_SERVICE_TIMES * service_s
    at_ns = ramp_offsets_ns(options.arrival, options.rate_rps, ramp_s, ramp_s, planned_ns[-1], [options.seed, 2])
    return Ramp(SyntheticRequests(options, first=len(planned_ns), at_ns=at_ns), len(planned_ns)), round(ramp_s * _NS)


def _prompt(texts: SyntheticTexts, options: LoadOptions, row: TracedRequest, index: int) -> str:
    tokens = row.input_tokens or options.input_tokens
    if row.hash_ids:
        return texts.hashed(row.hash_ids, tokens, np.random.default_rng([options.seed, 1, index]))
    return keyed_text(texts.vocabulary, tokens, f"{options.seed}/{index}")


def schedule_ns(options: LoadOptions, rate_rps: float) -> tuple[int, ...]:
    """The intended sends of an open loop: so many, or as many as fall within the duration."""
    arrival, seeds = options.arrival, [options.seed, 0]
    if options.duration_s is not None:
        return arrival_offsets_within_ns(arrival, rate_rps, options.duration_s, seeds)
    generator = np.random.default_rng(seeds)
    return arrival_offsets_ns(arrival.process, rate_rps, options.requests or 0, generator, cv=arrival.cv)
