"""The JSON client for every request beside the measured load: probes, evals, shadow traffic, judges, telemetry.

It reaches a server as the load does: the same certificates, proxy, socket and headers, no redirects, nothing from the
environment. Time and size of a response are limited as a whole. A request without a usable response raises
RequestError, whose message holds neither a credential nor the path of the address.

    async with AsyncJsonClient(target, connect_s=10, total_s=600, connections=16, retry=RETRY) as client:
        document = await client.post(path, body)  # a JSON object of status 200 without an error in it
        response = await client.send("POST", path, body)  # any status, as `read_answer` takes it

- Many items over the same connections, each counting its own retries: `client.with_own_retry_count()` for each item,
  then `.retries`, also after a failure.
- Texts of users that must not be kept: store `error.summary` instead of `str(error)`.
- Latency without pauses and failed attempts: `response.latency_ns`.

`JsonClient` is the same for callers without an event loop.
"""

from __future__ import annotations

import asyncio
import copy
import json
import os
import ssl
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from typing import Self

import httpx2

from benchgate.errors import TargetError
from benchgate.targets.address import DIRECT, NO_ADDRESS, ServerAddress, tls_context, tls_fault
from benchgate.targets.answers import MAX_BODY_BYTES
from benchgate.targets.dialect import Target
from benchgate.targets.error_messages import RequestError, success_document
from benchgate.targets.multipart import FORM_TYPE, FormBody
from benchgate.units import show_duration


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """Further attempts after a lost connection or one of `statuses`. `Retry-After` makes pauses longer."""

    pauses_s: tuple[float, ...]
    statuses: frozenset[int] = frozenset({429, 500, 502, 503, 504})
    longest_pause_s: float = 30.0


NO_RETRY = RetryPolicy(())
RETRY = RetryPolicy((0.25, 1.0))


@dataclass(frozen=True, slots=True)
class Response:
    """A complete response. Names of headers are looked up in any case; `latency_ns` is of the last attempt alone."""

    status: int
    body: bytes
    headers: Mapping[str, str]
    latency_ns: int


Content = Mapping[str, object] | FormBody
"""Body of a request: the object to be sent as JSON, or a form."""


class TlsError(RequestError):
    """A failed TLS handshake. `is_about_certificates`: one end does not accept the other's certificate."""

    def __init__(self, error: ssl.SSLError) -> None:
        super().__init__("no TLS with the server", tls_fault(error))
        reason = error.reason or ""
        self.is_about_certificates = isinstance(error, ssl.SSLCertVerificationError) or "CERTIFICATE" in reason


class NoConnectionError(RequestError):
    """Nothing accepts connections at the address: refused, no such host, or no connection in time."""


class NotHttpError(RequestError):
    """The peer answered with something that is not HTTP."""


class BodyTooLargeError(RequestError):
    """A response that went on beyond the largest body accepted."""


