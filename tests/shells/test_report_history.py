"""What changed since the last promoted run: said of the numbers that both runs have, and never as a verdict."""

from __future__ import annotations

from dataclasses import replace

from benchgate.model.deployment import Arm
from benchgate.model.history import PastCheck, PastRun, past_arm
from benchgate.model.run import Evidence
from benchgate.model.verdict import Outcome, Scale, Unit, Verdict
from benchgate.report.section import Section
from benchgate.report.sections.history import history_section
from benchgate.suite.schema import Suite
from tests.fakes import evidence as fake
from tests.fakes.rendered import render_html, render_markdown

MINUS = "\N{MINUS SIGN}"
LAST = "Last promoted run of the same measurement:"
THEN = PastCheck("ttft-p50@c4", Unit.SECONDS, Scale.LOG_RATIO, 0.04, 0.036, -0.105, -0.12, -0.09, 0.05, 4)


def past(*, baseline: Arm = Arm.BASELINE, candidate: Arm = Arm.BASELINE, check: PastCheck = THEN) -> PastRun:
    """An earlier run of which this run's deployments played these parts."""
    run = fake.run()
    arms = {arm: past_arm(one, run.environment) for arm, one in run.arms.items()}
    label = "release 7"
    return PastRun("earlier", "2025-12-01T00:00:00Z", label, arms[baseline], arms[candidate], {check.id: check})


def section(last: PastRun) -> Section | None:
    return of_history((last,), fake.verdict(Outcome.PASS))


def of_history(history: tuple[PastRun, ...], verdict: Verdict) -> Section | None:
    evidence = replace(fake.evidence(), history=history)
    return history_section(evidence, verdict, Suite.from_stored(evidence.run.suite))


def line(last: PastRun) -> str:
    found = section(last)
    assert found is not None
    return found.sentences[0]


def test_then_and_now_stand_side_by_side_each_with_its_own_difference() -> None:
    found = section(past())
    assert found is not None
    (table,) = found.tables
    (row,) = table.rows
    assert row == ("TTFT p50 at c4", "40.0 ms", "36.0 ms", f"{MINUS}9.97 %", "36.0 ms", "36.3 ms", "+0.904 %")
    assert (
        found.sentences[0] == f"{LAST} release 7 of 2025-12-01: f16 against f16; its candidate is this run's baseline."
    )


def test_how_the_two_runs_hang_together_is_told() -> None:
    same = line(past(candidate=Arm.CANDIDATE))
    assert same.endswith("q4 against f16; it had the same baseline as this run.")
    other = line(past(baseline=Arm.CANDIDATE, candidate=Arm.CANDIDATE))
    assert "another release than this run's baseline" in other
    moved = past()
    moved = replace(moved, baseline=replace(moved.baseline, hardware="another machine"))
    elsewhere = line(moved)
    assert elsewhere.endswith("; it ran on other hardware.")


def test_of_servers_of_which_one_release_is_told_the_same_one_is_named() -> None:
    here = past().baseline
    other = replace(here, name="slow", fingerprint="of another address")
    stayed = line(replace(past(), candidate=other))
    assert stayed.endswith("slow against f16; it had the same baseline as this run.")
    promoted = line(replace(past(), baseline=other))
    assert promoted.endswith("f16 against slow; its candidate is this run's baseline.")
    moved = line(replace(past(), baseline=replace(other, name=here.name), candidate=other))
    assert moved.endswith("same baseline as this run, by its name, at another address.")


def test_a_release_alone_is_no_deployment() -> None:
    relation = "reports the same model and engine as this run's baseline"
    other = replace(past().baseline, name="slow", fingerprint="of another address")
    unlike = replace(other, release="another")
    ahead = line(replace(past(), baseline=unlike, candidate=other))
    assert ahead.endswith(f"its candidate {relation}.")
    behind = line(replace(past(), baseline=other, candidate=unlike))
    assert behind.endswith(f"its baseline {relation}.")


def test_good_requests_by_another_slo_are_not_set_beside_those_of_now() -> None:
    own = Suite.from_stored(fake.run().suite).to_stored()["slo"]
    verdict = fake.verdict(Outcome.PASS)
    of_good = tuple(replace(one, metric="goodput") if one.id == THEN.id else one for one in verdict.checks)
    for checks, slo, n_rows in (
        (of_good, own, 1),
        (of_good, None, 1),  # it is not known
        (of_good, {"ttft": "9s", "target": "95%"}, 0),
        (verdict.checks, {"ttft": "9s", "target": "95%"}, 1),  # no latency depends on it
    ):
        found = of_history((replace(past(), slo=slo),), replace(verdict, checks=checks))
        assert found is not None
        assert sum(len(table.rows) for table in found.tables) == n_rows
        assert ("by another `slo`" in found.sentences[0]) == (n_rows == 0)


def test_a_first_run_says_that_there_is_no_last_time() -> None:
    found = of_history((), fake.verdict())
    assert found is not None and not found.tables
    assert found.sentences[0].startswith("No earlier run of this measurement was promoted")
    assert f"<p>{found.sentences[0]}</p>" in render_html(fake.evidence(), fake.verdict())
    heading = "### Change since the last promotion"
    assert f"{heading}\n\n{found.sentences[0]}\n" in render_markdown(fake.evidence(), fake.verdict())


def test_no_numbers_stand_where_there_are_none_to_set_beside_them() -> None:
    evidence: Evidence = fake.evidence()
    for check in (replace(THEN, id="ttft-p50@c8"), replace(THEN, scale=Scale.DIFFERENCE)):
        found = section(past(check=check))
        assert found is not None and not found.tables and found.sentences[0].startswith(LAST)
    alone = {Arm.CANDIDATE: evidence.run.arms[Arm.CANDIDATE]}
    lonely = replace(evidence, run=replace(evidence.run, arms=alone), history=(past(),))
    assert history_section(lonely, fake.verdict(), Suite.from_stored(lonely.run.suite)) is None
