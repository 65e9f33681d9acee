"""A look that gathers reads what comes meanwhile; who is to be told and what is about to leave do not wait for it."""

from __future__ import annotations

import asyncio
import select
import socket
import sys
import threading
import time
from collections.abc import Iterable

import pytest

from benchgate.load.http.exchange import Response
from benchgate.load.http.reader import _GATHERS
from tests.shells.wires import END, HEAD, TOKEN, Wire, over_a_wire, payload, turns

pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="epoll is Linux's"),
    pytest.mark.usefixtures("compiled_and_not"),
]


def test_gathering_reads_what_comes_meanwhile_until_a_stream_may_have_ended() -> None:
    async def scenario(wire: Wire) -> tuple[int, Response]:
        asked = wire.ask()
        await asyncio.sleep(0)
        await wire.tell([HEAD + TOKEN, TOKEN])
        writer = threading.Thread(target=write_slowly, args=(wire.peer, [TOKEN, TOKEN, END]))
        writer.start()
        reads = wire.sockets._flows.look(1_000_000)
        writer.join()
        await turns()
        return reads, await asked

    def write_slowly(peer: socket.socket, texts: Iterable[bytes]) -> None:
        for text in texts:
            peer.sendall(text)
            time.sleep(0.02)

    reads, response = over_a_wire(scenario)
    assert reads > 1
    assert (payload(response).count(b"word"), response.whole) == (4, True)


def test_nothing_more_is_gathered_once_there_is_somebody_to_be_told(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("http.reader",):
        monkeypatch.setattr(f"benchgate.load.{module}.GATHER_NS", 20_000_000)

    async def scenario(wire: Wire) -> tuple[int, int]:
        asked = wire.ask()
        await asyncio.sleep(0)
        await wire.tell([HEAD + TOKEN])
        told = list[int]()
        beside, other = socket.socketpair()
        with beside, other:
            wire.sockets.watch(beside, select.EPOLLIN, told.append)
            other.sendall(b"x")
            later = threading.Timer(0.5, wire.peer.sendall, [TOKEN])
            later.start()
            reads = wire.sockets._flows.look(100)
            later.join()
            wire.sockets.unwatch(beside)
        asked.cancel()
        return reads, len(told)

    assert over_a_wire(scenario) == (1, 1)


def test_a_look_that_was_hurried_gathers_nothing_nor_does_the_one_after_it(monkeypatch: pytest.MonkeyPatch) -> None:
    gathered = list[int]()

    def look(gathers: int) -> int:
        gathered.append(gathers)
        return 0

    async def scenario(wire: Wire) -> None:
        monkeypatch.setattr(wire.sockets._flows, "look", look)
        wire.sockets._gathers, wire.sockets._since_ns = True, sys.maxsize
        wire.sockets._look()
        wire.sockets.hurry()
        for _ in range(3):
            wire.sockets._look()

    over_a_wire(scenario)
    assert gathered == [_GATHERS, 0, 0, _GATHERS]
