"""By which level of a run a fleet is sized, and what is told of the others."""

from __future__ import annotations

from dataclasses import replace

import pytest

from benchgate.model.deployment import Arm
from benchgate.model.run import MetricRow
from benchgate.report.sizing import NamedRun, RunSeen, sizing_document, sizing_text
from benchgate.sizing.fleet import OUTPUT_TOKENS, Demand, Replica, SizingInput, size_demand
from benchgate.sizing.operating_point import (
    ExcludedLevel,
    LoadLevel,
    OperatingPoint,
    QueueTrend,
    choose_operating_point,
    known_levels,
    levels_of,
    lightest_level,
)
from tests.core.test_sizing import CLASSES, LEVELS, SUITE, a_suite, level

ARM = Arm.CANDIDATE
ROW = LoadLevel("c8", 700.0, 630.0, 14.0, 12.0, 0.955, 0.95, 2.0)
OPEN = SUITE.replace("{stage: c4, concurrency: 4,", "{stage: r4, rate: 4/s,")


def chosen(rows: list[MetricRow], text: str = SUITE, stage: str | None = None) -> OperatingPoint | str:
    levels = levels_of(rows, a_suite(text), ARM)
    assert not isinstance(levels, str)
    return choose_operating_point(levels, ARM, stage)


def test_a_level_without_a_miss_is_not_said_to_miss_its_slo_and_how_many_would_show_it_is_named() -> None:
    seen = replace(ROW, goodput_lower=0.926, goodput=1.0, requests=48)
    assert (
        seen.not_held == "is not shown to hold its SLO (48 of 48 requests good, 72 needed without a miss; target 95 %)"
    )
    missed = replace(seen, goodput=0.5, misses=True)
    assert missed.not_held == "does not hold its SLO (24 of 48 requests good, shown to miss the target 95 %)"


def test_others_are_left_out_with_the_reason() -> None:
    found = chosen([*LEVELS])
    assert isinstance(found, OperatingPoint)
    assert (found.row.stage, found.missed_at, found.by_name) == ("c8", None, False)
    assert found.left_out == (
        ExcludedLevel("c4", "holds, at 400 output tokens/s"),
        ExcludedLevel(
            "c16", "is not shown to hold its SLO (480 of 500 requests good, goodput 93.0 % at least, target 95 %)"
        ),
    )


def test_a_suite_without_any_load_has_no_level_to_choose() -> None:
    suite = a_suite(SUITE)
    found = levels_of([*LEVELS], suite.model_copy(update={"load": None}), ARM)
    assert found == "the suite has no stage of load whose rate could be read; add one to `load.sweep`"


def test_level_with_less_load_that_did_not_hold_is_told_as_one() -> None:
    found = chosen([*level("c4", 400, (0.9, 0.8)), *LEVELS[3:6]])  # 16 inside, and 28 at c8
    assert isinstance(found, OperatingPoint)
    assert found.missed_at is None
    low, missing = found.left_out
    assert low.why.endswith("though it has less load than this one")
    assert (missing.stage, missing.why) == (
        "c16",
        "its tokens, requests and goodput were not all measured, with limits",
    )


def test_arrivals_by_a_rate_stand_before_a_closed_loop() -> None:
    rows = [*level("r4", 400, (0.99, 0.97)), *LEVELS[3:]]
    found = chosen(rows, OPEN)
    assert isinstance(found, OperatingPoint)
    assert (found.row.stage, found.row.is_open, found.missed_at) == ("r4", True, None)
    assert "is a closed loop, whose rate is no arrival rate" in found.left_out[0].why
    closed = chosen([*level("r4", 400, (0.9, 0.8)), *LEVELS[3:]], OPEN)
    assert isinstance(closed, OperatingPoint)
    assert (closed.row.stage, closed.row.is_open) == ("c8", False)


def test_only_an_open_level_that_is_shown_to_miss_limits_what_an_open_one_carries() -> None:
    held, miss = replace(ROW, stage="r4", is_open=True), replace(ROW, stage="r9", is_open=True, misses=True)
    beyond = replace(miss, goodput_lower=0.1, requests_per_s=40.0, tokens_per_s=1200.0)
    unsure = replace(beyond, misses=False)
    closed = replace(beyond, stage="c9", is_open=False, goodput_lower=0.97, misses=False)

    def missed_at(*rows: LoadLevel) -> str | None:
        found = choose_operating_point({row.stage: row for row in (held, *rows)}, ARM)
        assert isinstance(found, OperatingPoint)
        assert found.row is held
        return found.missed_at

    assert missed_at(closed) is None  # faster, and holds: it says nothing of rates
    assert missed_at(replace(closed, misses=True, goodput_lower=0.1)) is None
    assert missed_at(unsure) is None
    assert missed_at(beyond, closed) == "r9"
    assert missed_at(replace(beyond, requests_per_s=1.0, misses=False)) is None  # less load: it is not beyond
    assert missed_at(replace(beyond, kind=1)) is None  # other requests: it is not beyond either


