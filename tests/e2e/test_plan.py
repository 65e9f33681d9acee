"""`benchgate plan` and the refusal of `run`: what this machine's load generator cannot deliver is never asked for."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from benchgate.cli.plan import check_lines
from benchgate.model.client import ClientProfile, ClientStep
from benchgate.pipeline.environment import client_machine, utc_now
from benchgate.plan.check_power import CheckPower
from benchgate.plan.power import PromotionChance
from benchgate.store.repository import Store
from tests.e2e.command import STORE, here

pytestmark = pytest.mark.beside


SUITE = """\
suite: heavy
deployments:
  a: {url: "http://127.0.0.1:9", model: m}
  b: {url: "http://127.0.0.1:9", model: n}
baseline: a
candidate: b
load:
  workload: {input: 8 tokens, output: 100 tokens}
  blocks: 2
  sweep:
    - {stage: c600, concurrency: 600, requests: 600}
    - {stage: r100, rate: 100/s, arrival: constant, for: 2s}
gate:
  checks: [{metric: error_rate, max: 1%}]
"""


def step(streams: int | None, tokens_per_s: float, *bound: str) -> ClientStep:
    return ClientStep(streams, tokens_per_s, tokens_per_s, 1.0, 10.0, 0.001, 0.0, bound)


def with_curve(folder: Path, *steps: ClientStep) -> None:
    (folder / "suite.yaml").write_text(SUITE)
    (folder / STORE).parent.mkdir()
    with Store.open(str(folder / STORE)) as store:
        store.save_client_profile(ClientProfile(utc_now(), client_machine(), steps))


def test_a_plan_is_printed_and_nothing_is_sent_or_kept(tmp_path: Path) -> None:
    (tmp_path / "suite.yaml").write_text(SUITE)
    result = here(tmp_path, "plan", "suite.yaml")
    assert result.returncode == 0, result.stderr
    for said in ("c600", "600 in flight", "by the servers", "100/s", "10,000", "2.00 s"):
        assert said in result.stdout
    assert not (tmp_path / ".benchgate").exists()
    found = json.loads(here(tmp_path, "plan", "suite.yaml", "--format", "json").stdout)
    assert [stage["demand"]["requests"] for stage in found["stages"]] == [600, 200]
    assert found["problems"] == []


def test_plan_and_run_refuse_what_the_load_generator_was_not_shown_to_deliver(tmp_path: Path) -> None:
    with_curve(tmp_path, step(1, 50.0), step(2, 100.0, "too busy"), step(None, 20.0), step(None, 40.0, "too busy"))
    planned, run = (here(tmp_path, command, "suite.yaml") for command in ("plan", "run"))
    for result in (planned, run):
        assert result.returncode == 2
        assert "stage c600 asks for 600 streams in flight" in result.stderr
        assert "stage r100 asks for up to 10,000 tokens/s in 100 requests/s" in result.stderr
        assert "`--cluster`" in result.stderr
        assert "Traceback" not in result.stderr
    assert "nothing was sent" in planned.stdout
    with Store.open(str(tmp_path / STORE), create=False) as store:
        assert store.runs() == []


def test_plan_refuses_nothing_beyond_a_limit_that_was_not_found(tmp_path: Path) -> None:
    with_curve(tmp_path, step(1, 50.0), step(None, 20.0))
    result = here(tmp_path, "plan", "suite.yaml")
    assert result.returncode == 0, result.stderr
    assert "stage c600 asks for 600 streams in flight" in result.stderr
    assert "is not known beyond 1 stream (measured" in result.stderr
    assert "was not measured with as much" in result.stdout


def test_a_plan_within_the_curve_says_how_many_processes_it_needs(tmp_path: Path) -> None:
    with_curve(tmp_path, step(1000, 50_000.0), step(None, 2_000.0))
    result = here(tmp_path, "plan", "suite.yaml", "--format", "json")
    assert result.returncode == 0, result.stderr
    assert [stage["workers"] for stage in json.loads(result.stdout)["stages"]] == [1, 1]


def test_doctor_says_how_this_machine_is(tmp_path: Path) -> None:
    result = here(tmp_path, "doctor", "--format", "json")
    assert result.returncode == 0, result.stderr
    states = {symptom["name"]: symptom["state"] for symptom in json.loads(result.stdout)}
    assert states["python"] == "OK"
    assert states["load generator"] == "WARN"


POWER = SUITE.replace("blocks: 2", "looks: [5, 10]").replace(
    "[{metric: error_rate, max: 1%}]",
    "[{metric: error_rate, max: 0.01%, allow_underpowered: ALLOWED}, {metric: ttft, stage: r100, margin: 2%},"
    " {metric: e2e, stage: r100, margin: 20%, required: false}]",
)


def test_plan_and_run_refuse_a_check_that_can_in_no_case_hold(tmp_path: Path) -> None:
    (tmp_path / "suite.yaml").write_text(POWER.replace("ALLOWED", "false"))
    for result in (here(tmp_path, "plan", "suite.yaml"), here(tmp_path, "run", "suite.yaml")):
        assert result.returncode == 2
        assert "error_rate@c600:slo cannot pass: even where none of 12,000 requests misses" in result.stderr
        assert "`allow_underpowered: true`" in result.stderr
        assert "Traceback" not in result.stderr
    with Store.open(str(tmp_path / STORE), create=False) as store:
        assert store.runs() == []


@pytest.mark.slow
def test_a_plan_tells_what_each_check_shows_in_lines_that_fit(tmp_path: Path) -> None:
    (tmp_path / "suite.yaml").write_text(POWER.replace("ALLOWED", "true"))
    result = here(tmp_path, "plan", "suite.yaml")
    assert result.returncode == 0, result.stderr
    assert "error_rate@c600:slo cannot pass" in result.stderr
    assert "by assumed spreads, the measurement is too small for the margin of ttft-p50@r100" in result.stderr
    told = result.stdout[result.stdout.index("smallest") :].splitlines()
    assert max(map(len, told[: next(n for n, line in enumerate(told) if line.startswith("client"))])) <= 100
    assert any(line.startswith("(e2e-p50@r100) ") and " 20 % " in line and "~4.24 %" in line for line in told)
    head = result.stdout.splitlines()[0]
    assert "of load if each stream gets 30 tokens/s; no hourly price; nothing was sent" in head
    found = json.loads(here(tmp_path, "plan", "suite.yaml", "--format", "json").stdout)
    by_id = {check["id"]: check for check in found["checks"]}
    assert (by_id["ttft-p50@r100"]["short"], by_id["ttft-p50@r100"]["source"]) == ("assumed", "assumed")
    assert by_id["error_rate@r100:slo"]["short"] == "certain"
    assert (found["totals"]["least"]["blocks"], found["totals"]["most"]["blocks"]) == (5, 10)
    assert (found["refused"], found["foregone"]) == ([], [])


def test_the_chance_of_all_checks_names_those_that_it_leaves_out() -> None:
    told = CheckPower("ttft-p50@c4", "ttft", required=True, allowed=False, passes=0.9)
    unknown = CheckPower("goodput@c4:slo", "goodput", required=True, allowed=False)
    noticed = replace(unknown, id="e2e-p50@c4", required=False)

    def equal(checks: tuple[CheckPower, ...]) -> str:
        required = [check for check in checks if check.required]
        counted = len([check for check in required if check.passes is not None])
        return " ".join(" ".join(check_lines(checks, PromotionChance(0.9, counted, len(required), None))).split())

    left_out = "(1 of 2 required checks, assuming independence); not counted: goodput@c4:slo (`?` above)"
    assert left_out in equal((told, unknown, noticed))
    assert "not counted" not in equal((told, noticed))


def test_a_run_says_what_it_may_not_show_before_it_sends_anything(tmp_path: Path) -> None:
    quick = POWER.replace("ALLOWED", "true").replace("load:", "limits: {ready: 500ms}\nload:", 1)
    (tmp_path / "suite.yaml").write_text(quick)
    result = here(tmp_path, "run", "suite.yaml")
    assert result.returncode == 12, result.stderr
    said = result.stderr.index("by assumed spreads, the measurement is too small")
    assert said > result.stderr.index("error_rate@c600:slo cannot pass")
