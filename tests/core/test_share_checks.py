"""Shares of requests held to a bound and to another arm: near, open and broken, whichever way the share counts."""

from __future__ import annotations

import functools
from dataclasses import replace
from typing import Any

import pytest

from benchgate.gate.judge import judge
from benchgate.model.columns import select_rows
from benchgate.model.deployment import Arm
from benchgate.model.records import ErrorClass, RequestColumns
from benchgate.model.run import Evidence
from benchgate.model.verdict import CheckResult, Outcome
from benchgate.suite.schema import Suite
from tests.fakes.evidence import request
from tests.fakes.measured import HEALTHY, Effect, SuiteText, measured

Line = dict[str, object]
GOODPUT: Line = {"metric": "goodput"}  # at least 95 %
ERRORS: Line = {"metric": "error_rate", "max": "5%"}
MARGIN: Line = {"metric": "error_rate", "margin": "5 points"}


def of(line: Line, requests: int = 60) -> Suite:
    return SuiteText([line], requests=requests).suite()


@functools.cache
def failing(failed: int) -> Evidence:
    """So many of 600 requests in each of eight blocks."""
    return measured(of(ERRORS, 600), Effect(failed=failed))


@pytest.mark.parametrize("line", [GOODPUT, ERRORS])
@pytest.mark.parametrize(("failed", "outcome"), [(26, Outcome.WARN), (30, Outcome.INCONCLUSIVE), (34, Outcome.BLOCK)])
def test_one_in_twenty_may_fail_and_it_has_to_be_shown(line: Line, failed: int, outcome: Outcome) -> None:
    check = judge(of(line, 600), failing(failed)).checks[0]
    assert check.outcome is outcome, check.reason
    assert check.lower is not None and check.upper is not None and check.candidate is not None
    assert check.candidate == pytest.approx(1 - failed / 600 if line is GOODPUT else failed / 600)
    assert check.lower < check.candidate < check.upper


def stored(candidate: Effect, baseline: Effect, other: Effect, beside: Effect) -> CheckResult:
    """A run's candidate against that of another run; each beside its own baseline."""
    suite = of(MARGIN)

    def run(name: str, ours: Effect, theirs: Effect) -> Evidence:
        return measured(suite, ours, theirs, run_id=name)

    return judge(suite, run("now", candidate, baseline), run("before", other, beside)).checks[0]


def test_two_candidates_that_fail_as_often_are_as_good_whatever_their_baselines_do() -> None:
    poor = Effect(failed=6)
    alike = stored(poor, HEALTHY, poor, HEALTHY)
    assert (alike.outcome, alike.harm) == (Outcome.PASS, 0.0)
    assert (alike.baseline, alike.candidate) == (0.1, 0.1)
    assert stored(poor, HEALTHY, HEALTHY, HEALTHY).outcome is Outcome.BLOCK
    assert stored(poor, poor, HEALTHY, HEALTHY).outcome is not Outcome.PASS


def test_a_share_of_good_requests_falls_where_more_of_them_fail() -> None:
    suite = of({"metric": "goodput", "margin": "5 points"})
    check = judge(suite, measured(suite, Effect(failed=9), Effect(failed=3))).checks[0]
    assert check.outcome is Outcome.BLOCK
    assert [check.harm, check.baseline, check.candidate] == pytest.approx([0.1, 0.95, 0.85])


@pytest.mark.parametrize("line", [MARGIN, {"metric": "goodput", "margin": "5 points"}])
@pytest.mark.parametrize("baseline", [60, 59])
def test_a_baseline_of_which_all_requests_miss_leaves_nothing_to_lose(line: Line, baseline: int) -> None:
    suite = of(line)
    broken, nearly = Effect(failed=60), Effect(failed=baseline)
    verdict = judge(suite, measured(suite, broken, nearly))
    assert (verdict.outcome, verdict.checks[0].outcome) == (Outcome.INVALID, Outcome.INVALID)
    assert "a candidate of which all miss would stay inside the margin" in verdict.checks[0].reason
    before, now = (measured(suite, one, broken, run_id=name) for one, name in ((nearly, "before"), (broken, "now")))
    assert judge(suite, now, before).outcome is Outcome.INVALID
    assert judge(suite, measured(suite, broken, Effect(failed=40))).outcome is Outcome.BLOCK


def test_a_baseline_that_misses_exactly_all_but_the_margin_leaves_nothing_to_lose() -> None:
    suite = of({"metric": "goodput", "margin": "5 points"})
    at_the_edge = Effect(failed=57)  # 95 %, and 1 - 0.95 is a little more than 0.05
    assert judge(suite, measured(suite, at_the_edge, at_the_edge)).checks[0].outcome is Outcome.INVALID


