"""Guards over telemetry: other traffic, restarts and warm caches are seen, and silence or noise trips nothing."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import replace

import numpy as np
import pytest

from benchgate.gate.evidence.telemetry import block_telemetry, compare_counts
from benchgate.gate.guards.server import telemetry_notices
from benchgate.gate.judge import judge
from benchgate.model.deployment import Arm
from benchgate.model.records import ABSENT, RequestColumns, TokenSource
from benchgate.model.run import Evidence, LoadObservation
from benchgate.model.telemetry import Counter, Gauge, Replica, TelemetryMetric, TelemetrySample, TelemetryWindow
from benchgate.model.verdict import GuardResult, Outcome
from benchgate.suite.schema import Suite
from tests.fakes.guards import TELEMETRY, of_run
from tests.fakes.measured import Effect, SuiteText, measured

CHECKS: list[dict[str, object]] = [{"metric": "ttft", "margin": "10%"}, {"metric": "error_rate", "max": "1%"}]
REQUESTS, PROMPT_TOKENS, TOKENS = 60, 8, 10  # per stage; of each request, as `measured` makes them up
Change = Callable[[TelemetryWindow], TelemetryWindow]


@functools.cache
def suite() -> Suite:
    return SuiteText(CHECKS).suite()


@functools.cache
def healthy() -> Evidence:
    return measured(suite())


def told(
    seen: LoadObservation,
    *,
    more: Mapping[TelemetryMetric, float] | None = None,
    markers: tuple[str | None, str | None] | None = None,
) -> TelemetryWindow:
    """What an honest server says of an execution, and `more` of some words on top; each arm has its own process."""
    markers = markers or (f"born {seen.arm}", f"born {seen.arm}")
    counts: dict[TelemetryMetric, float] = {
        Counter.REQUESTS: REQUESTS,
        Counter.PROMPT_TOKENS: REQUESTS * PROMPT_TOKENS,
        Counter.GENERATION_TOKENS: REQUESTS * TOKENS,
        Counter.PREFIX_QUERIES: REQUESTS * PROMPT_TOKENS,
        Counter.PREFIX_HITS: 0.0,
    }
    counts = {**dict.fromkeys(more or {}, 0.0), **counts}
    grown = {word: value + (more or {}).get(word, 0.0) for word, value in counts.items()}
    before = TelemetrySample(0, dict.fromkeys(counts, 1000.0), markers[0])
    after = TelemetrySample(10, {word: 1000.0 + value for word, value in grown.items()}, markers[1])
    return TelemetryWindow(seen.stage, seen.arm, seen.block, seen.position, "vllm", 10.0, True, (before, after))


def observed(
    candidate: Effect | None = None, *, where: Callable[[LoadObservation], bool] = lambda _: False, **how: object
) -> Evidence:
    """Two arms whose servers say what they did; something else, `how`, in the executions `where` it is so."""
    evidence = healthy() if candidate is None else measured(suite(), candidate)
    return replace(
        evidence,
        telemetry=tuple(told(o, **how) if where(o) else told(o) for o in evidence.load),  # type: ignore[arg-type]  # of `told`
    )


def guard(evidence: Evidence, name: str) -> GuardResult:
    return next(guard for guard in of_run(evidence, suite(), *TELEMETRY) if guard.id == name)


def on_candidate(seen: LoadObservation) -> bool:
    return seen.arm is Arm.CANDIDATE


def in_one_block(seen: LoadObservation) -> bool:
    return seen.arm is Arm.CANDIDATE and seen.block == 1


def test_servers_that_did_what_they_were_asked_trip_nothing_and_need_no_word() -> None:
    evidence = observed()
    assert [found.id for found in of_run(evidence, suite(), *TELEMETRY) if found.tripped] == []
    assert telemetry_notices(evidence, suite()) == ()
    assert judge(suite(), evidence).outcome is Outcome.PASS


def test_speculative_decoding_on_random_words_is_noticed() -> None:
    evidence = observed(where=on_candidate, more={Counter.DRAFTED: 40.0, Counter.ACCEPTED: 10.0})
    (notice,) = telemetry_notices(evidence, suite())
    assert notice.startswith("the candidate decodes speculatively and the prompts of stage ")
    assert judge(suite(), evidence).outcome is Outcome.PASS
    stored = suite().to_stored()
    workload = {key: value for key, value in stored["load"]["workload"].items() if key != "input_tokens"}
    stored["load"]["workload"] = {**workload, "prompts": "builtin"}
    assert telemetry_notices(evidence, Suite.from_stored(stored)) == ()


def test_a_run_in_which_nobody_looked_has_no_such_guards() -> None:
    assert of_run(healthy(), suite(), *TELEMETRY) == []


def test_servers_that_tell_nothing_hold_the_guards_and_say_that_nothing_is_known() -> None:
    silent = healthy()
    windows = tuple(replace(told(o), readings=(), engine=None, problems=("HTTP 404",)) for o in silent.load)
    found = of_run(replace(silent, telemetry=windows), suite(), *TELEMETRY)
    assert {result.tripped for result in found} == {False}
    assert all("not known" in result.reason and not result.known for result in found)


@pytest.mark.parametrize("word", [Counter.REQUESTS, Counter.PROMPT_TOKENS, Counter.GENERATION_TOKENS])
@pytest.mark.parametrize(("share", "tripped", "said"), [(0.06, True, True), (0.03, False, True), (0.005, False, False)])
def test_what_a_server_did_beyond_what_it_was_asked_is_someone_elses(
    word: Counter, share: float, tripped: bool, said: bool
) -> None:
    whole = {Counter.REQUESTS: 1, Counter.PROMPT_TOKENS: PROMPT_TOKENS, Counter.GENERATION_TOKENS: TOKENS}
    evidence = observed(where=on_candidate, more={word: share * whole[word] * REQUESTS})
    found = guard(evidence, "server-alone")
    assert found.tripped is tripped
    assert ("others use this server too" in found.reason) is tripped
    assert bool(telemetry_notices(evidence, suite())) is said


def test_a_shared_server_makes_the_verdict_invalid_by_name() -> None:
    verdict = judge(suite(), observed(where=on_candidate, more={Counter.GENERATION_TOKENS: 100.0}))
    assert verdict.outcome is Outcome.INVALID
    assert "others use this server too" in verdict.reason


def test_a_burst_of_other_traffic_in_one_block_is_not_lost_in_the_others() -> None:
    blocks = len({o.block for o in healthy().load})
    burst = 0.04 * REQUESTS * TOKENS * blocks  # 4 % of the stage, all in one block
    assert guard(observed(where=in_one_block, more={Counter.GENERATION_TOKENS: burst}), "server-alone").tripped
    spread = observed(where=on_candidate, more={Counter.GENERATION_TOKENS: burst / blocks})
    assert not guard(spread, "server-alone").tripped


def test_answers_that_failed_may_have_cost_the_server_up_to_the_longest_answer() -> None:
    def compare_counts(beyond: float) -> bool:
        """A tenth of the requests failed; the server counts all their tokens, and `beyond`."""
        return guard(observed(Effect(failed=6), where=on_candidate, more={Counter.GENERATION_TOKENS: beyond}),
                     "server-alone").tripped  # fmt: skip

    assert not compare_counts(0.0)
    assert compare_counts(0.07 * REQUESTS * TOKENS)


def test_a_client_that_was_told_no_count_holds_none_against_the_server() -> None:
    evidence = observed(Effect(token_source=TokenSource.CHUNKS))
    load = tuple(
        replace(o, requests=replace(o.requests, input_tokens=np.full(REQUESTS, ABSENT, dtype=np.int64)))
        for o in evidence.load
    )
    evidence = replace(evidence, load=load)
    assert not guard(evidence, "server-alone").tripped
    assert telemetry_notices(evidence, suite()) == ()
    counts = compare_counts(evidence.telemetry[0], [load[0]], unrecorded=0, longest=TOKENS)
    assert {count.what for count in counts} == {"requests", "generated tokens"}


def test_transcripts_without_a_usage_have_no_length_to_hold_against_the_server() -> None:
    evidence = observed(Effect(token_source=TokenSource.CHUNKS))
    evidence = replace(evidence, telemetry=tuple(told(o, more={Counter.GENERATION_TOKENS: 9e3}) for o in evidence.load))
    load = suite().load
    assert load is not None
    workload = load.workload.model_copy(update={"endpoint": "transcriptions", "output_tokens": None})
    transcribing = suite().model_copy(update={"load": load.model_copy(update={"workload": workload})})
    assert of_run(evidence, suite(), "server-alone")[0].tripped
    assert not of_run(evidence, transcribing, "server-alone")[0].tripped


def test_of_reranking_only_prompt_tokens_are_compared() -> None:
    evidence = observed()
    counts = compare_counts(evidence.telemetry[0], [evidence.load[0]], unrecorded=0, longest=0, generates=False)
    assert [count.what for count in counts] == ["prompt tokens"]


def test_a_server_that_counts_fewer_tells_only_of_a_part_and_that_is_said() -> None:
    evidence = observed(where=on_candidate, more={Counter.GENERATION_TOKENS: -0.5 * REQUESTS * TOKENS})
    assert not guard(evidence, "server-alone").tripped
    assert any("fewer than the load generator received" in notice for notice in telemetry_notices(evidence, suite()))


def test_a_restart_in_a_stage_makes_the_load_invalid_by_name() -> None:
    before = healthy()
    markers = {True: ("born", "born"), False: ("reborn", "reborn")}
    windows = tuple(
        told(o, markers=("born", "reborn") if in_one_block(o) else markers[o.block < 1 or not on_candidate(o)])
        for o in before.load
    )
    evidence = replace(before, telemetry=windows)
    found = guard(evidence, "server-kept-running")
    assert found.tripped
    assert "block 2, candidate: the server was restarted" in found.reason
    assert judge(suite(), evidence).outcome is Outcome.INVALID


def test_a_counter_that_went_back_is_a_restart_too() -> None:
    evidence = observed(where=in_one_block, more={Counter.REQUESTS: -REQUESTS - 1.0})
    found = guard(evidence, "server-kept-running")
    assert found.tripped
    assert "block 2, candidate: a counter of the server decreased" in found.reason


def test_a_replica_that_was_restarted_is_named_though_the_sum_grew() -> None:
    def of_replicas(window: TelemetryWindow) -> TelemetryWindow:
        fallen = tuple(replace(one, values={Counter.REQUESTS: 60.0 - one.at_s}) for one in window.readings)
        whole = Replica("host-1:8000", None, window.readings)
        return replace(window, replicas=(whole, Replica("host-2:8000", None, fallen)))

    evidence = observed()
    telemetry = [of_replicas(one) if one.arm is Arm.CANDIDATE else one for one in evidence.telemetry]
    found = guard(replace(evidence, telemetry=tuple(telemetry)), "server-kept-running")
    assert found.tripped and found.reason.endswith("candidate: these replicas were restarted: host-2:8000")


def test_a_restart_between_two_stages_is_said() -> None:
    def later(seen: LoadObservation) -> bool:
        return seen.arm is Arm.CANDIDATE and seen.block >= 2

    evidence = observed(where=later, markers=("reborn", "reborn"))
    assert not guard(evidence, "server-kept-running").tripped
    assert [notice for notice in telemetry_notices(evidence, suite()) if "restarted before block 3" in notice]


def test_several_servers_behind_one_address_are_no_restart_and_no_count() -> None:
    def other(seen: LoadObservation) -> bool:
        return seen.arm is Arm.CANDIDATE and seen.block % 2 == 1

    evidence = observed(where=other, markers=("a", "b"), more={Counter.GENERATION_TOKENS: 900.0})
    assert not guard(evidence, "server-kept-running").tripped
    assert not guard(evidence, "server-alone").tripped
    assert [notice for notice in telemetry_notices(evidence, suite()) if "several servers answer in turn" in notice]


@pytest.mark.parametrize(("share", "tripped", "said"), [(0.5, True, True), (0.05, False, True), (0.001, False, False)])
def test_a_warm_cache_on_one_arm_is_no_speed(share: float, tripped: bool, said: bool) -> None:
    hits = share * REQUESTS * PROMPT_TOKENS
    evidence = observed(where=on_candidate, more={Counter.PREFIX_HITS: hits})
    found = guard(evidence, "cache-cold")
    assert found.tripped is tripped
    assert [n for n in telemetry_notices(evidence, suite()) if "prefix cache" in n] != [] or not said
    if tripped:
        checks = {check.metric: check.outcome for check in judge(suite(), evidence).checks}
        assert checks == {"ttft": Outcome.INVALID, "error_rate": Outcome.PASS}


def test_caches_as_warm_on_both_arms_trip_nothing() -> None:
    evidence = observed(where=lambda _: True, more={Counter.PREFIX_HITS: 0.5 * REQUESTS * PROMPT_TOKENS})
    assert not guard(evidence, "cache-cold").tripped


def without_prefix_words(window: TelemetryWindow) -> TelemetryWindow:
    silent = (Counter.PREFIX_HITS, Counter.PREFIX_QUERIES)
    readings = (replace(r, values={w: v for w, v in r.values.items() if w not in silent}) for r in window.readings)
    return replace(window, readings=tuple(readings))


def cached_by_usage(evidence: Evidence, of_candidate: int, of_baseline: int | None = 0) -> Evidence:
    """The answers say how many of the 8 tokens of each prompt were cached."""

    def said(o: LoadObservation) -> LoadObservation:
        tokens = of_candidate if o.arm is Arm.CANDIDATE else of_baseline
        cached = np.full(len(o.requests), ABSENT if tokens is None else tokens, dtype=np.int64)
        return replace(o, requests=replace(o.requests, cached_tokens=cached))

    return replace(evidence, load=tuple(map(said, evidence.load)))


def test_a_warm_cache_beside_one_that_nobody_tells_of_is_not_taken_for_equal() -> None:
    warm = observed(where=on_candidate, more={Counter.PREFIX_HITS: 0.95 * REQUESTS * PROMPT_TOKENS})
    windows = tuple(without_prefix_words(w) if w.arm is Arm.BASELINE else w for w in warm.telemetry)
    silent = replace(warm, telemetry=windows)
    found = guard(silent, "cache-cold")
    assert found.tripped
    assert "the baseline does not report it" in found.reason
    assert judge(suite(), silent).outcome is Outcome.INVALID
    assert not guard(cached_by_usage(silent, 8, of_baseline=8), "cache-cold").tripped  # its answers told


@pytest.mark.parametrize(("of_baseline", "tripped"), [(0, True), (None, True), (8, False)])
def test_answers_tell_of_a_warm_cache_where_nobody_asked_the_servers(of_baseline: int | None, tripped: bool) -> None:
    evidence = cached_by_usage(healthy(), 8, of_baseline)
    assert guard(evidence, "cache-cold").tripped is tripped
    assert (judge(suite(), evidence).outcome is Outcome.INVALID) is tripped


@pytest.mark.parametrize("by_server", [Arm.BASELINE, Arm.CANDIDATE])
def test_a_warm_cache_is_seen_where_each_arm_tells_in_its_own_way(by_server: Arm) -> None:
    warm = observed(where=on_candidate, more={Counter.PREFIX_HITS: 0.95 * REQUESTS * PROMPT_TOKENS})
    windows = tuple(w if w.arm is by_server else without_prefix_words(w) for w in warm.telemetry)
    telling = cached_by_usage(replace(warm, telemetry=windows), 8)
    silent = tuple(
        replace(o, requests=replace(o.requests, cached_tokens=np.full(len(o.requests), ABSENT, dtype=np.int64)))
        if o.arm is by_server
        else o
        for o in telling.load
    )
    assert guard(replace(telling, load=silent), "cache-cold").tripped


def test_an_answer_that_leaves_its_cached_tokens_out_hides_none_of_the_others() -> None:
    def but_one(o: LoadObservation) -> LoadObservation:
        cached = o.requests.cached_tokens.copy()
        cached[0] = ABSENT
        return replace(o, requests=replace(o.requests, cached_tokens=cached))

    warm = cached_by_usage(healthy(), 8, None)
    assert guard(replace(warm, load=tuple(map(but_one, warm.load))), "cache-cold").tripped


def test_prompts_that_the_background_asks_again_are_in_the_cache_without_fault() -> None:
    text = suite().to_stored()
    classes = {"chat": {"concurrency": 2, "requests": 60}, "batch": {"concurrency": 8, "background": True}}
    text["load"]["sweep"] = [{"name": "c4", "classes": classes, "requests": 60}]
    mixed = Suite.from_stored(text)
    warm = observed(where=on_candidate, more={Counter.PREFIX_HITS: 0.5 * REQUESTS * PROMPT_TOKENS})
    evidence = replace(warm, load=tuple(replace(o, stage=f"{o.stage}/chat") for o in warm.load))
    for cached, tripped in ((0, False), (8, True)):  # of the chats themselves
        guards = of_run(cached_by_usage(evidence, cached), mixed, *TELEMETRY)
        assert [g.id for g in guards if g.tripped] == ["cache-cold"] * tripped


def test_restarts_that_markers_hide_are_said_to_be_unknown_and_nothing_required_may_rest_on_that_server() -> None:
    hidden = observed(where=on_candidate, markers=("a", "b"))
    found = guard(hidden, "server-kept-running")
    assert (found.tripped, found.reason.partition(":")[0]) == (False, "not checked")
    resting = SuiteText([*CHECKS, {"metric": "preemptions", "max": 3}]).suite()
    (guarded,) = [g for g in of_run(hidden, resting, *TELEMETRY) if g.id == "server-kept-running"]
    assert guarded.tripped
    assert "a required check uses telemetry of the candidate" in guarded.reason


def test_a_metric_of_a_block_without_telemetry_is_none_and_not_zero() -> None:
    evidence = observed()
    stage = evidence.load[0].stage
    values = block_telemetry(
        replace(evidence, telemetry=evidence.telemetry[4:]), "prefix_hit_rate", stage, Arm.BASELINE
    )
    assert values[0] is None
    assert values[max(values)] == 0.0
    assert set(block_telemetry(evidence, "queue_depth", stage, Arm.BASELINE).values()) == {None}


def test_requests_broken_off_on_purpose_count_as_asked() -> None:
    evidence = observed()
    few = replace(evidence.load[0], requests=RequestColumns.pack([]), left=evidence.load[0].requests)
    assert not guard(replace(evidence, load=(few, *evidence.load[1:])), "server-alone").tripped


def test_the_depth_of_a_queue_is_the_deepest_that_was_seen() -> None:
    evidence = observed()
    looks = tuple(
        TelemetrySample(at_s, {Gauge.WAITING: depth, Gauge.RUNNING: 1.0})
        for at_s, depth in enumerate((0.0, 3.0, 7.0, 0.0))
    )
    windows = tuple(replace(window, readings=looks) for window in evidence.telemetry)
    stage = evidence.load[0].stage
    found = block_telemetry(replace(evidence, telemetry=windows), "queue_depth", stage, Arm.CANDIDATE)
    assert set(found.values()) == {7.0}
