"""Where the guards over the load begin to trip: at the bound they hold, one request beyond it they do not.

Eight blocks of sixty requests: 4 of 480 are less than a hundredth, and 5 are more.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from benchgate.gate.evidence.tokens import same_rows
from benchgate.gate.guards.arms import two_deployments
from benchgate.gate.guards.base import SPEED, TOKENS, compared, invalidated_by
from benchgate.model.deployment import Arm
from benchgate.model.records import ABSENT, RequestColumns, TokenSource
from benchgate.model.run import Evidence, LoadObservation
from benchgate.model.verdict import GuardResult
from benchgate.suite.schema import Suite
from benchgate.suite.stages import Stage
from tests.fakes.blocks import record
from tests.fakes.drills import drill
from tests.fakes.guards import of_run
from tests.fakes.measured import HEALTHY, Effect, SuiteText, measured

Line = dict[str, object]
ERRORS: Line = {"metric": "error_rate", "max": "5%"}
SUITE = SuiteText([ERRORS]).suite()
EQUAL = measured(SUITE)
LOAD = ("load",)


def guard(name: str, evidence: Evidence, suite: Suite = SUITE) -> GuardResult:
    """What it found: what trips says what to do, what holds invalidates nothing."""
    (found,) = of_run(evidence, suite, name)
    assert bool(found.remedy) is found.tripped
    assert found.tripped or found.invalidates == ()
    return found


def invalidated(name: str, evidence: Evidence, suite: Suite = SUITE) -> tuple[str, ...] | None:
    """The kinds of checks it invalidates; None where it holds."""
    found = guard(name, evidence, suite)
    return found.invalidates if found.tripped else None


def marked(evidence: Evidence, arm: Arm, rows: int, stage: str | None = None, **values: int | str) -> Evidence:
    """The first so many requests of an arm, counted over its blocks, with these values in their columns."""
    left, load = rows, []
    for o in evidence.load:
        if o.arm is not arm or stage not in (None, o.stage):
            load.append(o)
            continue
        here = min(left, len(o.requests))
        left -= here
        columns = o.requests.to_columns()
        changed = {name: _with(columns[name], value, here) for name, value in values.items()}
        load.append(replace(o, requests=RequestColumns.from_columns({**columns, **changed})))
    return replace(evidence, load=tuple(load))


def _with(column: Any, value: int | str, rows: int) -> Any:
    if isinstance(column, np.ndarray):
        return np.where(np.arange(len(column)) < rows, value, column)
    return [value if row < rows else one for row, one in enumerate(column)]


def told(evidence: Evidence, arm: Arm, **client: Any) -> Evidence:
    """The first execution of an arm whose load generator recorded this of itself."""
    at = next(i for i, o in enumerate(evidence.load) if o.arm is arm)
    one = replace(evidence.load[at], client=replace(evidence.load[at].client, **client))
    return replace(evidence, load=(*evidence.load[:at], one, *evidence.load[at + 1 :]))


def alone(evidence: Evidence) -> Evidence:
    return replace(evidence, load=tuple(o for o in evidence.load if o.arm is Arm.CANDIDATE))


# --- sent once --------------------------------------------------------------------------------------------------------


def test_a_hundredth_more_of_the_candidates_requests_may_be_sent_again_and_no_more() -> None:
    for rows, kinds in ((4, None), (5, LOAD)):
        assert invalidated("sent-once", marked(EQUAL, Arm.CANDIDATE, rows, reconnects=1)) == kinds
        beside = marked(marked(EQUAL, Arm.CANDIDATE, 20 + rows, reconnects=1), Arm.BASELINE, 20, reconnects=1)
        assert invalidated("sent-once", beside) == kinds


def test_a_baseline_alone_may_have_its_requests_sent_again() -> None:
    assert invalidated("sent-once", marked(EQUAL, Arm.BASELINE, 30, reconnects=1)) is None


def test_three_requests_sent_again_are_the_least_that_tell() -> None:
    suite = SuiteText([ERRORS], blocks=2, requests=40).suite()
    for rows, kinds in ((2, None), (3, LOAD)):
        assert invalidated("sent-once", marked(measured(suite), Arm.CANDIDATE, rows, reconnects=1), suite) == kinds


def test_a_baseline_that_closes_a_tenth_of_its_connections_has_no_habit_yet() -> None:
    every = marked(EQUAL, Arm.CANDIDATE, 480, reconnects=1)
    assert invalidated("sent-once", marked(every, Arm.BASELINE, 48, reconnects=1)) == LOAD
    assert invalidated("sent-once", marked(every, Arm.BASELINE, 49, reconnects=1)) is None


def test_measured_alone_half_of_the_requests_sent_again_are_no_habit_yet() -> None:
    assert invalidated("sent-once", alone(marked(EQUAL, Arm.CANDIDATE, 240, reconnects=1))) == LOAD
    assert invalidated("sent-once", alone(marked(EQUAL, Arm.CANDIDATE, 241, reconnects=1))) is None


def test_measured_alone_the_candidates_own_engine_is_what_excuses_it() -> None:
    again = alone(marked(EQUAL, Arm.CANDIDATE, 30, reconnects=1))
    for closing, kinds in ((Arm.BASELINE, LOAD), (Arm.CANDIDATE, None)):
        arms = {a: replace(one, engine="llamacpp" if a is closing else "vllm") for a, one in again.run.arms.items()}
        assert invalidated("sent-once", replace(again, run=replace(again.run, arms=arms))) == kinds


def test_a_habit_of_the_candidate_is_none_beside_a_baseline_that_has_not_got_it() -> None:
    assert invalidated("sent-once", marked(EQUAL, Arm.CANDIDATE, 480, reconnects=1)) == LOAD


def test_an_engine_known_to_close_is_excused_where_the_engine_is_the_change_and_it_alone_is_known_for_it() -> None:
    every = marked(EQUAL, Arm.CANDIDATE, 480, reconnects=1)
    engines = {("vllm", "llamacpp"): None, ("llamacpp", "llamacpp"): LOAD, ("llamacpp", "vllm"): LOAD}
    for pair, kinds in engines.items():
        arms = {a: replace(every.run.arms[a], engine=engine) for a, engine in zip(Arm, pair, strict=True)}
        found = replace(every, run=replace(every.run, arms=arms))
        assert invalidated("sent-once", found) == kinds
        few = replace(marked(EQUAL, Arm.CANDIDATE, 240, reconnects=1), run=found.run)
        assert invalidated("sent-once", few) == LOAD  # half of them is no habit


def test_connections_closed_after_an_answer_are_a_habit_where_no_request_met_that_too() -> None:
    again = marked(marked(EQUAL, Arm.CANDIDATE, 30, reconnects=1), Arm.BASELINE, 8, reconnects=1)
    for early, kinds in ((40, LOAD), (41, None)):
        assert invalidated("sent-once", told(again, Arm.BASELINE, closed_early=early)) == kinds
        assert invalidated("sent-once", told(again, Arm.CANDIDATE, closed_early=480)) == LOAD
    for early, kinds in ((210, LOAD), (211, None)):
        assert invalidated("sent-once", alone(told(again, Arm.CANDIDATE, closed_early=early))) == kinds


def test_a_habit_in_one_stage_excuses_no_other() -> None:
    suite = drill(ERRORS)
    habit = marked(measured(suite), Arm.BASELINE, 320, stage="short", reconnects=1)
    again = marked(habit, Arm.CANDIDATE, 320, stage="long", reconnects=1)
    assert invalidated("sent-once", again, suite) == LOAD


def test_unasked_answers_are_counted_over_what_was_recorded_beside_the_baselines() -> None:
    for times, kinds in ((4, None), (5, LOAD)):
        assert invalidated("sent-once", told(EQUAL, Arm.CANDIDATE, unasked=times)) == kinds
        beside = told(told(EQUAL, Arm.CANDIDATE, unasked=9 + times), Arm.BASELINE, unasked=9)
        assert invalidated("sent-once", beside) == kinds
    suite = SuiteText([ERRORS], blocks=2, requests=40).suite()
    for times, kinds in ((2, None), (3, LOAD)):
        assert invalidated("sent-once", told(measured(suite), Arm.CANDIDATE, unasked=times), suite) == kinds


def test_unasked_answers_with_nothing_beside_them_say_nothing() -> None:
    assert invalidated("sent-once", alone(told(EQUAL, Arm.CANDIDATE, unasked=400))) is None
    baseline = tuple(o for o in told(EQUAL, Arm.CANDIDATE, unasked=400).load if o.arm is Arm.BASELINE)
    assert invalidated("sent-once", replace(EQUAL, load=baseline)) is None


# --- prompts ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("arm", Arm)
def test_prompts_may_be_a_hundredth_shorter_or_longer_in_all_and_no_more(arm: Arm) -> None:
    for change in (-1, 1):
        candidate_has_less = (change < 0) is (arm is Arm.CANDIDATE)  # more than it is asked is no gain of its own
        for rows, kinds in ((38, None), (39, (SPEED,) if candidate_has_less else compared(SPEED))):  # of 3,840 tokens
            assert invalidated("prompts-alike", marked(EQUAL, arm, rows, input_tokens=8 + change)) == kinds


@pytest.mark.parametrize("arm", Arm)
def test_of_a_hundredth_of_the_answers_one_arm_alone_may_tell_the_prompts_length(arm: Arm) -> None:
    for rows, kinds in ((4, None), (5, invalidated_by(arm, SPEED))):
        assert invalidated("prompts-alike", marked(EQUAL, arm, rows, input_tokens=ABSENT)) == kinds


def test_what_both_arms_withhold_for_other_requests_adds_up() -> None:
    ours = marked(EQUAL, Arm.CANDIDATE, 3, input_tokens=ABSENT)
    first, *others = [i for i, o in enumerate(ours.load) if o.arm is Arm.BASELINE]
    lone = replace(ours, load=(ours.load[others[0]],))
    later = marked(lone, Arm.BASELINE, 3, input_tokens=ABSENT).load[0]
    both = replace(ours, load=tuple(later if i == others[0] else o for i, o in enumerate(ours.load)))
    assert first != others[0]
    assert invalidated("prompts-alike", both) == (SPEED,)


def test_requests_are_paired_by_number_whatever_their_rows_are() -> None:
    theirs, ours = (
        replace(EQUAL.load[0], requests=RequestColumns.pack([record(i, 0.1) for i in index]))
        for index in ((0, 1, 2, 4), (0, 2, 3, 4))
    )
    assert [rows.tolist() for rows in same_rows(theirs, ours)] == [[0, 2, 3], [0, 1, 3]]
    assert [rows.tolist() for rows in same_rows(ours, ours)] == [[0, 1, 2, 3]] * 2
    fewer = replace(theirs, requests=RequestColumns.pack([record(4, 0.1)]))
    assert [rows.tolist() for rows in same_rows(theirs, fewer)] == [[3], [0]]


def test_failed_requests_tell_no_length_and_are_not_counted() -> None:
    assert invalidated("prompts-alike", measured(SUITE, Effect(failed=10))) is None


def test_a_stage_whose_prompts_are_alike_excuses_no_other() -> None:
    suite = drill(ERRORS)
    cut = marked(measured(suite), Arm.CANDIDATE, 320, stage="long", input_tokens=4)
    assert invalidated("prompts-alike", cut, suite) == (SPEED,)


def test_prompts_without_a_length_from_both_servers_are_not_compared() -> None:
    unknown = marked(marked(EQUAL, Arm.BASELINE, 480, input_tokens=ABSENT), Arm.CANDIDATE, 480, input_tokens=ABSENT)
    assert guard("prompts-alike", EQUAL).known
    for evidence in (unknown, alone(EQUAL)):
        found = guard("prompts-alike", evidence)
        assert (found.known, found.reason) == (False, "no prompt has a length from both servers")


# --- tokens -----------------------------------------------------------------------------------------------------------


def test_tokens_that_no_server_counted_are_not_examined() -> None:
    chunks = Effect(token_source=TokenSource.CHUNKS)
    found = guard("tokens-plausible", measured(SUITE, chunks, chunks))
    assert (found.known, found.reason) == (False, "no server counted the tokens of its answers")
    assert guard("tokens-plausible", measured(SUITE, HEALTHY, chunks)).known


@pytest.mark.parametrize("arm", Arm)
def test_a_hundredth_of_the_answers_may_be_counted_another_way_on_one_arm(arm: Arm) -> None:
    own = (TOKENS,) if arm is Arm.CANDIDATE else ()
    for rows, kinds in ((4, None), (5, (*compared("load"), *own))):
        assert invalidated("tokens-alike", marked(EQUAL, arm, rows, token_source="chunks")) == kinds


@pytest.mark.parametrize("arm", Arm)
def test_a_hundredth_of_the_answers_may_count_two_tokens_less_than_they_have_texts(arm: Arm) -> None:
    for rows, tokens, kinds in ((4, 8, None), (5, 8, invalidated_by(arm, TOKENS)), (480, 9, None)):
        assert invalidated("tokens-plausible", marked(EQUAL, arm, rows, output_tokens=tokens)) == kinds


def test_reasoning_that_a_server_tells_of_and_does_not_count_in_is_named() -> None:
    few = marked(EQUAL, Arm.CANDIDATE, 480, output_tokens=2)
    for thought, named in ((7, True), (6, False), (ABSENT, False)):  # of ten pieces of text, less one
        found = guard("tokens-plausible", marked(few, Arm.CANDIDATE, 480, reasoning_tokens=thought))
        assert (found.invalidates, "reasoning tokens" in (found.remedy or "")) == ((TOKENS,), named)


def test_counts_that_are_not_the_servers_own_are_not_held_against_it() -> None:
    assert (
        invalidated("tokens-plausible", marked(EQUAL, Arm.CANDIDATE, 9, output_tokens=8, token_source="chunks")) is None
    )


@pytest.mark.parametrize("arm", Arm)
def test_a_hundredth_of_one_arms_answers_may_be_longer_than_asked_for(arm: Arm) -> None:
    for rows, kinds in ((4, None), (5, invalidated_by(arm, "load"))):
        assert invalidated("answers-not-too-long", marked(EQUAL, arm, rows, output_tokens=11)) == kinds
        beside = marked(marked(EQUAL, arm, 20 + rows, output_tokens=11), arm.other, 20, output_tokens=11)
        assert invalidated("answers-not-too-long", beside) == (
            kinds and LOAD
        )  # the candidate's own are too long as well


def test_answers_past_a_limit_of_their_own_rows_are_counted_over_those_that_reached_it() -> None:
    assert SUITE.load is not None
    stage = Stage.model_validate({"stage": "c4", "trace": "day.csv", "requests": 60})
    suite = SUITE.model_copy(update={"load": SUITE.load.model_copy(update={"sweep": (stage,)})})
    for rows, kinds in ((4, None), (5, LOAD)):
        longer = marked(EQUAL, Arm.CANDIDATE, rows, output_tokens=11)
        assert invalidated("answers-not-too-long", longer, suite) == kinds
    stopped = marked(marked(EQUAL, Arm.CANDIDATE, 99, output_tokens=11), Arm.CANDIDATE, 99, finish_reason="stop")
    assert invalidated("answers-not-too-long", stopped, suite) is None
    assert invalidated("answers-not-too-long", marked(EQUAL, Arm.BASELINE, 99, output_tokens=11), suite) is None


def test_an_arm_that_was_not_measured_is_no_measure_of_what_is_usual() -> None:
    assert invalidated("answers-not-too-long", alone(marked(EQUAL, Arm.CANDIDATE, 480, output_tokens=11))) is None


# --- times and senders ------------------------------------------------------------------------------------------------


def shifted(name: str, by_ns: int) -> Evidence:
    """The second request of the candidate that has this time so much after it was sent."""
    at = next(i for i, o in enumerate(EQUAL.load) if o.arm is Arm.CANDIDATE)
    columns = EQUAL.load[at].requests
    times = getattr(columns, name).copy()
    times[columns.chunk_start[1] if name == "chunk_ns" else 1] = columns.sent_ns[1] + by_ns
    changed = RequestColumns.from_columns({**columns.to_columns(), name: times})
    one: LoadObservation = replace(EQUAL.load[at], requests=changed)
    return replace(EQUAL, load=(*EQUAL.load[:at], one, *EQUAL.load[at + 1 :]))


def impossible(evidence: Evidence) -> str | None:
    """What the guard says of the evidence, without the place; None where it holds."""
    found = guard("times-possible", evidence)
    assert not found.tripped or found.invalidates == LOAD
    return found.reason.partition(": ")[2] if found.tripped else None


FAILED: dict[str, Any] = {"error": "timeout", "error_detail": "no answer in time"}


@pytest.mark.parametrize("name", ["chunk_ns", "end_ns"])
def test_one_answer_before_its_request_invalidates_the_load_and_one_at_the_same_instant_does_not(name: str) -> None:
    assert impossible(shifted(name, -1)) == "1 of 60 requests were answered before they were sent"
    assert (impossible(shifted(name, 0)) is None) is (name == "chunk_ns")  # an end is not before the last of the answer
    failed = marked(shifted("end_ns", 0), Arm.CANDIDATE, 2, **FAILED)
    assert impossible(failed) is None


def test_what_was_never_sent_or_never_ended_was_not_early() -> None:
    assert impossible(marked(EQUAL, Arm.CANDIDATE, 3, sent_ns=ABSENT, **FAILED)) is None
    assert impossible(marked(EQUAL, Arm.CANDIDATE, 3, end_ns=ABSENT, **FAILED)) is None


@pytest.mark.parametrize("arm", Arm)
@pytest.mark.parametrize(
    "lacking",
    [{"end_ns": ABSENT}, {"http_status": 500}, {"output_tokens": 0}, {"finish_reason": "abort"}, {"sent_ns": ABSENT}],
)
def test_a_request_without_an_error_has_all_that_makes_a_success(arm: Arm, lacking: dict[str, Any]) -> None:
    assert impossible(marked(EQUAL, arm, 1, **lacking)) == "1 of 60 requests have neither an error nor a whole answer"
    assert impossible(marked(EQUAL, arm, 1, **lacking, **FAILED)) is None
    assert impossible(marked(EQUAL, arm, 1, **lacking, left=1)) is None


@pytest.mark.parametrize("half", FAILED)
def test_an_error_has_its_details_and_they_have_an_error(half: str) -> None:
    said = "1 of 60 requests have an error without its details, or details without an error"
    only: dict[str, Any] = {half: FAILED[half]}
    assert impossible(marked(EQUAL, Arm.BASELINE, 1, **only)) == said


def test_a_timer_may_be_five_milliseconds_early_and_no_more() -> None:
    ms, said = 1_000_000, "1 of 60 requests were sent before they were due"
    assert impossible(shifted("intended_ns", 5 * ms)) is None
    assert impossible(shifted("intended_ns", 5 * ms + 1)) == said
    assert impossible(marked(shifted("intended_ns", 6 * ms), Arm.CANDIDATE, 2, left=1)) is None


@pytest.mark.parametrize("part", ["requests", "ramp", "left"])
def test_no_two_requests_of_any_kind_have_one_number(part: str) -> None:
    first = EQUAL.load[0]
    twice = {**first.requests.to_columns(), "index": np.maximum(first.requests.index, 1)}
    others = {"ramp": np.full(60, part == "ramp", np.int8), "left": np.full(60, part == "left", np.int8)}
    changed: dict[str, Any] = {part: RequestColumns.from_columns({**twice, **others})}
    one: LoadObservation = replace(first, **changed)
    said = impossible(replace(EQUAL, load=(one, *EQUAL.load[1:])))
    assert said == "1 of 60 requests have the number of another"


def test_the_parts_of_an_answer_are_in_order() -> None:
    columns = EQUAL.load[0].requests
    first, last = int(columns.chunk_ns[0]), int(columns.chunk_ns[columns.chunk_start[1] - 1])
    said = "1 of 60 requests have parts of their answers out of order"
    for at, wrong in ((first, None), (last, None), (first - 1, said), (last + 1, said)):
        assert impossible(marked(EQUAL, Arm.BASELINE, 1, first_answer_ns=at)) == wrong
    for moved, wrong in ((1, said), (9, said)):
        chunks = columns.chunk_ns.copy()
        chunks[moved] = chunks[0] - 1 if moved == 1 else columns.end_ns[0] + 1
        one = replace(EQUAL.load[0], requests=RequestColumns.from_columns({**columns.to_columns(), "chunk_ns": chunks}))
        assert impossible(replace(EQUAL, load=(one, *EQUAL.load[1:]))) == wrong


@pytest.mark.parametrize("arm", Arm)
@pytest.mark.parametrize(
    "wrong", [{"cpu_s": math.nan}, {"wall_s": math.inf}, {"read_delay_p99_s": math.nan}, {"busiest_share": -0.1}]
)
def test_a_figure_of_the_client_that_is_no_number_invalidates_the_load(arm: Arm, wrong: Line) -> None:
    assert invalidated("times-possible", told(EQUAL, arm, **wrong)) == LOAD


@pytest.mark.parametrize("arm", Arm)
def test_a_stage_lasts_no_less_than_from_its_first_send_to_its_last_end(arm: Arm) -> None:
    at = next(i for i, o in enumerate(EQUAL.load) if o.arm is arm)
    columns = EQUAL.load[at].requests
    span_s = float(columns.end_ns.max() - columns.sent_ns.min()) / 1e9

    def lasting(window_s: float) -> Evidence:
        return replace(
            EQUAL, load=(*EQUAL.load[:at], replace(EQUAL.load[at], window_s=window_s), *EQUAL.load[at + 1 :])
        )

    assert invalidated("times-possible", lasting(span_s)) is None
    for window_s in (span_s - 1e-4, span_s + 1e-4, 1e-300, 0.0, -1.0, math.nan, math.inf):
        assert invalidated("times-possible", lasting(window_s)) == LOAD


def test_requests_that_never_ended_took_as_long_as_their_limits_allow() -> None:
    silent = marked(EQUAL, Arm.CANDIDATE, 60, end_ns=ABSENT, **FAILED)
    at, one = next((i, o) for i, o in enumerate(silent.load) if o.arm is Arm.CANDIDATE)
    most_s = float(one.requests.sent_ns.max()) / 1e9 + 2 * (SUITE.limits.connect_s + SUITE.limits.total_s)
    for window_s, tripped in ((0.001, False), (most_s, False), (most_s + 1e-3, True)):
        load = (*silent.load[:at], replace(one, window_s=window_s), *silent.load[at + 1 :])
        assert (impossible(replace(silent, load=load)) is not None) is tripped


def test_an_execution_without_requests_bounds_no_window() -> None:
    at, one = next((i, o) for i, o in enumerate(EQUAL.load) if o.arm is Arm.CANDIDATE)
    empty = replace(one, requests=RequestColumns.pack([]))
    assert impossible(replace(EQUAL, load=(*EQUAL.load[:at], empty, *EQUAL.load[at + 1 :]))) is None


def test_no_two_executions_have_the_same_times() -> None:
    copied = replace(EQUAL.load[2], requests=EQUAL.load[0].requests, window_s=EQUAL.load[0].window_s)
    found = guard("all-measured", replace(EQUAL, load=(*EQUAL.load[:2], copied, *EQUAL.load[3:])))
    assert "to the nanosecond: one of them was not measured" in found.reason
    nothing = marked(marked(EQUAL, Arm.BASELINE, 999, sent_ns=ABSENT), Arm.CANDIDATE, 999, sent_ns=ABSENT)
    assert not guard("all-measured", marked(nothing, Arm.BASELINE, 999, end_ns=ABSENT)).tripped


@pytest.mark.parametrize("arm", Arm)
def test_one_execution_sent_by_more_processes_invalidates_what_is_measured_in_time(arm: Arm) -> None:
    assert invalidated("one-client", told(EQUAL, arm, workers=2)) == (SPEED,)
    assert invalidated("load-as-planned", told(EQUAL, arm, faults=("worker 1 of 1 was lost",))) == LOAD


# --- who answers ------------------------------------------------------------------------------------------------------


def test_one_deployment_under_two_names_invalidates_all_that_there_is() -> None:
    weights: Line = {"weights_at": "org/m"}
    arms = {arm: replace(EQUAL.run.arms[arm], url="http://one", model=f"m-{arm}", facts=weights) for arm in Arm}
    found = two_deployments(replace(EQUAL, run=replace(EQUAL.run, arms=arms)), SUITE)
    assert (found.tripped, found.invalidates) == (True, ("load", "quality", "divergence", "shadow"))


@pytest.mark.parametrize("arm", Arm)
def test_a_run_that_does_not_know_both_deployments_cannot_say_who_answers(arm: Arm) -> None:
    known = replace(EQUAL, run=replace(EQUAL.run, arms={arm: EQUAL.run.arms[arm]}))
    assert not two_deployments(known, SUITE).known


def test_a_client_that_kept_up_by_bounds_of_the_policys_own_is_said_to_have() -> None:
    own = SuiteText([ERRORS], gate={"client": {"send_lag_p99": "30ms"}}).suite()
    assert "within the policy's own bounds: send_lag_p99 30 ms" in guard("client-keeps-up", EQUAL, own).reason
    assert "own bounds" not in guard("client-keeps-up", EQUAL).reason
