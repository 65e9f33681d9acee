"""The language of files of prices as JSON Schema 2020-12, as `editor_schema` says that of suites."""

from __future__ import annotations

from typing import Any

from benchgate import units
from benchgate.suite.currencies import SUM_PATTERN
from benchgate.suite.editor_schema import DIALECT, Meanings, section_schema
from benchgate.suite.price_file import ListedPrice, PriceFile
from benchgate.suite.price_terms import Energy, PriceTerms, TokenPrices
from benchgate.suite.vocabulary import sections

_MEANT = {
    ("", "usd_per"): "What one of another currency is in dollars, by its three letters: {EUR: 1.08}.",
    ("", "prices"): "What deployments cost, each from a day on and until another one.",
    ("prices[]", "deployment"): "Whose price it is, by its name in the suites; or say `accelerator`.",
    ("prices[]", "accelerator"): "Of deployments on what their suites call so, and that have none by name.",
    ("prices[]", "price"): "Of one accelerator for an hour; or say `token_prices`.",
    ("prices[]", "price_terms"): "How it was bought, and what is paid beside it.",
    ("prices[]", "token_prices"): "Of a hosted model, by its `deployment`: for a million tokens of each kind.",
    ("prices[]", "from"): "Its first day, in UTC. Unless said: all days before.",
    ("prices[]", "until"): "Its last day, in UTC. Unless said: for good.",
    ("prices[]", "usd_per"): "The same for this entry; it goes before that of the file.",
}
_OF_MONEY = frozenset(
    units.PATTERNS[parse]
    for parse in (units.parse_price_usd_per_hour, units.parse_usd_per_million, units.parse_usd_per_kwh)
)


def prices_schema(meanings: Meanings) -> dict[str, Any]:
    """The schema of a file of prices; `meanings` are those of suites, with which it shares its terms."""
    places = {model: place for place, model in sections()}
    shared = {
        model.__name__: section_schema(places[model], model, meanings) for model in (PriceTerms, Energy, TokenPrices)
    }
    listed = section_schema("prices[]", ListedPrice, _MEANT)
    whole = {"$schema": DIALECT, "title": "benchgate prices", **section_schema("", PriceFile, _MEANT)}
    found = _in_any_currency({**whole, "$defs": {ListedPrice.__name__: listed, **shared}})
    assert isinstance(found, dict), "a schema stays one"
    return found


def _in_any_currency(schema: Any) -> Any:
    """The same, where a sum may be of another currency than dollars."""
    if isinstance(schema, list):
        return [_in_any_currency(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    if schema.get("pattern") in _OF_MONEY:
        return {**schema, "pattern": f"{schema['pattern']}|^{SUM_PATTERN}$"}
    return {key: _in_any_currency(value) for key, value in schema.items()}
