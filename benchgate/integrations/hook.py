"""A user's command after a promotion, run without a shell and with a time limit.

Texts of models and people reach it as environment variables of one printable line each and as JSON on its standard
input, never in its command line.
"""

from __future__ import annotations

import os
import shlex
import shutil
import signal
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import suppress

from benchgate.errors import PublishError, UsageError
from benchgate.targets.error_messages import one_line

_GRACE_S = 5.0  # between SIGTERM and SIGKILL
_LONGEST = 4096  # characters of a variable
_STDERR = 2  # standard output is for benchgate's own results alone


def hook_command(text: str) -> tuple[str, ...]:
    """Split a command into words as a shell would. Raises UsageError if it cannot be run."""
    try:
        words = tuple(shlex.split(text))
    except ValueError as error:
        raise UsageError(f"--run-hook: invalid command: {error}; quote it as for a shell") from error
    if not words or "\0" in text:
        raise UsageError("--run-hook: expected a command, like './deploy.sh --to production'")
    if shutil.which(words[0]) is None:
        raise UsageError(
            f"--run-hook: program {one_line(words[0])!r} not found; it runs without a shell, so pipes, variables and "
            "`&&` belong into a script"
        )
    return words


def run_hook(
    command: Sequence[str], variables: Mapping[str, str], document: str, environment: Mapping[str, str], limit_s: float
) -> None:
    """Run a command to its end. Raises PublishError if it fails, cannot be started or takes longer than `limit_s`.

    `variables` override those in `environment`; `document` is its standard input.
    """
    merged = {**environment, **{name: one_line(value, _LONGEST) for name, value in variables.items()}}
    try:
        process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=_STDERR, env=merged, start_new_session=True, text=True
        )
    except OSError as error:
        raise PublishError(f"the hook could not be started: {error.strerror or error}") from error
    try:
        process.communicate(document, timeout=limit_s)
    except subprocess.TimeoutExpired as error:
        raise PublishError(
            f"the hook took longer than {limit_s:g} s and was ended; --hook-timeout gives more"
        ) from error
    finally:
        _end(process)
    if process.returncode:
        how = f"status {process.returncode}" if process.returncode > 0 else f"signal {-process.returncode}"
        raise PublishError(f"the hook ended with {how}")


def _end(process: subprocess.Popen[str]) -> None:
    """End the process, and everything else in its session."""
    if process.poll() is not None:
        return
    for number in (signal.SIGTERM, signal.SIGKILL):  # the second also for what the first left of its session
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, number)
        with suppress(subprocess.TimeoutExpired):
            process.wait(_GRACE_S)
    if process.stdin is not None:
        with suppress(OSError):
            process.stdin.close()
