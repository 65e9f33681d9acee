"""What changed since the last promoted run: said of the numbers that both runs have, and never as a verdict."""

from __future__ import annotations

from dataclasses import replace

from benchgate.model.deployment import Arm
from benchgate.model.history import PastCheck, PastRun, past_arm
from benchgate.model.run import Evidence
from benchgate.model.verdict import Outcome, Scale, Unit
from benchgate.report.history_section import HistorySection, history_section
from benchgate.report.html import render_html
from benchgate.report.markdown import render_markdown
from tests.fakes import evidence as fake

MINUS = "\N{MINUS SIGN}"
LAST = "The last promoted run of the same measurement was"
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
    assert found is not None and found.table is not None
    (row,) = found.table.rows
    assert row == ("TTFT p50 at c4", "40.0 ms", "36.0 ms", f"{MINUS}9.97 %", "36.0 ms", "36.3 ms", "+0.904 %")
    assert found.line == f"{LAST} release 7 of 2025-12-01: f16 against f16; its candidate is this run's baseline"


def test_how_the_two_runs_hang_together_is_told() -> None:
    same = section(past(candidate=Arm.CANDIDATE))
    assert same is not None and same.line.endswith("q4 against f16; it had the same baseline as this run")
    other = section(past(baseline=Arm.CANDIDATE, candidate=Arm.CANDIDATE))
    assert other is not None and "another release than this run's baseline" in other.line
    moved = past()
    moved = replace(moved, baseline=replace(moved.baseline, hardware="another machine"))
    elsewhere = section(moved)
    assert elsewhere is not None and elsewhere.line.endswith("; it ran on other hardware")


def test_of_servers_of_which_one_release_is_told_the_same_one_is_named() -> None:
    here = past().baseline
    other = replace(here, name="slow", fingerprint="of another address")
    stayed = section(replace(past(), candidate=other))
    assert stayed is not None and stayed.line.endswith("slow against f16; it had the same baseline as this run")
    promoted = section(replace(past(), baseline=other))
    assert promoted is not None and promoted.line.endswith("f16 against slow; its candidate is this run's baseline")
    moved = section(replace(past(), baseline=replace(other, name=here.name), candidate=other))
    assert moved is not None and moved.line.endswith("same baseline as this run, by its name, at another address")


def test_a_release_alone_is_no_deployment() -> None:
    told = "runs the same model and engine as this run's baseline, as far as is told"
    other = replace(past().baseline, name="slow", fingerprint="of another address")
    unlike = replace(other, release="another")
    ahead = section(replace(past(), baseline=unlike, candidate=other))
    assert ahead is not None and ahead.line.endswith(f"its candidate {told}")
    behind = section(replace(past(), baseline=other, candidate=unlike))
    assert behind is not None and behind.line.endswith(f"its baseline {told}")


def test_a_first_run_says_that_there_is_no_last_time() -> None:
    found = history_section(fake.evidence(), fake.verdict())
    assert found is not None and found.table is None
    assert found.line.startswith("No earlier run of this measurement was promoted")
    assert f"<p>{found.line}.</p>" in render_html(fake.evidence(), fake.verdict())
    assert f"### Since last time\n\n{found.line}.\n" in render_markdown(fake.evidence(), fake.verdict())


def test_no_numbers_stand_where_there_are_none_to_set_beside_them() -> None:
    evidence: Evidence = fake.evidence()
    for check in (replace(THEN, id="ttft-p50@c8"), replace(THEN, scale=Scale.DIFFERENCE)):
        found = section(past(check=check))
        assert found is not None and found.table is None and found.line.startswith(LAST)
    alone = {Arm.CANDIDATE: evidence.run.arms[Arm.CANDIDATE]}
    lonely = replace(evidence, run=replace(evidence.run, arms=alone), history=(past(),))
    assert history_section(lonely, fake.verdict()) is None
