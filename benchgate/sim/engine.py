"""A continuous-batching engine as a pure simulation: requests arrive, steps take their time, tokens fall out.

Each step decodes one token for every running sequence and reads a bounded piece of the prompts that are still to be
read, as vLLM and SGLang do with chunked prefill. So a long prompt slows every running stream, a full batch or a full
KV cache makes requests wait, and throughput bends as load grows.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass

from benchgate.sim.jobs import Due, Job
from benchgate.sim.settings import NS, BatchingCosts


@dataclass(frozen=True, slots=True)
class _Step:
    """One step under way: when it ends, and who then gets a token."""

    ends_ns: int
    rewarded: list[Job]
    idle: bool = False  # a wait in which nothing can run


class Engine:
    """First come, first served. Steps follow each other without a gap while there is work, on an absolute schedule."""

    def __init__(self, costs: BatchingCosts, jitter_ratio: float, rng: random.Random) -> None:
        self._costs = costs
        self._jitter_ratio = jitter_ratio
        self._draw = rng.random
        self._waiting: deque[Job] = deque()
        self._running: list[Job] = []  # in order of admission
        self._reserved_tokens = 0
        self._step: _Step | None = None

    @property
    def running(self) -> int:
        """Sequences in the batch."""
        return len(self._running)

    @property
    def waiting(self) -> int:
        """Requests in the queue."""
        return len(self._waiting)

    @property
    def kv_ratio(self) -> float:
        """Reserved tokens of all the tokens there is room for."""
        return self._reserved_tokens / self._costs.kv_tokens

    def admit(self, job: Job, now_ns: int) -> bool:
        """Queue a job; refuse it when so many wait already. `reserved_tokens` must fit an empty cache."""
        queue = self._costs.queue
        if queue is not None and len(self._waiting) >= queue and not self._fits_at_once(job):
            return False
        self._waiting.append(job)
        if self._step is None or self._step.idle:
            self._begin(now_ns)
        return True

    def drop(self, job: Job) -> None:
        """Its slot and its KV room are free at once; a step under way still takes the time it takes."""
        if job.over:
            return
        job.over = True
        if job in self._running:
            self._running.remove(job)
            self._reserved_tokens -= job.reserved_tokens
        else:
            self._waiting.remove(job)

    def hold(self, job: Job, until_ns: int) -> None:
        """The sequence keeps its slot and its room and gets no token before then."""
        job.held_until_ns = until_ns

    def due_ns(self) -> int | None:
        """The end of the step under way."""
        return None if self._step is None else self._step.ends_ns

    def take(self, now_ns: int) -> Iterator[Due]:
        """The tokens of every step that has ended by now; the next step begins where the last one ended."""
        while self._step is not None and self._step.ends_ns <= now_ns:
            step = self._step
            due = [job for job in step.rewarded if not job.over and job.held_until_ns <= step.ends_ns]
            for job in due:
                job.produced += 1
                if job.produced == job.output_tokens:
                    self.drop(job)
            self._begin(step.ends_ns)
            for job in due:
                yield Due(step.ends_ns, job, 1)

    def _fits_at_once(self, job: Job) -> bool:
        return not self._waiting and len(self._running) < self._costs.batch and self._has_room_for(job)

    def _has_room_for(self, job: Job) -> bool:
        return self._reserved_tokens + job.reserved_tokens <= self._costs.kv_tokens

    def _begin(self, at_ns: int) -> None:
        """Start the next step at that instant."""
        self._fill_batch(at_ns)
        able = [job for job in self._running if job.held_until_ns <= at_ns]
        if not able:
            self._step = self._idle_after(at_ns)
            return
        decoding = [job for job in able if job.prefilled_tokens >= job.input_tokens]
        prefilled_tokens, ready = self._prefill([job for job in able if job.prefilled_tokens < job.input_tokens])
        ends_ns = at_ns + self._duration_ns(prefilled_tokens, len(decoding))
        self._step = _Step(ends_ns, decoding + ready)

    def _idle_after(self, at_ns: int) -> _Step | None:
        """The wait until a held sequence may go on, or a job that is queued already arrives: looks may be late."""
        instants = [job.held_until_ns for job in self._running] + [job.arrived_ns for job in self._waiting]
        later = [instant for instant in instants if instant > at_ns]
        return _Step(min(later), [], idle=True) if later else None

    def _fill_batch(self, at_ns: int) -> None:
        while self._waiting and len(self._running) < self._costs.batch:
            job = self._waiting[0]
            if job.arrived_ns > at_ns or not self._has_room_for(job):
                break  # nobody overtakes
            self._waiting.popleft()
            self._running.append(job)
            self._reserved_tokens += job.reserved_tokens

    def _prefill(self, unread: list[Job]) -> tuple[int, list[Job]]:
        """Read the next piece of the prompts: how many tokens, and whose prompt is then read whole."""
        budget, ready = self._costs.prefill_chunk_tokens, []
        for job in unread:
            piece = min(budget, job.input_tokens - job.prefilled_tokens)
            job.prefilled_tokens += piece
            budget -= piece
            if job.prefilled_tokens == job.input_tokens:
                ready.append(job)
            if not budget:
                break
        return self._costs.prefill_chunk_tokens - budget, ready

    def _duration_ns(self, prefilled_tokens: int, decoding: int) -> int:
        costs = self._costs
        duration_s = costs.prefill_s * prefilled_tokens
        if decoding:
            duration_s += costs.decode_s + costs.decode_per_sequence_s * decoding
        if self._jitter_ratio:
            duration_s *= 1 + self._jitter_ratio * (2 * self._draw() - 1)
        return max(1, round(duration_s * NS))
