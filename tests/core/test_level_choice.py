"""By which level of a run a fleet is sized, and what is told of the others."""

from __future__ import annotations

from dataclasses import replace

import pytest

from benchgate.cost.demand import Demand
from benchgate.cost.fleet import Replica
from benchgate.cost.sizing import OUTPUT_TOKENS, Question, sizing
from benchgate.gate.best_row import BestRow, levels_of
from benchgate.gate.level_choice import Choice, LeftOut, choose
from benchgate.model.deployment import Arm
from benchgate.model.run import MetricRow
from benchgate.report.sizing import sizing_document, sizing_text
from benchgate.report.sizing_run import NamedRun, RunSeen
from tests.core.test_sizing import CLASSES, LEVELS, SUITE, a_suite, level

ARM = Arm.CANDIDATE
OPEN = SUITE.replace("{stage: c4, concurrency: 4,", "{stage: r4, rate: 4/s,")


def chosen(rows: list[MetricRow], text: str = SUITE, stage: str | None = None) -> Choice | str:
    levels = levels_of(rows, a_suite(text), ARM)
    assert not isinstance(levels, str)
    return choose(levels, ARM, stage)


def test_others_are_left_out_with_the_reason() -> None:
    found = chosen([*LEVELS])
    assert isinstance(found, Choice)
    assert (found.row.stage, found.missed_at, found.asked_for) == ("c8", None, False)
    assert found.left_out == (
        LeftOut("c4", "holds, at 400 output tokens/s"),
        LeftOut("c16", "not shown to hold its SLO (goodput 93.0 % at least, target 95.0 %)"),
    )


def test_a_suite_without_any_load_has_no_level_to_choose() -> None:
    suite = a_suite(SUITE)
    found = levels_of([*LEVELS], suite.model_copy(update={"load": None}), ARM)
    assert found == "the suite has no stage of load whose rate could be read; add one to `load.sweep`"


def test_level_with_less_load_that_did_not_hold_is_told_as_one() -> None:
    found = chosen([*level("c4", 400, (0.9, 0.8)), *LEVELS[4:8]])  # 16 inside, and 28 at c8
    assert isinstance(found, Choice)
    assert found.missed_at is None
    low, missing = found.left_out
    assert low.why.endswith("though it has less load than this one")
    assert (missing.stage, missing.why) == (
        "c16",
        "its tokens, requests and goodput were not all measured, with limits",
    )


def test_arrivals_by_a_rate_stand_before_a_closed_loop() -> None:
    rows = [*level("r4", 400, (0.99, 0.97)), *LEVELS[4:]]
    found = chosen(rows, OPEN)
    assert isinstance(found, Choice)
    assert (found.row.stage, found.row.is_open, found.missed_at) == ("r4", True, None)
    assert "is a closed loop, whose rate is no rate of arrivals" in found.left_out[0].why
    closed = chosen([*level("r4", 400, (0.9, 0.8)), *LEVELS[4:]], OPEN)
    assert isinstance(closed, Choice)
    assert (closed.row.stage, closed.row.is_open) == ("c8", False)


def test_only_an_open_level_that_is_shown_to_miss_limits_what_an_open_one_carries() -> None:
    held, miss = replace(ROW, stage="r4", is_open=True), replace(ROW, stage="r9", is_open=True, misses=True)
    beyond = replace(miss, goodput_lower=0.1, requests_per_s=40.0, tokens_per_s=1200.0)
    unsure = replace(beyond, misses=False)
    closed = replace(beyond, stage="c9", is_open=False, goodput_lower=0.97, misses=False)

    def missed_at(*rows: BestRow) -> str | None:
        found = choose({row.stage: row for row in (held, *rows)}, ARM)
        assert isinstance(found, Choice)
        assert found.row is held
        return found.missed_at

    assert missed_at(closed) is None  # faster, and holds: it says nothing of rates
    assert missed_at(replace(closed, misses=True, goodput_lower=0.1)) is None
    assert missed_at(unsure) is None
    assert missed_at(beyond, closed) == "r9"
    assert missed_at(replace(beyond, requests_per_s=1.0)) is None  # less load: it is not beyond


def test_level_misses_where_its_whole_interval_is_below_the_target() -> None:
    rows = [replace(row, upper=0.94) if row.name == "goodput_ratio" else row for row in level("c16", 900, (0.9, 0.8))]
    for of_it, missed_at in ((rows, "c16"), (level("c16", 900, (0.9, 0.8)), None)):
        found = chosen([*LEVELS[:8], *of_it])
        assert isinstance(found, Choice)
        assert (found.row.stage, found.missed_at) == ("c8", missed_at)


def test_rate_that_was_offered_is_never_called_full_and_no_limit_unless_one_beyond_misses() -> None:
    row, asked = replace(ROW, stage="r4", is_open=True), replace(QUESTION, replica=Replica(700, None, 4.0))
    offered = sizing_text(sizing(asked), RunSeen(Choice(row)))
    assert "Always full" not in offered
    assert "Loaded like this all the time, 1M output tokens cost $1.59." in offered
    assert "No open level right beyond it is shown to miss its SLO" in offered
    assert "cannot be told apart in what they carry" in offered
    assert sizing_document(sizing(asked), RunSeen(Choice(row)))["full_usd_per_million_tokens"] is None
    limited = sizing_text(sizing(asked), RunSeen(Choice(row, missed_at="r9"), searched="its search found 5 to 6"))
    assert "What it carries lies between this and r9, which is shown to miss its SLO.\nIts search found" in limited
    assert "may carry much more" not in limited


