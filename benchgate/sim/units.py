"""Quantities of a practice server."""

from __future__ import annotations

from benchgate.units import parse_percent_ratio


def parse_share(text: str) -> float:
    """`"10%"` → 0.1, at most the whole. Raises ValueError."""
    ratio = parse_percent_ratio(text)
    if ratio > 1:
        raise ValueError(f'"{text}" is more than the whole; write at most 100%')
    return ratio
