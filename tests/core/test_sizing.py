"""A fleet for a demand: what it is sized by, what it says, and what it refuses to count on."""

import json
import math
from dataclasses import replace
from typing import Any

import pytest

from benchgate.cost.demand import Demand
from benchgate.cost.fleet import Replica
from benchgate.cost.kv_cache import cache_layout
from benchgate.cost.sizing import OUTPUT_TOKENS, REQUESTS, Cache, Question, sizing
from benchgate.cost.traffic import REQUESTS as REQUEST_COLUMN
from benchgate.cost.traffic import TOKENS, read_traffic
from benchgate.errors import UsageError
from benchgate.gate.best_row import BestRow, best_row, levels_of
from benchgate.gate.scaling_signal import Signal, scaling_signals
from benchgate.model.deployment import Arm
from benchgate.model.run import Evidence, MetricRow
from benchgate.model.telemetry import Gauge, Reading, TelemetryWindow, Word
from benchgate.report.sizing import sizing_document, sizing_text
from benchgate.report.sizing_run import RunSeen
from benchgate.suite.loader import parse_suite
from benchgate.suite.schema import Suite
from tests.fakes.measured import SuiteText, measured

SUITE = """
suite: sized
deployments:
  a: {engine: openai, url: http://a.example, model: m}
  b: {engine: openai, url: http://b.example, model: m}
baseline: a
candidate: b
slo: {ttft: 500ms, target: 95%}
load:
  workload: {input: 100, output: 50}
  sweep:
    - {stage: c4, concurrency: 4, requests: 100}
    - {stage: c8, concurrency: 8, requests: 100}
    - {stage: c16, concurrency: 16, requests: 100}
gate: {checks: [{metric: error_rate, max: 10%}]}
"""


def a_suite(text: str = SUITE) -> Suite:
    return parse_suite(text, "suite.yaml")


def level(stage: str, tokens: float, goodput: tuple[float, float | None], arm: Arm = Arm.CANDIDATE) -> list[MetricRow]:
    share, lower = goodput
    return [
        MetricRow(arm, "output_tokens_per_s", None, stage, None, tokens, 5, tokens * 0.9, tokens * 1.1),
        MetricRow(arm, "requests_per_s", None, stage, None, tokens / 50, 5, tokens / 60, tokens / 40),
        MetricRow(arm, "goodput_ratio", None, stage, None, share, 500, lower, 1.0),
        MetricRow(arm, "e2e_s", "mean", stage, None, 2.0, 500, 1.9, 2.1),
    ]


LEVELS = [*level("c4", 400, (0.99, 0.97)), *level("c8", 700, (0.98, 0.955)), *level("c16", 900, (0.96, 0.93))]


def test_best_level_is_the_fastest_that_is_shown_to_hold_its_slo() -> None:
    found = best_row(LEVELS, a_suite(), Arm.CANDIDATE)
    assert isinstance(found, BestRow)
    assert (found.stage, found.tokens_per_s, found.e2e_mean_s) == ("c8", 700, 2.0)
    assert (found.tokens_lower, found.goodput_lower, found.target_ratio) == (630, 0.955, 0.95)
    assert (found.tokens_per_request, found.in_flight) == (50, 28)
    assert replace(found, e2e_mean_s=None).in_flight is None
    assert replace(found, e2e_mean_s=0.001).in_flight == 1
    bare = best_row([row for row in LEVELS if row.name != "e2e_s"], a_suite(), Arm.CANDIDATE)
    assert isinstance(bare, BestRow)
    assert bare.e2e_mean_s is None
    assert not found.is_highest
    alone = best_row(LEVELS[:8], a_suite(), Arm.CANDIDATE)
    assert isinstance(alone, BestRow)
    assert alone.is_highest


CLASSES = SUITE.replace(
    """    - {stage: c4, concurrency: 4, requests: 100}
    - {stage: c8, concurrency: 8, requests: 100}
    - {stage: c16, concurrency: 16, requests: 100}
""",
    """    - stage: mix
      classes:
        chat: {workload: short, rate: 4/s, requests: 100}
        batch: {workload: long, rate: 1/s, requests: 100, slo: {ttft: 5s, target: 90%}}
""",
).replace("load:\n", "load:\n  workloads: {short: {input: 10, output: 5}, long: {input: 100, output: 50}}\n")


