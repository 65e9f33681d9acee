"""A fleet for a demand: what it is sized by, what it says, and what it refuses to count on."""

import json
import math
from dataclasses import replace
from typing import Any

import pytest

from benchgate.errors import UsageError
from benchgate.model.deployment import Arm
from benchgate.model.run import MetricRow
from benchgate.report.sizing import RunSeen, sizing_document, sizing_text
from benchgate.sizing.fleet import (
    OUTPUT_TOKENS,
    REQUESTS,
    TOKENS,
    Demand,
    KvCache,
    Replica,
    SizingInput,
    read_traffic,
    size_demand,
)
from benchgate.sizing.fleet import TRAFFIC_REQUESTS as REQUEST_COLUMN
from benchgate.sizing.kv_cache import cache_layout
from benchgate.sizing.operating_point import LoadLevel, OperatingPoint, best_level, known_levels, levels_of
from benchgate.suite.loader import parse_suite
from benchgate.suite.schema import Suite

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
        MetricRow(arm, "output_throughput", None, stage, None, tokens, 5, tokens * 0.9, tokens * 1.1),
        MetricRow(arm, "request_throughput", None, stage, None, tokens / 50, 5, tokens / 60, tokens / 40),
        MetricRow(arm, "goodput", None, stage, None, share, 500, lower, 1.0),
    ]


LEVELS = [*level("c4", 400, (0.99, 0.97)), *level("c8", 700, (0.98, 0.955)), *level("c16", 900, (0.96, 0.93))]


def test_best_level_is_the_fastest_that_is_shown_to_hold_its_slo() -> None:
    found = best_level(LEVELS, a_suite(), Arm.CANDIDATE)
    assert isinstance(found, LoadLevel)
    assert (found.stage, found.tokens_per_s, found.e2e_mean_s) == ("c8", 700, None)
    assert (found.tokens_lower, found.goodput_lower, found.target_ratio) == (630, 0.955, 0.95)
    assert (found.tokens_per_request, found.in_flight) == (50, None)
    assert replace(found, e2e_mean_s=0.001).in_flight == 1


def test_time_that_a_request_stays_is_of_the_records_and_not_the_geometric_mean_that_is_kept() -> None:
    kept = [MetricRow(Arm.CANDIDATE, "e2e", "mean", one.stage, None, 0.5, 500, 0.4, 0.6) for one in LEVELS]
    levels = levels_of([*LEVELS, *kept], a_suite(), Arm.CANDIDATE, {"c8": 2.0})
    assert not isinstance(levels, str)
    c4, c8, _ = known_levels(levels)
    assert (c4.e2e_mean_s, c8.e2e_mean_s, c8.in_flight) == (None, 2.0, 28)


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
    levels = levels_of(held, a_suite(CLASSES), Arm.CANDIDATE, {"mix/chat": 1.0, "mix/batch": 4.0})
    assert not isinstance(levels, str)
    found = levels["mix"]
    assert isinstance(found, LoadLevel)
    assert (found.stage, found.tokens_per_s, found.tokens_lower, found.requests_per_s) == ("mix", 600, 540, 12)
    assert (found.offered_load, found.is_open) == (5.0, True)
    assert (found.goodput_lower, found.target_ratio, found.e2e_mean_s) == (0.97, 0.95, 2.0)
    failed = [*level("mix/chat", 400, (0.0, 0.0)), *level("mix/batch", 988, (1.0, 0.99))]
    said = best_level(failed, a_suite(CLASSES), Arm.CANDIDATE)
    assert isinstance(said, str)
    assert "nearest is mix, whose goodput may be as low as 0 %" in said
    missing = best_level(held[:4], a_suite(CLASSES), Arm.CANDIDATE)
    assert isinstance(missing, str)
    unlimited = [replace(row, lower=None) if row.name == "output_throughput" else row for row in held]
    found = best_level(unlimited, a_suite(CLASSES), Arm.CANDIDATE)
    assert isinstance(found, LoadLevel)
    assert (found.tokens_lower, found.e2e_mean_s) == (None, None)


@pytest.mark.parametrize(
    ("rows", "suite", "said"),
    [
        ([], SUITE, "no load metrics of the candidate"),
        (level("c4", 400, (1, 1), Arm.BASELINE), SUITE, "no load metrics of the candidate"),
        (LEVELS, SUITE.replace("slo: {ttft: 500ms, target: 95%}\n", ""), "the suite has no SLO"),
        (level("c4", 400, (0.99, None)), SUITE, "no level of load is complete"),
        (level("c4", 0.0, (0.99, 0.97)), SUITE, "no level of load is complete"),
        (LEVELS[:2], SUITE, "no level of load is complete"),
        (LEVELS, SUITE.replace("95%", "98%"), "nearest is c4, whose goodput may be as low as 97.0 %"),
    ],
)
def test_level_that_is_not_shown_to_hold_is_not_counted_on(rows: list[MetricRow], suite: str, said: str) -> None:
    found = best_level(rows, a_suite(suite), Arm.CANDIDATE)
    assert isinstance(found, str)
    assert said in found


