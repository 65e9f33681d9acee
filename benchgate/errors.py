"""Everything benchgate can refuse or fail at, as one tree, and the exit codes, in one enum.

    BenchgateError
    ├── UsageError          the command line asks for something that cannot be          exit 2
    ├── SuiteError          the suite is wrong; carries every problem with its place    exit 2
    ├── EmbeddedError       the embedded engine could not be built or started           becomes INVALID
    ├── TargetError         a deployment does not answer as it must                     becomes INVALID
    ├── ClusterError        the cluster that is to send the load cannot, or was lost    exit 12
    ├── BudgetError         nobody says what production has spent of its error budget   exit 12
    ├── EvidenceError       stored evidence is missing or does not hash                 exit 13
    │   └── TakenOver       the run that is measured here is somebody else's by now
    ├── StoreError          the store could not be read or written                      exit 13
    │   └── NothingKept     what is measured can be kept nowhere any more
    └── PublishError        a report or a publisher failed after the verdict            exit 13

A failed *request* is data in a record, never an exception. An exception that is none of these is a defect of
benchgate's own and surfaces as a crash (exit 1), which no caller may read as a verdict.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from enum import IntEnum


class ExitCode(IntEnum):
    """What the process tells its caller. Everything but 0 blocks a promotion."""

    OK = 0
    CRASH = 1
    USAGE = 2
    BLOCK = 10
    INCONCLUSIVE = 11
    INVALID = 12
    PUBLISH_FAILED = 13
    INTERRUPTED = 130
    TERMINATED = 143


class BenchgateError(Exception):
    """Base of all refusals: the message is a sentence for the user and says what to do."""

    exit_code: ExitCode = ExitCode.CRASH


class UsageError(BenchgateError):
    """The command line asks for something that does not exist or does not fit together."""

    exit_code = ExitCode.USAGE


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing wrong with a suite: where it stands, what was found, what was expected, what to do.

    `line` and `column` count from 1; None when the problem has no place (a missing file, say).
    """

    source: str
    line: int | None
    column: int | None
    path: str
    message: str

    def __str__(self) -> str:
        place = ":".join(str(part) for part in (self.source, self.line, self.column) if part is not None)
        return f"{place}: {self.path}: {self.message}" if self.path else f"{place}: {self.message}"


_MOST_OF_A_FILE = 20


def _shown(problems: list[Problem]) -> Iterator[str]:
    """A line for each, and of a file with very many of them how many more there are."""
    counts: Counter[str] = Counter()
    for problem in problems:
        counts[problem.source] += 1
        if counts[problem.source] <= _MOST_OF_A_FILE:
            yield str(problem)
    for source, number in counts.items():
        if number > _MOST_OF_A_FILE:
            yield f"{source}: and {number - _MOST_OF_A_FILE:,} more"


class SuiteError(BenchgateError):
    """A suite that cannot be run, with every problem found in it at once, in order of place."""

    exit_code = ExitCode.USAGE

    def __init__(self, problems: list[Problem]) -> None:
        self.problems = sorted(problems, key=lambda p: (p.source, p.line or 0, p.column or 0, p.path))
        super().__init__("\n".join(_shown(self.problems)))


def lacking(what: str, extra: str) -> str:
    """What is missing, and what to do: benchgate comes from a checkout or a wheel, and cannot be had by its name."""
    again = f"install benchgate again from where it came, with the extra `{extra}`"
    return f"{what}; {again}: pip install '/path/to/benchgate[{extra}]'"


class EmbeddedError(BenchgateError):
    """The embedded engine could not be built, started or stopped."""

    exit_code = ExitCode.INVALID


class TargetError(BenchgateError):
    """A deployment does not answer as it must; the message names it and the reason."""

    exit_code = ExitCode.INVALID


class ClusterError(BenchgateError):
    """The cluster that is to send the load cannot be used, or was lost; the message names it and what to do."""

    exit_code = ExitCode.INVALID


class BudgetError(BenchgateError):
    """Whoever knows what production has spent of its error budget cannot be asked, or does not say."""

    exit_code = ExitCode.INVALID


class StoreError(BenchgateError):
    """The store could not be opened, read or written."""

    exit_code = ExitCode.PUBLISH_FAILED


class NothingKept(StoreError):
    """What is measured can be kept nowhere any more, on no disk and in no database: nothing more is measured."""


class EvidenceError(StoreError):
    """Stored evidence is missing, truncated or does not match its hash."""


class TakenOver(EvidenceError):
    """The run that this process measures is not its own any more: another one goes on with it, or ended it."""


class PublishError(BenchgateError):
    """The verdict is known, but a report or publisher failed."""

    exit_code = ExitCode.PUBLISH_FAILED
