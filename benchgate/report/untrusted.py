"""Text that others wrote (models, servers, suites), made harmless for one medium at a time.

HTML needs no function here: the template escapes everything; terminals and logs have `benchgate.escape`. What no medium
may carry is what a reader cannot see or a terminal would obey: control characters, lone surrogates, and the marks that
reorder or hide text.
"""

from __future__ import annotations

import re

from benchgate.escape import HIDDEN_CHARACTERS

_HIDDEN = re.compile(f"[{HIDDEN_CHARACTERS}]")
_LINE_BREAKS = re.compile(r"\r\n|[\n\r\v\f\x1c-\x1e\x85\u2028\u2029]")
_WORD = re.compile(r"`([a-z][a-z0-9_.-]{0,39}|benchgate [A-Za-z0-9_./@ -]{1,120})`")
_REPLACEMENT = "\N{REPLACEMENT CHARACTER}"
_ZERO_WIDTH_SPACE = "\N{ZERO WIDTH SPACE}"
_ELLIPSIS = "…"

# What begins a mention, an issue reference, a bare link or an emoji's name in GitHub's dialect after HTML entities were
# decoded, so that only a character in between stops it; a backslash or an entity does not.
_EMOJI = r"(?:[+-]1|100|1234|[\w+-]*[a-z_][\w+-]*)"
_LIVE = re.compile(rf"(?i)@|#|://|www\.|gh-|mailto:|xmpp:|:(?={_EMOJI}:)|^:(?=:)")
_HALF_EMOJI = re.compile(rf"(?i):{_EMOJI}$")  # a colon of ours may follow
# Everything that has a meaning inside a line of Markdown, and what begins a list at the start of one: a mark or a
# number with a blank after it, or a line of dashes. As a numeric entity it is text and never structure (CommonMark
# 0.31, 5.2 and 6.4).
_STRUCTURE = re.compile(r"[&<>`*_\[\]|\\~$]|^[-+](?=[- ]|$)|^\d(?=\d{0,8}[.)](?: |$))")


def visible(text: str) -> str:
    """The text with every character that cannot be seen replaced by U+FFFD; line breaks and tabs stay as they are."""
    return _HIDDEN.sub(_REPLACEMENT, _LINE_BREAKS.sub("\n", text))


def one_line(text: str, limit: int = 400) -> str:
    """The visible text on one line, runs of blanks as one, cut with an ellipsis past `limit` characters."""
    line = " ".join(visible(text).split())
    return line if len(line) <= limit else line[: limit - 1] + _ELLIPSIS


def markdown_prose(text: str, limit: int = 400) -> str:
    """One line that GitHub shows as it is: no mention, reference, link, image, HTML, emphasis or table break."""
    inert = _LIVE.sub(_interrupt, one_line(text, limit))
    inert += _ZERO_WIDTH_SPACE if _HALF_EMOJI.search(inert) else ""
    return _STRUCTURE.sub(lambda match: f"&#{ord(match[0])};", inert)


def quoted(sentence: str) -> str:
    """A sentence of the gate's with words of the suite language, and commands, in quotation marks, not in backticks.

    They are no code spans: others' texts stand in such sentences too, and may nowhere become structure.
    """
    return _WORD.sub("\N{LEFT DOUBLE QUOTATION MARK}\\1\N{RIGHT DOUBLE QUOTATION MARK}", sentence)


def markdown_code(text: str, limit: int = 200) -> str:
    """One line as a code span, fit for a table cell.

    Inside a span nothing is structure but the backtick and the cell border, and neither can be escaped soundly in
    both; they become look-alikes. An empty text becomes a dash: there is no empty span.
    """
    line = one_line(text, limit).replace("`", "\N{MODIFIER LETTER GRAVE ACCENT}").replace("|", "¦")
    return f"`{line}`" if line else "\N{EN DASH}"


def chat_line(text: str, limit: int = 400) -> str:
    """One line for a message of Slack's kind: no mention, no link, no emoji; `&`, `<` and `>` as Slack wants them."""
    inert = _LIVE.sub(_interrupt, one_line(text, limit))
    return inert.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def _interrupt(match: re.Match[str]) -> str:
    live = match[0]
    cut = live.index(":") + 1 if ":" in live else len(live)
    return live[:cut] + _ZERO_WIDTH_SPACE + live[cut:]
