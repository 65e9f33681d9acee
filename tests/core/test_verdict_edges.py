"""What a verdict's words are worth: which outcomes promote, which outranks which, and what the process ends with."""

from __future__ import annotations

from dataclasses import replace
from datetime import date
from itertools import product

import pytest

from benchgate.errors import ExitCode
from benchgate.gate.judge import roll_up
from benchgate.model.verdict import HISTORY, CheckResult, GuardResult, Outcome, Waiver, policy_sha256
from tests.fakes.evidence import check, verdict

WORST_LAST = [Outcome.PASS, Outcome.WARN, Outcome.INCONCLUSIVE, Outcome.INVALID, Outcome.BLOCK]
WAIVER = Waiver("ttft-p50-c4", "s", "candidate", "8%", date(2026, 1, 1), "o", "i", "r", "a")
HOLDS, TRIPS = (GuardResult("g", tripped, "reason", "remedy") for tripped in (False, True))


def advisory(outcome: Outcome) -> CheckResult:
    return replace(check("advisory", outcome), required=False)


@pytest.mark.parametrize(
    ("outcome", "promotes", "code", "strict"),
    [
        (Outcome.PASS, True, 0, 0),
        (Outcome.WARN, True, 0, 10),
        (Outcome.BLOCK, False, 10, 10),
        (Outcome.INCONCLUSIVE, False, 11, 11),
        (Outcome.INVALID, False, 12, 12),
    ],
)
def test_only_pass_and_warn_promote_and_end_with_0(outcome: Outcome, promotes: bool, code: int, strict: int) -> None:
    assert outcome.promotes is promotes
    assert outcome.exit_code() == ExitCode(code)
    assert outcome.exit_code(strict=True) == ExitCode(strict)


def test_block_outranks_invalid_and_invalid_what_is_not_known() -> None:
    assert sorted(Outcome, key=lambda outcome: outcome.severity) == WORST_LAST


@pytest.mark.parametrize(("one", "other"), list(product(Outcome, Outcome)))
def test_the_worse_of_two_required_checks_is_the_verdict(one: Outcome, other: Outcome) -> None:
    worse = max(one, other, key=WORST_LAST.index)
    assert roll_up((check("a", one), check("b", other)), (HOLDS,)) is worse


@pytest.mark.parametrize("outcome", Outcome)
def test_an_advisory_check_warns_and_never_does_more(outcome: Outcome) -> None:
    loud = outcome in (Outcome.WARN, Outcome.BLOCK, Outcome.INVALID)
    assert roll_up((check("a"), advisory(outcome)), ()) is (Outcome.WARN if loud else Outcome.PASS)
    assert roll_up((check("a", Outcome.BLOCK), advisory(outcome)), ()) is Outcome.BLOCK


@pytest.mark.parametrize("outcome", Outcome)
def test_a_guard_that_trips_promotes_nothing_and_hides_no_block(outcome: Outcome) -> None:
    seen = roll_up((check("a", outcome),), (HOLDS, TRIPS))
    assert seen is (Outcome.BLOCK if outcome is Outcome.BLOCK else Outcome.INVALID)


@pytest.mark.parametrize("outcome", Outcome)
def test_without_a_required_check_of_the_run_itself_nothing_is_promoted(outcome: Outcome) -> None:
    assert roll_up((), ()) is Outcome.INVALID
    assert roll_up((advisory(outcome),), ()) is Outcome.INVALID
    of_history = replace(check("creep", outcome), family=HISTORY)
    assert not roll_up((of_history,), ()).promotes
    assert not roll_up((of_history, advisory(Outcome.PASS)), ()).promotes


@pytest.mark.parametrize("outcome", [Outcome.INCONCLUSIVE, Outcome.BLOCK])
def test_a_required_check_of_history_stops_what_all_others_let_pass(outcome: Outcome) -> None:
    assert roll_up((check("a"), replace(check("creep", outcome), family=HISTORY)), ()) is outcome


@pytest.mark.parametrize("outcome", [Outcome.INCONCLUSIVE, Outcome.BLOCK])
def test_what_is_waived_warns_and_is_never_told_as_a_pass(outcome: Outcome) -> None:
    waived = replace(check("a", outcome), waiver=WAIVER)
    assert (waived.counted, waived.shown, waived.outcome) == (Outcome.WARN, "WAIVED", outcome)
    assert roll_up((waived,), ()) is Outcome.WARN
    assert roll_up((waived, check("b", outcome)), ()) is outcome
    assert roll_up((check("a"), replace(waived, required=False)), ()) is Outcome.WARN


@pytest.mark.parametrize("outcome", Outcome)
def test_what_is_not_waived_counts_and_shows_as_it_is(outcome: Outcome) -> None:
    one = check("a", outcome)
    assert (one.counted, one.shown) == (outcome, outcome.value)


def test_failing_checks_are_told_worst_first_and_the_required_before_the_advisory() -> None:
    of_all = [
        advisory(Outcome.BLOCK), check("passed"), check("warned", Outcome.WARN), check("blocked", Outcome.BLOCK),
        check("unknown", Outcome.INCONCLUSIVE), replace(check("waived", Outcome.BLOCK), waiver=WAIVER),
    ]  # fmt: skip
    told = [one.id for one in replace(verdict(), checks=tuple(of_all)).failing()]
    assert told == ["blocked", "unknown", "warned", "waived", "advisory"]


def test_two_policies_that_differ_anywhere_have_different_names() -> None:
    policy = {"alpha": 0.05, "checks": [{"metric": "ttft", "margin": 0.1}]}
    looser = {"alpha": 0.05, "checks": [{"metric": "ttft", "margin": 0.2}]}
    assert policy_sha256(policy) == policy_sha256(dict(policy))
    assert policy_sha256(policy) != policy_sha256(looser)
