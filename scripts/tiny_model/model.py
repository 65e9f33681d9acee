"""The tiny model in torch: a byte-level Llama. Module names are GGUF's tensor names, so export is a copy.

Needs torch 2.13.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

BEGIN, END, USER, ASSISTANT = 256, 257, 258, 259  # after the 256 bytes
VOCABULARY = 264  # four ids stay unused


@dataclass(frozen=True, slots=True)
class Shape:
    """The sizes of the shipped model. Rows of 256 and 512 divide into the blocks of every ggml type."""

    layers: int = 3
    hidden: int = 256
    feed_forward: int = 512
    heads: int = 4
    context: int = 512
    rope_base: float = 10_000.0
    norm_epsilon: float = 1e-5

    @property
    def head_size(self) -> int:
        return self.hidden // self.heads


def encode_prompt(prompt: str) -> list[int]:
    """Token ids of one user turn, up to where the answer starts; the chat template of the GGUF says the same."""
    return [BEGIN, USER, *prompt.encode(), ASSISTANT]


class RmsNorm(nn.Module):
    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(shape.hidden))
        self.epsilon = shape.norm_epsilon

    def forward(self, x: Tensor) -> Tensor:
        return functional.rms_norm(x, (x.shape[-1],), self.weight, self.epsilon)


class Layer(nn.Module):
    """Pre-norm attention with rotary positions, then a gated feed-forward; each added to its input."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        wide, inner = shape.hidden, shape.feed_forward
        self.attn_norm, self.ffn_norm = RmsNorm(shape), RmsNorm(shape)
        self.attn_q, self.attn_k = nn.Linear(wide, wide, bias=False), nn.Linear(wide, wide, bias=False)
        self.attn_v, self.attn_output = nn.Linear(wide, wide, bias=False), nn.Linear(wide, wide, bias=False)
        self.ffn_gate, self.ffn_up = nn.Linear(wide, inner, bias=False), nn.Linear(wide, inner, bias=False)
        self.ffn_down = nn.Linear(inner, wide, bias=False)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        x = x + self._attention(self.attn_norm(x), cos, sin)
        y = self.ffn_norm(x)
        return x + self.ffn_down(functional.silu(self.ffn_gate(y)) * self.ffn_up(y))

    def _attention(self, y: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        batch, length, _ = y.shape

        def heads(projected: Tensor) -> Tensor:
            return projected.view(batch, length, self.shape.heads, self.shape.head_size).transpose(1, 2)

        q, k = (_rotated(heads(part), cos, sin) for part in (self.attn_q(y), self.attn_k(y)))
        mixed = functional.scaled_dot_product_attention(q, k, heads(self.attn_v(y)), is_causal=True)
        return self.attn_output(mixed.transpose(1, 2).reshape(batch, length, -1))


def _rotated(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotary positions in the half-split layout; llama.cpp interleaves, so export reorders the rows of q and k."""
    half = x.shape[-1] // 2
    return x * cos + torch.cat((-x[..., half:], x[..., :half]), -1) * sin


class TinyLlama(nn.Module):
    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.token_embd = nn.Embedding(VOCABULARY, shape.hidden)
        self.blk = nn.ModuleList(Layer(shape) for _ in range(shape.layers))
        self.output_norm = RmsNorm(shape)
        self.output = nn.Linear(shape.hidden, VOCABULARY, bias=False)
        self._initialise(shape)
        steps = torch.arange(0, shape.head_size, 2).float() / shape.head_size
        angles = torch.outer(torch.arange(shape.context).float(), shape.rope_base**-steps)
        angles = torch.cat((angles, angles), -1)
        self.register_buffer("cos", angles.cos(), persistent=False)
        self.register_buffer("sin", angles.sin(), persistent=False)

    def _initialise(self, shape: Shape) -> None:
        """Normal with the fan-in's spread; half of it where a layer writes to the residual stream."""
        for name, parameter in self.named_parameters():
            if parameter.dim() != 2:
                continue
            spread = shape.hidden**-0.5
            if not name.startswith("blk."):
                spread = 0.02
            elif name.endswith(("attn_output.weight", "ffn_down.weight")):
                spread *= 0.5
            nn.init.normal_(parameter, std=spread)

    def forward(self, ids: Tensor) -> Tensor:
        """Logits (batch, length, vocabulary) for token ids (batch, length)."""
        x, length = self.token_embd(ids), ids.shape[1]
        for layer in self.blk:
            x = layer(x, self.cos[:length], self.sin[:length])
        return self.output(self.output_norm(x))
