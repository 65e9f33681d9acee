"""When the load ends at a look, what that opens and what going on may take."""

from __future__ import annotations

from dataclasses import replace
from datetime import date, timedelta

import pytest

from benchgate.gate.interim import ContinueLoad, StopLoad, limit_passed, next_step
from benchgate.gate.judge import judge
from benchgate.model.run import LoadEnd, RunStatus
from benchgate.model.verdict import Outcome, Verdict
from benchgate.model.waiver import Waiver, Waivers
from benchgate.suite.schema import Suite
from tests.core.test_looks import (
    ACCURACY,
    ERRORS,
    GOODPUT,
    LOOKS,
    LOUD,
    NOTICED,
    QUIET,
    TTFT,
    after,
    check_of,
    ended_at,
    suite_with,
)
from tests.fakes.measured import HEALTHY, Effect, Noise, measured, with_status


def guard_reason(verdict: Verdict, name: str) -> str | None:
    """Why a guard tripped; None where it did not."""
    guard = next(guard for guard in verdict.guards if guard.id == name)
    return guard.reason if guard.tripped else None


# When the load ends


def test_an_equal_candidate_on_a_quiet_machine_ends_the_load_at_the_first_look() -> None:
    suite = suite_with(TTFT, ERRORS)
    step = next_step(suite, after(5, measured(suite, noise=QUIET)))
    assert isinstance(step, ContinueLoad)  # 300 requests without an error show less than 2.6 % at 0.04 %
    assert [check.metric for check in step.undecided] == ["error_rate"]
    step = next_step(suite, after(10, measured(suite, noise=QUIET)))
    assert isinstance(step, StopLoad)
    assert step.reason == "decided"
    assert {check.outcome for check in step.checks} == {Outcome.PASS}


def test_a_much_slower_candidate_ends_the_load_at_the_first_look() -> None:
    suite = suite_with(TTFT, ERRORS)
    step = next_step(suite, after(5, measured(suite, Effect(slowdown=1.5), noise=QUIET)))
    assert isinstance(step, StopLoad)
    assert step.reason == "decided"
    assert [check.outcome for check in step.checks if check.metric == "ttft"] == [Outcome.BLOCK]


@pytest.mark.parametrize(("blocks", "to"), [(5, 10), (10, 20)])
def test_what_noise_leaves_open_is_measured_up_to_the_next_look(blocks: int, to: int) -> None:
    suite = suite_with(TTFT)
    step = next_step(suite, after(blocks, measured(suite, noise=LOUD)))
    assert isinstance(step, ContinueLoad)
    assert step.blocks == to
    assert [check.id for check in step.undecided] == ["ttft-p50@c4"]


def test_the_last_look_ends_the_load_whatever_it_shows() -> None:
    suite = suite_with(TTFT)
    step = next_step(suite, measured(suite, noise=LOUD))
    assert isinstance(step, StopLoad)
    assert step.reason == "last"


def test_an_advisory_check_is_not_waited_for_beside_a_required_one() -> None:
    suite = suite_with(ERRORS, NOTICED)
    step = next_step(suite, after(10, measured(suite, noise=LOUD)))
    assert isinstance(step, StopLoad)
    assert [check.metric for check in step.checks] == ["error_rate"]


def test_advisory_checks_are_waited_for_where_none_is_required() -> None:
    suite = suite_with(NOTICED, {"metric": "tpot", "margin": "10%", "required": False}, ACCURACY)
    open_still = next_step(suite, after(5, measured(suite, noise=LOUD)))
    assert isinstance(open_still, ContinueLoad)
    assert len(open_still.undecided) == 2
    slow = next_step(suite, after(5, measured(suite, Effect(slowdown=1.5), noise=QUIET)))
    assert isinstance(slow, StopLoad)
    assert {check.outcome for check in slow.checks if check.metric == "ttft"} == {Outcome.BLOCK}


def test_an_advisory_block_does_not_end_what_another_advisory_check_leaves_open() -> None:
    suite = suite_with(NOTICED, {"metric": "error_rate", "max": "2%", "required": False}, ACCURACY)
    step = next_step(suite, after(5, measured(suite, Effect(slowdown=1.5), noise=QUIET)))
    assert isinstance(step, ContinueLoad)
    assert [check.metric for check in step.undecided] == ["error_rate"]


