"""Checks of a shadow comparison over evidence that is not whole: none of it is taken for agreement."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from benchgate.gate.judge import judge
from benchgate.model.records import JudgeVerdict, ShadowItem
from benchgate.model.run import Evidence, ShadowObservation
from benchgate.model.verdict import CheckResult, Outcome
from tests.fakes.shadow_rows import (
    EXCESS,
    FACTS,
    JUDGE,
    OTHER,
    VALIDITY,
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

Line = dict[str, object]
FLOOR: Line = {"metric": "shadow_validity", "min": "80%"}
CHECKS = [EXCESS, JUDGE, VALIDITY, FLOOR]


def names(check: Line) -> str:
    return " ".join(map(str, check.values()))


def sound(n: int) -> ShadowItem:
    """A prompt that every check can judge, and likes."""
    facts = replace(FACTS, valid=True)
    return item(n, primary_facts=facts, secondary_facts=facts, candidate_facts=facts, judged=JudgeVerdict.TIE)


WHOLE = [sound(n) for n in range(N)]


def of(check: Line, shadow: ShadowObservation | None) -> CheckResult:
    asked = suite(check)
    return only(judge(asked, replace(evidence(asked, WHOLE), shadow=shadow)))


@pytest.mark.parametrize("check", CHECKS, ids=names)
def test_what_is_whole_passes(check: Line) -> None:
    assert of(check, ShadowObservation(tuple(WHOLE), N, None)).outcome is Outcome.PASS


NOT_WHOLE = [
    (None, "was not made"),
    (ShadowObservation(tuple(WHOLE), N, "the server went away"), "the server went away"),
    (ShadowObservation(tuple(WHOLE), N + 1, None), f"only {N} of {N + 1} prompts"),
    (ShadowObservation(tuple(WHOLE), N - 1, None), f"only {N} of {N - 1} prompts"),
    (ShadowObservation((), 0, None), "only 0 of 0 prompts"),
    (ShadowObservation((*WHOLE[1:], WHOLE[1]), N, None), "have the same id"),
]


@pytest.mark.parametrize("check", CHECKS, ids=names)
@pytest.mark.parametrize(("shadow", "says"), NOT_WHOLE)
def test_a_comparison_that_is_not_whole_says_nothing(check: Line, shadow: ShadowObservation | None, says: str) -> None:
    found = of(check, shadow)
    assert found.outcome is Outcome.INVALID
    assert says in found.reason


@pytest.mark.parametrize("check", [EXCESS, JUDGE, VALIDITY], ids=names)
def test_a_reference_that_is_not_whole_or_asked_something_else_is_none(check: Line) -> None:
    asked = suite(check)

    def beside(shadow: ShadowObservation | None) -> CheckResult:
        reference = replace(evidence(asked, WHOLE), shadow=shadow)
        other: Evidence = replace(reference, run=replace(reference.run, id="other"))
        return only(judge(asked, evidence(asked, WHOLE), other))

    assert beside(ShadowObservation(tuple(WHOLE), N, None)).outcome is Outcome.PASS
    for shadow, _ in NOT_WHOLE:
        assert beside(shadow).outcome is Outcome.INVALID
    elsewhere = tuple(replace(row, prompt_sha256=f"other {row.prompt_id}") for row in WHOLE)
    found = beside(ShadowObservation(elsewhere, N, None))
    assert (found.outcome, "different prompts" in found.reason) == (Outcome.INVALID, True)


@pytest.mark.parametrize("check", [EXCESS, JUDGE], ids=names)
def test_one_prompt_is_no_evidence(check: Line) -> None:
    one = of(check, ShadowObservation((WHOLE[0],), 1, None))
    assert one.outcome in (Outcome.INVALID, Outcome.INCONCLUSIVE)


def said(*groups: tuple[int, JudgeVerdict | None]) -> list[ShadowItem]:
    """So many verdicts of each kind, ties for the rest."""
    verdicts = [kind for count, kind in groups for _ in range(count)]
    verdicts += [JudgeVerdict.TIE] * (N - len(verdicts))
    return [item(n, judged=one) for n, one in enumerate(verdicts)]


@pytest.mark.parametrize("kind", [JudgeVerdict.MISSING, None])
def test_a_twentieth_of_the_verdicts_may_be_missing_and_one_more_may_not(kind: JudgeVerdict | None) -> None:
    assert only(verdict(said((15, kind)), {**JUDGE, "margin": "20 points"})).outcome is Outcome.PASS
    found = only(verdict(said((16, kind)), {**JUDGE, "margin": "20 points"}))
    assert (found.outcome, "16 of 300 verdicts are missing" in found.reason) == (Outcome.INVALID, True)


@pytest.mark.parametrize("kind", [JudgeVerdict.MISSING, None])
def test_verdicts_that_are_missing_are_in_no_denominator(kind: JudgeVerdict | None) -> None:
    found = only(verdict(said((12, kind), (36, JudgeVerdict.LOSS), (4, JudgeVerdict.WIN)), JUDGE))
    assert found.n == 288
    assert found.candidate == pytest.approx(36 / 288)
    assert found.baseline == pytest.approx(4 / 288)
    assert found.harm == pytest.approx(32 / 288)


def test_a_candidate_that_gave_no_answer_has_lost_and_thins_out_no_position() -> None:
    asked: Sequence[ShadowItem] = [different(n, judged=JudgeVerdict.INCONSISTENT) for n in range(100)]
    silent: Line = {"candidate": None, "candidate_facts": None, "with_primary": None}
    lost = range_of(item, 100, 200, **silent, judged=JudgeVerdict.LOSS)
    ties = range_of(item, 200, N, judged=JudgeVerdict.TIE)
    found = only(verdict([*asked, *lost, *ties], JUDGE))
    assert (found.outcome, "in 100 of the 100 pairs" in found.reason) == (Outcome.INVALID, True)


def test_a_tie_between_answers_that_differ_was_a_judges_own() -> None:
    """100 of 200 pairs by the position are no more than half; of equal answers nobody was asked."""
    swayed = [different(n, judged=JudgeVerdict.INCONSISTENT) for n in range(100)]
    ties = [different(n, judged=JudgeVerdict.TIE) for n in range(100, 200)]
    found = only(
        verdict([*swayed, *ties, *range_of(item, 200, N, judged=JudgeVerdict.TIE)], {**JUDGE, "margin": "40 points"})
    )
    assert found.outcome is Outcome.PASS


def test_a_form_that_one_run_was_never_asked_for_is_no_agreement() -> None:
    for check in (VALIDITY, FLOOR):
        found = only(verdict(items(), check))
        assert (found.outcome, "no recorded prompt asks for a form" in found.reason) == (Outcome.INVALID, True)


def test_prompts_that_the_baseline_failed_are_left_out_up_to_what_chance_may_do() -> None:
    failed = {"primary": None, "primary_facts": None, "with_primary": None, "error": "baseline: HTTP 500"}
    found = only(verdict(items(*range_of(item, 0, N, **failed)), EXCESS))
    assert (found.outcome, "the baseline itself failed on 300 prompts" in found.reason) == (Outcome.INVALID, True)


def stored(check: Line, ours: Sequence[ShadowItem], theirs: Sequence[ShadowItem]) -> CheckResult:
    """The first run's candidate against that of the second."""
    asked = suite(check)
    other = evidence(asked, theirs)
    return only(judge(asked, evidence(asked, ours), replace(other, run=replace(other.run, id="other"))))


