"""`capacity RUN`: the run gives what the demand file leaves out, from the command line over a real store."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from benchgate.errors import EvidenceError, SuiteError, UsageError
from benchgate.model.deployment import Arm
from benchgate.store.repository import Store
from benchgate.store.retention import Policy
from tests.core.test_sizing_run import GPT2
from tests.fakes.demand import changed, write_demand
from tests.fakes.quick_command import answer
from tests.fakes.sized import DONE_AT, KV_USAGE, SUITE, write_sized
from tests.shells.store_samples import make_deployment, make_run

TERMS: dict[str, object] = {"list_usd_per_hour": 0.1, "overhead_ratio": 0.25, "utilisation_ratio": 0.5}
TOKENS: dict[str, Any] = {"demand": {"output_tokens_per_s": 5000}}
TRAFFIC: dict[str, Any] = {"demand": {"traffic": "day.csv"}}


def write(folder: Path, **said: Any) -> Path:
    """A run whose candidate started in 70, 50 and 60 s, with overhead in its terms, and a model's configuration."""
    arms = {
        Arm.BASELINE: make_deployment("f16"),
        Arm.CANDIDATE: replace(make_deployment("q8_0"), price_terms=TERMS),
    }
    with Store.open(str(folder / "b.db")) as store:
        write_sized(store, make_run(arms=arms, suite_name="sized"), **said)
    (folder / "config.json").write_text(json.dumps(GPT2))
    (folder / "day.csv").write_text("requests_per_s\n1\n37\n")  # 36/s more in an hour: 0.01/s each second
    return folder


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(tmp_path_factory.mktemp("capacity"))


def capacity(
    folder: Path, *options: str, form: str = "json", run: str = "@latest", of: dict[str, Any] | None = None, **keys: Any
) -> str:
    """Return the output for a demand, hours of requests by default, with other values at dotted keys."""
    file = write_demand(folder, changed(of or TRAFFIC, **keys))
    asked = ["capacity", run, "--demand", file, "--store", str(folder / "b.db"), "--format", form, *options]
    code, text, complained = answer(*asked)
    assert code == 0, complained
    return text


def document(folder: Path, *options: str, **keys: Any) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(capacity(folder, *options, **keys))
    return found


def altered(folder: Path, *statements: str) -> None:
    with closing(sqlite3.connect(folder / "b.db")) as database:
        for statement in statements:
            database.execute(statement)
        database.commit()


def test_run_gives_what_the_file_leaves_out(folder: Path) -> None:
    found = document(folder)
    assert found["starts"] == {"count": 3, "median_s": 60.0, "worst_s": 70.0}
    assert (found["question"]["cold_start_s"], found["ahead"]) == (70.0, 1)
    assert found["question"]["overhead_ratio"] == 0.25
    assert found["question"]["replica"]["usd_per_hour"] == pytest.approx(0.25)  # two of $0.10, and a quarter
    assert found["from_run"] == [
        "cold_start_s", "overhead_ratio", "residence_s", "slots", "tokens_per_request", "usd_per_hour",
    ]  # fmt: skip
    assert found["overridden"] == {}
    assert document(folder, simulation__max_replicas=6)["simulated"]["scaling"]["cold_start_s"] == 70.0


def test_stated_figure_overrides_that_of_the_run_and_both_are_reported(folder: Path) -> None:
    replica = {"cold_start": "5min", "overhead": "0%", "price": "$4/h", "output_tokens": 10}
    found = document(folder, replica=replica)
    assert (found["question"]["cold_start_s"], found["question"]["overhead_ratio"]) == (300.0, 0.0)
    assert found["question"]["replica"]["usd_per_hour"] == 4
    assert found["from_run"] == ["residence_s", "slots"]
    assert found["starts"]["worst_s"] == 70.0
    assert found["overridden"] == {
        "cold_start_s": {"stated": 300.0, "measured": 70.0},
        "overhead_ratio": {"stated": 0.0, "measured": 0.25},
        "usd_per_hour": {"stated": 4.0, "measured": 0.2},
    }  # ten tokens are what the run has too
    assert "`price` $4.00/h (the run: $0.20/h)" in capacity(folder, replica=replica, form="text")


def test_answer_names_the_run_and_the_level_and_what_was_left_out(folder: Path) -> None:
    found = document(folder, of=TOKENS)
    run = found["run"]
    assert (run["suite"], run["deployment"], run["arm"], run["outcome"]) == ("sized", "q8_0", "candidate", "PASS")
    assert run["day"] == "2026-11-20"
    assert (found["measured"]["stage"], found["measured"]["is_open"]) == ("c8", False)
    assert [one["stage"] for one in found["left_out"]] == ["c4", "c16"]
    assert document(folder, "--stage", "c4", of=TOKENS)["measured"]["stage"] == "c4"
    text = capacity(folder, of=TOKENS, form="text")
    assert text.startswith(f"Run {run['id']} of suite sized, 2026-11-20: candidate q8_0. Its verdict is PASS.\n")
    assert "Not by c16: does not hold its SLO (0 of" in text