def test_stage_of_several_classes_holds_only_where_all_of_them_do() -> None:
    held = [*level("mix/chat", 400, (0.99, 0.97)), *level("mix/batch", 200, (0.99, 0.96))]
    found = best_row(held, a_suite(CLASSES), Arm.CANDIDATE)
    assert isinstance(found, BestRow)
    assert (found.stage, found.tokens_per_s, found.tokens_lower, found.requests_per_s) == ("mix", 600, 540, 12)
    assert (found.goodput_lower, found.target_ratio, found.e2e_mean_s) == (0.97, 0.95, 2.0)
    failed = [*level("mix/chat", 400, (0.0, 0.0)), *level("mix/batch", 988, (1.0, 0.99))]
    said = best_row(failed, a_suite(CLASSES), Arm.CANDIDATE)
    assert isinstance(said, str)
    assert "nearest is mix, whose goodput may be as low as 0 %" in said
    missing = best_row(held[:4], a_suite(CLASSES), Arm.CANDIDATE)
    assert isinstance(missing, str)
    unlimited = [replace(row, lower=None) if row.name == "output_tokens_per_s" else row for row in held]
    found = best_row([row for row in unlimited if row.name != "e2e_s"], a_suite(CLASSES), Arm.CANDIDATE)
    assert isinstance(found, BestRow)
    assert (found.tokens_lower, found.e2e_mean_s) == (None, None)


@pytest.mark.parametrize(
    ("rows", "suite", "said"),
    [
        ([], SUITE, "no numbers of a load on the candidate"),
        (level("c4", 400, (1, 1), Arm.BASELINE), SUITE, "no numbers of a load on the candidate"),
        (LEVELS, SUITE.replace("slo: {ttft: 500ms, target: 95%}\n", ""), "no SLO with a target"),
        (level("c4", 400, (0.99, None)), SUITE, "no level of load was measured"),
        (level("c4", 0.0, (0.99, 0.97)), SUITE, "no level of load was measured"),
        (LEVELS[:2], SUITE, "no level of load was measured"),
        (LEVELS, SUITE.replace("95%", "98%"), "nearest is c4, whose goodput may be as low as 97.0 %"),
    ],
)
def test_level_that_is_not_shown_to_hold_is_not_counted_on(rows: list[MetricRow], suite: str, said: str) -> None:
    found = best_row(rows, a_suite(suite), Arm.CANDIDATE)
    assert isinstance(found, str)
    assert said in found


def a_question(**changed: Any) -> Question:
    return replace(
        Question(OUTPUT_TOKENS, Demand(5000), Replica(700, None, 1.2), safety_factor=1.0, spares=0), **changed
    )


def test_fleet_of_the_guide_costs_what_the_guide_says() -> None:
    # $32/h for 4 replicas of 1,800 tokens/s: $1.23 per 1M when full, twice that at half, a quarter more with overhead
    full = sizing(a_question(demand=Demand(7200), replica=Replica(1800, None, 8.0)))
    half = sizing(a_question(demand=Demand(3600), replica=Replica(1800, None, 8.0), safety_factor=2.0))
    dearer = sizing(a_question(demand=Demand(3600), replica=Replica(1800, None, 10.0), safety_factor=2.0))
    assert [round(one.levels[0].usd_per_million_tokens or 0, 2) for one in (full, half, dearer)] == [1.23, 2.47, 3.09]
    assert full.full_usd_per_million_tokens == full.levels[0].usd_per_million_tokens
    assert [one.levels[0].sized.usd_per_hour for one in (full, half)] == [32, 32]


def test_every_level_of_the_demand_has_its_fleet_and_its_requests_inside() -> None:
    asked = a_question(
        unit=REQUESTS, demand=Demand(10, 20, 30, 0.05), replica=Replica(4, 3, 2.0), residence_s=2.5, cold_start_s=120.0,
        tokens_per_request=100.0, spares=1,
    )  # fmt: skip
    found = sizing(asked)
    assert [(one.name, one.sized.bare, one.sized.with_spares, one.sized.by_lower) for one in found.levels] == [
        ("mean", 3, 4, 5), ("p95", 5, 6, 8), ("peak", 8, 9, 11),
    ]  # fmt: skip
    assert [one.in_flight for one in found.levels] == [25, 50, 75]
    assert found.ahead == 2  # six more per second by then
    # 8 dollars an hour for 10 · 100 · 3600 tokens
    assert found.levels[0].usd_per_million_tokens == pytest.approx(8 / 3.6)
    assert found.full_usd_per_million_tokens == pytest.approx(2 / 1.44)


