"""Anomalies of an answer's text that need no reference: repetition loops, replacement characters, script, language."""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from types import MappingProxyType

_LONGEST_UNIT = 100  # characters; a longer passage that repeats is no loop of a few tokens
_LOOP_TIMES = 5
_LOOP_CHARACTERS = 100  # a ruler of dashes or "ha ha ha" is shorter
_CUT_CHARACTERS = 3  # a character that the token limit cut in two leaves up to three replacement characters
_MIN_LETTERS = 20
_CLEAR = 0.8  # share of the letters
_LATIN = "Latin"
_JAPANESE = ("HIRAGANA", "KATAKANA")
_ENGLISH = "English"
_MIN_WORDS = 20
_STOP_SHARE = 0.2  # of the words; prose has 35 % to 50 %, code and lists far less
_MIN_STOP_WORDS = 5  # different ones
_TIMES_NEXT = 2  # stop words of the language to those of the next likely one: neighbours share some
_WORD = re.compile(r"[^\W\d_]+")
_FREQUENT = {
    _ENGLISH: "the of and to is that was it for with as are this be from which have not by on",
    "German": "der die und das ist nicht ein eine mit den auf für von sich zu dem auch im wird sie",
    "French": "le les des est et une dans que qui pour pas du sur avec sont il au plus ce la",
    "Spanish": "el los las es una que y por con para del se su lo como más pero está son la",
    "Italian": "il di che è una per non sono con gli della del si nel alla anche più i la un",
    "Portuguese": "o os as uma que não é do da em para com dos por na se um mais são ao",
    "Dutch": "de het een van en niet dat op te zijn met voor aan ook er bij om wordt naar uit",
}
_STOP_WORDS: Mapping[str, frozenset[str]] = MappingProxyType(
    {name: frozenset(words.split()) for name, words in _FREQUENT.items()}
)


@dataclass(frozen=True, slots=True)
class TextAnomalies:
    """Anomalies of one answer.

    `script` is the Unicode script of its letters, `language` that of a text in Latin letters; None if it is not clear.
    """

    looped: bool
    replaced: bool
    script: str | None
    language: str | None = None

    @property
    def any(self) -> bool:
        """Return True for a loop, replacement characters, or a text in another script or language than English."""
        is_usual = self.script in (None, _LATIN) and self.language in (None, _ENGLISH)
        return self.looped or self.replaced or not is_usual


def find_anomalies(text: str) -> TextAnomalies:
    """Return the anomalies of an answer's text.

    A loop is an end of 100 characters or more in which at most 100 characters repeat 5 times or more. Replacement
    characters (U+FFFD) count before the last three characters. A script is clear with 80 % of at least 20 letters, a
    language with 20 % of at least 20 words among its 20 most frequent ones, and twice as many as for any other.
    """
    replaced, script = "\N{REPLACEMENT CHARACTER}" in text[:-_CUT_CHARACTERS], _script(text)
    language = _language(text) if script == _LATIN else None
    return TextAnomalies(_ends_in_loop(text.rstrip()), replaced, script, language)


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


def _language(text: str) -> str | None:
    """Return the language of a text by its stop words; None for short texts, code, names, and languages not known."""
    words = Counter(_WORD.findall(text.casefold()))
    if words.total() < _MIN_WORDS:
        return None
    counts = {name: sum(words[word] for word in stop) for name, stop in _STOP_WORDS.items()}
    likely, other = sorted(counts, key=lambda name: -counts[name])[:2]
    different = sum(word in words for word in _STOP_WORDS[likely])
    is_clear = counts[likely] >= _STOP_SHARE * words.total() and counts[likely] >= _TIMES_NEXT * counts[other]
    return likely if is_clear and different >= _MIN_STOP_WORDS else None


@lru_cache(maxsize=4096)
def _script_of(character: str) -> str | None:
    """Return the first word of a letter's name, which is its script: LATIN, CYRILLIC, CJK."""
    is_letter = unicodedata.category(character) in ("Lu", "Ll", "Lt", "Lo")
    return unicodedata.name(character, "").partition(" ")[0] or None if is_letter else None
