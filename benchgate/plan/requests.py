"""The requests of one level: of a stage, or of one class of it, in one block."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from benchgate.model.request import Ask
from benchgate.plan.arrivals import TracedRequest, arrival_offsets_ns, mean_rps, profile_offsets_ns, replayed_offsets_ns
from benchgate.plan.model import Leave, Material, PlannedClass, PlannedRequest, Recorded, Turn
from benchgate.plan.prompts import Asking, Texts, drawn_length, drawn_lengths, drawn_pause_s, vocabulary_of
from benchgate.suite.stages import Level

_SEEDS = 2**31


@dataclass(frozen=True, slots=True)
class Group:
    """What the requests of a level are made of in one block, or in a round of the warm-up (`block` is -1 or below).

    `rows` are the rows of its trace and `recorded` those of its prompts that are sent this time; None without any.
    """

    level: Level
    material: Material
    seed: int
    block: int
    generator: np.random.Generator
    rows: Sequence[TracedRequest] | None = None
    recorded: Sequence[Recorded] | None = None


def planned_class(group: Group, count: int | None = None) -> PlannedClass:
    """The class with as many requests as its level says, at its course; with `count`, that many at its mean rate."""
    course, workload, rows = group.level.course, group.level.workload, group.rows
    wanted = course.requests if count is None else count
    if workload.session is not None:
        turns = _turns(group, wanted)
        requests, rate_rps = _conversing(group, turns, _at_mean_rate(group, len(turns))), course.mean_rps
    elif rows is not None:
        offsets = replayed_offsets_ns(rows, course.speed or 1.0)
        requests, rate_rps = _requests(group, offsets), mean_rps(offsets)
    else:
        profile = course.profile if count is None else None
        if profile is not None:
            spread: Sequence[int | None] = profile_offsets_ns(course.process, profile, group.generator)
        else:
            spread = _at_mean_rate(group, wanted)
        requests, rate_rps = _requests(group, spread), course.mean_rps
    return PlannedClass(
        name=group.level.group,
        concurrency=course.concurrency,
        rate_rps=rate_rps,
        requests=_leaving(group, requests),
        background=group.level.background,
        vocabulary=vocabulary_of(workload, group.material),
        noise=workload.images is not None and not workload.images.files,
    )


def drawn_requests(group: Group, offsets: Sequence[int | None]) -> tuple[PlannedRequest, ...]:
    """Return requests, or whole conversations, that begin at these instants; None for slots of a closed loop."""
    if group.level.workload.session is None:
        return _leaving(group, _requests(group, offsets))
    return _leaving(group, _conversing(group, list(itertools.islice(_turn_counts(group), len(offsets))), offsets))


def _at_mean_rate(group: Group, count: int) -> Sequence[int | None]:
    """That many sends at one level rate; without instants in a closed loop."""
    course = group.level.course
    if course.mean_rps is None:
        return [None] * count
    return arrival_offsets_ns(course.process.process, course.mean_rps, count, group.generator, cv=course.process.cv)


def _requests(group: Group, offsets: Sequence[int | None]) -> tuple[PlannedRequest, ...]:
    """Single requests at these instants."""
    asks = _asks(group, len(offsets))
    return tuple(
        PlannedRequest(index, offset, ask, int(group.generator.integers(_SEEDS)))
        for index, (offset, ask) in enumerate(zip(offsets, asks, strict=True))
    )


def _asks(group: Group, count: int) -> Iterator[Ask]:
    """What single requests ask, made one by one: recorded, by a row of a trace, or of the workload's lengths."""
    workload, generator = group.level.workload, group.generator
    asking = Asking.of(workload, group.material)
    lengths = drawn_lengths(workload, group.material, generator)
    if group.recorded is not None:
        for told in group.recorded:
            yield asking.recorded(told, told.messages, next(lengths)[1])
        return
    texts = Texts.of(workload, group.material, group.seed, group.block, group.level.course.block_tokens)
    for row in group.rows if group.rows is not None else [TracedRequest(0, None, None)] * count:
        input_tokens, output_tokens = next(lengths)
        input_tokens = row.input_tokens or input_tokens
        if row.hash_ids:
            prompt = texts.hashed(row.hash_ids, input_tokens, generator)
        else:
            prompt = texts.prompt(input_tokens, generator)
        output_tokens = None if output_tokens is None else row.output_tokens or output_tokens
        yield asking.made_up(texts, prompt, output_tokens, generator)


