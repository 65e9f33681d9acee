"""/metrics of the practice server in the names of every engine: the same counts under each of them."""

from __future__ import annotations

import re

import pytest

from benchgate.sim.metrics import Counters, Snapshot, merged, metric_page
from benchgate.sim.settings import METRICS_AS


def snapshot() -> Snapshot:
    counters = Counters(began_s=1000.0, requests=3, prompt_tokens=90, cached_tokens=32, generation_tokens=40)
    counters.finished["length"] = 2
    for seconds in (0.05, 0.2):
        counters.ttft.add(int(seconds * 1e9))
        counters.queued.add(int(seconds * 1e8))
        counters.whole.add(int(seconds * 1e10))
    return Snapshot(
        model='a "model"',
        counters=counters,
        running=2,
        waiting=5,
        kv_ratio=0.5,
        generation_tokens=44,
        preemptions=6,
        prefix_queried_tokens=100,
        prefix_hit_tokens=25,
    )


SAMPLE = re.compile(r'([a-zA-Z_:][\w:]*)(?:\{((?:\w+="(?:[^"\\]|\\.)*",?)*)\})? (\S+)')


def series(page: str) -> dict[tuple[str, str], float]:
    """Every sample by its name and labels; each family is opened once, by its type, before its samples."""
    found: dict[tuple[str, str], float] = {}
    families: list[str] = []
    for line in page.splitlines():
        if line.startswith("# TYPE "):
            families.append(line.split(" ")[2])
            continue
        match = SAMPLE.fullmatch(line)
        assert match, line
        name, labels, value = match.groups()
        assert name.startswith(families[-1])
        assert (name, labels) not in found
        found[name, labels] = float(value)
    assert len(set(families)) == len(families)
    return found


def samples(page: str) -> dict[str, float]:
    """Every sample by its name; of those with several series the sum, buckets left out."""
    found: dict[str, float] = {}
    for (name, _), value in series(page).items():
        if not name.endswith("_bucket"):
            found[name] = found.get(name, 0) + value
    return found


EXPECTED: dict[str, dict[str, float]] = {
    "vllm": {
        "process_start_time_seconds": 1000,
        "vllm:num_requests_running": 2,
        "vllm:num_requests_waiting": 5,
        "vllm:kv_cache_usage_perc": 0.5,
        "vllm:prefix_cache_queries_total": 100,
        "vllm:prefix_cache_hits_total": 25,
        "vllm:num_preemptions_total": 6,
        "vllm:prompt_tokens_total": 90,
        "vllm:generation_tokens_total": 44,
        "vllm:request_success_total": 2,
        "vllm:time_to_first_token_seconds_sum": 0.25,
        "vllm:request_queue_time_seconds_count": 2,
        "vllm:e2e_request_latency_seconds_sum": 2.5,
    },
    "sglang": {
        "sglang:num_running_reqs": 2,
        "sglang:num_queue_reqs": 5,
        "sglang:token_usage": 0.5,
        "sglang:cache_hit_rate": 0.25,
        "sglang:num_requests_total": 3,
        "sglang:prompt_tokens_total": 90,
        "sglang:cached_tokens_total": 32,
        "sglang:generation_tokens_total": 44,
        "sglang:num_retracted_requests_total": 6,
    },
    "tgi": {
        "tgi_batch_current_size": 2,
        "tgi_queue_size": 5,
        "tgi_request_success": 2,
        "tgi_request_input_length_sum": 90,
        "tgi_request_generated_tokens_sum": 40,
        "tgi_request_queue_duration_count": 2,
    },
    "llamacpp": {
        "llamacpp:prompt_tokens_total": 58,
        "llamacpp:prompt_tokens_cached_total": 32,
        "llamacpp:tokens_predicted_total": 44,
        "llamacpp:requests_processing": 2,
        "llamacpp:requests_deferred": 5,
    },
}


def test_every_engine_has_expectations_here() -> None:
    assert set(EXPECTED) == set(METRICS_AS)


@pytest.mark.parametrize("engine", METRICS_AS)
def test_page_tells_the_counts_in_the_names_of_the_engine(engine: str) -> None:
    found = samples(metric_page(engine, snapshot()))
    assert {name: found.get(name) for name in EXPECTED[engine]} == pytest.approx(EXPECTED[engine])


@pytest.mark.parametrize("engine", METRICS_AS)
def test_pages_of_replicas_are_one_page_with_every_series_once(engine: str) -> None:
    page = merged({0: metric_page(engine, snapshot()), 2: metric_page(engine, snapshot())})
    assert {labels.partition(",")[0] for _, labels in series(page)} == {'replica="0"', 'replica="2"'}
    doubled = {name: 2 * value for name, value in EXPECTED[engine].items() if name != "process_start_time_seconds"}
    found = samples(page)
    assert {name: found.get(name) for name in doubled} == pytest.approx(doubled)
