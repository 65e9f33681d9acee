"""What a plan takes in all: requests, tokens, time and money from the first look to the last; and all of it as JSON."""

from __future__ import annotations

import json
from dataclasses import asdict

import pytest

from benchgate.plan.check_power import EarlierRun, KnownNoise
from benchgate.plan.preview import preview
from benchgate.plan.schedule import Plan, make_plan
from tests.core.test_plan_power import ERRORS, TTFT, load_suite, seen
from tests.core.test_plan_power_items import task
from tests.fakes.evals import suite_of


def test_totals_are_from_the_first_look_to_the_last() -> None:
    sweep = [{"stage": "r", "rate": "10/s", "arrival": "constant", "for": "20s"}]
    priced = {
        "baseline": {"url": "http://b", "model": "m", "price": "$4/h", "accelerators": 2},
        "candidate": {"url": "http://c", "model": "m", "price": "$2/h"},
    }
    suite = load_suite(TTFT, ERRORS, load={"blocks": None, "sweep": sweep, "warmup": 0}, deployments=priced)
    found = seen(suite).totals
    assert (found.least.blocks, found.most.blocks) == (5, 20)
    assert (found.least.requests, found.most.requests) == (2000, 8000)
    assert found.most.output_tokens == 80_000
    assert found.seconds_from == "schedules"
    assert found.most.seconds == pytest.approx(2 * 20 * 20.0)
    assert found.most.usd == pytest.approx(10 * (found.most.seconds or 0) / 3600)
    again = seen(suite, KnownNoise(earlier=EarlierRun("run-1", "2026-11-20T12:00:00Z", 10, 600.0))).totals
    assert (again.least.seconds, again.most.seconds, again.seconds_from) == (300.0, 1200.0, "run run-1")
    # more blocks take no more time for evals
    evals = seen(suite, KnownNoise(earlier=EarlierRun("run-1", "2026-11-20T12:00:00Z", 10, 600.0, 100.0))).totals
    assert (evals.least.seconds, evals.most.seconds) == (550.0, 700.0)


def test_a_capacity_search_counts_in_what_a_run_sends_at_most() -> None:
    search = {"capacity": {"over": "rate", "from": "1/s", "to": "64/s"}}
    for load in (search, {**search, "sweep": None, "blocks": None}):
        found = seen(load_suite({"metric": "capacity", "margin": "10%"}, load=load))
        assert found.capacity_requests > 10_000
        assert found.totals.most.requests == found.totals.least.requests + found.capacity_requests


def test_time_and_money_are_unknown_where_something_of_them_is() -> None:
    closed = seen(load_suite(TTFT, ERRORS, load={"sweep": [{"stage": "c4", "concurrency": 4, "requests": 60}]})).totals
    assert (closed.most.seconds, closed.most.usd, closed.seconds_from) == (None, None, None)
    unpriced = seen(load_suite(TTFT, ERRORS, load={"sweep": [{"stage": "r", "rate": "10/s", "requests": 60}]})).totals
    assert unpriced.most.seconds is not None
    assert unpriced.most.usd is None
    evals_alone = preview(
        suite_of([{"metric": "accuracy", "min": "1%"}], ["t"]), Plan(0, (), (), (task("t", 9),), ()), None, 2
    )
    assert (evals_alone.totals.most.requests, evals_alone.totals.most.seconds) == (18, None)
    earlier = KnownNoise(earlier=EarlierRun("run-1", "2026-11-20T12:00:00Z", 0, 600.0))
    took = preview(
        suite_of([{"metric": "accuracy", "min": "1%"}], ["t"]), Plan(0, (), (), (), ()), None, 2, (), earlier
    )
    assert took.totals.most.seconds == 600.0


def test_a_preview_holds_all_of_it_and_can_be_written_down() -> None:
    found = seen(load_suite({"metric": "error_rate", "max": "0.1%"}, {"metric": "ttft", "margin": "1%"}))
    assert len(found.checks) == 2
    assert (len(found.foregone), len(found.refused)) == (1, 1)
    assert found.refused[0].startswith(f"{found.foregone[0]}; write `allow_underpowered: true`")
    assert len(found.underpowered) == 1
    assert json.loads(json.dumps(asdict(found), allow_nan=False))["promotion"]["checks"] == 2
    nobody_said = preview(load_suite(TTFT, ERRORS), make_plan(load_suite(TTFT, ERRORS)), None, 2)
    assert (nobody_said.checks, nobody_said.promotion) == ((), None)
