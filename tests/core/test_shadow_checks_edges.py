"""Checks of a shadow comparison over evidence that is not whole: none of it is taken for agreement."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from benchgate.gate.decide import judge
from benchgate.model.records import ShadowItem
from benchgate.model.run import Evidence, ShadowObservation
from benchgate.model.shadow import Judged
from benchgate.model.verdict import CheckResult, Outcome
from tests.fakes.shadow_rows import (
    EXCESS,
    FACTS,
    JUDGE,
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
    return item(n, primary_facts=facts, secondary_facts=facts, candidate_facts=facts, judged=Judged.TIE)


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
    (ShadowObservation((*WHOLE[1:], WHOLE[1]), N, None), "have one id"),
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


def said(*groups: tuple[int, Judged | None]) -> list[ShadowItem]:
    """So many verdicts of each kind, ties for the rest."""
    verdicts = [kind for count, kind in groups for _ in range(count)]
    verdicts += [Judged.TIE] * (N - len(verdicts))
    return [item(n, judged=one) for n, one in enumerate(verdicts)]


@pytest.mark.parametrize("kind", [Judged.MISSING, None])
def test_a_twentieth_of_the_verdicts_may_be_missing_and_one_more_may_not(kind: Judged | None) -> None:
    assert only(verdict(said((15, kind)), {**JUDGE, "margin": "20 points"})).outcome is Outcome.PASS
    found = only(verdict(said((16, kind)), {**JUDGE, "margin": "20 points"}))
    assert (found.outcome, "16 of 300 verdicts are missing" in found.reason) == (Outcome.INVALID, True)


@pytest.mark.parametrize("kind", [Judged.MISSING, None])
def test_verdicts_that_are_missing_are_in_no_denominator(kind: Judged | None) -> None:
    found = only(verdict(said((12, kind), (36, Judged.LOSS), (4, Judged.WIN)), JUDGE))
    assert found.n == 288
    assert found.candidate == pytest.approx(36 / 288)
    assert found.baseline == pytest.approx(4 / 288)
    assert found.harm == pytest.approx(32 / 288)


def test_a_candidate_that_gave_no_answer_has_lost_and_thins_out_no_position() -> None:
    asked: Sequence[ShadowItem] = [different(n, judged=Judged.INCONSISTENT) for n in range(100)]
    silent: Line = {"candidate": None, "candidate_facts": None, "with_primary": None}
    lost = range_of(item, 100, 200, **silent, judged=Judged.LOSS)
    ties = range_of(item, 200, N, judged=Judged.TIE)
    found = only(verdict([*asked, *lost, *ties], JUDGE))
    assert (found.outcome, "in 100 of the 100 pairs" in found.reason) == (Outcome.INVALID, True)


def test_a_tie_between_answers_that_differ_was_a_judges_own() -> None:
    """100 of 200 pairs by the position are no more than half; of equal answers nobody was asked."""
    swayed = [different(n, judged=Judged.INCONSISTENT) for n in range(100)]
    ties = [different(n, judged=Judged.TIE) for n in range(100, 200)]
    found = only(
        verdict([*swayed, *ties, *range_of(item, 200, N, judged=Judged.TIE)], {**JUDGE, "margin": "40 points"})
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
