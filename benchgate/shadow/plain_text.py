"""The form of a text that is compared: what differs here, a reader would call different. Pure."""

from __future__ import annotations

import re
import unicodedata

_BLANK_LINES = re.compile(r"\n{3,}")


def plain(text: str, *, case: bool = True) -> str:
    """Unicode NFKC; inside a line every run of white space is one space; none ends a line or stands at either end of
    the text; several blank lines are one. Line breaks and indentation stay: code that loses them is other code.

    Without `case`, upper and lower case are one (Unicode case folding).
    """
    lines = (_line(line) for line in unicodedata.normalize("NFKC", text).splitlines())
    tidy = _BLANK_LINES.sub("\n\n", "\n".join(lines)).strip()
    return tidy if case else tidy.casefold()


def _line(line: str) -> str:
    words = line.split()
    if not words:
        return ""
    indentation = line[: line.index(words[0])]
    return indentation + " ".join(words)
