"""What a plan tells of its checks: what they see, what they need, which of them stand against a run."""

from __future__ import annotations

import json
import math
from dataclasses import asdict, replace
from typing import Any

import numpy as np
import pytest

from benchgate.foretelling import judged_checks
from benchgate.gate.decide import judge
from benchgate.gate.shares import Counts, widened
from benchgate.model.noise import Disagreement, NoiseKey, NoiseProfile, Spread
from benchgate.model.verdict import Outcome
from benchgate.plan.divergence import Piece
from benchgate.plan.evals import PlannedTask
from benchgate.plan.judged import NOTHING_KNOWN, Earlier, Known
from benchgate.plan.power import Foretold, foretell
from benchgate.plan.power_row import CheckPower
from benchgate.plan.preview import Preview, preview
from benchgate.plan.refusals import shortfalls
from benchgate.plan.schedule import Plan, make_plan
from benchgate.plan.shadow import ShadowPrompt
from benchgate.stats.paired import paired_t
from benchgate.stats.power import chance_shown
from benchgate.stats.sequential import look_tails
from benchgate.suite.schema import Suite
from tests.fakes.evals import suite_of
from tests.fakes.measured import Noise, measured

Line = dict[str, Any]
CONFIG: dict[str, object] = {"test_split": "test", "output_type": "generate_until"}
ERRORS: Line = {"metric": "error_rate", "max": "5%"}
TTFT: Line = {"metric": "ttft", "margin": "10%"}


