"""A file of prices: which of them is of a day, what is told where none is, and where each mistake stands."""

from __future__ import annotations

from datetime import date

import pytest

from benchgate.errors import SuiteError
from benchgate.suite.loader import parse_suite
from benchgate.suite.price_file import ListedPrice, Prices, parse_prices

FILE = """\
prices:
  - {deployment: fp8, price: $4/h, until: 2026-06-30}
  - deployment: fp8
    from: 2026-07-01
    until: 2026-09-30
    price: $2/h
    price_terms: {commitment: spot, interruption: 20%, overhead: 25%, utilisation: 50%}
  - {deployment: hosted, token_prices: {input: $0.15/M, output: $0.60/M}}
"""

SUITE = """\
suite: priced
deployments:
  old: {url: "http://one:8000", model: m}
  new: {url: "http://two:8000", model: m}
baseline: old
candidate: new
PRICES
load:
  workload: {input: 64 tokens, output: 32 tokens}
  sweep: [{stage: c4, concurrency: 4, requests: 40}]
  looks: [4, 8]
  limit: {cost: 40 USD}
gate: {checks: [{metric: usd_per_million_output_tokens, margin: 10%}, {metric: error_rate, max: 1%}]}
"""


def prices(text: str = FILE) -> Prices:
    return parse_prices(text, "prices.yaml")


def an_hour(listed: ListedPrice | None) -> float | None:
    """What an accelerator costs in an hour that serves; None without a price, or by the token."""
    if listed is None or listed.price is None or listed.price_terms is None:
        return None if listed is None else listed.price
    return listed.price_terms.usd_per_hour(listed.price)


def test_both_ends_of_a_price_are_its_own() -> None:
    found = [prices().on(day, "fp8", None) for day in (date(2026, 6, 30), date(2026, 7, 1), date(2026, 9, 30))]
    assert [an_hour(one) for one in found] == [4.0, 2.5, 2.5]  # $2 / 0.8 by its terms
    terms = [one and one.price_terms for one in found]
    assert [one and (one.overhead_ratio, one.utilisation_ratio) for one in terms] == [None, (0.25, 0.5), (0.25, 0.5)]
    assert prices().on(date(2026, 10, 1), "fp8", None) is None
    hosted = prices().on(date(1999, 1, 1), "hosted", None)
    assert hosted is not None and an_hour(hosted) is None
    assert hosted.token_prices is not None and hosted.token_prices.output_usd == 0.6


@pytest.mark.parametrize(
    ("deployment", "day", "told"),
    [
        ("fp8", date(2026, 11, 21), '3:5: prices[1]: "fp8" has no price on 2026-11-21: this one ended on 2026-09-30'),
        ("fp9", date(2026, 7, 1), '2:3: prices: "fp9" has no price on 2026-07-01; did you mean `fp8`?'),
    ],
)
def test_a_price_that_is_not_there_is_told_at_the_nearest_one(deployment: str, day: date, told: str) -> None:
    assert str(prices().lacking(day, deployment, None)).startswith(f"prices.yaml:{told}")


def test_the_nearest_price_may_be_one_to_come() -> None:
    gap = prices(FILE.replace("2026-07-01", "2026-08-01"))
    assert "prices.yaml:3:5" in str(gap.lacking(date(2026, 7, 25), "fp8", None))
    assert "begins on 2026-08-01" in str(gap.lacking(date(2026, 7, 25), "fp8", None))
    assert "prices.yaml:2:5" in str(gap.lacking(date(2026, 7, 2), "fp8", None))


METRICS = """\
prices:
  - {accelerator: H100, price: $3/h, until: 2026-06-30}
  - {accelerator: H100, price: $2/h, from: 2026-07-01}
  - {deployment: fp8, price: $1/h, from: 2026-07-01}
"""


