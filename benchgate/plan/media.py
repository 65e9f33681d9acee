"""Media of requests: generated images, speech and videos, and files, each as a `data:` address.

Generated media are byte-equal on every machine, because they are a part of a plan's identity: all arithmetic is that of
whole numbers, and nothing is compressed. A salt changes them without changing their size (`plan.salt`).
"""

from __future__ import annotations

import base64
import math
import re
import struct
import zlib
from collections.abc import Iterable
from functools import cache, lru_cache

import numpy as np
import numpy.typing as npt

Pixels = npt.NDArray[np.uint8]
Samples = npt.NDArray[np.int16]

_STORED_BYTES = 65_535  # largest stored block of a deflate stream
_HEADER_AT, _DATA_AT = 16, 33  # offsets in a PNG made here: its width, and the length of its pixels
_PIXELS, _SAMPLES, _FRAMES = 2, 3, 4  # random streams of what a salt changes
_KEY_SIZE = 16


def data_url(content: bytes, media_type: str) -> str:
    """Return a file as a `data:` address: `data:image/png;base64,…`."""
    return f"data:{media_type};base64,{base64.b64encode(content).decode()}"


def data_of(address: str) -> bytes:
    """Return the content of a `data:` address. Raises ValueError for one without base64."""
    return base64.b64decode(address.partition(",")[2], validate=True)


def media_type_of(address: str) -> str:
    """Return the media type of a `data:` address: `audio/wav`."""
    return address.removeprefix("data:").partition(";")[0]


def salted_media(address: str, salt: int) -> str:
    """Return a generated medium, changed throughout by the salt. Salting twice by the same salt changes nothing."""
    kind = media_type_of(address)
    return data_url(_SALTED[kind](data_of(address), salt), kind)


# --- images ----------------------------------------------------------------------------------------------------------


def noise_png(width: int, height: int, generator: np.random.Generator) -> bytes:
    """Return a grey PNG (RFC 2083) of random pixels, stored uncompressed."""
    return _grey_png(generator.integers(0, 256, size=(height, width), dtype=np.uint8))


def _salted_png(png: bytes, salt: int) -> bytes:
    width, height, data_bytes = (*struct.unpack_from(">II", png, _HEADER_AT), *struct.unpack_from(">I", png, _DATA_AT))
    stored = png[_DATA_AT + 8 : _DATA_AT + 8 + data_bytes]
    rows = np.frombuffer(zlib.decompress(stored), dtype=np.uint8).reshape(height, width + 1)
    generator = np.random.default_rng([salt, _PIXELS])
    key = generator.integers(1, 256, size=_KEY_SIZE, dtype=np.uint8)
    return _grey_png(rows[:, 1:] ^ np.resize(key, width))


def _grey_png(pixels: Pixels) -> bytes:
    height, width = pixels.shape
    rows = b"".join(b"\x00" + row.tobytes() for row in pixels)  # filter type 0: none
    header = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    # A zlib stream (RFC 1950) of stored blocks; output of `zlib.compress` differs between implementations.
    blocks = [rows[at : at + _STORED_BYTES] for at in range(0, len(rows), _STORED_BYTES)]
    stored = b"".join(
        struct.pack("<BHH", number == len(blocks) - 1, len(block), len(block) ^ 0xFFFF) + block
        for number, block in enumerate(blocks)
    )
    stream = b"\x78\x01" + stored + struct.pack(">I", zlib.adler32(rows))
    chunks = [_png_chunk(b"IHDR", header), _png_chunk(b"IDAT", stream), _png_chunk(b"IEND", b"")]
    return b"\x89PNG\r\n\x1a\n" + b"".join(chunks)


def _png_chunk(kind: bytes, content: bytes) -> bytes:
    return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))


# --- speech ----------------------------------------------------------------------------------------------------------

