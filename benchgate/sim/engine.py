"""A continuous-batching engine as a pure simulation: requests arrive, steps take their time, tokens fall out.

Each step decodes one token for every running sequence and reads a bounded piece of the prompts that are still to be
read, as vLLM and SGLang do with chunked prefill. So a long prompt slows every running stream, a full batch or a full
KV cache makes requests wait, and throughput bends as load grows.
"""

from __future__ import annotations

import random
from abc import ABC, abstractmethod
from bisect import bisect_right
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush, heapreplace
from typing import NamedTuple

from benchgate.sim.settings import NS
from benchgate.suite.simulator import SimSettings


@dataclass(slots=True, eq=False)
class Job:
    """A request as a model of time sees it. Instants are monotonic ns.

    `emit(tokens, due_ns)` writes tokens that are due; the models themselves never call it.
    """

    order: int  # of arrival; breaks ties
    arrived_ns: int
    input_tokens: int
    output_tokens: int  # how many it will make
    reserved_tokens: int  # KV room it needs
    emit: Callable[[int, int], None]
    priority: int = 0  # lower goes first
    blocks: tuple[int, ...] = ()  # names of the blocks of the prompt and then of the answer, for a prefix cache
    adapter: str | None = None
    is_read: bool = False  # another server has read the prompt, and its KV cache came along
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
    pauses_after: int = 0  # tokens; those behind come by themselves, however fast, for it may be held in between
    over: bool = False  # everything produced, or dropped

    @property
    def left(self) -> int:
        """Return the number of tokens still to come."""
        return self.output_tokens - self.produced

    @property
    def rank(self) -> tuple[int, int]:
        """Return the sort key of the queue: the lowest goes first."""
        return self.priority, self.order


class Due(NamedTuple):
    """Tokens of a job, and the instant at which they should leave."""

    at_ns: int
    job: Job
    tokens: int


@dataclass(slots=True)
class Tally:
    """Counters of a model of time since it began."""

    preemptions: int = 0
    prefix_queried_tokens: int = 0
    prefix_hit_tokens: int = 0


class Model(ABC):
    """Decides when tokens are due. Pure: time is an argument."""

    def __init__(self) -> None:
        self.tally = Tally()

    @property
    def waiting(self) -> int:
        """Return the number of jobs in the queue."""
        return 0

    @property
    def kv_ratio(self) -> float:
        """Return the used share of the KV cache."""
        return 0.0

    @property
    @abstractmethod
    def running(self) -> int:
        """Return the number of jobs being served."""

    def sheds(self, job: Job) -> bool:
        """Return True if the job must be refused at once, because too many wait."""
        return False

    @abstractmethod
    def admit(self, job: Job, now_ns: int) -> bool:
        """Add a job; return False when the queue is full."""

    @abstractmethod
    def drop(self, job: Job) -> None:
        """Remove a job, whatever its state, and free its KV room at once."""

    def abandon(self, job: Job) -> None:
        """Remove a job whose client has disconnected."""
        self.drop(job)

    def hold(self, job: Job, until_ns: int) -> None:
        """Let the job get nothing before that instant; it keeps its slot and its room."""
        job.held_until_ns = until_ns

    @abstractmethod
    def due_ns(self) -> int | None:
        """Return the instant of the next `take`; None while nothing is under way."""

    @abstractmethod
    def take(self, now_ns: int) -> Iterator[Due]:
        """Yield everything due by `now_ns`, in order of its instant."""


_BURST_TOKENS = 4096  # at one instant, when tokens take no time: an endless answer must not be made in one go
_BURST_GAP_NS = 1_000_000


