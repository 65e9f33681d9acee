"""A request is sent twice only where its connection had ended before it; whatever a server drops is a failure."""

import asyncio
import contextlib
import socket
import threading
from collections.abc import Iterable, Iterator
from dataclasses import replace
from time import monotonic_ns

import pytest

from benchgate.load.decode.record import progress_of
from benchgate.load.http.connection import Address
from benchgate.load.http.exchange import Response
from benchgate.load.http.pool import Pool
from benchgate.load.results import merged
from benchgate.model.records import ABSENT, ErrorClass
from benchgate.plan.model import PlannedStage
from tests.fakes.scripted_server import ABORT, CLOSE, Ending, Received, ScriptedServer, Step, json_response
from tests.shells.load_helpers import HALO, WHOLE, closed, limits, run

REQUEST = b"POST / HTTP/1.1\r\nhost: x\r\n\r\n"


@pytest.fixture
def idle_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every connection counts as long unused, without the wait."""
    monkeypatch.setattr("benchgate.load.http.pool._IDLE_NS", 0)


@pytest.fixture
def slow_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """A close may take its time to be seen here, where server and client share one busy machine."""
    monkeypatch.setattr("benchgate.load.http.pool._SHORTEST_AT_ONCE_NS", 200_000_000)
    monkeypatch.setattr("benchgate.load.http.pool._CLOSING_AT_ONCE_NS", 200_000_000)


@pytest.mark.usefixtures("idle_at_once", "slow_machine")
@pytest.mark.parametrize("ending", [CLOSE, ABORT])
def test_request_that_meets_the_end_of_an_idle_connection_is_sent_again_once(ending: Ending) -> None:
    def respond(received: Received) -> Iterable[Step]:
        return [WHOLE] if len(server.requests) != 2 else [ending]

    with ScriptedServer(respond) as server:
        columns = run(server.url, closed(3)).requests
        assert [received.prompt for received in server.requests] == ["prompt 0", "prompt 1", "prompt 1", "prompt 2"]
    assert set(columns.error) == {None}
    assert columns.reconnects.tolist() == [0, 1, 0]


@pytest.mark.usefixtures("idle_at_once", "slow_machine")
def test_second_send_that_is_dropped_too_is_a_failure() -> None:
    with ScriptedServer(lambda received: [CLOSE]) as server:
        columns = run(server.url, closed(1)).requests
        assert len(server.requests) == 2
    assert (tuple(columns.error), columns.reconnects.tolist()) == ((ErrorClass.STREAM_BROKEN,), [1])


@pytest.mark.usefixtures("idle_at_once", "slow_machine")
def test_request_sent_again_counts_from_its_first_send() -> None:
    received_ns: list[int] = []

    def respond(received: Received) -> Iterable[Step]:
        received_ns.append(monotonic_ns())
        return [CLOSE] if len(received_ns) == 1 else [WHOLE]

    async def ask(url: str) -> int | None:
        pool = Pool(Address.of(url), limits(), progress_of)
        try:
            await pool.open(1)
            return (await pool.ask(REQUEST)).sent_ns
        finally:
            pool.close()

    with ScriptedServer(respond) as server:
        sent_ns = asyncio.run(ask(server.url))
    first, second = received_ns
    assert sent_ns is not None
    assert sent_ns < first < second


@pytest.mark.usefixtures("idle_at_once")
@pytest.mark.parametrize("ending", [CLOSE, ABORT])
def test_request_dropped_after_work_on_it_is_a_failure_on_an_idle_connection_too(ending: Ending) -> None:
    def respond(received: Received) -> Iterable[Step]:
        return [WHOLE] if len(server.requests) != 2 else [1.2, ending]

    with ScriptedServer(respond) as server:
        columns = run(server.url, closed(3)).requests
        assert len(server.requests) == 3
    assert columns.error == (None, ErrorClass.STREAM_BROKEN, None)
    assert columns.reconnects.tolist() == [0, 0, 0]


def test_request_dropped_after_more_work_than_a_round_trip_takes_is_a_failure() -> None:
    """The first eight connections show how near this server is, the next one that it outlives an answer."""
    parting = WHOLE.replace(b"\r\n\r\n", b"\r\nconnection: close\r\n\r\n", 1)

    def respond(received: Received) -> Iterable[Step]:
        asked = len(server.requests)
        return [parting, CLOSE] if asked <= 8 else [WHOLE] if asked <= 10 else [0.03, CLOSE]

    with ScriptedServer(respond) as server:
        columns = run(server.url, closed(11)).requests
        assert len(server.requests) == 11
    assert columns.error == (*[None] * 10, ErrorClass.STREAM_BROKEN)


def test_stream_of_a_server_that_closes_after_each_is_the_last_on_its_connection() -> None:
    """As llama.cpp's does, on a machine so busy that the close comes long after the next request."""
    stream = WHOLE.replace(b"\r\n", b"\r\nserver: llama.cpp\r\nkeep-alive: timeout=5, max=100\r\n", 1)
    with ScriptedServer(lambda received: [stream, 0.5, CLOSE]) as server:
        columns = run(server.url, closed(4)).requests
        assert len(server.requests) == 4
    assert set(columns.error) == {None}
    assert columns.reconnects.tolist() == [0, 0, 0, 0]


