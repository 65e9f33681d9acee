"""Counts of tokens as servers tell them. Null, zero and nonsense are unknown: servers send zeros for nothing."""

from __future__ import annotations

_MOST_TOKENS = 2**31  # of one answer; more is nonsense that would not fit a column
_THOUGHT = ("completion_tokens_details", "output_tokens_details")
_CACHED = ("prompt_tokens_details", "input_tokens_details")


def token_count(value: object) -> int | None:
    """A count of which 0 says nothing."""
    if isinstance(value, bool) or not isinstance(value, int):
        return None
    return value if 0 < value < _MOST_TOKENS else None


def part_count(value: object) -> int | None:
    """A count of which 0 is an answer: nothing of the prompt was cached, no token went into reasoning."""
    return 0 if value == 0 and not isinstance(value, bool) else token_count(value)


def input_count(usage: object) -> int | None:
    """How many tokens the prompt had; `responses` has other names for them than the other endpoints."""
    return _count(usage, "prompt_tokens", "input_tokens")


def output_count(usage: object) -> int | None:
    """How many tokens were made, those of reasoning among them.

    Some (xAI) count reasoning beside the answer, which their total shows: it is the sum of all three.
    """
    told, thought = _count(usage, "completion_tokens", "output_tokens"), reasoning_count(usage)
    if not thought:
        return told
    asked, total, made = input_count(usage), _count(usage, "total_tokens"), (told or 0) + thought
    return made if asked is not None and total == asked + made else told


def reasoning_count(usage: object) -> int | None:
    """How many of them went into reasoning."""
    return _part(usage, _THOUGHT, "reasoning_tokens")


def cached_count(usage: object) -> int | None:
    """How many tokens of the prompt were found in a cache."""
    return _part(usage, _CACHED, "cached_tokens")


def _count(usage: object, name: str, otherwise: str = "") -> int | None:
    return token_count(usage.get(name, usage.get(otherwise))) if isinstance(usage, dict) else None


def _part(usage: object, holders: tuple[str, ...], name: str) -> int | None:
    if isinstance(usage, dict):
        for holder in holders:
            details = usage.get(holder)
            if isinstance(details, dict):
                return part_count(details.get(name))
    return None
