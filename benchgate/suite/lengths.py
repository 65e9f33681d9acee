"""Lengths and pauses that vary: one value, or a distribution that every request draws its own from."""

from __future__ import annotations

from typing import Annotated, Any, Self

from pydantic import (
    BeforeValidator,
    Field,
    SerializerFunctionWrapHandler,
    Strict,
    ValidationInfo,
    model_serializer,
    model_validator,
)

from benchgate.suite.fields import Duration, Expected, StrictSection, Text, Tokens, is_stored
from benchgate.suite.written import WHOLE, Written, text
from benchgate.units import PATTERNS, parse_duration_s, parse_tokens, show_found

MOST_TOKENS = 1_000_000

Count = Annotated[Tokens, Field(ge=1, le=MOST_TOKENS)]
Spread = Annotated[float, Strict(), Field(gt=0, le=10)]


class Normal(StrictSection):
    """A normal distribution, rounded to whole tokens and held between its bounds."""

    mean_tokens: Count = Field(alias="mean")
    sd_tokens: Count = Field(alias="sd")
    least_tokens: Count = Field(default=1, alias="min")
    most_tokens: Count = Field(default=MOST_TOKENS, alias="max")

    @model_validator(mode="after")
    def _in_order(self) -> Self:
        _check_between(self.least_tokens, self.mean_tokens, self.most_tokens, "mean")
        return self


class LogNormal(StrictSection):
    """A lognormal distribution: half the values are below `median`, and `sigma` is the spread of their logarithms."""

    median_tokens: Count = Field(alias="median")
    sigma: Spread
    least_tokens: Count = Field(default=1, alias="min")
    most_tokens: Count = Field(default=MOST_TOKENS, alias="max")

    @model_validator(mode="after")
    def _in_order(self) -> Self:
        _check_between(self.least_tokens, self.median_tokens, self.most_tokens, "median")
        return self


class Lengths(StrictSection):
    """Numbers of tokens by a distribution: exactly one of these."""

    uniform: tuple[Count, Count] | None = None  # least and most, both among them
    normal: Normal | None = None
    lognormal: LogNormal | None = None
    file: Text | None = None  # a CSV with a header: lengths that were seen, each as likely as the next

    @model_validator(mode="after")
    def _one_kind(self) -> Self:
        given = [name for name in ("uniform", "normal", "lognormal", "file") if getattr(self, name) is not None]
        if len(given) != 1:
            raise ValueError("lengths are exactly one of `uniform`, `normal`, `lognormal` and `file`")
        if self.uniform is not None and self.uniform[0] >= self.uniform[1]:
            raise ValueError("`uniform` is the least and the most, like [64, 512]")
        return self

    @model_serializer(mode="wrap")
    def _only_its_kind(self, serialise: SerializerFunctionWrapHandler) -> dict[str, Any]:
        written: dict[str, Any] = serialise(self)
        return {key: value for key, value in written.items() if value is not None}

    @property
    def most_tokens(self) -> int | None:
        """The largest that can be drawn; None where a file says it."""
        if self.uniform is not None:
            return self.uniform[1]
        bounded = self.normal or self.lognormal
        return None if bounded is None else bounded.most_tokens

    @property
    def least_tokens(self) -> int:
        """The smallest that can be drawn; 1 where a file says it."""
        if self.uniform is not None:
            return self.uniform[0]
        bounded = self.normal or self.lognormal
        return 1 if bounded is None else bounded.least_tokens

    @property
    def shown(self) -> str:
        """For a person: `64 to 512`."""
        if self.uniform is not None:
            return f"{self.uniform[0]:,} to {self.uniform[1]:,}"
        if self.normal is not None:
            return f"about {self.normal.mean_tokens:,} (normal, sd {self.normal.sd_tokens:,})"
        if self.lognormal is not None:
            return f"about {self.lognormal.median_tokens:,} (lognormal, sigma {self.lognormal.sigma:g})"
        return f"as in {self.file}"


class LogNormalPause(StrictSection):
    """A lognormal distribution of pauses."""

    median_s: Duration = Field(alias="median")
    sigma: Spread


class Pauses(StrictSection):
    """Pauses by a distribution: exactly one of these."""

    uniform: tuple[Duration, Duration] | None = None
    lognormal: LogNormalPause | None = None

    @model_validator(mode="after")
    def _one_kind(self) -> Self:
        if (self.uniform is None) == (self.lognormal is None):
            raise ValueError("pauses are exactly one of `uniform` and `lognormal`")
        if self.uniform is not None and self.uniform[0] >= self.uniform[1]:
            raise ValueError("`uniform` is the least and the most, like [1s, 5s]")
        return self


def _check_between(least: int, middle: int, most: int, name: str) -> None:
    if not least <= middle <= most or least == most:
        raise ValueError(f"`{name}` lies outside of `min` and `max`, or they leave no room; correct one of them")


def _length(found: object, info: ValidationInfo) -> object:
    """A count, or a distribution of them."""
    if isinstance(found, Lengths):
        return found
    if isinstance(found, dict):
        return _section(Lengths, found, info)
    tokens = found if is_stored(info) else parse_tokens(found)
    if not isinstance(tokens, int) or not 1 <= tokens <= MOST_TOKENS:
        raise ValueError(f'found {show_found(found)}; expected a count like "128 tokens", at most {MOST_TOKENS:,}')
    return tokens


def _pause(found: object, info: ValidationInfo) -> object:
    if isinstance(found, Pauses):
        return found
    if isinstance(found, dict):
        return _section(Pauses, found, info)
    return found if is_stored(info) else parse_duration_s(found)


def _section(model: type[StrictSection], found: object, info: ValidationInfo) -> StrictSection:
    """A suite from the store spells fields by their names, one from a file by their keys."""
    stored = is_stored(info)
    return model.model_validate(found, context=info.context, by_name=stored, by_alias=not stored)


_COUNTED = Written.of({**WHOLE, "minimum": 1, "maximum": MOST_TOKENS}, text(PATTERNS[parse_tokens]))
Length = Annotated[
    int | Lengths,
    BeforeValidator(_length),
    Expected('a count like "128 tokens", or lengths like {uniform: [64, 512]}'),
    _COUNTED,
]
Turns = Annotated[
    int | Lengths,
    BeforeValidator(_length),
    Expected("a number of turns like 4, or numbers like {uniform: [2, 6]}"),
    _COUNTED,
]
Pause = Annotated[
    float | Pauses,
    BeforeValidator(_pause),
    Expected('a duration like "2s", or pauses like {uniform: [1s, 5s]}'),
    Written.of(text(PATTERNS[parse_duration_s])),
]


def shown_length(length: int | Lengths) -> str:
    """For a person: `128`, or `64 to 512`."""
    return f"{length:,}" if isinstance(length, int) else length.shown