def test_load_that_no_check_looks_at_ends_at_its_first_look() -> None:
    suite = suite_with(ACCURACY)
    step = next_step(suite, after(5, measured(suite)))
    assert isinstance(step, StopLoad)
    assert step.reason == "decided"
    assert step.checks == ()


def test_invalid_is_given_the_blocks_of_one_more_look_and_not_of_two() -> None:
    suite = suite_with(TTFT)
    broken = measured(suite, baseline=Effect(failed=40))  # more than half of the baseline's requests
    first = next_step(suite, after(5, broken))
    assert isinstance(first, ContinueLoad)
    assert first.blocks == 10
    second = next_step(suite, after(10, broken))
    assert isinstance(second, StopLoad)
    assert second.reason == "invalid"
    assert judge(suite, ended_at(10, broken, "invalid")).outcome is Outcome.INVALID


def test_what_became_invalid_only_now_is_given_its_look() -> None:
    suite = suite_with(TTFT)
    broken = measured(suite, baseline=Effect(failed=40, failed_block=7))
    assert isinstance(next_step(suite, after(10, broken)), ContinueLoad)


def test_an_invalid_check_does_not_end_what_another_leaves_open() -> None:
    suite = suite_with(TTFT, {"metric": "prefix_hit_rate", "min": "10%"})
    step = next_step(suite, after(10, measured(suite, noise=LOUD)))
    assert isinstance(step, ContinueLoad)
    assert [check.metric for check in step.undecided] == ["ttft"]


def test_required_checks_that_are_still_to_come_count_against_a_block() -> None:
    alone, among = suite_with(TTFT), suite_with(TTFT, ACCURACY, {"metric": "shadow_excess", "margin": "5 points"})
    slower = Effect(slowdown=1.15)
    one = next_step(alone, after(5, measured(alone, slower)))
    many = next_step(among, after(5, measured(among, slower)))
    assert one is not None and many is not None
    assert one.checks[0].p_holm is not None
    assert many.checks[0].p_holm == pytest.approx(min(1.0, 4 * one.checks[0].p_holm))  # two tasks and the shadow


def test_what_ended_the_load_stands_in_the_verdict() -> None:
    suite = suite_with(TTFT, ACCURACY)
    for effect in (HEALTHY, Effect(slowdown=1.3)):
        whole = measured(suite, effect, noise=QUIET)
        step = next_step(suite, after(5, replace(whole, quality=(), shadow=None)))
        assert isinstance(step, StopLoad)
        verdict = judge(suite, ended_at(5, whole))
        assert check_of(verdict, "ttft").outcome is step.checks[0].outcome


TODAY = date(2026, 3, 1)


def waived(check: str = "ttft-p50@c4", ceiling: str = "60%", deployment: str = "candidate", days: int = 30) -> Waivers:
    entry = Waiver(
        check=check, suite="made-up", deployment=deployment, ceiling=ceiling, expires=TODAY + timedelta(days),
        owner="serving", issue="SRV-1", reason="known", approved_by="release",
    )  # fmt: skip
    return Waivers((entry,), TODAY)


def test_harm_within_what_a_waiver_tolerates_does_not_end_the_load_for_the_others() -> None:
    suite = suite_with(TTFT, ERRORS)
    slow = after(5, measured(suite, Effect(slowdown=1.5), noise=QUIET))
    step = next_step(suite, slow, waived())
    assert isinstance(step, ContinueLoad)
    assert [check.metric for check in step.undecided] == ["error_rate"]
    assert [check.shown for check in step.checks] == ["WAIVED", "INCONCLUSIVE"]


def test_harm_near_what_a_waiver_tolerates_is_given_more_blocks() -> None:
    suite = suite_with(TTFT, GOODPUT)
    near = after(5, measured(suite, Effect(slowdown=1.5), noise=Noise(cv=0.01)))
    step = next_step(suite, near, waived(ceiling="52%"))
    assert isinstance(step, ContinueLoad)
    assert "ttft" in [check.metric for check in step.undecided]


