"""What differed between the two sides is data, and whether it was declared; what nobody declared prevents a PASS."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest

from benchgate.gate.comparison import TiedRuns, compare
from benchgate.gate.evidence.deployments import (
    Declared,
    accelerators_by_flags,
    compare_deployments,
    declared,
    differences,
    vocabulary_warning,
)
from benchgate.gate.guards.arms import arms_alike, sides_alike
from benchgate.gate.judge import judge
from benchgate.model.deployment import Arm, Deployment
from benchgate.model.run import AT_THE_START, DeploymentFault, Evidence
from benchgate.model.telemetry import Counter, Gauge, TelemetrySample, TelemetryWindow
from benchgate.model.verdict import Difference, GuardResult, Outcome, Verdict
from benchgate.suite.schema import Suite
from tests.fakes import evidence as fake
from tests.fakes.measured import SuiteText, measured

TTFT: dict[str, object] = {"metric": "ttft", "margin": "10%"}
TPOT: dict[str, object] = {"metric": "tpot", "margin": "10%"}


def suite(*allowed: str, checks: tuple[dict[str, object], ...] = (TTFT,), blocks: int = 8) -> Suite:
    return SuiteText(list(checks), blocks, gate={"allow_different": list(allowed)}).suite()


def with_arms(
    evidence: Evidence, baseline: Mapping[str, object] | None = None, candidate: Mapping[str, object] | None = None
) -> Evidence:
    """The same run whose servers say this of themselves."""
    told = {Arm.BASELINE: baseline or {}, Arm.CANDIDATE: candidate or {}}
    arms = {arm: replace(evidence.run.arms[arm], facts=dict(facts)) for arm, facts in told.items()}
    return replace(evidence, run=replace(evidence.run, arms=arms))


def guard(verdict: Verdict, name: str) -> GuardResult:
    (found,) = [one for one in verdict.guards if one.id == name]
    return found


def difference(verdict: Verdict, what: str) -> Difference:
    (found,) = [one for one in verdict.differences if one.what == what]
    return found


SHARED = [
    ("engine_version", {"engine_version": "1"}, {"engine_version": "2"}, "the engine's version", "1", "2"),
    ("engine_version", {"engine_version": "1"}, {}, "the engine's version", "1", "not reported"),
    ("context", {"max_model_len": 4096}, {"max_model_len": 8192}, "the longest context", "4096", "8192"),
    ("context", {"n_ctx": 512}, {"max_model_len": 2048}, "the longest context", "512", "2048"),
    ("context", {"context_tokens": 512}, {"context_tokens": 1024}, "the longest context", "512", "1024"),
    ("slots", {"total_slots": 4}, {"total_slots": 8}, "the slots", "4", "8"),
    ("slots", {"slots": 4}, {"slots": 8}, "the slots", "4", "8"),
    ("threads", {"threads": 4}, {"threads": 8}, "the threads", "4", "8"),
    ("vocabulary", {"n_vocab": 1}, {"n_vocab": 2}, "the size of the vocabulary", "1", "2"),
    ("chat_template", {"chat_template_sha256": "aa"}, {"chat_template_sha256": "bb"}, "the chat template", "aa", "bb"),
    ("hardware", {"accelerator_names": ["H200"]}, {"accelerator_names": ["H100", "H100"]}, "the hardware",
     "1 x H200", "2 x H100"),
    ("hardware", {"accelerator_names": ["A"], "driver": "570"}, {"accelerator_names": ["A"], "driver": "580"},
     "the hardware", "1 x A, driver 570", "1 x A, driver 580"),
    ("engine_flags", {"flags": {"kv_cache_dtype": "auto", "tp_size": 2}},
     {"flags": {"kv_cache_dtype": "fp8", "tp_size": 2}}, "the engine's flag kv_cache_dtype", "auto", "fp8"),
    ("engine_flags", {"flags": {"tp_size": 2}}, {"flags": {"tp_size": 2, "speculative_algorithm": "EAGLE"}},
     "the engine's flag speculative_algorithm", "not reported", "EAGLE"),
    ("engine_flags", {"flags": {"tp_size": 2}}, {}, "the engine's flags", "reported", "not reported"),
]  # fmt: skip


@pytest.mark.parametrize(("field", "baseline", "candidate", "what", "theirs", "ours"), SHARED)
def test_what_both_arms_must_share_prevents_a_pass_until_it_is_declared(
    field: str, baseline: dict[str, object], candidate: dict[str, object], what: str, theirs: str, ours: str
) -> None:
    evidence = with_arms(measured(suite()), baseline, candidate)
    verdict = judge(suite(), evidence)
    assert verdict.outcome is Outcome.INVALID
    found = difference(verdict, what)
    assert (found.baseline, found.candidate, found.declared, found.field) == (theirs, ours, False, field)
    assert verdict.differences[0] is found  # what nobody declared comes first
    alike = guard(verdict, "arms-alike")
    assert f"{what} ({theirs} for the baseline, {ours} for the candidate)" in alike.reason
    assert f"`gate.allow_different: [{field}]`" in (alike.remedy or "")
    declared = judge(suite(field), evidence)
    assert declared.outcome is Outcome.PASS
    assert difference(declared, what).declared
    assert what in guard(declared, "arms-alike").reason


def test_several_flags_are_declared_by_one_word() -> None:
    evidence = with_arms(measured(suite()), {"flags": {"a": 1, "b": 1}}, {"flags": {"a": 2, "b": 2}})
    alike = guard(judge(suite(), evidence), "arms-alike")
    assert "`gate.allow_different: [engine_flags]`" in (alike.remedy or "")


def test_of_another_engine_the_version_and_the_flags_need_no_second_word() -> None:
    evidence = with_arms(measured(suite()), {"engine_version": "1", "flags": {"tp_size": 2}}, {"engine_version": "7"})
    arms = dict(evidence.run.arms)
    arms[Arm.CANDIDATE] = replace(arms[Arm.CANDIDATE], engine="sglang")
    evidence = replace(evidence, run=replace(evidence.run, arms=arms))
    verdict = judge(suite(), evidence)
    assert verdict.outcome is Outcome.PASS
    assert all(one.declared for one in verdict.differences)
    assert {one.field for one in verdict.differences} - {None} == {"engine"}


def test_hardware_that_only_one_arm_was_asked_for_is_shown_and_trips_nothing() -> None:
    verdict = judge(suite(), with_arms(measured(suite()), {"accelerator_names": ["H200"], "driver": "570"}))
    assert verdict.outcome is Outcome.PASS
    found = difference(verdict, "the hardware")
    assert (found.baseline, found.candidate, found.declared, found.field) == (
        "1 x H200, driver 570", "not reported", False, None,
    )  # fmt: skip


def test_what_a_candidate_is_is_the_change_itself() -> None:
    one = Deployment("b", "m", "vllm", "http://b", {"weights": "f16"}, {"n_params": 8, "weights_at": "org/m"}, 2.0)
    other = Deployment("c", "m-fp8", "vllm", "http://c", {"weights": "q8"}, {"n_params": 8, "weights_at": "org/q"})
    found = {one.what: one for one in compare_deployments(Declared(one), Declared(other), ())}
    assert {(what, d.baseline, d.candidate) for what, d in found.items()} == {
        ("model", "m", "m-fp8"),
        ("address", "http://b", "http://c"),
        ("price of an accelerator per hour", "$2", "not reported"),
        ("declared: weights", "f16", "q8"),
        ("reported: weights_at", "org/m", "org/q"),
    }
    assert all(d.declared and d.field is None for d in found.values())
    assert compare_deployments(Declared(one), Declared(one), ()) == ()
    ours = replace(one, url=None)
    assert [(d.what, d.candidate) for d in compare_deployments(Declared(one), Declared(ours), ())] == [
        ("address", "not reported")
    ]


def test_the_change_in_words_is_kept_with_the_suite_where_it_is_said() -> None:
    assert "change" not in suite().to_stored()
    said = Suite.from_stored({**suite().to_stored(), "change": "weights in FP8"})
    assert said.to_stored()["change"] == "weights in FP8"
    assert judge(said, measured(said)).policy_sha256 == judge(suite(), measured(suite())).policy_sha256


def test_how_the_limit_of_an_answer_is_called_is_said_and_trips_nothing() -> None:
    evidence = measured(suite())
    arms = dict(evidence.run.arms)
    named: dict[str, object] = {"max_tokens_field": "max_completion_tokens"}
    arms[Arm.CANDIDATE] = replace(arms[Arm.CANDIDATE], settings=named)
    verdict = judge(suite(), replace(evidence, run=replace(evidence.run, arms=arms)))
    found = difference(verdict, "the request field for the maximum number of tokens")
    assert (found.baseline, found.candidate, found.declared) == ("max_tokens", "max_completion_tokens", False)
    assert verdict.outcome is Outcome.PASS


def test_of_a_deployment_that_was_never_there_nothing_is_compared() -> None:
    fault = DeploymentFault(Arm.CANDIDATE, AT_THE_START, "refused")
    evidence = replace(with_arms(measured(suite()), {"engine_version": "1"}), target_faults=(fault,))
    assert judge(suite(), evidence).differences == ()


def test_of_one_deployment_measured_alone_nothing_differs() -> None:
    alone = suite(checks=({"metric": "ttft", "max": "1s"},))
    alone = alone.model_copy(update={"candidate": "baseline", "quality": None, "shadow": None})
    assert judge(alone, with_arms(measured(alone), {"engine_version": "1"})).differences == ()


def test_candidates_of_two_stored_runs_must_be_served_alike_too() -> None:
    first, second = (measured(suite(), run_id=name) for name in ("one", "two"))
    told = {"engine_version": "1"}
    first, second = with_arms(first, told, told), with_arms(second, told, {"engine_version": "2"})
    assert guard(judge(suite("engine_version"), second, first), "sides-alike").reason.startswith(
        "the deployments of the two runs differ only in the declared change: the engine's version (1"
    )
    verdict = judge(suite(), second, first)
    assert guard(verdict, "sides-alike").tripped
    assert difference(verdict, "the engine's version").field == "engine_version"
    assert not guard(judge(suite(), with_arms(second, told, told), first), "sides-alike").tripped


def test_a_run_that_does_not_know_both_sides_is_compared_with_nothing() -> None:
    evidence = measured(suite())
    lost = replace(evidence, run=replace(evidence.run, arms={Arm.BASELINE: evidence.run.arms[Arm.BASELINE]}))
    assert arms_alike(lost, suite()).tripped
    assert sides_alike(TiedRuns(lost, evidence), suite()).tripped
    assert vocabulary_warning(compare(lost), suite("vocabulary")) is None
    assert differences(compare(lost), suite()) == ()


def window(evidence: Evidence, place: int, hits: float | None = None, clock_hz: float | None = None) -> TelemetryWindow:
    seen = evidence.load[place]
    counters: dict[Counter | Gauge, float] = {Counter.PREFIX_QUERIES: 1000.0}
    if hits is not None:
        counters[Counter.PREFIX_HITS] = hits
    state: dict[Counter | Gauge, float] = {} if clock_hz is None else {Gauge.GPU_CLOCK: clock_hz}
    readings = (
        TelemetrySample(0, dict.fromkeys(counters, 0.0)),
        TelemetrySample(1, state),
        TelemetrySample(2, counters),
    )
    return TelemetryWindow(seen.stage, seen.arm, seen.block, seen.position, "vllm", 1.5, True, readings)


def watched(hits: Mapping[Arm, float | None], clock_hz: Mapping[Arm, float | None]) -> Evidence:
    evidence = measured(suite())
    windows = tuple(
        window(evidence, place, hits[seen.arm], clock_hz[seen.arm]) for place, seen in enumerate(evidence.load)
    )
    return replace(evidence, telemetry=windows)


@pytest.mark.parametrize(
    ("baseline", "candidate", "shown"),
    [(0.0, 12.0, ("0 %", "1.20 %")), (0.0, 9.0, None), (40.0, 10.0, ("4.00 %", "1.00 %")), (None, 40.0, None)],
)
def test_how_warm_the_caches_were_is_said(
    baseline: float | None, candidate: float | None, shown: tuple[str, str] | None
) -> None:
    hits = {Arm.BASELINE: baseline, Arm.CANDIDATE: candidate}
    verdict = judge(suite(), watched(hits, dict.fromkeys(Arm)))
    found = [d for d in verdict.differences if d.what == "prompt tokens found in the prefix cache, stage c4"]
    assert [(d.baseline, d.candidate) for d in found] == ([] if shown is None else [shown])
    assert all(not d.declared and d.field is None for d in found)


def test_how_fast_the_accelerators_ran_is_said() -> None:
    hits: dict[Arm, float | None] = dict.fromkeys(Arm)
    verdict = judge(suite(), watched(hits, {Arm.BASELINE: 1.98e9, Arm.CANDIDATE: 1.41e9}))
    found = difference(verdict, "the accelerators' clock, stage c4")
    assert (found.baseline, found.candidate) == ("1,980 MHz", "1,410 MHz")
    for clocks in ({Arm.BASELINE: 1.98e9, Arm.CANDIDATE: 1.95e9}, {Arm.BASELINE: 1.98e9, Arm.CANDIDATE: None}):
        assert not [d for d in judge(suite(), watched(hits, clocks)).differences if "clock" in d.what]


def test_who_began_oftener_is_said_of_an_odd_number_of_blocks() -> None:
    odd = suite(blocks=9)
    found = difference(judge(odd, measured(odd)), "blocks of a stage measured first")
    assert (found.baseline, found.candidate) == ("5 of 9", "4 of 9")
    assert not [d for d in judge(suite(), measured(suite())).differences if "first" in d.what]


def test_tokens_of_two_vocabularies_are_never_a_silent_pass() -> None:
    throughput: dict[str, object] = {"metric": "output_throughput", "margin": "10%"}
    length: dict[str, object] = {"metric": "output_length", "margin": "10%"}
    allowed = suite("vocabulary", checks=(TPOT, throughput, length, TTFT))
    evidence = measured(allowed)
    for facts in (({"n_vocab": 1}, {"n_vocab": 2}), ({}, {})):
        verdict = judge(allowed, with_arms(evidence, *facts))
        assert [check.outcome for check in verdict.checks] == [*[Outcome.WARN] * 3, Outcome.PASS]
        assert "different amounts of text" in verdict.reason
    same = {"n_vocab": 1}
    assert judge(allowed, with_arms(evidence, same, same)).outcome is Outcome.PASS
    slo = suite("vocabulary", checks=({"metric": "tpot", "max": "1s"},))
    assert judge(slo, measured(slo)).outcome is Outcome.PASS  # a bound in the candidate's own tokens


def test_an_arm_that_a_run_did_not_record_declares_nothing() -> None:
    run = fake.run()
    assert declared(replace(run, arms={Arm.BASELINE: run.arms[Arm.BASELINE]}), Arm.CANDIDATE) is None


@pytest.mark.parametrize(("flags", "accelerators"), [(None, 1), ("tp 4", 1), ({"tp_size": 4}, 4)])
def test_flags_that_cannot_be_read_spread_the_model_over_one_accelerator(flags: object, accelerators: int) -> None:
    assert accelerators_by_flags(replace(fake.deployment(Arm.CANDIDATE), facts={"flags": flags})) == accelerators
