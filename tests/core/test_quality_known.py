"""What a baseline is known to score by its own earlier runs: whose runs those are, and how far it may be from them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from benchgate.model.deployment import Arm
from benchgate.model.history import PastArm, PastCheck, PastRun, past_arm
from benchgate.model.run import Evidence
from benchgate.model.verdict import GuardResult, Scale, Unit
from benchgate.suite.schema import Suite
from tests.fakes.evals import Answers, Line, evidence_of, suite_of
from tests.fakes.guards import one_of_evals

ACCURACY: Line = {"metric": "accuracy", "margin": "2 points"}
SUITE = suite_of([ACCURACY], ["t"])


def scoring(right: int, suite: Suite = SUITE, **harness: object) -> Evidence:
    """A run whose baseline gets so many of 1,000 items right."""
    arm = Answers([1.0] * right + [0.0] * (1000 - right), harness=harness)
    return evidence_of(suite, {"t": (arm, arm)})


def own(evidence: Evidence) -> PastArm:
    return past_arm(evidence.run.arms[Arm.BASELINE], evidence.run.environment)


def past(baseline: PastArm, value: float, name: str = "accuracy@t", unit: Unit = Unit.RATIO) -> PastRun:
    check = PastCheck(name, unit, Scale.DIFFERENCE, value, value, 0.0, -0.01, 0.01, 0.05, 1000)
    return PastRun("run-1", "2026-01-01T00:00:00Z", None, baseline, replace(baseline, release="other"), {name: check})


def looked(evidence: Evidence, *earlier: PastRun, suite: Suite = SUITE) -> GuardResult:
    return one_of_evals("baseline-as-known", replace(evidence, history=earlier), suite)


@pytest.mark.parametrize(("right", "tripped"), [(800, True), (840, False), (950, False), (970, True), (1000, True)])
def test_a_baseline_may_be_five_points_from_what_it_scored_before_and_its_limits_count(
    right: int, tripped: bool
) -> None:
    """scipy.stats.beta.ppf(0.95, 841, 160) is 0.8587 and (0.05, 950, 51) is 0.9371; the band is 85 to 95 %."""
    evidence = scoring(right)
    found = looked(evidence, past(own(evidence), 0.9))
    assert (found.tripped, found.known) == (tripped, True)
    assert found.invalidates == (("quality",) if tripped else ())
    assert not tripped or "where in 1 earlier run it scored about 85.0 % to 95.0 %" in found.reason


def test_several_earlier_runs_count_by_their_mean_and_the_band_ends_where_scores_do() -> None:
    evidence = scoring(880)
    here = own(evidence)
    assert looked(evidence, past(here, 0.99)).tripped
    both = looked(evidence, past(here, 0.99), past(here, 0.81))
    assert (both.tripped, both.known) == (False, True)
    assert "2 earlier runs" in looked(evidence, past(here, 0.99), past(here, 0.99)).reason
    assert "94.0 % to 100 %" in looked(evidence, past(here, 0.99)).reason
    assert "0 % to 6" in looked(evidence, past(here, 0.01)).reason


def test_only_runs_of_the_same_release_and_of_the_same_thing_say_what_is_known() -> None:
    evidence = scoring(100)
    here = own(evidence)
    for stranger in (
        past(replace(here, release="another"), 0.9),
        past(here, 0.9, "accuracy@u"),
        past(here, 0.9, unit=Unit.COUNT),
        replace(past(here, 0.9), checks={}),
    ):
        found = looked(evidence, stranger)
        assert (found.tripped, found.known) == (False, False)
        assert looked(evidence, stranger, past(here, 0.9)).tripped
    arms = {**evidence.run.arms, Arm.CANDIDATE: replace(evidence.run.arms[Arm.CANDIDATE], model="another")}
    changed = replace(evidence, run=replace(evidence.run, arms=arms))
    assert looked(changed, past(here, 0.9)).tripped  # whatever it is that is judged
    candidate = past_arm(arms[Arm.CANDIDATE], evidence.run.environment)
    assert looked(changed, past(candidate, 0.9)).known is False
    elsewhere = past(replace(here, name="renamed", fingerprint="moved", hardware="other"), 0.9)
    assert looked(evidence, elsewhere).tripped


def test_an_accuracy_over_all_tasks_is_a_tasks_own_where_it_is_the_only_one() -> None:
    evidence = scoring(100)
    over_all = past(own(evidence), 0.9, "accuracy")
    assert looked(evidence, over_all).tripped
    two = suite_of([ACCURACY], ["t", "u"])
    assert looked(scoring(100, two), over_all, suite=two).known is False
    both = replace(over_all, checks={**over_all.checks, **past(own(evidence), 0.1).checks})
    assert not looked(evidence, both).tripped  # its own name goes first


def test_a_run_without_a_live_baseline_knows_none() -> None:
    evidence = scoring(100)
    arms = {Arm.CANDIDATE: evidence.run.arms[Arm.CANDIDATE]}
    alone = replace(evidence, run=replace(evidence.run, arms=arms))
    assert looked(alone, past(own(evidence), 0.9)).known is False


def test_what_the_suite_says_goes_before_what_was_seen() -> None:
    for band, tripped in ((("5%", "15%"), False), (("80%", "90%"), True)):
        suite = suite_of([ACCURACY], [{"task": "t", "expect": dict(zip(("min", "max"), band, strict=True))}])
        evidence = scoring(100, suite)
        assert looked(evidence, past(own(evidence), 0.9), suite=suite).tripped is tripped


def test_what_was_stopped_has_no_item_or_is_no_share_is_not_held_against_earlier_runs() -> None:
    here = own(scoring(100))
    assert looked(scoring(100, stopped_early=True), past(here, 0.9)).known is False
    assert looked(scoring(100, scale="continuous"), past(here, 0.9)).known is False
    nothing = evidence_of(SUITE, {"t": (Answers([]), Answers([]))})
    assert looked(nothing, past(here, 0.9)).known is False
    assert looked(replace(scoring(100), quality=()), past(here, 0.9)).known is False


def test_the_candidate_and_a_second_asking_are_not_the_baseline() -> None:
    well, bad = Answers([1.0] * 900 + [0.0] * 100), Answers([0.0] * 1000)
    evidence = evidence_of(SUITE, {"t": (well, bad)}, {"t": bad})
    found = looked(evidence, past(own(evidence), 0.9))
    assert (found.tripped, found.known) == (False, True)
