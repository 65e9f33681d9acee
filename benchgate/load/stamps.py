"""How late the client read what had arrived, by the kernel's own stamps.

On Linux the kernel tells with a read when it had its bytes (`stamping`). Read by `recvmsg`, that costs more than the
usual way, so it is asked for (`sockets`). The instants of a measurement are the client's own in both modes, so that
both can be compared; the delay stands beside.
"""

from __future__ import annotations

import sys
from array import array

import numpy as np

from benchgate.model.records import FloatArray
from benchgate.stamping import kernel_stamps
from benchgate.targets.address import ServerAddress

_MOST_KEPT = 2**20
_LEAST_STAMPED = 0.9  # of the reads: the kernel takes a moment to begin with it


class ReadDelays:
    """How long each read had waited, in bounded memory: once there are too many, every second is dropped, evenly.

    A stamp is that of the last byte of a read. A clock set between stamp and read counts as a delay whichever way it
    was set.
    """

    def __init__(self) -> None:
        self._kept_ns = array("q")
        self._stride = 1
        self._reads = 0  # with a stamp
        self._unstamped = 0
        self._most_ns = 0

    def add(self, delay_ns: int | None) -> None:
        """One read; None when it came without a stamp."""
        if delay_ns is None:
            self._unstamped += 1
            return
        delay_ns = abs(delay_ns)
        self._most_ns = max(self._most_ns, delay_ns)
        if self._reads % self._stride == 0:
            self._kept_ns.append(delay_ns)
            if len(self._kept_ns) >= _MOST_KEPT:
                self._kept_ns = self._kept_ns[::2]
                self._stride *= 2
        self._reads += 1

    def seconds(self) -> FloatArray | None:
        """The delays, the longest one always among them; None when there is no saying: too few reads had a stamp."""
        if self._reads == 0 or self._reads < _LEAST_STAMPED * (self._reads + self._unstamped):
            return None
        delays = np.array(self._kept_ns, dtype=np.float64) / 1e9
        return np.append(delays, self._most_ns / 1e9) if delays.max() * 1e9 < self._most_ns else delays


def audit_refusal(server: ServerAddress) -> str | None:
    """Why reads from this server cannot be audited on this machine; None when they can."""
    if (refusal := never_stamped(server)) is not None:
        return refusal
    if sys.platform != "linux" or not kernel_stamps():
        return "the kernel of this system does not stamp what arrives (Linux does); leave it out"
    return None


def never_stamped(server: ServerAddress) -> str | None:
    """Why no machine can audit reads from an address like this; None when some can."""
    if server.socket is not None:
        return "what comes over a Unix socket is stamped by no kernel; leave it out"
    if server.scheme == "https":
        return "what the kernel stamps is still encrypted, and TLS hands it on in other pieces; ask over http instead"
    return None
