"""What a check's sentence says of the others: which one ended the load, what was left out, and what to do."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

import pytest

from benchgate.gate.checks.evaluate import Measured
from benchgate.gate.decision import Finding, Look
from benchgate.gate.reasons import check_advice, check_reason
from benchgate.model.run import LoadEnd
from benchgate.model.verdict import Outcome, Scale
from benchgate.stats.distributions import Limits
from tests.core.test_decide_edges import BEYOND, E2E, ERRORS, INSIDE, NOTICED, TTFT, judged

FIRST = Look(1, 2, 4, 8, 0.00882, (0.5, 1.0), LoadEnd(4, 8, "decided"))
OPEN = replace(INSIDE, harm=0.02, limits=Limits(-0.1, 0.2), look=FIRST)
BLOCKING = replace(BEYOND, p_value=1e-4, look=FIRST)


def test_a_check_that_another_ones_block_left_open_names_it_and_asks_for_no_more_blocks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    checks = judged([TTFT, E2E, NOTICED], [BLOCKING, OPEN, OPEN], monkeypatch)
    assert [check.outcome for check in checks] == [Outcome.BLOCK, Outcome.INCONCLUSIVE, Outcome.INCONCLUSIVE]
    for check in checks[1:]:
        assert "after 4 of at most 8 blocks, where another check ended the load" in check.reason
        assert check.advice is not None and check.advice.endswith(
            "Time to first token p50 at c4 blocked; mend that first"
        )
        assert "required" not in check.advice and "would settle" not in check.advice


def test_of_several_that_blocked_the_first_is_named_and_the_others_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    checks = judged([TTFT, E2E, {"metric": "tpot", "margin": "10%"}], [BLOCKING, BLOCKING, OPEN], monkeypatch)
    assert "because Time to first token p50 at c4 and 1 more check blocked" in (checks[2].advice or "")


@pytest.mark.parametrize(
    "look",
    [
        replace(FIRST, number=2, blocks=8),
        replace(FIRST, ended=None),
        replace(FIRST, ended=LoadEnd(4, 8, "time")),
        None,
    ],
)
def test_a_load_that_no_check_ended_blames_none(look: Look | None, monkeypatch: pytest.MonkeyPatch) -> None:
    _, left = judged([TTFT, E2E], [replace(BLOCKING, look=look), replace(OPEN, look=look)], monkeypatch)
    assert left.outcome is Outcome.INCONCLUSIVE
    assert "another check" not in left.reason
    assert "blocked" not in (left.advice or "")


@pytest.mark.parametrize("line", [NOTICED, ERRORS])
def test_neither_an_advisory_block_nor_one_that_promotes_ends_a_load(
    line: dict[str, object], monkeypatch: pytest.MonkeyPatch
) -> None:
    other = BLOCKING if line is NOTICED else INSIDE
    left = judged([TTFT, line], [OPEN, other], monkeypatch)[0]
    assert "where what had to be was settled" in left.reason


@pytest.mark.parametrize("why", ["decided", "invalid"])
def test_a_required_check_that_another_policy_left_open_is_not_told_to_become_required(
    why: Literal["decided", "invalid"], monkeypatch: pytest.MonkeyPatch
) -> None:
    left = replace(OPEN, look=replace(FIRST, ended=LoadEnd(4, 8, why)))
    check, advisory = judged([TTFT, NOTICED], [left, left], monkeypatch)
    assert check.advice is not None and "the load ended by another policy, or with waivers" in check.advice
    assert "a check that is `required`" not in check.advice
    assert "though not by this policy" in check.reason
    assert advisory.advice is not None and "another policy" not in advisory.advice
    assert "a check that is `required` is measured until it is settled" in advisory.advice
    assert "this policy" not in advisory.reason


@pytest.mark.parametrize(
    ("p_value", "look", "words"),
    [
        (0.01, FIRST, "for it is seen early and beside several checks after 4"),
        (0.06, FIRST, "for it is seen early after 4"),
        (0.01, replace(FIRST, number=2), "with all checks together after all"),
    ],
)
def test_harm_seen_early_says_so(p_value: float, look: Look, words: str) -> None:
    seen = replace(BEYOND, harm=0.4, limits=Limits(0.3, 0.5), p_value=p_value, look=look)
    assert f"likely harm, but not sure enough {words}" in check_reason(seen, Outcome.INCONCLUSIVE, 0.8, 0.05)


def test_what_was_left_out_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    whole, other = replace(INSIDE, n=6), replace(INSIDE, n=60, n_unit="requests")
    found = [Measured(INSIDE, whole), Measured(INSIDE, INSIDE), Measured(INSIDE, other), Measured(INSIDE)]
    checks = judged([TTFT, E2E, ERRORS, NOTICED], [*found], monkeypatch)
    assert [check.n_of for check in checks] == [6, None, None, None]


def test_a_warning_over_all_blocks_says_why_not_all_count_and_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    shown = replace(INSIDE, harm=0.04, limits=Limits(0.01, 0.08), p_value=0.01)
    (check,) = judged([TTFT], [Measured(INSIDE, shown)], monkeypatch)
    assert check.outcome is Outcome.WARN
    assert "left out because the load generator was late: rose by 4.08 %" in check.reason
    assert check.reason.endswith("real harm, though inside the margin")
    assert check.reason.count("inside the margin of ") == 1
    assert check.advice is not None and "a machine or cores of its own" in check.advice


@pytest.mark.parametrize(
    ("n_unit", "words"), [("requests", "more capacity, or less traffic"), ("items", "the next loss")]
)
def test_a_near_bound_says_what_to_give_to_what(n_unit: str, words: str) -> None:
    near: Finding = replace(BEYOND, scale=Scale.ABSOLUTE, harm=0.09, limits=Limits(0.08, 0.1), n_unit=n_unit)
    assert words in (check_advice(near, Outcome.WARN, 0.05) or "")
