"""What only a drill looks at: refusals, validity, knees, the server's own numbers, and cold starts."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from benchgate.gate.judge import judge
from benchgate.model.deployment import Arm
from benchgate.model.records import ErrorClass, RequestColumns
from benchgate.model.run import Evidence, LoadObservation, ServerStart
from benchgate.model.telemetry import Counter, Gauge, TelemetryMetric, TelemetrySample, TelemetryWindow
from benchgate.model.verdict import Outcome
from benchgate.suite.schema import Suite
from tests.fakes.drills import Line, checked, drill, seen
from tests.fakes.measured import Effect, measured


def refused(execution: LoadObservation, count: int, error: ErrorClass) -> LoadObservation:
    """The first so many requests failed in this way."""
    columns = execution.requests
    first = np.arange(len(columns)) < count
    failed = {"error": columns.error.but(first, error), "error_detail": columns.error_detail.but(first, "made up")}
    return replace(execution, requests=RequestColumns.from_columns({**columns.to_columns(), **failed}))


@pytest.mark.parametrize(
    ("line", "error", "outcome"),
    [
        ({"metric": "rejected", "min": "10%"}, ErrorClass.HTTP_429, Outcome.PASS),
        ({"metric": "rejected", "min": "10%"}, ErrorClass.TIMEOUT, Outcome.BLOCK),
        ({"metric": "rejected", "max": "10%"}, ErrorClass.HTTP_429, Outcome.BLOCK),
        ({"metric": "error_rate", "of": "timeout", "max": "2%"}, ErrorClass.HTTP_429, Outcome.PASS),
        ({"metric": "error_rate", "of": "timeout", "max": "2%"}, ErrorClass.TIMEOUT, Outcome.BLOCK),
    ],
)
def test_refusals_and_timeouts_are_shares_of_their_own(line: Line, error: ErrorClass, outcome: Outcome) -> None:
    suite = drill({**line, "stage": "long"})
    evidence = measured(suite)
    load = tuple(refused(o, 10, error) if o.stage == "long" else o for o in evidence.load)
    check = judge(suite, replace(evidence, load=load)).checks[0]
    assert check.outcome is outcome, check.reason
    assert check.id.startswith("error_rate-timeout@long" if "of" in line else "rejected@long:m")


def valid(execution: LoadObservation, wrong: int, asked: int = 40) -> LoadObservation:
    """The first `asked` answers held to a schema, and so many of them not what it asks for."""
    columns = execution.requests
    column = np.where(np.arange(40) < asked, np.arange(40) >= wrong, -1).astype(np.int64)
    return replace(execution, requests=RequestColumns.from_columns({**columns.to_columns(), "valid": column}))


def test_validity_is_the_share_of_answers_that_are_what_their_schema_asks_for() -> None:
    suite = drill(
        {"metric": "validity", "stage": "long", "min": "90%"},
        {"metric": "validity", "stage": "long", "over": "short", "min": "20 points"},
        {"metric": "validity", "stage": "short", "min": "90%"},
    )
    evidence = measured(suite)
    load = tuple(valid(o, 0 if o.stage == "long" else 20) for o in evidence.load)
    outcomes = [check.outcome for check in judge(suite, replace(evidence, load=load)).checks]
    assert outcomes == [Outcome.PASS, Outcome.PASS, Outcome.BLOCK]


def test_answers_that_nobody_held_to_anything_have_no_validity() -> None:
    check = checked({"metric": "validity", "stage": "long", "min": "90%"}, {})
    assert check.outcome is Outcome.INVALID
    assert "no answer was held to a schema" in check.reason


def test_a_request_that_failed_brought_no_valid_answer() -> None:
    suite = drill({"metric": "validity", "stage": "long", "min": "90%"})
    evidence = seen(suite, {"long": Effect(failed=10)})
    load = tuple(valid(o, 0, asked=0) if o.stage == "short" else valid_where_answered(o) for o in evidence.load)
    check = judge(suite, replace(evidence, load=load)).checks[0]
    assert check.outcome is Outcome.BLOCK
    assert check.candidate == pytest.approx(0.75)


def valid_where_answered(execution: LoadObservation) -> LoadObservation:
    column = np.where(execution.requests.output_tokens > 0, 1, -1)
    changed = {**execution.requests.to_columns(), "valid": column}
    return replace(execution, requests=RequestColumns.from_columns(changed))


LEVELS = ("c1", "c2", "c4", "c8", "c16")


def swept(suite: Suite, slots: int) -> Evidence:
    """Throughput that grows with the requests in flight up to the slots, and latency beyond them."""
    evidence = measured(suite)

    def at(execution: LoadObservation) -> LoadObservation:
        level = 2 ** LEVELS.index(execution.stage)
        wait = max(1.0, level / slots)
        columns, window_s = execution.requests, execution.window_s / min(level, slots)
        began = {"chunk_ns": np.repeat(columns.sent_ns, np.diff(columns.chunk_start)), "end_ns": columns.sent_ns}
        took = {name: (getattr(columns, name) - at_ns) * wait for name, at_ns in began.items()}
        closer = (window_s * 1e9 - took["end_ns"].max()) / columns.sent_ns.max()  # more at once, and over as early
        moved = {name: began[name] * closer + took[name] for name in began}
        moved |= {name: getattr(columns, name) * closer for name in ("intended_ns", "sent_ns")}
        whole = {name: values.astype(np.int64) for name, values in moved.items()}
        requests = RequestColumns.from_columns({**columns.to_columns(), **whole})
        return replace(execution, requests=requests, window_s=window_s)

    return replace(evidence, load=tuple(at(o) for o in evidence.load))


@pytest.mark.parametrize("slots", [2, 4, 8])
def test_the_knee_of_a_sweep_is_where_the_slots_are_all_taken(slots: int) -> None:
    lines = [{"metric": "knee", "min": slots}, {"metric": "knee", "max": slots}, {"metric": "knee", "min": slots + 1}]
    suite = drill(*lines, stages=LEVELS)
    verdict = judge(suite, swept(suite, slots))
    assert [check.outcome for check in verdict.checks] == [Outcome.PASS, Outcome.PASS, Outcome.BLOCK]
    assert verdict.checks[0].candidate == slots
    assert verdict.checks[0].title == "Requests in flight at the knee"


def test_a_knee_is_found_by_what_is_decoded_at_once_where_a_batch_brings_no_throughput() -> None:
    """Twice as many slots taken take twice as long, so tokens per second stay as they are."""
    suite = drill({"metric": "knee", "min": 4}, {"metric": "knee", "max": 4}, stages=LEVELS)
    evidence = swept(suite, 4)

    def shared(execution: LoadObservation) -> LoadObservation:
        slots = min(2 ** LEVELS.index(execution.stage), 4)
        columns = execution.requests
        first = np.repeat(columns.chunk_ns[columns.chunk_start[:-1]], np.diff(columns.chunk_start))
        waited = max(1.0, 2 ** LEVELS.index(execution.stage) / 4)
        moved = {name: getattr(columns, name) * slots for name in ("intended_ns", "sent_ns", "end_ns")}
        moved["chunk_ns"] = (first * slots + (columns.chunk_ns - first) * slots / waited).astype(np.int64)
        requests = RequestColumns.from_columns({**columns.to_columns(), **moved})
        return replace(execution, requests=requests, window_s=execution.window_s * slots)

    verdict = judge(suite, replace(evidence, load=tuple(shared(o) for o in evidence.load)))
    assert [check.outcome for check in verdict.checks] == [Outcome.PASS, Outcome.PASS]
    assert verdict.checks[0].notes == ("8 of 8 blocks by requests decoding at once",)


def test_a_sweep_that_never_bends_has_no_knee_to_hold_to_a_bound() -> None:
    suite = drill({"metric": "knee", "max": 64}, stages=LEVELS)
    check = judge(suite, swept(suite, 1000)).checks[0]
    assert check.outcome is Outcome.INVALID
    assert "there is no knee" in check.reason


def test_a_knee_needs_enough_blocks_for_its_median_to_have_limits() -> None:
    suite = drill({"metric": "knee", "min": 4}, stages=LEVELS, blocks=4)
    check = judge(suite, swept(suite, 4)).checks[0]
    assert check.outcome is Outcome.INCONCLUSIVE
    assert check.advice == "measure at least 5 blocks"


@pytest.mark.parametrize(("bound", "slots"), [("min", 4), ("max", 4)])
def test_a_block_without_a_knee_is_on_the_wrong_side_and_shows_nothing(bound: str, slots: int) -> None:
    """Of eight blocks the second smallest and the second largest are the median's limits."""
    suite = drill({"metric": "knee", bound: slots}, stages=LEVELS)
    bent, straight = swept(suite, slots), swept(suite, 1000)
    for without, outcome in ((1, Outcome.PASS), (2, Outcome.INCONCLUSIVE), (7, Outcome.INCONCLUSIVE)):
        load = tuple(a if a.block >= without else b for a, b in zip(bent.load, straight.load, strict=True))
        check = judge(suite, replace(bent, load=load)).checks[0]
        assert check.outcome is outcome, check.reason
        assert f"in {without} of 8 blocks there is no knee" in check.notes[1]