def test_answers_longer_than_those_measured_are_refused_where_the_demand_is_in_requests(folder: Path) -> None:
    """As many requests of ten times the length would take a fleet ten times as large, and cost as much a token."""
    with pytest.raises(SuiteError) as caught:
        capacity(folder, replica__output_tokens=100)
    assert "replica.output_tokens: 100 output tokens are more than the 10 of the run's requests" in str(caught.value)
    assert "state the demand as `output_tokens_per_s`, or measure such requests" in str(caught.value)
    assert document(folder, replica__output_tokens=5)["question"]["tokens_per_request"] == 5
    assert document(folder, replica__output_tokens=100, of=TOKENS)["question"]["tokens_per_request"] == 100


@pytest.mark.parametrize(
    ("said", "problem"),
    [
        (("--stage", "c61"), "--stage is 'c61', which its suite does not have; did you mean c16?"),
        (("--stage", "c16"), "nothing is sized by stage c16: it does not hold its SLO"),
    ],
)
def test_stage_that_cannot_be_counted_on_is_refused(folder: Path, said: tuple[str, ...], problem: str) -> None:
    with pytest.raises(UsageError) as caught:
        capacity(folder, *said, of=TOKENS)
    assert problem in str(caught.value)


def test_run_that_is_not_usable_is_refused_with_what_to_do(tmp_path: Path) -> None:
    folder = write(tmp_path, outcome="INVALID")
    with pytest.raises(UsageError, match=r"so nothing is sized by it; `benchgate report \S+` says why: fix that and"):
        capacity(folder, of=TOKENS)


def test_figures_are_made_of_the_records_and_not_of_the_rows_that_the_store_keeps(tmp_path: Path) -> None:
    folder = write(tmp_path)
    before = document(folder, of=TOKENS)
    assert before["figures"] == {"from": "records", "stored_unlike": 0}
    altered(folder, "UPDATE metric SET value = 10 * value, upper = 10 * upper WHERE name = 'output_throughput'")
    after = document(folder, of=TOKENS)
    assert after["figures"] == {"from": "records", "stored_unlike": 6}
    assert (after["levels"], after["measured"]) == (before["levels"], before["measured"])
    text = capacity(folder, of=TOKENS, form="text")
    assert "6 of its stored figures differ from its raw records, and were not used" in text


def test_run_that_is_not_pass_and_bounds_that_a_suite_widened_are_told(tmp_path: Path) -> None:
    widened = SUITE.replace("gate: {", "gate: {client: {cpu: 95%}, ")
    folder = write(tmp_path, outcome="BLOCK", suite=widened)
    text = capacity(folder, of=TOKENS, form="text")
    assert "Its verdict is BLOCK.\nThat is not PASS: read why" in text
    assert "The policy widens the load generator's bounds, so latencies may include its delays: cpu 95 %" in text
    assert len(document(folder, of=TOKENS)["care"]) == 1


def test_level_with_arrivals_by_a_rate_is_taken_before_a_closed_loop(tmp_path: Path) -> None:
    folder = write(tmp_path, suite=SUITE.replace("concurrency: 4", "rate: 5/s"))
    assert document(folder, of=TOKENS)["measured"]["stage"] == "c4"
    assert document(folder, "--stage", "c8", of=TOKENS)["measured"]["is_open"] is False


def test_price_of_fewer_accelerators_than_the_server_tells_of_or_of_others_is_told_beside_the_cost(
    tmp_path: Path,
) -> None:
    eight = replace(make_deployment("q8_0"), facts={"accelerator_names": ["NVIDIA H200"] * 8})
    other = replace(make_deployment("f16"), price_entry={"accelerator": "A100"}, facts={"accelerator_names": ["H100"]})
    arms = {Arm.BASELINE: other, Arm.CANDIDATE: eight}
    with Store.open(str(tmp_path / "b.db")) as store:
        write_sized(store, make_run(arms=arms, suite_name="sized"))
    said = "he candidate is paid for 2 accelerators, and its server reports 8"
    assert document(tmp_path, of=TOKENS)["unpaid"] == f"t{said}"
    lines = capacity(tmp_path, of=TOKENS, form="text").splitlines()
    at = next(number for number, line in enumerate(lines) if line.startswith(f"T{said}: the dollars may be wrong"))
    assert lines[at - 1].startswith("Fully used, 1M output tokens cost")
    baseline = document(tmp_path, "--arm", "baseline", of=TOKENS)
    assert baseline["unpaid"] == "the baseline has the price of accelerator A100, and its server reports H100"
    assert document(tmp_path, replica__price="$4/h", of=TOKENS)["unpaid"] is None  # of a whole replica, as stated


