"""The JSON Schema that editors use: it takes what loads, and refuses what the loader refuses by its shape."""

from __future__ import annotations

import copy
import re
from collections.abc import Iterator
from datetime import date
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator
from pydantic import TypeAdapter

from benchgate.errors import SuiteError
from benchgate.suite.json_schema import json_schema
from benchgate.suite.loader import parse_suite
from benchgate.suite.messages import key_of, sections, slot_at, slots_of
from benchgate.suite.price_file import parse_prices
from benchgate.suite.waivers import parse_waivers
from benchgate.suite.yaml import read_text

ROOT = Path(__file__).parents[2]
EXAMPLES = [(ROOT / f"docs/reference/suite-{name}.yaml").read_text() for name in ("smallest", "every-key")]
SCHEMA = json_schema("suite")
SUITES = Draft202012Validator(SCHEMA)
WAIVERS = Draft202012Validator(json_schema("waivers"))
PRICES = Draft202012Validator(json_schema("prices"))
WHOLE = read_text(EXAMPLES[1].replace("# start:", "start:"), "example").data
SMALL = """\
suite: small
deployments: {a: {url: "http://a:1", model: m}, b: {url: "http://b:1", model: m}}
baseline: a
candidate: b
load:
  workload: {input: 8 tokens, output: 4 tokens}
  sweep: [{stage: c4, concurrency: 4, requests: 60}]
gate:
  checks: [{metric: ttft, margin: 10%}]
"""


def test_all_are_schemas_of_the_draft_they_name() -> None:
    for schema in (SCHEMA, json_schema("waivers"), json_schema("prices"), json_schema("demand")):
        Draft202012Validator.check_schema(schema)
        assert schema["$schema"] == "https://json-schema.org/draft/2020-12/schema"
    names = [model.__name__ for _, model in sections()]
    assert len(set(names)) == len(names), "two sections would share one definition"


@pytest.mark.parametrize("path", sorted((ROOT / "suites").rglob("*.yaml")), ids=lambda path: path.name)
def test_every_suite_that_ships_is_taken(path: Path) -> None:
    if path.parent.name != "tasks":
        assert [error.message for error in SUITES.iter_errors(read_text(path.read_text(), path.name).data)] == []


@pytest.mark.parametrize("text", [*EXAMPLES, SMALL])
def test_every_example_is_taken(text: str) -> None:
    assert [error.message for error in SUITES.iter_errors(read_text(text, "example").data)] == []


Place = tuple[str | int, ...]


def places(value: Any, path: Place = ()) -> Iterator[Place]:
    yield path
    inside = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in inside:
        yield from places(inner, (*path, key))


def value_at(value: Any, path: Place) -> Any:
    for part in path:
        value = value[part]
    return value


def not_refused(paths: list[Place], value: Any) -> list[Place]:
    """Those of some places at which a value is not refused. Tried at all of them at once, then one by one."""
    everywhere = copy.deepcopy(WHOLE)
    for path in paths:
        value_at(everywhere, path[:-1])[path[-1]] = value
    seen = {tuple(error.absolute_path) for error in SUITES.iter_errors(everywhere)}
    return [path for path in paths if path not in seen and SUITES.is_valid(with_value(path, value))]


def with_value(path: Place, value: Any) -> Any:
    changed = copy.deepcopy(WHOLE)
    value_at(changed, path[:-1])[path[-1]] = value
    return changed


def test_unknown_key_is_refused_in_every_section() -> None:
    sound = [path for path in places(WHOLE) if (slot := slot_at(path)) is not None and slot.model is not None]
    at_mappings = [(*path, "no_such_key") for path in sound if isinstance(value_at(WHOLE, path), dict)]
    assert len(at_mappings) > 60
    assert [path for path in at_mappings if SUITES.is_valid(with_value(path, 1))] == []


def test_value_of_another_kind_is_refused_at_every_key() -> None:
    keyed = [path for path in places(WHOLE) if path and (slot := slot_at(path)) is not None and slot.kind is not Any]
    leaves = [path for path in keyed if not isinstance(value_at(WHOLE, path), dict | list)]
    assert len(leaves) > 200 and len(keyed) - len(leaves) > 60
    assert not_refused(leaves, [[]]) == []
    assert [path for path in keyed if path not in leaves and SUITES.is_valid(with_value(path, [[]]))] == []
    assert not SUITES.is_valid(with_value(("seed",), None))


