"""What verdicts and checks say to someone who has only the documents: why, how much more, and of whom."""

from __future__ import annotations

from dataclasses import replace

import pytest

from benchgate.gate.guards.run import suite_differences
from benchgate.gate.judge import judge
from benchgate.model.deployment import Arm
from benchgate.model.run import DeploymentFault, RunStatus, ServerStart
from benchgate.model.telemetry import Counter, Gauge, TelemetryMetric, TelemetrySample, TelemetryWindow
from benchgate.model.verdict import CheckResult, Outcome
from tests.fakes.drills import drill
from tests.fakes.measured import Effect, SuiteText, measured

ERRORS: dict[str, object] = {"metric": "error_rate", "max": "5%"}


def looked_at(values: list[float], *, looks_inside: int = 1, metric: str = "queue_depth") -> CheckResult:
    """A bound of 10 on what the server said in so many blocks; without looks inside, only before and after."""
    suite = drill({"metric": metric, "stage": "long", "max": 10}, ERRORS, blocks=len(values))
    windows = tuple(_window(arm, block, value, looks_inside) for block, value in enumerate(values) for arm in Arm)
    return judge(suite, replace(measured(suite), telemetry=windows)).checks[0]


def test_a_run_that_goes_on_says_so_before_all_else() -> None:
    suite = drill(ERRORS)
    evidence = measured(suite)
    assert not judge(suite, evidence).reason.startswith("The run has not ended")
    for status, said in ((RunStatus.RUNNING, True), (RunStatus.PARTIAL, False)):
        verdict = judge(suite, replace(evidence, run=replace(evidence.run, status=status)))
        assert verdict.outcome is Outcome.INVALID
        assert verdict.reason.startswith("The run has not ended. Nothing can be said about") is said


def test_a_server_that_tells_nothing_is_not_excused_by_a_short_stage() -> None:
    suite = drill({"metric": "queue_depth", "stage": "long", "max": 10}, ERRORS, blocks=2)
    silent = (TelemetrySample(0.0, {Counter.PREEMPTIONS: 1.0}), TelemetrySample(0.3, {Counter.PREEMPTIONS: 1.0}))
    windows = tuple(
        TelemetryWindow("long", arm, block, 0, "vllm", 0.3, drained=True, readings=silent)
        for block in range(2)
        for arm in Arm
    )
    check = judge(suite, replace(measured(suite), telemetry=windows)).checks[0]
    assert check.reason == "the candidate's server did not tell queue_depth of stage long in block 1"


def _window(arm: Arm, block: int, value: float, looks_inside: int) -> TelemetryWindow:
    at_rest: dict[TelemetryMetric, float] = {Gauge.WAITING: 0.0, Counter.PREEMPTIONS: 1.0}
    inside = [TelemetrySample(0.5 + i, {Gauge.WAITING: value, Counter.PREEMPTIONS: 1.0}) for i in range(looks_inside)]
    ended_s = 0.31 if not looks_inside else 3.0
    after = TelemetrySample(ended_s, {Gauge.WAITING: 0.0, Counter.PREEMPTIONS: 1.0 + value})
    readings = (TelemetrySample(0.0, at_rest), *inside, after)
    return TelemetryWindow("long", arm, block, 0, "vllm", ended_s, drained=True, readings=readings)


def test_a_deployment_that_was_not_there_is_not_asked_for_its_metrics() -> None:
    suite = drill({"metric": "queue_depth", "stage": "long", "max": 10}, ERRORS, blocks=2)
    gone = DeploymentFault(Arm.CANDIDATE, "at the start", "connection refused")
    check = judge(suite, replace(measured(suite), load=(), telemetry=(), target_faults=(gone,))).checks[0]
    assert check.outcome is Outcome.INVALID
    assert (check.reason, check.advice) == ("stage long was not measured", "see the faults of the targets")


def test_a_stage_too_short_for_a_look_is_said_to_be_and_the_server_is_not_blamed() -> None:
    check = looked_at([3, 3], looks_inside=0)
    assert check.outcome is Outcome.INVALID
    assert check.reason == "stage long in block 1 was over after 310 ms: too short for a look at how many wait"
    assert check.advice is not None
    assert "500 ms" in check.advice


@pytest.mark.parametrize("metric", ["queue_depth", "preemptions"])
def test_limits_of_a_count_never_go_below_none(metric: str) -> None:
    check = looked_at([0, 1, 0, 7], metric=metric)
    assert (check.lower, check.candidate) == (0.0, 2.0)
    assert check.upper is not None
    assert check.upper > 5