def a_question(**changed: Any) -> SizingInput:
    return replace(
        SizingInput(OUTPUT_TOKENS, Demand(5000), Replica(700, None, 1.2), safety_factor=1.0, spares=0), **changed
    )


def test_fleet_of_the_guide_costs_what_the_guide_says() -> None:
    # $32/h for 4 replicas of 1,800 tokens/s: $1.23 per 1M when full, twice that at half, a quarter more with overhead
    full = size_demand(a_question(demand=Demand(7200), replica=Replica(1800, None, 8.0)))
    half = size_demand(a_question(demand=Demand(3600), replica=Replica(1800, None, 8.0), safety_factor=2.0))
    dearer = size_demand(a_question(demand=Demand(3600), replica=Replica(1800, None, 10.0), safety_factor=2.0))
    assert [round(one.levels[0].usd_per_million_tokens or 0, 2) for one in (full, half, dearer)] == [1.23, 2.47, 3.09]
    assert full.full_usd_per_million_tokens == full.levels[0].usd_per_million_tokens
    assert [one.levels[0].sized.usd_per_hour for one in (full, half)] == [32, 32]


def test_every_level_of_the_demand_has_its_fleet_and_its_requests_inside() -> None:
    asked = a_question(
        unit=REQUESTS, demand=Demand(10, 20, 30, 0.05), replica=Replica(4, 3, 2.0), residence_s=2.5, cold_start_s=120.0,
        tokens_per_request=100.0, spares=1,
    )  # fmt: skip
    found = size_demand(asked)
    assert [(one.name, one.sized.bare, one.sized.with_spares, one.sized.by_lower) for one in found.levels] == [
        ("mean", 3, 4, 5), ("p95", 5, 6, 8), ("peak", 8, 9, 11),
    ]  # fmt: skip
    assert [one.in_flight for one in found.levels] == [25, 50, 75]
    assert found.ahead == 2  # six more per second by then
    # 8, 12 and 18 dollars an hour, each for the 10 · 100 · 3600 tokens that come on the mean: a fleet for the peak is
    # paid while the mean flows
    assert [one.usd_per_million_tokens for one in found.levels] == pytest.approx([8 / 3.6, 12 / 3.6, 18 / 3.6])
    assert found.full_usd_per_million_tokens == pytest.approx(2 / 1.44)


def test_what_is_not_known_is_not_told() -> None:
    found = size_demand(a_question(replica=Replica(700), residence_s=2.0))
    assert (found.full_usd_per_million_tokens, found.levels[0].in_flight, found.ahead) == (None, None, None)
    text = sizing_text(found)
    assert "$" not in text.replace("$/", "")
    assert "set `replica.output_tokens`" in text
    assert size_demand(a_question(unit=REQUESTS)).levels[0].usd_per_million_tokens is None


def test_text_says_fleet_cache_and_the_level_it_was_read_from() -> None:
    layout = cache_layout(
        {"num_hidden_layers": 80, "num_attention_heads": 64, "num_key_value_heads": 8, "head_dim": 128, "dtype": "bf16"}
    )
    cache = KvCache(layout, 40 * 2.0**30, 8192)
    asked = a_question(
        demand=Demand(5000, None, 9000, 1.0), residence_s=20.0, tokens_per_request=50.0, cold_start_s=700.0,
        cache=cache, replica=Replica(700, 600, 1.2), spares=2,
    )  # fmt: skip
    row = best_level(LEVELS, a_suite(), Arm.CANDIDATE)
    assert isinstance(row, LoadLevel)
    text = sizing_text(size_demand(asked), RunSeen(OperatingPoint(row)))
    for said in (
        "One replica serves 700 output tokens/s (lower 95 % bound 600), at $1.20/h.",
        "stage c8, the fastest whose goodput is shown to reach its target (95.5 % at least, target 95 %)",
        "plus 2 spare replicas",
        "stay 1 ahead",
        "a request of 8,192 tokens 2.68 GB: 16 of them fit into 42.9 GB",
        "In the cache a token takes 328 kB",
        "$/1M tok: cost of that fleet in a month over the tokens of a month",
        "Each replica would have 277 requests in flight",
    ):
        assert said in text
    assert "Each replica" not in sizing_text(size_demand(a_question(cache=cache)))


def test_layers_that_keep_a_state_are_told_for_less_fits_than_is_counted() -> None:
    kinds = ["linear_attention"] * 3 + ["full_attention"]
    config = {"num_hidden_layers": 4, "num_attention_heads": 8, "head_dim": 64, "dtype": "bf16", "layer_types": kinds}
    text = sizing_text(size_demand(a_question(cache=KvCache(cache_layout(config), 1e9, 1024))))
    assert "3 of its layers keep a state of each request, which does not grow and is not counted here" in text


