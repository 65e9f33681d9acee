"""How much more the candidate's usage counts than its text shows: what is estimated, and what the checks do with it."""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest

from benchgate.gate.evidence.tokens import demonstrated_inflation, text_ratios
from benchgate.gate.guards.text import same_text
from benchgate.gate.judge import judge
from benchgate.gate.summary.figures import block_differences
from benchgate.model.deployment import Arm
from benchgate.model.records import ABSENT, RequestColumns, TokenSource
from benchgate.model.run import BudgetReading, Evidence
from benchgate.model.telemetry import Counter, TelemetrySample, TelemetryWindow
from benchgate.model.verdict import CheckResult, Outcome
from benchgate.suite.loader import parse_suite
from benchgate.suite.schema import Suite
from tests.fakes.answer_texts import CHARS, columns_of, plain, saying
from tests.fakes.measured import Effect, Noise, SuiteText, measured

Line = dict[str, object]
TPOT: Line = {"metric": "tpot", "margin": "5%"}
RATE: Line = {"metric": "output_throughput", "margin": "5%"}
ERRORS: Line = {"metric": "error_rate", "max": "5%"}
SUITE = SuiteText([TPOT, RATE, ERRORS]).suite()
LONG = Effect(tokens=100)


def answered(candidate: Effect = LONG, baseline: Effect = LONG, suite: Suite = SUITE) -> Evidence:
    evidence = measured(suite, candidate, baseline)
    return saying(saying(evidence, Arm.BASELINE, plain), Arm.CANDIDATE, plain)


def times(evidence: Evidence, suite: Suite = SUITE) -> float | None:
    """How many times the tokens of its text the candidate counts, where that is shown."""
    found = demonstrated_inflation(evidence, "c4", suite)
    return None if found is None else math.exp(found.estimate)


def check(evidence: Evidence, metric: str, suite: Suite = SUITE) -> CheckResult:
    return next(one for one in judge(suite, evidence).checks if one.metric == metric)


def test_arms_that_say_and_count_as_much_show_no_inflation() -> None:
    evidence = answered()
    ratios = text_ratios(evidence, "c4", SUITE)
    assert ratios is not None
    assert ratios.pairs == 480
    assert ratios.chars_per_token.estimate == 0
    assert times(evidence) is None
    assert judge(SUITE, evidence).outcome is Outcome.PASS


def test_a_usage_beyond_the_text_is_taken_out_of_what_is_measured_in_tokens() -> None:
    """8 % slower, and 8 % more tokens counted than written: nothing of it shows by the usage alone."""
    liar = replace(LONG, slowdown=1.08, usage=108)
    evidence = answered(liar)
    assert times(evidence) == pytest.approx(1.08)
    for metric in ("tpot", "output_throughput"):
        found = check(evidence, metric)
        assert found.outcome is Outcome.BLOCK
        assert found.harm == pytest.approx(math.log(1.08), abs=0.02)
        assert any("counts 1.08 times the tokens that its text shows (at least 1.08)" in note for note in found.notes)
    unsaid = measured(SUITE, liar, LONG)
    assert check(unsaid, "tpot").outcome is Outcome.PASS  # as runs were judged that do not know what was said


def test_an_interim_analysis_restates_what_the_last_one_does() -> None:
    """The stricter limits of an interim analysis make it harder to pass, and not harder to notice the inflation."""
    suite = SuiteText([TPOT, RATE, ERRORS], blocks=20).suite()
    assert suite.load is not None
    suite = suite.model_copy(update={"load": suite.load.model_copy(update={"looks": (5, 10, 20)})})
    generator = np.random.default_rng(2)

    def uneven(columns: RequestColumns) -> dict[str, Any]:
        said = plain(columns)
        spread = np.exp(generator.normal(0, 0.2, len(columns)))
        return {**said, "answer_chars": (said["answer_chars"] * spread).astype(np.int32)}

    evidence = measured(suite, replace(LONG, slowdown=1.08, usage=108), LONG, noise=Noise(cv=0.002))
    evidence = replace(evidence, load=tuple(one for one in evidence.load if one.block < 5))
    evidence = saying(saying(evidence, Arm.BASELINE, uneven), Arm.CANDIDATE, uneven)
    assert times(evidence, suite) == pytest.approx(1.08, abs=0.03)
    for metric in ("tpot", "output_throughput"):
        found = check(evidence, metric, suite)
        assert found.outcome is not Outcome.PASS
        assert found.harm == pytest.approx(math.log(1.08), abs=0.03)


