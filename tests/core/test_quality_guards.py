"""What makes an eval speak of something else than the model: each is INVALID with its reason, never a score."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from benchgate.gate.judge import judge
from benchgate.model.deployment import Arm
from benchgate.model.records import EvalItem
from benchgate.model.run import Evidence
from benchgate.model.verdict import GuardResult, Outcome, Verdict
from tests.fakes.evals import Answers, Line, evidence_of, right_but, suite_of
from tests.fakes.guards import one_of_evals

ACCURACY: Line = {"metric": "accuracy", "margin": "5 points"}
EACH: Line = {"metric": "accuracy", "task": "each", "margin": "5 points"}
BY_CHOICE = {"chance": 0.25, "output_type": "multiple_choice"}
IN_WORDS = {"chance": 0.25, "output_type": "generate_until"}


def verdict_on(baseline: Answers, candidate: Answers, checks: list[Line] | None = None, **quality: object) -> Verdict:
    suite = suite_of(checks or [ACCURACY], ["t"], **quality)
    return judge(suite, evidence_of(suite, {"t": (baseline, candidate)}))


def tripped(verdict: Verdict) -> dict[str, GuardResult]:
    return {guard.id: guard for guard in verdict.guards if guard.tripped}


def share_right(n: int, right: int, **told: object) -> Answers:
    return Answers([1.0] * right + [0.0] * (n - right), harness=told)


WELL = Answers(right_but(300))


def test_evals_of_two_healthy_arms_trip_nothing() -> None:
    verdict = verdict_on(WELL, Answers(right_but(300, 5)))
    assert tripped(verdict) == {}
    assert verdict.outcome is Outcome.PASS


@pytest.mark.parametrize(
    ("baseline", "candidate", "guard", "says"),
    [
        (WELL, Answers(right_but(300, *range(9)), answers=dict.fromkeys(range(9), "")), "answers-not-empty",
         "3.0% of the candidate's answers to t are empty"),
        (Answers(right_but(300, *range(9)), answers=dict.fromkeys(range(9), " ")), WELL, "answers-not-empty",
         "3.0% of the baseline's answers to t are empty"),
        (Answers(right_but(300, *range(9)), finish=dict.fromkeys(range(9), "length")), WELL, "answers-readable",
         "3.0% of the baseline's answers to t are wrong and cut short"),
        (Answers(right_but(300, *range(9)), choices=["[invalid]"] * 9 + ["a"] * 291), WELL, "answers-readable",
         "3.0% of the baseline's answers to t are wrong and cut short or unreadable"),
        (WELL, replace(WELL, fault="2 items failed, the first with: HTTP 500"), "items-paired", "HTTP 500"),
        (WELL, Answers([None, *right_but(299)]), "items-paired", "was not scored on the candidate: no answer"),
        (WELL, Answers(right_but(299)), "items-paired", "did not answer the same items"),
        (WELL, Answers(right_but(299), expected_n=300), "items-paired", "has only 299 of 300 items on the candidate"),
        (replace(WELL, harness={"few_shot": 5}), replace(WELL, harness={"few_shot": 0}), "same-harness",
         "few_shot (5 for the baseline, 0 for the candidate)"),
        (replace(WELL, harness={"template": "a"}), WELL, "same-harness", "template (a for the baseline, not set"),
        (Answers([0.0] * 300), Answers([0.0] * 300), "baseline-able", "none of the 300 items"),
        (share_right(200, 55, **IN_WORDS), share_right(200, 55, **IN_WORDS), "above-chance",
         "the baseline's 55 of 200 right answers to t are not more than guessing gives (25.0%)"),
        (share_right(200, 160, **BY_CHOICE), share_right(200, 50, **BY_CHOICE), "not-guessing",
         "as many items of t right as guessing does"),
        (replace(WELL, latency_ns=200_000), replace(WELL, latency_ns=30_000_000), "not-cached",
         "the baseline's median took 200 µs"),
        (replace(WELL, latency_ns=900_000_000), replace(WELL, latency_ns=3_000_000), "not-cached",
         "the candidate's median took 3.00 ms"),
        (Answers(right_but(300, *range(60))), WELL, "gain-plausible", "better than the baseline by more than 5 points"),
    ],
)  # fmt: skip
def test_a_guard_says_what_it_found_and_nothing_is_promoted(
    baseline: Answers, candidate: Answers, guard: str, says: str
) -> None:
    verdict = verdict_on(baseline, candidate)
    assert verdict.outcome is Outcome.INVALID
    found = tripped(verdict)
    assert guard in found, list(found)
    assert says in found[guard].reason
    assert found[guard].remedy


def test_what_an_arm_counted_is_no_setting() -> None:
    theirs = {"lm_eval": "0.4.13", "retries": 0, "null_answers": 0, "started_s": 3.1, "peak_bytes": 5}
    ours = {"lm_eval": "0.4.13", "retries": 4, "null_answers": 1, "started_s": 2.2, "peak_bytes": 6}
    assert tripped(verdict_on(replace(WELL, harness=theirs), replace(WELL, harness=ours))) == {}


def test_a_broken_model_that_guesses_in_words_is_blocked_and_one_by_log_probabilities_is_not_believed() -> None:
    in_words = verdict_on(share_right(200, 160, **IN_WORDS), share_right(200, 50, **IN_WORDS))
    assert in_words.outcome is Outcome.BLOCK
    by_choice = verdict_on(share_right(200, 160, **BY_CHOICE), share_right(200, 50, **BY_CHOICE))
    assert by_choice.outcome is Outcome.INVALID
    below = verdict_on(share_right(200, 160, **BY_CHOICE), share_right(200, 20, **BY_CHOICE))
    assert below.outcome is Outcome.BLOCK


def test_a_model_that_rambles_to_the_limit_and_is_wrong_elsewhere_too_is_blocked() -> None:
    rambling = Answers(right_but(300, *range(150)), finish=dict.fromkeys(range(80), "length"))
    assert verdict_on(WELL, rambling).outcome is Outcome.BLOCK
    only_cut = Answers(right_but(300, *range(80)), finish=dict.fromkeys(range(80), "length"))
    verdict = verdict_on(WELL, only_cut)
    assert verdict.outcome is Outcome.INVALID
    assert "80 of the 80 lost items were cut short by the token limit" in verdict.checks[0].reason
    assert "max_tokens" in (verdict.checks[0].advice or "")


def test_losses_in_which_nothing_could_be_read_say_so() -> None:
    unreadable = Answers(right_but(300, *range(80)), choices=["[invalid]"] * 80 + ["a"] * 220)
    reason = verdict_on(WELL, unreadable).checks[0].reason
    assert "80 of the 80 lost items were without anything that could be read as an answer" in reason


def test_cut_answers_of_the_baseline_do_not_pay_for_losses_even_where_so_many_are_allowed() -> None:
    baseline = Answers(right_but(300, *range(100, 124)), finish=dict.fromkeys(range(100, 124), "length"))
    candidate = Answers(right_but(300, *range(24)))
    verdict = verdict_on(baseline, candidate, max_empty_ratio="10%")
    assert verdict.outcome is Outcome.INVALID
    assert "24 of the 24 gained items pay for lost ones only because the baseline's answer was cut" in verdict.reason


@pytest.mark.parametrize(
    ("count", "guard"), [("empty_count", "answers-not-empty"), ("unclear_count", "answers-readable")]
)
def test_of_several_askings_those_that_are_not_shown_are_looked_at_too(count: str, guard: str) -> None:
    line: Line = {"metric": "score", "margin": "5 points"}
    scores = [0.25 * (1 + i % 4) for i in range(40)]
    told = {"scale": "continuous", "askings_count": 160, "empty_count": 0, "unclear_count": 0}
    whole, odd = Answers(scores, harness=told), Answers(scores, harness={**told, count: 120})
    assert verdict_on(whole, whole, [line]).outcome is Outcome.PASS
    for baseline, candidate in ((odd, odd), (odd, whole), (whole, odd)):
        verdict = verdict_on(baseline, candidate, [line])
        assert verdict.outcome is Outcome.INVALID
        assert guard in tripped(verdict)
    one_item = Answers(scores, harness={**told, count: 4})  # every asking of one, which alone says nothing
    assert verdict_on(whole, one_item, [line]).outcome is Outcome.PASS


def test_right_answers_that_reach_the_limit_are_right() -> None:
    cut = dict.fromkeys(range(300), "length")
    assert verdict_on(replace(WELL, finish=cut), replace(WELL, finish=cut)).outcome is Outcome.PASS


def test_scores_by_degrees_of_cut_answers_are_no_scores() -> None:
    scores = [0.5 + i % 7 / 20 for i in range(300)]
    whole = Answers(scores, harness={"scale": "continuous"})
    cut = replace(whole, finish=dict.fromkeys(range(30), "length"))
    line: Line = {"metric": "score", "margin": "2 points"}
    assert verdict_on(whole, whole, [line]).outcome is Outcome.PASS
    for baseline, candidate in ((cut, cut), (whole, cut), (cut, whole)):
        verdict = verdict_on(baseline, candidate, [line])
        assert verdict.outcome is Outcome.INVALID
        assert "answers-readable" in tripped(verdict)


@pytest.mark.parametrize(("right", "outcome"), [(285, Outcome.PASS), (200, Outcome.INVALID)])
def test_a_baseline_that_does_not_do_what_it_is_known_to_do_is_not_the_baseline(right: int, outcome: Outcome) -> None:
    arm = share_right(300, right)
    suite = suite_of([ACCURACY], [{"task": "t", "expect": {"min": "90%", "max": "100%"}}])
    verdict = judge(suite, evidence_of(suite, {"t": (arm, arm)}))
    assert verdict.outcome is outcome
    assert ("baseline-as-known" in tripped(verdict)) == (outcome is Outcome.INVALID)


@pytest.mark.parametrize(("right", "outcome"), [(285, Outcome.PASS), (200, Outcome.INVALID)])
def test_a_group_is_known_by_all_of_its_tasks(right: int, outcome: Outcome) -> None:
    low, high = share_right(300, right - 10), share_right(300, right + 10)  # either alone would miss the band
    suite = suite_of([ACCURACY], [{"task": "mmlu", "expect": {"min": "93.4%", "max": "96.6%"}}])
    verdict = judge(suite, evidence_of(suite, {"mmlu/law": (low, low), "mmlu/math": (high, high)}))
    assert verdict.outcome is outcome
    assert ("baseline-as-known" in tripped(verdict)) == (outcome is Outcome.INVALID)


def test_small_tasks_of_a_group_near_chance_leave_the_group_above_it() -> None:
    suite = suite_of([ACCURACY], ["mmlu"])
    some = [share_right(10, right, **BY_CHOICE) for right in (0, 3, 5, 7, 9) * 10]
    tasks = {f"mmlu/leaf{i}": (one, one) for i, one in enumerate(some)}
    assert judge(suite, evidence_of(suite, tasks)).outcome is Outcome.PASS
    guessing = {f"mmlu/leaf{i}": (one, one) for i, one in enumerate([share_right(10, 2, **BY_CHOICE)] * 50)}
    assert "above-chance" in tripped(judge(suite, evidence_of(suite, guessing)))
    large = share_right(30, 0, **BY_CHOICE)
    assert "baseline-able" in tripped(judge(suite, evidence_of(suite, {**tasks, "mmlu/large": (large, large)})))


def test_a_remedy_for_cut_answers_names_the_limit_that_goes_before_the_others() -> None:
    cut = Answers(right_but(300, *range(9)), finish=dict.fromkeys(range(9), "length"))
    empty = Answers(right_but(300, *range(9)), answers=dict.fromkeys(range(9), ""))
    for baseline in (cut, empty):
        [guard] = tripped(verdict_on(baseline, WELL)).values()
        assert "`max_tokens` at the task in `quality.tasks`" in (guard.remedy or "")


def test_one_odd_answer_of_few_is_no_reason_to_believe_nothing() -> None:
    suite = suite_of([ACCURACY], [f"t{i}" for i in range(5)])
    well = Answers(right_but(50))
    for odd in (
        Answers(right_but(50, 7), answers={7: ""}),
        Answers(right_but(50, 7), choices=["[invalid]" if i == 7 else "a" for i in range(50)]),
        Answers(right_but(50, 7), finish={7: "length"}),
    ):
        for arms in ((odd, odd), (well, odd)):
            tasks = {f"t{i}": (well, well) for i in range(4)} | {"t4": arms}
            assert judge(suite, evidence_of(suite, tasks)).outcome is Outcome.PASS
    three = Answers(right_but(50, 7, 8, 9), answers=dict.fromkeys((7, 8, 9), ""))
    tasks = {f"t{i}": (well, well) for i in range(4)} | {"t4": (well, three)}
    assert "answers-not-empty" in tripped(judge(suite, evidence_of(suite, tasks)))
    none_allowed = suite_of([ACCURACY], ["t"], max_empty_ratio="0%")
    one = Answers(right_but(50, 7), answers={7: ""})
    assert "answers-not-empty" in tripped(judge(none_allowed, evidence_of(none_allowed, {"t": (well, one)})))


@pytest.mark.parametrize(
    ("band", "trips"), [(None, True), (("55%", "65%"), False), (("80%", "90%"), True), (("61%", "70%"), True)]
)
def test_a_gain_over_a_baseline_that_scores_what_it_is_known_to_score_is_one(
    band: tuple[str, str] | None, trips: bool
) -> None:
    known = {"expect": dict(zip(("min", "max"), band, strict=True))} if band else {}
    suite = suite_of([ACCURACY], [{"task": "t", **known}])
    verdict = judge(suite, evidence_of(suite, {"t": (share_right(1000, 600), share_right(1000, 800))}))
    assert ("gain-plausible" in tripped(verdict)) == trips
    assert verdict.outcome is (Outcome.INVALID if trips else Outcome.PASS)


def test_a_large_gain_of_a_score_by_degrees_is_no_more_plausible() -> None:
    theirs = [0.3 + i % 7 / 20 for i in range(300)]
    line: Line = {"metric": "score", "margin": "2 points"}
    for gain, guards in ((0.02, set()), (0.10, {"gain-plausible"})):
        better = Answers(
            [score + gain + i % 3 / 100 for i, score in enumerate(theirs)], harness={"scale": "continuous"}
        )
        verdict = verdict_on(Answers(theirs, harness={"scale": "continuous"}), better, [line])
        assert set(tripped(verdict)) == guards
        assert verdict.outcome is (Outcome.INVALID if guards else Outcome.PASS)


def test_a_handful_of_same_answers_or_slow_ones_are_no_cache() -> None:
    few = Answers(right_but(29), latency_ns=1000)
    assert "not-cached" not in tripped(verdict_on(few, few))
    faster = verdict_on(replace(WELL, latency_ns=900_000_000), replace(WELL, latency_ns=30_000_000))
    assert "not-cached" not in tripped(faster)
    other = replace(WELL, latency_ns=1000, answers={0: "in other words"})
    assert "not-cached" not in tripped(verdict_on(replace(WELL, latency_ns=1000), other))


def changed(evidence: Evidence, arm: int, change: Callable[[EvalItem], EvalItem]) -> Evidence:
    """The evidence with one item of one arm's only task changed."""
    quality = list(evidence.quality)
    items = quality[arm].items
    quality[arm] = replace(quality[arm], items=(*items[:7], change(items[7]), *items[8:]))
    return replace(evidence, quality=tuple(quality))


