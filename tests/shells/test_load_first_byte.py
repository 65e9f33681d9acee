"""An answer is read from its first byte: when it came, where it ends, and what of it is looked at."""

from __future__ import annotations

import asyncio
import sys
from functools import partial
from time import monotonic_ns

import pytest

from benchgate.load.http import library as native
from benchgate.load.http.exchange import Exchange, Response
from tests.shells.load_helpers import limits
from tests.shells.wires import END, HEAD, TOKEN, Wire, hear, looking, over_a_wire, payload, turns

pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="epoll is Linux's"),
    pytest.mark.usefixtures("compiled_and_not"),
]


@pytest.mark.skipif(native.library() is None, reason="nothing is compiled here")
def test_the_first_token_has_its_instant_before_anything_else_of_the_turn_is_looked_at(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv(native.DISABLED_BY, "1")
    looked_ns: list[int] = []

    class Looking(Exchange):
        def parse_available(self) -> None:
            looked_ns.append(monotonic_ns())
            super().parse_available()

    async def scenario(wire: Wire) -> list[Response]:
        wires = [wire, await Wire.open(wire.reader), await Wire.open(wire.reader)]
        begin = partial(Looking, limits(), hear)
        asked = [asyncio.create_task(each.connection.exchange(b"POST", begin)) for each in wires]
        await asyncio.sleep(0)
        for each in wires:
            each.peer.sendall(HEAD + TOKEN)
        await turns()
        for each in wires:
            await each.tell([TOKEN, END])
        responses = [await each for each in asked]
        for each in wires[1:]:
            each.connection.close()
            each.peer.close()
        return responses

    responses = over_a_wire(scenario)
    assert all(response.whole for response in responses)
    assert max(next(iter(response.body))[0] for response in responses) <= looked_ns[0]


@pytest.mark.parametrize("head", [b"content-length: 9\r\n\r\n", b"content-length: 09\r\nconnection: close\r\n\r\n"])
def test_an_answer_of_a_stated_length_is_over_with_its_last_byte(head: bytes) -> None:
    async def scenario(wire: Wire) -> tuple[bool, Response]:
        asked = wire.ask()
        await asyncio.sleep(0)
        await wire.tell([b"HTTP/1.1 200 OK\r\n", head, b"{", b'"a": 1\n'])
        early = asked.done()
        await wire.tell([b"}"])
        return early, await asked

    early, response = over_a_wire(scenario)
    assert (early, response.whole, response.fault, payload(response)) == (False, True, None, b'{"a": 1\n}')


def test_how_much_an_earlier_answer_was_does_not_have_a_later_one_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("benchgate.load.http.reader.LARGEST_RESPONSE_BYTES", 1_000)
    event = b'1b\r\ndata: {"content": "word"}\n\n\r\n'
    looks: list[int] = []

    async def scenario(wire: Wire) -> None:
        for _ in range(3):
            asked = asyncio.create_task(wire.connection.exchange(b"POST", looking(looks)))
            await asyncio.sleep(0)
            await wire.tell([HEAD + event, *[event] * 15, END])
            await asked

    over_a_wire(scenario)
    begins = len(HEAD) + len(event)
    assert looks == [begins, begins + 15 * len(event) + len(END)] * 3
