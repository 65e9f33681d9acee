"""`capacity RUN`: what it takes from a stored run for what is not said, from the command line over a real store."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from benchgate.cli.app import app
from benchgate.errors import EvidenceError
from benchgate.model.deployment import Arm
from benchgate.model.run import RunStatus, StartUp
from benchgate.store.repository import Store
from benchgate.store.retention import Policy
from benchgate.suite.loader import parse_suite
from tests.core.test_sizing import LEVELS, SUITE
from tests.core.test_sizing_run import BLOCKS, GPT2, TOLD
from tests.shells.store_samples import DONE_AT, PLAN, make_deployment, make_run

TERMS: dict[str, object] = {"list_usd_per_hour": 0.1, "overhead_ratio": 0.25, "utilisation_ratio": 0.5}


def write(folder: Path) -> Path:
    """A run whose candidate started in 70, 50 and 60 s, with overhead in its terms, and a model's configuration."""
    arms = {
        Arm.BASELINE: make_deployment("f16"),
        Arm.CANDIDATE: replace(make_deployment("q8_0"), price_terms=TERMS),
    }
    run = make_run(suite=parse_suite(SUITE, "suite.yaml").to_stored(), arms=arms)
    with Store.open(str(folder / "b.db")) as store:
        writer = store.begin_run(run, PLAN)
        for number, took_s in enumerate((70.0, 50.0, 60.0)):
            writer.add_start(StartUp(Arm.CANDIDATE, number, took_s))
        for seen in BLOCKS:
            writer.add_load(seen)
        for window in TOLD:
            writer.add_telemetry(window)
        writer.finish(RunStatus.COMPLETE, DONE_AT)
        store.save_metrics(run.id, LEVELS)
        store.save_verdict(run.id, {"outcome": "PASS", "guards": []})
    (folder / "config.json").write_text(json.dumps(GPT2))
    (folder / "day.csv").write_text("requests_per_s\n1\n37\n")  # 36/s more in an hour: 0.01/s each second
    return folder


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(tmp_path_factory.mktemp("capacity"))


def capacity(folder: Path, *said: str, form: str = "json", run: str = "@latest") -> str:
    asked = ["capacity", run, "--store", str(folder / "b.db"), "--traffic", str(folder / "day.csv")]
    result = CliRunner().invoke(app, [*asked, "--format", form, *said], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.stdout


def document(folder: Path, *said: str, run: str = "@latest") -> dict[str, Any]:
    found: dict[str, Any] = json.loads(capacity(folder, *said, run=run))
    return found


def test_run_gives_what_nobody_says(folder: Path) -> None:
    found = document(folder)
    assert found["starts"] == {"count": 3, "median_s": 60.0, "worst_s": 70.0}
    assert (found["question"]["cold_start_s"], found["ahead"]) == (70.0, 1)
    assert found["question"]["overhead_ratio"] == 0.25
    assert found["question"]["replica"]["usd_per_hour"] == pytest.approx(0.25)  # two of $0.10, and a quarter
    assert found["from_run"] == [
        "cold_start_s", "overhead_ratio", "places", "residence_s", "tokens_per_request", "usd_per_hour",
    ]  # fmt: skip
    assert document(folder, "--max-replicas", "6")["replayed"]["scaling"]["cold_start_s"] == 70.0


def test_what_is_said_stands_before_what_the_run_gives(folder: Path) -> None:
    found = document(folder, "--cold-start", "5min", "--overhead", "0%", "--price-per-hour", "4")
    assert (found["question"]["cold_start_s"], found["question"]["overhead_ratio"]) == (300.0, 0.0)
    assert found["question"]["replica"]["usd_per_hour"] == 4
    assert found["from_run"] == ["places", "residence_s", "tokens_per_request"]
    assert found["starts"]["worst_s"] == 70.0


def of_cache(folder: Path) -> tuple[str, ...]:
    return "--model-config", str(folder / "config.json"), "--request-tokens", "1024", "--cache-memory"


def test_cache_is_held_against_the_run(folder: Path) -> None:
    asked = of_cache(folder)
    found = document(folder, *asked, "100MiB")["cache_check"]
    assert found == {
        "stage": "c8", "in_flight": 2.0, "request_tokens": 267.5, "measured_ratio": 0.1875,
        "predicted_ratio": pytest.approx(2 * 272 * 36864 / (100 * 2**20)), "differs": False,
    }  # fmt: skip
    assert document(folder, *asked, "1GiB")["cache_check"]["differs"]
    assert "It may be larger pages" in capacity(folder, *asked, "1GiB", form="text")


def test_arm_that_was_not_looked_at_gives_nothing(folder: Path) -> None:
    """The baseline has no numbers of a load at all; with the candidate's as its own it still started nothing."""
    with Store.open(str(folder / "b.db")) as store:
        run_id = store.resolve("@latest")
        store.save_metrics(run_id, [*LEVELS, *(replace(row, arm=Arm.BASELINE) for row in LEVELS)])
    found = document(folder, "--arm", "baseline", *of_cache(folder), "1GiB")
    assert (found["starts"], found["ahead"], found["question"]["overhead_ratio"]) == (None, None, None)
    assert "did not tell in every block of c8" in found["cache_not_checked"]


def test_run_whose_records_are_gone_or_damaged_is_not_counted_on_for_them(tmp_path: Path) -> None:
    folder = write(write(tmp_path))
    with Store.open(str(folder / "b.db")) as store:
        gone = store.remove_raw(store.expendable(Policy(), "2028-01-01T00:00:00Z"), now=DONE_AT, reason="store gc")
    (first,) = gone.runs
    found = document(folder, *of_cache(folder), "1GiB", run=first.run_id)
    assert (found["measured"]["stage"], found["starts"], found["signals"]) == ("c8", None, [])
    assert found["cache_not_checked"] == "the run's raw records were removed"
    with closing(sqlite3.connect(folder / "b.db")) as database:
        database.execute("DROP TRIGGER observation_no_update")
        database.execute("UPDATE observation SET meta = replace(meta, '70.0', '7.0')")
        database.commit()
    with pytest.raises(EvidenceError, match="it is not what it was when it finished"):
        document(folder)
