"""A stream in full flow is read past its own connection: nothing of it is lost, and its end is its end all the same."""

from __future__ import annotations

import asyncio
import gc
import socket
import struct
import sys
import warnings
import weakref
from time import monotonic_ns

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchgate.load.decode.body import RawBody
from benchgate.load.decode.record import failure_and_content
from benchgate.load.http import library as native
from benchgate.load.http.exchange import Exchange, Failure, Response
from benchgate.model.records import ErrorClass
from benchgate.model.request import ModelRequest
from tests.fakes.streams import MadeBody, chunked_bodies, ends_once, reads_of
from tests.shells.load_helpers import limits
from tests.shells.wires import END, HEAD, TOKEN, Wire, hear, looking, over_a_wire, payload, turns

pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="epoll is Linux's"),
    pytest.mark.usefixtures("compiled_and_not"),
]


def test_each_read_has_its_own_instant_and_compiled_none_passes_through_the_connection() -> None:
    async def scenario(wire: Wire) -> tuple[Response, int, list[tuple[int, int]]]:
        asked = wire.ask()
        spans = list[tuple[int, int]]()
        await asyncio.sleep(0)
        for data in [HEAD + TOKEN, *[TOKEN] * 20]:
            before_ns = monotonic_ns()
            await wire.tell([data])
            spans.append((before_ns, monotonic_ns()))
        await wire.tell([END])
        return await asked, wire.connection.handed, spans

    response, handed, spans = over_a_wire(scenario)
    assert (response.whole, response.fault, handed) == (True, None, 22 if native.library() is None else 0)
    instants = [at_ns for at_ns, data in response.body if b"word" in data]
    assert len(instants) == 21
    assert all(before_ns <= at_ns <= after_ns for at_ns, (before_ns, after_ns) in zip(instants, spans, strict=True))


def test_events_as_servers_send_them_are_kept_whole_though_none_of_them_is_looked_at() -> None:
    event = b'1b\r\ndata: {"content": "word"}\n\n\r\n'
    looks: list[int] = []

    async def scenario(wire: Wire) -> Response:
        asked = asyncio.create_task(wire.connection.exchange(b"POST", looking(looks)))
        await asyncio.sleep(0)
        await wire.tell([HEAD + event, *[event] * 5, event[:20], event[20:], END])
        return await asked

    response = over_a_wire(scenario)
    begins = len(HEAD) + len(event)
    assert (response.whole, looks) == (True, [begins, begins + 6 * len(event) + len(END)])
    assert payload(response) == b'data: {"content": "word"}\n\n' * 7 + b"data: [DONE]\n\n"


@given(chunked_bodies().filter(ends_once).flatmap(lambda made: st.tuples(st.just(made), reads_of(HEAD + made.raw))))
def test_any_split_of_any_body_gives_all_of_it_and_its_last_byte_is_the_end(
    made: tuple[MadeBody, list[bytes]],
) -> None:
    body, reads = made

    async def scenario(wire: Wire) -> tuple[Response, bool]:
        asked = wire.ask()
        await asyncio.sleep(0)
        await wire.tell(data for data in reads if data)
        over = asked.done()
        wire.peer.close()
        return await asked, over

    response, over = over_a_wire(scenario)
    assert (over, response.whole, response.fault, payload(response)) == (True, True, None, body.payload)


def test_the_next_answer_on_the_same_connection_begins_with_its_own_head() -> None:
    async def scenario(wire: Wire) -> list[tuple[bool, bytes]]:
        seen = []
        for word in (b"one", b"two"):
            asked = wire.ask()
            await asyncio.sleep(0)
            await wire.tell([HEAD, TOKEN.replace(b"word", b"%4b" % word), TOKEN, END])
            response = await asked
            seen.append((response.reusable, payload(response)[:24]))
        return seen

    assert over_a_wire(scenario) == [(True, b'data: {"content": " one"'), (True, b'data: {"content": " two"')]


@pytest.mark.parametrize(("reset", "said"), [(False, "closed"), (True, "reset")])
def test_a_connection_that_goes_in_the_middle_says_how(reset: bool, said: str) -> None:
    async def scenario(wire: Wire) -> Response:
        asked = wire.ask()
        await asyncio.sleep(0)
        await wire.tell([HEAD + TOKEN, TOKEN, TOKEN])
        wire.peer.recv(16)
        if reset:
            wire.peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        wire.peer.close()
        return await asked

    response = over_a_wire(scenario)
    assert response.fault is not None
    assert response.fault.error is ErrorClass.STREAM_BROKEN
    assert response.fault.detail == f"the server {said} the connection in the middle of the response"
    assert payload(response) == b'data: {"content": "word"}' * 3


