"""Several candidates' runs in one table: which may be compared, which of them pass, and when none is the cheapest."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import date
from typing import Any

import pytest

from benchgate.errors import UsageError
from benchgate.gate.summary.metric_rows import metric_rows
from benchgate.model.deployment import Arm
from benchgate.model.run import ONLY_PART, QUICK_LOOK, MetricRow, RunStatus
from benchgate.model.verdict import Outcome, Waiver
from benchgate.report.document import verdict_document
from benchgate.report.frontier import frontier_text
from benchgate.sizing.candidates import CandidateRow, CandidateTable, NewerRun, StoredRun, WaivedCheck
from benchgate.sizing.candidates import compare_candidates as as_stored
from benchgate.sizing.frontier import CheapestOption, FrontierPosition, FrontierStatus
from benchgate.sizing.operating_point import GOOD
from benchgate.stats.meta import EstimateWithLimits
from benchgate.suite.loader import parse_suite
from benchgate.suite.schema import Suite
from tests.fakes import evidence as fake
from tests.fakes.right_sized import candidate, one_list

OURS, BASE = Arm.CANDIDATE, Arm.BASELINE
DAY = date(2026, 1, 10)
HALF_USED = {"overhead_ratio": 0.0, "utilisation_ratio": 0.5}


def right_sizing(some: Sequence[StoredRun], **said: Any) -> CandidateTable:
    """The table of runs at the prices of one list."""
    runs = one_list(*(one.run for one in some))
    return as_stored([replace(one, run=run) for one, run in zip(some, runs, strict=True)], **said)


def stored(name: str, outcome: str = "PASS", **changes: Any) -> StoredRun:
    found = candidate(name, **{"label": name, **changes})
    verdict = {"outcome": outcome, "guards": [], "checks": []}
    return StoredRun(found.run, metric_rows(found), verdict, found.quality)


def with_arms(one: StoredRun, terms: Mapping[Arm, Mapping[str, Any]]) -> StoredRun:
    """The same run with other terms of its deployments, and the numbers that follow from them."""
    arms = {arm: replace(deployment, **terms.get(arm, {})) for arm, deployment in one.run.arms.items()}
    found = candidate(arms[OURS].name)
    run = replace(one.run, arms=arms)
    return replace(one, run=run, rows=metric_rows(replace(found, run=run)))


def with_rows(one: StoredRun, change: Callable[[MetricRow], float], name: str, *arms: Arm) -> StoredRun:
    """The same run with rows of this name so many times what they were."""
    rows = [
        replace(row, value=by * row.value, lower=by * (row.lower or 0), upper=by * (row.upper or 0))
        if row.arm in arms and row.name.startswith(name)
        else row
        for row in one.rows
        for by in [change(row)]
    ]
    return replace(one, rows=rows)


def row(found: CandidateTable, name: str) -> CandidateRow:
    (only,) = [one for one in found.rows if one.name == name]
    return only


def test_runs_of_one_hour_and_machine_have_nothing_to_tell() -> None:
    assert right_sizing([stored("q4"), stored("q8")]).notes == ()


def test_what_sets_runs_apart_beside_their_candidates_is_told() -> None:
    here = stored("q4", label="here")
    other = stored("q8", label="other", started_at="2026-01-03T00:00:00Z", environment={"cpus": None, "os": "another"})
    other = replace(other, run=replace(other.run, suite={**other.run.suite, "seed": 8}))
    told = right_sizing([other, here]).notes
    assert [note.split(":")[0] for note in told] == [
        "the suite of here is not that of other",
        "here was measured from another machine than other",
        "measured on 2 days, 2026-01-02 to 2026-01-03",
    ]


def baseline_of(one: StoredRun, **changes: Any) -> StoredRun:
    base = replace(one.run.arms[BASE], **changes)
    return replace(one, run=replace(one.run, arms={**one.run.arms, BASE: base}))


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        (lambda one: baseline_of(one, facts={"engine_version": "b8000"}), "not served as that of q8"),
        (lambda one: replace(one, run=replace(one.run, environment={"cpu": "another"})), "on other hardware"),
        (lambda one: baseline_of(one, price_usd_per_hour=9.0), "paid by another price than that of q8"),
        (lambda one: with_rows(one, lambda _: 0.8, "accuracy", *Arm), "does not answer as that of q8"),
    ],
    ids=["served otherwise", "other hardware", "another price", "other answers"],
)
def test_a_run_whose_baseline_was_another_counts_by_itself_alone(
    changed: Callable[[StoredRun], StoredRun], says: str
) -> None:
    """Whatever is cheap in it may be so for what differs: it is neither the cheapest nor on the frontier."""
    cheap = changed(stored("q4", price=0.1))
    found = right_sizing([stored("q8"), stored("q6", price=1.6), cheap])
    q4 = row(found, "q4")
    assert q4.apart is not None
    assert says in q4.apart
    assert q4.passes
    assert isinstance(q4.usd, EstimateWithLimits)
    assert q4.stand == FrontierPosition(FrontierStatus.NOT_COUNTED)
    assert found.cheapest == CheapestOption("q8", ())
    assert "q4" not in [name for one in found.rows if one.stand is not None for name in one.stand.others]


def test_one_that_can_be_compared_with_none_of_the_others_is_not_the_cheapest_of_them() -> None:
    other = baseline_of(stored("q4", price=0.1), price_usd_per_hour=9.0)
    found = right_sizing([stored("q8"), other])
    assert (found.cheapest, found.saving) == (None, None)
    assert found.why_none == "q8 passes, and nothing can be compared with it"


def slow_hour(name: str, times: float, **changes: Any) -> StoredRun:
    """A run in which everything took so many times as long."""
    return with_rows(stored(name, **changes), lambda _: times, "usd_", *Arm)


def test_a_slow_hour_makes_no_candidate_dearer_than_one_of_another_hour() -> None:
    """q4 costs less of what the baseline beside it costs, and more dollars."""
    here, there = stored("q8", price=1.5), slow_hour("q4", 1.4, price=1.2)
    found = right_sizing([here, there])
    assert found.cheapest is None
    assert str(found.why_none).startswith("by dollars it is q8, and against the baseline beside each q4, for the basel")
    assert "the baseline itself costs $3.17 in q4 and $2.27 in q8" in found.notes[-1]
    assert {one.stand.standing for one in found.rows if one.arm is OURS and one.stand} == {FrontierStatus.NOT_SHOWN}


def test_what_is_cheaper_in_its_own_hour_too_is_the_cheapest() -> None:
    found = right_sizing([stored("q8", price=1.5), slow_hour("q4", 1.4, price=0.6)])
    assert found.cheapest == CheapestOption("q4", ())
    share = row(found, "q4").share
    assert isinstance(share, EstimateWithLimits)
    assert isinstance(found.saving, EstimateWithLimits)
    assert found.saving.value == pytest.approx(1 - share.value)


def test_a_laxer_policy_earns_no_candidate_the_name_of_the_cheapest() -> None:
    strict, other = stored("q8"), stored("q4", price=0.5)
    suite = Suite.from_stored(other.run.suite)
    gate = suite.gate.model_copy(update={"checks": suite.gate.checks[:1]})
    lax = replace(other, run=replace(other.run, suite=suite.model_copy(update={"gate": gate}).to_stored()))
    found = right_sizing([strict, lax])
    assert found.cheapest is None
    assert found.why_none == ("they were judged by 2 policies (q8; q4); `--policy SUITE` judges them all by one")
    assert row(found, "q8").judged_by != row(found, "q4").judged_by
    by_one = [replace(one, policy=suite) for one in (strict, lax)]
    assert right_sizing(by_one).cheapest == CheapestOption("q4", ())


@pytest.mark.parametrize(
    ("became", "passes"),
    [(Outcome.PASS, True), (Outcome.WARN, True), (Outcome.BLOCK, False), (Outcome.INVALID, False), (None, False)],
)
def test_an_older_pass_does_not_outlive_the_newest_verdict_on_its_candidate(
    became: Outcome | None, passes: bool
) -> None:
    old = replace(stored("q4", price=0.5), newer=NewerRun("nightly-7", became))
    found = right_sizing([stored("q8"), old])
    assert row(found, "q4").passes is passes
    assert found.cheapest == CheapestOption("q4" if passes else "q8", ())
    if not passes:
        assert "was measured again in nightly-7" in str(row(found, "q4").held_back)


def waived(one: StoredRun, *, required: bool = True) -> StoredRun:
    waiver = {"outcome": "BLOCK", "expires": "2026-01-10"}
    checks = [{"id": "accuracy", "required": required, "waiver": waiver}, {"id": "ttft", "required": True}]
    return replace(one, verdict={"outcome": "WARN", "guards": [], "checks": checks})


def test_a_waiver_lets_a_candidate_pass_to_the_end_of_its_last_day_and_no_longer() -> None:
    some = [stored("q8"), waived(stored("q4", price=0.5))]
    assert right_sizing(some, as_of=DAY).cheapest == CheapestOption("q4", ())
    later = right_sizing(some, as_of=date(2026, 1, 11))
    assert later.cheapest == CheapestOption("q8", ())
    assert row(later, "q4").held_back == "its check accuracy is BLOCK: its waiver held until 2026-01-10"
    assert right_sizing(some).cheapest == CheapestOption("q8", ())  # nobody says which day it is
    advisory = [stored("q8"), waived(stored("q4", price=0.5), required=False)]
    assert right_sizing(advisory).cheapest == CheapestOption("q4", ())  # it stops no promotion without a waiver either


def test_a_candidate_whose_promotion_was_taken_back_is_not_the_cheapest_that_passes() -> None:
    found = right_sizing([stored("q8"), replace(stored("q4", price=0.5), withdrawn="answers leak")], as_of=DAY)
    assert found.cheapest == CheapestOption("q8", ())
    assert row(found, "q4").held_back == "its promotion was withdrawn (answers leak)"


def test_a_pass_that_is_too_old_to_be_promoted_is_told() -> None:
    some = [stored("q8"), stored("q4", "BLOCK", price=0.5)]
    old = "q8 ended more than 30 days ago, and `benchgate promote` takes none that old by itself"
    assert old in right_sizing(some, as_of=date(2026, 2, 2)).notes
    for day in (date(2026, 2, 1), None):  # whole days, and the day of nobody
        assert not any("promote" in note for note in right_sizing(some, as_of=day).notes)


def test_only_what_was_let_through_can_be_held_back() -> None:
    found = right_sizing([waived(stored("q4"))])
    assert found.why_none == "no candidate passes by its own verdict: 1 WARN, 1 of them held back"
    blocked = replace(stored("q4", "BLOCK"), newer=NewerRun("nightly-7", Outcome.BLOCK))
    assert row(right_sizing([blocked]), "q4").held_back is None


def test_runs_held_to_another_slo_have_no_table_in_common() -> None:
    other = stored("q8")
    slack = Suite.from_stored(other.run.suite).model_copy(update={"slo": None}).to_stored()
    with pytest.raises(UsageError, match="their SLOs differ"):
        right_sizing([stored("q4"), replace(other, run=replace(other.run, suite=slack))])


def test_a_guard_that_spoils_the_evals_leaves_the_cost_and_takes_the_quality() -> None:
    guard = {"tripped": True, "spoils": ["quality"], "reason": "answers were cut"}
    spoiled = replace(stored("q4"), verdict={"outcome": "BLOCK", "guards": [guard], "checks": []})
    (row,) = [one for one in right_sizing([spoiled]).rows if one.arm is OURS]
    assert (row.quality, row.usd_per_correct) == ("answers were cut", "answers were cut")
    assert isinstance(row.usd, EstimateWithLimits)
    assert row.stand == FrontierPosition(FrontierStatus.NOT_COUNTED)


def test_a_run_that_was_cut_short_never_passes_whatever_its_verdict_says() -> None:
    found = right_sizing([stored("q4", status=RunStatus.PARTIAL)])
    assert found.cheapest is None
    assert found.why_none == "no candidate passes by its own verdict: 1 PASS, 1 of them not fit to be counted"
    assert [row.usd for row in found.rows] == ["the run was cut short"]


@pytest.mark.parametrize(("part", "says"), [("load", "load only"), (QUICK_LOOK, "quick look")])
def test_a_run_of_a_part_of_its_suite_never_passes_whatever_its_verdict_says(part: str, says: str) -> None:
    found = right_sizing(
        [stored("q8"), stored("q4", price=0.5, environment={**fake.run().environment, ONLY_PART: part})]
    )
    assert found.cheapest == CheapestOption("q8", ())
    assert says in str(row(found, "q4").held_back)


def test_costs_as_used_need_terms_of_every_price() -> None:
    found = right_sizing([stored("q4")], in_use=True)
    assert found.cost == f"{GOOD}_in_use"
    assert found.cheapest is None
    assert "price_terms" in str(found.why_none)


def used(name: str, utilisation: float, **changes: Any) -> StoredRun:
    half = {"price_terms": HALF_USED}
    ours = {"price_terms": {**HALF_USED, "utilisation_ratio": utilisation}, **changes}
    return with_arms(stored(name), {BASE: half, OURS: ours})


def test_a_model_that_is_paid_by_the_token_costs_the_same_however_it_is_used() -> None:
    prices = {"input": 0.2, "cached_input": 0.2, "output": 0.8}
    one = used("api", 0.5, price_usd_per_hour=None, price_terms={}, token_prices=prices)
    known = Suite.from_stored(one.run.suite).to_stored()["deployments"]
    suite = {**one.run.suite, "deployments": {**known, "api": hosted()}, "candidate": "api"}
    one = replace(one, run=replace(one.run, suite=suite))
    at_full, as_used = (row(right_sizing([one], in_use=way), "api") for way in (False, True))
    assert isinstance(at_full.usd, EstimateWithLimits)
    assert as_used.usd == at_full.usd
    assert isinstance(as_used.usd_per_correct, EstimateWithLimits)


def hosted() -> dict[str, Any]:
    text = """
