"""A file of prices by deployment and day: what past runs would have cost, which stays apart from what they did cost."""

from __future__ import annotations

from datetime import date
from typing import Annotated, Self

from pydantic import BeforeValidator, Field, ValidationError, ValidationInfo, model_validator

from benchgate.errors import SuiteError
from benchgate.suite.fields import Expected, Price, StrictSection, Text, is_stored
from benchgate.suite.price_terms import PriceTerms
from benchgate.suite.text import Document, Fault, read_text
from benchgate.suite.vocabulary import Slot
from benchgate.suite.waivers import parse_day
from benchgate.suite.wording import faults_of


def _day(found: object, info: ValidationInfo) -> object:
    return found if is_stored(info) or not isinstance(found, str) else parse_day(found)


Day = Annotated[date, BeforeValidator(_day), Expected("a day like 2026-12-31")]


class ListedPrice(StrictSection):
    """What one accelerator of a deployment costs, from a day on and until another one, both included."""

    deployment: Text  # by its name in the suites
    price: Price
    price_terms: PriceTerms = PriceTerms()
    begins: Day = Field(default=date.min, alias="from")
    until: Day = date.max

    @model_validator(mode="after")
    def _begins_before_it_ends(self) -> Self:
        if self.until < self.begins:
            raise ValueError(f"`until` {self.until} is before `from` {self.begins}")
        return self

    @property
    def usd_per_hour(self) -> float:
        """By its terms."""
        return self.price_terms.usd_per_hour(self.price)


class PriceFile(StrictSection):
    """Prices, of which no two are of one deployment on one day."""

    prices: tuple[ListedPrice, ...] = Field(min_length=1)

    def on(self, deployment: str, day: date) -> ListedPrice | None:
        """The price of a deployment on a day; None where the file has none."""
        fitting = (one for one in self.prices if one.deployment == deployment and one.begins <= day <= one.until)
        return next(fitting, None)


def parse_prices(text: str, source: str) -> PriceFile:
    """The prices that a text holds. `source` is what to call it. Raises SuiteError with every mistake in it."""
    document = read_text(text, source, "file of prices")
    if document.problems:
        raise SuiteError(document.problems)
    try:
        found = PriceFile.model_validate(document.data)
    except ValidationError as error:
        raise SuiteError([document.problem(fault) for fault in faults_of(error, Slot(PriceFile, ()))]) from None
    _refuse_two(document, found)
    return found


def _refuse_two(document: Document, found: PriceFile) -> None:
    for number, one in enumerate(found.prices):
        for earlier in found.prices[:number]:
            both = one.deployment == earlier.deployment
            if both and one.begins <= earlier.until and earlier.begins <= one.until:
                message = f'"{one.deployment}" has another price for the same days; let one end where the other begins'
                raise SuiteError([document.problem(Fault(("prices", number), message))])