def load_suite(*checks: Line, load: Line | None = None, gate: Line | None = None, **sections: Any) -> Suite:
    written: Line = {
        "workload": {"input": "8 tokens", "output": "10 tokens"},
        "blocks": 10,
        "sweep": [{"stage": "c4", "concurrency": 4, "requests": 60}],
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


def told(suite: Suite, plan: Plan | None = None, known: Known = NOTHING_KNOWN) -> Foretold:
    planned = make_plan(suite) if plan is None else plan
    return foretell(suite, planned, judged_checks(suite, planned), known)


def only(suite: Suite, plan: Plan | None = None, known: Known = NOTHING_KNOWN) -> CheckPower:
    return told(suite, plan, known).checks[0]


def task(name: str, n: int, **more: Any) -> PlannedTask:
    return PlannedTask(name, CONFIG, tuple({"id": str(i), "passage": f"p{i // 10}"} for i in range(n)), **more)


def evals(check: Line, *tasks: PlannedTask, **quality: Any) -> CheckPower:
    names = list(dict.fromkeys(one.name.partition("/")[0] for one in tasks))
    suite = suite_of([check], names, **quality)
    return only(suite, Plan(0, (), (), tasks, ()))


def calibrated(*spreads: Spread, disagreement: tuple[Disagreement, ...] = ()) -> Known:
    key = NoiseKey("h", "vllm", "m", "0" * 64)
    return Known(NoiseProfile(key, "2026-11-20T12:00:00.000Z", "run-9", 10, spreads, disagreement))


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


def test_what_it_says_of_an_equal_candidate_is_what_the_gate_does() -> None:
    """The whole decision over made-up runs of an equal candidate, each judged at the last look."""
    cv = 0.05
    load = {"blocks": None, "looks": [4, 8], "sweep": [{"stage": "c4", "concurrency": 4, "requests": 6}]}
    suite = load_suite({"metric": "e2e", "margin": "10%"}, {"metric": "error_rate", "max": "50%"}, load=load)
    row = only(suite, known=calibrated(Spread("e2e", "p50", "c4", cv, 2**0.5 * cv, 10)))
    runs = [measured(suite, noise=Noise(cv=cv, seed=seed)) for seed in range(50)]
    outcomes = [judge(suite, run).checks[0].outcome for run in runs]
    promoted = sum(one in (Outcome.PASS, Outcome.WARN) for one in outcomes) / len(outcomes)
    at_the_end = chance_shown(8, 2**0.5 * cv, math.log1p(0.10), alpha=look_tails((0.5, 1.0), 0.05)[-1])
    assert promoted == pytest.approx(at_the_end, abs=0.16)  # three standard errors of so many runs
    assert row.passes == pytest.approx(at_the_end, abs=0.01)


@pytest.mark.parametrize(("misses", "margin", "requests"), [(0.01, 0.01, 100), (0.05, 0.03, 60)])
def test_what_it_says_of_shares_is_what_the_gates_limits_do(misses: float, margin: float, requests: int) -> None:
    sweep = [{"stage": "c4", "concurrency": 4, "requests": requests}]
    check = {"metric": "goodput" if misses == 0.05 else "error_rate", "margin": f"{margin * 100:g} points"}
    told_so = only(load_suite(check, ERRORS, load={"sweep": sweep})).passes
    drawn = np.random.default_rng(6).binomial(requests, misses, size=(300, 2, 10))
    passed = []
    for theirs, ours in drawn:
        mine, other = (Counts(tuple(arm.tolist()), (requests,) * 10) for arm in (ours, theirs))
        test = paired_t((ours - theirs) / requests, 0.05)
        assert test is not None
        found = widened(test.limits, mine, other, 0.05)
        assert found is not None
        passed.append(found[0].upper < margin)
    assert told_so == pytest.approx(np.mean(passed), abs=0.1)  # three standard errors of so many gates


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


def test_blocks_of_few_requests_are_taken_together_for_a_high_quantile() -> None:
    def p99(requests: int, metric: str = "ttft", **load: Any) -> CheckPower:
        sweep = [{"stage": "c4", "concurrency": 4, "requests": requests}]
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
    known = calibrated(Spread("ttft", "p50", "c4", 0.10, 0.12, 10), Spread("goodput", None, "c4", 0.01, 0.02, 10))
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
    assert Known().noise_source == ""


def test_two_arms_that_agreed_to_the_last_digit_do_not_make_everything_certain() -> None:
    row = only(load_suite(TTFT, ERRORS), known=calibrated(Spread("ttft", "p50", "c4", 0.0, 0.0, 10)))
    assert (row.needs, row.passes) == (2, 1.0)


@pytest.mark.parametrize(("pairs", "refused"), [(2, 0), (7, 0), (8, 1)])
def test_spread_of_a_few_pairs_refuses_nothing(pairs: int, refused: int) -> None:
    known = calibrated(Spread("ttft", "p50", "c4", 0.03, 0.042, pairs))
    found = shortfalls(told(load_suite({"metric": "ttft", "margin": "1%"}, ERRORS), known=known).checks)
    assert len(found.refused) == refused


def test_only_what_is_certain_or_measured_is_refused() -> None:
    narrow = {"metric": "ttft", "margin": "1%"}
    assumed = shortfalls(told(load_suite(narrow, ERRORS)).checks)
    assert (assumed.refused, len(assumed.told)) == ((), 1)
    assert assumed.told[0].startswith("by assumed spreads, so little is measured that ttft-p50@c4 may not carry")
    known = calibrated(Spread("ttft", "p50", "c4", 0.03, 0.042, 10))
    by_noise = shortfalls(told(load_suite(narrow, ERRORS), known=known).checks)
    assert by_noise.certain == by_noise.told == ()
    assert len(by_noise.likely) == len(by_noise.refused) == 1
    assert by_noise.refused[0].startswith(
        "ttft-p50@c4 is not likely to carry its margin of 1 %: by the noise profile of"
    )
    assert "`allow_underpowered: true`" in by_noise.refused[0]
    for allowing in (
        load_suite({**narrow, "allow_underpowered": True}, ERRORS),
        load_suite(narrow, ERRORS, gate={"allow_underpowered": True}),
    ):
        allowed = shortfalls(told(allowing, known=known).checks)
        assert (allowed.refused, len(allowed.told)) == ((), 1)
    advisory = shortfalls(told(load_suite({**narrow, "required": False}, ERRORS), known=known).checks)
    assert advisory == shortfalls(())
    assert shortfalls(told(load_suite(narrow, ERRORS, gate={"allow_underpowered": True})).checks) == shortfalls(())
    many = [{"metric": metric, "margin": "1%"} for metric in ("ttft", "e2e", "tpot", "itl", "ttfot")]
    (line,) = shortfalls(told(load_suite(*many, ERRORS)).checks).told
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
    suite = load_suite(
        check, ERRORS, load={"workload": workload, "sweep": [{"stage": "c4", "concurrency": 4, "requests": requests}]}
    )
    row = only(suite)
    assert (row.passes, row.short) == (0.0, "certain")
    (line,) = shortfalls(told(suite).checks).certain
    assert line.startswith(says)


def test_a_least_number_of_requests_without_a_miss_is_told_and_is_enough() -> None:
    few = only(
        load_suite(
            {"metric": "error_rate", "max": "1%"}, load={"sweep": [{"stage": "c4", "concurrency": 4, "requests": 29}]}
        )
    )
    assert (few.has, few.needs, few.short) == (290, 299, "certain")
    enough = only(
        load_suite(
            {"metric": "error_rate", "max": "1%"}, load={"sweep": [{"stage": "c4", "concurrency": 4, "requests": 30}]}
        )
    )
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
            load={"blocks": 10, "sweep": [{"stage": "c4", "concurrency": 4, "requests": 60}]},
        )
    ).checks
    assert "at most 1 miss in 600" in (lone.note or "")


