"""Which file an embedded deployment serves: the shipped F16 model, or one made from it and kept.

What is made is named by everything it depends on, so a folder never serves something stale. What a process finds in it
is not trusted: it serves what it made itself, as long as that is still there byte for byte.
"""

from __future__ import annotations

import contextlib
import difflib
import hashlib
import json
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

from benchgate.embedded.engine import require_engine, require_gguf
from benchgate.embedded.gguf_file import GgufModel, read_gguf, write_gguf
from benchgate.embedded.padding import pad
from benchgate.embedded.quantize import QUANTIZED, quantize
from benchgate.errors import EmbeddedError

SHIPPED = Path(__file__).parent / "tiny" / "f16.gguf"
UNQUANTIZED = "f16"
WEIGHTS = (UNQUANTIZED, *QUANTIZED)
RECIPE_VERSION = 1  # raise it when padding or quantizing writes other bytes than before

_made_sha256: dict[Path, str] = {}
"""What this process made, and where. A hash that lay beside the file could be forged with it."""


def weights_file(weights: str, extra_layers: int, cache_dir: Path) -> Path:
    """The GGUF file with these weights and this many added layers; made in a second or so, once in each process.

    `weights` is one of WEIGHTS; `extra_layers` (>= 0) cost time and change no answer. Safe for concurrent callers:
    each writes a file of its own and renames it into place. Raises EmbeddedError.
    """
    _check(weights, extra_layers)
    if weights == UNQUANTIZED and extra_layers == 0:
        return SHIPPED
    path = cache_dir / f"tiny-{weights}-plus{extra_layers}-{_recipe_digest(weights, extra_layers)[:16]}.gguf"
    try:
        if _made_sha256.get(path.resolve()) != _sha256(path):
            with _written_atomically(path) as draft:
                write_gguf(_made(weights, extra_layers), draft)
                _made_sha256[path.resolve()] = _sha256(draft)
    except OSError as error:
        raise EmbeddedError(f"{path} could not be written: {error}; choose a folder that can be written") from error
    return path


def _check(weights: str, extra_layers: int) -> None:
    if weights not in WEIGHTS:
        near = difflib.get_close_matches(weights, WEIGHTS, n=1, cutoff=0)[0]
        raise EmbeddedError(
            f"{weights!r} are no weights of the embedded model; did you mean {near!r}? Known: {', '.join(WEIGHTS)}"
        )
    if extra_layers < 0:
        raise EmbeddedError(f"extra_layers is {extra_layers}; it must be 0 or more")
    if not SHIPPED.is_file():
        raise EmbeddedError(f"the shipped model is missing at {SHIPPED}; reinstall benchgate")


def _recipe_digest(weights: str, extra_layers: int) -> str:
    """SHA-256 over the source's bytes, what is done to it, and the version of the quantizers that do it."""
    recipe = {
        "source_sha256": _sha256(SHIPPED),
        "recipe_version": RECIPE_VERSION,
        "weights": weights,
        "extra_layers": extra_layers,
        "xllamacpp": require_engine(),
        "gguf": require_gguf(),
    }
    return hashlib.sha256(json.dumps(recipe, sort_keys=True).encode()).hexdigest()


def _sha256(path: Path) -> str:
    """Of the file's bytes; empty where there is none."""
    return hashlib.sha256(path.read_bytes()).hexdigest() if path.exists() else ""


def _made(weights: str, extra_layers: int) -> GgufModel:
    model = read_gguf(SHIPPED)
    if extra_layers:
        model = pad(model, extra_layers)
    return model if weights == UNQUANTIZED else quantize(model, weights)


@contextlib.contextmanager
def _written_atomically(path: Path) -> Iterator[Path]:
    """A temporary path in the folder of `path`, renamed to `path` on success and removed on failure."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(prefix=f".{path.stem}-", suffix=".tmp", dir=path.parent)
    os.close(handle)
    draft = Path(name)
    try:
        yield draft
        draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)
