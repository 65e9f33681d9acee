"""Guards over what both arms did with the same requests: a broken evidence trips each, a sound one trips none."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from benchgate.gate.guards.base import invalidated_by
from benchgate.gate.guards.caches import load_not_cached, order_does_not_matter
from benchgate.gate.guards.load import failures_judged, same_work
from benchgate.gate.judge import judge
from benchgate.model.deployment import Arm
from benchgate.model.records import ABSENT, ErrorClass, RequestColumns
from benchgate.model.run import Evidence, LoadObservation
from benchgate.model.verdict import GuardResult, Outcome
from benchgate.suite.schema import Suite
from tests.fakes.drills import drill
from tests.fakes.measured import HEALTHY, Effect, SuiteText, measured

Line = dict[str, object]
TTFT: Line = {"metric": "ttft", "margin": "10%"}
ERRORS: Line = {"metric": "error_rate", "max": "5%"}
SUITE = SuiteText([TTFT, ERRORS]).suite()
STOPS = Effect(finish="stop")


def on(arm: Arm, evidence: Evidence, change: Callable[[LoadObservation], LoadObservation]) -> Evidence:
    return replace(evidence, load=tuple(change(o) if o.arm is arm else o for o in evidence.load))


def shortened(rows: int, tokens: int, finish: str) -> Callable[[LoadObservation], LoadObservation]:
    """The first so many answers have so many tokens, and end so."""

    def change(execution: LoadObservation) -> LoadObservation:
        columns = execution.requests
        counts = np.where(np.arange(len(columns)) < rows, tokens, columns.output_tokens)
        chunks = columns.chunk_ns.reshape(len(columns), -1)
        keep = np.arange(chunks.shape[1])[None, :] < counts[:, None]
        reasons = [finish if row < rows else reason for row, reason in enumerate(columns.finish_reason)]
        starts = np.concatenate([[0], np.cumsum(counts)])
        cut: dict[str, Any] = {
            "output_tokens": counts,
            "chunk_ns": chunks[keep],
            "chunk_start": starts,
            "finish_reason": reasons,
        }
        return replace(execution, requests=RequestColumns.from_columns({**columns.to_columns(), **cut}))

    return change


def test_arms_that_wrote_as_much_trip_nothing() -> None:
    for effect in (HEALTHY, STOPS):
        guard = same_work(measured(SUITE, effect, effect), SUITE)
        assert not guard.tripped
        assert guard.known


def test_the_candidates_answers_half_as_long_are_another_work_and_longer_ones_its_own_loss() -> None:
    guard = same_work(measured(SUITE, replace(STOPS, tokens=4), STOPS), SUITE)
    assert guard.tripped
    assert "0.40 times as long as the baseline's to the same requests (bound 0.5)" in guard.reason
    assert guard.invalidates == ("speed",)
    assert not same_work(measured(SUITE, replace(STOPS, tokens=5), STOPS), SUITE).tripped
    assert not same_work(measured(SUITE, STOPS, replace(STOPS, tokens=4)), SUITE).tripped


@pytest.mark.parametrize(("rows", "tokens", "trips"), [(1, 1, True), (1, 4, True), (1, 5, False), (0, 1, False)])
def test_answers_that_end_at_once_where_the_baseline_writes_on(rows: int, tokens: int, trips: bool) -> None:
    evidence = on(Arm.CANDIDATE, measured(SUITE, STOPS, STOPS), shortened(rows, tokens, "stop"))
    guard = same_work(evidence, SUITE)  # 8 of 480 requests: more than 1 %, and by chance once in 128
    assert guard.tripped is trips
    assert not trips or "8 of 480 answers of the candidate end at once where the baseline's go on" in guard.reason
    assert not same_work(
        on(Arm.BASELINE, measured(SUITE, STOPS, STOPS), shortened(rows, tokens, "stop")), SUITE
    ).tripped


def natural_lengths(seed: int, *, shift: float = 0.0, alike: bool) -> Callable[[LoadObservation], LoadObservation]:
    """Lengths around 60 tokens with a factor of 1.8 for a standard deviation; `alike`: two thirds of it by prompt."""

    def change(execution: LoadObservation) -> LoadObservation:
        columns = execution.requests
        by_prompt, own = (
            np.random.default_rng([part, execution.block]).normal(0, 0.6, len(columns)) for part in (0, seed)
        )
        spread = (np.sqrt(2 / 3) * by_prompt + np.sqrt(1 / 3) * own) if alike else own
        tokens = np.maximum(1, np.exp(np.log(60) + shift + spread)).astype(np.int64)
        return replace(execution, requests=replace(columns, output_tokens=tokens))

    return change


@pytest.mark.parametrize("alike", [True, False])
@pytest.mark.parametrize("shift", [0.0, -0.25, -0.5], ids=["as long", "a quarter less", "two fifths less"])
def test_one_answer_in_25_cut_to_three_tokens_is_found_and_a_terser_model_is_not_taken_for_it(
    alike: bool, shift: float
) -> None:
    suite = SuiteText([TTFT, ERRORS], requests=100).suite()
    sound = measured(suite, STOPS, STOPS)
    for arm, seed in ((Arm.BASELINE, 1), (Arm.CANDIDATE, 2)):
        sound = on(arm, sound, natural_lengths(seed, shift=shift if seed == 2 else 0.0, alike=alike))
    assert not same_work(sound, suite).tripped

    def cut(execution: LoadObservation) -> LoadObservation:
        tokens = execution.requests.output_tokens.copy()
        tokens[::25] = 3
        return replace(execution, requests=replace(execution.requests, output_tokens=tokens))

    guard = same_work(on(Arm.CANDIDATE, sound, cut), suite)
    assert guard.tripped
    assert "end at once where the baseline's go on, 0 the reverse" in guard.reason


def test_eight_tokens_are_something_to_say_and_seven_are_not_much() -> None:
    for tokens, trips in ((8, True), (7, False)):
        effect = replace(STOPS, tokens=tokens)
        evidence = on(Arm.CANDIDATE, measured(SUITE, effect, effect), shortened(2, 2, "stop"))
        assert same_work(evidence, SUITE).tripped is trips


def test_nine_differing_answers_of_which_one_is_the_baselines_are_beyond_chance_and_seven_are_not() -> None:
    for early, trips in ((8, True), (6, False)):  # twice 10 of 512, and twice 8 of 128
        evidence = measured(SUITE, STOPS, STOPS)
        load = evidence.load[:4]
        changed = {(Arm.CANDIDATE, 0): early, (Arm.BASELINE, 1): 1}
        short = tuple(shortened(changed.get((o.arm, o.block), 0), 1, "stop")(o) for o in load)
        assert same_work(replace(evidence, load=short), SUITE).tripped is trips


def test_an_arm_goes_on_to_the_length_asked_for_where_99_of_100_answers_do() -> None:
    suite = SuiteText([TTFT, ERRORS], blocks=2, requests=50).suite()
    for early, trips in ((1, True), (2, False)):
        one_ends = replace(evidence := measured(suite), load=tuple(
            shortened(early, 10, "stop")(o) if o.arm is Arm.BASELINE and o.block == 0 else o for o in evidence.load
        ))  # fmt: skip
        assert same_work(on(Arm.CANDIDATE, one_ends, shortened(10, 10, "stop")), suite).tripped is trips


def test_a_few_answers_that_end_at_once_are_chance() -> None:
    evidence = measured(SUITE, STOPS, STOPS)
    some = replace(evidence, load=tuple(
        shortened(4, 1, "stop")(o) if o.arm is Arm.CANDIDATE and o.block == 0 else o for o in evidence.load
    ))  # fmt: skip
    assert not same_work(some, SUITE).tripped  # 4 of 480, less than 1 %
    few = replace(some, load=some.load[:2])
    assert not same_work(few, SUITE).tripped  # 4 of 60: more than 1 %, and by chance once in 8
    six = tuple(shortened(6, 1, "stop")(o) if (o.arm, o.block) == (Arm.CANDIDATE, 0) else o for o in evidence.load)
    assert same_work(replace(evidence, load=six), SUITE).tripped  # 1.25 %, and by chance once in 32
    assert SUITE.load is not None
    stages = [SUITE.load.sweep[0].model_copy(update={"name": name}) for name in ("c4", "c8", "c16")]
    three = SUITE.model_copy(update={"load": SUITE.load.model_copy(update={"sweep": tuple(stages)})})
    assert not same_work(replace(evidence, load=six), three).tripped  # of three stages, once in 11
    block = [o for o in few.load if o.block == 0]
    spread = tuple(replace(o, stage=stage.name) for stage in stages for o in block)
    assert same_work(replace(evidence, load=spread), three).tripped  # 4 in every stage, 12 together


@pytest.mark.parametrize("arm", Arm)
@pytest.mark.parametrize(("tokens", "finish"), [(8, "length"), (10, "stop"), (7, "stop")])
def test_an_arm_that_does_not_go_on_to_the_length_asked_for_as_the_other_does(
    arm: Arm, tokens: int, finish: str
) -> None:
    guard = same_work(on(arm, measured(SUITE), shortened(2, tokens, finish)), SUITE)
    assert guard.tripped
    counts = (480, 464) if arm is Arm.CANDIDATE else (464, 480)
    assert f"{counts[0]} of 480 answers of the baseline and {counts[1]} of the candidate reach" in guard.reason


@pytest.mark.parametrize(
    ("asked", "written", "trips"), [(40, 39, False), (40, 38, True), (20, 19, False), (19, 18, True)]
)
@pytest.mark.parametrize("arm", Arm)
def test_one_token_less_at_the_limit_is_as_much_where_that_is_a_twentieth_at_most(
    arm: Arm, asked: int, written: int, trips: bool
) -> None:
    text = SUITE.to_stored()
    text["load"]["workload"]["output_tokens"] = asked
    suite = Suite.from_stored(text)
    whole = measured(suite, Effect(tokens=asked), Effect(tokens=asked))
    assert same_work(on(arm, whole, shortened(60, written, "length")), suite).tripped is trips


def test_arms_that_both_end_where_they_like_may_differ_in_how_often() -> None:
    half = shortened(30, 10, "stop")
    both = on(Arm.BASELINE, measured(SUITE), half)
    assert not same_work(on(Arm.CANDIDATE, both, shortened(35, 10, "stop")), SUITE).tripped


def test_an_estimated_count_of_tokens_is_not_held_against_the_length_asked_for() -> None:
    chunks = Effect(tokens=8, token_source=None)  # type: ignore[arg-type]  # nobody counted
    assert not same_work(measured(SUITE, chunks, chunks), SUITE).tripped


def test_requests_that_one_arm_failed_are_not_held_against_the_other() -> None:
    evidence = measured(SUITE, Effect(failed=60), HEALTHY)
    assert not same_work(evidence, SUITE).tripped
    assert not load_not_cached(evidence, SUITE).tripped
    assert not order_does_not_matter(evidence, SUITE).tripped


def remembered(rows: int, *, pieces: int = 1, took_ms: float = 2.0) -> Callable[[LoadObservation], LoadObservation]:
    """The first so many answers came within so long, in so many pieces."""

    def change(execution: LoadObservation) -> LoadObservation:
        columns = execution.requests
        chunks = columns.chunk_ns.reshape(len(columns), -1).copy()
        last = columns.sent_ns + int(took_ms * 1e6)
        width = chunks.shape[1]
        for row in range(rows):
            chunks[row] = last[row] - np.minimum(np.arange(width)[::-1], pieces - 1) * 100
        ends = np.where(np.arange(len(columns)) < rows, last, columns.end_ns)
        changed = {"chunk_ns": chunks.reshape(-1), "end_ns": ends}
        return replace(execution, requests=RequestColumns.from_columns({**columns.to_columns(), **changed}))

    return change


@pytest.mark.parametrize("arm", Arm)
def test_long_answers_that_come_whole_in_no_time_are_from_a_cache(arm: Arm) -> None:
    guard = load_not_cached(on(arm, measured(SUITE), remembered(4)), SUITE)
    assert guard.tripped
    assert f"32 of 480 answers of the {arm.value} came from a cache: whole, within 5 ms" in guard.reason
    assert guard.invalidates == invalidated_by(arm, "load")


@pytest.mark.parametrize("change", [remembered(2), remembered(4, pieces=3), remembered(4, took_ms=6), remembered(0)])
def test_what_a_model_may_have_written_is_from_no_cache(change: Callable[[LoadObservation], LoadObservation]) -> None:
    """So few, in pieces, or in as long as a small model takes."""
    assert not load_not_cached(on(Arm.CANDIDATE, measured(SUITE), change), SUITE).tripped


def test_eight_tokens_in_five_milliseconds_are_the_least_that_tells_a_cache() -> None:
    for tokens, took_ms, trips in ((8, 5.0, True), (7, 5.0, False), (8, 5.1, False)):
        evidence = measured(SUITE, Effect(tokens=tokens), Effect(tokens=tokens))
        for pieces in (1, 2):
            change = remembered(4, pieces=pieces, took_ms=took_ms)
            assert load_not_cached(on(Arm.CANDIDATE, evidence, change), SUITE).tripped is trips


@pytest.mark.parametrize(("chars", "trips"), [(32, True), (31, False), (ABSENT, False)])
def test_a_text_without_tokens_comes_from_a_cache_where_it_has_as_many_characters(chars: int, trips: bool) -> None:
    def infer(execution: LoadObservation) -> LoadObservation:
        n = len(execution.requests)
        values = {"tokenless": np.ones(n), "output_tokens": np.zeros(n), "answer_chars": np.full(n, chars)}
        columns = {**execution.requests.to_columns(), **values}
        return replace(execution, requests=RequestColumns.from_columns(columns))

    plain = on(Arm.BASELINE, on(Arm.CANDIDATE, measured(SUITE), infer), infer)
    guard = load_not_cached(on(Arm.CANDIDATE, plain, remembered(4)), SUITE)
    assert (guard.tripped, guard.known) == (trips, trips)


def test_two_arms_that_are_both_fast_are_no_cache() -> None:
    both = on(Arm.BASELINE, on(Arm.CANDIDATE, measured(SUITE), remembered(60)), remembered(60))
    assert not load_not_cached(both, SUITE).tripped


def test_a_few_answers_are_too_few_to_tell_a_cache() -> None:
    for answers, trips in ((9, False), (10, True)):
        evidence = on(Arm.CANDIDATE, measured(SUITE), remembered(answers))
        assert load_not_cached(replace(evidence, load=evidence.load[:2]), SUITE).tripped is trips


def second_is_faster(evidence: Evidence, factor: float) -> Evidence:
    """Whoever is asked second in a block takes so many times as long."""
    fast = {arm: measured(SUITE, Effect(slowdown=factor), Effect(slowdown=factor)).load for arm in Arm}
    first = {(o.block, o.stage): min(p.position for p in evidence.load if p.block == o.block) for o in evidence.load}
    return replace(
        evidence,
        load=tuple(
            replace(fast[o.arm][at], position=o.position) if o.position != first[o.block, o.stage] else o
            for at, o in enumerate(evidence.load)
        ),
    )


def test_a_gain_of_whoever_is_asked_second_is_something_that_remembers() -> None:
    evidence = second_is_faster(measured(SUITE), 0.5)
    guard = order_does_not_matter(evidence, SUITE)
    assert guard.tripped
    assert "the arm measured second in a block took 0.5" in guard.reason
    assert judge(SUITE, evidence).outcome is Outcome.INVALID


@pytest.mark.parametrize("factor", [0.9, 1.0, 2.0])
def test_a_small_gain_of_the_second_or_a_loss_is_the_machines_mood(factor: float) -> None:
    assert not order_does_not_matter(second_is_faster(measured(SUITE), factor), SUITE).tripped


def test_a_faster_candidate_is_no_matter_of_order() -> None:
    assert not order_does_not_matter(measured(SUITE, Effect(slowdown=0.4)), SUITE).tripped


UNCOUNTED: Sequence[tuple[Line, bool]] = [
    (TTFT, True),
    ({"metric": "error_rate", "max": "5%"}, False),
    ({"metric": "error_rate", "max": "5%", "required": False}, True),
    ({"metric": "error_rate", "of": "http_5xx", "margin": "5 points"}, False),
    ({"metric": "error_rate", "of": "timeout", "max": "5%"}, True),
    ({"metric": "rejected", "max": "5%"}, True),
    ({"metric": "goodput"}, False),
    ({"metric": "validity", "min": "50%"}, False),
]


@pytest.mark.parametrize(("check", "trips"), UNCOUNTED)
def test_failures_that_no_required_check_counts_prevent_a_pass(check: Line, trips: bool) -> None:
    suite = SuiteText([TTFT, check]).suite()
    guard = failures_judged(measured(suite, Effect(failed=2)), suite)
    assert guard.tripped is trips
    assert not trips or "16 of 480 requests of the candidate failed, 0 of 480 of the baseline" in guard.reason
    assert not trips or "{metric: error_rate, stage: c4, margin: 1 point}" in (guard.remedy or "")


@pytest.mark.parametrize(
    ("candidate", "baseline", "says"),
    [
        (Effect(failed=4), Effect(failed=4), "32 of 480 requests of the baseline failed (bound 5%)"),
        (Effect(failed=3), Effect(failed=3), None),
        (Effect(failed=3), Effect(failed=2), None),  # a point and a bit more, and by chance easily
        (HEALTHY, Effect(failed=2), None),
    ],
)
def test_failures_on_both_arms_are_a_fault_of_the_evidence_where_they_are_many(
    candidate: Effect, baseline: Effect, says: str | None
) -> None:
    suite = SuiteText([TTFT]).suite()
    guard = failures_judged(measured(suite, candidate, baseline), suite)
    assert guard.tripped is (says is not None)
    assert says is None or says in guard.reason


@pytest.mark.parametrize(("failed", "theirs", "trips"), [(6, 0, False), (7, 0, True), (14, 2, True)])
def test_one_failure_in_a_hundred_more_than_the_baseline_may_go_uncounted(
    failed: int, theirs: int, trips: bool
) -> None:
    suite = SuiteText([TTFT], blocks=4, requests=600).suite()
    evidence = measured(suite, Effect(failed=failed), Effect(failed=theirs))
    assert failures_judged(evidence, suite).tripped is trips  # 24 of 2,400


def test_refusals_are_counted_by_a_check_of_refusals() -> None:
    suite = SuiteText([TTFT, {"metric": "rejected", "max": "20%"}]).suite()

    def refused(execution: LoadObservation) -> LoadObservation:
        return replace(execution, requests=failed(execution.requests, 4, ErrorClass.HTTP_429))

    assert not failures_judged(on(Arm.CANDIDATE, measured(suite), refused), suite).tripped
    other = SuiteText([TTFT]).suite()
    assert failures_judged(on(Arm.CANDIDATE, measured(other), refused), other).tripped


@pytest.mark.parametrize(("theirs", "trips"), [(20, False), (4, True)])
def test_a_check_that_asks_for_refusals_does_not_limit_those_of_the_candidate(theirs: int, trips: bool) -> None:
    suite = SuiteText([TTFT, {"metric": "rejected", "min": "5%"}]).suite()

    def refused(rows: int) -> Callable[[LoadObservation], LoadObservation]:
        return lambda o: replace(o, requests=failed(o.requests, rows, ErrorClass.HTTP_429))

    evidence = on(Arm.CANDIDATE, on(Arm.BASELINE, measured(suite), refused(theirs)), refused(20))
    assert failures_judged(evidence, suite).tripped is trips


def test_a_check_of_one_stage_over_another_counts_no_failures() -> None:
    over: Line = {"metric": "error_rate", "stage": "long", "over": "short", "max": "5 points"}
    suite = drill(over)
    failing = on(
        Arm.CANDIDATE, measured(suite), lambda o: replace(o, requests=failed(o.requests, 4 * (o.stage == "long")))
    )
    assert failures_judged(failing, suite).tripped
    assert not failures_judged(measured(suite), suite).tripped


def failed(columns: RequestColumns, count: int, error: ErrorClass = ErrorClass.TIMEOUT) -> RequestColumns:
    errors = tuple(error.value if row < count else None for row in range(len(columns)))
    return RequestColumns.from_columns({**columns.to_columns(), "error": errors})


def test_a_stage_that_one_arm_never_met_is_not_for_this_guard() -> None:
    suite = SuiteText([TTFT]).suite()
    evidence = measured(suite, Effect(failed=2))
    alone = replace(evidence, load=tuple(o for o in evidence.load if o.arm is Arm.CANDIDATE))
    assert not failures_judged(alone, suite).tripped
    without = suite.model_copy(update={"load": None})
    assert not failures_judged(evidence, without).known


def names(guards: Sequence[GuardResult]) -> set[str]:
    return {guard.id for guard in guards}


def test_every_verdict_over_a_load_names_these_guards() -> None:
    told = names(judge(SUITE, measured(SUITE)).guards)
    assert {"same-work", "load-not-cached", "order-does-not-matter", "failures-judged", "two-deployments"} <= told
    without: Suite = SUITE.model_copy(update={"load": None})
    blind = judge(without, replace(measured(SUITE), load=()))
    assert "same-work" in {guard.id for guard in blind.guards if not guard.known}
