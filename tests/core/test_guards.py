"""Guards over the load and the arms: what trips each, what it invalidates, and that none opens a way to PASS."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from benchgate.gate.judge import judge
from benchgate.model.deployment import Arm
from benchgate.model.records import ABSENT, IntArray, RequestColumns
from benchgate.model.run import ClientUse, Evidence
from benchgate.model.verdict import GuardResult, Outcome, Verdict
from benchgate.suite.schema import Suite
from benchgate.suite.stages import Stage
from benchgate.suite.workload import Workload
from tests.fakes.drills import drill
from tests.fakes.measured import HEALTHY, Effect, SuiteText, measured

Line = dict[str, object]
TTFT: Line = {"metric": "ttft", "margin": "10%"}
TPOT: Line = {"metric": "tpot", "margin": "10%"}
THROUGHPUT: Line = {"metric": "output_throughput", "margin": "10%"}
REQUESTS: Line = {"metric": "request_throughput", "margin": "10%"}
ERRORS: Line = {"metric": "error_rate", "max": "1%"}
GOODPUT: Line = {"metric": "goodput"}
ACCURACY: Line = {"metric": "accuracy", "margin": "2 points"}
EVERYTHING = [TTFT, TPOT, THROUGHPUT, REQUESTS, ERRORS, GOODPUT, ACCURACY]

ABLE = ClientUse(
    cpu_s=1.0,
    wall_s=10,
    workers=1,
    busiest_share=0.70,
    read_delay_p50_s=0.0001,
    read_delay_p99_s=0.005,
    read_delay_max_s=0.05,
    read_delay_by="canary",
)
BUSY = replace(ABLE, busiest_share=0.95)
SLOW_READER = replace(ABLE, read_delay_p99_s=0.060, read_delay_max_s=0.060)
SHORT = replace(ABLE, wall_s=0.4, busiest_share=None, cpu_s=0.1)
LOST_WORKER = replace(ABLE, faults=("worker 2 of 4 was lost",))


def verdict_on(candidate: Effect, baseline: Effect = HEALTHY, *, gate: Line | None = None) -> Verdict:
    suite = SuiteText(EVERYTHING, gate=gate or {}).suite()
    return judge(suite, measured(suite, candidate, baseline))


def tripped(verdict: Verdict) -> list[GuardResult]:
    return [guard for guard in verdict.guards if guard.tripped]


def invalidated(verdict: Verdict) -> set[str]:
    return {check.metric for check in verdict.checks if check.outcome is Outcome.INVALID}


SPEED = {"ttft", "tpot", "output_throughput", "request_throughput", "goodput"}
LOAD = SPEED | {"error_rate"}
COMPARED = SPEED - {"goodput"}  # by their margins

CASES = [
    ("client-keeps-up", Effect(client=BUSY), SPEED, "95.0 % of a core"),
    ("client-keeps-up", Effect(client=SLOW_READER), SPEED, "60.0 ms"),
    ("client-keeps-up", Effect(lag_ms=6), SPEED, "send lag is 6.00 ms"),
    ("load-as-planned", Effect(client=LOST_WORKER), LOAD, "worker 2 of 4 was lost"),
    ("load-as-planned", Effect(unsent=1), LOAD, "1 of 60 requests were never sent"),
    ("load-as-planned", Effect(own_faults=1), LOAD, "fault of the load generator's own machine"),
    ("tokens-plausible", Effect(usage=8), {"tpot", "output_throughput", "goodput"}, "fewer tokens"),
    ("arms-alike", Effect(facts={"engine_version": "2"}), COMPARED, "version (not reported for the baseline, 2 for"),
    ("arms-alike", Effect(facts={"max_model_len": 2}), COMPARED, "context (not reported for the baseline, 2 for"),
]


def _id(case: object) -> str:
    """The same in every process: a set is spelled in another order in each."""
    return str(sorted(case) if isinstance(case, set) else case)[:40]


@pytest.mark.parametrize(("guard", "effect", "metrics", "says"), CASES, ids=_id)
def test_a_guard_invalidates_what_it_must_and_nothing_else(
    guard: str, effect: Effect, metrics: set[str], says: str
) -> None:
    verdict = verdict_on(effect)
    (found,) = tripped(verdict)
    assert found.id == guard
    assert says in found.reason
    assert found.remedy
    assert invalidated(verdict) == metrics
    assert verdict.outcome is Outcome.INVALID


def test_equal_arms_on_an_able_client_trip_nothing() -> None:
    arm = Effect(client=ABLE, usage=9, facts={"engine_version": "1"})
    verdict = verdict_on(arm, arm)
    assert tripped(verdict) == []
    assert verdict.outcome is Outcome.PASS


def test_strain_in_a_quarter_of_the_executions_invalidates_nothing_and_in_more_of_them_does() -> None:
    suite = SuiteText(EVERYTHING).suite()
    calm, busy = measured(suite), measured(suite, Effect(client=BUSY))
    for blocks, outcome in (({0, 1}, Outcome.PASS), ({0, 1, 2}, Outcome.INVALID)):
        load = tuple(
            b if a.arm is Arm.CANDIDATE and a.block in blocks else a for a, b in zip(calm.load, busy.load, strict=True)
        )
        assert judge(suite, replace(calm, load=load)).outcome is outcome


def test_a_stall_in_a_short_stage_clouds_its_tail_and_not_its_median() -> None:
    # p95 of TTFT is about 55 ms: a quarter of that is more than 13 ms of a read that waited.
    tail: Line = {"metric": "ttft", "statistic": "p95", "margin": "10%"}
    suite = SuiteText([tail, {**tail, "statistic": "p50"}, ERRORS]).suite()
    for delay_s, outcome in ((0.013, Outcome.PASS), (0.015, Outcome.INVALID)):
        stalled = Effect(client=replace(SHORT, read_delay_p99_s=delay_s, read_delay_max_s=delay_s))
        for candidate, baseline in ((stalled, HEALTHY), (HEALTHY, stalled)):
            verdict = judge(suite, measured(suite, candidate, baseline))
            assert [check.outcome for check in verdict.checks] == [outcome, Outcome.PASS, Outcome.PASS]
            assert verdict.outcome is outcome
            assert ("so the tail is its own" in verdict.checks[0].reason) == (outcome is Outcome.INVALID)
            assert ("judge the median" in (verdict.checks[0].advice or "")) == (outcome is Outcome.INVALID)


def test_a_stall_in_a_short_stage_clouds_the_tail_of_an_slo_too() -> None:
    suite = SuiteText([{"metric": "ttft", "statistic": "p95", "max": "1s"}, ERRORS]).suite()
    stalled = Effect(client=replace(SHORT, read_delay_p99_s=0.03, read_delay_max_s=0.03))
    assert judge(suite, measured(suite, stalled)).outcome is Outcome.INVALID
    assert judge(suite, measured(suite, HEALTHY, stalled)).outcome is Outcome.PASS  # the baseline has no part in it


def test_blocks_whose_tail_is_the_clients_own_hide_no_slower_tail() -> None:
    # A quarter of the blocks with 30 ms of the client's in the baseline's tail would make 12 % look like 2 %.
    suite = SuiteText([{"metric": "ttft", "statistic": "p95", "margin": "10%"}, ERRORS], blocks=20).suite()
    slower = measured(suite, Effect(slowdown=1.12))
    waited = Effect(slowdown=1.5, client=replace(SHORT, read_delay_p99_s=0.03, read_delay_max_s=0.03))
    clouded = measured(suite, HEALTHY, waited)
    load = tuple(
        b if a.arm is Arm.BASELINE and a.block % 4 == 1 else a for a, b in zip(slower.load, clouded.load, strict=True)
    )
    verdict = judge(suite, replace(slower, load=load))
    assert verdict.outcome is Outcome.BLOCK
    assert verdict.checks[0].n == 15
    assert any("left out: stage c4: in 5 of 20 blocks, on the baseline" in note for note in verdict.checks[0].notes)


def test_a_lost_worker_in_one_execution_invalidates_the_load_by_name() -> None:
    suite = SuiteText(EVERYTHING).suite()
    evidence = measured(suite)
    lost = replace(evidence.load[5], client=LOST_WORKER)
    verdict = judge(suite, replace(evidence, load=(*evidence.load[:5], lost, *evidence.load[6:])))
    assert verdict.outcome is Outcome.INVALID
    assert "stage c4, block 3, candidate: worker 2 of 4 was lost" in verdict.reason


def test_a_candidate_that_fails_at_once_is_blocked_although_its_client_spins() -> None:
    verdict = verdict_on(Effect(failed=60, client=BUSY))
    assert verdict.outcome is Outcome.BLOCK
    assert [check.metric for check in verdict.checks if check.outcome is Outcome.BLOCK] == ["error_rate"]
    assert invalidated(verdict) == SPEED


def test_failures_that_a_busy_client_may_have_caused_itself_are_not_held_against_the_server() -> None:
    assert verdict_on(Effect(timed_out=60)).outcome is Outcome.BLOCK
    verdict = verdict_on(Effect(timed_out=60, client=BUSY))
    assert verdict.outcome is Outcome.INVALID
    assert invalidated(verdict) == LOAD


def test_no_policy_passes_under_a_tripped_guard() -> None:
    for check in (ERRORS, ACCURACY):  # what neither speed nor tokens spoil
        suite = SuiteText([check]).suite()
        for guard, effect, _, _ in CASES:
            verdict = judge(suite, measured(suite, effect))
            compares_nothing = guard == "arms-alike" and check is ERRORS
            assert bool(tripped(verdict)) is not compares_nothing
            assert verdict.outcome.promotes is compares_nothing


def with_column(evidence: Evidence, arm: Arm, name: str, value: IntArray) -> Evidence:
    """Every execution of this arm with one column of its requests put in place of what it was."""

    def changed(columns: RequestColumns) -> RequestColumns:
        return RequestColumns.from_columns({**columns.to_columns(), name: value})

    load = tuple(replace(o, requests=changed(o.requests)) if o.arm is arm else o for o in evidence.load)
    return replace(evidence, load=load)


def test_requests_that_only_the_candidate_made_be_sent_again_invalidate_the_load() -> None:
    suite = SuiteText(EVERYTHING).suite()
    resent = np.zeros(60, dtype=np.int64)
    resent[:1] = 1  # in each of 8 blocks: 8 of 480 requests
    evidence = with_column(measured(suite), Arm.CANDIDATE, "reconnects", resent)
    verdict = judge(suite, evidence)
    (guard,) = tripped(verdict)
    assert "closed the connection during 8 of 480 requests, which were resent" in guard.reason
    assert invalidated(verdict) == LOAD
    assert tripped(judge(suite, with_column(evidence, Arm.BASELINE, "reconnects", resent))) == []


def test_a_faster_candidate_of_a_server_that_always_closes_meets_more_closed_connections() -> None:
    suite = SuiteText(EVERYTHING).suite()
    often, oftener = (np.arange(60) < n for n in (41, 53))
    evidence = with_column(measured(suite), Arm.BASELINE, "reconnects", often.astype(np.int64))
    assert tripped(judge(suite, with_column(evidence, Arm.CANDIDATE, "reconnects", oftener.astype(np.int64)))) == []


def test_two_requests_sent_again_are_noise_however_few_there_are() -> None:
    suite = SuiteText(EVERYTHING, blocks=2, requests=40).suite()
    resent = np.zeros(40, dtype=np.int64)
    for more, guards in ((1, 0), (2, 1)):  # 2 and 4 of 80
        resent[:more] = 1
        verdict = judge(suite, with_column(measured(suite), Arm.CANDIDATE, "reconnects", resent))
        assert [guard.id for guard in tripped(verdict)] == ["sent-once"] * guards


@pytest.mark.parametrize(
    ("resent", "engine", "guards"), [(1, "vllm", 1), (40, "vllm", 0), (20, "llamacpp", 0), (0, "vllm", 0)]
)
def test_a_candidate_measured_alone_closes_no_connections_under_requests(resent: int, engine: str, guards: int) -> None:
    """Of 40 requests in each of 8 blocks; unless it closes after every answer, as one engine is known to do."""
    suite = drill(ERRORS)
    told = with_column(measured(suite), Arm.CANDIDATE, "reconnects", (np.arange(40) < resent).astype(np.int64))
    arms = {arm: replace(deployment, engine=engine) for arm, deployment in told.run.arms.items()}
    load = tuple(o for o in told.load if o.arm is Arm.CANDIDATE)
    found = tripped(judge(suite, replace(told, load=load, run=replace(told.run, arms=arms))))
    assert [guard.id for guard in found] == ["sent-once"] * guards


def test_a_request_whose_client_left_was_sent_again_all_the_same() -> None:
    suite = SuiteText(EVERYTHING, requests=40).suite()
    whole = SuiteText(EVERYTHING, requests=60).suite()
    resent = with_column(measured(whole), Arm.CANDIDATE, "reconnects", (np.arange(60) >= 58).astype(np.int64))
    load = tuple(
        replace(few, left=RequestColumns.pack([]) if few.arm is Arm.BASELINE else more.requests)
        for few, more in zip(measured(suite).load, resent.load, strict=True)
    )
    (found,) = [guard for guard in judge(whole, replace(resent, load=load)).guards if guard.id == "sent-once"]
    assert "16 of 800 requests" in found.reason


@pytest.mark.parametrize(
    ("turns", "cut", "guards"),
    [(3, {1, 2}, []), (3, {0}, ["prompts-alike"]), ({"uniform": [2, 6]}, {1, 2}, [])],
)
def test_only_what_begins_a_conversation_is_as_long_on_both_arms(
    turns: object, cut: set[int], guards: list[str]
) -> None:
    """Later turns hold what each model said before."""
    text = SuiteText(EVERYTHING).suite().to_stored()
    talk = Workload.model_validate({"input": "8 tokens", "output": "10 tokens", "session": {"turns": turns}})
    text["load"]["workload"] = talk.model_dump(mode="json")
    suite = Suite.from_stored(text)
    lengths = np.array([6 if index % 3 in cut else 8 for index in range(60)])
    verdict = judge(suite, with_column(measured(suite), Arm.CANDIDATE, "input_tokens", lengths))
    assert [guard.id for guard in tripped(verdict)] == guards


def test_answers_that_nobody_asked_for_make_the_load_another_one() -> None:
    suite = SuiteText(EVERYTHING).suite()

    def twice(evidence: Evidence, arm: Arm, times: int) -> Evidence:
        first, *others = (o for o in evidence.load if o.arm is arm)
        told = replace(first, client=replace(first.client, unasked=times))
        return replace(evidence, load=(told, *others, *(o for o in evidence.load if o.arm is not arm)))

    candidate = twice(measured(suite), Arm.CANDIDATE, 8)  # beside 480 requests
    verdict = judge(suite, candidate)
    (guard,) = tripped(verdict)
    assert (guard.id, invalidated(verdict)) == ("sent-once", LOAD)
    assert (
        "the candidate sent data 8 times over connections without a request in progress, in 480 requests "
        "(the baseline 0 times)" in guard.reason
    )
    assert tripped(judge(suite, twice(candidate, Arm.BASELINE, 8))) == []
    assert tripped(judge(suite, twice(measured(suite), Arm.CANDIDATE, 2))) == []


def test_a_server_that_cuts_prompts_is_not_faster() -> None:
    suite = SuiteText(EVERYTHING).suite()
    cut = np.array([7] * 5 + [8] * 55)
    for arm, says in ((Arm.CANDIDATE, "candidate counts 3800 tokens"), (Arm.BASELINE, "the baseline 3800")):
        verdict = judge(suite, with_column(measured(suite), arm, "input_tokens", cut))
        (guard,) = tripped(verdict)
        assert guard.id == "prompts-alike"
        assert says in guard.reason
        assert invalidated(verdict) == (SPEED if arm is Arm.CANDIDATE else COMPARED)


def test_another_tokenizer_that_is_declared_may_count_prompts_otherwise() -> None:
    suite = SuiteText(EVERYTHING, gate={"allow_different": ["vocabulary"]}).suite()
    fewer = np.full(60, 6)
    assert tripped(judge(suite, with_column(measured(suite), Arm.CANDIDATE, "input_tokens", fewer))) == []


def test_prompts_whose_length_neither_server_tells_are_not_compared() -> None:
    suite = SuiteText(EVERYTHING).suite()
    untold = np.full(60, ABSENT, dtype=np.int64)
    untold[:30] = 8
    evidence = with_column(measured(suite), Arm.CANDIDATE, "input_tokens", untold)
    assert tripped(judge(suite, with_column(evidence, Arm.BASELINE, "input_tokens", untold))) == []


@pytest.mark.parametrize("arm", Arm)
def test_a_server_that_alone_withholds_how_long_prompts_were_is_not_taken_at_its_word(arm: Arm) -> None:
    suite = SuiteText(EVERYTHING).suite()
    untold = np.full(60, ABSENT, dtype=np.int64)
    for rows, guards in ((60, ["prompts-alike"]), (1, ["prompts-alike"]), (0, [])):
        some = np.where(np.arange(60) < rows, untold, 8)
        verdict = judge(suite, with_column(measured(suite), arm, "input_tokens", some))
        assert [guard.id for guard in tripped(verdict)] == guards
        assert verdict.outcome is (Outcome.INVALID if guards else Outcome.PASS)
    told = judge(suite, with_column(measured(suite), arm, "input_tokens", untold)).reason
    assert f"for 480 of 480 answers only one arm, mostly the {arm.other.value}, reports the prompt's length" in told


def sent_by(evidence: Evidence, arm: Arm, workers: int) -> Evidence:
    """Every execution on this arm sent by so many processes."""
    load = tuple(replace(o, client=replace(o.client, workers=workers)) if o.arm is arm else o for o in evidence.load)
    return replace(evidence, load=load)


def test_arms_that_were_not_sent_by_as_many_processes_are_not_compared() -> None:
    suite = SuiteText(EVERYTHING).suite()
    verdict = judge(suite, sent_by(measured(suite), Arm.CANDIDATE, 4))
    (guard,) = tripped(verdict)
    assert guard.id == "one-client"
    assert "(1 for the baseline, 4 for the candidate)" in guard.reason
    assert invalidated(verdict) == SPEED


def test_stored_runs_sent_by_unlike_numbers_of_processes_say_so() -> None:
    suite = SuiteText(EVERYTHING).suite()
    other = sent_by(sent_by(measured(suite), Arm.CANDIDATE, 4), Arm.BASELINE, 4)
    other = replace(other, run=replace(other.run, id="run-2"))
    (told,) = [guard for guard in judge(suite, other, measured(suite)).guards if guard.id == "same-client"]
    assert "one was sent by 1 load generator process, the other by 4 load generator processes;" in told.reason
    assert not told.tripped
    spread = tuple(replace(o, client=replace(o.client, by_cluster=True)) for o in other.load)
    (told,) = [guard for guard in judge(suite, replace(other, load=spread), other).guards if guard.id == "same-client"]
    assert "the other by 4 load generator processes of a cluster" in told.reason


def replayed(evidence_of: tuple[Effect, Effect]) -> Verdict:
    """The verdict on a stage whose rows come from a trace."""
    suite = SuiteText(EVERYTHING).suite()
    assert suite.load is not None
    stage = Stage.model_validate({"stage": "c4", "trace": "day.csv", "requests": 60})
    suite = suite.model_copy(update={"load": suite.load.model_copy(update={"sweep": (stage,)})})
    return judge(suite, measured(suite, *evidence_of))


def test_rows_of_a_trace_are_held_to_their_own_length_and_not_to_the_workloads() -> None:
    (guard,) = tripped(replayed((Effect(tokens=5, usage=6), Effect(tokens=5))))  # the workload asks for 10
    assert guard.id == "answers-not-too-long"
    assert "480 of 480 answers of the candidate exceed the limit" in guard.reason
    assert tripped(replayed((Effect(tokens=7, finish="stop"), Effect(tokens=12, finish="stop")))) == []
    assert tripped(replayed((Effect(tokens=12), Effect(tokens=12)))) == []


@pytest.mark.parametrize(("tokens", "trips"), [(39, False), (38, True), (24, True)])
def test_answers_to_rows_of_a_trace_that_are_cut_earlier_are_less_work(tokens: int, trips: bool) -> None:
    found = [guard.id for guard in tripped(replayed((Effect(tokens=tokens), Effect(tokens=40))))]
    assert found == ["same-work"] * trips


def test_one_uncounted_token_is_a_withheld_tail_and_a_hundredth_of_the_answers_may_lack_more() -> None:
    assert tripped(verdict_on(Effect(usage=9))) == []
    (guard,) = tripped(verdict_on(HEALTHY, Effect(usage=8)))
    assert "baseline's answers" in guard.reason


def test_more_tokens_than_texts_are_merged_or_withheld_ones_and_no_fault() -> None:
    assert "tokens-plausible" not in {guard.id for guard in tripped(verdict_on(Effect(usage=14), Effect(usage=14)))}


def test_what_the_policy_declares_as_the_change_may_differ() -> None:
    other = Effect(facts={"engine_version": "2", "max_model_len": 4096}, accelerators=2)
    known = Effect(facts={"engine_version": "1", "max_model_len": 2048})
    (guard,) = tripped(verdict_on(other, known, gate={"allow_different": ["engine_version"]}))
    assert "version" not in guard.reason
    assert "the longest context (2048 for the baseline, 4096 for the candidate)" in guard.reason
    assert "`gate.allow_different: [context]`" in (guard.remedy or "")
    allowed: Line = {"allow_different": ["engine_version", "context"]}
    verdict = verdict_on(other, known, gate=allowed)
    assert verdict.outcome is Outcome.PASS
    assert any("only in the declared change" in guard.reason for guard in verdict.guards)


def test_the_change_itself_never_makes_arms_unlike() -> None:
    quantised = Effect(facts={"ftype": "Q4_0", "size": 1_000, "n_params": 7})
    assert tripped(verdict_on(quantised, Effect(facts={"ftype": "F16", "size": 4_000, "n_params": 8}))) == []


def test_another_engine_has_another_version_and_that_needs_no_second_word() -> None:
    suite = SuiteText([ERRORS, TTFT]).suite()
    evidence = measured(suite, Effect(facts={"engine_version": "2"}), Effect(facts={"engine_version": "1"}))
    arms = {**evidence.run.arms, Arm.CANDIDATE: replace(evidence.run.arms[Arm.CANDIDATE], engine="sglang")}
    assert judge(suite, replace(evidence, run=replace(evidence.run, arms=arms))).outcome is Outcome.PASS
