"""The llama.cpp build inside the xllamacpp wheel: its version and its C functions.

xllamacpp is never imported here: its server runs in `server_process`, and its quantizers are plain C.
"""

from __future__ import annotations

import ctypes
import functools
import importlib.util
from importlib import metadata
from pathlib import Path

from benchgate.errors import EmbeddedError, lacking


def require_engine() -> str:
    """Return the version of the installed xllamacpp wheel. Raises EmbeddedError when it is not installed."""
    return _version("xllamacpp")


def require_gguf() -> str:
    """Return the version of the installed gguf package. Raises EmbeddedError when it is not installed."""
    return _version("gguf")


def _version(distribution: str) -> str:
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError as error:
        missing = f"the embedded engine needs {distribution}, which is not installed"
        raise EmbeddedError(lacking(missing, "demo")) from error


@functools.cache
def engine_library() -> ctypes.CDLL:
    """Open the extension module of xllamacpp as a C library, with the types of ggml's quantizers declared.

    The wheel leaves out `llama_model_quantize` and exports `ggml_quantize_chunk`, the function it calls per tensor.
    Raises EmbeddedError when the library is missing, cannot be loaded or lacks a function.
    """
    version = require_engine()
    spec = importlib.util.find_spec("xllamacpp")
    folder = Path(spec.origin).parent if spec is not None and spec.origin is not None else None
    files = sorted(folder.glob("xllamacpp*.so")) if folder is not None else []
    if not files:
        raise EmbeddedError(lacking(f"xllamacpp {version} has no extension module; reinstall it", "demo"))
    try:
        return _declared(ctypes.CDLL(str(files[0])))
    except (OSError, AttributeError) as error:
        raise EmbeddedError(
            f"the C library of xllamacpp {version} cannot be used: {error}; it needs libgomp (on Debian: libgomp1), "
            "and versions from 2026.10 on export what benchgate calls"
        ) from error


def _declared(library: ctypes.CDLL) -> ctypes.CDLL:
    """Give ctypes the signatures of ggml.h; an absent function raises AttributeError here and not in mid-use."""
    library.ggml_row_size.restype = ctypes.c_size_t
    library.ggml_row_size.argtypes = [ctypes.c_int, ctypes.c_int64]
    library.ggml_quantize_init.restype = None
    library.ggml_quantize_init.argtypes = [ctypes.c_int]
    library.ggml_quantize_chunk.restype = ctypes.c_size_t
    library.ggml_quantize_chunk.argtypes = [
        ctypes.c_int,  # ggml type
        ctypes.c_void_p,  # float32 source
        ctypes.c_void_p,  # destination
        ctypes.c_int64,  # first element
        ctypes.c_int64,  # rows
        ctypes.c_int64,  # elements per row
        ctypes.c_void_p,  # importance matrix, or null
    ]
    return library