def test_a_stream_without_end_is_ended_though_nobody_looks_at_its_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("benchgate.load.http.exchange.LARGEST_RESPONSE_BYTES", 20_000)
    monkeypatch.setattr("benchgate.load.http.reader.LARGEST_RESPONSE_BYTES", 20_000)
    monkeypatch.setattr("benchgate.load.http.connection._CHECKED_EVERY_BYTES", 4_000)

    async def scenario(wire: Wire) -> tuple[Response, int]:
        asked = wire.ask()
        await asyncio.sleep(0)
        await wire.tell([HEAD + TOKEN])
        sent = 0
        while not asked.done() and sent < 2_000:
            await wire.tell([TOKEN])
            sent += 1
        return await asked, sent

    response, sent = over_a_wire(scenario)
    assert response.fault is not None and "longer than 20000 bytes" in response.fault.detail
    assert 20_000 < len(HEAD) + len(TOKEN) * (sent + 1) <= 30_000


def test_what_follows_the_end_before_anybody_resumes_keeps_the_connection_from_being_used_again() -> None:
    async def scenario(wire: Wire) -> tuple[bool, bytes, bool]:
        asked = wire.ask()
        await asyncio.sleep(0)
        await wire.tell([HEAD + TOKEN])
        wire.connection.data_received(END)
        wire.connection.data_received(HEAD + TOKEN + END)  # in the same turn of the loop
        response = await asked
        return response.whole, payload(response), wire.connection.alive

    whole, said, alive = over_a_wire(scenario)
    assert (whole, said, alive) == (True, b'data: {"content": "word"}data: [DONE]\n\n', False)


@pytest.mark.parametrize("after", [b"x", HEAD, HEAD + TOKEN, b"\r\n"])
def test_an_answer_is_over_though_other_bytes_came_with_its_end_and_its_connection_is_not_used_again(
    after: bytes,
) -> None:
    async def scenario(wire: Wire) -> tuple[bool, Response, bool]:
        asked = wire.ask()
        await asyncio.sleep(0)
        await wire.tell([HEAD + TOKEN, TOKEN, TOKEN + END + after])
        over = asked.done()
        return over, await asked, wire.connection.alive

    over, response, alive = over_a_wire(scenario)
    assert (over, response.whole, response.fault, alive) == (True, True, None, False)
    assert payload(response) == b'data: {"content": "word"}' * 3 + b"data: [DONE]\n\n"


def test_what_looks_like_the_end_inside_of_a_chunk_ends_the_answer_and_makes_it_a_failure() -> None:
    early = b"10\r\n[DONE]\n\n\r\n0\r\n\r\n"  # one byte less than the chunk says

    async def scenario(wire: Wire) -> Response:
        asked = wire.ask()
        await asyncio.sleep(0)
        await wire.tell([HEAD, TOKEN, early])
        return await asked

    response = over_a_wire(scenario)
    assert response.whole
    fault, _ = failure_and_content(response, ModelRequest("chat", {}, None))
    assert fault == Failure(ErrorClass.PROTOCOL, "its chunks do not end where the response seemed to end")


@pytest.mark.parametrize("before", [b"", TOKEN])
def test_an_answer_is_over_although_another_one_that_nobody_asked_for_follows_in_the_same_read(before: bytes) -> None:
    """It ends as an event does: only that the last chunk stands before it tells that the answer is over."""
    token = b'1a\r\ndata: {"content":"word"}\n\n\r\n'

    async def scenario(wire: Wire) -> tuple[bool, bool, bool]:
        asked = wire.ask()
        await asyncio.sleep(0)
        await wire.tell([HEAD + token, token, before + b"0\r\n\r\n" + HEAD + token])
        over = asked.done()
        return over, (await asked).whole, wire.connection.alive

    assert over_a_wire(scenario) == (True, True, False)


def test_each_end_of_a_turn_is_looked_at_although_looking_at_another_failed() -> None:
    async def scenario(wire: Wire) -> list[bool]:
        asked = wire.ask()
        await asyncio.sleep(0)
        await wire.tell([HEAD + TOKEN])
        others = [await Wire.open(wire.reader) for _ in range(2)]
        failing = [asyncio.create_task(other.connection.exchange(b"POST", failing_exchange)) for other in others]
        await asyncio.sleep(0)
        for other in others:
            await other.tell([HEAD + TOKEN])
        for peer in (others[0].peer, wire.peer, others[1].peer):
            peer.sendall(END)
        with pytest.raises(RuntimeError, match="not looked at"):
            assert wire.reader is not None
            wire.reader._read_ready()
        await turns()
        over = [asked.done(), *(task.done() for task in failing)]
        for task, other in zip(failing, others, strict=True):
            task.cancel()
            other.connection.close()
            other.peer.close()
        return over

    def failing_exchange() -> Exchange:
        return Failing(limits(), hear)

    if native.library() is None:
        pytest.skip("each connection has a callback of its own")
    assert over_a_wire(scenario) == [True, False, False]


