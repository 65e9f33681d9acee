"""Layers that cost time and change nothing: the candidate that is slower with equal answers.

A transformer layer adds its attention output and its feed-forward output to its input. With both output projections
zero it adds zero, so the model computes the same function, and every token still pays for the layer's matrices.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchgate.embedded.gguf_file import GgufModel, Tensor

FIRST_LAYER = "blk.0."
OUTPUT_PROJECTIONS = ("attn_output.weight", "ffn_down.weight")
SPREAD = 0.05  # standard deviation of the filler: near the trained weights', far from overflow in F16


def pad(model: GgufModel, extra_layers: int) -> GgufModel:
    """`model` (unquantized) with `extra_layers` layers appended that leave every answer as it is.

    The added layers have the shapes of layer 0 and share one seeded filler; a file holds each of them in full, so
    memory traffic is that of a deeper model.
    """
    first = [t for t in model.tensors if t.name.startswith(FIRST_LAYER)]
    rng = np.random.default_rng(0)
    filler = {t.name.removeprefix(FIRST_LAYER): Tensor(t.name, _filler(t, rng), t.ggml_type) for t in first}
    extra = tuple(
        Tensor(f"blk.{layer}.{part}", tensor.data, tensor.ggml_type)
        for layer in range(model.layers, model.layers + extra_layers)
        for part, tensor in filler.items()
    )
    return model.with_layers(model.layers + extra_layers, extra)


def _filler(tensor: Tensor, rng: np.random.Generator) -> NDArray[Any]:
    data = tensor.data
    if data.ndim == 1:  # a norm's scale
        return np.ones_like(data)
    if tensor.name.endswith(OUTPUT_PROJECTIONS):
        return np.zeros_like(data)
    return (rng.standard_normal(data.shape) * SPREAD).astype(data.dtype)
