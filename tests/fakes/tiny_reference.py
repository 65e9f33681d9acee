"""What the shipped weights say of a text, by a plain forward pass in double precision: a referee for every engine.

A Llama as in GGUF: weights are read by gguf's own reader, rotary positions turn neighbouring pairs, as llama.cpp stores
the rows of q and k. Slow and short on purpose, and nothing of it comes from benchgate.
"""

from __future__ import annotations

import math
import re
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from gguf import GGUFReader
from numpy.typing import NDArray

SHIPPED = Path(__file__).parents[2] / "benchgate" / "embedded" / "tiny" / "f16.gguf"
SPECIAL = {"<s>": 256, "<|end|>": 257, "<|user|>": 258, "<|assistant|>": 259}
LAYERS, HEADS, HEAD_SIZE, ROPE_BASE, EPSILON = 3, 4, 64, 10_000.0, 1e-5

Array = NDArray[np.float64]


def token_ids(text: str) -> list[int]:
    """The first token of every text, then its special tokens and its bytes."""
    parts = re.split("(" + "|".join(map(re.escape, SPECIAL)) + ")", text)
    return [SPECIAL["<s>"], *(i for part in parts for i in ([SPECIAL[part]] if part in SPECIAL else part.encode()))]


def logprobs(ids: list[int]) -> Array:
    """ln p of every token (columns) after each beginning of the ids (rows)."""
    weights = _weights()
    x = weights["token_embd"][ids]
    for layer in range(LAYERS):
        part = {name.split(".", 2)[2]: w for name, w in weights.items() if name.startswith(f"blk.{layer}.")}
        x = x + _attention(_normed(x, part["attn_norm"]), part)
        y = _normed(x, part["ffn_norm"])
        gate = y @ part["ffn_gate"].T
        x = x + (gate / (1 + np.exp(-gate)) * (y @ part["ffn_up"].T)) @ part["ffn_down"].T
    logits = _normed(x, weights["output_norm"]) @ weights["output"].T
    shifted = logits - logits.max(axis=-1, keepdims=True)
    return np.asarray(shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True)))


def continuation(context: str, text: str) -> float:
    """ln p of a text after its context."""
    before, ids = token_ids(context), token_ids(context + text)
    rows = logprobs(ids)
    return math.fsum(float(rows[place - 1, ids[place]]) for place in range(len(before), len(ids)))


@cache
def _weights() -> dict[str, Array]:
    tensors: Any = GGUFReader(SHIPPED).tensors
    return {t.name.removesuffix(".weight"): np.asarray(t.data, dtype=np.float64) for t in tensors}


def _normed(x: Array, weight: Array) -> Array:
    return np.asarray(x / np.sqrt((x * x).mean(axis=-1, keepdims=True) + EPSILON) * weight)


def _attention(y: Array, part: dict[str, Array]) -> Array:
    length = len(y)
    q, k, v = ((y @ part[f"attn_{name}"].T).reshape(length, HEADS, HEAD_SIZE).swapaxes(0, 1) for name in "qkv")
    scores = _turned(q) @ _turned(k).swapaxes(1, 2) / math.sqrt(HEAD_SIZE)
    scores = np.where(np.tri(length, dtype=bool), scores, -np.inf)
    shares = np.exp(scores - scores.max(axis=-1, keepdims=True))
    mixed = shares / shares.sum(axis=-1, keepdims=True) @ v
    return np.asarray(mixed.swapaxes(0, 1).reshape(length, -1) @ part["attn_output"].T)


def _turned(x: Array) -> Array:
    """Rotary positions: each neighbouring pair turned by its place times its own speed."""
    speeds = ROPE_BASE ** -(np.arange(0, HEAD_SIZE, 2) / HEAD_SIZE)
    angles = np.outer(np.arange(x.shape[1]), speeds)
    turned = (x[..., 0::2] + 1j * x[..., 1::2]) * np.exp(1j * angles)
    return np.stack([turned.real, turned.imag], axis=-1).reshape(x.shape)
