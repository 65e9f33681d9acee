"""Classes of traffic judged apart, and runs of one deployment alone."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from benchgate.gate.judge import judge
from benchgate.model.columns import split_by_use
from benchgate.model.deployment import Arm
from benchgate.model.records import RequestColumns
from benchgate.model.run import ClientUse, Evidence
from benchgate.model.verdict import Outcome
from benchgate.suite.schema import Suite
from tests.fakes.drills import Line, drill, seen
from tests.fakes.measured import Effect, measured

TTFT: Line = {"metric": "ttft", "stage": "long", "over": "short"}


def mixed(*checks: Line) -> Suite:
    """One stage of two classes, each with an SLO of its own, and one in the background."""
    text = drill(*checks).to_stored()
    classes = {
        "chat": {"concurrency": 2, "requests": 40, "slo": {"ttft_s": 0.1, "target_ratio": 0.95}},
        "reports": {"concurrency": 2, "requests": 40},
        "batch": {"concurrency": 8, "background": True},
    }
    text["load"]["sweep"] = [{"name": "mix", "classes": classes, "requests": 80}]
    return Suite.from_stored(text)


def mixed_evidence(suite: Suite, effects: dict[str, Effect]) -> Evidence:
    """What the classes of `mixed` did, as they are stored."""
    plain = drill({"metric": "error_rate", "max": "1%"}, stages=("chat", "reports", "batch"))
    evidence = seen(plain, effects)
    load = tuple(replace(o, stage=f"mix/{o.stage}") for o in evidence.load)
    return replace(evidence, load=load, run=replace(evidence.run, suite=suite.to_stored()))


def test_each_class_is_held_to_its_own_slo() -> None:
    suite = mixed({"metric": "goodput"})
    slower = mixed_evidence(suite, {name: Effect(slowdown=3) for name in ("chat", "reports", "batch")})  # 150 ms
    checks = {check.stage: check.outcome for check in judge(suite, slower).checks}
    assert checks == {"mix/chat": Outcome.BLOCK, "mix/reports": Outcome.PASS}  # 100 ms of its own, 200 of the suite's


def test_a_class_is_judged_by_name_and_times_of_one_in_the_background_only_so() -> None:
    named = mixed({"metric": "error_rate", "stage": "mix", "class": "batch", "max": "5%"})
    failing = mixed_evidence(named, {"batch": Effect(failed=20)})
    (check,) = judge(named, failing).checks
    assert (check.stage, check.outcome) == ("mix/batch", Outcome.BLOCK)
    assert check.title == "Error rate at mix/batch"
    timed = mixed({"metric": "ttft", "max": "100ms"}, {"metric": "error_rate", "max": "5%"})
    slow = mixed_evidence(timed, {"batch": Effect(slowdown=4)})
    assert judge(timed, slow).outcome is Outcome.PASS


def test_a_server_that_fails_what_runs_in_the_background_is_not_faster_for_the_rest() -> None:
    anywhere = mixed({"metric": "error_rate", "max": "5%"})
    verdict = judge(anywhere, mixed_evidence(anywhere, {"batch": Effect(failed=20)}))
    assert verdict.outcome is Outcome.BLOCK
    assert "mix/batch" in verdict.reason


def test_failures_in_the_background_may_be_held_to_a_bound_of_their_own() -> None:
    own: Line = {"metric": "error_rate", "class": "batch", "max": "90%"}
    suite = mixed({"metric": "error_rate", "max": "5%"}, own)
    verdict = judge(suite, mixed_evidence(suite, {"batch": Effect(failed=20)}))
    assert [check.stage for check in verdict.checks] == ["mix/chat", "mix/reports", "mix/batch"]
    assert verdict.outcome is Outcome.PASS


def test_failures_in_the_background_that_no_check_counts_prevent_a_pass() -> None:
    of_chat: Line = {"metric": "error_rate", "stage": "mix", "class": "chat", "max": "5%"}
    of_reports: Line = {**of_chat, "class": "reports"}
    counted: Line = {"metric": "error_rate", "max": "90%"}
    for checks, trips in (((of_chat, of_reports), True), (({"metric": "goodput"},), True), ((counted,), False)):
        suite = mixed(*checks)
        verdict = judge(suite, mixed_evidence(suite, {"batch": Effect(failed=6)}))
        (guard,) = [guard for guard in verdict.guards if guard.id == "failures-judged"]
        assert guard.tripped is trips, guard.reason
        assert not trips or "{metric: error_rate, stage: mix, class: batch, margin: 1 point}" in (guard.remedy or "")


def test_goodput_is_asked_of_the_background_where_it_has_an_slo_of_its_own() -> None:
    without = mixed({"metric": "goodput"})
    text = without.to_stored()
    text["load"]["sweep"][0]["classes"]["batch"]["slo"] = {"ttft_s": 0.1, "target_ratio": 0.5}
    own = Suite.from_stored(text)
    places = [[c.stage for c in judge(suite, mixed_evidence(suite, {})).checks] for suite in (without, own)]
    assert places == [["mix/chat", "mix/reports"], ["mix/chat", "mix/reports", "mix/batch"]]


def test_a_class_that_has_no_record_is_missed_in_the_background_too() -> None:
    suite = mixed({"metric": "error_rate", "max": "5%"})
    evidence = mixed_evidence(suite, {})
    for name in ("chat", "batch"):
        without = replace(evidence, load=tuple(o for o in evidence.load if o.stage != f"mix/{name}"))
        verdict = judge(suite, without)
        assert verdict.outcome is Outcome.INVALID
        assert f"stage mix/{name}, block 1, candidate" in verdict.reason


def starving(evidence: Evidence, share: float, place: str = "mix/batch") -> Evidence:
    """The candidate answered only this share of each block's requests there; the rest was under way at the end."""
    load = []
    for o in evidence.load:
        few = o.arm is Arm.CANDIDATE and o.stage == place
        keep = int(len(o.requests) * share) if few else len(o.requests)
        some = replace(o.requests, left=(o.requests.index >= keep).astype(o.requests.left.dtype))
        parts = split_by_use(some)
        window_s = o.window_s if keep == len(o.requests) else float(max([0, *parts.measured.end_ns])) / 1e9
        load.append(replace(o, requests=parts.measured, left=parts.left, window_s=window_s))
    return replace(evidence, load=tuple(load))


