"""Files that are there as a whole, or not at all."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from benchgate.errors import StoreError


@contextmanager
def whole_file(file: Path) -> Iterator[Path]:
    """Gives a place to write to, which takes the name of `file` once the block has ended; its folder is made.

    Raises StoreError where it cannot be written.
    """
    part = file.with_name(f".{file.name}.part")
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        try:
            yield part
            with part.open("rb") as written:
                os.fsync(written.fileno())
            part.replace(file)
        finally:
            part.unlink(missing_ok=True)
    except OSError as exc:
        raise StoreError(f"{file} could not be written: {exc.strerror or exc}") from exc
