"""Waiting for what another process or thread will have done, without a time that decides what a test says."""

from __future__ import annotations

import time
from collections.abc import Callable

PATIENCE_S = 20.0
_LOOK_S = 0.02


def eventually(holds: Callable[[], bool]) -> bool:
    """Whether it holds before patience ends."""
    deadline_s = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline_s:
        if holds():
            return True
        time.sleep(_LOOK_S)
    return False