class ConstantPace(Model):
    """First token `ttft` after the request arrived, then one every `itl`, each stream by itself.

    Each of these times is spread evenly over ±`jitter`. Every instant follows from the one before it, never from the
    instant at which it was taken, so a late server does not shift its own schedule.
    """

    def __init__(self, settings: SimSettings, rng: random.Random) -> None:
        super().__init__()
        self._ttft_ns = round(settings.ttft_s * NS)
        self._itl_ns = round(settings.itl_s * NS)
        self._jitter_ratio = settings.jitter_ratio
        self._draw = rng.random
        self._heap: list[tuple[int, int, Job]] = []  # next instant, order, job: at most one entry a job
        self._running = 0

    @property
    def running(self) -> int:
        """Return the number of jobs with tokens still to come."""
        return self._running

    def admit(self, job: Job, now_ns: int) -> bool:
        """Start the job at once."""
        self._begin(job, job.arrived_ns + self._spread(self._ttft_ns, job))
        return True

    def drop(self, job: Job) -> None:
        """Remove a job; its entry in the heap is thrown away when its time comes."""
        if not job.over:
            job.over = True
            self._running -= 1

    def due_ns(self) -> int | None:
        """Return the next instant of all jobs."""
        return self._heap[0][0] if self._heap else None

    def take(self, now_ns: int) -> Iterator[Due]:
        """Yield one token at a time; with an `itl` of 0 the rest of an answer, if it is not very long, at once."""
        heap = self._heap
        while heap and heap[0][0] <= now_ns:
            at_ns, order, job = heap[0]
            if job.over:
                heappop(heap)
            elif job.held_until_ns > at_ns:
                heapreplace(heap, (job.held_until_ns, order, job))
            else:
                to_pause = job.pauses_after - job.produced
                tokens = 1 if self._itl_ns else min(_BURST_TOKENS, job.left, to_pause if to_pause > 0 else job.left)
                job.produced += tokens
                if job.produced < job.output_tokens:
                    heapreplace(heap, (at_ns + (self._gap_ns(job) or _BURST_GAP_NS), order, job))
                else:
                    heappop(heap)
                    self.drop(job)
                yield Due(at_ns, job, tokens)

    def _begin(self, job: Job, first_ns: int) -> None:
        heappush(self._heap, (first_ns, job.order, job))
        self._running += 1

    def _gap_ns(self, job: Job) -> int:
        return self._spread(self._itl_ns, job)

    def _spread(self, mean_ns: float, job: Job) -> int:
        if self._jitter_ratio:
            mean_ns *= 1 + self._jitter_ratio * (2 * self._draw() - 1)
        return int(mean_ns / job.speed)


class Queue(ConstantPace):
    """First-come-first-served queue before servers that take one request at a time.

    A service that has begun takes its time, whatever becomes of the request. Until the first token: that token comes
    at the end of the service, the others every `itl`. Until the last token: an answer of n tokens has one every nth
    part of its service. With a service until the last token and Poisson arrivals this is M/D/c or M/M/c.
    """

    def __init__(self, settings: SimSettings, rng: random.Random) -> None:
        super().__init__(settings, rng)
        whole = settings.service_until == "last-token"
        if whole:
            self._itl_ns = NS  # any gap: `_gap_ns` computes it
        self._settings = settings
        self._whole = whole
        self._draw_service = rng.expovariate
        self._waiting: deque[Job] = deque()
        self._free_ns = [0] * settings.servers  # a heap: when each server has done what it has begun

    @property
    def waiting(self) -> int:
        """Return the number of requests that no server works on yet."""
        return len(self._waiting)

    def admit(self, job: Job, now_ns: int) -> bool:
        """Queue a job; any number may wait."""
        self._waiting.append(job)
        self._start(now_ns)
        return True

    def drop(self, job: Job) -> None:
        """Remove a job; one that waits makes room for those behind it."""
        if not job.over and job.admitted_ns is None:
            job.over = True
            self._waiting.remove(job)
        else:
            super().drop(job)

    def due_ns(self) -> int | None:
        """Return the instant of the next token, or of the next start of a service."""
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
        return max(self._waiting[0].arrived_ns, self._free_ns[0])

    def _start(self, now_ns: int) -> None:
        while self._waiting and (start_ns := self._starts_ns()) <= now_ns:
            job = self._waiting.popleft()
            drawn = self._draw_service(1.0) if self._settings.service_law == "exponential" else 1.0
            job.admitted_ns, job.service_ns = start_ns, self._spread(drawn * self._settings.service_s * NS, job)
            heapreplace(self._free_ns, start_ns + job.service_ns)
            self._begin(job, start_ns + (self._gap_ns(job) if self._whole else job.service_ns))

    def _gap_ns(self, job: Job) -> int:
        if self._whole and job.service_ns is not None:
            return job.service_ns // job.output_tokens
        return super()._gap_ns(job)


def block_names(words: Sequence[str], block_tokens: int, salt: str) -> tuple[int, ...]:
    """Return a name for each whole block, by all blocks before it and the salt (adapters); valid in this process."""
    names, name = [], hash(salt)
    for end in range(block_tokens, len(words) + 1, block_tokens):
        name = hash((name, *words[end - block_tokens : end]))
        names.append(name)
    return tuple(names)