def test_stage_that_is_named_is_taken_where_it_holds() -> None:
    found = chosen([*LEVELS], stage="c4")
    assert isinstance(found, Choice)
    assert (found.row.stage, found.asked_for) == ("c4", True)
    assert found.left_out[0].why == "holds, at 700 output tokens/s"


@pytest.mark.parametrize(
    ("stage", "said"),
    [
        ("c81", "--stage is 'c81', which its suite does not have; did you mean c8? It has c4, c8, c16"),
        ("night", "--stage is 'night', which its suite does not have. It has c4, c8, c16"),
        ("c16", "not shown to hold its SLO (goodput 93.0 % at least, target 95.0 %): what comes through beyond"),
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
    assert isinstance(found, Choice)
    assert found.left_out == (LeftOut("c2", "no SLO with a target is stated for it"),)
    said = chosen(level("mix/batch", 200, (0.99, 0.96)), two, "c2")
    assert said == "nothing is sized by stage c2: no SLO with a target is stated for it"


def test_no_level_that_holds_is_no_choice() -> None:
    found = chosen(LEVELS[8:])
    assert isinstance(found, str)
    assert "nearest is c16" in found


ROW = BestRow("c8", 700.0, 630.0, 14.0, 12.0, 0.955, 0.95, 2.0)
QUESTION = Question(OUTPUT_TOKENS, Demand(5000), Replica(700))
RUN = NamedRun("0190b2c4-7d1e", "nightly", "sized", "2026-11-20", "q8_0", "candidate", "PASS")


def text(seen: RunSeen) -> str:
    return sizing_text(sizing(QUESTION), seen)


def test_answer_names_run_suite_candidate_and_verdict() -> None:
    assert text(RunSeen(Choice(ROW), RUN)).splitlines()[:2] == [
        "Run 0190b2c4-7d1e (nightly) of suite sized, 2026-11-20: candidate q8_0. Its verdict is PASS.",
        "One replica carries 700 output tokens/s.",
    ]
    bad = text(RunSeen(Choice(ROW), replace(RUN, label=None, outcome="BLOCK")))
    assert "Run 0190b2c4-7d1e of suite sized" in bad
    assert "Its verdict is BLOCK.\nThat is not PASS: read why (`benchgate report 0190b2c4-7d1e`), and size by" in bad
    base = text(RunSeen(Choice(ROW), replace(RUN, arm="baseline", outcome="BLOCK")))
    assert "The verdict on its candidate is BLOCK." in base
    document = sizing_document(sizing(QUESTION), RunSeen(Choice(ROW), RUN))
    assert document["run"] == {
        "id": "0190b2c4-7d1e", "label": "nightly", "suite": "sized", "day": "2026-11-20", "deployment": "q8_0",
        "arm": "candidate", "outcome": "PASS",
    }  # fmt: skip


def test_answer_says_how_its_level_was_chosen_and_what_a_closed_loop_is() -> None:
    others = (LeftOut("c4", "holds, at 400 output tokens/s"),)
    closed = text(RunSeen(Choice(ROW, others)))
    assert "That is stage c8, the fastest whose goodput" in closed
    assert "It is a closed loop" in closed
    assert "Not by c4: holds, at 400 output tokens/s." in closed
    assert "it carries at least this, and may carry more" in closed
    opened = text(RunSeen(Choice(replace(ROW, is_open=True))))
    assert "the fastest open loop whose goodput" in opened
    assert "closed loop" not in opened
    assert "Loaded like this all the time" not in closed
    assert "That is stage c8, which --stage names, and whose goodput" in text(RunSeen(Choice(ROW, asked_for=True)))


def test_answer_says_what_was_said_instead_of_measured() -> None:
    instead = {
        "tokens_per_request": (100.0, 50.0), "residence_s": (5.0, 2.0), "overhead_ratio": (0.1, 0.25),
        "usd_per_hour": (4.0, 2.0), "cold_start_s": (60.0, 70.0), "places": (8, 28),
    }  # fmt: skip
    seen = RunSeen(Choice(ROW), said_instead=instead)
    assert (
        "Said, not measured: --output-tokens 100 (the run: 50.0), --request-time 5.00 s (the run: 2.00 s),"
        " --overhead 10.0 % (the run: 25.0 %), --price-per-hour 4.00 (the run: 2.00),"
        " --cold-start 60.0 s (the run: 70.0 s), --places 8 (the run: 28)."
    ) in text(seen)
    document = sizing_document(sizing(QUESTION), seen)
    assert document["said_instead"]["residence_s"] == {"said": 5.0, "measured": 2.0}  # type: ignore[index]  # JSON


def test_answer_says_what_its_figures_rest_on() -> None:
    kept = text(RunSeen(Choice(ROW), from_records=False))
    assert "this rests on the figures that the store kept, held against nothing" in kept
    assert "3 of the figures that the store keeps of it are not what its records make" in text(
        RunSeen(Choice(ROW), unlike=3)
    )
    document = sizing_document(sizing(QUESTION), RunSeen(Choice(ROW), from_records=False))
    assert document["figures"] == {"from": "stored figures", "stored_unlike": 0}


def test_answer_says_that_the_load_was_measured_with_less_care() -> None:
    seen = RunSeen(Choice(ROW), care=("the policy widens the client's bounds: cpu 95 % (usual 70 %)",))
    assert "The policy widens the client's bounds: cpu 95 % (usual 70 %)." in text(seen)
