"""The name that answers give their model, beside the one that was asked for."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from benchgate.gate.comparison import by_adapter
from benchgate.gate.guards.text import model_names, unexpected_names
from benchgate.gate.judge import judge
from benchgate.model.deployment import Arm
from benchgate.model.run import Evidence
from benchgate.model.verdict import Outcome
from benchgate.suite.schema import Suite, traffic_classes
from tests.fakes.answer_texts import columns_of, saying
from tests.fakes.measured import SuiteText, measured

CHECKS: list[dict[str, object]] = [{"metric": "ttft", "margin": "10%"}, {"metric": "error_rate", "max": "5%"}]
SUITE = SuiteText(CHECKS).suite()


def answering(evidence: Evidence, arm: Arm, *names: str | None) -> Evidence:
    """The arm's answers give these names in turn."""
    return saying(evidence, arm, lambda c: {"answer_model": [names[row % len(names)] for row in range(len(c))]})


def declaring(arm: Arm, *names: str, adapter: object = None) -> Suite:
    stored: dict[str, Any] = SUITE.to_stored()
    stored["deployments"][arm.value]["answers_as"] = list(names)
    stored["load"]["workload"]["adapter"] = adapter
    return Suite.from_stored(stored)


@pytest.mark.parametrize(("name", "asked"), [
    ("m", "m"),
    ("Llama-3.1-8B", "meta-llama/llama-3.1-8b"),
    ("meta-llama/Llama-3.1-8B", "Llama-3.1-8B"),
    ("/models/llama-3.1-8b-q4_k_m.gguf", "llama-3.1-8b-q4_k_m"),
    ("C:\\models\\tiny.GGUF", "tiny"),
    ("gpt-4o-2024-08-06", "gpt-4o"),
    ("gpt-4-0613", "gpt-4"),
    ("openai/gpt-4o-20240806", "gpt-4o"),
    ("sonnet@20240620", "sonnet"),
])  # fmt: skip
def test_one_name_in_two_spellings_is_expected(name: str, asked: str) -> None:
    assert unexpected_names([name], asked) == []


@pytest.mark.parametrize(("name", "asked"), [
    ("llama-3.1-70b", "llama-3.1-8b"),
    ("gpt-4o-mini", "gpt-4o"),
    ("gpt-4o-mini-2024-07-18", "gpt-4o"),
    ("gpt-4o", "gpt-4o-2024-08-06"),
    ("gpt-4o-2024-08-06-x", "gpt-4o"),
    ("gpt-4-9613", "gpt-4"),
    ("", "m"),
])  # fmt: skip
def test_another_model_is_unexpected_unless_it_is_declared(name: str, asked: str) -> None:
    assert unexpected_names([name], asked) == [name]
    assert unexpected_names([name], asked, [name]) == []
    assert unexpected_names([name], asked, [name.upper() + "x"]) == [name]


def test_two_snapshots_in_one_arm_are_two_models() -> None:
    both = ["gpt-4o-2024-05-13", "gpt-4o-2024-08-06"]
    assert unexpected_names(both, "gpt-4o") == both
    assert unexpected_names(["gpt-4o", both[0]], "gpt-4o") == [both[0]]
    assert unexpected_names(["x/gpt-4o", "gpt-4o"], "gpt-4o") == []
    assert unexpected_names(both, "gpt-4o", both[:1]) == []


def test_runs_that_do_not_know_the_names_say_nothing_of_them() -> None:
    guard = model_names(measured(SUITE), SUITE)
    assert (guard.tripped, guard.warns, guard.known) == (False, False, False)
    assert judge(SUITE, measured(SUITE)).outcome is Outcome.PASS


def test_answers_of_the_model_that_was_asked_for_hold() -> None:
    named = answering(answering(measured(SUITE), Arm.BASELINE, "m"), Arm.CANDIDATE, "org/M", None)
    guard = model_names(named, SUITE)
    assert (guard.tripped, guard.warns, guard.known) == (False, False, True)


