"""A file of prices by deployment and day: what a suite's deployments cost, or what past runs would have cost."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date
from typing import Annotated, Self

from pydantic import BeforeValidator, Field, ValidationError, ValidationInfo, model_validator

from benchgate.errors import Problem, SuiteError
from benchgate.suite.currencies import Rates, in_dollars, without_rate
from benchgate.suite.fields import Expected, Price, StrictSection, Text, is_stored
from benchgate.suite.price_terms import PriceTerms, TokenPrices
from benchgate.suite.text import Document, Fault, read_text
from benchgate.suite.vocabulary import Slot, suggestion
from benchgate.suite.waivers import parse_day
from benchgate.suite.wording import faults_of


def _day(found: object, info: ValidationInfo) -> object:
    return found if is_stored(info) or not isinstance(found, str) else parse_day(found)


Day = Annotated[date, BeforeValidator(_day), Expected("a day like 2026-12-31")]


class ListedPrice(StrictSection):
    """What a deployment costs, from a day on and until another one, both included: by the hour or by the token."""

    deployment: Text | None = None  # by its name in the suites
    accelerator: Text | None = None  # or all deployments on accelerators that the suites call so
    price: Price | None = None  # of one accelerator
    price_terms: PriceTerms | None = None
    token_prices: TokenPrices | None = None
    begins: Day = Field(default=date.min, alias="from")
    until: Day = date.max
    usd_per: Rates = Field(default_factory=dict)  # before those of the file

    @model_validator(mode="after")
    def _begins_before_it_ends(self) -> Self:
        if self.until < self.begins:
            raise ValueError(f"`until` {self.until} is before `from` {self.begins}")
        return self

    @model_validator(mode="after")
    def _of_something(self) -> Self:
        if (self.deployment is None) == (self.accelerator is None):
            raise ValueError("needs exactly one of `deployment` and `accelerator`")
        if self.deployment is None and self.token_prices is not None:
            raise ValueError("tokens are paid for by `deployment`, whatever its accelerators are")
        return self

    @model_validator(mode="after")
    def _by_the_hour_or_by_the_token(self) -> Self:
        if (self.price is None) == (self.token_prices is None):
            raise ValueError("needs exactly one of `price` and `token_prices`")
        if self.price is None and self.price_terms is not None:
            raise ValueError("`price_terms` are the terms of a `price`, and tokens have none; keep one of the two")
        return self

    @property
    def usd_per_hour(self) -> float | None:
        """Of one accelerator, by its terms; None where tokens are paid for."""
        if self.price is None or self.price_terms is None:
            return self.price
        return self.price_terms.usd_per_hour(self.price)

    @property
    def in_use_factor(self) -> float:
        """So many times the cost at full use is that as it is used."""
        return 1.0 if self.price_terms is None else self.price_terms.in_use_factor

    @property
    def said(self) -> dict[str, object]:
        """As the keys of a deployment."""
        return {"price": self.price, "price_terms": self.price_terms, "token_prices": self.token_prices}

    @property
    def called(self) -> str:
        """Whose price it is, in words."""
        return f'"{self.deployment}"' if self.deployment is not None else f"accelerator {self.accelerator}"

    def days_from(self, day: date) -> int:
        """How far from a day it is, in days; 0 on each of its own."""
        return max((self.begins - day).days, (day - self.until).days, 0)


class PriceFile(StrictSection):
    """What a file of prices holds."""

    usd_per: Rates = Field(default_factory=dict)  # dollars for one of another currency
    prices: tuple[ListedPrice, ...] = Field(min_length=1)


@dataclass(frozen=True, slots=True)
class Prices:
    """Prices, of which no two are of one deployment on one day, and where they stand."""

    document: Document
    listed: Sequence[ListedPrice]

    def on(self, day: date, deployment: str, accelerator: str | None) -> ListedPrice | None:
        """The price of a deployment on a day: by its name, else by what it runs on; None where the file has none."""
        there = [one for one in self.listed if one.days_from(day) == 0]
        by_name = [one for one in there if one.deployment == deployment]
        by_kind = [one for one in there if accelerator is not None and one.accelerator == accelerator]
        return next(iter([*by_name, *by_kind]), None)

    def lacking(self, day: date, deployment: str, accelerator: str | None) -> Problem:
        """That a deployment has no price on a day, at the line of its price that is nearest to that day."""
        own = [
            number
            for number, one in enumerate(self.listed)
            if one.deployment == deployment or (accelerator is not None and one.accelerator == accelerator)
        ]
        told = f'"{deployment}" has no price on {day}'
        if not own:
            names = [name for one in self.listed if (name := one.deployment or one.accelerator) is not None]
            return self.document.problem(Fault(("prices",), f"{told}; {suggestion(deployment, names)}"))
        number = min(own, key=lambda at: self.listed[at].days_from(day))
        near = self.listed[number]
        why = f"this one ended on {near.until}" if near.until < day else f"this one begins on {near.begins}"
        return self.document.problem(Fault(("prices", number), f"{told}: {why}; add one for that day"))


def parse_prices(text: str, source: str) -> Prices:
    """The prices that a text holds. `source` is what to call it. Raises SuiteError with every mistake in it."""
    document = read_text(text, source, "file of prices")
    if document.problems:
        raise SuiteError(document.problems)
    data = in_dollars(document)
    try:
        found = PriceFile.model_validate(data)
    except ValidationError as error:
        faults = [without_rate(fault, data) for fault in faults_of(error, Slot(PriceFile, ()))]
        raise SuiteError([document.problem(fault) for fault in faults]) from None
    _refuse_two(document, found.prices)
    return Prices(document, found.prices)


def _refuse_two(document: Document, listed: Sequence[ListedPrice]) -> None:
    for number, one in enumerate(listed):
        for earlier in listed[:number]:
            both = (one.deployment, one.accelerator) == (earlier.deployment, earlier.accelerator)
            if both and one.begins <= earlier.until and earlier.begins <= one.until:
                message = f"{one.called} has another price for the same days; let one end where the other begins"
                raise SuiteError([document.problem(Fault(("prices", number), message))])
