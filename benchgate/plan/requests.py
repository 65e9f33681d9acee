"""Requests and conversations of one class of traffic in one block, and its ramp.

"Steady state" in docs/reference/metrics.md defines the ramp.

The ramp's requests bring the class into steady state. They are not part of a plan's identity: they follow from the same
seed by a random stream of their own, and are drawn when a stage is sent. None has the prompt of a measured request,
which would then be in a prefix cache.
"""

from __future__ import annotations

import itertools
import math
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import overload

import numpy as np

from benchgate.model.arrivals import TracedRequest, mean_rps, replayed_offsets_ns
from benchgate.model.records import IntArray
from benchgate.model.request import MediaKind, ModelRequest
from benchgate.plan.arrivals import arrival_blocks_ns, arrival_offsets_ns, profile_offsets_ns, ramp_offsets_ns
from benchgate.plan.model import (
    ClientCancellation,
    GeneratedRequests,
    Material,
    PlannedClass,
    PlannedRequest,
    RecordedRequest,
    RecordedSession,
    SessionCall,
    Turn,
)
from benchgate.plan.prompts import (
    RequestBuilder,
    SyntheticTexts,
    draw_length,
    draw_lengths,
    draw_pause_s,
    vocabulary_of,
)
from benchgate.plan.salt import Salter
from benchgate.plan.slot_share import SlotShare
from benchgate.suite.load import TrafficClass
from benchgate.suite.workload import AdapterMix, Workload

_SEEDS = 2**31
_SENDS, _CONTENT = 0, 1  # random streams of requests that are not listed


@dataclass(frozen=True, slots=True)
class RequestGroup:
    """Material of the requests of a class of traffic in one block, or in a warm-up round (`block` below 0)."""

    traffic: TrafficClass
    material: Material
    seed: int
    block: int
    generator: np.random.Generator
    rows: Sequence[TracedRequest] | None = None  # of a trace, sent this time
    recorded: Sequence[RecordedRequest] | None = None  # prompts sent this time
    sessions: Sequence[RecordedSession] | None = None  # agent sessions sent this time
    drawn_by: tuple[int, ...] = ()  # seeds of the generator


def planned_class(group: RequestGroup, count: int | None = None) -> PlannedClass:
    """Plan a class with its number of requests and rate; with `count`, that many at its mean rate."""
    schedule, workload, rows = group.traffic.schedule, group.traffic.workload, group.rows
    planned = schedule.requests if count is None else count
    if not group.traffic.is_listed:
        return _class(group, KeyedRequests(group, range(planned), group.drawn_by), schedule.mean_rps)
    if group.sessions is not None:
        requests = _session_calls(group, group.sessions, _at_mean_rate(group, len(group.sessions)))
        rate_rps = schedule.mean_rps
    elif workload.session is not None:
        turns = _turns(group, planned)
        requests, rate_rps = _conversations(group, turns, _at_mean_rate(group, len(turns))), schedule.mean_rps
    elif rows is not None:
        offsets = replayed_offsets_ns(rows, schedule.speed or 1.0)
        requests, rate_rps = _requests(group, offsets), mean_rps(offsets)
    else:
        profile = schedule.profile if count is None else None
        if profile is not None:
            sends: Sequence[int | None] = profile_offsets_ns(schedule.process, profile, group.generator)
        else:
            sends = _at_mean_rate(group, planned)
        requests, rate_rps = _requests(group, sends), schedule.mean_rps
    return _class(group, _with_cancellations(group, requests), rate_rps)


def _class(group: RequestGroup, requests: Sequence[PlannedRequest], rate_rps: float | None) -> PlannedClass:
    workload, schedule = group.traffic.workload, group.traffic.schedule
    stated_rps = schedule.mean_rps if schedule.profile is None else schedule.profile.peak_rps
    return PlannedClass(
        name=group.traffic.class_name or "",
        concurrency=schedule.concurrency,
        rate_rps=rate_rps,
        requests=requests,
        background=group.traffic.is_background,
        vocabulary=vocabulary_of(workload, group.material),
        generated=generated_media(workload),
        stated_peak_rps=stated_rps if group.rows is None else None,
    )


