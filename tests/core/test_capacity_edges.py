"""Capacity at its boundaries: what brackets that just touch a margin or a bound, or have an open end, come to."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from benchgate.gate.checks import capacity
from benchgate.gate.checks.capacity import (
    ReplayedSearch,
    alternate_looks,
    compare_with_baseline,
    compare_with_bound,
    replay_search,
    search_of,
)
from benchgate.gate.comparison import Comparison, compare
from benchgate.gate.decision import CannotJudge, Estimate, Rule, decide, invalid
from benchgate.model.deployment import Arm
from benchgate.model.run import Evidence, LoadObservation
from benchgate.model.verdict import Outcome, Scale, Unit
from benchgate.stats.capacity_search import (
    LevelStatus,
    PlannedLook,
    Probe,
    ProbeResult,
    SearchResult,
    SearchSettings,
    StopReason,
)
from benchgate.suite.schema import Suite
from tests.core.test_gate_capacity import CALM, IN_FLIGHT, LATE, RATE, answered, capacity_check, searched_run, suite
from tests.fakes.evidence import run

Ends = tuple[float | None, float | None]
ALPHA = 0.05
SURE = 1e-9
NOTHING = Evidence(run(), (), (), None, ())
SETTINGS = {
    "rate": SearchSettings("rate", 4, 64, 0.9, 0.1, 800),
    "concurrency": SearchSettings("concurrency", 1, 64, 0.9, 0.1, 1600),
}


def bracket(
    arm: Arm,
    ends: Ends,
    *,
    over: str = "rate",
    p_value: float | None = SURE,
    stop: StopReason | None = StopReason.CONVERGED,
    estimate: float | None = None,
) -> ReplayedSearch:
    """A search that showed this level to meet the target, and that one to miss it."""
    standings = (LevelStatus.PASS, LevelStatus.FAIL)
    probes = tuple(
        Probe(level, 100, 100, ProbeResult(standing, 90, 100, 0, None, False, False, None, p_value, 99.0, 99.0))
        for level, standing in zip(ends, standings, strict=True)
        if level is not None
    )
    result = SearchResult(stop, *ends, estimate, None, None, probes, 100 * len(probes), None)
    return ReplayedSearch(arm, SETTINGS[over], result, ())


def replayed(monkeypatch: pytest.MonkeyPatch, *sides: ReplayedSearch | CannotJudge) -> None:
    """Let the searches find these: the baseline's and the candidate's, or the candidate's alone."""
    found = dict(zip((Arm.BASELINE, Arm.CANDIDATE)[-len(sides) :], sides, strict=True))

    def replay(evidence: Evidence, arm: Arm, suite: Suite) -> ReplayedSearch:
        side = found[arm]
        if isinstance(side, CannotJudge):
            raise side
        return side

    monkeypatch.setattr(capacity, "replay_search", replay)


def outcome(estimate: Estimate) -> Outcome:
    return decide(estimate, estimate.p_value, ALPHA, 0.8)


def compared(comparison: Comparison, *, breach: bool = False, alpha: float = ALPHA) -> Estimate:
    """Both arms' capacities, of which a fifth may be lost."""
    rule = Rule(Unit.REQUESTS_PER_S, Scale.LOG_RATIO, breach=breach)
    estimate = Estimate(rule, -math.log1p(-0.2))
    with estimate.keeping_problems():
        compare_with_baseline(estimate, comparison, suite(), alpha=alpha)
    return estimate


def bounded(least: float, asked: Suite, *, alpha: float = ALPHA) -> Estimate:
    """The candidate's capacity, which may not be below this."""
    rule = Rule(Unit.REQUESTS_PER_S, Scale.ABSOLUTE, breach=True, lower_is_worse=True)
    estimate = Estimate(rule, least)
    with estimate.keeping_problems():
        compare_with_bound(estimate, compare(NOTHING), asked, alpha=alpha)
    return estimate


def against(
    monkeypatch: pytest.MonkeyPatch, theirs: ReplayedSearch, ours: ReplayedSearch, *, breach: bool = False
) -> Estimate:
    replayed(monkeypatch, theirs, ours)
    return compared(compare(NOTHING), breach=breach)