def test_what_is_not_known_is_not_told() -> None:
    found = sizing(a_question(replica=Replica(700), residence_s=2.0))
    assert (found.full_usd_per_million_tokens, found.levels[0].in_flight, found.ahead) == (None, None, None)
    text = sizing_text(found)
    assert "$" not in text.replace("$/", "")
    assert "give --output-tokens" in text
    assert sizing(a_question(unit=REQUESTS)).levels[0].usd_per_million_tokens is None


def test_text_says_fleet_cache_and_the_level_it_was_read_from() -> None:
    layout = cache_layout(
        {"num_hidden_layers": 80, "num_attention_heads": 64, "num_key_value_heads": 8, "head_dim": 128, "dtype": "bf16"}
    )
    cache = Cache(layout, 40 * 2.0**30, 8192)
    asked = a_question(
        demand=Demand(5000, None, 9000, 1.0), residence_s=20.0, tokens_per_request=50.0, cold_start_s=700.0,
        cache=cache, replica=Replica(700, 600, 1.2), spares=2,
    )  # fmt: skip
    row = best_row(LEVELS, a_suite(), Arm.CANDIDATE)
    assert isinstance(row, BestRow)
    text = sizing_text(sizing(asked), RunSeen(row))
    for said in (
        "One replica carries 700 output tokens/s (lower 95 % limit 600), at $1.20/h.",
        "stage c8, the fastest whose goodput is shown to reach its target (95.5 % at least, target 95.0 %)",
        "and 2 spare replicas",
        "be 1 ahead",
        "a request of 8,192 tokens 2.50 GiB: 16 of them fit into 40.0 GiB",
        "In the cache a token takes 320 KiB",
        "Each replica would have 277 requests in flight",
    ):
        assert said in text
    assert "Each replica" not in sizing_text(sizing(a_question(cache=cache)))


def test_document_is_plain_json_without_anything_left_out() -> None:
    cache = Cache(cache_layout({"n_layer": 12, "n_head": 12, "n_embd": 768, "dtype": "f16"}), 1e9, 1024)
    document = json.loads(json.dumps(sizing_document(sizing(a_question(cache=cache))), allow_nan=False))
    assert document["levels"][0]["sized"]["replicas"] == 8
    assert document["cache"] == {"bytes_per_token": 36864, "bytes_per_request": 37748736, "requests_that_fit": 26}
    assert document["measured"] is None


def test_traffic_is_one_row_an_hour_in_either_unit() -> None:
    assert read_traffic("\ufeffhour, requests_per_s\n0,1.5\n\n1,2\n", "t.csv").per_s == (1.5, 2.0)
    assert read_traffic("requests_per_s\n1\n", "t.csv").column == REQUEST_COLUMN
    assert read_traffic("output_tokens_per_s\n1\n", "t.csv").column == TOKENS


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "t.csv:1: no column"),
        ("request_per_s\n1\n", "did you mean requests_per_s by 'request_per_s'?"),
        ("requests_per_s,output_tokens_per_s\n1,1\n", "both say the demand"),
        ("requests_per_s,requests_per_s\n1,2\n", "both say the demand"),
        ("requests_per_s\n", "no hour"),
        ("requests_per_s\n1\nmany\n", "t.csv:3: requests_per_s is 'many'"),
        ("hour,requests_per_s\n1\n", "t.csv:2: requests_per_s is ''"),
        ("requests_per_s\nnan\n", "expected a mean rate"),
        ("requests_per_s\n-1\n", "expected a mean rate"),
        (f'requests_per_s\n"{"x" * 200_000}"\n', "this is no CSV"),
    ],
)
def test_traffic_that_cannot_be_read_is_refused_with_its_place(text: str, said: str) -> None:
    with pytest.raises(UsageError) as caught:
        read_traffic(text, "t.csv")
    assert said in str(caught.value)