def test_a_baseline_whose_few_blocks_may_miss_all_leaves_the_check_undecided() -> None:
    suite = SuiteText([{"metric": "goodput", "margin": "5 points"}], requests=60, blocks=3).suite()
    one_bad = Effect(failed=60, failed_block=1)
    check = judge(suite, measured(suite, one_bad, one_bad)).checks[0]
    assert check.outcome is Outcome.INCONCLUSIVE
    assert "60 of 180 requests of the baseline miss already; their true share may be so high" in check.reason
    assert check.lower is not None and check.upper is not None and check.upper > 0.05


REFUSED: Line = {"metric": "rejected", "max": "5%"}


def with_ramp(evidence: Evidence, failed: int, of: int, arm: Arm = Arm.CANDIDATE) -> Evidence:
    """The same, where so many requests of one arm's ramp were refused in every block."""
    rows = [replace(request(1_000 + k, 0, 10, 5, 1), ramp=True) for k in range(of)]
    refusal: Any = {"error": ErrorClass.HTTP_429, "error_detail": "busy", "http_status": 429, "finish_reason": None}
    lost = [replace(row, **refusal) for row in rows[:failed]]
    ramp = RequestColumns.pack([*lost, *rows[failed:]])
    return replace(evidence, load=tuple(replace(o, ramp=ramp) if o.arm is arm else o for o in evidence.load))


@pytest.mark.parametrize("line", [ERRORS, REFUSED, {**ERRORS, "of": "http_429"}])
def test_failures_of_the_ramp_are_in_the_error_rate(line: Line) -> None:
    suite = of(line)
    whole = with_ramp(measured(suite), 0, 40)
    assert judge(suite, whole).checks[0].candidate == 0
    check = judge(suite, with_ramp(measured(suite), 10, 40)).checks[0]
    assert check.candidate == pytest.approx(10 / (60 + 40))
    assert check.outcome is Outcome.BLOCK


@pytest.mark.parametrize(
    "line", [GOODPUT, {"metric": "ttft", "max": "10s"}, {"metric": "output_throughput", "margin": "5%"}]
)
def test_failures_of_the_ramp_are_in_nothing_else(line: Line) -> None:
    suite = of(line)
    plain, failing = measured(suite), with_ramp(measured(suite), 40, 40)
    ours, theirs = (judge(suite, evidence).checks[0] for evidence in (failing, plain))
    assert (ours.candidate, ours.lower, ours.upper) == (theirs.candidate, theirs.lower, theirs.upper)


def tripped_by(suite: Suite, evidence: Evidence) -> set[str]:
    return {guard.id for guard in judge(suite, evidence).guards if guard.tripped}


def test_requests_of_the_ramp_are_not_among_those_that_were_planned() -> None:
    suite = of(ERRORS)
    evidence = with_ramp(measured(suite), 0, 7)
    assert "all-measured" not in tripped_by(suite, evidence)
    gone = [replace(o, requests=select_rows(o.requests, o.requests.index > 0)) for o in evidence.load]
    assert "all-measured" in tripped_by(suite, replace(evidence, load=tuple(gone)))


def test_failures_that_no_check_counts_are_seen_in_the_ramp_too() -> None:
    suite = of({"metric": "ttft", "max": "10s"})
    for failed, seen in ((0, False), (30, True)):
        assert ("failures-judged" in tripped_by(suite, with_ramp(measured(suite), failed, 40))) is seen


@pytest.mark.parametrize(("line", "seen"), [(GOODPUT, True), (ERRORS, False)])
def test_goodput_leaves_failures_of_the_ramp_to_the_guard(line: Line, seen: bool) -> None:
    suite = SuiteText([{"metric": "ttft", "max": "10s"}, line]).suite()
    for failed, tripped in ((0, False), (40, seen)):
        assert ("failures-judged" in tripped_by(suite, with_ramp(measured(suite), failed, 40))) is tripped


def test_a_check_that_failures_decide_says_why_they_failed() -> None:
    suite = SuiteText(
        [{"metric": "ttft", "statistic": "p95", "margin": "10%"}, {"metric": "error_rate", "max": "1%"}]
    ).suite()
    ttft, errors = judge(suite, measured(suite, Effect(failed=20))).checks
    for check in (ttft, errors):
        (why,) = [note for note in check.notes if "mostly with" in note]
        assert why.startswith("of the candidate's 160 of 480 requests failed, mostly with: http_5xx, ")
    assert not any("mostly with" in note for check in judge(suite, measured(suite)).checks for note in check.notes)


def test_failures_that_no_check_counts_are_named_by_the_guard() -> None:
    suite = SuiteText([{"metric": "ttft", "margin": "10%"}]).suite()
    (guard,) = [one for one in judge(suite, measured(suite, Effect(failed=20))).guards if one.id == "failures-judged"]
    assert guard.tripped
    assert "mostly with: http_5xx, " in guard.reason
