"""The verdict as what CI hosts read: nothing that stops a promotion is ever green, and no text breaks out."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import replace
from xml.etree import ElementTree

import jsonschema
import pytest

from benchgate.errors import ExitCode
from benchgate.model.deployment import Arm
from benchgate.model.run import Evidence
from benchgate.model.verdict import GuardResult, Outcome, Verdict
from benchgate.report.document import Terms
from benchgate.report.formats import Output, rendered
from benchgate.report.outputs import MOST_OF_A_KIND, render_annotations, render_junit
from benchgate.report.results import Level, SuiteLines, VerdictContext, suite_lines
from benchgate.report.sarif import render_sarif
from tests.fakes import evidence as fake
from tests.fakes import hostile
from tests.golden import assert_golden

LINK = "https://ci.example/report.html"
LINES = SuiteLines("suites/tiny.yaml", {"ttft-p50@c4": 12}, 9)
TEXTS = (Output.JUNIT, Output.SARIF, Output.GITHUB, Output.GITLAB, Output.GITLAB_ANNOTATIONS, Output.SLACK)

# Jenkins' junit-10.xsd, as far as anything of it is used: which elements may stand in one, and which attributes.
LAYOUT: dict[str, tuple[set[str], set[str], set[str]]] = {
    # name: (children, required attributes, other attributes)
    "testsuites": ({"testsuite"}, set(), {"name", "time", "tests", "failures", "errors"}),
    "testsuite": (
        {"properties", "testcase", "system-out", "system-err"},
        {"name", "tests", "failures", "errors"},
        {"skipped", "timestamp", "time", "hostname", "id", "package"},
    ),
    "properties": ({"property"}, set(), set()),
    "property": (set(), {"name", "value"}, set()),
    "testcase": ({"skipped", "error", "failure", "system-out", "system-err"}, {"name"}, {"time", "classname"}),
    "failure": (set(), set(), {"type", "message"}),
    "error": (set(), set(), {"type", "message"}),
    "skipped": (set(), set(), {"type", "message"}),
    "system-out": (set(), set(), set()),
}

# Of SARIF 2.1.0 (section 3) what code scanning reads; everything else would be refused here.
MESSAGE = {"required": ["text"], "additionalProperties": False, "properties": {"text": {"type": "string"}}}
SARIF = {
    "type": "object",
    "required": ["version", "runs"],
    "additionalProperties": False,
    "properties": {
        "$schema": {"type": "string"},
        "version": {"const": "2.1.0"},
        "runs": {
            "type": "array",
            "minItems": 1,
            "maxItems": 1,
            "items": {
                "type": "object",
                "required": ["tool", "results"],
                "additionalProperties": False,
                "properties": {
                    "tool": {"type": "object", "required": ["driver"]},
                    "automationDetails": {"type": "object", "required": ["id"]},
                    "invocations": {"items": {"required": ["executionSuccessful"]}},
                    "properties": {"type": "object"},
                    "results": {
                        "type": "array",
                        "items": {
                            "type": "object",
                            "required": ["message", "ruleId", "ruleIndex", "level", "locations", "partialFingerprints"],
                            "additionalProperties": False,
                            "properties": {
                                "message": MESSAGE,
                                "ruleId": {"type": "string", "minLength": 1},
                                "ruleIndex": {"type": "integer", "minimum": 0},
                                "level": {"enum": ["error", "warning"]},
                                "partialFingerprints": {"additionalProperties": {"type": "string"}},
                                "properties": {"type": "object"},
                                "locations": {
                                    "minItems": 1,
                                    "maxItems": 1,
                                    "items": {
                                        "additionalProperties": False,
                                        "properties": {
                                            "logicalLocations": {"minItems": 1},
                                            "physicalLocation": {"required": ["artifactLocation", "region"]},
                                        },
                                    },
                                },
                            },
                        },
                    },
                },
            },
        },
    },
}


def told(verdict: Verdict, code: ExitCode | None = None, *, strict: bool = False) -> VerdictContext:
    terms = Terms(strict=strict)
    return VerdictContext(
        fake.evidence(), verdict, terms.exit_code(verdict) if code is None else code, terms=terms, link=LINK
    )


def bad(text: str) -> VerdictContext:
    return VerdictContext(hostile.evidence(text), hostile.verdict(text), ExitCode.BLOCK, link=LINK)


def cases(xml: str) -> dict[str, str]:
    """Every test case by name, with what a reader of JUnit makes of it."""
    found = {}
    for case in ElementTree.fromstring(xml).iter("testcase"):
        words = [child.tag for child in case]
        (word,) = words
        found[case.attrib["name"]] = "passed" if word == "system-out" else word
    return found


def laid_out(xml: str) -> ElementTree.Element:
    root = ElementTree.fromstring(xml)
    assert root.tag == "testsuites"
    for parent in root.iter():
        children, required, others = LAYOUT[parent.tag]
        assert {child.tag for child in parent} <= children
        assert required <= parent.attrib.keys() <= required | others
    suite = root[0]
    of_kind = {word: len(list(suite.iter(tag))) for word, tag in (("failures", "failure"), ("errors", "error"))}
    assert {word: int(suite.attrib[word]) for word in of_kind} == of_kind
    assert {word: int(root.attrib[word]) for word in of_kind} == of_kind
    assert int(suite.attrib["tests"]) == len(list(suite.iter("testcase")))
    return root


def command_lines(text: str) -> Iterator[tuple[str, dict[str, str], str]]:
    """Workflow commands as GitHub's runner takes them apart."""
    for line in text.splitlines():
        command = re.fullmatch(r"::(error|warning|notice) ([^:]*)::(.*)", line)
        assert command is not None, line
        word, properties, message = command.groups()
        yield word, dict(one.split("=", 1) for one in properties.split(",")), message


