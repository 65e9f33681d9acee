"""Two arms that are reached in different ways are not compared in silence."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from benchgate.gate.guards.arms import arms_alike
from benchgate.model.deployment import Arm
from benchgate.model.run import Evidence
from tests.fakes.measured import SuiteText, measured

TTFT: dict[str, object] = {"metric": "ttft", "margin": "10%"}


def behind_a_proxy(evidence: Evidence, arm: Arm) -> Evidence:
    reached = replace(evidence.run.arms[arm], settings={"proxy": True})
    return replace(evidence, run=replace(evidence.run, arms={**evidence.run.arms, arm: reached}))


def test_a_proxy_before_one_arm_alone_makes_times_incomparable() -> None:
    suite = SuiteText([{"metric": "ttft", "margin": "10%"}]).suite()
    direct = measured(suite)
    one = behind_a_proxy(direct, Arm.BASELINE)
    guard = arms_alike(one, suite)
    assert guard.tripped
    assert "by a proxy for the baseline, direct for the candidate" in guard.reason
    assert not arms_alike(behind_a_proxy(one, Arm.CANDIDATE), suite).tripped
    assert not arms_alike(direct, suite).tripped


def test_a_baseline_reached_in_another_way_is_another_baseline() -> None:
    suite = SuiteText([{"metric": "ttft", "margin": "10%"}]).suite()
    direct = measured(suite)
    proxied = behind_a_proxy(direct, Arm.BASELINE)
    assert direct.run.arms[Arm.BASELINE].fingerprint != proxied.run.arms[Arm.BASELINE].fingerprint


def test_a_header_that_one_arm_alone_gets_must_be_declared_as_the_change() -> None:
    evidence = measured(SuiteText([{"metric": "ttft", "margin": "10%"}]).suite())
    routed = replace(evidence.run.arms[Arm.CANDIDATE], settings={"headers": {"x-route": "canary"}})
    evidence = replace(evidence, run=replace(evidence.run, arms={**evidence.run.arms, Arm.CANDIDATE: routed}))
    for allowed, trips in (([], True), (["request_fields"], False)):
        suite = SuiteText([{"metric": "ttft", "margin": "10%"}], gate={"allow_different": allowed}).suite()
        guard = arms_alike(evidence, suite)
        assert guard.tripped is trips
        assert "none for the baseline" in guard.reason
        assert '"x-route":"canary"' in guard.reason


@pytest.mark.parametrize(
    ("field", "change"),
    [
        ("request_fields", {"settings": {"extra": {"top_k": 1}}}),
        ("request_fields", {"settings": {"leave_out": ["seed"]}}),
    ],
)
@pytest.mark.parametrize("arm", Arm)
def test_what_one_arm_alone_is_or_is_sent_must_be_declared(field: str, change: dict[str, Any], arm: Arm) -> None:
    suites = [SuiteText([TTFT], gate={"allow_different": allowed}).suite() for allowed in ([], [field])]
    evidence = measured(suites[0])
    arms = {**evidence.run.arms, arm: replace(evidence.run.arms[arm], **change)}
    changed = replace(evidence, run=replace(evidence.run, arms=arms))
    assert [arms_alike(changed, suite).tripped for suite in suites] == [True, False]
    assert f"`gate.allow_different: [{field}]`" in str(arms_alike(changed, suites[0]).remedy)
