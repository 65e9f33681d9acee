"""Sources of telemetry around a deployment: metrics pages, `nvidia-smi`, names of accelerators, process marker.

While a stage runs, parsing a page would keep the interpreter from the streams that are measured. So a page is only
fetched and compressed, which leaves the interpreter free, and `Fetched.text` is read when the stage is over.
"""

from __future__ import annotations

import subprocess
import threading
import time
import zlib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Self
from urllib.parse import urlsplit

from benchgate.errors import TargetError
from benchgate.model.telemetry import Gauge, TelemetryMetric
from benchgate.suite.deployment import AUTO, NVIDIA_SMI, OFF, DeploymentSpec, resolve_page
from benchgate.targets.address import ServerAddress
from benchgate.targets.client import BodyTooLargeError, JsonClient
from benchgate.targets.dialect import Target
from benchgate.targets.error_messages import RequestError, one_line
from benchgate.telemetry.engine_metrics import (
    GPU_LABEL,
    NO_PAGE,
    PAGES,
    START_TIME_HEADER,
    BadPageError,
    parse_samples,
    read_page,
)

_USUAL_PATH = "/metrics"
_CONNECT_S = 2.0
_LONGEST_S = 5.0  # for a whole page: a server too busy to answer is one of the things to see
_LARGEST_PAGE_BYTES = 8 * 2**20


@dataclass(frozen=True, slots=True)
class Sources:
    """The sources of a deployment (secret addresses); `gpu`: DCGM page or `nvidia-smi`; `devices` None: all."""

    page: str | None = field(default=None, repr=False)
    gpu: str | None = field(default=None, repr=False)
    devices: tuple[int, ...] | None = None


def sources_of(spec: DeploymentSpec, target: Target, environment: Mapping[str, str]) -> Sources:
    """Resolve the sources of a deployment. Raises UsageError for a reference that is not set or holds no address."""
    if spec.metrics == OFF:
        page = None
    elif spec.metrics == AUTO:
        server, usual = ServerAddress.of(target.url), PAGES.get(target.dialect.engine)
        if target.dialect.engine in NO_PAGE:
            page = None
        elif usual is None or usual.ports is None or server.port != usual.ports[0]:
            page = target.page(_USUAL_PATH if usual is None else usual.path)
        else:
            page = f"http://{server._replace(port=usual.ports[1]).netloc}{usual.path}"
    else:
        page = resolve_page("metrics", spec.metrics, environment)
    gpu = None if spec.gpu is None else resolve_page("gpu", spec.gpu, environment)
    return Sources(page, gpu, spec.gpu_devices or None)


class UnreadError(Exception):
    """A source could not be read. `hopeless`: it does not exist, and another attempt will not change that."""

    def __init__(self, reason: str, *, hopeless: bool = False) -> None:
        super().__init__(reason)
        self.hopeless = hopeless


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
    """Return a value that changes when the server process restarts, if its metrics page has one."""
    if sources.page is None:
        return None
    try:
        with PageSource(sources.page, target) as source:
            page = source.fetch()
        return read_page(page.text, target.model, page.start_time).marker
    except (UnreadError, BadPageError):
        return None


# --- nvidia-smi -----------------------------------------------------------------------------------------------------

SMI_COMMAND = (
    "nvidia-smi",
    "--query-gpu=index,utilization.gpu,utilization.memory,power.draw,memory.used,memory.total,clocks.sm",
    "--format=csv,noheader,nounits",
    "--loop-ms=1000",
)
NAMES_COMMAND = ("nvidia-smi", "--query-gpu=index,name,driver_version", "--format=csv,noheader")
_FRESH_S = 3.0  # an older report is ignored
_STOP_S = 2.0
_FIRST_S = 5.0  # the driver may have to wake up
_NAMES_S = 10.0


