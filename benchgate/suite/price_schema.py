"""The language of files of prices as JSON Schema 2020-12, as `editor_schema` says that of suites."""

from __future__ import annotations

from typing import Any

from benchgate.suite.editor_schema import DIALECT, Meanings, section_schema
from benchgate.suite.price_file import ListedPrice, PriceFile
from benchgate.suite.price_terms import Energy, PriceTerms, TokenPrices
from benchgate.suite.vocabulary import sections

_MEANT = {
    ("", "prices"): "What deployments cost, each from a day on and until another one.",
    ("prices[]", "deployment"): "Whose price it is, by its name in the suites; or say `accelerator`.",
    ("prices[]", "accelerator"): "Of deployments on what their suites call so, and that have none by name.",
    ("prices[]", "price"): "Of one accelerator for an hour; or say `token_prices`.",
    ("prices[]", "price_terms"): "How it was bought, and what is paid beside it.",
    ("prices[]", "token_prices"): "Of a hosted model, by its `deployment`: for a million tokens of each kind.",
    ("prices[]", "from"): "Its first day, in UTC. Unless said: all days before.",
    ("prices[]", "until"): "Its last day, in UTC. Unless said: for good.",
}


def prices_schema(meanings: Meanings) -> dict[str, Any]:
    """The schema of a file of prices; `meanings` are those of suites, with which it shares its terms."""
    places = {model: place for place, model in sections()}
    shared = {
        model.__name__: section_schema(places[model], model, meanings) for model in (PriceTerms, Energy, TokenPrices)
    }
    listed = section_schema("prices[]", ListedPrice, _MEANT)
    whole = {"$schema": DIALECT, "title": "benchgate prices", **section_schema("", PriceFile, _MEANT)}
    return {**whole, "$defs": {ListedPrice.__name__: listed, **shared}}