@pytest.mark.parametrize(
    ("output", "name"),
    [(Output.JUNIT, "junit.xml"), (Output.SARIF, "sarif.json"), (Output.GITHUB, "annotations.txt")],
)
def test_a_blocked_run_is_told_as_it_was(output: Output, name: str) -> None:
    """These very bytes were valid against junit-10.xsd and the schema of SARIF 2.1.0."""
    assert_golden(f"report-block-{name}", rendered(output, replace(told(fake.verdict()), lines=LINES)))


@pytest.mark.parametrize(
    ("outcome", "check"),
    [
        (Outcome.PASS, "passed"),
        (Outcome.WARN, "passed"),
        (Outcome.BLOCK, "failure"),
        (Outcome.INCONCLUSIVE, "error"),
        (Outcome.INVALID, "error"),
    ],
)
def test_each_outcome_has_its_place_in_junit(outcome: Outcome, check: str) -> None:
    xml = render_junit(told(fake.verdict(outcome)))
    laid_out(xml)
    found = cases(xml)
    assert found["Verdict"] == check
    assert found["TTFT p50 at c4 [ttft-p50@c4]"] == check
    assert found["Accuracy over all tasks [accuracy]"] == "passed"


def test_a_warning_is_red_where_it_was_asked_to_block() -> None:
    found = cases(render_junit(told(fake.verdict(Outcome.WARN), strict=True)))
    assert [name for name, word in found.items() if word == "failure"] == ["Verdict", "TTFT p50 at c4 [ttft-p50@c4]"]


def test_a_pass_that_could_not_be_kept_is_red_everywhere() -> None:
    lost = told(fake.verdict(Outcome.PASS), ExitCode.PUBLISH_FAILED)
    assert cases(render_junit(lost))["Verdict"] == "error"
    word, _, said = next(command_lines(render_annotations(lost)))
    assert (word, said.partition(":")[0]) == ("error", "PASS (not promoted)")
    log = json.loads(render_sarif(lost))["runs"][0]
    assert log["results"][0]["level"] == "error"
    assert log["invocations"] == [{"executionSuccessful": False, "exitCode": 13}]
    assert "exit code 13" in rendered(Output.SLACK, lost)


def test_a_verdict_without_a_failing_check_is_still_red() -> None:
    alone = replace(fake.verdict(Outcome.INVALID), checks=())
    assert cases(render_junit(told(alone)))["Verdict"] == "error"


def test_a_tripped_guard_is_an_error_and_one_that_saw_nothing_is_skipped() -> None:
    guards = (
        GuardResult("order-does-not-matter", False, "one block", None, known=False),
        GuardResult("client-keeps-up", True, "the client was late", "use more workers", ("load",)),
    )
    found = cases(render_junit(told(replace(fake.verdict(Outcome.INVALID), guards=guards))))
    assert (found["client-keeps-up"], found["order-does-not-matter"]) == ("error", "skipped")


def test_an_advisory_check_never_fails_a_test_and_a_waived_one_names_who_answers() -> None:
    verdict = fake.verdict(Outcome.WARN)
    advisory = replace(fake.check(outcome=Outcome.BLOCK), id="advisory", required=False)
    waived = replace(fake.check(outcome=Outcome.BLOCK), id="waived", waiver=hostile.waiver("rita"))
    xml = render_junit(told(replace(verdict, checks=(advisory, waived))))
    assert set(cases(xml).values()) == {"passed"}
    assert "advisory: it can warn, but never block" in xml
    assert "WAIVED: " in xml
    assert "BLOCK by itself, waived up to rita until 2026-01-05: owner rita (rita), approved by rita" in xml


def test_nothing_that_holds_is_in_sarif_and_everything_else_is() -> None:
    log = json.loads(render_sarif(replace(told(fake.verdict(Outcome.PASS)), lines=LINES)))
    assert log["runs"][0]["results"] == []
    warned = json.loads(render_sarif(replace(told(fake.verdict(Outcome.WARN)), lines=LINES)))["runs"][0]
    places = {one["ruleId"]: one["locations"][0]["physicalLocation"] for one in warned["results"]}
    assert {name: place["region"]["startLine"] for name, place in places.items()} == {"verdict": 9, "ttft-p50@c4": 12}
    assert {place["artifactLocation"]["uri"] for place in places.values()} == {"suites/tiny.yaml"}
    assert {one["level"] for one in warned["results"]} == {"warning"}


