"""The capacity search against the practice engine: in virtual time over seeds, and once over real sockets."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from benchgate.errors import TargetError, UsageError
from benchgate.load.results import StageResult
from benchgate.load.standalone.run import send_load
from benchgate.load.standalone.search import SearchOptions, run_search
from benchgate.model.metric import Slo
from benchgate.model.request_metrics import meets_slo
from benchgate.sim.process import serve_sim
from benchgate.sim.settings import sim_settings
from benchgate.stats.capacity_search import SearchSettings
from benchgate.suite.schema import ClientBounds
from benchmarks.capacity_search import SERVERS, ask, grid_levels, holds, search
from tests.fakes.scripted_server import DONE, LAST_CHUNK, ScriptedServer, finish, role_event, stream_head, token, usage

LENIENT = ClientBounds.model_construct(
    send_lag_p99_s=1.0,
    send_lag_max_s=5.0,
    read_delay_p99_s=1.0,
    read_delay_max_s=5.0,
    cpu_share=1.0,
    achieved_ratio=0.5,
)
SLOTS = sim_settings(prefill_s=0.0001, decode_s=0.01, decode_per_sequence_s=0.0001, batch=2)
FAST = sim_settings(prefill_s=0.0001, decode_s=0.001, batch=2)


def options(url: str, **changed: Any) -> SearchOptions:
    load = {"url": url, "model": "sim", "input_tokens": 4, "output_tokens": 4, "slo": "ttft=25ms", "workers": "1"}
    asked: dict[str, Any] = {
        "over": "concurrency",
        "lowest": "1",
        "highest": "8",
        "target": "50%",
        "resolution": "10%",
        "probe": 160,
        "budget": None,
        "least": None,
        "load": {**load, **changed.pop("load", {})},
    }
    return replace(SearchOptions.parse(**{**asked, **changed}), bounds=LENIENT)


@pytest.mark.slow
@pytest.mark.parametrize("server", SERVERS, ids=lambda server: str(server.name))
def test_bracket_holds_the_true_capacity_for_less_than_a_grids_requests(server: Any) -> None:
    """Three seeds here; a hundred of longer probes are in benchmarks/capacity_search.py."""
    asked = SearchSettings("rate", 4.0, 64.0, 0.95, 0.2, 800)
    found = [search(server, asked, seed) for seed in range(3)]
    assert all(holds(result, server.true_rps) for result in found)
    assert all(result.upper is not None for result in found)
    grid = grid_levels(asked) * asked.probe_requests
    assert sum(result.sent for result in found) / len(found) <= 0.6 * grid


@pytest.mark.slow
@pytest.mark.parametrize(("target_ratio", "probe"), [(0.5, 160), (0.8, 400), (0.95, 1000)])
@pytest.mark.parametrize("times", [1.2, 2.0])
def test_more_than_a_server_can_do_never_passes_however_loose_the_slo(
    times: float, target_ratio: float, probe: int
) -> None:
    """Every look begins on an empty server, and ends long before a minute's wait is broken."""
    patient = replace(SERVERS[1], slo=Slo(ttft_s=60.0))
    flooded = ask(patient, 1000.0, 2000, (0, 0))
    can_do_rps = len(flooded) / (int(flooded.end_ns.max()) / 1e9)
    lowest = times * can_do_rps
    asked = SearchSettings("rate", lowest, 2 * lowest, target_ratio, 0.2, probe)
    found = [search(patient, asked, seed) for seed in range(4)]
    assert [result.lower for result in found] == [None] * 4
    assert meets_slo(ask(patient, lowest, probe // 2, (1, 1)), patient.slo).all()


@pytest.mark.alone
@pytest.mark.slow
def test_concurrency_of_a_server_is_its_number_of_slots() -> None:
    with serve_sim(SLOTS) as server:
        document: Any = run_search(options(server.url, least="2"))
    assert document["fault"] is None
    assert (document["stop"], document["capacity"]["lower"], document["capacity"]["upper"]) == ("converged", 2, 3)
    assert document["verdict"]["outcome"] == "PASS"
    assert {probe["level"]: probe["standing"] for probe in document["probes"]} == {
        1: "pass", 2: "pass", 3: "fail", 4: "fail",
    }  # fmt: skip


def test_requests_needed_for_a_level_include_those_sent() -> None:
    told: list[str] = []
    with serve_sim(FAST) as server:
        asked = options(server.url, highest="2", target="90%", probe=20, load={"slo": "ttft=5s"})
        document: Any = run_search(asked, told.append)
    unresolved = [probe for probe in document["probes"] if probe["standing"] == "unresolved"]
    assert [probe["level"] for probe in unresolved] == [1, 2]  # 20 good requests of 20 do not show 90 % of this bracket
    assert all(probe["requests_needed"] > probe["scheduled"] > 0 for probe in unresolved)
    assert document["requests_needed"] == min(probe["requests_needed"] for probe in unresolved)
    assert told[0] == "1 in flight, look 1: 4 requests"
    assert next(line for line in told if "neither" in line).startswith("1 in flight: shown neither to meet nor")


@pytest.mark.parametrize("warmup", ["0", "2"])
def test_stated_service_time_is_that_of_the_first_ramp(monkeypatch: pytest.MonkeyPatch, warmup: str) -> None:
    ramped_by = list[float | None]()

    def send(fleet: Any, load: Any, target: Any, service_s: float | None) -> StageResult:
        ramped_by.append(service_s)
        return send_load(fleet, load, target, service_s)

    monkeypatch.setattr("benchgate.load.standalone.search.send_load", send)
    with serve_sim(FAST) as server:
        load = {"slo": "ttft=5s", "warmup": warmup, "service_time": "70ms"}
        run_search(options(server.url, highest="2", probe=20, load=load))
    assert ramped_by[0] == 0.07


def test_server_that_is_not_there_ends_the_search_and_has_no_capacity(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(TargetError, match="cannot be reached: Connection refused"):
        run_search(options("http://127.0.0.1:9", load={"engine": "vllm"}, least="2"))
    monkeypatch.setattr("benchgate.load.standalone.run.require_listener", lambda options: None)  # it ends later
    document: Any = run_search(options("http://127.0.0.1:9", load={"engine": "vllm"}, least="2"))
    assert "did not accept connections" in document["fault"]
    assert document["capacity"] == {"lower": None, "upper": None, "estimate": None}
    assert document["verdict"]["outcome"] == "INVALID"


def test_client_that_is_the_bottleneck_is_no_capacity_of_the_server() -> None:
    late = LENIENT.model_copy(update={"send_lag_max_s": 1e-9, "send_lag_p99_s": 1e-9})
    with serve_sim(FAST) as server:
        document: Any = run_search(replace(options(server.url), bounds=late))
    assert "load generator was the bottleneck" in document["fault"]
    assert "give the load generator a machine" in document["fault"]
    assert len(document["looks_left_out"]) == 3
    assert (document["stop"], document["probes"]) == (None, [])
    assert document["requests_sent"] >= 3 * 10  # each look, and its ramp


def searched_with(server: ScriptedServer, **load: Any) -> Any:
    asked = options(server.url, highest="2", probe=20, load={"engine": "openai", "slo": "tpot=5s", **load})
    return run_search(asked)


def test_a_recorded_prompt_has_a_limit_of_its_own_in_a_search_too(tmp_path: Path) -> None:
    """The rows ask for 300 tokens, which this server sends in 100 pieces; `--output-tokens` is 128 by default."""
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text('{"prompt": "What is a fjord?", "output_tokens": 300}\n')
    merged = stream_head() + role_event() + token("a b c ") * 100
    whole = merged + finish("length") + usage(5, 300) + DONE + LAST_CHUNK
    with ScriptedServer(lambda received: [whole]) as server:
        document = searched_with(server, prompts=str(prompts), input_tokens=None, output_tokens=128)
    assert document["fault"] is None
    assert document["requests_sent"] > 0


def test_a_server_that_counts_too_many_tokens_is_no_matter_of_the_load_generator() -> None:
    whole = stream_head() + role_event() + token("a") * 2 + finish("length") + usage(5, 80) + DONE + LAST_CHUNK
    with ScriptedServer(lambda received: [whole]) as server:
        document = searched_with(server)
    assert "no TPOT can be judged by it; see what this server's usage counts" in document["fault"]
    assert "load generator" not in document["fault"]


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ({"load": {"requests": 100}}, "--requests means nothing beside --search"),
        ({"load": {"concurrency": 4}}, "--concurrency means nothing beside --search"),
        ({"load": {"arrival": "constant"}}, "--arrival means nothing in a closed loop"),
        (
            {"over": "rate", "lowest": "1/s", "highest": "8/s", "load": {"think_time": "1s"}},
            "search over the concurrency",
        ),
        ({"load": {"slo": None}}, "add --slo"),
        ({"lowest": "9"}, "--from 9 is not below --to 8"),
        ({"lowest": "8"}, "--from 8 is not below --to 8"),
        ({"least": "9"}, "--min 9 is above --to 8, and nothing above that is searched; raise --to"),
        ({"probe": 19}, "--probe is 19; it must be at least 20"),
        ({"probe": 1_000_001}, "--probe is 1000001; it must be at most 1,000,000"),
        ({"budget": 5}, "--budget is 5; it must be at least 20"),
        ({"budget": 10**15}, "--budget is 1000000000000000; it must be at most 1,000,000,000 requests"),
        ({"target": "100%"}, "--target: 100% is missed by one bad request"),
        ({"target": "0%"}, "--target: "),
        ({"resolution": "0.1"}, '--resolution: "0.1" is not a percentage'),
        ({"resolution": "200%"}, "--resolution: 200% is out of range"),
        ({"lowest": "1/s"}, "not a number of requests in flight"),
        ({"target": "0.95"}, '--target: "0.95" is not a percentage'),
        ({"over": "tokens"}, 'write "rate" or "concurrency"'),
    ],
    ids=lambda value: str(value) if isinstance(value, str) else "",
)
def test_options_that_do_not_fit_a_search_are_refused(changed: dict[str, Any], says: str) -> None:
    with pytest.raises(UsageError, match=says):
        options("http://127.0.0.1:9", **changed)