def test_a_connection_that_still_has_to_take_the_rest_of_an_answered_request_is_not_used_again() -> None:
    listener = socket.create_server(("127.0.0.1", 0))

    async def ask() -> list[bool]:
        pool = Pool(Address.of(f"http://127.0.0.1:{listener.getsockname()[1]}"), limits(), progress_of)
        try:
            return [(await pool.ask(REQUEST + bytes(size))).whole for size in (2**24, 0)]
        finally:
            pool.close()

    def serve() -> None:
        with contextlib.ExitStack() as open_until_the_end:
            for _ in range(2):
                peer = open_until_the_end.enter_context(listener.accept()[0])
                peer.recv(1000)
                peer.sendall(WHOLE)
            done.wait(10)

    done = threading.Event()
    serving = threading.Thread(target=serve)
    serving.start()
    assert asyncio.run(ask()) == [True, True]
    done.set()
    serving.join()
    listener.close()


@pytest.mark.usefixtures("idle_at_once")
@pytest.mark.parametrize(("way_s", "sent_again"), [(0.0, 0), (0.1, 1)])
def test_close_of_a_server_that_is_far_away_takes_its_round_trips(way_s: float, sent_again: int) -> None:
    def respond(received: Received) -> Iterable[Step]:
        return [0.07, CLOSE] if len(server.requests) == 2 else [WHOLE]

    async def ask(url: str) -> Response:
        pool = Pool(Address.of(url), limits(), progress_of)
        try:
            assert (await pool.ask(REQUEST)).whole
            pool._connect_ns = int(way_s * 1e9)
            return await pool.ask(REQUEST)
        finally:
            pool.close()

    with ScriptedServer(respond) as server:
        response = asyncio.run(ask(server.url))
        assert len(server.requests) == 2 + sent_again
    assert (response.whole, response.reconnects) == (bool(sent_again), sent_again)


def test_close_that_comes_late_after_every_answer_is_no_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    """llama.cpp on a busy machine; what it keeps after a refusal shows nothing."""
    monkeypatch.setattr("benchgate.load.http.pool._CLOSING_AT_ONCE_NS", 1_000_000_000)
    refused = json_response({"error": "busy"}, status=503)

    def respond(received: Received) -> Iterable[Step]:
        asked = len(server.requests)
        return [refused] if asked <= 2 else [WHOLE] if asked % 2 else [0.02, CLOSE]

    with ScriptedServer(respond) as server:
        columns = run(server.url, closed(5)).requests
    assert columns.error == (ErrorClass.HTTP_5XX, ErrorClass.HTTP_5XX, None, None, None)
    assert columns.reconnects.tolist() == [0, 0, 0, 1, 1]


@pytest.mark.usefixtures("slow_machine")
@pytest.mark.parametrize("ending", [CLOSE, ABORT])
def test_request_that_meets_the_end_of_a_connection_that_has_served_is_sent_again_once(ending: Ending) -> None:
    def respond(received: Received) -> Iterable[Step]:
        return [WHOLE] if len(server.requests) % 2 else [ending]

    with ScriptedServer(respond) as server:
        columns = run(server.url, closed(3)).requests
        assert [received.prompt for received in server.requests] == [
            "prompt 0", "prompt 1", "prompt 1", "prompt 2", "prompt 2",
        ]  # fmt: skip
    assert set(columns.error) == {None}
    assert columns.reconnects.tolist() == [0, 1, 1]


def test_request_dropped_on_a_connection_opened_for_the_stage_is_a_failure() -> None:
    with ScriptedServer(lambda received: [ABORT]) as server:
        columns = run(server.url, closed(4, concurrency=4)).requests
        assert len(server.requests) == 4
    assert set(columns.error) == {ErrorClass.STREAM_BROKEN}


@pytest.mark.usefixtures("idle_at_once")
def test_connection_closed_after_an_answer_is_replaced_and_counted() -> None:
    with ScriptedServer(lambda received: [WHOLE, CLOSE]) as server:
        columns = run(server.url, closed(5)).requests
        assert server.connections == 5
        assert len(server.requests) == 5
    assert set(columns.error) == {None}
    assert columns.reconnects.tolist() == [0, 1, 1, 1, 1]


