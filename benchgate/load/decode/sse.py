"""Server-sent events, pure: bytes in, events out, each with the instant of the read that completed it.

Follows the standard (https://html.spec.whatwg.org/multipage/server-sent-events.html): lines end with LF, CR or CRLF,
comments are skipped, several data lines make one event, and an event that no blank line ended is not an event.
A hostile server gets no further than `LONGEST_EVENT_BYTES`.
"""

from __future__ import annotations

from typing import NamedTuple

LONGEST_EVENT_BYTES = 8 * 2**20  # limit of one event; no server sends longer ones on purpose
MOST_EVENTS = 1_000_000  # of one stream, comments and heartbeats included: a hostile server must not keep us busy

# Names of events that say only that somebody is still there, in whatever words.
HEARTBEATS = frozenset({"ping", "heartbeat", "keepalive", "keep-alive", "keep_alive"})


_DATA = b"data: "


class OverlongEvent(ValueError):
    """An event that does not end; what it said so far is not worth keeping."""


class Event(NamedTuple):
    """An event: the instant of the read that completed it, its data, and its name if it has one."""

    at_ns: int
    data: str
    name: str = ""


class EventParser:
    """Cuts a stream into events, fed in reads split anywhere, also inside a character or between CR and LF."""

    def __init__(self) -> None:
        self.blocks = 0  # events and comments
        self._pending = bytearray()  # the event whose blank line has not come yet
        self._after_cr = False
        self._at_start = True

    @property
    def between_events(self) -> bool:
        """Return True if the next read begins a new event, so that a plain one may be taken by itself."""
        return not (self._pending or self._after_cr)

    def begun(self) -> None:
        """A read was taken by itself: what would mark the beginning is content from here on."""
        self._at_start = False
        self.blocks += 1

    def feed(self, at_ns: int, data: bytes) -> list[Event]:
        """The events completed by a read that arrived at `at_ns`, in order. Raises OverlongEvent."""
        if self._after_cr or b"\r" in data:
            # A CR ends a line at once: the LF that may follow it is dropped later.
            if data:
                data, self._after_cr = data.removeprefix(b"\n") if self._after_cr else data, data.endswith(b"\r")
            data = data.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        pending = self._pending
        scanned = max(0, len(pending) - 1)
        pending += data
        end = pending.rfind(b"\n\n", scanned)
        if len(pending) - max(0, end) > LONGEST_EVENT_BYTES:
            raise OverlongEvent(f"an event longer than {LONGEST_EVENT_BYTES} bytes")
        if end < 0:
            return []
        blocks = bytes(pending[:end])
        del pending[: end + 2]
        if self._at_start:
            self._at_start = False
            blocks = blocks.removeprefix(b"\xef\xbb\xbf")
        found = blocks.split(b"\n\n")
        self.blocks += len(found)
        events = []
        for block in found:
            if block.startswith(b"data: ") and b"\n" not in block:
                events.append(Event(at_ns, block[6:].decode("utf-8", "replace")))
                continue
            values, event_name = [], ""
            for line in block.decode("utf-8", "replace").split("\n"):
                name, _, value = line.partition(":")
                if name == "data":
                    values.append(value.removeprefix(" "))
                elif name == "event":
                    event_name = value.removeprefix(" ")
            if values:  # a comment or a bare id is no event; `message` is the default name
                events.append(Event(at_ns, "\n".join(values), "" if event_name == "message" else event_name))
        return events


def is_plain_event(data: bytes) -> bool:
    """Return True if a read is one whole event of one line, as nearly all are."""
    return data.startswith(_DATA) and data.find(b"\n") == len(data) - 2 and data.endswith(b"\n\n") and b"\r" not in data


def plain_data(data: bytes) -> str:
    """The data of such a read."""
    return data[len(_DATA) : -2].decode("utf-8", "replace")
