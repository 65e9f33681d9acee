"""The verdict as JUnit XML: what GitLab, Jenkins, Azure Pipelines, Buildkite and CircleCI show as tests.

One test suite for the benchgate suite, and in it a test case for the verdict, for every check and for every guard.
BLOCK is a failure; INVALID, INCONCLUSIVE and a tripped guard are errors: what could not be shown is never passed and
never skipped. What only warns (WARN, WAIVED, whatever an advisory check says) is passed and says so in its output; with
`--strict` a required WARN is a failure. Only a guard that had nothing to look at is skipped. The layout is the one that
Jenkins' xunit plugin (`junit-10.xsd`) and GitLab read.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from xml.etree import ElementTree

from benchgate.model.deployment import Arm
from benchgate.report.results import Kind, Level, Result, Told, plain
from benchgate.report.sides import deployments

_NO_XML = re.compile("[\ufffe\uffff]")  # what is left of what XML 1.0 cannot hold (section 2.2)


def render_junit(told: Told) -> str:
    """The document. Where the process does not end with 0, some test case in it is red."""
    run, every = told.run, told.results()
    name = plain(run.suite_name)
    suite = _element("testsuite", name=name, **_counts(every), timestamp=plain(run.started_at))
    properties = ElementTree.SubElement(suite, "properties")
    for key, value in _properties(told):
        properties.append(_element("property", name=key, value=value))
    for one in every:
        suite.append(_case(one, name))
    counts = {key: value for key, value in _counts(every).items() if key != "skipped"}
    root = _element("testsuites", name="benchgate", **counts)
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
    case = _element("testcase", name=title, classname=f"{suite}.{one.family}")
    text = "\n".join(filter(None, (one.reason, *one.details, one.advice and f"what to do: {one.advice}")))
    word = {Level.FAILS: "failure", Level.ERRS: "error", Level.UNKNOWN: "skipped"}.get(one.level)
    if word is None:
        told = _element("system-out")
        text = f"{one.outcome}: {text}"
    elif word == "skipped":
        told, text = _element(word, message=one.line), ""
    else:
        told = _element(word, message=one.line, type=one.outcome)
    told.text = _fit(text)
    case.append(told)
    return case


def _properties(told: Told) -> Sequence[tuple[str, str]]:
    run, verdict, against = told.run, told.verdict, told.reference
    arms = deployments(run, against)
    pairs = (
        ("verdict", verdict.outcome.value),
        ("exit-code", str(int(told.exit_code))),
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


def _element(tag: str, **attributes: str) -> ElementTree.Element:
    return ElementTree.Element(tag, {key: _fit(value) for key, value in attributes.items()})


def _fit(text: str) -> str:
    return _NO_XML.sub("\N{REPLACEMENT CHARACTER}", text)