suite: hosted
deployments:
  api: {engine: openai, url: http://api.example, model: m, token_prices: {input: $0.2/M, output: $0.8/M}}
  own: {engine: openai, url: http://own.example, model: m}
baseline: own
candidate: api
load: {workload: {input: 10, output: 5}, sweep: [{stage: c1, concurrency: 1, requests: 100}]}
gate: {checks: [{metric: error_rate, max: 10%}]}
"""
    stored: dict[str, Any] = parse_suite(text, "s").to_stored()["deployments"]["api"]
    return stored


def test_without_a_cost_of_the_baseline_beside_it_nothing_is_shown_of_what_it_saves() -> None:
    """Of the cheapest by its dollars the others are told, for nothing says what its hour was like."""
    free = {BASE: {"price_usd_per_hour": None}}
    found = right_sizing([with_arms(stored(name, price=price), free) for name, price in (("q8", 1.5), ("q4", 0.5))])
    assert found.cheapest == CheapestOption("q4", ("q8",))
    assert str(found.saving).startswith("the baseline beside it has no cost: stage c4 has no cost: no price was stated")
    assert {one.stand.standing for one in found.rows if one.arm is OURS and one.stand} == {FrontierStatus.NOT_SHOWN}


def test_a_run_without_a_baseline_stands_beside_no_other() -> None:
    lone = stored("q4", price=0.1)
    lone = replace(lone, run=replace(lone.run, arms={OURS: lone.run.arms[OURS]}))
    found = right_sizing([stored("q8"), stored("q6"), lone])
    assert found.some_apart
    assert row(found, "q4").apart == "one of the two has no baseline"


def test_evals_whose_tokens_were_not_kept_leave_right_answers_without_a_cost() -> None:
    gone = replace(stored("q4"), evals="the run's raw records were removed on 2026-01-09")
    assert row(right_sizing([gone]), "q4").usd_per_correct == gone.evals
    assert row(right_sizing([replace(gone, evals=())]), "q4").usd_per_correct == "the items of task add are not there"


def test_waivers_are_read_as_a_verdict_writes_them() -> None:
    one = stored("q4")
    said = Waiver("ttft", "tiny-q4", "q4", "8%", DAY, "ops", "OPS-1", "mended next week", "jane")
    given = fake.verdict(Outcome.WARN)
    checks = tuple(replace(check, outcome=Outcome.BLOCK, required=True, waiver=said) for check in given.checks[:1])
    document = verdict_document(one.run, replace(given, checks=checks, guards=()))
    found = replace(one, verdict=document)
    assert found.waived == (WaivedCheck(checks[0].id, "BLOCK", DAY),)
    assert right_sizing([found], as_of=DAY).cheapest == CheapestOption("q4", ())


@pytest.mark.parametrize(
    ("told", "says"),
    [
        (
            {"facts": {"accelerator_names": ["NVIDIA H200"] * 8}},
            "it is paid for 1 accelerator, and its server reports 8",
        ),
        (
            {"facts": {"accelerator_names": ["NVIDIA H200"]}, "price_entry": {"accelerator": "A100"}},
            "it has the price of accelerator A100, and its server reports NVIDIA H200",
        ),
    ],
    ids=["one of eight", "another kind"],
)
def test_a_price_of_something_else_than_what_ran_is_no_cost(told: dict[str, Any], says: str) -> None:
    found = right_sizing([with_arms(stored("q8", price=0.5), {OURS: told}), stored("q4", price=0.6)])
    assert row(found, "q8").usd == f"its price is not of what ran: {says}"
    assert found.cheapest == CheapestOption("q4", ())
    assert f"q8 has no cost: its price is not of what ran: {says}." in frontier_text(found)
