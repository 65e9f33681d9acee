"""How values, margins and changes are shown: in the direction in which the metric moved, and a dash for none."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from benchgate.gate.judge import judge
from benchgate.gate.reasons import change_of, show_margin, show_numbers, show_value
from benchgate.model.verdict import Scale, Unit
from benchgate.report import display
from tests.fakes.measured import SuiteText, measured

SUITE = SuiteText([{"metric": "ttft", "margin": "10%"}], blocks=2, requests=2).suite()
CHECK = replace(
    judge(SUITE, measured(SUITE, items=2, prompts=2)).checks[0], harm=0.1, lower=-0.05, upper=0.2, margin=0.1
)


@pytest.mark.parametrize(
    ("value", "unit", "shown"),
    [
        (None, Unit.SECONDS, "—"),
        (math.inf, Unit.SECONDS, "∞"),
        (-math.inf, Unit.RATIO, "\N{MINUS SIGN}∞"),
        (0.25, Unit.SECONDS, "250 ms"),
        (0.25, Unit.RATIO, "25.0 %"),
        (12.0, Unit.TOKENS_PER_S, "12.0 tokens/s"),
    ],
)
def test_a_value_is_shown_in_its_unit(value: float | None, unit: Unit, shown: str) -> None:
    assert show_value(value, unit) == shown


@pytest.mark.parametrize(
    ("harm", "scale", "unit", "falls", "told"),
    [
        (math.log(1.1), Scale.LOG_RATIO, Unit.SECONDS, False, "rose by 10.0 %"),
        (-math.log(1.1), Scale.LOG_RATIO, Unit.SECONDS, False, "fell by 9.09 %"),
        (math.log(1.1), Scale.LOG_RATIO, Unit.TOKENS_PER_S, False, "fell by 9.09 %"),
        (0.02, Scale.DIFFERENCE, Unit.RATIO, False, "rose by 2.00 points"),
        (0.02, Scale.DIFFERENCE, Unit.RATIO, True, "fell by 2.00 points"),
        (-0.02, Scale.DIFFERENCE, Unit.RATIO, True, "rose by 2.00 points"),
        (0.0, Scale.DIFFERENCE, Unit.RATIO, True, "is unchanged"),
        (0.0, Scale.LOG_RATIO, Unit.SECONDS, False, "is unchanged"),
        (math.inf, Scale.LOG_RATIO, Unit.SECONDS, False, "has no bound"),
        (-math.inf, Scale.DIFFERENCE, Unit.RATIO, False, "has no bound"),
    ],
)
def test_a_change_is_told_in_the_direction_in_which_the_metric_moved(
    harm: float, scale: Scale, unit: Unit, falls: bool, told: str
) -> None:
    assert change_of(harm, scale, unit, falls=falls) == told


def test_a_margin_is_shown_as_its_author_would_write_it() -> None:
    assert show_margin(math.log(1.05), Scale.LOG_RATIO, Unit.SECONDS) == "5 %"
    assert show_margin(-math.log(0.95), Scale.LOG_RATIO, Unit.TOKENS_PER_S) == "5 %"
    assert show_margin(0.02, Scale.DIFFERENCE, Unit.RATIO) == "2 points"
    assert show_margin(0.2, Scale.ABSOLUTE, Unit.SECONDS) == "200 ms"


def test_two_quantities_have_a_common_unit_once_however_many_words_it_has() -> None:
    assert display.with_unit_once("90.0 tok/s per accelerator", "110 tok/s per accelerator", " to ") == (
        "90.0 to 110 tok/s per accelerator"
    )
    assert display.with_unit_once("990 µs", "1.20 ms", " → ") == "990 µs → 1.20 ms"
    assert display.with_unit_once("$1.10", "$1.20", " → ") == "$1.10 → $1.20"
    assert display.with_unit_once("not measured", "not measured", " → ") == "not measured → not measured"


def test_the_numbers_of_a_check_are_shown_beside_what_they_are_held_to_or_its_reason_where_one_is_missing() -> None:
    assert show_numbers(CHECK) == "+10.5 %, -4.88 % to +22.1 %, margin 10.5 %"
    endless = show_numbers(replace(CHECK, harm=math.inf, upper=math.inf))
    assert endless == "∞, -4.88 % to ∞, margin 10.5 %"
    points = show_numbers(replace(CHECK, scale=Scale.DIFFERENCE, unit=Unit.RATIO))
    assert points == "+10.0 points, -5.00 points to +20.0 points, margin 10 points"
    bound = show_numbers(replace(CHECK, scale=Scale.ABSOLUTE, harm=0.1, lower=0.05))
    assert bound == "100 ms, 50.0 ms to 200 ms, bound 100 ms"
    close = replace(CHECK, scale=Scale.ABSOLUTE, harm=0.5003, lower=0.5001, upper=0.6, margin=0.5)
    assert show_numbers(close) == "500.3 ms, 500.1 ms to 600 ms, bound 500 ms"
    assert (display.change(close, 0.5003), display.margin(close)) == ("500.3 ms", "≤ 500 ms")
    for missing in ("harm", "lower", "upper"):
        assert show_numbers(replace(CHECK, **{missing: None})) == CHECK.reason  # type: ignore[arg-type]  # by name