def test_a_price_by_name_goes_before_one_by_what_it_runs_on() -> None:
    def paid(day: date, deployment: str, kind: str | None) -> float | None:
        return an_hour(prices(METRICS).on(day, deployment, kind))

    june, july = date(2026, 6, 30), date(2026, 7, 1)
    assert [paid(day, "fp8", "H100") for day in (june, july)] == [None, 1.0]
    assert [paid(day, "bf16", "H100") for day in (june, july)] == [3.0, 2.0]
    assert [paid(june, "bf16", kind) for kind in (None, "H200", "h100")] == [None, None, None]


def test_a_price_by_name_that_is_over_gives_way_to_no_other() -> None:
    ended = prices(METRICS.replace("fp8, price: $1/h, from", "fp8, price: $1/h, until"))
    july = date(2026, 7, 2)
    assert ended.on(july, "fp8", "H100") is None
    told = str(ended.lacking(july, "fp8", "H100"))
    assert told.startswith('prices.yaml:4:5: prices[2]: "fp8" has no price on 2026-07-02: this one ended on 2026-07-01')
    assert "prices by name replace those of accelerator H100 on every day; add one for that day" in told


@pytest.mark.parametrize(
    ("deployment", "kind", "told"),
    [
        ("bf16", "H10", 'its accelerator "H10" has none either; did you mean `H100`?'),
        ("bf16", "TPU", 'its accelerator "TPU" has none either; expected one of H100'),
        ("bf16", None, "or say in the suite which `accelerator` it runs on, of H100"),
        ("fp9", None, "did you mean `fp8`?"),
    ],
)
def test_what_the_file_does_not_know_is_told_as_what_it_lacks(deployment: str, kind: str | None, told: str) -> None:
    problem = str(prices(METRICS).lacking(date(2026, 7, 1), deployment, kind))
    assert problem.startswith(f'prices.yaml:2:3: prices: "{deployment}" has no price on 2026-07-01; ')
    assert told in problem


def test_two_prices_for_one_day_are_told_with_what_parts_them() -> None:
    """Both ends of each are its own, so one ends on the day before the other begins."""
    both = "prices:\n  - {deployment: a, price: $4/h, FIRST}\n  - {deployment: a, price: $5/h, THEN}\n"

    def told(first: str, then: str) -> str:
        with pytest.raises(SuiteError) as wrong:
            prices(both.replace("FIRST", first).replace("THEN", then))
        return str(wrong.value)

    remedy = "write `until: 2026-06-30` in prices[0]"
    assert remedy in told("until: 2026-07-01", "from: 2026-07-01")
    assert remedy in told("from: 2026-01-01", "from: 2026-07-01")
    assert remedy.replace("[0]", "[1]") in told("from: 2026-07-01", "until: 2026-07-01")
    prices(both.replace("FIRST", "until: 2026-06-30").replace("THEN", "from: 2026-07-01"))
    assert "both begin on 2026-07-01" in told("from: 2026-07-01", "from: 2026-07-01, until: 2026-07-01")
    assert "neither has `from`" in told("until: 2026-07-01", "until: 2026-07-02")


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (METRICS.replace("accelerator: H100, price: $3/h", "price: $3/h"), "exactly one of `deployment` and `accel"),
        (METRICS.replace("{deployment: fp8", "{deployment: fp8, accelerator: H100"), "exactly one of `deployment`"),
        (METRICS.replace("price: $2/h", "token_prices: {input: $1/M, output: $1/M}"), "`token_prices` need a `deploy"),
        (
            METRICS.replace("$2/h, from: 2026-07-01", "$2/h"),
            "prices.yaml:3:5: prices[1]: accelerator H100 has another price",
        ),
        (
            FILE.replace("price: $4/h", "price: $4/h, token_prices: {input: $1/M, output: $1/M}"),
            "exactly one of `price`",
        ),
        (FILE.replace("price: $4/h, ", ""), "prices.yaml:2:5: prices[0]: needs exactly one of `price`"),
        (
            FILE.replace("hosted, ", "hosted, price_terms: {overhead: 5%}, "),
            "prices.yaml:8:5: prices[2]: `price_terms`",
        ),
        (FILE.replace("$0.60/M", "$0.60/h"), "prices.yaml:8:"),
    ],
)
def test_a_price_is_by_the_hour_or_by_the_token(text: str, told: str) -> None:
    with pytest.raises(SuiteError) as wrong:
        prices(text)
    assert told in str(wrong.value)


