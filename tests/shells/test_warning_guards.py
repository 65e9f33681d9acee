"""A guard that warns: it makes a PASS a WARN, and every output names it."""

from __future__ import annotations

import json
from dataclasses import replace
from xml.etree import ElementTree

from benchgate.errors import ExitCode
from benchgate.gate.judge import next_step, roll_up
from benchgate.gate.reasons import verdict_reason
from benchgate.model.verdict import GuardResult, Outcome, Verdict
from benchgate.model.verdict import checks_by_result as by_result
from benchgate.report.document import Terms
from benchgate.report.html import page_of
from benchgate.report.markdown import markdown_of
from benchgate.report.outputs import render_annotations, render_junit, render_notice
from benchgate.report.results import Kind, Level, VerdictContext
from benchgate.report.sarif import render_sarif
from benchgate.report.slack import render_slack
from benchgate.report.text import render_text
from benchgate.report.view import report_view
from tests.fakes import evidence as fake

WARNING = GuardResult(
    "model-names", False, "the candidate next was asked for m and answered as x", "add `answers_as: [x]`", warns=True
)
FINE = GuardResult("run-complete", False, "everything planned was measured", None)
NAMES = ("current", "next")


def verdict(*guards: GuardResult) -> Verdict:
    passed = (fake.check(),)
    outcome = roll_up(passed, guards)
    return replace(
        fake.verdict(Outcome.PASS),
        outcome=outcome,
        reason=verdict_reason(outcome, passed, guards, NAMES),
        checks=passed,
        guards=guards,
        next_step=next_step(outcome, passed, guards),
    )


def told(found: Verdict, *, strict: bool = False) -> VerdictContext:
    terms = Terms(strict=strict)
    return VerdictContext(fake.evidence(), found, terms.exit_code(found), terms=terms)


def test_a_warning_makes_a_pass_a_warn_and_no_more() -> None:
    passing, blocking = (fake.check(),), (fake.check(outcome=Outcome.BLOCK),)
    assert roll_up(passing, (FINE,)) is Outcome.PASS
    assert roll_up(passing, (FINE, WARNING)) is Outcome.WARN
    assert roll_up(blocking, (WARNING,)) is Outcome.BLOCK
    assert roll_up((fake.check(outcome=Outcome.INCONCLUSIVE),), (WARNING,)) is Outcome.INCONCLUSIVE
    assert roll_up(passing, (WARNING, GuardResult("one-client", True, "a", "b"))) is Outcome.INVALID


def test_the_sentence_names_the_guard_that_is_the_reason() -> None:
    found = verdict(FINE, WARNING)
    assert found.reason == f"next may be promoted, with care: guard model-names warns: {WARNING.reason}."
    assert found.next_step == "add `answers_as: [x]`"
    assert verdict(WARNING, replace(WARNING, id="same-text")).reason.endswith("; guard same-text warns too.")


def test_a_check_that_warns_comes_first_in_the_sentence() -> None:
    checks = (fake.check(outcome=Outcome.WARN),)
    reason = verdict_reason(Outcome.WARN, checks, (WARNING,), NAMES)
    assert reason.startswith(f"next may be promoted, with care: {checks[0].title}")
    assert reason.endswith("; guard model-names warns.")
    assert next_step(Outcome.WARN, checks, (WARNING,)) == checks[0].advice


def test_every_output_shows_it_as_a_warning() -> None:
    one = told(verdict(FINE, WARNING))
    guards = [result for result in one.results() if result.kind is Kind.GUARD]
    assert [(result.id, result.level, result.outcome) for result in guards] == [
        ("model-names", Level.WARNS, "warned"),
        ("run-complete", Level.HOLDS, "held"),
    ]
    commands = render_annotations(one).splitlines()
    (command,) = [line for line in commands if "title=benchgate guard%3Amodel-names" in line]
    assert command.startswith("::warning ")
    assert f"warned: {WARNING.reason}. What to do: {WARNING.remedy}" in command
    levels = {result["ruleId"]: result["level"] for result in json.loads(render_sarif(one))["runs"][0]["results"]}
    assert levels == {"verdict": "warning", "guard:model-names": "warning"}
    suite = ElementTree.fromstring(render_junit(one)).find("testsuite")
    assert suite is not None
    assert (suite.get("failures"), suite.get("errors")) == ("0", "0")
    case = suite.find("testcase[@name='model-names']/system-out")
    assert case is not None and case.text is not None
    assert case.text.startswith("warned: the candidate next was asked")
    assert "warned: guard model-names" in render_slack(one)
    assert [guard["id"] for guard in json.loads(render_notice(one, report_sha256=None))["data"]["guards"]] == [
        "model-names"
    ]
    assert f"warning of guard model-names: {WARNING.reason}" in render_text(one.verdict, one.run)


def test_the_report_says_with_care_and_what_to_do() -> None:
    found = verdict(FINE, WARNING)
    view = report_view(fake.evidence(), found)
    assert view.fairness.warned == (WARNING,)
    assert view.fairness.held == (FINE,)
    assert not view.fairness.fair
    assert '"warns":true' in view.numbers.text
    assert '"warns"' not in report_view(fake.evidence(), verdict(FINE)).numbers.text
    page = page_of(view)
    assert "<b>Read the numbers with these cautions:</b>" in page
    assert "<li><b>model-names</b>:" in page
    assert "**Cautions:**" in markdown_of(view)


def test_strict_fails_it() -> None:
    found = verdict(FINE, WARNING)
    strict = told(found, strict=True)
    assert strict.exit_code is ExitCode.BLOCK
    assert [result.level for result in strict.results() if result.id == "model-names"] == [Level.FAILS]
    assert by_result(found, ExitCode.OK).warned == ("model-names",)
    assert by_result(found, ExitCode.OK).failed == ()
    assert by_result(found, ExitCode.BLOCK).failed == ("model-names",)
