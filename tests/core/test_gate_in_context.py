"""What a check's sentence says of the others: which one ended the load, what was left out, and what to do."""

from __future__ import annotations

from dataclasses import replace

import pytest

from benchgate.gate.decision import Estimate, Look
from benchgate.gate.reasons import check_advice, check_reason
from benchgate.model.run import LoadEnd
from benchgate.model.verdict import Outcome, Scale
from benchgate.stats.distributions import Limits
from tests.core.test_decide_edges import BEYOND, E2E, ERRORS, INSIDE, NOTICED, TTFT, judged
from tests.fakes.estimates import changed

FIRST = Look(1, 2, 4, 8, 0.00882, (0.5, 1.0), LoadEnd(4, 8, "decided"))
OPEN = changed(INSIDE, value=0.02, limits=Limits(-0.1, 0.2), look=FIRST)
BLOCKING = changed(BEYOND, p_value=1e-4, look=FIRST)


def test_a_check_that_the_end_of_the_load_left_open_says_why_it_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    checks = judged([TTFT, E2E, NOTICED], [BLOCKING, OPEN, OPEN], monkeypatch)
    assert [check.outcome for check in checks] == [Outcome.BLOCK, Outcome.INCONCLUSIVE, Outcome.INCONCLUSIVE]
    for check in checks[1:]:
        assert "after 4 of at most 8 blocks, where the load ended because the required checks were" in check.reason
        assert "fix any that blocked, or require this one" in (check.advice or "")


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
    _, left = judged([TTFT, E2E], [changed(BLOCKING, look=look), changed(OPEN, look=look)], monkeypatch)
    assert left.outcome is Outcome.INCONCLUSIVE
    assert "checks were decided" not in left.reason
    assert "blocked" not in (left.advice or "")


@pytest.mark.parametrize(
    ("p_value", "look", "words"),
    [
        (0.01, FIRST, "with all checks together after 4 of at most 8"),
        (0.06, FIRST, "by its test after 4 of at most 8"),
        (0.01, replace(FIRST, number=2), "with all checks together after all"),
    ],
)
def test_a_regression_that_is_not_significant_says_by_what_and_after_how_many_blocks(
    p_value: float, look: Look, words: str
) -> None:
    seen = changed(BEYOND, value=0.4, limits=Limits(0.3, 0.5), p_value=p_value, look=look)
    assert f"probably a regression, but not significant {words}" in check_reason(seen, Outcome.INCONCLUSIVE, 0.8, 0.05)


def test_what_was_left_out_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    whole, other = changed(INSIDE, n=6), changed(INSIDE, n=60, n_unit="requests")
    found: list[Estimate | tuple[Estimate, Estimate]] = [(INSIDE, whole), (INSIDE, INSIDE), (INSIDE, other), INSIDE]
    checks = judged([TTFT, E2E, ERRORS, NOTICED], found, monkeypatch)
    assert [check.n_of for check in checks] == [6, None, None, None]


def test_a_warning_over_all_blocks_says_why_not_all_count_and_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    shown = changed(INSIDE, value=0.04, limits=Limits(0.01, 0.08), p_value=0.01)
    (check,) = judged([TTFT], [(INSIDE, shown)], monkeypatch)
    assert check.outcome is Outcome.WARN
    assert "excluded because the load generator was late: rose by 4.08 %" in check.reason
    assert check.reason.endswith("a real regression, though inside the margin")
    assert check.reason.count("inside the margin of ") == 1
    assert check.advice is not None and "a machine or cores of its own" in check.advice


@pytest.mark.parametrize(
    ("n_unit", "words"), [("requests", "more capacity, or less traffic"), ("items", "the next loss")]
)
def test_a_near_bound_says_what_to_give_to_what(n_unit: str, words: str) -> None:
    near = changed(BEYOND, scale=Scale.ABSOLUTE, value=0.09, limits=Limits(0.08, 0.1), n_unit=n_unit)
    assert words in (check_advice(near, Outcome.WARN, 0.05) or "")
