"""How many replicas a demand needs, what they cost, and what a cache holds: against figures published elsewhere."""

import math

import pytest

from benchgate.sizing.fleet import (
    Demand,
    KvCache,
    Replica,
    demand_from_hours,
    in_flight,
    replicas_ahead_of_growth,
    require_slots,
    size_fleet,
)
from benchgate.sizing.kv_cache import ConfigError, cache_layout, number_bytes

LLAMA_70B = {
    "num_hidden_layers": 80, "num_attention_heads": 64, "num_key_value_heads": 8, "hidden_size": 8192,
    "torch_dtype": "bfloat16",
}  # fmt: skip


def test_five_thousand_tokens_per_second_need_eight_replicas_of_seven_hundred() -> None:
    found = size_fleet(5000, Replica(700, usd_per_hour=1.2), spares=0)
    assert (found.replicas, found.with_spares) == (8, 8)
    assert found.usd_per_hour == pytest.approx(9.6)
    assert found.usd_per_month == pytest.approx(7008)
    assert found.load_ratio == pytest.approx(5000 / 5600)


def test_spares_and_a_safety_factor_are_paid_for_and_the_lower_limit_asks_for_more() -> None:
    found = size_fleet(5000, Replica(700, lower_per_s=600, usd_per_hour=1.2), safety_factor=1.3, spares=1)
    assert (found.replicas, found.with_spares, found.by_lower) == (10, 11, 12)
    assert found.usd_per_hour == pytest.approx(13.2)


@pytest.mark.parametrize(
    ("demand", "carries", "replicas"), [(0, 700, 0), (0.3, 0.1, 3), (2100, 700, 3), (2101, 700, 4)]
)
def test_replicas_are_the_least_whole_number_that_carries_the_demand(
    demand: float, carries: float, replicas: int
) -> None:
    assert size_fleet(demand, Replica(carries)).replicas == replicas
    assert size_fleet(demand, Replica(carries)).usd_per_hour is None


@pytest.mark.parametrize(
    ("demand", "options"),
    [(-1, (1, 0)), (math.inf, (1, 0)), (1, (0.9, 0)), (1, (math.nan, 0)), (1, (1, -1))],
)
def test_fleet_that_cannot_be_is_refused(demand: float, options: tuple[float, int]) -> None:
    with pytest.raises(ValueError, match="expected"):
        size_fleet(demand, Replica(1), safety_factor=options[0], spares=options[1])


@pytest.mark.parametrize(
    "wrong", [{"per_s": 0}, {"per_s": math.inf}, {"per_s": 1, "lower_per_s": 0}, {"per_s": 1, "usd_per_hour": -1}]
)
def test_replica_that_carries_nothing_is_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="expected"):
        Replica(**wrong)


def test_requests_inside_are_arrivals_times_residence() -> None:
    assert in_flight(12, 2.5) == pytest.approx(30)
    with pytest.raises(ValueError, match="expected numbers"):
        in_flight(1, math.inf)


def test_places_must_be_there_for_all_who_are_inside_at_once() -> None:
    """Little's law; slots that a run tells are rounded, so half a request more is none too many."""
    require_slots(3, 2.5, 8)
    require_slots(3, 2.8, 8)
    with pytest.raises(ValueError, match=r"has 30 inside at once \(Little's law\), and 4 slots carry no more than 0.4"):
        require_slots(3, 10, 4)


def test_fleet_beyond_all_reason_is_refused() -> None:
    for demand, carries in ((1e12, 1.0), (5000, 1e-300)):
        with pytest.raises(ValueError, match="takes more than 1,000,000 replicas"):
            size_fleet(demand, Replica(carries))
    with pytest.raises(ValueError, match="takes more than"):
        size_fleet(5000, Replica(700), safety_factor=1e308)


def test_fleet_is_ahead_of_a_demand_that_grows_while_a_replica_starts() -> None:
    assert replicas_ahead_of_growth(2.0, 180, Replica(100)) == 4  # 360 more by then
    assert replicas_ahead_of_growth(-2.0, 180, Replica(100)) == 0
    with pytest.raises(ValueError, match="finite"):
        replicas_ahead_of_growth(1, math.inf, Replica(1))


