"""Pages of metrics, of real servers and by the letter of the format, to values in one vocabulary."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest

from benchgate.model.telemetry import Counter, Gauge
from benchgate.telemetry.engine_metrics import PAGES, BadPageError, Sample, parse_samples, read_page

CAPTURES = Path(__file__).parents[1] / "captures"
VLLM = CAPTURES / "vllm-0.32.0-cpu"


def test_a_page_of_vllm_is_read_as_it_was_sent() -> None:
    page = read_page((VLLM / "metrics_after_load.txt").read_text(), "tiny-llama")
    assert page.engine == "vllm"
    assert page.values[Counter.PROMPT_TOKENS] == 7091
    assert page.values[Counter.GENERATION_TOKENS] == 7176
    assert page.values[Counter.REQUESTS] == 321  # 320 cut by length and one that stopped
    assert page.values[Counter.PREFIX_QUERIES] == 3889
    assert page.values[Counter.PREFIX_HITS] == 0
    assert page.values[Counter.PREEMPTIONS] == 0
    assert page.values[Counter.QUEUED] == 321
    assert page.values[Counter.PREFILL_S] == pytest.approx(17.2215, abs=1e-4)
    assert page.values[Gauge.RUNNING] == page.values[Gauge.WAITING] == page.values[Gauge.KV_USAGE] == 0
    assert page.marker is not None
    assert page.marker.startswith("1795181646.56,")


def test_two_pages_of_one_process_of_vllm_have_one_marker_and_only_grow() -> None:
    before, after = (
        read_page((VLLM / f"metrics_{when}_load.txt").read_text(), "tiny-llama") for when in ("before", "after")
    )
    assert before.marker == after.marker
    assert all(after.values[word] >= before.values[word] for word in Counter if word in before.values)
    assert after.values[Counter.GENERATION_TOKENS] > before.values[Counter.GENERATION_TOKENS]


def test_a_page_of_llama_cpp_under_load_is_read_as_it_was_sent() -> None:
    text = (CAPTURES / "llamacpp-2026.10" / "metrics_under_load.txt").read_text()
    page = read_page(text, "benchgate-tiny", start_time="24165391462")
    assert (page.engine, page.marker) == ("llamacpp", "24165391462")
    assert page.values[Gauge.RUNNING] == 1
    assert page.values[Counter.PROMPT_TOKENS] == page.values[Counter.PREFIX_QUERIES] == 240
    assert page.values[Counter.GENERATION_TOKENS] == 1001
    assert page.values[Counter.DECODE_S] == pytest.approx(0.276808)
    assert Gauge.KV_USAGE not in page.values  # this version does not tell it, and that is not 0


def test_cached_tokens_of_llama_cpp_are_prompt_tokens_too() -> None:
    text = "llamacpp:prompt_tokens_total 30\nllamacpp:prompt_tokens_cached_total 10\n"
    values = read_page(text, "m").values
    assert values[Counter.PROMPT_TOKENS] == values[Counter.PREFIX_QUERIES] == 40
    assert values[Counter.PREFIX_HITS] == 10


def test_blocks_of_triton_are_told_as_a_share_and_microseconds_as_seconds() -> None:
    text = """# TYPE nv_inference_request_success counter
