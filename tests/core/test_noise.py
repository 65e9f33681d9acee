"""The noise of a deployment: from a calibration's evidence to figures, a false-block rate, and words."""

from __future__ import annotations

import json
from dataclasses import asdict, replace

import numpy as np
import pytest

from benchgate.gate.calibration import disagreements, false_blocks, spreads
from benchgate.gate.judge import judge
from benchgate.model.deployment import Arm, Deployment, describe_hardware, engine_version_of
from benchgate.model.noise import (
    FalseBlocks,
    NoiseKey,
    NoiseProfile,
    NoiseSpread,
    SelfDisagreement,
    format_age,
    noise_key,
    staleness_reasons,
)
from benchgate.model.run import ClientUse, Evidence
from benchgate.model.telemetry import Counter, Gauge, TelemetrySample, TelemetryWindow
from benchgate.model.verdict import Outcome
from benchgate.report.sections.noise import noise_lines
from benchgate.suite.deployment import Ready
from benchgate.suite.schema import Suite
from tests.fakes.measured import HEALTHY, Effect, Noise, SuiteText, measured

Line = dict[str, object]
TTFT: Line = {"metric": "ttft", "margin": "10%"}
ACCURACY: Line = {"metric": "accuracy", "margin": "2 points"}
AT = "2026-01-01T00:01:00.000Z"  # when the runs of `measured` ended


def asked(*checks: Line, blocks: int = 8, looks: tuple[int, ...] = ()) -> Suite:
    suite = SuiteText(list(checks) or [TTFT], blocks=blocks).suite()
    assert suite.load is not None
    return suite.model_copy(update={"load": suite.load.model_copy(update={"looks": looks})})


def calibrated(suite: Suite, *, blocks: int, cv: float = 0.02, seed: int = 1, effect: Effect = HEALTHY) -> Evidence:
    """The suite's baseline against itself, in so many pairs."""
    assert suite.load is not None
    load = suite.load.model_copy(update={"blocks": blocks, "looks": ()})
    own = suite.model_copy(update={"candidate": "baseline", "load": load})
    seen = measured(own, effect, effect, noise=Noise(cv=cv, seed=seed))
    return replace(seen, run=replace(seen.run, suite={**seen.run.suite, "calibration": True}))


def profile(**changes: object) -> NoiseProfile:
    key = NoiseKey("2 x H200", "vllm", "m", "s" * 64)
    made = NoiseProfile(
        key, "2025-12-31T00:00:00Z", "calibration", 10, (NoiseSpread("ttft", "p50", "c4", 0.02, 0.03, 10),)
    )
    return replace(made, **changes)  # type: ignore[arg-type]  # fields of the profile by name


def test_spread_of_a_latency_is_the_noise_that_was_put_in() -> None:
    suite = asked()
    found = {(one.metric, one.statistic): one for one in spreads(calibrated(suite, blocks=100, cv=0.04), suite)}
    for number in (("ttft", "p50"), ("e2e", "p95"), ("tpot", "mean"), ("output_throughput", None)):
        assert found[number].cv_run == pytest.approx(0.04, rel=0.15)
        assert found[number].sd_paired == pytest.approx(0.04 * 2**0.5, rel=0.2)  # two arms that vary by themselves
        assert found[number].n == 100


def test_drift_counts_from_run_to_run_and_not_between_the_arms_of_a_pair() -> None:
    suite = asked()
    own = suite.model_copy(update={"candidate": "baseline"})
    drifting = measured(own, noise=Noise(cv=0.001, drift=0.3))
    found = next(one for one in spreads(drifting, suite) if (one.metric, one.statistic) == ("ttft", "p50"))
    assert found.cv_run > 0.05
    assert found.sd_paired < 0.02


def test_shares_vary_in_points_and_a_measured_zero_is_a_measurement() -> None:
    suite = asked()
    found = {one.metric: one for one in spreads(calibrated(suite, blocks=6), suite)}
    assert found["error_rate"] == NoiseSpread("error_rate", None, "c4", 0.0, 0.0, 6)
    seen = calibrated(suite, blocks=2)
    failing = measured(asked(blocks=2), Effect(failed=6, failed_block=1))  # 10 % of one of the blocks of one arm
    one = next(s for s in spreads(replace(seen, load=failing.load), suite) if s.metric == "error_rate")
    assert one.cv_run == pytest.approx(0.05)  # variances 0 and 0.1²/2, the mean of which is 0.05²
    assert one.sd_paired == pytest.approx(0.1 / 2**0.5)


