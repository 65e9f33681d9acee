"""Many requests at once: each is served in its turn, and the loop comes round in between."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from functools import partial

from benchgate.sim.http_server import Turns


def in_a_loop(scenario: Callable[[Turns], None], turns_of_the_loop: int) -> list[dict[str, object]]:
    """What the loop's exception handler was told."""

    async def run() -> list[dict[str, object]]:
        told = list[dict[str, object]]()
        asyncio.get_running_loop().set_exception_handler(lambda _, context: told.append(context))
        scenario(Turns())
        for _ in range(turns_of_the_loop):
            await asyncio.sleep(0)
        return told

    return asyncio.run(run())


def test_each_is_served_in_its_turn_and_none_at_once() -> None:
    served = list[int]()

    def scenario(turns: Turns) -> None:
        for number in range(5):
            turns.add(partial(served.append, number))
        assert served == []

    in_a_loop(scenario, 3)
    assert served == [0, 1, 2, 3, 4]


def test_what_takes_long_lets_the_loop_come_round() -> None:
    happened = list[str]()

    def serve(number: int) -> None:
        time.sleep(0.002)
        asyncio.get_running_loop().call_soon(happened.append, "round")
        happened.append(f"served {number}")

    def scenario(turns: Turns) -> None:
        for number in range(3):
            turns.add(partial(serve, number))

    in_a_loop(scenario, 10)
    assert happened == ["served 0", "round", "served 1", "round", "served 2", "round"]


def test_one_that_fails_keeps_nobody_from_being_served() -> None:
    served = list[int]()

    def fails() -> None:
        raise RuntimeError("this one")

    def scenario(turns: Turns) -> None:
        for call in (partial(served.append, 0), fails, partial(served.append, 1)):
            turns.add(call)

    told = in_a_loop(scenario, 5)
    assert served == [0, 1]
    assert [str(context["exception"]) for context in told] == ["this one"]
