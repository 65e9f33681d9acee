"""Two stored runs by their numbers alone: everything is shown, and nothing of it promotes."""

from __future__ import annotations

from dataclasses import replace
from html import unescape

import pytest

from benchgate.gate.summary.metric_rows import number_pairs
from benchgate.model.deployment import Arm
from benchgate.model.run import MetricRow, Run
from benchgate.report.stored_numbers import (
    StoredNumbers,
    StoredSide,
    numbers_document,
    numbers_markdown,
    numbers_text,
)
from tests.fakes.measured import SuiteText, measured

RUN = measured(SuiteText([{"metric": "ttft", "margin": "10%"}]).suite()).run


def row(arm: Arm, value: float, stage: str | None = "c4", name: str = "ttft") -> MetricRow:
    return MetricRow(arm, name, None, stage, None if stage else "t", value, 5, value * 0.9, value * 1.1)


def side(run: Run, outcome: str | None, removed: bool = True) -> StoredSide:
    checks = [{"id": "ttft", "outcome": outcome, "harm": 0.01, "lower": 0.0, "upper": 0.02, "n": 5}]
    verdict = {"outcome": outcome, "checks": checks} if outcome else None
    when, why = ("2026-11-21T00:00:00Z", "benchgate store gc --keep-last 3") if removed else (None, None)
    return StoredSide(run, verdict, when, why)


def numbers(outcome: str | None = "PASS", **changes: object) -> StoredNumbers:
    other = replace(RUN, id="run-9", **changes)  # type: ignore[arg-type]  # fields by name
    pairs = number_pairs(
        [row(Arm.CANDIDATE, 0.1), row(Arm.BASELINE, 0.1)], [row(Arm.CANDIDATE, 0.2), row(Arm.BASELINE, 0.16)]
    )
    return StoredNumbers(side(other, outcome), side(RUN, "PASS", removed=False), pairs)


def test_numbers_of_good_requests_by_another_slo_have_a_note() -> None:
    slo = {**RUN.suite, "slo": {"ttft_s": 0.2}}
    assert not any("slo" in note for note in numbers(suite=slo).notes)  # of a latency alone
    goodput = [row(Arm.CANDIDATE, 0.9, name="goodput")]
    for suite, is_noted in ((slo, True), (RUN.suite, False)):
        of = replace(numbers(suite=suite), pairs=number_pairs(goodput, goodput))
        assert ("the two runs have another `slo`, and with it other good requests" in [*of.notes]) is is_noted


def test_a_change_is_told_by_itself_and_beside_the_baselines_of_both_runs() -> None:
    (pair,) = numbers().pairs
    assert pair.change_ratio == pytest.approx(1.0)
    assert pair.change_beside_baselines_ratio == pytest.approx(0.25)


def test_what_one_run_lacks_is_told_as_missing_and_no_change_is_made_of_it() -> None:
    theirs = [row(Arm.CANDIDATE, 0.1), row(Arm.CANDIDATE, 0.0, name="error_rate")]
    ours = [row(Arm.CANDIDATE, 5.0, name="e2e"), row(Arm.CANDIDATE, 0.1, name="error_rate")]
    pairs = {pair.name: pair for pair in number_pairs(theirs, ours)}
    assert list(pairs) == ["e2e", "error_rate", "ttft"]
    assert (pairs["e2e"].reference, pairs["ttft"].judged) == (None, None)
    assert [pair.change_ratio for pair in pairs.values()] == [None] * 3
    assert [pair.change_beside_baselines_ratio for pair in pairs.values()] == [None] * 3


def test_a_candidate_that_did_nothing_then_is_not_divided_by() -> None:
    theirs = [row(Arm.CANDIDATE, 0.0), row(Arm.BASELINE, 0.1)]
    ours = [row(Arm.CANDIDATE, 0.2), row(Arm.BASELINE, 0.1)]
    (pair,) = number_pairs(theirs, ours)
    assert (pair.change_ratio, pair.change_beside_baselines_ratio) == (None, None)


def test_only_times_and_rates_are_told_beside_a_baseline() -> None:
    both = [row(arm, 0.9, stage=None, name="accuracy") for arm in Arm]
    (pair,) = number_pairs(both, both)
    assert (pair.judged_baseline, pair.change_ratio) == (None, 0.0)
    assert pair.change_beside_baselines_ratio is None


@pytest.mark.parametrize(
    ("name", "before", "after", "change", "beside"),
    [
        ("error_rate", 0.02, 0.04, "+2.00 points (+1.55 points to +2.45 points)", "+2.00 points"),
        ("goodput", 0.99, 0.98, "-1.00 points (-14.9 points to +12.9 points)", "-1.00 points"),
        ("flips", 0.0, 0.02, "+2.00 points (+1.80 points to +2.20 points)", "+2.00 points"),
        ("shadow_excess", -0.01, 0.03, "+4.00 points (+3.68 points to +4.32 points)", "+4.00 points"),
        ("kld", -0.01, 0.03, "-", "-"),
    ],
)
def test_shares_change_by_points_and_nothing_is_divided_by_what_is_not_above_0(
    name: str, before: float, after: float, change: str, beside: str
) -> None:
    base = row(Arm.BASELINE, 0.5, name=name)
    (pair,) = number_pairs([row(Arm.CANDIDATE, before, name=name), base], [row(Arm.CANDIDATE, after, name=name), base])
    assert pair.change_ratio is None or (pair.change_ratio > 0) is (after > before)
    (cells,) = [line for line in numbers_markdown(replace(numbers(), pairs=(pair,))).splitlines() if "c4" in line]
    told = [unescape(cell.strip()) for cell in cells.split("|")][4:-1]
    assert told == [change, *([beside] if beside != "-" else [])]


@pytest.mark.parametrize("outcome", ["PASS", "WARN", "BLOCK", None])
def test_whatever_was_decided_then_nothing_is_promoted_now(outcome: str | None) -> None:
    document = numbers_document(numbers(outcome))
    assert (document["outcome"], document["promotes"], document["exit_code"]) == ("INCONCLUSIVE", False, 11)
    assert "raw records were removed (of run run-9 on 2026-11-21)" in str(document["reason"])
    against = document["against"]
    assert isinstance(against, dict)
    assert (against["outcome"], against["removed_by"]) == (outcome, "benchgate store gc --keep-last 3")


def test_text_and_markdown_say_first_that_nothing_is_decided() -> None:
    text, markdown = numbers_text(numbers()), numbers_markdown(numbers(measurement_sha256="other"))
    assert text.startswith("◆ INCONCLUSIVE: raw records were removed")
    assert "100 ms    200 ms     +100 % (+73.5 % to +131 %)" in text
    assert "+100 %" in text
    assert "+25.0 %" in text
    assert "did not measure the same" in markdown
    assert "did not measure the same" not in text
    assert markdown.count("| --- |") == 0
    assert "| ttft c4 |" in markdown.replace("&#95;", "_")


def test_what_others_wrote_cannot_command_a_terminal_or_break_a_table() -> None:
    hostile = replace(numbers(), pairs=number_pairs([], [row(Arm.CANDIDATE, 1.0, stage="a|b\x1b[2J\n::error::x")]))
    text, markdown = numbers_text(hostile), numbers_markdown(hostile)
    assert "\x1b" not in text + markdown
    assert not any(line.startswith("::") for line in text.splitlines())
    (line,) = [line for line in markdown.splitlines() if "2J" in line]
    assert line.count("|") == 5
