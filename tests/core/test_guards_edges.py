"""What makes a run no evidence: each reason by itself prevents a PASS, and invalidates just what it must."""

from __future__ import annotations

from dataclasses import replace

import pytest

from benchgate.gate.comparison import compare
from benchgate.gate.guards import run_guards
from benchgate.gate.guards.arms import arms_alike
from benchgate.gate.judge import judge
from benchgate.model.deployment import Arm
from benchgate.model.run import (
    CANNOT_SCORE,
    CHANGED,
    NO_LLM_SERVER,
    ONE_SERVER,
    REFUSES_REQUESTS,
    DeploymentFault,
    Evidence,
    LoadEnd,
    LoadObservation,
    QualityObservation,
    RunStatus,
    ShadowObservation,
)
from benchgate.model.telemetry import TelemetryWindow
from benchgate.model.verdict import GuardResult, Outcome
from benchgate.suite.schema import Suite
from tests.fakes.measured import SuiteText, measured, with_status
from tests.fakes.shadow_rows import item as shadow_item

Line = dict[str, object]
SUITE = SuiteText([{"metric": "ttft", "margin": "10%"}, {"metric": "error_rate", "max": "5%"}], blocks=3).suite()
RUN = measured(SUITE, items=40, prompts=40)
OTHER = replace(RUN, run=replace(RUN.run, id="other"))
EVERYTHING = ("load", "quality", "divergence", "shadow")


def guard(name: str, judged: Evidence, reference: Evidence | None = None, suite: Suite = SUITE) -> GuardResult:
    """The first of that name: of the reference, where there is one."""
    return next(one for one in run_guards(compare(judged, reference), suite) if one.id == name)


def ids(judged: Evidence, reference: Evidence | None = None) -> list[str]:
    return [one.id for one in run_guards(compare(judged, reference), SUITE) if one.tripped]


def test_a_whole_run_trips_nothing_alone_or_beside_another() -> None:
    assert (ids(RUN), ids(RUN, OTHER)) == ([], [])


def calibration(evidence: Evidence) -> Evidence:
    return replace(evidence, run=replace(evidence.run, suite={**evidence.run.suite, "calibration": True}))


@pytest.mark.parametrize(("judged", "reference"), [(calibration(RUN), OTHER), (RUN, calibration(OTHER))])
def test_a_calibration_judges_nobody_and_nobody_is_judged_beside_one(judged: Evidence, reference: Evidence) -> None:
    found = guard("no-calibration", judged, reference)
    assert (found.tripped, found.invalidates) == (True, EVERYTHING)
    assert "measured baseline against itself" in found.reason
    assert judge(SUITE, judged, reference).outcome is Outcome.INVALID


def test_a_calibration_that_has_lost_its_baseline_judges_nobody_either() -> None:
    lost = replace(calibration(RUN), quality=())
    arms = {Arm.CANDIDATE: RUN.run.arms[Arm.CANDIDATE]}
    found = guard("no-calibration", replace(lost, run=replace(lost.run, arms=arms)))
    assert "measured its baseline against itself" in found.reason


def test_runs_that_measured_different_things_invalidate_all_that_there_is() -> None:
    changed = replace(OTHER, run=replace(OTHER.run, measurement_sha256="x" * 64))
    for pair in ((RUN, changed), (changed, RUN)):
        found = guard("same-measurement", *pair)
        assert (found.tripped, found.invalidates) == (True, EVERYTHING)


def test_runs_beside_different_baselines_invalidate_all_that_there_is() -> None:
    arms = {**OTHER.run.arms, Arm.BASELINE: replace(OTHER.run.arms[Arm.BASELINE], model="another")}
    changed = replace(OTHER, run=replace(OTHER.run, arms=arms))
    found = guard("same-baseline", RUN, changed)
    assert (found.tripped, found.invalidates) == (True, EVERYTHING)
    assert judge(SUITE, RUN, changed).outcome is Outcome.INVALID