UNREAD: Line = {"similarity_error": "HTTP 503"}


def test_prompts_of_which_each_run_lacks_another_similarity_leave_nothing_to_compare() -> None:
    found = stored(EXCESS, [different(0, **UNREAD), item(1)], [item(0), different(1, **UNREAD)])
    assert (found.outcome, "there are too few prompts" in found.reason) == (Outcome.INVALID, True)


def test_a_baseline_that_was_asked_twice_nowhere_has_no_noise_to_take_off() -> None:
    once: Line = {"secondary": None, "with_secondary": None, "own": None, "once": True}
    found = only(verdict(range_of(item, 0, N, **once), EXCESS))
    assert (found.outcome, "there are too few prompts" in found.reason) == (Outcome.INVALID, True)


@pytest.mark.parametrize("unread", [0, 1])
def test_similarities_that_either_run_lacks_too_often_spoil_both(unread: int) -> None:
    sides = [items(), items()]
    sides[unread] = items(*range_of(different, 0, 16, **UNREAD))
    found = stored(EXCESS, *sides)
    assert (found.outcome, "16 of 300 prompts could not be compared" in found.reason) == (Outcome.INVALID, True)
    sides[0] = items(*range_of(different, 0, 14, **({} if unread else UNREAD)))
    sides[1] = items(*range_of(different, 0, 14, **UNREAD)) if unread else items()
    assert stored(EXCESS, *sides).outcome is Outcome.INCONCLUSIVE  # depends on those fourteen
    assert stored({**EXCESS, "margin": "20 points"}, *sides).outcome is Outcome.PASS