class PrefixCache:
    """LRU cache of prompt blocks, as vLLM has one. Without room nothing is ever found."""

    def __init__(self, blocks: int, block_tokens: int) -> None:
        self._room = blocks
        self._block_tokens = block_tokens
        self._kept: OrderedDict[int, None] = OrderedDict()

    def __len__(self) -> int:
        return len(self._kept)

    @property
    def in_use(self) -> bool:
        """Return True if there is a cache at all."""
        return self._room > 0

    def find(self, blocks: Sequence[int], input_tokens: int) -> int:
        """Return the cached tokens of the prompt; at least one is left to read, since the answer begins from it."""
        found = 0
        for name in blocks[: max(0, input_tokens - 1) // self._block_tokens]:
            if name not in self._kept:
                break
            self._kept.move_to_end(name)
            found += 1
        return found * self._block_tokens

    def clear(self) -> None:
        """Forget every block."""
        self._kept.clear()

    def keep(self, blocks: Sequence[int], first: int, read_tokens: int) -> int:
        """Add the blocks from number `first` on that were read whole; return how many blocks are kept by now."""
        until = min(len(blocks), read_tokens // self._block_tokens)
        for name in blocks[first:until]:
            self._kept[name] = None
            self._kept.move_to_end(name)
            if len(self._kept) > self._room:
                self._kept.popitem(last=False)
        return max(first, until)


@dataclass(frozen=True, slots=True)
class _Step:
    ends_ns: int
    rewarded: list[Job]
    idle: bool = False  # a wait in which nothing can run


class Engine(Model):
    """Continuous batching: steps follow each other without a gap while there is work, on an absolute schedule."""

    def __init__(self, settings: SimSettings, rng: random.Random) -> None:
        super().__init__()
        self._settings = settings
        self._draw = rng.random
        self._waiting: deque[Job] = deque()  # by rank
        self._running: list[Job] = []  # in order of admission
        self._cache = PrefixCache(settings.prefix_blocks, settings.block_tokens)
        self._admitted = 0
        self._taken_tokens = 0  # KV room of the running, and what has leaked
        self._adapters: dict[str, None] = {}  # in memory, the least recently used first
        self._swaps = 0  # adapters to load in the next step
        self._step: _Step | None = None

    @property
    def running(self) -> int:
        """Return the number of sequences in the batch."""
        return len(self._running)

    @property
    def waiting(self) -> int:
        """Return the number of requests in the queue."""
        return len(self._waiting)

    @property
    def kv_ratio(self) -> float:
        """Return the used share of the KV cache; blocks that only the prefix cache holds count as free."""
        return self._taken_tokens / self._settings.kv_tokens

    def sheds(self, job: Job) -> bool:
        """Return True if too many would wait; those that enter the batch with the next step do not count."""
        most = self._settings.shed_above
        if most is None or job.priority <= self._settings.shed_exempt:
            return False
        head = self._waiting[0] if self._waiting else job
        slots = self._settings.batch - len(self._running) if self._has_room_for(head) else 0
        return len(self._waiting) + 1 - slots > most

    def admit(self, job: Job, now_ns: int) -> bool:
        """Queue a job; refuse it when too many wait. `reserved_tokens` must fit an empty cache."""
        queue = self._settings.queue
        fits_at_once = not self._waiting and len(self._running) < self._settings.batch and self._has_room_for(job)
        if queue is not None and len(self._waiting) >= queue and not fits_at_once:
            return False
        self._enqueue(job)
        self._admitted += 1
        if self._settings.flush_every is not None and self._admitted % self._settings.flush_every == 0:
            self._cache.clear()
        if self._step is None or self._step.idle:
            self._begin(now_ns)
        return True

    def drop(self, job: Job) -> None:
        """Free its slot and its KV room at once; a step under way still takes the time it takes."""
        if job.over:
            return
        job.over = True
        if job in self._running:
            self._cache_read_tokens(job)
            self._leave_batch(job)
        else:
            self._waiting.remove(job)

    def abandon(self, job: Job) -> None:
        """Free its slot and, unless the engine leaks, its KV room: its client has disconnected."""
        leaked_tokens = job.room_tokens if self._settings.leak_kv and not job.over else 0
        self.drop(job)
        self._taken_tokens += leaked_tokens

    def due_ns(self) -> int | None:
        """Return the end of the step under way."""
        return None if self._step is None else self._step.ends_ns

    def take(self, now_ns: int) -> Iterator[Due]:
        """Yield the tokens of every step that has ended by now; the next step begins where the last one ended."""
        while self._step is not None and self._step.ends_ns <= now_ns:
            step = self._step
            due = [job for job in step.rewarded if not job.over and job.held_until_ns <= step.ends_ns]
            for job in due:
                job.produced += 1
                if self._settings.preempts:
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

    def _has_room_for(self, job: Job) -> bool:
        growth = len(self._running) + 1 if self._settings.preempts else 0  # a token for everybody must fit as well
        return self._taken_tokens + self._room_of(job) + growth <= self._settings.kv_tokens

    def _room_of(self, job: Job) -> int:
        return job.input_tokens + job.produced if self._settings.preempts else job.reserved_tokens

    def _begin(self, at_ns: int) -> None:
        if self._settings.preempts:
            # Throw the least urgent back into the queue until everybody left has room for one more token.
            while len(self._running) > 1 and self._taken_tokens + len(self._running) > self._settings.kv_tokens:
                job = max(self._running, key=lambda running: running.rank)
                self._leave_batch(job)
                self._enqueue(job)
                self.tally.preemptions += 1
        self._fill_batch(at_ns)
        able = [job for job in self._running if job.held_until_ns <= at_ns]
        if not able:
            instants = [job.held_until_ns for job in self._running] + [job.arrived_ns for job in self._waiting]
            later = [instant for instant in instants if instant > at_ns]
            self._step = _Step(min(later), [], idle=True) if later else None
            return
        decoding = [job for job in able if job.prefilled_tokens >= job.unread_tokens]
        prefilled_tokens, ready = self._prefill([job for job in able if job.prefilled_tokens < job.unread_tokens])
        with_adapter = sum(job.adapter is not None for job in able) if self._settings.adapter_s else 0
        costs = self._settings
        duration_s = costs.prefill_s * prefilled_tokens + costs.adapter_s * with_adapter
        duration_s, self._swaps = duration_s + costs.adapter_swap_s * self._swaps, 0
        if decoding:
            duration_s += costs.decode_s + costs.decode_per_sequence_s * len(decoding)
        if costs.jitter_ratio:
            duration_s *= 1 + costs.jitter_ratio * (2 * self._draw() - 1)
        self._step = _Step(at_ns + max(1, round(duration_s * NS)), decoding + ready)

    def _fill_batch(self, at_ns: int) -> None:
        """Let in who waits, by rank; the first who does not fit stops all behind it."""
        while self._waiting and len(self._running) < self._settings.batch:
            job = next((job for job in self._waiting if job.arrived_ns <= at_ns), None)  # looks may be late
            if job is None or not self._has_room_for(job):
                break  # nobody overtakes
            self._waiting.remove(job)
            self._running.append(job)
            if job.adapter is not None:
                self._load_adapter(job.adapter)
            job.room_tokens = self._room_of(job)
            self._taken_tokens += job.room_tokens
            job.unread_tokens, job.prefilled_tokens = job.input_tokens + job.produced, 0
            if job.is_read and job.admitted_ns is None:
                job.prefilled_tokens = job.unread_tokens
            if job.admitted_ns is None:
                job.admitted_ns = at_ns

    def _load_adapter(self, name: str) -> None:
        self._swaps += name not in self._adapters
        self._adapters.pop(name, None)
        self._adapters[name] = None  # the most recently used one is last
        if self._settings.adapter_slots is not None and len(self._adapters) > self._settings.adapter_slots:
            del self._adapters[next(iter(self._adapters))]

    def _prefill(self, unread: list[Job]) -> tuple[int, list[Job]]:
        """Read the next piece of the prompts: how many tokens, and whose prompt is then read whole."""
        budget, ready = self._settings.prefill_chunk_tokens, []
        for job in unread:
            if not job.prefilled_tokens and self._cache.in_use:  # only now, so that equal neighbours share
                job.prefilled_tokens = self._cache.find(job.blocks, job.unread_tokens)
                if job.cached_tokens is None:  # the first time; what a preempted one finds of its own is no sharing
                    job.cached_tokens = job.prefilled_tokens
                    self.tally.prefix_queried_tokens += job.input_tokens
                    self.tally.prefix_hit_tokens += job.cached_tokens
            piece = min(budget, job.unread_tokens - job.prefilled_tokens)
            job.prefilled_tokens += piece
            budget -= piece
            self._cache_read_tokens(job)
            if job.prefilled_tokens == job.unread_tokens:
                ready.append(job)
            if not budget:
                break
        return self._settings.prefill_chunk_tokens - budget, ready

    def _cache_read_tokens(self, job: Job) -> None:
        if self._cache.in_use:
            read_tokens = job.prefilled_tokens
            if read_tokens >= job.unread_tokens:
                read_tokens = job.input_tokens + job.produced
            job.kept_blocks = self._cache.keep(job.blocks, job.kept_blocks, read_tokens)
