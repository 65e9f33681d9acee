"""Checks that hold the candidate against itself: its value at one stage over its value at another."""

from __future__ import annotations

import math
import re
from dataclasses import replace

import pytest
from scipy.stats import t

from benchgate.gate.judge import judge
from benchgate.model.run import ClientUse
from benchgate.model.verdict import Outcome
from tests.fakes.drills import Line, checked, drill, seen
from tests.fakes.measured import HEALTHY, Effect, Noise, measured

TTFT: Line = {"metric": "ttft", "stage": "long", "over": "short"}

RATIOS = [
    ({**TTFT, "min": "2x"}, Effect(slowdown=3), Outcome.PASS),
    ({**TTFT, "min": "2x"}, Effect(slowdown=1), Outcome.BLOCK),  # the effect is absent
    ({**TTFT, "min": "2x"}, Effect(slowdown=2), Outcome.INCONCLUSIVE),
    ({**TTFT, "max": "1.2x"}, Effect(slowdown=1), Outcome.PASS),
    ({**TTFT, "max": "1.2x"}, Effect(slowdown=1.15), Outcome.PASS),  # near its bound, which is no SLO to warn of
    ({**TTFT, "max": "1.2x"}, Effect(slowdown=2), Outcome.BLOCK),
    ({**TTFT, "max": "1.2x"}, Effect(slowdown=1.2), Outcome.INCONCLUSIVE),
    ({**TTFT, "metric": "output_throughput", "max": "0.6x"}, Effect(slowdown=2), Outcome.PASS),
    ({**TTFT, "metric": "output_throughput", "max": "0.6x"}, HEALTHY, Outcome.BLOCK),
    ({**TTFT, "metric": "tpot", "max": "1.2x"}, HEALTHY, Outcome.PASS),
]


@pytest.mark.parametrize(("line", "effect", "outcome"), RATIOS)
def test_a_ratio_of_two_stages_is_shown_shown_absent_or_open(line: Line, effect: Effect, outcome: Outcome) -> None:
    check = checked(line, {"long": effect})
    assert check.outcome is outcome, check.reason
    bound = f"the bound of at {'least' if 'min' in line else 'most'} {line.get('min') or line.get('max')}"
    assert bound in check.reason
    assert (check.over, check.at_least) == ("short", "min" in line)


def test_the_ratio_and_its_parts_are_shown() -> None:
    check = checked({**TTFT, "min": "2x"}, {"long": Effect(slowdown=3)})
    assert check.title == "Time to first token p50 at long over short"
    assert check.id == "ttft-p50@long:min-over-short"
    assert check.candidate == pytest.approx(3, rel=0.05)
    assert check.lower is not None
    assert check.upper is not None
    assert 2 < check.lower < 3 < check.upper
    assert check.baseline is None
    (note,) = check.notes
    assert "ms at long" in note
    assert "ms at short" in note


def test_a_ratio_that_is_not_settled_says_how_many_blocks_would_do() -> None:
    # The interval reaches as far below the ratio as above it, by a t quantile that shrinks with the blocks too.
    few = checked({**TTFT, "min": "1.02x"}, {"long": Effect(slowdown=1.05)}, Noise(0.05, seed=4), blocks=4)
    assert few.outcome is Outcome.INCONCLUSIVE
    assert few.advice is not None
    said = re.fullmatch(r"measure more blocks: about ([\d,]+) in all would settle it", few.advice)
    assert said is not None
    assert few.candidate is not None
    assert few.upper is not None
    reach, room = math.log(few.upper / few.candidate), abs(math.log(few.candidate / 1.02))
    spread = reach * math.sqrt(4) / t.ppf(0.95, 3)
    expected = next(n for n in range(5, 1000) if t.ppf(0.95, n - 1) * spread / math.sqrt(n) < room)
    assert int(said[1].replace(",", "")) == pytest.approx(expected, abs=1)


def test_a_ratio_left_open_after_a_first_look_names_what_a_later_look_would_take() -> None:
    suite = drill({**TTFT, "min": "1.02x", "required": False}, {"metric": "error_rate", "max": "50%"}, blocks=20)
    assert suite.load is not None
    suite = suite.model_copy(update={"load": suite.load.model_copy(update={"looks": (5, 10, 20)})})
    evidence = seen(suite, {"long": Effect(slowdown=1.05)}, Noise(0.01, seed=4))
    first = replace(evidence, load=tuple(o for o in evidence.load if o.block < 5))
    check = judge(suite, first).checks[0]
    assert check.outcome is Outcome.INCONCLUSIVE
    assert "measure more blocks: about 10 in all would settle it" in (check.advice or "")
    second = replace(evidence, load=tuple(o for o in evidence.load if o.block < 10))
    assert judge(suite, second).checks[0].outcome is Outcome.PASS