def test_a_knee_takes_every_level_in_the_same_block_and_answers_at_each() -> None:
    suite = drill({"metric": "knee", "min": 4}, stages=LEVELS)
    evidence = swept(suite, 4)
    apart = tuple(o for o in evidence.load if o.block % 2 == (o.stage == "c16"))
    failing = measured(suite, Effect(failed=40), Effect(failed=40))
    failed = tuple(b if a.stage == "c16" else a for a, b in zip(evidence.load, failing.load, strict=True))
    for load, says in ((apart, "no block has every closed-loop stage"), (failed, "too many of its requests failed")):
        check = judge(suite, replace(evidence, load=load)).checks[0]
        assert (check.outcome, says in check.reason) == (Outcome.INVALID, True)


def window(
    block: int, arm: Arm, stage: str, before: dict[TelemetryMetric, float], after: dict[TelemetryMetric, float]
) -> TelemetryWindow:
    during: dict[TelemetryMetric, float] = {Gauge.WAITING: 3.0} if Gauge.WAITING in before else {}
    readings = (TelemetrySample(0.0, before), TelemetrySample(1.0, {**before, **during}), TelemetrySample(3.0, after))
    return TelemetryWindow(stage, arm, block, 0, "vllm", 2.0, drained=True, readings=readings)


