"""How long requests stayed, and whether a queue grew where no SLO noticed."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from benchgate.model.deployment import Arm
from benchgate.model.records import RequestColumns
from benchgate.model.run import Evidence, LoadObservation
from benchgate.sizing.operating_point import QueueTrend, mean_residence_s, queue_trends
from benchgate.suite.schema import Suite
from tests.core.test_sizing import CLASSES, SUITE, a_suite
from tests.fakes import evidence as fake

ARM = Arm.CANDIDATE
OPEN = SUITE.replace("{stage: c4, concurrency: 4,", "{stage: r10, rate: 10/s,")


def block(stage: str, number: int, stays_s: list[float], *, per_s: float = 10.0, arm: Arm = ARM) -> LoadObservation:
    """One request every 1 / `per_s`, each of which stays so long; it fails where that is no time."""
    records = []
    for index, stay_s in enumerate(stays_s):
        due_ns = int(index / per_s * 1e9)
        end_ns = due_ns + int(stay_s * 1e9) if math.isfinite(stay_s) else due_ns
        one = replace(
            fake.request(index, 0, 0, 1, 0), intended_ns=due_ns, sent_ns=due_ns, chunk_ns=(end_ns,), end_ns=end_ns
        )
        records.append(one if math.isfinite(stay_s) else replace(one, http_status=500))
    client = fake.load()[0].client
    columns = RequestColumns.pack(records)
    return LoadObservation(stage, arm, number, number, columns, 30.0, client, RequestColumns.pack(()))


def of(*load: LoadObservation) -> Evidence:
    return replace(fake.evidence(), load=load)


def test_request_stays_its_arithmetic_mean_and_those_that_failed_are_not_counted() -> None:
    blocks = block("c4", 0, [1.0, 1.0, 10.0, math.inf]), block("c4", 1, [4.0])
    other = block("c8", 0, [math.inf]), block("c4", 0, [99.0], arm=Arm.BASELINE)
    assert mean_residence_s(of(*blocks, *other), ARM) == {"c4": pytest.approx(4.0)}


def watched(suite: Suite, *load: LoadObservation) -> dict[str, QueueTrend]:
    return queue_trends(of(*load), suite, ARM)


def test_queue_that_grows_is_seen_where_the_slo_is_too_loose_to() -> None:
    """Sent 10/s and answering 8: the last of 100 requests stays 2.5 s longer than the first."""
    steady, growing = ([0.5] * 100), list(0.5 + np.arange(100) / 8 - np.arange(100) / 10)
    found = watched(a_suite(OPEN), *(block("r10", number, growing) for number in range(5)))["r10"]
    assert (found.piles_up, found.is_brief) == (True, True)
    calm = watched(a_suite(OPEN), *(block("r10", number, steady) for number in range(5)))["r10"]
    assert (calm.piles_up, calm.is_brief) == (False, False)
    assert (calm.window_s, calm.stay_s) == pytest.approx((6.9, 0.5))  # of 100 requests those from the 21st to the 90th


def test_blocks_shorter_than_ten_stays_show_no_queue() -> None:
    brief = watched(a_suite(OPEN), *(block("r10", number, [0.7] * 100) for number in range(5)))["r10"]
    assert (brief.piles_up, brief.is_brief) == (False, True)


def test_only_a_rate_that_does_not_change_shows_a_queue() -> None:
    load = [block("r10", number, [0.5] * 100) for number in range(2)]
    ramp = OPEN.replace("rate: 10/s, requests: 100", "rate: 10/s, ramp_to: 20/s, for: 10s")
    talks = OPEN.replace("output: 50}", "output: 50, session: {turns: 3}}")
    bare = OPEN.replace("slo: {ttft: 500ms, target: 95%}\n", "")
    for text in (SUITE, ramp, talks, bare):
        assert watched(a_suite(text), *load) == {}
    assert watched(a_suite(OPEN).model_copy(update={"load": None}), *load) == {}
    assert watched(a_suite(OPEN)) == {}


def test_classes_of_a_stage_are_watched_together() -> None:
    load = block("mix/chat", 0, [0.5] * 40, per_s=4.0), block("mix/batch", 0, [1.5] * 10, per_s=1.0)
    found = watched(a_suite(CLASSES), *load)["mix"]
    assert found.stay_s == pytest.approx(1.0)
