"""Columns to bytes and back: how one observation is kept in one blob. Pure; knows neither databases nor models.

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
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from benchgate.errors import EvidenceError
from benchgate.model.records import ColumnMap, IntArray

CODEC = "columns/1+zlib"
"""Name of this layout, stored with every blob so that a later one can live beside it."""

Array = npt.NDArray[Any]

_LEVEL = 6
_HEADER_LENGTH = struct.Struct("<I")
_INT64 = np.dtype("<i8")
_NO_TEXT = -1


@dataclass(frozen=True, slots=True)
class _ColumnHead:
    """What the header says of one column; `size` is the length of its body in bytes."""

    name: str
    kind: str  # "int64", "array" or "text"
    dtype: str
    rows: int
    size: int


def encode(columns: ColumnMap) -> bytes:
    """The compressed bytes of the columns. Raises ValueError when a column is neither a numeric array nor texts."""
    heads: list[_ColumnHead] = []
    bodies: list[bytes] = []
    for name in sorted(columns):
        head, body = _encode_column(name, columns[name])
        heads.append(head)
        bodies.append(body)
    header = json.dumps([asdict(head) for head in heads], separators=(",", ":")).encode("ascii")
    return zlib.compress(b"".join([_HEADER_LENGTH.pack(len(header)), header, *bodies]), _LEVEL)


def digest(data: bytes) -> str:
    """SHA-256 of stored bytes, as hex."""
    return hashlib.sha256(data).hexdigest()


def decode(data: bytes, *, codec: str, sha256: str) -> dict[str, Array | tuple[str | None, ...]]:
    """The columns of stored bytes, in the order of their names.

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


def _encode_column(name: str, column: Array | Sequence[str | None]) -> tuple[_ColumnHead, bytes]:
    if not isinstance(column, np.ndarray):
        body = _encode_texts(name, column)
        return _ColumnHead(name, "text", "", len(column), len(body)), body
    if column.ndim != 1 or column.dtype.kind not in "biuf":
        raise ValueError(
            f"column {name!r} is {column.dtype} of shape {column.shape}; a numeric array of one axis is kept"
        )
    kind = "int64" if column.dtype == _INT64 else "array"
    dtype = column.dtype.newbyteorder("<")
    body = _encode_int64(column) if kind == "int64" else column.astype(dtype).tobytes()
    return _ColumnHead(name, kind, dtype.str, len(column), len(body)), body


def _encode_int64(values: IntArray) -> bytes:
    steps = values.astype(_INT64)
    steps[1:] -= values[:-1]
    zigzag = (steps << 1) ^ (steps >> 63)  # small steps of either sign become small unsigned numbers
    return zigzag.view(np.uint8).reshape(len(values), _INT64.itemsize).T.tobytes()


def _decode_int64(body: memoryview, rows: int) -> IntArray:
    if len(body) != rows * _INT64.itemsize:
        raise ValueError(f"{rows} integers in {len(body)} bytes")
    planes = np.frombuffer(body, dtype=np.uint8).reshape(_INT64.itemsize, rows)
    zigzag = np.ascontiguousarray(planes.T).reshape(-1).view("<u8")
    steps = (zigzag >> np.uint64(1)) ^ (np.uint64(0) - (zigzag & np.uint64(1)))
    return np.cumsum(steps.view(_INT64), dtype=np.int64)


def _encode_texts(name: str, texts: Sequence[str | None]) -> bytes:
    if isinstance(texts, str) or not all(text is None or isinstance(text, str) for text in texts):
        raise ValueError(f"column {name!r} holds something that is neither text nor None")
    encoded = [None if text is None else text.encode("utf-8", "surrogatepass") for text in texts]
    lengths = np.array([_NO_TEXT if text is None else len(text) for text in encoded], dtype=np.int64)
    return b"".join([_encode_int64(lengths), *(text for text in encoded if text is not None)])


def _decode_texts(body: memoryview, rows: int) -> tuple[str | None, ...]:
    at = rows * _INT64.itemsize
    texts: list[str | None] = []
    for length in _decode_int64(body[:at], rows).tolist():
        if length == _NO_TEXT:
            texts.append(None)
            continue
        texts.append(str(body[at : at + length], "utf-8", "surrogatepass"))
        at += length
    if at != len(body):
        raise ValueError(f"texts of {at} bytes in a body of {len(body)}")
    return tuple(texts)


def _decode_plain(plain: bytes) -> dict[str, Array | tuple[str | None, ...]]:
    (header_length,) = _HEADER_LENGTH.unpack_from(plain)
    at = _HEADER_LENGTH.size + header_length
    heads = [_ColumnHead(**head) for head in json.loads(plain[_HEADER_LENGTH.size : at])]
    view = memoryview(plain)
    columns: dict[str, Array | tuple[str | None, ...]] = {}
    for head in heads:
        body = view[at : at + head.size]
        if len(body) != head.size:
            raise ValueError(f"column {head.name!r} is cut short")
        columns[head.name] = _decode_column(head, body)
        at += head.size
    if at != len(plain):
        raise ValueError(f"{len(plain) - at} bytes too many")
    return columns


def _decode_column(head: _ColumnHead, body: memoryview) -> Array | tuple[str | None, ...]:
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
