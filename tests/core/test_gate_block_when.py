"""What `block_when` promises, in every family of checks: `breach` blocks hardly anybody at the margin."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from benchgate.gate.checks import shares, timing
from benchgate.gate.checks.accuracy import accuracy_against_baseline, score_against_baseline
from benchgate.gate.checks.divergence import measure_perplexity
from benchgate.gate.checks.flips import flips_against_baseline
from benchgate.gate.checks.shadow import measure_excess
from benchgate.gate.comparison import Comparison, compare
from benchgate.gate.decision import Estimate, Rule, decide
from benchgate.gate.evidence.blocks import Measure
from benchgate.gate.policy import CheckSpec
from benchgate.model.deployment import Arm
from benchgate.model.records import DivergenceItem, DivergenceObservation, RequestColumns, RequestRecord, TokenSource
from benchgate.model.run import ClientUse, LoadObservation
from benchgate.model.verdict import Outcome, Scale, Unit
from tests.fakes.evals import Answers, evidence_of, suite_of
from tests.fakes.measured import SuiteText, measured
from tests.fakes.shadow_rows import EQUAL, OTHER, item
from tests.fakes.shadow_rows import evidence as shadow_evidence
from tests.fakes.shadow_rows import suite as shadow_suite

ALPHA = 0.05
_TTFT = SuiteText([{"metric": "ttft", "margin": "5%"}], blocks=2, requests=2).suite()
_LOADED = measured(_TTFT)
_EVALS = suite_of([{"metric": "accuracy", "margin": "2 points"}], ["mine"], repeat_baseline=True)
_SHADOW = shadow_suite({"metric": "shadow_excess", "margin": "5 points"})

Judged = Callable[[bool], Estimate]
"""Estimates one candidate, without or with `breach`."""
Draw = Callable[[np.random.Generator, float], Judged]
"""Draws a candidate whose true regression is so many margins."""


def judged(margin: float, measure: Callable[[Estimate], None], scale: Scale = Scale.DIFFERENCE) -> Judged:
    def fill(breach: bool) -> Estimate:
        estimate = Estimate(Rule(Unit.RATIO, scale, breach=breach), margin)
        with estimate.keeping_problems():
            measure(estimate)
        return estimate

    return fill


def loaded(ttfts_s: dict[Arm, list[float]]) -> Comparison:
    """Blocks of one request each."""
    client = ClientUse(cpu_s=0.05, wall_s=1.0, workers=1)
    load = [
        LoadObservation("c4", arm, block, 0, RequestColumns.pack([_record(ttft_s)]), 1.0, client)
        for arm, values in ttfts_s.items()
        for block, ttft_s in enumerate(values)
    ]
    return compare(replace(_LOADED, load=tuple(load)))


def _record(ttft_s: float) -> RequestRecord:
    chunks = (round(ttft_s * 1e9), round(ttft_s * 1e9) + 1)
    return RequestRecord(0, 0, 0, chunks, chunks[-1], 8, 2, TokenSource.USAGE, "length", 200, None, None)


def latency(generator: np.random.Generator, margins: float) -> Judged:
    noise = generator.normal(0, 0.02, (2, 10))
    slower = math.log1p(0.05) * margins
    times = {arm: (0.05 * np.exp(noise[i] + slower * i)).tolist() for i, arm in enumerate(Arm)}
    comparison, median = loaded(times), Measure("ttft", 0.5, "p50")
    spec = CheckSpec(_TTFT.gate.checks[0], "p50", "c4")
    return judged(
        math.log1p(0.05),
        lambda estimate: timing.against_baseline(estimate, comparison, "c4", median, spec, alpha=ALPHA),
        Scale.LOG_RATIO,
    )


def errors(generator: np.random.Generator, margins: float) -> Judged:
    """Twenty blocks of a hundred requests, of which the baseline fails 2 %; a margin of 2 points."""
    failed = {
        arm: generator.binomial(100, share, 20) for arm, share in zip(Arm, (0.02, 0.02 + 0.02 * margins), strict=True)
    }
    comparison = loaded({arm: [0.05] * 20 for arm in Arm})

    def tally(execution: LoadObservation) -> tuple[int, int]:
        return int(failed[execution.arm][execution.block]), 100

    return judged(
        0.02, lambda estimate: shares.against_baseline(estimate, comparison, "error_rate", "c4", tally, alpha=ALPHA)
    )


def _answers(generator: np.random.Generator, lost: float) -> tuple[list[float], list[float]]:
    """Of 400 items 5 % are lost and 5 % are won by chance, and so many more are lost."""
    own = generator.random(400)
    return np.where(own < 0.05, 0.0, 1.0).tolist(), np.where((own >= 0.05) & (own < 0.10 + lost), 0.0, 1.0).tolist()


def accuracy(generator: np.random.Generator, margins: float) -> Judged:
    theirs, ours = _answers(generator, 0.04 * margins)
    comparison = compare(evidence_of(_EVALS, {"mine": (Answers(theirs), Answers(ours))}))
    return judged(0.04, lambda estimate: accuracy_against_baseline(estimate, comparison, {"mine": ("mine",)}, ALPHA))


def score(generator: np.random.Generator, margins: float) -> Judged:
    theirs, noise = generator.uniform(0.4, 0.9, 200), generator.normal(0, 0.1, 200)
    both = (
        Answers(scores.tolist(), harness={"scale": "continuous"})
        for scores in (theirs, theirs + noise - 0.03 * margins)
    )
    comparison = compare(evidence_of(_EVALS, {"mine": (next(both), next(both))}))
    return judged(
        0.03, lambda estimate: score_against_baseline(estimate, comparison, {"mine": ("mine",)}, ALPHA, seed=1)
    )


def flips(generator: np.random.Generator, margins: float) -> Judged:
    right = np.where(generator.random(400) < 0.7, 1.0, 0.0)
    flipped = [
        np.where(generator.random(400) < share, 1 - right, right) for share in (0.02, 0.02, 0.02 + 0.05 * margins)
    ]
    first, again, ours = (Answers(one.tolist()) for one in flipped)
    comparison = compare(evidence_of(_EVALS, {"mine": (first, ours)}, {"mine": again}))
    return judged(
        0.05 * 0.96, lambda estimate: flips_against_baseline(estimate, comparison, {"mine": ("mine",)}, ALPHA, 0.01)
    )


def shadow(generator: np.random.Generator, margins: float) -> Judged:
    """Each of three answers to 300 prompts is an odd one in 5 % of cases, and the candidate's more often."""
    shares = (0.05, 0.05, 0.05 + 0.05 * margins / 0.95)
    first, second, third = (generator.random(300) < share for share in shares)
    rows = [
        item(
            n,
            primary="odd" if first[n] else "same",
            secondary="strange" if second[n] else "same",
            candidate="other" if third[n] else "same",
            own=OTHER if first[n] or second[n] else EQUAL,
            with_primary=OTHER if first[n] or third[n] else EQUAL,
            with_secondary=OTHER if second[n] or third[n] else EQUAL,
        )
        for n in range(300)
    ]
    comparison = compare(shadow_evidence(_SHADOW, rows))
    return judged(0.05, lambda estimate: measure_excess(estimate, comparison, ALPHA))