def levels(*rows: LoadLevel) -> dict[str, LoadLevel | str]:
    return {row.stage: row for row in rows}


HELD = replace(ROW, stage="r16", is_open=True, offered_load=16.0)
MISSED = replace(ROW, stage="r8", is_open=True, offered_load=8.0, goodput_lower=0.1, misses=True, e2e_mean_s=20.0)


def test_what_held_is_not_counted_on_where_the_same_requests_with_less_load_are_shown_not_to() -> None:
    """More were inside at the lower rate, for it was in trouble: what was asked for says which rate is lower."""
    low = replace(HELD, stage="r4", offered_load=4.0, tokens_per_s=100.0)
    said = "holds, but r8, the same requests with less load, is shown to miss its SLO: one result is chance"
    found = choose_operating_point(levels(low, MISSED, HELD), ARM)
    assert isinstance(found, OperatingPoint)
    assert (found.row.stage, found.missed_at, found.left_out[1].why) == ("r4", "r8", said)
    none = choose_operating_point(levels(MISSED, HELD), ARM)
    assert isinstance(none, str)
    assert "nearest is r8" in none
    assert choose_operating_point(levels(MISSED, HELD), ARM, "r16") == (
        f"nothing is sized by stage r16: it {said}; measure both again"
    )
    for other in (replace(MISSED, kind=1), replace(MISSED, is_open=False), replace(MISSED, misses=False)):
        found = choose_operating_point(levels(other, HELD), ARM)
        assert isinstance(found, OperatingPoint)
        assert found.row.stage == "r16"


def test_closed_loop_is_no_operating_point_where_arrivals_at_no_higher_a_rate_are_shown_to_miss() -> None:
    closed = replace(ROW, stage="c16", offered_load=16.0)  # 14 requests/s
    for miss in (MISSED, replace(MISSED, kind=1), replace(MISSED, offered_load=14.0)):
        for stage in (None, "c16"):
            found = choose_operating_point(levels(miss, closed), ARM, stage)
            assert isinstance(found, str)
            assert "c16" in found
            assert "r8, the same requests at no higher a rate, is shown to miss its SLO" in found
        lower = replace(closed, stage="c4", requests_per_s=3.0, offered_load=4.0)
        found = choose_operating_point(levels(miss, closed, lower), ARM)
        assert isinstance(found, OperatingPoint)
        assert (found.row.stage, found.missed_at) == ("c4", "r8")
        assert found.left_out[1].why.startswith("holds in a closed loop at 14.0 requests/s, but r8")


def test_arrivals_that_miss_leave_a_closed_loop_alone_where_their_rate_is_higher_unknown_or_of_other_requests() -> None:
    closed = replace(ROW, stage="c16", offered_load=16.0, e2e_mean_s=None)
    for change, missed_at in (
        ({"offered_load": 20.0}, "r8"), ({"offered_load": None}, None), ({"requests_kind": 1, "kind": 1}, None),
        ({"misses": False}, None),
    ):  # fmt: skip
        found = choose_operating_point(levels(replace(MISSED, **change), closed), ARM)
        assert isinstance(found, OperatingPoint)
        assert (found.row.stage, found.missed_at) == ("c16", missed_at)


def test_levels_of_which_nothing_orders_them_are_neither_more_nor_less() -> None:
    closed = replace(MISSED, is_open=False, e2e_mean_s=None, tokens_per_s=1.0)
    assert not closed.has_less_load_than(HELD)
    assert not HELD.has_less_load_than(closed)
    assert lightest_level([HELD, closed]) is HELD
    assert lightest_level([HELD, MISSED]) is MISSED
    assert lightest_level([]) is None


def test_level_of_other_requests_is_told_as_one() -> None:
    found = choose_operating_point(
        levels(HELD, replace(ROW, stage="long", is_open=True, kind=1, tokens_per_s=90.0)), ARM
    )
    assert isinstance(found, OperatingPoint)
    assert found.left_out[0].why == (
        "holds, at 90.0 output tokens/s, with another workload, arrival process, action or SLO; if that is your"
        " demand, select it with --stage"
    )


def test_stages_are_of_one_kind_where_they_ask_for_the_same() -> None:
    for changed in ("concurrency: 16, output: 500", "rate: 16/s, arrival: constant"):
        text = OPEN.replace("concurrency: 16", changed)
        found = levels_of([*level("r4", 400, (0.99, 0.97)), *LEVELS[3:]], a_suite(text), ARM)
        assert not isinstance(found, str)
        assert [(row.kind, row.offered_load) for row in known_levels(found)] == [(0, 4.0), (0, 8.0), (1, 16.0)]
        assert [row.requests_kind for row in known_levels(found)] == [0, 0, int("output" in changed)]


