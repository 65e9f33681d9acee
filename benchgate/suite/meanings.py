"""What the keys of a suite mean, read off the page that explains them, so that editors say what the page says."""

from __future__ import annotations

import re
from collections.abc import Iterator

_HEADING = re.compile(r"^## (?:`(?P<place>[^`]+)`|(?P<top>The top level))$")
_ROW = re.compile(r"^\| `(?P<key>[^`]+)` \|(?P<rest>.*)\|$")
_LINK = re.compile(r"\[([^\]]*)\]\([^)]*\)")
_METRICS = "| metric | needs"


def meanings_of(page: str) -> dict[tuple[str, str], str]:
    """Meaning and default of every key, by the place of its section and the key; the top level's place is empty.

    `page` is the text of docs/suites.md: one heading for each section, with a row `| key | value | default | meaning |`
    for each of its keys.
    """
    return dict(_rows(page))


def _rows(page: str) -> Iterator[tuple[tuple[str, str], str]]:
    place: str | None = None
    for line in page.splitlines():
        if line.startswith(("## ", _METRICS)):
            heading = _HEADING.match(line)
            place = None if heading is None else heading["place"] or ""
        row = _ROW.match(line)
        if row is not None and place is not None:
            cells = [_bare(cell) for cell in row["rest"].split(" | ")]
            if len(cells) == 3:
                yield (place, row["key"]), _sentence(*cells)


def _sentence(value: str, default: str, meaning: str) -> str:
    usual = "Required" if default == "required" else f"Unless said: {default}"
    return f"{meaning.rstrip('.')}. Value: {value}. {usual}."


def _bare(cell: str) -> str:
    """Without the marks of markdown."""
    return _LINK.sub(r"\1", cell).replace("`", "").replace("\\|", "|").strip()
