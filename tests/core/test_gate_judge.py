"""What is concluded from what a judge says of pairs of answers, and from what it does not say."""

from __future__ import annotations

from dataclasses import replace

import pytest

from benchgate.gate.judge import judge
from benchgate.model.records import NO_VERDICT, UNFIT_JUDGE, JudgeVerdict, ShadowItem
from benchgate.model.verdict import CheckResult, Outcome
from benchgate.suite.rules.suite import rule_problems
from tests.fakes.shadow_rows import (
    JUDGE,
    N,
    different,
    evidence,
    item,
    items,
    only,
    range_of,
    suite,
    verdict,
)


def judged(lost: int, won: int, *, missing: int = 0, itself: tuple[int, int] = (0, 0)) -> list[ShadowItem]:
    said = [JudgeVerdict.LOSS] * lost + [JudgeVerdict.WIN] * won + [JudgeVerdict.MISSING] * missing
    said += [JudgeVerdict.TIE] * (N - len(said))
    own = [JudgeVerdict.LOSS] * itself[0] + [JudgeVerdict.WIN] * itself[1]
    own += [JudgeVerdict.TIE] * (N - len(own))
    return [item(n, judged=one, judged_itself=other) for n, (one, other) in enumerate(zip(said, own, strict=True))]


def test_losses_are_held_against_wins() -> None:
    check = only(verdict(judged(60, 10), JUDGE))
    assert check.outcome is Outcome.BLOCK
    assert check.harm == pytest.approx(50 / N)
    assert only(verdict(judged(30, 30), JUDGE)).harm == 0
    assert verdict(judged(3, 3), JUDGE).outcome is Outcome.PASS
    assert verdict(judged(0, 60), JUDGE).outcome is Outcome.PASS


def test_the_judges_own_floor_stands_beside_it_and_warns_where_it_prefers_a_place() -> None:
    check = only(verdict(judged(3, 3, itself=(5, 4)), JUDGE))
    assert "the baseline beside itself: 5 lost, 4 won, of 300" in check.notes
    biased = verdict(judged(3, 3, itself=(20, 2)), JUDGE)
    assert biased.outcome is Outcome.WARN
    assert "the judge prefers the first 20 times and the second 2" in biased.reason


def test_missing_verdicts_are_no_losses_and_no_passes() -> None:
    assert verdict(judged(0, 0, missing=3), JUDGE).outcome is Outcome.PASS
    check = only(verdict(judged(5, 2, missing=14), JUDGE))
    assert (check.outcome, "were they losses" in check.reason) == (Outcome.INCONCLUSIVE, True)
    assert only(verdict(judged(0, 0, missing=16), JUDGE)).outcome is Outcome.INVALID
    assert only(verdict(items(), JUDGE)).outcome is Outcome.INVALID


@pytest.mark.parametrize(
    ("why", "says"),
    [
        ("HTTP 401", "accepts model and key of `shadow.judge`"),
        (NO_VERDICT, "answers with the JSON object"),
        (f"{UNFIT_JUDGE} (its verdict: tie)", "take a judge that reads both answers"),
    ],
)
def test_what_to_do_about_missing_verdicts_follows_from_why_they_are(why: str, says: str) -> None:
    check = only(verdict([replace(row, judge_error=why) for row in judged(0, 0, missing=N)], JUDGE))
    assert (check.outcome, check.reason) == (Outcome.INVALID, f"300 of 300 verdicts are missing: {why}")
    assert says in str(check.advice)


def by_position(swayed: int, lost: int, won: int, *, asked: int) -> list[ShadowItem]:
    """Of so many pairs that a judge was asked about; the others are one answer, and a tie."""
    said = [JudgeVerdict.INCONSISTENT] * swayed + [JudgeVerdict.LOSS] * lost + [JudgeVerdict.WIN] * won
    said += [JudgeVerdict.TIE] * (asked - len(said))
    spoken = [different(n, judged=one) for n, one in enumerate(said)]
    return [*spoken, *range_of(item, asked, N, judged=JudgeVerdict.TIE)]


def test_a_judge_that_goes_by_the_position_finds_nothing_worse_and_says_nothing() -> None:
    check = only(verdict(by_position(N, 0, 0, asked=N), JUDGE))
    assert (check.outcome, "in 300 of the 300 pairs" in check.reason) == (Outcome.INVALID, True)
    assert only(verdict(by_position(60, 5, 5, asked=100), JUDGE)).outcome is Outcome.INVALID
    assert only(verdict(by_position(4, 0, 0, asked=4), JUDGE)).outcome is Outcome.PASS  # four may be chance


def test_pairs_decided_by_the_position_thin_out_no_loss() -> None:
    """A fifth of them is what sound judges have; half of them hides half of every loss."""
    assert only(verdict(by_position(54, 20, 20, asked=N), JUDGE)).outcome is Outcome.PASS
    check = only(verdict(by_position(140, 10, 4, asked=N), JUDGE))
    assert (check.outcome, "the 140 pairs that the judge decided by position" in check.reason) == (
        Outcome.INCONCLUSIVE,
        True,
    )
    assert only(verdict(by_position(150, 150, 0, asked=N), JUDGE)).outcome is Outcome.BLOCK


