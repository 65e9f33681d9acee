"""Stages too large to be listed: each request follows from the seed and its number, and shares make up the whole."""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from pydantic import ValidationError

from benchgate.load.shards import PlannedRequests, stage_shard
from benchgate.model.deployment import Arm
from benchgate.plan.arrivals import arrival_offsets_ns
from benchgate.plan.client_demand import stage_demands
from benchgate.plan.model import GeneratedRequests, PlannedClass, PlannedRequest
from benchgate.plan.preview import preview
from benchgate.plan.schedule import Plan, make_plan
from benchgate.suite.schema import Limits, Suite
from benchgate.targets.dialect import DIALECTS, Target

IN_FLIGHT, REQUESTS = 10_001, 20_002  # one more in flight than are listed
TARGET = Target(Arm.CANDIDATE, "http://a", "m", DIALECTS["vllm"])
LOGNORMAL = {"lognormal": {"median": 20, "sigma": 0.5, "max": 200}}


def suite(seed: int = 7, **changes: Any) -> Suite:
    stage = {"stage": "huge", "concurrency": IN_FLIGHT, "requests": REQUESTS} | changes.pop("stage", {})
    return Suite.model_validate(
        {
            "suite": "huge",
            "seed": seed,
            "deployments": {name: {"url": f"http://{name}.invalid", "model": "m"} for name in ("a", "b")},
            "baseline": "a",
            "candidate": "b",
            "load": {
                "workload": {"input": LOGNORMAL, "output": LOGNORMAL},
                "blocks": 2,
                "sweep": [{name: value for name, value in stage.items() if value is not None}],
            }
            | changes,
            "gate": {"checks": [{"metric": "ttft", "margin": "5%"}, {"metric": "error_rate", "max": "1%"}]},
        }
    )


def only(plan: Plan, block: int = 0) -> PlannedClass:
    return plan.blocks[block].stages[0].only


def generated(requests: Sequence[PlannedRequest]) -> GeneratedRequests:
    assert isinstance(requests, GeneratedRequests)
    return requests


@pytest.mark.slow
def test_the_largest_stage_is_planned_from_a_sample() -> None:
    huge = suite(stage={"concurrency": 200_000, "requests": 1_000_000_000}, workers=512)
    plan = make_plan(huge)
    assert plan.sha256 == make_plan(huge).sha256 != make_plan(suite(8, stage={"concurrency": 200_000})).sha256
    assert len(plan.canonical) < 2**22
    cost = preview(huge, plan, None, 2)
    assert cost.load_requests - cost.warmup_requests == 4 * 10**9
    assert cost.stages[0].demand.concurrency == 200_000
    mean = 20 * np.exp(0.5**2 / 2)  # of the lognormal, of which the ramp has as many
    sent = cost.load_requests + cost.ramp_requests
    assert cost.totals.most.output_tokens == pytest.approx(sent * mean, rel=0.05)


def test_a_request_follows_from_the_seed_and_its_number() -> None:
    first, again, other = (generated(only(make_plan(suite(seed))).requests) for seed in (7, 7, 8))
    assert list(first[5_000:5_003]) == [first[number] for number in (5_000, 5_001, 5_002)] == list(again[5_000:5_003])
    assert first[5_000] not in (other[5_000], first[5_001], only(make_plan(suite()), 1).requests[5_000])
    assert pickle.loads(pickle.dumps(first))[9] == first[9]


@pytest.mark.slow
@pytest.mark.parametrize("salt", [0, 5])
def test_shares_make_up_the_whole_stage(salt: int) -> None:
    stage = make_plan(suite()).blocks[0].stages[0]
    whole = stage_shard(TARGET, stage, limits=Limits(), salt=salt)
    (part,) = whole.parts
    sent = {request.index: request for request in list(part.requests)[:6]}
    shares = [share.parts[0] for share in whole.split(4096)]
    assert len(shares) == 4096 and sum(share.level.concurrency or 0 for share in shares) == IN_FLIGHT
    indexes = [request.index for share in shares[:3] for request in share.requests]
    numbers = range(REQUESTS)  # a slot sends two of them, and most workers have two slots
    assert indexes == [number for worker in range(3) for number in numbers if number % IN_FLIGHT % 4096 == worker]
    assert next(iter(shares[5].requests)) == sent[5]
    found = shares[5].find()(5)
    assert found is not None and found.ask == sent[5].ask
    assert shares[5].find()(6) is None
    assert (sent[5] == stage.only.requests[5]) is (salt == 0)
    assert shares[0].ramp is not None and next(iter(shares[0].ramp.requests)).index == REQUESTS


@pytest.mark.slow
def test_sends_of_an_open_loop_are_those_of_one_draw() -> None:
    rate = suite(stage={"concurrency": None, "rate": "200000/s", "requests": 3_000_000, "arrival": "gamma:2"})
    group = only(make_plan(rate))
    requests = generated(group.requests)
    whole = np.concatenate(list(requests.offset_blocks_ns()))
    assert len(whole) == 3_000_000 and (np.diff(whole) >= 0).all() and group.last_send_ns == whole[-1]
    picked = list(requests[123::700_000])
    assert [request.offset_ns for request in picked] == whole[123::700_000].tolist()
    assert [request.index for request in picked] == list(range(123, 3_000_000, 700_000))
    (demand,) = stage_demands(make_plan(rate))
    assert demand.peak_rps == pytest.approx(200_000, rel=0.05) and demand.duration_s == pytest.approx(15, rel=0.05)


def test_blocks_of_sends_do_not_change_a_draw() -> None:
    count = (1 << 20) + 3
    found = arrival_offsets_ns("poisson", 50.0, count, np.random.default_rng(3))
    whole = np.rint(np.cumsum(np.random.default_rng(3).exponential(1 / 50, size=count)) * 1e9).astype(np.int64)
    assert np.array_equal(found, whole)


def test_up_to_the_limit_requests_are_listed() -> None:
    requests = only(make_plan(suite(stage={"concurrency": 10_000, "requests": 10_000}, warmup=1))).requests
    assert isinstance(requests, tuple) and not isinstance(PlannedRequests(requests).requests, GeneratedRequests)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"stage": {"concurrency": 1_000_001}}, "equal to 1000000 "),
        ({"stage": {"requests": 1_000_000_001}}, "equal to 1000000000 "),
        ({"workers": 4097}, "4096"),
        ({"stage": {"concurrency": None, "rate": "9/s", "ramp_to": "99999/s", "for": "60s", "requests": None}}, "such"),
        (
            {
                "stage": {"requests": 1_000_001},
                "workload": {"input": 8, "output": 8, "leave": {"share": "10%", "after": "2 tokens"}},
            },
            "without `leave`",
        ),
    ],
)
def test_beyond_the_limits_is_an_error_that_names_them(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        suite(**changes)
