"""A whole judgement: with and without waivers, against a live baseline and a stored run. What may not get lost."""

from __future__ import annotations

from dataclasses import replace
from datetime import date, timedelta

import pytest

from benchgate.gate.judge import judge
from benchgate.model.deployment import Arm
from benchgate.model.run import ClientUse, Evidence, RunStatus
from benchgate.model.verdict import HISTORY, CheckResult, Outcome, Verdict
from benchgate.model.waiver import Waiver, Waivers, WaiverUse
from benchgate.suite.schema import Suite
from tests.fakes.evidence import check as any_check
from tests.fakes.measured import Effect, Noise, SuiteText, measured, with_status

Line = dict[str, object]
TTFT: Line = {"metric": "ttft", "margin": "10%"}
ERRORS: Line = {"metric": "error_rate", "max": "3%"}
TODAY = date(2026, 3, 1)
SUITE = SuiteText([TTFT, ERRORS]).suite()
QUIET = Noise(cv=0.005)
SLOW, EQUAL, SLOW_TOO = (
    measured(SUITE, Effect(slowdown=slower), noise=QUIET, run_id=str(slower)) for slower in (1.3, 1.0, 1.29)
)


def waivers(
    check: str = "ttft-p50@c4", suite: str = "made-up", deployment: str = "candidate", ceiling: str = "40%",
    days: int = 30,
) -> Waivers:  # fmt: skip
    entry = Waiver(
        check=check, suite=suite, deployment=deployment, ceiling=ceiling, expires=TODAY + timedelta(days=days),
        owner="serving", issue="SRV-1", reason="known", approved_by="release",
    )  # fmt: skip
    return Waivers((entry,), TODAY)


def shown(verdict: Verdict) -> list[str]:
    return [check.shown for check in verdict.checks]


def test_without_a_waiver_harm_blocks_and_with_one_it_warns() -> None:
    bare, waived = judge(SUITE, SLOW), judge(SUITE, SLOW, waivers=waivers())
    assert (bare.outcome, shown(bare), bare.waivers, bare.as_of) == (Outcome.BLOCK, ["BLOCK", "PASS"], (), None)
    assert (waived.outcome, shown(waived), waived.as_of) == (Outcome.WARN, ["WAIVED", "PASS"], TODAY)
    assert [state.use for state in waived.waivers] == [WaiverUse.USED]
    assert waived.checks[0].outcome is Outcome.BLOCK


def test_no_waiver_at_all_is_judged_as_if_none_were_given() -> None:
    empty = judge(SUITE, SLOW, waivers=Waivers((), TODAY))
    assert (empty.outcome, shown(empty), empty.waivers, empty.as_of) == (Outcome.BLOCK, ["BLOCK", "PASS"], (), TODAY)


@pytest.mark.parametrize(
    ("given", "use"),
    [
        (waivers(days=-1), WaiverUse.EXPIRED),
        (waivers(ceiling="20%"), WaiverUse.UNUSED),  # 30 % is not shown to stay inside
        (waivers(ceiling="3 points"), WaiverUse.UNUSED),
        (waivers(check="ttft-p95@c4"), WaiverUse.UNUSED),
        (waivers(check="error_rate@c4:slo"), WaiverUse.UNUSED),  # which passes by itself
        (waivers(suite="another"), None),
        (waivers(deployment="baseline"), None),
    ],
    ids=["expired", "beyond", "unit", "no such check", "another check", "another suite", "another candidate"],
)
def test_a_waiver_of_anything_else_waives_nothing(given: Waivers, use: WaiverUse | None) -> None:
    verdict = judge(SUITE, SLOW, waivers=given)
    assert (verdict.outcome, shown(verdict)) == (Outcome.BLOCK, ["BLOCK", "PASS"])
    assert [state.use for state in verdict.waivers] == ([] if use is None else [use])


def test_a_waiver_holds_to_the_end_of_its_last_day() -> None:
    assert judge(SUITE, SLOW, waivers=waivers(days=0)).outcome is Outcome.WARN


def test_a_waived_check_pays_for_no_other() -> None:
    failing = measured(SUITE, Effect(slowdown=1.3, failed=6), noise=QUIET)
    verdict = judge(SUITE, failing, waivers=waivers())
    assert verdict.outcome is Outcome.BLOCK
    assert verdict.checks[1].shown == "BLOCK"


def test_what_a_guard_made_invalid_cannot_be_waived() -> None:
    partial = judge(SUITE, with_status(SLOW, RunStatus.PARTIAL), waivers=waivers())
    assert not partial.outcome.promotes
    broken = measured(SUITE, Effect(slowdown=1.3), Effect(failed=40), noise=QUIET)
    verdict = judge(SUITE, broken, waivers=waivers())
    assert verdict.outcome is Outcome.INVALID
    assert verdict.checks[0].outcome is Outcome.INVALID and verdict.checks[0].waiver is None


