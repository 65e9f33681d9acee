"""The GGUF file an embedded deployment serves: the shipped F16 model, or one made from it and kept.

A made file is named by everything it depends on, so a folder never serves something stale. What a process finds in it
is not trusted: it serves what it made itself, as long as that is still there byte for byte. xllamacpp is never imported
here: its server runs in `server_process`, and its quantizers are plain C.
"""

from __future__ import annotations

import contextlib
import ctypes
import difflib
import functools
import hashlib
import importlib.util
import json
import os
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, replace
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchgate.errors import EmbeddedError
from benchgate.system import lacking


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


SHIPPED = Path(__file__).parent / "tiny" / "f16.gguf"
UNQUANTIZED = "f16"
# Name in a suite -> llama.cpp's name of the file type, which the server shows as what it serves.
QUANTIZED = {
    "q8_0": "MOSTLY_Q8_0",
    "q6_k": "MOSTLY_Q6_K",
    "q5_0": "MOSTLY_Q5_0",
    "q4_0": "MOSTLY_Q4_0",
    "q3_k": "MOSTLY_Q3_K_S",
    "q2_k_mix": "MOSTLY_Q2_K",
    "q2_k": "MOSTLY_Q2_K",
}
WEIGHTS = (UNQUANTIZED, *QUANTIZED)
RECIPE_VERSION = 1  # raise it when padding or quantizing writes other bytes than before
ARCHITECTURE_KEY = "general.architecture"
_QUANTIZATION_VERSION = 2  # of ggml's block formats; GGUF asks for it beside quantized tensors
_MIXED = {"output.weight": "q6_k", "attn_v.": "q3_k", "attn_output.": "q3_k", "ffn_down.": "q3_k"}  # the others: q2_k
_FIRST_LAYER = "blk.0."
_OUTPUT_PROJECTIONS = ("attn_output.weight", "ffn_down.weight")
_FILLER_DEVIATION = 0.05  # near the trained weights', far from overflow in F16

# Hashes of the files that this process made. A hash that lay beside the file could be forged with it.
_made_sha256: dict[Path, str] = {}


def weights_file(weights: str, extra_layers: int, cache_dir: Path) -> Path:
    """Return the GGUF file with these weights and this many added layers; made in a second, once in each process.

    `weights` is one of WEIGHTS; `extra_layers` (>= 0) cost time and change no answer. Safe for concurrent callers:
    each writes a file of its own and renames it into place. Raises EmbeddedError.
    """
    if weights not in WEIGHTS:
        near = difflib.get_close_matches(weights, WEIGHTS, n=1, cutoff=0)[0]
        raise EmbeddedError(
            f"{weights!r} are no weights of the embedded model; did you mean {near!r}? Known: {', '.join(WEIGHTS)}"
        )
    if extra_layers < 0:
        raise EmbeddedError(f"extra_layers is {extra_layers}; it must be 0 or more")
    if not SHIPPED.is_file():
        raise EmbeddedError(f"the shipped model is missing at {SHIPPED}; reinstall benchgate")
    if weights == UNQUANTIZED and extra_layers == 0:
        return SHIPPED
    recipe = {
        "source_sha256": _sha256(SHIPPED),
        "recipe_version": RECIPE_VERSION,
        "weights": weights,
        "extra_layers": extra_layers,
        "xllamacpp": require_engine(),
        "gguf": require_gguf(),
    }
    digest = hashlib.sha256(json.dumps(recipe, sort_keys=True).encode()).hexdigest()
    path = cache_dir / f"tiny-{weights}-plus{extra_layers}-{digest[:16]}.gguf"
    try:
        if _made_sha256.get(path.resolve()) != _sha256(path):
            with _written_atomically(path) as draft:
                model = read_gguf(SHIPPED)
                if extra_layers:
                    model = pad(model, extra_layers)
                write_gguf(model if weights == UNQUANTIZED else quantize(model, weights), draft)
                _made_sha256[path.resolve()] = _sha256(draft)
    except OSError as error:
        raise EmbeddedError(f"{path} could not be written: {error}; choose a folder that can be written") from error
    return path


def _sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest() if path.exists() else ""


@contextlib.contextmanager
def _written_atomically(path: Path) -> Iterator[Path]:
    """Yield a temporary path in the folder of `path`, renamed to `path` on success and removed on failure."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(prefix=f".{path.stem}-", suffix=".tmp", dir=path.parent)
    os.close(handle)
    draft = Path(name)
    try:
        yield draft
        draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)


@dataclass(frozen=True, slots=True)
class Field:
    """A metadata entry. `kind` and `item_kind` are GGUF value types; `item_kind` only for arrays."""

    value: Any  # str, int, float, bool or a list of one of them
    kind: int
    item_kind: int | None = None


@dataclass(frozen=True, slots=True)
class Tensor:
    """A named weight. `data` is (rows, columns) or (columns,) in the file's own encoding; `ggml_type` says which."""

    name: str
    data: NDArray[Any]
    ggml_type: int


@dataclass(frozen=True, slots=True)
class GgufModel:
    """A model file in memory, metadata and tensors in file order."""

    fields: dict[str, Field]
    tensors: tuple[Tensor, ...]

    @property
    def architecture(self) -> str:
        """Return the name of the architecture, which prefixes its keys (`llama.block_count`)."""
        return str(self.fields[ARCHITECTURE_KEY].value)

    @property
    def layers(self) -> int:
        """Return the number of transformer layers."""
        return int(self.fields[f"{self.architecture}.block_count"].value)


