"""The whole road on the real engine: measured once, then judged again from the store alone."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path
from statistics import mean

import pytest

from benchgate.gate.evidence.telemetry import compare_counts
from benchgate.model.deployment import Arm
from benchgate.model.run import Evidence
from tests.e2e.command import benchgate, document, here, latest_evidence

pytestmark = pytest.mark.beside  # answers are judged; a bound of 20 s is the only one in time that has to hold

ROOT = Path(__file__).parents[2]
SUITE = f"""
suite: short
seed: 3
deployments:
  f16: {{embedded: {{weights: f16}}, price: $0.10/h}}
  same: {{embedded: {{weights: f16}}, price: $0.10/h}}
  q2_k: {{embedded: {{weights: q2_k}}, price: $0.05/h}}
baseline: f16
candidate: same
slo: {{ttft: 20s, tpot: 5s, target: 90%}}
load:
  workload: {{input: 20 tokens, output: 8 tokens, text: letters}}
  blocks: 4
  sweep:
    - {{stage: c2, concurrency: 2, requests: 12}}
    - {{stage: r20, rate: 20/s, requests: 8}}
quality:
  tasks: [{ROOT}/suites/tasks/add.yaml, {ROOT}/suites/tasks/fact.yaml]
  limit: 60
  max_tokens: 32
shadow: {{prompts: {ROOT}/suites/data/shadow.jsonl, limit: 40, max_tokens: 16}}
gate:
  alpha: 0.01
  # The engines run on the load generator's own cores, which may be busy with other tests too.
  client: {{send_lag_p99: 1s, send_lag_max: 1s, read_delay_p99: 1s, read_delay_max: 1s, cpu: 100%, achieved: 1%}}
  checks:
    - {{metric: ttft, stage: c2, margin: 95%, required: false}}
    - {{metric: goodput, stage: c2}}
    - {{metric: accuracy, margin: 5 points}}
    - {{metric: accuracy, task: each, margin: 15 points}}
    - {{metric: shadow_excess, margin: 15 points, block_when: breach}}
