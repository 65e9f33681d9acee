"""What a price comes to by its terms, and what tokens cost at full use and as they are used."""

from __future__ import annotations

from dataclasses import replace

import pytest

from benchgate.errors import SuiteError
from benchgate.gate.summary.metric_rows import metric_rows
from benchgate.model.deployment import Arm, Deployment
from benchgate.pipeline.deployments import declared_deployment
from benchgate.suite.loader import parse_suite
from benchgate.suite.schema import Suite
from tests.fakes.measured import Effect, Noise, SuiteText, measured

TEXT = """\
suite: s
deployments:
  old: {url: "http://one:8000", model: m, price: $4/h}
  new: {url: "http://two:8000", model: m, price: $4/h, accelerators: 2, price_terms: TERMS}
baseline: old
candidate: new
load:
  workload: {input: 64 tokens, output: 32 tokens}
  sweep: [{stage: c4, concurrency: 4, requests: 60}]
"""


def suite_of(terms: str) -> Suite:
    return parse_suite(TEXT.replace("TERMS", terms), "s.yaml")


@pytest.mark.parametrize(
    ("terms", "usd_per_hour", "in_use"),
    [
        ("{commitment: reserved}", 4.0, 1.0),
        ("{commitment: spot, interruption: 0%}", 4.0, 1.0),
        ("{commitment: spot, interruption: 20%}", 5.0, 1.0),  # of five paid hours one is lost
        ("{commitment: owned, energy: {draw: 700 W, price: $0.10/kWh}}", 4.07, 1.0),
        ("{commitment: owned, energy: {draw: 1 kW, price: $0.10/kWh, pue: 1.5x}}", 4.15, 1.0),
        ("{utilisation: 50%}", 4.0, 2.0),
        ("{utilisation: 50%, overhead: 25%}", 4.0, 2.5),
    ],
)
def test_terms_say_what_an_hour_that_serves_costs(terms: str, usd_per_hour: float, in_use: float) -> None:
    deployment = declared_deployment(suite_of(terms), "new")
    assert deployment.price_usd_per_hour == pytest.approx(usd_per_hour)
    assert deployment.in_use_factor == pytest.approx(in_use)
    assert deployment.price_terms["list_usd_per_hour"] == 4


@pytest.mark.parametrize(
    "kept", [{"overhead_ratio": 0.0, "utilisation_ratio": 0.0}, {"overhead_ratio": -1.0, "utilisation_ratio": 1.0}]
)
def test_terms_that_cannot_be_say_nothing_of_use(kept: dict[str, object]) -> None:
    assert Deployment("d", "m", "vllm", None, price_usd_per_hour=4.0, price_terms=kept).in_use_factor is None


def test_terms_come_back_from_the_store_as_they_were() -> None:
    suite = suite_of("{commitment: spot, interruption: 20%, overhead: 25%}")
    assert Suite.from_stored(suite.to_stored()).deployments["new"].usd_per_hour == 5


def test_price_without_terms_is_kept_as_ever() -> None:
    suite = suite_of("{}")
    plain = declared_deployment(suite, "old")
    assert (plain.price_usd_per_hour, plain.price_terms, plain.in_use_factor) == (4, {}, None)
    assert "price_terms" not in suite.to_stored()["deployments"]["old"]


def test_same_thing_at_another_price_is_the_same_thing() -> None:
    cheap, dear = (
        declared_deployment(suite_of(terms), "new") for terms in ("{}", "{commitment: spot, interruption: 20%}")
    )
    assert (cheap.fingerprint, cheap.release) == (dear.fingerprint, dear.release)


@pytest.mark.parametrize(
    ("terms", "problem"),
    [
        ("{interruption: 5%}", "is only for `commitment: spot`"),
        ("{commitment: spot, interruption: 100%}", "leaves no time"),
        ("{commitment: spot}", "take; add it, like interruption: 5%, or 0%"),
        ("{commitment: spot, overhead: 5%}", "needs the share of paid time that interruptions take"),
        ("{energy: {draw: 700 W, price: $0.12/kWh}}", "is only for `commitment: owned`, and the on_demand price"),
        ("{commitment: reserved, energy: {draw: 1 kW, price: $0.12/kWh}}", "and the reserved price includes it"),
        ("{commitment: rented}", "on_demand"),
        ("{utilisation: 0%}", "utilisation"),
        ("{energy: {draw: 700, price: $0.12/kWh}}", 'is not a power; write it with its unit, like "700 W"'),
        ("{energy: {draw: 700 W, price: $0.12}}", 'is not a price of energy; write it like "$0.12/kWh"'),
        ("{energy: {draw: 700 W, price: $0.12/kWh, pue: 0.5x}}", "pue"),
        ("{over: 5%}", "did you mean"),
    ],
)
def test_terms_that_cannot_be_are_an_error_of_the_suite(terms: str, problem: str) -> None:
    with pytest.raises(SuiteError) as caught:
        suite_of(terms)
    (found,) = caught.value.problems
    assert problem in str(found)


