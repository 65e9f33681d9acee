"""What was compiled of `reader.c`, where the installation could compile it and the source is still the same.

It is a shared library without any Python in it. Without it everything is done in Python, with the same results at a
higher cost: see docs/measuring.md. BENCHGATE_NATIVE=0 leaves it aside.
"""

from __future__ import annotations

import ctypes
import os
import zlib
from array import array
from functools import cache
from pathlib import Path

SOURCE = Path(__file__).with_name("reader.c")
COMPILED = SOURCE.with_suffix(".lib")  # not .so: Python would take it for a module
LEFT_ASIDE = "BENCHGATE_NATIVE"
"""The environment variable that says so, with the value 0."""

_POINTER, _INT, _LONG = ctypes.c_void_p, ctypes.c_int, ctypes.c_int64
_SIGNATURES: dict[str, tuple[type | None, tuple[type, ...]]] = {
    "source": (ctypes.c_uint32, ()),
    "flows_new": (_POINTER, (_INT, ctypes.c_size_t)),
    "flows_free": (None, (_POINTER,)),
    "flows_add": (_INT, (_POINTER, _INT)),
    "flows_trust": (None, (_POINTER, _INT)),
    "flows_take": (_INT, (_POINTER, _INT, _POINTER)),
    "flows_drop": (None, (_POINTER, _INT)),
    "flows_look": (_INT, (_POINTER, _POINTER, _POINTER, _INT, _LONG)),
    "may_end": (_INT, (ctypes.c_char_p, ctypes.c_size_t)),
    "run": (
        _LONG,
        (
            ctypes.c_char_p, _LONG, _INT, ctypes.c_char_p, _LONG, ctypes.c_char_p, _LONG, _POINTER, _LONG, _POINTER,
            _POINTER, _POINTER, _POINTER, _POINTER,
        ),
    ),
}  # fmt: skip


def library() -> ctypes.CDLL | None:
    """The compiled functions; None where there are none, they are not of this source, or they are left aside."""
    return None if os.environ.get(LEFT_ASIDE) == "0" else _library()


def fingerprint(source: bytes) -> int:
    """What tells one source from another: compiled in, and held against the source beside it."""
    return zlib.crc32(source)


@cache
def _library() -> ctypes.CDLL | None:
    try:
        compiled, source = ctypes.CDLL(str(COMPILED)), SOURCE.read_bytes()
        for name, (result, arguments) in _SIGNATURES.items():
            function = getattr(compiled, name)
            function.restype, function.argtypes = result, arguments
    except (OSError, AttributeError):  # not there, or of another system, or of another time
        return None
    return compiled if compiled.source() == fingerprint(source) else None


def address_of(numbers: array[int]) -> int:
    """Where the numbers of an array lie, until it is changed."""
    return numbers.buffer_info()[0]