"""
JSON = ("--format", "json")


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, subprocess.CompletedProcess[str]]]:
    """A folder with a store of two runs, F16 against itself and against Q2_K, and what each run printed."""
    folder = tmp_path_factory.mktemp("road")
    (folder / "short.yaml").write_text(SUITE)
    results = {
        name: command(folder, "run", "short.yaml", "--candidate", name, "--label", name, *JSON)
        for name, command in (("same", here), ("q2_k", benchgate))
    }
    return folder, results


Runs = tuple[Path, dict[str, subprocess.CompletedProcess[str]]]


def test_equal_weights_are_promoted_and_broken_ones_blocked_on_quality(runs: Runs) -> None:
    _, results = runs
    equal, broken = results["same"], results["q2_k"]
    assert document(equal)["outcome"] in ("PASS", "WARN"), equal.stdout
    assert equal.returncode == 0
    assert document(broken)["outcome"] == "BLOCK", broken.stdout
    assert broken.returncode == 10
    assert "Accuracy" in document(broken)["reason"]
    blocked = {check["task"] for check in document(broken)["checks"] if check["outcome"] == "BLOCK"}
    assert {"add", "fact"} <= blocked  # named, for an average hides where it broke


def test_equal_weights_give_equal_answers(runs: Runs) -> None:
    _, results = runs
    harms = {check["id"]: check["harm"] for check in document(results["same"])["checks"]}
    assert harms["accuracy"] == 0
    assert harms["shadow_excess"] == 0


def test_what_the_servers_counted_agrees_with_what_the_client_got(runs: Runs) -> None:
    folder, _ = runs
    evidence = latest_evidence(folder)
    windows = {(window.stage, window.arm, window.block): window for window in evidence.telemetry}
    assert set(windows) == {(seen.stage, seen.arm, seen.block) for seen in evidence.load}
    for seen in evidence.load:
        counts = compare_counts(windows[seen.stage, seen.arm, seen.block], [seen], unrecorded=0, longest=8)
        assert {count.what for count in counts} == {"prompt tokens", "generated tokens"}
        assert all(count.excess_ratio <= 0.01 and count.shortfall_ratio <= 0.01 for count in counts), counts


def test_telemetry_of_a_stage_lasts_until_the_last_answer_that_the_client_got(runs: Runs) -> None:
    folder, _ = runs
    evidence = latest_evidence(folder)
    ended_s = {(window.stage, window.arm, window.block): window.ended_s for window in evidence.telemetry}
    for seen in evidence.load:
        last_s = max(int(rows.end_ns.max()) for rows in seen.with_ramp if len(rows)) / 1e9
        assert ended_s[seen.stage, seen.arm, seen.block] == pytest.approx(last_s, abs=0.01)


def test_everything_planned_was_stored(runs: Runs) -> None:
    folder, _ = runs
    evidence = latest_evidence(folder)
    assert len(evidence.load) == 2 * 4 * 2
    assert {len(o.requests) for o in evidence.load if o.stage == "c2"} == {12}
    assert [len(o.items) for o in evidence.quality] == [60] * 4
    assert evidence.shadow is not None and len(evidence.shadow.items) == 40
    order = [o.arm.value for o in evidence.load if o.stage == "c2"]
    assert order == ["baseline", "candidate", "candidate", "baseline"] * 2


def test_gate_says_the_same_bytes_from_the_store_alone(runs: Runs) -> None:
    folder, results = runs
    for label, commands in (("same", (here,)), ("q2_k", (benchgate, here))):
        for command in commands:
            again = command(folder, "gate", label, *JSON)
            assert (again.stdout, again.returncode) == (results[label].stdout, results[label].returncode)


def test_compare_of_two_stored_runs_is_the_same_every_time(runs: Runs) -> None:
    folder, _ = runs
    first, second = (command(folder, "compare", "same", "q2_k", *JSON) for command in (benchgate, here))
    assert first.stdout == second.stdout
    assert (first.returncode, document(first)["outcome"]) == (10, "BLOCK")
    assert document(first)["against"]["outcome"] in ("PASS", "WARN")


def test_compare_of_a_run_with_itself_is_refused(runs: Runs) -> None:
    folder, _ = runs
    for command in (("compare", "same", "same"), ("report", "q2_k", "--against", "q2_k")):
        result = here(folder, *command)
        assert result.returncode == 2, result.stdout
        assert "a run says nothing against itself" in result.stderr


def test_compare_with_a_run_that_was_blocked_says_so(runs: Runs) -> None:
    folder, _ = runs
    compared = document(here(folder, "compare", "q2_k", "same", *JSON))
    assert compared["against"]["outcome"] == "BLOCK" and compared["outcome"] != "PASS"
    result = here(folder, "compare", "q2_k", "same", "--report", "compared.html")
    assert "reference run's own verdict was BLOCK" in result.stdout
    assert "The reference run&#39;s own verdict was BLOCK" in (folder / "compared.html").read_text()


def test_a_report_that_cannot_be_written_is_refused_before_anything_is_judged(runs: Runs) -> None:
    folder, _ = runs
    (folder / "file").touch()
    for option in ("--report=file/report.html", "--write=json=file/verdict.json", "--write=intoto=file/statement.json"):
        result = here(folder, "gate", "same", option, *JSON)
        assert (result.returncode, result.stdout) == (2, "")
        assert "cannot be written" in result.stderr


def test_report_is_the_same_bytes_every_time(runs: Runs) -> None:
    folder, _ = runs
    for command, name in ((benchgate, "one.html"), (here, "two.html")):
        result = command(folder, "report", "q2_k", "--out", name)
        assert result.returncode == 0, result.stderr
    assert (folder / "one.html").read_bytes() == (folder / "two.html").read_bytes()
    assert "BLOCK" in (folder / "one.html").read_text()


def test_trend_follows_the_price_of_a_million_tokens(runs: Runs) -> None:
    folder, _ = runs
    asked = ("trend", "usd_per_million_output_tokens", "--suite", "short", "--stage", "c2")
    points = json.loads(here(folder, *asked, *JSON).stdout)
    assert [point["label"] for point in points] == ["same", "q2_k"]
    assert points[1]["value"] == pytest.approx(cost_of_candidate(latest_evidence(folder), usd_per_hour=0.05))
    header, *lines = here(folder, *asked).stdout.splitlines()
    assert header.split()[-1] == "usd_per_million_output_tokens"
    for point, line in zip(points, lines, strict=True):
        shown = re.search(r" \$([\d.,]+)", line)
        assert shown is not None and float(shown[1].replace(",", "")) == pytest.approx(point["value"], rel=0.01)
        # On a busy machine the blocks may differ so much that the throughput has no lower limit above 0.
        assert point["lower"] is None or 0 < point["lower"] <= point["value"] <= point["upper"]


def cost_of_candidate(evidence: Evidence, usd_per_hour: float) -> float:
    """Return dollars per million output tokens at the mean throughput of the candidate's blocks of stage `c2`."""
    blocks = [block for block in evidence.load if (block.stage, block.arm) == ("c2", Arm.CANDIDATE)]
    counted = [zip(block.requests.output_tokens, block.requests.error, strict=True) for block in blocks]
    tokens = [sum(int(count) for count, error in requests if error is None) for requests in counted]
    tokens_per_s = [count / block.window_s for count, block in zip(tokens, blocks, strict=True)]
    return usd_per_hour / 3600 * 1e6 / mean(tokens_per_s)


