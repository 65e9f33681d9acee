"""Anomalies of an answer's text that need no reference: repetition loops, replacement characters, the script."""

from __future__ import annotations

import unicodedata
from collections import Counter
from dataclasses import dataclass
from functools import lru_cache

_LONGEST_UNIT = 100  # characters; a longer passage that repeats is no loop of a few tokens
_LOOP_TIMES = 5
_LOOP_CHARACTERS = 100  # a ruler of dashes or "ha ha ha" is shorter
_CUT_CHARACTERS = 3  # a character that the token limit cut in two leaves up to three replacement characters
_MIN_LETTERS = 20
_CLEAR = 0.8  # share of the letters
_LATIN = "Latin"
_JAPANESE = ("HIRAGANA", "KATAKANA")


@dataclass(frozen=True, slots=True)
class TextAnomalies:
    """Anomalies of one answer. `script` is the Unicode script of its letters, None if too few or no clear majority."""

    looped: bool
    replaced: bool
    script: str | None

    @property
    def any(self) -> bool:
        """Return True for a loop, replacement characters or letters of another script than Latin."""
        return self.looped or self.replaced or self.script not in (None, _LATIN)


def find_anomalies(text: str) -> TextAnomalies:
    """Return the anomalies of an answer's text.

    A loop is an end of 100 characters or more in which at most 100 characters repeat 5 times or more. Replacement
    characters (U+FFFD) count before the last three characters. A script is clear with 80 % of at least 20 letters.
    """
    replaced = "\N{REPLACEMENT CHARACTER}" in text[:-_CUT_CHARACTERS]
    return TextAnomalies(_ends_in_loop(text.rstrip()), replaced, _script(text))


def _ends_in_loop(text: str) -> bool:
    if len(text) < _LOOP_CHARACTERS:
        return False
    for unit in range(1, min(_LONGEST_UNIT, len(text) // _LOOP_TIMES) + 1):
        end = text[-max(_LOOP_CHARACTERS, _LOOP_TIMES * unit) :]
        if end[-1] == end[-1 - unit] and end[unit:] == end[:-unit]:
            return True
    return False


def _script(text: str) -> str | None:
    if text.isascii():
        return _LATIN if sum(map(str.isalpha, text)) >= _MIN_LETTERS else None
    letters = Counter[str]()
    for character, count in Counter(unicodedata.normalize("NFKC", text)).items():
        if (script := _script_of(character)) is not None:
            letters[script] += count
    kana = sum(letters.pop(one, 0) for one in _JAPANESE)
    if kana:  # Japanese mixes them with ideographs
        letters["JAPANESE"] = kana + letters.pop("CJK", 0)
    if letters.total() < _MIN_LETTERS:
        return None
    script, count = letters.most_common(1)[0]
    if count < _CLEAR * letters.total():
        return None
    return script if script == "CJK" else script.capitalize()


@lru_cache(maxsize=4096)
def _script_of(character: str) -> str | None:
    """Return the first word of a letter's name, which is its script: LATIN, CYRILLIC, CJK."""
    is_letter = unicodedata.category(character) in ("Lu", "Ll", "Lt", "Lo")
    return unicodedata.name(character, "").partition(" ")[0] or None if is_letter else None
