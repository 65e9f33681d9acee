"""Tickets of a loop without end: as many as were asked for are ready, and those taken are made up for in between."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from itertools import islice

import pytest

from benchgate.load.tickets import Stock, Ticket


def numbered(made: list[int], end: int | None = None) -> Iterator[Ticket]:
    for number in range(end if end is not None else 1_000_000):
        made.append(number)
        yield Ticket(number, None, b"")


def test_as_many_as_are_taken_are_made_again_and_none_twice() -> None:
    made: list[int] = []

    async def taken() -> list[int]:
        stock = Stock(numbered(made), 4)
        assert made == [0, 1, 2, 3]
        first = [next(stock).number for _ in range(3)]
        assert made == [0, 1, 2, 3]  # not before those who took them had their turn
        while len(made) < 7:
            await asyncio.sleep(0)
        await asyncio.sleep(0.01)
        assert len(made) == 7  # and no more
        return first + [ticket.number for ticket in islice(stock, 6)]  # two of them are made when they are taken

    assert asyncio.run(taken()) == list(range(9))


def test_what_ends_after_all_ends_for_who_takes() -> None:
    async def taken() -> list[int]:
        stock = Stock(numbered([], 3), 2)
        first = next(stock).number
        await asyncio.sleep(0.01)
        return [first, *(ticket.number for ticket in stock)]

    assert asyncio.run(taken()) == [0, 1, 2]


def test_once_more_than_half_are_missing_they_are_made_without_further_delay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("benchgate.load.tickets._MAKE_LATER_S", 3600)
    made: list[int] = []

    async def taken() -> int:
        stock = Stock(numbered(made), 4)
        next(stock)
        await asyncio.sleep(0.02)
        few = len(made)
        for _ in range(2):
            next(stock)
        while len(made) < 7:
            await asyncio.sleep(0)
        return few

    assert asyncio.run(asyncio.wait_for(taken(), 20)) == 4
