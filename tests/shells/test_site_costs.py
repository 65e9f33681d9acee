"""Costs on the pages of a site: which other prices are marked and where, and what the badge says."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from benchgate.gate.summary.metric_rows import metric_rows
from benchgate.model.deployment import Arm
from benchgate.model.run import Run, RunStatus
from benchgate.site.badges import cost_badge
from benchgate.site.trends import METRICS, trends
from benchgate.sizing.candidates import StoredRun
from tests.fakes.right_sized import candidate
from tests.shells.test_site_trends import TTFT, changed, glance, points

COST = next(kind for kind in METRICS if kind.metric == "usd_per_million_output_tokens")
SPOT: dict[str, Any] = {
    "list_usd_per_hour": 2.0,
    "commitment": "spot",
    "overhead_ratio": 0.25,
    "utilisation_ratio": 0.5,
}


def paid(*prices: dict[str, Any]) -> list[Any]:
    found = []
    for at, said in enumerate(prices):
        arms = dict(glance(at).run.arms)
        arms[Arm.CANDIDATE] = replace(arms[Arm.CANDIDATE], **{"price_usd_per_hour": None, **said})
        found.append(glance(at, arms=arms))
    return found


def told(*prices: dict[str, Any]) -> list[tuple[str, str, str]]:
    return changed(paid(*prices), {COST: points([1.0] * len(prices))})


def test_another_price_is_told_with_both_and_drawn_on_costs_alone() -> None:
    runs = paid({"price_usd_per_hour": 4.0}, {"price_usd_per_hour": 2.6})
    found = trends(runs, {COST: points([2.0, 1.3]), TTFT: points([0.1, 0.1])}, frozenset())
    assert [(one.letter, one.run, one.description) for one in found.changes] == [
        ("P", "pr-1", "price of the candidate: $4.00/h → $2.60/h")
    ]
    drawn = {figure.anchor: (">P</text>" in figure.svg) for figure in found.figures}
    assert drawn == {"ttft-s-p50": False, "usd-per-million-output-tokens": True}


def test_other_terms_of_one_price_and_of_tokens_are_other_prices() -> None:
    terms = {"price_usd_per_hour": 2.5, "price_terms": SPOT}
    ((_, _, said),) = told(terms, {**terms, "price_terms": {**SPOT, "utilisation_ratio": 0.8}})
    assert "used at 50 % of its paid time" in said and "used at 80 % of its paid time" in said
    tokens = {"token_prices": {"input": 1.0, "cached_input": 1.0, "output": 2.0}}
    ((_, _, said),) = told(tokens, {"price_usd_per_hour": 2.0})
    assert said.startswith("price of the candidate: per 1M tokens: input $1")


@pytest.mark.parametrize(
    "prices",
    [
        [{"price_usd_per_hour": 2.0}] * 2,
        [{"price_usd_per_hour": 2.0}, {}, {"price_usd_per_hour": 2.0}],  # in between nobody said
        [{}, {}],
    ],
)
def test_no_price_is_no_other_price(prices: Sequence[dict[str, Any]]) -> None:
    assert told(*prices) == []


def test_another_number_of_accelerators_is_another_bill_whatever_its_server_tells() -> None:
    told_by_server = {"facts": {"accelerator_names": ["H200"] * 8}, "price_usd_per_hour": 2.0}
    assert told({**told_by_server, "accelerators": 8}, {**told_by_server, "accelerators": 4}) == [
        ("P", "pr-1", "price of the candidate: 8 accelerators at $2.00/h → 4 accelerators at $2.00/h")
    ]


def test_a_price_is_held_against_what_was_last_told() -> None:
    assert [run for _, run, _ in told({"price_usd_per_hour": 2.0}, {}, {"price_usd_per_hour": 3.0})] == ["pr-2"]


def in_service(outcome: str = "PASS", guards: Sequence[dict[str, Any]] = (), **changes: Any) -> StoredRun:
    found = candidate("q4")
    run: Run = replace(found.run, label="<b>one</b>", **changes)
    return StoredRun(run, metric_rows(found), {"outcome": outcome, "guards": guards}, "not looked at")


def test_the_badge_is_the_cost_of_what_is_in_service_with_its_day() -> None:
    """$1.50 an hour, 24 answers of 8 tokens in about 2.5 s."""
    badge = cost_badge(in_service())
    assert (badge.label, badge.message) == ("1M good tokens", "$5.42 on 2026-01-02")
    assert badge.title.startswith("what is in service, <b>one</b>, at full use at stage c1, $5.")


def of_eight_accelerators() -> StoredRun:
    one = in_service()
    ours = replace(one.run.arms[Arm.CANDIDATE], facts={"accelerator_names": ["NVIDIA H200"] * 8})
    return replace(one, run=replace(one.run, arms={**one.run.arms, Arm.CANDIDATE: ours}))


@pytest.mark.parametrize(
    ("run", "why"),
    [
        (None, "no run is in the baseline series"),
        (in_service("INVALID"), "the run is INVALID"),
        (in_service(status=RunStatus.PARTIAL), "the run was cut short"),
        (
            in_service(guards=[{"tripped": True, "spoils": ["load"], "reason": "the client was late"}]),
            "client was late",
        ),
        (replace(in_service(), verdict=None), "has no verdict yet"),
        (of_eight_accelerators(), "its price is not of what ran: it is paid for 1 accelerator"),
        (replace(in_service(), rows=()), "no numbers of a load"),
        (in_service(suite={"of": "tomorrow"}), "this version of benchgate cannot read the run's suite"),
    ],
)
def test_what_nobody_can_count_on_is_unknown_and_the_title_says_why(run: StoredRun | None, why: str) -> None:
    badge = cost_badge(run)
    assert badge.message == "unknown" and why in badge.title