def test_candidates_of_two_runs_are_judged_by_what_each_lost_to_the_same_baseline() -> None:
    asked = suite(JUDGE)

    def between(ours: list[ShadowItem], theirs: list[ShadowItem]) -> CheckResult:
        reference = evidence(asked, theirs)
        return only(judge(asked, evidence(asked, ours), replace(reference, run=replace(reference.run, id="other"))))

    assert between(judged(40, 0), judged(40, 0)).outcome is Outcome.PASS
    worse = between(judged(60, 0), judged(10, 0))
    assert worse.outcome is Outcome.BLOCK
    assert worse.harm == pytest.approx(50 / N)
    assert between(judged(5, 0), judged(0, 0, missing=30)).outcome is Outcome.INVALID
    unsure = between(judged(0, 0, missing=14), judged(0, 0))
    assert (unsure.outcome, "judged run: 14 verdicts missing" in unsure.notes) == (Outcome.INCONCLUSIVE, True)
    assert between(judged(0, 0, missing=1), judged(0, 0, missing=1)).outcome is Outcome.PASS
    assert between(by_position(N, 0, 0, asked=N), judged(0, 0)).outcome is Outcome.INVALID
    assert between(by_position(54, 20, 20, asked=N), by_position(54, 20, 20, asked=N)).outcome is Outcome.PASS


def test_a_check_of_a_judge_needs_one_and_it_may_not_judge_itself() -> None:
    whose = {"url": "http://j", "model": "m", "send_text": True}
    assert [problem.path for problem in rule_problems(suite(JUDGE))] == ["gate.checks[0].metric"]
    assert rule_problems(suite(JUDGE, judge=whose)) == []
    [problem] = rule_problems(suite(JUDGE, judge={**whose, "url": "http://c"}))
    assert (problem.path, "candidate" in problem.message) == ("shadow.judge", True)


def test_two_runs_that_have_no_verdict_on_the_same_prompts_are_not_compared() -> None:
    asked = suite(JUDGE)
    rows = [item(0, judged=JudgeVerdict.TIE), item(1, judged=JudgeVerdict.MISSING)]
    other = evidence(asked, rows)
    check = only(judge(asked, evidence(asked, rows), replace(other, run=replace(other.run, id="other"))))
    assert check.outcome is Outcome.INVALID
    assert "too few verdicts on the same prompts in both runs" in check.reason


def test_verdicts_that_the_other_run_lacks_might_have_been_its_wins() -> None:
    asked = suite(JUDGE)
    other = evidence(asked, judged(0, 0, missing=14))
    check = only(judge(asked, evidence(asked, judged(0, 0)), replace(other, run=replace(other.run, id="other"))))
    assert (check.outcome, "depends on verdicts that are missing" in check.reason) == (Outcome.INCONCLUSIVE, True)


def test_pairs_decided_by_the_position_thin_out_no_loss_between_two_runs_either() -> None:
    asked = suite(JUDGE)
    other = evidence(asked, judged(0, 0))
    swayed = evidence(asked, by_position(140, 10, 4, asked=N))
    check = only(judge(asked, swayed, replace(other, run=replace(other.run, id="other"))))
    assert (check.outcome, "went by the position" in check.reason) == (Outcome.INCONCLUSIVE, True)


@pytest.mark.parametrize(
    ("lost", "won", "harm", "breach"),
    [
        (60, 10, Outcome.BLOCK, Outcome.BLOCK),
        (30, 6, Outcome.BLOCK, Outcome.INCONCLUSIVE),  # 8 points, of which 4.7 are shown
        (3, 3, Outcome.PASS, Outcome.PASS),
    ],
)
def test_net_losses_block_for_breach_only_where_they_are_shown_beyond_the_margin(
    lost: int, won: int, harm: Outcome, breach: Outcome
) -> None:
    assert only(verdict(judged(lost, won), JUDGE)).outcome is harm
    assert only(verdict(judged(lost, won), {**JUDGE, "block_when": "breach"})).outcome is breach


def test_neither_missing_verdicts_nor_pairs_decided_by_the_position_hide_losses_that_are_shown() -> None:
    assert only(verdict(judged(30, 6, missing=5), JUDGE)).outcome is Outcome.BLOCK
    assert only(verdict(by_position(100, 30, 6, asked=N), JUDGE)).outcome is Outcome.BLOCK


def test_verdicts_that_are_missing_are_no_pairs_decided_otherwise_than_by_the_position() -> None:
    """62 of 100 are shown to be more than half, and 62 of 115 are not."""
    rows = by_position(62, 0, 0, asked=100)
    rows[100:115] = [different(n, judged=JudgeVerdict.MISSING) for n in range(100, 115)]
    check = only(verdict(rows, JUDGE))
    assert (check.outcome, "in 62 of the 100 pairs" in check.reason) == (Outcome.INVALID, True)


@pytest.mark.parametrize(("itself", "says"), [((9, 2), Outcome.PASS), ((10, 2), Outcome.WARN), ((2, 10), Outcome.WARN)])
def test_a_judge_may_prefer_either_of_two_answers_of_one_deployment_by_chance(
    itself: tuple[int, int], says: Outcome
) -> None:
    """Twice P(X >= 9) of 11 is 6.5 %, and twice P(X >= 10) of 12 is 3.9 %."""
    assert verdict(judged(3, 3, itself=itself), JUDGE).outcome is says


def test_losses_between_two_runs_that_are_shown_are_hidden_by_no_doubt_about_the_rest() -> None:
    line = {**JUDGE, "margin": "9 points"}
    asked = suite(line)
    other = evidence(asked, judged(0, 0))
    check = only(
        judge(asked, evidence(asked, judged(30, 0, missing=3)), replace(other, run=replace(other.run, id="other")))
    )
    assert check.outcome is Outcome.BLOCK