class AsyncJsonClient:
    """Sends JSON requests to one target. Use as a context manager.

    Without a target, it takes absolute addresses and shows no credentials. `connections` limits how many requests are
    under way at once. `retries` counts repeated requests.
    """

    def __init__(
        self,
        target: Target | None,
        *,
        connect_s: float,
        total_s: float,
        connections: int | None = None,
        retry: RetryPolicy = NO_RETRY,
        max_body_bytes: int = MAX_BODY_BYTES,
    ) -> None:
        self.target = target
        self._address = None if target is None else ServerAddress.of(target.url)
        self.retries = 0
        self._connect_s = min(connect_s, total_s)
        self._total_s = total_s
        self._retry = retry
        self._max_body_bytes = max_body_bytes
        timeout = httpx2.Timeout(total_s, connect=self._connect_s, pool=None)
        self._http = http_client(
            target, timeout, httpx2.Limits(max_connections=connections, max_keepalive_connections=connections)
        )

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._http.aclose()

    def with_own_retry_count(self) -> Self:
        """Return a client over the same connections that counts its retries by itself. Do not close it."""
        client = copy.copy(self)
        client.retries = 0
        return client

    async def post(self, path: str, body: Content) -> dict[str, object]:
        """Return the JSON object that answers a POST. Raises RequestError for any other response."""
        return self._document(await self.send("POST", path, body))

    async def get(self, path: str) -> dict[str, object]:
        """Return the JSON object at a path. Raises RequestError for any other response."""
        return self._document(await self.send("GET", path))

    async def send(self, method: str, path: str, body: Content | None = None) -> Response:
        """Return the response, of whatever status. Raises RequestError when no complete one came."""
        for pause_s in self._retry.pauses_s:
            longer_s = 0.0
            try:
                response = await self._attempt(method, path, body)
            except RequestError as error:
                if not error.is_transient:
                    raise
            else:
                if response.status not in self._retry.statuses:
                    return response
                longer_s = min(_retry_after_s(response.headers.get("retry-after", "")), self._retry.longest_pause_s)
            self.retries += 1
            await asyncio.sleep(max(pause_s, longer_s))
        return await self._attempt(method, path, body)

    @asynccontextmanager
    async def stream(self, method: str, path: str, body: Content | None = None) -> AsyncIterator[httpx2.Response]:
        """Yield a response whose body the block reads. Failures there and before raise RequestError; no retries."""
        form = body if isinstance(body, FormBody) else None
        content = None if body is None else json.dumps(body).encode() if form is None else form.content
        headers = None if form is None else {"content-type": FORM_TYPE}
        url = self._address.page(path) if self._address is not None and path.startswith("/") else path
        try:
            async with (
                asyncio.timeout(self._total_s),
                self._http.stream(method, url, content=content, headers=headers) as response,
            ):
                yield response
        except (OSError, httpx2.HTTPError, httpx2.InvalidURL) as error:  # ssl.SSLError is an OSError, and not wrapped
            raise self._request_error(error) from None

    async def read_body(self, response: httpx2.Response) -> bytes:
        """Return the body of a streamed response. Raises BodyTooLargeError."""
        content = bytearray()
        async for piece in response.aiter_bytes():
            content += piece
            if len(content) > self._max_body_bytes:
                raise BodyTooLargeError(f"the body of the response is larger than {self._max_body_bytes} bytes")
        return bytes(content)

    async def _attempt(self, method: str, path: str, body: Content | None) -> Response:
        began_ns = time.perf_counter_ns()
        async with self.stream(method, path, body) as response:
            content = await self.read_body(response)
        return Response(response.status_code, content, response.headers, time.perf_counter_ns() - began_ns)

    def _document(self, response: Response) -> dict[str, object]:
        try:
            return success_document(response.status, response.body)
        except RequestError as error:
            raise error.redacted(self._redact) from None

    def _redact(self, text: str) -> str:
        return text if self.target is None else self.target.redact(text)

    def _request_error(self, error: Exception) -> RequestError:
        if isinstance(error, httpx2.ConnectTimeout):
            return NoConnectionError(f"no connection within {show_duration(self._connect_s)}")
        if isinstance(error, TimeoutError | httpx2.TimeoutException):
            return RequestError(f"no answer within {show_duration(self._total_s)}")
        # These two quote addresses and headers.
        if isinstance(error, httpx2.InvalidURL | httpx2.UnsupportedProtocol | httpx2.LocalProtocolError):
            return RequestError(f"the request cannot be sent ({type(error).__name__})")
        causes: list[BaseException] = []  # everything beneath it, the deepest last; of a group, its last member
        beneath: BaseException | None = error
        while beneath is not None and beneath not in causes:
            causes.append(beneath)
            if isinstance(beneath, BaseExceptionGroup):
                beneath = beneath.exceptions[-1]
            else:
                beneath = beneath.__cause__ or beneath.__context__
        for cause in causes:
            if isinstance(cause, ssl.SSLError):
                return TlsError(cause)
        if isinstance(error, httpx2.ConnectError):
            numbers = [cause.errno for cause in causes if isinstance(cause, OSError) and cause.errno]
            detail = os.strerror(numbers[-1]) if numbers and numbers[-1] > 0 else self._redact(str(error))
            return NoConnectionError("could not connect", detail, is_transient=True)
        if isinstance(error, httpx2.RemoteProtocolError) and "disconnected" not in str(error):
            return NotHttpError("its answer is not HTTP", self._redact(str(error)))
        summary = f"the connection failed ({type(error).__name__})"
        return RequestError(summary, self._redact(str(error)), is_transient=True)


class JsonClient:
    """`AsyncJsonClient` for callers without an event loop, one request after another. Use as a context manager."""

    def __init__(
        self,
        target: Target | None,
        *,
        connect_s: float,
        total_s: float,
        retry: RetryPolicy = NO_RETRY,
        max_body_bytes: int = MAX_BODY_BYTES,
    ) -> None:
        self._client = AsyncJsonClient(
            target, connect_s=connect_s, total_s=total_s, connections=1, retry=retry, max_body_bytes=max_body_bytes
        )
        self._runner = asyncio.Runner()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections."""
        with self._runner:
            self._runner.run(self._client.__aexit__())

    def post(self, path: str, body: Content) -> dict[str, object]:
        """Return the JSON object that answers a POST. Raises RequestError for any other response."""
        return self._runner.run(self._client.post(path, body))

    def get(self, path: str) -> dict[str, object]:
        """Return the JSON object at a path. Raises RequestError for any other response."""
        return self._runner.run(self._client.get(path))

    def send(self, method: str, path: str, body: Content | None = None) -> Response:
        """Return the response, of whatever status. Raises RequestError when no complete one came."""
        return self._runner.run(self._client.send(method, path, body))


def http_client(target: Target | None, timeout: httpx2.Timeout, limits: httpx2.Limits) -> httpx2.AsyncClient:
    """Return the HTTP client beneath a JSON client. Raises TargetError for an address that is none."""
    if target is None:
        return httpx2.AsyncClient(
            timeout=timeout, limits=limits, follow_redirects=False, trust_env=False, verify=tls_context(DIRECT)
        )
    address, context = ServerAddress.of(target.url), tls_context(target.route)
    socket = address.socket
    try:
        return httpx2.AsyncClient(
            transport=None if socket is None else httpx2.AsyncHTTPTransport(verify=context, uds=socket, limits=limits),
            base_url=address.page(""),
            headers=target.headers(),
            timeout=timeout,
            limits=limits,
            follow_redirects=False,
            trust_env=False,
            verify=context,
            proxy=target.route.proxy,
        )
    except httpx2.InvalidURL:
        raise TargetError(NO_ADDRESS) from None  # its message repeats parts of the address


def _retry_after_s(value: str) -> float:
    try:
        if value.isascii() and value.isdigit():
            return float(value)
        return parsedate_to_datetime(value).timestamp() - time.time()
    except (ValueError, OverflowError, OSError):  # the last two for years that the system's clock has no second for
        return 0.0
