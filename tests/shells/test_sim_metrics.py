"""The page of /metrics of the simulated server: its counts in vLLM's names, and one page of several replicas."""

from __future__ import annotations

import re
from types import SimpleNamespace
from typing import cast

import pytest

from benchgate.sim.engine import Model, Tally
from benchgate.sim.ground_truth import Counters, merged, metric_page


def page_of_a_busy_server() -> str:
    counters = Counters(began_s=1000.0, prompt_tokens=90)
    counters.finished["length"] = 2
    for seconds in (0.05, 0.2):
        counters.ttft.add(int(seconds * 1e9))
        counters.queued.add(int(seconds * 1e8))
        counters.whole.add(int(seconds * 1e10))
    engine = SimpleNamespace(running=2, waiting=5, kv_ratio=0.5, tally=Tally(6, 100, 25))
    return metric_page('a "model"', cast(Model, engine), counters, 44)


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


EXPECTED: dict[str, float] = {
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
}


def test_page_has_the_counts_in_vllms_names() -> None:
    found = samples(page_of_a_busy_server())
    assert {name: found.get(name) for name in EXPECTED} == pytest.approx(EXPECTED)


def test_pages_of_replicas_are_one_page_with_every_series_once() -> None:
    page = merged({0: page_of_a_busy_server(), 2: page_of_a_busy_server()}, {})
    assert {labels.partition(",")[0] for _, labels in series(page)} == {'replica="0"', 'replica="2"'}
    doubled = {name: 2 * value for name, value in EXPECTED.items() if name != "process_start_time_seconds"}
    found = samples(page)
    assert {name: found.get(name) for name in doubled} == pytest.approx(doubled)