def generated_media(workload: Workload) -> frozenset[MediaKind]:
    """Return the kinds of media that a workload generates."""
    return frozenset(kind for kind, media in workload.media.items() if not media.files)


def _at_mean_rate(group: RequestGroup, count: int) -> Sequence[int | None]:
    """Draw `count` sends at the mean rate; without times in a closed loop."""
    schedule = group.traffic.schedule
    if schedule.mean_rps is None:
        return [None] * count
    return arrival_offsets_ns(
        schedule.process.process, schedule.mean_rps, count, group.generator, cv=schedule.process.cv
    )


def _requests(group: RequestGroup, offsets: Sequence[int | None]) -> tuple[PlannedRequest, ...]:
    asks = _asks(group, len(offsets))
    return tuple(
        PlannedRequest(index, offset, _for_adapter(group, index, ask), int(group.generator.integers(_SEEDS)))
        for index, (offset, ask) in enumerate(zip(offsets, asks, strict=True))
    )


def _for_adapter(group: RequestGroup, index: int, ask: ModelRequest) -> ModelRequest:
    """Return the request with the adapter that is drawn for it; as it is if there are not several."""
    if not isinstance(group.traffic.workload.adapter, AdapterMix):
        return ask
    return replace(ask, model=group.traffic.adapter_of(group.seed, group.block, index))


@dataclass(frozen=True, slots=True)
class KeyedRequests(GeneratedRequests):
    """Single requests of a class too large to be listed. A request is drawn from a generator of its own number."""

    group: RequestGroup
    numbers: Sequence[int]
    drawn_by: tuple[int, ...]
    salt: int = 0

    def __len__(self) -> int:
        return len(self.numbers)

    @overload
    def __getitem__(self, place: int) -> PlannedRequest: ...
    @overload
    def __getitem__(self, place: slice) -> KeyedRequests: ...
    def __getitem__(self, place: int | slice) -> PlannedRequest | KeyedRequests:
        if isinstance(place, slice):
            return replace(self, numbers=self.numbers[place])
        return next(iter(replace(self, numbers=range(self.numbers[place], self.numbers[place] + 1))))

    def __iter__(self) -> Iterator[PlannedRequest]:
        draw = self._drawer()
        if self.group.traffic.schedule.mean_rps is None:
            yield from (draw(number, None) for number in self.numbers)
            return
        first = 0  # number of the block's first send
        for block in self.offset_blocks_ns():
            inside = self.numbers[bisect_left(self.numbers, first) : bisect_left(self.numbers, first + len(block))]
            for number in inside:
                yield draw(number, int(block[number - first]))
            first += len(block)

    def offset_blocks_ns(self) -> Iterator[IntArray]:
        """Yield the intended sends from the class's first request on, many at a time; nothing for a closed loop."""
        schedule = self.group.traffic.schedule
        if schedule.mean_rps is not None and self.numbers:
            generator, process = np.random.default_rng([*self.drawn_by, _SENDS]), schedule.process
            yield from arrival_blocks_ns(
                process.process, schedule.mean_rps, max(self.numbers) + 1, generator, cv=process.cv
            )

    def find(self) -> Callable[[int], PlannedRequest | None]:
        """Return a function that finds the request of a number, without its send time; None for any other number."""
        draw = self._drawer()
        return lambda number: draw(number, None) if number in self.numbers else None

    def share(self, share: SlotShare) -> KeyedRequests:
        """Return a worker's share of all requests of a class."""
        return replace(self, numbers=share.numbers(len(self.numbers)))

    def salted(self, salt: int) -> KeyedRequests:
        """Return the same requests with salted prompts."""
        return replace(self, salt=salt)

    def _drawer(self) -> Callable[[int, int | None], PlannedRequest]:
        group, workload = self.group, self.group.traffic.workload
        builder = RequestBuilder.of(workload, group.material)
        texts = SyntheticTexts.of(workload, group.material, group.seed, group.block)
        salter = None
        if self.salt:
            salter = Salter(self.salt, vocabulary_of(workload, group.material), generated_media(workload))

        def draw(number: int, offset_ns: int | None) -> PlannedRequest:
            generator = np.random.default_rng([*self.drawn_by, _CONTENT, number])
            input_tokens, output_tokens = next(draw_lengths(workload, group.material, generator))
            ask = builder.made_up(texts, texts.prompt(input_tokens, generator), output_tokens, generator)
            ask = _for_adapter(group, number, ask)
            request = PlannedRequest(number, offset_ns, ask, int(generator.integers(_SEEDS)))
            return request if salter is None else salter.request(request)

        return draw


