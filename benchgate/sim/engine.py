"""A continuous-batching engine as a pure simulation: requests arrive, steps take their time, tokens fall out.

Each step decodes one token for every running sequence and reads a bounded piece of the prompts that are still to be
read, as vLLM and SGLang do with chunked prefill. So a long prompt slows every running stream, a full batch or a full
KV cache makes requests wait, and throughput bends as load grows.
"""

from __future__ import annotations

import random
from bisect import bisect_right
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush, heapreplace
from typing import NamedTuple, Protocol

from benchgate.sim.settings import NS, BatchingCosts, QueueCosts


@dataclass(slots=True, eq=False)
class Job:
    """One request as a model of time sees it. Instants are monotonic ns.

    `emit(tokens, due_ns)` is what to do with tokens that are due; the models themselves never call it.
    """

    order: int  # of arrival; breaks ties
    arrived_ns: int
    input_tokens: int
    output_tokens: int  # how many it will make
    reserved_tokens: int  # KV room it needs
    emit: Callable[[int, int], None]
    priority: int = 0  # lower goes first
    blocks: tuple[int, ...] = ()  # names of the blocks of the prompt and then of the answer, for a prefix cache
    with_adapter: bool = False
    speed: float = 1.0  # its times are divided by it; an engine whose steps are shared takes no notice
    produced: int = 0
    unread_tokens: int = 0  # what must be read before the next token: the prompt, and what it lost when preempted
    prefilled_tokens: int = 0  # of those
    cached_tokens: int | None = None  # of the prompt, found in the prefix cache; None until it was looked for
    kept_blocks: int = 0  # of its own, put into the prefix cache
    room_tokens: int = 0  # KV room it holds
    admitted_ns: int | None = None  # when it came out of the queue, the first time
    service_ns: int | None = None  # how long a server of the queue model works on it
    held_until_ns: int = 0
    over: bool = False  # everything produced, or dropped

    @property
    def left(self) -> int:
        """Tokens still to come."""
        return self.output_tokens - self.produced

    @property
    def rank(self) -> tuple[int, int]:
        """Who goes first: the lower."""
        return self.priority, self.order


class Due(NamedTuple):
    """So many tokens of a job, at the instant they should leave."""

    at_ns: int
    job: Job
    tokens: int


@dataclass(slots=True)
class Tally:
    """What a model of time has counted since it began."""

    preemptions: int = 0
    prefix_queried_tokens: int = 0
    prefix_hit_tokens: int = 0


class Model(Protocol):
    """Decides when tokens are due. Pure: time is an argument."""

    tally: Tally

    @property
    def running(self) -> int:
        """Jobs being worked on."""

    @property
    def waiting(self) -> int:
        """Jobs in the queue."""

    @property
    def kv_ratio(self) -> float:
        """Share of the KV cache that is taken."""

    def sheds(self, job: Job) -> bool:
        """Whether the job must be turned away at once, because too many wait."""

    def admit(self, job: Job, now_ns: int) -> bool:
        """Take a job in; False when the queue is full."""

    def drop(self, job: Job) -> None:
        """Forget a job, whatever its state, and free its room at once."""

    def abandon(self, job: Job) -> None:
        """The same, because its client has left."""

    def hold(self, job: Job, until_ns: int) -> None:
        """Let the job get nothing before that instant."""

    def due_ns(self) -> int | None:
        """When there is something to `take`; None while nothing is under way."""

    def take(self, now_ns: int) -> Iterator[Due]:
        """Everything due by `now_ns`, in order of its instant."""


_BURST_TOKENS = 4096  # at one instant, when tokens take no time: an endless answer must not be made in one go
_BURST_GAP_NS = 1_000_000


