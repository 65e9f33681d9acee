"""When a candidate has let the traffic in the background wait: at each bound, and beside each kind of check of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from benchgate.gate.comparison import UntiedRuns
from benchgate.gate.guards import run_guards
from benchgate.model.deployment import Arm
from benchgate.model.records import RequestColumns
from benchgate.model.run import Evidence, LoadObservation
from benchgate.suite.schema import Suite
from tests.core.test_gate_classes import mixed, mixed_evidence
from tests.fakes.drills import Line, drill
from tests.fakes.guards import of_run

ERRORS: Line = {"metric": "error_rate", "max": "20%"}
SUITE = mixed({"metric": "ttft", "max": "100ms"}, ERRORS)
EVIDENCE = mixed_evidence(SUITE, {})


def answered(theirs: Sequence[int], ours: Sequence[int], place: str = "mix/batch") -> Evidence:
    """So many requests answered on each arm in each block there; what else there was failed."""
    counts = {Arm.BASELINE: theirs, Arm.CANDIDATE: ours}

    def kept(o: LoadObservation) -> LoadObservation:
        if o.stage != place:
            return o
        good = np.arange(len(o.requests)) < counts[o.arm][o.block]
        errors = [None if ok else "http_5xx" for ok in good]
        columns = {**o.requests.to_columns(), "error": errors}
        return replace(o, requests=RequestColumns.from_columns(columns))

    return replace(EVIDENCE, load=tuple(kept(o) for o in EVIDENCE.load if o.block < len(theirs)))


def trips(evidence: Evidence, suite: Suite = SUITE) -> bool:
    """Whether it does; it invalidates nothing by itself."""
    (found,) = of_run(evidence, suite, "background-alike")
    assert (found.id, found.invalidates) == ("background-alike", ())
    assert bool(found.remedy) is found.tripped
    return found.tripped


@pytest.mark.parametrize(
    ("theirs", "ours", "tripped"),
    [
        ([30] * 8, [20] * 8, False),  # two thirds
        ([30] * 8, [20] * 7 + [19], True),
        ([30] * 8, [0] * 8, True),
        ([6, 6], [2, 2], False),  # 8 less of 16: two standard deviations of chance
        ([6, 7], [2, 2], True),
        ([40, 40], [0, 40], False),  # one block of two: their mean may be anything
        ([40] * 8, [0, 0, 0, 0, 10, 11, 10, 11], True),
        ([40], [0], False),
        ([20] * 8, [30] * 8, False),
    ],
)
def test_a_third_less_beyond_chance_in_its_counts_and_in_its_blocks(
    theirs: list[int], ours: list[int], tripped: bool
) -> None:
    assert trips(answered(theirs, ours)) is tripped


def test_a_candidate_measured_alone_is_compared_with_the_stored_run() -> None:
    apart = UntiedRuns(answered([10] * 8, [10] * 8), answered([30] * 8, [30] * 8))
    found = [one for one in run_guards(apart, SUITE) if one.id == "background-alike"]
    assert [one.tripped for one in found] == [False, False, True]  # in each of the runs, and between them


STARVED = answered([30] * 8, [10] * 8)


@pytest.mark.parametrize(
    ("line", "excused"),
    [
        ({"metric": "e2e", "class": "batch", "max": "9s"}, True),
        ({"metric": "e2e", "stage": "mix", "class": "batch", "max": "9s"}, True),
        ({"metric": "output_throughput", "class": "batch", "min": "1/s"}, True),
        ({"metric": "e2e", "class": "batch", "max": "9s", "required": False}, False),
        ({"metric": "error_rate", "class": "batch", "max": "90%"}, False),  # of which it has none
        ({"metric": "e2e", "class": "chat", "max": "9s"}, False),
        ({"metric": "e2e", "stage": "mix", "max": "9s"}, False),  # which looks at no background
    ],
)
def test_only_a_required_check_that_names_the_class_holds_its_speed_to_anything(line: Line, excused: bool) -> None:
    assert trips(STARVED, mixed(ERRORS, line)) is not excused


def test_a_class_that_is_judged_excuses_no_other_in_the_background() -> None:
    text = mixed(ERRORS, {"metric": "e2e", "class": "first", "max": "9s"}).to_stored()
    classes = text["load"]["sweep"][0]["classes"]
    text["load"]["sweep"][0]["classes"] = {"first": classes["batch"], **classes}
    assert trips(STARVED, Suite.from_stored(text))


def test_without_traffic_in_the_background_there_is_no_such_guard() -> None:
    assert of_run(EVIDENCE, drill(ERRORS), "background-alike") == []
