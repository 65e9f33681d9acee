"""An error budget as a user has it: read before a run, kept with it, and from the store the same ever after."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from benchgate.pipeline import deployments, run
from benchgate.store.repository import Store
from tests.e2e.command import STORE, document, here

pytestmark = pytest.mark.beside  # its client may be late, by a lot: what is asked of it is no time


SUITE = """
suite: budgeted
deployments:
  plain: {sim: {ttft: 5ms, itl: 1ms}}
  failing: {sim: {ttft: 5ms, itl: 1ms, faults: ["http-error@40%"]}}
baseline: plain
candidate: failing
error_budget:
  objective: 90%
  window: 30d
  spent: SPENT
load:
  workload: {input: 8 tokens, output: 4 tokens}
  blocks: 4
  warmup: 0
  sweep: [{stage: c4, concurrency: 4, requests: 20}]
gate:
  client: {send_lag_p99: 200ms, send_lag_max: 1s, read_delay_p99: 200ms, read_delay_max: 1s, cpu: 100%, achieved: 50%}
  checks:
    - {metric: error_rate, max: 90%}
"""


def written(folder: Path, spent: str) -> Path:
    (folder / "suite.yaml").write_text(SUITE.replace("SPENT", spent))
    return folder


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run whose candidate fails four requests of ten where the objective lets one, with the budget blown."""
    place = written(tmp_path_factory.mktemp("budgeted"), "{file: budget.json}")
    (place / "budget.json").write_text('{"spent": "112%"}')
    ran = here(place, "run", "suite.yaml", "--format", "json")
    (place / "said.json").write_text(ran.stdout)
    (place / "budget.json").write_text('{"spent": 0}')
    assert ran.returncode == 10, ran.stderr + ran.stdout
    return place


def test_blown_budget_blocks_a_candidate_that_would_only_warn(folder: Path) -> None:
    again = here(folder, "gate", "--format", "json")
    assert again.stdout == (folder / "said.json").read_text()
    said = document(again)
    lines = {check["id"]: check for check in said["checks"]}
    assert {name: check["outcome"] for name, check in lines.items()} == {
        "error_rate@c4:slo": "PASS", "error_budget_burn@c4": "WARN", "error_budget": "BLOCK",
    }  # fmt: skip
    assert lines["error_budget"]["candidate"] == 1.12
    assert lines["error_budget"]["notes"][0].startswith("by the file budget.json, read at ")
    assert "Error budget spent in production: 112 % of the error budget of 90 % over 30 days" in said["reason"]


def test_budget_is_read_when_the_run_has_waited_for_its_servers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = written(tmp_path, "{file: budget.json}") / "budget.json"
    file.write_text('{"spent": "5%"}')
    waits = deployments.exclusive_servers

    @contextmanager
    def exclusive_servers(*given: Any, **options: Any) -> Iterator[Callable[[str], None]]:
        with waits(*given, **options) as name_holder:
            file.write_text('{"spent": "112%"}')  # production has spent the rest meanwhile
            yield name_holder

    monkeypatch.setattr(run, "exclusive_servers", exclusive_servers)
    lines = {
        check["id"]: check for check in document(here(tmp_path, "run", "suite.yaml", "--format", "json"))["checks"]
    }
    assert (lines["error_budget"]["candidate"], lines["error_budget"]["outcome"]) == (1.12, "BLOCK")


def test_every_form_of_the_verdict_has_both_lines(folder: Path) -> None:
    for form in ("text", "markdown"):
        shown = here(folder, "gate", "--format", form).stdout
        assert "error_budget_burn@c4" in shown and "Error budget spent in production" in shown
    explained = here(folder, "gate", "--explain", "error_budget_burn@c4").stdout
    assert "share that the objective allows to fail" in explained
    assert here(folder, "report", "--out", "r.html").returncode == 0
    assert "Error budget burn at c4" in (folder / "r.html").read_text()


def test_policy_without_a_budget_leaves_the_runs_own(folder: Path) -> None:
    own = (folder / "suite.yaml").read_text()
    begin, end = own.index("error_budget:"), own.index("load:")
    (folder / "policy.yaml").write_text(own[:begin] + own[end:])
    said = document(here(folder, "gate", "--policy", "policy.yaml", "--format", "json"))
    assert said["outcome"] == "BLOCK"
    lenient = "error_budget: {objective: 90%, window: 30d, spent: 0%, when_blown: warn}\n"
    (folder / "policy.yaml").write_text(own[:begin] + lenient + own[end:])
    said = document(here(folder, "gate", "--policy", "policy.yaml", "--format", "json"))
    lines = {check["id"]: check for check in said["checks"]}
    assert (said["outcome"], said["policy_replaced"]) == ("WARN", True)
    assert lines["error_budget"]["candidate"] == 1.12  # what was spent is the run's to say


def test_value_that_cannot_be_had_ends_it_before_there_is_a_run(tmp_path: Path) -> None:
    missing = here(written(tmp_path, "{file: gone.json}"), "run", "suite.yaml")
    assert missing.returncode == 2
    assert "suite.yaml:11:17: error_budget.spent.file" in missing.stderr and "gone.json" in missing.stderr
    silent = here(written(tmp_path, "{prometheus: {url: 'http://127.0.0.1:9', query: up}}"), "run", "suite.yaml")
    assert silent.returncode == 12
    assert "Prometheus at http://127.0.0.1:9 could not be reached" in silent.stderr
    with Store.open(str(tmp_path / STORE), create=False) as store:
        assert store.runs() == []


def test_plan_shows_the_budget_and_ask_nobody(tmp_path: Path) -> None:
    place = written(tmp_path, "{prometheus: {url: 'http://127.0.0.1:9', query: up}}")
    planned = here(place, "plan", "suite.yaml")
    told = "error budget of 90 % over 30 days, held against the error_rate at c4; spent: queried from Prometheus"
    assert planned.returncode == 0, planned.stderr
    assert told in " ".join(planned.stdout.split())
    assert told in document(here(place, "plan", "suite.yaml", "--format", "json"))["error_budget"][0]