@pytest.mark.parametrize(
    "change",
    [
        lambda item: replace(item, doc_hash="x"),
        lambda item: replace(item, prompt_hash="x"),
        lambda item: replace(item, target_hash="x"),
        lambda item: replace(item, item_id="x"),
        lambda item: replace(item, error="HTTP 500"),
        lambda item: replace(item, score=2.0),
        lambda item: replace(item, score=float("nan")),
    ],
)
@pytest.mark.parametrize("arm", [0, 1])
def test_one_item_that_is_not_the_same_on_both_arms_invalidates_its_task(
    change: Callable[[EvalItem], EvalItem], arm: int
) -> None:
    suite = suite_of([ACCURACY], ["t"])
    verdict = judge(suite, changed(evidence_of(suite, {"t": (WELL, WELL)}), arm, change))
    assert verdict.outcome is Outcome.INVALID
    assert "items-paired" in tripped(verdict)


def test_a_fault_in_a_task_that_nobody_judges_is_still_no_pass() -> None:
    suite = suite_of([{**ACCURACY, "task": "t"}], ["t", "other"])
    broken = replace(WELL, fault="out of memory")
    verdict = judge(suite, evidence_of(suite, {"t": (WELL, WELL), "other": (WELL, broken)}))
    assert verdict.outcome is Outcome.INVALID
    assert "out of memory" in verdict.reason
    assert verdict.checks[0].outcome is Outcome.PASS


