"""What is to be known of a price beside itself: how it was bought, what is lost of it, and what is paid with it."""

from __future__ import annotations

from typing import Any, Literal, Self

from pydantic import Field, ValidationInfo, model_validator

from benchgate.model.price import serving_usd_per_hour
from benchgate.suite.types import (
    EnergyPrice,
    Factor,
    Percent,
    PositivePercent,
    StrictSection,
    TokenPrice,
    Watts,
    is_stored,
)


class Energy(StrictSection):
    """What one accelerator draws, with its share of the machine around it, and what that costs."""

    draw_w: Watts = Field(alias="draw")
    usd_per_kwh: EnergyPrice = Field(alias="price")
    pue: Factor = 1.0  # power usage effectiveness: what the building draws for it

    @property
    def usd_per_hour(self) -> float:
        """Of one accelerator while it runs."""
        return self.draw_w / 1000 * self.pue * self.usd_per_kwh


class TokenPrices(StrictSection):
    """What a hosted model costs by the token, each for a million."""

    input_usd: TokenPrice = Field(alias="input")
    cached_input_usd: TokenPrice | None = Field(default=None, alias="cached_input")  # as the rest of it unless said
    output_usd: TokenPrice = Field(alias="output")

    @model_validator(mode="after")
    def _costs_something(self) -> Self:
        if self.input_usd == 0 == self.output_usd:
            raise ValueError("tokens that cost nothing have no price; leave `token_prices` out")
        return self

    def remembered(self) -> dict[str, float]:
        """As the run keeps it: dollars for a million tokens of each kind."""
        cached = self.input_usd if self.cached_input_usd is None else self.cached_input_usd
        return {"input": self.input_usd, "cached_input": cached, "output": self.output_usd}


class PriceTerms(StrictSection):
    """The terms of a deployment's `price`; each that is not said costs nothing."""

    commitment: Literal["on_demand", "reserved", "spot", "owned"] = "on_demand"
    interruption_ratio: Percent = Field(default=0.0, alias="interruption")  # of paid time that is lost
    energy: Energy | None = None
    overhead_ratio: Percent = Field(default=0.0, alias="overhead")  # paid beside each dollar
    utilisation_ratio: PositivePercent = Field(default=1.0, alias="utilisation")  # of paid time at the measured pace

    @model_validator(mode="after")
    def _fits(self, info: ValidationInfo) -> Self:
        if self.interruption_ratio >= 1:
            raise ValueError("an `interruption` of 100% leaves no time that is paid for and served in; write less")
        if self.interruption_ratio and self.commitment != "spot":
            raise ValueError(
                f"`interruption` is what `commitment: spot` loses, and this is {self.commitment}; keep one"
            )
        if not is_stored(info):
            self._fits_its_commitment()
        return self

    def _fits_its_commitment(self) -> None:
        """A term that another commitment has, or that this one lacks, makes an hour that costs another sum."""
        if self.commitment == "spot" and "interruption_ratio" not in self.model_fields_set:
            raise ValueError(
                "what `commitment: spot` loses of its paid time is not said; add it, like interruption: 5%, or 0%"
            )
        if self.energy is not None and self.commitment != "owned":
            raise ValueError(
                f"`energy` is paid beside `commitment: owned`, and this is {self.commitment}, whose price has it; "
                "remove it"
            )

    def usd_per_hour(self, list_usd_per_hour: float) -> float:
        """What an hour costs in which an accelerator of this price serves."""
        energy = 0.0 if self.energy is None else self.energy.usd_per_hour
        return serving_usd_per_hour(
            list_usd_per_hour, interruption_ratio=self.interruption_ratio, energy_usd_per_hour=energy
        )

    def remembered(self, list_usd_per_hour: float) -> dict[str, Any]:
        """As the run keeps it beside the price that follows from it."""
        return {"list_usd_per_hour": list_usd_per_hour, **self.model_dump(mode="json", exclude_none=True)}
