"""Real quantization of a GGUF model, by ggml's own quantizers.

Every matrix gets the one type named ("pure"); vectors (the norms) stay as they are. `llama-quantize` mixes types
instead, so its Q3_K_M is not this q3_k. `q2_k_mix` is a mix after its manner and by rules of our own: more bits where
2 hurt most.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchgate.embedded.engine import engine_library, require_gguf
from benchgate.embedded.gguf_file import Field, GgufModel, Tensor
from benchgate.errors import EmbeddedError

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
MIX = "q2_k_mix"
_MIXED = {"output.weight": "q6_k", "attn_v.": "q3_k", "attn_output.": "q3_k", "ffn_down.": "q3_k"}  # the others: q2_k
QUANTIZATION_VERSION = 2  # of ggml's block formats; GGUF asks for it beside quantized tensors


def quantize(model: GgufModel, weights: str) -> GgufModel:
    """`model` (F16 or F32) with every matrix in the type `weights`, a key of QUANTIZED, or in the mix of that name.

    Raises EmbeddedError when a row does not divide into blocks of the type.
    """
    require_gguf()
    from gguf import GGUFValueType, LlamaFileType

    uint32 = int(GGUFValueType.UINT32)
    fields = model.fields | {
        "general.file_type": Field(int(LlamaFileType[QUANTIZED[weights]]), uint32),
        "general.quantization_version": Field(QUANTIZATION_VERSION, uint32),
    }
    tensors = tuple(_quantized(t, _type_of(t.name, weights)) if t.data.ndim == 2 else t for t in model.tensors)
    return replace(model, fields=fields, tensors=tensors)


def _type_of(tensor: str, weights: str) -> int:
    """The ggml type of one matrix."""
    from gguf import GGMLQuantizationType

    if weights == MIX:
        more = (name for part, name in _MIXED.items() if tensor == part or f".{part}" in tensor)
        weights = next(more, "q2_k")
    return int(GGMLQuantizationType[weights.upper()])


def _quantized(tensor: Tensor, ggml_type: int) -> Tensor:
    from gguf import GGML_QUANT_SIZES, GGMLQuantizationType

    block, _ = GGML_QUANT_SIZES[GGMLQuantizationType(ggml_type)]
    columns = tensor.data.shape[1]
    if columns % block:
        name = GGMLQuantizationType(ggml_type).name
        raise EmbeddedError(f"{tensor.name} has rows of {columns}, and {name} needs a multiple of {block}")
    return replace(tensor, data=_encoded(tensor.data, ggml_type), ggml_type=ggml_type)


def _encoded(matrix: NDArray[Any], ggml_type: int) -> NDArray[np.uint8]:
    """The rows of `matrix` as ggml blocks: (rows, bytes per row)."""
    library = engine_library()
    source = np.ascontiguousarray(matrix, dtype=np.float32)
    rows, columns = source.shape
    target = np.zeros((rows, library.ggml_row_size(ggml_type, columns)), dtype=np.uint8)
    library.ggml_quantize_init(ggml_type)
    written = library.ggml_quantize_chunk(ggml_type, source.ctypes.data, target.ctypes.data, 0, rows, columns, None)
    if written != target.nbytes:
        raise EmbeddedError(f"ggml wrote {written} bytes where {target.nbytes} were expected; the engine does not fit")
    return target
