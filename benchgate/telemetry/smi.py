"""Command-line tools that report the accelerators of this machine: `nvidia-smi`, `amd-smi`, `xpu-smi`."""

from __future__ import annotations

import csv
import os
import subprocess
import threading
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from types import MappingProxyType
from typing import Self

from benchgate.model.telemetry import Gauge, TelemetryMetric
from benchgate.targets.error_messages import one_line
from benchgate.telemetry.accelerators import AcceleratorReading, lacking_problems
from benchgate.telemetry.engine_metrics import UnreadError

_FRESH_S = 3.0  # an older report is ignored
_STOP_S = 2.0
_FIRST_S = 5.0  # the driver may have to wake up
_NAMES_S = 10.0


class Figure(Enum):
    """A column of a report. Used and total memory have the same unit."""

    BUSY_PERCENT = auto()
    MEMORY_BUSY_PERCENT = auto()
    BANDWIDTH_PERCENT = auto()
    POWER_W = auto()
    MEMORY_USED = auto()
    MEMORY_TOTAL = auto()
    MEMORY_USED_PERCENT = auto()
    CLOCK_MHZ = auto()


_MEANS = (
    (Gauge.GPU_BUSY, Figure.BUSY_PERCENT, 0.01),
    (Gauge.GPU_MEMORY_BUSY, Figure.MEMORY_BUSY_PERCENT, 0.01),
    (Gauge.GPU_BANDWIDTH, Figure.BANDWIDTH_PERCENT, 0.01),
    (Gauge.GPU_MEMORY_USED, Figure.MEMORY_USED_PERCENT, 0.01),
    (Gauge.GPU_CLOCK, Figure.CLOCK_MHZ, 1e6),
)
Row = Mapping[Figure, float | None]


@dataclass(frozen=True, slots=True)
class SmiTool:
    """A tool: how it reports once per second, and how it names accelerators. Both are CSV.

    `header` is that of a report without one. `columns` are the names of a column, one for each version of the tool.
    `naming` are the columns of the number, the name and, where there is one, the driver.
    """

    command: Sequence[str]
    device: str
    columns: Mapping[Figure, tuple[str, ...]]
    names_command: Sequence[str]
    naming: tuple[str, ...]
    header: tuple[str, ...] = ()
    names_header: tuple[str, ...] = ()

    def name_devices(self) -> dict[int, tuple[str, str]]:
        """Return the name and driver of each accelerator by its number. Empty on a machine without accelerators."""
        try:
            ran = subprocess.run(
                self.names_command,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=_NAMES_S,
                check=False,
            )
        except (OSError, subprocess.TimeoutExpired):
            return {}
        found, header = {}, self.names_header
        for cells in map(_cells, ran.stdout.splitlines()):
            if self.naming[0] in cells:
                header = cells
            elif len(cells) == len(header) and cells[header.index(self.naming[0])].isdigit():
                row = dict(zip(header, cells, strict=True))
                texts = [one_line(row.get(column, "")) for column in self.naming[1:]]
                if texts[0]:
                    found[int(row[self.naming[0]])] = (texts[0], texts[1] if len(texts) > 1 else "")
        return found


class Report:
    """The lines of a tool's report, one after the other. A line with the column of the device is a header."""

    def __init__(self, tool: SmiTool) -> None:
        self._tool = tool
        self._header = tool.header

    def read(self, line: str) -> tuple[int, Row] | None:
        """Parse a line to number and figures. `N/A` is None, and so is a header or any other line."""
        cells, device = _cells(line), self._tool.device
        if device in cells:
            self._header = cells
            return None
        if len(cells) != len(self._header) or not cells[self._header.index(device)].isdigit():
            return None
        row = dict(zip(self._header, cells, strict=True))
        figures = {
            figure: _number(next((row[name] for name in names if name in row), ""))
            for figure, names in self._tool.columns.items()
        }
        return int(row[device]), figures


def _cells(line: str) -> tuple[str, ...]:
    return tuple(cell.strip() for cell in next(csv.reader([line], skipinitialspace=True), ()))


def _number(cell: str) -> float | None:
    try:
        return float(cell)
    except ValueError:
        return None


def combine_rows(rows: Mapping[int, Row]) -> AcceleratorReading:
    """Combine reports of accelerators: shares and clocks are means, power a sum. Incomplete figures are left out."""
    values = dict[TelemetryMetric, float]()
    lacking = dict[TelemetryMetric, Collection[str]]()

    def columns(metric: TelemetryMetric, *figures: Figure) -> list[list[float]]:
        """Return the columns, or nothing when one of their figures is missing."""
        known = {number: [v for f in figures if (v := row.get(f)) is not None] for number, row in rows.items()}
        without = {str(number) for number, found in known.items() if len(found) < len(figures)}
        if without and len(without) < len(rows):
            lacking[metric] = without
        return [] if without else [list(column) for column in zip(*known.values(), strict=True)]

    for metric, figure, scale in _MEANS:
        for column in columns(metric, figure):
            values[metric] = sum(column) / len(column) * scale
    for column in columns(Gauge.GPU_POWER, Figure.POWER_W):
        values[Gauge.GPU_POWER] = sum(column)
    if memory := columns(Gauge.GPU_MEMORY_USED, Figure.MEMORY_USED, Figure.MEMORY_TOTAL):
        used, total = map(sum, memory)
        if total > 0:
            values[Gauge.GPU_MEMORY_USED] = used / total
    return AcceleratorReading(values, lacking_problems(lacking))


