"""Quantities of a practice server. Unlike a limit, a cost may be nothing at all."""

from __future__ import annotations

import re

from benchgate.units import parse_duration_s, parse_percent_ratio

_NOTHING = re.compile(r"0+(?:\.0+)?\s*(?:ns|us|µs|ms|s|m|min|h)?")


def parse_span_s(text: str) -> float:
    """`"50ms"` → 0.05, and `"0"` or `"0ms"` → 0. Raises ValueError."""
    return 0.0 if _NOTHING.fullmatch(text.strip()) else parse_duration_s(text)


def parse_share(text: str) -> float:
    """`"10%"` → 0.1, at most the whole. Raises ValueError."""
    ratio = parse_percent_ratio(text)
    if ratio > 1:
        raise ValueError(f'"{text}" is more than the whole; write at most 100%')
    return ratio
