"""`benchgate capacity` from a demand file alone: every problem has its place, and an answer has finite numbers only."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path
from typing import Any

import pytest

from benchgate.errors import BenchgateError
from tests.fakes.demand import changed, write_demand
from tests.fakes.quick_command import answer

FLEET: dict[str, Any] = {
    "demand": {"output_tokens_per_s": {"mean": 5000, "p95": 6000, "peak": 7000}},
    "replica": {
        "output_tokens_per_s": 700, "output_tokens": 50, "request_time": "2s", "price": "$1.2/h", "overhead": "25%",
    },
    "safety_factor": "1.2x",
    "spares": 1,
}  # fmt: skip
CACHED = changed(
    FLEET,
    replica__cache={"model": "config.json", "memory": "80GB", "request_tokens": 8192, "tensor_parallel": 2},
)
SIMULATED: dict[str, Any] = {
    "demand": {"traffic": "day.csv"},
    "replica": {"requests_per_s": 3, "request_time": "2s", "slots": 8, "cold_start": "60s", "price": "$4/h"},
    "simulation": {
        "min_replicas": 1, "max_replicas": 4, "max_wait": "1s", "target_load": "80%", "interval": "15s",
        "cooldown": "5min", "request_time_cv": 1, "seed": 0,
    },
}  # fmt: skip
STRANGE: tuple[object, ...] = (
    0,
    -1,
    "nan",
    "inf",
    1e308,
    "1" + "0" * 400,
    "1e-320",
    "many",
    "",
    True,
    [],
    "0s",
    "1e300h",
    "0%",
    "1e300%",
    "1ns",
)
MODEL = {"num_hidden_layers": 80, "num_attention_heads": 64, "num_key_value_heads": 8, "head_dim": 128, "dtype": "bf16"}


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "config.json").write_text(json.dumps(MODEL))
    (tmp_path / "day.csv").write_text("requests_per_s\n0.01\n0.02\n")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def result(document: dict[str, Any], *options: str) -> str:
    """Return the output as JSON or text, or the error message."""
    try:
        code, output, errors = answer("capacity", "--demand", write_demand(Path(), document), *options)
    except BenchgateError as error:
        return f"refused: {error}"
    assert code in (0, 2), errors
    return output if code == 0 else f"refused: {errors}"


def keys_of(document: dict[str, Any], prefix: str = "") -> list[str]:
    found = []
    for name, value in document.items():
        inner = keys_of(value, f"{prefix}{name}__") if isinstance(value, dict) else []
        found += inner or [f"{prefix}{name}"]
    return found


def test_usual_numbers_are_answered() -> None:
    for document in (FLEET, CACHED, SIMULATED):
        assert json.loads(result(document, "--format", "json"))["levels"]


@pytest.mark.slow
@pytest.mark.parametrize("document", [CACHED, SIMULATED], ids=["fleet", "simulation"])
def test_strange_value_of_any_key_is_refused_or_gives_finite_numbers(document: dict[str, Any]) -> None:
    def never(constant: str) -> float:
        raise AssertionError(f"{constant} in the answer")

    for name in keys_of(document):
        for value in STRANGE:
            output = result(changed(document, **{name: value}), "--format", "json")
            if output.startswith("refused"):
                assert "demand.yaml:1:" in output, output
                continue
            found = json.loads(output, parse_constant=never)
            assert found["levels"][0]["sized"]["with_spares"] <= 2_000_001, name


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"replica__output_tokens": 0}, "replica.output_tokens: found 0; expected a number, above 0"),
        ({"replica__request_time": 2}, "replica.request_time: 2 is not a duration; write it with its unit"),
        ({"replica__price": 4}, 'replica.price: 4 is not a price; write it with its unit, like "$32/h"'),
        ({"replica__overhead": 25}, "replica.overhead: 25 is not a percentage"),
        ({"demand__output_tokens_per_s": 0}, "demand.output_tokens_per_s.mean: found 0; expected a number, above 0"),
        ({"demand__output_tokens_per_s__peak": 10}, "demand.output_tokens_per_s: `mean` 5000 is above `peak` 10"),
        ({"demand__requests_per_s": 3}, "demand: has `requests_per_s` and `output_tokens_per_s`; needs exactly one"),
        ({"demand__output_tokens_per_s": None}, "demand: needs exactly one of `requests_per_s`, `output_tokens_per_s`"),
        ({"demand": None}, "demand: is required and missing"),
        ({"safty_factor": "2x"}, "safty_factor: unknown key; did you mean `safety_factor`?"),
        ({"safety_factor": "0.5x"}, "safety_factor: found"),
        ({"spares": 2_000_000}, "at most 1,000,000"),
        ({"replica__output_tokens_per_s": 1e-6}, "demand: 5000 per second takes more than 1,000,000 replicas of 1e-06"),
        ({"replica__output_tokens_per_s": None}, "the rate of a replica is missing; add `output_tokens_per_s`"),
        ({"replica__requests_per_s": 3}, "replica: has two rates; keep one"),
        ({"replica__cache__dtype": "fp9"}, "replica.cache.dtype: 'fp9' is not a known"),
        ({"replica__cache__dtype": "bf17"}, "did you mean bf16?"),
        ({"replica__cache__model": "nowhere.json"}, "nowhere.json: there is no such file"),
        ({"replica__cache__model": None}, "replica.cache.model: is required and missing"),
        ({"replica__cache__memory": 80}, "replica.cache.memory: 80 is not a size of a memory"),
        ({"replica__cache__request_tokens": 0}, "replica.cache.request_tokens: found 0"),
        ({"replica__cache__tensor_parallel": 3}, "8 KV heads cannot be shared by 3 accelerators"),
        ({"replica__cache__tensor_parallel": 0}, "replica.cache.tensor_parallel: found 0"),
    ],
)
def test_problem_names_its_place_and_what_was_expected(keys: dict[str, Any], message: str) -> None:
    assert message in result(changed(CACHED, **keys))


def test_rate_in_another_unit_than_the_demand_is_refused() -> None:
    document = changed(FLEET, replica__output_tokens_per_s=None, replica__requests_per_s=3)
    assert "the demand is in output tokens per second; write `output_tokens_per_s` here" in result(document)


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"replica__slots": 4}, "has 6 inside at once (Little's law), and 4 slots carry no more than 2 requests/s"),
        ({"replica__slots": 0}, "replica.slots: found 0; expected a whole number, at least 1 and at most 1,000,000"),
        ({"simulation__max_replicas": 20_000}, "at most 10,000"),
        ({"simulation__min_replicas": 5}, "simulation: `min_replicas` 5 is above `max_replicas` 4"),
        ({"simulation__interval": "1ns"}, "decisions of the autoscaler; at most 20,000,000 are simulated"),
        ({"simulation__interval": "0s"}, "simulation.interval"),
        ({"simulation__target_load": "0%"}, "simulation.target_load"),
        ({"simulation__request_time_cv": 100}, "simulation.request_time_cv: found 100"),
        ({"simulation__balancer": "fair"}, "expected one of shared-queue, round-robin, least-loaded"),
        ({"replica__request_time": None}, "simulation: it needs `replica.request_time`; add that, or name a run"),
        ({"replica__cold_start": None}, "simulation: it needs `replica.cold_start`"),
    ],
)
def test_simulation_that_is_not_possible_is_refused(keys: dict[str, Any], message: str) -> None:
    assert message in result(changed(SIMULATED, **keys))


def test_simulation_without_hours_of_requests_is_refused(folder: Path) -> None:
    (folder / "day.csv").write_text("output_tokens_per_s\n500\n")
    tokens = changed(SIMULATED, replica__requests_per_s=None, replica__output_tokens_per_s=5)
    assert "simulation: it needs hours of requests" in result(tokens)


@pytest.mark.parametrize("option", ["--stage", "--arm"])
def test_option_of_a_run_without_one_is_refused(option: str) -> None:
    assert f"{option} selects a part of a stored run" in result(FLEET, option, "candidate")


def test_unknown_figures_are_named_with_their_keys() -> None:
    bare = {"demand": {"requests_per_s": 50}, "replica": {"requests_per_s": 7}}
    assert "No dollars: the price of a replica is unknown; set `replica.price`." in result(bare)
    assert "$/1M tok needs the output tokens of a request; set `replica.output_tokens`." in result(
        changed(bare, replica__price="$1/h")
    )
    assert "A replica cannot serve one: give the cache more" in result(changed(CACHED, replica__cache__memory="1GB"))


def test_traffic_without_load_or_commas_is_refused(folder: Path) -> None:
    (folder / "day.csv").write_text("requests_per_s\n0\n0\n")
    assert "demand.traffic: day.csv: requests_per_s is 0 in every hour" in result(SIMULATED)
    (folder / "day.csv").write_text("hour;requests_per_s\n0;3,5\n")
    assert "day.csv:1: its cells are separated by ';'; write commas, and a point in numbers: 3.5" in result(SIMULATED)


def test_file_that_is_not_one_or_too_large_is_refused(folder: Path) -> None:
    refused = {
        "/dev/zero": "it is no regular file", str(folder): "Is a directory", "broken.json": "broken.json:1:2: this is",
        "list.json": "expected a JSON object", "deep.json": "nested too deep", "long.json": "a number is too long",
        "huge.json": "larger than 16,777,216 b",
    }  # fmt: skip
    (folder / "broken.json").write_text("{")
    (folder / "list.json").write_text("[]")
    (folder / "deep.json").write_text("[" * 200_000)
    (folder / "long.json").write_text('{"num_hidden_layers": ' + "9" * 5000 + "}")
    with (folder / "huge.json").open("wb") as file:
        file.truncate(2**24 + 1)
    for name, message in refused.items():
        assert message in result(changed(CACHED, replica__cache__model=name)), name
    assert "it is no regular file" in result(changed(SIMULATED, demand__traffic="/dev/zero"))
    with pytest.raises(BenchgateError, match=r"none\.yaml: there is no such file"):
        answer("capacity", "--demand", "none.yaml")


def test_paths_are_relative_to_the_demand_file(folder: Path) -> None:
    (folder / "inner").mkdir()
    (folder / "inner" / "day.csv").write_text("requests_per_s\n0.5\n")
    file = write_demand(folder / "inner", SIMULATED)
    code, output, _ = answer("capacity", "--demand", file, "--format", "json")
    assert code == 0
    assert json.loads(output)["question"]["demand"]["mean_per_s"] == 0.5


def test_backlog_at_the_end_of_the_hours_is_paid_and_reported(folder: Path) -> None:
    (folder / "day.csv").write_text("requests_per_s\n0.1\n9\n")
    document = changed(SIMULATED, simulation__max_replicas=2)
    found = json.loads(result(document, "--format", "json"))["simulated"]
    assert found["left_waiting"] > 1000
    assert found["over_s"] > 100
    assert found["replica_hours"] * 3600 > 7200 + found["over_s"]
    assert math.isclose(found["usd"], 4 * found["replica_hours"])
    assert math.isclose(found["usd_per_month"], found["usd"] * 730 / 2)
    text = result(changed(document, simulation__request_time_cv=2.5))
    assert " of them in the queue: the fleet runs for" in text
    assert "requests of 2.00 s mean time (cv 2.50) on" in text


def test_share_that_waited_is_not_rounded_to_all_of_them(folder: Path) -> None:
    """About one of 10,000 requests waits: all slots are taken that rarely."""
    (folder / "day.csv").write_text("requests_per_s\n20\n20\n")
    document = changed(
        SIMULATED, replica__requests_per_s=20, replica__slots=63, simulation__max_replicas=1, simulation__max_wait="0ms"
    )
    found = json.loads(result(document, "--format", "json"))["simulated"]
    assert 0.9995 < found["within_ratio"] < 1
    (share,) = re.findall(r"(\S+) % waited at most 0 s for a slot", result(document))
    assert 99.95 <= float(share) < 100
