"""The form of recorded answers, prompt by prompt: what counts as lost, what as gained, and what a cut explains."""

from __future__ import annotations

from dataclasses import replace

import pytest

from benchgate.model.records import ShadowItem
from benchgate.model.verdict import Outcome
from tests.core.test_shadow_checks_edges import FLOOR, WHOLE, sound, stored
from tests.fakes.shadow_rows import FACTS, VALIDITY, N, only, verdict

Line = dict[str, object]
Group = tuple[int, bool | None, bool | None, Line]
"""How many prompts, whether the baseline and the candidate have the form, and what else is so."""
CUT: Line = {"candidate_finish": "length"}


def formed(n: int, theirs: bool | None, ours: bool | None, **changed: object) -> ShadowItem:
    facts: Line = {"primary_facts": replace(FACTS, valid=theirs), "candidate_facts": replace(FACTS, valid=ours)}
    return replace(sound(n), **{**facts, **changed})  # type: ignore[arg-type]  # by the keyword


def rows(*groups: Group) -> list[ShadowItem]:
    """So many prompts of each kind, the rest sound on both sides."""
    odd = [(theirs, ours, changed) for count, theirs, ours, changed in groups for _ in range(count)]
    first = [formed(n, theirs, ours, **changed) for n, (theirs, ours, changed) in enumerate(odd)]
    return [*first, *WHOLE[len(first) :]]


LOST: Group = (12, True, False, {})
SILENT: Line = {"candidate": None, "candidate_facts": None}


@pytest.mark.parametrize(
    ("paying", "harm"),
    [
        ((12, False, True, {}), 0),
        ((12, False, False, {}), 12),  # neither has it
        ((12, False, None, SILENT), 12),  # no answer is none without a broken call
        ((12, False, None, {}), 0),  # words where the baseline's call was broken
    ],
)
def test_what_pays_for_a_lost_form_is_a_form_that_the_baseline_had_not(paying: Group, harm: int) -> None:
    assert only(verdict(rows(LOST, paying), VALIDITY)).harm == pytest.approx(harm / N)


def test_prompts_of_which_no_form_is_known_are_counted_on_no_side() -> None:
    untold: Line = {"primary_facts": None, "candidate_facts": None}
    for group in ((50, None, None, untold), (50, None, None, SILENT)):
        found = only(verdict(rows(group), VALIDITY))
        assert (found.n, found.harm, found.outcome) == (N - 50, 0.0, Outcome.PASS)


@pytest.mark.parametrize("beside", [(24, False, False, CUT), (24, True, True, CUT)])
def test_a_cut_that_lost_nothing_explains_no_loss(beside: Group) -> None:
    lost: Group = (24, True, False, {})
    assert only(verdict(rows(lost, beside), VALIDITY)).outcome is Outcome.BLOCK


def test_a_whole_answer_that_was_cut_explains_no_form_below_its_floor() -> None:
    assert only(verdict(rows((100, True, False, {}), (60, True, True, CUT)), FLOOR)).outcome is Outcome.BLOCK


@pytest.mark.parametrize(("finish", "says"), [("stop", Outcome.PASS), ("length", Outcome.INVALID)])
def test_a_form_gained_over_an_answer_of_the_other_run_that_was_cut_pays_for_none(finish: str, says: Outcome) -> None:
    ours = rows((12, True, False, {}))
    theirs = [
        replace(row, candidate_finish=finish, candidate_facts=replace(FACTS, valid=False)) if 12 <= n < 24 else row
        for n, row in enumerate(WHOLE)
    ]
    assert stored(VALIDITY, ours, theirs).outcome is says