def _conversing(group: Group, turns: Sequence[int], offsets: Iterable[int | None]) -> tuple[PlannedRequest, ...]:
    """Conversations of so many turns each."""
    requests: list[PlannedRequest] = []
    for number, (length, offset) in enumerate(zip(turns, offsets, strict=True)):
        for turn, ask in enumerate(_conversation(group, number, length)):
            requests.append(
                PlannedRequest(
                    index=len(requests),
                    offset_ns=offset if turn == 0 else None,
                    ask=ask,
                    seed=int(group.generator.integers(_SEEDS)),
                    turn=Turn(number, turn, turn == length - 1, _think_s(group, turn), carries=turn > 0),
                )
            )
    return tuple(requests)


def _turns(group: Group, count: int) -> list[int]:
    """How many turns each conversation has, `count` of them together: the last one is cut where it would be more."""
    turns, lengths = list[int](), _turn_counts(group)
    while count > 0:
        turns.append(min(next(lengths), count))
        count -= turns[-1]
    return turns


def _turn_counts(group: Group) -> Iterator[int]:
    """How many turns one conversation after the other has; without end where they are not recorded."""
    session = group.level.workload.session
    assert session is not None
    for number in itertools.count():
        length = drawn_length(session.turns, group.generator)
        yield length if group.recorded is None else min(length, len(spoken(group.recorded[number])))


def _conversation(group: Group, number: int, turns: int) -> Iterator[Ask]:
    workload, generator = group.level.workload, group.generator
    asking = Asking.of(workload, group.material)
    lengths = drawn_lengths(workload, group.material, generator)
    if group.recorded is not None:
        row = group.recorded[number]
        for turn in range(turns):
            yield asking.recorded(row, told_until(row, turn), next(lengths)[1])
        return
    texts, said = Texts.of(workload, group.material, group.seed, group.block), list[str]()
    for _ in range(turns):
        input_tokens, output_tokens = next(lengths)
        said.append(texts.own(input_tokens, generator) if said else texts.prompt(input_tokens, generator))
        yield asking.talk(said, output_tokens, generator)


def spoken(row: Recorded) -> list[int]:
    """The places of the user's messages in a recorded conversation."""
    return [place for place, message in enumerate(row.messages) if message.get("role") == "user"]


def told_until(row: Recorded, turn: int) -> list[dict[str, object]]:
    """What the user has said up to a turn, with a place for the answer to each earlier one.

    Recorded answers, and what tools said in them, are left out: they belong to a model that is not asked here.
    """
    told: list[dict[str, object]] = []
    for message in row.messages[: spoken(row)[turn] + 1]:
        if message.get("role") == "user" and any(one.get("role") == "user" for one in told):
            told.append({"role": "assistant", "content": None})
        if message.get("role") in ("user", "system", "developer"):
            told.append(dict(message))
    return told


def _think_s(group: Group, turn: int) -> float:
    session = group.level.workload.session
    if session is None or session.think is None or turn == 0:
        return 0.0
    return drawn_pause_s(session.think, group.generator)


def _leaving(group: Group, requests: tuple[PlannedRequest, ...]) -> tuple[PlannedRequest, ...]:
    """A share of the requests with clients that go away; of conversations in their last turn, which none follows."""
    leave = group.level.workload.leave
    if leave is None:
        return requests
    may = [place for place, request in enumerate(requests) if request.turn is None or request.turn.last]
    chosen = group.generator.choice(len(may), size=round(leave.share_ratio * len(may)), replace=False).tolist()
    gone = {may[place] for place in chosen}
    going = Leave(leave.after_tokens, leave.after_s)
    return tuple(replace(r, leave=going) if place in gone else r for place, r in enumerate(requests))
