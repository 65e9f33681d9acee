"""Terms of a price: energy, interruptions, overhead, utilisation, and prices per token."""

from __future__ import annotations

from typing import Any, Literal, Self

from pydantic import ValidationInfo, model_validator

from benchgate.model.deployment import serving_usd_per_hour
from benchgate.suite.types import (
    EnergyPrice,
    Factor,
    Percent,
    PositivePercent,
    Section,
    TokenPrice,
    Watts,
    is_stored,
    key,
)


class Energy(Section):
    """Power of one accelerator, with its share of the machine, and its price."""

    draw_w: Watts = key("Power of one accelerator, with its share of the machine around it", alias="draw")
    usd_per_kwh: EnergyPrice = key("Price of energy", alias="price")
    pue: Factor = key(
        "Power usage effectiveness: power drawn by the building for each watt of the machine", default=1.0
    )

    @property
    def usd_per_hour(self) -> float:
        """Cost of energy for one accelerator and hour."""
        return self.draw_w / 1000 * self.pue * self.usd_per_kwh


class TokenPrices(Section):
    """Prices of a hosted model, per million tokens."""

    input_usd: TokenPrice = key("Price of prompt tokens", alias="input")
    cached_input_usd: TokenPrice | None = key(
        "Price of prompt tokens that the server reports as cached. Default: the price of `input`",
        default=None,
        alias="cached_input",
    )
    output_usd: TokenPrice = key("Price of answer tokens, reasoning included", alias="output")

    @model_validator(mode="after")
    def _costs_something(self) -> Self:
        if self.input_usd == 0 == self.output_usd:
            raise ValueError("tokens that cost nothing have no price; leave `token_prices` out")
        return self

    def to_stored(self) -> dict[str, float]:
        """Return the dollars per million tokens of each kind, as stored with a run."""
        cached = self.input_usd if self.cached_input_usd is None else self.cached_input_usd
        return {"input": self.input_usd, "cached_input": cached, "output": self.output_usd}


class PriceTerms(Section):
    """Terms of a deployment's `price`; by default they cost nothing."""

    commitment: Literal["on_demand", "reserved", "spot", "owned"] = key(
        "How the accelerators were bought; shown beside the price", default="on_demand"
    )
    interruption_ratio: Percent = key(
        "Share of the paid time that interruptions take. Only with `spot`, and required there (`0%` if nothing is "
        "lost). An hour of serving costs `price` / (1 - interruption)",
        default=0.0,
        alias="interruption",
    )
    energy: Energy | None = key(
        "Energy that an accelerator draws while it runs, added to `price`, which then covers wear. Only with `owned`",
        default=None,
    )
    overhead_ratio: Percent = key(
        "Paid in addition to each dollar: gateway, observability, idle replicas, on-call. Counts only in the costs in "
        "use",
        default=0.0,
        alias="overhead",
    )
    utilisation_ratio: PositivePercent = key(
        "Share of the paid time in which tokens flow at the measured pace. Counts only in the costs in use",
        default=1.0,
        alias="utilisation",
    )

    @model_validator(mode="after")
    def _fits(self, info: ValidationInfo) -> Self:
        if self.interruption_ratio >= 1:
            raise ValueError("an `interruption` of 100% leaves no time in service; write less")
        if self.interruption_ratio and self.commitment != "spot":
            raise ValueError(f"`interruption` is only for `commitment: spot`, and this is {self.commitment}; keep one")
        if is_stored(info):
            return self
        if self.commitment == "spot" and "interruption_ratio" not in self.model_fields_set:
            needed = "`commitment: spot` needs the share of paid time that interruptions take"
            raise ValueError(f"{needed}; add it, like interruption: 5%, or 0%")
        if self.energy is not None and self.commitment != "owned":
            included = f"and the {self.commitment} price includes it"
            raise ValueError(f"`energy` is only for `commitment: owned`, {included}; remove it")
        return self

    def usd_per_hour(self, list_usd_per_hour: float) -> float:
        """Return the cost of an hour in service of an accelerator with this list price."""
        energy = 0.0 if self.energy is None else self.energy.usd_per_hour
        return serving_usd_per_hour(
            list_usd_per_hour, interruption_ratio=self.interruption_ratio, energy_usd_per_hour=energy
        )

    def to_stored(self, list_usd_per_hour: float) -> dict[str, Any]:
        """Return list price and terms, as stored with a run."""
        return {"list_usd_per_hour": list_usd_per_hour, **self.model_dump(mode="json", exclude_none=True)}
