"""The model of the engines: a random Llama of 2.9 M parameters, with a tokenizer trained on the texts given.

Written in Hugging Face's form and in llama.cpp's by benchgate's own environment: no engine has to be installed for it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from gguf import GGUFWriter, LlamaFileType, TokenType
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

VOCABULARY = 2048
CONTEXT_TOKENS = 2048
LAYERS, HIDDEN, INNER, HEADS, KV_HEADS = 4, 256, 512, 4, 2
NORM_EPSILON, ROPE_BASE = 1e-6, 10000.0
_PAD, _BOS, _END, _START = "<pad>", "<s>", "<|im_end|>", "<|im_start|>"
SPECIAL = [_PAD, _BOS, "</s>", _START, _END]
_SPREAD = 0.02  # standard deviation of weights, as Llama is initialised
CHAT_TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def trained_tokenizer(texts: Sequence[str]) -> Tokenizer:
    """Return a byte-level BPE tokenizer; the same text files give the same one."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        special_tokens=SPECIAL,
        show_progress=False,
    )
    tokenizer.train(sorted(texts), trainer)
    return tokenizer


def random_weights(tokenizer: Tokenizer) -> dict[str, np.ndarray]:
    """Return seeded weights by Llama's names. Input and output embeddings are the same.

    A random model repeats one token. Its row is zero for what is no text by itself (special tokens, halves of
    characters), so that this is never the likeliest: answers would be empty.
    """
    random = np.random.default_rng(0)
    key_value = HIDDEN // HEADS * KV_HEADS
    shapes = {"model.embed_tokens.weight": (tokenizer.get_vocab_size(), HIDDEN)}
    for layer in range(LAYERS):
        names = {
            "self_attn.q_proj": (HIDDEN, HIDDEN),
            "self_attn.k_proj": (key_value, HIDDEN),
            "self_attn.v_proj": (key_value, HIDDEN),
            "self_attn.o_proj": (HIDDEN, HIDDEN),
            "mlp.gate_proj": (INNER, HIDDEN),
            "mlp.up_proj": (INNER, HIDDEN),
            "mlp.down_proj": (HIDDEN, INNER),
        }
        shapes |= {f"model.layers.{layer}.{name}.weight": shape for name, shape in names.items()}
    weights = {name: random.normal(0, _SPREAD, shape).astype(np.float32) for name, shape in shapes.items()}
    norms = [
        f"model.layers.{n}.{which}_layernorm.weight" for n in range(LAYERS) for which in ("input", "post_attention")
    ]
    weights |= {name: np.ones(HIDDEN, np.float32) for name in (*norms, "model.norm.weight")}
    for token in range(tokenizer.get_vocab_size()):
        text = tokenizer.decode([token], skip_special_tokens=True)
        if not text.strip() or "\N{REPLACEMENT CHARACTER}" in text:
            weights["model.embed_tokens.weight"][token] = 0
    return weights


def write_model(folder: Path, texts: Sequence[str]) -> None:
    """Write tokenizer, configuration and weights (bfloat16) into a folder; the weights last."""
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer = trained_tokenizer(texts)
    tokenizer.save(str(folder / "tokenizer.json"))
    ids = {name: tokenizer.token_to_id(token) for name, token in (("bos", _BOS), ("eos", _END), ("pad", _PAD))}
    special_ids = {f"{name}_token_id": token for name, token in ids.items()}
    _write_json(
        folder / "tokenizer_config.json",
        {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "bos_token": _BOS,
            "eos_token": _END,
            "pad_token": _PAD,
            "model_max_length": CONTEXT_TOKENS,
            "chat_template": CHAT_TEMPLATE,
        },
    )
    _write_json(
        folder / "config.json",
        {
            "architectures": ["LlamaForCausalLM"],
            "model_type": "llama",
            "vocab_size": tokenizer.get_vocab_size(),
            "hidden_size": HIDDEN,
            "intermediate_size": INNER,
            "num_hidden_layers": LAYERS,
            "num_attention_heads": HEADS,
            "num_key_value_heads": KV_HEADS,
            "head_dim": HIDDEN // HEADS,
            "hidden_act": "silu",
            "rms_norm_eps": NORM_EPSILON,
            "rope_theta": ROPE_BASE,
            "max_position_embeddings": CONTEXT_TOKENS,
            "tie_word_embeddings": True,
            "dtype": "bfloat16",
            "torch_dtype": "bfloat16",
            **special_ids,
        },
    )
    _write_json(folder / "generation_config.json", special_ids)
    (folder / "model.safetensors").write_bytes(_safetensors(random_weights(tokenizer)))


def write_gguf(folder: Path, path: Path) -> None:
    """Write the model of a folder as a GGUF file of 32-bit floats.

    llama.cpp pairs the rows of query and key in another order than Hugging Face; of random rows any order will do.
    """
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    written = json.loads(tokenizer.to_str())["model"]
    writer = GGUFWriter(path, "llama")
    writer.add_name("tiny-llama")
    writer.add_file_type(LlamaFileType.ALL_F32)
    writer.add_context_length(CONTEXT_TOKENS)
    writer.add_embedding_length(HIDDEN)
    writer.add_block_count(LAYERS)
    writer.add_feed_forward_length(INNER)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_layer_norm_rms_eps(NORM_EPSILON)
    writer.add_rope_freq_base(ROPE_BASE)
    writer.add_rope_dimension_count(HIDDEN // HEADS)
    tokens = sorted(written["vocab"], key=written["vocab"].get)
    writer.add_vocab_size(len(tokens))
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(tokens)
    writer.add_token_types([TokenType.CONTROL if token in SPECIAL else TokenType.NORMAL for token in tokens])
    writer.add_token_merges([" ".join(pair) for pair in written["merges"]])
    writer.add_bos_token_id(tokens.index(_BOS))
    writer.add_eos_token_id(tokens.index(_END))
    writer.add_pad_token_id(tokens.index(_PAD))
    writer.add_add_bos_token(True)  # most models of this family do
    writer.add_add_eos_token(False)
    writer.add_chat_template(CHAT_TEMPLATE)
    for name, values in random_weights(tokenizer).items():
        layer = re.fullmatch(r"model\.layers\.(\d+)\.(.*)\.weight", name)
        writer.add_tensor(f"blk.{layer[1]}.{_IN_GGUF[layer[2]]}.weight" if layer else _IN_GGUF[name], values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


_IN_GGUF = {
    "model.embed_tokens.weight": "token_embd.weight",  # llama.cpp takes it for the output too
    "model.norm.weight": "output_norm.weight",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


def _safetensors(weights: dict[str, np.ndarray]) -> bytes:
    """Return the weights in bfloat16: the upper half of a float32. The file is a header in JSON and the values."""
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    parts, end = [], 0
    for name, values in weights.items():
        part = (values.view(np.uint32) >> 16).astype("<u2").tobytes()
        header[name] = {"dtype": "BF16", "shape": values.shape, "data_offsets": [end, end + len(part)]}
        parts.append(part)
        end += len(part)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    return b"".join([len(text).to_bytes(8, "little"), text, *parts])


def _write_json(path: Path, document: Mapping[str, object]) -> None:
    path.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
