"""Expected reports. Set BENCHGATE_UPDATE_GOLDEN=1 to write them anew, then read the difference."""

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
