"""A guard that had nothing to look at does not say that all is well: not without a load, without evals, or imported."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from benchgate.gate.judge import judge
from benchgate.model.run import Evidence
from benchgate.model.verdict import GuardResult, Outcome
from benchgate.pipeline.import_evals import live_only
from benchgate.report import display
from benchgate.report.text import render_text
from benchgate.report.view import ReportView, report_view
from benchgate.suite.schema import Suite
from tests.fakes.evals import Answers, Line, evidence_of, right_but, suite_of
from tests.fakes.measured import SuiteText, measured

ACCURACY: Line = {"metric": "accuracy", "margin": "5 points"}
WELL = Answers(right_but(300))
OF_LOAD = {"load-as-planned", "client-keeps-up", "one-client", "sent-once", "tokens-alike", "answers-not-too-long"}
OF_EVALS = {"baseline-able", "answers-not-empty", "answers-readable", "items-paired", "same-harness", "gain-plausible"}


def evals(baseline: Answers = WELL, **quality: object) -> tuple[Suite, Evidence]:
    suite = suite_of([ACCURACY], ["t"], **quality)
    return suite, evidence_of(suite, {"t": (baseline, replace(baseline, harness=baseline.harness))})


def imported() -> tuple[Suite, Evidence]:
    """As an import tells it: neither finish reasons nor times."""
    suite, evidence = evals(Answers(right_but(300, *range(60)), harness={"imported": True}))
    seen = tuple(
        replace(one, items=tuple(replace(i, finish_reason=None, latency_ns=None) for i in one.items))
        for one in evidence.quality
    )
    arms = {arm: replace(one, facts={"imported": True}) for arm, one in evidence.run.arms.items()}
    return suite, replace(evidence, quality=seen, run=replace(evidence.run, arms=arms))


def blind(suite: Suite, evidence: Evidence) -> set[str]:
    return {guard.id for guard in judge(suite, evidence).guards if not guard.known}


def holding(suite: Suite, evidence: Evidence) -> dict[str, GuardResult]:
    return {guard.id: guard for guard in judge(suite, evidence).guards if guard.known and not guard.tripped}


def test_without_a_load_no_guard_says_that_its_client_kept_up() -> None:
    assert blind(*evals()) >= OF_LOAD
    assert holding(*evals()).keys() >= OF_EVALS


def test_without_evals_no_guard_says_that_the_baseline_is_able() -> None:
    suite = SuiteText([{"metric": "ttft", "stage": "c4", "margin": "10%"}]).suite()
    evidence = replace(measured(suite), quality=())
    assert blind(suite, evidence) >= OF_EVALS
    assert holding(suite, evidence).keys() >= OF_LOAD


KNOWN = {"chance": 0.25, "output_type": "multiple_choice"}


@pytest.mark.parametrize(
    ("guard", "without", "with_it"),
    [
        ("above-chance", evals, lambda: evals(replace(WELL, harness=KNOWN))),
        ("not-guessing", evals, lambda: evals(replace(WELL, harness=KNOWN))),
        ("not-cached", lambda: evals(Answers(right_but(29))), evals),
        ("not-cached", imported, evals),
        ("baseline-as-known", evals, lambda: evals_within_a_band()),
    ],
)
def test_a_guard_of_evals_holds_only_where_it_could_have_tripped(
    guard: str, without: Callable[[], tuple[Suite, Evidence]], with_it: Callable[[], tuple[Suite, Evidence]]
) -> None:
    assert guard in blind(*without())
    assert guard in holding(*with_it())


def evals_within_a_band() -> tuple[Suite, Evidence]:
    suite = suite_of([ACCURACY], [{"task": "t", "expect": {"min": "80%", "max": "100%"}}])
    return suite, evidence_of(suite, {"t": (WELL, WELL)})


def test_an_import_claims_nothing_of_servers_that_nobody_asked() -> None:
    suite, evidence = imported()
    assert blind(suite, evidence) >= OF_LOAD | {"targets-up", "arms-alike", "not-cached"}
    assert "whether any was cut is not known" in holding(suite, evidence)["answers-readable"].reason
    assert judge(suite, evidence).outcome is Outcome.PASS


def test_a_report_of_an_import_says_so_first_and_shows_only_what_its_files_tell() -> None:
    suite, evidence = imported()
    verdict = judge(suite, evidence)
    view = report_view(evidence, verdict)
    assert view.banner.notice.startswith("The evals were imported")
    assert ", imported evals" in render_text(verdict, evidence.run)
    assert [cells[5] for cells in answers_of(view)] == [display.NOT_APPLICABLE] * 2
    titles = {group.title: dict(group.facts) for group in view.provenance.groups}
    assert "Machine" not in titles
    assert "time limits" not in titles["Workload and policy"]


def test_a_report_of_a_run_of_evals_shows_how_many_were_cut_and_where_it_ran() -> None:
    suite, evidence = evals()
    view = report_view(evidence, judge(suite, evidence))
    assert view.banner.notice == ""
    assert [cells[5] for cells in answers_of(view)] == ["0", "0"]
    assert "time limits" in {name for group in view.provenance.groups for name, _ in group.facts}


def answers_of(view: ReportView) -> tuple[tuple[str, ...], ...]:
    quality = view.section("quality")
    assert quality is not None
    return next(table.rows for table in quality.tables if table.caption == "Answers by task")


def test_an_import_refuses_a_task_file_that_it_would_not_read() -> None:
    suite = suite_of([ACCURACY], ["add", "own/mix.yaml"])
    [fault] = live_only(suite)
    assert fault.path == ("quality", "tasks", 1)
    assert "own/mix.yaml" in fault.message
    assert fault.message.endswith("alone: mix")