def test_an_honest_pace_beside_an_inflated_usage_warns_and_names_it() -> None:
    verdict = judge(SUITE, answered(replace(LONG, slowdown=0.9, usage=108)))
    assert verdict.outcome is Outcome.WARN
    assert "the candidate's usage counts 1.08 times the tokens that its text shows" in verdict.reason


def test_the_values_shown_are_the_restated_ones() -> None:
    honest, inflated = answered(LONG), answered(replace(LONG, usage=108))
    for metric, worse in (("tpot", 1.08), ("output_throughput", 1 / 1.08)):
        by_usage = check(measured(SUITE, replace(LONG, usage=108), LONG), metric).candidate
        found = check(inflated, metric)
        assert by_usage is not None and found.candidate is not None
        assert found.candidate == pytest.approx(by_usage * worse)
        assert found.baseline == check(honest, metric).baseline


def test_of_all_tokens_only_those_of_the_output_are_restated() -> None:
    """8 tokens of input and 100 of text an answer: a usage of 108 makes 116 of them, and 8 belong to the input."""
    line: Line = {"metric": "total_throughput", "margin": "5%"}
    suite = SuiteText([line, {"metric": "input_throughput", "margin": "5%"}, ERRORS]).suite()
    liar = replace(LONG, usage=108)
    found, by_usage = (
        check(evidence, "total_throughput", suite)
        for evidence in (answered(liar, suite=suite), measured(suite, liar, LONG))
    )
    assert found.candidate == pytest.approx((by_usage.candidate or 0) * 108 / 116)
    assert not any(
        "usage counts" in note for note in check(answered(liar, suite=suite), "input_throughput", suite).notes
    )
    slower = answered(replace(liar, slowdown=1.08), suite=suite)
    assert check(slower, "total_throughput", suite).harm == pytest.approx(math.log(1.08), abs=0.02)


@pytest.mark.parametrize(("usage", "shown"), [(102, False), (103, True)])
def test_two_percent_are_no_contradiction(usage: int, shown: bool) -> None:
    assert (times(answered(replace(LONG, usage=usage))) is not None) is shown


def test_a_server_that_merges_tokens_and_sends_all_of_the_text_is_honest() -> None:
    evidence = saying(answered(replace(LONG, tokens=50, usage=100)), Arm.CANDIDATE, lambda c: plain(c, 2 * CHARS))
    assert times(evidence) is None
    assert not same_text(evidence, SUITE).tripped