def test_an_unsettled_bound_says_about_how_many_more_would_settle_it() -> None:
    check = looked_at([4, 14, 5, 11])
    assert check.outcome is Outcome.INCONCLUSIVE
    assert check.advice is not None
    told = check.advice.removeprefix("measure more blocks: about ").removesuffix(" in all would settle it")
    assert 4 < int(told) < 400
    # Blocks like these, as many as it says, do settle it.
    more = looked_at([4, 14, 5, 11] * (int(told) // 4 + 1))
    assert more.outcome is Outcome.PASS, more.reason


def test_an_estimate_at_its_bound_promises_no_number() -> None:
    check = looked_at([8, 12, 9, 11])
    assert check.outcome is Outcome.INCONCLUSIVE
    assert check.advice == "measure more blocks; no number is sure to settle it"


def test_starts_that_are_too_few_say_how_many_would_do() -> None:
    suite = drill({"metric": "cold_start", "max": "5s"}, ERRORS)
    starts = tuple(ServerStart(Arm.CANDIDATE, i, s) for i, s in enumerate((1.0, 5.5)))
    stored = {**suite.to_stored(), "start": {"times": 2}}
    told = suite.model_validate(stored, by_name=True, by_alias=False, context={"stored": True})
    check = judge(told, replace(measured(told), starts=starts)).checks[0]
    assert check.outcome is Outcome.INCONCLUSIVE
    assert check.advice is not None
    assert check.advice == "measure more starts: about 9 in all would settle it"


@pytest.mark.parametrize(
    ("effect", "bound", "outcome", "said"),
    [
        (Effect(), "5%", Outcome.PASS, "one keeps to its bounds: "),
        (Effect(failed=20), "5%", Outcome.BLOCK, "one does not keep to its bounds: "),
        (Effect(failed=2), "5%", Outcome.INCONCLUSIVE, "one is not shown to keep to its bounds: "),
    ],
)
def test_one_deployment_alone_is_not_said_to_be_promoted(
    effect: Effect, bound: str, outcome: Outcome, said: str
) -> None:
    suite = drill({"metric": "error_rate", "stage": "long", "max": bound}, {**ERRORS, "stage": "short"})
    verdict = judge(suite, measured(suite, effect, effect))
    assert verdict.outcome is outcome
    assert verdict.reason.startswith(said)
    assert "promoted" not in verdict.reason


def test_two_deployments_are_still_promoted_or_not() -> None:
    suite = SuiteText([{"metric": "error_rate", "margin": "5 points"}]).suite()
    assert judge(suite, measured(suite)).reason.startswith("candidate may be promoted: ")


def test_a_guard_that_had_nothing_to_look_at_is_not_known_to_hold() -> None:
    suite = drill(ERRORS)
    one = TelemetrySample(0.0, {Gauge.WAITING: 0.0})
    windows = tuple(TelemetryWindow("long", arm, 0, 0, "vllm", 1.0, drained=True, readings=(one,)) for arm in Arm)
    guards = {g.id: g for g in judge(suite, replace(measured(suite), telemetry=windows)).guards}
    assert (guards["cache-cold"].known, guards["cache-cold"].tripped) == (False, False)
    assert "one deployment was measured" in guards["cache-cold"].reason
    assert guards["server-kept-running"].known


def test_prompts_that_share_their_beginnings_leave_the_cache_guard_nothing_to_look_at() -> None:
    suite = SuiteText([{"metric": "error_rate", "margin": "5 points"}]).suite()
    assert suite.load is not None
    stored = suite.to_stored()
    stored["load"]["workload"]["prefix"] = {"prefix_tokens": 4, "share_ratio": None, "groups": 1}
    shared = suite.from_stored(stored)
    one = TelemetrySample(0.0, {Gauge.WAITING: 0.0})
    windows = tuple(TelemetryWindow("c4", arm, 0, 0, "vllm", 1.0, drained=True, readings=(one,)) for arm in Arm)
    for asked, known_why in ((shared, "the prompts share prefixes on purpose"), (suite, "not known")):
        evidence = replace(measured(asked), telemetry=windows)
        cold = next(g for g in judge(asked, evidence).guards if g.id == "cache-cold")
        assert (cold.known, known_why in cold.reason) == (False, True), cold.reason


def test_runs_that_asked_something_else_say_what() -> None:
    one = SuiteText([{"metric": "error_rate", "margin": "5 points"}]).suite().to_stored()
    other = SuiteText([{"metric": "error_rate", "margin": "1 point"}], blocks=4, requests=80).suite().to_stored()
    assert suite_differences(one, other) == (
        "load.sweep[0].requests is 60 in the first and 80 in the second; "
        "load.blocks is 8 in the first and 4 in the second"
    )
    other["seed"], other["limits"] = 3, {**one["limits"], "total_s": 1.0, "stall_s": 1.0}
    assert suite_differences(one, other).endswith("; and 2 more differ")
    assert "a file that they name" in suite_differences(one, one)


def test_an_unlike_reference_names_the_difference_in_its_guard() -> None:
    suite = SuiteText([{"metric": "error_rate", "margin": "5 points"}]).suite()
    longer = SuiteText([{"metric": "error_rate", "margin": "5 points"}], blocks=4).suite()
    reference = measured(longer, run_id="run-0")
    reference = replace(reference, run=replace(reference.run, measurement_sha256="n" * 64))
    verdict = judge(suite, measured(suite), reference)
    assert verdict.outcome is Outcome.INVALID
    assert "load.blocks is 4 in the first and 8 in the second" in verdict.reason
