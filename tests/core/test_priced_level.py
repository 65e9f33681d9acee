"""At which level of load tokens are priced: whose numbers count there, and that nothing missing makes it cheap."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from benchgate.model.deployment import Arm
from benchgate.model.run import MetricRow
from benchgate.sizing.operating_point import GOOD, OUTPUT, PricedLevel, priced_level
from benchgate.stats.meta import EstimateWithLimits
from benchgate.suite.deployment import TokenPrices
from benchgate.suite.loader import parse_suite
from benchgate.suite.schema import Suite
from tests.core.test_frontier import CLASSES, NO_SLO, PRICED, costs
from tests.core.test_sizing import LEVELS, SUITE, level

OURS, THEIRS = Arm.CANDIDATE, Arm.BASELINE


def suite_of(text: str = SUITE) -> Suite:
    return parse_suite(text, "suite.yaml")


def priced(rows: Sequence[MetricRow], text: str = SUITE, *, in_use: bool = False) -> PricedLevel:
    found = priced_level(rows, suite_of(text), OURS, in_use=in_use)
    assert isinstance(found, PricedLevel), found
    return found


def refused(rows: Sequence[MetricRow], text: str = SUITE, *, in_use: bool = False) -> str:
    found = priced_level(rows, suite_of(text), OURS, in_use=in_use)
    assert isinstance(found, str)
    return found


def test_the_other_arm_makes_nothing_cheap() -> None:
    cheap = [*level("c8", 9000, (1.0, 0.99), THEIRS), *costs("c8", 0.1, 0.1, THEIRS)]
    assert priced([*PRICED, *cheap]) == priced([*cheap, *PRICED]) == priced(PRICED)
    assert priced([*PRICED, *cheap], NO_SLO) == priced(PRICED, NO_SLO)
    assert "no price was stated" in refused([*LEVELS, *cheap])


def test_a_statistic_of_a_cost_is_not_the_cost() -> None:
    least = [replace(row, statistic="min", value=0.01) for row in costs("c8", 1.0, 1.0)]
    assert priced([*PRICED, *least]) == priced(PRICED)


IN_USE = [
    replace(row, name=f"{row.name}_in_use", value=factor * row.value)
    for row, factor in ((row, {GOOD: 2.0, OUTPUT: 3.0}.get(row.name, 1.0)) for row in costs("c8", 2.0, 1.9))
]


def test_costs_as_used_are_those_of_good_and_of_output_tokens_each_by_its_own_name() -> None:
    found = priced([*PRICED, *IN_USE], in_use=True)
    assert found.stage == "c8"
    assert (found.usd.value, found.usd_output.value) == pytest.approx((4.0, 5.7))
    full = priced([*PRICED, *IN_USE])
    assert (full.usd.value, full.usd_output.value) == (2.0, 1.9)


@pytest.mark.parametrize("missing", [GOOD, OUTPUT])
def test_one_of_the_two_costs_without_the_other_is_none(missing: str) -> None:
    rows = [row for row in PRICED if row.name != missing]
    assert "stage c8 has no cost" in refused(rows)
    as_used = [row for row in IN_USE if row.name != f"{missing}_in_use"]
    assert "no `price_terms`" in refused([*PRICED, *as_used], in_use=True)


def changed(rows: Sequence[MetricRow], name: str, **fields: float | None) -> list[MetricRow]:
    return [replace(row, **fields) if row.name == name else row for row in rows]  # type: ignore[arg-type]  # its own


@pytest.mark.parametrize("value", [0.0, -1.0])
def test_tokens_that_cost_nothing_are_not_cheap_but_without_a_cost(value: float) -> None:
    assert "stage c8 has no cost" in refused(changed(PRICED, GOOD, value=value))


@pytest.mark.parametrize("limit", [{"lower": None}, {"lower": 0.0}, {"upper": None}, {"upper": 0.0}])
def test_a_limit_that_is_not_known_leaves_the_cost_without_an_interval(limit: dict[str, float | None]) -> None:
    assert priced(changed(PRICED, GOOD, **limit)).usd == EstimateWithLimits(2.0, None)


PACES = {"both/chat": (100.0, 6.0), "both/batch": (200.0, 3.0)}


def of_classes(paces: dict[str, tuple[float, float]], arm: Arm = OURS) -> list[MetricRow]:
    return [
        MetricRow(arm, name, None, place, None, value, 5, value * 0.9, value * 1.2)
        for place, (pace, usd) in paces.items()
        for name, value in (("output_throughput", pace), (OUTPUT, usd))
    ]


LONELY = CLASSES.replace("gate:", "    - {stage: alone, concurrency: 1, requests: 100}\ngate:")


def test_a_stage_of_which_a_class_was_not_measured_is_not_the_fullest() -> None:
    """900 tokens/s of one class alone would be most; what the other one took of the machine is not known."""
    alone = of_classes({"alone": (250.0, 4.0)})
    half = of_classes({"both/chat": (900.0, 0.5)})
    assert priced([*alone, *half], LONELY).stage == "alone"
    assert priced([*alone, *of_classes(PACES)], LONELY).stage == "both"
    assert refused(half, CLASSES) == "no level of load was measured whole on the candidate"
    silent = of_classes({"both/chat": (0.0, 6.0), "both/batch": (0.0, 3.0)})
    assert refused(silent, CLASSES) == "no level of load was measured whole on the candidate"


def test_a_class_without_a_limit_leaves_the_stage_without_an_interval() -> None:
    rows = of_classes(PACES)
    for fields in ({"lower": None}, {"upper": None}):
        some = [replace(row, **fields) if row.stage == "both/chat" else row for row in rows]  # type: ignore[arg-type]  # a field
        found = priced(some, CLASSES).usd
        assert found.value == pytest.approx(2.0)
        assert found.limits is None


def test_limits_of_classes_are_of_what_all_of_them_reach_at_once() -> None:
    """$5.4 and $2.7 at the least are $1.80 together; $7.2 and $3.6 at the most are $2.40."""
    limits = priced(of_classes(PACES), CLASSES).usd.limits
    assert limits is not None
    assert (limits.lower, limits.upper) == pytest.approx((1.8, 2.4))


@pytest.mark.parametrize(("hosted", "ours"), [("a", False), ("b", True)])
def test_classes_have_bills_of_their_own_only_on_the_arm_that_is_paid_by_the_token(hosted: str, ours: bool) -> None:
    prices = TokenPrices.model_validate({"input": "$1/M", "output": "$4/M"})
    suite = suite_of(CLASSES)
    by_token = suite.deployments[hosted].model_copy(update={"price": None, "token_prices": prices})
    suite = suite.model_copy(update={"deployments": {**suite.deployments, hosted: by_token}})
    rows = [*of_classes(PACES), *of_classes(PACES, THEIRS)]
    for arm, paid in ((OURS, ours), (THEIRS, not ours)):
        assert isinstance(priced_level(rows, suite, arm), str) is paid


def test_what_is_paid_by_the_token_has_a_cost_of_one_class_however_it_is_used() -> None:
    prices = TokenPrices.model_validate({"input": "$1/M", "output": "$4/M"})
    suite = suite_of()
    by_token = suite.deployments["b"].model_copy(update={"price": None, "token_prices": prices})
    suite = suite.model_copy(update={"deployments": {**suite.deployments, "b": by_token}})
    for in_use in (False, True):
        assert priced_level(PRICED, suite, OURS, in_use=in_use) == priced(PRICED)


def test_a_suite_without_a_load_has_no_level_to_price() -> None:
    suite = suite_of().model_copy(update={"load": None})
    for arm in Arm:
        assert priced_level(PRICED, suite, arm) == "the suite has no load whose tokens could be priced"


def test_classes_without_an_slo_sell_no_good_tokens() -> None:
    """All of the price is borne by the good tokens of the class that has one, whatever the other's would cost."""
    held = CLASSES.replace("rate: 4/s", "rate: 4/s, slo: {ttft: 500ms, target: 95%}")
    rows = [
        *level("both/chat", 100.0, (0.99, 0.97)),
        *costs("both/chat", 6.0, 5.0),
        *level("both/batch", 200.0, (0.99, 0.97)),
        *costs("both/batch", 3.0, 2.5),
    ]
    found = priced(rows, held)
    assert (found.stage, found.usd.value, found.usd_output.value) == ("both", 6.0, 5.0)