nv_inference_request_success{model="ensemble",version="1"} 7
nv_inference_request_success{model="preprocessing",version="1"} 7
# TYPE nv_inference_queue_duration_us counter
nv_inference_queue_duration_us{model="ensemble",version="1"} 2500000
# TYPE nv_trt_llm_request_metrics gauge
nv_trt_llm_request_metrics{model="tensorrt_llm",request_type="active",version="1"} 4
nv_trt_llm_request_metrics{model="tensorrt_llm",request_type="waiting",version="1"} 2
# TYPE nv_trt_llm_kv_cache_block_metrics gauge
nv_trt_llm_kv_cache_block_metrics{kv_cache_block_type="used",model="tensorrt_llm",version="1"} 30
nv_trt_llm_kv_cache_block_metrics{kv_cache_block_type="max",model="tensorrt_llm",version="1"} 120
"""
    page = read_page(text, "ensemble")
    assert page.engine == "triton"
    assert page.values == {
        Counter.REQUESTS: 7, Counter.QUEUED: 7, Counter.QUEUE_S: 2.5, Gauge.RUNNING: 4, Gauge.WAITING: 2,
        Gauge.KV_USAGE: 0.25,
    }  # fmt: skip


def test_counters_without_total_in_their_names_are_read_from_real_pages() -> None:
    triton = read_page((CAPTURES / "triton-2.51.0" / "metrics_after_load.txt").read_text(), "tiny_whole")
    assert triton.values[Counter.REQUESTS] == triton.values[Counter.QUEUED] == 3
    assert triton.values[Counter.QUEUE_S] == pytest.approx(263e-6)
    torchserve = read_page((CAPTURES / "torchserve-0.12.0" / "metrics_after_load.txt").read_text(), "tiny-llama")
    assert torchserve.values[Counter.QUEUED] == 14
    assert torchserve.values[Counter.QUEUE_S] == pytest.approx(29.963, abs=1e-3)


def test_counters_keep_the_names_of_the_page() -> None:
    text = "# HELP a x\n# TYPE a counter\na 1\n# TYPE b_total counter\nb_total 2\n# TYPE c counter\nc_total 3\n"
    assert [(sample.name, sample.value) for sample in parse_samples(text)] == [("a", 1), ("b_total", 2), ("c_total", 3)]


def test_engines_behind_a_gateway_are_read_by_the_names_of_the_page() -> None:
    ray = read_page('ray_vllm_num_requests_running{model_name="m",WorkerId="w"} 3\n', "m")
    assert (ray.engine, ray.values) == ("rayserve", {Gauge.RUNNING: 3})
    mlc = read_page("# a note\n\nengine_prefill_time_sum\t1.5\nprompt_tokens_sum\t30\n", "m")
    assert (mlc.engine, mlc.values) == ("mlc", {Counter.PREFILL_S: 1.5, Counter.PROMPT_TOKENS: 30})
    dynamo = read_page(
        'dynamo_frontend_requests_total{model="m",status="success"} 5\n'
        'dynamo_frontend_requests_total{model="m",status="error"} 2\n',
        "m",
    )
    assert (dynamo.engine, dynamo.values) == ("dynamo", {Counter.REQUESTS: 5})
    kserve = read_page('request_predict_seconds_count{model_name="m"} 4\nvllm:num_requests_running 1\n', "m")
    assert (kserve.engine, kserve.values) == ("vllm", {Gauge.RUNNING: 1})


def test_priorities_of_sglang_are_not_added_to_their_total() -> None:
    text = 'sglang:num_queue_reqs{model_name="m",priority=""} 5\nsglang:num_queue_reqs{model_name="m",priority="1"} 5\n'
    assert read_page(text, "m").values == {Gauge.WAITING: 5}
    assert read_page(text.replace(',priority=""', ""), "m").values == {Gauge.WAITING: 5}  # as Prometheus keeps it


@pytest.mark.parametrize(
    ("metric", "name"),
    [
        (Counter.PREEMPTIONS, "sglang:num_retracted_requests_total"),
        (Counter.PREFIX_HITS, "sglang:cached_tokens_total"),
    ],
)
def test_sglang_shows_some_counters_from_their_first_event_on_and_before_they_are_0(metric: Counter, name: str) -> None:
    page = 'sglang:num_running_reqs{model_name="m"} 1\n'
    tokens = 'sglang:realtime_tokens_total{model_name="m",mode="decode"} 5\n'
    assert metric not in read_page(page, "m").values  # an older version does not count them
    assert read_page(page + tokens, "m").values[metric] == 0
    assert read_page(f'{page}{tokens}{name}{{model_name="m"}} 3\n', "m").values[metric] == 3


def test_cached_tokens_of_dynamo_are_unknown_while_no_worker_reports_them() -> None:
    text = (CAPTURES / "dynamo-1.6.1" / "metrics_after_load.txt").read_text()
    none = read_page(text, "tiny-llama").values
    assert none[Counter.PREFIX_QUERIES] == 8490 and Counter.PREFIX_HITS not in none
    counted = text.replace('cached_tokens_count{model="tiny-llama"} 0', 'cached_tokens_count{model="tiny-llama"} 8')
    assert read_page(counted, "tiny-llama").values[Counter.PREFIX_HITS] == 0


def test_ranks_of_sglang_that_serve_the_same_requests_are_not_added_up_but_those_of_data_parallelism_are() -> None:
    """Two engines (`dp_rank`), each of two pipeline stages with two tensor ranks that all report."""
    lines = []
    for dp, pp, tp in itertools.product(range(2), range(2), range(2)):
        labels = f'model_name="m",dp_rank="{dp}",pp_rank="{pp}",tp_rank="{2 * dp + tp}",moe_ep_rank="{tp}"'
        lines += [
            f"sglang:num_running_reqs{{{labels}}} {8 + dp}",
            f"sglang:num_queue_reqs{{{labels}}} {5 - pp}",  # the first stage knows first
            f"sglang:token_usage{{{labels}}} 0.{dp + 1}",
            f"sglang:spec_accept_rate{{{labels}}} {0.4 + 0.2 * dp}",
            f"sglang:num_retracted_requests_total{{{labels}}} 3",
        ]
    lines.append('sglang:prompt_tokens_total{model_name="m"} 70')
    assert read_page("\n".join([*lines, ""]), "m").values == pytest.approx({
        Gauge.RUNNING: 17, Gauge.WAITING: 10, Gauge.KV_USAGE: 0.2, Gauge.ACCEPTANCE: 0.5, Counter.PREEMPTIONS: 6,
        Counter.PROMPT_TOKENS: 70, Counter.PREFIX_QUERIES: 70,
    })  # fmt: skip


@pytest.mark.parametrize(
    ("model", "running"),
    [("a", 3.0), ("b", 5.0), ("neither", None)],
)
def test_of_several_models_on_a_page_the_one_asked_for_counts(model: str, running: float | None) -> None:
    text = """vllm:num_requests_running{engine="0",model_name="a"} 1
