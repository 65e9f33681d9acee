"""Types of the values in a suite: human units parsed into base units, names, and strict sections.

`Expected` annotates a type with the phrase for error messages, `Written` with the JSON Schema of its text if that
differs from the parsed value.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import date
from typing import Annotated, Any, Literal, dataclass_transform

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    GetJsonSchemaHandler,
    PlainSerializer,
    Strict,
    ValidationInfo,
    ValidatorFunctionWrapHandler,
    WrapValidator,
)
from pydantic_core import CoreSchema

from benchgate import units
from benchgate.model.arrivals import parse_arrival

Form = Mapping[str, Any]  # a JSON Schema without references


class Written:
    """Spellings of a value in a suite; of a section, its short forms. `show` formats a default with its unit."""

    def __init__(self, *forms: Form, show: units.Show | None = None) -> None:
        self.forms, self.show = forms, show

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        found = handler(schema)
        sections = [form for form in found.get("anyOf", [found]) if "$ref" in form]
        forms = [{**found, **form} if found.get("type") == form.get("type") else dict(form) for form in self.forms]
        forms += sections
        return forms[0] if len(forms) == 1 else {"anyOf": forms}


def text(pattern: str | None = None) -> Form:
    """Return the form of a text that matches a pattern, or of any text that is not empty."""
    return {"type": "string", "minLength": 1} if pattern is None else {"type": "string", "pattern": pattern}


def word(*words: str) -> Form:
    """Return the form of one of several words."""
    return {"enum": list(words)}


WHOLE: Form = {"type": "integer"}
MAPPING: Form = {"type": "object", "minProperties": 1}


@dataclass(frozen=True, slots=True)
class Expected:
    """Phrase for error messages: what to write in a field. A number in a `quantity` needs a unit."""

    phrase: str
    quantity: bool = False


def quantity(
    parse: Callable[[object], float],
    phrase: str,
    *,
    pattern_of: Callable[[object], float] | None = None,
    show: units.Show | None = None,
) -> tuple[BeforeValidator, Expected, Written]:
    """Return the annotations of a quantity; one from a stored suite is in base units already.

    `pattern_of` is the parser in `units` behind `parse`, unless `parse` is one itself.
    """

    def read(value: object, info: ValidationInfo) -> object:
        return value if is_stored(info) else parse(value)

    return BeforeValidator(read), Expected(phrase), Written(text(units.PATTERNS[pattern_of or parse]), show=show)


def _percent(parse: Callable[[object], float], phrase: str) -> tuple[BeforeValidator, Expected, Written]:
    return quantity(parse, phrase, pattern_of=units.parse_percent_ratio, show=units.show_percent)


def checked(check: Callable[[str], object]) -> AfterValidator:
    """Return the validator of a text that `check` accepts. It raises ValueError for any other."""

    def read(text: str) -> str:
        check(text)
        return text

    return AfterValidator(read)


def is_stored(info: ValidationInfo) -> bool:
    """Return whether a stored suite is read: every default filled in, every quantity in base units."""
    return bool((info.context or {}).get("stored"))


def share(text: object) -> float:
    """Parse a share of at most 100%: `95%` → 0.95."""
    ratio = units.parse_percent_ratio(text)
    if ratio > 1:
        raise ValueError(f"{units.show_found(text)} is more than the whole; write at most 100%")
    return ratio


def positive_share(text: object) -> float:
    """Parse a share above 0%."""
    ratio = share(text)
    if ratio == 0:
        raise ValueError(f"{units.show_found(text)} is not above 0%; write more")
    return ratio


_NAME = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$"

Duration = Annotated[
    float, *quantity(units.parse_duration_s, 'a duration like "500ms" or "30s"', show=units.show_duration)
]
Span = Annotated[
    float, *quantity(units.parse_span_s, 'a time like "5ms", or "0ms"', show=units.show_duration), Field(ge=0)
]
Rate = Annotated[float, *quantity(units.parse_rate_rps, 'a rate like "8/s"')]
Percent = Annotated[float, *_percent(share, 'a percentage like "1%"'), Field(ge=0, le=1)]
PositivePercent = Annotated[float, *_percent(positive_share, 'a percentage like "95%"'), Field(gt=0, le=1)]
Tokens = Annotated[
    int,
    *quantity(units.parse_tokens, 'a count like "128 tokens"'),
    Written(WHOLE, text(units.PATTERNS[units.parse_tokens])),
]
Size = Annotated[
    int,
    *quantity(units.parse_size_bytes, 'a size like "8GiB"', show=units.show_size),
    Field(ge=64 * 1024**2),
]
MAX_MEMORY_BYTES = 10**18
Memory = Annotated[
    int, *quantity(units.parse_memory_bytes, 'a size like "40GB" or "37GiB"'), Field(le=MAX_MEMORY_BYTES)
]
Price = Annotated[float, *quantity(units.parse_price_usd_per_hour, 'a price like "$32/h"')]
TokenPrice = Annotated[float, *quantity(units.parse_usd_per_million, 'a price like "$0.15/M", of a million tokens')]
Watts = Annotated[float, *quantity(units.parse_watts, 'a power like "700 W"')]
EnergyPrice = Annotated[float, *quantity(units.parse_usd_per_kwh, 'a price like "$0.12/kWh"')]
Factor = Annotated[
    float, *quantity(units.parse_multiple, 'a multiple like "1.3x"', show=units.show_multiple), Field(ge=1, le=10)
]
Money = Annotated[float, *quantity(units.parse_usd, 'a sum of money like "40 USD"')]
Whole = Annotated[int, Strict()]  # pydantic would take "8", 8.0 and true for a whole number
Flag = Annotated[bool, Strict()]  # and "no" for false
Text = Annotated[str, Field(min_length=1)]
_KIND = "[^0-9. ]"


def _kind(found: object, info: ValidationInfo) -> object:
    """Refuse a number: it is the count of the accelerators, and would be priced as one accelerator."""
    number = isinstance(found, int | float) and not isinstance(found, bool)
    digits = isinstance(found, str) and found != "" and re.search(_KIND, found) is None
    if is_stored(info) or not (number or digits):
        return found
    meant = f"did you mean `accelerators: {str(found).strip()}`? That is how many a deployment holds"
    raise ValueError(f'{units.show_found(found)} is a number and no kind like "H100"; {meant}')


Kind = Annotated[
    Text, BeforeValidator(_kind), Expected('the kind of an accelerator, like "H100"'), Written(text(_KIND))
]
_DATE = "^[0-9]{4}-[0-9]{2}-[0-9]{2}$"


def parse_day(text: str) -> date:
    """Parse a day like `2026-12-31`. Raises ValueError for anything else."""
    if re.fullmatch(_DATE, text):
        try:
            return date.fromisoformat(text)
        except ValueError:
            pass
    raise ValueError(f"{units.show_found(text)} is not a day; write it like 2026-12-31")


Day = Annotated[
    date, Strict(), BeforeValidator(lambda found: parse_day(found.strip()) if isinstance(found, str) else found),
    Expected("a day like 2026-12-31"), Written(text(rf"^\s*{_DATE[1:-1]}\s*$")),
]  # fmt: skip
_DECLARED_BY_KEYS = ("accelerators", "engine")


def _needs_permission(found: object, handler: ValidatorFunctionWrapHandler, info: ValidationInfo) -> object:
    """Refuse a field that deployments declare themselves, except in a stored suite, which may still name it."""
    if found in _DECLARED_BY_KEYS:
        if is_stored(info):
            return found
        raise ValueError(f"`{found}` of the deployments declares the change, which needs no permission; remove it")
    return handler(found)


SharedField = Annotated[
    Literal[
        "engine_version", "engine_flags", "context", "slots", "threads", "vocabulary", "chat_template", "hardware",
        "request_fields", "proxy",
    ],
    WrapValidator(_needs_permission), PlainSerializer(str),
]  # fmt: skip
"""A property that both arms must share, unless the policy lets it differ or the deployments declare it."""
Name = Annotated[
    str,
    Field(pattern=_NAME),
    Expected("a name of at most 64 letters, digits, `.`, `_` and `-` that starts with a letter or digit"),
    Written(text(_NAME)),
]


ArrivalText = Annotated[
    str,
    checked(parse_arrival),
    Expected('"poisson", "constant" or "gamma:2", whose gaps vary twice as much'),
    Written(text("^(?:poisson|constant|gamma:.+)$")),
]


def key(description: str, **settings: Any) -> Any:
    """Return a field of a section; `settings` are those of pydantic's `Field`."""
    return Field(description=description, **settings)


def optional(description: str, default: Any = None, **settings: Any) -> Any:
    """Return a field that is left out of the stored suite while it has its default: such suites keep their hashes."""
    if "default_factory" not in settings:
        settings["default"] = default
    return key(description, exclude_if=lambda value: value == default, **settings)


@dataclass_transform(kw_only_default=True, field_specifiers=(key,))
class Section(BaseModel):
    """A section of the language: immutable, and unknown keys are errors."""

    # An input may be a secret in the wrong place, so no error repeats one.
    # A NaN passes every bound of a stored suite, which no parser of quantities reads again.
    model_config = ConfigDict(
        extra="forbid", frozen=True, hide_input_in_errors=True, defer_build=True, allow_inf_nan=False
    )
