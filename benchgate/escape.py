r"""Text of servers, models and suites made harmless for terminals, CI logs, Markdown and chats; HTML is escaped by
its templates.

Two things are dangerous in a log, and each is made visible instead of being removed:

- Characters that a terminal obeys or a reader cannot see are written as escapes of Python: ESC as ``\x1b``, a lone
  carriage return as ``\r``, RIGHT-TO-LEFT OVERRIDE as ``\u202e``.
- A backslash is put into whatever a CI system takes for a command. A person can still read it:

  | text | becomes | who would obey it |
  |---|---|---|
  | ``::error::x`` at the start of a line | ``:\:error::x`` | GitHub, Gitea and Forgejo Actions |
  | ``##[group]x``, ``##vso[task.complete]`` anywhere | ``#\#[group]x`` | GitHub Actions, Azure Pipelines |
  | ``##teamcity[buildStop]`` anywhere | ``#\#teamcity[buildStop]`` | TeamCity |
  | ``SPINNAKER_PROPERTY_A=1`` anywhere, ``SPINNAKER_CONFIG_JSON=`` | ``SPINNAKER\_PROPERTY_A=1`` | Spinnaker |
  | ``--- x``, ``+++ x``, ``~~~ x``, ``^^^ +++`` at the start of a line | ``\--- x`` | Buildkite (folds the log) |

  GitLab's sections, Jenkins' console notes, Buildkite's links and OSC 8 links need ESC, which is gone by then.

Known credentials are replaced first. Escaping twice changes nothing. Escaped text cannot be turned back: a backslash in
it may have stood there before.
"""

from __future__ import annotations

import re

from benchgate import credentials

# Controls but tab and line feed, soft hyphen, direction marks and overrides, zero-width characters, line separators,
# lone surrogates and language tags. The zero-width joiners stay: Persian and emoji cannot be read without them.
_HIDDEN_BUT_ZERO_WIDTH_SPACE = (
    r"\x00-\x08\x0b-\x1f\x7f-\x9f\xad\u061c\u180e\u200e\u200f\u2028-\u202e\u2060-\u206f"
    r"\ud800-\udfff\ufeff\ufff9-\ufffb\U0001bca0-\U0001bca3\U0001d173-\U0001d17a\U000e0000-\U000e007f"
)
HIDDEN_CHARACTERS = rf"{_HIDDEN_BUT_ZERO_WIDTH_SPACE}\u200b"
"""Characters that a terminal obeys or a reader cannot see, as the inside of a character class of `re`."""

_HIDDEN = re.compile(f"[{HIDDEN_CHARACTERS}]")
_HIDDEN_IN_MARKDOWN = re.compile(f"[{_HIDDEN_BUT_ZERO_WIDTH_SPACE}]")
_COMMAND_AT_LINE_START = re.compile(r"^([^\S\n]*:)(?=:)", re.MULTILINE)
_GROUP_AT_LINE_START = re.compile(r"^(?=(?:---|\+\+\+|~~~|\^\^\^)[ \t])", re.MULTILINE)
_HASH_COMMAND = r"#(?=#(?:\[|vso|teamcity))"
_COMMAND_ANYWHERE = re.compile(rf"{_HASH_COMMAND}|SPINNAKER(?=_(?:PROPERTY_|CONFIG_JSON))", re.IGNORECASE)
# In JSON the first character of a command becomes its escape, wherever the command stands.
_DANGEROUS_IN_JSON = re.compile(
    rf"[{HIDDEN_CHARACTERS}]|:(?=:)|{_HASH_COMMAND}|(?<=SPINNAKER)_(?=PROPERTY_|CONFIG_JSON)", re.IGNORECASE
)
_LINE_BREAKS = re.compile(r"\r\n|[\n\r\v\f\x1c-\x1e\x85\u2028\u2029]")
_WORD = re.compile(r"`([a-z][a-z0-9_.-]{0,39}|benchgate [A-Za-z0-9_./@ -]{1,120})`")
_REPLACEMENT = "\N{REPLACEMENT CHARACTER}"
_ZERO_WIDTH_SPACE = "\N{ZERO WIDTH SPACE}"
_ELLIPSIS = "…"