def test_level_at_which_requests_pile_up_does_not_hold_whatever_its_goodput() -> None:
    rows = [*level("r4", 400, (0.99, 0.97)), *LEVELS[3:6]]
    piling = levels_of(rows, a_suite(OPEN.replace("rate: 4/s", "rate: 20/s")), ARM, piling_up=["r4"])
    assert not isinstance(piling, str)
    found = choose_operating_point(piling, ARM)
    assert isinstance(found, OperatingPoint)
    assert (found.row.stage, found.left_out[0].why) == (
        "c8",
        "does not hold its SLO (its requests piled up)",
    )
    assert "shown to miss the target" in replace(MISSED, piles_up=True, misses=True).not_held
    alone = choose_operating_point({"r4": piling["r4"]}, ARM)
    assert isinstance(alone, str)
    assert alone.endswith("at r4 its requests piled up; measure less load")


def test_level_misses_where_its_whole_interval_is_below_the_target() -> None:
    rows = [replace(row, upper=0.94) if row.name == "goodput" else row for row in level("c16", 900, (0.9, 0.8))]
    for of_it, missed_at in ((rows, "c16"), (level("c16", 900, (0.9, 0.8)), None)):
        found = chosen([*LEVELS[:6], *of_it])
        assert isinstance(found, OperatingPoint)
        assert (found.row.stage, found.missed_at) == ("c8", missed_at)


def test_rate_that_was_offered_is_never_called_full_and_no_limit_unless_one_beyond_misses() -> None:
    row, asked = replace(ROW, stage="r4", is_open=True), replace(QUESTION, replica=Replica(700, None, 4.0))
    offered = sizing_text(size_demand(asked), RunSeen(OperatingPoint(row)))
    assert "Fully used" not in offered
    assert "Always at this load, 1M output tokens cost $1.59." in offered
    assert "The next open level is not shown to miss its SLO" in offered
    assert sizing_document(size_demand(asked), RunSeen(OperatingPoint(row)))["full_usd_per_million_tokens"] is None
    limited = sizing_text(
        size_demand(asked), RunSeen(OperatingPoint(row, missed_at="r9"), searched="its search found 5 to 6")
    )
    assert "The capacity lies between this and r9, which is shown to miss its SLO.\nIts search found" in limited
    assert "may carry much more" not in limited


def test_level_that_was_watched_too_briefly_to_show_a_queue_is_told_as_one() -> None:
    brief = RunSeen(OperatingPoint(replace(ROW, is_open=True)), watched=QueueTrend(6.0, 0.7, piles_up=False))
    assert (
        "Its blocks lasted 6.00 s each, less than 10 times the request time of 700 ms: too"
        " short to show that no queue grows at this rate."
    ) in text(brief)
    document = sizing_document(size_demand(QUESTION), brief)
    assert document["watched"] == {"window_s": 6.0, "stay_s": 0.7, "piles_up": False, "is_brief": True}
    assert "were watched for" not in text(replace(brief, watched=QueueTrend(7.0, 0.7, piles_up=False)))


def test_stage_that_is_named_is_taken_where_it_holds() -> None:
    found = chosen([*LEVELS], stage="c4")
    assert isinstance(found, OperatingPoint)
    assert (found.row.stage, found.by_name) == ("c4", True)
    assert found.left_out[0].why == "holds, at 700 output tokens/s"


@pytest.mark.parametrize(
    ("stage", "said"),
    [
        ("c81", "--stage is 'c81', which its suite does not have; did you mean c8? It has c4, c8, c16"),
        ("night", "--stage is 'night', which its suite does not have. It has c4, c8, c16"),
        (
            "c16",
            "it is not shown to hold its SLO (480 of 500 requests good, goodput 93.0 % at least, target 95 %)",
        ),
    ],
)
def test_stage_that_cannot_be_counted_on_is_refused(stage: str, said: str) -> None:
    found = chosen([*LEVELS], stage=stage)
    assert isinstance(found, str)
    assert said in found


def test_stage_without_an_slo_or_without_numbers_is_refused_and_left_out() -> None:
    bare = CLASSES.replace("slo: {ttft: 500ms, target: 95%}\n", "")
    two = bare.replace("gate:", "    - {stage: c2, workload: short, concurrency: 2, requests: 100}\ngate:")
    found = chosen(level("mix/batch", 200, (0.99, 0.96)), two)
    assert isinstance(found, OperatingPoint)
    assert found.left_out == (ExcludedLevel("c2", "it has no SLO"),)
    said = chosen(level("mix/batch", 200, (0.99, 0.96)), two, "c2")
    assert said == "nothing is sized by stage c2: it has no SLO"