SAMPLES_PER_S = 16_000
_VOICES = 8
_RECORDING_SAMPLES = 12 * SAMPLES_PER_S
_HEADER_BYTES = 44  # of a WAV made here
_PERIOD = 1024  # samples in the table of one period
_LOUDNESS = 9_000
_NOISE_BITS = 4  # of a sample that differ between clips: 66 dB below full scale
# The three lowest formants of five vowels, in Hz (Peterson and Barney 1952, men).
_VOWELS = ((730, 1090, 2440), (530, 1840, 2480), (270, 2290, 3010), (570, 840, 2410), (300, 870, 2240))
_BANDWIDTH_HZ = 90
_HIGHEST_HZ = 3_800


def speech_wav(seconds: float, generator: np.random.Generator) -> bytes:
    """Return a WAV of speech-like sound: 16 kHz, one channel, 16 bit.

    It is a part of one of a few recordings of voiced syllables, hisses and pauses, beginning anywhere in it. Faint
    noise makes each clip another one.
    """
    recording = _recording(int(generator.integers(_VOICES)))
    begin = int(generator.integers(len(recording)))
    clip = np.resize(np.roll(recording, -begin), max(1, round(seconds * SAMPLES_PER_S)))
    return _wav(clip ^ _noise(len(clip), generator))


def _salted_wav(wav: bytes, salt: int) -> bytes:
    clip = np.frombuffer(wav, dtype="<i2", offset=_HEADER_BYTES)
    return _wav(clip ^ _noise(len(clip), np.random.default_rng([salt, _SAMPLES])))


def _noise(count: int, generator: np.random.Generator) -> Samples:
    return np.resize(generator.integers(1, 1 << _NOISE_BITS, size=_KEY_SIZE, dtype=np.int16), count)


def _wav(clip: Samples) -> bytes:
    content = clip.astype("<i2").tobytes()
    form = struct.pack("<HHIIHH", 1, 1, SAMPLES_PER_S, 2 * SAMPLES_PER_S, 2, 16)  # PCM, one channel
    chunks = b"WAVEfmt " + struct.pack("<I", len(form)) + form + b"data" + struct.pack("<I", len(content)) + content
    return b"RIFF" + struct.pack("<I", len(chunks)) + chunks


@cache
def _recording(voice: int) -> Samples:
    """Return the recording of a voice: syllables at about five a second, in phrases with pauses between them."""
    generator = np.random.default_rng([_SAMPLES, voice])
    parts: list[npt.NDArray[np.int64]] = []
    left = _RECORDING_SAMPLES
    while left > 0:
        syllables = int(generator.integers(4, 10))
        for place in range(syllables):
            hiss = generator.integers(-1_500, 1_501, size=int(generator.integers(0, 1_000)))
            pitch_hz = (90 + 20 * voice) * int(generator.integers(92, 112) - 2 * place) // 100  # falls in a phrase
            vowel = _vowel(pitch_hz, int(generator.integers(len(_VOWELS))), int(generator.integers(1_600, 4_000)))
            parts += [hiss, vowel]
        parts.append(np.zeros(int(generator.integers(3_000, 8_000)), dtype=np.int64))
        left = _RECORDING_SAMPLES - sum(map(len, parts))
    return np.concatenate(parts)[:_RECORDING_SAMPLES].astype(np.int16)


