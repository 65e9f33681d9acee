"""Token rates are held against memory bandwidth: impossible ones make the load INVALID, poor ones give a note."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from benchgate.errors import SuiteError
from benchgate.gate.evidence.roofline import BANDWIDTHS, bandwidth_of
from benchgate.gate.judge import judge
from benchgate.model.deployment import Arm
from benchgate.model.run import Evidence
from benchgate.model.telemetry import Counter, TelemetrySample, TelemetryWindow
from benchgate.model.verdict import GuardResult, Outcome, Verdict
from benchgate.suite.loader import parse_suite
from benchgate.suite.schema import Suite
from tests.fakes.measured import Effect, SuiteText, measured

PLAIN = SuiteText(checks=[{"metric": "ttft", "max": "1s"}, {"metric": "error_rate", "max": "1%"}]).suite()
LONG = Effect(tokens=20)  # in 0.24 s: about 83 tokens/s
DENSE: dict[str, Any] = {
    "active_weights_bytes": 141_000_000_000,
    "accelerator": "H100 SXM",
}  # 23.8 steps/s of one accelerator


def declaring(arms: tuple[Arm, ...] = (Arm.CANDIDATE,), **keys: object) -> Suite:
    """The suite with these keys at the deployments of these arms."""
    stored = PLAIN.to_stored()
    for arm in arms:
        stored["deployments"][stored[arm.value]] |= keys
    return Suite.from_stored(stored)


def judged(suite: Suite, candidate: Effect = LONG, baseline: Effect = LONG, **changes: object) -> Verdict:
    return judge(suite, replace(measured(suite, candidate, baseline), **changes))  # type: ignore[arg-type]


def guard_of(verdict: Verdict) -> GuardResult:
    (guard,) = [guard for guard in verdict.guards if guard.id == "pace-possible"]
    return guard


def drafting(evidence: Evidence) -> tuple[TelemetryWindow, ...]:
    """Readings in which the candidate's server drafted tokens."""
    first = next(one for one in evidence.load if one.arm is Arm.CANDIDATE)
    readings = tuple(TelemetrySample(at, {Counter.DRAFTED: 100.0 * at}, "born") for at in (0, 10))
    window = TelemetryWindow(first.stage, first.arm, first.block, first.position, "vllm", 10.0, True, readings)
    return (window,)


def test_a_stream_faster_than_its_memory_makes_the_load_invalid() -> None:
    verdict = judged(declaring(**DENSE, draft_tokens=0))
    guard = guard_of(verdict)
    assert verdict.outcome is Outcome.INVALID
    assert guard.tripped
    assert guard.reason == (
        "stage c4: 480 of 480 answers of the candidate came at more than 29.7 tokens/s (median 82.2): 1 x H100 SXM "
        "(3.35 TB/s) read 141 GB no faster"
    )
    assert guard.remedy is not None
    assert "deployments.candidate" in guard.remedy


@pytest.mark.parametrize(
    ("keys", "facts"),
    [
        ({}, {}),  # 16 tokens a step are possible where nobody says
        ({"draft_tokens": 3}, {}),
        ({"draft_tokens": 0, "active_weights_bytes": 40_000_000_000}, {}),  # the active part of a mixture of experts
        ({"draft_tokens": 0, "accelerators": 8}, {}),
        ({"draft_tokens": 0}, {"accelerator_names": ["NVIDIA H100 80GB HBM3"] * 4}),
        ({"draft_tokens": 0}, {"flags": {"tp_size": 4}}),
        ({"draft_tokens": 0, "accelerator": "H100"}, {"accelerator_names": ["AMD Instinct MI300X"] * 3}),
    ],
)
def test_a_stream_that_its_memory_allows_passes(keys: dict[str, object], facts: dict[str, object]) -> None:
    suite = declaring(**{**DENSE, **keys})
    count = keys.get("accelerators", 1)
    assert isinstance(count, int)
    verdict = judged(suite, replace(LONG, facts=facts, accelerators=count))
    assert guard_of(verdict) == GuardResult(
        "pace-possible", tripped=False, reason="no stream was faster than memory bandwidth allows", remedy=None
    )


@pytest.mark.parametrize("flag", ["speculative_num_draft_tokens", "speculative_num_steps"])
def test_drafts_are_those_that_the_server_reports(flag: str) -> None:
    for drafts, trips in ((1, True), (4, False)):
        verdict = judged(declaring(**DENSE), replace(LONG, facts={"flags": {flag: drafts}}))
        assert guard_of(verdict).tripped is trips
    assert "2 tokens a step" in guard_of(judged(declaring(**DENSE, draft_tokens=1))).reason


def test_a_server_that_drafts_although_the_suite_denies_it_is_given_the_usual_bound() -> None:
    suite = declaring(**DENSE, draft_tokens=0)
    evidence = measured(suite, LONG, LONG)
    assert not guard_of(judge(suite, replace(evidence, telemetry=drafting(evidence)))).tripped


