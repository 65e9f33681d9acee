"""The JSON client against real servers on the loopback: answers, retries, limits, failures, ways to a server."""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from email.utils import formatdate
from pathlib import Path
from typing import Any

import pytest

from benchgate.errors import TargetError
from benchgate.model.deployment import Arm
from benchgate.targets.address import DIRECT, Route
from benchgate.targets.client import (
    NO_RETRY,
    RETRY,
    AsyncJsonClient,
    BodyTooLargeError,
    JsonClient,
    RetryPolicy,
    TlsError,
)
from benchgate.targets.dialect import DIALECTS, Target
from benchgate.targets.error_messages import RequestError
from tests.fakes.certificates import CA, STRANGER_CA, serving
from tests.fakes.proxy import Proxy
from tests.fakes.scripted_server import ABORT, CLOSE, Received, ScriptedServer, Step, json_response

KEY = "k3y-0f-tenant"
QUICK = RetryPolicy((0.0, 0.0))


def target(url: str, route: Route = DIRECT) -> Target:
    return Target(Arm.CANDIDATE, url, "m", DIALECTS["openai"], KEY, open_headers={"x-team": "ml"}, route=route)


def posted(
    url: str,
    *,
    route: Route = DIRECT,
    retry: RetryPolicy = NO_RETRY,
    connect_s: float = 5.0,
    total_s: float = 10.0,
    max_body_bytes: int = 1000,
) -> dict[str, object]:
    """The JSON object that answers a POST through the client for callers without an event loop."""
    with JsonClient(
        target(url, route), connect_s=connect_s, total_s=total_s, retry=retry, max_body_bytes=max_body_bytes
    ) as client:
        return client.post("/v1/x", {"input": "hello"})


class Script:
    """Answers the first request with the first steps, the second with the second, and all later ones with the last."""

    def __init__(self, *answers: Sequence[Step]) -> None:
        self._answers: Iterator[Sequence[Step]] = iter(answers)
        self._last: Sequence[Step] = ()

    def __call__(self, received: Received) -> Iterable[Step]:
        self._last = next(self._answers, self._last)
        return self._last


def plain(status: int, body: str, *headers: str) -> bytes:
    """A whole response with a text."""
    lines = [f"HTTP/1.1 {status} Scripted", f"content-length: {len(body.encode())}", *headers, "", body]
    return "\r\n".join(lines).encode()


OK = [json_response({"answer": 1})]


def test_post_carries_body_and_headers_of_the_target() -> None:
    with ScriptedServer(Script(OK)) as server:
        assert posted(server.url + "/base") == {"answer": 1}
        [received] = server.requests
    assert (received.method, received.path, received.body) == ("POST", "/base/v1/x", {"input": "hello"})
    assert received.headers["authorization"] == f"Bearer {KEY}"
    assert (received.headers["x-team"], received.headers["content-type"]) == ("ml", "application/json")


def test_bodies_with_lone_surrogates_are_sent() -> None:
    with ScriptedServer(Script(OK)) as server, JsonClient(target(server.url), connect_s=5, total_s=5) as client:
        client.post("/", {"input": "\ud800"})
        assert server.requests[0].body == {"input": "\ud800"}


def test_connections_are_reused_and_any_status_is_a_response() -> None:
    with ScriptedServer(Script([plain(404, "none", "X-Note: here")])) as server:
        with JsonClient(target(server.url), connect_s=5, total_s=5) as client:
            for _ in range(2):
                client.send("GET", "/x")
            response = client.send("GET", "/x")
        assert (response.status, response.body, response.headers["x-note"]) == (404, b"none", "here")
        assert server.connections == 1


@pytest.mark.parametrize(
    ("response", "message"),
    [
        (json_response({"error": {"message": "no such model"}}, 404), "HTTP 404: no such model"),
        (plain(503, "busy"), "HTTP 503: busy"),
        (plain(500, ""), "HTTP 500: an empty body"),
        (plain(302, "", "location: http://elsewhere/"), "HTTP 302: an empty body"),
        (plain(200, "[1]"), "HTTP 200 with a body that is not a JSON object: [1]"),
        (json_response({"error": "overloaded"}), "HTTP 200 with an error in it: overloaded"),
        (b"nonsense\r\n\r\n", "its answer is not HTTP"),
        (plain(200, "x" * 1001), "the body of the response is larger than 1000 bytes"),
    ],
)
def test_response_that_is_no_answer_is_an_error_with_the_words_of_the_server(response: bytes, message: str) -> None:
    with ScriptedServer(Script([response])) as server, pytest.raises(RequestError) as caught:
        posted(server.url)
    assert str(caught.value).startswith(message)
    assert message.startswith(caught.value.summary)