def test_log_of_one_candidate_replaces_no_alert_of_another_in_sarif() -> None:
    first, second = told(fake.verdict()), told(fake.verdict())
    arms = second.run.arms
    other = {**arms, Arm.CANDIDATE: replace(arms[Arm.CANDIDATE], name="other")}
    second = replace(second, evidence=replace(second.evidence, run=replace(second.run, arms=other)))
    logs = [json.loads(render_sarif(one))["runs"][0] for one in (first, second)]
    categories = {log["automationDetails"]["id"].rpartition("/")[0] for log in logs}
    alerts = [{one["partialFingerprints"]["benchgateRule/v1"] for one in log["results"]} for log in logs]
    assert len(categories) == 2
    assert alerts[0].isdisjoint(alerts[1])


def test_what_means_something_in_a_message_of_sarif_is_escaped() -> None:
    verdict = replace(fake.verdict(), reason="see [here](https://evil.example) and {0}")
    text = json.loads(render_sarif(told(verdict)))["runs"][0]["results"][0]["message"]["text"]
    assert text == r"BLOCK: see \[here\](https://evil.example) and {{0}}."


def test_annotations_begin_with_the_verdict_and_end_with_how_many_are_left() -> None:
    many = tuple(replace(fake.check(outcome=Outcome.BLOCK), id=f"check-{i}") for i in range(30))
    context = told(replace(fake.verdict(), checks=many))
    lines = list(command_lines(render_annotations(context)))
    assert len(lines) == MOST_OF_A_KIND
    assert lines[0][1]["title"] == "benchgate verdict"
    assert lines[-1][2] == "22 more: the report has all of them"
    of_three = list(command_lines(render_annotations(replace(context, candidates=3))))
    assert 3 * len(of_three) <= MOST_OF_A_KIND  # of one step, which has the annotations of all three
    assert of_three[0] == lines[0] and of_three[-1][2] == "29 more: the report has all of them"
    of_ten = list(command_lines(render_annotations(replace(context, candidates=10))))
    assert of_ten == lines[:1]  # the verdict of each


def test_annotations_stand_at_their_line() -> None:
    lines = list(command_lines(render_annotations(replace(told(fake.verdict()), lines=LINES))))
    assert [(p["file"], p["line"], p["title"]) for _, p, _ in lines] == [
        ("suites/tiny.yaml", "9", "benchgate verdict"),
        ("suites/tiny.yaml", "12", "benchgate ttft-p50@c4"),
    ]
    assert lines[0][2] == "BLOCK: TTFT p50 at c4 rose by 41.6 %25, the margin is 10 %25"


def test_checks_are_found_in_the_text_of_their_suite() -> None:
    text = "suite: tiny-q4\ngate:\n  checks:\n    - {metric: ttft, margin: 10%}\n    - metric: output_throughput\n"
    found = suite_lines(text, "a.yaml", fake.suite(), fake.evidence())
    assert found.line("ttft-p50@c1") == found.line("ttft-p50@c4") == 4
    assert found.line("output_throughput@c4") == 5
    assert found.line("accuracy") == found.line(None) == found.gate == 2
    assert suite_lines("suite: tiny-q4\n", "a.yaml", fake.suite(), fake.evidence()).line("ttft-p50@c1") == 1


@pytest.mark.parametrize("text", hostile.JOINED, ids=range(len(hostile.JOINED)))
def test_no_text_breaks_out_of_any_form(text: str) -> None:
    benign, attacked = bad(hostile.BENIGN), bad(text)
    for output in TEXTS:
        said = rendered(output, attacked)
        own = output is Output.GITHUB
        assert [line for line in said.splitlines() if re.match(r"\s*::", line) and not own] == []
        assert "##" not in said
        assert re.search(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]", said) is None
    root, same = laid_out(render_junit(attacked)), laid_out(render_junit(benign))
    assert [one.tag for one in root.iter()] == [one.tag for one in same.iter()]
    jsonschema.validate(json.loads(render_sarif(attacked)), SARIF)
    assert [one[0] for one in command_lines(render_annotations(attacked))] == [
        one[0] for one in command_lines(render_annotations(benign))
    ]


@pytest.mark.parametrize("text", hostile.TEXTS, ids=range(len(hostile.TEXTS)))
def test_each_hostile_text_stays_a_text(text: str) -> None:
    attacked = replace(bad(hostile.BENIGN), evidence=Evidence(hostile.run(text), (), (), None, ()))
    attacked = replace(attacked, verdict=hostile.verdict(text))
    laid_out(render_junit(attacked))
    for word, properties, _ in command_lines(render_annotations(replace(attacked, lines=replace(LINES, path=text)))):
        assert word in ("error", "warning")
        assert properties.keys() == {"file", "line", "title"}
    assert all("\n" not in one.line and "\r" not in one.line for one in attacked.results())


def test_only_what_holds_or_warns_lets_a_candidate_through() -> None:
    assert [level.value for level in Level if level.stops] == ["fails", "errs"]
