"""A run that was cut short and went on: what its verdict tells of that, and that it is no way to a PASS."""

from __future__ import annotations

from dataclasses import replace

import pytest

from benchgate.gate.comparison import measured_twice
from benchgate.gate.guards.run import MAX_RESUMPTIONS, completion_remedy, session_notes
from benchgate.gate.judge import judge
from benchgate.model.deployment import Arm
from benchgate.model.run import Evidence, Resumption, RunStatus
from benchgate.model.telemetry import TelemetrySample, TelemetryWindow
from benchgate.model.verdict import Outcome, Verdict
from tests.fakes.measured import Effect, SuiteText, measured

SUITE = SuiteText(checks=[{"metric": "ttft", "margin": "10%"}]).suite()
UNKNOWN = "it is not known whether the server of the baseline and the candidate was restarted between the sessions"


def gone_on(times: int, evidence: Evidence) -> Evidence:
    found = (
        Resumption(f"2026-01-01T0{number}:00:00Z", 7, (f"block {number + 1}",), (number,)) for number in range(times)
    )
    return replace(evidence, resumptions=tuple(found))


def judged(times: int, effect: Effect | None = None) -> Verdict:
    evidence = measured(SUITE) if effect is None else measured(SUITE, effect)
    return judge(SUITE, gone_on(times, evidence))


def test_a_run_in_one_sitting_says_nothing_of_sittings() -> None:
    verdict = judged(0)
    assert verdict.outcome is Outcome.PASS
    assert "few-interruptions" not in {guard.id for guard in verdict.guards}
    assert not [note for note in verdict.notes if "session" in note]


def test_one_interruption_is_allowed_and_told() -> None:
    verdict = judged(1)
    assert verdict.outcome is Outcome.PASS
    (guard,) = [guard for guard in verdict.guards if guard.id == "few-interruptions"]
    assert (guard.tripped, guard.reason) == (False, "the run was interrupted and resumed once, which is allowed")
    assert verdict.notes == (
        "measured in 2 sessions: "
        "interrupted, resumed at 2026-01-01T00:00:00Z, and measured again from the beginning: block 1",
        UNKNOWN,
    )


def test_who_ends_a_run_until_it_goes_well_gets_no_pass() -> None:
    verdict = judged(MAX_RESUMPTIONS + 1)
    assert verdict.outcome is Outcome.INVALID
    (guard,) = [guard for guard in verdict.guards if guard.tripped]
    assert (guard.id, guard.invalidates) == ("few-interruptions", ("load", "quality", "divergence", "shadow"))
    assert {check.outcome for check in verdict.checks} == {Outcome.INVALID}
    assert "the run was interrupted and resumed 2 times" in verdict.reason
    assert verdict.notes == (
        "measured in 3 sessions: "
        "interrupted, resumed at 2026-01-01T00:00:00Z, and measured again from the beginning: block 1; "
        "interrupted, resumed at 2026-01-01T01:00:00Z, and measured again from the beginning: block 2",
        UNKNOWN,
    )


def test_nor_does_a_bad_candidate_that_is_measured_once_more() -> None:
    assert judged(MAX_RESUMPTIONS, Effect(slowdown=1.5)).outcome is Outcome.BLOCK


def test_nothing_set_aside_is_told_without_it() -> None:
    once = Resumption("2026-01-01T00:00:00Z", 7, (), ())
    verdict = judge(SUITE, replace(measured(SUITE), resumptions=(once,)))
    assert verdict.notes == ("measured in 2 sessions: interrupted, resumed at 2026-01-01T00:00:00Z", UNKNOWN)


def test_of_two_stored_runs_either_counts() -> None:
    reference, evidence = measured(SUITE, run_id="before"), measured(SUITE)
    for sides in ((gone_on(4, reference), evidence), (reference, gone_on(4, evidence))):
        assert judge(SUITE, sides[1], sides[0]).outcome is Outcome.INVALID


def test_a_spool_that_was_not_there_stands_in_the_verdict() -> None:
    once = Resumption("2026-01-01T00:00:00Z", 7, ("block 1",), (1,), without_spool=True)
    (told, _) = session_notes(replace(measured(SUITE), resumptions=(once,)))
    assert told == (
        "measured in 2 sessions: interrupted, resumed at 2026-01-01T00:00:00Z without the spool of records "
        "(--ignore-missing-spool), so measured blocks may be missing, and measured again from the beginning: block 1"
    )


def test_a_spool_that_nobody_vouches_for_stands_in_the_verdict() -> None:
    once = Resumption("2026-01-01T00:00:00Z", 7, (), (), by_spool=True)
    assert session_notes(replace(measured(SUITE), resumptions=(once,)))[0] == (
        "measured in 2 sessions: interrupted, resumed at 2026-01-01T00:00:00Z from store and spool; nothing proves "
        "that the spool is complete"
    )