def _asks(group: RequestGroup, count: int) -> Iterator[ModelRequest]:
    """Yield contents of single requests: recorded, by trace rows, or by the workload's lengths."""
    workload, generator = group.traffic.workload, group.generator
    builder = RequestBuilder.of(workload, group.material)
    lengths = draw_lengths(workload, group.material, generator)
    if group.recorded is not None:
        for recorded in group.recorded:
            yield builder.recorded(recorded, recorded.single_messages, next(lengths)[1])
        return
    texts = SyntheticTexts.of(workload, group.material, group.seed, group.block, group.traffic.schedule.block_tokens)
    for row in group.rows if group.rows is not None else [TracedRequest(0, None, None)] * count:
        input_tokens, output_tokens = next(lengths)
        input_tokens = row.input_tokens or input_tokens
        if row.hash_ids:
            prompt = texts.hashed(row.hash_ids, input_tokens, generator)
        else:
            prompt = texts.prompt(input_tokens, generator)
        output_tokens = None if output_tokens is None else row.output_tokens or output_tokens
        yield builder.made_up(texts, prompt, output_tokens, generator)


def _conversations(
    group: RequestGroup, turns: Sequence[int], offsets: Iterable[int | None]
) -> tuple[PlannedRequest, ...]:
    requests: list[PlannedRequest] = []
    workload, generator = group.traffic.workload, group.generator
    builder, session = RequestBuilder.of(workload, group.material), workload.session
    for number, (length, offset) in enumerate(zip(turns, offsets, strict=True)):
        lengths = draw_lengths(workload, group.material, generator)
        texts, messages = SyntheticTexts.of(workload, group.material, group.seed, group.block), list[str]()
        for turn in range(length):
            input_tokens, output_tokens = next(lengths)
            if group.recorded is not None:
                row = group.recorded[number]
                ask = builder.recorded(row, messages_until(row, turn), output_tokens)
            else:
                own = texts.own(input_tokens, generator) if messages else texts.prompt(input_tokens, generator)
                messages.append(own)
                ask = builder.turn(messages, output_tokens, generator)
            seed, think_s = int(generator.integers(_SEEDS)), 0.0
            if session is not None and session.think is not None and turn > 0:
                think_s = draw_pause_s(session.think, generator)
            place = Turn(number, turn, turn == length - 1, think_s, carries=turn > 0)
            ask = _for_adapter(group, len(requests), ask)
            requests.append(PlannedRequest(len(requests), offset if turn == 0 else None, ask, seed, place))
    return tuple(requests)


