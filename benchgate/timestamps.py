"""Arrival times from the kernel, and their translation to the monotonic clock.

Linux stamps every packet on arrival (SO_TIMESTAMPING, see Documentation/networking/timestamping) and reports it with
the `recvmsg` that takes or peeks at the last byte of the packet.
"""

from __future__ import annotations

import socket
import struct
from time import monotonic_ns, time_ns

_SO_TIMESTAMPING = 37  # of the socket level; Python has no name for it
_BY_SOFTWARE_ON_ARRIVAL = 1 << 3 | 1 << 4  # SOF_TIMESTAMPING_RX_SOFTWARE, SOF_TIMESTAMPING_SOFTWARE
_STAMPS = struct.Struct("@6l")  # three times of seconds and ns since 1970: by software, unused, by the card
ANCILLARY_BYTES = 256
"""Buffer size for the ancillary data of a `recvmsg`."""

_TRIES = 5
_AT_ONCE_NS = 20_000


def ask_for_stamps(sock: socket.socket) -> None:
    """Have the kernel stamp what arrives at this socket, or at those it accepts: from now on nothing is missed.

    Raises OSError where it cannot.
    """
    sock.setsockopt(socket.SOL_SOCKET, _SO_TIMESTAMPING, _BY_SOFTWARE_ON_ARRIVAL)


def kernel_stamps() -> bool:
    """Return True if the kernel of this system can stamp arrivals."""
    with socket.socket() as sock:
        try:
            ask_for_stamps(sock)
        except OSError:
            return False
    return True


def stamp_ns(ancillary: list[tuple[int, int, bytes]]) -> int | None:
    """Return when the data of a `recvmsg` arrived, in ns since 1970; None if the kernel does not say."""
    for level, kind, data in ancillary:
        if level == socket.SOL_SOCKET and kind == _SO_TIMESTAMPING and len(data) == _STAMPS.size:
            seconds, ns = _STAMPS.unpack(data)[:2]
            return int(seconds * 1_000_000_000 + ns) or None
    return None


def monotonic_of(day_ns: int) -> int:
    """Return the monotonic instant of a time in ns since 1970, by the present difference of the two clocks.

    They cannot be read at once. A process that is preempted between the two readings would be off by that pause, so
    they are read again then; what remains makes the instant later, never earlier.
    """
    tries = 0
    while True:
        before_ns = monotonic_ns()
        now_ns = time_ns()
        after_ns = monotonic_ns()
        tries += 1
        if after_ns - before_ns < _AT_ONCE_NS or tries == _TRIES:
            return after_ns + day_ns - now_ns
