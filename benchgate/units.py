"""Human units, parsed once and shown once: `500ms`, `8/s`, `2 points`, `5%`, `$32/h`, `128 tokens`.

Inside benchgate every quantity is in base units and its name says so (`_s`, `_ns`, `_rps`, `_ratio`, `_usd`).
Every parser raises ValueError with what was found and an example of what was expected.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Protocol

_NUMBER = r"(?P<number>[0-9]+(?:\.[0-9]+)?(?:e[+-]?[0-9]+)?)"  # not \d: digits of other scripts look like others
_DURATION = re.compile(_NUMBER + r"\s*(?P<unit>ns|us|µs|ms|s|m|min|h|d)")
_NO_TIME = re.compile(r"0+(?:\.0+)?\s*(?:ns|us|µs|ms|s|m|min|h|d)?")
_RATE = re.compile(_NUMBER + r"\s*(?:req)?/\s*(?P<unit>s|m|min|h)")
_PERCENT = re.compile(_NUMBER + r"\s*%")
_POINTS = re.compile(_NUMBER + r"\s*(?:points?|pp|pts?)")
_PRICE = re.compile(r"\$\s*" + _NUMBER + r"\s*/\s*h(?:our)?")
_DOLLARS = re.compile(r"\$\s*" + _NUMBER)
_USD = re.compile(_NUMBER + r"\s*USD")
_PER_MILLION = re.compile(r"\$\s*" + _NUMBER + r"\s*/\s*1?M(?:\s*tokens)?")
_WATTS = re.compile(_NUMBER + r"\s*(?P<unit>k?W)")
_JOULES = re.compile(_NUMBER + r"\s*J")
_ENERGY_PRICE = re.compile(r"\$\s*" + _NUMBER + r"\s*/\s*kWh")
_MULTIPLE = re.compile(_NUMBER + r"\s*x")
_NATS = re.compile(_NUMBER + r"\s*nats?")
_COUNT = re.compile(r"[0-9]{1,9}")
_TOKENS = re.compile(_NUMBER + r"\s*(?:tokens?|tok)?")
_SIZE = re.compile(_NUMBER + r"\s*(?P<unit>MiB|GiB|TiB)")
_MEMORY = re.compile(_NUMBER + r"\s*(?P<unit>MB|GB|TB|MiB|GiB|TiB)")

_SHOWN_CHARACTERS = 40
DIGITS = 3  # significant digits of a measured value
_WRITTEN_DIGITS = 7  # at most, of a number that a person wrote; a computed one has more
_MOST_DIGITS = 10  # a float is stored with noise beyond them
_LEAST_NATS = 1e-6
_LEAST_DECIMAL = 1e-6  # below it numbers are written with an exponent
_DECIMAL_BYTES = {"TB": 1e12, "GB": 1e9, "MB": 1e6, "kB": 1e3}
_BYTES = {"MiB": 1024.0**2, "GiB": 1024.0**3, "TiB": 1024.0**4}
_SECONDS = {
    "ns": 1e-9, "us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86400.0
}  # fmt: skip


def _match(pattern: re.Pattern[str], text: object, what: str, example: str) -> re.Match[str]:
    if not isinstance(text, str):
        raise ValueError(f"{show_found(text)} is not a {what}; write it with its unit, like {example}")
    match = pattern.fullmatch(text.strip())
    if match is None:
        below = text.strip().startswith("-") and pattern.fullmatch(text.strip()[1:].strip()) is not None
        wrong = f"is below 0, which no {what} is" if below else f"is not a {what}"
        raise ValueError(f"{show_found(text)} {wrong}; write it like {example}")
    return match


def _quantity(match: re.Match[str], what: str, *, scale: float = 1.0, zero_allowed: bool = False) -> float:
    """The number times `scale`; ValueError when that is not finite, or is 0 where nothing can be 0."""
    value = float(match["number"]) * scale
    if not math.isfinite(value) or (value == 0 and not zero_allowed):
        raise ValueError(f"{show_found(match[0])} is not a usable {what}; it must be finite and above 0")
    return value


def parse_duration_s(text: object) -> float:
    """`"500ms"` → 0.5. A bare number is refused: a duration without its unit is a guess."""
    match = _match(_DURATION, text, "duration", '"500ms", "30s" or "2m"')
    return _quantity(match, "duration", scale=_SECONDS[match["unit"]])


def parse_span_s(text: object) -> float:
    """The same, and `"0ms"` → 0.0: unlike a limit, a cost may be nothing at all."""
    if isinstance(text, str) and _NO_TIME.fullmatch(text.strip()):
        return 0.0
    return parse_duration_s(text)


def parse_rate_rps(text: object) -> float:
    """`"8/s"` → 8.0 requests per second; `"30/m"` → 0.5."""
    match = _match(_RATE, text, "rate", '"8/s" or "30/m"')
    return _quantity(match, "rate", scale=1 / _SECONDS[match["unit"]])


def parse_percent_ratio(text: object) -> float:
    """`"5%"` → 0.05. Zero is allowed: a limit of 0% is a limit."""
    return _quantity(_match(_PERCENT, text, "percentage", '"5%"'), "percentage", zero_allowed=True) / 100


def parse_points_ratio(text: object) -> float:
    """`"2 points"` → 0.02, an absolute difference between two shares (percentage points)."""
    return _quantity(_match(_POINTS, text, "difference in points", '"2 points"'), "difference") / 100


def parse_multiple(text: object) -> float:
    """`"1.2x"` → 1.2, so many times another value."""
    return _quantity(_match(_MULTIPLE, text, "multiple", '"2x"'), "multiple")


def parse_nats(text: object) -> float:
    """`"0.1 nats"` → 0.1, a divergence of two distributions in natural units."""
    return _quantity(_match(_NATS, text, "divergence", '"0.1 nats"'), "divergence")


def parse_count(text: object) -> int:
    """`"4"` → 4. Zero is allowed: that nothing happens is a bound."""
    if not isinstance(text, str) or _COUNT.fullmatch(text.strip()) is None:
        raise ValueError(f"{show_found(text)} is not a number of things; write a whole number, like 4")
    return int(text)


def parse_price_usd_per_hour(text: object) -> float:
    """`"$32/h"` → 32.0, dollars per hour."""
    return _quantity(_match(_PRICE, text, "price", '"$32/h"'), "price")


def parse_usd(text: object) -> float:
    """`"40 USD"` or `"$40"` → 40.0, a sum of money."""
    dollars = isinstance(text, str) and text.strip().startswith("$")
    match = _match(_DOLLARS if dollars else _USD, text, "sum of money", '"40 USD" or "$40"')
    return _quantity(match, "sum of money")


def parse_usd_per_million(text: object) -> float:
    """`"$0.15/M"` → 0.15, dollars for a million tokens."""
    return _quantity(_match(_PER_MILLION, text, "price of tokens", '"$0.15/M"'), "price of tokens", zero_allowed=True)


def parse_watts(text: object) -> float:
    """`"700 W"` or `"1.2 kW"` → watts."""
    match = _match(_WATTS, text, "power", '"700 W"')
    return _quantity(match, "power", scale=1000.0 if match["unit"] == "kW" else 1.0)


def parse_joules(text: object) -> float:
    """`"0.5 J"` → 0.5."""
    return _quantity(_match(_JOULES, text, "energy", '"0.5 J"'), "energy")


def parse_usd_per_kwh(text: object) -> float:
    """`"$0.12/kWh"` → 0.12."""
    return _quantity(_match(_ENERGY_PRICE, text, "price of energy", '"$0.12/kWh"'), "price of energy")


def parse_tokens(text: object) -> int:
    """`"128 tokens"` or `128` → 128."""
    if isinstance(text, int) and not isinstance(text, bool):
        text = str(text)
    value = _quantity(_match(_TOKENS, text, "token count", '"128 tokens"'), "token count")
    if value != int(value):
        raise ValueError(f"{show_found(text)} is not a whole number of tokens")
    return int(value)


def parse_size_bytes(text: object) -> int:
    """`"8GiB"` → 8,589,934,592 bytes."""
    match = _match(_SIZE, text, "size", '"8GiB" or "512MiB"')
    return int(_quantity(match, "size", scale=_BYTES[match["unit"]]))


def parse_memory_bytes(text: object) -> int:
    """`"80GB"` → 80,000,000,000 bytes, `"8GiB"` → 8,589,934,592: the memory of an accelerator, stated in either."""
    match = _match(_MEMORY, text, "size of a memory", '"80GB" or "74.5GiB"')
    return int(_quantity(match, "size of a memory", scale=(_BYTES | _DECIMAL_BYTES)[match["unit"]]))


def _for_editors(*patterns: re.Pattern[str]) -> str:
    """Return a parser's pattern for readers that do not know Python's named groups."""
    inner = "|".join(re.sub(r"\(\?P<\w+>", "(?:", pattern.pattern) for pattern in patterns)
    return rf"^\s*(?:{inner})\s*$"


PATTERNS: Mapping[Callable[[object], float], str] = MappingProxyType(
    {
        parse_duration_s: _for_editors(_DURATION),
        parse_span_s: _for_editors(_NO_TIME, _DURATION),
        parse_rate_rps: _for_editors(_RATE),
        parse_percent_ratio: _for_editors(_PERCENT),
        parse_points_ratio: _for_editors(_POINTS),
        parse_price_usd_per_hour: _for_editors(_PRICE),
        parse_usd: _for_editors(_DOLLARS, _USD),
        parse_usd_per_million: _for_editors(_PER_MILLION),
        parse_watts: _for_editors(_WATTS),
        parse_usd_per_kwh: _for_editors(_ENERGY_PRICE),
        parse_multiple: _for_editors(_MULTIPLE),
        parse_tokens: _for_editors(_TOKENS),
        parse_size_bytes: _for_editors(_SIZE),
        parse_memory_bytes: _for_editors(_MEMORY),
    }
)
"""Patterns of what each parser reads, in ECMA 262, as JSON Schema needs them."""


def show_found(value: object) -> str:
    """Return a found value for a message: text in quotes, cut when long; a collection by its kind."""
    if isinstance(value, str):
        return f'"{value}"' if len(value) <= _SHOWN_CHARACTERS else f'"{value[:_SHOWN_CHARACTERS]}…"'
    if value is None or isinstance(value, bool):
        return {None: "nothing", True: "true", False: "false"}[value]
    if isinstance(value, dict | list | tuple):
        kind = "mapping" if isinstance(value, dict) else "list"
        return f"a {kind}" if value else f"an empty {kind}"
    return str(value)


class Show(Protocol):
    """A format of a value with its unit, by default in three significant digits."""

    def __call__(self, value: float, /, *, digits: int = ...) -> str:
        """Return the value with its unit."""


def show_duration(seconds: float, *, digits: int = DIGITS) -> str:
    """0.0534 → `53.4 ms`: three significant digits in the unit a reader expects."""
    if math.isinf(seconds):
        return "∞"
    for unit, size in (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6)):
        if abs(seconds) >= size:
            return f"{_rounded(seconds / size, digits)} {unit}"
    return "0 s" if seconds == 0 else f"{_rounded(seconds / 1e-9, digits)} ns"


def show_span(seconds: float) -> str:
    """187 → `3 min`, 4,000 → `1 h 7 min`: how long something takes that a person waits for."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 60 else f"{minutes // 60:,} h {minutes % 60} min".removesuffix(" 0 min")


def show_size(size_bytes: float, *, digits: int = DIGITS) -> str:
    """8,589,934,592 → `8.00 GiB`."""
    unit = next((unit for unit in ("TiB", "GiB") if size_bytes >= _BYTES[unit]), "MiB")
    return f"{_rounded(size_bytes / _BYTES[unit], digits)} {unit}"


def show_memory(size_bytes: float) -> str:
    """2,684,354,560 → `2.68 GB`, of 10⁹ bytes, the unit of accelerators and caches."""
    unit = next((unit for unit, size in _DECIMAL_BYTES.items() if size_bytes >= size), "kB")
    return f"{_rounded(size_bytes / _DECIMAL_BYTES[unit], DIGITS)} {unit}"


def show_percent(ratio: float, *, signed: bool = False, digits: int = DIGITS) -> str:
    """0.0512 → `5.12 %`; 0.9998 → `99.98 %`, for what is not all is never shown as all."""
    return "∞" if math.isinf(ratio) else f"{_hundredths(ratio, digits, signed=signed)} %"


def show_points(ratio: float, *, signed: bool = False, digits: int = DIGITS) -> str:
    """0.0212 → `2.12 points`."""
    return f"{_hundredths(ratio, digits, signed=signed)} points"


def show_multiple(value: float, *, digits: int = DIGITS) -> str:
    """2.1345 → `2.13x`."""
    return "∞" if math.isinf(value) else f"{_rounded(value, digits)}x"


def show_nats(value: float, *, digits: int = DIGITS) -> str:
    """0.00034712 → `0.000347 nats`; what is below a millionth is nothing."""
    return "∞ nats" if math.isinf(value) else f"{_rounded(value if abs(value) >= _LEAST_NATS else 0.0, digits)} nats"


def show_number(value: float, *, digits: int = DIGITS) -> str:
    """5981.4 → `5,981`; 3.14159 → `3.14`."""
    return _rounded(value, digits)


def show_rate(value_rps: float, *, digits: int = DIGITS) -> str:
    """8 → `8.00/s`."""
    return f"{_rounded(value_rps, digits)}/s"


def show_usd(value: float, *, digits: int = DIGITS) -> str:
    """0.1234 → `$0.123`."""
    return f"${_rounded(value, digits)}"


def as_written(show: Show, value: float) -> str:
    """Show a bound that a person wrote, with all its digits and no zeros after them: `99.95 %`, `95 %`.

    A computed bound, whose digits do not end, is rounded like a measured value.
    """
    digits = _WRITTEN_DIGITS if math.isclose(value, _round(value, _WRITTEN_DIGITS), rel_tol=1e-9) else DIGITS
    return without_zeros(show(value, digits=digits))


def beside(show: Show, value: float, bound: float) -> str:
    """Show a value with enough digits that rounding does not move it across a bound: 500.3 ms of 500 ms, not 500 ms."""
    if math.isinf(value) or math.isinf(bound):
        return show(value)
    if math.isclose(value, bound, rel_tol=1e-9):
        enough = (digits for digits in range(DIGITS, _WRITTEN_DIGITS + 1) if math.isclose(_round(bound, digits), bound))
        return show(value, digits=next(enough, DIGITS))
    enough = (digits for digits in range(DIGITS, _MOST_DIGITS) if _same_side(value, _round(value, digits), bound))
    digits = next(enough, _MOST_DIGITS)
    # Rounded here, for a tie could go the other way in another unit; but a ratio below 1 is not shown as 1.
    rounded = _round(value, digits)
    return show(value if abs(value) < 1 <= abs(rounded) else rounded, digits=digits)


def without_zeros(shown: str) -> str:
    """Remove the zeros that measured values carry: `95.0 %` → `95 %`."""
    short = re.sub(r"(\d)(?:\.0+|(\.\d*?[1-9])0+)(?=x?(?:[ /]|$))", r"\1\2", shown)
    return re.sub(r"(?<![\d.,])1 points\b", "1 point", short)


def _same_side(value: float, shown: float, bound: float) -> bool:
    # to a tolerance, for a bound that went through a logarithm is not the number that its author wrote
    return not math.isclose(shown, bound, rel_tol=1e-9) and (shown > bound) == (value > bound)


def _round(value: float, digits: int) -> float:
    return float(f"{value:.{digits}g}")


def _hundredths(ratio: float, digits: int, *, signed: bool) -> str:
    """Show a ratio times 100, with more digits where fewer would round a ratio below 1 up to 1."""
    if abs(ratio) < 1:
        digits = next((more for more in range(digits, _MOST_DIGITS) if abs(_round(ratio, more)) < 1), _MOST_DIGITS)
    return _rounded(ratio * 100.0, digits, signed=signed)


def _rounded(value: float, digits: int, *, signed: bool = False) -> str:
    sign = "+" if signed and value > 0 else ""
    if value == 0:
        return "0"
    if math.isinf(value):
        return f"{sign}{value}"
    rounded = abs(_round(value, digits))  # 9.999 has the decimals of 10.0
    if rounded < _LEAST_DECIMAL:
        return f"{sign}{value:.{digits}g}"
    return f"{sign}{value:,.{max(0, digits - 1 - math.floor(math.log10(rounded)))}f}"
