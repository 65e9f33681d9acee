"""Pictures of noise as PNG files, made by hand so that every machine makes the same bytes."""

from __future__ import annotations

import base64
import struct
import zlib

import numpy as np

_STORED_BYTES = 65_535  # the most that one stored block of a deflate stream holds


def noise_png(width: int, height: int, generator: np.random.Generator) -> bytes:
    """A grey PNG (RFC 2083) of random pixels. They do not compress, so nothing is lost by storing them as they are."""
    pixels = generator.integers(0, 256, size=(height, width), dtype=np.uint8)
    rows = b"".join(b"\x00" + row.tobytes() for row in pixels)  # filter type 0: none
    header = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    chunks = [_chunk(b"IHDR", header), _chunk(b"IDAT", _stored(rows)), _chunk(b"IEND", b"")]
    return b"\x89PNG\r\n\x1a\n" + b"".join(chunks)


def data_address(content: bytes, kind: str) -> str:
    """A file as the address that stands for it in a message: `data:image/png;base64,…`."""
    return f"data:image/{kind};base64,{base64.b64encode(content).decode()}"


def _chunk(kind: bytes, content: bytes) -> bytes:
    return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))


def _stored(content: bytes) -> bytes:
    """A zlib stream (RFC 1950) of stored blocks; what `zlib.compress` gives differs between its implementations."""
    blocks = [content[at : at + _STORED_BYTES] for at in range(0, len(content), _STORED_BYTES)]
    stream = b"".join(
        struct.pack("<BHH", number == len(blocks) - 1, len(block), len(block) ^ 0xFFFF) + block
        for number, block in enumerate(blocks)
    )
    return b"\x78\x01" + stream + struct.pack(">I", zlib.adler32(content))
