"""Numbers that a store keeps, held against those that the records make."""

from dataclasses import replace

import pytest

from benchgate.gate.summary.metric_rows import Mismatch, mismatches, missing_rows
from benchgate.model.deployment import Arm
from benchgate.model.run import MetricRow

ROW = MetricRow(Arm.CANDIDATE, "request_throughput", None, "c4", None, 14.0, 5, 12.0, 16.0)


@pytest.mark.parametrize(
    "changed", [{"value": 14.001}, {"n": 6}, {"lower": 11.0}, {"upper": 17.0}, {"lower": None, "upper": None}]
)
def test_number_that_was_altered_is_unlike_what_its_records_make(changed: dict[str, float | None]) -> None:
    kept = replace(ROW, **changed)  # type: ignore[arg-type]  # fields of it
    assert mismatches([kept], [ROW]) == [Mismatch(kept, ROW)]


def test_number_that_no_record_makes_is_unlike() -> None:
    other = replace(ROW, stage="c8")
    assert mismatches([ROW, other], [ROW]) == [Mismatch(other, None)]


def test_last_bits_and_what_is_not_kept_are_no_difference() -> None:
    assert mismatches([replace(ROW, value=14.0 * (1 + 1e-12))], [ROW, replace(ROW, stage="c8")]) == []
    bare = replace(ROW, lower=None, upper=None)
    assert mismatches([bare], [bare]) == []


def test_what_the_records_make_and_nobody_keeps_is_lacking() -> None:
    other = replace(ROW, stage="c8")
    assert missing_rows([replace(ROW, value=99.0)], [ROW, other]) == [other]
    assert missing_rows([ROW, other], [ROW]) == []
