"""The verdict as links, metrics and messages: the same from run to run, within limits, and no text means anything."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from prometheus_client import Metric
from prometheus_client.openmetrics.parser import text_string_to_metric_families

from benchgate.errors import ExitCode, UsageError
from benchgate.integrations.ci import report_link
from benchgate.model.verdict import Outcome
from benchgate.report.document import Terms
from benchgate.report.outputs import render_gitlab_annotations, render_metrics, render_notice
from benchgate.report.results import VerdictContext
from benchgate.report.slack import render_slack
from tests.fakes import evidence as fake
from tests.fakes import hostile

LINK = "https://ci.example/report.html?a=1&b=2"
JOB = "https://gitlab.example/group/project/-/jobs/7"


def told(outcome: Outcome = Outcome.BLOCK) -> VerdictContext:
    return VerdictContext(fake.evidence(), fake.verdict(outcome), outcome.exit_code(), link=LINK)


def bad(text: str) -> VerdictContext:
    return VerdictContext(hostile.evidence(text), hostile.verdict(text), ExitCode.BLOCK, link=LINK)


def families(text: str) -> list[Metric]:
    return list(text_string_to_metric_families(text))  # type: ignore[no-untyped-call]  # the library tells no types here


def verdict_lines(metrics: str) -> list[str]:
    return [line for line in metrics.splitlines() if line.startswith("benchgate_verdict{")]


def texts(value: object) -> Iterator[str]:
    if isinstance(value, dict):
        for one in value.values():
            yield from texts(one)
    elif isinstance(value, list):
        for one in value:
            yield from texts(one)
    elif isinstance(value, str):
        yield value


def test_metrics_are_openmetrics_with_values_that_gitlab_can_compare_as_texts() -> None:
    text = render_metrics(told(), digits=3)
    samples = [sample for family in families(text) for sample in family.samples]
    verdicts = {one.labels["outcome"]: one.value for one in samples if one.name == "benchgate_verdict"}
    assert verdicts == {outcome.value: float(outcome is Outcome.BLOCK) for outcome in Outcome}
    written = [line.rpartition(" ")[2] for line in text.splitlines() if not line.startswith("#")]
    assert [value for value in written if len(re.sub(r"e.*|[^0-9]|^0\.?0*", "", value)) > 3] == []
    again = replace(told(), evidence=replace(fake.evidence("another-run")))
    assert render_metrics(again, digits=3) == text  # no run, no time in it


def test_good_requests_are_counted_by_the_slo_of_the_policy_that_judged() -> None:
    own = fake.suite()
    assert own.slo is not None
    strict = own.model_copy(update={"slo": own.slo.model_copy(update={"ttft_s": 0.0001})})

    def goodput(context: VerdictContext) -> set[float]:
        samples = [one for family in families(render_metrics(context)) for one in family.samples]
        return {one.value for one in samples if one.name.startswith("benchgate_goodput")}

    assert max(goodput(told())) == 1.0
    assert goodput(replace(told(), terms=Terms(policy=strict))) == {0.0}


@pytest.mark.parametrize("text", hostile.JOINED, ids=range(len(hostile.JOINED)))
def test_gitlab_s_own_parser_reads_every_line_as_a_name_and_a_value(text: str) -> None:
    """It cuts a line at its first `#` and splits it as a shell would; one line that fails costs the whole report."""
    evidence = fake.evidence()
    tasks = tuple(replace(observation, task=text) for observation in evidence.quality[:2])
    told_of = replace(evidence, run=replace(evidence.run, suite_name=text), quality=tasks)
    said = render_metrics(replace(told(), evidence=told_of), digits=3)
    lines = [line.partition("#")[0] for line in said.splitlines()]
    read = [shlex.split(line) for line in lines if line.strip()]
    assert 'task="' in said
    assert all(len(words) == 2 and float(words[1]) >= 0 for words in read)


def test_nothing_that_is_not_promoted_reads_like_a_pass() -> None:
    unkept = replace(told(Outcome.PASS), exit_code=ExitCode.PUBLISH_FAILED)
    assert {line.rpartition(" ")[2] for line in verdict_lines(render_metrics(unkept, digits=3))} == {"0"}
    header, reason, doubt, *_ = (one["text"]["text"] for one in json.loads(render_slack(unkept))["blocks"])
    assert header == "✕ PASS (not promoted): tiny-q4"
    assert reason == "all 5 required checks hold"
    assert doubt == "the verdict could not be kept or published, so nothing may be promoted by it: exit code 13"
    data = json.loads(render_notice(unkept, report_sha256=None))["data"]
    assert (data["verdict"], data["promotes"], data["exit_code"], data["doubt"]) == ("PASS", False, 13, doubt)


def test_links_lead_to_the_report_and_to_each_failing_check() -> None:
    links = json.loads(render_gitlab_annotations(replace(told(), link="https://ci.example/report.html")))["benchgate"]
    assert [one["external_link"]["url"] for one in links] == [
        "https://ci.example/report.html",
        "https://ci.example/report.html#check-ttft-p50-c4",
    ]
    assert [one["external_link"]["label"].partition(" ")[0] for one in links] == ["BLOCK:", "BLOCK:"]
    with pytest.raises(UsageError, match="--report-url"):
        render_gitlab_annotations(replace(told(), link=None))


def test_links_say_how_many_failing_checks_have_none() -> None:
    blocked = tuple(replace(fake.check(outcome=Outcome.BLOCK), id=f"ttft-p50@c{i}") for i in range(14))
    context = replace(told(), verdict=replace(fake.verdict(), checks=blocked), link="https://ci.example/report.html")
    links = json.loads(render_gitlab_annotations(context))["benchgate"]
    assert len(links) == 12
    assert links[-1]["external_link"] == {
        "label": "4 more: the report has all of them",
        "url": "https://ci.example/report.html",
    }


def test_a_message_to_slack_says_the_verdict_first_and_stays_within_limits() -> None:
    many = tuple(replace(fake.check(outcome=Outcome.BLOCK), title="<&>" * 900) for _ in range(40))
    message = json.loads(render_slack(replace(told(), verdict=replace(fake.verdict(), checks=many, reason="&" * 9000))))
    header, *sections = message["blocks"]
    assert header["text"]["text"] == "■ BLOCK: tiny-q4"
    assert len(message["blocks"]) <= 50
    assert all(0 < len(one["text"]["text"]) <= 3000 for one in sections)
    assert 0 < len(message["text"]) <= 3000
    assert sections[-2]["text"]["text"] == "and 30 more, which the report has"
    assert sections[-1]["text"] == {
        "type": "mrkdwn",
        "verbatim": True,
        "text": "<https://ci.example/report.html?a=1&amp;b=2|The report>",
    }
    odd = json.loads(render_slack(replace(told(), link="https://ci.example/|PASS>")))["blocks"][-1]["text"]["text"]
    assert odd == "<https://ci.example/%7CPASS%3E|The report>"
    long = replace(told(), evidence=replace(fake.evidence(), run=replace(fake.run(), suite_name="&" * 400)))
    assert 0 < len(json.loads(render_slack(long))["blocks"][0]["text"]["text"]) <= 150


def test_a_notice_is_small_the_same_every_time_and_has_what_a_receiver_decides_by() -> None:
    body = render_notice(told(), report_sha256="ab" * 32)
    assert body == render_notice(told(), report_sha256="ab" * 32)
    message = json.loads(body)
    assert (message["type"], message["timestamp"]) == ("benchgate.verdict", fake.run().finished_at)
    data = message["data"]
    assert (data["verdict"], data["promotes"], data["exit_code"]) == ("BLOCK", False, 10)
    assert (data["url"], data["report_sha256"]) == (LINK, "ab" * 32)
    assert [(one["id"], one["outcome"]) for one in data["checks"]] == [("ttft-p50@c4", "BLOCK")]
    assert data["checks_held"] == 4


@pytest.mark.parametrize("text", hostile.JOINED, ids=range(len(hostile.JOINED)))
def test_no_text_is_more_than_a_text_in_a_message(text: str) -> None:
    attacked = bad(text)
    for said in texts(json.loads(render_slack(attacked))):
        if said.startswith("<https://ci.example"):
            continue
        assert re.search(r"[<>]|&(?!amp;|lt;|gt;)", said) is None
        assert re.search(r"(?i)@[a-z]|://|www\.[a-z]|:[a-z+]+:", said) is None
    links = json.loads(render_gitlab_annotations(attacked))["benchgate"]
    assert {one["external_link"]["url"] for one in links} == {LINK}
    assert (
        json.loads(render_notice(attacked, report_sha256=None))["data"].keys()
        == json.loads(render_notice(bad(hostile.BENIGN), report_sha256=None))["data"].keys()
    )
    labels = {"arm", "stage", "statistic", "task", "suite", "outcome"}
    for family in families(render_metrics(attacked, digits=3)):
        assert family.name.startswith("benchgate_")
        assert all(one.labels.keys() <= labels for one in family.samples)


def test_the_report_is_where_it_is_said_to_be_or_where_the_ci_has_it() -> None:
    gitlab = {"GITLAB_CI": "true", "CI_JOB_URL": JOB, "CI_PROJECT_DIR": "/builds/group/project"}
    inside, outside = Path("/builds/group/project/out/my report.html"), Path("/elsewhere/report.html")
    assert report_link(gitlab, "https://pages.example/r.html", inside) == "https://pages.example/r.html"
    assert report_link(gitlab, None, inside) == f"{JOB}/artifacts/file/out/my%20report.html"
    assert report_link(gitlab, None, outside) == report_link(gitlab, None, None) == JOB
    assert report_link({}, None, inside) is None


@pytest.mark.parametrize(
    "url",
    ["javascript:alert(1)", "https://u:p@ci.example/", "https://ci.example/|x>", "https://x/\n", "report.html", ""],
)
def test_an_address_that_is_none_is_refused(url: str) -> None:
    with pytest.raises(UsageError, match="--report-url"):
        report_link({}, url, None)
