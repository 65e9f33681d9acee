"""Binary format of an observation's columns in one blob. Pure; independent of databases and models.

Layout, before zlib: the header's length (uint32), the header (ASCII JSON: names, kinds, dtypes, lengths), then the
columns' bodies one after another, in the order of their names. Everything is little-endian.

    int64     differences of neighbours (modulo 2**64), zigzag, bytes of equal weight side by side: instants shrink well
    array     any other one-dimensional numeric array, as it is; a NaN keeps its bits
    text      int64 body of the UTF-8 lengths (-1 for None), then the texts; lone surrogates and NUL survive

Equal columns give equal bytes under one zlib. The SHA-256 is over the compressed bytes and is checked before reading.
"""

from __future__ import annotations

import hashlib
import json
import struct
import zlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import chain, groupby
from operator import itemgetter
from typing import Any

import numpy as np
import numpy.typing as npt

from benchgate.errors import EvidenceError
from benchgate.model.records import ColumnMap, IntArray, TextColumn

CODEC = "columns/1+zlib"  # name of this layout, stored with every blob so that a later one can live beside it

Array = npt.NDArray[Any]

_LEVEL = 6
_HEADER_LENGTH = struct.Struct("<I")
_INT64 = np.dtype("<i8")
_NO_TEXT = -1
_BLOCK_NUMBERS = 1 << 19
"""Numbers made into bytes at once: a few megabytes, and in most columns all of them. Each block is computed again for
every byte of weight that is not 0."""
_BLOCK_TEXTS = 1 << 16
_LARGE = 1 << 18
"""Smallest size at which choosing the packing of each part pays; below it, starting over costs more than it saves."""
# Bytes of equal weight are runs of one value, or noise: looking for longer matches there takes five times as long, and
# finds next to nothing.
_STRATEGY = {"int64": zlib.Z_RLE, "array": zlib.Z_DEFAULT_STRATEGY, "text": zlib.Z_DEFAULT_STRATEGY}
_ZLIB_BEGIN = b"\x78\x9c"
_ZLIB_END = b"\x03\x00"  # a last block with nothing in it


@dataclass(frozen=True, slots=True)
class _ColumnHead:
    """Header entry of one column; `size` is the length of its body in bytes."""

    name: str
    kind: str  # "int64", "array" or "text"
    dtype: str
    rows: int
    size: int


def encode(columns: ColumnMap) -> bytes:
    """Return the compressed bytes of the columns. Raises ValueError for anything but numeric arrays and texts."""
    heads = [_column_head(name, columns[name]) for name in sorted(columns)]
    header = json.dumps([asdict(head) for head in heads], separators=(",", ":")).encode("ascii")
    parts = chain(
        [(zlib.Z_DEFAULT_STRATEGY, _HEADER_LENGTH.pack(len(header)) + header)],
        ((_STRATEGY[head.kind], part) for head in heads for part in _body(head, columns[head.name])),
    )
    if sum(head.size for head in heads) >= _LARGE:
        return _deflated(parts)
    squeeze = zlib.compressobj(_LEVEL)
    return b"".join([*(squeeze.compress(part) for _, part in parts), squeeze.flush()])


def _deflated(parts: Iterable[tuple[int, bytes]]) -> bytes:
    """Return one zlib stream (RFC 1950) of parts, each with the strategy that suits it."""
    checksum, stream = zlib.adler32(b""), [_ZLIB_BEGIN]
    for strategy, group in groupby(parts, key=itemgetter(0)):
        squeeze = zlib.compressobj(_LEVEL, zlib.DEFLATED, -zlib.MAX_WBITS, strategy=strategy)
        for _, part in group:
            checksum = zlib.adler32(part, checksum)
            stream.append(squeeze.compress(part))
        stream.append(squeeze.flush(zlib.Z_SYNC_FLUSH))
    stream.append(_ZLIB_END + checksum.to_bytes(4, "big"))
    return b"".join(stream)


def digest(data: bytes) -> str:
    """Return the SHA-256 of stored bytes, as hex."""
    return hashlib.sha256(data).hexdigest()


