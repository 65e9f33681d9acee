"""Choice of the recorded agent sessions of each block, and their planned requests.

The seed draws one order of the sessions of a file. The warm-up and then the blocks take them in turn, each class as
many as have its `requests`, and begin again after the last. The last session of a block is cut to fit.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from benchgate.model.records import IntArray
from benchgate.plan.model import Material, RecordedSession
from benchgate.plan.prompts import WARMUP
from benchgate.plan.requests import POOL_UNITS
from benchgate.suite.load import Load, TrafficClass, first_round_of

_SESSIONS = 0x5E55  # random stream of their order


def sessions_of_block(
    load: Load, traffic: TrafficClass, material: Material, seed: int, block: int, count: int | None = None
) -> tuple[list[RecordedSession], list[RecordedSession]] | None:
    """Return the sessions that a class of traffic sends in a block, and those for its ramp; None without any.

    The ramp has sessions that no block sends, if any, each block beginning at another one. Otherwise they are those
    that this block does not send, most recently sent first, or all of a file that one block sends completely. Later
    warm-up rounds send `count` requests of the sessions that the blocks use last.
    """
    name = traffic.workload.sessions
    if name is None:
        return None
    sessions = material.sessions[name]
    generator = np.random.default_rng([seed, _SESSIONS])
    order = generator.permutation(len(sessions))
    users = [one for one in load.classes() if one.workload.sessions == name]
    place = [one.name for one in users].index(traffic.name)
    first_rounds = [first_round_with(load, one, material) for one in users]
    each = [one.schedule.requests for one in users]
    own = len(users) * (block + 1) + place
    needs = [*first_rounds, *each * max(load.blocks, block + 1)]
    if block < WARMUP:
        order, needs, own = order[::-1], first_rounds, place
    if count is not None:
        needs[own] = count
    starts = _starts(sessions, order, needs)

    def between(first: int, end: int) -> list[int]:
        return [int(order[at % len(order)]) for at in range(first, end)]

    taken = cut_to([sessions[one] for one in between(starts[own], starts[own + 1])], needs[own])
    unsent = order[starts[-1] :]
    if len(unsent):
        per_class = POOL_UNITS * (traffic.schedule.concurrency or traffic.schedule.requests)
        return taken, [sessions[one] for one in np.roll(unsent, -(block * len(users) + place) * per_class)]
    first = starts[own - place]
    here = set(between(first, starts[own - place + len(users)]))
    before = between(first - len(order), first)[::-1]
    return taken, [sessions[one] for one in before if one not in here] or [sessions[one] for one in before]


def first_round_with(load: Load, traffic: TrafficClass, material: Material) -> int:
    """Return how many requests the first warm-up round sends: of recorded sessions as many as fill every slot."""
    if traffic.workload.sessions is None:
        return first_round_of(load.warmup, traffic)
    sessions = material.sessions[traffic.workload.sessions]
    return first_round_of(load.warmup, traffic, sum(len(one.calls) for one in sessions) / len(sessions))


def _starts(sessions: Sequence[RecordedSession], order: IntArray, needs: Sequence[int]) -> list[int]:
    """Return the place in the order where each need begins, and where the last one ends.

    Each takes whole sessions that together have so many calls, and the order begins again after the last one.
    """
    ends = np.cumsum([len(sessions[one].calls) for one in order])
    starts = [0]
    for calls in needs:
        rounds, at = divmod(starts[-1], len(order))
        rounds, left = divmod(rounds * int(ends[-1]) + (int(ends[at - 1]) if at else 0) + calls, int(ends[-1]))
        starts.append(rounds * len(order) + (int(np.searchsorted(ends, left)) + 1 if left else 0))
    return starts


def cut_to(sessions: Sequence[RecordedSession], calls: int) -> list[RecordedSession]:
    """Cut the last session, so that all together have so many calls. What is kept depends on nothing behind it."""
    *whole, last = sessions
    left = calls - sum(len(session.calls) for session in whole)
    return [*whole, replace(last, calls=last.calls[:left])]
