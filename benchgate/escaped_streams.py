"""Standard output and standard error of a process, with everything that libraries write to them escaped.

Commands print through `benchgate.cli.saying`, which escapes by the kind of text. What does not come from there (a
traceback, a warning, a log record of a library, a usage error of the parser of the command line) may quote a server or
a suite too, so the streams themselves escape it.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any, TextIO, cast

from benchgate import credentials
from benchgate.errors import PublishError
from benchgate.escape import terminal_text


class _EscapedStream:
    """A text stream that escapes what is written to it. It has no `buffer`, so nobody can write bytes past it."""

    def __init__(self, raw: TextIO, name: str) -> None:
        self.raw = raw
        self._name = name
        self._at_line_start = True

    def write(self, text: str) -> int:
        """Write the text escaped; return the length of what was given.

        Raises TypeError for bytes, and PublishError as `output_errors` does.
        """
        if not isinstance(text, str):
            raise TypeError(f"write() argument must be str, not {type(text).__name__}")
        if text:
            # Pieces of one line come one by one: only the first of them can begin a command at the line's start.
            lead = "" if self._at_line_start else "."
            with output_errors(self._name, self.raw):
                self.raw.write(terminal_text(lead + text)[len(lead) :])
            started = self._at_line_start or "\n" in text
            self._at_line_start = started and not text.rpartition("\n")[2].strip()
        return len(text)

    def writelines(self, lines: list[str]) -> None:
        """Write each of the lines."""
        for line in lines:
            self.write(line)

    def flush(self) -> None:
        """Write what is still buffered. Raises PublishError as `output_errors` does."""
        with output_errors(self._name, self.raw):
            self.raw.flush()

    def __getattr__(self, name: str) -> Any:
        if name in ("buffer", "detach"):
            raise AttributeError(f"an escaped stream has no {name}")
        return getattr(self.raw, name)


def escape_streams() -> None:
    """Escape from now on what this process writes to its standard output and standard error. Twice is once.

    Credentials in its environment are registered, so that they are redacted too.
    """
    credentials.register_environment(os.environ)
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is not None and not isinstance(stream, _EscapedStream):
            setattr(sys, name, _EscapedStream(stream, name))


_STDERR = 2


def open_standard_descriptors() -> None:
    """Open the null device in place of each standard stream that is closed.

    Otherwise the next file or socket gets its number: libraries write messages into it, and libuv refuses to close it.
    """
    while (descriptor := os.open(os.devnull, os.O_RDWR)) <= _STDERR:
        os.set_inheritable(descriptor, True)
    os.close(descriptor)


@contextmanager
def output_errors(name: str, raw: TextIO) -> Iterator[None]:
    """Raise PublishError where standard output is closed or takes no more, as on a full disk.

    The text is lost, and so is all that follows it. Of standard error it is lost silently.
    """
    try:
        yield
    except (OSError, ValueError) as error:  # ValueError: closed since
        if isinstance(error, UnicodeError):
            raise
        with suppress(OSError, ValueError):  # Python writes the buffer once more at its end, and would exit with 120
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, raw.fileno())
            os.close(nowhere)
        if name == "stdout":
            reason = error.strerror if isinstance(error, OSError) else error
            raise PublishError(f"standard output could not be written: {reason}") from error


def raw_stream(name: str) -> TextIO | None:
    """Return `stdout` or `stderr` without its escaping, for text that is escaped already. None where it is closed."""
    stream = getattr(sys, name)
    return stream.raw if isinstance(stream, _EscapedStream) else cast("TextIO | None", stream)
