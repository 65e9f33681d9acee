"""What may stand in a suite's text where its type is that of what is read from it: for editors, as JSON Schema says it.

A duration is a number once it is read and a text like `500ms` before, and an editor sees the text.

The kinds of values a suite's keys take: human units parsed into base units, names, truths, and strict sections.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal, dataclass_transform

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainSerializer,
    Strict,
    ValidationInfo,
    ValidatorFunctionWrapHandler,
    WrapValidator,
)

from benchgate import units
from benchgate.model.arrivals import parse_arrival

Form = Mapping[str, object]
"""A schema of JSON Schema 2020-12, without references."""


@dataclass(frozen=True, slots=True, eq=False)
class Written:
    """The forms that a value may have in the text, beside that of the section that stands there, if one does.

    Compared by identity: what a type is annotated with must be hashable, and forms are not.
    """

    forms: tuple[Form, ...]

    @classmethod
    def of(cls, *forms: Form) -> Written:
        """One of several forms."""
        return cls(forms)


def text(pattern: str | None = None) -> Form:
    """A text, of a pattern where there is one, else not empty."""
    return {"type": "string", "minLength": 1} if pattern is None else {"type": "string", "pattern": pattern}


def word(*words: str) -> Form:
    """One of some words."""
    return {"enum": list(words)}


WHOLE: Form = {"type": "integer"}
MAPPING: Form = {"type": "object", "minProperties": 1}


@dataclass(frozen=True, slots=True)
class Expected:
    """What to write in a field, as a phrase for error messages. Of a `quantity` a bare number lacks its unit."""

    phrase: str
    quantity: bool = False


def _unit(
    parse: Callable[[object], float], phrase: str, spelled: Callable[[object], float] | None = None
) -> tuple[BeforeValidator, Expected, Written]:
    """Parse human units from a suite; a suite read back from the store already has base units.

    `spelled` is the parser of `units` that `parse` goes through, where it is not that itself.
    """

    def read(value: object, info: ValidationInfo) -> object:
        return value if is_stored(info) else parse(value)

    return BeforeValidator(read), Expected(phrase), Written.of(text(units.PATTERNS[spelled or parse]))


def is_stored(info: ValidationInfo) -> bool:
    """Whether what is read comes back from the store: every default filled in, every quantity in base units."""
    return bool((info.context or {}).get("stored"))


def share(text: object) -> float:
    """`95%` → 0.95, of a whole: at most 100%."""
    ratio = units.parse_percent_ratio(text)
    if ratio > 1:
        raise ValueError(f"{units.show_found(text)} is more than the whole; write at most 100%")
    return ratio


def positive_share(text: object) -> float:
    """The same, above 0%."""
    ratio = share(text)
    if ratio == 0:
        raise ValueError(f"{units.show_found(text)} asks for nothing; write more than 0%")
    return ratio


_NAME = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$"

Duration = Annotated[float, *_unit(units.parse_duration_s, 'a duration like "500ms" or "30s"')]
Span = Annotated[float, *_unit(units.parse_span_s, 'a time like "5ms", or "0ms"'), Field(ge=0)]
Rate = Annotated[float, *_unit(units.parse_rate_rps, 'a rate like "8/s"')]
Percent = Annotated[float, *_unit(share, 'a percentage like "1%"', units.parse_percent_ratio), Field(ge=0, le=1)]
PositivePercent = Annotated[
    float, *_unit(positive_share, 'a percentage like "95%"', units.parse_percent_ratio), Field(gt=0, le=1)
]
Tokens = Annotated[
    int,
    *_unit(units.parse_tokens, 'a count like "128 tokens"'),
    Written.of(WHOLE, text(units.PATTERNS[units.parse_tokens])),
]
Size = Annotated[int, *_unit(units.parse_size_bytes, 'a size like "8GiB"'), Field(ge=64 * 1024**2)]
Price = Annotated[float, *_unit(units.parse_price_usd_per_hour, 'a price like "$32/h"')]
TokenPrice = Annotated[float, *_unit(units.parse_usd_per_million, 'a price like "$0.15/M", of a million tokens')]
Watts = Annotated[float, *_unit(units.parse_watts, 'a power like "700 W"')]
EnergyPrice = Annotated[float, *_unit(units.parse_usd_per_kwh, 'a price like "$0.12/kWh"')]
Factor = Annotated[float, *_unit(units.parse_multiple, 'a multiple like "1.3x"'), Field(ge=1, le=10)]
Money = Annotated[float, *_unit(units.parse_usd, 'a sum of money like "40 USD"')]
Whole = Annotated[int, Strict()]  # pydantic would take "8", 8.0 and true for a whole number
Flag = Annotated[bool, Strict()]  # and "no" for false
Text = Annotated[str, Field(min_length=1)]
_KIND = "[^0-9. ]"


def _kind(found: object, info: ValidationInfo) -> object:
    """A number where a kind is wanted is how many there are: priced as one, they would cost a part of what they do."""
    number = isinstance(found, int | float) and not isinstance(found, bool)
    digits = isinstance(found, str) and found != "" and re.search(_KIND, found) is None
    if is_stored(info) or not (number or digits):
        return found
    meant = f"did you mean `accelerators: {str(found).strip()}`? That is how many a deployment holds"
    raise ValueError(f'{units.show_found(found)} is a number and no kind like "H100"; {meant}')


Kind = Annotated[
    Text, BeforeValidator(_kind), Expected('the kind of an accelerator, like "H100"'), Written.of(text(_KIND))
]
_DECLARED_BY_KEYS = ("accelerators", "engine")


def _needs_permission(found: object, handler: ValidatorFunctionWrapHandler, info: ValidationInfo) -> object:
    """Refuse what the deployments declare themselves, except in a stored suite, which may still name it."""
    if found in _DECLARED_BY_KEYS:
        if is_stored(info):
            return found
        what = f"what the deployments say with `{found}` is the change itself"
        raise ValueError(f"{what} and needs no permission; remove it")
    return handler(found)


SharedField = Annotated[
    Literal[
        "engine_version", "engine_flags", "context", "slots", "threads", "vocabulary", "chat_template", "hardware",
        "request_fields", "proxy",
    ],
    WrapValidator(_needs_permission), PlainSerializer(str),
]  # fmt: skip
"""What both arms must share unless the policy lets it differ, or the deployments declare it."""
Name = Annotated[
    str,
    Field(pattern=_NAME),
    Expected("a name of at most 64 letters, digits, `.`, `_` and `-` that starts with a letter or digit"),
    Written.of(text(_NAME)),
]


def _checked_arrival(text: str) -> str:
    parse_arrival(text)
    return text


ArrivalText = Annotated[
    str,
    AfterValidator(_checked_arrival),
    Expected('"poisson", "constant" or "gamma:2", whose gaps vary twice as much'),
    Written.of(text("^(?:poisson|constant|gamma:.+)$")),
]


def key(description: str, **settings: Any) -> Any:
    """Return a field of a section; `settings` are those of pydantic's `Field`."""
    return Field(description=description, **settings)


def optional(description: str, default: Any = None, **settings: Any) -> Any:
    """Return a field that is left out of the stored suite while it has its default: such suites keep their hashes."""
    if "default_factory" not in settings:
        settings["default"] = default
    return key(description, exclude_if=lambda value: value == default, **settings)


@dataclass_transform(kw_only_default=True, field_specifiers=(key, optional))
class Section(BaseModel):
    """A section of the language: unknown keys are errors, and it is immutable."""

    # An input may be a secret in the wrong place, so no error repeats one.
    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True)