@pytest.mark.parametrize(
    "other", [waived(days=-1), waived(deployment="another"), waived(check="tpot-p50@c4")], ids=["old", "other", "check"]
)
def test_a_waiver_of_something_else_keeps_no_load_going(other: Waivers) -> None:
    suite = suite_with(TTFT, ERRORS)
    step = next_step(suite, after(5, measured(suite, Effect(slowdown=1.5), noise=QUIET)), other)
    assert isinstance(step, StopLoad)
    assert step.reason == "decided"


# Ending early opens no door


def test_a_run_that_ended_at_a_look_is_whole_by_its_own_word_alone() -> None:
    suite = suite_with(TTFT, looks=LOOKS)
    whole = measured(suite, noise=QUIET)
    assert guard_reason(judge(suite, ended_at(5, whole)), "all-measured") is None
    without = judge(suite, after(5, whole))
    assert guard_reason(without, "all-measured") == (
        "stage c4, block 6, baseline: 0 of 60 planned requests have a record"
    )
    assert not without.outcome.promotes
    assert not judge(suite, with_status(ended_at(5, whole), RunStatus.PARTIAL)).outcome.promotes


@pytest.mark.parametrize(
    ("blocks", "ended"),
    [
        (5, LoadEnd(5, 10, "decided")),  # of another load
        (7, LoadEnd(7, 20, "decided")),  # between two looks
        (4, LoadEnd(5, 20, "decided")),  # fewer than it says
        (7, LoadEnd(5, 20, "decided")),  # more than it says
    ],
)
def test_a_word_that_does_not_fit_the_blocks_counts_for_nothing(blocks: int, ended: LoadEnd) -> None:
    suite = suite_with(TTFT)
    verdict = judge(suite, after(blocks, measured(suite, noise=QUIET), ended))
    assert guard_reason(verdict, "all-measured") is not None
    assert not verdict.outcome.promotes


def test_a_fixed_number_of_blocks_is_never_ended() -> None:
    suite = suite_with(TTFT, looks=(20,))
    verdict = judge(suite, after(5, measured(suite, noise=QUIET), LoadEnd(5, 20, "decided")))
    assert guard_reason(verdict, "all-measured") is not None


def test_a_request_that_is_missing_before_the_look_is_still_missed() -> None:
    suite = suite_with(TTFT)
    verdict = judge(suite, ended_at(5, measured(suite, Effect(drop_last=True), noise=QUIET)))
    reason = guard_reason(verdict, "all-measured")
    assert reason == "stage c4, block 1, candidate: 59 of 60 planned requests have a record"


def test_another_policy_judges_a_run_that_ended_early_by_what_that_look_may_spend() -> None:
    suite = suite_with(NOTICED, GOODPUT)
    whole = measured(suite, noise=Noise(cv=0.03, seed=4))
    stricter = suite.model_copy(update={"gate": suite_with(TTFT).gate})
    check = check_of(judge(stricter, ended_at(5, whole)), "ttft")
    assert check.notes[0].startswith("look 1 of 3, after 5 of at most 20 blocks; limits at 0.0393 %")
    assert check.outcome is Outcome.INCONCLUSIVE


# What going on may take


def limited(time: str | None = None, cost: str | None = None, price: float | None = 2.0) -> Suite:
    suite = suite_with(TTFT)
    data = suite.to_stored()
    data["load"]["limit"] = {"time_s": 100.0 if time else None, "cost_usd": 1.0 if cost else None}
    for spec in data["deployments"].values():
        spec |= {"price": price, "accelerators": 4}
    return Suite.from_stored(data)


def test_no_look_is_begun_that_would_pass_the_time() -> None:
    assert limit_passed(limited(time="100s"), 60, 40) is None
    assert limit_passed(limited(time="100s"), 60, 40.1) == "time"
    assert limit_passed(suite_with(TTFT), 1e9, 1e9) is None
    assert limit_passed(suite_with(TTFT).model_copy(update={"load": None}), 1e9, 1e9) is None


def test_no_look_is_begun_that_would_pass_the_cost_of_all_accelerators_of_both_arms() -> None:
    # 2 deployments of 4 accelerators at $2 an hour: $16 an hour, so $1 is 225 s.
    assert limit_passed(limited(cost="1 USD"), 125, 100) is None
    assert limit_passed(limited(cost="1 USD"), 125, 100.1) == "cost"
    assert limit_passed(limited(cost="1 USD", price=None), 0, 1) == "cost"
