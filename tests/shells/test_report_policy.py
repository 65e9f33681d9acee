"""How a report shows a change that is harm either way, and what is measured in tokens."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import cast

import pytest

from benchgate.gate.judge import judge
from benchgate.gate.reasons import show_margin
from benchgate.model.verdict import CheckResult, Scale, Unit, Verdict
from benchgate.report import display
from benchgate.report.checks import Strip, check_rows
from benchgate.report.document import verdict_document
from benchgate.report.sections.paired import paired_checks
from tests.fakes.evidence import run, verdict
from tests.fakes.measured import SuiteText, measured


def lengths(harm: float) -> CheckResult:
    """Answers that changed by this much, of which 10 % either way is allowed."""
    whole = verdict()
    return replace(
        whole.checks[0], metric="output_length", unit=Unit.TOKENS, scale=Scale.LOG_RATIO, two_sided=True,
        baseline=100.0, candidate=100.0 * math.exp(harm), harm=harm, lower=harm - 0.02, upper=harm + 0.02,
        margin=math.log1p(0.10),
    )  # fmt: skip


MINUS = "\N{MINUS SIGN}"


def row(check: CheckResult) -> tuple[str, str, str, Strip | None]:
    whole: Verdict = replace(verdict(), checks=(check,))
    (shown,) = check_rows(whole).all
    return shown.candidate, shown.allowed, shown.direction, shown.strip


def test_a_change_either_way_is_shown_as_one_and_neither_better_nor_worse() -> None:
    candidate, allowed, direction, longer = row(lengths(0.05))
    assert candidate == "105 tokens"
    assert allowed == f"a change of {MINUS}9.09 to +10 %"
    assert direction == "higher"
    *_, shorter = row(lengths(-0.05))
    assert longer is not None
    assert shorter is not None
    assert longer.estimate == shorter.estimate
    assert shorter.used == longer.used == "0.52\N{MULTIPLICATION SIGN}"
    assert display.direction(lengths(0.0)) == "equal"


@pytest.mark.parametrize("metric", ["output_length", "output_throughput"])
def test_the_margins_of_both_sides_are_those_that_are_held(metric: str) -> None:
    """Of ln(1.1) on either side a fall of 9.5 % is beyond, and a rise of 9.5 % is not, whichever of them is harm."""
    check = replace(lengths(0.05), metric=metric)
    assert display.margin(check) == f"{MINUS}9.09 to +10 %"
    assert display.allowed(check) == f"a change of {MINUS}9.09 to +10 %"
    assert show_margin(check.margin, check.scale, check.unit, two_sided=True) == "-9.09 % to +10 %"


def test_the_chart_of_blocks_draws_the_margins_of_both_sides() -> None:
    suite = SuiteText([{"metric": "ttft", "margin": "10%", "direction": "either"}]).suite()
    evidence = measured(suite)
    (found, *_) = paired_checks(evidence, judge(suite, evidence), suite)
    assert found.margins == pytest.approx((-100 / 11, 10))
    assert found.margin == f"{MINUS}9.09 % to +10 %"


@pytest.mark.parametrize(
    ("share", "used"), [(0.996, "0.996"), (1.0, "1"), (1.02, "1.02"), (1.0004, "1.0004"), (2.04, "2"), (-1.0, "0")]
)
def test_what_goes_beyond_the_allowance_is_not_shown_as_all_of_it(share: float, used: str) -> None:
    check = replace(
        lengths(0.05), metric="error_rate", unit=Unit.RATIO, scale=Scale.DIFFERENCE, two_sided=False, margin=0.05,
        harm=0.05 * share,
    )  # fmt: skip
    strip = row(check)[3]
    assert strip is not None
    assert strip.used == f"{used}\N{MULTIPLICATION SIGN}"


@pytest.mark.parametrize("two_sided", [True, False])
def test_a_document_says_so_only_where_it_is_so(two_sided: bool) -> None:
    whole = replace(verdict(), checks=(replace(lengths(0.05), two_sided=two_sided),))
    document = verdict_document(run(), whole)
    (written,) = cast("list[dict[str, object]]", document["checks"])
    assert ("two_sided" in written) is two_sided