def test_what_a_block_lacks_has_no_spread() -> None:
    suite = asked()
    found = {one.metric for one in spreads(calibrated(suite, blocks=3, effect=Effect(failed=60)), suite)}
    assert found == {"error_rate", "goodput", "rejected"}
    assert not [one for one in spreads(calibrated(suite, blocks=1), suite)]
    without_slo = suite.model_copy(update={"slo": None})
    assert "goodput" not in {one.metric for one in spreads(calibrated(suite, blocks=3), without_slo)}


def test_answers_that_differ_are_counted_by_task_and_for_the_recorded_prompts() -> None:
    own = asked().model_copy(update={"candidate": "baseline"})
    seen = measured(own, Effect(wrong=tuple(range(6))), self_differs=tuple(range(9)))
    assert disagreements(seen) == (
        SelfDisagreement("task", "add", 0.02, 300),
        SelfDisagreement("task", "sort", 0.02, 300),
        SelfDisagreement("shadow", "shadow", 0.045, 200),
    )
    assert [one.differing for one in disagreements(seen)] == [6, 6, 9]


def test_answers_that_cannot_be_paired_are_no_agreement() -> None:
    own = asked().model_copy(update={"candidate": "baseline"})
    seen = measured(own)
    assert seen.shadow is not None
    broken = replace(
        seen,
        quality=tuple(o for o in seen.quality if o.arm is Arm.BASELINE or o.task == "add"),
        shadow=replace(seen.shadow, fault="the server went away"),
    )
    assert [one.name for one in disagreements(broken)] == ["add"]
    cut = replace(seen, quality=tuple(replace(o, items=o.items[:9]) for o in seen.quality), shadow=None)
    assert disagreements(cut) == ()
    empty = replace(seen, quality=tuple(replace(o, items=(), expected_n=0) for o in seen.quality), shadow=None)
    assert disagreements(empty) == ()


def test_a_policy_that_suits_the_noise_blocks_no_order_of_the_pairs() -> None:
    suite = asked(TTFT, ACCURACY)
    found = false_blocks(suite, calibrated(suite, blocks=10), np.random.default_rng(1), draws=30)
    assert found == FalseBlocks(30, 0, 0, 0)
    assert found.promoted == 30


@pytest.mark.slow
def test_a_margin_far_inside_the_noise_is_inconclusive_and_seldom_blocks() -> None:
    suite = asked({"metric": "ttft", "margin": "0.5%"})
    found = false_blocks(suite, calibrated(suite, blocks=10, cv=0.05), np.random.default_rng(1), draws=120)
    assert found is not None
    assert found.inconclusive > 90
    assert found.blocked <= 14  # 5 % of 120 and three standard deviations
    assert found.promoted + found.inconclusive + found.blocked == 120


def test_draws_are_the_generators_alone() -> None:
    suite = asked({"metric": "ttft", "margin": "3%"})
    seen = calibrated(suite, blocks=8, cv=0.04)
    first, again = (false_blocks(suite, seen, np.random.default_rng(7), draws=20) for _ in range(2))
    assert first == again
    assert first is not None and 0 < first.promoted < 20  # the orders differ in what they show


@pytest.mark.slow
def test_looks_are_taken_as_a_run_takes_them() -> None:
    suite = asked({"metric": "ttft", "margin": "4%"}, blocks=8, looks=(4, 8))
    seen = calibrated(suite, blocks=8, cv=0.03)
    found = false_blocks(suite, seen, np.random.default_rng(3), draws=25)
    once = false_blocks(asked({"metric": "ttft", "margin": "4%"}, blocks=4), seen, np.random.default_rng(3), draws=25)
    assert found is not None and once is not None
    assert found.invalid == 0  # a run that ended at a look is whole
    assert found.promoted > once.promoted  # what four blocks leave open, eight settle


def test_fewer_pairs_than_a_run_may_have_are_drawn_again() -> None:
    suite = asked(blocks=20)
    found = false_blocks(suite, calibrated(suite, blocks=5), np.random.default_rng(1), draws=5)
    assert found == FalseBlocks(5, 0, 0, 0)


def test_without_a_required_check_of_the_load_there_is_nothing_to_block_by() -> None:
    generator = np.random.default_rng(1)
    suite = asked(ACCURACY)
    assert false_blocks(suite, calibrated(suite, blocks=4), generator) is None
    suite = asked({**TTFT, "required": False}, ACCURACY)
    assert false_blocks(suite, calibrated(suite, blocks=4), generator) is None
    suite = asked()
    assert false_blocks(suite, calibrated(suite, blocks=1), generator) is None
    assert false_blocks(suite.model_copy(update={"load": None}), calibrated(suite, blocks=4), generator) is None


