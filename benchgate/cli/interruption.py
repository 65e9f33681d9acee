"""Ctrl-C and SIGTERM: both unwind the command in the same way, and end it with codes of their own."""

from __future__ import annotations

import signal
from types import FrameType

from benchgate.errors import ExitCode

_ends = ExitCode.INTERRUPTED


def unwind_when_told() -> None:
    """From now on SIGTERM is a KeyboardInterrupt too: what event loops pass on from inside their callbacks."""
    # A shell that starts a command in the background makes it ignore SIGINT; then SIGTERM could not unwind it either.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, _terminate)


def interrupted_code() -> ExitCode:
    """What a command that is being interrupted ends with: 143 when SIGTERM did it, else 130."""
    return _ends


def _terminate(signum: int, frame: FrameType | None) -> None:
    global _ends
    _ends = ExitCode.TERMINATED
    signal.raise_signal(signal.SIGINT)