def test_terms_without_a_price_are_an_error_of_the_suite() -> None:
    text = TEXT.replace("model: m, price: $4/h, accelerators: 2", "model: m").replace("TERMS", "{overhead: 5%}")
    with pytest.raises(SuiteError, match="terms of a `price`, which is missing; add it"):
        parse_suite(text, "s.yaml")
    with pytest.raises(SuiteError, match="where a file has the price, write them there, in the same entry of `prices`"):
        parse_suite(f"prices: prices.yaml\n{text}", "s.yaml")


@pytest.mark.parametrize("found", ["4", '"4"', "4.0", '" 4 "'])
def test_a_number_where_a_kind_of_accelerators_is_wanted_is_how_many_there_are(found: str) -> None:
    """Priced as one of a kind that is called 4, four would cost a quarter of what they do."""
    text = TEXT.replace("TERMS", "{}").replace("accelerators: 2", f"accelerator: {found}")
    with pytest.raises(
        SuiteError, match=r"is a number and no kind like \"H100\"; did you mean `accelerators: 4"
    ) as wrong:
        parse_suite(text, "s.yaml")
    assert [problem.path for problem in wrong.value.problems] == ["deployments.new.accelerator"]
    named = text.replace(f"accelerator: {found}", "accelerator: RTX 4090")
    assert parse_suite(named, "s.yaml").deployments["new"].accelerator == "RTX 4090"


@pytest.mark.parametrize(
    ("written", "problem"),
    [
        ("price: $4/h, token_prices: {input: $1/M, output: $2/M}", "by the hour or by the token"),
        ("token_prices: {input: $1/M}", "`output`|output: is required"),
        ("token_prices: {input: $1, output: $2/M}", 'like "$0.15/M"'),
        ("token_prices: {input: $0/M, output: $0/M}", "tokens that cost nothing"),
    ],
)
def test_prices_of_tokens_that_cannot_be_are_an_error_of_the_suite(written: str, problem: str) -> None:
    text = TEXT.replace("price: $4/h, accelerators: 2, price_terms: TERMS", written)
    with pytest.raises(SuiteError, match=problem.replace("$", r"\$")):
        parse_suite(text, "s.yaml")


def test_prices_of_tokens_are_kept_and_cached_input_costs_as_other_input_unless_said() -> None:
    text = TEXT.replace("price: $4/h, accelerators: 2, price_terms: TERMS", "token_prices: {input: $1/M, output: $2/M}")
    found = declared_deployment(parse_suite(text, "s.yaml"), "new")
    assert (found.price_usd_per_hour, found.token_prices) == (None, {"input": 1, "cached_input": 1, "output": 2})
    assert found.has_price


def test_guides_example_comes_out_to_the_cent() -> None:
    """$32/h for four, 7,200 tokens/s together: $1.23 at full use, $2.47 at half of it, $3.09 with 25 % overhead."""
    two = Effect(accelerators=4, tokens=10)
    evidence = measured(SuiteText([{"metric": "ttft", "margin": "5%"}]).suite(), two, two, noise=Noise(cv=0.0))
    used: dict[str, object] = {"overhead_ratio": 0.25, "utilisation_ratio": 0.5}

    def cost(name: str, terms: dict[str, object]) -> float | None:
        arms = {arm: replace(one, price_usd_per_hour=8.0, price_terms=terms) for arm, one in evidence.run.arms.items()}
        load = tuple(replace(one, window_s=600 / 7200) for one in evidence.load)
        rows = metric_rows(replace(evidence, load=load, run=replace(evidence.run, arms=arms)))
        found = [row.value for row in rows if (row.name, row.arm) == (name, Arm.CANDIDATE)]
        return found[0] if found else None

    assert cost("usd_per_million_output_tokens", {}) == pytest.approx(1.23, abs=0.005)
    assert cost("usd_per_million_output_tokens_in_use", {}) is None
    assert cost("usd_per_million_output_tokens_in_use", used | {"overhead_ratio": 0.0}) == pytest.approx(
        2.47, abs=0.005
    )
    assert cost("usd_per_million_output_tokens_in_use", used) == pytest.approx(3.09, abs=0.005)
    assert cost("usd_per_million_good_tokens_in_use", used) == pytest.approx(3.09, abs=0.005)
    assert Deployment("d", "m", "vllm", None, price_terms={"overhead_ratio": "much"}).in_use_factor is None