@pytest.mark.parametrize(("share", "outcome"), [(0.5, Outcome.INVALID), (0.8, Outcome.PASS)])
def test_a_candidate_that_lets_the_background_wait_is_not_faster_for_the_rest(share: float, outcome: Outcome) -> None:
    suite = mixed({"metric": "ttft", "max": "100ms"}, {"metric": "error_rate", "max": "20%"})
    verdict = judge(suite, starving(mixed_evidence(suite, {}), share))
    assert verdict.outcome is outcome
    assert [g.id for g in verdict.guards if g.tripped] == ["background-alike"] * (outcome is Outcome.INVALID)


def test_a_candidate_that_is_slower_at_everything_is_blocked_for_that_and_a_class_judged_apart_may_be_slow() -> None:
    checks: tuple[Line, ...] = ({"metric": "ttft", "max": "100ms"}, {"metric": "error_rate", "max": "20%"})
    suite = mixed(*checks)
    slow = mixed_evidence(suite, {"chat": Effect(slowdown=3), "batch": Effect(slowdown=3)})
    assert judge(suite, starving(slow, 0.3)).outcome is Outcome.BLOCK
    apart = mixed(*checks, {"metric": "e2e", "class": "batch", "max": "9s"})
    assert judge(apart, starving(mixed_evidence(apart, {}), 0.5)).outcome is Outcome.PASS


def test_a_background_of_which_nothing_ended_is_invalid_by_name_without_a_warning() -> None:
    suite = mixed({"metric": "error_rate", "max": "20%"})
    evidence = starving(mixed_evidence(suite, {}), 0.0)
    nothing = tuple(
        replace(o, requests=RequestColumns.pack([])) if o.stage == "mix/batch" else o for o in evidence.load
    )
    verdict = judge(suite, replace(evidence, load=nothing))
    assert verdict.outcome is Outcome.INVALID
    assert "in a block of stage mix/batch no request came to an end" in verdict.reason
    assert not any("nan" in guard.reason for guard in verdict.guards)


def test_a_drill_of_one_deployment_needs_no_baseline_to_be_complete() -> None:
    suite = drill({**TTFT, "max": "1.2x"}, {"metric": "error_rate", "max": "1%"})
    evidence = measured(suite)
    alone = replace(evidence, load=tuple(o for o in evidence.load if o.arm is Arm.CANDIDATE))
    verdict = judge(suite, alone)
    assert verdict.outcome is Outcome.PASS
    assert "against" not in verdict.reason
    missing = replace(alone, load=alone.load[1:])
    assert "planned requests have a record" in judge(suite, missing).reason


def test_a_policy_with_a_margin_finds_no_baseline_in_a_run_that_measured_none() -> None:
    suite = drill({"metric": "error_rate", "max": "1%"})
    evidence = measured(suite)
    alone = replace(evidence, load=tuple(o for o in evidence.load if o.arm is Arm.CANDIDATE))
    compared = drill({"metric": "ttft", "margin": "10%"}, {"metric": "error_rate", "max": "1%"})
    verdict = judge(compared, alone)
    assert verdict.outcome is Outcome.INVALID
    assert "was not measured on both arms" in verdict.reason


def test_failures_in_a_block_in_which_the_client_was_late_are_not_left_out_of_a_drill() -> None:
    suite = drill({"metric": "goodput", "stage": "long"}, {"metric": "error_rate", "max": "90%"})
    busy = ClientUse(cpu_s=0.95, wall_s=1.0, workers=1)
    failing = seen(suite, {"long": Effect(failed=30, failed_block=3)})
    load = tuple(replace(o, client=busy) if o.block == 3 and o.stage == "long" else o for o in failing.load)
    alone = replace(failing, load=tuple(o for o in load if o.arm is Arm.CANDIDATE))
    verdict = judge(suite, alone)
    assert verdict.outcome is Outcome.INVALID
    assert "cannot be left out" in verdict.reason


@pytest.mark.parametrize(("early", "guards"), [(12, ["sent-once"]), (13, [])])
def test_connections_closed_after_an_answer_are_held_against_all_classes_that_share_them(
    early: int, guards: list[str]
) -> None:
    """In each of 8 blocks, of 120 requests of three classes; a habit is more than a tenth."""
    suite = mixed({"metric": "error_rate", "max": "5%"})
    load = []
    for o in mixed_evidence(suite, {}).load:
        again = replace(o.requests, reconnects=(o.requests.index < 4).astype(np.int64))
        closing = replace(o, client=replace(o.client, closed_early=early))
        load.append(closing if o.arm is Arm.BASELINE else replace(o, requests=again))
    verdict = judge(suite, replace(mixed_evidence(suite, {}), load=tuple(load)))
    assert [guard.id for guard in verdict.guards if guard.tripped] == guards


def test_what_the_server_says_is_judged_once_for_all_classes_of_a_stage() -> None:
    suite = mixed({"metric": "preemptions", "max": 0})
    (check,) = judge(suite, mixed_evidence(suite, {})).checks
    assert (check.stage, check.outcome) == ("mix", Outcome.INVALID)  # nobody told
