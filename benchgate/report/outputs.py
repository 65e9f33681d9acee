"""A verdict in the formats of CI systems: JUnit XML, GitLab reports, GitHub annotations, and a webhook's JSON."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import replace
from xml.etree import ElementTree

from benchgate.errors import UsageError
from benchgate.gate.summary.metric_rows import metric_rows
from benchgate.model.deployment import Arm
from benchgate.report.checks import check_rows
from benchgate.report.comparability import deployments
from benchgate.report.openmetrics import DIGITS, exposition, metric_families, start_family, verdict_family
from benchgate.report.results import Kind, Level, Result, SuiteLines, VerdictContext, plain

_NO_XML = re.compile("[\ufffe\uffff]")  # what is left of what XML 1.0 cannot hold (section 2.2)


def render_junit(context: VerdictContext) -> str:
    """Render JUnit XML; some test case fails unless the process ends with 0."""
    run, every = context.run, context.results()
    name = plain(run.suite_name)
    suite = _junit_element("testsuite", name=name, **_counts(every), timestamp=plain(run.started_at))
    properties = ElementTree.SubElement(suite, "properties")
    for key, value in _junit_properties(context):
        properties.append(_junit_element("property", name=key, value=value))
    for one in every:
        suite.append(_case(one, name))
    counts = {key: value for key, value in _counts(every).items() if key != "skipped"}
    root = _junit_element("testsuites", name="benchgate", **counts)
    root.append(suite)
    ElementTree.indent(root)
    return f'<?xml version="1.0" encoding="UTF-8"?>\n{ElementTree.tostring(root, encoding="unicode")}\n'


def _counts(every: Sequence[Result]) -> dict[str, str]:
    levels = [one.level for one in every]
    return {
        "tests": str(len(levels)),
        "failures": str(levels.count(Level.FAILS)),
        "errors": str(levels.count(Level.ERRS)),
        "skipped": str(levels.count(Level.UNKNOWN)),
    }


def _case(one: Result, suite: str) -> ElementTree.Element:
    title = f"{one.title} [{one.id}]" if one.kind is Kind.CHECK else one.title
    case = _junit_element("testcase", name=title, classname=f"{suite}.{one.family}")
    text = "\n".join(filter(None, (one.reason, *one.details, one.advice and f"what to do: {one.advice}")))
    word = {Level.FAILS: "failure", Level.ERRS: "error", Level.UNKNOWN: "skipped"}.get(one.level)
    if word is None:
        outcome = _junit_element("system-out")
        text = f"{one.outcome}: {text}"
    elif word == "skipped":
        outcome, text = _junit_element(word, message=one.line), ""
    else:
        outcome = _junit_element(word, message=one.line, type=one.outcome)
    outcome.text = _fit(text)
    case.append(outcome)
    return case


def _junit_properties(context: VerdictContext) -> Sequence[tuple[str, str]]:
    run, verdict, against = context.run, context.verdict, context.reference
    arms = deployments(run, against)
    pairs = (
        ("verdict", verdict.outcome.value),
        ("exit-code", str(int(context.exit_code))),
        ("run-id", run.id),
        ("against-run-id", None if against is None else against.id),
        ("baseline", arms[Arm.BASELINE][1].name),
        ("candidate", arms[Arm.CANDIDATE][1].name),
        ("baseline-fingerprint", arms[Arm.BASELINE][1].fingerprint),
        ("candidate-fingerprint", arms[Arm.CANDIDATE][1].fingerprint),
        ("suite-sha256", run.suite_sha256),
        ("measurement-sha256", run.measurement_sha256),
        ("plan-sha256", run.plan_sha256),
        ("policy-sha256", verdict.policy_sha256),
        ("benchgate", run.tool_version),
    )
    return [(key, plain(value)) for key, value in pairs if value is not None]


def _junit_element(tag: str, **attributes: str) -> ElementTree.Element:
    return ElementTree.Element(tag, {key: _fit(value) for key, value in attributes.items()})


def _fit(text: str) -> str:
    return _NO_XML.sub("\N{REPLACEMENT CHARACTER}", text)


_MOST_LINKS = 10
_LABEL_CHARACTERS = 200


def render_gitlab_annotations(context: VerdictContext) -> str:
    """Render `artifacts:reports:annotations`: links to the report and to its failing checks.

    Raises UsageError when the report's address is unknown.
    """
    if context.link is None:
        raise UsageError("annotations of GitLab are links to the report; say where it will be found with --report-url")
    verdict = context.results()[0]
    links = [_link(f"{verdict.line} (run {plain(context.run.id)})", context.link)]
    is_page = context.link.endswith(".html")  # and not the CI's page of the run, which has no places of checks
    failing = check_rows(context.verdict).failing
    for row in failing[:_MOST_LINKS]:
        advisory = "" if row.required else " (advisory)"
        links.append(
            _link(f"{row.outcome}: {row.title}{advisory}", f"{context.link}#{row.anchor}" if is_page else context.link)
        )
    if (left := len(failing) - _MOST_LINKS) > 0:
        links.append(_link(f"{left} more: the report has all of them", context.link))
    return json.dumps({"benchgate": links}, indent=2, sort_keys=True) + "\n"


def _link(label: str, url: str) -> dict[str, dict[str, str]]:
    return {"external_link": {"label": plain(label, _LABEL_CHARACTERS), "url": url}}


def render_metrics(context: VerdictContext, *, digits: int = DIGITS, with_start: bool = False) -> str:
    """Render the run's numbers, by the judging policy's SLO, as OpenMetrics text.

    A verdict that was not kept has no outcome. `with_start` adds when the run began, for those who compare times.
    """
    suite = _label(context.run.suite_name)
    verdicts = verdict_family({suite: None if context.doubtful else context.verdict.outcome})
    rows = []
    for row in metric_rows(context.terms.judged(context.evidence)):
        stage, task = (None if name is None else _label(name) for name in (row.stage, row.task))
        rows.append((suite, replace(row, stage=stage, task=task)))
    started = [start_family({suite: context.run.started_at})] if with_start else []
    return exposition([verdicts, *started, *metric_families(rows, digits=digits)])


def _label(name: str) -> str:
    """Replace `#`, where GitLab begins a comment even inside quotation marks."""
    return plain(name).replace("#", "\N{FULLWIDTH NUMBER SIGN}")


MOST_OF_A_KIND = 10
"""Limit of annotations of one level that GitHub keeps for a step."""


def render_annotations(context: VerdictContext) -> str:
    """Render workflow commands: `::error` stops the promotion, `::warning` warns, `::notice` is a PASS."""
    every = context.results()
    stops = [one for one in every if one.level.stops]
    warns = [one for one in every if one.level is Level.WARNS]
    holds = [one for one in every if one.kind is Kind.VERDICT and one.level is Level.HOLDS]
    kinds = (("error", stops), ("warning", warns), ("notice", holds))
    most = max(1, MOST_OF_A_KIND // context.candidates)  # with one the verdict alone
    commands: list[str] = []
    for word, some in kinds:
        shown = some if len(some) <= most else some[: max(1, most - 1)]
        for one in shown:
            sentences = (one.line, *one.details[:1], one.advice and f"What to do: {one.advice}")
            message = ". ".join(sentence.removesuffix(".") for sentence in sentences if sentence)
            check = one.id if one.kind is Kind.CHECK else None
            commands.append(_command(word, f"benchgate {one.name}", message, context.lines, check))
        if len(shown) < min(len(some), most):
            left = len(some) - len(shown)
            commands.append(_command(word, "benchgate", f"{left} more: the report has all of them", None, None))
    return "".join(f"{line}\n" for line in commands)


def _command(word: str, title: str, message: str, lines: SuiteLines | None, check: str | None) -> str:
    place = {} if lines is None else {"file": plain(lines.path), "line": str(lines.line(check))}
    properties = ",".join(
        f"{key}={_data(value).replace(':', '%3A').replace(',', '%2C')}"
        for key, value in {**place, "title": title}.items()
    )
    return f"::{word} {properties}::{_data(message)}"


def _data(text: str) -> str:
    """Escape a message (actions/toolkit, `escapeData`)."""
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


TYPE = "benchgate.verdict"
_QUIET = (Level.HOLDS, Level.UNKNOWN)
_MOST_REASON = 300  # of a check: what is sent stays small, as the specification asks


def render_notice(context: VerdictContext, *, report_sha256: str | None, decided_at: str | None = None) -> str:
    """Render the body of a webhook. `report_sha256` is the hash of the HTML report behind `link`.

    Its timestamp is `decided_at`, so that a verdict that comes a second time, after another one, is a message of its
    own; where the store does not know it, the run's end.

    Checks and guards that do not simply hold have outcome and reason; the others are counted.
    """
    verdict, *others = context.results()
    arms = deployments(context.run, context.reference)
    data = {
        "run_id": plain(context.run.id),
        "against_run_id": None if context.reference is None else plain(context.reference.id),
        "suite": plain(context.run.suite_name),
        "baseline": plain(arms[Arm.BASELINE][1].name),
        "candidate": plain(arms[Arm.CANDIDATE][1].name),
        "verdict": context.verdict.outcome.value,
        "promotes": not verdict.level.stops,
        "exit_code": int(context.exit_code),
        "reason": verdict.reason,
        "doubt": verdict.details[0] if context.doubtful else None,
        "checks": [_short(one) for one in others if one.kind is Kind.CHECK and one.level is not Level.HOLDS],
        "guards": [_short(one) for one in others if one.kind is Kind.GUARD and one.level not in _QUIET],
        "checks_held": sum(one.kind is Kind.CHECK and one.level is Level.HOLDS for one in others),
        "suite_sha256": plain(context.run.suite_sha256),
        "policy_sha256": context.verdict.policy_sha256,
        "report_sha256": report_sha256,
        "url": context.link,
    }
    timestamp = plain(decided_at or context.run.finished_at or context.run.started_at)
    message = {"type": TYPE, "timestamp": timestamp, "data": data}
    return json.dumps(message, sort_keys=True, separators=(",", ":"))


def _short(one: Result) -> dict[str, object]:
    required = {} if one.kind is Kind.GUARD else {"required": one.required}
    reason = plain(one.reason, _MOST_REASON)
    return {"id": one.id, "title": one.title, "outcome": one.outcome, "reason": reason, **required}
