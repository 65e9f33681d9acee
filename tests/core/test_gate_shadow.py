"""What is concluded from a shadow comparison: validity, a part asked twice, and evidence that is none."""

from __future__ import annotations

from dataclasses import replace

import pytest

from benchgate.errors import UsageError
from benchgate.gate.judge import judge
from benchgate.model.records import AnswerAgreement, JudgeVerdict, ShadowItem
from benchgate.model.run import Evidence
from benchgate.model.verdict import Outcome
from benchgate.suite.rules.suite import only_part, rule_problems
from tests.fakes.measured import SuiteText
from tests.fakes.shadow_rows import (
    EQUAL,
    EXCESS,
    FACTS,
    JUDGE,
    OTHER,
    VALIDITY,
    Line,
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


def test_equal_answers_pass_every_shadow_check() -> None:
    rows = [
        item(
            n,
            primary_facts=replace(FACTS, valid=True),
            candidate_facts=replace(FACTS, valid=True),
            judged=JudgeVerdict.TIE,
        )
        for n in range(N)
    ]
    assert verdict(rows, EXCESS, VALIDITY, JUDGE).outcome is Outcome.PASS


# --- excess -----------------------------------------------------------------------------------------------------------


def test_what_the_rule_calls_the_same_is_the_same_whatever_the_digests_say() -> None:
    near = replace(EQUAL, label=AnswerAgreement.NORMALISED, exact=False)
    rows = [item(n, candidate="another spelling", with_primary=near, with_secondary=near) for n in range(N)]
    assert verdict(rows, EXCESS).outcome is Outcome.PASS
    assert verdict(items(*range_of(different, 0, 60)), EXCESS).outcome is Outcome.BLOCK


def test_a_part_asked_twice_is_noise_enough_to_judge_by() -> None:
    once: Line = {
        "secondary": None,
        "with_secondary": None,
        "secondary_finish": None,
        "secondary_facts": None,
        "own": None,
    }

    def rows(differing: int, noisy: int) -> list[ShadowItem]:
        """The first hundred asked twice, of which some differ among themselves; some of all differ in the candidate."""
        found = []
        for n in range(N):
            changed = {} if n < 100 else {**once, "once": True}
            if n < noisy:
                changed["own"] = OTHER
            make = different if N - differing <= n else item
            one = make(n)
            found.append(replace(one, **changed))  # type: ignore[arg-type]  # by the keyword
        return found

    assert only(verdict(rows(0, 0), EXCESS)).outcome is Outcome.PASS
    assert only(verdict(rows(60, 0), EXCESS)).outcome is Outcome.BLOCK
    check = only(verdict(rows(60, 20), EXCESS))
    assert check.harm == pytest.approx(0.0)
    assert check.outcome is Outcome.INCONCLUSIVE
    assert check.n == N


def test_two_stored_runs_that_asked_a_part_twice_are_compared_net_of_their_own_noise() -> None:
    asked = suite(EXCESS)
    once: Line = {"secondary": None, "with_secondary": None, "own": None, "once": True}

    def stored(differing: int, noisy: int, run_id: str) -> Evidence:
        rows = [(different if n < differing else item)(n, **({} if n % 3 else {"own": EQUAL})) for n in range(N)]
        rows = [replace(row, **({} if n % 3 == 0 else once)) for n, row in enumerate(rows)]  # type: ignore[arg-type]  # by the keyword
        rows = [replace(row, own=OTHER) if n % 3 == 0 and n >= N - 3 * noisy else row for n, row in enumerate(rows)]
        found = evidence(asked, rows)
        return replace(found, run=replace(found.run, id=run_id))

    alike = only(judge(asked, stored(60, 0, "a"), stored(60, 0, "b")))
    assert (alike.outcome, alike.harm) == (Outcome.PASS, 0.0)
    worse = only(judge(asked, stored(90, 0, "a"), stored(30, 0, "b")))
    assert worse.outcome is Outcome.BLOCK
    assert worse.harm == pytest.approx(60 / N)
    noisier = only(judge(asked, stored(90, 20, "a"), stored(30, 0, "b")))
    assert noisier.harm == pytest.approx(0.0)
    other = stored(60, 0, "b")
    assert other.shadow is not None
    renamed = replace(other, shadow=replace(other.shadow, items=(item(N), *other.shadow.items[1:])))
    assert only(judge(asked, stored(60, 0, "a"), renamed)).outcome is Outcome.INVALID


def noisy(n: int, **changed: object) -> ShadowItem:
    """All three answers differ."""
    return different(n, secondary="another", own=OTHER, **changed)


@pytest.mark.parametrize("itself", [N, 294])
def test_noise_that_leaves_a_candidate_nothing_to_lose_is_no_evidence(itself: int) -> None:
    rows = range_of(noisy, 0, itself) + range_of(different, itself, N)  # of which no answer is ever the baseline's
    check = only(verdict(rows, EXCESS))
    assert (check.outcome, f"differs from itself on {itself} of 300" in check.reason) == (Outcome.INVALID, True)
    assert only(verdict(range_of(noisy, 0, 240) + range_of(different, 240, N), EXCESS)).outcome is Outcome.BLOCK


def test_a_noisy_baseline_still_lets_an_equal_candidate_pass() -> None:
    rows = [replace(noisy(n), with_primary=EQUAL) if n % 2 else noisy(n) for n in range(120)]
    assert only(verdict([*rows, *range_of(item, 120, N)], EXCESS)).outcome is Outcome.PASS


def test_noise_of_a_part_asked_twice_leaves_nothing_to_lose_either() -> None:
    once: Line = {"secondary": None, "with_secondary": None, "own": None, "once": True}
    rows = [(noisy if n < 100 else different)(n) for n in range(N)]
    rows = [replace(row, **(once if n >= 100 else {})) for n, row in enumerate(rows)]  # type: ignore[arg-type]  # by the keyword
    assert only(verdict(rows, EXCESS)).outcome is Outcome.INVALID


def test_a_candidate_of_a_stored_run_that_shares_nothing_leaves_nothing_to_lose() -> None:
    asked = suite(EXCESS)
    judged, stored = evidence(asked, range_of(different, 0, N)), evidence(asked, range_of(different, 0, N))
    check = only(judge(asked, judged, replace(stored, run=replace(stored.run, id="other"))))
    assert (check.outcome, "differs too often" in check.reason) == (Outcome.INVALID, True)


UNREAD: Line = {"similarity_error": "HTTP 503"}


def test_answers_that_could_not_be_embedded_are_neither_the_same_nor_different() -> None:
    near = replace(EQUAL, label=AnswerAgreement.SEMANTIC, exact=False)
    alike = [item(n, candidate="in other words", with_primary=near, with_secondary=near) for n in range(N)]

    def outcome(rows: list[ShadowItem], unread: int, *, margin: str) -> tuple[Outcome, str]:
        missing = range_of(noisy, 0, unread, **UNREAD)
        check = only(verdict([*missing, *rows[unread:]], {"metric": "shadow_excess", "margin": margin}))
        return check.outcome, check.reason

    assert outcome(alike, 1, margin="5 points")[0] is Outcome.PASS
    assert outcome(alike, 1, margin="2 points")[0] is Outcome.PASS
    found, reason = outcome(alike, 14, margin="5 points")
    assert (found, "depends on 14 prompts" in reason) == (Outcome.INCONCLUSIVE, True)
    assert outcome(range_of(different, 0, N), 14, margin="5 points")[0] is Outcome.BLOCK
    found, reason = outcome(alike, 16, margin="5 points")
    assert (found, "HTTP 503" in reason) == (Outcome.INVALID, True)


def test_no_candidate_is_blocked_by_what_could_not_be_embedded() -> None:
    rows = [*range_of(different, 0, 14, **UNREAD), *range_of(different, 14, 16), *range_of(item, 16, N)]
    check = only(verdict(rows, {"metric": "shadow_excess", "margin": "9 points"}))
    assert (check.outcome, check.n) == (Outcome.PASS, N - 14)
    assert "14 of 300 prompts left out: their similarity is missing" in check.notes


def test_a_candidate_that_gave_no_answer_is_not_excused_by_a_missing_similarity() -> None:
    silent: Line = {"candidate": None, "candidate_facts": None, "with_primary": None, "with_secondary": None}
    assert only(verdict(items(*range_of(item, 0, 60, **silent, **UNREAD)), EXCESS)).outcome is Outcome.BLOCK


def test_one_odd_embedding_spoils_no_small_set() -> None:
    rows = [different(0, **UNREAD), *range_of(item, 1, 12)]
    check = only(verdict(rows, {"metric": "shadow_excess", "margin": "40 points"}))
    assert (check.outcome, check.n) == (Outcome.PASS, 11)


def test_a_second_answer_that_was_to_come_and_did_not_is_not_one_that_nobody_asked_for() -> None:
    lost = [item(n, secondary=None, own=None, with_secondary=None) for n in range(10)]
    assert only(verdict(items(*lost), EXCESS)).outcome is Outcome.INVALID


def test_few_prompts_that_the_baseline_did_not_answer_are_left_out_and_more_are_not() -> None:
    few, many = ([item(n, primary=None, with_primary=None, own=None) for n in range(k)] for k in (3, 4))
    check = only(verdict(items(*few), EXCESS))
    assert (check.outcome, check.n) == (Outcome.PASS, N - 3)
    assert check.notes[0] == "3 of 300 prompts left out: the baseline did not answer them"
    assert only(verdict(items(*many), EXCESS)).outcome is Outcome.INVALID


def test_prompts_that_the_candidate_left_unanswered_are_never_left_out() -> None:
    lost = [item(n, candidate=None, candidate_facts=None, with_primary=None, with_secondary=None) for n in range(60)]
    assert verdict(items(*lost), EXCESS).outcome is Outcome.BLOCK


def test_longer_answers_that_agree_no_less_warn() -> None:
    rambling = [item(n, candidate_facts=replace(FACTS, tokens=60 + n % 3)) for n in range(N)]
    found = verdict(rambling, EXCESS)
    assert found.outcome is Outcome.WARN
    assert "1.22 times as long" in found.reason
    assert (
        verdict([item(n, candidate_facts=replace(FACTS, tokens=53)) for n in range(N)], EXCESS).outcome is Outcome.PASS
    )


def test_longer_answers_warn_whatever_the_servers_say_of_their_tokens() -> None:
    found = verdict([item(n, candidate_facts=replace(FACTS, characters=4_000 + n % 3)) for n in range(N)], EXCESS)
    assert (found.outcome, found.reason.count("100.03 times as long")) == (Outcome.WARN, 1)


def test_one_long_answer_is_no_habit() -> None:
    assert verdict(items(item(0, candidate_facts=replace(FACTS, tokens=5_000))), EXCESS).outcome is Outcome.PASS


def test_more_refusals_warn_and_as_many_do_not() -> None:
    refusing = replace(FACTS, refusal=True)
    more = items(*range_of(item, 0, 12, candidate_facts=refusing))
    assert verdict(more, EXCESS).outcome is Outcome.WARN
    assert "refuses 12 prompts that the baseline answers" in verdict(more, EXCESS).reason
    swapped = range_of(item, 0, 12, candidate_facts=refusing) + range_of(item, 12, 24, primary_facts=refusing)
    assert verdict(items(*swapped), EXCESS).outcome is Outcome.PASS


def test_answers_cut_oftener_than_the_baselines_warn() -> None:
    cut = range_of(item, 0, 20, candidate_finish="length")
    assert "cut at `max_tokens`" in verdict(items(*cut), EXCESS).reason
    both = range_of(item, 0, 20, candidate_finish="length", primary_finish="length")
    assert verdict(items(*both), EXCESS).outcome is Outcome.PASS


def test_notes_count_how_alike_the_answers_are() -> None:
    notes = only(verdict(items(*range_of(different, 0, 5)), EXCESS)).notes
    assert "the candidate's answers beside the baseline's first: 295 exact, 5 different" in notes


# --- guards -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("side", ["primary", "candidate"])
def test_empty_answers_are_a_fault_of_the_harness(side: str) -> None:
    nothing: Line = {side: None, f"{side}_facts": replace(FACTS, characters=0), "with_primary": None}
    found = verdict(items(*range_of(item, 0, 9, **nothing)), EXCESS)
    assert found.outcome is Outcome.INVALID
    assert [guard.id for guard in found.guards if guard.tripped] == ["shadow-not-empty"]
    assert f"{item(0).prompt_id}, {item(1).prompt_id}, {item(2).prompt_id} and 6 more" in found.reason
    (guard,) = (guard for guard in found.guards if guard.tripped)
    assert "max_tokens" not in (guard.remedy or "")  # they ended by themselves


@pytest.mark.parametrize("side", ["primary", "candidate"])
def test_two_empty_answers_of_a_hundred_do_not_spoil_the_others(side: str) -> None:
    nothing: Line = {side: None, f"{side}_facts": replace(FACTS, characters=0), "with_primary": None}
    found = verdict(items(*range_of(item, 0, 2, **nothing))[:100], EXCESS)
    assert [guard.id for guard in found.guards if guard.tripped] == []
    assert only(found).outcome is not Outcome.INVALID


def test_a_baseline_that_refuses_most_prompts_tells_nothing() -> None:
    refusing = replace(FACTS, refusal=True)
    found = verdict(items(*range_of(item, 0, 160, primary_facts=refusing, candidate_facts=refusing)), EXCESS)
    assert [guard.id for guard in found.guards if guard.tripped] == ["shadow-not-refused"]
    assert found.outcome is Outcome.INVALID


def test_answers_all_alike_and_made_in_no_time_come_from_a_cache() -> None:
    quick = replace(FACTS, latency_ns=1_000_000)  # 50 tokens in a millisecond
    found = verdict([item(n, candidate_facts=quick) for n in range(N)], EXCESS)
    assert [guard.id for guard in found.guards if guard.tripped] == ["shadow-not-cached"]
    beside = replace(FACTS, tokens=None, latency_ns=4_000_000)  # a two hundredth of the baseline's
    assert verdict([item(n, candidate_facts=beside) for n in range(N)], EXCESS).outcome is Outcome.INVALID
    short = replace(quick, tokens=5)  # an answer of one word may be as quick as that
    assert (
        verdict([item(n, primary_facts=short, candidate_facts=short) for n in range(N)], EXCESS).outcome is Outcome.PASS
    )


# --- validity ---------------------------------------------------------------------------------------------------------


def formed(n: int, theirs: bool | None, ours: bool | None, /, **changed: object) -> ShadowItem:
    facts = {"primary_facts": replace(FACTS, valid=theirs), "candidate_facts": replace(FACTS, valid=ours)}
    return item(n, **{**facts, **changed})


def forms(*groups: tuple[int, bool | None, bool | None], **changed: object) -> list[ShadowItem]:
    """So many prompts of each kind, the rest valid on both sides."""
    sides = [(baseline, candidate) for count, baseline, candidate in groups for _ in range(count)]
    odd = [formed(n, *both, **changed) for n, both in enumerate(sides)]
    return [*odd, *(formed(n, True, True) for n in range(len(odd), N))]


def test_lost_validity_blocks_and_gained_validity_pays_for_it_only_within_the_check() -> None:
    check = only(verdict(forms((24, True, False)), VALIDITY))
    assert (check.outcome, check.n) == (Outcome.BLOCK, N)
    assert check.harm == pytest.approx(0.08)
    assert "fell by 8.00 points" in check.reason
    assert verdict(forms((8, True, False), (8, False, True)), VALIDITY).outcome is Outcome.PASS
    assert verdict(forms((8, True, False), (8, False, True)), VALIDITY, EXCESS).outcome is Outcome.PASS


def test_prompts_that_ask_for_no_form_are_not_counted() -> None:
    check = only(verdict(forms((200, None, None)), VALIDITY))
    assert check.n == N - 200


def test_words_where_the_baseline_calls_are_lost_and_a_broken_call_where_it_speaks_is_too() -> None:
    assert only(verdict(forms((24, True, None)), VALIDITY)).outcome is Outcome.BLOCK
    assert only(verdict(forms((24, None, False)), VALIDITY)).outcome is Outcome.BLOCK
    assert only(verdict(forms((12, True, None), (12, None, True)), VALIDITY)).harm == 0


def test_a_candidate_that_gives_no_answer_has_no_form() -> None:
    rows = forms((24, True, None), candidate=None, candidate_facts=None, with_primary=None, with_secondary=None)
    assert only(verdict(rows, VALIDITY)).outcome is Outcome.BLOCK


def test_an_answer_that_failed_is_no_gain_over_a_broken_call_of_the_stored_run() -> None:
    asked = suite(VALIDITY)
    missing: Line = {"candidate": None, "candidate_facts": None, "with_primary": None, "with_secondary": None}
    broken, failed = [formed(n, None, False) for n in range(24)], [formed(n, None, None, **missing) for n in range(24)]
    sound, lost = ([formed(n, True, valid) for n in range(24, 48)] for valid in (True, False))
    rest = [formed(n, True, True) for n in range(48, N)]
    stored = evidence(asked, [*broken, *sound, *rest])
    stored = replace(stored, run=replace(stored.run, id="other"))
    check = only(judge(asked, evidence(asked, [*failed, *lost, *rest]), stored))
    assert check.outcome is Outcome.BLOCK
    assert check.harm == pytest.approx(24 / N)
    same = only(judge(asked, evidence(asked, [*broken, *sound, *rest]), stored))
    assert (same.outcome, same.harm) == (Outcome.PASS, 0.0)


def test_no_prompt_that_asks_for_a_form_is_no_evidence() -> None:
    assert "no recorded prompt asks for a form" in only(verdict(items(), VALIDITY)).reason
    assert verdict(items(), VALIDITY).outcome is Outcome.INVALID
    assert verdict(items(), {"metric": "shadow_validity", "min": "90%"}).outcome is Outcome.INVALID


def test_a_baseline_that_has_no_form_itself_makes_no_candidate_good() -> None:
    check = only(verdict([formed(n, n < 5, False) for n in range(N)], VALIDITY))
    assert (check.outcome, "would stay inside" in check.reason) == (Outcome.INVALID, True)


def test_json_that_the_limit_cut_short_says_nothing_of_a_model() -> None:
    check = only(verdict(forms((24, True, False), candidate_finish="length"), VALIDITY))
    assert (check.outcome, "were cut by the token limit" in check.reason) == (Outcome.INVALID, True)
    lost = [formed(n, True, False) for n in range(12)]
    for finish, outcome in (("stop", Outcome.PASS), ("length", Outcome.INVALID)):
        gained = [formed(n, False, True, primary_finish=finish) for n in range(12, 24)]
        rest = [formed(n, True, True) for n in range(24, N)]
        assert only(verdict([*lost, *gained, *rest], VALIDITY)).outcome is outcome


def test_too_few_answers_are_no_fault_of_the_one_that_the_limit_cut() -> None:
    rows = [formed(0, True, False, candidate_finish="length"), *(formed(n, True, True) for n in range(1, 40))]
    check = only(verdict(rows, VALIDITY))  # of 39 whole answers as many might be lost
    assert (check.outcome, "token limit" in check.reason) == (Outcome.INCONCLUSIVE, False)
    rows += [formed(n, True, True) for n in range(40, 130)]
    check = only(verdict(rows, VALIDITY))  # without the cut answer it would pass
    assert (check.outcome, "1 of the 1 lost answers were cut" in check.reason) == (Outcome.INVALID, True)


def test_a_floor_for_validity() -> None:
    floor: Line = {"metric": "shadow_validity", "min": "90%"}
    assert verdict(forms(), floor).outcome is Outcome.PASS
    assert verdict(forms((60, True, False)), floor).outcome is Outcome.BLOCK


def test_a_floor_counts_no_words_as_a_call_in_its_form() -> None:
    floor: Line = {"metric": "shadow_validity", "min": "90%"}
    words = [formed(n, False, None) for n in range(288)]  # where the baseline makes broken calls
    check = only(verdict([*words, *(formed(n, None, False) for n in range(288, N))], floor))
    assert (check.outcome, check.n, check.candidate) == (Outcome.BLOCK, N - 288, 0)
    check = only(verdict(forms((60, True, None)), floor))  # where the baseline makes sound ones
    assert (check.outcome, check.n, check.candidate) == (Outcome.BLOCK, N, (N - 60) / N)


def test_a_floor_says_nothing_of_answers_that_the_limit_cut() -> None:
    floor: Line = {"metric": "shadow_validity", "min": "90%"}
    cut: Line = {"candidate_finish": "length", "primary_finish": "length"}
    check = only(verdict(forms((100, False, False), **cut), floor))
    assert (check.outcome, "100 of the 100 answers" in check.reason) == (Outcome.INVALID, True)
    some = [
        replace(row, candidate_finish="length") if n < 5 else row for n, row in enumerate(forms((100, True, False)))
    ]
    assert only(verdict(some, floor)).outcome is Outcome.BLOCK


# --- the suite --------------------------------------------------------------------------------------------------------


def test_the_shadow_part_of_a_suite_alone_keeps_its_own_checks_only() -> None:
    whole = SuiteText([{"metric": "accuracy", "margin": "2 points"}, EXCESS]).suite()
    alone = only_part(whole, "shadow")
    assert (alone.load, alone.quality, alone.slo, alone.shadow) == (None, None, None, whole.shadow)
    assert [check.metric for check in alone.gate.checks] == ["shadow_excess"]
    assert rule_problems(alone) == []
    evals = only_part(whole, "quality")
    assert (evals.load, evals.quality, evals.slo, evals.shadow) == (None, whole.quality, None, None)
    assert [check.metric for check in evals.gate.checks] == ["accuracy"]
    with pytest.raises(UsageError, match="no check of made-up rests on"):
        only_part(SuiteText([{"metric": "accuracy", "margin": "2 points"}]).suite(), "shadow")
    with pytest.raises(UsageError, match="has no `shadow`"):
        only_part(whole.model_copy(update={"shadow": None}), "shadow")
