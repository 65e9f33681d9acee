"""Expected reports and generated tables. Set BENCHGATE_UPDATE_GOLDEN=1 to write them anew, then read the difference."""

from __future__ import annotations

import os
from pathlib import Path

_HERE = Path(__file__).parent
_UPDATE = "BENCHGATE_UPDATE_GOLDEN"


def assert_golden(name: str, text: str) -> None:
    path = _HERE / name
    if os.environ.get(_UPDATE) == "1":
        path.write_text(text, encoding="utf-8", newline="\n")
    expected = path.read_bytes().decode()
    assert text == expected, f"{name} differs; if that is meant, run again with {_UPDATE}=1"


def assert_section(page: Path, key: str, text: str) -> None:
    """Compare the part of a page between `<!-- key -->` and `<!-- end of key -->`."""
    begin, end = f"<!-- {key} -->\n\n", f"\n\n<!-- end of {key} -->"
    head, _, rest = page.read_text(encoding="utf-8").partition(begin)
    found, mark, tail = rest.partition(end)
    assert mark, f"{page.name} has no lines {begin.strip()} and {end.strip()}"
    if os.environ.get(_UPDATE) == "1":
        page.write_text(f"{head}{begin}{text}{end}{tail}", encoding="utf-8", newline="\n")
        found = text
    assert found == text, f"{key} in {page.name} is stale; run again with {_UPDATE}=1"