class SmiSource:
    """The latest report of each accelerator, by one `nvidia-smi` that runs all the time. A context manager."""

    def __init__(self, devices: Collection[int] | None = None, command: Sequence[str] = SMI_COMMAND) -> None:
        self._devices = devices
        self._command = command
        self._process: subprocess.Popen[str] | None = None
        self._rows: dict[int, tuple[float, tuple[float | None, ...]]] = {}
        self._first = threading.Event()
        self._reader = threading.Thread(target=self._read_reports, daemon=True)

    def __enter__(self) -> Self:
        try:
            self._process = subprocess.Popen(
                self._command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                text=True,
                start_new_session=True,
            )
        except OSError:
            return self  # every fetch reports that there is none
        self._reader.start()
        self._first.wait(_FIRST_S)
        return self

    def __exit__(self, *_: object) -> None:
        if self._process is None:
            return
        self._process.terminate()
        try:
            self._process.wait(_STOP_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._reader.join(_STOP_S)
        if self._process.stdout is not None:
            self._process.stdout.close()

    def fetch(self) -> Mapping[TelemetryMetric, float]:
        """Return the accelerators' state as last reported. Raises UnreadError when there is no fresh report."""
        if self._process is None:
            raise UnreadError("there is no nvidia-smi on this machine", hopeless=True)
        now_s = time.monotonic()
        rows = [row for at_s, row in list(self._rows.values()) if now_s - at_s <= _FRESH_S]
        if not rows:
            raise UnreadError("nvidia-smi reports none of these accelerators")
        return combine_rows(rows)

    def _read_reports(self) -> None:
        assert self._process is not None and self._process.stdout is not None, "it was started"
        for line in self._process.stdout:
            parsed = parse_line(line)
            if parsed is not None and (self._devices is None or parsed[0] in self._devices):
                self._rows[parsed[0]] = (time.monotonic(), parsed[1])
                self._first.set()
        self._first.set()


def parse_line(line: str) -> tuple[int, tuple[float | None, ...]] | None:
    """Parse `0, 97, 45, 312.4, 70000, 81559, 1755` to number and figures. `[N/A]` is None, and so is another line."""
    cells = [cell.strip() for cell in line.split(",")]
    if len(cells) != 7 or not cells[0].isdigit():
        return None
    return int(cells[0]), tuple(_number(cell) for cell in cells[1:])


def combine_rows(rows: Sequence[tuple[float | None, ...]]) -> dict[TelemetryMetric, float]:
    """Combine reports of accelerators: shares and clocks are means, power a sum; incomplete figures are left out."""
    busy, memory_busy, power, used, total, clock = ([row[i] for row in rows] for i in range(6))
    values: dict[TelemetryMetric, float] = {}
    means = (Gauge.GPU_BUSY, busy, 0.01), (Gauge.GPU_MEMORY_BUSY, memory_busy, 0.01), (Gauge.GPU_CLOCK, clock, 1e6)
    for metric, column, scale in means:
        known = _complete(column)
        if known:
            values[metric] = sum(known) / len(known) * scale
    if watts := _complete(power):
        values[Gauge.GPU_POWER] = sum(watts)
    used_mib, total_mib = _complete(used), _complete(total)
    if used_mib and total_mib and sum(total_mib) > 0:
        values[Gauge.GPU_MEMORY_USED] = sum(used_mib) / sum(total_mib)
    return values


def _complete(column: Sequence[float | None]) -> list[float]:
    """Return the column, or nothing when one of its figures is missing."""
    known = [value for value in column if value is not None]
    return known if len(known) == len(column) else []


def _number(cell: str) -> float | None:
    try:
        return float(cell)
    except ValueError:
        return None


# --- names of accelerators ------------------------------------------------------------------------------------------


def accelerator_facts(sources: Sources, target: Target, command: Sequence[str] = NAMES_COMMAND) -> dict[str, object]:
    """Return `accelerator_names` by number, and `driver`, as reported by `nvidia-smi` or a DCGM exporter."""
    if sources.gpu is None:
        return {}
    found = _names_by_smi(command) if sources.gpu == NVIDIA_SMI else _names_by_page(sources.gpu, target)
    kept = [found[number] for number in sorted(found) if sources.devices is None or number in sources.devices]
    drivers = sorted({driver for _, driver in kept if driver})
    facts: dict[str, object] = {"accelerator_names": [name for name, _ in kept]} if kept else {}
    return facts | ({"driver": ", ".join(drivers)} if drivers else {})


def _names_by_smi(command: Sequence[str]) -> dict[int, tuple[str, str]]:
    """Read lines like `0, NVIDIA H200, 570.86.15`. Empty on a machine without accelerators."""
    try:
        ran = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=_NAMES_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return {}
    rows = [[cell.strip() for cell in line.split(",")] for line in ran.stdout.splitlines()]
    whole = [row for row in rows if len(row) == 3 and row[0].isdigit()]
    return {int(row[0]): (one_line(row[1]), one_line(row[2])) for row in whole}


def _names_by_page(address: str, target: Target) -> dict[int, tuple[str, str]]:
    try:
        with PageSource(address, target) as source:
            samples = parse_samples(source.fetch().text)
    except (UnreadError, BadPageError):
        return {}
    found = {}
    for sample in samples:
        number, name = sample.labels.get(GPU_LABEL, ""), sample.labels.get("modelName")
        if name is not None and number.isdigit():
            found[int(number)] = (one_line(name), one_line(sample.labels.get("DCGM_FI_DRIVER_VERSION", "")))
    return found
