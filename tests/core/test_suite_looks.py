"""How a suite says after how many blocks its load may end, and what it may take; suites from before say it as ever."""

from __future__ import annotations

import re

import pytest

from benchgate.errors import SuiteError
from benchgate.plan.preview import preview
from benchgate.plan.schedule import make_plan, measurement_sha256
from benchgate.suite.load import Load
from benchgate.suite.loader import parse_suite
from benchgate.suite.schema import Suite

SUITE = """\
suite: looks
deployments:
  a: {{url: "http://a", model: m{price}}}
  b: {{url: "http://b", model: m{price}}}
baseline: a
candidate: b
load:
  workload: {{input: 8 tokens, output: 4 tokens}}
  sweep: [{{stage: c1, concurrency: 1, requests: 4}}]
{lines}gate: {{checks: [{{metric: ttft, margin: 5%}}, {{metric: error_rate, max: 5%}}]}}
"""


def parsed(*lines: str, price: str = "") -> Suite:
    return parse_suite(SUITE.format(lines="".join(f"  {line}\n" for line in lines), price=price), "s.yaml")


def load_of(*lines: str, price: str = "") -> Load:
    load = parsed(*lines, price=price).load
    assert load is not None
    return load


@pytest.mark.parametrize(
    ("lines", "looks", "blocks"),
    [
        ((), (5, 10, 20), 20),
        (("looks: [4, 12]",), (4, 12), 12),
        (("looks: [4, 12]", "blocks: 12"), (4, 12), 12),
        (("blocks: 10",), (), 10),
        (("looks: [8]",), (), 8),
        (("looks: [2, 3, 4, 5, 6, 200]",), (2, 3, 4, 5, 6, 200), 200),
    ],
)
def test_looks_and_blocks_as_they_are_written(lines: tuple[str, ...], looks: tuple[int, ...], blocks: int) -> None:
    load = load_of(*lines)
    assert (load.looks, load.blocks) == (looks, blocks)


@pytest.mark.parametrize(
    ("lines", "says"),
    [
        (
            ("looks: [5, 5, 20]",),
            "10:10: load.looks: looks are numbers of blocks in all, each more than the one before",
        ),
        (("looks: [10, 5]",), "each more than the one before, like [5, 10, 20]"),
        (("looks: []",), "an empty list has no interim analysis; write rising numbers of blocks like [5, 10, 20]"),
        (
            ("looks: [2, 3, 4, 5, 6, 7, 8]",),
            "7 looks; each one costs statistical power, so write 6 at most",
        ),
        (
            ("looks: [5, 20]", "blocks: 10"),
            "the last look is after 20 blocks, and `blocks` says 10; keep one of the two",
        ),
        (("looks: [1, 5]",), "load.looks[0]: found 1; expected a whole number, at least 2 and at most 200"),
        (("looks: [5, 201]",), "load.looks[1]: found 201; expected a whole number, at least 2 and at most 200"),
        (("looks: [5, 10.5]",), "load.looks[1]: found 10.5; expected a whole number"),
        (("looks: 5",), "load.looks: found 5; expected a list"),
        (("look: [5, 10]",), "unknown key; did you mean `looks`?"),
        (("blocks: 10", "limit: {time: 1h}"), "a fixed number of blocks has none; write `looks`"),
        (("limit: {}",), "a limit needs at least one of `time` and `cost`"),
        (("limit: {time: 90}",), 'load.limit.time: 90 is not a duration; write it with its unit, like "500ms"'),
        (("limit: {cost: 40 EUR}",), '"40 EUR" is not a sum of money; write it like "40 USD" or "$40"'),
        (("limit: {cost: 40 USD}",), 'the cost of the load is unknown: the baseline "a" has no `price`'),
    ],
)
def test_what_cannot_be_is_told_with_its_place(lines: tuple[str, ...], says: str) -> None:
    with pytest.raises(SuiteError) as error:
        parsed(*lines)
    assert says in str(error.value)
    assert len(error.value.problems) == 1


def test_a_limit_is_read_in_human_units() -> None:
    limit = load_of("limit: {time: 2h, cost: 40 USD}", price=", price: $2/h").limit
    assert limit is not None
    assert (limit.time_s, limit.cost_usd) == (7200.0, 40.0)
    dollars = load_of("limit: {cost: $2.50}", price=", price: $2/h").limit
    assert dollars is not None
    assert (dollars.time_s, dollars.cost_usd) == (None, 2.5)


def test_suites_from_before_keep_their_meaning_and_their_bytes() -> None:
    stored = parsed("blocks: 10").to_stored()
    assert "looks" not in stored["load"]
    assert "limit" not in stored["load"]
    again = Suite.from_stored(stored)
    assert again.load is not None
    assert (again.load.blocks, again.load.looks) == (10, ())
    assert again.to_stored() == stored


def test_looks_come_back_from_the_store() -> None:
    stored = parsed("looks: [4, 8]", "limit: {time: 90s}").to_stored()
    assert stored["load"]["looks"] == [4, 8]
    assert stored["load"]["limit"] == {"time_s": 90.0, "cost_usd": None}
    assert Suite.from_stored(stored).to_stored() == stored


def test_a_search_alone_has_no_looks() -> None:
    load = Load.model_validate(
        {
            "workload": {"input": "8 tokens", "output": "4 tokens"},
            "capacity": {"over": "concurrency", "from": 1, "to": 8},
        }
    )
    assert (load.looks, load.blocks) == ((), 10)


def test_when_the_load_may_end_is_no_part_of_what_is_measured() -> None:
    suites = [parsed("blocks: 12"), parsed("looks: [4, 12]"), parsed("looks: [6, 12]", "limit: {time: 1h}")]
    assert len({measurement_sha256(suite, make_plan(suite)) for suite in suites}) == 1
    assert measurement_sha256(parsed("blocks: 4"), make_plan(parsed("blocks: 4"))) != measurement_sha256(
        suites[0], make_plan(suites[0])
    )


@pytest.mark.parametrize(("line", "told"), [("looks: [4, 12]", "4 to 12 blocks"), ("blocks: 12", "12 blocks")])
def test_a_plan_tells_how_many_blocks_there_may_be(line: str, told: str) -> None:
    suite = parsed(line)
    assert preview(suite, make_plan(suite), None, 2).block_range == told


def test_a_price_is_asked_of_every_deployment_that_is_measured() -> None:
    text = SUITE.format(lines="  limit: {cost: 1 USD}\n", price=", price: $2/h")
    assert parse_suite(text, "s.yaml").load is not None
    with pytest.raises(SuiteError, match=re.escape('the candidate "b" has no `price`')):
        parse_suite(text.replace('"http://b", model: m, price: $2/h', '"http://b", model: m'), "s.yaml")
