"""Capacity in a verdict: made again from stored looks, held against a margin or a least value, or open."""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchgate.errors import SuiteError
from benchgate.gate.checks.capacity import alternate_looks, replay_search, search_of, unused_search_note
from benchgate.gate.decision import CannotJudge
from benchgate.gate.guards.load import prompts_alike
from benchgate.gate.judge import judge
from benchgate.model.deployment import Arm
from benchgate.model.records import RequestColumns, RequestRecord, TokenSource
from benchgate.model.run import ClientUse, Evidence, LoadObservation
from benchgate.model.telemetry import Counter, TelemetrySample, TelemetryWindow
from benchgate.model.verdict import CheckResult, Outcome, Verdict
from benchgate.stats.capacity_search import PlannedLook
from benchgate.suite.loader import parse_suite
from benchgate.suite.schema import Suite
from tests.fakes.demand import write_demand
from tests.fakes.evidence import run
from tests.fakes.quick_command import answer

S = 1_000_000_000
CALM = ClientUse(cpu_s=0.1, wall_s=10.0, workers=1)
LATE = replace(CALM, faults=("worker 1 of 1 started 3.0 s late",))
RATE = "{over: rate, from: 4/s, to: 64/s, resolution: 10%, probe: 800 requests, arrival: constant}"
IN_FLIGHT = "{over: concurrency, from: 1, to: 64, probe: 1600}"


def text(capacity: str = RATE, check: str = "{metric: capacity, margin: 20%}", slo: str = "ttft: 150ms") -> str:
    return f"""
suite: capacity
deployments:
  baseline: {{url: "http://a", model: m}}
  candidate: {{url: "http://b", model: m}}
slo: {{{slo}, target: 90%}}
load:
  workload: {{input: 8, output: 2}}
  blocks: 10
  sweep: [{{stage: c1, concurrency: 1, requests: 4}}]
  capacity: {capacity}
gate:
  checks: [{{metric: error_rate, max: 5%}}, {check}]
"""


@functools.cache
def suite(**changed: str) -> Suite:
    return parse_suite(text(**changed), "suite.yaml")


def answered(look: PlannedLook, servers: int, *, over: str) -> RequestColumns:
    """So many servers, each answering in 100 ms, the first token at once; those who find all of them busy wait."""
    free_ns = [0] * servers
    ends_ns = [0] * int(look.level)  # of a closed loop's clients
    records = []
    for index in range(look.requests):
        client = min(range(len(ends_ns)), key=ends_ns.__getitem__) if over == "concurrency" else 0
        due_ns = ends_ns[client] if over == "concurrency" else round((index + 1) / look.level * S)
        server = min(range(servers), key=free_ns.__getitem__)
        first_ns = max(due_ns, free_ns[server]) + S // 100
        free_ns[server] = end_ns = first_ns + 9 * S // 100
        if over == "concurrency":
            ends_ns[client] = end_ns
        records.append(_record(index, due_ns, first_ns, end_ns))
    return RequestColumns.pack(records)


def later(columns: RequestColumns, by_ns: int) -> RequestColumns:
    """The same requests, sent so much later: no two executions are sent at the same nanoseconds."""
    return replace(columns, sent_ns=columns.sent_ns + by_ns)


def _record(index: int, due_ns: int, first_ns: int, end_ns: int) -> RequestRecord:
    return RequestRecord(
        index=index,
        intended_ns=due_ns,
        sent_ns=due_ns,
        chunk_ns=(first_ns, end_ns),
        end_ns=end_ns,
        input_tokens=8,
        output_tokens=2,
        token_source=TokenSource.USAGE,
        finish_reason="length",
        http_status=200,
        error=None,
        error_detail=None,
    )


@functools.cache
def searched_run(baseline: int, candidate: int, late: tuple[int, ...] = (), **changed: str) -> Evidence:
    """A run whose arms have so many servers; the looks numbered in `late` were taken by a client that was late."""
    asked, servers = suite(**changed), {Arm.BASELINE: baseline, Arm.CANDIDATE: candidate}
    assert asked.load is not None
    assert asked.load.capacity is not None
    searches = {arm: search for arm in Arm if (search := search_of(asked)) is not None}
    one = answered(PlannedLook(1.0, 0, 4), 8, over="concurrency")
    load = [
        LoadObservation("c1", arm, block, 0, later(one, 2 * block + number), 0.4, CALM)
        for number, arm in enumerate(Arm)
        for block in range(asked.load.blocks)
    ]
    for position, (arm, look) in enumerate(alternate_looks(searches)):
        client = LATE if position in late else CALM
        columns = later(answered(look, servers[arm], over=asked.load.capacity.over), position)
        block = searches[arm].executions(look.level)
        window_s = float(columns.end_ns.max() - columns.intended_ns.min()) * 1e-9
        load.append(LoadObservation(f"capacity/{look.name}", arm, block, position + 100, columns, window_s, client))
        searches[arm].take(look.level, columns, client)
    described = replace(run(), suite=asked.to_stored())
    return Evidence(run=described, load=tuple(load), quality=(), shadow=None, target_faults=())


