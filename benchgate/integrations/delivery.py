"""One message sent to one destination: bounded in time, tried again where that can do no harm, never redirected."""

from __future__ import annotations

import asyncio
import re
import socket
import ssl
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from http import HTTPStatus

import httpx2

from benchgate import __version__
from benchgate.errors import PublishError
from benchgate.integrations.destination import Destination, addresses

_MOST_TRIES = 4
_LONGEST_S = 60.0  # all tries and waits together
_TRY_S = 20.0
_CONNECT_S = 5.0
_LONGEST_WAIT_S = 30.0
_PASSING = frozenset({408, 425, 429, 500, 502, 503, 504})
_NOT_TAKEN = frozenset({429, 503})  # by which a server says that it did nothing
_SECONDS = re.compile(r"[0-9]{1,6}")
_REMEDIES = {
    400: "; the server does not take what was sent",
    401: "; its key or its signing secret is not the server's",
    403: "; its key or its signing secret is not the server's, or it may not be asked from here",
    404: "; is its address right, and not withdrawn?",
    410: "; its address was withdrawn",
    413: "; the server takes no message of this size",
}


@dataclass(frozen=True, slots=True)
class Clock:
    """The time and how it passes, as tests have it otherwise."""

    monotonic: Callable[[], float] = time.monotonic
    unix: Callable[[], float] = time.time
    sleep: Callable[[float], None] = time.sleep


CLOCK = Clock()


def deliver(
    method: str,
    to: Destination,
    body: bytes,
    headers: Callable[[], Mapping[str, str]],
    *,
    repeatable: bool,
    clock: Clock = CLOCK,
) -> None:
    """Send it, and come back once the server took it.

    `headers` gives those of one try. What is not `repeatable` is sent again only where the server cannot have taken it.
    Raises PublishError, which shows of the destination its origin alone.
    """
    ends_s = clock.monotonic() + _LONGEST_S
    trusted = ssl.create_default_context() if to.scheme == "https" else ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    trouble = ""
    for tries in range(_MOST_TRIES):
        wait_s = 2.0**tries
        try:
            status, asked_s = _try(method, to, body, headers(), trusted, lambda: ends_s - clock.monotonic())
        except (httpx2.ConnectError, httpx2.ConnectTimeout) as error:
            trouble = _words(error)
        except (socket.gaierror, UnicodeError):  # the latter of a name that none can have
            trouble = "there is no host of that name"
        except (httpx2.HTTPError, httpx2.InvalidURL, TimeoutError) as error:
            trouble = _words(error)
            if not repeatable:
                raise PublishError(f"{_of(to)}: {trouble}; whether it was taken is not known") from None
        else:
            if 200 <= status < 300:
                return
            trouble = f"it answers {_named(status)}"
            if status not in (_PASSING if repeatable else _NOT_TAKEN):
                moved = "; redirects are not followed" if 300 <= status < 400 else _REMEDIES.get(status, "")
                raise PublishError(f"{_of(to)}: {trouble}{moved}")
            wait_s = wait_s if asked_s is None else min(asked_s, _LONGEST_WAIT_S)
        if tries + 1 < _MOST_TRIES:
            if clock.monotonic() + wait_s >= ends_s:
                break
            clock.sleep(wait_s)
    raise PublishError(f"{_of(to)}: {trouble}, again and again; publish once more when it is there")


def _try(
    method: str,
    to: Destination,
    body: bytes,
    headers: Mapping[str, str],
    trusted: ssl.SSLContext,
    left_s: Callable[[], float],
) -> tuple[int, float | None]:
    """The status of one answer, and for how many seconds it asks to wait. Raises httpx2's errors, TimeoutError too."""
    missed: httpx2.ConnectError | httpx2.ConnectTimeout | None = None
    every = {"User-Agent": f"benchgate/{__version__}", **headers, "Host": to.host_header}
    names = {"sni_hostname": to.host} if to.scheme == "https" else {}
    for address in addresses(to):
        request = httpx2.Request(method, to.at(address), content=body, headers=every, extensions=names)
        try:
            return asyncio.run(_answered(request, trusted, min(left_s(), _TRY_S)))
        except (httpx2.ConnectError, httpx2.ConnectTimeout) as error:
            missed = error
    raise missed or httpx2.ConnectError("its host has no address")


async def _answered(request: httpx2.Request, trusted: ssl.SSLContext, limit_s: float) -> tuple[int, float | None]:
    """In an event loop, which alone can hold a server that answers byte by byte to a time for all of them."""
    timeout = httpx2.Timeout(limit_s, connect=min(_CONNECT_S, limit_s))
    request.extensions["timeout"] = timeout.as_dict()
    async with (
        asyncio.timeout(limit_s),
        httpx2.AsyncClient(verify=trusted, trust_env=False, follow_redirects=False) as client,
    ):
        response = await client.send(request, stream=True)
        await response.aclose()  # what it says beyond its status is nobody's business here
    asked = response.headers.get("Retry-After", "")
    return response.status_code, float(asked) if _SECONDS.fullmatch(asked) else None


def _of(to: Destination) -> str:
    return f"{to.what} at {to.origin} could not be told"


def _named(status: int) -> str:
    try:
        return f"HTTP {status} ({HTTPStatus(status).phrase})"
    except ValueError:
        return f"HTTP {status}"


def _words(error: Exception) -> str:
    """In words of our own: a library's may repeat the address."""
    if isinstance(error, httpx2.ConnectTimeout):
        return "no connection in time"
    if isinstance(error, (httpx2.TimeoutException, TimeoutError)):
        return "no answer in time"
    if isinstance(error, httpx2.ConnectError):
        cause = error.__cause__ or error.__context__
        while cause is not None and not isinstance(cause, ssl.SSLCertVerificationError):
            cause = cause.__cause__ or cause.__context__
        return "its certificate is not one that is trusted here" if cause is not None else "it takes no connection"
    return "the connection broke"