TOLD: dict[TelemetryMetric, float] = {
    Gauge.KV_USAGE: 0.0,
    Gauge.WAITING: 0.0,
    Counter.PREEMPTIONS: 5.0,
    Counter.PREFIX_QUERIES: 100.0,
    Counter.PREFIX_HITS: 10.0,
}
LATER: dict[TelemetryMetric, float] = {
    Gauge.KV_USAGE: 0.04,
    Gauge.WAITING: 0.0,
    Counter.PREEMPTIONS: 7.0,
    Counter.PREFIX_QUERIES: 300.0,
    Counter.PREFIX_HITS: 110.0,
}


@pytest.mark.parametrize(
    ("metric", "value", "holds", "breaks"),
    [
        ("kv_usage_after", 0.04, {"max": "5%"}, {"max": "3%"}),
        ("preemptions", 2, {"max": 2}, {"max": 1}),
        ("queue_depth", 3, {"max": 3}, {"max": 2}),
        ("prefix_hit_rate", 0.5, {"min": "45%"}, {"min": "60%"}),
        ("prefix_hit_rate", 0.5, {"max": "55%"}, {"max": "40%"}),
    ],
)
def test_what_the_server_says_of_itself_is_held_to_its_bound(
    metric: str, value: float, holds: Line, breaks: Line
) -> None:
    for bound, outcome in ((holds, Outcome.PASS), (breaks, Outcome.BLOCK)):
        suite = drill({"metric": metric, "stage": "long", **bound})
        told = tuple(window(block, arm, "long", TOLD, LATER) for block in range(8) for arm in Arm)
        elsewhere = tuple(window(block, arm, "short", TOLD, {}) for block in range(8) for arm in Arm)
        check = judge(suite, replace(measured(suite), telemetry=told + elsewhere)).checks[0]
        assert check.outcome is outcome, check.reason
        assert check.candidate == pytest.approx(value)


def test_what_a_server_does_not_tell_is_never_good() -> None:
    suite = drill({"metric": "preemptions", "stage": "long", "max": 1})
    silent = tuple(window(block, arm, "long", {}, {}) for block in range(8) for arm in Arm)
    for telemetry in ((), silent):
        check = judge(suite, replace(measured(suite), telemetry=telemetry)).checks[0]
        assert check.outcome is Outcome.INVALID
        assert "did not tell preemptions of stage long" in check.reason