class SmiSource:
    """The latest report of each accelerator, by one tool that runs all the time. A context manager."""

    def __init__(self, tool: SmiTool, devices: Collection[int] | None = None) -> None:
        self._tool = tool
        self._devices = devices
        self._process: subprocess.Popen[str] | None = None
        self._rows: dict[int, tuple[float, Row]] = {}
        self._first = threading.Event()
        self._reader = threading.Thread(target=self._read_reports, daemon=True)

    def __enter__(self) -> Self:
        try:
            self._process = subprocess.Popen(
                self._tool.command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                env={**os.environ, "PYTHONUNBUFFERED": "1"},  # amd-smi is Python, which holds back what it pipes
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

    def fetch(self) -> AcceleratorReading:
        """Return the accelerators' state as last reported. Raises UnreadError when there is no fresh report.

        A figure that a requested accelerator, or one that was seen before, has not freshly reported is left out.
        """
        if self._process is None:
            raise UnreadError(f"there is no {self._tool.command[0]} on this machine", hopeless=True)
        now_s = time.monotonic()
        reported = dict(self._rows)
        fresh = {number: row for number, (at_s, row) in reported.items() if now_s - at_s <= _FRESH_S}
        if not fresh:
            raise UnreadError(f"{self._tool.command[0]} reports none of these accelerators")
        return combine_rows({number: fresh.get(number, {}) for number in self._devices or reported})

    def _read_reports(self) -> None:
        assert self._process is not None and self._process.stdout is not None, "it was started"
        report = Report(self._tool)
        for line in self._process.stdout:
            parsed = report.read(line)
            if parsed is not None and (self._devices is None or parsed[0] in self._devices):
                is_second_round = parsed[0] in self._rows
                self._rows[parsed[0]] = (time.monotonic(), parsed[1])
                if is_second_round or (self._devices is not None and set(self._rows) >= set(self._devices)):
                    self._first.set()  # all accelerators have reported: not before, or a sum would lack some
        self._first.set()


_NVIDIA_HEADER = (
    "index", "utilization.gpu", "utilization.memory", "power.draw", "memory.used", "memory.total", "clocks.sm",
)  # fmt: skip
_NVIDIA_NAMES = ("index", "name", "driver_version")
SMI_TOOLS: Mapping[str, SmiTool] = MappingProxyType(
    {
        "nvidia-smi": SmiTool(
            (
                "nvidia-smi",
                "--query-gpu=" + ",".join(_NVIDIA_HEADER),
                "--format=csv,noheader,nounits",
                "--loop-ms=1000",
            ),
            "index",
            {
                Figure.BUSY_PERCENT: ("utilization.gpu",),
                Figure.MEMORY_BUSY_PERCENT: ("utilization.memory",),
                Figure.POWER_W: ("power.draw",),
                Figure.MEMORY_USED: ("memory.used",),
                Figure.MEMORY_TOTAL: ("memory.total",),
                Figure.CLOCK_MHZ: ("clocks.sm",),
            },
            ("nvidia-smi", "--query-gpu=" + ",".join(_NVIDIA_NAMES), "--format=csv,noheader"),
            _NVIDIA_NAMES,
            _NVIDIA_HEADER,
            _NVIDIA_NAMES,
        ),
        # ROCm/amdsmi amdsmi_cli/amdsmi_commands.py (monitor), amdsmi_logger.py @
        # 0ceca28f4139dced5e9b5739a3f393780d7add48; later versions write `gfx_clk`.
        "amd-smi": SmiTool(
            ("amd-smi", "monitor", "--power-usage", "--gfx", "--mem", "--vram-usage", "--watch", "1", "--csv"),
            "gpu",
            {
                Figure.BUSY_PERCENT: ("gfx",),
                Figure.MEMORY_BUSY_PERCENT: ("mem",),
                Figure.POWER_W: ("power_usage",),
                Figure.MEMORY_USED: ("vram_used",),
                Figure.MEMORY_TOTAL: ("vram_total",),
                Figure.CLOCK_MHZ: ("gfx_clk", "gfx_clock"),
            },
            ("amd-smi", "static", "--asic", "--csv"),
            ("gpu", "market_name"),
        ),
        # intel/xpumanager 2.0/_sources/xpu-smi/dump.rst.txt @ 4573b39085668995f9be7c766ff6563c651402da. A device is the
        # mean of its tiles.
        "xpu-smi": SmiTool(
            ("xpu-smi", "dump", "-d", "-1", "-m", "0,1,2,5,17", "-i", "1"),
            "DeviceId",
            {
                Figure.BUSY_PERCENT: ("GPU Utilization (%)",),
                Figure.BANDWIDTH_PERCENT: ("GPU Memory Bandwidth Utilization (%)",),
                Figure.POWER_W: ("GPU Power (W)",),
                Figure.MEMORY_USED_PERCENT: ("GPU Memory Utilization (%)",),
                Figure.CLOCK_MHZ: ("GPU Frequency (MHz)",),
            },
            ("xpu-smi", "discovery", "--dump", "1,2"),
            ("Device ID", "Device Name"),
        ),
    }
)
