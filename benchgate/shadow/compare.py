"""When two answers count as the same: pure functions from a text to the form that is compared."""

from __future__ import annotations

import hashlib
import json
import math
import re
import unicodedata

_BLANK_LINES = re.compile(r"\n{3,}")


def normalise(text: str) -> str:
    """The form of an answer that is compared: what differs here, a reader would call different.

    Text: Unicode NFKC; inside a line every run of white space is one space; none ends a line or stands at either end
    of the text; several blank lines are one. Line breaks and indentation stay: code that loses them is other code. An
    answer that is a JSON object or array: one spelling for the same value (sorted keys, no layout, 1.0 and 1e0 as 1),
    with its texts normalised likewise. A JSON answer never equals one that is not, so each side can be normalised
    without knowing the other.
    """
    plain = _plain(text)
    return _canonical_json(text) or _canonical_json(plain) or plain


def answer_digest(text: str) -> str:
    """SHA-256 of the normalised answer, in hex."""
    return hashlib.sha256(normalise(text).encode("utf-8", "surrogatepass")).hexdigest()


def _plain(text: str) -> str:
    lines = (_line(line) for line in unicodedata.normalize("NFKC", text).splitlines())
    return _BLANK_LINES.sub("\n\n", "\n".join(lines)).strip()


def _line(line: str) -> str:
    words = line.split()
    if not words:
        return ""
    indentation = line[: line.index(words[0])]
    return indentation + " ".join(words)


def _canonical_json(text: str) -> str | None:
    """The one spelling of the object or array that the text is; None when it is neither, or of no single meaning."""
    try:
        value = json.loads(text, parse_constant=_refuse, parse_float=_finite, object_pairs_hook=_unique_keys)
        if not isinstance(value, dict | list):
            return None
        return json.dumps(_canonical(value), sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    except (ValueError, RecursionError):
        return None


def _canonical(value: object) -> object:
    if isinstance(value, dict):
        return {key: _canonical(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_canonical(inner) for inner in value]
    if isinstance(value, str):
        return _plain(value)
    if isinstance(value, float) and value.is_integer():
        return int(value)
    return value


def _finite(digits: str) -> float:
    value = float(digits)
    if not math.isfinite(value):
        raise ValueError(f"{digits} is out of range")
    return value


def _unique_keys(pairs: list[tuple[str, object]]) -> dict[str, object]:
    values = dict(pairs)
    if len(values) != len(pairs):
        raise ValueError("a key stands twice")
    return values


def _refuse(name: str) -> object:
    raise ValueError(f"{name} is not JSON")