def alone(evidence: Evidence) -> Evidence:
    """Its candidate measured with no live baseline."""
    checks = [{"metric": "ttft", "max": "1s"}]
    asked = {"baseline": "one", "candidate": "one", "gate": {"checks": checks}, "load": evidence.run.suite["load"]}
    load = tuple(o for o in evidence.load if o.arm is Arm.CANDIDATE)
    return replace(evidence, load=load, run=replace(evidence.run, suite=asked))


def test_another_number_of_senders_invalidates_the_load_where_nothing_ties_the_runs_together() -> None:
    four = replace(OTHER, load=tuple(replace(o, client=replace(o.client, workers=4)) for o in OTHER.load))
    assert not guard("same-client", RUN, four).tripped
    found = guard("same-client", alone(RUN), four)
    assert (found.tripped, found.invalidates) == (True, ("compared-load",))
    assert not guard("same-client", alone(RUN), OTHER).tripped


def test_workers_of_a_cluster_are_others_than_as_many_of_one_machine() -> None:
    for last in (1, len(OTHER.load)):
        spread = tuple(
            replace(o, client=replace(o.client, by_cluster=True)) if at < last else o for at, o in enumerate(OTHER.load)
        )
        found = guard("same-client", alone(RUN), replace(OTHER, load=spread))
        assert (found.tripped, "of a cluster" in found.reason) == (True, True)


@pytest.mark.parametrize("status", [one for one in RunStatus if one is not RunStatus.COMPLETE])
def test_only_a_run_that_came_to_its_end_may_pass(status: RunStatus) -> None:
    assert "run-complete" in ids(with_status(RUN, status))
    assert "run-complete" in ids(RUN, with_status(OTHER, status))
    assert not judge(SUITE, with_status(RUN, status)).outcome.promotes


@pytest.mark.parametrize(
    ("mark", "says"),
    [
        (REFUSES_REQUESTS, "the server is up but rejects requests"),
        (NO_LLM_SERVER, "correct the host, port or path"),
        (ONE_SERVER, "correct the suite and run again"),
        (CANNOT_SCORE, "correct the suite and run again"),
        (CHANGED, "do not deploy to it"),
        ("no route", "check its address"),
    ],
)
def test_a_deployment_that_was_not_there_is_named_with_what_to_do(mark: str, says: str) -> None:
    fault = DeploymentFault(Arm.CANDIDATE, "after block 1 of 3, stage c4", f"{mark}: told")
    faulty = replace(with_status(RUN, RunStatus.PARTIAL), target_faults=(fault,))
    found = guard("targets-up", faulty)
    assert found.tripped
    assert says in str(found.remedy)
    state = "did not answer after block 1 of 3" if mark == "no route" else "cannot be measured"
    assert state in found.reason
    assert "fix what `targets-up` reports" in str(guard("run-complete", faulty).remedy)
    assert "run the suite again" in str(guard("run-complete", with_status(RUN, RunStatus.PARTIAL)).remedy)


def without(missing: object) -> Evidence:
    """The run that lacks one thing."""
    load = tuple(one for one in RUN.load if one is not missing)
    return replace(RUN, load=load, quality=tuple(one for one in RUN.quality if one is not missing))


@pytest.mark.parametrize("arm", Arm)
def test_nothing_that_was_planned_may_be_missing_on_either_arm(arm: Arm) -> None:
    planned: list[LoadObservation | QualityObservation] = [*RUN.load, *RUN.quality]
    for missing in (one for one in planned if one.arm is arm):
        assert guard("all-measured", without(missing)).tripped
        assert guard("all-measured", RUN, replace(without(missing), run=OTHER.run)).tripped


def test_nothing_passes_that_lacks_a_thing() -> None:
    for missing in (RUN.load[0], RUN.load[-1], RUN.quality[0], RUN.quality[-1]):
        assert not judge(SUITE, without(missing)).outcome.promotes


def test_a_second_asking_stands_in_for_no_first_one() -> None:
    again = tuple(replace(o, repeat=1) if o.arm is Arm.CANDIDATE else o for o in RUN.quality)
    assert guard("all-measured", replace(RUN, quality=again)).tripped


