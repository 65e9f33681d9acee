"""Deployments chosen by an option: every rule of the suite holds for them as if the file named them."""

from __future__ import annotations

import re
from dataclasses import replace
from datetime import date
from pathlib import Path

import pytest

from benchgate.errors import SuiteError, UsageError
from benchgate.model.deployment import sha256_of
from benchgate.pipeline.suite_file import load_suite, read_suite, require_priced
from benchgate.release.eligibility import measured_forms
from benchgate.store.repository import Store
from benchgate.suite.rules.suite import quick_look, rule_problems
from tests.e2e.command import STORE
from tests.fakes import quick_command

SUITE = """\
suite: chosen
deployments:
  old: {url: "http://old:8000", model: m, KNOWN}
  new: {url: "http://new:8000", model: m, KNOWN}
  other: OTHER
baseline: old
candidate: new
MEASURED
gate: {checks: [CHECKS]}
"""
KNOWN = "engine: vllm, accelerators: 2, price: $4/h"
BY_URL = '{url: "http://other:8000", model: m, engine: vllm}'
FAILURES = "{metric: error_rate, max: 5%}"
TAIL = "{metric: ttft, statistic: p99, margin: 10%}"  # only the whole suite has enough requests for it
SHADOW = """\
shadow:
  prompts: prompts.jsonl
  judge: {url: "http://other:8000", model: m, send_text: true}"""


def load(workload: str = "{input: 64, output: 32}", blocks: str = "blocks: 10", stage: str = "") -> str:
    sweep = f"[{{stage: r4, rate: 4/s, for: 20s{stage}}}]"
    return f"load: {{workload: {workload}, {blocks}, sweep: {sweep}}}"


def written(
    *, known: str = KNOWN, other: str = BY_URL, measured: str = load(), check: str = "{metric: ttft, margin: 10%}"
) -> str:
    checks = check if "load:" not in measured else f"{FAILURES}, {check}"
    parts = {"KNOWN": known, "OTHER": other, "MEASURED": measured, "CHECKS": checks}
    text = SUITE
    for name, part in parts.items():
        text = text.replace(name, part)
    return text


REFUSED = {
    "accelerators_are_counted": (
        written(check="{metric: output_throughput, margin: 5%, per: accelerator}"),
        "divides by `accelerators`, which the",
    ),
    "judge_is_another_model": (
        written(measured=SHADOW, check="{metric: judge_loss, margin: 5 points}"),
        'the judge is "other" itself',
    ),
    "priority_is_known_to_the_engines": (
        written(other=BY_URL.replace("vllm", "tgi"), measured=load("{input: 64, output: 32, priority: 1}")),
        '"other" is tgi, which has no priorities',
    ),
    "started_deployment_is_own": (
        written(known="start: {run: [./serve]}", measured="start: {times: 3}", check="{metric: cold_start, max: 10s}"),
        '"other" is not started by benchgate',
    ),
    "cost_check_has_a_price": (
        written(check="{metric: usd_per_million_output_tokens, margin: 5%}"),
        "the cost of its tokens is unknown",
    ),
    "cost_limit_has_a_price": (
        written(measured=load(blocks="looks: [5, 10], limit: {cost: $9}")),
        "the cost of the load is unknown",
    ),
    "grpc_has_its_address": (
        written(known='grpc: "host:8001"', measured=load("{endpoint: grpc-infer, input: 64, output: 32}")),
        'is sent over gRPC, and "other" has no address of it',
    ),
    "replica_of_an_action_exists": (
        re.sub(
            r"{url: .*, KNOWN}",
            "{sim: {replicas: 2}}",
            written(known="KNOWN", other="{sim: {}}", measured=load(stage=", actions: [{at: 2s, kill: 1}]")),
        ),
        '"other" has no replicas',
    ),
    "request_fits_the_context": (
        written(other=BY_URL.replace("}", ", context: 64}")),
        'the context of "other" holds 64',
    ),
}
REFUSED_CANDIDATES = {
    "server_reports_the_metric": (
        written(other=BY_URL.replace("}", ", metrics: off}"), check="{metric: queue_depth, max: 8}"),
        '"other" has `metrics: off`',
    ),
    "arms_differ": (written(other=BY_URL.replace("other", "old")), "the same endpoint in both arms"),
}
REFUSED_BASELINES = {
    "baseline_has_a_tokenizer": (
        written(other="{sim: {}}", measured=load("{input: 64, output: 32, tokenizer: server}")),
        '"other" is started later than the plan is made',
    )
}
EITHER_ARM = [(arm, *case) for arm in ("candidate", "baseline") for case in REFUSED.values()]


