"""When what a connection is about to read came: by the kernel's stamps, where it has any, else now."""

from __future__ import annotations

import socket
from collections.abc import Callable
from time import monotonic_ns

from benchgate.clocks import monotonic_of
from benchgate.stamping import ANCILLARY_BYTES, stamp_ns

_LONGEST_WAIT_NS = 60_000_000_000


class Arriving:
    """What has arrived at a socket, looked at before it is read. Of no socket, everything comes now."""

    def __init__(self, sock: socket.socket | None = None) -> None:
        self._borrow: Callable[[], socket.socket] | None = None
        if sock is not None:
            family, kind, descriptor = sock.family, sock.type, sock.fileno()
            self._borrow = lambda: socket.socket(family, kind, 0, fileno=descriptor)

    def came_ns(self, room: memoryview) -> int:
        """When the last of it did, monotonic; `room` is overwritten. Now, where nothing says so.

        Stamps are of the time of day: where that was set meanwhile by more than anything waits, they say nothing.
        """
        if self._borrow is None:
            return monotonic_ns()
        sock = self._borrow()  # of a descriptor that is the transport's to close
        try:
            _, ancillary, _, _ = sock.recvmsg_into([room], ANCILLARY_BYTES, socket.MSG_PEEK | socket.MSG_DONTWAIT)
        except OSError:  # the read after this one will meet it
            ancillary = []
        finally:
            sock.detach()
        now_ns, told_ns = monotonic_ns(), stamp_ns(ancillary)
        came_ns = now_ns if told_ns is None else monotonic_of(told_ns)
        return came_ns if 0 < now_ns - came_ns < _LONGEST_WAIT_NS else now_ns