@pytest.mark.parametrize(
    ("ours", "harm", "breach"),
    [
        ((19, 21), Outcome.PASS, Outcome.PASS),  # 21 may be more than 20, and 19 is not a fifth below 22
        ((18, 20), Outcome.WARN, Outcome.PASS),  # what misses at 20 carries less than what meets the target there
        ((17.7, 19), Outcome.WARN, Outcome.WARN),
        ((17.5, 19), Outcome.BLOCK, Outcome.INCONCLUSIVE),  # a fifth below 22 is 17.6
        ((17.5, 21), Outcome.INCONCLUSIVE, Outcome.INCONCLUSIVE),
        ((10, 15.9), Outcome.BLOCK, Outcome.BLOCK),  # a fifth below 20 is 16
        ((10, 16.1), Outcome.BLOCK, Outcome.INCONCLUSIVE),
        ((None, 15.9), Outcome.BLOCK, Outcome.BLOCK),
        ((None, 21), Outcome.INCONCLUSIVE, Outcome.INCONCLUSIVE),
        ((19, None), Outcome.PASS, Outcome.PASS),
        ((17.5, None), Outcome.INCONCLUSIVE, Outcome.INCONCLUSIVE),
    ],
)
def test_the_worst_and_the_best_that_two_brackets_leave_open(
    ours: Ends, harm: Outcome, breach: Outcome, monkeypatch: pytest.MonkeyPatch
) -> None:
    theirs = bracket(Arm.BASELINE, (20, 22))
    for said, by_breach in ((harm, False), (breach, True)):
        estimate = against(monkeypatch, theirs, bracket(Arm.CANDIDATE, ours), breach=by_breach)
        assert outcome(estimate) is said
        assert estimate.problem is not None or estimate.n == theirs.result.sent + 100 * (2 - ours.count(None))


@pytest.mark.parametrize(
    ("theirs", "ours", "harm", "breach"),
    [
        ((7, 8), (7, 8), Outcome.PASS, Outcome.PASS),
        ((1, 2), (1, 2), Outcome.PASS, Outcome.PASS),
        ((8, 10), (7, 9), Outcome.INCONCLUSIVE, Outcome.INCONCLUSIVE),  # both may carry 8
        ((8, 9), (7, 8), Outcome.WARN, Outcome.WARN),
        ((8, 9), (6, 8), Outcome.BLOCK, Outcome.INCONCLUSIVE),
        ((10, 11), (7, 10), Outcome.BLOCK, Outcome.INCONCLUSIVE),  # 9 is a tenth less
        ((10, 11), (7, 9), Outcome.BLOCK, Outcome.INCONCLUSIVE),  # 8 is a fifth less, which may be lost
        ((10, 11), (6, 8), Outcome.BLOCK, Outcome.BLOCK),
        ((1, 2), (None, 1), Outcome.BLOCK, Outcome.INCONCLUSIVE),  # not even one is in flight
        ((2, 3), (None, 1), Outcome.BLOCK, Outcome.BLOCK),
    ],
)
def test_a_candidate_may_still_carry_one_in_flight_less_than_it_missed_at(
    theirs: Ends, ours: Ends, harm: Outcome, breach: Outcome, monkeypatch: pytest.MonkeyPatch
) -> None:
    sides = [bracket(arm, ends, over="concurrency") for arm, ends in zip(Arm, (theirs, ours), strict=True)]
    for says, by_breach in ((harm, False), (breach, True)):
        assert outcome(against(monkeypatch, *sides, breach=by_breach)) is says


@pytest.mark.parametrize("in_flight", [2, 3, 7])
def test_equal_searches_over_concurrency_pass(in_flight: int) -> None:
    evidence = searched_run(in_flight, in_flight, capacity=IN_FLIGHT)
    check = capacity_check(suite(capacity=IN_FLIGHT), evidence)
    assert check.outcome is Outcome.PASS, check.reason