class Failing(Exchange):
    """Cannot be looked at once its body has begun."""

    def parse_available(self) -> None:
        if self.notify_on_end:
            raise RuntimeError("not looked at")
        super().parse_available()


def test_audited_reads_each_have_a_delay() -> None:
    if native.library() is None:
        pytest.skip("only the compiled reader audits")

    async def scenario(wire: Wire) -> tuple[Response, int]:
        asked = wire.ask()
        await asyncio.sleep(0)
        await wire.tell([HEAD + TOKEN, TOKEN, TOKEN, END])
        response = await asked
        assert wire.reader is not None and wire.reader.delays is not None
        return response, wire.reader.delays._reads + wire.reader.delays._unstamped

    response, delays = over_a_wire(scenario, audited=True)
    assert (response.whole, delays) == (True, 4)


def test_marks_are_as_many_as_reads_and_add_up_to_the_bytes() -> None:
    async def scenario(wire: Wire) -> Response:
        asked = wire.ask()
        await asyncio.sleep(0)
        await wire.tell([HEAD, TOKEN, TOKEN + TOKEN, END])
        return await asked

    body = over_a_wire(scenario).body
    assert isinstance(body, RawBody)
    assert list(body.marks[1::2]) == [len(HEAD), len(TOKEN), 2 * len(TOKEN), len(END)]


def event_of(size: int) -> bytes:
    """A chunk that is so many bytes long and one event."""
    payload = size - len(b"100\r\n\r\n")
    return b'%03x\r\n{"content": "%b"}\n\n\r\n' % (payload, b"w" * (payload - len(b'{"content": ""}\n\n')))


@pytest.mark.parametrize("size", [100, 478, 479, 480, 958, 959, 3_000])
def test_an_event_that_came_at_once_is_one_read_however_long_it_is(size: int) -> None:
    async def scenario(wire: Wire) -> Response:
        asked = wire.ask()
        await asyncio.sleep(0)
        await wire.tell([HEAD, *[event_of(size)] * 3, END])
        return await asked

    response = over_a_wire(scenario)
    assert isinstance(response.body, RawBody)
    assert (response.whole, response.fault) == (True, None)
    assert list(response.body.marks[1::2]) == [len(HEAD), size, size, size, len(END)]


def test_a_connection_that_is_reset_right_after_a_read_of_the_shortest_length_says_so() -> None:
    async def scenario(wire: Wire) -> Response:
        asked = wire.ask()
        await asyncio.sleep(0)
        await wire.tell([HEAD, TOKEN])
        wire.peer.recv(16)
        wire.peer.sendall(event_of(479))
        wire.peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        wire.peer.close()
        return await asked

    response = over_a_wire(scenario)
    assert response.fault is not None
    assert response.fault.detail == "the server reset the connection in the middle of the response"
    assert len(payload(response)) == len(b'data: {"content": "word"}') + 479 - len(b"100\r\n\r\n")


@pytest.mark.parametrize("size", [200, 479, 3_000])
@pytest.mark.parametrize("reset", [False, True])
def test_nothing_keeps_an_answer_in_memory_while_nothing_is_collected(size: int, reset: bool) -> None:
    kept: list[weakref.ref[Exchange]] = []

    class Kept(Exchange):
        __slots__ = ("__weakref__",)

    def begin() -> Exchange:
        exchange = Kept(limits(), hear)
        kept.append(weakref.ref(exchange))
        return exchange

    async def scenario(wire: Wire) -> int:
        asked = asyncio.create_task(wire.connection.exchange(b"POST", begin))
        await asyncio.sleep(0)
        await wire.tell([HEAD, event_of(size)])
        if reset:
            wire.peer.recv(16)
            wire.peer.sendall(event_of(size))
            wire.peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            wire.peer.close()
        else:
            await wire.tell([event_of(size), END])
        assert (await asked).whole is not reset
        del asked
        await turns()
        return sum(ref() is not None for ref in kept)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)  # of what earlier tests left
        gc.collect()
    gc.disable()  # as a stage does
    try:
        assert over_a_wire(scenario) == 0
    finally:
        gc.enable()