def put(folder: Path, text: str) -> Path:
    path = folder / "suite.yaml"
    path.write_text(text)
    return path


def naming(text: str, arm: str) -> str:
    """The suite whose file itself names `other` as this arm."""
    own = {"baseline": "old", "candidate": "new"}[arm]
    return text.replace(f"\n{arm}: {own}\n", f"\n{arm}: other\n")


@pytest.mark.parametrize(
    ("arm", "text", "fault"),
    [
        *EITHER_ARM,
        *(("candidate", *case) for case in REFUSED_CANDIDATES.values()),
        *(("baseline", *case) for case in REFUSED_BASELINES.values()),
    ],
    ids=[
        *(f"{arm}-{name}" for arm in ("candidate", "baseline") for name in REFUSED),
        *REFUSED_CANDIDATES,
        *REFUSED_BASELINES,
    ],
)
def test_a_rule_holds_for_an_arm_that_an_option_chose(tmp_path: Path, arm: str, text: str, fault: str) -> None:
    path = put(tmp_path, text)
    assert load_suite(path).suite.candidate == "new"
    with pytest.raises(UsageError) as refused:
        quick_command.told("run", str(path), f"--{arm}", "other", "--store", str(tmp_path / "s.db"))
    assert fault in str(refused.value)
    with pytest.raises(SuiteError) as named:
        read_suite(put(tmp_path, naming(text, arm)))
    assert all(line in str(named.value) for line in str(refused.value).splitlines())


@pytest.mark.parametrize(
    "words",
    [
        ("calibrate", "suite.yaml", "--baseline", "other"),
        ("run", "suite.yaml", "--candidate", "other", "--resume"),
        ("run", "suite.yaml", "--candidate", "other", "--quick"),
        ("run", "suite.yaml", "--candidate", "other", "--only", "load"),
    ],
)
def test_every_command_with_chosen_arms_applies_the_rules(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...]
) -> None:
    monkeypatch.chdir(tmp_path)
    text, fault = REFUSED["accelerators_are_counted"]
    put(tmp_path, text)
    Store.open(STORE).close()
    with pytest.raises(UsageError, match=fault):
        quick_command.told(*words)


PRICED = written(known="engine: vllm", check="{metric: usd_per_million_output_tokens, margin: 5%}")


def priced(folder: Path) -> Path:
    (folder / "prices.yaml").write_text(
        "prices: [{deployment: old, price: $4/h}, {deployment: new, price: $4/h}, {deployment: other, price: $5/h}]\n"
    )
    return put(folder, PRICED.replace("baseline:", "prices: prices.yaml\nbaseline:"))


def test_a_price_of_a_chosen_arm_may_stand_in_the_file_of_prices(tmp_path: Path) -> None:
    file = load_suite(priced(tmp_path), None, "other")
    assert file.suite.deployments["other"].usd_per_hour == 5.0


def test_arms_chosen_for_a_priced_suite_are_priced_again(tmp_path: Path) -> None:
    chosen = load_suite(priced(tmp_path)).with_arms(None, "other")
    with pytest.raises(UsageError, match=r"the prices of old, other stand in prices\.yaml, which was not read"):
        require_priced(chosen.suite)
    require_priced(chosen.priced_today().suite)


def test_a_shortened_suite_is_priced_for_another_day_although_it_breaks_rules_of_the_whole_one(tmp_path: Path) -> None:
    path = priced(tmp_path)
    path.write_text(path.read_text().replace("for: 20s", "for: 200s").replace(FAILURES, f"{FAILURES}, {TAIL}"))
    yesterday = replace(load_suite(path).changed(quick_look), day=date(2026, 1, 1))
    assert rule_problems(yesterday.suite)
    assert yesterday.priced_today().suite == yesterday.suite
    forms = measured_forms(read_suite(path).suite, tmp_path, date(2026, 1, 1), {})
    assert sha256_of(yesterday.suite.to_stored()) in [form.sha256 for form in forms if form.is_only_part]


def test_several_candidates_of_a_shortened_suite_are_measured_in_turn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each was held to the rules of the whole suite, some of which the shortened one breaks."""
    monkeypatch.chdir(tmp_path)
    text = written(check=TAIL).replace("for: 20s", "for: 200s").replace("candidate: new", "candidates: [new, other]")
    for port, name in enumerate(("old", "new", "other"), 1):
        text = text.replace(f"http://{name}:8000", f"http://127.0.0.1:{port}")
    ended = quick_command.told("run", str(put(tmp_path, text)), "--quick")
    assert ended.exit_code == 12  # no server is there
    assert "old vs new: " in ended.stderr and "old vs other: " in ended.stderr
