"""The campaign against lying servers: its cases can be run, and a wrong or unnamed outcome counts as missed."""

from __future__ import annotations

from dataclasses import replace

import pytest

from benchgate.suite.loader import parse_suite
from benchgate.suite.simulator import SimSettings
from benchmarks.lies import CASES, Case, Ended, suite_of

URLS = {"before": "http://127.0.0.1:1", "after": "http://127.0.0.1:2"}


@pytest.mark.parametrize("name", CASES)
def test_servers_and_suite_of_every_case_are_read(name: str) -> None:
    case = replace(CASES[name], answers_as=())
    for options in (case.baseline, case.candidate):
        SimSettings.model_validate(options)
    suite = parse_suite(suite_of(case, URLS, 7), "lies.yaml")
    assert (suite.seed, suite.baseline, suite.candidate) == (7, "before", "after")


LIE = Case("a lie", {}, {}, ("INVALID", "BLOCK"), names="same-text|character")
HONEST = Case("honest", {}, {}, ("PASS", "WARN"), never="same-text")


@pytest.mark.parametrize(
    ("case", "outcome", "reason", "right"),
    [
        (LIE, "INVALID", "same-text: half of it is missing", True),
        (LIE, "BLOCK", "e2e-p50@c8 BLOCK: rose by 40 %", False),
        (LIE, "WARN", "same-text: half of it is missing", False),
        (LIE, "REFUSED", "unknown key", False),
        (HONEST, "PASS", "may be promoted", True),
        (HONEST, "WARN", "ttft-p50@c8 WARN: rose by 2 %", True),
        (HONEST, "WARN", "same-text: half of it is missing", False),
        (HONEST, "INCONCLUSIVE", "neither shown", False),
    ],
)
def test_run_is_right_by_its_outcome_and_by_what_its_reasons_name(
    case: Case, outcome: str, reason: str, right: bool
) -> None:
    assert Ended(outcome, (reason,), 1.0).right(case) is right
