"""`benchgate capacity`: a fleet from numbers alone and from a stored run, and what it refuses to guess."""

from __future__ import annotations

import json
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

import pytest

from benchgate.model.run import RunStatus
from benchgate.store.repository import Store
from benchgate.suite.loader import parse_suite
from tests.e2e.command import STORE, here
from tests.fakes.demand import changed, write_demand
from tests.fakes.sized import SUITE, write_sized
from tests.shells.store_samples import DONE_AT, PLAN, make_run, write_run

pytestmark = pytest.mark.beside

LLAMA_70B = {"num_hidden_layers": 80, "num_attention_heads": 64, "num_key_value_heads": 8, "head_dim": 128}


def capacity(folder: Path, *options: str, **keys: Any) -> dict[str, Any]:
    result = run(folder, *options, "--format", "json", **keys)
    assert result.returncode == 0, result.stderr
    found: dict[str, Any] = json.loads(result.stdout)
    return found


def run(folder: Path, *options: str, **keys: Any) -> CompletedProcess[str]:
    """Run the command for 5,000 output tokens per second, with other values at dotted keys."""
    file = write_demand(folder, changed({"demand": {"output_tokens_per_s": 5000}}, **keys))
    return here(folder, "capacity", "--demand", file, *options)


@pytest.fixture
def stored(tmp_path: Path) -> Path:
    (tmp_path / STORE).parent.mkdir()
    with Store.open(str(tmp_path / STORE)) as store:
        write_sized(store, make_run())
    return tmp_path


def test_fleet_of_the_lesson_needs_no_run(tmp_path: Path) -> None:
    replica = {"output_tokens_per_s": 700, "price": "$1.2/h"}
    found = capacity(tmp_path, replica=replica)
    level = found["levels"][0]
    assert (level["sized"]["bare"], level["sized"]["replicas"], level["sized"]["with_spares"]) == (8, 9, 10)
    assert level["sized"]["usd_per_hour"] == pytest.approx(12)
    assert found["full_usd_per_million_tokens"] == pytest.approx(0.47619, abs=1e-5)
    text = run(tmp_path, replica={**replica, "overhead": "25%"}).stdout
    assert "One replica serves 700 output tokens/s, at $1.20/h and 25.0 % overhead." in text
    assert "15.00" in text  # ten of them, an hour


def test_stored_run_gives_the_rate_of_a_replica_within_its_slo(stored: Path) -> None:
    found = capacity(stored, "@latest", demand={"requests_per_s": 70}, safety_factor="1x", spares=0)
    row, replica, level = found["measured"], found["question"]["replica"], found["levels"][0]
    assert (row["stage"], replica["usd_per_hour"]) == ("c8", 0.2)
    assert (replica["per_s"], replica["lower_per_s"]) == (row["requests_per_s"], row["requests_lower"])
    assert (level["sized"]["bare"], level["sized"]["by_lower"]) == (7, 8)  # of 10/s each, 9.6 at least
    assert level["in_flight"] == pytest.approx(70 * row["e2e_mean_s"])
    found = capacity(stored, "@latest")
    assert found["question"]["replica"]["per_s"] == pytest.approx(10 * row["requests_per_s"])


def test_traffic_and_cold_start_give_the_replicas_to_start_ahead(tmp_path: Path) -> None:
    (tmp_path / "week.csv").write_text("hour,requests_per_s\n0,10\n1,46\n2,40\n", encoding="utf-8")
    found = capacity(tmp_path, demand={"traffic": "week.csv"}, replica={"requests_per_s": 1, "cold_start": "5min"})
    assert [level["name"] for level in found["levels"]] == ["mean", "p95", "peak"]
    assert found["ahead"] == 3  # 36/s more in an hour, for five minutes


def test_traffic_is_served_by_a_fleet_that_scales_in_simulation(stored: Path) -> None:
    (stored / "day.csv").write_text("requests_per_s\n0.5\n4\n0.5\n", encoding="utf-8")
    demand, simulation = {"traffic": "day.csv"}, {"max_replicas": 4}
    replica = {"requests_per_s": 2, "request_time": "1s", "slots": 2, "price": "$3/h", "cold_start": "60s"}
    least_loaded = {**simulation, "balancer": "least-loaded"}
    found = capacity(stored, demand=demand, replica=replica, simulation=least_loaded)["simulated"]
    assert found["worst_hour"] == 2
    assert 3 < found["replica_hours"] < 12
    assert found["usd"] == pytest.approx(3 * found["replica_hours"])
    seeded = capacity(stored, demand=demand, replica=replica, simulation={**simulation, "seed": 1})["simulated"]
    assert seeded["requests"] != found["requests"]
    of_run = capacity(stored, "@latest", demand=demand, replica={"cold_start": "60s"}, simulation=simulation)
    assert of_run["simulated"]["within_ratio"] > 0.99  # half of a slot is taken on average
    text = run(stored, demand=demand, replica=replica, simulation=simulation).stdout
    assert "Simulated: " in text
    assert "The worst hour is row 2 below the heading, 4.00 requests/s" in text