def test_a_loss_that_is_shown_is_blocked_whatever_another_task_is_worth() -> None:
    suite = suite_of([EACH], ["t", "other"])
    worse = Answers(right_but(300, *range(100)))
    verdict = judge(suite, evidence_of(suite, {"t": (WELL, worse), "other": (WELL, replace(WELL, fault="it broke"))}))
    assert verdict.outcome is Outcome.BLOCK
    assert [check.outcome for check in verdict.checks] == [Outcome.BLOCK, Outcome.INVALID]


def test_a_floor_that_only_cut_answers_miss_is_not_missed() -> None:
    floor: Line = {"metric": "accuracy", "min": "90%"}
    cut = Answers(right_but(300, *range(60)), finish=dict.fromkeys(range(50), "length"))
    verdict = verdict_on(WELL, cut, [floor])
    assert verdict.outcome is Outcome.INVALID
    assert "50 of the wrong answers were cut short" in verdict.reason
    assert verdict_on(WELL, Answers(right_but(300, *range(60))), [floor]).outcome is Outcome.BLOCK
    worse = Answers(right_but(300, *range(150)), finish=dict.fromkeys(range(50), "length"))
    assert verdict_on(WELL, worse, [floor]).outcome is Outcome.BLOCK


def test_near_chance_is_not_at_chance() -> None:
    assert verdict_on(share_right(200, 160, **BY_CHOICE), share_right(200, 60, **BY_CHOICE)).outcome is Outcome.BLOCK


