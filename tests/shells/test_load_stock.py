"""Tickets of a loop without end: as many as were asked for are ready, and those taken are made up for in between."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from itertools import islice

import pytest

from benchgate.errors import TargetError
from benchgate.load.requests import LookAhead, PreparedRequest


def numbered(made: list[int], end: int | None = None) -> Iterator[PreparedRequest]:
    for number in range(end if end is not None else 1_000_000):
        made.append(number)
        yield PreparedRequest(number, None, b"")


def test_for_half_of_the_slots_none_left_as_many_as_slots_are_made_again_and_none_twice() -> None:
    made: list[int] = []

    async def taken() -> list[int]:
        stock = LookAhead(numbered(made), 4, ahead=2)
        assert made == [0, 1, 2, 3, 4, 5]
        first = [next(stock).number for _ in range(4)]
        await asyncio.sleep(0.01)
        assert len(made) == 6  # one by one they would cost more
        first.append(next(stock).number)
        assert len(made) == 6  # not before those who took them had their turn
        while len(made) < 9:
            await asyncio.sleep(0)
        await asyncio.sleep(0.01)
        assert len(made) == 9  # and no more
        return first + [ticket.number for ticket in islice(stock, 6)]  # two of them are made when they are taken

    assert asyncio.run(taken()) == list(range(11))


def test_what_ends_after_all_ends_for_who_takes() -> None:
    async def taken(slots: int, ahead: int) -> list[int]:
        stock = LookAhead(numbered([], 3), slots, ahead)
        first = [next(stock).number, next(stock).number]
        await asyncio.sleep(0.01)
        return [*first, *(ticket.number for ticket in stock)]

    for slots, ahead in ((1, 0), (2, 0), (1, 1), (5, 0), (2, 5)):
        assert asyncio.run(taken(slots, ahead)) == [0, 1, 2]


@pytest.mark.parametrize("error", [TargetError, ArithmeticError])
def test_why_no_more_can_be_made_is_raised_when_what_was_made_is_taken(error: type[Exception]) -> None:
    def breaks() -> Iterator[PreparedRequest]:
        yield from numbered([], 4)
        raise error("no such key")

    async def taken() -> list[int]:
        stock, numbers = LookAhead(breaks(), 4, ahead=0), list[int]()
        with pytest.raises(error, match="no such key"):
            while True:
                numbers.append(next(stock).number)
                await asyncio.sleep(0.01)
        return numbers

    assert asyncio.run(taken()) == [0, 1, 2, 3]


def test_every_slot_has_one_however_long_they_take_or_are_but_none_is_made_ahead_then(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def made(size_bytes: int) -> int:
        numbers: list[int] = []
        LookAhead((ticket._replace(wire=bytes(size_bytes)) for ticket in numbered(numbers)), 10, ahead=20)
        return len(numbers)

    assert made(10) == 30
    assert made(1_000_000) == 10
    assert made(500_000) == 17  # 16 of them are shorter than 8 MiB
    monkeypatch.setattr("benchgate.load.requests._AHEAD_NS", 0)
    assert made(10) == 10
