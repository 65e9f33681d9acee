"""A run that was cut short and went on: what its verdict tells of that, and that it is no way to a PASS."""

from __future__ import annotations

from dataclasses import replace

from benchgate.gate.decide import judge
from benchgate.gate.sittings import MOST_RESUMPTIONS
from benchgate.model.run import Evidence, Resumption
from benchgate.model.verdict import Outcome, Verdict
from tests.fakes.measured import Effect, SuiteText, measured

SUITE = SuiteText(checks=[{"metric": "ttft", "margin": "10%"}]).suite()


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
    assert not [note for note in verdict.notes if "sitting" in note]


def test_one_interruption_is_allowed_and_told() -> None:
    verdict = judged(1)
    assert verdict.outcome is Outcome.PASS
    (guard,) = [guard for guard in verdict.guards if guard.id == "few-interruptions"]
    assert (guard.tripped, guard.reason) == (False, "the run was cut short and went on once, which is allowed")
    assert verdict.notes == (
        "measured in 2 sittings: "
        "cut short, went on at 2026-01-01T00:00:00Z, and measured again from the beginning: block 1",
    )


def test_who_ends_a_run_until_it_goes_well_gets_no_pass() -> None:
    verdict = judged(MOST_RESUMPTIONS + 1)
    assert verdict.outcome is Outcome.INVALID
    assert [guard.id for guard in verdict.guards if guard.tripped] == ["few-interruptions"]
    assert {check.outcome for check in verdict.checks} == {Outcome.INVALID}
    assert "the run was cut short and went on 2 times" in verdict.reason
    assert verdict.notes == (
        "measured in 3 sittings: "
        "cut short, went on at 2026-01-01T00:00:00Z, and measured again from the beginning: block 1; "
        "cut short, went on at 2026-01-01T01:00:00Z, and measured again from the beginning: block 2",
    )


def test_nor_does_a_bad_candidate_that_is_measured_once_more() -> None:
    assert judged(MOST_RESUMPTIONS, Effect(slowdown=1.5)).outcome is Outcome.BLOCK


def test_nothing_set_aside_is_told_without_it() -> None:
    once = Resumption("2026-01-01T00:00:00Z", 7, (), ())
    verdict = judge(SUITE, replace(measured(SUITE), resumptions=(once,)))
    assert verdict.notes == ("measured in 2 sittings: cut short, went on at 2026-01-01T00:00:00Z",)


def test_of_two_stored_runs_either_counts() -> None:
    reference, evidence = measured(SUITE, run_id="before"), measured(SUITE)
    for sides in ((gone_on(4, reference), evidence), (reference, gone_on(4, evidence))):
        assert judge(SUITE, sides[1], sides[0]).outcome is Outcome.INVALID