def test_a_model_of_another_style_that_sends_each_token_is_honest() -> None:
    evidence = saying(answered(), Arm.CANDIDATE, lambda c: {"answer_chars": np.diff(c.chunk_start) * 19 // 4})
    assert times(evidence) is None
    guard = same_text(evidence, SUITE)
    assert not (guard.tripped or guard.warns)


def test_a_baseline_that_inflates_its_usage_is_never_the_candidates_gain() -> None:
    evidence = answered(LONG, replace(LONG, usage=108))
    assert times(evidence) is None
    assert check(evidence, "tpot").candidate == check(answered(), "tpot").candidate


@pytest.mark.parametrize("missing", ["answer_chars", "reasoning_chars"])
@pytest.mark.parametrize("arm", Arm)
def test_what_was_not_counted_contradicts_nothing(missing: str, arm: Arm) -> None:
    evidence = answered(replace(LONG, usage=108))
    unknown = saying(evidence, arm, lambda c: {missing: np.full(len(c), ABSENT)})
    assert text_ratios(unknown, "c4", SUITE) is None
    assert not same_text(unknown, SUITE).known


def test_empty_answers_on_both_arms_have_no_text_to_compare() -> None:
    silent = answered(replace(LONG, usage=108))
    for arm in Arm:
        silent = saying(silent, arm, lambda c: {"answer_chars": np.zeros(len(c), dtype=np.int32)})
    assert text_ratios(silent, "c4", SUITE) is None


def test_tokens_that_the_client_estimated_from_pieces_are_no_claim_of_a_server() -> None:
    estimated = replace(LONG, usage=108, token_source=TokenSource.CHUNKS)
    assert text_ratios(answered(estimated), "c4", SUITE) is None


@pytest.mark.parametrize(("requests", "known"), [(9, False), (10, True)])
def test_ten_pairs_are_needed(requests: int, known: bool) -> None:
    evidence = answered(replace(LONG, usage=108))
    few = replace(evidence, load=tuple(
        columns_of(o, answer_chars=np.where(np.arange(60) < requests, o.requests.answer_chars, ABSENT))
        for o in evidence.load if o.block == 0
    ))  # fmt: skip
    assert (text_ratios(few, "c4", SUITE) is not None) is known


def test_reasoning_that_is_counted_and_not_sent_is_taken_off_the_tokens() -> None:
    def hide(columns: RequestColumns) -> dict[str, Any]:
        return {"reasoning_tokens": np.full(len(columns), 100)}

    hides = replace(LONG, usage=200)
    hidden = saying(answered(hides), Arm.CANDIDATE, hide)
    assert times(hidden) is None
    assert same_text(hidden, SUITE).tripped
    hidden = saying(saying(answered(hides, hides), Arm.CANDIDATE, hide), Arm.BASELINE, hide)
    assert times(hidden) is None
    assert not same_text(hidden, SUITE).tripped
    assert same_text(answered(replace(LONG, usage=200)), SUITE).tripped


def test_reasoning_that_is_sent_counts_as_text() -> None:
    def thinking(columns: RequestColumns) -> dict[str, Any]:
        half = np.diff(columns.chunk_start) * CHARS // 2
        return {"answer_chars": half, "reasoning_chars": half, "reasoning_tokens": np.full(len(columns), 50)}

    evidence = saying(answered(), Arm.CANDIDATE, thinking)
    ratios = text_ratios(evidence, "c4", SUITE)
    assert ratios is not None
    assert ratios.chars_per_token.estimate == pytest.approx(0)


def test_tokens_of_another_vocabulary_are_not_compared() -> None:
    suite = SuiteText([TPOT, RATE, ERRORS], gate={"allow_different": ["vocabulary"]}).suite()
    evidence = answered(replace(LONG, usage=200), suite=suite)
    assert text_ratios(evidence, "c4", suite) is None
    assert not same_text(evidence, suite).known


def test_answers_that_came_whole_show_no_pieces() -> None:
    """A model that says the same in more tokens, and another that inflates them, look alike there."""
    whole = replace(LONG, tokens=2, usage=108)
    evidence = answered(whole, replace(whole, usage=100))
    ratios = text_ratios(evidence, "c4", SUITE)
    assert ratios is not None
    assert ratios.tokens_per_piece is None
    assert times(evidence) is None
    streamed = answered(replace(whole, tokens=3), replace(whole, tokens=3, usage=100))
    assert times(streamed) == pytest.approx(1.08)


def test_an_absolute_bound_holds_the_candidate_to_the_tokens_of_its_text() -> None:
    bounds: list[Line] = [
        {"metric": "tpot", "max": "10.5ms"},
        {"metric": "output_throughput", "min": "970/s"},
        {"metric": "usd_per_million_output_tokens", "max": "$0.58"},
        ERRORS,
    ]
    suite = SuiteText(bounds).suite()
    inflated = replace(LONG, slowdown=1.08, usage=108)
    by_usage, by_text = measured(suite, inflated, LONG), answered(inflated, suite=suite)
    for bound in bounds[:3]:
        metric = str(bound["metric"])
        before, found = check(by_usage, metric, suite), check(by_text, metric, suite)
        assert before.candidate is not None and found.candidate is not None
        ratio = found.candidate / before.candidate
        assert ratio == pytest.approx(1 / 1.08 if metric == "output_throughput" else 1.08)
        assert found.lower is not None and before.lower is not None
        assert found.lower / before.lower == pytest.approx(ratio)


def test_goodput_with_a_bound_on_tpot_goes_by_the_tokens_of_the_text() -> None:
    suite = SuiteText([{"metric": "goodput", "min": "95%"}, ERRORS]).suite()
    slow = replace(LONG, slowdown=4.8, usage=108)  # by its usage 44 ms a token, by its text 48 ms: both below 50 ms
    assert check(answered(slow, suite=suite), "goodput", suite).candidate == 0  # its first tokens are late
    ttft_free = suite.model_copy(update={"slo": suite.slo and suite.slo.model_copy(update={"ttft_s": None})})
    assert check(answered(replace(slow, slowdown=4.6), suite=suite), "goodput", ttft_free).candidate == 1
    restated = check(answered(replace(slow, slowdown=5.2), suite=suite), "goodput", ttft_free)
    by_usage = check(measured(suite, replace(slow, slowdown=5.2), LONG), "goodput", ttft_free)
    assert by_usage.candidate is not None and restated.candidate is not None
    assert restated.candidate < by_usage.candidate


PACED = """
suite: chat
deployments: {{now: {{url: "http://b", model: m, price: $2/h}}, next: {{url: "http://c", model: m, price: $2/h}}}}
baseline: now
candidate: next
slo: {{tpot: 50ms, target: 95%}}
{budget}
load:
  workload: {{input: 8 tokens, output: 120 tokens}}
  blocks: 8
  sweep: [{{stage: c4, concurrency: 4, requests: 60}}]
gate: {{checks: [{check}, {{metric: error_rate, max: 2%}}]}}
"""
BUDGET = "error_budget: {objective: 99%, window: 30d, metric: goodput, spent: 10%}"


@pytest.mark.parametrize(
    ("budget", "check", "metric", "outcome"),
    [
        ("", "{metric: usd_per_million_good_tokens, margin: 30%}", "usd_per_million_good_tokens", Outcome.BLOCK),
        ("", "{metric: usd_per_million_good_tokens, max: $9}", "usd_per_million_good_tokens", Outcome.INVALID),
        (BUDGET, "{metric: e2e, margin: 90%}", "error_budget_burn", Outcome.BLOCK),
    ],
)
def test_who_misses_the_pace_by_its_text_has_no_good_tokens_by_its_usage(
    budget: str, check: str, metric: str, outcome: Outcome
) -> None:
    suite = parse_suite(PACED.format(budget=budget, check=check), "suite.yaml")
    spent = BudgetReading(0.1, "the suite itself", "2026-01-01T00:00:00Z")
    for usage in (100, 108):  # 52 ms a token by its text; 48 ms by the larger usage
        slow = Effect(tokens=100, slowdown=5.2, usage=usage, finish="stop")
        evidence = answered(slow, Effect(tokens=100, slowdown=4.5, finish="stop"), suite)
        verdict = judge(suite, replace(evidence, budget_spent=spent))
        (found,) = [one for one in verdict.checks if one.metric == metric]
        assert found.outcome is outcome
        assert any("tokens that its text shows" in note for note in found.notes) is (usage == 108)


@dataclass(frozen=True)
class Style:
    """Answers of random lengths, whose characters per token spread by 15 % (sd of the log) from answer to answer."""

    inflated: float = 1.0  # usage over tokens
    merged: int = 1  # tokens in a piece
    style: float = 1.0  # characters per token over the usual
    sent: float = 1.0  # part of the text that is sent

    def columns(self, pairs: int, generator: np.random.Generator) -> dict[str, Any]:
        tokens = np.maximum(9, np.exp(generator.normal(5, 0.5, pairs)).astype(np.int64))
        chars = tokens * 4.3 * np.exp(generator.normal(0, 0.15, pairs)) * self.style * self.sent
        pieces = np.maximum(3, (tokens * self.sent).astype(np.int64) // self.merged)
        return {
            "answer_chars": chars.astype(np.int64),
            "reasoning_chars": np.zeros(pairs, dtype=np.int32),
            "output_tokens": np.round(tokens * self.inflated).astype(np.int64),
            "chunk_start": np.concatenate([[0], np.cumsum(pieces)]),
            "chunk_ns": np.arange(int(pieces.sum())),
        }


@functools.cache
def one_block(pairs: int) -> Evidence:
    evidence = measured(SuiteText([TPOT], blocks=2, requests=pairs).suite())
    return replace(evidence, load=tuple(o for o in evidence.load if o.block == 0))


def styled(pairs: int, candidate: Style, seed: int) -> Evidence:
    evidence = one_block(pairs)
    generator = np.random.default_rng(seed)
    load = []
    for execution in evidence.load:
        style = candidate if execution.arm is Arm.CANDIDATE else Style()
        load.append(columns_of(execution, **style.columns(pairs, generator)))
    return replace(evidence, load=tuple(load))


@pytest.mark.parametrize("pairs", [40, 160, 500])
@pytest.mark.parametrize("honest", [Style(), Style(merged=3), Style(style=0.95)])
def test_honest_styles_trip_nothing_and_are_not_restated(pairs: int, honest: Style) -> None:
    for seed in range(60):
        evidence = styled(pairs, honest, seed)
        guard = same_text(evidence, SUITE)
        assert not (guard.tripped or guard.warns)
        assert demonstrated_inflation(evidence, "c4", SUITE) is None


@pytest.mark.parametrize(("pairs", "least"), [(500, 38), (320, 34)])
def test_a_usage_inflated_by_eight_percent_is_shown_by_texts_of_any_length(pairs: int, least: int) -> None:
    found = [times(styled(pairs, Style(inflated=1.08), seed)) for seed in range(40)]
    assert sum(one is not None for one in found) >= least
    assert np.mean([one for one in found if one is not None]) == pytest.approx(1.08, abs=0.01)


@pytest.mark.parametrize("pairs", [40, 500])
def test_half_of_the_text_is_always_missed(pairs: int) -> None:
    for seed in range(40):
        assert same_text(styled(pairs, Style(sent=0.5), seed), SUITE).tripped


def test_the_estimates_uncertainty_reaches_the_check() -> None:
    """Each block carries its own part of the estimate, so that its spread widens the interval of the check."""
    evidence = answered(replace(LONG, usage=108))
    generator = np.random.default_rng(3)
    noisy = saying(evidence, Arm.CANDIDATE, lambda c: {
        "answer_chars": (np.diff(c.chunk_start) * CHARS * 0.98 * np.exp(generator.normal(0, 0.15, len(c)))).astype(int)
    })  # fmt: skip
    inflation = demonstrated_inflation(noisy, "c4", SUITE)
    assert inflation is not None
    assert np.mean(list(inflation.by_block.values())) == pytest.approx(inflation.estimate)


def test_the_blocks_of_the_report_are_those_of_the_check() -> None:
    evidence = answered(replace(LONG, usage=108))
    drawn = {one.id: one.regressions for one in block_differences(SUITE, evidence)}
    for metric in ("tpot", "output_throughput"):
        found = check(evidence, metric)
        assert found.harm == pytest.approx(np.mean(drawn[found.id]))


def test_two_stored_runs_are_restated_for_the_judged_candidate_alone() -> None:
    honest, inflated = answered(), answered(replace(LONG, slowdown=1.08, usage=108))
    found = {one.metric: one for one in judge(SUITE, inflated, honest).checks}
    assert found["tpot"].outcome is Outcome.BLOCK
    assert found["tpot"].harm == pytest.approx(math.log(1.08), abs=0.02)
    against_inflated = {one.metric: one for one in judge(SUITE, honest, inflated).checks}
    by_usage = {one.metric: one for one in judge(SUITE, measured(SUITE, LONG, LONG), inflated).checks}
    assert against_inflated["tpot"].harm == by_usage["tpot"].harm


def test_energy_is_spread_over_the_tokens_that_the_text_shows() -> None:
    """300 J in each block for 60 answers: 6,000 tokens of text, of which the usage makes 6,480."""
    suite = SuiteText([{"metric": "joules_per_token", "max": "1 J", "required": True}, ERRORS]).suite()
    evidence = answered(replace(LONG, usage=108), suite=suite)
    ends = [TelemetrySample(at_s, {Counter.GPU_ENERGY_J: 300.0 * at_s}) for at_s in (0.0, 1.0)]
    windows = tuple(
        TelemetryWindow("c4", Arm.CANDIDATE, block, 0, None, 1.0, drained=True, readings=tuple(ends))
        for block in {o.block for o in evidence.load}
    )
    found = check(replace(evidence, telemetry=windows), "joules_per_token", suite)
    requests = len(evidence.load[0].requests)
    assert found.candidate == pytest.approx(300 / (100 * requests))
    assert any("usage counts 1.08 times" in note for note in found.notes)


def test_energy_of_answers_that_miss_the_pace_by_their_text_is_for_no_token() -> None:
    line = "{metric: joules_per_token, max: 1 J, required: true}"
    suite = parse_suite(PACED.format(budget="", check=line), "suite.yaml")
    slow = Effect(tokens=100, slowdown=5.2, usage=108, finish="stop")
    evidence = answered(slow, Effect(tokens=100, slowdown=4.5, finish="stop"), suite)
    ends = [TelemetrySample(at_s, {Counter.GPU_ENERGY_J: 300.0 * at_s}) for at_s in (0.0, 1.0)]
    windows = tuple(
        TelemetryWindow("c4", Arm.CANDIDATE, block, 0, None, 1.0, drained=True, readings=tuple(ends))
        for block in {o.block for o in evidence.load}
    )
    found = check(replace(evidence, telemetry=windows), "joules_per_token", suite)
    assert found.outcome is Outcome.INVALID
