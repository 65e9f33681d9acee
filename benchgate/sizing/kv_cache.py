"""KV-cache memory per token and request, by a model's configuration.

For every token, every layer with full attention keeps a key and a value of each of its KV heads: 2 · layers · KV heads
· head size · bytes of one number (Pope et al. 2022, arXiv 2211.05102, section 2). Layers with a sliding window keep at
most the window. Latent attention (DeepSeek-V2, arXiv 2405.04434, section 2.1) keeps one compressed vector and the
rotary part of one key. Layers with linear attention or a state-space model keep a state of constant size. Layers that
reuse the cache of an earlier one keep nothing, as do blocks of experts or of a feed-forward network alone.

Accelerators that share every layer (tensor parallelism) share its KV heads. With fewer heads than accelerators each
head is kept several times, and a compressed vector on each accelerator.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from types import MappingProxyType
from typing import NamedTuple

BYTES = MappingProxyType(
    {
        "float32": 4.0, "f32": 4.0, "bfloat16": 2.0, "bf16": 2.0, "float16": 2.0, "f16": 2.0, "half": 2.0,
        "fp8": 1.0, "fp8_e4m3": 1.0, "fp8_e5m2": 1.0, "float8_e4m3fn": 1.0, "int8": 1.0,
        # llama.cpp's blocks of 32 numbers have a scale of two bytes each
        "q8_0": 34 / 32, "q5_0": 22 / 32, "q4_0": 18 / 32,
    }
)  # fmt: skip
_FULL = ("full_attention", "attention", "global")
_SLIDING = ("sliding_attention", "sliding", "local", "chunked_attention")
_STATE = ("linear_attention", "mamba", "recurrent", "ssm", "conv")
_NOTHING = ("mlp", "moe")  # blocks of Nemotron-H, whose attention is a block of its own
_PATTERN = MappingProxyType({"M": "mamba", "*": "attention", "-": "mlp", "E": "moe"})  # of Nemotron-H
# Keys of caches that are not counted. What an indexer keeps depends on the engine: 132 bytes a token and layer in vLLM,
# which in fp8 also keeps 656 bytes for the 576 numbers. The other caches vary by layer, or are shared in other ways.
_UNCOUNTED = (
    "index_head_dim",
    "compress_ratios",
    "use_cla",
    "num_key_value_layers",
    "block_configs",
    "per_layer_config",
)
# Keys that say which layers have attention in a way that is not read.
_UNCOUNTED_KINDS = (
    "attn_layer_indices",
    "attn_type_list",
    "block_types",
    "_block_types",
    "full_attn_idxs",
    "hybrid_layer_pattern",
    "linear_attn_config",
)
_MOST = 10**9  # largest plausible number of tokens, or count of a configuration
_MOST_ACCELERATORS = 1024
_SHOWN = 40  # characters of an invalid value in a message
_PAGE_TOKENS = 16  # default page of vLLM, SGLang and TensorRT-LLM


# Keys of models whose layers of one kind have other heads than the rest (Gemma 4; MiMo V2), before the usual ones.
_OF_FULL = ("num_global_key_value_heads", "global_head_dim")
_OF_SLIDING = ("swa_num_key_value_heads", "swa_head_dim")


class ConfigError(ValueError):
    """Model configuration without a complete description of its KV cache; the message names the key."""


@dataclass(frozen=True, slots=True)
class CacheLayout:
    """KV-cache numbers of one token, in layers that keep every token and in those with a window."""

    growing_numbers: int  # of all layers that keep every token
    sliding_numbers: int  # of all layers that keep a window
    window_tokens: int | None
    state_layers: int  # layers with constant memory, which is not counted
    dtype: str  # type of the numbers by the configuration; "" if not stated
    kv_heads: int | None = None  # None: one vector for all heads
    sliding_kv_heads: int | None = None  # of the layers with a window

    def shared_by(self, accelerators: int) -> CacheLayout:
        """Return the layout over accelerators that share every layer, with heads repeated as needed.

        Raises ConfigError if heads cannot be shared evenly; no engine would start then.
        """
        if not 1 <= accelerators <= _MOST_ACCELERATORS:
            raise ConfigError(f"{accelerators} accelerators share a layer; expected 1 to {_MOST_ACCELERATORS:,}")
        growing = self.growing_numbers * _copies(self.kv_heads, accelerators) if self.growing_numbers else 0
        sliding = self.sliding_numbers * _copies(self.sliding_kv_heads, accelerators) if self.sliding_numbers else 0
        return replace(self, growing_numbers=growing, sliding_numbers=sliding)

    def bytes_per_token(self, dtype: str = "") -> float:
        """Return the bytes of one more token within every window. Raises ConfigError for an unknown type."""
        return (self.growing_numbers + self.sliding_numbers) * number_bytes(dtype or self.dtype)

    def bytes_per_request(self, tokens: int, dtype: str = "", *, page_tokens: int = _PAGE_TOKENS) -> float:
        """Return the bytes of a request of `tokens` tokens, prompt and answer together, in whole pages.

        Raises ConfigError for an unknown type, ValueError for less than one token.
        """
        if not 1 <= tokens <= _MOST or page_tokens < 1:
            raise ValueError(
                f"{tokens} tokens in pages of {page_tokens}; expected 1 or more of both, at most {_MOST:,}"
            )
        held = math.ceil(tokens / page_tokens) * page_tokens
        windowed = held if self.window_tokens is None else min(held, self.window_tokens)
        return (self.growing_numbers * held + self.sliding_numbers * windowed) * number_bytes(dtype or self.dtype)

    def requests_that_fit(self, memory_bytes: float, tokens: int, dtype: str = "") -> int:
        """Return the requests of `tokens` tokens that fit at once into the memory left for the cache."""
        return int(memory_bytes // self.bytes_per_request(tokens, dtype))


def _copies(heads: int | None, accelerators: int) -> int:
    if heads is None:
        return accelerators
    if heads % accelerators and accelerators % heads:
        raise ConfigError(
            f"{heads} KV heads cannot be shared by {accelerators} accelerators; expected a divisor of {heads}, or a"
            " multiple"
        )
    return max(1, accelerators // heads)


def number_bytes(dtype: str) -> float:
    """Return the bytes of a number type, `bf16` or `torch.bfloat16`. Raises ConfigError with the nearest known one."""
    name = dtype.removeprefix("torch.").lower()
    if name in BYTES:
        return BYTES[name]
    if not name:
        raise ConfigError("the configuration does not state the type of its numbers; give the cache's type")
    near = get_close_matches(name, BYTES, n=1)
    hint = f"; did you mean {near[0]}?" if near else ""
    raise ConfigError(f"{dtype!r} is not a known number type{hint} Known: {', '.join(BYTES)}")


def cache_layout(config: Mapping[str, object]) -> CacheLayout:
    """Read the layout from a model's `config.json` as Transformers writes it; of a multimodal one, its text part.

    Raises ConfigError for a missing or invalid key, and for one with an effect on the cache that is not counted.
    """
    text = config.get("text_config", config)
    if not isinstance(text, Mapping):
        raise ConfigError("`text_config` is not an object")
    _require_counted(text, _UNCOUNTED)
    full, sliding, state = _layers_by_kind(text)
    if not full + sliding:
        raise ConfigError("no layer keeps keys and values; expected the `config.json` of a model with attention")
    of_full, of_sliding = _kept_in(text, _OF_FULL), _kept_in(text, _OF_SLIDING)
    if not sliding:  # it is unknown which layers have a window: take the larger
        of_full = max(of_full, of_sliding, key=lambda kept: kept.numbers)
    window = _count(text, "sliding_window", "attention_chunk_size") if sliding else None
    stated = (section.get(key) for section in (text, config) for key in ("torch_dtype", "dtype"))
    dtype = next((one for one in stated if isinstance(one, str)), "")
    growing, windowed = full * of_full.numbers, sliding * of_sliding.numbers
    return CacheLayout(growing, windowed, window, state, dtype, of_full.heads, of_sliding.heads)


class _Kept(NamedTuple):
    """KV heads of a layer with attention (None for one compressed vector), and the numbers of a token in it."""

    heads: int | None
    numbers: int


def _kept_in(text: Mapping[str, object], own_keys: tuple[str, str]) -> _Kept:
    """Read the cache of a layer of one kind, whose own keys precede those of all layers."""
    if text.get("kv_lora_rank") is not None:
        return _Kept(None, _count(text, "kv_lora_rank") + _count(text, "qk_rope_head_dim"))
    heads = _count(text, "num_attention_heads", "n_head")
    own_heads, own_size = (_stated(text, key) for key in own_keys)
    kv_heads = _agreed(own_heads or _kv_heads(text, heads)) or heads
    size = _agreed(
        own_size or {**_stated(text, "head_dim"), **_stated(text, "kv_channels"), **_stated(text, "attention_head_dim")}
    )
    if size is not None:
        return _Kept(kv_heads, 2 * kv_heads * size)
    width = _count(text, "hidden_size", "n_embd")
    if width % heads:
        raise ConfigError(f"hidden_size {width} is no multiple of num_attention_heads {heads}; expected `head_dim`")
    return _Kept(kv_heads, 2 * kv_heads * (width // heads))


def _kv_heads(text: Mapping[str, object], heads: int) -> dict[str, int]:
    """Return the KV heads by every key that states them, as the models' own code reads it.

    GPT-BigCode's `multi_query` means one head. ChatGLM's `multi_query_group_num` counts only with
    `multi_query_attention`. Falcon's new architecture ignores `multi_query`; the old one ignores `num_kv_heads` if
    `multi_query` is set.
    """
    stated = _stated(text, "num_key_value_heads")
    if _flag(text, "multi_query_attention"):
        stated["multi_query_group_num"] = _count(text, "multi_query_group_num")
    if _flag(text, "multi_query") and not _flag(text, "new_decoder_architecture"):
        return {**stated, "multi_query": 1}
    falcon = _stated(text, "num_kv_heads") | _stated(text, "n_head_kv")
    if _flag(text, "new_decoder_architecture") and not falcon:
        falcon["num_attention_heads"] = heads
    return stated | falcon


def _agreed(stated: Mapping[str, int]) -> int | None:
    """Return the one value that all keys state; None without keys. Raises ConfigError if they differ."""
    if len(set(stated.values())) > 1:
        by_key = " and ".join(f"{value} by `{key}`" for key, value in stated.items())
        raise ConfigError(f"its keys contradict each other: {by_key}; expected one value")
    return next(iter(stated.values()), None)


def _stated(text: Mapping[str, object], name: str) -> dict[str, int]:
    return {} if text.get(name) is None else {name: _count(text, name)}


def _flag(text: Mapping[str, object], name: str) -> bool:
    value = text.get(name)
    if value is not None and not isinstance(value, bool):
        raise ConfigError(f"`{name}` is {str(value)[:_SHOWN]}; expected true or false")
    return bool(value)


def _require_counted(text: Mapping[str, object], keys: Sequence[str]) -> None:
    for key in keys:
        if text.get(key):  # 0, false and empty lists are how a configuration says that it has none
            raise ConfigError(
                f"`{key}` is {str(text[key])[:_SHOWN]}, which changes the KV cache in a way that is not counted here;"
                " leave out `cache`, and measure how many requests fit"
            )


def _layers_by_kind(text: Mapping[str, object]) -> tuple[int, int, int]:
    """Return how many layers keep every token, how many a window, and how many a state."""
    blocks, names = text.get("layers_block_type"), ("num_hidden_layers", "n_layer", "num_layers")
    # Nemotron-H without a number of layers has as many as it names.
    unnumbered = isinstance(blocks, list) and all(text.get(name) is None for name in names)
    layers = len(blocks) if isinstance(blocks, list) and unnumbered else _count(text, *names)
    # The last layers share what earlier ones of their kind keep (Gemma 3n and 4).
    keeping = layers - _whole(text, "num_kv_shared_layers", layers)
    named = _named_kinds(text, layers)
    if len(set(named.values())) > 1:
        raise ConfigError(f"its keys contradict each other on the kinds of the layers: {', '.join(named)}")
    kinds = next(iter(named.values()), None)
    if kinds is not None:
        full, sliding, state = (sum(kind in of for kind in kinds[:keeping]) for of in (_FULL, _SLIDING, _STATE))
        return full, sliding, state
    _require_counted(text, _UNCOUNTED_KINDS)
    # A window alone does not tell which layers have one, so all count as keeping everything, an upper bound.
    windowed = text.get("sliding_window") is not None and text.get("sliding_window_pattern") is not None
    if not windowed or text.get("use_sliding_window") is False:
        return keeping, 0, 0
    full = keeping // _count(text, "sliding_window_pattern")  # every n-th layer sees everything (Gemma 3)
    return full, keeping - full, 0


def _named_kinds(text: Mapping[str, object], layers: int) -> dict[str, tuple[str, ...]]:
    """Return the kind of each layer, by every key that states it.

    The keys are read as `configuration_jamba.py`, `configuration_nemotron_h.py` and `configuration_qwen3_next.py` of
    Transformers do.
    """
    found: dict[str, tuple[str, ...]] = {}
    for key in ("layer_types", "layers_block_type", "hybrid_override_pattern"):
        kinds = text.get(key)
        if kinds is None:
            continue
        is_pattern = key == "hybrid_override_pattern"
        if not isinstance(kinds, str if is_pattern else list) or len(kinds) != layers:
            raise ConfigError(f"`{key}` does not name the kind of each of the {layers} layers")
        known = tuple(_PATTERN) if is_pattern else (*_FULL, *_SLIDING, *_STATE, *_NOTHING)
        unknown = [kind for kind in kinds if kind not in known]
        if unknown:
            raise ConfigError(f"`{key}` has the unknown kind {str(unknown[0])[:_SHOWN]!r}")
        found[key] = tuple(_PATTERN[kind] if is_pattern else kind for kind in kinds)
    if text.get("attn_layer_period") is not None or text.get("attn_layer_offset") is not None:  # Jamba
        period = _count(text, "attn_layer_period")
        offset = _whole(text, "attn_layer_offset", period - 1, needed=True)
        found["attn_layer_period"] = tuple("attention" if at % period == offset else "mamba" for at in range(layers))
    if not found and (every := _stated(text, "full_attention_interval")):  # Qwen3-Next
        n = every["full_attention_interval"]
        kinds = ("linear_attention" if at % n else "full_attention" for at in range(1, layers + 1))
        found["full_attention_interval"] = tuple(kinds)
    return found


def _whole(text: Mapping[str, object], name: str, most: int, *, needed: bool = False) -> int:
    """Return a count that may be 0, as it is without the key if that is not needed."""
    value = text.get(name, None if needed else 0)
    value = 0 if value is None and not needed else value
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= most:
        raise ConfigError(f"`{name}` is {str(value)[:_SHOWN]}; expected a whole number, 0 to {most:,}")
    return value


def _count(text: Mapping[str, object], *names: str) -> int:
    for name in names:
        value = text.get(name)
        if value is None:
            continue
        if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= _MOST:
            raise ConfigError(f"`{name}` is {str(value)[:_SHOWN]}; expected a whole number, 1 to {_MOST:,}")
        return value
    raise ConfigError(f"there is no `{names[0]}`; expected the `config.json` of a model with attention")
