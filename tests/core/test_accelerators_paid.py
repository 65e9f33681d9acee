"""Whose accelerators are paid for: what a server tells of itself against what its price is counted over."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from benchgate.gate.evidence.costs import cost_coverage_warning
from benchgate.model.deployment import Deployment

TOKEN_PRICES = {"input": 1.0, "cached_input": 1.0, "output": 4.0}
SILENT = Deployment("a", "m", "vllm", None, price_usd_per_hour=4.0)


def told(accelerators: int = 1, **facts: Any) -> Deployment:
    return replace(SILENT, accelerators=accelerators, facts=facts)


def named(count: int) -> list[str]:
    return ["H200"] * count


@pytest.mark.parametrize(
    ("candidate", "least"),
    [
        (told(1, accelerator_names=named(2), flags={"tp_size": 4}), 4),  # the larger of what is told both ways
        (told(3, accelerator_names=named(4), flags={"tp_size": 2}), 4),
        (told(1, flags={"tp_size": 2, "pp_size": 2}), 4),
        (told(1, flags={"tp_size": 2, "dp_size": 2}), 4),
        (told(1, flags={"tp_size": 0, "pp_size": 4}), 4),  # a size that cannot be takes nothing from the other
        (told(1, flags={"tp_size": "8", "pp_size": 2}), 2),
    ],
)
def test_candidate_that_is_paid_for_fewer_than_it_has_is_told(candidate: Deployment, least: int) -> None:
    paid = {1: "1 accelerator", 3: "3 accelerators"}[candidate.accelerators]
    said = f"the candidate is paid for {paid}, and its server reports {least}"
    assert cost_coverage_warning(SILENT, candidate) == cost_coverage_warning(None, candidate) == said


@pytest.mark.parametrize(
    "candidate",
    [
        SILENT,
        told(4, accelerator_names=named(1)),  # it is paid for more: that makes it no cheaper
        told(4, flags={"tp_size": 4, "dp_size": 4, "enable_dp_attention": True}),  # on the same accelerators
        told(1, accelerator_names=[]),
        told(1, accelerator_names="H200"),  # eight letters or four, and no list of names
        told(1, flags=["--tp-size", "4"]),
        replace(told(1, accelerator_names=named(4)), price_usd_per_hour=None, token_prices=TOKEN_PRICES),
    ],
)
def test_candidate_that_is_paid_for_all_that_it_tells_of_is_not(candidate: Deployment) -> None:
    assert cost_coverage_warning(SILENT, candidate) is None


def bought(kind: object, *names: str) -> Deployment:
    return replace(told(len(names), accelerator_names=list(names)), price_entry={"accelerator": kind})


@pytest.mark.parametrize(
    ("kind", "names", "other"),
    [
        ("H100", ("NVIDIA H200",), "NVIDIA H200"),
        ("h100-sxm", ("NVIDIA H100 80GB HBM3", "NVIDIA A100-SXM4-80GB"), "NVIDIA A100-SXM4-80GB"),
        ("L4", ("NVIDIA L40S",), "NVIDIA L40S"),
    ],
)
def test_price_of_another_kind_of_accelerator_is_told_of_either_arm(
    kind: str, names: tuple[str, ...], other: str
) -> None:
    said = f"has the price of accelerator {kind}, and its server reports {other}"
    assert cost_coverage_warning(SILENT, bought(kind, *names)) == f"the candidate {said}"
    assert cost_coverage_warning(bought(kind, *names), SILENT) == f"the baseline {said}"


@pytest.mark.parametrize(
    "deployment",
    [
        bought("h200", "NVIDIA H200"),
        bought("H100-80GB", "NVIDIA H100 80GB HBM3"),
        bought("H100 or H200", "NVIDIA H200"),
        bought("H200", "a rented card"),  # which names no kind
        bought("the big one", "NVIDIA H200"),
        bought(None, "NVIDIA H200"),
        replace(SILENT, price_entry={"accelerator": "H200"}),  # whose server names none
        replace(told(1, accelerator_names="NVIDIA A100"), price_entry={"accelerator": "H200"}),  # no list of names
    ],
)
def test_price_of_the_kind_that_is_there_or_that_nobody_names_is_not(deployment: Deployment) -> None:
    assert cost_coverage_warning(deployment, deployment) is None


def test_baseline_that_is_paid_for_more_than_it_has_is_told() -> None:
    said = "the baseline is paid for 4 accelerators, and its server reports 2"
    assert cost_coverage_warning(told(4, accelerator_names=named(2)), SILENT) == said
    assert cost_coverage_warning(told(4, accelerator_names=named(2), flags={"tp_size": 2}), SILENT) == said


@pytest.mark.parametrize(
    "baseline",
    [
        told(4, accelerator_names=named(4)),
        told(1, accelerator_names=named(4)),  # it is paid for fewer: that makes the candidate no cheaper
        told(4, accelerator_names=named(1), flags={"tp_size": 4}),  # each worker names its own alone
        told(4, flags={"tp_size": 2}),  # flags tell of so many at least, not of all
        told(4, accelerator_names=[]),
        told(4, accelerator_names="H2"),
        replace(told(4, accelerator_names=named(1)), price_usd_per_hour=None, token_prices=TOKEN_PRICES),
    ],
)
def test_baseline_that_may_well_have_all_that_it_is_paid_for_is_not(baseline: Deployment) -> None:
    assert cost_coverage_warning(baseline, SILENT) is None