def _session_calls(
    group: RequestGroup, sessions: Sequence[RecordedSession], offsets: Iterable[int | None]
) -> tuple[PlannedRequest, ...]:
    requests: list[PlannedRequest] = []
    workload, generator = group.traffic.workload, group.generator
    builder = RequestBuilder.of(workload, group.material)
    lengths = draw_lengths(workload, group.material, generator)
    for number, (session, offset) in enumerate(zip(sessions, offsets, strict=True)):
        texts = SyntheticTexts.of(workload, group.material, group.seed, group.block, session.block_tokens)
        for turn, call in enumerate(session.calls):
            request, output_tokens = call.request, next(lengths)[1]
            if isinstance(request, RecordedRequest):
                ask = builder.recorded(request, request.messages, output_tokens)
            else:
                prompt = texts.hashed(request.hash_ids, request.input_tokens or 1, generator)
                ask = builder.made_up(texts, prompt, request.output_tokens or output_tokens, generator)
            last, carries = turn == len(session.calls) - 1, bool(call.filled_with)
            place = SessionCall(number, turn, last, call.wait_s, carries, call.after, call.filled_with)
            seed = int(generator.integers(_SEEDS))
            requests.append(PlannedRequest(len(requests), offset if turn == 0 else None, ask, seed, place))
    return tuple(requests)


def _turns(group: RequestGroup, count: int) -> list[int]:
    """Draw the turns of conversations, `count` in total; the last conversation is shortened to fit."""
    turns, lengths = list[int](), _turn_counts(group)
    while count > 0:
        turns.append(min(next(lengths), count))
        count -= turns[-1]
    return turns


def _turn_counts(group: RequestGroup) -> Iterator[int]:
    """Yield the turns of successive conversations; without end if they are not recorded."""
    session = group.traffic.workload.session
    assert session is not None
    for number in itertools.count():
        length = draw_length(session.turns, group.generator)
        yield length if group.recorded is None else min(length, len(user_turns(group.recorded[number])))


def user_turns(row: RecordedRequest) -> list[int]:
    """Return the positions of the user's messages in a recorded conversation."""
    return [place for place, message in enumerate(row.messages) if message.get("role") == "user"]


def messages_until(row: RecordedRequest, turn: int) -> list[dict[str, object]]:
    """Return the messages up to a user's turn, with a slot for the answer to each earlier one.

    Recorded answers and tool results are left out, because they came from another model.
    """
    messages: list[dict[str, object]] = []
    for message in row.messages[: user_turns(row)[turn] + 1]:
        if message.get("role") == "user" and any(one.get("role") == "user" for one in messages):
            messages.append({"role": "assistant", "content": None})
        if message.get("role") in ("user", "system", "developer"):
            messages.append(dict(message))
    return messages


def _with_cancellations(group: RequestGroup, requests: tuple[PlannedRequest, ...]) -> tuple[PlannedRequest, ...]:
    """Let the client cancel a share of the requests; in conversations only the last turn, which none follows."""
    leave = group.traffic.workload.leave
    if leave is None:
        return requests
    eligible = [place for place, request in enumerate(requests) if request.turn is None or request.turn.last]
    leaving = math.ceil(round(leave.share_ratio * len(eligible), 9))  # one at least, so that a small share is measured
    drawn = group.generator.choice(len(eligible), size=leaving, replace=False)
    chosen = {eligible[place] for place in drawn.tolist()}
    cancellation = ClientCancellation(leave.after_tokens, leave.after_s)
    return tuple(replace(r, leave=cancellation) if place in chosen else r for place, r in enumerate(requests))


POOL_UNITS = 4  # Distinct requests, or conversations, per slot of a closed loop. They repeat when more are needed.
_STREAM = 0x5A3_7EAD  # random stream of the ramp
_MOST_OF_A_TAIL = 100_000  # requests, which are all made beforehand
_LONGEST_TAIL = 3.0  # times the measured schedule of an open loop
_LEAST_TAIL = 5.0  # service times for which an open loop at least continues after its last measured request
_CLOSED_LEAD = 2.5  # service times until every slot of a closed loop has begun and completed a request


