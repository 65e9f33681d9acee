"""One request of a shadow comparison and what came of it. Every way in which it can fail is a text, and no exception.

What people wrote stands in these requests, and servers repeat what they refuse or do not understand. So where texts
are not kept, an error says what happened in words of our own alone.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from dataclasses import dataclass

import httpx2

from benchgate.errors import TargetError
from benchgate.model.records import ACCEPTED_FINISH
from benchgate.model.request import Endpoint
from benchgate.shadow.refusal import FILTERED
from benchgate.suite.schema import Limits
from benchgate.targets.answers import MAX_BODY_BYTES, Answer, read_answer
from benchgate.targets.client import http_client
from benchgate.targets.dialect import PATHS, Target
from benchgate.units import show_duration

_ANY_END = ACCEPTED_FINISH | {FILTERED}


@dataclass(frozen=True, slots=True)
class Asking:
    """How long a request may take, and whether what a server says of a failure may be kept."""

    limits: Limits
    quote: bool


@dataclass(frozen=True, slots=True)
class Reply:
    """What came of one request for text: an answer, or why there is none."""

    answer: Answer | None
    error: str | None
    latency_ns: int


def client_of(target: Target, limits: Limits, most_at_once: int) -> httpx2.AsyncClient:
    """A client whose connections stay open for as many requests as are under way at once."""
    timeout = httpx2.Timeout(limits.total_s, connect=limits.connect_s, pool=None)
    pool = httpx2.Limits(max_connections=None, max_keepalive_connections=most_at_once)
    return http_client(target, timeout, pool)


async def ask(
    client: httpx2.AsyncClient, target: Target, endpoint: Endpoint, body: Mapping[str, object], asking: Asking
) -> Reply:
    """One request for text. A refusal by the server's content filter is an answer."""
    began_ns = time.monotonic_ns()
    found = await post(client, endpoint, body, asking)
    latency_ns = time.monotonic_ns() - began_ns
    if isinstance(found, str):
        return Reply(None, found, latency_ns)
    try:
        answer = read_answer(endpoint, *found, secret=target.secrets, accepted=_ANY_END)
    except TargetError as exc:
        return Reply(None, in_words(exc, asking), latency_ns)
    return Reply(answer, None, latency_ns)


async def post(
    client: httpx2.AsyncClient, endpoint: Endpoint, body: Mapping[str, object], asking: Asking
) -> tuple[int, bytes] | str:
    """Status and body of one response, or why there is none."""
    limits = asking.limits
    try:
        async with asyncio.timeout(limits.total_s):
            return await _whole(client, endpoint, body)
    except httpx2.ConnectTimeout:
        return f"no connection within {show_duration(limits.connect_s)}"
    except (TimeoutError, httpx2.TimeoutException):
        return f"no answer within {show_duration(limits.total_s)}"
    except httpx2.ConnectError as exc:
        return f"could not connect: {exc}"
    except (httpx2.HTTPError, httpx2.InvalidURL) as exc:
        name = type(exc).__name__
        return f"{name}: {exc}" if asking.quote else name
    except TargetError as exc:
        return str(exc)


def in_words(error: TargetError, asking: Asking) -> str:
    """An error without what the server said, unless that may be kept."""
    return str(error) if asking.quote else str(error).partition(":")[0].partition(" '")[0].partition(' "')[0]


async def _whole(client: httpx2.AsyncClient, endpoint: Endpoint, body: Mapping[str, object]) -> tuple[int, bytes]:
    """TargetError when the body is larger than any answer."""
    raw = bytearray()
    async with client.stream("POST", PATHS[endpoint], json=body) as response:
        async for piece in response.aiter_raw():
            raw += piece
            if len(raw) > MAX_BODY_BYTES:
                raise TargetError(f"the body of the response is larger than {MAX_BODY_BYTES} bytes")
        return response.status_code, bytes(raw)
