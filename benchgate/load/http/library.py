"""The compiled part of the load engine: a shared library without any Python in it, built at installation.

Without it everything is done in Python, with the same results at a higher cost: see docs/background/measuring.md.
BENCHGATE_NATIVE=0 disables it.
"""

from __future__ import annotations

import ctypes
import os
import sys
import zlib
from array import array
from functools import cache
from pathlib import Path

SOURCE = Path(__file__).with_name("reader.c")
COMPILED = SOURCE.with_suffix(".lib")  # not .so: Python would take it for a module
DISABLED_BY = "BENCHGATE_NATIVE"
"""Environment variable that disables the library with the value 0."""

_POINTER, _INT, _LONG, _BYTES = ctypes.c_void_p, ctypes.c_int, ctypes.c_int64, ctypes.c_char_p
_SIGNATURES: dict[str, tuple[type | None, tuple[type, ...]]] = {
    "source": (ctypes.c_uint32, ()),
    "reader_start": (_POINTER, (ctypes.c_size_t, _INT)),
    "reader_stop": (None, (_POINTER,)),
    "reader_descriptor": (_INT, (_POINTER,)),
    "reader_attach": (_INT, (_POINTER, _INT)),
    "reader_next": (None, (_POINTER, _INT)),
    "reader_notify_on_end": (None, (_POINTER, _INT)),
    "reader_detach": (None, (_POINTER, _INT)),
    "reader_read_rest": (None, (_POINTER, _INT)),
    "reader_take": (_INT, (_POINTER, _INT, _POINTER)),
    "reader_delays": (_INT, (_POINTER, _POINTER)),
    "reader_ready": (_INT, (_POINTER, _POINTER)),
    "may_end": (_INT, (_BYTES, ctypes.c_size_t)),
    "skip_run": (
        _LONG,
        (_BYTES, _LONG, _INT, _BYTES, _LONG, _BYTES, _LONG, _POINTER, _LONG, *(_POINTER,) * 5),
    ),
}


def library() -> ctypes.CDLL | None:
    """Return the compiled functions; None where they are missing, stale or disabled."""
    return None if os.environ.get(DISABLED_BY) == "0" else _library()


def fingerprint(source: bytes) -> int:
    """Return the checksum of the source that is compiled into its library."""
    return zlib.crc32(source)


def missing_warning() -> str | None:
    """Return a warning if the library should be there and is missing or stale."""
    if sys.platform != "linux" or os.environ.get(DISABLED_BY) == "0" or _library() is not None:
        return None
    found = "is not compiled from the source beside it" if COMPILED.exists() else "is missing"
    cost = "a token costs about 1.7 times as much CPU; install benchgate again where a C compiler is"
    return f"the compiled reader {COMPILED} {found}: {cost}"


@cache
def _library() -> ctypes.CDLL | None:
    try:
        compiled, source = ctypes.CDLL(str(COMPILED)), SOURCE.read_bytes()
        for name, (result, arguments) in _SIGNATURES.items():
            function = getattr(compiled, name)
            function.restype, function.argtypes = result, arguments
    except (OSError, AttributeError):  # missing, or of another system or version
        return None
    return compiled if compiled.source() == fingerprint(source) else None


def address_of(numbers: array[int]) -> int:
    """Return the address of an array's numbers, valid until the array changes."""
    return numbers.buffer_info()[0]