def test_numbers_that_cannot_be_are_refused() -> None:
    with pytest.raises(ValueError, match="expected"):
        sizing(a_question(safety_factor=math.inf))


def told(waiting: dict[str, float], usage: dict[str, float]) -> Evidence:
    """A run whose server told these at every look, by stage."""
    empty = measured(SuiteText([{"metric": "ttft", "margin": "5%"}], blocks=2, requests=2).suite())
    windows = []
    for stage in waiting:
        at: dict[Word, float] = {Gauge.WAITING: waiting[stage], Gauge.RUNNING: 4.0}
        at |= {Gauge.KV_USAGE: usage[stage]} if stage in usage else {}
        looks = tuple(Reading(float(second), at) for second in range(4))
        for block in (0, 1):
            windows.append(TelemetryWindow(stage, Arm.CANDIDATE, block, 0, "vllm", 3.0, True, looks))
    return replace(empty, telemetry=tuple(windows))


def signals(evidence: Evidence, rows: list[MetricRow] = LEVELS) -> tuple[Signal, ...]:
    levels = levels_of(rows, a_suite(), Arm.CANDIDATE)
    assert not isinstance(levels, str)
    return scaling_signals(evidence, levels, Arm.CANDIDATE)


def test_fleet_is_scaled_by_the_queue_where_it_tells_and_else_by_what_does() -> None:
    """c8 is the best level, c16 the next one, which is not shown to hold."""
    queue, cache, tokens = signals(told({"c4": 0, "c8": 0.5, "c16": 6}, {"c4": 0.2, "c8": 0.4, "c16": 0.45}))
    assert (queue.name, queue.stage, queue.holds, queue.beyond, queue.misses) == (
        "waiting requests",
        "c8",
        0.5,
        "c16",
        6,
    )
    assert (queue.tells, cache.tells, tokens.tells) == (True, False, False)
    first, *_ = signals(told({"c8": 0, "c16": 0.1}, {"c8": 0.4, "c16": 0.9}))
    assert (first.name, first.holds, first.misses) == ("KV cache in use", 0.4, 0.9)
    (alone,) = signals(told({}, {}))
    assert (alone.name, alone.holds, alone.misses, alone.tells) == ("output tokens/s", 700, 900, False)


def test_no_level_beyond_the_best_one_is_no_threshold() -> None:
    found = signals(told({"c4": 0, "c8": 0.5, "c16": 6}, {}), LEVELS[:8])
    assert [(one.beyond, one.misses, one.tells) for one in found] == [(None, None, False)] * 2
    assert signals(told({}, {}), level("c4", 400, (0.9, 0.8))) == ()


def test_queue_that_was_told_in_one_block_alone_is_not_known() -> None:
    evidence = told({"c8": 0.5, "c16": 6}, {})
    first = replace(evidence.telemetry[0], readings=())
    names = [one.name for one in signals(replace(evidence, telemetry=(first, *evidence.telemetry[1:])))]
    assert names == ["output tokens/s"]


def test_sizing_says_by_what_to_scale_and_what_was_seen() -> None:
    found = sizing(Question(unit=OUTPUT_TOKENS, demand=Demand(5000), replica=Replica(700)))
    row = best_row(LEVELS, a_suite(), Arm.CANDIDATE)
    assert isinstance(row, BestRow)
    seen = signals(told({"c8": 0.5, "c16": 6}, {"c8": 0.4, "c16": 0.45}))
    text = sizing_text(found, RunSeen(row, signals=seen))
    assert "Scale up by waiting requests of a replica, above 0.500. Seen in the run:" in text
    assert "  KV cache in use: 40.0 % at c8, which held, 45.0 % at c16, which did not" in text
    flat = sizing_text(found, RunSeen(row, signals=seen[1:]))
    assert "Nothing that the server told was much more where its SLO no longer held." in flat
    assert "Scale up" not in sizing_text(found)
    document = sizing_document(found, RunSeen(row, signals=seen))
    assert [one["tells"] for one in document["signals"]] == [True, False, False]  # type: ignore[attr-defined]  # plain JSON