def test_a_quantile_without_an_upper_limit_is_known_before() -> None:
    # over several looks each has less to spend, and 299 requests are too few for a p99
    load = {"blocks": None, "looks": [5, 10], "sweep": [{"stage": "c4", "concurrency": 4, "requests": 30}]}
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
    assert "bends" in (by_metric["knee:min"].note or "")
    assert by_metric["ttft-p50@c4:max-over-c1"].sees_80 is not None
    assert by_metric["error_rate@c4:max-over-c1"].sees_80 is None
    assert "how large" in (by_metric["rejected@c4:min"].note or "")


def test_background_traffic_is_of_unknown_number() -> None:
    classes = {
        "front": {"concurrency": 2, "requests": 60},
        "back": {"concurrency": 2, "background": True, "requests": 8},
    }
    suite = load_suite(ERRORS, load={"sweep": [{"stage": "mixed", "classes": classes}]})
    rows = {row.id: row for row in told(suite).checks}
    assert "how many requests" in (rows["error_rate@mixed/back:slo"].note or "")


@pytest.mark.parametrize(
    ("check", "items", "says"),
    [
        ({"task": "each"}, {"t": 9}, "accuracy@t cannot pass: with 9 items"),
        ({}, {"t": 9, "u": 5}, "accuracy cannot pass: with 14 items"),
        ({"margin": "5 points"}, {"g/a": 400, "g/b": 400}, None),
        ({"task": "g"}, {"g/a": 9, "g/b": 9}, "accuracy@g cannot pass: with 18 items"),
        ({"task": "each", "margin": "15 points"}, {"t": 50}, None),
    ],
)
def test_a_check_that_no_answer_could_pass_is_known_before_the_run(
    check: Line, items: dict[str, int], says: str | None
) -> None:
    row = evals({"metric": "accuracy", "margin": "2 points", **check}, *(task(name, n) for name, n in items.items()))
    (line,) = shortfalls((row,)).certain or (None,)
    assert (line is None) if says is None else (line is not None and line.startswith(says))


def test_items_see_and_need_what_connors_formula_says() -> None:
    row = evals({"metric": "accuracy", "margin": "2 points"}, task("t", 1348))
    assert (row.has, row.needs) == (1348, 1348)
    assert row.sees_95 == pytest.approx(0.02, abs=1e-4)
    assert row.passes == pytest.approx(0.94, abs=0.02)
    small = evals({"metric": "accuracy", "margin": "2 points"}, task("t", 771))
    assert small.sees_80 == pytest.approx(0.02, abs=1e-4)