def test_deployment_that_declares_several_replicas_is_said_to_be_the_unit_with_and_without_records(
    tmp_path: Path,
) -> None:
    several = SUITE.replace("http://b.example,", "http://b.example, ready: {replicas: 8, command: count},")
    folder = write(write(tmp_path, suite=several), suite=several)
    assert document(folder, of=TOKENS)["deployment_replicas"] == 8
    assert "the whole deployment of the run, with 8 replicas" in capacity(folder, of=TOKENS, form="text")
    assert document(folder, "--arm", "baseline", of=TOKENS)["deployment_replicas"] is None
    with Store.open(str(folder / "b.db")) as store:
        gone = store.remove_raw(store.expendable(Policy(), "2028-01-01T00:00:00Z"), now=DONE_AT, reason="store gc")
    (first,) = gone.runs
    found = document(folder, of=TOKENS, run=first.run_id)
    assert (found["figures"]["from"], found["deployment_replicas"]) == ("stored figures", 8)


def test_price_of_what_the_server_tells_of_is_not_objected_to(folder: Path) -> None:
    assert document(folder, of=TOKENS)["unpaid"] is None
    assert "the dollars may" not in capacity(folder, of=TOKENS, form="text")


def cache(memory: str, **more: Any) -> dict[str, Any]:
    return {"model": "config.json", "request_tokens": 1024, "memory": memory, **more}


def test_cache_is_held_against_the_run(folder: Path) -> None:
    """18 tokens at most are two pages of 16, of 36,864 bytes a token."""
    found = document(folder, replica__cache=cache("10MB"))["cache_check"]
    assert (found["stage"], found["measured_ratio"], found["request_tokens"]) == ("c8", KV_USAGE, pytest.approx(13.0))
    assert found["predicted_ratio"] == pytest.approx(found["in_flight"] * 16 * 36864 / 10e6)
    assert document(folder, replica__cache=cache("1GiB"))["cache_check"]["differs"]
    text = capacity(folder, replica__cache=cache("1GiB", tensor_parallel=4), form="text")
    assert "It may be larger pages" in text
    assert "has 2 accelerators, and the cache is counted for 4 that share every layer (`cache.tensor_parallel`)" in text


def test_arm_that_was_not_looked_at_gives_nothing(folder: Path) -> None:
    found = document(folder, "--arm", "baseline", replica__cache=cache("1GiB"))
    assert (found["starts"], found["ahead"], found["question"]["overhead_ratio"]) == (None, None, None)
    assert "KV cache usage in every block of c" in found["cache_not_checked"]
    assert (found["run"]["deployment"], found["run"]["arm"]) == ("f16", "baseline")


def test_slots_that_contradict_rate_and_request_time_are_refused(folder: Path) -> None:
    with pytest.raises(SuiteError) as caught:
        capacity(folder, simulation__max_replicas=3, replica__request_time="10s")
    assert "10.0461 requests/s of 10 s each has 100.5" in str(caught.value)
    assert "inside at once (Little's law), and 1 slots carry no more than 0.1 requests/s" in str(caught.value)
    hopeful = capacity(folder, simulation__max_replicas=3, replica__slots=4, form="text")
    assert "A simulated replica serves up to 28.0 requests/s (slots over request time)" in hopeful


def test_run_whose_records_are_gone_or_damaged_is_not_counted_on_for_them(tmp_path: Path) -> None:
    widened = SUITE.replace("gate: {", "gate: {client: {cpu: 95%}, ")
    folder = write(write(tmp_path, suite=widened))
    with Store.open(str(folder / "b.db")) as store:
        gone = store.remove_raw(store.expendable(Policy(), "2028-01-01T00:00:00Z"), now=DONE_AT, reason="store gc")
    (first,) = gone.runs
    found = document(folder, replica__cache=cache("1GiB"), run=first.run_id)
    assert (found["measured"]["stage"], found["starts"], found["signals"]) == ("c8", None, [])
    assert found["cache_not_checked"] == "the run's raw records were removed"
    assert (found["figures"]["from"], len(found["care"])) == ("stored figures", 1)
    assert (found["question"]["residence_s"], found["measured"]["e2e_mean_s"]) == (None, None)
    assert "these are the stored figures, unverified. The request time and whether requests piled up" in capacity(
        folder, form="text", run=first.run_id
    )
    altered(folder, "DROP TRIGGER observation_no_update", "UPDATE observation SET meta = replace(meta, '70.0', '7.0')")
    with pytest.raises(EvidenceError, match="it is not what it was when it finished"):
        document(folder)
