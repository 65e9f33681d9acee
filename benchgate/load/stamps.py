"""How late the client read what had arrived, by the kernel's own stamps.

On Linux the kernel notes when a packet came in (SO_TIMESTAMPING, see Documentation/networking/timestamping) and tells
with the read that takes its bytes. Read by `recvmsg`, that costs more than the usual way, so it is asked for
(`sockets`). The instants of a measurement are the client's own in both modes, so that both can be compared; the delay
stands beside.
"""

from __future__ import annotations

import socket
import struct
import sys
from array import array

import numpy as np

from benchgate.model.records import FloatArray
from benchgate.targets.address import ServerAddress

_SO_TIMESTAMPING = 37  # of the socket level; Python has no name for it
_BY_SOFTWARE_ON_ARRIVAL = 1 << 3 | 1 << 4  # SOF_TIMESTAMPING_RX_SOFTWARE, SOF_TIMESTAMPING_SOFTWARE
_STAMPS = struct.Struct("@6l")  # three times of seconds and ns since 1970: by software, unused, by the card
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
    if sys.platform != "linux" or not _kernel_stamps():
        return "the kernel of this system does not stamp what arrives (Linux does); leave it out"
    return None


def never_stamped(server: ServerAddress) -> str | None:
    """Why no machine can audit reads from an address like this; None when some can."""
    if server.socket is not None:
        return "what comes over a Unix socket is stamped by no kernel; leave it out"
    if server.scheme == "https":
        return "what the kernel stamps is still encrypted, and TLS hands it on in other pieces; ask over http instead"
    return None


def ask_for_stamps(sock: socket.socket) -> None:
    """Have the kernel stamp what arrives at this socket; asked before it is connected, nothing is missed."""
    sock.setsockopt(socket.SOL_SOCKET, _SO_TIMESTAMPING, _BY_SOFTWARE_ON_ARRIVAL)


def _kernel_stamps() -> bool:
    with socket.socket() as sock:
        try:
            ask_for_stamps(sock)
        except OSError:
            return False
    return True


def stamp_ns(ancillary: list[tuple[int, int, bytes]]) -> int | None:
    """When the kernel had what a `recvmsg` gave, in ns since 1970; None when it does not say."""
    for level, kind, told in ancillary:
        if level == socket.SOL_SOCKET and kind == _SO_TIMESTAMPING and len(told) == _STAMPS.size:
            seconds, ns = _STAMPS.unpack(told)[:2]
            return int(seconds * 1_000_000_000 + ns) or None
    return None
