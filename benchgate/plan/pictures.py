"""Pictures of noise as PNG files, made by hand so that every machine makes the same bytes."""

from __future__ import annotations

import base64
import struct
import zlib

import numpy as np
import numpy.typing as npt

_STORED_BYTES = 65_535  # the most that one stored block of a deflate stream holds
_HEADER_AT, _DATA_AT = 16, 33  # of a picture made here: its width, and the length of its pixels
_PIXELS = 2  # keeps the random numbers that change pixels apart from those that change words
_KEY_PIXELS = 16


def noise_png(width: int, height: int, generator: np.random.Generator) -> bytes:
    """A grey PNG (RFC 2083) of random pixels. They do not compress, so nothing is lost by storing them as they are."""
    return _grey_png(generator.integers(0, 256, size=(height, width), dtype=np.uint8))


def salted_address(address: str, salt: int) -> str:
    """Return the `data:` address of a `noise_png` with every pixel changed, as it follows from the salt."""
    kind, content = address.split(",", 1)
    png = base64.b64decode(content)
    width, height, data_bytes = (*struct.unpack_from(">II", png, _HEADER_AT), *struct.unpack_from(">I", png, _DATA_AT))
    stored = png[_DATA_AT + 8 : _DATA_AT + 8 + data_bytes]
    rows = np.frombuffer(zlib.decompress(stored), dtype=np.uint8).reshape(height, width + 1)
    generator = np.random.default_rng([salt, _PIXELS])
    key = generator.integers(1, 256, size=_KEY_PIXELS, dtype=np.uint8)
    return f"{kind},{base64.b64encode(_grey_png(rows[:, 1:] ^ np.resize(key, width))).decode()}"


def _grey_png(pixels: npt.NDArray[np.uint8]) -> bytes:
    height, width = pixels.shape
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