def test_harm_inside_a_margin_that_nothing_could_break_is_no_evidence() -> None:
    """Of 300 prompts the baseline differs from itself on 255: no candidate can lose more than 15 points."""
    noise = [different(n, secondary="another", own=OTHER) for n in range(240)]
    siding = [item(n, secondary="another", own=OTHER, with_secondary=OTHER) for n in range(240, 255)]
    rows = [*noise, *siding, *range_of(different, 255, 280), *range_of(item, 280, N)]
    for margin, outcome in (("20 points", Outcome.INVALID), ("11 points", Outcome.WARN), ("3 points", Outcome.BLOCK)):
        found = only(verdict(rows, {**EXCESS, "margin": margin}))
        assert found.outcome is outcome
        assert found.p_value is not None and found.p_value < 0.001  # 25 for, 15 against


@pytest.mark.parametrize(
    ("lost", "harm", "breach"),
    [(12, Outcome.BLOCK, Outcome.INCONCLUSIVE), (24, Outcome.BLOCK, Outcome.BLOCK), (2, Outcome.PASS, Outcome.PASS)],
)
def test_a_lost_form_blocks_for_breach_only_where_it_is_shown_beyond_the_margin(
    lost: int, harm: Outcome, breach: Outcome
) -> None:
    facts = replace(FACTS, valid=True)
    rows = [*(replace(sound(n), candidate_facts=replace(facts, valid=False)) for n in range(lost)), *WHOLE[lost:]]
    assert only(verdict(rows, VALIDITY)).outcome is harm
    assert only(verdict(rows, {**VALIDITY, "block_when": "breach"})).outcome is breach


@pytest.mark.parametrize(
    ("unread", "of", "spoilt"), [(15, N, False), (16, N, True), (1, 12, False), (2, 12, True), (1, 1, True)]
)
def test_a_twentieth_of_the_similarities_may_be_missing_and_one_always_may(unread: int, of: int, spoilt: bool) -> None:
    rows = [*range_of(different, 0, unread, **UNREAD), *range_of(item, unread, of)]
    found = only(verdict(rows, {**EXCESS, "margin": "60 points"}))
    assert found.outcome is (Outcome.INVALID if spoilt else Outcome.PASS)
    assert ("could not be compared by their embeddings" in found.reason) is spoilt


def test_runs_of_which_only_one_asked_its_baseline_twice_asked_something_else() -> None:
    once: Line = {"secondary": None, "with_secondary": None, "own": None, "once": True}
    halves = [item(n, **(once if n % 2 else {})) for n in range(N)]
    for check in (EXCESS, JUDGE):
        found = stored(check, WHOLE, [replace(row, judged=JudgeVerdict.TIE) for row in halves])
        assert (found.outcome, "different prompts" in found.reason) == (Outcome.INVALID, True)