@pytest.mark.slow
def test_an_effect_of_nothing_is_seldom_shown() -> None:
    shown = [checked({**TTFT, "min": "1.01x"}, {}, Noise(0.05, seed=seed), blocks=4) for seed in range(40)]
    assert sum(check.outcome is Outcome.PASS for check in shown) <= 5  # 5 % of 40, and two standard errors


@pytest.mark.parametrize("stage", ["long", "short"])
def test_failures_are_no_effect(stage: str) -> None:
    check = checked({**TTFT, "min": "2x"}, {stage: Effect(failed=30)})
    assert check.outcome is Outcome.INVALID
    assert "requests failed" in check.reason


def test_a_stage_that_was_not_measured_makes_the_ratio_invalid() -> None:
    suite = drill({**TTFT, "min": "2x"})
    evidence = measured(suite)
    without = replace(evidence, load=tuple(o for o in evidence.load if o.stage != "short"))
    assert judge(suite, without).checks[0].outcome is Outcome.INVALID


def test_blocks_in_which_the_client_was_late_at_either_stage_are_left_out_of_the_ratio() -> None:
    suite = drill({**TTFT, "min": "2x"})
    evidence = seen(suite, {"long": Effect(slowdown=3)})
    busy = ClientUse(cpu_s=0.95, wall_s=1.0, workers=1)
    load = tuple(replace(o, client=busy) if o.block == (2 if o.stage == "long" else 5) else o for o in evidence.load)
    check = judge(suite, replace(evidence, load=load)).checks[0]
    assert (check.outcome, check.n) == (Outcome.PASS, 6)
    assert sum("left out" in note for note in check.notes) == 2


SHARES = [
    ({"metric": "error_rate", "min": "5 points"}, Effect(failed=8), Outcome.PASS),
    ({"metric": "error_rate", "min": "5 points"}, HEALTHY, Outcome.BLOCK),
    ({"metric": "error_rate", "max": "5 points"}, HEALTHY, Outcome.PASS),
    ({"metric": "error_rate", "max": "5 points"}, Effect(failed=8), Outcome.BLOCK),
    ({"metric": "error_rate", "max": "5 points"}, Effect(failed=2), Outcome.INCONCLUSIVE),
    ({"metric": "goodput", "max": "5 points"}, HEALTHY, Outcome.PASS),
    ({"metric": "goodput", "min": "5 points"}, HEALTHY, Outcome.BLOCK),
]


@pytest.mark.parametrize(("line", "effect", "outcome"), SHARES)
def test_a_difference_of_two_stages_in_points(line: Line, effect: Effect, outcome: Outcome) -> None:
    check = checked({**line, "stage": "long", "over": "short"}, {"long": effect})
    assert check.outcome is outcome, check.reason
    assert "5 points" in check.reason


def test_goodput_that_rises_over_another_stage_is_a_gain_in_points() -> None:
    line: Line = {"metric": "goodput", "stage": "long", "over": "short", "min": "50 points"}
    check = checked(line, {"short": Effect(slowdown=5)})
    assert check.outcome is Outcome.PASS
    assert check.candidate == pytest.approx(1.0)


def test_a_high_quantile_is_that_of_blocks_taken_together_as_against_a_baseline() -> None:
    """Forty requests have no p95: three blocks of them are no three of its values, and eight blocks are four."""
    line: Line = {**TTFT, "statistic": "p95", "min": "2x"}
    slow = {"long": Effect(slowdown=3)}
    few = checked(line, slow, blocks=3)
    assert few.outcome is Outcome.INCONCLUSIVE
    assert few.reason.startswith("p95 is not estimable from 3 blocks of 40 requests at stage long")
    assert checked({**line, "statistic": "p99"}, slow).outcome is Outcome.INCONCLUSIVE
    together = checked(line, slow)
    assert together.outcome is Outcome.PASS
    assert together.candidate == pytest.approx(3, rel=0.1)
    assert together.notes[1:] == ("p95 needs at least 59 requests, so the 8 blocks were taken as 4 groups",)
    assert len(checked({**line, "statistic": "p50"}, slow).notes) == 1


@pytest.mark.parametrize("stage", ["long", "short"])
def test_a_pace_that_answers_lack_at_either_stage_is_held_against_no_other(stage: str) -> None:
    line: Line = {"metric": "tpot", "stage": "long", "over": "short", "max": "1.2x"}
    check = checked(line, {stage: Effect(at_once=6)})
    assert (check.outcome, f"stage {stage}: 48 of 320 answers" in check.reason) == (Outcome.INVALID, True)
    assert checked(line, {stage: Effect(at_once=1)}).outcome is Outcome.PASS