def test_endless_body_is_not_read_to_its_end() -> None:
    endless: list[Step] = [b"HTTP/1.1 200 OK\r\nconnection: close\r\n\r\n"]
    for _ in range(500):
        endless += [b"x" * 600, 0.01]
    began_s = time.monotonic()
    with ScriptedServer(Script(endless)) as server, pytest.raises(BodyTooLargeError):
        posted(server.url)
    assert time.monotonic() - began_s < 3


@pytest.mark.parametrize("first", [[plain(503, "busy")], [plain(429, "later")], [CLOSE], [ABORT]])
def test_what_may_pass_is_sent_again_and_counted(first: Sequence[Step]) -> None:
    async def ask() -> tuple[dict[str, object], int, int]:
        async with AsyncJsonClient(target(server.url), connect_s=5, total_s=10, retry=QUICK) as client:
            one = client.with_own_retry_count()
            return await one.post("/", {}), one.retries, client.retries

    with ScriptedServer(Script(first, first, OK)) as server:
        assert asyncio.run(ask()) == ({"answer": 1}, 2, 0)


def test_last_attempt_counts() -> None:
    with ScriptedServer(Script([plain(503, "busy")], [plain(503, "still busy")], [plain(503, "for good")])) as server:
        with pytest.raises(RequestError, match="HTTP 503: for good"):
            posted(server.url, retry=QUICK)
        assert len(server.requests) == 3


@pytest.mark.parametrize("refusal", [[plain(400, "no")], [plain(200, "[]")]])
def test_what_stays_so_is_asked_once(refusal: Sequence[Step]) -> None:
    with ScriptedServer(Script(refusal)) as server:
        with pytest.raises(RequestError):
            posted(server.url, retry=QUICK)
        assert len(server.requests) == 1


@pytest.mark.parametrize(
    ("header", "least_s", "most_s"),
    [("1", 1.0, 2.5), ("3600", 1.2, 2.5), ("soon", 0.0, 0.8), ("Thu, 01 Jan 1970 00:00:00 GMT", 0.0, 0.8)],
)
def test_retry_after_makes_a_pause_longer(header: str, least_s: float, most_s: float) -> None:
    policy = RetryPolicy((0.0,), longest_pause_s=1.2)
    with ScriptedServer(Script([plain(429, "later", f"Retry-After: {header}")], OK)) as server:
        began_s = time.monotonic()
        assert posted(server.url, retry=policy) == {"answer": 1}
        assert least_s <= time.monotonic() - began_s < most_s


def test_retry_after_may_be_a_date() -> None:
    later = formatdate(time.time() + 2.5, usegmt=True)
    with ScriptedServer(Script([plain(503, "", f"Retry-After: {later}")], OK)) as server:
        began_s = time.monotonic()
        posted(server.url, retry=RetryPolicy((0.0,)))
        assert 1.0 < time.monotonic() - began_s < 4


@pytest.mark.parametrize(
    "steps", [[5.0], [*([b"HTTP/1.1 200 OK\r\n"]), *([b"x-drip: 1\r\n", 0.1] * 50)], [plain(200, "x" * 90)[:-80], 5.0]]
)
def test_time_limit_holds_for_the_whole_response(steps: Sequence[Step]) -> None:
    """Also for a response that comes in drops, each within any limit for one read."""
    began_s = time.monotonic()
    with ScriptedServer(Script(steps)) as server:
        with pytest.raises(RequestError, match=r"^no answer within 500 ms$"):
            posted(server.url, total_s=0.5, retry=QUICK)
        assert time.monotonic() - began_s < 3
        assert len(server.requests) == 1  # a server that is too slow once is not burdened again


