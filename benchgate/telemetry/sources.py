"""Sources of telemetry around a deployment: metrics pages, names of accelerators, process marker.

While a stage runs, parsing a page would keep the interpreter from the streams that are measured. So a page is only
fetched and compressed, which leaves the interpreter free, and `Fetched.text` is read when the stage is over.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Self
from urllib.parse import urlsplit

from benchgate.errors import TargetError
from benchgate.model.telemetry import Role
from benchgate.suite.deployment import AUTO, OFF, DeploymentSpec, Metrics, resolve_page
from benchgate.targets.address import ServerAddress
from benchgate.targets.client import BodyTooLargeError, JsonClient
from benchgate.targets.dialect import Target
from benchgate.targets.error_messages import RequestError
from benchgate.telemetry.accelerators import name_accelerators
from benchgate.telemetry.engine_metrics import (
    NO_PAGE,
    PAGES,
    START_TIME_HEADER,
    BadPageError,
    UnreadError,
    read_page,
)
from benchgate.telemetry.prometheus import PrometheusQuery, prometheus_query
from benchgate.telemetry.smi import SMI_TOOLS, SmiTool

_USUAL_PATH = "/metrics"
_CONNECT_S = 2.0
_LONGEST_S = 5.0  # for a whole page: a server too busy to answer is one of the things to see
_LARGEST_PAGE_BYTES = 8 * 2**20


@dataclass(frozen=True, slots=True)
class ReplicaSource:
    """The metrics page of one replica (secret address)."""

    name: str
    role: Role | None
    address: str = field(repr=False)


@dataclass(frozen=True, slots=True)
class Sources:
    """The sources of a deployment (secret addresses): one `page`, a page of each replica, or Prometheus.

    `gpu`: an exporter's page or `nvidia-smi`; `devices` None: all. `expected` is the declared number of replicas.
    """

    page: str | None = field(default=None, repr=False)
    gpu: str | None = field(default=None, repr=False)
    devices: tuple[int, ...] | None = None
    replicas: tuple[ReplicaSource, ...] = ()
    prometheus: PrometheusQuery | None = None
    expected: int | None = None

    @property
    def addresses(self) -> tuple[str, ...]:
        """Return the address of every page of metrics."""
        return tuple(replica.address for replica in self.replicas) or ((self.page,) if self.page is not None else ())


def sources_of(spec: DeploymentSpec, target: Target, environment: Mapping[str, str]) -> Sources:
    """Resolve the sources of a deployment. Raises UsageError for a reference that is not set or holds no address."""
    metrics = spec.metrics
    return Sources(
        _page_of(metrics.page, target, environment),
        None if spec.gpu is None else resolve_page("gpu", spec.gpu, environment),
        spec.gpu_devices or None,
        _replica_sources(metrics, environment),
        prometheus_query(metrics, target, environment) if metrics.prometheus is not None else None,
        spec.ready.replicas if spec.ready is not None else None,
    )


def _page_of(page: str | None, target: Target, environment: Mapping[str, str]) -> str | None:
    if page in (None, OFF):
        return None
    if page != AUTO:
        return resolve_page("metrics", str(page), environment)
    server, usual = ServerAddress.of(target.url), PAGES.get(target.dialect.engine)
    if target.dialect.engine in NO_PAGE:
        return None
    if usual is None or usual.ports is None or server.port != usual.ports[0]:
        return target.page(_USUAL_PATH if usual is None else usual.path)
    return f"http://{server._replace(port=usual.ports[1]).netloc}{usual.path}"


def _replica_sources(metrics: Metrics, environment: Mapping[str, str]) -> tuple[ReplicaSource, ...]:
    """Name each replica by the host and port of its page; a path or a query may hold a token."""
    addresses = [resolve_page("metrics", replica.url, environment) for replica in metrics.replicas]
    hosts = [urlsplit(address).netloc.rpartition("@")[2] for address in addresses]
    names = [
        host if hosts.count(host) == 1 else f"{host} #{hosts[: number + 1].count(host)}"
        for number, host in enumerate(hosts)
    ]
    return tuple(
        ReplicaSource(name, None if replica.role is None else Role(replica.role), address)
        for name, replica, address in zip(names, metrics.replicas, addresses, strict=True)
    )


@dataclass(frozen=True, slots=True)
class Fetched:
    """A compressed page. `start_time` is the server's, where a header reports it."""

    compressed: bytes
    start_time: str | None

    @property
    def text(self) -> str:
        """The page."""
        return zlib.decompress(self.compressed).decode("utf-8", "replace")


