"""Visible characters and redundancy of a text: signs of an answer that is blank or a loop."""

from __future__ import annotations

import re
import zlib

LEAST_VISIBLE = 24
"""Visible characters that a text must have for its redundancy to be measured: compression gains nothing on less."""

_END = 512  # characters of a text whose redundancy is measured: the end, where a model that loops ends up
_BLANKS = bytes(range(0x21)) + b"\x7f"
_UNSEEN = (
    # Default_Ignorable_Code_Point of the Unicode Character Database (DerivedCoreProperties.txt, version 17.0)
    "\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u202a-\u202e\u2060-\u206f\u3164"
    "\ufe00-\ufe0f\ufeff\uffa0\ufff0-\ufff8\U0001bca0-\U0001bca3\U0001d173-\U0001d17a\U000e0000-\U000e0fff"
    # Cc; format characters that are neither in that list nor drawn; letters and symbols that are blank
    "\x00-\x1f\x7f-\x9f\ufff9-\ufffb\U00013430-\U0001343f\u2800\U0001d159"
)
_HIGH, _LOW = "\ud800-\udbff", "\udc00-\udfff"  # halves of a character that came in two escapes: it counts once
_INVISIBLE = re.compile(f"[{_UNSEEN}{_HIGH}](?:(?<![{_HIGH}])|(?=[{_LOW}]))")


def visible_characters(text: str) -> int:
    """Count the code points that are not white space, control characters or characters without a glyph of their own."""
    if text.isascii():
        return len(text.encode().translate(None, _BLANKS))
    return len(_INVISIBLE.sub("", "".join(text.split())))


def redundancy_percent(text: str) -> int:
    """Return by how many percent raw deflate shrinks the last 512 characters of a text, in UTF-8.

    0 where they become no smaller, and for an empty text. A sentence of English gives about 30, a repeated one more
    than 80, one character repeated more than 90. Whisper discards a transcription as a loop where zlib shrinks it by a
    factor of more than 2.4, which is 58 % (https://arxiv.org/abs/2212.04356, section 4.5).
    """
    end = text[-_END:].encode("utf-8", "surrogatepass")
    if not end:
        return 0
    deflate = zlib.compressobj(6, zlib.DEFLATED, -12, 4)  # a window of 4 KiB: twice what 512 characters can be
    smaller = len(deflate.compress(end)) + len(deflate.flush())
    return max(0, round(100 * (1 - smaller / len(end))))