@pytest.mark.parametrize(("theirs", "says"), [((20, None), Outcome.INCONCLUSIVE), ((None, 22), Outcome.PASS)])
def test_a_baseline_whose_capacity_has_no_upper_end_cannot_be_kept_up_with(
    theirs: Ends, says: Outcome, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = against(monkeypatch, bracket(Arm.BASELINE, theirs), bracket(Arm.CANDIDATE, (30, 33)))
    assert outcome(found) is says


@pytest.mark.parametrize("p_value", [0.02, None])
def test_ends_that_are_not_sure_block_nobody_and_promote_nobody(
    p_value: float | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    sides: Sequence[tuple[Arm, Ends]] = ((Arm.BASELINE, (20, 22)), (Arm.CANDIDATE, (10, 11)))
    for unsure in Arm:
        theirs, ours = (bracket(arm, ends, p_value=p_value if arm is unsure else SURE) for arm, ends in sides)
        found = against(monkeypatch, theirs, ours)
        assert outcome(found) is Outcome.INCONCLUSIVE
        assert found.p_value is not None and found.p_value > ALPHA  # for as many levels as it may look at


@pytest.mark.parametrize(
    ("ends", "least", "says"),
    [
        ((15, 17), 12.0, Outcome.PASS),
        ((15, 17), 15.0, Outcome.WARN),  # at it, and near it
        ((15, 17), 15.1, Outcome.INCONCLUSIVE),
        ((15, 17), 16.9, Outcome.INCONCLUSIVE),
        ((15, 17), 17.0, Outcome.BLOCK),
        ((15, None), 12.0, Outcome.PASS),
        ((15, None), 99.0, Outcome.INCONCLUSIVE),
        ((None, 17), 1.0, Outcome.INCONCLUSIVE),
        ((None, 17), 17.0, Outcome.BLOCK),
        ((None, None), 1.0, Outcome.INCONCLUSIVE),
    ],
)
def test_a_least_capacity_is_held_by_the_lower_end_and_broken_by_the_upper(
    ends: Ends, least: float, says: Outcome, monkeypatch: pytest.MonkeyPatch
) -> None:
    replayed(monkeypatch, bracket(Arm.CANDIDATE, ends))
    assert outcome(bounded(least, suite())) is says


def test_of_whole_numbers_the_most_is_one_less_than_what_missed(monkeypatch: pytest.MonkeyPatch) -> None:
    def in_flight(ends: Ends, estimate: float | None = None) -> ReplayedSearch:
        return bracket(Arm.CANDIDATE, ends, over="concurrency", estimate=estimate)

    assert [in_flight(ends).top for ends in ((2, 3), (2, 8), (1, 2), (None, 1), (2, None))] == [2, 7, 1, 1, None]
    assert [in_flight((2, 8), estimate).middle for estimate in (None, 5.9, 7.6, 1.2)] == [3, 5, 7, 2]
    assert (in_flight((None, 8)).value, in_flight((2, None)).value, in_flight((None, None)).value) == (7, 2, None)
    by_rate = bracket(Arm.CANDIDATE, (4.0, 8.0))
    assert by_rate.top == 8.0 and by_rate.middle == pytest.approx(5.657, abs=1e-3)
    asked = suite(capacity=IN_FLIGHT)
    for least, says in ((3.0, Outcome.BLOCK), (2.0, Outcome.WARN), (1.0, Outcome.PASS)):
        replayed(monkeypatch, in_flight((2, 3)))
        assert outcome(bounded(least, asked)) is says


@pytest.mark.parametrize(
    ("stop", "says"),
    [
        (StopReason.NEVER_BREACHED, "even the highest level met the target"),
        (StopReason.UNMET_AT_MINIMUM, "even the lowest level missed the target"),
        (StopReason.BUDGET_EXHAUSTED, "ran out of requests"),
        (None, "did not come to its end"),
    ],
)
def test_an_open_end_is_told_with_why(stop: StopReason | None, says: str, monkeypatch: pytest.MonkeyPatch) -> None:
    theirs, ours = bracket(Arm.BASELINE, (20, 22)), bracket(Arm.CANDIDATE, (None, 21), stop=stop)
    problem = against(monkeypatch, theirs, ours).problem
    assert problem is not None and problem.outcome is Outcome.INCONCLUSIVE
    assert "the capacity of the candidate is open" in problem.reason and says in problem.reason
    enclose = stop in (StopReason.NEVER_BREACHED, StopReason.UNMET_AT_MINIMUM)
    assert ("let `from` and `to` enclose it" in problem.advice) is enclose


@pytest.mark.parametrize("side", [0, 1])
def test_a_search_that_was_not_made_on_one_side_leaves_nothing_to_compare(
    side: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    sides: list[ReplayedSearch | CannotJudge] = [bracket(arm, (20, 22)) for arm in Arm]
    sides[side] = invalid("no search", "make one")
    replayed(monkeypatch, *sides)
    assert outcome(compared(compare(NOTHING))) is Outcome.INVALID
    replayed(monkeypatch, invalid("no search", "make one"))
    assert outcome(bounded(1.0, suite())) is Outcome.INVALID


@pytest.mark.parametrize(
    ("machine", "candidate", "blocks"),
    [
        ((10, 11), (10, 11), False),  # a slower day
        ((10, 11), (5, 5.5), True),
        ((40, 44), (20, 22), True),  # as much as the other candidate, on a machine that is twice as fast
    ],
)
def test_candidates_of_two_runs_are_compared_through_their_baseline(
    machine: tuple[float, float], candidate: tuple[float, float], blocks: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    before, now = (Evidence(run(name), (), (), None, ()) for name in ("before", "now"))
    found = {
        ("before", Arm.BASELINE): (20, 22),
        ("before", Arm.CANDIDATE): (20, 22),
        ("now", Arm.BASELINE): machine,
        ("now", Arm.CANDIDATE): candidate,
    }

    def replay(evidence: Evidence, arm: Arm, suite: Suite) -> ReplayedSearch:
        return bracket(arm, found[evidence.run.id, arm])

    monkeypatch.setattr(capacity, "replay_search", replay)
    estimate = compared(compare(now, before))
    assert (outcome(estimate) is Outcome.BLOCK) is blocks
    assert estimate.value == pytest.approx(math.log(2) if blocks else 0.0)
    assert estimate.limits is not None
    width = math.log(1.1) * 4  # of four brackets, each of which may be wrong by its own width
    assert estimate.limits.upper - estimate.limits.lower == pytest.approx(width)


@pytest.mark.parametrize(
    ("ours", "of_each", "says"),
    [
        ((20, 20.5), 0.012, Outcome.PASS),
        ((20, 20.5), 0.013, Outcome.INCONCLUSIVE),
        ((18, 18.2), 0.012, Outcome.WARN),  # below the others, and inside the margin
        ((18, 18.2), 0.013, Outcome.INCONCLUSIVE),
    ],
)
def test_the_four_brackets_of_two_runs_are_together_as_sure_as_alpha_asks(
    ours: Ends, of_each: float, says: Outcome, monkeypatch: pytest.MonkeyPatch
) -> None:
    before, now = (Evidence(run(name), (), (), None, ()) for name in ("before", "now"))
    p_value = of_each / SETTINGS["rate"].most_probes

    def replay(evidence: Evidence, arm: Arm, suite: Suite) -> ReplayedSearch:
        judged = (evidence.run.id, arm) == ("now", Arm.CANDIDATE)
        return bracket(arm, ours if judged else (20, 20.5), p_value=p_value)

    monkeypatch.setattr(capacity, "replay_search", replay)
    estimate = compared(compare(now, before))
    assert (outcome(estimate) if estimate.problem is None else estimate.problem.outcome) is says


@pytest.mark.parametrize(
    ("alpha", "says"), [(0.04, None), (0.039, "two brackets are together wrong with up to 4.00 %")]
)
def test_a_promotion_is_as_sure_as_a_smaller_alpha_asks(
    alpha: float, says: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    p_value = 0.02 / SETTINGS["rate"].most_probes
    replayed(monkeypatch, *(bracket(arm, (20, 20.5), p_value=p_value) for arm in (Arm.BASELINE, Arm.CANDIDATE)))
    found = compared(compare(NOTHING), alpha=alpha), bounded(20, suite(), alpha=alpha / 2)
    for estimate, shown in zip(found, (says, says and "the bracket is wrong with up to 2.00 %"), strict=True):
        assert (estimate.problem is not None) is (shown is not None)
        assert shown is None or (estimate.problem is not None and shown in estimate.problem.reason)


def test_a_regression_that_is_shown_stays_inside_the_margin_only_if_the_other_four_ends_are_sure(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    before, now = (Evidence(run(name), (), (), None, ()) for name in ("before", "now"))
    passing, failing = 0, 1
    shows_regression = {
        ("before", Arm.BASELINE): failing,
        ("before", Arm.CANDIDATE): passing,
        ("now", Arm.BASELINE): passing,
        ("now", Arm.CANDIDATE): failing,
    }

    def replay(evidence: Evidence, arm: Arm, suite: Suite) -> ReplayedSearch:
        where = evidence.run.id, arm
        found = bracket(arm, (18, 18.2) if where == ("now", Arm.CANDIDATE) else (20, 20.5))
        unsure = 1 - shows_regression[where]
        probes = list(found.result.probes)
        finding = replace(probes[unsure].finding, p_value=0.02 / SETTINGS["rate"].most_probes)
        probes[unsure] = replace(probes[unsure], finding=finding)
        return replace(found, result=replace(found.result, probes=tuple(probes)))

    monkeypatch.setattr(capacity, "replay_search", replay)
    estimate = compared(compare(now, before))
    assert estimate.p_value is not None and estimate.p_value < ALPHA
    assert estimate.problem is not None and estimate.problem.outcome is Outcome.INCONCLUSIVE
    assert "the four brackets are together wrong with up to 8.00 %" in estimate.problem.reason


def test_a_baseline_of_an_open_capacity_ties_no_runs_together(monkeypatch: pytest.MonkeyPatch) -> None:
    before, now = (Evidence(run(name), (), (), None, ()) for name in ("before", "now"))
    without_end = bracket(Arm.BASELINE, (20, None))

    def replay(evidence: Evidence, arm: Arm, suite: Suite) -> ReplayedSearch:
        return without_end if (evidence.run.id, arm) == ("now", Arm.BASELINE) else bracket(arm, (20, 22))

    monkeypatch.setattr(capacity, "replay_search", replay)
    problem = compared(compare(now, before)).problem
    assert problem is not None and problem.outcome is Outcome.INCONCLUSIVE
    assert "the capacity of the baseline is open" in problem.reason


def test_a_level_that_was_never_in_flight_ends_a_search_by_name() -> None:
    search = search_of(suite(capacity=IN_FLIGHT, slo="ttft: 15ms"))
    assert search is not None
    search.take(8.0, answered(PlannedLook(2.0, 0, 40), 4, over="concurrency"), CALM)
    assert (search.fault, search.next) == ("8 requests were never in flight", None)


def test_without_a_search_nothing_is_looked_at_and_there_is_no_capacity() -> None:
    asked = suite()
    assert asked.load is not None
    without = asked.model_copy(update={"load": asked.load.model_copy(update={"capacity": None})})
    with pytest.raises(CannotJudge, match="no capacity was searched for") as caught:
        replay_search(NOTHING, Arm.CANDIDATE, without)
    assert caught.value.outcome is Outcome.INVALID
    assert list(alternate_looks({})) == []


def test_a_level_that_is_good_and_not_shown_to_be_steady_is_told() -> None:
    one = bracket(Arm.CANDIDATE, (15, 17))
    (good, missed) = one.result.probes
    shaky = replace(good, finding=replace(good.finding, unsteady=True))
    described = replace(one, result=replace(one.result, probes=(shaky, missed))).describe(Arm.CANDIDATE)
    assert described.endswith("; good at 15, but not shown to be steady")
    assert "steady" not in one.describe(Arm.CANDIDATE)


def test_what_a_search_saw_before_its_client_was_late_for_good_is_no_result() -> None:
    evidence = searched_run(2, 2, late=(9, 11, 13))  # of the candidate, whose looks are the odd ones
    with pytest.raises(CannotJudge, match="the load generator was the bottleneck") as caught:
        replay_search(evidence, Arm.CANDIDATE, suite())
    assert caught.value.outcome is Outcome.INVALID
    replay_search(evidence, Arm.BASELINE, suite())


def test_the_third_look_in_a_row_that_measured_its_client_ends_a_search() -> None:
    search = search_of(suite())
    assert search is not None and search.settings.alpha == 0.025  # a comparison of two is wrong when either is
    look = search.next
    assert look is not None
    columns = answered(look, 4, over="rate")
    for client in (LATE, LATE, CALM, LATE, LATE):
        search.take(look.level, columns, client)
        assert search.fault is None and search.next is not None
    counted = [one for one in search.looks if one.counts is not None]
    assert (len(counted), len(search.left_out), search.executions(look.level)) == (1, 4, 5)
    search.take(look.level, columns, LATE)
    assert "the load generator was the bottleneck at" in str(search.fault) and search.next is None
    assert search.executions(99.0) == 0


def test_look_at_a_rate_that_the_client_did_not_reach_is_left_out() -> None:
    search = search_of(suite())
    assert search is not None
    columns, bounds = answered(PlannedLook(100.0, 0, 50), 40, over="rate"), search.bounds
    planned_s = 49 / 100
    late_s = planned_s / bounds.achieved_ratio - planned_s + bounds.send_lag_p99_s + 0.001
    lag_ns = np.zeros(len(columns), dtype=np.int64)
    lag_ns[-1] = late_s * 1e9  # one late request alone is a hiccup
    search.take(100.0, replace(columns, sent_ns=columns.sent_ns + lag_ns), CALM)
    assert [one.split(" requests/s")[0].rpartition(" ")[0] for one in search.left_out] == ["the client sent"]


@pytest.mark.parametrize(
    ("over", "budget", "stop"),
    [
        ("rate", 900, StopReason.BUDGET_EXHAUSTED),
        ("rate", 9000, StopReason.CONVERGED),
        ("concurrency", 400, StopReason.BUDGET_EXHAUSTED),
    ],
)
def test_every_request_of_a_search_is_in_its_budget_and_counted_again_from_its_stored_looks(
    over: str, budget: int, stop: StopReason
) -> None:
    """Each look has a ramp, of half a second's requests or twice those in flight, and every third is left out."""
    written = (RATE if over == "rate" else IN_FLIGHT).replace("}", f", budget: {budget} requests}}")
    asked = suite(capacity=written)
    search = search_of(asked)
    assert search is not None
    stored: list[LoadObservation] = []
    while (look := search.next) is not None:
        columns = answered(look, 2, over=over)
        size = math.ceil(look.level * (0.5 if over == "rate" else 2))
        ramp = answered(PlannedLook(look.level, 0, size), 2, over=over)
        client = LATE if len(stored) % 3 == 1 else CALM
        stage, block = f"capacity/{look.name}", search.executions(look.level)
        stored.append(LoadObservation(stage, Arm.CANDIDATE, block, len(stored), columns, 1.0, client, ramp=ramp))
        search.take(look.level, columns, client, ramp)
    assert search.fault is None and search.left_out
    result = search.result
    assert result.sent == sum(one.recorded for one in stored) <= budget
    assert result.measured == sum(len(one.requests) for one in stored if one.client is CALM)
    assert replay_search(replace(NOTHING, load=tuple(stored)), Arm.CANDIDATE, asked).result == result
    assert result.stop is stop


def test_requests_that_a_look_lost_are_misses_though_its_search_sent_more_than_the_budget_of_today() -> None:
    """Earlier versions spent no budget on ramps, so their searches have looks that none would plan now."""
    asked = suite(capacity=RATE.replace("}", ", budget: 900 requests}"))
    search = search_of(asked)
    assert search is not None
    ramp = answered(PlannedLook(4.0, 0, 1000), 2, over="rate")
    look = search.next
    assert look is not None
    for cut in (0, 10):
        search.take(look.level, answered(replace(look, requests=look.requests - cut), 2, over="rate"), CALM, ramp)
    found = [one.counts.cut for one in search.looks if one.counts is not None]
    assert found == [0, 10]


def test_arms_take_turns_and_one_that_is_done_lets_the_other_go_on() -> None:
    searches = {arm: search for arm in Arm if (search := search_of(suite())) is not None}
    searches[Arm.BASELINE].fault = "done"
    order = []
    for arm, look in alternate_looks(searches):
        order.append(arm)
        searches[arm].take(look.level, answered(look, 2, over="rate"), CALM)
    assert set(order) == {Arm.CANDIDATE} and searches[Arm.CANDIDATE].next is None


@pytest.mark.parametrize(("over", "ends"), [("concurrency", (15, 17)), ("rate", (None, 4))])
def test_a_search_that_found_no_rate_is_told_beside_a_sizing_without_one_to_size_by(
    over: str, ends: Ends, monkeypatch: pytest.MonkeyPatch
) -> None:
    replayed(monkeypatch, bracket(Arm.CANDIDATE, ends, over=over))
    note = capacity.unused_search_note(NOTHING, suite(), Arm.CANDIDATE)
    assert note is not None
    assert "to size by it" not in note
