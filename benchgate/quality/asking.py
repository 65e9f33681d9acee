"""One client for every question about log-probabilities: probes, multiple choice, fixed texts.

It asks as the measured path asks (same certificates, proxy, socket, headers) and takes nothing for an answer but a JSON
object with status 200 and no error in it. Asking again after 429, 5xx or a lost connection is counted.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

import httpx2

from benchgate.errors import TargetError
from benchgate.suite.schema import Limits
from benchgate.targets.address import tls_fault
from benchgate.targets.answers import MAX_BODY_BYTES
from benchgate.targets.client import http_client
from benchgate.targets.dialect import Target
from benchgate.targets.error_messages import error_text, json_object, one_line
from benchgate.units import show_duration

_RETRY_PAUSES_S = (0.25, 1.0)
_RETRIED_STATUS = frozenset({429, 500, 502, 503, 504})


class _MayPass(Exception):
    """A refusal that asking again may mend."""


class Asker:
    """Asks one deployment. `retries` counts the requests that had to be sent again."""

    def __init__(self, client: httpx2.AsyncClient, target: Target, limits: Limits) -> None:
        self.target = target
        self.retries = 0
        self._client = client
        self._limits = limits

    def another(self) -> Asker:
        """An asker over the same connections that counts its retries by itself."""
        return Asker(self._client, self.target, self._limits)

    async def ask(self, path: str, body: Mapping[str, object]) -> dict[str, object]:
        """The JSON object answered to a POST. TargetError with the server's own words, less any secret, if none is."""
        for pause_s in (*_RETRY_PAUSES_S, None):
            try:
                return await self._asked("POST", path, body)
            except _MayPass as refusal:
                if pause_s is None:
                    raise TargetError(str(refusal)) from None
                self.retries += 1
                await asyncio.sleep(pause_s)
        raise AssertionError("the last attempt returns or raises")

    async def get(self, path: str) -> dict[str, object]:
        """The JSON object at a path; TargetError when there is none."""
        try:
            return await self._asked("GET", path, None)
        except _MayPass as refusal:
            raise TargetError(str(refusal)) from None

    def body(self, **fields: object) -> dict[str, object]:
        """A completions body in the target's dialect; `max_tokens` under the server's own name for it.

        The given fields stand above the suite's `extra`: with another value the answer would be about something else.
        """
        dialect = self.target.dialect
        if "max_tokens" in fields:
            fields[dialect.max_tokens_field] = fields.pop("max_tokens")
        body = {"model": self.target.model, **dialect.extra, **fields}
        return {name: value for name, value in body.items() if name not in dialect.leave_out}

    async def _asked(self, method: str, path: str, body: Mapping[str, object] | None) -> dict[str, object]:
        try:
            async with asyncio.timeout(self._limits.total_s):
                status, content = await self._sent(method, path, body)
        except httpx2.ConnectTimeout:
            raise self._refusal(f"no connection within {show_duration(self._limits.connect_s)}") from None
        except (TimeoutError, httpx2.TimeoutException):
            raise self._refusal(f"no answer within {show_duration(self._limits.total_s)}") from None
        except (httpx2.HTTPError, httpx2.InvalidURL) as exc:
            broken = _tls_error(exc)
            if broken is not None:
                raise self._refusal(f"no TLS with the server: {tls_fault(broken)}") from exc
            raise _MayPass(self._told(str(exc) or type(exc).__name__)) from exc
        if status != 200:
            words = self._told(f"HTTP {status}: {error_text(content) or 'an empty body'}")
            raise _MayPass(words) if status in _RETRIED_STATUS else TargetError(words)
        document = json_object(content)
        if document is None:
            raise self._refusal(f"HTTP 200 with a body that is not a JSON object: {error_text(content) or 'empty'}")
        if document.get("error"):
            raise self._refusal(f"HTTP 200 with an error in it: {error_text(content)}")
        return document

    async def _sent(self, method: str, path: str, body: Mapping[str, object] | None) -> tuple[int, bytes]:
        content = bytearray()
        async with self._client.stream(method, path, json=body) as response:
            async for piece in response.aiter_bytes():
                content += piece
                if len(content) > MAX_BODY_BYTES:
                    raise TargetError(f"the body of the response is larger than {MAX_BODY_BYTES} bytes")
            return response.status_code, bytes(content)

    def _refusal(self, words: str) -> TargetError:
        return TargetError(self._told(words))

    def _told(self, words: str) -> str:
        return one_line(words, secret=self.target.secrets)


@asynccontextmanager
async def asker_of(target: Target, limits: Limits, concurrency: int) -> AsyncIterator[Asker]:
    """An asker with at most `concurrency` connections, for the length of the block."""
    timeout = httpx2.Timeout(limits.total_s, connect=limits.connect_s, pool=None)
    pool = httpx2.Limits(max_connections=concurrency, max_keepalive_connections=concurrency)
    async with http_client(target, timeout, pool) as client:
        yield Asker(client, target, limits)


def _tls_error(error: BaseException | None) -> ssl.SSLError | None:
    """What TLS itself said, beneath what the client made of it."""
    while error is not None and not isinstance(error, ssl.SSLError):
        error = error.__cause__ or error.__context__
    return error