def test_a_task_that_the_suite_does_not_name_is_still_missed_on_the_arm_that_lacks_it() -> None:
    more = replace(RUN.quality[0], task="another")
    found = guard("all-measured", replace(RUN, quality=(*RUN.quality, more)))
    assert found.tripped
    assert f"task another was not run on the {more.arm.other.value}" in found.reason


def test_a_group_of_which_a_leaf_is_missing_on_both_arms_is_not_whole() -> None:
    def grouped(leaves: int) -> Evidence:
        of_group = tuple(replace(o, task=f"group/{o.task}", harness={"leaves": leaves}) for o in RUN.quality)
        return replace(RUN, quality=(*RUN.quality, *of_group))

    assert not guard("all-measured", grouped(2)).tripped
    for leaves in (1, 3):
        found = guard("all-measured", grouped(leaves))
        assert found.tripped
        assert f"2 of the {leaves} tasks of group were run on the baseline" in found.reason


def test_a_leaf_asked_twice_does_not_stand_in_for_one_that_is_missing() -> None:
    one = tuple(replace(o, task="group/add", harness={"leaves": 2}) for o in RUN.quality if o.task == "add")
    again = tuple(replace(o, repeat=1) for o in one)
    found = guard("all-measured", replace(RUN, quality=(*RUN.quality, *one, *again)))
    assert (found.tripped, found.reason) == (True, "1 of the 2 tasks of group were run on the baseline")


def test_a_shadow_comparison_that_was_not_made_is_missed() -> None:
    assert guard("all-measured", replace(RUN, shadow=None)).tripped


def test_fixed_texts_that_were_not_read_are_missed_whether_or_not_a_check_looks_at_them() -> None:
    suite = Suite.from_stored({**SUITE.to_stored(), "divergence": {"texts": "texts.jsonl", "positions": 200}})
    found = guard("all-measured", RUN, suite=suite)
    assert (found.tripped, found.reason) == (True, "the divergence on fixed texts was not measured")


def blocks(evidence: Evidence, count: int, ended: LoadEnd | None) -> Evidence:
    return replace(evidence, load=tuple(o for o in evidence.load if o.block < count), ended=ended)


def looking() -> Suite:
    text = SUITE.to_stored()
    text["load"] = {**text["load"], "blocks": 8, "looks": [4, 8]}
    return Suite.from_stored(text)


@pytest.mark.parametrize(
    ("count", "ended", "tripped"),
    [
        (8, None, False),
        (8, LoadEnd(8, 8, "last"), False),
        (4, LoadEnd(4, 8, "decided"), False),
        (4, None, True),  # nobody says that it was to end there
        (4, LoadEnd(4, 10, "decided"), True),  # the plan of another suite
        (5, LoadEnd(5, 8, "decided"), True),  # no look was there
        (3, LoadEnd(4, 8, "decided"), True),
        (5, LoadEnd(4, 8, "decided"), True),  # more was measured than the look saw, and not all
        (4, LoadEnd(8, 8, "last"), True),
    ],
)
def test_fewer_blocks_are_enough_only_where_the_run_itself_ended_at_a_look(
    count: int, ended: LoadEnd | None, tripped: bool
) -> None:
    suite = looking()
    evidence = blocks(measured(suite, items=40, prompts=40), count, ended)
    assert guard("all-measured", evidence, suite=suite).tripped is tripped


def test_arms_that_are_not_served_alike_invalidate_what_is_measured_in_time() -> None:
    arms = {**RUN.run.arms, Arm.CANDIDATE: replace(RUN.run.arms[Arm.CANDIDATE], facts={"engine_version": "2"})}
    changed = replace(RUN, run=replace(RUN.run, arms=arms))
    compares = SuiteText([{"metric": "ttft", "margin": "10%"}]).suite()
    assert guard("arms-alike", changed, suite=compares).invalidates == ("compared-speed",)
    assert guard("sides-alike", changed, OTHER, suite=compares).invalidates == ("compared-speed",)
    for arm in Arm:
        found = arms_alike(replace(RUN, run=replace(RUN.run, arms={arm: RUN.run.arms[arm]})), SUITE)
        assert (found.tripped, found.invalidates) == (True, ("speed",))


