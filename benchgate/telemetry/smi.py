"""Accelerators of this machine as `nvidia-smi` reads them.

One process reports every second, so that none is started while a stage runs.
"""

from __future__ import annotations

import subprocess
import threading
import time
from collections.abc import Collection, Mapping, Sequence
from types import TracebackType
from typing import Self

from benchgate.model.telemetry import Gauge, TelemetryMetric
from benchgate.telemetry.sources import UnreadError

COMMAND = (
    "nvidia-smi",
    "--query-gpu=index,utilization.gpu,utilization.memory,power.draw,memory.used,memory.total,clocks.sm",
    "--format=csv,noheader,nounits",
    "--loop-ms=1000",
)
_FRESH_S = 3.0  # a report older than this is none
_STOP_S = 2.0
_FIRST_S = 5.0  # the driver may have to wake up


class SmiSource:
    """The latest report of every accelerator. Use as a context manager."""

    def __init__(self, devices: Collection[int] | None = None, command: Sequence[str] = COMMAND) -> None:
        self._devices = devices
        self._command = command
        self._process: subprocess.Popen[str] | None = None
        self._rows: dict[int, tuple[float, tuple[float | None, ...]]] = {}
        self._first = threading.Event()
        self._reader = threading.Thread(target=self._follow, daemon=True)

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
            return self  # every look will say that there is none
        self._reader.start()
        self._first.wait(_FIRST_S)
        return self

    def __exit__(self, kind: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None) -> None:
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
        """The accelerators' state as last reported. Raises UnreadError when there is no fresh report."""
        if self._process is None:
            raise UnreadError("there is no nvidia-smi on this machine", hopeless=True)
        now_s = time.monotonic()
        rows = [row for at_s, row in list(self._rows.values()) if now_s - at_s <= _FRESH_S]
        if not rows:
            raise UnreadError("nvidia-smi reports none of these accelerators")
        return together(rows)

    def _follow(self) -> None:
        assert self._process is not None and self._process.stdout is not None, "it was started"
        for line in self._process.stdout:
            parsed = parse_line(line)
            if parsed is not None and (self._devices is None or parsed[0] in self._devices):
                self._rows[parsed[0]] = (time.monotonic(), parsed[1])
                self._first.set()
        self._first.set()


def parse_line(line: str) -> tuple[int, tuple[float | None, ...]] | None:
    """`0, 97, 45, 312.4, 70000, 81559, 1755` → its number and figures, of which `[N/A]` is None; None for no report."""
    cells = [cell.strip() for cell in line.split(",")]
    if len(cells) != 7 or not cells[0].isdigit():
        return None
    return int(cells[0]), tuple(_number(cell) for cell in cells[1:])


def together(rows: Sequence[tuple[float | None, ...]]) -> dict[TelemetryMetric, float]:
    """Reports of several accelerators as one: shares and clocks are means, power is a sum.

    What one of them does not tell is left out.
    """
    busy, memory_busy, power, used, total, clock = ([row[i] for row in rows] for i in range(6))
    values: dict[TelemetryMetric, float] = {}
    means = (Gauge.GPU_BUSY, busy, 0.01), (Gauge.GPU_MEMORY_BUSY, memory_busy, 0.01), (Gauge.GPU_CLOCK, clock, 1e6)
    for word, told, scale in means:
        known = _whole(told)
        if known:
            values[word] = sum(known) / len(known) * scale
    if watts := _whole(power):
        values[Gauge.GPU_POWER] = sum(watts)
    used_mib, total_mib = _whole(used), _whole(total)
    if used_mib and total_mib and sum(total_mib) > 0:
        values[Gauge.GPU_MEMORY_USED] = sum(used_mib) / sum(total_mib)
    return values


def _whole(column: Sequence[float | None]) -> list[float]:
    """The column, or nothing when one of its figures is missing."""
    known = [value for value in column if value is not None]
    return known if len(known) == len(column) else []


def _number(cell: str) -> float | None:
    try:
        return float(cell)
    except ValueError:
        return None
