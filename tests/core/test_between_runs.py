"""Two runs of which one alone had a live baseline: each side is its candidate, and nothing else of it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from benchgate.gate.checks.evaluate import evaluate
from benchgate.gate.comparison import compare
from benchgate.gate.policy import concrete_checks
from benchgate.model.deployment import Arm
from benchgate.model.run import DeploymentFault, Evidence
from tests.fakes.apart import alone, known
from tests.fakes.measured import HEALTHY, Effect, SuiteText, measured

ALONE = alone(seed=2)
SUITE = SuiteText([{"metric": "ttft", "margin": "10%"}], blocks=6).suite()


def beside_a_slow_baseline() -> Evidence:
    """A run whose own baseline takes three times as long as its candidate."""
    return replace(measured(SUITE, HEALTHY, Effect(slowdown=3.0)), run=replace(ALONE.run, id="live"))


@pytest.mark.parametrize("stored", [True, False])
def test_a_live_baseline_of_one_run_is_no_side_of_the_comparison(stored: bool) -> None:
    live = beside_a_slow_baseline()
    judged, reference = (ALONE, live) if stored else (live, ALONE)
    (found,) = evaluate(tuple(concrete_checks(SUITE, judged)), SUITE, compare(judged, reference))
    assert found.estimate.value == pytest.approx(0.0, abs=0.05)
    assert [found.estimate.baseline, found.estimate.candidate] == pytest.approx([0.053, 0.053], rel=0.05)


def test_noise_of_a_live_baseline_is_not_that_of_the_candidate_beside_it() -> None:
    live = beside_a_slow_baseline()
    arms = {**live.run.arms, Arm.BASELINE: replace(live.run.arms[Arm.BASELINE], model="another")}
    live = replace(live, run=replace(live.run, arms=arms, suite=SUITE.to_stored()))

    def limits(judged: Evidence, reference: Evidence) -> object:
        (found,) = evaluate(tuple(concrete_checks(SUITE, judged)), SUITE, compare(judged, reference))
        return found.estimate.limits

    wide = limits(live, known(ALONE, 0.1))
    assert wide is not None
    assert limits(known(live, 0.01, run_id="of another"), known(ALONE, 0.1)) == wide
    assert limits(known(live, 0.01), ALONE) is None


def test_the_stored_candidate_stands_where_the_baseline_would_with_what_went_wrong_in_either_run() -> None:
    faults = [DeploymentFault(Arm.CANDIDATE, "before block 1", told) for told in ("theirs", "ours")]
    arms = ALONE.run.arms.items()
    named = [{arm: replace(one, name=f"{name} {arm}") for arm, one in arms} for name in ("theirs", "ours")]
    names = [replace(ALONE, run=replace(ALONE.run, arms=both)) for both in named]
    theirs, ours = (replace(one, target_faults=(fault,)) for one, fault in zip(names, faults, strict=True))
    both = compare(ours, theirs).request_pairs
    assert {arm: one.name for arm, one in both.run.arms.items()} == {
        Arm.BASELINE: "theirs candidate", Arm.CANDIDATE: "ours candidate"
    }  # fmt: skip
    assert both.target_faults == tuple(faults)
    assert [o.arm for o in both.load] == [Arm.BASELINE] * 6 + [Arm.CANDIDATE] * 6