def test_a_calibration_judges_nobody_whatever_it_shows() -> None:
    suite = asked()
    seen = calibrated(suite, blocks=8)
    verdict = judge(Suite.from_stored(seen.run.suite), seen)
    assert verdict.outcome is Outcome.INVALID
    assert "is a calibration: it measured baseline against itself" in verdict.reason
    assert all(check.outcome is Outcome.INVALID for check in verdict.checks)
    live = measured(suite)
    assert judge(suite, live, seen).outcome is Outcome.INVALID  # and is nothing to be held against
    assert judge(suite, live).outcome is Outcome.PASS


def test_mark_of_a_calibration_is_no_key_of_suites() -> None:
    seen = calibrated(asked(), blocks=2)
    assert seen.run.calibrates
    assert Suite.from_stored(seen.run.suite).candidate == "baseline"
    assert not measured(asked()).run.calibrates
    with pytest.raises(ValueError, match="calibration"):
        Suite.model_validate({**asked().to_stored(), "calibration": True}, by_name=True, context={"stored": True})
    assert "noise_max_age_s" not in asked().to_stored()["gate"]


def test_verdict_names_the_profile_and_its_age_and_says_when_it_is_stale() -> None:
    suite = asked()
    seen = measured(suite)
    assert judge(suite, seen).notes == ()
    found = FalseBlocks(200, 3, 1, 2, (("client-keeps-up", 2),))
    fresh = judge(suite, replace(seen, noise=profile(false_block=found)))
    note, version = fresh.notes
    assert "the engine's version was reported neither then nor now" in version
    assert note.startswith("noise profile of run calibration, 1 day old: ")
    assert "promotes 194, blocks 3, finds 1 inconclusive and 2 invalid (client-keeps-up 2), of 200 draws" in note
    old = profile(measured_at="2025-11-01T00:00:00Z", engine_version="0.10")
    stale = judge(suite, replace(seen, noise=old))
    assert stale.notes[0] == "noise profile of run calibration, 61 days old"
    assert "is stale: it is 61 days old, and more than 30 days is stale" in stale.notes[1]
    assert "0.10 of the engine, and this is an unreported version" in stale.notes[2]
    assert stale.outcome is fresh.outcome is Outcome.PASS  # beside a live baseline it decides nothing


def test_staleness_begins_after_the_allowed_age() -> None:
    one = profile(engine_version="1")
    day_s = 86_400.0
    assert staleness_reasons(one, at="2026-01-30T00:00:00Z", engine_version="1", max_age_s=30 * day_s) == ()
    assert len(staleness_reasons(one, at="2026-01-30T00:00:01Z", engine_version="1", max_age_s=30 * day_s)) == 1
    assert len(staleness_reasons(one, at="2026-01-01T00:00:00Z", engine_version=None, max_age_s=30 * day_s)) == 1
    untold = profile(engine_version=None)
    for version in (None, "1"):
        assert (
            len(staleness_reasons(untold, at="2026-01-01T00:00:00Z", engine_version=version, max_age_s=30 * day_s)) == 1
        )


@pytest.mark.parametrize(
    ("at", "shown"),
    [
        ("2025-12-31T00:30:00Z", "less than an hour"),
        ("2025-12-31T01:00:00Z", "1 hour"),
        ("2025-12-31T23:59:00Z", "23 hours"),
        ("2026-01-01T00:00:00Z", "1 day"),
        ("2026-01-31T00:00:00Z", "31 days"),
        ("2025-12-30T00:00:00Z", "less than an hour"),
    ],
)
def test_age_in_words(at: str, shown: str) -> None:
    assert format_age(profile().age_at(at)) == shown


def test_hardware_is_the_accelerators_that_are_told_or_this_machine_or_no_more_than_an_address() -> None:
    environment = {"cpu": "EPYC", "cpus": 8}
    told = Deployment("p", "m", "vllm", "http://h:1", facts={"accelerator_names": ["H200", "L4", "H200"]})
    assert describe_hardware(told, environment) == "2 x H200, 1 x L4"
    assert describe_hardware(replace(told, facts={}, url=None), environment) == "this machine: EPYC, 8 processors"
    address = describe_hardware(replace(told, facts={}), environment)
    assert address.startswith("not told: address ") and "h:1" not in address
    assert address != describe_hardware(replace(told, facts={}, url="http://h:2"), environment)
    assert address != describe_hardware(replace(told, facts={}, accelerators=2), environment)


def test_key_tells_what_benchgate_serves_itself_apart_by_its_settings() -> None:
    f16 = Deployment("f16", "tiny", "llamacpp", None, settings={"weights": "f16"})
    q4 = replace(f16, settings={"weights": "q4"})
    assert noise_key(f16, {}, "s") != noise_key(q4, {}, "s")
    assert noise_key(f16, {}, "s") == noise_key(replace(f16, name="another"), {}, "s")
    assert noise_key(replace(f16, url="http://h"), {}, "s").model == "tiny"


