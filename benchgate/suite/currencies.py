"""Sums in other currencies, as a file of prices may have them, as sums in dollars: text to text, before it is read."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from decimal import Decimal
from typing import Annotated

from pydantic import AfterValidator, Field, Strict

from benchgate.suite.fields import Expected
from benchgate.suite.text import Document, Fault, Plain
from benchgate.units import show_found

_SUM = re.compile(r"(?P<sum>[0-9]{1,9}(?:\.[0-9]{1,9})?) ?(?P<code>[A-Z]{3})(?P<of> ?/.+)")
_OF_MONEY = ("price", "price_terms", "token_prices")

_CODE = re.compile("[A-Z]{3}")


def _codes(rates: dict[str, float]) -> dict[str, float]:
    wrong = next((code for code in rates if code == "USD" or _CODE.fullmatch(code) is None), None)
    if wrong is not None:
        raise ValueError(f"{show_found(wrong)} is no other currency; write its three letters, like EUR: 1.08")
    return rates


Rates = Annotated[
    dict[str, Annotated[float, Strict(), Field(gt=0, le=1000), Expected("dollars for one of it, like 1.08")]],
    AfterValidator(_codes),
]


def in_dollars(document: Document) -> dict[str, Plain]:
    """The data of a file of prices with every sum of another currency in dollars, by the rates that it states.

    A rate of an entry goes before that of the file. What has no rate, or one that is none, stays as it is.
    """
    entries, common = document.data.get("prices"), _rates(document.data.get("usd_per"))
    if not isinstance(entries, list):
        return document.data
    return {**document.data, "prices": [_entry(entry, common) for entry in entries]}


def without_rate(fault: Fault, data: Plain) -> Fault:
    """A fault of data that `in_dollars` gave; where it is of a sum in a currency without a rate, what to write."""
    found = data
    for part in fault.path:
        if isinstance(found, list) and isinstance(part, int):
            found = found[part]
        else:
            found = found.get(str(part)) if isinstance(found, dict) else None
    left = _SUM.fullmatch(found) if isinstance(found, str) else None
    if left is None or left["code"] == "USD":
        return fault
    message = f"what 1 {left['code']} is in dollars is not known; state it, like usd_per: {{{left['code']}: 1.08}}"
    return replace(fault, message=message)


def _entry(entry: Plain, common: Mapping[str, Decimal]) -> Plain:
    if not isinstance(entry, dict):
        return entry
    rates = {"USD": Decimal(1), **common, **_rates(entry.get("usd_per"))}
    return {key: _converted(value, rates) if key in _OF_MONEY else value for key, value in entry.items()}


def _converted(value: Plain, rates: Mapping[str, Decimal]) -> Plain:
    if isinstance(value, dict):
        return {key: _converted(inner, rates) for key, inner in value.items()}
    found = _SUM.fullmatch(value) if isinstance(value, str) else None
    if found is None or found["code"] not in rates:
        return value
    return f"${Decimal(found['sum']) * rates[found['code']]:f}{found['of']}"


def _rates(found: Plain) -> dict[str, Decimal]:
    """Those that may be one: whether they are is for the schema to say."""
    rates = found if isinstance(found, dict) else {}
    return {
        code: Decimal(str(rate))
        for code, rate in rates.items()
        if isinstance(rate, int | float) and not isinstance(rate, bool)
    }