def test_demand_of_hours_is_their_mean_their_busy_hours_and_their_steepest_rise() -> None:
    found = demand_from_hours([*range(1, 100), 460])
    assert found.mean_per_s == pytest.approx(54.1)
    assert (found.p95_per_s, found.peak_per_s) == (95, 460)
    assert found.growth_per_s2 == pytest.approx(361 / 3600)
    assert demand_from_hours([7, 5]).growth_per_s2 == 0
    assert demand_from_hours([7]).growth_per_s2 is None
    level = demand_from_hours([0.1] * 24)  # their sum over 24 is above 0.1
    assert level.mean_per_s == level.peak_per_s == 0.1


@pytest.mark.parametrize("wrong", [(-1,), (math.nan,), (2, None, 1), (1, 3, 2)])
def test_demand_that_contradicts_itself_is_refused(wrong: tuple[float, ...]) -> None:
    with pytest.raises(ValueError, match=r"demand|above"):
        Demand(*wrong)
    with pytest.raises(ValueError, match="no hour"):
        demand_from_hours([])


def test_request_of_8192_tokens_of_a_70b_takes_2_7_gb_and_half_of_it_in_fp8() -> None:
    layout = cache_layout(LLAMA_70B)
    assert layout.bytes_per_token() == 327_680
    assert layout.bytes_per_request(8192) / 1e9 == pytest.approx(2.7, abs=0.05)
    assert 32 * layout.bytes_per_request(8192) / 1e9 == pytest.approx(86, abs=0.5)
    assert layout.bytes_per_request(8192, "fp8") * 2 == layout.bytes_per_request(8192)
    assert layout.requests_that_fit(86e9, 8192) == 32
    assert layout.requests_that_fit(1e9, 8192) == 0


STARCODER: dict[str, object] = {
    "n_layer": 40, "n_head": 48, "n_embd": 6144, "multi_query": True, "torch_dtype": "float16",
}  # fmt: skip
CHATGLM3_6B: dict[str, object] = {
    "num_layers": 28, "num_attention_heads": 32, "hidden_size": 4096, "kv_channels": 128, "torch_dtype": "float16",
    "multi_query_attention": True, "multi_query_group_num": 2,
}  # fmt: skip
FALCON_7B: dict[str, object] = {
    "num_hidden_layers": 32, "num_attention_heads": 71, "num_kv_heads": 71, "hidden_size": 4544, "multi_query": True,
    "new_decoder_architecture": False, "torch_dtype": "bfloat16",
}  # fmt: skip
FALCON_40B: dict[str, object] = {
    "num_hidden_layers": 60, "num_attention_heads": 128, "num_kv_heads": 8, "hidden_size": 8192, "multi_query": True,
    "new_decoder_architecture": True, "torch_dtype": "bfloat16",
}  # fmt: skip