class Paced:
    """The first token `ttft_ns` after the request arrived, then one every `itl_ns`.

    Each of these times is spread evenly over ±`jitter_ratio`. Every instant follows from the one before it, never from
    the instant at which it was taken, so a late server does not shift its own schedule.
    """

    def __init__(self, ttft_ns: int, itl_ns: int, jitter_ratio: float, rng: random.Random) -> None:
        self.tally = Tally()  # nothing is preempted or cached
        self._ttft_ns = ttft_ns
        self._itl_ns = itl_ns
        self._jitter_ratio = jitter_ratio
        self._draw = rng.random
        self._heap: list[tuple[int, int, Job]] = []  # next instant, order, job: at most one entry a job
        self._running = 0

    @property
    def running(self) -> int:
        """Jobs with tokens still to come."""
        return self._running

    @property
    def waiting(self) -> int:
        """Nobody waits."""
        return 0

    @property
    def kv_ratio(self) -> float:
        """There is no KV cache here."""
        return 0.0

    def sheds(self, job: Job) -> bool:
        """Nobody is turned away."""
        return False

    def admit(self, job: Job, now_ns: int) -> bool:
        """Every job is taken in at once."""
        self._begin(job, job.arrived_ns + self._spread(self._ttft_ns, job))
        return True

    def drop(self, job: Job) -> None:
        """The entry in the heap stays until its time comes, and is then thrown away."""
        if not job.over:
            job.over = True
            self._running -= 1

    def abandon(self, job: Job) -> None:
        """As `drop`."""
        self.drop(job)

    def hold(self, job: Job, until_ns: int) -> None:
        """What the job would have got before then comes from then on, at its pace."""
        job.held_until_ns = until_ns

    def due_ns(self) -> int | None:
        """The next instant of all."""
        return self._heap[0][0] if self._heap else None

    def take(self, now_ns: int) -> Iterator[Due]:
        """One token at a time; all the rest of an answer at once, if it is not very long, when `itl_ns` is 0."""
        heap = self._heap
        while heap and heap[0][0] <= now_ns:
            at_ns, order, job = heap[0]
            if job.over:
                heappop(heap)
            elif job.held_until_ns > at_ns:
                heapreplace(heap, (job.held_until_ns, order, job))
            else:
                tokens = 1 if self._itl_ns else min(_BURST_TOKENS, job.left)
                job.produced += tokens
                if job.produced < job.output_tokens:
                    heapreplace(heap, (at_ns + (self._gap_ns(job) or _BURST_GAP_NS), order, job))
                else:
                    heappop(heap)
                    self.drop(job)
                yield Due(at_ns, job, tokens)

    def _begin(self, job: Job, first_ns: int) -> None:
        """Let the job have its first token at that instant."""
        heappush(self._heap, (first_ns, job.order, job))
        self._running += 1

    def _gap_ns(self, job: Job) -> int:
        """From one token of the job to the next."""
        return self._spread(self._itl_ns, job)

    def _spread(self, mean_ns: float, job: Job) -> int:
        if self._jitter_ratio:
            mean_ns *= 1 + self._jitter_ratio * (2 * self._draw() - 1)
        return int(mean_ns / job.speed)


class Queue(Paced):
    """Requests wait in order of admission. A service that has begun takes its time, whatever becomes of the request.

    Until the first token: that token comes at the end of the service, the others every `itl_ns`. Until the last token:
    an answer of n tokens has one every nth part of its service.
    """

    def __init__(self, costs: QueueCosts, itl_ns: int, jitter_ratio: float, rng: random.Random) -> None:
        whole = costs.service_until == "last-token"
        super().__init__(0, NS if whole else itl_ns, jitter_ratio, rng)  # that there is a gap is all that matters then
        self._costs = costs
        self._whole = whole
        self._draw_service = rng.expovariate
        self._waiting: deque[Job] = deque()
        self._free_ns = [0] * costs.servers  # a heap: when each server has done what it has begun

    @property
    def waiting(self) -> int:
        """Requests that no server works on yet."""
        return len(self._waiting)

    def admit(self, job: Job, now_ns: int) -> bool:
        """Queue a job; any number may wait."""
        self._waiting.append(job)
        self._start(now_ns)
        return True

    def drop(self, job: Job) -> None:
        """A job that waits makes room for those behind it."""
        if not job.over and job.admitted_ns is None:
            job.over = True
            self._waiting.remove(job)
        else:
            super().drop(job)

    def due_ns(self) -> int | None:
        """The next token, or the next start of a service."""
        first_ns = super().due_ns()
        if not self._waiting:
            return first_ns
        starts_ns = self._starts_ns()
        return starts_ns if first_ns is None else min(first_ns, starts_ns)

    def take(self, now_ns: int) -> Iterator[Due]:
        """Start what could start by now, and give what is due."""
        self._start(now_ns)
        yield from super().take(now_ns)

    def _starts_ns(self) -> int:
        """When the service of the first in the queue begins."""
        return max(self._waiting[0].arrived_ns, self._free_ns[0])

    def _start(self, now_ns: int) -> None:
        while self._waiting and (start_ns := self._starts_ns()) <= now_ns:
            job = self._waiting.popleft()
            drawn = self._draw_service(1.0) if self._costs.service_law == "exponential" else 1.0
            job.admitted_ns, job.service_ns = start_ns, self._spread(drawn * self._costs.service_s * NS, job)
            heapreplace(self._free_ns, start_ns + job.service_ns)
            self._begin(job, start_ns + (self._gap_ns(job) if self._whole else job.service_ns))

    def _gap_ns(self, job: Job) -> int:
        if self._whole and job.service_ns is not None:
            return job.service_ns // job.output_tokens
        return super()._gap_ns(job)