def test_tasks_of_unlike_sizes_are_worth_what_equal_weights_make_of_them() -> None:
    even = evals({"metric": "accuracy", "margin": "5 points"}, task("t", 500), task("u", 500))
    uneven = evals({"metric": "accuracy", "margin": "5 points"}, task("t", 950), task("u", 50))
    assert even.has == uneven.has == 1000
    assert (uneven.sees_80 or 0) > 2 * (even.sees_80 or 0)


def test_clusters_are_worth_less_and_too_few_are_worth_nothing() -> None:
    alone = evals({"metric": "accuracy", "margin": "5 points"}, task("t", 400))
    together = evals({"metric": "accuracy", "margin": "5 points"}, task("t", 400, cluster_key="passage"))
    assert (together.sees_80 or 0) > (alone.sees_80 or 1)
    assert "worth 108 independent" in (together.note or "")
    few = evals({"metric": "accuracy", "margin": "50 points"}, task("t", 90, cluster_key="passage"))
    assert (few.short, few.passes) == ("certain", 0.0)
    assert "9 clusters" in (few.cannot or "")


def test_of_items_that_are_not_read_yet_nothing_is_foretold() -> None:
    for check in ({"metric": "accuracy", "margin": "5 points"}, {"metric": "accuracy", "min": "50%"}):
        row = evals(check, task("t", 40), task("u", 0, needs="openai/gsm8k"))
        assert row.note == "not foretold: data of its tasks was not read"
        assert row.short is None


def test_a_floor_that_even_all_right_answers_do_not_show() -> None:
    row = evals({"metric": "accuracy", "min": "99%"}, task("t", 298))
    assert (row.short, row.needs) == ("certain", 299)
    assert evals({"metric": "accuracy", "min": "99%"}, task("t", 299)).short is None
    whole = evals({"metric": "accuracy", "min": "100%"}, task("t", 5000))
    assert (whole.short, whole.needs, whole.remedy) == ("certain", None, "give it a lower bound")


def test_a_share_that_missed_nothing_in_the_calibration_may_miss_something_in_the_run() -> None:
    suite = load_suite({"metric": "error_rate", "margin": "5 points"})
    still = calibrated(Spread("error_rate", None, "c4", 0.0, 0.0, 10))
    noisy = calibrated(Spread("error_rate", None, "c4", 0.02, 0.03, 10))
    assumed, zero, seen = (only(suite, known=known) for known in (Known(), still, noisy))
    assert (zero.source, zero.measured, zero.spread) == ("assumed", False, assumed.spread)
    assert (seen.measured, seen.spread) == (True, 0.03)


def test_flips_and_scores() -> None:
    flips = {"metric": "flips", "margin": "5 points", "required": True}
    suite = suite_of([{"metric": "accuracy", "margin": "50 points"}, flips], ["t"], repeat_baseline=True)
    plan = Plan(0, (), (), (task("t", 400),), ())
    row = told(suite, plan).checks[1]
    # 3.29 · √(0.75 · 0.05) / 0.05, squared
    assert (row.needs, row.source) == (163, "assumed")
    assert row.passes == pytest.approx(0.99, abs=0.01)
    floor = calibrated(disagreement=(Disagreement("task", "t", 0.2, 400), Disagreement("task", "other", 0.9, 400)))
    noisy = told(suite, plan, floor).checks[1]
    assert noisy.spread == pytest.approx(0.2)
    assert noisy.measured
    assert (noisy.passes or 1) < (row.passes or 0)
    hopeless = told(suite, Plan(0, (), (), (task("t", 20),), ())).checks[1]
    assert hopeless.short == "certain"
    score = evals({"metric": "score", "margin": "5 points"}, task("t", 30, scale="continuous"))
    assert "scores of two answers" in (score.note or "")


