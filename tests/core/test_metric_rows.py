"""The numbers that a run leaves for trends: the mean over paired requests, where there are pairs."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from benchgate.gate.summary.metric_rows import metric_rows
from benchgate.model import request_metrics
from benchgate.model.deployment import Arm
from benchgate.model.run import Evidence
from tests.fakes.measured import Effect, SuiteText, measured

SUITE = SuiteText([{"metric": "ttft", "margin": "10%"}]).suite()


def means(evidence: Evidence) -> dict[tuple[str, Arm], float]:
    return {(row.name, row.arm): row.value for row in metric_rows(evidence) if row.statistic == "mean"}


def test_mean_of_a_latency_is_the_geometric_one_over_all_requests_of_the_arm() -> None:
    evidence = measured(SUITE, Effect(slowdown=1.1))
    found = means(evidence)
    assert {name for name, _ in found} == {"ttft", "tpot", "e2e"}
    for arm in Arm:
        values = np.concatenate([request_metrics.ttft_s(o.requests) for o in evidence.load if o.arm is arm])
        assert found["ttft", arm] == pytest.approx(float(np.exp(np.mean(np.log(values)))))
    assert found["ttft", Arm.CANDIDATE] > 1.05 * found["ttft", Arm.BASELINE]


def test_a_request_that_failed_leaves_no_mean() -> None:
    assert {arm for _, arm in means(measured(SUITE, Effect(failed=1)))} == {Arm.BASELINE}
    assert means(measured(SUITE, Effect(), Effect(failed=1))) == {}


def test_one_arm_alone_has_no_pairs() -> None:
    evidence = measured(SUITE)
    alone = replace(evidence, load=tuple(o for o in evidence.load if o.arm is Arm.CANDIDATE))
    assert means(alone) == {}
    assert [row for row in metric_rows(alone) if row.name == "ttft"]


def test_a_latency_counts_the_requests_that_have_one() -> None:
    """Twenty of the sixty answers of each of eight blocks came at one instant, and have no pace."""
    rows = metric_rows(measured(SUITE, Effect(at_once=20)))
    found = {row.name: row.n for row in rows if (row.arm, row.statistic) == (Arm.CANDIDATE, "p50")}
    assert (found["ttft"], found["tpot"]) == (480, 320)
