"""Ctrl-C and SIGTERM: both unwind a command in the same way, and end it with their own exit codes."""

from __future__ import annotations

import signal
from types import FrameType

from benchgate.errors import ExitCode

_code = ExitCode.INTERRUPTED


def unwind_on_termination() -> None:
    """Raise KeyboardInterrupt on SIGTERM too, which event loops pass on from inside their callbacks."""
    # A shell that starts a command in the background makes it ignore SIGINT; then SIGTERM could not unwind it either.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, _terminate)


def interrupted_code() -> ExitCode:
    """Return the exit code of an interrupted command: 143 after SIGTERM, else 130."""
    return _code


def _terminate(signum: int, frame: FrameType | None) -> None:
    global _code
    _code = ExitCode.TERMINATED
    signal.raise_signal(signal.SIGINT)
