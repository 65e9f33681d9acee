"""What a plan tells of its checks: what they see, what they need, which of them stand against a run."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from benchgate.gate.checks.shares import widened
from benchgate.gate.evidence.shares import Counts
from benchgate.gate.judge import judge
from benchgate.model.noise import NoiseKey, NoiseProfile, NoiseSpread, SelfDisagreement
from benchgate.model.verdict import Outcome
from benchgate.pipeline.forecast import judged_checks
from benchgate.plan.check_power import NO_KNOWN_NOISE, CheckPower, KnownNoise
from benchgate.plan.items import PlannedTask
from benchgate.plan.model import PlannedBlock
from benchgate.plan.power import PowerForecast, forecast_power, shortfalls
from benchgate.plan.preview import Preview, preview
from benchgate.plan.schedule import Plan, make_plan
from benchgate.stats.means import paired_t
from benchgate.stats.power import paired_t_power
from benchgate.stats.proportions import poisson_rates_p
from benchgate.stats.sequential import look_alphas
from benchgate.suite.schema import Suite
from tests.fakes.measured import Noise, measured

Line = dict[str, Any]
ERRORS: Line = {"metric": "error_rate", "max": "5%"}
OPEN: Line = {"stage": "c4", "rate": "4/s", "ramp": 0}  # all that it sends is measured
TTFT: Line = {"metric": "ttft", "margin": "10%"}


def load_suite(*checks: Line, load: Line | None = None, gate: Line | None = None, **sections: Any) -> Suite:
    written: Line = {
        "workload": {"input": "8 tokens", "output": "10 tokens"},
        "blocks": 10,
        "sweep": [{**OPEN, "requests": 60}],
        **(load or {}),
    }
    return Suite.model_validate(
        {
            "suite": "planned",
            "deployments": {
                "baseline": {"url": "http://b", "model": "m"},
                "candidate": {"url": "http://c", "model": "m"},
            },
            "slo": {"ttft": "200ms", "target": "95%"},
            "load": {key: value for key, value in written.items() if value is not None},
            "gate": {**(gate or {}), "checks": list(checks)},
            **sections,
        }
    )


def told(suite: Suite, plan: Plan | None = None, known: KnownNoise = NO_KNOWN_NOISE) -> PowerForecast:
    planned = make_plan(suite) if plan is None else plan
    return forecast_power(suite, planned, judged_checks(suite, planned), known)


def only(suite: Suite, plan: Plan | None = None, known: KnownNoise = NO_KNOWN_NOISE) -> CheckPower:
    return told(suite, plan, known).checks[0]


def calibrated(*spreads: NoiseSpread, disagreement: tuple[SelfDisagreement, ...] = ()) -> KnownNoise:
    key = NoiseKey("h", "vllm", "m", "0" * 64)
    return KnownNoise(NoiseProfile(key, "2026-11-20T12:00:00.000Z", "run-9", 10, spreads, disagreement))


def test_a_latency_sees_needs_and_passes_what_the_tables_say() -> None:
    # 3 % from run to run is assumed: 24 pairs find 3 %, 10 find 5 %, and 24 of them pass an equal candidate always
    suite = load_suite({"metric": "ttft", "margin": "5%"}, ERRORS, load={"blocks": 10})
    row = only(suite)
    assert (row.id, row.has, row.needs, row.n_unit, row.source) == ("ttft-p50@c4", 10, 10, "blocks", "assumed")
    assert row.passes == pytest.approx(0.96, abs=0.01)
    assert row.sees_95 is not None
    assert row.sees_95 == pytest.approx(0.05, abs=0.002)
    assert only(load_suite({"metric": "ttft", "margin": "3%"}, ERRORS, load={"blocks": 10})).needs == 24
    assert only(load_suite({"metric": "ttft", "margin": "3%"}, ERRORS, load={"blocks": 24})).passes == pytest.approx(
        0.95, abs=0.01
    )


@pytest.mark.slow
def test_what_it_says_of_an_equal_candidate_is_what_the_gate_does() -> None:
    """The whole decision over made-up runs of an equal candidate, each judged at the last look."""
    cv = 0.05
    load = {"blocks": None, "looks": [4, 8], "sweep": [{**OPEN, "requests": 6}]}
    suite = load_suite({"metric": "e2e", "margin": "10%"}, {"metric": "error_rate", "max": "50%"}, load=load)
    row = only(suite, known=calibrated(NoiseSpread("e2e", "p50", "c4", cv, 2**0.5 * cv, 10)))
    runs = [measured(suite, noise=Noise(cv=cv, seed=seed)) for seed in range(50)]
    outcomes = [judge(suite, run).checks[0].outcome for run in runs]
    promoted = sum(one in (Outcome.PASS, Outcome.WARN) for one in outcomes) / len(outcomes)
    at_the_end = paired_t_power(8, 2**0.5 * cv, math.log1p(0.10), alpha=look_alphas((0.5, 1.0), 0.05)[-1])
    assert promoted == pytest.approx(at_the_end, abs=0.16)  # three standard errors of so many runs
    assert row.passes == pytest.approx(at_the_end, abs=0.01)


@pytest.mark.parametrize(
    ("misses", "margin", "requests", "blocks"),
    [(0.01, 0.01, 100, 10), (0.05, 0.03, 60, 10), (0.01, 0.03, 60, 5), (0.01, 0.03, 100, 4)],
)
def test_what_it_says_of_shares_is_what_the_gates_limits_do(
    misses: float, margin: float, requests: int, blocks: int
) -> None:
    load = {"blocks": blocks, "sweep": [{**OPEN, "requests": requests}]}
    check = {"metric": "goodput" if misses == 0.05 else "error_rate", "margin": f"{margin * 100:g} points"}
    told_so = only(load_suite(check, ERRORS, load=load)).passes
    drawn = np.random.default_rng(6).binomial(requests, misses, size=(300, 2, blocks))
    passed = []
    for theirs, ours in drawn:
        mine, other = (Counts(tuple(arm.tolist()), (requests,) * blocks) for arm in (ours, theirs))
        test = paired_t((ours - theirs) / requests, 0.05)
        assert test is not None
        found = widened(test.limits, mine, other, 0.05)
        assert found is not None
        passed.append(found[0].upper < margin)
    assert told_so == pytest.approx(np.mean(passed), abs=0.1)  # three standard errors of so many gates


@pytest.mark.parametrize(("blocks", "requests"), [(5, 50), (10, 100)])
def test_the_smallest_loss_of_a_share_is_shown_as_often_as_is_said(blocks: int, requests: int) -> None:
    load = {"blocks": blocks, "sweep": [{**OPEN, "requests": requests}]}
    loss = only(load_suite({"metric": "error_rate", "margin": "10 points"}, ERRORS, load=load)).sees_80
    assert loss is not None
    drawn = np.random.default_rng(7).binomial(requests, [[0.01], [0.01 + loss]], size=(600, blocks, 2, 1))[..., 0]
    shown = []
    for theirs, ours in drawn.transpose(0, 2, 1):
        test, total = paired_t((ours - theirs) / requests, 0.05), blocks * requests
        assert test is not None
        shown.append(max(test.p_value, poisson_rates_p(int(ours.sum()), total, int(theirs.sum()), total)) <= 0.05)
    assert np.mean(shown) == pytest.approx(0.8, abs=0.06)


def test_a_throughput_loses_what_a_latency_gains() -> None:
    rows = told(
        load_suite({"metric": "output_throughput", "margin": "50%"}, {"metric": "e2e", "margin": "50%"}, ERRORS)
    ).checks
    rate, latency = rows[0], rows[1]
    assert rate.sees_80 is not None
    assert latency.sees_80 is not None
    assert 1 / (1 - rate.sees_80) == pytest.approx(1 + latency.sees_80)
    # halved is further in logarithms than half as slow again
    assert (rate.needs or 0) <= (latency.needs or 0)


def test_a_change_either_way_takes_more_than_one_for_the_worse() -> None:
    worse, either = told(
        load_suite({"metric": "ttft", "margin": "5%"}, {"metric": "e2e", "margin": "5%", "direction": "either"}, ERRORS)
    ).checks[:2]
    assert (worse.sees_80 or 1) < (either.sees_80 or 0)
    assert (worse.needs or 0) < (either.needs or 0)
    assert (worse.passes or 0) > (either.passes or 1)


@pytest.mark.slow
def test_blocks_of_few_requests_are_taken_together_for_a_high_quantile() -> None:
    def p99(requests: int, metric: str = "ttft", **load: Any) -> CheckPower:
        sweep = [{**OPEN, "requests": requests}]
        check = {"metric": metric, "statistic": "p99", "margin": "20%"}
        return only(load_suite(check, ERRORS, load={"blocks": None, "sweep": sweep, **load}))

    assert (p99(299).has, p99(299).n_unit) == (20, "blocks")
    assert (p99(150).has, p99(150).n_unit) == (10, "groups")
    assert (p99(150).passes or 1) < (p99(299).passes or 0)
    assert p99(50, "itl").n_unit == "blocks"
    few = p99(60, looks=[2, 3], blocks=None)
    assert (few.has, few.short, few.passes) == (None, "certain", 0.0)
    assert "598 requests" in (few.cannot or "")


def test_looks_are_counted_and_the_mean_of_blocks_is_told() -> None:
    suite = load_suite(TTFT, ERRORS, load={"blocks": None})
    found = told(suite)
    assert [row.has for row in found.checks] == [20, 1200]
    assert found.promotion is not None
    assert (found.promotion.checks, found.promotion.of) == (1, 2)
    assert found.promotion.blocks is not None
    assert 5 <= found.promotion.blocks < 10
    fixed = told(load_suite(TTFT, ERRORS))
    assert fixed.promotion is not None
    assert fixed.promotion.blocks is None


def test_all_required_checks_hold_less_often_than_each_alone() -> None:
    checks = [{"metric": metric, "margin": "5%"} for metric in ("ttft", "e2e", "tpot")]
    found = told(load_suite(*checks, ERRORS, {"metric": "itl", "margin": "1%", "required": False}))
    alone = [row.passes or 0.0 for row in found.checks[:3]]
    assert found.promotion is not None
    assert found.promotion.chance == pytest.approx(alone[0] * alone[1] * alone[2], abs=0.01)
    advisory = told(load_suite({**TTFT, "required": False}, {"metric": "knee", "min": 1, "required": True}, load={
        "sweep": [{"stage": f"c{n}", "concurrency": n, "requests": 4} for n in (1, 2, 4, 8, 16)]}))  # fmt: skip
    assert advisory.promotion is not None
    assert (advisory.promotion.chance, advisory.promotion.checks) == (None, 0)


def test_what_was_measured_goes_before_what_is_assumed() -> None:
    suite = load_suite(
        {"metric": "ttft", "margin": "5%"},
        {"metric": "ttft", "max": "200ms"},
        {"metric": "goodput", "margin": "5 points"},
        ERRORS,
    )
    known = calibrated(
        NoiseSpread("ttft", "p50", "c4", 0.10, 0.12, 10), NoiseSpread("goodput", None, "c4", 0.01, 0.02, 10)
    )
    rows = told(suite, known=known).checks
    assert [(row.spread, row.source, row.measured) for row in rows[:3]] == [
        (0.12, "noise profile of 2026-11-20", True),
        (0.10, "noise profile of 2026-11-20", True),
        (0.02, "noise profile of 2026-11-20", True),
    ]
    stale = told(suite, known=replace(known, noise_from="stale calibration")).checks[0]
    assert (stale.source, stale.measured) == ("stale noise profile of 2026-11-20", False)
    seen = told(suite, known=replace(known, noise_from="run")).checks[0]
    assert (seen.source, seen.short) == ("run run-9 of 2026-11-20", "assumed")
    assert KnownNoise().noise_source == ""


def test_two_arms_that_agreed_to_the_last_digit_do_not_make_everything_certain() -> None:
    row = only(load_suite(TTFT, ERRORS), known=calibrated(NoiseSpread("ttft", "p50", "c4", 0.0, 0.0, 10)))
    assert (row.needs, row.passes) == (2, 1.0)


@pytest.mark.parametrize(("pairs", "refused"), [(2, 0), (7, 0), (8, 1)])
def test_spread_of_a_few_pairs_refuses_nothing(pairs: int, refused: int) -> None:
    known = calibrated(NoiseSpread("ttft", "p50", "c4", 0.03, 0.042, pairs))
    found = shortfalls(told(load_suite({"metric": "ttft", "margin": "1%"}, ERRORS), known=known).checks)
    assert len(found.refused) == refused


@pytest.mark.parametrize(
    ("prices", "source"),
    [
        ({"price": "$4/h"}, "noise profile of 2026-11-20"),
        ({"token_prices": {"input": "$1/M", "output": "$4/M"}}, "assumed"),
    ],
)
def test_pace_foretells_no_cost_that_is_paid_by_the_token(prices: Line, source: str) -> None:
    cost = {"metric": "usd_per_million_output_tokens", "margin": "1%"}
    arms = {name: {"url": f"http://{name}", "model": "m", **prices} for name in ("baseline", "candidate")}
    known = calibrated(NoiseSpread("output_throughput", None, "c4", 0.03, 0.042, 10))
    row = only(load_suite(cost, ERRORS, deployments=arms), known=known)
    assert (row.source, row.measured) == (source, source != "assumed")


def test_only_what_is_certain_or_measured_is_refused() -> None:
    narrow = {"metric": "ttft", "margin": "1%"}
    assumed = shortfalls(told(load_suite(narrow, ERRORS)).checks)
    assert (assumed.refused, len(assumed.warnings)) == ((), 1)
    assert assumed.warnings[0].startswith(
        "by assumed spreads, the measurement is too small for the margin of ttft-p50@c4"
    )
    known = calibrated(NoiseSpread("ttft", "p50", "c4", 0.03, 0.042, 10))
    by_noise = shortfalls(told(load_suite(narrow, ERRORS), known=known).checks)
    assert by_noise.certain == by_noise.warnings == ()
    assert len(by_noise.likely) == len(by_noise.refused) == 1
    assert by_noise.refused[0].startswith("ttft-p50@c4 is underpowered for its margin of 1 %: by the noise profile of")
    assert "`allow_underpowered: true`" in by_noise.refused[0]
    for allowing in (
        load_suite({**narrow, "allow_underpowered": True}, ERRORS),
        load_suite(narrow, ERRORS, gate={"allow_underpowered": True}),
    ):
        allowed = shortfalls(told(allowing, known=known).checks)
        assert (allowed.refused, len(allowed.warnings)) == ((), 1)
    advisory = shortfalls(told(load_suite({**narrow, "required": False}, ERRORS), known=known).checks)
    assert advisory == shortfalls(())
    assert shortfalls(told(load_suite(narrow, ERRORS, gate={"allow_underpowered": True})).checks) == shortfalls(())
    many = [{"metric": metric, "margin": "1%"} for metric in ("ttft", "e2e", "tpot", "itl", "ttfot")]
    (line,) = shortfalls(told(load_suite(*many, ERRORS)).checks).warnings
    assert "itl" not in line
    assert "and 2 more" in line


@pytest.mark.parametrize(
    ("check", "requests", "says"),
    [
        (
            {"metric": "error_rate", "max": "0.1%"},
            60,
            "error_rate@c4:slo cannot pass: even where none of 600 requests misses",
        ),
        ({"metric": "goodput", "min": "100%"}, 60, "goodput@c4:slo cannot pass"),
        ({"metric": "error_rate", "margin": "0.3 points"}, 60, "error_rate@c4 cannot pass: even where none of 600"),
        ({"metric": "validity", "min": "99.9%"}, 60, "validity@c4:slo cannot pass"),
    ],
)
def test_so_few_requests_that_none_may_miss_and_still_nothing_is_shown(check: Line, requests: int, says: str) -> None:
    workload: Line = {"input": "8 tokens", "output": "10 tokens"}
    if check["metric"] == "validity":
        workload["schema"] = {"type": "object"}
    suite = load_suite(check, ERRORS, load={"workload": workload, "sweep": [{**OPEN, "requests": requests}]})
    row = only(suite)
    assert (row.passes, row.short) == (0.0, "certain")
    (line,) = shortfalls(told(suite).checks).certain
    assert line.startswith(says)


def test_a_least_number_of_requests_without_a_miss_is_told_and_is_enough() -> None:
    few = only(load_suite({"metric": "error_rate", "max": "1%"}, load={"sweep": [{**OPEN, "requests": 29}]}))
    assert (few.has, few.needs, few.short) == (290, 299, "certain")
    enough = only(load_suite({"metric": "error_rate", "max": "1%"}, load={"sweep": [{**OPEN, "requests": 30}]}))
    assert (enough.has, enough.short) == (300, None)
    assert enough.note is not None
    assert enough.note.startswith("holds with no miss in 300")


def test_misses_that_are_allowed_are_counted() -> None:
    rows = told(load_suite({"metric": "goodput"}, {"metric": "error_rate", "max": "2%"})).checks
    assert all(row.sees_80 is not None and row.sees_95 is not None and row.sees_80 < row.sees_95 for row in rows)
    assert "at most 19 misses" in (rows[0].note or "")
    (lone,) = told(
        load_suite(
            {"metric": "error_rate", "max": "1%"},
            load={"blocks": 10, "sweep": [{**OPEN, "requests": 60}]},
        )
    ).checks
    assert "at most 1 miss in 600" in (lone.note or "")


def test_a_quantile_without_an_upper_limit_is_known_before() -> None:
    # over several looks each has less to spend, and 299 requests are too few for a p99
    load = {"blocks": None, "looks": [5, 10], "sweep": [{**OPEN, "requests": 30}]}
    row = only(load_suite({"metric": "ttft", "statistic": "p99", "max": "1s"}, ERRORS, load=load))
    assert row.short == "certain"
    assert (row.has, row.needs) == (300, 305)
    rate = only(load_suite({"metric": "request_throughput", "min": "1/s"}, ERRORS))
    assert (rate.n_unit, rate.measure, rate.short) == ("blocks", "ratio", None)
    assert rate.sees_80 is not None


def test_what_cannot_be_foretold_says_so() -> None:
    sweep = [{"stage": f"c{n}", "concurrency": n, "requests": 60} for n in (1, 2, 4, 8, 16)]
    rows = told(
        load_suite(
            {"metric": "knee", "min": 1},
            {"metric": "preemptions", "max": 0},
            {"metric": "rejected", "stage": "c4", "min": "1%"},
            {"metric": "ttft", "stage": "c4", "over": "c1", "max": "2x"},
            {"metric": "output_throughput", "stage": "c4", "over": "c1", "min": "2x"},
            {"metric": "error_rate", "stage": "c4", "over": "c1", "max": "2 points"},
            ERRORS,
            load={"sweep": sweep},
        )
    ).checks
    by_metric = {row.id: row for row in rows}
    assert all(row.passes is None for row in rows)
    assert "knee" in (by_metric["knee:min"].note or "")
    assert by_metric["ttft-p50@c4:max-over-c1"].sees_80 is not None
    assert by_metric["error_rate@c4:max-over-c1"].sees_80 is None
    assert "share itself" in (by_metric["rejected@c4:min"].note or "")


def test_a_high_quantile_over_another_stage_is_planned_with_pooled_blocks() -> None:
    def p99(at: int, over: int, metric: str = "ttft", **load: Any) -> CheckPower:
        sweep = [{"stage": f"c{n}", "concurrency": n, "requests": n_requests} for n, n_requests in ((4, at), (1, over))]
        check = {"metric": metric, "statistic": "p99", "stage": "c4", "over": "c1", "max": "2x"}
        return only(load_suite(check, ERRORS, load={"sweep": sweep, "blocks": 20, **load}))

    assert (p99(299, 299).has, p99(299, 299).n_unit) == (20, "blocks")
    for sizes in ((150, 299), (299, 150)):  # both stages are pooled as the smaller one needs
        pooled = p99(*sizes)
        assert (pooled.has, pooled.n_unit, pooled.cannot) == (10, "groups", None)
        assert (pooled.sees_80 or 0) > (p99(299, 299).sees_80 or math.inf)
    assert p99(10, 10, "itl").n_unit == "blocks"
    assert (p99(30, 299).has, p99(30, 299).cannot) == (2, None)
    few = p99(29, 299)
    assert (few.short, few.passes, few.sees_80) == ("certain", 0.0, None)
    assert "its 20 blocks have fewer than the 598 requests that it takes for 2 values" in (few.cannot or "")


def test_background_traffic_is_of_unknown_number() -> None:
    classes = {
        "front": {"concurrency": 2, "requests": 60},
        "back": {"concurrency": 2, "background": True, "requests": 8},
    }
    suite = load_suite(ERRORS, load={"sweep": [{"stage": "mixed", "classes": classes}]})
    rows = {row.id: row for row in told(suite).checks}
    assert "number of requests" in (rows["error_rate@mixed/back:slo"].note or "")


def test_a_share_that_missed_nothing_in_the_calibration_may_miss_something_in_the_run() -> None:
    suite = load_suite({"metric": "error_rate", "margin": "5 points"})
    still = calibrated(NoiseSpread("error_rate", None, "c4", 0.0, 0.0, 10))
    noisy = calibrated(NoiseSpread("error_rate", None, "c4", 0.02, 0.03, 10))
    assumed, zero, seen = (only(suite, known=known) for known in (KnownNoise(), still, noisy))
    assert (zero.source, zero.measured, zero.spread) == ("assumed", False, assumed.spread)
    assert (seen.measured, seen.spread) == (True, 0.03)


def seen(suite: Suite, known: KnownNoise = NO_KNOWN_NOISE) -> Preview:
    plan = make_plan(suite)
    return preview(suite, plan, None, 2, judged_checks(suite, plan), known)


def test_clients_that_leave_are_in_no_share() -> None:
    workload = {"input": "8 tokens", "output": "10 tokens", "leave": {"share": "50%", "after": "2 tokens"}}
    row = only(load_suite({"metric": "error_rate", "max": "5%"}, load={"workload": workload}))
    assert row.has == 300
    workload["leave"] = {"share": "1%", "after": "2 tokens"}
    few = make_plan(load_suite(ERRORS, load={"workload": workload}))
    leaving = [sum(request.leave is not None for request in block.stages[0].requests) for block in few.blocks]
    assert leaving == [1] * 10  # 0.6 of 60 is one, not none


def test_only_requests_of_a_form_are_in_the_validity() -> None:
    workload = {"input": "8 tokens", "output": "10 tokens", "schema": {"type": "object"}}
    suite = load_suite({"metric": "validity", "min": "95%"}, ERRORS, load={"workload": workload})
    plan = make_plan(suite)

    def without_form(block: PlannedBlock) -> PlannedBlock:
        (stage,) = block.stages
        requests = tuple(
            request if request.index % 20 == 0 else replace(request, ask=replace(request.ask, schema=None))
            for request in stage.only.requests
        )
        return replace(block, stages=(replace(stage, classes=(replace(stage.only, requests=requests),)),))

    assert only(suite, plan).has == 600
    validity, errors = told(suite, replace(plan, blocks=tuple(map(without_form, plan.blocks)))).checks
    assert (validity.has, validity.short, errors.has) == (30, "certain", 600)


def test_eval_items_among_the_requests_of_a_stage_add_to_its_rate() -> None:
    sweep = [{"stage": "c4", "rate": "5/s", "requests": 60, "verify": "20%"}]
    suite = load_suite(ERRORS, load={"sweep": sweep}, quality={"tasks": ["add.yaml"]})
    task = PlannedTask("add", {}, tuple({"id": str(number), "prompt": "1+1"} for number in range(200)))
    assert make_plan(suite, [task]).blocks[0].stages[0].only.peak_rps == pytest.approx(6.0)


def verified(*checks: Line, load: Line | None = None, **sections: Any) -> tuple[Suite, Plan]:
    sweep = [{"stage": "c4", "concurrency": 4, "requests": 60, "verify": "20%"}]
    accuracy = {"metric": "accuracy", "stage": "c4", "margin": "5 points"}
    load, quality = {"sweep": sweep, **(load or {})}, {"tasks": ["add.yaml"]}
    suite = load_suite(*checks, accuracy, load=load, quality=quality, **sections)
    task = PlannedTask("add", {}, tuple({"id": str(number), "prompt": "1+1"} for number in range(200)))
    return suite, make_plan(suite, [task])


def test_eval_items_and_the_ramp_of_a_stage_are_in_the_share_that_fails_and_in_no_other() -> None:
    suite, plan = verified(ERRORS, {"metric": "goodput", "margin": "5 points"})
    assert len(plan.blocks[0].stages[0].requests) == 72
    failures, goodput, _ = told(suite, plan).checks
    assert failures.has == 10 * (72 + 4)  # each of 4 slots completes a request before it is measured
    assert goodput.has == 600


def test_a_burn_of_failures_counts_eval_items_and_the_ramp_too() -> None:
    for metric, has in [("error_rate", 10 * (72 + 4)), ("goodput", 600)]:
        budget = {"objective": "90%", "window": "30d", "spent": "10%", "metric": metric}
        assert told(*verified(ERRORS, error_budget=budget)).checks[-1].has == has


def test_answers_under_load_are_forecast_for_a_load_that_ends_at_its_first_look() -> None:
    suite, plan = verified(ERRORS, load={"blocks": None, "looks": [5, 15]})
    row = told(suite, plan).checks[-1]
    assert (row.id, row.has, row.cannot) == ("accuracy@c4", 5 * 12, None)
    assert "all 15 blocks have 180 items" in (row.note or "")
    whole, all_blocks = verified(ERRORS, load={"blocks": 15})
    fixed = told(whole, all_blocks).checks[-1]
    assert fixed.has == 180
    assert (row.sees_80 or 0) > (fixed.sees_80 or 1)


def test_an_slo_of_a_tail_has_as_many_values_as_its_spread() -> None:
    spread = NoiseSpread("ttft", "p99", "c4", 0.1, 0.14, 10)
    found = []
    for requests in (299, 150):  # a p99 of 150 takes two blocks together
        sweep = [{**OPEN, "requests": requests}]
        check = {"metric": "ttft", "statistic": "p99", "stage": "c4", "max": "200ms"}
        found.append(only(load_suite(check, ERRORS, load={"blocks": 20, "sweep": sweep}), known=calibrated(spread)))
    sees = [math.log1p(row.sees_80 or 0) for row in found]
    assert sees[1] / sees[0] > 1.3  # 10 values in place of 20