def shadow_suite(check: Line, **shadow: Any) -> Suite:
    return Suite.model_validate(
        {
            "suite": "planned",
            "deployments": {
                "baseline": {"url": "http://b", "model": "m"},
                "candidate": {"url": "http://c", "model": "m"},
            },
            "shadow": {"prompts": "p.jsonl", **shadow},
            "gate": {"checks": [check]},
        }
    )


def prompts(n: int, once: int = 0) -> Plan:
    return Plan(0, (), (), (), tuple(ShadowPrompt(str(i), "p", once=i < once) for i in range(n)))


def test_recorded_prompts_by_how_their_answers_are_compared() -> None:
    excess = {"metric": "shadow_excess", "margin": "2 points"}
    forms = only(shadow_suite(excess, compare={"by": "json"}), prompts(1000))
    assert (forms.needs, forms.spread) == (1015, 0.05)
    assert forms.sees_95 == pytest.approx(0.02, abs=3e-4)
    free = only(shadow_suite(excess), prompts(1000))
    assert (free.spread, free.source) == (0.3, "assumed")
    assert (free.passes or 1) < (forms.passes or 0)
    sampled = only(shadow_suite(excess, compare={"by": "json"}, secondary="30%"), prompts(1000, once=700))
    assert (sampled.sees_80 or 0) > (forms.sees_80 or 1)
    assert "300 of the 1,000" in (sampled.note or "")
    seen = only(
        shadow_suite(excess), prompts(1000), calibrated(disagreement=(Disagreement("shadow", "shadow", 0.0, 500),))
    )
    assert (seen.sees_80, seen.needs, seen.passes) == (0.0, 1, 1.0)
    never_twice = only(shadow_suite(excess, secondary="1%"), prompts(10, once=10))
    assert "twice" in (never_twice.cannot or "")
    quiet = only(
        shadow_suite(excess, secondary="50%"), prompts(100, once=50),
        calibrated(disagreement=(Disagreement("shadow", "shadow", 0.0, 50),)),
    )  # fmt: skip
    assert quiet.passes is None
    assert only(shadow_suite(excess), prompts(0)).note == "not foretold: there are no prompts"
    assert only(shadow_suite(excess), prompts(30)).short == "certain"


def test_validity_and_a_judges_losses_are_items_like_any_other() -> None:
    validity = only(shadow_suite({"metric": "shadow_validity", "margin": "2 points"}), prompts(1348))
    assert validity.needs == 1348
    assert only(shadow_suite({"metric": "shadow_validity", "margin": "2 points"}), prompts(30)).short == "certain"
    assert only(shadow_suite({"metric": "shadow_validity", "min": "99%"}), prompts(100)).short == "certain"
    judge_spec = {"url": "http://j", "model": "j", "send_text": True}
    losses = only(shadow_suite({"metric": "judge_loss", "margin": "5 points"}, judge=judge_spec), prompts(400))
    assert losses.spread == pytest.approx(0.136)


def text_plan(pieces: int, positions: int = 20) -> Plan:
    return Plan(0, (), (), (), (), tuple(Piece("t", n, "x", positions) for n in range(pieces)))


def test_fixed_texts_in_too_few_pieces() -> None:
    def rows(plan: Plan) -> dict[str, CheckPower]:
        suite = Suite.model_validate(
            {
                "suite": "planned",
                "deployments": {
                    "baseline": {"url": "http://b", "model": "m"},
                    "candidate": {"url": "http://c", "model": "m"},
                },
                "divergence": {"texts": "t.jsonl"},
                "gate": {"checks": [{"metric": "perplexity", "margin": "2%"}, {"metric": "same_top1", "min": "99.9%"}]},
            }
        )
        return {row.metric: row for row in told(suite, plan).checks}

    assert [row.short for row in rows(text_plan(9)).values()] == ["certain", "certain"]
    enough = rows(text_plan(10))
    assert (enough["perplexity"].short, enough["same_top1"].short) == (None, "certain")  # 200 positions, 2,995 needed
    assert enough["same_top1"].needs == 2995
    assert rows(text_plan(0))["same_top1"].short is None