def test_cost_has_its_interval_by_the_lower_limit_of_what_a_replica_carries() -> None:
    found = size_demand(a_question(replica=Replica(700, 350, 1.2)))
    (level,) = found.levels
    assert found.full_usd_per_million_tokens is not None
    assert found.full_usd_per_million_tokens_upper == pytest.approx(2 * found.full_usd_per_million_tokens)
    assert (level.sized.usd_per_month, level.sized.by_lower_usd_per_month) == pytest.approx((8 * 876, 15 * 876))
    text = sizing_text(found)
    assert "1M output tokens cost $0.476 (up to $0.952 by that bound)." in text
    assert "By the lower bound a month would cost $13,140.00 for the mean." in text
    offered = sizing_document(found, RunSeen(OperatingPoint(replace(ROW, is_open=True))))
    assert offered["full_usd_per_million_tokens_upper"] is None
    assert offered["loaded_usd_per_million_tokens_upper"] == pytest.approx(0.952, abs=0.001)


def test_rate_of_a_run_without_a_lower_limit_is_told_as_one() -> None:
    said = "Its lower bound is unknown: its blocks differ too much, or not at all."
    assert said in sizing_text(size_demand(a_question()), RunSeen(OperatingPoint(ROW)))
    assert said not in sizing_text(size_demand(a_question(replica=Replica(700, 600))), RunSeen(OperatingPoint(ROW)))
    assert said not in sizing_text(size_demand(a_question()))


ROW = LoadLevel("c8", 700.0, None, 14.0, None, 0.955, 0.95, 2.0)


def test_document_is_plain_json_without_anything_left_out() -> None:
    cache = KvCache(cache_layout({"n_layer": 12, "n_head": 12, "n_embd": 768, "dtype": "f16"}), 1e9, 1024)
    document = json.loads(json.dumps(sizing_document(size_demand(a_question(cache=cache))), allow_nan=False))
    assert document["levels"][0]["sized"]["replicas"] == 8
    assert document["cache"] == {
        "bytes_per_token": 36864, "bytes_per_request": 37748736, "requests_that_fit": 26, "accelerators": 1,
        "times_kept": 1.0,
    }  # fmt: skip
    assert (document["measured"], document["run"], document["figures"]) == (None, None, None)


@pytest.mark.parametrize("demand", [1e-300, 1e-3, 5000.0])
@pytest.mark.parametrize("usd_per_hour", [1e-6, 1.2])
def test_dollars_are_never_nothing_nor_more_digits_than_anyone_reads(demand: float, usd_per_hour: float) -> None:
    found = size_demand(a_question(demand=Demand(demand), replica=Replica(700, None, usd_per_hour)))
    text = sizing_text(found)
    assert max(map(len, text.split())) < 25
    row = next(line for line in text.splitlines() if line.startswith("mean")).split()
    assert all(float(cell.replace(",", "")) > 0 for cell in row[-3:])
    assert "$0.00/h" not in text


def test_traffic_is_one_row_an_hour_in_either_unit() -> None:
    assert read_traffic("\ufeffhour, requests_per_s\n0,1.5\n1,2\n\n\n", "t.csv").per_s == (1.5, 2.0)
    assert read_traffic("requests_per_s,note\n1\n2,busy,\n", "t.csv").per_s == (1.0, 2.0)  # what is not read may lack
    assert read_traffic("requests_per_s\n1.2E+03\n .5\n", "t.csv").per_s == (1200.0, 0.5)  # as spreadsheets write
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
        ("requests_per_s\n10\n\n10\n", "t.csv:3: requests_per_s is ''"),  # in one column a missing cell is a blank line
        ("hour,requests_per_s\n\n0,1\n", "t.csv:2: requests_per_s is ''"),
        ("hour,requests_per_s\n0,1\n,\n", "t.csv:3: requests_per_s is ''"),
        ('note,requests_per_s\n"a\nb",1\n,many\n', "t.csv:4: requests_per_s is 'many'"),
        ("hour,requests_per_s\n1\n", "t.csv:2: requests_per_s is ''"),
        ("requests_per_s\n3\n1,200\n", "t.csv:3: it has 2 cells, and the heading 1; write a point in numbers, 3.5"),
        ("hour,requests_per_s\n0,3,5\n", "t.csv:2: it has 3 cells, and the heading 2"),
        ("requests_per_s\nnan\n", "expected a mean rate"),
        ("requests_per_s\n3\n1_200\n", "t.csv:3: requests_per_s is '1_200'; expected a mean rate"),
        ("requests_per_s\n\uff11\uff12\n", "t.csv:2: requests_per_s is '\uff11\uff12'; expected a mean rate"),
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
        size_demand(a_question(safety_factor=math.inf))