@pytest.mark.parametrize(
    ("keys", "facts", "says"),
    [
        ({"accelerator": None}, {}, "undeclared and not reported"),
        ({"accelerator": "Cerebras"}, {}, "Cerebras"),
        ({"accelerator": None}, {"accelerator_names": ["NVIDIA X9"]}, "NVIDIA X9"),
    ],
)
def test_an_unknown_accelerator_is_no_fault(keys: dict[str, object], facts: dict[str, object], says: str) -> None:
    verdict = judged(declaring(**{**DENSE, **keys}, draft_tokens=0), replace(LONG, facts=facts))
    guard = guard_of(verdict)
    assert (guard.tripped, guard.known) == (False, False)
    assert says in guard.reason
    assert verdict.outcome is Outcome.PASS


def test_a_reported_accelerator_without_a_known_bandwidth_leaves_the_declared_one() -> None:
    facts: dict[str, object] = {"accelerator_names": ["NVIDIA X9"]}
    assert guard_of(judged(declaring(**DENSE, draft_tokens=0), replace(LONG, facts=facts))).tripped


def test_without_declared_weights_there_is_no_such_guard() -> None:
    assert "pace-possible" not in [guard.id for guard in judged(PLAIN).guards]


def test_a_baseline_that_is_too_fast_leaves_the_candidates_own_bounds_alone() -> None:
    verdict = judged(declaring((Arm.BASELINE,), **DENSE, draft_tokens=0))
    assert "480 answers of the baseline" in guard_of(verdict).reason
    assert verdict.outcome is Outcome.PASS
    both = judged(declaring(tuple(Arm), **DENSE, draft_tokens=0))
    assert (guard_of(both).reason.count("candidate"), both.outcome) == (1, Outcome.INVALID)


def test_short_and_few_fast_answers_trip_nothing() -> None:
    assert not guard_of(judged(declaring(**DENSE, draft_tokens=0), replace(LONG, tokens=10))).tripped
    few = Effect(tokens=20, slowdown=10.0, at_once=0)  # 8 tokens/s
    assert not guard_of(judged(declaring(**DENSE, draft_tokens=0), few)).tripped


def test_a_poor_rate_gives_a_note_and_changes_no_outcome() -> None:
    slow = replace(LONG, slowdown=60.0)  # 1.67 tokens/s of the 23.8 that one accelerator allows
    suite = declaring(**DENSE, draft_tokens=0)
    (note,) = judged(suite, slow).notes
    assert note.startswith(
        "stage c4, candidate: a stream gets 1.67 tokens/s, 7.01 % of the 23.8 that H100 SXM (3.35 TB/s) allows: look"
    )
    assert judged(suite, replace(LONG, slowdown=30.0)).notes == ()
    shared = declaring(**DENSE, draft_tokens=0, ready={"replicas": 2})  # a stream has the half of four accelerators
    assert "of the 47.5 that" in judged(shared, replace(slow, accelerators=4)).notes[0]


def test_stages_of_many_streams_give_no_note() -> None:
    stored = declaring(**DENSE, draft_tokens=0).to_stored()
    stored["load"]["sweep"][0]["concurrency"] = 5
    assert judged(Suite.from_stored(stored), replace(LONG, slowdown=60.0)).notes == ()
    one_token = replace(LONG, tokens=1)
    assert judged(declaring(**DENSE, draft_tokens=0), one_token).notes == ()


@pytest.mark.parametrize(
    ("name", "gb_per_s"),
    [
        ("NVIDIA H100 80GB HBM3", 3_350),
        ("NVIDIA H100 NVL", 3_938),
        ("NVIDIA H100 PCIe", 2_039),
        ("h100-sxm", 3_350),
        ("AMD Instinct MI300X OAM", 5_300),
        ("NVIDIA A100-SXM4-40GB", 2_039),
        ("NVIDIA GeForce RTX 4090", 1_008),
        ("NVIDIA L40S", 864),
        ("NVIDIA H1000", None),
        ("", None),
    ],
)
def test_the_bandwidth_of_a_name_is_that_of_its_most_specific_entry(name: str, gb_per_s: float | None) -> None:
    found = bandwidth_of(name)
    assert (None if found is None else found.gb_per_s) == gb_per_s


def test_every_entry_of_the_table_finds_itself() -> None:
    for entry in BANDWIDTHS:
        found = bandwidth_of(entry.name)
        assert found is not None
        assert found.gb_per_s == entry.gb_per_s


def test_weights_are_a_size_and_drafts_need_them() -> None:
    text = "suite: s\ndeployments:\n  a: {url: http://a:1, model: m, KEYS}\nbaseline: a\ncandidate: a\n"
    text += (
        "load:\n  workload: {input: 8 tokens, output: 8 tokens}\n  sweep: [{stage: c1, concurrency: 1, requests: 10}]\n"
    )
    read = parse_suite(text.replace("KEYS", "active_weights: 141GB, draft_tokens: 0"), "s.yaml")
    assert read.deployments["a"].active_weights_bytes == 141_000_000_000
    for keys, says in (
        ("draft_tokens: 0", "`draft_tokens` belongs to `active_weights`"),
        ("active_weights: 141", "80GB"),
    ):
        with pytest.raises(SuiteError, match=says):
            parse_suite(text.replace("KEYS", keys), "s.yaml")