def test_a_share_that_is_not_settled_says_how_many_requests_would_do() -> None:
    suite = drill({"metric": "error_rate", "stage": "long", "max": "1%"}, blocks=2)
    check = judge(suite, measured(suite)).checks[0]
    assert (check.outcome, check.n) == (Outcome.INCONCLUSIVE, 80)
    assert check.advice == "measure more requests: about 299 in all would settle it"
    assert judge(suite, measured(suite)).checks[0].notes == ()


STARTS = Suite.model_validate(
    {
        "suite": "start",
        "deployments": {"one": {"embedded": {}}},
        "baseline": "one",
        "candidate": "one",
        "start": {"times": 4},
        "gate": {"checks": [{"metric": "cold_start", "max": "5s"}]},
    }
)


@pytest.mark.parametrize(
    ("times_s", "outcome"),
    [
        ((2.0, 2.1, 1.9, 2.0), Outcome.PASS),
        ((4.5, 4.4, 4.6, 4.5), Outcome.WARN),
        ((6.0, 6.1, 5.9, 6.0), Outcome.BLOCK),
        ((1.0, 20.0, 1.0, 20.0), Outcome.INCONCLUSIVE),
        ((0.0, 2.0, 2.0, 2.0), Outcome.INVALID),  # a clock that went back
        ((2.0, 2.1, 1.9), Outcome.INVALID),  # the slow one has no record
        ((), Outcome.INVALID),
    ],
)
def test_a_cold_start_is_held_to_its_bound_over_all_starts(times_s: tuple[float, ...], outcome: Outcome) -> None:
    starts = tuple(ServerStart(Arm.CANDIDATE, number, time_s) for number, time_s in enumerate(times_s))
    verdict = judge(STARTS, replace(measured(STARTS), starts=starts))
    assert verdict.outcome is outcome, verdict.reason
    if outcome is Outcome.PASS:
        again = (*starts[:3], replace(starts[0], to_answer_s=1.9))  # one of them twice, and none fourth
        assert judge(STARTS, replace(measured(STARTS), starts=again)).outcome is Outcome.INVALID


def test_one_start_gives_no_interval_and_those_of_the_baseline_none_of_the_candidate() -> None:
    one = replace(measured(STARTS), starts=(ServerStart(Arm.CANDIDATE, 0, 2.0),))
    assert judge(STARTS, one).checks[0].outcome is Outcome.INCONCLUSIVE
    theirs = tuple(ServerStart(Arm.BASELINE, number, 2.0) for number in range(4))
    assert judge(STARTS, replace(one, starts=theirs)).checks[0].outcome is Outcome.INVALID


@pytest.mark.parametrize(("bound", "outcome"), [("72%", Outcome.PASS), ("69%", Outcome.BLOCK)])
def test_a_share_of_most_of_a_cache_is_held_to_its_bound_as_any_other(bound: str, outcome: Outcome) -> None:
    suite = drill({"metric": "kv_usage_after", "stage": "long", "max": bound})
    full = {**LATER, Gauge.KV_USAGE: 0.7}
    told = tuple(window(block, Arm.CANDIDATE, "long", TOLD, full) for block in range(8))
    assert judge(suite, replace(measured(suite), telemetry=told)).checks[0].outcome is outcome


def test_what_the_server_says_in_one_block_has_no_interval() -> None:
    suite = drill({"metric": "preemptions", "stage": "long", "max": 9})
    evidence = measured(suite)
    one = replace(
        evidence,
        load=tuple(o for o in evidence.load if o.block == 0),
        telemetry=(window(0, Arm.CANDIDATE, "long", TOLD, LATER),),
    )
    check = judge(suite, one).checks[0]
    assert (check.outcome, "1 blocks give no interval" in check.reason) == (Outcome.INCONCLUSIVE, True)


def test_a_server_that_was_never_seen_idle_may_hold_its_cache_for_all_that_is_known() -> None:
    suite = drill({"metric": "kv_usage_after", "stage": "long", "max": "5%"})
    told = tuple(replace(window(n, Arm.CANDIDATE, "long", TOLD, LATER), drained=n != 3) for n in range(8))
    check = judge(suite, replace(measured(suite), telemetry=told)).checks[0]
    assert check.outcome is Outcome.INVALID
    assert "was not seen idle after stage long in block 4" in check.reason
    silent = tuple(replace(window(n, Arm.CANDIDATE, "long", {}, {}), drained=False) for n in range(8))
    untold = judge(suite, replace(measured(suite), telemetry=silent)).checks[0]
    assert "did not tell kv_usage_after of stage long in block 1" in untold.reason
