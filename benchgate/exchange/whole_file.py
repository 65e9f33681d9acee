"""Files of an export, written atomically."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from benchgate.errors import StoreError
from benchgate.system import atomic_file


@contextmanager
def whole_file(file: Path) -> Iterator[BinaryIO]:
    """Yield a new file that takes the place of `file` when the block ends. Raises StoreError where it cannot."""
    try:
        with atomic_file(file) as out:
            yield out
    except OSError as exc:
        raise StoreError(f"{file} could not be written: {exc.strerror or exc}") from exc