def test_version_is_what_the_server_told_or_the_suite_declared() -> None:
    one = Deployment("p", "m", "vllm", "http://h", settings={"engine_version": "1"}, facts={"engine_version": "2"})
    assert engine_version_of(one) == "2"
    assert engine_version_of(replace(one, facts={})) == "1"
    assert engine_version_of(replace(one, facts={}, settings={})) is None


def test_profile_is_told_in_lines_with_the_limits_of_its_numbers() -> None:
    told = profile(
        spreads=(
            NoiseSpread("ttft", "p50", "c4", 0.04, 0.03, 10),
            NoiseSpread("error_rate", None, "c4", 0.01, 0.02, 10),
        ),
        disagreement=(SelfDisagreement("task", "add", 0.02, 300), SelfDisagreement("shadow", "shadow", 0.0, 200)),
        false_block=FalseBlocks(200, 0, 4, 1, (("client-keeps-up", 1),)),
        engine_version="0.11",
    )
    lines = "\n".join(noise_lines(told, told.measured_at))
    assert "m on vllm 0.11; 2 x H200" in lines
    assert "run to run 4.00 % (2.92 % to 6.58 %)" in lines  # chi-square of 9 degrees: 16.919 and 3.325
    assert "1.00 points (0.729 points to 1.65 points)" in lines
    assert "6 of 300 items of add differed: 2.00 % (" in lines
    assert "0 of 200 shadow prompts differed: 0 % (0 % to 1.49 %)" in lines
    assert "promotes 195, blocks 0 (at most 1.49 %" in lines
    assert "finds 4 inconclusive and 1 invalid (client-keeps-up 1)" in lines
    assert "before this run ended" not in lines
    assert "1 day before this run ended" in next(iter(noise_lines(told, AT)))


def test_draws_that_are_invalid_name_the_guard_that_made_them_so() -> None:
    suite = asked(blocks=8)
    seen = calibrated(suite, blocks=2)
    late = ClientUse(1.0, 10.0, 1, busiest_share=1.0)  # in one of two pairs, so most draws have it more than once
    seen = replace(seen, load=tuple(replace(one, client=late) if one.block == 0 else one for one in seen.load))
    found = false_blocks(suite, seen, np.random.default_rng(1), draws=20)
    assert found is not None
    assert found.invalid > 10
    assert found.invalid_by == (("client-keeps-up", found.invalid),)
    assert FalseBlocks.from_json(json.loads(json.dumps(asdict(found)))) == found
    assert FalseBlocks.from_json({"of": 9, "blocked": 1, "inconclusive": 2, "invalid": 3}) == FalseBlocks(9, 1, 2, 3)


def test_draws_need_neither_the_counts_of_replicas_nor_the_answers_of_the_calibration() -> None:
    suite = asked(blocks=8)
    assert suite.load is not None
    own = suite.deployments["baseline"].model_copy(update={"ready": Ready(replicas=4, command="count")})
    verified = tuple(stage.model_copy(update={"verify_ratio": 0.05}) for stage in suite.load.sweep)
    suite = suite.model_copy(
        update={
            "deployments": {**suite.deployments, "baseline": own},
            "load": suite.load.model_copy(update={"sweep": verified}),
        }
    )
    seen = calibrated(suite, blocks=10)
    assert false_blocks(suite, seen, np.random.default_rng(1), draws=5) == FalseBlocks(5, 0, 0, 0)


def test_telemetry_is_exchanged_with_the_blocks_that_it_is_of() -> None:
    suite = asked({"metric": "queue_depth", "max": 4, "stage": "c4"}, blocks=4)
    seen = calibrated(suite, blocks=4)
    waiting = {
        Arm.BASELINE: 9.0,
        Arm.CANDIDATE: 1.0,
    }  # in every block more than the bound, of the one that is called so
    windows = tuple(
        TelemetryWindow(o.stage, o.arm, o.block, o.position, "vllm", 2.0, True, looks(waiting[o.arm]))
        for o in seen.load
    )
    seen = replace(seen, telemetry=windows)
    found = false_blocks(suite, seen, np.random.default_rng(1), draws=20)
    assert found is not None
    assert found.promoted < 20  # the candidate's own queue alone would pass in every draw


def looks(waiting: float) -> tuple[TelemetrySample, ...]:
    told: dict[Gauge | Counter, float] = {Gauge.RUNNING: 1.0, Gauge.WAITING: waiting}
    return tuple(TelemetrySample(at_s, told) for at_s in (-0.1, 0.5, 1.5, 2.5))
