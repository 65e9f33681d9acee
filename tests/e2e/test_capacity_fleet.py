"""`benchgate capacity`: a fleet from numbers alone and from a stored run, and what it refuses to guess."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from benchgate.model.run import RunStatus
from benchgate.store.repository import Store
from benchgate.suite.loader import parse_suite
from tests.e2e.command import STORE, here
from tests.fakes.sized import SUITE, write_sized
from tests.shells.store_samples import DONE_AT, PLAN, make_run, write_run

pytestmark = pytest.mark.beside

LLAMA_70B = {"num_hidden_layers": 80, "num_attention_heads": 64, "num_key_value_heads": 8, "head_dim": 128}
ASKED = "capacity", "--target-tokens-per-s", "5000"


def capacity(folder: Path, *arguments: str) -> dict[str, Any]:
    result = here(folder, *arguments, "--format", "json")
    assert result.returncode == 0, result.stderr
    found: dict[str, Any] = json.loads(result.stdout)
    return found


@pytest.fixture
def stored(tmp_path: Path) -> Path:
    (tmp_path / STORE).parent.mkdir()
    with Store.open(str(tmp_path / STORE)) as store:
        write_sized(store, make_run())
    return tmp_path


def test_fleet_of_the_lesson_needs_no_run(tmp_path: Path) -> None:
    found = capacity(tmp_path, *ASKED, "--replica-tokens-per-s", "700", "--price-per-hour", "1.2")
    level = found["levels"][0]
    assert (level["sized"]["bare"], level["sized"]["replicas"], level["sized"]["with_spares"]) == (8, 9, 10)
    assert level["sized"]["usd_per_hour"] == pytest.approx(12)
    assert found["full_usd_per_million_tokens"] == pytest.approx(0.47619, abs=1e-5)
    said = here(
        tmp_path, *ASKED, "--replica-tokens-per-s", "700", "--price-per-hour", "1.2", "--overhead", "25%"
    ).stdout
    assert "One replica carries 700 output tokens/s, at $1.20/h and 25.0 % overhead." in said
    assert "15.00" in said  # ten of them, an hour


def test_stored_run_says_what_a_replica_carries_where_its_slo_held(stored: Path) -> None:
    found = capacity(
        stored, "capacity", "@latest", "--target-requests-per-s", "70", "--safety-factor", "1", "--spares", "0"
    )
    row, replica, level = found["measured"], found["question"]["replica"], found["levels"][0]
    assert (row["stage"], replica["usd_per_hour"]) == ("c8", 0.2)
    assert (replica["per_s"], replica["lower_per_s"]) == (row["requests_per_s"], row["requests_lower"])
    assert (level["sized"]["bare"], level["sized"]["by_lower"]) == (7, 8)  # of 10/s each, 9.6 at least
    assert level["in_flight"] == pytest.approx(70 * row["e2e_mean_s"])
    found = capacity(stored, "capacity", "@latest", *ASKED[1:])
    assert found["question"]["replica"]["per_s"] == pytest.approx(10 * row["requests_per_s"])


def test_traffic_and_cold_start_say_how_far_to_be_ahead(tmp_path: Path) -> None:
    (tmp_path / "week.csv").write_text("hour,requests_per_s\n0,10\n1,46\n2,40\n", encoding="utf-8")
    found = capacity(
        tmp_path, "capacity", "--traffic", "week.csv", "--replica-requests-per-s", "1", "--cold-start", "5min"
    )
    assert [level["name"] for level in found["levels"]] == ["mean", "p95", "peak"]
    assert found["ahead"] == 3  # 36/s more in an hour, for five minutes


def test_traffic_is_replayed_against_a_fleet_that_grows(stored: Path) -> None:
    (stored / "day.csv").write_text("requests_per_s\n0.5\n4\n0.5\n", encoding="utf-8")
    asked = ("capacity", "--traffic", "day.csv", "--max-replicas", "4", "--cold-start", "60s")
    alone = (*asked, "--replica-requests-per-s", "2", "--request-time", "1s", "--places", "2", "--price-per-hour", "3")
    found = capacity(stored, *alone, "--balance", "least")["replayed"]
    assert found["worst_hour"] == 2
    assert 3 < found["replica_hours"] < 12
    assert found["usd"] == pytest.approx(3 * found["replica_hours"])
    assert capacity(stored, *alone, "--seed", "1")["replayed"]["requests"] != found["requests"]
    of_run = capacity(stored, *asked, "@latest")["replayed"]
    assert of_run["within_ratio"] > 0.99  # of a place half is taken on the mean
    said = here(stored, *alone).stdout
    assert "Replayed: " in said
    assert "The worst is row 2 below the heading, 4.00 requests/s" in said
    for wrong, expected in (
        (alone[:-2], None), ((*alone, "--balance", "fair"), "--balance is 'fair'; expected one-line"),
        ((*alone, "--min-replicas", "9"), "cannot be"), ((*alone, "--look", "often"), "--look: "),
        (alone[:7] + alone[9:], "a replica carry"), (alone[:9] + alone[11:], "--max-replicas needs --request-time"),
    ):  # fmt: skip
        result = here(stored, *wrong)
        assert result.returncode == (0 if expected is None else 2), result.stderr
        assert (expected or "") in result.stderr
    (stored / "day.csv").write_text("output_tokens_per_s\n500\n", encoding="utf-8")
    assert "give --traffic with a column requests_per_s" in here(stored, *asked, "@latest").stderr


def test_cache_holds_what_the_models_configuration_says(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({**LLAMA_70B, "torch_dtype": "bfloat16"}), encoding="utf-8")
    asked = (*ASKED, "--replica-tokens-per-s", "700", "--model-config", "config.json", "--cache-memory", "80GiB")
    found = capacity(tmp_path, *asked, "--request-tokens", "8192")
    assert found["cache"] == {
        "bytes_per_token": 327680, "bytes_per_request": 2684354560, "requests_that_fit": 32, "accelerators": 1,
        "times_kept": 1,
    }  # fmt: skip
    found = capacity(tmp_path, *asked, "--request-tokens", "8192", "--cache-dtype", "fp8")
    assert found["cache"]["requests_that_fit"] == 64
    text = here(tmp_path, *asked, "--request-tokens", "8192", "--tensor-parallel", "16").stdout
    assert "a request of 8,192 tokens 5.37 GB: 16 of them fit into 85.9 GB." in text
    assert (
        "That is of 16 accelerators together, 336 MB of such a request on each; they keep everything 2 times." in text
    )


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("capacity",), "nothing says it; give one of --target-tokens-per-s"),
        ((*ASKED, "--target-requests-per-s", "3"), "both say it"),
        (ASKED, "what does a replica carry?"),
        ((*ASKED, "--replica-requests-per-s", "3"), "the demand is in output tokens"),
        ((*ASKED, "--replica-tokens-per-s", "0"), "expected a rate above 0"),
        ((*ASKED, "--replica-tokens-per-s", "700", "--spares", "-1"), "--spares is -1; expected 0 or more"),
        ((*ASKED, "--peak", "10", "--replica-tokens-per-s", "700"), "above --peak"),
        ((*ASKED, "--replica-tokens-per-s", "700", "--request-time", "2"), "--request-time: "),
        ((*ASKED, "--replica-tokens-per-s", "700", "--cache-memory", "1GiB"), "needs --model-config and --request-"),
        ((*ASKED, "--replica-tokens-per-s", "700", "--cache-dtype", "fp8"), "also needs --model-config"),
        (("capacity", "--traffic", "none.csv", "--replica-tokens-per-s", "700"), "none.csv: there is no such file"),
        (("capacity", "--traffic", "none.csv", "--p95", "7"), "leave them out"),
        ((*ASKED, "@latest"), "there is no benchgate store"),
    ],
)  # fmt: skip
def test_what_is_not_said_is_asked_for(tmp_path: Path, arguments: tuple[str, ...], said: str) -> None:
    result = here(tmp_path, *arguments)
    assert (result.returncode, result.stdout) == (2, "")
    assert said in result.stderr


@pytest.mark.parametrize(
    ("config", "more", "said"),
    [
        ("{", (), "config.json:1:2: this is no JSON"),
        ("[]", (), "config.json: expected an object"),
        (json.dumps(LLAMA_70B), (), "config.json: the configuration does not state the type of its numbers"),
        (json.dumps(LLAMA_70B), ("--cache-dtype", "bf17"), "did you mean bf16?"),
        (json.dumps({**LLAMA_70B, "dtype": "bf16"}), ("--request-tokens", "0"), "1 or more"),
        (json.dumps({**LLAMA_70B, "dtype": "bf16"}), ("--cache-memory", "lots"), "lots"),
    ],
)
def test_cache_that_cannot_be_told_is_refused(tmp_path: Path, config: str, more: tuple[str, ...], said: str) -> None:
    (tmp_path / "config.json").write_text(config, encoding="utf-8")
    asked = (*ASKED, "--replica-tokens-per-s", "700", "--model-config", "config.json")
    given = {"--cache-memory": "80GiB", "--request-tokens": "10"} | dict(zip(more[::2], more[1::2], strict=True))
    result = here(tmp_path, *asked, *(word for pair in given.items() for word in pair))
    assert (result.returncode, result.stdout) == (2, "")
    assert said in result.stderr


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
    assert f"run {cut.id} was cut short" in here(stored, *ASKED, cut.id).stderr
    expected = ("has no verdict yet", "its evidence is not usable", "its load says nothing: the client lagged")
    for run_id, said in zip(bad, expected, strict=True):
        assert said in here(stored, *ASKED, run_id).stderr
    assert "Its verdict is BLOCK." in here(stored, *ASKED, judged.id).stdout
    with Store.open(str(stored / STORE)) as store:
        running = make_run(suite=suite)
        writer = store.begin_run(running, PLAN)
        assert "is still running" in here(stored, *ASKED, running.id).stderr
        writer.finish(RunStatus.PARTIAL, DONE_AT)


def test_run_of_which_no_level_holds_sizes_nothing(stored: Path) -> None:
    assert "expected baseline or candidate" in here(stored, *ASKED, "@latest", "--arm", "new").stderr
    assert "leave one of them out" in here(stored, *ASKED, "@latest", "--replica-tokens-per-s", "1").stderr
    strict = SUITE.replace("ttft: 500ms", "ttft: 10ms")
    with Store.open(str(stored / STORE)) as store:
        write_sized(store, make_run(), suite=strict)
    result = here(stored, *ASKED, "@latest")
    assert (result.returncode, result.stdout) == (2, "")
    assert "no stage is shown to hold its SLO on the candidate: nearest is" in result.stderr
