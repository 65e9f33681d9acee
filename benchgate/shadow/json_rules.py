"""When two JSON values count as the same: paths that are ignored, numbers within a tolerance, the order of keys never.

Pure. A text that is no JSON object or array, or one of no single meaning (a key twice, a number that is none), is no
JSON here, and is compared as text.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from benchgate.shadow.plain_text import plain
from benchgate.suite.formats import Step, parse_path

_DEEPEST = 100
"""Levels of nesting; deeper is no answer that anybody reads, and nothing here may run out of stack on it."""

Path = tuple[Step, ...]


@dataclass(frozen=True, slots=True)
class JsonRules:
    """`tolerance`: two numbers are one where they differ by at most this share of the larger; `case` matters or not."""

    ignored: tuple[Path, ...] = ()
    tolerance: float = 0.0
    case: bool = True

    @classmethod
    def of(cls, ignore_paths: Iterable[str], tolerance: float, *, case: bool) -> JsonRules:
        """From the texts of a suite, which are known to be paths."""
        return cls(tuple(map(parse_path, ignore_paths)), tolerance, case)


class NotJson(Exception):
    """A text is not a JSON object or array of one single meaning."""


def parsed(text: str) -> object:
    """The object or array that a text is; NotJson when it is none."""
    try:
        value = json.loads(text, parse_constant=_refuse, parse_float=_finite, object_pairs_hook=_unique_keys)
    except (ValueError, RecursionError):
        raise NotJson from None
    if not isinstance(value, dict | list) or _too_deep(value):
        raise NotJson
    return value


def same(one: object, other: object, rules: JsonRules) -> bool:
    """Whether two values are one by the rules."""
    return _same(_without(one, rules.ignored), _without(other, rules.ignored), rules)


def shape(value: object, rules: JsonRules) -> object:
    """What a value looks like without its contents: keys, and what kind of thing stands at each; equal by `==`.

    All lists of one kind of element look alike, however long; an empty one looks like no other.
    """
    return _shape(_without(value, rules.ignored))


def _same(one: object, other: object, rules: JsonRules) -> bool:
    if isinstance(one, bool) or isinstance(other, bool) or one is None or other is None:
        return one is other
    if isinstance(one, int | float) and isinstance(other, int | float):
        return one == other or _near(one, other, rules.tolerance)
    if isinstance(one, str) and isinstance(other, str):
        return one == other or plain(one, case=rules.case) == plain(other, case=rules.case)
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(_same(a, b, rules) for a, b in zip(one, other, strict=True))
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(_same(inner, other[key], rules) for key, inner in one.items())
    return False


def _near(one: float, other: float, tolerance: float) -> bool:
    try:
        return math.isclose(one, other, rel_tol=tolerance)
    except OverflowError:  # a whole number that no float holds
        return False


def _shape(value: object) -> object:
    if isinstance(value, dict):
        return frozenset((key, _shape(inner)) for key, inner in value.items())
    if isinstance(value, list):
        return ("list", frozenset(map(_shape, value)))
    if isinstance(value, bool):
        return "truth"
    return "number" if isinstance(value, int | float) else "text" if isinstance(value, str) else "null"


def _without(value: object, paths: tuple[Path, ...]) -> object:
    """The value with everything that a path leads to cut out of it."""
    if not paths or not isinstance(value, dict | list):
        return value
    kept = [
        (key, _without(inner, below))
        for key, inner in (value.items() if isinstance(value, dict) else enumerate(value))
        if () not in (below := tuple(_below(paths, key)))
    ]
    return dict(kept) if isinstance(value, dict) else [inner for _, inner in kept]


def _below(paths: tuple[Path, ...], key: object) -> Iterator[Path]:
    """What is left of each path inside the value at a key, or at a place of a list."""
    for path in paths:
        step = path[0]
        if step.deep:
            yield path  # it may lead there from further down, too
        if step.of is None or (type(step.of) is type(key) and step.of == key):
            yield path[1:]


def _too_deep(value: object) -> bool:
    level = [value]
    for _ in range(_DEEPEST):
        level = [inner for outer in level for inner in _inside(outer)]
        if not level:
            return False
    return True


def _inside(value: object) -> Iterable[object]:
    if isinstance(value, dict):
        return value.values()
    return value if isinstance(value, list) else ()


def _finite(digits: str) -> float:
    value = float(digits)
    return value if math.isfinite(value) else _refuse(digits)


def _unique_keys(pairs: list[tuple[str, object]]) -> dict[str, object]:
    values = dict(pairs)
    if len(values) != len(pairs):
        raise ValueError("a key stands twice")
    return values


def _refuse(name: str) -> float:
    raise ValueError(f"{name} is not a number of JSON")
