"""When the kernel had what a socket gives: on Linux it notes that of every packet (SO_TIMESTAMPING).

See Documentation/networking/timestamping. It tells with a `recvmsg` that takes, or looks at, the last byte of a packet.
"""

from __future__ import annotations

import socket
import struct

_SO_TIMESTAMPING = 37  # of the socket level; Python has no name for it
_BY_SOFTWARE_ON_ARRIVAL = 1 << 3 | 1 << 4  # SOF_TIMESTAMPING_RX_SOFTWARE, SOF_TIMESTAMPING_SOFTWARE
_STAMPS = struct.Struct("@6l")  # three times of seconds and ns since 1970: by software, unused, by the card
ANCILLARY_BYTES = 256
"""Room for what is told beside the bytes."""


def ask_for_stamps(sock: socket.socket) -> None:
    """Have the kernel stamp what arrives at this socket, or at those it accepts; asked before, nothing is missed.

    Raises OSError where it cannot.
    """
    sock.setsockopt(socket.SOL_SOCKET, _SO_TIMESTAMPING, _BY_SOFTWARE_ON_ARRIVAL)


def kernel_stamps() -> bool:
    """Whether the kernel of this system does it."""
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
