"""What a command prints on standard output: whole, or an error that says it is not."""

from __future__ import annotations

import os
import sys
from contextlib import suppress

from benchgate.errors import PublishError


def say(text: str) -> None:
    """Write to standard output, at once. Raises PublishError where it is closed, or takes no more: a disk that is full.

    What the encoding of a terminal lacks is written as escapes: a mark that cannot be shown is no reason for a crash.
    """
    if sys.stdout is None:  # it was closed before the command began
        raise PublishError("standard output is closed, so what is printed there was lost")
    try:
        try:
            sys.stdout.write(text)
        except UnicodeEncodeError:
            encoding = sys.stdout.encoding
            sys.stdout.write(text.encode(encoding, "backslashreplace").decode(encoding))
        sys.stdout.flush()
    except (OSError, ValueError) as error:  # ValueError: closed since
        _leave_quietly()
        reason = error.strerror if isinstance(error, OSError) else error
        raise PublishError(f"standard output could not be written: {reason}") from error


def _leave_quietly() -> None:
    """What is still in the buffer goes nowhere: writing it once more as Python ends would fail again, with code 120."""
    with suppress(OSError, ValueError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)