def _vowel(pitch_hz: int, vowel: int, samples: int) -> npt.NDArray[np.int64]:
    """Return a vowel that begins and ends softly."""
    place = np.arange(samples, dtype=np.int64)
    period = _period(pitch_hz, vowel)[place * pitch_hz * _PERIOD // SAMPLES_PER_S % _PERIOD]
    ramp = 400
    return period * np.minimum(np.minimum(place, samples - 1 - place), ramp) // ramp


@lru_cache(maxsize=512)
def _period(pitch_hz: int, vowel: int) -> npt.NDArray[np.int64]:
    """Return one period of a vowel: harmonics of the pitch, loudest at the vowel's formants."""
    harmonics = np.arange(1, _HIGHEST_HZ // pitch_hz + 1)
    away = harmonics[:, None] * pitch_hz - np.array(_VOWELS[vowel])
    loudness = (1_000 * _BANDWIDTH_HZ**2 // (_BANDWIDTH_HZ**2 + away**2)).sum(axis=1)
    wave: npt.NDArray[np.int64] = (loudness[:, None] * _sine()[np.outer(harmonics, np.arange(_PERIOD)) % _PERIOD]).sum(
        axis=0
    )
    return wave * _LOUDNESS // int(np.abs(wave).max())


@cache
def _sine() -> npt.NDArray[np.int64]:
    return np.array([round(2**15 * math.sin(2 * math.pi * at / _PERIOD)) for at in range(_PERIOD)], dtype=np.int64)


# --- videos ----------------------------------------------------------------------------------------------------------

BLOCK_PIXELS = 16  # width and height of a macroblock
_LUMA, _CHROMA = BLOCK_PIXELS**2, BLOCK_PIXELS**2 // 2  # bytes of a macroblock
_RAW_BLOCK = b"\x0d\x00"  # `mb_type` I_PCM, and zeros up to the next whole byte
_BLOCK_BYTES = len(_RAW_BLOCK) + _LUMA + _CHROMA
_BRIGHT = 128  # no byte of a picture is 0, which would need an escape
_GREY = b"\x80" * _CHROMA
_TICKS = 512  # of the video's clock in a frame
_STOP_BIT = b"\x80"


def noise_mp4(width: int, height: int, frames: int, fps: int, generator: np.random.Generator) -> bytes:
    """Return an MP4 file (ISO/IEC 14496-12) with H.264 video of random grey pixels. Sizes are multiples of 16.

    Every macroblock is stored uncompressed (`I_PCM`), and every frame is a key frame: all decoders of H.264 read this,
    and no encoder is needed.
    """
    across, down = width // BLOCK_PIXELS, height // BLOCK_PIXELS
    luma = generator.integers(_BRIGHT, 256, size=(frames, across * down, _LUMA), dtype=np.uint8)
    units = [_frame(number, blocks) for number, blocks in enumerate(luma)]
    samples = [struct.pack(">I", len(unit)) + unit for unit in units]
    kind = _box(b"ftyp", b"isom", struct.pack(">I", 512), b"isomiso2avc1mp41")
    index = _index(width, height, fps, list(map(len, samples)), 0)
    begin = len(kind) + len(index) + 8
    return kind + _index(width, height, fps, list(map(len, samples)), begin) + _box(b"mdat", *samples)


def _salted_mp4(mp4: bytes, salt: int) -> bytes:
    generator = np.random.default_rng([salt, _FRAMES])
    key = np.resize(generator.integers(1, _BRIGHT, size=_KEY_SIZE, dtype=np.uint8), _LUMA)
    content = np.frombuffer(bytearray(mp4), dtype=np.uint8)
    at = mp4.index(b"mdat") + 4
    while at < len(mp4):
        end = at + 4 + int.from_bytes(mp4[at : at + 4])
        blocks = (end - at) // _BLOCK_BYTES  # the head of a frame is shorter than a block
        first = end - len(_STOP_BIT) - blocks * _BLOCK_BYTES
        body = content[first : end - len(_STOP_BIT)].reshape(blocks, _BLOCK_BYTES)
        body[:, len(_RAW_BLOCK) : len(_RAW_BLOCK) + _LUMA] ^= key
        at = end
    return content.tobytes()


def _frame(number: int, blocks: Pixels) -> bytes:
    """Return a coded slice of an IDR picture (ITU-T H.264, 7.3): all macroblocks of a frame."""
    head = "".join([_ue(0), _ue(7), _ue(0), "0000", _ue(number % 2), "00", _ue(0), _ue(1)])  # 7: a slice of I blocks
    first = _bytes(head + _ue(25))  # the first `mb_type`, I_PCM
    raw = [_RAW_BLOCK + block.tobytes() + _GREY for block in blocks]
    return _unit(0x65, first + b"".join(raw)[len(_RAW_BLOCK) :] + _STOP_BIT)


def _unit(kind: int, payload: bytes) -> bytes:
    """Return a NAL unit; three bytes that would look like the start of another one are escaped."""
    return bytes([kind]) + re.sub(rb"\x00\x00(?=[\x00-\x03])", b"\x00\x00\x03", payload)


def _parameters(width: int, height: int) -> tuple[bytes, bytes]:
    """Return the sequence and the picture parameter set: baseline profile, level 4."""
    across, down = width // BLOCK_PIXELS, height // BLOCK_PIXELS
    sequence = [_ue(0), _ue(0), _ue(2), _ue(1), "0", _ue(across - 1), _ue(down - 1), "1", "1", "0", "0", "1"]
    picture = [_ue(0), _ue(0), "0", "0", _ue(0), _ue(0), _ue(0), "0", "00", _ue(0), _ue(0), _ue(0), "1", "0", "0", "1"]
    return (
        _unit(0x67, bytes([66, 0xC0, 40]) + _bytes("".join(sequence))),
        _unit(0x68, _bytes("".join(picture))),
    )


def _ue(value: int) -> str:
    """Return the bits of an unsigned Exp-Golomb code."""
    bits = f"{value + 1:b}"
    return "0" * (len(bits) - 1) + bits


def _bytes(bits: str) -> bytes:
    """Return bits as bytes, filled up with zeros."""
    padded = bits + "0" * (-len(bits) % 8)
    return int(padded, 2).to_bytes(len(padded) // 8)


def _index(width: int, height: int, fps: int, sizes: list[int], begin: int) -> bytes:
    """Return the `moov` box of a file with one chunk of frames at `begin`."""
    sequence, picture = _parameters(width, height)
    frames, clock = len(sizes), fps * _TICKS
    length = frames * _TICKS
    matrix = struct.pack(">9i", 1 << 16, 0, 0, 0, 1 << 16, 0, 0, 0, 1 << 30)
    decoder = _box(
        b"avcC", b"\x01", sequence[1:4], b"\xff\xe1", _sized(sequence), b"\x01", _sized(picture)
    )  # lengths of four bytes, one set of each
    entry = _box(
        b"avc1", bytes(6), struct.pack(">H", 1), bytes(16), struct.pack(">HH", width, height),
        struct.pack(">II", 72 << 16, 72 << 16), bytes(4), struct.pack(">H", 1), bytes(32), struct.pack(">Hh", 24, -1),
        decoder,
    )  # fmt: skip
    tables = _box(
        b"stbl",
        _full(b"stsd", struct.pack(">I", 1), entry),
        _full(b"stts", struct.pack(">III", 1, frames, _TICKS)),
        _full(b"stsc", struct.pack(">IIII", 1, 1, frames, 1)),
        _full(b"stsz", struct.pack(">II", 0, frames), *(struct.pack(">I", size) for size in sizes)),
        _full(b"stco", struct.pack(">II", 1, begin)),
    )
    place = _box(b"dinf", _full(b"dref", struct.pack(">I", 1), _full(b"url ", flags=1)))
    header = _full(b"hdlr", bytes(4), b"vide", bytes(12), b"video\0")
    media = _box(
        b"mdia",
        _full(b"mdhd", struct.pack(">IIIIHH", 0, 0, clock, length, 0x55C4, 0)),
        header,
        _box(b"minf", _full(b"vmhd", bytes(8), flags=1), place, tables),
    )
    size = struct.pack(">II", width << 16, height << 16)
    track = _full(b"tkhd", struct.pack(">IIIII", 0, 0, 1, 0, length), bytes(16), matrix, size, flags=3)
    movie = [struct.pack(">IIIIIH", 0, 0, clock, length, 1 << 16, 1 << 8), bytes(10), matrix, bytes(24)]
    return _box(b"moov", _full(b"mvhd", *movie, struct.pack(">I", 2)), _box(b"trak", track, media))


def _sized(unit: bytes) -> bytes:
    return struct.pack(">H", len(unit)) + unit


def _full(kind: bytes, *parts: bytes, flags: int = 0) -> bytes:
    return _box(kind, struct.pack(">I", flags), *parts)


def _box(kind: bytes, *parts: Iterable[int]) -> bytes:
    content = b"".join(map(bytes, parts))
    return struct.pack(">I", 8 + len(content)) + kind + content


_SALTED = {"image/png": _salted_png, "audio/wav": _salted_wav, "video/mp4": _salted_mp4}
