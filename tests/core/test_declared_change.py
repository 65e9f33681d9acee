"""What the deployments declare is the change itself; what the servers tell otherwise is not, and the gate says so."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from benchgate.gate.comparison import TiedRuns
from benchgate.gate.guards.arms import sides_alike
from benchgate.gate.judge import judge
from benchgate.model.deployment import Arm
from benchgate.model.run import Evidence
from benchgate.model.verdict import Difference, GuardResult, Outcome, Verdict
from benchgate.suite.schema import Suite
from tests.fakes.measured import SuiteText, measured

TTFT: dict[str, object] = {"metric": "ttft", "margin": "10%"}
ERRORS: dict[str, object] = {"metric": "error_rate", "max": "1%"}
EIGHT = {"accelerator_names": ["NVIDIA H200"] * 8, "driver": "570"}
ONE = {"accelerator_names": ["NVIDIA H200"], "driver": "570"}
Keys = Mapping[str, Any]


def suite(*checks: dict[str, object], baseline: Keys | None = None, candidate: Keys | None = None) -> Suite:
    """A suite whose deployments say this of themselves."""
    made = SuiteText(list(checks) or [TTFT, ERRORS]).suite()
    deployments = {
        name: spec.model_copy(update=dict((baseline if name == "baseline" else candidate) or {}))
        for name, spec in made.deployments.items()
    }
    return made.model_copy(update={"deployments": deployments})


def run_of(made: Suite, baseline: Keys | None = None, candidate: Keys | None = None) -> Evidence:
    """A run of the suite whose servers tell these facts."""
    evidence = measured(made)
    arms = {
        arm: replace(
            evidence.run.arms[arm],
            facts=dict((baseline if arm is Arm.BASELINE else candidate) or {}),
            accelerators=made.deployments[arm.value].accelerators,
            engine=made.deployments[arm.value].engine,
        )
        for arm in Arm
    }
    return replace(evidence, run=replace(evidence.run, arms=arms))


def alike(verdict: Verdict) -> GuardResult:
    (found,) = [one for one in verdict.guards if one.id == "arms-alike"]
    return found


def fields(verdict: Verdict) -> dict[str, tuple[bool, str | None]]:
    """Of every difference whether it is declared, and by which key or word."""
    return {one.what: (one.declared, one.field) for one in verdict.differences if one.field is not None}


FLAGS_8 = {"flags": {"tp_size": 4, "dp_size": 2, "ep_size": 8}}
FLAGS_1 = {"flags": {"tp_size": 1, "dp_size": 1}}


@pytest.mark.parametrize(
    ("theirs", "ours", "told"),
    [
        ({}, {}, {}),
        (EIGHT, ONE, {"the hardware": (True, "accelerators")}),
        (
            FLAGS_8,
            FLAGS_1,
            {f"the engine's flag {name}_size": (True, "accelerators") for name in ("dp", "ep", "tp")},
        ),
        (
            {"flags": {"num_shard": 8}},
            {"flags": {"num_shard": 1}},
            {"the engine's flag num_shard": (True, "accelerators")},
        ),
        (
            {"flags": {"tensor_parallel_size": 4, "pipeline_parallel_size": 2}},
            {"flags": {"tensor_parallel_size": 1, "pipeline_parallel_size": 1}},
            {
                "the engine's flag tensor_parallel_size": (True, "accelerators"),
                "the engine's flag pipeline_parallel_size": (True, "accelerators"),
            },
        ),
    ],
)
def test_fewer_accelerators_that_the_suite_declares_need_no_permission(theirs: Keys, ours: Keys, told: Keys) -> None:
    declared = suite(baseline={"accelerators": 8}, candidate={"accelerators": 1})
    verdict = judge(declared, run_of(declared, theirs, ours))
    assert verdict.outcome is Outcome.PASS
    assert fields(verdict) == {"the number of accelerators": (True, "accelerators"), **told}
    assert "differ only in the declared change: the number of accelerators (8 for the" in alike(verdict).reason


@pytest.mark.parametrize(
    ("theirs", "ours", "field", "write"),
    [
        (EIGHT, ONE, "hardware", ["deployments.baseline.accelerators: 8"]),
        (
            {"flags": {"tp_size": 8}},
            {"flags": {"tp_size": 1}},
            "engine_flags",
            ["deployments.baseline.accelerators: 8"],
        ),
        (
            {"accelerator_names": ["NVIDIA H200"]},
            {"accelerator_names": ["NVIDIA A100-SXM4-80GB"]},
            "hardware",
            ["deployments.baseline.accelerator: H200", "deployments.candidate.accelerator: A100"],
        ),
        (
            {"engine_version": "0.9.2"},
            {"engine_version": "0.10"},
            "engine_version",
            ['deployments.baseline.engine_version: "0.9.2"', 'deployments.candidate.engine_version: "0.10"'],
        ),
        ({"engine_version": "0.9.2"}, {}, "engine_version", ["deployments.candidate.engine_version"]),
    ],
)
def test_what_the_suite_does_not_declare_is_invalid_and_says_what_to_write(
    theirs: Keys, ours: Keys, field: str, write: list[str]
) -> None:
    undeclared = suite()
    verdict = judge(undeclared, run_of(undeclared, theirs, ours))
    assert verdict.outcome is Outcome.INVALID
    assert [check.outcome for check in verdict.checks] == [Outcome.INVALID, Outcome.PASS]
    remedy = str(alike(verdict).remedy)
    at = [remedy.index(f"`{one}`") for one in write]
    assert max(at) < remedy.index(f"`gate.allow_different: [{field}]`")
    assert verdict.next_step == remedy


def test_what_no_key_declares_is_named_beside_the_keys() -> None:
    undeclared = suite()
    verdict = judge(undeclared, run_of(undeclared, {**EIGHT, "max_model_len": 8192}, {**ONE, "max_model_len": 4096}))
    remedy = str(alike(verdict).remedy)
    assert "`deployments.baseline.accelerators: 8` and `gate.allow_different: [context]`" in remedy
    assert "the stored run needs `gate.allow_different: [context, hardware]`" in remedy


@pytest.mark.parametrize(
    ("theirs", "ours"),
    [
        ({**EIGHT, "accelerator_names": ["NVIDIA H200"] * 4}, ONE),  # fewer than the suite says
        (EIGHT, {**ONE, "accelerator_names": ["NVIDIA H200"] * 2}),  # more
        (EIGHT, {**ONE, "driver": "580"}),
        (EIGHT, {**ONE, "accelerator_names": ["NVIDIA H100 80GB HBM3"]}),  # of a kind that the suite does not name
        ({"flags": {"tp_size": 4}}, {"flags": {"tp_size": 1}}),
        ({"flags": {"tp_size": 8}}, {"flags": {"tp_size": 2}}),
        ({"flags": {"tp_size": 8, "page_size": 16}}, {"flags": {"tp_size": 1, "page_size": 64}}),
        ({"flags": {"tp_size": 8}}, {}),
    ],
)
def test_servers_that_contradict_the_suite_are_not_what_it_declares(theirs: Keys, ours: Keys) -> None:
    declared = suite(baseline={"accelerators": 8}, candidate={"accelerators": 1})
    verdict = judge(declared, run_of(declared, theirs, ours))
    assert verdict.outcome is Outcome.INVALID
    assert alike(verdict).tripped


def test_data_parallel_attention_shares_the_accelerators_of_the_tensors() -> None:
    declared = suite(baseline={"accelerators": 8}, candidate={"accelerators": 4})
    flags = ({"tp_size": size, "dp_size": size, "enable_dp_attention": True} for size in (8, 4))
    verdict = judge(declared, run_of(declared, *({"flags": one} for one in flags)))
    assert verdict.outcome is Outcome.PASS


def test_as_many_accelerators_otherwise_spread_are_no_declared_change() -> None:
    declared = suite(baseline={"accelerators": 8}, candidate={"accelerators": 8})
    verdict = judge(declared, run_of(declared, {"flags": {"tp_size": 8}}, {"flags": {"tp_size": 4, "pp_size": 2}}))
    assert alike(verdict).tripped


@pytest.mark.parametrize(
    ("kinds", "names", "trips"),
    [
        (("H200", "A100"), ("NVIDIA H200", "NVIDIA A100-SXM4-80GB"), False),
        (("h200", "Gaudi 3"), ("NVIDIA H200", "Intel gaudi 3 OAM"), False),
        (("H200", "H100"), ("NVIDIA H200", "NVIDIA A100-SXM4-80GB"), True),
        (("A100", "A100"), ("NVIDIA A100-SXM4-40GB", "NVIDIA A100-SXM4-80GB"), True),
        (("H200", None), ("NVIDIA H200", "NVIDIA A100-SXM4-80GB"), True),
        (("H100", "H200"), ("NVIDIA GH200 480GB", "NVIDIA H200"), True),
    ],
)
def test_another_kind_of_accelerator_is_declared_by_naming_both(
    kinds: tuple[str | None, str | None], names: tuple[str, str], trips: bool
) -> None:
    declared = suite(baseline={"accelerator": kinds[0]}, candidate={"accelerator": kinds[1]})
    verdict = judge(declared, run_of(declared, *({"accelerator_names": [name]} for name in names)))
    assert alike(verdict).tripped is trips
    assert fields(verdict) == {"the hardware": (not trips, "hardware" if trips else "accelerator")}


@pytest.mark.parametrize(
    ("versions", "told", "trips"),
    [
        (("1", "2"), ("1", "2"), False),
        (("1", "2"), (None, "2"), False),  # what a server does not tell is what the suite says
        (("1", "2"), ("1", "1"), True),
        (("1", "2"), ("2", "1"), True),
        (("1", None), ("1", "2"), True),
        (("1", "1"), ("1", "1"), False),
        (("2", "2"), ("1", "1"), True),  # neither differs from the other, and both from what is declared
    ],
)
def test_versions_that_the_suite_declares_are_the_change_and_must_be_what_the_servers_tell(
    versions: tuple[str | None, str | None], told: tuple[str | None, str | None], trips: bool
) -> None:
    declared = suite(baseline={"engine_version": versions[0]}, candidate={"engine_version": versions[1]})
    facts = [{} if version is None else {"engine_version": version} for version in told]
    verdict = judge(declared, run_of(declared, *facts))
    assert alike(verdict).tripped is trips
    assert verdict.outcome is (Outcome.INVALID if trips else Outcome.PASS)
    if versions == ("1", "2") and not trips:
        assert fields(verdict) == {"the engine's version": (True, "engine_version")}


def test_a_server_of_another_version_than_declared_trips_whatever_is_judged() -> None:
    for checks in ((TTFT, ERRORS), (ERRORS,)):
        declared = suite(*checks, candidate={"engine_version": "0.10"})
        verdict = judge(declared, run_of(declared, {"engine_version": "0.9"}, {"engine_version": "0.9"}))
        assert verdict.outcome is Outcome.INVALID
        found = alike(verdict)
        said = "the server of candidate reports engine version 0.9, but the suite declares 0.10"
        assert found.reason == said
        assert '`deployments.candidate.engine_version: "0.9"`' in str(found.remedy)


def test_another_engine_is_declared_by_being_written() -> None:
    declared = suite(candidate={"engine": "sglang"})
    verdict = judge(
        declared, run_of(declared, {"engine_version": "1", "flags": {"block_size": 16}}, {"engine_version": "2"})
    )
    assert verdict.outcome is Outcome.PASS
    assert {field for _, field in fields(verdict).values()} == {"engine"}


BOUNDS: list[dict[str, object]] = [
    {"metric": "ttft", "max": "1s"},
    {"metric": "usd_per_million_output_tokens", "max": "$1000"},
    {"metric": "goodput"},
    ERRORS,
]
UNLIKE = (
    {**EIGHT, "engine_version": "1", "max_model_len": 8192},
    {**ONE, "engine_version": "2", "max_model_len": 4096},
)


def test_bounds_of_the_candidates_own_are_judged_whatever_the_baseline_is() -> None:
    absolute = suite(*BOUNDS)
    verdict = judge(absolute, run_of(absolute, *UNLIKE))
    assert verdict.outcome is Outcome.PASS
    found = alike(verdict)
    assert found.known
    assert "which is not declared; no load check compares the two" in found.reason
    assert fields(verdict)["the engine's version"] == (False, "engine_version")  # reported, and not permitted


def test_beside_margins_only_what_is_compared_is_invalid() -> None:
    both = suite(*BOUNDS, TTFT)
    verdict = judge(both, run_of(both, *UNLIKE))
    assert verdict.outcome is Outcome.INVALID
    assert [check.outcome for check in verdict.checks] == [*[Outcome.PASS] * len(BOUNDS), Outcome.INVALID]
    assert "the speed of candidate against baseline" in verdict.reason
    slow = suite(*BOUNDS, {"metric": "ttft", "statistic": "p95", "max": "1ms"}, TTFT)
    assert judge(slow, run_of(slow, *UNLIKE)).outcome is Outcome.BLOCK  # its own bound is broken, alike or not


def test_where_answers_are_compared_what_shapes_them_still_counts() -> None:
    accuracy: dict[str, object] = {"metric": "accuracy", "margin": "5 points"}
    made = suite(*BOUNDS, accuracy)
    assert judge(made, run_of(made, *UNLIKE)).outcome is Outcome.PASS
    templates = [{"chat_template_sha256": name} for name in ("aa", "bb")]
    found = alike(judge(made, run_of(made, *templates)))
    assert (found.tripped, found.invalidates) == (True, ())
    assert "`gate.allow_different: [chat_template]`" in str(found.remedy)
    only_bounds = suite(*BOUNDS)
    assert judge(only_bounds, run_of(only_bounds, *templates)).outcome is Outcome.PASS
    only_evals = suite(accuracy)
    assert alike(judge(only_evals, run_of(only_evals, *UNLIKE))).tripped  # without a check of the load, all of it


def test_candidates_of_two_stored_runs_are_held_to_what_each_run_declares() -> None:
    theirs, ours = suite(candidate={"accelerators": 8}), suite(candidate={"accelerators": 1})
    runs = [run_of(theirs, {}, EIGHT), run_of(ours, {}, ONE)]
    assert not sides_alike(TiedRuns(runs[1], runs[0]), ours).tripped
    undeclared = run_of(suite(), {}, EIGHT)
    found = sides_alike(TiedRuns(runs[1], undeclared), ours)
    assert (found.tripped, found.invalidates) == (True, ("compared-speed",))


def test_a_run_whose_suite_says_nothing_of_the_deployment_declares_nothing() -> None:
    made = suite()
    evidence = run_of(made, {"engine_version": "1"}, {"engine_version": "2"})
    for broken in ({}, {"deployments": None}, {"deployments": {"baseline": 3, "candidate": {"engine_version": 2}}}):
        stored = {**{key: value for key, value in evidence.run.suite.items() if key != "deployments"}, **broken}
        lost = replace(evidence, run=replace(evidence.run, suite=stored))
        assert alike(judge(made, lost)).tripped


def test_a_difference_is_a_value_with_the_key_that_declares_it() -> None:
    declared = suite(baseline={"accelerators": 8})
    (found,) = [one for one in judge(declared, run_of(declared)).differences if one.field is not None]
    assert found == Difference("the number of accelerators", "8", "1", declared=True, field="accelerators")
