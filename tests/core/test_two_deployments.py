"""Two arms that are one deployment: what the servers say of themselves that tells it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from benchgate.errors import EvidenceError
from benchgate.gate.guards.arms import two_deployments
from benchgate.gate.judge import judge
from benchgate.model.deployment import Arm
from benchgate.model.run import Evidence
from benchgate.model.telemetry import Counter, TelemetrySample, TelemetryWindow
from benchgate.model.verdict import Outcome
from tests.fakes.measured import SuiteText, measured

Line = dict[str, object]
TTFT: Line = {"metric": "ttft", "margin": "10%"}
ERRORS: Line = {"metric": "error_rate", "max": "5%"}
SUITE = SuiteText([TTFT, ERRORS]).suite()


def served(evidence: Evidence, baseline: Line, candidate: Line, *, url: str | None = None) -> Evidence:
    arms = {
        arm: replace(evidence.run.arms[arm], facts=dict(facts), model=str(facts.get("model", "m")),
                     url=url or evidence.run.arms[arm].url)
        for arm, facts in ((Arm.BASELINE, baseline), (Arm.CANDIDATE, candidate))
    }  # fmt: skip
    return replace(evidence, run=replace(evidence.run, arms=arms))


ONE: Line = {"model": "m", "weights_at": "org/m"}
ALIAS: Line = {"model": "m-new", "weights_at": "org/m"}


@pytest.mark.parametrize(
    ("candidate", "url", "trips"),
    [
        (ALIAS, "http://one", True),
        (ALIAS, None, False),  # at two addresses they may be two
        ({"model": "m-lora", "weights_at": "org/lora"}, "http://one", False),
        ({"model": "m-new"}, "http://one", False),
        ({**ALIAS, "adapter_of": "m"}, "http://one", False),
    ],
)
def test_two_names_of_the_same_weights_are_one_deployment(candidate: Line, url: str | None, trips: bool) -> None:
    evidence = served(measured(SUITE), ONE, candidate, url=url)
    guard = two_deployments(evidence, SUITE)
    assert guard.tripped is trips
    if trips:
        assert "m and m-new are two names of one server for the same weights, org/m" in guard.reason
        assert judge(SUITE, evidence).outcome is Outcome.INVALID


def test_servers_that_tell_no_weights_may_be_two() -> None:
    assert not two_deployments(served(measured(SUITE), {"model": "a"}, {"model": "b"}, url="http://one"), SUITE).tripped


def marked(evidence: Evidence, markers: dict[Arm, str | None]) -> Evidence:
    windows = tuple(
        TelemetryWindow(
            o.stage, o.arm, o.block, o.position, "vllm", 1.0, True,
            tuple(TelemetrySample(at, {Counter.REQUESTS: at}, markers[o.arm]) for at in (0.0, 60.0)),
        )
        for o in evidence.load
    )  # fmt: skip
    return replace(evidence, telemetry=windows)


def test_one_process_that_answers_for_both_arms_is_one_deployment() -> None:
    evidence = marked(measured(SUITE), {Arm.BASELINE: "17.5", Arm.CANDIDATE: "17.5"})
    guard = two_deployments(evidence, SUITE)
    assert guard.tripped
    assert guard.reason == "one server process answers for both arms, as m"
    two_models = served(evidence, {"model": "m"}, {"model": "m-lora"})
    assert not two_deployments(two_models, SUITE).tripped
    for other in ("18.5", None):
        told: dict[Arm, str | None] = {Arm.BASELINE: "17.5", Arm.CANDIDATE: other}
        assert not two_deployments(marked(measured(SUITE), told), SUITE).tripped


def test_a_suite_that_means_one_deployment_for_both_arms_may() -> None:
    evidence = marked(measured(SUITE), dict.fromkeys(Arm, "17.5"))
    same = replace(evidence.run.arms[Arm.BASELINE])
    twice = replace(evidence, run=replace(evidence.run, arms=dict.fromkeys(Arm, same)))
    assert not two_deployments(twice, SUITE).tripped


def test_of_one_deployment_alone_there_are_no_two() -> None:
    alone = SuiteText([{"metric": "ttft", "max": "1s"}]).suite()
    alone = alone.model_copy(update={"candidate": "baseline", "quality": None, "shadow": None})
    assert not two_deployments(measured(alone), SUITE).known


@pytest.mark.parametrize("lost", Arm)
def test_a_run_whose_row_of_an_arm_was_lost_is_refused(lost: Arm) -> None:
    evidence = measured(SUITE)
    kept = {arm: one for arm, one in evidence.run.arms.items() if arm is not lost}
    with pytest.raises(EvidenceError, match=f"the row of its {lost} is missing"):
        judge(SUITE, replace(evidence, run=replace(evidence.run, arms=kept)))