def decode(data: bytes, *, codec: str, sha256: str) -> dict[str, Array | TextColumn]:
    """Return the columns of stored bytes, in the order of their names.

    Raises EvidenceError when the codec is unknown or the bytes are not exactly those that were written.
    """
    if codec != CODEC:
        raise EvidenceError(
            f"it is written as {codec!r}, and this benchgate reads {CODEC!r}; install a newer benchgate"
        )
    if digest(data) != sha256:
        raise EvidenceError(f"its bytes hash to {digest(data)}, not to {sha256} as written: the store is damaged")
    try:
        return _decode_plain(zlib.decompress(data))
    except (zlib.error, struct.error, ValueError, KeyError, TypeError, IndexError) as exc:
        raise EvidenceError(f"its bytes are not {CODEC}: {exc}") from exc


def _column_head(name: str, column: Array | Sequence[str | None]) -> _ColumnHead:
    if not isinstance(column, np.ndarray):
        if isinstance(column, str) or not all(text is None or isinstance(text, str) for text in _words(column)):
            raise ValueError(f"column {name!r} holds something that is neither text nor None")
        counts = TextColumn.of(column).counts()
        size = len(column) * _INT64.itemsize + sum(len(_encoded(text)) * count for text, count in counts.items())
        return _ColumnHead(name, "text", "", len(column), size)
    if column.ndim != 1 or column.dtype.kind not in "biuf":
        raise ValueError(
            f"column {name!r} is {column.dtype} of shape {column.shape}; a numeric array of one axis is kept"
        )
    kind = "int64" if column.dtype == _INT64 else "array"
    return _ColumnHead(name, kind, column.dtype.newbyteorder("<").str, len(column), column.nbytes)


def _body(head: _ColumnHead, column: Array | Sequence[str | None]) -> Iterator[bytes]:
    """Yield the bytes of a column, in parts."""
    if not isinstance(column, np.ndarray):
        texts = TextColumn.of(column)
        encoded = [_encoded(text) for text in texts.words]
        lengths = [_NO_TEXT if text is None else len(of) for text, of in zip(texts.words, encoded, strict=True)]
        yield from _int64_body(np.array(lengths, dtype=np.int64)[texts.codes])
        for first in range(0, len(texts), _BLOCK_TEXTS):
            yield b"".join(map(encoded.__getitem__, texts.codes[first : first + _BLOCK_TEXTS].tolist()))
    elif head.kind == "int64":
        yield from _int64_body(column)
    else:
        yield column.astype(np.dtype(head.dtype)).tobytes()


def _words(column: Sequence[str | None]) -> Sequence[str | None]:
    return column.words if isinstance(column, TextColumn) else column


def _encoded(text: str | None) -> bytes:
    return b"" if text is None else text.encode("utf-8", "surrogatepass")


def _int64_body(values: IntArray) -> Iterator[bytes]:
    """Encode block by block, so that a large column is never held twice in memory."""
    at, steps, most = 0, _zigzag(values, 0), 0
    for weight in range(_INT64.itemsize):
        for first in range(0, len(values), _BLOCK_NUMBERS):
            if weight and not most >> 8 * weight:
                yield bytes(min(_BLOCK_NUMBERS, len(values) - first))
                continue
            if at != first:
                at, steps = first, _zigzag(values, first)
            if not weight:
                most = max(most, int(steps.view("<u8").max()))
            yield steps.view(np.uint8)[weight :: _INT64.itemsize].tobytes()


def _zigzag(values: IntArray, first: int) -> IntArray:
    """Return the differences of a block of rows as small unsigned numbers, whatever their sign."""
    steps = values[first : first + _BLOCK_NUMBERS].astype(_INT64)
    alone = 0 if first else 1  # the first row of all has none before it
    steps[alone:] -= values[first + alone - 1 : first + len(steps) - 1]
    backwards = steps < 0
    steps <<= 1
    np.invert(steps, out=steps, where=backwards)
    return steps


