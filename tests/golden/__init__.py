"""Expected reports. Set BENCHGATE_UPDATE_GOLDEN=1 to write them anew, then read the difference before keeping it."""

from __future__ import annotations

import os
from pathlib import Path

_HERE = Path(__file__).parent


def assert_golden(name: str, text: str) -> None:
    path = _HERE / name
    if os.environ.get("BENCHGATE_UPDATE_GOLDEN") == "1":
        path.write_text(text, encoding="utf-8", newline="\n")
    expected = path.read_bytes().decode()
    assert text == expected, f"{name} differs; if that is meant, run again with BENCHGATE_UPDATE_GOLDEN=1"


def assert_generated(page: str, key: str, text: str) -> None:
    """Hold the block of docs/PAGE between `<!-- KEY -->` and `<!-- end of KEY -->` to what the code generates."""
    path = _HERE.parents[1] / "docs" / page
    begin, end = f"<!-- {key} -->", f"<!-- end of {key} -->"
    head, _, rest = path.read_text(encoding="utf-8").partition(begin)
    block, mark, tail = rest.partition(end)
    assert mark, f"docs/{page} has no place for {key}: it needs the lines {begin!r} and {end!r}"
    if os.environ.get("BENCHGATE_UPDATE_GOLDEN") == "1":
        block = f"\n\n{text}\n\n"
        path.write_text(f"{head}{begin}{block}{end}{tail}", encoding="utf-8", newline="\n")
    assert block.strip() == text, f"{key} in docs/{page} is stale; run again with BENCHGATE_UPDATE_GOLDEN=1"
