"""A file of prices by deployment and day."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date, timedelta
from typing import Self

from pydantic import ValidationError, model_validator

from benchgate.errors import Problem, SuiteError, nearest, suggestion
from benchgate.suite.deployment import PriceTerms, TokenPrices
from benchgate.suite.messages import Slot, faults_of
from benchgate.suite.types import Day, Kind, Price, Section, Text, key
from benchgate.suite.yaml import Document, Fault, read_text


class ListedPrice(Section):
    """Price of a deployment by the hour or by the token, from one day to another, both included."""

    deployment: Text | None = key("Name of the deployment in the suites; or give `accelerator`", default=None)
    accelerator: Kind | None = key("Kind of accelerator, for deployments without a price by name", default=None)
    price: Price | None = key("Price of one accelerator per hour; or give `token_prices`", default=None)
    price_terms: PriceTerms | None = key(
        "How the accelerators were bought, and what is paid beside the price", default=None
    )
    token_prices: TokenPrices | None = key("Prices per token of a hosted model, by its `deployment`", default=None)
    begins: Day = key("First day, in UTC; all earlier days if left out", default=date.min, alias="from")
    until: Day = key("Last day, in UTC; no end if left out", default=date.max)

    @model_validator(mode="after")
    def _keys_fit_together(self) -> Self:
        if self.until < self.begins:
            raise ValueError(f"`until` {self.until} is before `from` {self.begins}")
        if (self.deployment is None) == (self.accelerator is None):
            raise ValueError("needs exactly one of `deployment` and `accelerator`")
        if self.deployment is None and self.token_prices is not None:
            raise ValueError("`token_prices` need a `deployment`, not an `accelerator`")
        if (self.price is None) == (self.token_prices is None):
            raise ValueError("needs exactly one of `price` and `token_prices`")
        if self.price is None and self.price_terms is not None:
            raise ValueError("`price_terms` are the terms of a `price`, and tokens have none; keep one of the two")
        return self

    @property
    def as_keys(self) -> dict[str, object]:
        """Price as the keys of a deployment."""
        return {"price": self.price, "price_terms": self.price_terms, "token_prices": self.token_prices}

    @property
    def owner(self) -> str:
        """Owner of the price, in words."""
        return f'"{self.deployment}"' if self.deployment is not None else f"accelerator {self.accelerator}"

    def days_from(self, day: date) -> int:
        """Return the distance to a day, in days; 0 for each of its own days."""
        return max((self.begins - day).days, (day - self.until).days, 0)


class PriceFile(Section):
    """Content of a file of prices."""

    prices: tuple[ListedPrice, ...] = key("Prices of deployments, each from one day to another", min_length=1)


@dataclass(frozen=True, slots=True)
class Prices:
    """Prices with their places in the file; no two are of one deployment on one day."""

    document: Document
    listed: Sequence[ListedPrice]

    def on(self, day: date, deployment: str, accelerator: str | None) -> ListedPrice | None:
        """Return the price of a deployment on a day; None if the file has none.

        A price by name comes before one by accelerator. If the file has the name on any day, prices by accelerator do
        not count: an expired price by name is not replaced silently.
        """
        own = self._own(deployment, accelerator)
        return next((self.listed[number] for number in own if self.listed[number].days_from(day) == 0), None)

    def entry_of(self, listed: ListedPrice) -> dict[str, object]:
        """Return an entry as plain JSON, with its sums as they are written."""
        number = next(number for number, one in enumerate(self.listed) if one is listed)
        entries = self.document.data["prices"]
        written = entries[number] if isinstance(entries, list) else None
        assert isinstance(written, dict), "it was read as a price"
        return {key: written[key] for key in _SHOWN_KEYS if key in written}

    def lacking(self, day: date, deployment: str, accelerator: str | None) -> Problem:
        """Return the problem that a deployment has no price on a day, at the line of the nearest one."""
        own, lack = self._own(deployment, accelerator), f'"{deployment}" has no price on {day}'
        if not own:
            names = [one.deployment for one in self.listed if one.deployment is not None]
            kinds = [one.accelerator for one in self.listed if one.accelerator is not None]
            remedy = suggestion(deployment, names)
            if nearest(deployment, names) is None:
                remedy = f"add one by its name; the file has {', '.join(dict.fromkeys(names)) or 'no names'}"
            if accelerator is not None and kinds:
                remedy = f'its accelerator "{accelerator}" has none either; {suggestion(accelerator, kinds)}'
            elif accelerator is None and kinds and nearest(deployment, names) is None:
                known = ", ".join(dict.fromkeys(kinds))
                remedy = f"add one by its name, or say in the suite which `accelerator` it runs on, of {known}"
            return self.document.problem(Fault(("prices",), f"{lack}; {remedy}"))
        number = min(own, key=lambda at: self.listed[at].days_from(day))
        near = self.listed[number]
        why = f"this one ended on {near.until}" if near.until < day else f"this one begins on {near.begins}"
        if near.deployment is not None and any(one.accelerator == accelerator for one in self.listed if accelerator):
            why += f", and prices by name replace those of accelerator {accelerator} on every day"
        return self.document.problem(Fault(("prices", number), f"{lack}: {why}; add one for that day"))

    def _own(self, deployment: str, accelerator: str | None) -> list[int]:
        """Return the positions of a deployment's prices: those by name, else those by accelerator."""
        by_name = [number for number, one in enumerate(self.listed) if one.deployment == deployment]
        if by_name or accelerator is None:
            return by_name
        return [number for number, one in enumerate(self.listed) if one.accelerator == accelerator]


_SHOWN_KEYS = ("deployment", "accelerator", "from", "until", "price", "token_prices")


def parse_prices(written: str, source: str) -> Prices:
    """Parse a file of prices. `source` is its name. Raises SuiteError with every problem."""
    document = read_text(written, source, "file of prices")
    if document.problems:
        raise SuiteError(document.problems)
    try:
        found = PriceFile.model_validate(document.data)
    except ValidationError as error:
        raise SuiteError([document.problem(fault) for fault in faults_of(error, Slot(PriceFile, ()))]) from None
    for number, one in enumerate(found.prices):
        for at, earlier in enumerate(found.prices[:number]):
            both = (one.deployment, one.accelerator) == (earlier.deployment, earlier.accelerator)
            if not both or one.begins > earlier.until or earlier.begins > one.until:
                continue
            if earlier.begins == one.begins:
                begins = "before all days, for neither has `from`" if one.begins == date.min else f"on {one.begins}"
                remedy = f"let one of them begin later, or remove it: both begin {begins}"
            else:
                first = at if earlier.begins < one.begins else number
                last_day = max(one.begins, earlier.begins) - timedelta(days=1)
                remedy = f"write `until: {last_day}` in prices[{first}], the day before the other begins"
            message = f"{one.owner} has another price for the same days, prices[{at}]; {remedy}"
            raise SuiteError([document.problem(Fault(("prices", number), message))])
    return Prices(document, found.prices)