@pytest.mark.parametrize("arm", Arm)
def test_another_name_warns_and_says_what_to_write(arm: Arm) -> None:
    verdict = judge(SUITE, answering(measured(SUITE), arm, "m", "small"))
    assert verdict.outcome is Outcome.WARN
    asked = f'the {arm.value} {arm.value} was asked for "m" and answered as "small"'
    assert f"guard model-names warns: {asked}" in verdict.reason
    assert verdict.next_step is not None
    assert f'add `answers_as: ["small"]` to `deployments.{arm.value}`' in verdict.next_step
    declared = declaring(arm, "small")
    assert judge(declared, answering(measured(SUITE), arm, "m", "small")).outcome is Outcome.PASS


def test_both_arms_under_another_name_warn_of_both() -> None:
    both = answering(answering(measured(SUITE), Arm.BASELINE, "x"), Arm.CANDIDATE, "x")
    guard = model_names(both, SUITE)
    assert guard.warns
    assert "the baseline baseline was asked" in guard.reason
    assert "the candidate candidate was asked" in guard.reason


def test_an_adapter_is_asked_for_by_its_own_name() -> None:
    suite = declaring(Arm.CANDIDATE, adapter="lora-7")
    named = answering(answering(measured(SUITE), Arm.BASELINE, "lora-7"), Arm.CANDIDATE, "m")
    guard = model_names(named, suite)
    assert guard.warns
    assert guard.reason == 'the candidate candidate was asked for "lora-7" and answered as "m"'


def test_each_request_of_a_mix_of_adapters_is_held_to_its_own() -> None:
    suite = declaring(Arm.CANDIDATE, adapter={"names": ["lora-1", "lora-2"]})
    (traffic,) = traffic_classes(suite)
    evidence = measured(suite)
    load = tuple(
        columns_of(one, answer_model=[traffic.adapter_of(suite.seed, one.block, int(n)) for n in one.requests.index])
        for one in evidence.load
    )
    right = model_names(replace(evidence, load=load), suite)
    assert (right.tripped, right.warns, right.known) == (False, False, True)
    guard = model_names(answering(replace(evidence, load=load), Arm.CANDIDATE, "lora-1"), suite)
    assert guard.warns
    assert guard.reason == 'the candidate candidate was asked for "lora-2" and answered as "lora-1"'


def test_an_adapter_that_no_request_was_for_has_no_figures() -> None:
    suite = declaring(Arm.CANDIDATE, adapter={"names": [f"lora-{n}" for n in range(500)], "weights": "zipf"})
    (traffic,) = traffic_classes(suite)
    execution = measured(suite).load[0]
    drawn = {traffic.adapter_of(suite.seed, execution.block, int(n)) for n in execution.requests.index}
    parts = by_adapter(execution, traffic, suite.seed)
    assert parts.keys() == drawn and len(drawn) < 500
    assert sum(len(part.requests) for part in parts.values()) == len(execution.requests)


def test_answers_of_the_ramp_count_too() -> None:
    evidence = answering(measured(SUITE), Arm.CANDIDATE, "m")
    ramp = answering(measured(SUITE), Arm.CANDIDATE, "other")
    mixed = tuple(
        replace(o, ramp=other.requests) if o.arm is Arm.CANDIDATE else o
        for o, other in zip(evidence.load, ramp.load, strict=True)
    )
    assert model_names(replace(evidence, load=mixed), SUITE).warns


def test_a_servers_long_list_of_names_is_shortened() -> None:
    names = [f"name-{number}" + "x" * 500 for number in range(9)]
    guard = model_names(answering(measured(SUITE), Arm.CANDIDATE, *names), SUITE)
    assert guard.warns
    assert len(guard.reason) < 500
    assert guard.reason.endswith("…")


def test_a_suite_without_declared_names_keeps_its_bytes() -> None:
    assert all("answers_as" not in spec for spec in SUITE.to_stored()["deployments"].values())
    kept = declaring(Arm.CANDIDATE, "small").to_stored()["deployments"]
    assert kept["candidate"]["answers_as"] == ["small"]
    assert "answers_as" not in kept["baseline"]
