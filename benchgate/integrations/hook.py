"""The reader's own command after a promotion: run without a shell, told what was promoted, and held to a time.

It is started for a promotion that is recorded and for nothing else; what it is told of models and people is one
printable line each, as variables and as JSON on its standard input, and never a part of its command line.
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

_GRACE_S = 5.0  # between being told to end and being killed
_LONGEST = 4096  # characters: half a name would be another's
_STDERR = 2  # standard output is for benchgate's own results alone


def hook_command(text: str) -> tuple[str, ...]:
    """The words of a command, split as a shell would and otherwise as they stand. UsageError where it cannot be run."""
    try:
        words = tuple(shlex.split(text))
    except ValueError as error:
        raise UsageError(f"--run-hook: it is no command: {error}; quote it as for a shell") from error
    if not words or "\0" in text:
        raise UsageError("--run-hook: expected a command, like './deploy.sh --to production'")
    if shutil.which(words[0]) is None:
        raise UsageError(
            f"--run-hook: there is no program {one_line(words[0])!r} that could be run; it runs without a shell, so "
            "pipes, variables and `&&` belong into a script"
        )
    return words


def run_hook(
    command: Sequence[str], variables: Mapping[str, str], document: str, environment: Mapping[str, str], limit_s: float
) -> None:
    """Run it to its end; PublishError where it fails, cannot be started or takes longer than `limit_s`.

    `variables` go over those of the same name in `environment`, `document` to its standard input.
    """
    told = {**environment, **{name: one_line(value, _LONGEST) for name, value in variables.items()}}
    try:
        process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=_STDERR, env=told, start_new_session=True, text=True
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
    """Nothing of it outlives an end that is not its own: neither it nor what it started in its session."""
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
