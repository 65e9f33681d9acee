"""The practice server's truth begins when the kernel had a request, however long the server took to read it."""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from collections.abc import Iterator
from time import monotonic_ns

import pytest

from benchgate.sim.http_server import ArrivalClock, Connection, FairQueue, Request, listen
from benchgate.sim.settings import ListenAddress
from benchgate.timestamps import ask_for_stamps, kernel_stamps, stamp_ns

MS = 1_000_000
ROOM = memoryview(bytearray(2**16))

pytestmark = pytest.mark.skipif(not kernel_stamps(), reason="this kernel stamps no arrivals")


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    """Two ends of a TCP connection; the first one stamps, and the kernel has begun to."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        ask_for_stamps(listener)
        with socket.create_connection(listener.getsockname()) as client:
            server, _ = listener.accept()
            with server:
                for _ in range(1000):
                    client.sendall(b"x")
                    if stamp_ns(server.recvmsg(1, 256)[1]) is not None:
                        break
                    time.sleep(0.01)
                else:
                    pytest.fail("the kernel stamps nothing")
                yield server, client


def test_what_came_before_it_was_looked_at_came_when_it_did(pair: tuple[socket.socket, socket.socket]) -> None:
    server, client = pair
    before_ns = monotonic_ns()
    client.sendall(b"POST")
    after_ns = monotonic_ns()
    time.sleep(0.05)
    came_ns = ArrivalClock(server).came_ns(ROOM)
    assert before_ns - MS <= came_ns <= after_ns + 25 * MS  # half of the wait; a busy kernel may hand it over later
    assert server.recv(16) == b"POST"  # it was only looked at


def test_of_several_packets_the_last_one_counts(pair: tuple[socket.socket, socket.socket]) -> None:
    server, client = pair
    client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    client.sendall(b"PO")
    time.sleep(0.05)
    between_ns = monotonic_ns()
    client.sendall(b"ST")
    assert ArrivalClock(server).came_ns(ROOM) >= between_ns - MS


def test_what_nobody_stamps_comes_now() -> None:
    left, right = socket.socketpair()
    with left, right:
        right.sendall(b"x")
        before_ns = monotonic_ns()
        for arriving in (ArrivalClock(), ArrivalClock(left)):
            assert arriving.came_ns(ROOM) >= before_ns
        assert left.recv(1) == b"x"
        before_ns = monotonic_ns()
        assert ArrivalClock(left).came_ns(ROOM) >= before_ns  # nothing is there


def test_a_stamp_says_nothing_once_the_time_of_day_was_set(
    pair: tuple[socket.socket, socket.socket], monkeypatch: pytest.MonkeyPatch
) -> None:
    server, client = pair
    for step_ns in (3_600_000 * MS, -3_600_000 * MS):
        monkeypatch.setattr("benchgate.timestamps.time_ns", lambda step_ns=step_ns: time.time_ns() + step_ns)
        client.sendall(b"POST")
        before_ns = monotonic_ns()
        assert before_ns <= ArrivalClock(server).came_ns(ROOM) <= monotonic_ns()


def test_what_the_practice_server_accepts_is_stamped(pair: tuple[socket.socket, socket.socket]) -> None:
    class Taken(asyncio.Protocol):
        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            option: int = transport.get_extra_info("socket").getsockopt(socket.SOL_SOCKET, 37)
            stamped.append(option)
            transport.close()

    async def accept() -> None:
        server, url = await listen(ListenAddress(), Taken)
        await server.start_serving()
        async with server:
            _, writer = await asyncio.open_connection(*url.removeprefix("http://").split(":"))
            while not stamped:
                await asyncio.sleep(0.001)
            writer.close()
            await writer.wait_closed()

    stamped: list[int] = []
    asyncio.run(asyncio.wait_for(accept(), 10))
    assert stamped[0] != 0


def test_a_request_that_waited_for_a_busy_server_has_waited_in_it(pair: tuple[socket.socket, socket.socket]) -> None:
    server, client = pair
    received: list[tuple[int, bytes]] = []

    def serve(request: Request, line: Connection) -> None:
        received.append((line.received_ns, request.body))
        line.write(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n")
        line.done(keep=request.keeps_alive)

    async def busy() -> int:
        server.setblocking(False)
        transport, _ = await asyncio.get_running_loop().connect_accepted_socket(
            lambda: Connection(serve, FairQueue(), set(), None), server.dup()
        )
        asking = threading.Timer(0.02, client.sendall, [b"POST / HTTP/1.1\r\ncontent-length: 2\r\n\r\nhi"])
        asking.start()
        time.sleep(0.2)
        asking.join()
        read_ns = monotonic_ns()
        while not received:
            await asyncio.sleep(0.001)
        transport.abort()
        await asyncio.sleep(0)
        return read_ns

    read_ns = asyncio.run(asyncio.wait_for(busy(), 10))
    ((received_ns, body),) = received
    assert body == b"hi"
    assert received_ns <= read_ns - 100 * MS
