"""Clocks of the machines that start a stage together: their synchronisation, and how far apart a stage allows them.

Latencies are measured within one worker, so clocks matter only for the common start. A machine's own time service
(chrony, or NTP and PTP through the kernel) bounds the error of its clock better than a long round trip does.
"""

from __future__ import annotations

import ctypes
import socket
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

START_WITHIN_NS = 5_000_000
"""Largest uncertainty of the common start of a stage whose edges are measured: bursts, profiles, no ramp."""

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_CHRONYC_S = 2.0
_NS = 1_000_000_000
_US = 1_000
_UNSYNCHRONISED = 0x40  # STA_UNSYNC
_NANOSECONDS = 0x2000  # STA_NANO
_TIME_ERROR = 5


class _Timex(ctypes.Structure):
    """First fields of `struct timex` of adjtimex(2), and room for the rest."""

    _fields_ = (
        ("modes", ctypes.c_uint),
        ("offset", ctypes.c_long),
        ("freq", ctypes.c_long),
        ("maxerror", ctypes.c_long),
        ("esterror", ctypes.c_long),
        ("status", ctypes.c_int),
        ("rest", ctypes.c_long * 64),
    )


@dataclass(frozen=True, slots=True)
class HostClock:
    """Clock of day of a machine, as its time service reports it.

    `kernel` identifies the running kernel: processes with the same one share a clock. `bound_ns` is the largest error
    against true time; None where nothing synchronises the clock. `offset_ns` is the error that is being corrected.
    """

    kernel: str
    source: str | None = None  # "chrony" or "kernel"
    bound_ns: int | None = None
    offset_ns: int | None = None


def host_clock() -> HostClock:
    """Return the state of this machine's clock."""
    try:
        kernel = _BOOT_ID.read_text().strip()
    except OSError:
        kernel = socket.gethostname()
    for source, find in (("chrony", _chrony_error), ("kernel", _kernel_error)):
        if (error := find()) is not None:
            return HostClock(kernel, source, *error)
    return HostClock(kernel)


class ClockError(NamedTuple):
    """Largest error of a clock against true time, and the offset that is being corrected, in ns."""

    bound_ns: int
    offset_ns: int


def _chrony_error() -> ClockError | None:
    try:
        result = subprocess.run(
            ["chronyc", "-c", "tracking"], capture_output=True, text=True, timeout=_CHRONYC_S, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return chrony_error(result.stdout)


def chrony_error(line: str) -> ClockError | None:
    """Return the error by a line of `chronyc -c tracking`; None if the clock is not synchronised.

    As chrony's manual has it: the offset being corrected, the root dispersion and half of the root delay.
    """
    fields = line.strip().split(",")
    try:
        stratum, offset_s, delay_s, dispersion_s, leap = (
            int(fields[2]), float(fields[4]), float(fields[10]), float(fields[11]), fields[13],
        )  # fmt: skip
    except (IndexError, ValueError):
        return None
    if leap == "Not synchronised" or not 0 < stratum < 16:
        return None
    return ClockError(round((abs(offset_s) + dispersion_s + delay_s / 2) * _NS), round(offset_s * _NS))


def _kernel_error() -> ClockError | None:
    """Return the error that NTP or PTP keeps in the kernel; it grows while they are silent."""
    if sys.platform != "linux":
        return None
    state = _Timex()
    try:
        code = ctypes.CDLL(None, use_errno=True).adjtimex(ctypes.byref(state))
    except (OSError, AttributeError):
        return None
    if code in (-1, _TIME_ERROR) or state.status & _UNSYNCHRONISED:
        return None
    offset_ns = int(state.offset) * (1 if state.status & _NANOSECONDS else _US)
    return ClockError(int(max(state.maxerror, state.esterror)) * _US, offset_ns)


@dataclass(frozen=True, slots=True)
class Clock:
    """Another machine's clock of day against this one's: theirs - ours, and by how much that may be wrong."""

    offset_ns: int
    uncertainty_ns: int

    def refined(self, ours: HostClock, theirs: HostClock) -> Clock:
        """Return the bound of both machines' own time services where it is the tighter one.

        Where the round trip contradicts it, one of the services is wrong, and the round trip stays.
        """
        if ours.bound_ns is None or theirs.bound_ns is None:
            return self
        bound_ns = ours.bound_ns + theirs.bound_ns
        if bound_ns >= self.uncertainty_ns or abs(self.offset_ns) > self.uncertainty_ns + bound_ns:
            return self
        return Clock(0, bound_ns)


def start_fault(uncertainty_ns: int | None, tolerance_ns: int) -> str | None:
    """Return the fault of a worker whose clock is not known well enough for the common start; None if it is."""
    if uncertainty_ns is None:
        return "cannot be started with the others: nothing synchronises its clock (run chrony there)"
    if uncertainty_ns <= tolerance_ns:
        return None
    return (
        f"cannot be started within {tolerance_ns / 1e6:.0f} ms of the others: "
        f"its clock is known to {uncertainty_ns / 1e6:.1f} ms"
    )