def perplexity(generator: np.random.Generator, margins: float) -> Judged:
    harms = math.log1p(0.02) * margins + generator.normal(0, 0.03, 30).repeat(5) + generator.normal(0, 0.03, 150)
    seen = tuple(
        DivergenceItem(
            text_id=f"t{n // 5}", piece=0, position=20 + n % 5, kld=0.01, same_top1=True, bound=False, shared=20,
            baseline_ln=-2.0, candidate_ln=-2.0 - float(harm),
        )
        for n, harm in enumerate(harms)
    )  # fmt: skip
    reading = DivergenceObservation(seen, len(seen), None, "n_probs", 264, True)
    comparison = compare(replace(_LOADED, divergence=reading))
    return judged(math.log1p(0.02), lambda estimate: measure_perplexity(estimate, comparison, ALPHA), Scale.LOG_RATIO)


FAMILIES: list[Draw] = [latency, errors, accuracy, score, flips, shadow, perplexity]


def outcomes(draw: Draw, margins: float, runs: int) -> tuple[Counter[Outcome], Counter[Outcome]]:
    """Without `breach` and with it, on the same candidates."""
    generator = np.random.default_rng(17)
    drawn = [draw(generator, margins) for _ in range(runs)]
    estimates = [[one(breach) for one in drawn] for breach in (False, True)]
    harm, breach = (Counter(decide(one, one.p_value, ALPHA, 0.8) for one in found) for found in estimates)
    return harm, breach


@pytest.mark.parametrize("draw", FAMILIES, ids=lambda draw: draw.__name__)
def test_who_is_at_the_margin_is_hardly_promoted_and_with_breach_hardly_blocked(draw: Draw) -> None:
    """5 % promised of each: more than 6 of 30 come about once in a thousand."""
    harm, breach = outcomes(draw, 1.0, runs=30)
    for seen in (harm, breach):
        assert seen[Outcome.PASS] + seen[Outcome.WARN] <= 6
        assert seen[Outcome.INVALID] == 0
    assert breach[Outcome.BLOCK] <= 6
    assert harm[Outcome.BLOCK] > breach[Outcome.BLOCK] + 8


@pytest.mark.parametrize("draw", FAMILIES, ids=lambda draw: draw.__name__)
def test_far_beyond_the_margin_both_block_and_of_equal_ones_harm_alone_may(draw: Draw) -> None:
    for seen in outcomes(draw, 4.0, runs=5):
        assert seen[Outcome.BLOCK] >= 4
        assert seen[Outcome.PASS] + seen[Outcome.WARN] == 0
    harm, breach = outcomes(draw, 0.0, runs=10)
    assert harm[Outcome.BLOCK] <= 3  # 5 % promised
    assert breach[Outcome.BLOCK] == 0
