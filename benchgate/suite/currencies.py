"""Sums in other currencies, as a file of prices may have them, as sums in dollars: text to text, before it is read."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from decimal import Decimal
from typing import Annotated

from pydantic import AfterValidator, Field, Strict

from benchgate.suite.fields import Expected
from benchgate.suite.text import Document, Fault, Path, Plain
from benchgate.units import show_found

_SUM = re.compile(r"(?P<sum>[0-9]{1,9}(?:\.[0-9]{1,9})?) ?(?P<code>[A-Z]{3})(?P<of> ?/.+)")
SUM_PATTERN = re.sub(r"\(\?P<\w+>", "(?:", _SUM.pattern)
"""A sum of any currency, for readers of patterns that have no named groups."""

_OF_MONEY = ("price", "price_terms", "token_prices")
_AT_MONEY = {(key,) for key in _OF_MONEY}

_CODE = re.compile("[A-Z]{3}")
_MOST_USD = 1000  # for one of any currency


def _codes(rates: dict[str, float]) -> dict[str, float]:
    wrong = next((code for code in rates if code == "USD" or _CODE.fullmatch(code) is None), None)
    if wrong is not None:
        raise ValueError(f"{show_found(wrong)} is no other currency; write its three letters, like EUR: 1.08")
    return rates


Rates = Annotated[
    dict[str, Annotated[float, Strict(), Field(gt=0, le=_MOST_USD), Expected("dollars for one of it, like 1.08")]],
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


def as_written(fault: Fault, written: Plain, data: Plain) -> Fault | None:
    """A fault of the `data` that `in_dollars` gave, told of the sum as it is `written` there.

    Where that is in a currency without a rate, or spelled as no sum of a file is, it says what to write. None where
    the rate is wrong, which is told at the rate: mending that mends the sum.
    """
    ours, theirs = _at(written, fault.path), _at(data, fault.path)
    if not isinstance(ours, str):
        return fault
    left = _SUM.fullmatch(ours)
    if ours != theirs and isinstance(theirs, str):
        return replace(fault, message=fault.message.replace(show_found(theirs), show_found(ours)))
    stating = (written, _at(written, fault.path[:2])) if fault.path[2:3] in _AT_MONEY else ()
    if left is not None and any(_states(at, left["code"]) for at in stating):
        return None
    if left is not None and left["code"] != "USD":
        message = f"what 1 {left['code']} is in dollars is not known; state it, like usd_per: {{{left['code']}: 1.08}}"
        return replace(fault, message=message)
    meant = _meant(ours)
    return fault if meant is None else replace(fault, message=f"{show_found(ours)} is no sum; write it like {meant}")


def in_a_suite(fault: Fault, written: Plain) -> Fault:
    """A fault of a suite, which speaks of dollars alone; of a sum of another currency it says where that may stand."""
    found = _at(written, fault.path)
    if fault.path[:1] != ("deployments",) or not isinstance(found, str) or _other_code(found) in (None, "USD"):
        return fault
    other = "a sum of another currency stands in a file of prices, which `prices` names"
    return replace(fault, message=f"{fault.message}; {other}")


def rates_in(entry: Mapping[str, Plain], common: Plain) -> dict[str, float]:
    """What one of each currency that an entry has sums of is in dollars, by the entry or else by the file."""
    rates = {**_rates(common), **_rates(entry.get("usd_per"))}
    codes = {found["code"] for key in _OF_MONEY for text in _texts(entry.get(key)) if (found := _SUM.fullmatch(text))}
    return {code: float(rate) for code, rate in rates.items() if code in codes}


_SIGNS = {"$": "USD", "€": "EUR", "£": "GBP", "¥": "JPY", "₹": "INR"}
_SIGN = f"[{''.join(_SIGNS)}]|[A-Za-z]{{3}}"
_OTHERWISE = re.compile(rf"(?P<before>{_SIGN})?\s*(?P<sum>[0-9.]+)\s*(?P<after>{_SIGN})?\s*/\s*(?P<of>\S.*)")


def _meant(text: str) -> str | None:
    """How a sum is written that has the sign of a currency, or its letters elsewhere; None of what is no such thing."""
    found, code = _OTHERWISE.fullmatch(text.strip()), _other_code(text)
    if found is None or code is None:
        return None
    if code == "USD":
        return f"${found['sum']}/{found['of']}"
    return f"{found['sum']} {code}/{found['of']}, with what one is in dollars in `usd_per`"


def _other_code(text: str) -> str | None:
    """The currency of a sum of an hour or of tokens that is not spelled in dollars; None of what is no such thing."""
    found = _OTHERWISE.fullmatch(text.strip())
    sign = None if found is None or found["before"] == "$" else found["before"] or found["after"]
    return None if sign is None else _SIGNS.get(sign, sign.upper())


def _states(section: Plain, code: str) -> bool:
    """Whether a file or an entry has a rate of a currency, right or wrong, or rates of which none can be read."""
    rates = section.get("usd_per") if isinstance(section, dict) else None
    return rates is not None and (not isinstance(rates, dict) or code in rates)


def _at(data: Plain, path: Path) -> Plain:
    """What stands at a path; None where nothing does."""
    for part in path:
        if isinstance(data, list) and isinstance(part, int):
            data = data[part] if part < len(data) else None
        else:
            data = data.get(str(part)) if isinstance(data, dict) else None
    return data


def _texts(value: Plain) -> Iterator[str]:
    if isinstance(value, dict):
        for inner in value.values():
            yield from _texts(inner)
    elif isinstance(value, str):
        yield value


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
        if isinstance(rate, int | float) and not isinstance(rate, bool) and 0 < rate <= _MOST_USD
    }