def test_against_a_stored_run_the_candidates_are_compared_and_not_the_baselines() -> None:
    assert judge(SUITE, SLOW, EQUAL).outcome is Outcome.BLOCK
    assert judge(SUITE, EQUAL, SLOW).checks[0].outcome is Outcome.PASS
    alike = judge(SUITE, SLOW, SLOW_TOO).checks[0]
    assert alike.outcome.promotes
    assert alike.harm == pytest.approx(0.008, abs=0.005)  # ln(1.3 / 1.29)
    waived = judge(SUITE, SLOW, EQUAL, waivers=waivers())
    assert (waived.outcome, [one.use for one in waived.waivers]) == (Outcome.BLOCK, [WaiverUse.UNUSED])
    assert "compares two stored runs" in waived.waivers[0].why


@pytest.mark.parametrize("lost", ["load", "run"])
def test_a_stored_run_that_lacks_something_is_as_bad_as_a_live_one(lost: str) -> None:
    bad = replace(EQUAL, load=()) if lost == "load" else with_status(EQUAL, RunStatus.PARTIAL)
    for judged, reference in ((EQUAL, bad), (bad, EQUAL), (bad, None)):
        assert not judge(SUITE, judged, reference).outcome.promotes


def test_what_the_history_blocks_is_blocked_and_no_waiver_of_another_check_helps(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def creeping(suite: Suite, evidence: Evidence, checks: tuple[CheckResult, ...]) -> tuple[CheckResult, ...]:
        assert [check.metric for check in checks] == ["ttft", "error_rate"]
        return (replace(any_check("creep", Outcome.BLOCK), family=HISTORY),)

    monkeypatch.setattr("benchgate.gate.judge.creep_checks", creeping)
    assert judge(SUITE, EQUAL).outcome is Outcome.BLOCK
    waived = judge(SUITE, SLOW, waivers=waivers())
    assert (waived.outcome, shown(waived)) == (Outcome.BLOCK, ["WAIVED", "PASS", "BLOCK"])
    # Two stored runs are no promotion: nothing adds up between them.
    assert judge(SUITE, EQUAL, EQUAL).outcome is Outcome.PASS


def test_a_verdict_tells_what_to_do_where_there_is_something() -> None:
    assert judge(SUITE, SLOW).next_step is not None
    assert judge(SUITE, EQUAL).next_step is None


def test_only_what_was_measured_alone_is_told_without_a_baseline() -> None:
    assert " may be promoted: all 2 required checks hold against baseline" in judge(SUITE, EQUAL).reason
    stored = SuiteText([ERRORS]).suite().to_stored()
    del stored["quality"], stored["shadow"]
    single = Suite.from_stored({**stored, "candidate": "baseline"})
    evidence = measured(single)
    own = replace(evidence, load=tuple(one for one in evidence.load if one.arm is Arm.CANDIDATE))
    assert "baseline keeps to its bounds: the required check holds" in judge(single, own).reason
    assert "may be promoted" in judge(single, own, own).reason


def test_the_verdict_is_of_the_policy_that_judged() -> None:
    wider = SuiteText([{**TTFT, "margin": "50%"}, ERRORS], gate={"alpha": 0.01}).suite()
    one, other = judge(SUITE, SLOW), judge(wider, SLOW)
    assert (one.alpha, other.alpha) == (0.05, 0.01)
    assert one.policy_sha256 != other.policy_sha256
    assert other.checks[0].outcome is Outcome.WARN


def test_blocks_left_out_for_the_clients_sake_help_no_waiver() -> None:
    """30 % slower in six blocks; in two in which the client was busy, four times as slow: 72 % over all of them."""
    far, busy = measured(SUITE, Effect(slowdown=4.0), noise=QUIET), ClientUse(cpu_s=0.99, wall_s=1.0, workers=1)
    load = tuple(
        replace(b, client=busy) if (a.arm, a.block) in ((Arm.CANDIDATE, 2), (Arm.CANDIDATE, 5)) else a
        for a, b in zip(SLOW.load, far.load, strict=True)
    )
    verdict = judge(SUITE, replace(SLOW, load=load), waivers=waivers())
    assert (verdict.outcome, verdict.checks[0].shown, verdict.checks[0].n) == (Outcome.BLOCK, "BLOCK", 6)
    assert "the regression is not shown to stay within its ceiling of 40%" in verdict.waivers[0].why