def block_names(words: Sequence[str], block_tokens: int, salt: str) -> tuple[int, ...]:
    """A name for every whole block of so many words, which stands for the block and for all that comes before it.

    `salt` keeps apart what must not share, such as adapters. Names hold within one process.
    """
    names, name = [], hash(salt)
    for end in range(block_tokens, len(words) + 1, block_tokens):
        name = hash((name, *words[end - block_tokens : end]))
        names.append(name)
    return tuple(names)


class PrefixCache:
    """Room for so many blocks; the one that was not used for longest goes first. No room: nothing is ever found."""

    def __init__(self, blocks: int, block_tokens: int) -> None:
        self._room = blocks
        self._block_tokens = block_tokens
        self._kept: OrderedDict[int, None] = OrderedDict()

    def __len__(self) -> int:
        return len(self._kept)

    @property
    def in_use(self) -> bool:
        """Whether there is a cache at all."""
        return self._room > 0

    def find(self, blocks: Sequence[int], input_tokens: int) -> int:
        """Tokens of the prompt that need not be read. At least one is left to read: the answer begins from it."""
        found = 0
        for name in blocks[: max(0, input_tokens - 1) // self._block_tokens]:
            if name not in self._kept:
                break
            self._kept.move_to_end(name)
            found += 1
        return found * self._block_tokens

    def keep(self, blocks: Sequence[int], first: int, read_tokens: int) -> int:
        """Keep the blocks from number `first` on that lie within so many tokens; gives how many are kept by now."""
        until = min(len(blocks), read_tokens // self._block_tokens)
        for name in blocks[first:until]:
            self._kept[name] = None
            self._kept.move_to_end(name)
            if len(self._kept) > self._room:
                self._kept.popitem(last=False)
        return max(first, until)


@dataclass(frozen=True, slots=True)
class _Step:
    """One step under way: when it ends, and who then gets a token."""

    ends_ns: int
    rewarded: list[Job]
    idle: bool = False  # a wait in which nothing can run


class Engine:
    """Steps follow each other without a gap while there is work, on an absolute schedule."""

    def __init__(self, costs: BatchingCosts, jitter_ratio: float, rng: random.Random) -> None:
        self.tally = Tally()
        self._costs = costs
        self._jitter_ratio = jitter_ratio
        self._draw = rng.random
        self._waiting: deque[Job] = deque()  # by rank
        self._running: list[Job] = []  # in order of admission
        self._cache = PrefixCache(costs.prefix_blocks, costs.block_tokens)
        self._taken_tokens = 0  # KV room of the running, and what has leaked
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
        """Taken tokens of all the tokens there is room for. What only the prefix cache holds is free to be taken."""
        return self._taken_tokens / self._costs.kv_tokens

    def sheds(self, job: Job) -> bool:
        """Whether so many would wait with the job that it had better be turned away, unless it is exempt.

        Who enters the batch with the next step does not count as waiting.
        """
        most = self._costs.shed_above
        if most is None or job.priority <= self._costs.shed_exempt:
            return False
        head = self._waiting[0] if self._waiting else job
        slots = self._costs.batch - len(self._running) if self._has_room_for(head) else 0
        return len(self._waiting) + 1 - slots > most

    def admit(self, job: Job, now_ns: int) -> bool:
        """Queue a job; refuse it when so many wait already. `reserved_tokens` must fit an empty cache."""
        queue = self._costs.queue
        if queue is not None and len(self._waiting) >= queue and not self._fits_at_once(job):
            return False
        self._enqueue(job)
        if self._step is None or self._step.idle:
            self._begin(now_ns)
        return True

    def drop(self, job: Job) -> None:
        """Its slot and its KV room are free at once; a step under way still takes the time it takes."""
        if job.over:
            return
        job.over = True
        if job in self._running:
            self._cache_read_tokens(job)
            self._leave_batch(job)
        else:
            self._waiting.remove(job)

    def abandon(self, job: Job) -> None:
        """Its client has left; its room is free as well, unless the engine leaks."""
        leaked_tokens = job.room_tokens if self._costs.leak_kv and not job.over else 0
        self.drop(job)
        self._taken_tokens += leaked_tokens

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
                if self._costs.preempts:
                    job.room_tokens += 1
                    self._taken_tokens += 1
                if job.produced == job.output_tokens:
                    self.drop(job)
            self._begin(step.ends_ns)
            for job in due:
                yield Due(step.ends_ns, job, 1)

    def _enqueue(self, job: Job) -> None:
        if self._waiting and self._waiting[-1].rank > job.rank:
            self._waiting.insert(bisect_right(self._waiting, job.rank, key=lambda waiting: waiting.rank), job)
        else:
            self._waiting.append(job)

    def _leave_batch(self, job: Job) -> None:
        self._running.remove(job)
        self._taken_tokens -= job.room_tokens
        job.room_tokens = 0

    def _fits_at_once(self, job: Job) -> bool:
        return not self._waiting and len(self._running) < self._costs.batch and self._has_room_for(job)

    def _has_room_for(self, job: Job) -> bool:
        growth = len(self._running) + 1 if self._costs.preempts else 0  # a token for everybody must fit as well
        return self._taken_tokens + self._room_of(job) + growth <= self._costs.kv_tokens

    def _room_of(self, job: Job) -> int:
        """KV room that the job takes when it enters the batch."""
        return job.input_tokens + job.produced if self._costs.preempts else job.reserved_tokens

    def _begin(self, at_ns: int) -> None:
        """Start the next step at that instant."""
        if self._costs.preempts:
            self._preempt()
        self._fill_batch(at_ns)
        able = [job for job in self._running if job.held_until_ns <= at_ns]
        if not able:
            self._step = self._idle_after(at_ns)
            return
        decoding = [job for job in able if job.prefilled_tokens >= job.unread_tokens]
        prefilled_tokens, ready = self._prefill([job for job in able if job.prefilled_tokens < job.unread_tokens])
        with_adapter = sum(job.with_adapter for job in able) if self._costs.adapter_s else 0
        ends_ns = at_ns + self._duration_ns(prefilled_tokens, len(decoding), with_adapter)
        self._step = _Step(ends_ns, decoding + ready)

    def _idle_after(self, at_ns: int) -> _Step | None:
        """The wait until a held sequence may go on, or a job that is queued already arrives: looks may be late."""
        instants = [job.held_until_ns for job in self._running] + [job.arrived_ns for job in self._waiting]
        later = [instant for instant in instants if instant > at_ns]
        return _Step(min(later), [], idle=True) if later else None

    def _preempt(self) -> None:
        """Throw the least urgent back into the queue until everybody left has room for one more token."""
        while len(self._running) > 1 and self._taken_tokens + len(self._running) > self._costs.kv_tokens:
            job = max(self._running, key=lambda running: running.rank)
            self._leave_batch(job)
            self._enqueue(job)
            self.tally.preemptions += 1

    def _fill_batch(self, at_ns: int) -> None:
        """Let in who waits, by rank; the first who does not fit stops all behind it."""
        while self._waiting and len(self._running) < self._costs.batch:
            job = next((job for job in self._waiting if job.arrived_ns <= at_ns), None)  # looks may be late
            if job is None or not self._has_room_for(job):
                break  # nobody overtakes
            self._waiting.remove(job)
            self._running.append(job)
            job.room_tokens = self._room_of(job)
            self._taken_tokens += job.room_tokens
            job.unread_tokens, job.prefilled_tokens = job.input_tokens + job.produced, 0
            if job.admitted_ns is None:
                job.admitted_ns = at_ns

    def _prefill(self, unread: list[Job]) -> tuple[int, list[Job]]:
        """Read the next piece of the prompts: how many tokens, and whose prompt is then read whole."""
        budget, ready = self._costs.prefill_chunk_tokens, []
        for job in unread:
            if not job.prefilled_tokens:
                self._find_prefix(job)
            piece = min(budget, job.unread_tokens - job.prefilled_tokens)
            job.prefilled_tokens += piece
            budget -= piece
            self._cache_read_tokens(job)
            if job.prefilled_tokens == job.unread_tokens:
                ready.append(job)
            if not budget:
                break
        return self._costs.prefill_chunk_tokens - budget, ready

    def _find_prefix(self, job: Job) -> None:
        """Skip what is in the cache; looked for when the first piece is read, so that equal neighbours share."""
        if not self._cache.in_use:
            return
        job.prefilled_tokens = self._cache.find(job.blocks, job.unread_tokens)
        if job.cached_tokens is None:  # the first time; what a preempted one finds of its own is no sharing
            job.cached_tokens = job.prefilled_tokens
            self.tally.prefix_queried_tokens += job.input_tokens
            self.tally.prefix_hit_tokens += job.cached_tokens

    def _cache_read_tokens(self, job: Job) -> None:
        if self._cache.in_use:
            read_tokens = job.prefilled_tokens
            if read_tokens >= job.unread_tokens:
                read_tokens = job.input_tokens + job.produced
            job.kept_blocks = self._cache.keep(job.blocks, job.kept_blocks, read_tokens)

    def _duration_ns(self, prefilled_tokens: int, decoding: int, with_adapter: int) -> int:
        costs = self._costs
        duration_s = costs.prefill_s * prefilled_tokens + costs.adapter_s * with_adapter
        if decoding:
            duration_s += costs.decode_s + costs.decode_per_sequence_s * decoding
        if self._jitter_ratio:
            duration_s *= 1 + self._jitter_ratio * (2 * self._draw() - 1)
        return max(1, round(duration_s * NS))