def test_losses_of_form_by_cuts_hide_no_losses_without_them() -> None:
    facts = replace(FACTS, valid=False)
    for cut, whole, outcome in ((24, 0, Outcome.INVALID), (3, 24, Outcome.BLOCK), (3, 0, Outcome.PASS)):
        rows = [replace(sound(n), candidate_facts=facts) for n in range(cut + whole)]
        rows = [replace(row, candidate_finish="length") if n < cut else row for n, row in enumerate(rows)]
        found = only(verdict([*rows, *WHOLE[cut + whole :]], VALIDITY))
        assert found.outcome is outcome, found.reason


def test_few_verdicts_that_differ_between_two_runs_are_no_spread_to_rest_on() -> None:
    """Three losses of 300: twice Clopper-Pearson's upper limit is 5.1 points, and t's 2.0."""
    lost = said((3, JudgeVerdict.LOSS))
    for margin, outcome in (("5 points", Outcome.INCONCLUSIVE), ("5.2 points", Outcome.PASS)):
        assert stored({**JUDGE, "margin": margin}, lost, said()).outcome is outcome


def formless(n: int, *sides: str) -> ShadowItem:
    """An answer without the form on these sides."""
    return replace(sound(n), **{f"{side}_facts": replace(FACTS, valid=False) for side in sides})  # type: ignore[arg-type]  # by the keyword


def test_the_form_of_two_runs_is_that_of_their_candidates_whatever_their_baselines_lost() -> None:
    lost = [*(formless(n, "primary", "candidate") for n in range(24)), *WHOLE[24:]]
    found = stored(VALIDITY, lost, WHOLE)
    assert found.outcome is Outcome.BLOCK
    assert [found.harm, found.baseline, found.candidate] == pytest.approx([24 / N, 1.0, 276 / N])
    assert stored(VALIDITY, lost, lost).outcome is Outcome.PASS
    assert stored(VALIDITY, WHOLE, lost).outcome is Outcome.PASS


@pytest.mark.parametrize(("lost", "says"), [(110, Outcome.PASS), (130, Outcome.WARN), (140, Outcome.INCONCLUSIVE)])
def test_a_share_of_forms_near_its_floor_warns(lost: int, says: Outcome) -> None:
    found = only(verdict([*(formless(n, "candidate") for n in range(lost)), *WHOLE[lost:]], {**FLOOR, "min": "50%"}))
    assert found.outcome is says
    assert found.candidate == pytest.approx(1 - lost / N)


@pytest.mark.parametrize(("differing", "says"), [(0, Outcome.INVALID), (18, Outcome.BLOCK)])
def test_what_little_noise_leaves_to_lose_must_itself_be_shown_beyond_the_margin(differing: int, says: Outcome) -> None:
    """Twenty of 300 prompts are left: 6.7 points, of which 4.7 would be shown at most; harm is harm all the same."""
    noise = [different(n, secondary="another", own=OTHER) for n in range(280)]
    found = only(
        verdict([*noise, *range_of(different, 280, 280 + differing), *range_of(item, 280 + differing, N)], EXCESS)
    )
    assert found.outcome is says


def test_few_differences_between_two_runs_that_asked_a_third_twice_are_no_spread_to_rest_on() -> None:
    """One prompt can differ by four: its own one, and three times the noise of the third that was asked twice."""
    once: Line = {"secondary": None, "with_secondary": None, "own": None, "once": True}
    asked = [item(n, **({} if n % 3 == 0 else once)) for n in range(N)]
    three = [replace(r, candidate="other", with_primary=OTHER) if n in (1, 2, 4) else r for n, r in enumerate(asked)]
    for margin, outcome in (("10 points", Outcome.INCONCLUSIVE), ("10.4 points", Outcome.PASS)):
        assert stored({**EXCESS, "margin": margin}, three, asked).outcome is outcome


def test_a_few_missing_similarities_hide_no_harm_that_is_shown() -> None:
    rows = [*range_of(different, 0, 5, **UNREAD), *range_of(different, 5, 35), *range_of(item, 35, N)]
    found = only(verdict(rows, {**EXCESS, "margin": "9 points"}))
    assert found.outcome is Outcome.BLOCK
    assert found.lower is not None and found.lower < 0.09  # 10 points, of which 7.6 are shown
