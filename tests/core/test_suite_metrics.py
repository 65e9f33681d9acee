"""`metrics` of a deployment: its short forms are stored as they are written, and every mistake has its place."""

from __future__ import annotations

from typing import Any

import pytest

from benchgate.errors import SuiteError
from benchgate.suite.loader import parse_suite
from benchgate.suite.schema import Suite

SUITE = """suite: s
deployments:
  a: {url: "http://a:1", model: m, metrics: METRICS}
baseline: a
candidate: a
load: {workload: {input: 4, output: 4}, sweep: [{stage: c1, concurrency: 1, requests: 20}]}
gate: {checks: [{metric: error_rate, max: 1%}]}
"""


def suite(metrics: str) -> Suite:
    return parse_suite(SUITE.replace("METRICS", metrics), "s.yaml")


@pytest.mark.parametrize(
    ("written", "stored"),
    [
        ("auto", None),
        ("off", "off"),
        ("http://h/metrics", "http://h/metrics"),
        ("[http://h1/metrics, '${env:X}']", ["http://h1/metrics", "${env:X}"]),
        ("[{url: http://h1/m, role: prefill}, http://h2/m]", [{"url": "http://h1/m", "role": "prefill"}, "http://h2/m"]),
        ("{page: off}", "off"),
        ("""{prometheus: "${env:P}", selector: '{job="v"}', api_key: "${env:K}"}""",
         {"prometheus": "${env:P}", "selector": '{job="v"}', "api_key": "${env:K}"}),
    ],
)  # fmt: skip
def test_source_of_metrics_is_stored_as_it_is_written(written: str, stored: Any) -> None:
    found = suite(written)
    assert found.to_stored()["deployments"]["a"].get("metrics") == stored
    assert Suite.from_stored(found.to_stored()) == found


@pytest.mark.parametrize(
    ("written", "says"),
    [
        ("3", r"3:45: .*found 3; expected \"auto\", \"off\", the address"),
        ("ftp://x", "is not the address of a page"),
        ("[]", "found an empty list; expected a list with at least one entry"),
        ("[http://h/m, http://h/m]", "names a page twice; each replica has a page of its own"),
        ("[{url: http://h/m, role: prefil}]", "did you mean `prefill`"),
        ("[{uri: http://h/m}]", "unknown key; did you mean `url`"),
        ("{prometheus: http://p:9090}", "`prometheus` and the `selector` of its series belong together"),
        ("{page: auto, role_label: role}", "belong to `prometheus`, which is missing"),
        ("{page: auto, replicas: [http://h/m]}", "needs exactly one of `page`, `replicas` and `prometheus`"),
        ("""{prometheus: "http://p:9090", selector: job}""", "write it in braces"),
        ("""{prometheus: "http://p:9090/api/v1", selector: '{}'}""", "which benchgate adds itself"),
        ("""{prometheus: "http://p:9090", selector: '{n="${env:N}"}'}""", "selector: a reference is resolved only in"),
        ("""{prometheus: "http://p:9090", selector: '{}', api_key: abc}""", "holds a literal of 3 characters"),
    ],
)
def test_source_of_metrics_that_cannot_be_is_refused_with_its_place(written: str, says: str) -> None:
    with pytest.raises(SuiteError, match=says):
        suite(written)


def test_energy_is_reported_by_accelerators_and_not_by_the_page_of_a_server() -> None:
    text = """\
suite: s
deployments:
  a: {url: "http://a:1", model: m, metrics: off, gpu: nvidia-smi}
  b: {url: "http://b:1", model: m, metrics: off, gpu: nvidia-smi}
baseline: a
candidate: b
load:
  workload: {input: 64, output: 8}
  sweep: [{stage: c, concurrency: 2, requests: 10}]
gate:
  checks: [{metric: joules_per_token, max: 1 J, required: true}, {metric: error_rate, max: 10%}]
"""
    assert parse_suite(text, "s.yaml").gate.checks[0].metric == "joules_per_token"
    with pytest.raises(SuiteError, match='is reported by the server, and "b" has `metrics: off`'):
        parse_suite(text.replace(", gpu: nvidia-smi", ""), "s.yaml")