def test_totals_are_from_the_first_look_to_the_last() -> None:
    sweep = [{"stage": "r", "rate": "10/s", "arrival": "constant", "for": "20s"}]
    priced = {
        "baseline": {"url": "http://b", "model": "m", "price": "$4/h", "accelerators": 2},
        "candidate": {"url": "http://c", "model": "m", "price": "$2/h"},
    }
    suite = load_suite(TTFT, ERRORS, load={"blocks": None, "sweep": sweep, "warmup_requests": 0}, deployments=priced)
    found = seen(suite).totals
    assert (found.least.blocks, found.most.blocks) == (5, 20)
    assert (found.least.requests, found.most.requests) == (2000, 8000)
    assert found.most.output_tokens == 80_000
    assert found.seconds_from == "schedules"
    assert found.most.seconds == pytest.approx(2 * 20 * 20.0)
    assert found.most.usd == pytest.approx(10 * (found.most.seconds or 0) / 3600)
    again = seen(suite, Known(earlier=Earlier("run-1", "2026-11-20T12:00:00Z", 10, 600.0))).totals
    assert (again.least.seconds, again.most.seconds, again.seconds_from) == (300.0, 1200.0, "run run-1")


def test_time_and_money_are_unknown_where_something_of_them_is() -> None:
    closed = seen(load_suite(TTFT, ERRORS)).totals
    assert (closed.most.seconds, closed.most.usd, closed.seconds_from) == (None, None, None)
    unpriced = seen(load_suite(TTFT, ERRORS, load={"sweep": [{"stage": "r", "rate": "10/s", "requests": 60}]})).totals
    assert unpriced.most.seconds is not None
    assert unpriced.most.usd is None
    evals_alone = preview(
        suite_of([{"metric": "accuracy", "min": "1%"}], ["t"]), Plan(0, (), (), (task("t", 9),), ()), None, 2
    )
    assert (evals_alone.totals.most.requests, evals_alone.totals.most.seconds) == (18, None)
    earlier = Known(earlier=Earlier("run-1", "2026-11-20T12:00:00Z", 0, 600.0))
    took = preview(
        suite_of([{"metric": "accuracy", "min": "1%"}], ["t"]), Plan(0, (), (), (), ()), None, 2, (), earlier
    )
    assert took.totals.most.seconds == 600.0


def seen(suite: Suite, known: Known = NOTHING_KNOWN) -> Preview:
    plan = make_plan(suite)
    return preview(suite, plan, None, 2, judged_checks(suite, plan), known)


def test_a_preview_holds_all_of_it_and_can_be_written_down() -> None:
    found = seen(load_suite({"metric": "error_rate", "max": "0.1%"}, {"metric": "ttft", "margin": "1%"}))
    assert len(found.checks) == 2
    assert (len(found.foregone), len(found.refused)) == (1, 1)
    assert found.refused[0].startswith(f"{found.foregone[0]}; write `allow_underpowered: true`")
    assert len(found.underpowered) == 1
    assert json.loads(json.dumps(asdict(found), allow_nan=False))["promotion"]["checks"] == 2
    nobody_said = preview(load_suite(TTFT, ERRORS), make_plan(load_suite(TTFT, ERRORS)), None, 2)
    assert (nobody_said.checks, nobody_said.promotion) == ((), None)


def test_clients_that_leave_are_in_no_share() -> None:
    workload = {"input": "8 tokens", "output": "10 tokens", "leave": {"share": "50%", "after": "2 tokens"}}
    row = only(load_suite({"metric": "error_rate", "max": "5%"}, load={"workload": workload}))
    assert row.has == 300
