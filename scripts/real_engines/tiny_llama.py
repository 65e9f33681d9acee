"""The model of the engines: a random Llama of 2.9 M parameters, with a tokenizer trained on the texts given.

Written in Hugging Face's form by numpy and `tokenizers` alone, so that no engine has to be installed to make it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

VOCABULARY = 2048
CONTEXT_TOKENS = 2048
LAYERS, HIDDEN, INNER, HEADS, KV_HEADS = 4, 256, 512, 4, 2
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
            "rms_norm_eps": 1e-6,
            "rope_theta": 10000.0,
            "max_position_embeddings": CONTEXT_TOKENS,
            "tie_word_embeddings": True,
            "dtype": "bfloat16",
            "torch_dtype": "bfloat16",
            **special_ids,
        },
    )
    _write_json(folder / "generation_config.json", special_ids)
    (folder / "model.safetensors").write_bytes(_safetensors(random_weights(tokenizer)))


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