def test_what_the_baseline_is_known_to_score_is_not_asked_of_a_run_that_names_none() -> None:
    suite = suite_of([ACCURACY], ["t"])
    seen = evidence_of(suite, {"t": (WELL, WELL)})
    alone = replace(seen, run=replace(seen.run, arms={Arm.CANDIDATE: seen.run.arms[Arm.CANDIDATE]}))
    guard = one_of_evals("baseline-as-known", alone, suite)
    assert (guard.tripped, guard.known) == (False, False)


@pytest.mark.parametrize(
    ("band", "tripped_by"),
    [
        (("50%", "60%"), False),
        (("50%", "55%"), False),
        (("55%", "60%"), False),
        (("50%", "54%"), True),
        (("56%", "60%"), True),
    ],
)
def test_a_score_by_degrees_is_held_against_its_band_as_it_is(band: tuple[str, str], tripped_by: bool) -> None:
    arm = Answers([0.25, 0.5, 0.75, 0.70] * 25, harness={"scale": "continuous"})  # 0.55, and no share of anything
    suite = suite_of(
        [{"metric": "score", "margin": "5 points"}],
        [{"task": "t", "expect": dict(zip(("min", "max"), band, strict=True))}],
    )
    guard = one_of_evals("baseline-as-known", evidence_of(suite, {"t": (arm, arm)}), suite)
    assert (guard.tripped, guard.known) == (tripped_by, True)
    assert guard.invalidates == (("quality",) if tripped_by else ())
    assert not tripped_by or "the baseline scores 55.0 % on t, where it is known to score" in guard.reason
