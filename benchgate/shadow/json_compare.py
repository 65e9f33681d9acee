"""Equality of texts and JSON values: ignored paths, a tolerance for numbers, any order of keys. Pure.

A text counts as JSON if it is an object or array with one meaning. A repeated key or NaN makes it plain text.
"""

from __future__ import annotations

import json
import math
import re
import unicodedata
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from benchgate.suite.formats import Step, parse_path

Path = tuple[Step, ...]

_MAX_DEPTH = 100  # levels of nesting; deeper ones could exhaust the stack
_BLANK_LINES = re.compile(r"\n{3,}")


@dataclass(frozen=True, slots=True)
class JsonRules:
    """Rules of JSON equality. `tolerance` is the largest difference of two numbers as a share of the larger one."""

    ignored: tuple[Path, ...] = ()
    tolerance: float = 0.0
    case: bool = True

    @classmethod
    def of(cls, ignore_paths: Iterable[str], tolerance: float, *, case: bool) -> JsonRules:
        """Build the rules from the validated paths of a suite."""
        return cls(tuple(map(parse_path, ignore_paths)), tolerance, case)


class NotJson(Exception):
    """A text that is not a JSON object or array with one meaning."""


def normalise_text(text: str, *, case: bool = True) -> str:
    """Normalise Unicode (NFKC), the white space inside and at the end of lines, and runs of blank lines.

    Line breaks and indentation stay, because they matter in code. Without `case`, upper and lower case are equal.
    """
    lines = []
    for line in unicodedata.normalize("NFKC", text).splitlines():
        words = line.split()
        lines.append(line[: line.index(words[0])] + " ".join(words) if words else "")
    tidy = _BLANK_LINES.sub("\n\n", "\n".join(lines)).strip()
    return tidy if case else tidy.casefold()


def parse_structure(text: str) -> object:
    """Parse a JSON object or array. Raises NotJson."""
    try:
        value = json.loads(text, parse_constant=_refuse, parse_float=_finite, object_pairs_hook=_unique_keys)
    except (ValueError, RecursionError):
        raise NotJson from None
    if not isinstance(value, dict | list) or _is_too_deep(value):
        raise NotJson
    return value


def equal_values(one: object, other: object, rules: JsonRules) -> bool:
    """Return True if two JSON values are equal by the rules."""
    return _equal(_without(one, rules.ignored), _without(other, rules.ignored), rules)


def shape_of(value: object, rules: JsonRules) -> object:
    """Return the keys and types of a value without its contents, to be compared by `==`.

    Lists with elements of the same shapes have one shape, however long. An empty list has its own.
    """
    return _shape(_without(value, rules.ignored))


def _equal(one: object, other: object, rules: JsonRules) -> bool:
    if isinstance(one, bool) or isinstance(other, bool) or one is None or other is None:
        return one is other
    if isinstance(one, int | float) and isinstance(other, int | float):
        try:
            return one == other or math.isclose(one, other, rel_tol=rules.tolerance)
        except OverflowError:  # an integer too large for a float
            return False
    if isinstance(one, str) and isinstance(other, str):
        return one == other or normalise_text(one, case=rules.case) == normalise_text(other, case=rules.case)
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(_equal(a, b, rules) for a, b in zip(one, other, strict=True))
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(_equal(inner, other[key], rules) for key, inner in one.items())
    return False


def _shape(value: object) -> object:
    if isinstance(value, dict):
        return frozenset((key, _shape(inner)) for key, inner in value.items())
    if isinstance(value, list):
        return ("list", frozenset(map(_shape, value)))
    if isinstance(value, bool):
        return "boolean"
    return "number" if isinstance(value, int | float) else "text" if isinstance(value, str) else "null"


def _without(value: object, paths: tuple[Path, ...]) -> object:
    """Return a value without everything that one of the paths leads to."""
    if not paths or not isinstance(value, dict | list):
        return value
    kept = [
        (key, _without(inner, below))
        for key, inner in (value.items() if isinstance(value, dict) else enumerate(value))
        if () not in (below := tuple(_paths_below(paths, key)))
    ]
    return dict(kept) if isinstance(value, dict) else [inner for _, inner in kept]


def _paths_below(paths: tuple[Path, ...], key: object) -> Iterator[Path]:
    """Yield the rest of each path that leads through a key of an object or an index of a list."""
    for path in paths:
        step = path[0]
        if step.deep:
            yield path  # it may match again further down
        if step.of is None or (type(step.of) is type(key) and step.of == key):
            yield path[1:]


def _is_too_deep(value: object) -> bool:
    level = [value]
    for _ in range(_MAX_DEPTH):
        level = [
            inner
            for outer in level
            if isinstance(outer, dict | list)
            for inner in (outer.values() if isinstance(outer, dict) else outer)
        ]
        if not level:
            return False
    return True


def _finite(digits: str) -> float:
    value = float(digits)
    return value if math.isfinite(value) else _refuse(digits)


def _unique_keys(pairs: list[tuple[str, object]]) -> dict[str, object]:
    values = dict(pairs)
    if len(values) != len(pairs):
        raise ValueError("repeated key")
    return values


def _refuse(number: str) -> float:
    raise ValueError(f"{number} is not a JSON number")