@pytest.mark.parametrize(
    ("right", "wrong"),
    [
        ("suite: small", "siute: small"),
        ("suite: small", "suite: a name with spaces"),
        ("suite: small", "suite: 8"),
        ("suite: small", "suite: small\nseed: 1.5"),
        ("suite: small", "suite: small\nseed: -1"),
        ("suite: small", "suite: small\nslo: {ttft: 500}"),
        ("suite: small", "suite: small\nslo: {ttft: 500 ms later}"),
        ("suite: small", "suite: small\nslo: {ttft: 500ms, target: 0.95}"),
        ("suite: small", "suite: small\nlimits: {ready: 30}"),
        ("suite: small", "suite: small\nlimits: []"),
        ("suite: small\n", ""),
        ("candidate: b", "candidates: []"),
        ("model: m}, b", "model: 7}, b"),
        ("model: m}, b", "model: m, engine: vlm}, b"),
        ("model: m}, b", "model: m, api_key: sk-very-secret}, b"),
        ("model: m}, b", "model: m, price: 4}, b"),
        ("model: m}, b", "model: m, leave_out: [sed]}, b"),
        ("model: m}, b", "model: m, accelerators: 0}, b"),
        ("b: {url", "b b: {url"),
        ("input: 8 tokens", "input: eight"),
        ("input: 8 tokens", "input: 0"),
        ("input: 8 tokens", "input: {uniform: [8]}"),
        ("input: 8 tokens", "input: {median: 8}"),
        ("output: 4 tokens", "output: 4 tokens, ignore_eos: no"),
        ("output: 4 tokens", "output: 4 tokens, text: prose"),
        ("output: 4 tokens}", "output: 4 tokens}\n  workers: many"),
        ("output: 4 tokens}", "output: 4 tokens}\n  blocks: 1"),
        ("concurrency: 4", "concurrency: four"),
        ("concurrency: 4", "concurrency: 4, arival: poisson"),
        ("concurrency: 4", "rate: 4"),
        ("concurrency: 4", "rate: 4/s, arrival: bursty"),
        ("stage: c4", "name: c4"),
        ("metric: ttft", "metric: tfft"),
        ("margin: 10%", "margin: 0.1"),
        ("margin: 10%", "margin: ten percent"),
        ("margin: 10%", "margin: 10%, required: yes"),
        ("checks: [{metric: ttft, margin: 10%}]", "checks: []"),
        ("gate:\n", "gate:\n  alpha: 5%\n"),
    ],
)
def test_mistake_of_shape_is_refused_by_the_loader_and_by_the_schema(right: str, wrong: str) -> None:
    assert SMALL.count(right) >= 1
    broken = SMALL.replace(right, wrong, 1)
    with pytest.raises(SuiteError):
        parse_suite(broken, "small.yaml")
    assert not SUITES.is_valid(read_text(broken, "small.yaml").data)


def test_every_key_has_its_description_and_its_default_as_a_suite_writes_it() -> None:
    defined = {model.__name__: SCHEMA["$defs"].get(model.__name__, SCHEMA) for _, model in sections()}
    for _, model in sections():
        properties = defined[model.__name__]["properties"]
        assert list(properties) == list(slots_of(model))
        for name, field in model.model_fields.items():
            described = properties[key_of(name, field)]
            assert described["description"] == field.description
            if "default" in described:
                adapter = TypeAdapter(field.rebuild_annotation())
                assert adapter.validate_python(described["default"]) == pytest.approx(field.default)
    assert SCHEMA["$defs"]["Limits"]["properties"]["connect"]["description"] == "Time to open the connection"
    assert SCHEMA["$defs"]["Limits"]["properties"]["connect"]["default"] == "5 s"


WAIVED = """\
waivers:
  - {suite: small, check: ttft-p50, deployment: b, ceiling: 15%, expires: 2026-03-01, owner: A, issue: X-1,
     reason: known, approved_by: B}
"""


def test_files_of_waivers_are_taken_and_refused_as_the_command_does() -> None:
    day = date(2026, 2, 20)
    for text in (WAIVED, "waivers: []\n"):
        assert parse_waivers(text, "w.yaml", day).source == "w.yaml"
        assert WAIVERS.is_valid(read_text(text, "w.yaml").data)
    for right, wrong in (
        ("waivers:", "waiver:"),
        ("owner: A", "owned: A"),
        ("owner: A, ", ""),
        ("expires: 2026-03-01", "expires: March"),
        ("ceiling: 15%", "ceiling: 15"),
        ("suite: small", "suite: a b"),
    ):
        broken = WAIVED.replace(right, wrong, 1)
        with pytest.raises(SuiteError):
            parse_waivers(broken, "w.yaml", day)
        assert not WAIVERS.is_valid(read_text(broken, "w.yaml").data), wrong


PRICED = """\
prices:
  - {accelerator: H100, price: $3.50/h, until: 2026-06-30}
  - deployment: fp8
    from: 2026-07-01
    price: $2.60/h
    price_terms: {commitment: owned, overhead: 25%, energy: {draw: 700 W, price: $0.25/kWh}}
  - {deployment: hosted, token_prices: {input: $0.15/M, output: $0.60/M}}
"""


def test_files_of_prices_are_taken_and_refused_as_the_commands_do() -> None:
    page = (ROOT / "docs" / "guides" / "cost.md").read_text(encoding="utf-8")
    examples = re.findall(r'^```yaml title="prices.yaml"\n(.*?)^```', page, re.MULTILINE | re.DOTALL)
    for text in (*examples, PRICED):
        assert parse_prices(text, "p.yaml").listed
        assert [error.message for error in PRICES.iter_errors(read_text(text, "p.yaml").data)] == []
    assert examples
    for right, wrong in (
        ("prices:", "usd_per: {EUR: 1.08}\nprices:"),
        ("price: $3.50/h", "price: 3.50"),
        ("price: $3.50/h", "price: 3.50 EUR/h"),
        ("until: 2026-06-30", "until: June"),
        ("until: 2026-06-30", "til: 2026-06-30"),
        ("commitment: owned", "commitment: own"),
        ("draw: 700 W", "draw: 700"),
        ("output: $0.60/M", "output: 0.60"),
    ):
        broken = PRICED.replace(right, wrong, 1)
        with pytest.raises(SuiteError):
            parse_prices(broken, "p.yaml")
        assert not PRICES.is_valid(read_text(broken, "p.yaml").data), wrong
    schema = json_schema("prices")
    for section in (schema, *schema["$defs"].values()):
        assert all("description" in value for value in section["properties"].values())
