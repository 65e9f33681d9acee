"""A file of another program as values with their places: what is missing, or is not what it must be, is an error."""

from __future__ import annotations

import json
import math
import re
import unicodedata
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from benchgate.errors import UsageError

MOST_BYTES = 256 * 2**20
"""How large a file may be: it is held in memory, some times over."""

_MOST_SHOWN = 40
_MOST = 1e15  # beyond it nothing that is measured can be, in whatever unit


@dataclass(frozen=True, slots=True)
class Field:
    """One value of a file: `path` is where it stands, as in `$.requests[3].ttft`. Every complaint is a UsageError."""

    value: Any
    source: str
    path: str = "$"

    def refuse(self, expected: str) -> NoReturn:
        """Says what was found here, and what was expected."""
        found = ascii(self.value)[:_MOST_SHOWN]
        raise UsageError(f"{self.source}: {self.path}: found {found}; expected {expected}; nothing was imported")

    def get(self, key: str) -> Field | None:
        """What an object has under a key; None where that is not there, or null."""
        if not isinstance(self.value, dict):
            self.refuse("an object")
        found = self.value.get(key)
        return None if found is None else Field(found, self.source, f"{self.path}.{key}")

    def need(self, *keys: str) -> Field:
        """What stands under these keys, one within the other."""
        here = self
        for key in keys:
            found = here.get(key)
            if found is None:
                Field(None, here.source, f"{here.path}.{key}").refuse("a value")
            here = found
        return here

    def items(self) -> list[Field]:
        """The values of a list."""
        if not isinstance(self.value, list):
            self.refuse("a list")
        return [Field(one, self.source, f"{self.path}[{number}]") for number, one in enumerate(self.value)]

    def entries(self) -> Iterator[tuple[str, Field]]:
        """The keys of an object with their values."""
        if not isinstance(self.value, dict):
            self.refuse("an object")
        for key, one in self.value.items():
            yield key, Field(one, self.source, f"{self.path}.{key}")

    def number(self, *, most: float = _MOST) -> float:
        """A finite number from 0 to `most`; NaN, infinity and numbers in quotes are none."""
        value = self.value
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= most:  # NaN is not
            self.refuse(f"a number from 0 to {most:g}" if most < _MOST else "a finite number, 0 or more")
        return float(value)

    def above_zero(self) -> float:
        """The same, and not 0."""
        found = self.number()
        if found == 0:
            self.refuse("a number above 0")
        return found

    def count(self) -> int:
        """A whole number, 0 or more."""
        if isinstance(self.value, bool) or not isinstance(self.value, int) or not 0 <= self.value <= _MOST:
            self.refuse("a whole number, 0 or more")
        return self.value

    def text(self) -> str:
        """A text of one line, without a character that would command a terminal."""
        if not isinstance(self.value, str) or any(unicodedata.category(char) in ("Cc", "Cs") for char in self.value):
            self.refuse("a text without control characters")
        return self.value


def with_keys(*names: str) -> str:
    """In words: an object that has these keys, `a.b` being the key b of its a."""
    quoted = [f"`{name}`" for name in names]
    return f"an object with {', '.join(quoted[:-1])} and {quoted[-1]}"


def optional_text(field: Field | None) -> str | None:
    """The text of a field that may be missing."""
    return None if field is None else field.text()


def read_bytes(path: Path) -> bytes:
    """The file. UsageError where it cannot be read or is too large."""
    try:
        with path.open("rb") as file:
            data = file.read(MOST_BYTES + 1)
    except OSError as exc:
        raise UsageError(f"{path} cannot be read: {exc.strerror or exc}") from exc
    if len(data) > MOST_BYTES:
        raise UsageError(f"{path} has more than {MOST_BYTES:,} bytes; import the tool's summary instead of its records")
    return data


def read_json(text: str, source: str, first_line: int = 1) -> Field:
    """One JSON value. UsageError with line and column where it is none, or says a key twice."""
    try:
        return Field(json.loads(text, object_pairs_hook=_no_key_twice), source)
    except json.JSONDecodeError as exc:
        place = f"{source}:{first_line + exc.lineno - 1}:{exc.colno}"
        raise UsageError(f"{place}: {exc.msg}; expected one whole JSON value: is the file cut short?") from exc
    except _KeyTwice as exc:
        place = f"{source}:{first_line + _lines_before(text, exc.key)}"
        raise UsageError(f"{place}: the key {exc.key[:_MOST_SHOWN]!a} is there twice in one object") from exc
    except (ValueError, RecursionError) as exc:
        why = ascii(str(exc))[1:-1][:120]
        raise UsageError(f"{source}:{first_line}: it cannot be read as JSON: {why}") from exc


class _KeyTwice(ValueError):
    """An object says a key twice."""

    def __init__(self, key: str) -> None:
        super().__init__(key)
        self.key = key


def _no_key_twice(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        keys = [key for key, _ in pairs]
        raise _KeyTwice(next(key for key in keys if keys.count(key) > 1))
    return found


def _lines_before(text: str, key: str) -> int:
    """How many lines end before a key that an object says twice; 0 where it stands more often, and nobody knows."""
    places = [found.start() for found in re.finditer(re.escape(json.dumps(key)) + r"\s*:", text)]
    return text.count("\n", 0, places[1]) if len(places) == 2 else 0


def about_the_same(one: float, other: float) -> bool:
    """Whether two ways to one number agree, but for rounding: 1 % tells seconds from milliseconds."""
    return math.isclose(one, other, rel_tol=0.01, abs_tol=0.01)
