"""Hypothesis strategies: valid event streams and chunked bodies in every shape their standards allow, and ways to cut
bytes into reads."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

from hypothesis import strategies as st


@dataclass(frozen=True, slots=True)
class MadeStream:
    """A stream and what it must be read as: the data of each event, and where the byte stands that completes it."""

    raw: bytes
    texts: tuple[str, ...]
    completed_at: tuple[int, ...]


# Everything but line ends and halves of surrogate pairs, with what could confuse a splitter made common.
_LINE = st.one_of(
    st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\r\n"), max_size=12),
    st.sampled_from(
        ["", " ", "  x", ": no comment", "data: a", "[DONE]", "\ufeff", "é🙂", "\x00", "\u2028", "\x85", ":"]
    ),
)
_DATA = st.tuples(st.sampled_from(["data: ", "data:", "data"]), _LINE)
_NOISE = st.one_of(
    _LINE.map(lambda text: f":{text}"),
    st.sampled_from(["id: 7", "event: x", "event", "retry: 10", "database: 1", " data: a", "Data: a", "id"]),
)
_EVENT = st.lists(st.one_of(_DATA, _NOISE), min_size=1, max_size=5)


@st.composite
def event_streams(draw: st.DrawFn) -> MadeStream:
    """Events of data lines, comments and other fields, with one kind of line end, perhaps a byte order mark."""
    end = draw(st.sampled_from(["\n", "\r\n", "\r"]))
    raw = bytearray(draw(st.sampled_from([b"", b"\xef\xbb\xbf"])))
    texts, completed_at = [], []
    for fields in draw(st.lists(_EVENT, max_size=6)):
        values = [value for line in fields if (value := _value(line)) is not None]
        for line in fields:
            raw += f"{_written(line)}{end}".encode()
        if values:
            texts.append("\n".join(values))
            completed_at.append(len(raw))  # the first byte of the blank line's end
        raw += end.encode() * draw(st.integers(1, 3))
    return MadeStream(bytes(raw), tuple(texts), tuple(completed_at))


def _written(line: str | tuple[str, str]) -> str:
    if isinstance(line, str):
        return line
    name, value = line
    return name if name == "data" else f"{name}{value}"


def _value(line: str | tuple[str, str]) -> str | None:
    """What a line adds to the data of its event; None when nothing."""
    if isinstance(line, str):
        return None
    name, value = line
    if name == "data":
        return ""
    return value.removeprefix(" ") if name == "data:" else value


@dataclass(frozen=True, slots=True)
class MadeBody:
    """A chunked body, framing included, its payload, and where each byte of the payload stands in it."""

    raw: bytes
    payload: bytes
    places: tuple[int, ...]


_PIECE = st.one_of(
    st.binary(min_size=1, max_size=40),
    st.sampled_from(
        [b"0\r\n\r\n", b"\r\n", b"\r\n0\r\n\r\n", b"\r\n\r\n", b"data: [DONE]\n\n", b"A\r\n", b"\n", b"\r"]
    ),
)
_EXTENSION = st.sampled_from(["", ";x", ";a=b", ';a="0\\"; c"', " ; a = b"])
_TRAILERS = st.lists(st.sampled_from([b"x: y\r\n", b"server-timing: 0\r\n", b"a:\r\n"]), max_size=3)


@st.composite
def chunked_bodies(draw: st.DrawFn) -> MadeBody:
    """Chunks of any content, sizes in any case, with leading zeros and extensions, and trailers."""
    raw, payload, places = bytearray(), bytearray(), list[int]()
    for piece in draw(st.lists(_PIECE, max_size=8)):
        size = draw(st.sampled_from(["%x", "%X", "%04x"])) % len(piece)
        raw += size.encode() + draw(_EXTENSION).encode() + b"\r\n"
        places += range(len(raw), len(raw) + len(piece))
        raw += piece + b"\r\n"
        payload += piece
    raw += (
        draw(st.sampled_from([b"0", b"000"]))
        + draw(_EXTENSION).encode()
        + b"\r\n"
        + b"".join(draw(_TRAILERS))
        + b"\r\n"
    )
    return MadeBody(bytes(raw), bytes(payload), tuple(places))


def reads_of(data: bytes) -> st.SearchStrategy[list[bytes]]:
    """The data in reads: whole, byte by byte, or cut anywhere, also into empty ones."""
    if not data:
        return st.sampled_from([[], [b""]])
    cuts = st.lists(st.integers(0, len(data)), max_size=12).map(sorted)
    anywhere = cuts.map(lambda at: [data[a:b] for a, b in itertools.pairwise([0, *at, len(data)])])
    return st.one_of(st.just([data]), st.just([data[at : at + 1] for at in range(len(data))]), anywhere)


def ends_once(made: MadeBody) -> bool:
    """Whether nothing inside of a body looks like the end of a stream, which is taken at its word while it comes."""
    end = b"[DONE]\n\n\r\n0\r\n\r\n"
    return end not in made.raw[:-1]