def test_a_task_of_the_suite_that_nobody_ran_is_missed_on_both_arms() -> None:
    for task in {o.task for o in RUN.quality}:
        never = replace(RUN, quality=tuple(o for o in RUN.quality if o.task != task))
        found = guard("all-measured", never)
        assert (found.tripped, found.reason) == (True, f"task {task} was not run on the baseline")
        again = tuple(replace(o, repeat=1) if o.task == task else o for o in RUN.quality)
        assert guard("all-measured", replace(RUN, quality=again)).tripped


OF_THE_LOAD = [
    "load-as-planned", "times-possible", "client-keeps-up", "one-client", "sent-once", "prompts-alike", "tokens-alike",
    "tokens-plausible", "answers-not-too-long", "text-not-degenerate", "answers-there",
    "first-token-visible", "same-text", "model-names", "same-work", "load-not-cached", "order-does-not-matter",
    "failures-judged",
]  # fmt: skip
OF_THE_EVALS = [
    "answers-not-empty", "answers-readable", "items-paired", "same-harness", "baseline-able", "above-chance",
    "not-guessing", "baseline-as-known", "not-cached", "gain-plausible",
]  # fmt: skip
OF_TELEMETRY = ["server-kept-running", "server-alone", "cache-cold"]
OF_THE_SHADOW = ["shadow-not-empty", "shadow-not-refused", "shadow-not-cached"]
APART = [
    "prompts-alike", "tokens-alike", "answers-not-too-long", "same-work", "load-not-cached",
    "text-not-degenerate", "answers-there", "first-token-visible", "same-text", "failures-judged",
]  # fmt: skip


def test_every_guard_is_asked_of_every_run() -> None:
    silent = tuple(TelemetryWindow(o.stage, o.arm, o.block, o.position, None, 1.0, True, ()) for o in RUN.load)
    shadow = ShadowObservation(tuple(shadow_item(n) for n in range(20)), 20, None)
    whole = replace(RUN, telemetry=silent, shadow=shadow)
    of_a_run = ["targets-up", "run-complete", "all-measured", *OF_THE_LOAD, *OF_TELEMETRY, "arms-alike"]
    of_a_run += ["two-deployments", *OF_THE_SHADOW]
    between = ["same-measurement", "same-client", "same-baseline", "sides-alike"]
    found = run_guards(compare(whole), SUITE)
    assert [one.id for one in found] == [*of_a_run, *OF_THE_EVALS]
    beside = run_guards(compare(whole, replace(whole, run=OTHER.run)), SUITE)
    assert [one.id for one in beside] == [*between, *of_a_run, *of_a_run, *OF_THE_EVALS]
    lone = run_guards(compare(alone(whole), replace(whole, run=OTHER.run)), SUITE)
    assert [one.id for one in lone] == [*between, *of_a_run, *of_a_run, *APART, *OF_THE_EVALS]


def made_elsewhere(evidence: Evidence) -> Evidence:
    arms = {arm: replace(one, facts={"imported": True}) for arm, one in evidence.run.arms.items()}
    return replace(evidence, run=replace(evidence.run, arms=arms))


def test_of_evals_made_elsewhere_nobody_knows_what_a_server_was_and_what_is_known_trips_all_the_same() -> None:
    brought, other = made_elsewhere(RUN), made_elsewhere(OTHER)
    assert [guard(name, brought).known for name in ("targets-up", "arms-alike")] == [False, False]
    assert not guard("sides-alike", brought, other).known
    assert [guard(name, RUN, OTHER).known for name in ("targets-up", "arms-alike", "sides-alike")] == [True] * 3
    fault = DeploymentFault(Arm.CANDIDATE, "after block 1 of 3, stage c4", "connection refused")
    assert guard("targets-up", replace(brought, target_faults=(fault,))).tripped
