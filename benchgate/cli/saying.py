"""The one way out of a command: everything printed to standard output or standard error is escaped here.

A test forbids every other write in the package (tests/core/test_one_way_out.py). What may be dangerous in a text of a
server, a model or a suite, and what becomes of it, stands in `benchgate.escape`.
"""

from __future__ import annotations

import json
import os
import re
import shutil
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from benchgate import credentials
from benchgate.errors import PublishError
from benchgate.escape import json_text, markdown_text, terminal_line, terminal_text
from benchgate.escaped_streams import output_errors, raw_stream

if TYPE_CHECKING:
    from rich.console import Console

    from benchgate.report.screen import Screen


@dataclass
class OutputSettings:
    """Options of every command that change how it prints: `--quiet`, `--verbose` and `--color`."""

    quiet: bool = False
    verbose: bool = False
    color: str = "auto"  # or always, never


settings = OutputSettings()


def say(text: str) -> None:
    """Write lines for people to standard output, escaped. Raises PublishError where that is closed or takes no more."""
    say_escaped(terminal_text(text))


def say_json(document: Any, **options: Any) -> None:
    """Write a document as indented JSON to standard output; its parsed values are exactly those of the document.

    `options` are those of `json.dumps`. Raises PublishError as `say` does.
    """
    say_json_text(json.dumps(document, indent=2, **options) + "\n")


def say_json_text(text: str) -> None:
    """Write a JSON text to standard output, escaped inside its strings. Raises PublishError as `say` does."""
    say_escaped(json_text(text))


def say_markdown(text: str) -> None:
    """Write Markdown that a renderer of ours has made to standard output. Raises PublishError as `say` does."""
    say_escaped(markdown_text(text))


def say_escaped(text: str, *, redacted: bool = True) -> None:
    """Write a text that is escaped already, or holds commands of our own (annotations), to standard output, at once.

    Credentials are redacted, except with `redacted=False`, for a command that tells the CI what to mask. Characters
    that the encoding of a terminal lacks are written as escapes. Raises PublishError where standard output is closed or
    takes no more, as on a full disk.
    """
    text, stream = credentials.redact(text) if redacted else text, raw_stream("stdout")
    if stream is None:  # it was closed before the command began
        raise PublishError("standard output is closed, so what is printed there was lost")
    with output_errors("stdout", stream):
        try:
            stream.write(text)
        except UnicodeEncodeError:
            stream.write(text.encode(stream.encoding, "backslashreplace").decode(stream.encoding))
        stream.flush()


def log(*lines: str) -> None:
    """Write each line to standard error: a problem, progress or the place of a file, escaped and on one line."""
    stream = raw_stream("stderr")
    if stream is None:
        return
    columns = None
    with suppress(OSError, ValueError):  # no terminal
        columns = os.get_terminal_size(stream.fileno()).columns or None
    with output_errors("stderr", stream):
        stream.write("".join(f"{part}\n" for line in lines for part in fitting(line, columns)))
        stream.flush()


def fitting(line: str, columns: int | None) -> list[str]:
    """Return a line as escaped lines of at most so many columns. Commands in it stay whole, so that they can be copied.

    A line that is indented is a command.
    """
    if columns is None or len(line) <= columns or line.startswith(" "):
        return [terminal_line(line)]
    from benchgate.report.screen import wrapped_lines

    whole = re.sub(r"`[^`]*`", lambda found: found[0].replace(" ", "\xa0"), line)
    return [terminal_line(part) for part in wrapped_lines(whole, columns)]


def inform(*lines: str) -> None:
    """Write progress, advice and places of files to standard error as `log` does, except with `--quiet`."""
    if not settings.quiet:
        log(*lines)


def log_text(text: str) -> None:
    """Write a text of several lines to standard error, escaped line by line; an ending line break is not doubled."""
    log(*text.removesuffix("\n").split("\n"))


def stderr_console() -> Console:
    """Return a rich console on standard error, for the progress bar. Escape every text that is given to it."""
    from rich.console import Console

    return Console(file=raw_stream("stderr"), no_color=not has_colours("stderr"))


def stdout_screen() -> Screen:
    """Return the screen behind standard output: its width on a terminal, and its colours."""
    from benchgate.report.screen import Screen

    stream = raw_stream("stdout")
    columns = shutil.get_terminal_size().columns if stream is not None and stream.isatty() else None
    return Screen(columns, has_colours("stdout"))


def has_colours(name: str) -> bool:
    """Return True if `stdout` or `stderr` gets colours: by `--color`, NO_COLOR, FORCE_COLOR, else on a terminal."""
    if settings.color != "auto":
        return settings.color == "always"
    if os.environ.get("NO_COLOR"):  # https://no-color.org
        return False
    if os.environ.get("FORCE_COLOR"):
        return True
    stream = raw_stream(name)
    return stream is not None and stream.isatty() and os.environ.get("TERM") not in ("dumb", "unknown")