def _decode_int64(body: memoryview, rows: int) -> IntArray:
    if len(body) != rows * _INT64.itemsize:
        raise ValueError(f"{rows} integers in {len(body)} bytes")
    planes = np.frombuffer(body, dtype=np.uint8).reshape(_INT64.itemsize, rows)
    zigzag = np.ascontiguousarray(planes.T).reshape(-1).view("<u8")
    steps = (zigzag >> np.uint64(1)) ^ (np.uint64(0) - (zigzag & np.uint64(1)))
    return np.cumsum(steps.view(_INT64), dtype=np.int64)


def _decode_texts(body: memoryview, rows: int) -> TextColumn:
    """Decode rows of equal length together: a column of classes has few lengths, and each is one byte array."""
    at = rows * _INT64.itemsize
    lengths = _decode_int64(body[:at], rows)
    sizes = np.maximum(lengths, 0)
    if (lengths < _NO_TEXT).any() or at + int(sizes.sum()) != len(body):
        raise ValueError(f"texts of {at + int(sizes.sum())} bytes in a body of {len(body)}")
    if rows and (lengths == lengths[0]).all() and body[at:] == bytes(body[at : at + sizes[0]]) * rows:
        first = None if lengths[0] == _NO_TEXT else str(body[at : at + sizes[0]], "utf-8", "surrogatepass")
        return TextColumn((first,), np.zeros(rows, dtype=np.int32))  # most columns of classes
    packed = np.frombuffer(body, dtype=np.uint8)
    starts = at + np.cumsum(sizes) - sizes
    words: list[str | None] = []
    codes = np.empty(rows, dtype=np.int32)
    by_length = np.argsort(lengths, kind="stable")
    borders = np.flatnonzero(np.diff(lengths[by_length])) + 1
    for alike in np.split(by_length, borders) if rows else ():
        found, which = _different(packed, starts[alike], int(lengths[alike[0]]))
        codes[alike] = which + len(words)
        words += found
    return TextColumn(tuple(words), codes)


def _different(packed: npt.NDArray[np.uint8], starts: IntArray, length: int) -> tuple[list[str | None], IntArray]:
    """Return the distinct texts of `length` bytes at these places, and the index of each row's text."""
    if length == _NO_TEXT:
        return [None], np.zeros(len(starts), dtype=np.int64)
    if length == 0:
        return [""], np.zeros(len(starts), dtype=np.int64)
    every = packed[starts[:, None] + np.arange(length)].view(f"V{length}").reshape(-1)
    others = np.flatnonzero(every != every[0])  # nearly all rows of a column of classes are one text: no need to sort
    found, which = np.unique(every[others], return_inverse=True)
    codes = np.zeros(len(every), dtype=np.int64)
    codes[others] = 1 + which
    return [bytes(word).decode("utf-8", "surrogatepass") for word in (every[0], *found)], codes


def _decode_plain(plain: bytes) -> dict[str, Array | TextColumn]:
    (header_length,) = _HEADER_LENGTH.unpack_from(plain)
    at = _HEADER_LENGTH.size + header_length
    heads = [_ColumnHead(**head) for head in json.loads(plain[_HEADER_LENGTH.size : at])]
    view = memoryview(plain)
    columns: dict[str, Array | TextColumn] = {}
    for head in heads:
        body = view[at : at + head.size]
        if len(body) != head.size:
            raise ValueError(f"column {head.name!r} is cut short")
        columns[head.name] = _decode_column(head, body)
        at += head.size
    if at != len(plain):
        raise ValueError(f"{len(plain) - at} bytes too many")
    return columns


def _decode_column(head: _ColumnHead, body: memoryview) -> Array | TextColumn:
    if head.kind == "text":
        return _decode_texts(body, head.rows)
    if head.kind == "int64":
        return _decode_int64(body, head.rows)
    if head.kind != "array":
        raise ValueError(f"column {head.name!r} is of the unknown kind {head.kind!r}")
    values = np.frombuffer(body, dtype=np.dtype(head.dtype))
    if len(values) != head.rows:
        raise ValueError(f"column {head.name!r} has {len(values)} rows, not {head.rows}")
    return values.astype(values.dtype.newbyteorder("="))
