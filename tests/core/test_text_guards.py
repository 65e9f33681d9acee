"""Guards over what was said under load: broken evidence trips each, sound evidence trips none."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from benchgate.gate.comparison import compare
from benchgate.gate.guards.base import FIRST, LOAD, SPEED, TOKENS, compared, invalidated_by
from benchgate.gate.guards.load import tokens_alike
from benchgate.gate.guards.text import answers_there, first_token_visible, same_text, text_not_degenerate
from benchgate.gate.judge import judge
from benchgate.model.deployment import Arm
from benchgate.model.records import ABSENT, RequestColumns, TokenSource
from benchgate.model.run import Evidence, LoadObservation
from benchgate.model.verdict import GuardResult, Outcome
from benchgate.suite.error_budget import ErrorBudget
from benchgate.suite.schema import Suite
from tests.fakes.answer_texts import CHARS, columns_of, plain, saying
from tests.fakes.apart import alone
from tests.fakes.guards import of_untied_runs
from tests.fakes.measured import Effect, SuiteText, measured

TTFT: dict[str, object] = {"metric": "ttft", "margin": "10%"}
ERRORS: dict[str, object] = {"metric": "error_rate", "max": "5%"}
SUITE = SuiteText([TTFT, ERRORS]).suite()
TEN = Effect()
Guard = Callable[[Evidence, Suite], GuardResult]
Change = Callable[[RequestColumns], dict[str, Any]]


def sound(candidate: Effect = TEN, baseline: Effect = TEN) -> Evidence:
    """Both arms say ten tokens of five characters, of usual redundancy and without tools."""

    def said(columns: RequestColumns) -> dict[str, Any]:
        n = len(columns)
        return {**plain(columns), "redundancy_percent": np.full(n, 40), "tool_calls": np.zeros(n)}

    return saying(saying(measured(SUITE, candidate, baseline), Arm.BASELINE, said), Arm.CANDIDATE, said)


def rows(count: int, **columns: int) -> Change:
    """So many requests of every block have these values."""

    def change(found: RequestColumns) -> dict[str, Any]:
        chosen = np.arange(len(found)) < count
        return {name: np.where(chosen, value, getattr(found, name)) for name, value in columns.items()}

    return change


def without(evidence: Evidence, column: str, arm: Arm) -> Evidence:
    return saying(evidence, arm, lambda columns: {column: np.full(len(columns), ABSENT)})


def test_sound_text_trips_nothing() -> None:
    for guard in (same_text, answers_there, text_not_degenerate):
        found = guard(sound(), SUITE)
        assert (found.tripped, found.warns, found.known) == (False, False, True)
    assert judge(SUITE, sound()).outcome is Outcome.PASS


@pytest.mark.parametrize("guard", [same_text, answers_there, text_not_degenerate])
def test_runs_that_do_not_know_what_was_said_trip_nothing_and_say_so(guard: Guard) -> None:
    found = guard(measured(SUITE), SUITE)
    assert (found.tripped, found.warns, found.known) == (False, False, False)
    assert judge(SUITE, measured(SUITE)).outcome is Outcome.PASS


@pytest.mark.parametrize("arm", Arm)
@pytest.mark.parametrize(("chars", "trips"), [(75, False), (74, True), (0, True)])
def test_text_that_is_missing_trips_whatever_the_pieces_are(arm: Arm, chars: int, trips: bool) -> None:
    evidence = saying(sound(), Arm.BASELINE, lambda c: plain(c, 100))
    evidence = saying(evidence, Arm.CANDIDATE, lambda c: plain(c, 100))
    guard = same_text(saying(evidence, arm, lambda c: plain(c, chars)), SUITE)
    assert guard.tripped is trips
    if trips:
        assert f"the {arm.value}'s tokens have {chars / 100:.2f} times as many visible characters" in guard.reason
        assert guard.invalidates == invalidated_by(arm, SPEED)


@pytest.mark.parametrize(("arm", "chars", "warns"), [
    (Arm.CANDIDATE, 90, False), (Arm.CANDIDATE, 89, True), (Arm.BASELINE, 89, False),
])  # fmt: skip
def test_sparse_text_in_every_piece_warns_of_the_candidate(arm: Arm, chars: int, warns: bool) -> None:
    evidence = saying(sound(), arm.other, lambda c: plain(c, 100))
    evidence = saying(evidence, arm, lambda c: plain(c, chars))
    assert not same_text(evidence, SUITE).tripped
    assert same_text(evidence, SUITE).warns is warns
    verdict = judge(SUITE, evidence)
    assert verdict.outcome is (Outcome.WARN if warns else Outcome.PASS)
    if warns:
        assert "may be promoted, with care: guard same-text warns: stage c4: the candidate's tokens" in verdict.reason
        assert verdict.next_step is not None
        assert verdict.next_step.startswith("read answers of both arms")


@pytest.mark.parametrize("arm", Arm)
@pytest.mark.parametrize(("chars", "trips"), [(90, False), (89, True)])
def test_chunks_of_another_size_are_other_tokens_where_no_server_counts_them(arm: Arm, chars: int, trips: bool) -> None:
    for source in TokenSource:
        effect = Effect(token_source=source)
        evidence = saying(sound(effect, effect), arm.other, lambda c: plain(c, 100))
        evidence = saying(evidence, arm, lambda c: plain(c, chars))
        guard = tokens_alike(evidence, SUITE)
        assert guard.tripped is (trips and source is TokenSource.CHUNKS)
        assert not guard.tripped or guard.invalidates == compared(TOKENS)


def test_usage_of_one_arm_alone_spoils_more_than_chunks_of_another_size_in_another_stage() -> None:
    stored = SUITE.to_stored()
    stored["load"]["sweep"].append({**stored["load"]["sweep"][0], "name": "c8"})
    by_chunks = Effect(token_source=TokenSource.CHUNKS)
    small = saying(sound(by_chunks, by_chunks), Arm.CANDIDATE, lambda c: plain(c, 80))
    other = (replace(one, stage="c8", position=one.position + 100) for one in sound(TEN, by_chunks).load)
    guard = tokens_alike(replace(small, load=(*small.load, *other)), Suite.from_stored(stored))
    assert guard.tripped and guard.invalidates == compared(LOAD)


@pytest.mark.parametrize(("candidate", "baseline"), [(True, False), (False, True)])
@pytest.mark.parametrize(("usage", "trips"), [(110, False), (112, True)])
def test_a_usage_more_than_a_tenth_beyond_the_text_trips(
    candidate: bool, baseline: bool, usage: int, trips: bool
) -> None:
    honest, inflated = Effect(tokens=100), Effect(tokens=100, usage=usage)
    guard = same_text(sound(inflated if candidate else honest, inflated if baseline else honest), SUITE)
    assert guard.tripped is trips
    arm = Arm.CANDIDATE if candidate else Arm.BASELINE
    assert not trips or f"the {arm.value}'s usage counts 1.12 times the tokens that its text shows" in guard.reason


def test_half_of_the_text_at_full_usage_is_not_promoted() -> None:
    """Every second piece is left out, twice as slowly: by its usage as quick as the baseline."""
    evidence = sound(Effect(tokens=50, usage=100, slowdown=1.0), Effect(tokens=100))
    verdict = judge(SUITE, evidence)
    assert verdict.outcome is Outcome.INVALID
    assert [guard.id for guard in verdict.guards if guard.tripped] == ["same-text"]


PACED = SuiteText(
    [{"metric": "tpot", "margin": "10%"}, {"metric": "output_throughput", "margin": "10%"}, ERRORS]
).suite()


def hiding(evidence: Evidence, arm: Arm, tokens: int, requests: int = 60) -> Evidence:
    """Usage claims so many of the tokens of the first answers of every block as reasoning that nobody was sent."""
    return saying(evidence, arm, rows(requests, reasoning_tokens=tokens))


def test_half_of_the_tokens_claimed_as_reasoning_that_nobody_saw_is_not_promoted() -> None:
    evidence = sound(Effect(tokens=64, usage=128, slowdown=2), Effect(tokens=128))
    verdict = judge(PACED, hiding(evidence, Arm.CANDIDATE, 64))
    assert verdict.outcome is Outcome.INVALID
    (guard,) = [guard for guard in verdict.guards if guard.tripped]
    assert (guard.id, guard.invalidates) == ("same-text", (SPEED, TOKENS))
    assert (
        "50% of the candidate's output tokens are reasoning that is not shown, and 0% of the baseline's" in guard.reason
    )


@pytest.mark.parametrize("arm", Arm)
def test_models_that_hide_their_reasoning_alike_may_be_compared(arm: Arm) -> None:
    """Of 100 tokens 20 are shown. Twice as many hidden per shown token is another amount of work."""
    hides = Effect(tokens=20, usage=100)
    for shown, trips, warns in (
        (20, False, False),
        (19, False, False),
        (18, False, True),
        (12, False, True),
        (11, True, True),
    ):
        other = Effect(tokens=shown, usage=100)
        evidence = sound(other, hides) if arm is Arm.CANDIDATE else sound(hides, other)
        found = same_text(hiding(hiding(evidence, arm, 100 - shown), arm.other, 80), SUITE)
        assert (found.tripped, found.warns) == (trips, warns and not trips)
        assert not trips or found.invalidates == invalidated_by(arm, SPEED, TOKENS)


@pytest.mark.parametrize(("shown", "trips"), [(18, False), (11, True)])
def test_hidden_reasoning_is_compared_where_vocabularies_may_differ(shown: int, trips: bool) -> None:
    suite = SuiteText([TTFT, ERRORS], gate={"allow_different": ["vocabulary"]}).suite()
    evidence = hiding(sound(Effect(tokens=shown, usage=100), Effect(tokens=20, usage=100)), Arm.BASELINE, 80)
    found = same_text(hiding(evidence, Arm.CANDIDATE, 100 - shown), suite)
    assert (found.tripped, found.warns) == (trips, not trips)


def test_arms_that_hide_as_much_in_other_answers_are_alike() -> None:
    hides = sound(Effect(tokens=20, usage=100), Effect(tokens=20, usage=100))
    last = saying(hides, Arm.BASELINE, lambda c: {"reasoning_tokens": np.where(np.arange(len(c)) < 28, 0, 80)})
    assert not same_text(hiding(last, Arm.CANDIDATE, 80, 32), SUITE).tripped


@pytest.mark.parametrize(
    ("thought", "pieces", "reasoning", "trips"),
    [
        (64, 64, 0, True),
        (64, 64, 9, False),
        (64, 124, 0, False),
        (64, 123, 0, True),
        (4, 64, 0, False),
        (5, 64, 0, True),
    ],
    ids=["hidden", "shown", "sent as the answer", "sent but five", "an empty block", "five tokens"],
)
def test_reasoning_is_hidden_where_nothing_of_it_was_sent(
    thought: int, pieces: int, reasoning: int, trips: bool
) -> None:
    evidence = sound(Effect(tokens=pieces, usage=128), Effect(tokens=pieces, usage=128))
    claimed = saying(evidence, Arm.CANDIDATE, rows(60, reasoning_tokens=thought, reasoning_chars=reasoning))
    assert same_text(claimed, SUITE).tripped is trips


def test_a_few_answers_with_hidden_reasoning_are_no_other_work() -> None:
    evidence = sound(Effect(tokens=64, usage=128), Effect(tokens=64, usage=128))
    assert not same_text(hiding(evidence, Arm.CANDIDATE, 64, 1), SUITE).tripped  # 8 of 480 answers, 0.8 % of the tokens
    assert same_text(hiding(evidence, Arm.CANDIDATE, 64, 2), SUITE).tripped


def only_thoughts(columns: RequestColumns) -> dict[str, Any]:
    chars = np.diff(columns.chunk_start) * CHARS
    return {"answer_chars": np.zeros(len(columns)), "reasoning_chars": chars}


@pytest.mark.parametrize("arm", Arm)
def test_reasoning_alone_where_the_other_arm_answers(arm: Arm) -> None:
    guard = answers_there(saying(sound(), arm, only_thoughts), SUITE)
    assert guard.tripped
    assert f"480 of 480 answers of the {arm.value} alone have no answer" in guard.reason
    assert not same_text(saying(sound(), arm, only_thoughts), SUITE).tripped


def test_models_that_both_think_until_the_limit_are_alike() -> None:
    both = saying(saying(sound(), Arm.BASELINE, only_thoughts), Arm.CANDIDATE, only_thoughts)
    found = answers_there(both, SUITE)
    assert (found.tripped, found.warns, found.known) == (False, False, True)


def test_a_tool_call_is_an_answer() -> None:
    both = saying(sound(), Arm.BASELINE, rows(60, tool_calls=1))
    called = saying(both, Arm.CANDIDATE, rows(60, answer_chars=0, tool_calls=1))
    assert not answers_there(called, SUITE).tripped
    unknown = without(called, "tool_calls", Arm.CANDIDATE)
    assert not answers_there(unknown, SUITE).known


def test_calls_that_a_candidate_writes_as_words_are_not_promoted() -> None:
    """Nobody must call the offered tools, so an answer in words is neither valid nor invalid."""
    suite = SuiteText([TTFT, ERRORS, {"metric": "validity", "margin": "2 points"}]).suite()
    called = {"tool_calls": 1, "valid": 1}
    both = saying(saying(sound(), Arm.BASELINE, rows(60, **called)), Arm.CANDIDATE, rows(60, **called))
    assert judge(suite, both).outcome is Outcome.PASS
    verdict = judge(suite, saying(both, Arm.CANDIDATE, rows(24, tool_calls=0, valid=ABSENT)))
    assert verdict.outcome is Outcome.INVALID
    assert "192 of 480 answers of the candidate alone call no tool, 0 of the baseline alone" in verdict.reason


def test_models_that_call_tools_in_other_answers_as_often_are_alike() -> None:
    last = saying(sound(), Arm.BASELINE, lambda c: {"tool_calls": np.arange(len(c)) >= 12})
    assert not answers_there(
        saying(last, Arm.CANDIDATE, lambda c: {"tool_calls": np.arange(len(c)) < 50}), SUITE
    ).tripped


@pytest.mark.parametrize("column", ["answer_chars", "reasoning_chars"])
@pytest.mark.parametrize("arm", Arm)
def test_text_that_is_not_known_on_one_arm_is_compared_with_nothing(column: str, arm: Arm) -> None:
    evidence = without(saying(sound(), Arm.CANDIDATE, only_thoughts), column, arm)
    assert not answers_there(evidence, SUITE).known
    assert not text_not_degenerate(evidence, SUITE).tripped


SILENT = {"answer_chars": 0, "reasoning_chars": 7}
BLANK = {"answer_chars": 0, "reasoning_chars": 0}
REPEATED = {"redundancy_percent": 80}


@pytest.mark.parametrize(("guard", "broken"), [
    (answers_there, SILENT), (text_not_degenerate, BLANK), (text_not_degenerate, REPEATED),
])  # fmt: skip
@pytest.mark.parametrize("arm", Arm)
def test_more_than_one_answer_in_a_hundred_beyond_chance_trips(guard: Guard, broken: dict[str, int], arm: Arm) -> None:
    assert guard(saying(sound(), arm, rows(1, **broken)), SUITE).tripped  # 8 of 480
    four = [saying(sound(), arm, rows(count, **broken)) for count in (4, 5)]
    chance, shown = (replace(one, load=tuple(o for o in one.load if o.block == 0)) for one in four)
    assert not guard(chance, SUITE).tripped  # 4 of 60 are chance once in 8
    assert not guard(shown, SUITE).tripped  # 5 of 60 once in 16
    six = saying(sound(), arm, rows(6, **broken))
    assert guard(replace(six, load=tuple(o for o in six.load if o.block == 0)), SUITE).tripped  # once in 32
    first = saying(sound(), arm, rows(4, **broken))
    of_all = replace(first, load=tuple(o if o.block == 0 else s for o, s in zip(first.load, sound().load, strict=True)))
    assert not guard(of_all, SUITE).tripped  # 4 of 480 are less than a hundredth


def of_stages(count: int) -> Suite:
    """The suite with so many stages more, in which nothing was measured."""
    assert SUITE.load is not None
    more = [SUITE.load.sweep[0].model_copy(update={"name": f"more-{i}"}) for i in range(count)]
    return SUITE.model_copy(update={"load": SUITE.load.model_copy(update={"sweep": (*SUITE.load.sweep, *more)})})


@pytest.mark.parametrize(("guard", "broken"), [(answers_there, SILENT), (text_not_degenerate, BLANK)])
def test_of_many_stages_one_differs_by_chance(guard: Guard, broken: dict[str, int]) -> None:
    for count, trips in ((6, False), (9, True)):  # once in 32, and once in 256
        found = saying(sound(), Arm.CANDIDATE, rows(count, **broken))
        one_block = replace(found, load=tuple(o for o in found.load if o.block == 0))
        assert guard(one_block, SUITE).tripped
        assert guard(one_block, of_stages(4)).tripped is trips


@pytest.mark.parametrize(("guard", "broken"), [(answers_there, SILENT), (text_not_degenerate, BLANK)])
def test_a_few_answers_in_every_stage_are_no_chance(guard: Guard, broken: dict[str, int]) -> None:
    found = saying(sound(), Arm.CANDIDATE, rows(2, **broken))
    block = [o for o in found.load if o.block == 0]
    assert not guard(replace(found, load=tuple(block)), SUITE).tripped  # 2 of 60
    names = [block[0].stage, *(f"more-{i}" for i in range(5))]
    everywhere = replace(found, load=tuple(replace(o, stage=name) for name in names for o in block))
    assert guard(everywhere, of_stages(5)).tripped  # 12 of 360


@pytest.mark.parametrize(("more", "fewer", "trips", "warns"), [
    (20, 10, True, False), (20, 11, False, True), (12, 11, False, False),
])  # fmt: skip
def test_arms_that_both_fail_now_and_then_trip_from_twice_as_many_on(
    more: int, fewer: int, trips: bool, warns: bool
) -> None:
    """Two models that run on past their end repeat themselves in other answers, and not exactly as often."""

    def last(columns: RequestColumns) -> dict[str, Any]:
        chosen = np.arange(len(columns)) >= len(columns) - fewer
        return {"redundancy_percent": np.where(chosen, 95, 40)}

    evidence = saying(saying(sound(), Arm.CANDIDATE, rows(more, redundancy_percent=95)), Arm.BASELINE, last)
    found = text_not_degenerate(evidence, SUITE)
    assert (found.tripped, found.warns) == (trips, warns)


@pytest.mark.parametrize(("percent", "trips"), [(79, False), (80, True)])
def test_natural_text_and_code_repeat_less_than_four_fifths(percent: int, trips: bool) -> None:
    evidence = saying(sound(), Arm.CANDIDATE, rows(60, redundancy_percent=percent))
    assert text_not_degenerate(evidence, SUITE).tripped is trips


def test_a_text_too_short_to_be_compressed_does_not_repeat_itself() -> None:
    short = without(sound(), "redundancy_percent", Arm.BASELINE)
    assert not text_not_degenerate(short, SUITE).tripped
    assert text_not_degenerate(saying(short, Arm.CANDIDATE, rows(60, **REPEATED)), SUITE).tripped


def test_reasoning_that_is_counted_and_not_sent_is_no_blank_text() -> None:
    hidden = saying(sound(), Arm.CANDIDATE, rows(60, **BLANK, reasoning_tokens=10))
    assert not text_not_degenerate(hidden, SUITE).tripped
    assert text_not_degenerate(saying(sound(), Arm.CANDIDATE, rows(60, **BLANK, reasoning_tokens=9)), SUITE).tripped


@pytest.mark.parametrize(("broken", "bound"), [(BLANK, 30), (REPEATED, 54)])
def test_text_that_is_mostly_broken_on_both_arms_warns_by_name(broken: dict[str, int], bound: int) -> None:
    def on_both(count: int) -> Evidence:
        return saying(saying(sound(), Arm.BASELINE, rows(count, **broken)), Arm.CANDIDATE, rows(count, **broken))

    for count, warns in ((bound, False), (bound + 1, True)):
        found = text_not_degenerate(on_both(count), SUITE)
        assert (found.tripped, found.warns) == (False, warns)
    verdict = judge(SUITE, on_both(bound + 1))
    counted = f"{8 * (bound + 1)} of 480 and {8 * (bound + 1)} of 480"
    assert verdict.outcome is Outcome.WARN
    assert f"guard text-not-degenerate warns: stage c4: {counted}" in verdict.reason
    alone = saying(sound(), Arm.CANDIDATE, rows(bound + 1, **broken))
    measured_alone = replace(alone, load=tuple(o for o in alone.load if o.arm is Arm.CANDIDATE))
    assert text_not_degenerate(measured_alone, SUITE).warns


def inferred(chars: int, **changed: int) -> Change:
    """Whole texts of so many characters without tokens, as `infer` answers."""

    def change(columns: RequestColumns) -> dict[str, Any]:
        n = len(columns)
        known = {"answer_chars": chars, "reasoning_chars": 0, "tool_calls": 0, "tokenless": 1, "output_tokens": 0}
        values = {name: np.full(n, value) for name, value in (known | changed).items()}
        return {**values, "token_source": [None] * n, "finish_reason": [None] * n}

    return change


def both_inferred(theirs: int, ours: int, **changed: int) -> Evidence:
    return saying(saying(measured(INFER), Arm.BASELINE, inferred(theirs)), Arm.CANDIDATE, inferred(ours, **changed))


INFER = SuiteText([{"metric": "e2e", "margin": "10%"}, ERRORS]).suite()


def test_texts_without_tokens_are_examined() -> None:
    verdict = judge(INFER, both_inferred(500, 500))
    found = {guard.id: (guard.tripped, guard.known) for guard in verdict.guards}
    assert verdict.outcome is Outcome.PASS
    examined = ("same-work", "load-not-cached", "answers-there", "text-not-degenerate")
    assert {found[name] for name in examined} == {(False, True)}


@pytest.mark.parametrize(("chars", "trips"), [(250, False), (249, True), (1, True)])
def test_less_than_half_of_the_text_without_tokens_is_other_work(chars: int, trips: bool) -> None:
    verdict = judge(INFER, both_inferred(500, chars))
    assert verdict.outcome is (Outcome.INVALID if trips else Outcome.PASS)
    assert [guard.id for guard in verdict.guards if guard.tripped] == ["same-work"] * trips


@pytest.mark.parametrize(("guard", "broken"), [
    (answers_there, {"answer_chars": 0, "reasoning_chars": 7}), (text_not_degenerate, {"answer_chars": 0}),
    (text_not_degenerate, {"redundancy_percent": 95}),
])  # fmt: skip
def test_texts_without_tokens_may_be_silent_blank_or_repeated(guard: Guard, broken: dict[str, int]) -> None:
    assert guard(both_inferred(500, 500, **broken), INFER).tripped


def test_embeddings_have_no_text_to_examine() -> None:
    vectors = both_inferred(ABSENT, ABSENT, reasoning_chars=ABSENT, tool_calls=ABSENT)
    vectors = saying(vectors, Arm.BASELINE, inferred(ABSENT, reasoning_chars=ABSENT, tool_calls=ABSENT))
    known = {guard.id: guard.known for guard in judge(INFER, vectors).guards}
    for name in ("same-work", "load-not-cached", "answers-there", "text-not-degenerate"):
        assert not known[name]


def beginning_blank(evidence: Evidence, arm: Arm, count: int, earlier_ms: float) -> Evidence:
    """The first piece of so many answers of every block is blank, and came so much earlier."""

    def change(columns: RequestColumns) -> dict[str, Any]:
        blank = np.arange(len(columns)) < count
        chunks = columns.chunk_ns.copy()
        chunks[columns.chunk_start[:-1][blank]] -= round(earlier_ms * 1e6)
        return {"chunk_ns": chunks, "first_visible": np.where(blank, 0, columns.first_visible)}

    return saying(evidence, arm, change)


def shown(candidate: Effect = TEN, baseline: Effect = TEN) -> Evidence:
    """All answers begin with visible text."""
    evidence = sound(candidate, baseline)
    for arm in Arm:
        evidence = saying(evidence, arm, lambda columns: {"first_visible": np.ones(len(columns))})
    return evidence


def test_a_blank_piece_before_the_model_has_written_is_not_promoted() -> None:
    """The candidate takes twice as long to its first token, and sends a blank at once."""

    def later(one: LoadObservation) -> LoadObservation:
        columns = one.requests
        moved = columns_of(one, chunk_ns=columns.chunk_ns + 50_000_000, end_ns=columns.end_ns + 50_000_000)
        return replace(moved, window_s=one.window_s + 0.05)

    late = shown()
    late = replace(late, load=tuple(later(o) if o.arm is Arm.CANDIDATE else o for o in late.load))
    assert judge(SUITE, late).outcome is Outcome.BLOCK
    verdict = judge(SUITE, beginning_blank(late, Arm.CANDIDATE, 60, 99))
    assert verdict.outcome is Outcome.INVALID
    (guard,) = [guard for guard in verdict.guards if guard.tripped]
    assert (guard.id, guard.invalidates) == ("first-token-visible", (FIRST,))
    assert "480 of 480 answers of the candidate alone begin with blank text, long before the next" in guard.reason


@pytest.mark.parametrize("arm", Arm)
@pytest.mark.parametrize(("earlier_ms", "trips"), [(0, False), (9, False), (11, True), (45, True)])
def test_a_blank_first_token_of_one_model_only_warns(arm: Arm, earlier_ms: float, trips: bool) -> None:
    """Tokens are 10 ms apart, and vary by 2 %: a second one that comes after less than 20 ms is as any other."""
    found = first_token_visible(beginning_blank(shown(), arm, 60, earlier_ms), SUITE)
    assert (found.tripped, found.warns) == (trips, not trips)
    assert not trips or found.invalidates == invalidated_by(arm, FIRST)


def test_models_that_both_begin_with_a_blank_line_are_alike() -> None:
    for count in (60, 50):
        both = beginning_blank(beginning_blank(shown(), Arm.BASELINE, count, 20), Arm.CANDIDATE, count, 20)
        found = first_token_visible(both, SUITE)
        assert (found.tripped, found.warns, found.known) == (False, False, True)


def test_blank_pieces_that_are_somewhat_more_frequent_warn() -> None:
    def last(columns: RequestColumns) -> dict[str, Any]:
        chosen = np.arange(len(columns)) >= 49
        chunks = columns.chunk_ns.copy()
        chunks[columns.chunk_start[:-1][chosen]] -= 20_000_000
        return {"chunk_ns": chunks, "first_visible": np.where(chosen, 0, 1)}

    evidence = saying(beginning_blank(shown(), Arm.CANDIDATE, 20, 20), Arm.BASELINE, last)
    found = first_token_visible(evidence, SUITE)
    assert (found.tripped, found.warns) == (False, True)
    assert "20 of 480" not in found.reason and "160 of 480 answers of the candidate alone" in found.reason


@pytest.mark.parametrize(("tokens", "trips"), [(1, False), (2, True), (3, True)])
def test_a_blank_piece_before_one_other_is_early_and_a_blank_answer_is_not(tokens: int, trips: bool) -> None:
    evidence = shown(Effect(tokens=tokens), Effect(tokens=tokens))
    found = first_token_visible(beginning_blank(evidence, Arm.CANDIDATE, 60, 20), SUITE)
    assert (found.tripped, found.warns) == (trips, not trips)


def test_failed_requests_begin_with_nothing() -> None:
    evidence = shown(Effect(failed=60))
    assert not first_token_visible(beginning_blank(evidence, Arm.BASELINE, 60, 20), SUITE).known


def test_blank_pieces_are_examined_where_they_are_recorded_and_decide_a_check() -> None:
    assert not first_token_visible(sound(), SUITE).known
    blank = beginning_blank(shown(), Arm.CANDIDATE, 60, 20)
    by_the_end = SuiteText([{"metric": "e2e", "margin": "10%"}, ERRORS]).suite()
    assert not first_token_visible(blank, by_the_end).known
    budget = {"objective": "99.5%", "window": "30d", "spent": "0%", "stage": "c4", "metric": "goodput"}
    counted = by_the_end.model_copy(update={"error_budget": ErrorBudget.model_validate(budget)})
    assert first_token_visible(blank, counted).tripped


def test_two_runs_that_measured_their_candidate_alone_are_compared_by_what_they_said() -> None:
    def spoke(evidence: Evidence, change: Change = plain) -> Evidence:
        return saying(evidence, Arm.CANDIDATE, change)

    def found(judged: Evidence) -> dict[str, GuardResult]:
        guards = of_untied_runs(compare(judged, spoke(alone())), SUITE)
        return {guard.id: guard for guard in guards if guard.tripped}

    assert found(spoke(alone(seed=2))) == {}
    half = found(spoke(alone(seed=2), lambda c: plain(c, 2)))
    assert list(half) == ["same-text"]
    assert not found(alone(seed=2))