def test_a_price_tells_what_it_is_as_it_is_written() -> None:
    def told(text: str, number: int) -> dict[str, object]:
        found = prices(text)
        return found.entry_of(found.listed[number])

    assert told(FILE, 0) == {"deployment": "fp8", "until": "2026-06-30", "price": "$4/h"}
    assert told(FILE, 2) == {"deployment": "hosted", "token_prices": {"input": "$0.15/M", "output": "$0.60/M"}}
    assert told(METRICS, 2) == {"deployment": "fp8", "from": "2026-07-01", "price": "$1/h"}


@pytest.mark.parametrize(
    ("found", "written", "told"),
    [
        ("deployment: hosted", "accelerator: 4", "prices[2].accelerator: 4 is a number and no kind"),
        ("until: 2026-06-30", "until: $4/h", "prices[0].until: "),
        ("until: 2026-06-30", "until: soon", "write it like 2026-12-31"),
        ("until: 2026-06-30", "til: 2026-06-30", "did you mean `until`?"),
        ("until: 2026-09-30", "until: 2026-06-01", "is before `from`"),
        ("$4/h", "$0/h", 'prices[0].price: "$0/h" is not a usable price'),
        ("$4/h", "$4/M", 'prices[0].price: "$4/M" is not a price'),
        ("$4/h", "3.50 EUR/h", '2:30: prices[0].price: "3.50 EUR/h" is not a price; write it like "$32/h"'),
        ("$4/h", "€3.50/h", 'prices[0].price: "€3.50/h" is not a price; write it like "$32/h"'),
        ("output: $0.60/M", "output: 0.60 EUR/M", 'prices[2].token_prices.output: "0.60 EUR/M" is not a price'),
        ("prices:\n", "usd_per: {EUR: 1.08}\nprices:\n", "1:1: usd_per: unknown key"),
    ],
)
def test_a_value_that_is_none_of_its_key_is_told_where_it_stands(found: str, written: str, told: str) -> None:
    with pytest.raises(SuiteError) as wrong:
        prices(FILE.replace(found, written, 1))
    assert told in str(wrong.value), str(wrong.value)


@pytest.mark.parametrize(
    "price", ["price: 3.50 EUR/h", "price: €3.50/h", "token_prices: {input: 1 EUR/M, output: $1/M}"]
)
def test_a_suite_speaks_of_dollars_alone(price: str) -> None:
    with pytest.raises(SuiteError, match=r"is not a price"):
        parse_suite(SUITE.replace("PRICES", "").replace("model: m}", f"model: m, {price}}}"), "s.yaml")


def test_checks_of_a_cost_wait_for_the_file_and_do_without_it_only_where_there_is_none() -> None:
    assert parse_suite(SUITE.replace("PRICES", "prices: prices.yaml"), "s.yaml").prices == "prices.yaml"
    with pytest.raises(SuiteError) as wrong:
        parse_suite(SUITE.replace("PRICES", ""), "s.yaml")
    assert [problem.path for problem in wrong.value.problems] == ["load.limit.cost", "gate.checks[0].metric"]
    assert wrong.value.problems[1].message.endswith("or name a file that has it, like prices: prices.yaml")


def test_a_suite_without_a_file_keeps_its_bytes() -> None:
    free = SUITE.replace("PRICES", "").replace("model: m}", "model: m, price: $4/h}")
    assert "prices" not in parse_suite(free, "s.yaml").to_stored()
