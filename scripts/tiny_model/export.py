"""Turn trained weights into the F16 GGUF that ships.

usage: python -m scripts.tiny_model.export FOLDER/model.safetensors OUT.gguf
needs: gguf, safetensors, numpy, and torch for the model's sizes
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
from gguf import GGUFWriter, LlamaFileType, TokenType
from numpy.typing import NDArray
from safetensors.numpy import load_file

from scripts.tiny_model.model import BEGIN, END, VOCABULARY, Shape

SPECIAL_TOKENS = ("<s>", "<|end|>", "<|user|>", "<|assistant|>")
UNUSED_TOKENS = ("<pad0>", "<pad1>", "<pad2>", "<pad3>")
CHAT_TEMPLATE = (
    "{% for m in messages %}"
    "{% if m['role'] == 'user' %}<|user|>{{ m['content'] }}"
    "{% elif m['role'] == 'assistant' %}<|assistant|>{{ m['content'] }}<|end|>{% endif %}"
    "{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)


def main() -> None:
    source, target = Path(sys.argv[1]), Path(sys.argv[2])
    shape = Shape()
    writer = GGUFWriter(target, "llama")
    _write_architecture(writer, shape)
    _write_tokenizer(writer)
    weights = load_file(source)
    for name in _tensor_names(shape):
        tensor = weights[name]
        if name.endswith(("attn_q.weight", "attn_k.weight")):
            tensor = _interleaved(tensor, shape.heads)
        # llama.cpp keeps vectors, which are all norms, in F32.
        writer.add_tensor(name, np.ascontiguousarray(tensor.astype(np.float32 if tensor.ndim == 1 else np.float16)))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    print(f"{target}: {target.stat().st_size} bytes")


def _tensor_names(shape: Shape) -> list[str]:
    """All tensors in the order of the file, so that equal weights make equal bytes."""
    parts = ["attn_norm", "ffn_norm", "attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down"]
    layers = [f"blk.{layer}.{part}.weight" for layer in range(shape.layers) for part in parts]
    return ["token_embd.weight", "output_norm.weight", "output.weight", *layers]


def _write_architecture(writer: GGUFWriter, shape: Shape) -> None:
    writer.add_name("benchgate-tiny")
    writer.add_file_type(LlamaFileType.MOSTLY_F16)
    writer.add_context_length(shape.context)
    writer.add_embedding_length(shape.hidden)
    writer.add_block_count(shape.layers)
    writer.add_feed_forward_length(shape.feed_forward)
    writer.add_head_count(shape.heads)
    writer.add_head_count_kv(shape.heads)
    writer.add_layer_norm_rms_eps(shape.norm_epsilon)
    writer.add_rope_freq_base(shape.rope_base)
    writer.add_rope_dimension_count(shape.head_size)
    writer.add_vocab_size(VOCABULARY)


def _write_tokenizer(writer: GGUFWriter) -> None:
    """One token a byte, in GPT-2's printable spelling."""
    tokens = [*_printable_bytes(), *SPECIAL_TOKENS, *UNUSED_TOKENS]
    types = (
        [TokenType.NORMAL] * 256 + [TokenType.CONTROL] * len(SPECIAL_TOKENS) + [TokenType.UNUSED] * len(UNUSED_TOKENS)
    )
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(tokens)
    writer.add_token_types(types)
    # GGUF refuses an empty list of merges; bytes 0 and 1 never meet in text, so this one never applies.
    writer.add_token_merges([f"{tokens[0]} {tokens[1]}"])
    writer.add_bos_token_id(BEGIN)
    writer.add_eos_token_id(END)
    writer.add_pad_token_id(END)
    writer.add_add_bos_token(True)
    writer.add_add_eos_token(False)
    writer.add_chat_template(CHAT_TEMPLATE)


def _printable_bytes() -> list[str]:
    """GPT-2's stand-in for each byte, by byte value: itself where printable, else the next character from U+0100 on."""
    printable = {*range(33, 127), *range(161, 173), *range(174, 256)}
    others = iter(range(256, 512))
    return [chr(byte) if byte in printable else chr(next(others)) for byte in range(256)]


def _interleaved(rows: NDArray[Any], heads: int) -> NDArray[Any]:
    """Rows of a query or key projection from half-split rotary order to llama.cpp's interleaved one."""
    out, columns = rows.shape
    return rows.reshape(heads, 2, out // heads // 2, columns).swapaxes(1, 2).reshape(out, columns)


if __name__ == "__main__":
    main()