@pytest.mark.parametrize(("idle_ns", "early"), [(60_000_000_000, 2), (0, 0)], ids=["after an answer", "after a pause"])
def test_connection_known_to_be_closed_costs_no_second_send(
    monkeypatch: pytest.MonkeyPatch, idle_ns: int, early: int
) -> None:
    """uvicorn closes what was unused for five seconds; llama.cpp closes after every answer."""
    monkeypatch.setattr("benchgate.load.http.pool._IDLE_NS", idle_ns)

    async def ask(url: str) -> tuple[list[int], int]:
        pool = Pool(Address.of(url), limits(), progress_of)
        try:
            reconnects = []
            for _ in range(3):
                response = await pool.ask(REQUEST)
                assert response.whole
                reconnects.append(response.reconnects)
                while any(connection.alive for connection in pool._idle):
                    await asyncio.sleep(0.001)
            return reconnects, pool.closed_early
        finally:
            pool.close()

    with ScriptedServer(lambda received: [WHOLE, CLOSE]) as server:
        assert asyncio.run(ask(server.url)) == ([0, 0, 0], early)
        assert len(server.requests) == 3


@pytest.mark.parametrize(
    ("said", "unasked"),
    [
        (b"HTTP/1.1 408 Request Timeout\r\nconnection: close\r\ncontent-length: 0\r\n\r\n", 0),
        (b"HTTP/1.0 408 Request Time-out\r\n\r\n<html>", 0),
        (b"\r\n", 0),
        (b"HTTP/1.1 400 Bad Request\r\nconnection: close\r\ncontent-length: 0\r\n\r\n", 1),
        (WHOLE, 1),
    ],
    ids=["408", "408 of HTTP/1.0", "empty line", "400", "answer"],
)
def test_goodbye_to_an_unused_connection_is_no_answer_and_nothing_unasked_for(said: bytes, unasked: int) -> None:
    """Whatever it is that came: the connection is dropped, and the next request goes over another one, once."""
    unused = threading.Event()

    def respond(received: Received) -> Iterator[Step]:
        yield WHOLE
        if len(server.requests) == 1:
            while not unused.is_set():
                yield 0.001
            yield said

    async def ask(url: str) -> tuple[list[tuple[int, int]], int]:
        pool = Pool(Address.of(url), limits(), progress_of)
        try:
            await pool.open(1)
            answered = []
            for _ in range(2):
                response = await pool.ask(REQUEST)
                assert response.head is not None
                answered.append((response.head.status, response.reconnects))
                unused.set()
                async with asyncio.timeout(10):
                    while len(answered) == 1 and any(connection.alive for connection in pool._idle):
                        await asyncio.sleep(0.001)
            return answered, pool.unasked
        finally:
            pool.close()

    with ScriptedServer(respond) as server:
        assert asyncio.run(ask(server.url)) == ([(200, 0), (200, 0)], unasked)
        assert (len(server.requests), server.connections) == (2, 2)


def test_workers_say_together_how_often_connections_were_closed_after_an_answer() -> None:
    """In an open loop with a pause between two requests that end is seen before the next."""
    first, second = closed(2).requests
    stage = PlannedStage.of("open", None, 1.0, (replace(first, offset_ns=0), replace(second, offset_ns=300_000_000)))
    with ScriptedServer(lambda received: [WHOLE, CLOSE]) as server:
        result = run(server.url, stage)
    assert (result.requests.reconnects.tolist(), result.client.closed_early) == ([0, 0], 1)
    assert merged([result, result]).client.closed_early == 2


def test_announced_close_is_no_reconnect() -> None:
    whole = WHOLE.replace(b"\r\n\r\n", b"\r\nconnection: close\r\n\r\n", 1)
    with ScriptedServer(lambda received: [whole, CLOSE]) as server:
        columns = run(server.url, closed(3)).requests
    assert (set(columns.error), columns.reconnects.tolist()) == ({None}, [0, 0, 0])
    lag_ns = columns.sent_ns - columns.intended_ns
    assert columns.connecting_ns[0] == ABSENT  # opened before the clock started
    assert ((columns.connecting_ns[1:] > 0) & (columns.connecting_ns[1:] <= lag_ns[1:])).all()


@pytest.mark.usefixtures("idle_at_once")
def test_broken_stream_is_never_asked_again() -> None:
    with ScriptedServer(lambda received: [HALO, ABORT]) as server:
        columns = run(server.url, closed(3)).requests
        assert len(server.requests) == 3
    assert set(columns.error) == {ErrorClass.STREAM_BROKEN}