@pytest.mark.parametrize(
    ("config", "bytes_per_token"),
    [
        # published: Llama-2-7B 0.5 MB a token; DeepSeek-V3 70,272 bytes (576 numbers x 61 layers); GPT-2 36,864
        ({"num_hidden_layers": 32, "num_attention_heads": 32, "hidden_size": 4096, "dtype": "float16"}, 524_288),
        ({"num_hidden_layers": 61, "num_attention_heads": 128, "num_key_value_heads": 128, "kv_lora_rank": 512,
          "qk_rope_head_dim": 64, "torch_dtype": "bfloat16"}, 70_272),
        ({"n_layer": 12, "n_head": 12, "n_embd": 768, "torch_dtype": "float16"}, 36_864),
        ({"text_config": {"num_hidden_layers": 2, "num_attention_heads": 3, "head_dim": 8}, "dtype": "float32"}, 384),
        (
            {
                "text_config": {"num_hidden_layers": 2, "num_attention_heads": 3, "head_dim": 8, "torch_dtype": None},
                "torch_dtype": "float32",
            },
            384,
        ),
        (STARCODER, 2 * 40 * 1 * 128 * 2),
        ({**STARCODER, "num_key_value_heads": 1}, 2 * 40 * 1 * 128 * 2),
        ({**STARCODER, "multi_query": False}, 2 * 40 * 48 * 128 * 2),
        (CHATGLM3_6B, 2 * 28 * 2 * 128 * 2),
        ({**CHATGLM3_6B, "multi_query_attention": False}, 2 * 28 * 32 * 128 * 2),
        (FALCON_7B, 2 * 32 * 1 * 64 * 2),
        ({**FALCON_7B, "multi_query": False}, 2 * 32 * 71 * 64 * 2),
        (FALCON_40B, 2 * 60 * 8 * 64 * 2),
        ({**FALCON_40B, "num_kv_heads": None}, 2 * 60 * 128 * 64 * 2),
        # as first published, of type RefinedWeb
        ({"n_layer": 60, "n_head": 128, "n_head_kv": 8, "hidden_size": 8192, "dtype": "bf16"}, 2 * 60 * 8 * 64 * 2),
    ],
)  # fmt: skip
def test_token_takes_what_the_model_keeps_of_it(config: dict[str, object], bytes_per_token: int) -> None:
    assert cache_layout(config).bytes_per_token() == bytes_per_token


NEMOTRON_H_8B: dict[str, object] = {
    "num_hidden_layers": 52, "num_attention_heads": 32, "num_key_value_heads": 8, "hidden_size": 4096,
    "hybrid_override_pattern": "M-M-M-M*-M-M-M-M-M*-M-M-M-M-M*-M-M-M-M-M*-M-M-M-M-M-", "torch_dtype": "bfloat16",
}  # fmt: skip
JAMBA: dict[str, object] = {
    "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8, "hidden_size": 4096,
    "attn_layer_period": 8, "attn_layer_offset": 4, "torch_dtype": "bfloat16",
}  # fmt: skip
QWEN3_NEXT: dict[str, object] = {
    "num_hidden_layers": 48, "num_attention_heads": 16, "num_key_value_heads": 2, "head_dim": 256,
    "full_attention_interval": 4, "torch_dtype": "bfloat16",
}  # fmt: skip
GEMMA_3N_E4B: dict[str, object] = {
    "num_hidden_layers": 35, "num_attention_heads": 8, "num_key_value_heads": 2, "head_dim": 256,
    "sliding_window": 512, "layer_types": (["sliding_attention"] * 4 + ["full_attention"]) * 7,
    "num_kv_shared_layers": 15, "dtype": "bfloat16",
}  # fmt: skip
BLOCKS = ["mamba", "moe", "mamba", "attention", "mlp"]


@pytest.mark.parametrize(
    ("config", "layers", "heads", "size", "states"),
    [
        (NEMOTRON_H_8B, 4, 8, 128, 24),
        (JAMBA, 4, 8, 128, 28),
        ({**JAMBA, "attn_layer_offset": 0}, 4, 8, 128, 28),
        (QWEN3_NEXT, 12, 2, 256, 36),
        # written by Transformers 5: the list has the number of layers
        ({**NEMOTRON_H_8B, "hybrid_override_pattern": None, "num_hidden_layers": None, "layers_block_type": BLOCKS},
         1, 8, 128, 2),
        ({**NEMOTRON_H_8B, "attention_head_dim": 64}, 4, 8, 64, 24),
    ],
)  # fmt: skip
def test_only_layers_with_attention_grow_with_the_tokens(
    config: dict[str, object], layers: int, heads: int, size: int, states: int
) -> None:
    layout = cache_layout(config)
    assert layout.bytes_per_token() == layers * 2 * heads * size * 2
    assert layout.state_layers == states


def test_layers_that_share_the_cache_of_earlier_ones_keep_nothing() -> None:
    """Of Gemma 3n's 35 layers the last 15 share: 4 keep every token, and 16 a window."""
    one = 2 * 2 * 256 * 2
    layout = cache_layout(GEMMA_3N_E4B)
    assert layout.bytes_per_request(8192) == (4 * 8192 + 16 * 512) * one
    assert cache_layout({**GEMMA_3N_E4B, "num_kv_shared_layers": 0}).bytes_per_token() == 35 * one
    assert cache_layout({**GEMMA_3N_E4B, "layer_types": None}).bytes_per_token() == 20 * one


