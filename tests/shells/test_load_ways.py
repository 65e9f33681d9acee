"""What keeps a suite's arms from being asked is found before anything is sent, all of it at once."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from benchgate.pipeline.preflight import run_problems, written_problems
from benchgate.suite.loader import parse_suite
from benchgate.suite.schema import Suite
from tests.fakes.certificates import CA, CLIENT_CERT, CLIENT_KEY

SUITE = """
suite: ways
deployments:
  plain: {{url: "{plain}", model: m, api_key: "${{env:PLAIN_KEY}}", headers: {{x-team: "${{env:TEAM}}"}}}}
  tls: {{url: "{tls}", model: m, tls: {{ca: {ca}, cert: client.pem, key: client.key}}}}
  unused: {{url: "https://unused", model: m, tls: {{ca: nowhere.pem}}}}
  own: {{embedded: {{weights: q8_0}}}}
baseline: plain
candidate: tls
load:
  audit: {audit}
  workload: {{input: 8 tokens, output: 8 tokens}}
  sweep: [{{stage: c2, concurrency: 2, requests: 20}}]
gate: {{checks: [{{metric: error_rate, max: 5%}}]}}
"""
SET = {"PLAIN_KEY": "k", "TEAM": "ml", "TLS_URL": "https://two"}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for file in (CA, CLIENT_CERT, CLIENT_KEY):
        shutil.copy(file, tmp_path)
    return tmp_path


def suite(plain: str = "http://one", tls: str = "https://two", ca: str = "ca.pem", audit: str = "false") -> Suite:
    return parse_suite(SUITE.format(plain=plain, tls=tls, ca=ca, audit=audit), "s.yaml")


def test_arms_that_can_be_asked_have_no_problem_and_other_deployments_none_either(folder: Path) -> None:
    assert run_problems(suite(), folder, SET) == []
    assert written_problems(suite(), folder) == []


def test_all_that_is_wrong_is_said_at_once_and_each_with_its_deployment(folder: Path) -> None:
    found = run_problems(suite(plain="unix:/run/s", ca="none.pem", audit="true"), folder, {})
    assert [problem.path for problem in found] == [
        "deployments.plain.api_key", "deployments.plain.headers.x-team", "load.audit", "deployments.tls", "load.audit",
    ]  # fmt: skip
    for problem, said in zip(found, ("PLAIN_KEY is not set", "TEAM is not set", "plain cannot be audited: what comes "
                                     "over a Unix socket", "none.pem could not be read", "tls cannot be audited"),
                             strict=True):  # fmt: skip
        assert said in problem.message


def test_a_suite_is_checked_where_its_secrets_are_not(folder: Path) -> None:
    named = suite(tls="${env:TLS_URL}", ca="none.pem", audit="true")
    (tls,) = written_problems(named, folder)
    assert str(tls).startswith("deployments.tls: the CA certificates in")
    assert [problem.path for problem in run_problems(named, folder, SET)] == [
        "deployments.tls", "load.audit",
    ]  # fmt: skip


def test_an_embedded_arm_has_no_way_that_could_be_wrong(folder: Path) -> None:
    own = suite().model_copy(update={"baseline": "own", "candidate": "own"})
    assert run_problems(own, folder, {}) == []


def test_an_arm_measured_against_itself_is_told_of_once(folder: Path) -> None:
    itself = suite(ca="none.pem").model_copy(update={"baseline": "tls"})
    assert len(run_problems(itself, folder, SET)) == 1


def test_a_run_refuses_more_requests_than_it_judges_one_by_one(folder: Path) -> None:
    text = SUITE.format(plain="http://one", tls="https://two", ca="ca.pem", audit="false")
    huge = parse_suite(text.replace("requests: 20", "requests: 10000001"), "s.yaml")
    (problem,) = run_problems(huge, folder, SET)
    assert problem.path == "load.sweep" and problem.message.startswith("c2 sends 10,000,001 requests to each arm")
    largest = parse_suite(text.replace("requests: 20", "requests: 10000000"), "s.yaml")
    assert run_problems(largest, folder, SET) == []
