"""Where a deployment's telemetry is read, and the reading itself: bytes in, kept as they came, understood later.

While a stage runs, taking a page apart would keep the interpreter from the streams that are measured. So a page is only
fetched and squeezed (which leaves the interpreter free), and `Fetched.text` is asked for when the stage is over.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from urllib.parse import urlsplit

import httpx2

from benchgate.errors import TargetError
from benchgate.suite.deployment import AUTO, OFF, DeploymentSpec, resolve_page
from benchgate.targets.address import ServerAddress
from benchgate.targets.clients import client_of
from benchgate.targets.dialect import Target
from benchgate.telemetry.engines import BORN_HEADER, PAGES
from benchgate.units import show_duration

_USUAL_PATH = "/metrics"
_TIMEOUT = httpx2.Timeout(2.0)  # a server too busy to tell is one of the things to see; the next look is a second away
_LONGEST_S = 5.0  # for a whole page: one that comes in drops never keeps anything waiting for long
_LARGEST_PAGE_BYTES = 8 * 2**20


@dataclass(frozen=True, slots=True)
class Sources:
    """What is read around a deployment's stages; None: nothing of the kind. Addresses may hold what must not be shown.

    `gpu` is the address of a DCGM exporter's page or `nvidia-smi`; `devices` None means all of them.
    """

    page: str | None = field(default=None, repr=False)
    gpu: str | None = field(default=None, repr=False)
    devices: tuple[int, ...] | None = None


def sources_of(spec: DeploymentSpec, target: Target, environment: Mapping[str, str]) -> Sources:
    """What to read of a deployment, its references resolved. UsageError for one that is not set or holds no address."""
    if spec.metrics == OFF:
        page = None
    elif spec.metrics == AUTO:
        page = _usual_page(target)
    else:
        page = resolve_page("metrics", spec.metrics, environment)
    gpu = None if spec.gpu is None else resolve_page("gpu", spec.gpu, environment)
    return Sources(page, gpu, spec.gpu_devices or None)


def _usual_page(target: Target) -> str | None:
    """Where the engine shows its metrics; None for one that does not."""
    engine = target.dialect.engine
    if engine == "ollama":
        return None
    server, page = ServerAddress.of(target.url), PAGES.get(engine)
    if page is None or page.port is None:
        return f"{server.http_url}{_USUAL_PATH if page is None else page.path}"
    return None if server.socket is not None else f"http://{_host(server)}:{page.port}{page.path}"


def _host(server: ServerAddress) -> str:
    return f"[{server.host}]" if ":" in server.host else server.host


class UnreadError(Exception):
    """A page could not be had. `hopeless`: the server has none, and asking again will not change that."""

    def __init__(self, reason: str, *, hopeless: bool = False) -> None:
        super().__init__(reason)
        self.hopeless = hopeless


@dataclass(frozen=True, slots=True)
class Fetched:
    """A page as it came, squeezed. `born` is when the server says in a header that it was started."""

    squeezed: bytes
    born: str | None

    @property
    def text(self) -> str:
        """The page."""
        return zlib.decompress(self.squeezed).decode("utf-8", "replace")


class PageSource:
    """One page of metrics and the client that asks for it. Use as a context manager.

    What asks the server itself goes the way and carries the headers of every other request; a page elsewhere gets
    neither its credentials nor its proxy.
    """

    def __init__(self, address: str, target: Target, longest_s: float = _LONGEST_S) -> None:
        self._address = address
        self._target = target
        self._longest_s = longest_s
        self._asker: _Asker | None = None

    def __enter__(self) -> PageSource:
        self._asker = self._begin()
        return self

    def __exit__(self, *_: object) -> None:
        self._leave()

    def fetch(self) -> Fetched:
        """The page as it is now. Raises UnreadError, which shows no more of the address than its host."""
        self._asker = self._asker or self._begin()
        try:
            return self._asker.fetched(self._longest_s)
        except TimeoutError as exc:
            self._leave()
            where, longest = _shown(self._address), show_duration(self._longest_s)
            raise UnreadError(f"the page of metrics at {where} was not there whole within {longest}") from exc

    def _begin(self) -> _Asker:
        ours = _same_server(self._address, self._target)
        return _Asker(self._address, client_of(self._target, _TIMEOUT) if ours else _plain_client())

    def _leave(self) -> None:
        if self._asker is not None:
            self._asker.close()
        self._asker = None


class _Asker:
    """A client with a thread of its own that asks: whatever a server does to it, nobody has to wait for it."""

    def __init__(self, address: str, client: httpx2.Client) -> None:
        self._address = address
        self._client = client
        self._thread = ThreadPoolExecutor(1, "benchgate-metrics")

    def fetched(self, within_s: float) -> Fetched:
        """The page. TimeoutError when it is not there by then; the asker is then to be closed."""
        return self._thread.submit(self._fetch).result(within_s)

    def close(self) -> None:
        """Leave. What still reads finds its connection closed."""
        self._client.close()
        self._thread.shutdown(wait=False)

    def _fetch(self) -> Fetched:
        where = _shown(self._address)
        squeeze, size = zlib.compressobj(1), 0
        parts = []
        try:
            with self._client.stream("GET", self._address) as response:
                if response.status_code != 200:
                    reason = f"{where} answers HTTP {response.status_code} when asked for its metrics"
                    raise UnreadError(reason, hopeless=_is_final(response.status_code))
                for piece in response.iter_bytes():
                    size += len(piece)
                    if size > _LARGEST_PAGE_BYTES:
                        raise UnreadError(f"the page of metrics at {where} does not end", hopeless=True)
                    parts.append(squeeze.compress(piece))
                born = response.headers.get(BORN_HEADER)
        except (httpx2.HTTPError, httpx2.InvalidURL) as exc:
            raise UnreadError(f"the metrics at {where} could not be read: {type(exc).__name__}") from exc
        return Fetched(b"".join([*parts, squeeze.flush()]), born)


def _is_final(status: int) -> bool:
    """Whether asking again will change nothing: the page is elsewhere, refused or missing. What is down comes back."""
    return status == 501 or (300 <= status < 500 and status not in (408, 425, 429))


def _shown(address: str) -> str:
    """Scheme, host and port: a path or a query may hold a token, and what stands before the host a password."""
    parts = urlsplit(address)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}"


def _same_server(address: str, target: Target) -> bool:
    try:
        server = ServerAddress.of(target.url)
    except TargetError:
        return False
    ours, theirs = urlsplit(address), urlsplit(server.http_url)
    return (ours.scheme, ours.netloc) == (theirs.scheme, theirs.netloc)


def _plain_client() -> httpx2.Client:
    return httpx2.Client(timeout=_TIMEOUT, follow_redirects=False, trust_env=False)
