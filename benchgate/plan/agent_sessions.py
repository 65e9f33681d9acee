"""Choice of the recorded agent sessions of each block, and their planned requests.

The seed draws one order of the sessions of a file. The warm-up and then the blocks take them in turn, each class as
many as have its `requests`, and begin again after the last. The last session of a block is cut to fit.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from benchgate.plan.model import Material, RecordedSession
from benchgate.plan.prompts import WARMUP
from benchgate.suite.load import Load, TrafficClass, first_round_of

_SESSIONS = 0x5E55  # random stream of their order


def sessions_of_block(
    load: Load, traffic: TrafficClass, material: Material, seed: int, block: int, count: int | None = None
) -> tuple[list[RecordedSession], list[RecordedSession]] | None:
    """Return the sessions that a class of traffic sends in a block, and the others, for its ramp; None without any.

    Later warm-up rounds send `count` requests of the sessions that the blocks use last.
    """
    name = traffic.workload.sessions
    if name is None:
        return None
    sessions = material.sessions[name]
    generator = np.random.default_rng([seed, _SESSIONS])
    order = generator.permutation(len(sessions)).tolist()
    users = [one for one in load.classes() if one.workload.sessions == name]
    place = [one.name for one in users].index(traffic.name)
    first_rounds = [first_round_of(load.warmup, one) for one in users]
    needs = [*first_rounds, *(one.schedule.requests for _ in range(max(0, block + 1)) for one in users)]
    own = place if block == WARMUP else len(users) * (block + 1) + place
    if block < WARMUP:
        order, needs, own = order[::-1], first_rounds, place
    if count is not None:
        needs[own] = count
    at = 0
    for calls in needs[:own]:
        at += len(_taken(sessions, order, at, calls))
    taken = _taken(sessions, order, at, needs[own])
    sent = set(taken)
    others = [sessions[one] for one in order if one not in sent] or [sessions[one] for one in order]
    return cut_to([sessions[one] for one in taken], needs[own]), others


def _taken(sessions: Sequence[RecordedSession], order: Sequence[int], at: int, calls: int) -> list[int]:
    """Return the sessions from place `at` of the order on that together have so many calls."""
    taken: list[int] = []
    while calls > 0:
        taken.append(order[(at + len(taken)) % len(order)])
        calls -= len(sessions[taken[-1]].calls)
    return taken


def cut_to(sessions: Sequence[RecordedSession], calls: int) -> list[RecordedSession]:
    """Cut the last session, so that all together have so many calls. What is kept depends on nothing behind it."""
    *whole, last = sessions
    left = calls - sum(len(session.calls) for session in whole)
    return [*whole, replace(last, calls=last.calls[:left])]