@dataclass(frozen=True, slots=True)
class Ramp:
    """Source of the ramp requests of one class in one block."""

    group: RequestGroup
    seeds: tuple[int, ...]
    service_times: float  # length of the lead
    spare: Sequence[RecordedRequest] | None = None  # recorded prompts that it may send; None: synthetic

    @classmethod
    def of(cls, group: RequestGroup, seeds: Sequence[int], spare: Sequence[RecordedRequest] | None) -> Ramp | None:
        """Return the ramp of a class; None for one without ramp (`keeps_edges`)."""
        if has_no_ramp(group.traffic):
            return None
        schedule = group.traffic.schedule
        service_times = schedule.ramp_service_times if schedule.is_open else _CLOSED_LEAD
        return cls(group, (*seeds, _STREAM), service_times, spare)

    @property
    def size(self) -> int:
        """Approximate number of distinct requests of a closed loop's ramp; 0 for an open loop, whose ramp is a time."""
        schedule, session = self.group.traffic.schedule, self.group.traffic.workload.session
        turns: float = session.turns if session is not None and isinstance(session.turns, int) else 1
        if (sessions := self.group.sessions) is not None:
            turns = sum(len(one.calls) for one in sessions) / len(sessions)
        return round(POOL_UNITS * (schedule.concurrency or 0) * turns)

    @property
    def lead_size(self) -> int:
        """About the least number of requests before a closed loop is measured, one a slot that no client leaves.

        0 for an open loop.
        """
        leave = self.group.traffic.workload.leave
        return math.floor(self.size // POOL_UNITS * (1 - (leave.share_ratio if leave is not None else 0)))

    def pool(self) -> Sequence[PlannedRequest]:
        """Draw the requests that the slots of a closed loop repeat; numbers begin at 0."""
        if not self.group.traffic.is_listed:
            return KeyedRequests(self.group, range(self.size), (*self.seeds, 2))
        return self._drawn([None] * (POOL_UNITS * (self.group.traffic.schedule.concurrency or 0)))

    def arrivals(self, lead_s: float, service_s: float, last_ns: int, least_s: float) -> tuple[PlannedRequest, ...]:
        """Draw the arrivals of an open loop's ramp by its own process, in order; numbers begin at 0.

        Those before `lead_s` come first. The measured schedule begins there and has its last arrival `last_ns` later.
        Then the process continues for the lead's number of service times, at least five, and until `least_s` after its
        first one: other classes of the stage may be measured for longer. To wait for them, it lasts at most three times
        as long as the measured schedule, and has about 100,000 requests at most.
        """
        schedule = self.group.traffic.schedule
        assert schedule.mean_rps is not None, "an open loop at a level rate"
        last_s = last_ns * 1e-9
        most_s = min(_LONGEST_TAIL * last_s, _MOST_OF_A_TAIL / schedule.mean_rps)
        tail_s = max(max(self.service_times, _LEAST_TAIL) * service_s, min(least_s - last_s, most_s))
        return self._drawn(ramp_offsets_ns(schedule.process, schedule.mean_rps, lead_s, tail_s, last_ns, self.seeds))

    def _drawn(self, offsets: Sequence[int | None]) -> tuple[PlannedRequest, ...]:
        spare = self.spare
        recorded = None if spare is None else [spare[unit % len(spare)] for unit in range(len(offsets))]
        group = replace(self.group, generator=np.random.default_rng([*self.seeds, 2]), recorded=recorded)
        if (sessions := group.sessions) is not None:
            units = [sessions[unit % len(sessions)] for unit in range(len(offsets))]
            return _session_calls(group, units, offsets)
        if group.traffic.workload.session is None:
            return _with_cancellations(group, _requests(group, offsets))
        turns = list(itertools.islice(_turn_counts(group), len(offsets)))
        return _with_cancellations(group, _conversations(group, turns, offsets))


def has_no_ramp(traffic: TrafficClass) -> bool:
    """Return True for traffic whose beginning and end are part of the measurement: it has no ramp.

    These are an open loop with a varying rate or a trace, background traffic, a stage with actions, whose times count
    from its start, and an open loop with `ramp: 0`.
    """
    schedule = traffic.schedule
    if traffic.is_background or traffic.has_actions:
        return True
    return schedule.concurrency is None and (not schedule.is_level_rate or schedule.ramp_service_times == 0)