def read_gguf(path: Path) -> GgufModel:
    """Read a GGUF file. Raises EmbeddedError when it is absent or not a GGUF file."""
    require_gguf()
    from gguf import GGUFReader

    try:
        reader = GGUFReader(path)
    except (OSError, ValueError, IndexError) as error:
        raise EmbeddedError(f"{path} is not a readable GGUF file: {error}; reinstall benchgate") from error
    fields = {
        # The reader adds entries of its own about the header, which the writer makes anew.
        field.name: Field(field.contents(), int(field.types[0]), int(field.types[-1]) if len(field.types) > 1 else None)
        for field in reader.fields.values()
        if not field.name.startswith("GGUF.")
    }
    tensors = tuple(Tensor(t.name, np.asarray(t.data), int(t.tensor_type)) for t in reader.tensors)
    return GgufModel(fields, tensors)


def write_gguf(model: GgufModel, path: Path) -> None:
    """Write `model` to `path`, replacing what is there; OSError passes through."""
    require_gguf()
    from gguf import GGMLQuantizationType, GGUFValueType, GGUFWriter

    writer = GGUFWriter(path, model.architecture)
    try:
        for key, field in model.fields.items():
            if key != ARCHITECTURE_KEY:  # the writer has written it already
                item_kind = None if field.item_kind is None else GGUFValueType(field.item_kind)
                writer.add_key_value(key, field.value, GGUFValueType(field.kind), item_kind)
        for tensor in model.tensors:
            writer.add_tensor(tensor.name, tensor.data, raw_dtype=GGMLQuantizationType(tensor.ggml_type))
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
    finally:
        writer.close()


def pad(model: GgufModel, extra_layers: int) -> GgufModel:
    """Append layers that cost time and leave every answer as it is to an unquantized model.

    A transformer layer adds its attention output and its feed-forward output to its input. With both output
    projections zero it adds zero, and every token still pays for the layer's matrices. The added layers have the shapes
    of layer 0 and share one seeded filler; a file holds each of them in full, so memory traffic is that of a deeper
    model.
    """
    first = [t for t in model.tensors if t.name.startswith(_FIRST_LAYER)]
    rng = np.random.default_rng(0)
    filler = {}
    for tensor in first:
        data = tensor.data
        if data.ndim == 1:  # a norm's scale
            data = np.ones_like(data)
        elif tensor.name.endswith(_OUTPUT_PROJECTIONS):
            data = np.zeros_like(data)
        else:
            data = (rng.standard_normal(data.shape) * _FILLER_DEVIATION).astype(data.dtype)
        filler[tensor.name.removeprefix(_FIRST_LAYER)] = replace(tensor, data=data)
    extra = tuple(
        Tensor(f"blk.{layer}.{part}", tensor.data, tensor.ggml_type)
        for layer in range(model.layers, model.layers + extra_layers)
        for part, tensor in filler.items()
    )
    key = f"{model.architecture}.block_count"
    declared = replace(model.fields[key], value=model.layers + extra_layers)
    return replace(model, fields=model.fields | {key: declared}, tensors=model.tensors + extra)


def quantize(model: GgufModel, weights: str) -> GgufModel:
    """Quantize every matrix of an F16 or F32 model to the type `weights`, a key of QUANTIZED, by ggml's quantizers.

    Vectors (the norms) stay as they are. `llama-quantize` mixes types, so its Q3_K_M is not this q3_k; `q2_k_mix` is a
    mix by rules of our own: more bits where 2 hurt most. Raises EmbeddedError when a row does not divide into blocks.
    """
    require_gguf()
    from gguf import GGUFValueType, LlamaFileType

    uint32 = int(GGUFValueType.UINT32)
    fields = model.fields | {
        "general.file_type": Field(int(LlamaFileType[QUANTIZED[weights]]), uint32),
        "general.quantization_version": Field(_QUANTIZATION_VERSION, uint32),
    }
    tensors = tuple(_quantized(t, weights) if t.data.ndim == 2 else t for t in model.tensors)
    return replace(model, fields=fields, tensors=tensors)


def _quantized(tensor: Tensor, weights: str) -> Tensor:
    from gguf import GGML_QUANT_SIZES, GGMLQuantizationType

    if weights == "q2_k_mix":
        more = (kind for part, kind in _MIXED.items() if tensor.name == part or f".{part}" in tensor.name)
        weights = next(more, "q2_k")
    ggml_type = GGMLQuantizationType[weights.upper()]
    block, _ = GGML_QUANT_SIZES[ggml_type]
    columns = tensor.data.shape[1]
    if columns % block:
        raise EmbeddedError(f"{tensor.name} has rows of {columns}, and {ggml_type.name} needs a multiple of {block}")
    return replace(tensor, data=_encoded(tensor.data, int(ggml_type)), ggml_type=int(ggml_type))


def _encoded(matrix: NDArray[Any], ggml_type: int) -> NDArray[np.uint8]:
    """Return the rows of `matrix` as ggml blocks: (rows, bytes per row)."""
    library = engine_library()
    source = np.ascontiguousarray(matrix, dtype=np.float32)
    rows, columns = source.shape
    target = np.zeros((rows, library.ggml_row_size(ggml_type, columns)), dtype=np.uint8)
    library.ggml_quantize_init(ggml_type)
    written = library.ggml_quantize_chunk(ggml_type, source.ctypes.data, target.ctypes.data, 0, rows, columns, None)
    if written != target.nbytes:
        raise EmbeddedError(f"ggml wrote {written} bytes where {target.nbytes} were expected; the engine does not fit")
    return target