def test_no_level_that_holds_is_no_choice() -> None:
    found = chosen(LEVELS[6:])
    assert isinstance(found, str)
    assert "nearest is c16" in found


QUESTION = SizingInput(OUTPUT_TOKENS, Demand(5000), Replica(700))
RUN = NamedRun("0190b2c4-7d1e", "nightly", "sized", "2026-11-20", "q8_0", "candidate", "PASS")


def text(seen: RunSeen) -> str:
    return sizing_text(size_demand(QUESTION), seen)


def test_answer_names_run_suite_candidate_and_verdict() -> None:
    assert text(RunSeen(OperatingPoint(ROW), RUN)).splitlines()[:2] == [
        "Run 0190b2c4-7d1e (nightly) of suite sized, 2026-11-20: candidate q8_0. Its verdict is PASS.",
        "One replica serves 700 output tokens/s.",
    ]
    bad = text(RunSeen(OperatingPoint(ROW), replace(RUN, label=None, outcome="BLOCK")))
    assert "Run 0190b2c4-7d1e of suite sized" in bad
    assert "Its verdict is BLOCK.\nThat is not PASS: read why (`benchgate report 0190b2c4-7d1e`), and size by" in bad
    base = text(RunSeen(OperatingPoint(ROW), replace(RUN, arm="baseline", outcome="BLOCK")))
    assert "The verdict on its candidate is BLOCK." in base
    document = sizing_document(size_demand(QUESTION), RunSeen(OperatingPoint(ROW), RUN))
    assert document["run"] == {
        "id": "0190b2c4-7d1e", "label": "nightly", "suite": "sized", "day": "2026-11-20", "deployment": "q8_0",
        "arm": "candidate", "outcome": "PASS",
    }  # fmt: skip


def test_answer_says_how_its_level_was_chosen_and_what_a_closed_loop_is() -> None:
    others = (ExcludedLevel("c4", "holds, at 400 output tokens/s"),)
    closed = text(RunSeen(OperatingPoint(ROW, others)))
    assert "That is stage c8, the fastest whose goodput" in closed
    assert "It is a closed loop" in closed
    assert "Not by c4: holds, at 400 output tokens/s." in closed
    assert "with more callers the throughput may be higher" in closed
    assert "at least this" not in closed  # its throughput is no arrival rate
    opened = text(RunSeen(OperatingPoint(replace(ROW, is_open=True))))
    assert "the fastest open loop whose goodput" in opened
    assert "closed loop" not in opened
    assert "Always at this load" not in closed
    assert "That is stage c8, selected by --stage, whose goodput" in text(RunSeen(OperatingPoint(ROW, by_name=True)))


def test_answer_says_what_was_overridden_of_measured() -> None:
    instead = {
        "tokens_per_request": (100.0, 50.0), "residence_s": (5.0, 2.0), "overhead_ratio": (0.1, 0.25),
        "usd_per_hour": (4.0, 2.0), "cold_start_s": (60.0, 70.0), "slots": (8, 28),
    }  # fmt: skip
    seen = RunSeen(OperatingPoint(ROW), overridden=instead)
    assert (
        "Stated, not measured: `output_tokens` 100 (the run: 50.0), `request_time` 5.00 s (the run: 2.00 s),"
        " `overhead` 10.0 % (the run: 25.0 %), `price` $4.00/h (the run: $2.00/h),"
        " `cold_start` 60.0 s (the run: 70.0 s), `slots` 8 (the run: 28)."
    ) in text(seen)
    document = sizing_document(size_demand(QUESTION), seen)
    assert document["overridden"]["residence_s"] == {"stated": 5.0, "measured": 2.0}  # type: ignore[index]  # JSON


def test_answer_says_what_its_figures_rest_on() -> None:
    kept = text(RunSeen(OperatingPoint(ROW), from_records=False))
    assert "these are the stored figures, unverified" in kept
    assert "3 of its stored figures differ from its raw records" in text(RunSeen(OperatingPoint(ROW), unlike=3))
    document = sizing_document(size_demand(QUESTION), RunSeen(OperatingPoint(ROW), from_records=False))
    assert document["figures"] == {"from": "stored figures", "stored_unlike": 0}


def test_answer_says_that_the_load_was_measured_with_less_care() -> None:
    seen = RunSeen(OperatingPoint(ROW), care=("the policy widens the client's bounds: cpu 95 % (usual 70 %)",))
    assert "The policy widens the client's bounds: cpu 95 % (usual 70 %)." in text(seen)
