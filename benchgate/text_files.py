"""A file that a reader names, as text: a regular one, of a size that such a file may have.

Whatever else has a name may give bytes without an end, or never one. Who asks says what to make of the error.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path

from benchgate.suite.yaml import MAX_CHARACTERS

WRITTEN_BYTES = 4 * MAX_CHARACTERS
"""The most that a file in the language of suites may have: so many characters of UTF-8 are no more."""

RECORDED_BYTES = 2**30
"""The most that a file of prompts or texts may have, which is held in memory whole."""


class NoSuchText(OSError):
    """A file that is there and cannot be taken for one; it says why, as other errors of files do."""

    def __init__(self, why: str) -> None:
        super().__init__(why)
        self.strerror = why


def text_of(file: Path, most_bytes: int = WRITTEN_BYTES, encoding: str = "utf-8") -> str:
    """What stands in it, each line ended by `\\n` alone.

    Raises OSError where it cannot be read or may not, UnicodeDecodeError where it is no text.
    """
    with open(file, "rb", opener=lambda path, flags: os.open(path, flags | os.O_NONBLOCK)) as opened:
        found = os.fstat(opened.fileno())
        if not stat.S_ISREG(found.st_mode):
            raise NoSuchText("it is no regular file")
        data = opened.read(most_bytes + 1) if found.st_size <= most_bytes else None
    if data is None or len(data) > most_bytes:
        raise NoSuchText(f"it is larger than {most_bytes:,} bytes")
    text = data.decode(encoding)
    return text.replace("\r\n", "\n").replace("\r", "\n") if "\r" in text else text