def capacity_check(asked: Suite, evidence: Evidence) -> CheckResult:
    return next(check for check in judge(asked, evidence).checks if check.metric == "capacity")


def test_stored_looks_give_the_bracket_again() -> None:
    evidence = searched_run(2, 2)
    found = replay_search(evidence, Arm.BASELINE, suite())
    assert found.result.lower is not None
    assert found.result.upper is not None
    assert found.result.lower <= 20 <= found.result.upper <= 1.11 * found.result.lower  # 2 servers, 10 a second each
    assert found.result.stop == "converged"


@pytest.mark.parametrize(
    ("servers", "outcome"), [((2, 2), Outcome.PASS), ((2, 4), Outcome.PASS), ((4, 2), Outcome.BLOCK)]
)
def test_capacity_against_the_baseline(servers: tuple[int, int], outcome: Outcome) -> None:
    check = capacity_check(suite(), searched_run(*servers))
    assert check.outcome is outcome, check.reason
    assert any("converged" in note for note in check.notes)


@pytest.mark.parametrize(
    ("least", "outcome"), [("15/s", Outcome.PASS), ("18/s", Outcome.WARN), ("20/s", Outcome.INCONCLUSIVE)]
)
def test_capacity_against_a_least_rate(least: str, outcome: Outcome) -> None:
    asked = suite(check=f"{{metric: capacity, min: {least}}}")
    assert capacity_check(asked, searched_run(2, 2)).outcome is outcome


def test_capacity_below_a_least_rate_blocks() -> None:
    asked = suite(check="{metric: capacity, min: 30/s}")
    assert capacity_check(asked, searched_run(2, 2)).outcome is Outcome.BLOCK


def test_one_in_flight_less_is_shown_although_the_brackets_touch() -> None:
    asked = suite(capacity=IN_FLIGHT, slo="ttft: 15ms")
    check = capacity_check(asked, searched_run(3, 2, capacity=IN_FLIGHT, slo="ttft: 15ms"))
    assert (check.baseline, check.candidate, check.outcome) == (3.0, 2.0, Outcome.BLOCK)


def test_open_brackets_are_inconclusive_and_say_where_to_look() -> None:
    check = capacity_check(suite(), searched_run(20, 20))
    assert check.outcome is Outcome.INCONCLUSIVE
    assert "even the highest level met the target" in check.reason
    assert "`to`" in (check.advice or "")


def test_candidate_that_meets_the_highest_level_is_no_worse_than_one_that_does_not() -> None:
    check = capacity_check(suite(), searched_run(2, 20))
    assert check.outcome is Outcome.PASS


def test_candidate_that_misses_at_the_lowest_level_blocks() -> None:
    from_15 = RATE.replace("from: 4/s", "from: 15/s")
    check = capacity_check(suite(capacity=from_15), searched_run(2, 1, capacity=from_15))
    assert check.outcome is Outcome.BLOCK


def test_search_that_is_not_in_the_store_is_invalid() -> None:
    evidence = searched_run(2, 2)
    without = replace(evidence, load=tuple(o for o in evidence.load if "/" not in o.stage or o.arm is Arm.BASELINE))
    assert capacity_check(suite(), without).outcome is Outcome.INVALID


