"""What changed since the last promoted run: said of the numbers that both runs have, and never as a verdict."""

from __future__ import annotations

from dataclasses import replace

from benchgate.model.deployment import Arm
from benchgate.model.history import PastCheck, PastRun, past_arm
from benchgate.model.run import Evidence
from benchgate.model.verdict import Outcome, Scale, Unit
from benchgate.report.history_section import HistorySection, history_section
from tests.fakes import evidence as fake

MINUS = "\N{MINUS SIGN}"
THEN = PastCheck("ttft-p50@c4", Unit.SECONDS, Scale.LOG_RATIO, 0.04, 0.036, -0.105, -0.12, -0.09, 0.05, 4)


def past(*, baseline: Arm = Arm.BASELINE, candidate: Arm = Arm.BASELINE, check: PastCheck = THEN) -> PastRun:
    """An earlier run of which this run's deployments played these parts."""
    run = fake.run()
    arms = {arm: past_arm(one, run.environment) for arm, one in run.arms.items()}
    label = "release 7"
    return PastRun("earlier", "2025-12-01T00:00:00Z", label, arms[baseline], arms[candidate], {check.id: check})


def section(last: PastRun) -> HistorySection | None:
    return history_section(replace(fake.evidence(), history=(last,)), fake.verdict(Outcome.PASS))


def test_then_and_now_stand_side_by_side_each_with_its_own_difference() -> None:
    found = section(past())
    assert found is not None
    (row,) = found.table.rows
    assert row == ("TTFT p50 at c4", "40.0 ms", "36.0 ms", f"{MINUS}9.97 %", "36.0 ms", "36.3 ms", "+0.904 %")
    assert found.line == "release 7 of 2025-12-01: f16 against f16; its candidate is this run's baseline"


def test_how_the_two_runs_hang_together_is_told() -> None:
    same = section(past(candidate=Arm.CANDIDATE))
    assert same is not None and same.line.endswith("q4 against f16; it had the same baseline as this run")
    other = section(past(baseline=Arm.CANDIDATE, candidate=Arm.CANDIDATE))
    assert other is not None and "another release than this run's baseline" in other.line
    moved = past()
    moved = replace(moved, baseline=replace(moved.baseline, hardware="another machine"))
    elsewhere = section(moved)
    assert elsewhere is not None and elsewhere.line.endswith("; it ran on other hardware")


def test_nothing_is_said_where_there_is_nothing_to_set_beside_it() -> None:
    evidence: Evidence = fake.evidence()
    assert history_section(evidence, fake.verdict()) is None
    assert section(past(check=replace(THEN, id="ttft-p50@c8"))) is None
    assert section(past(check=replace(THEN, scale=Scale.DIFFERENCE))) is None
    alone = {Arm.CANDIDATE: evidence.run.arms[Arm.CANDIDATE]}
    lonely = replace(evidence, run=replace(evidence.run, arms=alone), history=(past(),))
    assert history_section(lonely, fake.verdict()) is None