def test_cache_holds_what_the_models_configuration_says(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({**LLAMA_70B, "torch_dtype": "bfloat16"}), encoding="utf-8")
    cache = {"model": "config.json", "memory": "80GiB", "request_tokens": 8192}

    def replica(**more: Any) -> dict[str, Any]:
        return {"output_tokens_per_s": 700, "cache": {**cache, **more}}

    assert capacity(tmp_path, replica=replica())["cache"] == {
        "bytes_per_token": 327680, "bytes_per_request": 2684354560, "requests_that_fit": 32, "accelerators": 1,
        "times_kept": 1,
    }  # fmt: skip
    assert capacity(tmp_path, replica=replica(dtype="fp8"))["cache"]["requests_that_fit"] == 64
    text = run(tmp_path, replica=replica(tensor_parallel=16)).stdout
    assert "a request of 8,192 tokens 5.37 GB: 16 of them fit into 85.9 GB." in text
    assert "That is of 16 accelerators together, 336 MB of such a request on each; everything is kept 2 times." in text
    (tmp_path / "config.json").write_text(json.dumps(LLAMA_70B), encoding="utf-8")
    result = run(tmp_path, replica=replica())
    assert (result.returncode, result.stdout) == (2, "")
    assert "replica.cache: the configuration does not state the type of its numbers" in result.stderr


@pytest.mark.parametrize(
    ("options", "keys", "message"),
    [
        ((), {"demand": {}}, "demand: needs exactly one of `requests_per_s`, `output_tokens_per_s` and `traffic`"),
        ((), {}, "the rate of a replica is missing; add `output_tokens_per_s`, or name a stored run"),
        (("@latest",), {}, "there is no benchgate store"),
    ],
)
def test_missing_figure_is_an_error(
    tmp_path: Path, options: tuple[str, ...], keys: dict[str, Any], message: str
) -> None:
    result = run(tmp_path, *options, **keys)
    assert (result.returncode, result.stdout) == (2, "")
    assert message in result.stderr


def test_run_that_is_not_usable_sizes_nothing(stored: Path) -> None:
    suite = parse_suite(SUITE, "suite.yaml").to_stored()
    with Store.open(str(stored / STORE)) as store:
        cut = make_run(suite=suite)
        store.begin_run(cut, PLAN).finish(RunStatus.PARTIAL, DONE_AT)
        bad = [write_run(store, suite=suite).id for _ in range(3)]
        guard = {"id": "client-keeps-up", "tripped": True, "reason": "the client lagged", "spoils": ["speed"]}
        store.save_verdict(bad[1], {"outcome": "INVALID", "guards": []})
        store.save_verdict(bad[2], {"outcome": "BLOCK", "guards": [guard]})
        judged = make_run()
        write_sized(store, judged, outcome="BLOCK", guards=[guard | {"spoils": ["quality"]}])
    assert f"run {cut.id} was cut short" in run(stored, cut.id).stderr
    expected = ("has no verdict yet", "its evidence is not usable", "its load says nothing: the client lagged")
    for run_id, said in zip(bad, expected, strict=True):
        assert said in run(stored, run_id).stderr
    assert "Its verdict is BLOCK." in run(stored, judged.id).stdout
    with Store.open(str(stored / STORE)) as store:
        unfinished = make_run(suite=suite)
        writer = store.begin_run(unfinished, PLAN)
        assert "is still running" in run(stored, unfinished.id).stderr
        writer.finish(RunStatus.PARTIAL, DONE_AT)


def test_run_of_which_no_level_holds_sizes_nothing(stored: Path) -> None:
    assert "expected baseline or candidate" in run(stored, "@latest", "--arm", "new").stderr
    assert "leave out the key or the run" in run(stored, "@latest", replica={"output_tokens_per_s": 1}).stderr
    strict = SUITE.replace("ttft: 500ms", "ttft: 10ms")
    with Store.open(str(stored / STORE)) as store:
        write_sized(store, make_run(), suite=strict)
    result = run(stored, "@latest")
    assert (result.returncode, result.stdout) == (2, "")
    assert "no stage is shown to hold its SLO on the candidate: nearest is" in result.stderr