def test_trend_of_a_latency_is_that_of_its_median_unless_said(runs: Runs) -> None:
    folder, _ = runs
    for asked, said in (((), "ttft p50"), (("--statistic", "mean"), "ttft mean")):
        header, *lines = here(folder, "trend", "ttft", "--stage", "c2", *asked).stdout.splitlines()
        assert header.endswith(said)
        assert [(line.split()[1], line.split()[-1]) for line in lines] == [("same", "ms"), ("q2_k", "ms")]


def test_a_stricter_policy_judges_the_same_run_anew(runs: Runs, tmp_path: Path) -> None:
    folder, _ = runs
    strict = tmp_path / "strict.yaml"
    # Equal answers to 60 questions cannot show this; equal latencies may, once in a hundred runs (`alpha`).
    strict.write_text(SUITE.replace("margin: 5 points}", "margin: 0.1 points}"))
    result = here(folder, "gate", "same", "--policy", str(strict), *JSON)
    assert document(result)["outcome"] == "INCONCLUSIVE", result.stdout
    assert result.returncode != 0
    assert {check["id"]: check["outcome"] for check in document(result)["checks"]}["accuracy"] == "INCONCLUSIVE"


def test_the_slo_of_another_policy_counts_and_leaves_the_runs_own_verdict(runs: Runs, tmp_path: Path) -> None:
    folder, results = runs
    own = document(results["same"])
    hopeless = tmp_path / "hopeless.yaml"
    hopeless.write_text(SUITE.replace("ttft: 20s", "ttft: 1us"))
    tried = here(folder, "gate", "same", "--policy", str(hopeless), "--report", "tried.html", *JSON)
    assert (tried.returncode, document(tried)["outcome"]) == (10, "BLOCK"), tried.stderr
    assert document(tried)["slo"]["ttft_s"] < own["slo"]["ttft_s"]
    assert (document(tried)["policy_replaced"], own["policy_replaced"]) == (True, False)
    assert "another policy" in (folder / "tried.html").read_text()
    trend = here(folder, "trend", "usd_per_million_output_tokens", "--stage", "c2").stdout.splitlines()
    assert own["outcome"] in trend[1].split()


def test_an_unknown_run_or_metric_is_a_usage_error_with_the_nearest_name(runs: Runs) -> None:
    folder, _ = runs
    run = here(folder, "gate", "sam")
    assert (run.returncode, "same" in run.stderr) == (2, True)
    metric = here(folder, "trend", "acuracy_ratio")
    assert (metric.returncode, "accuracy" in metric.stderr) == (2, True)
    missing = here(folder, "gate", "--store", "nowhere/none.db")
    assert (missing.returncode, "nowhere/none.db" in missing.stderr) == (2, True)
    assert not (folder / "nowhere").exists()