# Beginnings of a mention, an issue reference, a bare link or an emoji in GitHub's dialect. GitHub decodes HTML entities
# first, so only a character in between stops them; a backslash or an entity does not.
_EMOJI = r"(?:[+-]1|100|1234|[\w+-]*[a-z_][\w+-]*)"
_LIVE = re.compile(rf"(?i)@|#|://|www\.|gh-|mailto:|xmpp:|:(?={_EMOJI}:)|^:(?=:)")
_HALF_EMOJI = re.compile(rf"(?i):{_EMOJI}$")  # a colon of ours may follow
# Markdown structure inside a line, and the beginnings of lists. A numeric entity is always text (CommonMark 0.31, 5.2
# and 6.4).
_STRUCTURE = re.compile(r"[&<>`*_\[\]|\\~$]|^[-+](?=[- ]|$)|^\d(?=\d{0,8}[.)](?: |$))")


def terminal_text(text: str) -> str:
    """Escape hidden characters and CI commands; line feeds and tabs stay, CR LF becomes LF."""
    text = credentials.redact(text.replace("\r\n", "\n"))
    return _without_commands(_HIDDEN.sub(_visible_escape, text))


def terminal_line(text: str) -> str:
    """Escape hidden characters and CI commands, and put the text on one line: line breaks and tabs become spaces."""
    return terminal_text(text.replace("\r\n", " ").replace("\n", " ").replace("\t", " "))


def markdown_text(text: str) -> str:
    """Escape Markdown that our renderer has made; the zero-width spaces that it puts into mentions stay."""
    text = credentials.redact(text.replace("\r\n", "\n"))
    return _without_commands(_HIDDEN_IN_MARKDOWN.sub(_visible_escape, text))


def json_text(text: str) -> str:
    r"""Escape a JSON text so that no line of it is a command, and its parsed values stay the same.

    Inside strings, where alone they can stand, ``##vso[`` becomes ``\u0023#vso[``, ``::`` becomes ``\u003a:``, and a
    hidden character becomes ``\uXXXX``. A text without any of these stays byte for byte as it is.
    """
    return _DANGEROUS_IN_JSON.sub(_json_escape, credentials.redact(text))


def _without_commands(text: str) -> str:
    text = _COMMAND_ANYWHERE.sub(r"\g<0>\\", text)
    text = _COMMAND_AT_LINE_START.sub(r"\1\\", text)
    return _GROUP_AT_LINE_START.sub(r"\\", text)


def _visible_escape(match: re.Match[str]) -> str:
    return match[0].encode("unicode_escape").decode("ascii")


def _json_escape(match: re.Match[str]) -> str:
    units = match[0].encode("utf-16-be", "surrogatepass").hex()
    return "".join(f"\\u{units[at : at + 4]}" for at in range(0, len(units), 4))


def visible(text: str) -> str:
    """Replace every invisible character by U+FFFD; line breaks become line feeds, tabs stay."""
    return _HIDDEN.sub(_REPLACEMENT, _LINE_BREAKS.sub("\n", text))


def one_line(text: str, limit: int = 400) -> str:
    """Put the visible text on one line with single blanks, cut with an ellipsis past `limit` characters."""
    line = " ".join(visible(credentials.redact(text)).split())
    return line if len(line) <= limit else line[: limit - 1] + _ELLIPSIS


def markdown_prose(text: str, limit: int = 400) -> str:
    """Return one line that GitHub shows as it is: no mention, reference, link, image, HTML, emphasis or table break."""
    inert = _LIVE.sub(_interrupt, one_line(text, limit))
    inert += _ZERO_WIDTH_SPACE if _HALF_EMOJI.search(inert) else ""
    return _STRUCTURE.sub(lambda match: f"&#{ord(match[0])};", inert)


def quoted(sentence: str) -> str:
    """Put backticked suite words and commands into quotation marks.

    They become no code spans: untrusted text stands in such sentences too, and must not become structure.
    """
    return _WORD.sub("\N{LEFT DOUBLE QUOTATION MARK}\\1\N{RIGHT DOUBLE QUOTATION MARK}", sentence)


def markdown_code(text: str, limit: int = 200) -> str:
    """Return one line as a code span, fit for a table cell.

    Backtick and cell border cannot be escaped inside a span, so they become look-alikes. An empty text becomes a dash.
    """
    line = one_line(text, limit).replace("`", "\N{MODIFIER LETTER GRAVE ACCENT}").replace("|", "¦")
    return f"`{line}`" if line else "\N{EN DASH}"


def chat_line(text: str, limit: int = 400) -> str:
    """Return one line for Slack and the like: no mention, link or emoji; `&`, `<` and `>` are entities."""
    inert = _LIVE.sub(_interrupt, one_line(text, limit))
    return inert.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def _interrupt(match: re.Match[str]) -> str:
    live = match[0]
    cut = live.index(":") + 1 if ":" in live else len(live)
    return live[:cut] + _ZERO_WIDTH_SPACE + live[cut:]
