"""Ways in which a rigged or broken candidate could look good: each is tried end to end, and none is a silent PASS.

Every candidate here is truly worse than its margin allows (slower, or losing answers) and does something that hides it;
the same evidence without the trick is blocked, so the tests can fail.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from benchgate.gate.judge import judge
from benchgate.model.deployment import Arm
from benchgate.model.history import PastCheck, PastRun, past_arm
from benchgate.model.records import AnswerFacts, EvalItem, RequestColumns
from benchgate.model.run import Evidence, LoadObservation, QualityObservation
from benchgate.model.verdict import Outcome, Scale, Unit, Verdict
from benchgate.suite.schema import Suite
from tests.fakes import shadow_rows
from tests.fakes.measured import HEALTHY, Effect, SuiteText, measured

Line = dict[str, object]
Change = Callable[[LoadObservation], LoadObservation]
TTFT: Line = {"metric": "ttft", "margin": "10%"}
TPOT: Line = {"metric": "tpot", "margin": "10%"}
E2E: Line = {"metric": "e2e", "margin": "10%"}
THROUGHPUT: Line = {"metric": "output_throughput", "margin": "10%"}
ACCURACY: Line = {"metric": "accuracy", "margin": "5 points"}
SLOWER = Effect(slowdown=1.25)
ROWS = 60


def suite(*checks: Line, **gate: object) -> Suite:
    return SuiteText(list(checks), gate=gate).suite()


def rigged(evidence: Evidence, change: Change) -> Evidence:
    return replace(evidence, load=tuple(change(o) if o.arm is Arm.CANDIDATE else o for o in evidence.load))


def columns_of(execution: LoadObservation, **changed: Any) -> LoadObservation:
    """The execution with other columns; where its answers end at other times, it takes until the last of them."""
    requests = RequestColumns.from_columns({**execution.requests.to_columns(), **changed})
    ended_s = float(max(requests.end_ns.max(), requests.intended_ns.max())) / 1e9
    return replace(execution, requests=requests, window_s=ended_s if "end_ns" in changed else execution.window_s)


def told(verdict: Verdict) -> set[str]:
    return {guard.id for guard in verdict.guards if guard.tripped}


def without(*names: str, evidence: Evidence, policy: Suite) -> Outcome:
    """What the checks alone would have made of it, had these guards not been there."""
    verdict = judge(policy, evidence)
    assert told(verdict) == set(names), verdict.reason
    return max((check.outcome for check in verdict.checks), key=lambda outcome: outcome.severity)


def failing(rows: int, error: str, *, last: bool = False) -> Change:
    words = {"error": error, "error_detail": "made up"}

    def change(execution: LoadObservation) -> LoadObservation:
        places = range(ROWS - rows, ROWS) if last else range(rows)
        failed = {name: [text if k in places else None for k in range(ROWS)] for name, text in words.items()}
        return columns_of(execution, **failed)

    return change


@pytest.mark.parametrize(
    "change",
    [
        failing(8, "http_429"),  # sheds load, and is fast for the rest
        failing(6, "http_4xx", last=True),  # refuses what is long
        failing(8, "empty"),
        failing(8, "stream_broken"),
    ],
)
def test_requests_that_are_dropped_are_no_way_to_a_fast_median(change: Change) -> None:
    policy = suite(TTFT)
    evidence = rigged(measured(policy), change)
    assert without("failures-judged", evidence=evidence, policy=policy).promotes
    assert judge(policy, evidence).outcome is Outcome.INVALID
    counted = suite(TTFT, {"metric": "error_rate", "margin": "1 points"})
    assert judge(counted, evidence).outcome is Outcome.BLOCK


def cut_to(rows: int, tokens: int, finish: str) -> Change:
    """So many answers end after so many tokens; whatever follows them begins no sooner for it."""

    def change(execution: LoadObservation) -> LoadObservation:
        columns = execution.requests
        counts = np.where(np.arange(ROWS) < rows, tokens, columns.output_tokens)
        chunks = columns.chunk_ns.reshape(ROWS, -1)
        kept = np.arange(chunks.shape[1])[None, :] < counts[:, None]
        ends = chunks[np.arange(ROWS), counts - 1]
        starts = np.concatenate([[0], np.cumsum(counts)])
        reasons = [finish if row < rows else reason for row, reason in enumerate(columns.finish_reason)]
        return columns_of(
            execution,
            output_tokens=counts, chunk_ns=chunks[kept], chunk_start=starts, end_ns=ends, finish_reason=reasons,
        )  # fmt: skip

    return change


@pytest.mark.parametrize(
    ("change", "baseline"),
    [
        (cut_to(60, 8, "length"), HEALTHY),  # a fifth less than was asked for, and says it is all
        (cut_to(60, 8, "stop"), HEALTHY),  # ends early
        (cut_to(60, 4, "stop"), Effect(finish="stop")),  # of its own will, where the baseline has more to say
        (cut_to(31, 1, "stop"), Effect(finish="stop")),  # half of the users get a word
    ],
)
def test_shorter_answers_are_no_way_to_a_fast_end(change: Change, baseline: Effect) -> None:
    policy = suite(E2E)
    slower = measured(policy, replace(SLOWER, finish=baseline.finish), baseline)
    assert judge(policy, slower).outcome is Outcome.BLOCK
    verdict = judge(policy, rigged(slower, change))
    assert verdict.outcome is Outcome.INVALID
    assert told(verdict) == {"same-work"}
    assert verdict.checks[0].harm is not None
    assert verdict.checks[0].harm < np.log(1.1)  # what the trick would have shown


def from_cache(rows: int) -> Change:
    def change(execution: LoadObservation) -> LoadObservation:
        columns = execution.requests
        quick = np.arange(ROWS) < rows
        last = columns.sent_ns + 2_000_000
        chunks = np.where(quick[:, None], last[:, None], columns.chunk_ns.reshape(ROWS, -1))
        return columns_of(execution, chunk_ns=chunks.reshape(-1), end_ns=np.where(quick, last, columns.end_ns))

    return change


def test_answers_out_of_a_cache_are_no_way_to_a_fast_median() -> None:
    policy = suite(TTFT, E2E)
    slower = measured(policy, SLOWER)
    assert judge(policy, slower).outcome is Outcome.BLOCK
    verdict = judge(policy, rigged(slower, from_cache(31)))
    assert told(verdict) == {"load-not-cached"}
    assert verdict.outcome is Outcome.INVALID
    assert all(check.harm is not None and check.harm < 0 for check in verdict.checks)


def before_it_was_sent(execution: LoadObservation) -> LoadObservation:
    shift = execution.requests.chunk_ns[0] - execution.requests.sent_ns[0] + 1
    return columns_of(execution, chunk_ns=execution.requests.chunk_ns - shift)


def test_a_clock_that_runs_backwards_is_no_way_to_a_fast_first_token() -> None:
    policy = suite(TTFT)
    verdict = judge(policy, rigged(measured(policy, SLOWER), before_it_was_sent))
    assert "times-possible" in told(verdict)
    assert verdict.outcome is Outcome.INVALID
    ended = judge(policy, rigged(measured(policy), lambda o: columns_of(o, end_ns=o.requests.sent_ns - 1)))
    assert "times-possible" in told(ended)
    silent = measured(policy, Effect(failed=ROWS))
    assert "times-possible" not in told(judge(policy, silent))


def test_a_window_that_is_too_short_is_no_way_to_a_high_throughput() -> None:
    policy = suite({"metric": "output_throughput", "margin": "5%"})
    slower = measured(policy, SLOWER)
    assert judge(policy, slower).outcome is Outcome.BLOCK
    verdict = judge(policy, rigged(slower, lambda o: replace(o, window_s=o.window_s / 2)))
    assert told(verdict) == {"times-possible"}
    assert verdict.outcome is Outcome.INVALID


def held_full(execution: LoadObservation, workers: int, share: float) -> LoadObservation:
    """A closed loop with a ramp, and a window of this share of the least that its requests can have taken to begin."""
    columns = execution.requests
    ramp = RequestColumns.from_columns({**columns.to_columns(), "ramp": np.ones(len(columns), dtype=np.int8)})
    begins_ns, each = np.sort(columns.intended_ns), len(columns) // workers
    least_s = float((begins_ns[each - 1 :] - begins_ns[: len(begins_ns) - each + 1]).min()) / 1e9
    assert 0 < least_s < execution.window_s
    client = replace(execution.client, workers=workers)
    return replace(execution, ramp=ramp, window_s=share * least_s, client=client)


@pytest.mark.parametrize("workers", [1, 3])
def test_window_of_a_loop_that_is_held_full_is_no_shorter_than_its_requests_took_to_begin(workers: int) -> None:
    """It may well be shorter than they took to end, and with several workers than all of them took to begin."""
    policy = suite({"metric": "output_throughput", "margin": "5%"})
    evidence = measured(policy)
    for share, tripped in ((1.001, False), (0.999, True)):
        load = tuple(held_full(o, workers, share) for o in evidence.load)
        assert ("times-possible" in told(judge(policy, replace(evidence, load=load)))) is tripped


def test_one_request_a_worker_bounds_no_window_of_a_ramped_loop() -> None:
    policy = suite({"metric": "output_throughput", "margin": "5%"})
    evidence = measured(policy)
    short = tuple(replace(held_full(o, 3, 1.0), window_s=1e-3) for o in evidence.load)
    many = tuple(replace(o, client=replace(o.client, workers=len(o.requests))) for o in short)
    assert "times-possible" in told(judge(policy, replace(evidence, load=short)))
    assert "times-possible" not in told(judge(policy, replace(evidence, load=many)))


def test_the_arithmetic_of_a_spoilt_check_ends_at_the_numbers_that_are_shown() -> None:
    lines: tuple[dict[str, Any], ...] = (
        {"metric": "ttft", "margin": "5%"},
        {"metric": "error_rate", "margin": "5 points"},
    )
    policy = suite(*lines)
    checks = judge(policy, rigged(measured(policy, SLOWER), lambda o: replace(o, window_s=1e-300))).checks
    assert len(checks) == 2
    for check in checks:
        told = {step.what: step.value for step in check.steps}  # of two of a name the last
        for what, value in (("p-value", check.p_value), ("p-value among all checks (Holm)", check.p_holm)):
            assert value is not None
            assert float(told[what]) == pytest.approx(value)
        assert check.upper is not None
        assert float(told["upper limit that is judged"]) == pytest.approx(check.upper)
        assert check.steps[-1].formula.startswith("no numbers decide: ")
        assert check.steps[-1].value == "INVALID"


def merged(rows: int) -> Change:
    """The pieces of so many answers come five at a time: the first later, and fewer gaps for as many tokens."""

    def change(execution: LoadObservation) -> LoadObservation:
        chunks = execution.requests.chunk_ns.reshape(ROWS, -1).copy()
        chunks[:rows] = chunks[:rows][:, [4, 4, 4, 4, 4, 9, 9, 9, 9, 9]]
        chunks[:rows, 0] -= 1_000_000  # three arrivals, so that it counts as streamed
        return columns_of(execution, chunk_ns=chunks.reshape(-1))

    return change


def spread(execution: LoadObservation) -> LoadObservation:
    """Answers of one block have paces of their own, from half to one and a half of the usual one."""
    columns = execution.requests
    chunks = columns.chunk_ns.reshape(ROWS, -1)
    paces = np.linspace(0.5, 1.5, ROWS)[:, None]
    slower = (chunks[:, :1] + (chunks - chunks[:, :1]) * paces).astype(np.int64)
    return columns_of(execution, chunk_ns=slower.reshape(-1), end_ns=slower[:, -1])


def test_larger_pieces_of_a_minority_are_no_way_to_a_quick_median_pace() -> None:
    policy = suite(TPOT)
    slower = measured(policy, Effect(slowdown=1.2))
    slower = replace(slower, load=tuple(map(spread, slower.load)))
    assert judge(policy, slower).outcome is Outcome.BLOCK
    verdict = judge(policy, rigged(slower, merged(24)))
    assert verdict.outcome is Outcome.INVALID
    assert "40% of the candidate's answers came in larger pieces than usual, 0% of the baseline's" in verdict.reason


def test_shorter_tokens_are_no_way_to_more_of_them() -> None:
    def halved(execution: LoadObservation) -> LoadObservation:
        """The same text in the same time, in twice as many tokens."""
        columns = execution.requests
        chunks = np.repeat(columns.chunk_ns, 2)
        counts = columns.output_tokens * 2
        return columns_of(
            execution,
            chunk_ns=chunks, output_tokens=counts, chunk_start=columns.chunk_start * 2,
            input_tokens=columns.input_tokens * 2,
        )  # fmt: skip

    undeclared, declared = suite(THROUGHPUT), suite(THROUGHPUT, allow_different=["vocabulary"])
    slower = measured(undeclared, SLOWER)
    assert judge(undeclared, slower).outcome is Outcome.BLOCK
    assert {"prompts-alike", "answers-not-too-long"} <= told(judge(undeclared, rigged(slower, halved)))
    verdict = judge(declared, rigged(slower, halved))
    assert verdict.outcome is Outcome.INVALID
    natural = replace(rigged(slower, halved), load=tuple(
        columns_of(o, output_tokens=np.minimum(o.requests.output_tokens, 10)) for o in rigged(slower, halved).load
    ))  # fmt: skip
    assert judge(declared, natural).outcome is not Outcome.PASS


def test_the_baseline_under_another_name_is_no_candidate() -> None:
    policy = suite(TTFT, ACCURACY)
    evidence = measured(policy)
    arms = {
        arm: replace(one, url="http://gateway", model=f"m-{arm}", facts={"weights_at": "org/m"})
        for arm, one in evidence.run.arms.items()
    }
    assert judge(policy, evidence).outcome is Outcome.PASS
    verdict = judge(policy, replace(evidence, run=replace(evidence.run, arms=arms)))
    assert told(verdict) == {"two-deployments"}
    assert {check.outcome for check in verdict.checks} == {Outcome.INVALID}


def recalled(observation: QualityObservation, items: int) -> QualityObservation:
    """The candidate's first answers come from whoever remembers the baseline's."""

    def one(place: int, item: EvalItem) -> EvalItem:
        if place >= items:
            return item
        return replace(item, answer="right", score=1.0, latency_ns=1_200_000)

    return replace(observation, items=tuple(one(place, item) for place, item in enumerate(observation.items)))


def test_the_baselines_answers_out_of_a_cache_are_no_way_to_its_accuracy() -> None:
    policy = suite(ACCURACY)
    worse = measured(policy, Effect(wrong=tuple(range(0, 300, 8))))
    assert judge(policy, worse).outcome is Outcome.BLOCK
    quality = tuple(recalled(o, 150) if o.arm is Arm.CANDIDATE else o for o in worse.quality)
    verdict = judge(policy, replace(worse, quality=quality))
    assert told(verdict) == {"not-cached"}
    assert "are the same on both arms, and came within 5 ms" in verdict.reason
    few = tuple(recalled(o, 9) if o.arm is Arm.CANDIDATE else o for o in measured(policy).quality)
    assert judge(policy, replace(measured(policy), quality=few)).outcome is Outcome.PASS


def test_the_baselines_shadow_answers_out_of_a_cache_are_no_agreement() -> None:
    quick = AnswerFacts(characters=40, latency_ns=1_000_000, refusal=False, tokens=50)
    from_it = shadow_rows.range_of(shadow_rows.item, 0, 200, candidate_facts=quick)
    differs = shadow_rows.range_of(shadow_rows.different, 200, 210)
    verdict = shadow_rows.verdict(shadow_rows.items(*from_it, *differs), shadow_rows.EXCESS)
    assert told(verdict) == {"shadow-not-cached"}
    assert verdict.outcome is Outcome.INVALID
    few = shadow_rows.items(*from_it[:9])
    assert shadow_rows.verdict(few, shadow_rows.EXCESS).outcome is Outcome.PASS


def test_a_baseline_that_is_not_what_it_was_makes_no_candidate_good() -> None:
    """Both lose 24 points to a template that broke: against each other they are equal."""
    policy = suite({**ACCURACY, "task": "add"})
    broken = Effect(wrong=tuple(range(72)))
    evidence = measured(policy, broken, broken)
    assert judge(policy, evidence).outcome is Outcome.PASS
    verdict = judge(policy, replace(evidence, history=(earlier(evidence, 0.98), earlier(evidence, 0.96))))
    assert told(verdict) == {"baseline-as-known"}
    assert "the baseline scores 76.0 % on add, where in 2 earlier runs" in verdict.reason
    assert "it scored about 92.0 % to 100 %" in verdict.reason
    assert "where in 1 earlier run" in judge(policy, replace(evidence, history=(earlier(evidence, 0.97),))).reason
    as_ever = judge(policy, replace(evidence, history=(earlier(evidence, 0.78),)))
    assert as_ever.outcome is Outcome.PASS
    other = replace(evidence.run.arms[Arm.BASELINE], model="another")
    past = earlier(evidence, 0.97)
    unlike = replace(past, baseline=past_arm(other, {}))
    assert judge(policy, replace(evidence, history=(unlike,))).outcome is Outcome.PASS


def earlier(evidence: Evidence, accuracy: float) -> PastRun:
    check = PastCheck(
        "accuracy@add", Unit.RATIO, Scale.DIFFERENCE, baseline=accuracy, candidate=accuracy, harm=0.0, lower=0.0,
        upper=0.0, alpha=0.05, n=300,
    )  # fmt: skip
    baseline = past_arm(evidence.run.arms[Arm.BASELINE], {})
    return PastRun("past", "2026-01-01T00:00:00Z", None, baseline, baseline, {check.id: check})