LATENT = {
    "num_hidden_layers": 61, "num_attention_heads": 128, "kv_lora_rank": 512, "qk_rope_head_dim": 64, "dtype": "bf16",
}  # fmt: skip


@pytest.mark.parametrize(
    ("config", "accelerators", "times"),
    [(LLAMA_70B, 1, 1), (LLAMA_70B, 4, 1), (LLAMA_70B, 8, 1), (LLAMA_70B, 16, 2), (LLAMA_70B, 64, 8), (LATENT, 8, 8)],
)
def test_accelerators_that_share_a_layer_keep_each_head_at_least_once(
    config: dict[str, object], accelerators: int, times: int
) -> None:
    """8 KV heads on 16 accelerators are there twice; a compressed vector is on every one of them."""
    layout = cache_layout(config)
    assert layout.shared_by(accelerators).bytes_per_request(8192) == times * layout.bytes_per_request(8192)


@pytest.mark.parametrize("accelerators", [0, 3, 12, 10_000])
def test_heads_that_cannot_be_shared_evenly_are_refused(accelerators: int) -> None:
    with pytest.raises(ConfigError, match="expected"):
        cache_layout(LLAMA_70B).shared_by(accelerators)


def test_layer_with_a_window_keeps_no_more_than_its_window() -> None:
    gemma = {
        "num_hidden_layers": 12, "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 64,
        "sliding_window": 1024, "sliding_window_pattern": 6, "torch_dtype": "bfloat16",
    }  # fmt: skip
    layout = cache_layout(gemma)
    one = 2 * 4 * 64 * 2  # bytes of a token in a layer
    assert layout.bytes_per_request(512) == 12 * 512 * one
    assert layout.bytes_per_request(8192) == (2 * 8192 + 10 * 1024) * one
    kinds = ["sliding_attention"] * 10 + ["full_attention", "linear_attention"]
    mixed = cache_layout({**gemma, "layer_types": kinds})
    assert mixed.bytes_per_request(8192) == (8192 + 10 * 1024) * one
    assert mixed.state_layers == 1


UNLIKE = {
    "num_hidden_layers": 6, "num_attention_heads": 8, "num_key_value_heads": 1, "head_dim": 256, "dtype": "bf16",
    "sliding_window": 512, "layer_types": ["sliding_attention"] * 5 + ["full_attention"],
}  # fmt: skip


@pytest.mark.parametrize(
    ("own", "full", "sliding"),
    [
        ({"global_head_dim": 512, "num_global_key_value_heads": None}, 512, 256),  # as of Gemma 4's smaller models
        ({"global_head_dim": 512, "num_global_key_value_heads": 4}, 2048, 256),
        ({"swa_num_key_value_heads": 8, "swa_head_dim": 192}, 256, 1536),  # as of MiMo V2
    ],
)
def test_layers_of_one_kind_keep_as_much_as_their_own_heads_make(
    own: dict[str, object], full: int, sliding: int
) -> None:
    """Keys and values of two bytes each: `full` and `sliding` are heads x size of such a layer."""
    config = {**UNLIKE, **own}
    assert cache_layout(config).bytes_per_request(8192) == 4 * (full * 8192 + 5 * sliding * 512)
    unnamed = cache_layout({**config, "layer_types": None})
    assert unnamed.bytes_per_token() == 4 * 6 * max(full, sliding)


def test_heads_of_each_kind_are_shared_by_themselves() -> None:
    layout = cache_layout({**UNLIKE, "swa_num_key_value_heads": 8})
    assert layout.shared_by(8).bytes_per_request(8192) == 4 * (8 * 256 * 8192 + 5 * 8 * 256 * 512)
    with pytest.raises(ConfigError, match="8 KV heads cannot be shared by 3 accelerators"):
        layout.shared_by(3)