vllm:num_requests_running{engine="1",model_name="a"} 2
vllm:num_requests_running{engine="0",model_name="b"} 5
vllm:kv_cache_usage_perc{engine="0",model_name="a"} 0.25
vllm:kv_cache_usage_perc{engine="1",model_name="a"} 0.75
"""
    values = read_page(text, model).values
    assert values.get(Gauge.RUNNING) == running
    assert values[Gauge.KV_USAGE] == 0.75  # of one model alone: the fuller engine's


def test_a_model_is_found_by_its_name_in_lower_case() -> None:
    text = """dynamo_frontend_inflight_requests{model="qwen/qwen3-0.6b"} 3
dynamo_frontend_inflight_requests{model="unknown_model"} 0
"""
    assert read_page(text, "Qwen/Qwen3-0.6B").values == {Gauge.RUNNING: 3}


def test_of_a_proxy_the_requests_of_the_model_count_by_its_name_in_requests() -> None:
    responses = "litellm_deployment_success_responses_total"
    text = f"""{responses}{{litellm_model_name="openai/x-7b",requested_model="chat"}} 5
{responses}{{litellm_model_name="openai/y-7b",requested_model="other"}} 90
litellm_output_tokens_metric_total{{model="x-7b",requested_model="chat"}} 640
litellm_output_tokens_metric_total{{model="y-7b",requested_model="other"}} 90
"""
    assert read_page(text, "chat").values == {Counter.REQUESTS: 5, Counter.GENERATION_TOKENS: 640}
    assert read_page(text, "x-7b").values == {Counter.GENERATION_TOKENS: 640}


def test_the_order_of_series_does_not_change_their_sum() -> None:
    """Prometheus gives them in any order, and a sum that falls by its last digit looks like a restart."""
    queued = [f'vllm:request_queue_time_seconds_sum{{engine="{n}"}} {value}' for n, value in enumerate((0.1, 0.2, 0.3))]
    sums = {read_page("\n".join([*order, ""]), "m").values[Counter.QUEUE_S] for order in itertools.permutations(queued)}
    assert len(sums) == 1


def test_an_older_name_is_read_where_the_newer_is_missing() -> None:
    values = read_page('vllm:gpu_cache_usage_perc{model_name="m"} 0.5\n', "m").values
    assert values == {Gauge.KV_USAGE: 0.5}


@pytest.mark.parametrize("text", ["", "<html>Not Found</html>", "process_cpu_seconds_total 3\n", '{"status": "ok"}'])
def test_what_is_no_page_of_a_known_engine_is_refused(text: str) -> None:
    with pytest.raises(BadPageError):
        read_page(text, "m")


@pytest.mark.parametrize("line", ['a{b="1" 2', "a", "a x", 'a{b="1"}'])
def test_a_page_with_a_broken_line_is_refused_without_repeating_it(line: str) -> None:
    with pytest.raises(BadPageError, match=r"^it is no page of metrics in the text format of Prometheus$"):
        parse_samples(f"ok 1\n{line}\n")


def test_labels_keep_what_is_escaped_and_values_that_are_none_are_left_out() -> None:
    text = 'a{b="x\\"y\\\\n\\nz",c="}, {",} 3 1234\na NaN\na +Inf\na { d = "e" } 2\n'
    assert parse_samples(text) == [
        Sample("a", {"b": 'x"y\\n\nz', "c": "}, {"}, 3.0),
        Sample("a", {"d": "e"}, 2.0),
    ]


def test_no_name_stands_for_two_engines() -> None:
    owners: dict[str, str] = {}
    for engine, page in PAGES.items():
        names = {name for told in page.names.values() for t in told for name in t.names}
        assert any(name.startswith(page.prefix) for name in names), engine
        for name in names:
            if engine != "triton":  # whose page has those of vLLM
                assert owners.setdefault(name, engine) == engine, name