def window(arm: Arm, block: int, marker: str | None) -> TelemetryWindow:
    readings = (TelemetrySample(0.0, {}, marker), TelemetrySample(1.0, {}, marker))
    return TelemetryWindow("c4", arm, block, 2 * block + (arm is Arm.CANDIDATE), "vllm", 1.0, True, readings)


def test_a_server_that_was_restarted_between_the_sittings_is_told_and_one_that_is_ours_is_not() -> None:
    evidence = gone_on(1, measured(SUITE))
    windows = (
        window(Arm.BASELINE, 0, "one"),
        window(Arm.CANDIDATE, 0, "one"),
        window(Arm.BASELINE, 1, "one"),
        window(Arm.CANDIDATE, 1, "another"),
    )
    evidence = replace(evidence, telemetry=windows)
    assert session_notes(evidence)[1:] == ("the candidate was restarted before block 2, stage c4", UNKNOWN)
    (once,) = evidence.resumptions
    known = replace(evidence, resumptions=(replace(once, same_process=("baseline", "candidate")),))
    assert session_notes(known)[1:] == ("the candidate was restarted before block 2, stage c4",)
    known = replace(evidence, resumptions=(replace(once, same_process=("baseline",)),))
    assert session_notes(known)[2:] == (
        "it is not known whether the server of the candidate was restarted between the sessions",
    )
    arms = {arm: replace(deployment, url=None) for arm, deployment in evidence.run.arms.items()}
    assert session_notes(replace(evidence, run=replace(evidence.run, arms=arms)))[1:] == ()
    # A marker of the first sitting alone says nothing of the next.
    assert session_notes(replace(evidence, telemetry=windows[:2]))[1:] == (UNKNOWN,)


@pytest.mark.parametrize("times", [0, MAX_RESUMPTIONS])
@pytest.mark.parametrize(
    ("status", "says"),
    [
        (RunStatus.RUNNING, "wait for it to end; if its process was killed, resume it: `benchgate run"),
        (RunStatus.PARTIAL, "resume it: `benchgate run SUITE --resume --run run-1`"),
    ],
)
def test_a_run_that_was_cut_short_is_told_how_it_goes_on(status: RunStatus, says: str, times: int) -> None:
    evidence = gone_on(times, measured(SUITE))
    evidence = replace(evidence, run=replace(evidence.run, status=status, finished_at=None))
    (guard,) = [guard for guard in judge(SUITE, evidence).guards if guard.id == "run-complete"]
    assert guard.tripped and guard.remedy is not None
    expected = "it was resumed once and cannot be resumed again: run" if times else says
    assert guard.remedy.startswith(expected)


def test_what_does_not_go_on_is_run_again() -> None:
    run = replace(measured(SUITE).run, status=RunStatus.PARTIAL, finished_at=None)
    arms = {arm: replace(deployment, facts={"imported": True}) for arm, deployment in run.arms.items()}
    for other in (
        replace(run, suite={**run.suite, "calibration": True}),
        replace(run, arms=arms),
        replace(run, finished_at="2026-01-01T00:01:00.000Z"),
        replace(run, status=RunStatus.COMPLETE),
    ):
        assert completion_remedy(replace(measured(SUITE), run=other)) == "run the suite again to its end"


def test_what_two_processes_measured_of_one_block_is_judged_by_neither() -> None:
    evidence = measured(SUITE)
    assert measured_twice(evidence) is None
    faster = [replace(o, position=o.position + 100) for o in evidence.load if o.block == 1]
    for load in ((*evidence.load, faster[0]), (faster[-1], *evidence.load)):
        verdict = judge(SUITE, replace(evidence, load=load))
        assert verdict.outcome is Outcome.INVALID
        (guard,) = [guard for guard in verdict.guards if guard.tripped]
        assert guard.id == "all-measured"
        assert "block 2" in guard.reason and "is there 2 times, and is measured once" in guard.reason


def test_telemetry_and_evals_that_are_there_twice_are_told_by_their_place() -> None:
    evidence = measured(SUITE)
    twice = (window(Arm.BASELINE, 0, "one"),) * 2
    found = measured_twice(replace(evidence, telemetry=twice))
    assert found == "telemetry of stage c4, block 1, baseline is there 2 times, and is measured once"
    again = replace(evidence.quality[0], repeat=1)
    assert measured_twice(replace(evidence, quality=(*evidence.quality, again))) is None
    found = measured_twice(replace(evidence, quality=(*evidence.quality, again, again)))
    assert found == f"task {again.task} again on the {again.arm} is there 2 times, and is measured once"
