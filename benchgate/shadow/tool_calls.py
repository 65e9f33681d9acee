"""When two answers call the same tools: names equal, arguments equal as JSON. Pure."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence

from benchgate.shadow.json_rules import JsonRules, NotJson, parsed, same, shape
from benchgate.targets.answers import ToolCall


def same_calls(one: Sequence[ToolCall], other: Sequence[ToolCall], rules: JsonRules, *, in_any_order: bool) -> bool:
    """Whether both make the same calls, as often; in the same order unless they are made at once.

    Arguments that are no JSON object equal only their own spelling.
    """
    if len(one) != len(other):
        return False
    if not in_any_order:
        return all(_same_call(a, b, rules) for a, b in zip(one, other, strict=True))
    left = list(other)
    for call in one:
        match = next((place for place, candidate in enumerate(left) if _same_call(call, candidate, rules)), None)
        if match is None:
            return False
        del left[match]
    return True


def same_tools(one: Sequence[ToolCall], other: Sequence[ToolCall], rules: JsonRules) -> bool:
    """Whether both call the same tools, as often, with arguments of the same shape."""
    return Counter(_outline(call, rules) for call in one) == Counter(_outline(call, rules) for call in other)


def spelled_calls(calls: Sequence[ToolCall]) -> str:
    """One spelling of the calls, in their order, for a digest."""
    return json.dumps([[call.name, _spelled(call.arguments)] for call in calls], ensure_ascii=False)


def _same_call(one: ToolCall, other: ToolCall, rules: JsonRules) -> bool:
    if one.name != other.name:
        return False
    first, second = _arguments(one), _arguments(other)
    if first is None or second is None:
        return one.arguments.strip() == other.arguments.strip()
    return same(first, second, rules)


def _outline(call: ToolCall, rules: JsonRules) -> tuple[str, object]:
    arguments = _arguments(call)
    return call.name, call.arguments.strip() if arguments is None else shape(arguments, rules)


def _arguments(call: ToolCall) -> object | None:
    """No arguments at all are spelled in several ways, all of which mean the same."""
    try:
        return parsed(call.arguments if call.arguments.strip() else "{}")
    except NotJson:
        return None


def _spelled(arguments: str) -> str:
    try:
        return json.dumps(parsed(arguments), sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    except NotJson:
        return arguments.strip()
