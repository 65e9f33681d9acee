"""All errors as one tree, with their exit codes, places and remedies.

    BenchgateError
    ├── UsageError          the request is impossible, or contradicts itself            exit 2
    ├── SuiteError          the suite is wrong; carries every problem with its place    exit 2
    ├── LimitError          the operator of this machine forbids the load               exit 2
    ├── EmbeddedError       the embedded engine could not be built or started           becomes INVALID
    ├── TargetError         a deployment does not answer as it must                     becomes INVALID
    ├── ClusterError        the cluster cannot send the load, or was lost               exit 12
    ├── BudgetError         the spent part of the error budget cannot be read           exit 12
    ├── StoreError          the store could not be read or written                      exit 13
    │   ├── NothingKept     neither the store nor the spool takes measurements
    │   └── EvidenceError   stored evidence is missing or does not match its hash
    │       └── TakenOver   another process resumed or ended the run measured here
    └── PublishError        a report or a publisher failed after the verdict            exit 13

A failed *request* is data in a record, never an exception. Any other exception is a defect of benchgate and surfaces as
a crash (exit 1), which no caller may read as a verdict.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from difflib import get_close_matches
from enum import IntEnum, StrEnum


class ExitCode(IntEnum):
    """Exit codes of the process. Everything but 0 blocks a promotion."""

    OK = 0
    CRASH = 1
    USAGE = 2
    BLOCK = 10
    INCONCLUSIVE = 11
    INVALID = 12
    PUBLISH_FAILED = 13
    INTERRUPTED = 130
    TERMINATED = 143


class Command(StrEnum):
    """Commands that mend a problem. Their options are the command line's own business."""

    CALIBRATE = "calibrate"
    DOCTOR_CLIENT = "doctor --client"
    GATE = "gate"
    IMPORT = "store import"
    PLAN = "plan"
    PROMOTE = "promote"
    RESUME = "run --resume"
    RUN = "run"
    TREND = "trend"
    UPGRADE = "store upgrade"


@dataclass(frozen=True, slots=True)
class Remedy:
    """A command that mends a problem. `purpose` is an imperative, `subject` the run or file that the command is for.

    `store` is the address of the store that it is for; empty for one that must not be shown, None for the usual one.
    """

    purpose: str
    command: Command
    subject: str | None = None
    store: str | None = None

    def __str__(self) -> str:
        return f"{self.purpose} with `benchgate {self.command}`"


class BenchgateError(Exception):
    """Base of all refusals: a sentence for the user, the suite's key that it is about, and what mends it."""

    exit_code: ExitCode = ExitCode.CRASH

    def __init__(
        self, message: str = "", *, path: tuple[str | int, ...] = (), remedies: tuple[Remedy, ...] = ()
    ) -> None:
        super().__init__(message)
        self.message = message
        self.path = path
        self.remedies = remedies

    def __str__(self) -> str:
        return "; ".join([self.message, *map(str, self.remedies)])


class UsageError(BenchgateError):
    """A request for something that does not exist or does not fit together."""

    exit_code = ExitCode.USAGE


class LimitError(BenchgateError):
    """A load beyond the limits that the operator of a load machine set."""

    exit_code = ExitCode.USAGE


class RunInterrupted(KeyboardInterrupt):
    """A run was interrupted and can be resumed."""

    def __init__(self, run_id: str) -> None:
        super().__init__(f"run {run_id} was interrupted")
        self.run_id = run_id


@dataclass(frozen=True, slots=True)
class Problem:
    """A mistake in a suite: its place, what was found, what was expected, what to do.

    `line` and `column` count from 1; None without a place (a missing file, say). `source` is empty for the suite that
    is being used, whose file the problem's author does not know.
    """

    source: str
    line: int | None
    column: int | None
    path: str
    message: str

    def __str__(self) -> str:
        place = ":".join(str(part) for part in (self.source or None, self.line, self.column) if part is not None)
        return ": ".join(part for part in (place, self.path, self.message) if part)


_MAX_PER_FILE = 20


def _problem_lines(problems: list[Problem]) -> Iterator[str]:
    """Yield a line for each problem; a file with very many ends with a count."""
    counts: Counter[str] = Counter()
    for problem in problems:
        counts[problem.source] += 1
        if counts[problem.source] <= _MAX_PER_FILE:
            yield str(problem)
    for source, number in counts.items():
        if number > _MAX_PER_FILE:
            yield f"{source}: and {number - _MAX_PER_FILE:,} more"


class SuiteError(BenchgateError):
    """A suite that cannot be run, with every problem in it at once, in order of place."""

    exit_code = ExitCode.USAGE

    def __init__(self, problems: list[Problem]) -> None:
        self.problems = sorted(problems, key=lambda p: (p.source, p.line or 0, p.column or 0, p.path))
        super().__init__("\n".join(_problem_lines(self.problems)))


def nearest(word: str, options: Iterable[str]) -> str | None:
    """Return the option most similar to a word, regardless of case; None without a similar one."""
    spelled = {option.lower(): option for option in options}
    close = get_close_matches(word.lower(), spelled, n=1, cutoff=0.6)
    return spelled[close[0]] if close else None


def suggestion(word: str, options: Iterable[str]) -> str:
    """Return `did you mean …?`, or all options if none is similar."""
    known = list(dict.fromkeys(options))
    near = nearest(word, known)
    return f"did you mean `{near}`?" if near else f"expected one of {', '.join(known)}"


class EmbeddedError(BenchgateError):
    """The embedded engine could not be built, started or stopped."""

    exit_code = ExitCode.INVALID


class TargetError(BenchgateError):
    """A deployment does not answer as it must; the message names it and the reason."""

    exit_code = ExitCode.INVALID


class ClusterError(BenchgateError):
    """The cluster cannot send the load, or was lost; the message names it."""

    exit_code = ExitCode.INVALID


class BudgetError(BenchgateError):
    """The spent part of production's error budget cannot be read from its source."""

    exit_code = ExitCode.INVALID


class StoreError(BenchgateError):
    """The store could not be opened, read or written."""

    exit_code = ExitCode.PUBLISH_FAILED


class NothingKept(StoreError):
    """Neither the spool nor the database takes measurements any more, so nothing more is measured."""


class EvidenceError(StoreError):
    """Stored evidence is missing, truncated or does not match its hash."""


class TakenOver(EvidenceError):
    """Another process resumed or ended this run."""


class PublishError(BenchgateError):
    """The verdict is known, but a report or publisher failed."""

    exit_code = ExitCode.PUBLISH_FAILED