def test_refused_connection_names_the_reason() -> None:
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        with pytest.raises(RequestError) as caught:
            posted(f"http://127.0.0.1:{bound.getsockname()[1]}", retry=QUICK)
    assert str(caught.value) == "could not connect: Connection refused"
    assert caught.value.summary == "could not connect"


def test_missing_socket_file_names_the_reason(tmp_path: Path) -> None:
    with pytest.raises(RequestError, match="could not connect: No such file or directory"):
        posted(f"unix:{tmp_path}/none")


def test_no_credential_and_no_path_of_the_address_is_in_a_message() -> None:
    words = f"no /tenant-7/v1/x for Bearer {KEY}" + " and so on" * 40
    with (
        ScriptedServer(Script([json_response({"error": words}, 401)])) as server,
        pytest.raises(RequestError) as caught,
    ):
        posted(f"{server.url}/tenant-7")
    assert str(caught.value).startswith("HTTP 401: no [path]/v1/x for [redacted] and so on")
    assert len(str(caught.value)) <= 300
    assert caught.value.summary == "HTTP 401"


def test_header_that_cannot_be_sent_is_not_quoted() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        url = f"http://127.0.0.1:{listening.getsockname()[1]}"
        one = Target(Arm.CANDIDATE, url, "m", DIALECTS["openai"], "s3cret\nkey")
        with JsonClient(one, connect_s=1, total_s=1) as client, pytest.raises(RequestError) as caught:
            client.get("/")
    assert str(caught.value) == "the request cannot be sent (LocalProtocolError)"


def test_tls_proxy_and_socket_lead_to_the_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    with (
        Proxy() as proxy,
        ScriptedServer(Script(OK), tls=serving()) as secure,
        ScriptedServer(Script(OK), socket_path=tmp_path / "s") as local,
    ):
        assert posted(secure.url, route=Route(CA, proxy=proxy.url)) == {"answer": 1}
        assert posted(f"{local.url}:/base") == {"answer": 1}
        assert local.requests[0].path == "/base/v1/x"
        assert proxy.asked == [f"CONNECT localhost:{secure.port} HTTP/1.1"]


@pytest.mark.parametrize(
    ("certificate", "route", "words"),
    [
        ("server", Route(STRANGER_CA), "unable to get local issuer certificate"),
        ("elsewhere", Route(CA), "Hostname mismatch"),
        ("expired", Route(CA), "certificate has expired"),
    ],
)
def test_tls_failure_is_named_and_not_retried(certificate: str, route: Route, words: str) -> None:
    with ScriptedServer(Script(OK), tls=serving(certificate)) as server:
        with pytest.raises(TlsError, match=f"^no TLS with the server: .*{words}") as caught:
            posted(server.url, route=route, retry=QUICK)
        assert caught.value.is_about_certificates
        assert server.requests == []


def test_address_that_is_none_is_refused_before_any_request() -> None:
    with pytest.raises(TargetError, match="not the address of a server"):
        posted("nowhere")


def test_without_a_target_nothing_is_shown() -> None:
    with ScriptedServer(Script(OK)) as server, JsonClient(None, connect_s=5, total_s=5) as client:
        assert client.get(f"{server.url}/page") == {"answer": 1}
        assert "authorization" not in server.requests[0].headers


def test_many_requests_share_the_connections_allowed() -> None:
    async def ask() -> list[dict[str, Any]]:
        async with AsyncJsonClient(target(server.url), connect_s=5, total_s=10, connections=3, retry=RETRY) as client:
            return await asyncio.gather(*(client.post("/", {"n": n}) for n in range(12)))

    with ScriptedServer(lambda received: [0.02, *OK]) as server:
        assert asyncio.run(ask()) == [{"answer": 1}] * 12
        assert server.connections == 3


def test_client_may_be_used_in_another_thread_than_it_was_made_in() -> None:
    found: list[dict[str, object]] = []
    with ScriptedServer(Script(OK)) as server, JsonClient(target(server.url), connect_s=5, total_s=5) as client:
        client.get("/")
        thread = threading.Thread(target=lambda: found.append(client.get("/")))
        thread.start()
        thread.join()
        client.get("/")
    assert found == [{"answer": 1}]