def test_search_that_was_cut_short_is_no_result() -> None:
    evidence = searched_run(2, 2)
    cut = replace(evidence, load=evidence.load[: len(evidence.load) // 2])
    found = capacity_check(suite(), cut)
    assert found.outcome is Outcome.INCONCLUSIVE
    assert "did not come to its end" in found.reason


def test_look_of_a_late_client_is_taken_again_and_said() -> None:
    evidence = searched_run(2, 2, late=(3, 8))
    check = capacity_check(suite(), evidence)
    assert check.outcome is Outcome.PASS
    assert any("looks left out: worker 1 of 1 started" in note for note in check.notes)


def test_client_that_is_late_again_and_again_makes_it_invalid() -> None:
    evidence = searched_run(2, 2, late=(0, 2, 4))
    with pytest.raises(CannotJudge) as caught:
        replay_search(evidence, Arm.BASELINE, suite())
    assert caught.value.outcome is Outcome.INVALID
    assert capacity_check(suite(), evidence).outcome is Outcome.INVALID


def test_another_slo_is_judged_from_the_same_looks() -> None:
    evidence = searched_run(2, 2)
    stricter = suite(slo="ttft: 5ms")  # which nobody meets
    assert capacity_check(stricter, evidence).outcome is not Outcome.PASS


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ({"check": "{metric: capacity, statistic: p99, margin: 20%}"}, "means nothing for capacity"),
        ({"check": "{metric: capacity, stage: c1, margin: 20%}"}, "means nothing for capacity"),
        ({"check": "{metric: capacity, max: 9/s}"}, "no upper bound"),
        ({"check": "{metric: capacity, min: 9}"}, 'write a rate like "8/s"'),
        ({"check": "{metric: capacity, min: 100/s}"}, "raise `load.capacity.to`"),
        ({"check": "{metric: capacity, margin: 5%}"}, "resolution` finer"),
        ({"check": "{metric: capacity, margin: 0.2}"}, "percentage"),
        ({"capacity": IN_FLIGHT, "check": "{metric: capacity, min: 9/s}"}, "a number in flight like 8"),
        ({"capacity": "{over: rate, from: 8/s, to: 2/s}"}, "`from` is not below `to`"),
        ({"capacity": "{over: rate, from: 1, to: 2/s}"}, "rate"),
        ({"capacity": "{over: rate, from: 1/s, to: 2/s, target: 0.95}"}, "percentage"),
        ({"capacity": "{over: concurrency, from: 1, to: 8, arrival: constant}"}, "means nothing in a closed loop"),
        ({"capacity": "{over: rate, from: 1/s, to: 8/s, workload: nope}"}, "nope"),
        ({"capacity": "{over: tokens, from: 1/s, to: 8/s}"}, "rate"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_search_or_check_that_cannot_work_is_refused_before_anything_is_sent(
    changed: dict[str, Any], says: str
) -> None:
    with pytest.raises(SuiteError, match=says):
        parse_suite(text(**changed), "suite.yaml")


def test_check_without_a_search_is_refused() -> None:
    with pytest.raises(SuiteError, match=r"found by `load\.capacity`"):
        parse_suite(text().replace(f"  capacity: {RATE}\n", ""), "suite.yaml")


@pytest.mark.parametrize(("before", "now"), [(4, 2), (2, 2), (2, 4)])
def test_capacity_of_two_runs_without_live_baselines_is_not_decided(before: int, now: int) -> None:
    def alone(servers: int) -> Evidence:
        own = suite(check="{metric: capacity, min: 5/s}").model_copy(update={"baseline": "candidate"})
        whole = searched_run(servers, servers)
        load = tuple(o for o in whole.load if o.arm is Arm.CANDIDATE)
        return replace(whole, run=replace(whole.run, suite=own.to_stored()), load=load)

    checks = judge(suite(), alone(now), alone(before)).checks
    check = next(check for check in checks if check.metric == "capacity")
    assert check.outcome is Outcome.INCONCLUSIVE
    assert "no noise that a calibration measures" in check.reason


def test_search_beside_a_sizing_says_how_to_size_by_its_lower_end(tmp_path: Path) -> None:
    evidence = searched_run(2, 1)
    found = replay_search(evidence, Arm.CANDIDATE, suite())
    note = unused_search_note(evidence, suite(), Arm.CANDIDATE)
    assert note is not None
    assert note.startswith("its `load.capacity` search is not used for sizing; it found candidate: ")
    advised = re.search(r"set `replica\.(\w+): (\S+)` in the demand file and leave out the run$", note)
    assert advised is not None
    file = write_demand(tmp_path, {"demand": {"requests_per_s": 30}, "replica": {advised[1]: float(advised[2])}})
    code, sized, complained = answer("capacity", "--demand", file, "--format", "json")
    assert code == 0, complained
    assert json.loads(sized)["question"]["replica"]["per_s"] == pytest.approx(found.result.lower, rel=1e-5)
    assert unused_search_note(replace(evidence, load=()), suite(), Arm.CANDIDATE) is None


@pytest.mark.parametrize(("counted", "outcome"), [(2, Outcome.PASS), (10, Outcome.INVALID)])
def test_no_pace_is_judged_by_a_usage_beyond_what_was_asked_for(counted: int, outcome: Outcome) -> None:
    """The requests ask for two tokens, which come in two pieces 90 ms apart; the bound on TPOT is 100 ms."""
    bounds = {"slo": "tpot: 100ms, ttft: 1s", "check": "{metric: capacity, min: 8/s}"}
    asked, evidence = suite(**bounds), searched_run(2, 2, **bounds)
    load = [
        replace(o, requests=replace(o.requests, output_tokens=np.full_like(o.requests.output_tokens, counted)))
        if o.arm is Arm.CANDIDATE and o.stage.startswith("capacity")
        else o
        for o in evidence.load
    ]
    assert capacity_check(asked, replace(evidence, load=tuple(load))).outcome is outcome


ONE_SESSION = dict.fromkeys(Arm, 0)


def judged_searches(
    change: Callable[[LoadObservation], RequestColumns], sessions: Mapping[Arm, int] = ONE_SESSION
) -> Verdict:
    """The verdict on a run of two equal arms whose looks were changed, and taken in these sessions."""
    evidence = searched_run(2, 2)
    load = (
        one if one.stage == "c1" else replace(one, requests=change(one), session=sessions[one.arm])
        for one in evidence.load
    )
    return judge(suite(), replace(evidence, load=tuple(load)))


def tripped(verdict: Verdict) -> list[str]:
    return [guard.id for guard in verdict.guards if guard.tripped]


def test_looks_answered_before_they_were_sent_are_no_capacity() -> None:
    def early(one: LoadObservation) -> RequestColumns:
        columns, by_ns = one.requests, S * (one.arm is Arm.CANDIDATE)
        return replace(columns, chunk_ns=columns.chunk_ns - by_ns, end_ns=columns.end_ns - by_ns)

    verdict = judged_searches(early)
    assert tripped(verdict) == ["times-possible"]
    assert verdict.outcome is Outcome.INVALID


def test_looks_in_which_the_candidate_writes_less_are_no_capacity() -> None:
    def shorter(one: LoadObservation) -> RequestColumns:
        tokens = 8 if one.arm is Arm.CANDIDATE else 64
        return replace(one.requests, output_tokens=np.full_like(one.requests.output_tokens, tokens))

    verdict = judged_searches(shorter)
    assert "same-work" in tripped(verdict)
    assert verdict.outcome is Outcome.INVALID


@pytest.mark.parametrize(("of_baseline", "of_candidate", "trips"), [(1, 1, True), (0, 1, False)])
def test_looks_of_both_arms_are_compared_within_a_session(of_baseline: int, of_candidate: int, trips: bool) -> None:
    """A resumed search draws other requests than the look that was interrupted had."""

    def shorter(one: LoadObservation) -> RequestColumns:
        tokens = 4 if one.arm is Arm.CANDIDATE else 8
        return replace(one.requests, input_tokens=np.full_like(one.requests.input_tokens, tokens))

    sessions = {Arm.BASELINE: of_baseline, Arm.CANDIDATE: of_candidate}
    verdict = judged_searches(shorter, sessions)
    assert ("prompts-alike" in tripped(verdict)) is trips
    assert verdict.outcome is Outcome.INVALID, "a search without a look that both arms had compares nothing"


def test_later_turns_in_a_look_larger_than_a_probe_are_no_first_ones() -> None:
    """Later turns repeat the model's own answers, whose lengths may differ."""
    written = text(capacity="{over: concurrency, from: 32, to: 64, probe: 100}")
    asked = parse_suite(written.replace("output: 2}", "output: 2, session: {turns: 3}}"), "suite.yaml")
    search = search_of(asked)
    assert search is not None
    look = PlannedLook(64.0, 0, search.settings.look_requests(64.0, 0))
    assert look.requests > 100
    columns, load = answered(look, 64, over="concurrency"), []
    for arm, repeated in zip(Arm, (100, 60), strict=True):
        own = replace(columns, input_tokens=columns.input_tokens + columns.index % 3 * repeated)
        load.append(LoadObservation("capacity/64", arm, 0, 0, own, 1.0, CALM))
    evidence = replace(searched_run(2, 2), load=tuple(load))
    assert not prompts_alike(evidence, asked).tripped


@pytest.mark.parametrize(("times", "trips"), [(1.05, False), (1.06, True)])
def test_looks_at_a_server_that_others_use_too_are_no_capacity(times: float, trips: bool) -> None:
    def window(one: LoadObservation) -> TelemetryWindow:
        counted = len(one.requests) * (times if one.arm is Arm.BASELINE and one.stage != "c1" else 1.0)
        readings = [TelemetrySample(at_s, {Counter.REQUESTS: value}) for at_s, value in ((0.0, 0.0), (9.0, counted))]
        return TelemetryWindow(one.stage, one.arm, one.block, one.position, "vllm", 8.0, True, tuple(readings))

    evidence = searched_run(2, 2)
    verdict = judge(suite(), replace(evidence, telemetry=tuple(map(window, evidence.load))))
    assert tripped(verdict) == ["server-alone"] * trips
    capacity = next(check for check in verdict.checks if check.metric == "capacity")
    assert capacity.outcome is (Outcome.INVALID if trips else Outcome.PASS)
