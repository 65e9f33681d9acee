"""The burn of an error budget in a plan: a row of its own, counted in how often an equal candidate is promoted."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import binom

from benchgate.pipeline.forecast import judged_checks
from benchgate.plan.check_power import NO_KNOWN_NOISE, CheckPower
from benchgate.plan.power import PowerForecast, forecast_power, shortfalls
from benchgate.plan.schedule import make_plan
from benchgate.stats.clusters import miss_share_limits
from benchgate.suite.error_budget import ErrorBudget
from benchgate.suite.schema import Suite

BURN = "error_budget_burn@c4"
SAID = {"objective": "99.5%", "window": "30d", "spent": "0%", "stage": "c4"}


def budgeted(requests: int = 60, *, load: dict[str, object] | None = None, gate: bool = False, **said: object) -> Suite:
    suite = Suite.model_validate(
        {
            "suite": "planned",
            "deployments": {name: {"url": "http://a", "model": "m"} for name in ("baseline", "candidate")},
            "slo": {"ttft": "200ms"},
            "load": {
                "workload": {"input": "8 tokens", "output": "10 tokens"},
                "sweep": [{"stage": "c4", "rate": "4/s", "ramp": 0, "requests": requests}],
                **(load or {"blocks": 10}),
            },
            "gate": {"allow_underpowered": gate, "checks": [{"metric": "error_rate", "max": "5%"}]},
        }
    )
    return suite.model_copy(update={"error_budget": ErrorBudget.model_validate(SAID | said)})


def told(suite: Suite) -> PowerForecast:
    plan = make_plan(suite)
    return forecast_power(suite, plan, judged_checks(suite, plan), NO_KNOWN_NOISE)


def burn(suite: Suite) -> CheckPower:
    (row,) = (check for check in told(suite).checks if check.metric == "error_budget_burn")
    return row


def test_burn_is_a_row_and_counts_in_the_chance_of_a_promotion() -> None:
    found = told(budgeted())
    row = found.checks[-1]
    assert (row.id, row.required, row.has, row.needs) == (BURN, True, 600, 41)  # as docs/reference/verdict.md states it
    # Of 600 requests 43.2 fail at 14.4 times 0.5 %; a candidate at 1x fails 3 of them.
    assert row.note is not None and row.note.startswith("rules out a burn of 14.4x with at most ")
    most = int(row.note.split("at most ")[1].split(" ")[0])
    even = [60 - most // 10 - (block < most % 10) for block in range(10)]
    limits = miss_share_limits(even, [60] * 10, 0.05)
    assert limits is not None and limits.upper <= 0.072
    assert row.passes == pytest.approx(binom.cdf(most, 600, 0.005))
    assert row.sees_80 is not None and row.sees_95 is not None and 0.072 < row.sees_80 < row.sees_95 < 0.13
    assert found.promotion is not None
    assert (found.promotion.checks, found.promotion.of) == (1, 2)  # how often the bound holds is not known
    assert found.promotion.chance == row.passes


def test_chance_is_how_often_the_gate_finds_so() -> None:
    suite = budgeted(12, load={"blocks": 10})
    row, generator = burn(suite), np.random.default_rng(7)
    runs = 300
    held = 0
    for _ in range(runs):
        kept = 12 - generator.binomial(12, 0.005, size=10)
        limits = miss_share_limits([int(k) for k in kept], [12] * 10, 0.05)
        held += limits is not None and limits.upper <= 0.072
    assert row.passes is not None and 0.5 < row.passes < 0.999
    assert held / runs == pytest.approx(row.passes, abs=3 * (row.passes * (1 - row.passes) / runs) ** 0.5 + 0.01)


def test_what_several_looks_leave_for_the_last_one_is_known_before_anything_is_sent() -> None:
    """207 requests without a failure rule out 14.4x of 0.1 % at 5 %, and not at what the last of three looks spends."""
    assert burn(budgeted(21, objective="99.9%")).cannot is None
    row = burn(budgeted(10, load={"looks": [5, 10, 21]}, objective="99.9%"))
    assert row.has == 210 and row.needs is not None and 207 < row.needs < 220
    assert row.passes == 0.0
    short = shortfalls([row])
    assert short.certain[0].startswith(f"{BURN} cannot pass: even where none of 210 requests fails, a burn above 14.4x")
    assert short.certain[0].endswith(f"send at least {row.needs}")
    assert shortfalls([burn(budgeted(10, load={"looks": [5, 10, 21]}, gate=True, objective="99.9%"))]).certain == ()


def test_objective_that_nothing_can_burn_as_fast_never_stops_a_candidate() -> None:
    row = burn(budgeted(objective="90%"))
    assert (row.cannot, row.passes, row.needs, row.sees_80) == (None, 1.0, None, None)


def test_rows_are_the_lines_that_the_gate_writes() -> None:
    classes = {
        "sweep": [
            {
                "stage": "mix",
                "classes": {
                    "chat": {"rate": "4/s", "requests": 60},
                    "batch": {"concurrency": 8, "background": True},
                },
            }
        ],
        "blocks": 10,
    }
    suite = budgeted(load=classes, stage="mix")
    rows = [row for row in told(suite).checks if row.metric == "error_budget_burn"]
    assert [row.id for row in rows] == ["error_budget_burn@mix/chat", "error_budget_burn@mix/batch"]
    assert rows[1].note == "no forecast: the number of requests is not known" and rows[1].passes is None
    without = told(suite.model_copy(update={"error_budget": None})).checks
    assert {row.metric for row in without} == {"error_rate"}