class PageSource:
    """A metrics page. Use as a context manager.

    A page of the deployment's own server is read by its route and with its headers; a page elsewhere gets neither its
    credentials nor its proxy.
    """

    def __init__(self, address: str, target: Target, longest_s: float = _LONGEST_S) -> None:
        self._address = address
        self._client = JsonClient(
            target if _is_of_server(address, target) else None,
            connect_s=_CONNECT_S,
            total_s=longest_s,
            max_body_bytes=_LARGEST_PAGE_BYTES,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._client.close()

    def fetch(self) -> Fetched:
        """Return the page as it is now. Raises UnreadError, which shows no more of the address than its host."""
        parts = urlsplit(self._address)  # a path or a query may hold a token, and the part before the host a password
        where = f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}"
        try:
            response = self._client.send("GET", self._address)
        except BodyTooLargeError as exc:
            raise UnreadError(f"the page of metrics at {where} does not end", hopeless=True) from exc
        except RequestError as exc:
            raise UnreadError(f"the metrics at {where} could not be read: {exc.summary}") from exc
        status = response.status
        if status != 200:
            # The page is elsewhere, refused or missing: that stays so. A server that is down comes back.
            is_final = status == 501 or (300 <= status < 500 and status not in (408, 425, 429))
            raise UnreadError(f"{where} answers HTTP {status} to the request for its metrics", hopeless=is_final)
        return Fetched(zlib.compress(response.body, 1), response.headers.get(START_TIME_HEADER))


def _is_of_server(address: str, target: Target) -> bool:
    try:
        server = ServerAddress.of(target.url)
    except TargetError:
        return False
    page, base = urlsplit(address), urlsplit(server.page(""))
    return (page.scheme, page.netloc) == (base.scheme, base.netloc)


def process_marker(sources: Sources, target: Target) -> str | None:
    """Return a value that changes when a server process restarts; None if a page of metrics has none."""
    markers = []
    for address in sources.addresses:
        try:
            with PageSource(address, target) as source:
                page = source.fetch()
            markers.append(read_page(page.text, target.model, page.start_time).marker)
        except (UnreadError, BadPageError):
            markers.append(None)
    return join_markers(markers)


def join_markers(markers: Sequence[str | None]) -> str | None:
    """Return one marker of several processes; None if one of them is unknown."""
    known = [marker for marker in markers if marker is not None]
    return ",".join(known) if known and len(known) == len(markers) else None


# --- names of accelerators ------------------------------------------------------------------------------------------


def accelerator_facts(sources: Sources, target: Target, tools: Mapping[str, SmiTool] = SMI_TOOLS) -> dict[str, object]:
    """Return `accelerator_names` by number, and `driver`, as reported by a tool of this machine or an exporter."""
    if sources.gpu is None:
        return {}
    gpu, tool = sources.gpu, tools.get(sources.gpu)
    read = partial(_names_by_page, gpu, target) if tool is None else tool.name_devices
    found = read() or read()  # one that did not answer once: a deployment without its facts looks like another one
    kept = [found[number] for number in sorted(found) if sources.devices is None or number in sources.devices]
    drivers = sorted({driver for _, driver in kept if driver})
    facts: dict[str, object] = {"accelerator_names": [name for name, _ in kept]} if kept else {}
    return facts | ({"driver": ", ".join(drivers)} if drivers else {})


def _names_by_page(address: str, target: Target) -> dict[int, tuple[str, str]]:
    try:
        with PageSource(address, target) as source:
            return name_accelerators(source.fetch().text)
    except (UnreadError, BadPageError):
        return {}