def test_window_of_which_no_layer_is_named_is_not_relied_on() -> None:
    assert cache_layout({**LLAMA_70B, "sliding_window": 4096}) == cache_layout(LLAMA_70B)
    off = {**LLAMA_70B, "sliding_window": 4096, "sliding_window_pattern": 2, "use_sliding_window": False}
    assert cache_layout(off) == cache_layout(LLAMA_70B)


def test_tokens_are_kept_in_whole_pages() -> None:
    layout = cache_layout(LLAMA_70B)
    assert layout.bytes_per_request(1) == layout.bytes_per_request(16) == 16 * 327_680
    assert layout.bytes_per_request(17, page_tokens=1) == 17 * 327_680
    for tokens, page in ((0, 16), (1, 0)):
        with pytest.raises(ValueError, match="1 or more"):
            layout.bytes_per_request(tokens, page_tokens=page)
    for memory in (math.nan, -1.0, 1e300):
        with pytest.raises(ValueError, match="expected"):
            KvCache(layout, memory, 1)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"num_hidden_layers": None}, "num_hidden_layers"),
        ({"num_attention_heads": "64"}, "num_attention_heads"),
        ({"num_key_value_heads": 0}, "num_key_value_heads"),
        ({"num_hidden_layers": 10**400}, "expected a whole number, 1 to 1,000,000,000"),
        ({"hidden_size": 8193}, "multiple"),
        ({"layer_types": ["full_attention"]}, "each of the 80"),
        ({"layer_types": ["strange"] * 80}, "strange"),
        ({"text_config": 3}, "text_config"),
        ({"hybrid_override_pattern": "M*" * 39}, "each of the 80"),
        ({"hybrid_override_pattern": "M?" * 40}, r"unknown kind '\?'"),
        ({"hybrid_override_pattern": ["M", "*"] * 40}, "each of the 80"),
        ({"hybrid_override_pattern": "M" * 80}, "no layer keeps"),
        ({"layers_block_type": ["hybrid"] * 80}, "unknown kind 'hybrid'"),
        ({"layers_block_type": ["mamba"] * 80, "layer_types": ["attention"] * 80}, "contradict"),
        ({"attn_layer_period": 8}, "attn_layer_offset"),
        ({"attn_layer_offset": 4}, "attn_layer_period"),
        ({"attn_layer_period": 8, "attn_layer_offset": 8}, "0 to 7"),
        ({"num_kv_shared_layers": 81}, "0 to 80"),
        ({"num_kv_shared_layers": 80}, "no layer keeps"),
        ({"index_head_dim": 128}, "index_head_dim"),
        ({"attn_layer_indices": [9, 18, 27]}, "attn_layer_indices"),
        ({"full_attn_idxs": [2, 5, 8]}, "full_attn_idxs"),
        ({"hybrid_layer_pattern": [0, 1] * 40}, "hybrid_layer_pattern"),
        ({"linear_attn_config": {"full_attn_layers": [4]}}, "linear_attn_config"),
        ({"multi_query": True}, "8 by `num_key_value_heads` and 1 by `multi_query`"),
        ({"multi_query": 1}, "expected true or false"),
        ({"multi_query_attention": True}, "multi_query_group_num"),
        ({"multi_query_attention": True, "multi_query_group_num": 2}, "contradict"),
        ({"num_kv_heads": 16}, "contradict"),
        ({"new_decoder_architecture": True}, "contradict"),
        ({"head_dim": 128, "kv_channels": 64}, "contradict"),
    ],
)
def test_configuration_that_does_not_say_what_it_keeps_is_refused(change: dict[str, object], named: str) -> None:
    with pytest.raises(ConfigError, match=named):
        cache_layout({**LLAMA_70B, **change})


def test_type_that_is_not_known_is_an_error_with_the_nearest_one() -> None:
    assert (number_bytes("torch.bfloat16"), number_bytes("q8_0")) == (2, 34 / 32)
    with pytest.raises(ConfigError, match="did you mean bf16"):
        number_bytes("bf17")
    with pytest.raises(ConfigError, match="does not state the type"):
        cache_layout({**LLAMA_70B, "torch_dtype": None}).bytes_per_token()
